//! Jobs that would wait for themselves: a task's program may run decanus, and ask for a job that waits for just that
//! program.
//!
//! Every process of a job knows the jobs above it: `STACK` has a line for each level, first those that wait for the job
//! whose process it is, last that job. Two jobs may also wait for each other without one being above the other; who
//! waits for the lock of somebody else therefore says so in the folder of the job above it, and looks who waits there.

use std::cell::RefCell;
use std::collections::HashSet;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use decanus_base::process;

use crate::error::JobError;
use crate::record::{Found, JobRecord};
use crate::store::{Paths, entries};

/// The variable that tells a job's process of the jobs above it.
pub(crate) const STACK: &str = "DECANUS_JOB_STACK";
/// How many jobs may run within one another.
pub const MAX_DEPTH: usize = 20;
/// The files that say for which jobs a job's process waits begin so; the process id follows.
const WAITS: &str = "waits-";

thread_local! {
    /// The jobs above a task's function, which runs in this process.
    static OF_FUNCTION: RefCell<Option<JobStack>> = const { RefCell::new(None) };
}

/// The jobs that a run happens within, outermost first: the paths of their results. Empty for one that a person or a
/// program asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobStack(Arc<str>);

impl Default for JobStack {
    /// That of this process; within a task's function, that of its job.
    fn default() -> Self {
        let of_function = OF_FUNCTION.with_borrow(Clone::clone);
        of_function.unwrap_or_else(|| {
            let text = std::env::var_os(STACK).unwrap_or_default();
            Self(text.to_string_lossy().into())
        })
    }
}

impl JobStack {
    /// Nothing is above.
    pub fn empty() -> Self {
        Self("".into())
    }

    /// What a job's process is told, when `waiting` wait for the job `runs`.
    pub fn with(&self, waiting: &[&Path], runs: &Path) -> Self {
        let level: Vec<String> = waiting.iter().chain([&runs]).map(|p| p.display().to_string()).collect();
        let level = level.join("\t");
        Self(match self.is_empty() {
            true => level.into(),
            false => format!("{}\n{level}", self.0).into(),
        })
    }

    /// Whether nothing is above.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How many jobs run within one another here.
    pub fn depth(&self) -> usize {
        self.0.lines().count()
    }

    fn paths(&self) -> impl Iterator<Item = &Path> {
        self.0.split(['\n', '\t']).filter(|p| !p.is_empty()).map(Path::new)
    }

    /// Whether a job is above: it runs, or waits for one that does.
    pub fn contains(&self, job: &Path) -> bool {
        self.paths().any(|p| p == job)
    }

    /// The job whose process this is.
    fn innermost(&self) -> Option<PathBuf> {
        let level = self.0.lines().last()?;
        level.rsplit('\t').next().map(PathBuf::from)
    }

    pub(crate) fn variable(&self) -> OsString {
        (*self.0).into()
    }

    /// The error of a job that is wanted here but needs `found`, which is above.
    pub(crate) fn recursive(&self, wanted: &Path, task: String, found: &Path) -> JobError {
        let from = self.paths().position(|p| p == found).unwrap_or_default();
        let mut chain: Vec<String> = self.paths().skip(from).map(label).collect();
        if wanted != found {
            chain.push(label(wanted));
        }
        chain.push(label(found));
        JobError::Recursive {
            task,
            path: wanted.to_owned(),
            cycle: chain.join(" → "),
        }
    }

    /// The error of a job that is one level too deep.
    pub(crate) fn too_deep(&self, wanted: &Path, task: String) -> Option<JobError> {
        (self.depth() >= MAX_DEPTH).then(|| JobError::TooDeep {
            task,
            path: wanted.to_owned(),
            limit: MAX_DEPTH,
        })
    }

    /// Runs a task's function; what it asks for on this thread happens within its job.
    pub(crate) fn within<T>(self, function: impl FnOnce() -> T) -> T {
        /// Also after a panic.
        struct Back(Option<JobStack>);
        impl Drop for Back {
            fn drop(&mut self) {
                let before = self.0.take();
                OF_FUNCTION.with_borrow_mut(|now| *now = before);
            }
        }
        let _back = Back(OF_FUNCTION.with_borrow_mut(|now| now.replace(self)));
        function()
    }
}

/// `WORKFLOW/TASK` of the path of a result.
fn label(path: &Path) -> String {
    let mut parts = path.iter().rev().skip(1).map(|part| part.to_string_lossy());
    let task = parts.next().unwrap_or_default();
    format!("{}/{task}", parts.next().unwrap_or_default())
}

/// Says, as long as it lives, that the process of a job waits for another job.
#[derive(Debug)]
pub(crate) struct WaitMark {
    file: PathBuf,
}

impl WaitMark {
    /// `None` when no job is above, or its folder is gone: then nobody waits for us.
    pub fn new(above: &JobStack, wanted: &Path) -> Option<Self> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let own = Paths::new(above.innermost()?).own;
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let file = own.join(format!("{WAITS}{}-{number}", std::process::id()));
        fs::write(&file, wanted.display().to_string()).ok()?;
        Some(Self { file })
    }
}

impl Drop for WaitMark {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.file);
    }
}

/// The job above us that a job of somebody else waits for, if there is one. The own wait must be marked before, so that
/// of two that begin to wait for each other at the same time one at least sees it.
pub(crate) fn waits_for_us(jobs_dir: &Path, from: &Path, above: &JobStack) -> Option<PathBuf> {
    let mut seen: HashSet<PathBuf> = HashSet::new();
    let mut open = vec![from.to_owned()];
    while let Some(job) = open.pop() {
        if above.contains(&job) {
            return Some(job);
        }
        if !seen.insert(job.clone()) {
            continue;
        }
        let paths = Paths::new(job);
        if let Found::Record(record) = JobRecord::read(&paths.info)
            && record.effective_status().is_active()
        {
            open.extend(record.dependencies.iter().map(|d| jobs_dir.join(d)));
            open.extend(
                entries(&paths.own)
                    .unwrap_or_default()
                    .into_iter()
                    .filter_map(|f| waited_for(&f)),
            );
        }
    }
    None
}

/// Whether a file says that a process waits which is no longer there.
pub(crate) fn is_left_mark(file: &Path) -> bool {
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    name.starts_with(WAITS) && waited_for(file).is_none()
}

/// What a file says that a process waits for, if it is one of those files and the process is there.
fn waited_for(file: &Path) -> Option<PathBuf> {
    let name = file.file_name()?.to_string_lossy().into_owned();
    let (pid, _) = name.strip_prefix(WAITS)?.split_once('-')?;
    process::start_time(pid.parse().ok()?)?;
    fs::read_to_string(file).ok().map(PathBuf::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_name_who_waits_and_who_runs() {
        let [top, middle, base] = ["/j/W/top/a.txt", "/j/W/middle/a.txt", "/j/W/base/a.txt"].map(Path::new);
        let first = JobStack::empty().with(&[top], base);
        assert_eq!((first.depth(), first.innermost()), (1, Some(base.to_owned())));
        assert!(first.contains(top) && first.contains(base) && !first.contains(middle));
        let error = first.recursive(middle, "W/middle".into(), base).to_string();
        assert_eq!(error, "Potential recursive call: W/base → W/middle → W/base");
        let error = first.recursive(top, "W/top".into(), top).to_string();
        assert_eq!(error, "Potential recursive call: W/top → W/base → W/top");
        let deep = (0..MAX_DEPTH).fold(JobStack::empty(), |stack, _| stack.with(&[], base));
        assert!(deep.too_deep(top, String::new()).is_some() && first.too_deep(top, String::new()).is_none());
    }

    #[test]
    fn a_function_is_within_its_job() {
        let inner = JobStack::empty().with(&[], Path::new("/j/W/t/a.txt"));
        let before = JobStack::default();
        assert_eq!(inner.clone().within(JobStack::default), inner);
        assert_eq!(JobStack::default(), before);
    }
}
