//! Tasks as tools.

use std::sync::{Arc, Mutex};

use decanus_chat::plan::words;
use decanus_chat::{Arguments, Effect, FunctionCall};
use decanus_tool::{
    Dispatcher, Event, Offer, Run, Tool, ToolContext, ToolError, ToolErrorClass, ToolRegistry, ToolSource,
};
use decanus_workflow::{PathPolicy, WorkflowSource, Workflows};
use serde_json::{Value, json};

use crate::sandbox::{Sandbox, map};

const DESK: &str = r#"
tasks:
  all: {description: Everything., inputs: {s: {required: true, description: a text}, i: {type: integer, default: 3}}, sh: echo "$s"}
  top: {depends: [all], inputs: {extra: {}}, sh: echo top}
  bad: {sh: "echo expected >&2; exit 3"}
  slow: {sh: sleep 60, timeout: 200ms}
  read: {inputs: {f: {type: file, default: note.txt}}, sh: cat "$f"}
  kinds:
    inputs:
      a: {type: select, options: [x, y]}
      b: {type: float_array}
      c: {type: json}
      d: {type: boolean, default: true}
      e: {type: file, description: a table}
    sh: x
exports: [all, top, bad, slow, read]
"#;

fn source(s: &Sandbox) -> WorkflowSource {
    s.write("workflows/W/note.txt", "by default");
    let policy = PathPolicy {
        working_dir: s.root(),
        root: s.root().join("inner"),
        allowed: Vec::new(),
        closed: Vec::new(),
    };
    WorkflowSource::new(
        Workflows::within(vec![s.root().join("workflows")]),
        s.store.clone(),
        policy,
    )
}

async fn tool(s: &Sandbox, spec: &str) -> Arc<dyn Tool> {
    source(s).resolve(spec).await.unwrap().unwrap().remove(0).1
}

fn cx(from_model: bool) -> (ToolContext, Arc<Mutex<Vec<Event>>>) {
    let events = Arc::new(Mutex::new(Vec::new()));
    let sink = events.clone();
    let run = Run::builder("/nowhere")
        .events(Arc::new(move |e: &Event| sink.lock().unwrap().push(e.clone())))
        .build();
    (
        ToolContext {
            from_model,
            ..ToolContext::new("c", &run)
        },
        events,
    )
}

#[tokio::test]
async fn workflows_are_a_source() {
    let s = Sandbox::new(DESK);
    s.write("workflows/Broken/workflow.yaml", "tasks: 5\n");
    let source = source(&s);
    let listed = source.list().await.unwrap();
    let names: Vec<(&str, &str)> = listed
        .iter()
        .map(|(g, t)| (g.as_str(), t.definition().name.as_str()))
        .collect();
    assert_eq!(
        names,
        [("W", "all"), ("W", "top"), ("W", "bad"), ("W", "slow"), ("W", "read")]
    );
    assert_eq!(source.resolve("W").await.unwrap().unwrap().len(), 5);
    assert_eq!(
        source.resolve("W/kinds").await.unwrap().unwrap().len(),
        1,
        "not exported, but named"
    );
    for other in ["calculator", "kb:genes", "X/y", "../W", ""] {
        assert!(source.resolve(other).await.unwrap().is_none(), "{other}");
    }
    let error = source.resolve("W/topp").await.err().unwrap().to_string();
    assert!(error.contains("no task `topp`; did you mean top?"), "{error}");
    assert!(
        source
            .resolve("Broken")
            .await
            .err()
            .unwrap()
            .to_string()
            .contains("workflow.yaml:1")
    );
    let names = source.names().await;
    assert!(names.contains(&"W/kinds".to_owned()) && names.contains(&"Broken".to_owned()));
}

#[tokio::test]
async fn schemas() {
    let s = Sandbox::new(DESK);
    let top = tool(&s, "W/top").await;
    assert_eq!(
        top.definition().parameters,
        json!({"type": "object",
            "properties": {"extra": {"type": "string"}, "s": {"type": "string", "description": "a text"},
                "i": {"type": "integer", "default": 3},
                "return_path": {"type": "boolean",
                    "description": "give the path of the file that holds the result, in place of the result"}},
            "required": ["s"]})
    );
    assert_eq!(top.definition().effect, Effect::Job);
    let kinds = tool(&s, "W/kinds").await;
    assert_eq!(
        kinds.definition().parameters["properties"],
        json!({"a": {"type": "string", "enum": ["x", "y"]}, "b": {"type": "array", "items": {"type": "number"}},
            "c": {"description": "any JSON value"}, "d": {"type": "boolean", "default": true},
            "e": {"type": "string", "description": "a table (path of a file)"},
            "return_path": top.definition().parameters["properties"]["return_path"]})
    );
}

#[tokio::test]
async fn a_call_is_a_job() {
    let s = Sandbox::new(DESK);
    let all = tool(&s, "W/all").await;
    let (cx, events) = cx(true);
    let first = all
        .call(map(json!({"s": "$(id); `id`", "nonsense": 1})), &cx)
        .await
        .unwrap();
    assert_eq!(first.value, json!("$(id); `id`\n"));
    assert!(!first.job.as_ref().unwrap().reused && first.notes[0].contains("nonsense"));
    let second = all.call(map(json!({"s": "$(id); `id`", "i": "3"})), &cx).await.unwrap();
    assert!(second.job.as_ref().unwrap().reused);
    assert_eq!(second.job.as_ref().unwrap().path, first.job.as_ref().unwrap().path);
    let seen: Vec<bool> = events
        .lock()
        .unwrap()
        .iter()
        .filter_map(|e| {
            if let Event::Job { reused, .. } = e {
                Some(*reused)
            } else {
                None
            }
        })
        .collect();
    assert_eq!(seen, [false, true]);
}

#[tokio::test]
async fn failures_are_told() {
    let s = Sandbox::new(DESK);
    let call = async |spec: &str, args: Value| {
        let (cx, _) = cx(true);
        match tool(&s, spec).await.call(map(args), &cx).await.unwrap_err() {
            ToolError::Respond { class, message, job } => (class, message, job.is_some()),
            ToolError::Fatal(message) => panic!("{message}"),
        }
    };
    let (class, message, job) = call("W/bad", json!({})).await;
    assert!(
        class == ToolErrorClass::Job && message == "job W/bad failed: exit code 3: expected" && job,
        "{message}"
    );
    let (class, message, job) = call("W/slow", json!({})).await;
    assert!(
        class == ToolErrorClass::Timeout && message.contains("timed out after 200ms") && job,
        "{message}"
    );
    let (class, message, job) = call("W/all", json!({})).await;
    assert!(
        class == ToolErrorClass::Argument && message.contains("input `s` is required") && !job,
        "{message}"
    );
}

#[tokio::test]
async fn a_model_reads_files_of_the_project_only() {
    let s = Sandbox::new(DESK);
    s.write("outer.txt", "outer");
    s.write("inner/in.txt", "inner");
    let read = tool(&s, "W/read").await;
    let (model, _) = cx(true);
    let (user, _) = cx(false);
    let value = async |args: Value, cx: &ToolContext| read.call(map(args), cx).await.map(|o| o.value);
    assert_eq!(value(json!({}), &model).await, Ok(json!("by default")));
    assert_eq!(value(json!({"f": "in.txt"}), &model).await, Ok(json!("inner")));
    assert!(value(json!({"f": "../outer.txt"}), &model).await.is_err());
    assert_eq!(value(json!({"f": "outer.txt"}), &user).await, Ok(json!("outer")));
}

#[tokio::test]
async fn cancelling_a_call_ends_its_process() {
    let s = Sandbox::new("tasks:\n  slow: {sh: 'echo $$ > .pid; mv .pid pid; exec sleep 60'}\n");
    let slow = tool(&s, "W/slow").await;
    let (cx, _) = cx(true);
    let (token, store) = (cx.cancel.clone(), s.store.clone());
    tokio::spawn(async move {
        let has_started = || {
            store
                .list(None, None)
                .unwrap()
                .iter()
                .any(|j| j.files_dir().join("pid").exists())
        };
        while !has_started() {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
        token.cancel();
    });
    let start = std::time::Instant::now();
    let error = slow.call(map(json!({})), &cx).await.unwrap_err();
    assert!(
        matches!(
            error,
            ToolError::Respond {
                class: ToolErrorClass::Interrupted,
                ..
            }
        ),
        "{error}"
    );
    assert!(start.elapsed().as_secs() < 10);
    let job = s.store.list(None, None).unwrap().remove(0);
    assert_eq!(job.status().as_str(), "aborted");
    let pid = std::fs::read_to_string(job.files_dir().join("pid")).unwrap();
    assert_eq!(decanus_base::process::start_time(pid.trim().parse().unwrap()), None);
}

const DESK_TWO: &str = r#"
tasks:
  say: {inputs: {s: {required: true}, i: {type: integer, default: 3}}, sh: 'cd "$DECANUS_WORKFLOW_DIR"; echo run >> log; echo "$s"'}
  quick: {depends: [say], sh: 'echo quick; cat "$DECANUS_DEP_say"'}
  own: {inputs: {return_path: {}, jobname: {}}, sh: 'echo "$return_path $jobname"'}
exports: [say, own]
exec: [quick]
"#;

fn dispatcher(tools: Vec<Arc<dyn Tool>>) -> Dispatcher {
    Dispatcher::new(Arc::new(ToolRegistry::new(
        tools.into_iter().map(|t| ("W".to_owned(), t)),
    )))
}

fn asked(id: &str, name: &str, args: Value) -> FunctionCall {
    FunctionCall {
        id: id.into(),
        name: name.into(),
        arguments: Arguments::from_value(Some(&args)),
    }
}

#[tokio::test]
async fn how_a_call_is_made_is_said_beside_its_inputs() {
    let s = Sandbox::new(DESK_TWO);
    let all = dispatcher(vec![tool(&s, "W/say").await, tool(&s, "W/own").await]);
    let run = Run::builder(s.root().join("spill")).build();
    let call = async |name: &str, args: Value| all.call(&asked("c", name, args), &run).await;
    let path = s.store.path(&s.job("say", json!({"s": "a"}))).display().to_string();
    for no in [json!(false), json!("false"), json!("no"), Value::Null] {
        let done = call("say", json!({"s": "a", "return_path": no})).await;
        assert_eq!(done.value, Some(json!("a\n")), "{:?}", done.output);
    }
    for yes in [json!(true), json!("true"), json!("True")] {
        let done = call("say", json!({"s": "a", "return_path": yes})).await;
        assert_eq!(
            (done.output.content.as_str(), done.output.job),
            (path.as_str(), Some(path.clone()))
        );
    }
    let named = call("say", json!({"s": "a", "jobname": "mine"})).await.output;
    assert!(named.job.unwrap().contains("/W/say/mine_") && !named.content.contains("jobname"));
    let refused = call("say", json!({"s": "a", "jobname": "../x"})).await.output;
    assert_eq!(refused.error.as_deref(), Some("ToolArgumentError"));
    // Named apart, it is run apart; of what is executed nothing is kept.
    assert_eq!(
        (s.count("workflows/W/log"), s.store.list(None, None).unwrap().len()),
        (2, 2)
    );
    let executed = call("say", json!({"s": "a", "exec_type": "exec"})).await.output;
    assert_eq!((executed.content.as_str(), executed.job), ("a\n", None));
    assert_eq!(
        (s.count("workflows/W/log"), s.store.list(None, None).unwrap().len()),
        (3, 2)
    );
    for wrong in [
        json!({"s": "a", "exec_type": "now"}),
        json!({"s": "a", "allow_recursive": "maybe"}),
        json!({}),
    ] {
        assert_eq!(
            call("say", wrong).await.output.error.as_deref(),
            Some("ToolArgumentError")
        );
    }
    // A task's own inputs of these names are inputs.
    let own = call("own", json!({"return_path": "r", "jobname": "j"})).await;
    assert_eq!(own.value, Some(json!("r j\n")));
}

#[tokio::test]
async fn tasks_may_be_offered_so_that_nothing_is_kept() {
    let s = Sandbox::new(DESK_TWO);
    let names: Vec<String> = source(&s)
        .resolve("W")
        .await
        .unwrap()
        .unwrap()
        .iter()
        .map(|(_, t)| t.definition().name.clone())
        .collect();
    assert_eq!(names, ["say", "own", "quick"]);
    let quick = tool(&s, "W/quick").await;
    let properties: Vec<&String> = quick.definition().properties().map(|(n, _)| n).collect();
    assert_eq!(properties, ["s", "i"]);
    let (cx, _) = cx(true);
    let output = quick.call(map(json!({"s": "x"})), &cx).await.unwrap();
    assert_eq!((output.value, output.job.is_none()), (json!("quick\nx\n"), true));
    assert_eq!(s.stored_tasks(), ["say"]);
}

#[tokio::test]
async fn the_way_of_a_call_stays_when_inputs_are_limited() {
    let s = Sandbox::new(DESK);
    let narrow = async |shown: &[&str], forced: &str| {
        let shown: Vec<String> = shown.iter().map(|s| (*s).to_owned()).collect();
        let forced: Vec<_> = words(forced).unwrap().iter().filter_map(|w| w.pair()).collect();
        let offer = Offer::from(("W".to_owned(), tool(&s, "W/top").await))
            .narrow(&shown, &forced)
            .unwrap();
        let names: Vec<String> = offer.definition.properties().map(|(n, _)| n.clone()).collect();
        (names.join(" "), Value::Object(offer.definition.defaults))
    };
    assert_eq!(
        narrow(&["extra"], "i=9 s=x").await,
        ("extra return_path".into(), json!({"i": 9, "s": "x"}))
    );
    assert_eq!(narrow(&[], "s=x return_path=true").await.0, "");
}

/// All jobs of an answer share what they depend on, and the processors.
#[tokio::test]
async fn the_calls_of_an_answer_are_produced_together() {
    let mut s = Sandbox::new(
        r#"
tasks:
  base: {sh: 'cd "$DECANUS_WORKFLOW_DIR"; echo run >> base; sleep 0.3; echo base'}
  leaf: {depends: [base], inputs: {n: {type: integer}}, sh: 'cd "$DECANUS_WORKFLOW_DIR"; mkdir at-work-$n; ls -d at-work-* | wc -l >> most; sleep 0.1; rmdir at-work-$n; echo $n'}
"#,
    );
    let capacity = decanus_workflow::Capacity {
        cpus: 2,
        memory: u64::MAX,
    };
    s.store = s.store.clone().with_capacity(capacity);
    let all = dispatcher(vec![tool(&s, "W/leaf").await]);
    let run = Run::builder(s.root().join("spill")).build();
    let mut calls: Vec<_> = (0..6).map(|n| asked(&n.to_string(), "leaf", json!({"n": n}))).collect();
    calls.push(asked("again", "leaf", json!({"n": 0})));
    let mut outputs = Vec::new();
    all.dispatch(&calls, &run, &mut |f| outputs.push((f.output.id, f.output.content)))
        .await;
    outputs.sort();
    let mut expected: Vec<_> = (0..6).map(|n| (n.to_string(), format!("{n}\n"))).collect();
    expected.push(("again".into(), "0\n".into()));
    assert_eq!(outputs, expected);
    assert_eq!(s.count("workflows/W/base"), 1);
    let most = s.read("workflows/W/most");
    let most: Vec<usize> = most.lines().map(|l| l.trim().parse().unwrap()).collect();
    assert!(most.len() == 6 && most.iter().all(|n| *n <= 2), "{most:?}");
}

/// What a model says is a value, whatever it looks like, for inputs of every kind.
#[tokio::test]
async fn shell_text_in_arguments_does_nothing() {
    let kinds: Vec<_> = decanus_workflow::input::TYPES.iter().map(|(_, kind)| *kind).collect();
    let inputs: Vec<String> = kinds
        .iter()
        .enumerate()
        .map(|(i, kind)| match kind {
            decanus_workflow::InputType::Select => format!("x{i}: {{type: select, options: [a, b]}}"),
            kind => format!("x{i}: {{type: {}}}", kind.as_str()),
        })
        .collect();
    let names: Vec<String> = (0..kinds.len()).map(|i| format!("\"a{{x{i}}}\"")).collect();
    let scalars: Vec<String> = (0..kinds.len())
        .filter(|i| kinds[*i].is_scalar())
        .map(|i| format!("echo \"$x{i}\""))
        .collect();
    let s = Sandbox::new(&format!(
        "tasks:\n  argv: {{inputs: {{{inputs}}}, run: [echo, {}]}}\n  shell: {{inputs: {{{inputs}}}, sh: '{}'}}\n",
        names.join(", "),
        scalars.join("; "),
        inputs = inputs.join(", ")
    ));
    let mut ran = 0;
    for name in ["argv", "shell"] {
        let all = dispatcher(vec![tool(&s, &format!("W/{name}")).await]);
        let run = Run::builder(s.root().join("spill")).build();
        for text in [
            "'; touch pwned; '",
            "$(touch pwned)",
            "`touch pwned`",
            "\"; touch pwned; \"",
            "\n touch pwned\n",
        ] {
            for i in 0..kinds.len() {
                for value in [json!(text), json!([text])] {
                    let done = all.call(&asked("c", name, json!({format!("x{i}"): value})), &run).await;
                    ran += usize::from(done.output.error.is_none());
                }
            }
        }
    }
    assert!(ran > 50, "most of them are ordinary values of some kind: {ran}");
    let mut open = vec![s.root()];
    while let Some(dir) = open.pop() {
        for entry in std::fs::read_dir(dir).unwrap().flatten() {
            assert_ne!(entry.file_name(), "pwned", "{}", entry.path().display());
            open.extend(entry.path().is_dir().then(|| entry.path()));
        }
    }
    assert!(!std::path::Path::new("pwned").exists());
}
