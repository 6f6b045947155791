//! What a job came from, and what it gave.

use std::path::{Path, PathBuf};

use decanus_workflow::{InputType, ResultType, Status, StoredJob};
use jiff::Timestamp;
use serde_json::Value;

use crate::graph::Relation;
use crate::trace::Walk;

/// Files of one job's folder that are shown. A task may leave thousands; they are there to be looked at.
const MAX_OUTPUTS: usize = 100;

impl Walk<'_> {
    /// Reads a job's record and enters what it tells.
    pub(crate) fn expand_job(&mut self, at: usize) {
        let path = self.graph.nodes[at].path.clone();
        let Some(job) = self.tracer.jobs.read(path.clone()) else {
            self.graph.nodes[at].status = Some("unknown".into());
            let text = "there is no record of this job, so nothing is known of what it used";
            return self.graph.problem(&path, None, text);
        };
        let status = job.status();
        let node = &mut self.graph.nodes[at];
        node.status = Some(status.as_str().into());
        node.time.clone_from(&job.record.started);
        node.seconds = seconds(&job);
        node.note = job.error().map(|e| decanus_base::text::brief(&e, 120));
        if !job.is_readable() {
            let reason = job.error().unwrap_or_default();
            return self.graph.problem(&path, None, reason);
        }
        for dependency in &job.record.dependencies {
            // Their paths are relative to the jobs folder, which is that of another project for a job from there.
            let own = path.ancestors().nth(3).map(|jobs| jobs.join(dependency));
            let own = own.filter(|p| p.exists()).map(|p| p.display().to_string());
            self.refer_to_job(at, own.as_deref().unwrap_or(dependency), Relation::Dependency, None);
        }
        self.inputs(at, &job);
        self.outputs(at, &job, status);
    }

    fn inputs(&mut self, at: usize, job: &StoredJob) {
        let workflow = self.workflow(&job.record.workflow);
        let task = workflow.and_then(|w| w.task(&job.record.task).ok().cloned());
        for (name, value) in &job.record.inputs {
            let input = task.as_ref().and_then(|t| t.input(name));
            let texts = match value {
                Value::Array(items) if input.is_none_or(|i| i.kind == InputType::FileArray) => items.as_slice(),
                single => std::slice::from_ref(single),
            };
            for file in texts.iter().filter_map(Value::as_str).map(Path::new) {
                let is_file = match input {
                    Some(input) => input.kind.reads_content() && input.kind != InputType::Folder,
                    // The workflow is gone or has changed. Files are stored as absolute paths.
                    None => file.is_absolute() && file.is_file(),
                };
                if !is_file {
                    continue;
                }
                if !file.exists() {
                    let text = format!("input `{name}`: {} is not there any more", file.display());
                    self.graph.problem(&job.path, None, text);
                }
                let to = self.visit_file(file);
                self.graph.edge(at, to, Relation::Input);
            }
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

fn seconds(job: &StoredJob) -> Option<f64> {
    let time = |text: &Option<String>| text.as_ref()?.parse::<Timestamp>().ok();
    let span = time(&job.record.ended)?.duration_since(time(&job.record.started)?);
    Some(span.as_secs_f64()).filter(|s| *s >= 0.0)
}
