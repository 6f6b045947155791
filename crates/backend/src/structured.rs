//! `format` for providers that have no field for it that all their servers know, or none beside tools.

use serde_json::{Map, Value};

use crate::dialect::Fault;
use crate::wire_schema::inline;

/// What an answer is to look like.
#[derive(Debug, Clone, PartialEq)]
pub enum Format {
    /// Any JSON object.
    Json,
    /// JSON that fits a schema.
    Schema {
        /// Its name.
        name: String,
        /// The schema.
        schema: Value,
    },
}

impl Format {
    /// Reads what a chat calls `format`: a word, an object in one of OpenAI's forms, or a schema. None: plain text.
    ///
    /// # Errors
    /// [`Fault::Config`]: it is none of these.
    pub fn read(format: Option<&Value>) -> Result<Option<Self>, Fault> {
        match format {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(word)) => match word.as_str() {
                "text" => Ok(None),
                "json" | "json_object" => Ok(Some(Self::Json)),
                other => Err(Fault::Config(format!(
                    "`format` is `{other}`; expected text, json or a schema"
                ))),
            },
            Some(Value::Object(map)) => Self::of(map),
            Some(other) => Err(Fault::Config(format!(
                "`format` is neither a word nor a schema: {other}"
            ))),
        }
    }

    fn of(map: &Map<String, Value>) -> Result<Option<Self>, Fault> {
        let kind = map.get("type").and_then(Value::as_str);
        let inner = |name: &str| map.get(name).and_then(Value::as_object);
        match kind {
            // The Responses API's whole `text`.
            None if map.len() == 1 && inner("format").is_some_and(|f| f.contains_key("type")) => {
                Self::read(map.get("format"))
            }
            Some("json_object") if map.len() == 1 => Ok(Some(Self::Json)),
            Some("json_schema") => {
                let around = inner("json_schema").unwrap_or(map);
                let Some(schema) = around.get("schema").filter(|s| s.is_object()) else {
                    return Err(Fault::Config("`format` is a json_schema without `schema`".into()));
                };
                let name = around.get("name").and_then(Value::as_str).unwrap_or("response");
                Ok(Some(Self::Schema {
                    name: name.to_owned(),
                    schema: schema.clone(),
                }))
            }
            _ => {
                let (name, schema) = crate::format::schema(map);
                Ok(Some(Self::Schema { name, schema }))
            }
        }
    }

    /// The format in words, for the instructions.
    pub fn instruction(&self) -> String {
        match self {
            Self::Json => "Give the final answer as one JSON object, with nothing around it.".into(),
            Self::Schema { schema, .. } => format!(
                "Give the final answer as one JSON value that fits this JSON Schema, with nothing around it:\n{schema}"
            ),
        }
    }
}

/// The words for a schema that is no object's, for providers that take only objects as the root of an answer. None: the
/// format can be sent as it is, or is wrong, which is said where it is sent.
pub(crate) fn words_without_object(format: Option<&Value>) -> Option<String> {
    let format = Format::read(format).ok().flatten()?;
    let Format::Schema { schema, .. } = &format else {
        return None;
    };
    let is_object = |schema: &Value| schema["type"] == "object" || schema.get("properties").is_some();
    let is_object = is_object(schema) || (schema.get("$ref").is_some() && is_object(&inline(schema)));
    (!is_object).then(|| format.instruction())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn all_forms() {
        let read = |format: Value| Format::read(Some(&format));
        let schema = json!({"type": "object", "properties": {"a": {"type": "string"}}});
        let named = |name: &str| {
            Ok(Some(Format::Schema {
                name: name.into(),
                schema: schema.clone(),
            }))
        };
        assert_eq!(Format::read(None), Ok(None));
        assert_eq!(read(json!("text")), Ok(None));
        assert_eq!(read(json!("json")), Ok(Some(Format::Json)));
        assert_eq!(read(json!({"type": "json_object"})), Ok(Some(Format::Json)));
        assert_eq!(
            read(json!({"type": "json_schema", "json_schema": {"name": "n", "schema": schema}})),
            named("n")
        );
        assert_eq!(
            read(json!({"format": {"type": "json_schema", "schema": schema}})),
            named("response")
        );
        let Ok(Some(Format::Schema { name, schema })) = read(json!({"format": "string"})) else {
            panic!("a property of that name")
        };
        assert_eq!((name.as_str(), &schema["required"]), ("response", &json!(["format"])));
        for bad in [json!("xml"), json!(1), json!({"type": "json_schema"})] {
            assert!(matches!(read(bad.clone()), Err(Fault::Config(_))), "{bad}");
        }
    }
}
