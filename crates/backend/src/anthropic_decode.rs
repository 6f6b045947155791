//! Anthropic's Messages: decoding of bodies and streams.
//!
//! One reading for both: a block of a body is a block of a stream that starts with all its content.

use std::collections::HashMap;

use decanus_base::text::brief;
use decanus_chat::Usage;
use serde_json::{Map, Value, json};

use crate::anthropic::{Anthropic, is_unsigned_thinking};
use crate::body;
use crate::conversation::{Delta, FinishReason};
use crate::dialect::{Fault, StreamDecoder};
use crate::refusal;
use crate::sse::Event;

/// Decodes a whole body.
///
/// # Errors
/// An error in a body of status 200; a body that is not an answer.
pub(crate) fn decode(dialect: &Anthropic, bytes: &[u8]) -> Result<Vec<Delta>, Fault> {
    let value = body::parse(bytes)?;
    if let Some(fault) = fault(&value) {
        return Err(fault);
    }
    let Some(content) = value.get("content").and_then(Value::as_array) else {
        return Err(refusal::from_value(&value).unwrap_or_else(|| {
            Fault::Malformed(format!("there is no `content` in {}", brief(&value.to_string(), 200)))
        }));
    };
    let mut out = Vec::new();
    let mut decoder = MessagesDecoder::new(dialect);
    decoder.message(&value, &mut out);
    for block in content {
        decoder.start(None, block, &mut out);
    }
    decoder.stop(&value);
    decoder.finish_with(&mut out);
    Ok(out)
}

/// An error object, with the status that goes with its type.
fn fault(value: &Value) -> Option<Fault> {
    let map = value.as_object()?;
    let error = map.get("error").filter(|e| !e.is_null());
    if error.is_none() && value["type"] != "error" {
        return None;
    }
    let fault = refusal::from_error(error.unwrap_or(value), map);
    Some(match fault {
        Fault::Refused {
            status: None,
            code,
            message,
        } => Fault::Refused {
            status: code.as_deref().and_then(status_of),
            code,
            message,
        },
        other => other,
    })
}

fn status_of(kind: &str) -> Option<u16> {
    Some(match kind {
        "invalid_request_error" => 400,
        "authentication_error" => 401,
        "billing_error" => 402,
        "permission_error" => 403,
        "not_found_error" => 404,
        "request_too_large" => 413,
        "rate_limit_error" => 429,
        "api_error" => 500,
        "timeout_error" => 504,
        "overloaded_error" => 529,
        _ => return None,
    })
}

/// What a block is to us.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Text,
    Call,
    /// The call of the tool whose input is the answer.
    Answer,
    /// Thinking, and what we do not know: opaque.
    Part,
}

#[derive(Debug)]
struct Block {
    kind: Kind,
    /// The block as it started, with what has been added to its texts.
    value: Value,
    /// The JSON text of its input.
    json: String,
}

/// Decodes the events of a stream.
#[derive(Debug)]
pub(crate) struct MessagesDecoder {
    answer_tool: Option<String>,
    unsigned_thinking: bool,
    blocks: Vec<Block>,
    /// The blocks by the index that the stream gives them. Blocks may start before others stop.
    indices: HashMap<u64, usize>,
    usage: Map<String, Value>,
    finish: Option<FinishReason>,
    /// Why the model refused.
    explanation: Option<String>,
    has_text: bool,
    /// The block of the last text that is not blank, and whether the text so far ends with a blank.
    last_text: Option<usize>,
    ends_blank: bool,
    is_over: bool,
}

impl StreamDecoder for MessagesDecoder {
    fn event(&mut self, event: &Event, out: &mut Vec<Delta>) -> Result<bool, Fault> {
        let data = event.data.trim();
        if data.is_empty() {
            return Ok(false);
        }
        if data == "[DONE]" {
            // Gateways that think of another protocol. It ends nothing that the protocol itself has not ended.
            return Ok(false);
        }
        let value = body::parse_event(data)?;
        if let Some(fault) = fault(&value) {
            return Err(fault);
        }
        let kind = value.get("type").and_then(Value::as_str);
        let index = value.get("index").and_then(Value::as_u64);
        match kind.unwrap_or(&event.name) {
            "message_start" => self.message(&value["message"], out),
            "content_block_start" => self.start(index, &value["content_block"], out),
            "content_block_delta" => self.delta(index, &value["delta"], out),
            "message_delta" => {
                self.count(&value["usage"], out);
                self.stop(&value["delta"]);
            }
            "message_stop" => {
                self.finish_with(out);
                return Ok(true);
            }
            // An error in another server's form.
            "" | "error" => return refusal::from_value(&value).map_or(Ok(false), Err),
            // Pings, the end of a block, and what we do not know.
            _ => {}
        }
        Ok(false)
    }

    fn is_complete(&self) -> bool {
        self.finish.is_some()
    }

    fn end(&mut self, out: &mut Vec<Delta>) -> Result<(), Fault> {
        if self.finish.is_none() && !self.is_over {
            return Err(Fault::Incomplete(
                "the stream ended without a stop_reason or message_stop".into(),
            ));
        }
        self.finish_with(out);
        Ok(())
    }
}

impl MessagesDecoder {
    pub(crate) fn new(dialect: &Anthropic) -> Self {
        Self {
            answer_tool: dialect.answer_tool.clone(),
            unsigned_thinking: dialect.unsigned_thinking,
            blocks: Vec::new(),
            indices: HashMap::new(),
            usage: Map::new(),
            finish: None,
            explanation: None,
            has_text: false,
            last_text: None,
            ends_blank: false,
            is_over: false,
        }
    }

    /// Id, model and first counts.
    fn message(&mut self, message: &Value, out: &mut Vec<Delta>) {
        let text = |name: &str| message.get(name).and_then(Value::as_str).filter(|s| !s.is_empty());
        out.extend(text("id").map(|id| Delta::ResponseId(id.to_owned())));
        out.extend(text("model").map(|model| Delta::Model(model.to_owned())));
        self.count(&message["usage"], out);
    }

    /// Counts come at the start and at the end, and servers leave out or set to 0 what they do not know at either: the
    /// larger one is true.
    fn count(&mut self, usage: &Value, out: &mut Vec<Delta>) {
        for (name, value) in usage.as_object().into_iter().flatten() {
            let known = self.usage.get(name).and_then(Value::as_u64);
            if known.is_none_or(|known| value.as_u64().is_some_and(|value| value > known)) {
                self.usage.insert(name.clone(), value.clone());
            }
        }
        let usage = Usage::from_provider(&Value::Object(self.usage.clone()));
        if !usage.is_empty() {
            out.push(Delta::Usage(usage));
        }
    }

    fn start(&mut self, index: Option<u64>, block: &Value, out: &mut Vec<Delta>) {
        let position = self.blocks.len();
        self.indices.insert(index.unwrap_or(position as u64), position);
        let text = |name: &str| block.get(name).and_then(Value::as_str).unwrap_or_default();
        let kind = match text("type") {
            "text" => Kind::Text,
            "tool_use" if self.answer_tool.as_deref() == Some(text("name")) => Kind::Answer,
            "tool_use" => Kind::Call,
            _ => Kind::Part,
        };
        match kind {
            Kind::Text => self.text(position, text("text"), out),
            Kind::Call => out.push(Delta::Call {
                index: Some(position as u64),
                id: Some(text("id").to_owned()),
                name: Some(text("name").to_owned()),
                arguments: String::new(),
            }),
            Kind::Answer => {}
            Kind::Part => reasoning(text("thinking"), out),
        }
        self.blocks.push(Block {
            kind,
            value: block.clone(),
            json: String::new(),
        });
    }

    fn delta(&mut self, index: Option<u64>, delta: &Value, out: &mut Vec<Delta>) {
        let text = |name: &str| delta.get(name).and_then(Value::as_str).unwrap_or_default();
        let position = match index {
            Some(index) => self.indices.get(&index).copied(),
            None => self.blocks.len().checked_sub(1),
        };
        if text("type") == "text_delta" {
            self.text(position.unwrap_or(self.blocks.len()), text("text"), out);
        }
        let Some(position) = position else { return };
        let block = &mut self.blocks[position];
        match text("type") {
            "text_delta" => append(&mut block.value, "text", text("text")),
            "input_json_delta" => {
                let json = text("partial_json");
                block.json.push_str(json);
                if block.kind == Kind::Call {
                    out.push(Delta::Call {
                        index: Some(position as u64),
                        id: None,
                        name: None,
                        arguments: json.to_owned(),
                    });
                }
            }
            "thinking_delta" => {
                append(&mut block.value, "thinking", text("thinking"));
                reasoning(text("thinking"), out);
            }
            "signature_delta" => append(&mut block.value, "signature", text("signature")),
            // Citations, and what we do not know.
            _ => {}
        }
    }

    /// Text of a block. What stands on both sides of something else is two texts; blocks that follow each other are one.
    fn text(&mut self, position: usize, text: &str, out: &mut Vec<Delta>) {
        if text.is_empty() {
            return;
        }
        if !text.trim().is_empty() {
            let between = self.last_text.map_or(0..0, |last| last + 1..position);
            let is_apart = self
                .blocks
                .get(between)
                .is_some_and(|b| b.iter().any(|b| b.kind != Kind::Text));
            if is_apart && !self.ends_blank && !text.starts_with(char::is_whitespace) {
                out.push(Delta::Text("\n\n".to_owned()));
            }
            self.last_text = Some(position);
        }
        self.has_text = true;
        self.ends_blank = text.ends_with(char::is_whitespace);
        out.push(Delta::Text(text.to_owned()));
    }

    /// Why the answer ended, from what holds `stop_reason`.
    fn stop(&mut self, around: &Value) {
        if let Some(reason) = around.get("stop_reason").and_then(Value::as_str) {
            self.finish = Some(finish_reason(reason));
        }
        let explanation = around.pointer("/stop_details/explanation").and_then(Value::as_str);
        if let Some(explanation) = explanation.filter(|e| !e.is_empty()) {
            self.explanation = Some(explanation.to_owned());
        }
    }

    /// Whether the texts, and the places of the calls, have to be kept among the parts: what does not come as thinking, a
    /// text, then calls has to be sent back where it stood, and so has what the provider's own tools did.
    fn order(&self) -> (bool, bool) {
        let said = |b: &&Block| b.kind != Kind::Answer && (b.kind != Kind::Text || !is_blank(&b.value));
        let said: Vec<&Block> = self.blocks.iter().filter(said).collect();
        let is_behind = |kind: Kind, what: &[Kind]| {
            let at = said.iter().position(|b| b.kind == kind);
            at.is_some_and(|at| said[at..].iter().any(|b| what.contains(&b.kind)))
        };
        let own_tool = said.iter().any(|b| b.kind == Kind::Part && is_own_tool(&b.value));
        let keep_calls = is_behind(Kind::Call, &[Kind::Text, Kind::Part]);
        (
            own_tool || keep_calls || is_behind(Kind::Text, &[Kind::Part]),
            keep_calls,
        )
    }

    fn finish_with(&mut self, out: &mut Vec<Delta>) {
        if std::mem::replace(&mut self.is_over, true) {
            return;
        }
        let mut calls = false;
        let mut answered = false;
        let (keep_texts, keep_calls) = self.order();
        for (position, block) in std::mem::take(&mut self.blocks).into_iter().enumerate() {
            let Block { kind, mut value, json } = block;
            // Streams give the input in deltas, bodies (and some servers' streams) at the start.
            let given = match &value["input"] {
                _ if !json.trim().is_empty() => None,
                Value::Null => None,
                Value::String(text) => Some(text.clone()),
                other => Some(other.to_string()),
            };
            match kind {
                Kind::Text => {
                    if keep_texts && !is_blank(&value) {
                        out.push(Delta::Part(value));
                    }
                }
                Kind::Call => {
                    calls = true;
                    out.extend(given.map(|arguments| Delta::Call {
                        index: Some(position as u64),
                        id: None,
                        name: None,
                        arguments,
                    }));
                    if keep_calls {
                        out.push(Delta::Part(json!({"type": "tool_use", "id": value["id"]})));
                    }
                }
                Kind::Answer => {
                    answered = true;
                    // The same text, however it was cut and spaced; a broken one as it came.
                    let text = given.unwrap_or(json);
                    let value = serde_json::from_str::<Value>(&text);
                    let text = value.map_or(text, |value| value.to_string());
                    self.text(position, &text, out);
                }
                Kind::Part => {
                    if let (Some(map), Ok(input)) = (value.as_object_mut(), serde_json::from_str(&json)) {
                        map.insert("input".into(), input);
                    }
                    if value.is_object() && (self.unsigned_thinking || !is_unsigned_thinking(&value)) {
                        out.push(Delta::Part(value));
                    }
                }
            }
        }
        if let Some(explanation) = self.explanation.take().filter(|_| !self.has_text) {
            out.push(Delta::Text(explanation));
        }
        let reason = match self.finish.take() {
            Some(FinishReason::ToolCalls) if answered && !calls => FinishReason::Stop,
            Some(reason) => reason,
            None if calls => FinishReason::ToolCalls,
            None => FinishReason::Stop,
        };
        out.push(Delta::Finish(reason));
    }
}

/// Whether a block is a text that says nothing.
fn is_blank(block: &Value) -> bool {
    block["text"].as_str().is_none_or(|text| text.trim().is_empty())
}

/// Whether a block is a call of a tool that the provider runs itself, or its result.
fn is_own_tool(block: &Value) -> bool {
    let kind = block["type"].as_str().unwrap_or_default();
    kind.ends_with("_tool_use") || kind.ends_with("_tool_result")
}

fn reasoning(text: &str, out: &mut Vec<Delta>) {
    if !text.is_empty() {
        out.push(Delta::Reasoning(text.to_owned()));
    }
}

/// Appends to a text of a block.
fn append(block: &mut Value, name: &str, more: &str) {
    let Some(map) = block.as_object_mut() else { return };
    match map.get_mut(name) {
        Some(Value::String(text)) => text.push_str(more),
        _ => {
            map.insert(name.to_owned(), more.into());
        }
    }
}

fn finish_reason(word: &str) -> FinishReason {
    match word {
        "end_turn" | "stop_sequence" => FinishReason::Stop,
        "tool_use" => FinishReason::ToolCalls,
        "max_tokens" | "model_context_window_exceeded" => FinishReason::Length,
        "refusal" => FinishReason::ContentFilter,
        "pause_turn" => FinishReason::Paused,
        other => FinishReason::Other(other.to_owned()),
    }
}
