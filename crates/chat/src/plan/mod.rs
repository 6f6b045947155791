//! What a chat asks for, found out without doing any of it.
//!
//! The files that a chat imports or shows are read; tasks, jobs and commands stay as [`Action`]s for somebody else to
//! carry out. The order is that of the format: imports, clearing, files (each for every file by itself, so that a `clear`
//! in an imported chat acts on that chat alone), then, over the whole list, settings, tools, calls and actions.

mod compile;
pub mod element;
mod lookup;
mod options;
mod words;

use std::collections::{HashMap, HashSet, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use decanus_base::names::did_you_mean;

use crate::call::{FunctionCall, FunctionCallOutput};
use crate::message::{Message, Role};
use crate::meta::Meta;
use crate::parse::Parsed;
use crate::provider::ProviderParts;
use crate::strategy::Settings;

pub use compile::MAX_DEPTH;
pub use lookup::{Lookup, MAX_CHAT, MAX_FILE, Place, Source, real_of};
pub use options::{ChatOptions, Setting};
pub use words::{Pair, Word, words};

use compile::{Compiler, Placed};

/// Words that stand for no inputs at all.
const NO_INPUTS: [&str; 2] = ["none", "noinputs"];

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

/// The calls among some messages that have no output, in order.
pub fn pending(messages: &[Message]) -> Vec<FunctionCall> {
    let mut calls: Vec<Option<FunctionCall>> = Vec::new();
    let mut open: HashMap<String, VecDeque<usize>> = HashMap::new();
    for message in messages {
        match message.role {
            Role::FunctionCall => {
                if let Ok(call) = FunctionCall::from_message(message) {
                    open.entry(call.id.clone()).or_default().push_back(calls.len());
                    calls.push(Some(call));
                }
            }
            Role::FunctionCallOutput => {
                if let Ok(output) = FunctionCallOutput::from_message(message)
                    && let Some(at) = open.get_mut(&output.id).and_then(VecDeque::pop_front)
                {
                    calls[at] = None;
                }
            }
            _ => {}
        }
    }
    calls.into_iter().flatten().collect()
}

/// Plans a chat that was read from a file (or, with no path, from nowhere: its paths are then relative to the working
/// directory).
pub fn plan(parsed: Parsed, path: Option<&Path>, lookup: &Lookup) -> Plan {
    let source = match path {
        Some(path) => lookup.source(path),
        None => Arc::new(Source {
            path: None,
            dir: lookup.working_dir.clone(),
            shown: "(text)".into(),
            parent: None,
        }),
    };
    let mut compiler = Compiler::new(lookup);
    for problem in parsed.problems {
        let place = Place {
            source: source.clone(),
            line: problem.line,
        };
        let severity = if problem.error {
            Severity::Damage
        } else {
            Severity::Warning
        };
        compiler.report(&place, severity, problem.message);
    }
    let imports = |m: &Message| matches!(m.role, Role::Import | Role::Continue | Role::Last);
    let mut messages = parsed.messages;
    let has_imports = messages.iter().any(imports);
    let mut compile = || compiler.compile(std::mem::take(&mut messages), &source);
    let placed = match has_imports {
        true => on_a_large_stack(compile),
        false => compile(),
    };
    let mut planner = Planner {
        lookup,
        compiler,
        plan: Plan::default(),
        calls: HashSet::new(),
        introduced: HashSet::new(),
        job: None,
        own: source.shown.clone(),
        socialize: None,
    };
    for placed in placed {
        planner.take(placed);
    }
    planner.finish()
}

/// Puts the findings of one file into the order of its lines; those of others follow as they are.
pub fn sort(findings: &mut [Finding], own: &str) {
    findings.sort_by_key(|f| if f.shown == own { (false, f.line) } else { (true, 0) });
}

/// Imports are followed by recursion, up to [`MAX_DEPTH`] deep, which a thread's usual stack may not hold.
fn on_a_large_stack<T: Send>(mut work: impl FnMut() -> T + Send) -> T {
    const STACK: usize = 64 << 20;
    let done = std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().stack_size(STACK);
        let thread = thread.spawn_scoped(scope, &mut work).ok()?;
        Some(thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    });
    // Where no thread can be had, the stack that is there has to do.
    done.unwrap_or_else(work)
}

struct Planner<'a> {
    lookup: &'a Lookup,
    compiler: Compiler,
    plan: Plan,
    calls: HashSet<String>,
    introduced: HashSet<String>,
    /// The `job=` of the last meta that has one.
    job: Option<String>,
    /// The chat itself, as people are told of it.
    own: String,
    /// The last `socialize`, and where it is.
    socialize: Option<Place>,
}

impl Planner<'_> {
    fn take(&mut self, placed: Placed) {
        let Placed {
            message,
            place,
            without_tools,
        } = placed;
        let content = message.content.trim().to_owned();
        match message.role {
            Role::System | Role::User => self.say(message),
            Role::Assistant => {
                self.plan.options.answered();
                self.say(message);
            }
            Role::FunctionCall => match FunctionCall::from_message(&message) {
                Ok(call) => {
                    self.calls.insert(call.id);
                    self.say(message);
                }
                Err(e) => self.damage(&place, e.to_string()),
            },
            Role::FunctionCallOutput => match FunctionCallOutput::from_message(&message) {
                Ok(output) if self.calls.remove(&output.id) => self.say(message),
                Ok(output) if self.compiler.cleared.remove(&output.id) => {}
                Ok(output) => {
                    let text = format!("function_call_output `{}` answers no call; it is left out", output.id);
                    self.damage(&place, text);
                }
                Err(e) => self.damage(&place, e.to_string()),
            },
            Role::Meta => {
                if let Some(job) = Meta::read(&message.content).get("job") {
                    self.job = Some(job.to_owned());
                }
            }
            Role::Option
            | Role::StickyOption
            | Role::Endpoint
            | Role::Model
            | Role::Backend
            | Role::Agent
            | Role::Persist
            | Role::Format
            | Role::PreviousResponseId
            | Role::Websearch => self.option(message.role, &content, place),
            Role::Config => self.config(&content, place),
            Role::Tool => self.tool(&content, place, without_tools),
            Role::Introduce => self.introduce(message, &content, place, without_tools),
            Role::Task | Role::InlineTask | Role::ExecTask => self.task(message, &content, place),
            Role::Job | Role::InlineJob => self.job(message, content, place),
            Role::Step => self.step(message, content, place),
            Role::Cmd => self.command(message, &content, place),
            Role::Image | Role::Pdf => {
                if let Some(from) = self.compiler.media(&content, &place) {
                    self.act(message, ActionKind::Media { from }, place);
                }
            }
            Role::Mcp | Role::Kb | Role::Association => self.unavailable(&place, message.role),
            Role::Socialize => {
                let yes = ["true", "True", "TRUE", "T", "1"].contains(&content.as_str());
                self.socialize = yes.then_some(place);
            }
            Role::Provider => match ProviderParts::from_message(&message) {
                Ok(_) => self.say(message),
                Err(e) => self.damage(&place, e),
            },
            // Calls that a provider made itself are kept in the file only.
            Role::McpCall => {}
            // These have done their work while their file was compiled.
            Role::Import
            | Role::Continue
            | Role::Last
            | Role::Clear
            | Role::ClearTools
            | Role::ClearCalls
            | Role::ClearAssociations
            | Role::CleanRole
            | Role::ClearRole
            | Role::Skip
            | Role::File
            | Role::Directory
            | Role::AllowPath
            | Role::AllowReadPath => {}
        }
    }

    fn finish(mut self) -> Plan {
        if let Some(place) = self.socialize.take() {
            self.unavailable(&place, Role::Socialize);
        }
        self.plan.options.settle();
        if let Some(agent) = self.plan.options.get("agent") {
            let place = agent.place.clone();
            self.unavailable(&place, Role::Agent);
        }
        self.plan.grants = std::mem::take(&mut self.compiler.granted)
            .into_iter()
            .map(|(path, write)| Grant { path, write })
            .collect();
        self.plan.findings = self.compiler.findings;
        // Those of the chat itself by line; those of imported ones stay as they were found.
        sort(&mut self.plan.findings, &self.own);
        self.plan
    }

    fn say(&mut self, message: Message) {
        self.plan.items.push(Item::Message(message));
    }

    fn act(&mut self, message: Message, kind: ActionKind, place: Place) {
        self.plan.items.push(Item::Action(Action { message, kind, place }));
    }

    fn error(&mut self, place: &Place, text: impl Into<String>) {
        self.compiler.report(place, Severity::Error, text);
    }

    fn damage(&mut self, place: &Place, text: impl Into<String>) {
        self.compiler.report(place, Severity::Damage, text);
    }

    fn unavailable(&mut self, place: &Place, role: Role) {
        self.error(place, format!("{role} is not available in this build"));
    }

    fn words(&mut self, role: Role, content: &str, place: &Place) -> Option<Vec<Word>> {
        words(content)
            .map_err(|e| self.error(place, format!("{role}: {e}")))
            .ok()
    }

    fn option(&mut self, role: Role, content: &str, place: Place) {
        let result = match role {
            Role::Format => self.format(content, &place),
            _ => self.plan.options.take(role, content, place.clone()),
        };
        if let Err(text) = result {
            self.error(&place, text);
        }
    }

    /// A word, a JSON schema, or the path of one.
    fn format(&mut self, content: &str, place: &Place) -> Result<(), String> {
        if content.starts_with('{') {
            serde_json::from_str::<serde_json::Value>(content).map_err(|e| format!("format is not valid JSON: {e}"))?;
            return self.plan.options.take(Role::Format, content, place.clone());
        }
        let text = match self.compiler.setting_file(content, place) {
            None => content.to_owned(),
            Some(Err(why)) => return Err(format!("format: {why}")),
            Some(Ok(text)) => {
                serde_json::from_str::<serde_json::Value>(&text)
                    .map_err(|e| format!("format: {content} is not valid JSON: {e}"))?;
                text
            }
        };
        self.plan.options.take(Role::Format, text.trim(), place.clone())
    }

    fn config(&mut self, content: &str, place: Place) {
        let Some(words) = self.words(Role::Config, content, &place) else {
            return;
        };
        match words.as_slice() {
            [key, value, ..] => {
                let key = key.text.clone();
                if !Settings::KNOWN.contains(&key.as_str()) {
                    let guess = did_you_mean(&key, Settings::KNOWN.iter().copied());
                    let text = format!("config: nothing is set by `{key}`{guess}");
                    self.compiler.report(&place, Severity::Warning, text);
                }
                self.plan.config.push(Config {
                    key,
                    value: value.text.clone(),
                    place,
                });
            }
            _ => self.error(&place, "config takes a key and a value"),
        }
    }

    fn tool(&mut self, content: &str, place: Place, without_tools: bool) {
        let Some(words) = self.words(Role::Tool, content, &place) else {
            return;
        };
        if without_tools {
            return;
        }
        let [name, rest @ ..] = words.as_slice() else {
            return self.error(&place, "tool takes the name of a tool or workflow");
        };
        let name = name.text.clone();
        let mut task = None;
        let mut inputs = rest;
        if let [word, more @ ..] = rest
            && word.pair().is_none()
            && !name.contains('/')
        {
            task = Some(word.text.clone());
            inputs = more;
        }
        let mut shown = None;
        let mut forced = Vec::new();
        for word in inputs {
            let list = shown.get_or_insert_with(Vec::new);
            match word.pair() {
                Some(pair) => forced.push(pair),
                None if NO_INPUTS.contains(&word.text.as_str()) => {}
                None => list.push(word.text.clone()),
            }
        }
        self.plan.tools.push(ToolUse {
            name,
            task,
            shown,
            forced,
            place,
        });
    }

    fn introduce(&mut self, message: Message, workflow: &str, place: Place, without_tools: bool) {
        if workflow.is_empty() || workflow.contains(char::is_whitespace) {
            return self.error(&place, "introduce takes the name of a workflow");
        }
        if !without_tools {
            self.plan.tools.push(ToolUse {
                name: workflow.to_owned(),
                task: None,
                shown: None,
                forced: Vec::new(),
                place: place.clone(),
            });
        }
        if self.introduced.insert(workflow.to_owned()) {
            let workflow = workflow.to_owned();
            self.act(message, ActionKind::Introduce { workflow }, place);
        }
    }

    fn task(&mut self, message: Message, content: &str, place: Place) {
        let role = message.role;
        let Some(words) = self.words(role, content, &place) else {
            return;
        };
        let bare: Vec<&Word> = words.iter().take_while(|w| w.pair().is_none()).collect();
        let (workflow, task) = match bare.as_slice() {
            [workflow, task] => (workflow.text.clone(), task.text.clone()),
            [both] if both.text.contains('/') => {
                let (workflow, task) = both.text.split_once('/').unwrap_or_default();
                (workflow.to_owned(), task.to_owned())
            }
            _ => return self.error(&place, format!("{role} takes WORKFLOW TASK key=value…")),
        };
        let mut inputs: Vec<Pair> = Vec::new();
        for word in &words[bare.len()..] {
            match word.pair() {
                Some(pair) if inputs.iter().any(|p| p.key == pair.key) => {
                    return self.error(&place, format!("{role}: the input {} is given twice", pair.key));
                }
                Some(pair) => inputs.push(pair),
                None => return self.error(&place, format!("{role}: `{}` is not key=value", word.text)),
            }
        }
        let insert = match role {
            Role::InlineTask => Insert::File,
            Role::ExecTask => Insert::Text,
            _ => Insert::Pair,
        };
        let kind = ActionKind::Task {
            workflow,
            task,
            inputs,
            insert,
        };
        self.act(message, kind, place);
    }

    fn job(&mut self, message: Message, job: String, place: Place) {
        if job.is_empty() || job.contains('\n') {
            return self.error(&place, format!("{} takes the path of a job", message.role));
        }
        let insert = if message.role == Role::Job {
            Insert::Pair
        } else {
            Insert::File
        };
        self.act(message, ActionKind::Job { job, insert }, place);
    }

    fn step(&mut self, message: Message, task: String, place: Place) {
        match self.job.clone() {
            Some(job) if !task.is_empty() => self.act(message, ActionKind::Step { task, job }, place),
            Some(_) => self.error(&place, "step takes the name of a task"),
            None => self.error(&place, "step: no `meta` above names a job"),
        }
    }

    /// Commands are run only where the user said so: in the chat that was named, with permission.
    fn command(&mut self, message: Message, content: &str, place: Place) {
        let Some(words) = self.words(Role::Cmd, content, &place) else {
            return;
        };
        if words.is_empty() {
            return self.error(&place, "cmd takes a command");
        }
        if place.source.parent.is_some() || !self.lookup.named_by_user {
            return self.error(
                &place,
                "cmd is run only in the chat that was named itself, never in an imported one",
            );
        }
        if !self.lookup.allow_cmd {
            return self.error(
                &place,
                "cmd runs a command, and that was not allowed: give --allow-cmd, or write allow = [\"cmd\"] in decanus.toml",
            );
        }
        let argv = words.into_iter().map(|w| w.text).collect();
        self.act(message, ActionKind::Command { argv }, place);
    }
}

#[cfg(test)]
mod tests;
