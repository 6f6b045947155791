//! A stream's bytes as events, however they are told apart.

use std::fmt::Debug;

use crate::dialect::Framing;
use crate::sse::{Event, MAX_EVENT, SseDecoder, SseError};

/// Takes a stream apart that is neither server-sent events nor lines.
pub trait Framer: Debug + Send + Sync {
    /// Takes the next bytes and appends the events that they complete.
    ///
    /// # Errors
    /// Bytes that are no such stream, and an event that is too large.
    fn push(&mut self, bytes: &[u8], out: &mut Vec<Event>) -> Result<(), SseError>;

    /// Ends the stream.
    ///
    /// # Errors
    /// When it was cut within an event.
    fn finish(&mut self) -> Result<(), SseError>;
}

/// Turns bytes into events.
#[derive(Debug)]
pub enum Frames {
    /// Server-sent events.
    Sse(SseDecoder),
    /// A value a line.
    Lines(Vec<u8>),
    /// A provider's own form.
    Own(Box<dyn Framer>),
}

impl Frames {
    /// At the beginning of a stream.
    pub fn new(framing: Framing) -> Self {
        match framing {
            Framing::Sse => Self::Sse(SseDecoder::new()),
            Framing::Lines => Self::Lines(Vec::new()),
            Framing::Own { framer, .. } => Self::Own(framer()),
        }
    }

    /// Takes the next bytes and appends the events that they complete.
    ///
    /// # Errors
    /// Bytes that are no text, and an event that is too large.
    pub fn push(&mut self, mut bytes: &[u8], out: &mut Vec<Event>) -> Result<(), SseError> {
        let line = match self {
            Self::Sse(sse) => return sse.push(bytes, out),
            Self::Own(framer) => return framer.push(bytes, out),
            Self::Lines(line) => line,
        };
        loop {
            let end = bytes.iter().position(|b| *b == b'\n');
            let piece = end.map_or(bytes, |end| &bytes[..end]);
            if line.len() + piece.len() > MAX_EVENT {
                return Err(SseError::TooLarge);
            }
            line.extend_from_slice(piece);
            let Some(end) = end else { return Ok(()) };
            let text = std::str::from_utf8(line).map_err(|_| SseError::NotUtf8)?;
            out.extend(event(text));
            line.clear();
            bytes = &bytes[end + 1..];
        }
    }

    /// Ends the stream: what has been collected is given out.
    ///
    /// # Errors
    /// When the stream was cut within a character.
    pub fn finish(&mut self) -> Result<Option<Event>, SseError> {
        match self {
            Self::Sse(sse) => sse.finish(),
            Self::Own(framer) => framer.finish().map(|()| None),
            Self::Lines(line) => match std::str::from_utf8(line) {
                Ok(text) => Ok(event(text)),
                Err(e) if e.error_len().is_none() => Err(SseError::CutCharacter),
                Err(_) => Err(SseError::NotUtf8),
            },
        }
    }
}

fn event(line: &str) -> Option<Event> {
    let data = line.trim().trim_start_matches('\u{feff}');
    (!data.is_empty()).then(|| Event {
        name: String::new(),
        data: data.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_events_however_they_are_cut() {
        let bytes = "{\"a\":\"ñ\"}\r\n\n{\"b\":1}".as_bytes();
        for cut in 0..=bytes.len() {
            let mut frames = Frames::new(Framing::Lines);
            let mut events = Vec::new();
            frames.push(&bytes[..cut], &mut events).unwrap();
            frames.push(&bytes[cut..], &mut events).unwrap();
            events.extend(frames.finish().unwrap());
            let data: Vec<&str> = events.iter().map(|e| e.data.as_str()).collect();
            assert_eq!(data, ["{\"a\":\"ñ\"}", "{\"b\":1}"], "{cut}");
        }
        let mut frames = Frames::new(Framing::Lines);
        frames.push(b"{\"a\": \"\xc3", &mut Vec::new()).unwrap();
        assert_eq!(frames.finish(), Err(SseError::CutCharacter));
    }
}
