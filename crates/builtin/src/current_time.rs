//! What time it is: models don't know.

use decanus_chat::Effect;
use decanus_tool::{FnTool, ToolError};
use jiff::fmt::strtime;
use jiff::tz::{Offset, TimeZone};
use jiff::{Timestamp, ZonedDateTime};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

/// Arguments of `current_time`.
#[derive(Deserialize, JsonSchema)]
pub struct Moment {
    /// `UTC` (the default), `local`, an offset such as `+05:30`, or an IANA name such as `Europe/Oslo`.
    timezone: Option<String>,
    /// How to write it, in the directives of strftime; ISO 8601 when left out.
    format: Option<String>,
}

pub(crate) fn tool() -> FnTool<Moment> {
    FnTool::new(
        "current_time",
        "Tells the current date and time, in any time zone.",
        |args: Moment, _| async move {
            describe(
                Timestamp::now(),
                args.timezone.as_deref().unwrap_or(""),
                args.format.as_deref().unwrap_or(""),
            )
        },
    )
    .effect(Effect::ReadOnly)
    .volatile()
    .example("What time is it?", json!({}))
    .example(
        "What time is it in Paris right now?",
        json!({"timezone": "Europe/Paris"}),
    )
    .example("What is today's date?", json!({}))
    .example(
        "Give me the current time in New York.",
        json!({"timezone": "America/New_York"}),
    )
    .example("Tell me what time it is, please.", json!({}))
    .example("What's the time in Singapore?", json!({"timezone": "Asia/Singapore"}))
    .example("Which day of the week is it now?", json!({}))
    .example("What time is it in UTC?", json!({"timezone": "UTC"}))
    .example("Do you know the time?", json!({}))
    .example("Which date is it in Cairo?", json!({"timezone": "Africa/Cairo"}))
    .example("Could you look at the clock for me?", json!({}))
    .example("Current time in Melbourne", json!({"timezone": "Australia/Melbourne"}))
}

fn describe(now: Timestamp, timezone: &str, format: &str) -> Result<Value, ToolError> {
    let wanted = timezone.trim();
    let zone = zone(wanted)?;
    let zoned = now.to_zoned_datetime(zone);
    let zulu = wanted.is_empty() || wanted.eq_ignore_ascii_case("utc") || wanted.eq_ignore_ascii_case("z");
    let iso = write(
        &zoned,
        if zulu {
            "%Y-%m-%dT%H:%M:%SZ"
        } else {
            "%Y-%m-%dT%H:%M:%S%:z"
        },
    )?;
    let formatted = if format.is_empty() {
        iso.clone()
    } else {
        write(&zoned, format)?
    };
    Ok(json!({
        "iso8601": iso,
        "formatted": formatted,
        "epoch": now.as_second(),
        "timezone": if wanted.is_empty() { "UTC" } else { wanted },
    }))
}

fn write(zoned: &ZonedDateTime, format: &str) -> Result<String, ToolError> {
    let bad = |why: String| {
        ToolError::argument(format!(
            "Invalid format '{}': {why}",
            decanus_base::text::brief(format, 80)
        ))
    };
    // A lone `%` at the end is a mistake; unknown directives are left as they are.
    let trailing = format.bytes().rev().take_while(|b| *b == b'%').count();
    if trailing % 2 == 1 {
        return Err(bad("it ends with a lone %".into()));
    }
    let config = strtime::Config::new().lenient(true);
    let mut out = String::new();
    strtime::BrokenDownTime::from(zoned)
        .format_with_config(&config, format, &mut out)
        .map_err(|e| bad(e.to_string()))?;
    Ok(out)
}

fn zone(wanted: &str) -> Result<TimeZone, ToolError> {
    match wanted.to_ascii_lowercase().as_str() {
        "" | "utc" | "z" => return Ok(TimeZone::UTC),
        "local" => return Ok(TimeZone::system()),
        _ => {}
    }
    if let Some(offset) = offset(wanted) {
        return offset.map(TimeZone::fixed).ok_or_else(|| {
            ToolError::argument(format!(
                "Invalid format or timezone '{wanted}': hours go to 23 and minutes to 59"
            ))
        });
    }
    // An IANA name has a region, so that `EST` and the like, which mean different things to different people, stay out.
    let named = wanted.contains('/').then(|| TimeZone::get(wanted).ok()).flatten();
    named.ok_or_else(|| {
        let shown = decanus_base::text::brief(wanted, 60);
        ToolError::argument(format!(
            "Unsupported timezone '{shown}': use UTC, local, a fixed offset such as +05:30, or an IANA name such as Europe/Oslo"
        ))
    })
}

/// `+HH:MM` or `+HHMM`: outer `None` when it is not of this form, inner `None` when it is out of range.
fn offset(text: &str) -> Option<Option<Offset>> {
    let sign = match text.as_bytes().first()? {
        b'+' => 1,
        b'-' => -1,
        _ => return None,
    };
    let digits = text[1..].replacen(':', "", 1);
    let colon_is_placed = !text.contains(':') || text.find(':') == Some(3);
    if digits.len() != 4 || !digits.bytes().all(|b| b.is_ascii_digit()) || !colon_is_placed {
        return None;
    }
    let (hours, minutes): (i32, i32) = (digits[..2].parse().ok()?, digits[2..].parse().ok()?);
    let valid = hours <= 23 && minutes <= 59;
    Some(
        valid
            .then(|| Offset::from_seconds(sign * (hours * 3600 + minutes * 60)).ok())
            .flatten(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(timezone: &str, format: &str) -> Result<Value, String> {
        let now = Timestamp::from_second(1_781_445_909).unwrap();
        describe(now, timezone, format).map_err(|e| e.to_string())
    }

    #[test]
    fn worked_examples() {
        let utc = json!({"iso8601": "2026-06-14T14:05:09Z", "formatted": "2026-06-14T14:05:09Z", "epoch": 1_781_445_909, "timezone": "UTC"});
        assert_eq!(at("", "").unwrap(), utc);
        assert_eq!(at("+05:30", "").unwrap()["iso8601"], "2026-06-14T19:35:09+05:30");
        assert_eq!(at(" +0530 ", "").unwrap()["timezone"], "+0530");
        let west = at("-0800", "").unwrap();
        assert_eq!(
            (&west["iso8601"], &west["timezone"]),
            (&json!("2026-06-14T06:05:09-08:00"), &json!("-0800"))
        );
        assert_eq!(at("", "%A, %B %-d, %Y").unwrap()["formatted"], "Sunday, June 14, 2026");
        assert_eq!(at("-00:00", "").unwrap()["iso8601"], "2026-06-14T14:05:09+00:00");
        assert_eq!(at("utc", "").unwrap()["timezone"], "utc");
        assert_eq!(at("Europe/Oslo", "").unwrap()["iso8601"], "2026-06-14T16:05:09+02:00");
        assert_eq!(at("", "%d.%m.%Y %H:%M").unwrap()["formatted"], "14.06.2026 14:05");
        for bad in ["EST", "+5:30", "+05", "UTC+1", "Nowhere/Land", "Mars"] {
            assert!(at(bad, "").unwrap_err().contains("Unsupported timezone"), "{bad}");
        }
        for bad in ["+24:00", "+05:60", "+99:99"] {
            assert!(at(bad, "").unwrap_err().contains("Invalid format or timezone"), "{bad}");
        }
    }

    #[test]
    fn odd_formats() {
        assert!(at("", "%H%").unwrap_err().contains("lone %"));
        assert_eq!(at("", "100%% %H").unwrap()["formatted"], "100% 14");
        assert_eq!(at("", "%E").unwrap()["formatted"], "%E");
    }
}
