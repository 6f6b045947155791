//! Which of a parameter's possible values a request speaks of.

use std::collections::{HashMap, HashSet};

use decanus_chat::ToolDefinition;
use serde_json::Value;

use super::lexicon::{features, stem};
use super::names::{labels, mentioned};
use super::parameter::stands_in;
use super::words::{Word, numbers, words};

/// A value that the request mentions by its own name is this much likelier, in nats.
pub const MENTIONED: f64 = 4.0;
/// No amount of word counting says more than this.
const LIMIT: f64 = 3.0;
const SMOOTHING: f64 = 0.3;

/// What speaks for a value, and by which word.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Evidence {
    /// In nats.
    pub score: f64,
    /// Where the word stands in the request that says the most for the value.
    pub word: Option<usize>,
}

/// Evidence for each of some values of one parameter; the best need not be 0. Words that `used` names by their place
/// in the request have already spoken for another parameter.
pub fn evidence(tool: &ToolDefinition, name: &str, values: &[Value], request: &str, used: &[usize]) -> Vec<Evidence> {
    let schema = tool.parameters.get("properties").and_then(|p| p.get(name));
    let labels = labels(name, schema.unwrap_or(&Value::Null));
    let spoken: Vec<Word> = words(request)
        .into_iter()
        .filter(|w| !used.contains(&w.start))
        .collect();
    let learnt = learnt(tool, name, values, request, &spoken);
    let figures = numbers(request);
    let mut found: Vec<(Evidence, bool)> = Vec::new();
    for (value, learnt) in values.iter().zip(learnt) {
        let text = plain(value);
        let label = labels.get(&text).map(String::as_str);
        let own = if value.is_number() { None } else { Some(text.as_str()) };
        let named = [own, label].into_iter().flatten().map(|n| mentioned(n, &spoken));
        let (share, at) = named.fold((0.0, None), |best, next| if next.0 > best.0 { next } else { best });
        let figure = figures
            .iter()
            .find(|f| value.is_number() && f.json == text && !used.contains(&f.start));
        let by_figure = if figure.is_some() { MENTIONED / 2.0 } else { 0.0 };
        let wholly = share >= 1.0 || figure.is_some();
        let named = Evidence {
            score: MENTIONED * share + by_figure,
            word: at.or(figure.map(|f| f.start)),
        };
        let both = Evidence {
            score: named.score + learnt.score,
            word: named.word.or(learnt.word),
        };
        found.push((if wholly { named } else { both }, wholly));
    }
    // Where a value is called by its name, guessing from examples has no say.
    if found.iter().any(|f| f.1) {
        for ((evidence, wholly), _) in found.iter_mut().zip(values) {
            if !*wholly {
                *evidence = Evidence {
                    score: evidence.score.min(MENTIONED / 2.0) - MENTIONED / 2.0,
                    word: None,
                };
            }
        }
    }
    found.into_iter().map(|f| f.0).collect()
}

/// What the tool's examples teach: words that go with one value and not with others. Words are credited to values by a
/// few rounds of expectation and maximisation, so that a word which another argument explains gets little credit.
fn learnt(tool: &ToolDefinition, name: &str, values: &[Value], request: &str, spoken: &[Word]) -> Vec<Evidence> {
    type Link = (String, String);
    let mut lessons: Vec<(HashSet<String>, Vec<String>)> = Vec::new();
    for example in &tool.examples {
        // A value that is copied from the request needs no word to explain it.
        let explained = example
            .arguments
            .iter()
            .filter(|(_, v)| !stands_in(&example.request, v));
        let facts = explained.map(|(k, v)| format!("{k}={}", plain(v))).collect();
        lessons.push((features(&example.request), facts));
    }
    let mut links: HashMap<Link, f64> = HashMap::new();
    for round in 0..6 {
        let mut next: HashMap<Link, f64> = HashMap::new();
        let mut sums: HashMap<String, f64> = HashMap::new();
        for (words, facts) in &lessons {
            for word in words {
                let weight = |fact: &String| {
                    if round == 0 {
                        1.0
                    } else {
                        links.get(&(word.clone(), fact.clone())).copied().unwrap_or(0.0)
                    }
                };
                let total: f64 = facts.iter().map(weight).sum();
                for fact in facts.iter().filter(|_| total > 0.0) {
                    let share = weight(fact) / total;
                    *next.entry((word.clone(), fact.clone())).or_insert(0.0) += share;
                    *sums.entry(fact.clone()).or_insert(0.0) += share;
                }
            }
        }
        for ((_, fact), weight) in &mut next {
            *weight /= sums.get(fact).copied().unwrap_or(1.0);
        }
        links = next;
    }
    let numbers: HashSet<usize> = numbers(request).into_iter().map(|m| m.start).collect();
    let facts: Vec<String> = values.iter().map(|v| format!("{name}={}", plain(v))).collect();
    let mut found = vec![Evidence::default(); values.len()];
    let mut most = vec![0.0; values.len()];
    for word in spoken.iter().filter(|w| !numbers.contains(&w.start)) {
        let root = stem(&word.text);
        let strength: Vec<f64> = facts
            .iter()
            .map(|f| links.get(&(root.clone(), f.clone())).copied().unwrap_or(0.0))
            .collect();
        let known: f64 = strength.iter().sum();
        if known < 0.02 {
            continue;
        }
        #[allow(clippy::cast_precision_loss)]
        let fair = known / values.len() as f64;
        for (i, s) in strength.iter().enumerate() {
            let says = ((s / fair + SMOOTHING) / (1.0 + SMOOTHING)).ln();
            found[i].score += says;
            if says > most[i] {
                most[i] = says;
                found[i].word = Some(word.start);
            }
        }
    }
    let best = found.iter().map(|e| e.score).fold(f64::NEG_INFINITY, f64::max);
    found.iter_mut().for_each(|e| e.score = (e.score - best).max(-LIMIT));
    found
}

/// A value as plain text.
pub fn plain(value: &Value) -> String {
    match value {
        Value::String(s) => s.clone(),
        other => other.to_string(),
    }
}
