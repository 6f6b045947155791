//! The record of a job: a JSON file beside its result.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use decanus_base::files::write_atomic;
use decanus_base::process;
use jiff::Timestamp;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::executor::LOCAL;
use crate::result::ResultType;

/// Where a job is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// Its dependencies are being run.
    Waiting,
    /// Its process is running.
    Running,
    /// Its result is stored.
    Done,
    /// It failed.
    Error,
    /// It was stopped, or whoever ran it died.
    Aborted,
}

impl Status {
    /// The state of a word.
    pub fn parse(word: &str) -> Option<Self> {
        let all = [Self::Waiting, Self::Running, Self::Done, Self::Error, Self::Aborted];
        all.into_iter().find(|status| status.as_str() == word)
    }

    /// The stable word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Running => "running",
            Self::Done => "done",
            Self::Error => "error",
            Self::Aborted => "aborted",
        }
    }

    /// Whether somebody is at work on it.
    pub fn is_active(self) -> bool {
        matches!(self, Self::Waiting | Self::Running)
    }
}

/// The record of a job. Times are RFC 3339 in UTC.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobRecord {
    /// Where it is in its life, as far as its owner came to say.
    pub status: Status,
    /// The id of a pending tool call: a random UUID, whose digits are the digest. A task's job has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// The workflow's name.
    pub workflow: String,
    /// The task's name.
    pub task: String,
    /// The part of its name that people choose; `Default` when nobody did.
    pub name: String,
    /// The part of its name that is its identity: 32 hexadecimal digits.
    pub digest: String,
    /// What its result is.
    #[serde(rename = "type")]
    pub kind: ResultType,
    /// The task's own inputs, defaults included.
    pub inputs: Map<String, Value>,
    /// The jobs whose results it used: their paths, relative to the jobs folder; that of a file that stood in for a task
    /// is absolute.
    pub dependencies: Vec<String>,
    /// What its identity was made of: a digest for each part ([`identity`](crate::identity)).
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub identity: Map<String, Value>,
    /// The results among `dependencies`, by the names that its task knows them by.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub links: BTreeMap<String, RecordLink>,
    /// The process that runs it, or ran it.
    pub pid: u32,
    /// When that process started, in clock ticks since boot; with `pid` and `host` it names the process for good.
    pub pid_started: Option<u64>,
    /// The process group of the task's own process.
    pub pgid: Option<u32>,
    /// When that group's leader started, in clock ticks since boot.
    pub pgid_started: Option<u64>,
    /// The machine.
    pub host: String,
    /// What runs it, or ran it; `local`, `slurm`.
    pub executor: String,
    /// The id that a scheduler gave it.
    pub scheduler_id: Option<String>,
    /// When its run was asked for.
    pub created: String,
    /// When its own process was started, its dependencies being done.
    pub started: Option<String>,
    /// When it was done, or failed.
    pub ended: Option<String>,
    /// The exit code of its process.
    pub exit_code: Option<i32>,
    /// Why it failed, with the last lines of its standard error.
    pub error: Option<String>,
    /// The versions of what ran it.
    pub versions: Map<String, Value>,
}

/// A name for results that a job used.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordLink {
    /// Their places among the record's `dependencies`.
    pub at: Vec<usize>,
    /// Whether there is one for each item of a list.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub each: bool,
    /// Whether the job went on when one failed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub canfail: bool,
}

/// What was found where a record should be.
#[derive(Debug)]
pub(crate) enum Found<T = JobRecord> {
    Record(Box<T>),
    /// There is none.
    Nothing,
    /// There is something that is no record: cut short, or of another program.
    Torn(String),
}

fn read_json<T: DeserializeOwned>(path: &Path) -> Found<T> {
    match std::fs::read(path) {
        Ok(bytes) => match serde_json::from_slice(&bytes) {
            Ok(record) => Found::Record(Box::new(record)),
            Err(e) => Found::Torn(e.to_string()),
        },
        Err(e) if e.kind() == io::ErrorKind::NotFound => Found::Nothing,
        Err(e) => Found::Torn(e.to_string()),
    }
}

/// The little of a record that says whether a result holds: with thousands of jobs, reading the rest would be most of
/// the work.
#[derive(Debug, Clone, Copy, Deserialize)]
pub(crate) struct Brief {
    pub status: Status,
    /// When its own process was started.
    #[serde(default, deserialize_with = "as_time")]
    pub started: Timestamp,
    /// When it was done.
    #[serde(default, deserialize_with = "as_time")]
    pub ended: Timestamp,
}

impl Brief {
    pub(crate) fn read(path: &Path) -> Found<Self> {
        read_json(path)
    }
}

/// What the list of jobs shows of a record, and what it takes to know its status.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Sketch {
    pub status: Status,
    #[serde(default)]
    pub id: Option<String>,
    pub workflow: String,
    pub task: String,
    pub name: String,
    pub digest: String,
    pub pid: u32,
    pub pid_started: Option<u64>,
    pub host: String,
    pub created: String,
    pub started: Option<String>,
    pub ended: Option<String>,
}

impl Sketch {
    pub(crate) fn read(path: &Path) -> Found<Self> {
        read_json(path)
    }

    /// As [`JobRecord::is_orphaned`].
    pub(crate) fn is_orphaned(&self) -> bool {
        self.status.is_active() && is_gone(&self.host, self.pid, self.pid_started)
    }

    /// As [`JobRecord::effective_status`].
    pub(crate) fn effective_status(&self) -> Status {
        effective(self.status, self.is_orphaned(), self.id.is_some())
    }
}

/// Whether a process of this machine is no longer there. Of other machines' nothing is known.
fn is_gone(host: &str, pid: u32, started: Option<u64>) -> bool {
    host == process::host() && (started.is_none() || process::start_time(pid) != started)
}

fn effective(status: Status, is_orphaned: bool, is_call: bool) -> Status {
    match (is_orphaned, is_call) {
        (false, _) => status,
        (true, true) => Status::Error,
        (true, false) => Status::Aborted,
    }
}

fn as_time<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Timestamp, D::Error> {
    let text: Option<String> = Deserialize::deserialize(from)?;
    Ok(time(text.as_ref()))
}

impl JobRecord {
    pub(crate) fn read(path: &Path) -> Found {
        read_json(path)
    }

    pub(crate) fn write(&self, path: &Path) -> io::Result<()> {
        let mut bytes = serde_json::to_vec_pretty(self)?;
        bytes.push(b'\n');
        write_atomic(path, &bytes)
    }

    /// Whether the process that the record says is at work on it is known to be gone. Of another machine's processes
    /// nothing is known, and of a job that a scheduler has only that one knows.
    pub fn is_orphaned(&self) -> bool {
        self.status.is_active() && !self.is_elsewhere() && is_gone(&self.host, self.pid, self.pid_started)
    }

    /// Whether it was handed over to a scheduler.
    pub fn is_elsewhere(&self) -> bool {
        !self.executor.is_empty() && self.executor != LOCAL
    }

    /// The status as it is: a job whose owner is gone was aborted, whatever the record says. A pending tool call has
    /// failed then: nobody runs it again.
    pub fn effective_status(&self) -> Status {
        effective(self.status, self.is_orphaned(), self.id.is_some())
    }
}

/// The record of a job that this process has been asked for, with neither inputs nor dependencies.
pub(crate) fn new_record(workflow: &str, task: &str, name: &str, digest: &str, kind: ResultType) -> JobRecord {
    let pid = std::process::id();
    let mut versions = Map::new();
    versions.insert("decanus".into(), env!("CARGO_PKG_VERSION").into());
    JobRecord {
        status: Status::Waiting,
        id: None,
        workflow: workflow.to_owned(),
        task: task.to_owned(),
        name: name.to_owned(),
        digest: digest.to_owned(),
        kind,
        inputs: Map::new(),
        dependencies: Vec::new(),
        identity: Map::new(),
        links: BTreeMap::new(),
        pid,
        pid_started: process::start_time(pid),
        pgid: None,
        pgid_started: None,
        host: process::host(),
        executor: LOCAL.into(),
        scheduler_id: None,
        created: now(),
        started: None,
        ended: None,
        exit_code: None,
        error: None,
        versions,
    }
}

pub(crate) fn now() -> String {
    Timestamp::now().to_string()
}

/// A time of a record; one that can't be read is the beginning of time.
pub(crate) fn time(text: Option<&String>) -> Timestamp {
    text.and_then(|t| t.parse().ok()).unwrap_or(Timestamp::MIN)
}
