//! The ten kinds of failure that a caller can tell apart, and the exit code of each.

use std::fmt;

/// What went wrong, seen from outside. Every room's error type maps to one of these; they are the `error.kind` of
/// `--json` output and decide the process's exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// The command line or a call of the library is wrong: an unknown name, a value that does not fit.
    Usage,
    /// A file of the project, an endpoint or the environment is wrong or missing.
    Config,
    /// The provider refused, could not be reached, or answered with something that is not an answer.
    Provider,
    /// The provider's answer ended before it was complete.
    Incomplete,
    /// A tool failed and nobody was there to recover from it.
    Tool,
    /// A job failed.
    Job,
    /// A limit of the run was reached.
    Limit,
    /// The answer does not meet the schema that was asked for.
    Schema,
    /// The run was interrupted by a signal or cancelled by its caller.
    Interrupted,
    /// A defect of decanus itself, or the machine failing (disk full, for instance).
    Internal,
}

impl ErrorKind {
    /// The stable word for this kind in machine-readable output.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Usage => "usage",
            Self::Config => "config",
            Self::Provider => "provider",
            Self::Incomplete => "incomplete",
            Self::Tool => "tool",
            Self::Job => "job",
            Self::Limit => "limit",
            Self::Schema => "schema",
            Self::Interrupted => "interrupted",
            Self::Internal => "internal",
        }
    }

    /// The exit code of the binary for an error of this kind. An interruption is 130 unless the signal is known.
    pub fn exit_code(self) -> u8 {
        match self {
            Self::Usage | Self::Config => 2,
            Self::Provider | Self::Incomplete => 3,
            Self::Tool | Self::Job => 4,
            Self::Limit => 5,
            Self::Interrupted => 130,
            Self::Schema | Self::Internal => 1,
        }
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// An error that can be shown to a person or a machine: its kind and what to do about it.
pub trait Diagnostic: std::error::Error {
    /// Which of the ten kinds this is.
    fn kind(&self) -> ErrorKind;

    /// What the user can do, most useful first. Empty when there is nothing to say beyond the message.
    fn hints(&self) -> Vec<String> {
        Vec::new()
    }
}
