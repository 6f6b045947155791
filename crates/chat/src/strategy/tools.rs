//! `shorten_tools`: the newest tool traffic that fits into a number of characters is whole.

use std::borrow::Cow;

use super::edits::Edits;
use super::pairs::pairs;
use super::{Settings, Strategy};
use crate::message::{Message, Role};

/// Keeps the newest pairs whole as long as the outputs newer than them have fewer than `max_tool_chars` characters,
/// shortens older ones, and leaves out those behind position `max_tool_calls`.
///
/// The boundary moves with every round, so the beginning of a request is never twice the same once it is reached; see
/// [`ShortenToolsEpoch`](super::ShortenToolsEpoch) for one that providers' caches can use.
#[derive(Clone, Copy, Debug)]
pub struct ShortenTools;

impl Strategy for ShortenTools {
    fn name(&self) -> &str {
        "shorten_tools"
    }

    fn apply<'a>(&self, messages: &'a [Message], settings: &Settings) -> Cow<'a, [Message]> {
        let outputs = messages.iter().filter(|m| m.role == Role::FunctionCallOutput);
        // Bytes are never fewer than characters, and much faster to count.
        let bytes: u64 = outputs.map(|m| m.content.len() as u64).sum();
        if bytes < settings.max_tool_chars {
            return Cow::Borrowed(messages);
        }
        // Calls and outputs have settings of their own, but a pair has one fate.
        let whole_before = settings.full_tool_calls.max(settings.full_tool_outputs);
        let most = settings.max_tool_outputs.unwrap_or(settings.max_tool_calls);
        let most = most.min(settings.max_tool_calls);
        let mut edits = Edits::new(messages);
        let mut chars = 0;
        for (position, pair) in (1..).zip(pairs(messages).iter().rev()) {
            if position < whole_before || chars < settings.max_tool_chars {
                chars += messages[pair.output].content.chars().count() as u64;
            } else if position > most {
                edits.remove(pair);
            } else {
                edits.shorten(pair);
            }
        }
        edits.into_view(None)
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{call, output, rounds, tally};
    use super::*;

    fn seen(messages: &[Message], change: impl FnOnce(&mut Settings)) -> (usize, usize, usize) {
        let mut settings = Settings::default();
        change(&mut settings);
        tally(messages, &ShortenTools.apply(messages, &settings))
    }

    #[test]
    fn the_example_of_sixty_pairs() {
        let messages = rounds(60, 5000);
        assert_eq!(seen(&messages, |_| {}), (20, 20, 20));
        let view = ShortenTools.apply(&messages, &Settings::default());
        assert_eq!(view[..2], messages[..2]);
        assert_eq!(view[view.len() - 40..], messages[messages.len() - 40..]);
    }

    #[test]
    fn below_the_number_of_characters_nothing_happens() {
        let messages = rounds(500, 100);
        assert!(matches!(
            ShortenTools.apply(&messages, &Settings::default()),
            Cow::Borrowed(_)
        ));
    }

    #[test]
    fn nine_are_whole_however_long_they_are() {
        assert_eq!(seen(&rounds(30, 50_000), |_| {}), (9, 21, 0));
        assert_eq!(seen(&rounds(30, 50_000), |s| s.full_tool_calls = 13), (12, 18, 0));
    }

    #[test]
    fn a_limit_for_one_half_holds_for_the_pair() {
        let messages = rounds(60, 5000);
        assert_eq!(seen(&messages, |s| s.max_tool_outputs = Some(30)), (20, 10, 30));
        assert_eq!(seen(&messages, |s| s.max_tool_calls = 25), (20, 5, 35));
        // What fits is whole, even behind the limit.
        assert_eq!(seen(&messages, |s| s.max_tool_calls = 5), (20, 0, 40));
    }

    #[test]
    fn halves_are_kept_and_take_no_position() {
        let bad = Message::new(Role::FunctionCallOutput, "{oops".repeat(2000));
        let mut messages = vec![call("open", "f", &"x".repeat(900)), bad];
        messages.extend(rounds(60, 5000));
        messages.push(output("lost", &"y".repeat(90_000)));
        let view = ShortenTools.apply(&messages, &Settings::default());
        assert_eq!(view[..4], messages[..4]);
        assert_eq!(view.last(), messages.last());
        assert_eq!(view.len(), messages.len() - 40);
    }
}
