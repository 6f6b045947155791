//! Server-sent events, decoded as the bytes come in.
//!
//! Lines end with LF, CR or CRLF, in any mixture and cut anywhere. Bytes are decoded a line at a time, so a character
//! that is cut between two reads is never damaged. Comments and blocks without data give nothing.

/// The most that one event may hold.
pub const MAX_EVENT: usize = 16 << 20;

/// One event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// The `event:` field; empty when there is none.
    pub name: String,
    /// The `data:` lines, joined by LF.
    pub data: String,
}

/// Why a stream can't be decoded any further.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SseError {
    /// A line is not UTF-8.
    #[error("the stream is not UTF-8")]
    NotUtf8,
    /// The stream ended in the middle of a character.
    #[error("the stream ended within a character")]
    CutCharacter,
    /// One event is larger than [`MAX_EVENT`].
    #[error("one event of the stream is larger than {MAX_EVENT} bytes")]
    TooLarge,
    /// A frame of a provider's own form is none.
    #[error("{0}")]
    NoFrame(String),
    /// The stream ended in the middle of such a frame.
    #[error("the stream ended within a frame")]
    CutFrame,
}

/// Turns bytes into events.
#[derive(Debug, Default)]
pub struct SseDecoder {
    line: Vec<u8>,
    name: String,
    data: String,
    has_data: bool,
    /// The last byte was a CR: an LF that follows belongs to it.
    after_cr: bool,
    /// The first line has been seen, so that a byte order mark is no longer one.
    started: bool,
}

impl SseDecoder {
    /// At the beginning of a stream.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes the next bytes and appends the events that they complete.
    ///
    /// # Errors
    /// Bytes that are no text, and an event that is too large. The decoder is of no use after that.
    pub fn push(&mut self, mut bytes: &[u8], out: &mut Vec<Event>) -> Result<(), SseError> {
        while let Some(&first) = bytes.first() {
            if std::mem::take(&mut self.after_cr) && first == b'\n' {
                bytes = &bytes[1..];
                continue;
            }
            match bytes.iter().position(|b| matches!(b, b'\n' | b'\r')) {
                Some(end) => {
                    self.extend_line(&bytes[..end])?;
                    self.after_cr = bytes[end] == b'\r';
                    bytes = &bytes[end + 1..];
                    out.extend(self.end_line()?);
                }
                None => {
                    self.extend_line(bytes)?;
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// Ends the stream. Many servers leave out the blank line after the last event, so what has been collected is
    /// given out; whether it is whole is for the reader to say.
    ///
    /// # Errors
    /// When the stream was cut within a character.
    pub fn finish(&mut self) -> Result<Option<Event>, SseError> {
        if !self.line.is_empty() {
            if let Err(error) = std::str::from_utf8(&self.line) {
                return Err(if error.error_len().is_none() {
                    SseError::CutCharacter
                } else {
                    SseError::NotUtf8
                });
            }
            self.end_line()?;
        }
        Ok(self.dispatch())
    }

    fn extend_line(&mut self, bytes: &[u8]) -> Result<(), SseError> {
        if self.line.len() + self.data.len() + bytes.len() > MAX_EVENT {
            return Err(SseError::TooLarge);
        }
        self.line.extend_from_slice(bytes);
        Ok(())
    }

    fn end_line(&mut self) -> Result<Option<Event>, SseError> {
        let bytes = std::mem::take(&mut self.line);
        let mut line = std::str::from_utf8(&bytes).map_err(|_| SseError::NotUtf8)?;
        if !std::mem::replace(&mut self.started, true) {
            line = line.strip_prefix('\u{feff}').unwrap_or(line);
        }
        if line.is_empty() {
            return Ok(self.dispatch());
        }
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "data" => {
                if self.has_data {
                    self.data.push('\n');
                }
                self.data.push_str(value);
                self.has_data = true;
            }
            "event" => self.name = value.to_owned(),
            // Comments (an empty field name), `id`, `retry` and what nobody knows.
            _ => {}
        }
        // The line's buffer is kept for the next line.
        self.line = bytes;
        self.line.clear();
        Ok(None)
    }

    fn dispatch(&mut self) -> Option<Event> {
        let event = Event {
            name: std::mem::take(&mut self.name),
            data: std::mem::take(&mut self.data),
        };
        std::mem::take(&mut self.has_data).then_some(event)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decode(chunks: &[&[u8]]) -> Result<Vec<Event>, SseError> {
        let mut decoder = SseDecoder::new();
        let mut out = Vec::new();
        for chunk in chunks {
            decoder.push(chunk, &mut out)?;
        }
        out.extend(decoder.finish()?);
        Ok(out)
    }

    #[test]
    fn a_byte_order_mark_is_dropped_however_it_is_cut() {
        let text = "\u{feff}data: a\n\ndata: \u{feff}b\n\n".as_bytes();
        for cut in 0..=text.len() {
            let events = decode(&[&text[..cut], &text[cut..]]).unwrap();
            assert_eq!(
                events.iter().map(|e| e.data.as_str()).collect::<Vec<_>>(),
                ["a", "\u{feff}b"]
            );
        }
    }

    #[test]
    fn the_last_event_needs_no_blank_line() {
        assert_eq!(
            decode(&[b"event: x\ndata: a"]).unwrap(),
            [Event {
                name: "x".into(),
                data: "a".into()
            }]
        );
        assert_eq!(decode(&[b"event: x\n"]).unwrap(), []);
        assert_eq!(
            decode(&[b"data"]).unwrap(),
            [Event {
                name: String::new(),
                data: String::new()
            }]
        );
    }

    #[test]
    fn a_cut_character_is_reported() {
        assert_eq!(
            decode(&["data: 号".as_bytes(), &[0xe5, 0x8f]]),
            Err(SseError::CutCharacter)
        );
        assert_eq!(decode(&[b"data: \xff\n\n"]), Err(SseError::NotUtf8));
    }

    #[test]
    fn an_endless_event_is_refused() {
        let mut decoder = SseDecoder::new();
        let mut out = Vec::new();
        let line = [b"data: ".as_slice(), &[b'x'; 1 << 20], b"\n"].concat();
        assert_eq!(
            (0..17).find_map(|_| decoder.push(&line, &mut out).err()),
            Some(SseError::TooLarge)
        );
    }
}
