//! Several processes, and ones that die.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use decanus_base::process::start_time;
use decanus_tool::Event;
use decanus_workflow::{JobRecord, RunOptions, Status};
use serde_json::json;
use std::sync::{Arc, Mutex};

use crate::sandbox::{Sandbox, map};

const SLOW: &str = r#"
tasks:
  once: {inputs: {log: {}}, sh: 'echo run >> "$log"; sleep 0.5; echo out'}
  long: {inputs: {log: {}, t: {default: "60"}}, sh: 'echo $$ >> "$log"; sleep 61 & echo $! >> "$log.child"; test -e "$log.quick" || sleep 60; echo out'}
"#;

/// Another process that runs a task of the sandbox: this test binary, told to run only [`the_other_process`].
fn other(s: &Sandbox, task: &str) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "process::the_other_process", "--ignored", "--nocapture"])
        .env("TEST_SANDBOX", s.root())
        .env("TEST_TASK", task)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

#[test]
#[ignore = "started by the tests below"]
fn the_other_process() {
    let Some(root) = std::env::var_os("TEST_SANDBOX").map(std::path::PathBuf::from) else {
        return;
    };
    let workflow = Arc::new(decanus_workflow::parse::load(&root.join("workflows/W")).unwrap());
    let inputs = map(json!({"log": root.join("log").display().to_string()}));
    let rules = decanus_workflow::PathRules::trusted(&root);
    let job = workflow
        .job(&std::env::var("TEST_TASK").unwrap(), &inputs, &rules, None)
        .unwrap();
    let store = decanus_workflow::JobStore::new(root.join(".decanus/jobs"));
    store.run_blocking(&job, &RunOptions::default()).unwrap();
}

fn wait_for(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < Duration::from_secs(20), "waited too long for {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn three_processes_run_a_job_once() {
    let s = Sandbox::new(SLOW);
    let mut children: Vec<Child> = (0..3).map(|_| other(&s, "once")).collect();
    for child in &mut children {
        assert!(child.wait().unwrap().success());
    }
    assert_eq!(s.count("log"), 1);
    assert_eq!(
        s.value("once", json!({"log": s.root().join("log").display().to_string()})),
        json!("out\n")
    );
    assert_eq!(s.count("log"), 1);
}

#[test]
fn a_job_whose_owner_was_killed_is_run_again() {
    let s = Sandbox::new(SLOW);
    let log = json!({"log": s.root().join("log").display().to_string()});
    let mut child = other(&s, "long");
    wait_for("the job to start", || s.count("log") == 1 && s.count("log.child") == 1);
    let job = s.job("long", log.clone());
    let path = s.store.path(&job);
    wait_for("the record", || {
        s.store
            .read(path.clone())
            .is_some_and(|j| j.status() == Status::Running)
    });
    // Somebody else who does not want to wait for ever can give up.
    let options = RunOptions {
        timeout: Some(Duration::from_millis(200)),
        ..RunOptions::default()
    };
    let error = s.store.run_blocking(&job, &options).unwrap_err();
    assert!(error.to_string().contains("timed out after 200ms"), "{error}");
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(s.store.read(path.clone()).unwrap().status(), Status::Aborted);
    assert!(!path.exists(), "nothing under the result's name");
    let left: u32 = s.read("log.child").trim().parse().unwrap();
    s.write("log.quick", "");
    let events = Arc::new(Mutex::new(Vec::new()));
    let sink = events.clone();
    let options = RunOptions {
        events: Some(Arc::new(move |e: &Event| sink.lock().unwrap().push(e.clone()))),
        ..RunOptions::default()
    };
    let done = s.store.run_blocking(&job, &options).unwrap();
    assert!(!done.reused && done.job.value().unwrap() == json!("out\n"));
    assert_eq!(s.count("log"), 2);
    assert!(
        events
            .lock()
            .unwrap()
            .iter()
            .any(|e| matches!(e, Event::Warning(w) if w.contains("is gone; running it again")))
    );
    assert_eq!(start_time(left), None, "what the dead run had started goes on");
}

/// What is on disk after a kill: a lock file that names a dead process, half an output under another name, a record
/// that says running, no result.
#[test]
fn what_a_dead_process_left_is_in_nobodys_way() {
    let s = Sandbox::new("tasks:\n  a: {sh: echo whole}\n");
    let job = s.job("a", json!({}));
    let done = s.store.run_blocking(&job, &RunOptions::default()).unwrap();
    let path = done.job.path.clone();
    let record = JobRecord {
        status: Status::Running,
        pid: 999_999,
        pid_started: Some(17),
        pgid: Some(999_999),
        pgid_started: Some(17),
        ended: None,
        ..done.job.record.clone()
    };
    std::fs::write(format!("{}.info", path.display()), serde_json::to_vec(&record).unwrap()).unwrap();
    std::fs::remove_file(&path).unwrap();
    let lock = path.with_file_name(format!(".{}.lock", path.file_name().unwrap().to_str().unwrap()));
    std::fs::write(&lock, "process 999999 on HERE").unwrap();
    std::fs::write(path.with_file_name(".tmp-half"), "half").unwrap();
    std::fs::write(done.job.files_dir().join(".job/result"), "half").unwrap();
    assert_eq!(s.store.read(path.clone()).unwrap().status(), Status::Aborted);
    let done = s.store.run_blocking(&job, &RunOptions::default()).unwrap();
    assert_eq!(done.job.value().unwrap(), json!("whole\n"));
}
