//! What a model is told of a tool.

use std::time::Duration;

use serde_json::{Map, Value};

/// What calling a tool does to the world. It drives resuming, replaying, approval and the merging of equal calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Effect {
    /// Looks, changes nothing.
    ReadOnly,
    /// Calling it twice is the same as once.
    Idempotent,
    /// Backed by a stored job: a second call finds the first one's result.
    Job,
    /// Nobody said.
    #[default]
    Unknown,
}

impl Effect {
    /// Whether the call may be made again without asking: after an interruption, or for an equal call.
    pub fn is_repeatable(self) -> bool {
        self != Effect::Unknown
    }
}

/// A request in words and the arguments that it should lead to; small models are shown these.
#[derive(Clone, Debug, PartialEq)]
pub struct Example {
    /// What a person would ask.
    pub request: String,
    /// The arguments of the right call.
    pub arguments: Map<String, Value>,
}

/// A tool as models see it, and what the loop must know to call it.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct ToolDefinition {
    /// The name to call it by.
    pub name: String,
    /// What it does, for the model.
    pub description: String,
    /// JSON Schema of the arguments: an object with `properties` and `required`.
    pub parameters: Value,
    /// Inputs that are set whatever the model sends, and never shown to it.
    pub defaults: Map<String, Value>,
    /// Requests and the calls they should lead to.
    pub examples: Vec<Example>,
    /// What calling it does.
    pub effect: Effect,
    /// Whether a call may destroy or send something, so that the user is asked.
    pub destructive: bool,
    /// Whether it reaches out to what nobody here controls: the network.
    pub open_world: bool,
    /// Whether its output is another one each time by its nature (the time, a random number), so that no later call says
    /// anything of an earlier one: a replay does not make it again.
    pub volatile: bool,
    /// Whether it must not run beside other calls of the same answer.
    pub sequential: bool,
    /// A time limit of its own, in place of the run's limit for tools.
    pub timeout: Option<Duration>,
}

/// Whether a parameter of this schema takes a list.
pub fn takes_list(schema: &Value) -> bool {
    match schema.get("type") {
        Some(Value::String(one)) => one == "array",
        Some(Value::Array(several)) => several.iter().any(|t| t == "array"),
        _ => false,
    }
}

impl ToolDefinition {
    /// The parameters in the form that all providers take: an object schema that has `type` and `properties`.
    pub fn wire_parameters(&self) -> Value {
        let mut schema = self.parameters.as_object().cloned().unwrap_or_default();
        if schema.get("type").and_then(Value::as_str) != Some("object") {
            schema.insert("type".into(), "object".into());
        }
        if !schema.get("properties").is_some_and(Value::is_object) {
            schema.insert("properties".into(), Value::Object(Map::new()));
        }
        Value::Object(schema)
    }

    /// The declared parameters, in order: name and schema.
    pub fn properties(&self) -> impl Iterator<Item = (&String, &Value)> {
        self.parameters
            .get("properties")
            .and_then(Value::as_object)
            .into_iter()
            .flatten()
    }

    /// Whether a parameter must be given.
    pub fn is_required(&self, name: &str) -> bool {
        let required = self.parameters.get("required").and_then(Value::as_array);
        required.is_some_and(|names| names.iter().any(|n| n == name))
    }
}
