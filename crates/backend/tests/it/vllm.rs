//! vLLM in both its protocols.

use decanus_backend::profile::Api;
use decanus_backend::{FinishReason, Profile, Response};
use decanus_chat::{Message, ProviderParts};
use decanus_testkit::fixtures::{Exchange, case};
use decanus_testkit::{Reply, ScriptedServer};
use serde_json::{Value, json};

use crate::support::{Question, ask_all, call, calls, collect, cx, open, output, profile_of, tool};

fn profile(url: &str, api: Option<Api>) -> Profile {
    let mut profile = profile_of("vllm", url);
    profile.api = api;
    profile
}

fn question() -> Question {
    let mut question = Question::default();
    question.tools = vec![tool("get_weather", json!({})), tool("a.b", json!({}))];
    question
}

async fn ask(reply: Reply, api: Option<Api>, stream: bool) -> Response {
    let server = ScriptedServer::start([reply]);
    let (deltas, error) = ask_all(profile(&server.url(), api), &question(), &cx(stream)).await;
    assert!(error.is_none(), "{error:?}");
    collect(&deltas)
}

fn responses(item: &Value) -> Reply {
    Reply::json(
        200,
        &json!({"id": "r", "model": "m", "status": "completed", "output": [item]}),
    )
}

#[tokio::test]
async fn the_endpoint_chooses_the_protocol() {
    for (api, path, name) in [
        (None, "/v1/responses", "vllm/responses-tools-stream"),
        (Some(Api::Responses), "/v1/responses", "vllm/responses-tools"),
        (
            Some(Api::Chat),
            "/v1/chat/completions",
            "vllm/chat-tools-required-stream",
        ),
        (Some(Api::Chat), "/v1/chat/completions", "vllm/chat-tools-required"),
    ] {
        let exchange = Exchange::load(name);
        let server = ScriptedServer::start([exchange.reply().every(7)]);
        let (deltas, error) = ask_all(profile(&server.url(), api), &question(), &cx(exchange.is_stream)).await;
        assert!(error.is_none(), "{name}: {error:?}");
        let response = collect(&deltas);
        assert_eq!(server.requests()[0].path, path);
        assert_eq!(response.calls.len(), 1, "{name}");
        assert_eq!(calls(&response)[0].1, "get_weather");
        assert_eq!(response.finish, Some(FinishReason::ToolCalls), "{name}");
        assert!(response.usage.tt.is_some() || exchange.is_stream, "{name}");
    }
}

#[tokio::test]
async fn a_mark_of_a_channel_is_no_part_of_a_name() {
    let item =
        json!({"type": "function_call", "call_id": "c", "name": "get_weather<|channel|>commentary", "arguments": "{}"});
    assert_eq!(calls(&ask(responses(&item), None, false).await)[0].1, "get_weather");
    let marked = [("c", "get_weather<|channel|>json", json!({"x": 1}))];
    for (reply, stream) in [
        (Reply::chat_calls(&marked), false),
        (Reply::chat_call_stream(&marked), true),
    ] {
        let response = ask(reply, Some(Api::Chat), stream).await;
        assert_eq!(
            calls(&response),
            [("c".into(), "get_weather".into(), r#"{"x":1}"#.into())]
        );
    }
}

#[tokio::test]
async fn printed_calls_are_calls_when_nothing_else_is_said() {
    let printed =
        "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"id\": 7340017340017340017}}\n</tool_call>\n";
    let is = [(
        "call_1".to_owned(),
        "get_weather".to_owned(),
        r#"{"id":7340017340017340017}"#.to_owned(),
    )];
    let pieces: Vec<String> = printed.chars().map(String::from).collect();
    let pieces: Vec<&str> = pieces.iter().map(String::as_str).collect();
    let message = json!({"type": "message", "content": [{"type": "output_text", "text": printed}]});
    for (reply, api, stream) in [
        (Reply::chat_text(printed), Some(Api::Chat), false),
        (Reply::chat_stream(&pieces), Some(Api::Chat), true),
        (responses(&message), None, false),
    ] {
        let response = ask(reply, api, stream).await;
        assert_eq!(calls(&response), is);
        assert_eq!(
            (response.text.as_str(), response.finish),
            ("", Some(FinishReason::ToolCalls))
        );
    }
    // A name in the form in which it was sent.
    let wire = {
        let body = open(profile("http://127.0.0.1:9/v1", None))
            .dry_run(&question().view(), false)
            .unwrap()
            .body;
        serde_json::from_str::<Value>(&body).unwrap()["tools"][0]["name"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    let text = format!(r#"<tool_call>{{"name":"{wire}","arguments":{{}}}}</tool_call>"#);
    assert_eq!(
        calls(&ask(Reply::chat_text(&text), Some(Api::Chat), false).await)[0].1,
        "a.b"
    );
}

#[tokio::test]
async fn any_other_text_stays_text() {
    for text in [
        "<tool_call>{\"name\":\"get_weather\",\"arguments\":{}}",
        "<tool_call>{\"name\":\"other\",\"arguments\":{}}</tool_call>",
        "<tool_call>{\"name\":\"get_weather\",\"arguments\":{}}</tool_call> would do it.",
        "  <b>bold</b>",
        "<tool",
    ] {
        let pieces: Vec<String> = text.chars().map(String::from).collect();
        let pieces: Vec<&str> = pieces.iter().map(String::as_str).collect();
        for (reply, stream) in [(Reply::chat_text(text), false), (Reply::chat_stream(&pieces), true)] {
            let response = ask(reply, Some(Api::Chat), stream).await;
            assert_eq!((response.text.as_str(), response.calls.len()), (text, 0));
            assert_eq!(response.finish, Some(FinishReason::Stop));
        }
    }
    // Nothing may be called: neither without tools nor when that was asked for.
    let text = "<tool_call>{\"name\":\"get_weather\",\"arguments\":{}}</tool_call>";
    let mut forbidden = question();
    forbidden.tool_choice = Some("none".into());
    for question in [Question::default(), forbidden] {
        let server = ScriptedServer::start([Reply::chat_text(text)]);
        let (deltas, _) = ask_all(profile(&server.url(), Some(Api::Chat)), &question, &cx(false)).await;
        assert_eq!(collect(&deltas).text, text);
    }
    // What had come of a text is given out when the stream breaks.
    let broken = "data: {\"choices\":[{\"delta\":{\"content\":\"<tool_call>{\"}}]}\n\n";
    let server = ScriptedServer::start([Reply::sse(broken)]);
    let mut profile = profile(&server.url(), Some(Api::Chat));
    profile.retries = 0;
    let (deltas, error) = ask_all(profile, &question(), &cx(true)).await;
    assert!(error.is_some());
    assert_eq!(collect(&deltas).text, "<tool_call>{");
}

#[tokio::test]
async fn c20_broken_arguments_stay_broken() {
    let response = ask(Reply::sse(case("C20.sse")), Some(Api::Chat), true).await;
    assert_eq!(calls(&response)[0].2, "{\"id\": 42");
}

/// What one protocol made is of no use to the other.
#[test]
fn parts_of_one_protocol_are_not_sent_in_the_other() {
    let item =
        json!({"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "r"}]});
    let text = json!({"reasoning_content": "r"});
    let record = ProviderParts {
        backend: "vllm".into(),
        model: String::new(),
        parts: vec![item.clone(), text],
    };
    let mut question = question();
    question.messages = vec![
        Message::user("q"),
        record.to_message(),
        call("a", "get_weather", json!({})),
        output("a", "1"),
        Message::assistant("one"),
        Message::user("u"),
    ];
    let body = |api| {
        let body = open(profile("http://127.0.0.1:9/v1", api))
            .dry_run(&question.view(), false)
            .unwrap()
            .body;
        serde_json::from_str::<Value>(&body).unwrap()
    };
    let called = json!({"type": "function_call", "call_id": "a", "name": "get_weather", "arguments": "{}"});
    assert_eq!(
        body(None)["input"],
        json!([
            {"role": "user", "content": "q"},
            item,
            called,
            {"type": "function_call_output", "call_id": "a", "output": "1"},
            {"type": "message", "role": "assistant", "content": "one"},
            {"role": "user", "content": "u"},
        ])
    );
    let function = json!({"name": "get_weather", "arguments": "{}"});
    assert_eq!(
        body(Some(Api::Chat))["messages"][1],
        json!({"role": "assistant", "content": "", "reasoning_content": "r",
            "tool_calls": [{"id": "a", "type": "function", "function": function}]})
    );
}
