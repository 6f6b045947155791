//! The graph of tasks: what a dependency means, which inputs come up from it, and the way to tasks of other workflows.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;

use decanus_base::names::did_you_mean;
use decanus_base::yaml::YamlError;
use serde_json::Value;

use crate::definition::{Body, Dependency, Setting, Task, Workflow};
use crate::digests::Digests;
use crate::error::WorkflowError;
use crate::input::Input;
use crate::path_rules::PathRules;
use crate::result::ResultType;

/// The longest chain of tasks that depend on each other.
pub(crate) const MAX_DEPTH: usize = 100;

/// Says whether a task is replaced, so that nothing of it and of what it depends on is needed.
pub(crate) type Replaced<'a> = &'a dyn Fn(&Workflow, &Task) -> bool;

impl Workflow {
    /// The task that a dependency of a task of `owner` means. `self` is the workflow that was loaded: it knows the others.
    pub(crate) fn target<'a>(&'a self, owner: &'a Self, dependency: &Dependency) -> Option<(&'a Self, &'a Arc<Task>)> {
        let workflow = match &dependency.workflow {
            None => owner,
            Some(name) if *name == self.name => self,
            Some(name) => self.reach.others.get(name)?,
        };
        Some((workflow, workflow.find(&dependency.task)?))
    }

    /// All inputs that a caller of the task can give: its own, then those of its dependencies in order, without those
    /// that a declaration sets. Each name once; the first declaration counts.
    pub fn recursive_inputs<'a>(&'a self, task: &'a Task) -> Vec<&'a Input> {
        self.inputs_of(self, task, &|_, _| false)
    }

    /// The same for a task of any workflow in reach, without replaced tasks.
    pub(crate) fn inputs_of<'a>(&'a self, owner: &'a Self, task: &'a Task, replaced: Replaced) -> Vec<&'a Input> {
        let mut collect = Collect {
            root: self,
            replaced,
            found: Vec::new(),
            names: HashSet::new(),
            seen: HashSet::new(),
        };
        collect.task(owner, task, &[]);
        collect.found
    }

    /// All tasks that a task depends on, directly or not, each once, with their workflows.
    pub(crate) fn below<'a>(&'a self, task: &'a Task) -> Vec<(&'a Self, &'a Arc<Task>)> {
        let mut found: Vec<(&Self, &Arc<Task>)> = Vec::new();
        let mut seen = HashSet::new();
        let mut open: Vec<(&Self, &Task)> = vec![(self, task)];
        while let Some((owner, task)) = open.pop() {
            for dependency in &task.depends {
                if let Some((workflow, next)) = self.target(owner, dependency)
                    && seen.insert(Arc::as_ptr(next))
                {
                    found.push((workflow, next));
                    open.push((workflow, next));
                }
            }
        }
        found
    }
}

struct Collect<'a, 'r> {
    root: &'a Workflow,
    replaced: Replaced<'r>,
    found: Vec<&'a Input>,
    names: HashSet<&'a str>,
    seen: HashSet<(*const Task, Vec<String>)>,
}

impl<'a> Collect<'a, '_> {
    fn task(&mut self, owner: &'a Workflow, task: &'a Task, hidden: &[String]) {
        // A task may be reached by many ways; what is hidden on the way is all that differs.
        if !self.seen.insert((std::ptr::from_ref(task), hidden.to_vec())) {
            return;
        }
        for input in &task.inputs {
            if !hidden.contains(&input.name) && self.names.insert(&input.name) {
                self.found.push(input);
            }
        }
        for dependency in &task.depends {
            let Some((workflow, next)) = self.root.target(owner, dependency) else {
                continue;
            };
            if (self.replaced)(workflow, next) {
                continue;
            }
            let mut hidden = hidden.to_vec();
            hidden.extend(dependency.fixed.iter().map(|(name, _)| name.clone()));
            hidden.extend(dependency.for_each.iter().map(|e| e.input.clone()));
            hidden.sort_unstable();
            hidden.dedup();
            self.task(workflow, next, &hidden);
        }
    }
}

/// Looks at what a dependency sets against the inputs that it can set, and makes values of the right types of it.
///
/// # Errors
/// The input that is wrong, and why.
pub(crate) fn settle(dependency: &mut Dependency, inputs: &[&Input], dir: &Path) -> Result<(), (String, String)> {
    let rules = PathRules::trusted(dir);
    let find = |name: &str| {
        let guess = || did_you_mean(name, inputs.iter().map(|i| i.name.as_str()));
        let input = inputs.iter().find(|i| i.name == name);
        input.ok_or_else(|| (name.to_owned(), format!("there is no input `{name}`{}", guess())))
    };
    for (name, setting) in &mut dependency.fixed {
        let input = find(name)?;
        let Setting::Value(value) = setting else { continue };
        let bad = |reason: String| (name.clone(), reason);
        *value = match (&*value, input.kind) {
            (Value::Null, _) => Value::Null,
            // Whether the file exists is seen when a job is made: it may be fetched later.
            (value, kind) if kind.reads_content() => input.coerce_default(value, dir).map_err(bad)?,
            (value, _) => input.coerce(value, &rules).map_err(bad)?,
        };
    }
    match &dependency.for_each {
        Some(each) => find(&each.input).map(drop),
        None => Ok(()),
    }
}

/// What an alias gives: the type of the task that it stands for. None when that is not in reach.
pub(crate) fn alias_type(root: &Workflow, owner: &Workflow, task: &Task) -> Option<ResultType> {
    let (mut owner, mut task) = (owner, task);
    for _ in 0..MAX_DEPTH {
        if task.body != Body::Alias {
            return Some(task.result);
        }
        let (workflow, next) = root.target(owner, task.depends.first()?)?;
        (owner, task) = (workflow, next);
    }
    None
}

/// Completes a workflow whose tasks depend on those of others: these are found by `load`, and what could not be checked
/// without them is checked.
///
/// # Errors
/// A workflow or task that is not there, inputs that do not fit, and circles that lead through several files.
pub(crate) fn link(
    mut root: Workflow,
    digests: Digests,
    load: &mut dyn FnMut(&str) -> Result<Arc<Workflow>, WorkflowError>,
) -> Result<Workflow, WorkflowError> {
    root.reach.digests = digests;
    let mut others: BTreeMap<String, Arc<Workflow>> = BTreeMap::new();
    let mut open = foreign(&root);
    while let Some((name, place)) = open.pop() {
        if name == root.name || others.contains_key(&name) {
            continue;
        }
        let loaded = load(&name).map_err(|e| match e {
            WorkflowError::Unknown { .. } => place.error(e.to_string()).into(),
            other => other,
        })?;
        open.extend(foreign(&loaded));
        others.insert(name, loaded);
    }
    if others.is_empty() {
        return Ok(root);
    }
    root.reach.others = others;
    let own = complete(&root, &root)?;
    let mut completed = BTreeMap::new();
    for (name, workflow) in &root.reach.others {
        let mut workflow = Workflow::clone(workflow);
        workflow.tasks = complete(&root, &workflow)?.into();
        completed.insert(name.clone(), Arc::new(workflow));
    }
    circles(&root)?;
    root.tasks = own.into();
    root.reach.others = completed;
    Ok(root)
}

/// Where a dependency is declared.
struct Place {
    file: std::path::PathBuf,
    line: usize,
    key: String,
}

impl Place {
    fn of(workflow: &Workflow, task: &Task, at: usize) -> Self {
        let key = match task.body {
            Body::Alias => format!("tasks.{}.alias", task.name),
            _ => format!("tasks.{}.depends.[{at}]", task.name),
        };
        Self {
            file: workflow.dir.join("workflow.yaml"),
            line: task.depends.get(at).map_or(1, |d| d.line),
            key,
        }
    }

    fn error(&self, message: impl Into<String>) -> YamlError {
        YamlError {
            file: self.file.clone(),
            line: self.line,
            key: self.key.clone(),
            message: message.into(),
        }
    }
}

/// The other workflows that one names.
fn foreign(workflow: &Workflow) -> Vec<(String, Place)> {
    let mut found = Vec::new();
    for task in &workflow.tasks {
        for (at, dependency) in task.depends.iter().enumerate() {
            if let Some(name) = &dependency.workflow {
                found.push((name.clone(), Place::of(workflow, task, at)));
            }
        }
    }
    found
}

/// The tasks of a workflow, with what others were needed for.
fn complete(root: &Workflow, owner: &Workflow) -> Result<Vec<Arc<Task>>, YamlError> {
    let mut tasks = Vec::new();
    for task in &owner.tasks {
        let mut new = Task::clone(task);
        for (at, dependency) in new.depends.iter_mut().enumerate() {
            if dependency.workflow.is_none() {
                continue;
            }
            let place = Place::of(owner, task, at);
            let Some((workflow, target)) = root.target(owner, dependency) else {
                let name = dependency.workflow.clone().unwrap_or_default();
                let of = root.reach.others.get(&name).map_or(root, |w| w);
                let error = of.task(&dependency.task).err();
                return Err(place.error(error.map(|e| e.to_string()).unwrap_or_default()));
            };
            let inputs = root.inputs_of(workflow, target, &|_, _| false);
            settle(dependency, &inputs, &owner.dir)
                .map_err(|(name, reason)| place.error(format!("inputs.{name}: {reason}")))?;
        }
        if new.body == Body::Alias
            && let Some(kind) = alias_type(root, owner, task)
        {
            new.result = kind;
        }
        tasks.push(Arc::new(new));
    }
    Ok(tasks)
}

/// No way leads back to where it started. A workflow is known by its folder, however it was named.
fn circles(root: &Workflow) -> Result<(), YamlError> {
    let mut walk = Walk {
        root,
        way: Vec::new(),
        depths: HashMap::new(),
    };
    for task in &root.tasks {
        walk.task(root, task)?;
    }
    Ok(())
}

struct Walk<'a> {
    root: &'a Workflow,
    way: Vec<(&'a Workflow, &'a Task)>,
    depths: HashMap<(&'a Path, &'a str), usize>,
}

impl<'a> Walk<'a> {
    fn task(&mut self, owner: &'a Workflow, task: &'a Task) -> Result<usize, YamlError> {
        let key = (owner.dir.as_path(), task.name.as_str());
        if let Some(depth) = self.depths.get(&key) {
            return Ok(*depth);
        }
        let is_key = |(w, t): &(&Workflow, &Task)| w.dir == owner.dir && t.name == task.name;
        if let Some(at) = self.way.iter().position(is_key) {
            let circle = self.way[at..].iter().copied().chain([(owner, task)]);
            let names: Vec<String> = circle.map(|(w, t)| format!("{}/{}", w.name, t.name)).collect();
            let mut files: Vec<String> = Vec::new();
            for (workflow, _) in &self.way[at..] {
                let file = workflow.dir.join("workflow.yaml").display().to_string();
                if !files.contains(&file) {
                    files.push(file);
                }
            }
            let message = format!(
                "tasks depend on each other in a circle: {} ({})",
                names.join(" → "),
                files.join(", ")
            );
            let (workflow, first) = self.way[at];
            return Err(Place::of(workflow, first, 0).error(message));
        }
        self.way.push((owner, task));
        let mut depth = 1;
        for dependency in &task.depends {
            if let Some((workflow, next)) = self.root.target(owner, dependency) {
                depth = depth.max(1 + self.task(workflow, next)?);
            }
        }
        self.way.pop();
        if depth > MAX_DEPTH || self.way.len() + depth > MAX_DEPTH {
            return Err(Place::of(owner, task, 0).error(format!("more than {MAX_DEPTH} tasks in a chain")));
        }
        self.depths.insert(key, depth);
        Ok(depth)
    }
}
