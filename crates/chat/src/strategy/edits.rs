//! What is shortened, what is left out, and the notice that says so.

use std::borrow::Cow;

use super::pairs::Pair;
use super::shorten::shortened_message;
use crate::message::{Message, Role};

/// What becomes of one message in the view.
#[derive(Clone, Debug)]
enum Edit {
    Keep,
    Replace(Message),
    Remove,
}

/// The difference between some messages and what the model sees of them.
#[derive(Debug)]
pub(super) struct Edits<'a> {
    messages: &'a [Message],
    edits: Vec<Edit>,
    /// How many messages are shortened.
    pub shortened: usize,
    /// How many messages are left out.
    pub removed: usize,
}

impl<'a> Edits<'a> {
    /// No difference.
    pub fn new(messages: &'a [Message]) -> Self {
        Self {
            messages,
            edits: vec![Edit::Keep; messages.len()],
            shortened: 0,
            removed: 0,
        }
    }

    /// Whether there is no difference.
    pub fn is_empty(&self) -> bool {
        self.shortened + self.removed == 0
    }

    /// Shortens both halves of a pair; one that is short enough stays as it is and is not counted.
    pub fn shorten(&mut self, pair: &Pair) {
        for at in [pair.call, pair.output] {
            if let Some(short) = shortened_message(&self.messages[at]) {
                self.replace(at, short);
            }
        }
    }

    /// Puts a shorter form in a message's place.
    pub fn replace(&mut self, at: usize, short: Message) {
        self.set(at, Edit::Replace(short));
    }

    /// Leaves out both halves of a pair.
    pub fn remove(&mut self, pair: &Pair) {
        self.set(pair.call, Edit::Remove);
        self.set(pair.output, Edit::Remove);
    }

    fn set(&mut self, at: usize, edit: Edit) {
        let before = std::mem::replace(&mut self.edits[at], edit);
        for (edit, by) in [(&before, -1), (&self.edits[at], 1)] {
            match edit {
                Edit::Keep => {}
                Edit::Replace(_) => self.shortened = self.shortened.saturating_add_signed(by),
                Edit::Remove => self.removed = self.removed.saturating_add_signed(by),
            }
        }
    }

    /// Where among the first `length` messages the notice belongs: before the first call or output that is left, or
    /// where the first one was, and before the whole answer that it is part of. Providers refuse anything between a
    /// call and its output, and calls and text of an answer are one message to them.
    pub fn place_of_notice(&self, length: usize) -> usize {
        let is_tool = |at: &usize| matches!(self.messages[*at].role, Role::FunctionCall | Role::FunctionCallOutput);
        let left = (0..length).find(|at| is_tool(at) && !matches!(self.edits[*at], Edit::Remove));
        let mut at = left.or_else(|| (0..length).find(is_tool)).unwrap_or(length);
        while at > 0 && is_of_answer(&self.messages[at - 1]) {
            at -= 1;
        }
        at
    }

    /// The view, with the notice before the message at a place.
    pub fn into_view(self, notice: Option<(usize, Message)>) -> Cow<'a, [Message]> {
        if self.is_empty() {
            return Cow::Borrowed(self.messages);
        }
        let mut view = Vec::with_capacity(self.messages.len() + 1 - self.removed);
        let (place, mut notice) = notice.map_or((0, None), |(place, notice)| (place, Some(notice)));
        for (at, (message, edit)) in self.messages.iter().zip(self.edits).enumerate() {
            if at == place {
                view.extend(notice.take());
            }
            match edit {
                Edit::Keep => view.push(message.clone()),
                Edit::Replace(short) => view.push(short),
                Edit::Remove => {}
            }
        }
        Cow::Owned(view)
    }
}

/// Whether a message is part of what the model answered: an uninterrupted run of these is one answer.
pub(super) fn is_of_answer(message: &Message) -> bool {
    matches!(message.role, Role::Assistant | Role::FunctionCall | Role::Provider)
}

/// What tells the model that it does not see everything. The counts are of messages, not of pairs.
pub(super) fn notice(shortened: usize, removed: usize, repeated_are_whole: bool) -> Message {
    let mut text = format!(
        "# Context management\n\nThis note was added by the program that runs this conversation, so that the \
         conversation fits. Of the tool calls and outputs that follow or came before, arguments and contents were \
         shortened, or whole calls with their outputs left out. Messages shortened: {shortened}; messages left out: \
         {removed}. A call or output that you don't find here was made and answered nevertheless: don't conclude that \
         a tool was not run."
    );
    if repeated_are_whole {
        text.push_str(" Of calls that were repeated with the same arguments, the latest is protected: it is whole.");
    }
    Message::user(text)
}

#[cfg(test)]
mod tests {
    use super::super::pairs::pairs;
    use super::super::testing::{call, output};
    use super::*;

    fn note() -> Message {
        Message::user("note")
    }

    #[test]
    fn a_notice_stands_before_the_answer_that_holds_the_first_call_that_is_left() {
        let messages = [
            Message::system("s"),
            Message::user("q"),
            Message::assistant("before"),
            call("a", "f", ""),
            Message::assistant("between"),
            call("b", "f", ""),
            Message::assistant("after"),
            output("b", ""),
            output("a", ""),
            Message::assistant("next"),
            call("c", "f", ""),
            output("c", ""),
        ];
        let pairs = pairs(&messages);
        let mut edits = Edits::new(&messages);
        assert_eq!(edits.place_of_notice(messages.len()), 2);
        edits.remove(&pairs[1]);
        assert_eq!(
            edits.place_of_notice(messages.len()),
            2,
            "a is gone, b is of the same answer"
        );
        edits.remove(&pairs[0]);
        assert_eq!(
            edits.place_of_notice(messages.len()),
            9,
            "before the text of c's answer"
        );
        let view = edits.into_view(Some((9, note())));
        let expected: Vec<Message> = [0, 1, 2, 4, 6].map(|at| messages[at].clone()).into();
        assert_eq!(view[..5], expected);
        assert_eq!(view[5], note());
        assert_eq!(view[6..], messages[9..]);
    }

    #[test]
    fn with_no_call_left_the_notice_stands_where_the_first_was() {
        let messages = [
            Message::user("q"),
            call("a", "f", ""),
            output("a", ""),
            Message::assistant("x"),
        ];
        let pairs = pairs(&messages);
        let mut edits = Edits::new(&messages);
        edits.remove(&pairs[0]);
        assert_eq!(edits.place_of_notice(messages.len()), 1);
        let view = edits.into_view(Some((1, note())));
        assert_eq!(view, [Message::user("q"), note(), Message::assistant("x")].as_slice());
    }

    #[test]
    fn counts_follow_a_message_that_is_shortened_and_then_left_out() {
        let messages = [call("a", "f", ""), output("a", &"x".repeat(500))];
        let pairs = pairs(&messages);
        let mut edits = Edits::new(&messages);
        edits.shorten(&pairs[0]);
        assert_eq!((edits.shortened, edits.removed), (1, 0));
        edits.remove(&pairs[0]);
        assert_eq!((edits.shortened, edits.removed), (0, 2));
    }
}
