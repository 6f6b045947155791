//! Ollama's own `POST …/api/chat`: decoding of bodies and streams, and of what imitations send in their place.

use decanus_base::text::brief;
use decanus_chat::{Arguments, Usage};
use md5::{Digest, Md5};
use serde_json::{Map, Value, json};

use crate::body::malformed;
use crate::conversation::{Delta, FinishReason};
use crate::dialect::{Fault, StreamDecoder};
use crate::refusal;
use crate::sse::Event;

/// Decodes a whole body: one answer, a list of the lines of a stream, or such lines under another content type.
///
/// # Errors
/// An error in a body of status 200; a body that is not an answer.
pub fn decode(body: &[u8]) -> Result<Vec<Delta>, Fault> {
    let body = body.strip_prefix("\u{feff}".as_bytes()).unwrap_or(body);
    let mut values = Vec::new();
    for value in serde_json::Deserializer::from_slice(body).into_iter::<Value>() {
        match value.map_err(|e| malformed(body, &e))? {
            Value::Array(items) => values.extend(items),
            other => values.push(other),
        }
    }
    if values.is_empty() {
        return Err(Fault::Malformed("the body is empty".into()));
    }
    let mut decoder = LineDecoder::default();
    let mut out = Vec::new();
    let mut says_done = false;
    for value in &values {
        says_done |= value.get("done").is_some_and(Value::is_boolean);
        decoder.line(value, &mut out)?;
    }
    if says_done && decoder.finish.is_none() {
        return Err(Fault::Incomplete("no line of the body says that it is done".into()));
    }
    decoder.finish_with(&mut out);
    Ok(out)
}

/// Decodes a stream of lines.
#[derive(Debug, Default)]
pub struct LineDecoder {
    model: bool,
    thinking: String,
    /// The call whose arguments may still go on, and how many were before it.
    open: Option<OpenCall>,
    calls: u64,
    counted: bool,
    finish: Option<FinishReason>,
}

#[derive(Debug)]
struct OpenCall {
    id: String,
    name: String,
    arguments: String,
}

impl StreamDecoder for LineDecoder {
    fn event(&mut self, event: &Event, out: &mut Vec<Delta>) -> Result<bool, Fault> {
        let value: Value = serde_json::from_str(&event.data)
            .map_err(|e| Fault::Malformed(format!("a line is not JSON ({e}): {}", brief(&event.data, 200))))?;
        self.line(&value, out)?;
        // A second line that is done says nothing new, except for counts that the first one lacked.
        if self.finish.is_none() || !self.counted {
            return Ok(false);
        }
        self.finish_with(out);
        Ok(true)
    }

    fn is_complete(&self) -> bool {
        self.finish.is_some()
    }

    fn end(&mut self, out: &mut Vec<Delta>) -> Result<(), Fault> {
        if self.finish.is_none() {
            return Err(Fault::Incomplete("the stream ended without a line that is done".into()));
        }
        self.finish_with(out);
        Ok(())
    }
}

impl LineDecoder {
    fn finish_with(&mut self, out: &mut Vec<Delta>) {
        self.close_call(out);
        let thinking = std::mem::take(&mut self.thinking);
        if self.calls > 0 && !thinking.is_empty() {
            out.push(Delta::Part(json!({"thinking": thinking})));
        }
        let reason = match self.finish.take() {
            // The API says `stop` after calls, too.
            None | Some(FinishReason::Stop) if self.calls > 0 => FinishReason::ToolCalls,
            None => FinishReason::Stop,
            Some(reason) => reason,
        };
        out.push(Delta::Finish(reason));
    }

    /// What a line or a whole body says.
    fn line(&mut self, value: &Value, out: &mut Vec<Delta>) -> Result<(), Fault> {
        let said = || brief(&value.to_string(), 200);
        let map = value
            .as_object()
            .ok_or_else(|| Fault::Malformed(format!("it is not an object: {}", said())))?;
        // `message` is the answer here, not an error's words.
        let message = map.get("message").and_then(Value::as_object);
        if let Some(fault) = map.get("error").and_then(|e| refusal::from_value(&json!({"error": e}))) {
            return Err(fault);
        }
        let is_answer = message.is_some() || ["done", "response", "tool_calls"].iter().any(|n| map.contains_key(*n));
        if !is_answer {
            let fault = refusal::from_value(value);
            return Err(fault.unwrap_or_else(|| Fault::Malformed(format!("there is no `message` in {}", said()))));
        }
        if let Some(model) = map
            .get("model")
            .and_then(Value::as_str)
            .filter(|m| !m.is_empty() && !self.model)
        {
            self.model = true;
            out.push(Delta::Model(model.to_owned()));
        }
        // Some imitations stream in the form of the older API, with everything on the line itself.
        let message = message.unwrap_or(map);
        let text = |names: &[&str]| {
            let found = names.iter().find_map(|n| message.get(*n).and_then(Value::as_str));
            found.filter(|t| !t.is_empty()).map(str::to_owned)
        };
        if let Some(thinking) = text(&["thinking", "reasoning_content", "reasoning"]) {
            self.thinking.push_str(&thinking);
            out.push(Delta::Reasoning(thinking));
        }
        if let Some(text) = text(&["content", "response"]) {
            out.push(Delta::Text(text));
        }
        for calls in [
            message.get("tool_calls"),
            map.get("tool_calls").filter(|_| !std::ptr::eq(message, map)),
        ] {
            for call in calls.and_then(Value::as_array).into_iter().flatten() {
                self.call(call, out);
            }
        }
        self.usage(value, out);
        if map.get("done") == Some(&Value::Bool(true)) {
            let reason = map.get("done_reason").and_then(Value::as_str).unwrap_or("stop");
            // Of two such lines the first one knows.
            self.finish.get_or_insert_with(|| finish_reason(reason));
        }
        Ok(())
    }

    fn usage(&mut self, value: &Value, out: &mut Vec<Delta>) {
        let own = Usage::from_provider(value);
        let usage = match value.get("usage") {
            Some(usage) if own.is_empty() => Usage::from_provider(usage),
            _ => own,
        };
        if !usage.is_empty() {
            self.counted = true;
            out.push(Delta::Usage(usage));
        }
    }

    fn call(&mut self, call: &Value, out: &mut Vec<Delta>) {
        let Some(call) = call.as_object() else { return };
        let function = call.get("function").and_then(Value::as_object).unwrap_or(call);
        let text = |map: &Map<String, Value>, name: &str| {
            let text = map.get(name).and_then(Value::as_str);
            text.unwrap_or_default().to_owned()
        };
        let (id, name) = (text(call, "id"), text(function, "name"));
        let arguments = match function.get("arguments") {
            None | Some(Value::Null) => String::new(),
            Some(Value::String(text)) => text.clone(),
            Some(other) => other.to_string(),
        };
        if let Some(open) = &mut self.open
            && (name.is_empty() || (!id.is_empty() && id == open.id))
        {
            open.arguments.push_str(&arguments);
            return;
        }
        self.close_call(out);
        self.open = Some(OpenCall { id, name, arguments });
    }

    /// Gives out the call that no later line can add to.
    fn close_call(&mut self, out: &mut Vec<Delta>) {
        let Some(call) = self.open.take() else { return };
        let arguments = Arguments::from_text(&call.arguments).to_text();
        // The same call has the same id, however its arguments came; the collector tells equal ones apart.
        let id = if call.id.is_empty() {
            format!("{}_{}", call.name, md5_hex(&arguments))
        } else {
            call.id
        };
        out.push(Delta::Call {
            index: Some(self.calls),
            id: Some(id),
            name: Some(call.name),
            arguments,
        });
        self.calls += 1;
    }
}

fn md5_hex(text: &str) -> String {
    Md5::digest(text.as_bytes())
        .iter()
        .map(|b| format!("{b:02x}"))
        .collect()
}

fn finish_reason(word: &str) -> FinishReason {
    match word {
        "" | "stop" => FinishReason::Stop,
        "length" => FinishReason::Length,
        "tool_calls" => FinishReason::ToolCalls,
        // `load` and `unload`: nothing was asked, the model was only made ready or put away.
        other => FinishReason::Other(other.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_that_are_no_answer() {
        for body in ["", "null", "{}", "[1]", "<html>", "{\"model\":\"m\"}", "data: {}"] {
            assert!(matches!(decode(body.as_bytes()), Err(Fault::Malformed(_))), "{body}");
        }
        for body in ["{\"message\":", "{\"message\":{\"content\":\"a\"},\"done\":false}"] {
            assert!(matches!(decode(body.as_bytes()), Err(Fault::Incomplete(_))), "{body}");
        }
        for body in [
            "{\"error\":\"model 'x' not found\"}",
            "{\"detail\":\"no\"}",
            "{\"message\":\"no\"}",
        ] {
            assert!(matches!(decode(body.as_bytes()), Err(Fault::Refused { .. })), "{body}");
        }
    }

    #[test]
    fn an_empty_error_is_none() {
        let body = br#"{"error":"","message":{"content":"hi"},"done":true}"#;
        assert_eq!(
            decode(body),
            Ok(vec![Delta::Text("hi".into()), Delta::Finish(FinishReason::Stop)])
        );
    }

    #[test]
    fn reasons() {
        for (body, reason) in [
            (
                r#"{"message":{"content":""},"done":true,"done_reason":"load"}"#,
                FinishReason::Other("load".into()),
            ),
            (
                r#"{"message":{"content":""},"done":true,"done_reason":"length"}"#,
                FinishReason::Length,
            ),
            (r#"[{"message":{"content":"x"},"done":true}]"#, FinishReason::Stop),
            (
                r#"{"message":{"tool_calls":[{"function":{"name":"f"}}]},"done":true,"done_reason":"stop"}"#,
                FinishReason::ToolCalls,
            ),
        ] {
            assert_eq!(
                decode(body.as_bytes()).unwrap().pop(),
                Some(Delta::Finish(reason)),
                "{body}"
            );
        }
    }
}
