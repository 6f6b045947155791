//! Which output belongs to which call.

use std::collections::{HashMap, VecDeque};

use crate::call::{FunctionCall, FunctionCallOutput};
use crate::message::{Message, Role};

/// A call and its output, by their places among the messages.
#[derive(Debug)]
pub(super) struct Pair {
    /// Where the call stands.
    pub call: usize,
    /// Where the output stands, always behind the call.
    pub output: usize,
    /// The call, read.
    pub request: FunctionCall,
}

/// The pairs among some messages, in the order of their outputs.
///
/// Calls that share an id get their outputs in the order in which these come, as [`crate::plan::pending`] has it.
/// Records that can't be read, calls without an output and outputs without a call are in no pair. A pair depends on
/// nothing behind its output: the pairs of a prefix are the first of the whole.
pub(super) fn pairs(messages: &[Message]) -> Vec<Pair> {
    let mut open: HashMap<String, VecDeque<(usize, FunctionCall)>> = HashMap::new();
    let mut pairs = Vec::new();
    for (at, message) in messages.iter().enumerate() {
        match message.role {
            Role::FunctionCall => {
                if let Ok(call) = FunctionCall::from_message(message) {
                    open.entry(call.id.clone()).or_default().push_back((at, call));
                }
            }
            Role::FunctionCallOutput => {
                let id = FunctionCallOutput::from_message(message).map(|output| output.id);
                let call = id.ok().and_then(|id| open.get_mut(&id)?.pop_front());
                if let Some((call, request)) = call {
                    pairs.push(Pair {
                        call,
                        output: at,
                        request,
                    });
                }
            }
            _ => {}
        }
    }
    pairs
}

#[cfg(test)]
mod tests {
    use super::super::testing::{call, output};
    use super::*;

    #[test]
    fn outputs_in_any_order_repeated_ids_and_halves() {
        let messages = [
            call("a", "f", "1"),
            call("b", "f", "2"),
            call("a", "f", "3"),
            Message::assistant("text"),
            output("b", "2"),
            output("a", "1"),
            output("lost", "?"),
            Message::new(Role::FunctionCallOutput, "{oops"),
            output("a", "3"),
            output("a", "too many"),
            call("c", "f", "4"),
            Message::new(Role::FunctionCall, "null"),
        ];
        let places = |messages: &[Message]| -> Vec<(usize, usize)> {
            pairs(messages).iter().map(|pair| (pair.call, pair.output)).collect()
        };
        let all = places(&messages);
        assert_eq!(all, [(1, 4), (0, 5), (2, 8)]);
        for length in 0..messages.len() {
            assert!(all.starts_with(&places(&messages[..length])));
        }
    }
}
