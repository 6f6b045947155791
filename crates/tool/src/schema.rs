//! From what a model or a person sends to arguments that fit a tool's schema.
//!
//! Models send numbers as texts, JSON inside texts and null for what they leave out. What is unmistakable is repaired;
//! what is not comes back as an error that names the parameter, the reason and the allowed values.

use std::borrow::Cow;

use decanus_chat::{Arguments, ToolDefinition};
use serde_json::Value;

pub use crate::checker::Checker;
use crate::checker::{Compiled, required};
use crate::coerce::{brief, coerced};
use crate::tool::{Args, ToolError};

/// Characters of a value that an error shows.
pub(crate) const SHOWN: usize = 200;

/// Arguments that fit, and what was done to make them fit that the caller should know.
#[derive(Debug, PartialEq)]
pub struct Prepared<'a> {
    /// The arguments; what was sent, when nothing had to be done to it.
    pub args: Cow<'a, Args>,
    /// Such as names that were dropped.
    pub notes: Vec<String>,
}

/// [`prepare_with`] for a single call.
///
/// # Errors
/// Those of [`prepare_with`].
pub fn prepare(arguments: &Arguments, definition: &ToolDefinition) -> Result<Prepared<'static>, ToolError> {
    let Prepared { args, notes } = prepare_with(arguments, definition, &Checker::default())?;
    let args = Cow::Owned(args.into_owned());
    Ok(Prepared { args, notes })
}

/// Makes arguments fit a tool's schema: forced inputs are set, null for an optional parameter is as if it was absent,
/// unknown names are dropped with a note, values are coerced to the declared type, then everything is validated.
///
/// # Errors
/// An argument error that names the parameter and the tool.
pub fn prepare_with<'a>(
    arguments: &'a Arguments,
    definition: &ToolDefinition,
    checker: &Checker,
) -> Result<Prepared<'a>, ToolError> {
    let sent = match arguments {
        Arguments::Object(map) => map,
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
    let compiled = checker.of(definition)?;
    if definition.defaults.is_empty() && compiled.fits(sent) {
        return Ok(Prepared {
            args: Cow::Borrowed(sent),
            notes: Vec::new(),
        });
    }
    // Declared order, whatever order they were sent in: equal calls are then equal texts.
    let mut args = Args::with_capacity(compiled.properties.len());
    let (mut known, mut misses, mut misfit) = (0, compiled.requires_others, None);
    for property in &compiled.properties {
        let value = sent.get(&property.name);
        known += usize::from(value.is_some());
        let value = value.filter(|v| !v.is_null() || property.nullable);
        let Some(value) = definition.defaults.get(&property.name).or(value) else {
            misses |= property.required;
            continue;
        };
        match coerced(value, &property.schema) {
            Ok(changed) => {
                args.insert(property.name.clone(), changed.unwrap_or_else(|| value.clone()));
            }
            Err(why) => {
                let name = &property.name;
                let why = format!("Parameter '{name}' for tool '{}': {why}", definition.name);
                misfit.get_or_insert_with(|| ToolError::argument(why));
            }
        }
    }
    let mut notes = Vec::new();
    if known < sent.len() {
        others(sent, definition, compiled, &mut args, &mut notes);
    }
    for (name, value) in &definition.defaults {
        if compiled.property(name).is_none() {
            args.insert(name.clone(), value.clone());
        }
    }
    if misses {
        check_required(sent, definition, compiled)?;
    }
    if let Some(misfit) = misfit {
        return Err(misfit);
    }
    let args = validate(args, compiled, definition)?;
    Ok(Prepared {
        args: Cow::Owned(args),
        notes,
    })
}

/// What was sent beside the properties: let through, or dropped with a note.
fn others(sent: &Args, definition: &ToolDefinition, compiled: &Compiled, args: &mut Args, notes: &mut Vec<String>) {
    for (name, value) in sent {
        if compiled.property(name).is_some() || definition.defaults.contains_key(name) {
            continue;
        }
        if !compiled.open {
            let names = compiled.properties.iter().map(|p| p.name.as_str());
            let guess = decanus_base::names::did_you_mean(name, names);
            notes.push(format!(
                "{} has no parameter `{name}`; it was ignored{guess}",
                definition.name
            ));
        } else if !value.is_null() {
            args.insert(name.clone(), value.clone());
        }
    }
}

fn check_required(sent: &Args, definition: &ToolDefinition, compiled: &Compiled) -> Result<(), ToolError> {
    let is_given = |name: &str| {
        let property = compiled.property(name);
        let may_be_null = property.is_some_and(|p| p.nullable);
        let is_kept = |v: &Value| (property.is_some() || compiled.open) && (!v.is_null() || may_be_null);
        definition.defaults.contains_key(name) || sent.get(name).is_some_and(is_kept)
    };
    let missing: Vec<&str> = required(&compiled.schema).filter(|name| !is_given(name)).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let forced = definition.defaults.keys().filter(|name| !sent.contains_key(*name));
    let provided: Vec<&str> = sent
        .keys()
        .chain(forced)
        .map(String::as_str)
        .filter(|name| is_given(name))
        .collect();
    Err(ToolError::argument(format!(
        "Missing required parameters for tool '{}': {}. Provided: {}",
        definition.name,
        missing.join(", "),
        if provided.is_empty() {
            "None".to_owned()
        } else {
            provided.join(", ")
        },
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

fn validate(args: Args, compiled: &Compiled, definition: &ToolDefinition) -> Result<Args, ToolError> {
    let Compiled { schema, validator, .. } = compiled;
    let value = Value::Object(args);
    // Quicker than to ask for the errors, of which there are seldom any.
    let error = if validator.is_valid(&value) {
        None
    } else {
        validator.iter_errors(&value).next()
    };
    let Some(error) = error else {
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::{Map, json};

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
        assert!(one(union.clone(), json!([1])).is_err());
        for scalar in [json!(5), json!(true)] {
            let error = one(union.clone(), scalar).unwrap_err();
            assert!(error.contains("expected Hash or String, got"), "{error}");
        }
        assert_eq!(text(one(json!({"type": ["string", "null"]}), json!(5))), "\"5\"");
    }

    #[test]
    fn a_text_stands_for_the_listed_value_that_it_spells() {
        let listed = json!({"enum": [1, 2.5, true, "2", "all"]});
        for (given, meant) in [
            (json!("1"), json!(1)),
            (json!(" 2.5 "), json!(2.5)),
            (json!("true"), json!(true)),
            // A text that is listed is itself.
            (json!("2"), json!("2")),
            (json!("all"), json!("all")),
            (json!(1), json!(1)),
        ] {
            assert_eq!(one(listed.clone(), given), Ok(meant));
        }
        assert!(one(listed, json!("3")).is_err());
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
            Value::Object(call("{\"ns\":\"a\",\"limit\":null}").unwrap().args.into_owned()),
            json!({"ns": "a"})
        );
        assert_eq!(
            Value::Object(call("{\"ns\":\"a\",\"sel\":\"\"}").unwrap().args.into_owned()),
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
        assert_eq!(
            Value::Object(prepared.args.into_owned()),
            json!({"city": "Oslo", "unit": "C"})
        );
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

    /// Whether arguments go to the tool as they were sent.
    fn untouched(definition: &ToolDefinition, sent: Value) -> bool {
        let arguments = Arguments::from_value(Some(&sent));
        let checker = Checker::default();
        let args = prepare_with(&arguments, definition, &checker).unwrap().args;
        // However it was come by, the outcome is that of the whole schema.
        assert_eq!(
            fault(&definition.wire_parameters(), &Value::Object(args.clone().into_owned())),
            Ok(None)
        );
        matches!(args, Cow::Borrowed(_))
    }

    #[test]
    fn what_fits_is_left_as_it_is() {
        let schema = json!({"type": "object", "required": ["b"], "additionalProperties": false, "properties": {
            "a": {"type": "string"}, "b": {"type": "integer", "maximum": 9},
            "c": {"type": "array", "items": {"type": "integer"}}, "d": {"type": ["string", "null"]}}});
        let mut definition = tool(schema);
        for (sent, is_left) in [
            (json!({"a": "x", "b": 1, "c": [1, 2], "d": "y"}), true),
            (json!({"b": 1}), true),
            (json!({"b": 1, "c": [1, "2"]}), false),
            (json!({"b": 1, "a": "x"}), false),
            (json!({"b": "1"}), false),
            (json!({"b": 1, "x": 1}), false),
            (json!({"b": 1, "d": null}), false),
            (serde_json::from_str("{\"b\": 5.0}").unwrap(), false),
        ] {
            assert_eq!(untouched(&definition, sent.clone()), is_left, "{sent}");
        }
        for bad in [
            json!({"a": "x"}),
            json!({"b": 10}),
            json!({"a": "x", "c": [1]}),
            json!({"b": 1, "c": [{}]}),
        ] {
            assert!(
                prepare(&Arguments::from_value(Some(&bad)), &definition).is_err(),
                "{bad}"
            );
        }
        definition.defaults = json!({"a": "set"}).as_object().unwrap().clone();
        assert!(!untouched(&definition, json!({"b": 1})));
    }

    #[test]
    fn what_a_schema_says_of_the_whole_holds() {
        for (whole, bad) in [
            (json!({"maxProperties": 1}), json!({"a": 1, "b": 2})),
            (json!({"not": {"required": ["a"]}}), json!({"a": 1})),
            (json!({"required": ["c"]}), json!({"a": 1})),
            (json!({"dependentRequired": {"a": ["b"]}}), json!({"a": 1})),
            (
                json!({"$defs": {"x": {"maximum": 0}}, "properties": {"a": {"$ref": "#/$defs/x"}}}),
                json!({"a": 1}),
            ),
        ] {
            let mut schema =
                json!({"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}});
            schema
                .as_object_mut()
                .unwrap()
                .extend(whole.as_object().unwrap().clone());
            let sent = Arguments::from_value(Some(&bad));
            assert!(prepare(&sent, &tool(schema)).is_err(), "{whole}");
        }
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
