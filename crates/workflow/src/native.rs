//! Tasks that are Rust functions: they run in this process, on the thread of their job.

use std::any::Any;
use std::fmt;
use std::fs::{File, OpenOptions};
use std::future::Future;
use std::io::{self, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use decanus_base::digest::ValueHasher;
use decanus_base::files::named;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use tokio_util::sync::CancellationToken;

use crate::body;
use crate::job::Job;
use crate::result::ResultType;
use crate::store::{JobStore, Paths};

/// Why a task's function gave no result.
#[derive(Debug, thiserror::Error)]
pub enum TaskError {
    /// What the function says of it.
    #[error("{0}")]
    Failed(String),
    /// A file could not be read or written.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The inputs are not of the type that the function takes.
    #[error("its inputs do not fit: {0}")]
    Inputs(#[source] serde_json::Error),
    /// The task does not depend on that one, or its result can't be had or is of another type.
    #[error("dependency `{name}`: {reason}")]
    Dependency {
        /// The name that was asked for.
        name: String,
        /// Why.
        reason: String,
    },
}

impl TaskError {
    /// A failure in words.
    pub fn failed(reason: impl Into<String>) -> Self {
        Self::Failed(reason.into())
    }
}

type Function = dyn Fn(Map<String, Value>, &TaskContext) -> Result<Value, TaskError> + Send + Sync;

/// The function of a task that was declared in Rust.
#[derive(Clone)]
pub struct NativeBody {
    version: String,
    function: Arc<Function>,
}

impl NativeBody {
    /// A function that runs on the job's thread. `version` is part of the identity of its jobs, in the place of its
    /// code.
    pub fn new(
        version: impl Into<String>,
        function: impl Fn(Map<String, Value>, &TaskContext) -> Result<Value, TaskError> + Send + Sync + 'static,
    ) -> Self {
        Self {
            version: version.into(),
            function: Arc::new(function),
        }
    }

    pub(crate) fn with_version(mut self, version: String) -> Self {
        self.version = version;
        self
    }

    /// What of it is part of a job's identity.
    pub(crate) fn hash(&self, hasher: &mut ValueHasher) {
        hasher.text("native").text(&self.version);
    }
}

impl fmt::Debug for NativeBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NativeBody")
            .field("version", &self.version)
            .finish_non_exhaustive()
    }
}

/// Two are the same when they are copies of one.
impl PartialEq for NativeBody {
    fn eq(&self, other: &Self) -> bool {
        self.version == other.version && Arc::ptr_eq(&self.function, &other.function)
    }
}

/// What a task's function knows of its job. Clones are the same one.
#[derive(Clone)]
pub struct TaskContext(Arc<Facts>);

struct Facts {
    job: PathBuf,
    files: PathBuf,
    result: PathBuf,
    log: PathBuf,
    workflow_dir: PathBuf,
    dependencies: Vec<Dependency>,
    cancel: CancellationToken,
    until: Option<Instant>,
    open_log: Mutex<Option<File>>,
}

/// The results behind a name.
struct Dependency {
    name: String,
    /// Whether it is a list: one for each item.
    each: bool,
    results: Vec<Stored>,
}

/// A stored result.
struct Stored {
    path: PathBuf,
    files: PathBuf,
    kind: ResultType,
}

impl TaskContext {
    /// Where the job's result will be.
    pub fn job(&self) -> &Path {
        &self.0.job
    }

    /// The job's own folder, for files that it makes. It exists, and is empty when the function begins.
    pub fn files(&self) -> &Path {
        &self.0.files
    }

    /// The workflow's folder.
    pub fn workflow_dir(&self) -> &Path {
        &self.0.workflow_dir
    }

    /// A file that the function may write its result to, in place of returning it. It then returns `()`.
    pub fn result_file(&self) -> &Path {
        &self.0.result
    }

    fn find(&self, name: &str) -> Result<&Dependency, TaskError> {
        let found = self.0.dependencies.iter().find(|d| d.name == name);
        found.ok_or_else(|| TaskError::Dependency {
            name: name.to_owned(),
            reason: "this task does not depend on it".into(),
        })
    }

    /// The path of a dependency's result.
    ///
    /// # Errors
    /// When the task does not depend on it, or it has not just one result.
    pub fn dependency_path(&self, name: &str) -> Result<&Path, TaskError> {
        match self.find(name)?.results.as_slice() {
            [one] => Ok(&one.path),
            all => Err(TaskError::Dependency {
                name: name.to_owned(),
                reason: format!("it has {} results", all.len()),
            }),
        }
    }

    /// The paths of a dependency's results, of one with a job for each item of a list.
    ///
    /// # Errors
    /// When the task does not depend on it.
    pub fn dependency_paths(&self, name: &str) -> Result<Vec<&Path>, TaskError> {
        Ok(self.find(name)?.results.iter().map(|r| r.path.as_path()).collect())
    }

    /// The result of a dependency; a list of them where there is one for each item of a list. Of one that may fail and did,
    /// null.
    ///
    /// # Errors
    /// When the task does not depend on it, its result can't be read, or is no `T`.
    pub fn dependency<T: DeserializeOwned>(&self, name: &str) -> Result<T, TaskError> {
        let found = self.find(name)?;
        let fail = |reason: String| TaskError::Dependency {
            name: name.to_owned(),
            reason,
        };
        let load = |r: &Stored| match r.path.is_file() {
            true => r.kind.load(&r.path, &r.files),
            false => Ok(Value::Null),
        };
        let mut values = found
            .results
            .iter()
            .map(load)
            .collect::<Result<Vec<_>, _>>()
            .map_err(fail)?;
        let value = match found.each {
            true => Value::Array(values),
            false => values.pop().unwrap_or_default(),
        };
        serde_json::from_value(value).map_err(|e| fail(e.to_string()))
    }

    /// Adds a line to the job's log.
    pub fn log(&self, line: impl AsRef<str>) {
        let mut log = self.0.open_log.lock().unwrap_or_else(PoisonError::into_inner);
        if log.is_none() {
            let opened = OpenOptions::new().create(true).append(true).open(&self.0.log);
            match opened {
                Ok(file) => *log = Some(file),
                Err(e) => tracing::warn!("{}", named(e, &self.0.log)),
            }
        }
        if let Some(file) = log.as_mut()
            && let Err(e) = writeln!(file, "{}", line.as_ref())
        {
            tracing::warn!("{}", named(e, &self.0.log));
        }
    }

    /// Whether nobody wants the result any more, or the time is up. A function can't be ended from outside: one that
    /// takes long looks here from time to time. The future of an asynchronous one is dropped.
    pub fn is_over(&self) -> bool {
        self.0.cancel.is_cancelled() || self.0.until.is_some_and(|until| Instant::now() >= until)
    }

    /// Runs the future of an asynchronous function, until it ends or nobody wants it any more.
    pub(crate) fn wait<T>(&self, future: impl Future<Output = Result<T, TaskError>>) -> Result<T, TaskError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let over = async {
            match self.0.until {
                Some(until) => tokio::time::sleep_until(until.into()).await,
                None => std::future::pending().await,
            }
        };
        runtime.block_on(async {
            tokio::select! {
                result = future => result,
                () = self.0.cancel.cancelled() => Err(TaskError::failed("cancelled")),
                () = over => Err(TaskError::failed("its time was up")),
            }
        })
    }
}

/// How a function ended when it gave no result.
pub(crate) enum NativeEnd {
    Failed(String),
    TimedOut,
    Cancelled,
}

/// Runs the function of a job. What it returns is then where a process would have written it.
pub(crate) fn run(
    store: &JobStore,
    native: &NativeBody,
    job: &Job,
    paths: &Paths,
    until: Option<Instant>,
    cancel: &CancellationToken,
) -> Result<(), NativeEnd> {
    let stored = |dependency: &Arc<Job>| {
        let theirs = store.paths(dependency);
        Stored {
            path: theirs.result,
            files: theirs.files,
            kind: dependency.kind(),
        }
    };
    let dependencies = job.links.iter().map(|link| Dependency {
        name: link.name.clone(),
        each: link.each,
        results: link
            .jobs
            .iter()
            .filter_map(|at| job.dependencies.get(*at))
            .map(stored)
            .collect(),
    });
    let given = job.resolved_inputs(store).map_err(NativeEnd::Failed)?;
    let cx = TaskContext(Arc::new(Facts {
        job: paths.result.clone(),
        files: paths.files.clone(),
        result: body::result_file(paths),
        log: paths.own.join("stderr"),
        workflow_dir: job.workflow.dir.clone(),
        dependencies: dependencies.collect(),
        cancel: cancel.clone(),
        until,
        open_log: Mutex::default(),
    }));
    // An optional field is absent rather than null, so that its default in Rust holds.
    let inputs = given.iter().filter(|(_, value)| !value.is_null());
    let inputs = inputs.map(|(name, value)| (name.clone(), value.clone())).collect();
    let called = catch_unwind(AssertUnwindSafe(|| (native.function)(inputs, &cx)));
    let is_late = until.is_some_and(|until| Instant::now() >= until);
    let value = match called {
        Ok(Ok(_)) if is_late => return Err(NativeEnd::TimedOut),
        Ok(Ok(value)) => value,
        Ok(Err(_)) if cancel.is_cancelled() => return Err(NativeEnd::Cancelled),
        Ok(Err(_)) if is_late => return Err(NativeEnd::TimedOut),
        Ok(Err(error)) => return Err(NativeEnd::Failed(error.to_string())),
        Err(panic) => return Err(NativeEnd::Failed(format!("it panicked: {}", said(&*panic)))),
    };
    let result = cx.result_file();
    if value.is_null() && result.exists() {
        return Ok(());
    }
    let bytes = job.task.result.write(&value).map_err(NativeEnd::Failed)?;
    std::fs::write(result, bytes).map_err(|e| NativeEnd::Failed(named(e, result).to_string()))
}

fn said(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no message")
}
