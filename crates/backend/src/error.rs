//! What can go wrong between us and a provider.

use std::time::Duration;

use decanus_base::{Diagnostic, ErrorKind};

/// A failure of a request. No variant ever holds a key.
#[derive(Debug, Clone, thiserror::Error)]
pub enum BackendError {
    /// The endpoint's settings can't work: a key is missing, the URL is malformed, the model's file is not a model.
    #[error("{0}")]
    Config(String),
    /// No connection could be made, or it broke before an answer began.
    #[error("{target} can't be reached: {reason}")]
    Unreachable {
        /// URL without credentials.
        target: String,
        /// The cause in words.
        reason: String,
    },
    /// The provider answered with an error.
    #[error("{target} refused the request{}: {message}", in_brackets(.shown))]
    Refused {
        /// URL without credentials.
        target: String,
        /// HTTP status; for an error inside a stream the one that the error names, else 200.
        status: u16,
        /// What is said of it: the HTTP status, or for an error inside an answer the provider's code.
        shown: Option<String>,
        /// The provider's code or type of error, if it gave one.
        code: Option<String>,
        /// The provider's words.
        message: String,
        /// How long it asked us to wait.
        retry_after: Option<Duration>,
    },
    /// The request does not fit into the model's context.
    #[error("the conversation is too long for {model}: {message}")]
    TooLong {
        /// The model.
        model: String,
        /// Sizes, where known.
        message: String,
    },
    /// The answer is not what the protocol says.
    #[error("{target} sent an answer that can't be read: {reason}")]
    Malformed {
        /// URL without credentials.
        target: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The answer ended before it was complete.
    #[error("{target}: the answer ended before it was complete: {reason}")]
    Incomplete {
        /// URL without credentials, or the local model.
        target: String,
        /// What was missing.
        reason: String,
    },
    /// Nothing came for too long.
    #[error("{target} took too long: {what}")]
    TimedOut {
        /// URL without credentials, or the local model.
        target: String,
        /// Which limit, and how long it is.
        what: String,
    },
    /// The caller cancelled the request.
    #[error("the request was cancelled")]
    Cancelled,
    /// The machine failed us: memory, a thread, a file.
    #[error("{0}")]
    Internal(String),
}

fn in_brackets(shown: &Option<String>) -> String {
    shown.as_ref().map(|shown| format!(" ({shown})")).unwrap_or_default()
}

impl BackendError {
    /// Whether the same request may work at another endpoint: this one can't be reached, is too slow or overloaded, has
    /// no quota left, or broke off. A request that is wrong or too long, and settings that can't work, are none of this.
    pub fn another_may_answer(&self) -> bool {
        match self {
            Self::Refused { status, .. } => matches!(status, 408 | 409 | 429 | 500..=599) || self.is_transient(),
            _ => self.is_transient(),
        }
    }

    /// Whether the same request may work a little later.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Unreachable { .. } | Self::TimedOut { .. } | Self::Incomplete { .. } => true,
            Self::Refused { status, code, .. } => {
                // A quota or a bill is not cured by waiting.
                let lasting = ["insufficient_quota", "billing", "credit", "quota_exceeded"];
                let cured_by_waiting = !code.as_deref().is_some_and(|c| lasting.iter().any(|l| c.contains(l)));
                let overloaded = code.as_deref().is_some_and(|c| c.contains("overloaded"));
                (matches!(status, 408 | 409 | 429 | 500..=599) && cured_by_waiting) || overloaded
            }
            _ => false,
        }
    }
}

impl Diagnostic for BackendError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Config(_) => ErrorKind::Config,
            Self::Incomplete { .. } => ErrorKind::Incomplete,
            Self::Cancelled => ErrorKind::Interrupted,
            Self::Internal(_) => ErrorKind::Internal,
            _ => ErrorKind::Provider,
        }
    }

    fn hints(&self) -> Vec<String> {
        match self {
            Self::Unreachable { target, .. } if target.starts_with("ssh ") => vec![
                "check `server` and `ssh_options` of the endpoint: ssh must get there without asking for anything"
                    .into(),
            ],
            Self::Unreachable { .. } => vec!["check the endpoint's `url` and that the server runs".into()],
            Self::Refused { status: 401 | 403, .. } => vec!["check the endpoint's `key` or `key_env`".into()],
            Self::Refused { status: 404, .. } => vec!["check the endpoint's `url` and `model`".into()],
            _ => Vec::new(),
        }
    }
}
