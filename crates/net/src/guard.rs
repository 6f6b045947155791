//! The check before each connection.
//!
//! A URL is taken apart once, by the parser that the connection uses too, so that what is checked and what is asked is
//! the same host however it was written: `127.1`, `0x7f000001`, `０.０.０.０` and `%31%32%37.0.0.1` are addresses here
//! already. Then all addresses of the host are looked up and looked at; the caller connects to these and looks nothing
//! up again.

use std::net::IpAddr;
use std::sync::{Arc, Once};
use std::time::Duration;

use url::{Host, Url};

use crate::address::{Class, Restriction, classify};
use crate::allow::{AllowList, host_key};
use crate::error::Refusal;
use crate::resolver::{Resolver, SystemResolver};

/// Longer URLs are no URLs that anybody reads.
const LONGEST_URL: usize = 16 * 1024;

/// Ports of services that would take the lines of an HTTP request for their own commands: the list of the Fetch
/// standard, and databases and the like that answer on the same machine or cluster.
const OTHER_SERVICES: &[u16] = &[
    0, 1, 7, 9, 11, 13, 15, 17, 19, 20, 21, 22, 23, 25, 37, 42, 43, 53, 69, 77, 79, 87, 95, 101, 102, 103, 104, 109,
    110, 111, 113, 115, 117, 119, 123, 135, 137, 139, 143, 161, 179, 389, 427, 465, 512, 513, 514, 515, 526, 530, 531,
    532, 540, 548, 554, 556, 563, 587, 601, 636, 989, 990, 993, 995, 1719, 1720, 1723, 2049, 3306, 3659, 4045, 4190,
    5060, 5061, 5432, 6000, 6379, 6566, 6665, 6666, 6667, 6668, 6669, 6679, 6697, 10080, 11211, 27017,
];

/// A URL that may be asked for, and the addresses that it may be asked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// The URL, parsed.
    pub url: Url,
    /// All addresses of its host, each of them checked.
    pub addresses: Vec<IpAddr>,
}

/// Who may be asked: the check of URLs and of addresses.
#[derive(Clone)]
pub struct Guard {
    resolver: Arc<dyn Resolver>,
    allowed: AllowList,
}

impl Default for Guard {
    fn default() -> Self {
        Self::new(AllowList::default())
    }
}

impl Guard {
    /// Only the public network and what the list allows.
    pub fn new(allowed: AllowList) -> Self {
        static WARNED: Once = Once::new();
        if !allowed.is_empty() {
            WARNED.call_once(|| {
                tracing::warn!("addresses that are not public may be asked: DECANUS_ALLOW_PRIVATE_URLS is set");
            });
        }
        Self {
            resolver: Arc::new(SystemResolver),
            allowed,
        }
    }

    /// With another way to look up names.
    #[must_use]
    pub fn resolver(mut self, resolver: Arc<dyn Resolver>) -> Self {
        self.resolver = resolver;
        self
    }

    /// Reads a URL that somebody else wrote and checks all that can be checked without the network.
    ///
    /// # Errors
    /// The reason for which it is refused.
    pub fn parse(&self, text: &str) -> Result<Url, Refusal> {
        let invalid = |why: &str| Refusal::Invalid {
            shown: show_text(text),
            why: why.to_owned(),
        };
        if text.len() > LONGEST_URL {
            return Err(invalid("it is too long"));
        }
        // The standard drops tabs and line ends, and reads `\` as `/`; other readers of URLs do not.
        if text.chars().any(|c| c.is_whitespace() || c.is_control()) {
            return Err(invalid("it has spaces or control characters in it"));
        }
        let url = Url::parse(text).map_err(|e| invalid(&e.to_string()))?;
        if !matches!(url.scheme(), "http" | "https") {
            return Err(Refusal::Scheme(decanus_base::text::brief(url.scheme(), 40)));
        }
        let after = text.split_once(':').map_or("", |(_, after)| after);
        let authority = after.strip_prefix("//").unwrap_or_default();
        if authority.is_empty() || authority.starts_with(['/', '?', '#']) {
            return Err(invalid("it has no host"));
        }
        if authority.split(['?', '#']).next().is_some_and(|a| a.contains('\\')) {
            return Err(invalid("it has a backslash in it"));
        }
        self.screen(&url)?;
        Ok(url)
    }

    /// The checks of a URL that is parsed already, such as the target of a redirect.
    fn screen(&self, url: &Url) -> Result<(), Refusal> {
        if !matches!(url.scheme(), "http" | "https") {
            return Err(Refusal::Scheme(decanus_base::text::brief(url.scheme(), 40)));
        }
        let (host, port) = place(url)?;
        if !url.username().is_empty() || url.password().is_some() {
            return Err(Refusal::UserInfo(host));
        }
        if OTHER_SERVICES.contains(&port) && !self.allowed.lists(&host, port) {
            return Err(Refusal::Port { host, port });
        }
        Ok(())
    }

    /// Checks a URL and every address of its host.
    ///
    /// # Errors
    /// The reason for which it is refused; also when the host has no address, or when `time` is up before one is known.
    pub async fn check(&self, url: Url, time: Duration) -> Result<Target, Refusal> {
        self.screen(&url)?;
        let (host, port) = place(&url)?;
        let addresses = match url.host() {
            Some(Host::Ipv4(address)) => vec![IpAddr::V4(address)],
            Some(Host::Ipv6(address)) => vec![IpAddr::V6(address)],
            // These names are this machine whatever a resolver says (RFC 6761).
            _ if is_localhost(&host) && !self.allowed.allows(&host, port, Restriction::Loopback) => {
                vec![IpAddr::V4(std::net::Ipv4Addr::LOCALHOST)]
            }
            _ => self.lookup(&host, time).await?,
        };
        for address in &addresses {
            if let Class::Restricted(restriction) = classify(*address)
                && !self.allowed.allows(&host, port, restriction)
            {
                return Err(Refusal::Restricted {
                    host,
                    address: *address,
                    restriction,
                });
            }
        }
        Ok(Target { url, addresses })
    }

    async fn lookup(&self, host: &str, time: Duration) -> Result<Vec<IpAddr>, Refusal> {
        let unresolved = |why: String| Refusal::Unresolved {
            host: host.to_owned(),
            why,
        };
        let found = tokio::time::timeout(time, self.resolver.lookup(host)).await;
        let found = found.map_err(|_| unresolved(format!("no answer within {} s", time.as_secs_f64())))?;
        let addresses = found.map_err(|e| unresolved(e.to_string()))?;
        if addresses.is_empty() {
            return Err(unresolved("it has no address".to_owned()));
        }
        Ok(addresses)
    }
}

fn is_localhost(host: &str) -> bool {
    host == "localhost" || host.ends_with(".localhost")
}

/// Host and port of a URL; a URL without either goes nowhere.
fn place(url: &Url) -> Result<(String, u16), Refusal> {
    let no_host = || Refusal::Invalid {
        shown: show_text(url.as_str()),
        why: "it has no host".to_owned(),
    };
    let host = url.host().map(|h| host_key(&h)).filter(|h| !h.is_empty());
    Ok((
        host.ok_or_else(no_host)?,
        url.port_or_known_default().ok_or_else(no_host)?,
    ))
}

/// A text that may be no URL, as it may be shown: what could be a password or a query is left out.
fn show_text(text: &str) -> String {
    let head = text.split(['?', '#']).next().unwrap_or_default();
    let shown = match (head.split_once("//"), head.rsplit_once('@')) {
        (Some((scheme, _)), Some((_, tail))) => format!("{scheme}//…@{tail}"),
        _ => head.to_owned(),
    };
    decanus_base::text::escape_controls(&decanus_base::text::brief(&shown, 200))
}

/// What makes two URLs belong to the same server: scheme, host and port.
pub(crate) fn same_origin(a: &Url, b: &Url) -> bool {
    a.scheme() == b.scheme() && place(a).is_ok_and(|place_a| place(b).is_ok_and(|place_b| place_a == place_b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origins() {
        let same = |a: &str, b: &str| same_origin(&Url::parse(a).unwrap(), &Url::parse(b).unwrap());
        assert!(same("http://A.example/x", "http://a.example:80/y?z"));
        assert!(same("https://a.example./", "https://a.example/"));
        assert!(!same("http://a.example/", "https://a.example/"));
        assert!(!same("http://a.example/", "http://a.example:8080/"));
        assert!(!same("http://a.example/", "http://b.a.example/"));
    }

    #[test]
    fn texts_are_shown_without_what_could_be_secret() {
        assert_eq!(show_text("http://me:pw@h x/?key=s"), "http://…@h x/");
        assert_eq!(show_text("invalid url"), "invalid url");
        assert_eq!(show_text("http://h\u{1b}[2J/"), "http://h\\u{1b}[2J/");
    }
}
