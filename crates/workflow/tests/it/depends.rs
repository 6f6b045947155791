//! Dependencies: the worked examples 15 to 20, 24 and 25 of the specification with our own names, and what is beyond.

use std::sync::Arc;

use decanus_base::{Diagnostic, ErrorKind};
use decanus_workflow::{
    Dependency, DynamicDepends, Job, JobError, JobOptions, Override, PathRules, RunOptions, Setting, Status, Workflow,
};
use serde_json::{Value, json};

use crate::sandbox::{Sandbox, map};

const LAB: &str = r#"
tasks:
  base: {inputs: {a: {type: integer, default: 1}}, result: integer, sh: 'echo run >> "$DECANUS_WORKFLOW_DIR.runs"; echo "$a"'}
  add:
    inputs: {b: {type: integer, default: 5}}
    depends: [base]
    result: integer
    sh: echo $(($(cat "$DECANUS_DEP_base") + b))
  sum: {inputs: {p: {type: integer}, q: {type: integer}}, result: integer, sh: echo $((p + q))}
  fixed: {depends: [{task: base, inputs: {a: 7}}], result: integer, sh: cat "$DECANUS_DEP_base"}
  combo:
    depends:
      - {task: base, inputs: {a: 2}}
      - add
      - {task: sum, inputs: {p: {from: base}, q: {from: add}}}
    result: integer
    sh: cat "$DECANUS_DEP_sum"
  may: {inputs: {bad: {type: boolean, default: true}}, sh: 'if [ "$bad" = true ]; then echo "no luck" >&2; exit 1; fi; echo fine'}
  strict: {depends: [may], sh: echo never}
  lenient: {depends: [{task: may, canfail: true}], result: json, sh: cat}
  multi:
    inputs: {ids: {type: integer_array, default: [1, 2, 3]}}
    depends: [{task: base, for_each: {ids: a}}]
    result: json
    sh: cat
"#;

fn with(
    s: &Sandbox,
    task: &str,
    inputs: Value,
    options: &JobOptions,
) -> Result<Arc<Job>, decanus_workflow::WorkflowError> {
    s.workflow()
        .job_with(task, &map(inputs), &PathRules::trusted(s.root()), options)
}

fn run(s: &Sandbox, job: &Arc<Job>) -> Value {
    s.value_of(job)
}

/// 15: inputs flow to the dependency by name; a name chosen for the job is also its dependency's.
#[test]
fn inputs_and_names_flow_down() {
    let s = Sandbox::new(LAB);
    assert_eq!(s.value("add", json!({})), json!(6));
    let (plain, two) = (s.job("add", json!({})), s.job("add", json!({"a": 2})));
    assert_eq!(run(&s, &two), json!(7));
    assert_eq!(two.dependencies[0].digest, s.job("base", json!({"a": 2})).digest);
    assert_ne!(two.digest, plain.digest);
    assert_ne!(two.dependencies[0].digest, plain.dependencies[0].digest);
    let options = JobOptions {
        name: Some("foo".into()),
        ..JobOptions::default()
    };
    let foo = with(&s, "add", json!({"a": 2, "b": 6}), &options).unwrap();
    assert_eq!(run(&s, &foo), json!(8));
    assert!(foo.relative_path().starts_with("W/add") && foo.name == "foo" && foo.dependencies[0].name == "foo");
}

/// 16: what a declaration sets, no caller can change.
#[test]
fn a_declared_value_is_the_authors() {
    let s = Sandbox::new(LAB);
    let fixed = s.job("fixed", json!({}));
    assert_eq!(run(&s, &fixed), json!(7));
    assert_eq!(fixed.dependencies[0].digest, s.job("base", json!({"a": 7})).digest);
    assert!(s.try_job("fixed", json!({"a": 3})).is_err());
}

/// 17: results of dependencies are values of another's inputs.
#[test]
fn a_result_is_the_value_of_an_input() {
    let s = Sandbox::new(LAB);
    let combo = s.job("combo", json!({}));
    assert_eq!(run(&s, &combo), json!(8));
    let names: Vec<&str> = combo.dependencies.iter().map(|d| d.task.name.as_str()).collect();
    assert_eq!(names, ["base", "add", "sum"]);
    let sum = &combo.dependencies[2];
    let inner: Vec<&str> = sum.dependencies.iter().map(|d| d.task.name.as_str()).collect();
    assert_eq!(inner, ["base", "add"]);
    let record = s.store.read(s.store.path(sum)).unwrap().record;
    let path = |job: &Job| job.relative_path().display().to_string();
    assert_eq!(record.inputs["p"], json!({"job": path(&combo.dependencies[0])}));
    assert_eq!(record.inputs["q"], json!({"job": path(&combo.dependencies[1])}));
    assert_eq!(
        record.identity["input p"],
        json!(format!("job {}", combo.dependencies[0].digest))
    );
    // The value that the process saw is the number.
    let seen: Value = serde_json::from_str(
        &std::fs::read_to_string(format!("{}.files/.job/inputs.json", s.store.path(sum).display())).unwrap(),
    )
    .unwrap();
    assert_eq!(seen["inputs"], json!({"p": 2, "q": 6}));
    // The base with a = 2 and the one behind `add` are two jobs; what is equal is one.
    assert_eq!(s.count("workflows/W.runs"), 2);
}

/// 18: one job for each item, in the order of the items.
#[test]
fn one_job_for_each_item() {
    let s = Sandbox::new(LAB);
    let values = |given: Value| -> Vec<Value> {
        let all = s.value("multi", given)["dependencies"]["base"].clone();
        all.as_array().unwrap().iter().map(|one| one["value"].clone()).collect()
    };
    assert_eq!(values(json!({})), [1, 2, 3]);
    assert_eq!(values(json!({"ids": [2, 1]})), [2, 1]);
    assert_eq!(s.count("workflows/W.runs"), 3, "jobs that are there are used");
    assert!(values(json!({"ids": []})).is_empty());
    assert_eq!(values(json!({"ids": [3, 3]})), [3, 3]);
    assert_eq!(s.job("multi", json!({"ids": [3, 3]})).dependencies.len(), 1);
    let job = s.job("multi", json!({}));
    assert_eq!(job.dependencies[1].digest, s.job("base", json!({"a": 2})).digest);
    assert_ne!(job.digest, s.job("multi", json!({"ids": [1, 3, 2]})).digest);
    let error = s.try_job("multi", json!({"a": 4})).unwrap_err();
    assert!(error.to_string().contains("has no input `a`"), "{error}");
}

#[test]
fn the_paths_of_each_item_reach_programs() {
    let s = Sandbox::new(
        "tasks:\n  one: {inputs: {n: {}}, sh: 'printf %s \"$n\"'}\n  \
         join: {inputs: {ns: {type: array}}, depends: [{task: one, for_each: {ns: n}}], run: [cat, '{one...}']}\n  \
         lines: {inputs: {ns: {type: json}}, depends: [{task: one, name: o-ne, for_each: {ns: n}}], \
         sh: 'echo \"$DECANUS_DEP_o_ne\" | while read -r f; do cat \"$f\"; done'}\n",
    );
    assert_eq!(s.value("join", json!({"ns": ["x", "-y", "z"]})), json!("x-yz"));
    assert_eq!(s.value("lines", json!({"ns": ["x", "y"]})), json!("xy"));
    let error = s.try_job("lines", json!({"ns": {"x": 1}})).unwrap_err();
    assert!(error.to_string().contains("input `ns`: it is no list"), "{error}");
}

/// 19: something else in the place of a dependency.
#[test]
fn a_result_stands_in_for_a_task() {
    let s = Sandbox::new(LAB);
    let hundred = s.job("base", json!({"a": 100}));
    let by = |over: Override| {
        let mut options = JobOptions::default();
        options.overrides.set("W", "base", over);
        options
    };
    let as_job = with(&s, "add", json!({}), &by(Override::Job(hundred.clone()))).unwrap();
    assert_eq!(run(&s, &as_job), json!(105));
    let as_path = with(&s, "add", json!({}), &by(Override::Path(s.store.path(&hundred)))).unwrap();
    assert_eq!(as_path.digest, as_job.digest);
    assert!(s.store.run_blocking(&as_path, &RunOptions::default()).unwrap().reused);
    let file = s.write("fifty.txt", "50\n");
    let as_file = with(&s, "add", json!({}), &by(Override::Path(file.clone()))).unwrap();
    assert_eq!(run(&s, &as_file), json!(55));
    let record = s.store.read(s.store.path(&as_file)).unwrap().record;
    assert_eq!(record.dependencies, [file.display().to_string()]);
    // It was not made for this job, and so is not removed with it.
    let deep = with(&s, "fixed", json!({}), &by(Override::Path(s.store.path(&hundred)))).unwrap();
    let done = s.store.run_blocking(&deep, &RunOptions::default()).unwrap().job;
    assert_eq!(done.value().unwrap(), json!(100));
    s.store.clean(&done, true).unwrap();
    assert!(!done.path.exists() && s.store.path(&hundred).is_file());
    // What is given is no input of the job, and makes another job even when the value is the same.
    assert_ne!(as_file.digest, as_job.digest);
    let same = s.job("base", json!({}));
    run(&s, &same);
    let one = with(&s, "add", json!({}), &by(Override::Path(s.store.path(&same)))).unwrap();
    assert_ne!(one.digest, s.job("add", json!({})).digest);
    // At any depth.
    let deep = with(&s, "combo", json!({}), &by(Override::Path(file.clone()))).unwrap();
    assert_eq!(run(&s, &deep), json!(105), "50 + (50 + 5)");
    // Another content is another job; the same content is the same.
    s.write("fifty.txt", "51\n");
    let changed = with(&s, "add", json!({}), &by(Override::Path(file))).unwrap();
    assert_eq!(run(&s, &changed), json!(56));
    assert_ne!(changed.digest, as_file.digest);

    let says = |task: &str, options: &JobOptions| {
        let error = with(&s, task, json!({}), options).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Usage);
        error.to_string()
    };
    let error = says("sum", &by(Override::Path("fifty.txt".into())));
    assert!(error.contains("`W#base`: W/sum does not depend on it"), "{error}");
    let error = says("add", &by(Override::Path(s.root().join("none"))));
    assert!(error.contains("`W#base`") && error.contains("none"), "{error}");
    let bad = s.job("may", json!({}));
    s.store.run_blocking(&bad, &RunOptions::default()).unwrap_err();
    let error = says("add", &by(Override::Path(s.store.path(&bad))));
    assert!(error.contains("has no result, it is error"), "{error}");
}

#[test]
fn the_inputs_of_a_replaced_task_are_not_asked_for() {
    let s = Sandbox::new(
        "tasks:\n  base: {inputs: {a: {required: true}}, sh: echo \"$a\"}\n  top: {depends: [base], sh: cat \"$DECANUS_DEP_base\"}\n",
    );
    let file = s.write("f", "given\n");
    let mut options = JobOptions::default();
    options.overrides.set("W", "base", Override::Path(file.clone()));
    assert!(s.try_job("top", json!({})).is_err());
    let job = with(&s, "top", json!({}), &options).unwrap();
    let workflow = s.workflow();
    let definition = workflow.tool_definition_with(workflow.task("top").unwrap(), &options.overrides);
    assert_eq!(definition.parameters["required"], json!([]));
    // Gone before it is used: a clear word, and nothing half done.
    std::fs::remove_file(&file).unwrap();
    let error = s
        .store
        .run_blocking(&job, &RunOptions::default())
        .unwrap_err()
        .to_string();
    assert!(error.contains("it was to stand in for W/base but is gone"), "{error}");
}

/// 20: a failure stops what depends on it, unless it may fail.
#[test]
fn a_dependency_may_fail() {
    let s = Sandbox::new(LAB);
    let strict = s.run("strict", json!({})).unwrap_err();
    assert!(strict.to_string().contains("no luck"), "{strict}");
    for task in ["strict", "may"] {
        let all = s.store.list(Some("W"), Some(task)).unwrap();
        assert_eq!(all[0].status(), Status::Error, "{task}");
    }
    let survived = s.value("lenient", json!({}));
    let may = &survived["dependencies"]["may"];
    assert_eq!(may["value"], Value::Null);
    assert!(may["error"].as_str().unwrap().contains("exit code 1: no luck"), "{may}");
    assert!(
        s.run("lenient", json!({})).unwrap().reused,
        "the same failure is not tried again"
    );
    let fine = s.value("lenient", json!({"bad": false}));
    assert_eq!(fine["dependencies"]["may"]["value"], json!("fine\n"));
    assert!(fine["dependencies"]["may"].get("error").is_none());
    assert_ne!(
        s.job("lenient", json!({"bad": false})).digest,
        s.job("lenient", json!({})).digest
    );
}

#[test]
fn what_could_not_be_had_is_looked_for_again_when_it_is_there() {
    let s = Sandbox::new(
        "tasks:\n  may: {inputs: {f: {}}, sh: 'cat \"$f\"'}\n  \
         top: {depends: [{task: may, canfail: true}], sh: 'cat \"$DECANUS_DEP_may\" 2>/dev/null || echo none'}\n",
    );
    let given = json!({"f": s.root().join("late")});
    assert_eq!(s.value("top", given.clone()), json!("none\n"));
    s.write("late", "here");
    s.run("may", given.clone()).unwrap();
    assert_eq!(s.value("top", given), json!("here"));
}

#[test]
fn an_abort_is_no_failure_to_live_with() {
    let s = Sandbox::new(
        "tasks:\n  slow: {sh: sleep 30}\n  top: {depends: [{task: slow, canfail: true}], sh: echo never}\n",
    );
    let options = RunOptions::default();
    let cancel = options.cancel.clone();
    let (store, job) = (s.store.clone(), s.job("top", json!({})));
    let thread = std::thread::spawn(move || store.run_blocking(&job, &options));
    let slow = s.store.path(&s.job("slow", json!({})));
    while s
        .store
        .read(slow.clone())
        .is_none_or(|j| j.record.status != Status::Running)
    {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    cancel.cancel();
    let error = thread.join().unwrap().unwrap_err();
    assert!(matches!(error, JobError::Cancelled { .. }), "{error}");
}

/// 21 and 24, 25 in part: cleaning leaves dependencies; a lost result is an error, not done.
#[test]
fn cleaning_and_lost_results() {
    let s = Sandbox::new(LAB);
    let done = s.run("combo", json!({})).unwrap().job;
    let base = s.store.path(&s.job("base", json!({"a": 2})));
    s.store.clean(&done, false).unwrap();
    assert!(s.store.read(done.path.clone()).is_none() && base.is_file());
    let done = s.run("combo", json!({})).unwrap().job;
    s.store.clean(&done, true).unwrap();
    assert!(s.stored().is_empty());
    let done = s.run("base", json!({})).unwrap().job;
    std::fs::remove_file(&done.path).unwrap();
    let again = s.store.read(done.path.clone()).unwrap();
    assert_eq!(again.status(), Status::Error);
    assert!(again.error().unwrap().contains("missing"));
    assert_eq!(s.value("base", json!({})), json!(1));
}

#[test]
fn references_take_what_the_own_input_holds() {
    let s = Sandbox::new(
        r#"
tasks:
  base: {inputs: {n: {type: integer, default: 1}, t: {default: d}}, sh: 'echo "$n$t"'}
  top:
    inputs: {m: {type: integer, default: 5}, u: {}, n: {type: integer, default: 9}}
    depends: [{task: base, inputs: {n: {input: m}, t: {input: u}}}]
    sh: cat "$DECANUS_DEP_base"
  none: {depends: [{task: base, inputs: {t: null}}], sh: cat "$DECANUS_DEP_base"}
  any: {inputs: {v: {type: json}}, sh: 'cat "$DECANUS_INPUTS"', result: json}
  literal: {depends: [{task: any, inputs: {v: {value: {input: m}}}}], result: json, sh: cat "$DECANUS_DEP_any"}
"#,
    );
    assert_eq!(
        s.value("top", json!({})),
        json!("5d\n"),
        "its default; what is unset sets nothing"
    );
    assert_eq!(s.value("top", json!({"m": 6, "u": "x", "n": 8})), json!("6x\n"));
    assert_eq!(s.value("none", json!({})), json!("1\n"), "null is set to nothing");
    assert_eq!(s.value("literal", json!({}))["inputs"]["v"], json!({"input": "m"}));
    let error = s.try_job("top", json!({"m": "x"})).unwrap_err().to_string();
    assert!(error.contains("W/top: input `m`"), "{error}");
}

/// A model's text must not become a path of the author's by being handed on.
#[test]
fn what_is_handed_on_keeps_its_bounds() {
    let s = Sandbox::new(
        r#"
tasks:
  read: {inputs: {f: {type: file}}, sh: cat "$f"}
  one: {inputs: {name: {}}, depends: [{task: read, inputs: {f: {input: name}}}], sh: cat "$DECANUS_DEP_read"}
  each: {inputs: {names: {type: array}}, depends: [{task: read, for_each: {names: f}}], run: [cat, "{read...}"]}
  own: {inputs: {name: {default: ../../secret}}, depends: [{task: read, inputs: {f: {input: name}}}], sh: cat "$DECANUS_DEP_read"}
  checked: {inputs: {name: {type: file}}, depends: [{task: read, inputs: {f: {input: name}}}], sh: cat "$DECANUS_DEP_read"}
"#,
    );
    s.write("secret", "s");
    s.write("inner/open", "o");
    let rules = PathRules::confined(s.root().join("inner"), &[]);
    let job = |task: &str, inputs: Value| s.workflow().job(task, &map(inputs), &rules, None);
    for outside in [s.root().join("secret").display().to_string(), "../secret".into()] {
        for (task, inputs) in [
            ("one", json!({"name": outside})),
            ("each", json!({"names": [outside]})),
            ("own", json!({"name": outside})),
            ("checked", json!({"name": outside})),
        ] {
            let error = job(task, inputs).unwrap_err();
            assert!(
                error.to_string().contains("not a file inside the project"),
                "{task}: {error}"
            );
        }
    }
    assert_eq!(run(&s, &job("one", json!({"name": "open"})).unwrap()), json!("o"));
    assert_eq!(run(&s, &job("each", json!({"names": ["open"]})).unwrap()), json!("o"));
    assert_eq!(run(&s, &job("checked", json!({"name": "open"})).unwrap()), json!("o"));
    assert_eq!(
        run(&s, &job("own", json!({})).unwrap()),
        json!("s"),
        "the author's own default"
    );
}

#[test]
fn one_task_twice_under_two_names() {
    let s = Sandbox::new(
        r#"
tasks:
  base: {inputs: {a: {type: integer, default: 1}}, result: integer, sh: echo "$a"}
  two:
    depends: [{task: base, name: small, inputs: {a: 3}}, {task: base, name: large-one, inputs: {a: 4}}]
    result: json
    run: [python3, -c, "import json,os,sys; d = json.load(sys.stdin)['dependencies']; print(json.dumps([d['small']['value'], d['large-one']['value'], open(sys.argv[1]).read(), open(os.environ['DECANUS_DEP_large_one']).read()]))", "{small.path}"]
"#,
    );
    assert_eq!(s.value("two", json!({})), json!([3, 4, "3", "4"]));
}

#[test]
fn names_of_dependencies_jobs() {
    let s = Sandbox::new(
        r#"
tasks:
  a: {sh: echo a}
  top: {depends: [{task: a, name: x, jobname: kept}, {task: a, name: y, jobname: null}, {task: a, name: z}], sh: echo top}
"#,
    );
    let options = JobOptions {
        name: Some("mine".into()),
        ..JobOptions::default()
    };
    let job = with(&s, "top", json!({}), &options).unwrap();
    let names: Vec<&str> = job.dependencies.iter().map(|d| d.name.as_str()).collect();
    assert_eq!(names, ["kept", "Default", "mine"]);
    assert_eq!(job.dependencies[0].digest, job.dependencies[1].digest);
}

#[test]
fn long_names_are_cut_and_stay_apart() {
    let s = Sandbox::new("tasks:\n  a: {sh: echo a}\n");
    let named = |name: String| {
        let options = JobOptions {
            name: Some(name),
            ..JobOptions::default()
        };
        with(&s, "a", json!({}), &options).map(|j| j.name.clone())
    };
    let (one, two) = (
        named("é".repeat(200)).unwrap(),
        named(format!("{}x", "é".repeat(199))).unwrap(),
    );
    assert_ne!(one, two);
    assert!(one.len() <= 150 && one.contains("é--200--"), "{one}");
    assert_eq!(named("n".repeat(150)).unwrap(), "n".repeat(150));
    for bad in [
        format!("{}/b", "n".repeat(200)),
        format!("{}..", "n".repeat(200)),
        format!(".{}", "n".repeat(200)),
    ] {
        assert!(named(bad).is_err());
    }
    let job = with(
        &s,
        "a",
        json!({}),
        &JobOptions {
            name: Some("é".repeat(200)),
            ..JobOptions::default()
        },
    )
    .unwrap();
    assert_eq!(run(&s, &job), json!("a\n"));
}

#[test]
fn an_alias_has_the_result_of_another() {
    let s = Sandbox::new(
        r#"
tasks:
  base: {inputs: {a: {type: integer, default: 1}}, result: json, sh: 'mkdir sub; echo kept > sub/kept.txt; echo "[$a]"'}
  nine: {alias: {task: base, inputs: {a: 9}}}
  more: {alias: nine, description: The same once more.}
  given: {inputs: {m: {type: integer}}, alias: {task: base, inputs: {a: {input: m}}}}
  picture: {result: file, sh: 'echo dot > p.svg; echo p.svg'}
  shown: {alias: picture}
  bad: {sh: exit 3}
  worse: {alias: bad}
  user: {depends: [nine], result: json, sh: cat "$DECANUS_DEP_nine"}
"#,
    );
    let done = s.run("more", json!({})).unwrap().job;
    assert_eq!(done.value().unwrap(), json!([9]));
    assert!(done.path.starts_with(s.store.dir().join("W/more")) && done.path.extension().is_some_and(|e| e == "json"));
    assert_eq!(
        std::fs::read_to_string(done.files_dir().join("sub/kept.txt")).unwrap(),
        "kept\n"
    );
    assert_eq!(s.value("given", json!({"m": 4})), json!([4]));
    assert_eq!(s.value("user", json!({})), json!([9]));
    // What it gives is its own: the other may be cleaned away.
    let shown = s.run("shown", json!({})).unwrap().job;
    let other = s.store.read(s.store.path(&s.job("picture", json!({})))).unwrap();
    s.store.clean(&other, false).unwrap();
    let path = shown.value().unwrap();
    assert!(path.as_str().unwrap().starts_with(shown.files_dir().to_str().unwrap()));
    assert_eq!(std::fs::read_to_string(path.as_str().unwrap()).unwrap(), "dot\n");
    let error = s.run("worse", json!({})).unwrap_err().to_string();
    assert!(error.contains("exit code 3"), "{error}");
}

#[test]
fn dependencies_may_follow_from_inputs_by_a_function() {
    let s = Sandbox::new(
        "tasks:\n  base: {inputs: {a: {type: integer, default: 1}}, result: integer, sh: echo \"$a\"}\n  \
         top: {inputs: {n: {type: integer}}, result: json, sh: cat}\n",
    );
    let mut workflow = Workflow::clone(&s.workflow());
    let depends: Arc<decanus_workflow::DependsFn> = Arc::new(|inputs| {
        let n = inputs["n"].as_i64().ok_or("it needs a number")?;
        let one = |i: i64| Dependency {
            name: Some(format!("b{i}")),
            fixed: vec![("a".into(), Setting::Value(json!(i * i)))],
            ..Dependency::on("base")
        };
        Ok((1..=n).map(one).collect())
    });
    let name = workflow.tasks[1].name.clone();
    Arc::make_mut(workflow.tasks.get_mut(&name).unwrap()).dynamic = Some(DynamicDepends(depends));
    let workflow = Arc::new(workflow);
    let job = |n: Value| workflow.job("top", &map(json!({"n": n})), &PathRules::trusted("/"), None);
    let value = run(&s, &job(json!(3)).unwrap());
    let values: Vec<&Value> = ["b1", "b2", "b3"]
        .iter()
        .map(|b| &value["dependencies"][b]["value"])
        .collect();
    assert_eq!(values, [1, 4, 9]);
    assert_eq!(job(json!(0)).unwrap().dependencies.len(), 0);
    assert!(job(Value::Null).unwrap_err().to_string().contains("it needs a number"));
}

/// What is to be used and is not of its type fails the job that uses it, and says so; nothing becomes null.
#[test]
fn what_does_not_fit_is_the_failure_of_the_job_that_uses_it() {
    let s = Sandbox::new(
        "tasks:\n  b: {result: integer, sh: echo 1}\n  word: {sh: echo abc}\n  \
         c: {inputs: {x: {type: integer}}, sh: 'true'}\n  use: {depends: [b], sh: cat}\n  \
         a: {depends: [word, {task: c, inputs: {x: {from: word}}}], sh: 'true'}\n",
    );
    let bad = s.write("bad", "abc\n");
    let mut options = JobOptions::default();
    options.overrides.set("W", "b", Override::Path(bad.clone()));
    let job = with(&s, "use", json!({}), &options).unwrap();
    let error = s.store.run_blocking(&job, &RunOptions::default()).unwrap_err();
    assert!(
        matches!(&error, JobError::Failed { task, .. } if task == "W/use"),
        "{error:?}"
    );
    let text = error.to_string();
    assert!(
        text.contains("bad, which stands in for W/b") && text.contains("`abc"),
        "{text}"
    );
    std::fs::write(&bad, "7\n").unwrap();
    let job = with(&s, "use", json!({}), &options).unwrap();
    assert!(s.store.run_blocking(&job, &RunOptions::default()).is_ok());

    let error = s.run("a", json!({})).unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, JobError::Failed { .. }), "{text}");
    assert!(
        text.contains("job W/c failed: input `x`: `abc` is not an integer"),
        "{text}"
    );
}

/// A stored result that somebody has edited so that it is none fails what uses it.
#[test]
fn a_result_that_is_none_any_more_fails_what_uses_it() {
    let s = Sandbox::new("tasks:\n  b: {result: integer, sh: echo 1}\n  use: {depends: [b], sh: cat}\n");
    let made = s.run("b", json!({})).unwrap().job.path;
    std::fs::write(&made, "abc").unwrap();
    let error = s.run("use", json!({})).unwrap_err().to_string();
    assert!(
        error.contains("the result of W/b") && error.contains("`abc`"),
        "{error}"
    );
}
