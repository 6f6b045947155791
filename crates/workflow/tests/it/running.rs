//! Running jobs: what their processes get, what becomes of failures, and what is run again.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use decanus_base::{Diagnostic, ErrorKind};
use decanus_workflow::{FindError, JobError, RunOptions, Status};
use serde_json::{Value, json};

use crate::sandbox::{Sandbox, counting};

#[test]
fn a_process_gets_its_inputs_three_ways() {
    let s = Sandbox::new(
        r#"
tasks:
  base: {sh: printf 5, result: integer}
  stdin: {depends: [base], inputs: {n: {type: integer, default: 7}, tags: {type: array}}, result: json, run: [cat]}
  file: {inputs: {n: {type: integer, default: 7}}, result: json, sh: cat "$DECANUS_INPUTS"}
  env: {inputs: {n: {type: integer, default: 7}, none: {}, yes: {type: boolean, default: true}}, sh: 'printf "%s|%s|%s" "$n" "${none-unset}" "$yes"'}
  argv:
    depends: [base]
    inputs: {a: {}, b: {}, tags: {type: array}, o: {type: json}}
    run: [printf, "[%s]", "{a}", "--b={b}", "{tags...}", "{base.path}", "{workflow_dir}", "{o}", "{{a}}"]
  result: {sh: 'echo log; echo made > "$DECANUS_RESULT"; echo kept > kept.txt'}
  where: {sh: pwd}
"#,
    );
    let job = s.job("stdin", json!({"tags": ["x y", "z"]}));
    let done = s.store.run_blocking(&job, &RunOptions::default()).unwrap();
    let given = done.job.value().unwrap();
    let base = s.store.path(&job.dependencies[0]);
    assert_eq!(
        given,
        json!({"workflow": "W", "task": "stdin", "job": done.job.path, "files": done.job.files_dir(),
            "workflow_dir": s.root().join("workflows/W"), "inputs": {"n": 7, "tags": ["x y", "z"]},
            "dependencies": {"base": {"path": base, "value": 5}}})
    );
    assert_eq!(s.value("file", json!({}))["inputs"], json!({"n": 7}));
    assert_eq!(s.value("env", json!({})), json!("7||true"));
    let argv = s.value("argv", json!({"a": "1 2", "tags": ["x y", "$HOME"], "o": {"k": 1}}));
    let dir = s.root().join("workflows/W").display().to_string();
    assert_eq!(
        argv,
        json!(format!(
            "[1 2][--b=][x y][$HOME][{}][{dir}][{{\"k\":1}}][{{a}}]",
            base.display()
        ))
    );
    let done = s.run("result", json!({})).unwrap();
    assert_eq!(done.job.value().unwrap(), json!("made\n"));
    assert_eq!(done.job.files(), [done.job.files_dir().join("kept.txt")]);
    assert_eq!(
        s.value("where", json!({})).as_str().unwrap().trim(),
        s.run("where", json!({})).unwrap().job.files_dir().to_str().unwrap()
    );
}

#[test]
fn the_record_says_what_happened() {
    let s = Sandbox::new(
        "tasks:\n  base: {sh: printf 5}\n  top: {depends: [base], inputs: {n: {default: x}}, sh: echo x}\n",
    );
    let done = s.run("top", json!({})).unwrap();
    let info: Value =
        serde_json::from_str(&std::fs::read_to_string(format!("{}.info", done.job.path.display())).unwrap()).unwrap();
    for (name, value) in [
        ("status", json!("done")),
        ("workflow", json!("W")),
        ("task", json!("top")),
        ("name", json!("Default")),
        ("inputs", json!({"n": "x"})),
        ("pid", json!(std::process::id())),
        ("executor", json!("local")),
        ("scheduler_id", json!(null)),
        ("exit_code", json!(0)),
        ("error", json!(null)),
    ] {
        assert_eq!(info[name], value, "{name}");
    }
    for name in ["created", "started", "ended"] {
        assert!(
            info[name].as_str().unwrap().parse::<jiff::Timestamp>().is_ok(),
            "{name}"
        );
    }
    for name in ["digest", "pid_started", "pgid", "host", "versions"] {
        assert!(!info[name].is_null(), "{name}");
    }
    let shown = done.job.show();
    let keys: Vec<&String> = shown.as_object().unwrap().keys().collect();
    assert_eq!(
        keys,
        [
            "path",
            "workflow",
            "task",
            "name",
            "status",
            "inputs",
            "dependencies",
            "started",
            "ended",
            "seconds",
            "size",
            "executor",
            "host",
            "exit_code",
            "logs",
            "files"
        ]
    );
    assert_eq!(shown["dependencies"], json!([s.store.path(&s.job("base", json!({})))]));
    assert_eq!(s.store.list(None, None).unwrap().len(), 2);
}

#[test]
fn what_a_caller_gives_stays_data() {
    let s = Sandbox::new(
        "tasks:\n  sh: {inputs: {x: {}}, sh: 'printf %s \"$x\"'}\n  run: {inputs: {x: {}}, run: [printf, '%s', '{x}']}\n  \
         option: {inputs: {x: {}, list: {type: array}}, run: [cat, '{x}', '{list...}']}\n  \
         inside: {inputs: {x: {}}, run: [printf, '%s', '--x={x}']}\n",
    );
    s.write("precious", "x");
    let precious = s.root().join("precious").display().to_string();
    for evil in [
        format!("; rm -rf {precious}"),
        format!("$(rm {precious})"),
        format!("`rm {precious}`"),
        "\"; exit 1; \"".into(),
        "a\nb".into(),
        "'".into(),
    ] {
        assert_eq!(s.value("sh", json!({"x": evil})), json!(evil));
        assert_eq!(s.value("run", json!({"x": evil})), json!(evil));
    }
    assert_eq!(s.read("precious"), "x");
    for inputs in [
        json!({"x": "-n"}),
        json!({"x": "--help"}),
        json!({"x": "a", "list": ["b", "-c"]}),
    ] {
        let error = s.try_job("option", inputs).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Usage);
        assert!(error.to_string().contains("would be taken for an option"), "{error}");
    }
    assert_eq!(s.value("inside", json!({"x": "-n"})), json!("--x=-n"));
}

#[test]
fn failures_say_why_and_are_tried_again() {
    let s = Sandbox::new(
        r#"
tasks:
  fails: {inputs: {log: {}}, sh: 'echo run >> "$log"; echo partial; echo "no luck" >&2; exit 3'}
  above: {depends: [fails], sh: cat}
  killed: {sh: kill -9 $$}
  missing: {run: [no-such-program-anywhere]}
  wrong: {sh: echo twelve, result: integer}
  notjson: {sh: 'echo "{"', result: json}
  folder: {sh: 'mkdir "$DECANUS_RESULT"'}
  link: {sh: 'ln -s /etc/passwd "$DECANUS_RESULT"'}
  loud: {sh: 'for i in $(seq 5000); do echo "line $i" >&2; done; exit 1'}
"#,
    );
    let log = s.root().join("log").display().to_string();
    let error = s.run("fails", json!({"log": log})).unwrap_err();
    assert_eq!(error.to_string(), "job W/fails failed: exit code 3: no luck");
    assert_eq!((error.kind(), error.stderr()), (ErrorKind::Job, "no luck"));
    let path = error.path().unwrap();
    assert!(!path.exists(), "no result under its name");
    let stored = s.store.find(path.to_str().unwrap(), &s.root()).unwrap();
    assert_eq!((stored.status(), stored.record.exit_code), (Status::Error, Some(3)));
    assert_eq!(stored.record.error.as_deref(), Some("exit code 3: no luck"));
    assert!(stored.value().unwrap_err().to_string().contains("no luck"));
    s.run("fails", json!({"log": log})).unwrap_err();
    assert_eq!(s.count("log"), 2);
    let error = s.run("above", json!({"log": log})).unwrap_err().to_string();
    assert!(
        error.starts_with("job W/above failed: it depends on another: job W/fails failed: exit code 3"),
        "{error}"
    );
    for (task, says) in [
        ("killed", "ended by signal 9"),
        ("missing", "the program `no-such-program-anywhere` was not found"),
        ("wrong", "its result is not an integer: `twelve`"),
        ("notjson", "its result is not JSON"),
        ("folder", "its result is not a plain file"),
        ("link", "its result is not a plain file"),
    ] {
        let error = s.run(task, json!({})).unwrap_err();
        assert!(error.to_string().contains(says), "{error}");
        assert!(!error.path().unwrap().exists());
    }
    let stderr = s.run("loud", json!({})).unwrap_err().stderr().to_owned();
    assert!(
        stderr.lines().count() == 20 && stderr.ends_with("line 5000"),
        "{stderr}"
    );
}

#[test]
fn a_task_that_hangs_is_ended() {
    let s = Sandbox::new(
        "tasks:\n  hangs: {timeout: 300ms, sh: 'trap \"\" INT; sleep 61 & wait'}\n  waits: {sh: sleep 62}\n",
    );
    let start = Instant::now();
    let error = s.run("hangs", json!({})).unwrap_err();
    assert_eq!(error.to_string(), "job W/hangs timed out after 300ms");
    assert_eq!(error.kind(), ErrorKind::Job);
    let options = RunOptions {
        timeout: Some(Duration::from_millis(200)),
        ..RunOptions::default()
    };
    let error = s.store.run_blocking(&s.job("waits", json!({})), &options).unwrap_err();
    assert!(error.to_string().contains("timed out after 200ms"), "{error}");
    assert!(start.elapsed() < Duration::from_secs(20));
    assert!(
        s.store
            .list(None, None)
            .unwrap()
            .iter()
            .all(|j| j.status() == Status::Error)
    );
}

#[test]
fn a_cancelled_job_is_aborted_and_can_be_run_again() {
    let s = Sandbox::new(
        "tasks:\n  dep: {inputs: {t: {default: '60'}}, sh: sleep \"$t\"}\n  top: {depends: [dep], sh: echo x}\n",
    );
    let options = RunOptions::default();
    let cancel = options.cancel.clone();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let running = || {
                s.store
                    .list(None, None)
                    .unwrap()
                    .iter()
                    .any(|j| j.status() == Status::Running)
            };
            while !running() {
                std::thread::sleep(Duration::from_millis(10));
            }
            cancel.cancel();
        });
        let error = s.store.run_blocking(&s.job("top", json!({})), &options).unwrap_err();
        assert!(matches!(error, JobError::Cancelled { .. }));
        assert_eq!(error.kind(), ErrorKind::Interrupted);
    });
    let jobs = s.store.list(None, None).unwrap();
    assert_eq!(
        jobs.iter().map(|j| j.status()).collect::<Vec<_>>(),
        [Status::Aborted; 2]
    );
}

#[test]
fn ten_megabytes_go_to_the_result() {
    let s =
        Sandbox::new("tasks:\n  big: {sh: 'yes 0123456789abcde | head -c 10485760; yes e | head -c 10485760 >&2'}\n");
    let done = s.run("big", json!({})).unwrap();
    assert_eq!(std::fs::metadata(&done.job.path).unwrap().len(), 10_485_760);
    assert_eq!(done.job.value().unwrap().as_str().unwrap().len(), 10_485_760);
}

#[test]
fn a_jobs_folder_that_cannot_be_written_is_said() {
    let s = Sandbox::new("tasks:\n  a: {sh: echo x}\n");
    // A file in the way stops root too.
    s.write(".decanus", "in the way");
    let error = s.run("a", json!({})).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Internal);
    assert!(
        error.to_string().contains("the job can't be stored") && error.to_string().contains(".decanus"),
        "{error}"
    );
}

#[test]
fn diamonds_run_once_and_side_by_side() {
    let s = Sandbox::new(
        "tasks:\n  d: {inputs: {log: {}}, sh: 'echo d >> \"$log\"; sleep 0.2'}\n  b: {depends: [d], sh: sleep 0.1}\n  \
         c: {depends: [d], sh: sleep 0.1}\n  a: {depends: [b, c, d], sh: echo a}\n",
    );
    let log = s.root().join("log").display().to_string();
    let (options, started, _) = counting();
    s.store
        .run_blocking(&s.job("a", json!({"log": log})), &options)
        .unwrap();
    assert_eq!((s.count("log"), started.load(Ordering::SeqCst)), (1, 4));
}

#[test]
fn many_threads_run_a_job_once() {
    let s = Arc::new(Sandbox::new(
        "tasks:\n  a: {inputs: {log: {}}, sh: 'echo run >> \"$log\"; sleep 0.3; echo out'}\n  f: {inputs: {log: {}}, sh: 'echo run >> \"$log\"; sleep 1.5; exit 1'}\n",
    ));
    let log = |name: &str| s.root().join(name).display().to_string();
    std::thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| assert_eq!(s.value("a", json!({"log": log("good")})), json!("out\n")));
            scope.spawn(|| assert!(s.run("f", json!({"log": log("bad")})).is_err()));
        }
    });
    assert_eq!(s.count("good"), 1);
    assert_eq!(s.count("bad"), 1, "those who waited take the failure as theirs");
}

#[test]
fn what_is_gone_torn_or_out_of_date_is_run_again() {
    let s = Sandbox::new(
        "tasks:\n  dep: {inputs: {log: {}}, sh: 'echo dep >> \"$log\"'}\n  top: {depends: [dep], inputs: {log: {}}, sh: 'echo top >> \"$log\"'}\n",
    );
    let log = json!({"log": s.root().join("log").display().to_string()});
    let runs = |expected: usize| {
        s.run("top", log.clone()).unwrap();
        assert_eq!(s.count("log"), expected, "{}", s.read("log"));
        assert!(s.run("top", log.clone()).unwrap().reused);
    };
    let top = s.store.path(&s.job("top", log.clone()));
    let dep = s.store.path(&s.job("dep", log.clone()));
    let info = |path: &std::path::Path| format!("{}.info", path.display());
    runs(2);
    std::fs::remove_file(&top).unwrap();
    assert_eq!(s.store.read(top.clone()).unwrap().status(), Status::Error);
    runs(3);
    std::fs::write(info(&top), "{\"status\": \"do").unwrap();
    assert!(
        s.store
            .list(None, None)
            .unwrap()
            .iter()
            .any(|j| j.error().is_some_and(|e| e.contains("can't be read")))
    );
    runs(4);
    // A dependency that was run again later.
    s.store
        .run_blocking(
            &s.job("dep", log.clone()),
            &RunOptions {
                force: true,
                ..RunOptions::default()
            },
        )
        .unwrap();
    assert_eq!(s.count("log"), 5);
    runs(6);
    // One whose result is missing, although its record is there.
    std::fs::remove_file(&dep).unwrap();
    runs(8);
    // One that was cleaned away altogether changes nothing.
    std::fs::remove_file(&dep).unwrap();
    std::fs::remove_file(info(&dep)).unwrap();
    runs(8);
}

#[test]
fn force_runs_again() {
    let s = Sandbox::new("tasks:\n  a: {inputs: {log: {}}, sh: 'echo run >> \"$log\"'}\n");
    let job = s.job("a", json!({"log": s.root().join("log").display().to_string()}));
    for expected in 1..=3 {
        let options = RunOptions {
            force: true,
            ..RunOptions::default()
        };
        assert!(!s.store.run_blocking(&job, &options).unwrap().reused);
        assert_eq!(s.count("log"), expected);
    }
}

#[test]
fn jobs_are_found_by_path_name_and_digest() {
    let s = Sandbox::new("tasks:\n  a: {inputs: {n: {}}, sh: 'echo \"$n\"'}\n");
    let first = s.run("a", json!({"n": "1"})).unwrap().job;
    let second = s.run("a", json!({"n": "2"})).unwrap().job;
    let find = |typed: &str| s.store.find(typed, &s.root());
    let path = first.path.display().to_string();
    let relative = first.path.strip_prefix(s.root()).unwrap().display().to_string();
    for typed in [
        path.clone(),
        format!("{path}.info"),
        format!("{path}.files"),
        relative,
        first.short_path(),
        format!("W/a/Default_{}", first.record.digest),
        first.record.digest[..8].to_owned(),
        first.record.digest.to_uppercase(),
    ] {
        assert_eq!(find(&typed).unwrap().path, first.path, "{typed}");
    }
    assert_ne!(first.record.digest[..6], second.record.digest[..6]);
    assert!(matches!(find("W/a/Default"), Err(FindError::Ambiguous { found, .. }) if found.len() == 2));
    for none in [
        "abcde",
        "zzzzzz",
        "000000000000",
        "W/a/Other",
        "W/b/Default",
        "",
        "/",
        "../..",
        "no such",
    ] {
        let error = find(none).unwrap_err();
        assert!(matches!(error, FindError::None(_)), "{none}: {error}");
        assert_eq!(error.kind(), ErrorKind::Usage);
    }
}
