//! What is said to a program that is a backend, and what it answers: one line of JSON each.

use decanus_base::text::brief;
use decanus_chat::{Arguments, Usage};
use serde_json::{Map, Value, json};

use crate::conversation::{Delta, FinishReason, View};
use crate::dialect::{Dialect, Fault, StreamDecoder, write_json};
use crate::halves::repair;
use crate::openai::OpenAi;
use crate::profile::Profile;
use crate::refusal;
use crate::sse::Event;
use crate::tool_names::ToolNames;
use crate::turns::{Turn, WireIds, next_group};

/// The backend's name.
pub(crate) const NAME: &str = "exec";

/// A request, without the line's end.
///
/// # Errors
/// A message that can't be read.
pub(crate) fn request(profile: &Profile, view: &View<'_>, names: &ToolNames, stream: bool) -> Result<Vec<u8>, String> {
    let mut out = b"{\"model\":".to_vec();
    write_json(&mut out, &profile.model);
    out.extend_from_slice(b",\"messages\":[");
    let (mut ids, mut at) = (WireIds::default(), 0);
    let before_messages = out.len();
    while at < view.messages.len() {
        let group = next_group(&view.messages[at..], at, &mut ids)?;
        for turn in &group.turns {
            // Messages have the form of OpenAI's Chat Completions; a program's own parts stand beside them.
            let first = out.len() == before_messages;
            OpenAi::default().turn(turn, names, first, &mut out);
            if let Turn::Answer { parts: Some(own), .. } = turn
                && own.backend == NAME
            {
                out.pop();
                out.extend_from_slice(b",\"parts\":");
                write_json(&mut out, &own.parts);
                out.push(b'}');
            }
        }
        at += group.messages;
    }
    out.extend_from_slice(b"],\"tools\":");
    let mut tools: Vec<_> = view.tools.iter().collect();
    tools.sort_by(|a, b| a.name.cmp(&b.name));
    let tools = tools.into_iter().map(|tool| {
        json!({"type": "function", "function": {
            "name": names.wire(&tool.name),
            "description": tool.description,
            "parameters": tool.wire_parameters(),
        }})
    });
    write_json(&mut out, &tools.collect::<Vec<Value>>());
    let mut parameters = profile.parameters.clone();
    parameters.extend(view.parameters.iter().map(|(k, v)| (k.clone(), v.clone())));
    if let Some(choice) = view.tool_choice {
        parameters.insert("tool_choice".into(), choice.into());
    }
    parameters.sort_keys();
    out.extend_from_slice(b",\"parameters\":");
    write_json(&mut out, &parameters);
    out.extend_from_slice(if stream {
        b",\"stream\":true}"
    } else {
        b",\"stream\":false}"
    });
    Ok(out)
}

/// Reads the lines of one answer.
#[derive(Debug, Default)]
pub(crate) struct AnswerDecoder {
    line: usize,
    calls: u64,
    complete: bool,
}

impl StreamDecoder for AnswerDecoder {
    fn event(&mut self, event: &Event, out: &mut Vec<Delta>) -> Result<bool, Fault> {
        self.line += 1;
        let bad = |what: String| {
            let shown = brief(&event.data, 200);
            Fault::Malformed(format!("line {} of its answer {what}: {shown}", self.line))
        };
        let value: Value = serde_json::from_str(&repair(&event.data)).map_err(|e| bad(format!("is not JSON ({e})")))?;
        let map = value.as_object().ok_or_else(|| bad("is not an object".into()))?;
        let known = ["text", "reasoning", "part", "call", "usage", "error", "done"];
        if !known.iter().any(|name| map.contains_key(*name)) {
            return Err(bad(format!("has none of {}", known.join(", "))));
        }
        for name in ["text", "reasoning"] {
            match map.get(name) {
                None | Some(Value::Null) => {}
                Some(Value::String(text)) if name == "text" => out.push(Delta::Text(text.clone())),
                Some(Value::String(text)) => out.push(Delta::Reasoning(text.clone())),
                Some(_) => return Err(bad(format!("has a `{name}` that is no text"))),
            }
        }
        if let Some(part) = map.get("part") {
            out.push(Delta::Part(part.clone()));
        }
        if let Some(call) = map.get("call") {
            let text = |name: &str| call.get(name).and_then(Value::as_str).filter(|t| !t.is_empty());
            let name = text("name").ok_or_else(|| bad("has a `call` without `name`".into()))?;
            out.push(Delta::Call {
                index: Some(self.calls),
                id: text("id").map(str::to_owned),
                name: Some(name.to_owned()),
                arguments: Arguments::from_value(call.get("arguments")).to_text(),
            });
            self.calls += 1;
        }
        if let Some(usage) = map.get("usage").map(Usage::from_provider).filter(|u| !u.is_empty()) {
            out.push(Delta::Usage(usage));
        }
        if let Some(error) = map.get("error").filter(|e| !e.is_null()) {
            return Err(refused(error, map));
        }
        match map.get("done") {
            None | Some(Value::Bool(false)) => return Ok(false),
            // `null` as well: a program that has nothing to say of the end.
            Some(done) => out.push(Delta::Finish(self.finish(done.get("finish").and_then(Value::as_str)))),
        }
        self.complete = true;
        Ok(true)
    }

    fn is_complete(&self) -> bool {
        self.complete
    }

    fn end(&mut self, _: &mut Vec<Delta>) -> Result<(), Fault> {
        match self.complete {
            true => Ok(()),
            false => Err(Fault::Incomplete("it ended without `done`".into())),
        }
    }
}

impl AnswerDecoder {
    fn finish(&self, word: Option<&str>) -> FinishReason {
        match word.unwrap_or("stop") {
            "stop" if self.calls > 0 => FinishReason::ToolCalls,
            "stop" => FinishReason::Stop,
            "tool_calls" => FinishReason::ToolCalls,
            "length" => FinishReason::Length,
            "content_filter" => FinishReason::ContentFilter,
            other => FinishReason::Other(other.to_owned()),
        }
    }
}

/// An error that the program reports: `{"message", "status"?}`, or a text.
fn refused(error: &Value, around: &Map<String, Value>) -> Fault {
    let own = error.get("status").and_then(Value::as_u64);
    let own = own
        .and_then(|s| u16::try_from(s).ok())
        .filter(|s| (400..600).contains(s));
    match refusal::from_error(error, around) {
        Fault::Refused { status, code, message } => Fault::Refused {
            status: own.or(status),
            // A code that only repeats the status says nothing.
            code: code.filter(|c| c.parse::<u16>().is_err()),
            message,
        },
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decode(lines: &[&str]) -> (Vec<Delta>, Result<bool, Fault>) {
        let (mut decoder, mut out, mut done) = (AnswerDecoder::default(), Vec::new(), Ok(false));
        for line in lines {
            let event = Event {
                name: String::new(),
                data: (*line).into(),
            };
            done = decoder.event(&event, &mut out);
        }
        (out, done)
    }

    #[test]
    fn every_kind_of_line() {
        let (deltas, done) = decode(&[
            r#"{"reasoning":"r"}"#,
            r#"{"text":"a"}"#,
            r#"{"part":{"x":1}}"#,
            r#"{"call":{"name":"f"}}"#,
            r#"{"call":{"id":"c","name":"g","arguments":"{\"x\": 1}"}}"#,
            r#"{"usage":{"prompt_tokens":2,"completion_tokens":3}}"#,
            r#"{"done":{}}"#,
        ]);
        assert_eq!(done, Ok(true));
        assert_eq!(deltas[0], Delta::Reasoning("r".into()));
        assert_eq!(deltas[2], Delta::Part(json!({"x": 1})));
        assert!(matches!(&deltas[3], Delta::Call { index: Some(0), id: None, arguments, .. } if arguments == "{}"));
        assert!(
            matches!(&deltas[4], Delta::Call { index: Some(1), id: Some(_), arguments, .. } if arguments == r#"{"x":1}"#)
        );
        assert!(matches!(&deltas[5], Delta::Usage(u) if u.tt == Some(5)));
        assert_eq!(deltas[6], Delta::Finish(FinishReason::ToolCalls));
        assert_eq!(decode(&[r#"{"text":"a","done":false}"#]).1, Ok(false));
        assert_eq!(decode(&[r#"{"done":null}"#]).1, Ok(true));
        let (deltas, _) = decode(&[r#"{"text":"a","done":{"finish":"length"}}"#]);
        assert_eq!(deltas[1], Delta::Finish(FinishReason::Length));
    }

    #[test]
    fn noise_is_named_by_its_line() {
        for (line, words) in [
            ("hello", "line 2 of its answer is not JSON"),
            ("[1]", "line 2 of its answer is not an object: [1]"),
            ("{\"txt\":1}", "line 2 of its answer has none of text, "),
            ("{\"text\":1}", "line 2 of its answer has a `text` that is no text"),
            ("{\"call\":{}}", "line 2 of its answer has a `call` without `name`"),
        ] {
            let (_, done) = decode(&[r#"{"text":"a"}"#, line]);
            assert!(
                matches!(&done, Err(Fault::Malformed(m)) if m.starts_with(words)),
                "{done:?}"
            );
        }
    }

    #[test]
    fn errors_that_the_program_reports() {
        let refused = |status, message: &str| {
            Err(Fault::Refused {
                status,
                code: None,
                message: message.into(),
            })
        };
        assert_eq!(
            decode(&[r#"{"error":{"message":"busy","status":429}}"#]).1,
            refused(Some(429), "busy")
        );
        assert_eq!(decode(&[r#"{"error":"no"}"#]).1, refused(None, "no"));
        let long = decode(&[r#"{"error":{"message":"m","code":"context_length_exceeded"}}"#]).1;
        assert!(matches!(long, Err(Fault::TooLong(_))));
    }
}
