//! Why a run ended without an answer.

use decanus_backend::BackendError;
use decanus_base::{Diagnostic, ErrorKind};
use decanus_chat::StoreError;
use decanus_chat::strategy::TooLong;
use decanus_tool::LimitReached;

/// A run that failed. What was done so far is in the outcome that comes with it, and in the chat.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// The model could not be asked, or its answer is none.
    #[error("{message}")]
    Backend {
        /// The kind of the backend's error.
        kind: ErrorKind,
        /// Its words.
        message: String,
        /// What can be done.
        hints: Vec<String>,
    },
    /// Something that the chat asks for before its question could not be had.
    #[error("{message}")]
    Action {
        /// The kind of what went wrong.
        kind: ErrorKind,
        /// What went wrong, with the line of the chat.
        message: String,
        /// What can be done.
        hints: Vec<String>,
    },
    /// The model said nothing at all, twice.
    #[error("{0} gave an empty answer, twice")]
    Empty(String),
    /// The answer has not the form that was asked for, also when the model was told so.
    #[error("the answer does not fit the format: {0}")]
    Schema(String),
    /// A limit was reached.
    #[error("{0}")]
    Limit(LimitReached),
    /// The chat could not be written.
    #[error("{message}")]
    Store {
        /// The kind of the store's error.
        kind: ErrorKind,
        /// Its words.
        message: String,
        /// What can be done.
        hints: Vec<String>,
    },
    /// A tool said that the run can't go on.
    #[error("tool {name} ended the run: {message}")]
    Tool {
        /// The tool.
        name: String,
        /// Its words.
        message: String,
    },
    /// The run was cancelled.
    #[error("interrupted")]
    Interrupted,
}

impl AgentError {
    /// The name of the limit that was reached, if one was.
    pub fn limit(&self) -> Option<&'static str> {
        match self {
            Self::Limit(limit) => Some(limit.name()),
            _ => None,
        }
    }
}

impl From<BackendError> for AgentError {
    fn from(e: BackendError) -> Self {
        match e {
            BackendError::Cancelled => Self::Interrupted,
            e => Self::Backend {
                kind: e.kind(),
                message: e.to_string(),
                hints: e.hints(),
            },
        }
    }
}

impl From<StoreError> for AgentError {
    fn from(e: StoreError) -> Self {
        Self::Store {
            kind: e.kind(),
            message: e.to_string(),
            hints: e.hints(),
        }
    }
}

impl From<TooLong> for AgentError {
    fn from(e: TooLong) -> Self {
        Self::Limit(LimitReached::Context {
            needed: e.needed,
            budget: e.budget,
        })
    }
}

impl From<LimitReached> for AgentError {
    fn from(e: LimitReached) -> Self {
        Self::Limit(e)
    }
}

impl Diagnostic for AgentError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Backend { kind, .. } | Self::Store { kind, .. } | Self::Action { kind, .. } => *kind,
            Self::Empty(_) => ErrorKind::Provider,
            Self::Schema(_) => ErrorKind::Schema,
            Self::Limit(_) => ErrorKind::Limit,
            Self::Tool { .. } => ErrorKind::Tool,
            Self::Interrupted => ErrorKind::Interrupted,
        }
    }

    fn hints(&self) -> Vec<String> {
        match self {
            Self::Backend { hints, .. } | Self::Store { hints, .. } | Self::Action { hints, .. } => hints.clone(),
            Self::Limit(limit) => limit.hints(),
            _ => Vec::new(),
        }
    }
}
