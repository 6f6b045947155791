//! Ollama's own `POST …/api/chat`: encoding.
//!
//! The API has no `tool_choice`: `auto` is how it behaves, `none` is said by leaving the tools out, and anything else
//! can't be said, so it is refused rather than silently not heeded. Tools therefore stand after the messages, where
//! they may differ from request to request.

use decanus_base::Secret;
use decanus_chat::{Arguments, Role, ToolDefinition, Usage};
use serde_json::{Map, Value, json};

use crate::conversation::Delta;
use crate::dialect::{Dialect, Fault, Framing, Request, StreamDecoder, write_item, write_json, write_members};
use crate::embed::EmbeddingApi;
use crate::inline_refs::inline_refs;
use crate::ollama_decode::{LineDecoder, decode};
use crate::profile::Profile;
use crate::refusal;
use crate::tool_names::ToolNames;
use crate::turns::{Media, Turn};

/// Parameters that the request sets itself.
const RESERVED: [&str; 6] = ["model", "messages", "tools", "tool_choice", "stream", "format"];

/// What goes into `options`; a parameter of any other name stands beside it.
const OPTIONS: [&str; 30] = [
    "f16_kv",
    "frequency_penalty",
    "logits_all",
    "low_vram",
    "main_gpu",
    "min_p",
    "mirostat",
    "mirostat_eta",
    "mirostat_tau",
    "num_batch",
    "num_ctx",
    "num_gpu",
    "num_keep",
    "num_predict",
    "num_thread",
    "numa",
    "penalize_newline",
    "presence_penalty",
    "repeat_last_n",
    "repeat_penalty",
    "seed",
    "stop",
    "temperature",
    "tfs_z",
    "top_k",
    "top_p",
    "typical_p",
    "use_mlock",
    "use_mmap",
    "vocab_only",
];

/// Bytes of text for one token, at the very least: more only in texts that repeat one character.
const BYTES_PER_TOKEN: usize = 12;
/// Shorter conversations fit into the smallest context that the server uses by itself.
const SMALLEST_CONTEXT: usize = 2048;
/// The member that carries arguments which are no JSON object.
const INVALID_ARGUMENTS: &str = "invalid_arguments";

/// The dialect of `POST …/api/chat`.
#[derive(Debug, Clone, Copy, Default)]
pub struct Ollama;

impl Dialect for Ollama {
    fn name(&self) -> &'static str {
        "ollama"
    }

    fn path(&self, _: &Profile, _: bool) -> String {
        "/api/chat".into()
    }

    fn base_path<'a>(&self, path: &'a str) -> &'a str {
        base_path(path)
    }

    fn thinks_in_text(&self) -> bool {
        true
    }

    fn framing(&self) -> Framing {
        Framing::Lines
    }

    fn key_header(&self, key: &Secret) -> (&'static str, Secret) {
        ("authorization", Secret::new(format!("Bearer {}", key.expose())))
    }

    fn missing_key(&self, _: &str) -> Option<String> {
        None
    }

    fn embeddings(&self) -> Option<EmbeddingApi> {
        Some(EmbeddingApi::Ollama)
    }

    fn head(&self, profile: &Profile, _: &[ToolDefinition], _: &ToolNames, out: &mut Vec<u8>) -> Result<(), Fault> {
        out.extend_from_slice(b"{\"model\":");
        write_json(out, &profile.model);
        out.extend_from_slice(b",\"messages\":[");
        Ok(())
    }

    fn turn(&self, turn: &Turn, names: &ToolNames, first: bool, out: &mut Vec<u8>) {
        let mut first = first;
        let mut message = |value: Value| write_item(out, &mut first, &value);
        match turn {
            Turn::System(text) => message(json!({"role": "system", "content": text})),
            Turn::User(text) => message(json!({"role": "user", "content": text})),
            Turn::Media(media) => {
                // What can't be sent is refused in the tail.
                let images: Vec<&str> = media.data().map(|(_, data)| data).into_iter().collect();
                message(json!({"role": "user", "content": "", "images": images}));
            }
            Turn::Answer { parts, text, calls } => {
                let mut value = json!({"role": "assistant", "content": text.as_deref().unwrap_or("")});
                if !calls.is_empty() {
                    // Models that think go on from the thoughts that led to their calls.
                    let own = parts.iter().filter(|p| p.backend == self.name());
                    for part in own.flat_map(|p| &p.parts).filter_map(Value::as_object) {
                        part.iter().for_each(|(name, text)| value[name] = text.clone());
                    }
                    let calls = calls.iter().map(|call| {
                        json!({"function": {"name": names.wire(&call.name), "arguments": object(&call.arguments)}})
                    });
                    value["tool_calls"] = calls.collect();
                }
                message(value);
            }
            Turn::Outputs(outputs) => {
                for output in outputs {
                    // `tool_name` is the API's; older servers and imitations read `name`.
                    let name = names.wire(&output.name);
                    message(json!({"role": "tool", "tool_name": name, "name": name, "content": output.content}));
                }
            }
        }
    }

    fn tail(&self, request: &Request<'_>, out: &mut Vec<u8>) -> Result<(), Fault> {
        media(request)?;
        out.push(b']');
        let offers_tools = offers_tools(request)?;
        if offers_tools && !request.view.tools.is_empty() {
            out.extend_from_slice(b",\"tools\":");
            let mut tools: Vec<_> = request.view.tools.iter().collect();
            tools.sort_by(|a, b| a.name.cmp(&b.name));
            let tools: Vec<Value> = tools
                .into_iter()
                .map(|tool| {
                    json!({"type": "function", "function": {
                        "name": request.names.wire(&tool.name),
                        "description": tool.description,
                        // The server keeps only what it knows of a schema, and `$defs` is not part of it everywhere.
                        "parameters": inline_refs(&tool.wire_parameters()),
                    }})
                })
                .collect();
            write_json(out, &tools);
        }
        let mut members = with_options(request.parameters(&RESERVED))?;
        let format = request.parameter("format").filter(|f| !f.is_null());
        if let Some(format) = format.map(wire_format).transpose()?.flatten() {
            members.insert("format".into(), format);
        }
        members.sort_keys();
        write_members(out, &members);
        // Left out, it is true.
        out.extend_from_slice(if request.stream {
            b",\"stream\":true}"
        } else {
            b",\"stream\":false}"
        });
        Ok(())
    }

    fn decode(&self, body: &[u8]) -> Result<Vec<Delta>, Fault> {
        decode(body)
    }

    fn refusal(&self, status: u16, body: &[u8]) -> Fault {
        refusal::from_body(status, body)
    }

    fn decoder(&self) -> Box<dyn StreamDecoder> {
        Box::new(LineDecoder::default())
    }

    // A conversation that does not fit into `num_ctx` is cut at its beginning, and answered with status 200.
    fn prompt_was_cut(&self, sent: usize, usage: &Usage) -> Option<String> {
        let least = sent / BYTES_PER_TOKEN;
        let counted = usize::try_from(usage.pt?).ok()?;
        (sent / 4 > SMALLEST_CONTEXT && counted < least).then(|| {
            format!(
                "{sent} bytes of text were sent, but the server counts only {counted} tokens: it has probably cut the \
                 beginning of the conversation; set `num_ctx` in the endpoint's file or by -o"
            )
        })
    }
}

/// The path of an endpoint's URL without what belongs to one of the server's two APIs.
pub(crate) fn base_path(path: &str) -> &str {
    ["/v1", "/api"]
        .iter()
        .find_map(|end| path.strip_suffix(end))
        .unwrap_or(path)
}

/// A URL from what the variable `OLLAMA_HOST` may hold: a host or a port may be missing, and a server's address to
/// listen on is given as one to connect to.
pub(crate) fn url_of_host(text: &str) -> String {
    let (scheme, rest) = text.split_once("://").unwrap_or(("", text));
    let (authority, path) = rest.find('/').map_or((rest, ""), |at| rest.split_at(at));
    let (host, port) = match authority.rsplit_once(':') {
        Some((host, port)) if port.bytes().all(|b| b.is_ascii_digit()) && !host.ends_with(':') => (host, port),
        _ => (authority, ""),
    };
    let host = match host {
        "" | "0.0.0.0" => "127.0.0.1",
        "[::]" => "[::1]",
        other => other,
    };
    let port = match (port, scheme) {
        ("", "") => ":11434".to_owned(),
        ("", _) => String::new(),
        (port, _) => format!(":{port}"),
    };
    let scheme = if scheme.is_empty() { "http" } else { scheme };
    format!("{scheme}://{host}{port}{path}")
}

/// Moves what belongs there into `options`, over the `options` that are given as a whole.
pub(crate) fn with_options(parameters: Map<String, Value>) -> Result<Map<String, Value>, Fault> {
    let mut rest = parameters;
    let mut options = match rest.shift_remove("options") {
        None | Some(Value::Null) => Map::new(),
        Some(Value::Object(map)) => map,
        Some(other) => return Err(Fault::Config(format!("`options` is not a map: {other}"))),
    };
    // The name that other providers have for it.
    for name in ["max_tokens", "max_completion_tokens"] {
        if let Some(value) = rest.shift_remove(name) {
            rest.entry("num_predict").or_insert(value);
        }
    }
    for name in OPTIONS {
        if let Some(value) = rest.shift_remove(name) {
            options.insert(name.into(), value);
        }
    }
    if let Some(stop) = options.get_mut("stop").filter(|s| s.is_string()) {
        *stop = Value::Array(vec![stop.take()]);
    }
    options.sort_keys();
    if !options.is_empty() {
        rest.insert("options".into(), Value::Object(options));
    }
    Ok(rest)
}

/// Whether the request offers its tools.
fn offers_tools(request: &Request<'_>) -> Result<bool, Fault> {
    let of_parameters = request.parameter("tool_choice").and_then(Value::as_str);
    match request.view.tool_choice.or(of_parameters) {
        None | Some("auto") => Ok(true),
        Some("none") => Ok(false),
        // Without tools there is nothing to choose.
        Some(_) if request.view.tools.is_empty() => Ok(true),
        Some(other) => Err(Fault::Config(format!(
            "ollama can't be told to call a tool: tool_choice may be auto or none, not `{other}`"
        ))),
    }
}

fn media(request: &Request<'_>) -> Result<(), Fault> {
    for (at, message) in request.view.messages.iter().enumerate() {
        let why = match message.role {
            Role::Pdf => "ollama takes no documents",
            Role::Image => {
                let media = Media {
                    is_pdf: false,
                    url: message.content.clone(),
                };
                if media.data().is_some() {
                    continue;
                }
                "ollama takes files only, it does not fetch pictures"
            }
            _ => continue,
        };
        return Err(Fault::Config(format!("message {}: {why}", at + 1)));
    }
    Ok(())
}

/// Arguments as the object that the API wants; text that is none is carried by one.
pub(crate) fn object(arguments: &Arguments) -> Value {
    match arguments {
        Arguments::Object(map) => Value::Object(map.clone()),
        Arguments::Invalid(text) => json!({INVALID_ARGUMENTS: text}),
    }
}

/// `format` from what a chat calls so: `json` or a schema. A word that asks for plain text asks for nothing.
fn wire_format(format: &Value) -> Result<Option<Value>, Fault> {
    match format {
        Value::String(word) if word == "json" || word == "json_object" => Ok(Some("json".into())),
        Value::String(word) if word == "text" => Ok(None),
        Value::Object(map) if map.get("type").and_then(Value::as_str) == Some("json_schema") => {
            let around = map.get("json_schema").and_then(Value::as_object).unwrap_or(map);
            let schema = around.get("schema").filter(|s| s.is_object());
            let schema = schema.ok_or_else(|| Fault::Config("`format` is a json_schema without `schema`".into()))?;
            Ok(Some(schema.clone()))
        }
        Value::Object(map) => Ok(Some(crate::format::schema(map).1)),
        other => Err(Fault::Config(format!(
            "`format` is neither `json` nor a schema: {other}"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_become_urls() {
        for (text, url) in [
            ("127.0.0.1:11434", "http://127.0.0.1:11434"),
            ("0.0.0.0", "http://127.0.0.1:11434"),
            (":8080", "http://127.0.0.1:8080"),
            ("[::]:8080", "http://[::1]:8080"),
            ("[::1]", "http://[::1]:11434"),
            ("gpu1", "http://gpu1:11434"),
            ("https://ollama.example/base", "https://ollama.example/base"),
            ("http://gpu1:80/v1", "http://gpu1:80/v1"),
        ] {
            assert_eq!(url_of_host(text), url, "{text}");
        }
    }

    #[test]
    fn a_low_count_is_told_from_a_short_conversation() {
        let usage = |pt| Usage {
            pt: Some(pt),
            ..Usage::default()
        };
        assert!(Ollama.prompt_was_cut(48_000, &usage(1990)).unwrap().contains("num_ctx"));
        for (sent, pt) in [(48_000, 12_000), (48_000, 4_100), (8_000, 22), (0, 0)] {
            assert_eq!(Ollama.prompt_was_cut(sent, &usage(pt)), None, "{sent} {pt}");
        }
        assert_eq!(Ollama.prompt_was_cut(48_000, &Usage::default()), None);
    }

    #[test]
    fn options_are_told_from_parameters() {
        let given = json!({"temperature": 0, "stop": "END", "max_tokens": 5, "keep_alive": "1m", "think": true,
            "options": {"num_ctx": 8192, "temperature": 1}});
        let Value::Object(given) = given else { unreachable!() };
        let expected = json!({"keep_alive": "1m", "think": true,
            "options": {"num_ctx": 8192, "num_predict": 5, "stop": ["END"], "temperature": 0}});
        assert_eq!(Value::Object(with_options(given).unwrap()), expected);
    }
}
