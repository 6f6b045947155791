//! The frames of AWS event streams (`application/vnd.amazon.eventstream`).
//!
//! An event's name is its type; that of an exception is `exception:` and its type, that of an error `error:` and its code.

use aws_smithy_eventstream::frame::read_message_from;
use aws_smithy_types::event_stream::Message;
use decanus_backend::frames::Framer;
use decanus_backend::sse::{Event, MAX_EVENT, SseError};
use serde_json::json;

/// What comes before the name of an exception's event.
pub(crate) const EXCEPTION: &str = "exception:";
/// What comes before the name of an error's event.
pub(crate) const ERROR: &str = "error:";

/// A frame without headers and payload: lengths, and two checksums.
const SHORTEST: usize = 16;

/// Takes an event stream apart.
#[derive(Debug, Default)]
pub(crate) struct EventStream {
    buffer: Vec<u8>,
}

impl Framer for EventStream {
    fn push(&mut self, bytes: &[u8], out: &mut Vec<Event>) -> Result<(), SseError> {
        self.buffer.extend_from_slice(bytes);
        let mut at = 0;
        while let Some(length) = self.buffer[at..].first_chunk::<4>() {
            let length = usize::try_from(u32::from_be_bytes(*length)).unwrap_or(usize::MAX);
            if !(SHORTEST..=MAX_EVENT).contains(&length) {
                // Other formats begin with letters, which are very large lengths.
                return Err(SseError::NoFrame("it is not an event stream of AWS".into()));
            }
            let Some(frame) = self.buffer.get(at..at + length) else {
                break;
            };
            let message = read_message_from(frame)
                .map_err(|e| SseError::NoFrame(format!("a frame of the event stream is damaged: {e}")))?;
            out.extend(event(&message)?);
            at += length;
        }
        self.buffer.drain(..at);
        Ok(())
    }

    fn finish(&mut self) -> Result<(), SseError> {
        if self.buffer.is_empty() {
            Ok(())
        } else {
            Err(SseError::CutFrame)
        }
    }
}

/// A frame as an event; none when it has no type that we know.
fn event(message: &Message) -> Result<Option<Event>, SseError> {
    let header = |name: &str| {
        let header = message.headers().iter().find(|h| h.name().as_str() == name);
        header.and_then(|h| h.value().as_string().ok()).map(|s| s.as_str())
    };
    let name = match header(":message-type") {
        Some("event") => header(":event-type").unwrap_or_default().to_owned(),
        Some("exception") => format!("{EXCEPTION}{}", header(":exception-type").unwrap_or_default()),
        Some("error") => {
            let data = json!({"message": header(":error-message").unwrap_or_default()}).to_string();
            let name = format!("{ERROR}{}", header(":error-code").unwrap_or_default());
            return Ok(Some(Event { name, data }));
        }
        _ => return Ok(None),
    };
    let data = std::str::from_utf8(message.payload()).map_err(|_| SseError::NotUtf8)?;
    Ok(Some(Event {
        name,
        data: data.to_owned(),
    }))
}
