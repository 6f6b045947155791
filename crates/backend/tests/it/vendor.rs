//! What the tests of all dialects but the first need.

use std::sync::Arc;
use std::time::Duration;

use decanus_backend::client::Clients;
use decanus_backend::dialect::{Dialect, Fault};
use decanus_backend::retry::Backoff;
use decanus_backend::sse::SseDecoder;
use decanus_backend::{Backend, BackendError, CallCx, Collector, Conversation, Delta, HttpBackend, Profile, Response};
use decanus_chat::Message;
use decanus_testkit::{Recorded, Reply, ScriptedServer};
use futures::StreamExt;
use serde_json::Value;

use crate::support::{Question, call, collect, output};

/// An endpoint of a server in a test.
pub fn profile(dialect: &impl Dialect, url: &str) -> Profile {
    let mut profile = Profile::new("test", dialect.name(), "scripted");
    profile.url = url.into();
    profile
}

pub fn open(dialect: impl Dialect, profile: Profile) -> Box<dyn Conversation> {
    let backoff = Backoff {
        first: Duration::from_millis(5),
        ..Backoff::default()
    };
    let backend = HttpBackend::new(dialect, Clients::default()).with_backoff(backoff);
    backend.open(Arc::new(profile)).unwrap()
}

/// The body that would be sent.
pub fn body(dialect: impl Dialect, profile: Profile, question: &Question) -> Value {
    let dry = open(dialect, profile).dry_run(&question.view(), false).unwrap();
    serde_json::from_str(&dry.body).unwrap()
}

/// Asks, and gives what arrived with the error if there was one.
pub async fn ask(
    mut conversation: Box<dyn Conversation>,
    question: &Question,
    cx: &CallCx,
) -> (Response, Option<BackendError>) {
    let view = question.view();
    let mut stream = conversation.complete(&view, cx);
    let mut collector = Collector::new();
    while let Some(delta) = stream.next().await {
        match delta {
            Ok(delta) => collector.push(&delta),
            Err(error) => return (collector.finish(), Some(error)),
        }
    }
    (collector.finish(), None)
}

/// Asks a server that gives one reply, and gives what was sent, too.
pub async fn exchange(dialect: impl Dialect, reply: Reply, question: &Question, cx: &CallCx) -> (Response, Recorded) {
    let server = ScriptedServer::start([reply]);
    let profile = profile(&dialect, &server.url());
    let (response, error) = ask(open(dialect, profile), question, cx).await;
    assert!(error.is_none(), "{error:?}");
    (response, server.requests().remove(0))
}

/// A whole body, decoded.
pub fn whole(dialect: &impl Dialect, body: &[u8]) -> Result<Response, Fault> {
    dialect.decode(body).map(|deltas| collect(&deltas))
}

/// A stream in these pieces, decoded.
pub fn pieces(dialect: &impl Dialect, pieces: &[&[u8]]) -> Result<Response, Fault> {
    let (mut sse, mut decoder) = (SseDecoder::new(), dialect.decoder());
    let (mut events, mut deltas) = (Vec::new(), Vec::new());
    for piece in pieces {
        sse.push(piece, &mut events).unwrap();
    }
    events.extend(sse.finish().unwrap());
    let mut over = false;
    for event in &events {
        over = over || decoder.event(event, &mut deltas)?;
    }
    if !over {
        decoder.end(&mut deltas)?;
    }
    let ends = deltas.iter().filter(|d| matches!(d, Delta::Finish(_))).count();
    assert!(
        ends == 1 && matches!(deltas.last(), Some(Delta::Finish(_))),
        "{deltas:?}"
    );
    Ok(collect(&deltas))
}

/// A stream, decoded; cut at every byte, and byte by byte, it must give the same.
pub fn stream(dialect: &impl Dialect, bytes: &[u8]) -> Result<Response, Fault> {
    let expected = pieces(dialect, &[bytes]);
    for cut in 0..=bytes.len() {
        assert_eq!(
            pieces(dialect, &[&bytes[..cut], &bytes[cut..]]),
            expected,
            "cut at {cut}"
        );
    }
    assert_eq!(pieces(dialect, &bytes.chunks(1).collect::<Vec<_>>()), expected);
    expected
}

/// Messages from a history in OpenAI's form.
pub fn history(messages: &Value) -> Vec<Message> {
    let mut out = Vec::new();
    for message in messages.as_array().unwrap() {
        let text = message["content"].as_str().unwrap_or_default();
        match message["role"].as_str().unwrap() {
            "system" => out.push(Message::system(text)),
            "user" => out.push(Message::user(text)),
            "tool" => out.push(output(message["tool_call_id"].as_str().unwrap(), text)),
            _ => {
                for c in message["tool_calls"].as_array().into_iter().flatten() {
                    let name = c["function"]["name"].as_str().unwrap();
                    out.push(call(
                        c["id"].as_str().unwrap(),
                        name,
                        c["function"]["arguments"].clone(),
                    ));
                }
                if !text.is_empty() {
                    out.push(Message::assistant(text));
                }
            }
        }
    }
    out
}
