//! `python:` tasks: what is read from hints and docstrings, and how functions are called.

use decanus_base::Project;
use decanus_workflow::{Body, InputType, ResultType, RunOptions, Workflows, parse};
use serde_json::{Value, json};
use std::os::unix::fs::PermissionsExt;

use crate::sandbox::Sandbox;

/// A project whose workflow has this Python file as `m.py`.
fn sandbox(yaml: &str, python: &str) -> Sandbox {
    let sandbox = Sandbox::new(yaml);
    sandbox.write("workflows/W/m.py", python);
    sandbox
}

fn error(yaml: &str, python: &str) -> String {
    let s = sandbox(yaml, python);
    parse::load(&s.root().join("workflows/W")).unwrap_err().to_string()
}

const HINTED: &str = r#"
from __future__ import annotations
raise RuntimeError("nobody may run this to read it")
import os
from pathlib import Path
from typing import Annotated, Any, List, Literal, Optional, Union

def f(data: Path, month: int, column: Literal["a", "b"] = "a", scale: float = 1.5, tags: list[str] | None = None,
      n: Optional[int] = None, xs: "List[float]" = (1.0, 2), opts: dict[str, int] = {}, flag: bool = False,
      cores: int = os.cpu_count(), note: Annotated[str, "A note."] = "x", files: list[Path] = [], u: Union[int, float] = 1,
      raw: bytes = None, bits: list[bool] = [True], any: Any = None, bare=3, text="t") -> float:
    """The mean of a column.

    Over all days.

    Args:
        data (Path): The table,
            with more text.
        month: 1 to 12: a month
        tags (list[str], optional): Some tags.

    Returns:
        float: the mean, of which nothing is said above.
    """
"#;

#[test]
fn inputs_come_from_hints_and_docstring() {
    let s = sandbox("tasks: {f: {python: m.py}}\n", HINTED);
    let workflow = s.workflow();
    let task = workflow.task("f").unwrap();
    assert_eq!(task.description, "The mean of a column.\n\nOver all days.");
    assert_eq!(task.result, ResultType::Float);
    use InputType::*;
    for (name, kind, required, default) in [
        ("data", File, true, json!(null)),
        ("month", Integer, true, json!(null)),
        ("column", Select, false, json!("a")),
        ("scale", Float, false, json!(1.5)),
        ("tags", Array, false, json!(null)),
        ("n", Integer, false, json!(null)),
        ("xs", FloatArray, false, json!([1.0, 2.0])),
        ("opts", Json, false, json!({})),
        ("flag", Boolean, false, json!(false)),
        ("cores", Integer, false, json!(null)),
        ("note", String, false, json!("x")),
        ("files", FileArray, false, json!([])),
        ("u", Float, false, json!(1.0)),
        ("raw", Binary, false, json!(null)),
        ("bits", BooleanArray, false, json!([true])),
        ("any", Json, false, json!(null)),
        ("bare", Integer, false, json!(3)),
        ("text", String, false, json!("t")),
    ] {
        let input = task.input(name).unwrap();
        assert_eq!(
            (input.kind, input.required, &input.default),
            (kind, required, &default),
            "{name}"
        );
    }
    let about = |name: &str| task.input(name).unwrap().description.clone();
    assert_eq!(about("data"), "The table, with more text.");
    assert_eq!(about("month"), "1 to 12: a month");
    assert_eq!(about("tags"), "Some tags.");
    assert_eq!(about("note"), "A note.");
    assert_eq!(task.input("column").unwrap().options, [json!("a"), json!("b")]);
}

#[test]
fn numpy_and_rest_docstrings() {
    let s = sandbox(
        "tasks: {g: {python: 'm.py:g'}, h: {python: 'm.py:h'}}\n",
        r#"
def g(a, b=3):
    """Sum.

    Parameters
    ----------
    a : int
        First number.
    b : float, optional
        Second,
        of two.

    Returns
    -------
    float
        Nothing of it.
    """

async def h(x, y: int) -> "list[int]":
    """Do this.

    :param str x: the x
        and more
    :param y: the y
    :returns: z
    """
"#,
    );
    let workflow = s.workflow();
    let g = workflow.task("g").unwrap();
    let h = workflow.task("h").unwrap();
    let shown = |task: &decanus_workflow::Task| -> Vec<(String, InputType, String)> {
        let one = |i: &decanus_workflow::Input| (i.name.clone(), i.kind, i.description.clone());
        task.inputs.iter().map(one).collect()
    };
    assert_eq!(g.description, "Sum.");
    assert_eq!(
        shown(g),
        [
            ("a".into(), InputType::Integer, "First number.".into()),
            ("b".into(), InputType::Float, "Second, of two.".into())
        ]
    );
    assert_eq!(g.input("b").unwrap().default, json!(3.0));
    assert_eq!(
        (h.description.as_str(), h.result),
        ("Do this.", ResultType::IntegerArray)
    );
    assert_eq!(
        shown(h),
        [
            ("x".into(), InputType::String, "the x and more".into()),
            ("y".into(), InputType::Integer, "the y".into())
        ]
    );
}

#[test]
fn hostile_files_are_read_in_time_or_refused() {
    let brackets = format!("x {}", "((((((((()".repeat(500));
    let yaml = "tasks: {f: {python: 'm.py:f'}}\n";
    let docstring = |text: &str| format!("def f(x: int = 1):\n    \"\"\"A.\n\n    Args:\n        {text}\n    \"\"\"\n");
    let begin = std::time::Instant::now();
    for python in [
        docstring(&brackets),
        docstring(&format!("x: {}", " \n".repeat(100_000))),
        docstring(&":".repeat(100_000)),
    ] {
        assert_eq!(sandbox(yaml, &python).workflow().task("f").unwrap().inputs.len(), 1);
    }
    // Too deep for Python itself.
    for python in [
        format!("x = {}1{}\ndef f(): pass\n", "(".repeat(50_000), ")".repeat(50_000)),
        format!(
            "def f(x: {}int{} = 1): pass\n",
            "list[".repeat(50_000),
            "]".repeat(50_000)
        ),
        "def f(): pass\n\0".to_owned(),
    ] {
        let error = error(yaml, &python);
        assert!(error.contains("m.py:1: ") || error.contains("m.py:2: "), "{error}");
    }
    assert!(
        begin.elapsed() < std::time::Duration::from_secs(60),
        "{:?}",
        begin.elapsed()
    );
}

#[test]
fn workflow_yaml_adds_and_overrides() {
    let s = sandbox(
        r"
tasks:
  f:
    description: Another one.
    python: m.py:f
    result: json
    inputs:
      frame: {type: tsv, description: A table.}
      n: {default: 5, minimum: 1}
      more: {type: integer}
",
        "import pandas as pd\ndef f(frame: pd.DataFrame, n: int, **others) -> pd.DataFrame:\n    'Said here.'\n",
    );
    let workflow = s.workflow();
    let task = workflow.task("f").unwrap();
    assert_eq!(task.description, "Another one.");
    assert_eq!(task.result, ResultType::Json);
    let names: Vec<&str> = task.inputs.iter().map(|i| i.name.as_str()).collect();
    assert_eq!(names, ["frame", "n", "more"]);
    let frame = task.input("frame").unwrap();
    assert_eq!(
        (frame.kind, frame.required, frame.description.as_str()),
        (InputType::Tsv, true, "A table.")
    );
    let n = task.input("n").unwrap();
    assert_eq!((n.kind, n.required, &n.default), (InputType::Integer, false, &json!(5)));
    assert_eq!(n.minimum, Some(1.into()));
}

#[test]
fn faults_name_file_line_and_parameter() {
    let yaml = "tasks:\n  f:\n    python: m.py:f\n";
    for (python, says) in [
        (
            "import pandas as pd\n\ndef f(\n    n: int,\n    frame: pd.DataFrame): pass\n",
            "m.py:5: f.frame: the hint `pd.DataFrame` stands for no type",
        ),
        (
            "def f() -> Frame: pass\n",
            "m.py:1: f: the return hint `Frame` stands for no type",
        ),
        ("def g(): pass\ndef fa(): pass\n", "m.py:1: there is no function `f`"),
        ("def f(:\n", "m.py:1: "),
        (
            "\n\ndef f(path: str): pass\n",
            "m.py:3: f.path: `path` can't be the name of an input",
        ),
        (
            "def f(n: int = 'many'): pass\n",
            "m.py:1: f.n: the default: `many` is not an integer",
        ),
        ("def f(x: int | str): pass\n", "the hint `int | str` stands for no type"),
    ] {
        let error = error(yaml, python);
        assert!(error.contains(says), "{error}\nshould contain {says}");
    }
    for (yaml, says) in [
        (
            "tasks:\n  f:\n    python: n.py:f\n",
            "workflow.yaml:3: tasks.f.python: there is no file `n.py`",
        ),
        (
            "tasks:\n  f:\n    python: m.py:f\n    inputs:\n      m: {}\n",
            "workflow.yaml:5: tasks.f.inputs.m: the function `f` has no parameter `m`",
        ),
        (
            "tasks:\n  f:\n    python: m.py:f\n    sh: x\n",
            "workflow.yaml:3: tasks.f.python: a task has one of",
        ),
        (
            "tasks:\n  f:\n    python: m.py:f\n    inputs:\n      n: {type: select}\n",
            "tasks.f.inputs.n: an input of type `select` needs `options:`",
        ),
    ] {
        let error = error(yaml, "def f(n: int = 1): pass\n");
        assert!(error.contains(says), "{error}\nshould contain {says}");
    }
}

#[test]
fn a_function_gets_its_inputs_and_gives_its_result() {
    let s = sandbox(
        r"
tasks:
  kinds: {python: 'm.py:kinds'}
  defaults: {python: 'm.py:defaults'}
  positional: {python: 'm.py:positional'}
  later: {python: 'm.py:later'}
  others: {python: 'm.py:others', inputs: {more: {type: integer}}}
",
        r#"
import asyncio, helper
from pathlib import Path
from typing import Any, Literal

def kinds(data: Path, files: list[Path], raw: bytes, n: int, x: float, on: bool, tags: list[str], any: Any,
          pick: Literal["a", 7] = "a", text: str = "") -> dict:
    print("this goes to the log")
    return {"data": data.read_text(), "is_path": isinstance(data, Path), "names": [f.name for f in files],
            "raw": len(raw), "n": n, "x": x, "types": [type(v).__name__ for v in (n, x, on, tags, any, pick)],
            "text": text, "helper": helper.WORD, "cwd": Path.cwd().name[-6:]}

def defaults(cores: int = 3 + 4, xs: list[int] | None = None, n: int = 2) -> list[int]:
    return [cores, n] + (xs or [])

def positional(a: int, b: int = 5, /, *, c: int = 1) -> int:
    return a * 100 + b * 10 + c

async def later(n: int) -> int:
    await asyncio.sleep(0)
    return n + 1

def others(**all) -> dict:
    return all
"#,
    );
    s.write("workflows/W/python/helper.py", "WORD = 'beside'\n");
    let data = s.write("data.txt", "hello");
    let other = s.write("other.bin", "xyz");
    let value = s.value(
        "kinds",
        json!({"data": data, "files": [data, other], "raw": other, "n": "3", "x": 2, "on": "yes", "tags": "a\nb",
               "any": "{\"k\": 1}", "pick": "7", "text": "'; touch pwned; '"}),
    );
    assert_eq!(
        value,
        json!({"data": "hello", "is_path": true, "names": ["data.txt", "other.bin"], "raw": 3, "n": 3, "x": 2.0,
               "types": ["int", "float", "bool", "list", "dict", "int"], "text": "'; touch pwned; '", "helper": "beside",
               "cwd": ".files"})
    );
    assert_eq!(s.value("defaults", json!({})), json!([7, 2]));
    assert_eq!(s.value("defaults", json!({"xs": [4], "cores": 1})), json!([1, 2, 4]));
    assert_eq!(s.value("positional", json!({"a": 1})), json!(151));
    assert_eq!(s.value("positional", json!({"a": 1, "b": 2, "c": 3})), json!(123));
    assert_eq!(s.value("later", json!({"n": 1})), json!(2));
    assert_eq!(s.value("others", json!({"more": "4"})), json!({"more": 4}));
    assert!(
        !s.root().join("workflows/W/__pycache__").exists(),
        "nothing is written beside the sources"
    );
    let done = s.run(
        "kinds",
        json!({"data": data, "files": [], "raw": other, "n": 1, "x": 1, "on": 0, "tags": [], "any": 1}),
    );
    let log = done.unwrap().job.files_dir().join(".job/stdout");
    assert_eq!(s.read(log), "this goes to the log\n");
}

#[test]
fn results_are_stored_by_their_type() {
    let python = r#"
from pathlib import Path
def text() -> str: return "a\n"
def nothing() -> None: pass
def maybe() -> int | None: return None
def whole() -> int: return 10**40
def real() -> float: return 2
def truth() -> bool: return True
def words() -> list[str]: return ["a", "b"]
def odd() -> list[str]: return ["a\nb", "", "[1]"]
def one_empty() -> list[str]: return [""]
def none_at_all() -> list[str]: return []
def truths() -> list[bool]: return [True, False]
def numbers() -> list[int]: return range(3)
def tree() -> dict: return {"p": Path("x"), "s": {2, 1}, "é": None}
def raw() -> bytes: return b"\xff\n"
def made() -> Path:
    Path("out.txt").write_text("x")
    return Path("out.txt")
def rows(): return [{"a": 1, "b": "x"}, {"b": "y", "c": None}]
def lists(): return [["k", "v"], [1, 2]]
def itself():
    import os
    open(os.environ["DECANUS_RESULT"], "w").write("by hand")
"#;
    let names = [
        "text",
        "nothing",
        "maybe",
        "whole",
        "real",
        "truth",
        "words",
        "odd",
        "one_empty",
        "none_at_all",
        "truths",
        "numbers",
        "tree",
        "raw",
        "made",
        "itself",
    ];
    let mut yaml = String::from("tasks:\n");
    for name in names {
        yaml.push_str(&format!("  {name}: {{python: m.py}}\n"));
    }
    yaml.push_str("  rows: {python: m.py, result: tsv}\n  lists: {python: m.py, result: tsv}\n");
    let s = sandbox(&yaml, python);
    let big: Value = serde_json::from_str(&format!("1{}", "0".repeat(40))).unwrap();
    for (task, stored, value) in [
        ("text", "a\n", json!("a\n")),
        ("nothing", "", json!("")),
        ("maybe", "null", json!(null)),
        ("whole", &big.to_string(), big.clone()),
        ("real", "2", json!(2)),
        ("truth", "true", json!(true)),
        ("words", "a\nb", json!(["a", "b"])),
        ("odd", r#"["a\nb","","[1]"]"#, json!(["a\nb", "", "[1]"])),
        ("one_empty", r#"[""]"#, json!([""])),
        ("none_at_all", "", json!([])),
        ("truths", "true\nfalse", json!([true, false])),
        ("numbers", "0\n1\n2", json!([0, 1, 2])),
        (
            "tree",
            r#"{"p":"x","s":[1,2],"é":null}"#,
            json!({"p": "x", "s": [1, 2], "é": null}),
        ),
        ("rows", "a\tb\tc\n1\tx\t\n\ty\t\n", json!("a\tb\tc\n1\tx\t\n\ty\t\n")),
        ("lists", "k\tv\n1\t2\n", json!("k\tv\n1\t2\n")),
        ("itself", "by hand", json!("by hand")),
    ] {
        let done = s.run(task, json!({})).unwrap();
        assert_eq!(s.read(&done.job.path), stored, "{task}");
        assert_eq!(done.job.value().unwrap(), value, "{task}");
    }
    let raw = s.run("raw", json!({})).unwrap().job;
    assert_eq!(std::fs::read(&raw.path).unwrap(), b"\xff\n");
    assert_eq!(raw.value().unwrap(), json!(raw.path));
    let made = s.value("made", json!({}));
    assert_eq!(s.read(made.as_str().unwrap()), "x");
}

#[test]
fn an_exception_is_the_error_without_frames_of_ours() {
    let s = sandbox(
        r"
tasks:
  boom: {python: m.py}
  wrong: {python: m.py}
  leaves: {python: m.py}
  absent: {python: broken.py}
",
        "def inner(): raise ValueError('no luck')\n\
         def boom() -> int:\n    print('before')\n    inner()\n\
         def wrong() -> int: return 'many'\n\
         def leaves():\n    import sys\n    sys.exit(0)\n",
    );
    s.write("workflows/W/broken.py", "import not_there_at_all\ndef absent(): pass\n");
    let error = s.run("boom", json!({})).unwrap_err();
    let text = error.stderr();
    assert!(error.to_string().contains("exit code 1"), "{error}");
    assert!(text.ends_with("\nValueError: no luck"), "{text}");
    assert!(text.contains("m.py\", line 4, in boom"), "{text}");
    assert!(!text.contains("<string>"), "{text}");
    let error = s.run("wrong", json!({})).unwrap_err().to_string();
    assert!(
        error.contains("TypeError: the function returned str ('many'), but the task's result is integer"),
        "{error}"
    );
    let error = s.run("leaves", json!({})).unwrap_err().to_string();
    assert!(error.contains("ended the program in place of returning"), "{error}");
    let error = s.run("absent", json!({})).unwrap_err().to_string();
    assert!(error.contains("No module named 'not_there_at_all'"), "{error}");
}

#[test]
fn a_parameter_named_like_a_dependency_gets_its_result() {
    let s = sandbox(
        r"
tasks:
  base: {sh: 'echo 20', result: integer, inputs: {a: {type: integer, default: 1}}}
  two-words: {sh: 'printf x'}
  value: {python: m.py, depends: [base]}
  place: {python: m.py, depends: [base, two-words]}
",
        "from pathlib import Path\n\
         def value(base: int, b: int = 1) -> int:\n    return base + b\n\
         def place(base: Path, two_words: str) -> str:\n    return base.read_text() + two_words\n",
    );
    let workflow = s.workflow();
    let task = workflow.task("value").unwrap();
    assert_eq!(task.inputs.iter().map(|i| i.name.as_str()).collect::<Vec<_>>(), ["b"]);
    assert_eq!(s.value("value", json!({"b": 2})), json!(22));
    assert_eq!(s.value("place", json!({})), json!("20x"));
}

#[test]
fn what_a_function_imports_is_part_of_what_it_does() {
    let s = sandbox(
        "tasks: {f: {python: 'm.py:f'}}\n",
        "from pack.part import name\ndef f() -> str: return name()\n",
    );
    s.write("workflows/W/python/pack/__init__.py", "");
    s.write(
        "workflows/W/python/pack/part.py",
        "from . import far\ndef name(): return far.WORD\n",
    );
    s.write("workflows/W/python/pack/far.py", "WORD = 'one'\n");
    s.write("workflows/W/python/unused.py", "");
    let first = s.job("f", json!({}));
    assert_eq!(s.value("f", json!({})), json!("one"));
    s.write("workflows/W/python/unused.py", "x = 1\n");
    assert_eq!(
        s.job("f", json!({})).digest,
        first.digest,
        "a file that it does not import"
    );
    s.write("workflows/W/python/pack/far.py", "WORD = 'two'\n");
    assert_ne!(s.job("f", json!({})).digest, first.digest);
    assert_eq!(s.value("f", json!({})), json!("two"));
    s.write("workflows/W/python/pack/far.py", "WORD = 'one'\n");
    assert_eq!(s.job("f", json!({})).digest, first.digest);
    let workflow = s.workflow();
    let Body::Python(body) = &workflow.task("f").unwrap().body else {
        panic!("another body");
    };
    assert_eq!(body.sources.len(), 4);
}

/// An interpreter of the workflow's own that counts how often it is started.
fn counting(s: &Sandbox) -> std::path::PathBuf {
    let count = s.root().join("starts");
    let script = format!("#!/bin/sh\necho x >> '{}'\nexec python3 \"$@\"\n", count.display());
    let python = s.write("workflows/W/.venv/bin/python", &script);
    std::fs::set_permissions(&python, std::fs::Permissions::from_mode(0o755)).unwrap();
    count
}

#[test]
fn the_interpreter_of_a_folder_runs_functions_and_reads_nothing() {
    let s = sandbox("tasks: {f: {python: 'm.py:f'}}\n", "def f(n: int) -> int: return n\n");
    let starts = counting(&s);
    let job = s.job("f", json!({"n": 1}));
    assert_eq!(
        s.count("starts"),
        0,
        "looking at a workflow starts nothing of its folder"
    );
    let done = s.store.run_blocking(&job, &RunOptions::default()).unwrap();
    assert_eq!(done.job.value().unwrap(), json!(1));
    assert_eq!(s.count("starts"), 1, "{}", starts.display());
}

#[test]
fn a_changed_function_is_seen_by_a_process_that_goes_on() {
    let s = sandbox(
        "tasks: {f: {python: 'm.py:f'}}\n",
        "import helper\ndef f(n: int) -> int: return n\n",
    );
    s.write("workflows/W/helper.py", "");
    let age = |name: &str, seconds: u64| {
        let time = std::time::SystemTime::now() - std::time::Duration::from_secs(seconds);
        let file = std::fs::File::options()
            .write(true)
            .open(s.root().join("workflows/W").join(name));
        file.unwrap().set_modified(time).unwrap();
    };
    for name in ["workflow.yaml", "m.py", "helper.py"] {
        age(name, 20);
    }
    let workflows = Workflows::discover(&Project::find(&s.root()).unwrap());
    let first = workflows.load("W").unwrap();
    assert!(std::sync::Arc::ptr_eq(&first, &workflows.load("W").unwrap()));
    assert!(s.root().join(".decanus/cache/python").is_dir());
    s.write("workflows/W/helper.py", "x = 1\n");
    age("helper.py", 10);
    assert!(!std::sync::Arc::ptr_eq(&first, &workflows.load("W").unwrap()));
    s.write("workflows/W/m.py", "def f(n: int, m: int) -> int: return n\n");
    age("m.py", 10);
    assert_eq!(workflows.load("W").unwrap().task("f").unwrap().inputs.len(), 2);
}
