//! Calls with their outputs.

use std::collections::{HashMap, VecDeque};

use decanus_chat::parse::Problem;
use decanus_chat::{FunctionCall, FunctionCallOutput, Message, Role};
use serde_json::Value;

use crate::receipts::{Receipt, receipts};

/// What became of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallStatus {
    /// Its output says nothing else.
    Ok,
    /// Its output is an error.
    Failed,
    /// It has no output.
    Unknown,
}

impl CallStatus {
    /// The word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Failed => "failed",
            Self::Unknown => "unknown",
        }
    }
}

/// A call and its output.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolPair {
    /// The call.
    pub call: FunctionCall,
    /// Where the call is among the messages, counted from 0.
    pub index: usize,
    /// Its output, when there is one.
    pub output: Option<FunctionCallOutput>,
    /// What became of it.
    pub status: CallStatus,
    /// What its output says of the agent that was asked for it.
    pub receipts: Vec<Receipt>,
    /// The chat of that agent, where the output itself names one.
    pub chat: Option<String>,
    /// Whether the provider made the call itself.
    pub by_provider: bool,
}

/// The calls of a chat, each joined to the first output of its id that no earlier call has taken. Records that can't be
/// read, and outputs that answer no call, are problems.
pub fn tool_pairs(messages: &[Message]) -> (Vec<ToolPair>, Vec<Problem>) {
    let mut pairs: Vec<ToolPair> = Vec::new();
    let mut problems = Vec::new();
    let mut open: HashMap<String, VecDeque<usize>> = HashMap::new();
    for (index, message) in messages.iter().enumerate() {
        let line = message.line.unwrap_or(0);
        match message.role {
            Role::FunctionCall | Role::McpCall => match FunctionCall::from_message(message) {
                Ok(call) => {
                    open.entry(call.id.clone()).or_default().push_back(pairs.len());
                    pairs.push(ToolPair {
                        call,
                        index,
                        output: None,
                        status: own_status(message),
                        receipts: Vec::new(),
                        chat: None,
                        by_provider: message.role == Role::McpCall,
                    });
                }
                Err(e) => problems.push(Problem::error(line, e.to_string())),
            },
            Role::FunctionCallOutput => match FunctionCallOutput::from_message(message) {
                Ok(output) => match open.get_mut(&output.id).and_then(VecDeque::pop_front) {
                    Some(at) => {
                        let record: Value = serde_json::from_str(&message.content).unwrap_or_default();
                        let (found, bad) = receipts(&record);
                        problems.extend(bad.into_iter().map(|text| Problem::warning(line, text)));
                        let pair = &mut pairs[at];
                        pair.receipts = found;
                        pair.chat = record.get("chat").and_then(Value::as_str).map(str::to_owned);
                        pair.status = status(&output, &record);
                        pair.output = Some(output);
                    }
                    None => {
                        let text = format!("function_call_output `{}` answers no call", output.id);
                        problems.push(Problem::error(line, text));
                    }
                },
                Err(e) => problems.push(Problem::error(line, e.to_string())),
            },
            _ => {}
        }
    }
    (pairs, problems)
}

/// What a call says of itself: one that a provider made holds its result.
fn own_status(message: &Message) -> CallStatus {
    let record: Value = serde_json::from_str(&message.content).unwrap_or_default();
    let has = |name: &str| record.get(name).is_some_and(|v| !v.is_null());
    match message.role {
        Role::McpCall if has("error") => CallStatus::Failed,
        Role::McpCall if has("output") => CallStatus::Ok,
        _ => CallStatus::Unknown,
    }
}

/// An output fails by its own word, or by that of other writers: a result with `exception`, or with an `exit_status`
/// that is not 0.
fn status(output: &FunctionCallOutput, record: &Value) -> CallStatus {
    let content: Value = serde_json::from_str(&output.content).unwrap_or_default();
    let failed = [record, &content].into_iter().any(|v| {
        let exit = v.get("exit_status");
        v.get("exception").is_some() || exit.is_some_and(|code| code.as_i64() != Some(0))
    });
    if failed || output.error.is_some() {
        CallStatus::Failed
    } else {
        CallStatus::Ok
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use decanus_chat::parse;

    fn statuses(text: &str) -> Vec<&'static str> {
        let (pairs, _) = tool_pairs(&parse(text).messages);
        pairs.iter().map(|p| p.status.as_str()).collect()
    }

    #[test]
    fn the_status_is_what_the_output_says() {
        let call = r#"function_call: {"name":"f","id":"a"}"#;
        for (output, expected) in [
            ("", "unknown"),
            (r#"function_call_output: {"id":"a","content":"1"}"#, "ok"),
            (
                r#"function_call_output: {"call_id":"a","content":"text with exception"}"#,
                "ok",
            ),
            (
                r#"function_call_output: {"id":"a","content":{"exception":"no"}}"#,
                "failed",
            ),
            (r#"function_call_output: {"id":"a","content":{"exit_status":0}}"#, "ok"),
            (
                r#"function_call_output: {"id":"a","content":{"exit_status":2}}"#,
                "failed",
            ),
            (
                r#"function_call_output: {"tool_call_id":"a","content":"x","error":"error"}"#,
                "failed",
            ),
        ] {
            assert_eq!(statuses(&format!("{call}\n{output}\n")), [expected], "{output}");
        }
        assert_eq!(
            statuses("mcp_call: {\"name\":\"f\",\"id\":\"m\",\"output\":\"x\"}\n"),
            ["ok"]
        );
    }

    #[test]
    fn one_output_answers_one_call() {
        let text = concat!(
            "function_call: {\"name\":\"f\",\"id\":\"a\"}\n",
            "function_call: {\"name\":\"g\",\"id\":\"a\"}\n",
            "function_call_output: {\"id\":\"a\",\"content\":\"1\"}\n",
        );
        assert_eq!(statuses(text), ["ok", "unknown"]);
    }

    #[test]
    fn bad_records_are_named_with_their_line() {
        let text = "function_call: {oops\nfunction_call_output: {\"id\":\"z\"}\nfunction_call_output: 1\n";
        let (pairs, problems) = tool_pairs(&parse(text).messages);
        assert!(pairs.is_empty());
        assert_eq!(problems.iter().map(|p| p.line).collect::<Vec<_>>(), [1, 2, 3]);
    }
}
