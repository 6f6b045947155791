//! Tasks as tools, and workflows as a place that tools come from.

use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use decanus_base::{Diagnostic, ErrorKind, Project};
use decanus_chat::ToolDefinition;
use decanus_tool::{
    Args, JobRef, Permissions, SourceError, Tool, ToolContext, ToolError, ToolErrorClass, ToolOutput, ToolSource,
};

use crate::definition::{Task, Workflow};
use crate::error::{JobError, WorkflowError};
use crate::input::PathRules;
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
}

impl PathPolicy {
    /// The policy of a project.
    pub fn of(project: &Project, allowed: Vec<PathBuf>) -> Self {
        Self {
            working_dir: project.working_dir.clone(),
            root: project.root.clone(),
            allowed,
        }
    }

    /// The rules for values from a model, which may also name what its run allows, or from a user.
    pub fn rules(&self, from_model: bool, allowed: &Permissions) -> PathRules {
        match from_model {
            true => {
                let all: Vec<PathBuf> = self.allowed.iter().chain(allowed.readable()).cloned().collect();
                PathRules::confined(&self.root, &all)
            }
            false => PathRules::trusted(&self.working_dir),
        }
    }
}

/// A task that can be called. Its result is a job's.
pub struct TaskTool {
    definition: ToolDefinition,
    workflow: Arc<Workflow>,
    task: String,
    store: JobStore,
    paths: PathPolicy,
}

impl TaskTool {
    /// The tool of a task.
    pub fn new(workflow: Arc<Workflow>, task: &Task, store: JobStore, paths: PathPolicy) -> Self {
        Self {
            definition: workflow.tool_definition(task),
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

    async fn call(&self, mut args: Args, cx: &ToolContext) -> Result<ToolOutput, ToolError> {
        let mut notes = Vec::new();
        args.retain(|name, _| {
            let known = self.definition.properties().any(|(n, _)| n == name);
            if !known {
                notes.push(format!("there is no input `{name}`; it was left out"));
            }
            known
        });
        let rules = self.paths.rules(cx.from_model, cx.run.permissions());
        let workflow = self.workflow.clone();
        let task = self.task.clone();
        // Files are read for the job's identity.
        let made = tokio::task::spawn_blocking(move || workflow.job(&task, &args, &rules, None)).await;
        let job = made.map_err(|e| ToolError::Fatal(format!("the thread of the job ended: {e}")))?;
        let job = job.map_err(|e| match e.kind() {
            ErrorKind::Usage => ToolError::argument(e.to_string()),
            _ => ToolError::respond(ToolErrorClass::Tool, e.to_string()),
        })?;
        let run = cx.run.clone();
        let options = RunOptions {
            cancel: cx.cancel.clone(),
            events: Some(Arc::new(move |event| run.emit(event.clone()))),
            ..RunOptions::default()
        };
        let done = self.store.run(job, options).await.map_err(respond)?;
        let path = done.job.path.clone();
        let reused = done.reused;
        let value = tokio::task::spawn_blocking(move || done.job.value()).await;
        let value = value
            .map_err(|e| ToolError::Fatal(format!("the thread of the job ended: {e}")))?
            .map_err(respond)?;
        Ok(ToolOutput {
            value,
            job: Some(JobRef { path, reused }),
            notes,
            ..ToolOutput::default()
        })
    }
}

fn respond(error: JobError) -> ToolError {
    let class = match &error {
        JobError::TimedOut { .. } => ToolErrorClass::Timeout,
        JobError::Cancelled { .. } => ToolErrorClass::Interrupted,
        JobError::Failed { .. } | JobError::NoResult { .. } | JobError::Store(_) | JobError::Executor(_) => {
            ToolErrorClass::Job
        }
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
