//! What all tests here need.

use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use decanus_testkit::{Outcome, Sandbox, ScriptedServer};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

/// The binary under test.
pub const BIN: &str = env!("CARGO_BIN_EXE_decanus");

/// Tasks for tests. `run.sh` counts its runs in a file beside it.
pub const LAB: &str = r#"
title: Lab
description: Small tasks for tests.
tasks:
  greet:
    description: Greets somebody.
    inputs:
      who: {type: string, required: true, description: Whom to greet}
      times: {type: integer, default: 1, minimum: 1, maximum: 3, description: How often}
      tone: {type: select, options: [warm, cold], default: warm, description: How}
      tags: {type: array, description: Words}
    result: string
    run: [sh, "{workflow_dir}/greet.sh", "{workflow_dir}", "{who}"]
  shout:
    description: Greets loudly.
    depends: [greet]
    result: string
    sh: 'tr a-z A-Z < "$DECANUS_DEP_greet"'
  fails:
    description: Always fails.
    sh: 'echo some; echo "the disk is on fire" >&2; exit 3'
  hangs:
    description: Never ends, and neither does its child.
    inputs: {pids: {type: string, required: true}}
    sh: 'trap "" TERM; sleep 300 & echo "$$ $!" > "$pids.new"; mv "$pids.new" "$pids"; wait; sleep 300'
  big:
    description: Prints 10 MB.
    sh: 'head -c 10485760 /dev/zero | tr "\0" "x"'
"#;

pub const GREET: &str = "echo run >> \"$1/runs\"\nprintf 'hello %s' \"$2\"\n";

/// A project with the workflow `Lab`.
pub fn lab() -> Sandbox {
    let sandbox = Sandbox::new();
    sandbox.write("workflows/Lab/workflow.yaml", LAB);
    sandbox.write("workflows/Lab/greet.sh", GREET);
    sandbox
}

/// How often `greet` has run.
pub fn greeted(sandbox: &Sandbox) -> usize {
    std::fs::read_to_string(sandbox.path("workflows/Lab/runs")).map_or(0, |t| t.lines().count())
}

pub fn run(sandbox: &Sandbox, args: &[&str]) -> Outcome {
    sandbox.run(BIN, args)
}

/// Runs with the endpoint `e` at a server.
pub fn ask(sandbox: &Sandbox, server: &ScriptedServer, args: &[&str]) -> Outcome {
    sandbox.endpoint("e", &server.url());
    let all: Vec<&str> = ["ask", "-e", "e"].iter().chain(args).copied().collect();
    run(sandbox, &all)
}

/// Both streams of a run, made comparable, for a snapshot. Columns are as wide as their widest cell, which may be a
/// path, so blanks between them are cut to two.
pub fn both(sandbox: &Sandbox, outcome: &Outcome) -> String {
    let text = format!("exit {}\n{}---\n{}", outcome.code, outcome.stdout, outcome.stderr);
    let narrow = |line: &str| {
        let begin = line.len() - line.trim_start().len();
        let cells: Vec<&str> = line[begin..]
            .split("  ")
            .map(str::trim)
            .filter(|c| !c.is_empty())
            .collect();
        format!("{}{}", &line[..begin], cells.join("  "))
    };
    let lines: Vec<String> = sandbox.normalise(&text).lines().map(narrow).collect();
    lines.join("\n")
}

/// A decanus that runs beside the test.
pub struct Running {
    pub child: Child,
}

impl Running {
    pub fn start(sandbox: &Sandbox, args: &[&str]) -> Self {
        let mut command = sandbox.command(BIN, args);
        let child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        Self { child }
    }

    pub fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id() as i32), signal).unwrap();
    }

    /// Waits for the end: exit code (128 + signal when one ended it), stdout, stderr, time.
    pub fn end(mut self) -> Outcome {
        let start = Instant::now();
        while self.child.try_wait().unwrap().is_none() {
            if start.elapsed() > Duration::from_secs(60) {
                let _ = self.child.kill();
                panic!("it did not end");
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let time = start.elapsed();
        let output = self.child.wait_with_output().unwrap();
        use std::os::unix::process::ExitStatusExt;
        Outcome {
            code: output
                .status
                .code()
                .or_else(|| output.status.signal().map(|s| 128 + s))
                .unwrap_or(-1),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
            timed_out: false,
            time,
        }
    }
}

/// Waits until something is there.
pub fn wait_for<T>(what: &str, mut get: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(value) = get() {
            return value;
        }
        assert!(start.elapsed() < Duration::from_secs(60), "{what} did not come");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The process ids that the task `hangs` has written.
pub fn pids(file: &Path) -> Vec<u32> {
    wait_for("the task", || {
        let text = std::fs::read_to_string(file).ok()?;
        Some(text.split_whitespace().map(|p| p.parse().unwrap()).collect())
    })
}

/// Waits until processes are gone (a zombie is).
pub fn assert_gone(pids: &[u32]) {
    for pid in pids {
        let start = Instant::now();
        loop {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            let state = stat.rsplit(") ").next().and_then(|s| s.chars().next());
            if matches!(state, None | Some('Z' | 'X')) {
                break;
            }
            assert!(
                start.elapsed() < Duration::from_secs(10),
                "process {pid} goes on: {stat}"
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// The names of an object's members.
pub fn keys(value: &Value) -> Vec<&str> {
    value
        .as_object()
        .unwrap_or_else(|| panic!("no object: {value}"))
        .keys()
        .map(String::as_str)
        .collect()
}

/// The messages of a chat file, each a role and a text.
pub fn chat(sandbox: &Sandbox, name: &str) -> Vec<(String, String)> {
    let out = sandbox.read(name);
    decanus::chat::parse(&out)
        .messages
        .into_iter()
        .filter(|m| m.role.as_str() != "meta")
        .map(|m| (m.role.as_str().to_owned(), m.content))
        .collect()
}

/// Checks that in a chat file every call has exactly one output.
pub fn assert_paired(sandbox: &Sandbox, name: &str) {
    let ids = |role: &str| -> Vec<String> {
        let mut ids: Vec<String> = chat(sandbox, name)
            .into_iter()
            .filter(|(r, _)| r == role)
            .map(|(_, c)| {
                serde_json::from_str::<Value>(&c).unwrap()["id"]
                    .as_str()
                    .unwrap()
                    .to_owned()
            })
            .collect();
        ids.sort();
        ids
    };
    assert_eq!(
        ids("function_call"),
        ids("function_call_output"),
        "{}",
        sandbox.read(name)
    );
}
