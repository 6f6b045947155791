//! What a request mentions: words, numbers in digits or words, and stretches of text that can be copied.

/// A word of a text and where it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Word {
    /// In lower case.
    pub text: String,
    /// First byte.
    pub start: usize,
    /// Byte after the last.
    pub end: usize,
}

/// The words of a text: runs of letters and digits; an apostrophe, point or comma between two of them is part of the
/// word.
pub fn words(text: &str) -> Vec<Word> {
    let mut found = Vec::new();
    let mut start = None;
    let chars: Vec<(usize, char)> = text.char_indices().collect();
    for (i, &(at, c)) in chars.iter().enumerate() {
        let next = chars.get(i + 1).map(|x| x.1);
        let previous = i.checked_sub(1).and_then(|p| chars.get(p)).map(|x| x.1);
        let joins = match c {
            '\'' | '’' => previous.is_some_and(char::is_alphabetic) && next.is_some_and(char::is_alphabetic),
            '.' | ',' => previous.is_some_and(|p| p.is_ascii_digit()) && next.is_some_and(|n| n.is_ascii_digit()),
            '_' => true,
            _ => false,
        };
        if c.is_alphanumeric() || (joins && start.is_some()) {
            start.get_or_insert(at);
        } else if let Some(begin) = start.take() {
            found.push(word(text, begin, at));
        }
    }
    if let Some(begin) = start {
        found.push(word(text, begin, text.len()));
    }
    found
}

fn word(text: &str, start: usize, end: usize) -> Word {
    Word {
        text: text[start..end].to_lowercase(),
        start,
        end,
    }
}

/// A number that a text mentions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mention {
    /// As JSON: digits, perhaps a sign and a point.
    pub json: String,
    /// First byte.
    pub start: usize,
}

/// The numbers of a text in their order: `21`, `-3.5`, `1,000`, `seven`, `twenty-one`, `two hundred and five`.
pub fn numbers(text: &str) -> Vec<Mention> {
    let words = words(text);
    let mut found = Vec::new();
    let mut i = 0;
    while i < words.len() {
        if let Some(json) = digits(text, &words[i]) {
            found.push(Mention {
                json,
                start: words[i].start,
            });
            i += 1;
        } else if let Some((value, used)) = spelled(&words[i..]) {
            found.push(Mention {
                json: value.to_string(),
                start: words[i].start,
            });
            i += used;
        } else {
            i += 1;
        }
    }
    found
}

fn digits(text: &str, word: &Word) -> Option<String> {
    let raw = word.text.trim_end_matches('%');
    if !raw.starts_with(|c: char| c.is_ascii_digit()) {
        return None;
    }
    // `3rd`, `2nd`: the number; `5km`: likewise. A word such as `3d6` is none.
    let number: String = raw
        .chars()
        .take_while(|c| c.is_ascii_digit() || matches!(c, '.' | ','))
        .collect();
    if !raw[number.len()..].chars().all(char::is_alphabetic) {
        return None;
    }
    let plain = match number.rsplit_once(',') {
        Some((_, last)) if last.len() != 3 && !last.contains('.') => number.replace(',', "."),
        _ => number.replace(',', ""),
    };
    if plain.matches('.').count() > 1 {
        return None;
    }
    let trimmed = plain.trim_start_matches('0');
    let plain = if trimmed.is_empty() || trimmed.starts_with('.') {
        format!("0{trimmed}")
    } else {
        trimmed.to_owned()
    };
    let before = &text[..word.start];
    let negative = before.ends_with(['-', '−'])
        && !before
            .trim_end_matches(['-', '−'])
            .ends_with(|c: char| c.is_alphanumeric() || c == ')');
    Some(if negative { format!("-{plain}") } else { plain })
}

const SMALL: [&str; 20] = [
    "zero",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
    "thirteen",
    "fourteen",
    "fifteen",
    "sixteen",
    "seventeen",
    "eighteen",
    "nineteen",
];
const TENS: [&str; 8] = [
    "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety",
];
const SCALES: [(&str, u64); 4] = [
    ("hundred", 100),
    ("thousand", 1_000),
    ("million", 1_000_000),
    ("billion", 1_000_000_000),
];

/// A number in words at the beginning of `words`, and how many words it takes.
fn spelled(words: &[Word]) -> Option<(u64, usize)> {
    let (mut total, mut group, mut used) = (0_u64, 0_u64, 0);
    let mut last = u64::MAX;
    while let Some(word) = words.get(used).map(|w| w.text.as_str()) {
        let unit = SMALL.iter().position(|s| *s == word).map(|n| n as u64);
        let ten = TENS.iter().position(|s| *s == word).map(|n| (n as u64 + 2) * 10);
        let scale = SCALES.iter().find(|s| s.0 == word).map(|s| s.1);
        match (unit.or(ten), scale) {
            // `seven eight` are two numbers; `twenty one` and `hundred one` are one.
            (Some(n), _) if used == 0 || (last >= 20 && n < last && (last.is_multiple_of(100) || n < 10)) => {
                group += n;
                last = n;
            }
            (_, Some(100)) if group > 0 && group < 100 => {
                group *= 100;
                last = 100;
            }
            (_, Some(scale)) if group > 0 && scale > 100 => {
                total += group * scale;
                group = 0;
                last = scale;
            }
            _ if word == "and" && matches!(last, 100 | 1_000) && words.get(used + 1).is_some_and(is_number_word) => {}
            _ => break,
        }
        used += 1;
    }
    (used > 0).then_some((total + group, used))
}

fn is_number_word(word: &Word) -> bool {
    SMALL.contains(&word.text.as_str()) || TENS.contains(&word.text.as_str())
}

/// Stretches of a text that a string argument may be a copy of, the likeliest first: what stands in quotes, what
/// follows a colon, and runs of words.
pub fn spans(text: &str, max: usize) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    let mut push = |span: &str| {
        let span = span.trim();
        if !span.is_empty() && !found.iter().any(|f| f == span) {
            found.push(span.to_owned());
        }
    };
    for (open, close) in [('"', '"'), ('“', '”'), ('‘', '’'), ('`', '`'), ('«', '»'), ('\'', '\'')] {
        for quoted in quoted(text, open, close) {
            push(quoted);
        }
    }
    if let Some((_, after)) = text.split_once(": ") {
        push(after);
    }
    let words = words(text);
    let end_of = |w: &Word| w.end;
    if words.len() <= 24 {
        for (i, first) in words.iter().enumerate() {
            for last in &words[i..] {
                push(&text[first.start..end_of(last)]);
            }
            push(&text[first.start..]);
        }
    } else {
        for first in &words {
            push(&text[first.start..]);
        }
    }
    found.truncate(max);
    found
}

fn quoted(text: &str, open: char, close: char) -> Vec<&str> {
    let mut found = Vec::new();
    let mut rest = text;
    while let Some(start) = rest.find(open) {
        let before = rest[..start].chars().next_back();
        let inner = &rest[start + open.len_utf8()..];
        // An apostrophe inside a word opens nothing.
        if open == '\'' && before.is_some_and(char::is_alphanumeric) {
            rest = inner;
            continue;
        }
        let closing = inner
            .match_indices(close)
            .map(|m| m.0)
            .find(|at| close != '\'' || !inner[at + 1..].chars().next().is_some_and(char::is_alphanumeric));
        let Some(end) = closing else { break };
        found.push(&inner[..end]);
        rest = &inner[end + close.len_utf8()..];
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn json(text: &str) -> Vec<String> {
        numbers(text).into_iter().map(|m| m.json).collect()
    }

    #[test]
    fn numbers_in_digits_and_words() {
        assert_eq!(json("What is 21 times 2?"), ["21", "2"]);
        assert_eq!(
            json("-3.5 and 7-2, 1,000 or 1,234.5; 007, 0.25"),
            ["-3.5", "7", "2", "1000", "1234.5", "7", "0.25"]
        );
        assert_eq!(json("seven plus twenty-one"), ["7", "21"]);
        assert_eq!(
            json("two hundred and five thousand three, nine and four"),
            ["205003", "9", "4"]
        );
        assert_eq!(json("six eight"), ["6", "8"]);
        assert_eq!(json("the 3rd of 12km, v2beta3"), ["3", "12"]);
    }

    #[test]
    fn spans_begin_with_what_is_quoted() {
        let found = spans("Say \"good morning\" to it's 'dear' friend", 200);
        assert_eq!(found[..2], ["good morning", "dear"]);
        assert_eq!(spans("Echo this: a b.", 200)[0], "a b.");
        assert!(spans("Repeat hello there", 200).contains(&"hello there".to_owned()));
    }
}
