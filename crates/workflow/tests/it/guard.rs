//! Jobs that would wait for themselves, and tasks of which nothing is kept.

use std::path::Path;
use std::sync::{Arc, Barrier, OnceLock};
use std::time::{Duration, Instant};

use decanus_base::{Diagnostic, ErrorKind};
use decanus_workflow::{
    Capacity, Job, JobError, JobStack, JobStore, PathRules, RunOptions, TaskBuilder, TaskError, Workflow,
};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;

use crate::sandbox::{Sandbox, map};

#[derive(Deserialize, JsonSchema)]
struct Nothing {}

const FAMILY: &str = r#"
tasks:
  base: {sh: 'cd "$DECANUS_WORKFLOW_DIR"; echo run >> log; printf "%s" "$DECANUS_JOB_STACK"'}
  top: {depends: [base], sh: 'cat "$DECANUS_DEP_base"; printf "\n%s" "$DECANUS_JOB_STACK"'}
  other: {sh: echo other}
  made: {result: file, sh: 'echo x > here.txt; echo here.txt'}
  raw: {result: binary, sh: 'printf "\377\000"'}
  bad: {sh: 'echo no good >&2; exit 3'}
"#;

fn above(paths: &[&Path]) -> RunOptions {
    RunOptions {
        above: paths
            .iter()
            .fold(JobStack::empty(), |stack, path| stack.with(&[], path)),
        ..RunOptions::default()
    }
}

#[test]
fn a_process_knows_the_jobs_above_it() {
    let s = Sandbox::new(FAMILY);
    let top = s.store.path(&s.job("top", json!({})));
    let base = s.store.path(&s.job("base", json!({})));
    let done = s
        .store
        .run_blocking(&s.job("top", json!({})), &above(&[Path::new("/x/A/b/c.txt")]));
    let text = done.unwrap().job.value().unwrap();
    assert_eq!(
        text,
        json!(format!(
            "/x/A/b/c.txt\n{top}\t{base}\n/x/A/b/c.txt\n{top}",
            top = top.display(),
            base = base.display()
        ))
    );
}

#[test]
fn what_waits_above_is_refused_at_once() {
    let s = Sandbox::new(FAMILY);
    let (top, base) = (s.job("top", json!({})), s.job("base", json!({})));
    let within_base = RunOptions {
        above: JobStack::empty().with(&[&s.store.path(&top)], &s.store.path(&base)),
        ..RunOptions::default()
    };
    for (job, chain) in [(&top, "W/top → W/base → W/top"), (&base, "W/base → W/base")] {
        let error = s.store.run_blocking(job, &within_base).unwrap_err();
        assert_eq!(error.to_string(), format!("Potential recursive call: {chain}"));
        assert_eq!(error.kind(), ErrorKind::Job);
    }
    // One that needs what runs above, too.
    let only_base = above(&[&s.store.path(&base)]);
    let error = s.store.run_blocking(&top, &only_base).unwrap_err();
    assert_eq!(error.to_string(), "Potential recursive call: W/base → W/top → W/base");
    assert!(s.stored().is_empty(), "{:?}", s.stored());
    // Others are not, nor is a result that is there.
    s.store.run_blocking(&s.job("other", json!({})), &within_base).unwrap();
    s.value("top", json!({}));
    assert!(s.store.run_blocking(&top, &within_base).unwrap().reused);
}

#[test]
fn jobs_within_jobs_have_an_end() {
    let s = Sandbox::new(FAMILY);
    let paths: Vec<String> = (0..20).map(|i| format!("/j/W/t/{i}.txt")).collect();
    let paths: Vec<&Path> = paths.iter().map(Path::new).collect();
    let job = s.job("other", json!({}));
    let error = s.store.run_blocking(&job, &above(&paths)).unwrap_err();
    assert!(error.to_string().contains("within 20 others"), "{error}");
    assert!(s.store.exec_blocking(&job, &above(&paths)).is_err());
    s.store.run_blocking(&job, &above(&paths[1..])).unwrap();
}

#[test]
fn of_what_is_executed_nothing_is_kept_but_its_dependencies() {
    let s = Sandbox::new(FAMILY);
    let top = s.job("top", json!({}));
    let run = |task: &str| s.store.exec_blocking(&s.job(task, json!({})), &RunOptions::default());
    let first = run("top").unwrap().value;
    assert!(first.as_str().unwrap().contains("/W/base/"), "{first}");
    assert_eq!(run("top").unwrap().value, first);
    assert_eq!(s.count("workflows/W/log"), 1, "the dependency is stored");
    assert_eq!(s.stored_tasks(), ["base"]);
    assert!(!s.store.path(&top).exists());
    assert_eq!(run("raw").unwrap().bytes.unwrap(), [255, 0]);
    let error = run("made").unwrap_err().to_string();
    assert!(error.contains("nothing is kept"), "{error}");
    let error = run("bad").unwrap_err();
    assert_eq!(error.to_string(), "job W/bad failed: exit code 3: no good");
    let aside: Vec<_> = std::fs::read_dir(s.store.dir().join(".aside")).unwrap().collect();
    assert!(aside.is_empty(), "{aside:?}");
    assert_eq!(s.stored().len(), 3, "{:?}", s.stored());
    // Within itself only when that is allowed.
    let mut within = above(&[&s.store.path(&top)]);
    assert!(matches!(
        s.store.exec_blocking(&top, &within),
        Err(JobError::Recursive { .. })
    ));
    within.allow_recursive = true;
    s.store.exec_blocking(&top, &within).unwrap();
}

/// A workflow of two functions that each ask for the other one, when both have begun.
struct Pair {
    workflow: OnceLock<Arc<Workflow>>,
    store: JobStore,
    both: Barrier,
}

impl Pair {
    fn job(&self, task: &str) -> Arc<Job> {
        let workflow = self.workflow.get().unwrap();
        workflow
            .job(task, &map(json!({})), &PathRules::trusted("/"), None)
            .unwrap()
    }
}

fn asks(task: &str, other: &'static str, pair: &Arc<Pair>) -> TaskBuilder {
    let pair = pair.clone();
    TaskBuilder::new(task, move |_: Nothing, _| {
        pair.both.wait();
        let options = RunOptions {
            timeout: Some(Duration::from_secs(20)),
            ..RunOptions::default()
        };
        let done = pair.store.run_blocking(&pair.job(other), &options);
        done.map(|_| "done").map_err(|e| TaskError::failed(e.to_string()))
    })
}

#[test]
fn two_that_wait_for_each_other_are_told() {
    let dir = tempfile::tempdir().unwrap();
    let store = JobStore::new(dir.path().canonicalize().unwrap()).with_capacity(Capacity {
        cpus: 8,
        memory: u64::MAX,
    });
    let pair = Arc::new(Pair {
        workflow: OnceLock::new(),
        store,
        both: Barrier::new(2),
    });
    let workflow = Workflow::builder("W")
        .task(asks("a", "b", &pair))
        .task(asks("b", "a", &pair))
        .build()
        .unwrap();
    pair.workflow.set(Arc::new(workflow)).unwrap();
    let begun = Instant::now();
    let results: Vec<Result<_, JobError>> = std::thread::scope(|scope| {
        let run = |task: &'static str| {
            let pair = pair.clone();
            scope.spawn(move || pair.store.run_blocking(&pair.job(task), &RunOptions::default()))
        };
        let threads = [run("a"), run("b")];
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    });
    assert!(begun.elapsed() < Duration::from_secs(10), "{results:?}");
    assert!(
        results.iter().any(|r| r
            .as_ref()
            .is_err_and(|e| e.to_string().contains("Potential recursive call: W/"))),
        "{results:?}"
    );
    // What told of the wait is gone.
    let own = |task: &str| std::fs::read_dir(format!("{}.files/.job", pair.store.path(&pair.job(task)).display()));
    for task in ["a", "b"] {
        let left = own(task)
            .unwrap()
            .flatten()
            .filter(|e| e.file_name().to_string_lossy().starts_with("waits-"));
        assert_eq!(left.count(), 0);
    }
}
