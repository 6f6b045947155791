//! HTML to text, token by token: no tree is built, so that neither depth nor size can do harm.

use std::collections::HashSet;
use std::convert::Infallible;

use html5gum::emitters::callback::{CallbackEmitter, CallbackEvent};
use html5gum::{Span, Tokenizer};
use url::Url;

use super::Link;

/// The text of a page and what it looks like.
#[derive(Debug, Default)]
pub(crate) struct Extracted {
    pub(crate) title: Option<String>,
    pub(crate) text: String,
    pub(crate) cut: bool,
    pub(crate) links: Vec<Link>,
    /// What links are relative to.
    pub(crate) base: Option<Url>,
    pub(crate) facts: Facts,
}

/// How a page is built, as far as a stream of tags tells.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Facts {
    /// Start tags.
    pub(crate) elements: usize,
    /// Navigation, asides and the like: what stands around a text.
    pub(crate) surroundings: usize,
}

/// Text of a length, blanks put together: runs of blanks are one, around line ends none, at most two line ends in a row.
struct Sink {
    out: String,
    chars: usize,
    max: usize,
    cut: bool,
    newlines: u8,
    blank: bool,
}

impl Sink {
    fn new(max: usize) -> Self {
        Self {
            out: String::new(),
            chars: 0,
            max,
            cut: false,
            newlines: 0,
            blank: false,
        }
    }

    fn newline(&mut self) {
        self.newlines = self.newlines.saturating_add(1);
    }

    fn space(&mut self) {
        self.blank = true;
    }

    fn write(&mut self, text: &str) {
        for c in text.chars() {
            match c {
                '\n' | '\r' => self.newline(),
                ' ' | '\t' | '\u{b}' | '\u{c}' | '\u{a0}' => self.space(),
                c if is_noise(c) => {}
                c => self.letter(c),
            }
            if self.cut {
                return;
            }
        }
    }

    fn letter(&mut self, c: char) {
        if !self.out.is_empty() {
            match (self.newlines, self.blank) {
                (0, false) => {}
                (0, true) => self.push(' '),
                (1, _) => self.push('\n'),
                _ => {
                    self.push('\n');
                    self.push('\n');
                }
            }
        }
        self.newlines = 0;
        self.blank = false;
        self.push(c);
    }

    fn push(&mut self, c: char) {
        if self.chars == self.max {
            self.cut = true;
            return;
        }
        self.out.push(c);
        self.chars += 1;
    }
}

/// Characters that show nothing and do something: controls, directions, and the tags in which text can be hidden.
fn is_noise(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}' | '\u{e0000}'..='\u{e007f}')
}

/// Text that is none of HTML's, as it is but for its length and characters that do something; and whether it was cut.
pub(crate) fn plain(text: &str, max_chars: usize) -> (String, bool) {
    let keep = |c: &char| matches!(c, '\n' | '\r' | '\t') || !is_noise(*c);
    let mut characters = text.chars().peekable();
    // By itself a carriage return ends a line, as it did on old systems; a terminal would write over the line.
    let lines = std::iter::from_fn(|| {
        Some(match characters.next()? {
            '\r' if characters.peek() != Some(&'\n') => '\n',
            other => other,
        })
    });
    let mut left = lines.filter(keep);
    let out: String = left.by_ref().take(max_chars).collect();
    (out, left.next().is_some())
}

/// Tags that begin a line before and after them.
fn is_block(name: &[u8]) -> bool {
    const BLOCKS: &[&[u8]] = &[
        b"p",
        b"div",
        b"br",
        b"li",
        b"tr",
        b"h1",
        b"h2",
        b"h3",
        b"h4",
        b"h5",
        b"h6",
        b"section",
        b"article",
        b"header",
        b"footer",
        b"ul",
        b"ol",
        b"table",
        b"pre",
        b"blockquote",
        b"hr",
    ];
    BLOCKS.contains(&name)
}

/// Tags that stand in a head, also where the head itself is not written.
fn belongs_to_head(name: &[u8]) -> bool {
    const OF_HEAD: &[&[u8]] = &[
        b"html",
        b"head",
        b"title",
        b"meta",
        b"link",
        b"base",
        b"basefont",
        b"bgsound",
        b"script",
        b"style",
        b"noscript",
        b"template",
        b"noframes",
    ];
    OF_HEAD.contains(&name)
}

/// Where in the page the reader is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// Before any content; a head may come.
    Start,
    /// In a head that is written.
    Head,
    /// In what is shown.
    Body,
}

/// What the text between two tags is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Raw {
    /// For nobody.
    Dropped,
    /// The title, or the title of a drawing.
    Title,
    /// It holds tags of its own, which the tokenizer does not read where scripts would run.
    Markup,
}

struct Reader<'a> {
    sink: &'a mut Sink,
    page: &'a mut Extracted,
    max_links: usize,
    seen: HashSet<String>,
    place: Place,
    raw: Option<Raw>,
    /// Depth of drawings, whose titles are not the page's.
    drawings: usize,
    tag: Vec<u8>,
    attribute: Attribute,
    base: Option<String>,
    href: Option<String>,
    link: Option<(String, Sink)>,
    /// Inside of what the tokenizer left as it was.
    nested: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Attribute {
    Other,
    Href,
    Role,
}

impl Reader<'_> {
    fn opens(&mut self, name: &[u8]) {
        self.tag.clear();
        self.tag.extend_from_slice(name);
        self.attribute = Attribute::Other;
        self.href = None;
        let facts = &mut self.page.facts;
        facts.elements += 1;
        match name {
            b"head" if self.place == Place::Start => self.place = Place::Head,
            _ if self.place != Place::Body && !belongs_to_head(name) => self.place = Place::Body,
            _ => {}
        }
        match name {
            b"svg" => self.drawings += 1,
            b"nav" | b"aside" | b"footer" => facts.surroundings += 1,
            _ => {}
        }
        self.raw = match name {
            b"script" | b"style" => Some(Raw::Dropped),
            b"title" => Some(Raw::Title),
            b"noscript" | b"iframe" | b"noembed" if self.nested => Some(Raw::Dropped),
            b"noscript" | b"iframe" | b"noembed" => Some(Raw::Markup),
            _ => None,
        };
        self.gap(name);
    }

    fn opened(&mut self) {
        match self.tag.as_slice() {
            b"base" if self.base.is_none() => self.base = self.href.take(),
            b"a" | b"area" => {
                self.ends_link();
                if let Some(href) = self.href.take()
                    && self.page.links.len() < self.max_links
                {
                    self.link = Some((href, Sink::new(200)));
                    if self.tag == b"area" {
                        self.ends_link();
                    }
                }
            }
            _ => {}
        }
    }

    fn closes(&mut self, name: &[u8]) {
        self.raw = None;
        match name {
            b"head" if self.place == Place::Head => self.place = Place::Body,
            b"svg" => self.drawings = self.drawings.saturating_sub(1),
            b"a" => self.ends_link(),
            _ => {}
        }
        self.gap(name);
    }

    fn gap(&mut self, name: &[u8]) {
        if is_block(name) {
            self.sink.newline();
        } else {
            self.sink.space();
        }
        if let Some((_, text)) = &mut self.link {
            text.space();
        }
    }

    fn ends_link(&mut self) {
        let Some((href, text)) = self.link.take() else { return };
        let base = self
            .base
            .as_deref()
            .and_then(|base| resolve(self.page.base.as_ref(), base));
        let href = href.trim();
        let url = resolve(base.as_ref().or(self.page.base.as_ref()), href);
        let Some(url) = url.filter(|u| matches!(u.scheme(), "http" | "https")) else {
            return;
        };
        let url = String::from(url);
        // A link to a place in the page itself is no link to a page.
        if !href.starts_with('#') && url.len() <= 4096 && self.seen.insert(url.clone()) {
            self.page.links.push(Link {
                text: text.out.replace('\n', " "),
                url,
            });
        }
    }

    fn text(&mut self, value: &[u8]) {
        match self.raw {
            Some(Raw::Dropped) => return,
            Some(Raw::Title) => {
                if self.drawings == 0 && self.page.title.is_none() {
                    let text = String::from_utf8_lossy(value).replace("\r\n", "\n");
                    let text: String = text
                        .chars()
                        .filter(|c| *c == '\n' || *c == '\t' || !is_noise(*c))
                        .collect();
                    let text = text.trim();
                    self.page.title = (!text.is_empty()).then(|| text.chars().take(1000).collect());
                }
                return;
            }
            Some(Raw::Markup) => {
                if self.place != Place::Head {
                    self.raw = None;
                    self.nested = true;
                    self.run(value);
                    self.nested = false;
                }
                return;
            }
            None => {}
        }
        let blank = value.iter().all(u8::is_ascii_whitespace);
        if !blank {
            // A text ends a head that has no end of its own.
            self.place = if self.place == Place::Start {
                Place::Body
            } else {
                self.place
            };
        }
        if self.place == Place::Head {
            return;
        }
        let text = String::from_utf8_lossy(value);
        if !self.sink.cut {
            self.sink.write(&text);
        }
        if let Some((_, link)) = &mut self.link
            && !link.cut
        {
            link.write(&text);
        }
    }
}

impl Reader<'_> {
    fn run(&mut self, html: &[u8]) {
        each_event(html, |event| self.event(event));
    }

    fn event(&mut self, event: CallbackEvent<'_>) {
        match event {
            CallbackEvent::OpenStartTag { name } => self.opens(name),
            CallbackEvent::AttributeName { name } => {
                self.attribute = match name {
                    b"href" if self.href.is_none() => Attribute::Href,
                    b"role" => Attribute::Role,
                    _ => Attribute::Other,
                };
            }
            CallbackEvent::AttributeValue { value } => match self.attribute {
                Attribute::Href => self.href = Some(String::from_utf8_lossy(value).into_owned()),
                Attribute::Role if value == b"navigation" => self.page.facts.surroundings += 1,
                _ => {}
            },
            CallbackEvent::CloseStartTag { self_closing } => {
                // Only in a drawing does the slash mean anything.
                if self_closing && self.drawings > 0 && self.tag == b"svg" {
                    self.drawings -= 1;
                }
                self.opened();
            }
            CallbackEvent::EndTag { name } => self.closes(name),
            CallbackEvent::String { value } => self.text(value),
            CallbackEvent::Comment { .. } | CallbackEvent::Doctype { .. } | CallbackEvent::Error(_) => {}
        }
    }
}

/// Tells a closure what the tokenizer finds.
pub(super) fn each_event(html: &[u8], mut tell: impl FnMut(CallbackEvent<'_>)) {
    let mut emitter = CallbackEmitter::new(|event: CallbackEvent<'_>, _: Span<()>| -> Option<Infallible> {
        tell(event);
        None
    });
    emitter.naively_switch_states(true);
    // It gives no tokens, so this runs to the end at once.
    for _ in Tokenizer::new_with_emitter(html, emitter) {}
}

/// A reference against what it is relative to.
fn resolve(base: Option<&Url>, reference: &str) -> Option<Url> {
    base.map_or_else(|| Url::parse(reference), |base| base.join(reference))
        .ok()
}

/// The text of HTML: heads, scripts, styles and comments left out, a line for each block, one space for other tags.
pub(crate) fn of_html(html: &str, base: Option<&Url>, max_chars: usize, max_links: usize) -> Extracted {
    let mut page = Extracted {
        base: base.cloned(),
        ..Extracted::default()
    };
    let mut sink = Sink::new(max_chars);
    {
        let mut reader = Reader {
            sink: &mut sink,
            page: &mut page,
            max_links,
            seen: HashSet::new(),
            place: Place::Start,
            raw: None,
            drawings: 0,
            tag: Vec::new(),
            attribute: Attribute::Other,
            base: None,
            href: None,
            link: None,
            nested: false,
        };
        reader.run(html.as_bytes());
        reader.ends_link();
        let base = reader.base.take();
        if let Some(base) = base {
            page.base = resolve(page.base.as_ref(), &base).or(page.base);
        }
    }
    page.text = sink.out;
    page.cut = sink.cut;
    page
}

/// Text with its blanks put together as in [`of_html`]; and whether it was cut.
pub(super) fn tidy(text: &str, max_chars: usize) -> (String, bool) {
    let mut sink = Sink::new(max_chars);
    sink.write(text);
    (sink.out, sink.cut)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_carriage_return_by_itself_ends_a_line() {
        assert_eq!(plain("a\r\nb\rc\r\r\nd\r", 100), ("a\r\nb\nc\n\r\nd\n".into(), false));
        assert_eq!(plain("a\rb", 2), ("a\n".into(), true));
    }
}
