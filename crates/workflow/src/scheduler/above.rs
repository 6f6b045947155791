//! Of a run within other jobs: what would wait for itself.

use std::path::Path;
use std::time::Instant;

use super::{Scheduler, WAITERS};
use crate::demand::{Node, Stored};
use crate::error::JobError;
use crate::guard::{JobStack, WaitMark, waits_for_us};

impl Scheduler<'_> {
    /// Why a wanted job can't be run from where we are: it would wait for itself, or is too deep. Those that it depends on
    /// and that would be run count as itself.
    pub(super) fn refusal(&self, target: usize) -> Option<JobError> {
        let above = &self.cx.above;
        if above.is_empty() {
            return None;
        }
        let Node { job, paths, .. } = &self.graph.nodes[target];
        if let Some(error) = above.too_deep(&paths.result, job.label()) {
            return Some(error);
        }
        let mut seen = vec![false; self.graph.nodes.len()];
        let mut open = vec![target];
        while let Some(node) = open.pop() {
            if std::mem::replace(&mut seen[node], true) {
                continue;
            }
            let found = &self.graph.nodes[node].paths.result;
            if above.contains(found) {
                return Some(above.recursive(&paths.result, job.label(), found));
            }
            let needs = self.graph.nodes[node].needs.iter().map(|need| need.node);
            open.extend(needs.filter(|need| !matches!(self.stored[*need], Stored::Fresh(_))));
        }
        None
    }

    /// Says that we wait for a job that somebody else is at work on, and looks whether that one waits for us.
    pub(super) fn deadlock(&mut self, node: usize) -> Option<JobError> {
        let above = &self.cx.above;
        let Node { job, paths, .. } = &self.graph.nodes[node];
        let now = Instant::now();
        match self.marks.get_mut(&node) {
            Some((_, next)) if *next > now => return None,
            Some((_, next)) => *next = now + WAITERS,
            None => {
                let mark = WaitMark::new(above, &paths.result)?;
                self.marks.insert(node, (mark, now + WAITERS));
            }
        }
        let found = waits_for_us(self.store.dir(), &paths.result, above)?;
        Some(above.recursive(&paths.result, job.label(), &found))
    }

    /// The jobs above the process of a node: also the wanted ones that wait for it.
    pub(super) fn level(&self, node: usize) -> JobStack {
        let graph = self.graph;
        let mut waiting: Vec<&Path> = Vec::new();
        match graph.targets.as_slice() {
            // All that runs is needed by it.
            [one] if *one == node => {}
            [one] => waiting.push(&graph.nodes[*one].paths.result),
            _ => {
                let mut seen = vec![false; graph.nodes.len()];
                let mut open: Vec<usize> = graph.nodes[node].needed_by.iter().map(|e| e.node).collect();
                while let Some(at) = open.pop() {
                    if std::mem::replace(&mut seen[at], true) {
                        continue;
                    }
                    if self.claimed[at].is_some() {
                        waiting.push(&graph.nodes[at].paths.result);
                    }
                    open.extend(graph.nodes[at].needed_by.iter().map(|e| e.node));
                }
            }
        }
        self.cx.above.with(&waiting, &graph.nodes[node].paths.result)
    }
}
