//! Going on from the last response: a provider that keeps its responses needs only what is new.
//!
//! An id may be used only where the conversation goes on exactly from its response: the messages that were sent, then the
//! answer as it was given, then something new, with the same tools. In any other case everything is sent.

use decanus_chat::{FunctionCall, Message, ToolDefinition};

use crate::collect::Collector;
use crate::conversation::{Delta, FinishReason, View};
use crate::responses::MAX_CALL_ID;
use crate::turns::{Turn, WireIds, next_group};

/// The last response and what it answered.
#[derive(Debug)]
pub(crate) struct Thread {
    pub id: String,
    sent: Vec<Message>,
    tools: Vec<ToolDefinition>,
    text: String,
    calls: Vec<FunctionCall>,
}

impl Thread {
    /// The turns that come after the response; none when the conversation does not go on from it.
    pub fn rest(&self, view: &View<'_>) -> Option<Vec<Turn>> {
        let messages = view.messages.strip_prefix(self.sent.as_slice())?;
        if self.tools != view.tools || messages.is_empty() {
            return None;
        }
        let (mut turns, mut at, mut ids) = (Vec::new(), 0, WireIds::default());
        while at < messages.len() {
            // Damage is named when all is encoded.
            let group = next_group(&messages[at..], self.sent.len() + at, &mut ids).ok()?;
            turns.extend(group.turns);
            at += group.messages;
        }
        let mut turns = turns.into_iter();
        let Some(Turn::Answer { text, calls, .. }) = turns.next() else {
            return None;
        };
        if calls != self.calls || text.unwrap_or_default() != self.text {
            return None;
        }
        let rest: Vec<Turn> = turns.collect();
        // Instructions are not kept with a response, and those that are new need their place among the others.
        let is_usable = !rest.is_empty() && !rest.iter().any(|t| matches!(t, Turn::System(_)));
        is_usable.then_some(rest)
    }
}

/// Looks at an answer on its way, and makes a thread of it.
#[derive(Debug)]
pub(crate) struct Recorder {
    sent: Vec<Message>,
    tools: Vec<ToolDefinition>,
    ids: Vec<String>,
    collector: Collector,
}

impl Recorder {
    /// For the answer to a request.
    pub fn new(view: &View<'_>) -> Self {
        Self {
            sent: view.messages.to_vec(),
            tools: view.tools.to_vec(),
            ids: Vec::new(),
            collector: Collector::new(),
        }
    }

    /// Takes one delta; gives the thread when the answer is complete and can be gone on from.
    pub fn push(&mut self, delta: &Delta) -> Option<Thread> {
        self.collector.push(delta);
        match delta {
            Delta::Call { id: Some(id), .. } => self.ids.push(id.clone()),
            Delta::Finish(FinishReason::Stop | FinishReason::ToolCalls) => {
                let response = std::mem::take(&mut self.collector).finish();
                // An id of our own making means nothing to the provider.
                let known = |call: &FunctionCall| call.id.len() <= MAX_CALL_ID && self.ids.contains(&call.id);
                return Some(Thread {
                    id: response.id.filter(|_| response.calls.iter().all(known))?,
                    sent: std::mem::take(&mut self.sent),
                    tools: std::mem::take(&mut self.tools),
                    text: response.text,
                    calls: response.calls,
                });
            }
            _ => {}
        }
        None
    }
}
