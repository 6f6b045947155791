//! Whole bodies that should be JSON.

use decanus_base::text::brief;
use serde_json::Value;

use crate::dialect::Fault;
use crate::halves::repair;
use crate::refusal;

/// Reads a body as JSON; a byte order mark before it is no part of it.
///
/// # Errors
/// [`Fault::Incomplete`] when it is cut, else [`Fault::Malformed`] with what it is instead.
pub fn parse(body: &[u8]) -> Result<Value, Fault> {
    let body = body.strip_prefix("\u{feff}".as_bytes()).unwrap_or(body);
    serde_json::from_slice(body).or_else(|e| {
        // Half a character is no reason to lose the answer.
        let repaired = std::str::from_utf8(body).map(repair);
        let read = repaired.ok().and_then(|text| serde_json::from_str(&text).ok());
        read.ok_or_else(|| malformed(body, &e))
    })
}

/// Reads the data of an event as a JSON object.
///
/// # Errors
/// [`Fault::Malformed`]; an error that comes in a list.
pub fn parse_event(data: &str) -> Result<Value, Fault> {
    match serde_json::from_str(data) {
        Ok(value @ Value::Object(_)) => Ok(value),
        Ok(other) => Err(refusal::from_value(&other)
            .unwrap_or_else(|| Fault::Malformed(format!("an event is not an object: {}", brief(data, 200))))),
        Err(e) => Err(Fault::Malformed(format!(
            "an event is not JSON ({e}): {}",
            brief(data, 200)
        ))),
    }
}

/// Why a body is no JSON.
pub(crate) fn malformed(body: &[u8], error: &serde_json::Error) -> Fault {
    let text = String::from_utf8_lossy(&body[..body.len().min(2000)]);
    if text.trim().is_empty() {
        return Fault::Malformed("the body is empty".into());
    }
    if refusal::looks_like_html(&text) {
        return Fault::Malformed(
            "it is a web page instead of JSON; check that `url` is the API's base, such as https://host/v1".into(),
        );
    }
    if error.is_eof() {
        return Fault::Incomplete(format!("the body of {} bytes is cut", body.len()));
    }
    Fault::Malformed(format!("not JSON ({error}): {}", brief(text.trim(), 200)))
}
