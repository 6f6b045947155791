//! Google's Gemini API, `generateContent`: encoding.

use std::ops::Range;

use decanus_base::Secret;
use decanus_chat::{FunctionCall, ProviderParts, Role, ToolDefinition};
use serde_json::{Map, Value, json};

use crate::anthropic::input_object;
use crate::conversation::Delta;
use crate::count::CountApi;
use crate::dialect::{Dialect, Fault, Request, StreamDecoder, missing_key, write_json, write_members};
use crate::embed::EmbeddingApi;
use crate::gemini_decode::{BETWEEN, GeminiDecoder, decode};
use crate::image::ImageApi;
use crate::open_message::{add, close};
use crate::profile::Profile;
use crate::refusal;
use crate::structured::Format;
use crate::tool_choice::ToolChoice;
use crate::tool_names::ToolNames;
use crate::turns::{Media, Output, Turn};
use crate::wire_schema;

/// The backend's name.
const NAME: &str = "gemini";

/// Parameters that the request sets itself.
const RESERVED: [&str; 12] = [
    "model",
    "contents",
    "messages",
    "systemInstruction",
    "system_instruction",
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "stream",
    "stream_options",
    "format",
    "cache",
];

/// Parameters that stand beside `generationConfig`; all others stand in it.
const BESIDE: [&str; 6] = [
    "safetySettings",
    "cachedContent",
    "toolConfig",
    "labels",
    "serviceTier",
    "store",
];

/// What stands for a message without text: a part must not be empty.
const NO_TEXT: &str = "(no text)";

/// The host that never answers without a key.
const HOST: &str = "generativelanguage.googleapis.com";

/// The dialect of `POST …/models/MODEL:generateContent`.
#[derive(Debug, Clone, Copy, Default)]
pub struct Gemini;

impl Dialect for Gemini {
    fn name(&self) -> &'static str {
        NAME
    }

    fn images(&self) -> Option<ImageApi> {
        Some(ImageApi::Gemini)
    }

    fn embeddings(&self) -> Option<EmbeddingApi> {
        Some(EmbeddingApi::Gemini)
    }

    fn counting(&self, profile: &Profile) -> Option<(CountApi, String)> {
        let path = self.path(profile, false);
        Some((CountApi::Gemini, path.replace(":generateContent", ":countTokens")))
    }

    fn path(&self, profile: &Profile, stream: bool) -> String {
        let model = profile.model.trim();
        // A tuned model is named with its folder.
        let folder = if model.contains('/') { "" } else { "models/" };
        let action = if stream {
            "streamGenerateContent?alt=sse"
        } else {
            "generateContent"
        };
        format!("/{folder}{model}:{action}")
    }

    fn key_header(&self, key: &Secret) -> (&'static str, Secret) {
        ("x-goog-api-key", key.clone())
    }

    fn missing_key(&self, url: &str) -> Option<String> {
        missing_key(url, HOST, "GEMINI_API_KEY")
    }

    fn head(
        &self,
        profile: &Profile,
        tools: &[ToolDefinition],
        names: &ToolNames,
        out: &mut Vec<u8>,
    ) -> Result<(), Fault> {
        check_model(profile.model.trim())?;
        out.push(b'{');
        if !tools.is_empty() {
            let mut tools: Vec<_> = tools.iter().collect();
            tools.sort_by(|a, b| a.name.cmp(&b.name));
            let declarations: Vec<Value> = tools.into_iter().map(|tool| declaration(tool, names)).collect();
            out.extend_from_slice(b"\"tools\":");
            write_json(out, &json!([{"functionDeclarations": declarations}]));
            out.push(b',');
        }
        out.extend_from_slice(b"\"contents\":[");
        Ok(())
    }

    fn turn(&self, turn: &Turn, names: &ToolNames, first: bool, out: &mut Vec<u8>) {
        match turn {
            Turn::System(_) => {}
            Turn::User(text) if text.trim().is_empty() => user_part(first, &json!({"text": NO_TEXT}), out),
            Turn::User(text) => user_part(first, &json!({"text": text}), out),
            Turn::Media(media) => user_part(first, &media_part(media), out),
            Turn::Outputs(outputs) => {
                for (position, output) in outputs.iter().enumerate() {
                    user_part(first && position == 0, &response_part(output, names), out);
                }
                // It must hold as many responses as there were calls, and nothing else.
                close(out);
            }
            Turn::Answer { parts, text, calls } => {
                if first {
                    // A conversation begins with the person.
                    user_part(first, &json!({"text": NO_TEXT}), out);
                }
                close(out);
                let signatures = Signatures::of(parts.as_ref());
                let mut content = signatures.content(text.as_deref().unwrap_or_default(), calls, names);
                if content.is_empty() {
                    content.push(json!({"text": NO_TEXT}));
                }
                out.push(b',');
                write_json(out, &json!({"role": "model", "parts": content}));
            }
        }
    }

    fn tail(&self, request: &Request<'_>, out: &mut Vec<u8>) -> Result<(), Fault> {
        if out.ends_with(b"[") {
            user_part(true, &json!({"text": NO_TEXT}), out);
        }
        close(out);
        out.push(b']');
        write_members(out, &members(request)?);
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
        Box::new(GeminiDecoder::default())
    }
}

/// The model is a part of the URL's path, so it must not lead elsewhere.
fn check_model(model: &str) -> Result<(), Fault> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "-._@/".contains(c);
    let steps = model.split('/').any(|part| matches!(part, "" | "." | ".."));
    if steps || !model.chars().all(allowed) {
        return Err(Fault::Config(format!("`{model}` is not the name of a Gemini model")));
    }
    Ok(())
}

/// A tool as a function declaration.
fn declaration(tool: &ToolDefinition, names: &ToolNames) -> Value {
    let mut declaration = json!({"name": names.wire(&tool.name), "description": tool.description});
    let parameters = wire_schema::gemini(&tool.wire_parameters());
    // An object without properties is refused; a function without parameters is none.
    if parameters.get("properties").is_some() {
        declaration["parameters"] = parameters;
    }
    declaration
}

/// Writes a part of the person's side.
fn user_part(first: bool, part: &Value, out: &mut Vec<u8>) {
    add(part, "{\"role\":\"user\",\"parts\":[", first, out);
}

fn media_part(media: &Media) -> Value {
    match media.data() {
        Some((kind, data)) => json!({"inlineData": {"mimeType": kind, "data": data}}),
        None => json!({"fileData": {"mimeType": media_type(media), "fileUri": media.url}}),
    }
}

/// The media type of what a URL leads to, by its ending.
fn media_type(media: &Media) -> &'static str {
    if media.is_pdf {
        return "application/pdf";
    }
    let path = media.url.split(['?', '#']).next().unwrap_or_default().to_lowercase();
    match path.rsplit('.').next() {
        Some("png") => "image/png",
        Some("gif") => "image/gif",
        Some("webp") => "image/webp",
        _ => "image/jpeg",
    }
}

fn response_part(output: &Output, names: &ToolNames) -> Value {
    let member = if output.failed { "error" } else { "output" };
    let mut response = Map::new();
    if !is_made_up(&output.id) {
        response.insert("id".into(), output.id.clone().into());
    }
    response.insert("name".into(), names.wire(&output.name).into());
    response.insert("response".into(), json!({member: output.content}));
    json!({"functionResponse": response})
}

/// Whether an id was made by us because the provider gave none: `call_1`, `call_1_2`. Calls without an id are matched by
/// their order.
fn is_made_up(id: &str) -> bool {
    let number = id.strip_prefix("call_");
    number.is_some_and(|n| n.len() < 8 && n.chars().all(|c| c.is_ascii_digit() || c == '_'))
}

/// The thought signatures of an answer, from its opaque parts.
struct Signatures<'a>(Vec<&'a Value>);

impl<'a> Signatures<'a> {
    fn of(parts: Option<&'a ProviderParts>) -> Self {
        let own = parts.filter(|p| p.backend == NAME);
        Self(own.into_iter().flat_map(|p| &p.parts).collect())
    }

    /// Texts and calls, each in its place; without one, calls stand behind the text.
    fn content(&self, text: &str, calls: &[FunctionCall], names: &ToolNames) -> Vec<Value> {
        let mut content = Vec::new();
        let (mut done, mut used) = (0, 0);
        for (position, call) in calls.iter().enumerate() {
            let place = self.place(position, text).unwrap_or(text.len()).max(done);
            self.texts(text, done..place, &mut used, &mut content);
            content.push(self.call(position, call, names));
            done = place;
        }
        self.texts(text, done..text.len(), &mut used, &mut content);
        content
    }

    /// How much of the text stood before a call that a text followed; nothing when the text is another one now.
    fn place(&self, position: usize, text: &str) -> Option<usize> {
        let own = |part: &&&Value| part["functionCall"].as_u64() == Some(position as u64) && part.get("at").is_some();
        let part = self.0.iter().find(own)?;
        let number = |n: usize| part["at"][n].as_u64().and_then(|at| usize::try_from(at).ok());
        number(0).filter(|at| number(1) == Some(text.len()) && text.is_char_boundary(*at))
    }

    /// The parts of a piece of the text: the signed ones are what they were, and what is between them is one each.
    /// `used` counts the signatures that have found their places.
    fn texts(&self, text: &str, range: Range<usize>, used: &mut usize, parts: &mut Vec<Value>) {
        let mut done = range.start;
        let plain = |from: usize, to: usize, parts: &mut Vec<Value>| {
            // A text of blanks says nothing, and may be refused.
            let Some(piece) = text.get(from..to).filter(|t| !t.trim().is_empty()) else {
                return;
            };
            let is_behind = from == range.start && from > 0;
            let piece = piece.strip_prefix(BETWEEN).filter(|_| is_behind).unwrap_or(piece);
            parts.push(json!({"text": piece}));
        };
        for (position, part) in self.0.iter().enumerate().skip(*used) {
            let at = |n: usize| part.pointer(&format!("/text/{n}")).and_then(Value::as_u64);
            let (Some(from), Some(to)) = (at(0), at(1)) else {
                continue;
            };
            let (from, to) = (from as usize, to as usize);
            if to > range.end && to <= text.len() {
                break;
            }
            // Places in another text than the one that was signed are none.
            let Some(signed) = text.get(from..to).filter(|_| from >= done) else {
                continue;
            };
            plain(done, from, parts);
            parts.push(json!({"text": signed, "thoughtSignature": part["thoughtSignature"]}));
            done = to;
            *used = position + 1;
        }
        plain(done, range.end, parts);
    }

    fn call(&self, position: usize, call: &FunctionCall, names: &ToolNames) -> Value {
        let mut function = Map::new();
        if !is_made_up(&call.id) {
            function.insert("id".into(), call.id.clone().into());
        }
        function.insert("name".into(), names.wire(&call.name).into());
        function.insert("args".into(), input_object(&call.arguments));
        let mut part = json!({"functionCall": function});
        let mut own = self.0.iter();
        let is_of = |p: &&&Value| p["functionCall"].as_u64() == Some(position as u64);
        let own = own.find(|p| is_of(p) && p.get("thoughtSignature").is_some());
        if let Some(own) = own {
            part["thoughtSignature"] = own["thoughtSignature"].clone();
        }
        part
    }
}

/// Everything that stands behind the conversation.
fn members(request: &Request<'_>) -> Result<Map<String, Value>, Fault> {
    let view = request.view;
    let all = request.parameters(&[]);
    let mut members = Map::new();
    let mut config = Map::new();
    let mut effort = None;
    for (name, value) in request.parameters(&RESERVED) {
        match (camel(&name).as_str(), value) {
            ("generationConfig", Value::Object(map)) => config.extend(map.into_iter().map(|(n, v)| (camel(&n), v))),
            ("maxTokens" | "maxCompletionTokens", value) => {
                config.entry("maxOutputTokens").or_insert(value);
            }
            ("reasoningEffort", Value::Null) => {}
            ("reasoningEffort", value) => effort = Some(value),
            ("stop", value) => {
                let list = if value.is_array() { value } else { json!([value]) };
                config.entry("stopSequences").or_insert(list);
            }
            (name, value) if BESIDE.contains(&name) => {
                members.insert(name.to_owned(), value);
            }
            (name, value) => {
                config.insert(name.to_owned(), value);
            }
        }
    }
    if let Some(effort) = effort
        && !config.contains_key("thinkingConfig")
    {
        config.insert("thinkingConfig".into(), thinking(&effort, &request.profile.model)?);
    }
    let instructions = view.messages.iter().filter(|m| m.role == Role::System);
    let mut system: Vec<&str> = instructions.map(|m| m.content.as_str()).collect();
    system.retain(|text| !text.trim().is_empty());
    let format = Format::read(all.get("format"))?;
    let words = format.as_ref().map(Format::instruction);
    match &format {
        // Models before Gemini 3 refuse a JSON answer beside functions.
        Some(_) if !view.tools.is_empty() => system.extend(words.as_deref()),
        Some(format) => {
            config.insert("responseMimeType".into(), "application/json".into());
            if let Format::Schema { schema, .. } = format {
                config.insert("responseSchema".into(), wire_schema::gemini(schema));
            }
        }
        None => {}
    }
    if !system.is_empty() {
        let text = system.join("\n\n");
        members.insert("systemInstruction".into(), json!({"parts": [{"text": text}]}));
    }
    if !config.is_empty() {
        config.sort_keys();
        members.insert("generationConfig".into(), config.into());
    }
    match calling(request, &all)? {
        Some(calling) => {
            let config = members.entry("toolConfig").or_insert_with(|| json!({}));
            if let Some(config) = config.as_object_mut() {
                config.insert("functionCallingConfig".into(), calling);
            }
        }
        None if view.tools.is_empty() => {
            members.shift_remove("toolConfig");
        }
        None => {}
    }
    members.sort_keys();
    Ok(members)
}

/// `thinkingConfig` from `reasoning_effort`, which is OpenAI's: models since Gemini 3 take a level, those before a number of
/// tokens. The numbers are those of Google's own interface for OpenAI's clients.
fn thinking(effort: &Value, model: &str) -> Result<Value, Fault> {
    let (level, budget) = match effort.as_str().unwrap_or_default() {
        "none" => ("minimal", 0),
        "minimal" => ("minimal", 1024),
        "low" => ("low", 1024),
        "medium" => ("medium", 8192),
        "high" | "xhigh" | "max" => ("high", 24_576),
        _ => {
            return Err(Fault::Config(format!(
                "`reasoning_effort` is {effort}; expected none, minimal, low, medium or high"
            )));
        }
    };
    let version = model.split_once("gemini-").map(|(_, rest)| rest);
    let version = version.and_then(|rest| rest.split('-').next()?.parse::<f32>().ok());
    match version {
        Some(version) if version < 2.5 => Err(Fault::Config(format!(
            "`{model}` can't think; leave out `reasoning_effort`"
        ))),
        Some(version) if version < 3.0 => Ok(json!({"thinkingBudget": budget})),
        _ => Ok(json!({"thinkingLevel": level})),
    }
}

/// `functionCallingConfig` from `tool_choice`.
fn calling(request: &Request<'_>, all: &Map<String, Value>) -> Result<Option<Value>, Fault> {
    if request.view.tools.is_empty() {
        return Ok(None);
    }
    let given = all.get("tool_choice").and_then(Value::as_str);
    let choice = request.view.tool_choice.or(given);
    let choice = choice.map(|word| ToolChoice::read(word, request)).transpose()?;
    Ok(choice.map(|choice| match choice {
        ToolChoice::Auto => json!({"mode": "AUTO"}),
        ToolChoice::None => json!({"mode": "NONE"}),
        ToolChoice::Required => json!({"mode": "ANY"}),
        ToolChoice::Tool(name) => json!({"mode": "ANY", "allowedFunctionNames": [name]}),
    }))
}

/// `max_output_tokens` as `maxOutputTokens`.
fn camel(name: &str) -> String {
    let mut words = name.split('_').filter(|w| !w.is_empty());
    let mut out = words.next().unwrap_or_default().to_owned();
    for word in words {
        let mut chars = word.chars();
        out.extend(chars.next().map(|c| c.to_ascii_uppercase()));
        out.push_str(chars.as_str());
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_parameters_and_models() {
        assert_eq!(camel("max_output_tokens"), "maxOutputTokens");
        assert_eq!(camel("topP"), "topP");
        let path = |model: &str, stream| Gemini.path(&Profile::new("e", NAME, model), stream);
        assert_eq!(path("gemini-x", false), "/models/gemini-x:generateContent");
        assert_eq!(
            path("tunedModels/mine", true),
            "/tunedModels/mine:streamGenerateContent?alt=sse"
        );
        for bad in ["", "../x", "models/../../x", "a?b", "a b", "a%2e"] {
            assert!(check_model(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn ids_that_are_ours() {
        for ours in ["call_1", "call_12_2"] {
            assert!(is_made_up(ours), "{ours}");
        }
        for theirs in ["call_abc", "x", "call_7340017340017340017"] {
            assert!(!is_made_up(theirs), "{theirs}");
        }
    }

    #[test]
    fn signatures_return_to_their_texts() {
        let parts = |parts: Value| ProviderParts {
            backend: NAME.into(),
            model: String::new(),
            parts: parts.as_array().unwrap().clone(),
        };
        let all = parts(json!([{"text": [2, 5], "thoughtSignature": "s"}, {"text": [5, 5], "thoughtSignature": "t"}]));
        let signatures = Signatures::of(Some(&all));
        let texts = |text: &str| Value::from(signatures.content(text, &[], &ToolNames::default()));
        let expected = json!([{"text": "ñ"}, {"text": "abc", "thoughtSignature": "s"},
            {"text": "", "thoughtSignature": "t"}, {"text": "d"}]);
        assert_eq!(texts("ñabcd"), expected);
        // Another text, and one that would be cut within a character.
        assert_eq!(texts("x"), json!([{"text": "x"}]));
        let kept = json!([{"text": "xññ"}, {"text": "", "thoughtSignature": "t"}]);
        assert_eq!(texts("xññ"), kept);
    }
}
