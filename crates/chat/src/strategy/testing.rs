//! Conversations for the tests of this folder.

use serde_json::{Map, Value};

use crate::call::{Arguments, FunctionCall, FunctionCallOutput};
use crate::message::Message;

/// A call with one argument, `q`.
pub fn call(id: &str, name: &str, argument: &str) -> Message {
    let mut map = Map::new();
    map.insert("q".into(), Value::String(argument.into()));
    FunctionCall {
        id: id.into(),
        name: name.into(),
        arguments: Arguments::Object(map),
    }
    .to_message()
}

/// The output of a call.
pub fn output(id: &str, content: &str) -> Message {
    FunctionCallOutput {
        id: id.into(),
        name: "f".into(),
        content: content.into(),
        ..Default::default()
    }
    .to_message()
}

/// A question, and so many rounds of one call each, all different, with outputs of `chars` characters.
pub fn rounds(count: usize, chars: usize) -> Vec<Message> {
    let mut messages = vec![Message::system("be brief"), Message::user("go")];
    for n in 1..=count {
        messages.push(call(&format!("c{n}"), "f", &format!("{n}")));
        messages.push(output(&format!("c{n}"), &format!("{n:0chars$}")));
    }
    messages
}

/// Of rounds made by [`rounds`], how many are whole, shortened and left out in a view.
pub fn tally(messages: &[Message], view: &[Message]) -> (usize, usize, usize) {
    let outputs = |messages: &[Message]| -> Vec<FunctionCallOutput> {
        messages
            .iter()
            .filter(|m| m.role == crate::Role::FunctionCallOutput)
            .map(|m| FunctionCallOutput::from_message(m).unwrap())
            .collect()
    };
    let (stored, seen) = (outputs(messages), outputs(view));
    let shortened = seen.iter().filter(|o| o.content.starts_with("Truncated (")).count();
    (seen.len() - shortened, shortened, stored.len() - seen.len())
}
