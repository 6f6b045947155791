//! `decanus job list|show|result`.

use decanus::workflow::StoredJob;
use serde_json::{Value, json};

use super::workflow::print_result;
use crate::args::Job;
use crate::out::{Out, table};
use crate::{Context, Ended};

pub fn run(command: &Job, cx: &Context) -> Ended {
    let decanus = cx.open()?;
    let out = cx.out;
    match command {
        Job::List { workflow, task } => {
            let jobs = decanus.jobs.list(workflow.as_deref(), task.as_deref())?;
            list(&jobs, out)
        }
        Job::Show { job } => {
            let job = decanus.jobs.find(job, &decanus.project.working_dir)?;
            show(&job, out)
        }
        Job::Result { job } => {
            let job = decanus.jobs.find(job, &decanus.project.working_dir)?;
            let value = job.value()?;
            if out.json {
                let path = job.path.to_string_lossy();
                out.value(&json!({"status": job.status().as_str(), "job": path, "result": value}));
            } else {
                print_result(&value, out);
            }
            Ok(0)
        }
    }
}

fn list(jobs: &[StoredJob], out: Out) -> Ended {
    if out.json {
        let values: Vec<Value> = jobs
            .iter()
            .map(|j| {
                json!({
                    "name": j.record.name,
                    "workflow": j.record.workflow,
                    "task": j.record.task,
                    "status": j.status().as_str(),
                    "path": j.path.to_string_lossy(),
                    "created": j.record.created,
                    "ended": j.record.ended,
                })
            })
            .collect();
        out.value(&values.into());
        return Ok(0);
    }
    if jobs.is_empty() {
        out.note("no jobs");
    }
    let row = |j: &StoredJob| vec![j.status().as_str().to_owned(), j.short_path(), j.record.created.clone()];
    out.print(&table(&jobs.iter().map(row).collect::<Vec<_>>()));
    Ok(0)
}

fn show(job: &StoredJob, out: Out) -> Ended {
    let value = job.show();
    if out.json {
        out.value(&value);
        return Ok(0);
    }
    let text = |v: &Value| v.as_str().map_or_else(|| v.to_string(), str::to_owned);
    let mut rows = Vec::new();
    for (name, member) in value.as_object().into_iter().flatten() {
        match member {
            Value::Null => {}
            Value::Object(map) => {
                for (key, v) in map {
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
