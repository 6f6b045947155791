//! What happens during a run, for whoever watches: the terminal, `--events`, a caller of the library.

use std::sync::Arc;

use decanus_chat::{FunctionCall, FunctionCallOutput, Usage};
use serde_json::Value;

/// Something that happened.
#[derive(Debug, Clone)]
pub enum Event {
    /// More text of the answer. `template` when a template states it and no model.
    Text {
        /// The text.
        text: String,
        /// Whether a template wrote it.
        template: bool,
    },
    /// More of the model's reasoning.
    Reasoning(String),
    /// A request to the model begins: round, counted from 1.
    Round(u32),
    /// The answer comes from the cache; nothing was sent.
    Cached,
    /// A call of the model is taken up: its tool is about to be called, or it is answered without.
    Call(FunctionCall),
    /// The call's output, whoever it comes from.
    Output(FunctionCallOutput),
    /// Token counts of one request.
    Usage(Usage),
    /// A job was started or found: its path, and whether its stored result was used.
    Job {
        /// Path of the result.
        path: String,
        /// Whether it was there already.
        reused: bool,
    },
    /// How far a run of several jobs is.
    Jobs {
        /// How many are done.
        done: usize,
        /// How many are needed, as far as is known.
        total: usize,
        /// What runs, `WORKFLOW/TASK` each; the first few.
        running: Vec<String>,
    },
    /// How far a call is.
    Progress {
        /// The call's id.
        id: String,
        /// In words.
        text: String,
        /// The part that is done, 0 to 1, where that is known.
        part: Option<f64>,
    },
    /// How a choice was made.
    Explain(Value),
    /// Something the user should know; the run goes on.
    Warning(String),
}

/// Receives events. It is called from several tasks and must not block for long.
pub type EventSink = Arc<dyn Fn(&Event) + Send + Sync>;
