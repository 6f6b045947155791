//! Pending tool calls as jobs: each has an id of its own, a record beside its result as every job has, and a worker that
//! outlives whoever asked for it.
//!
//! A job is at `tool/TOOL/Default_DIGITS.json` of the jobs folder, where the digits are those of its id. It begins as
//! `waiting`, owned by who asked; the worker claims it, is its owner from then on, and writes how it ended. An owner that
//! died is known by its process id and start time; its job has failed.

use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use decanus_base::files::{LockError, OwnerLock, write_atomic};
use decanus_base::process;
use decanus_tool::{
    Args, Background, JobState, PendingJob, Permissions, Run, Tool, ToolContext, ToolError, ToolErrorClass,
};
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use uuid::Uuid;

use crate::error::JobError;
use crate::record::{Found, JobRecord, Status, new_record, now};
use crate::result::ResultType;
use crate::spawner::CALL_FILE;
use crate::store::{JobStore, Paths, StoredJob, entries, folders};

pub use crate::spawner::{InProcess, Order, ProcessSpawner, Spawner};

/// The folder of pending tool calls among those of the workflows.
pub const FOLDER: &str = "tool";
/// How long a job is kept after its end.
pub const KEPT: SignedDuration = SignedDuration::from_hours(24);
/// How many jobs are kept; of those that have ended the oldest go first.
pub const MOST_ENDED: usize = 10_000;
pub(crate) const WORKER_DIED: &str = "the worker died";
/// Time that the work of a cancelled job has to clean up.
pub(crate) const CLEAN_UP: Duration = Duration::from_secs(4);

/// The pending tool calls of a job store.
#[derive(Clone)]
pub struct ToolJobs {
    store: JobStore,
    /// Clones share it.
    spawner: Arc<RwLock<Arc<dyn Spawner>>>,
}

/// What a worker must know of the call besides the arguments.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Call {
    /// Whether a model chose the arguments.
    from_model: bool,
    /// Paths that the run was allowed to read.
    read: Vec<PathBuf>,
    /// Paths that the run was allowed to write.
    write: Vec<PathBuf>,
}

fn store_error(e: impl std::fmt::Display) -> JobError {
    JobError::Store(e.to_string())
}

/// A time of a record as one of the file system, in whole seconds.
fn system_time(at: Timestamp) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(u64::try_from(at.as_second()).unwrap_or_default())
}

/// The folder's name for a tool.
fn folder_name(tool: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' };
    tool.chars().map(plain).take(100).collect()
}

impl ToolJobs {
    /// The pending calls of a store, run within this process unless [`set_spawner`](Self::set_spawner) says otherwise.
    pub fn new(store: JobStore) -> Self {
        Self {
            store,
            spawner: Arc::new(RwLock::new(Arc::new(InProcess))),
        }
    }

    /// Who runs jobs that are begun from here on.
    pub fn set_spawner(&self, spawner: Arc<dyn Spawner>) {
        *self.spawner.write().unwrap_or_else(PoisonError::into_inner) = spawner;
    }

    /// Stores a job that nobody runs yet.
    fn create(&self, tool: &str, args: Args, cx: &ToolContext) -> Result<PendingJob, JobError> {
        let id = Uuid::new_v4();
        let digits = id.simple().to_string();
        let folder = self.store.dir().join(FOLDER).join(folder_name(tool));
        let path = folder.join(format!("Default_{digits}.json"));
        let paths = Paths::new(path.clone());
        let permissions = cx.run.permissions();
        let call = Call {
            from_model: cx.from_model,
            read: permissions.read.clone(),
            write: permissions.write.clone(),
        };
        let call = serde_json::to_vec(&call).map_err(store_error)?;
        write_atomic(&paths.own.join(CALL_FILE), &call).map_err(store_error)?;
        let record = JobRecord {
            id: Some(id.to_string()),
            inputs: args,
            ..new_record(FOLDER, tool, "Default", &digits, ResultType::Json)
        };
        record.write(&paths.info).map_err(store_error)?;
        Ok(PendingJob {
            message: Some(format!(
                "The job goes on in the background. Ask for its result later with {} and this job_id.",
                decanus_tool::background::CHECK_TOOL
            )),
            id: id.to_string(),
            path,
        })
    }

    /// The job of an id, whatever its age.
    fn locate(&self, id: &str) -> io::Result<Option<StoredJob>> {
        // Nothing but a UUID is looked up, so that an id can't lead out of the folder.
        let Ok(id) = Uuid::try_parse(id.trim()) else {
            return Ok(None);
        };
        let name = format!("Default_{}.json", id.simple());
        for folder in folders(&self.store.dir().join(FOLDER), None)? {
            if let Some(job) = self.store.read(folder.join(&name)) {
                return Ok(Some(job));
            }
        }
        Ok(None)
    }

    /// The job of an id, at a time. One that is too old is removed; one whose worker died is marked as failed.
    ///
    /// # Errors
    /// When the jobs folder can't be read or written.
    pub fn find(&self, id: &str, at: Timestamp) -> Result<Option<StoredJob>, JobError> {
        let Some(mut job) = self.locate(id).map_err(store_error)? else {
            return Ok(None);
        };
        if job.is_expired(at) {
            remove(&Paths::new(job.path)).map_err(store_error)?;
            return Ok(None);
        }
        if job.record.is_orphaned() {
            self.settle(&job, at)?;
            job = match self.store.read(job.path) {
                Some(job) => job,
                None => return Ok(None),
            };
        }
        Ok(Some(job))
    }

    /// Writes down that a job's worker died, and ends what it left.
    fn settle(&self, job: &StoredJob, at: Timestamp) -> Result<(), JobError> {
        let paths = Paths::new(job.path.clone());
        let Some(_lock) = lock(&paths)? else {
            return Ok(());
        };
        // Whoever held the lock may have settled it.
        let Found::Record(mut record) = JobRecord::read(&paths.info) else {
            return Ok(());
        };
        if !record.is_orphaned() {
            return Ok(());
        }
        end_leftovers(&record);
        let words = crate::body::stderr_tail(&paths);
        record.status = Status::Error;
        record.ended = Some(at.to_string());
        record.error = Some(match words.as_str() {
            "" => WORKER_DIED.into(),
            words => format!("{WORKER_DIED}: {words}"),
        });
        record.write(&paths.info).map_err(store_error)
    }

    /// What has become of a job, at a time.
    ///
    /// # Errors
    /// When the jobs folder can't be read.
    pub fn state(&self, id: &str, at: Timestamp) -> Result<JobState, JobError> {
        let Some(job) = self.find(id, at)? else {
            return Ok(JobState::Unknown);
        };
        Ok(match job.status() {
            Status::Waiting | Status::Running => JobState::Pending,
            Status::Done => match job.value() {
                Ok(value) => JobState::Completed(value),
                Err(e) => JobState::Failed(e.to_string()),
            },
            status => JobState::Failed(job.error().unwrap_or_else(|| status.as_str().into())),
        })
    }

    /// Removes the jobs that ended longer than [`KEPT`] before a time, and the oldest beyond [`MOST_ENDED`]; gives how
    /// many. Jobs whose worker died are marked as failed.
    ///
    /// # Errors
    /// When the jobs folder can't be read or written.
    pub fn prune(&self, at: Timestamp) -> Result<usize, JobError> {
        self.prune_to(at, MOST_ENDED).map_err(store_error)
    }

    pub(crate) fn prune_to(&self, at: Timestamp, most: usize) -> io::Result<usize> {
        let mut found = Vec::new();
        for folder in folders(&self.store.dir().join(FOLDER), None)? {
            for info in entries(&folder)? {
                let is_record = info.extension().is_some_and(|e| e == "info");
                // Gone meanwhile: somebody else removed it.
                let changed = fs::metadata(&info).and_then(|m| m.modified());
                if let (true, Ok(changed)) = (is_record, changed) {
                    found.push((changed, info.with_extension("")));
                }
            }
        }
        // A record is last written when its job ends, so a young one need not be read.
        let old = system_time(at) - KEPT.unsigned_abs();
        let mut excess = found.len().saturating_sub(most);
        found.sort();
        let mut removed = 0;
        for (changed, path) in found {
            if excess == 0 && changed > old {
                break;
            }
            let Some(job) = self.store.read(path) else {
                continue;
            };
            if job.record.is_orphaned() {
                self.settle(&job, at).map_err(io::Error::other)?;
            } else if job.is_expired(at) || (excess > 0 && !job.record.status.is_active()) {
                remove(&Paths::new(job.path))?;
                excess = excess.saturating_sub(1);
                removed += 1;
            }
        }
        Ok(removed)
    }

    /// [`prune`](Self::prune), now.
    ///
    /// # Errors
    /// Those of `prune`.
    pub fn tidy(&self) -> Result<usize, JobError> {
        self.prune(Timestamp::now())
    }

    /// Takes over a job that nobody runs yet: this process is its owner from now on. `own_process` says that the process is
    /// there for this job alone, and may be ended with all of its group to cancel it.
    ///
    /// # Errors
    /// When there is no such job, or it has been taken over already.
    pub fn claim(&self, id: &str, own_process: bool) -> Result<Claim, JobError> {
        let none = |path: PathBuf, reason: String| JobError::NoResult { path, reason };
        let Some(job) = self.locate(id).map_err(store_error)? else {
            return Err(none(
                self.store.dir().join(FOLDER),
                format!("there is no pending job `{id}`"),
            ));
        };
        let paths = Paths::new(job.path.clone());
        let refused = |status: Status| none(job.path.clone(), format!("the job is {} already", status.as_str()));
        let Some(lock) = lock(&paths)? else {
            return Err(refused(Status::Running));
        };
        let mut record = match JobRecord::read(&paths.info) {
            Found::Record(record) if record.status == Status::Waiting => *record,
            Found::Record(record) => return Err(refused(record.status)),
            Found::Nothing => return Err(none(job.path.clone(), "the job was removed".into())),
            Found::Torn(reason) => return Err(none(job.path.clone(), reason)),
        };
        let call = fs::read(paths.own.join(CALL_FILE)).map_err(store_error)?;
        let call: Call = serde_json::from_slice(&call).map_err(store_error)?;
        record.status = Status::Running;
        record.started = Some(now());
        record.pid = std::process::id();
        record.pid_started = process::start_time(record.pid);
        record.host = process::host();
        if own_process && process::leads_its_group() {
            record.pgid = Some(record.pid);
            record.pgid_started = record.pid_started;
        }
        record.write(&paths.info).map_err(store_error)?;
        Ok(Claim {
            paths,
            record,
            call,
            _lock: lock,
        })
    }

    /// Writes down that a job could not be begun.
    fn give_up(&self, path: PathBuf, reason: &str) -> Result<(), JobError> {
        let paths = Paths::new(path);
        if let Found::Record(mut record) = JobRecord::read(&paths.info)
            && record.status.is_active()
        {
            record.status = Status::Error;
            record.ended = Some(now());
            record.error = Some(reason.to_owned());
            record.write(&paths.info).map_err(store_error)?;
        }
        Ok(())
    }
}

#[async_trait]
impl Background for ToolJobs {
    async fn start(&self, work: Arc<dyn Tool>, args: Args, cx: &ToolContext) -> Result<PendingJob, ToolError> {
        let (jobs, tool, context) = (self.clone(), work.definition().name.clone(), cx.clone());
        let job = blocking(move || {
            if let Err(e) = jobs.tidy() {
                tracing::warn!("jobs that are too old could not be removed: {e}");
            }
            jobs.create(&tool, args, &context)
        })
        .await?;
        let spawner = self.spawner.read().unwrap_or_else(PoisonError::into_inner).clone();
        // Not bound to the run that asks: the job goes on when that is over.
        let run = Run::builder(cx.run.spill_dir()).limits(cx.run.limits().clone());
        let order = Order {
            id: job.id.clone(),
            path: job.path.clone(),
            work,
            run: run.permissions(cx.run.permissions().clone()).build(),
        };
        if let Err(reason) = spawner.spawn(self, order).await {
            let (jobs, path, text) = (self.clone(), job.path.clone(), reason.clone());
            blocking(move || jobs.give_up(path, &text)).await?;
            return Err(ToolError::Respond {
                class: ToolErrorClass::Job,
                message: format!("the job could not be begun: {reason}"),
                job: Some(job.path),
            });
        }
        Ok(job)
    }

    async fn check(&self, id: &str) -> Result<JobState, ToolError> {
        let (jobs, id) = (self.clone(), id.to_owned());
        blocking(move || jobs.state(&id, Timestamp::now())).await
    }
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, JobError> + Send + 'static,
) -> Result<T, ToolError> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|e| ToolError::Fatal(format!("the thread of the job ended: {e}")))?
        .map_err(|e| ToolError::respond(ToolErrorClass::Job, e.to_string()))
}

/// A job that this process runs.
pub struct Claim {
    paths: Paths,
    record: JobRecord,
    call: Call,
    _lock: OwnerLock,
}

/// How the work of a job ended.
enum End {
    Done(Value),
    Failed(String),
    Cancelled,
}

impl Claim {
    /// The tool whose work it is.
    pub fn tool(&self) -> &str {
        &self.record.task
    }

    /// What the run that asked for it was allowed.
    pub fn permissions(&self) -> Permissions {
        Permissions {
            read: self.call.read.clone(),
            write: self.call.write.clone(),
        }
    }

    /// Does the work and stores how it ended. Cancelling the run, or the job, ends it early.
    pub async fn run(self, work: Arc<dyn Tool>, run: &Run) -> Status {
        let cx = ToolContext {
            from_model: self.call.from_model,
            ..ToolContext::new(self.record.id.clone().unwrap_or_default(), run)
        };
        let limit = work.definition().timeout;
        let marker = self.paths.cancel();
        let args = self.record.inputs.clone();
        let (context, begun) = (cx.clone(), tokio::time::Instant::now());
        // A task of its own, so that a panic is an end like others.
        let mut task = tokio::spawn(async move { work.call(args, &context).await });
        let stopped = loop {
            let is_over = limit.is_some_and(|l| begun.elapsed() >= l);
            if is_over {
                break End::Failed(format!("{}: it took too long", ToolErrorClass::Timeout.as_str()));
            }
            if marker.exists() {
                break End::Cancelled;
            }
            tokio::select! {
                ended = &mut task => {
                    let end = end_of(ended);
                    return self.finish(end);
                }
                () = run.cancel().cancelled() => break End::Cancelled,
                () = tokio::time::sleep(Duration::from_millis(200)) => {}
            }
        };
        cx.cancel.cancel();
        let end = match tokio::time::timeout(CLEAN_UP, &mut task).await {
            // It got done at the last moment: then that is the truth.
            Ok(ended @ Ok(Ok(_))) => end_of(ended),
            Ok(_) => stopped,
            Err(_) => {
                task.abort();
                stopped
            }
        };
        self.finish(end)
    }

    /// Stores that the work could not even begin.
    pub fn fail(self, reason: impl Into<String>) -> Status {
        self.finish(End::Failed(reason.into()))
    }

    fn finish(mut self, end: End) -> Status {
        // A job that was removed meanwhile is not made again.
        let is_ours = matches!(JobRecord::read(&self.paths.info), Found::Record(r) if r.pid == self.record.pid);
        if !is_ours {
            return Status::Aborted;
        }
        let end = match end {
            End::Done(value) => match self.store(&value) {
                Ok(()) => End::Done(value),
                Err(e) => End::Failed(format!("its result can't be stored: {e}")),
            },
            end => end,
        };
        let (status, error) = match end {
            End::Done(_) => (Status::Done, None),
            End::Failed(error) => (Status::Error, Some(error)),
            End::Cancelled => (Status::Aborted, Some("cancelled".to_owned())),
        };
        self.record.status = status;
        self.record.error = error;
        self.record.ended = Some(now());
        if let Err(e) = self.record.write(&self.paths.info) {
            tracing::warn!("{e}");
        }
        status
    }

    fn store(&self, value: &Value) -> io::Result<()> {
        let mut bytes = serde_json::to_vec(value)?;
        bytes.push(b'\n');
        write_atomic(&self.paths.result, &bytes)
    }
}

fn end_of(ended: Result<Result<decanus_tool::ToolOutput, ToolError>, tokio::task::JoinError>) -> End {
    match ended {
        Ok(Ok(output)) => End::Done(output.value),
        Ok(Err(ToolError::Respond {
            class: ToolErrorClass::Interrupted,
            ..
        })) => End::Cancelled,
        Ok(Err(ToolError::Respond { class, message, .. })) => End::Failed(format!("{}: {message}", class.as_str())),
        Ok(Err(ToolError::Fatal(message))) => End::Failed(format!("{}: {message}", ToolErrorClass::Tool.as_str())),
        Err(e) if e.is_panic() => {
            let panic = e.into_panic();
            let words = panic
                .downcast_ref::<&str>()
                .map(|s| (*s).to_owned())
                .or_else(|| panic.downcast_ref::<String>().cloned())
                .unwrap_or_else(|| "no message".into());
            End::Failed(format!("{}: it broke down: {words}", ToolErrorClass::Tool.as_str()))
        }
        Err(_) => End::Cancelled,
    }
}

impl StoredJob {
    /// Whether it is a pending tool call that ended too long ago to be kept. Results of tasks are kept.
    pub fn is_expired(&self, at: Timestamp) -> bool {
        let ended = self.record.ended.as_ref().and_then(|t| t.parse::<Timestamp>().ok());
        let is_over = self.record.id.is_some() && !self.record.status.is_active();
        is_over && ended.is_some_and(|ended| at.duration_since(ended) >= KEPT)
    }
}

/// The lock of a job; `None` when somebody has it.
pub(crate) fn lock(paths: &Paths) -> Result<Option<OwnerLock>, JobError> {
    match OwnerLock::acquire(&paths.lock, Duration::ZERO, &|| false) {
        Ok(lock) => Ok(Some(lock)),
        Err(LockError::Held { .. }) => Ok(None),
        Err(LockError::Io(e)) => Err(store_error(e)),
    }
}

/// Ends what a worker that is gone left in its group.
pub(crate) fn end_leftovers(record: &JobRecord) {
    if let (Some(group), Some(id)) = (record.pgid, &record.id)
        && record.host == process::host()
    {
        process::end_marked(group, crate::spawner::MARK, id.as_ref());
    }
}

/// Removes a job: its record first, since without one there is no job.
pub(crate) fn remove(paths: &Paths) -> io::Result<()> {
    let absent = |e: io::Error| match e.kind() {
        io::ErrorKind::NotFound => Ok(()),
        _ => Err(e),
    };
    let named = decanus_base::files::named;
    fs::remove_file(&paths.info)
        .or_else(absent)
        .map_err(|e| named(e, &paths.info))?;
    fs::remove_file(&paths.result)
        .or_else(absent)
        .map_err(|e| named(e, &paths.result))?;
    fs::remove_dir_all(&paths.files)
        .or_else(absent)
        .map_err(|e| named(e, &paths.files))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn context(from_model: bool) -> ToolContext {
        let run = Run::builder("/nowhere").build();
        ToolContext {
            from_model,
            ..ToolContext::new("c", &run)
        }
    }

    /// A job that ended so many hours ago.
    fn ended(jobs: &ToolJobs, hours: i64) -> PendingJob {
        let job = jobs.create("t", Args::new(), &context(true)).unwrap();
        jobs.claim(&job.id, false).unwrap().finish(End::Done(json!(hours)));
        let paths = Paths::new(job.path.clone());
        let Found::Record(mut record) = JobRecord::read(&paths.info) else {
            panic!("no record");
        };
        let at = Timestamp::now() - SignedDuration::from_hours(hours);
        record.ended = Some(at.to_string());
        record.write(&paths.info).unwrap();
        let file = fs::File::open(&paths.info).unwrap();
        file.set_modified(system_time(at)).unwrap();
        job
    }

    #[test]
    fn only_so_many_are_kept_and_none_for_ever() {
        let dir = tempfile::tempdir().unwrap();
        let jobs = ToolJobs::new(JobStore::new(dir.path()));
        let [old, first, second, third] = [30, 9, 5, 1].map(|hours| ended(&jobs, hours));
        let active = jobs.create("t", Args::new(), &context(true)).unwrap();
        assert_eq!(jobs.prune_to(Timestamp::now(), 100).unwrap(), 1);
        assert!(!old.path.exists() && !Paths::new(old.path).files.exists());
        // Three are kept: the one at work and the last two.
        assert_eq!(jobs.prune_to(Timestamp::now(), 3).unwrap(), 1);
        assert!(!first.path.exists() && second.path.exists() && third.path.exists());
        // What is at work is never removed.
        assert_eq!(jobs.prune_to(Timestamp::now(), 0).unwrap(), 2);
        assert_eq!(jobs.state(&active.id, Timestamp::now()).unwrap(), JobState::Pending);
        assert_eq!(MOST_ENDED, 10_000);
    }

    #[test]
    fn what_the_run_was_allowed_reaches_the_worker() {
        let dir = tempfile::tempdir().unwrap();
        let jobs = ToolJobs::new(JobStore::new(dir.path()));
        let mut cx = context(false);
        let allowed = Permissions {
            read: vec!["/a".into()],
            write: vec!["/b".into()],
        };
        cx.run = Run::builder("/nowhere").permissions(allowed.clone()).build();
        let job = jobs.create("t", Args::new(), &cx).unwrap();
        let claim = jobs.claim(&job.id, false).unwrap();
        assert_eq!((claim.permissions(), claim.call.from_model), (allowed, false));
    }

    #[test]
    fn a_job_that_was_removed_is_not_made_again() {
        let dir = tempfile::tempdir().unwrap();
        let jobs = ToolJobs::new(JobStore::new(dir.path()));
        let job = jobs.create("t", Args::new(), &context(true)).unwrap();
        let claim = jobs.claim(&job.id, false).unwrap();
        remove(&Paths::new(job.path.clone())).unwrap();
        claim.finish(End::Done(json!(1)));
        assert!(!job.path.exists() && !Paths::new(job.path).info.exists());
    }
}
