//! Running, listing, removing jobs; jobs that ask for jobs.

use std::process::Stdio;
use std::time::{Duration, Instant};

use decanus_testkit::Sandbox;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use crate::support::*;

/// A project with the workflow `Shop`, whose tasks count their runs in `log`.
fn shop(tasks: &str) -> Sandbox {
    let s = Sandbox::new();
    s.write("workflows/Shop/workflow.yaml", format!("tasks:\n{tasks}"));
    s
}

fn lines(s: &Sandbox, path: &str) -> Vec<String> {
    let text = std::fs::read_to_string(s.path(path)).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

fn wait_for(what: &str, mut done: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !done() {
        assert!(begun.elapsed() < Duration::from_secs(30), "waited too long for {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn fifty_processes_run_a_job_once() {
    let s = shop("  once: {sh: 'cd \"$DECANUS_WORKFLOW_DIR\"; echo run >> log; sleep 0.3; echo out'}\n");
    let children: Vec<_> = (0..50)
        .map(|_| {
            let mut command = s.command(BIN, &["workflow", "run", "Shop", "once"]);
            command
                .stdin(Stdio::null())
                .stdout(Stdio::piped())
                .stderr(Stdio::null())
                .spawn()
                .unwrap()
        })
        .collect();
    for child in children {
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success() && output.stdout == b"out\n", "{output:?}");
    }
    assert_eq!(lines(&s, "workflows/Shop/log"), ["run"]);
}

#[test]
fn a_killed_run_is_taken_over_at_once() {
    let s =
        shop("  long: {sh: 'cd \"$DECANUS_WORKFLOW_DIR\"; echo run >> log; test -e quick || sleep 60; echo whole'}\n");
    let mut child = s
        .command(BIN, &["workflow", "run", "Shop", "long"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    wait_for("the job to run", || !lines(&s, "workflows/Shop/log").is_empty());
    child.kill().unwrap();
    child.wait().unwrap();
    s.write("workflows/Shop/quick", "");
    let begun = Instant::now();
    let again = run(&s, &["workflow", "run", "Shop", "long"]).exits(0);
    assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
    assert_eq!(again.stdout, "whole\n");
    assert!(again.stderr.contains("is gone; running it again"), "{again}");
    assert_eq!(lines(&s, "workflows/Shop/log").len(), 2);
}

#[test]
fn one_changed_byte_runs_just_the_dependents_again() {
    let log = "cd \"$DECANUS_WORKFLOW_DIR\"; echo NAME >> log;";
    let task = |name: &str, rest: &str| format!("  {name}: {{{}}}\n", rest.replace("LOG", &log.replace("NAME", name)));
    let s = shop(
        &[
            task(
                "read",
                "inputs: {f: {type: file, required: true}}, sh: 'LOG cat \"$f\"'",
            ),
            task("count", "depends: [read], sh: 'LOG wc -c < \"$DECANUS_DEP_read\"'"),
            task(
                "apart",
                "inputs: {g: {type: file, required: true}}, sh: 'LOG cat \"$g\"'",
            ),
            task(
                "all",
                "depends: [count, apart], sh: 'LOG cat \"$DECANUS_DEP_count\" \"$DECANUS_DEP_apart\"'",
            ),
        ]
        .concat(),
    );
    s.write("f.txt", "abc").write("g.txt", "xyz\n");
    let all = || {
        run(&s, &["workflow", "run", "Shop", "all", "f=f.txt", "g=g.txt"])
            .exits(0)
            .stdout
    };
    assert_eq!(all().split_whitespace().collect::<Vec<_>>(), ["3", "xyz"]);
    assert_eq!(lines(&s, "workflows/Shop/log").len(), 4);
    s.write("f.txt", "abd");
    all();
    let mut ran = lines(&s, "workflows/Shop/log").split_off(4);
    ran.sort();
    assert_eq!(ran, ["all", "count", "read"]);
    s.write("f.txt", "abc");
    all();
    assert_eq!(
        lines(&s, "workflows/Shop/log").len(),
        7,
        "the first results are still there"
    );
}

/// A task's program that asks for what waits for it is told so, rather than waiting for ever.
#[test]
fn a_job_that_would_wait_for_itself_is_refused() {
    let s = Sandbox::new();
    let nested = format!("\"{BIN}\" -C \"{}\" workflow run Shop", s.project().display());
    let ask = |task: &str| format!("{nested} {task} 2>err; echo \"code $?\" >&2; cat err >&2; exit 9");
    let tasks = [
        format!("own: {{sh: '{}'}}", ask("own")),
        format!("child: {{sh: '{}'}}", ask("parent")),
        "parent: {depends: [child], sh: echo p}".into(),
        format!("fine: {{sh: '{nested} other'}}"),
        "other: {sh: echo other}".into(),
        format!("twice: {{sh: 'test -n \"$AGAIN\" && echo inner && exit; AGAIN=1 {nested} twice --allow-recursive'}}"),
    ];
    s.write(
        "workflows/Shop/workflow.yaml",
        format!("tasks:\n  {}\n", tasks.join("\n  ")),
    );
    let begun = Instant::now();
    let own = run(&s, &["workflow", "run", "Shop", "own"]).exits(4);
    assert!(own.stderr.contains("code 4"), "{own}");
    assert!(
        own.stderr.contains("Potential recursive call: Shop/own → Shop/own"),
        "{own}"
    );
    let parent = run(&s, &["workflow", "run", "Shop", "parent"]).exits(4);
    let chain = "Potential recursive call: Shop/parent → Shop/child → Shop/parent";
    assert!(
        parent.stderr.contains("code 4") && parent.stderr.contains(chain),
        "{parent}"
    );
    assert!(begun.elapsed() < Duration::from_secs(15), "{:?}", begun.elapsed());
    // Another job is none of these, and one run more may be allowed.
    assert_eq!(run(&s, &["workflow", "run", "Shop", "fine"]).exits(0).stdout, "other\n");
    assert_eq!(
        run(&s, &["workflow", "run", "Shop", "twice"]).exits(0).stdout,
        "inner\n"
    );
}

#[test]
fn of_a_run_that_is_only_executed_nothing_stays() {
    let s = lab();
    let shouted = run(&s, &["workflow", "run", "Lab", "shout", "who=Ada", "--exec", "--json"])
        .exits(0)
        .json();
    assert_eq!(shouted, json!({"status": "done", "job": null, "result": "HELLO ADA"}));
    let jobs = run(&s, &["job", "list", "--json"]).exits(0).json();
    let tasks: Vec<&str> = jobs
        .as_array()
        .unwrap()
        .iter()
        .map(|j| j["task"].as_str().unwrap())
        .collect();
    assert_eq!(tasks, ["greet"]);
    let failed = run(&s, &["workflow", "run", "Lab", "fails", "--exec"]).exits(4);
    assert!(failed.stderr.contains("the disk is on fire"), "{failed}");
}

#[test]
fn a_run_goes_on_without_its_command() {
    let s = shop(
        "  slow: {inputs: {t: {type: float, default: 1.5}}, sh: 'echo begun >&2; sleep \"$t\"; echo end >&2; echo out'}\n  bad: {sh: exit 3}\n",
    );
    let begun = Instant::now();
    let started = run(&s, &["workflow", "run", "Shop", "slow", "--no-wait", "--json"])
        .exits(0)
        .json();
    assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
    assert_eq!(started["status"], "running");
    let path = started["job"].as_str().unwrap();
    let again = run(&s, &["workflow", "run", "Shop", "slow", "--no-wait"]).exits(0);
    assert_eq!(again.stdout.trim(), path);
    // Its log is followed to its end.
    let log = run(&s, &["job", "log", path, "-f"]).exits(0);
    let mut said: Vec<&str> = log.stdout.lines().collect();
    said.sort_unstable();
    assert_eq!(said, ["begun", "end", "out"], "{log}");
    assert_eq!(run(&s, &["job", "result", path]).exits(0).stdout, "out\n");
    assert_eq!(
        run(&s, &["job", "list", "--json"])
            .exits(0)
            .json()
            .as_array()
            .unwrap()
            .len(),
        1
    );
    let stored = run(&s, &["workflow", "run", "Shop", "slow", "--no-wait", "--json"])
        .exits(0)
        .json();
    assert_eq!(stored["status"], "done");
    // That it fails is told by the job.
    let bad = run(&s, &["workflow", "run", "Shop", "bad", "--no-wait"])
        .exits(0)
        .stdout;
    let status = || run(&s, &["job", "show", bad.trim(), "--json"]).exits(0).json()["status"].clone();
    wait_for("the failure", || status() == "error");
    // What is cancelled ends, whoever started it.
    let long = run(&s, &["workflow", "run", "Shop", "slow", "t=60", "--no-wait"])
        .exits(0)
        .stdout;
    let refused = run(&s, &["job", "clean", long.trim()]).exits(4);
    assert!(
        refused.stderr.contains("job gc"),
        "the error names what cleans up: {refused}"
    );
    run(&s, &["job", "cancel", long.trim()]).exits(0);
    let show = run(&s, &["job", "show", long.trim(), "--json"]).exits(0).json();
    assert_eq!(show["status"], "aborted");
}

#[test]
fn jobs_share_what_they_are_given() {
    let leaf = "cd \"$DECANUS_WORKFLOW_DIR\"; mkdir w-$n; ls -d w-* | wc -l >> most; sleep 0.1; rmdir w-$n";
    let s = shop(&format!(
        "  leaf: {{inputs: {{n: {{type: integer}}}}, sh: '{leaf}'}}\n  all: {{inputs: {{ns: {{type: integer_array, default: [1, 2, 3, 4]}}}}, depends: [{{task: leaf, for_each: {{ns: n}}}}], sh: echo all}}\n  large: {{resources: {{memory: 2G}}, sh: echo x}}\n"
    ));
    let most = || {
        lines(&s, "workflows/Shop/most")
            .iter()
            .filter_map(|l| l.trim().parse::<usize>().ok())
            .max()
    };
    let quiet = run(&s, &["workflow", "run", "Shop", "all", "-j", "1"]);
    assert!(quiet.code == 0 && most() == Some(1), "{quiet}");
    assert!(
        !quiet.stderr.contains('\u{1b}') && quiet.stderr.lines().all(|l| l.starts_with("job ")),
        "nothing is drawn: {quiet}"
    );
    run(
        &s,
        &[
            "workflow", "run", "Shop", "all", "ns=11", "ns=12", "ns=13", "ns=14", "--jobs", "4",
        ],
    )
    .exits(0);
    assert!(most().is_some_and(|n| n > 1), "{most:?}", most = most());
    let small = run(&s, &["workflow", "run", "Shop", "large", "--memory", "1G"]).exits(4);
    assert!(small.stderr.contains("of memory"), "{small}");
    for wrong in [["-j", "0"], ["-j", "x"], ["--memory", "much"]] {
        run(&s, &["workflow", "run", "Shop", "all", wrong[0], wrong[1]]).exits(2);
    }
}

/// On a terminal a line says how far the jobs are, and what the newest of them says. The terminal is made by Python.
#[test]
fn progress_is_drawn_on_a_terminal() {
    let leaf = "echo \"step $n\" >&2; sleep 0.7; echo $n";
    let s = shop(&format!(
        "  leaf: {{inputs: {{n: {{type: integer}}}}, sh: '{leaf}'}}\n  all: {{inputs: {{ns: {{type: integer_array, default: [1, 2]}}}}, depends: [{{task: leaf, for_each: {{ns: n}}}}], sh: echo all}}\n"
    ));
    let program = "import os, pty, sys\npty.spawn(sys.argv[1:], lambda fd: os.read(fd, 4096), lambda fd: b'')\n";
    let drawn = s.run(
        "python3",
        &["-c", program, BIN, "workflow", "run", "Shop", "all", "-j", "1"],
    );
    assert!(
        drawn.stdout.contains("1/3") && drawn.stdout.contains("Shop/leaf: step "),
        "{drawn}"
    );
    assert!(drawn.stdout.trim_end().ends_with("all"), "the line is gone: {drawn}");
}

#[test]
fn the_list_is_filtered_and_jobs_are_removed() {
    let s = lab();
    for (who, name) in [("Ada", "first"), ("Bob", "second")] {
        run(
            &s,
            &["workflow", "run", "Lab", "shout", &format!("who={who}"), "--name", name],
        )
        .exits(0);
    }
    run(&s, &["workflow", "run", "Lab", "fails"]).exits(4);
    let names = |args: &[&str]| -> Vec<String> {
        let all: Vec<&str> = ["job", "list", "--json"].iter().chain(args).copied().collect();
        let list = run(&s, &all).exits(0).json();
        list.as_array()
            .unwrap()
            .iter()
            .map(|j| format!("{}/{}", j["task"].as_str().unwrap(), j["name"].as_str().unwrap()))
            .collect()
    };
    assert_eq!(names(&["--status", "error"]), ["fails/Default"]);
    assert_eq!(names(&["--name", "f*", "Lab", "shout"]), ["shout/first"]);
    assert_eq!(names(&["--since", "1h", "--limit", "1"]), ["fails/Default"]);
    assert!(names(&["--before", "1h"]).is_empty() && names(&["--stale"]).is_empty());
    assert_eq!(names(&[]).len(), 5);
    let long = run(&s, &["job", "list", "Lab", "shout", "--long"]).exits(0);
    assert!(
        long.stdout.lines().count() == 2 && long.stdout.contains(" 9 B"),
        "{long}"
    );
    for wrong in [["--status", "gone"], ["--since", "yesterday"]] {
        run(&s, &["job", "list", wrong[0], wrong[1]]).exits(2);
    }
    run(&s, &["job", "clean"]).exits(2);
    run(&s, &["job", "clean", "Lab/shout/first", "--status", "error"]).exits(2);
    let dry = run(&s, &["job", "clean", "--status", "error", "--dry-run"]).exits(0);
    assert!(
        dry.stdout.starts_with("would remove ") && names(&[]).len() == 5,
        "{dry}"
    );
    run(&s, &["job", "clean", "--status", "error"]).exits(0);
    assert_eq!(names(&["Lab", "fails"]).len(), 0);
    run(&s, &["job", "clean", "--older", "1h"]).exits(0);
    assert_eq!(names(&[]).len(), 4);
    run(&s, &["job", "clean", "--task", "Lab/shout", "-r"]).exits(0);
    assert_eq!(names(&[]).len(), 0);
    run(&s, &["workflow", "run", "Lab", "greet", "who=A"]).exits(0);
    let usage = run(&s, &["job", "du", "--json"]).exits(0).json();
    assert_eq!(
        (&usage["jobs"], &usage["tasks"][0]["task"]),
        (&json!(1), &json!("greet"))
    );
    assert!(usage["bytes"].as_u64().unwrap() > 0);
    run(&s, &["workflow", "clean", "Lab", "greet"]).exits(0);
    run(&s, &["workflow", "clean", "Lob"]).exits(2);
    assert_eq!(names(&[]).len(), 0);
}

/// C73: one command removes what dead processes left.
#[test]
fn leftovers_are_collected_by_one_command() {
    let s = lab();
    let path = run(&s, &["workflow", "run", "Lab", "greet", "who=A", "--json"])
        .exits(0)
        .json()["job"]
        .as_str()
        .unwrap()
        .to_owned();
    let kept = run(&s, &["workflow", "run", "Lab", "greet", "who=B", "--json"])
        .exits(0)
        .json()["job"]
        .as_str()
        .unwrap()
        .to_owned();
    let folder = std::path::Path::new(&path).parent().unwrap().to_owned();
    for name in [".Gone_00.txt.lock", ".tmp-half"] {
        let file = std::fs::File::create(folder.join(name)).unwrap();
        file.set_modified(std::time::SystemTime::now() - Duration::from_secs(600))
            .unwrap();
    }
    let found = |args: &[&str]| -> Vec<(Value, Value)> {
        let all: Vec<&str> = ["job", "gc", "--json"].iter().chain(args).copied().collect();
        let value = run(&s, &all).exits(0).json();
        value["found"]
            .as_array()
            .unwrap()
            .iter()
            .map(|l| (l["kind"].clone(), l["kept"].clone()))
            .collect()
    };
    assert_eq!(
        found(&["--dry-run"]),
        [(json!("temporary"), Value::Null), (json!("lock"), Value::Null)]
    );
    let people = run(&s, &["job", "gc"]).exits(0);
    assert!(
        people.stdout.lines().count() == 2 && people.stderr.contains("1 temporary, 1 lock"),
        "{people}"
    );
    assert_eq!(run(&s, &["job", "gc"]).exits(0).stderr, "nothing to remove\n");
    // Jobs of a workflow that is gone go when that is asked for, unless a chat speaks of them.
    std::fs::remove_dir_all(s.path("workflows/Lab")).unwrap();
    s.write(
        "chats/a.chat",
        format!("function_call_output: {{\"job\":\"{kept}\"}}\n"),
    );
    assert!(found(&[]).is_empty());
    assert_eq!(found(&["--orphans"]).len(), 2);
    assert!(!std::path::Path::new(&path).exists() && std::path::Path::new(&kept).exists());
    assert_eq!(found(&["--orphans", "--all"]), [(json!("orphan"), Value::Null)]);
    assert!(!std::path::Path::new(&kept).exists());
}

#[test]
fn a_job_is_shown_whole() {
    let s = shop("  t: {resources: {cpus: 1, memory: 10M}, sh: 'echo said >&2; echo 12345'}\n");
    let path = run(&s, &["workflow", "run", "Shop", "t", "--json"]).exits(0).json()["job"]
        .as_str()
        .unwrap()
        .to_owned();
    let shown = run(&s, &["job", "show", &path, "--json"]).exits(0).json();
    assert_eq!(
        (&shown["size"], &shown["executor"], &shown["exit_code"]),
        (&json!(6), &json!("local"), &json!(0))
    );
    assert_eq!(shown["resources"], json!({"cpus": 1, "memory": 10 << 20, "time": null}));
    assert!(shown["seconds"].as_f64().is_some() && shown["logs"][0].as_str().unwrap().ends_with("stderr"));
    let people = run(&s, &["job", "show", &path]).exits(0).stdout;
    for part in ["6 B", "cpus = 1", "memory = 10485760", "stderr", "local"] {
        assert!(people.contains(part), "{part}: {people}");
    }
    assert_eq!(run(&s, &["job", "log", &path]).exits(0).stdout, "said\n");
    // It no longer holds when what it used is newer.
    let child = run(&s, &["workflow", "run", "Shop", "t", "--force", "--json"]).exits(0);
    assert_eq!(child.json()["status"], "done");
}

#[test]
fn a_worker_that_goes_on_survives_the_signal_to_its_starter() {
    let s = shop("  slow: {sh: 'sleep 1; echo out'}\n");
    let mut child = s
        .command(BIN, &["workflow", "run", "Shop", "slow", "--no-wait"])
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    wait_for("the job", || !run(&s, &["job", "list"]).exits(0).stdout.is_empty());
    let _ = kill(Pid::from_raw(i32::try_from(child.id()).unwrap()), Signal::SIGINT);
    child.wait().unwrap();
    wait_for("the end", || {
        run(&s, &["job", "list", "--status", "done", "--json"])
            .json()
            .as_array()
            .is_some_and(|a| a.len() == 1)
    });
}
