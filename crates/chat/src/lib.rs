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

use std::cell::RefCell;

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
    thread_local! {
        /// The last second that was written, and how: most times are of the same one.
        static LAST: RefCell<(i64, String)> = const { RefCell::new((i64::MIN, String::new())) };
    }
    let now = jiff::Timestamp::now();
    let milliseconds = now.subsec_millisecond();
    if milliseconds < 0 {
        return format!("{now:.3}");
    }
    LAST.with_borrow_mut(|(second, text)| {
        if *second != now.as_second() {
            *second = now.as_second();
            *text = format!("{now:.0}");
            text.truncate(text.len() - 1);
        }
        let mut out = String::with_capacity(text.len() + 5);
        out.push_str(text);
        out.push('.');
        for place in [100, 10, 1] {
            // A digit is less than ten.
            out.push(char::from(b'0' + (milliseconds / place % 10) as u8));
        }
        out.push('Z');
        out
    })
}

#[cfg(test)]
mod tests {
    use super::timestamp;

    #[test]
    fn times_are_written_with_milliseconds() {
        for _ in 0..3000 {
            let before = jiff::Timestamp::now();
            let text = timestamp();
            let after = jiff::Timestamp::now();
            let time: jiff::Timestamp = text.parse().unwrap();
            assert_eq!(text, format!("{time:.3}"));
            assert!(
                format!("{before:.3}") <= text && text <= format!("{after:.3}"),
                "{text}"
            );
        }
    }
}
