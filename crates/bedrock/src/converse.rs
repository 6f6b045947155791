//! Converse: encoding.
//!
//! Roles must alternate, so all that a person's side says between two answers is one message: outputs first, then texts
//! and pictures. Such a message is left open in the encoded turns and closed by what comes after it.

use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use decanus_backend::Profile;
use decanus_backend::anthropic::input_object;
use decanus_backend::conversation::Delta;
use decanus_backend::dialect::{
    Dialect, Fault, Framing, Request, Signer, StreamDecoder, path_part, write_json, write_members,
};
use decanus_backend::embed::EmbeddingApi;
use decanus_backend::open_message::{add, close, is_open};
use decanus_backend::structured::Format;
use decanus_backend::tool_choice::ToolChoice;
use decanus_backend::tool_names::{ToolNames, wire_form};
use decanus_backend::turns::{Kept, Media, Output, Turn, in_order};
use decanus_backend::wire_schema::plain_root;
use decanus_base::Secret;
use decanus_base::digest::sha256_hex;
use decanus_chat::{FunctionCall, Message, ProviderParts, Role, ToolDefinition};
use serde_json::{Map, Value, json};

use crate::decode::{ConverseDecoder, decode, is_unsigned, refusal};
use crate::frames::EventStream;
use crate::sign::SigV4;

/// The backend's name.
pub const NAME: &str = "bedrock";

/// Parameters that the request sets itself.
const RESERVED: [&str; 10] = [
    "model",
    "messages",
    "system",
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "stream",
    "stream_options",
    "format",
    "cache",
];

/// Parameters that all models share, by our names and by the API's.
const INFERENCE: [(&str, &str); 5] = [
    ("max_tokens", "maxTokens"),
    ("temperature", "temperature"),
    ("top_p", "topP"),
    ("stop", "stopSequences"),
    ("stop_sequences", "stopSequences"),
];

/// Members of the request that an endpoint may give in the API's own form.
const MEMBERS: [&str; 7] = [
    "additionalModelResponseFieldPaths",
    "guardrailConfig",
    "outputConfig",
    "performanceConfig",
    "promptVariables",
    "requestMetadata",
    "serviceTier",
];

/// What is left for the answer when a model's thinking has a budget and the answer no limit: thinking counts.
const ANSWER_TOKENS: u64 = 4096;

/// The length of the longest id of a call.
const MAX_ID: usize = 64;

/// What stands for a message without text: blank texts are refused, and so are messages without content.
const NO_TEXT: &str = "(no text)";

/// What stands between two messages of the model that can't be one.
const GO_ON: &str = "(go on)";

/// The dialect of `POST /model/MODEL/converse`.
#[derive(Debug, Clone, Default)]
pub struct Converse {
    /// Whether the model takes texts beside outputs in one message.
    mixes_outputs: bool,
    /// Whether the model takes its own texts beside calls in one message.
    mixes_calls: bool,
    /// Whether reasoning without a signature is kept and sent back.
    pub(crate) unsigned_thinking: bool,
}

impl Dialect for Converse {
    fn name(&self) -> &'static str {
        NAME
    }

    fn for_request(&self, request: &Request<'_>) -> Option<Self> {
        // What is known to work; other models, and names that do not tell the model, get what all of them take.
        let model = &request.profile.model;
        let claude = model.contains("anthropic.");
        Some(Self {
            mixes_outputs: claude,
            mixes_calls: claude || model.contains("amazon.nova"),
            unsigned_thinking: request.profile.quirks.unsigned_thinking,
        })
    }

    fn path(&self, profile: &Profile, stream: bool) -> String {
        let operation = if stream { "converse-stream" } else { "converse" };
        format!("/model/{}/{operation}", path_part(&profile.model))
    }

    fn embeddings(&self) -> Option<EmbeddingApi> {
        Some(EmbeddingApi::Bedrock)
    }

    fn framing(&self) -> Framing {
        Framing::Own {
            accept: "application/vnd.amazon.eventstream, application/json",
            framer: || Box::new(EventStream::default()),
        }
    }

    fn key_header(&self, key: &Secret) -> (&'static str, Secret) {
        ("authorization", Secret::new(format!("Bearer {}", key.expose())))
    }

    fn missing_key(&self, _: &str) -> Option<String> {
        // What is missing is known when the request is signed.
        None
    }

    fn signer(&self, profile: &Profile) -> Option<Arc<dyn Signer>> {
        profile.key.is_none().then(|| Arc::new(SigV4::new(profile)) as _)
    }

    fn head(&self, _: &Profile, _: &[ToolDefinition], _: &ToolNames, out: &mut Vec<u8>) -> Result<(), Fault> {
        out.extend_from_slice(b"{\"messages\":[");
        Ok(())
    }

    fn turn(&self, turn: &Turn, names: &ToolNames, first: bool, out: &mut Vec<u8>) {
        match turn {
            Turn::System(_) => {}
            Turn::User(text) => self.user_block(first, &text_block(visible(text)), out),
            Turn::Media(media) => {
                // What has no block is refused by the tail.
                if let Ok(block) = media_block(media, out) {
                    self.user_block(first, &block, out);
                }
            }
            Turn::Outputs(outputs) => {
                for (position, output) in outputs.iter().enumerate() {
                    add(&result_block(output), USER, first && position == 0, out);
                }
            }
            Turn::Answer { parts, text, calls } => {
                let own = self.own_parts(parts.as_ref());
                let text = text.as_deref().filter(|t| !t.trim().is_empty());
                let calls: Vec<Value> = calls.iter().map(|call| call_block(call, names)).collect();
                if first {
                    // A conversation begins with the person.
                    add(&text_block(NO_TEXT), USER, true, out);
                }
                if self.mixes_calls {
                    let mut said = in_order(own, kept, text, text_block, calls);
                    if text.is_none() && !said.iter().any(|block| kept(block) == Kept::Call) {
                        said.push(text_block(NO_TEXT));
                    }
                    answer(&said, true, out);
                    return;
                }
                let mut said: Vec<Value> = own.into_iter().filter(|part| kept(part) == Kept::Opaque).collect();
                said.extend(text.map(text_block));
                if text.is_none() && calls.is_empty() {
                    said.push(text_block(NO_TEXT));
                }
                if said.is_empty() || calls.is_empty() {
                    let may_join = calls.is_empty();
                    said.extend(calls);
                    answer(&said, may_join, out);
                } else {
                    answer(&said, true, out);
                    answer(&calls, false, out);
                }
            }
        }
    }

    fn tail(&self, request: &Request<'_>, out: &mut Vec<u8>) -> Result<(), Fault> {
        let members = members(request)?;
        if out.ends_with(b"[") {
            add(&text_block(NO_TEXT), USER, true, out);
        }
        if caches(request) && is_open(out) {
            // The mark is set here and not in the turns, which stay as they are when the mark moves on.
            out.push(b',');
            write_json(out, &cache_point());
        }
        close(out);
        out.push(b']');
        write_members(out, &members);
        out.push(b'}');
        Ok(())
    }

    fn decode(&self, body: &[u8]) -> Result<Vec<Delta>, Fault> {
        decode(self, body)
    }

    fn refusal(&self, status: u16, body: &[u8]) -> Fault {
        refusal(status, body)
    }

    fn decoder(&self) -> Box<dyn StreamDecoder> {
        Box::new(ConverseDecoder::new(self))
    }
}

impl Converse {
    /// Writes a block of the person's side. Where texts may not stand beside outputs, they go into the last one.
    fn user_block(&self, first: bool, block: &Value, out: &mut Vec<u8>) {
        // No other block ends with a list.
        if !self.mixes_outputs && is_open(out) && out.ends_with(b"]}}") {
            out.truncate(out.len() - 3);
            out.push(b',');
            write_json(out, block);
            out.extend_from_slice(b"]}}");
        } else {
            add(block, USER, first, out);
        }
    }

    /// Opaque parts that came from this backend, unchanged.
    fn own_parts(&self, parts: Option<&ProviderParts>) -> Vec<Value> {
        let own = parts.filter(|p| p.backend == NAME).into_iter().flat_map(|p| &p.parts);
        own.filter(|part| self.unsigned_thinking || !is_unsigned(part))
            .cloned()
            .collect()
    }
}

/// What a part is: texts and the places of calls are kept where their order matters.
fn kept(part: &Value) -> Kept<'_> {
    match part.get("text").and_then(Value::as_str) {
        Some(text) => Kept::Text(text),
        None if part.get("toolUse").is_some() => Kept::Call,
        None => Kept::Opaque,
    }
}

/// How a message of the person begins.
const USER: &str = "{\"role\":\"user\",\"content\":[";

/// Writes what the model said: into its last message if that is the last one of all and may take it, else into a new one.
fn answer(blocks: &[Value], may_join: bool, out: &mut Vec<u8>) {
    if !is_open(out) {
        if may_join {
            out.truncate(out.len() - 2);
            for block in blocks {
                out.push(b',');
                write_json(out, block);
            }
            out.extend_from_slice(b"]}");
            return;
        }
        add(&text_block(GO_ON), USER, false, out);
    }
    close(out);
    out.push(b',');
    write_json(out, &json!({"role": "assistant", "content": blocks}));
}

fn visible(text: &str) -> &str {
    if text.trim().is_empty() { NO_TEXT } else { text }
}

fn text_block(text: &str) -> Value {
    json!({"text": text})
}

fn cache_point() -> Value {
    json!({"cachePoint": {"type": "default"}})
}

fn call_block(call: &FunctionCall, names: &ToolNames) -> Value {
    json!({"toolUse": {
        "toolUseId": wire_form(&call.id, MAX_ID, 16),
        "name": names.wire(&call.name),
        "input": input_object(&call.arguments),
    }})
}

fn result_block(output: &Output) -> Value {
    let mut result = Map::new();
    result.insert("toolUseId".into(), wire_form(&output.id, MAX_ID, 16).into());
    if output.failed {
        result.insert("status".into(), "error".into());
    }
    // Last, since texts behind it may have to go into it.
    result.insert("content".into(), json!([text_block(visible(&output.content))]));
    json!({"toolResult": result})
}

/// A picture or document as a block; `out` are the blocks before it, which hold names that must not come twice.
fn media_block(media: &Media, out: &[u8]) -> Result<Value, String> {
    if media.url.starts_with("s3://") {
        let extension = media.url.rsplit('.').next().unwrap_or_default().to_lowercase();
        let extension = if extension == "jpg" {
            "jpeg".to_owned()
        } else {
            extension
        };
        let source = json!({"s3Location": {"uri": media.url}});
        return Ok(block_of(media, &extension, source, out));
    }
    let Some((kind, data)) = media.data() else {
        return Err("Bedrock fetches no URLs but s3://; give the file itself".into());
    };
    if STANDARD.decode(data).is_err() {
        return Err("the data is not base64".into());
    }
    let format = match kind {
        "image/jpg" => "jpeg",
        kind => kind.rsplit('/').next().unwrap_or_default(),
    };
    if !media.is_pdf && !["png", "jpeg", "gif", "webp"].contains(&format) {
        return Err(format!("Bedrock takes pictures as png, jpeg, gif or webp, not {kind}"));
    }
    Ok(block_of(media, format, json!({"bytes": data}), out))
}

fn block_of(media: &Media, format: &str, source: Value, out: &[u8]) -> Value {
    if !media.is_pdf {
        return json!({"image": {"format": format, "source": source}});
    }
    // Names must differ; the same document may come twice.
    let digest = sha256_hex(media.plain_url().as_bytes());
    let base = format!("document-{}", &digest[..12]);
    let taken = |name: &str| {
        let member = format!("\"name\":\"{name}\"");
        out.windows(member.len()).any(|w| w == member.as_bytes())
    };
    let mut name = base.clone();
    let mut n = 1;
    while taken(&name) {
        n += 1;
        name = format!("{base}-{n}");
    }
    json!({"document": {"format": "pdf", "name": name, "source": source}})
}

/// Whether marks for the provider's cache are asked for.
fn caches(request: &Request<'_>) -> bool {
    request.parameter("cache") == Some(&Value::Bool(true))
}

/// What stands behind the conversation.
fn members(request: &Request<'_>) -> Result<Map<String, Value>, Fault> {
    for (position, message) in request.view.messages.iter().enumerate() {
        if matches!(message.role, Role::Image | Role::Pdf) {
            let media = Media {
                is_pdf: message.role == Role::Pdf,
                url: message.content.clone(),
            };
            media_block(&media, &[]).map_err(|what| Fault::Config(format!("message {}: {what}", position + 1)))?;
        }
    }
    let all = request.parameters(&[]);
    if all.get("parallel_tool_calls") == Some(&Value::Bool(false)) {
        return Err(Fault::Config(
            "parallel_tool_calls: Bedrock can't be told to make one call at a time; leave it out".into(),
        ));
    }
    let mut members = Map::new();
    members.extend(system(request, &all)?.map(|system| ("system".to_owned(), system)));
    members.extend(tool_config(request, &all)?.map(|config| ("toolConfig".to_owned(), config)));
    members.extend(parameters(request, &all)?);
    Ok(members)
}

fn system(request: &Request<'_>, all: &Map<String, Value>) -> Result<Option<Value>, Fault> {
    let format = Format::read(all.get("format"))?;
    let instructions = request.view.messages.iter().filter(|m| m.role == Role::System);
    let mut texts: Vec<&str> = instructions.map(|m| m.content.as_str()).collect();
    texts.retain(|text| !text.trim().is_empty());
    let words = format.as_ref().map(Format::instruction);
    texts.extend(words.as_deref());
    if texts.is_empty() {
        return Ok(None);
    }
    let mut blocks: Vec<Value> = texts.into_iter().map(text_block).collect();
    if caches(request) {
        blocks.push(cache_point());
    }
    Ok(Some(blocks.into()))
}

/// The tools on offer. Without any, those that the conversation has called: calls without tools are refused.
fn tool_config(request: &Request<'_>, all: &Map<String, Value>) -> Result<Option<Value>, Fault> {
    let called = called(request.view.messages);
    let given = all.get("tool_choice");
    let word = request.view.tool_choice.or_else(|| given.and_then(Value::as_str));
    let choice = match word {
        Some(word) if !request.view.tools.is_empty() => Some(ToolChoice::read(word, request)?),
        _ => None,
    };
    let mut tools: Vec<&ToolDefinition> = request.view.tools.iter().collect();
    tools.sort_by(|a, b| a.name.cmp(&b.name));
    let mut specs: Vec<Value> = tools.into_iter().map(|tool| tool_spec(tool, request.names)).collect();
    if choice == Some(ToolChoice::None) && called.is_empty() {
        return Ok(None);
    }
    if specs.is_empty() {
        specs = called
            .into_iter()
            .map(|name| former_tool(&name, request.names))
            .collect();
    }
    if specs.is_empty() {
        return Ok(None);
    }
    // Nova has no marks behind tools.
    if caches(request) && !request.profile.model.contains("amazon.nova") {
        specs.push(cache_point());
    }
    let mut config = json!({"tools": specs});
    let choice = match choice {
        Some(ToolChoice::Auto) => Some(json!({"auto": {}})),
        Some(ToolChoice::Required) => Some(json!({"any": {}})),
        Some(ToolChoice::Tool(name)) => Some(json!({"tool": {"name": name}})),
        // There is no word for it.
        Some(ToolChoice::None) => None,
        None => given
            .filter(|g| g.is_object() && !request.view.tools.is_empty())
            .cloned(),
    };
    if let Some(choice) = choice {
        config["toolChoice"] = choice;
    }
    Ok(Some(config))
}

fn tool_spec(tool: &ToolDefinition, names: &ToolNames) -> Value {
    let mut spec = json!({"name": names.wire(&tool.name)});
    // An empty description is refused.
    if !tool.description.trim().is_empty() {
        spec["description"] = tool.description.clone().into();
    }
    spec["inputSchema"] = json!({"json": plain_root(tool.wire_parameters())});
    json!({"toolSpec": spec})
}

fn former_tool(name: &str, names: &ToolNames) -> Value {
    json!({"toolSpec": {
        "name": names.wire(name),
        "description": "No longer available.",
        "inputSchema": {"json": {"type": "object", "properties": {}}},
    }})
}

/// The names of the tools that were called, sorted.
fn called(messages: &[Message]) -> Vec<String> {
    let calls = messages.iter().filter(|m| m.role == Role::FunctionCall);
    // One that can't be read has been reported by now.
    let mut names: Vec<String> = calls
        .filter_map(|m| Some(FunctionCall::from_message(m).ok()?.name))
        .collect();
    names.sort();
    names.dedup();
    names
}

/// `inferenceConfig`, `additionalModelRequestFields`, and what is given in the API's own form.
fn parameters(request: &Request<'_>, all: &Map<String, Value>) -> Result<Map<String, Value>, Fault> {
    let mut rest = request.parameters(&RESERVED);
    rest.retain(|_, value| !value.is_null());
    let mut own = |name: &str| match rest.shift_remove(name) {
        None => Ok(Map::new()),
        Some(Value::Object(map)) => Ok(map),
        Some(_) => Err(Fault::Config(format!("{name} must be an object"))),
    };
    let mut inference = own("inferenceConfig")?;
    let mut additional = own("additionalModelRequestFields")?;
    for (name, wire) in INFERENCE {
        if let Some(value) = rest.shift_remove(name) {
            let value = if wire == "stopSequences" && !value.is_array() {
                json!([value])
            } else {
                value
            };
            inference.insert(wire.into(), value);
        }
    }
    let thinking = all.get("thinking").or_else(|| additional.get("thinking"));
    let budget = thinking
        .filter(|t| t["type"] != "disabled")
        .and_then(|t| t["budget_tokens"].as_u64());
    if let Some(budget) = budget {
        inference
            .entry("maxTokens")
            .or_insert_with(|| budget.saturating_add(ANSWER_TOKENS).into());
    }
    let mut members = Map::new();
    for name in MEMBERS {
        members.extend(rest.shift_remove(name).map(|value| (name.to_owned(), value)));
    }
    additional.extend(rest);
    for (name, mut map) in [
        ("inferenceConfig", inference),
        ("additionalModelRequestFields", additional),
    ] {
        if !map.is_empty() {
            map.sort_keys();
            members.insert(name.into(), map.into());
        }
    }
    members.sort_keys();
    Ok(members)
}
