//! What came back.

use decanus_base::Secret;
use url::Url;

/// An answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reply {
    /// The status.
    pub status: u16,
    /// Headers in their order, names in lower case; a name may stand here several times.
    pub headers: Vec<(String, String)>,
    /// The body, decompressed, up to the limit.
    pub body: Vec<u8>,
    /// Whether the body goes on after the limit.
    pub truncated: bool,
    /// Where it came from in the end, without credentials that were added.
    pub url: Url,
}

impl Reply {
    /// A header's value, the first of them. The name is in lower case.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(n, _)| n == name).map(|(_, v)| v.as_str())
    }

    /// Takes out what must not be seen, however a URL or JSON would write it.
    pub(crate) fn redact(&mut self, secrets: &[Secret]) {
        const IN_PLACE: &str = "[REDACTED]";
        for secret in secrets.iter().map(Secret::expose) {
            // Short ones would be found everywhere.
            if secret.len() < 6 {
                continue;
            }
            let encoded: String = url::form_urlencoded::byte_serialize(secret.as_bytes()).collect();
            let quoted = serde_json::Value::from(secret).to_string();
            for form in [secret, &encoded, quoted.trim_matches('"')] {
                for (_, value) in &mut self.headers {
                    if value.contains(form) {
                        *value = value.replace(form, IN_PLACE);
                    }
                }
                replace(&mut self.body, form.as_bytes(), IN_PLACE.as_bytes());
            }
        }
    }

    /// Whether the status is from 200 to 299.
    pub fn is_success(&self) -> bool {
        (200..300).contains(&self.status)
    }

    /// The media type, in lower case, without parameters; empty when there is none.
    pub fn media_type(&self) -> String {
        let value = self.header("content-type").unwrap_or_default();
        value.split(';').next().unwrap_or_default().trim().to_ascii_lowercase()
    }

    /// Whether the body is text, by its media type, or by its first bytes when there is none.
    pub fn is_text(&self) -> bool {
        let media_type = self.media_type();
        if media_type.is_empty() {
            return !looks_binary(&self.body);
        }
        is_text_type(&media_type)
    }

    /// The body as text: in the charset of its type, what is no character replaced, and not cut inside a character.
    pub fn text(&self) -> String {
        let encoding = crate::page::charset::of_content_type(self.header("content-type").unwrap_or_default());
        let encoding = encoding.unwrap_or(encoding_rs::UTF_8);
        let mut body = self.body.as_slice();
        if self.truncated && encoding == encoding_rs::UTF_8 {
            body = whole_characters(body);
        }
        encoding.decode(body).0.into_owned()
    }
}

fn replace(body: &mut Vec<u8>, what: &[u8], with: &[u8]) {
    let mut at = 0;
    while let Some(found) = body
        .get(at..)
        .and_then(|b| b.windows(what.len()).position(|w| w == what))
    {
        body.splice(at + found..at + found + what.len(), with.iter().copied());
        at += found + with.len();
    }
}

/// Whether a media type is one of text.
pub(crate) fn is_text_type(media_type: &str) -> bool {
    const TEXTS: &[&str] = &[
        "application/json",
        "application/xml",
        "application/xhtml+xml",
        "application/javascript",
        "application/ecmascript",
        "application/x-javascript",
        "application/x-ndjson",
        "application/ndjson",
        "application/jsonl",
        "application/json5",
        "application/yaml",
        "application/x-yaml",
        "application/toml",
        "application/sql",
        "application/graphql",
        "application/x-sh",
        "application/x-httpd-php",
        "application/x-www-form-urlencoded",
        "application/csv",
        "application/rtf",
        "application/x-tex",
        "application/x-subrip",
        "message/rfc822",
    ];
    media_type.starts_with("text/")
        || media_type.ends_with("+json")
        || media_type.ends_with("+xml")
        || media_type.ends_with("+yaml")
        || TEXTS.contains(&media_type)
}

/// Whether a body without a type is no text: text has no NUL, but for UTF-16, which says so first.
pub(crate) fn looks_binary(body: &[u8]) -> bool {
    let utf16 = body.starts_with(&[0xff, 0xfe]) || body.starts_with(&[0xfe, 0xff]);
    !utf16 && (body.starts_with(b"%PDF-") || body.iter().take(1024).any(|b| *b == 0))
}

/// UTF-8 that was cut, without the beginning of a character at its end.
fn whole_characters(body: &[u8]) -> &[u8] {
    match std::str::from_utf8(body) {
        // No length: the text ends in the middle of a character.
        Err(e) if e.error_len().is_none() => &body[..e.valid_up_to()],
        // An earlier fault hides the end; at most three bytes can be the beginning of a character.
        Err(_) => {
            let start = body.len().saturating_sub(3);
            let lead = body[start..].iter().rposition(|b| *b >= 0xc0).map(|at| start + at);
            match lead {
                Some(at) if std::str::from_utf8(&body[at..]).is_err_and(|e| e.error_len().is_none()) => &body[..at],
                _ => body,
            }
        }
        Ok(_) => body,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reply(content_type: &str, body: &[u8], truncated: bool) -> Reply {
        Reply {
            status: 200,
            headers: vec![("content-type".into(), content_type.into())],
            body: body.to_vec(),
            truncated,
            url: Url::parse("http://h/").unwrap(),
        }
    }

    #[test]
    fn a_cut_body_ends_with_a_whole_character() {
        assert_eq!(reply("text/plain", "aé".as_bytes(), true).text(), "aé");
        assert_eq!(reply("text/plain", &"aé".as_bytes()[..2], true).text(), "a");
        assert_eq!(reply("text/plain", b"\xff\xe2\x82", true).text(), "\u{fffd}");
        assert_eq!(reply("text/plain", &"aé".as_bytes()[..2], false).text(), "a\u{fffd}");
        assert_eq!(reply("text/plain; charset=latin1", b"caf\xe9", true).text(), "café");
    }

    #[test]
    fn kinds() {
        for yes in [
            "text/csv",
            "application/json",
            "application/ld+json; charset=x",
            "image/svg+xml",
            "TEXT/HTML",
        ] {
            assert!(reply(yes, b"", false).is_text(), "{yes}");
        }
        for no in ["image/png", "application/octet-stream", "application/pdf", "font/woff2"] {
            assert!(!reply(no, b"", false).is_text(), "{no}");
        }
        assert!(reply("", b"plain", false).is_text() && !reply("", b"a\0b", false).is_text());
        assert!(reply("", b"\xff\xfea\0", false).is_text());
    }
}
