//! What a chat asks for, found out without doing any of it.

use std::collections::HashSet;

use serde_json::{Map, Value};

use crate::call::{FunctionCall, FunctionCallOutput};
use crate::message::{Message, Role};
use crate::parse::Problem;

/// A chat, read.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// What the model is to see: system, user, assistant, calls and outputs.
    pub messages: Vec<Message>,
    /// The endpoint that the chat names.
    pub endpoint: Option<String>,
    /// The model that the chat names.
    pub model: Option<String>,
    /// Options in force at the end of the chat: texts, as written.
    pub options: Map<String, Value>,
    /// Tools that the chat declares: spec (`calculator`, `Weather/compare`) and line.
    pub tools: Vec<(String, usize)>,
    /// What looks wrong. Messages of the errors were left out.
    pub problems: Vec<Problem>,
}

impl Plan {
    /// The calls that have no output yet, in order.
    pub fn pending_calls(&self) -> Vec<FunctionCall> {
        pending(&self.messages)
    }
}

/// The calls among some messages that have no output, in order.
pub fn pending(messages: &[Message]) -> Vec<FunctionCall> {
    let mut open: Vec<FunctionCall> = Vec::new();
    for message in messages {
        match message.role {
            Role::FunctionCall => open.extend(FunctionCall::from_message(message).ok()),
            Role::FunctionCallOutput => {
                if let Ok(output) = FunctionCallOutput::from_message(message)
                    && let Some(at) = open.iter().position(|c| c.id == output.id)
                {
                    open.remove(at);
                }
            }
            _ => {}
        }
    }
    open
}

/// Sorts the messages of a chat into what is sent and what steers.
///
/// `endpoint` and `model` hold until another one; an `option` holds until the next answer. Bad records are named with
/// their line and left out, and with them what belongs to them.
pub fn plan(messages: &[Message]) -> Plan {
    let mut plan = Plan::default();
    let mut calls: HashSet<String> = HashSet::new();
    for message in messages {
        let line = message.line.unwrap_or(0);
        let content = message.content.trim();
        match message.role {
            Role::System | Role::User => plan.messages.push(message.clone()),
            Role::Assistant => {
                plan.options.clear();
                plan.messages.push(message.clone());
            }
            Role::FunctionCall => match FunctionCall::from_message(message) {
                Ok(call) => {
                    calls.insert(call.id);
                    plan.messages.push(message.clone());
                }
                Err(e) => plan.problems.push(Problem::error(line, e.to_string())),
            },
            Role::FunctionCallOutput => match FunctionCallOutput::from_message(message) {
                Ok(output) if calls.remove(&output.id) => plan.messages.push(message.clone()),
                Ok(output) => {
                    let text = format!("function_call_output `{}` answers no call; it is left out", output.id);
                    plan.problems.push(Problem::error(line, text));
                }
                Err(e) => plan.problems.push(Problem::error(line, e.to_string())),
            },
            Role::Meta => {}
            Role::Endpoint | Role::Model if content.is_empty() || content.contains(char::is_whitespace) => {
                plan.problems
                    .push(Problem::error(line, format!("{} takes one name", message.role)));
            }
            Role::Endpoint => plan.endpoint = Some(content.to_owned()),
            Role::Model => plan.model = Some(content.to_owned()),
            Role::Option => match content.split_once(char::is_whitespace) {
                Some((key, value)) => {
                    plan.options.insert(key.to_owned(), value.trim().into());
                }
                None => {
                    let text = format!("option takes a name and a value, found `{content}`");
                    plan.problems.push(Problem::error(line, text));
                }
            },
            Role::Tool => match content.split_whitespace().collect::<Vec<_>>().as_slice() {
                [spec] => plan.tools.push(((*spec).to_owned(), line)),
                [workflow, task] => plan.tools.push((format!("{workflow}/{task}"), line)),
                [] => plan
                    .problems
                    .push(Problem::error(line, "tool takes the name of a tool or workflow")),
                [..] => {
                    let text = "tool with a list of inputs is not available in this build";
                    plan.problems.push(Problem::error(line, text));
                }
            },
            other => {
                let text = format!("{other} is not available in this build");
                plan.problems.push(Problem::error(line, text));
            }
        }
    }
    plan
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse::parse;

    fn read(text: &str) -> Plan {
        plan(&parse(text).messages)
    }

    #[test]
    fn options_last_until_the_next_answer() {
        let plan = read("endpoint: e\noption: k1 v1\nassistant: ok\noption: k2 a b\nmodel: m\nuser: go\n");
        assert_eq!(plan.endpoint.as_deref(), Some("e"));
        assert_eq!(plan.model.as_deref(), Some("m"));
        assert_eq!(Value::Object(plan.options), serde_json::json!({"k2": "a b"}));
        assert_eq!(plan.messages, [Message::assistant("ok"), Message::user("go")]);
    }

    #[test]
    fn bad_records_are_named_and_left_out() {
        let plan = read(concat!(
            "user: a\n",
            "function_call: {oops\n",
            "function_call_output: {\"id\":\"c1\",\"content\":\"x\"}\n",
            "tool: W a b\nendpoint: two words\noption: alone\n",
        ));
        assert_eq!(plan.messages, [Message::user("a")]);
        assert_eq!(
            plan.problems.iter().map(|p| p.line).collect::<Vec<_>>(),
            [2, 3, 4, 5, 6]
        );
        assert!(plan.problems.iter().all(|p| p.error));
    }

    #[test]
    fn calls_without_an_output_are_pending() {
        let plan = read(concat!(
            "function_call: {\"name\":\"f\",\"arguments\":{},\"id\":\"a\"}\n",
            "function_call: {\"name\":\"g\",\"arguments\":{},\"id\":\"b\"}\n",
            "function_call_output: {\"id\":\"a\",\"content\":\"1\"}\n",
        ));
        assert_eq!(
            plan.pending_calls().iter().map(|c| c.name.as_str()).collect::<Vec<_>>(),
            ["g"]
        );
    }

    #[test]
    fn tools_by_workflow_and_task() {
        let plan = read("tool: calculator\ntool: Weather compare\n");
        assert_eq!(
            plan.tools,
            [("calculator".to_owned(), 1), ("Weather/compare".to_owned(), 2)]
        );
    }
}
