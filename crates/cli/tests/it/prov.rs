//! `decanus prov`: from an answer down to the files it came from.

use std::process::{Command, Stdio};

use decanus_testkit::{Outcome, Reply, Sandbox, ScriptedServer};
use serde_json::{Value, json};

use crate::support::*;

/// A task that reads a file, leaves one behind, and is used by another.
const SURVEY: &str = r#"
title: Survey
description: Counts words.
tasks:
  words:
    description: The words of a text, one a line.
    inputs: {text: {type: file, required: true, description: A text}}
    result: array
    sh: 'echo kept > notes.txt; tr " " "\n" < "$text"'
  count:
    description: How many words a text has.
    depends: [words]
    result: integer
    sh: 'wc -l < "$DECANUS_DEP_words"'
  fails:
    description: Always fails.
    sh: 'echo "no paper" >&2; exit 3'
"#;

/// A project with a chat that a real run has made: a job with a dependency, and an answer.
fn surveyed() -> Sandbox {
    let s = Sandbox::new();
    s.write("workflows/Survey/workflow.yaml", SURVEY);
    s.write("data/poem.txt", "one two three\n");
    let server = ScriptedServer::start([
        Reply::chat_call_stream(&[("c1", "count", json!({"text": "data/poem.txt"}))]),
        Reply::chat_stream(&["The poem has 3 words."]),
    ]);
    ask(&s, &server, &["-c", "poem", "-t", "Survey/count", "How many words?"]).exits(0);
    s
}

fn of_kind<'a>(graph: &'a Value, kind: &str) -> Vec<&'a Value> {
    let nodes = graph["nodes"].as_array().unwrap();
    nodes.iter().filter(|n| n["kind"] == kind).collect()
}

/// Each edge as `FROM KIND -RELATION-> TO KIND`.
fn edges(graph: &Value) -> Vec<String> {
    let kind = |id: &Value| id.as_str().unwrap().split(':').next().unwrap().to_owned();
    let ids: Vec<&Value> = graph["nodes"].as_array().unwrap().iter().map(|n| &n["id"]).collect();
    let edges = graph["edges"].as_array().unwrap().iter();
    edges
        .map(|e| {
            assert!(ids.contains(&&e["from"]) && ids.contains(&&e["to"]), "{e}");
            let relation = e["relation"].as_str().unwrap();
            format!("{} -{relation}-> {}", kind(&e["from"]), kind(&e["to"]))
        })
        .collect()
}

fn prov(s: &Sandbox, args: &[&str]) -> Outcome {
    let all: Vec<&str> = ["prov"].iter().chain(args).copied().collect();
    run(s, &all)
}

#[test]
fn a_chat_leads_to_its_jobs_and_their_files() {
    let s = surveyed();
    let before = s.read("chats/poem.chat");
    let graph = prov(&s, &["poem", "--json"]).exits(0).json();
    assert_eq!(
        edges(&graph),
        [
            "chat -answer-> answer",
            "chat -answer-> answer",
            "answer -call-> call",
            "call -job-> job",
            "job -dependency-> job",
            "job -input-> file",
            "job -output-> file",
        ]
    );
    let jobs = of_kind(&graph, "job");
    assert!(jobs[0]["label"].as_str().unwrap().starts_with("Survey/count/Default_"));
    assert!(jobs.iter().all(|j| j["status"] == "done" && j["seconds"].is_number()));
    let files: Vec<&str> = of_kind(&graph, "file")
        .iter()
        .map(|f| f["path"].as_str().unwrap())
        .collect();
    assert_eq!(files[0], s.path("data/poem.txt").to_str().unwrap());
    assert!(files[1].ends_with(".files/notes.txt"));
    assert_eq!(of_kind(&graph, "call")[0]["status"], "ok");
    let answers = of_kind(&graph, "answer");
    assert_eq!(answers[1]["label"], "The poem has 3 words.");
    assert_eq!(answers[0]["tokens"], json!({"pt": 10, "ct": 5, "tt": 15}));
    assert_eq!(
        graph["tokens"],
        json!({"pt": 20, "ct": 10, "tt": 30, "cct": 0, "cwt": 0, "rt": 0})
    );
    assert_eq!(graph["problems"], json!([]));
    assert_eq!(s.read("chats/poem.chat"), before, "reading changes nothing");
    assert_eq!(prov(&s, &["chats/poem.chat", "--json"]).exits(0).json(), graph);
}

#[test]
fn people_see_a_tree_with_tokens_and_the_total() {
    let s = surveyed();
    let tree = both(&s, &prov(&s, &["poem"])).replace(env!("CARGO_PKG_VERSION"), "[VERSION]");
    insta::assert_snapshot!("prov_tree", tree);
    insta::assert_snapshot!("prov_tokens", both(&s, &prov(&s, &["poem", "--tokens"])));
}

/// The totals of the file and those that are counted agree.
#[test]
fn the_last_checkpoint_is_the_total() {
    let s = surveyed();
    let server = ScriptedServer::start([Reply::chat_stream(&["Yes."])]);
    ask(&s, &server, &["-c", "poem", "Sure?"]).exits(0);
    let total = prov(&s, &["poem", "--json"]).exits(0).json()["tokens"].clone();
    assert_eq!(total["tt"], 45);
    let text = s.read("chats/poem.chat");
    let last = text.lines().rfind(|l| l.contains(" pt_c=")).unwrap();
    for part in ["pt_c=30 ", "ct_c=15 ", "tt_c=45 ", "cct_c=0 ", "cwt_c=0 ", "rt_c=0 "] {
        assert!(last.contains(part), "{part}: {last}");
    }
}

#[test]
fn a_job_is_found_as_job_show_finds_it() {
    let s = surveyed();
    let graph = prov(&s, &["poem", "--json"]).exits(0).json();
    let path = of_kind(&graph, "job")[0]["path"].as_str().unwrap().to_owned();
    let digest = path.rsplit(['_', '.']).nth(1).unwrap();
    for typed in [path.as_str(), "Survey/count/Default", &digest[..6]] {
        let job = prov(&s, &[typed, "--json"]).exits(0).json();
        assert_eq!(job["nodes"][0]["kind"], "job", "{typed}");
        assert_eq!(job["nodes"][0]["path"], path);
        assert_eq!(
            edges(&job),
            ["job -dependency-> job", "job -input-> file", "job -output-> file"]
        );
        assert_eq!(job["tokens"]["tt"], 0);
    }
    let tree = prov(&s, &[&path]).exits(0).stdout;
    assert!(tree.ends_with("total  no tokens are recorded\n"), "{tree}");
}

#[test]
fn a_copy_of_a_chat_counts_nothing() {
    let s = surveyed();
    // A job whose log holds what the chat holds, and one more request.
    let chat = s.read("chats/poem.chat");
    let log = format!("{chat}\nmeta: pt=1 ct=2 tt=3 inference_id=more\n\nassistant:\n\nMore.\n");
    let graph = prov(&s, &["poem", "--json"]).exits(0).json();
    let job = of_kind(&graph, "job")[0]["path"].as_str().unwrap().to_owned();
    std::fs::create_dir_all(format!("{job}.files/log/society/A")).unwrap();
    std::fs::write(format!("{job}.files/log/society/A/c1.chat"), log).unwrap();
    let graph = prov(&s, &["poem", "--json"]).exits(0).json();
    assert_eq!(graph["tokens"]["tt"], 33);
    assert_eq!(of_kind(&graph, "chat").len(), 2);
    assert_eq!(graph["inferences"].as_array().unwrap().len(), 3);
    // The log's own calls lead back to the same job: one node, whatever the way.
    assert_eq!(of_kind(&graph, "job").len(), 2);
    // Another number under the same id is said, and counted once.
    let log = format!("{job}.files/log/society/A/c1.chat");
    let text = std::fs::read_to_string(&log)
        .unwrap()
        .replace("pt=10 ct=5 tt=15", "pt=10 ct=5 tt=99");
    std::fs::write(&log, text).unwrap();
    let outcome = prov(&s, &["poem"]).exits(0);
    assert!(outcome.stderr.contains("was found before with another tt"), "{outcome}");
    assert!(
        outcome.stdout.contains("total=33  (3 requests; copies disagree"),
        "{outcome}"
    );
}

#[test]
fn a_failed_job_is_shown_with_its_reason() {
    let s = surveyed();
    let server = ScriptedServer::start([
        Reply::chat_call_stream(&[("c1", "fails", json!({}))]),
        Reply::chat_stream(&["It failed."]),
    ]);
    ask(&s, &server, &["-c", "sad", "-t", "Survey/fails", "Go"]).exits(0);
    let graph = prov(&s, &["sad", "--json"]).exits(0).json();
    assert_eq!(of_kind(&graph, "call")[0]["status"], "failed");
    let job = of_kind(&graph, "job")[0];
    assert_eq!(job["status"], "error");
    assert!(job["note"].as_str().unwrap().contains("no paper"), "{job}");
    assert_eq!(
        graph["problems"],
        json!([]),
        "that it failed is no problem of the record"
    );
}

#[test]
fn what_is_missing_is_said_and_the_rest_is_shown() {
    let s = surveyed();
    let graph = prov(&s, &["poem", "--json"]).exits(0).json();
    let jobs: Vec<String> = of_kind(&graph, "job")
        .iter()
        .map(|j| j["path"].as_str().unwrap().to_owned())
        .collect();
    // The input is gone, and one record is half a record.
    std::fs::remove_file(s.path("data/poem.txt")).unwrap();
    let outcome = prov(&s, &["poem", "--json"]).exits(0);
    assert!(
        outcome.stderr.contains("data/poem.txt is not there any more"),
        "{outcome}"
    );
    assert_eq!(of_kind(&outcome.json(), "file")[0]["status"], "missing");
    std::fs::write(format!("{}.info", jobs[1]), "{\"status\":").unwrap();
    let outcome = prov(&s, &["poem", "--json"]).exits(0);
    assert!(outcome.stderr.contains("its record can't be read"), "{outcome}");
    assert_eq!(of_kind(&outcome.json(), "job").len(), 2);
    // Then all jobs are gone.
    std::fs::remove_dir_all(s.path(".decanus/jobs")).unwrap();
    let outcome = prov(&s, &["poem", "--json"]).exits(0);
    let graph = outcome.json();
    assert_eq!(graph["problems"].as_array().unwrap().len(), 1);
    assert!(outcome.stderr.contains("is not there"), "{outcome}");
    assert_eq!(of_kind(&graph, "job")[0]["status"], "missing");
    assert_eq!(graph["tokens"]["tt"], 30);
}

#[test]
fn a_project_that_was_moved_finds_its_jobs() {
    let s = surveyed();
    let text = s.read("chats/poem.chat");
    let moved = text.replace(&*s.project().to_string_lossy(), "/elsewhere");
    assert_ne!(text, moved);
    // The step's length has changed with it.
    let moved: String = moved
        .lines()
        .filter(|l| !l.starts_with("meta: bytes="))
        .map(|l| format!("{l}\n"))
        .collect();
    s.write("chats/moved.chat", moved);
    let graph = prov(&s, &["moved", "--json"]).exits(0).json();
    assert_eq!(of_kind(&graph, "job").len(), 2, "{graph}");
    assert_eq!(graph["problems"], json!([]));
}

#[test]
fn damage_in_a_chat_is_named_with_its_line() {
    let s = surveyed();
    let text = s.read("chats/poem.chat");
    // Cut within the last answer.
    s.write("chats/torn.chat", &text[..text.len() - 4]);
    let outcome = prov(&s, &["torn", "--json"]).exits(0);
    assert!(outcome.stderr.contains("the last step was cut off"), "{outcome}");
    assert_eq!(outcome.json()["tokens"]["tt"], 15, "only whole steps count");
    assert!(
        !s.path("chats/torn.chat.torn").exists(),
        "nothing is set aside by looking"
    );
    s.write("chats/bad.chat", "user: q\nfunction_call: {oops\nassistant: a\n");
    let outcome = prov(&s, &["bad", "--json"]).exits(0);
    let problems = outcome.json()["problems"].clone();
    assert_eq!(
        (problems[0]["line"].as_u64(), problems.as_array().unwrap().len()),
        (Some(2), 1)
    );
    assert_eq!(of_kind(&outcome.json(), "answer").len(), 1);
}

#[test]
fn the_drawing_is_graphviz() {
    let s = surveyed();
    s.write(
        "chats/hostile.chat",
        "user: q\nmeta: tt=1 inference_id=i\nassistant:= \"a\\\"]; x [label=\\\"\\\\N \\u001b[2J\\n</b>\"\n",
    );
    for chat in ["poem", "hostile"] {
        let dot = prov(&s, &[chat, "--dot", "-"]).exits(0).stdout;
        assert!(dot.starts_with("digraph "), "{dot}");
        assert!(!dot.contains('\u{1b}'));
        let shapes = ["note", "ellipse", "cds", "box", "folder"];
        if chat == "poem" {
            assert!(
                shapes.iter().all(|shape| dot.contains(&format!("shape={shape}"))),
                "{dot}"
            );
        }
        accepted_by_graphviz(&dot);
    }
    let told = prov(&s, &["poem", "--dot", "poem.dot"]).exits(0);
    assert_eq!((told.stdout.as_str(), told.stderr.as_str()), ("", "wrote poem.dot\n"));
    assert_eq!(s.read("poem.dot"), prov(&s, &["poem", "--dot", "-"]).stdout);
    let before = s.read("chats/poem.chat");
    let refused = prov(&s, &["poem", "--dot", "chats/poem.chat"]).exits(2);
    assert!(refused.stderr.contains("part of what is drawn"), "{refused}");
    assert_eq!(s.read("chats/poem.chat"), before);
    let both = prov(&s, &["poem", "--dot", "-", "--json"]).exits(2);
    assert_eq!(both.json()["error"]["kind"], "usage");
}

fn accepted_by_graphviz(dot: &str) {
    let child = Command::new("dot")
        .arg("-Tcanon")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn();
    let Ok(mut child) = child else {
        eprintln!("SKIPPED: Graphviz is not installed, so it was not asked whether it takes the drawing");
        return;
    };
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), dot.as_bytes()).unwrap();
    let done = child.wait_with_output().unwrap();
    assert!(
        done.status.success(),
        "{}\n{dot}",
        String::from_utf8_lossy(&done.stderr)
    );
}

#[test]
fn what_is_not_there_is_a_wrong_command_line() {
    let s = surveyed();
    for typed in [
        "nowhere",
        "chats/none.chat",
        "none.chat",
        "Survey/count/Other",
        "abcdef0123",
        "",
        "data",
    ] {
        let outcome = prov(&s, &[typed, "--json"]).exits(2);
        assert_eq!(outcome.json()["error"]["kind"], "usage", "{typed}");
    }
    // A folder is no chat.
    let folder = prov(&s, &["./data", "--json"]).exits(2);
    assert_eq!(folder.json()["error"]["kind"], "config");
    prov(&s, &[]).exits(2);
}

#[test]
fn text_of_models_and_tools_is_shown_on_its_line_and_escaped() {
    let s = Sandbox::new();
    s.write(
        "a.chat",
        concat!(
            "user: q\n",
            "meta: tt=1 inference_id=i model=\"m\\ntotal  total=0\"\n",
            "assistant:= \"x\\u001b[2Jy\\ntotal  prompt=0\"\n",
        ),
    );
    let tree = prov(&s, &["a.chat"]).exits(0).stdout;
    assert_eq!(tree.lines().count(), 3, "{tree}");
    assert!(
        tree.contains("x\\u{1b}[2Jy total") && !tree.contains('\u{1b}'),
        "{tree}"
    );
}

#[test]
fn what_providers_keep_is_shown_only_as_evidence() {
    let s = Sandbox::new();
    s.write(
        "a.chat",
        concat!(
            "user: q\n",
            "meta: pt=1 ct=1 tt=2 inference_id=i1\n",
            "provider: {\"backend\":\"b\",\"parts\":[\"sealed thought\"]}\n",
            "assistant: a\n",
        ),
    );
    let secret = "sealed thought";
    for flags in [
        &["a.chat"][..],
        &["a.chat", "--json"],
        &["a.chat", "--tokens"],
        &["a.chat", "--dot", "-"],
    ] {
        assert!(!prov(&s, flags).exits(0).stdout.contains(secret), "{flags:?}");
    }
    let shown = prov(&s, &["a.chat", "--evidence"]).exits(0).stdout;
    assert!(shown.contains(secret) && shown.contains("a.chat:2  i1  "), "{shown}");
    let json = prov(&s, &["a.chat", "--evidence", "--json"]).exits(0).json();
    assert_eq!(json["provider"][0]["content"]["parts"][0], secret);
    assert_eq!(json["provider"][0]["line"], 3);
}

/// Nothing that a chat asks for is done by looking at it.
#[test]
fn roles_that_do_something_are_not_followed() {
    let s = surveyed();
    let jobs = || run(&s, &["job", "list"]).stdout.lines().count();
    let before = jobs();
    s.write(
        "a.chat",
        "import: missing.chat\ncontinue: also.chat\ntask: Survey count text=data/other.txt\njob: Survey/count/x\ncmd: touch x\n",
    );
    let graph = prov(&s, &["a.chat", "--json"]).exits(0).json();
    assert_eq!(graph["nodes"].as_array().unwrap().len(), 1);
    assert_eq!(graph["problems"], json!([]));
    assert_eq!(jobs(), before);
    assert!(!s.path("x").exists());
}

#[test]
fn a_job_is_listed_below_what_it_came_from() {
    let s = surveyed();
    let list = run(&s, &["job", "prov", "Survey/count/Default"]).exits(0);
    let jobs = s.path(".decanus/jobs").display().to_string();
    let lines: Vec<&str> = list.stdout.lines().collect();
    assert_eq!(lines.len(), 3, "{list}");
    let poem = s.path("data/poem.txt");
    let digest = decanus::base::digest::sha256_hex(&std::fs::read(&poem).unwrap());
    assert_eq!(
        lines[0],
        format!("  file -  {}  sha256:{}", poem.display(), &digest[..12])
    );
    assert!(
        lines[1].starts_with(&format!(" done Survey words {jobs}/Survey/words/Default_")),
        "{list}"
    );
    assert!(
        lines[2].starts_with(&format!("done Survey count {jobs}/Survey/count/Default_")),
        "{list}"
    );
    let long = run(&s, &["job", "prov", "Survey/count/Default", "--long"])
        .exits(0)
        .stdout;
    assert!(
        long.lines()
            .last()
            .unwrap()
            .ends_with(concat!("  by decanus ", env!("CARGO_PKG_VERSION"))),
        "{long}"
    );
    // The same graph as that of `prov`, in its other forms.
    let graph = run(&s, &["job", "prov", "Survey/count/Default", "--json"])
        .exits(0)
        .json();
    assert_eq!(graph, prov(&s, &["Survey/count/Default", "--json"]).exits(0).json());
    let dot = run(&s, &["job", "prov", "Survey/count/Default", "--dot", "-"])
        .exits(0)
        .stdout;
    accepted_by_graphviz(&dot);
    let none = run(&s, &["job", "prov", "Survey/count/Other", "--json"]).exits(2);
    assert_eq!(none.json()["error"]["kind"], "usage");
}

/// A record as it is with the digests that its identity was made of.
#[test]
fn files_are_held_against_the_digests_of_the_record() {
    let s = surveyed();
    let job = run(&s, &["job", "show", "Survey/words/Default", "--json"])
        .exits(0)
        .json();
    let info = format!("{}.info", job["path"].as_str().unwrap());
    let mut record: Value = serde_json::from_str(&std::fs::read_to_string(&info).unwrap()).unwrap();
    let digest = decanus::base::digest::sha256_hex(b"one two three\n");
    record["identity"] = json!({"input text": digest});
    std::fs::write(&info, record.to_string()).unwrap();
    let input = |args: &[&str]| {
        let outcome = prov(&s, args).exits(0);
        let edges = outcome.json()["edges"].as_array().unwrap().clone();
        let edge = edges.into_iter().find(|e| e["relation"] == "input").unwrap();
        (edge, outcome.stderr)
    };
    let (edge, _) = input(&["poem", "--json"]);
    assert_eq!((&edge["sha256"], &edge["input"]), (&json!(digest), &json!("text")));
    assert_eq!(edge["check"], Value::Null, "no file is read unless asked for");
    assert_eq!(input(&["poem", "--json", "--verify"]).0["check"], "same");
    s.write("data/poem.txt", "one two\n");
    let (edge, said) = input(&["poem", "--json", "--verify"]);
    assert_eq!(edge["check"], "changed");
    assert!(
        said.contains("data/poem.txt is not what it was when Survey/words/Default_"),
        "{said}"
    );
    let tree = prov(&s, &["poem", "--verify"]).exits(0).stdout;
    assert!(
        tree.contains(&format!("input data/poem.txt  sha256:{}  (changed)", &digest[..12])),
        "{tree}"
    );
    let list = run(&s, &["job", "prov", "Survey/words/Default", "--verify"])
        .exits(0)
        .stdout;
    assert!(
        list.contains(&format!("data/poem.txt  sha256:{}  (changed)", &digest[..12])),
        "{list}"
    );
    std::fs::remove_file(s.path("data/poem.txt")).unwrap();
    assert_eq!(input(&["poem", "--json", "--verify"]).0["check"], "missing");
}

#[test]
fn files_that_a_chat_shows_are_part_of_it() {
    let s = Sandbox::new();
    s.write("notes.md", "n");
    s.write("a.chat", "file: notes.md\nuser: q\n");
    let graph = prov(&s, &["a.chat", "--json"]).exits(0).json();
    assert_eq!(edges(&graph), ["chat -input-> file"]);
    assert_eq!(of_kind(&graph, "file")[0]["path"], s.path("notes.md").to_str().unwrap());
}
