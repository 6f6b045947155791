//! Jobs that are wanted no more, and those that are lost.

use std::fs;
use std::time::Instant;

use decanus_base::files::write_atomic;
use decanus_tool::Event;

use super::{Consignment, FOLDER, Fleet, Flying, Parcel, cancelled};
use crate::demand::Node;
use crate::error::JobError;
use crate::executor::Outcome;
use crate::record::{Found, JobRecord, Status};
use crate::runner::{self, end};
use crate::spec::Spec;

impl Fleet<'_> {
    pub(super) fn lose(&mut self, mut flying: Flying) {
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
    pub(super) fn stop_unwanted(&mut self) {
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
    pub(super) fn tell(&mut self) {
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
}

/// Whether a job that ended in order, by a signal, was ended for the sake of its node or of other jobs.
fn is_node_fault(word: &str) -> bool {
    matches!(word, "NODE_FAIL" | "BOOT_FAIL" | "PREEMPTED" | "REVOKED")
}
