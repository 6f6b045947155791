//! Limits of endpoints, and endpoints that are asked when another one fails.

use decanus_testkit::{Reply, Sandbox, ScriptedServer};
use serde_json::json;

use crate::support::*;

fn busy() -> Reply {
    Reply::error(503, "busy", "come back later")
}

/// `a` tries once and then `b`.
fn two(s: &Sandbox, a: &ScriptedServer, b: &ScriptedServer) {
    let file = |url: String, more: &str| format!("backend: openai\nurl: {url}\nmodel: scripted\nretries: 0\n{more}");
    s.write("endpoints/a.yaml", file(a.url(), "fallback: [b]\n"));
    s.write(
        "endpoints/b.yaml",
        file(b.url(), "prices: {input: 1000000, output: 0}\nmax_concurrency: 1\n"),
    );
}

#[test]
fn another_endpoint_answers_and_the_user_is_told() {
    let s = lab();
    let a = ScriptedServer::start([busy()]);
    let b = ScriptedServer::start([
        Reply::chat_call_stream(&[("c1", "greet", json!({"who": "Ada"}))]),
        Reply::chat_stream(&["Greeted."]),
    ]);
    two(&s, &a, &b);
    let args = ["ask", "-e", "a", "-t", "Lab/greet", "-c", "talk", "Greet Ada"];
    let outcome = run(&s, &args).exits(0);
    assert_eq!(outcome.stdout, "Greeted.\n");
    let warning = outcome
        .stderr
        .lines()
        .find(|l| l.contains("endpoint a failed"))
        .unwrap();
    assert!(
        warning.contains("warning") && warning.contains("come back later") && warning.ends_with("; asking b"),
        "{outcome}"
    );
    assert_eq!(outcome.stderr.matches("endpoint a failed").count(), 1, "{outcome}");
    assert_eq!(greeted(&s), 1);
    assert_paired(&s, "chats/talk.chat");
    a.verify();
    b.verify();
    // What b gave to a's request is not taken for a's answer.
    let a = ScriptedServer::start([busy()]);
    let b = ScriptedServer::start([Reply::chat_text("Anew.")]);
    two(&s, &a, &b);
    let events = run(&s, &["ask", "-e", "a", "-t", "Lab/greet", "--events", "Greet Ada"]).exits(0);
    let warnings: Vec<&str> = events
        .stdout
        .lines()
        .filter(|l| l.contains(r#""event":"warning""#))
        .collect();
    assert!(warnings.len() == 1 && warnings[0].contains("asking b"), "{events}");
    a.verify();
    b.verify();
}

#[test]
fn the_prices_of_the_one_that_answers_count() {
    let s = lab();
    let a = ScriptedServer::start([busy()]);
    // 10 tokens at 1 each.
    let b = ScriptedServer::start([Reply::chat_calls(&[("c1", "greet", json!({"who": "Ada"}))])]);
    two(&s, &a, &b);
    let args = ["ask", "-e", "a", "-t", "Lab/greet", "-o", "limits.cost=5", "Greet Ada"];
    let outcome = run(&s, &args);
    assert!(
        outcome.code != 0 && outcome.stderr.contains("the run has cost 10.0"),
        "{outcome}"
    );
    a.verify();
    b.verify();
}

#[test]
fn when_all_fail_the_snapshot_is_of_the_last() {
    let s = Sandbox::new();
    let (a, b) = (
        ScriptedServer::start([busy()]),
        ScriptedServer::start([Reply::error(500, "oops", "broken")]),
    );
    two(&s, &a, &b);
    let outcome = run(&s, &["ask", "-e", "a", "--json", "x"]).exits(3);
    assert!(
        outcome.json()["error"]["message"].as_str().unwrap().contains("broken"),
        "{outcome}"
    );
    let folder = s.path(".decanus/logs/failed");
    let file = std::fs::read_dir(folder).unwrap().next().unwrap().unwrap().path();
    let snapshot: serde_json::Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    assert_eq!(snapshot["endpoint"], "b");
    assert!(snapshot["target"].as_str().unwrap().contains(&b.address().to_string()));
}

#[test]
fn faults_of_the_files_are_told_before_anything_is_asked() {
    let s = Sandbox::new();
    for (fields, says) in [
        (
            "max_concurrency: none",
            "endpoints/e.yaml:4: max_concurrency: expected a whole number, 1 or more",
        ),
        (
            "requests_per_minute: -1",
            "endpoints/e.yaml:4: requests_per_minute: expected a number above 0",
        ),
        (
            "tokens_per_minute: []",
            "endpoints/e.yaml:4: tokens_per_minute: expected",
        ),
        (
            "fallback: [nobody]",
            "endpoints/e.yaml:4: fallback: unknown endpoint `nobody`",
        ),
        (
            "fallback: e",
            "endpoints/e.yaml:4: fallback: it leads back to itself: e -> e",
        ),
    ] {
        let file = format!("backend: openai\nurl: http://127.0.0.1:9/v1\nmodel: m\n{fields}\n");
        s.write("endpoints/e.yaml", file);
        let outcome = run(&s, &["ask", "-e", "e", "--json", "x"]);
        assert!(outcome.code != 0 && outcome.stderr.contains(says), "{outcome}");
        assert_eq!(outcome.json()["error"]["kind"], "config");
        let list = run(&s, &["endpoint", "list", "--json"]).exits(0).json();
        let listed = list.as_array().unwrap().iter().find(|e| e["name"] == "e").unwrap();
        assert!(listed["error"].as_str().unwrap().contains(says), "{listed}");
    }
}

#[test]
fn a_prompt_that_ollama_cut_is_warned_of() {
    let s = Sandbox::new();
    let server = ScriptedServer::always(Reply::json(
        200,
        &json!({"model": "m", "message": {"role": "assistant", "content": "ok"}, "done": true, "done_reason": "stop",
            "prompt_eval_count": 2000, "eval_count": 1}),
    ));
    let url = format!("http://{}", server.address());
    s.write("endpoints/e.yaml", format!("backend: ollama\nurl: {url}\nmodel: m\n"));
    s.write("long.txt", "word ".repeat(20_000));
    let question = std::fs::read(s.path("long.txt")).unwrap();
    let outcome = s.run_with(BIN, &["ask", "-e", "e", "-"], &question).exits(0);
    assert_eq!(outcome.stdout, "ok\n");
    assert!(outcome.stderr.contains("num_ctx"), "{outcome}");
}
