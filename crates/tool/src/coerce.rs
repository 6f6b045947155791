//! Values as the types that a schema declares.

use serde_json::{Number, Value};

use crate::schema::SHOWN;

/// A value as an error shows it.
pub(crate) fn brief(value: &Value) -> String {
    decanus_base::text::brief(&value.to_string(), SHOWN)
}

/// The types that a schema declares.
pub(crate) fn types(schema: &Value) -> impl Iterator<Item = &str> + Clone {
    let (one, several) = match schema.get("type") {
        Some(Value::String(t)) => (Some(t.as_str()), [].iter()),
        Some(Value::Array(list)) => (None, list.iter()),
        _ => (None, [].iter()),
    };
    one.into_iter().chain(several.filter_map(Value::as_str))
}

/// The value as the declared type when that is another value, or why it is not of the type. Without a declared type
/// everything fits; of several types the first that fits without a change wins, then the first that can be had by coercion.
pub(crate) fn coerced(value: &Value, schema: &Value) -> Result<Option<Value>, String> {
    let types = types(schema);
    let mut declared = types.clone().peekable();
    if declared.peek().is_none() {
        return Ok(chosen(value, schema));
    }
    if declared.any(|t| is_of(value, t)) {
        return coerced_items(value, schema);
    }
    // Of a text and an object or list, a number is neither; only where a text is all that can be meant is it made one.
    let takes_structure = types.clone().any(|t| t == "object" || t == "array");
    let is_meant = |t: &str| t != "string" || !takes_structure;
    let mut first_error = None;
    for t in types.clone() {
        if !is_meant(t) {
            continue;
        }
        match to_type(value, t) {
            Ok(v) => {
                let items = coerced_items(&v, schema)?;
                return Ok(Some(items.unwrap_or(v)));
            }
            Err(e) => first_error = first_error.or(Some(e)),
        }
    }
    let mut names = types.filter(|t| *t != "null").map(name);
    Err(match (names.next(), names.next()) {
        (Some(first), Some(second)) => {
            let all: Vec<&str> = [first, second].into_iter().chain(names).collect();
            mismatch(&all.join(" or "), value)
        }
        _ => first_error.unwrap_or_default(),
    })
}

/// Of values that are listed without a type (`{"enum": [1, true, "all"]}`), the one that a text stands for.
fn chosen(value: &Value, schema: &Value) -> Option<Value> {
    let (Value::String(text), Some(Value::Array(listed))) = (value, schema.get("enum")) else {
        return None;
    };
    let is_it = |v: &&Value| {
        let spelled = v.to_string();
        !v.is_string() && spelled == text.trim()
    };
    // A text that is listed itself is meant as it is.
    (!listed.contains(value)).then(|| listed.iter().find(is_it).cloned())?
}

/// A type as errors name it.
fn name(t: &str) -> &str {
    match t {
        "string" => "String",
        "integer" => "Integer",
        "number" => "Numeric/Float",
        "boolean" => "Boolean",
        "array" => "Array",
        "object" => "Hash",
        other => other,
    }
}

/// A list whose items are to be of a type.
fn coerced_items(value: &Value, schema: &Value) -> Result<Option<Value>, String> {
    let Value::Array(items) = value else { return Ok(None) };
    let Some(of_items) = schema.get("items").filter(|_| types(schema).any(|t| t == "array")) else {
        return Ok(None);
    };
    let mut changed: Option<Vec<Value>> = None;
    for (i, item) in items.iter().enumerate() {
        if let Some(other) = coerced(item, of_items).map_err(|e| format!("item {i}: {e}"))? {
            changed.get_or_insert_with(|| items.clone())[i] = other;
        }
    }
    Ok(changed.map(Value::Array))
}

fn is_of(value: &Value, t: &str) -> bool {
    match t {
        "string" => value.is_string(),
        "integer" => value.as_number().is_some_and(|n| is_integer_text(n.as_str())),
        "number" => value.is_number(),
        "boolean" => value.is_boolean(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        "null" => value.is_null(),
        _ => true,
    }
}

fn to_type(value: &Value, t: &str) -> Result<Value, String> {
    let fail = |expected: &str| Err(mismatch(expected, value));
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

fn mismatch(expected: &str, value: &Value) -> String {
    format!("expected {expected}, got {} ({})", kind(value), brief(value))
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
