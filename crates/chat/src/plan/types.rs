//! What a plan is made of.

use std::path::PathBuf;

use super::lookup::Place;
use super::options::ChatOptions;
use super::words::Pair;
use crate::message::Message;

/// Words that stand for no inputs at all.
pub(super) const NO_INPUTS: [&str; 2] = ["none", "noinputs"];

/// How bad something is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// It may not be meant; nothing is left out.
    Warning,
    /// A record can't be read and is left out; the rest of the chat can be used.
    Damage,
    /// The chat asks for something that can't be done: it can't be asked as it is.
    Error,
}

/// Something wrong in a chat, or in one that it imports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The file; none for messages that come from no file.
    pub file: Option<PathBuf>,
    /// The file as people are told of it.
    pub shown: String,
    /// The line, from 1; 0 for the whole file.
    pub line: usize,
    /// How bad it is.
    pub severity: Severity,
    /// What is wrong.
    pub message: String,
}

impl std::fmt::Display for Finding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}: {}", self.shown, self.line, self.message)
    }
}

/// One thing of a conversation, in its place.
#[derive(Clone, Debug)]
pub enum Item {
    /// A message that the model sees.
    Message(Message),
    /// Something to be done first; what comes of it stands here.
    Action(Action),
}

/// Something that a chat asks for and that reading it does not do.
#[derive(Clone, Debug)]
pub struct Action {
    /// The role it was written with, and its content.
    pub message: Message,
    /// What is to be done.
    pub kind: ActionKind,
    /// Where it is written.
    pub place: Place,
}

/// What is to be done.
#[derive(Clone, Debug)]
pub enum ActionKind {
    /// Run a task as a job.
    Task {
        /// The workflow.
        workflow: String,
        /// The task.
        task: String,
        /// Its inputs, as written.
        inputs: Vec<Pair>,
        /// What is made of the result.
        insert: Insert,
    },
    /// Take a stored job.
    Job {
        /// Its path, `WORKFLOW/TASK/NAME`, or the beginning of its digest.
        job: String,
        /// What is made of the result.
        insert: Insert,
    },
    /// Take the answer of a step of a job.
    Step {
        /// The task.
        task: String,
        /// The job that made the messages above, as its record names it.
        job: String,
    },
    /// Tell of a workflow.
    Introduce {
        /// The workflow.
        workflow: String,
    },
    /// Take in a picture or a PDF document.
    Media {
        /// An absolute path, or a URL that the provider fetches.
        from: String,
    },
    /// Run a command.
    Command {
        /// Program and arguments.
        argv: Vec<String>,
    },
}

/// What is made of a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Insert {
    /// A call and its output.
    Pair,
    /// A `<file>` element of the user.
    File,
    /// What the user says.
    Text,
}

/// Tools that a chat declares.
#[derive(Clone, Debug)]
pub struct ToolUse {
    /// A tool or workflow: `calculator`, `Weather`; or `Weather/compare`.
    pub name: String,
    /// The word behind it: a task if the name is a workflow's, else the first of the inputs.
    pub task: Option<String>,
    /// The inputs that the model sees; none for all.
    pub shown: Option<Vec<String>>,
    /// Inputs that are hidden, with the values they always have.
    pub forced: Vec<Pair>,
    /// Where it is written.
    pub place: Place,
}

impl ToolUse {
    /// What it stands for if its second word is a task: `Weather/compare`.
    pub fn spec(&self) -> String {
        match &self.task {
            Some(task) => format!("{}/{task}", self.name),
            None => self.name.clone(),
        }
    }

    /// The same declaration with its second word taken as an input; none if there is no second word.
    pub fn without_task(&self) -> Option<Self> {
        let mut shown = self.shown.clone().unwrap_or_default();
        let first = self.task.clone()?;
        if !NO_INPUTS.contains(&first.as_str()) {
            shown.insert(0, first);
        }
        Some(Self {
            task: None,
            shown: Some(shown),
            ..self.clone()
        })
    }
}

/// A path that a chat grants to the tools of its run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// Absolute, links followed.
    pub path: PathBuf,
    /// Whether it may be written, too.
    pub write: bool,
}

/// A `config` line: a setting of this request. What stands behind key and value (the parts of a program that it is for,
/// in other programs) makes no difference.
#[derive(Clone, Debug)]
pub struct Config {
    /// The name.
    pub key: String,
    /// The value.
    pub value: String,
    /// Where it is written.
    pub place: Place,
}

/// A chat, read.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// What the model is to see, with the actions in their places.
    pub items: Vec<Item>,
    /// The options in force at the end of the chat.
    pub options: ChatOptions,
    /// The tools that it declares.
    pub tools: Vec<ToolUse>,
    /// The paths that it grants.
    pub grants: Vec<Grant>,
    /// Its `config` lines.
    pub config: Vec<Config>,
    /// What is wrong.
    pub findings: Vec<Finding>,
}

impl Plan {
    /// The messages, without the actions.
    pub fn messages(&self) -> Vec<Message> {
        let message = |item: &Item| match item {
            Item::Message(message) => Some(message.clone()),
            Item::Action(_) => None,
        };
        self.items.iter().filter_map(message).collect()
    }

    /// The actions, in order.
    pub fn actions(&self) -> impl Iterator<Item = &Action> {
        self.items.iter().filter_map(|item| match item {
            Item::Message(_) => None,
            Item::Action(action) => Some(action),
        })
    }

    /// What keeps the chat from being asked.
    pub fn errors(&self) -> impl Iterator<Item = &Finding> {
        self.findings.iter().filter(|f| f.severity == Severity::Error)
    }
}
