//! What a chat holds: answers, calls, and the jobs behind them.

use std::collections::HashSet;
use std::ops::Range;
use std::path::Path;

use decanus_base::text::brief;
use decanus_chat::{ChatFile, Loaded, Message, Role, Usage};

use crate::calls::{ToolPair, tool_pairs};
use crate::graph::{Kind, Node, ProviderParts, Relation};
use crate::segment::{Segment, segments};
use crate::trace::Walk;

/// Characters of an answer or of a call's arguments in a label.
const SHOWN: usize = 60;

impl Walk<'_> {
    /// Reads a chat and enters what it holds.
    ///
    /// # Errors
    /// The reason why it can't be read.
    pub(crate) fn expand_chat(&mut self, chat: usize) -> Result<(), String> {
        let path = self.graph.nodes[chat].path.clone();
        // A pipe would be waited for, and a device may have no end.
        if !path.is_file() {
            return Err(format!("{}: not a file", path.display()));
        }
        let Loaded { parsed, .. } = ChatFile::read(&path).map_err(|e| e.to_string())?;
        let messages = &parsed.messages;
        let (pairs, bad) = tool_pairs(messages);
        for problem in parsed.problems.into_iter().chain(bad) {
            self.graph.problem(&path, Some(problem.line), problem.message);
        }
        let parts = messages.iter().filter(|m| m.role == Role::Provider);
        self.graph.provider_parts.extend(parts.map(|m| ProviderParts {
            file: path.clone(),
            line: line(m),
            content: m.content.clone(),
        }));
        let owners = self.answers(chat, messages, &pairs);
        for pair in &pairs {
            self.call(owners[pair.index].unwrap_or(chat), &messages[pair.index], pair);
        }
        Ok(())
    }

    /// Enters the answers of a chat, in order. Gives for each message the answer that it belongs to.
    fn answers(&mut self, chat: usize, messages: &[Message], pairs: &[ToolPair]) -> Vec<Option<usize>> {
        let path = self.graph.nodes[chat].path.clone();
        let segments = segments(messages);
        let mut seen = HashSet::new();
        let mut sum = Usage::default();
        let mut answers: Vec<(Range<usize>, Node)> = Vec::new();
        for segment in &segments {
            let at = line(&messages[segment.index]);
            let entry = self.graph.ledger.add(&path, at, segment);
            if let Some(entry) = &entry {
                if seen.insert(entry.at) {
                    sum += segment.direct_usage().unwrap_or_default();
                }
                if !entry.differs.is_empty() {
                    let id = &self.graph.ledger.inferences()[entry.at].id;
                    let text = format!(
                        "inference {id} was found before with another {}; that one counts",
                        entry.differs.join(", ")
                    );
                    self.graph.problem(&path, Some(at), text);
                }
            }
            let covered = segment.covered.clone();
            // What a job made is its answer whoever speaks; outputs have metas of their own, which are none.
            if segment.job().is_some() && !segment.is_orphan() || messages[covered.clone()].iter().any(is_of_the_model)
            {
                let mut node = answer(&path, at, messages, &covered, pairs);
                describe(&mut node, segment, entry.is_some_and(|e| !e.is_new));
                answers.push((covered, node));
            }
        }
        self.graph.nodes[chat].usage = sum;
        for covered in without_meta(messages, &answers) {
            let at = line(&messages[covered.start]);
            let node = answer(&path, at, messages, &covered, pairs);
            answers.push((covered, node));
        }
        answers.sort_by_key(|(covered, _)| covered.start);
        let mut owners = vec![None; messages.len()];
        for (covered, node) in answers {
            let (at, _) = self.graph.node(node);
            self.graph.edge(chat, at, Relation::Answer);
            owners[covered].fill(Some(at));
        }
        for segment in &segments {
            if let Some(job) = segment.job() {
                let answer = owners.get(segment.covered.start).copied().flatten();
                let from = answer.filter(|_| !segment.is_orphan()).unwrap_or(chat);
                let at = line(&messages[segment.index]);
                self.refer_to_job(from, job, Relation::Job, Some(at));
            }
        }
        owners
    }

    fn call(&mut self, from: usize, message: &Message, pair: &ToolPair) {
        let arguments = brief(&pair.call.arguments.to_text(), SHOWN);
        let label = format!("{} {arguments}", pair.call.name);
        let path = self.graph.nodes[from].path.clone();
        let mut node = Node::new(Kind::Call, &path, Some(line(message)), label);
        node.status = Some(pair.status.as_str().into());
        if let Some(output) = &pair.output {
            node.time.clone_from(&output.start_timestamp);
            node.note = output.error.as_ref().map(|class| {
                let what = brief(&output.content, SHOWN);
                format!("{class}: {what}")
            });
        }
        let (at, _) = self.graph.node(node);
        self.graph.edge(from, at, Relation::Call);
        if let Some(job) = pair.output.as_ref().and_then(|o| o.job.as_deref()) {
            self.refer_to_job(at, job, Relation::Job, Some(line(message)));
        }
    }
}

/// Answers that were written by hand, or by a program that keeps no metas: each run of what a model says that no other
/// answer covers.
fn without_meta(messages: &[Message], answers: &[(Range<usize>, Node)]) -> Vec<Range<usize>> {
    let mut taken = vec![false; messages.len()];
    for (covered, _) in answers {
        taken[covered.clone()].fill(true);
    }
    let mut runs: Vec<Range<usize>> = Vec::new();
    for (at, message) in messages.iter().enumerate() {
        if taken[at] || !is_of_the_model(message) {
            continue;
        }
        match runs.last_mut().filter(|run| run.end == at) {
            Some(run) => run.end = at + 1,
            None => runs.push(at..at + 1),
        }
    }
    runs
}

fn answer(path: &Path, line: usize, messages: &[Message], covered: &Range<usize>, pairs: &[ToolPair]) -> Node {
    let text = messages[covered.clone()].iter().find(|m| m.role == Role::Assistant);
    let calls = pairs.iter().filter(|p| covered.contains(&p.index));
    let names: Vec<&str> = calls.map(|p| p.call.name.as_str()).collect();
    let label = match text {
        Some(text) => brief(&text.content, SHOWN),
        None if names.is_empty() => "(no text)".to_owned(),
        None => brief(&format!("calls {}", names.join(", ")), SHOWN),
    };
    Node::new(Kind::Answer, path, Some(line), label)
}

/// What the meta says of an answer.
fn describe(node: &mut Node, segment: &Segment, counted_already: bool) {
    let text = |key: &str| segment.meta.get(key).map(str::to_owned);
    node.usage = segment.direct_usage().unwrap_or_default();
    node.model = text("model");
    node.time = text("timestamp");
    let notes = [
        counted_already.then(|| "a copy, counted once".to_owned()),
        text("finish").map(|why| format!("cut: {why}")),
        text("stated_by").map(|by| format!("stated by a {by}")),
    ];
    let notes: Vec<String> = notes.into_iter().flatten().collect();
    node.note = (!notes.is_empty()).then(|| notes.join("; "));
}

/// Whether a model said it. Outputs are what tools said.
fn is_of_the_model(message: &Message) -> bool {
    matches!(
        message.role,
        Role::Assistant | Role::FunctionCall | Role::McpCall | Role::Provider
    )
}

fn line(message: &Message) -> usize {
    message.line.unwrap_or(0)
}
