//! What is asked for.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use decanus_base::text::{brief, escape_controls};
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use serde_json::Value;
use url::Url;

use crate::error::Error;

/// The methods there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Method {
    /// Read.
    #[default]
    Get,
    /// Read, the headers only.
    Head,
    /// Send.
    Post,
    /// Replace.
    Put,
    /// Change.
    Patch,
    /// Remove.
    Delete,
}

impl Method {
    /// In capitals, as it is sent.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Get => "GET",
            Self::Head => "HEAD",
            Self::Post => "POST",
            Self::Put => "PUT",
            Self::Patch => "PATCH",
            Self::Delete => "DELETE",
        }
    }

    /// Whether it only reads.
    pub fn is_safe(self) -> bool {
        matches!(self, Self::Get | Self::Head)
    }
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Method {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let all = [Self::Get, Self::Head, Self::Post, Self::Put, Self::Patch, Self::Delete];
        let found = all.into_iter().find(|m| m.as_str().eq_ignore_ascii_case(text));
        found.ok_or_else(|| {
            let shown = escape_controls(&brief(text, 40));
            Error::Argument(format!(
                "Unsupported HTTP method: {shown}; use GET, HEAD, POST, PUT, PATCH or DELETE"
            ))
        })
    }
}

impl From<Method> for reqwest::Method {
    fn from(method: Method) -> Self {
        match method {
            Method::Get => Self::GET,
            Method::Head => Self::HEAD,
            Method::Post => Self::POST,
            Method::Put => Self::PUT,
            Method::Patch => Self::PATCH,
            Method::Delete => Self::DELETE,
        }
    }
}

/// What is sent along.
#[derive(Debug, Clone, PartialEq, Default)]
pub enum Body {
    /// Nothing.
    #[default]
    Empty,
    /// JSON, written compactly; with `Content-Type: application/json; charset=utf-8` unless the request has another JSON
    /// type. GET and HEAD leave it out.
    Json(Value),
    /// These bytes, with no type but the request's own.
    Bytes(Vec<u8>),
}

/// A request. The URL is not looked at before it is sent.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Request {
    /// The method.
    pub method: Method,
    /// The URL, as somebody wrote it.
    pub url: String,
    /// Headers, names and values.
    pub headers: Vec<(String, String)>,
    /// Members for the query of the URL: they replace those of the same names; a name may stand here several times.
    pub query: Vec<(String, String)>,
    /// The body.
    pub body: Body,
    /// How many redirects may be followed, of GET and HEAD; none by default.
    pub redirects: usize,
    /// How much of the body is wanted, in bytes after decompression; the client's limit when left out.
    pub max_body: Option<usize>,
}

impl Request {
    /// A request without headers, query and body.
    pub fn new(method: Method, url: impl Into<String>) -> Self {
        Self {
            method,
            url: url.into(),
            ..Self::default()
        }
    }

    /// `GET`.
    pub fn get(url: impl Into<String>) -> Self {
        Self::new(Method::Get, url)
    }

    /// `POST`.
    pub fn post(url: impl Into<String>) -> Self {
        Self::new(Method::Post, url)
    }

    /// With a header.
    #[must_use]
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }

    /// With a member of the query.
    #[must_use]
    pub fn query(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.query.push((name.into(), value.into()));
        self
    }

    /// With a body.
    #[must_use]
    pub fn body(mut self, body: Body) -> Self {
        self.body = body;
        self
    }

    /// Following at most this many redirects.
    #[must_use]
    pub fn redirects(mut self, redirects: usize) -> Self {
        self.redirects = redirects;
        self
    }

    /// With at most this much of the body.
    #[must_use]
    pub fn max_body(mut self, bytes: usize) -> Self {
        self.max_body = Some(bytes);
        self
    }

    /// The headers and the body as they are sent.
    pub(crate) fn encode(&self) -> Result<(HeaderMap, Vec<u8>), Error> {
        let mut headers = header_map(&self.headers)?;
        let body = match &self.body {
            Body::Empty => Vec::new(),
            Body::Bytes(bytes) => bytes.clone(),
            Body::Json(_) if self.method.is_safe() => {
                tracing::warn!("a {} request has no body: the one given is left out", self.method);
                Vec::new()
            }
            Body::Json(value) => {
                let stated = headers
                    .get(CONTENT_TYPE)
                    .map(|v| String::from_utf8_lossy(v.as_bytes()).to_ascii_lowercase());
                match stated {
                    Some(stated) if !is_json(&stated) => {
                        let shown = escape_controls(&brief(&stated, 80));
                        return Err(Error::Argument(format!(
                            "a body of JSON with Content-Type '{shown}': give the body as text, or leave the type out"
                        )));
                    }
                    Some(_) => {}
                    None => {
                        headers.insert(
                            CONTENT_TYPE,
                            HeaderValue::from_static("application/json; charset=utf-8"),
                        );
                    }
                }
                serde_json::to_vec(value)
                    .map_err(|e| Error::Content(format!("Failed to encode request body as JSON: {e}")))?
            }
        };
        Ok((headers, body))
    }
}

fn is_json(content_type: &str) -> bool {
    let kind = content_type.split(';').next().unwrap_or_default().trim();
    kind.ends_with("/json") || kind.ends_with("+json")
}

/// Headers that say how a message is framed, where it goes, or what the connection does next: they are the client's.
const FORBIDDEN: &[&str] = &[
    "host",
    "content-length",
    "transfer-encoding",
    "connection",
    "keep-alive",
    "proxy-connection",
    "proxy-authorization",
    "te",
    "trailer",
    "upgrade",
    "expect",
    "http2-settings",
];

/// Whether a header is the client's own.
pub(crate) fn forbidden_header(name: &str) -> bool {
    FORBIDDEN.iter().any(|f| f.eq_ignore_ascii_case(name))
}

/// Reads headers that somebody else chose.
fn header_map(headers: &[(String, String)]) -> Result<HeaderMap, Error> {
    let mut map = HeaderMap::new();
    for (name, value) in headers {
        let shown = || escape_controls(&brief(name, 60));
        let header = HeaderName::from_bytes(name.as_bytes())
            .map_err(|_| Error::Argument(format!("'{}' is no name of a header", shown())))?;
        if FORBIDDEN.contains(&header.as_str()) {
            return Err(Error::Argument(format!("the header '{}' can't be set", shown())));
        }
        // The value may be a credential, so it is not shown.
        let value = HeaderValue::from_str(value)
            .or_else(|_| HeaderValue::from_bytes(value.as_bytes()))
            .map_err(|_| {
                Error::Argument(format!(
                    "the value of the header '{}' has control characters in it",
                    shown()
                ))
            })?;
        map.append(header, value);
    }
    Ok(map)
}

/// Puts members into the query of a URL: those of the same names are replaced, all others stay as they were written.
pub(crate) fn merge_query<'a>(url: &mut Url, members: impl IntoIterator<Item = (&'a str, &'a str)> + Clone) {
    if members.clone().into_iter().next().is_none() {
        return;
    }
    let replaced = |part: &&str| {
        let name = url::form_urlencoded::parse(part.as_bytes())
            .next()
            .map_or(Cow::Borrowed(""), |(name, _)| name);
        !members.clone().into_iter().any(|(n, _)| n == name)
    };
    let query = url.query().unwrap_or_default();
    let mut parts: Vec<String> = query
        .split('&')
        .filter(|p| !p.is_empty())
        .filter(replaced)
        .map(str::to_owned)
        .collect();
    for (name, value) in members {
        parts.push(
            url::form_urlencoded::Serializer::new(String::new())
                .append_pair(name, value)
                .finish(),
        );
    }
    url.set_query(Some(&parts.join("&")));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_are_merged() {
        let merged = |url: &str, members: &[(&str, &str)]| {
            let mut url = Url::parse(url).unwrap();
            merge_query(&mut url, members.iter().copied());
            url.to_string()
        };
        assert_eq!(merged("http://h/?a=1&a=2&b=%7E", &[]), "http://h/?a=1&a=2&b=%7E");
        assert_eq!(
            merged("http://h/?a=1&a=2&b=%7E", &[("b", "x y"), ("c", "&")]),
            "http://h/?a=1&a=2&b=x+y&c=%26"
        );
        assert_eq!(
            merged("http://h/?a=1&a=2&b", &[("a", "3"), ("a", "4")]),
            "http://h/?b&a=3&a=4"
        );
        assert_eq!(merged("http://h/p#f", &[("é", "ü")]), "http://h/p?%C3%A9=%C3%BC#f");
    }

    #[test]
    fn headers_that_steer_the_connection_are_refused() {
        let refused = |name: &str, value: &str| {
            let request = Request::get("http://h/").header(name, value);
            request.encode().unwrap_err().to_string()
        };
        for name in [
            "Host",
            "content-length",
            "Transfer-Encoding",
            "CONNECTION",
            "Upgrade",
            "Expect",
            "TE",
        ] {
            assert!(refused(name, "x").contains("can't be set"), "{name}");
        }
        for (name, value) in [
            ("X-A\r\nHost: evil", "x"),
            ("", "x"),
            ("a b", "x"),
            ("a:", "x"),
            ("x\0", "y"),
        ] {
            assert!(refused(name, value).contains("is no name of a header"), "{name:?}");
        }
        for value in ["a\r\nX-Evil: 1", "a\nb", "a\0b", "\u{7f}", "secret\r"] {
            let message = refused("X-A", value);
            assert!(
                message.contains("'X-A' has control characters") && !message.contains("secret"),
                "{message}"
            );
        }
    }

    #[test]
    fn bodies_are_encoded() {
        let json = Body::Json(serde_json::json!({"a": 1, "é": "ü"}));
        let (headers, body) = Request::post("http://h/").body(json.clone()).encode().unwrap();
        assert_eq!(body, "{\"a\":1,\"é\":\"ü\"}".as_bytes());
        assert_eq!(headers["content-type"], "application/json; charset=utf-8");
        let own = Request::post("http://h/")
            .header("content-TYPE", "application/vnd.api+json")
            .body(json.clone());
        assert_eq!(own.encode().unwrap().0["content-type"], "application/vnd.api+json");
        let wrong = Request::post("http://h/")
            .header("Content-Type", "text/plain")
            .body(json.clone());
        assert!(wrong.encode().unwrap_err().to_string().contains("text/plain"));
        let (headers, body) = Request::get("http://h/").body(json).encode().unwrap();
        assert!(headers.is_empty() && body.is_empty());
        let (headers, body) = Request::post("http://h/")
            .body(Body::Bytes(b"hi".to_vec()))
            .encode()
            .unwrap();
        assert!(headers.is_empty() && body == b"hi");
        assert!(
            "connect"
                .parse::<Method>()
                .unwrap_err()
                .to_string()
                .starts_with("Unsupported HTTP method: connect")
        );
        assert_eq!("patch".parse::<Method>().unwrap(), Method::Patch);
    }
}
