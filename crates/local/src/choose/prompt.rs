//! The prompt by which a small model chooses: what the tools are, and pairs of a request and the right call.

use decanus_chat::ToolDefinition;
use serde_json::{Map, Value, json};

use crate::template::one_line;

/// The name that stands for "no tool".
pub const NONE: &str = "none";

/// Requests that need no tool. They belong to the choice "no tool" as a tool's examples belong to the tool.
const NONE_EXAMPLES: [&str; 4] = [
    "Who wrote Romeo and Juliet?",
    "Hello, how are you?",
    "Tell me about the history of Rome.",
    "Why is the sky blue?",
];

/// Requests that ask for nothing. What a model thinks of the tools when it is asked nothing is its prejudice.
pub const NEUTRAL: [&str; 3] = ["N/A", "", "[request]"];

/// Pairs per tool, where the tool is one of several.
const PAIRS: usize = 4;

/// The messages of a choice between tools, in the form of a chat template, up to the request.
pub fn choice(tools: &[ToolDefinition]) -> Vec<Value> {
    let mut system = String::from("Answer with the JSON of the function that the request needs.\n");
    for tool in tools {
        system.push_str(&format!("{}: {}\n", tool.name, first_sentence(&tool.description)));
    }
    system.push_str(&format!("{NONE}: Anything else.\n"));
    let mut messages = vec![json!({"role": "system", "content": system.trim_end()})];
    for round in 0..PAIRS {
        for tool in tools {
            if let Some(example) = tool.examples.get(round) {
                pair(&mut messages, &example.request, &call(&tool.name, &example.arguments));
            }
        }
        if let Some(request) = NONE_EXAMPLES.get(round) {
            pair(&mut messages, request, &call(NONE, &Map::new()));
        }
    }
    messages
}

/// The messages that show how one tool is called, up to the request.
pub fn arguments(tool: &ToolDefinition) -> Vec<Value> {
    let mut system = format!(
        "Answer with the JSON that calls the function {}: {}\n",
        tool.name,
        first_sentence(&tool.description)
    );
    for (name, schema) in tool.properties() {
        if let Some(description) = schema.get("description").and_then(Value::as_str) {
            system.push_str(&format!("{name}: {description}\n"));
        }
    }
    let mut messages = vec![json!({"role": "system", "content": system.trim_end()})];
    for example in &tool.examples {
        pair(
            &mut messages,
            &example.request,
            &call(&tool.name, &ordered(tool, &example.arguments)),
        );
    }
    messages
}

fn pair(messages: &mut Vec<Value>, request: &str, call: &str) {
    messages.push(json!({"role": "user", "content": request}));
    messages.push(json!({"role": "assistant", "content": call}));
}

/// A call as the model is shown it and is to write it.
fn call(name: &str, arguments: &Map<String, Value>) -> String {
    one_line(&json!({"name": name, "arguments": arguments}))
}

/// The arguments in the order of the schema: the order in which they are generated.
pub fn ordered(tool: &ToolDefinition, arguments: &Map<String, Value>) -> Map<String, Value> {
    let mut sorted = Map::new();
    for (name, _) in tool.properties() {
        if let Some(value) = arguments.get(name) {
            sorted.insert(name.clone(), value.clone());
        }
    }
    sorted
}

fn first_sentence(text: &str) -> &str {
    let line = text.trim().lines().next().unwrap_or_default();
    line.split_inclusive(". ").next().unwrap_or_default().trim_end()
}
