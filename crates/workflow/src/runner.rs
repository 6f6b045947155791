//! The one runner: takes a job to its result, at most once for all processes that want it.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use decanus_base::files::{LockError, OwnerLock, disk_is_full, named};
use decanus_base::process::{self, Ended};
use decanus_tool::{Event, EventSink};
use jiff::Timestamp;
use tokio_util::sync::CancellationToken;

use crate::body;
use crate::definition::Body;
use crate::error::JobError;
use crate::job::{GivenResult, Job, Link};
use crate::record::{self, Found, JobRecord, RecordLink, Status, now, time};
use crate::store::{JobStore, Paths, StoredJob};

/// How to run a job.
#[derive(Clone, Default)]
pub struct RunOptions {
    /// Ends the run; its process, and all that it started, are ended too.
    pub cancel: CancellationToken,
    /// Runs the job although its result is there. The jobs it depends on are used as they are.
    pub force: bool,
    /// How long all of it may take, dependencies included. Each task's own limit holds besides.
    pub timeout: Option<Duration>,
    /// Told of jobs that are started or found, and of what the user should know.
    pub events: Option<EventSink>,
}

/// A job that is done.
#[derive(Clone, Debug)]
pub struct Done {
    /// The job, with its record.
    pub job: StoredJob,
    /// Whether the result was there and nothing ran.
    pub reused: bool,
}

/// What holds for a job and all it depends on.
#[derive(Clone)]
struct Cx {
    cancel: CancellationToken,
    /// When the time given for all of it ends, and what it was.
    deadline: Option<(Instant, Duration)>,
    events: Option<EventSink>,
}

impl Cx {
    fn emit(&self, event: Event) {
        if let Some(sink) = &self.events {
            sink(&event);
        }
    }

    fn is_over(&self) -> bool {
        self.cancel.is_cancelled() || self.deadline.is_some_and(|(at, _)| Instant::now() >= at)
    }

    /// Why the wait or the run was ended by us.
    fn ended(&self, job: &Job, paths: &Paths) -> JobError {
        match self.deadline {
            Some((at, limit)) if !self.cancel.is_cancelled() && Instant::now() >= at => {
                timed_out(job, paths, limit, String::new())
            }
            _ => JobError::Cancelled {
                task: job.label(),
                path: paths.result.clone(),
            },
        }
    }
}

fn timed_out(job: &Job, paths: &Paths, limit: Duration, stderr: String) -> JobError {
    let message = format!("timed out after {limit:?}");
    JobError::TimedOut {
        task: job.label(),
        path: paths.result.clone(),
        message,
        stderr,
    }
}

fn failed(job: &Job, paths: &Paths, message: impl Into<String>, stderr: String) -> JobError {
    JobError::Failed {
        task: job.label(),
        path: paths.result.clone(),
        message: message.into(),
        stderr,
    }
}

fn store_error(e: impl std::fmt::Display) -> JobError {
    JobError::Store(e.to_string())
}

/// What is known of a job from its files.
enum State {
    /// No record.
    Absent,
    /// Something that has to be run (again).
    Stale,
    /// A result that holds.
    Fresh(Box<JobRecord>),
}

impl JobStore {
    /// Runs a job on a thread for blocking work; see [`run_blocking`](Self::run_blocking). Dropping the future cancels
    /// the run.
    ///
    /// # Errors
    /// Why there is no result.
    pub async fn run(&self, job: Arc<Job>, options: RunOptions) -> Result<Done, JobError> {
        let cancel = options.cancel.child_token();
        let guard = cancel.clone().drop_guard();
        let store = self.clone();
        let options = RunOptions { cancel, ..options };
        let done = tokio::task::spawn_blocking(move || store.run_blocking(&job, &options)).await;
        drop(guard);
        done.map_err(|e| store_error(format!("the thread of the job ended: {e}")))?
    }

    /// The result of a job: the stored one if it holds, else a new one, after those of the jobs it depends on. While
    /// another process runs the same job, waits for it and takes its result.
    ///
    /// # Errors
    /// Why there is no result.
    pub fn run_blocking(&self, job: &Job, options: &RunOptions) -> Result<Done, JobError> {
        let cx = Cx {
            cancel: options.cancel.clone(),
            deadline: options.timeout.and_then(|t| Some((Instant::now().checked_add(t)?, t))),
            events: options.events.clone(),
        };
        self.ensure(job, options.force, &cx)
    }

    /// The stored result of a job, if there is one that holds. Nothing is run.
    pub fn done(&self, job: &Job) -> Option<StoredJob> {
        match self.state(job) {
            State::Fresh(record) => Some(self.stored(&self.paths(job), *record)),
            State::Absent | State::Stale => None,
        }
    }

    fn ensure(&self, job: &Job, force: bool, cx: &Cx) -> Result<Done, JobError> {
        let paths = self.paths(job);
        if let Some(given) = &job.given {
            return self.given(job, given, &paths);
        }
        let asked = Timestamp::now();
        if !force && let State::Fresh(record) = self.state(job) {
            return Ok(self.reuse(&paths, *record, cx));
        }
        if cx.is_over() {
            return Err(cx.ended(job, &paths));
        }
        let (_lock, waited) = lock(&paths, cx)?.ok_or_else(|| cx.ended(job, &paths))?;
        match JobRecord::read(&paths.info) {
            Found::Record(record) => {
                let just_ended = waited && time(record.ended.as_ref()) > asked;
                match record.status {
                    Status::Done if !force || just_ended => {
                        if let State::Fresh(record) = self.state(job) {
                            return Ok(self.reuse(&paths, *record, cx));
                        }
                    }
                    // Somebody else tried while we waited for just that; trying the same at once is no use.
                    Status::Error if just_ended => {
                        return Err(failed(job, &paths, record.error.unwrap_or_default(), String::new()));
                    }
                    Status::Waiting | Status::Running => take_over(&record, &paths, job, cx),
                    _ => {}
                }
            }
            Found::Torn(reason) => {
                tracing::warn!(job = %paths.result.display(), reason, "the record can't be read; running the job again");
            }
            Found::Nothing => {}
        }
        self.run_locked(job, &paths, cx)
    }

    /// What stands in for a task is taken as it is.
    fn given(&self, job: &Job, given: &GivenResult, paths: &Paths) -> Result<Done, JobError> {
        if !given.path.is_file() {
            return Err(JobError::NoResult {
                path: given.path.clone(),
                reason: format!("it was to stand in for {} but is gone", job.label()),
            });
        }
        let record = match JobRecord::read(&paths.info) {
            Found::Record(record) => *record,
            _ => JobRecord {
                status: Status::Done,
                kind: given.kind,
                ..self.new_record(job)
            },
        };
        Ok(Done {
            job: self.stored(paths, record),
            reused: true,
        })
    }

    fn reuse(&self, paths: &Paths, record: JobRecord, cx: &Cx) -> Done {
        cx.emit(Event::Job {
            path: paths.result.display().to_string(),
            reused: true,
        });
        Done {
            job: self.stored(paths, record),
            reused: true,
        }
    }

    /// Runs the job; the lock is held.
    fn run_locked(&self, job: &Job, paths: &Paths, cx: &Cx) -> Result<Done, JobError> {
        clear(paths).map_err(store_error)?;
        let mut record = self.new_record(job);
        let save = |record: &JobRecord| record.write(&paths.info).map_err(store_error);
        save(&record)?;
        match self
            .dependencies(job, paths, cx)
            .and_then(|()| self.body(job, paths, &mut record, cx))
        {
            Ok(()) => {
                record.status = Status::Done;
                record.ended = Some(now());
                save(&record)?;
                Ok(Done {
                    job: self.stored(paths, record),
                    reused: false,
                })
            }
            Err(error) => {
                let cancelled = matches!(error, JobError::Cancelled { .. });
                record.status = if cancelled { Status::Aborted } else { Status::Error };
                record.ended = Some(now());
                record.error = Some(reason(&error));
                // The job's own failure is the news; that it can't be recorded comes second.
                if let Err(e) = save(&record) {
                    tracing::warn!("{e}");
                }
                Err(error)
            }
        }
    }

    /// Runs the jobs that this one depends on, independent ones side by side. When one fails the others are stopped.
    fn dependencies(&self, job: &Job, paths: &Paths, cx: &Cx) -> Result<(), JobError> {
        let wrap = |error: JobError| match error {
            JobError::Failed { .. } | JobError::TimedOut { .. } => {
                failed(job, paths, format!("it depends on another: {error}"), String::new())
            }
            JobError::Cancelled { .. } => JobError::Cancelled {
                task: job.label(),
                path: paths.result.clone(),
            },
            other => other,
        };
        let width = std::thread::available_parallelism().map_or(1, usize::from).min(8);
        let group = Cx {
            cancel: cx.cancel.child_token(),
            ..cx.clone()
        };
        let run = &|dependency: &Arc<Job>| {
            let mut result = self.ensure(dependency, false, &group).map(drop);
            let at = job.dependencies.iter().position(|d| Arc::ptr_eq(d, dependency));
            if !matches!(result, Err(JobError::Cancelled { .. })) && at.is_some_and(|at| job.may_fail(at)) {
                result = Ok(());
            }
            if result.is_err() {
                group.cancel.cancel();
            }
            result
        };
        for some in job.dependencies.chunks(width) {
            let results: Vec<Result<(), JobError>> = if let [one] = some {
                vec![run(one)]
            } else {
                std::thread::scope(|scope| {
                    let start = |dependency| {
                        let thread = std::thread::Builder::new().name("job".into());
                        thread.spawn_scoped(scope, move || run(dependency))
                    };
                    let threads: Vec<_> = some.iter().map(start).collect();
                    let join = |thread: io::Result<std::thread::ScopedJoinHandle<'_, Result<(), JobError>>>| {
                        thread
                            .map_err(store_error)?
                            .join()
                            .unwrap_or_else(|_| Err(store_error("a thread ended early")))
                    };
                    threads.into_iter().map(join).collect()
                })
            };
            // The failure itself, rather than that of one that was stopped for it.
            let mut errors: Vec<JobError> = results.into_iter().filter_map(Result::err).collect();
            errors.sort_by_key(|e| matches!(e, JobError::Cancelled { .. }));
            if let Some(error) = errors.into_iter().next() {
                return Err(wrap(error));
            }
        }
        Ok(())
    }

    fn body(&self, job: &Job, paths: &Paths, record: &mut JobRecord, cx: &Cx) -> Result<(), JobError> {
        if job.task.body == Body::Alias {
            record.started = Some(now());
            return body::alias(self, job, paths).map_err(|e| failed(job, paths, e, String::new()));
        }
        let left = cx
            .deadline
            .map(|(at, limit)| (at.saturating_duration_since(Instant::now()), limit));
        let own = job.task.timeout.map(|t| (t, t));
        let time = own.into_iter().chain(left).min_by_key(|(left, _)| *left);
        let spec = body::prepare(self, job, paths, time.map(|(left, _)| left)).map_err(store_error)?;
        let program = spec
            .argv
            .first()
            .map(|p| p.to_string_lossy().into_owned())
            .unwrap_or_default();
        cx.emit(Event::Job {
            path: paths.result.display().to_string(),
            reused: false,
        });
        record.started = Some(now());
        let ended = process::run(spec, &|| cx.cancel.is_cancelled(), &mut |pid| {
            record.status = Status::Running;
            record.pgid = Some(pid);
            record.pgid_started = process::start_time(pid);
            if let Err(e) = record.write(&paths.info) {
                tracing::warn!("{e}");
            }
        });
        let stderr = || body::stderr_tail(paths);
        match ended {
            Ok(Ended::Exit(0)) => {
                record.exit_code = Some(0);
                body::accept(job, paths).map_err(|e| failed(job, paths, e, stderr()))
            }
            Ok(Ended::Exit(_) | Ended::Signal(_)) if paths.cancel().exists() => Err(JobError::Cancelled {
                task: job.label(),
                path: paths.result.clone(),
            }),
            Ok(Ended::Exit(code)) => {
                record.exit_code = Some(code);
                // What the process said of it may have found no room either.
                let full = if disk_is_full(&paths.files) {
                    format!(" (no space left on the device of {})", paths.files.display())
                } else {
                    String::new()
                };
                Err(failed(job, paths, format!("exit code {code}{full}"), stderr()))
            }
            Ok(Ended::Signal(signal)) => Err(failed(job, paths, format!("ended by signal {signal}"), stderr())),
            Ok(Ended::TimedOut) => {
                let limit = time.map(|(_, limit)| limit).unwrap_or_default();
                Err(timed_out(job, paths, limit, stderr()))
            }
            Ok(Ended::Cancelled) => Err(JobError::Cancelled {
                task: job.label(),
                path: paths.result.clone(),
            }),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Err(failed(
                job,
                paths,
                format!("the program `{program}` was not found"),
                String::new(),
            )),
            Err(e) => Err(failed(
                job,
                paths,
                format!("the program `{program}` can't be started: {e}"),
                String::new(),
            )),
        }
    }

    /// Whether a job's result is there and holds: the record says done, the result is a file, and no job it depends on
    /// is out of date or has a result that is newer than the start of this one. A dependency that was cleaned away
    /// changes nothing.
    fn state(&self, job: &Job) -> State {
        self.state_of(job, &mut HashMap::new())
    }

    fn state_of(&self, job: &Job, known: &mut HashMap<PathBuf, Option<Timestamp>>) -> State {
        let paths = self.paths(job);
        if let Some(given) = job.given.as_ref().filter(|g| !g.is_job || !g.path.is_file()) {
            // Its content is part of the identity: another content would be another job.
            return if given.path.is_file() {
                State::Absent
            } else {
                State::Stale
            };
        }
        let record = match JobRecord::read(&paths.info) {
            Found::Nothing => return State::Absent,
            Found::Record(record) if record.status == Status::Done && paths.result.is_file() => record,
            _ => return State::Stale,
        };
        let started = time(record.started.as_ref());
        for (at, dependency) in job.dependencies.iter().enumerate() {
            let path = self.path(dependency);
            let ended = match known.get(&path) {
                Some(ended) => *ended,
                None => {
                    // MIN: gone, so never newer. None: out of date.
                    let ended = match self.state_of(dependency, known) {
                        // It failed, and this job went on all the same.
                        State::Stale if job.may_fail(at) => self.failed_at(dependency),
                        State::Absent => Some(Timestamp::MIN),
                        State::Stale => None,
                        State::Fresh(record) => Some(time(record.ended.as_ref())),
                    };
                    known.insert(path, ended);
                    ended
                }
            };
            if ended.is_none_or(|ended| ended > started) {
                return State::Stale;
            }
        }
        State::Fresh(record)
    }

    /// When a job failed; nothing when it did not.
    fn failed_at(&self, job: &Job) -> Option<Timestamp> {
        match JobRecord::read(&self.paths(job).info) {
            Found::Record(record) if record.status == Status::Error => Some(time(record.ended.as_ref())),
            _ => None,
        }
    }

    fn stored(&self, paths: &Paths, record: JobRecord) -> StoredJob {
        StoredJob::new(paths.result.clone(), record, self.dir().to_owned())
    }

    fn new_record(&self, job: &Job) -> JobRecord {
        JobRecord {
            inputs: job.inputs.clone(),
            identity: job
                .identity
                .iter()
                .map(|(n, d)| (n.clone(), d.clone().into()))
                .collect(),
            links: links(job),
            dependencies: job
                .dependencies
                .iter()
                .map(|d| d.relative_path().display().to_string())
                .collect(),
            ..record::new_record(
                &job.workflow.name,
                &job.task.name,
                &job.name,
                &job.digest,
                job.task.result,
            )
        }
    }
}

/// The names of a job's dependencies as its record holds them.
fn links(job: &Job) -> BTreeMap<String, RecordLink> {
    let entry = |link: &Link| RecordLink {
        at: link.jobs.clone(),
        each: link.each,
        canfail: !link.jobs.is_empty() && link.jobs.iter().all(|at| job.may_fail(*at)),
    };
    job.links.iter().map(|l| (l.name.clone(), entry(l))).collect()
}

/// What a record says of a failure: the message without the job's own name.
fn reason(error: &JobError) -> String {
    match error {
        JobError::Failed { message, stderr, .. } | JobError::TimedOut { message, stderr, .. } if !stderr.is_empty() => {
            format!("{message}: {stderr}")
        }
        JobError::Failed { message, .. } | JobError::TimedOut { message, .. } => message.clone(),
        JobError::Cancelled { .. } => "cancelled".into(),
        other => other.to_string(),
    }
}

/// Takes the job's lock; says whether somebody else had it. `None` when the wait was ended first.
fn lock(paths: &Paths, cx: &Cx) -> Result<Option<(OwnerLock, bool)>, JobError> {
    match OwnerLock::acquire(&paths.lock, Duration::ZERO, &|| false) {
        Ok(lock) => return Ok(Some((lock, false))),
        Err(LockError::Io(e)) => return Err(store_error(e)),
        Err(LockError::Held { .. }) => {}
    }
    match OwnerLock::acquire(&paths.lock, Duration::MAX, &|| cx.is_over()) {
        Ok(lock) => Ok(Some((lock, true))),
        Err(LockError::Io(e)) => Err(store_error(e)),
        Err(LockError::Held { .. }) => Ok(None),
    }
}

/// The record says that somebody is at work, but the lock was free: its owner died. What it started is ended.
fn take_over(record: &JobRecord, paths: &Paths, job: &Job, cx: &Cx) {
    if let (Some(group), Some(started)) = (record.pgid, record.pgid_started)
        && record.host == process::host()
    {
        process::end_orphan(group, started);
        process::end_marked(group, "DECANUS_FILES", paths.files.as_os_str());
    }
    let message = format!(
        "job {}: process {} that ran it is gone; running it again",
        job.label(),
        record.pid
    );
    tracing::warn!("{message}");
    cx.emit(Event::Warning(message));
}

/// Removes what an earlier run left and makes the folders.
fn clear(paths: &Paths) -> io::Result<()> {
    let absent = |e: io::Error, path: &PathBuf| match e.kind() {
        io::ErrorKind::NotFound => Ok(()),
        _ => Err(named(e, path)),
    };
    fs::remove_file(&paths.result).or_else(|e| absent(e, &paths.result))?;
    fs::remove_dir_all(&paths.files).or_else(|e| absent(e, &paths.files))?;
    fs::create_dir_all(&paths.own).map_err(|e| named(e, &paths.own))
}
