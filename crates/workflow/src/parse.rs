//! workflow.yaml: from text to a [`Workflow`] in which everything that can be known to be wrong is known to be right.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use decanus_base::files::read_text;
use decanus_base::names::did_you_mean;
use decanus_base::units::parse_duration;
use decanus_base::yaml::{self, Data, Node, YamlError};
use decanus_chat::Example;
use serde_json::{Map, Number, Value};

use crate::definition::{Body, Dependency, Task, Workflow};
use crate::docs;
use crate::error::WorkflowError;
use crate::input::{self, Input, InputType, PathRules, TYPES};
use crate::result::{RESULT_TYPES, ResultType};
use crate::template::{Element, Piece};

/// The longest chain of tasks that depend on each other.
const MAX_DEPTH: usize = 100;

/// Keys of the format that this build does not know; they are refused by name rather than called unknown.
const LATER_TASK_KEYS: [&str; 9] = [
    "python",
    "rust",
    "agent",
    "tool",
    "executor",
    "resources",
    "alias",
    "overrides",
    "batch",
];
const LATER_INPUT_KEYS: [&str; 3] = ["jobname", "shortcut", "secret"];
const LATER_DEPENDENCY_KEYS: [&str; 4] = ["workflow", "canfail", "for_each", "name"];

/// Reads the workflow of a folder: its workflow.yaml, and workflow.md where there is one.
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
        workflow.tasks.push(Arc::new(task(task_name, node, &workflow.dir)?));
        nodes.insert(task_name.as_str(), node);
    }
    if workflow.tasks.is_empty() {
        return Err(tasks_node.error("a workflow needs at least one task"));
    }
    Check {
        workflow: &workflow,
        nodes: &nodes,
    }
    .dependencies()?;
    settle(&mut workflow, &nodes)?;
    if let Some(node) = top.get("exports") {
        for item in node.sequence()? {
            let export = item.text()?;
            unknown_task(&workflow, &export, item)?;
            if !workflow.exports.contains(&export) {
                workflow.exports.push(export);
            }
        }
    }
    Ok(workflow)
}

/// Whether a name can be a task's, and so a tool's with every provider.
fn is_task_name(name: &str) -> bool {
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

fn task(name: &str, node: &Node, dir: &Path) -> Result<Task, YamlError> {
    known_keys(
        node,
        &[
            "description",
            "inputs",
            "depends",
            "result",
            "run",
            "sh",
            "timeout",
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
    let mut depends: Vec<Dependency> = Vec::new();
    if let Some(list) = node.get("depends") {
        for item in list.sequence()? {
            let dependency = one_dependency(item)?;
            if depends.iter().any(|d| d.task == dependency.task) {
                let message = format!(
                    "`{}` is there twice; results are known by their task's name",
                    dependency.task
                );
                return Err(item.error(message));
            }
            depends.push(dependency);
        }
    }
    Ok(Task {
        name: name.to_owned(),
        description: optional_text(node, "description")?,
        inputs,
        depends,
        result: result_type(node)?,
        body: body(node)?,
        timeout: timeout(node)?,
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

fn one_dependency(node: &Node) -> Result<Dependency, YamlError> {
    if !matches!(node.data, Data::Mapping(_)) {
        let task = node.text()?;
        if task.contains(['/', '#']) {
            return Err(node.error("tasks of other workflows are not available in this build"));
        }
        return Ok(Dependency {
            task,
            fixed: Map::new(),
        });
    }
    known_keys(node, &["task", "inputs"], &LATER_DEPENDENCY_KEYS)?;
    let Some(task) = node.get("task") else {
        return Err(node.error("a dependency needs `task:`"));
    };
    let mut fixed = Map::new();
    if let Some(inputs) = node.get("inputs") {
        for (name, _, value) in inputs.mapping()? {
            fixed.insert(name.clone(), value.to_json());
        }
    }
    Ok(Dependency {
        task: task.text()?,
        fixed,
    })
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
        (None, None) => Err(node.error("a task needs `run:` (a program and its arguments) or `sh:` (a script)")),
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

fn unknown_task(workflow: &Workflow, name: &str, node: &Node) -> Result<(), YamlError> {
    if workflow.find(name).is_some() {
        return Ok(());
    }
    let guess = did_you_mean(name, workflow.tasks.iter().map(|t| t.name.as_str()));
    Err(node.error(format!("there is no task `{name}`{guess}")))
}

struct Check<'a> {
    workflow: &'a Workflow,
    nodes: &'a HashMap<&'a str, &'a Node>,
}

impl Check<'_> {
    /// All dependencies exist, none leads back to where it started, and no chain is too long.
    fn dependencies(&self) -> Result<(), YamlError> {
        for task in &self.workflow.tasks {
            for (at, dependency) in task.depends.iter().enumerate() {
                let Some(node) = self.depends_item(&task.name, at) else {
                    continue;
                };
                unknown_task(self.workflow, &dependency.task, node)?;
            }
        }
        let mut finished = HashMap::new();
        for task in &self.workflow.tasks {
            self.walk(task, &mut Vec::new(), &mut finished)?;
        }
        Ok(())
    }

    fn walk<'t>(
        &'t self,
        task: &'t Task,
        way: &mut Vec<&'t str>,
        finished: &mut HashMap<&'t str, usize>,
    ) -> Result<usize, YamlError> {
        if let Some(depth) = finished.get(task.name.as_str()) {
            return Ok(*depth);
        }
        if let Some(at) = way.iter().position(|name| *name == task.name) {
            let cycle = [&way[at..], &[task.name.as_str()]].concat().join(" → ");
            return Err(self.depends_error(&task.name, format!("tasks depend on each other in a circle: {cycle}")));
        }
        let too_deep = || self.depends_error(&task.name, format!("more than {MAX_DEPTH} tasks in a chain"));
        if way.len() >= MAX_DEPTH {
            return Err(too_deep());
        }
        way.push(&task.name);
        let mut depth = 1;
        for dependency in &task.depends {
            if let Some(next) = self.workflow.find(&dependency.task) {
                depth = depth.max(1 + self.walk(next, way, finished)?);
            }
        }
        way.pop();
        if depth > MAX_DEPTH {
            return Err(too_deep());
        }
        finished.insert(&task.name, depth);
        Ok(depth)
    }

    fn depends_item(&self, task: &str, at: usize) -> Option<&Node> {
        self.nodes.get(task)?.get("depends")?.sequence().ok()?.get(at).copied()
    }

    fn depends_error(&self, task: &str, message: String) -> YamlError {
        match self.nodes.get(task) {
            Some(node) => node.get("depends").unwrap_or(node).error(message),
            None => YamlError {
                file: self.workflow.dir.join("workflow.yaml"),
                line: 1,
                key: String::new(),
                message,
            },
        }
    }
}

/// What can be checked only when all tasks are known: values set for dependencies, examples, places in `run:`.
fn settle(workflow: &mut Workflow, nodes: &HashMap<&str, &Node>) -> Result<(), YamlError> {
    let paths = PathRules::trusted(&workflow.dir);
    let mut settled = Vec::new();
    for task in &workflow.tasks {
        let Some(node) = nodes.get(task.name.as_str()) else {
            continue;
        };
        let mut new = Task::clone(task);
        let items = node.get("depends").map_or(Ok(Vec::new()), Node::sequence)?;
        for (dependency, item) in new.depends.iter_mut().zip(items) {
            let Some(target) = workflow.find(&dependency.task) else {
                continue;
            };
            let inputs = workflow.recursive_inputs(target);
            let names = std::mem::take(&mut dependency.fixed);
            for (name, value) in names {
                let at = item.get("inputs").and_then(|n| n.get(&name)).unwrap_or(item);
                let file = inputs.iter().any(|i| i.name == name && i.kind == InputType::File) && !value.is_null();
                let value = if file {
                    workflow.dir.join(at.text()?).display().to_string().into()
                } else {
                    let one = Map::from_iter([(name.clone(), value)]);
                    let mut map = input::coerce_map(&one, &inputs, &paths).map_err(|(_, e)| at.error(e))?;
                    map.remove(&name).unwrap_or_default()
                };
                dependency.fixed.insert(name, value);
            }
        }
        let inputs = workflow.recursive_inputs(task);
        let listed = node.get("examples").map_or(Ok(Vec::new()), Node::sequence)?;
        for (example, item) in new.examples.iter_mut().zip(listed) {
            let is_file = |name: &String| inputs.iter().any(|i| i.name == *name && i.kind == InputType::File);
            let files: Map<_, _> = example
                .arguments
                .iter()
                .filter(|(n, _)| is_file(n))
                .map(owned)
                .collect();
            let others: Map<_, _> = example
                .arguments
                .iter()
                .filter(|(n, _)| !is_file(n))
                .map(owned)
                .collect();
            example.arguments = input::coerce_map(&others, &inputs, &paths).map_err(|(name, e)| {
                item.get("arguments")
                    .and_then(|n| n.get(&name))
                    .unwrap_or(item)
                    .error(e)
            })?;
            example.arguments.extend(files);
        }
        if let (Body::Run(elements), Some(Data::Sequence(items))) = (&new.body, node.get("run").map(|n| &n.data)) {
            check_run(task, &workflow.dir, elements, items)?;
        }
        settled.push(Arc::new(new));
    }
    workflow.tasks = settled;
    Ok(())
}

fn owned((name, value): (&String, &Value)) -> (String, Value) {
    (name.clone(), value.clone())
}

fn check_run(task: &Task, dir: &Path, elements: &[Element], nodes: &[Node]) -> Result<(), YamlError> {
    for (element, node) in elements.iter().zip(nodes) {
        let pieces = match element {
            Element::Spread(name) => &vec![Piece::Input(name.clone())],
            Element::One(pieces) => pieces,
        };
        for piece in pieces {
            match piece {
                Piece::Input(name) if task.input(name).is_none() => {
                    let message = if task.depends.iter().any(|d| d.task == *name) {
                        format!("`{{{name}}}` is no input; the result of that task is `{{{name}.path}}`")
                    } else {
                        let guess = did_you_mean(name, task.inputs.iter().map(|i| i.name.as_str()));
                        format!(
                            "`{{{name}}}` is not an input of this task{guess}; for the text itself write `{{{{{name}}}}}`"
                        )
                    };
                    return Err(node.error(message));
                }
                Piece::Dependency(name) if !task.depends.iter().any(|d| d.task == *name) => {
                    let guess = did_you_mean(name, task.depends.iter().map(|d| d.task.as_str()));
                    return Err(node.error(format!(
                        "`{{{name}.path}}`: this task does not depend on `{name}`{guess}"
                    )));
                }
                _ => {}
            }
        }
    }
    let (Some(program), Some(node)) = (elements.first(), nodes.first()) else {
        return Ok(());
    };
    if program.takes_input()
        || matches!(program, Element::One(p) if p.iter().any(|p| matches!(p, Piece::Dependency(_))))
    {
        return Err(node.error("the program itself may not come from an input or a dependency"));
    }
    if let Some(path) = program.literal().map(Path::new)
        && path.is_relative()
        && path.components().count() > 1
        && !dir.join(path).is_file()
    {
        return Err(node.error(format!(
            "there is no program `{}` in the workflow's folder",
            path.display()
        )));
    }
    no_shell_line(elements, nodes)
}

/// `run: [sh, -c, "… {x}"]` would make an input part of a shell line.
fn no_shell_line(elements: &[Element], nodes: &[Node]) -> Result<(), YamlError> {
    const SHELLS: [&str; 7] = ["sh", "bash", "dash", "zsh", "ksh", "ash", "fish"];
    let is_shell = |e: &Element| {
        let name = e
            .literal()
            .and_then(|p| Path::new(p).file_name())
            .and_then(|n| n.to_str());
        name.is_some_and(|n| SHELLS.contains(&n))
    };
    let is_command_option = |e: &Element| {
        e.literal()
            .is_some_and(|o| o.starts_with('-') && !o.starts_with("--") && o.contains('c') || o == "--command")
    };
    let Some(shell) = elements.iter().position(is_shell) else {
        return Ok(());
    };
    let Some(option) = elements.iter().skip(shell + 1).position(is_command_option) else {
        return Ok(());
    };
    let at = shell + 1 + option + 1;
    match (elements.get(at), nodes.get(at)) {
        (Some(script), Some(node)) if script.takes_input() => {
            Err(node.error("an input would become part of a shell line; use `sh:` and \"$name\""))
        }
        _ => Ok(()),
    }
}
