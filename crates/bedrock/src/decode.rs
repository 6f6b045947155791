//! Converse: decoding of bodies and streams.
//!
//! One reading for both: a block of a body is a block of a stream that comes whole.

use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use decanus_backend::body;
use decanus_backend::conversation::{Delta, FinishReason};
use decanus_backend::dialect::{Fault, StreamDecoder};
use decanus_backend::refusal::{from_body, from_value};
use decanus_backend::sse::Event;
use decanus_base::text::brief;
use decanus_chat::Usage;
use serde_json::{Value, json};

use crate::converse::Converse;
use crate::frames::{ERROR, EXCEPTION};

/// Decodes a whole body.
///
/// # Errors
/// An error in a body of status 200; a body that is not an answer.
pub(crate) fn decode(dialect: &Converse, bytes: &[u8]) -> Result<Vec<Delta>, Fault> {
    let value = body::parse(bytes)?;
    let Some(content) = value.pointer("/output/message/content").and_then(Value::as_array) else {
        return Err(from_value(&value).unwrap_or_else(|| {
            let said = brief(&value.to_string(), 200);
            Fault::Malformed(format!("there is no `output.message.content` in {said}"))
        }));
    };
    let mut out = Vec::new();
    let mut decoder = ConverseDecoder::new(dialect);
    for (index, block) in (0..).zip(content) {
        decoder.block(index, block, &mut out);
    }
    count(&value["usage"], &mut out);
    decoder.stop(&value);
    decoder.finish_with(&mut out);
    Ok(out)
}

/// Reads the body of an answer that is an error by its status.
pub(crate) fn refusal(status: u16, body: &[u8]) -> Fault {
    let mut value = serde_json::from_slice::<Value>(body).unwrap_or_default();
    let kind = value.get("__type").and_then(Value::as_str).map(kind_of);
    // Some of AWS spells it so.
    if let Some(message) = value.get("Message").cloned().filter(|_| value.get("message").is_none()) {
        value["message"] = message;
    }
    // What follows repeats the request with its session token.
    if let Some(message) = value.get("message").and_then(Value::as_str) {
        let message = message.split("The Canonical String for this request").next();
        value["message"] = message.unwrap_or_default().trim().into();
    }
    let fault = if value.is_object() {
        from_body(status, value.to_string().as_bytes())
    } else {
        from_body(status, body)
    };
    match fault {
        Fault::Refused { status, code, message } => Fault::Refused {
            status,
            code: kind.or(code),
            message,
        },
        other => other,
    }
}

/// The name of an exception without its name space and what follows it.
fn kind_of(text: &str) -> String {
    let name = text.rsplit('#').next().unwrap_or(text);
    name.split(':').next().unwrap_or(name).to_owned()
}

/// An exception within a stream, with the status that goes with its type.
fn exception(kind: &str, value: &Value) -> Fault {
    let status = match kind.to_lowercase().trim_end_matches("exception") {
        "accessdenied" => 403,
        "internalserver" => 500,
        "modelerror" | "modelstreamerror" => 424,
        "modeltimeout" => 408,
        "serviceunavailable" => 503,
        "throttling" => 429,
        "validation" => 400,
        _ => 500,
    };
    let own = value.get("originalStatusCode").and_then(Value::as_u64);
    let own = own
        .and_then(|s| u16::try_from(s).ok())
        .filter(|s| (400..600).contains(s));
    match refusal(status, value.to_string().as_bytes()) {
        Fault::Refused { message, .. } => Fault::Refused {
            status: own.or(Some(status)),
            code: Some(kind.to_owned()),
            message,
        },
        other => other,
    }
}

/// Whether a part is reasoning that the model would refuse to take back.
pub(crate) fn is_unsigned(part: &Value) -> bool {
    let text = part.pointer("/reasoningContent/reasoningText");
    text.is_some_and(|text| text["signature"].as_str().unwrap_or_default().is_empty())
}

/// Reasoning of one block.
#[derive(Debug, Default)]
struct Reasoning {
    text: String,
    signature: String,
    redacted: Vec<u8>,
}

/// What a block is to us.
#[derive(Debug)]
enum Block {
    Text(String),
    /// A call, by its id.
    Call(String),
    Reasoning(Reasoning),
}

/// Decodes the events of a stream.
#[derive(Debug)]
pub(crate) struct ConverseDecoder {
    unsigned_thinking: bool,
    /// The blocks by their index.
    blocks: BTreeMap<u64, Block>,
    /// The block of the last text that is not blank, and whether the text so far ends with a blank.
    last_text: Option<u64>,
    ends_blank: bool,
    finish: Option<FinishReason>,
    is_over: bool,
}

impl StreamDecoder for ConverseDecoder {
    fn event(&mut self, event: &Event, out: &mut Vec<Delta>) -> Result<bool, Fault> {
        let value = body::parse_event(&event.data)?;
        let failed = event.name.strip_prefix(EXCEPTION).or(event.name.strip_prefix(ERROR));
        if let Some(kind) = failed {
            return Err(exception(kind, &value));
        }
        let index = value.get("contentBlockIndex").and_then(Value::as_u64).unwrap_or(0);
        match event.name.as_str() {
            "contentBlockStart" => self.start(index, &value["start"], out),
            "contentBlockDelta" => self.delta(index, &value["delta"], out),
            "messageStop" => self.stop(&value),
            "metadata" => {
                count(&value["usage"], out);
                if self.finish.is_some() {
                    self.finish_with(out);
                    return Ok(true);
                }
            }
            // `messageStart`, the end of a block, and what we do not know.
            _ => {}
        }
        Ok(false)
    }

    fn is_complete(&self) -> bool {
        self.finish.is_some()
    }

    fn end(&mut self, out: &mut Vec<Delta>) -> Result<(), Fault> {
        if self.finish.is_none() && !self.is_over {
            return Err(Fault::Incomplete("the stream ended without a messageStop".into()));
        }
        self.finish_with(out);
        Ok(())
    }
}

impl ConverseDecoder {
    pub(crate) fn new(dialect: &Converse) -> Self {
        Self {
            unsigned_thinking: dialect.unsigned_thinking,
            blocks: BTreeMap::new(),
            last_text: None,
            ends_blank: false,
            finish: None,
            is_over: false,
        }
    }

    /// A whole block.
    fn block(&mut self, index: u64, block: &Value, out: &mut Vec<Delta>) {
        if let Some(call) = block.get("toolUse") {
            self.start(index, block, out);
            let arguments = match &call["input"] {
                Value::Null => String::new(),
                Value::String(text) => text.clone(),
                input => input.to_string(),
            };
            self.arguments(index, arguments, out);
        } else if let Some(text) = block.pointer("/reasoningContent/reasoningText") {
            self.reasoning(index, text, out);
        } else if let Some(cited) = block.pointer("/citationsContent/content").and_then(Value::as_array) {
            for part in cited {
                self.delta(index, part, out);
            }
        } else {
            self.delta(index, block, out);
        }
    }

    fn start(&mut self, index: u64, start: &Value, out: &mut Vec<Delta>) {
        let Some(call) = start.get("toolUse") else { return };
        let text = |name: &str| call.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
        self.blocks.insert(index, Block::Call(text("toolUseId")));
        out.push(Delta::Call {
            index: Some(index),
            id: Some(text("toolUseId")),
            name: Some(text("name")),
            arguments: String::new(),
        });
    }

    fn delta(&mut self, index: u64, delta: &Value, out: &mut Vec<Delta>) {
        if let Some(text) = delta.get("text").and_then(Value::as_str).filter(|t| !t.is_empty()) {
            self.text(index, text, out);
        }
        if let Some(json) = delta.pointer("/toolUse/input").and_then(Value::as_str) {
            self.arguments(index, json.to_owned(), out);
        }
        if let Some(reasoning) = delta.get("reasoningContent") {
            self.reasoning(index, reasoning, out);
        }
    }

    /// Text of a block. What stands on both sides of something else is two texts.
    fn text(&mut self, index: u64, text: &str, out: &mut Vec<Delta>) {
        if !text.trim().is_empty() {
            let last = self.last_text.replace(index).filter(|last| *last < index);
            let is_apart = last.is_some_and(|last| {
                let mut between = self.blocks.range(last + 1..index);
                between.any(|(_, block)| !matches!(block, Block::Text(_)))
            });
            if is_apart && !self.ends_blank && !text.starts_with(char::is_whitespace) {
                out.push(Delta::Text("\n\n".to_owned()));
            }
        }
        if let Block::Text(said) = self.blocks.entry(index).or_insert_with(|| Block::Text(String::new())) {
            said.push_str(text);
        }
        self.ends_blank = text.ends_with(char::is_whitespace);
        out.push(Delta::Text(text.to_owned()));
    }

    /// Whether the texts and the places of the calls have to be kept among the parts: what does not come as reasoning, a
    /// text, then calls has to be sent back where it stood.
    fn is_mixed(&self) -> bool {
        let ranks = self.blocks.values().filter_map(|block| match block {
            Block::Reasoning(_) => Some(0),
            Block::Text(text) => (!text.trim().is_empty()).then_some(1),
            Block::Call(_) => Some(2),
        });
        !ranks.is_sorted()
    }

    fn arguments(&self, index: u64, arguments: String, out: &mut Vec<Delta>) {
        if matches!(self.blocks.get(&index), Some(Block::Call(_))) && !arguments.is_empty() {
            out.push(Delta::Call {
                index: Some(index),
                id: None,
                name: None,
                arguments,
            });
        }
    }

    fn reasoning(&mut self, index: u64, more: &Value, out: &mut Vec<Delta>) {
        let block = self
            .blocks
            .entry(index)
            .or_insert_with(|| Block::Reasoning(Reasoning::default()));
        let Block::Reasoning(reasoning) = block else { return };
        let text = |name: &str| more.get(name).and_then(Value::as_str).unwrap_or_default();
        if !text("text").is_empty() {
            reasoning.text.push_str(text("text"));
            out.push(Delta::Reasoning(text("text").to_owned()));
        }
        reasoning.signature.push_str(text("signature"));
        // What is no base64 could not be sent back.
        reasoning
            .redacted
            .extend(STANDARD.decode(text("redactedContent")).unwrap_or_default());
    }

    /// Why the answer ended, from what holds `stopReason`.
    fn stop(&mut self, around: &Value) {
        if let Some(reason) = around.get("stopReason").and_then(Value::as_str) {
            self.finish = Some(finish_reason(reason));
        }
    }

    fn finish_with(&mut self, out: &mut Vec<Delta>) {
        if std::mem::replace(&mut self.is_over, true) {
            return;
        }
        let mut calls = false;
        let is_mixed = self.is_mixed();
        for block in std::mem::take(&mut self.blocks).into_values() {
            let Reasoning {
                text,
                signature,
                redacted,
            } = match block {
                Block::Reasoning(reasoning) => reasoning,
                Block::Call(id) => {
                    calls = true;
                    out.extend(is_mixed.then(|| Delta::Part(json!({"toolUse": {"toolUseId": id}}))));
                    continue;
                }
                Block::Text(text) => {
                    let is_kept = is_mixed && !text.trim().is_empty();
                    out.extend(is_kept.then(|| Delta::Part(json!({"text": text}))));
                    continue;
                }
            };
            if !text.is_empty() || !signature.is_empty() {
                let mut inner = json!({"text": text});
                if !signature.is_empty() {
                    inner["signature"] = signature.into();
                }
                let part = json!({"reasoningContent": {"reasoningText": inner}});
                if self.unsigned_thinking || !is_unsigned(&part) {
                    out.push(Delta::Part(part));
                }
            }
            if !redacted.is_empty() {
                let data = STANDARD.encode(redacted);
                out.push(Delta::Part(json!({"reasoningContent": {"redactedContent": data}})));
            }
        }
        let guess = if calls {
            FinishReason::ToolCalls
        } else {
            FinishReason::Stop
        };
        out.push(Delta::Finish(self.finish.take().unwrap_or(guess)));
    }
}

/// Token counts. Cached ones are counted beside the prompt, as with Anthropic.
fn count(usage: &Value, out: &mut Vec<Delta>) {
    let number = |name: &str| usage.get(name).and_then(Value::as_u64);
    let usage = Usage {
        pt: number("inputTokens"),
        ct: number("outputTokens"),
        tt: number("totalTokens"),
        cct: number("cacheReadInputTokens"),
        cwt: number("cacheWriteInputTokens"),
        ..Usage::default()
    };
    if !usage.is_empty() {
        out.push(Delta::Usage(usage));
    }
}

fn finish_reason(word: &str) -> FinishReason {
    match word {
        "end_turn" | "stop_sequence" => FinishReason::Stop,
        "tool_use" => FinishReason::ToolCalls,
        "max_tokens" | "model_context_window_exceeded" => FinishReason::Length,
        "content_filtered" | "guardrail_intervened" => FinishReason::ContentFilter,
        other => FinishReason::Other(other.to_owned()),
    }
}
