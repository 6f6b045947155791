//! A program as a backend, with real child processes.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use decanus_backend::{Backend, BackendError, Conversation, Delta, Endpoints, ExecBackend, FinishReason, Profile};
use decanus_base::process::start_time;
use decanus_chat::{Message, ProviderParts};
use futures::StreamExt;
use serde_json::{Value, json};

use crate::support::{Question, call, collect, cx, go_on, output, tool};

/// Each request is a line; `$n` counts them, and the program's number stands in the file `pid`.
const HEAD: &str = "#!/bin/sh\necho $$ > pid\nn=0\nwhile IFS= read -r line; do\nn=$((n+1))\necho \"$line\" > request\n";

struct World {
    dir: tempfile::TempDir,
}

impl World {
    fn new(body: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("model.sh");
        let text = format!("{HEAD}{body}\ndone\n");
        std::fs::write(&program, text).unwrap();
        Self { dir }
    }

    fn profile(&self) -> Profile {
        let mut profile = Profile::new("test", "exec", "tiny");
        profile.file = Some(self.dir.path().join("test.yaml"));
        // By a shell that is there already: a script that another thread's fork holds open can't be executed.
        profile.command = vec!["sh".into(), "model.sh".into()];
        profile.timeouts.first_byte = Duration::from_secs(20);
        profile
    }

    fn open(&self) -> Box<dyn Conversation> {
        ExecBackend::new(true).open(Arc::new(self.profile())).unwrap()
    }

    fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.dir.path().join(name)).unwrap_or_default()
    }

    fn pid(&self) -> u32 {
        self.read("pid").trim().parse().unwrap()
    }
}

async fn ask(conversation: &mut dyn Conversation) -> Result<String, BackendError> {
    match go_on(conversation, &Question::default(), &cx(true)).await {
        (deltas, None) => Ok(collect(&deltas).text),
        (_, Some(error)) => Err(error),
    }
}

/// Whether a process is gone within some seconds.
fn is_gone(pid: u32) -> bool {
    let begin = Instant::now();
    while start_time(pid).is_some() {
        if begin.elapsed() > Duration::from_secs(8) {
            return false;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    true
}

#[tokio::test]
async fn one_program_answers_the_whole_conversation() {
    let world = World::new(r#"echo "{\"text\":\"answer $n\"}"; echo '{"done":{}}'"#);
    let mut conversation = world.open();
    assert_eq!(ask(&mut *conversation).await.unwrap(), "answer 1");
    let pid = world.pid();
    assert_eq!(ask(&mut *conversation).await.unwrap(), "answer 2");
    assert_eq!(world.pid(), pid);
    drop(conversation);
    assert!(is_gone(pid), "it ends with the conversation");
}

#[tokio::test]
async fn what_is_sent_and_what_comes_back() {
    let world = World::new(
        r#"echo '{"reasoning":"hm"}'
echo '{"text":"Let me "}'; echo '{"text":"look."}'
echo '{"part":{"state":7}}'
echo '{"call":{"name":"f","arguments":{"x":1}}}'
echo '{"call":{"id":"own","name":"f","arguments":"{\"x\":2}"}}'
echo '{"usage":{"prompt_tokens":5,"completion_tokens":6}}'
echo 'a note' >&2
echo '{"done":{}}'"#,
    );
    let parts = ProviderParts {
        backend: "exec".into(),
        model: "tiny".into(),
        parts: vec![json!({"state": 7})],
    };
    let mut question = Question::new([
        Message::system("s"),
        Message::user("q\n\"x\""),
        parts.to_message(),
        call("a", "f", json!({"x": 1})),
        output("a", "1"),
    ]);
    question.tools = vec![tool("f", json!({}))];
    question.parameters.insert("temperature".into(), json!(0));
    question.tool_choice = Some("auto".into());
    let mut conversation = world.open();
    let dry = conversation.dry_run(&question.view(), true).unwrap();
    let (deltas, error) = go_on(&mut *conversation, &question, &cx(true)).await;
    assert!(error.is_none(), "{error:?}");
    let response = collect(&deltas);
    assert_eq!(
        (response.text.as_str(), response.reasoning.as_str()),
        ("Let me look.", "hm")
    );
    assert_eq!(response.parts, [json!({"state": 7})]);
    let ids: Vec<&str> = response.calls.iter().map(|c| c.id.as_str()).collect();
    assert_eq!(
        (ids, response.calls[1].arguments.to_text()),
        (vec!["call_1", "own"], r#"{"x":2}"#.into())
    );
    assert_eq!(
        (response.usage.tt, response.finish),
        (Some(11), Some(FinishReason::ToolCalls))
    );

    let expected = json!({
        "model": "tiny",
        "messages": [
            {"role": "system", "content": "s"},
            {"role": "user", "content": "q\n\"x\""},
            {"role": "assistant", "content": null,
             "tool_calls": [{"id": "a", "type": "function", "function": {"name": "f", "arguments": "{\"x\":1}"}}],
             "parts": [{"state": 7}]},
            {"role": "tool", "tool_call_id": "a", "content": "1"},
        ],
        "tools": [{"type": "function", "function": {"name": "f", "description": "Does f",
            "parameters": {"type": "object", "properties": {}}}}],
        "parameters": {"temperature": 0, "tool_choice": "auto"},
        "stream": true,
    });
    assert_eq!(serde_json::from_str::<Value>(&dry.body).unwrap(), expected);
    assert!(!dry.body.contains('\n'));
}

#[tokio::test]
async fn one_that_died_between_requests_is_started_again() {
    let world = World::new(r#"echo "{\"text\":\"$n\",\"done\":{}}"; exit 0"#);
    let mut conversation = world.open();
    for _ in 0..3 {
        // Each is a new one, whether it was seen to be dead or was about to die.
        assert_eq!(ask(&mut *conversation).await.unwrap(), "1");
    }
}

#[tokio::test]
async fn one_that_dies_within_an_answer_leaves_it_incomplete() {
    let world = World::new(r#"echo '{"text":"Hel"}'; exit 3"#);
    let mut conversation = world.open();
    for _ in 0..2 {
        let (deltas, error) = go_on(&mut *conversation, &Question::default(), &cx(true)).await;
        assert_eq!(collect(&deltas).text, "Hel");
        let error = error.unwrap();
        assert!(
            matches!(&error, BackendError::Incomplete { reason, .. } if reason.contains("exit status: 3")),
            "{error:?}"
        );
    }
}

#[tokio::test]
async fn noise_and_reported_errors() {
    let world = World::new(r#"echo '{"text":"a"}'; echo 'Loading model…'; echo '{"done":{}}'"#);
    let mut conversation = world.open();
    let error = ask(&mut *conversation).await.unwrap_err();
    assert!(
        matches!(&error, BackendError::Malformed { reason, .. }
            if reason.starts_with("line 2 of its answer is not JSON") && reason.contains("Loading model…")),
        "{error:?}"
    );
    assert!(is_gone(world.pid()), "nobody knows where it stands");

    let world = World::new(
        r#"[ $n = 1 ] && echo '{"error":{"message":"busy","status":503}}' || echo '{"text":"ok","done":{}}'"#,
    );
    let mut conversation = world.open();
    let error = ask(&mut *conversation).await.unwrap_err();
    assert!(
        matches!(&error, BackendError::Refused { status: 503, message, .. } if message == "busy"),
        "{error:?}"
    );
    assert_eq!(
        ask(&mut *conversation).await.unwrap(),
        "ok",
        "an error that it reports ends only the answer"
    );
}

#[tokio::test]
async fn a_program_that_goes_on_after_its_answer_is_not_asked_again() {
    let world = World::new(r#"echo "{\"text\":\"$n\",\"done\":{}}"; echo '{"text":"more"}'; sleep 0.2"#);
    let mut conversation = world.open();
    assert_eq!(ask(&mut *conversation).await.unwrap(), "1");
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(
        ask(&mut *conversation).await.unwrap(),
        "1",
        "what it said belongs to no answer"
    );
}

#[tokio::test]
async fn limits_and_cancelling_end_it() {
    let world = World::new(r#"[ $n = 1 ] && echo '{"text":"a"}'; sleep 60 & wait"#);
    for (first_byte, idle, total, words) in [
        (20_000, 300, 20_000, "nothing more within 0.3s"),
        (20_000, 20_000, 500, "the whole request may take 0.5s"),
    ] {
        let mut profile = world.profile();
        profile.timeouts.first_byte = Duration::from_millis(first_byte);
        profile.timeouts.idle = Duration::from_millis(idle);
        profile.timeouts.total = Duration::from_millis(total);
        let mut conversation = ExecBackend::new(true).open(Arc::new(profile)).unwrap();
        let error = ask(&mut *conversation).await.unwrap_err();
        assert!(
            matches!(&error, BackendError::TimedOut { what, .. } if what == words),
            "{error:?}"
        );
        assert!(is_gone(world.pid()));
    }
    let silent = World::new("sleep 60");
    let mut profile = silent.profile();
    profile.timeouts.first_byte = Duration::from_millis(300);
    let mut conversation = ExecBackend::new(true).open(Arc::new(profile)).unwrap();
    let error = ask(&mut *conversation).await.unwrap_err();
    assert!(
        matches!(&error, BackendError::TimedOut { what, .. } if what == "no answer within 0.3s"),
        "{error:?}"
    );

    let mut conversation = world.open();
    let (question, cx) = (Question::default(), cx(true));
    let view = question.view();
    let mut answer = conversation.complete(&view, &cx);
    assert!(matches!(answer.next().await, Some(Ok(Delta::Text(_)))));
    cx.cancel.cancel();
    assert!(matches!(answer.next().await, Some(Err(BackendError::Cancelled))));
    assert!(answer.next().await.is_none());
    drop(answer);
    assert!(is_gone(world.pid()));
}

#[tokio::test]
async fn a_line_without_end_is_bounded() {
    let world = World::new(r#"yes x | tr -d '\n'"#);
    let mut profile = world.profile();
    profile.timeouts.first_byte = Duration::from_secs(60);
    let error = ask(&mut *ExecBackend::new(true).open(Arc::new(profile)).unwrap())
        .await
        .unwrap_err();
    assert!(
        matches!(&error, BackendError::Malformed { reason, .. } if reason.contains("larger than")),
        "{error:?}"
    );
}

fn endpoint(folder: &Path, text: &str) {
    std::fs::create_dir_all(folder).unwrap();
    std::fs::write(folder.join("mine.yaml"), text).unwrap();
}

#[tokio::test]
async fn only_the_users_own_files_start_programs() {
    let dir = tempfile::tempdir().unwrap();
    let (project, own) = (dir.path().join("project/endpoints"), dir.path().join("home/endpoints"));
    let endpoints =
        || Endpoints::with(vec![project.clone(), own.clone()], Arc::new(|_| None)).with_own(vec![own.clone()]);
    let text = "backend: exec\ncommand: [./model.sh, --fast]\ntemperature: 0\n";
    endpoint(&own, text);
    let profile = endpoints().load("mine").unwrap();
    assert_eq!(profile.command, ["./model.sh", "--fast"]);
    assert_eq!(profile.parameters.keys().collect::<Vec<_>>(), ["temperature"]);
    assert!(
        ExecBackend::new(false).open(Arc::new(profile)).is_ok(),
        "nothing is started yet"
    );
    endpoint(&project, text);
    let profile = Arc::new(endpoints().load("mine").unwrap());
    let error = ExecBackend::new(false).open(profile.clone()).err().unwrap().to_string();
    assert!(
        error.contains("project/endpoints/mine.yaml would start the program"),
        "{error}"
    );
    let mut conversation = ExecBackend::new(true).open(profile).unwrap();
    let error = ask(&mut *conversation).await.unwrap_err().to_string();
    assert!(
        error.contains("project/endpoints/./model.sh can't be started"),
        "{error}"
    );

    for (text, words) in [
        ("backend: exec\ncommand: model.sh\n", "mine.yaml:2: command"),
        ("backend: exec\ncommand: []\n", "a program and its arguments"),
        (
            "backend: openai\ncommand: [x]\n",
            "only `backend: exec` starts a program",
        ),
        ("backend: exec\ncommand: [x]\nurl: http://h\n", "a program has no URL"),
    ] {
        endpoint(&project, text);
        let error = endpoints().load("mine").unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
    endpoint(&project, "backend: exec\n");
    let profile = Arc::new(endpoints().load("mine").unwrap());
    let error = ExecBackend::new(true).open(profile).err().unwrap().to_string();
    assert!(error.contains("give `command`"), "{error}");
}
