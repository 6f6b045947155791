//! What can go wrong with the one who is asked, and the exit code for it.

use decanus_testkit::reply::chat_events;
use decanus_testkit::{Piece, Reply, Sandbox, ScriptedServer};
use serde_json::{Value, json};

use crate::support::*;

#[test]
fn unknown_names_are_usage() {
    let s = lab();
    s.endpoint("mine", "http://127.0.0.1:9/v1");
    for (args, says) in [
        (&["ask", "-e", "mien", "x"][..], "did you mean mine?"),
        (
            &["ask", "-e", "mine", "-t", "calculatr", "x"],
            "did you mean calculator?",
        ),
        (&["ask", "-e", "mine", "-t", "Lab/gret", "x"], "did you mean greet?"),
        (&["ask", "-e", "mine", "-t", "Lob", "x"], "did you mean Lab?"),
    ] {
        let outcome = run(&s, &[args, &["--json"]].concat()).exits(2);
        assert!(outcome.stderr.contains(says), "{outcome}");
        let object = outcome.json();
        assert_eq!(object["error"]["kind"], "usage");
        assert!(object["error"]["message"].as_str().unwrap().contains(says), "{object}");
    }
    let s = Sandbox::new();
    s.write(
        "endpoints/e.yaml",
        "backend: opnai\nurl: http://127.0.0.1:9\nmodel: m\n",
    );
    let outcome = run(&s, &["ask", "-e", "e", "x", "--json"]).exits(2);
    assert!(
        outcome.stderr.contains("opnai") && outcome.stderr.contains("openai"),
        "{outcome}"
    );
    s.write(
        "endpoints/e.yaml",
        "backend: openai\nurl: http://127.0.0.1:9\nmodel: m\nkey_env: NO_SUCH_VARIABLE_X\n",
    );
    let outcome = run(&s, &["ask", "-e", "e", "x", "--json"]).exits(2);
    assert!(
        outcome.stderr.contains("NO_SUCH_VARIABLE_X") && outcome.stderr.contains("e.yaml:4"),
        "{outcome}"
    );
    assert_eq!(outcome.json()["error"]["kind"], "config");
}

#[test]
fn a_model_that_the_provider_does_not_have() {
    let s = Sandbox::new();
    let server = ScriptedServer::always(Reply::error(404, "model_not_found", "The model `nope` does not exist"));
    let outcome = ask(&s, &server, &["-m", "nope", "--json", "x"]).exits(3);
    assert!(
        outcome.stderr.contains("The model `nope` does not exist") && outcome.stderr.contains("hint:"),
        "{outcome}"
    );
    assert_eq!(outcome.json()["error"]["kind"], "provider");
}

#[test]
fn a_provider_that_refuses() {
    let s = Sandbox::new();
    let refusal = Reply::error(401, "invalid_api_key", "Incorrect API key provided");
    let server = ScriptedServer::start([refusal]);
    let outcome = ask(&s, &server, &["-c", "a", "--json", "x"]).exits(3);
    assert!(
        outcome.stderr.contains("401") && outcome.stderr.contains("Incorrect API key"),
        "{outcome}"
    );
    let object = outcome.json();
    assert_eq!(object["error"]["kind"], "provider");
    assert_eq!(
        (object["answer"].as_str(), object["rounds"].as_i64()),
        (Some(""), Some(1))
    );
    assert_eq!(
        chat(&s, "chats/a.chat"),
        [("user".to_owned(), "x".to_owned())],
        "the question is kept"
    );
    server.verify();
    // Going on needs no second question.
    let server = ScriptedServer::start([Reply::chat_text("now")]);
    assert_eq!(ask(&s, &server, &["-c", "a"]).exits(0).stdout, "now\n");
}

#[test]
fn a_provider_that_stumbles_is_asked_again() {
    let s = Sandbox::new();
    let stumble = || Reply::error(500, "server_error", "try again");
    let server = ScriptedServer::start([stumble(), Reply::chat_text("better")]);
    assert_eq!(ask(&s, &server, &["x"]).exits(0).stdout, "better\n");
    server.verify();
    let server = ScriptedServer::always(stumble());
    s.write(
        "endpoints/e2.yaml",
        format!("backend: openai\nurl: {}\nmodel: m\nretries: 1\n", server.url()),
    );
    let outcome = run(&s, &["ask", "-e", "e2", "--json", "x"]).exits(3);
    assert_eq!(outcome.json()["error"]["kind"], "provider");
    assert_eq!(server.requests().len(), 2);
}

#[test]
fn a_provider_that_is_not_there() {
    let s = Sandbox::new();
    let port = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    s.write(
        "endpoints/e.yaml",
        format!("backend: openai\nurl: http://127.0.0.1:{port}/v1\nmodel: m\nretries: 0\n"),
    );
    let outcome = run(&s, &["ask", "-e", "e", "--json", "x"]).exits(3);
    assert!(
        outcome.stderr.contains("can't be reached") && outcome.stderr.contains("hint:"),
        "{outcome}"
    );
    assert_eq!(outcome.json()["error"]["kind"], "provider");
}

#[test]
fn an_answer_that_breaks_off_keeps_what_came() {
    let s = Sandbox::new();
    let body = chat_events(&[json!({"content": "Once "}), json!({"content": "upon"})], "stop");
    let end = body.find("upon\"").unwrap() + "upon\"},\"finish_reason\":null}]}\n\n".len();
    let broken = || Reply::sse(&body.as_bytes()[..end]).then(Piece::Close);
    let server = ScriptedServer::start([broken()]);
    let plain = ask(&s, &server, &["x"]).exits(3);
    assert_eq!(plain.stdout, "Once upon\n", "{plain}");
    server.verify();
    let server = ScriptedServer::start([broken()]);
    let outcome = ask(&s, &server, &["-c", "a", "--json", "x"]).exits(3);
    let object = outcome.json();
    assert_eq!(object["error"]["kind"], "incomplete");
    assert_eq!(object["answer"], "Once upon");
    assert_eq!(chat(&s, "chats/a.chat").len(), 1, "half an answer is no answer");
}

#[test]
fn an_empty_answer_is_not_taken_for_one() {
    let s = Sandbox::new();
    let server = ScriptedServer::always(Reply::chat_text(""));
    let outcome = ask(&s, &server, &["--json", "x"]).exits(3);
    assert!(outcome.stderr.contains("empty answer"), "{outcome}");
    assert_eq!(server.requests().len(), 2);
}

#[test]
fn limits_are_named_and_keep_the_conversation() {
    let s = lab();
    let n = std::sync::atomic::AtomicUsize::new(0);
    let server = ScriptedServer::with(move |_| {
        let n = n.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        Reply::chat_calls(&[(&format!("c{n}"), "echo", json!({"message": n.to_string()}))])
    });
    let outcome = ask(
        &s,
        &server,
        &["-t", "echo", "-c", "a", "-o", "max_rounds=3", "--json", "x"],
    )
    .exits(5);
    assert!(
        outcome.stderr.contains("limit of 3 rounds") && outcome.stderr.contains("limits.rounds"),
        "{outcome}"
    );
    let object = outcome.json();
    assert_eq!(
        (object["limit"].as_str(), object["error"]["kind"].as_str()),
        (Some("rounds"), Some("limit"))
    );
    assert_eq!(object["rounds"], 3);
    assert_paired(&s, "chats/a.chat");
    assert_eq!(chat(&s, "chats/a.chat").len(), 7);
    let server = ScriptedServer::always(Reply::chat_calls(&[("c", "echo", json!({"message": "same"}))]));
    let outcome = ask(&s, &server, &["-t", "echo", "--json", "x"]).exits(5);
    assert_eq!(outcome.json()["limit"], "identical_calls");
    assert_eq!(outcome.json()["rounds"], 6);
    // The project's own settings hold, and an option is above them.
    s.write("decanus.toml", "[limits]\nrounds = 2\n");
    assert_eq!(
        ask(&s, &server, &["-t", "echo", "--json", "x"]).exits(5).json()["rounds"],
        2
    );
    assert_eq!(
        ask(&s, &server, &["-t", "echo", "-o", "limits.rounds=1", "--json", "x"])
            .exits(5)
            .json()["rounds"],
        1
    );
}

#[test]
fn a_task_that_fails_is_told_to_the_model() {
    let s = lab();
    let file = s.path("pids");
    let server = ScriptedServer::start([
        Reply::chat_calls(&[
            ("a", "fails", json!({})),
            ("b", "hangs", json!({"pids": file.to_str().unwrap()})),
            ("c", "greet", json!({"who": "Ada", "times": "2", "colour": "red"})),
            ("d", "greet", json!({"times": 9})),
        ]),
        Reply::chat_stream(&["Two failed."]),
    ]);
    let outcome = ask(&s, &server, &["-t", "Lab", "-o", "limits.tool_time=1s", "--json", "x"]).exits(0);
    let messages = server.requests()[1].json()["messages"].clone();
    let output = |id: &str| {
        let all: &Vec<Value> = messages.as_array().unwrap();
        all.iter().find(|m| m["tool_call_id"] == id).unwrap()["content"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    assert!(output("a").contains("the disk is on fire"), "{}", output("a"));
    assert!(output("b").contains("longer than 1"), "{}", output("b"));
    assert!(
        output("c").starts_with("hello Ada") && output("c").contains("`colour`"),
        "{}",
        output("c")
    );
    assert!(output("d").contains("who"), "{}", output("d"));
    assert_eq!(outcome.json()["answer"], "Two failed.");
    assert_gone(&pids(&file));
}
