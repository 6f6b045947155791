use std::fs;
use std::path::PathBuf;

use serde_json::{Value, json};

use super::*;
use crate::parse::parse;

/// A project folder with files in it.
struct Folder(tempfile::TempDir);

impl Folder {
    fn new(files: &[(&str, &str)]) -> Self {
        let folder = Self(tempfile::tempdir().unwrap());
        for (path, text) in files {
            let path = folder.path(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        folder
    }

    fn path(&self, path: &str) -> PathBuf {
        self.0.path().canonicalize().unwrap().join(path)
    }

    fn lookup(&self) -> Lookup {
        Lookup {
            working_dir: self.path(""),
            readable: vec![self.path("")],
            named_by_user: true,
            ..Lookup::default()
        }
    }

    fn plan(&self, chat: &str) -> Plan {
        let path = self.path(chat);
        plan(parse(&fs::read_to_string(&path).unwrap()), Some(&path), &self.lookup())
    }
}

fn read(text: &str) -> Plan {
    let folder = Folder::new(&[("a.chat", text)]);
    folder.plan("a.chat")
}

fn said(plan: &Plan) -> Vec<(String, String)> {
    assert!(plan.findings.is_empty(), "{:?}", plan.findings);
    texts(plan)
}

fn texts(plan: &Plan) -> Vec<(String, String)> {
    let text = |m: &Message| (m.role.as_str().to_owned(), m.content.clone());
    plan.items
        .iter()
        .map(|item| match item {
            Item::Message(message) => text(message),
            Item::Action(action) => text(&action.message),
        })
        .collect()
}

fn pairs(list: &[(&str, &str)]) -> Vec<(String, String)> {
    list.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect()
}

fn found(plan: &Plan) -> Vec<String> {
    plan.findings.iter().map(ToString::to_string).collect()
}

#[test]
fn clearing() {
    // Worked examples 18, 19 and 41 of the format.
    assert_eq!(said(&read("user: a\nclear:\nuser: b\n")), pairs(&[("user", "b")]));
    assert_eq!(said(&read("user: a\nclear: true\nuser: b\n")), pairs(&[("user", "b")]));
    assert_eq!(
        said(&read("clear:\nuser: b\nmore\n")),
        pairs(&[("user", "b"), ("user", "more")])
    );
    assert_eq!(
        said(&read("user:= \"\"\nskip: a remark\nuser: b\n")),
        pairs(&[("user", "b")])
    );
    // What is above the last `clear` is not even looked up.
    assert_eq!(
        said(&read("import: none.chat\nclear:\nuser: b\n")),
        pairs(&[("user", "b")])
    );
    assert_eq!(
        found(&read("clear:\n\nlost\ntext\n\nuser: b\n")),
        ["a.chat:1: the text below `clear:` belongs to it and is not sent; begin it with `user:`"]
    );
    assert_eq!(
        said(&read("system: s\nassistant: x\nclean_role: system\nsystem: t\n")),
        pairs(&[("assistant", "x")])
    );
    assert!(found(&read("clear_role: sistem\n"))[0].contains("did you mean system?"));
}

const CALLS: &str = concat!(
    "tool: calculator\n",
    "function_call: {\"name\":\"f\",\"arguments\":{},\"id\":\"1\"}\n",
    "function_call_output: {\"id\":\"1\",\"content\":\"x\"}\n",
);

#[test]
fn clear_tools_forgets_tools_and_clear_calls_forgets_calls() {
    let plan = read(&format!("{CALLS}clear_tools: true\nuser: x\n"));
    assert_eq!(said(&plan).len(), 3);
    assert!(plan.tools.is_empty());
    let plan = read(&format!("{CALLS}clear_tools: false\nuser: x\n"));
    assert_eq!((said(&plan).len(), plan.tools.len()), (3, 1));
    let plan = read(&format!("{CALLS}clear_calls:\nuser: x\ntool: echo\n"));
    assert_eq!(said(&plan), pairs(&[("user", "x")]));
    assert_eq!(plan.tools.len(), 2);
    // An output below its cleared call goes with it.
    let plan = read(concat!(
        "function_call: {\"name\":\"f\",\"id\":\"1\"}\nclear_calls:\n",
        "function_call_output: {\"id\":\"1\",\"content\":\"x\"}\nuser: x\n"
    ));
    assert_eq!(said(&plan), pairs(&[("user", "x")]));
    let plan = read(&format!("introduce: W\n{CALLS}clear_tools:\ntool: echo\nuser: x\n"));
    assert_eq!(plan.tools.iter().map(|t| t.name.as_str()).collect::<Vec<_>>(), ["echo"]);
    assert_eq!(plan.actions().count(), 1);
}

#[test]
fn options_sticky_and_plain() {
    // Worked examples 27 and 28.
    let plan = read(concat!(
        "endpoint: e\noption: k1 v1\nsticky_option: s 1\nassistant: ok\n",
        "option: k2 a b\nuser: go\n"
    ));
    assert_eq!(
        Value::Object(plan.options.to_map()),
        json!({"endpoint": "e", "s": 1, "k2": "a b"})
    );
    assert_eq!(said(&plan), pairs(&[("assistant", "ok"), ("user", "go")]));
    let plan = read("format: json\nformat:\noption: model nil\nmodel: m\n");
    assert_eq!(Value::Object(plan.options.to_map()), json!({}));
    let plan = read(concat!(
        "model: 5\noption: temperature 0.5\noption: stop [\"a\"]\noption: flag true\noption: n 9007199254740993\n",
        "option: word 007x\npersist: false\nwebsearch:\nprevious_response_id: r1\nhello\n"
    ));
    assert_eq!(
        Value::Object(plan.options.to_map()),
        json!({"model": "5", "temperature": 0.5, "stop": ["a"], "flag": true, "n": 9_007_199_254_740_993_i64,
            "word": "007x", "persist": false, "websearch": true, "previous_response_id": "r1"})
    );
    assert_eq!(said(&plan), pairs(&[("user", "hello")]));
    assert_eq!(plan.options.get("flag").unwrap().place.to_string(), "a.chat:4");
}

#[test]
fn what_can_not_be_honoured_is_an_error_with_its_line() {
    let plan = read(concat!(
        "user: a\noption: alone\nendpoint: two words\nmodel:\nuser: x\npersist: maybe\nformat: {\"a\n",
        "tool:\nuser: x\ntask: W\ntask: W t a=1 a=2\ntask: W t b\nconfig: k\nstep: t\njob:\nuser: x\n",
        "kb: genes\nmcp: stdio x\nassociation: a b\nskip: x\nsocialize: true\nagent: Bob\ncmd: ls\ntool: 'x\n"
    ));
    let lines: Vec<usize> = plan.errors().map(|f| f.line).collect();
    assert_eq!(
        lines,
        [2, 3, 4, 6, 7, 8, 10, 11, 12, 13, 14, 15, 17, 18, 19, 21, 22, 23, 24]
    );
    assert!(found(&plan)[0].starts_with("a.chat:2: option takes a name and a value"));
    for role in ["kb", "mcp", "association", "socialize", "agent"] {
        let text = format!("{role} is not available in this build");
        assert!(found(&plan).iter().any(|f| f.contains(&text)), "{role}");
    }
    assert!(found(&read("socialize: true\nsocialize: false\n")).is_empty());
}

#[test]
fn bad_records_are_damage() {
    // Worked example 40.
    let plan = read(concat!(
        "user: a\n",
        "function_call: {oops\n",
        "function_call_output: {\"id\":\"c1\",\"content\":\"x\"}\n",
        "user: b\n",
    ));
    assert_eq!(texts(&plan), pairs(&[("user", "a"), ("user", "b")]));
    let damage: Vec<_> = plan.findings.iter().map(|f| (f.line, f.severity)).collect();
    assert_eq!(damage, [(2, Severity::Damage), (3, Severity::Damage)]);
    assert_eq!(plan.errors().count(), 0);
}

#[test]
fn calls_without_an_output_are_pending() {
    let plan = read(concat!(
        "function_call: {\"name\":\"f\",\"arguments\":{},\"id\":\"a\"}\n",
        "function_call: {\"name\":\"g\",\"arguments\":{},\"id\":\"b\"}\n",
        "function_call_output: {\"id\":\"a\",\"content\":\"1\"}\n",
    ));
    let names: Vec<String> = pending(&plan.messages()).into_iter().map(|c| c.name).collect();
    assert_eq!(names, ["g"]);
}

#[test]
fn tools_with_inputs() {
    let plan = read(concat!(
        "tool: calculator\ntool: Weather compare\ntool: W t a b=3 c=x,y\ntool: W t none\n",
        "tool: W/t a\ntool: W t a=1\ntool:\n\nW\nt\na\n"
    ));
    let tools: Vec<_> = plan
        .tools
        .iter()
        .map(|t| {
            let forced: Vec<_> = t.forced.iter().map(|p| format!("{}={}", p.key, p.text)).collect();
            (t.spec(), t.shown.clone(), forced)
        })
        .collect();
    let list = |names: &[&str]| Some(names.iter().map(|n| (*n).to_owned()).collect::<Vec<_>>());
    let none = Vec::<String>::new;
    assert_eq!(
        tools,
        [
            ("calculator".into(), None, none()),
            ("Weather/compare".into(), None, none()),
            ("W/t".into(), list(&["a"]), vec!["b=3".into(), "c=x,y".into()]),
            ("W/t".into(), list(&[]), none()),
            ("W/t".into(), list(&["a"]), none()),
            ("W/t".into(), list(&[]), vec!["a=1".into()]),
            ("W/t".into(), list(&["a"]), none()),
        ]
    );
}

#[test]
fn the_second_word_may_be_an_input_of_a_tool() {
    let plan = read("tool: calculator operand1 operation=add\ntool: echo none\ntool: echo\n");
    let other: Vec<_> = plan.tools.iter().map(ToolUse::without_task).collect();
    let first = other[0].as_ref().unwrap();
    assert_eq!(
        (first.spec(), first.shown.clone()),
        ("calculator".into(), Some(vec!["operand1".into()]))
    );
    assert_eq!(other[1].as_ref().unwrap().shown, Some(Vec::new()));
    assert!(other[2].is_none());
}

#[test]
fn actions_stay_in_their_places() {
    let plan = read(concat!(
        "meta: job=W/ask/x.chat\nintroduce: W\nintroduce: W\ntask: W t a=1 b='x y'\nuser: q\ninline_job: W/t/D_1.json\n",
        "step: compare\nexec_task: W/t\n"
    ));
    let roles: Vec<String> = said(&plan).into_iter().map(|(role, _)| role).collect();
    assert_eq!(roles, ["introduce", "task", "user", "inline_job", "step", "exec_task"]);
    let kinds: Vec<&ActionKind> = plan.actions().map(|a| &a.kind).collect();
    let ActionKind::Task {
        task, inputs, insert, ..
    } = kinds[1]
    else {
        panic!("{kinds:?}")
    };
    assert_eq!(
        (task.as_str(), inputs[1].text.as_str(), *insert),
        ("t", "x y", Insert::Pair)
    );
    assert!(matches!(kinds[3], ActionKind::Step { job, .. } if job == "W/ask/x.chat"));
    assert_eq!(plan.tools.len(), 2);
}

#[test]
fn files_and_folders() {
    // Worked example 29.
    let folder = Folder::new(&[
        ("d/a.txt", "x\n"),
        ("d/c.chat", "file: a.txt\n"),
        ("d/e.chat", "file: none.txt\n"),
        ("all.chat", "directory: d/in\nuser: go\n"),
        ("d/in/b", "2"),
        ("d/in/a/z", "1"),
        ("d/in/.hidden", "no"),
        ("d/in/bin", "a\0b"),
        (
            "wrong.chat",
            "file: d\nfile: ../x\nfile: /etc/hostname\nfile: http://x.test/\ndirectory: all.chat\nfile:\n",
        ),
    ]);
    assert_eq!(
        said(&folder.plan("d/c.chat")),
        pairs(&[("user", "<file name=\"a.txt\">\nx\n\n</file>")])
    );
    assert_eq!(
        found(&folder.plan("d/e.chat")),
        ["d/e.chat:1: File not found: none.txt"]
    );
    let plan = folder.plan("all.chat");
    assert_eq!(
        texts(&plan),
        pairs(&[
            ("user", "<file name=\"d/in/a/z\">\n1\n</file>"),
            ("user", "<file name=\"d/in/b\">\n2\n</file>"),
            ("user", "go")
        ])
    );
    assert_eq!(
        found(&plan),
        ["all.chat:1: left out: d/in/bin is binary (it holds a NUL)"]
    );
    let wrong = folder.plan("wrong.chat");
    let lines: Vec<usize> = wrong.errors().map(|f| f.line).collect();
    assert_eq!(lines, [1, 2, 3, 4, 5, 6]);
    assert!(found(&wrong)[2].contains("outside the project"), "{:?}", found(&wrong));
}

#[test]
fn imports_look_beside_their_own_file() {
    // Worked examples 30 and 32.
    let folder = Folder::new(&[
        ("p/m.chat", "import: sub/n.chat\nuser: go\n"),
        (
            "p/sub/n.chat",
            "system: s\noption: k v\nprevious_response_id: r\nfile: k.txt\n",
        ),
        ("p/sub/k.txt", "K"),
        (
            "f.chat",
            "assistant: hello\nuser: bye\nprevious_response_id: r\nmeta: pt=1\n",
        ),
        ("last.chat", "last: f.chat\n"),
        ("continue.chat", "continue: f.chat\n"),
        (
            "none.chat",
            "continue: empty.chat\nlast: p\nimport: nowhere.chat\nimport: https://x.test/a.chat\n",
        ),
        ("empty.chat", "option: a b\n"),
        ("clear.chat", "user: kept\nimport: cleared.chat\n"),
        ("cleared.chat", "user: gone\nclear:\nuser: new\n"),
    ]);
    let plan = folder.plan("p/m.chat");
    assert_eq!(
        said(&plan),
        pairs(&[
            ("system", "s"),
            ("user", "<file name=\"k.txt\">\nK\n</file>"),
            ("user", "go")
        ])
    );
    assert_eq!(Value::Object(plan.options.to_map()), json!({"k": "v"}));
    assert_eq!(said(&folder.plan("last.chat")), pairs(&[("user", "bye")]));
    let continued = folder.plan("continue.chat");
    assert_eq!(continued.options.get("previous_response_id").unwrap().text, "r");
    assert_eq!(
        said(&folder.plan("clear.chat")),
        pairs(&[("user", "kept"), ("user", "new")])
    );
    let wrong = found(&folder.plan("none.chat"));
    assert_eq!(
        wrong,
        [
            "none.chat:1: Nothing to continue in empty.chat",
            "none.chat:2: p is a folder",
            "none.chat:3: Import not found: nowhere.chat",
            "none.chat:4: import of a URL is refused: https://x.test/a.chat",
        ]
    );
}

#[test]
fn cycles_are_named_and_diamonds_are_fine() {
    // Worked example 31, and the same by other paths: through folders, and a link.
    let folder = Folder::new(&[
        ("a.chat", "import: b.chat\n"),
        ("b.chat", "import: ./sub/../a.chat\n"),
        ("self.chat", "import: link.chat\n"),
        ("top.chat", "import: l.chat\nimport: r.chat\n"),
        ("l.chat", "import: bottom.chat\n"),
        ("r.chat", "import: bottom.chat\n"),
        ("bottom.chat", "user: x\n"),
        ("sub/x", ""),
    ]);
    std::os::unix::fs::symlink(folder.path("self.chat"), folder.path("link.chat")).unwrap();
    assert_eq!(
        found(&folder.plan("a.chat")),
        ["b.chat:1: Import cycle: a.chat -> b.chat -> a.chat (imported by a.chat:1)"]
    );
    assert_eq!(
        found(&folder.plan("self.chat")),
        ["self.chat:1: Import cycle: self.chat -> self.chat"]
    );
    assert_eq!(said(&folder.plan("top.chat")), pairs(&[("user", "x"), ("user", "x")]));
}

#[test]
fn deep_chains_work_and_endless_ones_end() {
    let folder = Folder::new(&[]);
    let write = |i: usize, text: String| fs::write(folder.path(&format!("c{i}.chat")), text).unwrap();
    for i in 0..200 {
        write(i, format!("import: c{}.chat\n", i + 1));
    }
    write(200, "user: deep\n".into());
    assert_eq!(said(&folder.plan("c0.chat")), pairs(&[("user", "deep")]));
    for i in 200..=MAX_DEPTH + 1 {
        write(i, format!("import: c{}.chat\n", i + 1));
    }
    let plan = folder.plan("c0.chat");
    assert!(
        found(&plan)[0].contains("more than 1000 imports inside each other"),
        "{:?}",
        found(&plan)
    );
    // Each file imports the next twice: two to the power of sixty messages.
    for i in 0..60 {
        write(i, format!("import: c{0}.chat\nimport: c{0}.chat\n", i + 1));
    }
    write(60, "user: x\n".into());
    let plan = folder.plan("c0.chat");
    assert!(found(&plan).iter().any(|f| f.contains("more than 10000 files")));
    assert!(plan.findings.len() < 200);
}

#[test]
fn only_the_chat_that_was_named_opens_paths_and_runs_commands() {
    let outside = Folder::new(&[("secret", "s"), ("other", "o")]);
    let secret = outside.path("secret").display().to_string();
    let folder = Folder::new(&[
        ("a.chat", &*format!("file: {secret}\nallow_read_path: {secret}\n")),
        (
            "grants.chat",
            &*format!("allow_read_path: {secret}\nallow_path: .\nuser: x\n"),
        ),
        ("b.chat", &*format!("import: grants.chat\nfile: {secret}\n")),
        ("c.chat", "import: cmd.chat\n"),
        ("cmd.chat", "cmd: ls -l 'a b'\n"),
    ]);
    let plan = folder.plan("a.chat");
    assert_eq!(said(&plan)[0].1, format!("<file name=\"{secret}\">\ns\n</file>"));
    assert_eq!(
        plan.grants,
        [Grant {
            path: outside.path("secret"),
            write: false
        }]
    );
    let plan = folder.plan("b.chat");
    assert_eq!(plan.errors().count(), 2);
    assert!(plan.grants.is_empty());

    let with = |chat: &str, lookup: Lookup| {
        let path = folder.path(chat);
        plan_of(&path, &lookup)
    };
    let allowed = Lookup {
        allow_cmd: true,
        ..folder.lookup()
    };
    assert!(found(&folder.plan("cmd.chat"))[0].contains("--allow-cmd"));
    let plan = with("cmd.chat", allowed.clone());
    assert!(matches!(&plan.actions().next().unwrap().kind,
        ActionKind::Command { argv } if *argv == ["ls", "-l", "a b"]));
    assert!(found(&with("c.chat", allowed.clone()))[0].contains("never in an imported one"));
    let not_named = Lookup {
        named_by_user: false,
        ..allowed
    };
    assert_eq!(with("cmd.chat", not_named.clone()).errors().count(), 1);
    assert_eq!(with("a.chat", not_named).errors().count(), 2);
}

fn plan_of(path: &Path, lookup: &Lookup) -> Plan {
    plan(parse(&fs::read_to_string(path).unwrap()), Some(path), lookup)
}

#[test]
fn formats_come_from_a_word_a_schema_or_a_file() {
    let folder = Folder::new(&[
        ("word.chat", "format: json\n"),
        ("inline.chat", "format: {\"type\": \"object\"}\n"),
        ("file.chat", "format: s.json\n"),
        ("s.json", "{\"type\": \"array\"}\n"),
        ("bad.chat", "format: b.json\n"),
        ("b.json", "{"),
    ]);
    let format = |chat: &str| folder.plan(chat).options.get("format").map(Setting::value);
    assert_eq!(format("word.chat"), Some(json!("json")));
    assert_eq!(format("inline.chat"), Some(json!({"type": "object"})));
    assert_eq!(format("file.chat"), Some(json!({"type": "array"})));
    assert!(found(&folder.plan("bad.chat"))[0].contains("b.json is not valid JSON"));
}

#[test]
fn c23_two_calls_of_one_id_have_two_outputs() {
    let chat = "user: q\n\nfunction_call: {\"id\":\"x\",\"name\":\"f\",\"arguments\":{}}\n\n\
        function_call: {\"id\":\"x\",\"name\":\"f\",\"arguments\":{}}\n\n\
        function_call_output: {\"id\":\"x\",\"name\":\"f\",\"content\":\"1\"}\n\n\
        function_call_output: {\"id\":\"x\",\"name\":\"f\",\"content\":\"2\"}\n\n";
    let plan = read(chat);
    assert!(found(&plan).is_empty(), "{:?}", found(&plan));
    assert_eq!(texts(&plan).len(), 5);
    let once_more = format!("{chat}function_call_output: {{\"id\":\"x\",\"name\":\"f\",\"content\":\"3\"}}\n");
    assert_eq!(found(&read(&once_more)).len(), 1);
}
