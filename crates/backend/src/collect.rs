//! From deltas to a whole response.

use std::collections::HashSet;

use decanus_chat::{Arguments, FunctionCall, Usage};
use serde_json::Value;

use crate::conversation::{Delta, FinishReason};

/// A whole answer, or as much of it as arrived.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Response {
    /// The text.
    pub text: String,
    /// The reasoning, where the provider shows it.
    pub reasoning: String,
    /// Opaque parts, for the same backend to see again.
    pub parts: Vec<Value>,
    /// The tool calls, with ids that are unique within the answer.
    pub calls: Vec<FunctionCall>,
    /// Token counts.
    pub usage: Usage,
    /// The id of the request that was answered, if it was decided already.
    pub inference_id: Option<String>,
    /// Whether the answer comes from the cache.
    pub stored: bool,
    /// The provider's id.
    pub id: Option<String>,
    /// The model that answered.
    pub model: Option<String>,
    /// How choices were made.
    pub explain: Vec<Value>,
    /// Whether the text states a tool's result by a template.
    pub stated_by_template: bool,
    /// Why it ended; `None` when it did not end properly.
    pub finish: Option<FinishReason>,
}

#[derive(Debug, Default)]
struct PartialCall {
    index: Option<u64>,
    id: String,
    name: String,
    arguments: String,
}

/// Puts deltas together. Calls are told apart by their index; without one, a new id or a new name opens a call and
/// anything else continues the last. An empty answer keeps what it has when the stream breaks: [`Collector::finish`]
/// can be called at any time.
#[derive(Debug, Default)]
pub struct Collector {
    response: Response,
    calls: Vec<PartialCall>,
}

impl Collector {
    /// Nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes one delta.
    pub fn push(&mut self, delta: &Delta) {
        let r = &mut self.response;
        match delta {
            Delta::Text(t) => r.text.push_str(t),
            Delta::Reasoning(t) => r.reasoning.push_str(t),
            Delta::Call {
                index,
                id,
                name,
                arguments,
            } => {
                self.push_call(*index, id.as_deref(), name.as_deref(), arguments);
            }
            Delta::Inference { id, stored } => {
                r.inference_id = Some(id.clone());
                r.stored = *stored;
            }
            Delta::Part(part) => r.parts.push(part.clone()),
            Delta::Usage(u) => r.usage = *u,
            Delta::ResponseId(id) => r.id = Some(id.clone()),
            Delta::Model(m) => r.model = Some(m.clone()),
            Delta::Explain(v) => r.explain.push(v.clone()),
            Delta::Warning(_) | Delta::Endpoint(_) => {}
            Delta::StatedByTemplate => r.stated_by_template = true,
            Delta::Finish(reason) => r.finish = Some(reason.clone()),
        }
    }

    fn push_call(&mut self, index: Option<u64>, id: Option<&str>, name: Option<&str>, arguments: &str) {
        let id = id.filter(|i| !i.is_empty());
        let name = name.filter(|n| !n.is_empty());
        let at = match index {
            Some(_) => self.calls.iter().position(|c| c.index == index),
            None => match self.calls.last() {
                Some(last) if id.is_none_or(|i| i == last.id) && (name.is_none() || last.name.is_empty()) => {
                    Some(self.calls.len() - 1)
                }
                _ => None,
            },
        };
        let at = at.unwrap_or_else(|| {
            self.calls.push(PartialCall {
                index,
                ..PartialCall::default()
            });
            self.calls.len() - 1
        });
        let call = &mut self.calls[at];
        if let Some(id) = id.filter(|_| call.id.is_empty()) {
            call.id = id.to_owned();
        }
        // Some servers repeat the whole name on every delta; it is never a fragment.
        if let Some(name) = name.filter(|_| call.name.is_empty()) {
            call.name = name.to_owned();
        }
        call.arguments.push_str(arguments);
    }

    /// The response so far. Calls come in the order of their index; empty ids are made up and repeated ones get a
    /// suffix, the same each time for the same answer.
    pub fn finish(mut self) -> Response {
        self.calls.sort_by_key(|c| c.index);
        let mut seen = HashSet::new();
        for (position, call) in self.calls.into_iter().enumerate() {
            let base = if call.id.is_empty() {
                format!("call_{}", position + 1)
            } else {
                call.id
            };
            let mut id = base.clone();
            let mut n = 1;
            while !seen.insert(id.clone()) {
                n += 1;
                id = format!("{base}_{n}");
            }
            let arguments = Arguments::from_text(&call.arguments);
            self.response.calls.push(FunctionCall {
                id,
                name: call.name,
                arguments,
            });
        }
        self.response
    }

    /// Whether any text or call has arrived, so that starting over would repeat something.
    pub fn has_output(&self) -> bool {
        !self.response.text.is_empty() || !self.calls.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(index: Option<u64>, id: &str, name: &str, arguments: &str) -> Delta {
        let some = |s: &str| (!s.is_empty()).then(|| s.to_owned());
        Delta::Call {
            index,
            id: some(id),
            name: some(name),
            arguments: arguments.into(),
        }
    }

    fn collect(deltas: &[Delta]) -> Vec<(String, String, String)> {
        let mut collector = Collector::new();
        deltas.iter().for_each(|d| collector.push(d));
        collector
            .finish()
            .calls
            .into_iter()
            .map(|c| (c.id, c.name, c.arguments.to_text()))
            .collect()
    }

    fn is(id: &str, name: &str, arguments: &str) -> (String, String, String) {
        (id.into(), name.into(), arguments.into())
    }

    #[test]
    fn interleaved_calls_are_routed_by_index() {
        let calls = collect(&[
            call(Some(1), "b", "g", ""),
            call(Some(0), "a", "f", "{\"x\""),
            call(Some(1), "", "g", "{\"y\":2}"),
            call(Some(0), "", "", ":1}"),
        ]);
        assert_eq!(calls, [is("a", "f", "{\"x\":1}"), is("b", "g", "{\"y\":2}")]);
    }

    #[test]
    fn without_an_index_a_new_id_opens_a_call() {
        let calls = collect(&[
            call(None, "a", "f", "{\"x\""),
            call(None, "", "", ":1}"),
            call(None, "b", "f", "{}"),
            call(None, "b", "", ""),
        ]);
        assert_eq!(calls, [is("a", "f", "{\"x\":1}"), is("b", "f", "{}")]);
        // Neither ids nor indices: a name opens a call.
        assert_eq!(
            collect(&[call(None, "", "f", "{}"), call(None, "", "g", "{}")]).len(),
            2
        );
    }

    #[test]
    fn ids_are_unique_and_stable() {
        let calls = collect(&[
            call(Some(0), "x", "r", "{\"p\":\"a\"}"),
            call(Some(1), "x", "r", "{\"p\":\"b\"}"),
            call(Some(2), "", "r", ""),
        ]);
        assert_eq!(
            calls.iter().map(|c| c.0.as_str()).collect::<Vec<_>>(),
            ["x", "x_2", "call_3"]
        );
        assert_eq!(calls[2].2, "{}");
    }
}
