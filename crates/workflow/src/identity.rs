//! The identity of a job, in parts: each has a name and a digest of its own, so that two jobs can be compared and what
//! differs can be told.
//!
//! | part | value |
//! |---|---|
//! | `definition` | what the task does, and of which type its result is |
//! | `script NAME` | SHA-256 of a file of the workflow's folder that the task names |
//! | `input NAME` | digest of type and value; for a file the SHA-256 of its content; for a result `job DIGEST` |
//! | `dependency NAME` | digest of the job, or of the list of jobs; `override …` for one that was replaced |
//!
//! Descriptions, limits and names of jobs are no part of it.

use std::io;
use std::path::Path;
use std::sync::Arc;

use decanus_base::digest::ValueHasher;
use serde_json::Value;

use crate::content;
use crate::definition::{Task, Workflow};
use crate::input::{Input, InputType};
use crate::job::{Job, Link, hash_body, scripts};

/// Digits of a digest that is part of a name: 128 bits.
const DIGITS: usize = 32;

/// The parts of an identity, in their order: name and digest.
pub(crate) type Parts = Vec<(String, String)>;

/// What says the SHA-256 of a file.
pub(crate) type FileDigest<'a> = dyn FnMut(&Path) -> io::Result<String> + 'a;

fn short(hasher: ValueHasher) -> String {
    let mut digest = hasher.hex();
    digest.truncate(DIGITS);
    digest
}

/// The parts that all jobs of a task share.
pub(crate) fn of_task(workflow: &Workflow, task: &Task, file: &mut FileDigest) -> io::Result<Parts> {
    let mut hasher = ValueHasher::new();
    hasher.text(task.result.as_str());
    hash_body(&mut hasher, &task.body);
    for dependency in task.depends.iter().filter(|d| d.can_fail) {
        hasher.text("canfail").text(dependency.key());
    }
    let mut parts = vec![("definition".to_owned(), short(hasher))];
    for script in scripts(task, &workflow.dir) {
        let name = script.strip_prefix(&workflow.dir).unwrap_or(&script);
        parts.push((format!("script {}", name.display()), file(&script)?));
    }
    Ok(parts)
}

/// The digest of an input's value.
pub(crate) fn of_input(input: &Input, value: &Value, file: &mut FileDigest) -> io::Result<String> {
    if let (InputType::File, Value::String(path)) = (input.kind, value) {
        return file(Path::new(path));
    }
    let mut hasher = ValueHasher::new();
    hasher.text(input.kind.as_str());
    if input.kind.reads_content() {
        content::hash(&mut hasher, input.kind, value, file, io::Error::other)?;
    } else {
        hasher.value(value);
    }
    Ok(short(hasher))
}

/// The digest of the jobs behind a link: of one, or of a list.
pub(crate) fn of_jobs(link: &Link, jobs: &[Arc<Job>]) -> String {
    let mut digests = link.jobs.iter().filter_map(|at| jobs.get(*at)).map(|job| &job.digest);
    let digest = if link.each {
        let mut hasher = ValueHasher::new();
        digests.for_each(|digest| {
            hasher.text(digest);
        });
        short(hasher)
    } else {
        digests.next().cloned().unwrap_or_default()
    };
    match link.replaced {
        true => format!("override {digest}"),
        false => digest,
    }
}

/// The identity that follows from its parts: 32 hexadecimal digits.
pub(crate) fn digest(workflow: &str, task: &str, parts: &Parts) -> String {
    let mut hasher = ValueHasher::new();
    hasher.text("decanus job 2").text(workflow).text(task);
    for (name, value) in parts {
        hasher.text(name).text(value);
    }
    short(hasher)
}
