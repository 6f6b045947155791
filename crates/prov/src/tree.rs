//! The graph for people: an indented tree, and tables of tokens and evidence.

use std::time::Duration;

use decanus_base::text::escape_controls;
use decanus_base::units::show_duration;
use decanus_chat::Usage;
use serde_json::Value;

use crate::graph::{Edge, Graph, Kind, Node, Relation};

impl Graph {
    /// One step per line, below what it belongs to or led to, then the total. What was shown before is named again, but
    /// not what is below it. Every line is safe to print.
    pub fn to_tree(&self) -> String {
        let mut below: Vec<Vec<&Edge>> = vec![Vec::new(); self.nodes.len()];
        for edge in &self.edges {
            below[edge.from].push(edge);
        }
        let mut out = String::new();
        let mut shown = vec![false; self.nodes.len()];
        // A stack of its own: jobs may depend on each other deeper than the process's stack is.
        let mut open: Vec<(usize, usize, Option<&Edge>)> = Vec::new();
        open.extend((!self.nodes.is_empty()).then_some((0, 0, None)));
        while let Some((at, depth, edge)) = open.pop() {
            let again = std::mem::replace(&mut shown[at], true);
            let line = line(&self.nodes[at], edge, again && !below[at].is_empty());
            out.push_str(&"  ".repeat(depth));
            out.push_str(&safe(&line));
            out.push('\n');
            if !again {
                let next = below[at].iter().rev();
                open.extend(next.map(|edge| (edge.to, depth + 1, Some(*edge))));
            }
        }
        out.push_str(&self.total_line());
        out
    }

    /// `total  prompt=…`, with a line feed.
    pub fn total_line(&self) -> String {
        let requests = match self.ledger.inferences().len() {
            0 => return "total  no tokens are recorded\n".into(),
            1 => "1 request".to_owned(),
            n => format!("{n} requests"),
        };
        let doubt = if self.ledger.has_conflicts() {
            "; copies disagree, so this is not certain"
        } else {
            ""
        };
        format!("total  {}  ({requests}{doubt})\n", tokens(&self.ledger.total()))
    }

    /// The cells of a table of all requests, with its head: counts, model, time, where each was found.
    pub fn token_rows(&self) -> Vec<Vec<String>> {
        let head = [
            "pt",
            "ct",
            "tt",
            "cct",
            "cwt",
            "rt",
            "model",
            "time",
            "inference",
            "found at",
        ];
        let mut rows = vec![head.map(str::to_owned).to_vec()];
        for inference in self.ledger.inferences() {
            let count = |(_, n): (_, Option<u64>)| n.map_or_else(|| "-".into(), |n| n.to_string());
            let mut row: Vec<String> = inference.usage.fields().map(count).to_vec();
            let text = |t: &Option<String>| safe(t.as_deref().unwrap_or("-"));
            row.extend([text(&inference.model), text(&inference.time)]);
            row.push(if inference.has_id {
                safe(&inference.id)
            } else {
                "-".into()
            });
            let first = inference.evidence.first();
            let at = first
                .map(|e| format!("{}:{}", e.file.display(), e.line))
                .unwrap_or_default();
            let copies = match inference.evidence.len() {
                0 | 1 => String::new(),
                n => format!(" and {} more", n - 1),
            };
            row.push(safe(&format!("{at}{copies}")));
            rows.push(row);
        }
        rows
    }

    /// Every place that speaks of a request and how it was counted, then the opaque parts of answers, a line each.
    pub fn evidence_lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for inference in self.ledger.inferences() {
            for (n, evidence) in inference.evidence.iter().enumerate() {
                let copy = if evidence.receipt { "a receipt" } else { "a copy" };
                let how = match (n, inference.conflicts.as_slice()) {
                    (0, _) if evidence.receipt => "counted; known by a receipt only".to_owned(),
                    (0, _) if inference.has_id => "counted".to_owned(),
                    (0, _) => "counted; has no id, known by its place".to_owned(),
                    (_, []) => copy.to_owned(),
                    (_, differs) => format!("{copy}; disagrees on {}", differs.join(", ")),
                };
                let (at, id) = (evidence.file.display(), &inference.id);
                let counts = tokens(&evidence.usage);
                lines.push(safe(&format!("{at}:{}  {id}  {counts}  {how}", evidence.line)));
            }
        }
        for parts in &self.provider_parts {
            let at = parts.file.display();
            lines.push(safe(&format!("{at}:{}  provider  {}", parts.line, parts.content)));
        }
        lines
    }
}

fn line(node: &Node, edge: Option<&Edge>, again: bool) -> String {
    let relation = edge.map(|e| e.relation);
    let kind = match (node.kind, relation) {
        (Kind::File, Some(relation)) => relation.as_str(),
        (Kind::Chat, Some(Relation::Log)) => "log",
        (kind, _) => kind.as_str(),
    };
    let delegated = if relation == Some(Relation::Delegate) {
        "delegated "
    } else {
        ""
    };
    let mut parts = vec![format!("{delegated}{kind} {}", node.label)];
    if let (Kind::Job, Some(Relation::Input), Some(input)) = (node.kind, relation, edge.and_then(|e| e.input.as_ref()))
    {
        parts[0].push_str(&format!(" -> {input}"));
    }
    if again {
        parts.push("(shown above)".into());
        return parts.join("  ");
    }
    parts.extend(node.status.clone());
    if !node.usage.is_empty() {
        parts.push(tokens(&node.usage));
    }
    parts.extend(node.model.clone());
    parts.extend(node.time.as_deref().map(to_milliseconds));
    parts.extend(node.seconds.map(|s| show_duration(Duration::from_secs_f64(s))));
    parts.extend(versions(node));
    parts.extend(edge.and_then(file_state));
    parts.extend(node.note.as_ref().map(|note| format!("({note})")));
    parts.join("  ")
}

/// What ran a job: `by decanus 0.1.0`.
pub(crate) fn versions(node: &Node) -> Option<String> {
    let shown = node.versions.iter().map(|(name, version)| match version {
        Value::String(text) => format!("{name} {text}"),
        other => format!("{name} {other}"),
    });
    let shown: Vec<String> = shown.collect();
    (!shown.is_empty()).then(|| format!("by {}", shown.join(", ")))
}

/// The digest that a job found a file with, and what has become of the file.
pub(crate) fn file_state(edge: &Edge) -> Option<String> {
    let digest = edge.sha256.as_ref().and_then(|d| d.get(..12));
    let digest = digest.map(|d| format!("sha256:{d}"));
    let check = edge.check.map(|c| format!("({})", c.as_str()));
    let parts: Vec<String> = digest.into_iter().chain(check).collect();
    (!parts.is_empty()).then(|| parts.join("  "))
}

/// The counts that are there and not 0, in words.
fn tokens(usage: &Usage) -> String {
    const WORDS: [&str; 6] = [
        "prompt",
        "completion",
        "total",
        "cache_read",
        "cache_write",
        "reasoning",
    ];
    let counts = WORDS.iter().zip(usage.fields());
    let shown = counts.filter_map(|(word, (_, n))| n.filter(|n| *n > 0).map(|n| format!("{word}={n}")));
    shown.collect::<Vec<_>>().join(" ")
}

/// A time to the millisecond: records of jobs are finer than a reader needs.
fn to_milliseconds(time: &str) -> String {
    let read = time.parse::<jiff::Timestamp>();
    read.map_or_else(|_| time.to_owned(), |time| format!("{time:.3}"))
}

/// A text on one line, with nothing in it that a terminal would act on: neither a name nor an answer can fake a line.
pub(crate) fn safe(text: &str) -> String {
    escape_controls(text).replace('\n', "\\n").replace('\t', "\\t")
}
