//! XML-like elements: which tags open and close them.

use std::collections::HashMap;

use memchr::{memchr, memchr_iter, memrchr};

/// The name of the element that a line opens, if it begins with an opening tag that is not closed in itself.
pub(super) fn opening_tag(stripped: &str) -> Option<&str> {
    let inner = stripped.strip_prefix('<')?;
    let name = name(inner);
    let attributes = &inner[name.len()..inner.find('>')?.max(name.len())];
    let is_named = !name.is_empty() && (attributes.is_empty() || attributes.starts_with(char::is_whitespace));
    (is_named && !attributes.ends_with('/')).then_some(name)
}

/// The name in a closing tag with which a text begins.
pub(crate) fn closing_tag(text: &str) -> Option<&str> {
    let inner = text.strip_prefix("</")?;
    let name = name(inner);
    (!name.is_empty() && inner[name.len()..].starts_with('>')).then_some(name)
}

/// The letters of a name with which a text begins.
fn name(text: &str) -> &str {
    let is_letter = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
    &text[..text.bytes().position(|b| !is_letter(b)).unwrap_or(text.len())]
}

/// How many times an element is open behind a line, when it was open `depth` times before.
pub(super) fn depth_after(line: &str, tag: &str, depth: usize) -> usize {
    let (mut opens, mut closes) = (0, 0);
    // Where the next `>` is. Behind the last one no further search is made for each `<`.
    let mut end = Some(0);
    for at in memchr_iter(b'<', line.as_bytes()) {
        if closing_tag(&line[at..]) == Some(tag) {
            closes += 1;
            continue;
        }
        let Some(rest) = line[at + 1..].strip_prefix(tag) else {
            continue;
        };
        if !rest.starts_with(['>', ' ', '\t']) {
            continue;
        }
        let from = line.len() - rest.len();
        if end.is_some_and(|end| end < from) {
            end = memchr(b'>', &line.as_bytes()[from..]).map(|found| from + found);
        }
        let closes_itself = end.is_some_and(|end| line[from..end].ends_with('/'));
        opens += usize::from(!closes_itself);
    }
    (depth + opens).saturating_sub(closes)
}

/// Where the last closing tag of each element is, found from the end of the text on, as far as it is asked for.
pub(super) struct ClosingTags<'a> {
    text: &'a str,
    last: HashMap<&'a str, usize>,
    /// From here on all closing tags are known.
    known_from: usize,
}

impl<'a> ClosingTags<'a> {
    pub fn new(text: &'a str) -> Self {
        Self {
            text,
            last: HashMap::new(),
            known_from: text.len(),
        }
    }

    /// Whether an element is closed at `from` or behind it.
    pub fn is_any_behind(&mut self, tag: &str, from: usize) -> bool {
        if let Some(at) = self.last.get(tag) {
            return *at >= from;
        }
        while self.known_from > from {
            let Some(found) = memrchr(b'<', &self.text.as_bytes()[from..self.known_from]) else {
                self.known_from = from;
                return false;
            };
            let at = from + found;
            self.known_from = at;
            if let Some(closed) = closing_tag(&self.text[at..]) {
                self.last.entry(closed).or_insert(at);
                if closed == tag {
                    return true;
                }
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_are_counted_in_a_line() {
        for (line, depth) in [
            ("<b>", 2),
            ("<b><b x=\"1\">", 3),
            ("<b/>", 1),
            ("<b /><b y/>", 1),
            ("<b <b />", 1),
            ("<b <b", 2),
            ("<bb></bb>", 1),
            ("</b>", 0),
            ("</b></b><b>", 0),
            ("< b></ b></b", 1),
        ] {
            assert_eq!(depth_after(line, "b", 1), depth, "{line}");
        }
    }

    #[test]
    fn closing_tags_are_found_wherever_the_search_has_come_to() {
        let text = "</a></b><x></b></c></b c>";
        let mut tags = ClosingTags::new(text);
        assert!(tags.is_any_behind("c", 0));
        assert!(!tags.is_any_behind("a", 5));
        assert!(tags.is_any_behind("b", 11));
        assert!(!tags.is_any_behind("b", 12));
        assert!(!ClosingTags::new(text).is_any_behind("x", 0));
        assert!(ClosingTags::new(text).is_any_behind("a", 0));
    }
}
