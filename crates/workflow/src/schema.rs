//! A task as a tool: the schema of its inputs and what models are told of it.

use std::time::Duration;

use decanus_base::process::GRACE;
use decanus_chat::{Effect, ToolDefinition};
use serde_json::{Map, Value, json};

use crate::definition::{Task, Workflow};
use crate::input::{Input, InputType};

/// Time that a task without a limit of its own is thought to take when one that depends on it has a limit.
const USUAL_TIME: Duration = Duration::from_secs(120);

impl Workflow {
    /// The tool that a task is. Its parameters are the task's inputs and those of its dependencies that are not set by
    /// a declaration.
    pub fn tool_definition(&self, task: &Task) -> ToolDefinition {
        let inputs = self.recursive_inputs(task);
        let mut properties = Map::new();
        for input in &inputs {
            properties.insert(input.name.clone(), property(input));
        }
        let required: Vec<&str> = inputs.iter().filter(|i| i.required).map(|i| i.name.as_str()).collect();
        ToolDefinition {
            name: task.name.clone(),
            description: task.description.clone(),
            parameters: json!({"type": "object", "properties": properties, "required": required}),
            defaults: Map::new(),
            examples: task.examples.clone(),
            effect: Effect::Job,
            destructive: false,
            open_world: false,
            volatile: false,
            sequential: false,
            // The job's own limit is to be the one that strikes, also after its dependencies took their time: what it
            // says is more than that the call took too long.
            timeout: task
                .timeout
                .map(|own| own + self.time_before(task) + GRACE + Duration::from_secs(3)),
        }
    }

    /// How long the dependencies of a task may take, one after the other.
    fn time_before(&self, task: &Task) -> Duration {
        let mut seen = Vec::new();
        let mut open: Vec<&str> = task.depends.iter().map(|d| d.task.as_str()).collect();
        let mut total = Duration::ZERO;
        while let Some(name) = open.pop() {
            if let Some(next) = self.find(name).filter(|_| !seen.contains(&name)) {
                seen.push(name);
                total = total.saturating_add(next.timeout.unwrap_or(USUAL_TIME));
                open.extend(next.depends.iter().map(|d| d.task.as_str()));
            }
        }
        total
    }
}

/// The schema of one input: type, description, allowed values, default.
pub fn property(input: &Input) -> Value {
    let mut schema = match input.kind {
        InputType::String | InputType::Text | InputType::File => json!({"type": "string"}),
        InputType::Integer => json!({"type": "integer"}),
        InputType::Float => json!({"type": "number"}),
        InputType::Boolean => json!({"type": "boolean"}),
        InputType::Select if input.options.iter().all(Value::is_string) => {
            json!({"type": "string", "enum": input.options})
        }
        InputType::Select => json!({"enum": input.options}),
        // Any value: a schema without a type.
        InputType::Json => json!({}),
        InputType::Array => json!({"type": "array", "items": {"type": "string"}}),
        InputType::IntegerArray => json!({"type": "array", "items": {"type": "integer"}}),
        InputType::FloatArray => json!({"type": "array", "items": {"type": "number"}}),
    };
    let mut set = |name: &str, value: Value| {
        if let Value::Object(map) = &mut schema {
            map.insert(name.into(), value);
        }
    };
    let note = match input.kind {
        InputType::File => "path of a file",
        InputType::Json => "any JSON value",
        _ => "",
    };
    let description = match (input.description.as_str(), note) {
        (text, "") => text.to_owned(),
        ("", note) => note.to_owned(),
        (text, note) => format!("{text} ({note})"),
    };
    if !description.is_empty() {
        set("description", description.into());
    }
    for (name, bound) in [("minimum", &input.minimum), ("maximum", &input.maximum)] {
        if let Some(bound) = bound {
            set(name, Value::Number(bound.clone()));
        }
    }
    // A default file is the author's choice of place; it is not the model's to name.
    if !input.default.is_null() && input.kind != InputType::File {
        set("default", input.default.clone());
    }
    schema
}
