//! What reads an answer for an exchange, and how its faults become errors.

use std::sync::Arc;
use std::time::Duration;

use decanus_chat::Usage;

use crate::conversation::Delta;
use crate::dialect::{Dialect, Fault, Framing, StreamDecoder};
use crate::error::BackendError;
use crate::redact::Redactor;
use crate::tool_names::ToolNames;

/// What an exchange needs to know of the protocol it carries.
pub(crate) trait Reader: Sync {
    /// How a stream is read; `None` when answers are whole bodies.
    fn stream(&self) -> Option<(Framing, Box<dyn StreamDecoder>)>;

    /// Reads a whole body.
    fn decode(&self, body: &[u8]) -> Result<Vec<Delta>, Fault>;

    /// Reads the body of an answer that is an error by its status.
    fn refusal(&self, status: u16, body: &[u8]) -> Fault;

    /// Whether thoughts may stand at the beginning of the text.
    fn thinks_in_text(&self) -> bool {
        false
    }

    /// What to warn of when the prompt was cut.
    fn prompt_was_cut(&self, usage: &Usage) -> Option<String>;
}

/// A dialect, for one request.
pub(crate) struct Chat<'a> {
    pub dialect: &'a dyn Dialect,
    /// The length of the messages' texts.
    pub sent: usize,
    /// The tools that the answer may call: a printed call is one only if its tool is among these.
    pub offered: Arc<ToolNames>,
}

impl Reader for Chat<'_> {
    fn stream(&self) -> Option<(Framing, Box<dyn StreamDecoder>)> {
        Some((self.dialect.framing(), self.dialect.decoder_for(&self.offered)))
    }

    fn decode(&self, body: &[u8]) -> Result<Vec<Delta>, Fault> {
        self.dialect.decode_for(body, &self.offered)
    }

    fn refusal(&self, status: u16, body: &[u8]) -> Fault {
        self.dialect.refusal(status, body)
    }

    fn thinks_in_text(&self) -> bool {
        self.dialect.thinks_in_text()
    }

    fn prompt_was_cut(&self, usage: &Usage) -> Option<String> {
        self.dialect.prompt_was_cut(self.sent, usage)
    }
}

/// A fault as an error that says where it happened, without credentials.
pub(crate) fn error_of(
    fault: Fault,
    target: &str,
    model: &str,
    redactor: &Redactor,
    status: u16,
    retry_after: Option<Duration>,
) -> BackendError {
    let target = target.to_owned();
    let clean = |text: String| redactor.clean(&text);
    match fault {
        Fault::Config(what) => BackendError::Config(what),
        Fault::Refused {
            status: inner,
            code,
            message,
        } => BackendError::Refused {
            target,
            // Nobody has sent a number that goes with a code inside an answer of status 200.
            shown: match status {
                200 => code.clone().map(clean).or(inner.map(|number| number.to_string())),
                status => Some(status.to_string()),
            },
            // Inside a stream of status 200 the error's own number is the better one.
            status: if status == 200 { inner.unwrap_or(200) } else { status },
            code: code.map(clean),
            message: clean(message),
            retry_after,
        },
        Fault::TooLong(message) => BackendError::TooLong {
            model: model.to_owned(),
            message: clean(message),
        },
        Fault::Malformed(reason) => BackendError::Malformed {
            target,
            reason: clean(reason),
        },
        Fault::Incomplete(reason) => BackendError::Incomplete {
            target,
            reason: clean(reason),
        },
    }
}
