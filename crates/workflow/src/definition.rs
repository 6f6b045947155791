//! A workflow as it is in memory: tasks, what they depend on and what they do.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use decanus_base::names::did_you_mean;
use decanus_chat::Example;
use serde_json::{Map, Value};

use crate::digests::Digests;
use crate::error::WorkflowError;
use crate::input::Input;
use crate::native::NativeBody;
use crate::python::PythonBody;
use crate::result::ResultType;
use crate::slots::Resources;
use crate::tasks::Tasks;
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
    pub tasks: Tasks,
    /// The tasks that are offered as tools; all of them when this and `exec` are empty.
    pub exports: Vec<String>,
    /// Those that are offered as tools too, and of whose calls nothing is kept.
    pub exec: Vec<String>,
    /// What runs the jobs of its tasks, where they do not say it: a name of [`executor`](crate::executor).
    pub executor: Option<String>,
    /// What lies outside of its file.
    pub reach: Reach,
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
    /// Further ones, by the values of its inputs.
    pub dynamic: Option<DynamicDepends>,
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
    /// What it needs while it runs.
    pub resources: Resources,
    /// How often it is tried again when it fails.
    pub retries: u32,
    /// What runs its jobs: a name of [`executor`](crate::executor).
    pub executor: Option<String>,
    /// Requests in words and the arguments they should lead to.
    pub examples: Vec<Example>,
}

/// A task that another one depends on.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Dependency {
    /// The task.
    pub task: String,
    /// The workflow it belongs to; the same one when there is none.
    pub workflow: Option<String>,
    /// The name under which the result is known; the task's when there is none.
    pub name: Option<String>,
    /// Inputs that are set here and that no caller can change.
    pub fixed: Vec<(String, Setting)>,
    /// Makes one job for each item of a list.
    pub for_each: Option<Each>,
    /// Whether the task goes on when this dependency failed.
    pub can_fail: bool,
    /// The name of the dependency's job.
    pub jobname: JobName,
    /// Where it is declared: the line of workflow.yaml, 0 when it is from no file.
    pub line: usize,
}

/// What an input of a dependency is set to.
#[derive(Clone, Debug, PartialEq)]
pub enum Setting {
    /// A value; null means that the input has no value, whatever its default.
    Value(Value),
    /// What an own input of the task holds, its default included. Without a value it sets nothing.
    Input(String),
    /// The result of an earlier dependency of the task, by the name it is known under.
    Result(String),
}

/// One job for each item of a list input.
#[derive(Clone, Debug, PartialEq)]
pub struct Each {
    /// The task's own input that holds the list.
    pub list: String,
    /// The dependency's input that gets the item.
    pub input: String,
}

/// The part of a dependency's job name that people choose.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum JobName {
    /// That of the job that depends on it.
    #[default]
    Inherited,
    /// This one.
    Chosen(String),
    /// None: what the job would be called by itself.
    Own,
}

impl Dependency {
    /// Depends on a task of the same workflow.
    pub fn on(task: impl Into<String>) -> Self {
        Self {
            task: task.into(),
            ..Self::default()
        }
    }

    /// The name under which the task knows the result.
    pub fn key(&self) -> &str {
        self.name.as_deref().unwrap_or(&self.task)
    }

    /// `TASK`, or `WORKFLOW/TASK` for one of another workflow.
    pub fn label(&self) -> String {
        match &self.workflow {
            Some(workflow) => format!("{workflow}/{}", self.task),
            None => self.task.clone(),
        }
    }

    /// Whether an input of the dependency is set here, and so hidden from callers.
    pub(crate) fn sets(&self, input: &str) -> bool {
        self.fixed.iter().any(|(name, _)| name == input) || self.for_each.as_ref().is_some_and(|e| e.input == input)
    }
}

/// Dependencies that follow from the values of a task's inputs: a function of the inputs, coerced and with defaults.
#[derive(Clone)]
pub struct DynamicDepends(pub Arc<DependsFn>);

/// What [`DynamicDepends`] calls. A text says why there is no answer.
pub type DependsFn = dyn Fn(&Map<String, Value>) -> Result<Vec<Dependency>, String> + Send + Sync;

impl std::fmt::Debug for DynamicDepends {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("DynamicDepends")
    }
}

impl PartialEq for DynamicDepends {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// What lies outside of a workflow's own file: the workflows that its tasks depend on, and what is known of the content
/// of files. Empty unless [`Workflows`](crate::Workflows) loaded the workflow.
#[derive(Clone, Debug, Default)]
pub struct Reach {
    /// Other workflows, by the name that dependencies use; those that these depend on too.
    pub(crate) others: BTreeMap<String, Arc<Workflow>>,
    pub(crate) digests: Digests,
}

impl PartialEq for Reach {
    fn eq(&self, other: &Self) -> bool {
        self.others == other.others
    }
}

/// What a task does.
#[derive(Clone, Debug, PartialEq)]
pub enum Body {
    /// Runs a program; no shell is involved.
    Run(Vec<Element>),
    /// Runs a shell script; inputs are variables of its environment and never part of its text.
    Sh(String),
    /// Nothing: the result of its one dependency is its result.
    Alias,
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
        self.tasks.get(name)
    }

    /// The tasks that are offered as tools: the exported ones, else all.
    pub fn exported(&self) -> Vec<&Arc<Task>> {
        if self.exports.is_empty() && self.exec.is_empty() {
            return self.tasks.iter().collect();
        }
        self.exports
            .iter()
            .chain(&self.exec)
            .filter_map(|name| self.find(name))
            .collect()
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
