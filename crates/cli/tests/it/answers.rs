//! The answer cache, answers with a form, usage, snapshots.

use std::os::unix::fs::PermissionsExt;

use decanus_testkit::{Reply, Sandbox, ScriptedServer};
use serde_json::{Value, json};

use crate::support::*;

fn inference(s: &Sandbox, chat_file: &str) -> Vec<String> {
    let text = s.read(chat_file);
    let ids = text.lines().filter_map(|l| l.split("inference_id=").nth(1));
    ids.map(|rest| rest.split(' ').next().unwrap().to_owned()).collect()
}

#[test]
fn the_same_request_is_answered_once() {
    let s = lab();
    let server = ScriptedServer::start([
        Reply::chat_call_stream(&[("c1", "greet", json!({"who": "Ada"}))]),
        Reply::chat_stream(&["Greeted."]),
        Reply::chat_stream(&["Anew."]),
        Reply::chat_call_stream(&[("c1", "greet", json!({"who": "Ada"}))]),
        Reply::chat_stream(&["Not kept."]),
    ]);
    let question = ["-t", "Lab/greet", "Greet Ada"];
    let first = ask(&s, &server, &[&["-c", "a"], &question[..]].concat()).exits(0);
    let second = ask(&s, &server, &[&["-c", "b"], &question[..]].concat()).exits(0);
    assert_eq!(
        (first.stdout.as_str(), second.stdout.as_str()),
        ("Greeted.\n", "Greeted.\n")
    );
    assert!(second.stderr.contains("from the cache"), "{second}");
    assert_eq!(server.requests().len(), 2);
    // The ids stay, so that what was asked once is counted once; the call was dispatched, and its job answered.
    assert_eq!(inference(&s, "chats/a.chat"), inference(&s, "chats/b.chat"));
    assert_eq!(greeted(&s), 1);
    let tokens = run(&s, &["prov", "chats/b.chat", "--json"]).exits(0).json()["tokens"]["tt"].clone();
    assert_eq!(tokens, 30);

    assert_eq!(ask(&s, &server, &["--no-cache", "Hello"]).exits(0).stdout, "Anew.\n");
    assert_eq!(
        run(&s, &["cache", "list", "--json"])
            .exits(0)
            .json()
            .as_array()
            .unwrap()
            .len(),
        2
    );
    let persist = [&["-o", "persist=false"], &question[..]].concat();
    assert_eq!(ask(&s, &server, &persist).exits(0).stdout, "Not kept.\n");
    assert_eq!(
        run(&s, &["cache", "list", "--json"])
            .exits(0)
            .json()
            .as_array()
            .unwrap()
            .len(),
        2
    );
}

/// C52: what makes a request another one, and what does not.
#[test]
fn a_miss_says_what_differs() {
    let s = lab();
    let server = ScriptedServer::always(Reply::chat_text("ok"));
    s.endpoint("e", &server.url());
    let why = |extra: &[&str]| -> Value {
        let args = [&["cache", "why", "-e", "e", "-t", "echo"], extra, &["--json", "q"]].concat();
        run(&s, &args).exits(0).json()
    };
    assert_eq!(why(&[])["nearest"], Value::Null);
    ask(&s, &server, &["-t", "echo", "-o", "temperature=0", "q"]).exits(0);
    for same in [
        &["-o", "temperature=0"][..],
        &["-o", "temperature=0", "--no-stream", "-o", "timeout=5s"],
    ] {
        assert_eq!(why(same)["hit"], true, "{same:?}");
    }
    for (other, says) in [
        (&["-o", "temperature=1"][..], "parameter temperature: 0 -> 1"),
        (&[], "parameter temperature is gone"),
        (&["-o", "temperature=0", "-m", "m2"], "model: "),
        (&["-o", "temperature=0", "-t", "calculator"], "tool calculator is new"),
        (
            &["-o", "temperature=0", "-o", "tool_choice=required"],
            "parameter tool_choice is new",
        ),
    ] {
        let found = why(other);
        assert_eq!(found["hit"], false);
        assert!(found["differences"].to_string().contains(says), "{other:?}: {found}");
    }
    let text = run(&s, &["cache", "why", "-e", "e", "other"]).exits(0);
    assert!(
        text.stdout.starts_with("miss: ") && text.stdout.contains("messages: the first 0 are equal"),
        "{text}"
    );
    assert_eq!(
        run(&s, &["cache", "clear"]).exits(0).stdout,
        "1 stored answers removed\n"
    );
    assert_eq!(run(&s, &["cache", "list"]).exits(0).stdout, "");
}

#[test]
fn failures_and_keys_are_not_in_the_cache() {
    let s = Sandbox::new();
    let server = ScriptedServer::start([
        Reply::error(400, "bad", "no"),
        Reply::chat_stream(&["half"]).cut_after(60),
        Reply::chat_stream(&["whole"]),
    ]);
    s.write(
        "endpoints/e.yaml",
        format!(
            "backend: openai\nurl: {}\nmodel: m\nkey: sk-SENTINEL\nretries: 0\n",
            server.url()
        ),
    );
    let ask = || run(&s, &["ask", "-e", "e", "q"]);
    ask().exits(3);
    ask().exits(3);
    ask().exits(0);
    assert_eq!(ask().exits(0).stdout, "whole\n");
    let mut found = Vec::new();
    let mut open = vec![s.path(".decanus")];
    while let Some(dir) = open.pop() {
        for entry in std::fs::read_dir(dir).unwrap().flatten() {
            match entry.file_type().unwrap().is_dir() {
                true => open.push(entry.path()),
                false => found.push(entry.path()),
            }
        }
    }
    assert!(found.iter().any(|f| f.to_string_lossy().contains("cache/answers")));
    for file in found {
        assert!(
            !String::from_utf8_lossy(&std::fs::read(&file).unwrap()).contains("SENTINEL"),
            "{file:?}"
        );
    }
}

#[test]
fn a_failed_request_leaves_a_snapshot() {
    let s = Sandbox::new();
    let server = ScriptedServer::start([Reply::error(400, "bad", "the key sk-SENTINEL is not for this")]);
    s.write(
        "endpoints/e.yaml",
        format!("backend: openai\nurl: {}\nmodel: m\nkey: sk-SENTINEL\n", server.url()),
    );
    let failed = run(&s, &["ask", "-e", "e", "--json", "my key is sk-SENTINEL"]).exits(3);
    let path = failed.json()["error"]["snapshot"].as_str().unwrap().to_owned();
    assert!(failed.stderr.contains(&path), "{failed}");
    let text = std::fs::read_to_string(&path).unwrap();
    let snapshot: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(snapshot["error"]["kind"], "provider");
    assert_eq!(snapshot["request"]["messages"][0]["role"], "user");
    assert!(!text.contains("SENTINEL"), "{text}");
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
}

#[test]
fn an_answer_with_a_form_is_checked_and_asked_for_once_more() {
    let s = Sandbox::new();
    let schema = json!({"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]});
    s.write("n.json", schema.to_string());
    let server = ScriptedServer::start([
        Reply::chat_stream(&["Sure: ", "```json\n{\"n\": 5}\n```"]),
        Reply::chat_stream(&["{\"n\": \"five\"}"]),
        Reply::chat_stream(&["{\"n\": 6}"]),
        Reply::chat_stream(&["five"]),
        Reply::chat_stream(&["six"]),
        Reply::chat_stream(&["[1, 2]"]),
    ]);
    let first = ask(&s, &server, &["--schema", "n.json", "one"]).exits(0);
    assert_eq!(first.stdout, "{\"n\": 5}\n");
    let sent = server.requests()[0].json()["response_format"].clone();
    assert_eq!(
        (&sent["type"], &sent["json_schema"]["schema"]),
        (&json!("json_schema"), &schema)
    );
    let second = ask(&s, &server, &["--schema", "n.json", "-c", "a", "two"]).exits(0);
    assert_eq!(second.stdout, "{\"n\": 6}\n");
    assert!(second.stderr.contains("asking once more"), "{second}");
    let repair = server.requests()[2].json()["messages"][2]["content"].clone();
    assert!(repair.as_str().unwrap().contains("/n"), "{repair}");
    let third = ask(&s, &server, &["--schema", "n.json", "--json", "three"]).exits(1);
    assert_eq!(third.json()["error"]["kind"], "schema");
    s.write("chats/b.chat", "format: json\nuser: list\n");
    assert_eq!(ask(&s, &server, &["-c", "b"]).exits(0).stdout, "[1, 2]\n");
    s.write("bad.json", "{\"type\": \"nonsense\"}");
    for file in ["none.json", "bad.json"] {
        let failed = ask(&s, &server, &["--schema", file, "x"]).exits(2);
        assert!(failed.stderr.contains("--schema"), "{failed}");
    }
}

#[test]
fn usage_and_cost_are_shown_and_bounded() {
    let s = Sandbox::new();
    let server = ScriptedServer::always(Reply::chat_call_stream(&[("c", "echo", json!({"message": "again"}))]));
    s.write(
        "endpoints/e.yaml",
        format!(
            "backend: openai\nurl: {}\nmodel: m\nkey: k\nprices: {{input: 1000, output: 2000}}\n",
            server.url()
        ),
    );
    let limited = |limit: &str| {
        let args = [
            "ask",
            "-e",
            "e",
            "-t",
            "echo",
            "--no-cache",
            "--usage",
            "--json",
            "-o",
            limit,
            "q",
        ];
        run(&s, &args).exits(5)
    };
    // Each request has 10 + 5 tokens: 0.02 by these prices.
    let tokens = limited("limits.tokens=30");
    assert_eq!(tokens.json()["limit"], "tokens");
    assert_eq!(
        (tokens.json()["rounds"].as_u64(), tokens.json()["usage"]["tt"].as_u64()),
        (Some(2), Some(30))
    );
    assert!(
        tokens.stderr.contains("tokens: 20 prompt, 10 completion, 30 total") && tokens.stderr.contains("cost 0.04"),
        "{tokens}"
    );
    let cost = limited("limits.cost=0.05");
    assert_eq!(
        (cost.json()["limit"].as_str(), cost.json()["rounds"].as_u64()),
        (Some("cost"), Some(3))
    );
    assert!(
        (cost.json()["usage"]["cost"].as_f64().unwrap() - 0.06).abs() < 1e-9,
        "{cost}"
    );
}

/// Half an answer is not kept, and neither is one that did not fit.
#[test]
fn answers_of_no_use_are_not_kept() {
    let s = Sandbox::new();
    s.write("n.json", "{\"type\": \"integer\"}");
    let cut = json!({"choices": [{"message": {"content": "half"}, "finish_reason": "length"}]});
    let server = ScriptedServer::start([
        Reply::json(200, &cut),
        Reply::chat_text("whole"),
        Reply::chat_text("one"),
        Reply::chat_text("two"),
        Reply::chat_text("3"),
    ]);
    let once = |args: &[&str]| ask(&s, &server, &[&["--no-stream"], args].concat());
    assert_eq!(once(&["q"]).exits(0).stdout, "half\n");
    assert_eq!(once(&["q"]).exits(0).stdout, "whole\n");
    once(&["--schema", "n.json", "n"]).exits(1);
    assert_eq!(once(&["--schema", "n.json", "n"]).exits(0).stdout, "3\n");
}

/// Gateways choose the model by a query or a header: the same body to another one is another request.
#[test]
fn routes_are_part_of_the_key() {
    let s = Sandbox::new();
    let server = ScriptedServer::start([Reply::chat_text("a"), Reply::chat_text("b"), Reply::chat_text("c")]);
    let endpoint = |url: &str, header: &str| {
        let text = format!(
            "backend: openai\nurl: {}{url}\nmodel: m\nkey: k\nheaders: {{x-route: {header}}}\n",
            server.url()
        );
        s.write("endpoints/e.yaml", text);
        run(&s, &["ask", "-e", "e", "q"]).exits(0).stdout
    };
    assert_eq!(endpoint("?deployment=1", "x"), "a\n");
    assert_eq!(endpoint("?deployment=2", "x"), "b\n");
    assert_eq!(endpoint("?deployment=2", "y"), "c\n");
    assert_eq!(endpoint("?deployment=1", "x"), "a\n");
}
