//! Many jobs at once: what runs side by side, what is tried again, and what a failure ends. The scripts reach their folder
//! through a variable of their own, so that the logs in it don't count as parts of the scripts.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use decanus_tool::Event;
use decanus_workflow::{Capacity, Job, JobError, RunOptions, Status};
use serde_json::json;

use crate::sandbox::Sandbox;

fn jobs(s: &Sandbox, tasks: &[&str]) -> Vec<Arc<Job>> {
    tasks.iter().map(|task| s.job(task, json!({}))).collect()
}

/// Each wanted job has an outcome of its own; a failure takes only those with it that depend on it.
#[test]
fn what_fails_ends_only_what_depends_on_it() {
    let s = Sandbox::new(
        r#"
tasks:
  base: {sh: 'd=$DECANUS_WORKFLOW_DIR; echo b >> "$d/log"; echo base'}
  broken: {depends: [base], sh: 'd=$DECANUS_WORKFLOW_DIR; echo x >> "$d/log"; echo why >&2; exit 3'}
  above: {depends: [broken], sh: 'd=$DECANUS_WORKFLOW_DIR; echo a >> "$d/log"'}
  top: {depends: [above, fine], sh: 'd=$DECANUS_WORKFLOW_DIR; echo t >> "$d/log"'}
  fine: {depends: [base], sh: 'd=$DECANUS_WORKFLOW_DIR; sleep 0.2; echo f >> "$d/log"; echo fine'}
"#,
    );
    let wanted = jobs(&s, &["top", "fine", "above"]);
    let done = s.store.produce_blocking(&wanted, &RunOptions::default());
    let Err(JobError::Failed { task, message, .. }) = &done[0] else {
        panic!("{done:?}");
    };
    assert_eq!(task, "W/top");
    // The root of it is told, through all that lies between.
    assert!(message.contains("job W/broken failed: exit code 3: why"), "{message}");
    assert_eq!(done[1].as_ref().unwrap().job.value().unwrap(), json!("fine\n"));
    assert!(matches!(&done[2], Err(JobError::Failed { task, .. }) if task == "W/above"));
    let mut ran: Vec<String> = s.read("workflows/W/log").lines().map(str::to_owned).collect();
    ran.sort();
    assert_eq!(ran, ["b", "f", "x"]);
    for task in ["above", "top"] {
        let stored = s.store.read(s.store.path(&s.job(task, json!({})))).unwrap();
        assert_eq!(stored.status(), Status::Error, "{task}");
    }
}

/// A task is tried again as often as it says, and no more.
#[test]
fn a_task_that_fails_is_tried_again_as_often_as_it_says() {
    let s = Sandbox::new(
        r#"
tasks:
  third: {retries: 2, sh: 'd=$DECANUS_WORKFLOW_DIR; echo x >> "$d/third"; test $(wc -l < "$d/third") -ge 3 && echo ok'}
  never: {retries: 1, sh: 'd=$DECANUS_WORKFLOW_DIR; echo x >> "$d/never"; exit 5'}
  once: {sh: 'd=$DECANUS_WORKFLOW_DIR; echo x >> "$d/once"; exit 5'}
"#,
    );
    let warnings = Arc::new(Mutex::new(Vec::new()));
    let heard = warnings.clone();
    let options = RunOptions {
        events: Some(Arc::new(move |event: &Event| {
            if let Event::Warning(text) = event {
                heard.lock().unwrap().push(text.clone());
            }
        })),
        ..RunOptions::default()
    };
    let done = s.store.run_blocking(&s.job("third", json!({})), &options).unwrap();
    assert_eq!(done.job.value().unwrap(), json!("ok\n"));
    assert_eq!(s.count("workflows/W/third"), 3);
    let warned = warnings.lock().unwrap().join("\n");
    assert!(
        warned.contains("trying again (1 of 2)") && warned.contains("(2 of 2)"),
        "{warned}"
    );
    assert!(s.run("never", json!({})).is_err() && s.run("once", json!({})).is_err());
    assert_eq!((s.count("workflows/W/never"), s.count("workflows/W/once")), (2, 1));
}

/// Jobs share the processors and the memory of their store.
#[test]
fn jobs_run_side_by_side_within_what_there_is() {
    // Each writes down how many are at work when it begins.
    let s = Sandbox::new(
        r#"
tasks:
  one:
    inputs: {n: {type: integer}}
    resources: {cpus: 2, memory: 10M}
    sh: 'cd "$DECANUS_WORKFLOW_DIR"; touch "at-$n"; ls | grep -c "^at-" >> log; sleep 0.1; rm "at-$n"'
  all:
    inputs: {list: {type: integer_array}}
    depends: [{task: one, for_each: {list: n}}]
    sh: 'true'
  large: {resources: {cpus: 64}, sh: 'true'}
  greedy: {resources: {memory: 1G}, sh: 'true'}
"#,
    );
    let most = |capacity: Capacity, from: i64| {
        let store = s.store.clone().with_capacity(capacity);
        let list: Vec<i64> = (from..from + 8).collect();
        let job = s.job("all", json!({"list": list}));
        store.run_blocking(&job, &RunOptions::default()).unwrap();
        let log = s.read("workflows/W/log");
        std::fs::remove_file(s.root().join("workflows/W/log")).unwrap();
        assert_eq!(log.lines().count(), 8);
        log.lines().map(|l| l.parse::<usize>().unwrap()).max().unwrap()
    };
    let memory = 1 << 30;
    assert_eq!(most(Capacity { cpus: 2, memory }, 0), 1);
    let four = most(Capacity { cpus: 8, memory }, 100);
    assert!((2..=4).contains(&four), "{four}");
    assert_eq!(
        most(
            Capacity {
                cpus: 8,
                memory: 19 << 20
            },
            200
        ),
        1
    );
    let small = s.store.clone().with_capacity(Capacity {
        cpus: 2,
        memory: 100 << 20,
    });
    for task in ["large", "greedy"] {
        let begun = Instant::now();
        let error = small
            .run_blocking(&s.job(task, json!({})), &RunOptions::default())
            .unwrap_err();
        assert!(begun.elapsed() < Duration::from_secs(2));
        assert!(error.to_string().contains("it needs"), "{error}");
    }
}

/// Neither the depth nor the width of a graph is a matter of the stack or of threads.
#[test]
fn wide_graphs_run_each_job_once_and_are_found_done_at_once() {
    let list: Vec<i64> = (0..300).collect();
    let s = Sandbox::new(
        r#"
tasks:
  root: {sh: 'd=$DECANUS_WORKFLOW_DIR; echo r >> "$d/log"'}
  leaf:
    inputs: {n: {type: integer}}
    depends: [root]
    run: ["true"]
  all:
    inputs: {list: {type: integer_array}}
    depends: [{task: leaf, for_each: {list: n}}]
    run: ["true"]
"#,
    );
    let job = s.job("all", json!({"list": list}));
    let (options, started, reused) = crate::sandbox::counting();
    s.store.run_blocking(&job, &options).unwrap();
    let count = |c: &std::sync::atomic::AtomicUsize| c.load(std::sync::atomic::Ordering::SeqCst);
    assert_eq!((count(&started), count(&reused)), (302, 0));
    assert_eq!(s.count("workflows/W/log"), 1);
    assert!(s.store.run_blocking(&job, &options).unwrap().reused);
    assert_eq!((count(&started), count(&reused)), (302, 1));
}
