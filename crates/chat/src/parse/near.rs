//! Words at the beginning of a line that may have been meant for a role.

use std::collections::HashMap;

use decanus_base::names::suggest;

use super::line::word;
use crate::message::Role;

/// A longer word is like no role: less than a sixth of its letters are in the longest one, and `suggest` wants more.
const LONGEST: usize = 120;
/// Answers that are kept. A text repeats its words, or it has more of them than are worth keeping.
const KEPT: usize = 4096;
/// `suggest` takes nothing that is less similar, by a little more than this.
const LEAST: f64 = 0.76;

/// Remembers the answers: `suggest` takes as long for one word as reading some thousand bytes.
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
        let role = nearest(word);
        if self.known.len() < KEPT {
            self.known.insert(word, role);
        }
        role.map(|role| (word, role))
    }
}

/// What `suggest` names first. It is asked only about roles that share enough letters with the word, which are few.
fn nearest(word: &str) -> Option<Role> {
    let mut letters = [0; 128];
    for letter in word.bytes() {
        letters[usize::from(letter & 127)] += 1;
    }
    let roles = Role::ALL.iter().map(|role| role.as_str());
    let near = suggest(word, roles.filter(|role| may_be_near(word, letters, role)));
    near.first().and_then(|name| Role::from_word(name))
}

/// Whether the Jaro-Winkler similarity could be enough if all letters that the two share stood in the right order.
fn may_be_near(word: &str, mut letters: [u8; 128], role: &str) -> bool {
    let mut shared = 0.0;
    for letter in role.bytes() {
        let left = &mut letters[usize::from(letter & 127)];
        if *left > 0 {
            *left -= 1;
            shared += 1.0;
        }
    }
    let equal = word.bytes().zip(role.bytes()).take(4).take_while(|(a, b)| a == b);
    let jaro = (shared / word.len() as f64 + shared / role.len() as f64 + 1.0) / 3.0;
    jaro + 0.1 * equal.count() as f64 * (1.0 - jaro) >= LEAST
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(3000))]

        #[test]
        fn no_role_is_missed(
            role in prop::sample::select(Role::ALL),
            from in 0..20_usize,
            taken in 0..4_usize,
            put in "[a-z0-9_]{0,5}",
            end in prop_oneof![4 => "", 1 => "[a-z_]{0,130}"],
        ) {
            let role = role.as_str();
            let from = from.min(role.len());
            let word = format!("{}{put}{}{end}", &role[..from], &role[(from + taken).min(role.len())..]);
            prop_assume!(Role::from_word(&word).is_none() && word.len() >= 3);
            let expected = suggest(&word, Role::ALL.iter().map(|r| r.as_str()));
            let line = format!("{word}: x");
            let found = NearRoles::default().role_meant_by(&line).map(|(_, role)| role.to_string());
            prop_assert_eq!(found, expected.into_iter().next());
        }
    }
}
