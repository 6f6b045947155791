//! The options that a chat sets: sticky ones hold from their line on, plain ones until the next answer.

use std::collections::HashMap;

use serde_json::{Map, Value};

use super::lookup::Place;
use crate::message::Role;

/// Options whose values are names or ids and are never read as numbers.
const NAMES: [&str; 6] = [
    "endpoint",
    "model",
    "backend",
    "agent",
    "previous_response_id",
    "tool_choice",
];

/// An option and where it was set.
#[derive(Clone, Debug)]
pub struct Setting {
    /// Its name.
    pub key: String,
    /// Its value, as written.
    pub text: String,
    /// The line.
    pub place: Place,
}

impl Setting {
    /// The value: what reads as a number, a boolean, a list or an object is that, anything else is text.
    pub fn value(&self) -> Value {
        if NAMES.contains(&self.key.as_str()) {
            return Value::String(self.text.clone());
        }
        match serde_json::from_str(&self.text) {
            Ok(value @ (Value::Number(_) | Value::Bool(_) | Value::Array(_) | Value::Object(_))) => value,
            _ => Value::String(self.text.clone()),
        }
    }
}

/// The options of a chat. While it is read both kinds are kept apart; when it has been read, they become one list.
#[derive(Clone, Debug, Default)]
pub struct ChatOptions {
    sticky: HashMap<String, Numbered>,
    plain: HashMap<String, Numbered>,
    /// How many were taken so far.
    taken: usize,
    settled: Vec<Setting>,
}

/// A setting and its place in the order in which settings came.
type Numbered = (usize, Setting);

impl ChatOptions {
    /// An answer ends the options that hold until the next one.
    pub(super) fn answered(&mut self) {
        self.plain.clear();
    }

    /// Takes the message of a role that sets an option.
    pub(super) fn take(&mut self, role: Role, content: &str, place: Place) -> Result<(), String> {
        let (key, text) = match role {
            Role::Option | Role::StickyOption => match content.split_once(char::is_whitespace) {
                Some((key, value)) => (key, value.trim()),
                None => return Err(format!("{role} takes a name and a value, found `{content}`")),
            },
            Role::Endpoint | Role::Model | Role::Backend | Role::Agent | Role::PreviousResponseId => {
                if content.contains(char::is_whitespace) {
                    return Err(format!("{role} takes one name, found `{content}`"));
                }
                if content.is_empty() {
                    return Err(format!("{role} takes a name"));
                }
                (role.as_str(), content)
            }
            Role::Persist if !matches!(content, "true" | "false" | "nil" | "") => {
                return Err(format!("persist takes true or false, found `{content}`"));
            }
            Role::Websearch if content.is_empty() => ("websearch", "true"),
            _ => (role.as_str(), content),
        };
        let is_plain = matches!(role, Role::Option | Role::Persist | Role::Format);
        let list = if is_plain { &mut self.plain } else { &mut self.sticky };
        let setting = Setting {
            key: key.to_owned(),
            text: text.to_owned(),
            place,
        };
        list.insert(key.to_owned(), (self.taken, setting));
        self.taken += 1;
        Ok(())
    }

    /// Puts plain options over sticky ones, and removes those that are `nil` or nothing.
    pub(super) fn settle(&mut self) {
        let mut all = std::mem::take(&mut self.sticky);
        all.extend(std::mem::take(&mut self.plain));
        let mut all: Vec<Numbered> = all.into_values().collect();
        all.sort_by_key(|(number, _)| *number);
        let set = all.into_iter().map(|(_, setting)| setting);
        self.settled = set
            .filter(|s| !matches!(s.text.as_str(), "" | "nil" | "null"))
            .collect();
    }

    /// An option by name.
    pub fn get(&self, key: &str) -> Option<&Setting> {
        self.settled.iter().find(|s| s.key == key)
    }

    /// All options, in the order in which they were set.
    pub fn iter(&self) -> impl Iterator<Item = &Setting> {
        self.settled.iter()
    }

    /// Name and value of all options.
    pub fn to_map(&self) -> Map<String, Value> {
        self.iter().map(|s| (s.key.clone(), s.value())).collect()
    }
}
