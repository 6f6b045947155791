//! Arguments of tools: whatever schema a tool has and whatever a model sends, nothing breaks down; what is accepted fits
//! the schema, and is accepted again as it is.
#![no_main]

use arbitrary::{Result, Unstructured};
use decanus_chat::{Arguments, ToolDefinition};
use decanus_tool::schema::prepare;
use libfuzzer_sys::fuzz_target;
use serde_json::{Map, Value};

/// Names of parameters; few, so that schema and arguments meet.
const NAMES: &[&str] = &["a", "b", "c", "count", "a/b", "a~b", "", "é", "type", "$ref"];
const TYPES: &[&str] = &[
    "string", "integer", "number", "boolean", "array", "object", "null", "odd",
];
const NUMBERS: &[&str] = &[
    "0",
    "-0",
    "1",
    "5.0",
    "-12.9",
    "1e3",
    "1E-3",
    "0.1",
    "12345678901234567890123",
    "1e400",
    "1e-400",
    "1e99999",
    "-1e-99999",
    "1e999999999",
    "1e-999999999",
    "1e9999999999999999999",
    "9007199254740993",
    "1.5e1",
];
const TEXTS: &[&str] = &[
    "",
    "010",
    " 7 ",
    "1_000",
    "1__0",
    "-0",
    "+5",
    ".5",
    "1.",
    "1e3",
    "1e999999999",
    "NaN",
    "yes",
    "FALSE",
    "t",
    "[1,\"2\"]",
    "[",
    "{\"a\":1}",
    "null",
    "\u{0}",
    "é",
    "2026-11-30",
    "\"",
];
const PATTERNS: &[&str] = &["^a", "[0-9]+$", "(", "(?=a)", ".*", "(a+)+$"];
const PLACES: &[&str] = &[
    "#",
    "#/properties/a",
    "#/$defs/x",
    "#/$defs/y",
    "#nowhere",
    "http://h.test/s",
    "",
];

fuzz_target!(|data: &[u8]| {
    let mut input = Unstructured::new(data);
    let _ = try_one(&mut input);
});

fn try_one(u: &mut Unstructured<'_>) -> Result<()> {
    let definition = ToolDefinition {
        name: "t".into(),
        parameters: if u.ratio(1, 16)? { value(u, 4)? } else { parameters(u)? },
        defaults: if u.ratio(1, 4)? { object(u, 2)? } else { Map::new() },
        ..ToolDefinition::default()
    };
    let arguments = if u.ratio(1, 8)? {
        let text: String = u.arbitrary()?;
        Arguments::from_text(&text)
    } else {
        Arguments::Object(object(u, 4)?)
    };
    let Ok(prepared) = prepare(&arguments, &definition) else {
        return Ok(());
    };
    let schema = definition.wire_parameters();
    let args = Value::Object(prepared.args.clone().into_owned());
    assert!(
        jsonschema::is_valid(&schema, &args),
        "accepted, but does not fit: {schema} {args}"
    );
    let again = prepare(&Arguments::Object(prepared.args.clone().into_owned()), &definition);
    match again {
        Ok(again) => {
            assert_eq!(again.args, prepared.args, "changed when prepared again: {schema}");
            assert!(again.notes.is_empty(), "{:?}", again.notes);
        }
        Err(e) => panic!("refused when prepared again: {e}: {schema} {args}"),
    }
    Ok(())
}

fn parameters(u: &mut Unstructured<'_>) -> Result<Value> {
    let mut map = Map::new();
    map.insert("type".into(), "object".into());
    map.insert("properties".into(), properties(u, 3)?);
    for _ in 0..u.int_in_range(0..=3)? {
        keyword(u, &mut map, 3)?;
    }
    if u.ratio(1, 4)? {
        let mut definitions = Map::new();
        definitions.insert("x".into(), schema(u, 2)?);
        definitions.insert("y".into(), schema(u, 2)?);
        map.insert("$defs".into(), Value::Object(definitions));
    }
    Ok(Value::Object(map))
}

fn properties(u: &mut Unstructured<'_>, depth: u32) -> Result<Value> {
    let mut map = Map::new();
    for _ in 0..u.int_in_range(0..=4)? {
        map.insert(name(u)?, schema(u, depth)?);
    }
    Ok(Value::Object(map))
}

fn schema(u: &mut Unstructured<'_>, depth: u32) -> Result<Value> {
    if depth == 0 || u.ratio(1, 16)? {
        return Ok(match u.int_in_range(0..=2)? {
            0 => Value::Bool(u.arbitrary()?),
            1 => value(u, 1)?,
            _ => Value::Object(Map::new()),
        });
    }
    let mut map = Map::new();
    for _ in 0..u.int_in_range(0..=4)? {
        keyword(u, &mut map, depth - 1)?;
    }
    Ok(Value::Object(map))
}

fn keyword(u: &mut Unstructured<'_>, map: &mut Map<String, Value>, depth: u32) -> Result<()> {
    const COUNTS: &[&str] = &[
        "minLength",
        "maxLength",
        "minItems",
        "maxItems",
        "minProperties",
        "maxProperties",
    ];
    const BOUNDS: &[&str] = &[
        "minimum",
        "maximum",
        "exclusiveMinimum",
        "exclusiveMaximum",
        "multipleOf",
    ];
    const SEVERAL: &[&str] = &["anyOf", "oneOf", "allOf", "prefixItems"];
    const ONE: &[&str] = &[
        "items",
        "additionalProperties",
        "not",
        "if",
        "then",
        "else",
        "contains",
        "propertyNames",
    ];
    let (name, value) = match u.int_in_range(0..=13)? {
        0..=3 => ("type", types(u)?),
        4 => ("enum", values(u, depth)?),
        5 => ("const", value(u, depth)?),
        6 => (*u.choose(BOUNDS)?, number(u)?),
        7 => (*u.choose(COUNTS)?, u.int_in_range(0..=3)?.into()),
        8 => (*u.choose(SEVERAL)?, schemas(u, depth)?),
        9 => (*u.choose(ONE)?, schema(u, depth)?),
        10 => ("properties", properties(u, depth)?),
        11 => ("required", names(u)?),
        12 => ("$ref", (*u.choose(PLACES)?).into()),
        _ => match u.int_in_range(0..=3)? {
            0 => ("pattern", (*u.choose(PATTERNS)?).into()),
            1 => ("uniqueItems", u.arbitrary::<bool>()?.into()),
            2 => ("format", (*u.choose(&["date", "email", "uri", "regex", "odd"])?).into()),
            _ => ("default", value(u, depth)?),
        },
    };
    map.insert(name.into(), value);
    Ok(())
}

fn types(u: &mut Unstructured<'_>) -> Result<Value> {
    if u.ratio(2, 3)? {
        return Ok((*u.choose(TYPES)?).into());
    }
    let count = u.int_in_range(0..=3)?;
    (0..count).map(|_| Ok(Value::from(*u.choose(TYPES)?))).collect()
}

fn schemas(u: &mut Unstructured<'_>, depth: u32) -> Result<Value> {
    let count = u.int_in_range(0..=3)?;
    (0..count).map(|_| schema(u, depth)).collect()
}

fn names(u: &mut Unstructured<'_>) -> Result<Value> {
    let count = u.int_in_range(0..=2)?;
    (0..count).map(|_| name(u).map(Value::String)).collect()
}

fn values(u: &mut Unstructured<'_>, depth: u32) -> Result<Value> {
    let count = u.int_in_range(0..=3)?;
    (0..count).map(|_| value(u, depth)).collect()
}

fn object(u: &mut Unstructured<'_>, depth: u32) -> Result<Map<String, Value>> {
    let count = u.int_in_range(0..=4)?;
    (0..count)
        .map(|_| Ok((name(u)?, value(u, depth.saturating_sub(1))?)))
        .collect()
}

fn value(u: &mut Unstructured<'_>, depth: u32) -> Result<Value> {
    Ok(match u.int_in_range(0..=if depth == 0 { 3 } else { 5 })? {
        0 => Value::Null,
        1 => Value::Bool(u.arbitrary()?),
        2 => number(u)?,
        3 => Value::String(text(u)?),
        4 => values(u, depth - 1)?,
        _ => Value::Object(object(u, depth - 1)?),
    })
}

fn number(u: &mut Unstructured<'_>) -> Result<Value> {
    Ok(match u.int_in_range(0..=3)? {
        0 => u.arbitrary::<i64>()?.into(),
        1 => u.arbitrary::<f64>()?.into(),
        2 => u.int_in_range(-3..=20)?.into(),
        _ => serde_json::from_str(u.choose(NUMBERS)?).unwrap_or(Value::Null),
    })
}

fn text(u: &mut Unstructured<'_>) -> Result<String> {
    if u.ratio(3, 4)? {
        return Ok((*u.choose(TEXTS)?).to_owned());
    }
    u.arbitrary()
}

fn name(u: &mut Unstructured<'_>) -> Result<String> {
    if u.ratio(7, 8)? {
        return Ok((*u.choose(NAMES)?).to_owned());
    }
    u.arbitrary()
}
