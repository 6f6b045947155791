//! The jobs of a run that an executor has: hands them over, many together, and waits until their records say how they
//! ended. What is lost on the way is handed over again.
//!
//! Nothing is ever handed over twice by mistake: before a batch is handed over, its name is in the files of its jobs, so
//! that after a doubtful end (no answer, or this process was killed) the scheduler can be asked for that name.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use decanus_base::files::write_atomic;
use decanus_tool::Event;
use tokio_util::sync::CancellationToken;

use crate::demand::{Graph, Node};
use crate::error::JobError;
use crate::exec::{handed_over, took};
use crate::executor::{Batch, Executor, ExecutorError, JobSpec, Outcome, Progress};
use crate::record::{Found, JobRecord, Status};
use crate::runner::{self, Claimed, Cx, end, store_error};
use crate::scheduler::News;
use crate::spec::Spec;
use crate::store::{JobStore, Paths, entries};

/// Jobs that come within this time of each other go together.
const GATHER: Duration = Duration::from_millis(30);
/// Two looks at the records are at least so far apart.
const LOOK: Duration = Duration::from_millis(100);
/// And further for many: reading them must not be all that is done.
const LOOK_EACH: Duration = Duration::from_millis(1);
/// Pauses while the scheduler is away.
const AWAY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));
/// How long a cancelled job is waited for.
const LAST_WORD: Duration = Duration::from_secs(15);
/// Batches whose files are kept after this time are removed: whoever submitted them died.
const OLD: Duration = Duration::from_secs(14 * 24 * 3600);
/// How many earlier jobs say what jobs of a task take.
const EARLIER: usize = 20;
/// How many jobs of a task are handed over before it is known what they take.
const PROBES: usize = 16;

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

/// How many jobs of a task may still go before it is known what they take, and since when there are any.
struct Probe {
    left: usize,
    since: Instant,
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
            stopped: None,
            is_told: false,
        });
        self.next_poll = Instant::now();
    }

    /// Makes batches of the jobs that came, and writes down what each is to do.
    fn pack(&mut self) {
        let mut fresh = self.due();
        if fresh.is_empty() {
            return;
        }
        let nodes: Vec<usize> = fresh.iter().flatten().map(|(parcel, _)| parcel.node).collect();
        let specs: Vec<JobSpec> = nodes.into_iter().map(|node| self.spec(node)).collect();
        for batch in self.executor.plan(&specs) {
            let dir = self.store.dir().join(FOLDER).join(&batch.name);
            let mut jobs = Vec::new();
            for (element, places) in batch.elements.iter().enumerate() {
                for (parcel, lost) in places.iter().filter_map(|at| fresh.get_mut(*at)?.take()) {
                    jobs.push(Flying {
                        parcel,
                        batch: batch.name.clone(),
                        element,
                        id: None,
                        lost,
                        over: None,
                        stopped: None,
                        is_told: false,
                    });
                }
            }
            self.left.entry(batch.name.clone()).or_default().jobs = jobs.len();
            let written = lists(&batch, &specs).and_then(|lists| {
                for (element, list) in lists.iter().enumerate() {
                    write_atomic(&dir.join(format!("list.{element}")), list.as_bytes()).map_err(store_error)?;
                }
                jobs.iter_mut().try_for_each(|job| self.write_down(job))
            });
            match written {
                Ok(()) => self.consignments.push(Consignment {
                    batch,
                    dir,
                    jobs,
                    in_doubt: false,
                }),
                Err(error) => jobs.into_iter().for_each(|job| self.finish(job, Err(error.clone()))),
            }
        }
    }

    /// The jobs to hand over now. Of a task of which it is not known what its jobs take only some are, so that the others
    /// can share elements if they are short; those that are long get on before the time for probing is over.
    fn due(&mut self) -> Vec<Option<(Parcel, u32)>> {
        let Some(patience) = self.executor.probe() else {
            return std::mem::take(&mut self.fresh).into_iter().map(Some).collect();
        };
        let (mut due, mut held) = (Vec::new(), Vec::new());
        for (parcel, lost) in std::mem::take(&mut self.fresh) {
            let folder = self.folder(parcel.node);
            let is_known = self.typical(&folder).is_some();
            let probe = self.probes.entry(folder).or_insert_with(|| Probe {
                left: PROBES,
                since: Instant::now(),
            });
            if is_known || lost > 0 || probe.left > 0 || probe.since.elapsed() >= patience {
                probe.left = probe.left.saturating_sub(1);
                due.push(Some((parcel, lost)));
            } else {
                held.push((parcel, lost));
            }
        }
        self.fresh = held;
        due
    }

    fn folder(&self, node: usize) -> PathBuf {
        let result = &self.paths(node).result;
        result.parent().unwrap_or(result).to_owned()
    }

    fn typical(&mut self, folder: &Path) -> Option<Duration> {
        match self.typical.get(folder) {
            Some(known) => *known,
            None => {
                let typical = earlier(folder);
                self.typical.insert(folder.to_owned(), typical);
                typical
            }
        }
    }

    /// What one job took counts for a quarter.
    fn learn(&mut self, node: usize, time: Duration) {
        let folder = self.folder(node);
        let typical = match self.typical(&folder) {
            Some(before) => (before * 3 + time) / 4,
            None => time,
        };
        self.typical.insert(folder, Some(typical));
    }

    fn spec(&mut self, node: usize) -> JobSpec {
        let typical = self.typical(&self.folder(node));
        let Node { job, paths, .. } = &self.graph.nodes[node];
        let task = &job.task;
        let limit = [task.timeout, task.resources.time].into_iter().flatten().min();
        JobSpec {
            path: paths.result.clone(),
            resources: task.resources,
            limit: limit.map(|l| l.saturating_mul(task.retries + 1)),
            typical,
        }
    }

    fn write_down(&self, flying: &mut Flying) -> Result<(), JobError> {
        let Node { job, paths, .. } = &self.graph.nodes[flying.parcel.node];
        let record = &mut flying.parcel.claimed.record;
        *record = handed_over(record, self.executor.name());
        runner::clear(paths)
            .and_then(|()| Spec::of(self.store, job, &flying.batch, flying.element).write(paths))
            .and_then(|()| record.write(&paths.info))
            .map_err(store_error)
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
        let is_due = |job: &Flying| match (&job.over, job.stopped) {
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

    fn lose(&mut self, mut flying: Flying) {
        let node = &self.graph.nodes[flying.parcel.node];
        let Node { job, paths, .. } = node;
        let id = flying.id.clone().unwrap_or_default();
        let name = self.executor.name();
        let (outcome, status) = match (&flying.over, JobRecord::read(&paths.info)) {
            (Some((outcome, _)), Found::Record(record)) => (outcome.clone(), record.status),
            (Some((outcome, _)), _) => (outcome.clone(), Status::Waiting),
            (None, _) => {
                self.cx.emit(Event::Warning(format!(
                    "{name} was told to end job {id}, but has not ended it yet"
                )));
                (Outcome::Lost("CANCELLED".into()), Status::Aborted)
            }
        };
        let word = outcome.as_text();
        let log = self
            .store
            .dir()
            .join(FOLDER)
            .join(&flying.batch)
            .join(format!("log.{}", flying.element));
        let log = match flying.batch.is_empty() {
            true => String::new(),
            false => fs::read_to_string(log).unwrap_or_default(),
        };
        let words = decanus_base::text::brief(log.trim(), 500);
        let error = match (outcome.clone(), status) {
            _ if flying.stopped.is_some() => self.cx.ended(job, paths),
            (Outcome::TimedOut, Status::Running | Status::Aborted) => JobError::TimedOut {
                task: job.label(),
                path: paths.result.clone(),
                message: format!("was ended by {name} since its time was up (job {id})"),
                stderr: crate::body::job_stderr(job, paths),
            },
            (Outcome::OutOfMemory, Status::Running | Status::Aborted) => {
                let message = format!("{name} ended it since it used more memory than it had (job {id})");
                runner::failed(job, paths, message, crate::body::job_stderr(job, paths))
            }
            // It was ended in order, by a signal, and nobody here asked for it.
            (Outcome::Completed | Outcome::Lost(_), Status::Aborted) if !is_node_fault(word) => cancelled(node),
            _ if paths.cancel().exists() => cancelled(node),
            _ if flying.lost < job.task.retries.max(1) && !self.cx.is_over() => {
                self.cx.emit(Event::Warning(format!(
                    "job {}: {name} lost it as {id} ({word}); handing it over again",
                    job.label()
                )));
                self.forget(&flying.batch, true);
                flying.parcel.claimed.is_joined = false;
                self.fresh.push((flying.parcel, flying.lost + 1));
                return;
            }
            _ => runner::failed(job, paths, format!("{name} lost it as {id} ({word})"), words),
        };
        self.finish(flying, Err(error));
    }

    /// Marks what is wanted no more.
    fn stop_unwanted(&mut self) {
        let is_over = self.cx.is_over();
        let is_unwanted = |parcel: &Parcel| is_over || parcel.cancel.is_cancelled();
        for (parcel, lost) in std::mem::take(&mut self.fresh) {
            match is_unwanted(&parcel) {
                true => self.give_back(parcel),
                false => self.fresh.push((parcel, lost)),
            }
        }
        for mut consignment in std::mem::take(&mut self.consignments) {
            // One that may have been taken has to be found first.
            if !consignment.in_doubt {
                let jobs = std::mem::take(&mut consignment.jobs);
                for job in jobs {
                    match is_unwanted(&job.parcel) {
                        true => {
                            Spec::forget(self.paths(job.parcel.node));
                            self.forget(&job.batch, false);
                            self.give_back(job.parcel);
                        }
                        false => consignment.jobs.push(job),
                    }
                }
            } else if consignment.jobs.iter().all(|job| is_unwanted(&job.parcel)) {
                self.abandon(consignment);
                continue;
            }
            self.consignments.push(consignment);
        }
        let flying = self.flying.iter_mut();
        for job in flying.filter(|job| job.stopped.is_none() && is_unwanted(&job.parcel)) {
            job.stopped = Some(Instant::now());
            let graph = self.graph;
            let paths = &graph.nodes[job.parcel.node].paths;
            if paths.own.is_dir()
                && let Err(e) = write_atomic(&paths.cancel(), b"")
            {
                tracing::warn!("{e}");
            }
        }
    }

    /// Gives up a batch of which it is not known whether the scheduler has it: asks once more.
    fn abandon(&mut self, consignment: Consignment) {
        let name = self.executor.name();
        let ended = self.executor.find(&consignment.batch.name).and_then(|found| {
            let ids: Vec<String> = found.into_values().collect();
            match ids.is_empty() {
                true => Ok(()),
                false => self.executor.cancel(&ids),
            }
        });
        if let Err(e) = ended {
            self.cx.emit(Event::Warning(format!(
                "{e}; when it is back, `scancel --name={}` ends what {name} may have been given",
                consignment.batch.name
            )));
        }
        for job in consignment.jobs {
            Spec::forget(self.paths(job.parcel.node));
            self.forget(&job.batch, false);
            self.give_back(job.parcel);
        }
    }

    /// A job that was never handed over, and is not to be.
    fn give_back(&self, mut parcel: Parcel) {
        let Node { job, paths, .. } = &self.graph.nodes[parcel.node];
        let error = self.cx.ended(job, paths);
        if let Err(e) = end(&mut parcel.claimed.record, paths, &error) {
            tracing::warn!("{e}");
        }
        self.report(parcel, Err(error));
    }

    /// Tells the scheduler what is wanted no more. An element goes on as long as one of its jobs is wanted.
    fn tell(&mut self) {
        let wanted: Vec<&String> = self
            .flying
            .iter()
            .filter(|j| j.stopped.is_none())
            .filter_map(|j| j.id.as_ref())
            .collect();
        let ids: Vec<String> = self
            .flying
            .iter()
            .filter(|j| j.stopped.is_some() && !j.is_told)
            .filter_map(|j| j.id.clone())
            .filter(|id| !wanted.contains(&id))
            .collect();
        if ids.is_empty() {
            return;
        }
        match self.executor.cancel(&ids) {
            Ok(()) => {
                let told = self.flying.iter_mut();
                for job in told.filter(|j| j.id.as_ref().is_some_and(|id| ids.contains(id))) {
                    job.is_told = true;
                }
                // What the scheduler makes of it is of interest at once.
                self.next_poll = Instant::now();
            }
            Err(e) => self.gone_away(&e),
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

    /// Removes what submitters that died left, and the logs of failures, when they are old.
    fn tidy(&self) {
        for dir in entries(&self.store.dir().join(FOLDER)).unwrap_or_default() {
            let changed = fs::metadata(&dir).and_then(|m| m.modified());
            if changed.is_ok_and(|at| at.elapsed().is_ok_and(|age| age > OLD)) {
                let _ = fs::remove_dir_all(&dir);
            }
        }
    }
}

fn cancelled(node: &Node) -> JobError {
    JobError::Cancelled {
        task: node.job.label(),
        path: node.paths.result.clone(),
    }
}

/// Whether a job that ended in order, by a signal, was ended for the sake of its node or of other jobs.
fn is_node_fault(word: &str) -> bool {
    matches!(word, "NODE_FAIL" | "BOOT_FAIL" | "PREEMPTED" | "REVOKED")
}

/// The lists of a batch's elements.
fn lists(batch: &Batch, specs: &[JobSpec]) -> Result<Vec<String>, JobError> {
    let line = |at: &usize| {
        let path = specs.get(*at).map(|s| &s.path);
        let text = path.and_then(|p| p.to_str()).filter(|t| !t.contains('\n'));
        let text = text.ok_or_else(|| store_error(format!("the path {path:?} can't be written in a list")))?;
        Ok(format!("{text}\n"))
    };
    batch
        .elements
        .iter()
        .map(|places| places.iter().map(line).collect())
        .collect()
}

/// What jobs of a task took, by some of those that are stored in its folder.
fn earlier(folder: &Path) -> Option<Duration> {
    let infos = entries(folder).unwrap_or_default().into_iter();
    let times: Vec<Duration> = infos
        .filter(|path| path.extension().is_some_and(|e| e == "info"))
        .take(EARLIER * 5)
        .filter_map(|path| match JobRecord::read(&path) {
            Found::Record(record) if record.status == Status::Done => took(&record),
            _ => None,
        })
        .take(EARLIER)
        .collect();
    let count = u32::try_from(times.len()).ok().filter(|n| *n > 0)?;
    Some(times.iter().sum::<Duration>() / count)
}
