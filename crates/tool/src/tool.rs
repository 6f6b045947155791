//! Something a model can call.

use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use decanus_chat::ToolDefinition;
use serde_json::{Map, Value};

use crate::background::PendingJob;
use crate::event::Event;
use crate::run::{Identity, Run};
use crate::state::State;

/// Arguments of a call, checked against the tool's schema.
pub type Args = Map<String, Value>;

/// A tool. Workflow tasks, built-ins and closures are all this.
#[async_trait]
pub trait Tool: Send + Sync {
    /// What models are told of it, and how it may be called.
    fn definition(&self) -> &ToolDefinition;

    /// Whether this call may destroy or send something, so that the user is asked for it.
    fn is_destructive(&self, _args: &Args) -> bool {
        self.definition().destructive
    }

    /// Runs it. `args` have passed the schema; unknown names were dropped, forced inputs are set.
    ///
    /// # Errors
    /// [`ToolError::Respond`] goes to the model as the output; [`ToolError::Fatal`] ends the run.
    async fn call(&self, args: Args, cx: &ToolContext) -> Result<ToolOutput, ToolError>;

    /// Parameters of its schema that are no inputs but say how to call it: they stay when its inputs are narrowed.
    fn options(&self) -> &[&'static str] {
        &[]
    }

    /// Arguments that it takes although its schema does not have them, as they are sent.
    fn hidden_options(&self) -> &[&'static str] {
        &[]
    }

    /// The tool whose call is the work behind this one's pending jobs; `None` for a tool that never answers with one.
    /// See [`crate::BackgroundTool`].
    fn work(&self) -> Option<Arc<dyn Tool>> {
        None
    }
}

/// The facts of one call.
#[derive(Clone)]
pub struct ToolContext {
    /// The call's id.
    pub call_id: String,
    /// The run it belongs to. Its cancellation token ends the call too.
    pub run: Run,
    /// Ends this call: when the run ends, or when the call's time is up.
    pub cancel: tokio_util::sync::CancellationToken,
    /// The state of the session. What is written is committed when the tool has returned.
    pub state: State,
    /// Whether the call comes from a model, whose values are data, or was typed by the user.
    pub from_model: bool,
}

impl ToolContext {
    /// A context for a call outside of any dispatcher: tests, and tools that call tools.
    pub fn new(call_id: impl Into<String>, run: &Run) -> Self {
        Self {
            call_id: call_id.into(),
            run: run.clone(),
            cancel: run.cancel().child_token(),
            state: State::new(run.state().clone()),
            from_model: false,
        }
    }

    /// Who is asking, and in what.
    pub fn identity(&self) -> &Identity {
        self.run.identity()
    }

    /// Says how far the call is: in words, and as a part of the whole where that is known (0 to 1).
    pub fn progress(&self, text: impl Into<String>, part: Option<f64>) {
        self.run.emit(Event::Progress {
            id: self.call_id.clone(),
            text: text.into(),
            part: part.map(|p| p.clamp(0.0, 1.0)),
        });
    }
}

/// A picture or document that comes with a result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutputPart {
    /// Its media type.
    pub media_type: String,
    /// Its bytes.
    pub bytes: Vec<u8>,
}

/// A stored job behind a result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobRef {
    /// Absolute path of the result.
    pub path: PathBuf,
    /// Whether it was there already and nothing ran.
    pub reused: bool,
}

/// What a tool gives back.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct ToolOutput {
    /// The result. A text is given to the model as it is, anything else as JSON; null reads as `success`.
    pub value: Value,
    /// The job that made it. Whoever runs jobs tells of them itself, by [`crate::Event::Job`].
    pub job: Option<JobRef>,
    /// Pictures and documents. Each is kept in a file that the model is told of; models that can see get them.
    pub parts: Vec<OutputPart>,
    /// Set when the tool did what it could and the result is that it failed. Unlike an error that is returned in its
    /// place, what the tool has written to the state holds.
    pub error: Option<ToolErrorClass>,
    /// Things the model should know of the call besides the result (an argument was dropped, for instance).
    pub notes: Vec<String>,
    /// The job that goes on after this output: it is not the result yet.
    pub pending: Option<PendingJob>,
    /// What the machine-readable form shows beside the result.
    pub beside: Map<String, Value>,
}

impl ToolOutput {
    /// A result without more.
    pub fn new(value: impl Into<Value>) -> Self {
        Self {
            value: value.into(),
            ..Self::default()
        }
    }

    /// A result that says that the tool failed.
    pub fn failed(class: ToolErrorClass, message: impl Into<String>) -> Self {
        Self {
            value: Value::String(message.into()),
            error: Some(class),
            ..Self::default()
        }
    }

    /// An output that says no more than that a job has begun. The model is told its id, and how to ask for the result.
    pub fn pending(job: PendingJob) -> Self {
        Self {
            value: Value::Object(job.members()),
            job: Some(JobRef {
                path: job.path.clone(),
                reused: false,
            }),
            pending: Some(job),
            ..Self::default()
        }
    }

    /// An object as the result, whose members the machine-readable form also shows beside it.
    pub fn report(members: Map<String, Value>) -> Self {
        Self {
            value: Value::Object(members.clone()),
            beside: members,
            ..Self::default()
        }
    }

    /// The text that the model reads.
    pub fn text(&self) -> String {
        let mut text = match &self.value {
            Value::Null => "success".to_owned(),
            Value::String(s) => s.clone(),
            other => other.to_string(),
        };
        for note in &self.notes {
            text.push_str("\n[note: ");
            text.push_str(note);
            text.push(']');
        }
        text
    }
}

/// The kinds of failure that callers can tell apart by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ToolErrorClass {
    /// A missing or wrong argument, an unknown tool.
    Argument,
    /// No connection.
    Network,
    /// The server could not show that it is who it should be.
    Certificate,
    /// The time was up.
    Timeout,
    /// An HTTP status that is not a success.
    Http,
    /// A job failed.
    Job,
    /// Whatever else went wrong.
    Tool,
    /// The call did not run to its end since the run was stopped.
    Interrupted,
}

impl ToolErrorClass {
    /// The stable name in records and machine-readable output.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Argument => "ToolArgumentError",
            Self::Network => "ToolNetworkError",
            Self::Certificate => "ToolCertificateError",
            Self::Timeout => "ToolTimeoutError",
            Self::Http => "ToolHttpError",
            Self::Job => "JobError",
            Self::Tool => "ToolError",
            Self::Interrupted => "Interrupted",
        }
    }
}

/// Why a call gave no result.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ToolError {
    /// Goes to the model, which may try something else.
    #[error("{message}")]
    Respond {
        /// What kind of failure.
        class: ToolErrorClass,
        /// What went wrong, for the model and the user.
        message: String,
        /// The job that failed, if it was one.
        job: Option<PathBuf>,
    },
    /// Ends the run.
    #[error("{0}")]
    Fatal(String),
}

impl ToolError {
    /// A failure that the model is told of.
    pub fn respond(class: ToolErrorClass, message: impl Into<String>) -> Self {
        Self::Respond {
            class,
            message: message.into(),
            job: None,
        }
    }

    /// A wrong argument.
    pub fn argument(message: impl Into<String>) -> Self {
        Self::respond(ToolErrorClass::Argument, message)
    }
}
