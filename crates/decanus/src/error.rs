//! The one error that leaves the library: what the rooms below said, with its kind.

use std::fmt;
use std::path::{Path, PathBuf};

use decanus_base::{Diagnostic, ErrorKind};

/// A failure, ready to be shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error {
    /// Which of the ten kinds.
    pub kind: ErrorKind,
    /// What failed, on what.
    pub message: String,
    /// What can be done.
    pub hints: Vec<String>,
    /// A file with what there was of a request that failed.
    pub snapshot: Option<PathBuf>,
}

impl Error {
    /// An error of this kind.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
            hints: Vec::new(),
            snapshot: None,
        }
    }

    /// A wrong call.
    pub fn usage(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Usage, message)
    }

    /// Adds what can be done.
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hints.push(hint.into());
        self
    }

    /// The same error as a fault of a file of settings.
    pub(crate) fn in_file(self, file: &Path) -> Self {
        Self {
            kind: ErrorKind::Config,
            message: format!("{}: {}", file.display(), self.message),
            ..self
        }
    }

    /// What a room's error says.
    pub fn of(error: &dyn Diagnostic) -> Self {
        Self {
            kind: error.kind(),
            message: error.to_string(),
            hints: error.hints(),
            snapshot: None,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}

impl<D: Diagnostic> From<D> for Error {
    fn from(error: D) -> Self {
        Self::of(&error)
    }
}
