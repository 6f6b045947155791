//! A checkpoint of transformers from the command line, with the stand-ins of the backend's tests for torch and
//! transformers.

use std::io::Read;
use std::process::Stdio;
use std::time::{Duration, Instant};

use decanus::base::process::start_time;
use decanus_testkit::Sandbox;
use serde_json::{Value, json};

use crate::support::*;

const PYTHON: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../backend/tests/fixtures/stand_in/python");

/// A project, and an endpoint `hf` of the user's own with a checkpoint that knows these answers.
fn tiny(answers: &Value) -> Sandbox {
    let s = Sandbox::new();
    s.write("tiny/answers.json", answers.to_string());
    let folder = s.home().join("endpoints");
    std::fs::create_dir_all(&folder).unwrap();
    let tiny = s.path("tiny");
    let text = format!("backend: huggingface\npython: {PYTHON}\ndir: {}\n", tiny.display());
    std::fs::write(folder.join("hf.yaml"), text).unwrap();
    s
}

#[test]
fn answers_calls_schemas_and_vectors() {
    let s = tiny(&json!({
        "Say hello.": "<think>so</think>Hello.",
        "Echo hi.": "<tool_call>{\"name\": \"echo\", \"arguments\": {\"message\": \"hi\"}}</tool_call>",
        "hi": "It said hi.",
        "Is red warm?": "Certainly.",
        "*": "{\"warm\": true}",
    }));
    let answer = run(&s, &["ask", "-e", "hf", "--json", "Say hello."]).exits(0).json();
    assert_eq!(
        (&answer["answer"], &answer["usage"]["ct"]),
        (&json!("Hello."), &json!(24))
    );
    let called = run(&s, &["ask", "-e", "hf", "-t", "echo", "--json", "Echo hi."])
        .exits(0)
        .json();
    assert_eq!(
        (&called["answer"], &called["rounds"]),
        (&json!("It said hi."), &json!(2))
    );
    // What does not fit is asked for again, once.
    let schema = json!({"type": "object", "properties": {"warm": {"type": "boolean"}}, "required": ["warm"]});
    s.write("schema.json", schema.to_string());
    let fits = run(&s, &["ask", "-e", "hf", "--schema", "schema.json", "Is red warm?"]).exits(0);
    assert_eq!(fits.stdout.trim(), "{\"warm\": true}");
    // Options of a chat.
    s.write(
        "chats/cool.chat",
        "option: temperature 0\noption: max_tokens 2\n\nuser: Say hello.\n",
    );
    let dry = run(&s, &["ask", "-e", "hf", "-c", "cool", "--dry-run"]).exits(0);
    let body: Value = serde_json::from_str(&dry.stdout).unwrap();
    assert_eq!(
        body["chat"]["generation"],
        json!({"do_sample": false, "max_new_tokens": 2})
    );
    let vectors = run(&s, &["endpoint", "embed", "hf", "a", "bd"]).exits(0);
    assert_eq!(vectors.stdout, "[97.0,1.0]\n[99.0,1.0]\n");
    let shown = run(&s, &["endpoint", "show", "hf", "--json"]).exits(0).json();
    assert_eq!(shown["backend"], "huggingface");
}

#[test]
fn the_worker_does_not_outlive_us() {
    let s = tiny(&json!({}));
    let mut command = s.command(BIN, &["ask", "-e", "hf", "--no-cache", "!slow"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut first = [0];
    child.stdout.as_mut().unwrap().read_exact(&mut first).unwrap();
    let pid: u32 = s.read("tiny/loads").trim().parse().unwrap();
    assert!(start_time(pid).is_some());
    child.kill().unwrap();
    child.wait().unwrap();
    let begin = Instant::now();
    while start_time(pid).is_some() {
        assert!(begin.elapsed() < Duration::from_secs(8), "it is still there");
        std::thread::sleep(Duration::from_millis(10));
    }
}
