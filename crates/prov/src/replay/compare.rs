//! Whether an output is the recorded one.

use decanus_base::digest::sha256_hex;
use decanus_base::text::brief;
use decanus_chat::FunctionCallOutput;
use serde_json::Value;

use super::{Difference, DifferenceKind};

/// Lines of a side that a diff shows.
const SHOWN_LINES: usize = 5;
/// Characters of a line that a diff shows.
const SHOWN_CHARS: usize = 160;

/// Folders that have other paths now than when the outputs were recorded: those of a project that was moved, or in which
/// jobs are run once more.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Moved {
    recorded: Vec<(String, String)>,
    now: Vec<(String, String)>,
}

impl Moved {
    /// In recorded outputs, `old` is called `new`.
    pub fn recorded(&mut self, old: impl Into<String>, new: impl Into<String>) {
        add(&mut self.recorded, old.into(), new.into());
    }

    /// In outputs made now, `from` is called `to`.
    pub fn now(&mut self, from: impl Into<String>, to: impl Into<String>) {
        add(&mut self.now, from.into(), to.into());
    }
}

fn add(pairs: &mut Vec<(String, String)>, from: String, to: String) {
    if !from.is_empty() && from != to {
        pairs.push((from, to));
    }
}

fn renamed(text: &str, pairs: &[(String, String)]) -> String {
    pairs
        .iter()
        .fold(text.to_owned(), |text, (from, to)| text.replace(from, to))
}

/// The first place where two texts differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diff {
    /// The first line that differs, counted from 1.
    pub line: usize,
    /// The lines that were recorded, up to those that both have at their ends; long ones are cut.
    pub recorded: Vec<String>,
    /// The lines that are there now.
    pub now: Vec<String>,
    /// Lines of both sides that are not shown.
    pub left_out: usize,
}

impl Diff {
    /// The diff of two texts that are not the same.
    pub fn of(recorded: &str, now: &str) -> Self {
        let (a, b): (Vec<&str>, Vec<&str>) = (recorded.split('\n').collect(), now.split('\n').collect());
        let same = |pairs: &mut dyn Iterator<Item = (&&str, &&str)>| pairs.take_while(|(a, b)| a == b).count();
        let head = same(&mut a.iter().zip(&b));
        let tail = same(&mut a[head..].iter().rev().zip(b[head..].iter().rev()));
        let (a, b) = (&a[head..a.len() - tail], &b[head..b.len() - tail]);
        // Where two lines begin alike, what follows is of interest.
        let alike = match (a.first(), b.first()) {
            (Some(a), Some(b)) => a.chars().zip(b.chars()).take_while(|(a, b)| a == b).count(),
            _ => 0,
        };
        let show = |lines: &[&str]| -> Vec<String> {
            let shown = lines.iter().take(SHOWN_LINES).enumerate();
            shown
                .map(|(n, line)| around(line, if n == 0 { alike } else { 0 }))
                .collect()
        };
        let left_out = |lines: &[&str]| lines.len().saturating_sub(SHOWN_LINES);
        Self {
            line: head + 1,
            recorded: show(a),
            now: show(b),
            left_out: left_out(a) + left_out(b),
        }
    }
}

/// A line as it is, or of a long one the part around a place.
fn around(line: &str, place: usize) -> String {
    let begin = place.saturating_sub(SHOWN_CHARS / 2);
    if begin == 0 {
        return brief(line, SHOWN_CHARS);
    }
    let rest: String = line.chars().skip(begin).collect();
    format!("…{}", brief(&rest, SHOWN_CHARS))
}

/// An output as the record has it, and the same call's output now, in whole: nothing of it was cut. `None` when they are
/// the same; a long one, of which the record has both ends only, by its length and fingerprint. Texts that are the same
/// JSON value are the same.
pub fn compare(recorded: &FunctionCallOutput, now: &FunctionCallOutput, moved: &Moved) -> Option<Difference> {
    let (then, text) = (
        renamed(&recorded.content, &moved.recorded),
        renamed(&now.content, &moved.now),
    );
    if recorded.error != now.error {
        let said = |output: &FunctionCallOutput| match &output.error {
            Some(class) => format!("failed with {class}"),
            None => "succeeded".to_owned(),
        };
        return Some(Difference {
            kind: DifferenceKind::Error,
            message: format!("it {} then, and {} now", said(recorded), said(now)),
            diff: Some(Diff::of(&then, &text)),
        });
    }
    let is_cut = recorded.truncated || recorded.error.is_some();
    if let Some(difference) = match Cut::read(&then).filter(|_| is_cut) {
        Some(cut) => cut.compare(&text),
        None => whole(&then, &text),
    } {
        return Some(difference);
    }
    (recorded.state != now.state).then(|| {
        let state = |output: &FunctionCallOutput| Value::Object(output.state.clone()).to_string();
        Difference {
            kind: DifferenceKind::State,
            message: "it changes the state in another way".into(),
            diff: Some(Diff::of(&state(recorded), &state(now))),
        }
    })
}

fn whole(then: &str, now: &str) -> Option<Difference> {
    if then == now || same_json(then, now) {
        return None;
    }
    Some(Difference {
        kind: DifferenceKind::Output,
        message: "the output is another one".into(),
        diff: Some(Diff::of(then, now)),
    })
}

/// Whether both are an object or list of JSON, and the same one: the order of members and blanks make no difference.
fn same_json(a: &str, b: &str) -> bool {
    let read = |text: &str| {
        let value: Option<Value> = serde_json::from_str(text).ok();
        value.filter(|v| v.is_object() || v.is_array())
    };
    match (read(a), read(b)) {
        (Some(a), Some(b)) => a == b,
        _ => false,
    }
}

/// What a record has of a long output: both ends, and between them how long it was, and its fingerprint.
struct Cut<'a> {
    head: &'a str,
    characters: usize,
    digest: &'a str,
    tail: &'a str,
}

impl<'a> Cut<'a> {
    fn read(text: &'a str) -> Option<Self> {
        let (head, rest) = text.split_once("\n[… the result has ")?;
        let (characters, rest) = rest.split_once(" characters, SHA-256 ")?;
        let (digest, rest) = rest.split_once("; ")?;
        let (_, tail) = rest.split_once(" …]\n")?;
        Some(Self {
            head,
            characters: characters.parse().ok()?,
            digest,
            tail,
        })
    }

    fn compare(&self, now: &str) -> Option<Difference> {
        let characters = now.chars().count();
        let digest = &sha256_hex(now.as_bytes())[..12];
        if characters == self.characters && digest == self.digest {
            return None;
        }
        let message = format!(
            "the output is another one: {} characters, SHA-256 {} then, and {characters} characters, SHA-256 {digest} now",
            self.characters, self.digest
        );
        let head: String = now.chars().take(self.head.chars().count()).collect();
        let tail_length = self.tail.chars().count().min(characters);
        let tail: String = now.chars().skip(characters - tail_length).collect();
        let diff = if head != self.head {
            Some(Diff::of(self.head, &head))
        } else if tail != self.tail {
            Some(Diff::of(self.tail, &tail)).map(|diff| Diff { line: 0, ..diff })
        } else {
            // It is between the ends, of which the record has nothing.
            None
        };
        Some(Difference {
            kind: DifferenceKind::Output,
            message,
            diff,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn output(content: &str) -> FunctionCallOutput {
        FunctionCallOutput {
            content: content.into(),
            ..FunctionCallOutput::default()
        }
    }

    fn differs(then: &str, now: &str) -> bool {
        compare(&output(then), &output(now), &Moved::default()).is_some()
    }

    #[test]
    fn texts_are_compared_exactly_and_json_by_value() {
        assert!(!differs("42", "42") && differs("42", "42 ") && differs("42", "42.0"));
        assert!(!differs(r#"{"a":1,"b":[2]}"#, r#"{ "b": [2], "a": 1 }"#));
        assert!(differs(r#"{"a":1}"#, r#"{"a":1,"b":null}"#) && differs("[1,2]", "[2,1]"));
        assert!(differs("\"a\"", "a"), "a text is no value");
    }

    #[test]
    fn a_failure_is_told_from_an_output_of_the_same_words() {
        let failed = FunctionCallOutput {
            error: Some("ToolError".into()),
            ..output("no")
        };
        let difference = compare(&failed, &output("no"), &Moved::default()).unwrap();
        assert_eq!(difference.kind, DifferenceKind::Error);
        assert!(
            difference
                .message
                .contains("failed with ToolError then, and succeeded now")
        );
        assert_eq!(compare(&failed, &failed, &Moved::default()), None);
    }

    #[test]
    fn long_outputs_are_compared_by_length_and_fingerprint() {
        let long: String = (0..30_000).map(|n| format!("{n}\n")).collect();
        let cut = |text: &str| {
            let count = text.chars().count();
            let head: String = text.chars().take(6_000).collect();
            let tail: String = text.chars().skip(count - 2_000).collect();
            let digest = &sha256_hex(text.as_bytes())[..12];
            FunctionCallOutput {
                truncated: true,
                ..output(&format!(
                    "{head}\n[… the result has {count} characters, SHA-256 {digest}; the whole is in /gone/x.txt …]\n{tail}"
                ))
            }
        };
        let recorded = cut(&long);
        let with = |now: &str| compare(&recorded, &output(now), &Moved::default());
        assert_eq!(with(&long), None);
        // In the middle, of which the record holds nothing.
        let middle = with(&long.replace("\n15000\n", "\nother\n")).unwrap();
        assert!(
            middle.diff.is_none() && middle.message.contains("SHA-256"),
            "{middle:?}"
        );
        let first = with(&long.replacen("\n7\n", "\nseven\n", 1)).unwrap().diff.unwrap();
        assert_eq!(
            (first.line, first.recorded[0].as_str(), first.now[0].as_str()),
            (8, "7", "seven")
        );
        assert!(with("short").is_some());
        // The same words in an output that was not cut are its text.
        let plain = output(&recorded.content);
        assert!(compare(&plain, &output(&long), &Moved::default()).is_some());
    }

    #[test]
    fn moved_folders_make_no_difference() {
        let mut moved = Moved::default();
        moved.recorded("/old/p", "/new/p");
        moved.now("/new/p/.decanus/replay/x", "/new/p/.decanus/jobs");
        let then = output("see /old/p/.decanus/jobs/W/t/a.txt");
        let now = output("see /new/p/.decanus/replay/x/W/t/a.txt");
        assert_eq!(compare(&then, &now, &moved), None);
        assert!(compare(&then, &now, &Moved::default()).is_some());
    }

    #[test]
    fn a_diff_shows_the_first_place_and_little_more() {
        let diff = Diff::of("a\nb\nc\nd", "a\nx\ny\nd");
        assert_eq!((diff.line, diff.left_out), (2, 0));
        assert_eq!(
            (diff.recorded, diff.now),
            (vec!["b".into(), "c".into()], vec!["x".into(), "y".into()])
        );
        let (long, other) = (format!("{}1", "x".repeat(500)), format!("{}2", "x".repeat(500)));
        let diff = Diff::of(&long, &other);
        assert!(
            diff.recorded[0].starts_with('…') && diff.recorded[0].ends_with('1'),
            "{diff:?}"
        );
        assert!(diff.now[0].ends_with('2') && diff.now[0].chars().count() < 200);
        let many: String = (0..100).map(|n| format!("{n}\n")).collect();
        let diff = Diff::of(&many, "");
        assert_eq!((diff.line, diff.recorded.len(), diff.left_out), (1, 5, 95));
        // One that is the other's beginning.
        let diff = Diff::of("a", "a\nb");
        assert_eq!((diff.line, diff.recorded.len(), diff.now), (2, 0, vec!["b".to_owned()]));
    }
}
