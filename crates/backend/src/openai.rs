//! OpenAI's Chat Completions, as the many servers that imitate it speak it: encoding.

use decanus_base::Secret;
use decanus_chat::ToolDefinition;
use serde_json::{Map, Value, json};

use crate::conversation::Delta;
use crate::dialect::{Dialect, Fault, Request, StreamDecoder, write_json};
use crate::openai_decode::{ChatDecoder, decode};
use crate::profile::Profile;
use crate::refusal;
use crate::tool_choice::ToolChoice;
use crate::tool_names::ToolNames;
use crate::turns::{Media, Turn};

/// Parameters that the request sets itself.
const RESERVED: [&str; 6] = ["model", "messages", "tools", "stream", "stream_options", "format"];

/// The host that never answers without a key.
const OPENAI_HOST: &str = "api.openai.com";

/// The dialect of `POST …/chat/completions`.
#[derive(Debug, Clone, Copy, Default)]
pub struct OpenAi;

impl Dialect for OpenAi {
    fn name(&self) -> &'static str {
        "openai"
    }

    fn path(&self, _: &Profile, _: bool) -> String {
        "/chat/completions".into()
    }

    fn key_header(&self, key: &Secret) -> (&'static str, Secret) {
        ("authorization", Secret::new(format!("Bearer {}", key.expose())))
    }

    fn missing_key(&self, url: &str) -> Option<String> {
        let url = reqwest::Url::parse(url).ok()?;
        (url.host_str() == Some(OPENAI_HOST))
            .then(|| "no key: set OPENAI_API_KEY, or `key_env` or `key` in the endpoint's file".into())
    }

    fn head(
        &self,
        profile: &Profile,
        tools: &[ToolDefinition],
        names: &ToolNames,
        out: &mut Vec<u8>,
    ) -> Result<(), Fault> {
        out.extend_from_slice(b"{\"model\":");
        write_json(out, &profile.model);
        // An empty list is refused by OpenAI and vLLM.
        if !tools.is_empty() {
            out.extend_from_slice(b",\"tools\":");
            let mut tools: Vec<_> = tools.iter().collect();
            tools.sort_by(|a, b| a.name.cmp(&b.name));
            let tools: Vec<Value> = tools
                .into_iter()
                .map(|tool| {
                    json!({"type": "function", "function": {
                        "name": names.wire(&tool.name),
                        "description": tool.description,
                        "parameters": tool.wire_parameters(),
                    }})
                })
                .collect();
            write_json(out, &tools);
        }
        out.extend_from_slice(b",\"messages\":[");
        Ok(())
    }

    fn turn(&self, turn: &Turn, names: &ToolNames, first: bool, out: &mut Vec<u8>) {
        let mut separate = !first;
        let mut message = |value: Value| {
            if std::mem::replace(&mut separate, true) {
                out.push(b',');
            }
            write_json(out, &value);
        };
        match turn {
            Turn::System(text) => message(json!({"role": "system", "content": text})),
            Turn::User(text) => message(json!({"role": "user", "content": text})),
            Turn::Media(media) => message(json!({"role": "user", "content": [content_part(media)]})),
            Turn::Answer { text, calls, .. } if calls.is_empty() => {
                message(json!({"role": "assistant", "content": text.as_deref().unwrap_or("")}));
            }
            Turn::Answer { parts, text, calls } => {
                let calls: Vec<Value> = calls
                    .iter()
                    .map(|call| {
                        json!({"id": call.id, "type": "function", "function": {
                            "name": names.wire(&call.name),
                            "arguments": call.arguments.to_text(),
                        }})
                    })
                    .collect();
                // `null` is what the API itself answers with; some gateways refuse empty texts, others a missing one.
                let mut value = json!({"role": "assistant", "content": text});
                // Servers with thinking on refuse the calls without the reasoning that led to them.
                let own = parts.iter().filter(|p| p.backend == self.name());
                for part in own.flat_map(|p| &p.parts).filter_map(Value::as_object) {
                    part.iter().for_each(|(name, text)| value[name] = text.clone());
                }
                value["tool_calls"] = calls.into();
                message(value);
            }
            Turn::Outputs(outputs) => {
                for output in outputs {
                    message(json!({"role": "tool", "tool_call_id": output.id, "content": output.content}));
                }
            }
        }
    }

    // Parameters stand after the conversation: `tool_choice` and sampling may change from round to round, and what is
    // before the messages must not.
    fn tail(&self, request: &Request<'_>, out: &mut Vec<u8>) -> Result<(), Fault> {
        out.push(b']');
        let mut members = request.parameters(&RESERVED);
        let format = request
            .view
            .parameters
            .get("format")
            .or_else(|| request.profile.parameters.get("format"));
        if let Some(format) = format.filter(|f| !f.is_null()) {
            members.insert("response_format".into(), response_format(format)?);
        }
        if request.view.tools.is_empty() {
            // Both are refused without tools.
            members.shift_remove("tool_choice");
            members.shift_remove("parallel_tool_calls");
        } else if let Some(choice) = request.view.tool_choice {
            members.insert("tool_choice".into(), tool_choice(choice, request)?);
        }
        if request.stream {
            members.insert("stream".into(), true.into());
            if request.profile.stream_usage {
                members.insert("stream_options".into(), json!({"include_usage": true}));
            }
        }
        for (name, value) in &members {
            out.push(b',');
            write_json(out, name);
            out.push(b':');
            write_json(out, value);
        }
        out.push(b'}');
        Ok(())
    }

    fn decode(&self, body: &[u8]) -> Result<Vec<Delta>, Fault> {
        decode(body)
    }

    fn refusal(&self, status: u16, body: &[u8]) -> Fault {
        refusal::from_body(status, body)
    }

    fn decoder(&self) -> Box<dyn StreamDecoder> {
        Box::new(ChatDecoder::default())
    }
}

/// A picture or document as a part of a message's content.
fn content_part(media: &Media) -> Value {
    match media.is_pdf {
        false => json!({"type": "image_url", "image_url": {"url": media.url}}),
        true => json!({"type": "file", "file": {"filename": "document.pdf", "file_data": media.url}}),
    }
}

fn tool_choice(choice: &str, request: &Request<'_>) -> Result<Value, Fault> {
    Ok(match ToolChoice::read(choice, request)? {
        ToolChoice::Auto => "auto".into(),
        ToolChoice::None => "none".into(),
        ToolChoice::Required => "required".into(),
        ToolChoice::Tool(name) => json!({"type": "function", "function": {"name": name}}),
    })
}

/// `response_format` from what a chat calls `format`: a word, a whole `json_schema` object, or a schema.
fn response_format(format: &Value) -> Result<Value, Fault> {
    match format {
        Value::String(word) if word == "json" || word == "json_object" => Ok(json!({"type": "json_object"})),
        Value::String(word) => Ok(json!({"type": word})),
        Value::Object(map) if map.get("type").and_then(Value::as_str) == Some("json_schema") => {
            if map.contains_key("json_schema") {
                return Ok(format.clone());
            }
            let inner: Map<String, Value> = map
                .iter()
                .filter(|(k, _)| *k != "type")
                .map(|(k, v)| (k.clone(), v.clone()))
                .collect();
            Ok(json!({"type": "json_schema", "json_schema": inner}))
        }
        Value::Object(map) => {
            let (name, schema) = crate::format::schema(map);
            Ok(json!({"type": "json_schema", "json_schema": {"name": name, "schema": schema, "strict": true}}))
        }
        other => Err(Fault::Config(format!(
            "`format` is neither a word nor a schema: {other}"
        ))),
    }
}
