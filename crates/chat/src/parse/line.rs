//! What one line means, by itself. Most lines of a chat are text, which their first and last bytes tell: only where these
//! may mean something is more of the line looked at.

use std::ops::Range;

use crate::message::Role;

/// What a line means where no region is open.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Line<'a> {
    /// `role: rest`; `rest` is stripped.
    Header(Role, &'a str),
    /// `role:= "…"`, decoded.
    Exact(Role, String),
    /// `\role: …`, without the backslash.
    Escaped(&'a str),
    /// Anything else.
    Text,
}

pub(crate) fn classify(line: &str) -> Line<'_> {
    if let Some(rest) = line.strip_prefix('\\') {
        // `\\user:` keeps both backslashes: only one that stands before a header is an escape.
        return if resembles_header(rest) {
            Line::Escaped(rest)
        } else {
            Line::Text
        };
    }
    match header(line) {
        None => Line::Text,
        Some((role, rest)) => match rest
            .strip_prefix('=')
            .map(|json| serde_json::from_str::<String>(strip(json)))
        {
            Some(Ok(content)) => Line::Exact(role, content),
            _ => Line::Header(role, strip(rest)),
        },
    }
}

/// The role of a line `role:= "…` whose JSON string can't be read: it is text, and hardly meant so.
pub(super) fn broken_exact(line: &str) -> Option<Role> {
    let (role, rest) = header(line)?;
    let json = strip(rest.strip_prefix('=')?);
    (json.starts_with('"') && serde_json::from_str::<String>(json).is_err()).then_some(role)
}

/// Whether a line is a header, or would be one if its word were a role. Such lines are escaped and unescaped too, so that
/// a role that a later version adds opens no message in an old file.
pub(super) fn resembles_header(line: &str) -> bool {
    word(line).is_some_and(|(_, rest)| {
        rest.is_empty() || rest.starts_with([' ', '\t', '\x0b', '\x0c', '\r']) || header(line).is_some()
    })
}

/// A role at column 0 with a colon, and what follows it. `word://` is never a header.
fn header(line: &str) -> Option<(Role, &str)> {
    let (word, rest) = word(line)?;
    let role = Role::from_word(word)?;
    (!rest.starts_with("//")).then_some((role, rest))
}

/// A word of the letters of roles at column 0 with a colon, and what follows it.
pub(super) fn word(line: &str) -> Option<(&str, &str)> {
    let is_letter = |b: &u8| b.is_ascii_lowercase() || b.is_ascii_digit() || *b == b'_';
    let end = line.bytes().position(|b| !is_letter(&b))?;
    let rest = line[end..].strip_prefix(':').filter(|_| end > 0)?;
    Some((&line[..end], rest))
}

/// Removes ASCII white space and NUL at both ends; blanks of other scripts are content.
pub(crate) fn strip(text: &str) -> &str {
    &text[stripped_range(text)]
}

/// Where in a text is what [`strip`] leaves of it.
pub(super) fn stripped_range(text: &str) -> Range<usize> {
    let is_blank = |b: &u8| matches!(b, b' ' | b'\t' | b'\n' | b'\r' | 0x0b | 0x0c | 0);
    let bytes = text.as_bytes();
    let start = bytes.iter().position(|b| !is_blank(b)).unwrap_or(bytes.len());
    let end = bytes.iter().rposition(|b| !is_blank(b)).map_or(start, |at| at + 1);
    start..end
}

/// The number of backticks with which a line opens a fence. A line with further backticks is inline code.
pub(super) fn opens_fence(stripped: &str) -> Option<usize> {
    let ticks = stripped.bytes().take_while(|b| *b == b'`').count();
    (ticks >= 3 && !stripped[ticks..].contains('`')).then_some(ticks)
}

pub(super) fn closes_fence(stripped: &str, ticks: usize) -> bool {
    stripped.len() >= ticks && stripped.bytes().all(|b| b == b'`')
}

/// The command of a line `word:-- COMMAND {{{`.
pub(super) fn command_output(line: &str) -> Option<&str> {
    if !strip(line).ends_with("{{{") {
        return None;
    }
    let (word, rest) = line.split_once(":-- ")?;
    let plain = !word.is_empty() && !word.contains(char::is_whitespace);
    strip(rest).strip_suffix("{{{").map(strip).filter(|_| plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_role_is_a_word() {
        for role in Role::ALL {
            assert_eq!(classify(&format!("{role}: x")), Line::Header(*role, "x"));
        }
    }
}
