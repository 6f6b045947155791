//! Showing text that somebody else wrote.

/// Makes a text safe to print to a terminal: every control character but newline and tab, and every character that
/// changes direction or is invisible (bidi controls, tag characters), is shown as an escape such as `\u{1b}`.
pub fn escape_controls(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if is_unsafe(c) {
            out.extend(c.escape_unicode());
        } else {
            out.push(c);
        }
    }
    out
}

fn is_unsafe(c: char) -> bool {
    (c.is_control() && c != '\n' && c != '\t')
        || matches!(c, '\u{200e}' | '\u{200f}' | '\u{061c}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{e0000}'..='\u{e007f}')
}

/// The first characters of a text on one line, with `…` when something was cut.
pub fn brief(text: &str, max_chars: usize) -> String {
    let flat: String = text
        .chars()
        .map(|c| if c == '\n' || c == '\r' || c == '\t' { ' ' } else { c })
        .collect();
    if flat.chars().count() <= max_chars {
        return flat;
    }
    let mut cut: String = flat.chars().take(max_chars.saturating_sub(1)).collect();
    cut.push('…');
    cut
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terminal_control_sequences_are_made_visible() {
        assert_eq!(escape_controls("a\u{1b}[2Jb\rc\u{9b}d"), "a\\u{1b}[2Jb\\u{d}c\\u{9b}d");
        assert_eq!(escape_controls("tab\tline\nñ号🙂"), "tab\tline\nñ号🙂");
        assert_eq!(escape_controls("\u{202e}evil"), "\\u{202e}evil");
    }
}
