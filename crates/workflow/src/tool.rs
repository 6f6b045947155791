//! Tasks as tools, and workflows as a place that tools come from.

use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use decanus_base::{Diagnostic, ErrorKind, Project};
use decanus_chat::{Effect, ToolDefinition};
use decanus_tool::{
    Args, JobRef, OutputPart, Permissions, SourceError, Tool, ToolContext, ToolError, ToolErrorClass, ToolOutput,
    ToolSource,
};
use serde_json::{Value, json};

use crate::aside::Executed;
use crate::definition::{Task, Workflow};
use crate::error::{JobError, WorkflowError};
use crate::input::boolean;
use crate::job::{Job, JobOptions};
use crate::path_rules::PathRules;
use crate::runner::RunOptions;
use crate::store::JobStore;
use crate::workflows::Workflows;

/// Where the paths in file inputs start from and may lead, for users and for models.
#[derive(Clone, Debug)]
pub struct PathPolicy {
    /// What a user's relative paths are relative to.
    pub working_dir: PathBuf,
    /// The project's root: what a model's paths are relative to and stay inside of.
    pub root: PathBuf,
    /// Other paths that a model may name.
    pub allowed: Vec<PathBuf>,
    /// What a model may not name, although it is inside: the user's credentials.
    pub closed: Vec<PathBuf>,
}

impl PathPolicy {
    /// The policy of a project.
    pub fn of(project: &Project, allowed: Vec<PathBuf>) -> Self {
        Self {
            working_dir: project.working_dir.clone(),
            root: project.root.clone(),
            allowed,
            closed: project.credentials(),
        }
    }

    /// The rules for values from a model, which may also name what its run allows, or from a user.
    pub fn rules(&self, from_model: bool, allowed: &Permissions) -> PathRules {
        match from_model {
            true => {
                let all: Vec<PathBuf> = self.allowed.iter().chain(allowed.readable()).cloned().collect();
                PathRules::confined(&self.root, &all).without(self.closed.clone())
            }
            false => PathRules::trusted(&self.working_dir),
        }
    }
}

/// Where the result is to be said, in its place.
const RETURN_PATH: &str = "return_path";
/// The part of the job's name that people choose.
const JOBNAME: &str = "jobname";
/// `exec` for a call of which nothing is kept.
const EXEC_TYPE: &str = "exec_type";
/// Whether a job may run once more within itself.
const ALLOW_RECURSIVE: &str = "allow_recursive";

/// A task that can be called. Its result is a job's, unless the workflow offers it as one of which nothing is kept.
pub struct TaskTool {
    definition: ToolDefinition,
    /// What is said of a call besides the inputs, and is no input of the task: shown to models, and not.
    options: Vec<&'static str>,
    hidden: Vec<&'static str>,
    is_exec: bool,
    workflow: Arc<Workflow>,
    task: String,
    store: JobStore,
    paths: PathPolicy,
}

impl TaskTool {
    /// The tool of a task.
    pub fn new(workflow: Arc<Workflow>, task: &Task, store: JobStore, paths: PathPolicy) -> Self {
        let mut definition = workflow.tool_definition(task);
        let is_exec = workflow.exec.contains(&task.name);
        let is_free = |name: &&str| !definition.properties().any(|(input, _)| input == name);
        let shown = (!is_exec).then_some(RETURN_PATH);
        let options: Vec<&str> = shown.into_iter().filter(is_free).collect();
        let hidden = [JOBNAME, EXEC_TYPE, ALLOW_RECURSIVE];
        let hidden = hidden.into_iter().filter(is_free).collect();
        if is_exec {
            definition.effect = Effect::Idempotent;
        }
        if let Some(Value::Object(properties)) = definition.parameters.get_mut("properties") {
            for name in &options {
                let said = "give the path of the file that holds the result, in place of the result";
                properties.insert((*name).into(), json!({"type": "boolean", "description": said}));
            }
        }
        Self {
            definition,
            options,
            hidden,
            is_exec,
            task: task.name.clone(),
            workflow,
            store,
            paths,
        }
    }
}

#[async_trait]
impl Tool for TaskTool {
    fn definition(&self) -> &ToolDefinition {
        &self.definition
    }

    fn options(&self) -> &[&'static str] {
        &self.options
    }

    fn hidden_options(&self) -> &[&'static str] {
        &self.hidden
    }

    async fn call(&self, mut args: Args, cx: &ToolContext) -> Result<ToolOutput, ToolError> {
        let asked = Asked::take(&mut args, self)?;
        let mut notes = Vec::new();
        args.retain(|name, _| {
            let known = self.definition.properties().any(|(n, _)| n == name);
            if !known {
                notes.push(format!("there is no input `{name}`; it was left out"));
            }
            known
        });
        let mut policy = self.paths.clone();
        // What earlier jobs gave may be an input of the next one, also when their folder is elsewhere.
        policy.allowed.push(self.store.dir().to_owned());
        let rules = policy.rules(cx.from_model, cx.run.permissions());
        let workflow = self.workflow.clone();
        let task = self.task.clone();
        let chosen = JobOptions {
            name: asked.name.clone(),
            ..JobOptions::default()
        };
        // Files are read for the job's identity.
        let made = tokio::task::spawn_blocking(move || workflow.job_with(&task, &args, &rules, &chosen)).await;
        let job = made.map_err(|e| ToolError::Fatal(format!("the thread of the job ended: {e}")))?;
        let job = job.map_err(|e| match e.kind() {
            ErrorKind::Usage => ToolError::argument(e.to_string()),
            _ => ToolError::respond(ToolErrorClass::Tool, e.to_string()),
        })?;
        let run = cx.run.clone();
        let options = RunOptions {
            cancel: cx.cancel.clone(),
            events: Some(Arc::new(move |event| run.emit(event.clone()))),
            allow_recursive: asked.allow_recursive,
            ..RunOptions::default()
        };
        let is_above = options.above.contains(&self.store.path(&job));
        if asked.exec || (asked.allow_recursive && is_above) {
            let done = self.store.exec(job, options).await.map_err(respond)?;
            return Ok(executed(done, notes));
        }
        self.stored(job, options, asked.return_path, notes).await
    }
}

impl TaskTool {
    /// The output of a call that is a job.
    async fn stored(
        &self,
        job: Arc<Job>,
        options: RunOptions,
        return_path: bool,
        notes: Vec<String>,
    ) -> Result<ToolOutput, ToolError> {
        let done = self.store.run(job, options).await.map_err(respond)?;
        let path = done.job.path.clone();
        let reused = done.reused;
        let value = match return_path {
            true => path.to_string_lossy().into_owned().into(),
            false => tokio::task::spawn_blocking(move || done.job.value())
                .await
                .map_err(|e| ToolError::Fatal(format!("the thread of the job ended: {e}")))?
                .map_err(respond)?,
        };
        Ok(ToolOutput {
            value,
            job: Some(JobRef { path, reused }),
            notes,
            ..ToolOutput::default()
        })
    }
}

/// What a call says besides the inputs.
struct Asked {
    name: Option<String>,
    exec: bool,
    return_path: bool,
    allow_recursive: bool,
}

impl Asked {
    /// Takes it out of a call's arguments.
    fn take(args: &mut Args, tool: &TaskTool) -> Result<Self, ToolError> {
        let mut option = |name: &str| {
            let is_option = tool.options.iter().chain(&tool.hidden).any(|o| *o == name);
            let value = is_option.then(|| args.remove(name)).flatten();
            value.filter(|v| !v.is_null())
        };
        let bad = |name: &str, why: String| {
            ToolError::argument(format!("Parameter '{name}' for tool '{}': {why}", tool.definition.name))
        };
        let name = match option(JOBNAME) {
            None => None,
            Some(Value::String(name)) => Some(name).filter(|n| !n.trim().is_empty()),
            Some(other) => return Err(bad(JOBNAME, format!("expected a text, not {other}"))),
        };
        let exec = match option(EXEC_TYPE) {
            None => tool.is_exec,
            Some(word) if word == "exec" => true,
            Some(word) if word == "job" => tool.is_exec,
            Some(other) => return Err(bad(EXEC_TYPE, format!("expected `exec` or `job`, not {other}"))),
        };
        let mut truth = |name: &str| match option(name) {
            None => Ok(false),
            Some(value) => match boolean(&value) {
                Ok(value) => Ok(value == true),
                Err(why) => Err(bad(name, why)),
            },
        };
        Ok(Self {
            name,
            exec,
            return_path: truth(RETURN_PATH)?,
            allow_recursive: truth(ALLOW_RECURSIVE)?,
        })
    }
}

/// The output of a call of which nothing is kept.
fn executed(done: Executed, notes: Vec<String>) -> ToolOutput {
    let part = |bytes| OutputPart {
        media_type: "application/octet-stream".into(),
        bytes,
    };
    ToolOutput {
        value: done.value,
        parts: done.bytes.map(part).into_iter().collect(),
        notes,
        ..ToolOutput::default()
    }
}

fn respond(error: JobError) -> ToolError {
    let class = match &error {
        JobError::TimedOut { .. } => ToolErrorClass::Timeout,
        JobError::Cancelled { .. } => ToolErrorClass::Interrupted,
        JobError::Failed { .. }
        | JobError::Recursive { .. }
        | JobError::TooDeep { .. }
        | JobError::NoResult { .. }
        | JobError::Store(_)
        | JobError::Executor(_) => ToolErrorClass::Job,
    };
    ToolError::Respond {
        class,
        message: error.to_string(),
        job: error.path().cloned(),
    }
}

/// The project's workflows as a source of tools: `WORKFLOW` stands for its exported tasks (all if none is exported),
/// `WORKFLOW/TASK` for any one.
pub struct WorkflowSource {
    workflows: Workflows,
    store: JobStore,
    paths: PathPolicy,
}

impl WorkflowSource {
    /// The source over these workflows; jobs go to `store`.
    pub fn new(workflows: Workflows, store: JobStore, paths: PathPolicy) -> Self {
        Self {
            workflows,
            store,
            paths,
        }
    }

    fn tool(&self, workflow: &Arc<Workflow>, task: &Task) -> (String, Arc<dyn Tool>) {
        let tool = TaskTool::new(workflow.clone(), task, self.store.clone(), self.paths.clone());
        (workflow.name.clone(), Arc::new(tool))
    }

    fn tools(&self, workflow: &Arc<Workflow>) -> Vec<(String, Arc<dyn Tool>)> {
        workflow
            .exported()
            .into_iter()
            .map(|task| self.tool(workflow, task))
            .collect()
    }
}

fn source_error(e: WorkflowError) -> SourceError {
    match e.kind() {
        ErrorKind::Usage => SourceError::Unknown(e.to_string()),
        _ => SourceError::Config(e.to_string()),
    }
}

#[async_trait]
impl ToolSource for WorkflowSource {
    fn scheme(&self) -> &str {
        "workflow"
    }

    /// One workflow with a fault does not hide the others: it is left out, with a line in the log. `resolve` says what
    /// is wrong with it.
    async fn list(&self) -> Result<Vec<(String, Arc<dyn Tool>)>, SourceError> {
        let mut tools = Vec::new();
        for listed in self.workflows.list() {
            match listed.workflow {
                Ok(workflow) => tools.extend(self.tools(&workflow)),
                Err(e) => tracing::warn!(workflow = listed.name, "{e}"),
            }
        }
        Ok(tools)
    }

    async fn resolve(&self, spec: &str) -> Result<Option<Vec<(String, Arc<dyn Tool>)>>, SourceError> {
        let (name, task) = match spec.split_once('/') {
            Some((name, task)) => (name, Some(task)),
            None => (spec, None),
        };
        if !self.workflows.has(name) {
            return Ok(None);
        }
        let workflow = self.workflows.load(name).map_err(source_error)?;
        match task {
            None => Ok(Some(self.tools(&workflow))),
            Some(task) => {
                let task = workflow.task(task).map_err(source_error)?;
                Ok(Some(vec![self.tool(&workflow, task)]))
            }
        }
    }

    async fn names(&self) -> Vec<String> {
        let mut names = Vec::new();
        for listed in self.workflows.list() {
            names.push(listed.name.clone());
            if let Ok(workflow) = &listed.workflow {
                names.extend(workflow.tasks.iter().map(|t| format!("{}/{}", listed.name, t.name)));
            }
        }
        names
    }
}
