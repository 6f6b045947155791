//! Anthropic's Messages, as the API and the servers that imitate it speak it: encoding.
//!
//! All that a person's side says between two answers is one message: outputs first, then texts and pictures. Such a
//! message is left open in the encoded turns and closed by what comes after it, so adding to it changes no byte before.

use decanus_base::Secret;
use decanus_chat::{Arguments, ProviderParts, Role, ToolDefinition};
use serde_json::{Map, Value, json};

use crate::anthropic_decode::{MessagesDecoder, decode};
use crate::conversation::Delta;
use crate::count::CountApi;
use crate::dialect::{Dialect, Fault, Request, StreamDecoder, missing_key, write_json, write_members};
use crate::open_message::{add, close, is_open};
use crate::profile::Profile;
use crate::refusal;
use crate::structured::Format;
use crate::tool_choice::ToolChoice;
use crate::tool_names::{ToolNames, wire_form};
use crate::turns::{Kept, Media, Output, Turn, in_order};
use crate::wire_schema::plain_root;

/// The backend's name.
pub(crate) const NAME: &str = "anthropic";

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

/// The API wants a limit in every request. All models that are offered write at least 4096 tokens (Claude 3 the fewest),
/// and 1000 cuts ordinary answers.
const MAX_TOKENS: u64 = 4096;

/// The length of the longest id of a call.
const MAX_ID: usize = 64;

/// What stands for a message without text: blank blocks are refused, and so are messages without content.
const NO_TEXT: &str = "(no text)";

/// The host that never answers without a key.
const HOST: &str = "api.anthropic.com";

/// The dialect of `POST …/messages`.
#[derive(Debug, Clone, Default)]
pub struct Anthropic {
    /// Whether thinking without a signature is kept and sent back.
    pub(crate) unsigned_thinking: bool,
    /// The tool whose input is the answer, where the model was made to call one.
    pub(crate) answer_tool: Option<String>,
}

impl Dialect for Anthropic {
    fn name(&self) -> &'static str {
        NAME
    }

    fn for_request(&self, request: &Request<'_>) -> Option<Self> {
        // What is wrong with parameters is said by the tail.
        let all = with_effort(request.parameters(&[]), &request.profile.model).unwrap_or_default();
        let format = Format::read(all.get("format")).ok().flatten();
        Some(Self {
            unsigned_thinking: request.profile.quirks.unsigned_thinking,
            answer_tool: answer_tool(request, &all, format.as_ref()).map(|(name, _)| name),
        })
    }

    fn counting(&self, profile: &Profile) -> Option<(CountApi, String)> {
        Some((
            CountApi::Anthropic,
            format!("{}/count_tokens", self.path(profile, false)),
        ))
    }

    fn path(&self, profile: &Profile, _: bool) -> String {
        // What other programs read from ANTHROPIC_BASE_URL is a bare host.
        let bare = reqwest::Url::parse(&profile.url).is_ok_and(|url| url.path() == "/");
        if bare && profile.file.is_none() {
            "/v1/messages".into()
        } else {
            "/messages".into()
        }
    }

    fn headers(&self) -> &'static [(&'static str, &'static str)] {
        &[("anthropic-version", "2023-06-01")]
    }

    fn key_header(&self, key: &Secret) -> (&'static str, Secret) {
        ("x-api-key", key.clone())
    }

    fn missing_key(&self, url: &str) -> Option<String> {
        missing_key(url, HOST, "ANTHROPIC_API_KEY")
    }

    fn head(&self, profile: &Profile, _: &[ToolDefinition], _: &ToolNames, out: &mut Vec<u8>) -> Result<(), Fault> {
        // The tools stand in the tail: whether the last one ends a cached prefix is said by a parameter.
        out.extend_from_slice(b"{\"model\":");
        write_json(out, &profile.model);
        out.extend_from_slice(b",\"messages\":[");
        Ok(())
    }

    fn turn(&self, turn: &Turn, names: &ToolNames, first: bool, out: &mut Vec<u8>) {
        match turn {
            Turn::System(_) => {}
            Turn::User(text) => user_block(first, &text_block(visible(text)), out),
            Turn::Media(media) => user_block(first, &media_block(media), out),
            Turn::Outputs(outputs) => {
                for (position, output) in outputs.iter().enumerate() {
                    user_block(first && position == 0, &result_block(output), out);
                }
            }
            Turn::Answer { parts, text, calls } => {
                if first {
                    // A conversation begins with the person.
                    user_block(first, &text_block(NO_TEXT), out);
                }
                close(out);
                let text = text.as_deref().filter(|t| !t.trim().is_empty());
                let uses = calls.iter().map(|call| {
                    let (id, name) = (wire_id(&call.id), names.wire(&call.name));
                    json!({"type": "tool_use", "id": id, "name": name, "input": input_object(&call.arguments)})
                });
                let own = self.own_parts(parts.as_ref());
                let mut content = in_order(own, kept, text, text_block, uses.collect());
                if text.is_none() && calls.is_empty() {
                    content.push(text_block(NO_TEXT));
                }
                if !out.is_empty() {
                    out.push(b',');
                }
                write_json(out, &json!({"role": "assistant", "content": content}));
            }
        }
    }

    fn tail(&self, request: &Request<'_>, out: &mut Vec<u8>) -> Result<(), Fault> {
        let plan = Plan::of(request)?;
        if out.ends_with(b"[") {
            user_block(true, &text_block(NO_TEXT), out);
        }
        if plan.cache && is_open(out) {
            // The mark is set here and not in the turns, which stay as they are when the mark moves on.
            out.pop();
            out.extend_from_slice(b",\"cache_control\":{\"type\":\"ephemeral\"}}");
        }
        close(out);
        out.push(b']');
        let mut members = Map::new();
        if let Some(system) = plan.system() {
            members.insert("system".into(), system);
        }
        if let Some(tools) = plan.tools() {
            members.insert("tools".into(), tools);
        }
        members.extend(plan.parameters);
        members.extend(plan.tool_choice.map(|choice| ("tool_choice".to_owned(), choice)));
        if request.stream {
            members.insert("stream".into(), true.into());
        }
        write_members(out, &members);
        out.push(b'}');
        Ok(())
    }

    fn decode(&self, body: &[u8]) -> Result<Vec<Delta>, Fault> {
        decode(self, body)
    }

    fn refusal(&self, status: u16, body: &[u8]) -> Fault {
        refusal::from_body(status, body)
    }

    fn decoder(&self) -> Box<dyn StreamDecoder> {
        Box::new(MessagesDecoder::new(self))
    }
}

impl Anthropic {
    /// Opaque parts that came from this backend, unchanged.
    fn own_parts(&self, parts: Option<&ProviderParts>) -> Vec<Value> {
        let own = parts.filter(|p| p.backend == NAME).into_iter().flat_map(|p| &p.parts);
        own.filter(|part| self.unsigned_thinking || !is_unsigned_thinking(part))
            .cloned()
            .collect()
    }
}

/// Whether a block is thinking that the API would refuse to take back.
pub(crate) fn is_unsigned_thinking(block: &Value) -> bool {
    let signature = block.get("signature").and_then(Value::as_str).unwrap_or_default();
    block["type"] == "thinking" && signature.is_empty()
}

/// What stands behind the conversation, decided from the parameters.
struct Plan {
    cache: bool,
    system: String,
    tools: Vec<Value>,
    tool_choice: Option<Value>,
    parameters: Map<String, Value>,
}

impl Plan {
    fn of(request: &Request<'_>) -> Result<Self, Fault> {
        let all = with_effort(request.parameters(&[]), &request.profile.model)?;
        let mut parameters = all.clone();
        parameters.retain(|name, _| !RESERVED.contains(&name.as_str()));
        if let Some(stop) = parameters.shift_remove("stop") {
            let list = if stop.is_array() { stop } else { json!([stop]) };
            parameters.entry("stop_sequences").or_insert(list);
        }
        // What the model thinks counts against the limit.
        let budget = thinking(&all).and_then(|t| t["budget_tokens"].as_u64()).unwrap_or(0);
        if parameters.get("max_tokens").is_none_or(Value::is_null) {
            parameters.insert("max_tokens".into(), budget.saturating_add(MAX_TOKENS).into());
        }
        parameters.sort_keys();

        let view = request.view;
        let instructions = view.messages.iter().filter(|m| m.role == Role::System);
        let mut system: Vec<&str> = instructions.map(|m| m.content.as_str()).collect();
        system.retain(|text| !text.trim().is_empty());
        let format = Format::read(all.get("format"))?;
        let words = format.as_ref().map(Format::instruction);
        let answer_tool = answer_tool(request, &all, format.as_ref());
        system.extend(words.as_deref().filter(|_| answer_tool.is_none()));

        let mut tools: Vec<&ToolDefinition> = view.tools.iter().collect();
        tools.sort_by(|a, b| a.name.cmp(&b.name));
        let tools = tools.into_iter().map(|tool| {
            json!({
                "name": request.names.wire(&tool.name),
                "description": tool.description,
                "input_schema": plain_root(tool.wire_parameters()),
            })
        });
        let mut tools: Vec<Value> = tools.collect();
        let mut tool_choice = tool_choice(request, &all)?;
        if let Some((name, schema)) = answer_tool {
            tool_choice = Some(json!({"type": "tool", "name": name}));
            tools.push(json!({"name": name, "description": "Gives the final answer.", "input_schema": schema}));
        }
        Ok(Self {
            cache: all.get("cache") == Some(&Value::Bool(true)),
            system: system.join("\n\n"),
            tools,
            tool_choice,
            parameters,
        })
    }

    fn system(&self) -> Option<Value> {
        if self.system.is_empty() {
            return None;
        }
        Some(if self.cache {
            json!([marked(text_block(&self.system))])
        } else {
            self.system.clone().into()
        })
    }

    fn tools(&self) -> Option<Value> {
        let mut tools = self.tools.clone();
        let last = tools.pop()?;
        tools.push(if self.cache { marked(last) } else { last });
        Some(tools.into())
    }
}

/// The parameters with `reasoning_effort`, which is OpenAI's, as this API says it: newer models take an effort, older ones
/// a number of tokens for their thinking.
fn with_effort(mut all: Map<String, Value>, model: &str) -> Result<Map<String, Value>, Fault> {
    let Some(effort) = all.shift_remove("reasoning_effort").filter(|e| !e.is_null()) else {
        return Ok(all);
    };
    let word = effort.as_str().unwrap_or_default();
    let budget = match word {
        "none" | "minimal" => None,
        "low" => Some(1024),
        "medium" => Some(8192),
        "high" | "xhigh" | "max" => Some(24_576),
        _ => {
            return Err(Fault::Config(format!(
                "`reasoning_effort` is {effort}; expected none, minimal, low, medium, high, xhigh or max"
            )));
        }
    };
    let version = claude_version(model);
    let first_with_effort = if model.contains("opus") { (4, 5) } else { (4, 6) };
    if version.is_some_and(|version| version >= first_with_effort) {
        let word = if budget.is_none() { "low" } else { word };
        let config = all.entry("output_config").or_insert_with(|| json!({}));
        if let Some(config) = config.as_object_mut() {
            config.entry("effort").or_insert_with(|| word.into());
        }
    } else if let Some(budget) = budget {
        if version.is_some_and(|version| version < (3, 7)) {
            return Err(Fault::Config(format!(
                "`{model}` can't think; leave out `reasoning_effort`"
            )));
        }
        all.entry("thinking")
            .or_insert_with(|| json!({"type": "enabled", "budget_tokens": budget}));
    }
    Ok(all)
}

/// The version in a name like `claude-opus-4-5-20251101` or `claude-3-7-sonnet-latest`; other servers name theirs freely.
fn claude_version(model: &str) -> Option<(u32, u32)> {
    let (_, name) = model.split_once("claude-")?;
    let words = name.split(['-', '.', '@', ':']);
    let mut numbers = words
        .skip_while(|w| w.parse::<u32>().is_err())
        .map_while(|w| w.parse::<u32>().ok());
    let major = numbers.next().filter(|n| *n < 100)?;
    Some((major, numbers.next().filter(|n| *n < 100).unwrap_or(0)))
}

/// What `thinking` says, unless it is off.
fn thinking(all: &Map<String, Value>) -> Option<&Value> {
    all.get("thinking").filter(|t| t.is_object() && t["type"] != "disabled")
}

/// The tool whose input is the answer, by name and schema. With other tools on offer the model must be free to call
/// those, a forced call is refused while it thinks, and the input of a tool is an object: then the schema goes into the
/// instructions.
fn answer_tool(request: &Request<'_>, all: &Map<String, Value>, format: Option<&Format>) -> Option<(String, Value)> {
    let Some(Format::Schema { name, schema }) = format else {
        return None;
    };
    let can_be = request.view.tools.is_empty() && thinking(all).is_none() && schema["type"] == "object";
    can_be.then(|| (request.names.wire(name), plain_root(schema.clone())))
}

/// A block or tool that ends a cached prefix.
fn marked(mut value: Value) -> Value {
    value["cache_control"] = json!({"type": "ephemeral"});
    value
}

/// `tool_choice` of the request; one that the endpoint gives in the API's own form is sent as it is.
fn tool_choice(request: &Request<'_>, all: &Map<String, Value>) -> Result<Option<Value>, Fault> {
    if request.view.tools.is_empty() {
        return Ok(None);
    }
    let given = all.get("tool_choice");
    let word = request.view.tool_choice.or_else(|| given.and_then(Value::as_str));
    let mut choice = match word.map(|word| ToolChoice::read(word, request)).transpose()? {
        Some(ToolChoice::Auto) => Some(json!({"type": "auto"})),
        Some(ToolChoice::None) => Some(json!({"type": "none"})),
        Some(ToolChoice::Required) => Some(json!({"type": "any"})),
        Some(ToolChoice::Tool(name)) => Some(json!({"type": "tool", "name": name})),
        None => given.filter(|g| g.is_object()).cloned(),
    };
    if all.get("parallel_tool_calls") == Some(&Value::Bool(false)) {
        let choice = choice.get_or_insert_with(|| json!({"type": "auto"}));
        if choice["type"] != "none" {
            choice["disable_parallel_tool_use"] = true.into();
        }
    }
    Ok(choice)
}

/// Writes a block of the person's side.
fn user_block(first: bool, block: &Value, out: &mut Vec<u8>) {
    add(block, "{\"role\":\"user\",\"content\":[", first, out);
}

fn visible(text: &str) -> &str {
    if text.trim().is_empty() { NO_TEXT } else { text }
}

fn text_block(text: &str) -> Value {
    json!({"type": "text", "text": text})
}

fn media_block(media: &Media) -> Value {
    let source = match media.data() {
        Some((kind, data)) => json!({"type": "base64", "media_type": kind, "data": data}),
        None => json!({"type": "url", "url": media.url}),
    };
    json!({"type": if media.is_pdf { "document" } else { "image" }, "source": source})
}

fn result_block(output: &Output) -> Value {
    let mut block = json!({"type": "tool_result", "tool_use_id": wire_id(&output.id)});
    // A blank text is refused here, too; nothing at all is not.
    if !output.content.trim().is_empty() {
        block["content"] = output.content.clone().into();
    }
    if output.failed {
        block["is_error"] = true.into();
    }
    block
}

/// What a part is: texts and the places of calls are kept where their order matters.
fn kept(part: &Value) -> Kept<'_> {
    match part["type"].as_str() {
        Some("text") => part["text"].as_str().map_or(Kept::Opaque, Kept::Text),
        Some("tool_use") => Kept::Call,
        _ => Kept::Opaque,
    }
}

/// The form of an id that the API takes, for ids that other providers made.
fn wire_id(id: &str) -> String {
    wire_form(id, MAX_ID, 16)
}

/// Arguments as the object that a call must have; a text that is none is put into one, so that the model sees it.
pub fn input_object(arguments: &Arguments) -> Value {
    match arguments {
        Arguments::Object(map) => Value::Object(map.clone()),
        Arguments::Invalid(text) => json!({"invalid_arguments": text}),
    }
}
