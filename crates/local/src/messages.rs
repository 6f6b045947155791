//! The conversation in the form that chat templates expect.

use decanus_base::digest::sha256_hex;
use decanus_chat::{Arguments, FunctionCall, FunctionCallOutput, Message, ProviderParts, Role};
use serde_json::{Value, json};

/// What becomes of calls and their outputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Calls {
    /// They have a place of their own in the template.
    Native,
    /// They are told in words.
    InWords,
    /// They are left out, and with them the question that led to them and the answer that a template stated: a small
    /// model takes such sentences for its own and makes up more of them.
    LeftOut,
}

/// The messages without the turns in which tools were called.
fn without_tool_turns(messages: &[Message]) -> Vec<&Message> {
    let mut kept: Vec<&Message> = Vec::new();
    let mut turn: Vec<&Message> = Vec::new();
    for message in messages {
        if message.role == Role::User && turn.iter().any(|m| m.role != Role::User && m.role != Role::System) {
            keep(&mut kept, &mut turn);
        }
        turn.push(message);
    }
    keep(&mut kept, &mut turn);
    kept
}

/// Moves a turn, or only its standing instructions when tools were called in it.
fn keep<'m>(kept: &mut Vec<&'m Message>, turn: &mut Vec<&'m Message>) {
    let called = turn.iter().any(|m| m.role == Role::FunctionCall);
    kept.extend(turn.drain(..).filter(|m| !called || m.role == Role::System));
}

/// Converts messages. `protect` is applied to every text.
pub fn convert(messages: &[Message], calls: Calls, protect: impl Fn(&str) -> String) -> Vec<Value> {
    let mut out: Vec<Value> = Vec::new();
    let seen = if calls == Calls::LeftOut {
        without_tool_turns(messages)
    } else {
        messages.iter().collect()
    };
    for message in seen {
        match message.role {
            Role::Provider if calls == Calls::Native => {
                if let Some(thoughts) = thoughts(message) {
                    // Templates know one name or the other; each passes over thoughts that it does not want to see.
                    let text = protect(&thoughts);
                    out.push(json!({"role": "assistant", "content": "", "reasoning_content": text, "thinking": text}));
                }
            }
            Role::Assistant if opened_by_thoughts(&out) => {
                if let Some(last) = out.last_mut() {
                    last["content"] = protect(&message.content).into();
                }
            }
            Role::System | Role::User | Role::Assistant => {
                push(&mut out, message.role.as_str(), &protect(&message.content));
            }
            Role::FunctionCall => {
                if let Ok(call) = FunctionCall::from_message(message) {
                    push_call(&mut out, &call, calls, &protect);
                }
            }
            Role::FunctionCallOutput => {
                if let Ok(output) = FunctionCallOutput::from_message(message) {
                    push_output(&mut out, &output, calls, &protect);
                }
            }
            _ => {}
        }
    }
    out
}

/// The name under which thoughts that led to a call are kept in a chat.
pub const THOUGHTS: &str = "reasoning_content";

/// The thoughts of a local model that led to calls.
fn thoughts(message: &Message) -> Option<String> {
    let record = ProviderParts::from_message(message).ok()?;
    let mut parts = record.parts.iter().filter(|_| record.backend == "local");
    parts.find_map(|part| part.get(THOUGHTS)?.as_str().map(str::to_owned))
}

/// Whether the last message is an answer of which only the thoughts and calls are there yet.
fn opened_by_thoughts(out: &[Value]) -> bool {
    let last = out.last();
    last.is_some_and(|last| last.get(THOUGHTS).is_some() && last["content"] == "")
}

/// Two messages of the same role become one: many templates insist on turns.
fn push(out: &mut Vec<Value>, role: &str, content: &str) {
    if let Some(last) = out.last_mut()
        && last["role"] == role
        && last.get("tool_calls").is_none()
        && let Some(before) = last["content"].as_str()
    {
        last["content"] = format!("{before}\n\n{content}").into();
        return;
    }
    out.push(json!({"role": role, "content": content}));
}

fn push_call(out: &mut Vec<Value>, call: &FunctionCall, calls: Calls, protect: &impl Fn(&str) -> String) {
    let arguments = match &call.arguments {
        Arguments::Object(map) => protected(&Value::Object(map.clone()), protect),
        Arguments::Invalid(text) => json!(protect(text)),
    };
    match calls {
        Calls::LeftOut => {}
        Calls::InWords => {
            push(
                out,
                "assistant",
                &crate::template::one_line(&json!({"name": call.name, "arguments": arguments})),
            );
        }
        Calls::Native => {
            let entry = json!({"id": id(&call.id), "type": "function",
                "function": {"name": call.name, "arguments": arguments}});
            if let Some(list) = out
                .last_mut()
                .filter(|last| last["role"] == "assistant")
                .and_then(|last| last.as_object_mut())
                .map(|last| last.entry("tool_calls").or_insert_with(|| json!([])))
                .and_then(Value::as_array_mut)
            {
                list.push(entry);
            } else {
                out.push(json!({"role": "assistant", "content": "", "tool_calls": [entry]}));
            }
        }
    }
}

fn push_output(out: &mut Vec<Value>, output: &FunctionCallOutput, calls: Calls, protect: &impl Fn(&str) -> String) {
    let content = protect(&output.content);
    match calls {
        Calls::LeftOut => {}
        Calls::InWords => {
            let what = if output.error.is_some() { "failed" } else { "returned" };
            push(out, "user", &format!("The tool {} {what}: {content}", output.name));
        }
        Calls::Native => out.push(json!({"role": "tool", "name": output.name, "content": content,
            "tool_call_id": id(&output.id)})),
    }
}

/// Mistral's templates refuse ids of any other form than nine letters and digits.
fn id(id: &str) -> String {
    sha256_hex(id.as_bytes()).chars().take(9).collect()
}

fn protected(value: &Value, protect: &impl Fn(&str) -> String) -> Value {
    match value {
        Value::String(text) => protect(text).into(),
        Value::Array(items) => items.iter().map(|i| protected(i, protect)).collect(),
        Value::Object(map) => map.iter().map(|(k, v)| (k.clone(), protected(v, protect))).collect(),
        other => other.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thoughts_go_back_with_their_call() {
        let call = FunctionCall {
            id: "a".into(),
            name: "f".into(),
            arguments: Arguments::from_text("{}"),
        };
        let record = |backend: &str| {
            let parts = vec![json!({"reasoning_content": "Ah."})];
            let (backend, model) = (backend.to_owned(), String::new());
            ProviderParts { backend, model, parts }.to_message()
        };
        let round = |backend| [Message::user("u"), record(backend), call.to_message()];
        let own = convert(&round("local"), Calls::Native, str::to_owned);
        assert_eq!(own.len(), 2);
        assert_eq!(
            (&own[1]["reasoning_content"], &own[1]["role"]),
            (&json!("Ah."), &json!("assistant"))
        );
        assert_eq!(own[1]["tool_calls"].as_array().unwrap().len(), 1);
        let other = convert(&round("openai"), Calls::Native, str::to_owned);
        assert!(other[1].get("reasoning_content").is_none());
        let said = [record("local"), Message::assistant("Yes.")];
        let said = convert(&said, Calls::Native, str::to_owned);
        assert_eq!((said.len(), &said[0]["content"]), (1, &json!("Yes.")));
    }

    #[test]
    fn calls_of_one_answer_are_one_message() {
        let call = |id: &str| FunctionCall {
            id: id.into(),
            name: "f".into(),
            arguments: Arguments::from_text("{}"),
        };
        let output = FunctionCallOutput {
            id: "a".into(),
            name: "f".into(),
            content: "1".into(),
            ..Default::default()
        };
        let messages = [
            Message::system("s"),
            Message::user("u"),
            Message::user("v"),
            call("a").to_message(),
            call("b").to_message(),
            output.to_message(),
        ];
        let native = convert(&messages, Calls::Native, str::to_owned);
        let roles: Vec<&str> = native.iter().filter_map(|m| m["role"].as_str()).collect();
        assert_eq!(roles, ["system", "user", "assistant", "tool"]);
        assert_eq!(native[1]["content"], "u\n\nv");
        assert_eq!(native[2]["tool_calls"].as_array().unwrap().len(), 2);
        assert_eq!(native[3]["tool_call_id"], native[2]["tool_calls"][0]["id"]);
        // The whole turn goes, its question included.
        let mut next = messages.to_vec();
        next.extend([Message::assistant("The result of f() is 1."), Message::user("w")]);
        let left = convert(&next, Calls::LeftOut, str::to_owned);
        assert_eq!(
            left,
            [
                json!({"role": "system", "content": "s"}),
                json!({"role": "user", "content": "w"})
            ]
        );
        assert_eq!(
            convert(&messages, Calls::InWords, str::to_owned)[3]["content"],
            "The tool f returned: 1"
        );
    }
}
