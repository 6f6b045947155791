//! The bytes of the last answer, kept for the snapshot of a request that fails.

use std::sync::{Arc, Mutex, PoisonError};

/// What is kept of an answer's beginning, and of its end.
const KEPT: usize = 64 << 10;

/// An answer as it came, decompressed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RawAnswer {
    /// The HTTP status.
    pub status: u16,
    /// The content type; empty when there was none.
    pub content_type: String,
    /// The length of what came, in bytes.
    pub length: usize,
    first: Vec<u8>,
    last: Vec<u8>,
}

impl RawAnswer {
    /// The text, without its middle where it is long. Bytes that are no text are replaced.
    pub fn text(&self) -> String {
        let last = &self.last[self.last.len().saturating_sub(KEPT)..];
        let left_out = self.length - self.first.len() - last.len();
        let (first, last) = (String::from_utf8_lossy(&self.first), String::from_utf8_lossy(last));
        match left_out {
            0 => format!("{first}{last}"),
            _ => format!("{first}\n… {left_out} bytes are left out …\n{last}"),
        }
    }

    fn push(&mut self, mut bytes: &[u8]) {
        self.length += bytes.len();
        let room = KEPT - self.first.len();
        if room > 0 {
            let (first, rest) = bytes.split_at(room.min(bytes.len()));
            self.first.extend_from_slice(first);
            bytes = rest;
        }
        // What is too much is thrown away only now and then.
        self.last.extend_from_slice(bytes);
        if self.last.len() > 4 * KEPT {
            self.last.drain(..self.last.len() - KEPT);
        }
    }
}

/// Where a request writes the bytes of its answer. Each new try begins anew.
#[derive(Debug, Clone, Default)]
pub struct RawLog(Arc<Mutex<Option<RawAnswer>>>);

impl RawLog {
    /// The last answer of which anything came.
    pub fn take(&self) -> Option<RawAnswer> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    pub(crate) fn begin(&self, status: u16, content_type: &str) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(RawAnswer {
            status,
            content_type: content_type.to_owned(),
            ..RawAnswer::default()
        });
    }

    pub(crate) fn push(&self, bytes: &[u8]) {
        if let Some(answer) = &mut *self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            answer.push(bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_answer_keeps_its_ends() {
        let log = RawLog::default();
        log.push(b"nothing has begun");
        assert_eq!(log.take(), None);
        log.begin(200, "text/plain");
        log.push(b"begin ");
        for _ in 0..1000 {
            log.push(&[b'x'; 999]);
        }
        log.push(b" end");
        let answer = log.take().unwrap();
        assert_eq!((answer.status, answer.length), (200, 999_010));
        let text = answer.text();
        assert!(text.starts_with("begin xxx") && text.ends_with("xxx end"));
        assert!(text.contains(&format!("… {} bytes are left out …", 999_010 - 2 * KEPT)));
        log.begin(500, "");
        log.push(b"short");
        assert_eq!(log.take().unwrap().text(), "short");
    }
}
