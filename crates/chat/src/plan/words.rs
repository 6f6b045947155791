//! Words of a message that steers: blanks separate, quotes hold together, `key=value` sets.

use serde_json::Value;

use crate::definition::{json_written, takes_list};

/// One word, with what its quotes held together taken apart from what they did not.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Word {
    /// The text, without quotes.
    pub text: String,
    /// Where the first `=` is that no quote holds, if the text before it can be a name.
    equals: Option<usize>,
    /// Where the commas are that no quote holds.
    commas: Vec<usize>,
    /// Whether any of it was quoted.
    quoted: bool,
}

/// A word `key=value`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pair {
    /// The name.
    pub key: String,
    /// The whole value.
    pub text: String,
    /// The value taken apart at its commas (one item when there is none).
    pub items: Vec<String>,
}

impl Pair {
    /// The value for a parameter of this JSON Schema: an object or a list that is written as JSON, for a list its items,
    /// else the text. Types are left to the check against the schema.
    pub fn value(&self, schema: &Value) -> Value {
        if let Some(value) = json_written(&self.text, schema) {
            value
        } else if takes_list(schema) && !self.text.trim_start().starts_with('[') {
            self.items.iter().cloned().map(Value::String).collect()
        } else {
            Value::String(self.text.clone())
        }
    }
}

impl Word {
    /// The word as `key=value`, if it is one. A value of nothing reads as `true`; `:word` (a symbol, as other programs
    /// write it) reads as `word`.
    pub fn pair(&self) -> Option<Pair> {
        let at = self.equals?;
        let (key, text) = (&self.text[..at], &self.text[at + 1..]);
        let mut items = Vec::new();
        let mut start = at + 1;
        for comma in self.commas.iter().copied().filter(|c| *c > at) {
            items.push(self.text[start..comma].to_owned());
            start = comma + 1;
        }
        items.push(self.text[start..].to_owned());
        let plain = |text: &str| match text {
            "" if !self.quoted => "true".to_owned(),
            _ => match text.strip_prefix(':').filter(|s| !self.quoted && is_name(s)) {
                Some(symbol) => symbol.to_owned(),
                None => text.to_owned(),
            },
        };
        Some(Pair {
            key: key.to_owned(),
            text: plain(text),
            items: items.iter().map(|i| plain(i)).collect(),
        })
    }
}

fn is_name(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_alphanumeric() || c == '_' || c == '-')
}

/// The words of a text. White space separates them; single quotes hold everything, double quotes everything but `\"` and
/// `\\`; elsewhere a backslash takes the next character as it is.
///
/// # Errors
/// A quote that is never closed.
pub fn words(text: &str) -> Result<Vec<Word>, String> {
    let mut words = Vec::new();
    let mut word: Option<Word> = None;
    let mut characters = text.chars().peekable();
    while let Some(c) = characters.next() {
        if c.is_whitespace() {
            words.extend(word.take());
            continue;
        }
        let current = word.get_or_insert_default();
        match c {
            '\'' | '"' => {
                current.quoted = true;
                loop {
                    match characters.next() {
                        None => return Err(format!("a {c} is never closed")),
                        Some(end) if end == c => break,
                        Some('\\') if c == '"' && matches!(characters.peek(), Some('"' | '\\')) => {
                            current.text.extend(characters.next());
                        }
                        Some(other) => current.text.push(other),
                    }
                }
            }
            '\\' => current.text.push(characters.next().unwrap_or('\\')),
            '=' => {
                if current.equals.is_none() && !current.quoted && is_name(&current.text) {
                    current.equals = Some(current.text.len());
                }
                current.text.push('=');
            }
            ',' => {
                current.commas.push(current.text.len());
                current.text.push(',');
            }
            other => current.text.push(other),
        }
    }
    words.extend(word);
    Ok(words)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn texts(text: &str) -> Vec<String> {
        words(text).unwrap().into_iter().map(|w| w.text).collect()
    }

    fn pair(text: &str) -> Pair {
        words(text).unwrap()[0].pair().unwrap()
    }

    #[test]
    fn blanks_separate_and_quotes_hold_together() {
        assert_eq!(
            texts("W  t\n'a b' \"c \\\" \\n d\" e\\ f ''"),
            ["W", "t", "a b", "c \" \\n d", "e f", ""]
        );
        assert_eq!(words("a 'b").unwrap_err(), "a ' is never closed");
        assert!(texts(" \n ").is_empty());
    }

    #[test]
    fn values_and_lists() {
        assert_eq!(pair("a=1").text, "1");
        assert_eq!(pair("a=one,two,\"and, three\"").items, ["one", "two", "and, three"]);
        assert_eq!(pair("a=x=y").text, "x=y");
        assert_eq!((pair("a=").text.as_str(), pair("a=\"\"").text.as_str()), ("true", ""));
        assert_eq!(
            (pair("a=:fast").text.as_str(), pair("a=':fast'").text.as_str()),
            ("fast", ":fast")
        );
        assert!(words("\"a=b\"").unwrap()[0].pair().is_none());
        assert!(words("http://x/?q=1").unwrap()[0].pair().is_none());
        let list = json!({"type": "array"});
        assert_eq!(pair("a=b,c").value(&list), json!(["b", "c"]));
        assert_eq!(pair("a='[1, 2]'").value(&list), json!([1, 2]));
        let either = json!({"type": ["object", "array", "string"]});
        assert_eq!(pair("a=b,c").value(&either), json!("b,c"), "a text stays one");
        assert_eq!(pair("a='{\"x\": 1}'").value(&either), json!({"x": 1}));
        assert_eq!(pair("a='{x}'").value(&either), json!("{x}"));
        assert_eq!(pair("a='[1]'").value(&json!({"type": "string"})), json!("[1]"));
        assert_eq!(pair("a=b,c").value(&json!({"type": "string"})), json!("b,c"));
    }
}
