//! What all tests here need.

use std::sync::Arc;
use std::time::Duration;

use decanus_backend::client::Clients;
use decanus_backend::dialect::Dialect;
use decanus_backend::openai::OpenAi;
use decanus_backend::openwebui;
use decanus_backend::responses::Responses;
use decanus_backend::retry::Backoff;
use decanus_backend::vllm::VllmBackend;
use decanus_backend::{
    Backend, BackendError, CallCx, Collector, Conversation, Delta, HttpBackend, Profile, Response, View,
};
use decanus_chat::{FunctionCall, FunctionCallOutput, Message, ToolDefinition};
use decanus_testkit::ScriptedServer;
use futures::StreamExt;
use serde_json::{Map, Value};
use tokio_util::sync::CancellationToken;

/// A backend that does not make tests wait.
pub fn backend() -> HttpBackend<OpenAi> {
    backend_of(OpenAi::default())
}

/// The same for any dialect.
pub fn backend_of<D: Dialect>(dialect: D) -> HttpBackend<D> {
    let first = Duration::from_millis(5);
    HttpBackend::new(dialect, Clients::default()).with_backoff(Backoff {
        first,
        ..Backoff::default()
    })
}

pub fn profile(url: &str) -> Profile {
    profile_of("openai", url)
}

pub fn profile_of(backend: &str, url: &str) -> Profile {
    let mut profile = Profile::new("test", backend, "scripted");
    profile.url = url.into();
    profile
}

/// Opens an endpoint with the backend that it names.
pub fn open(profile: Profile) -> Box<dyn Conversation> {
    let clients = Clients::default;
    let backoff = Backoff {
        first: Duration::from_millis(5),
        ..Backoff::default()
    };
    let backend: Box<dyn Backend> = match profile.backend.as_str() {
        "openwebui" => Box::new(HttpBackend::new(openwebui::dialect(), clients()).with_backoff(backoff)),
        "responses" => Box::new(HttpBackend::new(Responses::default(), clients()).with_backoff(backoff)),
        "vllm" => Box::new(VllmBackend::new(clients()).with_backoff(backoff)),
        _ => Box::new(backend()),
    };
    backend.open(Arc::new(profile)).unwrap()
}

pub fn cx(stream: bool) -> CallCx {
    CallCx {
        cancel: CancellationToken::new(),
        timeout: Duration::from_secs(30),
        stream,
        explain: false,
        pass: None,
        raw: Default::default(),
    }
}

/// Messages and tools with nothing else.
pub struct Question {
    pub messages: Vec<Message>,
    pub tools: Vec<ToolDefinition>,
    pub parameters: Map<String, Value>,
    pub tool_choice: Option<String>,
}

impl Question {
    pub fn new(messages: impl Into<Vec<Message>>) -> Self {
        Self {
            messages: messages.into(),
            tools: Vec::new(),
            parameters: Map::new(),
            tool_choice: None,
        }
    }

    pub fn view(&self) -> View<'_> {
        View {
            messages: &self.messages,
            tools: &self.tools,
            parameters: &self.parameters,
            tool_choice: self.tool_choice.as_deref(),
        }
    }
}

impl Default for Question {
    fn default() -> Self {
        Self::new([Message::user("hi")])
    }
}

pub fn tool(name: &str, parameters: Value) -> ToolDefinition {
    ToolDefinition {
        name: name.into(),
        description: format!("Does {name}"),
        parameters,
        ..Default::default()
    }
}

pub fn call(id: &str, name: &str, arguments: Value) -> Message {
    let arguments = decanus_chat::Arguments::from_value(Some(&arguments));
    FunctionCall {
        id: id.into(),
        name: name.into(),
        arguments,
    }
    .to_message()
}

pub fn output(id: &str, content: &str) -> Message {
    FunctionCallOutput {
        id: id.into(),
        content: content.into(),
        ..Default::default()
    }
    .to_message()
}

/// Asks, and gives what arrived with the error if there was one.
pub async fn ask_all(profile: Profile, question: &Question, cx: &CallCx) -> (Vec<Delta>, Option<BackendError>) {
    go_on(&mut *open(profile), question, cx).await
}

/// Asks in a conversation that is open.
pub async fn go_on(
    conversation: &mut dyn Conversation,
    question: &Question,
    cx: &CallCx,
) -> (Vec<Delta>, Option<BackendError>) {
    let view = question.view();
    let mut stream = conversation.complete(&view, cx);
    let mut deltas = Vec::new();
    while let Some(delta) = stream.next().await {
        match delta {
            Ok(delta) => deltas.push(delta),
            Err(error) => {
                assert!(stream.next().await.is_none(), "an error is the last item");
                return (deltas, Some(error));
            }
        }
    }
    assert!(matches!(deltas.last(), Some(Delta::Finish(_))), "{deltas:?}");
    (deltas, None)
}

pub fn collect(deltas: &[Delta]) -> Response {
    let mut collector = Collector::new();
    deltas.iter().for_each(|d| collector.push(d));
    collector.finish()
}

pub async fn ask(server: &ScriptedServer, stream: bool) -> Result<Response, BackendError> {
    match ask_all(profile(&server.url()), &Question::default(), &cx(stream)).await {
        (deltas, None) => Ok(collect(&deltas)),
        (_, Some(error)) => Err(error),
    }
}

/// Names, ids and arguments of the calls.
pub fn calls(response: &Response) -> Vec<(String, String, String)> {
    response
        .calls
        .iter()
        .map(|c| (c.id.clone(), c.name.clone(), c.arguments.to_text()))
        .collect()
}
