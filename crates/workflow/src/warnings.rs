//! What is probably wrong with a workflow although it can be read: programs, scripts and files that are not there.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use decanus_base::names::did_you_mean;
use decanus_base::yaml::{Data, Node, YamlError};
use serde_json::Value;

use crate::definition::{Body, Task, Workflow};
use crate::docs::Docs;
use crate::job::named_in_script;
use crate::template::{Element, Piece};

/// Ends of names that scripts have: an argument with one of them is meant to be a file.
const SCRIPTS: [&str; 12] = [
    "py", "r", "sh", "bash", "pl", "rb", "js", "mjs", "awk", "jl", "lua", "sql",
];

/// What is suspicious in workflow.yaml.
pub(crate) fn of_workflow(workflow: &Workflow, top: &Node) -> Vec<YamlError> {
    let mut found = Vec::new();
    for task in &workflow.tasks {
        let Some(node) = top.get("tasks").and_then(|t| t.get(&task.name)) else {
            continue;
        };
        match &task.body {
            Body::Run(elements) => of_run(workflow, elements, node, &mut found),
            Body::Sh(script) => {
                for file in named_in_script(script, &workflow.dir) {
                    if let Some(sh) = node.get("sh").filter(|_| !file.exists()) {
                        found.push(sh.error(format!("there is no file {}", file.display())));
                    }
                }
            }
            Body::Python(_) | Body::Native(_) | Body::Alias => {}
        }
        of_inputs(task, node, &mut found);
    }
    found
}

fn of_run(workflow: &Workflow, elements: &[Element], node: &Node, found: &mut Vec<YamlError>) {
    let Some(Data::Sequence(nodes)) = node.get("run").map(|n| &n.data) else {
        return;
    };
    for (at, (element, node)) in elements.iter().zip(nodes).enumerate() {
        match (element.literal(), element) {
            (Some(program), _) if at == 0 => {
                if !workflow.dir.join(program).is_file() && find_program(program).is_none() {
                    found.push(node.error(format!("the program `{program}` was not found")));
                }
            }
            (Some(text), _) => {
                let path = Path::new(text);
                let end = path.extension().and_then(OsStr::to_str).unwrap_or_default();
                let is_script = SCRIPTS.contains(&end.to_lowercase().as_str()) && !text.starts_with('-');
                if is_script && !workflow.dir.join(path).exists() {
                    found.push(node.error(format!("there is no script `{text}` in the workflow's folder")));
                }
            }
            (None, Element::One(pieces)) => {
                if let [Piece::WorkflowDir, Piece::Literal(rest)] = pieces.as_slice()
                    && !workflow.dir.join(rest.trim_start_matches('/')).exists()
                {
                    let rest = rest.trim_start_matches('/');
                    found.push(node.error(format!("there is no file `{rest}` in the workflow's folder")));
                }
            }
            (None, Element::Spread(_)) => {}
        }
    }
}

fn of_inputs(task: &Task, node: &Node, found: &mut Vec<YamlError>) {
    for input in task.inputs.iter().filter(|i| i.kind.reads_content()) {
        let node = node.get("inputs").and_then(|i| i.get(&input.name)).unwrap_or(node);
        let node = node.get("default").unwrap_or(node);
        let files: Vec<&str> = match &input.default {
            Value::Array(items) => items.iter().filter_map(Value::as_str).collect(),
            other => other.as_str().into_iter().collect(),
        };
        for file in files.iter().filter(|f| !Path::new(f).exists()) {
            found.push(node.error(format!("the default of `{}` is not there: {file}", input.name)));
        }
    }
}

/// Sections of the documentation that are about no task.
pub(crate) fn of_docs(workflow: &Workflow, page: &Path, docs: &Docs) -> Vec<YamlError> {
    let is_unknown = |name: &str| !name.contains('#') && workflow.find(name).is_none();
    let names = || workflow.tasks.iter().map(|t| t.name.as_str());
    docs.lines
        .iter()
        .filter(|(name, _)| is_unknown(name))
        .map(|(name, line)| YamlError {
            file: page.to_owned(),
            line: *line,
            key: String::new(),
            message: format!("there is no task `{name}`{}", did_you_mean(name, names())),
        })
        .collect()
}

/// A program as the system finds it: a path as it is, a name in the folders of `PATH`.
fn find_program(name: &str) -> Option<PathBuf> {
    if name.contains('/') {
        return Some(PathBuf::from(name)).filter(|p| p.is_file());
    }
    let folders = std::env::var_os("PATH")?;
    std::env::split_paths(&folders)
        .map(|folder| folder.join(name))
        .find(|p| p.is_file())
}
