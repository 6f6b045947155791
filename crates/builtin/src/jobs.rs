//! Tools whose work goes on after their output, and the one that asks what became of it.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use decanus_chat::{Effect, ToolDefinition};
use decanus_tool::background::CHECK_TOOL;
use decanus_tool::{
    Args, Background, BackgroundTool, FnTool, JobState, SourceError, Tool, ToolContext, ToolError, ToolOutput,
    ToolSource,
};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::GROUP;

/// The longest sleep, in seconds.
const LONGEST: u64 = 3600;
/// The longest wait of a check, in seconds; well within the time that a tool has.
const LONGEST_WAIT: u64 = 60;

/// Arguments of `start_sleepy_job`.
#[derive(Deserialize, JsonSchema)]
pub struct Sleep {
    /// How long to sleep, in seconds.
    #[schemars(range(min = 0, max = 3600))]
    duration: i64,
    /// A text to give back at the end.
    message: String,
}

/// Sleeps.
fn sleepy() -> FnTool<Sleep> {
    FnTool::new(
        "start_sleepy_job",
        "Starts a job that sleeps for some seconds and then gives back a message. It gives a job id at once; \
         check_job_status gives the result.",
        |args: Sleep, cx: ToolContext| async move {
            let seconds = u64::try_from(args.duration).ok().filter(|s| *s <= LONGEST);
            let seconds = seconds.ok_or_else(|| {
                ToolError::argument(format!(
                    "duration must be from 0 to {LONGEST} seconds, not {}",
                    args.duration
                ))
            })?;
            tokio::select! {
                () = tokio::time::sleep(Duration::from_secs(seconds)) => {}
                () = cx.cancel.cancelled() => return Err(decanus_tool::dispatch::interrupted("it was stopped")),
            }
            Ok(format!("Slept for {seconds} seconds. Your message: {}", args.message))
        },
    )
    .example(
        "Start a sleepy job of 5 seconds that says done.",
        json!({"duration": 5, "message": "done"}),
    )
}

/// Arguments of `check_job_status`.
#[derive(Deserialize, JsonSchema)]
pub struct Check {
    /// The id that was given when the job was started.
    #[serde(rename = "job_id")]
    id: String,
    /// How long to wait for the job to end, in seconds. Without it the answer comes at once.
    #[schemars(range(min = 0, max = 60))]
    wait_seconds: Option<f64>,
}

/// Says what became of a job. Its result is a report.
struct CheckTool {
    definition: ToolDefinition,
    jobs: Arc<dyn Background>,
}

impl CheckTool {
    fn new(jobs: Arc<dyn Background>) -> Self {
        // Only the definition of this one is used.
        let shape = FnTool::new(
            CHECK_TOOL,
            "Says what became of a job that goes on in the background: pending, completed with its result, error, or \
             unknown.",
            |_: Check, _| async { Ok(()) },
        )
        .effect(Effect::ReadOnly)
        .volatile()
        .example(
            "Is the job 3f0c2f5e-8a57-4a3e-9d6b-5a1f0c7b9e21 done?",
            json!({"job_id": "3f0c2f5e-8a57-4a3e-9d6b-5a1f0c7b9e21"}),
        );
        Self {
            definition: shape.definition().clone(),
            jobs,
        }
    }
}

#[async_trait]
impl Tool for CheckTool {
    fn definition(&self) -> &ToolDefinition {
        &self.definition
    }

    async fn call(&self, args: Args, cx: &ToolContext) -> Result<ToolOutput, ToolError> {
        let Check { id, wait_seconds } = serde_json::from_value(Value::Object(args))
            .map_err(|e| ToolError::argument(format!("arguments for tool '{CHECK_TOOL}': {e}")))?;
        let id = id.trim().to_owned();
        if id.is_empty() {
            return Err(ToolError::argument("job_id is blank"));
        }
        let wait = wait_seconds.unwrap_or(0.0).clamp(0.0, LONGEST_WAIT as f64);
        let until = tokio::time::Instant::now() + Duration::from_secs_f64(wait);
        let state = loop {
            let state = self.jobs.check(&id).await?;
            let left = until.saturating_duration_since(tokio::time::Instant::now());
            if state != JobState::Pending || left.is_zero() {
                break state;
            }
            tokio::select! {
                () = tokio::time::sleep(left.min(Duration::from_millis(100))) => {}
                () = cx.cancel.cancelled() => break state,
            }
        };
        Ok(ToolOutput::report(report(&id, state)))
    }
}

fn report(id: &str, state: JobState) -> Map<String, Value> {
    let (word, more) = match state {
        JobState::Unknown => {
            let text = "There is no job of this id: it never was here, or it ended more than a day ago.";
            ("unknown", Some(("message", text.into())))
        }
        JobState::Pending => ("pending", None),
        // No result and a false one are told by the status.
        JobState::Completed(value) => ("completed", Some(("result", value))),
        JobState::Failed(why) => ("error", Some(("error_message", why.into()))),
    };
    let mut members = Map::new();
    members.insert("job_id".into(), id.into());
    members.insert("job_status".into(), word.into());
    members.extend(more.map(|(name, value)| (name.to_owned(), value)));
    members
}

/// The tools of jobs as a source.
pub struct JobTools {
    tools: Vec<Arc<dyn Tool>>,
}

impl JobTools {
    /// The tools over these jobs.
    pub fn new(jobs: Arc<dyn Background>) -> Self {
        Self {
            tools: vec![
                Arc::new(BackgroundTool::new(Arc::new(sleepy()), jobs.clone())),
                Arc::new(CheckTool::new(jobs)),
            ],
        }
    }
}

#[async_trait]
impl ToolSource for JobTools {
    fn scheme(&self) -> &str {
        GROUP
    }

    async fn list(&self) -> Result<Vec<(String, Arc<dyn Tool>)>, SourceError> {
        Ok(self.tools.iter().map(|t| (GROUP.to_owned(), t.clone())).collect())
    }

    async fn resolve(&self, spec: &str) -> Result<Option<Vec<(String, Arc<dyn Tool>)>>, SourceError> {
        let found = self.tools.iter().find(|t| t.definition().name == spec);
        Ok(found.map(|t| vec![(GROUP.to_owned(), t.clone())]))
    }

    async fn names(&self) -> Vec<String> {
        self.tools.iter().map(|t| t.definition().name.clone()).collect()
    }
}
