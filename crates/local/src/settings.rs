//! The parameters of an endpoint or a request that the local backend understands.

use decanus_backend::BackendError;
use decanus_base::names::did_you_mean;
use serde_json::{Map, Value, json};

use crate::engine::generate::Sampling;
use crate::engine::session::ContextOptions;

/// Whether and how much the model is to think before it answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reasoning {
    /// Not at all.
    Off,
    /// As it does by itself.
    On,
    /// So much, in the words of its template.
    Effort(String),
}

/// Everything that parameters can set.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Settings {
    /// How tokens are picked.
    pub sampling: Sampling,
    /// How the context is made.
    pub context: ContextOptions,
    /// The schema that an answer in words must fit.
    pub format: Option<Value>,
    /// Whether to think; none is what the template does by itself.
    pub reasoning: Option<Reasoning>,
    /// A chat template in place of the model's own.
    pub chat_template: Option<String>,
    /// Variables for the template.
    pub variables: Map<String, Value>,
    /// Parameters that nobody here knows.
    pub unknown: Vec<String>,
}

/// All names, for guesses at what an unknown one was meant to be.
const NAMES: [&str; 17] = [
    "temperature",
    "top_p",
    "min_p",
    "top_k",
    "seed",
    "repeat_penalty",
    "frequency_penalty",
    "presence_penalty",
    "repeat_last_n",
    "max_tokens",
    "stop",
    "threads",
    "context",
    "format",
    "reasoning",
    "chat_template",
    "chat_template_kwargs",
];

impl Settings {
    /// Reads parameters: those of the model's entry, then the endpoint's, then the request's; later ones win.
    /// Names that are no parameters of local models are kept in `unknown`.
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

    /// What is to be said of parameters that have no effect.
    pub fn warnings(&self) -> Vec<String> {
        let warning = |name: &String| {
            let guess = did_you_mean(name, NAMES);
            format!("local models have no parameter `{name}`; it has no effect{guess}")
        };
        self.unknown.iter().map(warning).collect()
    }

    fn set(&mut self, name: &str, value: &Value) -> Result<(), BackendError> {
        let sampling = &mut self.sampling;
        match name {
            "temperature" => sampling.temperature = real(name, value, 0.0, 10.0)?,
            "top_p" => sampling.top_p = Some(real(name, value, 0.0, 1.0)?),
            "min_p" => sampling.min_p = Some(real(name, value, 0.0, 1.0)?),
            "top_k" => sampling.top_k = Some(whole(name, value, 0)?),
            "repeat_penalty" | "repetition_penalty" => sampling.repeat_penalty = real(name, value, 0.01, 10.0)?,
            "frequency_penalty" => sampling.frequency_penalty = real(name, value, -2.0, 2.0)?,
            "presence_penalty" => sampling.presence_penalty = real(name, value, -2.0, 2.0)?,
            "repeat_last_n" => sampling.repeat_last_n = whole(name, value, 0)?,
            "seed" => sampling.seed = whole(name, value, 0)?,
            "max_tokens" | "max_completion_tokens" | "max_output_tokens" => {
                sampling.max_tokens = whole(name, value, 1)?;
            }
            "stop" => sampling.stop = texts(name, value)?,
            "threads" => self.context.threads = Some(whole::<i32>(name, value, 1)?.min(512)),
            "context" => self.context.context = Some(whole(name, value, 16)?),
            "format" => self.format = schema_of(value)?,
            "reasoning" | "reasoning_effort" | "enable_thinking" | "thinking" | "think" => {
                self.reasoning = Some(reasoning(name, value)?);
            }
            "chat_template" => self.chat_template = Some(template(name, value)?),
            "chat_template_kwargs" => match value {
                Value::Object(variables) => self.variables.extend(variables.clone()),
                _ => return Err(wrong(name, value, "a map of variables for the chat template")),
            },
            other => self.unknown.push(other.to_owned()),
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
    let items = match value {
        Value::Array(items) => items.as_slice(),
        one => std::slice::from_ref(one),
    };
    let text = |item: &Value| item.as_str().filter(|text| !text.is_empty()).map(str::to_owned);
    let texts: Option<Vec<String>> = items.iter().map(text).collect();
    texts.ok_or_else(|| wrong(name, value, "a text or a list of texts, none of them empty"))
}

fn reasoning(name: &str, value: &Value) -> Result<Reasoning, BackendError> {
    let value = value.get("effort").unwrap_or(value);
    let word = match value {
        Value::Bool(true) => "on".to_owned(),
        Value::Bool(false) => "off".to_owned(),
        Value::String(word) => word.trim().to_ascii_lowercase(),
        _ => String::new(),
    };
    match word.as_str() {
        "off" | "none" | "false" | "no" => Ok(Reasoning::Off),
        "on" | "true" | "yes" => Ok(Reasoning::On),
        "minimal" | "low" | "medium" | "high" | "xhigh" | "max" => Ok(Reasoning::Effort(word)),
        _ => Err(wrong(name, value, "off, on, or an effort such as low, medium or high")),
    }
}

fn template(name: &str, value: &Value) -> Result<String, BackendError> {
    let text = value.as_str().filter(|text| text.contains("{{") || text.contains("{%"));
    text.map(str::to_owned)
        .ok_or_else(|| wrong(name, value, "the text of a Jinja template"))
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
            json!({"temperature": "hot"}),
            json!({"top_p": 3}),
            json!({"min_p": -0.1}),
            json!({"top_k": "many"}),
            json!({"seed": -1}),
            json!({"seed": 4294967296_u64}),
            json!({"repeat_penalty": 0}),
            json!({"frequency_penalty": 3}),
            json!({"presence_penalty": "x"}),
            json!({"repeat_last_n": -1}),
            json!({"stop": ["a", ""]}),
            json!({"context": 1}),
            json!({"reasoning": "loud"}),
            json!({"chat_template": "chatml"}),
            json!({"chat_template_kwargs": 1}),
        ] {
            let name = bad.as_object().unwrap().keys().next().unwrap();
            let error = read(&bad).unwrap_err().to_string();
            assert!(error.starts_with(&format!("parameter `{name}` must be ")), "{error}");
        }
    }

    #[test]
    fn unknown_names_are_told_of() {
        let warnings = read(&json!({"temprature": 1, "seed": 1})).unwrap().warnings();
        assert_eq!(warnings.len(), 1);
        assert!(
            warnings[0].contains("`temprature`") && warnings[0].contains("did you mean temperature"),
            "{warnings:?}"
        );
        for name in NAMES {
            // Whatever it takes, it is known.
            let settings = read(&json!({name: 1}));
            assert!(settings.is_err() || settings.unwrap().unknown.is_empty(), "{name}");
        }
    }

    #[test]
    fn thinking_has_many_names() {
        for (parameters, wanted) in [
            (json!({"reasoning": false}), Reasoning::Off),
            (json!({"reasoning": "off"}), Reasoning::Off),
            (json!({"reasoning": {"effort": "low"}}), Reasoning::Effort("low".into())),
            (json!({"reasoning_effort": "high"}), Reasoning::Effort("high".into())),
            (json!({"enable_thinking": true}), Reasoning::On),
        ] {
            assert_eq!(read(&parameters).unwrap().reasoning, Some(wanted));
        }
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
