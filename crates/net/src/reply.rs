//! What came back.

use decanus_base::Secret;
use decanus_base::redact::redact_bytes;
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

    /// Takes out what must not be seen, however it is written, and what a cut left of it. The body does not get longer than
    /// `limit` by that.
    pub(crate) fn redact(&mut self, secrets: &[Secret], limit: usize) {
        for (_, value) in &mut self.headers {
            if let Some(clean) = redact_bytes(value.as_bytes(), secrets, false) {
                *value = String::from_utf8_lossy(&clean).into_owned();
            }
        }
        if let Some(clean) = redact_bytes(&self.body, secrets, self.truncated) {
            self.body = clean;
            self.truncated |= self.body.len() > limit;
            self.body.truncate(limit);
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

    /// Whether the body is text: by its media type, unless it begins as no text does; by its first bytes alone when there is
    /// no type.
    pub fn is_text(&self) -> bool {
        if binary_kind(&self.body).is_some() {
            return false;
        }
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

/// What a body is that begins as only a file which is no text does, whatever type is stated.
pub(crate) fn binary_kind(body: &[u8]) -> Option<&'static str> {
    match body {
        [b'%', b'P', b'D', b'F', b'-', ..] => Some("a PDF document"),
        [0x89, b'P', b'N', b'G', b'\r', b'\n', ..] => Some("a PNG picture"),
        [0xff, 0xd8, 0xff, ..] => Some("a JPEG picture"),
        [b'G', b'I', b'F', b'8', b'7' | b'9', b'a', ..] => Some("a GIF picture"),
        [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => Some("a WebP picture"),
        [b'P', b'K', 3, 4, ..] => Some("a ZIP archive, or a document made as one"),
        [0x1f, 0x8b, 8, ..] => Some("gzip data"),
        [0x7f, b'E', b'L', b'F', ..] => Some("a program"),
        _ => None,
    }
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
        // The bytes go before a wrong type.
        for body in [
            b"%PDF-1.7\n".as_slice(),
            b"\x89PNG\r\n\x1a\n",
            b"GIF89a",
            b"\xff\xd8\xff\xe0",
            b"RIFF\0\0\0\0WEBP",
        ] {
            assert!(!reply("text/html", body, false).is_text(), "{body:?}");
        }
        assert!(reply("text/plain", b"GIF8 is a word", false).is_text());
    }

    #[test]
    fn secrets_are_taken_out_and_no_cut_leaves_a_part() {
        let secrets = [Secret::new("SENTINEL/+&<x>"), Secret::new("pw1")];
        let body = br#"{"a":"SENTINEL\/\u002B\u0026\u003cx\u003E","b":"SENTINEL/&#43;&amp;&lt;x&gt;","c":"SENTINEL%2f%2b%26%3cx%3e","d":"pw1"}"#;
        let mut whole = reply("application/json", body, false);
        whole
            .headers
            .push(("x-key".into(), "pw1; SENTINEL%2F%2B%26%3Cx%3E".into()));
        whole.redact(&secrets, 1000);
        assert_eq!(
            whole.text(),
            r#"{"a":"[REDACTED]","b":"[REDACTED]","c":"[REDACTED]","d":"[REDACTED]"}"#
        );
        assert_eq!(whole.header("x-key"), Some("[REDACTED]; [REDACTED]"));
        let mut cut = reply("text/plain", b"key: SENTINEL%2", true);
        cut.redact(&secrets, 1000);
        assert_eq!(cut.text(), "key: ");
        let mut short = reply("text/plain", b"pw1 and more", false);
        short.redact(&secrets, 12);
        assert_eq!((short.text().as_str(), short.truncated), ("[REDACTED] a", true));
    }
}
