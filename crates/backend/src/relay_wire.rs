//! The files of the relay: what a request holds and what a reply holds, for both sides.
//!
//! A request is one JSON object: parameters, `model`, `endpoint`, `tools`, `tool_choice`, `messages` (the conversation in
//! the roles of a chat file) and `question` (the last thing that the person said). An original server knows `question`
//! and the parameters only, and replies with a JSON text. Ours replies to `messages` with messages. It also reads the
//! originals' second form, `[messages, options]`, whose reply is the raw response of a provider.

use decanus_base::text::brief;
use decanus_chat::{Arguments, FunctionCall, Message, ProviderParts, Role, ToolDefinition, Usage};
use serde_json::{Map, Value, json};

use crate::collect::Response;
use crate::conversation::{Delta, FinishReason, View};
use crate::dialect::{Fault, write_json};
use crate::error::BackendError;
use crate::profile::{Profile, Relay};
use crate::refusal;

/// The backend's name.
pub const NAME: &str = "relay";

/// The largest request or reply that is read.
pub const MAX_FILE: u64 = 64 << 20;

/// Options that are credentials, or decide where credentials go: they never travel, and are refused where they arrive.
const CREDENTIALS: [&str; 22] = [
    "key",
    "key_env",
    "api_key",
    "apikey",
    "access_key",
    "access_key_env",
    "secret_key",
    "secret_key_env",
    "session_token",
    "access_token",
    "auth_token",
    "token",
    "password",
    "authorization",
    "headers",
    "extra_headers",
    "url",
    "base_url",
    "command",
    "server",
    "ssh_options",
    "profile",
];

/// Options of an original client that steer its own program and mean nothing to a provider.
const OWN_OPTIONS: [&str; 14] = [
    "backend",
    "persist",
    "process",
    "relay",
    "prompt_strategies",
    "previous_response",
    "previous_response_id",
    "return_messages",
    "max_rounds",
    "timeout",
    "request_timeout",
    "stream",
    "stream_options",
    "websearch_options",
];

/// The roles that travel; everything else is of use in its own chat only.
const ROLES: [Role; 8] = [
    Role::System,
    Role::User,
    Role::Assistant,
    Role::FunctionCall,
    Role::FunctionCallOutput,
    Role::Provider,
    Role::Image,
    Role::Pdf,
];

/// Whether an option may not be part of a request.
pub fn is_credential(name: &str) -> bool {
    CREDENTIALS.contains(&name.to_lowercase().replace('-', "_").as_str())
}

/// The request of a view, as the near side writes it. What stays the same through a conversation comes first.
///
/// # Errors
/// A text: parameters that are credentials, or a conversation that an original server can't be told.
pub(crate) fn request(profile: &Profile, relay: &Relay, view: &View<'_>) -> Result<Vec<u8>, String> {
    let mut parameters = profile.parameters.clone();
    parameters.extend(view.parameters.iter().map(|(k, v)| (k.clone(), v.clone())));
    parameters.retain(|name, _| !["messages", "tools", "question", "model", "endpoint"].contains(&name.as_str()));
    if let Some(name) = parameters.keys().find(|name| is_credential(name)) {
        return Err(format!(
            "`{name}` is not sent to another machine: credentials and servers belong into the endpoint's file there"
        ));
    }
    let mut head = Map::new();
    for (name, value) in [("model", Some(&profile.model)), ("endpoint", relay.endpoint.as_ref())] {
        if let Some(value) = value.filter(|v| !v.is_empty()) {
            head.insert(name.into(), value.clone().into());
        }
    }
    parameters.sort_keys();
    head.extend(parameters);
    let question = view.messages.iter().rfind(|m| m.role == Role::User);
    if relay.plain {
        let [only] = view.messages else {
            return Err("an original server (`plain: true`) takes one question, without a conversation".into());
        };
        if only.role != Role::User || !view.tools.is_empty() {
            return Err("an original server (`plain: true`) takes one question, without tools".into());
        }
        head.insert("question".into(), only.content.clone().into());
        return Ok(Value::Object(head).to_string().into_bytes());
    }
    if let Some(choice) = view.tool_choice {
        head.insert("tool_choice".into(), choice.into());
    }
    let mut tools: Vec<_> = view.tools.iter().collect();
    tools.sort_by(|a, b| a.name.cmp(&b.name));
    let definition =
        |t: &ToolDefinition| json!({"name": t.name, "description": t.description, "parameters": t.wire_parameters()});
    if !tools.is_empty() {
        head.insert("tools".into(), tools.into_iter().map(definition).collect());
    }
    let mut out = Vec::new();
    write_json(&mut out, &head);
    // The object stays open: messages come last, so that a longer conversation begins like a shorter one.
    out.pop();
    if out.len() > 1 {
        out.push(b',');
    }
    out.extend_from_slice(b"\"messages\":[");
    let mut first = true;
    for message in view.messages {
        for (role, content) in outgoing(message)? {
            if !std::mem::take(&mut first) {
                out.push(b',');
            }
            write_json(&mut out, &json!({"role": role.as_str(), "content": content}));
        }
    }
    out.push(b']');
    if let Some(question) = question {
        out.extend_from_slice(b",\"question\":");
        write_json(&mut out, &question.content);
    }
    out.push(b'}');
    Ok(out)
}

/// A message as it travels. Parts that came by a relay are those of the far side's own backend and go back to it as such.
fn outgoing(message: &Message) -> Result<Vec<(Role, Value)>, String> {
    match message.role {
        Role::Provider => {
            let record = ProviderParts::from_message(message)?;
            let inner = if record.backend == NAME {
                record.parts
            } else {
                Vec::new()
            };
            Ok(inner.into_iter().map(|part| (Role::Provider, part)).collect())
        }
        role if role.is_json() => {
            let value = serde_json::from_str(&message.content).map_err(|e| format!("{role} is not JSON: {e}"))?;
            Ok(vec![(role, value)])
        }
        role if ROLES.contains(&role) => Ok(vec![(role, message.content.clone().into())]),
        _ => Ok(Vec::new()),
    }
}

/// A request as the far side reads it.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct RelayRequest {
    /// The conversation; for a plain question, that question.
    pub messages: Vec<Message>,
    /// The tools that the near side runs.
    pub tools: Vec<ToolDefinition>,
    /// What goes to the provider.
    pub parameters: Map<String, Value>,
    /// `auto`, `none`, `required` or the name of a tool.
    pub tool_choice: Option<String>,
    /// The endpoint to ask; none for the far side's default.
    pub endpoint: Option<String>,
    /// The model to ask for.
    pub model: Option<String>,
    /// The backend that the near side thinks of, where it says so.
    pub backend: Option<String>,
    /// How it is written, and so how it is answered.
    pub form: Form,
}

/// How a request is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Form {
    /// As this program writes it: the reply holds messages.
    #[default]
    Own,
    /// The originals' question: the reply is a JSON text.
    Question,
    /// The originals' `[messages, options]`: the reply is a response of Chat Completions.
    Query,
}

impl Form {
    /// The folder that the near side looks into for its reply.
    pub fn folder(self) -> &'static str {
        match self {
            Self::Own | Self::Question => "reply",
            Self::Query => "response",
        }
    }
}

/// Backends of the originals that read a response of Chat Completions.
const READ_CHAT_COMPLETIONS: [&str; 3] = ["openai", "openwebui", "vllm"];

/// Why a request is none.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RelayRequestError {
    /// It is not what the protocol says.
    #[error("{0}")]
    Malformed(String),
    /// It names a credential, or a server of its own. What the option holds is never shown.
    #[error("the option `{0}` is refused: credentials and servers are chosen by this machine's own endpoint files")]
    Credential(String),
}

impl RelayRequest {
    /// Reads a request.
    ///
    /// # Errors
    /// [`RelayRequestError`].
    pub fn read(bytes: &[u8]) -> Result<Self, RelayRequestError> {
        let bad = |what: String| RelayRequestError::Malformed(what);
        let value: Value = serde_json::from_slice(bytes).map_err(|e| bad(format!("it is not JSON: {e}")))?;
        let (mut map, form) = match value {
            Value::Object(map) => (map, Form::Own),
            Value::Array(pair) => match <[Value; 2]>::try_from(pair) {
                Ok([messages @ Value::Array(_), Value::Object(mut options)]) => {
                    options.insert("messages".into(), messages);
                    (options, Form::Query)
                }
                _ => return Err(bad("it is neither a JSON object nor `[messages, options]`".into())),
            },
            _ => return Err(bad("it is not a JSON object".into())),
        };
        let backend = match form {
            Form::Query => tag(&mut map).map_err(bad)?,
            _ => None,
        };
        if let Some(name) = map.keys().find(|name| is_credential(name)) {
            return Err(RelayRequestError::Credential(name.clone()));
        }
        let mut word = |name: &str| match map.shift_remove(name) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(text)) => Ok(Some(text).filter(|t| !t.is_empty())),
            Some(_) => Err(bad(format!("`{name}` is not a text"))),
        };
        let (question, endpoint, model) = (word("question")?, word("endpoint")?, word("model")?);
        let tool_choice = word("tool_choice")?;
        let messages = match map.shift_remove("messages") {
            None | Some(Value::Null) => None,
            Some(Value::Array(items)) => Some(items.iter().map(incoming).collect::<Result<Vec<_>, _>>().map_err(bad)?),
            Some(_) => return Err(bad("`messages` is not a list".into())),
        };
        let tools = match map.shift_remove("tools") {
            None | Some(Value::Null) => Vec::new(),
            Some(Value::Array(items)) => items.iter().map(tool).collect::<Result<Vec<_>, _>>().map_err(bad)?,
            Some(_) => return Err(bad("`tools` is not a list".into())),
        };
        let form = match form {
            Form::Own if messages.is_none() && tools.is_empty() => Form::Question,
            form => form,
        };
        let messages = match (messages, question) {
            (Some(messages), _) if !messages.is_empty() => messages,
            (_, Some(question)) => vec![Message::user(question)],
            _ => return Err(bad("it has neither a `question` nor `messages`".into())),
        };
        map.retain(|name, _| !OWN_OPTIONS.contains(&name.as_str()));
        Ok(Self {
            messages,
            tools,
            parameters: map,
            tool_choice,
            endpoint,
            model,
            backend,
            form,
        })
    }
}

/// Takes the message that names the backend from the front of a query.
fn tag(options: &mut Map<String, Value>) -> Result<Option<String>, String> {
    let Some(messages) = options.get_mut("messages").and_then(Value::as_array_mut) else {
        return Ok(None);
    };
    if messages.first().is_none_or(|m| m["role"] != "backend") {
        return Ok(None);
    }
    let first = messages.remove(0);
    let name = first["content"].as_str().unwrap_or_default();
    match READ_CHAT_COMPLETIONS.contains(&name) {
        true => Ok(Some(name.to_owned())),
        false => Err(format!(
            "it is meant for the backend `{}`; the responses given here are those of {}",
            brief(name, 40),
            READ_CHAT_COMPLETIONS.join(", ")
        )),
    }
}

fn incoming(value: &Value) -> Result<Message, String> {
    let word = value.get("role").and_then(Value::as_str).unwrap_or_default();
    let known = Role::from_word(word).filter(|r| ROLES.contains(r));
    // Only what a conversation is made of: a role such as `file` or `cmd` would read or run something here.
    let role = known.ok_or_else(|| format!("a message has the role `{}`, which is not taken", brief(word, 40)))?;
    let content = match value.get("content") {
        Some(Value::String(text)) => text.clone(),
        Some(object @ Value::Object(_)) if role.is_json() => object.to_string(),
        _ => return Err(format!("a message of the role {role} has no text")),
    };
    let travels = ["data:", "http://", "https://"]
        .iter()
        .any(|begin| content.starts_with(begin));
    if matches!(role, Role::Image | Role::Pdf) && !travels {
        return Err(format!("a message of the role {role} is neither data nor a URL"));
    }
    Ok(Message::new(role, content))
}

/// A tool as ours, or in the form of Chat Completions.
fn tool(value: &Value) -> Result<ToolDefinition, String> {
    let value = value.get("function").filter(|f| f.is_object()).unwrap_or(value);
    let text = |name: &str| value.get(name).and_then(Value::as_str).map(str::to_owned);
    Ok(ToolDefinition {
        name: text("name").filter(|n| !n.is_empty()).ok_or("a tool has no name")?,
        description: text("description").unwrap_or_default(),
        parameters: value.get("parameters").cloned().unwrap_or_else(|| json!({})),
        ..ToolDefinition::default()
    })
}

/// The reply to a request, in the form that the request asks for.
pub fn reply(response: &Response, backend: &str, form: Form) -> Value {
    match form {
        Form::Own => {}
        Form::Question => return response.text.clone().into(),
        Form::Query => return chat_completion(response),
    }
    let mut messages = Vec::new();
    if !response.parts.is_empty() {
        let parts = &response.parts;
        let model = response.model.clone().unwrap_or_default();
        let content = json!({"backend": backend, "model": model, "parts": parts});
        messages.push(json!({"role": "provider", "content": content}));
    }
    for call in &response.calls {
        let content = json!({"name": call.name, "arguments": call.arguments.to_value(), "id": call.id});
        messages.push(json!({"role": "function_call", "content": content}));
    }
    if !response.text.is_empty() {
        messages.push(json!({"role": "assistant", "content": response.text}));
    }
    let mut map = Map::new();
    map.insert("messages".into(), messages.into());
    let counts = response.usage.fields();
    let usage: Map<String, Value> = counts
        .iter()
        .filter_map(|(name, count)| Some(((*name).to_owned(), (*count)?.into())))
        .collect();
    map.insert("usage".into(), usage.into());
    map.insert("finish".into(), finish_word(response).into());
    if let Some(model) = &response.model {
        map.insert("model".into(), model.clone().into());
    }
    if !response.reasoning.is_empty() {
        map.insert("reasoning".into(), response.reasoning.clone().into());
    }
    Value::Object(map)
}

fn finish_word(response: &Response) -> &str {
    match &response.finish {
        Some(FinishReason::ToolCalls) => "tool_calls",
        Some(FinishReason::Length) => "length",
        Some(FinishReason::ContentFilter) => "content_filter",
        Some(FinishReason::Other(word)) => word,
        Some(FinishReason::Stop) | None => "stop",
    }
}

/// An answer as a provider of Chat Completions would have sent it, whoever gave it.
fn chat_completion(response: &Response) -> Value {
    let call = |call: &FunctionCall| {
        json!({"id": call.id, "type": "function",
            "function": {"name": call.name, "arguments": call.arguments.to_text()}})
    };
    let mut message = json!({"role": "assistant", "content": response.text});
    if !response.calls.is_empty() {
        message["tool_calls"] = response.calls.iter().map(call).collect();
    }
    let usage = &response.usage;
    json!({
        "object": "chat.completion",
        "model": response.model,
        "choices": [{"index": 0, "message": message, "finish_reason": finish_word(response)}],
        "usage": {"prompt_tokens": usage.pt, "completion_tokens": usage.ct, "total_tokens": usage.tt},
    })
}

/// The reply that says why there is no answer.
pub fn error_reply(kind: &str, message: &str, status: u16) -> Value {
    json!({"error": {"message": message, "type": kind, "status": status}})
}

/// The number that a failure has in a reply: the provider's own, else one that says whose fault it is.
pub fn status_of(error: &BackendError) -> u16 {
    match error {
        BackendError::Refused { status, .. } if (400..600).contains(status) => *status,
        BackendError::Config(_) => 400,
        BackendError::TooLong { .. } => 413,
        BackendError::Cancelled => 503,
        BackendError::TimedOut { .. } => 504,
        BackendError::Internal(_) => 500,
        _ => 502,
    }
}

/// Reads a reply: ours, a JSON text (an original server), or its list of messages.
pub(crate) fn read_reply(bytes: &[u8]) -> Result<Vec<Delta>, Fault> {
    let bad = |what: String| Fault::Malformed(format!("the reply {what}"));
    let value: Value = serde_json::from_slice(bytes).map_err(|e| bad(format!("is not JSON: {e}")))?;
    let empty = Map::new();
    let (messages, map) = match &value {
        Value::String(text) => {
            return Ok(vec![Delta::Text(text.clone()), Delta::Finish(FinishReason::Stop)]);
        }
        Value::Array(messages) => (messages, &empty),
        Value::Object(map) => {
            if let Some(error) = map.get("error").filter(|e| !e.is_null()) {
                return Err(refused(error, map));
            }
            let messages = map.get("messages").and_then(Value::as_array);
            (messages.ok_or_else(|| bad("has no messages".into()))?, map)
        }
        _ => return Err(bad("is neither a text nor an object".into())),
    };
    let mut out = Vec::new();
    let (mut calls, mut texts) = (0, 0);
    for value in messages {
        let message = incoming(value).map_err(bad)?;
        match message.role {
            Role::Provider => {
                let record = serde_json::from_str(&message.content).map_err(|e| bad(e.to_string()))?;
                out.push(Delta::Part(record));
            }
            Role::FunctionCall => {
                let call = FunctionCall::from_message(&message).map_err(|e| bad(format!("has a bad call: {e}")))?;
                out.push(Delta::Call {
                    index: Some(calls),
                    id: Some(call.id),
                    name: Some(call.name),
                    arguments: match call.arguments {
                        Arguments::Object(map) => Value::Object(map).to_string(),
                        Arguments::Invalid(text) => text,
                    },
                });
                calls += 1;
            }
            Role::Assistant => {
                let gap = if texts > 0 { "\n\n" } else { "" };
                out.push(Delta::Text(format!("{gap}{}", message.content)));
                texts += 1;
            }
            other => return Err(bad(format!("holds a message of the role {other}"))),
        }
    }
    if let Some(text) = map.get("reasoning").and_then(Value::as_str) {
        out.insert(0, Delta::Reasoning(text.to_owned()));
    }
    if let Some(model) = map.get("model").and_then(Value::as_str) {
        out.push(Delta::Model(model.to_owned()));
    }
    if let Some(usage) = map.get("usage").map(usage).filter(|u| !u.is_empty()) {
        out.push(Delta::Usage(usage));
    }
    out.push(Delta::Finish(match map.get("finish").and_then(Value::as_str) {
        _ if calls > 0 && map.get("finish").is_none_or(|f| f == "stop") => FinishReason::ToolCalls,
        None | Some("stop") => FinishReason::Stop,
        Some("tool_calls") => FinishReason::ToolCalls,
        Some("length") => FinishReason::Length,
        Some("content_filter") => FinishReason::ContentFilter,
        Some(other) => FinishReason::Other(other.to_owned()),
    }));
    Ok(out)
}

/// Our own names for token counts, or a provider's.
fn usage(value: &Value) -> Usage {
    let count = |name: &str| value.get(name).and_then(Value::as_u64);
    let own = Usage {
        pt: count("pt"),
        ct: count("ct"),
        tt: count("tt"),
        cct: count("cct"),
        cwt: count("cwt"),
        rt: count("rt"),
    };
    if own.is_empty() {
        Usage::from_provider(value)
    } else {
        own
    }
}

/// An error of the far side, with the number that it gives.
fn refused(error: &Value, around: &Map<String, Value>) -> Fault {
    let own = error.get("status").and_then(Value::as_u64);
    let own = own
        .and_then(|s| u16::try_from(s).ok())
        .filter(|s| (400..600).contains(s));
    match refusal::from_error(error, around) {
        Fault::Refused { status, code, message } => Fault::Refused {
            status: own.or(status).or(Some(502)),
            code,
            message,
        },
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(relay: &Relay, messages: &[Message], tools: &[ToolDefinition]) -> Result<Value, String> {
        let parameters = Map::new();
        let view = View {
            messages,
            tools,
            parameters: &parameters,
            tool_choice: None,
        };
        let mut profile = Profile::new("r", NAME, "m4");
        profile.parameters.insert("temperature".into(), 0.into());
        request(&profile, relay, &view).map(|bytes| serde_json::from_slice(&bytes).unwrap())
    }

    fn call() -> FunctionCall {
        FunctionCall {
            id: "a".into(),
            name: "f".into(),
            arguments: Arguments::from_text("{\"x\":1}"),
        }
    }

    #[test]
    fn what_the_near_side_writes_the_far_side_reads() {
        let messages = [
            Message::system("Be brief."),
            Message::user("Say hi"),
            call().to_message(),
            Message::new(
                Role::FunctionCallOutput,
                "{\"name\":\"f\",\"content\":\"2\",\"id\":\"a\"}",
            ),
        ];
        let tools = [ToolDefinition {
            name: "f".into(),
            description: "d".into(),
            ..ToolDefinition::default()
        }];
        let relay = Relay {
            endpoint: Some("lab".into()),
            ..Relay::to("host")
        };
        let value = near(&relay, &messages, &tools).unwrap();
        assert_eq!(value["question"], "Say hi");
        assert_eq!(value["messages"][2]["content"]["name"], "f");
        let read = RelayRequest::read(value.to_string().as_bytes()).unwrap();
        assert_eq!(read.messages, messages);
        assert_eq!((read.tools.len(), read.tools[0].name.as_str()), (1, "f"));
        assert_eq!(Value::Object(read.parameters), json!({"temperature": 0}));
        assert_eq!(
            (read.endpoint.as_deref(), read.model.as_deref()),
            (Some("lab"), Some("m4"))
        );
        assert_eq!(read.form, Form::Own);
    }

    #[test]
    fn a_longer_conversation_begins_like_a_shorter_one() {
        let parameters = Map::new();
        let bytes = |messages: &[Message]| {
            let view = View {
                messages,
                tools: &[],
                parameters: &parameters,
                tool_choice: None,
            };
            String::from_utf8(request(&Profile::new("r", NAME, "m"), &Relay::to("h"), &view).unwrap()).unwrap()
        };
        let short = bytes(&[Message::user("a")]);
        let long = bytes(&[Message::user("a"), Message::assistant("b"), Message::user("c")]);
        assert!(long.starts_with(short.split(']').next().unwrap()), "{short} {long}");
    }

    /// Example A of the originals' protocol.
    #[test]
    fn the_original_form() {
        let relay = Relay {
            plain: true,
            ..Relay::to("host")
        };
        let value = near(&relay, &[Message::user("Say hi")], &[]).unwrap();
        assert_eq!(value, json!({"model": "m4", "temperature": 0, "question": "Say hi"}));
        assert!(near(&relay, &[Message::system("x"), Message::user("y")], &[]).is_err());
        let read = RelayRequest::read(br#"{"model":"m4","persist":true,"question":"Say hi"}"#).unwrap();
        assert!(read.form == Form::Question && read.parameters.is_empty());
        assert_eq!(read.messages, [Message::user("Say hi")]);
        let response = Response {
            text: "Hi".into(),
            ..Response::default()
        };
        assert_eq!(reply(&response, "openai", Form::Question), "Hi");
        let deltas = read_reply(b"\"Hi\"").unwrap();
        assert_eq!(deltas, [Delta::Text("Hi".into()), Delta::Finish(FinishReason::Stop)]);
    }

    /// Example B of the originals' protocol.
    #[test]
    fn the_second_original_form() {
        let text = br#"[[{"role":"backend","content":"openai"},{"role":"user","content":"Say hi"}],{"model":"m4"}]"#;
        let read = RelayRequest::read(text).unwrap();
        assert_eq!((read.form, read.backend.as_deref()), (Form::Query, Some("openai")));
        assert_eq!(
            (read.messages, read.model.as_deref()),
            (vec![Message::user("Say hi")], Some("m4"))
        );
        let response = Response {
            calls: vec![call()],
            finish: Some(FinishReason::ToolCalls),
            ..Response::default()
        };
        let value = reply(&response, "openai", Form::Query);
        let function = &value["choices"][0]["message"]["tool_calls"][0]["function"];
        assert_eq!(*function, json!({"name": "f", "arguments": "{\"x\":1}"}));
        assert_eq!(value["choices"][0]["finish_reason"], "tool_calls");
        for (text, words) in [
            (
                r#"[[{"role":"backend","content":"gemini"}],{}]"#,
                "the backend `gemini`",
            ),
            (r#"[[],{"key":"k"}]"#, "`key` is refused"),
            (r#"[[],{}]"#, "neither a `question`"),
            ("[1]", "`[messages, options]`"),
        ] {
            let error = RelayRequest::read(text.as_bytes()).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
    }

    #[test]
    fn a_reply_comes_back_as_it_was() {
        let response = Response {
            text: "look".into(),
            reasoning: "hm".into(),
            calls: vec![call()],
            parts: vec![json!({"signature": "s"})],
            usage: Usage {
                pt: Some(2),
                ct: Some(3),
                tt: Some(5),
                ..Usage::default()
            },
            model: Some("m4".into()),
            finish: Some(FinishReason::ToolCalls),
            ..Response::default()
        };
        let deltas = read_reply(reply(&response, "anthropic", Form::Own).to_string().as_bytes()).unwrap();
        let mut collector = crate::Collector::new();
        deltas.iter().for_each(|d| collector.push(d));
        let back = collector.finish();
        let record = back.parts[0].clone();
        assert_eq!(
            (record["backend"].as_str(), &record["parts"][0]["signature"]),
            (Some("anthropic"), &json!("s"))
        );
        let expected = Response {
            parts: vec![record.clone()],
            ..response
        };
        assert_eq!(back, expected);
        // The record goes back as that of the far side's own backend.
        let stored = ProviderParts {
            backend: NAME.into(),
            model: "m4".into(),
            parts: vec![record],
        };
        let sent = outgoing(&stored.to_message()).unwrap();
        assert_eq!(sent[0].1["backend"], "anthropic");
    }

    #[test]
    fn credentials_neither_leave_nor_arrive() {
        let mut profile = Profile::new("r", NAME, "");
        profile.parameters.insert("api-key".into(), "sk-SENTINEL".into());
        let parameters = Map::new();
        let view = View {
            messages: &[Message::user("x")],
            tools: &[],
            parameters: &parameters,
            tool_choice: None,
        };
        let error = request(&profile, &Relay::to("h"), &view).unwrap_err();
        assert!(error.contains("`api-key`") && !error.contains("SENTINEL"), "{error}");
        for name in ["key", "key_env", "headers", "url", "API_KEY"] {
            let text = json!({name: "sk-SENTINEL", "question": "x"}).to_string();
            let error = RelayRequest::read(text.as_bytes()).unwrap_err();
            assert_eq!(error, RelayRequestError::Credential(name.into()));
            assert!(!error.to_string().contains("SENTINEL"));
        }
    }

    #[test]
    fn bad_requests_say_what_is_wrong() {
        for (text, words) in [
            ("{\"question\": \"a", "not JSON"),
            ("1", "not a JSON object"),
            ("{}", "neither a `question` nor `messages`"),
            ("{\"question\": 1}", "`question` is not a text"),
            (
                "{\"messages\": [{\"role\": \"cmd\", \"content\": \"id\"}]}",
                "role `cmd`",
            ),
            (
                "{\"messages\": [{\"role\": \"image\", \"content\": \"/etc/passwd\"}]}",
                "neither data nor a URL",
            ),
            ("{\"question\": \"a\", \"tools\": [{}]}", "a tool has no name"),
        ] {
            let error = RelayRequest::read(text.as_bytes()).unwrap_err().to_string();
            assert!(error.contains(words), "{text}: {error}");
        }
    }

    #[test]
    fn bad_replies_and_errors() {
        for text in [
            "",
            "1",
            "{}",
            "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}]}",
        ] {
            assert!(
                matches!(read_reply(text.as_bytes()), Err(Fault::Malformed(_))),
                "{text}"
            );
        }
        let error = read_reply(error_reply("config", "no such endpoint", 400).to_string().as_bytes());
        let expected = Fault::Refused {
            status: Some(400),
            code: Some("config".into()),
            message: "no such endpoint".into(),
        };
        assert_eq!(error, Err(expected));
    }
}
