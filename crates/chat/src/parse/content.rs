//! The content of a message while its lines are being read.

use std::ops::Range;

use super::line::{strip, stripped_range};

/// Lines that follow each other in the text are not copied until the message is whole; only from the first on that is
/// not in the content as it is in the text they are.
pub(super) struct Content<'a> {
    text: &'a str,
    /// The lines so far, as long as they are a piece of the text.
    piece: Range<usize>,
    /// The lines so far, each with a line feed, when they are not.
    copied: Option<String>,
    /// Number and start of the first line that is not blank.
    at: (usize, usize),
    is_blank: bool,
}

impl<'a> Content<'a> {
    pub fn new(text: &'a str) -> Self {
        Self {
            text,
            piece: 0..0,
            copied: None,
            at: (0, 0),
            is_blank: true,
        }
    }

    /// Adds a line whose bytes in the text are `range`, line end and all.
    pub fn keep(&mut self, line: &str, number: usize, range: &Range<usize>) {
        // Nothing but a line feed was taken off.
        let is_as_in_text = range.len() <= line.len() + 1;
        let follows = self.piece.is_empty() || self.piece.end == range.start;
        if self.copied.is_some() || !is_as_in_text || !follows {
            return self.put(line, number, range);
        }
        self.see(line, number, range);
        if self.piece.is_empty() {
            self.piece.start = range.start;
        }
        self.piece.end = range.end;
    }

    /// Adds a line that stands for the one at `range`.
    pub fn put(&mut self, line: &str, number: usize, range: &Range<usize>) {
        self.see(line, number, range);
        let piece = &self.text[self.piece.clone()];
        let copied = self.copied.get_or_insert_with(|| piece.to_owned());
        copied.push_str(line);
        copied.push('\n');
    }

    fn see(&mut self, line: &str, number: usize, range: &Range<usize>) {
        if self.is_blank {
            self.at = (number, range.start);
            self.is_blank = strip(line).is_empty();
        }
    }

    /// The content without the blanks around it, and number and start of its first line. Nothing is left.
    pub fn take(&mut self) -> (String, usize, usize) {
        let (line, start) = self.at;
        let content = match self.copied.take() {
            None => strip(&self.text[self.piece.clone()]).to_owned(),
            Some(mut copied) => {
                let kept = stripped_range(&copied);
                copied.truncate(kept.end);
                copied.drain(..kept.start);
                copied.shrink_to_fit();
                copied
            }
        };
        self.piece = 0..0;
        self.is_blank = true;
        (content, line, start)
    }

    /// Whether the content is all of the text, as it is there.
    pub fn whole(&self) -> bool {
        self.copied.is_none() && self.piece == (0..self.text.len())
    }

    /// All lines as they were added, without the last line feed.
    pub fn into_lines(self) -> String {
        let mut lines = self.copied.unwrap_or_else(|| self.text[self.piece].to_owned());
        if lines.ends_with('\n') {
            lines.pop();
        }
        lines
    }
}
