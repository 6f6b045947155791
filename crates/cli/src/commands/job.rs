//! `decanus job …` of one job, and the worker of pending tool calls.

use std::sync::Arc;

use decanus::base::ErrorKind;
use decanus::base::text::brief;
use decanus::workflow::{ProcessSpawner, Reason, RunOptions, Status, Why, exec};
use decanus::{Decanus, Error};
use serde_json::{Value, json};

use super::jobs;
use super::workflow::{planned, print_bytes, print_result};
use crate::args::Job;
use crate::out::Out;
use crate::{Context, Ended};

/// Pending tool calls are run by this binary, in a process for each, so that they outlive the command.
pub fn work_in_processes(decanus: &Decanus) -> Result<(), Error> {
    let program = std::env::current_exe().map_err(|e| {
        Error::new(
            ErrorKind::Internal,
            format!("the path of this program is not known: {e}"),
        )
    })?;
    let dir = &decanus.project.working_dir;
    let args = ["-C".into(), dir.clone().into_os_string(), "job".into(), "work".into()];
    let spawner = ProcessSpawner::new(program, args, dir);
    decanus.tool_jobs.set_spawner(Arc::new(spawner));
    Ok(())
}

pub async fn run(command: &Job, cx: &Context) -> Ended {
    let decanus = cx.open()?;
    let out = cx.out;
    if let Job::Work { id } = command {
        let status = decanus.work(id, cx.signals.token.clone()).await?;
        return Ok(if status == Status::Done {
            0
        } else {
            ErrorKind::Job.exit_code()
        });
    }
    if let Job::Exec { id, paths } = command {
        return exec(&decanus, id, paths, cx).await;
    }
    if let Err(e) = decanus.tool_jobs.tidy() {
        out.warn(&e.to_string());
    }
    match command {
        Job::List(wanted) => jobs::list(wanted, &decanus, out),
        Job::Show { job } => {
            let job = decanus.jobs.find(job, &decanus.project.working_dir)?;
            jobs::show(&job, &decanus, out)
        }
        Job::Result { job } => {
            let job = decanus.jobs.find(job, &decanus.project.working_dir)?;
            let value = job.value()?;
            if !out.json && print_bytes(&job, out)? {
                // They are no value.
            } else if out.json {
                let path = job.path.to_string_lossy();
                out.value(&json!({"status": job.status().as_str(), "job": path, "result": value}));
            } else {
                print_result(&value, out);
            }
            Ok(0)
        }
        Job::Prov(args) => super::prov::of_job(args, &decanus, out),
        Job::Why { job, values } => why_of(job, values, &decanus, out),
        Job::Cancel { job } => {
            let job = decanus.jobs.find(job, &decanus.project.working_dir)?;
            let was_active = job.record.effective_status().is_active();
            let job = decanus.jobs.cancel(&job)?;
            let status = job.status().as_str();
            if out.json {
                let path = job.path.to_string_lossy();
                out.value(&json!({"status": status, "job": path, "cancelled": was_active && status == "aborted"}));
            } else if was_active {
                out.line(&format!("{} is {status}", job.short_path()));
            } else {
                out.note(&format!("{} was not at work: it is {status}", job.short_path()));
            }
            Ok(0)
        }
        Job::Log { job, follow } => {
            let job = decanus.jobs.find(job, &decanus.project.working_dir)?;
            jobs::log(&job, *follow, &decanus, cx).await
        }
        Job::Clean(wanted) => jobs::clean(wanted, &decanus, out),
        Job::Usage { workflow } => jobs::usage(workflow.as_deref(), &decanus, out),
        Job::Gc(wanted) => jobs::collect(wanted, &decanus, out),
        // It is dealt with above.
        Job::Work { .. } | Job::Exec { .. } => Ok(0),
    }
}

fn why_of(job: &str, values: &[(String, String)], decanus: &Decanus, out: Out) -> Ended {
    let task = job.split_once('/').filter(|(_, task)| !task.contains('/'));
    let found = match task {
        Some(_) if !values.is_empty() => None,
        // A job, unless it can only be a task.
        Some((workflow, _)) => match decanus.jobs.find(job, &decanus.project.working_dir) {
            Err(_) if decanus.workflows.has(workflow) => None,
            found => Some(found?),
        },
        None if !values.is_empty() => {
            return Err(Error::usage("inputs belong to a task: `job why WORKFLOW/TASK KEY=VALUE…`").into());
        }
        None => Some(decanus.jobs.find(job, &decanus.project.working_dir)?),
    };
    match (found, task) {
        (Some(found), _) => why(&decanus.jobs.why(&found, &decanus.workflows), out),
        (None, Some((workflow, task))) => {
            let job = planned(decanus, workflow, task, values, None)?;
            why(&decanus.jobs.why_job(&job)?, out)
        }
        (None, None) => Ok(0),
    }
}

/// Prints why a job would run, or would not.
pub fn why(why: &Why, out: Out) -> Ended {
    if out.json {
        out.value(&why.show());
        return Ok(0);
    }
    let status = why.status.map_or("not stored", Status::as_str);
    let runs = match (why.runs(), why.reasons.is_empty()) {
        (true, _) => "its task would run",
        (false, true) => "its result holds; nothing would run",
        (false, false) => "it would be waited for",
    };
    out.line(&format!("{} is {status}: {runs}", why.job));
    if let Some(nearest) = &why.nearest {
        out.line(&format!("compared to the nearest earlier job, {}:", nearest.display()));
    }
    reasons(&why.reasons, 1, out);
    Ok(0)
}

fn reasons(all: &[Reason], depth: usize, out: Out) {
    for reason in all {
        let part = match reason.part.as_str() {
            "" => String::new(),
            part => format!("{part}: "),
        };
        let value = |v: &Option<Value>| {
            v.as_ref().map(|v| match v {
                // The first digits tell digests apart.
                Value::String(d) if d.len() >= 32 && d.bytes().all(|b| b.is_ascii_hexdigit()) => d[..12].to_owned(),
                v => brief(&v.to_string(), 80),
            })
        };
        let change = match (value(&reason.old), value(&reason.new)) {
            (Some(old), Some(new)) => format!(" ({old} → {new})"),
            _ => String::new(),
        };
        let indent = "  ".repeat(depth);
        out.line(&format!("{indent}{part}{}{change}", reason.message.replace('\n', " ")));
        reasons(&reason.because, depth + 1, out);
    }
}

/// Runs the jobs one after another. What came of each is in its record; the scheduler only needs the exit code.
async fn exec(decanus: &Decanus, id: &str, arguments: &[String], cx: &Context) -> Ended {
    let paths = exec::listed(arguments).map_err(|e| Error::new(ErrorKind::Config, e.to_string()))?;
    let (workflows, id, out) = (decanus.workflows.clone(), id.to_owned(), cx.out);
    let options = RunOptions {
        cancel: cx.signals.token.clone(),
        ..RunOptions::default()
    };
    let work = move || {
        let mut all_done = true;
        for path in paths.iter().take_while(|_| !options.cancel.is_cancelled()) {
            match exec::exec(&workflows, path, &id, &options) {
                Ok(status) => all_done &= status == Status::Done,
                Err(e) => {
                    all_done = false;
                    out.warn(&format!("{}: {e}", path.display()));
                }
            }
        }
        all_done && !options.cancel.is_cancelled()
    };
    let all_done = tokio::task::spawn_blocking(work).await;
    let all_done =
        all_done.map_err(|e| Error::new(ErrorKind::Internal, format!("the thread of the jobs ended: {e}")))?;
    Ok(if all_done { 0 } else { ErrorKind::Job.exit_code() })
}
