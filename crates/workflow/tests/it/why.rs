//! Why a job would run.

use decanus_workflow::{PathRules, Reason, ReasonKind, RunOptions, Status, StoredJob, Why, Workflows};
use serde_json::{Value, json};

use crate::sandbox::{Sandbox, map};

const LAB: &str = r#"
tasks:
  base: {inputs: {a: {type: integer, default: 1}, f: {type: file, default: note.txt}}, run: [sh, base.sh, "{a}"]}
  add:
    inputs: {b: {type: integer, default: 5}}
    depends: [base, {task: base, name: two, inputs: {a: 2}}]
    run: [sh, add.sh]
  may: {sh: exit 1}
  lenient: {depends: [{task: may, canfail: true}], sh: echo survived}
"#;

fn lab() -> (Sandbox, Workflows) {
    let s = Sandbox::new(LAB);
    s.write("workflows/W/base.sh", "echo $1\n");
    s.write("workflows/W/add.sh", "echo add\n");
    s.write("workflows/W/note.txt", "note");
    let workflows = Workflows::within(vec![s.root().join("workflows")]);
    (s, workflows)
}

fn planned(s: &Sandbox, workflows: &Workflows, task: &str, inputs: Value) -> Why {
    let job = workflows.load("W").unwrap();
    let job = job
        .job(task, &map(inputs), &PathRules::trusted(s.root()), None)
        .unwrap();
    s.store.why_job(&job).unwrap()
}

fn made(s: &Sandbox, task: &str, inputs: Value) -> StoredJob {
    s.run(task, inputs).unwrap().job
}

/// Kind and part of each.
fn short(reasons: &[Reason]) -> Vec<(ReasonKind, &str)> {
    reasons.iter().map(|r| (r.kind, r.part.as_str())).collect()
}

#[test]
fn a_stored_job_that_holds() {
    let (s, workflows) = lab();
    let done = made(&s, "add", json!({}));
    for why in [
        s.store.why(&done, &workflows),
        planned(&s, &workflows, "add", json!({})),
    ] {
        assert!(!why.runs() && why.reasons.is_empty(), "{why:?}");
        assert_eq!((why.status, &why.path), (Some(Status::Done), &done.path));
    }
}

#[test]
fn what_is_wrong_with_a_stored_job() {
    let (s, workflows) = lab();
    let done = made(&s, "add", json!({}));
    let why = || s.store.why(&s.store.read(done.path.clone()).unwrap(), &workflows);
    let record = std::fs::read_to_string(format!("{}.info", done.path.display())).unwrap();
    let set = |name: &str, value: Value| {
        let mut all: Value = serde_json::from_str(&record).unwrap();
        all[name] = value;
        std::fs::write(format!("{}.info", done.path.display()), all.to_string()).unwrap();
    };
    for (name, value, kind) in [
        ("status", json!("error"), ReasonKind::Error),
        ("status", json!("aborted"), ReasonKind::Aborted),
    ] {
        set(name, value);
        assert_eq!(short(&why().reasons), [(kind, "")]);
        assert!(planned(&s, &workflows, "add", json!({})).runs());
    }
    let mut dead: Value = serde_json::from_str(&record).unwrap();
    dead["status"] = json!("running");
    assert!(!{
        std::fs::write(format!("{}.info", done.path.display()), dead.to_string()).unwrap();
        why().runs()
    });
    assert_eq!(short(&why().reasons), [(ReasonKind::Active, "")]);
    dead["pid_started"] = json!(1);
    std::fs::write(format!("{}.info", done.path.display()), dead.to_string()).unwrap();
    assert_eq!(short(&why().reasons), [(ReasonKind::DeadOwner, "")]);
    std::fs::write(format!("{}.info", done.path.display()), &record[..40]).unwrap();
    assert_eq!(short(&why().reasons), [(ReasonKind::Torn, "")]);
    std::fs::write(format!("{}.info", done.path.display()), &record).unwrap();
    assert!(!why().runs());
    std::fs::rename(&done.path, done.path.with_extension("away")).unwrap();
    assert_eq!(short(&why().reasons), [(ReasonKind::ResultMissing, "")]);
    std::fs::rename(done.path.with_extension("away"), &done.path).unwrap();
    // A dependency whose result is gone, then one that was made again.
    let base = s.store.dir().join(&done.record.dependencies[0]);
    std::fs::remove_file(&base).unwrap();
    let lost = why();
    assert_eq!(
        short(&lost.reasons),
        [(ReasonKind::Dependency, done.record.dependencies[0].as_str())]
    );
    assert_eq!(short(&lost.reasons[0].because), [(ReasonKind::ResultMissing, "")]);
    made(&s, "base", json!({}));
    let newer = why();
    assert_eq!(
        short(&newer.reasons),
        [(ReasonKind::DependencyNewer, done.record.dependencies[0].as_str())]
    );
    assert!(newer.reasons[0].old.is_some() && newer.reasons[0].new.is_some());
    assert!(planned(&s, &workflows, "add", json!({})).runs());
    assert!(!s.run("add", json!({})).unwrap().reused, "and so it is");
    assert!(!why().runs());
}

#[test]
fn what_has_changed_since() {
    let (s, workflows) = lab();
    let done = made(&s, "add", json!({}));
    let why = || s.store.why(&done, &workflows);
    s.write("workflows/W/add.sh", "echo other\n");
    let script = why();
    assert_eq!(short(&script.reasons), [(ReasonKind::Changed, "script add.sh")]);
    assert_eq!(
        script.reasons[0].old.as_ref(),
        done.record.identity.get("script add.sh")
    );
    s.write("workflows/W/add.sh", "echo add\n");
    assert!(!why().runs());
    // Of what it depends on, through all levels.
    s.write("workflows/W/note.txt", "other");
    let file = why();
    let parts = [
        (ReasonKind::Dependency, "dependency base"),
        (ReasonKind::Dependency, "dependency two"),
    ];
    assert_eq!(short(&file.reasons), parts);
    assert_eq!(short(&file.reasons[0].because), [(ReasonKind::Changed, "input f")]);
    std::fs::remove_file(s.root().join("workflows/W/note.txt")).unwrap();
    assert!(why().reasons[0].because[0].message.contains("can't be read"));
    s.write("workflows/W/note.txt", "note");
    for (from, to, expected) in [
        (
            "inputs: {a: 2}",
            "inputs: {a: 3}",
            (ReasonKind::Dependency, "dependency two"),
        ),
        (
            "run: [sh, add.sh]",
            "run: [sh, -e, add.sh]",
            (ReasonKind::Changed, "definition"),
        ),
        (
            "inputs: {b: {",
            "inputs: {c: {}, b: {",
            (ReasonKind::Changed, "input c"),
        ),
        (
            "depends: [base, {",
            "depends: [may, base, {",
            (ReasonKind::Changed, "dependency may"),
        ),
        (
            "depends: [base, {",
            "depends: [{",
            (ReasonKind::Changed, "dependency base"),
        ),
    ] {
        s.write("workflows/W/workflow.yaml", &LAB.replace(from, to));
        assert_eq!(short(&why().reasons), [expected], "{to}");
    }
    let set = LAB.replace("inputs: {a: 2}", "inputs: {a: 3}");
    s.write("workflows/W/workflow.yaml", &set);
    let because = why().reasons[0].because.clone();
    assert_eq!(
        (because[0].old.clone(), because[0].new.clone()),
        (Some(json!(2)), Some(json!(3)))
    );
    s.write("workflows/W/workflow.yaml", "tasks:\n  other: {sh: x}\n");
    assert!(why().reasons[0].message.contains("has no such task now"));
}

#[test]
fn a_miss_is_compared_to_the_nearest_job() {
    let (s, workflows) = lab();
    let none = planned(&s, &workflows, "add", json!({}));
    assert!(none.runs() && none.nearest.is_none() && none.status.is_none());
    assert!(none.reasons[0].message.contains("no job of W/add"));
    made(&s, "add", json!({"a": 7, "b": 8}));
    let near = made(&s, "add", json!({"b": 8}));
    let why = planned(&s, &workflows, "add", json!({"b": 9}));
    assert_eq!(why.nearest.as_ref(), Some(&near.path));
    assert_eq!(
        short(&why.reasons),
        [(ReasonKind::Missing, ""), (ReasonKind::Changed, "input b")]
    );
    assert_eq!(
        (why.reasons[1].old.clone(), why.reasons[1].new.clone()),
        (Some(json!(8)), Some(json!(9)))
    );
    let why = planned(&s, &workflows, "add", json!({"a": 3, "b": 8}));
    assert_eq!(
        short(&why.reasons),
        [(ReasonKind::Missing, ""), (ReasonKind::Changed, "dependency base")]
    );
    assert_eq!(short(&why.reasons[1].because), [(ReasonKind::Changed, "input a")]);
    // The content of a file counts, wherever it is.
    s.write("elsewhere.txt", "other");
    let why = planned(&s, &workflows, "add", json!({"b": 8, "f": "elsewhere.txt"}));
    let file = &why.reasons[1].because[0];
    assert_eq!(
        (file.part.as_str(), file.message.as_str()),
        ("input f", "its content has changed")
    );
    assert_eq!(why.show()["runs"], json!(true));
    assert_eq!(why.show()["reasons"][1]["because"][0]["part"], json!("input f"));
    // Only the name differs.
    let workflow = workflows.load("W").unwrap();
    let job = workflow
        .job("add", &map(json!({"b": 8})), &PathRules::trusted("/"), Some("mine"))
        .unwrap();
    let why = s.store.why_job(&job).unwrap();
    assert_eq!(
        short(&why.reasons),
        [(ReasonKind::Missing, ""), (ReasonKind::Missing, "name")]
    );
}

#[test]
fn a_failure_that_a_job_lives_with_is_no_reason() {
    let (s, workflows) = lab();
    let done = made(&s, "lenient", json!({}));
    assert_eq!(s.store.why(&done, &workflows).reasons, []);
    assert_eq!(planned(&s, &workflows, "lenient", json!({})).reasons, []);
    s.store
        .run_blocking(&s.job("may", json!({})), &RunOptions::default())
        .unwrap_err();
    assert!(s.store.why(&done, &workflows).runs(), "it failed anew, later");
}
