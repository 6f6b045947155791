//! Jobs: a task with its inputs, the jobs it depends on, and the identity that follows from these. How they are made is in
//! [`build`](crate::build).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use decanus_base::digest::ValueHasher;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::definition::{Body, Task, Workflow};
use crate::error::InputError;
use crate::identity::Parts;
use crate::input::{MASK, show};
use crate::path_rules::PathRules;
use crate::result::ResultType;
use crate::store::JobStore;
use crate::template::{Element, Piece};

/// The name of a job when nobody chose one.
pub(crate) const DEFAULT_NAME: &str = "Default";
/// The largest value that can be one argument or one variable of a process (Linux: 32 pages, with its name).
pub(crate) const MAX_ARGUMENT: usize = 120_000;

/// A task with inputs: what can be run, and is stored under its identity.
#[derive(Debug)]
pub struct Job {
    /// The workflow.
    pub workflow: Arc<Workflow>,
    /// The task.
    pub task: Arc<Task>,
    /// The part of its name that people choose.
    pub name: String,
    /// Its identity: 32 hexadecimal digits.
    pub digest: String,
    /// What its identity is made of: name and digest of each part.
    pub identity: Parts,
    /// The task's own inputs, coerced, with defaults; null where there is no value. One that is the result of a job is
    /// `{"job": PATH}`, or `{"jobs": [PATH, …]}`, with paths relative to the jobs folder.
    pub inputs: Map<String, Value>,
    /// The jobs whose results it uses, each once: first those that are values of inputs, then those of the declaration.
    pub dependencies: Vec<Arc<Job>>,
    /// By which names the task knows the results of `dependencies`.
    pub links: Vec<Link>,
    /// The inputs whose values are results of `dependencies`; the names are those of the inputs.
    pub input_jobs: Vec<Link>,
    /// The result that stands in for the task's; nothing is then run.
    pub given: Option<GivenResult>,
}

/// A name for results among the dependencies of a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Link {
    /// The name.
    pub name: String,
    /// Whether there is one result for each item of a list, rather than just one.
    pub each: bool,
    /// Whether the job goes on when one of them failed.
    pub can_fail: bool,
    /// Whether a caller put them in the place of those that were declared.
    pub replaced: bool,
    /// Which of the job's `dependencies` they are.
    pub jobs: Vec<usize>,
}

/// A file that stands in for a task's result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GivenResult {
    /// The file, absolute.
    pub path: PathBuf,
    /// What it holds.
    pub kind: ResultType,
    /// Whether it is the result of a stored job.
    pub is_job: bool,
}

/// What is chosen for a job besides its inputs.
#[derive(Clone, Debug, Default)]
pub struct JobOptions {
    /// The part of the job's name that people choose.
    pub name: Option<String>,
    /// What stands in for tasks that it depends on.
    pub overrides: Overrides,
}

/// Results that stand in for tasks, wherever a job depends on them.
#[derive(Clone, Debug, Default)]
pub struct Overrides(BTreeMap<String, Override>);

/// What stands in for a task.
#[derive(Clone, Debug)]
pub enum Override {
    /// A job; it is run when its result is not there.
    Job(Arc<Job>),
    /// The result of a stored job, or any file, which is read as the task's type.
    Path(PathBuf),
}

impl Overrides {
    /// Puts something in the place of a task.
    pub fn set(&mut self, workflow: &str, task: &str, by: Override) {
        self.0.insert(format!("{workflow}#{task}"), by);
    }

    /// What stands in for a task.
    pub fn get(&self, workflow: &str, task: &str) -> Option<&Override> {
        if self.0.is_empty() {
            return None;
        }
        self.0.get(&format!("{workflow}#{task}"))
    }

    /// The tasks, as `WORKFLOW#TASK`.
    pub fn tasks(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }
}

impl Job {
    /// The result's path within the jobs folder: `WORKFLOW/TASK/NAME_DIGEST.EXT`. That of a given result is absolute.
    pub fn relative_path(&self) -> PathBuf {
        if let Some(given) = &self.given {
            return given.path.clone();
        }
        let file = format!("{}_{}.{}", self.name, self.digest, self.task.extension());
        Path::new(&self.workflow.name).join(&self.task.name).join(file)
    }

    /// What stands for a task whose result is given; it has no identity but the result's.
    pub(crate) fn stand_in(workflow: &Arc<Workflow>, task: &Arc<Task>, given: GivenResult) -> Self {
        Self {
            workflow: workflow.clone(),
            task: task.clone(),
            name: DEFAULT_NAME.to_owned(),
            digest: String::new(),
            identity: Parts::new(),
            inputs: Map::new(),
            dependencies: Vec::new(),
            links: Vec::new(),
            input_jobs: Vec::new(),
            given: Some(given),
        }
    }

    /// `WORKFLOW/TASK`.
    pub fn label(&self) -> String {
        format!("{}/{}", self.workflow.name, self.task.name)
    }

    /// The inputs as they may be recorded and shown: the values of secret ones are masked.
    pub fn shown_inputs(&self) -> Map<String, Value> {
        let mut shown = self.inputs.clone();
        for input in self.task.inputs.iter().filter(|i| i.is_secret) {
            if let Some(value) = shown.get_mut(&input.name).filter(|v| !v.is_null()) {
                *value = MASK.into();
            }
        }
        shown
    }

    /// What its result is.
    pub fn kind(&self) -> ResultType {
        self.given.as_ref().map_or(self.task.result, |given| given.kind)
    }

    /// Which of its dependencies may fail without failing it: those that are used only where that was declared.
    pub fn may_fail(&self) -> Vec<bool> {
        let mut used = vec![None; self.dependencies.len()];
        for link in self.links.iter().chain(&self.input_jobs) {
            for &at in &link.jobs {
                if let Some(so_far) = used.get_mut(at) {
                    *so_far = Some(so_far.unwrap_or(true) && link.can_fail);
                }
            }
        }
        used.into_iter().map(|may| may.unwrap_or(false)).collect()
    }

    /// The inputs with results in the places of the jobs that give them, coerced to the input's type.
    ///
    /// # Errors
    /// The input whose result can't be had, and why.
    pub(crate) fn resolved_inputs(&self, store: &JobStore) -> Result<Map<String, Value>, String> {
        let mut inputs = self.inputs.clone();
        for link in &self.input_jobs {
            let Some(input) = self.task.input(&link.name) else {
                continue;
            };
            let bad = |reason: String| format!("input `{}`: {reason}", link.name);
            let mut values = Vec::new();
            for dependency in link.jobs.iter().filter_map(|at| self.dependencies.get(*at)) {
                let paths = store.paths(dependency);
                values.push(match (input.kind, dependency.kind()) {
                    _ if link.can_fail && !paths.result.is_file() => Value::Null,
                    (wanted, kind) if wanted.reads_content() && kind != ResultType::File => {
                        paths.result.display().to_string().into()
                    }
                    (_, kind) => kind.load(&paths.result, &paths.files).map_err(bad)?,
                });
            }
            let value = match link.each {
                true => Value::Array(values),
                false => values.into_iter().next().unwrap_or_default(),
            };
            let value = input.coerce(&value, &PathRules::trusted("/")).map_err(bad)?;
            if value.is_null() && input.required {
                return Err(bad("it is required, but the job that gives it failed".into()));
            }
            inputs.insert(link.name.clone(), value);
        }
        check_arguments(self, &inputs).map_err(|e| e.to_string())?;
        Ok(inputs)
    }
}

/// Adds what a task does to a digest.
pub(crate) fn hash_body(hasher: &mut ValueHasher, body: &Body) {
    match body {
        Body::Run(elements) => {
            hasher.text("run");
            for element in elements {
                hash_element(hasher, element);
            }
        }
        Body::Python(python) => python.hash(hasher),
        Body::Native(native) => native.hash(hasher),
        Body::Sh(script) => {
            hasher.text("sh").text(script);
        }
        Body::Alias => {
            hasher.text("alias");
        }
    }
}

/// A text as the name of a job. What it stands for is in the digest, so that two texts may become one name.
pub(crate) fn as_name(text: &str) -> String {
    let safe = |c: char| match c {
        '/' | '\\' => '_',
        c if c.is_control() => '_',
        c => c,
    };
    let mut name = text.trim().chars().map(safe).collect::<String>().replace("..", "__");
    if name.starts_with('.') {
        name.replace_range(..1, "_");
    }
    while name.len() > decanus_base::names::MAX_LENGTH {
        name.pop();
    }
    name
}

fn hash_element(hasher: &mut ValueHasher, element: &Element) {
    match element {
        Element::Spread(name) => {
            hasher.text("list").text(name);
        }
        Element::One(pieces) => {
            hasher.text("argument");
            for piece in pieces {
                match piece {
                    Piece::Literal(text) => hasher.text("text").text(text),
                    Piece::Input(name) => hasher.text("input").text(name),
                    Piece::Dependency(name) => hasher.text("dependency").text(name),
                    Piece::WorkflowDir => hasher.text("workflow_dir"),
                };
            }
        }
    }
}

/// Where the program and the script of `run:` are, when they are files of the workflow's folder: the index of the
/// element and the file. The script is the first argument that names such a file.
pub(crate) fn own_files(elements: &[Element], dir: &Path) -> Vec<(usize, PathBuf)> {
    let own = |element: &Element| {
        let text = element
            .literal()
            .filter(|t| !t.is_empty() && !t.starts_with('-') && Path::new(t).is_relative())?;
        Some(dir.join(text)).filter(|p| p.is_file())
    };
    let program = elements.first().and_then(own).map(|p| (0, p));
    let script = elements
        .iter()
        .enumerate()
        .skip(1)
        .find_map(|(i, e)| own(e).map(|p| (i, p)));
    program.into_iter().chain(script).collect()
}

/// The files of the workflow's folder that a shell script names.
pub(crate) fn named_in_script(script: &str, dir: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for place in ["$DECANUS_WORKFLOW_DIR/", "${DECANUS_WORKFLOW_DIR}/"] {
        for (at, _) in script.match_indices(place) {
            let rest = &script[at + place.len()..];
            let end = rest
                .find(|c: char| !(c.is_alphanumeric() || "._-/".contains(c)))
                .unwrap_or(rest.len());
            files.push(dir.join(&rest[..end]));
        }
    }
    files
}

/// The files of the workflow's folder whose content is part of what the task does.
pub(crate) fn scripts(task: &Task, dir: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    match &task.body {
        Body::Python(python) => files.extend(python.sources.iter().cloned()),
        Body::Native(_) => {}
        Body::Run(elements) => {
            files.extend(own_files(elements, dir).into_iter().map(|(_, path)| path));
            for element in elements {
                if let Element::One(pieces) = element
                    && let [Piece::WorkflowDir, Piece::Literal(rest)] = pieces.as_slice()
                {
                    files.push(dir.join(rest.trim_start_matches('/')));
                }
            }
        }
        Body::Alias => {}
        Body::Sh(script) => files.extend(named_in_script(script, dir)),
    }
    files.retain(|f| f.is_file());
    files.sort_unstable();
    files.dedup();
    files
}

/// Refuses, before anything runs, values that can't reach the process as they must.
pub(crate) fn check_arguments(job: &Job, inputs: &Map<String, Value>) -> Result<(), InputError> {
    let bad = |name: &str, reason: String| InputError::Value {
        task: job.label(),
        name: name.to_owned(),
        reason,
    };
    let is_sh = matches!(job.task.body, Body::Sh(_));
    for input in job.task.inputs.iter().filter(|i| i.kind.is_scalar()) {
        let text = inputs.get(&input.name).map(show).unwrap_or_default();
        if text.contains('\0') {
            return Err(bad(&input.name, "a NUL character can't be passed to a process".into()));
        }
        if is_sh && text.len() > MAX_ARGUMENT {
            let reason = format!(
                "{} bytes are too many for a variable; a `run:` task can read them as JSON",
                text.len()
            );
            return Err(bad(&input.name, reason));
        }
    }
    let Body::Run(elements) = &job.task.body else {
        return Ok(());
    };
    for element in elements {
        let first = match element {
            Element::Spread(name) => name,
            Element::One(pieces) => match pieces
                .iter()
                .find_map(|p| if let Piece::Input(n) = p { Some(n) } else { None })
            {
                Some(name) => name,
                None => continue,
            },
        };
        for argument in arguments(element, inputs, &|_| Vec::new(), Path::new("")) {
            if element.begins_with_input() && inputs.contains_key(first) && argument.starts_with('-') {
                let reason = format!("`{argument}` would be taken for an option: it may not begin with `-` here");
                return Err(bad(first, reason));
            }
            if argument.contains('\0') {
                return Err(bad(first, "a NUL character can't be passed to a process".into()));
            }
            if argument.len() > MAX_ARGUMENT {
                return Err(bad(
                    first,
                    format!("{} bytes are too many for an argument of a process", argument.len()),
                ));
            }
        }
    }
    Ok(())
}

/// The arguments that an element becomes.
pub(crate) fn arguments(
    element: &Element,
    inputs: &Map<String, Value>,
    dependency: &dyn Fn(&str) -> Vec<PathBuf>,
    dir: &Path,
) -> Vec<String> {
    let value = |name: &String| inputs.get(name).unwrap_or(&Value::Null);
    match element {
        Element::Spread(name) if !inputs.contains_key(name) => {
            dependency(name).iter().map(|p| p.display().to_string()).collect()
        }
        Element::Spread(name) => match value(name) {
            Value::Array(items) => items.iter().map(show).collect(),
            Value::Null => Vec::new(),
            single => vec![show(single)],
        },
        Element::One(pieces) => {
            let piece = |p: &Piece| match p {
                Piece::Literal(text) => text.clone(),
                Piece::Input(name) => show(value(name)),
                Piece::Dependency(name) => dependency(name)
                    .first()
                    .map(|p| p.display().to_string())
                    .unwrap_or_default(),
                Piece::WorkflowDir => dir.display().to_string(),
            };
            vec![pieces.iter().map(piece).collect()]
        }
    }
}
