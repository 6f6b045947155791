//! The one runner: takes a job to its result, at most once for all processes that want it. Which jobs run when is the
//! `scheduler`'s; here is what it takes to run one.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use decanus_base::files::{OwnerLock, disk_is_full, named};
use decanus_base::process::{self, Ended};
use decanus_tool::{Event, EventSink};
use tokio_util::sync::CancellationToken;

use crate::body::{self, Unready};
use crate::definition::Body;
use crate::demand::{Graph, Stored};
use crate::error::JobError;
use crate::guard::{JobStack, STACK};
use crate::job::{GivenResult, Job, Link};
use crate::native::{self, NativeBody, NativeEnd};
use crate::record::{self, Found, JobRecord, RecordLink, Status, now};
use crate::scheduler::Scheduler;
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
    /// The jobs that this happens within; by default those of this process. One that would wait for itself is refused.
    pub above: JobStack,
    /// Whether [`exec`](JobStore::exec) may run a job that is at work above: then once more, within itself.
    pub allow_recursive: bool,
    /// What runs the jobs, whatever tasks, workflows and the project say: a name of [`executor`](crate::executor).
    pub executor: Option<String>,
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
pub(crate) struct Cx {
    pub cancel: CancellationToken,
    /// When the time given for all of it ends, and what it was.
    pub deadline: Option<(Instant, Duration)>,
    pub events: Option<EventSink>,
    /// The jobs that it happens within.
    pub above: JobStack,
    /// What runs the jobs, whatever else says so.
    pub executor: Option<String>,
    /// What the record says of this run, if somebody else has its lock: the scheduler's id, and when it was asked for.
    pub ticket: Option<(String, String)>,
}

impl Cx {
    pub fn emit(&self, event: Event) {
        if let Some(sink) = &self.events {
            sink(&event);
        }
    }

    pub fn is_over(&self) -> bool {
        self.cancel.is_cancelled() || self.deadline.is_some_and(|(at, _)| Instant::now() >= at)
    }

    /// Why the wait or the run was ended by us.
    pub fn ended(&self, job: &Job, paths: &Paths) -> JobError {
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

pub(crate) fn timed_out(job: &Job, paths: &Paths, limit: Duration, stderr: String) -> JobError {
    let message = format!("timed out after {limit:?}");
    JobError::TimedOut {
        task: job.label(),
        path: paths.result.clone(),
        message,
        stderr,
    }
}

pub(crate) fn failed(job: &Job, paths: &Paths, message: impl Into<String>, stderr: String) -> JobError {
    JobError::Failed {
        task: job.label(),
        path: paths.result.clone(),
        message: message.into(),
        stderr,
    }
}

pub(crate) fn store_error(e: impl std::fmt::Display) -> JobError {
    JobError::Store(e.to_string())
}

/// Does something on a thread for blocking work. Dropping the future cancels it.
pub(crate) async fn on_thread<T: Send + 'static>(
    options: RunOptions,
    work: impl FnOnce(&RunOptions) -> T + Send + 'static,
) -> Result<T, JobError> {
    let cancel = options.cancel.child_token();
    let guard = cancel.clone().drop_guard();
    let options = RunOptions { cancel, ..options };
    let done = tokio::task::spawn_blocking(move || work(&options)).await;
    drop(guard);
    done.map_err(|e| store_error(format!("the thread of the job ended: {e}")))
}

/// A job whose lock is ours, and its record as it will be written.
pub(crate) struct Claimed {
    _lock: OwnerLock,
    pub record: JobRecord,
    /// Whether it is with an executor already: the record is then what was found.
    pub is_joined: bool,
}

impl Claimed {
    pub fn new(lock: OwnerLock, record: JobRecord) -> Self {
        Self {
            _lock: lock,
            record,
            is_joined: false,
        }
    }

    /// A job that an executor has.
    pub fn joined(lock: OwnerLock, record: JobRecord) -> Self {
        Self {
            is_joined: true,
            ..Self::new(lock, record)
        }
    }

    /// Writes down that it waits.
    pub fn announce(&mut self, paths: &Paths) -> Result<(), JobError> {
        clear(paths)
            .and_then(|()| self.record.write(&paths.info))
            .map_err(store_error)
    }

    /// Writes down that it came to nothing before it was run.
    pub fn fail(mut self, paths: &Paths, error: &JobError) {
        // It goes on elsewhere.
        if self.is_joined {
            return;
        }
        let cleared = clear(paths).map_err(store_error);
        if let Err(e) = cleared.and_then(|()| end(&mut self.record, paths, error)) {
            tracing::warn!("{e}");
        }
    }
}

/// Writes down how a job failed.
pub(crate) fn end(record: &mut JobRecord, paths: &Paths, error: &JobError) -> Result<(), JobError> {
    let cancelled = matches!(error, JobError::Cancelled { .. });
    record.status = if cancelled { Status::Aborted } else { Status::Error };
    record.ended = Some(now());
    record.error = Some(reason(error));
    record.write(&paths.info).map_err(store_error)
}

/// What a job fails with when one that it depends on does.
pub(crate) fn because_of(error: &JobError, job: &Job, paths: &Paths) -> JobError {
    match error {
        JobError::Failed { .. } | JobError::TimedOut { .. } => {
            failed(job, paths, format!("it depends on another: {error}"), String::new())
        }
        JobError::Cancelled { .. } => JobError::Cancelled {
            task: job.label(),
            path: paths.result.clone(),
        },
        other => other.clone(),
    }
}

impl JobStore {
    /// Runs a job on a thread for blocking work; see [`run_blocking`](Self::run_blocking). Dropping the future cancels
    /// the run.
    ///
    /// # Errors
    /// Why there is no result.
    pub async fn run(&self, job: Arc<Job>, options: RunOptions) -> Result<Done, JobError> {
        let mut done = self.produce(vec![job], options).await?;
        done.pop().unwrap_or_else(|| Err(store_error("nothing was run")))
    }

    /// Takes several jobs to their results, on a thread for blocking work: see
    /// [`produce_blocking`](Self::produce_blocking). Dropping the future cancels the run.
    ///
    /// # Errors
    /// When the thread ended early. What came of each job is in the list.
    pub async fn produce(
        &self,
        jobs: Vec<Arc<Job>>,
        options: RunOptions,
    ) -> Result<Vec<Result<Done, JobError>>, JobError> {
        let store = self.clone();
        on_thread(options, move |options| store.produce_blocking(&jobs, options)).await
    }

    /// The result of a job: the stored one if it holds, else a new one, after those of the jobs it depends on. While
    /// another process runs the same job, waits for it and takes its result.
    ///
    /// # Errors
    /// Why there is no result.
    pub fn run_blocking(&self, job: &Arc<Job>, options: &RunOptions) -> Result<Done, JobError> {
        let mut done = self.produce_blocking(std::slice::from_ref(job), options);
        done.pop().unwrap_or_else(|| Err(store_error("nothing was run")))
    }

    /// Takes several jobs to their results, with all that they depend on, each once: side by side, within what the store's
    /// [capacity](Self::with_capacity) allows. A job that fails ends those that depend on it, and what only they need; the
    /// others go on. Gives what came of each, in their order.
    pub fn produce_blocking(&self, jobs: &[Arc<Job>], options: &RunOptions) -> Vec<Result<Done, JobError>> {
        let cx = Cx {
            cancel: options.cancel.clone(),
            deadline: options.timeout.and_then(|t| Some((Instant::now().checked_add(t)?, t))),
            events: options.events.clone(),
            above: options.above.clone(),
            executor: options.executor.clone(),
            ticket: None,
        };
        let graph = Graph::of(self, jobs);
        Scheduler::new(self, &graph, options.force, &cx).run()
    }

    /// The stored result of a job, if there is one that holds. Nothing is run.
    pub fn done(&self, job: &Arc<Job>) -> Option<StoredJob> {
        let graph = Graph::of(self, std::slice::from_ref(job));
        match graph.stored().last() {
            Some(Stored::Fresh(_)) => self.read(self.path(job)),
            _ => None,
        }
    }

    /// What stands in for a task is taken as it is.
    pub(crate) fn given(&self, job: &Job, given: &GivenResult, paths: &Paths) -> Result<Done, JobError> {
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

    /// Runs a job that was claimed, as often as its task says when it fails. Its dependencies are done.
    pub(crate) fn run_claimed(
        &self,
        job: &Job,
        paths: &Paths,
        claimed: Claimed,
        cx: &Cx,
    ) -> Result<Box<JobRecord>, JobError> {
        self.attempts(job, paths, &claimed.record, cx)
    }

    /// The same for whoever may write the record.
    pub(crate) fn attempts(
        &self,
        job: &Job,
        paths: &Paths,
        first: &JobRecord,
        cx: &Cx,
    ) -> Result<Box<JobRecord>, JobError> {
        let mut tries = 0;
        loop {
            let mut record = first.clone();
            let ran = clear(paths)
                .map_err(store_error)
                .and_then(|()| self.body(job, paths, &mut record, cx));
            // Another run is to do it now; what this one found is not asked for.
            if !cx.is_ours(paths) {
                return Err(JobError::Cancelled {
                    task: job.label(),
                    path: paths.result.clone(),
                });
            }
            let error = match ran {
                Ok(()) => {
                    record.status = Status::Done;
                    record.ended = Some(now());
                    record.write(&paths.info).map_err(store_error)?;
                    return Ok(Box::new(record));
                }
                Err(error) => error,
            };
            // The job's own failure is the news; that it can't be recorded comes second.
            if let Err(e) = end(&mut record, paths, &error) {
                tracing::warn!("{e}");
            }
            let can_pass = matches!(error, JobError::Failed { .. } | JobError::TimedOut { .. });
            if !can_pass || tries >= job.task.retries || cx.is_over() {
                return Err(error);
            }
            tries += 1;
            cx.emit(Event::Warning(format!(
                "{error}; trying again ({tries} of {})",
                job.task.retries
            )));
        }
    }

    fn body(&self, job: &Job, paths: &Paths, record: &mut JobRecord, cx: &Cx) -> Result<(), JobError> {
        if job.task.body == Body::Alias {
            record.started = Some(now());
            return body::alias(self, job, paths).map_err(|e| failed(job, paths, e, String::new()));
        }
        let left = cx
            .deadline
            .map(|(at, limit)| (at.saturating_duration_since(Instant::now()), limit));
        let own = [job.task.timeout, job.task.resources.time]
            .into_iter()
            .flatten()
            .map(|t| (t, t));
        let time = own.chain(left).min_by_key(|(left, _)| *left);
        if let Body::Native(native) = &job.task.body {
            return self.native_body(native, job, paths, record, time, cx);
        }
        let mut spec = body::prepare(self, job, paths, time.map(|(left, _)| left)).map_err(|e| match e {
            Unready::Use(reason) => failed(job, paths, reason, String::new()),
            Unready::Store(e) => store_error(e),
        })?;
        spec.env.push((STACK.into(), cx.above.variable()));
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
        body::forget_secrets(self, job, paths);
        let stderr = || body::job_stderr(job, paths);
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

    fn native_body(
        &self,
        native: &NativeBody,
        job: &Job,
        paths: &Paths,
        record: &mut JobRecord,
        time: Option<(Duration, Duration)>,
        cx: &Cx,
    ) -> Result<(), JobError> {
        cx.emit(Event::Job {
            path: paths.result.display().to_string(),
            reused: false,
        });
        record.started = Some(now());
        record.status = Status::Running;
        record.write(&paths.info).map_err(store_error)?;
        let until = time.and_then(|(left, _)| Instant::now().checked_add(left));
        let function = || native::run(self, native, job, paths, until, &cx.cancel);
        match cx.above.clone().within(function) {
            Ok(()) => body::accept(job, paths).map_err(|e| failed(job, paths, e, body::job_stderr(job, paths))),
            Err(NativeEnd::Failed(message)) => Err(failed(job, paths, message, body::job_stderr(job, paths))),
            Err(NativeEnd::TimedOut) => {
                let limit = time.map(|(_, limit)| limit).unwrap_or_default();
                Err(timed_out(job, paths, limit, body::job_stderr(job, paths)))
            }
            Err(NativeEnd::Cancelled) => Err(JobError::Cancelled {
                task: job.label(),
                path: paths.result.clone(),
            }),
        }
    }

    pub(crate) fn stored(&self, paths: &Paths, record: JobRecord) -> StoredJob {
        StoredJob::new(paths.result.clone(), record, self.dir().to_owned())
    }

    pub(crate) fn new_record(&self, job: &Job) -> JobRecord {
        JobRecord {
            inputs: job.shown_inputs(),
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
    let may_fail = job.may_fail();
    let entry = |link: &Link| RecordLink {
        at: link.jobs.clone(),
        each: link.each,
        canfail: !link.jobs.is_empty() && link.jobs.iter().all(|at| may_fail.get(*at).is_some_and(|may| *may)),
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

/// The record says that somebody is at work, but the lock was free: its owner died. What it started is ended.
pub(crate) fn take_over(record: &JobRecord, paths: &Paths, job: &Job, cx: &Cx) {
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
pub(crate) fn clear(paths: &Paths) -> io::Result<()> {
    let absent = |e: io::Error, path: &PathBuf| match e.kind() {
        io::ErrorKind::NotFound => Ok(()),
        _ => Err(named(e, path)),
    };
    fs::remove_file(&paths.result).or_else(|e| absent(e, &paths.result))?;
    fs::remove_dir_all(&paths.files).or_else(|e| absent(e, &paths.files))?;
    fs::create_dir_all(&paths.own).map_err(|e| named(e, &paths.own))
}
