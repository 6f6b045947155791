//! `depends:` and `alias:` of a task in workflow.yaml.

use std::collections::HashSet;

use decanus_base::names::{did_you_mean, is_valid};
use decanus_base::yaml::{Data, Node, YamlError};
use serde_json::Value;

use crate::definition::{Dependency, Each, JobName, Setting};
use crate::input::{Input, InputType};

/// Reads `depends:` of a task that has these inputs. Items with a fault are left out.
pub(crate) fn read(list: &Node, inputs: &[Input], workflow: &str, fault: &mut dyn FnMut(YamlError)) -> Vec<Dependency> {
    let mut found: Vec<Dependency> = Vec::new();
    let mut keys = HashSet::new();
    let mut variables = HashSet::new();
    let items = list.sequence().unwrap_or_else(|e| {
        fault(e);
        Vec::new()
    });
    for item in items {
        let dependency = match one(item, inputs, &found, workflow) {
            Ok(dependency) => dependency,
            Err(error) => {
                fault(error);
                continue;
            }
        };
        let key = dependency.key();
        if !keys.insert(key.to_owned()) {
            fault(item.error(format!(
                "`{key}` is there twice; give one of them another `name:`, by which its result is known"
            )));
        } else if !variables.insert(variable(key)) {
            fault(item.error(format!(
                "`{key}` and another one would both be the variable {}",
                variable(key)
            )));
        } else {
            found.push(dependency);
        }
    }
    found
}

/// The names by which a task knows its dependencies, as far as they can be read.
pub(crate) fn names(list: &Node) -> Vec<String> {
    list.sequence()
        .unwrap_or_default()
        .into_iter()
        .filter_map(name)
        .collect()
}

/// The name of one of them.
pub(crate) fn name(item: &Node) -> Option<String> {
    match item.get("name").or(item.get("task")) {
        Some(n) => n.text().ok(),
        None => item.text().ok().map(|t| t.rsplit('/').next().unwrap_or(&t).to_owned()),
    }
}

/// Reads `alias:` of a task that has these inputs.
pub(crate) fn alias(node: &Node, inputs: &[Input], workflow: &str) -> Result<Dependency, YamlError> {
    if let Data::Mapping(_) = node.data {
        node.only(&["task", "workflow", "inputs", "jobname"])?;
    }
    one(node, inputs, &[], workflow)
}

/// The variable that holds the path of a dependency's result.
pub(crate) fn variable(key: &str) -> String {
    format!("DECANUS_DEP_{}", key.replace('-', "_"))
}

fn one(node: &Node, inputs: &[Input], earlier: &[Dependency], workflow: &str) -> Result<Dependency, YamlError> {
    let other = |name: &str| Some(name.to_owned()).filter(|n| n != workflow);
    if !matches!(node.data, Data::Mapping(_)) {
        let text = node.text()?;
        let (of, task) = match text.split_once('/') {
            Some((of, task)) => (other(of), task),
            None => (None, text.as_str()),
        };
        return Ok(Dependency {
            workflow: of,
            line: node.line,
            ..Dependency::on(task)
        });
    }
    node.only(&["task", "workflow", "name", "inputs", "for_each", "canfail", "jobname"])?;
    let Some(task) = node.get("task") else {
        return Err(node.error("a dependency needs `task:`"));
    };
    let mut dependency = Dependency {
        line: node.line,
        can_fail: node.get("canfail").map_or(Ok(false), Node::boolean)?,
        ..Dependency::on(task.text()?)
    };
    if let Some(n) = node.get("workflow") {
        dependency.workflow = other(&n.text()?);
    }
    if let Some(n) = node.get("name") {
        let name = n.text()?;
        if !crate::parse::is_task_name(&name) {
            return Err(n.error(format!(
                "`{name}` can't be a name: letters, digits, `_` and `-`, a letter first, at most 64"
            )));
        }
        dependency.name = Some(name);
    }
    if let Some(n) = node.get("jobname") {
        dependency.jobname = match &n.data {
            Data::Scalar(Value::Null) => JobName::Own,
            _ => match n.text()? {
                name if is_valid(&name) => JobName::Chosen(name),
                name => return Err(n.error(format!("`{name}` can't be the name of a job"))),
            },
        };
    }
    if let Some(n) = node.get("inputs") {
        for (name, _, value) in n.mapping()? {
            dependency.fixed.push((name.clone(), setting(value, inputs, earlier)?));
        }
    }
    if let Some(n) = node.get("for_each") {
        dependency.for_each = Some(each(n, inputs, &dependency)?);
    }
    Ok(dependency)
}

/// A map with the one key `input`, `from` or `value` says where the value comes from; everything else is the value.
fn setting(node: &Node, inputs: &[Input], earlier: &[Dependency]) -> Result<Setting, YamlError> {
    let Data::Mapping(entries) = &node.data else {
        return Ok(Setting::Value(node.to_json()));
    };
    match entries.as_slice() {
        [(key, _, value)] if key == "input" => {
            let name = value.text()?;
            own(value, &name, inputs)?;
            Ok(Setting::Input(name))
        }
        [(key, _, value)] if key == "from" => {
            let name = value.text()?;
            if earlier.iter().any(|d| d.key() == name) {
                return Ok(Setting::Result(name));
            }
            let guess = did_you_mean(&name, earlier.iter().map(Dependency::key));
            Err(value.error(format!("there is no dependency `{name}` before this one{guess}")))
        }
        [(key, _, value)] if key == "value" => Ok(Setting::Value(value.to_json())),
        _ => Ok(Setting::Value(node.to_json())),
    }
}

fn own<'a>(node: &Node, name: &str, inputs: &'a [Input]) -> Result<&'a Input, YamlError> {
    inputs.iter().find(|i| i.name == name).ok_or_else(|| {
        let guess = did_you_mean(name, inputs.iter().map(|i| i.name.as_str()));
        node.error(format!("`{name}` is not an input of this task{guess}"))
    })
}

fn each(node: &Node, inputs: &[Input], dependency: &Dependency) -> Result<Each, YamlError> {
    let [(list, _, target)] = node.mapping()? else {
        return Err(
            node.error("expected one `LIST: INPUT`: an input of this task, and the dependency's that gets an item")
        );
    };
    let input = own(target, list, inputs)?;
    if input.kind.is_scalar() && input.kind != InputType::Json {
        return Err(node.error(format!(
            "`{list}` is no list; `for_each` takes an input of an array type or of `json`"
        )));
    }
    let target_name = target.text()?;
    if dependency.sets(&target_name) {
        return Err(target.error(format!("`{target_name}` is set under `inputs:` too")));
    }
    Ok(Each {
        list: list.clone(),
        input: target_name,
    })
}
