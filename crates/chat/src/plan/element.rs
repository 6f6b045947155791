//! Texts from elsewhere, wrapped so that the model sees where they begin and end.

/// `<file name="NAME">`, the text, `</file>`. The name is escaped; where the text holds the closing tag another tag is
/// taken (`file_1`, …), so that no text can end its own element.
pub fn file(name: &str, text: &str) -> String {
    wrap("file", "name", name, text)
}

/// `<cmd_output cmd="COMMAND">`, the text, `</cmd_output>`; see [`file()`].
pub fn command_output(command: &str, text: &str) -> String {
    wrap("cmd_output", "cmd", command, text)
}

fn wrap(tag: &str, attribute: &str, value: &str, text: &str) -> String {
    let mut closing = tag.to_owned();
    let mut n = 0;
    while text.contains(&format!("</{closing}>")) {
        n += 1;
        closing = format!("{tag}_{n}");
    }
    let value = value
        .replace('&', "&amp;")
        .replace('"', "&quot;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('\n', "&#10;");
    format!("<{closing} {attribute}=\"{value}\">\n{text}\n</{closing}>")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_text_ends_its_own_element() {
        assert_eq!(file("a.txt", "x\n"), "<file name=\"a.txt\">\nx\n\n</file>");
        assert_eq!(
            file("a\">b", "1</file>2</file_1>"),
            "<file_2 name=\"a&quot;&gt;b\">\n1</file>2</file_1>\n</file_2>"
        );
        assert_eq!(command_output("ls", "f"), "<cmd_output cmd=\"ls\">\nf\n</cmd_output>");
    }
}
