//! A number of tokens for a request, kept before the provider refuses.

use std::borrow::Cow;

use decanus_base::{Diagnostic, ErrorKind};

use super::edits::{Edits, is_of_answer, notice};
use super::pairs::{Pair, pairs};
use super::shorten::shortened_message;
use crate::message::Message;

/// What a message costs beside its content: its role and what separates it from the next. Chat templates take three to
/// five tokens for it.
const MESSAGE_TOKENS: u64 = 4;

/// The counts that room is kept for in the notice. Not the true ones: what a view costs must not depend on messages that
/// come later.
const MOST_MESSAGES: usize = 9_999_999;

/// How many tokens a text has at most, as a rule: one for three ASCII characters, rounded up, and one for every other
/// character.
///
/// An estimate, the same for all models and always the same for a text. English has about four characters to a token
/// and code about three; other scripts have one token or less to a character. Texts of digits or of rare symbols can have
/// more tokens than this.
pub fn estimate_tokens(text: &str) -> u64 {
    let ascii = text.bytes().filter(u8::is_ascii).count() as u64;
    let others = text.chars().filter(|c| !c.is_ascii()).count() as u64;
    ascii.div_ceil(3) + others
}

fn tokens_of(message: &Message) -> u64 {
    MESSAGE_TOKENS + estimate_tokens(&message.content)
}

/// A view of a conversation that keeps a budget.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fit<'a> {
    /// What the model sees: the messages themselves when nothing had to be changed.
    pub messages: Cow<'a, [Message]>,
    /// What it costs with the overhead, in estimated tokens.
    pub tokens: u64,
    /// How many messages were shortened.
    pub shortened: usize,
    /// How many messages were left out.
    pub removed: usize,
}

/// A conversation exceeds its budget although all tool traffic that may be was shortened or left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the request needs about {needed} tokens, with old tool calls and outputs left out, but its budget is {budget} tokens"
)]
pub struct TooLong {
    /// What the smallest view costs with the overhead, in estimated tokens.
    pub needed: u64,
    /// What it may cost, in tokens.
    pub budget: u64,
}

impl Diagnostic for TooLong {
    fn kind(&self) -> ErrorKind {
        ErrorKind::Limit
    }

    fn hints(&self) -> Vec<String> {
        vec![
            "allow more with `limits: context_tokens`, if the model takes it".into(),
            "or begin a new chat, or offer fewer tools".into(),
        ]
    }
}

/// What the model sees of some messages within a budget of tokens, `overhead` of which go to what is sent beside the
/// messages: definitions of tools, for instance.
///
/// As long as everything fits, nothing is changed. Whenever the view outgrows the budget, the oldest pairs are shortened
/// and, when that is not enough, left out, until the view takes no more than 60 % of it; so many rounds follow in which
/// the beginning of a request stays the same to the byte. Pairs of the newest answer (the last run of texts and calls)
/// are shortened only when nothing else helps, and never left out. A `user` message says what was done.
///
/// The messages are gone through in their order and each decision depends on what stands before it only: with more
/// messages behind them, the same messages give the same view until the next time that the budget is reached.
///
/// # Errors
/// When the view is over the budget in spite of all that.
pub fn fit(messages: &[Message], budget: u64, overhead: u64) -> Result<Fit<'_>, TooLong> {
    let tokens: Vec<u64> = messages.iter().map(tokens_of).collect();
    let needed = overhead.saturating_add(tokens.iter().sum());
    if needed <= budget {
        return Ok(Fit {
            messages: Cow::Borrowed(messages),
            tokens: needed,
            shortened: 0,
            removed: 0,
        });
    }
    let mut fold = Fold {
        messages,
        states: Vec::new(),
        pairs: pairs(messages),
        edits: Edits::new(messages),
        tokens,
        sum: 0,
        answer: 0,
        notice_at: None,
        notice_tokens: tokens_of(&notice(MOST_MESSAGES, MOST_MESSAGES, false)),
        budget,
        overhead,
    };
    for at in 0..messages.len() {
        fold.take(at);
    }
    fold.finish()
}

/// What was done with a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Whole,
    Shortened,
    Removed,
}

/// The view of the messages up to one of them.
struct Fold<'a> {
    messages: &'a [Message],
    /// All pairs; those whose output was reached have a state.
    pairs: Vec<Pair>,
    states: Vec<State>,
    edits: Edits<'a>,
    /// What each message costs, as it is in the view.
    tokens: Vec<u64>,
    /// What the view costs up to here, without notice and overhead.
    sum: u64,
    /// Where the newest answer begins.
    answer: usize,
    /// Where the notice stands. Set when something is changed, and left there: it must not wander in between.
    notice_at: Option<usize>,
    /// What the notice costs.
    notice_tokens: u64,
    budget: u64,
    overhead: u64,
}

impl<'a> Fold<'a> {
    fn take(&mut self, at: usize) {
        self.sum += self.tokens[at];
        if is_of_answer(&self.messages[at]) && (at == 0 || !is_of_answer(&self.messages[at - 1])) {
            self.answer = at;
        }
        while self.pairs.get(self.states.len()).is_some_and(|pair| pair.output <= at) {
            self.states.push(State::Whole);
        }
        if self.total() > self.budget {
            self.compact();
            self.notice_at = Some(self.edits.place_of_notice(at + 1));
        }
    }

    fn total(&self) -> u64 {
        let notice = if self.edits.is_empty() { 0 } else { self.notice_tokens };
        self.overhead.saturating_add(self.sum).saturating_add(notice)
    }

    /// Makes the view smaller, if that is possible.
    fn compact(&mut self) {
        let target = self.budget - self.budget / 5 * 2;
        let known = self.states.len();
        let (older, newest): (Vec<usize>, Vec<usize>) =
            (0..known).partition(|&pair| self.pairs[pair].call < self.answer);
        self.until(target, &older, Self::shorten);
        self.until(target, &older, Self::remove);
        self.until(self.budget, &newest, Self::shorten);
    }

    /// Does something to pairs until the view costs no more than `enough`.
    fn until(&mut self, enough: u64, pairs: &[usize], act: fn(&mut Self, usize)) {
        for &pair in pairs {
            if self.total() <= enough {
                break;
            }
            act(self, pair);
        }
    }

    fn shorten(&mut self, pair: usize) {
        if self.states[pair] != State::Whole {
            return;
        }
        self.states[pair] = State::Shortened;
        for at in [self.pairs[pair].call, self.pairs[pair].output] {
            // A text slightly over the limit gets longer by being shortened.
            let short = shortened_message(&self.messages[at]);
            if let Some(short) = short.filter(|short| tokens_of(short) < self.tokens[at]) {
                self.charge(at, tokens_of(&short));
                self.edits.replace(at, short);
            }
        }
    }

    fn remove(&mut self, pair: usize) {
        if self.states[pair] == State::Removed {
            return;
        }
        self.states[pair] = State::Removed;
        self.edits.remove(&self.pairs[pair]);
        for at in [self.pairs[pair].call, self.pairs[pair].output] {
            self.charge(at, 0);
        }
    }

    /// Notes what a message costs now.
    fn charge(&mut self, at: usize, cost: u64) {
        self.sum = self.sum - self.tokens[at] + cost;
        self.tokens[at] = cost;
    }

    fn finish(self) -> Result<Fit<'a>, TooLong> {
        let tokens = self.total();
        if tokens > self.budget {
            return Err(TooLong {
                needed: tokens,
                budget: self.budget,
            });
        }
        let (shortened, removed) = (self.edits.shortened, self.edits.removed);
        let notice = self.notice_at.map(|at| (at, notice(shortened, removed, false)));
        Ok(Fit {
            messages: self.edits.into_view(notice),
            tokens,
            shortened,
            removed,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{call, output, rounds, tally};
    use super::super::{Settings, Strategies};
    use super::*;
    use crate::message::Role;
    use crate::print;

    #[test]
    fn the_estimate() {
        for (text, tokens) in [
            ("", 0),
            ("a", 1),
            ("abc", 1),
            ("abcd", 2),
            ("é", 1),
            ("né号🙂", 4),
            ("\n\t ", 1),
        ] {
            assert_eq!(estimate_tokens(text), tokens, "{text:?}");
        }
    }

    #[test]
    fn what_fits_is_not_copied() {
        let messages = rounds(200, 500);
        let needed = messages.iter().map(tokens_of).sum::<u64>() + 10;
        let fit = fit(&messages, needed, 10).unwrap();
        assert!(matches!(fit.messages, Cow::Borrowed(_)));
        assert_eq!((fit.tokens, fit.shortened, fit.removed), (needed, 0, 0));
        assert!(super::fit(&messages, needed - 1, 10).unwrap().shortened > 0);
    }

    #[test]
    fn a_conversation_keeps_its_budget_and_its_beginning_for_many_rounds() {
        let messages = rounds(300, 2000);
        let budget = 20_000;
        let mut changes = Vec::new();
        let mut before: Option<(String, usize)> = None;
        // Requests are made after the question and after every output.
        for end in (2..=messages.len()).step_by(2) {
            let fit = fit(&messages[..end], budget, 1000).unwrap();
            assert!(fit.tokens <= budget);
            let real: u64 = fit.messages.iter().map(tokens_of).sum();
            assert!(
                real + 1000 <= fit.tokens,
                "the sum is what the view costs, or a little more"
            );
            assert!(fit.tokens - real - 1000 <= 8);
            let bytes = print(&fit.messages);
            let edits = fit.shortened + fit.removed;
            if let Some((bytes_before, edits_before)) = before {
                if edits == edits_before {
                    assert!(bytes.starts_with(&bytes_before), "{end}");
                } else {
                    changes.push(end / 2);
                }
            }
            before = Some((bytes, edits));
        }
        // A round costs some 700 tokens, 40 % of the budget are 8000.
        assert!(changes.len() > 10, "{changes:?}");
        assert!(changes.windows(2).all(|w| w[1] - w[0] >= 10), "{changes:?}");
    }

    #[test]
    fn oldest_first_shortened_before_left_out() {
        let messages = rounds(40, 2000);
        let whole = messages.iter().map(tokens_of).sum::<u64>();
        let fit = fit(&messages, whole - 1, 0).unwrap();
        let (_, shortened, dropped) = tally(&messages, &fit.messages);
        assert_eq!((fit.shortened, fit.removed, dropped), (shortened, 0, 0));
        assert!(fit.tokens <= whole * 6 / 10 && fit.tokens > whole * 5 / 10);
        assert_eq!(fit.messages[2], notice(shortened, 0, false));
        assert_eq!(
            fit.messages[3 + 2 * shortened..],
            messages[2 + 2 * shortened..],
            "the newest are whole"
        );
        // With a tenth, all but the newest are shortened, and the oldest are gone.
        let fit = super::fit(&messages, whole / 10, 0).unwrap();
        let (_, shortened, dropped) = tally(&messages, &fit.messages);
        assert!(shortened > 0 && dropped > 0);
        assert_eq!(fit.removed, 2 * dropped);
        assert_eq!(fit.messages[fit.messages.len() - 2..], messages[messages.len() - 2..]);
    }

    #[test]
    fn the_newest_answer_is_shortened_when_nothing_else_helps_and_never_left_out() {
        let mut messages = vec![Message::user("q"), call("a", "f", ""), output("a", &"x".repeat(3000))];
        messages.extend([call("b", "f", ""), Message::assistant("text"), call("c", "f", "")]);
        messages.extend([output("c", &"x".repeat(3000)), output("b", &"x".repeat(3000))]);
        // One of the two can stay whole.
        let fit = fit(&messages, 1600, 0).unwrap();
        assert_eq!((fit.shortened, fit.removed), (1, 2));
        assert_eq!(fit.messages.len(), 7);
        assert_eq!(fit.messages.last(), messages.last());
        let none_whole = super::fit(&messages, 900, 0).unwrap();
        assert_eq!((none_whole.shortened, none_whole.removed), (2, 2));
        let error = super::fit(&messages, 300, 0).unwrap_err();
        assert_eq!(
            error,
            TooLong {
                needed: none_whole.tokens,
                budget: 300
            }
        );
        assert!(
            error
                .to_string()
                .contains(&format!("about {} tokens", none_whole.tokens)),
            "{error}"
        );
    }

    #[test]
    fn an_answered_question_has_no_newest_pairs() {
        let mut messages = rounds(3, 3000);
        messages.extend([Message::assistant("done"), Message::user("x".repeat(3300))]);
        let fit = fit(&messages, 1400, 0).unwrap();
        assert_eq!(fit.removed, 6);
        // The notice stays where it was when a new call comes.
        let place = fit.messages.iter().position(|m| m.content.starts_with("# Context"));
        let bytes = print(&fit.messages);
        messages.extend([call("n", "f", ""), output("n", "x")]);
        let next = super::fit(&messages, 1400, 0).unwrap();
        assert_eq!(place, Some(2));
        assert!(print(&next.messages).starts_with(&bytes));
    }

    #[test]
    fn texts_alone_can_be_too_long() {
        let messages = [Message::user("x".repeat(3000))];
        let error = fit(&messages, 1000, 0).unwrap_err();
        assert_eq!((error.needed, error.kind()), (1004, ErrorKind::Limit));
        assert_eq!(fit(&[], 10, 11).unwrap_err().needed, 11);
        assert_eq!(fit(&messages, 1000, u64::MAX).unwrap_err().needed, u64::MAX);
    }

    #[test]
    fn pairs_whose_short_form_would_be_longer_stay_whole() {
        let messages = rounds(50, 401);
        let whole = messages.iter().map(tokens_of).sum::<u64>();
        let fit = fit(&messages, whole - 1, 0).unwrap();
        assert_eq!(fit.shortened, 0);
        assert!(fit.removed > 0);
    }

    #[test]
    fn after_a_strategy_the_budget_does_the_rest() {
        let messages = rounds(130, 3000);
        let chain = Strategies::default().resolve(Strategies::DEFAULT).unwrap();
        let settings = Settings::default();
        let view = chain.apply(&messages, &settings);
        let fit = fit(&view, 20_000, 500).unwrap();
        assert!(fit.tokens <= 20_000);
        let marks = |m: &&Message| m.role == Role::FunctionCallOutput && m.content.matches("<...").count() > 1;
        assert_eq!(fit.messages.iter().filter(marks).count(), 0, "no mark within a mark");
        // Within an epoch and between two compactions the prefix holds for both together.
        let shorter = chain.apply(&messages[..messages.len() - 2], &settings);
        let shorter = super::fit(&shorter, 20_000, 500).unwrap();
        assert_eq!((shorter.shortened, shorter.removed), (fit.shortened, fit.removed));
        assert!(print(&fit.messages).starts_with(&print(&shorter.messages)));
    }
}
