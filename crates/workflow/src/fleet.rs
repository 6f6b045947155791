//! The jobs of a run that an executor has: hands them over, many together, and waits until their records say how they
//! ended. What is lost on the way is handed over again.
//!
//! Nothing is ever handed over twice by mistake: before a batch is handed over, its name is in the files of its jobs, so
//! that after a doubtful end (no answer, or this process was killed) the scheduler can be asked for that name.

mod ending;
mod packing;

use std::collections::HashMap;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use decanus_tool::Event;
use tokio_util::sync::CancellationToken;

use self::packing::Probe;
use crate::demand::{Graph, Node};
use crate::error::JobError;
use crate::exec::{BEAT, sign_of_life, took};
use crate::executor::{Batch, Executor, ExecutorError, Outcome, Progress};
use crate::record::{Found, JobRecord, Status};
use crate::runner::{self, Claimed, Cx, end};
use crate::spec::Spec;
use crate::store::{JobStore, Paths};
use crate::workers::News;

/// Jobs that come within this time of each other go together.
const GATHER: Duration = Duration::from_millis(30);
/// Two looks at the records are at least so far apart.
const LOOK: Duration = Duration::from_millis(100);
/// And further for many: reading them must not be all that is done.
const LOOK_EACH: Duration = Duration::from_millis(1);
/// Pauses while the scheduler is away.
const AWAY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));
/// A run that has not said for so long that it is alive is not.
const LIFE: Duration = BEAT.saturating_mul(3);
/// How long a cancelled job is waited for.
const LAST_WORD: Duration = Duration::from_secs(15);

/// The folder of batches among those of the workflows; no workflow has such a name.
pub(crate) const FOLDER: &str = ".batches";

/// A job to be handed over, or to be waited for.
pub(crate) struct Parcel {
    pub node: usize,
    pub claimed: Claimed,
    pub cancel: CancellationToken,
}

/// A job that is on its way.
struct Flying {
    parcel: Parcel,
    batch: String,
    element: usize,
    id: Option<String>,
    /// How often it was lost.
    lost: u32,
    /// How it ended for the scheduler, and since when that is known.
    over: Option<(Outcome, Instant)>,
    /// What its run last said of being alive.
    life: Option<String>,
    /// Since when it is wanted no more.
    stopped: Option<Instant>,
    /// Whether the scheduler was told.
    is_told: bool,
}

/// A batch that is not known to be with the scheduler.
struct Consignment {
    batch: Batch,
    dir: PathBuf,
    jobs: Vec<Flying>,
    /// Whether it was handed over without an answer.
    in_doubt: bool,
}

/// While the scheduler can't be reached.
struct Away {
    until: Instant,
    pause: Duration,
}

/// What is left of a batch.
#[derive(Default)]
struct Left {
    jobs: usize,
    has_failed: bool,
}

pub(crate) struct Fleet<'a> {
    pub store: &'a JobStore,
    pub graph: &'a Graph,
    pub cx: &'a Cx,
    pub executor: Arc<dyn Executor>,
    pub news: Sender<News>,
    fresh: Vec<(Parcel, u32)>,
    consignments: Vec<Consignment>,
    flying: Vec<Flying>,
    left: HashMap<String, Left>,
    away: Option<Away>,
    next_look: Instant,
    next_poll: Instant,
    /// What jobs take, by their tasks' folders.
    typical: HashMap<PathBuf, Option<Duration>>,
    probes: HashMap<PathBuf, Probe>,
    /// Of which reasons to wait the user was told.
    told: Vec<String>,
}

impl<'a> Fleet<'a> {
    pub fn new(
        store: &'a JobStore,
        graph: &'a Graph,
        cx: &'a Cx,
        executor: Arc<dyn Executor>,
        news: Sender<News>,
    ) -> Self {
        Self {
            store,
            graph,
            cx,
            executor,
            news,
            fresh: Vec::new(),
            consignments: Vec::new(),
            flying: Vec::new(),
            left: HashMap::new(),
            away: None,
            next_look: Instant::now(),
            next_poll: Instant::now(),
            typical: HashMap::new(),
            probes: HashMap::new(),
            told: Vec::new(),
        }
    }

    /// Until no more jobs come and all are at their end.
    pub fn run(mut self, parcels: &Receiver<Parcel>) {
        self.tidy();
        let mut is_open = true;
        while is_open || !self.is_idle() {
            let pause = match self.is_idle() {
                true => Duration::from_secs(1),
                false => LOOK,
            };
            match parcels.recv_timeout(pause) {
                Ok(first) => {
                    self.take(first);
                    let begun = Instant::now();
                    while begun.elapsed() < GATHER * 20
                        && let Ok(next) = parcels.recv_timeout(GATHER)
                    {
                        self.take(next);
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    is_open = false;
                    if !self.is_idle() {
                        std::thread::sleep(LOOK);
                    }
                }
            }
            self.stop_unwanted();
            self.pack();
            self.look();
            let is_away = self.away.as_ref().is_some_and(|away| Instant::now() < away.until);
            if !is_away {
                self.send();
                self.tell();
                self.poll();
            }
            self.settle();
        }
    }

    fn is_idle(&self) -> bool {
        self.fresh.is_empty() && self.consignments.is_empty() && self.flying.is_empty()
    }

    fn paths(&self, node: usize) -> &'a Paths {
        let graph = self.graph;
        &graph.nodes[node].paths
    }

    fn take(&mut self, parcel: Parcel) {
        let paths = self.paths(parcel.node);
        self.cx.emit(Event::Job {
            path: paths.result.display().to_string(),
            reused: false,
        });
        if !parcel.claimed.is_joined {
            self.fresh.push((parcel, 0));
            return;
        }
        let id = parcel.claimed.record.scheduler_id.clone();
        // When it has begun, its id is in its record and what was written down is gone.
        let (batch, element) = match Spec::read(paths) {
            Ok(spec) => (spec.batch, spec.element),
            Err(_) => (String::new(), 0),
        };
        let known_as = id.as_deref().unwrap_or(&batch);
        self.cx.emit(Event::Warning(format!(
            "job {} is with {} already, as {known_as}; waiting for it",
            paths.result.display(),
            self.executor.name()
        )));
        self.flying.push(Flying {
            parcel,
            batch,
            element,
            id,
            lost: 0,
            over: None,
            life: None,
            stopped: None,
            is_told: false,
        });
        self.next_poll = Instant::now();
    }

    /// Hands over what is packed.
    fn send(&mut self) {
        for mut consignment in std::mem::take(&mut self.consignments) {
            if consignment.jobs.is_empty() {
                continue;
            }
            if self.away.as_ref().is_some_and(|away| Instant::now() < away.until) {
                self.consignments.push(consignment);
                continue;
            }
            let count = consignment.batch.elements.len();
            let handed = match consignment.in_doubt {
                true => match self.executor.find(&consignment.batch.name) {
                    Ok(found) if found.is_empty() => self.executor.submit(&consignment.batch, &consignment.dir),
                    Ok(mut found) => Ok((0..count).map(|at| found.remove(&at).unwrap_or_default()).collect()),
                    Err(e) => Err(e),
                },
                false => self.executor.submit(&consignment.batch, &consignment.dir),
            };
            match handed {
                Ok(ids) => {
                    self.back();
                    for mut job in consignment.jobs {
                        job.id = ids.get(job.element).filter(|id| !id.is_empty()).cloned();
                        self.write_id(&mut job);
                        self.flying.push(job);
                    }
                    self.next_poll = Instant::now() + self.executor.poll();
                }
                Err(e @ ExecutorError::Unreachable { .. }) => {
                    self.gone_away(&e);
                    consignment.in_doubt = true;
                    self.consignments.push(consignment);
                }
                Err(e) => {
                    for job in consignment.jobs {
                        self.finish(job, Err(e.clone().into()));
                    }
                }
            }
        }
    }

    /// The id is in the record before anybody waits for the job. One that has begun wrote it itself.
    fn write_id(&self, job: &mut Flying) {
        let paths = self.paths(job.parcel.node);
        let record = &mut job.parcel.claimed.record;
        record.scheduler_id.clone_from(&job.id);
        let is_untouched = matches!(
            JobRecord::read(&paths.info),
            Found::Record(now) if now.status == Status::Waiting && now.scheduler_id.is_none()
        );
        if is_untouched && let Err(e) = record.write(&paths.info) {
            tracing::warn!("{e}");
        }
    }

    /// What the records say.
    fn look(&mut self) {
        if Instant::now() < self.next_look || self.flying.is_empty() {
            return;
        }
        let mut at = 0;
        while let Some(job) = self.flying.get(at) {
            let paths = self.paths(job.parcel.node);
            let Found::Record(record) = JobRecord::read(&paths.info) else {
                at += 1;
                continue;
            };
            let is_of_it = job.id.is_none() || record.scheduler_id == job.id;
            match record.status {
                Status::Done if is_of_it && paths.result.is_file() => {
                    let job = self.flying.swap_remove(at);
                    if let Some(time) = took(&record) {
                        self.learn(job.parcel.node, time);
                    }
                    self.finish(job, Ok(record));
                }
                Status::Error if is_of_it => {
                    let job = self.flying.swap_remove(at);
                    let error = self.failure(job.parcel.node, &record);
                    self.finish(job, Err(error));
                }
                // `job cancel`, and nobody has begun it.
                Status::Waiting if is_of_it && job.stopped.is_none() && paths.cancel().exists() => {
                    let job = self.flying.swap_remove(at);
                    let error = cancelled(&self.graph.nodes[job.parcel.node]);
                    self.finish(job, Err(error));
                }
                // It may have been ended since a limit of the scheduler's was reached; that one is asked first.
                Status::Aborted if is_of_it && job.stopped.is_some() => {
                    let job = self.flying.swap_remove(at);
                    let error = self.cx.ended(&self.graph.nodes[job.parcel.node].job, paths);
                    self.finish(job, Err(error));
                }
                _ => at += 1,
            }
        }
        let many = u32::try_from(self.flying.len()).unwrap_or(u32::MAX);
        self.next_look = Instant::now() + LOOK.max(LOOK_EACH.saturating_mul(many));
    }

    /// The failure that a record tells of.
    fn failure(&self, node: usize, record: &JobRecord) -> JobError {
        let Node { job, paths, .. } = &self.graph.nodes[node];
        let stderr = crate::body::job_stderr(job, paths);
        let told = record.error.clone().unwrap_or_default();
        let message = match told.strip_suffix(stderr.as_str()).and_then(|t| t.strip_suffix(": ")) {
            Some(message) if !stderr.is_empty() => message.to_owned(),
            _ => return runner::failed(job, paths, told, String::new()),
        };
        if message.starts_with("timed out after ") {
            let (task, path) = (job.label(), paths.result.clone());
            return JobError::TimedOut {
                task,
                path,
                message,
                stderr,
            };
        }
        runner::failed(job, paths, message, stderr)
    }

    /// Asks the scheduler where the jobs are.
    fn poll(&mut self) {
        if Instant::now() < self.next_poll || self.flying.is_empty() {
            return;
        }
        self.next_poll = Instant::now() + self.executor.poll();
        if let Err(e) = self.name_unnamed().and_then(|()| self.observe()) {
            self.gone_away(&e);
        } else {
            self.back();
        }
    }

    /// Finds the ids of jobs whose submitter died before it wrote them down.
    fn name_unnamed(&mut self) -> Result<(), ExecutorError> {
        let mut batches: Vec<String> = self
            .flying
            .iter()
            .filter(|j| j.id.is_none())
            .map(|j| j.batch.clone())
            .collect();
        batches.sort_unstable();
        batches.dedup();
        for batch in batches {
            let found = match batch.as_str() {
                "" => HashMap::new(),
                name => self.executor.find(name)?,
            };
            for mut job in std::mem::take(&mut self.flying) {
                if job.id.is_none() && job.batch == batch {
                    match found.get(&job.element) {
                        Some(id) => {
                            job.id = Some(id.clone());
                            self.write_id(&mut job);
                        }
                        // It never came to be handed over.
                        None => {
                            self.fresh.push((job.parcel, job.lost));
                            continue;
                        }
                    }
                }
                self.flying.push(job);
            }
        }
        Ok(())
    }

    fn observe(&mut self) -> Result<(), ExecutorError> {
        let mut ids: Vec<String> = self.flying.iter().filter_map(|job| job.id.clone()).collect();
        ids.sort_unstable();
        ids.dedup();
        if ids.is_empty() {
            return Ok(());
        }
        let found = self.executor.observe(&ids)?;
        let found: HashMap<String, Progress> = ids.into_iter().zip(found).collect();
        for job in &mut self.flying {
            let Some(progress) = job.id.as_ref().and_then(|id| found.get(id)) else {
                continue;
            };
            match progress {
                Progress::Pending(Some(reason)) if !self.told.contains(reason) => {
                    self.told.push(reason.clone());
                    let id = job.id.as_deref().unwrap_or_default();
                    let name = self.executor.name();
                    self.cx.emit(Event::Warning(format!(
                        "{name} does not begin job {id} by itself: {reason}; `scontrol show job {id}` says more"
                    )));
                }
                Progress::Pending(_) | Progress::Running => job.over = None,
                Progress::Ended(outcome) => {
                    job.over.get_or_insert_with(|| (outcome.clone(), Instant::now()));
                }
                Progress::Unknown => {
                    let outcome = Outcome::Lost("not known to the scheduler".into());
                    job.over.get_or_insert_with(|| (outcome, Instant::now()));
                }
            }
        }
        Ok(())
    }

    /// Ends what is over for the scheduler and has no record of an end. A record may come late from another machine.
    fn settle(&mut self) {
        let settle = self.executor.settle();
        for job in self.flying.iter_mut().filter(|job| job.stopped.is_none()) {
            let paths = &self.graph.nodes[job.parcel.node].paths;
            if let Some((_, since)) = &mut job.over
                && since.elapsed() >= settle.min(LIFE)
                && let Some(life) = sign_of_life(paths)
            {
                // It is not over, whatever the scheduler says.
                if job.life.as_ref().is_some_and(|before| *before != life) {
                    *since = Instant::now();
                }
                job.life = Some(life);
            }
        }
        let is_due = |job: &Flying| match (&job.over, job.stopped) {
            (Some((_, since)), None) if job.life.is_some() => since.elapsed() >= settle.max(LIFE),
            (Some((_, since)), None) => since.elapsed() >= settle,
            (Some(_), Some(stopped)) => stopped.elapsed() >= LOOK * 3,
            (None, Some(stopped)) => stopped.elapsed() >= LAST_WORD,
            (None, None) => false,
        };
        if !self.flying.iter().any(is_due) {
            return;
        }
        self.next_look = Instant::now();
        self.look();
        let (due, flying): (Vec<Flying>, Vec<Flying>) = std::mem::take(&mut self.flying).into_iter().partition(is_due);
        self.flying = flying;
        for job in due {
            self.lose(job);
        }
    }

    fn gone_away(&mut self, error: &ExecutorError) {
        let pause = match &self.away {
            Some(away) => (away.pause * 2).min(AWAY.1),
            None => {
                self.cx
                    .emit(Event::Warning(format!("{error}; jobs are not affected, trying again")));
                AWAY.0
            }
        };
        self.away = Some(Away {
            until: Instant::now() + pause,
            pause,
        });
    }

    fn back(&mut self) {
        if self.away.take().is_some() {
            self.cx
                .emit(Event::Warning(format!("{} answers again", self.executor.name())));
        }
    }

    /// A job is at its end.
    fn finish(&mut self, mut flying: Flying, result: Result<Box<JobRecord>, JobError>) {
        self.forget(&flying.batch, result.is_err() && flying.stopped.is_none());
        if let Err(error) = &result {
            let paths = self.paths(flying.parcel.node);
            Spec::forget(paths);
            let is_written =
                matches!(JobRecord::read(&paths.info), Found::Record(record) if !record.status.is_active());
            // What its run knew of itself stays.
            if let Found::Record(record) = JobRecord::read(&paths.info) {
                flying.parcel.claimed.record = *record;
            }
            if !is_written && let Err(e) = end(&mut flying.parcel.claimed.record, paths, error) {
                tracing::warn!("{e}");
            }
        }
        self.report(flying.parcel, result);
    }

    /// The lock is given up before anybody hears of the end.
    fn report(&self, parcel: Parcel, result: Result<Box<JobRecord>, JobError>) {
        let Parcel { node, claimed, .. } = parcel;
        drop(claimed);
        let _ = self.news.send(News {
            node,
            worker: None,
            result,
        });
    }

    /// One job less in a batch. The files of one without faults go with the last.
    fn forget(&mut self, batch: &str, has_failed: bool) {
        let Some(left) = self.left.get_mut(batch) else { return };
        left.jobs = left.jobs.saturating_sub(1);
        left.has_failed |= has_failed;
        if left.jobs == 0 {
            if !left.has_failed {
                let _ = fs::remove_dir_all(self.store.dir().join(FOLDER).join(batch));
            }
            self.left.remove(batch);
        }
    }
}

fn cancelled(node: &Node) -> JobError {
    JobError::Cancelled {
        task: node.job.label(),
        path: node.paths.result.clone(),
    }
}
