//! The jobs folder: where the files of a job are, and which jobs there are.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use decanus_base::files::named;
use jiff::Timestamp;
use serde_json::{Map, Value, json};

use crate::background::WORKER_DIED;
use crate::error::{FindError, JobError};
use crate::executor::Executors;
use crate::job::Job;
use crate::record::{Found, JobRecord, Status};
use crate::slots::{Capacity, Slots};

/// The folder for what the runner itself keeps, within a job's folder.
pub(crate) const OWN_DIR: &str = ".job";

/// The jobs of a project.
#[derive(Clone, Debug)]
pub struct JobStore {
    dir: PathBuf,
    /// What its jobs share while they run in this process.
    slots: Slots,
    /// What may run them elsewhere.
    executors: Executors,
}

/// The files of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Paths {
    pub(crate) result: PathBuf,
    pub(crate) info: PathBuf,
    pub(crate) files: PathBuf,
    pub(crate) own: PathBuf,
    pub(crate) lock: PathBuf,
}

impl Paths {
    pub(crate) fn new(result: PathBuf) -> Self {
        let with = |end: &str| {
            let mut name = result.clone().into_os_string();
            name.push(end);
            PathBuf::from(name)
        };
        let file = result
            .file_name()
            .map(|n| n.to_string_lossy().into_owned())
            .unwrap_or_default();
        Self {
            info: with(".info"),
            files: with(".files"),
            own: with(".files").join(OWN_DIR),
            lock: result.with_file_name(format!(".{file}.lock")),
            result,
        }
    }

    /// Stands there when somebody wants the job to end.
    pub(crate) fn cancel(&self) -> PathBuf {
        self.own.join("cancel")
    }
}

/// A job that was found in the store.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredJob {
    /// Absolute path of its result.
    pub path: PathBuf,
    /// Its record; for one that can't be read, what its path says, status `error` and the reason.
    pub record: JobRecord,
    jobs_dir: PathBuf,
}

impl JobStore {
    /// The jobs in a folder, which is made when something is stored.
    pub fn new(jobs_dir: impl Into<PathBuf>) -> Self {
        let dir = jobs_dir.into();
        Self {
            dir: std::path::absolute(&dir).unwrap_or(dir),
            slots: Slots::new(Capacity::of_machine()),
            executors: Executors::default(),
        }
    }

    /// The same store with these executors; without any, its jobs run in this process.
    #[must_use]
    pub fn with_executors(self, executors: Executors) -> Self {
        Self { executors, ..self }
    }

    pub(crate) fn executors(&self) -> &Executors {
        &self.executors
    }

    /// The same store, whose jobs share this much while they run; without it, what the machine has.
    #[must_use]
    pub fn with_capacity(self, capacity: Capacity) -> Self {
        Self {
            slots: Slots::new(capacity),
            ..self
        }
    }

    pub(crate) fn slots(&self) -> &Slots {
        &self.slots
    }

    /// The folder.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Absolute path of a job's result, whether or not it is there.
    pub fn path(&self, job: &Job) -> PathBuf {
        self.dir.join(job.relative_path())
    }

    pub(crate) fn paths(&self, job: &Job) -> Paths {
        Paths::new(self.path(job))
    }

    /// All jobs, of one workflow or one task if these are given, oldest first.
    ///
    /// # Errors
    /// When the folder can't be read; one that does not exist has no jobs.
    pub fn list(&self, workflow: Option<&str>, task: Option<&str>) -> Result<Vec<StoredJob>, FindError> {
        let unreadable = |e: io::Error| FindError::Unreadable(e.to_string());
        let mut jobs = Vec::new();
        for workflow_dir in folders(&self.dir, workflow).map_err(unreadable)? {
            for task_dir in folders(&workflow_dir, task).map_err(unreadable)? {
                for entry in entries(&task_dir).map_err(unreadable)? {
                    let name = entry
                        .file_name()
                        .map(|n| n.to_string_lossy().into_owned())
                        .unwrap_or_default();
                    if let Some(result) = name.strip_suffix(".info").filter(|n| !n.starts_with('.'))
                        && let Some(job) = self.read(task_dir.join(result))
                    {
                        jobs.push(job);
                    }
                }
            }
        }
        let now = Timestamp::now();
        jobs.retain(|j| !j.is_expired(now));
        jobs.sort_by_cached_key(|j| (crate::record::time(Some(&j.record.created)), j.path.clone()));
        Ok(jobs)
    }

    /// The job of a result's path; `None` when there is no record of it.
    pub fn read(&self, path: PathBuf) -> Option<StoredJob> {
        let info = Paths::new(path.clone()).info;
        let record = match JobRecord::read(&info) {
            // Its owner may have ended just after the record was read: with a last word in it.
            Found::Record(record) if record.is_orphaned() => match JobRecord::read(&info) {
                Found::Record(again) => *again,
                _ => *record,
            },
            Found::Record(record) => *record,
            Found::Nothing => return None,
            Found::Torn(reason) => torn(&path, &reason),
        };
        Some(StoredJob {
            path,
            record,
            jobs_dir: self.dir.clone(),
        })
    }

    /// The job that is meant by a path (relative ones from `base`), `WORKFLOW/TASK/NAME`, or the first letters of a
    /// digest, at least six.
    ///
    /// # Errors
    /// When there is none, or more than one.
    pub fn find(&self, typed: &str, base: &Path) -> Result<StoredJob, FindError> {
        let none = || FindError::None(typed.to_owned());
        let as_path = base.join(typed);
        for end in ["", ".info", ".files"] {
            let text = as_path.to_string_lossy();
            let stripped = text.trim_end_matches('/').strip_suffix(end).map(PathBuf::from);
            if let Some(path) = stripped.filter(|p| p.file_name().is_some()) {
                let path = std::path::absolute(&path).unwrap_or(path);
                if let Some(job) = self.read(path) {
                    return Ok(job);
                }
            }
        }
        // The id of a pending tool call is its digest with hyphens.
        let digits = typed.replace('-', "");
        let parts: Vec<&str> = typed.split('/').collect();
        let found: Vec<StoredJob> = match parts.as_slice() {
            [workflow, task, name]
                if decanus_base::names::is_valid(workflow) && decanus_base::names::is_valid(task) =>
            {
                let mut jobs = self.list(Some(workflow), Some(task))?;
                jobs.retain(|j| j.record.name == *name || j.file_name() == *name || j.stem() == *name);
                // A whole name goes before one that somebody chose to look like it.
                if let Some(exact) = jobs.iter().position(|j| j.file_name() == *name || j.stem() == *name) {
                    jobs = vec![jobs.swap_remove(exact)];
                }
                jobs
            }
            [_] if digits.len() >= 6 && digits.bytes().all(|b| b.is_ascii_hexdigit()) => {
                let prefix = digits.to_lowercase();
                let mut jobs = self.list(None, None)?;
                jobs.retain(|j| j.record.digest.starts_with(&prefix));
                jobs
            }
            _ => Vec::new(),
        };
        match found.len() {
            0 => Err(none()),
            1 => found.into_iter().next().ok_or_else(none),
            _ => Err(FindError::Ambiguous {
                typed: typed.to_owned(),
                found: found.iter().map(|j| j.short_path()).collect(),
            }),
        }
    }
}

impl StoredJob {
    pub(crate) fn new(path: PathBuf, record: JobRecord, jobs_dir: PathBuf) -> Self {
        Self { path, record, jobs_dir }
    }

    fn file_name(&self) -> String {
        self.path
            .file_name()
            .map(|n| n.to_string_lossy().into_owned())
            .unwrap_or_default()
    }

    fn stem(&self) -> String {
        format!("{}_{}", self.record.name, self.record.digest)
    }

    /// `WORKFLOW/TASK/NAME_DIGEST.EXT`.
    pub fn short_path(&self) -> String {
        format!("{}/{}/{}", self.record.workflow, self.record.task, self.file_name())
    }

    /// The status as it is: `aborted` when the owner is gone, `error` when a result that was stored is missing.
    pub fn status(&self) -> Status {
        match self.record.effective_status() {
            Status::Done if !self.path.is_file() => Status::Error,
            status => status,
        }
    }

    /// Whether its record could be read. Otherwise only what its path says is known.
    pub fn is_readable(&self) -> bool {
        // Every record that a runner writes says when it was made.
        !self.record.created.is_empty()
    }

    /// Why it has no result, if it failed.
    pub fn error(&self) -> Option<String> {
        match (&self.record.error, self.status()) {
            (Some(error), _) => Some(error.clone()),
            (None, Status::Error) if self.record.is_orphaned() => Some(WORKER_DIED.into()),
            (None, Status::Error) => Some("the result is missing; run it again".into()),
            (None, Status::Aborted) if self.record.is_orphaned() => Some("the process that ran it is gone".into()),
            (None, _) => None,
        }
    }

    /// The folder its process ran in.
    pub fn files_dir(&self) -> PathBuf {
        Paths::new(self.path.clone()).files
    }

    /// Where its process's standard error and standard output are kept. The latter is moved to the result's place when it
    /// is the result.
    pub fn logs(&self) -> [PathBuf; 2] {
        let own = self.files_dir().join(OWN_DIR);
        ["stderr", "stdout"].map(|name| own.join(name))
    }

    /// Seconds from the start of its process to its end, or until now while it runs.
    pub fn seconds(&self) -> Option<f64> {
        let at = |text: &Option<String>| text.as_ref()?.parse::<Timestamp>().ok();
        let started = at(&self.record.started)?;
        let ended = match self.record.effective_status().is_active() {
            true => Timestamp::now(),
            false => at(&self.record.ended)?,
        };
        Some(ended.duration_since(started).as_secs_f64())
    }

    /// What its process left in its folder: absolute paths, sorted, at most 10 000.
    pub fn files(&self) -> Vec<PathBuf> {
        const MOST: usize = 10_000;
        let root = self.files_dir();
        let mut found = Vec::new();
        let mut open = vec![root.clone()];
        while let Some(dir) = open.pop() {
            for path in entries(&dir).unwrap_or_default() {
                let is_dir = fs::symlink_metadata(&path).is_ok_and(|m| m.is_dir());
                if is_dir && path != root.join(OWN_DIR) {
                    open.push(path);
                } else if !is_dir && found.len() < MOST {
                    found.push(path);
                }
            }
        }
        found.sort_unstable();
        found
    }

    /// Its result, as a value of its type.
    ///
    /// # Errors
    /// When it is not done, or the result is missing, too large or not what its type says.
    pub fn value(&self) -> Result<Value, JobError> {
        let fail = |reason: String| JobError::NoResult {
            path: self.path.clone(),
            reason,
        };
        match self.status() {
            Status::Done => self.record.kind.load(&self.path, &self.files_dir()).map_err(fail),
            status => {
                let why = self.error().map(|e| format!(": {e}")).unwrap_or_default();
                Err(fail(format!(
                    "there is no result, its status is {}{why}",
                    status.as_str()
                )))
            }
        }
    }

    /// Everything about it, as `job show --json` prints it.
    pub fn show(&self) -> Value {
        let record = &self.record;
        let dependencies: Vec<String> = record
            .dependencies
            .iter()
            .map(|d| self.jobs_dir.join(d).display().to_string())
            .collect();
        let files: Vec<String> = self.files().iter().map(|p| p.display().to_string()).collect();
        let mut shown = Map::new();
        shown.insert("path".into(), self.path.display().to_string().into());
        shown.insert("workflow".into(), record.workflow.clone().into());
        shown.insert("task".into(), record.task.clone().into());
        shown.insert("name".into(), record.name.clone().into());
        if let Some(id) = &record.id {
            shown.insert("id".into(), id.clone().into());
        }
        shown.insert("status".into(), self.status().as_str().into());
        shown.insert("inputs".into(), Value::Object(record.inputs.clone()));
        shown.insert("dependencies".into(), json!(dependencies));
        shown.insert("started".into(), json!(record.started));
        shown.insert("ended".into(), json!(record.ended));
        shown.insert("seconds".into(), json!(self.seconds()));
        shown.insert("size".into(), json!(fs::metadata(&self.path).ok().map(|m| m.len())));
        shown.insert("executor".into(), record.executor.clone().into());
        shown.insert("host".into(), record.host.clone().into());
        shown.insert("exit_code".into(), json!(record.exit_code));
        let logs = self.logs().into_iter().filter(|log| log.is_file());
        let logs: Vec<String> = logs.map(|log| log.display().to_string()).collect();
        shown.insert("logs".into(), json!(logs));
        if let Some(error) = self.error() {
            shown.insert("error".into(), error.into());
        }
        shown.insert("files".into(), json!(files));
        Value::Object(shown)
    }
}

/// The two parts of the name of a result.
pub(crate) fn name_and_digest(path: &Path) -> (String, String) {
    let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    match stem.rsplit_once('_') {
        Some((name, digest)) => (name.to_owned(), digest.to_owned()),
        None => (stem, String::new()),
    }
}

/// What can be said of a job whose record can't be read.
fn torn(path: &Path, reason: &str) -> JobRecord {
    let part = |path: Option<&Path>| {
        path.and_then(Path::file_name)
            .map(|n| n.to_string_lossy().into_owned())
            .unwrap_or_default()
    };
    let (name, digest) = name_and_digest(path);
    JobRecord {
        status: Status::Error,
        id: None,
        workflow: part(path.parent().and_then(Path::parent)),
        task: part(path.parent()),
        name,
        digest,
        kind: crate::result::ResultType::Text,
        inputs: Map::new(),
        dependencies: Vec::new(),
        identity: Map::new(),
        links: std::collections::BTreeMap::new(),
        pid: 0,
        pid_started: None,
        pgid: None,
        pgid_started: None,
        host: String::new(),
        executor: String::new(),
        scheduler_id: None,
        created: String::new(),
        started: None,
        ended: None,
        exit_code: None,
        error: Some(format!("its record can't be read ({reason}); run it again")),
        versions: Map::new(),
    }
}

/// The folders in a folder, or the one of that name.
pub(crate) fn folders(dir: &Path, only: Option<&str>) -> io::Result<Vec<PathBuf>> {
    // What is hidden is no workflow's or task's.
    let is_shown = |path: &PathBuf| !path.file_name().is_some_and(|n| n.as_encoded_bytes().starts_with(b"."));
    let mut found = match only {
        Some(name) => vec![dir.join(name)],
        None => entries(dir)?.into_iter().filter(is_shown).collect(),
    };
    found.retain(|p| p.is_dir());
    Ok(found)
}

/// What is in a folder, sorted; nothing when it does not exist.
pub(crate) fn entries(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let list = match fs::read_dir(dir) {
        Ok(list) => list,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(named(e, dir)),
    };
    let mut paths = list
        .map(|e| e.map(|e| e.path()))
        .collect::<io::Result<Vec<_>>>()
        .map_err(|e| named(e, dir))?;
    paths.sort_unstable();
    Ok(paths)
}
