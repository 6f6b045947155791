//! Running a task without keeping a job: its dependencies are stored as always, of itself nothing stays.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use decanus_base::files::{OwnerLock, named};
use decanus_tool::{Event, EventSink};
use serde_json::Value;

use crate::error::JobError;
use crate::job::Job;
use crate::result::ResultType;
use crate::runner::{Claimed, Cx, RunOptions, because_of, failed, on_thread, store_error};
use crate::store::{JobStore, Paths};

/// The folder of the jobs folder where tasks run of which nothing is kept; each in a folder that its lock stands for.
pub(crate) const ASIDE: &str = ".aside";
/// How soon a free processor is seen.
const FREED: Duration = Duration::from_millis(5);

/// What a task gave of which nothing was kept.
#[derive(Clone, Debug, PartialEq)]
pub struct Executed {
    /// The result; null for bytes.
    pub value: Value,
    /// The result of a task whose result is bytes.
    pub bytes: Option<Vec<u8>>,
}

/// A folder that goes with its owner.
struct Scratch(PathBuf);

impl Scratch {
    fn within(root: &Path) -> io::Result<Self> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        loop {
            let number = COUNT.fetch_add(1, Ordering::Relaxed);
            let dir = root.join(format!("{}-{number}", std::process::id()));
            match fs::create_dir(&dir) {
                Ok(()) => return Ok(Self(dir)),
                // An earlier process of the same number died, or one of another machine has it.
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
                Err(e) => return Err(e),
            }
        }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

impl JobStore {
    /// [`exec_blocking`](Self::exec_blocking) on a thread for blocking work. Dropping the future cancels it.
    ///
    /// # Errors
    /// Why there is no result.
    pub async fn exec(&self, job: Arc<Job>, options: RunOptions) -> Result<Executed, JobError> {
        let store = self.clone();
        on_thread(options, move |options| store.exec_blocking(&job, options)).await?
    }

    /// Runs the body of a job, stored or not, and keeps nothing of it. What it depends on is run and stored as always.
    ///
    /// # Errors
    /// Why there is no result; also when it is a file or a folder of the job's own folder, which is not kept.
    pub fn exec_blocking(&self, job: &Arc<Job>, options: &RunOptions) -> Result<Executed, JobError> {
        let place = self.paths(job);
        let begun = Instant::now();
        let above = &options.above;
        if above.contains(&place.result) && !options.allow_recursive {
            return Err(above.recursive(&place.result, job.label(), &place.result));
        }
        if let Some(error) = above.too_deep(&place.result, job.label()) {
            return Err(error);
        }
        let before = RunOptions {
            force: false,
            allow_recursive: false,
            ..options.clone()
        };
        let may_fail = job.may_fail();
        for (at, done) in self
            .produce_blocking(&job.dependencies, &before)
            .into_iter()
            .enumerate()
        {
            match done {
                Err(error @ JobError::Cancelled { .. }) => return Err(error),
                Err(error) if !may_fail.get(at).is_some_and(|may| *may) => return Err(because_of(&error, job, &place)),
                _ => {}
            }
        }
        let sink = options.events.clone();
        // The path of the job would lead to nothing.
        let without_jobs = sink.map(|sink| -> EventSink {
            Arc::new(move |event: &Event| {
                if !matches!(event, Event::Job { .. }) {
                    sink(event);
                }
            })
        });
        let cx = Cx {
            cancel: options.cancel.clone(),
            deadline: options.timeout.and_then(|t| Some((begun.checked_add(t)?, t))),
            events: without_jobs,
            above: above.with(&[], &place.result),
            executor: None,
            ticket: None,
        };
        let need = job.task.resources.need();
        if let Some(reason) = need.beyond(self.slots().capacity()) {
            return Err(failed(job, &place, reason, String::new()));
        }
        let _slot = loop {
            if cx.is_over() {
                return Err(cx.ended(job, &place));
            }
            match self.slots().try_take(need) {
                Some(slot) => break slot,
                None => std::thread::sleep(FREED),
            }
        };
        let root = self.dir().join(ASIDE);
        fs::create_dir_all(&root).map_err(|e| store_error(named(e, &root)))?;
        let scratch = Scratch::within(&root).map_err(|e| store_error(named(e, &root)))?;
        let paths = Paths::new(scratch.0.join(format!("{}.{}", job.task.name, job.task.extension())));
        let lock = OwnerLock::acquire(&paths.lock, Duration::ZERO, &|| false).map_err(store_error)?;
        let claimed = Claimed::new(lock, self.new_record(job));
        self.run_claimed(job, &paths, claimed, &cx)?;
        let kind = job.task.result;
        if kind == ResultType::Binary {
            let bytes = fs::read(&paths.result).map_err(|e| store_error(named(e, &paths.result)))?;
            return Ok(Executed {
                value: Value::Null,
                bytes: Some(bytes),
            });
        }
        let bad = |reason: String| failed(job, &place, reason, String::new());
        let value = kind.load(&paths.result, &paths.files).map_err(bad)?;
        let is_path = matches!(kind, ResultType::File | ResultType::Folder | ResultType::Path);
        if is_path && value.as_str().is_some_and(|p| PathBuf::from(p).starts_with(&scratch.0)) {
            return Err(bad(
                "its result is a path within its own folder, of which nothing is kept here".into(),
            ));
        }
        Ok(Executed { value, bytes: None })
    }
}
