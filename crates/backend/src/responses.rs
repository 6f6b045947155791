//! OpenAI's Responses, as the servers that imitate it speak it: encoding.
//!
//! The conversation is sent whole. System text at its beginning goes into `instructions`; one that comes later stays
//! where it was said. Tools stand behind the conversation, because a search of the provider's own is
//! one of them and may be asked for in one request and not in the next.

use decanus_base::Secret;
use decanus_chat::{FunctionCall, Message, ProviderParts, Role, ToolDefinition};
use serde_json::{Map, Value, json};

use crate::conversation::Delta;
use crate::dialect::{Dialect, Fault, Request, StreamDecoder, write_json, write_members};
use crate::embed::EmbeddingApi;
use crate::image::ImageApi;
use crate::openai::{bearer, is_openai, missing_key};
use crate::profile::Profile;
use crate::refusal;
use crate::responses_decode::{ResponsesDecoder, decode};
use crate::structured::words_without_object;
use crate::tool_choice::ToolChoice;
use crate::tool_names::{ToolNames, short_id};
use crate::turns::{Media, Turn, is_made_of};

/// Parameters that the request sets itself, and options that are for us.
const RESERVED: [&str; 6] = ["model", "input", "tools", "stream", "stream_options", "format"];

/// The longest id of a call that the API takes.
pub(crate) const MAX_CALL_ID: usize = 64;

/// The dialect of `POST …/responses`.
#[derive(Debug, Clone, Copy)]
pub struct Responses {
    /// Opaque parts are stored under it.
    backend: &'static str,
    /// Whether what the model said is sent as a plain text: vLLM takes parts of an answer only with the ids that it
    /// gave them.
    plain_answers: bool,
}

impl Default for Responses {
    fn default() -> Self {
        Self {
            backend: "responses",
            plain_answers: false,
        }
    }
}

impl Responses {
    /// The dialect as vLLM speaks it.
    pub(crate) fn of_vllm() -> Self {
        Self {
            backend: "vllm",
            plain_answers: true,
        }
    }

    /// What the model said.
    fn said(&self, text: &str) -> Value {
        if self.plain_answers {
            // Its type may be left out, but llama.cpp's server then takes it for nothing.
            json!({"type": "message", "role": "assistant", "content": text})
        } else {
            json!({"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]})
        }
    }

    /// The items of an answer. Reasoning is refused without the item that followed it, and that item under its own id
    /// without the reasoning, so they go back together in the order in which they came, or not at all.
    fn answer(
        &self,
        parts: Option<&ProviderParts>,
        text: Option<&str>,
        calls: &[FunctionCall],
        names: &ToolNames,
    ) -> Vec<Value> {
        let own: Vec<&Value> = parts
            .filter(|p| p.backend == self.backend)
            .map(|p| p.parts.iter().filter(|part| kind(part).is_some()).collect())
            .unwrap_or_default();
        let is = |part: &&&Value, wanted: &str| kind(part) == Some(wanted);
        let marked_texts: Vec<&&Value> = own.iter().filter(|part| is(part, "message")).collect();
        let marked_calls = own.iter().filter(|part| is(part, "function_call")).count();
        let mut items = Vec::new();
        if marked_texts.is_empty() && marked_calls == 0 {
            items.extend(own.into_iter().cloned());
        } else if let Some(texts) = texts_of(&marked_texts, text).filter(|_| marked_calls == calls.len()) {
            let (mut texts, mut calls) = (texts.into_iter(), calls.iter());
            for part in own {
                match kind(part) {
                    Some("message") => items.extend(texts.next().map(|text| said_as(part, text))),
                    Some("function_call") => {
                        items.extend(calls.next().map(|c| call_item(c, names, part.get("id"))));
                    }
                    _ => items.push(part.clone()),
                }
            }
            return items;
        }
        items.extend(text.map(|text| self.said(text)));
        items.extend(calls.iter().map(|call| call_item(call, names, None)));
        items
    }
}

fn kind(item: &Value) -> Option<&str> {
    item.get("type").and_then(Value::as_str)
}

/// The text of each message that an answer had, if what is stored is still what they said together.
fn texts_of<'a>(marks: &[&&'a Value], text: Option<&'a str>) -> Option<Vec<&'a str>> {
    match (marks, text) {
        ([], None) => Some(Vec::new()),
        ([_], Some(text)) => Some(vec![text]),
        ([_, _, ..], Some(text)) => {
            let texts: Option<Vec<&str>> = marks.iter().map(|mark| mark.get("text")?.as_str()).collect();
            texts.filter(|texts| is_made_of(text, texts))
        }
        _ => None,
    }
}

/// A text under the id and with the marks that the provider gave it.
fn said_as(part: &Value, text: &str) -> Value {
    let mut item = part.as_object().cloned().unwrap_or_default();
    item.shift_remove("text");
    item.insert("role".into(), "assistant".into());
    item.insert("status".into(), "completed".into());
    item.insert(
        "content".into(),
        json!([{"type": "output_text", "text": text, "annotations": []}]),
    );
    Value::Object(item)
}

fn call_item(call: &FunctionCall, names: &ToolNames, id: Option<&Value>) -> Value {
    let mut item = json!({
        "type": "function_call",
        "call_id": short_id(&call.id, MAX_CALL_ID),
        "name": names.wire(&call.name),
        "arguments": call.arguments.to_text(),
    });
    if let Some(id) = id {
        item["id"] = id.clone();
    }
    item
}

/// A picture or document as an item.
fn media_item(media: &Media) -> Value {
    let content = match (media.is_pdf, media.data()) {
        (false, _) => json!({"type": "input_image", "image_url": media.url}),
        (true, Some(_)) => json!({"type": "input_file", "filename": media.file_name(), "file_data": media.plain_url()}),
        (true, None) => json!({"type": "input_file", "file_url": media.url}),
    };
    json!({"role": "user", "content": [content]})
}

/// The system texts before anything else that is sent; `turn` leaves the same ones out.
fn leading_system(messages: &[Message]) -> Vec<&str> {
    messages
        .iter()
        .take_while(|m| {
            !matches!(
                m.role,
                Role::User | Role::Image | Role::Pdf | Role::Assistant | Role::FunctionCall
            )
        })
        .filter(|m| m.role == Role::System)
        .map(|m| m.content.as_str())
        .collect()
}

/// Whether a request goes on from the last response, by what the view and the endpoint say.
pub(crate) fn goes_on(profile: &Profile, parameters: &Map<String, Value>) -> bool {
    match parameters.get("previous_response").and_then(Value::as_bool) {
        Some(said) => said,
        None => profile.previous_response,
    }
}

impl Dialect for Responses {
    fn name(&self) -> &'static str {
        self.backend
    }

    fn path(&self, _: &Profile, _: bool) -> String {
        "/responses".into()
    }

    fn key_header(&self, key: &Secret) -> (&'static str, Secret) {
        bearer(key)
    }

    fn missing_key(&self, url: &str) -> Option<String> {
        missing_key(url)
    }

    fn instruction(&self, request: &Request<'_>) -> Option<String> {
        // vLLM takes any schema.
        let format = request.parameter("format").filter(|_| self.backend != "vllm");
        words_without_object(format)
    }

    fn images(&self) -> Option<ImageApi> {
        Some(ImageApi::Responses)
    }

    fn embeddings(&self) -> Option<EmbeddingApi> {
        Some(EmbeddingApi::OpenAi("/embeddings"))
    }

    fn head(&self, profile: &Profile, _: &[ToolDefinition], _: &ToolNames, out: &mut Vec<u8>) -> Result<(), Fault> {
        out.extend_from_slice(b"{\"model\":");
        write_json(out, &profile.model);
        out.extend_from_slice(b",\"input\":[");
        Ok(())
    }

    fn turn(&self, turn: &Turn, names: &ToolNames, first: bool, out: &mut Vec<u8>) {
        let items = match turn {
            // It is part of the instructions.
            Turn::System(_) if first => Vec::new(),
            Turn::System(text) => vec![json!({"role": "system", "content": text})],
            Turn::User(text) => vec![json!({"role": "user", "content": text})],
            Turn::Media(media) => vec![media_item(media)],
            Turn::Answer { parts, text, calls } => self.answer(parts.as_ref(), text.as_deref(), calls, names),
            Turn::Outputs(outputs) => outputs
                .iter()
                .map(|o| json!({"type": "function_call_output", "call_id": short_id(&o.id, MAX_CALL_ID), "output": o.content}))
                .collect(),
        };
        for (i, item) in items.iter().enumerate() {
            if i > 0 || !first {
                out.push(b',');
            }
            write_json(out, item);
        }
    }

    fn tail(&self, request: &Request<'_>, out: &mut Vec<u8>) -> Result<(), Fault> {
        let (profile, view) = (request.profile, request.view);
        let given = |name: &str| {
            let value = view.parameters.get(name).or_else(|| profile.parameters.get(name));
            value.filter(|v| !v.is_null())
        };
        let mut members = request.parameters(&RESERVED);
        for name in ["max_tokens", "max_completion_tokens"] {
            if let Some(most) = members.shift_remove(name) {
                members.entry("max_output_tokens").or_insert(most);
            }
        }
        gather(&mut members, "reasoning");
        gather(&mut members, "text");
        if let Some(format) = given("format").filter(|_| self.instruction(request).is_none()) {
            set_format(&mut members, format, profile)?;
        }
        let system = leading_system(view.messages);
        if !system.is_empty() {
            members.insert("instructions".into(), system.join("\n\n").into());
        }

        let mut tools = tools(request);
        if given("websearch") == Some(&Value::Bool(true)) {
            tools.push(json!({"type": "web_search_preview"}));
        }
        if tools.is_empty() {
            // Both are refused without tools.
            members.shift_remove("tool_choice");
            members.shift_remove("parallel_tool_calls");
        } else {
            members.insert("tools".into(), tools.into());
            if let Some(said) = view.tool_choice {
                let said = match ToolChoice::read(said, request)? {
                    ToolChoice::Auto => "auto".into(),
                    ToolChoice::None => "none".into(),
                    ToolChoice::Required => "required".into(),
                    ToolChoice::Tool(name) => json!({"type": "function", "name": name}),
                };
                members.insert("tool_choice".into(), said);
            }
        }

        let goes_on = goes_on(profile, view.parameters);
        let stored = match (profile.store, is_openai(&profile.url)) {
            (Some(store), _) => Some(store),
            // What nobody asks for again need not be kept.
            (None, true) if !goes_on => Some(false),
            _ => None,
        };
        if let Some(stored) = stored {
            members.entry("store").or_insert_with(|| stored.into());
        }
        // Reasoning that the provider does not keep can only be given back as it was given to us.
        if members.get("store") == Some(&Value::Bool(false)) && !self.plain_answers {
            include(&mut members, "reasoning.encrypted_content");
        }
        if let Some(id) = request.previous {
            members.insert("previous_response_id".into(), id.into());
        }
        if request.stream {
            members.insert("stream".into(), true.into());
        }

        members.sort_keys();
        out.push(b']');
        write_members(out, &members);
        out.push(b'}');
        Ok(())
    }

    fn threads(&self, profile: &Profile, parameters: &Map<String, Value>) -> bool {
        goes_on(profile, parameters) && profile.store != Some(false)
    }

    fn decode(&self, body: &[u8]) -> Result<Vec<Delta>, Fault> {
        decode(body)
    }

    fn refusal(&self, status: u16, body: &[u8]) -> Fault {
        refusal::from_body(status, body)
    }

    fn decoder(&self) -> Box<dyn StreamDecoder> {
        Box::new(ResponsesDecoder::default())
    }
}

fn tools(request: &Request<'_>) -> Vec<Value> {
    let profile = request.profile;
    // The API takes schemas for strict ones unless it is told otherwise, and then refuses optional parameters.
    let strict = profile
        .quirks
        .strict_schema
        .or_else(|| is_openai(&profile.url).then_some(false));
    let mut tools: Vec<_> = request.view.tools.iter().collect();
    tools.sort_by(|a, b| a.name.cmp(&b.name));
    tools
        .into_iter()
        .map(|tool| {
            let mut value = json!({
                "type": "function",
                "name": request.names.wire(&tool.name),
                "description": tool.description,
                "parameters": tool.wire_parameters(),
            });
            if let Some(strict) = strict {
                value["strict"] = strict.into();
            }
            value
        })
        .collect()
}

/// Puts `NAME_X` into the map `NAME`, under X; `NAME_options` is such a map, too.
fn gather(members: &mut Map<String, Value>, name: &str) {
    let prefix = format!("{name}_");
    let found: Vec<String> = members.keys().filter(|k| k.starts_with(&prefix)).cloned().collect();
    let mut map = match members.get(name) {
        Some(Value::Object(map)) => map.clone(),
        _ => Map::new(),
    };
    for key in found {
        match members.shift_remove(&key) {
            Some(Value::Object(options)) if key[prefix.len()..] == *"options" => map.extend(options),
            Some(value) => {
                map.insert(key[prefix.len()..].to_owned(), value);
            }
            None => {}
        }
    }
    if !map.is_empty() {
        members.insert(name.to_owned(), map.into());
    }
}

fn include(members: &mut Map<String, Value>, what: &str) {
    let list = members.entry("include").or_insert_with(|| json!([]));
    if let Some(list) = list.as_array_mut().filter(|list| !list.iter().any(|v| v == what)) {
        list.push(what.into());
    }
}

/// `text.format` from what a chat calls `format`: a word, the whole of `text`, a `json_schema` object, or a schema.
fn set_format(members: &mut Map<String, Value>, format: &Value, profile: &Profile) -> Result<(), Fault> {
    let mut format = match format {
        Value::String(word) if word == "json" => json!({"type": "json_object"}),
        Value::String(word) => json!({"type": word}),
        Value::Object(map) if map.contains_key("format") => {
            members.insert("text".into(), format.clone());
            return Ok(());
        }
        Value::Object(map) if map.get("type").and_then(Value::as_str) == Some("json_schema") => {
            let mut map = map.clone();
            // The form of Chat Completions.
            if let Some(Value::Object(inner)) = map.get("json_schema").cloned() {
                map.shift_remove("json_schema");
                map.extend(inner);
            }
            map.into()
        }
        Value::Object(map) => {
            let (name, schema) = crate::format::schema(map);
            json!({"name": name, "type": "json_schema", "schema": schema})
        }
        other => {
            return Err(Fault::Config(format!(
                "`format` is neither a word nor a schema: {other}"
            )));
        }
    };
    if let Some(strict) = profile
        .quirks
        .strict_schema
        .filter(|_| kind(&format) == Some("json_schema"))
    {
        format["strict"] = strict.into();
    }
    let text = members.entry("text").or_insert_with(|| json!({}));
    if !text.is_object() {
        *text = json!({});
    }
    text["format"] = format;
    Ok(())
}
