//! The files of the relay: what a request holds and what a reply holds, for both sides.
//!
//! A request is one JSON object: parameters, `model`, `endpoint`, `tools`, `tool_choice`, `messages` (the conversation in
//! the roles of a chat file) and `question` (the last thing that the person said). An original server knows `question`
//! and the parameters only, and replies with a JSON text. Ours replies to `messages` with messages. It also reads the
//! originals' second form, `[messages, options]`, whose reply is the raw response of a provider.

mod reply;

use decanus_base::text::brief;
use decanus_chat::{Message, ProviderParts, Role, ToolDefinition};
use serde_json::{Map, Value, json};

use crate::conversation::View;
use crate::dialect::write_json;
use crate::profile::{Profile, Relay};

pub(crate) use reply::read_reply;
pub use reply::{error_reply, reply, status_of};

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

#[cfg(test)]
mod tests;
