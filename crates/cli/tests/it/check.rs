//! `decanus chat check`: what a chat means, without running anything.

use decanus_testkit::Sandbox;
use serde_json::json;

use crate::support::*;

fn check(s: &Sandbox, chat: &str) -> decanus_testkit::Outcome {
    run(s, &["chat", "check", chat, "--json"])
}

#[test]
fn the_shape_for_machines() {
    let s = Sandbox::new();
    s.write("a.chat", "system: Be terse.\nuser: hi\n");
    assert_eq!(
        check(&s, "a.chat").exits(0).json(),
        json!({
            "messages": [{"role": "system", "content": "Be terse."}, {"role": "user", "content": "hi"}],
            "options": {}, "tools": [], "warnings": [], "errors": [],
        })
    );
    s.write("b.chat", "user:\n\n```\nsystem: ignore\n```\n");
    let checked = check(&s, "b.chat").exits(0).json();
    assert_eq!(
        checked["messages"],
        json!([{"role": "user", "content": "```\nsystem: ignore\n```"}])
    );
    let both = run(&s, &["chat", "check", "a.chat", "b.chat", "--json"])
        .exits(0)
        .json();
    assert_eq!(both.as_array().unwrap().len(), 2);
}

#[test]
fn everything_that_is_wrong_is_listed_by_line() {
    let s = lab();
    s.write(
        "a.chat",
        concat!(
            "endpoint: nowhere\noption: max_round 3\noption: limits.rounds many\noption: k 0.5\n",
            "tool: Lab greet tone=cold who\ntool: nope\ntool: Lab greet tone=blue who\ntool: calculator operand1 operand2 operation=add\n",
            "usr: hello\nuser: q\nfunction_call: {\"name\":\"f\",\"arguments\":{\"a\":1},\"id\":\"c1\"}\n",
            "function_call_output: {\"id\":\"zz\",\"content\":\"x\"}\nkb: genes\nfile: none.txt\n",
            "task: Lab greet whom=x\njob: Lab/greet/none\ntask: Lab greet who=x\n",
        ),
    );
    let checked = check(&s, "a.chat").exits(2).json();
    let lines = |key: &str| -> Vec<(u64, String)> {
        let list = checked[key].as_array().unwrap().iter();
        list.map(|f| (f["line"].as_u64().unwrap(), f["message"].as_str().unwrap().to_owned()))
            .collect()
    };
    insta::assert_debug_snapshot!(lines("warnings"));
    insta::assert_debug_snapshot!(lines("errors"));
    assert_eq!(checked["errors"][0]["file"], s.path("a.chat").to_str().unwrap());
    assert_eq!(checked["error"]["kind"], "usage");
    assert_eq!(checked["tools"], json!(["calculator", "greet"]));
    assert_eq!(
        checked["options"],
        json!({"endpoint": "nowhere", "max_round": 3, "limits.rounds": "many", "k": 0.5})
    );
    let messages: Vec<_> = checked["messages"]
        .as_array()
        .unwrap()
        .iter()
        .map(|m| &m["role"])
        .collect();
    assert_eq!(messages, ["user", "user", "function_call", "task"]);
    assert_eq!(checked["messages"][2]["content"]["arguments"]["a"], 1);
    assert_eq!(greeted(&s), 0);
}

#[test]
fn for_people() {
    let s = lab();
    s.write(
        "a.chat",
        "system: Be brief.\nmodel: m\ntool: Lab greet\ntask: Lab greet who=Ada\nusr: x\n",
    );
    insta::assert_snapshot!(both(&s, &run(&s, &["chat", "check", "a.chat"])));
}

/// C74: the cycle names both files, whatever the paths are that lead to them.
#[test]
fn cycles_and_files_that_are_no_chats() {
    let s = Sandbox::new();
    s.write("files/C74.a.chat", "import: C74.b.chat\n\nuser: hi\n");
    s.write("files/C74.b.chat", "import: ./../files/C74.a.chat\n");
    let failed = run(&s, &["chat", "check", "files/C74.a.chat"]).exits(2);
    assert!(
        failed
            .stderr
            .contains("files/C74.b.chat:1: Import cycle: files/C74.a.chat -> files/C74.b.chat -> files/C74.a.chat"),
        "{failed}"
    );
    s.write("ok.chat", "user: x\n");
    std::fs::write(s.path("latin.chat"), b"system: s\nuser: \xe9t\xe9\n").unwrap();
    let several = run(
        &s,
        &["chat", "check", "none.chat", "latin.chat", "files", "ok.chat", "--json"],
    )
    .exits(2);
    let errors: Vec<String> = several
        .json()
        .as_array()
        .unwrap()
        .iter()
        .map(|c| c["errors"][0]["message"].as_str().unwrap_or("-").to_owned())
        .collect();
    assert!(errors[0].contains("No such file"), "{errors:?}");
    assert!(errors[1].contains("not UTF-8 text"), "{errors:?}");
    assert_eq!(several.json()[1]["messages"][0]["content"], "s");
    assert_eq!(several.json()[1]["errors"][0]["line"], 2);
    assert!(errors[2].contains("files: not a file"), "{errors:?}");
    assert_eq!(errors[3], "-");
}

/// C53 and the damage of the contract: what did load is shown beside what is wrong.
#[test]
fn damage_is_listed_beside_what_did_load() {
    let s = Sandbox::new();
    s.write(
        "a.chat",
        "user: fine\nfunction_call: {oops\nuser: a\0b\nuser: also fine\n\nmeta: bytes=500\n\nassistant:\n\nhal",
    );
    let checked = check(&s, "a.chat").exits(2).json();
    assert_eq!(
        checked["messages"],
        json!([{"role": "user", "content": "fine"}, {"role": "user", "content": "also fine"}])
    );
    let lines: Vec<_> = checked["errors"]
        .as_array()
        .unwrap()
        .iter()
        .map(|e| e["line"].as_u64().unwrap())
        .collect();
    assert_eq!(lines, [2, 3]);
    assert!(checked["warnings"][0]["message"].as_str().unwrap().contains("cut off"));
    assert!(!s.path("a.chat.torn").exists());
}

#[test]
fn stored_results_are_shown_and_nothing_is_run() {
    let s = lab();
    s.write("a.chat", "task: Lab greet who=Ada\nuser: q\n");
    let before = check(&s, "a.chat").exits(0).json();
    assert_eq!(
        before["messages"][0],
        json!({"role": "task", "content": "Lab greet who=Ada"})
    );
    assert_eq!(greeted(&s), 0);
    run(&s, &["workflow", "run", "Lab", "greet", "who=Ada"]).exits(0);
    let after = check(&s, "a.chat").exits(0).json();
    assert_eq!(after["messages"][0]["role"], "function_call");
    assert_eq!(after["messages"][1]["content"]["content"], "hello Ada");
    assert_eq!(greeted(&s), 1);
}

/// The model would see the compacted conversation, and so does whoever checks.
#[test]
fn prompt_strategies_show() {
    let s = Sandbox::new();
    let pair = |i: usize| {
        let long = "x".repeat(1000);
        format!(
            "function_call: {{\"name\":\"f\",\"arguments\":{{\"i\":{i}}},\"id\":\"c{i}\"}}\n\
             function_call_output: {{\"id\":\"c{i}\",\"content\":\"{long}\"}}\n"
        )
    };
    let chat = |head: &str| format!("{head}user: q\n{}", (0..60).map(pair).collect::<String>());
    let sizes = |head: &str| -> (usize, usize) {
        s.write("a.chat", chat(head));
        let checked = check(&s, "a.chat").exits(0).json();
        let messages = checked["messages"].as_array().unwrap().clone();
        let outputs = messages.iter().filter(|m| m["role"] == "function_call_output");
        let whole = outputs
            .filter(|m| m["content"]["content"].as_str().unwrap().len() == 1000)
            .count();
        (messages.len(), whole)
    };
    // 60 calls: 10 new ones in the epoch and the 20 before it are whole, 30 are shortened.
    assert_eq!(sizes(""), (122, 30));
    assert_eq!(sizes("option: prompt_strategies none\n"), (121, 60));
    assert_eq!(sizes("option: prompt_strategies shorten_tools\n"), (121, 60));
    assert_eq!(sizes("config: epoch_tool_call_threshold 70 prompt\n"), (121, 60));
    let (messages, whole) = sizes("option: limits.context_tokens 6000\n");
    assert!(messages < 122 && whole < 30, "{messages} {whole}");
    s.write(
        "b.chat",
        "option: prompt_strategies shorten_tool\noption: limits.context_tokens 20\nuser: q\n",
    );
    let failed = run(&s, &["chat", "check", "b.chat"]).exits(2);
    assert!(failed.stderr.contains("shorten_tools"), "{failed}");
    s.write(
        "c.chat",
        format!("option: limits.context_tokens 20\nuser: {}\n", "word ".repeat(100)),
    );
    let failed = run(&s, &["chat", "check", "c.chat"]).exits(2);
    assert!(failed.stderr.contains("20"), "{failed}");
}

/// What is beside a chat that was named may be read, hidden files may not, and nothing further away.
#[test]
fn a_chat_elsewhere_reads_what_is_beside_it() {
    let s = Sandbox::new();
    let outside = Sandbox::new();
    outside.write("d/a.chat", "import: b.chat\nfile: in/x.txt\n");
    outside.write("d/b.chat", "user: b\n");
    outside.write("d/in/x.txt", "x");
    let chat = outside.path("d/a.chat").display().to_string();
    assert_eq!(
        check(&s, &chat).exits(0).json()["messages"].as_array().unwrap().len(),
        2
    );
    outside.write("d/.secret/key", "k");
    outside.write("e.txt", "e");
    for line in ["file: .secret/key", "file: ../e.txt", "directory: .secret"] {
        outside.write("d/a.chat", format!("{line}\n"));
        let refused = check(&s, &chat).exits(2);
        assert!(refused.stderr.contains("outside the project"), "{line}: {refused}");
    }
}

#[test]
fn faults_of_settings_have_their_lines() {
    let s = Sandbox::new();
    for line in [
        "option: prompt_strategies foo",
        "config: epoch_size x",
        "option: limits.context_tokens 1",
        "option: stream false",
        "option: persist maybe",
        "provider: x",
    ] {
        s.write("a.chat", format!("system: s\n{line}\nuser: q\n"));
        let checked = check(&s, "a.chat").exits(2).json();
        assert_eq!(checked["errors"][0]["line"], 2, "{line}: {checked}");
        assert_eq!(checked["errors"].as_array().unwrap().len(), 1, "{line}: {checked}");
    }
    s.write("a.chat", "user:= \"open\nuser: q\n");
    let checked = check(&s, "a.chat").exits(0).json();
    assert!(
        checked["warnings"][0]["message"]
            .as_str()
            .unwrap()
            .contains("whole JSON string")
    );
}

/// Nothing here grows with the square of the chat: what did would not end within the sandbox's time.
#[test]
fn large_chats_are_checked_at_once() {
    let s = Sandbox::new();
    let many = |line: &dyn Fn(usize) -> String| -> String { (0..20_000).map(line).collect() };
    for text in [
        many(&|i| format!("function_call: {{\"name\":\"echo\",\"arguments\":{{}},\"id\":\"c{i}\"}}\n")),
        many(&|_| "user: a\nclear_calls:\n".to_owned()),
        many(&|i| format!("option: a{i} 1\n")),
        many(&|_| "function_call: {oops\n".to_owned()),
        format!("meta: {}\n", many(&|i| format!("k{i}=1 "))),
    ] {
        s.write("a.chat", &text);
        let checked = run(&s, &["chat", "check", "a.chat", "--json"]);
        assert!(!checked.timed_out, "{}", &text[..40]);
    }
}
