//! What a conversation is made of.

use std::fmt;

/// What a message is for. A word that is none of these never opens a message in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// Standing instructions, sent to the model.
    System,
    /// What the person says.
    User,
    /// What the model says.
    Assistant,
    /// A tool call that the model made: one line of JSON.
    FunctionCall,
    /// The result of a tool call: one line of JSON.
    FunctionCallOutput,
    /// Bookkeeping of one answer: `key=value` pairs; never sent.
    Meta,
    /// A setting that holds until the next answer: `key value`.
    Option,
    /// The endpoint to ask from here on.
    Endpoint,
    /// The model to ask from here on.
    Model,
    /// Tools to offer.
    Tool,
}

impl Role {
    /// All roles.
    pub const ALL: [Role; 10] = [
        Role::System,
        Role::User,
        Role::Assistant,
        Role::FunctionCall,
        Role::FunctionCallOutput,
        Role::Meta,
        Role::Option,
        Role::Endpoint,
        Role::Model,
        Role::Tool,
    ];

    /// The word that stands before the colon in a file.
    pub fn as_str(self) -> &'static str {
        match self {
            Role::System => "system",
            Role::User => "user",
            Role::Assistant => "assistant",
            Role::FunctionCall => "function_call",
            Role::FunctionCallOutput => "function_call_output",
            Role::Meta => "meta",
            Role::Option => "option",
            Role::Endpoint => "endpoint",
            Role::Model => "model",
            Role::Tool => "tool",
        }
    }

    /// The role of a word, if it is one.
    pub fn from_word(word: &str) -> Option<Role> {
        Role::ALL.into_iter().find(|r| r.as_str() == word)
    }

    /// Whether content is written on the header's own line.
    pub fn is_inline(self) -> bool {
        !matches!(self, Role::System | Role::User | Role::Assistant)
    }

    /// Whether content is one JSON object.
    pub fn is_json(self) -> bool {
        matches!(self, Role::FunctionCall | Role::FunctionCallOutput)
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// One message. Two messages are equal when role and content are, wherever they were read.
#[derive(Clone, Debug)]
pub struct Message {
    /// What it is for.
    pub role: Role,
    /// The text; for calls and outputs one line of JSON, for meta `key=value` pairs.
    pub content: String,
    /// The line of its header in the file it was read from, counted from 1.
    pub line: Option<usize>,
}

impl Message {
    /// A message that was not read from a file. The content is taken as it is.
    pub fn new(role: Role, content: impl Into<String>) -> Self {
        Self {
            role,
            content: content.into(),
            line: None,
        }
    }

    /// A message of the person.
    pub fn user(content: impl Into<String>) -> Self {
        Self::new(Role::User, content)
    }

    /// A message of the model.
    pub fn assistant(content: impl Into<String>) -> Self {
        Self::new(Role::Assistant, content)
    }

    /// Standing instructions.
    pub fn system(content: impl Into<String>) -> Self {
        Self::new(Role::System, content)
    }
}

impl PartialEq for Message {
    fn eq(&self, other: &Self) -> bool {
        self.role == other.role && self.content == other.content
    }
}

impl Eq for Message {}
