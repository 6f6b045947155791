//! Replies: made by the far side, read by the near one.

use decanus_chat::{Arguments, FunctionCall, Role, Usage};
use serde_json::{Map, Value, json};

use super::{Form, incoming};
use crate::collect::Response;
use crate::conversation::{Delta, FinishReason};
use crate::dialect::Fault;
use crate::error::BackendError;
use crate::refusal;

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
        Some(FinishReason::Paused) => "paused",
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
        Some("paused") => FinishReason::Paused,
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
