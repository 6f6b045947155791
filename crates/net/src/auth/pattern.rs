//! Which URLs a credential belongs to.

use std::fmt;

use url::{Host, Url};

use crate::allow::host_key;

/// A place on the web: scheme, host and port, and a part of its paths. A text inside a URL never matters: both are taken
/// apart before they are compared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UrlPattern {
    text: String,
    scheme: String,
    host: String,
    /// Whether the host is written `*.host`: names below it, not the host itself.
    below: bool,
    port: u16,
    /// Without a slash at the end; empty for all paths.
    path: String,
}

impl UrlPattern {
    /// Reads a pattern: `https://api.example.com/v1`, `https://*.example.com`.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(text: &str) -> Result<Self, String> {
        let shown = || decanus_base::text::escape_controls(&decanus_base::text::brief(text, 120));
        if text.contains(|c: char| c.is_whitespace() || c.is_control() || c == '\\') {
            return Err(format!(
                "'{}' has spaces, control characters or a backslash in it",
                shown()
            ));
        }
        let url = Url::parse(text).map_err(|e| format!("'{}' is no URL ({e}): write https://HOST/PATH", shown()))?;
        if !matches!(url.scheme(), "http" | "https") {
            return Err(format!("'{}' must begin with https:// or http://", shown()));
        }
        if !url.username().is_empty() || url.password().is_some() || text.contains('@') {
            return Err("a URL pattern has no user and no password in it".to_owned());
        }
        if url.query().is_some() || url.fragment().is_some() {
            return Err(format!(
                "'{}' has a query or a fragment: a pattern ends with its path",
                shown()
            ));
        }
        if url.path().contains('*') || climbs(url.path()) {
            return Err(format!(
                "the path of '{}' can't be matched: it is a prefix of whole segments, without * and ..",
                shown()
            ));
        }
        let (Some(host), Some(port)) = (url.host(), url.port_or_known_default()) else {
            return Err(format!("'{}' has no host", shown()));
        };
        let host = host_key(&host);
        let (host, below) = match host.strip_prefix("*.") {
            Some(rest) => (rest.to_owned(), true),
            None => (host, false),
        };
        // `*.com` would be half of the web.
        if host.is_empty() || host.contains('*') || (below && !(host.contains('.') && is_name(&host))) {
            return Err(format!(
                "the host of '{}' can't be matched: write HOST or *.HOST",
                shown()
            ));
        }
        Ok(Self {
            text: text.to_owned(),
            scheme: url.scheme().to_owned(),
            host,
            below,
            port,
            path: url.path().trim_end_matches('/').to_owned(),
        })
    }

    /// Whether a URL lies at this place.
    pub fn matches(&self, url: &Url) -> bool {
        let Some(host) = url.host().map(|h| host_key(&h)) else {
            return false;
        };
        let host_fits = if self.below {
            host.strip_suffix(self.host.as_str())
                .is_some_and(|sub| sub.len() > 1 && sub.ends_with('.'))
        } else {
            host == self.host
        };
        host_fits
            && url.scheme() == self.scheme
            && url.port_or_known_default() == Some(self.port)
            && self.covers(url.path())
    }

    /// Whether a path begins with the pattern's, at the border of a segment.
    fn covers(&self, path: &str) -> bool {
        if self.path.is_empty() {
            return true;
        }
        match path.strip_prefix(self.path.as_str()) {
            Some(rest) => (rest.is_empty() || rest.starts_with('/')) && !climbs(rest),
            None => false,
        }
    }

    /// How closely it says what it means: of two patterns that match, the greater one counts.
    pub(crate) fn rank(&self) -> (bool, usize, usize) {
        (!self.below, self.host.len(), self.path.len())
    }
}

impl fmt::Display for UrlPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

fn is_name(host: &str) -> bool {
    matches!(Host::parse(host), Ok(Host::Domain(_)))
}

/// Whether a server could read a path as one that leads upwards: `..` that the parser of URLs has left, since its dots or
/// slashes are encoded.
fn climbs(path: &str) -> bool {
    let mut decoded = path.to_ascii_lowercase();
    // Encoded twice is decoded twice by some.
    for _ in 0..3 {
        decoded = decoded.replace("%25", "%");
    }
    let decoded = decoded.replace("%2e", ".").replace("%2f", "/").replace("%5c", "/");
    decoded
        .split(['/', '\\'])
        .any(|segment| segment.split(';').next() == Some(".."))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fits(pattern: &str, url: &str) -> bool {
        UrlPattern::parse(pattern).unwrap().matches(&Url::parse(url).unwrap())
    }

    #[test]
    fn an_origin_is_scheme_host_and_port() {
        let api = "https://api.example.com";
        for url in [
            "https://api.example.com",
            "https://api.example.com/",
            "https://API.Example.COM/v1/x?y#z",
            "https://api.example.com:443/",
            "https://api.example.com./x",
            "https://api%2eexample.com/",
        ] {
            assert!(fits(api, url), "{url}");
        }
        for url in [
            "http://api.example.com/",
            "https://api.example.com:8443/",
            "https://api.example.com.evil.test/",
            "https://api.example.comevil.test/",
            "https://evil.test/?https://api.example.com",
            "https://evil.test/https://api.example.com/",
            "https://evil.test/#https://api.example.com",
            "https://api.example.com@evil.test/",
            "https://api.example.com:443@evil.test/",
            "https://x.api.example.com/",
            "https://example.com/",
            "https://evilapi.example.com/",
            "ftp://api.example.com/",
        ] {
            assert!(!fits(api, url), "{url}");
        }
        assert!(fits("http://127.0.0.1:8080/", "http://127.1:8080/a"));
        assert!(!fits("http://127.0.0.1:8080/", "http://127.0.0.1/a"));
        assert!(fits("http://[::1]:8080", "http://[0:0::1]:8080/"));
    }

    #[test]
    fn a_path_is_a_prefix_of_whole_segments() {
        for pattern in ["https://h.test/v1", "https://h.test/v1/"] {
            for path in [
                "/v1",
                "/v1/",
                "/v1/a?b",
                "/x/../v1/a",
                "/v1//a",
                "/v1/group%2Fname",
                "/v1?x=../..",
            ] {
                assert!(fits(pattern, &format!("https://h.test{path}")), "{path}");
            }
            for path in [
                "/",
                "/v10",
                "/v1.evil",
                "/V1/a",
                "/v2/v1",
                "/v1/../admin",
                "/v1/%2e%2e/admin",
                "/v1/..%2fadmin",
                "/v1/%2e%2e%2fadmin",
                "/v1/%252e%252e%252fadmin",
                "/v1/..%5cadmin",
                "/v1/..;/admin",
                "/v1%2fa",
            ] {
                assert!(!fits(pattern, &format!("https://h.test{path}")), "{path}");
            }
        }
    }

    #[test]
    fn names_below_a_host() {
        let below = "https://*.example.com/v1";
        assert!(fits(below, "https://a.example.com/v1") && fits(below, "https://a.b.example.com/v1/x"));
        for url in [
            "https://example.com/v1",
            "https://evilexample.com/v1",
            "https://a.example.com.evil.test/v1",
            "https://.example.com/v1",
        ] {
            assert!(!fits(below, url), "{url}");
        }
        let rank = |text: &str| UrlPattern::parse(text).unwrap().rank();
        assert!(rank("https://a.example.com") > rank(below) && rank("https://h.test/a/b") > rank("https://h.test/a"));
    }

    #[test]
    fn patterns_that_mean_nothing_are_errors() {
        for (bad, words) in [
            ("api.example.com", "no URL"),
            ("*", "no URL"),
            ("https://", "no URL"),
            ("ftp://h.test/", "must begin"),
            ("https://me:pw@h.test/", "no user"),
            ("https://@h.test/", "no user"),
            ("https://h.test/?a=1", "query"),
            ("https://h.test/#a", "fragment"),
            ("https://h.test/a/*", "path"),
            ("https://h.test/%2e%2e%2fa", "path"),
            ("https://*.com/", "host"),
            ("https://*/", "host"),
            ("https://a.*.com/", "host"),
            ("https://*.*.example.com/", "host"),
            ("https://h.test/ a", "spaces"),
            ("https:\\\\h.test", "backslash"),
        ] {
            let error = UrlPattern::parse(bad).unwrap_err();
            assert!(error.contains(words), "{bad}: {error}");
        }
    }
}
