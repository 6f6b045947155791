//! `decanus workflow`.

use std::time::Duration;

use serde_json::json;

use crate::support::*;

#[test]
fn list_and_show() {
    let s = lab();
    insta::assert_snapshot!("workflow_list", both(&s, &run(&s, &["workflow", "list"])));
    insta::assert_snapshot!("workflow_show", both(&s, &run(&s, &["workflow", "show", "Lab"])));
    let list = run(&s, &["workflow", "list", "--json"]).exits(0).json();
    assert_eq!(list[0]["name"], "Lab");
    assert_eq!(list[0]["tasks"], json!(["greet", "shout", "fails", "hangs", "big"]));
    let shown = run(&s, &["workflow", "show", "Lab", "--json"]).exits(0).json();
    assert_eq!(shown["tasks"][1]["depends"], json!(["greet"]));
    assert_eq!(shown["tasks"][1]["inputs"]["who"]["required"], true);
}

#[test]
fn a_task_runs_once_and_is_found_again() {
    let s = lab();
    let go = ["workflow", "run", "Lab", "shout", "who=Ada"];
    let first = run(&s, &go).exits(0);
    assert_eq!(first.stdout, "HELLO ADA\n");
    assert!(!first.stderr.contains("stored result"), "{first}");
    let again = run(&s, &go).exits(0);
    assert_eq!(again.stdout, "HELLO ADA\n");
    assert!(again.stderr.contains("(stored result)"), "{again}");
    assert_eq!(greeted(&s), 1);
    let json = run(&s, &[&go[..], &["--json"]].concat()).exits(0).json();
    assert_eq!(keys(&json), ["status", "job", "result"]);
    assert_eq!(
        (json["status"].as_str(), json["result"].as_str()),
        (Some("done"), Some("HELLO ADA"))
    );
    let path = json["job"].as_str().unwrap();
    assert!(path.starts_with(s.project().to_str().unwrap()), "{path}");
    assert_eq!(std::fs::read_to_string(path).unwrap().trim_end(), "HELLO ADA");
    run(&s, &["workflow", "run", "Lab", "greet", "who=Ada", "--force"]).exits(0);
    assert_eq!(greeted(&s), 2);
    run(&s, &["workflow", "run", "Lab", "greet", "who=Ada", "--name", "mine"]).exits(0);
    assert_eq!(greeted(&s), 3);
    let list = run(&s, &["job", "list", "Lab", "greet", "--json"]).exits(0).json();
    let mut names: Vec<&str> = list
        .as_array()
        .unwrap()
        .iter()
        .map(|j| j["name"].as_str().unwrap())
        .collect();
    names.sort_unstable();
    assert_eq!(names, ["Default", "mine"]);
}

#[test]
fn a_repeated_key_is_a_list() {
    let s = lab();
    let json = run(
        &s,
        &[
            "workflow", "run", "Lab", "greet", "who=A", "tags=x", "tags=y z", "--json",
        ],
    )
    .exits(0)
    .json();
    let shown = run(&s, &["job", "show", json["job"].as_str().unwrap(), "--json"])
        .exits(0)
        .json();
    assert_eq!(shown["inputs"]["tags"], json!(["x", "y z"]));
    let json = run(
        &s,
        &[
            "workflow",
            "run",
            "Lab",
            "greet",
            "who=A",
            r#"tags=["x","y z"]"#,
            "--json",
        ],
    )
    .exits(0)
    .json();
    assert_eq!(json["job"], shown["path"], "the same list in JSON is the same job");
}

#[test]
fn a_task_that_fails_shows_its_stderr() {
    let s = lab();
    let plain = run(&s, &["workflow", "run", "Lab", "fails"]).exits(4);
    assert!(plain.stdout.is_empty());
    insta::assert_snapshot!("workflow_run_fails", both(&s, &plain));
    let json = run(&s, &["workflow", "run", "Lab", "fails", "--json"]).exits(4).json();
    assert_eq!(json["status"], "error");
    assert_eq!(json["error"]["kind"], "job");
    assert_eq!(json["error"]["stderr"], "the disk is on fire");
    assert!(json["error"]["message"].as_str().unwrap().contains("exit code 3"));
    let job = json["job"].as_str().unwrap();
    let shown = run(&s, &["job", "show", job, "--json"]).exits(0).json();
    assert_eq!(shown["status"], "error");
    assert!(shown["error"].as_str().unwrap().contains("the disk is on fire"));
    let result = run(&s, &["job", "result", job]).exits(4);
    assert!(result.stderr.contains("the disk is on fire"), "{result}");
}

#[test]
fn a_task_that_hangs_is_ended_with_all_it_started() {
    let s = lab();
    let file = s.path("pids");
    let input = format!("pids={}", file.display());
    let outcome = run(&s, &["workflow", "run", "Lab", "hangs", &input, "--timeout", "1s"]).exits(4);
    assert!(outcome.stderr.contains("timed out after 1s"), "{outcome}");
    assert!(outcome.time < Duration::from_secs(20), "{:?}", outcome.time);
    let pids = pids(&file);
    assert_eq!(pids.len(), 2);
    assert_gone(&pids);
}

#[test]
fn what_does_not_exist_is_usage() {
    let s = lab();
    for (args, says) in [
        (&["workflow", "show", "Lob"][..], "did you mean Lab?"),
        (&["workflow", "run", "Lob", "greet"], "did you mean Lab?"),
        (&["workflow", "run", "Lab", "gret"], "did you mean greet?"),
        (&["workflow", "run", "Lab", "greet", "tme=2"], "did you mean times?"),
        (&["workflow", "run", "Lab", "greet"], "who"),
        (&["workflow", "run", "Lab", "greet", "who=A", "times=many"], "times"),
        (&["workflow", "run", "Lab", "greet", "who"], "is not KEY=VALUE"),
        (
            &["workflow", "run", "Lab", "greet", "who=A", "--timeout", "soon"],
            "soon",
        ),
        (&["workflow", "run", "../Lab", "greet"], "../Lab"),
    ] {
        let plain = run(&s, args).exits(2);
        assert!(plain.stderr.contains(says), "{says}: {plain}");
        let json = run(&s, &[args, &["--json"]].concat()).exits(2);
        assert_eq!(json.json()["error"]["kind"], "usage", "{json}");
    }
    assert!(!s.path(".decanus/jobs").exists(), "nothing ran");
}

#[test]
fn a_malformed_workflow_is_named_and_hides_nothing() {
    let s = lab();
    s.write(
        "workflows/Bad/workflow.yaml",
        "title: Bad\ntasks:\n  one:\n    descripton: x\n    sh: echo 1\n",
    );
    s.write("workflows/Torn/workflow.yaml", "title: [a\ntasks: {\n");
    s.write(
        "workflows/Ring/workflow.yaml",
        "tasks:\n  a: {depends: [b], sh: x}\n  b: {depends: [c], sh: x}\n  c: {depends: [a], sh: x}\n",
    );
    let file = s.path("workflows/Bad/workflow.yaml").display().to_string();
    for command in ["show", "run"] {
        let args = ["workflow", command, "Bad", "one"];
        let outcome = run(&s, if command == "show" { &args[..3] } else { &args }).exits(2);
        assert!(
            outcome.stderr.contains(&format!("{file}:4")) && outcome.stderr.contains("descripton"),
            "file, line and key: {outcome}"
        );
        assert!(outcome.stderr.contains("description"), "what was meant: {outcome}");
    }
    let json = run(&s, &["workflow", "show", "Bad", "--json"]).exits(2).json();
    assert_eq!(json["error"]["kind"], "config");
    let torn = run(&s, &["workflow", "show", "Torn"]).exits(2);
    assert!(torn.stderr.contains("workflows/Torn/workflow.yaml:"), "{torn}");
    // C74: the whole ring is shown.
    let ring = run(&s, &["workflow", "show", "Ring"]).exits(2);
    assert!(ring.stderr.contains("a → b → c → a"), "{ring}");
    let list = run(&s, &["workflow", "list"]).exits(0);
    assert!(list.stdout.contains("Lab") && list.stderr.contains(&file), "{list}");
    let list = run(&s, &["workflow", "list", "--json"]).exits(0).json();
    assert_eq!(list.as_array().unwrap().len(), 4);
    assert!(list[0]["error"].as_str().unwrap().contains("descripton"));
    let tools = run(&s, &["tool", "list"]).exits(0);
    assert!(
        tools.stdout.contains("greet") && tools.stderr.contains(&file),
        "{tools}"
    );
}
