//! Who runs pending tool calls: this process, or a worker process for each.

use std::ffi::OsString;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use decanus_base::process::{self, Ended, spawn_detached};
use decanus_tool::{Run, Tool};

use crate::background::ToolJobs;
use crate::record::{Found, JobRecord, Status};
use crate::store::Paths;

/// The variable that marks a worker and what it starts; its value is the job's id.
pub(crate) const MARK: &str = "DECANUS_JOB";
/// The file of a job's own folder that holds the facts of the call.
pub(crate) const CALL_FILE: &str = "call.json";
/// How long a worker may take to begin.
const PATIENCE: Duration = Duration::from_secs(60);

/// A job to be run.
pub struct Order {
    /// Its id.
    pub id: String,
    /// Absolute path of the result that it will have.
    pub path: PathBuf,
    /// What it is to do, with the arguments that are stored.
    pub work: Arc<dyn Tool>,
    /// A run for the work, apart from the one that asked.
    pub run: Run,
}

/// Runs jobs.
#[async_trait]
pub trait Spawner: Send + Sync {
    /// Sees to it that the job is claimed ([`ToolJobs::claim`]) and run. Returns when it is claimed, and does not wait for
    /// its end.
    ///
    /// # Errors
    /// Why nobody runs it.
    async fn spawn(&self, jobs: &ToolJobs, order: Order) -> Result<(), String>;
}

/// Runs jobs as tasks of this process. They end with it, and are then known to have failed.
#[derive(Debug, Clone, Copy, Default)]
pub struct InProcess;

#[async_trait]
impl Spawner for InProcess {
    async fn spawn(&self, jobs: &ToolJobs, order: Order) -> Result<(), String> {
        let claim = jobs.claim(&order.id, false).map_err(|e| e.to_string())?;
        tokio::spawn(async move { claim.run(order.work, &order.run).await });
        Ok(())
    }
}

/// Runs each job in a process of its own, which outlives this one: `PROGRAM ARGS… ID`. It must claim the job and run it.
#[derive(Debug, Clone)]
pub struct ProcessSpawner {
    program: PathBuf,
    args: Vec<OsString>,
    dir: PathBuf,
}

impl ProcessSpawner {
    /// Workers that are started so, in the folder `dir`.
    pub fn new(program: impl Into<PathBuf>, args: impl IntoIterator<Item = OsString>, dir: impl Into<PathBuf>) -> Self {
        Self {
            program: program.into(),
            args: args.into_iter().collect(),
            dir: dir.into(),
        }
    }

    fn start(&self, id: &str, paths: &Paths) -> Result<(), String> {
        let create = |name: &str| {
            let path = paths.own.join(name);
            File::create(&path).map_err(|e| format!("{}: {e}", path.display()))
        };
        let mut command = Command::new(&self.program);
        command
            .args(&self.args)
            .arg(id)
            .current_dir(&self.dir)
            .env(MARK, id)
            .stdin(Stdio::null())
            .stdout(create("stdout")?)
            .stderr(create("stderr")?);
        let worker = spawn_detached(command)
            .map_err(|e| format!("the worker {} can't be started: {e}", self.program.display()))?;
        let begun = Instant::now();
        let mut pause = Duration::from_millis(1);
        loop {
            // Asked before the record is read: what ended has said its last word by then.
            let ended = worker.ended();
            if is_claimed(&paths.info) {
                return Ok(());
            }
            if let Some(ended) = ended {
                let how = match ended {
                    Ended::Exit(code) => format!("exit code {code}"),
                    Ended::Signal(signal) => format!("signal {signal}"),
                    Ended::TimedOut | Ended::Cancelled => "it was stopped".into(),
                };
                let words = crate::body::stderr_tail(paths);
                return Err(format!("the worker ended before it began ({how}): {words}"));
            }
            if begun.elapsed() > PATIENCE {
                if let Some(started) = process::start_time(worker.pid) {
                    process::end_foreign(worker.pid, started, Duration::ZERO);
                }
                return Err(format!("the worker did not begin within {PATIENCE:?}"));
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(20));
        }
    }
}

/// Whether somebody has taken the job over. One that is gone was cancelled and removed meanwhile.
fn is_claimed(info: &Path) -> bool {
    match JobRecord::read(info) {
        Found::Record(record) => record.status != Status::Waiting,
        Found::Nothing => true,
        Found::Torn(_) => false,
    }
}

#[async_trait]
impl Spawner for ProcessSpawner {
    async fn spawn(&self, _: &ToolJobs, order: Order) -> Result<(), String> {
        let this = self.clone();
        let started = tokio::task::spawn_blocking(move || this.start(&order.id, &Paths::new(order.path))).await;
        started.map_err(|e| format!("the thread that starts it ended: {e}"))?
    }
}
