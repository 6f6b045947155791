//! The place where credentials are added.

use async_trait::async_trait;
use decanus_base::Secret;
use reqwest::header::HeaderMap;
use url::Url;

use crate::request::Method;

/// A request that is about to be sent.
#[derive(Debug, Clone, Copy)]
pub struct Hop<'a> {
    /// The method.
    pub method: Method,
    /// The URL, checked, without what is granted.
    pub url: &'a Url,
    /// The headers so far.
    pub headers: &'a HeaderMap,
    /// The body as it will be sent, for schemes that sign it.
    pub body: &'a [u8],
}

/// Credentials for one request.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Grant {
    /// Headers; they replace the caller's of the same names.
    pub headers: Vec<(String, Secret)>,
    /// Members of the query; they replace the caller's of the same names.
    pub query: Vec<(String, Secret)>,
    /// What is secret in these: an answer that repeats it is given with `[REDACTED]` in its place.
    pub secrets: Vec<Secret>,
}

/// Credentials belong to this URL and could not be had.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct AuthorizeError(pub String);

/// Knows credentials. It is asked before each hop as long as redirects stay at the first origin; from the first other
/// origin on it is not asked any more, and nothing that it granted is sent there.
#[async_trait]
pub trait Authorizer: Send + Sync {
    /// What this request needs; an empty grant when no credentials belong to its URL.
    ///
    /// # Errors
    /// When some do and cannot be had: the request is then not sent.
    async fn grant(&self, hop: Hop<'_>) -> Result<Grant, AuthorizeError>;

    /// A server answered 401 to what was granted. Whether there is something else now: a request that only reads is then
    /// sent once more.
    ///
    /// # Errors
    /// When that can't be told.
    async fn refused(&self, hop: Hop<'_>, sent: &Grant) -> Result<bool, AuthorizeError> {
        let _ = (hop, sent);
        Ok(false)
    }
}
