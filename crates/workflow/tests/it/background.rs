//! Pending tool calls as jobs, and the end and removal of jobs.

use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use decanus_base::process::{spawn_detached, start_time};
use decanus_chat::ToolDefinition;
use decanus_tool::{Args, Background, BackgroundTool, JobState, Run, Tool, ToolContext, ToolError, ToolOutput};
use decanus_workflow::background::KEPT;
use decanus_workflow::{JobRecord, JobStore, ManageError, ProcessSpawner, RunOptions, Status, StoredJob, ToolJobs};
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use crate::sandbox::Sandbox;

/// Does what its argument `act` says.
struct Actor(ToolDefinition);

#[async_trait::async_trait]
impl Tool for Actor {
    fn definition(&self) -> &ToolDefinition {
        &self.0
    }

    async fn call(&self, args: Args, cx: &ToolContext) -> Result<ToolOutput, ToolError> {
        match args["act"].as_str().unwrap() {
            "refuse" => Err(ToolError::argument("not that")),
            "explode" => panic!("no such luck"),
            "hang" => {
                cx.cancel.cancelled().await;
                Err(decanus_tool::dispatch::interrupted("stopped"))
            }
            other => Ok(ToolOutput::new(json!({ "done": other }))),
        }
    }
}

struct Bench {
    _dir: tempfile::TempDir,
    store: JobStore,
    jobs: ToolJobs,
    tool: BackgroundTool,
}

fn bench() -> Bench {
    let dir = tempfile::tempdir().unwrap();
    let store = JobStore::new(dir.path().canonicalize().unwrap());
    let jobs = ToolJobs::new(store.clone());
    let definition = ToolDefinition {
        name: "act".into(),
        ..ToolDefinition::default()
    };
    Bench {
        tool: BackgroundTool::new(Arc::new(Actor(definition)), Arc::new(jobs.clone())),
        _dir: dir,
        store,
        jobs,
    }
}

impl Bench {
    async fn call(&self, act: &str) -> Result<ToolOutput, ToolError> {
        let run = Run::builder("/nowhere").build();
        let cx = ToolContext {
            from_model: true,
            ..ToolContext::new("c", &run)
        };
        let args: Args = [("act".to_owned(), json!(act))].into_iter().collect();
        self.tool.call(args, &cx).await
    }

    async fn start(&self, act: &str) -> String {
        let output = self.call(act).await.unwrap();
        assert_eq!(output.value["status"], "pending");
        output.pending.unwrap().id
    }

    async fn end(&self, id: &str) -> JobState {
        loop {
            match self.jobs.check(id).await.unwrap() {
                JobState::Pending => tokio::time::sleep(Duration::from_millis(10)).await,
                state => return state,
            }
        }
    }

    fn job(&self, id: &str) -> StoredJob {
        self.store.find(id, self.store.dir()).unwrap()
    }
}

fn set(job: &StoredJob, change: impl FnOnce(&mut JobRecord)) {
    let mut record = job.record.clone();
    change(&mut record);
    std::fs::write(
        format!("{}.info", job.path.display()),
        serde_json::to_vec(&record).unwrap(),
    )
    .unwrap();
}

#[tokio::test]
async fn a_call_is_a_job_with_an_id_of_its_own() {
    let b = bench();
    let output = b.call("well").await.unwrap();
    let job = output.pending.clone().unwrap();
    // What the model reads names the job and the way to its result.
    let text: Value = serde_json::from_str(&output.text()).unwrap();
    assert_eq!((&text["status"], &text["job_id"]), (&json!("pending"), &json!(job.id)));
    assert!(text["message"].as_str().unwrap().contains("check_job_status"), "{text}");
    assert_eq!(b.end(&job.id).await, JobState::Completed(json!({"done": "well"})));
    let stored = b.job(&job.id);
    assert_eq!(stored.path, job.path);
    assert_eq!(stored.record.digest, job.id.replace('-', ""));
    assert_eq!(stored.record.inputs, *json!({"act": "well"}).as_object().unwrap());
    assert_eq!(
        (stored.record.workflow.as_str(), stored.record.task.as_str()),
        ("tool", "act")
    );
    assert_eq!(stored.value().unwrap(), json!({"done": "well"}));
    // The same call again is another job.
    assert_ne!(b.start("well").await, job.id);
}

#[tokio::test]
async fn failures_say_their_class() {
    let b = bench();
    for (act, says) in [
        ("refuse", "ToolArgumentError: not that"),
        ("explode", "ToolError: it broke down: no such luck"),
    ] {
        let id = b.start(act).await;
        assert_eq!(b.end(&id).await, JobState::Failed(says.into()));
        assert_eq!(b.job(&id).status(), Status::Error);
    }
}

#[tokio::test]
async fn a_job_expires_a_day_after_its_end() {
    let b = bench();
    let id = b.start("well").await;
    b.end(&id).await;
    let job = b.job(&id);
    let ended: Timestamp = job.record.ended.as_ref().unwrap().parse().unwrap();
    let just_before = ended + KEPT - SignedDuration::from_secs(1);
    assert!(matches!(b.jobs.state(&id, just_before), Ok(JobState::Completed(_))));
    assert_eq!(b.jobs.state(&id, ended + KEPT), Ok(JobState::Unknown));
    assert!(!job.path.exists() && !job.files_dir().exists());
    assert!(b.store.list(None, None).unwrap().is_empty());
}

#[tokio::test]
async fn one_that_is_at_work_does_not_expire() {
    let b = bench();
    let id = b.start("hang").await;
    let later = Timestamp::now() + SignedDuration::from_hours(100);
    assert_eq!(b.jobs.state(&id, later), Ok(JobState::Pending));
    assert_eq!(b.jobs.prune(later), Ok(0));
}

#[tokio::test]
async fn only_ids_are_looked_up() {
    let b = bench();
    b.end(&b.start("well").await).await;
    for id in ["", "nope", "../x", "tool/act", "00000000-0000-4000-8000-000000000000"] {
        assert_eq!(b.jobs.check(id).await, Ok(JobState::Unknown), "{id}");
    }
    // Another store does not know it.
    assert_eq!(bench().jobs.check(&b.start("well").await).await, Ok(JobState::Unknown));
}

#[tokio::test]
async fn a_job_whose_owner_died_has_failed() {
    let b = bench();
    let id = b.start("well").await;
    b.end(&id).await;
    let job = b.job(&id);
    for status in [Status::Waiting, Status::Running] {
        set(&job, |r| {
            r.status = status;
            r.ended = None;
            r.pid_started = Some(1);
        });
        assert_eq!(b.job(&id).status(), Status::Error);
        assert_eq!(b.jobs.check(&id).await, Ok(JobState::Failed("the worker died".into())));
        // It is written down, so that it expires as others do.
        assert!(b.job(&id).record.ended.is_some());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn cancelling_ends_the_work() {
    let b = bench();
    let id = b.start("hang").await;
    let (store, job) = (b.store.clone(), b.job(&id));
    assert!(matches!(b.store.clean(&job, false), Err(ManageError::Active { .. })));
    let ended = tokio::task::spawn_blocking(move || store.cancel(&job))
        .await
        .unwrap()
        .unwrap();
    assert_eq!(
        (ended.status(), ended.error().as_deref()),
        (Status::Aborted, Some("cancelled"))
    );
    assert_eq!(b.jobs.check(&id).await, Ok(JobState::Failed("cancelled".into())));
    // Once more changes nothing; then it may be removed.
    assert_eq!(b.store.cancel(&ended).unwrap().status(), Status::Aborted);
    assert_eq!(b.store.clean(&ended, false).unwrap(), std::slice::from_ref(&ended.path));
    assert_eq!(b.jobs.check(&id).await, Ok(JobState::Unknown));
}

#[tokio::test]
async fn cancelling_reaches_the_group_of_a_worker_that_is_deaf() {
    let b = bench();
    let id = b.start("well").await;
    b.end(&id).await;
    let file = b.store.dir().join("pid");
    let mut command = Command::new("sh");
    let script = "trap '' TERM; sleep 300 & echo $! > \"$0.new\"; mv \"$0.new\" \"$0\"; wait; sleep 300";
    command.args(["-c", script]).arg(&file).stdin(Stdio::null());
    let worker = spawn_detached(command).unwrap();
    while !file.exists() {
        std::thread::sleep(Duration::from_millis(5));
    }
    let child: u32 = std::fs::read_to_string(&file).unwrap().trim().parse().unwrap();
    let started = start_time(worker.pid);
    set(&b.job(&id), |r| {
        r.status = Status::Running;
        r.ended = None;
        (r.pid, r.pid_started) = (worker.pid, started);
        (r.pgid, r.pgid_started) = (Some(worker.pid), started);
    });
    assert_eq!(b.jobs.check(&id).await, Ok(JobState::Pending));
    let ended = b.store.cancel(&b.job(&id)).unwrap();
    assert_eq!(
        (ended.status(), ended.error().as_deref()),
        (Status::Aborted, Some("cancelled"))
    );
    for _ in 0..500 {
        if start_time(child).is_none() {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("process {child} goes on");
}

#[tokio::test]
async fn a_worker_that_does_not_begin_is_an_error() {
    let b = bench();
    for (program, args, says) in [
        ("/nonexistent/program", vec![], "can't be started"),
        ("sh", vec!["-c", "echo no luck >&2; exit 3"], "(exit code 3): no luck"),
    ] {
        let args = args.into_iter().map(Into::into);
        b.jobs
            .set_spawner(Arc::new(ProcessSpawner::new(program, args, b.store.dir())));
        std::fs::create_dir_all(b.store.dir()).unwrap();
        let error = b.call("well").await.unwrap_err();
        assert!(error.to_string().contains(says), "{error}");
        let failed = b.store.list(None, None).unwrap().pop().unwrap();
        assert_eq!(failed.status(), Status::Error);
        assert!(failed.error().unwrap().contains(says));
    }
}

#[test]
fn a_task_is_cancelled_with_what_it_started() {
    let s = Sandbox::new("tasks:\n  a: {sh: 'sleep 300 & echo $! > ../pid.new; mv ../pid.new ../pid; wait'}\n");
    let job = s.job("a", json!({}));
    let path = s.store.path(&job);
    let (store, asked) = (s.store.clone(), job.clone());
    let runner = std::thread::spawn(move || store.run_blocking(&asked, &RunOptions::default()));
    let pid = path.with_file_name("pid");
    while !pid.exists() {
        std::thread::sleep(Duration::from_millis(5));
    }
    let child: u32 = std::fs::read_to_string(&pid).unwrap().trim().parse().unwrap();
    let stored = s.store.read(path).unwrap();
    assert!(matches!(s.store.clean(&stored, false), Err(ManageError::Active { .. })));
    let ended = s.store.cancel(&stored).unwrap();
    assert_eq!(ended.status(), Status::Aborted);
    assert!(matches!(
        runner.join().unwrap(),
        Err(decanus_workflow::JobError::Cancelled { .. })
    ));
    for _ in 0..500 {
        if start_time(child).is_none() {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("process {child} goes on");
}

#[test]
fn cleaning_removes_a_job_and_if_asked_those_it_depends_on() {
    let s = Sandbox::new("tasks:\n  a: {sh: echo a}\n  b: {depends: [a], sh: echo b}\n");
    let b = s.run("b", json!({})).unwrap().job;
    let a = s.store.path(&s.job("a", json!({})));
    assert_eq!(s.store.clean(&b, false).unwrap(), std::slice::from_ref(&b.path));
    assert!(!b.path.exists() && !b.files_dir().exists() && a.exists());
    let b = s.run("b", json!({})).unwrap().job;
    assert_eq!(s.store.clean(&b, true).unwrap(), [b.path.clone(), a.clone()]);
    assert!(s.store.list(None, None).unwrap().is_empty());
}
