//! What all tests here need.

use std::sync::Arc;
use std::time::Duration;

use aws_smithy_eventstream::frame::write_message_to;
use aws_smithy_types::event_stream::{Header, HeaderValue, Message as Frame};
use decanus_backend::retry::Backoff;
use decanus_backend::{Aws, Backend, BackendError, CallCx, Collector, Conversation, Delta, Profile, Response, View};
use decanus_base::Secret;
use decanus_bedrock::BedrockBackend;
use decanus_chat::{Arguments, FunctionCall, FunctionCallOutput, Message, ToolDefinition};
use decanus_testkit::reply::Framing;
use decanus_testkit::{Reply, ScriptedServer};
use futures::StreamExt;
use serde_json::{Map, Value, json};
use tokio_util::sync::CancellationToken;

pub const CLAUDE: &str = "eu.anthropic.claude-sonnet-4-5-20250929-v1:0";
pub const LLAMA: &str = "us.meta.llama3-3-70b-instruct-v1:0";

/// A backend that does not make tests wait.
pub fn backend() -> BedrockBackend {
    BedrockBackend::new().with_backoff(Backoff {
        first: Duration::from_millis(5),
        ..Backoff::default()
    })
}

/// An endpoint as its file gives it, with keys of its own.
pub fn profile(url: &str) -> Profile {
    let mut profile = Profile::new("test", "bedrock", CLAUDE);
    profile.url = url.trim_end_matches('/').into();
    profile.aws = Some(Aws {
        region: Some("eu-west-1".into()),
        access_key: Some(Secret::new("AKIDEXAMPLE")),
        secret_key: Some(Secret::new("wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY")),
        url_of_file: true,
        ..Aws::default()
    });
    profile
}

pub fn open(profile: Profile) -> Box<dyn Conversation> {
    backend().open(Arc::new(profile)).unwrap()
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

/// What is asked, with nothing else.
pub struct Question {
    pub model: &'static str,
    pub messages: Vec<Message>,
    pub tools: Vec<ToolDefinition>,
    pub parameters: Map<String, Value>,
    pub tool_choice: Option<&'static str>,
}

impl Question {
    pub fn new(messages: impl Into<Vec<Message>>) -> Self {
        Self {
            model: CLAUDE,
            messages: messages.into(),
            tools: Vec::new(),
            parameters: Map::new(),
            tool_choice: None,
        }
    }

    pub fn with(parameters: Value) -> Self {
        let mut question = Self::new([Message::user("hi")]);
        question.parameters = parameters.as_object().unwrap().clone();
        question
    }

    pub fn of(mut self, model: &'static str) -> Self {
        self.model = model;
        self
    }

    pub fn view(&self) -> View<'_> {
        View {
            messages: &self.messages,
            tools: &self.tools,
            parameters: &self.parameters,
            tool_choice: self.tool_choice,
        }
    }

    /// The request that would be sent.
    pub fn dry(&self) -> Result<Value, BackendError> {
        let mut profile = profile("http://127.0.0.1:9");
        profile.model = self.model.into();
        let body = open(profile).dry_run(&self.view(), true)?.body;
        Ok(serde_json::from_str(&body).unwrap())
    }

    pub fn body(&self) -> Value {
        self.dry().unwrap()
    }
}

pub fn tool(name: &str) -> ToolDefinition {
    ToolDefinition {
        name: name.into(),
        description: format!("Does {name}"),
        parameters: json!({"type": "object", "properties": {"x": {"type": "integer"}}}),
        ..Default::default()
    }
}

pub fn call(id: &str, name: &str, arguments: &str) -> Message {
    FunctionCall {
        id: id.into(),
        name: name.into(),
        arguments: Arguments::from_text(arguments),
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
pub async fn ask_at(profile: Profile, cx: &CallCx) -> (Vec<Delta>, Option<BackendError>) {
    let question = Question::new([Message::user("hi")]);
    let mut conversation = open(profile);
    let view = question.view();
    let mut stream = conversation.complete(&view, cx);
    let mut deltas = Vec::new();
    while let Some(delta) = stream.next().await {
        match delta {
            Ok(delta) => deltas.push(delta),
            Err(error) => return (deltas, Some(error)),
        }
    }
    assert!(matches!(deltas.last(), Some(Delta::Finish(_))), "{deltas:?}");
    (deltas, None)
}

pub async fn ask(server: &ScriptedServer, stream: bool) -> Result<Response, BackendError> {
    match ask_at(profile(&server.url()), &cx(stream)).await {
        (_, Some(error)) => Err(error),
        (deltas, None) => {
            let mut collector = Collector::new();
            deltas.iter().for_each(|d| collector.push(d));
            Ok(collector.finish())
        }
    }
}

/// One frame of an event stream.
pub fn frame(kind: &str, name: &str, payload: &Value) -> Vec<u8> {
    let text = |text: &str| HeaderValue::String(text.to_owned().into());
    let named = if kind == "exception" {
        ":exception-type"
    } else {
        ":event-type"
    };
    let message = Frame::new(payload.to_string())
        .add_header(Header::new(":message-type", text(kind)))
        .add_header(Header::new(named, text(name)))
        .add_header(Header::new(":content-type", text("application/json")));
    let mut bytes = Vec::new();
    write_message_to(&message, &mut bytes).unwrap();
    bytes
}

/// An event stream of these events.
pub fn events(events: &[(&str, Value)]) -> Vec<u8> {
    events
        .iter()
        .flat_map(|(name, payload)| frame("event", name, payload))
        .collect()
}

/// An answer that is an event stream.
pub fn stream(bytes: impl Into<Vec<u8>>) -> Reply {
    Reply::new(200, "application/vnd.amazon.eventstream", bytes).framed(Framing::Chunked)
}

/// The body of a whole answer.
pub fn answer(content: Value, reason: &str) -> Value {
    json!({
        "output": {"message": {"role": "assistant", "content": content}},
        "stopReason": reason,
        "usage": {"inputTokens": 30, "outputTokens": 14, "totalTokens": 47, "cacheReadInputTokens": 2, "cacheWriteInputTokens": 1},
        "metrics": {"latencyMs": 3},
    })
}
