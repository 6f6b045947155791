//! Characters that a server cuts in two.
//!
//! JSON writes a character beyond the first 65536 as two escapes (`\ud83d\ude00`), and servers that cut their deltas without
//! looking send each in an event of its own. Neither half is a text, so an event that ends within such a character waits
//! for the next one. A half that finds no other half becomes U+FFFD.

use std::borrow::Cow;

use crate::sse::Event;

/// The length of an escape: `\uXXXX`.
const ESCAPE: usize = 6;

/// What stands for a character that is lost.
const LOST: &str = r"\ufffd";

/// Puts the halves of events together.
#[derive(Debug, Default)]
pub(crate) struct Halves {
    /// The last event, which holds a first half that waits for the second.
    held: Option<Event>,
}

impl Halves {
    /// Takes events and leaves those that are whole.
    pub fn push(&mut self, events: &mut Vec<Event>) {
        if self.held.is_none() && !events.iter().any(|event| may_be_cut(&event.data)) {
            return;
        }
        for mut event in std::mem::take(events) {
            if let Some(mut held) = self.held.take() {
                let first = lone(&held.data).last().copied();
                let second = lone(&event.data).first().copied();
                if let (Some((from, true)), Some((to, false))) = (first, second) {
                    let half = held.data[from..from + ESCAPE].to_owned();
                    held.data.replace_range(from..from + ESCAPE, "");
                    event.data.insert_str(to, &half);
                }
                events.push(repaired(held));
            }
            match lone(&event.data).last() {
                Some((_, true)) => self.held = Some(event),
                _ => events.push(repaired(event)),
            }
        }
    }

    /// The stream is over: the event that still waits.
    pub fn finish(&mut self) -> Option<Event> {
        self.held.take().map(repaired)
    }
}

fn repaired(mut event: Event) -> Event {
    if let Cow::Owned(data) = repair(&event.data) {
        event.data = data;
    }
    event
}

/// The JSON text with U+FFFD for every half without the other.
pub(crate) fn repair(json: &str) -> Cow<'_, str> {
    let lone = lone(json);
    if lone.is_empty() {
        return Cow::Borrowed(json);
    }
    let mut out = json.to_owned();
    for (at, _) in lone {
        out.replace_range(at..at + ESCAPE, LOST);
    }
    Cow::Owned(out)
}

fn may_be_cut(json: &str) -> bool {
    json.contains(r"\ud") || json.contains(r"\uD")
}

/// The escapes that are a half without the other: where they begin, and whether they are first halves.
fn lone(json: &str) -> Vec<(usize, bool)> {
    let mut lone = Vec::new();
    if !may_be_cut(json) {
        return lone;
    }
    let mut at = 0;
    while let Some(found) = json.get(at..).and_then(|rest| rest.find('\\')) {
        at += found;
        match escape(json, at) {
            Some(0xd800..=0xdbff) if matches!(escape(json, at + ESCAPE), Some(0xdc00..=0xdfff)) => at += 2 * ESCAPE,
            Some(code @ 0xd800..=0xdfff) => {
                lone.push((at, code < 0xdc00));
                at += ESCAPE;
            }
            // Whatever is escaped, a backslash among it, begins no escape itself.
            _ => at += 1 + json[at + 1..].chars().next().map_or(0, char::len_utf8),
        }
    }
    lone
}

/// The code of the escape that begins here, if one does.
fn escape(json: &str, at: usize) -> Option<u16> {
    let digits = json.get(at..at + ESCAPE)?.strip_prefix(r"\u")?;
    u16::from_str_radix(digits, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn joined(pieces: &[&str]) -> Vec<String> {
        let mut halves = Halves::default();
        let mut out = Vec::new();
        for piece in pieces {
            let mut events = vec![Event {
                name: String::new(),
                data: (*piece).to_owned(),
            }];
            halves.push(&mut events);
            out.extend(events);
        }
        out.extend(halves.finish());
        out.into_iter().map(|event| event.data).collect()
    }

    #[test]
    fn halves_find_each_other_or_are_lost() {
        let (x, y) = (r#""x\ud83d""#, r#""\uDE00y""#);
        assert_eq!(joined(&[x, y]), [r#""x""#, r#""\ud83d\uDE00y""#]);
        assert_eq!(joined(&[x, r#""y""#]), [r#""x\ufffd""#, r#""y""#]);
        assert_eq!(joined(&[x]), [r#""x\ufffd""#]);
        assert_eq!(joined(&[y]), [r#""\ufffdy""#]);
        let whole = r#""\ud83d\ude00\n\u00f1""#;
        assert_eq!(joined(&[whole]), [whole]);
        // The text of an argument is put together before it is read.
        let inner = r#""{\"x\": \"\\ud83d""#;
        assert_eq!(joined(&[inner]), [inner]);
        for odd in [r"\", r#""\u"#, r#""\ud83"#, r"\ñ\ud8ñ"] {
            assert_eq!(joined(&[odd]), [odd]);
        }
    }
}
