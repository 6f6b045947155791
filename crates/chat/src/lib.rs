//! Messages, and the chat file: the one form in which a conversation is written, read, appended to and planned.
//!
//! Everything here is synchronous and pure. Text that comes from models,
//! tools or users at a prompt is put into a [`Message`] as it is; only files are parsed.

pub mod call;
pub mod definition;
pub mod message;
pub mod meta;
pub mod usage;

pub use call::{Arguments, FunctionCall, FunctionCallOutput};
pub use definition::{Effect, Example, ToolDefinition};
pub use message::{Message, Role};
pub use meta::Meta;
pub use usage::Usage;
