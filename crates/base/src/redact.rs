//! Taking secrets out of what others wrote, however they wrote them.
//!
//! A server repeats what it was sent in the escapes of its own format: `%2B` of URLs, `\u002B` and `\/` of JSON, `&#43;`
//! and `&amp;` of HTML, each in several spellings. A secret is therefore looked for character by character, and each
//! character may stand for itself or in any of these.

use crate::Secret;

/// Stands where a secret was.
pub const REDACTED: &str = "[REDACTED]";

/// Secrets of fewer bytes are found only where they stand alone: `k` stands in every word.
const SHORT: usize = 6;

/// The longest escape that is read, in bytes (a pair of `\u` escapes; an entity with leading zeros).
const LONGEST_ESCAPE: usize = 12;

/// A text without these secrets.
pub fn redact(text: &str, secrets: &[Secret]) -> String {
    let clean = redact_bytes(text.as_bytes(), secrets, false);
    clean.map_or_else(|| text.to_owned(), |bytes| String::from_utf8_lossy(&bytes).into_owned())
}

/// The same for bytes; `None` when there is nothing to take out. Of a text that was `cut` the beginning of a secret at its
/// end is left out, too.
pub fn redact_bytes(text: &[u8], secrets: &[Secret], cut: bool) -> Option<Vec<u8>> {
    let mut sought: Vec<&[u8]> = secrets.iter().map(|s| s.expose().as_bytes()).collect();
    sought.retain(|s| !s.is_empty());
    // Of two that begin alike the longer one is taken out.
    sought.sort_by_key(|s| std::cmp::Reverse(s.len()));
    let firsts = firsts(&sought);
    let mut out = Vec::new();
    let (mut copied, mut at) = (0, 0);
    while at < text.len() {
        if !firsts[usize::from(text[at])] {
            at += 1;
            continue;
        }
        let mut found = None;
        for secret in &sought {
            match match_at(text, at, secret) {
                Match::Whole(end) if secret.len() >= SHORT || stands_alone(text, at, end) => {
                    found = Some((REDACTED, end));
                    break;
                }
                Match::Beginning if cut => found = Some(("", text.len())),
                _ => {}
            }
        }
        match found {
            Some((instead, end)) => {
                out.extend_from_slice(&text[copied..at]);
                out.extend_from_slice(instead.as_bytes());
                (copied, at) = (end, end);
            }
            None => at += 1,
        }
    }
    if copied == 0 {
        return None;
    }
    out.extend_from_slice(&text[copied..]);
    Some(out)
}

/// The bytes with which a secret can begin in a text: its own first, and those that begin an escape.
fn firsts(sought: &[&[u8]]) -> [bool; 256] {
    let mut firsts = [false; 256];
    for secret in sought {
        firsts[usize::from(secret[0])] = true;
        for escape in [b'%', b'\\', b'&', b'+'] {
            firsts[usize::from(escape)] = true;
        }
    }
    firsts
}

enum Match {
    No,
    /// To here.
    Whole(usize),
    /// The text ends before the secret does.
    Beginning,
}

/// Whether a secret stands at a place. What is tried first reaches furthest: an escape before the character itself.
fn match_at(text: &[u8], start: usize, secret: &[u8]) -> Match {
    // Places in the text and in the secret that are still to be tried.
    let mut open = vec![(start, 0)];
    let mut tries = 0;
    let mut ends = false;
    while let Some((at, done)) = open.pop() {
        if done == secret.len() {
            return Match::Whole(at);
        }
        tries += 1;
        if tries > 16 * secret.len() + 64 {
            // Nothing that is ever sent is so ambiguous.
            break;
        }
        let (rest, wanted) = (&text[at..], &secret[done..]);
        let Some(&byte) = rest.first() else {
            ends = true;
            continue;
        };
        if byte == wanted[0] {
            open.push((at + 1, done + 1));
        }
        if byte == b'+' && wanted[0] == b' ' {
            open.push((at + 1, done + 1));
        }
        match escape(rest) {
            Escape::Stands(bytes, length) if wanted.starts_with(&bytes) => {
                open.push((at + length, done + bytes.len()));
            }
            Escape::Unfinished => ends = true,
            _ => {}
        }
    }
    if ends { Match::Beginning } else { Match::No }
}

enum Escape {
    None,
    /// It stands for these bytes and is of this length.
    Stands(Vec<u8>, usize),
    /// The text ends in it.
    Unfinished,
}

/// The escape at the beginning of a text.
fn escape(text: &[u8]) -> Escape {
    let read = match text.first() {
        Some(b'%') => hex(text, 1, 2).map(|n| (vec![n.to_le_bytes()[0]], 3)),
        Some(b'\\') => backslash(text),
        Some(b'&') => entity(text),
        _ => return Escape::None,
    };
    let goes_on = |b: &u8| b.is_ascii_alphanumeric() || matches!(b, b'#' | b'\\');
    match read {
        Some((bytes, length)) => Escape::Stands(bytes, length),
        None if text.len() < LONGEST_ESCAPE && text[1..].iter().all(goes_on) => Escape::Unfinished,
        None => Escape::None,
    }
}

/// A number of so many hexadecimal digits.
fn hex(text: &[u8], from: usize, digits: usize) -> Option<u32> {
    let digits = text.get(from..from + digits)?;
    let text = std::str::from_utf8(digits)
        .ok()
        .filter(|t| t.bytes().all(|b| b.is_ascii_hexdigit()))?;
    u32::from_str_radix(text, 16).ok()
}

/// An escape of JSON and of programming languages: `\/`, `\n`, `\u002B`, also as a pair of surrogates, `\x2B`.
fn backslash(text: &[u8]) -> Option<(Vec<u8>, usize)> {
    let one = |byte: u8| Some((vec![byte], 2));
    match text.get(1)? {
        b'b' => one(8),
        b'f' => one(12),
        b'n' => one(b'\n'),
        b'r' => one(b'\r'),
        b't' => one(b'\t'),
        b'x' => character(hex(text, 2, 2)?, 4),
        b'u' => match hex(text, 2, 4)? {
            high @ 0xd800..=0xdbff => {
                let low = text.get(6..8).filter(|t| *t == b"\\u").and_then(|_| hex(text, 8, 4))?;
                let low = low.checked_sub(0xdc00).filter(|l| *l < 0x400)?;
                character(0x1_0000 + ((high - 0xd800) << 10) + low, 12)
            }
            code => character(code, 6),
        },
        other if other.is_ascii_punctuation() => one(*other),
        _ => None,
    }
}

/// A reference of HTML and XML: `&amp;`, `&#43;`, `&#x2B;`.
fn entity(text: &[u8]) -> Option<(Vec<u8>, usize)> {
    const NAMES: [(&str, char); 24] = [
        ("amp", '&'),
        ("lt", '<'),
        ("gt", '>'),
        ("quot", '"'),
        ("apos", '\''),
        ("plus", '+'),
        ("equals", '='),
        ("sol", '/'),
        ("bsol", '\\'),
        ("percnt", '%'),
        ("num", '#'),
        ("dollar", '$'),
        ("excl", '!'),
        ("quest", '?'),
        ("commat", '@'),
        ("colon", ':'),
        ("semi", ';'),
        ("comma", ','),
        ("period", '.'),
        ("lowbar", '_'),
        ("ast", '*'),
        ("lpar", '('),
        ("rpar", ')'),
        ("vert", '|'),
    ];
    let end = text.iter().take(LONGEST_ESCAPE).position(|b| *b == b';')?;
    let name = std::str::from_utf8(&text[1..end]).ok()?.to_ascii_lowercase();
    let code = match name.strip_prefix('#') {
        Some(number) => match number.strip_prefix('x') {
            Some(digits) => u32::from_str_radix(digits, 16).ok()?,
            None => number.parse().ok()?,
        },
        None => NAMES.iter().find(|(n, _)| *n == name).map(|(_, c)| u32::from(*c))?,
    };
    character(code, end + 1)
}

fn character(code: u32, length: usize) -> Option<(Vec<u8>, usize)> {
    Some((char::from_u32(code)?.to_string().into_bytes(), length))
}

/// Whether what stands from `start` to `end` is no part of a word. An escape before it counts as what it stands for.
fn stands_alone(text: &[u8], start: usize, end: usize) -> bool {
    let is_word = |b: u8| b.is_ascii_alphanumeric() || b == b'_' || b >= 0x80;
    let before = &text[..start];
    let escaped =
        (2..=LONGEST_ESCAPE.min(before.len())).find_map(|length| match escape(&before[before.len() - length..]) {
            Escape::Stands(bytes, all) if all == length => bytes.last().copied(),
            _ => None,
        });
    let before = escaped.or(before.last().copied());
    !before.is_some_and(is_word) && !text.get(end).copied().is_some_and(is_word)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn clean(text: &str, secret: &str) -> String {
        redact(text, &[Secret::new(secret)])
    }

    #[test]
    fn however_it_is_written() {
        let secret = "a+b/c&d=\"<é😀'>";
        for written in [
            secret,
            "a%2Bb%2Fc%26d%3D%22%3C%C3%A9%F0%9F%98%80%27%3E",
            "a%2bb%2fc%26d%3d%22%3c%c3%a9%f0%9f%98%80%27%3e",
            "a+b/c%26d=%22<é😀'>",
            r#"a+b\/c&d=\"<é😀'>"#,
            r"a\u002Bb\u002fc\u0026d\u003d\u0022\u003C\u00e9\uD83D\uDE00\u0027\u003e",
            r"\x61+b/c&d=\x22\u003cé😀'>",
            "a&#43;b/c&amp;d=&quot;&lt;é😀&#39;&gt;",
            "a&plus;b&sol;c&AMP;d&equals;&#x22;&#x3C;&#233;&#x1F600;&apos;&#062;",
            "a&#x2b;b&#x2F;c&#038;d&#61;&#34;&LT;&#xE9;&#128512;&#x27;&GT;",
        ] {
            assert_eq!(clean(&format!("1 {written} 2"), secret), "1 [REDACTED] 2", "{written}");
        }
        assert_eq!(clean("two+words", "two words"), "[REDACTED]");
        assert_eq!(clean("50%25off 50%off", "50%off"), "[REDACTED] [REDACTED]");
        assert_eq!(clean("secret-0 secret-1", "secret-1"), "secret-0 [REDACTED]");
        assert_eq!(
            clean("\\\\ & % %2 \\u00 &#; &amp", "longer-than-that"),
            "\\\\ & % %2 \\u00 &#; &amp"
        );
        let two = [Secret::new("abcdef"), Secret::new("abcdefghi")];
        assert_eq!(redact("abcdefghi abcdef", &two), "[REDACTED] [REDACTED]");
    }

    #[test]
    fn short_ones_are_taken_out_where_they_stand_alone() {
        for (text, expected) in [
            ("pw12", "[REDACTED]"),
            (r#"{"key":"pw12"}"#, r#"{"key":"[REDACTED]"}"#),
            ("pw12, pw123 xpw12 pw12_ épw12", "[REDACTED], pw123 xpw12 pw12_ épw12"),
            ("key%3Dpw12&x", "key%3D[REDACTED]&x"),
            (r"a\npw12\n", r"a\n[REDACTED]\n"),
            ("&quot;pw12&quot;", "&quot;[REDACTED]&quot;"),
            ("%70w12", "[REDACTED]"),
        ] {
            assert_eq!(clean(text, "pw12"), expected, "{text}");
        }
        assert_eq!(clean("", ""), "");
        assert_eq!(clean("text", ""), "text");
    }

    #[test]
    fn what_a_cut_leaves_of_a_secret_is_left_out() {
        let secret = [Secret::new("sentinel+value")];
        let cut = |text: &str| {
            let bytes = redact_bytes(text.as_bytes(), &secret, true);
            bytes.map_or_else(|| text.to_owned(), |b| String::from_utf8(b).unwrap())
        };
        for (text, expected) in [
            ("x sentinel+val", "x "),
            ("x sentinel%2Bval", "x "),
            ("x sentinel%2", "x "),
            (r"x sentinel\u00", "x "),
            ("x sentinel&#4", "x "),
            ("x sentinel+value sent", "x [REDACTED] "),
            ("x sentinel+other", "x sentinel+other"),
            ("nothing here", "nothing here"),
        ] {
            assert_eq!(cut(text), expected, "{text}");
        }
        // What is whole keeps its end.
        assert_eq!(redact("x sentinel+val", &secret), "x sentinel+val");
    }

    #[test]
    fn ambiguity_takes_no_time_out_of_proportion() {
        let secret = "%25".repeat(200) + "!";
        let text = "%25".repeat(2_000);
        let start = std::time::Instant::now();
        assert_eq!(clean(&text, &secret), text);
        assert!(start.elapsed().as_secs() < 10);
    }
}
