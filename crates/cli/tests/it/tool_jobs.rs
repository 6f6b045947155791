//! Tool calls that go on in the background, and the end and removal of jobs.

use decanus_testkit::{Reply, Sandbox, ScriptedServer};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use crate::support::*;

/// Starts a sleepy job; gives its id.
fn start(s: &Sandbox, seconds: u32) -> String {
    let args = [
        "tool",
        "call",
        "start_sleepy_job",
        &format!("duration={seconds}"),
        "message=hi",
        "--json",
    ];
    let begun = run(s, &args).exits(0).json();
    assert_eq!(keys(&begun), ["status", "job_id", "message"]);
    assert_eq!(begun["status"], "pending");
    begun["job_id"].as_str().unwrap().to_owned()
}

fn check(s: &Sandbox, id: &str) -> Value {
    let shown = run(
        s,
        &["tool", "call", "check_job_status", &format!("job_id={id}"), "--json"],
    );
    shown.exits(0).json()
}

/// What a check says when the job has ended.
fn ended(s: &Sandbox, id: &str) -> Value {
    wait_for("the end of the job", || {
        Some(check(s, id)).filter(|c| c["job_status"] != "pending")
    })
}

/// The path and the record of the only job of a kind.
fn info(s: &Sandbox) -> (std::path::PathBuf, Value) {
    let list = run(s, &["job", "list", "tool", "--json"]).exits(0).json();
    let path = list[0]["path"].as_str().unwrap().to_owned() + ".info";
    let record = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
    (path.into(), record)
}

fn worker(s: &Sandbox) -> u32 {
    u32::try_from(info(s).1["pid"].as_u64().unwrap()).unwrap()
}

#[test]
fn a_call_is_answered_at_once_and_its_job_outlives_the_command() {
    let s = Sandbox::new();
    let long = start(&s, 300);
    // The command is over; another process sees the job at work.
    let now = check(&s, &long);
    assert_eq!(
        now,
        json!({"status": "success", "job_id": long, "job_status": "pending",
               "result": {"job_id": long, "job_status": "pending"}})
    );
    let running = run(&s, &["job", "list", "--json"]).exits(0).json();
    assert_eq!(running[0]["status"], "running");
    run(&s, &["job", "cancel", &long]).exits(0);
    run(&s, &["job", "clean", &long]).exits(0);
    let id = start(&s, 1);
    let done = ended(&s, &id);
    let report = json!({"job_id": id, "job_status": "completed", "result": "Slept for 1 seconds. Your message: hi"});
    assert_eq!(done["job_status"], "completed");
    assert_eq!(done["result"], report);
    // It is a job as others are, known by its id too.
    let list = run(&s, &["job", "list", "--json"]).exits(0).json();
    assert_eq!(
        (
            &list[0]["id"],
            &list[0]["workflow"],
            &list[0]["task"],
            &list[0]["status"]
        ),
        (&json!(id), &json!("tool"), &json!("start_sleepy_job"), &json!("done"))
    );
    let shown = run(&s, &["job", "show", &id, "--json"]).exits(0).json();
    assert_eq!(shown["inputs"], json!({"duration": 1, "message": "hi"}));
    let result = run(&s, &["job", "result", &id[..8]]).exits(0);
    assert_eq!(result.stdout, "Slept for 1 seconds. Your message: hi\n");
    let tree = run(&s, &["prov", &id]).exits(0);
    assert!(tree.stdout.contains("start_sleepy_job"), "{tree}");
    // Another project does not know the id.
    assert_eq!(check(&Sandbox::new(), &id)["job_status"], "unknown");
}

#[test]
fn a_check_can_wait_and_zero_seconds_are_fine() {
    let s = Sandbox::new();
    let plain = run(&s, &["tool", "call", "start_sleepy_job", "duration=0", "message=m"]).exits(0);
    let read: Value = serde_json::from_str(&plain.stdout).unwrap();
    let id = read["job_id"].as_str().unwrap();
    let args = [
        "tool",
        "call",
        "check_job_status",
        &format!("job_id={id}"),
        "wait_seconds=30",
        "--json",
    ];
    let done = run(&s, &args).exits(0).json();
    assert_eq!(done["result"]["result"], "Slept for 0 seconds. Your message: m");
}

#[test]
fn ids_that_are_none_and_durations_out_of_range() {
    let s = Sandbox::new();
    let unknown = check(&s, "nope");
    assert_eq!(keys(&unknown), ["status", "job_id", "job_status", "message", "result"]);
    assert_eq!(
        (&unknown["status"], &unknown["job_id"]),
        (&json!("success"), &json!("nope"))
    );
    assert_eq!(
        (&unknown["job_status"], &unknown["result"]["job_status"]),
        (&json!("unknown"), &json!("unknown"))
    );
    let blank = run(&s, &["tool", "call", "check_job_status", "job_id=  ", "--json"])
        .exits(4)
        .json();
    assert_eq!(
        (&blank["status"], &blank["error_class"]),
        (&json!("error"), &json!("ToolArgumentError"))
    );
    for seconds in ["-1", "3601", "soon"] {
        let args = [
            "tool",
            "call",
            "start_sleepy_job",
            &format!("duration={seconds}"),
            "message=m",
            "--json",
        ];
        let json = run(&s, &args).exits(2).json();
        assert_eq!(json["error"]["kind"], "usage");
        assert!(
            json["error"]["message"].as_str().unwrap().contains("duration"),
            "{json}"
        );
    }
    assert_eq!(run(&s, &["job", "list", "--json"]).exits(0).json(), json!([]));
    run(&s, &["job", "work", "00000000-0000-4000-8000-000000000000"]).exits(4);
}

#[test]
fn a_worker_that_was_killed_has_failed() {
    let s = Sandbox::new();
    let id = start(&s, 300);
    let pid = worker(&s);
    kill(Pid::from_raw(pid as i32), Signal::SIGKILL).unwrap();
    assert_gone(&[pid]);
    let list = run(&s, &["job", "list", "--json"]).exits(0).json();
    assert_eq!(list[0]["status"], "error");
    let failed = check(&s, &id);
    assert_eq!(failed["job_status"], "error");
    assert_eq!(failed["error_message"], "the worker died");
    assert_eq!(failed["result"]["error_message"], "the worker died");
    let result = run(&s, &["job", "result", &id]).exits(4);
    assert!(result.stderr.contains("the worker died"), "{result}");
}

#[test]
fn a_job_is_cancelled_whether_or_not_its_worker_listens() {
    let s = Sandbox::new();
    for deaf in [false, true] {
        let id = start(&s, 300);
        let pid = worker(&s);
        if deaf {
            kill(Pid::from_raw(pid as i32), Signal::SIGSTOP).unwrap();
        }
        let refused = run(&s, &["job", "clean", &id]).exits(4);
        assert!(refused.stderr.contains("job cancel"), "{refused}");
        let cancelled = run(&s, &["job", "cancel", &id, "--json"]).exits(0).json();
        assert_eq!(
            (&cancelled["status"], &cancelled["cancelled"]),
            (&json!("aborted"), &json!(true))
        );
        assert_gone(&[pid]);
        assert_eq!(check(&s, &id)["error_message"], "cancelled");
        let again = run(&s, &["job", "cancel", &id]).exits(0);
        assert!(again.stderr.contains("was not at work"), "{again}");
        run(&s, &["job", "clean", &id]).exits(0);
        assert_eq!(check(&s, &id)["job_status"], "unknown");
    }
}

#[test]
fn a_job_is_forgotten_a_day_after_its_end() {
    let s = Sandbox::new();
    let id = start(&s, 0);
    ended(&s, &id);
    let (path, mut record) = info(&s);
    record["ended"] = "2020-01-01T00:00:00Z".into();
    std::fs::write(&path, record.to_string()).unwrap();
    assert_eq!(run(&s, &["job", "list", "--json"]).exits(0).json(), json!([]));
    assert_eq!(check(&s, &id)["job_status"], "unknown");
    assert!(!path.exists());
}

#[test]
fn a_task_is_cancelled_by_another_process() {
    let s = lab();
    let running = Running::start(&s, &["workflow", "run", "Lab", "hangs", "pids=pids"]);
    let list = wait_for("the job", || {
        let list = run(&s, &["job", "list", "Lab", "--json"]).json();
        Some(list).filter(|l| l[0]["status"] == "running")
    });
    let path = list[0]["path"].as_str().unwrap();
    let pids = pids(&std::path::PathBuf::from(format!("{path}.files/pids")));
    run(&s, &["job", "cancel", path]).exits(0);
    assert_gone(&pids);
    running.end();
    let shown = run(&s, &["job", "show", path, "--json"]).exits(0).json();
    assert_eq!(
        (&shown["status"], &shown["error"]),
        (&json!("aborted"), &json!("cancelled"))
    );
}

#[test]
fn a_model_is_told_of_the_job_and_can_ask_for_it() {
    let s = Sandbox::new();
    let server = ScriptedServer::start([
        Reply::chat_calls(&[("c1", "start_sleepy_job", json!({"duration": 300, "message": "m"}))]),
        Reply::chat_text("It is under way."),
    ]);
    let args = ["-t", "start_sleepy_job", "-c", "x.chat", "--no-stream", "--json", "go"];
    let answer = ask(&s, &server, &args).exits(0).json();
    let requests = server.requests();
    let tools: Vec<Value> = requests[0].json()["tools"].as_array().unwrap().clone();
    let names: Vec<&Value> = tools.iter().map(|t| &t["function"]["name"]).collect();
    assert_eq!(names, ["check_job_status", "start_sleepy_job"]);
    let told = requests[1].json()["messages"][2]["content"]
        .as_str()
        .unwrap()
        .to_owned();
    let told: Value = serde_json::from_str(&told).unwrap();
    assert_eq!(told["status"], "pending");
    assert!(told["message"].as_str().unwrap().contains("check_job_status"), "{told}");
    let id = told["job_id"].as_str().unwrap();
    assert!(
        answer["jobs"][0].as_str().unwrap().contains(&id.replace('-', "")),
        "{answer}"
    );
    assert!(s.read("x.chat").contains(id));
    assert_paired(&s, "x.chat");
    // The run is over, the job is not.
    assert_eq!(check(&s, id)["job_status"], "pending");
    run(&s, &["job", "cancel", id]).exits(0);
    // Where nothing can be pending the request is as it was.
    let server = ScriptedServer::start([Reply::chat_text("ok")]);
    ask(&s, &server, &["-t", "echo", "go"]).exits(0);
    assert_eq!(server.requests()[0].json()["tools"].as_array().unwrap().len(), 1);
}

#[test]
fn two_equal_calls_start_two_jobs() {
    let s = Sandbox::new();
    let call = |id| (id, "start_sleepy_job", json!({"duration": 0, "message": "m"}));
    let server = ScriptedServer::start([
        Reply::chat_calls(&[call("c1"), call("c2")]),
        Reply::chat_text("Both are under way."),
    ]);
    let args = ["-t", "start_sleepy_job", "--no-stream", "--json", "go"];
    let answer = ask(&s, &server, &args).exits(0).json();
    let jobs = answer["jobs"].as_array().unwrap();
    assert!(jobs.len() == 2 && jobs[0] != jobs[1], "{answer}");
    let messages = server.requests()[1].json()["messages"].clone();
    let told = |at: usize| serde_json::from_str::<Value>(messages[at]["content"].as_str().unwrap()).unwrap();
    for (at, id) in [(2, "c1"), (3, "c2")] {
        assert_eq!(messages[at]["tool_call_id"], id);
        ended(&s, told(at)["job_id"].as_str().unwrap());
    }
    assert_ne!(told(2)["job_id"], told(3)["job_id"]);
}
