//! JSON Schema as a grammar of llama.cpp (GBNF): what matches the grammar is valid by the schema.
//!
//! Objects have their members in the order of the schema; optional ones may be left out. What GBNF can't say
//! (`pattern`, `multipleOf`, bounds of numbers) is left to the check that every call goes through anyway.

use std::fmt::Write as _;

use serde_json::Value;

use crate::template::one_line;

/// Deeper schemas than this, or recursive ones, are any JSON from there on.
const DEPTH: usize = 12;

/// How free texts are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strings {
    /// All that JSON allows.
    Free,
    /// No blanks, no escapes, and at most 64 characters: small models don't find the end otherwise.
    Tight,
}

/// Rules of a grammar under construction.
#[derive(Debug)]
pub struct Grammar<'s> {
    rules: String,
    count: usize,
    document: &'s Value,
    strings: Strings,
}

impl<'s> Grammar<'s> {
    /// No rules but those of JSON. References (`#/…`) are looked up in `document`.
    pub fn new(document: &'s Value, strings: Strings) -> Self {
        let string = match strings {
            Strings::Free => "string ::= \"\\\"\" char* \"\\\"\"\n",
            Strings::Tight => "string ::= \"\\\"\" plain{1,64} \"\\\"\"\n",
        };
        let rules = format!(
            "{string}{}",
            r#"char ::= [^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt/] | "u" [0-9a-fA-F]{4})
plain ::= [^"\\\x7F\x00-\x20]
integer ::= "-"? ("0" | [1-9] [0-9]{0,15})
number ::= integer ("." [0-9]{1,16})? ([eE] [-+]? [0-9]{1,3})?
boolean ::= "true" | "false"
null ::= "null"
any ::= string | number | boolean | null | array | object
array ::= "[" (any (", " any)*)? "]"
object ::= "{" (string ": " any (", " string ": " any)*)? "}"
"#
        );
        Self {
            rules,
            count: 0,
            document,
            strings,
        }
    }

    /// Adds the rules of a schema and gives the name of the first.
    pub fn schema(&mut self, schema: &Value) -> String {
        self.visit(schema, 0)
    }

    /// Adds the rules of a schema whose references (`#/…`) are looked up in itself.
    pub fn within(&mut self, schema: &'s Value) -> String {
        let outer = std::mem::replace(&mut self.document, schema);
        let name = self.visit(schema, 0);
        self.document = outer;
        name
    }

    /// Adds a rule.
    pub fn rule(&mut self, body: &str) -> String {
        self.count += 1;
        let name = format!("r{}", self.count);
        let _ = writeln!(self.rules, "{name} ::= {body}");
        name
    }

    /// The whole grammar, beginning at `root`.
    pub fn finish(self, root: &str) -> String {
        format!("root ::= {root}\n{}", self.rules)
    }

    fn visit(&mut self, schema: &Value, depth: usize) -> String {
        if depth > DEPTH {
            return "any".into();
        }
        if let Some(target) = schema.get("$ref").and_then(Value::as_str) {
            let found = target
                .strip_prefix('#')
                .and_then(|pointer| self.document.pointer(pointer));
            return found.map_or_else(|| "any".into(), |found| self.visit(found, depth + 1));
        }
        if let Some(value) = schema.get("const") {
            return self.rule(&literal(&one_line(value)));
        }
        if let Some(values) = schema.get("enum").and_then(Value::as_array).filter(|v| !v.is_empty()) {
            let alternatives: Vec<String> = values.iter().map(|v| literal(&one_line(v))).collect();
            return self.rule(&alternatives.join(" | "));
        }
        for list in ["oneOf", "anyOf"] {
            if let Some(schemas) = schema.get(list).and_then(Value::as_array).filter(|s| !s.is_empty()) {
                let alternatives: Vec<String> = schemas.iter().map(|s| self.visit(s, depth + 1)).collect();
                return self.rule(&alternatives.join(" | "));
            }
        }
        if let Some([only]) = schema.get("allOf").and_then(Value::as_array).map(Vec::as_slice) {
            return self.visit(only, depth + 1);
        }
        match schema.get("type") {
            Some(Value::Array(types)) => {
                let mut alternatives = Vec::new();
                for name in types {
                    let mut one = schema.clone();
                    one["type"] = name.clone();
                    alternatives.push(self.visit(&one, depth + 1));
                }
                self.rule(&alternatives.join(" | "))
            }
            Some(Value::String(name)) => self.typed(name, schema, depth),
            _ if schema.get("properties").is_some() => self.typed("object", schema, depth),
            _ => "any".into(),
        }
    }

    fn typed(&mut self, name: &str, schema: &Value, depth: usize) -> String {
        match name {
            "string" => self.string(schema),
            "integer" | "number" | "boolean" | "null" => name.to_owned(),
            "array" => {
                let item = schema
                    .get("items")
                    .map_or_else(|| "any".into(), |s| self.visit(s, depth + 1));
                let bound = |n: &str| schema.get(n).and_then(Value::as_u64);
                let least = bound("minItems").unwrap_or(0);
                let more = |from: u64| match bound("maxItems") {
                    Some(most) => format!("{{{from},{}}}", most.saturating_sub(1).max(from)),
                    None => format!("{{{from},}}"),
                };
                let items = format!("{item} (\", \" {item}){}", more(least.saturating_sub(1)));
                self.rule(&match (least, bound("maxItems")) {
                    (_, Some(0)) => "\"[]\"".into(),
                    (0, _) => format!("\"[\" ({items})? \"]\""),
                    _ => format!("\"[\" {items} \"]\""),
                })
            }
            "object" => self.object(schema, depth),
            _ => "any".into(),
        }
    }

    fn string(&mut self, schema: &Value) -> String {
        let bound = |n: &str| schema.get(n).and_then(Value::as_u64);
        let (least, most) = (bound("minLength"), bound("maxLength"));
        if least.is_none() && most.is_none() {
            return "string".into();
        }
        let (unit, least, most) = match self.strings {
            Strings::Free => ("char", least.unwrap_or(0), most),
            Strings::Tight => (
                "plain",
                least.unwrap_or(0),
                Some(most.unwrap_or(64).min(64).max(least.unwrap_or(0))),
            ),
        };
        // Very long repetitions make very large grammars; the check after the call sees to those.
        let most = most.filter(|m| *m <= 500).map(|m| m.to_string()).unwrap_or_default();
        self.rule(&format!("\"\\\"\" {unit}{{{},{most}}} \"\\\"\"", least.min(500)))
    }

    fn object(&mut self, schema: &Value, depth: usize) -> String {
        let Some(properties) = schema
            .get("properties")
            .and_then(Value::as_object)
            .filter(|p| !p.is_empty())
        else {
            return match schema.get("additionalProperties") {
                Some(Value::Bool(false)) => self.rule("\"{}\""),
                Some(values) if values.is_object() => {
                    let value = self.visit(values, depth + 1);
                    self.rule(&format!(
                        "\"{{\" (string \": \" {value} (\", \" string \": \" {value})*)? \"}}\""
                    ))
                }
                _ => "object".into(),
            };
        };
        let required = schema.get("required").and_then(Value::as_array);
        let is_required = |name: &str| required.is_some_and(|r| r.iter().any(|n| n == name));
        let members: Vec<(String, bool)> = properties
            .iter()
            .map(|(name, schema)| {
                let value = self.visit(schema, depth + 1);
                let key = format!("{}: ", Value::String(name.clone()));
                (self.rule(&format!("{} {value}", literal(&key))), is_required(name))
            })
            .collect();
        // From the last member backwards: what may follow when something was written before (`, x …`) or nothing was.
        let (mut after, mut first) = (self.rule("\"\""), self.rule("\"\""));
        for (member, required) in members.iter().rev() {
            let here = format!("\", \" {member} {after}");
            let begin = format!("{member} {after}");
            let (next_after, next_first) = if *required {
                (self.rule(&here), self.rule(&begin))
            } else {
                (
                    self.rule(&format!("{here} | {after}")),
                    self.rule(&format!("{begin} | {first}")),
                )
            };
            (after, first) = (next_after, next_first);
        }
        self.rule(&format!("\"{{\" {first} \"}}\""))
    }
}

/// A text as a literal of the grammar.
pub fn literal(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}
