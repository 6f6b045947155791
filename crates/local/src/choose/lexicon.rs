//! What the words of a request say about the tool, learnt from the tools' examples and descriptions.
//!
//! A small model knows that "product" has to do with multiplying; it does not know that a request without any number
//! can't be a calculation. Counting words does.

use std::collections::{HashMap, HashSet};

use decanus_chat::ToolDefinition;
use serde_json::Value;

use super::words::{numbers, words};

/// Stands for every number, in digits or in words.
const NUMBER: &str = "<number>";
/// Stands for something in quotes.
const QUOTE: &str = "<quote>";
/// How much is added to every count: unseen is unlikely, not impossible.
const SMOOTHING: f64 = 0.4;
/// No amount of word counting says more than this many nats.
const LIMIT: f64 = 4.0;

/// A tool that shares no word with the request is this much less likely, in nats.
const NOTHING_SHARED: f64 = 2.0;

/// Words that say nothing of what is wanted.
const FILLERS: [&str; 82] = [
    "a", "about", "am", "an", "and", "any", "are", "as", "at", "be", "by", "can", "could", "do", "does", "did", "for",
    "from", "get", "give", "has", "have", "he", "how", "i", "if", "in", "into", "is", "it", "its", "just", "know",
    "let", "like", "many", "me", "much", "my", "need", "now", "of", "on", "or", "our", "out", "please", "she",
    "should", "show", "so", "some", "tell", "that", "the", "their", "them", "then", "there", "these", "they", "this",
    "those", "to", "us", "want", "was", "we", "were", "what", "what's", "when", "where", "which", "who", "why", "will",
    "with", "would", "you", "your", "find",
];

/// Things that people say to a model without meaning any tool.
const TALK: [&str; 36] = [
    "Who wrote Romeo and Juliet?",
    "Hello, how are you?",
    "Tell me about the history of Rome.",
    "Why is the sky blue?",
    "What is the largest planet?",
    "Where is the river Nile?",
    "Thanks a lot!",
    "Good morning",
    "Can you help me?",
    "Who are you?",
    "What can you do?",
    "Explain how a computer works.",
    "Write a story about a dog.",
    "Write a short letter to my friend.",
    "Give me a recipe for soup.",
    "Give me some ideas for a birthday present.",
    "Summarize the plot of Hamlet.",
    "Translate this sentence into French.",
    "Describe a sunset.",
    "Which animal is the fastest?",
    "Who was the first president of the United States?",
    "Who discovered penicillin?",
    "What is the meaning of life?",
    "What does this word mean?",
    "What is the difference between a frog and a toad?",
    "How do I bake bread?",
    "How do airplanes fly?",
    "How can I learn to play the guitar?",
    "When did the war end?",
    "Why do cats purr?",
    "Is it true that fish sleep?",
    "Do you like music?",
    "I feel sad.",
    "Make a list of fruits.",
    "What color is grass?",
    "Tell me something funny.",
];

/// Word counts per tool, the last for "no tool".
#[derive(Debug)]
pub struct Lexicon {
    counts: Vec<HashMap<String, f64>>,
    totals: Vec<f64>,
    vocabulary: f64,
}

impl Lexicon {
    /// Counts the words of the tools' examples, names and descriptions.
    pub fn new(tools: &[ToolDefinition]) -> Self {
        let mut counts: Vec<HashMap<String, f64>> = Vec::new();
        for tool in tools {
            let mut texts: Vec<String> = tool
                .examples
                .iter()
                .map(|e| without_copies(&e.request, &e.arguments))
                .collect();
            texts.push(tool.name.replace(['_', '-', '.'], " "));
            texts.push(tool.description.clone());
            counts.push(count(texts.iter().map(String::as_str)));
        }
        counts.push(count(TALK));
        let vocabulary: HashSet<&String> = counts.iter().flat_map(HashMap::keys).collect();
        #[allow(clippy::cast_precision_loss)]
        let vocabulary = vocabulary.len() as f64;
        // Every tool is as likely as any other, however many examples it has: counts become frequencies of equal sums.
        let largest = 60.0;
        for counts in &mut counts {
            let total: f64 = counts.values().sum();
            if total > 0.0 {
                counts.values_mut().for_each(|c| *c *= largest / total);
            }
        }
        let totals = counts.iter().map(|c| c.values().sum()).collect();
        Self {
            counts,
            totals,
            vocabulary,
        }
    }

    /// For every tool, and at the end for "no tool": how well the words of the request fit, in nats, the best being 0.
    pub fn fit(&self, request: &str) -> Vec<f64> {
        let features = features(request);
        let mut scores: Vec<f64> = self
            .counts
            .iter()
            .zip(&self.totals)
            .map(|(counts, total)| {
                let likelihood = |word: &String| {
                    let count = counts.get(word).copied().unwrap_or(0.0);
                    ((count + SMOOTHING) / (total + SMOOTHING * self.vocabulary)).ln()
                };
                // Words that nobody has seen say nothing.
                features
                    .iter()
                    .filter(|w| self.counts.iter().any(|c| c.contains_key(*w)))
                    .map(likelihood)
                    .sum()
            })
            .collect();
        let best = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let tools = self.counts.len() - 1;
        for (which, score) in scores.iter_mut().enumerate() {
            *score = (*score - best).max(-LIMIT);
            if which < tools && !features.iter().any(|f| self.counts[which].contains_key(f)) {
                *score -= NOTHING_SHARED;
            }
        }
        scores
    }
}

fn count<'t>(texts: impl IntoIterator<Item = &'t str>) -> HashMap<String, f64> {
    let mut counts = HashMap::new();
    for text in texts {
        for feature in features(text) {
            *counts.entry(feature).or_insert(0.0) += 1.0;
        }
    }
    counts
}

/// The example's request without the text that became an argument: which text is repeated says nothing about repeating.
fn without_copies(request: &str, arguments: &serde_json::Map<String, Value>) -> String {
    let mut request = request.to_owned();
    for value in arguments.values() {
        if let Value::String(text) = value
            && text.contains(' ')
        {
            request = request.replace(text.as_str(), " ");
        }
    }
    request
}

/// The distinct word stems of a text; numbers and quotations count as what they are, not as what they say.
pub fn features(text: &str) -> HashSet<String> {
    let mut features = HashSet::new();
    let starts: HashSet<usize> = numbers(text).into_iter().map(|m| m.start).collect();
    for word in words(text) {
        if starts.contains(&word.start) {
            features.insert(NUMBER.to_owned());
        } else if !FILLERS.contains(&word.text.as_str()) {
            features.insert(stem(&word.text));
        }
    }
    if text.contains(['"', '“']) {
        features.insert(QUOTE.to_owned());
    }
    features
}

/// A word without the endings that its forms differ in. `times` and `time` stay apart.
pub fn stem(word: &str) -> String {
    let word = word.strip_suffix("'s").unwrap_or(word);
    for ending in ["ing", "ied", "ed", "e", "y"] {
        if let Some(stem) = word.strip_suffix(ending)
            && stem.chars().count() >= 3
        {
            return if matches!(ending, "ied" | "y") {
                format!("{stem}i")
            } else {
                stem.to_owned()
            };
        }
    }
    word.to_owned()
}
