//! `decanus job`.

use serde_json::json;

use crate::support::*;

#[test]
fn jobs_are_listed_shown_and_printed() {
    let s = lab();
    let none = run(&s, &["job", "list"]).exits(0);
    assert_eq!((none.stdout.as_str(), none.stderr.as_str()), ("", "no jobs\n"));
    assert_eq!(run(&s, &["job", "list", "--json"]).exits(0).json(), json!([]));
    let path = run(&s, &["workflow", "run", "Lab", "shout", "who=Ada", "--json"])
        .exits(0)
        .json()["job"]
        .clone();
    let path = path.as_str().unwrap();
    let list = run(&s, &["job", "list", "--json"]).exits(0).json();
    assert_eq!(list.as_array().unwrap().len(), 2);
    assert_eq!(list[0]["status"], "done");
    let shown = run(&s, &["job", "show", path, "--json"]).exits(0).json();
    for key in [
        "path",
        "workflow",
        "task",
        "name",
        "status",
        "inputs",
        "dependencies",
        "started",
        "ended",
        "files",
    ] {
        assert!(keys(&shown).contains(&key), "{key}: {shown}");
    }
    assert_eq!(shown["path"], path);
    assert_eq!(shown["dependencies"].as_array().unwrap().len(), 1);
    insta::assert_snapshot!("job_show", both(&s, &run(&s, &["job", "show", path])));
    assert_eq!(
        run(&s, &["job", "list", "Lab", "greet"])
            .exits(0)
            .stdout
            .lines()
            .count(),
        1
    );
}

#[test]
fn a_job_is_found_by_path_name_and_digest() {
    let s = lab();
    let json = run(&s, &["workflow", "run", "Lab", "greet", "who=Ada", "--json"])
        .exits(0)
        .json();
    let path = json["job"].as_str().unwrap();
    let relative = path.strip_prefix(&format!("{}/", s.project().display())).unwrap();
    let stem = path.rsplit('/').next().unwrap().split('.').next().unwrap();
    let digest = stem.rsplit('_').next().unwrap();
    let named = format!("Lab/greet/{stem}");
    for job in [path, relative, &named, "Lab/greet/Default", digest, &digest[..6]] {
        assert_eq!(run(&s, &["job", "result", job]).exits(0).stdout, "hello Ada\n", "{job}");
        let shown = run(&s, &["job", "result", job, "--json"]).exits(0).json();
        assert_eq!(shown, json!({"status": "done", "job": path, "result": "hello Ada"}));
    }
    run(&s, &["workflow", "run", "Lab", "greet", "who=Bob"]).exits(0);
    let two = run(&s, &["job", "show", "Lab/greet/Default"]).exits(2);
    assert!(two.stderr.contains(stem), "the choices are shown: {two}");
    for missing in [
        "Lab/greet/Other",
        "abcdef012345",
        &digest[..5],
        "no/such/file.txt",
        "Lob/greet/Default",
    ] {
        let outcome = run(&s, &["job", "show", missing, "--json"]).exits(2);
        assert_eq!(outcome.json()["error"]["kind"], "usage", "{missing}");
    }
}

/// C73: what a killed run left behind stops nobody.
#[test]
fn a_dead_owner_is_no_obstacle() {
    let s = lab();
    let json = run(&s, &["workflow", "run", "Lab", "greet", "who=Ada", "--json"])
        .exits(0)
        .json();
    let path = json["job"].as_str().unwrap();
    // As if it had been killed while it ran: a record of a process that is gone, no result.
    let info = format!("{path}.info");
    let mut record: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(&info).unwrap()).unwrap();
    record["status"] = "running".into();
    record["pid"] = 999_999.into();
    record["pid_started"] = 1.into();
    record["pgid"] = 999_999.into();
    std::fs::write(&info, record.to_string()).unwrap();
    std::fs::remove_file(path).unwrap();
    let shown = run(&s, &["job", "show", path, "--json"]).exits(0).json();
    assert_eq!(shown["status"], "aborted", "{shown}");
    let again = run(&s, &["workflow", "run", "Lab", "greet", "who=Ada"]).exits(0);
    assert_eq!(again.stdout, "hello Ada\n");
    assert_eq!(greeted(&s), 2);
}

#[test]
fn a_jobs_folder_that_cannot_be_written_is_said() {
    let s = lab();
    // A file where the folder should be stops root too.
    s.write(".decanus", "in the way");
    let plain = run(&s, &["workflow", "run", "Lab", "greet", "who=A"]).exits(1);
    assert!(plain.stderr.contains(".decanus"), "{plain}");
    assert_eq!(greeted(&s), 0);
    let json = run(&s, &["workflow", "run", "Lab", "greet", "who=A", "--json"])
        .exits(1)
        .json();
    assert_eq!(
        (json["status"].as_str(), json["error"]["kind"].as_str()),
        (Some("error"), Some("internal"))
    );
    run(&s, &["doctor"]).exits(1);
}

/// A file system without room.
struct Tiny(std::path::PathBuf);

impl Tiny {
    /// Mounts one of 64 kB, where that is permitted.
    fn mount(at: &std::path::Path) -> Option<Self> {
        std::fs::create_dir_all(at).unwrap();
        let done = std::process::Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=64k", "tmpfs"])
            .arg(at)
            .stderr(std::process::Stdio::null())
            .status();
        if done.is_ok_and(|s| s.success()) {
            return Some(Self(at.to_owned()));
        }
        eprintln!("SKIPPED: a file system can't be mounted here, so a full disk was not tried");
        None
    }
}

impl Drop for Tiny {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

#[test]
fn a_full_disk_is_said_and_leaves_no_half_result() {
    let s = lab();
    let Some(_disk) = Tiny::mount(&s.path("small")) else {
        return;
    };
    s.write("decanus.toml", "jobs_dir = \"small/jobs\"\n");
    let outcome = run(&s, &["workflow", "run", "Lab", "big"]);
    assert!(outcome.code == 4 || outcome.code == 1, "{outcome}");
    assert!(outcome.stderr.to_lowercase().contains("no space"), "{outcome}");
    let list = run(&s, &["job", "list", "--json"]).exits(0).json();
    for job in list.as_array().unwrap() {
        assert_ne!(job["status"], "done");
        assert!(!std::path::Path::new(job["path"].as_str().unwrap()).exists());
    }
}

#[test]
fn a_chat_on_a_full_disk_keeps_what_it_had() {
    use decanus_testkit::{Reply, ScriptedServer};
    let s = lab();
    let Some(_disk) = Tiny::mount(&s.path("small")) else {
        return;
    };
    let long = "x".repeat(100_000);
    let server = ScriptedServer::start([Reply::chat_text("short"), Reply::chat_text(&long)]);
    ask(&s, &server, &["-c", "small/a.chat", "one"]).exits(0);
    let failed = ask(&s, &server, &["-c", "small/a.chat", "two", "--json"]).exits(1);
    assert!(failed.stderr.to_lowercase().contains("no space"), "{}", failed.stderr);
    assert_eq!(failed.json()["answer"], long, "the answer is not lost");
    assert_eq!(failed.json()["error"]["kind"], "internal");
    let roles: Vec<String> = chat(&s, "small/a.chat").into_iter().map(|(r, _)| r).collect();
    assert_eq!(roles, ["user", "assistant", "user"], "whole steps only");
}
