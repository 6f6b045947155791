//! What looks at calls before and after they run.

use async_trait::async_trait;
use decanus_chat::FunctionCall;

use crate::tool::{Args, ToolContext, ToolError, ToolOutput};

/// What is to become of a call.
#[derive(Debug, Clone, PartialEq)]
pub enum Decision {
    /// It runs as it is.
    Allow,
    /// It runs with other arguments, which have to fit the tool's schema as those of the model do.
    Change(Args),
    /// It does not run: the model is told why.
    Refuse(String),
    /// It does not run: this is its output.
    Answer(Box<ToolOutput>),
}

/// Looks at every call, in the order in which hooks were added; the first that does not allow decides.
#[async_trait]
pub trait ToolHook: Send + Sync {
    /// Before a call: its arguments have passed the schema.
    async fn before(&self, _call: &FunctionCall, _args: &Args, _cx: &ToolContext) -> Decision {
        Decision::Allow
    }

    /// After a call, whatever came of it; what it gives back takes the result's place.
    async fn after(
        &self,
        _call: &FunctionCall,
        result: Result<ToolOutput, ToolError>,
        _cx: &ToolContext,
    ) -> Result<ToolOutput, ToolError> {
        result
    }
}

/// Answers calls of tools that nobody offered: the caller's own way to run them, asked first in every round.
#[async_trait]
pub trait Fallback: Send + Sync {
    /// The call's result, or `None` when it does not know the tool either.
    async fn call(&self, call: &FunctionCall, cx: &ToolContext) -> Option<Result<ToolOutput, ToolError>>;
}
