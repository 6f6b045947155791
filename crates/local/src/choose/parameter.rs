//! What a parameter can hold, read from its schema and from the examples.

use decanus_chat::ToolDefinition;
use serde_json::{Value, json};

use super::evidence::plain;
use super::words::numbers;

/// Ranges of integers up to this size are tried value by value.
const SMALL_RANGE: i64 = 40;

/// Where the values of a parameter come from.
#[derive(Clone, Debug, PartialEq)]
pub enum Kind {
    /// One of these.
    Finite(Vec<Value>),
    /// A number.
    Number {
        /// Whether it must be whole.
        integer: bool,
        /// Lower bound.
        minimum: Option<f64>,
        /// Upper bound.
        maximum: Option<f64>,
    },
    /// Free text of so many characters at most.
    Text {
        /// Least characters.
        least: usize,
        /// Most characters.
        most: usize,
    },
    /// Anything else; written under a grammar.
    Other,
}

/// Whether values are copied from the request, as far as the examples tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// In all examples the value stands in the request.
    Copied,
    /// In no example it does.
    Made,
    /// Now this, now that, or there are no examples.
    Either,
}

/// A parameter.
#[derive(Clone, Debug, PartialEq)]
pub struct Parameter {
    /// Its name.
    pub name: String,
    /// Its schema.
    pub schema: Value,
    /// Whether it must be given.
    pub required: bool,
    /// What it holds.
    pub kind: Kind,
    /// Where its values come from.
    pub source: Source,
    /// The share of examples that give it.
    pub frequency: f64,
}

/// The parameters of a tool in the order of its schema; those that are set whatever the model says are left out.
pub fn parameters(tool: &ToolDefinition) -> Vec<Parameter> {
    tool.properties()
        .filter(|(name, _)| !tool.defaults.contains_key(*name))
        .map(|(name, schema)| {
            let values: Vec<(&str, &Value)> = tool
                .examples
                .iter()
                .filter_map(|e| e.arguments.get(name).map(|v| (e.request.as_str(), v)))
                .collect();
            #[allow(clippy::cast_precision_loss)]
            let frequency = (values.len() as f64 + 0.5) / (tool.examples.len() as f64 + 1.0);
            Parameter {
                name: name.clone(),
                schema: schema.clone(),
                required: tool.is_required(name),
                kind: kind(schema),
                source: source(&values),
                frequency,
            }
        })
        .collect()
}

/// What a schema allows.
pub fn kind(schema: &Value) -> Kind {
    if let Some(values) = schema.get("enum").and_then(Value::as_array).filter(|v| !v.is_empty()) {
        return Kind::Finite(values.clone());
    }
    // Typical values of a text that could be anything: a model this small does best with one of them.
    if let Some(values) = schema.get("examples").and_then(Value::as_array).filter(|v| v.len() > 1) {
        return Kind::Finite(values.clone());
    }
    if let Some(value) = schema.get("const") {
        return Kind::Finite(vec![value.clone()]);
    }
    for list in ["oneOf", "anyOf"] {
        let entries = schema.get(list).and_then(Value::as_array).filter(|e| !e.is_empty());
        let constants: Option<Vec<Value>> = entries.and_then(|e| e.iter().map(|e| e.get("const").cloned()).collect());
        if let Some(constants) = constants {
            return Kind::Finite(constants);
        }
    }
    let bound = |inclusive: &str, exclusive: &str, step: f64| {
        let get = |name: &str| schema.get(name).and_then(Value::as_f64);
        get(inclusive).or_else(|| get(exclusive).map(|b| b + step))
    };
    match type_of(schema) {
        Some("boolean") => Kind::Finite(vec![json!(true), json!(false)]),
        Some("integer") => {
            let (minimum, maximum) = (
                bound("minimum", "exclusiveMinimum", 1.0),
                bound("maximum", "exclusiveMaximum", -1.0),
            );
            if let (Some(low), Some(high)) = (minimum, maximum) {
                #[allow(clippy::cast_possible_truncation)]
                let (low, high) = (low.ceil() as i64, high.floor() as i64);
                if high >= low && high.saturating_sub(low) < SMALL_RANGE {
                    return Kind::Finite((low..=high).map(|n| json!(n)).collect());
                }
            }
            Kind::Number {
                integer: true,
                minimum,
                maximum,
            }
        }
        Some("number") => Kind::Number {
            integer: false,
            minimum: bound("minimum", "exclusiveMinimum", f64::EPSILON),
            maximum: bound("maximum", "exclusiveMaximum", -f64::EPSILON),
        },
        Some("string") => {
            let length = |name: &str| {
                schema
                    .get(name)
                    .and_then(Value::as_u64)
                    .map(|n| usize::try_from(n).unwrap_or(usize::MAX))
            };
            Kind::Text {
                least: length("minLength").unwrap_or(0),
                most: length("maxLength").unwrap_or(2000),
            }
        }
        _ => Kind::Other,
    }
}

/// The type, or the one that is not `null`.
fn type_of(schema: &Value) -> Option<&str> {
    match schema.get("type")? {
        Value::String(name) => Some(name),
        Value::Array(names) => names.iter().filter_map(Value::as_str).find(|n| *n != "null"),
        _ => None,
    }
}

fn source(values: &[(&str, &Value)]) -> Source {
    let copied = values
        .iter()
        .filter(|(request, value)| stands_in(request, value))
        .count();
    match copied {
        _ if values.is_empty() => Source::Either,
        n if n == values.len() => Source::Copied,
        0 => Source::Made,
        _ => Source::Either,
    }
}

/// Whether a request contains a value.
pub fn stands_in(request: &str, value: &Value) -> bool {
    match value {
        Value::Number(n) => numbers(request).iter().any(|m| same_number(&m.json, &n.to_string())),
        other => request.to_lowercase().contains(&plain(other).to_lowercase()),
    }
}

/// Whether two JSON numbers mean the same.
pub fn same_number(a: &str, b: &str) -> bool {
    a == b || matches!((a.parse::<f64>(), b.parse::<f64>()), (Ok(x), Ok(y)) if x == y)
}

impl Parameter {
    /// Whether its values are numbers that are always copied from the request.
    pub fn is_copied_number(&self) -> bool {
        let numeric = match &self.kind {
            Kind::Number { .. } => true,
            Kind::Finite(values) => values.iter().all(Value::is_number),
            _ => false,
        };
        numeric && self.source == Source::Copied
    }

    /// Whether a number, given as JSON, is allowed.
    pub fn allows_number(&self, json: &str) -> bool {
        let Ok(number) = json.parse::<f64>() else { return false };
        let (integer, minimum, maximum) = match &self.kind {
            Kind::Number {
                integer,
                minimum,
                maximum,
            } => (integer, minimum, maximum),
            Kind::Finite(values) => return values.iter().any(|v| same_number(&v.to_string(), json)),
            _ => return false,
        };
        let multiple = self
            .schema
            .get("multipleOf")
            .and_then(Value::as_f64)
            .filter(|m| *m > 0.0);
        (!integer || number.fract() == 0.0)
            && minimum.is_none_or(|m| number >= m)
            && maximum.is_none_or(|m| number <= m)
            && multiple.is_none_or(|m| ((number / m).round() * m - number).abs() < 1e-9)
    }
}
