//! What a shell is told when it asks how a word may go on: commands and options by clap, names of workflows, tasks and
//! inputs by the project.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use clap::CommandFactory;
use clap_complete::CompletionCandidate;
use clap_complete::env::{CompleteEnv, Shells};
use decanus::base::Project;
use decanus::base::text::brief;
use decanus::workflow::input::show;
use decanus::workflow::{Input, InputType, Workflows, executor};

use crate::args::Cli;

/// A shell sets this variable to its name when it asks.
pub const VARIABLE: &str = "DECANUS_COMPLETE";

/// The shells that can ask.
pub fn shells() -> Shells<'static> {
    Shells::builtins()
}

/// Answers when a shell asks, and ends the process then.
pub fn answer() {
    CompleteEnv::with_factory(Cli::command).var(VARIABLE).complete();
}

/// The words of the line that is completed, after the name of the program. Shells put them after `--`.
fn line() -> Vec<OsString> {
    let mut words = std::env::args_os().skip_while(|word| word != "--");
    words.next();
    words.skip(1).collect()
}

/// The workflows of the project that the line is about.
fn reach() -> Option<Workflows> {
    let line = line();
    let named = line.windows(2).find(|pair| pair[0] == "-C" || pair[0] == "--directory");
    let dir = named.map_or_else(|| PathBuf::from("."), |pair| PathBuf::from(&pair[1]));
    Some(Workflows::discover(&Project::find(&dir).ok()?))
}

/// The word of the line at a place after the command `group WORD`.
fn after(group: &str, place: usize) -> Option<String> {
    let line = line();
    let at = line.iter().position(|word| word == group)?;
    let words = line[at + 1..]
        .iter()
        .filter(|word| !word.as_encoded_bytes().starts_with(b"-"));
    words.skip(1).nth(place)?.to_str().map(str::to_owned)
}

/// The workflow that the line names: `workflow run W`, `job list W`.
fn named_workflow() -> Option<String> {
    after("workflow", 0).or_else(|| after("job", 0))
}

fn candidates(current: &OsStr, all: impl IntoIterator<Item = (String, String)>) -> Vec<CompletionCandidate> {
    let begins = |word: &str| current.to_str().is_some_and(|typed| word.starts_with(typed));
    all.into_iter()
        .filter(|(word, _)| begins(word))
        .map(|(word, help)| {
            let help = brief(&help, 60);
            CompletionCandidate::new(word).help((!help.is_empty()).then(|| help.into()))
        })
        .collect()
}

/// Names of workflows.
pub fn workflows(current: &OsStr) -> Vec<CompletionCandidate> {
    let folders = reach().map(|w| w.folders()).unwrap_or_default();
    candidates(current, folders.into_iter().map(|(name, _)| (name, String::new())))
}

/// Names of executors.
pub fn executors(current: &OsStr) -> Vec<CompletionCandidate> {
    candidates(current, executor::names().map(|name| (name.to_owned(), String::new())))
}

/// Names of the tasks of the workflow that the line names.
pub fn tasks(current: &OsStr) -> Vec<CompletionCandidate> {
    let workflow = named_workflow().and_then(|name| reach()?.load(&name).ok());
    let tasks = workflow.iter().flat_map(|w| &w.tasks);
    candidates(current, tasks.map(|t| (t.name.clone(), t.description.clone())))
}

/// What `-t` takes of the workflows: `WORKFLOW` and `WORKFLOW/TASK`.
pub fn specs(current: &OsStr) -> Vec<CompletionCandidate> {
    let Some(reach) = reach() else { return Vec::new() };
    let mut words = Vec::new();
    for listed in reach.list() {
        words.push((listed.name.clone(), String::new()));
        for task in listed.workflow.iter().flat_map(|w| &w.tasks) {
            words.push((format!("{}/{}", listed.name, task.name), task.description.clone()));
        }
    }
    candidates(current, words)
}

/// `NAME=` for the inputs of the task that the line names, and `NAME=VALUE` where the values are known.
pub fn inputs(current: &OsStr) -> Vec<CompletionCandidate> {
    let found = || {
        let workflow = reach()?.load(&named_workflow()?).ok()?;
        let task = workflow.task(&after("workflow", 1)?).ok()?.clone();
        let inputs = workflow.recursive_inputs(&task);
        let typed = current.to_str()?;
        let words: Vec<(String, String)> = match typed.split_once('=') {
            None => inputs
                .iter()
                .map(|i| (format!("{}=", i.name), i.description.clone()))
                .collect(),
            Some((name, _)) => {
                let input = inputs.iter().find(|i| i.name == name)?;
                values(input)
                    .map(|value| (format!("{name}={value}"), String::new()))
                    .collect()
            }
        };
        Some(candidates(current, words))
    };
    found().unwrap_or_default()
}

fn values(input: &Input) -> impl Iterator<Item = String> {
    let truths = ["true", "false"].map(Into::into);
    let all = match input.kind {
        InputType::Boolean | InputType::BooleanArray => truths.to_vec(),
        _ => input.options.clone(),
    };
    all.into_iter().map(|value| show(&value))
}
