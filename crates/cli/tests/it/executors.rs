//! `workflow run -x`, and `job exec` on the nodes of a stand-in for Slurm.

use std::path::Path;

use serde_json::{Value, json};

use crate::support::*;

#[test]
fn jobs_go_to_slurm_and_come_back() {
    let s = lab();
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../workflow/tests/fixtures/slurm");
    let bin = s.project().join("slurm");
    std::fs::create_dir(&bin).unwrap();
    for name in ["sbatch", "element", "squeue", "scontrol", "scancel"] {
        std::fs::copy(fixtures.join(name), bin.join(name)).unwrap();
    }
    let settings = "executor = 'slurm'\n[slurm]\nbin = 'slurm'\npoll = '200ms'\nsettle = '1s'\n";
    std::fs::write(s.project().join("decanus.toml"), settings).unwrap();
    let go = ["workflow", "run", "Lab", "shout", "who=Ada"];
    let first = run(&s, &go).exits(0);
    assert_eq!(first.stdout, "HELLO ADA\n");
    let json = run(&s, &[&go[..], &["--json"]].concat()).exits(0).json();
    let info = format!("{}.info", json["job"].as_str().unwrap());
    let record: Value = serde_json::from_str(&std::fs::read_to_string(info).unwrap()).unwrap();
    assert_eq!(
        (&record["executor"], &record["scheduler_id"]),
        (&json!("slurm"), &json!("2_0"))
    );
    assert_eq!(greeted(&s), 1);
    // A failure comes back with what the task said, and exit code 4.
    let failed = run(&s, &["workflow", "run", "Lab", "fails", "--json"]).exits(4).json();
    let local = run(&s, &["workflow", "run", "Lab", "fails", "--json", "-x", "local"])
        .exits(4)
        .json();
    assert_eq!(failed["error"], local["error"]);
    assert_ne!(failed["error"]["stderr"], "");
}

#[test]
fn an_executor_that_is_none_is_named() {
    let s = lab();
    let wrong = run(&s, &["workflow", "run", "Lab", "greet", "who=Ada", "-x", "slrum"]).exits(2);
    assert!(
        wrong.stderr.contains("no executor `slrum`; did you mean slurm?"),
        "{wrong}"
    );
    assert!(wrong.stderr.contains("the executors are local, slurm"), "{wrong}");
    std::fs::write(s.project().join("decanus.toml"), "[slurm]\nbin = 'nowhere'\n").unwrap();
    let missing = run(&s, &["workflow", "run", "Lab", "greet", "who=Ada", "-x", "slurm"]).exits(2);
    assert!(missing.stderr.contains("there is no program `sbatch`"), "{missing}");
    std::fs::write(s.project().join("decanus.toml"), "executor = 'moon'\n").unwrap();
    let wrong = run(&s, &["workflow", "list"]).exits(2);
    assert!(
        wrong.stderr.contains("decanus.toml: there is no executor `moon`"),
        "{wrong}"
    );
}
