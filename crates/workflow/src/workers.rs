//! The threads that a run of jobs has: those that run bodies here, and those that wait for jobs elsewhere.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread::Scope;

use tokio_util::sync::CancellationToken;

use crate::demand::{Graph, Node};
use crate::error::JobError;
use crate::executor::Executor;
use crate::fleet::{Fleet, Parcel};
use crate::guard::JobStack;
use crate::record::JobRecord;
use crate::runner::{Claimed, Cx, store_error};
use crate::slots::Slot;
use crate::store::JobStore;

/// A job for a thread.
pub(crate) struct Work {
    pub node: usize,
    pub claimed: Claimed,
    pub slot: Slot,
    pub cancel: CancellationToken,
    pub above: JobStack,
}

/// What came of it.
pub(crate) struct News {
    pub node: usize,
    /// The thread that is free again; none when the job ran elsewhere.
    pub worker: Option<usize>,
    pub result: Result<Box<JobRecord>, JobError>,
}

/// The threads.
pub(crate) struct Workers<'scope, 'env, 'a> {
    scope: &'scope Scope<'scope, 'env>,
    store: &'a JobStore,
    graph: &'a Graph,
    cx: &'a Cx,
    all: Vec<Sender<Work>>,
    idle: Vec<usize>,
    /// Those that wait for the jobs of executors, by their names.
    fleets: HashMap<&'static str, Sender<Parcel>>,
    news: Sender<News>,
}

impl<'scope, 'env, 'a: 'scope> Workers<'scope, 'env, 'a> {
    /// None yet. What comes of their jobs goes to `news`.
    pub fn new(
        scope: &'scope Scope<'scope, 'env>,
        store: &'a JobStore,
        graph: &'a Graph,
        cx: &'a Cx,
        news: Sender<News>,
    ) -> Self {
        Self {
            scope,
            store,
            graph,
            cx,
            all: Vec::new(),
            idle: Vec::new(),
            fleets: HashMap::new(),
            news,
        }
    }

    /// A thread has nothing to do.
    pub fn rests(&mut self, worker: usize) {
        self.idle.push(worker);
    }

    /// Gives a job to a thread that has nothing to do, or to a new one.
    pub fn give(&mut self, mut work: Work) -> Result<(), JobError> {
        while let Some(worker) = self.idle.pop() {
            match self.all[worker].send(work) {
                Ok(()) => return Ok(()),
                Err(back) => work = back.0,
            }
        }
        let (sender, jobs) = channel::<Work>();
        let (worker, news) = (self.all.len(), self.news.clone());
        let (store, graph, cx) = (self.store, self.graph, self.cx);
        std::thread::Builder::new()
            .name("job".into())
            .spawn_scoped(self.scope, move || {
                for work in jobs {
                    let Work {
                        node,
                        claimed,
                        slot,
                        cancel,
                        above,
                    } = work;
                    let cx = Cx {
                        cancel,
                        above,
                        ..cx.clone()
                    };
                    let Node { job, paths, .. } = &graph.nodes[node];
                    // A body may be somebody else's code.
                    let run = std::panic::AssertUnwindSafe(|| store.run_claimed(job, paths, claimed, &cx));
                    let result = std::panic::catch_unwind(run)
                        .unwrap_or_else(|_| Err(store_error("the thread of the job panicked")));
                    drop(slot);
                    let worker = Some(worker);
                    if news.send(News { node, worker, result }).is_err() {
                        break;
                    }
                }
            })
            .map_err(store_error)?;
        let sent = sender.send(work).map_err(|_| store_error("a thread ended early"));
        self.all.push(sender);
        sent
    }

    /// Gives a job to an executor.
    pub fn hand_over(&mut self, executor: &Arc<dyn Executor>, parcel: Parcel) -> Result<(), JobError> {
        let name = executor.name();
        if !self.fleets.contains_key(name) {
            executor.available()?;
            let (sender, parcels) = channel();
            let fleet = Fleet::new(self.store, self.graph, self.cx, executor.clone(), self.news.clone());
            std::thread::Builder::new()
                .name(name.into())
                .spawn_scoped(self.scope, move || fleet.run(&parcels))
                .map_err(store_error)?;
            self.fleets.insert(name, sender);
        }
        match self.fleets.get(name) {
            Some(fleet) if fleet.send(parcel).is_ok() => Ok(()),
            _ => Err(store_error("a thread ended early")),
        }
    }
}
