//! What a job came from, and what it gave.

use std::path::{Path, PathBuf};

use decanus_workflow::{ResultType, Status, StoredJob};
use jiff::Timestamp;
use serde_json::Value;

use crate::graph::Relation;
use crate::trace::{Walk, beside};
use crate::verify::Recorded;

/// Files of one job's folder that are shown. A task may leave thousands; they are there to be looked at.
const MAX_OUTPUTS: usize = 100;

impl Walk<'_> {
    /// Reads a job's record and enters what it tells.
    pub(crate) fn expand_job(&mut self, at: usize) {
        let path = self.graph.nodes[at].path.clone();
        let Some(job) = self.tracer.jobs.read(path.clone()) else {
            self.graph.nodes[at].status = Some("noinfo".into());
            let text = "there is no record of this job, so nothing is known of what it used";
            return self.graph.problem(&path, None, text);
        };
        let status = job.status();
        let lost = job.record.effective_status() == Status::Done && status == Status::Error;
        let node = &mut self.graph.nodes[at];
        node.status = Some(if lost { "unsync" } else { status.as_str() }.into());
        node.digest = Some(job.record.digest.clone()).filter(|d| !d.is_empty());
        node.versions.clone_from(&job.record.versions);
        node.time.clone_from(&job.record.started);
        node.seconds = seconds(&job);
        node.note = job.error().map(|e| decanus_base::text::brief(&e, 120));
        if !job.is_readable() {
            let reason = job.error().unwrap_or_default();
            return self.graph.problem(&path, None, reason);
        }
        for dependency in &job.record.dependencies {
            self.dependency(at, &path, dependency);
        }
        let recorded = Recorded::of(&path);
        self.inputs(at, &job, &recorded);
        self.scripts(at, &job, &recorded);
        self.outputs(at, &job, status);
    }

    fn dependency(&mut self, at: usize, job: &Path, dependency: &str) {
        // Their paths are relative to the jobs folder, which is that of another project for a job from there.
        let own = job.ancestors().nth(3).map(|jobs| jobs.join(dependency));
        let own = own.filter(|p| p.exists() || beside(p, ".info").is_file());
        // A file may stand for a job: then it is no job of any folder.
        if let Some(file) = own
            .as_ref()
            .filter(|p| Path::new(dependency).is_absolute() && p.is_file())
            && !beside(file, ".info").is_file()
            && !beside(file, ".files").is_dir()
        {
            let to = self.visit_file(file);
            return self.graph.edge(at, to, Relation::Dependency);
        }
        let own = own.map(|p| p.display().to_string());
        self.refer_to_job(at, own.as_deref().unwrap_or(dependency), Relation::Dependency, None);
    }

    fn inputs(&mut self, at: usize, job: &StoredJob, recorded: &Recorded) {
        let workflow = self.workflow(&job.record.workflow);
        let task = workflow.and_then(|w| w.task(&job.record.task).ok().cloned());
        for (name, value) in &job.record.inputs {
            let kind = task.as_ref().and_then(|t| t.input(name)).map(|i| i.kind.as_str());
            for value in texts(value) {
                if let Some(path) = self.job_of_value(value) {
                    let to = self.visit_job(&path);
                    self.graph.input_edge(at, to, Relation::Input, Some(name), None);
                } else if is_file(kind, Path::new(value)) {
                    self.file_input(at, job, name, Path::new(value), recorded);
                }
            }
        }
    }

    fn file_input(&mut self, at: usize, job: &StoredJob, name: &str, file: &Path, recorded: &Recorded) {
        if !file.exists() {
            let text = format!("input `{name}`: {} is not there any more", file.display());
            self.graph.problem(&job.path, None, text);
        }
        let to = self.visit_file(file);
        let sha256 = recorded.file(name, file);
        self.graph.input_edge(at, to, Relation::Input, Some(name), sha256);
    }

    /// The scripts whose content went into the job's identity, where its record says so.
    fn scripts(&mut self, at: usize, job: &StoredJob, recorded: &Recorded) {
        let scripts = recorded.scripts();
        if scripts.is_empty() {
            return;
        }
        let Some(dir) = self.workflow(&job.record.workflow).map(|w| w.dir.clone()) else {
            return;
        };
        for (name, sha256) in scripts {
            let to = self.visit_file(&dir.join(name));
            self.graph.input_edge(at, to, Relation::Script, None, Some(sha256));
        }
    }

    fn outputs(&mut self, at: usize, job: &StoredJob, status: Status) {
        let logs = job.files_dir().join("log");
        let is_chat = |path: &Path| path.extension().is_some_and(|e| e == "chat");
        let (chats, files): (Vec<PathBuf>, Vec<PathBuf>) = job
            .files()
            .into_iter()
            .partition(|p| p.starts_with(&logs) && is_chat(p));
        for chat in chats {
            let to = self.visit_chat(&chat);
            self.graph.edge(at, to, Relation::Log);
        }
        let mut given = None;
        if status == Status::Done && is_chat(&job.path) {
            let to = self.visit_chat(&job.path);
            self.graph.edge(at, to, Relation::Result);
        } else if status == Status::Done && job.record.kind == ResultType::File {
            match job.value() {
                Ok(Value::String(file)) => {
                    let to = self.visit_file(Path::new(&file));
                    self.graph.edge(at, to, Relation::Result);
                    given = Some(to);
                }
                Ok(_) => {}
                Err(e) => self.graph.problem(&job.path, None, e.to_string()),
            }
        }
        if files.len() > MAX_OUTPUTS {
            let text = format!("its folder holds {} files; {MAX_OUTPUTS} are shown", files.len());
            self.graph.problem(&job.path, None, text);
        }
        for file in files.iter().take(MAX_OUTPUTS) {
            let to = self.visit_file(file);
            if given != Some(to) {
                self.graph.edge(at, to, Relation::Output);
            }
        }
    }
}

/// The texts of an input's value: one, those of a list, or the job or jobs that an object names.
fn texts(value: &Value) -> Vec<&str> {
    match value {
        Value::String(text) => vec![text],
        Value::Array(items) => items.iter().filter_map(Value::as_str).collect(),
        Value::Object(map) => match map.get("jobs") {
            Some(Value::Array(jobs)) => jobs.iter().filter_map(Value::as_str).collect(),
            _ => map.get("job").and_then(Value::as_str).into_iter().collect(),
        },
        _ => Vec::new(),
    }
}

/// Whether the value of an input is the path of a file. What the workflow says decides, by the word of the type; when it
/// is gone or has changed, only the absolute path of a file that is there is one: so files are recorded.
fn is_file(kind: Option<&str>, value: &Path) -> bool {
    match kind {
        Some("file" | "file_array") => true,
        Some("folder" | "binary" | "tsv" | "path" | "path_array") | None => value.is_absolute() && value.exists(),
        Some(_) => false,
    }
}

fn seconds(job: &StoredJob) -> Option<f64> {
    let time = |text: &Option<String>| text.as_ref()?.parse::<Timestamp>().ok();
    let span = time(&job.record.ended)?.duration_since(time(&job.record.started)?);
    Some(span.as_secs_f64()).filter(|s| *s >= 0.0)
}
