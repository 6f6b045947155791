//! What a chat holds: answers, calls, and the jobs behind them.

use std::collections::{BTreeSet, HashSet};
use std::ops::Range;
use std::path::Path;

use decanus_base::text::brief;
use decanus_chat::{ChatFile, Loaded, Message, Role, Usage};

use crate::calls::{ToolPair, tool_pairs};
use crate::graph::{Kind, Node, ProviderParts, Relation};
use crate::receipts::Receipt;
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
        self.shown_files(chat, messages);
        let owners = self.answers(chat, messages, &pairs);
        for pair in &pairs {
            self.call(owners[pair.index].unwrap_or(chat), &messages[pair.index], pair);
        }
        Ok(())
    }

    /// Enters the files that a chat shows the model: those of its `file`, `directory`, `image` and `pdf` lines. What they
    /// held when the model saw them is not recorded.
    fn shown_files(&mut self, chat: usize, messages: &[Message]) {
        let own = self.graph.nodes[chat].path.clone();
        let beside = own.parent().unwrap_or(Path::new("")).to_owned();
        for message in messages {
            if !matches!(message.role, Role::File | Role::Directory | Role::Image | Role::Pdf) {
                continue;
            }
            let written = message.content.trim();
            // A URL is fetched by the provider, and what is written out in full is no file.
            if written.is_empty() || written.contains("://") || written.starts_with("data:") {
                continue;
            }
            let near = beside.join(written);
            let there = [
                &near,
                &self.in_project(written),
                &self.in_project(&format!("chats/{written}")),
            ]
            .into_iter()
            .find(|path| path.exists())
            .cloned();
            if there.is_none() {
                let text = format!("{} `{written}` is not there", message.role);
                self.graph.problem(&own, Some(line(message)), text);
            }
            let to = self.visit_file(&there.unwrap_or(near));
            self.graph.edge(chat, to, Relation::Input);
        }
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

    /// The jobs and chats of the agent that a call handed work to, as its output's receipts name them.
    fn delegates(&mut self, call: usize, line: usize, pair: &ToolPair) {
        let path = self.graph.nodes[call].path.clone();
        for receipt in &pair.receipts {
            self.receipts.push((path.clone(), line, receipt.clone()));
            if let Some(job) = receipt.job() {
                self.refer_to_job(call, job, Relation::Delegate, Some(line));
            }
        }
        let chats = pair.receipts.iter().filter_map(Receipt::chat);
        for chat in chats.chain(pair.chat.as_deref()).collect::<BTreeSet<_>>() {
            let near = path.parent().unwrap_or(Path::new("")).join(chat);
            let there = [self.in_project(chat), near].into_iter().find(|p| p.is_file());
            match there {
                Some(there) => {
                    let to = self.visit_chat(&there);
                    self.graph.edge(call, to, Relation::Delegate);
                }
                None => {
                    let text = format!("the chat `{chat}` of the agent that was asked is not there");
                    self.graph.problem(&path, Some(line), text);
                }
            }
        }
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
        if !pair.receipts.is_empty() {
            node.note = Some(delegated(pair));
        }
        let (at, _) = self.graph.node(node);
        self.graph.edge(from, at, Relation::Call);
        self.delegates(at, line(message), pair);
        if let Some(job) = pair.output.as_ref().and_then(|o| o.job.as_deref()) {
            self.refer_to_job(at, job, Relation::Job, Some(line(message)));
        }
    }
}

/// What the receipts of a call come to: `delegated: 2 requests, total=180`.
fn delegated(pair: &ToolPair) -> String {
    let requests: Vec<Usage> = pair
        .receipts
        .iter()
        .map(|r| r.meta.usage())
        .filter(|usage| !usage.is_empty())
        .collect();
    let total: u64 = requests
        .iter()
        .fold(0, |sum, usage| sum.saturating_add(usage.tt.unwrap_or(0)));
    let plural = if requests.len() == 1 { "" } else { "s" };
    format!("delegated: {} request{plural}, total={total}", requests.len())
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
