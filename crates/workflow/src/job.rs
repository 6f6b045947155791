//! Jobs: a task with its inputs, the jobs it depends on, and the identity that follows from these.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use decanus_base::digest::{ValueHasher, sha256_file};
use decanus_base::names;
use serde_json::{Map, Value};

use crate::content;
use crate::definition::{Body, Task, Workflow};
use crate::error::{InputError, WorkflowError};
use crate::input::{MASK, PathRules, show};
use crate::template::{Element, Piece};

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
    /// The task's own inputs, coerced, with defaults; null where there is no value.
    pub inputs: Map<String, Value>,
    /// The jobs whose results it uses, in the order of the declaration.
    pub dependencies: Vec<Arc<Job>>,
}

impl Job {
    /// The result's path within the jobs folder: `WORKFLOW/TASK/NAME_DIGEST.EXT`.
    pub fn relative_path(&self) -> PathBuf {
        let file = format!("{}_{}.{}", self.name, self.digest, self.task.extension());
        Path::new(&self.workflow.name).join(&self.task.name).join(file)
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
}

/// A value given to a task or to a dependency of it.
#[derive(Clone)]
struct Given {
    value: Value,
    /// Whether the workflow's author set it: a file may then be anywhere.
    fixed: bool,
}

impl Workflow {
    /// The job of a task for these inputs, which go to the task and to its dependencies by name. `name` is the part of
    /// the job's name that people choose.
    ///
    /// # Errors
    /// An unknown task or input, a value that does not fit, a required input without a value, a file that is not there.
    pub fn job(
        self: &Arc<Self>,
        task: &str,
        inputs: &Map<String, Value>,
        paths: &PathRules,
        name: Option<&str>,
    ) -> Result<Arc<Job>, WorkflowError> {
        let task = self.task(task)?;
        if let Some(name) = name.filter(|name| !names::is_valid(name)) {
            return Err(InputError::JobName(name.to_owned()).into());
        }
        let known = self.recursive_inputs(task);
        let known: Vec<&str> = known.iter().map(|i| i.name.as_str()).collect();
        if let Some(unknown) = inputs.keys().find(|name| !known.contains(&name.as_str())) {
            return Err(WorkflowError::Input(InputError::Unknown {
                task: format!("{}/{}", self.name, task.name),
                name: unknown.clone(),
                guess: names::did_you_mean(unknown, known.iter().copied()),
                known: known.join(", "),
            }));
        }
        let given = inputs
            .iter()
            .map(|(n, v)| {
                (
                    n.clone(),
                    Given {
                        value: v.clone(),
                        fixed: false,
                    },
                )
            })
            .collect();
        let mut builder = Builder {
            workflow: self,
            paths,
            name: name.map(str::to_owned),
            made: HashMap::new(),
            digests: HashMap::new(),
        };
        Ok(builder.job(task, &given)?)
    }
}

struct Builder<'a> {
    workflow: &'a Arc<Workflow>,
    paths: &'a PathRules,
    /// The name that was given, if one was.
    name: Option<String>,
    /// Jobs made already, by task and what was given: two ways to one job lead to the same one.
    made: HashMap<String, Arc<Job>>,
    /// Digests of files read already.
    digests: HashMap<PathBuf, String>,
}

impl Builder<'_> {
    fn job(&mut self, task: &Arc<Task>, given: &HashMap<String, Given>) -> Result<Arc<Job>, InputError> {
        let key = format!("{}\n{}", self.name.as_deref().unwrap_or_default(), key(task, given));
        if let Some(job) = self.made.get(&key) {
            return Ok(job.clone());
        }
        let inputs = self.inputs(task, given)?;
        // Dependencies inherit the name.
        let name = self.job_name(task, &inputs);
        let before = std::mem::replace(&mut self.name, name.clone());
        let mut dependencies = Vec::new();
        for dependency in &task.depends {
            let Some(next) = self.workflow.find(&dependency.task).cloned() else {
                continue;
            };
            let mut given = given.clone();
            for (name, value) in &dependency.fixed {
                given.insert(
                    name.clone(),
                    Given {
                        value: value.clone(),
                        fixed: true,
                    },
                );
            }
            dependencies.push(self.job(&next, &given)?);
        }
        self.name = before;
        let digest = self.identity(task, &inputs, &dependencies)?;
        let job = Job {
            workflow: self.workflow.clone(),
            task: task.clone(),
            name: name.unwrap_or_else(|| "Default".into()),
            digest,
            inputs,
            dependencies,
        };
        check_arguments(&job)?;
        let job = Arc::new(job);
        self.made.insert(key, job.clone());
        Ok(job)
    }

    fn label(&self, task: &Task) -> String {
        format!("{}/{}", self.workflow.name, task.name)
    }

    /// The name that was given, else what the input that names the job says.
    fn job_name(&self, task: &Task, inputs: &Map<String, Value>) -> Option<String> {
        let of_input = || {
            let input = task.inputs.iter().find(|i| i.is_jobname)?;
            let value = inputs.get(&input.name).filter(|v| **v != input.default)?;
            Some(as_name(&show(value))).filter(|name| names::is_valid(name))
        };
        self.name.clone().or_else(of_input)
    }

    fn inputs(&self, task: &Task, given: &HashMap<String, Given>) -> Result<Map<String, Value>, InputError> {
        let author = PathRules::trusted(&self.workflow.dir);
        let mut inputs = Map::new();
        let mut missing = Vec::new();
        for input in &task.inputs {
            let given = given.get(&input.name);
            let bad = |reason: String| match given.is_some_and(|g| !g.fixed) {
                true => InputError::Value {
                    task: self.label(task),
                    name: input.name.clone(),
                    reason,
                },
                false => InputError::File {
                    task: self.label(task),
                    reason: format!("input `{}`: {reason}", input.name),
                },
            };
            // The name of a job and the input that names it feed each other.
            let names_it = given.is_none_or(|g| !g.fixed && g.value.is_null()) && input.is_jobname;
            let value = match given {
                _ if names_it && self.name.is_some() => {
                    let name = self.name.clone().into();
                    input.coerce(&name, &author).map_err(bad)?
                }
                Some(g) => input
                    .coerce(&g.value, if g.fixed { &author } else { self.paths })
                    .map_err(bad)?,
                None => Value::Null,
            };
            let set_to_nothing = given.is_some_and(|g| g.fixed && g.value.is_null());
            let value = if value.is_null() && !input.required && !set_to_nothing {
                match &input.default {
                    default if input.kind.reads_content() => {
                        input.coerce(default, &author).map_err(|reason| InputError::File {
                            task: self.label(task),
                            reason: format!("input `{}`: {reason}", input.name),
                        })?
                    }
                    default => default.clone(),
                }
            } else {
                value
            };
            if value.is_null() && input.required {
                missing.push(input.name.clone());
            }
            inputs.insert(input.name.clone(), value);
        }
        if missing.is_empty() {
            Ok(inputs)
        } else {
            Err(InputError::Missing {
                task: self.label(task),
                inputs: missing,
            })
        }
    }

    /// What the result depends on: what the task does, with the content of the scripts it names; its inputs, files by
    /// content; and the identities of its dependencies. Descriptions, limits and names change nothing.
    fn identity(
        &mut self,
        task: &Task,
        inputs: &Map<String, Value>,
        dependencies: &[Arc<Job>],
    ) -> Result<String, InputError> {
        let mut hasher = ValueHasher::new();
        hasher
            .text("decanus job 1")
            .text(&self.workflow.name)
            .text(&task.name)
            .text(task.result.as_str());
        match &task.body {
            Body::Run(elements) => {
                hasher.text("run");
                for element in elements {
                    hash_element(&mut hasher, element);
                }
            }
            Body::Sh(script) => {
                hasher.text("sh").text(script);
            }
            Body::Python(python) => python.hash(&mut hasher),
            Body::Native(native) => native.hash(&mut hasher),
        }
        for script in scripts(task, &self.workflow.dir) {
            let digest = self.file(task, &script)?;
            let name = script
                .strip_prefix(&self.workflow.dir)
                .unwrap_or(&script)
                .to_string_lossy()
                .into_owned();
            hasher.text("script").text(&name).text(&digest);
        }
        for input in &task.inputs {
            let value = &inputs[&input.name];
            hasher.text("input").text(&input.name).text(input.kind.as_str());
            if input.kind.reads_content() {
                let label = self.label(task);
                let fail = |reason| InputError::File { task: label, reason };
                content::hash(&mut hasher, input.kind, value, &mut |path| self.file(task, path), fail)?;
            } else {
                hasher.value(value);
            }
        }
        for job in dependencies {
            hasher.text("dependency").text(&job.task.name).text(&job.digest);
        }
        let mut digest = hasher.hex();
        digest.truncate(32);
        Ok(digest)
    }

    fn file(&mut self, task: &Task, path: &Path) -> Result<String, InputError> {
        if let Some(digest) = self.digests.get(path) {
            return Ok(digest.clone());
        }
        let digest = sha256_file(path).map_err(|e| InputError::File {
            task: self.label(task),
            reason: format!("{}: {e}", path.display()),
        })?;
        self.digests.insert(path.to_owned(), digest.clone());
        Ok(digest)
    }
}

/// A text as the name of a job. What it stands for is in the digest, so that two texts may become one name.
fn as_name(text: &str) -> String {
    let safe = |c: char| match c {
        '/' | '\\' => '_',
        c if c.is_control() => '_',
        c => c,
    };
    let mut name = text.trim().chars().map(safe).collect::<String>().replace("..", "__");
    if name.starts_with('.') {
        name.replace_range(..1, "_");
    }
    while name.len() > names::MAX_LENGTH {
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

fn key(task: &Task, given: &HashMap<String, Given>) -> String {
    let mut parts: Vec<String> = given
        .iter()
        .map(|(n, g)| format!("{n}={}{}", g.value, g.fixed))
        .collect();
    parts.sort_unstable();
    // Value's text form has no raw newline, so the parts can't run together.
    format!("{}\n{}", task.name, parts.join("\n"))
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
fn scripts(task: &Task, dir: &Path) -> Vec<PathBuf> {
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
        Body::Sh(script) => files.extend(named_in_script(script, dir)),
    }
    files.retain(|f| f.is_file());
    files.sort_unstable();
    files.dedup();
    files
}

/// Refuses, before anything runs, values that can't reach the process as they must.
fn check_arguments(job: &Job) -> Result<(), InputError> {
    let bad = |name: &str, reason: String| InputError::Value {
        task: job.label(),
        name: name.to_owned(),
        reason,
    };
    let is_sh = matches!(job.task.body, Body::Sh(_));
    for input in job.task.inputs.iter().filter(|i| i.kind.is_scalar()) {
        let text = show(&job.inputs[&input.name]);
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
        for argument in arguments(element, &job.inputs, &|_| None, Path::new("")) {
            if element.begins_with_input() && argument.starts_with('-') {
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
    dependency: &dyn Fn(&str) -> Option<PathBuf>,
    dir: &Path,
) -> Vec<String> {
    let value = |name: &String| inputs.get(name).unwrap_or(&Value::Null);
    match element {
        Element::Spread(name) => match value(name) {
            Value::Array(items) => items.iter().map(show).collect(),
            Value::Null => Vec::new(),
            single => vec![show(single)],
        },
        Element::One(pieces) => {
            let piece = |p: &Piece| match p {
                Piece::Literal(text) => text.clone(),
                Piece::Input(name) => show(value(name)),
                Piece::Dependency(name) => dependency(name).map(|p| p.display().to_string()).unwrap_or_default(),
                Piece::WorkflowDir => dir.display().to_string(),
            };
            vec![pieces.iter().map(piece).collect()]
        }
    }
}
