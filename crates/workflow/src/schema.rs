//! A task as a tool: the schema of its inputs and what models are told of it.

use std::time::Duration;

use decanus_base::process::GRACE;
use decanus_chat::{Effect, ToolDefinition};
use serde_json::{Map, Value, json};

use crate::definition::{Task, Workflow};
use crate::input::{Input, InputType, show};
use crate::job::Overrides;

/// Time that a task without a limit of its own is thought to take when one that depends on it has a limit.
const USUAL_TIME: Duration = Duration::from_secs(120);

impl Workflow {
    /// The tool that a task is. Its parameters are the task's inputs and those of its dependencies that are not set by
    /// a declaration.
    pub fn tool_definition(&self, task: &Task) -> ToolDefinition {
        self.definition_of(task, &self.recursive_inputs(task))
    }

    /// The same when some dependencies are replaced: their inputs are not asked for.
    pub fn tool_definition_with(&self, task: &Task, overrides: &Overrides) -> ToolDefinition {
        let replaced = |workflow: &Self, task: &Task| overrides.get(&workflow.name, &task.name).is_some();
        self.definition_of(task, &self.inputs_of(self, task, &replaced))
    }

    fn definition_of(&self, task: &Task, inputs: &[&Input]) -> ToolDefinition {
        let mut properties = Map::new();
        for input in inputs {
            properties.insert(input.name.clone(), property(input));
        }
        let required: Vec<&str> = inputs.iter().filter(|i| i.required).map(|i| i.name.as_str()).collect();
        ToolDefinition {
            name: task.name.clone(),
            description: described(task),
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
        let mut total = Duration::ZERO;
        for (_, next) in self.below(task) {
            total = total.saturating_add(next.timeout.unwrap_or(USUAL_TIME));
        }
        total
    }
}

/// What a task does, and what it gives when its author says so.
fn described(task: &Task) -> String {
    match (task.description.as_str(), task.returns.as_str()) {
        (text, "") => text.to_owned(),
        ("", returns) => format!("Returns: {returns}"),
        (text, returns) => format!("{}\n\nReturns: {returns}", text.trim_end()),
    }
}

/// The schema of one input: type, description, allowed values, default.
pub fn property(input: &Input) -> Value {
    let list = |item: &str| json!({"type": "array", "items": {"type": item}});
    let mut schema = match input.kind {
        InputType::String
        | InputType::Text
        | InputType::Chat
        | InputType::Path
        | InputType::File
        | InputType::Folder
        | InputType::Binary
        | InputType::Tsv => json!({"type": "string"}),
        InputType::Integer => json!({"type": "integer"}),
        InputType::Float => json!({"type": "number"}),
        InputType::Boolean => json!({"type": "boolean"}),
        InputType::Select if input.options.iter().all(Value::is_string) => {
            json!({"type": "string", "enum": input.options})
        }
        InputType::Select => json!({"enum": input.options}),
        // Any value: a schema without a type.
        InputType::Json | InputType::Yaml => json!({}),
        InputType::Array | InputType::PathArray | InputType::FileArray => list("string"),
        InputType::IntegerArray => list("integer"),
        InputType::FloatArray => list("number"),
        InputType::BooleanArray => list("boolean"),
    };
    let mut set = |name: &str, value: Value| {
        if let Value::Object(map) = &mut schema {
            map.insert(name.into(), value);
        }
    };
    let labels = input.labels.iter().zip(&input.options);
    let labels: Vec<String> = labels
        .map(|(label, value)| format!("{}: {label}", show(value)))
        .collect();
    let labels = labels.join("; ");
    let note = match input.kind {
        InputType::Path => "a path",
        InputType::File => "path of a file",
        InputType::Folder => "path of a folder",
        InputType::Binary => "path of a file of any kind",
        InputType::Tsv => "path of a table: lines of cells with tabs between them",
        InputType::PathArray => "paths",
        InputType::FileArray => "paths of files",
        InputType::Json => "any JSON value",
        InputType::Yaml => "any value; a text is read as YAML",
        InputType::Chat => "a conversation in the form of a chat file",
        _ => labels.as_str(),
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
    // A default file is the author's choice of place; it is not the model's to name. A secret is nobody's.
    if !input.default.is_null() && !input.kind.is_path() && !input.is_secret {
        set("default", input.default.clone());
    }
    schema
}
