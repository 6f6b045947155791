//! What of a credential goes into a request.

use async_trait::async_trait;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use decanus_base::Secret;
use reqwest::header::{COOKIE, HeaderMap};

use super::definition::{Definition, GrantType, Place, Scheme};
use super::error::AuthError;
use super::jwt;
use super::{Auth, mask, tokens};
use crate::authorizer::{AuthorizeError, Authorizer, Grant, Hop};

/// One thing that would be sent, as it may be shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shown {
    /// `header`, `query` or `cookie`.
    pub place: &'static str,
    /// Its name.
    pub name: String,
    /// Its value, masked.
    pub masked: String,
}

#[async_trait]
impl Authorizer for Auth {
    async fn grant(&self, hop: Hop<'_>) -> Result<Grant, AuthorizeError> {
        let Some(definition) = self.find(hop.url).map_err(refuse)? else {
            return Ok(Grant::default());
        };
        tracing::debug!("the credential '{}' belongs to this URL", definition.name);
        let value = self.value(&definition, None).await.map_err(refuse)?;
        grant(&definition, &value, hop.headers).map_err(refuse)
    }

    async fn refused(&self, hop: Hop<'_>, sent: &Grant) -> Result<bool, AuthorizeError> {
        let Some(definition) = self.find(hop.url).map_err(refuse)? else {
            return Ok(false);
        };
        if !definition.has_tokens() {
            return Ok(false);
        }
        let Some(sent) = sent.secrets.first() else {
            return Ok(false);
        };
        match self.value(&definition, Some(sent)).await {
            Ok(value) => Ok(value != *sent),
            // The caller sees the server's own answer; the next request says what is wrong here.
            Err(e) => {
                tracing::warn!("{e}");
                Ok(false)
            }
        }
    }
}

fn refuse(error: AuthError) -> AuthorizeError {
    use decanus_base::Diagnostic;
    let hints = error.hints();
    match hints.first() {
        Some(hint) => AuthorizeError(format!("{error} ({hint})")),
        None => AuthorizeError(error.to_string()),
    }
}

impl Auth {
    /// The secret that is sent: the stored one, or a token. `refused` is a token that the server did not take.
    async fn value(&self, definition: &Definition, refused: Option<&Secret>) -> Result<Secret, AuthError> {
        if definition.has_tokens() {
            self.token(definition, refused).await
        } else {
            self.secret(definition)
        }
    }

    /// What would be sent for a credential, masked. Tokens are fetched or renewed as for a request.
    ///
    /// # Errors
    /// When it can't be applied.
    pub async fn try_out(&self, name: &str) -> Result<(Vec<Shown>, Option<tokens::TokenState>), AuthError> {
        let definition = self.get(name)?;
        let value = self.value(&definition, None).await?;
        let made = grant(&definition, &value, &HeaderMap::new())?;
        let masked = |whole: &Secret| {
            let whole = whole.expose();
            match (&definition.scheme, whole.split_once(' ')) {
                (Scheme::Basic { username }, _) => {
                    format!("Basic (user {username}, password {})", mask(value.expose()))
                }
                (Scheme::ApiKey { prefix, .. }, _) => format!("{prefix}{}", mask(value.expose())),
                (_, Some((scheme, _))) => format!("{scheme} {}", mask(value.expose())),
                _ => mask(whole),
            }
        };
        let mut shown = Vec::new();
        for (header, value) in &made.headers {
            let (place, name) = match &definition.scheme {
                Scheme::ApiKey {
                    place: Place::Cookie,
                    name,
                    ..
                } => ("cookie", name.clone()),
                _ => ("header", header.clone()),
            };
            shown.push(Shown {
                place,
                name,
                masked: masked(value),
            });
        }
        for (member, value) in &made.query {
            shown.push(Shown {
                place: "query",
                name: member.clone(),
                masked: masked(value),
            });
        }
        let state = self
            .0
            .store
            .read()?
            .get(name)
            .and_then(|e| e.token.as_ref().map(tokens::TokenState::of));
        Ok((shown, state.filter(|_| definition.has_tokens())))
    }
}

/// Puts a secret where its scheme has it.
fn grant(definition: &Definition, secret: &Secret, headers: &HeaderMap) -> Result<Grant, AuthError> {
    let plain = secret.expose();
    let mut grant = Grant {
        secrets: vec![secret.clone()],
        ..Grant::default()
    };
    match &definition.scheme {
        Scheme::ApiKey { place, name, prefix } => {
            let value = format!("{prefix}{plain}");
            match place {
                Place::Header => grant.headers.push((name.clone(), Secret::new(value))),
                Place::Query => grant.query.push((name.clone(), Secret::new(value))),
                Place::Cookie => {
                    let others = cookies(headers, name);
                    let whole: Vec<String> = others.into_iter().chain([format!("{name}={value}")]).collect();
                    grant.headers.push(("cookie".to_owned(), Secret::new(whole.join("; "))));
                }
            }
        }
        Scheme::Basic { username } => {
            let pair = STANDARD.encode(format!("{username}:{plain}"));
            grant
                .headers
                .push(("authorization".to_owned(), Secret::new(format!("Basic {pair}"))));
            grant.secrets.push(Secret::new(pair));
        }
        Scheme::Bearer | Scheme::OAuth(_) | Scheme::ServiceAccount { .. } => {
            grant
                .headers
                .push(("authorization".to_owned(), Secret::new(format!("Bearer {plain}"))));
        }
    }
    Ok(grant)
}

/// The cookies that a request has already, without those of a name.
fn cookies(headers: &HeaderMap, name: &str) -> Vec<String> {
    let given = headers.get_all(COOKIE).iter().filter_map(|v| v.to_str().ok());
    given
        .flat_map(|line| line.split(';'))
        .map(str::trim)
        .filter(|c| !c.is_empty() && c.split('=').next().map(str::trim) != Some(name))
        .map(str::to_owned)
        .collect()
}

/// Whether a secret can be what its scheme takes it for.
pub(crate) fn check_secret(definition: &Definition, secret: &Secret) -> Result<(), AuthError> {
    let text = secret.expose();
    let what = definition.secret_name();
    let name = || definition.name.clone();
    if text.is_empty() {
        return Err(AuthError::NoSecret(name()));
    }
    let good = match &definition.scheme {
        Scheme::ServiceAccount { .. } => {
            let key = ServiceKey::read(secret).map_err(|why| AuthError::Field {
                name: name(),
                field: "key file",
                why,
            })?;
            // A key that can't sign is better known now.
            return jwt::sign(None, &key.private_key, &serde_json::json!({}))
                .map(|_| ())
                .map_err(|why| AuthError::Field {
                    name: name(),
                    field: "key file",
                    why,
                });
        }
        Scheme::ApiKey {
            place: Place::Cookie, ..
        } => text.bytes().all(|b| b.is_ascii_graphic() && !b";,\"\\".contains(&b)),
        Scheme::ApiKey {
            place: Place::Header, ..
        } => text.bytes().all(|b| (b' '..0x7f).contains(&b)),
        Scheme::Bearer => text.bytes().all(|b| b.is_ascii_graphic()),
        Scheme::ApiKey { .. } | Scheme::Basic { .. } | Scheme::OAuth(_) => !text.chars().any(char::is_control),
    };
    if good {
        Ok(())
    } else {
        Err(AuthError::Characters { name: name(), what })
    }
}

/// A key file of a service account.
pub(crate) struct ServiceKey {
    pub email: String,
    pub private_key: Secret,
    pub key_id: Option<String>,
    pub token_url: String,
}

impl ServiceKey {
    /// Reads what Google hands out.
    pub fn read(secret: &Secret) -> Result<Self, String> {
        let map: serde_json::Map<String, serde_json::Value> =
            serde_json::from_str(secret.expose()).map_err(|_| "it is no JSON object".to_owned())?;
        let text = |field: &str| {
            map.get(field)
                .and_then(serde_json::Value::as_str)
                .filter(|t| !t.is_empty())
        };
        if text("type") != Some("service_account") {
            return Err("its type is not service_account".to_owned());
        }
        let need = |field: &str| text(field).ok_or_else(|| format!("it has no {field}"));
        let token_url = text("token_uri").unwrap_or("https://oauth2.googleapis.com/token");
        super::fields::check_place(token_url).map_err(|why| format!("its token_uri can't be used: {why}"))?;
        Ok(Self {
            email: need("client_email")?.to_owned(),
            private_key: Secret::new(need("private_key")?),
            key_id: text("private_key_id").map(str::to_owned),
            token_url: token_url.to_owned(),
        })
    }
}

impl Definition {
    /// Whether tokens are sent in place of the secret.
    pub fn has_tokens(&self) -> bool {
        matches!(self.scheme, Scheme::OAuth(_) | Scheme::ServiceAccount { .. })
    }

    /// Whether a user has to log in.
    pub fn wants_login(&self) -> bool {
        self.oauth().is_some_and(|o| o.grant != GrantType::ClientCredentials)
    }
}
