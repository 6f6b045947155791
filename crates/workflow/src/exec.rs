//! The other end of an executor: runs jobs that were written down, on the machine that a scheduler chose.
//!
//! The lock of a job is with whoever submitted it, maybe on another machine, so none is taken here. What decides is the
//! record: it names the scheduler's id of the run that counts. A run of another id writes nothing.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use decanus_base::files::write_atomic;
use decanus_base::process;
use tokio_util::sync::CancellationToken;

use crate::error::JobError;
use crate::record::{Found, JobRecord, Status, now};
use crate::runner::{Cx, RunOptions, end, failed, store_error};
use crate::spec::Spec;
use crate::store::{JobStore, Paths};
use crate::workflows::Workflows;

/// How long the submitter may take to write down the id that the scheduler gave it.
const ID_PATIENCE: Duration = Duration::from_secs(10);
/// How soon it is seen that a job was cancelled, or handed over again.
const NOTICE: Duration = Duration::from_millis(200);

/// How often a run says that it is alive. A scheduler that lost its state, or a node whose daemon died, says otherwise.
pub(crate) const BEAT: Duration = Duration::from_secs(1);
/// The file in which it does.
const ALIVE: &str = "alive";

/// Runs a job that was written down: `path` is that of its result, `id` the scheduler's name for this run. One that is
/// done, or that another run is to do, is left alone. Gives how the job stands afterwards.
///
/// # Errors
/// Why there is no result; the record says so too, where this run may write it.
pub fn exec(workflows: &Workflows, path: &Path, id: &str, options: &RunOptions) -> Result<Status, JobError> {
    let path = std::path::absolute(path).map_err(store_error)?;
    let Some(jobs_dir) = path.ancestors().nth(3) else {
        return Err(store_error(format!("{}: no path of a job", path.display())));
    };
    let store = JobStore::new(jobs_dir);
    let paths = Paths::new(path);
    let mut record = match ours(&paths, id)? {
        Turn::Ours(record) => *record,
        Turn::Over(status) => return Ok(status),
    };
    let spec = Spec::read(&paths).map_err(store_error)?;
    let cancelled = paths.cancel().exists();
    record.pid = std::process::id();
    record.pid_started = process::start_time(record.pid);
    record.host = process::host();
    let cx = Cx {
        cancel: options.cancel.child_token(),
        deadline: None,
        events: options.events.clone(),
        above: options.above.clone(),
        executor: None,
        ticket: Some((id.to_owned(), record.created.clone())),
    };
    let ready = spec.job(workflows).and_then(|job| {
        spec.check_dependencies(&job)?;
        match store.path(&job) == paths.result {
            true => Ok(job),
            false => Err("what is written down of it is of another job".into()),
        }
    });
    let job = match ready {
        Ok(job) if !cancelled => job,
        ready => {
            let (task, result) = (format!("{}/{}", record.workflow, record.task), paths.result.clone());
            let error = match ready {
                Ok(_) => JobError::Cancelled { task, path: result },
                Err(message) => JobError::Failed {
                    task,
                    path: result,
                    message,
                    stderr: String::new(),
                },
            };
            Spec::forget(&paths);
            end(&mut record, &paths, &error)?;
            return Err(error);
        }
    };
    // Between here and the task's own process the record must not look as if nobody had begun.
    record.status = Status::Running;
    record.write(&paths.info).map_err(store_error)?;
    let stop = CancellationToken::new();
    let run = std::thread::scope(|scope| {
        let guard = stop.clone().drop_guard();
        scope.spawn(|| watch(&paths, &cx, &stop));
        let run = std::panic::AssertUnwindSafe(|| store.attempts(&job, &paths, &record, &cx));
        let run = std::panic::catch_unwind(run);
        drop(guard);
        run
    });
    match run {
        Ok(run) => run.map(|record| record.status),
        Err(_) => {
            let error = failed(&job, &paths, "the thread of the job panicked", String::new());
            end(&mut record, &paths, &error)?;
            Err(error)
        }
    }
}

/// Whose turn it is.
enum Turn {
    Ours(Box<JobRecord>),
    Over(Status),
}

/// Waits until the record names a run. The submitter learns the id at about the time when the run begins.
fn ours(paths: &Paths, id: &str) -> Result<Turn, JobError> {
    let begun = Instant::now();
    loop {
        let record = match JobRecord::read(&paths.info) {
            Found::Record(record) => record,
            Found::Nothing => return Err(store_error(format!("{}: there is no such job", paths.info.display()))),
            Found::Torn(reason) => return Err(store_error(format!("{}: {reason}", paths.info.display()))),
        };
        let named = record.scheduler_id.as_deref();
        if !record.status.is_active() || named.is_some_and(|named| named != id) {
            return Ok(Turn::Over(record.status));
        }
        if named == Some(id) {
            return Ok(Turn::Ours(record));
        }
        // It died between handing over and writing down; the batch is still known by its name.
        if begun.elapsed() > ID_PATIENCE {
            let scheduler_id = Some(id.to_owned());
            let record = Box::new(JobRecord {
                scheduler_id,
                ..*record
            });
            record.write(&paths.info).map_err(store_error)?;
            return Ok(Turn::Ours(record));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Ends the run when somebody cancels the job, or when another run is to do it.
fn watch(paths: &Paths, cx: &Cx, stop: &CancellationToken) {
    let mut last = Instant::now();
    let mut beat = Instant::now();
    let mut beats = 0_u64;
    while !stop.is_cancelled() && !cx.cancel.is_cancelled() {
        if last.elapsed() > NOTICE {
            last = Instant::now();
            if paths.cancel().exists() || !cx.is_ours(paths) {
                cx.cancel.cancel();
            }
        }
        // The first comes soon, but after the folder was made anew.
        if beat.elapsed() > (if beats == 0 { NOTICE } else { BEAT }) && paths.own.is_dir() {
            beat = Instant::now();
            beats += 1;
            // That nobody sees it only means that the scheduler is believed.
            let _ = write_atomic(&paths.own.join(ALIVE), beats.to_string().as_bytes());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// What a run last said of being alive. It is read, not looked at: the content of a file is seen on other machines sooner
/// than its times.
pub(crate) fn sign_of_life(paths: &Paths) -> Option<String> {
    std::fs::read_to_string(paths.own.join(ALIVE)).ok()
}

/// The paths in the arguments of `job exec`: those given, and the lines of a file given as `@FILE`.
///
/// # Errors
/// Files that can't be read.
pub fn listed(arguments: &[String]) -> std::io::Result<Vec<PathBuf>> {
    let mut paths = Vec::new();
    for argument in arguments {
        match argument.strip_prefix('@') {
            Some(file) => {
                let text = decanus_base::files::read_text(Path::new(file))?;
                paths.extend(text.lines().filter(|l| !l.is_empty()).map(PathBuf::from));
            }
            None => paths.push(argument.into()),
        }
    }
    Ok(paths)
}

impl Cx {
    /// Whether the record is still that of this run. Whoever has the lock always is.
    pub(crate) fn is_ours(&self, paths: &Paths) -> bool {
        let Some((id, created)) = &self.ticket else {
            return true;
        };
        match JobRecord::read(&paths.info) {
            // A scheduler that lost its state gives its ids once more.
            Found::Record(record) => record.scheduler_id.as_ref() == Some(id) && record.created == *created,
            // Removed meanwhile: it is not made again.
            Found::Nothing => false,
            Found::Torn(_) => true,
        }
    }
}

/// How long a job ran.
pub(crate) fn took(record: &JobRecord) -> Option<Duration> {
    let at = |text: &Option<String>| text.as_ref()?.parse::<jiff::Timestamp>().ok();
    let (started, ended) = (at(&record.started)?, at(&record.ended)?);
    ended.duration_since(started).try_into().ok()
}

/// The record of a job that is handed over and that nobody has begun, of what is known of it from before.
pub(crate) fn handed_over(record: &JobRecord, executor: &str) -> JobRecord {
    let pid = std::process::id();
    JobRecord {
        status: Status::Waiting,
        executor: executor.to_owned(),
        scheduler_id: None,
        pid,
        pid_started: process::start_time(pid),
        pgid: None,
        pgid_started: None,
        host: process::host(),
        started: None,
        ended: None,
        exit_code: None,
        error: None,
        // A run of its own: by this, too, it is told from earlier ones.
        created: now(),
        ..record.clone()
    }
}
