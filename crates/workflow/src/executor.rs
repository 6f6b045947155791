//! Where jobs run: here, or wherever a scheduler sends them. A job's own record says how it ended; an executor only says
//! which jobs are still on their way, so that lost ones are found.

use std::collections::HashMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use decanus_base::names::did_you_mean;
use decanus_base::settings::{Settings, SlurmSettings};
use decanus_base::{Diagnostic, ErrorKind};

use crate::definition::{Body, Task, Workflow};
use crate::slots::Resources;
use crate::slurm::Slurm;

/// The executor that is this process: its threads, within the processors and the memory of the machine.
pub const LOCAL: &str = "local";

/// What makes an executor.
type Make = fn(&Setup) -> Arc<dyn Executor>;

/// All executors. `local` is no [`Executor`]: nothing is handed over.
const TABLE: [(&str, Option<Make>); 2] = [(LOCAL, None), ("slurm", Some(|setup| Arc::new(Slurm::new(setup))))];

/// The names of all executors.
pub fn names() -> impl Iterator<Item = &'static str> {
    TABLE.iter().map(|(name, _)| *name)
}

/// Takes the name of an executor, or says which ones there are.
///
/// # Errors
/// [`ExecutorError::Unknown`].
pub fn check_name(name: &str) -> Result<(), ExecutorError> {
    match names().any(|known| known == name) {
        true => Ok(()),
        false => Err(ExecutorError::Unknown {
            name: name.to_owned(),
            guess: did_you_mean(name, names()),
        }),
    }
}

/// What an executor is told of the project.
#[derive(Debug, Clone)]
pub struct Setup {
    /// The project's root, in a folder that the nodes have too.
    pub project: PathBuf,
    /// The decanus of the nodes.
    pub program: PathBuf,
    /// The `[slurm]` table.
    pub slurm: SlurmSettings,
}

/// A job for another machine. What it does is in its folder; an executor needs only this.
#[derive(Debug, Clone)]
pub struct JobSpec {
    /// Path of the result.
    pub path: PathBuf,
    /// What it needs while it runs.
    pub resources: Resources,
    /// How long it may take.
    pub limit: Option<Duration>,
    /// How long jobs of its task took before.
    pub typical: Option<Duration>,
}

/// Jobs that are handed over together.
#[derive(Debug, Clone)]
pub struct Batch {
    /// A name that nothing else has, by which the scheduler knows it too.
    pub name: String,
    /// What each of its jobs needs.
    pub resources: Resources,
    /// How long an element may take.
    pub limit: Option<Duration>,
    /// Elements that may run side by side; the jobs of one run one after another: their places among the jobs that were
    /// planned.
    pub elements: Vec<Vec<usize>>,
}

/// Where a job is, by what its scheduler says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Progress {
    /// It waits. The reason, in the scheduler's words, when it does not get on by itself.
    Pending(Option<String>),
    /// It runs, or is about to begin or end.
    Running,
    /// It has ended, in the scheduler's word.
    Ended(Outcome),
    /// The scheduler does not know it.
    Unknown,
}

/// How a job ended for its scheduler.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// Its process ended by itself with exit code 0.
    Completed,
    /// It took longer than it was given.
    TimedOut,
    /// It used more memory than it was given.
    OutOfMemory,
    /// Anything else: `FAILED`, `CANCELLED`, `NODE_FAIL`, ….
    Lost(String),
}

/// Why an executor did not do what it was asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ExecutorError {
    /// There is none of that name.
    #[error("there is no executor `{name}`{guess}")]
    Unknown {
        /// The name.
        name: String,
        /// `; did you mean …?` or nothing.
        guess: String,
    },
    /// Its programs are not here.
    #[error("the executor `{executor}` is not to be had: {reason}")]
    Missing {
        /// The executor.
        executor: &'static str,
        /// What is missing.
        reason: String,
    },
    /// The scheduler can't be reached now. What is with it is not affected.
    #[error("{executor} can't be reached: {reason}")]
    Unreachable {
        /// The executor.
        executor: &'static str,
        /// In its words.
        reason: String,
    },
    /// The scheduler does not take the job.
    #[error("{executor} refused: {reason}")]
    Refused {
        /// The executor.
        executor: &'static str,
        /// In its words.
        reason: String,
    },
}

impl Diagnostic for ExecutorError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Unknown { .. } => ErrorKind::Usage,
            Self::Missing { .. } | Self::Refused { .. } => ErrorKind::Config,
            Self::Unreachable { .. } => ErrorKind::Job,
        }
    }

    fn hints(&self) -> Vec<String> {
        match self {
            Self::Unknown { .. } => {
                let known: Vec<&str> = names().collect();
                vec![format!("the executors are {}", known.join(", "))]
            }
            Self::Missing { .. } => vec!["`-x local` runs jobs on this machine".into()],
            _ => Vec::new(),
        }
    }
}

/// Hands jobs to a scheduler and asks it where they are. The job on the node is `decanus job exec`.
pub trait Executor: fmt::Debug + Send + Sync {
    /// Its name.
    fn name(&self) -> &'static str;

    /// Whether it can be used from here at all. Nothing is asked of the scheduler.
    ///
    /// # Errors
    /// [`ExecutorError::Missing`].
    fn available(&self) -> Result<(), ExecutorError>;

    /// Which jobs go together. Each is in one batch.
    fn plan(&self, jobs: &[JobSpec]) -> Vec<Batch>;

    /// Hands a batch over. In `dir`, which is its own, lies a file for each element, `list.PLACE`, with the paths of its
    /// jobs' results, one a line. Gives the ids of the elements.
    ///
    /// # Errors
    /// After [`ExecutorError::Unreachable`] it is not known whether the batch was taken; [`find`](Self::find) tells.
    fn submit(&self, batch: &Batch, dir: &Path) -> Result<Vec<String>, ExecutorError>;

    /// The ids of the elements of a batch of that name that was handed over, by their places.
    ///
    /// # Errors
    /// [`ExecutorError::Unreachable`].
    fn find(&self, name: &str) -> Result<HashMap<usize, String>, ExecutorError>;

    /// Where jobs are, in the order of their ids.
    ///
    /// # Errors
    /// [`ExecutorError::Unreachable`]: nothing is known then, which is no failure of a job.
    fn observe(&self, ids: &[String]) -> Result<Vec<Progress>, ExecutorError>;

    /// Ends jobs. Those that have ended, or are not known, are passed over.
    ///
    /// # Errors
    /// [`ExecutorError::Unreachable`].
    fn cancel(&self, ids: &[String]) -> Result<(), ExecutorError>;

    /// Time between two questions.
    fn poll(&self) -> Duration;

    /// How long a record may take to be seen here after its job has ended.
    fn settle(&self) -> Duration;

    /// How long most jobs of a task of which nobody knows what they take are held back, until some have told; nothing when
    /// it makes no difference.
    fn probe(&self) -> Option<Duration>;

    /// The most jobs that are handed over at a time.
    fn most(&self) -> usize;
}

/// The executors of a project, and which one is used.
#[derive(Debug, Clone, Default)]
pub struct Executors {
    setup: Option<Arc<Setup>>,
    default: Option<String>,
    made: HashMap<&'static str, Arc<dyn Executor>>,
}

impl Executors {
    /// Those of a project's settings. `program` is the decanus of the nodes, unless the settings name one.
    ///
    /// # Errors
    /// `executor` of decanus.toml names none.
    pub fn of(settings: &Settings, project: &Path, program: PathBuf) -> Result<Self, ExecutorError> {
        if let Some(name) = &settings.executor {
            check_name(name)?;
        }
        let slurm = &settings.slurm;
        let program = slurm.program.as_ref().map_or(program, |own| project.join(own));
        let setup = Setup {
            project: project.to_owned(),
            program,
            slurm: slurm.clone(),
        };
        Ok(Self::new(setup, settings.executor.clone()))
    }

    /// Those for a set-up, with the one that is used when nobody says which.
    pub fn new(setup: Setup, default: Option<String>) -> Self {
        let made = TABLE.iter().filter_map(|(name, make)| Some((*name, (*make)?(&setup))));
        Self {
            made: made.collect(),
            setup: Some(Arc::new(setup)),
            default,
        }
    }

    /// An executor by its name; none for `local`.
    pub fn get(&self, name: &str) -> Option<&Arc<dyn Executor>> {
        self.made.get(name)
    }

    /// What runs the jobs of a task: what `flag` says, else the task, the workflow, the project. None for this process.
    /// Aliases and functions of this program always run in it, and so does everything when there are no executors.
    pub(crate) fn choose(&self, flag: Option<&str>, workflow: &Workflow, task: &Task) -> Option<&Arc<dyn Executor>> {
        if self.setup.is_none() || matches!(task.body, Body::Alias | Body::Native(_)) {
            return None;
        }
        let name = flag
            .or(task.executor.as_deref())
            .or(workflow.executor.as_deref())
            .or(self.default.as_deref());
        self.get(name.unwrap_or(LOCAL))
    }
}
