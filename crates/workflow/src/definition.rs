//! A workflow as it is in memory: tasks, what they depend on and what they do.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use decanus_base::names::did_you_mean;
use decanus_chat::Example;
use serde_json::{Map, Value};

use crate::error::WorkflowError;
use crate::input::Input;
use crate::native::NativeBody;
use crate::python::PythonBody;
use crate::result::ResultType;
use crate::template::Element;

/// A workflow: a folder with a workflow.yaml.
#[derive(Clone, Debug, PartialEq)]
pub struct Workflow {
    /// The folder's name.
    pub name: String,
    /// The folder, absolute.
    pub dir: PathBuf,
    /// A name for people.
    pub title: String,
    /// What it is for.
    pub description: String,
    /// What its documentation says before the tasks.
    pub introduction: String,
    /// Its tasks, in the order of the file.
    pub tasks: Vec<Arc<Task>>,
    /// The tasks that are offered as tools; all of them when empty.
    pub exports: Vec<String>,
}

/// A task.
#[derive(Clone, Debug, PartialEq)]
pub struct Task {
    /// Letters, digits, `_` and `-`, a letter first.
    pub name: String,
    /// What it does, for people and models.
    pub description: String,
    /// Its own inputs, in the order of the file.
    pub inputs: Vec<Input>,
    /// The tasks whose results it uses.
    pub depends: Vec<Dependency>,
    /// What its result is.
    pub result: ResultType,
    /// What its result is in the words of its author, for people and models; may be empty.
    pub returns: String,
    /// The end of its results' names, without the dot, where it is not that of the type.
    pub extension: Option<String>,
    /// What it does.
    pub body: Body,
    /// How long it may take.
    pub timeout: Option<Duration>,
    /// Requests in words and the arguments they should lead to.
    pub examples: Vec<Example>,
}

/// A task that another one depends on.
#[derive(Clone, Debug, PartialEq)]
pub struct Dependency {
    /// The task, of the same workflow.
    pub task: String,
    /// Inputs that are set here and that no caller can change; null means that the input has no value.
    pub fixed: Map<String, Value>,
}

/// What a task does.
#[derive(Clone, Debug, PartialEq)]
pub enum Body {
    /// Runs a program; no shell is involved.
    Run(Vec<Element>),
    /// Runs a shell script; inputs are variables of its environment and never part of its text.
    Sh(String),
    /// Calls a Python function.
    Python(PythonBody),
    /// Calls a Rust function, in this process.
    Native(NativeBody),
}

impl Workflow {
    /// A task by name.
    ///
    /// # Errors
    /// [`WorkflowError::UnknownTask`], with what may have been meant.
    pub fn task(&self, name: &str) -> Result<&Arc<Task>, WorkflowError> {
        self.find(name).ok_or_else(|| {
            let names: Vec<&str> = self.tasks.iter().map(|t| t.name.as_str()).collect();
            WorkflowError::UnknownTask {
                workflow: self.name.clone(),
                task: name.to_owned(),
                guess: did_you_mean(name, names.iter().copied()),
                known: names.join(", "),
            }
        })
    }

    /// The Python files that its tasks are made of, each once.
    pub(crate) fn sources(&self) -> Vec<PathBuf> {
        let of_task = |task: &Arc<Task>| match &task.body {
            Body::Python(python) => python.sources.clone(),
            _ => Vec::new(),
        };
        let mut sources: Vec<PathBuf> = self.tasks.iter().flat_map(of_task).collect();
        sources.sort_unstable();
        sources.dedup();
        sources
    }

    pub(crate) fn find(&self, name: &str) -> Option<&Arc<Task>> {
        self.tasks.iter().find(|t| t.name == name)
    }

    /// The tasks that are offered as tools: the exported ones, else all.
    pub fn exported(&self) -> Vec<&Arc<Task>> {
        if self.exports.is_empty() {
            return self.tasks.iter().collect();
        }
        self.exports.iter().filter_map(|name| self.find(name)).collect()
    }

    /// All inputs that a caller of the task can give: its own, then those of its dependencies in order, without those
    /// that a declaration sets. Each name once; the first declaration counts.
    pub fn recursive_inputs<'a>(&'a self, task: &'a Task) -> Vec<&'a Input> {
        let mut found = Vec::new();
        let mut names = HashSet::new();
        let mut seen = HashSet::new();
        self.collect_inputs(task, &Vec::new(), &mut found, &mut names, &mut seen);
        found
    }

    fn collect_inputs<'a>(
        &'a self,
        task: &'a Task,
        hidden: &Vec<&'a str>,
        found: &mut Vec<&'a Input>,
        names: &mut HashSet<&'a str>,
        seen: &mut HashSet<(&'a str, Vec<&'a str>)>,
    ) {
        // A task may be reached by many ways; what is hidden on the way is all that differs.
        if !seen.insert((task.name.as_str(), hidden.clone())) {
            return;
        }
        for input in &task.inputs {
            if !hidden.contains(&input.name.as_str()) && names.insert(&input.name) {
                found.push(input);
            }
        }
        for dependency in &task.depends {
            let Some(next) = self.find(&dependency.task) else {
                continue;
            };
            let mut hidden = hidden.clone();
            hidden.extend(dependency.fixed.keys().map(String::as_str));
            hidden.sort_unstable();
            hidden.dedup();
            self.collect_inputs(next, &hidden, found, names, seen);
        }
    }
}

impl Task {
    /// The end of its results' names, without the dot.
    pub fn extension(&self) -> &str {
        self.extension.as_deref().unwrap_or(self.result.extension())
    }

    /// An own input by name.
    pub fn input(&self, name: &str) -> Option<&Input> {
        self.inputs.iter().find(|i| i.name == name)
    }
}
