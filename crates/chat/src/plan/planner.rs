//! One walk over the compiled messages: settings, tools, calls, actions.

use std::collections::{HashMap, HashSet};

use decanus_base::names::did_you_mean;

use super::compile::{Compiler, Placed};
use super::lookup::{Lookup, Place};
use super::types::NO_INPUTS;
use super::{Action, ActionKind, Config, Grant, Insert, Item, Pair, Plan, Severity, ToolUse, Word, sort, words};
use crate::call::{FunctionCall, FunctionCallOutput};
use crate::message::{Message, Role};
use crate::meta::Meta;
use crate::provider::ProviderParts;
use crate::strategy::Settings;

pub(super) struct Planner<'a> {
    lookup: &'a Lookup,
    compiler: Compiler,
    plan: Plan,
    /// Calls without an output, by id: one answer may hold two of the same.
    calls: HashMap<String, usize>,
    introduced: HashSet<String>,
    /// The `job=` of the last meta that has one.
    job: Option<String>,
    /// The chat itself, as people are told of it.
    own: String,
    /// The last `socialize`, and where it is.
    socialize: Option<Place>,
}

impl<'a> Planner<'a> {
    pub fn new(lookup: &'a Lookup, compiler: Compiler, own: String) -> Self {
        Self {
            lookup,
            compiler,
            plan: Plan::default(),
            calls: HashMap::new(),
            introduced: HashSet::new(),
            job: None,
            own,
            socialize: None,
        }
    }
}

impl Planner<'_> {
    pub fn take(&mut self, placed: Placed) {
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
                    *self.calls.entry(call.id).or_default() += 1;
                    self.say(message);
                }
                Err(e) => self.damage(&place, e.to_string()),
            },
            Role::FunctionCallOutput => match FunctionCallOutput::from_message(&message) {
                Ok(output) if self.is_answer(&output.id) => self.say(message),
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

    /// Whether a call of this id is open; then it has its output now.
    fn is_answer(&mut self, id: &str) -> bool {
        let open = self.calls.get_mut(id).filter(|open| **open > 0);
        open.is_some_and(|open| {
            *open -= 1;
            true
        })
    }

    pub fn finish(mut self) -> Plan {
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
