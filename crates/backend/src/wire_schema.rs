//! JSON Schemas in the forms that particular providers take. What a model sends is checked against the whole schema all
//! the same, so nothing is lost by saying less of it.

use serde_json::{Map, Value, json};

/// How deep references are followed: a schema that contains itself has no end.
const MAX_DEPTH: usize = 24;

/// The most members that a schema may have when all its references are written out.
const MAX_NODES: usize = 20_000;

/// Members that hold schemas by name.
const NAMED: [&str; 4] = ["properties", "patternProperties", "$defs", "definitions"];

/// Members that hold a list of schemas.
const LISTS: [&str; 4] = ["anyOf", "oneOf", "allOf", "prefixItems"];

/// The schema with its references (`#/…`) written out. Where it contains itself only the type is said, and where a
/// reference leads nowhere any value is allowed.
pub fn inline(schema: &Value) -> Value {
    let mut inlined = Inliner {
        root: schema,
        open: Vec::new(),
        nodes: 0,
    }
    .schema(schema, 0);
    if let Some(map) = inlined.as_object_mut() {
        map.retain(|name, _| !matches!(name.as_str(), "$defs" | "definitions"));
    }
    inlined
}

struct Inliner<'a> {
    root: &'a Value,
    /// The references that are being written out.
    open: Vec<&'a str>,
    nodes: usize,
}

impl<'a> Inliner<'a> {
    fn schema(&mut self, schema: &'a Value, depth: usize) -> Value {
        let Some(map) = schema.as_object() else {
            return schema.clone();
        };
        self.nodes += 1;
        if depth > MAX_DEPTH || self.nodes > MAX_NODES {
            return json!({});
        }
        let mut out = Map::new();
        if let Some(target) = map.get("$ref").and_then(Value::as_str) {
            let found = target.strip_prefix('#').and_then(|path| self.root.pointer(path));
            if self.open.contains(&target) {
                // What is within it is left out, so its type allows at least what it allows.
                let kind = found.and_then(|found| found.get("type"));
                out.extend(kind.map(|kind| ("type".to_owned(), kind.clone())));
            } else if let Some(found) = found {
                self.open.push(target);
                if let Value::Object(inlined) = self.schema(found, depth + 1) {
                    out = inlined;
                }
                self.open.pop();
            }
        }
        for (name, value) in map.iter().filter(|(name, _)| *name != "$ref") {
            let value = match value {
                // Only references need the definitions, and these are followed from the root.
                _ if matches!(name.as_str(), "$defs" | "definitions") => continue,
                Value::Object(members) if NAMED.contains(&name.as_str()) => {
                    let members = members.iter().map(|(n, s)| (n.clone(), self.schema(s, depth + 1)));
                    Value::Object(members.collect())
                }
                Value::Array(list) if LISTS.contains(&name.as_str()) || name == "items" => {
                    Value::Array(list.iter().map(|s| self.schema(s, depth + 1)).collect())
                }
                Value::Object(_) if matches!(name.as_str(), "items" | "additionalProperties" | "not") => {
                    self.schema(value, depth + 1)
                }
                other => other.clone(),
            };
            out.insert(name.clone(), value);
        }
        Value::Object(out)
    }
}

/// A tool's parameters with a root that is plainly an object: what stands in alternatives at the top is put into its
/// properties, since Anthropic refuses `anyOf`, `oneOf`, `allOf` and `$ref` there.
pub fn plain_root(schema: Value) -> Value {
    let has = |name: &str| schema.get(name).is_some();
    if !["$ref", "allOf", "anyOf", "oneOf"].iter().any(|n| has(n)) {
        return schema;
    }
    let mut root = if has("$ref") { inline(&schema) } else { schema };
    if let Some(map) = root.as_object_mut() {
        merge_alternatives(map);
        map.insert("type".into(), "object".into());
    }
    root
}

/// Puts the properties of `allOf`, `anyOf` and `oneOf` into those of the map itself. Only what all of `allOf` require is
/// required.
fn merge_alternatives(map: &mut Map<String, Value>) {
    for list in ["allOf", "anyOf", "oneOf"] {
        let Some(Value::Array(parts)) = map.shift_remove(list) else {
            continue;
        };
        for part in parts {
            let Value::Object(mut part) = part else { continue };
            merge_alternatives(&mut part);
            let required = part.shift_remove("required").filter(|_| list == "allOf");
            if let Some(Value::Object(properties)) = part.shift_remove("properties")
                && let Value::Object(own) = map.entry("properties").or_insert_with(|| json!({}))
            {
                for (name, schema) in properties {
                    own.entry(name).or_insert(schema);
                }
            }
            if let Some(Value::Array(names)) = required
                && let Value::Array(own) = map.entry("required").or_insert_with(|| json!([]))
            {
                for name in names {
                    if !own.contains(&name) {
                        own.push(name);
                    }
                }
            }
            if list == "allOf" {
                for (name, value) in part {
                    map.entry(name).or_insert(value);
                }
            }
        }
    }
}

/// Members of a schema that Gemini knows and that need no change.
const KEPT: [&str; 11] = [
    "description",
    "nullable",
    "minimum",
    "maximum",
    "minLength",
    "maxLength",
    "minItems",
    "maxItems",
    "minProperties",
    "maxProperties",
    "pattern",
];

/// The schema in the subset of OpenAPI 3.0 that Gemini takes: no references, one type each with `nullable` beside it,
/// enums of texts only, `anyOf` as the only alternative. What can't be said so is said in the description.
pub fn gemini(schema: &Value) -> Value {
    Value::Object(reduced(&inline(schema)))
}

fn reduced(schema: &Value) -> Map<String, Value> {
    // `true`, and what is no schema, allows anything; a type has to be named.
    let Some(map) = schema.as_object() else {
        return Map::from_iter([("type".into(), "string".into())]);
    };
    let mut map = map.clone();
    if map.contains_key("allOf") {
        let (any, one) = (map.shift_remove("anyOf"), map.shift_remove("oneOf"));
        merge_alternatives(&mut map);
        map.extend(any.map(|any| ("anyOf".to_owned(), any)));
        map.extend(one.map(|one| ("oneOf".to_owned(), one)));
    }
    let mut out = Map::new();
    for name in KEPT {
        out.extend(map.get(name).map(|value| (name.to_owned(), value.clone())));
    }
    let types = types(&map);
    if types.1 {
        out.insert("nullable".into(), true.into());
    }
    let alternatives = map.get("anyOf").or_else(|| map.get("oneOf")).and_then(Value::as_array);
    match (alternatives, types.0.as_slice()) {
        (Some(parts), _) => any_of(parts, &mut out),
        (None, [one]) => typed(one, &map, &mut out),
        (None, several) => {
            let each = several.iter().map(|kind| {
                let mut one = Map::new();
                typed(kind, &map, &mut one);
                Value::Object(one)
            });
            out.insert("anyOf".into(), each.collect());
        }
    }
    out
}

/// The types that a schema names or implies, and whether null is one of them.
fn types(map: &Map<String, Value>) -> (Vec<String>, bool) {
    let named: Vec<&str> = match map.get("type") {
        Some(Value::String(one)) => vec![one],
        Some(Value::Array(several)) => several.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    };
    let mut null = named.contains(&"null");
    let mut others: Vec<String> = named.into_iter().filter(|t| *t != "null").map(str::to_owned).collect();
    others.dedup();
    if others.is_empty() {
        let values = map.get("const").map(std::slice::from_ref);
        let values = values.or_else(|| map.get("enum").and_then(Value::as_array).map(Vec::as_slice));
        if map.contains_key("properties") {
            others.push("object".to_owned());
        } else if map.contains_key("items") {
            others.push("array".to_owned());
        } else {
            for value in values.unwrap_or_default() {
                let kind = match value {
                    Value::Null => {
                        null = true;
                        continue;
                    }
                    Value::Bool(_) => "boolean",
                    Value::Number(_) => "number",
                    Value::String(_) => "string",
                    Value::Array(_) => "array",
                    Value::Object(_) => "object",
                };
                if !others.iter().any(|known| known == kind) {
                    others.push(kind.to_owned());
                }
            }
        }
        if others.is_empty() {
            others.push("string".to_owned());
        }
    }
    (others, null)
}

fn any_of(parts: &[Value], out: &mut Map<String, Value>) {
    let (null, others): (Vec<&Value>, Vec<&Value>) = parts.iter().partition(|p| p["type"] == "null");
    if !null.is_empty() {
        out.insert("nullable".into(), true.into());
    }
    match others.as_slice() {
        [one] => {
            for (name, value) in reduced(one) {
                out.entry(name).or_insert(value);
            }
        }
        several => {
            let several = several.iter().map(|p| Value::Object(reduced(p)));
            out.insert("anyOf".into(), several.collect());
        }
    }
}

fn typed(kind: &str, map: &Map<String, Value>, out: &mut Map<String, Value>) {
    out.insert("type".into(), kind.into());
    let constant = map.get("const").map(|value| vec![value.clone()]);
    let values = constant.or_else(|| map.get("enum").and_then(Value::as_array).cloned());
    let format = map.get("format").and_then(Value::as_str);
    match kind {
        "string" => {
            if let Some(format) = format.filter(|f| matches!(*f, "date-time" | "enum")) {
                out.insert("format".into(), format.into());
            } else if let Some(format) = format {
                say(out, &format!("Format: {format}."));
            }
            if let Some(values) = values {
                let texts: Vec<Value> = values.iter().filter(|v| v.is_string()).cloned().collect();
                if !texts.is_empty() {
                    out.insert("enum".into(), texts.into());
                }
            }
        }
        _ => {
            if let Some(format) = format.filter(|f| matches!(*f, "float" | "double" | "int32" | "int64")) {
                out.insert("format".into(), format.into());
            }
            if let Some(values) = values {
                let fits = |value: &&Value| match kind {
                    "number" => value.is_number(),
                    "integer" => value.is_i64() || value.is_u64(),
                    "boolean" => value.is_boolean(),
                    "array" => value.is_array(),
                    "object" => value.is_object(),
                    _ => true,
                };
                let shown: Vec<String> = values.iter().filter(fits).map(Value::to_string).collect();
                if !shown.is_empty() {
                    say(out, &format!("One of: {}.", shown.join(", ")));
                }
            }
        }
    }
    match kind {
        "array" => {
            let items = match map.get("items").or_else(|| map.get("prefixItems")) {
                Some(Value::Array(several)) => several.first().map(reduced),
                Some(one) => Some(reduced(one)),
                None => None,
            };
            let items = items.unwrap_or_else(|| reduced(&Value::Null));
            out.insert("items".into(), Value::Object(items));
        }
        "object" => {
            let properties = map.get("properties").and_then(Value::as_object);
            // An empty map is refused.
            let Some(properties) = properties.filter(|p| !p.is_empty()) else {
                return;
            };
            if let Some(required) = map.get("required").and_then(Value::as_array) {
                let known = required
                    .iter()
                    .filter(|n| n.as_str().is_some_and(|n| properties.contains_key(n)));
                let known: Vec<Value> = known.cloned().collect();
                if !known.is_empty() {
                    out.insert("required".into(), known.into());
                }
            }
            let properties = properties
                .iter()
                .map(|(name, s)| (name.clone(), Value::Object(reduced(s))));
            out.insert("properties".into(), Value::Object(properties.collect()));
        }
        _ => {}
    }
}

/// Adds a sentence to the description.
fn say(out: &mut Map<String, Value>, sentence: &str) {
    let text = out.get("description").and_then(Value::as_str).unwrap_or("");
    let text = format!("{text} {sentence}").trim_start().to_owned();
    out.insert("description".into(), text.into());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_are_written_out_and_end() {
        let schema = json!({
            "$defs": {"node": {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}, "n": {"$ref": "#/$defs/n"}}},
                      "n": {"type": "integer"}},
            "type": "object", "properties": {"head": {"$ref": "#/$defs/node", "description": "d"}, "x": {"$ref": "#/nowhere"}},
        });
        let expected = json!({"type": "object", "properties": {
            "head": {"type": "object", "properties": {"next": {"type": "object"}, "n": {"type": "integer"}}, "description": "d"}, "x": {}}});
        assert_eq!(inline(&schema), expected);
        // Each level names the next one twice: two to the hundredth members.
        let mut defs = Map::new();
        for i in 0..100 {
            let next = json!({"$ref": format!("#/$defs/d{}", i + 1)});
            defs.insert(format!("d{i}"), json!({"properties": {"a": next, "b": next}}));
        }
        let bomb = json!({"$defs": defs, "$ref": "#/$defs/d0"});
        assert!(inline(&bomb).to_string().len() < 2_000_000);
    }

    #[test]
    fn a_root_of_alternatives_becomes_an_object() {
        let schema = json!({"type": "object", "properties": {"z": {}}, "allOf": [
            {"properties": {"a": {"type": "string"}}, "required": ["a"]},
            {"anyOf": [{"properties": {"b": {}}, "required": ["b"]}, {"properties": {"c": {}}}]}]});
        let expected = json!({"type": "object", "properties": {"z": {}, "a": {"type": "string"}, "b": {}, "c": {}},
            "required": ["a"]});
        let plain = plain_root(schema);
        assert_eq!(plain["properties"], expected["properties"]);
        assert_eq!(plain["required"], expected["required"]);
        assert!(plain.get("allOf").is_none() && plain.get("anyOf").is_none());
        let root = json!({"$defs": {"r": {"properties": {"a": {}}}}, "$ref": "#/$defs/r"});
        assert_eq!(plain_root(root), json!({"properties": {"a": {}}, "type": "object"}));
        let untouched = json!({"type": "object", "properties": {"a": {"$ref": "#/$defs/x"}}, "$defs": {"x": {}}});
        assert_eq!(plain_root(untouched.clone()), untouched);
    }

    #[test]
    fn what_gemini_takes() {
        let schema = json!({
            "$schema": "s", "title": "T", "type": "object", "additionalProperties": false,
            "required": ["a", "gone"],
            "$defs": {"unit": {"enum": ["c", "f"]}},
            "properties": {
                "a": {"type": ["string", "null"], "description": "A", "format": "uri"},
                "b": {"type": ["integer", "string"], "default": 1},
                "c": {"const": "x"},
                "d": {"type": "integer", "enum": [1, 2], "description": "D"},
                "e": {"anyOf": [{"$ref": "#/$defs/unit"}, {"type": "null"}], "description": "E"},
                "f": {"oneOf": [{"type": "number", "exclusiveMinimum": 0}, {"type": "boolean"}]},
                "g": {"type": "array"},
                "h": {"type": "object", "properties": {}},
                "i": true,
                "j": {"allOf": [{"type": "string"}, {"maxLength": 3}]},
            },
        });
        let expected = json!({"type": "object", "required": ["a"], "properties": {
            "a": {"type": "string", "nullable": true, "description": "A Format: uri."},
            "b": {"anyOf": [{"type": "integer"}, {"type": "string"}]},
            "c": {"type": "string", "enum": ["x"]},
            "d": {"type": "integer", "description": "D One of: 1, 2."},
            "e": {"type": "string", "enum": ["c", "f"], "nullable": true, "description": "E"},
            "f": {"anyOf": [{"type": "number"}, {"type": "boolean"}]},
            "g": {"type": "array", "items": {"type": "string"}},
            "h": {"type": "object"},
            "i": {"type": "string"},
            "j": {"type": "string", "maxLength": 3},
        }});
        assert_eq!(gemini(&schema), expected);
        // What contains itself keeps its type where it is cut off, and values of several types keep theirs.
        let node = json!({"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}, "all": {"type": "array", "items": {"$ref": "#/$defs/node"}}}});
        let schema = json!({"$defs": {"node": node}, "type": "object", "properties": {
            "head": {"$ref": "#/$defs/node"}, "mixed": {"enum": [1, "a", null]}, "both": {"type": ["integer", "string"], "enum": [1, "a"]}}});
        let expected = json!({"type": "object", "properties": {
            "head": {"type": "object", "properties": {"next": {"type": "object"}, "all": {"type": "array", "items": {"type": "object"}}}},
            "mixed": {"nullable": true, "anyOf": [{"type": "number", "description": "One of: 1."}, {"type": "string", "enum": ["a"]}]},
            "both": {"anyOf": [{"type": "integer", "description": "One of: 1."}, {"type": "string", "enum": ["a"]}]},
        }});
        assert_eq!(gemini(&schema), expected);
    }
}
