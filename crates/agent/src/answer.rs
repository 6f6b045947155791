//! Answers that have a form: finding the JSON in an answer, and checking it.

use decanus_backend::format::schema;
use decanus_tool::schema::fault;
use serde_json::Value;

/// What an answer must be.
#[derive(Clone, Debug, PartialEq)]
pub enum Format {
    /// Any JSON.
    Json,
    /// JSON that is valid by this schema.
    Schema(Value),
}

impl Format {
    /// What the option `format` says: a word (`json`, `json_object`; `text` is no form), a schema, the short form of one, or
    /// `{"type": "json_schema", …}` as providers take it.
    ///
    /// # Errors
    /// A text: neither of these.
    pub fn of(format: &Value) -> Result<Option<Self>, String> {
        match format {
            Value::Null => Ok(None),
            Value::String(word) => match word.as_str() {
                "json" | "json_object" => Ok(Some(Self::Json)),
                "text" => Ok(None),
                other => Err(format!("format takes json, text or a schema, found `{other}`")),
            },
            Value::Object(map) if map.get("type").is_some_and(|t| t == "json_schema") => {
                let inner = map.get("json_schema").unwrap_or(format);
                match inner.get("schema") {
                    Some(schema) => Ok(Some(Self::Schema(schema.clone()))),
                    None => Err("format: the `json_schema` has no `schema`".into()),
                }
            }
            Value::Object(map) => Ok(Some(Self::Schema(schema(map).1))),
            other => Err(format!("format takes json, text or a schema, found {other}")),
        }
    }

    /// The JSON of an answer, checked.
    ///
    /// # Errors
    /// A text for the model: what is wrong with it.
    pub fn read(&self, answer: &str) -> Result<Value, String> {
        let json = json_of(answer);
        let value: Value = serde_json::from_str(json).map_err(|e| format!("it is not valid JSON: {e}"))?;
        match self {
            Self::Json => Ok(value),
            Self::Schema(schema) => match fault(schema, &value)? {
                None => Ok(value),
                Some(why) => Err(why),
            },
        }
    }
}

/// The JSON in a text: what stands in its last fence of JSON if it has one, else all of it.
pub fn json_of(text: &str) -> &str {
    let Some(begin) = text.rfind("```json\n").map(|at| at + "```json\n".len()) else {
        return text.trim();
    };
    let end = text[begin..].rfind("```").map_or(text.len(), |end| begin + end);
    text[begin..end].trim()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn json_stands_alone_or_in_the_last_fence() {
        // Worked example 42 of the chat format.
        assert_eq!(json_of("Hi\n```json\n{\"a\":1}\n```\n"), "{\"a\":1}");
        assert_eq!(json_of("```json\n1\n```\nor\n```json\n2\n```"), "2");
        assert_eq!(json_of(" {} "), "{}");
        assert!(Format::Json.read("hi").unwrap_err().contains("not valid JSON"));
    }

    #[test]
    fn forms_of_the_option() {
        let of = |value: Value| Format::of(&value);
        assert_eq!(of(json!("json")), Ok(Some(Format::Json)));
        assert_eq!(of(json!("text")), Ok(None));
        assert!(of(json!("yaml")).is_err() && of(json!(3)).is_err());
        let wire = json!({"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}});
        assert_eq!(of(wire), Ok(Some(Format::Schema(json!({"type": "object"})))));
        let short = of(json!({"answer": "string"})).unwrap().unwrap();
        assert_eq!(short.read("{\"answer\": \"x\"}"), Ok(json!({"answer": "x"})));
        let why = short.read("{\"answer\": 1}").unwrap_err();
        assert!(why.contains("/answer"), "{why}");
    }
}
