//! What can go wrong, in the classes that tools report.

use std::net::IpAddr;

use url::Url;

use crate::address::Restriction;
use crate::allow::AllowError;
use crate::reply::Reply;
use crate::request::Method;

/// Why a URL is not asked for. No connection was made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Not a URL.
    #[error("Invalid URL provided: {shown}: {why}")]
    Invalid {
        /// The text, shortened.
        shown: String,
        /// What is wrong with it.
        why: String,
    },
    /// Another scheme.
    #[error("the URL must use http or https, not '{0}'")]
    Scheme(String),
    /// A user or a password in the URL.
    #[error("the URL of {0} has a user or a password in it, which is not allowed")]
    UserInfo(String),
    /// A port of another service.
    #[error("port {port} of {host} belongs to another service than the web")]
    Port {
        /// The host.
        host: String,
        /// The port.
        port: u16,
    },
    /// No address.
    #[error("Could not resolve host '{host}': {why}")]
    Unresolved {
        /// The host.
        host: String,
        /// What the resolver said.
        why: String,
    },
    /// An address that is not public.
    #[error("{host} -> {address} is a restricted network address ({})", restriction.as_str())]
    Restricted {
        /// The host.
        host: String,
        /// Its address.
        address: IpAddr,
        /// What kind it is.
        restriction: Restriction,
    },
    /// A redirect from https to http.
    #[error("a redirect from https to http ({0}) is not followed")]
    Downgrade(String),
}

/// Why a request gave no usable answer. Messages hold no query and no credentials.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The URL, or one that it redirects to, is refused.
    #[error("{0}")]
    Refused(#[from] Refusal),
    /// The request can't be sent as it is.
    #[error("{0}")]
    Argument(String),
    /// The time was up.
    #[error("Timeout during {method} request to {url}: {why}")]
    Timeout {
        /// The method.
        method: Method,
        /// The URL.
        url: String,
        /// Which time, and how long it was.
        why: String,
    },
    /// No connection, or it broke.
    #[error("Network error (socket) during {method} request to {url}: {why}")]
    Network {
        /// The method.
        method: Method,
        /// The URL.
        url: String,
        /// What the system said.
        why: String,
    },
    /// The server can't show that it is who it should be.
    #[error("Invalid certificate during {method} request to {url}: {why}")]
    Certificate {
        /// The method.
        method: Method,
        /// The URL.
        url: String,
        /// What is wrong with the certificate.
        why: String,
    },
    /// A status that is no success, or redirects without end.
    #[error("HTTP Error: Received status {} for {method} {url}{note}", reply.status)]
    Http {
        /// The method.
        method: Method,
        /// The URL.
        url: String,
        /// More about it, beginning with punctuation.
        note: String,
        /// The answer.
        reply: Box<Reply>,
    },
    /// The answer is nothing that can be read as asked.
    #[error("{0}")]
    Content(String),
    /// Credentials should have been added and could not.
    #[error("the request to {url} was not sent: {why}")]
    Authorization {
        /// The URL.
        url: String,
        /// What is wrong with the credentials.
        why: String,
    },
    /// The list of allowed hosts can't be read.
    #[error(transparent)]
    Allow(#[from] AllowError),
    /// The client can't be set up.
    #[error("the HTTP client can't be set up: {0}")]
    Setup(String),
}

impl Error {
    /// The name of its class in machine-readable output.
    pub fn class(&self) -> &'static str {
        match self {
            Self::Refused(Refusal::Unresolved { .. }) | Self::Network { .. } => "ToolNetworkError",
            Self::Refused(_) | Self::Argument(_) => "ToolArgumentError",
            Self::Timeout { .. } => "ToolTimeoutError",
            Self::Certificate { .. } => "ToolCertificateError",
            Self::Http { .. } => "ToolHttpError",
            Self::Content(_) | Self::Authorization { .. } | Self::Allow(_) | Self::Setup(_) => "ToolError",
        }
    }
}

/// A URL as it may be shown: without user, password, query and fragment, in which keys stand.
pub fn show_url(url: &Url) -> String {
    let mut shown = url.clone();
    // Both fail only for URLs that have no host, and so no credentials.
    let _ = shown.set_username("");
    let _ = shown.set_password(None);
    shown.set_query(None);
    shown.set_fragment(None);
    decanus_base::text::brief(shown.as_str(), 300)
}

/// An error and what is behind it, in one line, each part once.
pub(crate) fn causes(error: &dyn std::error::Error) -> String {
    let mut parts = vec![error.to_string()];
    let mut next = error.source();
    while let Some(cause) = next {
        let text = cause.to_string();
        if !parts.iter().any(|p| p.contains(&text)) {
            parts.push(text);
        }
        next = cause.source();
    }
    parts.join(": ")
}
