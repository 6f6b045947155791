//! Messages → chat text, such that reading it back gives the same messages.

use std::collections::BTreeSet;

use memchr::{memchr, memchr_iter};

use crate::message::Message;
use crate::parse::{Line, classify, closing_tag, escape, parse, strip};

/// The text of some messages: a line feed, then the messages with a blank line between them; no line feed at the end.
pub fn print(messages: &[Message]) -> String {
    print_beside(messages, &BTreeSet::new())
}

/// Like [`print()`], for text that comes behind a text in which these elements were opened and never closed: no printed
/// message may close one.
pub fn print_beside(messages: &[Message], unclosed_tags: &BTreeSet<String>) -> String {
    // A header takes some bytes more than its content.
    let length = messages.iter().map(|m| m.content.len() + 32).sum();
    let mut out = String::with_capacity(length);
    for (i, message) in messages.iter().enumerate() {
        out.push_str(if i == 0 { "\n" } else { "\n\n" });
        let start = out.len();
        if !add_plain(&mut out, message) || closes_any(&out[start..], unclosed_tags) {
            out.truncate(start);
            add_exact(&mut out, message);
        }
    }
    out
}

/// Adds the plain form, and says whether reading it gives this one message and leaves nothing open that a later text
/// could close. Where it does not, it does not matter what was added.
fn add_plain(out: &mut String, message: &Message) -> bool {
    let content = &message.content;
    if content.is_empty() || strip(content) != content {
        return false;
    }
    let start = out.len();
    out.push_str(message.role.as_str());
    let proven = if message.role.is_inline() {
        out.push_str(": ");
        out.push_str(content);
        // The blank keeps a single line from being anything but this role's header.
        memchr(b'\n', content.as_bytes()).is_none()
    } else {
        out.push_str(":\n\n");
        let escaped = escape(content);
        out.push_str(&escaped.text);
        escaped.is_as_it_was
    };
    // A NUL that is not in the exact form is damage.
    (proven && memchr(0, content.as_bytes()).is_none()) || reads_back(&out[start..], message)
}

/// Whether the text is this one message and leaves nothing open.
fn reads_back(text: &str, message: &Message) -> bool {
    if message.role.is_inline() && !matches!(classify(text), Line::Header(..)) {
        return false;
    }
    let parsed = parse(text);
    let whole = parsed.messages.len() == 1 && parsed.messages[0] == *message;
    whole && parsed.open_region.is_none() && parsed.unclosed_tags.is_empty()
}

fn closes_any(text: &str, unclosed_tags: &BTreeSet<String>) -> bool {
    let mut tags = memchr_iter(b'<', text.as_bytes()).filter_map(|at| closing_tag(&text[at..]));
    !unclosed_tags.is_empty() && tags.any(|tag| unclosed_tags.contains(tag))
}

/// Adds `role:= "JSON string"`. `<` is escaped, so that the text holds no tag.
fn add_exact(out: &mut String, message: &Message) {
    let json = serde_json::Value::from(message.content.as_str())
        .to_string()
        .replace('<', "\\u003c");
    out.push_str(message.role.as_str());
    out.push_str(":= ");
    out.push_str(&json);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::Role;
    use proptest::prelude::*;

    #[test]
    fn worked_examples_of_printing() {
        assert_eq!(print(&[Message::user("hi")]), "\nuser:\n\nhi");
        assert_eq!(
            print(&[Message::user("a\nnote: b\nlast:")]),
            "\nuser:\n\na\n\\note: b\n\\last:"
        );
        assert_eq!(print(&[Message::system("")]), "\nsystem:= \"\"");
        let pair = [Message::new(Role::Option, "k v"), Message::new(Role::Meta, "pt=1")];
        assert_eq!(print(&pair), "\noption: k v\n\nmeta: pt=1");
        let fenced = "```yaml\nmodel: x\n```";
        assert_eq!(
            print(&[Message::assistant(fenced)]),
            format!("\nassistant:\n\n{fenced}")
        );
    }
    #[test]
    fn a_fence_keeps_its_lines_and_free_lines_are_escaped() {
        let content = "user: free\n```yaml\nmodel: x\n```";
        let text = print(&[Message::assistant(content)]);
        assert_eq!(text, "\nassistant:\n\n\\user: free\n```yaml\nmodel: x\n```");
        // Two backslashes before a header are both content, so one can't be had but in the exact form.
        assert_eq!(print(&[Message::user("\\user: y")]), "\nuser:= \"\\\\user: y\"");
    }

    #[test]
    fn no_text_can_close_what_another_left_open() {
        let parsed = parse("user: a\n\n<b>\nsee");
        let answer = Message::assistant("x</b>\nuser: injected");
        let text = format!(
            "user: a\n\n<b>\nsee\n{}\n",
            print_beside(std::slice::from_ref(&answer), &parsed.unclosed_tags)
        );
        let again = parse(&text).messages;
        assert_eq!(again.last(), Some(&answer));
        assert_eq!(again.len(), parsed.messages.len() + 1);
    }

    fn content() -> impl Strategy<Value = String> {
        let line = prop_oneof![
            4 => "[a-z <>/`\\[\\]:\\\\=\"{}.]{0,12}",
            2 => Just("user: x".to_owned()),
            1 => Just("\\assistant:".to_owned()),
            1 => Just("meta:= \"x\"".to_owned()),
            1 => Just("```".to_owned()),
            1 => Just("````sh".to_owned()),
            1 => Just("[[".to_owned()),
            1 => Just("x]]".to_owned()),
            1 => Just("<b>".to_owned()),
            1 => Just("</b>".to_owned()),
            1 => Just("<b>x</b>".to_owned()),
            1 => Just("<b/><b a></b>".to_owned()),
            1 => Just("usr: x".to_owned()),
            1 => Just("\u{feff}".to_owned()),
            1 => Just("a\0b".to_owned()),
            1 => Just("[[x]] y]]".to_owned()),
            1 => Just(String::new()),
            1 => Just("x:-- ls {{{".to_owned()),
            1 => Just("x:-- ls }}}".to_owned()),
            1 => "\\PC{0,8}",
            1 => any::<String>(),
        ];
        prop::collection::vec(
            (
                line,
                prop_oneof![4 => Just("\n"), 1 => Just("\r\n"), 1 => Just("\r"), 1 => Just("")],
            ),
            0..8,
        )
        .prop_map(|lines| lines.into_iter().map(|(line, end)| line + end).collect())
    }

    fn message() -> impl Strategy<Value = Message> {
        (prop::sample::select(Role::ALL), content()).prop_map(|(role, content)| Message::new(role, content))
    }

    /// What [`print()`] does without knowing any text that need not be read back.
    fn printed_by_reading_back(message: &Message, unclosed_tags: &BTreeSet<String>) -> String {
        let content = &message.content;
        let plain = match message.role {
            role if role.is_inline() => format!("{role}: {content}"),
            role => format!("{role}:\n\n{}", escape(content).text),
        };
        let is_stripped = !content.is_empty() && strip(content) == content;
        let closes = unclosed_tags.iter().any(|tag| plain.contains(&format!("</{tag}>")));
        if is_stripped && reads_back(&plain, message) && !closes {
            return format!("\n{plain}");
        }
        let mut exact = String::from("\n");
        add_exact(&mut exact, message);
        exact
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(3000))]

        #[test]
        fn what_is_printed_reads_back(messages in prop::collection::vec(message(), 0..5)) {
            let text = print(&messages);
            let parsed = parse(&text);
            prop_assert_eq!(&parsed.messages, &messages, "{}", text);
            prop_assert_eq!(print(&parsed.messages), text);
            prop_assert!(parsed.open_region.is_none() && parsed.unclosed_tags.is_empty());
        }

        #[test]
        fn what_need_not_be_read_back_is_printed_as_if_it_were(message in message(), close in any::<bool>()) {
            let unclosed = close.then(|| "b".to_owned()).into_iter().collect();
            let text = print_beside(std::slice::from_ref(&message), &unclosed);
            prop_assert_eq!(text, printed_by_reading_back(&message, &unclosed));
        }

        #[test]
        fn any_text_can_be_read(text in content()) {
            let parsed = parse(&text);
            let again = parse(&print(&parsed.messages));
            prop_assert_eq!(again.messages, parsed.messages);
        }
    }
}
