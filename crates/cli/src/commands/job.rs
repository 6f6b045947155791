//! `decanus job …` of one job, and the worker of pending tool calls.

use std::sync::Arc;

use decanus::base::ErrorKind;
use decanus::workflow::{ProcessSpawner, Status};
use decanus::{Decanus, Error};
use serde_json::json;

use super::jobs;
use super::workflow::{print_bytes, print_result};
use crate::args::Job;
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
        Job::Work { .. } => Ok(0),
    }
}
