//! workflow.yaml: what is refused, and how it is said.

use std::path::Path;

use decanus_base::{Diagnostic, ErrorKind, Project};
use decanus_workflow::{Workflow, WorkflowError, Workflows, parse};
use serde_json::json;

use crate::sandbox::Sandbox;

fn error(text: &str) -> String {
    parse::parse(text, Path::new("/p/W/workflow.yaml"), "W")
        .unwrap_err()
        .to_string()
}

fn good(text: &str) -> Workflow {
    parse::parse(text, Path::new("/p/W/workflow.yaml"), "W").unwrap()
}

#[test]
fn faults_name_file_line_and_key() {
    for (text, says) in [
        (
            "task: {}\n",
            "workflow.yaml:1: task: unknown key `task`; did you mean tasks?",
        ),
        ("title: x\n", "workflow.yaml:1: a workflow needs `tasks:`"),
        ("tasks: {}\n", "at least one task"),
        (
            "tasks:\n  a: {sh: x, run: [x]}\n",
            "workflow.yaml:2: tasks.a.sh: a task has one of `run:`, `sh:` and `python:`, not several",
        ),
        (
            "tasks:\n  a: {description: x}\n",
            "workflow.yaml:2: tasks.a: a task needs `run:`",
        ),
        (
            "tasks:\n  a: {python: a.py:f}\n",
            "workflow.yaml:2: tasks.a.python: there is no file `a.py` in the workflow's folder",
        ),
        (
            "tasks:\n  a:\n    sh: x\n    reslt: text\n",
            ":4: tasks.a.reslt: unknown key `reslt`; did you mean result?",
        ),
        (
            "tasks:\n  a: {sh: x, result: jsno}\n",
            "no result type `jsno`; did you mean json?",
        ),
        (
            "tasks:\n  a: {sh: x, overrides: {}}\n",
            "`overrides:` is not available in this build",
        ),
        (
            "tasks:\n  a: {sh: x, executor: slrum}\n",
            "tasks.a.executor: there is no executor `slrum`; did you mean slurm? (executors: local slurm)",
        ),
        (
            "executor: moon\ntasks:\n  a: {sh: x}\n",
            "workflow.yaml:1: executor: there is no executor `moon`",
        ),
        (
            "tasks:\n  a: {sh: x, timeout: soon}\n",
            "tasks.a.timeout: `soon` is not a duration",
        ),
        ("tasks:\n  a: {run: x y}\n", "tasks.a.run: expected a list"),
        ("tasks:\n  a: {run: []}\n", "no program given"),
        (
            "tasks:\n  a/b: {sh: x}\n",
            ":2: tasks.a/b: `a/b` can't be the name of a task",
        ),
        (
            "tasks:\n  a:\n    sh: x\n    inputs:\n      n: {type: intger}\n",
            ":5: tasks.a.inputs.n.type: there is no type `intger`; did you mean integer?",
        ),
        (
            "tasks:\n  a:\n    sh: x\n    inputs:\n      ld_preload: {}\n",
            ":5: tasks.a.inputs.ld_preload: `ld_preload` can't be the name of an input",
        ),
        (
            "tasks:\n  a:\n    sh: x\n    inputs:\n      N: {}\n",
            "can't be the name of an input",
        ),
        (
            "tasks:\n  a: {sh: x, inputs: {n: {type: select}}}\n",
            "needs `options:`",
        ),
        (
            "tasks:\n  a: {sh: x, inputs: {n: {options: [a]}}}\n",
            "only an input of type `select` has options",
        ),
        (
            "tasks:\n  a: {sh: x, inputs: {n: {type: select, options: [a, b], default: c}}}\n",
            "tasks.a.inputs.n.default: `c` is not one of a, b",
        ),
        (
            "tasks:\n  a: {sh: x, inputs: {n: {type: integer, default: x}}}\n",
            "default: `x` is not an integer",
        ),
        (
            "tasks:\n  a: {sh: x, inputs: {n: {type: integer, maximum: 3, default: 4}}}\n",
            "4 is more than 3",
        ),
        (
            "tasks:\n  a: {sh: x, inputs: {n: {type: json, jobname: true}}}\n",
            "an input that names the job is a plain value",
        ),
        (
            "tasks:\n  alpha: {sh: x}\n  b:\n    sh: x\n    depends: [alhpa]\n",
            ":5: tasks.b.depends.[0]: there is no task `alhpa`; did you mean alpha?",
        ),
        (
            "tasks:\n  a: {sh: x}\n  b: {sh: x, depends: [a, a]}\n",
            "is there twice",
        ),
        (
            "tasks:\n  a: {sh: x}\n  b: {sh: x, depends: [{task: a, inputs: {n: 1}}]}\n",
            "tasks.b.depends.[0].inputs.n: there is no input `n`",
        ),
        (
            "tasks:\n  a: {sh: x, inputs: {n: {type: integer}}}\n  b: {sh: x, depends: [{task: a, inputs: {n: x}}]}\n",
            "`x` is not an integer",
        ),
        (
            "tasks:\n  a: {sh: x, depends: [{task: a, canfial: true}]}\n",
            "unknown key `canfial`; did you mean canfail?",
        ),
        (
            "tasks:\n  a: {sh: x}\n  b: {sh: x, depends: [{task: a, name: x/y}]}\n",
            "`x/y` can't be a name",
        ),
        (
            "tasks:\n  a: {sh: x}\n  b: {sh: x, depends: [{task: a, name: x-y}, {task: a, name: x_y}]}\n",
            "would both be the variable DECANUS_DEP_x_y",
        ),
        (
            "tasks:\n  a: {sh: x}\n  b: {sh: x, depends: [{task: a, jobname: ../x}]}\n",
            "can't be the name of a job",
        ),
        (
            "tasks:\n  a: {sh: x, inputs: {n: {}}}\n  b:\n    sh: x\n    inputs: {size: {}}\n    \
             depends: [{task: a, inputs: {n: {input: sise}}}]\n",
            ":6: tasks.b.depends.[0].inputs.n.input: `sise` is not an input of this task; did you mean size?",
        ),
        (
            "tasks:\n  a: {sh: x, inputs: {n: {}}}\n  b: {sh: x, depends: [{task: a, inputs: {n: {from: c}}}]}\n",
            "tasks.b.depends.[0].inputs.n.from: there is no dependency `c` before this one",
        ),
        (
            "tasks:\n  a: {sh: x}\n  b: {sh: x, inputs: {n: {}}, depends: [{task: a, inputs: {m: {input: n}}}]}\n",
            "tasks.b.depends.[0].inputs.m: there is no input `m`",
        ),
        (
            "tasks:\n  a: {sh: x, inputs: {n: {}}}\n  b: {sh: x, inputs: {l: {}}, depends: [{task: a, for_each: {l: n}}]}\n",
            "tasks.b.depends.[0].for_each: `l` is no list",
        ),
        (
            "tasks:\n  a: {sh: x}\n  b: {sh: x, inputs: {l: {type: array}}, depends: [{task: a, for_each: {l: n}}]}\n",
            "tasks.b.depends.[0].for_each: there is no input `n`",
        ),
        (
            "tasks:\n  a: {sh: x, inputs: {n: {}}}\n  b: {run: [echo, '{a.path}'], inputs: {l: {type: array}}, \
             depends: [{task: a, for_each: {l: n}}]}\n",
            "`a` has a result for each item; `{a...}` are all their paths",
        ),
        (
            "tasks:\n  a: {sh: x}\n  b: {alias: a, sh: x}\n",
            "an alias has no `run:`",
        ),
        (
            "tasks:\n  a: {sh: x}\n  b: {alias: {task: a, canfail: true}}\n",
            "unknown key `canfail`",
        ),
        (
            "tasks:\n  a: {sh: x}\n  b:\n    alias: c\n",
            ":4: tasks.b.alias: there is no task `c`",
        ),
        (
            "tasks:\n  a: {run: [echo, '{nam}'], inputs: {name: {}}}\n",
            "tasks.a.run.[1]: `{nam}` is not an input of this task; did you mean name?",
        ),
        ("tasks:\n  a: {run: [echo, '{b.path}']}\n", "does not depend on `b`"),
        (
            "tasks:\n  a: {run: [echo, '-x{n...}'], inputs: {n: {type: array}}}\n",
            "must be alone",
        ),
        (
            "tasks:\n  a: {run: ['{n}'], inputs: {n: {}}}\n",
            "the program itself may not come from an input",
        ),
        (
            "tasks:\n  a: {run: [sh, -c, 'echo {n}'], inputs: {n: {}}}\n",
            "shell line",
        ),
        (
            "tasks:\n  a: {run: [env, bash, -ec, 'echo {n}'], inputs: {n: {}}}\n",
            "shell line",
        ),
        (
            "tasks:\n  a: {run: [./none.sh]}\n",
            "there is no program `./none.sh` in the workflow's folder",
        ),
        (
            "tasks:\n  a: {sh: x}\nexports: [b]\n",
            ":3: exports.[0]: there is no task `b`",
        ),
        (
            "tasks:\n  a: {sh: x, examples: [{request: q, arguments: {n: 1}}]}\n",
            "there is no input `n`",
        ),
        ("tasks:\n  a: {sh: x\n", "workflow.yaml:"),
        ("tasks:\n  a: {sh: x}\n  a: {sh: y}\n", "workflow.yaml:3"),
    ] {
        let error = error(text);
        assert!(
            error.starts_with("/p/W/workflow.yaml:") && error.contains(says),
            "{text}\n{error}"
        );
    }
}

#[test]
fn circles_are_shown_whole_and_diamonds_are_fine() {
    let text = "tasks:\n  a: {sh: x, depends: [b]}\n  b: {sh: x, depends: [c]}\n  c: {sh: x, depends: [a]}\n";
    assert!(
        error(text).contains("tasks.a.depends: tasks depend on each other in a circle: a → b → c → a"),
        "{}",
        error(text)
    );
    assert!(error("tasks:\n  a: {sh: x, depends: [a]}\n").contains("circle: a → a"));
    good(
        "tasks:\n  a: {sh: x, depends: [b, c]}\n  b: {sh: x, depends: [d]}\n  c: {sh: x, depends: [d]}\n  d: {sh: x}\n",
    );
}

#[test]
fn a_tower_of_diamonds_and_a_long_chain_end() {
    let mut text = String::from("tasks:\n  l0: {sh: 'true', inputs: {n: {}}}\n  r0: {sh: 'true', inputs: {n: {}}}\n");
    for i in 1..60 {
        for side in ["l", "r"] {
            text.push_str(&format!("  {side}{i}: {{sh: 'true', depends: [l{0}, r{0}]}}\n", i - 1));
        }
    }
    let workflow = std::sync::Arc::new(good(&text));
    assert_eq!(workflow.recursive_inputs(workflow.task("l59").unwrap()).len(), 1);
    workflow
        .job(
            "l59",
            &crate::sandbox::map(json!({"n": "x"})),
            &decanus_workflow::PathRules::trusted("/"),
            None,
        )
        .unwrap();
    let chain: String = (0..20_000)
        .map(|i| format!("  t{i}: {{sh: x, depends: [t{}]}}\n", i + 1))
        .collect();
    assert!(error(&format!("tasks:\n{chain}  t20000: {{sh: x}}\n")).contains("more than 100 tasks in a chain"));
}

#[test]
fn a_broken_workflow_does_not_hide_the_others() {
    let sandbox = Sandbox::new("tasks:\n  a: {sh: x}\n");
    sandbox.write("workflows/Broken/workflow.yaml", "tasks: [\n");
    sandbox.write("workflows/Binary/workflow.yaml", "x");
    std::fs::write(sandbox.root().join("workflows/Binary/workflow.yaml"), b"\xff\xfe").unwrap();
    sandbox.write("workflows/notes/readme", "x");
    let workflows = Workflows::discover(&Project {
        root: sandbox.root(),
        working_dir: sandbox.root(),
        home: "/none".into(),
    });
    let listed = workflows.list();
    let names: Vec<(&str, bool)> = listed.iter().map(|l| (l.name.as_str(), l.workflow.is_ok())).collect();
    assert_eq!(names, [("Binary", false), ("Broken", false), ("W", true)]);
    let unknown = workflows.load("Brokn").unwrap_err();
    assert_eq!(unknown.kind(), ErrorKind::Usage);
    assert!(
        unknown.to_string().contains("did you mean Broken?") && unknown.hints()[0].contains("workflows"),
        "{unknown}"
    );
    for bad in ["../W", "", "/etc", "W/a"] {
        assert!(
            matches!(workflows.load(bad), Err(WorkflowError::Unknown { .. })),
            "{bad}"
        );
    }
    assert_eq!(workflows.load("Broken").unwrap_err().kind(), ErrorKind::Config);
}

#[test]
fn workflow_md_describes() {
    let sandbox = Sandbox::new("title: T\ntasks:\n  a: {sh: x, description: short}\n");
    sandbox.write(
        "workflows/W/workflow.md",
        "Title\n\nWhat it is.\n\n# Tasks\n\n## a\n\nLong text.\n",
    );
    let workflow = sandbox.workflow();
    assert_eq!(
        (workflow.title.as_str(), workflow.description.as_str()),
        ("Title", "What it is.")
    );
    assert_eq!(workflow.task("a").unwrap().description, "Long text.");
    let unknown = workflow.task("aa").unwrap_err();
    assert_eq!(unknown.kind(), ErrorKind::Usage);
    assert!(unknown.to_string().contains("workflow W has no task `aa`"), "{unknown}");
}
