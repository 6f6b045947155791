//! Ending jobs that run, and removing jobs.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use decanus_base::files::OwnerLock;
use decanus_base::process::{self, GRACE};
use decanus_base::{Diagnostic, ErrorKind};

use crate::background::{self, CLEAN_UP, end_leftovers, remove};
use crate::executor::ExecutorError;
use crate::record::{Found, JobRecord, Status, now};
use crate::store::{JobStore, Paths, StoredJob};

/// Time for an owner to write down how a job ended, beyond what it needs to end it.
const LAST_WORD: Duration = Duration::from_secs(3);

/// Why a job was not cancelled or removed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ManageError {
    /// It is at work; only one that is not can be removed.
    #[error("job {job} is at work (process {pid} on {host})")]
    Active {
        /// `WORKFLOW/TASK/NAME_DIGEST.EXT`.
        job: String,
        /// Its owner.
        pid: u32,
        /// The owner's machine.
        host: String,
    },
    /// It waits for jobs that it depends on, and has no process yet.
    #[error("job {job} waits for jobs that it depends on: {}", waits_for.join(", "))]
    Waits {
        /// `WORKFLOW/TASK/NAME_DIGEST.EXT`.
        job: String,
        /// Those that are at work.
        waits_for: Vec<String>,
    },
    /// It was told to end but goes on.
    #[error("job {job} was told to end, but process {pid} on {host} has not ended it")]
    GoesOn {
        /// `WORKFLOW/TASK/NAME_DIGEST.EXT`.
        job: String,
        /// Its owner.
        pid: u32,
        /// The owner's machine.
        host: String,
    },
    /// The jobs folder can't be read or written; the text names the file.
    #[error("{0}")]
    Store(String),
    /// It is with an executor that can't be asked.
    #[error("{0}")]
    Executor(#[from] ExecutorError),
}

impl Diagnostic for ManageError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Store(_) => ErrorKind::Internal,
            Self::Executor(e) => e.kind(),
            _ => ErrorKind::Job,
        }
    }

    fn hints(&self) -> Vec<String> {
        match self {
            Self::Active { .. } => {
                vec!["`decanus job cancel` ends it; `decanus job gc` removes what processes left that died".into()]
            }
            Self::Waits { .. } => vec!["cancel the job that it waits for; this one then ends too".into()],
            _ => Vec::new(),
        }
    }
}

fn store_error(e: impl std::fmt::Display) -> ManageError {
    ManageError::Store(e.to_string())
}

impl JobStore {
    /// Ends a job that is at work, with all processes of its group, and waits until it has ended. A job that is not at work
    /// is left as it is. Gives the job as it is then.
    ///
    /// # Errors
    /// When it waits for others, goes on all the same, or can't be written.
    pub fn cancel(&self, job: &StoredJob) -> Result<StoredJob, ManageError> {
        let paths = Paths::new(job.path.clone());
        let current = || self.read(job.path.clone()).unwrap_or_else(|| job.clone());
        let record = current().record;
        if !record.status.is_active() {
            return Ok(current());
        }
        if record.is_elsewhere() {
            return self.recall(job, &record, &paths);
        }
        if record.id.is_none() && record.pgid.is_none() && !record.is_orphaned() {
            return Err(self.waits(job, &record));
        }
        // For an owner that is no process of its own, or is on another machine, and to tell this end from a failure.
        if paths.own.is_dir() {
            decanus_base::files::write_atomic(&paths.cancel(), b"").map_err(store_error)?;
        }
        let here = record.host == process::host();
        if let (Some(group), Some(started), true) = (record.pgid, record.pgid_started, here) {
            let patience = if record.id.is_some() { CLEAN_UP + GRACE } else { GRACE };
            process::end_foreign(group, started, patience);
        }
        let begun = Instant::now();
        while begun.elapsed() < CLEAN_UP + LAST_WORD {
            let record = current().record;
            if !record.status.is_active() {
                return Ok(current());
            }
            if record.is_orphaned() && self.write_aborted(&paths)? {
                return Ok(current());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Err(ManageError::GoesOn {
            job: job.short_path(),
            pid: record.pid,
            host: record.host,
        })
    }

    fn waits(&self, job: &StoredJob, record: &JobRecord) -> ManageError {
        let others = record.dependencies.iter().map(|d| self.dir().join(d));
        let active = others
            .filter_map(|path| self.read(path))
            .filter(|j| j.record.effective_status().is_active());
        ManageError::Waits {
            job: job.short_path(),
            waits_for: active.map(|j| j.short_path()).collect(),
        }
    }

    /// Writes down that a job was cancelled whose owner is gone; false while somebody holds its lock.
    fn write_aborted(&self, paths: &Paths) -> Result<bool, ManageError> {
        let Some(_lock) = background::lock(paths).map_err(store_error)? else {
            return Ok(false);
        };
        if let Found::Record(mut record) = JobRecord::read(&paths.info)
            && record.is_orphaned()
        {
            end_leftovers(&record);
            if let (Some(group), None) = (record.pgid, &record.id) {
                process::end_marked(group, "DECANUS_FILES", paths.files.as_os_str());
            }
            record.status = Status::Aborted;
            record.ended = Some(now());
            record.error = Some("cancelled".into());
            record.write(&paths.info).map_err(store_error)?;
        }
        Ok(true)
    }

    /// [`clean_all`](Self::clean_all) for one job.
    ///
    /// # Errors
    /// Those of `clean_all`.
    pub fn clean(&self, job: &StoredJob, recursive: bool) -> Result<Vec<PathBuf>, ManageError> {
        self.clean_all(std::slice::from_ref(job), recursive, false)
    }

    /// Removes jobs, with `recursive` also those that they depend on: record, result and folder. Gives the paths of the
    /// results. Nothing is removed when one of them is at work, or with `dry_run`.
    ///
    /// # Errors
    /// When one is at work, or can't be removed.
    pub fn clean_all(&self, jobs: &[StoredJob], recursive: bool, dry_run: bool) -> Result<Vec<PathBuf>, ManageError> {
        let mut seen: HashSet<PathBuf> = HashSet::new();
        let mut all: Vec<StoredJob> = Vec::new();
        for job in jobs {
            if seen.insert(job.path.clone()) {
                all.push(job.clone());
            }
        }
        let mut at = 0;
        while let Some(next) = all.get(at).filter(|_| recursive) {
            // What stood in for a task is absolute; it was not made for this job.
            let own = next.record.dependencies.iter().filter(|d| Path::new(d).is_relative());
            let dependencies: Vec<PathBuf> = own.map(|d| self.dir().join(d)).collect();
            for path in dependencies {
                // A file that stood in for a task is no job of ours, even when something lies beside it.
                if path.starts_with(self.dir()) && seen.insert(path.clone()) {
                    all.extend(self.read(path));
                }
            }
            at += 1;
        }
        // All are looked at before the first is removed. That many locks at once would be too many open files.
        for job in &all {
            lock_of(job)?;
        }
        if !dry_run {
            for job in &all {
                let _lock = lock_of(job)?;
                remove(&Paths::new(job.path.clone())).map_err(store_error)?;
            }
        }
        Ok(all.into_iter().map(|j| j.path).collect())
    }
}

/// The lock of a job that is not at work.
fn lock_of(job: &StoredJob) -> Result<OwnerLock, ManageError> {
    let lock = background::lock(&Paths::new(job.path.clone())).map_err(store_error)?;
    // Of another machine's processes nothing is known, so what its record says holds.
    lock.filter(|_| !job.record.effective_status().is_active())
        .ok_or_else(|| ManageError::Active {
            job: job.short_path(),
            pid: job.record.pid,
            host: job.record.host.clone(),
        })
}
