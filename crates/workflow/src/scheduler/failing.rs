//! What a failure, an interruption or the end of the time does to the jobs of a run.

use std::time::Duration;

use decanus_base::files::OwnerLock;

use super::{At, Scheduler};
use crate::demand::{Edge, Node};
use crate::error::JobError;
use crate::runner::{self, Claimed};

impl Scheduler<'_> {
    /// A node has no result, so neither have those that depend on it; what only they needed is not run.
    pub(super) fn fail(&mut self, node: usize, error: JobError) {
        // Its own run has written down what happened; the others did not come to it.
        if !matches!(self.at[node], At::Running(_)) {
            self.write_failure(node, &error);
        }
        self.failed.push(node);
        self.at[node] = At::Failed(error.clone());
        self.spread(node, &error, true);
        self.drop_unneeded();
    }

    /// Tells those that depend on a node that it failed. Those that go on all the same are told only the first time.
    pub(super) fn spread(&mut self, root: usize, error: &JobError, first: bool) {
        let graph = self.graph;
        let mut open = vec![(root, error.clone())];
        while let Some((node, error)) = open.pop() {
            for &Edge {
                node: dependent,
                can_fail,
            } in &graph.nodes[node].needed_by
            {
                if can_fail && !matches!(error, JobError::Cancelled { .. }) {
                    if first || node != root {
                        self.one_less(dependent);
                    }
                } else if matches!(self.at[dependent], At::Waiting(_) | At::Ready | At::Held(_)) {
                    let Node { job, paths, .. } = &graph.nodes[dependent];
                    let error = runner::because_of(&error, job, paths);
                    self.write_failure(dependent, &error);
                    self.at[dependent] = At::Failed(error.clone());
                    open.push((dependent, error));
                }
            }
        }
    }

    fn write_failure(&mut self, node: usize, error: &JobError) {
        let Node { job, paths, .. } = &self.graph.nodes[node];
        if job.given.is_some() {
            return;
        }
        let claimed = match self.claimed[node].take() {
            Some(claimed) => claimed,
            None => match OwnerLock::acquire(&paths.lock, Duration::ZERO, &|| false) {
                Ok(lock) => Claimed::new(lock, self.store.new_record(job)),
                // Whoever has the lock writes the record.
                Err(_) => return,
            },
        };
        claimed.fail(paths, error);
    }

    /// Stops what no job that can still be had needs.
    fn drop_unneeded(&mut self) {
        let graph = self.graph;
        let mut is_needed = vec![false; graph.nodes.len()];
        let mut open: Vec<usize> = graph.targets.clone();
        while let Some(node) = open.pop() {
            let is_open = !matches!(
                self.at[node],
                At::Done { .. } | At::Failed(_) | At::Dropped | At::Unneeded
            );
            if is_open && !std::mem::replace(&mut is_needed[node], true) {
                open.extend(graph.nodes[node].needs.iter().map(|need| need.node));
            }
        }
        for (at, is_needed) in self.at.iter_mut().zip(is_needed) {
            match at {
                _ if is_needed => {}
                At::Running(cancel) => cancel.cancel(),
                At::Waiting(_) | At::Ready | At::Held(_) => *at = At::Dropped,
                _ => {}
            }
        }
    }

    /// Interrupted, or out of time: what has not begun does not begin. What runs ends by itself.
    pub(super) fn give_up(&mut self) {
        self.ready.clear();
        self.looking.clear();
        self.marks.clear();
        for node in 0..self.at.len() {
            let Node { job, paths, .. } = &self.graph.nodes[node];
            if matches!(
                self.at[node],
                At::Claiming(_) | At::Waiting(_) | At::Ready | At::Held(_)
            ) {
                let error = self.cx.ended(job, paths);
                if self.claimed[node].is_some() {
                    self.write_failure(node, &error);
                }
                self.at[node] = At::Failed(error);
            }
        }
    }
}
