//! The main part of a page.
//!
//! What the main part is, is told by dom_smoothie, after Mozilla's Readability. It needs a tree, and the tree of a hostile
//! page can be far larger than the page, so it gets the page written anew: balanced, not too deep, without the formatting
//! elements that a tree repeats in every paragraph, without all that is never text.

use std::panic::{AssertUnwindSafe, catch_unwind};

use dom_smoothie::{Config, Readability};
use html5gum::emitters::callback::CallbackEvent;

use super::Content;
use super::text::{Extracted, each_event};

/// More elements than any article has.
const MOST_ELEMENTS: usize = 50_000;

/// Deeper pages are made by mistake or malice.
const DEEPEST: usize = 256;

/// The library takes time that grows with the square of a piece of text, so pieces and pages have bounds.
const LONGEST_TEXT: usize = 64 * 1024;
const LARGEST_COPY: usize = 2 * 1024 * 1024;

/// A page with less text is given whole: its reader has it before him at once.
const SHORT_PAGE: usize = 2_000;

/// Less than this is a teaser and not a main part.
const SHORT_MAIN: usize = 500;

/// The HTML of the main part, when only that is wanted and there is one.
pub(super) fn main_part(html: &str, page: &Extracted, content: Content) -> Option<String> {
    let wanted = match content {
        Content::All => false,
        Content::Main => true,
        Content::Auto => page.facts.surroundings > 0 && (page.cut || page.text.chars().nth(SHORT_PAGE).is_some()),
    };
    if !wanted || page.facts.elements > MOST_ELEMENTS {
        return None;
    }
    let clean = Cleaner::clean(html)?;
    // The library is not ours: should it fail on a page, all text is still there.
    let grabbed = catch_unwind(AssertUnwindSafe(|| {
        let config = Config {
            disable_json_ld: true,
            char_threshold: SHORT_MAIN,
            max_elements_to_parse: MOST_ELEMENTS,
            ..Config::default()
        };
        let mut readability = Readability::new(clean, None, Some(config)).ok()?;
        if content == Content::Auto && !readability.is_probably_readable() {
            return None;
        }
        readability.parse().ok()
    }));
    let article = grabbed.ok().flatten()?;
    let long_enough = content == Content::Main || article.length >= SHORT_MAIN;
    (article.length > 0 && long_enough).then(|| article.content.to_string())
}

/// Writes a page anew.
struct Cleaner {
    out: Vec<u8>,
    /// Elements that are open, by name.
    open: Vec<Vec<u8>>,
    /// Whether the element that is being opened is written.
    writes: bool,
    keeps_attribute: bool,
    attributes: usize,
    /// Inside of a script and the like.
    raw: bool,
    /// Where the text since the last tag begins.
    text_from: usize,
    /// Too deep or too large.
    refused: bool,
}

impl Cleaner {
    /// The page, or nothing when it is too deep or too large.
    fn clean(html: &str) -> Option<String> {
        let mut cleaner = Self {
            out: Vec::with_capacity(html.len()),
            open: Vec::new(),
            writes: false,
            keeps_attribute: false,
            attributes: 0,
            raw: false,
            text_from: 0,
            refused: false,
        };
        each_event(html.as_bytes(), |event| {
            if !cleaner.refused {
                cleaner.event(event);
            }
        });
        if cleaner.refused {
            return None;
        }
        while let Some(name) = cleaner.open.pop() {
            cleaner.end(&name);
        }
        String::from_utf8(cleaner.out).ok()
    }

    fn event(&mut self, event: CallbackEvent<'_>) {
        match event {
            CallbackEvent::OpenStartTag { name } => self.opens(name),
            CallbackEvent::AttributeName { name } => {
                self.keeps_attribute = self.writes && self.attributes < 20 && keeps(name);
                if self.keeps_attribute {
                    self.attributes += 1;
                    self.out.push(b' ');
                    self.out.extend_from_slice(name);
                }
            }
            CallbackEvent::AttributeValue { value } if self.keeps_attribute => {
                self.out.extend_from_slice(b"=\"");
                let value = &value[..value.len().min(2048)];
                escape(&mut self.out, String::from_utf8_lossy(value).as_bytes());
                self.out.push(b'"');
            }
            CallbackEvent::CloseStartTag { .. } => {
                if self.writes {
                    self.out.push(b'>');
                    self.text_from = self.out.len();
                }
                self.writes = false;
                self.keeps_attribute = false;
            }
            CallbackEvent::EndTag { name } => self.closes(name),
            CallbackEvent::String { value } if !self.raw => {
                escape(&mut self.out, value);
                let text = self.out.len() - self.text_from;
                self.refused |= text > LONGEST_TEXT || self.out.len() > LARGEST_COPY;
            }
            _ => {}
        }
    }

    fn opens(&mut self, name: &[u8]) {
        self.raw = is_raw(name);
        self.attributes = 0;
        self.writes = !self.raw && is_kept(name);
        if !self.writes {
            return;
        }
        // What a tree would close is closed here, so that what is open is known.
        let top = self.open.last().map(Vec::as_slice);
        let sibling =
            top == Some(name) && !matches!(name, b"div" | b"ul" | b"ol" | b"table" | b"section" | b"blockquote");
        let ends_paragraph = top == Some(b"p") && name != b"a";
        if sibling || ends_paragraph || (top == Some(b"a") && name != b"img") {
            self.pop();
        }
        self.out.push(b'<');
        self.out.extend_from_slice(name);
        if !matches!(name, b"br" | b"hr" | b"img") {
            self.open.push(name.to_vec());
            self.refused |= self.open.len() > DEEPEST;
        }
    }

    fn closes(&mut self, name: &[u8]) {
        self.raw = false;
        if let Some(at) = self.open.iter().rposition(|open| open == name) {
            while self.open.len() > at {
                self.pop();
            }
        }
    }

    fn pop(&mut self) {
        if let Some(name) = self.open.pop() {
            self.end(&name);
        }
    }

    fn end(&mut self, name: &[u8]) {
        self.out.extend_from_slice(b"</");
        self.out.extend_from_slice(name);
        self.out.push(b'>');
        self.text_from = self.out.len();
    }
}

/// Elements whose content is no text of the page.
fn is_raw(name: &[u8]) -> bool {
    matches!(
        name,
        b"script" | b"style" | b"noscript" | b"iframe" | b"noembed" | b"textarea" | b"title" | b"xmp" | b"plaintext"
    )
}

/// Elements that tell how a page is built. Everything else loses its tags and keeps its text.
fn is_kept(name: &[u8]) -> bool {
    const KEPT: &[&[u8]] = &[
        b"html",
        b"head",
        b"body",
        b"p",
        b"div",
        b"br",
        b"hr",
        b"img",
        b"a",
        b"li",
        b"ul",
        b"ol",
        b"dl",
        b"dt",
        b"dd",
        b"h1",
        b"h2",
        b"h3",
        b"h4",
        b"h5",
        b"h6",
        b"section",
        b"article",
        b"main",
        b"header",
        b"footer",
        b"nav",
        b"aside",
        b"figure",
        b"figcaption",
        b"blockquote",
        b"pre",
        b"table",
        b"caption",
        b"thead",
        b"tbody",
        b"tfoot",
        b"tr",
        b"td",
        b"th",
        b"form",
        b"fieldset",
        b"details",
        b"summary",
        b"address",
    ];
    KEPT.contains(&name)
}

/// Attributes by which a main part is told from the rest, and the targets of links.
fn keeps(name: &[u8]) -> bool {
    matches!(
        name,
        b"class"
            | b"id"
            | b"role"
            | b"href"
            | b"rel"
            | b"hidden"
            | b"style"
            | b"aria-hidden"
            | b"aria-modal"
            | b"itemprop"
    )
}

fn escape(out: &mut Vec<u8>, text: &[u8]) {
    for byte in text {
        match byte {
            b'&' => out.extend_from_slice(b"&amp;"),
            b'<' => out.extend_from_slice(b"&lt;"),
            b'>' => out.extend_from_slice(b"&gt;"),
            b'"' => out.extend_from_slice(b"&quot;"),
            _ => out.push(*byte),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_written_anew() {
        let clean = |html: &str| Cleaner::clean(html).unwrap();
        assert_eq!(clean("<p>a<p>b<b>c</i>d"), "<p>a</p><p>bcd</p>");
        assert_eq!(
            clean("<a href='x&quot;y' onclick=z>t<a>u</a></a>"),
            "<a href=\"x&quot;y\">t</a><a>u</a>"
        );
        assert_eq!(clean("<ul><li>1<li>2</ul>3</div>"), "<ul><li>1</li><li>2</li></ul>3");
        assert_eq!(
            clean("<script>1<2</script><div><style>x</style>&lt;</div>"),
            "<div>&lt;</div>"
        );
        assert_eq!(Cleaner::clean(&"<div>".repeat(1000)), None);
        assert_eq!(Cleaner::clean(&"<div></x>".repeat(1000)), None);
        assert_eq!(clean(&"<b a=1>".repeat(1000)), "");
        assert_eq!(Cleaner::clean(&"x<b>".repeat(100_000)), None);
        assert_eq!(Cleaner::clean(&"<p>x".repeat(1_000_000)), None);
        assert!(Cleaner::clean(&"<p>x".repeat(100_000)).is_some());
    }
}
