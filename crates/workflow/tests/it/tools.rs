//! Tasks as tools.

use std::sync::{Arc, Mutex};

use decanus_chat::Effect;
use decanus_tool::{Event, Run, Tool, ToolContext, ToolError, ToolErrorClass, ToolSource};
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
                "i": {"type": "integer", "default": 3}},
            "required": ["s"]})
    );
    assert_eq!(top.definition().effect, Effect::Job);
    let kinds = tool(&s, "W/kinds").await;
    assert_eq!(
        kinds.definition().parameters["properties"],
        json!({"a": {"type": "string", "enum": ["x", "y"]}, "b": {"type": "array", "items": {"type": "number"}},
            "c": {"description": "any JSON value"}, "d": {"type": "boolean", "default": true},
            "e": {"type": "string", "description": "a table (path of a file)"}})
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
