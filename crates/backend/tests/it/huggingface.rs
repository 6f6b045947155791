//! A checkpoint of transformers as a backend: the real worker in a real process, with stand-ins for torch and
//! transformers (`tests/fixtures/stand_in`).

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use decanus_backend::{
    Backend, BackendError, BackendRegistry, Conversation, Delta, Endpoints, FinishReason, HuggingFaceBackend, Profile,
    Response,
};
use decanus_base::process::start_time;
use decanus_chat::Message;
use futures::StreamExt;
use serde_json::{Value, json};

use crate::support::{Question, call, collect, cx, go_on, output, tool};

fn stand_in(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/stand_in");
    folder.join(name).to_str().unwrap().to_owned()
}

/// A checkpoint of the stand-in.
struct World {
    dir: tempfile::TempDir,
}

impl World {
    fn new(answers: Value) -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("tiny")).unwrap();
        std::fs::write(dir.path().join("tiny/answers.json"), answers.to_string()).unwrap();
        Self { dir }
    }

    fn profile(&self) -> Profile {
        let mut profile = Profile::new("test", "huggingface", "");
        profile.file = Some(self.dir.path().join("test.yaml"));
        profile.file_is_own = true;
        profile.parameters.insert("dir".into(), "tiny".into());
        profile.parameters.insert("python".into(), stand_in("python").into());
        profile
    }

    fn open(&self) -> Box<dyn Conversation> {
        open(self.profile())
    }

    fn file(&self, name: &str) -> String {
        std::fs::read_to_string(self.dir.path().join("tiny").join(name)).unwrap_or_default()
    }

    /// The processes that have loaded it, in order.
    fn loads(&self) -> Vec<u32> {
        self.file("loads").lines().map(|line| line.parse().unwrap()).collect()
    }

    /// What the model was given last.
    fn seen(&self) -> Value {
        serde_json::from_str(&self.file("seen")).unwrap()
    }
}

fn open(profile: Profile) -> Box<dyn Conversation> {
    HuggingFaceBackend::new(false).open(Arc::new(profile)).unwrap()
}

async fn ask(conversation: &mut dyn Conversation, question: &str) -> Result<Response, BackendError> {
    match go_on(conversation, &Question::new([Message::user(question)]), &cx(true)).await {
        (deltas, None) => Ok(collect(&deltas)),
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
async fn one_process_serves_all_conversations_with_the_same_settings() {
    let world = World::new(json!({"hi": "Hello you.", "2": "two"}));
    let backend = HuggingFaceBackend::new(false);
    let mut one = backend.open(Arc::new(world.profile())).unwrap();
    let (deltas, error) = go_on(&mut *one, &Question::default(), &cx(true)).await;
    assert!(error.is_none(), "{error:?}");
    let pieces = deltas.iter().filter(|d| matches!(d, Delta::Text(_))).count();
    let answer = collect(&deltas);
    assert!(pieces > 1, "it streams");
    assert_eq!(
        (answer.text.as_str(), answer.finish),
        ("Hello you.", Some(FinishReason::Stop))
    );
    assert_eq!(answer.usage.ct, Some(11), "the end is a token, too");
    assert!(answer.usage.pt.unwrap() > 10);

    let (deltas, error) = go_on(&mut *one, &Question::default(), &cx(false)).await;
    assert!(error.is_none(), "{error:?}");
    assert_eq!(collect(&deltas).text, "Hello you.");

    let mut other = HuggingFaceBackend::new(false).open(Arc::new(world.profile())).unwrap();
    let (a, b) = tokio::join!(ask(&mut *one, "2"), ask(&mut *other, "hi"));
    assert_eq!((a.unwrap().text, b.unwrap().text), ("two".into(), "Hello you.".into()));
    let loads = world.loads();
    assert_eq!(loads.len(), 1, "started once");
    drop((one, other, backend));
    assert!(is_gone(loads[0]), "it ends with the last backend");
}

#[tokio::test]
async fn what_is_sent() {
    let world = World::new(json!({"1": "ok"}));
    let mut question = Question::new([
        Message::system("s"),
        Message::user("q"),
        call("a", "f", json!({"x": 1})),
        output("a", "1"),
    ]);
    question.tools = vec![tool("f", json!({}))];
    for (name, value) in [
        ("temperature", json!(0)),
        ("max_tokens", json!(5)),
        ("seed", json!(7)),
        ("chat_template_kwargs", json!({"enable_thinking": false})),
        ("generation_kwargs", json!({"num_beams": 1, "max_tokens": 9})),
        ("format", json!("json")),
        ("websearch", json!(true)),
    ] {
        question.parameters.insert(name.into(), value);
    }
    let mut conversation = world.open();
    let dry = conversation.dry_run(&question.view(), true).unwrap();
    assert!(dry.target.starts_with("transformers (/"), "{}", dry.target);
    let format = "Give the final answer as one JSON object, with nothing around it.";
    let tools = json!([{"type": "function", "function": {"name": "f", "description": "Does f",
        "parameters": {"type": "object", "properties": {}}}}]);
    let messages = json!([
        {"role": "system", "content": format!("s\n\n{format}")},
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": "",
         "tool_calls": [{"id": "a", "type": "function", "function": {"name": "f", "arguments": {"x": 1}}}]},
        {"role": "tool", "name": "f", "tool_call_id": "a", "content": "1"},
    ]);
    assert_eq!(
        serde_json::from_str::<Value>(&dry.body).unwrap(),
        json!({"chat": {"messages": messages, "tools": tools, "chat_template_kwargs": {"enable_thinking": false}, "seed": 7,
            "generation": {"do_sample": false, "max_new_tokens": 5, "num_beams": 1}, "stream": true}})
    );
    assert!(!dry.body.contains('\n'));
    assert!(world.loads().is_empty(), "nothing is started for it");
    let (deltas, error) = go_on(&mut *conversation, &question, &cx(true)).await;
    assert!(error.is_none(), "{error:?}");
    assert_eq!(collect(&deltas).text, "ok");
    let seen = world.seen();
    assert_eq!(seen["asked"]["messages"], messages);
    assert_eq!(seen["asked"]["options"]["tools"], tools);
    assert_eq!(seen["asked"]["options"]["enable_thinking"], json!(false));
    assert_eq!(
        seen["options"],
        json!({"do_sample": false, "max_new_tokens": 5, "num_beams": 1})
    );
}

#[tokio::test]
async fn calls_and_thoughts_are_taken_out_of_the_text() {
    let printed = "I look. <tool_call>{\"name\": \"f\", \"arguments\": {\"x\": 1}}</tool_call>\n\
        <tool_call>{\"function\": {\"name\": \"f\", \"arguments\": \"{\\\"x\\\": 2}\"}, \"id\": \"own\"}</tool_call>";
    let world = World::new(json!({
        "think": "<think>hm, hm</think>\n\nDone.",
        "call": printed,
        "bare": "{\"name\": \"f\", \"parameters\": {}}",
        "set off": "so</think>Yes.",
        "cut": "abcdef",
    }));
    let mut conversation = world.open();
    let thought = ask(&mut *conversation, "think").await.unwrap();
    assert_eq!((thought.text.as_str(), thought.reasoning.as_str()), ("Done.", "hm, hm"));

    let calls = |response: &Response| -> Vec<(String, String)> {
        response
            .calls
            .iter()
            .map(|c| (c.id.clone(), c.arguments.to_text()))
            .collect()
    };
    for stream in [true, false] {
        let mut question = Question::new([Message::user("call")]);
        question.tools = vec![tool("f", json!({}))];
        let (deltas, _) = go_on(&mut *conversation, &question, &cx(stream)).await;
        let called = collect(&deltas);
        assert_eq!(called.text, "I look. ");
        let is = |id: &str, arguments: &str| (id.to_owned(), arguments.to_owned());
        assert_eq!(calls(&called), [is("call_1", "{\"x\":1}"), is("own", "{\"x\":2}")]);
        assert_eq!(called.finish, Some(FinishReason::ToolCalls));
        question.messages = vec![Message::user("bare")];
        let (deltas, _) = go_on(&mut *conversation, &question, &cx(stream)).await;
        assert_eq!(calls(&collect(&deltas)), [is("call_1", "{}")]);
        // Told to call none, it is not offered any.
        question.tool_choice = Some("none".into());
        let (deltas, _) = go_on(&mut *conversation, &question, &cx(stream)).await;
        assert_eq!(collect(&deltas).text, "{\"name\": \"f\", \"parameters\": {}}");
        assert_eq!(world.seen()["asked"]["options"]["tools"], Value::Null);
    }

    let mut question = Question::new([Message::user("set off")]);
    let ending = json!({"ending": "<think>"});
    question.parameters.insert("chat_template_kwargs".into(), ending);
    let (deltas, _) = go_on(&mut *conversation, &question, &cx(true)).await;
    let thought = collect(&deltas);
    assert_eq!((thought.text.as_str(), thought.reasoning.as_str()), ("Yes.", "so"));

    let mut question = Question::new([Message::user("cut")]);
    question.parameters.insert("max_tokens".into(), json!(3));
    let (deltas, _) = go_on(&mut *conversation, &question, &cx(true)).await;
    let cut = collect(&deltas);
    assert_eq!((cut.text.as_str(), cut.finish), ("abc", Some(FinishReason::Length)));
    question.parameters = json!({"stop": ["cd"]}).as_object().unwrap().clone();
    let (deltas, _) = go_on(&mut *conversation, &question, &cx(true)).await;
    assert_eq!(collect(&deltas).text, "ab");
    assert_eq!(world.loads().len(), 1);
}

#[tokio::test]
async fn a_tokenizer_that_takes_answers_apart_is_believed() {
    let message = json!({"role": "assistant", "thinking": "hm", "content": "Look:", "tool_calls": [
        {"function": {"name": "f", "arguments": {"x": 1}}}, {"type": "function", "function": {}}]});
    let world = World::new(json!({"response schema": true, "hi": message.to_string()}));
    let (deltas, error) = go_on(&mut *world.open(), &Question::default(), &cx(true)).await;
    assert!(error.is_none(), "{error:?}");
    let answer = collect(&deltas);
    assert_eq!((answer.text.as_str(), answer.reasoning.as_str()), ("Look:", "hm"));
    assert_eq!(answer.calls[0].name, "f");
    assert!(
        deltas
            .iter()
            .any(|d| matches!(d, Delta::Warning(w) if w.contains("has no name")))
    );
}

#[tokio::test]
async fn cancelling_keeps_the_model_in_memory() {
    let world = World::new(json!({"hi": "again"}));
    let mut conversation = world.open();
    let question = Question::new([Message::user("!slow")]);
    for by_drop in [false, true] {
        let (view, cx) = (question.view(), cx(true));
        let mut answer = conversation.complete(&view, &cx);
        assert!(matches!(answer.next().await, Some(Ok(Delta::Text(_)))));
        if !by_drop {
            cx.cancel.cancel();
            while let Some(item) = answer.next().await {
                if let Err(error) = item {
                    assert!(matches!(error, BackendError::Cancelled), "{error:?}");
                }
            }
        }
        drop(answer);
        assert_eq!(ask(&mut *conversation, "hi").await.unwrap().text, "again");
    }
    assert_eq!(world.loads().len(), 1);
}

#[tokio::test]
async fn noise_on_standard_output_is_no_part_of_an_answer() {
    let world = World::new(json!({}));
    assert_eq!(ask(&mut *world.open(), "!noise").await.unwrap().text, "heard");
}

#[tokio::test]
async fn one_that_died_is_started_again() {
    let world = World::new(json!({"hi": "Hello.", "!die within": "abcdef"}));
    let mut conversation = world.open();
    for question in ["!die", "!die within"] {
        let error = ask(&mut *conversation, question).await.unwrap_err();
        let BackendError::Incomplete { reason, .. } = &error else {
            panic!("{error:?}")
        };
        assert!(reason.contains("exit status: 3"), "{reason}");
        assert_eq!(reason.ends_with("out of luck"), question == "!die", "{reason}");
        assert_eq!(ask(&mut *conversation, "hi").await.unwrap().text, "Hello.");
    }
    let pid = *world.loads().last().unwrap();
    nix_kill(pid);
    assert!(is_gone(pid));
    assert_eq!(ask(&mut *conversation, "hi").await.unwrap().text, "Hello.");
    assert_ne!(world.loads().last(), Some(&pid));
}

fn nix_kill(pid: u32) {
    let done = std::process::Command::new("kill")
        .args(["-9", &pid.to_string()])
        .status();
    assert!(done.unwrap().success());
}

#[tokio::test]
async fn errors_that_end_only_the_answer() {
    let world = World::new(json!({"hi": "Hello.", "context": 2000}));
    let mut conversation = world.open();
    let mut question = Question::default();
    question.parameters.insert("frequency_penalty".into(), json!(1));
    let (_, error) = go_on(&mut *conversation, &question, &cx(true)).await;
    assert!(
        matches!(&error, Some(BackendError::Refused { status: 400, message, .. }) if message.contains("['frequency_penalty']")),
        "{error:?}"
    );
    let error = ask(&mut *conversation, &"long ".repeat(1000)).await.unwrap_err();
    assert!(
        matches!(&error, BackendError::TooLong { message, .. } if message.contains("the model takes 2000")),
        "{error:?}"
    );
    let mut question = Question::default();
    question.tools = vec![tool("f", json!({}))];
    question
        .parameters
        .insert("chat_template".into(), json!("{{ messages }}"));
    let (deltas, error) = go_on(&mut *conversation, &question, &cx(true)).await;
    assert!(error.is_none(), "{error:?}");
    assert!(
        deltas
            .iter()
            .any(|d| matches!(d, Delta::Warning(w) if w.contains("has no place for tools")))
    );
    question.tool_choice = Some("required".into());
    let (_, error) = go_on(&mut *conversation, &question, &cx(true)).await;
    assert!(matches!(&error, Some(BackendError::Config(m)) if m.contains("can't make a model call a tool")));
    for (name, value, words) in [
        ("max_tokens", json!(-1), "`max_tokens` is no number above 0: -1"),
        ("seed", json!("x"), "`seed` is no number"),
        ("chat_template", json!(3), "`chat_template` is no text"),
        ("generation_kwargs", json!([]), "`generation_kwargs` is not a map"),
        ("task", json!("Causal LM"), "`task` is `Causal LM`"),
        (
            "python",
            json!("/bin/sh"),
            "`python` can only be set in an endpoint file of your own",
        ),
    ] {
        let mut question = Question::default();
        question.parameters.insert(name.into(), value);
        let (_, error) = go_on(&mut *conversation, &question, &cx(true)).await;
        assert!(
            matches!(&error, Some(BackendError::Config(m)) if m.contains(words)),
            "{error:?}"
        );
    }
    let picture = Message {
        role: decanus_chat::Role::Image,
        ..Message::user("data:image/png;base64,eA==")
    };
    let (_, error) = go_on(&mut *conversation, &Question::new([picture]), &cx(true)).await;
    assert!(
        matches!(&error, Some(BackendError::Config(m)) if m == "message 1: the backend huggingface takes no pictures")
    );
    assert_eq!(world.loads().len(), 1);
}

async fn failure(profile: Profile) -> String {
    match ask(&mut *open(profile), "hi").await {
        Err(BackendError::Config(message)) => message,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn what_can_not_be_loaded_is_said_in_one_error() {
    let world = World::new(json!({"own code": true}));
    let with = |name: &str, value: Value| {
        let mut profile = world.profile();
        profile.parameters.insert(name.into(), value);
        profile
    };
    let message = failure(world.profile()).await;
    assert!(
        message.contains("brings code of its own, which is not run"),
        "{message}"
    );
    assert_eq!(
        ask(&mut *open(with("trust_remote_code", json!(true))), "hi")
            .await
            .unwrap()
            .text,
        ""
    );

    let message = failure(with("dir", json!("nowhere"))).await;
    assert!(
        message.contains("there is no folder /") && message.ends_with("/nowhere"),
        "{message}"
    );
    let message = failure(with("dir", json!("."))).await;
    assert!(
        message.contains(" holds no config.json: it is no checkpoint of transformers"),
        "{message}"
    );
    let message = failure(with("task", json!("Singing"))).await;
    assert!(message.contains("transformers has no AutoModelForSinging"), "{message}");
    let message = failure(with("torch_dtype", json!("float3"))).await;
    assert!(message.contains("`torch_dtype` is float3"), "{message}");
    let message = failure(with("python", json!("/no/python"))).await;
    assert!(message.contains("/no/python can't be started: "), "{message}");
    let message = failure(with("python", json!(stand_in("python-without")))).await;
    assert!(
        message.contains(" is missing in /") && message.contains("pip install torch transformers"),
        "{message}"
    );

    let mut profile = world.profile();
    profile.parameters.shift_remove("dir");
    profile.model = "org/none".into();
    let message = failure(profile).await;
    assert!(
        message.contains("org/none is not in the cache of Hugging Face")
            && message.contains("`hf download org/none`")
            && message.ends_with("It says: We couldn't connect to the hub to load the files of org/none."),
        "{message}"
    );

    // Something else than Python.
    let error = ask(&mut *open(with("python", json!("/bin/true"))), "hi")
        .await
        .unwrap_err();
    let words = "it was not ready yet: it ended (exit status: 0)";
    assert!(
        matches!(&error, BackendError::Incomplete { reason, .. } if reason == words),
        "{error:?}"
    );
    let error = ask(&mut *open(with("python", json!("/bin/echo"))), "hi")
        .await
        .unwrap_err();
    let text = error.to_string();
    assert!(
        text.contains("instead of that it is ready, it said -c import sys"),
        "{text}"
    );
    let world = World::new(json!({"no template": true}));
    let error = ask(&mut *world.open(), "hi").await.unwrap_err().to_string();
    assert!(error.contains("has no chat template; give `chat_template`"), "{error}");
}

#[tokio::test]
async fn loading_and_computing_have_the_time_of_the_whole_request() {
    let world = World::new(json!({"hi": "ok"}));
    let mut profile = world.profile();
    // Less than any process needs to start: that is no part of waiting for the first byte.
    profile.timeouts.total = Duration::from_millis(10);
    let error = ask(&mut *open(profile), "hi").await.unwrap_err();
    assert!(
        matches!(&error, BackendError::TimedOut { what, .. } if what.starts_with("the whole request may take ")),
        "{error:?}"
    );
}

#[tokio::test]
async fn vectors_are_means_of_states() {
    let world = World::new(json!({"context": 4}));
    let backend = HuggingFaceBackend::new(false);
    let embedder = |more: Value| {
        let mut profile = world.profile();
        profile.parameters.extend(more.as_object().unwrap().clone());
        backend.embedder(Arc::new(profile)).unwrap()
    };
    let texts: Vec<String> = ["a", "bd"].map(str::to_owned).into();
    let made = embedder(json!({})).embed(&texts).await.unwrap();
    assert_eq!(made.vectors, [vec![97.0, 1.0], vec![99.0, 1.0]]);
    assert_eq!((made.usage.pt, made.usage.tt), (Some(3), Some(3)));
    assert!(made.model.unwrap().ends_with("/tiny"));
    let last = embedder(json!({"pooling": "last"})).embed(&texts).await.unwrap();
    assert_eq!(last.vectors[1], [100.0, 1.0]);
    let many: Vec<String> = (0..70).map(|_| "a".to_owned()).collect();
    assert_eq!(embedder(json!({})).embed(&many).await.unwrap().vectors.len(), 70);
    assert_eq!(world.loads().len(), 1);
    for (more, text, words) in [
        (json!({}), "abcde", "it has 5 tokens, and the model takes 4"),
        (json!({}), "", "text 1 has no tokens"),
        (json!({"pooling": "model"}), "a", "makes no vector of its own"),
    ] {
        let error = embedder(more).embed(&[text.to_owned()]).await.unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
}

#[test]
fn endpoints_name_a_checkpoint() {
    let dir = tempfile::tempdir().unwrap();
    let (project, own) = (dir.path().join("project"), dir.path().join("own"));
    let endpoints = |variable: &'static str| {
        Endpoints::with(
            vec![project.clone(), own.clone()],
            Arc::new(move |name| (name == variable).then(|| "org/of-variable".to_owned())),
        )
        .with_own(vec![own.clone()])
    };
    let write = |folder: &PathBuf, text: &str| {
        std::fs::create_dir_all(folder).unwrap();
        std::fs::write(folder.join("mine.yaml"), text).unwrap();
    };
    for variable in ["HUGGINGFACE_MODEL", "HF_MODEL"] {
        assert_eq!(
            endpoints(variable).load("huggingface").unwrap().model,
            "org/of-variable"
        );
    }
    let backend = BackendRegistry::with_http().get("huggingface").unwrap();
    let open = |profile: Profile| backend.open(Arc::new(profile)).err().map(|e| e.to_string());
    let error = open(endpoints("").load("huggingface").unwrap()).unwrap();
    assert!(error.contains("no model is named; give `model`"), "{error}");

    write(&own, "backend: huggingface\ndir: tiny\npython: ./env/bin/python\n");
    let profile = endpoints("HF_MODEL").load("mine").unwrap();
    assert_eq!(open(profile), None, "nothing is started yet");
    assert_eq!(endpoints("HF_MODEL").show("mine").unwrap().model, "tiny");
    assert!(endpoints("").show("mine").unwrap().warnings.is_empty());
    write(&project, "backend: huggingface\ndir: tiny\npython: ./env/bin/python\n");
    let error = open(endpoints("").load("mine").unwrap()).unwrap();
    assert!(error.contains("project/mine.yaml sets `python`"), "{error}");
    write(&project, "backend: huggingface\nmodel: m\nurl: http://127.0.0.1:1\n");
    let error = endpoints("").load("mine").unwrap_err().to_string();
    assert!(error.contains("a checkpoint of transformers has no `url`"), "{error}");
}
