//! `decanus endpoint`.

use decanus_testkit::{Reply, Sandbox, ScriptedServer};

use crate::support::*;

fn project() -> Sandbox {
    let s = Sandbox::new();
    s.write(
        "endpoints/mine.yaml",
        "backend: openai\nurl: http://user:pw-SENTINEL@127.0.0.1:9/v1?token=tok-SENTINEL\nmodel: m\nkey: sk-SENTINEL\n",
    );
    s.write("endpoints/broken.yaml", "backend: openai\nurl: [\n");
    s.write(
        "endpoints/odd.yaml",
        "backend: openai\nurl: http://127.0.0.1:9/v1\nmodel: m\ntimeout: {connect: 1s}\n",
    );
    s
}

#[test]
fn list_and_show_never_print_a_key() {
    let s = project();
    for args in [
        &["endpoint", "list"][..],
        &["endpoint", "list", "--json"],
        &["endpoint", "show", "mine"],
        &["endpoint", "show", "mine", "--json"],
        &["doctor"],
        &["doctor", "--json"],
        &["ask", "-e", "mine", "--dry-run", "hi"],
        &["ask", "-e", "mine", "--dry-run", "--json", "hi"],
    ] {
        let outcome = run(&s, args);
        assert!(
            !outcome.stdout.contains("SENTINEL") && !outcome.stderr.contains("SENTINEL"),
            "{args:?}: {outcome}"
        );
    }
    let list = run(&s, &["endpoint", "list", "--json"]).exits(0).json();
    let names: Vec<&str> = list
        .as_array()
        .unwrap()
        .iter()
        .map(|e| e["name"].as_str().unwrap())
        .collect();
    let all = [
        "anthropic",
        "bedrock",
        "broken",
        "gemini",
        "huggingface",
        "local",
        "mine",
        "odd",
        "ollama",
        "openai",
        "openwebui",
        "responses",
        "vllm",
    ];
    assert_eq!(names, all);
    assert!(list[2]["error"].as_str().unwrap().contains("endpoints/broken.yaml:"));
    let mine = run(&s, &["endpoint", "show", "mine", "--json"]).exits(0).json();
    assert_eq!(
        (mine["key_set"].as_bool(), mine["model"].as_str()),
        (Some(true), Some("m"))
    );
    let unknown = run(&s, &["endpoint", "show", "mien", "--json"]).exits(2).json();
    assert!(
        unknown["error"]["message"]
            .as_str()
            .unwrap()
            .contains("did you mean mine?")
    );
}

#[test]
fn a_test_tries_an_answer_a_tool_and_a_stream() {
    let s = Sandbox::new();
    let server = ScriptedServer::with(|request| {
        let body = request.json();
        match (body["tools"].is_array(), body["messages"].as_array().unwrap().len()) {
            (true, 1) => Reply::chat_calls(&[("c", "echo", serde_json::json!({"message": "hello"}))]),
            _ => Reply::chat_stream(&["Hello", "!"]),
        }
    });
    s.endpoint("e", &server.url());
    let plain = run(&s, &["endpoint", "test", "e"]).exits(0);
    let lines: Vec<&str> = plain.stdout.lines().collect();
    assert!(
        lines[0].starts_with("e answers in ") && lines[0].ends_with(": Hello!"),
        "{plain}"
    );
    for (line, name) in lines[1..].iter().zip(["answer", "tool", "stream"]) {
        assert!(
            line.starts_with(name) && line.contains("ok") && line.ends_with("works"),
            "{plain}"
        );
    }
    let streams: Vec<bool> = server.requests().iter().map(|r| r.json()["stream"] == true).collect();
    assert_eq!(streams, [false, false, false, true]);
    let json = run(&s, &["endpoint", "test", "e", "--json"]).exits(0).json();
    assert_eq!(
        (json["ok"].as_bool(), json["answer"].as_str()),
        (Some(true), Some("Hello!"))
    );
    assert_eq!(json["checks"].as_array().unwrap().len(), 3);
    let refused = ScriptedServer::always(Reply::error(401, "invalid_api_key", "bad key"));
    s.endpoint("e", &refused.url());
    let outcome = run(&s, &["endpoint", "test", "e", "--json"]).exits(3);
    assert_eq!(outcome.json()["error"]["kind"], "provider");
    assert!(
        outcome.stderr.contains("bad key") && outcome.stderr.contains("hint:"),
        "{outcome}"
    );
    run(&s, &["endpoint", "test", "nobody"]).exits(2);
}
