//! What is said to the worker of a transformers checkpoint, and what it answers.

use std::sync::Arc;

use decanus_chat::{Arguments, Role};
use serde_json::{Map, Value, json};

use crate::conversation::{Delta, FinishReason};
use crate::dialect::{Fault, Request, StreamDecoder, write_json};
use crate::exec_wire::AnswerDecoder;
use crate::huggingface::NAME;
use crate::huggingface_text::Sorter;
use crate::ollama::object;
use crate::sse::Event;
use crate::structured::Format;
use crate::tool_choice::ToolChoice;
use crate::tool_names::ToolNames;
use crate::turns::{Turn, WireIds, next_group};

/// Parameters that are no arguments of `generate`.
const RESERVED: [&str; 9] = [
    "model",
    "messages",
    "tools",
    "tool_choice",
    "stream",
    "format",
    "chat_template",
    "chat_template_kwargs",
    "generation_kwargs",
];

/// Other names of `max_new_tokens`: what providers call it.
const MAX_TOKENS: [&str; 4] = [
    "max_tokens",
    "max_completion_tokens",
    "max_output_tokens",
    "num_predict",
];

/// Arguments of `generate` that have no effect unless it samples.
const SAMPLING: [&str; 5] = ["temperature", "top_p", "top_k", "min_p", "typical_p"];

/// A request for an answer, without the line's end. `settings` are the names that belong to the loading of a model.
///
/// # Errors
/// [`Fault::Config`]: a message that can't be read or given to a text model; a parameter that can't be heeded.
pub(crate) fn request(request: &Request<'_>, settings: &[&str]) -> Result<Vec<u8>, Fault> {
    let mut chat = Map::new();
    chat.insert("messages".into(), messages(request)?.into());
    let tools = tools(request)?;
    if !tools.is_empty() {
        chat.insert("tools".into(), tools.into());
    }
    let parameter = |name: &str| request.parameter(name).filter(|value| !value.is_null());
    if let Some(template) = parameter("chat_template") {
        let text = template.as_str().filter(|text| !text.trim().is_empty());
        text.ok_or_else(|| Fault::Config("`chat_template` is no text".into()))?;
        chat.insert("chat_template".into(), template.clone());
    }
    let map = |name: &str| match parameter(name) {
        None => Ok(Map::new()),
        Some(Value::Object(map)) => Ok(map.clone()),
        Some(other) => Err(Fault::Config(format!("`{name}` is not a map: {other}"))),
    };
    let of_template = map("chat_template_kwargs")?;
    if !of_template.is_empty() {
        chat.insert("chat_template_kwargs".into(), of_template.into());
    }
    let mut generation = map("generation_kwargs")?;
    generation.extend(request.parameters(&[&RESERVED[..], settings].concat()));
    generation.retain(|_, value| !value.is_null());
    if let Some(seed) = generation.shift_remove("seed") {
        let number = seed.as_u64().filter(|n| *n < 1 << 32);
        let number = number.ok_or_else(|| Fault::Config(format!("`seed` is no number from 0 to 2³²-1: {seed}")))?;
        chat.insert("seed".into(), number.into());
    }
    chat.insert("generation".into(), arguments(generation)?.into());
    chat.insert("stream".into(), request.stream.into());
    let mut out = Vec::new();
    write_json(&mut out, &json!({"chat": chat}));
    Ok(out)
}

/// Parameters, by the names that `generate` has for them.
fn arguments(mut generation: Map<String, Value>) -> Result<Map<String, Value>, Fault> {
    for name in MAX_TOKENS {
        if let Some(value) = generation.shift_remove(name) {
            generation.insert("max_new_tokens".into(), value);
        }
    }
    if let Some(value) = generation.get("max_new_tokens")
        && value.as_u64().is_none_or(|n| n == 0)
    {
        return Err(Fault::Config(format!("`max_tokens` is no number above 0: {value}")));
    }
    if let Some(stop) = generation.shift_remove("stop") {
        generation.insert("stop_strings".into(), stop);
    }
    // For a provider, a temperature of 0 is the likeliest answer; here it is an error.
    if generation.get("temperature").is_some_and(|t| t.as_f64() == Some(0.0)) {
        generation.retain(|name, _| !SAMPLING.contains(&name.as_str()));
        generation.insert("do_sample".into(), false.into());
    } else if SAMPLING.iter().any(|name| generation.contains_key(*name)) {
        generation.entry("do_sample").or_insert(true.into());
    }
    generation.sort_keys();
    Ok(generation)
}

fn messages(request: &Request<'_>) -> Result<Vec<Value>, Fault> {
    let view = request.view;
    let (mut ids, mut at) = (WireIds::default(), 0);
    let mut messages: Vec<Value> = Vec::new();
    // Most chat templates take one system message, at the beginning.
    let leading = view.messages.iter().take_while(|m| m.role == Role::System).count();
    let mut system: Vec<&str> = view.messages[..leading].iter().map(|m| m.content.as_str()).collect();
    let words = Format::read(request.parameter("format"))?.map(|format| format.instruction());
    system.extend(words.as_deref());
    if !system.is_empty() {
        messages.push(json!({"role": "system", "content": system.join("\n\n")}));
    }
    at += leading;
    while at < view.messages.len() {
        let group = next_group(&view.messages[at..], at, &mut ids).map_err(Fault::Config)?;
        for turn in &group.turns {
            match turn {
                Turn::System(text) => messages.push(json!({"role": "system", "content": text})),
                Turn::User(text) => messages.push(json!({"role": "user", "content": text})),
                Turn::Media(media) => {
                    let what = if media.is_pdf { "documents" } else { "pictures" };
                    let message = format!("message {}: the backend {NAME} takes no {what}", at + 1);
                    return Err(Fault::Config(message));
                }
                Turn::Answer { text, calls, .. } => {
                    let mut message = json!({"role": "assistant", "content": text.as_deref().unwrap_or("")});
                    if !calls.is_empty() {
                        let calls = calls.iter().map(|call| {
                            json!({"id": call.id, "type": "function", "function": {
                                "name": request.names.wire(&call.name),
                                // Chat templates want an object, not its text.
                                "arguments": object(&call.arguments),
                            }})
                        });
                        message["tool_calls"] = calls.collect();
                    }
                    messages.push(message);
                }
                Turn::Outputs(outputs) => messages.extend(outputs.iter().map(|output| {
                    json!({"role": "tool", "name": request.names.wire(&output.name), "tool_call_id": output.id,
                        "content": output.content})
                })),
            }
        }
        at += group.messages;
    }
    Ok(messages)
}

fn tools(request: &Request<'_>) -> Result<Vec<Value>, Fault> {
    let choice = request.view.tool_choice.map(|choice| ToolChoice::read(choice, request));
    match choice.transpose()? {
        None | Some(ToolChoice::Auto) => {}
        Some(ToolChoice::None) => return Ok(Vec::new()),
        Some(ToolChoice::Required | ToolChoice::Tool(_)) => {
            return Err(Fault::Config(format!(
                "the backend {NAME} can't make a model call a tool; `tool_choice` must be auto or none"
            )));
        }
    }
    let mut tools: Vec<_> = request.view.tools.iter().collect();
    tools.sort_by(|a, b| a.name.cmp(&b.name));
    let shown = tools.into_iter().map(|tool| {
        json!({"type": "function", "function": {
            "name": request.names.wire(&tool.name),
            "description": tool.description,
            "parameters": tool.wire_parameters(),
        }})
    });
    Ok(shown.collect())
}

/// Reads the lines of one answer.
pub(crate) struct Decoder {
    lines: AnswerDecoder,
    text: Sorter,
}

impl Decoder {
    /// For an answer that may call these tools.
    pub fn new(offered: Arc<ToolNames>) -> Self {
        Self {
            lines: AnswerDecoder::default(),
            text: Sorter::new(offered),
        }
    }

    /// A message that the checkpoint's own tokenizer took apart.
    fn message(&mut self, message: &Value, out: &mut Vec<Delta>) {
        let text = |name: &str| message.get(name).and_then(Value::as_str).filter(|t| !t.is_empty());
        let thinking = ["thinking", "reasoning", "reasoning_content"]
            .iter()
            .find_map(|name| text(name));
        out.extend(thinking.map(|t| Delta::Reasoning(t.to_owned())));
        if let Some(content) = text("content") {
            self.text.push(content, out);
        }
        let calls = message.get("tool_calls").and_then(Value::as_array);
        for call in calls.into_iter().flatten() {
            match Call::read(call) {
                Some(call) => self.text.call(call),
                None => out.push(Delta::Warning(format!(
                    "a tool call of the model has no name: {}",
                    decanus_base::text::brief(&call.to_string(), 200)
                ))),
            }
        }
    }
}

impl StreamDecoder for Decoder {
    fn event(&mut self, event: &Event, out: &mut Vec<Delta>) -> Result<bool, Fault> {
        let value: Value = serde_json::from_str(&event.data).unwrap_or_default();
        if let Some(message) = value.get("message").filter(|m| m.is_object()) {
            self.message(message, out);
            return Ok(false);
        }
        if let Some(warning) = value.get("warning").and_then(Value::as_str) {
            out.push(Delta::Warning(warning.to_owned()));
            return Ok(false);
        }
        // Its prompt ends within the model's thoughts.
        if value.get("thinks") == Some(&Value::Bool(true)) {
            self.text.thinks();
            return Ok(false);
        }
        // It computes.
        if value.get("alive").is_some() {
            return Ok(false);
        }
        let mut said = Vec::new();
        let result = self.lines.event(event, &mut said);
        for delta in said {
            match delta {
                Delta::Text(text) => self.text.push(&text, out),
                Delta::Finish(reason) => {
                    let called = self.text.finish(out);
                    let reason = match reason {
                        FinishReason::Stop if called => FinishReason::ToolCalls,
                        other => other,
                    };
                    out.push(Delta::Finish(reason));
                }
                other => out.push(other),
            }
        }
        result
    }

    fn is_complete(&self) -> bool {
        self.lines.is_complete()
    }

    fn end(&mut self, out: &mut Vec<Delta>) -> Result<(), Fault> {
        self.lines.end(out)
    }
}

/// A tool call as models and chat templates write it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Call {
    pub id: Option<String>,
    pub name: String,
    /// JSON text.
    pub arguments: String,
}

impl Call {
    /// Reads `{"name", "arguments"}`, `{"name", "parameters"}`, or either under `function`; the id may be missing.
    pub fn read(value: &Value) -> Option<Self> {
        let inner = value.get("function").filter(|f| f.is_object()).unwrap_or(value);
        let name = inner
            .get("name")
            .or_else(|| value.get("name"))
            .or_else(|| value.get("function"));
        let name = name.and_then(Value::as_str).map(str::trim).filter(|n| !n.is_empty())?;
        let arguments = [inner, value]
            .iter()
            .flat_map(|v| [v.get("arguments"), v.get("parameters")])
            .flatten()
            .next();
        let id = value.get("id").and_then(Value::as_str).filter(|id| !id.is_empty());
        Some(Self {
            id: id.map(str::to_owned),
            name: name.to_owned(),
            arguments: Arguments::from_value(arguments).to_text(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_in_all_their_forms() {
        let forms = [
            json!({"id": "c", "type": "function", "function": {"name": "f", "arguments": {"x": 1}}}),
            json!({"id": "c", "function": {"name": "f", "arguments": "{\"x\": 1}"}}),
            json!({"id": "c", "function": {"name": "f"}, "arguments": {"x": 1}}),
            json!({"id": "c", "name": "f", "parameters": {"x": 1}}),
            json!({"id": "c", "type": "function", "function": "f", "parameters": {"x": 1}}),
            json!({"id": "c", "name": "f", "arguments": {"x": 1}}),
        ];
        for form in forms {
            let call = Call::read(&form).unwrap();
            let parts = (call.id.as_deref(), call.name.as_str(), call.arguments.as_str());
            assert_eq!(parts, (Some("c"), "f", "{\"x\":1}"), "{form}");
        }
        let bare = Call::read(&json!({"name": "f"})).unwrap();
        assert_eq!((bare.id, bare.arguments.as_str()), (None, "{}"));
        for bad in [json!({}), json!({"name": ""}), json!("f"), json!({"function": {}})] {
            assert_eq!(Call::read(&bad), None, "{bad}");
        }
    }

    #[test]
    fn parameters_by_the_names_of_generate() {
        let of = |value: Value| arguments(value.as_object().unwrap().clone());
        assert_eq!(
            Value::Object(of(json!({"max_tokens": 5, "temperature": 0, "top_p": 0.5, "stop": ["a"]})).unwrap()),
            json!({"do_sample": false, "max_new_tokens": 5, "stop_strings": ["a"]})
        );
        assert_eq!(
            Value::Object(of(json!({"temperature": 0.5, "repetition_penalty": 1.1})).unwrap()),
            json!({"do_sample": true, "repetition_penalty": 1.1, "temperature": 0.5})
        );
        for bad in [json!({"max_tokens": 0}), json!({"max_new_tokens": "many"})] {
            assert!(matches!(of(bad), Err(Fault::Config(m)) if m.starts_with("`max_tokens`")));
        }
    }
}
