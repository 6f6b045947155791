//! The jobs of a graph as a listing, and what they read.

use std::time::{Duration, SystemTime};

use decanus_base::digest::sha256_hex;
use decanus_prov::{Check, ListingOptions};

use super::*;

impl Lab {
    fn listing(&self, root: &Path) -> String {
        let graph = self.tracer().job(root).unwrap();
        let text = graph.to_listing(ListingOptions::default());
        text.replace(&*self.root().join("jobs").to_string_lossy(), "J")
            .replace(&*self.root().to_string_lossy(), "R")
    }

    fn age(&self, path: &Path, seconds: u64) {
        let file = std::fs::File::open(path).unwrap();
        file.set_modified(SystemTime::now() - Duration::from_secs(seconds))
            .unwrap();
    }
}

/// Worked example 17 of workflows.
#[test]
fn what_was_used_stands_above_and_values_are_named() {
    let lab = Lab::new();
    lab.job("Lab/base/two.txt", "2", &json!({}));
    lab.job("Lab/base/one.txt", "1", &json!({}));
    lab.job("Lab/add/a.txt", "6", &json!({"dependencies": ["Lab/base/one.txt"]}));
    lab.job(
        "Lab/sum/s.txt",
        "8",
        &json!({"inputs": {"p": "Lab/base/two.txt", "q": {"job": "Lab/add/a.txt"}, "n": 3, "word": "a/b"}}),
    );
    let combo = lab.job(
        "Lab/combo/c.txt",
        "8",
        &json!({"dependencies": ["Lab/base/two.txt", "Lab/add/a.txt", "Lab/sum/s.txt"]}),
    );
    assert_eq!(
        lab.listing(&combo),
        concat!(
            " done Lab base J/Lab/base/two.txt -> sum:p\n",
            "  done Lab base J/Lab/base/one.txt\n",
            " done Lab add J/Lab/add/a.txt -> sum:q\n",
            " done Lab sum J/Lab/sum/s.txt\n",
            "done Lab combo J/Lab/combo/c.txt\n",
        )
    );
    // A list of results as one value.
    let jobs = json!(["Lab/base/one.txt", "Lab/base/two.txt"]);
    let list = lab.job("Lab/list/l.txt", "8", &json!({"inputs": {"all": {"jobs": jobs}}}));
    assert_eq!(
        lab.listing(&list),
        concat!(
            " done Lab base J/Lab/base/one.txt -> list:all\n",
            " done Lab base J/Lab/base/two.txt -> list:all\n",
            "done Lab list J/Lab/list/l.txt\n",
        )
    );
    // A value that is no dependency of anything is listed below what it is the value of.
    let alone = lab.listing(&lab.root().join("jobs/Lab/sum/s.txt"));
    assert!(
        alone.starts_with(" done Lab base J/Lab/base/two.txt -> sum:p\n"),
        "{alone}"
    );
    assert!(alone.ends_with("\ndone Lab sum J/Lab/sum/s.txt\n"), "{alone}");
}

#[test]
fn what_was_listed_is_listed_again_without_what_it_came_from() {
    let lab = Lab::new();
    lab.job("W/root/r.txt", "", &json!({}));
    lab.job("W/left/l.txt", "", &json!({"dependencies": ["W/root/r.txt"]}));
    lab.job("W/right/r.txt", "", &json!({"dependencies": ["W/left/l.txt"]}));
    let top = lab.job(
        "W/top/t.txt",
        "",
        &json!({"dependencies": ["W/left/l.txt", "W/right/r.txt"]}),
    );
    assert_eq!(
        lab.listing(&top),
        concat!(
            "  done W root J/W/root/r.txt\n",
            " done W left J/W/left/l.txt\n",
            "  done W left J/W/left/l.txt\n",
            " done W right J/W/right/r.txt\n",
            "done W top J/W/top/t.txt\n",
        )
    );
    // A ring ends.
    let ring = lab.job("W/ring/x.txt", "", &json!({"dependencies": ["W/ring/x.txt"]}));
    assert_eq!(
        lab.listing(&ring),
        " done W ring J/W/ring/x.txt\ndone W ring J/W/ring/x.txt\n"
    );
}

/// Worked example 24, and the words for what is not there.
#[test]
fn the_status_says_what_is_missing() {
    let lab = Lab::new();
    let lost = lab.job("W/lost/l.txt", "x", &json!({}));
    std::fs::remove_file(&lost).unwrap();
    lab.write("jobs/W/bare/b.txt", "x");
    let file = lab.write("given.txt", "50");
    lab.job("W/failed/f.txt", "x", &json!({"status": "error", "error": "no luck"}));
    let top = lab.job(
        "W/top/t.txt",
        "",
        &json!({"dependencies": ["W/lost/l.txt", "W/bare/b.txt", "W/gone/g.txt", "W/failed/f.txt", file]}),
    );
    assert_eq!(
        lab.listing(&top),
        concat!(
            " unsync W lost J/W/lost/l.txt\n",
            " noinfo W bare J/W/bare/b.txt\n",
            " missing W gone J/W/gone/g.txt\n",
            " error W failed J/W/failed/f.txt\n",
            " file -  R/given.txt\n",
            "done W top J/W/top/t.txt\n",
        )
    );
}

#[test]
fn a_result_that_is_newer_than_what_was_made_of_it_is_marked() {
    let lab = Lab::new();
    let base = lab.job("W/base/b.txt", "", &json!({}));
    let top = lab.job("W/top/t.txt", "", &json!({"dependencies": ["W/base/b.txt"]}));
    lab.age(&top, 1);
    assert!(!lab.listing(&top).contains("Mtime"), "two seconds are no difference");
    lab.age(&top, 60);
    assert_eq!(
        lab.listing(&top),
        " done W base J/W/base/b.txt (Mtime out of sync)\ndone W top J/W/top/t.txt\n"
    );
    lab.age(&base, 120);
    assert!(!lab.listing(&top).contains("Mtime"));
}

#[test]
fn recorded_digests_are_held_against_the_files() {
    let lab = Lab::new();
    let (same, changed) = (lab.write("same.csv", "1"), lab.write("changed.csv", "2"));
    let (gone, plain) = (lab.write("gone.csv", "3"), lab.write("plain.csv", "4"));
    let identity = json!({
        "input same": sha256_hex(b"1"), "input changed": sha256_hex(b"2"), "input gone": sha256_hex(b"3"),
        "definition": "x",
    });
    let inputs = json!({"same": same, "changed": changed, "gone": gone, "plain": plain});
    let versions = json!({"decanus": "0.1.0", "python": "3.12"});
    let job = lab.job(
        "W/t/1.txt",
        "",
        &json!({"inputs": inputs, "identity": identity, "versions": versions}),
    );
    lab.write("changed.csv", "two");
    let graph = lab.tracer().verifying(true).job(&job).unwrap();
    let checks = |graph: &Graph| -> Vec<(String, Option<Check>)> {
        let edges = graph.edges.iter().filter(|e| e.relation == Relation::Input);
        edges.map(|e| (e.input.clone().unwrap(), e.check)).collect()
    };
    assert_eq!(
        checks(&graph),
        [
            ("same".into(), Some(Check::Same)),
            ("changed".into(), Some(Check::Changed)),
            ("gone".into(), Some(Check::Same)),
            ("plain".into(), Some(Check::Unrecorded)),
        ]
    );
    assert_eq!(graph.edges[0].sha256.as_deref(), Some(&*sha256_hex(b"1")));
    let problems: Vec<&str> = graph.problems.iter().map(|p| p.message.as_str()).collect();
    assert_eq!(problems, ["changed.csv is not what it was when W/t/1.txt read it"]);
    let tree = graph.to_tree();
    assert!(tree.contains("by decanus 0.1.0, python 3.12"), "{tree}");
    let digest = &sha256_hex(b"2")[..12];
    assert!(
        tree.contains(&format!("input changed.csv  sha256:{digest}  (changed)")),
        "{tree}"
    );
    let edge = &graph.to_json(false)["edges"][1];
    assert_eq!((&edge["check"], &edge["input"]), (&json!("changed"), &json!("changed")));
    assert!(
        graph.to_dot().contains("label=\"input changed\", color=red"),
        "{}",
        graph.to_dot()
    );
    let long = graph.to_listing(ListingOptions { long: true });
    assert!(long.contains("  2.5s  by decanus 0.1.0, python 3.12\n"), "{long}");
    // Nobody asked: then no file is read.
    let graph = lab.tracer().job(&job).unwrap();
    assert!(checks(&graph).iter().all(|(_, check)| check.is_none()));
    // A file that is gone is known to be missing, with or without a digest.
    std::fs::remove_file(&gone).unwrap();
    std::fs::remove_file(&plain).unwrap();
    let graph = lab
        .tracer()
        .with_workflows(workflows(&lab))
        .verifying(true)
        .job(&job)
        .unwrap();
    assert!(
        checks(&graph)[2..]
            .iter()
            .all(|(_, check)| *check == Some(Check::Missing)),
        "{graph:?}"
    );
}

/// A workflow that says which inputs are files.
fn workflows(lab: &Lab) -> decanus_workflow::Workflows {
    let text = "title: W\ntasks:\n  t:\n    inputs:\n      same: {type: file}\n      changed: {type: file}\n      \
                gone: {type: file}\n      plain: {type: file}\n    run: [sh, run.sh]\n";
    lab.write("workflows/W/workflow.yaml", text);
    decanus_workflow::Workflows::within(vec![lab.root().join("workflows")])
}

#[test]
fn scripts_are_files_too_where_the_record_names_them() {
    let lab = Lab::new();
    lab.write("workflows/W/run.sh", "echo 1");
    let identity = json!({"script run.sh": {"sha256": sha256_hex(b"echo 1")}});
    let job = lab.job("W/t/1.txt", "", &json!({"identity": identity}));
    let script = |graph: &Graph| {
        let edge = graph.edges.iter().find(|e| e.relation == Relation::Script).cloned();
        edge.map(|e| (graph.nodes[e.to].label.clone(), e.check))
    };
    let tracer = lab.tracer().with_workflows(workflows(&lab)).verifying(true);
    let name = "workflows/W/run.sh".to_owned();
    assert_eq!(
        script(&tracer.job(&job).unwrap()),
        Some((name.clone(), Some(Check::Same)))
    );
    lab.write("workflows/W/run.sh", "echo 2");
    assert_eq!(script(&tracer.job(&job).unwrap()), Some((name, Some(Check::Changed))));
    assert_eq!(
        script(&lab.tracer().job(&job).unwrap()),
        None,
        "without the workflow nobody knows its folder"
    );
}
