//! KEY=VALUE arguments → the arguments of a tool or task.

use std::collections::HashMap;

use decanus::Error;
use decanus::base::Project;
use decanus::base::files::read_text;
use decanus::base::names::did_you_mean;
use decanus::chat::ToolDefinition;
use decanus::chat::definition::{json_written, takes_list};
use serde_json::{Map, Value};

/// The arguments that some pairs stand for. A repeated key makes a list, as does a single one for a parameter that is
/// always a list; JSON of an object or list is that where the schema allows it; `@FILE` stands for the text of a file.
/// Types are left to the schema.
///
/// # Errors
/// Unknown keys and files that can't be read.
pub fn collect(
    pairs: &[(String, String)],
    definition: &ToolDefinition,
    project: &Project,
) -> Result<Map<String, Value>, Error> {
    let mut map: Map<String, Value> = Map::new();
    let mut first_texts: HashMap<&String, String> = HashMap::new();
    let mut repeated: Vec<&String> = Vec::new();
    for (key, written) in pairs {
        let Some((_, schema)) = definition.properties().find(|(name, _)| *name == key) else {
            return Err(unknown(key, definition));
        };
        let value = match written.strip_prefix('@') {
            Some(file) => read_text(&project.user_path(file)).map_err(|e| Error::usage(format!("{key}: {e}")))?,
            None => written.clone(),
        };
        match map.get_mut(key) {
            // The first was taken for what it is by itself, and is now an item.
            Some(_) if !repeated.contains(&key) => {
                repeated.push(key);
                let first = first_texts.remove(key).unwrap_or_default();
                map.insert(key.clone(), vec![first, value].into());
            }
            Some(Value::Array(items)) => items.push(Value::String(value)),
            _ => {
                let read = json_written(&value, schema);
                let is_item = read.is_none() && takes_list(schema) && !value.trim_start().starts_with('[');
                first_texts.insert(key, value.clone());
                let text = Value::String(value);
                map.insert(
                    key.clone(),
                    match read {
                        Some(read) => read,
                        None if is_item => vec![text].into(),
                        None => text,
                    },
                );
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

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn value(schema: Value, written: &[&str]) -> Value {
        let definition = ToolDefinition {
            name: "t".into(),
            parameters: json!({"type": "object", "properties": {"p": schema}}),
            ..ToolDefinition::default()
        };
        let dir = std::env::temp_dir();
        let project = Project::find(&dir).unwrap();
        let pairs: Vec<(String, String)> = written.iter().map(|w| ("p".to_owned(), (*w).to_owned())).collect();
        collect(&pairs, &definition, &project).unwrap()["p"].take()
    }

    #[test]
    fn what_is_written_is_what_the_schema_allows() {
        let any = || json!({"type": ["object", "array", "string"]});
        let list = || json!({"type": "array", "items": {"type": "string"}});
        let maybe_list = || json!({"type": ["array", "null"]});
        let by_name = || json!({"type": ["array", "object", "null"]});
        let either = || json!({"anyOf": [{"type": "array"}, {"type": "null"}]});
        for (schema, written, expected) in [
            (any(), &["hello"][..], json!("hello")),
            (any(), &[r#"{"a": 1}"#], json!({"a": 1})),
            (any(), &["[1, 2]"], json!([1, 2])),
            (any(), &["[not json"], json!("[not json")),
            (any(), &["a", "b"], json!(["a", "b"])),
            (any(), &["a", "b", "c"], json!(["a", "b", "c"])),
            (list(), &["a"], json!(["a"])),
            (list(), &["{\"a\": 1}"], json!(["{\"a\": 1}"])),
            (list(), &[r#"["a"]"#], json!(["a"])),
            (list(), &[r#"["a"]"#, "b"], json!(["[\"a\"]", "b"])),
            // The schema's check names the fault.
            (list(), &["[a"], json!("[a")),
            (maybe_list(), &["a"], json!(["a"])),
            (either(), &["a"], json!(["a"])),
            (by_name(), &[r#"{"a": 1}"#], json!({"a": 1})),
            (by_name(), &["[1]"], json!([1])),
            (json!({"type": "string"}), &[r#"{"a": 1}"#], json!(r#"{"a": 1}"#)),
            (json!({"type": "integer"}), &["7"], json!("7")),
            (json!({}), &["7"], json!("7")),
        ] {
            assert_eq!(value(schema.clone(), written), expected, "{schema} {written:?}");
        }
    }
}
