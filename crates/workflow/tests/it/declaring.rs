//! Declaring tasks: types of inputs and results, names, secrets, documentation, and all faults of a file.

use std::path::PathBuf;

use decanus_workflow::python::PythonReader;
use decanus_workflow::{Checked, InputType, PathRules, RunOptions, parse, schema};
use serde_json::{Value, json};

use crate::sandbox::{Sandbox, map};

/// A task for each type of input that prints what it got.
const KINDS: &str = r#"
tasks:
  any:
    inputs:
      s: {}
      t: {type: text}
      c: {type: chat}
      p: {type: path}
      ps: {type: path_array}
      f: {type: file}
      fs: {type: file_array}
      d: {type: folder}
      b: {type: binary}
      v: {type: tsv}
      y: {type: yaml}
      j: {type: json}
      bs: {type: boolean_array}
    result: json
    sh: 'cat "$DECANUS_INPUTS"'
"#;

fn given(s: &Sandbox, inputs: Value) -> Value {
    let names: Vec<String> = inputs.as_object().unwrap().keys().cloned().collect();
    let value = s.value("any", inputs);
    names
        .iter()
        .map(|n| (n.clone(), value["inputs"][n].clone()))
        .collect::<serde_json::Map<_, _>>()
        .into()
}

#[test]
fn each_type_is_passed_as_what_it_is() {
    let s = Sandbox::new(KINDS);
    let root = s.root().display().to_string();
    s.write("a.txt", "1");
    s.write("folder/b.txt", "2");
    for (inputs, expected) in [
        (json!({"s": " a "}), json!({"s": "a"})),
        (
            json!({"t": " a\n", "c": "user: hi\n"}),
            json!({"t": " a\n", "c": "user: hi\n"}),
        ),
        // A text that names a file stays a text.
        (json!({"s": "a.txt", "t": "a.txt"}), json!({"s": "a.txt", "t": "a.txt"})),
        (json!({"s": "", "t": ""}), json!({"s": "", "t": ""})),
        (
            json!({"p": "not/there", "ps": "x\n/abs"}),
            json!({"p": format!("{root}/not/there"), "ps": [format!("{root}/x"), "/abs"]}),
        ),
        (
            json!({"f": "a.txt", "b": "a.txt", "v": "a.txt", "d": "folder"}),
            json!({"f": format!("{root}/a.txt"), "b": format!("{root}/a.txt"), "v": format!("{root}/a.txt"),
                   "d": format!("{root}/folder")}),
        ),
        (
            json!({"fs": ["a.txt", "folder/b.txt"]}),
            json!({"fs": [format!("{root}/a.txt"), format!("{root}/folder/b.txt")]}),
        ),
        (
            json!({"y": "a: [1, x]", "j": "[1]"}),
            json!({"y": {"a": [1, "x"]}, "j": [1]}),
        ),
        (json!({"y": {"a": 1}}), json!({"y": {"a": 1}})),
        (json!({"bs": "yes\nno"}), json!({"bs": [true, false]})),
        (
            json!({"j": "1234567890123456789012"}),
            serde_json::from_str("{\"j\": 1234567890123456789012}").unwrap(),
        ),
    ] {
        assert_eq!(given(&s, inputs.clone()), expected, "{inputs}");
    }
}

#[test]
fn what_does_not_fit_is_refused_by_name() {
    let s = Sandbox::new(KINDS);
    s.write("a.txt", "1");
    for (inputs, says) in [
        (json!({"d": "a.txt"}), "input `d`: "),
        (json!({"f": "missing"}), "input `f`: "),
        (json!({"f": "workflows"}), "is not a file"),
        (json!({"fs": ["a.txt", "missing"]}), "input `fs`: item 2"),
        (json!({"bs": "yes\nperhaps"}), "input `bs`: item 2"),
        (json!({"y": "a: ["}), "input `y`: not YAML: line"),
        (json!({"p": ""}), "the path is empty"),
        (json!({"nope": 1}), "has no input `nope`"),
    ] {
        let error = s.try_job("any", inputs.clone()).unwrap_err().to_string();
        assert!(error.contains(says), "{inputs}: {error}");
    }
}

#[test]
fn files_and_folders_count_by_content_and_paths_by_name() {
    let s = Sandbox::new(KINDS);
    for dir in ["one", "two"] {
        s.write(&format!("{dir}/a"), "1");
        s.write(&format!("{dir}/sub/b"), "2");
    }
    let digest = |inputs: Value| s.job("any", inputs).digest.clone();
    for (kind, file) in [("f", "a"), ("b", "a"), ("v", "a"), ("d", "")] {
        assert_eq!(
            digest(json!({kind: format!("one/{file}")})),
            digest(json!({kind: format!("two/{file}")})),
            "{kind}"
        );
    }
    assert_eq!(
        digest(json!({"fs": ["one/a", "one/sub/b"]})),
        digest(json!({"fs": ["two/a", "two/sub/b"]}))
    );
    assert_ne!(
        digest(json!({"fs": ["one/a", "one/sub/b"]})),
        digest(json!({"fs": ["two/sub/b", "two/a"]}))
    );
    assert_ne!(digest(json!({"p": "one/a"})), digest(json!({"p": "two/a"})));
    let before = [
        digest(json!({"d": "two"})),
        digest(json!({"fs": ["two/sub/b"]})),
        digest(json!({"p": "two/sub/b"})),
    ];
    s.write("two/sub/b", "3");
    let after = [
        digest(json!({"d": "two"})),
        digest(json!({"fs": ["two/sub/b"]})),
        digest(json!({"p": "two/sub/b"})),
    ];
    assert_ne!(before[0], after[0]);
    assert_ne!(before[1], after[1]);
    assert_eq!(before[2], after[2]);
}

#[test]
fn a_models_paths_lead_inside_even_where_nothing_is() {
    let s = Sandbox::new(KINDS);
    s.write("data/a", "1");
    std::os::unix::fs::symlink("/etc", s.root().join("out")).unwrap();
    let rules = PathRules::confined(s.root(), &[]);
    let job = |inputs: Value| s.workflow().job("any", &map(inputs), &rules, None);
    let made = job(json!({"p": "data/new/x", "d": "data", "ps": ["new"]})).unwrap();
    assert_eq!(made.inputs["p"], json!(s.root().join("data/new/x")));
    for bad in ["/etc/new", "../x", "out/x", "out", "data/none/../../../x", "/"] {
        for kind in ["p", "d"] {
            let error = job(json!({kind: bad})).unwrap_err().to_string();
            assert!(error.contains("inside the project"), "{kind} {bad}: {error}");
        }
        assert!(job(json!({"ps": [bad]})).is_err(), "{bad}");
    }
}

#[test]
fn the_input_that_names_the_job() {
    let s = Sandbox::new(
        r#"
tasks:
  hi:
    inputs: {who: {jobname: true}, loud: {type: boolean}}
    sh: 'printf "[%s]" "$who"'
  after: {depends: [hi], sh: 'cat "$DECANUS_DEP_hi"'}
"#,
    );
    let job = |inputs: Value, name: Option<&str>| {
        let job = s
            .workflow()
            .job("hi", &map(inputs), &PathRules::trusted("/"), name)
            .unwrap();
        let value = s.value_of(&job);
        (job.name.clone(), value, job.digest.clone())
    };
    let (name, value, digest) = job(json!({"who": "Ana"}), None);
    assert_eq!((name.as_str(), value), ("Ana", json!("[Ana]")));
    // The name gives the input its value, so that both ways lead to one job.
    assert_eq!(
        job(json!({}), Some("Ana")),
        ("Ana".into(), json!("[Ana]"), digest.clone())
    );
    let (name, value, other) = job(json!({"who": "Bea"}), Some("Ana"));
    assert_eq!((name.as_str(), value), ("Ana", json!("[Bea]")));
    assert_ne!(digest, other);
    let (name, value, _) = job(json!({}), None);
    assert_eq!(
        (name.as_str(), value),
        ("Default", json!("[]")),
        "nobody is not called Default"
    );
    // What can't be a name is made one; the value stays what it is.
    let (name, value, _) = job(json!({"who": "../a/b"}), None);
    assert_eq!((name.as_str(), value), ("___a_b", json!("[../a/b]")));
    assert!(job(json!({"who": "x".repeat(400)}), None).0.len() <= 150);
    // A dependency inherits it.
    let after = s.job("after", json!({"who": "Ana"}));
    assert_eq!(after.dependencies[0].name, "Ana");
    let after = s
        .workflow()
        .job("after", &map(json!({})), &PathRules::trusted("/"), Some("Cy"))
        .unwrap();
    assert_eq!(
        s.store
            .run_blocking(&after, &RunOptions::default())
            .unwrap()
            .job
            .value()
            .unwrap(),
        json!("[Cy]")
    );
}

#[test]
fn a_secret_reaches_the_process_and_nothing_else() {
    let s = Sandbox::new(
        r#"
tasks:
  ask:
    inputs: {token: {secret: true, default: hunter22}, n: {type: integer, default: 1}}
    result: integer
    sh: 'grep -q "$token" "$DECANUS_INPUTS" && printf %s "${#token}"'
  tells:
    inputs: {token: {secret: true}}
    sh: 'echo "it was $token" >&2; exit 1'
"#,
    );
    let done = s.run("ask", json!({"token": "open sesame"})).unwrap();
    assert_eq!(done.job.value().unwrap(), json!(11));
    assert_eq!(
        done.job.record.inputs,
        *json!({"token": "********", "n": 1}).as_object().unwrap()
    );
    let error = s.run("tells", json!({"token": "open sesame"})).unwrap_err();
    assert_eq!(error.stderr(), "it was ********");
    let secret = |path: &PathBuf| {
        std::fs::read_to_string(path)
            .unwrap_or_default()
            .contains("open sesame")
    };
    let mut open = vec![s.store.dir().to_owned()];
    let mut files = Vec::new();
    while let Some(dir) = open.pop() {
        for entry in std::fs::read_dir(dir).unwrap().flatten() {
            if entry.path().is_dir() {
                open.push(entry.path());
            } else {
                files.push(entry.path());
            }
        }
    }
    files.retain(secret);
    // What the process itself wrote is its own.
    let own = |f: &PathBuf| f.ends_with(".job/stderr");
    assert!(files.iter().all(own), "{files:?}");
    let other = s.job("ask", json!({"token": "another"}));
    assert_ne!(other.digest, done.job.record.digest, "it is part of the identity");
    let workflow = s.workflow();
    let property = schema::property(workflow.task("ask").unwrap().input("token").unwrap());
    assert!(!property.to_string().contains("hunter22"), "{property}");
}

#[test]
fn options_with_labels_and_other_results() {
    let s = Sandbox::new(
        r#"
tasks:
  pick:
    inputs: {build: {type: select, options: {Of 2009: hg19, Of 2013: hg38}, description: Which., shortcut: b}}
    returns: The build's name.
    extension: vcf.gz
    result: binary
    sh: 'printf "%s\n" "$build"'
"#,
    );
    let workflow = s.workflow();
    let input = workflow.task("pick").unwrap().input("build").unwrap();
    assert_eq!(input.shortcut.as_deref(), Some("b"));
    let property = schema::property(input);
    assert_eq!(property["enum"], json!(["hg19", "hg38"]));
    assert_eq!(property["description"], "Which. (hg19: Of 2009; hg38: Of 2013)");
    let error = s.try_job("pick", json!({"build": "Of 2009"})).unwrap_err().to_string();
    assert!(error.contains("is not one of hg19, hg38"), "{error}");
    let done = s.run("pick", json!({"build": "hg19"})).unwrap();
    assert!(done.job.path.display().to_string().ends_with(".vcf.gz"));
    assert_eq!(s.read(&done.job.path), "hg19\n");
    assert_eq!(done.job.value().unwrap(), json!(done.job.path));
    let definition = workflow.tool_definition(workflow.task("pick").unwrap());
    assert!(
        definition.description.ends_with("Returns: The build's name."),
        "{}",
        definition.description
    );
}

#[test]
fn schemas_of_the_types() {
    let s = Sandbox::new(KINDS);
    let workflow = s.workflow();
    let task = workflow.task("any").unwrap();
    let kind = |name: &str| {
        let property = schema::property(task.input(name).unwrap());
        (property["type"].clone(), property["items"]["type"].clone())
    };
    for (name, of, items) in [
        ("c", json!("string"), json!(null)),
        ("p", json!("string"), json!(null)),
        ("d", json!("string"), json!(null)),
        ("v", json!("string"), json!(null)),
        ("y", json!(null), json!(null)),
        ("ps", json!("array"), json!("string")),
        ("fs", json!("array"), json!("string")),
        ("bs", json!("array"), json!("boolean")),
    ] {
        assert_eq!(kind(name), (of, items), "{name}");
    }
    assert_eq!(task.input("v").unwrap().kind, InputType::Tsv);
}

fn checked(s: &Sandbox) -> Checked {
    parse::check(&s.root().join("workflows/W"), &PythonReader::default()).unwrap()
}

#[test]
fn a_check_finds_every_fault() {
    let s = Sandbox::new(
        r#"titel: x
tasks:
  a:
    sh: x
    rslt: text
    result: jsno
    inputs:
      n: {type: intger, defualt: 1}
      PATH: {}
      m: {type: integer, default: x, shortcut: m}
      k: {shortcut: m}
  b:
    run: [echo, '{nam}']
    inputs: {name: {}}
    depends: [aa, c]
  c: {run: [echo, '{x}', '{y.path}']}
  d: {python: m.py:f}
  e/f: {sh: x}
  g: {}
exports: [h]
"#,
    );
    s.write("workflows/W/m.py", "def f(a: Frame,\n      b: Other): pass\n");
    let checked = checked(&s);
    assert!(checked.workflow.is_none());
    let told: Vec<String> = checked.faults.iter().map(ToString::to_string).collect();
    let text = told.join("\n");
    for says in [
        "workflow.yaml:1: titel: unknown key `titel`; did you mean title?",
        "workflow.yaml:5: tasks.a.rslt: unknown key `rslt`",
        "workflow.yaml:6: tasks.a.result: there is no result type `jsno`",
        "workflow.yaml:8: tasks.a.inputs.n.type: there is no type `intger`",
        "workflow.yaml:8: tasks.a.inputs.n.defualt: unknown key `defualt`",
        "workflow.yaml:9: tasks.a.inputs.PATH: `PATH` can't be the name of an input",
        "workflow.yaml:10: tasks.a.inputs.m.default: `x` is not an integer",
        "workflow.yaml:11: tasks.a.inputs.k: the shortcut `m` stands for `m` already",
        "workflow.yaml:13: tasks.b.run.[1]: `{nam}` is not an input",
        "workflow.yaml:15: tasks.b.depends.[0]: there is no task `aa`",
        "workflow.yaml:16: tasks.c.run.[1]: `{x}` is not an input",
        "workflow.yaml:16: tasks.c.run.[2]: `{y.path}`: this task does not depend on `y`",
        "workflow.yaml:18: tasks.e/f: `e/f` can't be the name of a task",
        "workflow.yaml:19: tasks.g: a task needs `run:`",
        "workflow.yaml:20: exports.[0]: there is no task `h`",
        "m.py:1: f.a: the hint `Frame` stands for no type",
        "m.py:2: f.b: the hint `Other` stands for no type",
    ] {
        assert!(text.contains(says), "{says}\nis not in\n{text}");
    }
    assert_eq!(told.len(), 17, "{text}");
}

#[test]
fn a_check_warns_of_what_is_not_there() {
    let s = Sandbox::new(
        r#"tasks:
  a: {run: [no-such-program-here, x]}
  b: {run: [sh, missing.sh, '{workflow_dir}/data.txt']}
  c: {sh: '. "$DECANUS_WORKFLOW_DIR/functions.sh"'}
  d:
    sh: x
    inputs:
      f: {type: file, default: none.txt}
  e: {run: [sh, here.sh, -x.sh]}
"#,
    );
    s.write("workflows/W/here.sh", "");
    s.write(
        "workflows/W/workflow.md",
        "T\n\nD\n\n# Tasks\n\n## a\n\nx\n\n## bb\n\ny\n",
    );
    let checked = checked(&s);
    assert!(
        checked.faults.is_empty() && checked.workflow.is_some(),
        "{:?}",
        checked.faults
    );
    let told: Vec<String> = checked.warnings.iter().map(ToString::to_string).collect();
    let text = told.join("\n");
    for says in [
        "workflow.yaml:2: tasks.a.run.[0]: the program `no-such-program-here` was not found",
        "workflow.yaml:3: tasks.b.run.[1]: there is no script `missing.sh`",
        "workflow.yaml:3: tasks.b.run.[2]: there is no file `data.txt`",
        "workflow.yaml:4: tasks.c.sh: there is no file",
        "workflow.yaml:8: tasks.d.inputs.f.default: the default of `f` is not there",
        "workflow.md:11: there is no task `bb`",
    ] {
        assert!(text.contains(says), "{says}\nis not in\n{text}");
    }
    assert_eq!(told.len(), 6, "{text}");
}

#[test]
fn readme_documents_where_there_is_no_workflow_md() {
    let s = Sandbox::new("title: T\ndescription: D\ntasks:\n  t1: {sh: x, description: d}\n  t2: {sh: x}\n");
    s.write(
        "workflows/W/README.md",
        "Title line\n\nDesc para one.\n\nDesc two.\n\n# TASKS\n\nTask intro\n\n## t1\n\nFirst.\n\nMore.\n\n## t2\nSecond",
    );
    let workflow = s.workflow();
    assert_eq!(workflow.title, "Title line");
    assert_eq!(workflow.description, "Desc para one.\n\nDesc two.");
    assert_eq!(workflow.introduction, "Task intro");
    assert_eq!(workflow.task("t1").unwrap().description, "First.\n\nMore.");
    assert_eq!(workflow.task("t2").unwrap().description, "Second");
    s.write("workflows/W/workflow.md", "Only title\n");
    let workflow = s.workflow();
    assert_eq!(
        (workflow.title.as_str(), workflow.description.as_str()),
        ("T", "Only title")
    );
    assert_eq!(workflow.task("t1").unwrap().description, "d");
}

#[test]
fn any_program_reads_the_same_contract() {
    let s = Sandbox::new(
        r"
tasks:
  mult: {run: [awk, -f, mult.awk], inputs: {n: {type: integer, default: 2}}, result: integer}
  show: {run: [sh, show.sh], depends: [mult], inputs: {tags: {type: array}}, result: text}
",
    );
    s.write(
        "workflows/W/mult.awk",
        "BEGIN { print ENVIRON[\"n\"] * 10 > ENVIRON[\"DECANUS_RESULT\"] }\n",
    );
    s.write(
        "workflows/W/show.sh",
        "grep -o '\"tags\":\\[[^]]*\\]' \"$DECANUS_INPUTS\"; cat \"$DECANUS_DEP_mult\"\n",
    );
    assert_eq!(s.value("mult", json!({})), json!(20));
    assert_eq!(
        s.value("show", json!({"n": 3, "tags": ["a", "'; touch pwned; '"]})),
        json!("\"tags\":[\"a\",\"'; touch pwned; '\"]\n30")
    );
}

/// The workflow `Kitchen` of the specification's examples.
#[test]
fn the_kitchen() {
    let s = Sandbox::new(
        r#"
tasks:
  mult:
    inputs: {n: {type: integer, default: 2}, label: {default: x}}
    result: integer
    sh: 'echo "$((n * 10))"'
  flag: {inputs: {flag: {type: boolean, default: false}}, sh: 'printf %s "$flag"'}
  list: {inputs: {items: {type: array}}, sh: 'cat "$DECANUS_INPUTS"', result: json}
  ints: {inputs: {items: {type: integer_array, default: [1, 2]}}, result: json, sh: 'cat "$DECANUS_INPUTS"'}
  req: {inputs: {req: {required: true}}, sh: 'true'}
  tree: {result: json, sh: "printf '{\"a\":[1,null,\"x\"]}'"}
  table: {result: tsv, sh: "printf 'K\tX\na\tb\n'"}
  boom: {sh: 'echo boom >&2; exit 1'}
  makes: {sh: 'mkdir out; echo x > out/x.txt'}
"#,
    );
    let digest = |task: &str, inputs: Value| s.job(task, inputs).digest.clone();
    // 1, 2
    assert_eq!(s.value("mult", json!({})), json!(20));
    for same in [
        json!({"n": 2}),
        json!({"n": "2"}),
        json!({"n": null}),
        json!({"label": "x"}),
    ] {
        assert!(s.run("mult", same.clone()).unwrap().reused, "{same}");
    }
    // 3, 4, 5
    assert_eq!(s.value("mult", json!({"n": "3"})), json!(30));
    assert_eq!(
        digest("mult", json!({"n": 3})),
        digest("mult", json!({"n": "3", "label": "x"}))
    );
    assert_ne!(digest("mult", json!({"n": 2, "label": "y"})), digest("mult", json!({})));
    // 6
    let error = s.try_job("mult", json!({"n": "abc"})).unwrap_err().to_string();
    assert!(error.contains("input `n`: `abc` is not an integer"), "{error}");
    // 7
    let on: Vec<String> = [json!(true), json!("true"), json!("1"), json!("yes")]
        .into_iter()
        .map(|v| digest("flag", json!({"flag": v})))
        .collect();
    assert!(on.iter().all(|d| *d == on[0]));
    for off in [json!("no"), json!(false)] {
        assert_eq!(digest("flag", json!({"flag": off})), digest("flag", json!({})));
    }
    // 8
    assert_eq!(
        digest("list", json!({"items": ["a", "b"]})),
        digest("list", json!({"items": "a\nb"}))
    );
    assert_eq!(
        s.value("list", json!({"items": "a,b"}))["inputs"]["items"],
        json!(["a,b"])
    );
    assert_ne!(
        digest("list", json!({"items": ["a, b"]})),
        digest("list", json!({"items": ["a", "b"]}))
    );
    assert_ne!(digest("list", json!({"items": []})), digest("list", json!({})));
    // 9
    assert_eq!(digest("ints", json!({"items": ["1", "2"]})), digest("ints", json!({})));
    assert_eq!(
        s.value("ints", json!({"items": "3\n4"}))["inputs"]["items"],
        json!([3, 4])
    );
    // 11
    let error = s.try_job("req", json!({"req": null})).unwrap_err().to_string();
    assert!(error.contains("input `req` is required but was not given"), "{error}");
    assert!(!s.stored().iter().any(|name| name.contains("req")));
    // 12
    let tree = s.run("tree", json!({})).unwrap().job;
    assert!(tree.path.display().to_string().ends_with(".json"));
    assert_eq!(
        (s.read(&tree.path).as_str(), tree.value().unwrap()),
        (r#"{"a":[1,null,"x"]}"#, json!({"a": [1, null, "x"]}))
    );
    assert_eq!(s.value("table", json!({})), json!("K\tX\na\tb\n"));
    // 13
    let error = s.run("boom", json!({})).unwrap_err();
    assert_eq!(error.stderr(), "boom");
    assert!(!error.path().unwrap().exists());
    // 14
    let makes = s.run("makes", json!({})).unwrap().job;
    assert_eq!(makes.files(), [makes.files_dir().join("out/x.txt")]);
}
