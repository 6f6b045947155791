//! What can be checked of a workflow only when all of its tasks are known.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use decanus_base::names::did_you_mean;
use decanus_base::yaml::{Data, Node, YamlError};
use serde_json::{Map, Value};

use crate::definition::{Body, Dependency, Task, Workflow};
use crate::graph::{self, MAX_DEPTH};
use crate::input;
use crate::path_rules::PathRules;
use crate::template::{Element, Piece};

/// All dependencies exist, none leads back to where it started, and no chain is too long.
pub(crate) fn dependencies(workflow: &Workflow, nodes: &HashMap<&str, &Node>) -> Result<(), YamlError> {
    Check { workflow, nodes }.dependencies()
}

/// The task exists.
pub(crate) fn known_task(workflow: &Workflow, name: &str, node: &Node) -> Result<(), YamlError> {
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
    fn dependencies(&self) -> Result<(), YamlError> {
        for task in &self.workflow.tasks {
            for (at, dependency) in task.depends.iter().enumerate() {
                // Those of other workflows are looked at when these are loaded.
                if dependency.workflow.is_some() {
                    continue;
                }
                let Some(node) = self.depends_item(&task.name, at) else {
                    continue;
                };
                known_task(self.workflow, &dependency.task, node)?;
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
            if let Some((_, next)) = self.workflow.target(self.workflow, dependency) {
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
        depends_items(self.nodes.get(task)?).get(at).copied()
    }

    fn depends_error(&self, task: &str, message: String) -> YamlError {
        match self.nodes.get(task) {
            Some(node) => node.get("depends").or(node.get("alias")).unwrap_or(node).error(message),
            None => YamlError {
                file: self.workflow.dir.join("workflow.yaml"),
                line: 1,
                key: String::new(),
                message,
            },
        }
    }
}

/// The nodes of what a task depends on: the items of `depends:`, or the one of `alias:`.
fn depends_items(task: &Node) -> Vec<&Node> {
    match task.get("alias") {
        Some(alias) => vec![alias],
        None => task.get("depends").and_then(|n| n.sequence().ok()).unwrap_or_default(),
    }
}

/// What can be checked only when all tasks are known: values set for dependencies, examples, places in `run:`.
pub(crate) fn settle(workflow: &mut Workflow, nodes: &HashMap<&str, &Node>) -> Result<(), YamlError> {
    let paths = PathRules::trusted(&workflow.dir);
    let mut settled = Vec::new();
    for task in &workflow.tasks {
        let Some(node) = nodes.get(task.name.as_str()) else {
            continue;
        };
        let mut new = Task::clone(task);
        for (dependency, item) in new.depends.iter_mut().zip(depends_items(node)) {
            let Some(target) = workflow
                .find(&dependency.task)
                .filter(|_| dependency.workflow.is_none())
            else {
                continue;
            };
            let inputs = workflow.recursive_inputs(target);
            graph::settle(dependency, &inputs, &workflow.dir).map_err(|(name, reason)| {
                let at = |key: &str| item.get(key).and_then(|n| n.get(&name));
                at("inputs").or(item.get("for_each")).unwrap_or(item).error(reason)
            })?;
        }
        if new.body == Body::Alias
            && let Some(kind) = graph::alias_type(workflow, workflow, task)
        {
            new.result = kind;
        }
        let inputs = workflow.recursive_inputs(task);
        let listed = node.get("examples").map_or(Ok(Vec::new()), Node::sequence)?;
        for (example, item) in new.examples.iter_mut().zip(listed) {
            let is_file = |name: &String| inputs.iter().any(|i| i.name == *name && i.kind.is_path());
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
            if let Some(fault) = places(task, node).into_iter().next() {
                return Err(fault);
            }
            check_run(&workflow.dir, elements, items)?;
        }
        settled.push(Arc::new(new));
    }
    workflow.tasks = settled.into();
    Ok(())
}

fn owned((name, value): (&String, &Value)) -> (String, Value) {
    (name.clone(), value.clone())
}

/// The places in `run:` that stand for nothing.
pub(crate) fn places(task: &Task, node: &Node) -> Vec<YamlError> {
    let mut found = Vec::new();
    let (Body::Run(elements), Some(Data::Sequence(nodes))) = (&task.body, node.get("run").map(|n| &n.data)) else {
        return found;
    };
    for (element, node) in elements.iter().zip(nodes) {
        let pieces = match element {
            Element::Spread(name) => &vec![Piece::Input(name.clone())],
            Element::One(pieces) => pieces,
        };
        for piece in pieces {
            match piece {
                Piece::Input(name) if task.input(name).is_none() => {
                    let dependency = task.depends.iter().find(|d| d.key() == name);
                    let each = |d: &Dependency| d.for_each.is_some();
                    // All results of a dependency that is made once for each item.
                    if matches!(element, Element::Spread(_)) && dependency.is_some_and(each) {
                        continue;
                    }
                    let message = if let Some(dependency) = dependency {
                        let end = if each(dependency) { "..." } else { ".path" };
                        format!("`{{{name}}}` is no input; the result of that task is `{{{name}{end}}}`")
                    } else {
                        let guess = did_you_mean(name, task.inputs.iter().map(|i| i.name.as_str()));
                        format!(
                            "`{{{name}}}` is not an input of this task{guess}; for the text itself write `{{{{{name}}}}}`"
                        )
                    };
                    found.push(node.error(message));
                }
                Piece::Dependency(name) if task.depends.iter().any(|d| d.key() == name && d.for_each.is_some()) => {
                    let message = format!("`{name}` has a result for each item; `{{{name}...}}` are all their paths");
                    found.push(node.error(message));
                }
                Piece::Dependency(name) if !task.depends.iter().any(|d| d.key() == name) => {
                    let guess = did_you_mean(name, task.depends.iter().map(Dependency::key));
                    found.push(node.error(format!(
                        "`{{{name}.path}}`: this task does not depend on `{name}`{guess}"
                    )));
                }
                _ => {}
            }
        }
    }
    found
}

fn check_run(dir: &Path, elements: &[Element], nodes: &[Node]) -> Result<(), YamlError> {
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
