//! INT, TERM, KILL at each stage.

use std::process::Stdio;
use std::time::Duration;

use decanus_testkit::reply::chat_events;
use decanus_testkit::{Piece, Reply, Sandbox, ScriptedServer};
use nix::sys::signal::Signal;
use serde_json::json;

use crate::support::*;

const SOON: Duration = Duration::from_secs(8);

#[test]
fn while_the_provider_hangs() {
    let s = Sandbox::new();
    let server = ScriptedServer::always(Reply::never());
    s.endpoint("e", &server.url());
    for (n, (signal, code)) in [(Signal::SIGINT, 130), (Signal::SIGTERM, 143), (Signal::SIGHUP, 129)]
        .into_iter()
        .enumerate()
    {
        let running = Running::start(&s, &["ask", "-e", "e", "-c", "a", "--json", "x"]);
        wait_for("the request", || (server.requests().len() > n).then_some(()));
        running.signal(signal);
        let outcome = running.end();
        assert_eq!(outcome.code, code, "{outcome}");
        assert!(outcome.time < SOON, "{:?}", outcome.time);
        assert_eq!(outcome.json()["error"]["kind"], "interrupted");
        assert!(outcome.stderr.contains("interrupted"), "{outcome}");
    }
    assert!(!s.path("chats/.a.chat.lock").exists());
}

#[test]
fn while_the_answer_comes() {
    let s = Sandbox::new();
    let body = chat_events(&[json!({"content": "Once upon"})], "stop");
    let end = body.find("upon\"").unwrap() + "upon\"},\"finish_reason\":null}]}\n\n".len();
    let server = ScriptedServer::always(Reply::sse(&body.as_bytes()[..end]).then(Piece::Hang));
    s.endpoint("e", &server.url());
    let mut running = Running::start(&s, &["ask", "-e", "e", "-c", "a", "x"]);
    let mut first = [0u8; 9];
    let mut stdout = running.child.stdout.take().unwrap();
    std::io::Read::read_exact(&mut stdout, &mut first).unwrap();
    assert_eq!(&first, b"Once upon");
    running.signal(Signal::SIGINT);
    let outcome = running.end();
    assert!(outcome.code == 130 && outcome.time < SOON, "{outcome}");
    let kept = [("user", "x"), ("assistant", "Once upon")].map(|(role, text)| (role.to_owned(), text.to_owned()));
    assert_eq!(chat(&s, "chats/a.chat"), kept);
    assert!(s.read("chats/a.chat").contains("finish=interrupted"));
}

#[test]
fn while_it_waits_before_another_try() {
    let s = Sandbox::new();
    let server = ScriptedServer::always(Reply::error(503, "overloaded", "later").header("retry-after", "50"));
    s.endpoint("e", &server.url());
    let running = Running::start(&s, &["ask", "-e", "e", "x"]);
    wait_for("the request", || (!server.requests().is_empty()).then_some(()));
    std::thread::sleep(Duration::from_millis(300));
    running.signal(Signal::SIGINT);
    let outcome = running.end();
    assert!(outcome.code == 130 && outcome.time < SOON, "{outcome}");
}

/// C55, C56: the task's processes end, and every call has its output in the chat.
#[test]
fn while_tasks_run() {
    for (signal, code) in [(Signal::SIGINT, 130), (Signal::SIGTERM, 143)] {
        let s = lab();
        let file = s.path("pids");
        let server = ScriptedServer::start([
            Reply::chat_calls(&[
                ("a", "hangs", json!({"pids": file.to_str().unwrap()})),
                ("b", "greet", json!({"who": "Ada"})),
            ]),
            Reply::chat_stream(&["Well."]),
        ]);
        s.endpoint("e", &server.url());
        let running = Running::start(&s, &["ask", "-e", "e", "-t", "Lab", "-c", "a", "--json", "x"]);
        let pids = pids(&file);
        wait_for("the other output", || {
            s.read("chats/a.chat").contains("hello Ada").then_some(())
        });
        running.signal(signal);
        let outcome = running.end();
        assert_eq!(outcome.code, code, "{outcome}");
        assert!(outcome.time < SOON, "{:?}", outcome.time);
        assert_gone(&pids);
        assert_paired(&s, "chats/a.chat");
        let stopped = chat(&s, "chats/a.chat")
            .into_iter()
            .find(|(r, c)| r == "function_call_output" && c.contains("\"a\""));
        assert!(stopped.unwrap().1.contains("interrupted"), "{}", s.read("chats/a.chat"));
        let jobs = run(&s, &["job", "list", "Lab", "hangs", "--json"]).exits(0).json();
        assert_eq!(jobs[0]["status"], "aborted");
        // The chat goes on: nothing is pending, the model is told.
        assert_eq!(
            run(&s, &["ask", "-e", "e", "-t", "Lab", "-c", "a"]).exits(0).stdout,
            "Well.\n"
        );
        assert!(server.requests()[1].text().contains("interrupted"));
        server.verify();
    }
}

#[test]
fn while_a_job_runs() {
    let s = lab();
    for (args, name) in [
        (&["workflow", "run", "Lab", "hangs"][..], "w"),
        (&["tool", "call", "Lab/hangs"], "t"),
    ] {
        let file = s.path(name);
        let input = format!("pids={}", file.display());
        let running = Running::start(&s, &[args, &[&input, "--json"]].concat());
        let pids = pids(&file);
        running.signal(Signal::SIGINT);
        let outcome = running.end();
        assert!(outcome.code == 130 && outcome.time < SOON, "{outcome}");
        assert_eq!(outcome.json()["error"]["kind"], "interrupted");
        assert_gone(&pids);
    }
}

#[test]
fn while_it_waits_for_a_chat_or_for_stdin() {
    let s = Sandbox::new();
    let server = ScriptedServer::always(Reply::never());
    s.endpoint("e", &server.url());
    let first = Running::start(&s, &["ask", "-e", "e", "-c", "a", "one"]);
    wait_for("the first request", || (!server.requests().is_empty()).then_some(()));
    let second = Running::start(&s, &["ask", "-e", "e", "-c", "a", "--json", "two"]);
    std::thread::sleep(Duration::from_millis(500));
    second.signal(Signal::SIGINT);
    let outcome = second.end();
    assert_eq!(outcome.code, 130, "{outcome}");
    assert!(
        outcome.time < Duration::from_secs(6),
        "not after the whole wait: {:?}",
        outcome.time
    );
    assert_eq!(outcome.json()["error"]["kind"], "interrupted");
    first.signal(Signal::SIGINT);
    first.end();

    let mut command = s.command(BIN, &["ask", "-e", "e", "-"]);
    let child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let reading = Running { child };
    std::thread::sleep(Duration::from_millis(500));
    reading.signal(Signal::SIGINT);
    let outcome = reading.end();
    assert!(outcome.code == 130 && outcome.time < SOON, "{outcome}");
}

/// Kill −9 in the middle of a tool: the chat has the call, and goes on.
#[test]
fn killed_while_a_task_runs() {
    let s = lab();
    let gate = s.path("gate");
    s.write(
        "workflows/Slow/workflow.yaml",
        "tasks:\n  slow: {inputs: {gate: {type: string, required: true}}, result: string, timeout: 100s, sh: 'echo $$ > \"$gate.pid.new\"; mv \"$gate.pid.new\" \"$gate.pid\"; while ! [ -e \"$gate\" ]; do sleep 0.05; done; echo through'}\n",
    );
    let server = ScriptedServer::start([
        Reply::chat_calls(&[
            ("a", "slow", json!({"gate": gate.to_str().unwrap()})),
            ("b", "echo", json!({"message": "quick"})),
        ]),
        Reply::chat_stream(&["All there."]),
    ]);
    s.endpoint("e", &server.url());
    let running = Running::start(&s, &["ask", "-e", "e", "-t", "Slow/slow", "-t", "echo", "-c", "a", "x"]);
    let task = pids(&s.path("gate.pid"));
    wait_for("the quick output", || {
        s.read("chats/a.chat").contains("function_call_output").then_some(())
    });
    running.signal(Signal::SIGKILL);
    assert_eq!(running.end().code, 137);
    assert_gone(&task);
    assert!(s.read("chats/a.chat").contains("\"slow\""), "the call is on disk");
    std::fs::write(&gate, "").unwrap();
    let outcome = run(
        &s,
        &["ask", "-e", "e", "-t", "Slow/slow", "-t", "echo", "-c", "a", "--json"],
    )
    .exits(0);
    assert_eq!(outcome.json()["answer"], "All there.");
    assert_paired(&s, "chats/a.chat");
    let messages = server.requests()[1].json()["messages"].clone();
    let outputs: Vec<&str> = messages
        .as_array()
        .unwrap()
        .iter()
        .filter(|m| m["role"] == "tool")
        .map(|m| m["content"].as_str().unwrap())
        .collect();
    assert_eq!(outputs.len(), 2);
    assert_eq!(
        (outputs[0].trim_end(), outputs[1]),
        ("through", "quick"),
        "the job was run again"
    );
    server.verify();
}

/// A reader that does not read: the second signal ends the process whatever it does.
#[test]
fn while_nobody_reads_the_output() {
    let s = Sandbox::new();
    let server = ScriptedServer::always(Reply::chat_text(&"x".repeat(1 << 20)));
    s.endpoint("e", &server.url());
    let running = Running::start(&s, &["ask", "-e", "e", "x"]);
    wait_for("the request", || (!server.requests().is_empty()).then_some(()));
    std::thread::sleep(Duration::from_millis(500));
    running.signal(Signal::SIGINT);
    std::thread::sleep(Duration::from_millis(300));
    running.signal(Signal::SIGINT);
    let mut running = running;
    let status = wait_for("the end", || running.child.try_wait().unwrap());
    assert_eq!(status.code(), Some(130));
}

/// Where nothing is to be ended in order, a signal ends the command at once.
#[test]
fn looking_at_something_ends_at_once() {
    let s = Sandbox::new();
    s.write(
        "big.chat",
        "user: some words of a line\nassistant: and others\n".repeat(700_000),
    );
    for (signal, code) in [(Signal::SIGTERM, 143), (Signal::SIGINT, 130)] {
        let running = Running::start(&s, &["chat", "check", "big.chat", "--json"]);
        std::thread::sleep(Duration::from_millis(150));
        running.signal(signal);
        let ended = running.end();
        assert_eq!(ended.code, code, "{:?}", ended.time);
    }
}
