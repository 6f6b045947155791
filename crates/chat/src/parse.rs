//! Chat text → messages.
//!
//! A line that begins with a role and a colon opens a message, unless it stands in a protected region: a fence of
//! backticks, `[[ … ]]`, an XML-like element, or the output of a command (`word:-- CMD {{{` … `}}}`). A header with text
//! behind the colon is a whole message; what follows it belongs to the user. `role:= "…"` gives the content exactly, as
//! a JSON string. `\user: x` is the text `user: x`. There are no comments.

use std::collections::HashMap;
use std::ops::Range;

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
    pub unclosed_tags: Vec<String>,
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

/// What a line means where no region is open.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Line<'a> {
    /// `role: rest`; `rest` is stripped.
    Header(Role, &'a str),
    /// `role:= "…"`, decoded.
    Exact(Role, String),
    /// `\role: …`, without the backslash.
    Escaped(&'a str),
    /// Anything else.
    Text,
}

pub(crate) fn classify(line: &str) -> Line<'_> {
    if let Some(rest) = line.strip_prefix('\\') {
        // `\\user:` keeps both backslashes: only one that stands before a header is an escape.
        return if resembles_header(rest) {
            Line::Escaped(rest)
        } else {
            Line::Text
        };
    }
    match header(line) {
        None => Line::Text,
        Some((role, rest)) => match rest
            .strip_prefix('=')
            .map(|json| serde_json::from_str::<String>(strip(json)))
        {
            Some(Ok(content)) => Line::Exact(role, content),
            _ => Line::Header(role, strip(rest)),
        },
    }
}

/// Whether a line is a header, or would be one if its word were a role. Such lines are escaped and unescaped too, so that
/// a role that a later version adds opens no message in an old file.
pub(crate) fn resembles_header(line: &str) -> bool {
    let is_word = |b: &u8| b.is_ascii_lowercase() || b.is_ascii_digit() || *b == b'_';
    let length = line.bytes().take_while(|b| is_word(b)).count();
    let Some(rest) = line[length..].strip_prefix(':').filter(|_| length > 0) else {
        return false;
    };
    rest.is_empty() || rest.starts_with([' ', '\t', '\x0b', '\x0c', '\r']) || header(line).is_some()
}

/// A role at column 0 with a colon, and what follows it. `word://` is never a header.
fn header(line: &str) -> Option<(Role, &str)> {
    let (word, rest) = line.split_once(':')?;
    let role = Role::from_word(word)?;
    (!rest.starts_with("//")).then_some((role, rest))
}

/// Removes ASCII white space and NUL at both ends; blanks of other scripts are content.
pub(crate) fn strip(text: &str) -> &str {
    text.trim_matches(|c: char| matches!(c, ' ' | '\t' | '\n' | '\r' | '\x0b' | '\x0c' | '\0'))
}

/// A region in which no line opens a message.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Region {
    None,
    /// A fence of this many backticks.
    Fence(usize),
    /// `[[`, or the output of a command.
    Square,
    /// An element of this name, open this many times.
    Element(String, usize),
}

struct Parser<'a> {
    text: &'a str,
    parsed: Parsed,
    role: Role,
    /// Line and bytes of the block header whose content is being collected; none for text without one.
    opened: Option<(usize, Range<usize>)>,
    content: String,
    /// First line of the content, for text without a header.
    content_at: (usize, usize),
    region: Region,
    region_line: usize,
    /// Where the last closing tag of each element is.
    last_close: HashMap<String, Option<usize>>,
    /// Whether headers are to be made content, by a backslash, instead of being read.
    escaping: bool,
}

/// Reads chat text. It never fails: what looks wrong is among the problems.
pub fn parse(text: &str) -> Parsed {
    let mut parser = Parser::new(text);
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

/// The content with a backslash before every line that would be read as a header or an escape.
pub(crate) fn escape(content: &str) -> String {
    let mut parser = Parser {
        escaping: true,
        ..Parser::new(content)
    };
    parser.lines();
    parser.content.pop();
    parser.content
}

impl<'a> Parser<'a> {
    fn new(text: &'a str) -> Self {
        Self {
            text,
            parsed: Parsed::default(),
            role: Role::User,
            opened: None,
            content: String::new(),
            content_at: (0, 0),
            region: Region::None,
            region_line: 0,
            last_close: HashMap::new(),
            escaping: false,
        }
    }

    fn lines(&mut self) {
        let mut start = 0;
        for (index, raw) in self.text.split_inclusive('\n').enumerate() {
            let range = start..start + raw.len();
            start = range.end;
            let line = raw
                .strip_suffix('\n')
                .map_or(raw, |l| l.strip_suffix('\r').unwrap_or(l));
            // Some editors begin a file with a byte order mark.
            let line = if index == 0 {
                line.strip_prefix('\u{feff}').unwrap_or(line)
            } else {
                line
            };
            self.line(line, index + 1, range);
        }
    }

    fn line(&mut self, line: &str, number: usize, range: Range<usize>) {
        match std::mem::replace(&mut self.region, Region::None) {
            Region::None => self.free_line(line, number, range),
            Region::Fence(ticks) => {
                if !closes_fence(strip(line), ticks) {
                    self.region = Region::Fence(ticks);
                }
                self.add(line, number, &range);
            }
            Region::Square => self.square_line(line, number, &range),
            Region::Element(tag, depth) => {
                let depth = (depth + count_opens(line, &tag)).saturating_sub(count_closes(line, &tag));
                if depth > 0 {
                    self.region = Region::Element(tag, depth);
                }
                self.add(line, number, &range);
            }
        }
    }

    fn square_line(&mut self, line: &str, number: usize, range: &Range<usize>) {
        let stripped = strip(line);
        if stripped.ends_with("}}}") && stripped.contains(":-- ") {
            self.add("</cmd_output>", number, range);
        } else if let Some(end) = line.find("]]").filter(|_| stripped.ends_with("]]")) {
            let kept = format!("{}{}", &line[..end], &line[end + 2..]);
            if !strip(&kept).is_empty() {
                self.add(&kept, number, range);
            }
        } else {
            self.region = Region::Square;
            self.add(line, number, range);
        }
    }

    fn free_line(&mut self, line: &str, number: usize, range: Range<usize>) {
        let stripped = strip(line);
        let open = |parser: &mut Self, region| {
            parser.region = region;
            parser.region_line = number;
        };
        if let Some(ticks) = opens_fence(stripped) {
            open(self, Region::Fence(ticks));
            return self.add(line, number, &range);
        }
        if stripped.starts_with("[[") {
            let kept = line.replacen("[[", "", 1);
            open(self, Region::Square);
            // `[[x]]` on one line opens and closes at once.
            return match strip(&kept) {
                "" => {}
                rest if rest.ends_with("]]") => {
                    self.region = Region::None;
                    self.square_line(&kept, number, &range);
                }
                _ => self.add(&kept, number, &range),
            };
        }
        if let Some(command) = command_output(line) {
            let opening = format!("<cmd_output cmd=\"{command}\">");
            open(self, Region::Square);
            return self.add(&opening, number, &range);
        }
        match classify(line) {
            Line::Header(..) | Line::Exact(..) | Line::Escaped(_) if self.escaping => {
                self.add(&format!("\\{line}"), number, &range);
            }
            Line::Header(role, rest) => {
                self.flush();
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
            Line::Escaped(rest) => self.add(rest, number, &range),
            Line::Text if self.escaping && resembles_header(line) => self.add(&format!("\\{line}"), number, &range),
            Line::Text => {
                self.warn_of_near_role(line, number);
                if let Some(tag) = opening_tag(stripped).map(str::to_owned) {
                    let depth = count_opens(stripped, &tag).saturating_sub(count_closes(stripped, &tag));
                    if depth > 0 {
                        if self.closes_after(&tag, range.end) {
                            open(self, Region::Element(tag, depth));
                        } else {
                            self.parsed.unclosed_tags.push(tag);
                        }
                    }
                }
                self.add(line, number, &range);
            }
        }
    }

    fn closes_after(&mut self, tag: &str, from: usize) -> bool {
        if !self.last_close.contains_key(tag) {
            self.last_close
                .insert(tag.to_owned(), self.text.rfind(&format!("</{tag}>")));
        }
        self.last_close.get(tag).copied().flatten().is_some_and(|at| at >= from)
    }

    fn warn_of_near_role(&mut self, line: &str, number: usize) {
        let Some((word, rest)) = line.split_once(':') else {
            return;
        };
        let is_word = !word.is_empty()
            && word
                .bytes()
                .all(|b| b.is_ascii_lowercase() || b == b'_' || b.is_ascii_digit());
        if !is_word || !(rest.is_empty() || rest.starts_with([' ', '\t'])) || word.len() < 3 {
            return;
        }
        let near = decanus_base::names::suggest(word, Role::ALL.iter().map(|r| r.as_str()));
        if let Some(role) = near.first() {
            let text = format!("`{word}:` is text, not a message; did you mean `{role}:`?");
            self.parsed.problems.push(Problem::warning(number, text));
        }
    }

    fn add(&mut self, line: &str, number: usize, range: &Range<usize>) {
        if strip(&self.content).is_empty() {
            self.content_at = (number, range.start);
        }
        self.content.push_str(line);
        self.content.push('\n');
    }

    fn flush(&mut self) {
        let content = strip(&self.content).to_owned();
        self.content.clear();
        let opened = self.opened.take();
        // A control message counts even when it is empty; an empty utterance does not.
        if content.is_empty() && !(opened.is_some() && self.role.is_inline()) {
            return;
        }
        let (line, start) = self.content_at;
        let (line, range) = opened.unwrap_or((line, start..start));
        self.emit(self.role, content, line, range);
    }

    fn emit(&mut self, role: Role, content: String, line: usize, range: Range<usize>) {
        // A NUL in the file is damage; one that is meant is written in the exact form, as an escape.
        if content.contains('\0') && !self.text[range.start..].starts_with(&format!("{role}:=")) {
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

/// The number of backticks with which a line opens a fence. A line with further backticks is inline code.
fn opens_fence(stripped: &str) -> Option<usize> {
    let ticks = stripped.bytes().take_while(|b| *b == b'`').count();
    (ticks >= 3 && !stripped[ticks..].contains('`')).then_some(ticks)
}

fn closes_fence(stripped: &str, ticks: usize) -> bool {
    stripped.len() >= ticks && stripped.bytes().all(|b| b == b'`')
}

/// The command of a line `word:-- COMMAND {{{`.
fn command_output(line: &str) -> Option<&str> {
    let (word, rest) = line.split_once(":-- ")?;
    let plain = !word.is_empty() && !word.contains(char::is_whitespace);
    strip(rest).strip_suffix("{{{").map(strip).filter(|_| plain)
}

/// The name of the element that a line opens, if it begins with an opening tag that is not closed in itself.
fn opening_tag(stripped: &str) -> Option<&str> {
    let inner = stripped.strip_prefix('<')?;
    let end = inner.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_'))?;
    let attributes = &inner[end..inner.find('>')?.max(end)];
    let named = end > 0 && (attributes.is_empty() || attributes.starts_with(char::is_whitespace));
    (named && !attributes.ends_with('/')).then(|| &inner[..end])
}

fn count_opens(line: &str, tag: &str) -> usize {
    let open = format!("<{tag}");
    let opens = line.match_indices(&open).filter(|(at, _)| {
        let rest = &line[at + open.len()..];
        let is_tag = rest.starts_with(['>', ' ', '\t']);
        let closes_itself = rest.find('>').is_some_and(|end| rest[..end].ends_with('/'));
        is_tag && !closes_itself
    });
    opens.count()
}

fn count_closes(line: &str, tag: &str) -> usize {
    line.matches(&format!("</{tag}>")).count()
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
        assert_eq!(parse("<b>\nx").unclosed_tags, ["b"]);
    }
}
