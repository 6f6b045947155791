//! Opaque parts of an answer (signed thinking, reasoning items): kept as the provider gave them, for that backend alone.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::message::{Message, Role};

/// The content of a `provider` message: one line of JSON before the calls and the text of its answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProviderParts {
    /// The backend that made them. They are sent back to no other.
    pub backend: String,
    /// The model that made them, as the provider names it.
    #[serde(default)]
    pub model: String,
    /// The parts, in order; what is in them is the backend's business.
    pub parts: Vec<Value>,
}

impl ProviderParts {
    /// Reads a message.
    ///
    /// # Errors
    /// A text: it is no such record.
    pub fn from_message(message: &Message) -> Result<Self, String> {
        serde_json::from_str(&message.content)
            .map_err(|e| format!("{} is not a record of a provider's parts: {e}", message.role))
    }

    /// The message for a chat.
    pub fn to_message(&self) -> Message {
        // A record of texts and JSON values can always be written.
        Message::new(Role::Provider, serde_json::to_string(self).unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn parts_round_trip_on_one_line() {
        let parts = ProviderParts {
            backend: "anthropic".into(),
            model: "m".into(),
            parts: vec![json!({"type": "thinking", "thinking": "a\nb", "signature": "x=="})],
        };
        let message = parts.to_message();
        assert!(!message.content.contains('\n'));
        assert_eq!(ProviderParts::from_message(&message), Ok(parts));
        assert!(ProviderParts::from_message(&Message::new(Role::Provider, "{}")).is_err());
    }
}
