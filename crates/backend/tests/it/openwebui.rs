//! Open WebUI.

use decanus_backend::{BackendError, FinishReason};
use decanus_base::Secret;
use decanus_chat::{Message, ProviderParts};
use decanus_testkit::fixtures::Exchange;
use decanus_testkit::{Reply, ScriptedServer};
use serde_json::{Value, json};

use crate::support::{Question, ask_all, call, calls, collect, cx, open, output, profile_of, tool};

#[tokio::test]
async fn what_is_recorded_decodes() {
    for (name, count, finish) in [
        ("openwebui/chat-tools", 2, FinishReason::ToolCalls),
        ("openwebui/chat-tools-stream", 2, FinishReason::ToolCalls),
        ("openwebui/chat-plain-jwt", 0, FinishReason::Length),
    ] {
        let exchange = Exchange::load(name);
        let server = ScriptedServer::start([exchange.reply().every(11)]);
        let base = server.url().trim_end_matches("/v1").to_owned();
        let mut profile = profile_of("openwebui", &base);
        profile.key = Some(Secret::new("sk-1"));
        let (deltas, error) = ask_all(profile, &Question::default(), &cx(exchange.is_stream)).await;
        assert!(error.is_none(), "{name}: {error:?}");
        let response = collect(&deltas);
        assert_eq!(response.calls.len(), count, "{name}");
        assert_eq!(response.finish, Some(finish), "{name}");
        let sent = server.requests().remove(0);
        assert_eq!(sent.path, "/api/chat/completions");
        assert_eq!(sent.header("authorization"), Some("Bearer sk-1"));
        let path = exchange.request["url"].as_str().unwrap();
        assert!(path.ends_with(&sent.path), "{path}");
    }
}

#[tokio::test]
async fn its_errors_are_read() {
    for (name, words) in [
        (
            "openwebui/error-badkey",
            "Your session has expired or the token is invalid",
        ),
        ("openwebui/error-model", "Model not found"),
        ("openwebui/error-unauth", "Not authenticated"),
    ] {
        let exchange = Exchange::load(name);
        let server = ScriptedServer::start([exchange.reply()]);
        let (_, error) = ask_all(profile_of("openwebui", &server.url()), &Question::default(), &cx(false)).await;
        let Some(BackendError::Refused { status, message, .. }) = error else {
            panic!("{name}: {error:?}")
        };
        assert_eq!(status, exchange.status, "{name}");
        assert!(message.contains(words), "{name}: {message}");
    }
    for reply in [
        Exchange::load("openwebui/v1-models-path").reply(),
        Reply::new(200, "application/json", ""),
        Reply::new(200, "application/json", "null"),
    ] {
        let server = ScriptedServer::start([reply]);
        let (_, error) = ask_all(profile_of("openwebui", &server.url()), &Question::default(), &cx(false)).await;
        assert!(matches!(error, Some(BackendError::Malformed { .. })), "{error:?}");
    }
}

#[test]
fn all_ways_to_write_its_url() {
    for url in [
        "http://h:3000",
        "http://h:3000/",
        "http://h:3000/api",
        "http://h:3000/api/",
        "http://h:3000/api/chat/completions",
    ] {
        let dry = open(profile_of("openwebui", url))
            .dry_run(&Question::default().view(), false)
            .unwrap();
        assert_eq!(dry.target, "POST http://h:3000/api/chat/completions", "{url}");
    }
}

#[test]
fn a_request_of_its_own() {
    let parts = |backend: &str| {
        let record = ProviderParts {
            backend: backend.into(),
            model: String::new(),
            parts: vec![json!({"reasoning_content": backend})],
        };
        record.to_message()
    };
    let mut question = Question::new([
        Message::system("Be brief."),
        Message::user("q"),
        parts("openai"),
        call("a", "f", json!({"x": 1})),
        output("a", "1"),
        parts("openwebui"),
        call("b", "f", json!({})),
        output("b", "2"),
    ]);
    question.tools = vec![tool("f", json!({}))];
    let body = open(profile_of("openwebui", "http://h"))
        .dry_run(&question.view(), true)
        .unwrap()
        .body;
    let made = |id: &str, arguments: &str| json!([{"id": id, "type": "function", "function": {"name": "f", "arguments": arguments}}]);
    let expected = json!({
        "model": "scripted",
        "tools": [{"type": "function", "function": {"name": "f", "description": "Does f",
            "parameters": {"type": "object", "properties": {}}}}],
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "q"},
            {"role": "assistant", "content": null, "tool_calls": made("a", "{\"x\":1}")},
            {"role": "tool", "tool_call_id": "a", "content": "1"},
            {"role": "assistant", "content": "", "reasoning_content": "openwebui", "tool_calls": made("b", "{}")},
            {"role": "tool", "tool_call_id": "b", "content": "2"},
        ],
        "stream": true,
        "stream_options": {"include_usage": true},
    });
    assert_eq!(serde_json::from_str::<Value>(&body).unwrap(), expected);
}

#[tokio::test]
async fn a_call_without_an_id_gets_one() {
    let server = ScriptedServer::start([Reply::chat_calls(&[("", "f", json!({}))])]);
    let (deltas, _) = ask_all(profile_of("openwebui", &server.url()), &Question::default(), &cx(false)).await;
    assert_eq!(calls(&collect(&deltas))[0].0, "call_1");
}
