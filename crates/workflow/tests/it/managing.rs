//! The list of jobs, what they take, removing them, and what nothing refers to.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use decanus_base::files::OwnerLock;
use decanus_workflow::collect::{Collect, Garbage};
use decanus_workflow::{JobFilter, JobOptions, ManageError, PathRules, Status, StoredJob};
use serde_json::{Value, json};

use crate::sandbox::{Sandbox, map};

const SHOP: &str = r#"
tasks:
  base: {inputs: {n: {type: integer, default: 1}}, sh: 'echo "$n"'}
  top: {depends: [base], sh: 'cat "$DECANUS_DEP_base"'}
  bad: {sh: 'exit 3'}
"#;

fn named(s: &Sandbox, task: &str, inputs: Value, name: &str) -> StoredJob {
    let options = JobOptions {
        name: Some(name.into()),
        ..JobOptions::default()
    };
    let job = s
        .workflow()
        .job_with(task, &map(inputs), &PathRules::trusted(s.root()), &options);
    s.store.run_blocking(&job.unwrap(), &Default::default()).unwrap().job
}

/// Changes a record as if something else had happened.
fn rewrite(job: &StoredJob, change: impl FnOnce(&mut Value)) {
    let info = format!("{}.info", job.path.display());
    let mut record: Value = serde_json::from_str(&fs::read_to_string(&info).unwrap()).unwrap();
    change(&mut record);
    fs::write(&info, record.to_string()).unwrap();
}

fn age(path: &Path) {
    let then = SystemTime::now() - Duration::from_secs(3600);
    File::open(path).unwrap().set_modified(then).unwrap();
}

#[test]
fn the_list_is_filtered() {
    let s = Sandbox::new(SHOP);
    let jobs: Vec<StoredJob> = (1..=4)
        .map(|n| named(&s, "base", json!({"n": n}), &format!("run{n}")))
        .collect();
    for (day, job) in (1..).zip(&jobs) {
        rewrite(job, |r| {
            r["created"] = format!("2024-01-0{day}T00:00:00Z").into();
            r["ended"] = format!("2024-01-0{day}T00:00:01.5Z").into();
            r["started"] = format!("2024-01-0{day}T00:00:00Z").into();
        });
    }
    s.run("bad", json!({})).unwrap_err();
    rewrite(&jobs[2], |r| {
        r["status"] = "running".into();
        r["pid_started"] = 1.into();
    });
    fs::remove_file(&jobs[3].path).unwrap();
    let names = |filter: &JobFilter| -> Vec<String> {
        let found = s.store.summaries(filter).unwrap();
        found
            .iter()
            .map(|j| format!("{} {}", j.name, j.status.as_str()))
            .collect()
    };
    let all = ["run1 done", "run2 done", "run3 aborted", "run4 error", "Default error"];
    assert_eq!(names(&JobFilter::default()), all);
    // The same as what the records say when they are read whole.
    let whole: Vec<String> = s
        .store
        .list(None, None)
        .unwrap()
        .iter()
        .map(|j| format!("{} {}", j.record.name, j.status().as_str()))
        .collect();
    assert_eq!(whole, all);
    let some = |change: &dyn Fn(&mut JobFilter)| {
        let mut filter = JobFilter::default();
        change(&mut filter);
        names(&filter)
    };
    assert_eq!(some(&|f| f.statuses = vec![Status::Done, Status::Aborted]), all[..3]);
    assert_eq!(some(&|f| f.name = Some("run?".into())), all[..4]);
    assert_eq!(
        some(&|f| f.name = Some(format!("*{}*", &jobs[1].record.digest[..8]))),
        all[1..2]
    );
    assert_eq!(some(&|f| f.limit = Some(2)), all[3..]);
    assert_eq!(some(&|f| f.task = Some("bad".into())), all[4..]);
    assert!(some(&|f| f.workflow = Some("Other".into())).is_empty());
    let at = |text: &str| Some(text.parse().unwrap());
    assert_eq!(some(&|f| f.since = at("2024-01-02T00:00:01.5Z")), all[1..]);
    assert_eq!(some(&|f| f.before = at("2024-01-02T00:00:01.5Z")), all[..1]);
    let first = &s.store.summaries(&JobFilter::default()).unwrap()[0];
    assert_eq!((first.seconds(), first.size()), (Some(1.5), Some(2)));
    // A record that can't be read hides no other.
    fs::write(format!("{}.info", jobs[0].path.display()), "{").unwrap();
    assert_eq!(names(&JobFilter::default())[0], "run1 error");
}

#[test]
fn a_result_whose_dependency_is_newer_is_stale() {
    let s = Sandbox::new(SHOP);
    s.value("top", json!({}));
    let stored = |task: &str| s.store.read(s.store.path(&s.job(task, json!({})))).unwrap();
    assert_eq!(s.store.staleness(&stored("top")), None);
    rewrite(&stored("base"), |r| r["ended"] = "2999-01-01T00:00:00Z".into());
    let why = s.store.staleness(&stored("top")).unwrap();
    assert!(why.starts_with("W/base/Default_") && why.ends_with("is newer"), "{why}");
    assert!(
        s.store.done(&s.job("top", json!({}))).is_none(),
        "that is when it would be run again"
    );
    s.store.clean(&stored("base"), false).unwrap();
    assert_eq!(
        s.store.staleness(&stored("top")),
        None,
        "what was cleaned away changes nothing"
    );
}

#[test]
fn several_jobs_are_removed_or_none() {
    let s = Sandbox::new(SHOP);
    s.value("top", json!({}));
    let extra = named(&s, "base", json!({"n": 7}), "extra");
    let top = s.store.read(s.store.path(&s.job("top", json!({})))).unwrap();
    let both = [top.clone(), extra.clone(), top.clone()];
    let would = s.store.clean_all(&both, true, true).unwrap();
    assert_eq!(would.len(), 3, "each once, with what they depend on: {would:?}");
    assert!(would.iter().all(|p| p.exists()));
    let held = OwnerLock::acquire(
        &extra
            .path
            .with_file_name(format!(".{}.lock", extra.path.file_name().unwrap().display())),
        Duration::ZERO,
        &|| false,
    )
    .unwrap();
    assert!(matches!(
        s.store.clean_all(&both, true, false),
        Err(ManageError::Active { .. })
    ));
    assert!(would.iter().all(|p| p.exists()), "one that is at work spares all");
    drop(held);
    assert_eq!(s.store.clean_all(&both, true, false).unwrap(), would);
    assert!(s.stored().is_empty(), "{:?}", s.stored());
}

#[test]
fn usage_is_counted_by_task() {
    let s = Sandbox::new(
        "tasks:\n  big: {sh: 'head -c 100000 /dev/zero > \"$DECANUS_FILES/a\"; ln \"$DECANUS_FILES/a\" \"$DECANUS_FILES/b\"; echo x'}\n  small: {sh: echo y}\n",
    );
    assert!(s.store.usage(None).unwrap().is_empty());
    s.value("big", json!({}));
    s.value("small", json!({}));
    let usage = s.store.usage(Some("W")).unwrap();
    let tasks: Vec<(&str, usize)> = usage.iter().map(|u| (u.task.as_str(), u.jobs)).collect();
    assert_eq!(tasks, [("big", 1), ("small", 1)]);
    // The file with two names counts once.
    assert!((100_000..200_000).contains(&usage[0].bytes), "{usage:?}");
    assert!(usage[1].bytes < 100_000 && usage[1].files >= 5, "{usage:?}");
}

/// C73: a lock of a dead process and half an output, with one command that cleans up.
#[test]
fn what_dead_processes_left_is_collected() {
    let s = Sandbox::new(SHOP);
    s.value("top", json!({}));
    let kept = s.stored();
    let folder = s.store.dir().join("W/base");
    let made = |name: &str| {
        let path = folder.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, "process 999999 on HERE").unwrap();
        path
    };
    let own: PathBuf = fs::read_dir(&folder)
        .unwrap()
        .flatten()
        .map(|e| e.path())
        .find(|p| p.to_string_lossy().ends_with(".files"))
        .unwrap();
    let own = own.file_name().unwrap().to_string_lossy().into_owned();
    let garbage = [
        (Garbage::Lock, made(".Gone_00.txt.lock")),
        (Garbage::Temporary, made(".tmp-half")),
        (Garbage::Temporary, made(&format!("{own}/.job/waits-999999-0"))),
        (
            Garbage::Folder,
            made("Gone_00.txt.files/.job/stdout")
                .ancestors()
                .nth(2)
                .unwrap()
                .to_owned(),
        ),
        (
            Garbage::Aside,
            made("../../.aside/999999-0/t.txt")
                .parent()
                .unwrap()
                .canonicalize()
                .unwrap(),
        ),
        (Garbage::Result, made("Lost_00.txt")),
    ];
    // What is young may be somebody's who is just beginning.
    assert!(
        s.store
            .collect(&Collect::default())
            .unwrap()
            .iter()
            .all(|l| l.path.to_string_lossy().contains("waits-"))
    );
    for (_, path) in &garbage {
        if path.exists() {
            age(path);
        }
    }
    made(&format!("{own}/.job/waits-999999-0"));
    let held = made(".Held_00.txt.lock");
    let lock = OwnerLock::acquire(&held, Duration::ZERO, &|| false).unwrap();
    age(&held);
    let found = |what: &Collect| {
        let mut found: Vec<_> = s
            .store
            .collect(what)
            .unwrap()
            .into_iter()
            .map(|l| (l.kind, l.path, l.kept.is_none()))
            .collect();
        found.sort();
        found
    };
    let mut expected: Vec<_> = garbage
        .iter()
        .map(|(kind, path)| (*kind, path.clone(), *kind != Garbage::Result))
        .collect();
    expected.sort();
    let dry = Collect {
        dry_run: true,
        ..Collect::default()
    };
    assert_eq!(found(&dry), expected);
    assert!(
        garbage.iter().all(|(_, path)| path.exists()),
        "a dry run removes nothing"
    );
    assert_eq!(found(&Collect::default()), expected);
    for (kind, path) in &garbage {
        assert_eq!(path.exists(), *kind == Garbage::Result, "{}", path.display());
    }
    let all = Collect {
        all: true,
        ..Collect::default()
    };
    assert_eq!(found(&all), [(Garbage::Result, folder.join("Lost_00.txt"), true)]);
    assert!(held.exists(), "somebody has that one");
    drop(lock);
    assert_eq!(s.stored(), kept);
    assert!(found(&all).is_empty());
}

#[test]
fn jobs_of_tasks_that_are_gone_are_collected_when_asked() {
    let s = Sandbox::new(SHOP);
    s.value("top", json!({}));
    s.value("base", json!({"n": 5}));
    s.run("bad", json!({})).unwrap_err();
    let exists = |_: &str, task: &str| task == "top";
    let spoken = |job: &decanus_workflow::JobRecord, _: &Path| job.task == "bad";
    let found = |all: bool| {
        let what = Collect {
            all,
            exists: Some(&exists),
            is_referred: Some(&spoken),
            dry_run: false,
        };
        let mut found: Vec<_> = s
            .store
            .collect(&what)
            .unwrap()
            .iter()
            .map(|l| l.kept.clone().unwrap_or_else(|| "gone".into()))
            .collect();
        found.sort();
        found
    };
    assert_eq!(
        found(false),
        ["a chat speaks of it", "another job depends on it", "gone"]
    );
    assert_eq!(s.store.list(None, None).unwrap().len(), 3);
    assert_eq!(found(true), ["gone", "gone"]);
    assert_eq!(s.stored_tasks(), ["top"]);
}
