//! Which jobs are handed over together, and what is written down of them.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use decanus_base::files::write_atomic;

use super::{Consignment, FOLDER, Fleet, Flying, Parcel};
use crate::demand::Node;
use crate::error::JobError;
use crate::exec::{handed_over, took};
use crate::executor::{Batch, JobSpec};
use crate::record::{Found, JobRecord, Status};
use crate::runner::{self, store_error};
use crate::spec::Spec;
use crate::store::entries;

/// Batches whose files are kept after this time are removed: whoever submitted them died.
const OLD: Duration = Duration::from_secs(14 * 24 * 3600);
/// How many earlier jobs say what jobs of a task take.
const EARLIER: usize = 20;
/// How many jobs of a task are handed over before it is known what they take.
const PROBES: usize = 16;

/// How many jobs of a task may still go before it is known what they take, and since when there are any.
pub(super) struct Probe {
    left: usize,
    since: Instant,
}

impl Fleet<'_> {
    /// Makes batches of the jobs that came, and writes down what each is to do.
    pub(super) fn pack(&mut self) {
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
                        life: None,
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
    pub(super) fn learn(&mut self, node: usize, time: Duration) {
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

    /// Removes what submitters that died left, and the logs of failures, when they are old.
    pub(super) fn tidy(&self) {
        for dir in entries(&self.store.dir().join(FOLDER)).unwrap_or_default() {
            let changed = fs::metadata(&dir).and_then(|m| m.modified());
            if changed.is_ok_and(|at| at.elapsed().is_ok_and(|age| age > OLD)) {
                let _ = fs::remove_dir_all(&dir);
            }
        }
    }
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
