//! Why a job would run, or would not: what is wrong with the stored one, and how it differs from earlier ones.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::{Value, json};

use crate::definition::{Dependency, Setting, Task, Workflow};
use crate::error::FindError;
use crate::identity;
use crate::job::Job;
use crate::record::{Found, JobRecord, RecordLink, Status, time};
use crate::store::{JobStore, Paths, StoredJob};
use crate::workflows::Workflows;

/// How far dependencies of dependencies are followed.
const MAX_DEPTH: usize = 50;

/// What asking for a job would lead to.
#[derive(Clone, Debug, PartialEq)]
pub struct Why {
    /// Absolute path of its result, whether or not it is there.
    pub path: PathBuf,
    /// `WORKFLOW/TASK/NAME_DIGEST.EXT`.
    pub job: String,
    /// Its status; none when it is not in the store.
    pub status: Option<Status>,
    /// Why its task would be run; empty when the stored result holds.
    pub reasons: Vec<Reason>,
    /// For a job that is not in the store: the earlier one of its task that is most like it, which `reasons` compare it to.
    pub nearest: Option<PathBuf>,
}

/// One reason to run a job.
#[derive(Clone, Debug, PartialEq)]
pub struct Reason {
    /// What it is.
    pub kind: ReasonKind,
    /// The part of the job's identity that it is about ([`identity`]), or the path of a dependency.
    pub part: String,
    /// What happened, in a line.
    pub message: String,
    /// How it was, as far as that is recorded.
    pub old: Option<Value>,
    /// How it is now.
    pub new: Option<Value>,
    /// The same of a job that it depends on, when that is why.
    pub because: Vec<Reason>,
}

/// Kinds of reasons.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReasonKind {
    /// Somebody is at work on it; who asks for it waits. Nothing is run for this.
    Active,
    /// It is not in the store.
    Missing,
    /// Its record can't be read.
    Torn,
    /// It failed.
    Error,
    /// It was stopped.
    Aborted,
    /// Who ran it died.
    DeadOwner,
    /// It was done, but its result is gone.
    ResultMissing,
    /// A job that it depends on has a result from after its start.
    DependencyNewer,
    /// A job that it depends on would be run, or be another one.
    Dependency,
    /// A part of its identity is another: asking for the same now asks for another job.
    Changed,
}

impl ReasonKind {
    /// The stable word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::Missing => "missing",
            Self::Torn => "torn",
            Self::Error => "error",
            Self::Aborted => "aborted",
            Self::DeadOwner => "dead_owner",
            Self::ResultMissing => "result_missing",
            Self::DependencyNewer => "dependency_newer",
            Self::Dependency => "dependency",
            Self::Changed => "changed",
        }
    }
}

impl Reason {
    fn new(kind: ReasonKind, part: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            kind,
            part: part.into(),
            message: message.into(),
            old: None,
            new: None,
            because: Vec::new(),
        }
    }

    /// As `job why --json` prints it.
    pub fn show(&self) -> Value {
        let mut shown = json!({"kind": self.kind.as_str(), "part": self.part, "message": self.message});
        for (name, value) in [("old", &self.old), ("new", &self.new)] {
            if let Some(value) = value {
                shown[name] = value.clone();
            }
        }
        if !self.because.is_empty() {
            shown["because"] = self.because.iter().map(Self::show).collect();
        }
        shown
    }
}

impl Why {
    /// Whether asking for it would run its task.
    pub fn runs(&self) -> bool {
        self.reasons.iter().any(|r| r.kind != ReasonKind::Active)
    }

    /// As `job why --json` prints it.
    pub fn show(&self) -> Value {
        json!({
            "job": self.path.display().to_string(),
            "status": self.status.map_or("missing", Status::as_str),
            "runs": self.runs(),
            "reasons": self.reasons.iter().map(Reason::show).collect::<Vec<_>>(),
            "nearest": self.nearest.as_ref().map(|p| p.display().to_string()),
        })
    }
}

impl JobStore {
    /// What would make a stored job run again, and what has changed since, so that the same question is now about another
    /// job. The workflows are read as they are now.
    pub fn why(&self, job: &StoredJob, workflows: &Workflows) -> Why {
        let mut reasons = self.state_reasons(&job.path, 0);
        reasons.extend(self.drift(&job.record, workflows, 0));
        Why {
            path: job.path.clone(),
            job: job.short_path(),
            status: Some(job.status()),
            reasons,
            nearest: None,
        }
    }

    /// What asking for a job would lead to. One that is not in the store is compared to the earlier job of its task that
    /// differs in the fewest parts; of several the latest.
    ///
    /// # Errors
    /// When the jobs folder can't be read.
    pub fn why_job(&self, job: &Arc<Job>) -> Result<Why, FindError> {
        let path = self.path(job);
        let stored = self.read(path.clone());
        let mut why = Why {
            job: job.relative_path().display().to_string(),
            status: stored.as_ref().map(StoredJob::status),
            reasons: Vec::new(),
            nearest: None,
            path,
        };
        if stored.is_some() {
            if self.done(job).is_none() {
                why.reasons = self.state_reasons(&why.path, 0);
            }
            return Ok(why);
        }
        let task = job.label();
        why.reasons
            .push(Reason::new(ReasonKind::Missing, "", "it is not in the store"));
        let earlier = self.list(Some(&job.workflow.name), Some(&job.task.name))?;
        let mut nearest: Option<(usize, StoredJob)> = None;
        for other in earlier {
            if other.record.identity.is_empty() {
                continue;
            }
            let count = differing(&other.record, job).len();
            if nearest.as_ref().is_none_or(|(least, _)| count <= *least) {
                nearest = Some((count, other));
            }
        }
        match nearest {
            None => why.reasons[0].message = format!("no job of {task} is in the store"),
            Some((0, other)) => {
                let message = format!("the same job is stored under the name {}", other.record.name);
                let mut reason = Reason::new(ReasonKind::Missing, "name", message);
                reason.old = Some(other.record.name.clone().into());
                reason.new = Some(job.name.clone().into());
                why.reasons.push(reason);
                why.nearest = Some(other.path);
            }
            Some((_, other)) => {
                why.reasons.extend(self.differences(&other.record, job, 0));
                why.nearest = Some(other.path);
            }
        }
        Ok(why)
    }

    /// What is wrong with a stored job and those that it used.
    fn state_reasons(&self, path: &Path, depth: usize) -> Vec<Reason> {
        let paths = Paths::new(path.to_owned());
        let record = match JobRecord::read(&paths.info) {
            Found::Record(record) => record,
            Found::Torn(reason) => {
                let message = format!("its record can't be read: {reason}");
                return vec![Reason::new(ReasonKind::Torn, "", message)];
            }
            Found::Nothing => return vec![Reason::new(ReasonKind::Missing, "", "it is not in the store")],
        };
        let error = || record.error.clone().unwrap_or_default();
        let owner = format!("process {} on {}", record.pid, record.host);
        let one = |kind, message: String| vec![Reason::new(kind, "", message)];
        if record.is_orphaned() {
            return one(ReasonKind::DeadOwner, format!("{owner}, which ran it, is gone"));
        }
        match record.status {
            Status::Waiting | Status::Running => return one(ReasonKind::Active, format!("{owner} is at work on it")),
            Status::Error => return one(ReasonKind::Error, format!("it failed: {}", error())),
            Status::Aborted => return one(ReasonKind::Aborted, format!("it was stopped: {}", error())),
            Status::Done if !paths.result.is_file() => {
                return one(ReasonKind::ResultMissing, "its result is gone".into());
            }
            Status::Done => {}
        }
        if depth >= MAX_DEPTH {
            return Vec::new();
        }
        let mut reasons = Vec::new();
        let started = time(record.started.as_ref());
        for (at, dependency) in record.dependencies.iter().enumerate() {
            let may_fail = record.links.values().any(|l| l.canfail && l.at.contains(&at));
            let theirs = self.dir().join(dependency);
            let Found::Record(other) = JobRecord::read(&Paths::new(theirs.clone()).info) else {
                // Cleaned away, or a file that stood in: neither changes anything.
                if let Found::Torn(_) = JobRecord::read(&Paths::new(theirs.clone()).info) {
                    let message = "its record can't be read";
                    reasons.push(Reason::new(ReasonKind::Dependency, dependency, message));
                }
                continue;
            };
            let ended = time(other.ended.as_ref());
            let failed = other.status == Status::Error;
            let because = match failed && may_fail {
                true => Vec::new(),
                false => self.state_reasons(&theirs, depth + 1),
            };
            if !because.is_empty() {
                let mut reason = Reason::new(ReasonKind::Dependency, dependency, "a job that it used does not hold");
                reason.because = because;
                reasons.push(reason);
            } else if ended > started {
                let message = "a job that it used has a result from after its start";
                let mut reason = Reason::new(ReasonKind::DependencyNewer, dependency, message);
                reason.old = record.started.clone().map(Value::from);
                reason.new = other.ended.clone().map(Value::from);
                reasons.push(reason);
            }
        }
        reasons
    }

    /// What of a stored job's identity is another now.
    fn drift(&self, record: &JobRecord, workflows: &Workflows, depth: usize) -> Vec<Reason> {
        // A pending tool call is of no workflow; a record of an earlier version tells nothing.
        if record.identity.is_empty() || depth >= MAX_DEPTH {
            return Vec::new();
        }
        let changed = |part: &str, message: String| Reason::new(ReasonKind::Changed, part, message);
        let workflow = match workflows.load(&record.workflow) {
            Ok(workflow) => workflow,
            Err(e) => return vec![changed("definition", e.to_string())],
        };
        let Some(task) = workflow.find(&record.task).cloned() else {
            return vec![changed(
                "definition",
                format!("workflow {} has no such task now", record.workflow),
            )];
        };
        let digests = workflows.digests();
        let old = |part: &str| record.identity.get(part).and_then(Value::as_str);
        let mut reasons = Vec::new();
        let mut seen = Vec::new();
        match identity::of_task(&workflow, &task, &mut |path| digests.of(path)) {
            Ok(parts) => {
                for (part, new) in parts {
                    reasons.extend(compare(&part, old(&part), Some(&new)));
                    seen.push(part);
                }
            }
            Err(e) => reasons.push(changed("script", e.to_string())),
        }
        for input in &task.inputs {
            let part = format!("input {}", input.name);
            let value = record.inputs.get(&input.name).unwrap_or(&Value::Null);
            let is_job = old(&part).is_some_and(|d| d.starts_with("job "));
            match identity::of_input(input, value, &mut |path| digests.of(path)) {
                _ if is_job => {}
                Ok(new) => reasons.extend(compare(&part, old(&part), Some(&new))),
                Err(e) => reasons.push(changed(&part, format!("its file can't be read: {e}"))),
            }
            seen.push(part);
        }
        for dependency in &task.depends {
            let part = format!("dependency {}", dependency.key());
            match (old(&part), record.links.get(dependency.key())) {
                (Some(old), Some(link)) if !old.starts_with("override ") => {
                    for other in self.linked(record, link) {
                        let mut because = set_otherwise(&workflow, record, dependency, &other, link);
                        because.extend(self.drift(&other, workflows, depth + 1));
                        if !because.is_empty() {
                            let message = "it would be another job";
                            let mut reason = Reason::new(ReasonKind::Dependency, &part, message);
                            reason.because = because;
                            reasons.push(reason);
                        }
                    }
                }
                (Some(_), _) => {}
                (None, _) => reasons.push(changed(&part, "it depends on this now, and did not then".into())),
            }
            seen.push(part);
        }
        // What follows from a function can't be told without calling it.
        if task.dynamic.is_none() {
            let gone = record.identity.iter().filter(|(part, _)| !seen.contains(part));
            reasons.extend(gone.filter_map(|(part, d)| compare(part, d.as_str(), None)));
        }
        reasons
    }

    /// The records of the jobs at these places among a record's dependencies.
    fn linked(&self, record: &JobRecord, link: &RecordLink) -> Vec<JobRecord> {
        let paths = link.at.iter().filter_map(|at| record.dependencies.get(*at));
        let read = |path: &String| match JobRecord::read(&Paths::new(self.dir().join(path)).info) {
            Found::Record(record) => Some(*record),
            _ => None,
        };
        paths.filter_map(read).collect()
    }

    /// How a job that is not stored differs from a stored one of its task.
    fn differences(&self, old: &JobRecord, job: &Job, depth: usize) -> Vec<Reason> {
        let mut reasons = Vec::new();
        for part in differing(old, job) {
            let new = job
                .identity
                .iter()
                .find(|(name, _)| *name == part)
                .map(|(_, d)| d.as_str());
            let Some(mut reason) = compare(&part, old.identity.get(&part).and_then(Value::as_str), new) else {
                continue;
            };
            if let Some(input) = part.strip_prefix("input ") {
                // A file is told by its content; everything else by its value.
                let is_digest = |d: Option<&Value>| d.and_then(Value::as_str).is_some_and(|d| d.len() == 64);
                if !is_digest(reason.old.as_ref()) && !is_digest(reason.new.as_ref()) {
                    reason.old = reason.old.and(old.inputs.get(input).cloned());
                    reason.new = reason.new.and(job.shown_inputs().get(input).cloned());
                    reason.message = "another value".into();
                }
            }
            if let Some(name) = part.strip_prefix("dependency ")
                && depth < MAX_DEPTH
                && let Some(known) = old.links.get(name)
                && let Some(link) = job.links.iter().find(|l| l.name == name)
            {
                let before = self.linked(old, known);
                let now: Vec<&Arc<Job>> = link.jobs.iter().filter_map(|at| job.dependencies.get(*at)).collect();
                if before.len() != now.len() {
                    reason.message = format!("{} jobs instead of {}", now.len(), before.len());
                }
                for (before, now) in before.iter().zip(now).filter(|(b, n)| b.digest != n.digest) {
                    reason.because.extend(self.differences(before, now, depth + 1));
                }
            }
            reasons.push(reason);
        }
        reasons
    }
}

/// The parts in which a stored job and another of its task differ.
fn differing(old: &JobRecord, job: &Job) -> Vec<String> {
    let mut parts: Vec<String> = Vec::new();
    for (part, digest) in &job.identity {
        if old.identity.get(part).and_then(Value::as_str) != Some(digest) {
            parts.push(part.clone());
        }
    }
    let gone = old
        .identity
        .keys()
        .filter(|part| !job.identity.iter().any(|(p, _)| p == *part));
    parts.extend(gone.cloned());
    parts
}

/// What became of a part; nothing when it is the same.
fn compare(part: &str, old: Option<&str>, new: Option<&str>) -> Option<Reason> {
    let message = match (old, new) {
        (Some(old), Some(new)) if old == new => return None,
        (Some(_), Some(_)) => match part.split_once(' ').map_or(part, |(kind, _)| kind) {
            "definition" => "what the task does has changed",
            "script" => "the script has changed",
            "input" => "its content has changed",
            "dependency" => "another job",
            _ => "it has changed",
        },
        (None, Some(_)) => "it is new",
        (Some(_), None) => "it is no part any more",
        (None, None) => return None,
    };
    let mut reason = Reason::new(ReasonKind::Changed, part, message);
    reason.old = old.map(Value::from);
    reason.new = new.map(Value::from);
    Some(reason)
}

/// Where the workflow's file sets an input of a dependency to another value than the one that was used.
fn set_otherwise(
    root: &Workflow,
    record: &JobRecord,
    dependency: &Dependency,
    used: &JobRecord,
    link: &RecordLink,
) -> Vec<Reason> {
    let Some((_, target)) = root.target(root, dependency) else {
        return Vec::new();
    };
    let mut reasons = Vec::new();
    let mut set = |target: &Task, input: &str, value: &Value| {
        let (Some(declared), Some(then)) = (target.input(input), used.inputs.get(input)) else {
            return;
        };
        let now = match value {
            Value::Null if declared.required => return,
            value => value,
        };
        // A file counts by its content, which is looked at elsewhere; of a secret the record has no value.
        if !declared.kind.reads_content() && !declared.is_secret && then != now {
            let mut reason = Reason::new(
                ReasonKind::Changed,
                format!("input {input}"),
                "it is set to another value",
            );
            reason.old = Some(then.clone());
            reason.new = Some(now.clone());
            reasons.push(reason);
        }
    };
    for (input, setting) in &dependency.fixed {
        match setting {
            Setting::Value(value) => set(target, input, value),
            Setting::Input(own) => match record.inputs.get(own) {
                // A value that is handed on may have become one of another type.
                Some(value) if !value.is_null() && same_type(value, used.inputs.get(input)) => {
                    set(target, input, value)
                }
                _ => {}
            },
            Setting::Result(_) => {}
        }
    }
    if dependency.for_each.is_some() != link.each {
        let message = "it is made for each item of a list now, or is no more";
        reasons.push(Reason::new(ReasonKind::Changed, "for_each", message));
    }
    reasons
}

fn same_type(a: &Value, b: Option<&Value>) -> bool {
    b.is_some_and(|b| std::mem::discriminant(a) == std::mem::discriminant(b))
}
