//! `decanus init`, `doctor`, `completions`, help, `-C`.

use decanus_testkit::Sandbox;

use crate::support::*;

#[test]
fn init_makes_a_project_that_runs_and_is_safe_twice() {
    let s = Sandbox::new();
    insta::assert_snapshot!("init", both(&s, &run(&s, &["init", "new"]).exits(0)));
    let ran = run(
        &s,
        &[
            "-C",
            "new",
            "workflow",
            "run",
            "First",
            "count_words",
            "text=one two three",
        ],
    )
    .exits(0);
    assert_eq!(ran.stdout, "3\n");
    s.write("new/decanus.toml", "# mine\n");
    let again = run(&s, &["init", "new", "--json"]).exits(0).json();
    assert_eq!(again["made"], serde_json::json!([]));
    assert_eq!(s.read("new/decanus.toml"), "# mine\n");
    run(&s, &["-C", "new", "doctor"]).exits(0);
    s.write("file", "x");
    let blocked = run(&s, &["init", "file"]).exits(2);
    assert!(blocked.stderr.contains("file"), "{blocked}");
}

#[test]
fn doctor_shows_settings_with_their_sources() {
    let s = lab();
    s.write("decanus.toml", "endpoint = \"e\"\n[limits]\nrounds = 7\n");
    s.endpoint("e", "http://127.0.0.1:9/v1");
    let plain = both(&s, &run(&s, &["doctor"]).exits(0));
    // What the machine has depends on the build and the machine.
    let stdout = plain.split("---").next().unwrap();
    let lines: Vec<&str> = stdout.lines().filter(|l| !l.ends_with("(machine)")).collect();
    insta::assert_snapshot!("doctor", lines.join("\n"));
    let checks = run(&s, &["doctor", "--json"]).exits(0).json();
    for check in checks.as_array().unwrap() {
        assert_eq!(&keys(check)[..4], ["check", "ok", "value", "source"]);
    }
    let find = |name: &str| {
        checks
            .as_array()
            .unwrap()
            .iter()
            .find(|c| c["check"] == name)
            .unwrap()
            .clone()
    };
    assert_eq!(
        (
            find("limits.rounds")["value"].as_str(),
            find("limits.rounds")["source"].as_str()
        ),
        (Some("7"), Some("decanus.toml"))
    );
    assert_eq!(find("endpoint")["source"], "decanus.toml");
    // A broken file is found, and named.
    s.write(
        "endpoints/broken.yaml",
        "backend: openai\nmodel: m\nurl: http://127.0.0.1:9\nretries: many\n",
    );
    let outcome = run(&s, &["doctor"]).exits(1);
    assert!(
        outcome.stdout.contains("FAILED") && outcome.stderr.contains("broken.yaml:4"),
        "{outcome}"
    );
    let checks = run(&s, &["doctor", "--json"]).exits(1).json();
    let broken = checks
        .as_array()
        .unwrap()
        .iter()
        .find(|c| c["check"] == "endpoint broken")
        .unwrap();
    assert_eq!(broken["ok"], false);
    assert!(broken["hint"].as_str().unwrap().contains("retries"));
}

#[test]
fn bad_settings_are_named_with_their_line() {
    let s = Sandbox::new();
    s.write("decanus.toml", "[limits]\nrounds = \"many\"\n");
    let outcome = run(&s, &["tool", "list", "--json"]).exits(2);
    assert!(
        outcome.stderr.contains("decanus.toml") && outcome.stderr.contains('2'),
        "{outcome}"
    );
    assert_eq!(outcome.json()["error"]["kind"], "config");
}

#[test]
fn completions_and_help() {
    let s = Sandbox::new();
    let bash = run(&s, &["completions", "bash"]).exits(0);
    assert!(bash.stdout.contains("_clap_complete_decanus()") && bash.stdout.contains("DECANUS_COMPLETE"));
    let script = s.path("c.bash");
    std::fs::write(&script, &bash.stdout).unwrap();
    let check = std::process::Command::new("bash").arg("-n").arg(&script).status();
    assert!(check.is_err() || check.unwrap().success(), "bash reads it");
    for shell in ["zsh", "fish"] {
        assert!(run(&s, &["completions", shell]).exits(0).stdout.contains("decanus"));
    }
    run(&s, &["completions", "cmd.exe"]).exits(2);
    let help = run(&s, &["--help"]).exits(0);
    assert!(help.stdout.starts_with("Chats, typed workflows and models"), "{help}");
    assert!(run(&s, &["--version"]).exits(0).stdout.starts_with("decanus "));
    for wrong in [&["asc"][..], &["ask", "--no-such"], &["tool"], &[]] {
        run(&s, wrong).exits(2);
    }
    let json = run(&s, &["ask", "--no-such", "--json"]).exits(2).json();
    assert_eq!(json["error"]["kind"], "usage");
}

#[test]
fn another_folder() {
    let s = lab();
    s.write("sub/deep/note.txt", "deep down");
    // Inside a project its root is found; paths are relative to the folder.
    s.write("decanus.toml", "");
    let inside = run(&s, &["-C", "sub/deep", "tool", "call", "echo", "message=@note.txt"]).exits(0);
    assert_eq!(inside.stdout, "deep down\n");
    assert_eq!(
        run(&s, &["-C", "sub/deep", "workflow", "run", "Lab", "greet", "who=A"])
            .exits(0)
            .stdout,
        "hello A\n"
    );
    assert!(s.path(".decanus/jobs/Lab").exists());
    let missing = run(&s, &["-C", "nowhere", "tool", "list", "--json"]).exits(2);
    assert!(missing.stderr.contains("nowhere"), "{missing}");
    assert!(missing.json()["error"]["kind"].is_string());
}
