//! The body of a request, kept as far as it can't change any more.

use decanus_chat::Message;

use crate::dialect::{Dialect, Fault, Request};
use crate::turns::{WireIds, next_group};

/// What has been encoded of a conversation. Whole turns that no later message can change are kept as bytes; a request
/// that continues the same messages encodes only what is new. Anything else is encoded from the start.
#[derive(Debug, Default)]
pub struct Encoder {
    seen: Vec<Message>,
    turns: Vec<u8>,
    ids: WireIds,
}

impl Encoder {
    /// The whole body of a request that begins with `head`.
    ///
    /// # Errors
    /// [`Fault::Config`]: a message that can't be read, a parameter that can't be sent.
    pub fn body(&mut self, dialect: &dyn Dialect, head: &[u8], request: &Request<'_>) -> Result<Vec<u8>, Fault> {
        let messages = request.view.messages;
        if !messages.starts_with(&self.seen) {
            *self = Self::default();
        }
        // Names are sent as they are spelt in the turns already encoded: their form depends on the names alone.
        let mut kept = self.turns.len();
        let mut at = self.seen.len();
        while at < messages.len() {
            let group = match next_group(&messages[at..], at, &mut self.ids) {
                Ok(group) => group,
                Err(what) => {
                    // Ids of the calls before the damage have been given out.
                    *self = Self::default();
                    return Err(Fault::Config(what));
                }
            };
            for turn in &group.turns {
                let first = self.turns.is_empty();
                dialect.turn(turn, request.names, first, &mut self.turns);
            }
            if group.closed {
                kept = self.turns.len();
                self.seen.extend_from_slice(&messages[at..at + group.messages]);
            } else {
                self.ids.take_back(&group);
            }
            at += group.messages;
        }
        let mut body = Vec::with_capacity(head.len() + self.turns.len() + 1024);
        body.extend_from_slice(head);
        body.extend_from_slice(&self.turns);
        // Only the last group can be one that a later message changes.
        self.turns.truncate(kept);
        dialect.tail(request, &mut body)?;
        Ok(body)
    }
}
