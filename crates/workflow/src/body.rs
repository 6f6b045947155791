//! What a task's process is given, and what becomes of what it leaves.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::Duration;

use decanus_base::files::{named, write_atomic, write_private};
use decanus_base::process::Spec;
use serde_json::{Map, Value, json};

use crate::definition::Body;
use crate::depends::variable;
use crate::input::{MASK, show};
use crate::job::{Job, Link, MAX_ARGUMENT, arguments, own_files};
use crate::store::{JobStore, OWN_DIR, Paths, entries};

/// A dependency's result larger than this is passed by its path alone; its value is then null.
const MAX_PASSED: u64 = 16 << 20;
/// How much of the end of standard error is part of an error.
const TAIL_BYTES: u64 = 4000;
const TAIL_LINES: usize = 20;

/// Why a job's process can't be started.
pub(crate) enum Unready {
    /// What it is to use is not what its type says. That is the job's failure.
    Use(String),
    /// Its files can't be written.
    Store(io::Error),
}

impl From<io::Error> for Unready {
    fn from(error: io::Error) -> Self {
        Self::Store(error)
    }
}

/// Makes the job's folder anew, writes the inputs, and says what to start.
///
/// # Errors
/// Results that it can't use, and files that can't be written.
pub(crate) fn prepare(store: &JobStore, job: &Job, paths: &Paths, timeout: Option<Duration>) -> Result<Spec, Unready> {
    let inputs = job.resolved_inputs(store).map_err(Unready::Use)?;
    let inputs_file = inputs_file(paths);
    let document = document(store, job, paths, &inputs).map_err(Unready::Use)?;
    write_inputs(job, paths, &document)?;
    let create = |name: &str| {
        let path = paths.own.join(name);
        File::create(&path).map_err(|e| named(e, &path))
    };
    let text = |path: &Path| path.as_os_str().to_owned();
    let mut env: Vec<(String, OsString)> = vec![
        ("DECANUS_INPUTS".into(), text(&inputs_file)),
        ("DECANUS_RESULT".into(), text(&result_file(paths))),
        ("DECANUS_FILES".into(), text(&paths.files)),
        ("DECANUS_WORKFLOW_DIR".into(), text(&job.workflow.dir)),
    ];
    for link in &job.links {
        // Of a list each path is a line.
        let value = dependency_paths(store, job, link)
            .into_iter()
            .map(PathBuf::into_os_string)
            .collect::<Vec<_>>()
            .join(OsStr::new("\n"));
        if value.len() <= MAX_ARGUMENT {
            env.push((variable(&link.name), value));
        }
    }
    for input in job.task.inputs.iter().filter(|i| i.kind.is_scalar()) {
        // One without a value is empty rather than unset, so that nothing of our own environment shows through.
        let value = inputs.get(&input.name).map(show).unwrap_or_default();
        if value.len() <= MAX_ARGUMENT {
            env.push((input.name.clone(), value.into()));
        }
    }
    Ok(Spec {
        argv: argv(store, job, &inputs),
        dir: paths.files.clone(),
        env,
        stdin: Some(File::open(&inputs_file).map_err(|e| named(e, &inputs_file))?),
        stdout: create("stdout")?,
        stderr: create("stderr")?,
        timeout,
    })
}

fn inputs_file(paths: &Paths) -> PathBuf {
    paths.own.join("inputs.json")
}

/// Writes the inputs where the process finds them. Secrets are for the user alone to read.
fn write_inputs(job: &Job, paths: &Paths, document: &Value) -> io::Result<()> {
    let mut bytes = serde_json::to_vec(document)?;
    bytes.push(b'\n');
    let file = inputs_file(paths);
    match has_secrets(job) {
        true => write_private(&file, &bytes),
        false => write_atomic(&file, &bytes),
    }
}

fn has_secrets(job: &Job) -> bool {
    job.task.inputs.iter().any(|i| i.is_secret)
}

/// Replaces the secrets in the inputs that stay in the job's folder; called when the process has ended.
pub(crate) fn forget_secrets(store: &JobStore, job: &Job, paths: &Paths) {
    if !has_secrets(job) {
        return;
    }
    let document = document(store, job, paths, &job.shown_inputs()).map_err(io::Error::other);
    if let Err(e) = document.and_then(|document| write_inputs(job, paths, &document)) {
        tracing::warn!("{e}");
        // Rather no inputs than secret ones.
        let _ = fs::remove_file(inputs_file(paths));
    }
}

pub(crate) fn result_file(paths: &Paths) -> PathBuf {
    paths.own.join("result")
}

/// The paths of the results behind a name.
fn dependency_paths(store: &JobStore, job: &Job, link: &Link) -> Vec<PathBuf> {
    let jobs = link.jobs.iter().filter_map(|at| job.dependencies.get(*at));
    jobs.map(|dependency| store.path(dependency)).collect()
}

/// Path and value of a dependency's result; of one that failed the error, and no value.
///
/// # Errors
/// Why it is no result of its type: it stands in for a task, or somebody has edited it.
fn result_of(store: &JobStore, dependency: &Job) -> Result<Value, String> {
    let theirs = store.paths(dependency);
    let path = theirs.result.display().to_string();
    if !theirs.result.is_file() {
        let error = store.read(theirs.result).and_then(|j| j.error());
        let error = error.unwrap_or_else(|| "it has no result".into());
        return Ok(json!({"path": path, "value": null, "error": error}));
    }
    let small = fs::metadata(&theirs.result).is_ok_and(|m| m.len() <= MAX_PASSED);
    let loaded = small.then(|| dependency.kind().load(&theirs.result, &theirs.files));
    let value = loaded.transpose().map_err(|reason| {
        let what = if dependency.given.is_some() {
            "which stands in for"
        } else {
            "the result of"
        };
        format!("{path}, {what} {}: {reason}", dependency.label())
    })?;
    Ok(json!({"path": path, "value": value}))
}

/// What a task's process or function is told: the JSON of `DECANUS_INPUTS`.
fn document(store: &JobStore, job: &Job, paths: &Paths, inputs: &Map<String, Value>) -> Result<Value, String> {
    let mut dependencies = Map::new();
    for link in &job.links {
        let jobs = link.jobs.iter().filter_map(|at| job.dependencies.get(*at));
        let mut results = jobs
            .map(|dependency| result_of(store, dependency))
            .collect::<Result<Vec<Value>, String>>()?;
        let value = match link.each {
            true => Value::Array(results),
            false => results.pop().unwrap_or_default(),
        };
        dependencies.insert(link.name.clone(), value);
    }
    Ok(json!({
        "workflow": job.workflow.name,
        "task": job.task.name,
        "job": paths.result.display().to_string(),
        "files": paths.files.display().to_string(),
        "workflow_dir": job.workflow.dir.display().to_string(),
        "inputs": inputs,
        "dependencies": dependencies,
    }))
}

fn argv(store: &JobStore, job: &Job, inputs: &Map<String, Value>) -> Vec<OsString> {
    let dir = &job.workflow.dir;
    match &job.task.body {
        Body::Alias => Vec::new(),
        Body::Python(python) => python.argv(dir, job.task.result),
        // Runs in this process.
        Body::Native(_) => Vec::new(),
        Body::Sh(script) => ["sh", "-c", script].map(OsString::from).into(),
        Body::Run(elements) => {
            let own = own_files(elements, dir);
            let dependency = |name: &str| {
                let link = job.links.iter().find(|l| l.name == name);
                link.map(|l| dependency_paths(store, job, l)).unwrap_or_default()
            };
            let mut argv = Vec::new();
            for (at, element) in elements.iter().enumerate() {
                match own.iter().find(|(i, _)| *i == at) {
                    Some((_, path)) => argv.push(path.clone().into_os_string()),
                    None => argv.extend(
                        arguments(element, inputs, &dependency, dir)
                            .into_iter()
                            .map(OsString::from),
                    ),
                }
            }
            argv
        }
    }
}

/// Puts what the process wrote (`DECANUS_RESULT`, else its standard output) in the result's place, if it is a result of
/// the task's type.
pub(crate) fn accept(job: &Job, paths: &Paths) -> Result<(), String> {
    let written = result_file(paths);
    let source = if fs::symlink_metadata(&written).is_ok() {
        written
    } else {
        paths.own.join("stdout")
    };
    job.task.result.accept(&source, &paths.files)?;
    fs::rename(&source, &paths.result).map_err(|e| format!("its result can't be stored: {}", named(e, &paths.result)))
}

/// [`stderr_tail`] of a job, without the values of secret inputs.
pub(crate) fn job_stderr(job: &Job, paths: &Paths) -> String {
    let mut text = stderr_tail(paths);
    for input in job.task.inputs.iter().filter(|i| i.is_secret) {
        // Shorter ones would be found in any text.
        let secret = show(&job.inputs[&input.name]);
        if secret.len() >= 4 {
            text = text.replace(&secret, MASK);
        }
    }
    text
}

/// The last lines of a process's standard error.
pub(crate) fn stderr_tail(paths: &Paths) -> String {
    let read = || -> io::Result<Vec<u8>> {
        let mut file = File::open(paths.own.join("stderr"))?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(TAIL_BYTES)))?;
        let mut bytes = Vec::new();
        file.take(TAIL_BYTES).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    let bytes = read().unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    let text = text.trim_end();
    // Unless everything fits, the first line is probably half of one.
    let text = match text.split_once('\n') {
        Some((_, rest)) if bytes.len() as u64 == TAIL_BYTES => rest,
        _ => text,
    };
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(TAIL_LINES)..].join("\n")
}

/// Makes the result of a job's dependency its own: the same files, under its own name. Files are linked where the file
/// system can, and copied where not.
pub(crate) fn alias(store: &JobStore, job: &Job, paths: &Paths) -> Result<(), String> {
    let Some(dependency) = job.dependencies.first() else {
        return Err("it stands for nothing".into());
    };
    let theirs = store.paths(dependency);
    let failed = |e: io::Error| format!("its result can't be linked: {e}");
    link_folder(&theirs.files, &paths.files).map_err(failed)?;
    // A path within the folder of the other leads into ours the same way.
    link_file(&theirs.result, &paths.result).map_err(failed)
}

fn link_folder(from: &Path, to: &Path) -> io::Result<()> {
    for path in entries(from)? {
        let Some(name) = path.file_name().filter(|n| *n != OsStr::new(OWN_DIR)) else {
            continue;
        };
        let target = to.join(name);
        if fs::symlink_metadata(&path).map_err(|e| named(e, &path))?.is_dir() {
            fs::create_dir_all(&target).map_err(|e| named(e, &target))?;
            link_folder(&path, &target)?;
        } else {
            link_file(&path, &target)?;
        }
    }
    Ok(())
}

fn link_file(from: &Path, to: &Path) -> io::Result<()> {
    fs::hard_link(from, to)
        .or_else(|_| fs::copy(from, to).map(drop))
        .map_err(|e| named(e, to))
}
