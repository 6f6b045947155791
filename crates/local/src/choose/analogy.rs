//! Texts that are made from the request as the examples' texts are made from theirs: where `Paris` became
//! `Europe/Paris`, `Tokyo` may become `Europe/Tokyo` or, by another example, `Asia/Tokyo`. Which of them it is, the
//! model says.

use decanus_chat::ToolDefinition;
use serde_json::Value;

use super::words::words;

/// More words than this are never one name.
const LONGEST: usize = 3;
const MOST: usize = 60;

/// What an example adds to a stretch of its request.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Pattern {
    before: String,
    /// What stands between words, in place of blanks.
    between: String,
    after: String,
}

/// The texts that a parameter may have by analogy with the examples.
pub fn analogies(tool: &ToolDefinition, parameter: &str, request: &str) -> Vec<String> {
    let mut patterns: Vec<Pattern> = Vec::new();
    let mut capitals = true;
    for example in &tool.examples {
        if let Some(Value::String(text)) = example.arguments.get(parameter)
            && let Some((pattern, source)) = pattern(&example.request, text)
        {
            capitals &= source.chars().next().is_some_and(char::is_uppercase);
            if !patterns.contains(&pattern) {
                patterns.push(pattern);
            }
        }
    }
    let between = patterns
        .iter()
        .map(|p| p.between.as_str())
        .find(|b| !b.is_empty())
        .unwrap_or("_");
    let mut found = Vec::new();
    for stretch in stretches(request) {
        let fits = |word: &str| !capitals || word.chars().next().is_some_and(char::is_uppercase);
        if !stretch.iter().all(|w| fits(w)) {
            continue;
        }
        for pattern in &patterns {
            let text = format!("{}{}{}", pattern.before, stretch.join(between), pattern.after);
            if !found.contains(&text) {
                found.push(text);
            }
        }
    }
    found.truncate(MOST);
    found
}

/// The longest stretch of a request that a text contains, with what stands around it.
fn pattern(request: &str, text: &str) -> Option<(Pattern, String)> {
    let lower = text.to_lowercase();
    // Positions must be the same in both.
    if lower.len() != text.len() {
        return None;
    }
    let mut best: Option<(usize, Pattern, String)> = None;
    for stretch in stretches(request) {
        for between in ["_", "-", " ", ""] {
            let joined = stretch.join(between).to_lowercase();
            let Some(at) = lower.find(&joined).filter(|_| joined.len() >= 3) else {
                continue;
            };
            if best.as_ref().is_none_or(|b| joined.len() > b.0) {
                let between = if stretch.len() > 1 { between } else { "" };
                let (before, after) = (text[..at].to_owned(), text[at + joined.len()..].to_owned());
                best = Some((
                    joined.len(),
                    Pattern {
                        before,
                        between: between.to_owned(),
                        after,
                    },
                    stretch.concat(),
                ));
            }
        }
    }
    best.map(|(_, pattern, source)| (pattern, source))
}

/// All runs of a few words.
fn stretches(request: &str) -> Vec<Vec<&str>> {
    let words: Vec<&str> = words(request).into_iter().map(|w| &request[w.start..w.end]).collect();
    let mut found = Vec::new();
    for start in 0..words.len() {
        for end in start + 1..=(start + LONGEST).min(words.len()) {
            found.push(words[start..end].to_vec());
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use decanus_chat::Example;
    use serde_json::json;

    #[test]
    fn what_was_done_to_one_name_is_done_to_another() {
        let example = |request: &str, zone: &str| Example {
            request: request.into(),
            arguments: json!({"zone": zone}).as_object().cloned().unwrap_or_default(),
        };
        let tool = ToolDefinition {
            examples: vec![
                example("Time in Paris", "Europe/Paris"),
                example("Time in New York", "America/New_York"),
            ],
            ..ToolDefinition::default()
        };
        let found = analogies(&tool, "zone", "What is it in Mexico City?");
        assert!(found.contains(&"America/Mexico_City".to_owned()), "{found:?}");
        assert!(found.contains(&"Europe/Mexico".to_owned()), "{found:?}");
        assert!(found.iter().all(|f| !f.contains("is")), "{found:?}");
    }
}
