//! From messages to turns: what providers call one message.
//!
//! A chat holds all calls of an answer, then its text, then the outputs in the order in which they came. Providers want
//! one assistant message with all calls, then one output for every call, in call order, each under an id of its own.
//! The rules are the same for every HTTP dialect, so they are here and not in the dialects.

use std::borrow::Cow;
use std::collections::HashSet;

use decanus_chat::{FunctionCall, FunctionCallOutput, Message, ProviderParts, Role};
use serde_json::Value;

/// What the model reads in place of an output that was never written.
pub const INTERRUPTED: &str = "interrupted; whether it ran is unknown";

/// One turn of a conversation.
#[derive(Debug, Clone, PartialEq)]
pub enum Turn {
    /// Standing instructions.
    System(String),
    /// What the person says.
    User(String),
    /// A picture or a document that the person gives.
    Media(Media),
    /// What the model says, and what it calls. Ids are unique within the conversation.
    Answer {
        /// Opaque parts that came with it; for the backend that made them, to send back.
        parts: Option<ProviderParts>,
        /// The text, if there is any.
        text: Option<String>,
        /// The calls.
        calls: Vec<FunctionCall>,
    },
    /// The outputs of the answer before, one for each call, in the order of the calls.
    Outputs(Vec<Output>),
}

/// A picture or a PDF document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Media {
    /// Whether it is a PDF document; otherwise a picture.
    pub is_pdf: bool,
    /// A `data:` URL with base64, or a URL that the provider fetches.
    pub url: String,
}

impl Media {
    /// Media type and base64 text of a `data:` URL; none for a URL that the provider fetches.
    pub fn data(&self) -> Option<(&str, &str)> {
        let (kind, data) = self.url.strip_prefix("data:")?.split_once(";base64,")?;
        Some((kind.split(';').next().unwrap_or(kind), data))
    }

    /// The `data:` URL without the parameters of its type; any other URL as it is.
    pub fn plain_url(&self) -> Cow<'_, str> {
        match self.data() {
            Some((kind, data)) if !self.url[5..].starts_with(&format!("{kind};base64,")) => {
                Cow::Owned(format!("data:{kind};base64,{data}"))
            }
            _ => Cow::Borrowed(&self.url),
        }
    }

    /// The name of the file: that of the parameter `name` of a `data:` URL, else `document.pdf`.
    pub fn file_name(&self) -> String {
        let head = self
            .url
            .strip_prefix("data:")
            .and_then(|url| url.split_once(";base64,"));
        let given = head.and_then(|(head, _)| head.split(';').find_map(|part| part.strip_prefix("name=")));
        let name = given.map(unescaped).filter(|name| !name.trim().is_empty());
        name.unwrap_or_else(|| "document.pdf".into())
    }
}

/// A text with its `%XX` as the bytes that they stand for.
fn unescaped(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, more)) = rest.split_first() {
        let digits = more.get(..2).and_then(|two| std::str::from_utf8(two).ok());
        let byte = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok());
        match byte.filter(|_| *first == b'%') {
            Some(byte) => {
                bytes.push(byte);
                rest = &more[2..];
            }
            None => {
                bytes.push(*first);
                rest = more;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The output of a call, under the id that the call is sent with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Output {
    /// The id of the call.
    pub id: String,
    /// The tool.
    pub name: String,
    /// What the model reads.
    pub content: String,
    /// Whether the call failed.
    pub failed: bool,
}

/// The ids that have been given out. A repeated id gets a suffix and an empty one is made up, the same every time,
/// since both depend on nothing but the messages before.
#[derive(Debug, Clone, Default)]
pub struct WireIds {
    used: HashSet<String>,
    calls: usize,
}

impl WireIds {
    fn unique(&mut self, id: &str) -> String {
        self.calls += 1;
        let base = if id.is_empty() {
            format!("call_{}", self.calls)
        } else {
            id.to_owned()
        };
        let mut unique = base.clone();
        let mut n = 1;
        while !self.used.insert(unique.clone()) {
            n += 1;
            unique = format!("{base}_{n}");
        }
        unique
    }

    /// Takes back the ids of a group that is not closed: it will be made again, with more messages.
    pub fn take_back(&mut self, group: &Group) {
        for turn in &group.turns {
            let Turn::Answer { calls, .. } = turn else { continue };
            self.calls -= calls.len();
            for call in calls {
                self.used.remove(&call.id);
            }
        }
    }
}

/// The turns of the first messages of a conversation's rest.
#[derive(Debug, PartialEq)]
pub struct Group {
    /// The turns, in order.
    pub turns: Vec<Turn>,
    /// How many messages they are made of.
    pub messages: usize,
    /// Whether no later message can change them.
    pub closed: bool,
}

/// Takes the next group of messages that belong together; `rest` must not be empty, `at` is the position of its first
/// message, counted from 0.
///
/// An answer is a run of texts and calls with nothing in between, so a text before or after its calls is part of it,
/// while one after an output begins a new answer. Outputs are looked for up to the next answer; messages of other
/// people that stand among them go after them. Outputs without a call are left out, calls without an output get
/// [`INTERRUPTED`].
///
/// # Errors
/// A call or output whose record can't be read, naming the message.
pub fn next_group(rest: &[Message], at: usize, ids: &mut WireIds) -> Result<Group, String> {
    let is_answer = |m: &Message| matches!(m.role, Role::Assistant | Role::FunctionCall | Role::Provider);
    if !is_answer(&rest[0]) {
        return Ok(Group {
            turns: other(&rest[0]).into_iter().collect(),
            messages: 1,
            closed: true,
        });
    }
    // Two texts that follow each other without a call are two messages; calls and one text are one.
    let mut end = 0;
    let mut text: Option<String> = None;
    let mut calls = Vec::new();
    let mut parts = None;
    while let Some(message) = rest.get(end).filter(|m| is_answer(m)) {
        if message.role == Role::Provider {
            // It stands at the beginning of its answer.
            if end > 0 {
                break;
            }
            let read = ProviderParts::from_message(message);
            parts = Some(read.map_err(|e| format!("message {}: {e}", at + end + 1))?);
        } else if message.role == Role::FunctionCall {
            calls.push(FunctionCall::from_message(message).map_err(|e| format!("message {}: {e}", at + end + 1))?);
        } else if let Some(before) = text.as_mut() {
            if calls.is_empty() {
                break;
            }
            before.push_str("\n\n");
            before.push_str(&message.content);
        } else {
            text = Some(message.content.clone());
        }
        end += 1;
    }
    let original: Vec<String> = calls.iter().map(|c| c.id.clone()).collect();
    for call in &mut calls {
        call.id = ids.unique(&call.id);
    }
    let wire: Vec<(String, String)> = calls.iter().map(|c| (c.id.clone(), c.name.clone())).collect();
    let text = text.filter(|t| !t.is_empty() || calls.is_empty());
    if text.is_none() && calls.is_empty() {
        // What the parts belong to was left out, so they are, too.
        return Ok(Group {
            turns: Vec::new(),
            messages: end,
            closed: end < rest.len(),
        });
    }
    let mut turns = vec![Turn::Answer { parts, text, calls }];
    if original.is_empty() {
        // A call may still follow the last text.
        return Ok(Group {
            turns,
            messages: end,
            closed: end < rest.len(),
        });
    }

    let mut outputs: Vec<Option<FunctionCallOutput>> = vec![None; original.len()];
    let mut others = Vec::new();
    while outputs.iter().any(Option::is_none) {
        let Some(message) = rest.get(end).filter(|m| !is_answer(m)) else {
            break;
        };
        if message.role == Role::FunctionCallOutput {
            let output =
                FunctionCallOutput::from_message(message).map_err(|e| format!("message {}: {e}", at + end + 1))?;
            // Calls that share an id get their outputs by position.
            let place = (0..original.len()).find(|&i| original[i] == output.id && outputs[i].is_none());
            if let Some(i) = place {
                outputs[i] = Some(output);
            }
        } else {
            others.extend(other(message));
        }
        end += 1;
    }
    let closed = end < rest.len() || outputs.iter().all(Option::is_some);
    let outputs = wire.into_iter().zip(outputs).map(|((id, name), output)| {
        let failed = output.as_ref().is_none_or(|o| o.error.is_some());
        Output {
            id,
            name,
            content: output.map_or_else(|| INTERRUPTED.to_owned(), |o| o.content),
            failed,
        }
    });
    turns.push(Turn::Outputs(outputs.collect()));
    turns.extend(others);
    Ok(Group {
        turns,
        messages: end,
        closed,
    })
}

/// Whether a text is these pieces and nothing else; what stands between them may be blank. So a provider that keeps the
/// pieces knows whether somebody has changed the text since.
pub fn is_made_of(text: &str, pieces: &[&str]) -> bool {
    let mut rest = text.trim();
    for piece in pieces {
        match rest.strip_prefix(piece.trim()) {
            Some(more) => rest = more.trim_start(),
            None => return false,
        }
    }
    rest.is_empty()
}

/// What a part of an answer is that was kept for its backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kept<'a> {
    /// A text in its place.
    Text(&'a str),
    /// The place of a call; the call itself is a record of its own.
    Call,
    /// What only the backend understands.
    Opaque,
}

/// The content of an answer: everything in its place where that was kept and text and calls are still what they were,
/// else the opaque parts, then the text, then the calls.
pub fn in_order(
    parts: Vec<Value>,
    kind: impl Fn(&Value) -> Kept<'_>,
    text: Option<&str>,
    as_block: impl Fn(&str) -> Value,
    calls: Vec<Value>,
) -> Vec<Value> {
    let texts: Vec<&str> = parts
        .iter()
        .filter_map(|part| match kind(part) {
            Kept::Text(text) => Some(text),
            _ => None,
        })
        .collect();
    let places = parts.iter().filter(|part| kind(part) == Kept::Call).count();
    let has_texts = !texts.is_empty();
    let same = (text.is_none() || has_texts) && is_made_of(text.unwrap_or_default(), &texts);
    let same = (same || (text.is_none() && !has_texts)) && (places == 0 || places == calls.len());
    let mut calls = calls.into_iter();
    let mut content = Vec::new();
    for part in parts {
        match kind(&part) {
            Kept::Opaque => content.push(part),
            Kept::Text(_) if same => content.push(part),
            Kept::Call if same => content.extend(calls.next()),
            Kept::Text(_) | Kept::Call => {}
        }
    }
    if !same {
        content.extend(text.map(as_block));
    }
    content.extend(calls);
    content
}

fn other(message: &Message) -> Option<Turn> {
    match message.role {
        Role::System => Some(Turn::System(message.content.clone())),
        Role::User => Some(Turn::User(message.content.clone())),
        Role::Image | Role::Pdf => Some(Turn::Media(Media {
            is_pdf: message.role == Role::Pdf,
            url: message.content.clone(),
        })),
        // An output without a call; and what only a chat file has.
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use decanus_chat::Arguments;

    fn call(id: &str, name: &str) -> Message {
        FunctionCall {
            id: id.into(),
            name: name.into(),
            arguments: Arguments::from_text(""),
        }
        .to_message()
    }

    fn output(id: &str, content: &str) -> Message {
        FunctionCallOutput {
            id: id.into(),
            content: content.into(),
            ..Default::default()
        }
        .to_message()
    }

    fn show(messages: &[Message]) -> String {
        let (mut ids, mut at, mut shown) = (WireIds::default(), 0, Vec::new());
        while at < messages.len() {
            let group = next_group(&messages[at..], at, &mut ids).unwrap();
            at += group.messages;
            for turn in group.turns {
                shown.push(match turn {
                    Turn::System(t) => format!("s:{t}"),
                    Turn::User(t) => format!("u:{t}"),
                    Turn::Media(media) => format!("m:{}", media.url),
                    Turn::Answer { parts, text, calls } => {
                        let parts = parts.map(|p| p.backend).unwrap_or_default();
                        let ids: Vec<_> = calls.iter().map(|c| c.id.as_str()).collect();
                        format!("a:{parts}{}[{}]", text.unwrap_or_default(), ids.join(","))
                    }
                    Turn::Outputs(outputs) => {
                        let all: Vec<_> = outputs.iter().map(|o| format!("{}={}", o.id, o.content)).collect();
                        format!("o:{}", all.join(","))
                    }
                });
            }
            if !group.closed {
                shown.push("…".into());
            }
        }
        shown.join(" ")
    }

    #[test]
    fn calls_text_and_outputs_of_one_answer() {
        let m = [
            Message::user("q"),
            call("a", "f"),
            call("b", "g"),
            Message::assistant("look"),
            output("b", "2"),
            output("a", "1"),
            Message::assistant("end"),
        ];
        assert_eq!(show(&m), "u:q a:look[a,b] o:a=1,b=2 a:end[] …");
        // Text first, and the alternating order of other writers.
        let m = [
            Message::assistant("look"),
            call("a", "f"),
            output("a", "1"),
            call("b", "g"),
            output("b", "2"),
            Message::user("x"),
        ];
        assert_eq!(show(&m), "a:look[a] o:a=1 a:[b] o:b=2 u:x");
        let m = [
            Message::assistant("x"),
            call("a", "f"),
            Message::assistant("y"),
            output("a", "1"),
        ];
        assert_eq!(show(&m), "a:x\n\ny[a] o:a=1");
        let m = [
            Message::user("q"),
            Message::assistant("one"),
            Message::assistant("two"),
            Message::user("x"),
        ];
        assert_eq!(show(&m), "u:q a:one[] a:two[] u:x");
    }

    #[test]
    fn every_call_has_one_output() {
        let m = [
            call("a", "f"),
            call("b", "g"),
            output("b", "2"),
            output("b", "again"),
            output("z", "?"),
            Message::user("x"),
        ];
        assert_eq!(show(&m), format!("a:[a,b] o:a={INTERRUPTED},b=2 u:x …"));
        let m = [
            call("a", "f"),
            Message::user("hurry"),
            output("a", "1"),
            output("a", "2"),
            Message::user("x"),
        ];
        assert_eq!(show(&m), "a:[a] o:a=1 u:hurry u:x");
        assert_eq!(show(&[call("a", "f")]), format!("a:[a] o:a={INTERRUPTED} …"));
        assert_eq!(show(&[output("a", "f"), Message::user("x")]), "u:x");
    }

    #[test]
    fn ids_are_unique_on_the_wire() {
        let m = [
            call("x", "r"),
            call("x", "r"),
            call("", "r"),
            output("x", "1"),
            output("x", "2"),
            output("", "3"),
            Message::user("u"),
            call("x", "r"),
            output("x", "4"),
        ];
        assert_eq!(show(&m), "a:[x,x_2,call_3] o:x=1,x_2=2,call_3=3 u:u a:[x_3] o:x_3=4");
    }

    #[test]
    fn opaque_parts_belong_to_the_answer_they_stand_before() {
        let parts = |backend: &str| {
            let record = ProviderParts {
                backend: backend.into(),
                model: String::new(),
                parts: Vec::new(),
            };
            record.to_message()
        };
        let m = [
            parts("x/"),
            call("a", "f"),
            output("a", "1"),
            parts("y/"),
            Message::assistant("t"),
            parts("lost"),
            Message::user("u"),
        ];
        assert_eq!(show(&m), "a:x/[a] o:a=1 a:y/t[] u:u");
        assert_eq!(
            show(&[Message::new(Role::Image, "data:x"), Message::user("u")]),
            "m:data:x u:u"
        );
    }

    #[test]
    fn documents_have_names() {
        let of = |url: &str| Media {
            is_pdf: true,
            url: url.into(),
        };
        let named = of("data:application/pdf;name=Se%C3%B1or%20%25.pdf;base64,eA==");
        assert_eq!(named.data(), Some(("application/pdf", "eA==")));
        assert_eq!(named.plain_url(), "data:application/pdf;base64,eA==");
        assert_eq!(named.file_name(), "Señor %.pdf");
        let plain = of("data:application/pdf;base64,eA==");
        assert_eq!(plain.plain_url(), plain.url);
        assert_eq!(
            (plain.file_name(), of("https://h/x.pdf").data()),
            ("document.pdf".into(), None)
        );
    }

    #[test]
    fn a_text_and_its_pieces() {
        assert!(is_made_of("a\n\nb c", &["a", "b ", "c"]));
        assert!(is_made_of("", &[]));
        for other in ["a", "a b", "a b c d", "x a b c", "ab"] {
            assert!(!is_made_of(other, &["a", "b", "c"]), "{other}");
        }
    }

    #[test]
    fn content_stays_in_order_unless_it_was_changed() {
        fn kind(part: &Value) -> Kept<'_> {
            match part.as_str().unwrap_or_default() {
                "call" => Kept::Call,
                text if text.starts_with('t') => Kept::Text(text),
                _ => Kept::Opaque,
            }
        }
        let of = |parts: &str, text: Option<&str>, calls: &str| {
            let list = |words: &str| words.split_whitespace().map(Value::from).collect::<Vec<_>>();
            let content = in_order(list(parts), kind, text, |text| text.into(), list(calls));
            content.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(of("x t1 call y t2 call", Some("t1\n\nt2"), "a b"), "x t1 a y t2 b");
        assert_eq!(of("x t1 y t2", Some("t1t2"), "a"), "x t1 y t2 a");
        assert_eq!(of("x call y", None, "a"), "x a y");
        assert_eq!(of("x", Some("t"), "a"), "x t a");
        // The text has been changed, or taken away; a call has.
        assert_eq!(of("x t1 call y t2", Some("new"), "a"), "x y new a");
        assert_eq!(of("x t1 call y", None, "a"), "x y a");
        assert_eq!(of("x t1 call y t2 call", Some("t1t2"), "a"), "x y t1t2 a");
        assert_eq!(of("call x", Some("new"), "a"), "x new a");
    }

    #[test]
    fn damage_is_named() {
        let bad = [Message::user("q"), Message::new(Role::FunctionCall, "{oops")];
        let error = next_group(&bad[1..], 1, &mut WireIds::default()).unwrap_err();
        assert!(
            error.starts_with("message 2: function_call is not a JSON object"),
            "{error}"
        );
    }
}
