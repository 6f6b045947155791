//! Messages → chat text, such that reading it back gives the same messages.

use crate::message::Message;
use crate::parse::{Line, classify, escape, parse, strip};

/// The text of some messages: a line feed, then the messages with a blank line between them; no line feed at the end.
pub fn print(messages: &[Message]) -> String {
    print_beside(messages, &[])
}

/// Like [`print()`], for text that comes behind a text in which these elements were opened and never closed: no printed
/// message may close one.
pub fn print_beside(messages: &[Message], unclosed_tags: &[String]) -> String {
    let mut out = String::new();
    for (i, message) in messages.iter().enumerate() {
        out.push_str(if i == 0 { "\n" } else { "\n\n" });
        out.push_str(&piece(message, unclosed_tags));
    }
    out
}

fn piece(message: &Message, unclosed_tags: &[String]) -> String {
    let plain = plain(message);
    let closes_another = unclosed_tags.iter().any(|tag| plain.contains(&format!("</{tag}>")));
    if !closes_another && reads_back(&plain, message) {
        plain
    } else {
        exact(message)
    }
}

fn plain(message: &Message) -> String {
    match message.role {
        role if role.is_inline() => format!("{role}: {}", message.content),
        role => format!("{role}:\n\n{}", escape(&message.content)),
    }
}

/// Whether the text is this one message and leaves nothing open that a later text could close.
fn reads_back(text: &str, message: &Message) -> bool {
    if message.content.is_empty() || strip(&message.content) != message.content {
        return false;
    }
    if message.role.is_inline() && !matches!(classify(text), Line::Header(..)) {
        return false;
    }
    let parsed = parse(text);
    let whole = parsed.messages.len() == 1 && parsed.messages[0] == *message;
    whole && parsed.open_region.is_none() && parsed.unclosed_tags.is_empty()
}

/// `role:= "JSON string"`. `<` is escaped, so that the text holds no tag.
fn exact(message: &Message) -> String {
    let json = serde_json::Value::String(message.content.clone())
        .to_string()
        .replace('<', "\\u003c");
    format!("{}:= {json}", message.role)
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
        fn any_text_can_be_read(text in content()) {
            let parsed = parse(&text);
            let again = parse(&print(&parsed.messages));
            prop_assert_eq!(again.messages, parsed.messages);
        }
    }
}
