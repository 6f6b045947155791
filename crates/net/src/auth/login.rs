//! Logging in: a user allows it in a browser, and decanus gets a token.

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use decanus_base::Secret;
use decanus_base::text::{brief, escape_controls};
use ring::digest::{SHA256, digest};
use ring::rand::{SecureRandom, SystemRandom};
use serde_json::Value;
use url::Url;

use super::Auth;
use super::definition::{Definition, GrantType, OAuth};
use super::discovery::Endpoints;
use super::error::AuthError;
use super::loopback::Loopback;
use super::tokens::TokenState;
use super::wire::{self, Party, TokenReply, WireError};
use crate::client::Client;

/// What a user has to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Prompt {
    /// Open this in a browser on this machine.
    Browser {
        /// The URL.
        url: String,
    },
    /// Open this in any browser and type the code.
    Device {
        /// The URL.
        url: String,
        /// The URL with the code in it, if the server has one.
        complete: Option<String>,
        /// The code.
        code: String,
    },
}

/// What stays the same between asking a user and getting the token.
pub(crate) struct Authorization {
    pub url: Url,
    pub state: String,
    pub verifier: Secret,
    pub nonce: Option<String>,
    pub redirect: String,
}

impl Authorization {
    /// Begins: the URL for the browser, with everything in it that is needed later.
    pub fn begin(oauth: &OAuth, authorization_url: &str, redirect: String) -> Result<Self, String> {
        let verifier = random(48)?;
        let state: String = random_bytes(16)?.iter().map(|b| format!("{b:02x}")).collect();
        let nonce = oauth.issuer.as_ref().map(|_| random(24)).transpose()?;
        let mut url = Url::parse(authorization_url).map_err(|e| e.to_string())?;
        {
            let mut query = url.query_pairs_mut();
            query
                .append_pair("response_type", "code")
                .append_pair("client_id", &oauth.client_id)
                .append_pair("redirect_uri", &redirect)
                .append_pair("state", &state)
                .append_pair("code_challenge", &challenge(&verifier))
                .append_pair("code_challenge_method", "S256");
            if !oauth.scopes.is_empty() {
                query.append_pair("scope", &oauth.scopes.join(" "));
            }
            if let Some(nonce) = &nonce {
                query.append_pair("nonce", nonce);
            }
            if let Some(audience) = &oauth.audience {
                query.append_pair("audience", audience);
            }
        }
        Ok(Self {
            url,
            state,
            verifier: Secret::new(verifier),
            nonce,
            redirect,
        })
    }
}

/// The code of a callback: only with the state of this login, and of its issuer if it names one.
pub(crate) fn code_of(query: &str, state: &str, issuer: Option<&str>) -> Result<Secret, String> {
    let mut members: Vec<(String, String)> = Vec::new();
    for (name, value) in url::form_urlencoded::parse(query.as_bytes()) {
        if members.iter().any(|(n, _)| *n == name) {
            return Err("the answer of the browser says something twice".to_owned());
        }
        members.push((name.into_owned(), value.into_owned()));
    }
    let get = |name: &str| members.iter().find(|(n, _)| n == name).map(|(_, v)| v.as_str());
    if get("state") != Some(state) {
        return Err("the answer of the browser belongs to another login (state)".to_owned());
    }
    if let (Some(expected), Some(iss)) = (issuer, get("iss"))
        && iss != expected
    {
        return Err("the answer of the browser is of another issuer (iss)".to_owned());
    }
    if let Some(error) = get("error") {
        let clean = |text: &str| escape_controls(&brief(text, 200));
        let said = get("error_description").map(|d| format!(" ({})", clean(d)));
        return Err(format!(
            "the server answered {}{}",
            clean(error),
            said.unwrap_or_default()
        ));
    }
    match get("code") {
        Some(code) if !code.is_empty() => Ok(Secret::new(code)),
        _ => Err("the answer of the browser has no code".to_owned()),
    }
}

/// The challenge of a verifier (RFC 7636, S256).
pub(crate) fn challenge(verifier: &str) -> String {
    URL_SAFE_NO_PAD.encode(digest(&SHA256, verifier.as_bytes()))
}

fn random_bytes(length: usize) -> Result<Vec<u8>, String> {
    let mut bytes = vec![0; length];
    SystemRandom::new()
        .fill(&mut bytes)
        .map_err(|_| "the system has no random numbers".to_owned())?;
    Ok(bytes)
}

fn random(bytes: usize) -> Result<String, String> {
    Ok(URL_SAFE_NO_PAD.encode(random_bytes(bytes)?))
}

/// How long to wait before the next question of a device, and whether to go on.
pub(crate) fn next_wait(interval: Duration, code: &str) -> Option<Duration> {
    match code {
        "authorization_pending" => Some(interval),
        // RFC 8628, 3.5.
        "slow_down" => Some(interval + Duration::from_secs(5)),
        _ => None,
    }
}

impl Auth {
    /// Has the user log in, by the flow of the credential, within `time`.
    ///
    /// # Errors
    /// When the credential has no such flow, the user or the server refuses, or time is up.
    pub async fn login(
        &self,
        name: &str,
        time: Duration,
        show: &(dyn Fn(Prompt) + Send + Sync),
    ) -> Result<TokenState, AuthError> {
        let definition = self.get(name)?;
        let Some(oauth) = definition.oauth().filter(|o| o.grant != GrantType::ClientCredentials) else {
            return Err(AuthError::Field {
                name: name.to_owned(),
                field: "scheme",
                why: "there is nothing to log in to: tokens are got by themselves".to_owned(),
            });
        };
        match tokio::time::timeout(time, self.log_in(&definition, oauth, show)).await {
            Ok(outcome) => outcome,
            Err(_) => {
                let why = format!("nobody finished it within {} s", time.as_secs());
                Err(AuthError::interrupted(name, why))
            }
        }
    }

    async fn log_in(
        &self,
        definition: &Definition,
        oauth: &OAuth,
        show: &(dyn Fn(Prompt) + Send + Sync),
    ) -> Result<TokenState, AuthError> {
        let name = &definition.name;
        let client = self.client(name)?;
        let endpoints = self.endpoints(&client, definition, oauth).await?;
        let secret = self.client_secret(definition)?;
        let party = oauth.party(secret.as_ref());
        let issued = self.now();
        let (reply, nonce) = if oauth.grant == GrantType::AuthorizationCode {
            let begun = by_browser(name, &client, oauth, &party, &endpoints, show).await?;
            (begun.0, begun.1)
        } else {
            (by_device(name, &client, oauth, &party, &endpoints, show).await?, None)
        };
        let subject = match (&oauth.issuer, &reply.id_token) {
            (None, _) => None,
            (Some(_), Some(token)) => {
                let proof = self.prove(&client, definition, oauth, &endpoints, token, nonce.as_deref(), None);
                Some(proof.await?)
            }
            (Some(_), None) => {
                return Err(AuthError::server(name, "the token server's answer has no id_token"));
            }
        };
        self.keep(definition, &reply, issued, None, subject)
    }
}

/// The authorization code flow, with PKCE and a redirect to this machine.
async fn by_browser(
    name: &str,
    client: &Client,
    oauth: &OAuth,
    party: &Party<'_>,
    endpoints: &Endpoints,
    show: &(dyn Fn(Prompt) + Send + Sync),
) -> Result<(TokenReply, Option<String>), AuthError> {
    let fail = |why: String| AuthError::interrupted(name, why);
    let authorization_url = needed(name, &endpoints.authorization, "authorization_endpoint")?;
    let token_url = needed(name, &endpoints.token, "token_endpoint")?;
    let listener = Loopback::open(oauth.port).await.map_err(fail)?;
    let begun = Authorization::begin(oauth, authorization_url, listener.redirect()).map_err(fail)?;
    show(Prompt::Browser {
        url: begun.url.to_string(),
    });
    let code = listener
        .code(&begun.state, oauth.issuer.as_deref())
        .await
        .map_err(fail)?;
    let form = [
        ("grant_type", "authorization_code"),
        ("code", code.expose()),
        ("redirect_uri", &begun.redirect),
        ("code_verifier", begun.verifier.expose()),
    ];
    let reply = wire::token(client, token_url, Some(party), &form)
        .await
        .map_err(|e| fail(e.to_string()))?;
    Ok((reply, begun.nonce))
}

/// The device flow (RFC 8628).
async fn by_device(
    name: &str,
    client: &Client,
    oauth: &OAuth,
    party: &Party<'_>,
    endpoints: &Endpoints,
    show: &(dyn Fn(Prompt) + Send + Sync),
) -> Result<TokenReply, AuthError> {
    let fail = |why: String| AuthError::interrupted(name, why);
    let device_url = needed(name, &endpoints.device, "device_authorization_endpoint")?;
    let token_url = needed(name, &endpoints.token, "token_endpoint")?;
    let scope = oauth.scopes.join(" ");
    let mut form = Vec::new();
    if !scope.is_empty() {
        form.push(("scope", scope.as_str()));
    }
    if let Some(audience) = &oauth.audience {
        form.push(("audience", audience.as_str()));
    }
    let given = wire::post_form(client, device_url, Some(party), &form)
        .await
        .map_err(|e| fail(e.to_string()))?;
    let text = |field: &str| given.get(field).and_then(Value::as_str).filter(|t| !t.is_empty());
    let (Some(device), Some(code), Some(url)) = (
        text("device_code"),
        text("user_code"),
        text("verification_uri").or_else(|| text("verification_url")),
    ) else {
        return Err(fail(
            "the server's answer has no device_code, user_code or verification_uri".to_owned(),
        ));
    };
    let is_web = |text: &&str| Url::parse(text).is_ok_and(|u| matches!(u.scheme(), "https" | "http"));
    if !is_web(&url) {
        return Err(fail("the server's verification_uri is no web address".to_owned()));
    }
    show(Prompt::Device {
        url: url.to_owned(),
        complete: text("verification_uri_complete").filter(is_web).map(str::to_owned),
        code: code.to_owned(),
    });
    let seconds = |field: &str, default: f64| given.get(field).and_then(Value::as_f64).unwrap_or(default);
    let mut wait = Duration::from_secs_f64(seconds("interval", 5.0).clamp(1.0, 60.0));
    let lifetime = Duration::from_secs_f64(seconds("expires_in", 900.0).clamp(1.0, 3600.0));
    let form = [
        ("grant_type", "urn:ietf:params:oauth:grant-type:device_code"),
        ("device_code", device),
    ];
    let ask = async {
        loop {
            tokio::time::sleep(wait).await;
            match wire::token(client, token_url, Some(party), &form).await {
                Ok(reply) => return Ok(reply),
                Err(WireError::Refused { code, why }) => match next_wait(wait, &code) {
                    Some(next) => wait = next,
                    None if code == "expired_token" => return Err(fail("the code has expired".to_owned())),
                    None if code == "access_denied" => return Err(fail("it was refused".to_owned())),
                    None => return Err(fail(why)),
                },
                Err(WireError::Failed(why)) => return Err(fail(why)),
            }
        }
    };
    tokio::time::timeout(lifetime, ask)
        .await
        .unwrap_or_else(|_| Err(fail("the code has expired".to_owned())))
}

pub(crate) fn needed<'a>(name: &str, url: &'a Option<String>, field: &str) -> Result<&'a str, AuthError> {
    url.as_deref()
        .ok_or_else(|| AuthError::server(name, format!("the issuer has no {field}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_challenge_is_that_of_the_standard() {
        assert_eq!(
            challenge("dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk"),
            "E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM"
        );
    }

    #[test]
    fn an_authorization_keeps_the_query_and_repeats_nothing() {
        let oauth = OAuth {
            grant: GrantType::AuthorizationCode,
            client_id: "a b".to_owned(),
            client_auth: super::super::definition::ClientAuth::None,
            scopes: vec!["openid".to_owned(), "x".to_owned()],
            audience: None,
            issuer: Some("https://i.test".to_owned()),
            token_url: None,
            authorization_url: None,
            device_url: None,
            revocation_url: None,
            port: None,
        };
        let begin = || {
            Authorization::begin(
                &oauth,
                "https://a.test/auth?tenant=7",
                "http://127.0.0.1:1/callback".into(),
            )
            .unwrap()
        };
        let (one, two) = (begin(), begin());
        let query: std::collections::HashMap<String, String> = one.url.query_pairs().into_owned().collect();
        assert_eq!(query["tenant"], "7");
        assert_eq!(
            (query["client_id"].as_str(), query["scope"].as_str()),
            ("a b", "openid x")
        );
        assert_eq!(query["code_challenge"], challenge(one.verifier.expose()));
        assert_eq!(
            (query["code_challenge_method"].as_str(), query["response_type"].as_str()),
            ("S256", "code")
        );
        assert_eq!(query["state"].len(), 32);
        assert_eq!(one.verifier.expose().len(), 64);
        assert!(one.state != two.state && one.nonce != two.nonce && one.verifier != two.verifier);
        assert!(!one.url.as_str().contains(one.verifier.expose()));
    }

    #[test]
    fn a_callback_belongs_to_its_login() {
        let code = |query: &str| code_of(query, "good", Some("https://i.test")).map(|c| c.expose().to_owned());
        assert_eq!(code("code=c%20d&state=good").unwrap(), "c d");
        assert_eq!(code("code=c&state=good&iss=https%3A%2F%2Fi.test").unwrap(), "c");
        for (query, words) in [
            ("code=c&state=bad", "another login"),
            ("code=c", "another login"),
            ("code=c&state=good&state=bad", "twice"),
            ("state=good", "no code"),
            ("code=&state=good", "no code"),
            ("code=c&state=good&iss=https://evil.test", "another issuer"),
            (
                "error=access_denied&state=good&error_description=no%0Ano",
                "access_denied (no no)",
            ),
            ("error=access_denied&state=bad", "another login"),
        ] {
            let error = code(query).unwrap_err();
            assert!(error.contains(words), "{query}: {error}");
        }
    }

    #[test]
    fn devices_slow_down_when_told() {
        let five = Duration::from_secs(5);
        assert_eq!(next_wait(five, "authorization_pending"), Some(five));
        assert_eq!(next_wait(five, "slow_down"), Some(five * 2));
        assert_eq!(next_wait(five, "access_denied"), None);
    }
}
