//! A job written down, so that a process on another machine can run it: `spec.json` in the job's own folder. It may hold
//! secrets, so only the user can read it, and it is gone when the job begins.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use decanus_base::files::write_private;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::identity::{self, Parts};
use crate::job::{GivenResult, Job, Link};
use crate::record::{Found, JobRecord, Status};
use crate::result::ResultType;
use crate::store::{JobStore, Paths};
use crate::workflows::Workflows;

/// All that is needed to run a job whose dependencies are done.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Spec {
    workflow: String,
    workflow_dir: PathBuf,
    task: String,
    name: String,
    digest: String,
    identity: Parts,
    inputs: Map<String, Value>,
    dependencies: Vec<Needed>,
    links: Vec<Link>,
    input_jobs: Vec<Link>,
    /// The name of the batch that it was handed over in.
    pub batch: String,
    /// Its element of the batch.
    pub element: usize,
}

/// A result that it uses.
#[derive(Debug, Serialize, Deserialize)]
struct Needed {
    /// Absolute.
    path: PathBuf,
    kind: ResultType,
    /// Whether it is a file that stands in for a job.
    is_file: bool,
}

fn file(paths: &Paths) -> PathBuf {
    paths.own.join("spec.json")
}

impl Spec {
    pub fn of(store: &JobStore, job: &Job, batch: &str, element: usize) -> Self {
        let needed = |dependency: &Arc<Job>| Needed {
            path: store.path(dependency),
            kind: dependency.kind(),
            is_file: dependency.given.as_ref().is_some_and(|g| !g.is_job),
        };
        Self {
            workflow: job.workflow.name.clone(),
            workflow_dir: job.workflow.dir.clone(),
            task: job.task.name.clone(),
            name: job.name.clone(),
            digest: job.digest.clone(),
            identity: job.identity.clone(),
            inputs: job.inputs.clone(),
            dependencies: job.dependencies.iter().map(needed).collect(),
            links: job.links.clone(),
            input_jobs: job.input_jobs.clone(),
            batch: batch.to_owned(),
            element,
        }
    }

    pub fn write(&self, paths: &Paths) -> std::io::Result<()> {
        write_private(&file(paths), &serde_json::to_vec(self)?)
    }

    pub fn read(paths: &Paths) -> Result<Self, String> {
        let path = file(paths);
        let bytes = fs::read(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        serde_json::from_slice(&bytes).map_err(|e| format!("{}: {e}", path.display()))
    }

    /// Removes what is written down of a job that nobody is to run any more.
    pub fn forget(paths: &Paths) {
        let _ = fs::remove_file(file(paths));
    }

    /// The job. What it was written down with must hold still: what the task does, its scripts, and the content of the
    /// files that it reads; else its result would be stored as that of another job.
    ///
    /// # Errors
    /// Why it can't be run, in words.
    pub fn job(&self, workflows: &Workflows) -> Result<Job, String> {
        let workflow = workflows.load(&self.workflow).map_err(|e| e.to_string())?;
        if !is_same(&workflow.dir, &self.workflow_dir) {
            return Err(format!(
                "the workflow {} is in {} here, but the job is of the one in {}",
                self.workflow,
                workflow.dir.display(),
                self.workflow_dir.display()
            ));
        }
        let task = workflow.task(&self.task).map_err(|e| e.to_string())?.clone();
        let digests = workflows.digests();
        let mut digest = |path: &Path| digests.of(path);
        let mut now = identity::of_task(&workflow, &task, &mut digest).map_err(|e| e.to_string())?;
        for input in &task.inputs {
            let is_result = self.input_jobs.iter().any(|link| link.name == input.name);
            if !is_result && input.kind.reads_content() {
                let value = self.inputs.get(&input.name).unwrap_or(&Value::Null);
                let part = identity::of_input(input, value, &mut digest).map_err(|e| e.to_string())?;
                now.push((format!("input {}", input.name), part));
            }
        }
        let is_own = |part: &str| part == "definition" || part.starts_with("script ");
        let changed = now.iter().find(|part| !self.identity.contains(part));
        let gone = self
            .identity
            .iter()
            .find(|(name, _)| is_own(name) && !now.iter().any(|(n, _)| n == name));
        if let Some((name, _)) = changed.or(gone) {
            return Err(format!(
                "its {name} has changed since the job was submitted; run it again"
            ));
        }
        if identity::digest(&self.workflow, &self.task, &self.identity) != self.digest {
            return Err("what is written down of it is damaged; run it again".into());
        }
        let stand_in = |needed: &Needed| {
            Arc::new(Job::stand_in(
                &workflow,
                &task,
                GivenResult {
                    path: needed.path.clone(),
                    kind: needed.kind,
                    is_job: !needed.is_file,
                },
            ))
        };
        Ok(Job {
            workflow: workflow.clone(),
            task: task.clone(),
            name: self.name.clone(),
            digest: self.digest.clone(),
            identity: self.identity.clone(),
            inputs: self.inputs.clone(),
            dependencies: self.dependencies.iter().map(stand_in).collect(),
            links: self.links.clone(),
            input_jobs: self.input_jobs.clone(),
            given: None,
        })
    }

    /// Whether all that the job uses is there.
    ///
    /// # Errors
    /// The first that is not.
    pub fn check_dependencies(&self, job: &Job) -> Result<(), String> {
        let may_fail = job.may_fail();
        for (at, needed) in self.dependencies.iter().enumerate() {
            let is_done = match JobRecord::read(&Paths::new(needed.path.clone()).info) {
                _ if needed.is_file => true,
                Found::Record(record) => record.status == Status::Done,
                Found::Nothing | Found::Torn(_) => false,
            };
            let is_there = is_done && needed.path.is_file();
            if !(is_there || may_fail.get(at).is_some_and(|may| *may)) {
                return Err(format!(
                    "the job {} that it depends on is not done",
                    needed.path.display()
                ));
            }
        }
        Ok(())
    }
}

fn is_same(a: &Path, b: &Path) -> bool {
    a == b || matches!((a.canonicalize(), b.canonicalize()), (Ok(a), Ok(b)) if a == b)
}
