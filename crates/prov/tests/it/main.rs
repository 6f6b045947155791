//! Graphs of chats and job records that were written for the test.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod evidence;
mod listing;

use std::path::{Path, PathBuf};

use decanus_prov::{Graph, Kind, ProvError, Relation, Tracer};
use decanus_workflow::JobStore;
use serde_json::{Value, json};

struct Lab {
    folder: tempfile::TempDir,
}

impl Lab {
    fn new() -> Self {
        Self {
            folder: tempfile::tempdir().unwrap(),
        }
    }

    fn root(&self) -> PathBuf {
        self.folder.path().canonicalize().unwrap()
    }

    fn write(&self, path: &str, text: &str) -> PathBuf {
        let path = self.root().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, text).unwrap();
        path
    }

    /// A job that is done.
    fn job(&self, short: &str, result: &str, members: &Value) -> PathBuf {
        let path = self.write(&format!("jobs/{short}"), result);
        let parts: Vec<&str> = short.split('/').collect();
        let mut record = json!({
            "status": "done", "workflow": parts[0], "task": parts[1], "name": "Default", "digest": "d", "type": "text",
            "inputs": {}, "dependencies": [], "pid": 1, "pid_started": null, "pgid": null, "pgid_started": null,
            "host": "h", "executor": "local", "scheduler_id": null, "created": "2026-01-02T03:04:05Z",
            "started": "2026-01-02T03:04:05Z", "ended": "2026-01-02T03:04:07.5Z", "exit_code": 0, "error": null,
            "versions": {},
        });
        for (name, value) in members.as_object().unwrap() {
            record[name] = value.clone();
        }
        self.write(&format!("jobs/{short}.info"), &record.to_string());
        path
    }

    fn tracer(&self) -> Tracer {
        Tracer::new(JobStore::new(self.root().join("jobs")), self.root())
    }
}

fn shape(graph: &Graph) -> Vec<String> {
    let label = |at: usize| format!("{} {}", graph.nodes[at].kind.as_str(), graph.nodes[at].label);
    let edges = graph.edges.iter();
    edges
        .map(|e| format!("{} > {} > {}", label(e.from), e.relation.as_str(), label(e.to)))
        .collect()
}

/// Worked example 38, as a graph: the tokens are the chat's, the answer is the job's.
#[test]
fn an_orphans_tokens_count_and_a_jobs_answer_has_none() {
    let lab = Lab::new();
    lab.job("W/ask/x.txt", "r", &json!({}));
    let chat = lab.write("a.chat", "user: q\nmeta: tt=2\nmeta: job=W/ask/x.txt\nassistant: a\n");
    let graph = lab.tracer().chat(&chat).unwrap();
    assert_eq!(
        shape(&graph),
        ["chat a.chat > answer > answer a", "answer a > job > job W/ask/x.txt"]
    );
    assert_eq!(graph.ledger.total().tt, Some(2));
    assert_eq!((graph.nodes[0].usage.tt, graph.nodes[1].usage.tt), (Some(2), None));
    assert_eq!(graph.nodes[2].seconds, Some(2.5));
    assert!(graph.problems.is_empty());
}

#[test]
fn a_jobs_chat_is_followed_and_rings_end() {
    let lab = Lab::new();
    let chat = "user: q\nmeta: pt=5 ct=5 tt=10 inference_id=i1\nassistant: a\nmeta: job=W/t/r.chat\nassistant: b\n";
    let result = lab.job("W/t/r.chat", chat, &json!({"dependencies": ["W/t/r.chat"]}));
    let graph = lab.tracer().file(&result).unwrap();
    assert_eq!(
        shape(&graph),
        [
            "job W/t/r.chat > dependency > job W/t/r.chat",
            "job W/t/r.chat > result > chat jobs/W/t/r.chat",
            "chat jobs/W/t/r.chat > answer > answer a",
            "chat jobs/W/t/r.chat > answer > answer b",
            "answer b > job > job W/t/r.chat",
        ]
    );
    assert_eq!(graph.ledger.total().tt, Some(10));
    assert_eq!(graph.to_tree().lines().count(), 7, "{}", graph.to_tree());
}

#[test]
fn a_file_is_one_node_whatever_way_leads_to_it() {
    let lab = Lab::new();
    let data = lab.write("data.csv", "x");
    std::os::unix::fs::symlink(&data, lab.root().join("link.csv")).unwrap();
    let inputs = |name: &str| json!({"inputs": {"data": lab.root().join(name).to_str().unwrap(), "word": "data.csv"}});
    lab.job("W/a/1.txt", "", &inputs("data.csv"));
    let mut two = inputs("link.csv");
    two["dependencies"] = json!(["W/a/1.txt"]);
    let root = lab.job("W/b/2.txt", "", &two);
    let graph = lab.tracer().file(&root).unwrap();
    assert_eq!(graph.nodes.iter().filter(|n| n.kind == Kind::File).count(), 1);
    let inputs = graph.edges.iter().filter(|e| e.relation == Relation::Input);
    assert_eq!(inputs.count(), 2);
}

#[test]
fn a_result_of_type_file_is_the_file() {
    let lab = Lab::new();
    let job = lab.job("W/f/1.txt", "plot.svg", &json!({"type": "file"}));
    lab.write("jobs/W/f/1.txt.files/plot.svg", "<svg/>");
    lab.write("jobs/W/f/1.txt.files/raw.csv", "1");
    let graph = lab.tracer().job(&job).unwrap();
    let relations: Vec<&str> = graph.edges.iter().map(|e| e.relation.as_str()).collect();
    assert_eq!(relations, ["result", "output"]);
}

#[test]
fn answers_without_metas_are_found() {
    let lab = Lab::new();
    let chat = lab.write(
        "a.chat",
        concat!(
            "assistant: by hand\n",
            "user: q\n",
            "function_call: {\"name\":\"f\",\"id\":\"1\"}\n",
            "function_call: {\"name\":\"g\",\"id\":\"2\"}\n",
            "function_call_output: {\"id\":\"1\",\"content\":\"\"}\n",
            "meta: bytes=999 tt=1\n",
            "assistant: kept\n",
        ),
    );
    // The last step is shorter than it says, so it is not read.
    let graph = lab.tracer().chat(&chat).unwrap();
    assert_eq!(graph.problems.len(), 1);
    let labels: Vec<&str> = graph.nodes.iter().map(|n| n.label.as_str()).collect();
    assert_eq!(labels, ["a.chat", "by hand", "calls f, g", "f {}", "g {}"]);
    assert_eq!(graph.nodes[4].status.as_deref(), Some("unknown"));
    assert!(graph.to_tree().ends_with("total  no tokens are recorded\n"));
}

/// Tracing and drawing a chain that is deeper than a stack.
#[test]
fn depth_is_no_obstacle() {
    let lab = Lab::new();
    for n in 0..5_000 {
        let next = format!("W/t/{}.txt", n + 1);
        let dependencies = if n < 4_999 { json!([next]) } else { json!([]) };
        lab.job(&format!("W/t/{n}.txt"), "", &json!({"dependencies": dependencies}));
    }
    let graph = lab.tracer().job(&lab.root().join("jobs/W/t/0.txt")).unwrap();
    assert_eq!((graph.nodes.len(), graph.problems.len()), (5_000, 0));
    assert_eq!(graph.to_tree().lines().count(), 5_001);
}

#[test]
fn only_the_root_must_be_there() {
    let lab = Lab::new();
    let none = lab.tracer().chat(Path::new("/no/such.chat")).unwrap_err();
    assert!(matches!(none, ProvError::NoChat(_)));
    assert!(matches!(
        lab.tracer().job(Path::new("/no/such")).unwrap_err(),
        ProvError::NoJob(_)
    ));
    let binary = lab.write("b.chat", "");
    std::fs::write(&binary, b"user: \xff\nassistant: a\n").unwrap();
    let graph = lab.tracer().chat(&binary).unwrap();
    assert_eq!((graph.problems[0].line, graph.problems.len()), (Some(1), 1));
    assert!(matches!(
        lab.tracer().chat(&lab.root()).unwrap_err(),
        ProvError::Unreadable(_)
    ));
    let chat = lab.write(
        "a.chat",
        "meta: job=W/t/gone.txt\nassistant: a\nmeta: job=../../etc\nassistant: b\n",
    );
    let graph = lab.tracer().chat(&chat).unwrap();
    let lines: Vec<_> = graph.problems.iter().map(|p| p.line).collect();
    assert_eq!(lines, [Some(1), Some(3)]);
    // A result without a record says nothing of what it came from.
    lab.write("jobs/W/t/gone.txt", "result");
    let graph = lab.tracer().chat(&chat).unwrap();
    assert!(
        graph.problems.iter().any(|p| p.message.contains("no record")),
        "{:?}",
        graph.problems
    );
}
