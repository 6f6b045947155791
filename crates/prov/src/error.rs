//! Why nothing can be traced.

use std::path::PathBuf;

use decanus_base::{Diagnostic, ErrorKind};

/// Why there is no graph at all. What goes wrong further on is among its problems.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProvError {
    /// There is no such file.
    #[error("{}: no such chat", .0.display())]
    NoChat(PathBuf),
    /// The chat is there but can't be read; the text names it.
    #[error("{0}")]
    Unreadable(String),
    /// There is no record of such a job.
    #[error("{}: no record of such a job", .0.display())]
    NoJob(PathBuf),
}

impl Diagnostic for ProvError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::NoChat(_) | Self::NoJob(_) => ErrorKind::Usage,
            Self::Unreadable(_) => ErrorKind::Config,
        }
    }
}
