//! KEY=VALUE arguments → the arguments of a tool or task.

use decanus::Error;
use decanus::base::Project;
use decanus::base::files::read_text;
use decanus::base::names::did_you_mean;
use decanus::chat::ToolDefinition;
use decanus::chat::definition::takes_list;
use serde_json::{Map, Value};

/// The arguments that some pairs stand for. A repeated key makes a list, as does a single one for a list parameter
/// unless it is JSON already; `@FILE` stands for the text of a file. Types are left to the schema.
///
/// # Errors
/// Unknown keys and files that can't be read.
pub fn collect(
    pairs: &[(String, String)],
    definition: &ToolDefinition,
    project: &Project,
) -> Result<Map<String, Value>, Error> {
    let mut map: Map<String, Value> = Map::new();
    for (key, written) in pairs {
        let Some((_, schema)) = definition.properties().find(|(name, _)| *name == key) else {
            return Err(unknown(key, definition));
        };
        let value = match written.strip_prefix('@') {
            Some(file) => read_text(&project.user_path(file)).map_err(|e| Error::usage(format!("{key}: {e}")))?,
            None => written.clone(),
        };
        let is_list = takes_list(schema);
        match map.get_mut(key) {
            Some(Value::Array(items)) => items.push(Value::String(value)),
            Some(other) => *other = Value::Array(vec![other.take(), Value::String(value)]),
            None if is_list && !value.trim_start().starts_with('[') => {
                map.insert(key.clone(), Value::Array(vec![Value::String(value)]));
            }
            None => {
                map.insert(key.clone(), Value::String(value));
            }
        }
    }
    Ok(map)
}

/// The arguments of one JSON object.
///
/// # Errors
/// Text that is not a JSON object, and unknown keys.
pub fn parse(json: &str, definition: &ToolDefinition) -> Result<Map<String, Value>, Error> {
    let value: Value =
        serde_json::from_str(json).map_err(|e| Error::usage(format!("--args is not valid JSON: {e}")))?;
    let Value::Object(map) = value else {
        return Err(Error::usage("--args must be a JSON object, such as '{\"key\": 1}'"));
    };
    match map
        .keys()
        .find(|key| !definition.properties().any(|(name, _)| name == *key))
    {
        Some(key) => Err(unknown(key, definition)),
        None => Ok(map),
    }
}

fn unknown(key: &str, definition: &ToolDefinition) -> Error {
    let known: Vec<&str> = definition.properties().map(|(name, _)| name.as_str()).collect();
    let guess = did_you_mean(key, known.iter().copied());
    let list = if known.is_empty() {
        "none".to_owned()
    } else {
        known.join(", ")
    };
    Error::usage(format!(
        "{} has no parameter `{key}`{guess} (parameters: {list})",
        definition.name
    ))
}
