//! Tasks of other workflows, circles through several files, and large graphs.

use std::sync::Arc;
use std::time::Instant;

use decanus_base::{Diagnostic, ErrorKind};
use decanus_workflow::{JobOptions, Override, PathRules, RunOptions, Workflow, WorkflowError, Workflows, parse};
use serde_json::{Value, json};

use crate::sandbox::{Sandbox, map};

fn load(s: &Sandbox, name: &str) -> Result<Arc<Workflow>, WorkflowError> {
    Workflows::within(vec![s.root().join("workflows"), s.root().join("home")]).load(name)
}

fn error(s: &Sandbox) -> String {
    let error = load(s, "W").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config, "{error}");
    error.to_string()
}

#[test]
fn a_task_of_another_workflow() {
    let s = Sandbox::new(
        r#"
tasks:
  own: {sh: echo own}
  top: {depends: [V/mid, own], result: json, sh: cat}
  set: {depends: [{workflow: V, task: mid, name: m, inputs: {a: "4", f: note.txt}}], result: json, sh: cat}
  same: {alias: V/mid}
"#,
    );
    s.write("workflows/W/note.txt", "of W");
    s.write("home/V/note.txt", "of V");
    s.write(
        "home/V/workflow.yaml",
        "tasks:\n  base: {inputs: {a: {type: integer, default: 1}}, result: integer, sh: echo \"$a\"}\n  \
         mid: {depends: [base, U/deep], inputs: {f: {type: file, default: note.txt}}, result: json, run: [python3, mid.py]}\n",
    );
    s.write(
        "home/V/mid.py",
        "import json, sys\nd = json.load(sys.stdin)\nprint(json.dumps([d['dependencies']['base']['value'], open(d['inputs']['f']).read(), \
         d['dependencies']['deep']['value']]))\n",
    );
    // Back to the first one: no circle of tasks.
    s.write(
        "home/U/workflow.yaml",
        "tasks:\n  deep: {depends: [W/own], sh: cat \"$DECANUS_DEP_own\"}\n",
    );
    let workflow = load(&s, "W").unwrap();
    let run = |task: &str, inputs: Value| {
        let job = workflow
            .job(task, &map(inputs), &PathRules::trusted(s.root()), None)
            .unwrap();
        s.store.run_blocking(&job, &RunOptions::default()).unwrap().job
    };
    let value = run("top", json!({"a": 3})).value().unwrap();
    assert_eq!(value["dependencies"]["mid"]["value"], json!([3, "of V", "own\n"]));
    let value = run("set", json!({})).value().unwrap();
    assert_eq!(
        value["dependencies"]["m"]["value"],
        json!([4, "of W", "own\n"]),
        "a file set by W is W's"
    );
    let same = run("same", json!({}));
    assert_eq!(same.value().unwrap(), json!([1, "of V", "own\n"]));
    assert!(same.path.extension().is_some_and(|e| e == "json"));
    // It is the job that V itself makes.
    let mid = load(&s, "V")
        .unwrap()
        .job("mid", &map(json!({"a": 3})), &PathRules::trusted("/"), None)
        .unwrap();
    assert!(s.store.run_blocking(&mid, &RunOptions::default()).unwrap().reused);
    let names: Vec<&str> = workflow
        .recursive_inputs(workflow.task("top").unwrap())
        .iter()
        .map(|i| i.name.as_str())
        .collect();
    assert_eq!(names, ["f", "a"]);
    let mut options = JobOptions::default();
    options
        .overrides
        .set("U", "deep", Override::Path(s.write("x", "elsewhere")));
    let job = workflow
        .job_with("top", &map(json!({})), &PathRules::trusted(s.root()), &options)
        .unwrap();
    let value = s.value_of(&job);
    assert_eq!(value["dependencies"]["mid"]["value"], json!([1, "of V", "elsewhere"]));
    // Without a place to look for it there is no guess.
    let alone = Arc::new(parse::load(&s.root().join("workflows/W")).unwrap());
    let error = alone
        .job("top", &map(json!({})), &PathRules::trusted("/"), None)
        .unwrap_err()
        .to_string();
    assert!(error.contains("V/mid, which is not in reach"), "{error}");
}

#[test]
fn a_changed_script_of_another_workflow_makes_another_job() {
    let s = Sandbox::new("tasks:\n  top: {depends: [V/a], sh: cat \"$DECANUS_DEP_a\"}\n");
    s.write("workflows/V/workflow.yaml", "tasks:\n  a: {run: [sh, a.sh]}\n");
    s.write("workflows/V/a.sh", "echo one\n");
    let workflows = Workflows::within(vec![s.root().join("workflows")]);
    let digest = || {
        let job = workflows
            .load("W")
            .unwrap()
            .job("top", &map(json!({})), &PathRules::trusted("/"), None);
        job.unwrap().digest.clone()
    };
    let first = digest();
    s.write("workflows/V/a.sh", "echo two\n");
    assert_ne!(digest(), first);
    let second = digest();
    s.write("workflows/V/workflow.yaml", "tasks:\n  a: {run: [sh, -e, a.sh]}\n");
    assert_ne!(digest(), second);
}

#[test]
fn faults_between_workflows_name_file_and_line() {
    let s = Sandbox::new("tasks:\n  a:\n    sh: x\n    depends: [Vv/a]\n");
    s.write(
        "workflows/V/workflow.yaml",
        "tasks:\n  base: {sh: x, inputs: {n: {type: integer}}}\n",
    );
    let w = |text: &str| {
        s.write("workflows/W/workflow.yaml", text);
        let error = error(&s);
        error
            .strip_prefix(&format!("{}/workflows/", s.root().display()))
            .unwrap_or(&error)
            .to_owned()
    };
    for (text, says) in [
        (
            "tasks:\n  a:\n    sh: x\n    depends: [Vv/a]\n",
            "W/workflow.yaml:4: tasks.a.depends.[0]: there is no workflow `Vv`; did you mean V?",
        ),
        (
            "tasks:\n  a:\n    sh: x\n    depends: [V/bsae]\n",
            "W/workflow.yaml:4: tasks.a.depends.[0]: workflow V has no task `bsae`; did you mean base?",
        ),
        (
            "tasks:\n  a:\n    sh: x\n    depends: [{workflow: V, task: base, inputs: {n: x}}]\n",
            "W/workflow.yaml:4: tasks.a.depends.[0]: inputs.n: `x` is not an integer",
        ),
        (
            "tasks:\n  a:\n    alias: {workflow: V, task: base, inputs: {m: 1}}\n",
            "W/workflow.yaml:3: tasks.a.alias: inputs.m: there is no input `m`",
        ),
    ] {
        assert!(w(text).starts_with(says), "{}", w(text));
    }
    // What is wrong with the other is told as its own.
    s.write("workflows/V/workflow.yaml", "tasks:\n  base: {sh: x, rsult: text}\n");
    assert!(w("tasks:\n  a: {sh: x, depends: [V/base]}\n").starts_with("V/workflow.yaml:2: tasks.base.rsult"));
}

/// 26, and C74: every circle is found when the file is read, and shown whole with the files.
#[test]
fn circles_through_several_files() {
    let s = Sandbox::new("tasks:\n  a: {sh: x, depends: [V/b]}\n");
    s.write("workflows/V/workflow.yaml", "tasks:\n  b: {sh: x, depends: [W/a]}\n");
    let file = |name: &str| {
        s.root()
            .join(format!("workflows/{name}/workflow.yaml"))
            .display()
            .to_string()
    };
    let expected = format!(
        "{}:2: tasks.a.depends.[0]: tasks depend on each other in a circle: W/a → V/b → W/a ({}, {})",
        file("W"),
        file("W"),
        file("V")
    );
    assert_eq!(error(&s), expected);
    // The same folder by another name is the same workflow.
    std::os::unix::fs::symlink(s.root().join("workflows/W"), s.root().join("workflows/Alias")).unwrap();
    s.write(
        "workflows/V/workflow.yaml",
        "tasks:\n  b: {sh: x, depends: [Alias/a]}\n",
    );
    assert!(error(&s).contains("W/a → V/b → W/a"), "{}", error(&s));
    // A chain that is longer than any should be, through two files.
    let mut texts = [
        String::from("tasks:\n  t0: {sh: x}\n"),
        String::from("tasks:\n  t0: {sh: x}\n"),
    ];
    for i in 1..=60 {
        for (me, other) in [(0, "V"), (1, "W")] {
            texts[me].push_str(&format!("  t{i}: {{sh: x, depends: [{other}/t{}]}}\n", i - 1));
        }
    }
    for i in 61..=120 {
        texts[0].push_str(&format!("  t{i}: {{sh: x, depends: [t{}]}}\n", i - 1));
    }
    s.write("workflows/V/workflow.yaml", &texts[1]);
    s.write(
        "workflows/W/workflow.yaml",
        &texts[0].replace("  t101:", "  u:\n    sh: x\n  t101:"),
    );
    assert!(error(&s).contains("more than 100 tasks in a chain"), "{}", error(&s));
}

#[test]
fn the_graphs_of_c74() {
    let all: Value = serde_json::from_str(include_str!("../fixtures/C74.graph.json")).unwrap();
    let text = |graph: &Value| {
        let tasks = graph.as_object().unwrap().iter();
        let tasks = tasks.map(|(name, depends)| format!("  {name}: {{sh: x, depends: {depends}}}\n"));
        format!("tasks:\n{}", tasks.collect::<String>())
    };
    let circles = ["a → b → c → a", "a → a"];
    for (graph, circle) in all["cycles"].as_array().unwrap().iter().zip(circles) {
        let s = Sandbox::new(&text(graph));
        let error = error(&s);
        assert!(
            error.contains(circle) && error.contains("W/workflow.yaml:2: tasks.a.depends"),
            "{error}"
        );
    }
    for graph in all["fine"].as_array().unwrap() {
        let s = Sandbox::new(&text(graph));
        let job = load(&s, "W")
            .unwrap()
            .job("a", &map(json!({})), &PathRules::trusted("/"), None)
            .unwrap();
        let below = |at: usize| &job.dependencies[at].dependencies[0];
        assert!(Arc::ptr_eq(below(0), below(1)), "the corner of a diamond is one job");
    }
}

/// The YAML of a graph of diamonds: for each item `join` → `left`, `right` → `base`.
const DIAMONDS: &str = r#"
tasks:
  base: {inputs: {seed: {type: integer, default: 1}}, run: [sh, base.sh]}
  left: {inputs: {id: {type: integer}}, depends: [base], run: [sh, side.sh, "{id}"]}
  right: {inputs: {id: {type: integer}}, depends: [base], run: [sh, side.sh, "{id}"]}
  join: {depends: [left, right], run: [cat, "{left.path}", "{right.path}"]}
  all: {inputs: {ids: {type: integer_array}}, depends: [{task: join, for_each: {ids: id}}], sh: 'true'}
"#;

fn diamonds(count: usize) -> (Sandbox, Value) {
    let s = Sandbox::new(DIAMONDS);
    s.write("workflows/W/base.sh", "echo base\n");
    s.write("workflows/W/side.sh", "echo $1\n");
    (s, json!({"ids": (0..count).collect::<Vec<_>>()}))
}

#[test]
fn a_graph_of_ten_thousand_jobs_is_planned_at_once() {
    let (s, inputs) = diamonds(3333);
    let begun = Instant::now();
    let job = s.job("all", inputs);
    let time = begun.elapsed();
    assert_eq!(job.dependencies.len(), 3333);
    let base = &job.dependencies[0].dependencies[0].dependencies[0];
    assert!(job.dependencies.iter().all(|join| {
        let sides = &join.dependencies;
        sides.len() == 2 && sides.iter().all(|side| Arc::ptr_eq(&side.dependencies[0], base))
    }));
    println!("10,001 jobs planned in {time:?}");
    // Quadratic work would take minutes; a slow machine does not.
    assert!(time.as_secs() < 5, "{time:?}");
}
