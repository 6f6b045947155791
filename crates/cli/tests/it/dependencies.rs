//! Dependencies from the command line: results in the place of tasks, tasks of other workflows, and `job why`.

use serde_json::json;

use crate::support::*;

const TINY: &str = r#"
tasks:
  hello: {description: Says hello., inputs: {name: {required: true}}, result: string, run: [sh, hello.sh, "{name}"]}
  signed:
    description: Says hello, with tags.
    depends: [hello]
    inputs: {tags: {type: array}}
    result: json
    run: [python3, signed.py]
"#;

fn tiny() -> decanus_testkit::Sandbox {
    let s = lab();
    s.write("workflows/Tiny/workflow.yaml", TINY);
    s.write("workflows/Tiny/hello.sh", "echo \"Hello $1\"\n");
    let script = "import json, sys\nd = json.load(sys.stdin)\n\
        print(json.dumps({'text': d['dependencies']['hello']['value'], 'tags': d['inputs']['tags']}))\n";
    s.write("workflows/Tiny/signed.py", script);
    s
}

/// 31 of the worked examples.
#[test]
fn a_result_stands_in_for_a_task() {
    let s = tiny();
    let signed = |values: &[&str]| {
        let all: Vec<&str> = ["workflow", "run", "Tiny", "signed"]
            .iter()
            .chain(values)
            .copied()
            .collect();
        run(&s, &[&all[..], &["--json"]].concat())
    };
    let plain = signed(&["name=Bo", "tags=a", "tags=b"]).exits(0).json();
    assert_eq!(plain["result"], json!({"text": "Hello Bo", "tags": ["a", "b"]}));
    s.write("pre.txt", "pre\n");
    let over = signed(&["tags=a", "tags=b", "Tiny#hello=pre.txt"]).exits(0).json();
    assert_eq!(over["result"]["text"], "pre\n");
    assert_ne!(over["job"], plain["job"]);
    // A job, by its digest.
    let list = run(&s, &["job", "list", "Tiny", "hello", "--json"]).exits(0).json();
    let path = list[0]["path"].as_str().unwrap();
    let digest = path.rsplit('_').next().unwrap().split('.').next().unwrap();
    let by_job = signed(&[&format!("Tiny#hello={}", &digest[..8])]).exits(0).json();
    assert_eq!(by_job["result"]["text"], "Hello Bo");
    for (values, says) in [
        (
            vec!["Tiny#helo=pre.txt", "name=x"],
            "`Tiny#helo`: Tiny/signed does not depend on it; did you mean Tiny#hello?",
        ),
        (vec!["Tiny#hello=none.txt"], "none.txt"),
        (vec!["Tiny#hello=pre.txt", "name=Bo"], "no parameter `name`"),
    ] {
        let outcome = signed(&values).exits(2);
        let message = outcome.json()["error"]["message"]
            .as_str()
            .unwrap_or_default()
            .to_owned();
        assert!(message.contains(says), "{outcome}");
    }
}

#[test]
fn why_tells_what_would_run() {
    let s = tiny();
    let before = run(&s, &["job", "why", "Tiny/signed", "name=Bo"]).exits(0);
    assert!(
        before.stdout.contains("is not stored: its task would run") && before.stdout.contains("no job of Tiny/signed"),
        "{before}"
    );
    assert_eq!(
        run(&s, &["job", "list", "--json"]).exits(0).json(),
        json!([]),
        "nothing was run"
    );
    let job = run(&s, &["workflow", "run", "Tiny", "signed", "name=Bo", "--json"])
        .exits(0)
        .json()["job"]
        .clone();
    let path = job.as_str().unwrap();
    for args in [vec!["job", "why", path], vec!["job", "why", "Tiny/signed", "name=Bo"]] {
        let holds = run(&s, &args).exits(0);
        assert!(
            holds.stdout.contains("is done: its result holds; nothing would run"),
            "{holds}"
        );
    }
    let other = run(&s, &["workflow", "run", "Tiny", "signed", "name=Al", "--why"]).exits(0);
    assert!(
        other.stdout.contains("compared to the nearest earlier job")
            && other
                .stdout
                .contains("    input name: another value (\"Bo\" → \"Al\")\n"),
        "{other}"
    );
    s.write("workflows/Tiny/hello.sh", "echo \"Hi $1\"\n");
    let changed = run(&s, &["job", "why", path, "--json"]).exits(0).json();
    assert_eq!((&changed["runs"], &changed["status"]), (&json!(true), &json!("done")));
    assert_eq!(changed["reasons"][0]["part"], "dependency hello");
    let script = &changed["reasons"][0]["because"][0];
    assert_eq!(
        (&script["part"], &script["kind"]),
        (&json!("script hello.sh"), &json!("changed"))
    );
    assert_eq!(script["old"].as_str().unwrap().len(), 64);
    let shown = run(&s, &["job", "why", path]).exits(0);
    assert!(
        shown.stdout.contains("    script hello.sh: the script has changed ("),
        "{shown}"
    );
    for bad in [
        vec!["job", "why", "Tiny/nothing"],
        vec!["job", "why", "Nope/signed"],
        vec!["job", "why", "abcdef99"],
        vec!["job", "why", "abcdef99", "name=Bo"],
        vec!["job", "why", "Tiny/signed", "nam=Bo"],
    ] {
        assert_eq!(
            run(&s, &[&bad[..], &["--json"]].concat()).exits(2).json()["error"]["kind"],
            "usage",
            "{bad:?}"
        );
    }
}

#[test]
fn tasks_of_other_workflows_are_tools_shown_and_run() {
    let s = tiny();
    s.write(
        "workflows/Other/workflow.yaml",
        "tasks:\n  loud: {description: Shouts., depends: [Tiny/hello], result: string, sh: 'tr a-z A-Z < \"$DECANUS_DEP_hello\"'}\n  \
         same: {description: The same., alias: {workflow: Tiny, task: hello, inputs: {name: Eve}}}\n",
    );
    assert_eq!(
        run(&s, &["workflow", "run", "Other", "loud", "name=Bo"])
            .exits(0)
            .stdout,
        "HELLO BO\n"
    );
    assert_eq!(
        run(&s, &["workflow", "run", "Other", "same"]).exits(0).stdout,
        "Hello Eve\n"
    );
    let shown = run(&s, &["workflow", "show", "Other"]).exits(0);
    assert!(shown.stdout.contains("loud → string  (after Tiny/hello)"), "{shown}");
    let call = run(&s, &["tool", "call", "Other/loud", "name=Al", "--json"]);
    assert_eq!(call.exits(0).json()["result"], "HELLO AL");
    s.write(
        "workflows/Tiny/workflow.yaml",
        TINY.replace("run: [sh, hello.sh", "depends: [Other/loud], run: [sh, hello.sh"),
    );
    let circle = run(&s, &["workflow", "run", "Other", "loud", "name=Bo"]).exits(2);
    assert!(
        circle.stderr.contains("Other/loud → Tiny/hello → Other/loud"),
        "{circle}"
    );
}
