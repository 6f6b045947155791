//! The graph: what there is, and what came from what.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use decanus_chat::Usage;
use serde_json::{Map, Value};

use crate::tokens::Ledger;

/// What a node is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A chat file.
    Chat,
    /// What one request made: text, calls, or both.
    Answer,
    /// A tool call.
    Call,
    /// A job.
    Job,
    /// A file that a job read or wrote, or that a chat shows the model.
    File,
}

impl Kind {
    /// The stable word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Chat => "chat",
            Self::Answer => "answer",
            Self::Call => "call",
            Self::Job => "job",
            Self::File => "file",
        }
    }
}

/// What the node that an edge leads to is for the one that it comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Relation {
    /// An answer of a chat.
    Answer,
    /// A call of an answer.
    Call,
    /// The job that made a call's output, or an answer.
    Job,
    /// A job whose result a job used.
    Dependency,
    /// What went in: a file that a job read or that a chat shows, or a job whose result is the value of a job's input.
    Input,
    /// A script that a job's task names.
    Script,
    /// The job or chat of an agent that a call handed work to.
    Delegate,
    /// A chat in which a job's own requests are kept.
    Log,
    /// What a job gave: a chat, or a file.
    Result,
    /// A file that a job left in its folder.
    Output,
}

impl Relation {
    /// The stable word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Answer => "answer",
            Self::Call => "call",
            Self::Job => "job",
            Self::Dependency => "dependency",
            Self::Input => "input",
            Self::Script => "script",
            Self::Delegate => "delegate",
            Self::Log => "log",
            Self::Result => "result",
            Self::Output => "output",
        }
    }
}

/// Something that took part.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// Unique within the graph, and the same whenever the same files are read: `KIND:PATH`, or `KIND:PATH:LINE`.
    pub id: String,
    /// What it is.
    pub kind: Kind,
    /// A line for people; text of models and tools in it is cut, but not escaped.
    pub label: String,
    /// Real path of the file: a job's is its result; an answer's and a call's the chat that holds it.
    pub path: PathBuf,
    /// The line of an answer or a call.
    pub line: Option<usize>,
    /// `ok`, `failed`, `unknown` for a call; a job's status, `missing` when nothing is there of it, `noinfo` when there
    /// is no record of it, `unsync` when it is done and its result is gone; `missing` for files that are not there.
    pub status: Option<String>,
    /// The identity of a job: the digest in its name.
    pub digest: Option<String>,
    /// The versions of what ran a job, as its record has them.
    pub versions: Map<String, Value>,
    /// When the file was changed last; a job's is that of its result.
    pub modified: Option<SystemTime>,
    /// The tokens of an answer's request; of a chat, those of all its requests.
    pub usage: Usage,
    /// The model that answered.
    pub model: Option<String>,
    /// When the answer was there, or the job's process began; UTC.
    pub time: Option<String>,
    /// How long the job's process ran.
    pub seconds: Option<f64>,
    /// What else should be known: why a job failed, that an answer was cut.
    pub note: Option<String>,
}

impl Node {
    pub(crate) fn new(kind: Kind, path: &Path, line: Option<usize>, label: impl Into<String>) -> Self {
        let place = line.map(|l| format!(":{l}")).unwrap_or_default();
        Self {
            id: format!("{}:{}{place}", kind.as_str(), path.display()),
            kind,
            label: label.into(),
            path: path.to_owned(),
            line,
            status: None,
            digest: None,
            versions: Map::new(),
            modified: None,
            usage: Usage::default(),
            model: None,
            time: None,
            seconds: None,
            note: None,
        }
    }
}

/// A connection, by the places of its ends among the nodes. It leads from what came out to what it came from, or to what
/// belongs to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Edge {
    /// Where it begins.
    pub from: usize,
    /// Where it ends.
    pub to: usize,
    /// What `to` is for `from`.
    pub relation: Relation,
    /// The input of a job that `to` is the value of.
    pub input: Option<String>,
    /// The SHA-256 of the file that `to` is, as the job that `from` is found it.
    pub sha256: Option<String>,
    /// Whether the file still is what it was; only where that was asked for.
    pub check: Option<Check>,
}

/// Whether a file still is what it was when a job read it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Check {
    /// Its content has the recorded digest.
    Same,
    /// Its content has another one.
    Changed,
    /// It is not there, or can't be read.
    Missing,
    /// No digest of it was recorded.
    Unrecorded,
}

impl Check {
    /// The stable word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Same => "same",
            Self::Changed => "changed",
            Self::Missing => "missing",
            Self::Unrecorded => "unrecorded",
        }
    }
}

/// Something that could not be read or found; the graph is made without it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The file that is wrong, or that speaks of what is missing.
    pub file: PathBuf,
    /// The line, where one can be named.
    pub line: Option<usize>,
    /// What is wrong.
    pub message: String,
}

/// What a provider wants back with an answer: kept as it came, and meant for nobody else.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProviderParts {
    /// The chat.
    pub file: PathBuf,
    /// The line.
    pub line: usize,
    /// One line of JSON.
    pub content: String,
}

/// Where something came from.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Graph {
    /// The root first, then breadth first.
    pub nodes: Vec<Node>,
    /// In the order in which they were found.
    pub edges: Vec<Edge>,
    /// The requests, each once.
    pub ledger: Ledger,
    /// What could not be read.
    pub problems: Vec<Problem>,
    /// Opaque parts of answers. They may hold what a model thought: show them only when asked to.
    pub provider_parts: Vec<ProviderParts>,
    pub(crate) by_id: HashMap<String, usize>,
    pub(crate) known_edges: HashMap<(usize, usize, Relation, Option<String>), usize>,
}

impl Graph {
    /// Puts a node in, unless it is there. Gives its place, and whether it is new.
    pub(crate) fn node(&mut self, node: Node) -> (usize, bool) {
        if let Some(&at) = self.by_id.get(&node.id) {
            return (at, false);
        }
        let at = self.nodes.len();
        self.by_id.insert(node.id.clone(), at);
        self.nodes.push(node);
        (at, true)
    }

    pub(crate) fn edge(&mut self, from: usize, to: usize, relation: Relation) {
        self.input_edge(from, to, relation, None, None);
    }

    /// An edge that says which input it is for, and what the file held then.
    pub(crate) fn input_edge(
        &mut self,
        from: usize,
        to: usize,
        relation: Relation,
        input: Option<&str>,
        sha256: Option<String>,
    ) {
        let input = input.map(str::to_owned);
        let next = self.edges.len();
        let at = *self
            .known_edges
            .entry((from, to, relation, input.clone()))
            .or_insert(next);
        if at == next {
            self.edges.push(Edge {
                from,
                to,
                relation,
                input,
                sha256,
                check: None,
            });
        }
    }

    pub(crate) fn problem(&mut self, file: &Path, line: Option<usize>, message: impl Into<String>) {
        let problem = Problem {
            file: file.to_owned(),
            line: line.filter(|l| *l > 0),
            message: message.into(),
        };
        if !self.problems.contains(&problem) {
            self.problems.push(problem);
        }
    }
}
