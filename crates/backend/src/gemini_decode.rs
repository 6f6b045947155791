//! Google's Gemini API: decoding of bodies and streams.
//!
//! One reading for both: a body is a stream of one chunk, or a list of chunks.

use decanus_base::text::brief;
use decanus_chat::Usage;
use serde_json::{Map, Value, json};

use crate::body;
use crate::conversation::{Delta, FinishReason};
use crate::dialect::{Fault, StreamDecoder};
use crate::refusal;
use crate::sse::Event;

/// What is put between two texts of an answer that something else stood between.
pub(crate) const BETWEEN: &str = "\n\n";

/// Decodes a whole body.
///
/// # Errors
/// An error in a body of status 200; a body that is not an answer.
pub(crate) fn decode(bytes: &[u8]) -> Result<Vec<Delta>, Fault> {
    let value = body::parse(bytes)?;
    let mut out = Vec::new();
    let mut decoder = GeminiDecoder::default();
    // Without `alt=sse` a stream is a list.
    for chunk in value.as_array().unwrap_or(&vec![value.clone()]) {
        decoder.chunk(chunk, &mut out)?;
    }
    if !decoder.has_candidate {
        return Err(Fault::Malformed(format!(
            "there are no `candidates` in {}",
            brief(&value.to_string(), 200)
        )));
    }
    decoder.finish_with(&mut out);
    Ok(out)
}

/// Decodes the chunks of a stream.
#[derive(Debug, Default)]
pub(crate) struct GeminiDecoder {
    id: bool,
    model: bool,
    has_candidate: bool,
    calls: u64,
    /// How much text has been given out, in bytes: signatures belong to places in it.
    text: usize,
    /// How much text stood before each call, and whether the last part was a call.
    places: Vec<usize>,
    after_call: bool,
    ends_blank: bool,
    usage: Map<String, Value>,
    finish: Option<FinishReason>,
    message: Option<String>,
}

impl StreamDecoder for GeminiDecoder {
    fn event(&mut self, event: &Event, out: &mut Vec<Delta>) -> Result<bool, Fault> {
        let data = event.data.trim();
        if data.is_empty() || data == "[DONE]" {
            return Ok(false);
        }
        self.chunk(&body::parse_event(data)?, out)?;
        // Only the end of the stream ends it: counts may still follow.
        Ok(false)
    }

    fn is_complete(&self) -> bool {
        self.finish.is_some()
    }

    fn end(&mut self, out: &mut Vec<Delta>) -> Result<(), Fault> {
        if self.finish.is_none() {
            return Err(Fault::Incomplete("the stream ended without a finishReason".into()));
        }
        self.finish_with(out);
        Ok(())
    }
}

impl GeminiDecoder {
    fn chunk(&mut self, chunk: &Value, out: &mut Vec<Delta>) -> Result<(), Fault> {
        let candidate = chunk.pointer("/candidates/0");
        if candidate.is_none()
            && let Some(fault) = refusal::from_value(chunk)
        {
            return Err(fault);
        }
        let text = |name: &str| chunk.get(name).and_then(Value::as_str).filter(|s| !s.is_empty());
        if let Some(id) = text("responseId").filter(|_| !self.id) {
            self.id = true;
            out.push(Delta::ResponseId(id.to_owned()));
        }
        if let Some(model) = text("modelVersion").filter(|_| !self.model) {
            self.model = true;
            out.push(Delta::Model(model.to_owned()));
        }
        self.count(&chunk["usageMetadata"], out);
        if let Some(candidate) = candidate {
            self.has_candidate = true;
            let parts = candidate.pointer("/content/parts").and_then(Value::as_array);
            for part in parts.into_iter().flatten() {
                self.part(part, out);
            }
            let reason = candidate.get("finishReason").and_then(Value::as_str);
            self.finish = reason.map(finish_reason).or(self.finish.take());
            let message = candidate.get("finishMessage").and_then(Value::as_str);
            self.message = message.map(str::to_owned).or(self.message.take());
        } else if let Some(feedback) = chunk.get("promptFeedback")
            && let Some(reason) = feedback.get("blockReason").and_then(Value::as_str)
        {
            let message = feedback.get("blockReasonMessage").and_then(Value::as_str);
            return Err(Fault::Refused {
                status: Some(400),
                code: Some(reason.to_owned()),
                message: message.unwrap_or("the prompt was blocked").to_owned(),
            });
        }
        Ok(())
    }

    /// Counts are those of the whole request so far; a later chunk may lack some.
    fn count(&mut self, usage: &Value, out: &mut Vec<Delta>) {
        let Some(usage) = usage.as_object().filter(|u| !u.is_empty()) else {
            return;
        };
        self.usage.extend(usage.iter().map(|(n, v)| (n.clone(), v.clone())));
        let usage = Usage::from_provider(&Value::Object(self.usage.clone()));
        if !usage.is_empty() {
            out.push(Delta::Usage(usage));
        }
    }

    fn part(&mut self, part: &Value, out: &mut Vec<Delta>) {
        let signature = ["thoughtSignature", "thought_signature"]
            .iter()
            .find_map(|n| part.get(*n));
        let signature = signature.filter(|s| s.as_str().is_some_and(|s| !s.is_empty()));
        if let Some(call) = part.get("functionCall").and_then(Value::as_object) {
            let word = |name: &str| call.get(name).and_then(Value::as_str).map(str::to_owned);
            let arguments = match call.get("args") {
                None | Some(Value::Null) => String::new(),
                Some(Value::String(text)) => text.clone(),
                Some(other) => other.to_string(),
            };
            out.push(Delta::Call {
                index: Some(self.calls),
                id: word("id"),
                name: word("name"),
                arguments,
            });
            out.extend(signature.map(|s| Delta::Part(json!({"functionCall": self.calls, "thoughtSignature": s}))));
            self.calls += 1;
            self.places.push(self.text);
            self.after_call = true;
            return;
        }
        // Pictures, code that ran, and what we do not know, are no texts.
        let Some(text) = part.get("text").and_then(Value::as_str) else {
            return;
        };
        if part.get("thought") == Some(&Value::Bool(true)) {
            if !text.is_empty() {
                out.push(Delta::Reasoning(text.to_owned()));
            }
            return;
        }
        if !text.trim().is_empty() {
            // What stands on both sides of a call is two texts.
            let is_apart = std::mem::take(&mut self.after_call) && self.text > 0 && !self.ends_blank;
            if is_apart && !text.starts_with(char::is_whitespace) {
                self.text += BETWEEN.len();
                out.push(Delta::Text(BETWEEN.to_owned()));
            }
            self.ends_blank = text.ends_with(char::is_whitespace);
        }
        let from = self.text;
        self.text += text.len();
        if !text.is_empty() {
            out.push(Delta::Text(text.to_owned()));
        }
        out.extend(signature.map(|s| Delta::Part(json!({"text": [from, self.text], "thoughtSignature": s}))));
    }

    fn finish_with(&mut self, out: &mut Vec<Delta>) {
        let reason = match self.finish.take() {
            None | Some(FinishReason::Stop) if self.calls > 0 => FinishReason::ToolCalls,
            None => FinishReason::Stop,
            Some(reason) => reason,
        };
        // A call that a text follows goes back before it.
        let behind = (0..).zip(&self.places).filter(|(_, at)| **at < self.text);
        out.extend(
            behind.map(|(call, at): (u64, _)| Delta::Part(json!({"functionCall": call, "at": [at, self.text]}))),
        );
        // What the provider says of an answer that it did not give.
        if let Some(message) = self.message.take().filter(|_| self.text == 0 && self.calls == 0) {
            out.push(Delta::Text(message));
        }
        out.push(Delta::Finish(reason));
    }
}

fn finish_reason(word: &str) -> FinishReason {
    match word {
        "STOP" => FinishReason::Stop,
        "MAX_TOKENS" => FinishReason::Length,
        "SAFETY"
        | "RECITATION"
        | "BLOCKLIST"
        | "PROHIBITED_CONTENT"
        | "SPII"
        | "LANGUAGE"
        | "IMAGE_SAFETY"
        | "IMAGE_PROHIBITED_CONTENT"
        | "IMAGE_RECITATION" => FinishReason::ContentFilter,
        // A call that could not be read (MALFORMED_FUNCTION_CALL), and what else there will be.
        other => FinishReason::Other(other.to_owned()),
    }
}
