//! `format`: from the short forms that people write to a JSON schema.

use serde_json::{Map, Value, json};

/// A named schema from what a chat calls `format`: a schema, or a map of names to types. The name is its `name`, else
/// `response`.
///
/// Without `properties` the whole map is the properties. A property is a type's name, a list of type, description and
/// default, or a schema. What the map does not say is filled in: `type` is `object`, `required` are the properties
/// without a default, and other properties are allowed only when nothing is required.
pub fn schema(format: &Map<String, Value>) -> (String, Value) {
    let mut map = format.clone();
    let name = match map.get("name") {
        Some(Value::String(name)) => {
            let name = name.clone();
            // Without `properties`, `name: string` is a property like any other.
            let is_property = !is_schema(&map) && is_type(&name);
            if is_property {
                None
            } else {
                map.shift_remove("name").map(|_| name)
            }
        }
        _ => None,
    };
    let mut schema = if is_schema(&map) {
        map
    } else {
        Map::from_iter([("properties".into(), Value::Object(map))])
    };
    if let Some(Value::Object(properties)) = schema.get_mut("properties") {
        for property in properties.values_mut() {
            *property = expand(property.take());
        }
        let required: Vec<Value> = properties
            .iter()
            .filter(|(_, p)| !has_default(p))
            .map(|(name, _)| name.clone().into())
            .collect();
        let others = if required.is_empty() {
            json!({"type": "string"})
        } else {
            json!(false)
        };
        schema.entry("type").or_insert_with(|| "object".into());
        schema.entry("additionalProperties").or_insert(others);
        schema.entry("required").or_insert(Value::Array(required));
    }
    (name.unwrap_or_else(|| "response".into()), Value::Object(schema))
}

/// Whether a schema says all that OpenAI wants of one that is called strict: every object has `additionalProperties: false` and
/// requires all of its properties.
pub fn is_strict(schema: &Value) -> bool {
    let Some(map) = schema.as_object() else {
        return true;
    };
    if let Some(properties) = map.get("properties").and_then(Value::as_object) {
        let required = map.get("required").and_then(Value::as_array);
        let all = |name: &String| required.is_some_and(|r| r.iter().any(|x| x == name));
        if map.get("additionalProperties") != Some(&Value::Bool(false)) || !properties.keys().all(all) {
            return false;
        }
    } else if map.get("type").is_some_and(|t| t == "object") {
        return false;
    }
    map.iter().all(|(_, value)| match value {
        Value::Object(_) => is_strict_or_map(value),
        Value::Array(items) => items.iter().all(is_strict),
        _ => true,
    })
}

/// A schema, or a map of schemas (`properties`, `$defs`).
fn is_strict_or_map(value: &Value) -> bool {
    let is_schema = ["type", "properties", "$ref", "anyOf", "enum"]
        .iter()
        .any(|k| value.get(k).is_some_and(|v| !v.is_object() || *k == "properties"));
    match value.as_object() {
        Some(map) if !is_schema => map.values().all(is_strict),
        _ => is_strict(value),
    }
}

/// Whether a map is a schema rather than a map of properties.
fn is_schema(map: &Map<String, Value>) -> bool {
    map.get("properties").is_some_and(Value::is_object)
        || ["$schema", "$ref", "anyOf", "oneOf", "allOf"]
            .iter()
            .any(|k| map.contains_key(*k))
        || (map.get("type").is_some_and(|t| t == "array") && map.get("items").is_some_and(Value::is_object))
}

fn is_type(word: &str) -> bool {
    matches!(
        word,
        "string" | "number" | "integer" | "boolean" | "array" | "object" | "null"
    )
}

fn expand(property: Value) -> Value {
    match property {
        Value::String(kind) => json!({"type": kind}),
        Value::Array(items) => {
            let names = ["type", "description", "default"];
            let named = names.into_iter().zip(items).filter(|(_, v)| !v.is_null());
            Value::Object(named.map(|(n, v)| (n.to_owned(), v)).collect())
        }
        other => other,
    }
}

fn has_default(property: &Value) -> bool {
    match property.get("default") {
        None | Some(Value::Null | Value::Bool(false)) => false,
        Some(Value::String(text)) => !text.is_empty(),
        Some(_) => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(format: Value) -> (String, Value) {
        schema(format.as_object().unwrap())
    }

    #[test]
    fn short_forms() {
        let (name, value) = of(json!({"answer": "string", "score": ["number", "0-1", 1]}));
        assert_eq!(name, "response");
        let score = json!({"type": "number", "description": "0-1", "default": 1});
        assert_eq!(
            value,
            json!({"properties": {"answer": {"type": "string"}, "score": score}, "type": "object",
                "additionalProperties": false, "required": ["answer"]})
        );
        assert_eq!(of(json!({"name": "string"})).1["required"], json!(["name"]));
    }

    #[test]
    fn strict_schemas_say_all() {
        let strict = json!({"type": "object", "additionalProperties": false, "required": ["a"], "properties": {
            "a": {"type": "object", "additionalProperties": false, "required": [], "properties": {}}}});
        assert!(is_strict(&strict));
        let mut open = strict.clone();
        open["properties"]["a"]["additionalProperties"] = json!(true);
        assert!(!is_strict(&open));
        let mut optional = strict.clone();
        optional["required"] = json!([]);
        assert!(!is_strict(&optional));
        assert!(!is_strict(&json!({"type": "object"})));
        assert!(is_strict(&json!({"type": "array", "items": {"type": "string"}})));
        let referred = json!({"$ref": "#/$defs/x", "$defs": {"x": {"type": "object", "properties": {}}}});
        assert!(!is_strict(&referred));
    }

    #[test]
    fn schemas_keep_what_they_say() {
        let (name, value) = of(json!({"name": "d", "type": "object", "properties": {}}));
        let filled =
            json!({"type": "object", "properties": {}, "additionalProperties": {"type": "string"}, "required": []});
        assert_eq!((name.as_str(), value), ("d", filled));
        let own = json!({"properties": {"a": {"type": "string"}}, "required": [], "additionalProperties": true, "type": "object"});
        assert_eq!(of(own.clone()).1, own);
        let list = json!({"type": "array", "items": {"type": "string"}});
        assert_eq!(of(list.clone()).1, list);
    }
}
