//! `decanus replay`: the calls of a saved chat, made again without a model.

use decanus_testkit::{Outcome, Reply, Sandbox, ScriptedServer};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::support::*;

/// Tasks that count their runs: `total` depends on `rows`, and both write a line into `runs`, which is no part of what they
/// are.
const SUMS: &str = r#"
title: Sums
description: Adds up.
tasks:
  rows:
    description: The numbers of a file, one a line.
    inputs: {data: {type: file, required: true}}
    run: [sh, rows.sh, "{workflow_dir}", "{data}"]
    result: array
  total:
    description: Their sum.
    depends: [rows]
    result: integer
    sh: 'd=$DECANUS_WORKFLOW_DIR; echo total >> "$d/runs"; n=0; while read -r x || [ -n "$x" ]; do n=$((n+x)); done < "$DECANUS_DEP_rows"; echo $n'
  fails:
    description: Always fails.
    sh: 'echo "no paper" >&2; exit 3'
  long:
    description: Prints much.
    sh: 'seq 1 30000'
"#;
const ROWS: &str = "echo rows >> \"$1/runs\"\ncat \"$2\"\n";

fn sums() -> Sandbox {
    let s = Sandbox::new();
    s.write("workflows/Sums/workflow.yaml", SUMS);
    s.write("workflows/Sums/rows.sh", ROWS);
    s.write("data/numbers.txt", "1\n2\n3\n");
    s
}

fn runs(s: &Sandbox) -> usize {
    std::fs::read_to_string(s.path("workflows/Sums/runs")).map_or(0, |t| t.lines().count())
}

/// A chat `sum` that a real run has made, with a job, a built-in tool, the time, and calls that failed.
fn summed() -> Sandbox {
    let s = sums();
    let server = ScriptedServer::start([
        Reply::chat_call_stream(&[
            ("job", "total", json!({"data": "data/numbers.txt"})),
            (
                "sum",
                "calculator",
                json!({"operand1": 1, "operand2": 2, "operation": "add"}),
            ),
            ("time", "current_time", json!({"timezone": "UTC"})),
        ]),
        Reply::chat_call_stream(&[
            ("failed", "fails", json!({})),
            ("unknown", "calculate", json!({"x": 1})),
            ("wrong", "calculator", json!({"operand1": "one"})),
            ("read", "read_file", json!({"path": "data/numbers.txt"})),
        ]),
        Reply::chat_stream(&["It is 6."]),
    ]);
    let tools = [
        "-t",
        "Sums",
        "-t",
        "calculator",
        "-t",
        "current_time",
        "-t",
        "read_file",
    ];
    ask(&s, &server, &[&["-c", "sum"], &tools[..], &["Add up."]].concat()).exits(0);
    // Nothing that a model needs is left.
    std::fs::remove_dir_all(s.path("endpoints")).unwrap();
    assert_eq!(runs(&s), 2);
    s
}

fn replay(s: &Sandbox, args: &[&str]) -> Outcome {
    let all: Vec<&str> = ["replay"].iter().chain(args).copied().collect();
    run(s, &all)
}

/// The outcome of each call, by its id.
fn outcomes(report: &Value) -> Vec<(&str, &str)> {
    let calls = report["calls"].as_array().unwrap().iter();
    calls
        .map(|c| (c["id"].as_str().unwrap(), c["outcome"].as_str().unwrap()))
        .collect()
}

fn outcome<'a>(report: &'a Value, id: &str) -> &'a Value {
    let mut calls = report["calls"].as_array().unwrap().iter();
    calls
        .find(|c| c["id"] == id)
        .unwrap_or_else(|| panic!("no call {id}: {report}"))
}

/// Changes the text of a chat as somebody with an editor would: steps that carry their length lose it.
fn edit(s: &Sandbox, chat: &str, from: &str, to: &str) {
    let text = s.read(chat);
    assert!(text.contains(from), "{from} is not in {text}");
    let text = text.replace(from, to);
    let lines: Vec<&str> = text.lines().filter(|l| !l.starts_with("meta: bytes=")).collect();
    s.write(chat, lines.join("\n") + "\n");
}

#[test]
fn a_chat_is_replayed_without_a_model() {
    let s = summed();
    let before = s.read("chats/sum.chat");
    let report = replay(&s, &["sum", "--json"]).exits(0).json();
    assert_eq!(
        outcomes(&report),
        [
            ("job", "same"),
            ("sum", "same"),
            ("time", "recorded_only"),
            ("failed", "same"),
            ("unknown", "same"),
            ("wrong", "same"),
            ("read", "same"),
        ]
    );
    assert_eq!(report["status"], "same");
    assert_eq!(report["counts"], json!({"same": 6, "differs": 0, "recorded_only": 1}));
    assert_eq!(report["differences"], json!([]));
    assert_eq!(report["error"], Value::Null);
    let job = outcome(&report, "job");
    assert_eq!(job["job"], job["recorded_job"]);
    assert!(
        outcome(&report, "time")["reason"]
            .as_str()
            .unwrap()
            .contains("another one each time")
    );
    assert_eq!(runs(&s), 2, "the job was answered from the store");
    assert_eq!(s.read("chats/sum.chat"), before, "the chat is only read");
    let text = replay(&s, &["sum"]).exits(0).stdout;
    assert!(text.ends_with("7 calls: 6 same, 0 differ, 1 recorded only\n"), "{text}");
    let line = before.lines().position(|l| l.contains("\"id\":\"sum\"")).unwrap() + 1;
    assert!(
        text.contains(&format!("chats/sum.chat:{line}  calculator sum  same\n")),
        "{text}"
    );
}

#[test]
fn an_output_that_was_changed_is_named() {
    let s = summed();
    edit(&s, "chats/sum.chat", r#""content":"3""#, r#""content":"4""#);
    edit(&s, "chats/sum.chat", r#""content":"6""#, r#""content":"7""#);
    let outcome = replay(&s, &["sum"]).exits(4);
    let text = s.read("chats/sum.chat");
    let line = |id: &str| {
        let call = |l: &str| l.starts_with("function_call: ") && l.contains(&format!("\"id\":\"{id}\""));
        text.lines().position(call).unwrap() + 1
    };
    for (id, tool, then, now) in [("job", "total", 7, 6), ("sum", "calculator", 4, 3)] {
        let shown = format!(
            "chats/sum.chat:{}  {tool} {id}  differs: the output is another one\n  - {then}\n  + {now}\n",
            line(id)
        );
        assert!(outcome.stdout.contains(&shown), "{outcome}");
    }
    assert!(outcome.stderr.contains("2 differ") && outcome.stderr.contains("the first that differs is total (job)"));
    let report = replay(&s, &["sum", "--json"]).exits(4).json();
    assert_eq!(
        (&report["status"], &report["error"]["kind"]),
        (&json!("differs"), &json!("tool"))
    );
    let differences = report["differences"].as_array().unwrap();
    assert_eq!(differences.len(), 2);
    assert_eq!(differences[1]["line"], line("sum"));
    assert_eq!(
        (&differences[1]["kind"], &differences[1]["tool"]),
        (&json!("output"), &json!("calculator"))
    );
    assert_eq!(
        differences[1]["diff"],
        json!({"line": 1, "recorded": ["4"], "now": ["3"], "left_out": 0})
    );
    // A failure that was made a success, and the other way round.
    edit(&s, "chats/sum.chat", r#","error":"error","error_class":"JobError""#, "");
    let report = replay(&s, &["sum", "--json"]).exits(4).json();
    assert_eq!(outcome_of(&report, "failed"), "error");
}

fn outcome_of(report: &Value, id: &str) -> String {
    outcome(report, id)["kind"].as_str().unwrap_or_default().to_owned()
}

#[test]
fn a_changed_script_or_input_is_another_job() {
    let s = summed();
    // What it does is the same: so is the output, and the report says that it is of another job.
    s.write("workflows/Sums/rows.sh", format!("{ROWS}# a remark\n"));
    let check = replay(&s, &["sum", "--check", "--json"]).exits(4).json();
    assert_eq!(outcome_of(&check, "job"), "job");
    assert_eq!(runs(&s), 2, "--check runs nothing");
    let report = replay(&s, &["sum", "--json"]).exits(0).json();
    assert!(
        outcome(&report, "job")["note"]
            .as_str()
            .unwrap()
            .contains("by another job"),
        "{report}"
    );
    assert_eq!(runs(&s), 4);
    // Now that it is stored it is compared.
    let check = replay(&s, &["sum", "--check", "--json"]).exits(0).json();
    assert_eq!(outcome(&check, "job")["outcome"], "same");
    // One byte of the input.
    s.write("workflows/Sums/rows.sh", ROWS);
    s.write("data/numbers.txt", "1\n2\n4\n");
    let report = replay(&s, &["sum", "--json"]).exits(4).json();
    assert_eq!(outcome_of(&report, "job"), "output");
    assert_eq!(outcome(&report, "job")["diff"]["now"], json!(["7"]));
    assert_eq!(outcome_of(&report, "read"), "output", "the file is read again too");
    assert!(outcome(&report, "job")["note"].is_string());
}

#[test]
fn check_runs_nothing_and_says_what_it_could_not_compare() {
    let s = summed();
    run(&s, &["job", "clean", "Sums/total/Default"]).exits(0);
    let jobs = || run(&s, &["job", "list"]).stdout;
    let before = jobs();
    let report = replay(&s, &["sum", "--check", "--json"]).exits(0).json();
    assert_eq!(
        outcomes(&report),
        [
            ("job", "recorded_only"),
            ("sum", "same"),
            ("time", "recorded_only"),
            ("failed", "recorded_only"),
            ("unknown", "same"),
            ("wrong", "same"),
            ("read", "same"),
        ]
    );
    assert_eq!((jobs(), runs(&s)), (before, 2));
    // Without --check it is run again, with what is stored of its dependencies.
    replay(&s, &["sum"]).exits(0);
    assert_eq!(runs(&s), 3);
    for wrong in [
        &["sum", "--check", "--fresh"][..],
        &["sum", "--check", "--all"],
        &[],
        &["nowhere"],
    ] {
        replay(&s, wrong).exits(2);
    }
    let none = replay(&s, &["nowhere", "--json"]).exits(2).json();
    assert_eq!(none["error"]["kind"], "usage");
}

#[test]
fn fresh_jobs_find_what_the_store_would_hide() {
    let s = summed();
    // Somebody changes the stored result and the chat alike.
    let job = run(&s, &["job", "show", "Sums/total/Default", "--json"])
        .exits(0)
        .json();
    let path = job["path"].as_str().unwrap().to_owned();
    std::fs::write(&path, "9\n").unwrap();
    edit(&s, "chats/sum.chat", r#""content":"6""#, r#""content":"9""#);
    replay(&s, &["sum"]).exits(0);
    assert_eq!(runs(&s), 2);
    let report = replay(&s, &["sum", "--fresh", "--json"]).exits(4).json();
    assert_eq!(
        outcome(&report, "job")["diff"],
        json!({"line": 1, "recorded": ["9"], "now": ["6"], "left_out": 0})
    );
    assert_eq!(outcome(&report, "job")["job"], path, "the job is the same");
    assert_eq!(
        outcome(&report, "failed")["outcome"],
        "same",
        "paths of the scratch folder make no difference"
    );
    assert_eq!(runs(&s), 4, "with all it depends on");
    assert_eq!(
        std::fs::read_to_string(&path).unwrap(),
        "9\n",
        "what is stored stays as it is"
    );
    assert!(!s.path(".decanus/replay").exists(), "nothing is left behind");
}

#[test]
fn what_may_change_something_is_made_again_only_when_all_is() {
    let s = sums();
    let written = json!({"path": "notes/a.txt", "content": "a note"});
    let server = ScriptedServer::start([
        Reply::chat_call_stream(&[("w", "write_file", written), ("t", "current_time", json!({}))]),
        Reply::chat_stream(&["Done."]),
    ]);
    let tools = ["-t", "write_file", "-t", "current_time", "--approve", "never"];
    ask(&s, &server, &[&["-c", "note"], &tools[..], &["Write."]].concat()).exits(0);
    std::fs::remove_dir_all(s.path("notes")).unwrap();
    let report = replay(&s, &["note", "--json"]).exits(0).json();
    assert_eq!(outcomes(&report), [("w", "recorded_only"), ("t", "recorded_only")]);
    assert!(!s.path("notes").exists());
    // Whoever may be asked is asked, and here is nobody.
    let report = replay(&s, &["note", "--all", "--json"]).exits(0).json();
    assert_eq!(outcomes(&report), [("w", "recorded_only"), ("t", "same")]);
    assert!(
        outcome(&report, "w")["reason"]
            .as_str()
            .unwrap()
            .contains("not approved")
    );
    assert!(!s.path("notes").exists());
    let report = replay(&s, &["note", "--all", "--approve", "never", "--json"])
        .exits(0)
        .json();
    assert_eq!(outcomes(&report), [("w", "same"), ("t", "same")]);
    assert_eq!(s.read("notes/a.txt"), "a note");
    // Now the file is there, so writing it fails.
    let report = replay(&s, &["note", "--all", "--approve", "never", "--json"])
        .exits(4)
        .json();
    assert_eq!(outcome_of(&report, "w"), "error");
}

#[test]
fn a_tool_that_is_gone_is_a_difference() {
    let s = summed();
    // A task of the same name elsewhere is not it.
    std::fs::rename(s.path("workflows/Sums"), s.path("workflows/Totals")).unwrap();
    let report = replay(&s, &["sum", "--json"]).exits(4).json();
    let gone = outcome(&report, "job");
    assert_eq!(gone["kind"], "missing_tool");
    let message = gone["message"].as_str().unwrap();
    assert!(
        message.contains("there is no tool `total`, which was Sums/total"),
        "{gone}"
    );
    assert_eq!(report["counts"]["differs"], 2, "{report}");
    std::fs::remove_dir_all(s.path("workflows")).unwrap();
    assert_eq!(
        outcome(&report, "sum")["outcome"],
        "same",
        "the others are made all the same"
    );
    // Two of the name, and nobody says which: -t does.
    for (name, text) in [("One", "one"), ("Two", "two")] {
        let yaml =
            format!("title: T\ntasks:\n  word:\n    description: d\n    result: string\n    sh: 'echo {text}'\n");
        s.write(format!("workflows/{name}/workflow.yaml"), yaml);
    }
    s.write(
        "chats/word.chat",
        "user: q\nfunction_call: {\"name\":\"word\",\"id\":\"a\"}\nfunction_call_output: {\"id\":\"a\",\"content\":\"two\"}\n",
    );
    let report = replay(&s, &["word", "--json"]).exits(4).json();
    assert!(
        outcome(&report, "a")["message"]
            .as_str()
            .unwrap()
            .contains("One/word, Two/word"),
        "{report}"
    );
    replay(&s, &["word", "-t", "Two"]).exits(0);
    replay(&s, &["word", "-t", "One/word"]).exits(4);
    // What the chat itself declares needs no help.
    let text = s.read("chats/word.chat");
    s.write("chats/word.chat", format!("tool: Two word\n{text}"));
    replay(&s, &["word"]).exits(0);
    // A workflow that can't be read says why.
    s.write("workflows/Two/workflow.yaml", "tasks: [");
    let report = replay(&s, &["word", "--json"]).exits(4).json();
    assert!(
        report["calls"][0]["message"]
            .as_str()
            .unwrap()
            .contains("Two/workflow.yaml"),
        "{report}"
    );
}

#[test]
fn hidden_inputs_of_a_declaration_are_set_again() {
    let s = sums();
    s.write("chats/hidden.chat", "tool: Sums total data=data/numbers.txt\n");
    let server = ScriptedServer::start([
        Reply::chat_call_stream(&[("c", "total", json!({}))]),
        Reply::chat_stream(&["6."]),
    ]);
    ask(&s, &server, &["-c", "hidden", "Sum?"]).exits(0);
    assert!(s.read("chats/hidden.chat").contains(r#""content":"6""#));
    let report = replay(&s, &["hidden", "--json"]).exits(0).json();
    assert_eq!(outcomes(&report), [("c", "same")]);
    replay(&s, &["hidden", "--check"]).exits(0);
}

#[test]
fn agents_that_were_asked_are_followed_into_their_chats() {
    let s = summed();
    let output = json!({
        "id": "a1", "name": "ask", "content": "6",
        "agent_meta": [{"role": "meta", "content": "tt=5 inference_id=w1"}, {"role": "meta", "content": "chat=chats/sum.chat"}],
    });
    s.write(
        "chats/boss.chat",
        format!("user: q\nfunction_call: {{\"name\":\"ask\",\"arguments\":{{}},\"id\":\"a1\"}}\nfunction_call_output: {output}\nassistant: 6\n"),
    );
    let report = replay(&s, &["boss", "--json"]).exits(0).json();
    assert_eq!(report["chats"].as_array().unwrap().len(), 2);
    assert_eq!(report["counts"], json!({"same": 6, "differs": 0, "recorded_only": 2}));
    edit(&s, "chats/sum.chat", r#""content":"3""#, r#""content":"4""#);
    let report = replay(&s, &["boss", "--json"]).exits(4).json();
    assert_eq!(
        report["differences"][0]["file"],
        s.path("chats/sum.chat").to_str().unwrap()
    );
    // The chat of an agent that is not there is said.
    std::fs::remove_file(s.path("chats/sum.chat")).unwrap();
    let outcome = replay(&s, &["boss", "--json"]).exits(0);
    assert!(outcome.stderr.contains("chats/sum.chat` of the agent"), "{outcome}");
}

#[test]
fn long_outputs_are_known_by_their_fingerprint() {
    let s = sums();
    let server = ScriptedServer::start([
        Reply::chat_call_stream(&[("l", "long", json!({}))]),
        Reply::chat_stream(&["Long."]),
    ]);
    ask(&s, &server, &["-c", "long", "-t", "Sums/long", "Print."]).exits(0);
    let text = s.read("chats/long.chat");
    assert!(text.contains("\"truncated\":true"), "{text}");
    std::fs::remove_dir_all(s.path(".decanus/results")).unwrap();
    replay(&s, &["long"]).exits(0);
    assert!(!s.path(".decanus/results").exists(), "nothing is written for it");
    let job = run(&s, &["job", "show", "Sums/long/Default", "--json"]).exits(0).json();
    let path = job["path"].as_str().unwrap();
    let result = std::fs::read_to_string(path).unwrap();
    // In the middle, of which the chat holds nothing.
    std::fs::write(path, result.replace("\n15000\n", "\n15OOO\n")).unwrap();
    let outcome = replay(&s, &["long"]).exits(4);
    assert!(outcome.stdout.contains("characters, SHA-256 "), "{outcome}");
    replay(&s, &["long", "--fresh"]).exits(0);
}

#[test]
fn a_project_that_was_moved_is_replayed_where_it_is() {
    let s = summed();
    let other = Sandbox::new();
    let copied = std::process::Command::new("cp")
        .args(["-a", "."])
        .arg(other.project())
        .current_dir(s.project())
        .status()
        .unwrap();
    assert!(copied.success());
    let report = replay(&other, &["sum", "--json"]).exits(0).json();
    assert_eq!(report["counts"]["differs"], 0);
    let job = outcome(&report, "job");
    assert!(
        job["job"]
            .as_str()
            .unwrap()
            .starts_with(other.project().to_str().unwrap()),
        "{job}"
    );
    assert_eq!(job["note"], Value::Null, "it is the same job");
}

#[test]
fn what_did_not_run_is_not_made_again() {
    let s = Sandbox::new();
    s.write(
        "chats/a.chat",
        concat!(
            "user: q\n",
            "function_call: {\"name\":\"echo\",\"arguments\":{\"message\":\"x\"},\"id\":\"open\"}\n",
            "function_call: {\"name\":\"echo\",\"arguments\":{\"message\":\"x\"},\"id\":\"stopped\"}\n",
            "function_call_output: {\"id\":\"stopped\",\"content\":\"interrupted; it was not started\",\"error_class\":\"Interrupted\"}\n",
            "mcp_call: {\"name\":\"echo\",\"id\":\"theirs\",\"output\":\"x\"}\n",
            "function_call: {oops\n",
        ),
    );
    let outcome = replay(&s, &["a", "--json"]).exits(0);
    let report = outcome.json();
    assert_eq!(
        outcomes(&report),
        [
            ("open", "recorded_only"),
            ("stopped", "recorded_only"),
            ("theirs", "recorded_only")
        ]
    );
    assert!(
        outcome
            .stderr
            .contains("chats/a.chat:6: function_call is not a JSON object"),
        "{outcome}"
    );
    assert_eq!(report["problems"][0]["line"], 6);
}

#[test]
fn text_of_tools_is_escaped() {
    let s = Sandbox::new();
    s.write(
        "chats/a.chat",
        "user: q\nfunction_call: {\"name\":\"echo\",\"arguments\":{\"message\":\"x\\u001b[2Jy\"},\"id\":\"a\"}\nfunction_call_output: {\"id\":\"a\",\"content\":\"b\\u001b[31m\\n5 calls: 5 same\"}\n",
    );
    let outcome = replay(&s, &["a"]).exits(4);
    assert!(!outcome.stdout.contains('\u{1b}'), "{outcome}");
    assert!(outcome.stdout.contains("  - b\\u{1b}[31m\n  - 5 calls"), "{outcome}");
}

#[test]
fn an_interrupted_replay_ends_its_jobs_and_leaves_nothing() {
    let s = lab();
    let file = s.path("pids");
    let call = json!({"name": "hangs", "arguments": {"pids": file}, "id": "h"});
    s.write(
        "chats/h.chat",
        format!("user: q\nfunction_call: {call}\nfunction_call_output: {{\"id\":\"h\",\"content\":\"x\"}}\n"),
    );
    let running = Running::start(&s, &["replay", "h", "--fresh", "--json"]);
    let pids = pids(&file);
    running.signal(Signal::SIGINT);
    let outcome = running.end();
    assert_eq!(outcome.code, 130, "{outcome}");
    assert_eq!(outcome.json()["error"]["kind"], "interrupted");
    assert_gone(&pids);
    let left = std::fs::read_dir(s.path(".decanus/replay")).map_or(0, Iterator::count);
    assert_eq!(left, 0, "the scratch folder is gone");
    let late = replay(&s, &["h", "--timeout", "300ms", "--json"]).exits(4).json();
    assert!(
        late["calls"][0]["message"]
            .as_str()
            .unwrap()
            .contains("ToolTimeoutError"),
        "{late}"
    );
}
