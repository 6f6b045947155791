//! From what a model or a person sends to arguments that fit a tool's schema.
//!
//! Models send numbers as texts, JSON inside texts and null for what they leave out. What is unmistakable is repaired;
//! what is not comes back as an error that names the parameter, the reason and the allowed values.

use std::sync::{Arc, OnceLock};

use decanus_chat::{Arguments, ToolDefinition};
use jsonschema::Validator;
use serde_json::{Map, Number, Value};

use crate::tool::{Args, ToolError};

/// Characters of a value that an error shows.
const SHOWN: usize = 200;

/// Arguments that fit, and what was done to make them fit that the caller should know.
#[derive(Debug, PartialEq)]
pub struct Prepared {
    /// The arguments.
    pub args: Args,
    /// Such as names that were dropped.
    pub notes: Vec<String>,
}

/// What checks the arguments of one tool. The schema is compiled at the first call, which takes longer than all the
/// rest of a call, and kept; clones share it.
#[derive(Clone, Debug, Default)]
pub struct Checker(Arc<OnceLock<Result<Compiled, String>>>);

#[derive(Debug)]
struct Compiled {
    schema: Value,
    validator: Validator,
}

impl Checker {
    fn of(&self, definition: &ToolDefinition) -> Result<&Compiled, ToolError> {
        let compile = || {
            let schema = definition.wire_parameters();
            let validator = jsonschema::validator_for(&schema).map_err(|e| e.to_string())?;
            Ok(Compiled { schema, validator })
        };
        self.0
            .get_or_init(compile)
            .as_ref()
            .map_err(|e| ToolError::Fatal(format!("the schema of tool '{}' is not valid: {e}", definition.name)))
    }
}

/// [`prepare_with`] for a single call.
///
/// # Errors
/// Those of [`prepare_with`].
pub fn prepare(arguments: &Arguments, definition: &ToolDefinition) -> Result<Prepared, ToolError> {
    prepare_with(arguments, definition, &Checker::default())
}

/// Makes arguments fit a tool's schema: forced inputs are set, null for an optional parameter is as if it was absent,
/// unknown names are dropped with a note, values are coerced to the declared type, then everything is validated.
///
/// # Errors
/// An argument error that names the parameter and the tool.
pub fn prepare_with(
    arguments: &Arguments,
    definition: &ToolDefinition,
    checker: &Checker,
) -> Result<Prepared, ToolError> {
    let mut args = match arguments {
        Arguments::Object(map) => map.clone(),
        Arguments::Invalid(text) => {
            let why = match serde_json::from_str::<Value>(text) {
                Ok(_) => "it is not an object".to_owned(),
                Err(e) => e.to_string(),
            };
            let shown = decanus_base::text::brief(text, SHOWN);
            return Err(ToolError::argument(format!(
                "arguments are not valid JSON: {why}; received: {shown}"
            )));
        }
    };
    let Compiled { schema, validator } = checker.of(definition)?;
    let empty = Map::new();
    let properties = schema.get("properties").and_then(Value::as_object).unwrap_or(&empty);
    let mut notes = Vec::new();
    let open = schema
        .get("additionalProperties")
        .is_some_and(|a| *a != Value::Bool(false));
    if !open {
        let unknown: Vec<String> = args.keys().filter(|k| !properties.contains_key(*k)).cloned().collect();
        for name in unknown {
            args.remove(&name);
            if !definition.defaults.contains_key(&name) {
                let guess = decanus_base::names::did_you_mean(&name, properties.keys().map(String::as_str));
                notes.push(format!(
                    "{} has no parameter `{name}`; it was ignored{guess}",
                    definition.name
                ));
            }
        }
    }
    args.retain(|name, value| !value.is_null() || properties.get(name).is_some_and(allows_null));
    for (name, value) in &definition.defaults {
        args.insert(name.clone(), value.clone());
    }
    check_required(&args, definition, schema)?;
    for (name, value) in &mut args {
        if let Some(property) = properties.get(name) {
            let coerced = coerce(value, property).map_err(|why| {
                ToolError::argument(format!("Parameter '{name}' for tool '{}': {why}", definition.name))
            })?;
            *value = coerced;
        }
    }
    // Declared order, whatever order they were sent in: equal calls are then equal texts.
    let mut ordered = Map::new();
    for name in properties.keys() {
        if let Some(value) = args.remove(name) {
            ordered.insert(name.clone(), value);
        }
    }
    ordered.extend(args);
    let args = validate(ordered, schema, validator, definition)?;
    Ok(Prepared { args, notes })
}

fn check_required(args: &Args, definition: &ToolDefinition, schema: &Value) -> Result<(), ToolError> {
    let required = schema
        .get("required")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(Value::as_str);
    let missing: Vec<&str> = required.filter(|name| !args.contains_key(*name)).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let provided = if args.is_empty() {
        "None".to_owned()
    } else {
        args.keys().map(String::as_str).collect::<Vec<_>>().join(", ")
    };
    Err(ToolError::argument(format!(
        "Missing required parameters for tool '{}': {}. Provided: {provided}",
        definition.name,
        missing.join(", ")
    )))
}

/// The first fault of a value by a schema, with its place; none when it is valid.
///
/// # Errors
/// The schema is none.
pub fn fault(schema: &Value, value: &Value) -> Result<Option<String>, String> {
    let validator = jsonschema::validator_for(schema).map_err(|e| format!("the schema is not valid: {e}"))?;
    let first = validator.iter_errors(value).next().map(|error| {
        let text = decanus_base::text::brief(&error.to_string(), 2 * SHOWN);
        match error.instance_path().to_string().as_str() {
            "" => text,
            path => format!("{path}: {text}"),
        }
    });
    Ok(first)
}

fn validate(args: Args, schema: &Value, validator: &Validator, definition: &ToolDefinition) -> Result<Args, ToolError> {
    let value = Value::Object(args);
    let Some(error) = validator.iter_errors(&value).next() else {
        return Ok(match value {
            Value::Object(args) => args,
            _ => Args::new(),
        });
    };
    let path = error.instance_path().to_string();
    let name = path.trim_start_matches('/').replace('/', ".");
    let place = if name.is_empty() {
        String::new()
    } else {
        format!("Parameter '{name}' for tool '{}': ", definition.name)
    };
    let allowed = value
        .pointer(&path)
        .and_then(|_| property_at(schema, &path))
        .and_then(|p| p.get("enum"))
        .and_then(Value::as_array)
        .map(|values| values.iter().map(show).collect::<Vec<_>>().join(", "));
    let why = match (allowed, value.pointer(&path)) {
        (Some(allowed), Some(found)) => format!("value {} is not one of {allowed}", brief(found)),
        _ => decanus_base::text::brief(&error.to_string(), 2 * SHOWN),
    };
    Err(ToolError::argument(format!("{place}{why}")))
}

fn property_at<'a>(schema: &'a Value, path: &str) -> Option<&'a Value> {
    schema
        .get("properties")?
        .get(path.trim_start_matches('/').split('/').next()?)
}

fn show(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

fn brief(value: &Value) -> String {
    decanus_base::text::brief(&value.to_string(), SHOWN)
}

fn allows_null(property: &Value) -> bool {
    types(property).contains(&"null")
}

fn types(property: &Value) -> Vec<&str> {
    match property.get("type") {
        Some(Value::String(t)) => vec![t.as_str()],
        Some(Value::Array(list)) => list.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    }
}

/// The value as the declared type, or why it is not one. Without a declared type everything fits; of several types the
/// first that fits without a change wins, then the first that can be had by coercion.
fn coerce(value: &Value, property: &Value) -> Result<Value, String> {
    let types = types(property);
    if types.is_empty() || types.iter().any(|t| is_of(value, t)) {
        return coerce_items(value, property, &types);
    }
    let mut first_error = None;
    for t in &types {
        match to_type(value, t) {
            Ok(v) => return coerce_items(&v, property, &types),
            Err(e) => first_error = first_error.or(Some(e)),
        }
    }
    Err(first_error.unwrap_or_default())
}

fn coerce_items(value: &Value, property: &Value, types: &[&str]) -> Result<Value, String> {
    match (value, property.get("items")) {
        (Value::Array(items), Some(schema)) if types.contains(&"array") => {
            let coerced = items
                .iter()
                .enumerate()
                .map(|(i, v)| coerce(v, schema).map_err(|e| format!("item {i}: {e}")));
            coerced.collect::<Result<Vec<_>, _>>().map(Value::Array)
        }
        _ => Ok(value.clone()),
    }
}

fn is_of(value: &Value, t: &str) -> bool {
    match t {
        "string" => value.is_string(),
        "integer" => value.as_number().is_some_and(|n| is_integer_text(&n.to_string())),
        "number" => value.is_number(),
        "boolean" => value.is_boolean(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        "null" => value.is_null(),
        _ => true,
    }
}

fn to_type(value: &Value, t: &str) -> Result<Value, String> {
    let fail = |expected: &str| Err(format!("expected {expected}, got {} ({})", kind(value), brief(value)));
    match (t, value) {
        ("string", Value::Number(n)) => Ok(Value::String(n.to_string())),
        ("string", Value::Bool(b)) => Ok(Value::String(b.to_string())),
        ("string", _) => fail("String"),
        ("integer", Value::Number(n)) => truncate(n).map_or_else(|| fail("Integer"), Ok),
        ("integer", Value::String(s)) => integer_from_text(s).map_or_else(|| fail("Integer"), Ok),
        ("integer", _) => fail("Integer"),
        ("number", Value::String(s)) => number_from_text(s).map_or_else(|| fail("Numeric/Float"), Ok),
        ("number", _) => fail("Numeric/Float"),
        ("boolean", Value::String(s)) => match s.trim().to_lowercase().as_str() {
            "true" | "t" | "yes" | "1" => Ok(Value::Bool(true)),
            "false" | "f" | "no" | "0" => Ok(Value::Bool(false)),
            _ => fail("Boolean"),
        },
        ("boolean", _) => fail("Boolean"),
        ("array", Value::String(s)) => match serde_json::from_str(s) {
            Ok(v @ Value::Array(_)) => Ok(v),
            _ => fail("Array"),
        },
        ("array", _) => fail("Array"),
        ("object", Value::String(s)) => match serde_json::from_str(s) {
            Ok(v @ Value::Object(_)) => Ok(v),
            _ => fail("Hash"),
        },
        ("object", _) => fail("Hash"),
        (other, _) => fail(other),
    }
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "Null",
        Value::Bool(_) => "Boolean",
        Value::Number(_) => "Number",
        Value::String(_) => "String",
        Value::Array(_) => "Array",
        Value::Object(_) => "Hash",
    }
}

fn is_integer_text(text: &str) -> bool {
    let digits = text.strip_prefix('-').unwrap_or(text);
    !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit())
}

/// A number without its fraction; digits are never lost on the way.
fn truncate(number: &Number) -> Option<Value> {
    use bigdecimal::{BigDecimal, RoundingMode};
    let exact: BigDecimal = number.to_string().parse().ok()?;
    // 1e999999999 would be a number of a billion digits.
    if exact.fractional_digit_count() < -400 {
        return None;
    }
    let whole = exact.with_scale_round(0, RoundingMode::Down).to_plain_string();
    number_value(&whole)
}

fn number_value(text: &str) -> Option<Value> {
    serde_json::from_str::<Number>(text).ok().map(Value::Number)
}

/// A decimal integer with an optional sign; `_` may stand between two digits. `010` is ten.
fn integer_from_text(text: &str) -> Option<Value> {
    let trimmed = text.trim();
    let (sign, digits) = match trimmed.strip_prefix('-') {
        Some(rest) => ("-", rest),
        None => ("", trimmed.strip_prefix('+').unwrap_or(trimmed)),
    };
    let grouped = digits
        .split('_')
        .all(|group| !group.is_empty() && group.bytes().all(|b| b.is_ascii_digit()));
    if !grouped {
        return None;
    }
    let plain = digits.replace('_', "");
    let plain = match plain.trim_start_matches('0') {
        "" => "0",
        rest => rest,
    };
    number_value(&if plain == "0" {
        "0".to_owned()
    } else {
        format!("{sign}{plain}")
    })
}

/// A decimal number, possibly with an exponent. No hexadecimal, no underscores, no `NaN`, no `1.`.
fn number_from_text(text: &str) -> Option<Value> {
    let trimmed = text.trim();
    let (sign, rest) = match trimmed.strip_prefix('-') {
        Some(rest) => ("-", rest),
        None => ("", trimmed.strip_prefix('+').unwrap_or(trimmed)),
    };
    let (mantissa, exponent) = match rest.find(['e', 'E']) {
        Some(at) => rest.split_at(at),
        None => (rest, ""),
    };
    let (whole, fraction) = match mantissa.split_once('.') {
        Some((whole, fraction)) => (whole, format!(".{fraction}")),
        None => (mantissa, String::new()),
    };
    let whole = match whole.trim_start_matches('0') {
        "" if whole.is_empty() && fraction.is_empty() => return None,
        "" => "0",
        rest => rest,
    };
    number_value(&format!("{sign}{whole}{fraction}{exponent}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn tool(parameters: Value) -> ToolDefinition {
        ToolDefinition {
            name: "t".into(),
            parameters,
            ..ToolDefinition::default()
        }
    }

    fn one(schema: Value, value: Value) -> Result<Value, String> {
        let definition = tool(json!({"type": "object", "properties": {"p": schema}}));
        let arguments = Arguments::from_value(Some(&json!({"p": value})));
        prepare(&arguments, &definition)
            .map(|p| p.args["p"].clone())
            .map_err(|e| e.to_string())
    }

    fn text(value: Result<Value, String>) -> String {
        value.map_or_else(|e| e, |v| v.to_string())
    }

    #[test]
    fn the_coercion_table() {
        let integer = || json!({"type": "integer"});
        for (sent, expected) in [
            (json!("010"), "10"),
            (json!(" 7 "), "7"),
            (json!(123.9), "123"),
            (json!(-12.9), "-12"),
            (json!("1_000"), "1000"),
            (json!("-0"), "0"),
            (json!("7340017340017340017"), "7340017340017340017"),
        ] {
            assert_eq!(text(one(integer(), sent.clone())), expected, "{sent}");
        }
        let big: Value = serde_json::from_str("7340017340017340017").unwrap();
        assert_eq!(text(one(integer(), big)), "7340017340017340017");
        assert_eq!(text(one(integer(), serde_json::from_str("5.0").unwrap())), "5");
        for bad in [
            json!("12.0"),
            json!("0x1f"),
            json!(""),
            json!("abc"),
            json!("1__0"),
            json!(true),
            json!([1]),
        ] {
            let error = one(integer(), bad.clone()).unwrap_err();
            assert!(
                error.starts_with("Parameter 'p' for tool 't': expected Integer"),
                "{bad}: {error}"
            );
        }
        let number = || json!({"type": "number"});
        for (sent, expected) in [
            ("3.5", "3.5"),
            (".5", "0.5"),
            ("-.5", "-0.5"),
            ("+5", "5"),
            (" 3 ", "3"),
            ("1e3", "1e3"),
            ("007.10", "7.10"),
        ] {
            let expected: Value = serde_json::from_str(expected).unwrap();
            assert_eq!(one(number(), json!(sent)).unwrap(), expected, "{sent}");
        }
        for bad in [
            "", "abc", "1.", "1,5", "5abc", "NaN", "Infinity", "0b1", "0x1A", "1_000", "e5", ".",
        ] {
            assert!(
                one(number(), json!(bad))
                    .unwrap_err()
                    .contains("expected Numeric/Float"),
                "{bad}"
            );
        }
        let boolean = || json!({"type": "boolean"});
        assert_eq!(text(one(boolean(), json!("YES"))), "true");
        assert_eq!(text(one(boolean(), json!("0"))), "false");
        assert!(one(boolean(), json!(1)).unwrap_err().contains("expected Boolean"));
        assert_eq!(text(one(json!({"type": "array"}), json!("[1,2]"))), "[1,2]");
        assert!(
            one(json!({"type": "array"}), json!("1,2"))
                .unwrap_err()
                .contains("expected Array")
        );
        assert_eq!(text(one(json!({"type": "object"}), json!("{\"a\":1}"))), "{\"a\":1}");
        assert_eq!(text(one(json!({"type": "string"}), json!(42))), "\"42\"");
        assert!(
            one(json!({"type": "string"}), json!([1, 2]))
                .unwrap_err()
                .contains("expected String")
        );
        let items = json!({"type": "array", "items": {"type": "integer"}});
        assert_eq!(text(one(items, json!(["1", 2]))), "[1,2]");
        let union = json!({"type": ["object", "string"]});
        assert_eq!(text(one(union.clone(), json!("plain"))), "\"plain\"");
        assert!(one(union, json!([1])).is_err());
    }

    #[test]
    fn allowed_values_are_told() {
        let error = one(json!({"type": "string", "enum": ["red", "green"]}), json!("blue")).unwrap_err();
        assert_eq!(
            error,
            "Parameter 'p' for tool 't': value \"blue\" is not one of red, green"
        );
        let error = one(json!({"type": "integer", "maximum": 12}), json!(13)).unwrap_err();
        assert!(
            error.starts_with("Parameter 'p' for tool 't': ") && error.contains("12"),
            "{error}"
        );
    }

    #[test]
    fn null_is_absent_unless_it_is_allowed_or_required() {
        let definition = tool(json!({"type":"object","required":["ns"],"properties":
            {"ns":{"type":"string"},"limit":{"type":"integer"},"sel":{"type":"string"}}}));
        let call = |text: &str| prepare(&Arguments::from_text(text), &definition);
        assert_eq!(
            Value::Object(call("{\"ns\":\"a\",\"limit\":null}").unwrap().args),
            json!({"ns": "a"})
        );
        assert_eq!(
            Value::Object(call("{\"ns\":\"a\",\"sel\":\"\"}").unwrap().args),
            json!({"ns": "a", "sel": ""})
        );
        for bad in ["{\"ns\":null}", "{}", ""] {
            let error = call(bad).unwrap_err().to_string();
            assert_eq!(
                error, "Missing required parameters for tool 't': ns. Provided: None",
                "{bad}"
            );
        }
        assert_eq!(
            one(json!({"type": ["string", "null"]}), json!(null)).unwrap(),
            json!(null)
        );
    }

    #[test]
    fn unknown_names_are_dropped_with_a_note_and_forced_inputs_win() {
        let mut definition = tool(json!({"type": "object", "properties": {"city": {"type": "string"}}}));
        definition.defaults = json!({"unit": "C", "city": "Oslo"}).as_object().unwrap().clone();
        let sent = Arguments::from_text("{\"ctiy\":\"Rome\",\"city\":\"Paris\",\"unit\":\"F\"}");
        let prepared = prepare(&sent, &definition).unwrap();
        assert_eq!(Value::Object(prepared.args), json!({"city": "Oslo", "unit": "C"}));
        assert_eq!(prepared.notes.len(), 1);
        assert!(prepared.notes[0].contains("`ctiy`") && prepared.notes[0].contains("did you mean city?"));
    }

    #[test]
    fn broken_json_is_shown_back() {
        let error = prepare(&Arguments::from_text("{\"id\": 42"), &tool(json!({})))
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("arguments are not valid JSON") && error.contains("{\"id\": 42"),
            "{error}"
        );
    }

    proptest! {
        #[test]
        fn integers_keep_their_digits(text in "-?[1-9][0-9]{0,40}") {
            let value = one(json!({"type": "integer"}), json!(text)).unwrap();
            prop_assert_eq!(value.to_string(), text);
        }

        #[test]
        fn nothing_panics(key in "\\PC{0,6}", value in "\\PC{0,20}", t in prop::sample::select(vec!["string","integer","number","boolean","array","object","null","odd"])) {
            let definition = tool(json!({"type": "object", "properties": {"p": {"type": t}}}));
            let mut map = Map::new();
            map.insert(key, json!(value));
            map.insert("p".into(), json!(value));
            let _ = prepare(&Arguments::Object(map), &definition);
        }
    }
}
