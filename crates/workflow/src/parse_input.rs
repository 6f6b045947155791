//! The `inputs:` of a task: from YAML, and from the parameters of a Python function, to [`Input`]s.

use std::collections::HashMap;
use std::path::Path;

use decanus_base::names::did_you_mean;
use decanus_base::yaml::{Data, Node, YamlError};
use serde_json::{Number, Value};

use crate::input::{self, Input, InputType, TYPES};
use crate::parse::{Faults, known_keys, optional_text};
use crate::python::Taken;

/// The inputs that the function of a `python:` task takes, changed by what workflow.yaml says of them, then the others
/// of workflow.yaml. `closed_to` is the function that takes no others.
pub(crate) fn inputs(
    node: &Node,
    taken: Vec<Taken>,
    closed_to: Option<&str>,
    dir: &Path,
    faults: &mut Faults,
) -> Vec<Input> {
    let entries = match node.get("inputs") {
        Some(list) => faults.keep(list.mapping()).unwrap_or_default(),
        None => &[],
    };
    let mut inputs: Vec<Input> = Vec::new();
    let mut places = HashMap::new();
    for taken in taken {
        let own = entries.iter().find(|(name, ..)| *name == taken.input.name);
        inputs.push(one_input(
            &taken.input.name,
            own.map(|(.., node)| node),
            Some(&taken),
            dir,
            faults,
        ));
    }
    for (name, line, value) in entries {
        places.insert(name.as_str(), value);
        if inputs.iter().any(|i| i.name == *name) {
            continue;
        }
        let at = |message: String| YamlError {
            line: *line,
            ..value.error(message)
        };
        if let Err(message) = input::check_name(name) {
            faults.push(at(message));
        } else if let Some(function) = closed_to {
            let guess = did_you_mean(name, inputs.iter().map(|i| i.name.as_str()));
            faults.push(at(format!(
                "the function `{function}` has no parameter `{name}`{guess}"
            )));
        } else {
            inputs.push(one_input(name, Some(value), None, dir, faults));
        }
    }
    let mut words: HashMap<String, &str> = inputs.iter().map(|i| (i.name.clone(), i.name.as_str())).collect();
    let mut names_it: Option<&str> = None;
    for input in &inputs {
        let at = |message: String| places.get(input.name.as_str()).map(|node| node.error(message));
        if let Some(shortcut) = &input.shortcut
            && let Some(other) = words.insert(shortcut.clone(), &input.name).filter(|o| *o != input.name)
        {
            faults
                .0
                .extend(at(format!("the shortcut `{shortcut}` stands for `{other}` already")));
        }
        if input.is_jobname
            && let Some(other) = names_it.replace(&input.name)
        {
            faults.0.extend(at(format!("`{other}` names the job already")));
        }
    }
    inputs
}

fn one_input(name: &str, node: Option<&Node>, taken: Option<&Taken>, dir: &Path, faults: &mut Faults) -> Input {
    let mut input = taken.map_or_else(|| Input::new(name, InputType::String), |t| t.input.clone());
    let mut unknown = taken.and_then(|t| t.unknown.clone());
    let mut default = taken.map_or(Value::Null, |t| t.default.clone());
    let mut default_node = None;
    let mut owner = None;
    if let Some(node) = node {
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
                "jobname",
                "secret",
                "shortcut",
            ],
            &[],
            faults,
        );
        owner = Some(node);
        if let Some(n) = node.get("type") {
            unknown = None;
            if let Some(kind) = faults.keep(input_type(n)) {
                input.kind = kind;
            }
        }
        let description = optional_text(node, "description", faults);
        if !description.is_empty() {
            input.description = description;
        }
        default_node = node.get("default");
        let flag = |key: &str, faults: &mut Faults| node.get(key).and_then(|n| faults.keep(n.boolean()));
        if let Some(required) = flag("required", faults) {
            input.required = required;
        } else if default_node.is_some() {
            input.required = false;
        }
        input.is_jobname = flag("jobname", faults).unwrap_or(false);
        input.is_secret = flag("secret", faults).unwrap_or(false);
        input.minimum = faults.keep(bound(node, "minimum", input.kind)).flatten();
        input.maximum = faults.keep(bound(node, "maximum", input.kind)).flatten();
        input.shortcut = faults.keep(shortcut(node)).flatten();
        if let Some(n) = node.get("options") {
            (input.labels, input.options) = faults.keep(options(n, input.kind)).unwrap_or_default();
        }
        if input.is_jobname && (input.is_secret || !input.kind.is_scalar() || input.kind.is_path()) {
            faults.push(node.error("an input that names the job is a plain value, and no secret"));
        }
    }
    if let Some(unknown) = unknown {
        faults.push(unknown);
        return input;
    }
    let at = |message: String| match (default_node.or(owner), taken) {
        (Some(node), _) => node.error(message),
        (None, Some(taken)) => YamlError {
            message,
            ..taken.place.clone()
        },
        (None, None) => YamlError {
            file: dir.join("workflow.yaml"),
            line: 1,
            key: name.to_owned(),
            message,
        },
    };
    let is_select = input.kind == InputType::Select;
    if !is_select {
        // Those of a hint, when workflow.yaml says another type.
        input.options.clear();
    } else if input.options.is_empty() && owner.is_none_or(|n| n.get("options").is_none()) {
        faults.push(at("an input of type `select` needs `options:`".into()));
        return input;
    }
    if let Some(n) = default_node {
        default = n.to_json();
    }
    match input.coerce_default(&default, dir) {
        Ok(value) => input.default = value,
        Err(message) if default_node.is_some() => faults.push(at(message)),
        Err(message) => faults.push(at(format!("the default: {message}"))),
    }
    input
}

fn input_type(node: &Node) -> Result<InputType, YamlError> {
    let word = node.text()?;
    match TYPES.iter().find(|(w, _)| *w == word) {
        Some((_, kind)) => Ok(*kind),
        None => {
            let words = TYPES.map(|(w, _)| w);
            let guess = did_you_mean(&word, words);
            Err(node.error(format!("there is no type `{word}`{guess} (types: {})", words.join(" "))))
        }
    }
}

/// The options of a `select`: a list of them, or a map of what they are called to what they are.
fn options(node: &Node, kind: InputType) -> Result<(Vec<String>, Vec<Value>), YamlError> {
    if kind != InputType::Select {
        return Err(node.error("only an input of type `select` has options"));
    }
    let value = |node: &Node| match node.to_json() {
        value @ (Value::String(_) | Value::Number(_) | Value::Bool(_)) => Ok(value),
        _ => Err(node.error("an option is a text, a number, true or false")),
    };
    let (mut labels, mut options) = (Vec::new(), Vec::new());
    if let Data::Mapping(entries) = &node.data {
        for (label, _, node) in entries {
            labels.push(label.clone());
            options.push(value(node)?);
        }
    } else {
        for item in node.sequence()? {
            options.push(value(item)?);
        }
    }
    if options.is_empty() {
        return Err(node.error("an input of type `select` needs `options:`"));
    }
    Ok((labels, options))
}

fn shortcut(node: &Node) -> Result<Option<String>, YamlError> {
    let Some(n) = node.get("shortcut") else { return Ok(None) };
    if matches!(n.data, Data::Scalar(Value::Null | Value::Bool(false))) {
        return Ok(None);
    }
    let word = n.text()?;
    let fits = word
        .bytes()
        .all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-');
    if word.is_empty() || word.len() > 16 || word.starts_with('-') || !fits {
        return Err(n.error("a shortcut is a short word of letters, digits, `_` and `-`"));
    }
    Ok(Some(word))
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
