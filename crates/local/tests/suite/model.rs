//! The small model, fetched once and kept between runs.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use decanus_backend::{Backend, BackendError, CallCx, Collector, Conversation, Profile, Response, View};
use decanus_chat::{Example, Message, ToolDefinition};
use decanus_local::{LocalBackend, models};
use futures::StreamExt;
use serde_json::{Map, Value, json};
use tokio_util::sync::CancellationToken;

/// DECANUS_HOME if the model is there, else a folder that the tests share.
pub fn home() -> &'static PathBuf {
    static HOME: OnceLock<PathBuf> = OnceLock::new();
    HOME.get_or_init(|| {
        if let Some(home) = std::env::var_os("DECANUS_HOME").map(PathBuf::from)
            && models::resolve(&home, models::DEFAULT).is_ok()
        {
            return home;
        }
        let cache = std::env::var_os("XDG_CACHE_HOME").map_or_else(std::env::temp_dir, PathBuf::from);
        let home = cache.join("decanus-test");
        let never = CancellationToken::new();
        let pull = models::pull(&home, models::DEFAULT, &|_| {}, &never);
        runtime().block_on(pull).expect("the small model can be fetched");
        home
    })
}

/// Tests take turns: side by side they would only slow each other down.
pub fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

pub fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap()
}

pub fn backend() -> &'static LocalBackend {
    static BACKEND: OnceLock<LocalBackend> = OnceLock::new();
    BACKEND.get_or_init(|| LocalBackend::new(home().clone()))
}

pub fn open(parameters: &Value) -> Box<dyn Conversation> {
    let mut profile = Profile::new("local", "local", "");
    // Two threads would spin on a machine that runs other tests too.
    profile.parameters = json!({"threads": 1}).as_object().cloned().unwrap();
    profile.parameters.extend(parameters.as_object().cloned().unwrap());
    backend().open(Arc::new(profile)).unwrap()
}

pub fn cx() -> CallCx {
    CallCx {
        cancel: CancellationToken::new(),
        timeout: Duration::from_secs(300),
        stream: true,
        explain: true,
        pass: None,
        raw: Default::default(),
    }
}

pub fn ask_with(
    conversation: &mut dyn Conversation,
    messages: &[Message],
    tools: &[ToolDefinition],
    tool_choice: Option<&str>,
    cx: &CallCx,
) -> Result<Response, BackendError> {
    let parameters = Map::new();
    let view = View {
        messages,
        tools,
        parameters: &parameters,
        tool_choice,
    };
    runtime().block_on(async {
        let mut collector = Collector::new();
        let mut stream = conversation.complete(&view, cx);
        while let Some(delta) = stream.next().await {
            collector.push(&delta?);
        }
        Ok(collector.finish())
    })
}

pub fn ask(conversation: &mut dyn Conversation, messages: &[Message], tools: &[ToolDefinition]) -> Response {
    ask_with(conversation, messages, tools, None, &cx()).unwrap()
}

pub fn tools(json: &str) -> Vec<ToolDefinition> {
    let list: Vec<Value> = serde_json::from_str(json).unwrap();
    let example = |e: &Value| Example {
        request: e["request"].as_str().unwrap().into(),
        arguments: e["arguments"].as_object().unwrap().clone(),
    };
    list.iter()
        .map(|t| ToolDefinition {
            name: t["name"].as_str().unwrap().into(),
            description: t["description"].as_str().unwrap().into(),
            parameters: t["parameters"].clone(),
            examples: t["examples"].as_array().unwrap().iter().map(example).collect(),
            ..ToolDefinition::default()
        })
        .collect()
}

/// The tools that every project has, as they are shipped.
pub fn builtins() -> Vec<ToolDefinition> {
    decanus_builtin::tools()
        .iter()
        .map(|t| t.definition().clone())
        .collect()
}

/// The exported tasks of the example project.
pub fn lab() -> Vec<ToolDefinition> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/lab/workflows/Weather");
    let workflow = decanus_workflow::parse::load(&folder).unwrap();
    workflow
        .exported()
        .into_iter()
        .map(|task| workflow.tool_definition(task))
        .collect()
}

pub fn weather() -> Vec<ToolDefinition> {
    tools(include_str!("../data/weather.json"))
}
