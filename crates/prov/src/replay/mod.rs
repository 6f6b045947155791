//! Making the calls of a chat again: what is reported of each, and how outputs are compared.
//!
//! The calls themselves are made by whoever has the tools (`Decanus::replay` of the facade). Here is what that comes to:
//! a [`Report`] of all recorded calls, and [`compare()`].

mod compare;
mod report;

use std::path::PathBuf;

pub use compare::{Diff, Moved, compare};
pub use report::Counts;

use crate::calls::ToolPair;
use crate::graph::Problem;

/// What is wrong with a call that was made again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DifferenceKind {
    /// The output is another one.
    Output,
    /// It failed and does not fail now, or the other way round, or it fails in another way.
    Error,
    /// It changes the state of the session in another way.
    State,
    /// What it stands for is another job now: the task, its inputs or what it depends on have changed.
    Job,
    /// There is no such tool any more, or more than one.
    MissingTool,
}

impl DifferenceKind {
    /// The stable word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Output => "output",
            Self::Error => "error",
            Self::State => "state",
            Self::Job => "job",
            Self::MissingTool => "missing_tool",
        }
    }
}

/// How a call differs from what was recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// In what.
    pub kind: DifferenceKind,
    /// A line for people.
    pub message: String,
    /// The first place where the texts differ.
    pub diff: Option<Diff>,
}

impl Difference {
    /// One without texts to compare.
    pub fn new(kind: DifferenceKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
            diff: None,
        }
    }
}

/// What came of a recorded call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It was made again, and its output is the recorded one.
    Same,
    /// It was made again or could not be, and is not what was recorded.
    Differs(Difference),
    /// It was not made again; why.
    RecordedOnly(String),
}

impl Outcome {
    /// The stable word for it.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Same => "same",
            Self::Differs(_) => "differs",
            Self::RecordedOnly(_) => "recorded_only",
        }
    }
}

/// A recorded call, and what came of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replayed {
    /// The chat.
    pub file: PathBuf,
    /// The line of the call in it.
    pub line: usize,
    /// The call's id.
    pub id: String,
    /// The tool's name, as it was called.
    pub tool: String,
    /// What came of it.
    pub outcome: Outcome,
    /// The job that the record names.
    pub recorded_job: Option<String>,
    /// The job that answers the call now.
    pub job: Option<PathBuf>,
    /// What else should be known, although the outputs are the same.
    pub note: Option<String>,
}

/// What making the calls of a chat again has come to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// The chats whose calls were made again: the one that was named, then those of agents that were asked.
    pub chats: Vec<PathBuf>,
    /// All recorded calls, in the order of the chats and of their lines.
    pub calls: Vec<Replayed>,
    /// What could not be read or found.
    pub problems: Vec<Problem>,
}

/// Why a call is not made again whatever its tool: an output by which nothing has run. `None` when it may be.
pub fn not_repeatable(pair: &ToolPair) -> Option<&'static str> {
    if pair.by_provider {
        return Some("the provider made this call itself");
    }
    let Some(output) = &pair.output else {
        return Some("it has no output");
    };
    if !pair.receipts.is_empty() || pair.chat.is_some() {
        return Some("an agent was asked; the calls in its own chat are made again");
    }
    let class = output.error.as_deref()?;
    // An output that is given in the place of running says when it was given, but not when the call began.
    let only_answered = output.timestamp.is_some() && output.start_timestamp.is_none();
    if only_answered || ["Interrupted", "RepeatedCall"].contains(&class) {
        return Some("it was not run, or not to its end");
    }
    is_refused(class, &output.content).then_some("it was refused")
}

/// Whether an error says that the user or a rule refused the call, so that nothing has run.
pub fn is_refused(class: &str, content: &str) -> bool {
    let begins = [
        "The user refused this call",
        "This call was refused",
        "This call needs the user's approval",
    ];
    class == "ToolError" && begins.iter().any(|words| content.starts_with(words))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::calls::tool_pairs;
    use decanus_chat::parse;

    fn why(output: &str) -> Option<&'static str> {
        let text = format!("function_call: {{\"name\":\"f\",\"id\":\"a\"}}\n{output}\n");
        not_repeatable(&tool_pairs(&parse(&text).messages).0[0])
    }

    #[test]
    fn what_has_not_run_is_not_made_again() {
        assert_eq!(why(""), Some("it has no output"));
        assert_eq!(why(r#"function_call_output: {"id":"a","content":"1"}"#), None);
        let failed = r#""content":"x","error":"error","error_class""#;
        for (record, repeatable) in [
            (format!(r#"{failed}:"ToolError""#), true),
            (
                format!(r#"{failed}:"ToolError","start_timestamp":"t","timestamp":"t""#),
                true,
            ),
            (format!(r#"{failed}:"ToolError","timestamp":"t""#), false),
            (
                format!(r#"{failed}:"Interrupted","start_timestamp":"t","timestamp":"t""#),
                false,
            ),
            (format!(r#"{failed}:"RepeatedCall""#), false),
            (
                r#""content":"The user refused this call; it did not run.","error_class":"ToolError""#.into(),
                false,
            ),
        ] {
            let output = format!(r#"function_call_output: {{"id":"a",{record}}}"#);
            assert_eq!(why(&output).is_none(), repeatable, "{output}");
        }
        let receipt =
            r#"function_call_output: {"id":"a","content":"x","agent_meta":[{"role":"meta","content":"pt=1"}]}"#;
        assert!(why(receipt).unwrap().starts_with("an agent"));
    }
}
