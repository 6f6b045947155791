//! The names by which people speak of a parameter's values.

use std::collections::HashMap;

use serde_json::Value;

use super::evidence::plain;
use super::lexicon::stem;
use super::parameter::{Kind, kind};
use super::words::Word;

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

/// How much of a name the words contain, from 0 to 1. `temp_max` is wholly in "maximum temperature": short forms are
/// beginnings of the words they stand for.
pub fn mentioned(name: &str, spoken: &[Word]) -> (f64, Option<usize>) {
    let parts: Vec<String> = name
        .split(|c: char| !c.is_alphanumeric())
        .filter(|p| !p.is_empty())
        .map(str::to_lowercase)
        .collect();
    if parts.is_empty() {
        return (0.0, None);
    }
    // `sep`, `sept.`: people write months short.
    let is_month = MONTHS.iter().any(|month| month.eq_ignore_ascii_case(name));
    let found: Vec<usize> = parts
        .iter()
        .filter_map(|part| {
            let root = stem(part);
            let speaks = |word: &&Word| {
                let word = word.text.as_str();
                let short_month = is_month && (3..=4).contains(&word.len()) && part.starts_with(word);
                word == part
                    || short_month
                    || stem(word) == root
                    || (part.chars().count() >= 3 && word.starts_with(root.as_str()))
            };
            spoken.iter().find(speaks).map(|w| w.start)
        })
        .collect();
    #[allow(clippy::cast_precision_loss)]
    let share = found.len() as f64 / parts.len() as f64;
    (share, found.last().copied())
}

/// Names of values that the schema gives: `oneOf` with `const` and `title`, or a description such as
/// `1 = low, 2 = high`. The months of the calendar need not be listed.
pub fn labels(name: &str, schema: &Value) -> HashMap<String, String> {
    let mut labels = HashMap::new();
    for list in ["oneOf", "anyOf"] {
        for entry in schema.get(list).and_then(Value::as_array).into_iter().flatten() {
            let title = entry
                .get("title")
                .or_else(|| entry.get("description"))
                .and_then(Value::as_str);
            if let (Some(value), Some(title)) = (entry.get("const"), title) {
                labels.insert(plain(value), title.to_owned());
            }
        }
    }
    let description = schema.get("description").and_then(Value::as_str).unwrap_or_default();
    for part in description.split([',', ';', '\n', '(', ')']) {
        if let Some((value, label)) = part.split_once('=').or_else(|| part.split_once(": ")) {
            let value = value.split_whitespace().next_back().unwrap_or_default();
            labels
                .entry(value.to_owned())
                .or_insert_with(|| label.trim().to_owned());
        }
    }
    let of_months = name.to_lowercase().contains("month") || description.to_lowercase().contains("month");
    let integers = schema.get("type").is_some_and(|t| t == "integer" || t == "number");
    if of_months && integers && labels.is_empty() {
        labels.extend(
            MONTHS
                .iter()
                .enumerate()
                .map(|(i, month)| ((i + 1).to_string(), (*month).to_owned())),
        );
    }
    labels
}

/// All names of the values of a parameter that has only so many; for free numbers those that have names.
pub fn all_names(name: &str, schema: &Value) -> Vec<String> {
    let mut names: Vec<String> = labels(name, schema).into_values().collect();
    if let Kind::Finite(values) = kind(schema) {
        names.extend(values.iter().filter(|v| v.is_string()).map(plain));
    }
    names
}

/// Whether a word is a part of one of these names.
pub fn is_part(word: &Word, names: &[String]) -> bool {
    names
        .iter()
        .any(|name| mentioned(name, std::slice::from_ref(word)).0 > 0.0)
}
