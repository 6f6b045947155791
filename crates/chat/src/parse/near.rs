//! Words at the beginning of a line that may have been meant for a role.

use std::collections::HashMap;

use super::line::word;
use crate::message::Role;

/// A longer word is like no role: less than a sixth of its letters are in the longest one, and `suggest` wants more.
const LONGEST: usize = 120;
/// Answers that are kept. A text repeats its words, or it has more of them than are worth keeping.
const KEPT: usize = 4096;

/// Remembers the answers: comparing a word with all roles takes as long as reading some thousand bytes.
#[derive(Default)]
pub(super) struct NearRoles<'a> {
    known: HashMap<&'a str, Option<Role>>,
}

impl<'a> NearRoles<'a> {
    /// The word of a line `word: …` or `word:`, and the role that it may have been meant for.
    pub fn role_meant_by(&mut self, line: &'a str) -> Option<(&'a str, Role)> {
        let (word, rest) = word(line)?;
        let is_like_header = rest.is_empty() || rest.starts_with([' ', '\t']);
        if !is_like_header || !(3..=LONGEST).contains(&word.len()) {
            return None;
        }
        if let Some(role) = self.known.get(word) {
            return role.map(|role| (word, role));
        }
        let near = decanus_base::names::suggest(word, Role::ALL.iter().map(|r| r.as_str()));
        let role = near.first().and_then(|name| Role::from_word(name));
        if self.known.len() < KEPT {
            self.known.insert(word, role);
        }
        role.map(|role| (word, role))
    }
}
