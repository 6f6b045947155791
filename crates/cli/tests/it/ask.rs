//! `decanus ask`: what is sent, and what is printed where.

use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;
use std::time::Duration;

use decanus_testkit::{Reply, Sandbox, ScriptedServer};
use serde_json::{Value, json};

use crate::support::*;

fn greeting() -> Reply {
    Reply::chat_call_stream(&[("c1", "greet", json!({"who": "Ada"}))])
}

#[test]
fn text_goes_to_stdout_and_calls_to_stderr() {
    let s = lab();
    let server = ScriptedServer::start([greeting(), Reply::chat_stream(&["It says ", "hello Ada."])]);
    let outcome = ask(&s, &server, &["-t", "Lab/greet", "Greet", "Ada"]).exits(0);
    assert_eq!(outcome.stdout, "It says hello Ada.\n");
    insta::assert_snapshot!("ask_with_a_job", both(&s, &outcome));
    assert_eq!(
        server.requests()[0].json()["messages"][0]["content"],
        "Greet Ada",
        "words are joined"
    );
    assert!(!s.path("chats").exists(), "no chat is left behind");
    server.verify();
}

#[test]
fn text_is_streamed() {
    let s = Sandbox::new();
    let server = ScriptedServer::start([Reply::chat_stream(&["first ", "second"]).paced(Duration::from_millis(700))]);
    s.endpoint("e", &server.url());
    let mut child = s
        .command(BIN, &["ask", "-e", "e", "go"])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut stdout = child.stdout.take().unwrap();
    let mut first = [0u8; 6];
    std::io::Read::read_exact(&mut stdout, &mut first).unwrap();
    assert!(child.try_wait().unwrap().is_none(), "the rest is still to come");
    let mut rest = String::new();
    std::io::Read::read_to_string(&mut stdout, &mut rest).unwrap();
    assert_eq!((&first[..], rest.as_str()), (&b"first "[..], "second\n"));
    assert!(child.wait().unwrap().success());
}

#[test]
fn text_before_a_call_ends_its_line_once() {
    let s = lab();
    let body = decanus_testkit::reply::chat_events(
        &[
            json!({"content": "Let me see."}),
            json!({"tool_calls": [{"index": 0, "id": "c", "type": "function", "function": {"name": "echo", "arguments": "{\"message\":\"x\"}"}}]}),
        ],
        "tool_calls",
    );
    let server = ScriptedServer::start([Reply::sse(body.clone()), Reply::chat_stream(&["Done."])]);
    let outcome = ask(&s, &server, &["-t", "echo", "go"]).exits(0);
    assert_eq!(outcome.stdout, "Let me see.\nDone.\n");
    // The same when the run ends after the call.
    let server = ScriptedServer::start([Reply::sse(body)]);
    let outcome = ask(&s, &server, &["-t", "echo", "-o", "max_rounds=1", "go"]).exits(5);
    assert_eq!(outcome.stdout, "Let me see.\n");
}

#[test]
fn json_has_the_promised_shape() {
    let s = lab();
    let server = ScriptedServer::start([greeting(), Reply::chat_stream(&["Done."])]);
    let outcome = ask(&s, &server, &["-t", "Lab/greet", "--json", "Greet Ada"]).exits(0);
    assert_eq!(outcome.stdout.lines().count(), 1, "one object: {outcome}");
    let object = outcome.json();
    assert_eq!(
        keys(&object),
        ["answer", "messages", "usage", "rounds", "chat", "jobs", "limit"]
    );
    assert_eq!(object["answer"], "Done.");
    assert_eq!(object["rounds"], 2);
    assert_eq!(object["chat"], Value::Null);
    assert_eq!(object["limit"], Value::Null);
    assert_eq!(keys(&object["usage"]), ["pt", "ct", "tt", "cct", "cwt", "rt"]);
    assert_eq!(object["usage"]["tt"], 30);
    let job = object["jobs"][0].as_str().unwrap();
    assert!(job.starts_with(s.project().to_str().unwrap()) && std::path::Path::new(job).exists());
    let messages: Vec<&Value> = object["messages"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|m| m["role"] != "meta")
        .collect();
    let roles: Vec<&str> = messages.iter().map(|m| m["role"].as_str().unwrap()).collect();
    assert_eq!(roles, ["user", "function_call", "function_call_output", "assistant"]);
    assert_eq!(
        messages[1]["content"]["arguments"],
        json!({"who": "Ada"}),
        "JSON roles are objects"
    );
    assert_eq!(messages[2]["content"]["content"], "hello Ada");
    assert_eq!(messages[3]["content"], "Done.");
    assert_eq!(
        server.requests()[0].json()["stream"],
        true,
        "it streams whatever the output form"
    );
    assert!(outcome.stderr.contains("greet"), "stderr still speaks to people");
}

#[test]
fn events_are_one_object_a_line() {
    let s = lab();
    let server = ScriptedServer::start([greeting(), Reply::chat_stream(&["Do", "ne."])]);
    let outcome = ask(&s, &server, &["-t", "Lab/greet", "--events", "Greet Ada"]).exits(0);
    let events: Vec<Value> = outcome
        .stdout
        .lines()
        .map(|l| serde_json::from_str(l).unwrap())
        .collect();
    let names: Vec<&str> = events.iter().map(|e| e["event"].as_str().unwrap()).collect();
    assert_eq!(
        names,
        [
            "round", "usage", "call", "job", "output", "round", "text", "text", "usage", "end"
        ],
        "{outcome}"
    );
    assert_eq!(events[2]["arguments"], json!({"who": "Ada"}));
    assert_eq!(events[4]["content"], "hello Ada");
    let end = events.last().unwrap();
    assert_eq!(
        keys(end),
        [
            "event", "answer", "messages", "usage", "rounds", "chat", "jobs", "limit"
        ]
    );
    // Failures end it too.
    for (args, kind, code) in [
        (&["ask", "-e", "nobody", "--events", "x"][..], "usage", 2),
        (&["ask", "-e", "e", "-t", "nothing", "--events", "x"], "usage", 2),
        (&["ask", "-e", "e", "--no-such", "--events", "x"], "usage", 2),
    ] {
        let outcome = run(&s, args);
        let last: Value = serde_json::from_str(outcome.stdout.lines().last().unwrap()).unwrap();
        assert_eq!(
            (outcome.code, last["event"].as_str(), last["error"]["kind"].as_str()),
            (code, Some("end"), Some(kind))
        );
    }
    let server = ScriptedServer::always(Reply::error(401, "invalid_api_key", "no"));
    let outcome = ask(&s, &server, &["--events", "x"]).exits(3);
    let last: Value = serde_json::from_str(outcome.stdout.lines().last().unwrap()).unwrap();
    assert_eq!(
        (last["event"].as_str(), last["error"]["kind"].as_str()),
        (Some("end"), Some("provider"))
    );
}

#[test]
fn the_whole_answer_at_once() {
    let s = Sandbox::new();
    let server = ScriptedServer::start([Reply::chat_text("whole")]);
    assert_eq!(ask(&s, &server, &["--no-stream", "go"]).exits(0).stdout, "whole\n");
    assert_ne!(server.requests()[0].json()["stream"], true);
}

#[test]
fn a_dry_run_is_the_body_that_is_sent() {
    let s = lab();
    s.write(
        "chats/a.chat",
        "system: Be brief.\n\nuser: One\n\nassistant: 1\n\ntool: calculator\n",
    );
    let server = ScriptedServer::always(Reply::chat_text("2"));
    for extra in [&[][..], &["--no-stream"], &["-t", "Lab", "-o", "temperature=0.7"]] {
        let before = server.requests().len();
        let args = [&["-c", "a", "--no-cache"], extra, &["Two", "ñ"]].concat();
        let chat = s.read("chats/a.chat");
        let dry = ask(&s, &server, &[&["--dry-run"], &args[..]].concat()).exits(0);
        assert_eq!(server.requests().len(), before, "nothing is sent");
        assert_eq!(s.read("chats/a.chat"), chat, "and nothing is written");
        let object = ask(&s, &server, &[&["--dry-run", "--json"], &args[..]].concat())
            .exits(0)
            .json();
        ask(&s, &server, &args).exits(0);
        let request = server.requests().pop().unwrap();
        assert_eq!(dry.stdout, format!("{}\n", request.text()));
        assert_eq!(object["body"], request.json());
        assert!(
            object["target"].as_str().unwrap().ends_with("/v1/chat/completions"),
            "{object}"
        );
        s.write("chats/a.chat", chat);
    }
}

#[test]
fn options_go_where_they_belong() {
    let s = Sandbox::new();
    let server = ScriptedServer::always(Reply::chat_text("ok"));
    let outcome = ask(
        &s,
        &server,
        &[
            "-o",
            "temperature=0.7",
            "-o",
            "stop=[\"x\"]",
            "-o",
            "seed=7",
            "-o",
            "user=me",
            "-m",
            "other",
            "go",
        ],
    )
    .exits(0);
    assert!(!outcome.stderr.contains("warning"), "{outcome}");
    let body = server.requests()[0].text();
    assert!(
        body.contains("\"temperature\":0.7") && body.contains("\"seed\":7"),
        "{body}"
    );
    let json = server.requests()[0].json();
    assert_eq!(
        (json["stop"][0].as_str(), json["user"].as_str(), json["model"].as_str()),
        (Some("x"), Some("me"), Some("other"))
    );
    let outcome = ask(&s, &server, &["-o", "max_round=3", "go"]).exits(0);
    assert!(outcome.stderr.contains("did you mean `max_rounds`?"), "{outcome}");
    for (option, says) in [
        ("limits.round=3", "did you mean rounds?"),
        ("limits.rounds=many", "many"),
        ("tool_choice=nothing", "nothing"),
        ("format=yaml", "json, text or a schema"),
        ("persist=maybe", "true or false"),
        ("temperature", "KEY=VALUE"),
        ("timeout=soon", "soon"),
    ] {
        let outcome = ask(&s, &server, &["-o", option, "go"]).exits(2);
        assert!(outcome.stderr.contains(says), "{outcome}");
    }
    assert_eq!(server.requests().len(), 2);
}

#[test]
fn who_is_asked() {
    let server = |name: &'static str| ScriptedServer::always(Reply::chat_text(name));
    let (flag, chat, variable, file) = (server("flag"), server("chat"), server("variable"), server("file"));
    let s = Sandbox::new();
    s.endpoint("f", &flag.url()).endpoint("c", &chat.url());
    s.endpoint("v", &variable.url()).endpoint("t", &file.url());
    let none = run(&s, &["ask", "hi", "--json"]).exits(2);
    assert_eq!(none.json()["error"]["kind"], "config");
    assert!(
        none.stderr.contains("model pull") && none.stderr.contains("OPENAI_API_KEY"),
        "both ways: {none}"
    );
    s.write("decanus.toml", "endpoint = \"t\"\n");
    assert_eq!(run(&s, &["ask", "hi"]).exits(0).stdout, "file\n");
    let with_variable = |args: &[&str]| {
        let mut command = s.command(BIN, args);
        let output = command
            .env("DECANUS_ENDPOINT", "v")
            .stdin(Stdio::null())
            .output()
            .unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    assert_eq!(with_variable(&["ask", "hi"]), "variable\n");
    s.write(
        "chats/a.chat",
        "endpoint: c\n\nmodel: chat-model\n\noption: temperature 0.25\n",
    );
    assert_eq!(with_variable(&["ask", "-c", "a", "hi"]), "chat\n");
    let body = chat.requests()[0].json();
    assert_eq!(
        (body["model"].as_str(), body["temperature"].to_string().as_str()),
        (Some("chat-model"), "0.25")
    );
    s.write(
        "chats/a.chat",
        "endpoint: c\n\nmodel: chat-model\n\noption: temperature 0.25\n",
    );
    let args = ["ask", "-c", "a", "-e", "f", "-m", "m", "-o", "temperature=1", "hi"];
    assert_eq!(with_variable(&args), "flag\n");
    let body = flag.requests()[0].json();
    assert_eq!(
        (body["model"].as_str(), body["temperature"].to_string().as_str()),
        (Some("m"), "1")
    );
}

#[test]
fn the_question_can_come_from_stdin() {
    let s = Sandbox::new();
    let server = ScriptedServer::always(Reply::chat_text("ok"));
    s.endpoint("e", &server.url());
    s.run_with(BIN, &["ask", "-e", "e", "-"], "first line\nsecond ñ\n\n".as_bytes())
        .exits(0);
    assert_eq!(
        server.requests()[0].json()["messages"][0]["content"],
        "first line\nsecond ñ"
    );
    for (stdin, says) in [
        (&b""[..], "no question"),
        (b" \n", "no question"),
        (b"\xff\xfe", "UTF-8"),
    ] {
        let outcome = s.run_with(BIN, &["ask", "-e", "e", "-"], stdin).exits(2);
        assert!(outcome.stderr.contains(says), "{outcome}");
    }
    // Only alone it is stdin; behind -- everything is text.
    s.run_with(BIN, &["ask", "-e", "e", "--", "-x", "--json"], b"unread")
        .exits(0);
    assert_eq!(server.requests()[1].json()["messages"][0]["content"], "-x --json");
    let none = run(&s, &["ask", "-e", "e"]).exits(2);
    assert!(none.stderr.contains("no question"), "{none}");
    run(&s, &["ask", "-e", "e", " "]).exits(2);
}

/// C88: a question is given, stdin is an open pipe that never ends.
#[test]
fn an_open_stdin_is_not_read() {
    let s = Sandbox::new();
    let server = ScriptedServer::always(Reply::chat_text("ok"));
    s.endpoint("e", &server.url());
    let mut child = s
        .command(BIN, &["ask", "-e", "e", "say ok"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let stdin = child.stdin.take();
    let status = wait_for("the end", || child.try_wait().unwrap());
    assert!(status.success());
    drop(stdin);
}

#[test]
fn bytes_that_are_no_text_are_usage() {
    use std::os::unix::ffi::OsStrExt;
    let s = Sandbox::new();
    let bad = std::ffi::OsStr::from_bytes(b"caf\xe9");
    for place in [
        &["ask", "-e", "e"][..],
        &["ask", "-e"],
        &["tool", "call"],
        &["job", "show"],
    ] {
        let output = s.command(BIN, place).arg(bad).stdin(Stdio::null()).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{place:?}");
        assert!(!output.stderr.is_empty());
    }
}

/// C91: to a pipe everything is raw, byte for byte.
#[test]
fn control_characters_are_raw_to_a_pipe() {
    let s = Sandbox::new();
    let evil = "a\u{1b}]0;title\u{7}\u{1b}[2J\u{9b}31m\r\u{202e}b\u{0}c";
    let server = ScriptedServer::always(Reply::chat_text(evil));
    assert_eq!(ask(&s, &server, &["go"]).exits(0).stdout, format!("{evil}\n"));
    let json = ask(&s, &server, &["--json", "go"]).exits(0);
    assert_eq!(json.json()["answer"], evil);
    assert!(!json.stdout.contains('\u{1b}'), "JSON escapes them");
    ask(&s, &server, &["-c", "a", "go"]).exits(0);
    assert_eq!(chat(&s, "chats/a.chat")[1].1, evil, "files keep the bytes");
}

/// C91: to a terminal they are shown, not obeyed. `script` gives the process a terminal.
#[test]
fn control_characters_are_visible_on_a_terminal() {
    let s = Sandbox::new();
    let server = ScriptedServer::start([
        Reply::chat_calls(&[("c", "echo", json!({"message": "x\u{1b}[2Jy"}))]),
        Reply::chat_text("a\u{1b}]0;title\u{7}b\u{9b}31mc\u{202e}d"),
    ]);
    s.endpoint("e", &server.url());
    let command = format!("{BIN} ask -e e -t echo go");
    let output = s
        .command("script", &["-qec", &command, "/dev/null"])
        .env("NO_COLOR", "1")
        .stdin(Stdio::null())
        .output();
    let Ok(output) = output else {
        eprintln!("SKIPPED: there is no `script` here, so no terminal was tried");
        return;
    };
    let shown = String::from_utf8_lossy(&output.stdout);
    assert!(
        shown.contains("a\\u{1b}]0;title\\u{7}b\\u{9b}31mc\\u{202e}d"),
        "{shown:?}"
    );
    assert!(
        shown.contains("x\\u{1b}[2Jy") || shown.contains("x\\u001b[2Jy"),
        "{shown:?}"
    );
    assert!(!shown.contains('\u{1b}') && !shown.contains('\u{9b}'), "{shown:?}");
}

#[test]
fn ten_megabytes_go_to_a_file_that_the_model_is_told_of() {
    let s = lab();
    let server = ScriptedServer::start([
        Reply::chat_calls(&[("c", "big", json!({}))]),
        Reply::chat_stream(&["ok"]),
    ]);
    let object = ask(&s, &server, &["-t", "Lab/big", "--json", "go"]).exits(0).json();
    let output = object["messages"]
        .as_array()
        .unwrap()
        .iter()
        .find(|m| m["role"] == "function_call_output")
        .unwrap();
    assert_eq!(output["content"]["truncated"], true);
    let text = output["content"]["content"].as_str().unwrap();
    assert!(
        text.len() < 10_000 && text.contains("10485760 characters"),
        "{}",
        &text[5900..text.len().min(6400)]
    );
    let results: Vec<_> = std::fs::read_dir(s.path(".decanus/results"))
        .unwrap()
        .flatten()
        .collect();
    assert_eq!(results.len(), 1);
    assert!(text.contains(results[0].path().to_str().unwrap()));
    assert_eq!(results[0].metadata().unwrap().len(), 10_485_760);
    assert_eq!(server.requests()[1].json()["messages"][2]["content"], text);
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let s = lab();
    let server = ScriptedServer::with(|_| Reply::chat_stream(&["line one\n"; 200]).paced(Duration::from_millis(5)));
    s.endpoint("e", &server.url());
    for args in [
        &["ask", "-e", "e", "go"][..],
        &["tool", "list"],
        &["tool", "list", "--json"],
    ] {
        let mut child = s
            .command(BIN, args)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut first = String::new();
        BufReader::with_capacity(16, child.stdout.take().unwrap())
            .read_line(&mut first)
            .unwrap();
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{args:?}");
        assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
fn a_stdout_that_is_full_is_an_error_and_no_panic() {
    let s = lab();
    let server = ScriptedServer::always(Reply::chat_text("ok"));
    s.endpoint("e", &server.url());
    for args in [
        &["ask", "-e", "e", "go"][..],
        &["ask", "-e", "e", "--json", "go"],
        &["tool", "list"],
    ] {
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let output = s.command(BIN, args).stdin(Stdio::null()).stdout(full).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{stderr}");
        assert!(
            stderr.contains("standard output can't be written") && !stderr.contains("panicked"),
            "{stderr}"
        );
    }
    // A closed stderr loses only what was for people.
    let mut child = s
        .command(BIN, &["ask", "-e", "e", "-o", "max_round=1", "go"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stderr.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(
        (output.status.code(), output.stdout.as_slice()),
        (Some(0), &b"ok\n"[..])
    );
    std::io::stdout().flush().unwrap();
}
