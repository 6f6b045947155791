//! Long texts of tool traffic, and what stands in their place.

use std::borrow::Cow;

use md5::{Digest, Md5};
use serde_json::{Map, Value};

use crate::call::Arguments;
use crate::message::{Message, Role};

/// How long the content of an output may be in a shortened pair, in characters.
pub const OUTPUT_CHARS: usize = 400;

/// How long each text among the arguments of a call may be in a shortened pair, in characters.
pub const ARGUMENT_CHARS: usize = 200;

/// A text of at most `max_chars` characters as it is; of a longer one its beginning and end, with a mark between them:
/// `<...LENGTH - DIGEST...>`, the number of its characters and the first five hexadecimal digits of its MD5, by which
/// two long texts that begin and end alike can be told apart.
///
/// Beginning, mark and end have fewer than `max_chars` characters. `Truncated (LENGTH): ` is put before them, and is
/// not counted, so that a text slightly over the limit gets longer. When `max_chars` is smaller than the mark, the mark
/// alone is left.
pub fn shorten(text: &str, max_chars: usize) -> Cow<'_, str> {
    let length = text.chars().count();
    if length <= max_chars {
        return Cow::Borrowed(text);
    }
    let mark = format!("<...{length} - {}...>", five_digits(text));
    let side = max_chars.saturating_sub(mark.len()) / 2;
    let head: String = text.chars().take(side.saturating_sub(1)).collect();
    let tail: String = text.chars().skip(length - side).collect();
    let result = format!("{head}{mark}{tail}");
    if result.chars().count() < length {
        Cow::Owned(format!("Truncated ({length}): {result}"))
    } else {
        Cow::Owned(result)
    }
}

fn five_digits(text: &str) -> String {
    let digest = Md5::digest(text.as_bytes());
    let hex: String = digest.iter().take(3).map(|byte| format!("{byte:02x}")).collect();
    hex.chars().take(5).collect()
}

/// Whether a text is what [`shorten`] makes of a longer one.
fn is_shortened(text: &str, max_chars: usize) -> bool {
    let Some((length, body)) = text.strip_prefix("Truncated (").and_then(|rest| rest.split_once("): ")) else {
        return false;
    };
    !length.is_empty()
        && length.bytes().all(|b| b.is_ascii_digit())
        && body.chars().count() <= max_chars
        && body.contains(&format!("<...{length} - "))
}

/// The shortened text, unless it would be the same. What is shortened already stays: a second strategy, or the budget
/// after a strategy, must not wrap one mark into another.
fn shortened(text: &str, max_chars: usize) -> Option<String> {
    match shorten(text, max_chars) {
        Cow::Owned(short) if !is_shortened(text, max_chars) => Some(short),
        _ => None,
    }
}

/// The short form of a call or output, unless it is the same; all members but `arguments` and `content` are kept.
///
/// In a call every argument that is a text is shortened, not what lies deeper; arguments that are not an object stay.
/// Content of an output that is not a text is shortened as the JSON that the model would read.
pub(super) fn shortened_message(message: &Message) -> Option<Message> {
    let mut map: Map<String, Value> = serde_json::from_str(&message.content).ok()?;
    match message.role {
        Role::FunctionCall => {
            let Arguments::Object(mut arguments) = Arguments::from_value(map.get("arguments")) else {
                return None;
            };
            let mut changed = false;
            for argument in arguments.values_mut() {
                if let Some(short) = argument.as_str().and_then(|text| shortened(text, ARGUMENT_CHARS)) {
                    *argument = Value::String(short);
                    changed = true;
                }
            }
            if !changed {
                return None;
            }
            map.insert("arguments".into(), Value::Object(arguments));
        }
        Role::FunctionCallOutput => {
            let short = match map.get("content")? {
                Value::Null => None,
                Value::String(text) => shortened(text, OUTPUT_CHARS),
                other => shortened(&other.to_string(), OUTPUT_CHARS),
            }?;
            map.insert("content".into(), Value::String(short));
        }
        _ => return None,
    }
    Some(Message {
        role: message.role,
        content: Value::Object(map).to_string(),
        line: message.line,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    #[test]
    fn beginning_mark_and_end() {
        let text: String = ('a'..='z').cycle().take(1000).collect();
        // MD5 as `md5sum` prints it.
        assert_eq!(five_digits("abc"), "90015");
        let digits = five_digits(&text);
        let mark = format!("<...1000 - {digits}...>");
        assert_eq!(mark.len(), 20);
        // (200 - 20) / 2 = 90: 89 characters, the mark, 90 characters.
        let expected = format!("Truncated (1000): {}{mark}{}", &text[..89], &text[910..]);
        assert_eq!(shorten(&text, 200), expected);
    }

    #[test]
    fn characters_count_not_bytes() {
        let text = "é".repeat(200);
        assert!(matches!(shorten(&text, 200), Cow::Borrowed(same) if same == text));
        let text = "🙂".repeat(201);
        let short = shorten(&text, 200);
        // Slightly over the limit, the text gets longer.
        assert!(short.starts_with("Truncated (201): 🙂") && short.chars().count() > 201);
    }

    #[test]
    fn a_limit_below_the_mark_leaves_the_mark() {
        assert_eq!(
            shorten("abcdefgh", 5),
            format!("<...8 - {}...>", five_digits("abcdefgh"))
        );
        let long = "x".repeat(100);
        assert_eq!(
            shorten(&long, 0),
            format!("Truncated (100): <...100 - {}...>", five_digits(&long))
        );
        assert_eq!(shorten("", 0), "");
    }

    fn message(role: Role, value: &Value) -> Message {
        Message {
            line: Some(7),
            ..Message::new(role, value.to_string())
        }
    }

    #[test]
    fn only_texts_at_the_top_of_the_arguments_are_shortened() {
        let long = "l".repeat(300);
        let arguments = json!({"n": 1.50, "long": long, "short": "s", "deep": {"long": long}, "list": [long]});
        let call = message(
            Role::FunctionCall,
            &json!({"name": "f", "arguments": arguments, "id": "a", "x": 1}),
        );
        let short = shortened_message(&call).unwrap();
        let mut expected = arguments.clone();
        expected["long"] = shorten(&long, 200).into();
        assert_eq!(
            short.content,
            json!({"name": "f", "arguments": expected, "id": "a", "x": 1}).to_string()
        );
        assert_eq!(short.line, Some(7));
        assert_eq!(shortened_message(&short), None, "what is short stays as it is");
    }

    #[test]
    fn what_is_no_object_of_arguments_stays() {
        for arguments in [json!("x".repeat(300)), json!(["x".repeat(300)]), json!(null), json!(5)] {
            let call = message(
                Role::FunctionCall,
                &json!({"name": "f", "arguments": arguments, "id": "a"}),
            );
            assert_eq!(shortened_message(&call), None);
        }
        for bad in ["{oops", "null", "[]", "\"text\""] {
            assert_eq!(shortened_message(&Message::new(Role::FunctionCall, bad)), None);
            assert_eq!(shortened_message(&Message::new(Role::FunctionCallOutput, bad)), None);
        }
    }

    #[test]
    fn content_that_is_no_text_is_shortened_as_json() {
        let rows = Value::Array(vec![json!({"k": 7340017340017340017_u64}); 50]);
        let output = message(
            Role::FunctionCallOutput,
            &json!({"name": "f", "content": rows, "id": "a", "job": "/j"}),
        );
        let expected = json!({"name": "f", "content": shorten(&rows.to_string(), 400), "id": "a", "job": "/j"});
        let short = shortened_message(&output).unwrap();
        assert_eq!(short.content, expected.to_string());
        assert_eq!(shortened_message(&short), None);
        for content in [json!(null), json!({"k": 1}), json!("short")] {
            let output = message(Role::FunctionCallOutput, &json!({"content": content, "id": "a"}));
            assert_eq!(shortened_message(&output), None);
        }
    }

    proptest! {
        #[test]
        fn any_text_can_be_shortened(text in "\\PC{0,80}", max_chars in 0usize..100) {
            let short = shorten(&text, max_chars);
            let length = text.chars().count();
            if length <= max_chars {
                prop_assert_eq!(short, text.as_str());
            } else {
                let mark = format!("<...{length} - ");
                prop_assert!(short.contains(&mark));
            }
        }

        #[test]
        fn shortening_twice_is_shortening_once(text in "[a-z🙂 ]{401,600}") {
            let short = shortened(&text, 400).unwrap();
            prop_assert_eq!(shortened(&short, 400), None);
        }
    }
}
