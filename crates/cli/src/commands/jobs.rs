//! `decanus job list|show|log|clean|usage|gc` and `decanus workflow clean`.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::Duration;

use decanus::base::units::{show_duration, show_size};
use decanus::base::{ErrorKind, process};
use decanus::workflow::collect;
use decanus::workflow::{Garbage, JobFilter, JobRecord, JobSummary, Resources, StoredJob};
use decanus::{Decanus, Error};
use serde_json::{Value, json};

use crate::args::{CleanJobs, CleanTasks, Collect, ListJobs};
use crate::out::{Out, table};
use crate::{Context, Ended};

/// How soon new lines of a log are seen.
const LOOKS: Duration = Duration::from_millis(50);

pub fn list(wanted: &ListJobs, decanus: &Decanus, out: Out) -> Ended {
    let filter = JobFilter {
        workflow: wanted.workflow.clone(),
        task: wanted.task.clone(),
        statuses: wanted.status.clone(),
        name: wanted.name.clone(),
        since: wanted.since,
        before: wanted.before,
        limit: wanted.limit.filter(|_| !wanted.stale),
    };
    let mut jobs: Vec<(JobSummary, Option<String>)> = Vec::new();
    for job in decanus.jobs.summaries(&filter)? {
        let why = match wanted.stale {
            true => decanus
                .jobs
                .read(job.path.clone())
                .and_then(|j| decanus.jobs.staleness(&j)),
            false => None,
        };
        if !wanted.stale || why.is_some() {
            jobs.push((job, why));
        }
    }
    let first = wanted.limit.map_or(0, |limit| jobs.len().saturating_sub(limit));
    jobs.drain(..first);
    if out.json {
        let values: Vec<Value> = jobs
            .iter()
            .map(|(job, why)| value(job, why.as_ref(), wanted.long))
            .collect();
        out.value(&values.into());
        return Ok(0);
    }
    if jobs.is_empty() {
        out.note("no jobs");
    }
    let row = |(job, why): &(JobSummary, Option<String>)| {
        let mut row = vec![job.status.as_str().to_owned(), job.short_path(), job.created.clone()];
        if wanted.long {
            let seconds = job.seconds().and_then(|s| Duration::try_from_secs_f64(s).ok());
            row.push(seconds.map(show_duration).unwrap_or_default());
            row.push(job.size().map(show_size).unwrap_or_default());
        }
        row.extend(why.clone());
        row
    };
    out.print(&table(&jobs.iter().map(row).collect::<Vec<_>>()));
    Ok(0)
}

fn value(job: &JobSummary, why: Option<&String>, long: bool) -> Value {
    let mut value = json!({
        "name": job.name,
        "workflow": job.workflow,
        "task": job.task,
        "status": job.status.as_str(),
        "path": job.path.to_string_lossy(),
        "created": job.created,
        "ended": job.ended,
    });
    if let Some(id) = &job.id {
        value["id"] = id.clone().into();
    }
    if long {
        value["seconds"] = json!(job.seconds());
        value["size"] = json!(job.size());
    }
    if let Some(why) = why {
        value["stale"] = why.clone().into();
    }
    value
}

pub fn show(job: &StoredJob, decanus: &Decanus, out: Out) -> Ended {
    let mut value = job.show();
    let stale = decanus.jobs.staleness(job);
    if let Some(why) = &stale {
        value["stale"] = why.clone().into();
    }
    let workflow = decanus.workflows.load(&job.record.workflow).ok();
    let task = workflow.as_ref().and_then(|w| w.task(&job.record.task).ok());
    if let Some(resources) = task.map(|t| t.resources).filter(|r| *r != Resources::default()) {
        value["resources"] = json!({
            "cpus": resources.cpus,
            "memory": resources.memory,
            "time": resources.time.map(|t| t.as_secs_f64()),
        });
    }
    if out.json {
        out.value(&value);
        return Ok(0);
    }
    if let Some(seconds) = value["seconds"]
        .as_f64()
        .and_then(|s| Duration::try_from_secs_f64(s).ok())
    {
        value["seconds"] = show_duration(seconds).into();
    }
    if let Some(size) = value["size"].as_u64() {
        value["size"] = show_size(size).into();
    }
    // Where it ran is news only when it was elsewhere.
    if value["host"].as_str() == Some(process::host().as_str()) {
        value["host"] = Value::Null;
    }
    let text = |v: &Value| v.as_str().map_or_else(|| v.to_string(), str::to_owned);
    let mut rows = Vec::new();
    for (name, member) in value.as_object().into_iter().flatten() {
        match member {
            Value::Null => {}
            Value::Object(map) => {
                for (key, v) in map.iter().filter(|(_, v)| !v.is_null()) {
                    rows.push(vec![name.clone(), format!("{key} = {}", text(v))]);
                }
            }
            Value::Array(items) => rows.extend(items.iter().map(|v| vec![name.clone(), text(v)])),
            v => rows.push(vec![name.clone(), text(v)]),
        }
    }
    out.print(&table(&rows));
    Ok(0)
}

/// Prints what a job has said, and with `follow` what it says until its end.
pub async fn log(job: &StoredJob, follow: bool, decanus: &Decanus, cx: &Context) -> Ended {
    let out = cx.out;
    let logs = job.logs();
    if out.json {
        let read = |path: &PathBuf| fs::read(path).ok().map(|b| String::from_utf8_lossy(&b).into_owned());
        let [stderr, stdout] = [read(&logs[0]), read(&logs[1])];
        out.value(&json!({"job": job.path.to_string_lossy(), "stderr": stderr, "stdout": stdout}));
        return Ok(0);
    }
    let mut open: [Option<File>; 2] = [None, None];
    loop {
        // Asked before the logs are read: what has ended has said its last word by then.
        let now = decanus.jobs.read(job.path.clone());
        let is_over = !now.is_some_and(|j| j.record.effective_status().is_active());
        for (path, file) in logs.iter().zip(&mut open) {
            more(path, file, out)?;
        }
        if is_over || !follow {
            break;
        }
        tokio::select! {
            () = tokio::time::sleep(LOOKS) => {}
            () = cx.signals.token.cancelled() => break,
        }
    }
    if open.iter().all(Option::is_none) {
        out.note("it has said nothing");
    }
    Ok(0)
}

/// Prints what has been added to a log. It stays open, so that what is moved away is read to its end.
fn more(path: &Path, file: &mut Option<File>, out: Out) -> Result<(), Error> {
    let failed = |e: io::Error| Error::new(ErrorKind::Internal, format!("{}: {e}", path.display()));
    if file.is_none() {
        *file = match File::open(path) {
            Ok(file) => Some(file),
            Err(e) if e.kind() == io::ErrorKind::NotFound => None,
            Err(e) => return Err(failed(e)),
        };
    }
    let mut bytes = Vec::new();
    if let Some(file) = file {
        file.read_to_end(&mut bytes).map_err(failed)?;
    }
    if !bytes.is_empty() {
        out.print(&String::from_utf8_lossy(&bytes));
    }
    Ok(())
}

pub fn clean(wanted: &CleanJobs, decanus: &Decanus, out: Out) -> Ended {
    let mut jobs = Vec::new();
    for job in &wanted.jobs {
        jobs.push(decanus.jobs.find(job, &decanus.project.working_dir)?);
    }
    if wanted.jobs.is_empty() {
        let (workflow, task) = match wanted.task.as_deref().map(|t| t.split_once('/').unwrap_or((t, ""))) {
            Some((workflow, task)) => (
                Some(workflow.to_owned()),
                Some(task.to_owned()).filter(|t| !t.is_empty()),
            ),
            None => (None, None),
        };
        let filter = JobFilter {
            workflow,
            task,
            statuses: wanted.status.clone(),
            before: wanted.older,
            ..JobFilter::default()
        };
        jobs = ended(&filter, decanus, out)?;
    }
    removed(&jobs, wanted.recursive, wanted.dry_run, decanus, out)
}

pub fn clean_tasks(wanted: &CleanTasks, decanus: &Decanus, out: Out) -> Ended {
    let filter = JobFilter {
        workflow: Some(wanted.workflow.clone()),
        task: wanted.task.clone(),
        ..JobFilter::default()
    };
    let jobs = ended(&filter, decanus, out)?;
    if jobs.is_empty() && !decanus.workflows.has(&wanted.workflow) {
        return Err(Error::usage(format!("there is no workflow `{}`, and no job of one", wanted.workflow)).into());
    }
    removed(&jobs, wanted.recursive, wanted.dry_run, decanus, out)
}

/// The jobs that a filter takes and that are not at work.
fn ended(filter: &JobFilter, decanus: &Decanus, out: Out) -> Result<Vec<StoredJob>, Error> {
    let found = decanus.jobs.summaries(filter)?;
    let (active, ended): (Vec<_>, Vec<_>) = found.into_iter().partition(|j| j.status.is_active());
    if !active.is_empty() {
        out.warn(&format!("left as they are at work: {}", active.len()));
    }
    Ok(ended.into_iter().filter_map(|j| decanus.jobs.read(j.path)).collect())
}

fn removed(jobs: &[StoredJob], recursive: bool, dry_run: bool, decanus: &Decanus, out: Out) -> Ended {
    let removed = decanus.jobs.clean_all(jobs, recursive, dry_run)?;
    let paths = removed.iter().map(|p| p.display().to_string());
    if out.json {
        let paths: Vec<String> = paths.collect();
        out.value(&match dry_run {
            true => json!({"removed": [], "would_remove": paths}),
            false => json!({"removed": paths}),
        });
        return Ok(0);
    }
    let word = if dry_run { "would remove" } else { "removed" };
    let lines: Vec<String> = paths.map(|path| format!("{word} {path}\n")).collect();
    out.print(&lines.concat());
    if lines.is_empty() {
        out.note("no jobs");
    }
    Ok(0)
}

pub fn usage(workflow: Option<&str>, decanus: &Decanus, out: Out) -> Ended {
    let usage = decanus.jobs.usage(workflow);
    let usage = usage.map_err(|e| Error::new(ErrorKind::Internal, e.to_string()))?;
    let total = usage.iter().fold((0, 0, 0), |(jobs, files, bytes), u| {
        (jobs + u.jobs, files + u.files, bytes + u.bytes)
    });
    if out.json {
        let tasks: Vec<Value> = usage
            .iter()
            .map(
                |u| json!({"workflow": u.workflow, "task": u.task, "jobs": u.jobs, "files": u.files, "bytes": u.bytes}),
            )
            .collect();
        out.value(&json!({"tasks": tasks, "jobs": total.0, "files": total.1, "bytes": total.2}));
        return Ok(0);
    }
    if usage.is_empty() {
        out.note("no jobs");
        return Ok(0);
    }
    let row = |name: String, jobs: usize, files: usize, bytes: u64| {
        vec![name, format!("{jobs} jobs"), format!("{files} files"), show_size(bytes)]
    };
    let mut rows: Vec<Vec<String>> = usage
        .iter()
        .map(|u| row(format!("{}/{}", u.workflow, u.task), u.jobs, u.files, u.bytes))
        .collect();
    rows.push(row("all".into(), total.0, total.1, total.2));
    out.print(&table(&rows));
    Ok(0)
}

pub fn collect(wanted: &Collect, decanus: &Decanus, out: Out) -> Ended {
    let exists = |workflow: &str, task: &str| match decanus.workflows.load(workflow) {
        Ok(workflow) => workflow.task(task).is_ok(),
        // A workflow with a fault in its file is there all the same.
        Err(_) => decanus.workflows.has(workflow),
    };
    let chats = if wanted.orphans {
        texts_of_chats(decanus)
    } else {
        Vec::new()
    };
    let is_referred = |job: &JobRecord, _: &Path| chats.iter().any(|text| text.contains(&job.digest));
    let what = collect::Collect {
        all: wanted.all,
        exists: wanted.orphans.then_some(&exists),
        is_referred: Some(&is_referred),
        dry_run: wanted.dry_run,
    };
    let found = decanus.jobs.collect(&what)?;
    let gone = || found.iter().filter(|l| l.kept.is_none());
    let freed: u64 = gone().map(|l| l.bytes).sum();
    if out.json {
        let values: Vec<Value> = found
            .iter()
            .map(|l| json!({"kind": l.kind.as_str(), "path": l.path.to_string_lossy(), "bytes": l.bytes, "kept": l.kept}))
            .collect();
        out.value(&json!({"found": values, "bytes": freed, "dry_run": wanted.dry_run}));
        return Ok(0);
    }
    let word = if wanted.dry_run { "would remove" } else { "removed" };
    let mut lines = String::new();
    for leftover in &found {
        let (kind, path) = (leftover.kind.as_str(), leftover.path.display());
        lines.push_str(&match &leftover.kept {
            None => format!("{word} {kind} {path}\n"),
            Some(why) => format!("left {kind} {path}: {why}\n"),
        });
    }
    out.print(&lines);
    let mut counts: BTreeMap<Garbage, usize> = BTreeMap::new();
    gone().for_each(|l| *counts.entry(l.kind).or_default() += 1);
    let counts: Vec<String> = counts
        .iter()
        .map(|(kind, n)| format!("{n} {}", kind.as_str()))
        .collect();
    match counts.is_empty() {
        true => out.note("nothing to remove"),
        false => out.note(&format!("{} {}: {}", word, show_size(freed), counts.join(", "))),
    }
    Ok(0)
}

/// What the chats and sessions of the project say.
fn texts_of_chats(decanus: &Decanus) -> Vec<String> {
    /// Folders within folders.
    const DEEPEST: usize = 12;
    let sessions = decanus.project.root.join(".decanus/sessions");
    let mut texts = Vec::new();
    let mut open = vec![(decanus.project.root.clone(), 0), (sessions.clone(), 0)];
    while let Some((dir, depth)) = open.pop() {
        for entry in fs::read_dir(&dir).into_iter().flatten().flatten() {
            let path = entry.path();
            let is_hidden = entry.file_name().as_encoded_bytes().starts_with(b".");
            match entry.file_type() {
                Ok(kind) if kind.is_dir() && !is_hidden && depth < DEEPEST => open.push((path, depth + 1)),
                Ok(kind)
                    if kind.is_file()
                        && (dir.starts_with(&sessions) || path.extension().is_some_and(|e| e == "chat")) =>
                {
                    texts.extend(fs::read(&path).ok().map(|b| String::from_utf8_lossy(&b).into_owned()));
                }
                _ => {}
            }
        }
    }
    texts
}
