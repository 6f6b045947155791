//! Calls that the user is asked for.

use decanus_testkit::{Reply, Sandbox, ScriptedServer};
use serde_json::json;

use crate::support::{BIN, run};

/// A server whose model wants to post something, then repeats what came of it.
fn server() -> ScriptedServer {
    ScriptedServer::with(|request| {
        let body = request.json();
        let messages = body["messages"].as_array().cloned().unwrap_or_default();
        match messages.iter().rev().find(|m| m["role"] == "tool") {
            Some(output) => Reply::chat_text(output["content"].as_str().unwrap_or_default()),
            None => Reply::chat_calls(&[(
                "c1",
                "webhook_tool",
                json!({"url": "http://127.0.0.1:9/", "payload": {"a": 1}}),
            )]),
        }
    })
}

const ASK: [&str; 8] = [
    "ask",
    "-e",
    "e",
    "-t",
    "webhook_tool",
    "--no-stream",
    "--no-cache",
    "Post it.",
];

#[test]
fn without_a_terminal_nothing_is_sent_and_the_model_is_told() {
    let server = server();
    let s = Sandbox::new();
    s.endpoint("e", &server.url());
    let refused = run(&s, &ASK).exits(0);
    assert!(refused.stdout.contains("needs the user's approval"), "{refused}");
    // With leave it is called: the address is one that the guard refuses, which is another story.
    let called = run(&s, &[&ASK[..], &["--approve", "never"]].concat()).exits(0);
    assert!(!called.stdout.contains("approval"), "{called}");
    s.write("decanus.toml", "[approve]\nwebhook_tool = \"never\"\n");
    assert!(!run(&s, &ASK).exits(0).stdout.contains("approval"));
    // The flag goes before the file.
    let always = run(&s, &[&ASK[..], &["--approve", "always"]].concat()).exits(0);
    assert!(always.stdout.contains("approval"), "{always}");
    s.write("decanus.toml", "approve = \"sometimes\"\n");
    let wrong = run(&s, &ASK).exits(2);
    assert!(wrong.stderr.contains("always, destructive, never"), "{wrong}");
    run(&s, &[&ASK[..], &["--approve", "perhaps"]].concat()).exits(2);
}

/// Runs a command on a terminal of its own and answers its question.
const PTY: &str = r#"
import os, pty, sys
pid, fd = pty.fork()
if pid == 0:
    os.execv(sys.argv[2], sys.argv[2:])
seen = b""
answered = False
while True:
    try:
        data = os.read(fd, 4096)
    except OSError:
        break
    if not data:
        break
    seen += data
    if not answered and (b"why not: " in seen or b"[n]o: " in seen):
        os.write(fd, sys.argv[1].encode() + b"\n")
        answered = True
sys.stdout.write(seen.decode())
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"#;

#[test]
fn on_a_terminal_the_user_decides() {
    let server = server();
    let s = Sandbox::new();
    s.endpoint("e", &server.url());
    let asked = |answer: &str| {
        let mut command = s.command("python3", &["-c", PTY, answer, BIN]);
        command.args(ASK);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let said = asked("not today");
    assert!(said.contains("The model wants to call webhook_tool"), "{said}");
    assert!(said.contains("The user says: not today"), "{said}");
    let said = asked("y");
    assert!(!said.contains("refused this call"), "{said}");
    assert!(said.contains("ToolArgumentError"), "{said}");
}

/// As [`PTY`], for a person who takes two seconds.
fn slow_pty() -> String {
    let answer = "        os.write(fd, sys.argv[1]";
    assert!(PTY.contains(answer));
    PTY.replace(answer, &format!("        time.sleep(2)\n{answer}"))
        .replace("import os,", "import time, os,")
}

#[test]
fn no_line_of_another_call_lands_behind_an_open_question() {
    let server = ScriptedServer::with(|request| {
        let body = request.json();
        let messages = body["messages"].as_array().cloned().unwrap_or_default();
        if messages.iter().any(|m| m["role"] == "tool") {
            return Reply::chat_text("done");
        }
        Reply::chat_calls(&[
            (
                "c1",
                "webhook_tool",
                json!({"url": "http://127.0.0.1:9/", "payload": {"a": 1}}),
            ),
            ("c2", "slow", json!({})),
        ])
    });
    let s = Sandbox::new();
    s.endpoint("e", &server.url());
    s.write(
        "workflows/W/workflow.yaml",
        "title: W\ntasks:\n  slow:\n    description: Takes a while.\n    sh: sleep 0.5; echo was-slow\n",
    );
    let mut command = s.command("python3", &["-c", &slow_pty(), "n", BIN]);
    command.args(ASK).args(["-t", "W"]);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(said.contains("or why not: n\r\n"), "{said}");
    let answered = said.find("or why not: n").unwrap();
    assert!(
        said.find("← was-slow").is_some_and(|at| at > answered),
        "it comes afterwards: {said}"
    );
}

#[test]
fn a_rule_for_a_name_holds_when_the_tool_had_to_be_renamed() {
    let server = ScriptedServer::with(|request| {
        let body = request.json();
        let messages = body["messages"].as_array().cloned().unwrap_or_default();
        match messages.iter().rev().find(|m| m["role"] == "tool") {
            Some(output) => Reply::chat_text(output["content"].as_str().unwrap_or_default()),
            None => Reply::chat_calls(&[("c1", "builtin_echo", json!({"message": "hi"}))]),
        }
    });
    let s = Sandbox::new();
    s.endpoint("e", &server.url());
    s.write(
        "workflows/W/workflow.yaml",
        "title: W\ntasks:\n  echo:\n    description: Says x.\n    sh: echo x\n",
    );
    let ask = [
        "ask",
        "-e",
        "e",
        "--no-stream",
        "--no-cache",
        "-t",
        "echo",
        "-t",
        "W",
        "Go.",
    ];
    assert_eq!(run(&s, &ask).exits(0).stdout, "hi\n");
    for rule in ["echo", "builtin_echo", "'builtin/echo'"] {
        s.write("decanus.toml", format!("[approve]\n{rule} = \"always\"\n"));
        let asked = run(&s, &ask).exits(0);
        assert!(asked.stdout.contains("needs the user's approval"), "{rule}: {asked}");
        assert!(!asked.stderr.contains("is no tool here"), "{rule}: {asked}");
    }
    s.write("decanus.toml", "[approve]\nwrite_fiel = \"always\"\n");
    let warned = run(&s, &ask).exits(0);
    let says = "[approve] names `write_fiel`, which is no tool here; did you mean write_file?";
    assert!(warned.stderr.contains(says), "{warned}");
}

#[test]
fn what_runs_code_and_a_file_of_the_project_selects_needs_consent_once() {
    let server = ScriptedServer::with(|_| Reply::chat_text("done"));
    let s = Sandbox::new();
    s.endpoint("e", &server.url());
    s.write("chats/c.chat", "tool: python\n\nuser: Go.\n");
    let ask = ["ask", "-e", "e", "--no-cache", "--no-stream", "-c", "c"];
    let refused = run(&s, &ask).exits(2);
    for part in ["c.chat:1", "`python`", "no terminal", "decanus mcp allow python"] {
        assert!(refused.stderr.contains(part), "{part}: {refused}");
    }
    assert!(server.requests().is_empty());
    // What is typed is consent, and what only looks asks for none.
    run(&s, &["ask", "-e", "e", "--no-cache", "-t", "python", "Go."]).exits(0);
    run(&s, &[&ask[..], &["--dry-run"]].concat()).exits(0);
    run(&s, &["chat", "check", "chats/c.chat"]).exits(0);

    run(&s, &["mcp", "allow", "python"]).exits(0);
    assert_eq!(run(&s, &["mcp", "allow"]).exits(0).stdout, "python\n");
    assert_eq!(
        run(&s, &["mcp", "allow", "--json"]).exits(0).json(),
        json!([{"name": "python"}])
    );
    run(&s, &ask).exits(0);
    // It holds for this project and this tool only.
    s.write("chats/d.chat", "tool: run_command\n\nuser: Go.\n");
    let other = run(&s, &["ask", "-e", "e", "-c", "d"]).exits(2);
    assert!(other.stderr.contains("run_command"), "{other}");
    s.write("other/decanus.toml", "");
    assert_eq!(run(&s, &["-C", "other", "mcp", "allow"]).exits(0).stdout, "");

    run(&s, &["mcp", "allow", "--remove", "python"]).exits(0);
    s.write("chats/f.chat", "tool: python\n\nuser: Go.\n");
    run(&s, &["ask", "-e", "e", "-c", "f"]).exits(2);
    run(&s, &["mcp", "allow", "calculator"]).exits(2);
    // Asked on a terminal, it is kept.
    let mut command = s.command(
        "python3",
        &["-c", PTY, "y", BIN, "ask", "-e", "e", "--no-cache", "-c", "f"],
    );
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(run(&s, &["mcp", "allow"]).exits(0).stdout, "python\n");
}
