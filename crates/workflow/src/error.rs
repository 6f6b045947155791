//! What can go wrong with workflows, inputs and jobs.

use std::path::PathBuf;

use decanus_base::yaml::YamlError;
use decanus_base::{Diagnostic, ErrorKind};

use crate::executor::ExecutorError;

/// Why a workflow, or a job of it, is not to be had.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WorkflowError {
    /// No folder of the search path has it.
    #[error("there is no workflow `{name}`{guess}")]
    Unknown {
        /// The name asked for.
        name: String,
        /// `; did you mean …?` or nothing.
        guess: String,
        /// Where it was looked for.
        searched: Vec<PathBuf>,
    },
    /// The workflow has no such task.
    #[error("workflow {workflow} has no task `{task}`{guess} (tasks: {known})")]
    UnknownTask {
        /// The workflow.
        workflow: String,
        /// The name asked for.
        task: String,
        /// `; did you mean …?` or nothing.
        guess: String,
        /// All its tasks, comma-separated.
        known: String,
    },
    /// The file is wrong.
    #[error("{0}")]
    Yaml(#[from] YamlError),
    /// The file can't be read; the text names it.
    #[error("{0}")]
    Unreadable(String),
    /// The folder's name can't be that of a workflow.
    #[error(
        "{}: `{name}` can't be the name of a workflow; use letters, digits, `_` and `-`, with a letter first",
        dir.display()
    )]
    BadName {
        /// The folder.
        dir: PathBuf,
        /// Its name.
        name: String,
    },
    /// An input does not fit.
    #[error("{0}")]
    Input(#[from] InputError),
}

impl Diagnostic for WorkflowError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Unknown { .. } | Self::UnknownTask { .. } => ErrorKind::Usage,
            Self::Yaml(_) | Self::Unreadable(_) | Self::BadName { .. } => ErrorKind::Config,
            Self::Input(e) => e.kind(),
        }
    }

    fn hints(&self) -> Vec<String> {
        match self {
            Self::Unknown { searched, .. } => {
                let places: Vec<String> = searched.iter().map(|p| p.display().to_string()).collect();
                vec![format!(
                    "looked in {}; `decanus workflow list` shows what is there",
                    places.join(", ")
                )]
            }
            Self::UnknownTask { workflow, .. } => {
                vec![format!("`decanus workflow show {workflow}` describes its tasks")]
            }
            Self::Input(e) => e.hints(),
            _ => Vec::new(),
        }
    }
}

/// Why a job can't be made of the values given.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InputError {
    /// Required inputs without a value.
    #[error("{task}: {} required but {} not given", list(inputs), if inputs.len() == 1 { "was" } else { "were" })]
    Missing {
        /// `WORKFLOW/TASK`.
        task: String,
        /// Their names.
        inputs: Vec<String>,
    },
    /// Names that are no inputs.
    #[error("{task} has no input `{name}`{guess}")]
    Unknown {
        /// `WORKFLOW/TASK`.
        task: String,
        /// The name given.
        name: String,
        /// `; did you mean …?` or nothing.
        guess: String,
        /// The names there are, comma-separated.
        known: String,
    },
    /// A value that does not fit its type.
    #[error("{task}: input `{name}`: {reason}")]
    Value {
        /// `WORKFLOW/TASK`.
        task: String,
        /// The input.
        name: String,
        /// What is wrong with the value.
        reason: String,
    },
    /// A file that the workflow itself names (a default, a script) can't be read.
    #[error("{task}: {reason}")]
    File {
        /// `WORKFLOW/TASK`.
        task: String,
        /// Which file, and why.
        reason: String,
    },
    /// What was to stand in for a task that a job depends on can't.
    #[error("the result for `{task}`: {reason}")]
    Override {
        /// `WORKFLOW#TASK`.
        task: String,
        /// Why not.
        reason: String,
    },
    /// A name for the job that can't be one.
    #[error("`{0}` can't be the name of a job: no `/`, `\\`, `..`, leading dot or control character")]
    JobName(String),
}

fn list(names: &[String]) -> String {
    match names {
        [one] => format!("input `{one}` is"),
        many => format!("inputs `{}` are", many.join("`, `")),
    }
}

impl Diagnostic for InputError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::File { .. } => ErrorKind::Config,
            _ => ErrorKind::Usage,
        }
    }

    fn hints(&self) -> Vec<String> {
        match self {
            Self::Unknown { known, .. } if known.is_empty() => vec!["it takes no inputs".into()],
            Self::Unknown { known, .. } => vec![format!("its inputs are {known}")],
            _ => Vec::new(),
        }
    }
}

/// Why a job gave no result.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum JobError {
    /// Its process failed, gave something that is not a result of its type, or a job it depends on failed.
    #[error("job {task} failed: {message}{}", tail(stderr))]
    Failed {
        /// `WORKFLOW/TASK`.
        task: String,
        /// Path of the result that it would have had.
        path: PathBuf,
        /// What went wrong, in a line.
        message: String,
        /// The last lines of its standard error.
        stderr: String,
    },
    /// It took longer than it may.
    #[error("job {task} {message}{}", tail(stderr))]
    TimedOut {
        /// `WORKFLOW/TASK`.
        task: String,
        /// Path of the result that it would have had.
        path: PathBuf,
        /// `timed out after 30s`.
        message: String,
        /// The last lines of its standard error.
        stderr: String,
    },
    /// Nobody wanted it any more.
    #[error("job {task} was cancelled")]
    Cancelled {
        /// `WORKFLOW/TASK`.
        task: String,
        /// Path of the result that it would have had.
        path: PathBuf,
    },
    /// It would wait for itself: it needs a job that waits for whoever asks.
    #[error("Potential recursive call: {cycle}")]
    Recursive {
        /// `WORKFLOW/TASK`.
        task: String,
        /// Path of its result.
        path: PathBuf,
        /// `a → b → a`: who runs or waits within whom.
        cycle: String,
    },
    /// Jobs run within one another, and this one would be one too many.
    #[error("job {task} would run within {limit} others, which is the most")]
    TooDeep {
        /// `WORKFLOW/TASK`.
        task: String,
        /// Path of its result.
        path: PathBuf,
        /// How many may.
        limit: usize,
    },
    /// The jobs folder can't be read or written; the text names the file.
    #[error("the job can't be stored: {0}")]
    Store(String),
    /// What was to run it could not be used.
    #[error("{0}")]
    Executor(#[from] ExecutorError),
    /// There is a job but its result can't be had: it is not done, is gone, or is not what its type says.
    #[error("{}: {reason}", path.display())]
    NoResult {
        /// Path of the result.
        path: PathBuf,
        /// Why.
        reason: String,
    },
}

fn tail(stderr: &str) -> String {
    if stderr.is_empty() {
        String::new()
    } else {
        format!(": {stderr}")
    }
}

impl JobError {
    /// The path of the job, where the error is about one.
    pub fn path(&self) -> Option<&PathBuf> {
        match self {
            Self::Failed { path, .. }
            | Self::TimedOut { path, .. }
            | Self::Cancelled { path, .. }
            | Self::Recursive { path, .. }
            | Self::TooDeep { path, .. }
            | Self::NoResult { path, .. } => Some(path),
            Self::Store(_) | Self::Executor(_) => None,
        }
    }

    /// The last lines of the job's standard error; empty when there are none.
    pub fn stderr(&self) -> &str {
        match self {
            Self::Failed { stderr, .. } | Self::TimedOut { stderr, .. } => stderr,
            _ => "",
        }
    }
}

impl Diagnostic for JobError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Failed { .. }
            | Self::TimedOut { .. }
            | Self::Recursive { .. }
            | Self::TooDeep { .. }
            | Self::NoResult { .. } => ErrorKind::Job,
            Self::Cancelled { .. } => ErrorKind::Interrupted,
            Self::Store(_) => ErrorKind::Internal,
            Self::Executor(e) => e.kind(),
        }
    }

    fn hints(&self) -> Vec<String> {
        match self {
            Self::Executor(e) => e.hints(),
            Self::Failed { path, .. } | Self::TimedOut { path, .. } => {
                let log = format!("{}.files/.job/stderr", path.display());
                // One that did not come to run has none.
                match std::path::Path::new(&log).is_file() {
                    true => vec![format!("its log is {log}")],
                    false => Vec::new(),
                }
            }
            Self::Recursive { .. } => {
                vec!["`--allow-recursive` runs it once more, of which nothing is kept".into()]
            }
            Self::Store(_) => vec!["the jobs folder is set by `jobs_dir` in decanus.toml".into()],
            _ => Vec::new(),
        }
    }
}

/// Why no single job is meant by what was typed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FindError {
    /// None.
    #[error("there is no job `{0}`")]
    None(String),
    /// More than one.
    #[error("`{typed}` may be any of {}: {}", found.len(), found.iter().take(5).cloned().collect::<Vec<_>>().join(", "))]
    Ambiguous {
        /// What was typed.
        typed: String,
        /// `WORKFLOW/TASK/NAME_DIGEST.EXT` of each.
        found: Vec<String>,
    },
    /// The jobs folder can't be read.
    #[error("{0}")]
    Unreadable(String),
}

impl Diagnostic for FindError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Unreadable(_) => ErrorKind::Internal,
            _ => ErrorKind::Usage,
        }
    }

    fn hints(&self) -> Vec<String> {
        vec![
            "a job is named by its path, WORKFLOW/TASK/NAME, or the first letters of its digest (6 or more); \
              `decanus job list` shows them"
                .into(),
        ]
    }
}
