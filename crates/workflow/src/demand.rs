//! The jobs that some wanted ones need: each once, after those it depends on.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use jiff::Timestamp;

use crate::job::Job;
use crate::record::{Brief, Found, Status};
use crate::store::{JobStore, Paths};

/// A job of a graph.
pub(crate) struct Node {
    pub job: Arc<Job>,
    pub paths: Paths,
    /// Its dependencies, each once.
    pub needs: Vec<Edge>,
    /// The jobs that depend on it.
    pub needed_by: Vec<Edge>,
}

/// The way from a job to one that it depends on, or back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Edge {
    /// The node at the other end.
    pub node: usize,
    /// Whether the dependent job goes on when the other one fails.
    pub can_fail: bool,
}

/// Jobs with all that they depend on.
pub(crate) struct Graph {
    /// Every node comes after those it depends on.
    pub nodes: Vec<Node>,
    /// The nodes of the wanted jobs, in their order.
    pub targets: Vec<usize>,
}

/// What is stored of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stored {
    /// No record.
    Absent,
    /// Something that has to be run (again).
    Stale,
    /// It failed, and when.
    Failed(Timestamp),
    /// A result that holds, and when it was done.
    Fresh(Timestamp),
}

impl Stored {
    /// Whether it makes what used it, and was started then, out of date.
    pub fn is_newer(self, started: Timestamp, can_fail: bool) -> bool {
        match self {
            Self::Absent => false,
            Self::Stale => true,
            // It failed, and the dependent job went on all the same.
            Self::Failed(ended) => !can_fail || ended > started,
            Self::Fresh(ended) => ended > started,
        }
    }
}

impl Graph {
    /// The graph of these jobs. The depth of dependencies is no matter: nothing here is recursive.
    pub fn of(store: &JobStore, wanted: &[Arc<Job>]) -> Self {
        let mut graph = Self {
            nodes: Vec::new(),
            targets: Vec::new(),
        };
        // Two jobs that were made apart may be the same one, so the path decides; the address is only the short way.
        let mut by_path: HashMap<PathBuf, usize> = HashMap::new();
        let mut by_address: HashMap<*const Job, usize> = HashMap::new();
        for target in wanted {
            let mut open: Vec<(Arc<Job>, usize)> = vec![(target.clone(), 0)];
            while let Some((job, at)) = open.pop() {
                if by_address.contains_key(&Arc::as_ptr(&job)) {
                    continue;
                }
                if let Some(next) = job.dependencies.get(at).cloned() {
                    open.push((job, at + 1));
                    open.push((next, 0));
                    continue;
                }
                let index = match by_path.get(&job.relative_path()) {
                    Some(index) => *index,
                    None => graph.add(store, &job, &by_address),
                };
                by_path.insert(job.relative_path(), index);
                by_address.insert(Arc::as_ptr(&job), index);
            }
            graph.targets.extend(by_address.get(&Arc::as_ptr(target)));
        }
        graph
    }

    fn add(&mut self, store: &JobStore, job: &Arc<Job>, known: &HashMap<*const Job, usize>) -> usize {
        let index = self.nodes.len();
        let mut needs = Vec::new();
        for (dependency, can_fail) in job.dependencies.iter().zip(job.may_fail()) {
            if let Some(&need) = known.get(&Arc::as_ptr(dependency))
                // Two that were made apart may be the same job.
                && self.nodes[need].needed_by.last().map(|e| e.node) != Some(index)
            {
                self.nodes[need].needed_by.push(Edge { node: index, can_fail });
                needs.push(Edge { node: need, can_fail });
            }
        }
        self.nodes.push(Node {
            paths: store.paths(job),
            job: job.clone(),
            needs,
            needed_by: Vec::new(),
        });
        index
    }

    /// What is stored of each node. A result holds if the record says done, the result is a file, and no job it depends on
    /// is out of date or has a result that is newer than the start of this one. A dependency that was cleaned away
    /// changes nothing.
    pub fn stored(&self) -> Vec<Stored> {
        let mut stored: Vec<Stored> = Vec::with_capacity(self.nodes.len());
        for node in &self.nodes {
            let state = match (&node.job.given, Brief::read(&node.paths.info)) {
                (Some(given), _) if !given.path.is_file() => Stored::Stale,
                (Some(given), Found::Record(brief)) if given.is_job && brief.status == Status::Done => {
                    Stored::Fresh(brief.ended)
                }
                // The content of a file is part of the identity: another content would be another job.
                (Some(_), _) => Stored::Fresh(Timestamp::MIN),
                (None, Found::Nothing) => Stored::Absent,
                (None, Found::Record(brief)) if brief.status == Status::Done && node.paths.result.is_file() => {
                    let newer = |need: &Edge| stored[need.node].is_newer(brief.started, need.can_fail);
                    match node.needs.iter().any(newer) {
                        true => Stored::Stale,
                        false => Stored::Fresh(brief.ended),
                    }
                }
                (None, Found::Record(brief)) if brief.status == Status::Error => Stored::Failed(brief.ended),
                (None, _) => Stored::Stale,
            };
            stored.push(state);
        }
        stored
    }
}
