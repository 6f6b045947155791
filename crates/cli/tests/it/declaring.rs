//! Declaring tasks, as people meet it: `workflow check`, Python tasks, typed inputs, completion.

use std::process::Command;

use serde_json::json;

use crate::support::*;
use decanus_testkit::Sandbox;

const YAML: &str = r#"
title: Stats
tasks:
  mean:
    python: stats.py:mean
    inputs:
      column: {shortcut: c}
      token: {secret: true}
  raw: {sh: "printf '\\377x\\n'", result: binary}
  hi: {sh: 'printf "hello %s" "$who"', inputs: {who: {jobname: true, required: true}}}
"#;

const PYTHON: &str = r#"
from pathlib import Path
from typing import Literal

def mean(data: Path, column: Literal["a", "b"], digits: int = 2, loud: bool = False, token: str = "none") -> float:
    """The mean of a column.

    Args:
        data: A table.
        column: Which.
    """
    if token == "raise":
        raise ValueError("no such luck")
    rows = [line.split("\t") for line in data.read_text().splitlines()]
    at = rows[0].index(column)
    values = [float(row[at]) for row in rows[1:]]
    print("values:", len(values))
    return round(sum(values) / len(values), digits)
"#;

fn stats() -> Sandbox {
    let s = Sandbox::new();
    s.write("workflows/Stats/workflow.yaml", YAML);
    s.write("workflows/Stats/stats.py", PYTHON);
    s.write("table.tsv", "a\tb\n1\t2\n3\t5\n");
    s
}

#[test]
fn a_python_function_is_a_task() {
    let s = stats();
    insta::assert_snapshot!(
        "workflow_show_python",
        both(&s, &run(&s, &["workflow", "show", "Stats"]))
    );
    let go = ["workflow", "run", "Stats", "mean", "data=table.tsv", "c=b"];
    assert_eq!(run(&s, &go).exits(0).stdout, "3.5\n");
    let again = run(&s, &["workflow", "run", "Stats", "mean", "data=table.tsv", "column=b"]).exits(0);
    assert!(again.stderr.contains("(stored result)"), "{again}");
    // What does not fit is refused before anything runs, with the value and what there is.
    let wrong = run(&s, &["workflow", "run", "Stats", "mean", "data=table.tsv", "column=d"]).exits(2);
    assert!(wrong.stderr.contains("not one of a, b"), "{wrong}");
    let wrong = run(&s, &["workflow", "run", "Stats", "mean", "data=none.tsv", "column=a"]).exits(2);
    assert!(wrong.stderr.contains("input `data`"), "{wrong}");
    let wrong = run(&s, &["workflow", "run", "Stats", "mean", "column=a"]).exits(2);
    assert!(wrong.stderr.contains("data"), "{wrong}");
    let failed = run(&s, &[&go[..], &["token=raise", "--json"]].concat()).exits(4).json();
    let stderr = failed["error"]["stderr"].as_str().unwrap();
    assert!(
        stderr.ends_with("ValueError: no such luck") && stderr.contains("stats.py"),
        "{stderr}"
    );
    // The same function for a model's call.
    let called = run(&s, &["tool", "call", "mean", "data=table.tsv", "column=a", "--json"])
        .exits(0)
        .json();
    assert_eq!(called["result"], json!(2.0));
}

#[test]
fn a_warm_start_starts_no_python() {
    use std::os::unix::fs::PermissionsExt;
    let s = stats();
    let starts = s.path("starts");
    let script = format!("#!/bin/sh\necho x >> '{}'\nexec python3 \"$@\"\n", starts.display());
    s.write("python", script);
    let python = s.path("python");
    std::fs::set_permissions(&python, std::fs::Permissions::from_mode(0o755)).unwrap();
    let go = |args: &[&str]| {
        let output = s.command(BIN, args).env("DECANUS_PYTHON", &python).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        std::fs::read_to_string(&starts).unwrap_or_default().lines().count()
    };
    assert_eq!(go(&["workflow", "show", "Stats"]), 1);
    assert_eq!(go(&["tool", "list"]), 1);
    let task = ["workflow", "run", "Stats", "mean", "data=table.tsv", "column=a"];
    assert_eq!(go(&task), 2, "for the function itself");
    assert_eq!(go(&task), 2, "a stored result");
    s.write("workflows/Stats/stats.py", PYTHON.replace("A table.", "The table."));
    assert_eq!(go(&["workflow", "show", "Stats"]), 3, "a changed file is read anew");
}

#[test]
fn a_secret_is_not_shown() {
    let s = stats();
    let go = [
        "workflow",
        "run",
        "Stats",
        "mean",
        "data=table.tsv",
        "column=a",
        "token=open sesame",
        "--json",
    ];
    let job = run(&s, &go).exits(0).json()["job"].as_str().unwrap().to_owned();
    let shown = run(&s, &["job", "show", &job, "--json"]).exits(0);
    assert_eq!(shown.json()["inputs"]["token"], "********");
    let grep = Command::new("grep")
        .args(["-rl", "open sesame"])
        .arg(s.project().join(".decanus"))
        .output()
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&grep.stdout), "");
}

#[test]
fn bytes_and_names() {
    let s = stats();
    let bytes = s.command(BIN, &["workflow", "run", "Stats", "raw"]).output().unwrap();
    assert_eq!(bytes.stdout, b"\xffx\n");
    let job = run(&s, &["workflow", "run", "Stats", "raw", "--json"]).exits(0).json();
    assert_eq!(job["result"], job["job"], "in JSON, bytes are where they are");
    let bytes = s
        .command(BIN, &["job", "result", job["job"].as_str().unwrap()])
        .output()
        .unwrap();
    assert_eq!(bytes.stdout, b"\xffx\n");
    let named = run(&s, &["workflow", "run", "Stats", "hi", "who=Ana", "--json"])
        .exits(0)
        .json();
    assert!(named["job"].as_str().unwrap().contains("/hi/Ana_"), "{named}");
    assert_eq!(
        run(&s, &["workflow", "run", "Stats", "hi", "--name", "Ana"])
            .exits(0)
            .stdout,
        "hello Ana\n"
    );
}

#[test]
fn check_lists_all_faults() {
    let s = stats();
    let good = run(&s, &["workflow", "check"]).exits(0);
    assert_eq!(good.stdout, "", "{good}");
    assert_eq!(
        run(&s, &["workflow", "check", "--json"]).exits(0).json(),
        json!([{"name": "Stats", "errors": [], "warnings": []}])
    );
    s.write("workflows/Stats/stats.py", "def mean(data: Frame): pass\n");
    s.write(
        "workflows/Bad/workflow.yaml",
        "tasks:\n  a: {sh: x, foo: 1}\n  b: {run: [no-such-program]}\n  c: {sh: x, result: nmber}\n",
    );
    insta::assert_snapshot!("workflow_check", both(&s, &run(&s, &["workflow", "check"])));
    let json = run(&s, &["workflow", "check", "Bad", "--json"]).exits(2).json();
    let errors = json[0]["errors"].as_array().unwrap();
    let lines: Vec<(u64, &str)> = errors
        .iter()
        .map(|e| (e["line"].as_u64().unwrap(), e["key"].as_str().unwrap()))
        .collect();
    assert_eq!(lines, [(2, "tasks.a.foo"), (4, "tasks.c.result")]);
    assert_eq!(json[0]["warnings"][0]["line"], 3);
    assert!(
        json[0]["errors"][0]["file"]
            .as_str()
            .unwrap()
            .ends_with("Bad/workflow.yaml")
    );
    let unknown = run(&s, &["workflow", "check", "Bat"]).exits(2);
    assert!(unknown.stderr.contains("did you mean Bad?"), "{unknown}");
    // What can't be used says why, with the first of these.
    let ran = run(&s, &["workflow", "run", "Bad", "a"]).exits(2);
    assert!(ran.stderr.contains("workflow.yaml:2: tasks.a.foo"), "{ran}");
}

/// What a shell is told for the last of these words.
fn complete(s: &Sandbox, shell: &str, words: &[&str]) -> Vec<String> {
    let all: Vec<&str> = ["--", "decanus"].iter().chain(words).copied().collect();
    let output = s
        .command(BIN, &all)
        .env("DECANUS_COMPLETE", shell)
        .env("_CLAP_COMPLETE_INDEX", words.len().to_string())
        .env("_CLAP_IFS", "\n")
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.lines()
        .map(str::to_owned)
        .filter(|l| !l.starts_with('-'))
        .collect()
}

#[test]
fn names_are_completed() {
    let s = stats();
    for shell in ["bash", "zsh", "fish"] {
        let begins = |words: &[&str], expected: &[&str]| {
            let found = complete(&s, shell, words);
            // zsh and fish show a description after the word.
            let words: Vec<&str> = found.iter().map(|l| l.split(['\t', ':']).next().unwrap()).collect();
            assert_eq!(words, expected, "{shell}");
        };
        begins(&["workflow", "sh"], &["show"]);
        begins(&["workflow", "show", "St"], &["Stats"]);
        begins(&["workflow", "check", ""], &["Stats"]);
        begins(&["workflow", "run", ""], &["Stats"]);
        begins(&["workflow", "run", "Stats", ""], &["mean", "raw", "hi"]);
        begins(&["job", "list", "Stats", "m"], &["mean"]);
        begins(&["workflow", "run", "Stats", "mean", "d"], &["data=", "digits="]);
        begins(
            &["workflow", "run", "Stats", "mean", "data=x", "column="],
            &["column=a", "column=b"],
        );
        begins(&["workflow", "run", "Stats", "mean", "loud=t"], &["loud=true"]);
        begins(&["ask", "-t", "Stats/m"], &["Stats/mean"]);
        begins(&["workflow", "run", "None", ""], &[]);
        let other = s.project().display().to_string();
        begins(&["-C", &other, "workflow", "run", "S"], &["Stats"]);
    }
}

#[test]
fn bash_completes_by_the_printed_script() {
    let s = stats();
    let script = run(&s, &["completions", "bash"]).exits(0).stdout;
    s.write("c.bash", &script);
    let file = s.path("c.bash");
    let driver = format!(
        "source '{}'; COMP_WORDS=(decanus workflow run Stats m); COMP_CWORD=4; COMP_TYPE=9; \
         _clap_complete_decanus decanus m Stats; printf '%s\\n' \"${{COMPREPLY[@]}}\"",
        file.display()
    );
    let folder = std::path::Path::new(BIN).parent().unwrap().display().to_string();
    let path = format!("{folder}:{}", std::env::var("PATH").unwrap());
    let output = Command::new("bash")
        .args(["-c", &driver])
        .current_dir(s.project())
        .env("PATH", path)
        .env_remove("DECANUS_HOME")
        .output()
        .unwrap();
    assert_eq!(
        String::from_utf8_lossy(&output.stdout),
        "mean\n",
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}
