//! What nothing refers to: leftovers of processes that died, and jobs of tasks that are no longer there.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use decanus_base::files::named;

use crate::aside::ASIDE;
use crate::background::{lock, remove};
use crate::error::JobError;
use crate::guard;
use crate::record::{Found, JobRecord};
use crate::store::{JobStore, OWN_DIR, Paths, entries, folders};
use crate::usage::size_on_disk;

/// What is younger may belong to somebody who is just about to use it.
const YOUNG: Duration = Duration::from_secs(60);

/// What a leftover is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Garbage {
    /// A file on its way to its name, whose writer died.
    Temporary,
    /// A lock whose owner died.
    Lock,
    /// What a run left of which nothing is kept.
    Aside,
    /// The folder of a job without a record.
    Folder,
    /// A result without a record.
    Result,
    /// A job whose workflow or task is no longer there.
    Orphan,
}

impl Garbage {
    /// The stable word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Temporary => "temporary",
            Self::Lock => "lock",
            Self::Aside => "aside",
            Self::Folder => "folder",
            Self::Result => "result",
            Self::Orphan => "orphan",
        }
    }
}

/// A leftover.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leftover {
    /// What it is.
    pub kind: Garbage,
    /// Where it is; of a job the path of its result.
    pub path: PathBuf,
    /// Bytes on disk, with all that belongs to it.
    pub bytes: u64,
    /// Why it stays; `None` for one that goes.
    pub kept: Option<String>,
}

/// Whether there still is a task, by the names of workflow and task.
pub type TaskExists<'a> = dyn Fn(&str, &str) -> bool + 'a;
/// Whether somebody else, a chat say, speaks of a job.
pub type IsReferred<'a> = dyn Fn(&JobRecord, &Path) -> bool + 'a;

/// What is collected besides what dead processes left.
#[derive(Default)]
pub struct Collect<'a> {
    /// Results without a record, and orphans that others refer to, too.
    pub all: bool,
    /// Jobs whose task is not there by this.
    pub exists: Option<&'a TaskExists<'a>>,
    /// Who else refers to jobs.
    pub is_referred: Option<&'a IsReferred<'a>>,
    /// Removes nothing.
    pub dry_run: bool,
}

impl JobStore {
    /// Removes what nothing refers to, and says what it was. What is at work, or was made in the last minute, is left.
    ///
    /// # Errors
    /// When something can't be read or removed.
    pub fn collect(&self, what: &Collect) -> Result<Vec<Leftover>, JobError> {
        let failed = |e: io::Error| JobError::Store(e.to_string());
        let mut found = temporary(self.dir()).map_err(failed)?;
        for path in entries(&self.dir().join(ASIDE)).map_err(failed)? {
            let locks = entries(&path).map_err(failed)?;
            let mut locks = locks.iter().filter(|p| p.extension().is_some_and(|e| e == "lock"));
            if is_old(&path) && locks.all(|lock| is_free(lock)) {
                found.push(leftover(Garbage::Aside, path));
            }
        }
        for workflow in folders(self.dir(), None).map_err(failed)? {
            found.extend(temporary(&workflow).map_err(failed)?);
            for task in folders(&workflow, None).map_err(failed)? {
                self.of_task(&task, &mut found).map_err(failed)?;
            }
        }
        if let Some(exists) = what.exists {
            self.orphans(exists, what, &mut found).map_err(failed)?;
        }
        for leftover in &mut found {
            if leftover.kind == Garbage::Result && !what.all {
                leftover.kept = Some("it has no record, but it may be wanted; --all removes it".into());
            }
            if leftover.kept.is_none() && !what.dry_run && !clear(leftover)? {
                leftover.kept = Some("somebody is at work on it".into());
            }
        }
        Ok(found)
    }

    /// What is left over in the folder of a task.
    fn of_task(&self, task: &Path, found: &mut Vec<Leftover>) -> io::Result<()> {
        found.extend(temporary(task)?);
        let within = entries(task)?;
        let names: HashSet<&str> = within.iter().filter_map(|p| p.file_name()?.to_str()).collect();
        for path in &within {
            let Some(name) = path.file_name().and_then(|n| n.to_str()) else {
                continue;
            };
            if let Some(locked) = name.strip_prefix('.') {
                // A record that says that another machine is at work may be right, whatever its lock looks like from here.
                let job = locked.strip_suffix(".lock").map(|job| Paths::new(task.join(job)));
                if let Some(job) = job
                    && is_free(path)
                    && is_old(path)
                    && !is_at_work(&job)
                {
                    found.push(leftover(Garbage::Lock, path.clone()));
                }
                continue;
            }
            let stem = name.strip_suffix(".files").or_else(|| name.strip_suffix(".info"));
            let result = stem.unwrap_or(name);
            if names.contains(format!("{result}.info").as_str()) {
                if name.ends_with(".files") {
                    let own = path.join(OWN_DIR);
                    found.extend(temporary(&own)?);
                    let marks = entries(&own)?.into_iter().filter(|p| guard::is_left_mark(p));
                    found.extend(marks.map(|p| leftover(Garbage::Temporary, p)));
                }
                continue;
            }
            let paths = Paths::new(task.join(result));
            if !is_old(path) || !is_free(&paths.lock) {
                continue;
            }
            match name.ends_with(".files") {
                true => found.push(leftover(Garbage::Folder, path.clone())),
                false => found.push(leftover(Garbage::Result, path.clone())),
            }
        }
        Ok(())
    }

    /// Jobs whose task is not there.
    fn orphans(&self, exists: &TaskExists, what: &Collect, found: &mut Vec<Leftover>) -> io::Result<()> {
        let jobs = self.list(None, None).map_err(io::Error::other)?;
        let gone = |job: &JobRecord| job.id.is_none() && !exists(&job.workflow, &job.task);
        let mut needed = HashSet::new();
        for job in jobs.iter().filter(|j| !gone(&j.record)) {
            needed.extend(job.record.dependencies.iter().map(|d| self.dir().join(d)));
        }
        for job in jobs.into_iter().filter(|j| gone(&j.record)) {
            if job.record.effective_status().is_active() {
                continue;
            }
            let paths = Paths::new(job.path.clone());
            let bytes = [&paths.result, &paths.info, &paths.files]
                .map(|p| size_on_disk(p))
                .iter()
                .sum();
            let mut kept = None;
            if !what.all && needed.contains(&job.path) {
                kept = Some("another job depends on it".to_owned());
            } else if !what.all && what.is_referred.is_some_and(|refers| refers(&job.record, &job.path)) {
                kept = Some("a chat speaks of it".to_owned());
            }
            found.push(Leftover {
                kind: Garbage::Orphan,
                path: job.path,
                bytes,
                kept,
            });
        }
        Ok(())
    }
}

fn leftover(kind: Garbage, path: PathBuf) -> Leftover {
    Leftover {
        bytes: size_on_disk(&path),
        kind,
        path,
        kept: None,
    }
}

/// Files that were on their way to their names.
fn temporary(dir: &Path) -> io::Result<Vec<Leftover>> {
    let is_temporary = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        name.starts_with(".tmp-") && is_old(path)
    };
    let found = entries(dir)?.into_iter().filter(is_temporary);
    Ok(found.map(|path| leftover(Garbage::Temporary, path)).collect())
}

fn is_old(path: &Path) -> bool {
    let changed = fs::symlink_metadata(path).and_then(|m| m.modified());
    changed.is_ok_and(|at| at.elapsed().is_ok_and(|age| age >= YOUNG))
}

/// Whether nobody holds a lock. One that does not exist is free.
fn is_free(lock: &Path) -> bool {
    match File::open(lock) {
        Ok(file) => file.try_lock().is_ok(),
        Err(e) => e.kind() == io::ErrorKind::NotFound,
    }
}

fn is_at_work(paths: &Paths) -> bool {
    match JobRecord::read(&paths.info) {
        Found::Record(record) => record.effective_status().is_active(),
        _ => false,
    }
}

/// Removes a leftover. False when somebody is at work on it.
fn clear(leftover: &Leftover) -> Result<bool, JobError> {
    let path = &leftover.path;
    let file = |path: &Path| match fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(JobError::Store(named(e, path).to_string())),
        _ => Ok(()),
    };
    let folder = |path: &Path| match fs::remove_dir_all(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(JobError::Store(named(e, path).to_string())),
        _ => Ok(()),
    };
    let stem = |end: &str| {
        let text = path.to_string_lossy().into_owned();
        Paths::new(PathBuf::from(text.strip_suffix(end).unwrap_or(&text)))
    };
    match leftover.kind {
        Garbage::Temporary => file(path)?,
        Garbage::Aside => folder(path)?,
        Garbage::Lock => {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let job = name.trim_start_matches('.').trim_end_matches(".lock").to_owned();
            // To have had it is to have removed it.
            return Ok(lock(&Paths::new(path.with_file_name(job)))?.is_some());
        }
        Garbage::Folder | Garbage::Result | Garbage::Orphan => {
            let paths = stem(if leftover.kind == Garbage::Folder { ".files" } else { "" });
            let Some(_lock) = lock(&paths)? else {
                return Ok(false);
            };
            match leftover.kind {
                Garbage::Folder => folder(path)?,
                Garbage::Result => file(path)?,
                _ => remove(&paths).map_err(|e| JobError::Store(e.to_string()))?,
            }
        }
    }
    Ok(true)
}
