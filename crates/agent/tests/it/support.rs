//! What all tests here need.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use decanus_agent::{Agent, Outcome, Request};
use decanus_backend::client::Clients;
use decanus_backend::openai::OpenAi;
use decanus_backend::retry::Backoff;
use decanus_backend::{Backend, HttpBackend, Profile};
use decanus_chat::{
    Effect, FunctionCall, FunctionCallOutput, MemoryTranscript, Message, Meta, Role, StoreError, Transcript, Version,
};
use decanus_testkit::ScriptedServer;
use decanus_tool::run::Limits;
use decanus_tool::{Event, FnTool, Run, Tool, ToolError, ToolRegistry};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

/// Arguments of the test tools.
#[derive(Deserialize, JsonSchema)]
pub struct Args {
    pub text: Option<String>,
    pub ms: Option<u64>,
}

/// How often each kind of thing happened inside the tools.
#[derive(Default)]
pub struct Counts {
    pub calls: AtomicUsize,
    pub now: AtomicUsize,
    pub most: AtomicUsize,
}

/// A tool that waits for `ms`, then gives `text` back.
pub fn work(name: &str, effect: Effect, counts: &Arc<Counts>) -> Arc<dyn Tool> {
    let counts = counts.clone();
    let tool = FnTool::new(name, "Gives the text back", move |args: Args, _| {
        let counts = counts.clone();
        async move {
            counts.calls.fetch_add(1, Ordering::SeqCst);
            counts
                .most
                .fetch_max(counts.now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            tokio::time::sleep(Duration::from_millis(args.ms.unwrap_or(0))).await;
            counts.now.fetch_sub(1, Ordering::SeqCst);
            Ok::<_, ToolError>(args.text.unwrap_or_else(|| "done".into()))
        }
    });
    Arc::new(tool.effect(effect))
}

/// A tool made of a closure without arguments of interest.
pub fn simple<F>(name: &str, effect: Effect, function: F) -> Arc<dyn Tool>
where
    F: Fn() -> Result<Value, ToolError> + Send + Sync + 'static,
{
    let function = Arc::new(function);
    let tool = FnTool::new(name, "", move |_: Args, _| {
        let function = function.clone();
        async move { function() }
    });
    Arc::new(tool.effect(effect))
}

pub fn registry(tools: impl IntoIterator<Item = Arc<dyn Tool>>) -> Arc<ToolRegistry> {
    Arc::new(ToolRegistry::new(tools.into_iter().map(|t| ("test".to_owned(), t))))
}

/// An agent that asks a server and never waits long between tries.
pub fn agent(server: &ScriptedServer, tools: impl IntoIterator<Item = Arc<dyn Tool>>) -> Agent {
    let backoff = Backoff {
        first: Duration::from_millis(5),
        ..Backoff::default()
    };
    let mut profile = Profile::new("test", "openai", "scripted");
    profile.url = server.url();
    let backend = HttpBackend::new(OpenAi::default(), Clients::default()).with_backoff(backoff);
    let conversation = backend.open(Arc::new(profile)).unwrap();
    Agent::new(conversation, registry(tools), "scripted")
}

/// A run with everything at hand that a test looks at.
pub struct Bench {
    pub folder: tempfile::TempDir,
    pub limits: Limits,
    pub cancel: CancellationToken,
    pub events: Arc<Mutex<Vec<Event>>>,
}

impl Bench {
    pub fn new() -> Self {
        Self {
            folder: tempfile::tempdir().unwrap(),
            limits: Limits::default(),
            cancel: CancellationToken::new(),
            events: Arc::default(),
        }
    }

    pub fn run(&self) -> Run {
        let events = self.events.clone();
        Run::builder(self.folder.path().join("results"))
            .limits(self.limits.clone())
            .cancel(self.cancel.clone())
            .events(Arc::new(move |event: &Event| {
                events.lock().unwrap().push(event.clone())
            }))
            .build()
    }

    pub async fn ask(&self, agent: &mut Agent, question: &str) -> (Outcome, MemoryTranscript) {
        let request = Request {
            question: Some(question.into()),
            ..Request::default()
        };
        self.go(agent, request).await
    }

    pub async fn go(&self, agent: &mut Agent, request: Request) -> (Outcome, MemoryTranscript) {
        let mut store = MemoryTranscript::default();
        let outcome = agent.run(request, &mut store, &self.run()).await;
        (outcome, store)
    }
}

/// A store that fails at its n-th append, counted from 1, and at all later ones.
pub struct Failing {
    pub inner: MemoryTranscript,
    pub at: usize,
    pub appends: usize,
}

impl Failing {
    pub fn at(at: usize) -> Self {
        Self {
            inner: MemoryTranscript::default(),
            at,
            appends: 0,
        }
    }
}

impl Transcript for Failing {
    fn append(&mut self, meta: &Meta, step: &[Message], expect: Version) -> Result<Version, StoreError> {
        self.appends += 1;
        if self.appends >= self.at {
            return Err(std::io::Error::other("No space left on device").into());
        }
        self.inner.append(meta, step, expect)
    }

    fn version(&self) -> Version {
        self.inner.version()
    }
}

/// Roles of the messages without metas.
pub fn roles(messages: &[Message]) -> Vec<&'static str> {
    messages
        .iter()
        .filter(|m| m.role != Role::Meta)
        .map(|m| m.role.as_str())
        .collect()
}

pub fn outputs(messages: &[Message]) -> Vec<FunctionCallOutput> {
    messages
        .iter()
        .filter(|m| m.role == Role::FunctionCallOutput)
        .map(|m| FunctionCallOutput::from_message(m).unwrap())
        .collect()
}

pub fn calls(messages: &[Message]) -> Vec<FunctionCall> {
    messages
        .iter()
        .filter(|m| m.role == Role::FunctionCall)
        .map(|m| FunctionCall::from_message(m).unwrap())
        .collect()
}

/// Checks that every call has exactly one output and every output its call.
pub fn assert_paired(messages: &[Message]) {
    let mut called: Vec<String> = calls(messages).into_iter().map(|c| c.id).collect();
    let mut answered: Vec<String> = outputs(messages).into_iter().map(|o| o.id).collect();
    called.sort();
    answered.sort();
    assert_eq!(called, answered, "{messages:#?}");
}

/// The messages of the n-th request, counted from 0.
pub fn sent(server: &ScriptedServer, n: usize) -> Value {
    server.requests()[n].json()["messages"].clone()
}

/// The output texts of the n-th request, in the order of the request.
pub fn sent_outputs(server: &ScriptedServer, n: usize) -> Vec<(String, String)> {
    let text = |v: &Value| v.as_str().unwrap().to_owned();
    sent(server, n)
        .as_array()
        .unwrap()
        .iter()
        .filter(|m| m["role"] == "tool")
        .map(|m| (text(&m["tool_call_id"]), text(&m["content"])))
        .collect()
}

pub fn call(id: &str, name: &str, args: Value) -> Message {
    FunctionCall {
        id: id.into(),
        name: name.into(),
        arguments: decanus_chat::Arguments::from_value(Some(&args)),
    }
    .to_message()
}

pub fn none() -> Value {
    json!({})
}
