//! The HTTP clients that all endpoints share.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use reqwest::{Client, Url, redirect::Policy};

use crate::error::BackendError;

/// Clients by what they are built with, so that connections are reused. A client belongs to the runtime that its first
/// request ran on, so a process that uses several runtimes needs one of these for each.
#[derive(Debug, Clone, Default)]
pub struct Clients(Arc<Mutex<HashMap<Key, Client>>>);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Key {
    connect: Duration,
    /// To this machine: no proxy is asked.
    loopback: bool,
    /// Without TLS the system's certificates need not be read, which takes longer than a local request.
    tls: bool,
}

impl Clients {
    /// The client for a URL.
    ///
    /// # Errors
    /// When the machine has no certificates, or a proxy variable is malformed.
    pub fn get(&self, url: &Url, connect: Duration) -> Result<Client, BackendError> {
        let loopback = is_loopback(url);
        // A proxy may speak TLS even when the endpoint does not.
        let key = Key {
            connect,
            loopback,
            tls: url.scheme() == "https" || !loopback,
        };
        let mut clients = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(client) = clients.get(&key) {
            return Ok(client.clone());
        }
        let client = build(key)?;
        clients.insert(key, client.clone());
        Ok(client)
    }
}

fn build(key: Key) -> Result<Client, BackendError> {
    // An error means that somebody has installed one already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let mut builder = Client::builder()
        .user_agent(concat!("decanus/", env!("CARGO_PKG_VERSION")))
        // A redirect would carry the conversation, and perhaps the key, to somebody else.
        .redirect(Policy::none())
        .referer(false)
        // Retries are ours: they know what has been shown already.
        .retry(reqwest::retry::never())
        .tcp_nodelay(true)
        .connect_timeout(key.connect);
    if key.loopback {
        builder = builder.no_proxy();
    }
    if !key.tls {
        builder = builder.tls_certs_only([]);
    }
    builder
        .build()
        .map_err(|e| BackendError::Config(format!("the HTTP client can't be set up: {}", causes(&e))))
}

/// Whether a URL leads to this machine.
pub fn is_loopback(url: &Url) -> bool {
    let Some(host) = url.host_str() else { return false };
    let host = host.trim_start_matches('[').trim_end_matches(']');
    match host.parse::<std::net::IpAddr>() {
        Ok(address) => address.is_loopback(),
        Err(_) => host == "localhost" || host.ends_with(".localhost"),
    }
}

/// An error and what is behind it, in one line, each part once. The URL is left out by the caller.
pub fn causes(error: &dyn std::error::Error) -> String {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_in_all_spellings() {
        for yes in [
            "http://127.0.0.1:1",
            "http://localhost/v1",
            "http://[::1]:8",
            "http://127.1/",
            "http://a.localhost",
        ] {
            assert!(is_loopback(&Url::parse(yes).unwrap()), "{yes}");
        }
        for no in [
            "http://10.0.0.1",
            "http://example.test",
            "http://localhost.example.test",
        ] {
            assert!(!is_loopback(&Url::parse(no).unwrap()), "{no}");
        }
    }
}
