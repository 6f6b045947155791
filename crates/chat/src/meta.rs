//! The bookkeeping line of an answer: `key=value` pairs separated by blanks.

use std::collections::HashMap;

use crate::message::{Message, Role};
use crate::usage::Usage;

/// Pairs in the order they were added. Values are texts; what looks like a number is one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Meta(Vec<(String, String)>);

impl Meta {
    /// No pairs.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets a pair; a later value of the same key replaces the earlier one.
    pub fn set(&mut self, key: &str, value: impl ToString) -> &mut Self {
        let value = value.to_string();
        match self.0.iter_mut().find(|(k, _)| k == key) {
            Some(pair) => pair.1 = value,
            None => self.0.push((key.to_owned(), value)),
        }
        self
    }

    /// The value of a key.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.0.iter().find(|(k, _)| k == key).map(|(_, v)| v.as_str())
    }

    /// The value of a key as a count.
    pub fn count(&self, key: &str) -> Option<u64> {
        self.get(key)?.parse().ok()
    }

    /// Adds the counts that are known.
    pub fn set_usage(&mut self, usage: &Usage) -> &mut Self {
        for (name, count) in usage.fields() {
            if let Some(count) = count {
                self.set(name, count);
            }
        }
        self
    }

    /// The counts of one request.
    pub fn usage(&self) -> Usage {
        Usage {
            pt: self.count("pt"),
            ct: self.count("ct"),
            tt: self.count("tt"),
            cct: self.count("cct"),
            cwt: self.count("cwt"),
            rt: self.count("rt"),
        }
    }

    /// Adds a request's counts to the running totals of its chat, and sets the six `*_c` keys to what they then are.
    /// A request without counts sets none. Gives the new totals.
    ///
    /// `before` is what [`totals`] says of the metas above.
    pub fn set_checkpoint(&mut self, before: &Usage, request: &Usage) -> Usage {
        if request.is_empty() {
            return *before;
        }
        let mut after = *before;
        after += *request;
        for (key, count) in TOTALS.iter().zip(after.fields()) {
            self.set(key, count.1.unwrap_or(0));
        }
        after
    }

    /// The running totals, when it has any.
    fn checkpoint(&self) -> Option<Usage> {
        let [pt, ct, tt, cct, cwt, rt] = TOTALS.map(|key| self.count(key));
        let totals = Usage {
            pt,
            ct,
            tt,
            cct,
            cwt,
            rt,
        };
        (!totals.is_empty()).then_some(totals)
    }

    /// All pairs.
    pub fn pairs(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(k, v)| (k.as_str(), v.as_str()))
    }

    /// The line: numbers first, then texts by length, so that free text comes last. A value that holds `=`, quotes, a
    /// backslash, blanks at its ends or a line break is quoted, with `\` before `\` and `"` and line breaks as `\n`,
    /// `\r`. All values are read as texts, so an id of digits needs no quotes.
    pub fn write(&self) -> String {
        let mut pairs: Vec<(usize, String)> = self
            .0
            .iter()
            .map(|(key, value)| {
                let weight = if is_number(value) { 0 } else { value.len() };
                (weight, format!("{key}={}", quote(value)))
            })
            .collect();
        pairs.sort_by_key(|(weight, _)| *weight);
        pairs.into_iter().map(|(_, text)| text).collect::<Vec<_>>().join(" ")
    }

    /// Reads a line. A key is a run without blanks or `=`; its value goes to the next ` key=` or the end; a value that
    /// begins with a quote goes to a closing quote before ` key=` or the end. Text without a pair gives no pairs.
    pub fn read(text: &str) -> Self {
        let mut pairs: Vec<(String, String)> = Vec::new();
        let mut places: HashMap<String, usize> = HashMap::new();
        let mut starts = pair_starts(text, 0);
        while let Some((at, key)) = starts {
            let value_at = at + key.len() + 1;
            let rest = &text[value_at..];
            let (value, end) = match quoted_value(rest) {
                Some((value, length)) => (value, value_at + length),
                None => {
                    let end = pair_starts(text, value_at).map_or(text.len(), |(next, _)| next);
                    (text[value_at..end].trim_end_matches(' ').to_owned(), end)
                }
            };
            match places.get(key) {
                Some(place) => pairs[*place].1 = value,
                None => {
                    places.insert(key.to_owned(), pairs.len());
                    pairs.push((key.to_owned(), value));
                }
            }
            starts = pair_starts(text, end);
        }
        Self(pairs)
    }

    /// The message for a chat file.
    pub fn to_message(&self) -> Message {
        Message::new(Role::Meta, self.write())
    }
}

/// The keys of the running totals, in the order of [`Usage::fields`].
const TOTALS: [&str; 6] = ["pt_c", "ct_c", "tt_c", "cct_c", "cwt_c", "rt_c"];

/// The running totals that a chat has come to: those of its last meta that has any, so that the meta of a job or of an
/// output does not reset them. Without any, nothing is known.
pub fn totals(messages: &[Message]) -> Usage {
    let metas = messages.iter().rev().filter(|m| m.role == Role::Meta);
    metas
        .filter_map(|m| Meta::read(&m.content).checkpoint())
        .next()
        .unwrap_or_default()
}

/// The next `key=` at or after `from` that stands at the beginning or behind a blank.
fn pair_starts(text: &str, from: usize) -> Option<(usize, &str)> {
    let bytes = text.as_bytes();
    let mut at = from;
    while at < text.len() {
        let begins = at == 0 || bytes[at - 1] == b' ' || bytes[at - 1] == b'\n';
        if begins && text.is_char_boundary(at) {
            if let Some(key) = key_at(text, at) {
                return Some((at, key));
            }
            let word = text[at..].find(|c: char| c == '=' || c.is_whitespace());
            at += word.unwrap_or(text.len() - at).max(1);
        } else {
            at += 1;
        }
    }
    None
}

/// The `key=` that stands right at a place.
fn key_at(text: &str, at: usize) -> Option<&str> {
    let rest = text.get(at..)?;
    let length = rest.find(|c: char| c == '=' || c.is_whitespace())?;
    (length > 0 && rest.as_bytes()[length] == b'=').then(|| &rest[..length])
}

/// A quoted value at the beginning of `rest`, unescaped, and its length with the quotes. The closing quote is the
/// first unescaped one that is followed by the end or by ` key=`; quotes that are not are taken as text.
fn quoted_value(rest: &str) -> Option<(String, usize)> {
    let mut characters = rest.char_indices();
    if characters.next()?.1 != '"' {
        return None;
    }
    let mut value = String::new();
    let mut escaped = false;
    for (at, c) in characters {
        match c {
            _ if escaped => {
                value.push(match c {
                    'n' => '\n',
                    'r' => '\r',
                    other => other,
                });
                escaped = false;
            }
            '\\' => escaped = true,
            '"' => {
                let after = &rest[at + 1..];
                if after.is_empty() || (after.starts_with(' ') && key_at(after, 1).is_some()) {
                    return Some((value, at + 1));
                }
                value.push('"');
            }
            _ => value.push(c),
        }
    }
    None
}

fn is_number(value: &str) -> bool {
    let digits = value.strip_prefix('-').unwrap_or(value);
    !digits.is_empty()
        && digits.bytes().all(|b| b.is_ascii_digit() || b == b'.')
        && value.parse::<f64>().is_ok()
        && !digits.starts_with('.')
        && !digits.ends_with('.')
}

fn quote(value: &str) -> String {
    let needs = value.contains(['=', '"', '\\', '\n', '\r']) || value.trim() != value;
    if !needs {
        return value.to_owned();
    }
    let mut out = String::with_capacity(value.len() + 2);
    out.push('"');
    for c in value.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            _ => out.push(c),
        }
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(text: &str) -> Vec<(String, String)> {
        Meta::read(text)
            .pairs()
            .map(|(k, v)| (k.to_owned(), v.to_owned()))
            .collect()
    }

    fn expect(text: &str, expected: &[(&str, &str)]) {
        let expected: Vec<_> = expected
            .iter()
            .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
            .collect();
        assert_eq!(pairs(text), expected, "{text}");
    }

    #[test]
    fn writing_sorts_by_length_and_quotes() {
        let mut meta = Meta::new();
        meta.set("pt", 12).set("ct", 8).set("tt", 20).set("inference_id", "u-1");
        meta.set("reas", "if a=b then c")
            .set("timestamp", "2026-01-02T03:04:05.678Z");
        let line = meta.write();
        assert_eq!(
            line,
            r#"pt=12 ct=8 tt=20 inference_id=u-1 reas="if a=b then c" timestamp=2026-01-02T03:04:05.678Z"#
        );
        let back = Meta::read(&line);
        for (key, value) in meta.pairs() {
            assert_eq!(back.get(key), Some(value));
        }
    }

    #[test]
    fn reading_the_worked_examples() {
        expect(
            "pt=10 ct=5 reas=some text here",
            &[("pt", "10"), ("ct", "5"), ("reas", "some text here")],
        );
        expect("a= b=1", &[("a", ""), ("b", "1")]);
        expect("no pairs", &[]);
        expect(
            r#"pt=1 reas="see ["/p"] now.""#,
            &[("pt", "1"), ("reas", r#"see ["/p"] now."#)],
        );
        expect(r#"reas="open a=1 pt=2"#, &[("reas", "\"open"), ("a", "1"), ("pt", "2")]);
        expect(
            r#"pt=5 reas="say \"hi\" a=b\\c""#,
            &[("pt", "5"), ("reas", r#"say "hi" a=b\c"#)],
        );
    }

    #[test]
    fn a_checkpoint_goes_on_from_the_last_meta_that_has_one() {
        let metas = [
            "pt=10 ct=2 tt=12 pt_c=10 ct_c=2 tt_c=12",
            "job=W/ask/x.chat",
            "bytes=30",
        ];
        let messages: Vec<Message> = metas.iter().map(|m| Message::new(Role::Meta, *m)).collect();
        let before = totals(&messages);
        let request = Usage {
            pt: Some(7),
            tt: Some(8),
            ..Usage::default()
        };
        let mut meta = Meta::new();
        let after = meta.set_usage(&request).set_checkpoint(&before, &request);
        assert_eq!(meta.write(), "pt=7 tt=8 pt_c=17 ct_c=2 tt_c=20 cct_c=0 cwt_c=0 rt_c=0");
        assert_eq!(totals(&[meta.to_message()]).pt, after.pt);
        assert_eq!((after.pt, after.ct, after.tt), (Some(17), Some(2), Some(20)));
    }

    #[test]
    fn a_request_without_counts_has_no_checkpoint() {
        let mut meta = Meta::new();
        let before = Usage {
            pt: Some(3),
            ..Usage::default()
        };
        assert_eq!(meta.set_checkpoint(&before, &Usage::default()), before);
        assert_eq!(meta, Meta::new());
        assert!(totals(&[Message::new(Role::Meta, "pt=1 bytes=3"), Message::user("pt_c=9")]).is_empty());
    }

    #[test]
    fn ids_stay_texts() {
        let mut meta = Meta::new();
        meta.set("provider_response_id", "0123456789012345678901");
        assert_eq!(Meta::read(&meta.write()), meta);
    }

    #[test]
    fn hard_values_round_trip() {
        for value in [
            "a\nb=c\rd",
            "",
            " lead",
            "\"q\"",
            "\\",
            "ñ=号",
            "x\" y=\"z",
            "=",
            "a \\\" b=1",
        ] {
            let mut meta = Meta::new();
            meta.set("k", value).set("z", 7);
            let back = Meta::read(&meta.write());
            assert_eq!(back.get("k"), Some(value), "{}", meta.write());
            assert_eq!(back.get("z"), Some("7"));
        }
    }
}
