//! `decanus workflow list|show|check|run|clean`.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use decanus::base::text::brief;
use decanus::base::yaml::YamlError;
use decanus::base::{Diagnostic, ErrorKind};
use decanus::chat::Arguments;
use decanus::tool::Permissions;
use decanus::tool::schema::prepare;
use decanus::workflow::{
    Capacity, Dependency, Executed, Input, Job, JobOptions, JobStore, Override, PathPolicy, ResultType, RunOptions,
    StoredJob, Task, Workflow, WorkflowError, executor, schema,
};
use decanus::{Decanus, Error};
use serde_json::{Map, Value, json};

use crate::args;
use crate::out::{Out, table};
use crate::progress::JobProgress;
use crate::values;
use crate::{Context, Ended, Failure};

pub async fn run(command: args::Workflow, cx: &Context) -> Ended {
    let decanus = cx.open()?;
    match command {
        args::Workflow::List => list(&decanus, cx.out),
        args::Workflow::Show { workflow } => show(&*decanus.workflows.load(&workflow)?, cx.out),
        args::Workflow::Check { workflows } => check(&decanus, &workflows, cx.out),
        args::Workflow::Run(wanted) => wanted.run(&decanus, cx).await,
        args::Workflow::Clean(clean) => super::jobs::clean_tasks(&clean, &decanus, cx.out),
    }
}

fn list(decanus: &Decanus, out: Out) -> Ended {
    let mut rows = Vec::new();
    let mut values = Vec::new();
    for listed in decanus.workflows.list() {
        match &listed.workflow {
            Ok(w) => {
                let tasks: Vec<&str> = w.exported().iter().map(|t| t.name.as_str()).collect();
                rows.push(vec![w.name.clone(), brief(&w.title, 60), tasks.join(", ")]);
                let dir = listed.dir.to_string_lossy();
                values.push(
                    json!({"name": w.name, "title": w.title, "description": w.description, "tasks": tasks, "dir": dir}),
                );
            }
            Err(e) => {
                out.warn(&e.to_string());
                values.push(json!({"name": listed.name, "error": e.to_string(), "dir": listed.dir.to_string_lossy()}));
            }
        }
    }
    if out.json {
        out.value(&values.into());
    } else if rows.is_empty() {
        out.note("no workflows; `decanus init` makes a first one");
    } else {
        out.print(&table(&rows));
    }
    Ok(0)
}

/// Faults are results here: they are printed on stdout, and the exit code says whether there are any.
fn check(decanus: &Decanus, names: &[String], out: Out) -> Ended {
    let names = match names {
        [] => decanus.workflows.folders().into_iter().map(|(name, _)| name).collect(),
        some => some.to_vec(),
    };
    let mut values = Vec::new();
    let mut has_errors = false;
    for name in names {
        let (errors, warnings) = match decanus.workflows.check(&name) {
            Ok(checked) => (checked.faults, checked.warnings),
            Err(WorkflowError::Yaml(fault)) => (vec![fault], Vec::new()),
            Err(e @ WorkflowError::Unknown { .. }) => return Err(e.into()),
            Err(e) => {
                values.push(json!({"name": name, "errors": [{"message": e.to_string()}], "warnings": []}));
                has_errors = true;
                if !out.json {
                    out.line(&format!("error: {e}"));
                }
                continue;
            }
        };
        has_errors |= !errors.is_empty();
        if out.json {
            let list = |faults: &[YamlError]| faults.iter().map(fault_value).collect::<Vec<_>>();
            values.push(json!({"name": name, "errors": list(&errors), "warnings": list(&warnings)}));
            continue;
        }
        for error in &errors {
            out.line(&format!("error: {error}"));
        }
        for warning in &warnings {
            out.line(&format!("warning: {warning}"));
        }
        if errors.is_empty() && warnings.is_empty() {
            out.note(&format!("{name}: nothing to complain of"));
        }
    }
    if out.json {
        out.value(&values.into());
    }
    Ok(if has_errors { ErrorKind::Config.exit_code() } else { 0 })
}

fn fault_value(fault: &YamlError) -> Value {
    json!({
        "file": fault.file.to_string_lossy(),
        "line": fault.line,
        "key": fault.key,
        "message": fault.message,
    })
}

fn show(workflow: &Workflow, out: Out) -> Ended {
    if out.json {
        let tasks: Vec<Value> = workflow.tasks.iter().map(|t| task_value(workflow, t)).collect();
        out.value(&json!({
            "name": workflow.name,
            "title": workflow.title,
            "description": workflow.description,
            "dir": workflow.dir.to_string_lossy(),
            "tasks": tasks,
            "exports": workflow.exported().iter().map(|t| t.name.clone()).collect::<Vec<_>>(),
        }));
        return Ok(0);
    }
    out.line(&workflow.title);
    if !workflow.description.is_empty() {
        out.line(&format!("\n{}", workflow.description.trim()));
    }
    if !workflow.introduction.is_empty() {
        out.line(&format!("\n{}", workflow.introduction));
    }
    for task in &workflow.tasks {
        let depends: Vec<String> = task.depends.iter().map(Dependency::label).collect();
        let depends = if depends.is_empty() {
            String::new()
        } else {
            format!("  (after {})", depends.join(", "))
        };
        out.line(&format!(
            "\n{} → {}{depends}\n  {}",
            task.name,
            task.result.as_str(),
            task.description.trim().replace('\n', "\n  ")
        ));
        if !task.returns.is_empty() {
            out.line(&format!("  Returns: {}", task.returns));
        }
        let rows: Vec<Vec<String>> = workflow.recursive_inputs(task).into_iter().map(input_row).collect();
        out.print(&table(&rows));
    }
    Ok(0)
}

fn input_row(input: &Input) -> Vec<String> {
    let schema = schema::property(input);
    let kind = input.kind.as_str().to_owned();
    let shortcut = input.shortcut.as_ref().map(|s| format!(" ({s})")).unwrap_or_default();
    let need = match schema.get("default") {
        Some(default) => format!("default {default}"),
        None if input.required => "required".into(),
        None => "optional".into(),
    };
    let allowed = schema.get("enum").map(|e| format!(" one of {e}")).unwrap_or_default();
    vec![
        format!("    {}{shortcut}", input.name),
        kind,
        need,
        format!("{}{allowed}", input.description),
    ]
}

fn task_value(workflow: &Workflow, task: &Task) -> Value {
    let inputs: Map<String, Value> = workflow
        .recursive_inputs(task)
        .into_iter()
        .map(|i| {
            let mut schema = schema::property(i);
            if let Some(map) = schema.as_object_mut() {
                map.insert("required".into(), i.required.into());
                map.insert("input_type".into(), i.kind.as_str().into());
            }
            (i.name.clone(), schema)
        })
        .collect();
    json!({
        "name": task.name,
        "description": task.description,
        "result": task.result.as_str(),
        "returns": task.returns,
        "inputs": inputs,
        "depends": task.depends.iter().map(Dependency::label).collect::<Vec<_>>(),
    })
}

/// The job of a task for inputs and overrides as they are typed.
///
/// # Errors
/// Those of [`Workflow::job_with`]; values that the schema refuses.
pub fn planned(
    decanus: &Decanus,
    workflow: &str,
    task: &str,
    values: &[(String, String)],
    name: Option<String>,
) -> Result<Arc<Job>, Error> {
    let workflow = decanus.workflows.load(workflow)?;
    let (over, values): (Vec<_>, Vec<_>) = values.iter().cloned().partition(|(key, _)| key.contains('#'));
    let mut options = JobOptions {
        name,
        ..JobOptions::default()
    };
    for (key, value) in over {
        let (of, by) = key.split_once('#').unwrap_or_default();
        // A file that is there is meant before a job of that name.
        let file = decanus.project.user_path(&value);
        let path = match file.is_file() {
            true => file,
            false => decanus.jobs.find(&value, &decanus.project.working_dir)?.path,
        };
        options.overrides.set(of, by, Override::Path(path));
    }
    // The same schema and coercion as for a model's call.
    let definition = workflow.tool_definition_with(workflow.task(task)?, &options.overrides);
    let own = workflow.task(task)?;
    let named = by_name(&values, &workflow.recursive_inputs(own));
    let mut inputs = values::collect(&named, &definition, &decanus.project)?;
    // The name is a value too, which the schema may ask for.
    if let Some(name) = &options.name
        && let Some(input) = own.inputs.iter().find(|i| i.is_jobname)
    {
        let value = || Value::String(name.clone());
        inputs.entry(input.name.clone()).or_insert_with(value);
    }
    let prepared = prepare(&Arguments::Object(inputs), &definition).map_err(|e| Error::usage(e.to_string()))?;
    let rules = PathPolicy::of(&decanus.project, Vec::new()).rules(false, &Permissions::default());
    Ok(workflow.job_with(task, &prepared.args, &rules, &options)?)
}

impl args::Run {
    async fn run(self, decanus: &Decanus, cx: &Context) -> Ended {
        let out = cx.out;
        if let Some(name) = &self.executor {
            executor::check_name(name)?;
        }
        let job = planned(decanus, &self.workflow, &self.task, &self.values, self.name.clone())?;
        if self.why {
            return super::job::why(&decanus.jobs.why_job(&job)?, out);
        }
        let jobs = self.within(decanus.jobs.clone());
        let path = jobs.path(&job);
        if self.no_wait {
            return self.start(decanus, &job, &path, out);
        }
        let progress = JobProgress::new(out);
        let options = RunOptions {
            cancel: cx.signals.token.clone(),
            force: self.force,
            timeout: self.timeout,
            executor: self.executor,
            events: Some(progress.sink()),
            allow_recursive: self.allow_recursive,
            ..RunOptions::default()
        };
        let is_above = self.allow_recursive && options.above.contains(&path);
        if self.exec || is_above {
            let done = jobs.exec(job, options).await;
            drop(progress);
            return executed(done.map_err(|e| failure(&e, path))?, out);
        }
        let done = jobs.run(job, options).await;
        drop(progress);
        match done {
            Ok(done) => {
                let value = done.job.value()?;
                if !out.json && print_bytes(&done.job, out)? {
                    // They are no value.
                } else if out.json {
                    out.value(&json!({"status": "done", "job": done.job.path.to_string_lossy(), "result": value}));
                } else {
                    print_result(&value, out);
                }
                Ok(0)
            }
            Err(e) => Err(failure(&e, path)),
        }
    }
}

impl args::Run {
    /// The store, whose jobs share no more than was said.
    fn within(&self, jobs: JobStore) -> JobStore {
        let machine = Capacity::of_machine();
        match (self.jobs, self.memory) {
            (None, None) => jobs,
            (cpus, memory) => jobs.with_capacity(Capacity {
                cpus: cpus.unwrap_or(machine.cpus),
                memory: memory.unwrap_or(machine.memory),
            }),
        }
    }

    /// Leaves the job to a process of its own.
    fn start(&self, decanus: &Decanus, job: &Arc<Job>, path: &Path, out: Out) -> Ended {
        if self.force || decanus.jobs.done(job).is_none() {
            super::detach::detach(decanus, path)?;
        }
        let status = decanus.jobs.read(path.to_owned()).map(|j| j.status().as_str());
        if out.json {
            out.value(&json!({"status": status.unwrap_or("waiting"), "job": path.to_string_lossy()}));
        } else {
            out.line(&path.display().to_string());
        }
        Ok(0)
    }
}

/// Prints a result of which nothing was kept.
fn executed(done: Executed, out: Out) -> Ended {
    match done.bytes {
        Some(_) if out.json || out.is_stdout_terminal() => {
            return Err(Error::usage("bytes of which nothing is kept can only go to a pipe or a file").into());
        }
        Some(bytes) => out.copy(&mut bytes.as_slice()),
        None if out.json => out.value(&json!({"status": "done", "job": null, "result": done.value})),
        None => print_result(&done.value, out),
    }
    Ok(0)
}

/// The values with the names of inputs in the places of their shortcuts.
fn by_name(values: &[(String, String)], inputs: &[&Input]) -> Vec<(String, String)> {
    let name = |key: &String| {
        let is_input = inputs.iter().any(|i| i.name == *key);
        let meant = inputs.iter().find(|i| !is_input && i.shortcut.as_ref() == Some(key));
        meant.map_or_else(|| key.clone(), |i| i.name.clone())
    };
    values.iter().map(|(key, value)| (name(key), value.clone())).collect()
}

/// A result of bytes goes to a pipe or a file as it is. Says whether it did.
pub fn print_bytes(job: &StoredJob, out: Out) -> Result<bool, Error> {
    if job.record.kind != ResultType::Binary || out.is_stdout_terminal() {
        return Ok(false);
    }
    let file = std::fs::File::open(&job.path);
    let mut file = file.map_err(|e| Error::new(ErrorKind::Job, format!("{}: {e}", job.path.display())))?;
    out.copy(&mut file);
    Ok(true)
}

/// A result for people: a text as it is, anything else as JSON.
pub fn print_result(value: &Value, out: Out) {
    match value {
        Value::String(text) if text.ends_with('\n') => out.print(text),
        Value::String(text) => out.line(text),
        other => out.line(&other.to_string()),
    }
}

fn failure(error: &decanus::workflow::JobError, path: PathBuf) -> Failure {
    let path = error.path().cloned().unwrap_or(path);
    let mut shown = Error::of(error as &dyn Diagnostic);
    let mut partial = Map::new();
    partial.insert("status".into(), "error".into());
    partial.insert("job".into(), path.to_string_lossy().into());
    let mut detail = crate::out::error_value(&shown);
    detail["stderr"] = error.stderr().into();
    partial.insert("error".into(), detail);
    shown
        .hints
        .insert(0, format!("`decanus job show {}` has the details", path.display()));
    Failure::with(shown, partial)
}
