//! Tasks that are declared in Rust.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use decanus_tool::{Args, Run, ToolContext, ToolSource};
use decanus_workflow::{
    BuildError, Input, InputType, JobError, JobStore, PathPolicy, PathRules, ResultType, RunOptions, TaskBuilder,
    TaskError, Workflow, WorkflowBuilder, WorkflowSource, Workflows,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::sandbox::map;

#[derive(Deserialize, JsonSchema)]
struct Nothing {}

#[derive(Deserialize, JsonSchema, Serialize)]
#[serde(rename_all = "lowercase")]
enum Build {
    Hg19,
    Hg38,
}

fn hg38() -> Build {
    Build::Hg38
}

#[derive(Deserialize, JsonSchema)]
#[allow(dead_code)]
struct Everything {
    /// What is counted.
    text: String,
    count: Option<u8>,
    #[serde(default)]
    ratio: f64,
    #[serde(default = "hg38")]
    build: Build,
    tags: Vec<String>,
    numbers: Vec<i64>,
    flag: Option<bool>,
    extra: Option<BTreeMap<String, Value>>,
    data: PathBuf,
}

struct Bench {
    _dir: tempfile::TempDir,
    store: JobStore,
    workflow: Arc<Workflow>,
}

fn bench(builder: WorkflowBuilder) -> Bench {
    let dir = tempfile::tempdir().unwrap();
    Bench {
        store: JobStore::new(dir.path().canonicalize().unwrap()),
        _dir: dir,
        workflow: Arc::new(builder.build().unwrap()),
    }
}

impl Bench {
    fn run(&self, task: &str, inputs: Value) -> Result<Value, JobError> {
        self.run_with(task, inputs, &RunOptions::default())
    }

    fn run_with(&self, task: &str, inputs: Value, options: &RunOptions) -> Result<Value, JobError> {
        let job = self
            .workflow
            .job(task, &map(inputs), &PathRules::trusted("/"), None)
            .unwrap();
        self.store.run_blocking(&job, options)?.job.value()
    }
}

#[test]
fn inputs_come_from_the_type() {
    let task = TaskBuilder::new("t", |_: Everything, _| Ok(1)).input_type("data", InputType::File);
    let workflow = Workflow::builder("W").task(task).build().unwrap();
    let task = workflow.task("t").unwrap();
    for (name, kind, required, default) in [
        ("text", InputType::String, true, json!(null)),
        ("count", InputType::Integer, false, json!(null)),
        ("ratio", InputType::Float, false, json!(0.0)),
        ("build", InputType::Select, false, json!("hg38")),
        ("tags", InputType::Array, true, json!(null)),
        ("numbers", InputType::IntegerArray, true, json!(null)),
        ("flag", InputType::Boolean, false, json!(null)),
        ("extra", InputType::Json, false, json!(null)),
        ("data", InputType::File, true, json!(null)),
    ] {
        let input: &Input = task.input(name).unwrap();
        assert_eq!(
            (input.kind, input.required, &input.default),
            (kind, required, &default),
            "{name}"
        );
    }
    assert_eq!(task.input("text").unwrap().description, "What is counted.");
    assert_eq!(task.input("build").unwrap().options, [json!("hg19"), json!("hg38")]);
    assert_eq!(task.input("count").unwrap().maximum, Some(255.into()));
    assert_eq!(task.result, ResultType::Integer);
}

#[test]
fn a_function_runs_once_and_its_result_is_a_job() {
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = calls.clone();
    let make = |version: &str| {
        let counted = counted.clone();
        let base = TaskBuilder::new("base", move |_: Nothing, cx| {
            counted.fetch_add(1, Ordering::SeqCst);
            std::fs::write(cx.files().join("artefact"), "x")?;
            cx.log("half way");
            Ok(vec![1.5, 2.0])
        });
        let sum = TaskBuilder::asynchronous("sum", |_: Nothing, cx| async move {
            tokio::time::sleep(Duration::from_millis(1)).await;
            Ok(cx.dependency::<Vec<f64>>("base")?.iter().sum::<f64>())
        });
        Workflow::builder("W")
            .task(sum.depends("base"))
            .task(base.version(version))
    };
    let b = bench(make("1"));
    assert_eq!(b.run("sum", json!({})).unwrap(), json!(3.5));
    assert_eq!(b.run("sum", json!({})).unwrap(), json!(3.5));
    assert_eq!(calls.load(Ordering::SeqCst), 1);
    let job = b.store.list(Some("W"), Some("base")).unwrap().remove(0);
    assert_eq!(std::fs::read_to_string(&job.path).unwrap(), "1.5\n2.0");
    assert_eq!(
        std::fs::read_to_string(job.files_dir().join(".job/stderr")).unwrap(),
        "half way\n"
    );
    assert_eq!(job.files(), [job.files_dir().join("artefact")]);
    // Another version is other jobs, also of what depends on it.
    let second = Bench {
        workflow: Arc::new(make("2").build().unwrap()),
        ..b
    };
    assert_eq!(second.run("sum", json!({})).unwrap(), json!(3.5));
    assert_eq!(calls.load(Ordering::SeqCst), 2);
    assert_eq!(second.store.list(Some("W"), Some("sum")).unwrap().len(), 2);
}

#[test]
fn failures_panics_and_limits() {
    let slow = TaskBuilder::new("slow", |_: Nothing, cx| {
        while !cx.is_over() {
            std::thread::sleep(Duration::from_millis(5));
        }
        Err::<(), _>(TaskError::failed("stopped"))
    });
    let sleeps = TaskBuilder::asynchronous("sleeps", |_: Nothing, _| async {
        tokio::time::sleep(Duration::from_secs(600)).await;
        Ok(())
    });
    let builder = Workflow::builder("W")
        .task(TaskBuilder::new("fails", |_: Nothing, cx| {
            cx.log("said before");
            Err::<(), _>(TaskError::failed("no luck"))
        }))
        .task(TaskBuilder::new("panics", |_: Nothing, _| -> Result<(), TaskError> {
            panic!("a bug {}", 1)
        }))
        .task(TaskBuilder::new("wrong", |_: Nothing, _| Ok("many")).result(ResultType::Integer))
        .task(TaskBuilder::new("alone", |_: Nothing, cx| {
            cx.dependency::<i64>("wrong")
        }))
        .task(slow.timeout(Duration::from_millis(50)))
        .task(sleeps.timeout(Duration::from_millis(50)));
    let b = bench(builder);
    for (task, says) in [
        ("fails", "no luck: said before"),
        ("panics", "it panicked: a bug 1"),
        ("wrong", "it returned \"many\", but the task's result is integer"),
        ("alone", "dependency `wrong`: this task does not depend on it"),
        ("slow", "timed out after 50ms"),
        ("sleeps", "timed out after 50ms"),
    ] {
        let error = b.run(task, json!({})).unwrap_err();
        assert!(error.to_string().contains(says), "{task}: {error}");
    }
    let jobs = b.store.list(Some("W"), None).unwrap();
    assert!(jobs.iter().all(|j| j.status().as_str() == "error" && !j.path.exists()));
    // Cancelled from outside.
    let options = RunOptions::default();
    let cancel = options.cancel.clone();
    let stop = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(30));
        cancel.cancel();
    });
    let long = TaskBuilder::asynchronous("long", |_: Nothing, _| async {
        tokio::time::sleep(Duration::from_secs(600)).await;
        Ok(())
    });
    let error = bench(Workflow::builder("W").task(long))
        .run_with("long", json!({}), &options)
        .unwrap_err();
    assert!(matches!(error, JobError::Cancelled { .. }), "{error}");
    stop.join().unwrap();
}

#[test]
fn results_by_their_rust_type() {
    let file = TaskBuilder::new("file", |_: Nothing, cx| {
        std::fs::write(cx.files().join("out"), "x")?;
        Ok("out")
    });
    let bytes = TaskBuilder::new("bytes", |_: Nothing, cx| {
        Ok(std::fs::write(cx.result_file(), b"\xff\n")?)
    });
    let builder = Workflow::builder("W")
        .task(TaskBuilder::new("nothing", |_: Nothing, _| Ok(())))
        .task(TaskBuilder::new("text", |_: Nothing, _| Ok("a\n".to_owned())))
        .task(TaskBuilder::new("odd", |_: Nothing, _| {
            Ok(vec!["a\nb".to_owned(), String::new()])
        }))
        .task(TaskBuilder::new("list", |_: Nothing, _| {
            Ok(vec!["a".to_owned(), "b".to_owned()])
        }))
        .task(TaskBuilder::new("tree", |_: Nothing, _| Ok(json!({"a": [null]}))))
        .task(file.result(ResultType::File))
        .task(bytes.result(ResultType::Binary));
    let b = bench(builder);
    for (task, value) in [
        ("nothing", json!("")),
        ("text", json!("a\n")),
        ("odd", json!(["a\nb", ""])),
        ("list", json!(["a", "b"])),
        ("tree", json!({"a": [null]})),
    ] {
        assert_eq!(b.run(task, json!({})).unwrap(), value, "{task}");
    }
    let path = b.run("file", json!({})).unwrap();
    assert_eq!(std::fs::read_to_string(path.as_str().unwrap()).unwrap(), "x");
    let path = b.run("bytes", json!({})).unwrap();
    assert_eq!(std::fs::read(path.as_str().unwrap()).unwrap(), b"\xff\n");
}

#[test]
fn declarations_that_are_none() {
    let task = |name: &str| TaskBuilder::new(name, |_: Nothing, _| Ok(()));
    let says = |builder: WorkflowBuilder| builder.build().unwrap_err().to_string();
    let w = || Workflow::builder("W");
    assert_eq!(w().build(), Err(BuildError::Empty));
    assert_eq!(w().task(task("a/b")).build(), Err(BuildError::Name("a/b".into())));
    assert_eq!(
        w().task(task("a")).task(task("a")).build(),
        Err(BuildError::Twice("a".into()))
    );
    assert!(says(w().task(task("a").depends("bse")).task(task("base"))).contains("did you mean base?"));
    let circle = says(w().task(task("a").depends("b")).task(task("b").depends("a")));
    assert!(circle.contains("a → b → a"), "{circle}");
    assert!(says(w().task(task("a").input_type("x", InputType::File))).contains("there is no input `x`"));
    let fixed = says(
        w().task(task("a").depends_with("b", map(json!({"n": 1}))))
            .task(task("b")),
    );
    assert!(fixed.contains("there is no input `n`"), "{fixed}");
}

#[tokio::test]
async fn a_declared_workflow_is_among_the_others() {
    let workflow = Workflow::builder("Own")
        .task(TaskBuilder::new("t", |_: Nothing, _| Ok(1)))
        .build()
        .unwrap();
    let workflows = Workflows::within(Vec::new());
    let dir = tempfile::tempdir().unwrap();
    let policy = PathPolicy {
        working_dir: dir.path().to_owned(),
        root: dir.path().to_owned(),
        allowed: Vec::new(),
        closed: Vec::new(),
    };
    let source = WorkflowSource::new(workflows.clone(), JobStore::new(dir.path().join("jobs")), policy);
    assert!(source.resolve("Own").await.unwrap().is_none());
    workflows.add(workflow);
    // It is a source of tools like any other.
    let tools = source.resolve("Own/t").await.unwrap().unwrap();
    let run = Run::builder("/nowhere").build();
    let output = tools[0]
        .1
        .call(Args::new(), &ToolContext::new("c", &run))
        .await
        .unwrap();
    assert_eq!(output.value, json!(1));
    assert!(output.job.unwrap().path.starts_with(dir.path().join("jobs/Own/t")));
    assert!(workflows.has("Own"));
    assert_eq!(workflows.list().len(), 1);
    assert_eq!(workflows.load("Own").unwrap().tasks.len(), 1);
    assert!(workflows.load("Other").is_err());
}
