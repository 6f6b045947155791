//! Which values make the same job, and which another one. The numbers are those of the worked examples of the
//! specification, with our own digests.

use decanus_base::{Diagnostic, ErrorKind};
use decanus_workflow::PathRules;
use serde_json::json;

use crate::sandbox::{Sandbox, map};

const KITCHEN: &str = r#"
tasks:
  mult:
    inputs: {n: {type: integer, default: 2}, label: {default: x}}
    result: integer
    sh: echo $((n * 10))
  flag: {inputs: {flag: {type: boolean, default: false}}, sh: echo "$flag"}
  list: {inputs: {items: {type: array}}, result: json, sh: cat}
  numbers: {inputs: {items: {type: integer_array, default: [1, 2]}}, result: json, sh: cat}
  content: {inputs: {f: {type: file}}, sh: cat "$f"}
  strict: {inputs: {req: {required: true}, other: {required: true, type: integer}}, sh: echo "$req"}
  base: {inputs: {a: {type: integer, default: 1}}, result: integer, sh: echo "$a"}
  add:
    inputs: {b: {type: integer, default: 5}}
    depends: [base]
    result: integer
    sh: echo $(($(cat "$DECANUS_DEP_base") + b))
  fixed: {depends: [{task: base, inputs: {a: 7}}], result: integer, sh: cat "$DECANUS_DEP_base"}
"#;

#[test]
fn values_that_are_equal_give_one_job() {
    let s = Sandbox::new(KITCHEN);
    let digest = |task: &str, inputs| s.job(task, inputs).digest.clone();
    let first = digest("mult", json!({}));
    assert_eq!(first.len(), 32);
    for same in [
        json!({"n": 2}),
        json!({"n": "2"}),
        json!({"n": null}),
        json!({"n": 2.0, "label": " x "}),
    ] {
        assert_eq!(digest("mult", same.clone()), first, "{same}");
    }
    let third = digest("mult", json!({"n": 3}));
    assert_eq!(digest("mult", json!({"n": "3", "label": "x"})), third);
    let others = [
        first,
        third,
        digest("mult", json!({"label": "y"})),
        digest("base", json!({"a": 2})),
    ];
    for (i, a) in others.iter().enumerate() {
        assert!(!others[i + 1..].contains(a));
    }
    let yes = digest("flag", json!({"flag": true}));
    for same in ["true", "1", "yes"] {
        assert_eq!(digest("flag", json!({"flag": same})), yes);
    }
    assert_eq!(digest("flag", json!({"flag": "no"})), digest("flag", json!({})));
    assert_eq!(
        digest("list", json!({"items": ["a", "b"]})),
        digest("list", json!({"items": "a\nb"}))
    );
    assert_ne!(
        digest("list", json!({"items": ["a", "b"]})),
        digest("list", json!({"items": "a,b"}))
    );
    assert_ne!(digest("list", json!({"items": []})), digest("list", json!({})));
    assert_eq!(
        digest("numbers", json!({"items": ["1", "2"]})),
        digest("numbers", json!({}))
    );
    assert_eq!(
        digest("numbers", json!({"items": "3\n4"})),
        digest("numbers", json!({"items": [3, 4]}))
    );
}

#[test]
fn names_and_results() {
    let s = Sandbox::new(KITCHEN);
    let done = s.run("mult", json!({"n": "3"})).unwrap();
    assert!(!done.reused);
    assert_eq!(done.job.value().unwrap(), json!(30));
    assert_eq!(std::fs::read_to_string(&done.job.path).unwrap(), "30");
    let name = format!("W/mult/Default_{}.txt", done.job.record.digest);
    assert_eq!(done.job.path, s.store.dir().join(&name));
    assert_eq!(done.job.short_path(), name);
    assert!(s.run("mult", json!({"n": 3})).unwrap().reused);
    let named = s
        .workflow()
        .job("add", &map(json!({})), &PathRules::trusted("/"), Some("foo"))
        .unwrap();
    assert!(named.relative_path().starts_with("W/add/") && named.name == "foo" && named.dependencies[0].name == "foo");
    assert_eq!(
        named.digest,
        s.job("add", json!({})).digest,
        "the name is no part of the identity"
    );
    for bad in ["a/b", "..", ".x", ""] {
        assert!(
            s.workflow()
                .job("add", &map(json!({})), &PathRules::trusted("/"), Some(bad))
                .is_err(),
            "{bad}"
        );
    }
}

#[test]
fn dependencies_take_inputs_by_name_unless_they_are_set() {
    let s = Sandbox::new(KITCHEN);
    assert_eq!(s.value("add", json!({})), json!(6));
    assert_eq!(s.value("add", json!({"a": 2})), json!(7));
    assert_eq!(s.value("add", json!({"a": 2, "b": 6})), json!(8));
    assert_ne!(s.job("add", json!({"a": 2})).digest, s.job("add", json!({})).digest);
    assert_eq!(s.value("fixed", json!({})), json!(7));
    let error = s.try_job("fixed", json!({"a": 3})).unwrap_err();
    assert!(error.to_string().contains("W/fixed has no input `a`"), "{error}");
}

#[test]
fn a_file_counts_by_its_content() {
    let s = Sandbox::new(KITCHEN);
    s.write("one", "hello\n");
    s.write("sub/two", "hello\n");
    let digest = |path: &str| s.job("content", json!({"f": path})).digest.clone();
    let first = digest("one");
    assert_eq!(first, digest("sub/two"));
    assert_eq!(s.value("content", json!({"f": "one"})), json!("hello\n"));
    s.write("one", "other\n");
    assert_ne!(first, digest("one"));
    assert_eq!(s.value("content", json!({"f": "one"})), json!("other\n"));
    assert_eq!(
        s.store.list(Some("W"), Some("content")).unwrap().len(),
        2,
        "the old result remains"
    );
    let missing = s.try_job("content", json!({"f": "three"})).unwrap_err();
    assert_eq!(missing.kind(), ErrorKind::Usage);
    assert!(
        missing.to_string().contains("input `f`") && missing.to_string().contains("three"),
        "{missing}"
    );
}

#[test]
fn what_does_not_fit_is_refused_before_anything_is_stored() {
    let s = Sandbox::new(KITCHEN);
    for (task, inputs, says) in [
        (
            "mult",
            json!({"n": "abc"}),
            "W/mult: input `n`: `abc` is not an integer",
        ),
        ("mult", json!({"m": 1}), "W/mult has no input `m`"),
        (
            "strict",
            json!({}),
            "inputs `req`, `other` are required but were not given",
        ),
        (
            "strict",
            json!({"req": null, "other": 1}),
            "input `req` is required but was not given",
        ),
        ("nothing", json!({}), "no task `nothing`"),
        ("mult", json!({"label": "a\u{0}b"}), "NUL"),
        ("mult", json!({"label": "x".repeat(200_000)}), "too many for a variable"),
    ] {
        let error = s.try_job(task, inputs).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Usage);
        assert!(error.to_string().contains(says), "{error}");
    }
    assert!(s.stored().is_empty());
}

#[test]
fn scripts_are_part_of_what_a_task_does() {
    let s = Sandbox::new(
        "tasks:\n  py: {run: [python3, say.py]}\n  dir: {run: [cat, '{workflow_dir}/say.py']}\n  \
         sh: {sh: 'python3 \"$DECANUS_WORKFLOW_DIR/say.py\"'}\n  top: {depends: [py], run: [cat, '{py.path}']}\n  \
         own: {run: [tool, x]}\n",
    );
    s.write("workflows/W/say.py", "print('one')\n");
    let own = s.write("workflows/W/tool", "#!/bin/sh\necho own\n");
    std::fs::set_permissions(&own, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    assert_eq!(s.value("own", json!({})), json!("own\n"));
    assert_eq!(s.value("top", json!({})), json!("one\n"));
    assert_eq!(s.value("sh", json!({})), json!("one\n"));
    let before = ["py", "dir", "sh", "top"].map(|t| s.job(t, json!({})).digest.clone());
    s.write("workflows/W/say.py", "print('two')\n");
    let after = ["py", "dir", "sh", "top"].map(|t| s.job(t, json!({})).digest.clone());
    for (a, b) in before.iter().zip(&after) {
        assert_ne!(a, b);
    }
    assert_eq!(s.value("top", json!({})), json!("two\n"));
    // What does not change the result does not change the job.
    let plain = "tasks:\n  a: {sh: echo x, inputs: {n: {}}}\n";
    let s = Sandbox::new(plain);
    let before = s.job("a", json!({})).digest.clone();
    s.write(
        "workflows/W/workflow.yaml",
        "title: t\ntasks:\n  a: {description: d, timeout: 3s, sh: echo x, inputs: {n: {description: d}}}\n",
    );
    assert_eq!(s.job("a", json!({})).digest, before);
    s.write(
        "workflows/W/workflow.yaml",
        "tasks:\n  a: {sh: echo y, inputs: {n: {}}}\n",
    );
    assert_ne!(s.job("a", json!({})).digest, before);
}
