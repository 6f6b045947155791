//! workflow.yaml: from text to a [`Workflow`] in which everything that can be known to be wrong is known to be right.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use decanus_base::files::read_text;
use decanus_base::names::did_you_mean;
use decanus_base::units::{parse_duration, parse_size};
use decanus_base::yaml::{self, Data, Node, YamlError};
use decanus_chat::Example;
use serde_json::{Map, Number, Value};

use crate::check;
use crate::definition::{Body, Reach, Task, Workflow};
use crate::depends;
use crate::docs;
use crate::error::WorkflowError;
use crate::input::{self, Input, InputType, PathRules, TYPES};
use crate::result::{RESULT_TYPES, ResultType};
use crate::slots::Resources;
use crate::template::Element;

/// Keys of the format that this build does not know; they are refused by name rather than called unknown.
const LATER_TASK_KEYS: [&str; 7] = ["python", "rust", "agent", "tool", "executor", "overrides", "batch"];
const LATER_INPUT_KEYS: [&str; 3] = ["jobname", "shortcut", "secret"];

/// Reads the workflow of a folder: its workflow.yaml, and workflow.md where there is one. Tasks of other workflows that
/// its tasks depend on are not looked up; [`Workflows::load`](crate::Workflows::load) does that.
///
/// # Errors
/// Every fault in workflow.yaml names file, line and key.
pub fn load(dir: &Path) -> Result<Workflow, WorkflowError> {
    let unreadable = |e: std::io::Error| WorkflowError::Unreadable(e.to_string());
    let dir = dir
        .canonicalize()
        .map_err(|e| unreadable(decanus_base::files::named(e, dir)))?;
    let name = dir
        .file_name()
        .map(|n| n.to_string_lossy().into_owned())
        .unwrap_or_default();
    if !is_task_name(&name) {
        return Err(WorkflowError::BadName { dir, name });
    }
    let file = dir.join("workflow.yaml");
    let mut workflow = parse(&read_text(&file).map_err(unreadable)?, &file, &name)?;
    let page = dir.join("workflow.md");
    if page.is_file() {
        let docs = docs::read(&read_text(&page).map_err(unreadable)?);
        if !docs.title.is_empty() {
            workflow.title = docs.title;
        }
        if !docs.description.is_empty() {
            workflow.description = docs.description;
        }
        for (name, text) in docs.tasks {
            if let Some(task) = workflow.tasks.iter_mut().find(|t| t.name == name) {
                Arc::make_mut(task).description = text;
            }
        }
    }
    Ok(workflow)
}

/// Reads the text of a workflow.yaml. Scripts and default files are looked up beside `file`.
///
/// # Errors
/// The first fault, with file, line and key.
pub fn parse(text: &str, file: &Path, name: &str) -> Result<Workflow, YamlError> {
    let top = yaml::parse(text, file)?;
    top.only(&["title", "description", "tasks", "exports"])?;
    let dir = file.parent().unwrap_or(Path::new("")).to_owned();
    let Some(tasks_node) = top.get("tasks") else {
        return Err(top.error("a workflow needs `tasks:`"));
    };
    let mut workflow = Workflow {
        name: name.to_owned(),
        dir,
        title: optional_text(&top, "title")?,
        description: optional_text(&top, "description")?,
        tasks: Vec::new(),
        exports: Vec::new(),
        reach: Reach::default(),
    };
    let mut nodes = HashMap::new();
    for (task_name, line, node) in tasks_node.mapping()? {
        if !is_task_name(task_name) {
            let mut error = node.error(format!(
                "`{task_name}` can't be the name of a task: letters, digits, `_` and `-`, a letter first, at most 64"
            ));
            error.line = *line;
            return Err(error);
        }
        workflow.tasks.push(Arc::new(task(task_name, node, &workflow)?));
        nodes.insert(task_name.as_str(), node);
    }
    if workflow.tasks.is_empty() {
        return Err(tasks_node.error("a workflow needs at least one task"));
    }
    check::dependencies(&workflow, &nodes)?;
    check::settle(&mut workflow, &nodes)?;
    if let Some(node) = top.get("exports") {
        for item in node.sequence()? {
            let export = item.text()?;
            check::known_task(&workflow, &export, item)?;
            if !workflow.exports.contains(&export) {
                workflow.exports.push(export);
            }
        }
    }
    Ok(workflow)
}

/// Whether a name can be a task's, and so a tool's with every provider.
pub(crate) fn is_task_name(name: &str) -> bool {
    name.len() <= 64
        && name.starts_with(|c: char| c.is_ascii_alphabetic())
        && name
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-')
}

fn optional_text(node: &Node, key: &str) -> Result<String, YamlError> {
    match node.get(key) {
        Some(n) if matches!(n.data, Data::Scalar(Value::Null)) => Ok(String::new()),
        Some(n) => Ok(n.text()?.trim().to_owned()),
        None => Ok(String::new()),
    }
}

fn known_keys(node: &Node, known: &[&str], later: &[&str]) -> Result<(), YamlError> {
    for (name, line, value) in node.mapping()? {
        if later.contains(&name.as_str()) {
            let mut error = value.error(format!("`{name}:` is not available in this build"));
            error.line = *line;
            return Err(error);
        }
    }
    node.only(known)
}

fn task(name: &str, node: &Node, workflow: &Workflow) -> Result<Task, YamlError> {
    let dir = &workflow.dir;
    known_keys(
        node,
        &[
            "description",
            "inputs",
            "depends",
            "alias",
            "result",
            "run",
            "sh",
            "timeout",
            "resources",
            "retries",
            "examples",
        ],
        &LATER_TASK_KEYS,
    )?;
    let mut inputs = Vec::new();
    if let Some(list) = node.get("inputs") {
        for (input_name, line, value) in list.mapping()? {
            input::check_name(input_name).map_err(|message| YamlError {
                line: *line,
                ..value.error(message)
            })?;
            inputs.push(one_input(input_name, value, dir)?);
        }
    }
    let (depends, body) = match node.get("alias") {
        Some(n) => {
            if let Some(other) = ["run", "sh", "depends", "result"].iter().find_map(|key| node.get(key)) {
                return Err(other.error("an alias has no `run:`, `sh:`, `depends:` or `result:` of its own"));
            }
            (vec![depends::alias(n, &inputs, &workflow.name)?], Body::Alias)
        }
        None => {
            let list = node.get("depends");
            let depends = list.map_or(Ok(Vec::new()), |n| depends::read(n, &inputs, &workflow.name))?;
            (depends, body(node)?)
        }
    };
    Ok(Task {
        name: name.to_owned(),
        description: optional_text(node, "description")?,
        inputs,
        depends,
        dynamic: None,
        result: result_type(node)?,
        body,
        timeout: timeout(node)?,
        resources: resources(node)?,
        retries: retries(node)?,
        examples: examples(node)?,
    })
}

fn one_input(name: &str, node: &Node, dir: &Path) -> Result<Input, YamlError> {
    known_keys(
        node,
        &[
            "type",
            "description",
            "required",
            "default",
            "options",
            "minimum",
            "maximum",
        ],
        &LATER_INPUT_KEYS,
    )?;
    let kind = match node.get("type") {
        None => InputType::String,
        Some(n) => {
            let word = n.text()?;
            match TYPES.iter().find(|(w, _)| *w == word) {
                Some((_, kind)) => *kind,
                None => {
                    let words = TYPES.map(|(w, _)| w);
                    let guess = did_you_mean(&word, words);
                    return Err(n.error(format!("there is no type `{word}`{guess} (types: {})", words.join(" "))));
                }
            }
        }
    };
    let mut input = Input {
        name: name.to_owned(),
        kind,
        description: optional_text(node, "description")?,
        required: node.get("required").map_or(Ok(false), Node::boolean)?,
        default: Value::Null,
        options: Vec::new(),
        minimum: bound(node, "minimum", kind)?,
        maximum: bound(node, "maximum", kind)?,
    };
    match node.get("options") {
        Some(n) if kind != InputType::Select => return Err(n.error("only an input of type `select` has options")),
        Some(n) => {
            for option in n.sequence()? {
                match option.to_json() {
                    value @ (Value::String(_) | Value::Number(_) | Value::Bool(_)) => input.options.push(value),
                    _ => return Err(option.error("an option is a text, a number, true or false")),
                }
            }
        }
        None => {}
    }
    if kind == InputType::Select && input.options.is_empty() {
        return Err(node.error("an input of type `select` needs `options:`"));
    }
    if let Some(n) = node.get("default") {
        // Whether a default file exists is seen when a job is made: it may be fetched later, or be an input's own.
        input.default = match (kind, n.to_json()) {
            (InputType::File, Value::Null) => Value::Null,
            (InputType::File, _) => dir.join(n.text()?).display().to_string().into(),
            (_, value) => input.coerce(&value, &PathRules::trusted(dir)).map_err(|e| n.error(e))?,
        };
    }
    Ok(input)
}

fn bound(node: &Node, key: &str, kind: InputType) -> Result<Option<Number>, YamlError> {
    let Some(n) = node.get(key) else { return Ok(None) };
    if !matches!(kind, InputType::Integer | InputType::Float) {
        return Err(n.error(format!("only an integer or a float has a {key}")));
    }
    match n.to_json() {
        Value::Number(number) => Ok(Some(number)),
        _ => Err(n.error("expected a number")),
    }
}

fn result_type(node: &Node) -> Result<ResultType, YamlError> {
    let Some(n) = node.get("result") else {
        return Ok(ResultType::Text);
    };
    let word = n.text()?;
    if let Some((_, kind)) = RESULT_TYPES.iter().find(|(w, _)| *w == word) {
        return Ok(*kind);
    }
    if word == "chat" {
        return Err(n.error("results of type `chat` are not available in this build"));
    }
    let words = RESULT_TYPES.map(|(w, _)| w);
    Err(n.error(format!(
        "there is no result type `{word}`{} (types: {})",
        did_you_mean(&word, words),
        words.join(" ")
    )))
}

fn body(node: &Node) -> Result<Body, YamlError> {
    match (node.get("run"), node.get("sh")) {
        (Some(run), None) => {
            let Data::Sequence(items) = &run.data else {
                return Err(run.error("expected a list: the program, then its arguments (use `sh:` for a script)"));
            };
            let element = |n: &Node| Element::parse(&n.text()?).map_err(|e| n.error(e));
            let elements = items.iter().map(element).collect::<Result<Vec<_>, _>>()?;
            match elements.first() {
                None => Err(run.error("no program given")),
                Some(first) if first.literal() == Some("") => Err(run.error("no program given")),
                Some(_) => Ok(Body::Run(elements)),
            }
        }
        (None, Some(sh)) => match sh.text()? {
            script if script.trim().is_empty() => Err(sh.error("the script is empty")),
            script if script.contains('\0') => Err(sh.error("the script has a NUL character")),
            script => Ok(Body::Sh(script)),
        },
        (Some(_), Some(sh)) => Err(sh.error("a task has `run:` or `sh:`, not both")),
        (None, None) => {
            Err(node.error("a task needs `run:` (a program and its arguments) or `sh:` (a script), or is an `alias:`"))
        }
    }
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
