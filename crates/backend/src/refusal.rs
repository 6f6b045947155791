//! The errors that providers put into bodies and streams: many shapes, one meaning.

use decanus_base::text::brief;
use serde_json::Value;

use crate::dialect::Fault;

/// Reads the body of an answer that is an error by its status.
pub fn from_body(status: u16, body: &[u8]) -> Fault {
    let text = String::from_utf8_lossy(body);
    let text = text.trim();
    if let Ok(value) = serde_json::from_str::<Value>(text) {
        return from_value(&value).unwrap_or_else(|| refused(status, None, brief(text, 500)));
    }
    let message = if text.is_empty() {
        "the answer is empty".to_owned()
    } else if let Some(title) = page_title(text).filter(|_| status >= 500) {
        // What stands before the server has no answer of it; the URL is right.
        format!("the answer is a web page: {title}")
    } else if looks_like_html(text) {
        "the answer is a web page; check that `url` is the API's base, such as https://host/v1".to_owned()
    } else {
        brief(text, 500)
    };
    refused(status, None, message)
}

/// Reads an error object: `{"error": {…}}`, `{"error": "…"}`, `{"detail": …}`, `{"message": …}`, or a list of one of
/// these. `None` when the value is no error.
pub fn from_value(value: &Value) -> Option<Fault> {
    let value = match value {
        Value::Array(items) => items.first()?,
        other => other,
    };
    let map = value.as_object()?;
    let set = |name: &str| map.get(name).filter(|v| !is_nothing(v));
    if let Some(error) = set("error").or_else(|| set("errors")) {
        let error = error.as_array().and_then(|a| a.first()).unwrap_or(error);
        return Some(from_error(error, map));
    }
    let answer = ["choices", "id"].iter().any(|n| map.contains_key(*n));
    let message = set("detail").or_else(|| set("message")).filter(|_| !answer)?;
    Some(classify(None, map.get("type").and_then(text), details(message)))
}

/// Some servers send `error` with every answer.
fn is_nothing(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(map) => map.is_empty(),
        _ => false,
    }
}

/// Reads what stands under `error`; `around` is the object it stands in.
pub fn from_error(error: &Value, around: &serde_json::Map<String, Value>) -> Fault {
    let Some(map) = error.as_object() else {
        return classify(None, around.get("type").and_then(text), details(error));
    };
    let code = map.get("code").and_then(text);
    let number = code
        .as_deref()
        .and_then(|c| c.parse::<u16>().ok())
        .filter(|n| (400..600).contains(n));
    // A code that only repeats the status says less than the type.
    let word = code.filter(|c| c.parse::<u64>().is_err());
    let kind = map
        .get("type")
        .and_then(text)
        .or_else(|| map.get("status").and_then(text));
    let message = ["message", "detail", "msg"]
        .iter()
        .find_map(|n| map.get(*n))
        .map(details);
    let message = message
        .filter(|m| !m.is_empty())
        .unwrap_or_else(|| brief(&error.to_string(), 500));
    let both = [word.as_deref(), kind.as_deref()]
        .into_iter()
        .flatten()
        .any(is_too_long_code);
    if both {
        return Fault::TooLong(brief(&message, 1000));
    }
    classify(number, word.or(kind), message)
}

fn classify(status: Option<u16>, code: Option<String>, message: String) -> Fault {
    let message = brief(&message, 1000);
    if is_too_long(&message) {
        return Fault::TooLong(message);
    }
    Fault::Refused { status, code, message }
}

fn refused(status: u16, code: Option<String>, message: String) -> Fault {
    if matches!(status, 400 | 413 | 422 | 500) && is_too_long(&message) {
        return Fault::TooLong(message);
    }
    Fault::Refused {
        status: None,
        code,
        message,
    }
}

fn text(value: &Value) -> Option<String> {
    match value {
        Value::String(s) if !s.is_empty() => Some(s.clone()),
        Value::Number(n) => Some(n.to_string()),
        _ => None,
    }
}

/// A message that may be a text, an object with one, or a list of such (FastAPI's validation errors).
fn details(value: &Value) -> String {
    match value {
        Value::String(s) => s.clone(),
        Value::Array(items) => items.iter().map(details).collect::<Vec<_>>().join("; "),
        Value::Object(map) => {
            let message = ["message", "msg", "detail"]
                .iter()
                .find_map(|n| map.get(*n))
                .map(details);
            let place = map
                .get("loc")
                .and_then(Value::as_array)
                .map(|l| l.iter().filter_map(text).collect::<Vec<_>>().join("."));
            match (place, message) {
                (Some(place), Some(message)) => format!("{place}: {message}"),
                (_, Some(message)) => message,
                _ => value.to_string(),
            }
        }
        other => other.to_string(),
    }
}

fn is_too_long_code(code: &str) -> bool {
    matches!(
        code,
        "exceed_context_size_error" | "context_length_exceeded" | "ContextWindowExceededError"
    )
}

/// The words in which servers that give no code of their own say that the conversation does not fit.
fn is_too_long(message: &str) -> bool {
    let low = message.to_lowercase();
    [
        "maximum context length",
        "exceeds the available context size",
        "exceed_context_size_error",
        "contextwindowexceeded",
        "context_length_exceeded",
        "exceeds the context length",
        "exceeds the context window",
        "prompt is too long",
        "input is too long",
        "input tokens exceeded",
        "exceed context limit",
        "exceeds the maximum number of tokens",
    ]
    .iter()
    .any(|words| low.contains(words))
}

/// The title of a web page.
fn page_title(text: &str) -> Option<String> {
    if !looks_like_html(text) {
        return None;
    }
    // In ASCII, so that places in it are places in the text.
    let low = text.to_ascii_lowercase();
    let open = low.find("<title")?;
    let from = open + low[open..].find('>')? + 1;
    let to = from + low[from..].find("</title")?;
    let title = text[from..to].split_whitespace().collect::<Vec<_>>().join(" ");
    (!title.is_empty()).then(|| brief(&title, 200))
}

/// Whether a body is a web page.
pub fn looks_like_html(text: &str) -> bool {
    let start: String = text
        .trim_start_matches('\u{feff}')
        .trim_start()
        .chars()
        .take(15)
        .collect();
    let low = start.to_lowercase();
    low.starts_with("<!doctype html") || low.starts_with("<html") || low.starts_with("<head")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(body: &str) -> (Option<u16>, Option<String>, String) {
        match from_body(400, body.as_bytes()) {
            Fault::Refused { status, code, message } => (status, code, message),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn all_shapes_of_errors() {
        let is = |code: Option<&str>, message: &str| (None, code.map(str::to_owned), message.to_owned());
        assert_eq!(
            message(r#"{"error":{"message":"m","type":"t","code":"c"}}"#),
            is(Some("c"), "m")
        );
        assert_eq!(
            message(r#"{"error":{"message":"m","type":"t","code":null}}"#),
            is(Some("t"), "m")
        );
        assert_eq!(
            message(r#"{"error":{"message":"m","type":"t","code":"429"}}"#),
            (Some(429), Some("t".into()), "m".into())
        );
        assert_eq!(message(r#"{"error":"m"}"#), is(None, "m"));
        assert_eq!(message(r#"{"detail":"m"}"#), is(None, "m"));
        assert_eq!(
            message(r#"{"detail":[{"loc":["body","x"],"msg":"m"}]}"#),
            is(None, "body.x: m")
        );
        assert_eq!(
            message(r#"[{"error":{"message":"m","status":"S"}}]"#),
            is(Some("S"), "m")
        );
        assert_eq!(
            message(r#"{"object":"error","message":"m","type":"t"}"#),
            is(Some("t"), "m")
        );
        assert_eq!(message("plain words\n"), is(None, "plain words"));
        assert!(message("<!DOCTYPE html><p>").2.contains("`url`"));
        assert_eq!(message("").2, "the answer is empty");
        let page = "<html>\n<head><Title>502  Bad\nGateway</title></head><body>ñ</body></html>";
        assert!(message(page).2.contains("`url`"));
        let said = |page: &str| match from_body(502, page.as_bytes()) {
            Fault::Refused { message, .. } => message,
            other => panic!("{other:?}"),
        };
        assert_eq!(said(page), "the answer is a web page: 502 Bad Gateway");
        assert!(said("<html><title></title>").contains("`url`"));
    }

    #[test]
    fn too_long_in_all_words() {
        for body in [
            r#"{"error":{"message":"m","code":"context_length_exceeded"}}"#,
            r#"{"error":{"message":"m","code":"x","type":"exceed_context_size_error"}}"#,
            r#"{"error":{"message":"This model's maximum context length is 8 tokens."}}"#,
            r#"{"detail":"litellm.ContextWindowExceededError: …"}"#,
        ] {
            assert!(matches!(from_body(400, body.as_bytes()), Fault::TooLong(_)), "{body}");
        }
    }
}
