//! Arithmetic on two numbers, with decimals as people write them.

use bigdecimal::num_traits::{ToPrimitive, Zero};
use bigdecimal::{BigDecimal, Context};
use decanus_chat::Effect;
use decanus_tool::{FnTool, ToolError};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Number, json};

/// Arguments of `calculator`.
#[derive(Deserialize, JsonSchema)]
pub struct Calculation {
    /// The first number.
    #[schemars(with = "f64")]
    operand1: Number,
    /// The second number.
    #[schemars(with = "f64")]
    operand2: Number,
    /// What to do with them: add, subtract, multiply or divide (or + - * /).
    #[schemars(extend("examples" = ["add", "subtract", "multiply", "divide"]))]
    operation: String,
}

pub(crate) fn tool() -> FnTool<Calculation> {
    FnTool::new(
        "calculator",
        "Adds, subtracts, multiplies or divides two numbers.",
        |args: Calculation, _| async move { calculate(&args.operand1, &args.operand2, &args.operation) },
    )
    .effect(Effect::ReadOnly)
    .example(
        "What is 12 plus 30?",
        json!({"operand1": 12, "operand2": 30, "operation": "add"}),
    )
    .example(
        "How much is 9 times 8?",
        json!({"operand1": 9, "operand2": 8, "operation": "multiply"}),
    )
    .example(
        "Divide 84 by 4.",
        json!({"operand1": 84, "operand2": 4, "operation": "divide"}),
    )
    .example(
        "What is 50 minus 18?",
        json!({"operand1": 50, "operand2": 18, "operation": "subtract"}),
    )
    .example(
        "Subtract 3 from 11.",
        json!({"operand1": 11, "operand2": 3, "operation": "subtract"}),
    )
    .example(
        "What is the product of 6 and 2.5?",
        json!({"operand1": 6, "operand2": 2.5, "operation": "multiply"}),
    )
    .example(
        "What is the sum of 40 and 17?",
        json!({"operand1": 40, "operand2": 17, "operation": "add"}),
    )
    .example(
        "Take 5 away from 60.",
        json!({"operand1": 60, "operand2": 5, "operation": "subtract"}),
    )
    .example(
        "Share 35 sweets among five children. How many does each get?",
        json!({"operand1": 35, "operand2": 5, "operation": "divide"}),
    )
    .example(
        "There are three bags with nine marbles each. How many marbles are there?",
        json!({"operand1": 3, "operand2": 9, "operation": "multiply"}),
    )
    .example(
        "I had 14 books and bought 6 more. How many do I have?",
        json!({"operand1": 14, "operand2": 6, "operation": "add"}),
    )
    .example(
        "What is the difference between 90 and 45?",
        json!({"operand1": 90, "operand2": 45, "operation": "subtract"}),
    )
}

/// The exact result; a quotient without an end is the nearest 64-bit float, written as short as it can be.
fn calculate(a: &Number, b: &Number, operation: &str) -> Result<Number, ToolError> {
    let read = |n: &Number| -> Result<BigDecimal, ToolError> {
        let value: BigDecimal = n
            .to_string()
            .parse()
            .map_err(|_| ToolError::argument(format!("Invalid numeric input: Op1='{a}', Op2='{b}'")))?;
        check_range(&value)?;
        Ok(value)
    };
    let (x, y) = (read(a)?, read(b)?);
    let result = match operation.to_lowercase().as_str() {
        "add" | "+" => x + y,
        "subtract" | "-" => x - y,
        "multiply" | "*" => x * y,
        "divide" | "/" if y.is_zero() => return Err(ToolError::argument("Division by zero")),
        "divide" | "/" => return divide(&x, &y),
        _ => {
            let shown = decanus_base::text::brief(operation, 60);
            let text = format!("Unsupported operation: '{shown}'; use add, subtract, multiply or divide");
            return Err(ToolError::argument(text));
        }
    };
    number(&result)
}

fn divide(x: &BigDecimal, y: &BigDecimal) -> Result<Number, ToolError> {
    let digits = std::num::NonZeroU64::new(60).unwrap_or(std::num::NonZeroU64::MIN);
    let quotient = Context::default().with_precision(digits);
    let quotient = quotient.multiply(x, &y.inverse_with_context(&quotient));
    // The inverse may be rounded where the quotient is not (1/3 of 6), so look for a short decimal that is exact.
    let rounded = quotient.with_prec(30).normalized();
    check_range(&rounded)?;
    if &rounded * y == *x {
        return number(&rounded);
    }
    let float = quotient.to_f64().filter(|f| f.is_finite()).and_then(Number::from_f64);
    float.ok_or_else(out_of_range)
}

fn out_of_range() -> ToolError {
    ToolError::argument("The result is out of range")
}

/// Numbers are kept within what a 64-bit float can hold, so that no two short arguments make gigabytes of digits.
fn check_range(value: &BigDecimal) -> Result<(), ToolError> {
    if value.is_zero() {
        return Ok(());
    }
    let magnitude = value.digits() as i64 - value.fractional_digit_count();
    let fits = (-323..=308).contains(&(magnitude - 1)) || value.to_f64().is_some_and(|f| f.is_finite() && f != 0.0);
    if fits && magnitude <= 309 {
        Ok(())
    } else {
        Err(out_of_range())
    }
}

fn number(value: &BigDecimal) -> Result<Number, ToolError> {
    check_range(value)?;
    if !value.to_f64().is_some_and(f64::is_finite) {
        return Err(out_of_range());
    }
    let normal = value.normalized();
    let text = if normal.fractional_digit_count() > 40 {
        normal.to_scientific_notation()
    } else {
        normal.to_plain_string()
    };
    text.parse().map_err(|_| out_of_range())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn calc(a: &str, b: &str, operation: &str) -> String {
        let read = |s: &str| s.parse::<Number>().unwrap();
        calculate(&read(a), &read(b), operation).map_or_else(|e| e.to_string(), |n| n.to_string())
    }

    #[test]
    fn worked_examples() {
        assert_eq!(calc("10", "5", "add"), "15");
        assert_eq!(calc("5", "3.5", "add"), "8.5");
        assert_eq!(calc("2", "8", "MULTIPLY"), "16");
        assert_eq!(calc("0.1", "0.2", "+"), "0.3");
        assert_eq!(calc("10", "4", "/"), "2.5");
        assert_eq!(calc("10", "5", "multiply"), "50");
        assert_eq!(calc("5", "3", "divide"), "1.6666666666666667");
        assert_eq!(calc("6", "3", "divide"), "2");
        assert_eq!(calc("1", "8", "divide"), "0.125");
        assert_eq!(calc("10", "0", "divide"), "Division by zero");
        assert_eq!(calc("10", "-0.0", "/"), "Division by zero");
        assert!(calc("10", "5", "modulo").contains("Unsupported operation: 'modulo'"));
        assert_eq!(calc("1e308", "10", "*"), "The result is out of range");
        assert_eq!(calc("1e999999999", "1", "+"), "The result is out of range");
        assert_eq!(calc("7340017340017340017", "1", "+"), "7340017340017340018");
        assert_eq!(calc("100", "-30", "-"), "130");
        assert_eq!(calc("0", "5", "/"), "0");
    }

    #[test]
    fn quotients_are_those_of_floats_where_they_have_no_end() {
        for (a, b) in [(1i32, 3i32), (2, 7), (100, 9), (22, 7), (1, 49)] {
            let expected = f64::from(a) / f64::from(b);
            assert_eq!(calc(&a.to_string(), &b.to_string(), "/"), expected.to_string());
        }
    }
}
