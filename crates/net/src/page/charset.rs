//! Bytes to characters: a byte order mark, the charset of the type, that of a `meta` near the beginning, else UTF-8.
//!
//! Nothing is guessed from the letters: a wrong guess can't be seen, a U+FFFD can.

use std::borrow::Cow;

use encoding_rs::{Encoding, REPLACEMENT, UTF_8, UTF_16BE, UTF_16LE};
use html5gum::{StartTag, Token, Tokenizer};

/// How far a `meta` is looked for, as in the HTML standard.
const META_WITHIN: usize = 1024;

/// Text, and what should be known of it.
pub(crate) struct Decoded<'a> {
    pub(crate) text: Cow<'a, str>,
    pub(crate) notes: Vec<String>,
}

/// The charset that a content type names, if it is known.
pub(crate) fn of_content_type(content_type: &str) -> Option<&'static Encoding> {
    label_of(content_type).and_then(|label| known(&label))
}

fn known(label: &str) -> Option<&'static Encoding> {
    // What the standard calls replacement are charsets that are not decoded, since they were used for attacks.
    Encoding::for_label(label.as_bytes()).filter(|e| *e != REPLACEMENT)
}

/// The value of `charset=` in a content type.
fn label_of(content_type: &str) -> Option<String> {
    let lower = content_type.to_ascii_lowercase();
    let mut rest = lower.as_str();
    loop {
        let at = rest.find("charset")?;
        rest = rest[at + "charset".len()..].trim_start();
        if let Some(value) = rest.strip_prefix('=') {
            let value = value.trim_start();
            let quote = value.chars().next().filter(|c| *c == '"' || *c == '\'');
            let value = match quote {
                Some(quote) => value[1..].split(quote).next(),
                None => value.split([';', ',', ' ', '\t']).next(),
            };
            return value.map(|v| v.trim().to_owned()).filter(|v| !v.is_empty());
        }
    }
}

/// Decodes a body. `markup` says whether it may name its charset itself.
pub(crate) fn decode<'a>(body: &'a [u8], content_type: &str, markup: bool) -> Decoded<'a> {
    let mut notes = Vec::new();
    let mut resolve = |label: Option<String>, place: &str| -> Option<&'static Encoding> {
        let label = label?;
        let encoding = known(&label);
        if encoding.is_none() {
            let shown = decanus_base::text::escape_controls(&decanus_base::text::brief(&label, 40));
            notes.push(format!("the charset '{shown}' of the {place} is not known"));
        }
        encoding
    };
    let (encoding, body) = match Encoding::for_bom(body) {
        Some((encoding, length)) => (Some(encoding), &body[length..]),
        None => {
            let stated = resolve(label_of(content_type), "Content-Type");
            let stated = stated.or_else(|| {
                let label = if markup { stated_in_markup(body) } else { None };
                // Whoever could read the tag did not read UTF-16.
                resolve(label, "page").map(|e| if e == UTF_16BE || e == UTF_16LE { UTF_8 } else { e })
            });
            (stated, body)
        }
    };
    let (text, faults) = encoding.unwrap_or(UTF_8).decode_without_bom_handling(body);
    if faults {
        let lost = text.chars().filter(|c| *c == '\u{fffd}').count();
        // A few come from a body that was cut or pasted together; many mean that the charset is another.
        if lost >= 5 && lost * 200 >= text.chars().count() {
            notes.push(format!(
                "{lost} characters could not be read: the charset may be another than the page says"
            ));
        }
    }
    Decoded { text, notes }
}

/// The charset in a `meta` or in the first line of XML.
fn stated_in_markup(body: &[u8]) -> Option<String> {
    let start = &body[..body.len().min(META_WITHIN)];
    if let Some(label) = stated_in_xml(start) {
        return Some(label);
    }
    for token in Tokenizer::new(start) {
        let Ok(token) = token;
        if let Token::StartTag(tag) = token
            && &**tag.name == b"meta"
            && let Some(label) = of_meta(&tag)
        {
            return Some(label);
        }
    }
    None
}

fn of_meta(tag: &StartTag<()>) -> Option<String> {
    let attribute = |name: &[u8]| {
        let found = tag.attributes.iter().find(|(n, _)| ***n == *name);
        found.map(|(_, value)| String::from_utf8_lossy(value).into_owned())
    };
    if let Some(label) = attribute(b"charset") {
        return Some(label.trim().to_owned()).filter(|l| !l.is_empty());
    }
    let is_type = attribute(b"http-equiv").is_some_and(|v| v.trim().eq_ignore_ascii_case("content-type"));
    is_type
        .then(|| attribute(b"content"))
        .flatten()
        .and_then(|content| label_of(&content))
}

fn stated_in_xml(start: &[u8]) -> Option<String> {
    let head = start.strip_prefix(b"<?xml")?;
    let end = head.windows(2).position(|w| w == b"?>")?;
    let head = String::from_utf8_lossy(&head[..end]).into_owned();
    let (_, after) = head.split_once("encoding")?;
    let after = after.trim_start().strip_prefix('=')?.trim_start();
    let quote = after.chars().next().filter(|c| *c == '"' || *c == '\'')?;
    after[1..]
        .split(quote)
        .next()
        .map(|l| l.trim().to_owned())
        .filter(|l| !l.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(body: &[u8], content_type: &str) -> String {
        decode(body, content_type, true).text.into_owned()
    }

    #[test]
    fn the_order() {
        assert_eq!(text(b"\xef\xbb\xbfcaf\xc3\xa9", "text/html; charset=latin1"), "café");
        assert_eq!(text(b"\xff\xfea\0b\0", "text/html; charset=utf-8"), "ab");
        assert_eq!(
            text(b"<meta charset=utf-8>caf\xe9", "text/html; charset=\"ISO-8859-1\""),
            "<meta charset=utf-8>café"
        );
        assert_eq!(
            text(b"<META CharSet='windows-1251'>\xcf", "text/html"),
            "<META CharSet='windows-1251'>П"
        );
        let equiv = b"<meta content=\"text/html; charset = koi8-r\" http-equiv=Content-Type>\xf0";
        assert!(text(equiv, "").ends_with('П'));
        assert!(
            text(
                b"<?xml version=\"1.0\" encoding='iso-8859-1'?>\xe9",
                "application/xhtml+xml"
            )
            .ends_with('é')
        );
        assert_eq!(text(b"<meta charset=utf-16>\xc3\xa9", ""), "<meta charset=utf-16>é");
        assert_eq!(
            text(b"<!-- <meta charset=latin1> -->\xe9", ""),
            "<!-- <meta charset=latin1> -->\u{fffd}"
        );
        assert_eq!(text(b"caf\xe9", "text/html"), "caf\u{fffd}");
    }

    #[test]
    fn what_is_unknown_is_said() {
        let decoded = decode(b"<meta charset=latin1>\xe9", "text/html; charset=klingon", true);
        assert!(decoded.text.ends_with('é'));
        assert_eq!(
            decoded.notes,
            ["the charset 'klingon' of the Content-Type is not known"]
        );
        let many = decode(&[0xe9; 100], "text/html", true).notes;
        assert!(many[0].starts_with("100 characters could not be read"), "{many:?}");
        assert!(decode(b"caf\xe9", "", true).notes.is_empty());
        assert!(decode(b"\x1b$B", "text/html; charset=iso-2022-kr", true).notes[0].contains("iso-2022-kr"));
    }
}
