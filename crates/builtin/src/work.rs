//! Work of a tool that waits for files or processes, on a thread where that is no harm.

use std::time::{Duration, Instant};

use decanus_tool::dispatch::interrupted;
use decanus_tool::{ToolContext, ToolError};
use tokio_util::sync::CancellationToken;

/// Tells work that nobody wants its result any more.
#[derive(Clone, Debug)]
pub(crate) struct Stop {
    token: CancellationToken,
    deadline: Option<Instant>,
}

impl Stop {
    /// The same, and also stopped after this time.
    pub fn after(self, time: Duration) -> Self {
        Self {
            deadline: Some(Instant::now() + time),
            ..self
        }
    }

    /// Whether the work is to end.
    pub fn is_set(&self) -> bool {
        self.is_cancelled() || self.is_late()
    }

    /// Whether the call was cancelled.
    pub fn is_cancelled(&self) -> bool {
        self.token.is_cancelled()
    }

    /// Whether the time is up.
    pub fn is_late(&self) -> bool {
        self.deadline.is_some_and(|d| Instant::now() >= d)
    }

    /// An error when the call was cancelled.
    pub fn check(&self) -> Result<(), ToolError> {
        match self.is_cancelled() {
            true => Err(interrupted("it was stopped before it was done")),
            false => Ok(()),
        }
    }
}

/// Runs work on a thread for it. The work is told to stop when the call is cancelled, and when it is dropped.
pub(crate) async fn blocking<T: Send + 'static>(
    cx: ToolContext,
    work: impl FnOnce(&ToolContext, Stop) -> Result<T, ToolError> + Send + 'static,
) -> Result<T, ToolError> {
    let token = cx.cancel.child_token();
    let _dropped = token.clone().drop_guard();
    let stop = Stop { token, deadline: None };
    let done = tokio::task::spawn_blocking(move || work(&cx, stop)).await;
    // A panic goes on where the dispatcher catches it.
    done.unwrap_or_else(|e| match e.try_into_panic() {
        Ok(panic) => std::panic::resume_unwind(panic),
        Err(_) => Err(interrupted("it was stopped before it was done")),
    })
}
