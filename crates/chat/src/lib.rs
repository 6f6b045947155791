//! Messages, and the chat file: the one form in which a conversation is written, read, appended to and planned.
//!
//! Everything here is synchronous, and pure but for [`mod@file`]. Text that comes from models,
//! tools or users at a prompt is put into a [`Message`] as it is; only files are parsed.

pub mod call;
pub mod definition;
pub mod file;
pub mod message;
pub mod meta;
pub mod parse;
pub mod plan;
pub mod print;
pub mod provider;
pub mod strategy;
pub mod usage;

pub use call::{Arguments, FunctionCall, FunctionCallOutput};
pub use definition::{Effect, Example, ToolDefinition};
pub use file::{ChatFile, Loaded, MemoryTranscript, NoTranscript, StoreError, Transcript, Version};
pub use message::{Message, Role};
pub use meta::Meta;
pub use parse::{Parsed, Problem, parse};
pub use plan::{Lookup, Plan, plan};
pub use print::print;
pub use provider::ProviderParts;
pub use usage::Usage;

/// The time now, as records give it: UTC, RFC 3339 with milliseconds.
pub fn timestamp() -> String {
    format!("{:.3}", jiff::Timestamp::now())
}
