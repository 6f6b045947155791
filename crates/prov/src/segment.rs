//! Which messages of a chat were made by which request.

use std::ops::Range;

use decanus_base::digest::ValueHasher;
use decanus_chat::{Message, Meta, Role, Usage};

/// A meta and the messages that it speaks of: those up to the next `meta`, `user` or `system` message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// The meta, without the model's reasoning.
    pub meta: Meta,
    /// Where the meta is among the messages, counted from 0.
    pub index: usize,
    /// The messages it covers.
    pub covered: Range<usize>,
    /// What its meta is known by when it has no id: see [`lineage`].
    pub lineage: String,
}

impl Segment {
    /// Whether it covers no message.
    pub fn is_orphan(&self) -> bool {
        self.covered.is_empty()
    }

    /// The job that made the messages it covers.
    pub fn job(&self) -> Option<&str> {
        self.meta.get("job").filter(|job| !job.is_empty())
    }

    /// The tokens of the request that made its messages. What a job made was paid for elsewhere, and running totals
    /// (`*_c`, `*_s`) are no request's.
    pub fn direct_usage(&self) -> Option<Usage> {
        let usage = self.meta.usage();
        (self.job().is_none() && !usage.is_empty()).then_some(usage)
    }
}

/// The segments of a chat, in order. Messages above the first meta, and those from a `user` or `system` message to the
/// next meta, are in none.
pub fn segments(messages: &[Message]) -> Vec<Segment> {
    let lineage = lineage(messages);
    let mut found: Vec<Segment> = Vec::new();
    let mut open = false;
    for (index, message) in messages.iter().enumerate() {
        match message.role {
            Role::Meta => {
                found.push(Segment {
                    meta: without_reasoning(&Meta::read(&message.content)),
                    index,
                    covered: index + 1..index + 1,
                    lineage: lineage[index].clone(),
                });
                open = true;
            }
            Role::User | Role::System => open = false,
            _ => {
                if let Some(segment) = found.last_mut().filter(|_| open) {
                    segment.covered.end = index + 1;
                }
            }
        }
    }
    found
}

/// For each message a digest of it and of all messages before it. A meta has one too but changes none after it, so that
/// the same conversation has the same digests whoever kept its books. Nothing is ever stored under them.
pub fn lineage(messages: &[Message]) -> Vec<String> {
    let mut before = String::new();
    let mut all = Vec::with_capacity(messages.len());
    for message in messages {
        let mut hasher = ValueHasher::new();
        hasher.text(&before).text(message.role.as_str()).text(&message.content);
        let id = hasher.hex();
        if message.role != Role::Meta {
            before.clone_from(&id);
        }
        all.push(id);
    }
    all
}

pub(crate) fn without_reasoning(meta: &Meta) -> Meta {
    let mut kept = Meta::new();
    for (key, value) in meta.pairs().filter(|(key, _)| *key != "reas") {
        kept.set(key, value);
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;
    use decanus_chat::parse;

    fn read(text: &str) -> Vec<Segment> {
        segments(&parse(text).messages)
    }

    /// Worked example 38.
    #[test]
    fn a_meta_of_a_job_covers_its_answer_and_the_tokens_before_it_are_an_orphans() {
        let found = read("user: q\nmeta: tt=2\nmeta: job=J\nassistant: a\n");
        assert_eq!(found.len(), 2);
        assert!(found[0].is_orphan());
        assert_eq!(found[0].direct_usage().unwrap().tt, Some(2));
        assert_eq!((found[1].covered.clone(), found[1].job()), (3..4, Some("J")));
        assert_eq!(found[1].direct_usage(), None);
    }

    #[test]
    fn what_the_user_says_ends_a_segment() {
        let found = read("meta: pt=1 reas=long thoughts\nassistant: a\nuser: q\nassistant: by hand\nmeta: bytes=0\n");
        assert_eq!(found.len(), 2);
        assert_eq!(found[0].covered, 1..2);
        assert_eq!(found[0].meta.get("reas"), None);
        assert!(found[1].is_orphan() && found[1].direct_usage().is_none());
    }

    #[test]
    fn running_totals_are_no_requests_tokens() {
        assert_eq!(read("meta: pt_c=9 tt_s=4\nassistant: a\n")[0].direct_usage(), None);
        assert_eq!(read("meta: pt=9 job=J\nassistant: a\n")[0].direct_usage(), None);
    }

    #[test]
    fn metas_do_not_advance_the_lineage() {
        let ids = |text: &str| {
            let messages = parse(text).messages;
            let all = lineage(&messages);
            let kept = messages.iter().zip(all).filter(|(m, _)| m.role != Role::Meta);
            kept.map(|(_, id)| id).collect::<Vec<_>>()
        };
        assert_eq!(
            ids("user: q\nassistant: a\n"),
            ids("user: q\nmeta: tt=2\nassistant: a\nmeta: tt=3\n")
        );
        assert_ne!(ids("user: q\nassistant: a\n")[1], ids("user: p\nassistant: a\n")[1]);
    }
}
