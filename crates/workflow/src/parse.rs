//! workflow.yaml: from text to a [`Workflow`] in which everything that can be known to be wrong is known to be right.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use decanus_base::files::read_text;
use decanus_base::names::did_you_mean;
use decanus_base::units::{parse_duration, parse_size};
use decanus_base::yaml::{self, Data, Node, YamlError};
use decanus_chat::Example;
use serde_json::{Map, Value};

use crate::check;
use crate::definition::{Body, Reach, Task, Workflow};
use crate::depends;
use crate::docs::{self, Docs};
use crate::error::WorkflowError;
use crate::executor;
use crate::parse_input::inputs;
use crate::python::{Modules, PythonReader, Signature};
use crate::result::{RESULT_TYPES, ResultType};
use crate::slots::Resources;
use crate::tasks::Tasks;
use crate::template::Element;
use crate::warnings;

/// Keys of the format that this build does not know; they are refused by name rather than called unknown.
const LATER_TASK_KEYS: [&str; 5] = ["rust", "agent", "tool", "overrides", "batch"];
/// Of workflows with more tasks only the first fault of this kind is told.
const MOST_ALONE: usize = 500;
/// Where the documentation of a workflow is looked up, in its folder.
pub(crate) const PAGES: [&str; 2] = ["workflow.md", "README.md"];

/// Everything that can be said of a workflow's files.
#[derive(Debug, Default)]
pub struct Checked {
    /// The workflow, when nothing is wrong with it.
    pub workflow: Option<Workflow>,
    /// What is wrong, each with file, line and key, in the order in which it was found.
    pub faults: Vec<YamlError>,
    /// What is probably not as it was meant.
    pub warnings: Vec<YamlError>,
}

/// Faults as they are found. Reading goes on after one, so that all of them can be told.
#[derive(Default)]
pub(crate) struct Faults(pub(crate) Vec<YamlError>);

impl Faults {
    pub(crate) fn push(&mut self, fault: YamlError) {
        if !self.0.contains(&fault) {
            self.0.push(fault);
        }
    }

    /// The value, or nothing and one more fault.
    pub(crate) fn keep<T>(&mut self, result: Result<T, YamlError>) -> Option<T> {
        result.map_err(|fault| self.push(fault)).ok()
    }
}

/// Reads the workflow of a folder: its workflow.yaml, the Python files that it names, and workflow.md (else README.md)
/// where there is one. Tasks of other workflows that its tasks depend on are not looked up;
/// [`Workflows::load`](crate::Workflows::load) does that.
///
/// # Errors
/// Every fault in workflow.yaml names file, line and key.
pub fn load(dir: &Path) -> Result<Workflow, WorkflowError> {
    load_with(dir, &PythonReader::default())
}

/// [`load`] with a reader of Python files that remembers what it has read.
///
/// # Errors
/// Those of [`load`].
pub fn load_with(dir: &Path, python: &PythonReader) -> Result<Workflow, WorkflowError> {
    let folder = Folder::find(dir)?;
    let mut workflow = folder.read(python)?.0.finish().map_err(WorkflowError::Yaml)?;
    if let Some((_, docs)) = folder.docs()? {
        docs.apply(&mut workflow);
    }
    Ok(workflow)
}

/// All that is wrong with the workflow of a folder, and what is suspicious.
///
/// # Errors
/// A folder that can't be a workflow's, or files that can't be read.
pub fn check(dir: &Path, python: &PythonReader) -> Result<Checked, WorkflowError> {
    let folder = Folder::find(dir)?;
    let (read, top) = folder.read(python)?;
    let mut checked = Checked {
        faults: read.faults.0,
        ..Checked::default()
    };
    if let (Some(workflow), Some(top)) = (&read.workflow, &top) {
        checked.warnings = warnings::of_workflow(workflow, top);
    }
    if let Some((page, docs)) = folder.docs()? {
        if let Some(workflow) = &read.workflow {
            checked.warnings.extend(warnings::of_docs(workflow, &page, &docs));
        }
        checked.workflow = read.workflow.map(|mut workflow| {
            docs.apply(&mut workflow);
            workflow
        });
    } else {
        checked.workflow = read.workflow;
    }
    checked.workflow = checked.workflow.filter(|_| checked.faults.is_empty());
    Ok(checked)
}

/// A workflow's folder and its name.
struct Folder {
    dir: PathBuf,
    name: String,
}

impl Folder {
    fn find(dir: &Path) -> Result<Self, WorkflowError> {
        let dir = dir
            .canonicalize()
            .map_err(|e| unreadable(decanus_base::files::named(e, dir)))?;
        let name = dir
            .file_name()
            .map(|n| n.to_string_lossy().into_owned())
            .unwrap_or_default();
        if is_task_name(&name) {
            Ok(Self { dir, name })
        } else {
            Err(WorkflowError::BadName { dir, name })
        }
    }

    fn read(&self, python: &PythonReader) -> Result<(Reading, Option<Node>), WorkflowError> {
        let file = self.dir.join("workflow.yaml");
        let text = read_text(&file).map_err(unreadable)?;
        Ok(read(&text, &file, &self.name, python))
    }

    fn docs(&self) -> Result<Option<(PathBuf, Docs)>, WorkflowError> {
        let page = PAGES.iter().map(|name| self.dir.join(name)).find(|page| page.is_file());
        let Some(page) = page else { return Ok(None) };
        let docs = docs::read(&read_text(&page).map_err(unreadable)?);
        Ok(Some((page, docs)))
    }
}

fn unreadable(e: std::io::Error) -> WorkflowError {
    WorkflowError::Unreadable(e.to_string())
}

/// Reads the text of a workflow.yaml. Scripts, Python files and default files are looked up beside `file`.
///
/// # Errors
/// The first fault, with file, line and key.
pub fn parse(text: &str, file: &Path, name: &str) -> Result<Workflow, YamlError> {
    read(text, file, name, &PythonReader::default()).0.finish()
}

/// A workflow as far as it could be read. It holds only when there are no faults.
#[derive(Default)]
struct Reading {
    workflow: Option<Workflow>,
    faults: Faults,
}

impl Reading {
    fn finish(self) -> Result<Workflow, YamlError> {
        match (self.faults.0.into_iter().next(), self.workflow) {
            (Some(fault), _) => Err(fault),
            (None, Some(workflow)) => Ok(workflow),
            // A reading without a workflow has a fault.
            (None, None) => Err(YamlError {
                file: PathBuf::new(),
                line: 1,
                key: String::new(),
                message: "nothing was read".into(),
            }),
        }
    }
}

fn read(text: &str, file: &Path, name: &str, python: &PythonReader) -> (Reading, Option<Node>) {
    let mut reading = Reading::default();
    let faults = &mut reading.faults;
    let Some(top) = faults.keep(yaml::parse(text, file)) else {
        return (reading, None);
    };
    known_keys(
        &top,
        &["title", "description", "executor", "tasks", "exports", "exec"],
        &[],
        faults,
    );
    let dir = file.parent().unwrap_or(Path::new("")).to_owned();
    let mut workflow = Workflow {
        name: name.to_owned(),
        dir,
        title: optional_text(&top, "title", faults),
        description: optional_text(&top, "description", faults),
        introduction: String::new(),
        tasks: Tasks::default(),
        exports: Vec::new(),
        exec: Vec::new(),
        executor: faults.keep(executor(&top)).flatten(),
        reach: Reach::default(),
    };
    let Some(tasks_node) = top.get("tasks") else {
        faults.push(top.error("a workflow needs `tasks:`"));
        return (reading, Some(top));
    };
    let entries = faults.keep(tasks_node.mapping()).unwrap_or_default();
    let modules = python_modules(entries, &workflow.dir, python);
    let mut nodes = HashMap::new();
    for (task_name, line, node) in entries {
        if !is_task_name(task_name) {
            let mut error = node.error(format!(
                "`{task_name}` can't be the name of a task: letters, digits, `_` and `-`, a letter first, at most 64"
            ));
            error.line = *line;
            faults.push(error);
            continue;
        }
        let task = task(task_name, node, &workflow, &modules, faults);
        workflow.tasks.push(Arc::new(task));
        nodes.insert(task_name.as_str(), node);
    }
    if entries.is_empty() {
        faults.push(tasks_node.error("a workflow needs at least one task"));
    }
    together(&mut workflow, &nodes, faults);
    exports(&mut workflow, &top, faults);
    reading.workflow = Some(workflow);
    (reading, Some(top))
}

/// The tasks that are offered as tools.
fn exports(workflow: &mut Workflow, top: &Node, faults: &mut Faults) {
    for key in ["exports", "exec"] {
        let Some(node) = top.get(key) else { continue };
        for item in faults.keep(node.sequence()).unwrap_or_default() {
            let Some(export) = faults.keep(item.text()) else {
                continue;
            };
            if faults.keep(check::known_task(workflow, &export, item)).is_none() {
                continue;
            }
            if key == "exec" && workflow.exports.contains(&export) {
                faults.push(item.error(format!("`{export}` is in `exports` too; a task is in one of them")));
                continue;
            }
            let list = match key {
                "exec" => &mut workflow.exec,
                _ => &mut workflow.exports,
            };
            if !list.contains(&export) {
                list.push(export);
            }
        }
    }
}

/// What holds only for all tasks together.
fn together(workflow: &mut Workflow, nodes: &HashMap<&str, &Node>, faults: &mut Faults) {
    for task in &workflow.tasks {
        let items = nodes
            .get(task.name.as_str())
            .and_then(|node| node.get("depends")?.sequence().ok());
        let named = |item| Some((depends::name(item)?, item));
        let items: HashMap<String, &Node> = items.into_iter().flatten().filter_map(named).collect();
        // Those of other workflows are not known here.
        for dependency in task.depends.iter().filter(|d| d.workflow.is_none()) {
            if let Some(item) = items.get(dependency.key()) {
                faults.keep(check::known_task(workflow, &dependency.task, item));
            }
        }
    }
    faults.keep(check::dependencies(workflow, nodes));
    // Without the nodes unknown tasks are passed over: what is left are circles and chains that are too long, beyond
    // which nothing can be told.
    if check::dependencies(workflow, &HashMap::new()).is_err() {
        return;
    }
    for task in &workflow.tasks {
        let node = nodes.get(task.name.as_str());
        for fault in node.map(|node| check::places(task, node)).unwrap_or_default() {
            faults.push(fault);
        }
    }
    let before = workflow.clone();
    if let Err(first) = check::settle(workflow, nodes) {
        faults.push(first);
        // It ends with the first fault; those of the other tasks are found by looking at each alone.
        for (name, node) in nodes.iter().filter(|_| nodes.len() <= MOST_ALONE) {
            faults.keep(check::settle(&mut before.clone(), &HashMap::from([(*name, *node)])));
        }
    }
    let own = |fault: &YamlError| fault.file == workflow.dir.join("workflow.yaml");
    // Those of a pass in an order of its own.
    faults.0.sort_by_key(|fault| if own(fault) { fault.line } else { 0 });
}

/// Reads all Python files that tasks name, with one start of Python if any are new.
fn python_modules(entries: &[(String, usize, Node)], dir: &Path, python: &PythonReader) -> Modules {
    let named = entries
        .iter()
        .filter_map(|(_, _, node)| node.get("python")?.text().ok());
    let files: Vec<PathBuf> = named.filter_map(|text| python_file(dir, split(&text).0)).collect();
    if files.is_empty() {
        return Modules::default();
    }
    python.read(dir, &files)
}

/// `FILE.py:function`; without a function the task's name is meant.
fn split(text: &str) -> (&str, Option<&str>) {
    match text.rsplit_once(':') {
        Some((file, function)) => (file, Some(function)),
        None => (text, None),
    }
}

/// A Python file of the workflow's folder, or of the folder `python` in it.
fn python_file(dir: &Path, name: &str) -> Option<PathBuf> {
    [dir.join(name), dir.join("python").join(name)]
        .into_iter()
        .find(|file| file.is_file())
}

/// Whether a name can be a task's, and so a tool's with every provider.
pub(crate) fn is_task_name(name: &str) -> bool {
    name.len() <= 64
        && name.starts_with(|c: char| c.is_ascii_alphabetic())
        && name
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-')
}

pub(crate) fn optional_text(node: &Node, key: &str, faults: &mut Faults) -> String {
    match node.get(key) {
        Some(n) if matches!(n.data, Data::Scalar(Value::Null)) => String::new(),
        Some(n) => faults.keep(n.text()).unwrap_or_default().trim().to_owned(),
        None => String::new(),
    }
}

pub(crate) fn known_keys(node: &Node, known: &[&str], later: &[&str], faults: &mut Faults) {
    for (name, line, value) in faults.keep(node.mapping()).unwrap_or_default() {
        if known.contains(&name.as_str()) {
            continue;
        }
        let message = if later.contains(&name.as_str()) {
            format!("`{name}:` is not available in this build")
        } else {
            format!("unknown key `{name}`{}", did_you_mean(name, known.iter().copied()))
        };
        faults.push(YamlError {
            line: *line,
            ..value.error(message)
        });
    }
}

fn task(name: &str, node: &Node, workflow: &Workflow, modules: &Modules, faults: &mut Faults) -> Task {
    let dir = &workflow.dir;
    known_keys(
        node,
        &[
            "description",
            "inputs",
            "depends",
            "alias",
            "result",
            "returns",
            "extension",
            "run",
            "sh",
            "python",
            "timeout",
            "resources",
            "retries",
            "executor",
            "examples",
        ],
        &LATER_TASK_KEYS,
        faults,
    );
    let mut task = Task {
        name: name.to_owned(),
        description: optional_text(node, "description", faults),
        inputs: Vec::new(),
        depends: Vec::new(),
        dynamic: None,
        result: ResultType::Text,
        returns: optional_text(node, "returns", faults),
        extension: faults.keep(extension(node)).flatten(),
        // Stands there until the body is read; a task whose body has a fault is never run.
        body: Body::Sh(String::new()),
        timeout: faults.keep(timeout(node)).flatten(),
        resources: faults.keep(resources(node)).unwrap_or_default(),
        retries: faults.keep(retries(node)).unwrap_or_default(),
        executor: faults.keep(executor(node)).flatten(),
        examples: faults.keep(examples(node)).unwrap_or_default(),
    };
    if let Some(given) = faults.keep(result_type(node)).flatten() {
        task.result = given;
    }
    match faults.keep(body(node)) {
        Some(Written::Alias(alias)) => {
            task.inputs = inputs(node, Vec::new(), None, dir, faults);
            task.body = Body::Alias;
            task.depends
                .extend(faults.keep(depends::alias(alias, &task.inputs, &workflow.name)));
        }
        Some(Written::Body(body)) => {
            task.body = body;
            task.inputs = inputs(node, Vec::new(), None, dir, faults);
        }
        Some(Written::Python(python)) => python_task(&mut task, node, python, dir, modules, faults),
        None => task.inputs = inputs(node, Vec::new(), None, dir, faults),
    }
    if let Some(list) = node.get("depends").filter(|_| task.body != Body::Alias) {
        task.depends = depends::read(list, &task.inputs, &workflow.name, &mut |fault| faults.push(fault));
    }
    task
}

/// Fills a task in with what its function says, where workflow.yaml says nothing.
fn python_task(task: &mut Task, node: &Node, python: &Node, dir: &Path, modules: &Modules, faults: &mut Faults) {
    let Some(text) = faults.keep(python.text()) else { return };
    let (file, function) = split(&text);
    let Some(path) = python_file(dir, file) else {
        faults.push(python.error(format!(
            "there is no file `{file}` in the workflow's folder or its `python/`; expected FILE.py:function"
        )));
        return;
    };
    let depends = node.get("depends").map(depends::names).unwrap_or_default();
    let depends: Vec<&str> = depends.iter().map(String::as_str).collect();
    let declared: Vec<&str> = match node.get("inputs").map(Node::mapping) {
        Some(Ok(entries)) => entries.iter().map(|(name, ..)| name.as_str()).collect(),
        _ => Vec::new(),
    };
    let found = modules.function(dir, &path, function.unwrap_or(&task.name), &depends, &declared);
    let Some(signature) = faults.keep(found) else { return };
    let Signature {
        description,
        inputs: taken,
        result,
        body: mut called,
        takes_more,
    } = signature;
    if task.description.is_empty() {
        task.description = description;
    }
    if let Some(hinted) = result.filter(|_| node.get("result").is_none())
        && let Some(hinted) = faults.keep(hinted)
    {
        task.result = hinted;
    }
    let function = (!takes_more).then(|| called.function.clone());
    task.inputs = inputs(node, taken, function.as_deref(), dir, faults);
    called.take(&task.inputs);
    task.body = Body::Python(called);
}

/// The end of a result file's name, in place of the one of its type.
fn extension(node: &Node) -> Result<Option<String>, YamlError> {
    let Some(n) = node.get("extension") else {
        return Ok(None);
    };
    let word = n.text()?;
    let word = word.strip_prefix('.').unwrap_or(&word);
    let fits = word
        .bytes()
        .all(|b| b.is_ascii_alphanumeric() || b == b'.' || b == b'_' || b == b'-');
    // Those of the files that stand beside a result.
    let is_taken = ["info", "files", "lock"]
        .iter()
        .any(|own| word == *own || word.ends_with(&format!(".{own}")));
    if word.is_empty() || word.len() > 20 || !fits || word.contains("..") || word.ends_with('.') || is_taken {
        return Err(n.error("an extension is letters, digits, `.`, `_` and `-`, and not that of a job's own files"));
    }
    Ok(Some(word.to_owned()))
}

fn result_type(node: &Node) -> Result<Option<ResultType>, YamlError> {
    let Some(n) = node.get("result") else {
        return Ok(None);
    };
    let word = n.text()?;
    if let Some((_, kind)) = RESULT_TYPES.iter().find(|(w, _)| *w == word) {
        return Ok(Some(*kind));
    }
    let words = RESULT_TYPES.map(|(w, _)| w);
    Err(n.error(format!(
        "there is no result type `{word}`{} (types: {})",
        did_you_mean(&word, words),
        words.join(" ")
    )))
}

/// What a task does, as it is written.
enum Written<'a> {
    Body(Body),
    /// The value of `alias:`.
    Alias(&'a Node),
    /// The value of `python:`; what it means is in another file.
    Python(&'a Node),
}

fn body(node: &Node) -> Result<Written<'_>, YamlError> {
    const KINDS: [&str; 3] = ["run", "sh", "python"];
    if let Some(alias) = node.get("alias") {
        let own = ["run", "sh", "python", "depends", "result"];
        return match own.iter().find_map(|key| node.get(key)) {
            Some(other) => {
                Err(other.error("an alias has no `run:`, `sh:`, `python:`, `depends:` or `result:` of its own"))
            }
            None => Ok(Written::Alias(alias)),
        };
    }
    let given: Vec<&Node> = KINDS.iter().filter_map(|key| node.get(key)).collect();
    if let [_, second, ..] = given.as_slice() {
        return Err(second.error("a task has one of `run:`, `sh:` and `python:`, not several"));
    }
    if let Some(run) = node.get("run") {
        let Data::Sequence(items) = &run.data else {
            return Err(run.error("expected a list: the program, then its arguments (use `sh:` for a script)"));
        };
        let element = |n: &Node| Element::parse(&n.text()?).map_err(|e| n.error(e));
        let elements = items.iter().map(element).collect::<Result<Vec<_>, _>>()?;
        return match elements.first() {
            None => Err(run.error("no program given")),
            Some(first) if first.literal() == Some("") => Err(run.error("no program given")),
            Some(_) => Ok(Written::Body(Body::Run(elements))),
        };
    }
    if let Some(sh) = node.get("sh") {
        return match sh.text()? {
            script if script.trim().is_empty() => Err(sh.error("the script is empty")),
            script if script.contains('\0') => Err(sh.error("the script has a NUL character")),
            script => Ok(Written::Body(Body::Sh(script))),
        };
    }
    if let Some(python) = node.get("python") {
        return Ok(Written::Python(python));
    }
    Err(node
        .error("a task needs `run:` (a program and its arguments), `sh:` (a script) or `python:` (FILE.py:function), or is an `alias:`"))
}

fn resources(node: &Node) -> Result<Resources, YamlError> {
    let Some(list) = node.get("resources") else {
        return Ok(Resources::default());
    };
    list.only(&["cpus", "memory", "time"])?;
    let cpus = match list.get("cpus") {
        None => None,
        Some(n) => match n.text()?.parse::<usize>() {
            Ok(cpus) if cpus > 0 => Some(cpus),
            _ => return Err(n.error("`cpus` is a number of processors, at least 1")),
        },
    };
    let memory = match list.get("memory") {
        None => None,
        Some(n) => Some(parse_size(&n.text()?).map_err(|e| n.error(e))?),
    };
    let time = match list.get("time") {
        None => None,
        Some(n) => Some(parse_duration(&n.text()?).map_err(|e| n.error(e))?),
    };
    Ok(Resources { cpus, memory, time })
}

fn retries(node: &Node) -> Result<u32, YamlError> {
    match node.get("retries") {
        None => Ok(0),
        Some(n) => match n.text()?.parse::<u32>() {
            Ok(retries) if retries <= 100 => Ok(retries),
            _ => Err(n.error("`retries` is a whole number from 0 to 100")),
        },
    }
}

/// What runs the jobs of a task, or of a workflow.
fn executor(node: &Node) -> Result<Option<String>, YamlError> {
    let Some(n) = node.get("executor") else {
        return Ok(None);
    };
    let name = n.text()?;
    let known: Vec<&str> = executor::names().collect();
    match executor::check_name(&name) {
        Ok(()) => Ok(Some(name)),
        Err(e) => Err(n.error(format!("{e} (executors: {})", known.join(" ")))),
    }
}

fn timeout(node: &Node) -> Result<Option<Duration>, YamlError> {
    let Some(n) = node.get("timeout") else { return Ok(None) };
    match parse_duration(&n.text()?) {
        Ok(Duration::ZERO) => Err(n.error("a time limit of nothing")),
        Ok(time) => Ok(Some(time)),
        Err(e) => Err(n.error(e)),
    }
}

fn examples(node: &Node) -> Result<Vec<Example>, YamlError> {
    let Some(list) = node.get("examples") else {
        return Ok(Vec::new());
    };
    let mut examples = Vec::new();
    for item in list.sequence()? {
        item.only(&["request", "arguments"])?;
        let Some(request) = item.get("request") else {
            return Err(item.error("an example needs `request:`"));
        };
        let arguments = match item.get("arguments").map(Node::to_json) {
            None | Some(Value::Null) => Map::new(),
            Some(Value::Object(map)) => map,
            Some(_) => return Err(item.error("`arguments:` is a map of inputs to values")),
        };
        examples.push(Example {
            request: request.text()?,
            arguments,
        });
    }
    Ok(examples)
}
