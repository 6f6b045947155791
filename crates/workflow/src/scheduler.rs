//! Takes many jobs to their results: those that wait for nothing run side by side, as many as there are processors and
//! memory for; what fails ends only what depends on it.
//!
//! One thread, that of the caller, decides; it never runs a job itself and waits for nothing but news. A job that
//! another process is at work on is looked at again now and then, and takes no processor meanwhile.

mod above;
mod failing;

use std::collections::HashMap;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use decanus_base::files::{LockError, OwnerLock};
use decanus_tool::Event;
use jiff::Timestamp;
use tokio_util::sync::CancellationToken;

use crate::demand::{Edge, Graph, Node, Stored};
use crate::error::JobError;
use crate::fleet::Parcel;
use crate::guard::WaitMark;
use crate::record::{Found, JobRecord, Status, time};
use crate::runner::{self, Claimed, Cx, Done, store_error};
use crate::store::JobStore;
use crate::workers::{News, Work, Workers};

/// How long the lock of another process is left alone between two looks.
const LOOKS: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(40));
/// How soon an interruption is seen.
const NOTICE: Duration = Duration::from_millis(40);
/// How often those who wait for locks look whether they wait for each other.
const WAITERS: Duration = Duration::from_secs(1);
/// How soon slots that others of this process had are seen to be free.
const FREED: Duration = Duration::from_millis(5);

/// Where a job is in this run.
enum At {
    /// Nobody has asked for it.
    Unneeded,
    /// It is wanted for itself, and its lock is not ours yet.
    Claiming(Look),
    /// So many of its dependencies are not done.
    Waiting(usize),
    /// Only a slot is missing, and its lock.
    Ready,
    /// Another process has its lock.
    Held(Look),
    /// A thread is at work on it.
    Running(CancellationToken),
    /// Its result is there.
    Done {
        reused: bool,
        record: Option<Box<JobRecord>>,
    },
    /// It has none.
    Failed(JobError),
    /// Nobody needs it any more.
    Dropped,
}

/// The next look at a lock.
#[derive(Clone, Copy)]
struct Look {
    at: Instant,
    pause: Duration,
}

impl Look {
    fn first() -> Self {
        Self {
            at: Instant::now(),
            pause: LOOKS.0,
        }
    }

    fn next(self) -> Self {
        Self {
            at: Instant::now() + self.pause,
            pause: (self.pause * 2).min(LOOKS.1),
        }
    }
}

pub(crate) struct Scheduler<'a> {
    store: &'a JobStore,
    graph: &'a Graph,
    cx: &'a Cx,
    force: bool,
    stored: Vec<Stored>,
    at: Vec<At>,
    /// When the result of a node was done, of those that have one.
    ended: Vec<Timestamp>,
    /// What is ours of a wanted job while its dependencies run.
    claimed: Vec<Option<Claimed>>,
    /// Whether somebody else had its lock when we came.
    waited: Vec<bool>,
    ready: Vec<usize>,
    /// Those that failed by themselves.
    failed: Vec<usize>,
    /// Those of which the lock is looked at.
    looking: Vec<usize>,
    /// Of those, what tells others that we wait, when there are jobs above us; and the next look at who waits for whom.
    marks: HashMap<usize, (WaitMark, Instant)>,
    running: usize,
    /// Those of them that an executor has.
    elsewhere: usize,
    done: usize,
    needed: usize,
    begun: Timestamp,
}

impl<'a> Scheduler<'a> {
    pub fn new(store: &'a JobStore, graph: &'a Graph, force: bool, cx: &'a Cx) -> Self {
        let count = graph.nodes.len();
        let stored = graph.stored();
        let ended = stored.iter().map(|s| match s {
            Stored::Fresh(ended) => *ended,
            _ => Timestamp::MIN,
        });
        Self {
            ended: ended.collect(),
            store,
            graph,
            cx,
            force,
            stored,
            at: (0..count).map(|_| At::Unneeded).collect(),
            claimed: (0..count).map(|_| None).collect(),
            waited: vec![false; count],
            ready: Vec::new(),
            failed: Vec::new(),
            looking: Vec::new(),
            marks: HashMap::new(),
            running: 0,
            elsewhere: 0,
            done: 0,
            needed: 0,
            begun: Timestamp::now(),
        }
    }

    /// Runs what has to be run. Gives what came of each wanted job, in their order.
    pub fn run(mut self) -> Vec<Result<Done, JobError>> {
        for &target in &self.graph.targets {
            if !matches!(self.at[target], At::Unneeded) {
                continue;
            }
            self.needed += 1;
            if !self.force && matches!(self.stored[target], Stored::Fresh(_)) {
                self.reuse(target);
            } else if let Some(error) = self.refusal(target) {
                self.at[target] = At::Failed(error);
            } else {
                self.at[target] = At::Claiming(Look::first());
                self.looking.push(target);
            }
        }
        let (sender, news) = channel();
        std::thread::scope(|scope| {
            let mut workers = Workers::new(scope, self.store, self.graph, self.cx, sender);
            self.work(&mut workers, &news);
        });
        let targets = &self.graph.targets;
        targets.iter().map(|&target| self.outcome(target)).collect()
    }

    fn work<'scope>(&mut self, workers: &mut Workers<'scope, '_, 'a>, news: &Receiver<News>)
    where
        'a: 'scope,
    {
        loop {
            if self.cx.is_over() {
                self.give_up();
            }
            self.look();
            self.start(workers);
            if self.running == 0 && self.ready.is_empty() && self.looking.is_empty() {
                return;
            }
            match news.recv_timeout(self.patience()) {
                Ok(one) => {
                    self.take(one, workers);
                    // What came meanwhile is dealt with at once.
                    while let Ok(one) = news.try_recv() {
                        self.take(one, workers);
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    /// How long to wait for news before looking again.
    fn patience(&self) -> Duration {
        let now = Instant::now();
        let looks = self.looking.iter().filter_map(|&node| match self.at[node] {
            At::Claiming(look) | At::Held(look) => Some(look.at.saturating_duration_since(now)),
            _ => None,
        });
        let slots = (!self.ready.is_empty()).then_some(FREED);
        looks.chain(slots).min().unwrap_or(NOTICE).min(NOTICE)
    }

    fn take<'scope>(&mut self, news: News, workers: &mut Workers<'scope, '_, 'a>)
    where
        'a: 'scope,
    {
        let News { node, worker, result } = news;
        if let Some(worker) = worker {
            workers.rests(worker);
        }
        self.running -= 1;
        self.elsewhere -= usize::from(worker.is_none());
        match result {
            Ok(record) => {
                self.ended[node] = time(record.ended.as_ref());
                self.settle(node, false, Some(record));
            }
            Err(JobError::Cancelled { .. })
                if matches!(&self.at[node], At::Running(own) if own.is_cancelled()) && !self.cx.is_over() =>
            {
                self.at[node] = At::Dropped;
            }
            Err(error) => self.fail(node, error),
        }
    }

    /// The result of a node is there.
    fn settle(&mut self, node: usize, reused: bool, record: Option<Box<JobRecord>>) {
        self.at[node] = At::Done { reused, record };
        self.done += 1;
        let graph = self.graph;
        for dependent in &graph.nodes[node].needed_by {
            self.one_less(dependent.node);
        }
        if !reused {
            self.tell_progress();
        }
    }

    /// One of those that a node waits for is done.
    fn one_less(&mut self, node: usize) {
        if let At::Waiting(left) = &mut self.at[node] {
            *left -= 1;
            if *left == 0 {
                self.at[node] = At::Ready;
                self.ready.push(node);
            }
        }
    }

    fn tell_progress(&self) {
        // One job alone says so itself. Who runs is looked for among all, so only for somebody who listens.
        if self.needed > 1 && self.cx.events.is_some() {
            let running = self
                .at
                .iter()
                .zip(&self.graph.nodes)
                .filter(|(at, _)| matches!(at, At::Running(_)));
            self.cx.emit(Event::Jobs {
                done: self.done,
                total: self.needed,
                running: running.take(4).map(|(_, node)| node.job.label()).collect(),
            });
        }
    }

    fn reuse(&mut self, node: usize) {
        let Node { job, paths, .. } = &self.graph.nodes[node];
        if job.given.is_none() {
            self.cx.emit(Event::Job {
                path: paths.result.display().to_string(),
                reused: true,
            });
        }
        self.settle(node, true, None);
    }

    /// Asks for what a node depends on; it is ready when there is nothing to wait for.
    fn need(&mut self, node: usize) {
        let graph = self.graph;
        let mut open = vec![node];
        while let Some(node) = open.pop() {
            let mut left = 0;
            for &Edge { node: need, can_fail } in &graph.nodes[node].needs {
                if matches!(self.at[need], At::Unneeded) {
                    self.needed += 1;
                    if matches!(self.stored[need], Stored::Fresh(_)) {
                        self.reuse(need);
                    } else {
                        self.at[need] = At::Waiting(usize::MAX);
                        open.push(need);
                    }
                }
                match self.at[need] {
                    At::Done { .. } => {}
                    At::Failed(_) if can_fail => {}
                    _ => left += 1,
                }
            }
            self.at[node] = if left == 0 { At::Ready } else { At::Waiting(left) };
            if left == 0 {
                self.ready.push(node);
            }
        }
        // One that failed before it was asked for again takes its dependents with it.
        for failed in self.failed.clone() {
            if let At::Failed(error) = &self.at[failed] {
                let error = error.clone();
                self.spread(failed, &error, false);
            }
        }
    }

    /// Tries the locks that somebody else had.
    fn look(&mut self) {
        let now = Instant::now();
        let looking = std::mem::take(&mut self.looking);
        for node in looking {
            let look = match self.at[node] {
                At::Claiming(look) | At::Held(look) => look,
                _ => continue,
            };
            if look.at > now {
                self.looking.push(node);
                continue;
            }
            let claimed = self.claim(node);
            if !matches!(claimed, Ok(None)) {
                self.marks.remove(&node);
            }
            match claimed {
                Ok(None) => {
                    self.waited[node] = true;
                    if let Some(error) = self.deadlock(node) {
                        self.fail(node, error);
                        continue;
                    }
                    let next = look.next();
                    self.at[node] = match self.at[node] {
                        At::Claiming(_) => At::Claiming(next),
                        _ => At::Held(next),
                    };
                    self.looking.push(node);
                }
                Ok(Some(claimed)) if matches!(self.at[node], At::Claiming(_)) => {
                    self.claimed[node] = Some(claimed);
                    self.need(node);
                }
                Ok(Some(claimed)) => {
                    self.claimed[node] = Some(claimed);
                    self.at[node] = At::Ready;
                    self.ready.push(node);
                }
                Err(Ended::Reused(record)) => {
                    self.ended[node] = time(record.ended.as_ref());
                    self.cx.emit(Event::Job {
                        path: self.graph.nodes[node].paths.result.display().to_string(),
                        reused: true,
                    });
                    self.settle(node, true, Some(record));
                }
                Err(Ended::Failed(error)) => self.fail(node, error),
            }
        }
    }

    /// Takes the lock of a node and looks at its record again. `None` while somebody else has it.
    fn claim(&mut self, node: usize) -> Result<Option<Claimed>, Ended> {
        let Node { job, paths, needs, .. } = &self.graph.nodes[node];
        if let Some(given) = &job.given {
            return Err(match self.store.given(job, given, paths) {
                Ok(done) => Ended::Reused(Box::new(done.job.record)),
                Err(error) => Ended::Failed(error),
            });
        }
        let lock = match OwnerLock::acquire(&paths.lock, Duration::ZERO, &|| false) {
            Ok(lock) => lock,
            Err(LockError::Held { .. }) => return Ok(None),
            Err(LockError::Io(e)) => return Err(Ended::Failed(store_error(e))),
        };
        let wanted = matches!(self.at[node], At::Claiming(_));
        match JobRecord::read(&paths.info) {
            Found::Record(record) => {
                let just_ended = self.waited[node] && time(record.ended.as_ref()) > self.begun;
                match record.status {
                    Status::Done if !(self.force && wanted) || just_ended => {
                        let started = time(record.started.as_ref());
                        // Of a wanted job the dependencies may not have been looked at yet; what is stored of them tells.
                        let holds = |need: &Edge| match (&self.at[need.node], self.stored[need.node]) {
                            (At::Done { .. }, _) => self.ended[need.node] <= started,
                            (_, stored) => just_ended || !stored.is_newer(started, need.can_fail),
                        };
                        if paths.result.is_file() && needs.iter().all(holds) {
                            return Err(Ended::Reused(record));
                        }
                    }
                    // Somebody else tried while we waited for just that; trying the same at once is no use.
                    Status::Error if just_ended => {
                        let message = record.error.unwrap_or_default();
                        return Err(Ended::Failed(runner::failed(job, paths, message, String::new())));
                    }
                    Status::Waiting | Status::Running if record.is_elsewhere() => {
                        return match self.store.executors().get(&record.executor) {
                            Some(_) => Ok(Some(Claimed::joined(lock, *record))),
                            None => {
                                let id = record.scheduler_id.unwrap_or_default();
                                let message = format!(
                                    "it is with the executor `{}` as {id}, which can't be asked from here",
                                    record.executor
                                );
                                Err(Ended::Failed(runner::failed(job, paths, message, String::new())))
                            }
                        };
                    }
                    Status::Waiting | Status::Running => runner::take_over(&record, paths, job, self.cx),
                    _ => {}
                }
            }
            Found::Torn(reason) => {
                tracing::warn!(job = %paths.result.display(), reason, "the record can't be read; running the job again");
            }
            Found::Nothing => {}
        }
        let mut claimed = Claimed::new(lock, self.store.new_record(job));
        // Who looks at the list of jobs sees that it waits.
        if wanted && !needs.is_empty() {
            claimed.announce(paths).map_err(Ended::Failed)?;
        }
        Ok(Some(claimed))
    }

    /// Starts what is ready, as far as there are slots.
    fn start<'scope>(&mut self, workers: &mut Workers<'scope, '_, 'a>)
    where
        'a: 'scope,
    {
        let mut later = Vec::new();
        // What came last goes first: it is nearer to a wanted job, and what it needs was used just now.
        while let Some(node) = self.ready.pop() {
            if !matches!(self.at[node], At::Ready) {
                continue;
            }
            let graph = self.graph;
            let Node { job, paths, .. } = &graph.nodes[node];
            let executors = self.store.executors();
            let chosen = executors.choose(self.cx.executor.as_deref(), &job.workflow, &job.task);
            let joined = self.claimed[node].as_ref().filter(|claimed| claimed.is_joined);
            let chosen = match joined {
                Some(claimed) => executors.get(&claimed.record.executor),
                None => chosen,
            };
            let slot = match chosen {
                Some(executor) if self.elsewhere >= executor.most() => {
                    later.push(node);
                    // Those behind it are for the same executor most likely.
                    if later.len() > 64 {
                        break;
                    }
                    continue;
                }
                Some(_) => None,
                None => {
                    let need = job.task.resources.need();
                    if let Some(reason) = need.beyond(self.store.slots().capacity()) {
                        self.fail(node, runner::failed(job, paths, reason, String::new()));
                        continue;
                    }
                    let Some(slot) = self.store.slots().try_take(need) else {
                        later.push(node);
                        // With nothing but the usual need behind it, there is no use in asking for each of thousands.
                        if later.len() > 64 {
                            break;
                        }
                        continue;
                    };
                    Some(slot)
                }
            };
            let claimed = match self.claimed[node].take() {
                Some(claimed) => claimed,
                None => match self.claim(node) {
                    Ok(Some(claimed)) => claimed,
                    Ok(None) => {
                        self.waited[node] = true;
                        self.at[node] = At::Held(Look::first().next());
                        self.looking.push(node);
                        continue;
                    }
                    Err(Ended::Reused(record)) => {
                        self.ended[node] = time(record.ended.as_ref());
                        self.settle(node, true, Some(record));
                        continue;
                    }
                    Err(Ended::Failed(error)) => {
                        self.fail(node, error);
                        continue;
                    }
                },
            };
            let cancel = self.cx.cancel.child_token();
            self.at[node] = At::Running(cancel.clone());
            self.running += 1;
            // What is with an executor already stays there, whatever was chosen.
            let chosen = match claimed.is_joined {
                true => executors.get(&claimed.record.executor),
                false => chosen,
            };
            let given = match (chosen, slot) {
                (None, Some(slot)) => workers.give(Work {
                    node,
                    claimed,
                    slot,
                    cancel,
                    above: self.level(node),
                }),
                (Some(executor), _) => workers.hand_over(executor, Parcel { node, claimed, cancel }).map(|()| {
                    self.elsewhere += 1;
                }),
                (None, None) => Err(store_error("there is nothing to run it")),
            };
            if let Err(error) = given {
                self.running -= 1;
                self.at[node] = At::Ready;
                self.fail(node, error);
            }
        }
        self.ready.append(&mut later);
    }

    fn outcome(&self, target: usize) -> Result<Done, JobError> {
        let Node { job, paths, .. } = &self.graph.nodes[target];
        match &self.at[target] {
            At::Done { reused, record } => {
                if let Some(given) = &job.given {
                    return self.store.given(job, given, paths);
                }
                let record = match record {
                    Some(record) => record.clone(),
                    None => match JobRecord::read(&paths.info) {
                        Found::Record(record) => record,
                        _ => return Err(store_error(format!("{}: the record is gone", paths.info.display()))),
                    },
                };
                Ok(Done {
                    job: self.store.stored(paths, *record),
                    reused: *reused,
                })
            }
            At::Failed(error) => Err(error.clone()),
            _ => Err(self.cx.ended(job, paths)),
        }
    }
}

/// What a look at a record may end with, without a run.
enum Ended {
    Reused(Box<JobRecord>),
    Failed(JobError),
}
