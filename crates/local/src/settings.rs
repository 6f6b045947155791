//! The parameters of an endpoint or a request that the local backend understands.

use decanus_backend::BackendError;
use serde_json::{Map, Value, json};

use crate::engine::generate::Sampling;
use crate::engine::session::ContextOptions;

/// Everything that parameters can set.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Settings {
    /// How tokens are picked.
    pub sampling: Sampling,
    /// How the context is made.
    pub context: ContextOptions,
    /// The schema that an answer in words must fit.
    pub format: Option<Value>,
}

impl Settings {
    /// Reads parameters: those of the model's entry, then the endpoint's, then the request's; later ones win.
    /// Parameters of other providers are passed over with a note in the log.
    ///
    /// # Errors
    /// When a value is not of its parameter's kind.
    pub fn read(sources: &[&Map<String, Value>]) -> Result<Self, BackendError> {
        let mut settings = Self::default();
        for (name, value) in sources.iter().flat_map(|s| s.iter()).filter(|(_, v)| !v.is_null()) {
            settings.set(name, value)?;
        }
        Ok(settings)
    }

    fn set(&mut self, name: &str, value: &Value) -> Result<(), BackendError> {
        let sampling = &mut self.sampling;
        match name {
            "temperature" => sampling.temperature = real(name, value, 0.0, 10.0)?,
            "top_p" => sampling.top_p = Some(real(name, value, 0.0, 1.0)?),
            "min_p" => sampling.min_p = Some(real(name, value, 0.0, 1.0)?),
            "top_k" => sampling.top_k = Some(whole(name, value, 0)?),
            "seed" => sampling.seed = whole(name, value, 0)?,
            "max_tokens" | "max_completion_tokens" | "max_output_tokens" => {
                sampling.max_tokens = whole(name, value, 1)?;
            }
            "stop" => sampling.stop = texts(name, value)?,
            "threads" => self.context.threads = Some(whole::<i32>(name, value, 1)?.min(512)),
            "context" => self.context.context = Some(whole(name, value, 16)?),
            "format" => self.format = schema_of(value)?,
            other => tracing::debug!("the local model has no parameter `{other}`"),
        }
        Ok(())
    }
}

fn number(name: &str, value: &Value) -> Result<f64, BackendError> {
    let number = match value {
        Value::String(text) => text.trim().parse().ok(),
        other => other.as_f64(),
    };
    number
        .filter(|n| n.is_finite())
        .ok_or_else(|| wrong(name, value, "a number"))
}

fn real(name: &str, value: &Value, least: f64, most: f64) -> Result<f32, BackendError> {
    let n = number(name, value)?;
    if !(least..=most).contains(&n) {
        return Err(wrong(name, value, &format!("a number from {least} to {most}")));
    }
    #[allow(clippy::cast_possible_truncation)]
    let n = n as f32;
    Ok(n)
}

fn whole<T: TryFrom<i64>>(name: &str, value: &Value, least: i64) -> Result<T, BackendError> {
    let wanted = format!("a whole number from {least}");
    let n = number(name, value)?;
    if n.fract() != 0.0 || n.abs() > 9e15 {
        return Err(wrong(name, value, &wanted));
    }
    #[allow(clippy::cast_possible_truncation)]
    let n = n as i64;
    if n < least {
        return Err(wrong(name, value, &wanted));
    }
    T::try_from(n).map_err(|_| wrong(name, value, &wanted))
}

fn texts(name: &str, value: &Value) -> Result<Vec<String>, BackendError> {
    match value {
        Value::String(text) => Ok(vec![text.clone()]),
        Value::Array(items) => items
            .iter()
            .map(|i| {
                i.as_str()
                    .map(str::to_owned)
                    .ok_or_else(|| wrong(name, value, "a text or a list of texts"))
            })
            .collect(),
        _ => Err(wrong(name, value, "a text or a list of texts")),
    }
}

/// The schema that a `format` stands for: a word, a schema, the short form of one, or a schema as providers take it.
fn schema_of(format: &Value) -> Result<Option<Value>, BackendError> {
    match format {
        Value::String(word) if word == "text" => Ok(None),
        Value::String(word) if word == "json" || word == "json_object" => Ok(Some(json!({"type": "object"}))),
        Value::Object(map) => {
            let wire = map.get("json_schema").unwrap_or(format).get("schema");
            Ok(Some(
                wire.cloned().unwrap_or_else(|| decanus_backend::format::schema(map).1),
            ))
        }
        other => Err(wrong("format", other, "json, text or a schema")),
    }
}

fn wrong(name: &str, value: &Value, wanted: &str) -> BackendError {
    BackendError::Config(format!("parameter `{name}` must be {wanted}, not {value}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(value: &Value) -> Result<Settings, BackendError> {
        Settings::read(&[value.as_object().unwrap()])
    }

    #[test]
    fn later_sources_win_and_texts_from_a_command_line_are_read() {
        let (a, b) = (
            json!({"temperature": 0.5, "max_tokens": 10}),
            json!({"temperature": "0.2", "stop": "x"}),
        );
        let settings = Settings::read(&[a.as_object().unwrap(), b.as_object().unwrap()]).unwrap();
        assert!((settings.sampling.temperature - 0.2).abs() < 1e-6);
        assert_eq!(
            (settings.sampling.max_tokens, settings.sampling.stop),
            (10, vec!["x".to_owned()])
        );
    }

    #[test]
    fn values_that_make_no_sense_are_refused() {
        for bad in [
            json!({"temperature": -1}),
            json!({"max_tokens": 0}),
            json!({"threads": 1.5}),
            json!({"stop": 3}),
            json!({"format": "yaml"}),
        ] {
            assert!(read(&bad).is_err(), "{bad}");
        }
        assert!(read(&json!({"unknown": 1})).is_ok());
    }

    #[test]
    fn a_format_is_a_schema() {
        let schema = json!({"type": "integer"});
        let wire = json!({"format": {"type": "json_schema", "json_schema": {"schema": schema.clone()}}});
        assert_eq!(read(&wire).unwrap().format, Some(schema));
        let short = read(&json!({"format": {"n": "integer"}})).unwrap().format.unwrap();
        assert_eq!(short["required"], json!(["n"]));
        assert_eq!(read(&json!({"format": "text"})).unwrap().format, None);
    }
}
