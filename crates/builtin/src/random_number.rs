//! A random whole number: models are bad dice.

use decanus_chat::Effect;
use decanus_tool::{FnTool, ToolError};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;

/// Arguments of `random_number`.
#[derive(Deserialize, JsonSchema)]
pub struct Range {
    /// The smallest number that may come; 1 when left out.
    min: Option<i64>,
    /// The largest number that may come; 100 when left out.
    max: Option<i64>,
}

pub(crate) fn tool() -> FnTool<Range> {
    FnTool::new(
        "random_number",
        "Picks a random whole number, both ends included.",
        |args: Range, _| async move { pick(args.min.unwrap_or(1), args.max.unwrap_or(100)) },
    )
    // It changes nothing, but two equal calls are two throws: they must not be merged into one.
    .effect(Effect::Unknown)
    .volatile()
    .example("Throw a die.", json!({"min": 1, "max": 6}))
    .example("Pick a number between 10 and 20.", json!({"min": 10, "max": 20}))
    .example("Give me a random number.", json!({}))
}

fn pick(min: i64, max: i64) -> Result<i64, ToolError> {
    if min > max {
        return Err(ToolError::argument(format!(
            "min ({min}) must not be larger than max ({max})"
        )));
    }
    Ok(fastrand::i64(min..=max))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn worked_examples() {
        assert_eq!(pick(5, 5), Ok(5));
        for (min, max) in [(9, 3), (200, 100)] {
            let error = pick(min, max).unwrap_err().to_string();
            assert!(
                error.contains(&min.to_string()) && error.contains(&max.to_string()),
                "{error}"
            );
        }
    }

    #[test]
    fn both_ends_come() {
        let seen: std::collections::BTreeSet<i64> = (0..500).map(|_| pick(1, 3).unwrap()).collect();
        assert_eq!(seen.into_iter().collect::<Vec<_>>(), [1, 2, 3]);
        pick(i64::MIN, i64::MAX).unwrap();
    }
}
