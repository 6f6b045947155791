//! Where an issuer of OpenID Connect has its endpoints, and its keys.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use jsonwebtoken::jwk::JwkSet;
use serde_json::Value;

use super::definition::OAuth;
use super::error::AuthError;
use super::fields::check_place;
use crate::client::Client;
use crate::request::Request;

/// How long documents and keys are believed without asking again.
const FRESH: Duration = Duration::from_secs(300);
const LONGEST: usize = 512 * 1024;

/// Where a client goes for what.
#[derive(Debug, Clone, Default)]
pub(crate) struct Endpoints {
    pub token: Option<String>,
    pub authorization: Option<String>,
    pub device: Option<String>,
    pub revocation: Option<String>,
    pub keys: Option<String>,
}

/// What was fetched, and when.
#[derive(Default)]
pub(crate) struct Discovery {
    documents: Mutex<HashMap<String, (Instant, Endpoints)>>,
    keys: Mutex<HashMap<String, (Instant, Arc<JwkSet>)>>,
}

impl Discovery {
    /// The endpoints of a client: those of its definition, else those of its issuer.
    pub async fn endpoints(&self, client: &Client, name: &str, oauth: &OAuth) -> Result<Endpoints, AuthError> {
        let found = match &oauth.issuer {
            Some(issuer) => self.discover(client, name, issuer).await?,
            None => Endpoints::default(),
        };
        let or = |own: &Option<String>, found: Option<String>| own.clone().or(found);
        Ok(Endpoints {
            token: or(&oauth.token_url, found.token),
            authorization: or(&oauth.authorization_url, found.authorization),
            device: or(&oauth.device_url, found.device),
            revocation: or(&oauth.revocation_url, found.revocation),
            keys: found.keys,
        })
    }

    async fn discover(&self, client: &Client, name: &str, issuer: &str) -> Result<Endpoints, AuthError> {
        if let Some((at, known)) = lock(&self.documents).get(issuer)
            && at.elapsed() < FRESH
        {
            return Ok(known.clone());
        }
        let url = format!("{}/.well-known/openid-configuration", issuer.trim_end_matches('/'));
        let document = get(client, name, &url, "discovery document").await?;
        let fail = |why: String| AuthError::server(name, format!("the discovery document {url} {why}"));
        let stated = document.get("issuer").and_then(Value::as_str).unwrap_or_default();
        if stated != issuer {
            let shown = decanus_base::text::escape_controls(&decanus_base::text::brief(stated, 120));
            return Err(fail(format!("is of the issuer '{shown}', not of '{issuer}'")));
        }
        let place = |field: &str| match document.get(field).and_then(Value::as_str) {
            None => Ok(None),
            Some(text) => check_place(text)
                .map(|()| Some(text.to_owned()))
                .map_err(|why| fail(format!("has a {field} that can't be used: {why}"))),
        };
        let found = Endpoints {
            token: place("token_endpoint")?,
            authorization: place("authorization_endpoint")?,
            device: place("device_authorization_endpoint")?,
            revocation: place("revocation_endpoint")?,
            keys: place("jwks_uri")?,
        };
        lock(&self.documents).insert(issuer.to_owned(), (Instant::now(), found.clone()));
        Ok(found)
    }

    /// The keys at a URL; `anew` when those that are known lack one.
    pub async fn keys(&self, client: &Client, name: &str, url: &str, anew: bool) -> Result<Arc<JwkSet>, AuthError> {
        if let Some((at, known)) = lock(&self.keys).get(url)
            && at.elapsed() < FRESH
            && !anew
        {
            return Ok(known.clone());
        }
        let document = get(client, name, url, "list of keys").await?;
        let set: JwkSet = serde_json::from_value(document)
            .map_err(|_| AuthError::server(name, format!("the list of keys {url} can't be read")))?;
        let set = Arc::new(set);
        lock(&self.keys).insert(url.to_owned(), (Instant::now(), set.clone()));
        Ok(set)
    }
}

async fn get(client: &Client, name: &str, url: &str, what: &str) -> Result<Value, AuthError> {
    let request = Request::get(url).header("accept", "application/json").max_body(LONGEST);
    let reply = client
        .fetch(request)
        .await
        .map_err(|e| AuthError::server(name, format!("the {what} can't be had: {e}")))?;
    serde_json::from_slice(&reply.body).map_err(|_| AuthError::server(name, format!("the {what} {url} is no JSON")))
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
