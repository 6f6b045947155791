//! The requests of OAuth2: forms to a token server, and what it answers. They go through the guarded client, follow no
//! redirect, and what a server says is shown only without the secrets that it was sent.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use decanus_base::Secret;
use decanus_base::redact::redact;
use decanus_base::text::{brief, escape_controls};
use serde_json::{Map, Value};
use url::form_urlencoded::{Serializer, byte_serialize};

use super::definition::ClientAuth;
use crate::client::Client;
use crate::error::show_url;
use crate::request::{Body, Request};

/// More than any token server has to say.
const LONGEST: usize = 256 * 1024;

/// A client of a token server.
pub(crate) struct Party<'a> {
    pub id: &'a str,
    pub secret: Option<&'a Secret>,
    pub auth: ClientAuth,
}

/// What a token server gave.
#[derive(Debug, Clone)]
pub(crate) struct TokenReply {
    pub access_token: Secret,
    pub expires_in: Option<i64>,
    pub refresh_token: Option<Secret>,
    pub id_token: Option<Secret>,
    pub scope: Option<String>,
}

/// Why it gave nothing.
#[derive(Debug, Clone)]
pub(crate) enum WireError {
    /// It answered with an error of the standard: its code, and a sentence.
    Refused { code: String, why: String },
    /// It could not be asked, or the answer is none.
    Failed(String),
}

impl WireError {
    pub fn code(&self) -> &str {
        match self {
            Self::Refused { code, .. } => code,
            Self::Failed(_) => "",
        }
    }
}

impl std::fmt::Display for WireError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Refused { why, .. } | Self::Failed(why) => f.write_str(why),
        }
    }
}

/// Sends a form and reads the JSON that comes back, an error of the standard as such.
pub(crate) async fn post_form(
    client: &Client,
    url: &str,
    party: Option<&Party<'_>>,
    form: &[(&str, &str)],
) -> Result<Map<String, Value>, WireError> {
    let request = ask(url, party, form);
    let mut secrets: Vec<Secret> = form
        .iter()
        .filter(|(name, _)| {
            matches!(
                *name,
                "code" | "refresh_token" | "device_code" | "assertion" | "code_verifier" | "token"
            )
        })
        .map(|(_, value)| Secret::new(*value))
        .collect();
    secrets.extend(party.and_then(|p| p.secret).cloned());
    let reply = client
        .send(request)
        .await
        .map_err(|e| WireError::Failed(e.to_string()))?;
    let shown = show_url(&reply.url);
    let parsed = match serde_json::from_slice(&reply.body) {
        Ok(Value::Object(map)) => Some(map),
        // RFC 7009 has no body.
        _ if reply.is_success() && reply.body.is_empty() => Some(Map::new()),
        _ => None,
    };
    let Some(map) = parsed else {
        return Err(WireError::Failed(format!(
            "{shown} answered {} with something that is no JSON object",
            reply.status
        )));
    };
    // Some answer 200 with an error.
    match map.get("error").and_then(Value::as_str) {
        Some(code) if !map.contains_key("access_token") => {
            let clean = |text: &str| escape_controls(&brief(&redact(text, &secrets), 300));
            let said = map.get("error_description").and_then(Value::as_str);
            let said = said.map(|s| format!(" ({})", clean(s))).unwrap_or_default();
            Err(WireError::Refused {
                code: code.to_owned(),
                why: format!("{shown} answered {} {}{said}", reply.status, clean(code)),
            })
        }
        _ if !reply.is_success() => Err(WireError::Failed(format!("{shown} answered {}", reply.status))),
        _ => Ok(map),
    }
}

/// The request for a form. The serializer must not live across an await.
fn ask(url: &str, party: Option<&Party<'_>>, form: &[(&str, &str)]) -> Request {
    let mut body = Serializer::new(String::new());
    body.extend_pairs(form);
    let mut request = Request::post(url)
        .header("accept", "application/json")
        .header("content-type", "application/x-www-form-urlencoded")
        .max_body(LONGEST);
    if let Some(party) = party {
        match (party.auth, party.secret) {
            (ClientAuth::Basic, Some(secret)) => {
                // RFC 6749, 2.3.1: both are form-encoded first.
                let encode = |text: &str| byte_serialize(text.as_bytes()).collect::<String>();
                let pair = format!("{}:{}", encode(party.id), encode(secret.expose()));
                request = request.header("authorization", format!("Basic {}", STANDARD.encode(pair)));
            }
            (ClientAuth::Post, Some(secret)) => {
                body.append_pair("client_id", party.id);
                body.append_pair("client_secret", secret.expose());
            }
            _ => {
                body.append_pair("client_id", party.id);
            }
        }
    }
    request.body(Body::Bytes(body.finish().into_bytes()))
}

/// Asks for a token.
pub(crate) async fn token(
    client: &Client,
    url: &str,
    party: Option<&Party<'_>>,
    form: &[(&str, &str)],
) -> Result<TokenReply, WireError> {
    read_token(&post_form(client, url, party, form).await?)
}

fn read_token(map: &Map<String, Value>) -> Result<TokenReply, WireError> {
    let text = |name: &str| map.get(name).and_then(Value::as_str).filter(|t| !t.is_empty());
    let failed = |why: &str| WireError::Failed(format!("the token server's answer {why}"));
    let access = text("access_token").ok_or_else(|| failed("has no access_token"))?;
    if let Some(kind) = text("token_type")
        && !kind.eq_ignore_ascii_case("bearer")
    {
        let shown = escape_controls(&brief(kind, 40));
        return Err(failed(&format!("has a token of the type '{shown}', not bearer")));
    }
    if !access.bytes().all(|b| b.is_ascii_graphic()) {
        return Err(failed("has a token that contains invalid characters"));
    }
    let expires_in = match map.get("expires_in") {
        None | Some(Value::Null) => None,
        // Some write it as a text, some with a fraction.
        Some(value) => {
            let number = match value {
                Value::String(text) => text.trim().parse::<f64>().ok(),
                other => other.as_f64(),
            };
            let seconds = number.filter(|n| (0.0..1e11).contains(n));
            Some(seconds.ok_or_else(|| failed("has an expires_in that is no number of seconds"))? as i64)
        }
    };
    Ok(TokenReply {
        access_token: Secret::new(access),
        // Zero says nothing useful: such a token could never be sent.
        expires_in: expires_in.filter(|e| *e > 0),
        refresh_token: text("refresh_token").map(Secret::new),
        id_token: text("id_token").map(Secret::new),
        scope: text("scope").map(str::to_owned),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(value: Value) -> Result<TokenReply, String> {
        let Value::Object(map) = value else { panic!() };
        read_token(&map).map_err(|e| e.to_string())
    }

    #[test]
    fn answers_are_read() {
        let good =
            read(json!({"access_token": "t", "token_type": "BEARER", "expires_in": "3600", "refresh_token": ""}))
                .unwrap();
        assert_eq!((good.expires_in, good.refresh_token), (Some(3600), None));
        assert_eq!(
            read(json!({"access_token": "t", "expires_in": 59.9}))
                .unwrap()
                .expires_in,
            Some(59)
        );
        assert_eq!(
            read(json!({"access_token": "t", "expires_in": 0})).unwrap().expires_in,
            None
        );
        for (bad, words) in [
            (json!({}), "no access_token"),
            (json!({"access_token": ""}), "no access_token"),
            (json!({"access_token": 7}), "no access_token"),
            (json!({"access_token": "t", "token_type": "DPoP"}), "'DPoP', not bearer"),
            (
                json!({"access_token": "SENTINEL\r\nX: y"}),
                "contains invalid characters",
            ),
            (json!({"access_token": "SENTINEL", "expires_in": "soon"}), "expires_in"),
            (json!({"access_token": "SENTINEL", "expires_in": -5}), "expires_in"),
        ] {
            let error = read(bad).unwrap_err();
            assert!(error.contains(words) && !error.contains("SENTINEL"), "{error}");
        }
    }
}
