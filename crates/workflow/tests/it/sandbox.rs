//! A project in a temporary folder.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use decanus_tool::Event;
use decanus_workflow::{Done, Job, JobError, JobStore, PathRules, RunOptions, Workflow, WorkflowError, parse};
use serde_json::{Map, Value};

pub struct Sandbox {
    pub dir: tempfile::TempDir,
    pub store: JobStore,
}

impl Sandbox {
    /// A project whose workflow `W` is this text.
    pub fn new(yaml: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let sandbox = Self {
            store: JobStore::new(dir.path().canonicalize().unwrap().join(".decanus/jobs")),
            dir,
        };
        sandbox.write("workflows/W/workflow.yaml", yaml);
        sandbox
    }

    pub fn root(&self) -> PathBuf {
        self.dir.path().canonicalize().unwrap()
    }

    pub fn write(&self, path: &str, text: &str) -> PathBuf {
        let path = self.root().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, text).unwrap();
        path
    }

    pub fn read(&self, path: impl AsRef<Path>) -> String {
        std::fs::read_to_string(self.root().join(path)).unwrap_or_default()
    }

    pub fn workflow(&self) -> Arc<Workflow> {
        Arc::new(parse::load(&self.root().join("workflows/W")).unwrap())
    }

    pub fn try_job(&self, task: &str, inputs: Value) -> Result<Arc<Job>, WorkflowError> {
        self.workflow()
            .job(task, &map(inputs), &PathRules::trusted(self.root()), None)
    }

    pub fn job(&self, task: &str, inputs: Value) -> Arc<Job> {
        self.try_job(task, inputs).unwrap()
    }

    pub fn run(&self, task: &str, inputs: Value) -> Result<Done, JobError> {
        self.store.run_blocking(&self.job(task, inputs), &RunOptions::default())
    }

    pub fn value(&self, task: &str, inputs: Value) -> Value {
        self.run(task, inputs).unwrap().job.value().unwrap()
    }

    /// The result of a job, which is run if need be.
    pub fn value_of(&self, job: &Arc<Job>) -> Value {
        let done = self.store.run_blocking(job, &RunOptions::default()).unwrap();
        done.job.value().unwrap()
    }

    /// The tasks of the stored jobs, oldest first.
    pub fn stored_tasks(&self) -> Vec<String> {
        let jobs = self.store.list(None, None).unwrap();
        jobs.iter().map(|j| j.record.task.clone()).collect()
    }

    /// How many lines a task has appended to a file of the project.
    pub fn count(&self, path: &str) -> usize {
        self.read(path).lines().count()
    }

    /// Everything in the project's jobs folder whose name does not begin with a dot.
    pub fn stored(&self) -> Vec<String> {
        let mut found = Vec::new();
        let mut open = vec![self.store.dir().to_owned()];
        while let Some(dir) = open.pop() {
            for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
                let name = entry.file_name().to_string_lossy().into_owned();
                if entry.path().is_dir() && !name.ends_with(".files") {
                    open.push(entry.path());
                } else if !name.starts_with('.') {
                    found.push(name);
                }
            }
        }
        found.sort();
        found
    }
}

pub fn map(value: Value) -> Map<String, Value> {
    value.as_object().unwrap().clone()
}

/// Options that count started and reused jobs.
pub fn counting() -> (RunOptions, Arc<AtomicUsize>, Arc<AtomicUsize>) {
    let (started, reused) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (s, r) = (started.clone(), reused.clone());
    let events: decanus_tool::EventSink = Arc::new(move |event: &Event| {
        if let Event::Job { reused, .. } = event {
            if *reused { &r } else { &s }.fetch_add(1, Ordering::SeqCst);
        }
    });
    (
        RunOptions {
            events: Some(events),
            ..RunOptions::default()
        },
        started,
        reused,
    )
}
