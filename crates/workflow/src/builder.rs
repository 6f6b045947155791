//! Workflows that are declared in Rust.

use std::any::TypeId;
use std::collections::HashMap;
use std::future::Future;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use decanus_base::names::did_you_mean;
use decanus_base::{Diagnostic, ErrorKind};
use decanus_chat::Example;
use decanus_tool::fn_tool::parameters;
use schemars::JsonSchema;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::check;
use crate::definition::{Body, Dependency, Reach, Setting, Task, Workflow};
use crate::graph;
use crate::input::{self, Input, InputType};
use crate::native::{NativeBody, TaskContext, TaskError};
use crate::parse::is_task_name;
use crate::result::ResultType;
use crate::slots::Resources;
use crate::tasks::Tasks;

/// Why a declaration is no workflow.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BuildError {
    /// A name that can't be one.
    #[error("`{0}` can't be a name here: letters, digits, `_` and `-`, a letter first, at most 64")]
    Name(String),
    /// Two tasks of one name.
    #[error("there are two tasks `{0}`")]
    Twice(String),
    /// Something about a task.
    #[error("task `{task}`: {reason}")]
    Task {
        /// The task.
        task: String,
        /// What is wrong with it.
        reason: String,
    },
    /// No task.
    #[error("a workflow needs at least one task")]
    Empty,
}

impl Diagnostic for BuildError {
    fn kind(&self) -> ErrorKind {
        ErrorKind::Config
    }
}

/// A workflow in the making; see [`Workflow::builder`].
#[must_use]
pub struct WorkflowBuilder {
    workflow: Workflow,
    tasks: Vec<TaskBuilder>,
}

impl Workflow {
    /// A workflow whose tasks are Rust functions. Their jobs are stored, shared and found again like all others.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use decanus_workflow::{JobStore, PathRules, RunOptions, TaskBuilder, Workflow};
    /// use schemars::JsonSchema;
    /// use serde::Deserialize;
    ///
    /// #[derive(Deserialize, JsonSchema)]
    /// struct Count {
    ///     /// The text whose words are counted.
    ///     text: String,
    /// }
    ///
    /// #[derive(Deserialize, JsonSchema)]
    /// struct Times {
    ///     /// What the count is multiplied by.
    ///     #[serde(default = "two")]
    ///     by: i64,
    /// }
    ///
    /// fn two() -> i64 {
    ///     2
    /// }
    ///
    /// let count = TaskBuilder::new("count", |inputs: Count, cx| {
    ///     cx.log("counting");
    ///     Ok(inputs.text.split_whitespace().count())
    /// });
    /// let times = TaskBuilder::new("times", |inputs: Times, cx| Ok(cx.dependency::<i64>("count")? * inputs.by));
    ///
    /// let workflow = Workflow::builder("Words")
    ///     .title("Counting words")
    ///     .task(count.description("How many words a text has.").version("1"))
    ///     .task(times.depends("count").version("1"))
    ///     .build()?;
    /// # let folder = tempfile::tempdir()?;
    /// # let folder = folder.path();
    /// let store = JobStore::new(folder);
    /// let inputs = serde_json::from_str(r#"{"text": "one two three"}"#)?;
    /// let job = Arc::new(workflow).job("times", &inputs, &PathRules::trusted("/"), None)?;
    /// let done = store.run_blocking(&job, &RunOptions::default())?;
    /// assert_eq!(done.job.value()?, 6);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn builder(name: impl Into<String>) -> WorkflowBuilder {
        WorkflowBuilder {
            workflow: Self {
                name: name.into(),
                dir: std::env::current_dir().unwrap_or_default(),
                title: String::new(),
                description: String::new(),
                introduction: String::new(),
                tasks: Tasks::default(),
                exports: Vec::new(),
                exec: Vec::new(),
                executor: None,
                reach: Reach::default(),
            },
            tasks: Vec::new(),
        }
    }
}

impl WorkflowBuilder {
    /// A name for people.
    pub fn title(mut self, title: impl Into<String>) -> Self {
        self.workflow.title = title.into();
        self
    }

    /// What it is for.
    pub fn description(mut self, description: impl Into<String>) -> Self {
        self.workflow.description = description.into();
        self
    }

    /// The folder that the paths of its own files (defaults, fixed inputs) start from; otherwise the working directory.
    pub fn dir(mut self, dir: impl Into<PathBuf>) -> Self {
        self.workflow.dir = dir.into();
        self
    }

    /// Adds a task. Tasks may depend on others that are added later.
    pub fn task(mut self, task: TaskBuilder) -> Self {
        self.tasks.push(task);
        self
    }

    /// A task that is offered as a tool. Without any, all of them are.
    pub fn export(mut self, task: impl Into<String>) -> Self {
        self.workflow.exports.push(task.into());
        self
    }

    /// A task that is offered as a tool too, and of whose calls nothing is kept.
    pub fn export_exec(mut self, task: impl Into<String>) -> Self {
        self.workflow.exec.push(task.into());
        self
    }

    /// The workflow.
    ///
    /// # Errors
    /// Names that can't be any, unknown dependencies, dependencies in a circle, inputs that can't be any.
    pub fn build(self) -> Result<Workflow, BuildError> {
        let Self { mut workflow, tasks } = self;
        if !is_task_name(&workflow.name) {
            return Err(BuildError::Name(workflow.name));
        }
        if tasks.is_empty() {
            return Err(BuildError::Empty);
        }
        for task in tasks {
            let task = task.finish(&workflow)?;
            if workflow.find(&task.name).is_some() {
                return Err(BuildError::Twice(task.name));
            }
            workflow.tasks.push(Arc::new(task));
        }
        let names = || workflow.tasks.iter().map(|t| t.name.as_str());
        let unknown = |name: &str| format!("there is no task `{name}`{}", did_you_mean(name, names()));
        for task in &workflow.tasks {
            if let Some(dependency) = task.depends.iter().find(|d| workflow.find(&d.task).is_none()) {
                return Err(fail(&task.name, unknown(&dependency.task)));
            }
        }
        let mut exports = workflow.exports.iter().chain(&workflow.exec);
        if let Some(name) = exports.find(|name| workflow.find(name).is_none()) {
            return Err(fail(name, unknown(name)));
        }
        check::dependencies(&workflow, &HashMap::new()).map_err(|e| fail(&workflow.name, e.message))?;
        let mut tasks = Vec::new();
        for task in &workflow.tasks {
            let mut task = Task::clone(task);
            for dependency in &mut task.depends {
                let inputs = workflow.find(&dependency.task).map(|t| workflow.recursive_inputs(t));
                graph::settle(dependency, &inputs.unwrap_or_default(), &workflow.dir)
                    .map_err(|(_, reason)| fail(&task.name, reason))?;
            }
            tasks.push(Arc::new(task));
        }
        workflow.tasks = tasks.into();
        Ok(workflow)
    }
}

fn fail(task: &str, reason: String) -> BuildError {
    BuildError::Task {
        task: task.to_owned(),
        reason,
    }
}

/// A task in the making, for [`WorkflowBuilder::task`].
#[must_use]
pub struct TaskBuilder {
    task: Task,
    native: NativeBody,
    schema: Value,
    kinds: Vec<(String, InputType)>,
    changes: Vec<(String, Change)>,
}

type Change = Box<dyn FnOnce(&mut Input)>;

impl TaskBuilder {
    /// A task that is this function. The type of its inputs gives their names, types, descriptions (doc comments) and
    /// defaults; a field that is an `Option` or has a default need not be given. What it returns is the result: its
    /// type follows from the Rust type, `String` is text, numbers, `bool` and lists of these are what they are, anything
    /// else is JSON.
    pub fn new<A, R, F>(name: impl Into<String>, function: F) -> Self
    where
        A: DeserializeOwned + JsonSchema + 'static,
        R: Serialize + 'static,
        F: Fn(A, &TaskContext) -> Result<R, TaskError> + Send + Sync + 'static,
    {
        let native = NativeBody::new("", move |inputs, cx| {
            let inputs = serde_json::from_value(Value::Object(inputs)).map_err(TaskError::Inputs)?;
            let result = function(inputs, cx)?;
            serde_json::to_value(result).map_err(|e| TaskError::failed(format!("its result is not JSON: {e}")))
        });
        Self {
            task: Task {
                name: name.into(),
                description: String::new(),
                inputs: Vec::new(),
                depends: Vec::new(),
                dynamic: None,
                result: result_of::<R>(),
                returns: String::new(),
                extension: None,
                body: Body::Native(native.clone()),
                timeout: None,
                resources: Resources::default(),
                retries: 0,
                executor: None,
                examples: Vec::new(),
            },
            native,
            schema: parameters::<A>(),
            kinds: Vec::new(),
            changes: Vec::new(),
        }
    }

    /// The same for an asynchronous function. It runs on a small runtime of its own, on the job's thread, and is dropped
    /// when its time is up or nobody wants the result any more.
    pub fn asynchronous<A, R, F, Fut>(name: impl Into<String>, function: F) -> Self
    where
        A: DeserializeOwned + JsonSchema + 'static,
        R: Serialize + 'static,
        F: Fn(A, TaskContext) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<R, TaskError>>,
    {
        Self::new(name, move |inputs, cx| cx.wait(function(inputs, cx.clone())))
    }

    /// What it does, for people and models.
    pub fn description(mut self, description: impl Into<String>) -> Self {
        self.task.description = description.into();
        self
    }

    /// The version of the function. It is part of the identity of its jobs: a new one makes them anew.
    pub fn version(mut self, version: impl Into<String>) -> Self {
        self.native = self.native.with_version(version.into());
        self
    }

    /// A task whose result this one uses ([`TaskContext::dependency`]). Its inputs become this task's too, by name.
    pub fn depends(self, task: impl Into<String>) -> Self {
        self.depends_with(task, Map::new())
    }

    /// The same with inputs that are set here and that no caller can change.
    pub fn depends_with(mut self, task: impl Into<String>, fixed: Map<String, Value>) -> Self {
        let set = |(name, value)| (name, Setting::Value(value));
        self.task.depends.push(Dependency {
            fixed: fixed.into_iter().map(set).collect(),
            ..Dependency::on(task)
        });
        self
    }

    /// The same with all that can be said of a dependency: a name of its own, one job for each item of a list, whether it
    /// may fail.
    pub fn depends_on(mut self, dependency: Dependency) -> Self {
        self.task.depends.push(dependency);
        self
    }

    /// What its jobs need while they run.
    pub fn resources(mut self, resources: Resources) -> Self {
        self.task.resources = resources;
        self
    }

    /// How often it is tried again when it fails.
    pub fn retries(mut self, retries: u32) -> Self {
        self.task.retries = retries;
        self
    }

    /// What its result is, where the Rust type does not say it: [`ResultType::File`] for a path, for instance.
    pub fn result(mut self, result: ResultType) -> Self {
        self.task.result = result;
        self
    }

    /// What its result is, in words.
    pub fn returns(mut self, returns: impl Into<String>) -> Self {
        self.task.returns = returns.into();
        self
    }

    /// The type of an input, where the Rust type does not say it: [`InputType::File`] for a path, for instance.
    pub fn input_type(mut self, input: impl Into<String>, kind: InputType) -> Self {
        self.kinds.push((input.into(), kind));
        self
    }

    /// Changes an input in any other way: makes it secret, or the one that names the job.
    pub fn input(mut self, input: impl Into<String>, change: impl FnOnce(&mut Input) + 'static) -> Self {
        self.changes.push((input.into(), Box::new(change)));
        self
    }

    /// How long it may take. A synchronous function must ask [`TaskContext::is_over`] itself.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.task.timeout = Some(timeout);
        self
    }

    /// A request in words and the arguments it should lead to, for small models.
    pub fn example(mut self, request: impl Into<String>, arguments: Map<String, Value>) -> Self {
        self.task.examples.push(Example {
            request: request.into(),
            arguments,
        });
        self
    }

    fn finish(self, workflow: &Workflow) -> Result<Task, BuildError> {
        let Self {
            mut task,
            native,
            schema,
            kinds,
            changes,
        } = self;
        if !is_task_name(&task.name) {
            return Err(BuildError::Name(task.name));
        }
        let name = task.name.clone();
        let fail = |reason: String| fail(&name, reason);
        let mut defaults = Vec::new();
        let required: Vec<&str> = members(&schema, "required").filter_map(Value::as_str).collect();
        for (field, property) in schema
            .get("properties")
            .and_then(Value::as_object)
            .into_iter()
            .flatten()
        {
            input::check_name(field).map_err(&fail)?;
            let mut input = of_property(field, property);
            input.required = required.contains(&field.as_str());
            if let Some((_, kind)) = kinds.iter().find(|(name, _)| name == field) {
                input.kind = *kind;
            }
            defaults.push(property.get("default").cloned().unwrap_or_default());
            task.inputs.push(input);
        }
        let known: Vec<String> = task.inputs.iter().map(|i| i.name.clone()).collect();
        let unknown = |name: &str| {
            let guess = did_you_mean(name, known.iter().map(String::as_str));
            format!("there is no input `{name}`{guess}")
        };
        if let Some((field, _)) = kinds.iter().find(|(name, _)| !known.contains(name)) {
            return Err(fail(unknown(field)));
        }
        for (field, change) in changes {
            match task.inputs.iter_mut().find(|i| i.name == field) {
                Some(input) => change(input),
                None => return Err(fail(unknown(&field))),
            }
        }
        for (input, default) in task.inputs.iter_mut().zip(defaults) {
            // One that was changed above is as it is to be.
            if input.default.is_null() {
                let value = input.coerce_default(&default, &workflow.dir);
                input.default = value.map_err(|e| fail(format!("the default of `{}`: {e}", input.name)))?;
            }
        }
        task.body = Body::Native(native);
        Ok(task)
    }
}

fn members<'a>(schema: &'a Value, name: &str) -> impl Iterator<Item = &'a Value> {
    schema.get(name).and_then(Value::as_array).into_iter().flatten()
}

/// The input that a member of a schema describes.
fn of_property(name: &str, schema: &Value) -> Input {
    // An Option of something is that or null.
    let is_null = |s: &&Value| s.get("type").is_some_and(|t| t == "null");
    let inner = members(schema, "anyOf").find(|s| !is_null(s)).unwrap_or(schema);
    let words = |schema: &Value| -> Vec<String> {
        let types = match schema.get("type") {
            Some(Value::Array(types)) => types.iter().filter_map(Value::as_str).map(str::to_owned).collect(),
            Some(word) => word.as_str().map(str::to_owned).into_iter().collect(),
            None => Vec::new(),
        };
        types.into_iter().filter(|t| t != "null").collect()
    };
    let one = |schema: &Value| match words(schema).as_slice() {
        [one] => one.clone(),
        _ => String::new(),
    };
    let options: Vec<Value> = members(inner, "enum").filter(|v| !v.is_null()).cloned().collect();
    // An enum with documented variants has its values one by one.
    let constants: Vec<Value> = members(inner, "oneOf")
        .filter_map(|s| s.get("const").cloned())
        .collect();
    let options = if options.is_empty() { constants } else { options };
    let are_plain = options.iter().all(|o| o.is_string() || o.is_number() || o.is_boolean());
    let kind = match one(inner).as_str() {
        _ if !options.is_empty() && are_plain => InputType::Select,
        "string" => InputType::String,
        "integer" => InputType::Integer,
        "number" => InputType::Float,
        "boolean" => InputType::Boolean,
        "array" => match inner.get("items").map(one).unwrap_or_default().as_str() {
            "string" => InputType::Array,
            "integer" => InputType::IntegerArray,
            "number" => InputType::FloatArray,
            "boolean" => InputType::BooleanArray,
            _ => InputType::Json,
        },
        _ => InputType::Json,
    };
    let mut input = Input::new(name, kind);
    let description = schema.get("description").or_else(|| inner.get("description"));
    input.description = description.and_then(Value::as_str).unwrap_or_default().to_owned();
    if matches!(kind, InputType::Integer | InputType::Float) {
        let bound = |name: &str| inner.get(name).and_then(Value::as_number).cloned();
        (input.minimum, input.maximum) = (bound("minimum"), bound("maximum"));
    }
    if kind == InputType::Select {
        input.options = options;
    }
    input
}

/// The result type that a Rust type stands for.
fn result_of<R: 'static>() -> ResultType {
    let own = TypeId::of::<R>();
    let is = |types: &[TypeId]| types.contains(&own);
    macro_rules! types {
        ($($t:ty),*) => { &[$(TypeId::of::<$t>()),*] };
    }
    if is(types![String, &'static str, ()]) {
        ResultType::Text
    } else if is(types![i8, i16, i32, i64, isize, u8, u16, u32, u64, usize]) {
        ResultType::Integer
    } else if is(types![f32, f64]) {
        ResultType::Float
    } else if is(types![bool]) {
        ResultType::Boolean
    } else if is(types![Vec<String>, Vec<&'static str>]) {
        ResultType::Array
    } else if is(types![Vec<i32>, Vec<i64>, Vec<u32>, Vec<u64>, Vec<usize>]) {
        ResultType::IntegerArray
    } else if is(types![Vec<f32>, Vec<f64>]) {
        ResultType::FloatArray
    } else if is(types![Vec<bool>]) {
        ResultType::BooleanArray
    } else {
        ResultType::Json
    }
}
