//! Calls that go on after their output: the model is told of a job, and asks for the result later.

use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use decanus_chat::{Effect, ToolDefinition};
use serde_json::{Map, Value};

use crate::tool::{Args, Tool, ToolContext, ToolError, ToolOutput};

/// The tool by which models ask for the result of a pending job.
pub const CHECK_TOOL: &str = "check_job_status";

/// A job that has begun.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PendingJob {
    /// A random UUID.
    pub id: String,
    /// Absolute path of the result that it will have.
    pub path: PathBuf,
    /// What the model is told of it.
    pub message: Option<String>,
}

impl PendingJob {
    /// `status`, `job_id` and `message`, as the model reads them and machines get them.
    pub fn members(&self) -> Map<String, Value> {
        let mut members = Map::new();
        members.insert("status".into(), "pending".into());
        members.insert("job_id".into(), self.id.clone().into());
        if let Some(message) = &self.message {
            members.insert("message".into(), message.clone().into());
        }
        members
    }
}

/// What has become of a job.
#[derive(Clone, Debug, PartialEq)]
pub enum JobState {
    /// There is no job of that id: there never was, or it is too long ago.
    Unknown,
    /// It has not ended.
    Pending,
    /// Its result.
    Completed(Value),
    /// Why it has none: `CLASS: what went wrong`, it was cancelled, its worker died.
    Failed(String),
}

/// Where calls go on in the background. The one that keeps them in the job store is `decanus_workflow::ToolJobs`.
#[async_trait]
pub trait Background: Send + Sync {
    /// Begins a job whose work is a call of `work`. It does not end with the run of `cx`.
    ///
    /// # Errors
    /// When it can't be stored, or nothing runs it.
    async fn start(&self, work: Arc<dyn Tool>, args: Args, cx: &ToolContext) -> Result<PendingJob, ToolError>;

    /// What has become of a job.
    ///
    /// # Errors
    /// When that can't be read.
    async fn check(&self, id: &str) -> Result<JobState, ToolError>;
}

/// A tool whose calls go on in the background: each is answered at once with a pending job, and the job's work is a call
/// of the tool within.
pub struct BackgroundTool {
    definition: ToolDefinition,
    work: Arc<dyn Tool>,
    jobs: Arc<dyn Background>,
}

impl BackgroundTool {
    /// The tool `work`, called in the background. A worker process finds it by its name, so the name must be one that a
    /// source of the project resolves.
    pub fn new(work: Arc<dyn Tool>, jobs: Arc<dyn Background>) -> Self {
        Self {
            definition: ToolDefinition {
                // Each call begins another job, whatever the work itself is.
                effect: Effect::Unknown,
                // The time limit is the work's.
                timeout: None,
                ..work.definition().clone()
            },
            work,
            jobs,
        }
    }
}

#[async_trait]
impl Tool for BackgroundTool {
    fn definition(&self) -> &ToolDefinition {
        &self.definition
    }

    async fn call(&self, args: Args, cx: &ToolContext) -> Result<ToolOutput, ToolError> {
        let job = self.jobs.start(self.work.clone(), args, cx).await?;
        Ok(ToolOutput::pending(job))
    }

    fn work(&self) -> Option<Arc<dyn Tool>> {
        Some(self.work.clone())
    }
}
