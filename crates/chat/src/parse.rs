//! Chat text → messages.
//!
//! A line that begins with a role and a colon opens a message, unless it stands in a protected region: a fence of
//! backticks, `[[ … ]]`, an XML-like element, or the output of a command (`word:-- CMD {{{` … `}}}`). A header with text
//! behind the colon is a whole message; what follows it belongs to the user. `role:= "…"` gives the content exactly, as
//! a JSON string. `\user: x` is the text `user: x`. There are no comments.

mod content;
mod element;
mod line;
mod near;

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::ops::Range;

use memchr::{memchr, memchr_iter};

use self::content::Content;
pub(crate) use self::element::closing_tag;
use self::element::{ClosingTags, depth_after, opening_tag};
pub(crate) use self::line::{Line, classify, strip};
use self::line::{broken_exact, closes_fence, command_output, opens_fence, resembles_header};
use self::near::NearRoles;
use crate::message::{Message, Role};

/// What was read.
#[derive(Clone, Debug, Default)]
pub struct Parsed {
    /// The messages, in order, each with its line.
    pub messages: Vec<Message>,
    /// For each message the bytes from the start of its header line to the end of that line (with its LF).
    pub headers: Vec<Range<usize>>,
    /// What looks wrong.
    pub problems: Vec<Problem>,
    /// The line of a region that is still open at the end: what is appended would become part of it.
    pub open_region: Option<usize>,
    /// Elements that were opened and never closed; a later closing tag would close them.
    pub unclosed_tags: BTreeSet<String>,
}

/// Something wrong in a chat file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Line, counted from 1; 0 for the whole file.
    pub line: usize,
    /// Whether a message was left out because of it; otherwise it is only a warning.
    pub error: bool,
    /// What is wrong.
    pub message: String,
}

impl Problem {
    /// Something that may not be meant; nothing is left out.
    pub fn warning(line: usize, message: impl Into<String>) -> Self {
        Self {
            line,
            error: false,
            message: message.into(),
        }
    }

    /// A message that can't be used.
    pub fn error(line: usize, message: impl Into<String>) -> Self {
        Self {
            line,
            error: true,
            message: message.into(),
        }
    }
}

/// A region in which no line opens a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Region<'a> {
    None,
    /// A fence of this many backticks.
    Fence(usize),
    /// `[[`, or the output of a command.
    Square,
    /// An element of this name, open this many times.
    Element(&'a str, usize),
}

/// One pass over the lines of a text. Content is copied once, when its message is whole, and no search goes over the same
/// text again and again, so that hostile texts too take time in proportion to their length (`bench/run chat`).
struct Parser<'a> {
    text: &'a str,
    parsed: Parsed,
    role: Role,
    /// Line and bytes of the block header whose content is being collected; none for text without one.
    opened: Option<(usize, Range<usize>)>,
    content: Content<'a>,
    region: Region<'a>,
    region_line: usize,
    closing_tags: ClosingTags<'a>,
    near: NearRoles<'a>,
    /// Whether headers are to be made content, by a backslash, instead of being read.
    escaping: bool,
}

/// Reads chat text. It never fails: what looks wrong is among the problems.
pub fn parse(text: &str) -> Parsed {
    let mut parser = Parser::new(text, false);
    parser.lines();
    parser.flush();
    if parser.region != Region::None {
        let line = parser.region_line;
        parser.parsed.open_region = Some(line);
        parser.parsed.problems.push(Problem::warning(
            line,
            "a fence, `[[` or element opened here is never closed",
        ));
    }
    parser.parsed
}

/// A content made ready to be printed behind the header of an utterance.
pub(crate) struct Escaped<'a> {
    /// The content with a backslash before every line that would be read as a header or an escape.
    pub text: Cow<'a, str>,
    /// Whether the walk over the lines changed nothing and left nothing open. Reading walks over the same lines and meets
    /// no header among them, so that it changes nothing either.
    pub is_as_it_was: bool,
}

/// Escapes a content.
pub(crate) fn escape(content: &str) -> Escaped<'_> {
    let mut parser = Parser::new(content, true);
    parser.lines();
    let whole = parser.content.whole();
    let closed = parser.region == Region::None && parser.parsed.unclosed_tags.is_empty();
    Escaped {
        is_as_it_was: whole && closed,
        text: if whole {
            Cow::Borrowed(content)
        } else {
            Cow::Owned(parser.content.into_lines())
        },
    }
}

impl<'a> Parser<'a> {
    fn new(text: &'a str, escaping: bool) -> Self {
        Self {
            text,
            parsed: Parsed::default(),
            role: Role::User,
            opened: None,
            content: Content::new(text),
            region: Region::None,
            region_line: 0,
            closing_tags: ClosingTags::new(text),
            near: NearRoles::default(),
            escaping,
        }
    }

    fn lines(&mut self) {
        let text = self.text;
        let last = (!text.is_empty() && !text.ends_with('\n')).then_some(text.len());
        let ends = memchr_iter(b'\n', text.as_bytes()).map(|at| at + 1).chain(last);
        let mut start = 0;
        for (index, end) in ends.enumerate() {
            let raw = &text[start..end];
            let line = raw
                .strip_suffix('\n')
                .map_or(raw, |l| l.strip_suffix('\r').unwrap_or(l));
            // Some editors begin a file with a byte order mark.
            let line = if index == 0 {
                line.strip_prefix('\u{feff}').unwrap_or(line)
            } else {
                line
            };
            self.line(line, index + 1, start..end);
            start = end;
        }
    }

    fn line(&mut self, line: &'a str, number: usize, range: Range<usize>) {
        match self.region {
            Region::None => self.free_line(line, number, range),
            Region::Fence(ticks) => {
                if closes_fence(strip(line), ticks) {
                    self.region = Region::None;
                }
                self.content.keep(line, number, &range);
            }
            Region::Square => self.square_line(line, number, &range),
            Region::Element(tag, depth) => {
                self.region = match depth_after(line, tag, depth) {
                    0 => Region::None,
                    depth => Region::Element(tag, depth),
                };
                self.content.keep(line, number, &range);
            }
        }
    }

    /// A line in a square region, as it is in the text or without the opening `[[`.
    fn square_line(&mut self, line: &str, number: usize, range: &Range<usize>) {
        let stripped = strip(line);
        self.region = Region::None;
        if stripped.ends_with("}}}") && stripped.contains(":-- ") {
            self.content.put("</cmd_output>", number, range);
        } else if let Some(end) = line.find("]]").filter(|_| stripped.ends_with("]]")) {
            let kept = format!("{}{}", &line[..end], &line[end + 2..]);
            if !strip(&kept).is_empty() {
                self.content.put(&kept, number, range);
            }
        } else {
            self.region = Region::Square;
            self.content.keep(line, number, range);
        }
    }

    fn open(&mut self, region: Region<'a>, number: usize) {
        self.region = region;
        self.region_line = number;
    }

    fn free_line(&mut self, line: &'a str, number: usize, range: Range<usize>) {
        let stripped = strip(line);
        if let Some(ticks) = opens_fence(stripped) {
            self.open(Region::Fence(ticks), number);
            return self.content.keep(line, number, &range);
        }
        if stripped.starts_with("[[") {
            let kept = line.replacen("[[", "", 1);
            self.open(Region::Square, number);
            // `[[x]]` on one line opens and closes at once.
            return match strip(&kept) {
                "" => {}
                rest if rest.ends_with("]]") => self.square_line(&kept, number, &range),
                _ => self.content.put(&kept, number, &range),
            };
        }
        if let Some(command) = command_output(line) {
            let opening = format!("<cmd_output cmd=\"{command}\">");
            self.open(Region::Square, number);
            return self.content.put(&opening, number, &range);
        }
        match classify(line) {
            Line::Header(..) | Line::Exact(..) | Line::Escaped(_) if self.escaping => {
                self.content.put(&format!("\\{line}"), number, &range);
            }
            Line::Header(role, rest) => {
                self.flush();
                if let Some(role) = broken_exact(line) {
                    let text = format!("`{role}:=` is not followed by a whole JSON string, so it is read as text");
                    self.parsed.problems.push(Problem::warning(number, text));
                }
                if rest.is_empty() {
                    self.role = role;
                    self.opened = Some((number, range));
                } else {
                    self.emit(role, rest.to_owned(), number, range);
                    self.role = Role::User;
                }
            }
            Line::Exact(role, content) => {
                self.flush();
                self.emit(role, content, number, range);
                self.role = Role::User;
            }
            Line::Escaped(rest) => self.content.put(rest, number, &range),
            Line::Text if self.escaping && resembles_header(line) => {
                self.content.put(&format!("\\{line}"), number, &range);
            }
            Line::Text => {
                if let Some((word, role)) = self.near.role_meant_by(line) {
                    let text = format!("`{word}:` is text, not a message; did you mean `{role}:`?");
                    self.parsed.problems.push(Problem::warning(number, text));
                }
                if let Some(tag) = opening_tag(stripped) {
                    self.opening_line(stripped, tag, number, range.end);
                }
                self.content.keep(line, number, &range);
            }
        }
    }

    /// A line that begins with an opening tag.
    fn opening_line(&mut self, stripped: &str, tag: &'a str, number: usize, end: usize) {
        let depth = depth_after(stripped, tag, 0);
        if depth == 0 {
            return;
        }
        if self.closing_tags.is_any_behind(tag, end) {
            self.open(Region::Element(tag, depth), number);
        } else if !self.parsed.unclosed_tags.contains(tag) {
            self.parsed.unclosed_tags.insert(tag.to_owned());
        }
    }

    fn flush(&mut self) {
        let (content, line, start) = self.content.take();
        let opened = self.opened.take();
        // A control message counts even when it is empty; an empty utterance does not.
        if content.is_empty() && !(opened.is_some() && self.role.is_inline()) {
            return;
        }
        let (line, range) = opened.unwrap_or((line, start..start));
        self.emit(self.role, content, line, range);
    }

    fn emit(&mut self, role: Role, content: String, line: usize, range: Range<usize>) {
        // A NUL in the file is damage; one that is meant is written in the exact form, as an escape.
        let holds_nul = memchr(0, content.as_bytes()).is_some();
        if holds_nul && !self.text[range.start..].starts_with(&format!("{role}:=")) {
            self.parsed.problems.push(Problem::error(
                line,
                format!("the {role} message holds a NUL; it is left out"),
            ));
            return;
        }
        self.parsed.messages.push(Message {
            role,
            content,
            line: Some(line),
        });
        self.parsed.headers.push(range);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Vec<(&'static str, String)> {
        parse(&text.replace('⏎', "\n"))
            .messages
            .into_iter()
            .map(|m| (m.role.as_str(), m.content))
            .collect()
    }

    fn expect(text: &str, expected: &[(&'static str, &str)]) {
        let expected: Vec<_> = expected.iter().map(|(r, c)| (*r, c.replace('⏎', "\n"))).collect();
        assert_eq!(read(text), expected, "{text}");
    }

    #[test]
    fn worked_examples_of_the_grammar() {
        expect(
            "system:⏎⏎Be terse.⏎⏎user:⏎⏎Hi⏎",
            &[("system", "Be terse."), ("user", "Hi")],
        );
        expect("user: hi", &[("user", "hi")]);
        expect("", &[]);
        expect("⏎⏎", &[]);
        expect("hello", &[("user", "hello")]);
        expect(
            "assistant:⏎A⏎B⏎user: q⏎C",
            &[("assistant", "A⏎B"), ("user", "q"), ("user", "C")],
        );
        expect(
            "user:⏎⏎Please read:⏎\\system:⏎ignore",
            &[("user", "Please read:⏎system:⏎ignore")],
        );
        expect("user:⏎⏎```⏎system: no⏎```⏎done", &[("user", "```⏎system: no⏎```⏎done")]);
        expect(
            "user:⏎⏎[[role: kept⏎user: kept too]]⏎end",
            &[("user", "role: kept⏎user: kept too⏎end")],
        );
        expect(
            "user:⏎⏎[[one line]]⏎assistant:⏎⏎not swallowed",
            &[("user", "one line"), ("assistant", "not swallowed")],
        );
        expect(
            "user:⏎⏎<note>x</note>⏎assistant:⏎⏎t",
            &[("user", "<note>x</note>"), ("assistant", "t")],
        );
        expect(
            "user:⏎⏎<f name=\"a\">⏎user: in⏎</f>⏎assistant: out",
            &[("user", "<f name=\"a\">⏎user: in⏎</f>"), ("assistant", "out")],
        );
        expect(
            "user:⏎⏎<b>⏎no close⏎assistant: out",
            &[("user", "<b>⏎no close"), ("assistant", "out")],
        );
        expect(
            "user:⏎⏎<f>⏎```⏎code: 1⏎```⏎</f>⏎assistant: out",
            &[("user", "<f>⏎```⏎code: 1⏎```⏎</f>"), ("assistant", "out")],
        );
        expect(
            "x:-- ls -l {{{⏎user: f⏎x:-- ls -l }}}⏎assistant: ok",
            &[
                ("user", "<cmd_output cmd=\"ls -l\">⏎user: f⏎</cmd_output>"),
                ("assistant", "ok"),
            ],
        );
        expect("user:\r⏎\r⏎hola\r⏎adiós\r⏎", &[("user", "hola⏎adiós")]);
        expect("user:⏎⏎π: pi⏎ñandú: bird", &[("user", "π: pi⏎ñandú: bird")]);
        let text = "Note: upper⏎ foo: indented⏎my-role: dash⏎my role: space";
        expect(text, &[("user", text)]);
        expect(
            "user:⏎⏎see⏎https://example.org/x⏎ok",
            &[("user", "see⏎https://example.org/x⏎ok")],
        );
        expect("# note⏎system: x", &[("user", "# note"), ("system", "x")]);
        expect(
            "user:⏎⏎    indented first⏎  second",
            &[("user", "indented first⏎  second")],
        );
    }

    #[test]
    fn nested_equal_elements_are_counted() {
        expect(
            "<f>⏎<f>⏎</f>⏎user: in⏎</f>⏎user: out",
            &[("user", "<f>⏎<f>⏎</f>⏎user: in⏎</f>"), ("user", "out")],
        );
    }

    #[test]
    fn a_longer_fence_holds_a_shorter_one() {
        expect(
            "````⏎```⏎user: in⏎```⏎````⏎user: out",
            &[("user", "````⏎```⏎user: in⏎```⏎````"), ("user", "out")],
        );
        expect("```x```⏎user: out", &[("user", "```x```"), ("user", "out")]);
        // A shell test in a fence opens nothing.
        expect(
            "```⏎[[ -f x ]]⏎[[⏎```⏎user: out",
            &[("user", "```⏎[[ -f x ]]⏎[[⏎```"), ("user", "out")],
        );
    }

    #[test]
    fn exact_form_and_unknown_words() {
        expect("user:= \" a\\n\\u0000 \"⏎user: b", &[("user", " a⏎\0 "), ("user", "b")]);
        expect("user:= not json", &[("user", "= not json")]);
        let parsed = parse("asistant: hello\nfoo: bar\n");
        assert_eq!(parsed.messages.len(), 1);
        assert_eq!(parsed.problems.len(), 1);
        assert_eq!(parsed.problems[0].line, 1);
        assert!(parsed.problems[0].message.contains("`assistant:`"));
    }

    #[test]
    fn damage_is_named_and_a_byte_order_mark_is_none() {
        expect("\u{feff}system: x⏎user: y", &[("system", "x"), ("user", "y")]);
        let parsed = parse("user: fine\nuser: a\0b\nuser:= \"a\\u0000b\"\n");
        assert_eq!(parsed.messages, [Message::user("fine"), Message::user("a\0b")]);
        assert_eq!(
            parsed.problems.iter().map(|p| (p.line, p.error)).collect::<Vec<_>>(),
            [(2, true)]
        );
    }

    #[test]
    fn open_regions_are_reported() {
        let parsed = parse("user: a\n\n```\nuser: b\n");
        assert_eq!(parsed.open_region, Some(3));
        assert!(parse("<b>\nx\n<b>").unclosed_tags.iter().eq(["b"]));
    }
}
