//! Jobs that run elsewhere. The scheduler is a stand-in (`fixtures/slurm`) whose programs are real processes; on its
//! nodes this test binary does what `decanus job exec` does.

use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use decanus_base::settings::SlurmSettings;
use decanus_base::{Diagnostic, ErrorKind};
use decanus_tool::Event;
use decanus_workflow::executor::{Executors, Setup, check_name};
use decanus_workflow::{Done, Job, JobError, JobRecord, JobStore, PathRules, RunOptions, Status, Workflows, exec};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::sandbox::{Sandbox, map};

/// Bodies append a line to `ran`, so that runs are counted.
const YAML: &str = r#"
tasks:
  base: {inputs: {n: {type: integer, default: 1}}, result: integer, sh: 'D="$DECANUS_WORKFLOW_DIR"; echo x >> "$D/ran"; echo "$n"'}
  left: {depends: [base], result: integer, sh: 'echo $(($(cat "$DECANUS_DEP_base") + 1))'}
  right: {depends: [base], result: integer, resources: {cpus: 2, memory: 100M, time: 5m}, sh: 'echo $(($(cat "$DECANUS_DEP_base") * 2))'}
  both: {depends: [left, right], result: integer, sh: 'echo $(($(cat "$DECANUS_DEP_left") + $(cat "$DECANUS_DEP_right")))'}
  all: {inputs: {ns: {type: integer_array}}, depends: [{task: base, for_each: {ns: n}}], result: array, run: [awk, '1', '{base...}']}
  alias: {alias: base}
  here: {executor: local, sh: 'echo here'}
  bad: {sh: 'echo oh no >&2; exit 3'}
  nap: {inputs: {s: {type: integer, default: 60}}, sh: 'D="$DECANUS_WORKFLOW_DIR"; echo x >> "$D/ran"; sleep "$s"; echo woken'}
  wait: {sh: 'D="$DECANUS_WORKFLOW_DIR"; echo x >> "$D/ran"; while [ ! -e "$D/go" ]; do sleep 0.05; done; echo went'}
  say: {inputs: {text: {type: string}, key: {type: string, secret: true, default: none}}, result: json, run: [sh, -c, 'cat > "$DECANUS_RESULT"']}
"#;

struct Cluster {
    sandbox: Sandbox,
    settings: SlurmSettings,
    default: Option<&'static str>,
}

impl Cluster {
    fn new() -> Self {
        let sandbox = Sandbox::new(YAML);
        let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/slurm");
        let bin = sandbox.root().join("bin");
        std::fs::create_dir_all(bin.join("state")).unwrap();
        for name in ["sbatch", "element", "squeue", "scontrol", "scancel"] {
            std::fs::copy(fixtures.join(name), bin.join(name)).unwrap();
        }
        // -C DIR job exec --id ID @LIST
        let this = std::env::current_exe().unwrap();
        let node = format!(
            "#!/bin/sh\nTEST_NODE_DIR=\"$2\" TEST_NODE_ID=\"$6\" TEST_NODE_LIST=\"$7\" \\\n\
             exec '{}' --exact executors::node --ignored --nocapture\n",
            this.display()
        );
        let program = sandbox.write("bin/decanus", &node);
        use std::os::unix::fs::PermissionsExt;
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
        Self {
            sandbox,
            settings: SlurmSettings {
                bin: Some(bin),
                poll: Some(Duration::from_millis(200)),
                settle: Some(Duration::from_millis(600)),
                ..SlurmSettings::default()
            },
            default: Some("slurm"),
        }
    }

    fn store(&self) -> JobStore {
        let setup = Setup {
            project: self.sandbox.root(),
            program: self.sandbox.root().join("bin/decanus"),
            slurm: self.settings.clone(),
        };
        self.sandbox
            .store
            .clone()
            .with_executors(Executors::new(setup, self.default.map(str::to_owned)))
    }

    fn run(&self, task: &str, inputs: Value) -> Run {
        self.start(&self.sandbox.job(task, inputs), RunOptions::default()).end()
    }

    /// Begins a run on a thread of its own.
    fn start(&self, job: &Arc<Job>, options: RunOptions) -> Started {
        let warnings = Arc::new(Mutex::new(Vec::new()));
        let sink = warnings.clone();
        let options = RunOptions {
            events: Some(Arc::new(move |event: &Event| {
                if let Event::Warning(text) = event {
                    sink.lock().unwrap().push(text.clone());
                }
            })),
            ..options
        };
        let (store, job) = (self.store(), job.clone());
        Started {
            thread: std::thread::spawn(move || store.run_blocking(&job, &options)),
            warnings,
        }
    }

    /// A client in a process of its own, which can be killed.
    fn client(&self, task: &str) -> Child {
        Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "executors::client", "--ignored"])
            .env("TEST_CLIENT_ROOT", self.sandbox.root())
            .env("TEST_CLIENT_TASK", task)
            .spawn()
            .unwrap()
    }

    fn state(&self, name: &str) -> PathBuf {
        self.sandbox.root().join("bin/state").join(name)
    }

    fn set(&self, name: &str) {
        std::fs::write(self.state(name), "").unwrap();
    }

    fn unset(&self, name: &str) {
        std::fs::remove_file(self.state(name)).unwrap();
    }

    /// How often one of the scheduler's programs was called.
    fn calls(&self, program: &str) -> usize {
        let calls = self.sandbox.read("bin/state/calls");
        calls.lines().filter(|l| l.starts_with(program)).count()
    }

    /// How often bodies ran.
    fn ran(&self) -> usize {
        self.sandbox.count("workflows/W/ran")
    }

    fn go(&self) {
        self.sandbox.write("workflows/W/go", "");
    }

    /// Ends what runs as an element, as a node does that loses its power, and has the scheduler say so.
    fn lose(&self, id: &str, state: &str) {
        until(|| self.state(&format!("jobs/{id}.pid")).exists());
        let pid = std::fs::read_to_string(self.state(&format!("jobs/{id}.pid"))).unwrap();
        std::fs::write(self.state(&format!("jobs/{id}")), state).unwrap();
        let group = format!("-{}", pid.trim());
        Command::new("kill").args(["-9", "--", &group]).status().unwrap();
    }
}

struct Started {
    thread: std::thread::JoinHandle<Result<Done, JobError>>,
    warnings: Arc<Mutex<Vec<String>>>,
}

struct Run {
    result: Result<Done, JobError>,
    warnings: Vec<String>,
}

impl Started {
    fn end(self) -> Run {
        Run {
            result: self.thread.join().unwrap(),
            warnings: self.warnings.lock().unwrap().clone(),
        }
    }
}

impl Run {
    fn value(&self) -> Value {
        let done = self
            .result
            .as_ref()
            .unwrap_or_else(|e| panic!("{e}; {:?}", self.warnings));
        done.job.value().unwrap()
    }

    fn record(&self) -> &JobRecord {
        &self.result.as_ref().unwrap().job.record
    }

    fn error(&self) -> &JobError {
        self.result.as_ref().unwrap_err()
    }

    fn warned(&self, part: &str) -> usize {
        self.warnings.iter().filter(|w| w.contains(part)).count()
    }
}

fn until(mut there: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !there() {
        assert!(begun.elapsed() < Duration::from_secs(40), "it does not come");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// No test by itself: what a node runs.
#[test]
#[ignore = "run by the stand-in for a node"]
fn node() {
    let text = |name: &str| std::env::var(name).unwrap();
    let workflows = Workflows::within(vec![PathBuf::from(text("TEST_NODE_DIR")).join("workflows")]);
    for path in exec::listed(&[text("TEST_NODE_LIST")]).unwrap() {
        let status = exec::exec(&workflows, &path, &text("TEST_NODE_ID"), &RunOptions::default());
        assert_eq!(status.unwrap(), Status::Done);
    }
}

/// No test by itself: a client that can be killed.
#[test]
#[ignore = "run by other tests"]
fn client() {
    let root = PathBuf::from(std::env::var("TEST_CLIENT_ROOT").unwrap());
    let setup = Setup {
        project: root.clone(),
        program: root.join("bin/decanus"),
        slurm: SlurmSettings {
            bin: Some(root.join("bin")),
            ..SlurmSettings::default()
        },
    };
    let store = JobStore::new(root.join(".decanus/jobs")).with_executors(Executors::new(setup, Some("slurm".into())));
    let workflow = Workflows::within(vec![root.join("workflows")]).load("W").unwrap();
    let task = std::env::var("TEST_CLIENT_TASK").unwrap();
    let job = workflow
        .job(&task, &map(json!({})), &PathRules::trusted(&root), None)
        .unwrap();
    store.run_blocking(&job, &RunOptions::default()).unwrap();
}

#[test]
fn a_diamond_runs_elsewhere() {
    let cluster = Cluster::new();
    let run = cluster.run("both", json!({"n": 3}));
    assert_eq!((run.value(), cluster.ran()), (json!(10), 1));
    let record = run.record();
    assert_eq!((record.executor.as_str(), record.status), ("slurm", Status::Done));
    let id = record.scheduler_id.clone().unwrap();
    assert!(id.ends_with("_0"), "{id}");
    assert_eq!(record.dependencies.len(), 2);
    // left and right wait for nothing but base; they need other things, so they are two batches.
    assert_eq!(cluster.calls("sbatch"), 4);
    let calls = cluster.sandbox.read("bin/state/calls");
    assert!(calls.contains("--cpus-per-task=2 --mem=100M --time=6"), "{calls}");
    // Nothing is left, and a second run has nothing to do.
    let batches = cluster.sandbox.store.dir().join(".batches");
    assert_eq!(std::fs::read_dir(batches).unwrap().count(), 0);
    assert!(cluster.run("both", json!({"n": 3})).result.unwrap().reused);
    assert_eq!(cluster.calls("sbatch"), 4);
}

#[test]
fn many_short_jobs_share_arrays_and_elements() {
    let cluster = Cluster::new();
    let ns: Vec<i64> = (0..60).collect();
    let run = cluster.run("all", json!({"ns": ns}));
    let told: Vec<String> = ns.iter().map(i64::to_string).collect();
    assert_eq!((run.value(), cluster.ran()), (json!(told), 60));
    // 16 to see what they take, then the others, then what depends on them.
    let calls = cluster.sandbox.read("bin/state/calls");
    let arrays: Vec<&str> = calls.split_whitespace().filter(|w| w.starts_with("--array=")).collect();
    assert_eq!(arrays, ["--array=0-15", "--array=0-7", "--array=0-0"]);
}

#[test]
fn a_failure_is_told_as_it_would_be_here() {
    let cluster = Cluster::new();
    let run = cluster.run("bad", json!({}));
    assert_eq!(run.error().stderr(), "oh no");
    assert_eq!(run.error().to_string(), "job W/bad failed: exit code 3: oh no");
    // It was not lost: it is not tried again.
    assert_eq!((cluster.calls("sbatch"), run.error().kind()), (1, ErrorKind::Job));
}

#[test]
fn flag_task_workflow_and_project_say_where() {
    let cluster = Cluster::new();
    let with = |flag: &str, task: &str| {
        let options = RunOptions {
            executor: Some(flag.into()),
            force: true,
            ..RunOptions::default()
        };
        let job = cluster.sandbox.job(task, json!({}));
        cluster.start(&job, options).end().record().executor.clone()
    };
    let run = |task: &str| cluster.run(task, json!({})).record().executor.clone();
    assert_eq!((run("base"), run("here")), ("slurm".into(), "local".into()));
    assert_eq!(
        (with("local", "base"), with("slurm", "here")),
        ("local".into(), "slurm".into())
    );
    // Only files are linked: that is not worth a place in a queue.
    assert_eq!(run("alias"), "local");
    let workflow = format!("executor: local\n{YAML}");
    cluster.sandbox.write("workflows/W/workflow.yaml", &workflow);
    assert_eq!(cluster.run("base", json!({"n": 7})).record().executor, "local");
    let error = check_name("slrum").unwrap_err();
    assert_eq!(error.to_string(), "there is no executor `slrum`; did you mean slurm?");
    assert_eq!(
        (error.kind(), error.hints()),
        (ErrorKind::Usage, vec!["the executors are local, slurm".into()])
    );
}

#[test]
fn without_the_scheduler_s_programs_there_is_a_clear_error() {
    let mut cluster = Cluster::new();
    cluster.settings.bin = Some("nowhere".into());
    let run = cluster.run("left", json!({}));
    let text = run.error().to_string();
    assert!(
        text.contains("`slurm`") && text.contains("no program `sbatch`"),
        "{text}"
    );
    assert_eq!(run.error().kind(), ErrorKind::Config);
    let cluster = Cluster::new();
    cluster.set("refuse");
    let run = cluster.run("base", json!({}));
    let text = run.error().to_string();
    assert!(
        text.contains("slurm refused: sbatch: error: invalid partition"),
        "{text}"
    );
}

#[test]
fn a_scheduler_that_is_away_fails_nothing() {
    let cluster = Cluster::new();
    cluster.set("away");
    let job = cluster.sandbox.job("wait", json!({}));
    let run = cluster.start(&job, RunOptions::default());
    until(|| cluster.calls("sbatch") > 0);
    cluster.unset("away");
    until(|| cluster.ran() == 1);
    cluster.set("away");
    std::thread::sleep(Duration::from_millis(1500));
    cluster.unset("away");
    cluster.go();
    let run = run.end();
    assert_eq!((run.value(), cluster.ran()), (json!("went\n"), 1));
    // Once for each time that it was away.
    assert_eq!(run.warned("jobs are not affected"), 2, "{:?}", run.warnings);
}

#[test]
fn an_answer_that_is_lost_does_not_hand_a_job_over_twice() {
    let cluster = Cluster::new();
    cluster.set("deaf");
    let run = cluster.run("base", json!({}));
    assert_eq!((run.value(), cluster.ran(), cluster.calls("sbatch")), (json!(1), 1, 1));
    assert_eq!(run.record().scheduler_id.as_deref(), Some("1_0"));
}

#[test]
fn a_lost_job_is_handed_over_again_once() {
    let cluster = Cluster::new();
    let job = cluster.sandbox.job("wait", json!({}));
    let run = cluster.start(&job, RunOptions::default());
    until(|| cluster.ran() == 1);
    cluster.lose("1_0", "NODE_FAIL");
    until(|| cluster.ran() == 2);
    cluster.go();
    let run = run.end();
    assert_eq!(
        (run.value(), run.record().scheduler_id.as_deref()),
        (json!("went\n"), Some("2_0"))
    );
    assert_eq!(
        run.warned("slurm lost it as 1_0 (NODE_FAIL); handing it over again"),
        1,
        "{:?}",
        run.warnings
    );

    let cluster = Cluster::new();
    let job = cluster.sandbox.job("nap", json!({}));
    let run = cluster.start(&job, RunOptions::default());
    for id in ["1_0", "2_0"] {
        cluster.lose(id, "NODE_FAIL");
    }
    let run = run.end();
    // What the element said comes after it.
    let text = run.error().to_string();
    assert!(
        text.starts_with("job W/nap failed: slurm lost it as 2_0 (NODE_FAIL)"),
        "{text}"
    );
    assert_eq!(cluster.calls("sbatch"), 2);
}

#[test]
fn a_job_that_is_alive_is_not_lost_whatever_the_scheduler_says() {
    let cluster = Cluster::new();
    let run = cluster.start(&cluster.sandbox.job("wait", json!({})), RunOptions::default());
    until(|| cluster.ran() == 1);
    std::fs::write(cluster.state("jobs/1_0"), "NODE_FAIL").unwrap();
    std::thread::sleep(Duration::from_secs(6));
    cluster.go();
    let run = run.end();
    assert_eq!(
        (run.value(), cluster.ran(), cluster.calls("sbatch")),
        (json!("went\n"), 1, 1)
    );
}

#[test]
fn limits_of_the_scheduler_are_not_losses() {
    for (state, told) in [
        ("TIMEOUT", "its time was up (job 1_0)"),
        ("OUT_OF_MEMORY", "more memory than it had"),
    ] {
        let cluster = Cluster::new();
        let run = cluster.start(&cluster.sandbox.job("nap", json!({})), RunOptions::default());
        until(|| cluster.ran() == 1);
        cluster.lose("1_0", state);
        let run = run.end();
        assert!(run.error().to_string().contains(told), "{}", run.error());
        assert_eq!(cluster.calls("sbatch"), 1);
    }
}

#[test]
fn a_client_that_comes_back_joins() {
    let cluster = Cluster::new();
    let mut client = cluster.client("wait");
    until(|| cluster.ran() == 1);
    client.kill().unwrap();
    client.wait().unwrap();
    let job = cluster.sandbox.job("wait", json!({}));
    // It is neither orphaned nor to be had twice, whoever asks for it where.
    let stored = cluster.store().read(cluster.store().path(&job)).unwrap();
    assert_eq!(stored.status(), Status::Running);
    let options = RunOptions {
        executor: Some("local".into()),
        ..RunOptions::default()
    };
    let run = cluster.start(&job, options);
    until(|| !run.warnings.lock().unwrap().is_empty());
    cluster.go();
    let run = run.end();
    assert_eq!(
        (run.value(), cluster.ran(), cluster.calls("sbatch")),
        (json!("went\n"), 1, 1)
    );
    assert_eq!(run.warned("is with slurm already, as 1_0"), 1, "{:?}", run.warnings);
}

#[test]
fn a_client_that_died_before_it_had_an_id_joins_too() {
    let cluster = Cluster::new();
    cluster.set("hold");
    cluster.set("kill");
    let mut client = cluster.client("base");
    client.wait().unwrap();
    cluster.unset("kill");
    let job = cluster.sandbox.job("base", json!({}));
    let stored = cluster.store().read(cluster.store().path(&job)).unwrap();
    assert_eq!(
        (stored.record.scheduler_id, stored.record.executor.as_str()),
        (None, "slurm")
    );
    let run = cluster.start(&job, RunOptions::default());
    let path = cluster.store().path(&job);
    until(|| {
        cluster
            .store()
            .read(path.clone())
            .unwrap()
            .record
            .scheduler_id
            .as_deref()
            == Some("1_0")
    });
    cluster.unset("hold");
    let run = run.end();
    assert_eq!((run.value(), cluster.ran(), cluster.calls("sbatch")), (json!(1), 1, 1));
}

#[test]
fn what_has_changed_since_is_refused() {
    let cluster = Cluster::new();
    cluster.set("hold");
    let run = cluster.start(&cluster.sandbox.job("base", json!({})), RunOptions::default());
    until(|| cluster.calls("sbatch") == 1);
    cluster.sandbox.write(
        "workflows/W/workflow.yaml",
        &YAML.replace("echo \"$n\"'}", "echo \"$n$n\"'}"),
    );
    cluster.unset("hold");
    let run = run.end();
    let text = run.error().to_string();
    assert!(
        text.contains("its definition has changed since the job was submitted"),
        "{text}"
    );
    assert_eq!(cluster.ran(), 0);
}

#[test]
fn an_interruption_ends_what_is_elsewhere() {
    for (held, ran) in [(true, 0), (false, 1)] {
        let cluster = Cluster::new();
        if held {
            cluster.set("hold");
        }
        let job = cluster.sandbox.job("nap", json!({}));
        let cancel = CancellationToken::new();
        let options = RunOptions {
            cancel: cancel.clone(),
            ..RunOptions::default()
        };
        let run = cluster.start(&job, options);
        until(|| cluster.calls("sbatch") == 1 && cluster.ran() == ran);
        let begun = Instant::now();
        cancel.cancel();
        let run = run.end();
        assert!(matches!(run.error(), JobError::Cancelled { .. }), "{}", run.error());
        assert!(begun.elapsed() < Duration::from_secs(10));
        let stored = cluster.store().read(cluster.store().path(&job)).unwrap();
        assert_eq!((stored.status(), cluster.calls("sbatch")), (Status::Aborted, 1));
        assert!(cluster.calls("scancel") == 1 || !held);
    }
}

#[test]
fn a_job_elsewhere_can_be_cancelled() {
    for (held, ran) in [(true, 0), (false, 1)] {
        let cluster = Cluster::new();
        if held {
            cluster.set("hold");
        }
        let job = cluster.sandbox.job("nap", json!({}));
        let run = cluster.start(&job, RunOptions::default());
        let path = cluster.store().path(&job);
        let id = || cluster.store().read(path.clone()).and_then(|j| j.record.scheduler_id);
        until(|| id().is_some() && cluster.ran() == ran);
        let stored = cluster.store().read(path.clone()).unwrap();
        let ended = cluster.store().cancel(&stored).unwrap();
        assert_eq!(ended.status(), Status::Aborted);
        let run = run.end();
        assert!(matches!(run.error(), JobError::Cancelled { .. }), "{}", run.error());
        assert_eq!((cluster.ran(), cluster.calls("sbatch")), (ran, 1));
    }
}

#[test]
fn nothing_of_a_job_is_in_scripts_and_secrets_are_private() {
    use std::os::unix::fs::PermissionsExt;
    let cluster = Cluster::new();
    cluster.set("hold");
    let inputs = json!({"text": "'; touch pwned; '", "key": "s3cret-key"});
    let job = cluster.sandbox.job("say", inputs);
    let run = cluster.start(&job, RunOptions::default());
    until(|| cluster.calls("sbatch") == 1);
    let files = PathBuf::from(format!("{}.files", cluster.store().path(&job).display()));
    let spec = files.join(".job/spec.json");
    let mode = std::fs::metadata(&spec).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let batches = cluster.sandbox.store.dir().join(".batches");
    for batch in std::fs::read_dir(&batches).unwrap().flatten() {
        for file in std::fs::read_dir(batch.path()).unwrap().flatten() {
            let text = std::fs::read_to_string(file.path()).unwrap();
            assert!(!text.contains("pwned") && !text.contains("s3cret"), "{text}");
        }
    }
    let calls = cluster.sandbox.read("bin/state/calls");
    assert!(!calls.contains("pwned") && !calls.contains("s3cret"));
    cluster.unset("hold");
    let value = run.end().value();
    assert_eq!(
        (&value["inputs"]["text"], &value["inputs"]["key"]),
        (&json!("'; touch pwned; '"), &json!("s3cret-key"))
    );
    assert!(!spec.exists(), "what was written down is gone");
    assert!(!cluster.sandbox.read(files.join(".job/inputs.json")).contains("s3cret"));
    let mut open = vec![cluster.sandbox.root()];
    while let Some(dir) = open.pop() {
        for entry in std::fs::read_dir(dir).unwrap().flatten() {
            assert_ne!(entry.file_name(), "pwned");
            open.extend(entry.path().is_dir().then(|| entry.path()));
        }
    }
}
