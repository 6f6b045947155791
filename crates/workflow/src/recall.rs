//! Ending a job that an executor has.

use std::fs;
use std::time::{Duration, Instant};

use crate::background::{CLEAN_UP, lock};
use crate::executor::{Executor, ExecutorError};
use crate::fleet::FOLDER;
use crate::manage::ManageError;
use crate::record::{Found, JobRecord, Status, now};
use crate::spec::Spec;
use crate::store::{JobStore, Paths, StoredJob};

/// How long a job that has begun may take to end by itself once it was told; the word has to get to another machine.
const PATIENCE: Duration = Duration::from_secs(10);

fn store_error(e: impl std::fmt::Display) -> ManageError {
    ManageError::Store(e.to_string())
}

impl JobStore {
    /// Ends a job that was handed over: its process is told by a file, its scheduler by name. Others that share an element
    /// of an array with it go on. Gives the job as it is then.
    ///
    /// # Errors
    /// When the scheduler can't be reached, or the job goes on all the same.
    pub(crate) fn recall(&self, job: &StoredJob, record: &JobRecord, paths: &Paths) -> Result<StoredJob, ManageError> {
        let Some(executor) = self.executors().get(&record.executor) else {
            return Err(ExecutorError::Missing {
                executor: "job cancel",
                reason: format!("the job is with `{}`, which is not known here", record.executor),
            }
            .into());
        };
        if paths.own.is_dir() {
            decanus_base::files::write_atomic(&paths.cancel(), b"").map_err(store_error)?;
        }
        let spec = Spec::read(paths).ok();
        let is_alone = spec.as_ref().is_none_or(|spec| self.is_alone(spec));
        let id = match (&record.scheduler_id, &spec) {
            (Some(id), _) => Some(id.clone()),
            (None, Some(spec)) => executor.find(&spec.batch)?.remove(&spec.element),
            (None, None) => None,
        };
        let end = |executor: &dyn Executor| match &id {
            Some(id) => executor.cancel(std::slice::from_ref(id)),
            None => Ok(()),
        };
        if record.status == Status::Waiting && is_alone {
            end(executor.as_ref())?;
        }
        let current = || self.read(job.path.clone()).unwrap_or_else(|| job.clone());
        let begun = Instant::now();
        let mut is_told = false;
        while begun.elapsed() < PATIENCE + CLEAN_UP {
            let status = current().record.status;
            if !status.is_active() {
                return Ok(current());
            }
            let is_late = begun.elapsed() > PATIENCE;
            if is_late && !std::mem::replace(&mut is_told, true) {
                end(executor.as_ref())?;
            }
            // Whoever waits for it writes its end; when nobody does, it is for us.
            if (status == Status::Waiting || is_late)
                && let Some(_lock) = lock(paths).map_err(store_error)?
                && let Found::Record(mut record) = JobRecord::read(&paths.info)
                && record.status.is_active()
            {
                Spec::forget(paths);
                record.status = Status::Aborted;
                record.ended = Some(now());
                record.error = Some("cancelled".into());
                record.write(&paths.info).map_err(store_error)?;
                return Ok(current());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Err(ManageError::GoesOn {
            job: job.short_path(),
            pid: record.pid,
            host: record.host.clone(),
        })
    }

    /// Whether no other job that is still to be run shares the element of this one.
    fn is_alone(&self, spec: &Spec) -> bool {
        let list = self
            .dir()
            .join(FOLDER)
            .join(&spec.batch)
            .join(format!("list.{}", spec.element));
        let text = fs::read_to_string(list).unwrap_or_default();
        let active = text.lines().filter(|path| {
            let info = Paths::new((*path).into()).info;
            matches!(JobRecord::read(&info), Found::Record(record) if record.status.is_active())
        });
        active.count() <= 1
    }
}
