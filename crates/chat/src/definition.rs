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
    /// Whether it must not run beside other calls of the same answer.
    pub sequential: bool,
    /// A time limit of its own, in place of the run's limit for tools.
    pub timeout: Option<Duration>,
}

/// The types that a JSON Schema allows, by `type` or by the alternatives of `anyOf` and `oneOf`; none when it names none.
fn allowed_types(schema: &Value) -> Vec<&str> {
    let mut types: Vec<&str> = match schema.get("type") {
        Some(Value::String(one)) => vec![one],
        Some(Value::Array(several)) => several.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    };
    for alternatives in ["anyOf", "oneOf"].iter().filter_map(|k| schema.get(*k)?.as_array()) {
        types.extend(alternatives.iter().flat_map(allowed_types));
    }
    types
}

/// Whether a parameter of this JSON Schema is a list and nothing else (but for null), so that a single value written for
/// it is its only item.
pub fn takes_list(schema: &Value) -> bool {
    let types = allowed_types(schema);
    types.contains(&"array") && types.iter().all(|t| matches!(*t, "array" | "null"))
}

/// What a text stands for that somebody wrote for a parameter which takes several types: the object or list whose JSON it
/// is, where the schema allows it. `None`: the text is meant as it is.
pub fn json_written(text: &str, schema: &Value) -> Option<Value> {
    let types = allowed_types(schema);
    let value: Value = match text.trim_start().as_bytes().first()? {
        b'[' if types.contains(&"array") => serde_json::from_str(text).ok()?,
        b'{' if types.contains(&"object") => serde_json::from_str(text).ok()?,
        _ => return None,
    };
    Some(value)
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
