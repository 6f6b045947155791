//! Schemas without `$ref`, for providers that do not follow them.

use serde_json::{Map, Value};

/// How deep references are followed: one that leads back to itself ends as a schema that allows everything.
const DEEPEST: usize = 24;

/// The schema with what its local references point to in their place. A reference that leads nowhere, or round in a
/// circle, becomes a schema that allows everything: our own validation still has the whole.
pub(crate) fn inline_refs(schema: &Value) -> Value {
    if !holds_ref(schema) {
        return schema.clone();
    }
    let mut inlined = inline(schema, schema, &mut Vec::new());
    // Only here: further down these may be names of properties.
    if let Value::Object(map) = &mut inlined {
        map.shift_remove("$defs");
        map.shift_remove("definitions");
    }
    inlined
}

fn holds_ref(value: &Value) -> bool {
    match value {
        Value::Object(map) => map.get("$ref").is_some_and(Value::is_string) || map.values().any(holds_ref),
        Value::Array(items) => items.iter().any(holds_ref),
        _ => false,
    }
}

fn inline<'a>(value: &'a Value, root: &'a Value, open: &mut Vec<&'a str>) -> Value {
    match value {
        Value::Object(map) => match map.get("$ref").and_then(Value::as_str) {
            Some(to) => {
                let target = to.strip_prefix('#').and_then(|pointer| root.pointer(pointer));
                let mut found = match target {
                    Some(target) if !open.contains(&to) && open.len() < DEEPEST => {
                        open.push(to);
                        let found = inline(target, root, open);
                        open.pop();
                        found
                    }
                    _ => Value::Object(Map::new()),
                };
                // What stands beside a reference (a description, above all) is said of this place.
                if let Value::Object(found) = &mut found {
                    for (name, value) in map.iter().filter(|(name, _)| *name != "$ref") {
                        found.insert(name.clone(), inline(value, root, open));
                    }
                }
                found
            }
            None => {
                let inlined = map
                    .iter()
                    .map(|(name, value)| (name.clone(), inline(value, root, open)));
                Value::Object(inlined.collect())
            }
        },
        Value::Array(items) => items.iter().map(|item| inline(item, root, open)).collect(),
        other => other.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn references_are_replaced_and_circles_end() {
        let schema = json!({
            "type": "object",
            "properties": {"definitions": {"$ref": "#/$defs/A", "description": "here"}, "n": {"$ref": "#/$defs/N"}, "x": {"$ref": "#/no"}},
            "$defs": {"A": {"type": "string"}, "N": {"type": "object", "properties": {"next": {"$ref": "#/$defs/N"}}}},
        });
        let expected = json!({
            "type": "object",
            "properties": {
                "definitions": {"type": "string", "description": "here"},
                "n": {"type": "object", "properties": {"next": {}}},
                "x": {},
            },
        });
        assert_eq!(inline_refs(&schema), expected);
        let plain = json!({"type": "object", "properties": {"definitions": {"type": "string"}}});
        assert_eq!(inline_refs(&plain), plain);
    }
}
