//! OpenAI's Chat Completions, as the many servers that imitate it speak it: encoding.

use decanus_base::Secret;
use decanus_chat::{Message, Role, ToolDefinition};
use serde_json::{Map, Value, json};

use crate::conversation::Delta;
use crate::dialect::{self, Dialect, Fault, Request, StreamDecoder, is_at, write_item, write_json, write_members};
use crate::embed::EmbeddingApi;
use crate::image::ImageApi;
use crate::openai_decode::{ChatDecoder, decode};
use crate::profile::Profile;
use crate::refusal;
use crate::structured::words_without_object;
use crate::tool_choice::ToolChoice;
use crate::tool_names::{ToolNames, short_id};
use crate::turns::{Media, Turn};

/// Parameters that the request sets itself.
const RESERVED: [&str; 6] = ["model", "messages", "tools", "stream", "stream_options", "format"];

/// The host that never answers without a key.
const OPENAI_HOST: &str = "api.openai.com";

/// The dialect of `POST …/chat/completions`.
#[derive(Debug, Clone, Copy)]
pub struct OpenAi {
    /// Opaque parts are stored under it.
    backend: &'static str,
    /// What stands between the endpoint's URL and `/chat/completions`.
    base: &'static str,
    /// Whether ids of calls must be short: at OpenAI itself. Gateways put what they need again into long ones.
    short_ids: bool,
}

impl Default for OpenAi {
    fn default() -> Self {
        Self::under("openai", "")
    }
}

impl OpenAi {
    /// The dialect for a server of another name, or below another path.
    pub(crate) fn under(backend: &'static str, base: &'static str) -> Self {
        Self {
            backend,
            base,
            short_ids: false,
        }
    }

    fn call_id(&self, id: &str) -> String {
        match self.short_ids {
            true => short_id(id, MAX_CALL_ID),
            false => id.to_owned(),
        }
    }
}

/// The longest id of a call that OpenAI's Chat Completions take.
const MAX_CALL_ID: usize = 40;

/// The header of a key as OpenAI wants it.
pub(crate) fn bearer(key: &Secret) -> (&'static str, Secret) {
    ("authorization", Secret::new(format!("Bearer {}", key.expose())))
}

/// Whether a URL is OpenAI's own.
pub(crate) fn is_openai(url: &str) -> bool {
    is_at(url, OPENAI_HOST)
}

/// What to say when there is no key for OpenAI.
pub(crate) fn missing_key(url: &str) -> Option<String> {
    dialect::missing_key(url, OPENAI_HOST, "OPENAI_API_KEY")
}

impl Dialect for OpenAi {
    fn name(&self) -> &'static str {
        self.backend
    }

    fn for_request(&self, request: &Request<'_>) -> Option<Self> {
        let short_ids = is_openai(&request.profile.url);
        Some(Self { short_ids, ..*self })
    }

    fn path(&self, profile: &Profile, _: bool) -> String {
        // Some give the whole base.
        let given = profile.url.trim_end_matches('/').ends_with(self.base);
        format!("{}/chat/completions", if given { "" } else { self.base })
    }

    fn key_header(&self, key: &Secret) -> (&'static str, Secret) {
        bearer(key)
    }

    fn missing_key(&self, url: &str) -> Option<String> {
        missing_key(url)
    }

    fn thinks_in_text(&self) -> bool {
        true
    }

    fn instruction(&self, request: &Request<'_>) -> Option<String> {
        // vLLM takes any schema.
        let format = request.parameter("format").filter(|_| self.backend != "vllm");
        words_without_object(format)
    }

    fn images(&self) -> Option<ImageApi> {
        // Open WebUI has its pictures elsewhere, and vLLM makes none.
        (self.backend == "openai").then_some(ImageApi::OpenAi("/images/generations"))
    }

    fn embeddings(&self) -> Option<EmbeddingApi> {
        Some(EmbeddingApi::OpenAi(match self.base {
            "" => "/embeddings",
            _ => "/api/embeddings",
        }))
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
        let mut first = first;
        let mut message = |value: Value| write_item(out, &mut first, &value);
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
                        json!({"id": self.call_id(&call.id), "type": "function", "function": {
                            "name": names.wire(&call.name),
                            "arguments": call.arguments.to_text(),
                        }})
                    })
                    .collect();
                // `null` is what the API itself answers with; some gateways refuse empty texts, others a missing one.
                let mut value = json!({"role": "assistant", "content": text});
                // Servers with thinking on refuse the calls without the reasoning that led to them.
                let own = parts.iter().filter(|p| p.backend == self.name());
                // Items of the Responses API, which a server of both may have made, have a type.
                let own = own.flat_map(|p| &p.parts).filter_map(Value::as_object);
                for part in own.filter(|p| !p.contains_key("type")) {
                    // Servers that give reasoning answer with an empty text, and take their own message back.
                    if text.is_none() {
                        value["content"] = "".into();
                    }
                    part.iter().for_each(|(name, text)| value[name] = text.clone());
                }
                value["tool_calls"] = calls.into();
                message(value);
            }
            Turn::Outputs(outputs) => {
                for output in outputs {
                    message(
                        json!({"role": "tool", "tool_call_id": self.call_id(&output.id), "content": output.content}),
                    );
                }
            }
        }
    }

    // Parameters stand after the conversation: `tool_choice` and sampling may change from round to round, and what is
    // before the messages must not.
    fn tail(&self, request: &Request<'_>, out: &mut Vec<u8>) -> Result<(), Fault> {
        out.push(b']');
        let mut members = request.parameters(&RESERVED);
        if is_openai(&request.profile.url)
            && let Some(most) = members.shift_remove("max_tokens")
        {
            // OpenAI's newer models refuse the older name; servers that imitate them may not know the newer one.
            members.entry("max_completion_tokens").or_insert(most);
            members.sort_keys();
        }
        let by_url = |m: &Message| m.role == Role::Pdf && !m.content.starts_with("data:");
        if request.view.messages.iter().any(by_url) {
            return Err(Fault::Config(format!(
                "{} takes documents as files, not by URL",
                self.backend
            )));
        }
        let format = request.parameter("format");
        if let Some(format) = format.filter(|f| !f.is_null() && self.instruction(request).is_none()) {
            members.insert("response_format".into(), response_format(format, request)?);
        }
        if request.view.tools.is_empty() {
            // Both are refused without tools.
            members.shift_remove("tool_choice");
            members.shift_remove("parallel_tool_calls");
        } else if let Some(choice) = request.view.tool_choice {
            let choice = tool_choice(choice, request)?;
            members.insert("tool_choice".into(), choice);
        }
        if request.stream {
            members.insert("stream".into(), true.into());
            if request.profile.stream_usage {
                members.insert("stream_options".into(), json!({"include_usage": true}));
            }
        }
        write_members(out, &members);
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
        true => json!({"type": "file", "file": {"filename": media.file_name(), "file_data": media.plain_url()}}),
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
fn response_format(format: &Value, request: &Request<'_>) -> Result<Value, Fault> {
    let mut wire = wire_format(format)?;
    if let Some(inner) = wire.get_mut("json_schema").and_then(Value::as_object_mut)
        && !inner.contains_key("strict")
    {
        // A schema that says less than a strict one must is refused when it is called strict.
        let strict = request.profile.quirks.strict_schema;
        let strict = strict.unwrap_or_else(|| inner.get("schema").is_some_and(crate::format::is_strict));
        inner.insert("strict".into(), strict.into());
    }
    Ok(wire)
}

fn wire_format(format: &Value) -> Result<Value, Fault> {
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
            Ok(json!({"type": "json_schema", "json_schema": {"name": name, "schema": schema}}))
        }
        other => Err(Fault::Config(format!(
            "`format` is neither a word nor a schema: {other}"
        ))),
    }
}
