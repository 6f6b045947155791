//! The report of a replay, for people and for machines.

use std::path::Path;

use serde_json::{Map, Value, json};

use super::{Diff, Difference, Outcome, Replayed, Report};
use crate::tree::safe;

/// How many calls came out how.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Those whose output is the recorded one.
    pub same: usize,
    /// Those that differ.
    pub differs: usize,
    /// Those that were not made again.
    pub recorded_only: usize,
}

impl Report {
    /// The calls that differ, in order, each with what differs.
    pub fn differences(&self) -> impl Iterator<Item = (&Replayed, &Difference)> {
        self.calls.iter().filter_map(|call| match &call.outcome {
            Outcome::Differs(difference) => Some((call, difference)),
            _ => None,
        })
    }

    /// How many calls came out how.
    pub fn counts(&self) -> Counts {
        let mut counts = Counts::default();
        for call in &self.calls {
            match call.outcome {
                Outcome::Same => counts.same += 1,
                Outcome::Differs(_) => counts.differs += 1,
                Outcome::RecordedOnly(_) => counts.recorded_only += 1,
            }
        }
        counts
    }

    /// `2 calls: 1 same, 1 differs, 0 recorded only`.
    pub fn summary(&self) -> String {
        let counts = self.counts();
        let plural = |n: usize, one: &str, more: &str| format!("{n} {}", if n == 1 { one } else { more });
        let chats = match self.chats.len() {
            0 | 1 => String::new(),
            n => format!(" in {n} chats"),
        };
        format!(
            "{}{chats}: {} same, {}, {} recorded only",
            plural(self.calls.len(), "call", "calls"),
            counts.same,
            plural(counts.differs, "differs", "differ"),
            counts.recorded_only
        )
    }

    /// A line for each call, below one that differs what is recorded (`-`) and what is there now (`+`), then the summary.
    /// Paths are relative to `root` where they are inside. Every line is safe to print.
    pub fn to_text(&self, root: &Path) -> String {
        let mut out = String::new();
        let mut line = |text: String| {
            out.push_str(&safe(&text));
            out.push('\n');
        };
        for call in &self.calls {
            let file = call.file.strip_prefix(root).unwrap_or(&call.file);
            let place = format!("{}:{}  {} {}", file.display(), call.line, call.tool, call.id);
            match &call.outcome {
                Outcome::Same => {
                    let note = call.note.as_ref().map(|n| format!("  ({n})")).unwrap_or_default();
                    line(format!("{place}  same{note}"));
                }
                Outcome::RecordedOnly(why) => line(format!("{place}  recorded only: {why}")),
                Outcome::Differs(difference) => {
                    line(format!("{place}  differs: {}", difference.message));
                    if let Some(note) = &call.note {
                        line(format!("  ({note})"));
                    }
                    if let Some(diff) = &difference.diff {
                        diff.recorded.iter().for_each(|text| line(format!("  - {text}")));
                        diff.now.iter().for_each(|text| line(format!("  + {text}")));
                        if diff.left_out > 0 {
                            line(format!("  … {} more lines", diff.left_out));
                        }
                    }
                }
            }
        }
        line(self.summary());
        out
    }

    /// `{"chat", "status", "chats", "counts", "calls", "differences", "problems"}`; `status` is `same` or `differs`.
    pub fn to_json(&self) -> Map<String, Value> {
        let counts = self.counts();
        let text = |path: &Path| Value::from(path.to_string_lossy());
        let problem = |p: &crate::Problem| {
            let mut map = Map::new();
            map.insert("file".into(), text(&p.file));
            if let Some(line) = p.line {
                map.insert("line".into(), line.into());
            }
            map.insert("message".into(), p.message.clone().into());
            Value::Object(map)
        };
        let mut object = Map::new();
        object.insert("chat".into(), self.chats.first().map_or(Value::Null, |c| text(c)));
        let status = if counts.differs == 0 { "same" } else { "differs" };
        object.insert("status".into(), status.into());
        object.insert("chats".into(), self.chats.iter().map(|c| text(c)).collect());
        object.insert(
            "counts".into(),
            json!({"same": counts.same, "differs": counts.differs, "recorded_only": counts.recorded_only}),
        );
        object.insert("calls".into(), self.calls.iter().map(call).collect());
        object.insert("differences".into(), self.differences().map(|(c, _)| call(c)).collect());
        object.insert("problems".into(), self.problems.iter().map(problem).collect());
        object
    }
}

fn call(call: &Replayed) -> Value {
    let mut map = Map::new();
    map.insert("file".into(), call.file.to_string_lossy().into());
    map.insert("line".into(), call.line.into());
    map.insert("id".into(), call.id.clone().into());
    map.insert("tool".into(), call.tool.clone().into());
    map.insert("outcome".into(), call.outcome.as_str().into());
    match &call.outcome {
        Outcome::Same => {}
        Outcome::RecordedOnly(why) => {
            map.insert("reason".into(), why.clone().into());
        }
        Outcome::Differs(difference) => {
            map.insert("kind".into(), difference.kind.as_str().into());
            map.insert("message".into(), difference.message.clone().into());
            if let Some(diff) = &difference.diff {
                map.insert("diff".into(), diff_value(diff));
            }
        }
    }
    let job = call.job.as_ref().map(|p| p.to_string_lossy().into_owned());
    for (name, value) in [
        ("job", job),
        ("recorded_job", call.recorded_job.clone()),
        ("note", call.note.clone()),
    ] {
        if let Some(value) = value {
            map.insert(name.into(), value.into());
        }
    }
    Value::Object(map)
}

fn diff_value(diff: &Diff) -> Value {
    json!({"line": diff.line, "recorded": diff.recorded, "now": diff.now, "left_out": diff.left_out})
}
