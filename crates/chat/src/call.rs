//! Tool calls and their outputs, as values and as the JSON of a chat file.

use serde_json::{Map, Value};

use crate::message::{Message, Role};

/// The arguments of a call: an object, or the text that a model sent in place of one.
#[derive(Clone, Debug, PartialEq)]
pub enum Arguments {
    /// Names and values.
    Object(Map<String, Value>),
    /// Text that is not a JSON object; the call is answered with an error that shows it, never run.
    Invalid(String),
}

impl Arguments {
    /// Reads what providers send: nothing, `null` and blank text are no arguments; an object is taken as it is; text
    /// is parsed. Integers keep all their digits.
    pub fn from_value(value: Option<&Value>) -> Self {
        match value {
            None | Some(Value::Null) => Self::Object(Map::new()),
            Some(Value::Object(map)) => Self::Object(map.clone()),
            Some(Value::String(text)) => Self::from_text(text),
            Some(other) => Self::Invalid(other.to_string()),
        }
    }

    /// Reads the text form: blank text is no arguments.
    pub fn from_text(text: &str) -> Self {
        if text.trim().is_empty() {
            return Self::Object(Map::new());
        }
        match serde_json::from_str(text) {
            Ok(Value::Object(map)) => Self::Object(map),
            Ok(Value::Null) => Self::Object(Map::new()),
            // Some gateways encode twice.
            Ok(Value::String(inner)) => match serde_json::from_str(&inner) {
                Ok(Value::Object(map)) => Self::Object(map),
                _ => Self::Invalid(text.to_owned()),
            },
            _ => Self::Invalid(text.to_owned()),
        }
    }

    /// The value that stands in a chat file: an object, or a text when they are invalid.
    pub fn to_value(&self) -> Value {
        match self {
            Self::Object(map) => Value::Object(map.clone()),
            Self::Invalid(text) => Value::String(text.clone()),
        }
    }

    /// The JSON text that OpenAI-like providers expect.
    pub fn to_text(&self) -> String {
        match self {
            Self::Object(map) => Value::Object(map.clone()).to_string(),
            Self::Invalid(text) => text.clone(),
        }
    }
}

/// A tool call.
#[derive(Clone, Debug, PartialEq)]
pub struct FunctionCall {
    /// Unique within its conversation.
    pub id: String,
    /// The tool, by the name it was offered under.
    pub name: String,
    /// What it is called with.
    pub arguments: Arguments,
}

/// The output of a tool call.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct FunctionCallOutput {
    /// The id of the call.
    pub id: String,
    /// The tool.
    pub name: String,
    /// What the model reads.
    pub content: String,
    /// The class of the error (`ToolArgumentError`, …) when the call failed.
    pub error: Option<String>,
    /// Whether the content stands for a longer one that is kept in a file.
    pub truncated: bool,
    /// The path of the job that gave the result.
    pub job: Option<String>,
    /// The paths of pictures and documents that came with it, for models that can see them.
    pub media: Vec<String>,
    /// What the call changed in the session's state.
    pub state: Map<String, Value>,
    /// When the call began, UTC.
    pub start_timestamp: Option<String>,
    /// When the output was there, UTC.
    pub timestamp: Option<String>,
}

/// Why a message is not the call or output it claims to be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// The content is not a JSON object.
    #[error("{role} is not a JSON object: {reason}")]
    NotJson {
        /// `function_call` or `function_call_output`.
        role: Role,
        /// The parser's words.
        reason: String,
    },
    /// A member is missing.
    #[error("{role} lacks `{member}`")]
    Missing {
        /// `function_call` or `function_call_output`.
        role: Role,
        /// The missing member.
        member: &'static str,
    },
}

fn object(message: &Message) -> Result<Map<String, Value>, CallError> {
    serde_json::from_str(&message.content).map_err(|e| CallError::NotJson {
        role: message.role,
        reason: e.to_string(),
    })
}

fn text(map: &Map<String, Value>, member: &str) -> Option<String> {
    match map.get(member)? {
        Value::String(s) => Some(s.clone()),
        Value::Null => None,
        other => Some(other.to_string()),
    }
}

/// `id`, or one of the names that other writers give it.
fn id(map: &Map<String, Value>, role: Role) -> Result<String, CallError> {
    ["id", "call_id", "tool_call_id"]
        .iter()
        .find_map(|name| text(map, name))
        .ok_or(CallError::Missing { role, member: "id" })
}

impl FunctionCall {
    /// Reads a `function_call` message.
    ///
    /// # Errors
    /// When its content is not a JSON object with a name and an id.
    pub fn from_message(message: &Message) -> Result<Self, CallError> {
        let map = object(message)?;
        let role = message.role;
        Ok(Self {
            id: id(&map, role)?,
            name: text(&map, "name").ok_or(CallError::Missing { role, member: "name" })?,
            arguments: Arguments::from_value(map.get("arguments")),
        })
    }

    /// The message for a chat file.
    pub fn to_message(&self) -> Message {
        let mut map = Map::new();
        map.insert("name".into(), self.name.clone().into());
        map.insert("arguments".into(), self.arguments.to_value());
        map.insert("id".into(), self.id.clone().into());
        Message::new(Role::FunctionCall, Value::Object(map).to_string())
    }
}

impl FunctionCallOutput {
    /// Reads a `function_call_output` message. Content that is not text is given as JSON.
    ///
    /// # Errors
    /// When its content is not a JSON object with an id.
    pub fn from_message(message: &Message) -> Result<Self, CallError> {
        let map = object(message)?;
        Ok(Self {
            id: id(&map, message.role)?,
            name: text(&map, "name").unwrap_or_default(),
            content: text(&map, "content").unwrap_or_default(),
            error: text(&map, "error_class").or_else(|| text(&map, "error")),
            truncated: map.get("truncated") == Some(&Value::Bool(true)),
            job: text(&map, "job"),
            media: match map.get("media") {
                Some(Value::Array(list)) => list.iter().filter_map(Value::as_str).map(str::to_owned).collect(),
                _ => Vec::new(),
            },
            state: map.get("state").and_then(Value::as_object).cloned().unwrap_or_default(),
            start_timestamp: text(&map, "start_timestamp"),
            timestamp: text(&map, "timestamp"),
        })
    }

    /// The message for a chat file.
    pub fn to_message(&self) -> Message {
        let mut map = Map::new();
        map.insert("name".into(), self.name.clone().into());
        map.insert("content".into(), self.content.clone().into());
        map.insert("id".into(), self.id.clone().into());
        if let Some(class) = &self.error {
            map.insert("error".into(), "error".into());
            map.insert("error_class".into(), class.clone().into());
        }
        if self.truncated {
            map.insert("truncated".into(), true.into());
        }
        if !self.media.is_empty() {
            map.insert("media".into(), self.media.clone().into());
        }
        if !self.state.is_empty() {
            map.insert("state".into(), Value::Object(self.state.clone()));
        }
        for (name, value) in [
            ("job", &self.job),
            ("start_timestamp", &self.start_timestamp),
            ("timestamp", &self.timestamp),
        ] {
            if let Some(value) = value {
                map.insert(name.into(), value.clone().into());
            }
        }
        Message::new(Role::FunctionCallOutput, Value::Object(map).to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_four_ways_to_send_no_arguments_are_one() {
        let empty = Arguments::Object(Map::new());
        for sent in [
            None,
            Some(json!(null)),
            Some(json!("")),
            Some(json!(" \n")),
            Some(json!({})),
            Some(json!("{}")),
        ] {
            assert_eq!(Arguments::from_value(sent.as_ref()), empty, "{sent:?}");
        }
        assert_eq!(
            Arguments::from_value(Some(&json!("{\"a\":1}"))),
            Arguments::from_value(Some(&json!({"a": 1})))
        );
        assert!(matches!(Arguments::from_text("{\"id\": 42"), Arguments::Invalid(t) if t == "{\"id\": 42"));
        assert!(matches!(Arguments::from_text("[1]"), Arguments::Invalid(_)));
    }

    #[test]
    fn digits_survive_a_round_trip() {
        let text = r#"{"id":7340017340017340017,"n":5.0,"x":0.1000000000000000055511151231257827}"#;
        let call = FunctionCall {
            id: "c".into(),
            name: "t".into(),
            arguments: Arguments::from_text(text),
        };
        let back = FunctionCall::from_message(&call.to_message()).unwrap();
        assert_eq!(back, call);
        assert_eq!(back.arguments.to_text(), text);
    }

    #[test]
    fn outputs_round_trip_on_one_line() {
        let output = FunctionCallOutput {
            id: "c1".into(),
            name: "t".into(),
            content: "a\nb: c\r\u{0}".into(),
            error: Some("ToolTimeoutError".into()),
            truncated: true,
            job: Some("/j".into()),
            media: vec!["/m.png".into()],
            state: json!({"counter": 1}).as_object().cloned().unwrap(),
            ..Default::default()
        };
        let message = output.to_message();
        assert!(!message.content.contains('\n'));
        assert_eq!(FunctionCallOutput::from_message(&message).unwrap(), output);
    }

    #[test]
    fn bad_records_say_why() {
        let bad = FunctionCall::from_message(&Message::new(Role::FunctionCall, "{oops")).unwrap_err();
        assert!(bad.to_string().contains("function_call is not a JSON object"));
        let bad = FunctionCall::from_message(&Message::new(Role::FunctionCall, "{\"name\":\"x\"}")).unwrap_err();
        assert_eq!(bad.to_string(), "function_call lacks `id`");
    }
}
