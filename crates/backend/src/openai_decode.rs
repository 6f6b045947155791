//! OpenAI's Chat Completions: decoding of bodies and streams.
//!
//! One reading for both: a choice's `message` or `delta` gives the same deltas.

use std::collections::HashMap;

use decanus_base::text::brief;
use decanus_chat::Usage;
use serde_json::{Map, Value, json};

use crate::conversation::{Delta, FinishReason};
use crate::dialect::{Fault, StreamDecoder};
use crate::refusal;
use crate::sse::Event;

/// Decodes a whole body.
///
/// # Errors
/// An error in a body of status 200; a body that is not an answer.
pub fn decode(body: &[u8]) -> Result<Vec<Delta>, Fault> {
    let value = crate::body::parse(body)?;
    if let Some(fault) = refusal::from_value(&value) {
        return Err(fault);
    }
    let Some(choice) = first_choice(&value) else {
        return Err(Fault::Malformed(format!(
            "there are no `choices` in {}",
            brief(&value.to_string(), 200)
        )));
    };
    let mut out = Vec::new();
    let mut decoder = ChatDecoder::default();
    decoder.chunk(&value, &mut out);
    if choice.get("message").is_none_or(Value::is_null) && choice.get("delta").is_none_or(Value::is_null) {
        return Err(Fault::Malformed("the choice holds no `message`".into()));
    }
    // A whole body is complete even when it does not say why it ended.
    decoder.finish_with(&mut out);
    Ok(out)
}

/// The first answer: we never ask for more than one.
fn first_choice(value: &Value) -> Option<&Map<String, Value>> {
    let choices = value.get("choices")?.as_array()?;
    choices
        .iter()
        .filter_map(Value::as_object)
        .find(|c| c.get("index").and_then(Value::as_u64).unwrap_or(0) == 0)
}

/// Decodes a stream of `chat.completion.chunk`s.
#[derive(Debug, Default)]
pub struct ChatDecoder {
    finish: Option<FinishReason>,
    id: bool,
    model: bool,
    calls: bool,
    indices: HashMap<u64, Slot>,
    /// The reasoning so far, under the name it came with.
    reasoning: (&'static str, String),
}

/// What has been seen under one index.
#[derive(Debug, Default)]
struct Slot {
    id: String,
    arguments: String,
    /// How many calls came under this index before.
    round: u64,
}

impl StreamDecoder for ChatDecoder {
    fn event(&mut self, event: &Event, out: &mut Vec<Delta>) -> Result<bool, Fault> {
        let data = event.data.trim();
        if data.is_empty() {
            return Ok(false);
        }
        if data == "[DONE]" {
            self.finish_with(out);
            return Ok(true);
        }
        let value: Value = serde_json::from_str(data)
            .map_err(|e| Fault::Malformed(format!("an event is not JSON ({e}): {}", brief(data, 200))))?;
        if let Some(fault) = refusal::from_value(&value) {
            return Err(fault);
        }
        if event.name == "error" {
            let around = Map::new();
            return Err(refusal::from_error(&value, value.as_object().unwrap_or(&around)));
        }
        if !value.is_object() {
            return Err(Fault::Malformed(format!(
                "an event is not an object: {}",
                brief(data, 200)
            )));
        }
        self.chunk(&value, out);
        Ok(false)
    }

    fn is_complete(&self) -> bool {
        self.finish.is_some()
    }

    fn end(&mut self, out: &mut Vec<Delta>) -> Result<(), Fault> {
        if self.finish.is_none() {
            return Err(Fault::Incomplete(
                "the stream ended without a finish_reason or [DONE]".into(),
            ));
        }
        self.finish_with(out);
        Ok(())
    }
}

impl ChatDecoder {
    fn finish_with(&mut self, out: &mut Vec<Delta>) {
        let by_default = if self.calls {
            FinishReason::ToolCalls
        } else {
            FinishReason::Stop
        };
        let (name, reasoning) = std::mem::take(&mut self.reasoning);
        if self.calls && !reasoning.is_empty() {
            out.push(Delta::Part(json!({name: reasoning})));
        }
        out.push(Delta::Finish(self.finish.take().unwrap_or(by_default)));
    }

    /// What a chunk or a whole body says.
    fn chunk(&mut self, value: &Value, out: &mut Vec<Delta>) {
        let text = |name: &str| value.get(name).and_then(Value::as_str).filter(|s| !s.is_empty());
        if let Some(id) = text("id").filter(|_| !self.id) {
            self.id = true;
            out.push(Delta::ResponseId(id.to_owned()));
        }
        if let Some(model) = text("model").filter(|_| !self.model) {
            self.model = true;
            out.push(Delta::Model(model.to_owned()));
        }
        if let Some(choice) = first_choice(value) {
            let whole = choice.get("message").is_some_and(Value::is_object);
            let message = choice
                .get("message")
                .or_else(|| choice.get("delta"))
                .and_then(Value::as_object);
            if let Some(message) = message {
                self.message(message, whole, out);
            }
            // Some gateways put the calls beside the message.
            self.tool_calls(choice.get("tool_calls"), whole, out);
            if let Some(reason) = choice
                .get("finish_reason")
                .and_then(Value::as_str)
                .filter(|r| !r.is_empty())
            {
                self.finish = Some(finish_reason(reason));
            }
        }
        if let Some(usage) = value.get("usage").filter(|u| u.is_object()) {
            let usage = Usage::from_provider(usage);
            if !usage.is_empty() {
                out.push(Delta::Usage(usage));
            }
        }
    }

    fn message(&mut self, message: &Map<String, Value>, whole: bool, out: &mut Vec<Delta>) {
        // Both names are in use; a server that sends both sends the same text twice.
        let reasoning = ["reasoning_content", "reasoning"]
            .iter()
            .filter_map(|n| message.get(*n).map(|text| (*n, joined(text))))
            .collect::<Vec<_>>();
        if let Some((name, reasoning)) = reasoning.into_iter().find(|(_, text)| !text.is_empty()) {
            self.reasoning.0 = name;
            self.reasoning.1.push_str(&reasoning);
            out.push(Delta::Reasoning(reasoning));
        }
        for name in ["content", "refusal"] {
            let text = message.get(name).map(joined).unwrap_or_default();
            if !text.is_empty() {
                out.push(Delta::Text(text));
            }
        }
        self.tool_calls(message.get("tool_calls"), whole, out);
        if let Some(call) = message.get("function_call").and_then(Value::as_object) {
            self.calls = true;
            out.push(Delta::Call {
                index: Some(0),
                id: None,
                name: call.get("name").and_then(Value::as_str).map(str::to_owned),
                arguments: arguments(call.get("arguments")),
            });
        }
    }

    fn tool_calls(&mut self, calls: Option<&Value>, whole: bool, out: &mut Vec<Delta>) {
        for (position, call) in calls.and_then(Value::as_array).into_iter().flatten().enumerate() {
            let Some(call) = call.as_object() else { continue };
            // Without `function`, name and arguments stand on the call itself.
            let function = call.get("function").and_then(Value::as_object).unwrap_or(call);
            let text = |map: &Map<String, Value>, name: &str| match map.get(name) {
                Some(Value::String(s)) => Some(s.clone()),
                Some(Value::Number(n)) => Some(n.to_string()),
                _ => None,
            };
            let id = text(call, "id");
            let name = text(function, "name").filter(|n| !n.is_empty());
            let arguments = arguments(function.get("arguments"));
            self.calls = true;
            // The calls of a whole body are apart whatever their ids and indices say.
            let index = match call.get("index").and_then(Value::as_u64) {
                _ if whole => Some(position as u64),
                Some(index) => Some(self.slot(index, id.as_deref(), name.as_deref(), &arguments)),
                None => None,
            };
            out.push(Delta::Call {
                index,
                id,
                name,
                arguments,
            });
        }
    }

    /// The place of a call. Some gateways give every parallel call the index 0: a new id with a name, after arguments
    /// that are complete, is a new call. (Others send a fresh id with every fragment, but then without a name.)
    fn slot(&mut self, index: u64, id: Option<&str>, name: Option<&str>, arguments: &str) -> u64 {
        const ROUNDS: u64 = 1 << 16;
        let slot = self.indices.entry(index).or_default();
        let id = id.unwrap_or_default();
        let is_new = name.is_some() && !id.is_empty() && !slot.id.is_empty() && slot.id != id;
        if is_new && (slot.arguments.trim().is_empty() || serde_json::from_str::<Value>(&slot.arguments).is_ok()) {
            *slot = Slot {
                round: (slot.round + 1).min(ROUNDS - 1),
                ..Slot::default()
            };
        }
        if slot.id.is_empty() {
            slot.id = id.to_owned();
        }
        slot.arguments.push_str(arguments);
        index.saturating_mul(ROUNDS).saturating_add(slot.round)
    }
}

/// Arguments as text, whatever they came as.
pub(crate) fn arguments(value: Option<&Value>) -> String {
    match value {
        None | Some(Value::Null) => String::new(),
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
    }
}

/// Content that is a text, or a list of parts with texts.
fn joined(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Array(parts) => parts.iter().map(joined).collect(),
        Value::Object(part) => ["text", "refusal", "content"]
            .iter()
            .find_map(|n| part.get(*n))
            .map(joined)
            .unwrap_or_default(),
        _ => String::new(),
    }
}

fn finish_reason(word: &str) -> FinishReason {
    match word {
        "stop" | "eos" | "end_turn" => FinishReason::Stop,
        "tool_calls" | "function_call" | "tool_use" => FinishReason::ToolCalls,
        "length" | "max_tokens" => FinishReason::Length,
        "content_filter" => FinishReason::ContentFilter,
        other => FinishReason::Other(other.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collect::Collector;

    fn stream(chunks: &[&str]) -> Vec<(String, String)> {
        let mut decoder = ChatDecoder::default();
        let mut out = Vec::new();
        for chunk in chunks {
            let data = format!(r#"{{"choices":[{{"index":0,"delta":{{"tool_calls":[{chunk}]}}}}]}}"#);
            decoder
                .event(
                    &Event {
                        name: String::new(),
                        data,
                    },
                    &mut out,
                )
                .unwrap();
        }
        let mut collector = Collector::new();
        out.iter().for_each(|d| collector.push(d));
        collector
            .finish()
            .calls
            .into_iter()
            .map(|c| (c.id, c.arguments.to_text()))
            .collect()
    }

    #[test]
    fn parallel_calls_that_all_have_the_index_0() {
        let calls = stream(&[
            r#"{"index":0,"id":"a","function":{"name":"f","arguments":"{\"x\":"}}"#,
            r#"{"index":0,"function":{"arguments":"1}"}}"#,
            r#"{"index":0,"id":"b","function":{"name":"f","arguments":"{\"x\":"}}"#,
            r#"{"index":0,"function":{"arguments":"2}"}}"#,
        ]);
        assert_eq!(
            calls,
            [("a".into(), r#"{"x":1}"#.into()), ("b".into(), r#"{"x":2}"#.into())]
        );
    }

    #[test]
    fn a_fresh_id_with_every_fragment_is_one_call() {
        let calls = stream(&[
            r#"{"index":0,"id":"a","function":{"name":"f","arguments":"{\"x\":"}}"#,
            r#"{"index":0,"id":"b","function":{"name":null,"arguments":"1"}}"#,
            r#"{"index":0,"id":"c","function":{"name":"f","arguments":"}"}}"#,
        ]);
        assert_eq!(calls, [("a".into(), r#"{"x":1}"#.into())]);
    }

    #[test]
    fn content_in_parts_and_both_names_of_reasoning() {
        let body = r#"{"choices":[{"message":{"content":[{"type":"text","text":"a"},{"type":"text","text":"b"}],
            "reasoning":"r","reasoning_content":"r"}}]}"#;
        let mut collector = Collector::new();
        decode(body.as_bytes()).unwrap().iter().for_each(|d| collector.push(d));
        let response = collector.finish();
        assert_eq!((response.text.as_str(), response.reasoning.as_str()), ("ab", "r"));
        assert_eq!(response.finish, Some(FinishReason::Stop));
    }

    #[test]
    fn bodies_that_are_no_answer() {
        for body in [
            "",
            "{}",
            "null",
            "[]",
            "{\"choices\":[]}",
            "{\"choices\":[{}]}",
            "<html>",
            "data: {}",
        ] {
            assert!(matches!(decode(body.as_bytes()), Err(Fault::Malformed(_))), "{body}");
        }
        assert!(matches!(decode(b"{\"choices\":"), Err(Fault::Incomplete(_))));
    }
}
