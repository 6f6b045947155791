//! What the words of a request say about the tool, learnt from the tools' examples and descriptions.
//!
//! A small model knows that "product" has to do with multiplying; it does not know that a request without any number
//! can't be a calculation. Counting words does.

use std::collections::{HashMap, HashSet};

use decanus_chat::ToolDefinition;
use serde_json::Value;

use super::names::{all_names, is_part};
use super::words::{numbers, words};

/// Stands for every number, in digits or in words.
const NUMBER: &str = "<number>";
/// Stands for something in quotes.
const QUOTE: &str = "<quote>";
/// Stands for what is called by a name: a word with a capital that does not begin the sentence.
const NAME: &str = "<name>";
/// How much is added to every count: unseen is unlikely, not impossible.
const SMOOTHING: f64 = 0.4;
/// No amount of word counting says more than this many nats.
const LIMIT: f64 = 4.0;

/// A tool that shares no word with the request is this much less likely, in nats.
const NOTHING_SHARED: f64 = 4.0;

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
    classes: Vec<(String, Vec<String>)>,
    counts: Vec<HashMap<String, f64>>,
    totals: Vec<f64>,
    vocabulary: f64,
}

impl Lexicon {
    /// Counts the words of the tools' examples, names and descriptions.
    pub fn new(tools: &[ToolDefinition]) -> Self {
        let classes: Vec<(String, Vec<String>)> = tools
            .iter()
            .flat_map(|tool| tool.properties())
            .map(|(name, schema)| (format!("<{name}>"), all_names(name, schema)))
            .filter(|(_, names)| !names.is_empty())
            .collect();
        let count = |texts: &[&str]| {
            let mut counts = HashMap::new();
            for text in texts {
                for feature in classified(text, &classes) {
                    *counts.entry(feature).or_insert(0.0) += 1.0;
                }
            }
            counts
        };
        let mut counts: Vec<HashMap<String, f64>> = Vec::new();
        for tool in tools {
            let mut texts: Vec<String> = tool
                .examples
                .iter()
                .map(|e| without_copies(&e.request, &e.arguments))
                .collect();
            texts.push(tool.name.replace(['_', '-', '.'], " "));
            texts.push(tool.description.clone());
            counts.push(count(&texts.iter().map(String::as_str).collect::<Vec<_>>()));
        }
        counts.push(count(&TALK));
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
            classes,
            counts,
            totals,
            vocabulary,
        }
    }

    /// For every tool, and at the end for "no tool": how well the words of the request fit, in nats, the best being 0.
    pub fn fit(&self, request: &str) -> Vec<f64> {
        let features = classified(request, &self.classes);
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

/// The example's request without the text that became an argument: which text is repeated says nothing about
/// repeating.
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

/// The distinct word stems of a text without fillers; numbers and quotations count as what they are, not as what they
/// say.
pub fn features(text: &str) -> HashSet<String> {
    classified(text, &[])
}

/// The same, where a word that names a value of a parameter counts as "a value of that parameter": which month it is
/// says nothing about which tool it is.
fn classified(text: &str, classes: &[(String, Vec<String>)]) -> HashSet<String> {
    let mut features = HashSet::new();
    let starts: HashSet<usize> = numbers(text).into_iter().map(|m| m.start).collect();
    for word in words(text) {
        if starts.contains(&word.start) {
            features.insert(NUMBER.to_owned());
        } else if FILLERS.contains(&word.text.as_str()) {
            continue;
        } else {
            let mut of_class = classes.iter().filter(|(_, names)| is_part(&word, names)).peekable();
            if of_class.peek().is_none() {
                features.insert(stem(&word.text));
            }
            features.extend(of_class.map(|(class, _)| class.clone()));
        }
    }
    if text.contains(['"', '“']) {
        features.insert(QUOTE.to_owned());
    }
    features
}

/// What tells whether an optional parameter is meant: all words, fillers too, and whether something is called by a
/// name.
fn circumstances(text: &str) -> HashSet<String> {
    let mut features = HashSet::new();
    let starts: HashSet<usize> = numbers(text).into_iter().map(|m| m.start).collect();
    for (i, word) in words(text).iter().enumerate() {
        let capital = text[word.start..].chars().next().is_some_and(char::is_uppercase);
        if starts.contains(&word.start) {
            features.insert(NUMBER.to_owned());
        } else if capital && i > 0 && word.text.chars().count() > 1 {
            features.insert(NAME.to_owned());
        } else {
            features.insert(stem(&word.text));
        }
    }
    features
}

/// Whether a request means a parameter to be given, in nats: how much more it is like the examples that give it than
/// like those that don't. None when the examples don't show both.
pub fn presence(tool: &ToolDefinition, parameter: &str, request: &str) -> Option<f64> {
    let split = tool
        .examples
        .iter()
        .partition::<Vec<_>, _>(|e| e.arguments.contains_key(parameter));
    let (with, without): (Vec<_>, Vec<_>) = split;
    if with.is_empty() || without.is_empty() {
        return None;
    }
    let count = |examples: &[&decanus_chat::Example]| -> HashMap<String, f64> {
        let mut counts = HashMap::new();
        for example in examples {
            for feature in circumstances(&example.request) {
                *counts.entry(feature).or_insert(0.0) += 1.0;
            }
        }
        counts
    };
    let (yes, no) = (count(&with), count(&without));
    #[allow(clippy::cast_precision_loss)]
    let share = |counts: &HashMap<String, f64>, of: usize, feature: &String| {
        (counts.get(feature).copied().unwrap_or(0.0) + SMOOTHING) / (of as f64 + 2.0 * SMOOTHING)
    };
    let said = circumstances(request);
    let known = said.iter().filter(|f| yes.contains_key(*f) || no.contains_key(*f));
    let mut odds: f64 = known
        .map(|f| (share(&yes, with.len(), f) / share(&no, without.len(), f)).ln())
        .sum();
    // A name that all examples which give the parameter have, and the request has not, speaks against it.
    let name = NAME.to_owned();
    if !said.contains(&name) && (yes.contains_key(&name) || no.contains_key(&name)) {
        odds += ((1.0 - share(&yes, with.len(), &name)) / (1.0 - share(&no, without.len(), &name))).ln();
    }
    Some(odds)
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
