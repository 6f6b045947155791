//! Anthropic's Messages: what servers sent, and what went wrong elsewhere.

use std::time::Duration;

use decanus_backend::anthropic::Anthropic;
use decanus_backend::dialect::{Dialect, Fault};
use decanus_backend::{BackendError, FinishReason, Response};
use decanus_chat::Message;
use decanus_testkit::fixtures::{Exchange, case, case_json};
use decanus_testkit::{Piece, Recorded, Reply, ScriptedServer};
use serde_json::{Value, json};

use crate::support::{Question, calls, cx, tool};
use crate::vendor::{ask, body, exchange, history, open, profile, stream, whole};

fn anthropic() -> Anthropic {
    Anthropic::default()
}

fn decode(exchange: &Exchange) -> Response {
    let decoded = match exchange.is_stream {
        true => stream(&anthropic(), &exchange.body),
        false => whole(&anthropic(), &exchange.body),
    };
    decoded.unwrap_or_else(|e| panic!("{}: {e:?}", exchange.name))
}

#[test]
fn recorded_answers() {
    let two = [r#"{"city":"Paris"}"#; 2];
    let counts = [
        ("litellm/messages-tools", &two[..], [1, 63, 64]),
        ("litellm/messages-tools-stream", &two, [1, 63, 64]),
        ("xllamacpp/messages-tools", &two, [1, 63, 64]),
        ("xllamacpp/messages-tools-stream", &two, [1, 63, 64]),
        ("openwebui/messages-stream", &two, [256, 0, 256]),
        ("vllm/messages-tools", &two[..1], [256, 31, 287]),
        ("vllm/messages-tools-stream", &two[..1], [256, 31, 287]),
        (
            "llm-katan/anthropic-messages-tools-stream",
            &[r#"{"city":"test_city","unit":"c"}"#],
            [22, 17, 39],
        ),
    ];
    for (name, arguments, tokens) in counts {
        let response = decode(&Exchange::load(name));
        let calls = calls(&response);
        let given: Vec<&str> = calls.iter().map(|c| c.2.as_str()).collect();
        assert_eq!(given, arguments, "{name}");
        assert!(calls.iter().all(|c| c.1 == "get_weather" && !c.0.is_empty()), "{name}");
        let usage = response.usage;
        assert_eq!([usage.pt, usage.ct, usage.tt], tokens.map(Some), "{name}");
        assert_eq!(response.finish, Some(FinishReason::ToolCalls), "{name}");
        assert!(response.id.is_some() && response.parts.is_empty(), "{name}");
        assert_eq!(response.model.as_deref(), Some("smollm2"), "{name}");
    }
    assert_eq!(
        decode(&Exchange::load("litellm/messages-tools-stream")).usage.cct,
        Some(255)
    );
    let response = decode(&Exchange::load("litellm/mock-messages"));
    assert_eq!(response.text, "This is a mock response.");
    assert_eq!(response.finish, Some(FinishReason::Stop));
    let seen = Exchange::all();
    let seen = seen
        .iter()
        .filter(|e| e.request["url"].as_str().unwrap().ends_with("/messages"));
    assert_eq!(seen.count(), counts.len() + 2, "a recording without an expectation");
}

#[test]
fn thinking_is_reasoning_and_comes_back_as_it_was() {
    let response = whole(&anthropic(), &case("anthropic-thinking.json")).unwrap();
    assert_eq!(stream(&anthropic(), &case("anthropic-thinking.sse")).unwrap(), response);
    let content = &case_json("anthropic-thinking.json")["content"];
    assert_eq!(response.parts, content.as_array().unwrap()[..2]);
    assert_eq!(
        (response.reasoning.as_str(), response.text.as_str()),
        ("Look it up.", "One moment.")
    );
    let expected = [
        (
            "toolu_1".to_owned(),
            "temperature".to_owned(),
            r#"{"city":"Oslo","id":7340017340017340017}"#.to_owned(),
        ),
        ("toolu_2".into(), "today".into(), "{}".into()),
    ];
    assert_eq!(calls(&response), expected);
    let usage = response.usage;
    assert_eq!(
        (usage.pt, usage.ct, usage.tt, usage.cct, usage.cwt),
        (Some(30), Some(14), Some(44), Some(2), Some(1))
    );
}

#[test]
fn thinking_without_a_signature_is_dropped() {
    let body = br#"{"type":"message","content":[{"type":"thinking","thinking":"hm","signature":""},{"type":"text","text":"a"}]}"#;
    let response = whole(&anthropic(), body).unwrap();
    assert_eq!((response.reasoning.as_str(), response.parts.len()), ("hm", 0));
}

#[test]
fn c17_c32_c35_answers_of_odd_content() {
    let response = whole(&anthropic(), &case("C17.anthropic.json")).unwrap();
    assert!(response.text.is_empty() && response.calls.is_empty());
    assert_eq!(response.finish, Some(FinishReason::ToolCalls));

    let response = whole(&anthropic(), &case("C32.response.json")).unwrap();
    assert_eq!(calls(&response), [("toolu_1".into(), "today".into(), "{}".into())]);
    assert_eq!(response.text.trim(), "");

    let response = whole(&anthropic(), &case("C35.unknown.json")).unwrap();
    assert_eq!(response.finish, Some(FinishReason::Other("brand_new_reason".into())));
    assert_eq!(response.text, "hi");
    assert_eq!(response.parts, [json!({"type": "brand_new_block", "payload": 1})]);

    let response = stream(&anthropic(), &case("C35.refusal.sse")).unwrap();
    assert_eq!(response.finish, Some(FinishReason::ContentFilter));
    assert_eq!(response.text, "declined");
    for (word, reason) in [
        ("pause_turn", FinishReason::Paused),
        ("model_context_window_exceeded", FinishReason::Length),
        ("max_tokens", FinishReason::Length),
        ("stop_sequence", FinishReason::Stop),
    ] {
        let body = json!({"type": "message", "content": [], "stop_reason": word}).to_string();
        assert_eq!(whole(&anthropic(), body.as_bytes()).unwrap().finish, Some(reason));
    }
}

#[tokio::test]
async fn c34_overloaded_within_a_stream() {
    // Nothing had been given out: tried again.
    let server = ScriptedServer::start([
        Reply::sse(case("C34.early.sse")),
        Reply::sse(case("anthropic-thinking.sse")),
    ]);
    let question = Question::default();
    let (response, error) = ask(
        open(anthropic(), profile(&anthropic(), &server.url())),
        &question,
        &cx(true),
    )
    .await;
    assert!(error.is_none() && response.text == "One moment.", "{error:?}");
    server.verify();
    // Text had been given out: it is kept, and nothing begins a second time.
    let bytes = String::from_utf8(case("C34.mid.sse")).unwrap();
    let (given, error) = bytes.split_at(bytes.find("event: error").unwrap());
    let reply = Reply::sse(given).then(Piece::Wait(Duration::from_millis(100)));
    let server = ScriptedServer::start([reply.then(Piece::Bytes(error.into()))]);
    let (response, error) = ask(
        open(anthropic(), profile(&anthropic(), &server.url())),
        &question,
        &cx(true),
    )
    .await;
    assert_eq!((response.text.as_str(), response.finish), ("The first", None));
    let Some(BackendError::Refused {
        status, code, message, ..
    }) = error
    else {
        panic!("{error:?}")
    };
    assert_eq!(
        (status, code.as_deref(), message.as_str()),
        (529, Some("overloaded_error"), "Overloaded")
    );
    server.verify();
}

#[test]
fn bodies_and_streams_that_are_no_answer() {
    for body in ["", "{}", "null", "[]", "<html>", "data: {}", r#"{"type":"message"}"#] {
        assert!(
            matches!(whole(&anthropic(), body.as_bytes()), Err(Fault::Malformed(_))),
            "{body}"
        );
    }
    assert!(matches!(
        whole(&anthropic(), b"{\"content\":["),
        Err(Fault::Incomplete(_))
    ));
    let refused = |status, code: Option<&str>, message: &str| {
        Err(Fault::Refused {
            status,
            code: code.map(str::to_owned),
            message: message.into(),
        })
    };
    for (body, expected) in [
        (
            r#"{"type":"error","error":{"type":"rate_limit_error","message":"slow"}}"#,
            refused(Some(429), Some("rate_limit_error"), "slow"),
        ),
        (
            r#"{"detail":"Not authenticated"}"#,
            refused(None, None, "Not authenticated"),
        ),
        (
            r#"{"type":"error","error":{"type":"invalid_request_error","message":"prompt is too long: 9 tokens > 8 maximum"}}"#,
            Err(Fault::TooLong("prompt is too long: 9 tokens > 8 maximum".into())),
        ),
    ] {
        assert_eq!(whole(&anthropic(), body.as_bytes()), expected);
        assert_eq!(stream(&anthropic(), format!("data: {body}\n\n").as_bytes()), expected);
    }
    // Cut: at every event before the last two, nothing is taken for an answer.
    let bytes = case("anthropic-thinking.sse");
    let text = String::from_utf8(bytes).unwrap();
    let end = text.find("event: message_delta").unwrap();
    for (at, _) in text[..end].match_indices("event: ") {
        let decoded = crate::vendor::pieces(&anthropic(), &[&text.as_bytes()[..at]]);
        assert!(matches!(decoded, Err(Fault::Incomplete(_))), "{at}: {decoded:?}");
    }
    // The reason was there: the last event says nothing more.
    let cut = text.find("event: message_stop").unwrap();
    let response = crate::vendor::pieces(&anthropic(), &[&text.as_bytes()[..cut]]).unwrap();
    assert_eq!(response, whole(&anthropic(), &case("anthropic-thinking.json")).unwrap());
    // Events without a name, indices or an end of blocks; an index that comes twice; what nobody knows.
    let odd = concat!(
        "data: {\"type\":\"content_block_start\",\"content_block\":{\"type\":\"tool_use\",\"id\":\"a\",\"name\":\"f\"},\"index\":0}\n\n",
        "data: {\"type\":\"content_block_delta\",\"delta\":{\"type\":\"input_json_delta\",\"partial_json\":\"{}\"}}\n\n",
        "data: {\"type\":\"content_block_start\",\"content_block\":{\"type\":\"tool_use\",\"id\":\"b\",\"name\":\"g\",\"input\":{\"x\":1}},\"index\":0}\n\n",
        "data: {\"type\":\"content_block_delta\",\"index\":9,\"delta\":{\"type\":\"text_delta\",\"text\":\"t\"}}\n\n",
        "data: {\"type\":\"brand_new\"}\n\n",
        "data: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"tool_use\"}}\n\ndata: [DONE]\n\n",
    );
    let response = stream(&anthropic(), odd.as_bytes()).unwrap();
    let expected = [
        ("a".into(), "f".into(), "{}".into()),
        ("b".into(), "g".into(), r#"{"x":1}"#.into()),
    ];
    assert_eq!((calls(&response), response.text.as_str()), (expected.to_vec(), "t"));
}

/// The input of the forced tool is the text of the answer, streamed or not.
#[tokio::test]
async fn a_schema_is_a_forced_tool_and_its_input_the_answer() {
    let mut question = Question::default();
    question.parameters.insert("format".into(), json!({"city": "string"}));
    let whole = json!({"type": "message", "model": "m", "stop_reason": "tool_use", "content": [
        {"type": "tool_use", "id": "t", "name": "response", "input": {"city": "Oslo"}}]});
    let events = [
        json!({"type": "content_block_start", "index": 0, "content_block":
            {"type": "tool_use", "id": "t", "name": "response", "input": {}}}),
        json!({"type": "content_block_delta", "index": 0, "delta":
            {"type": "input_json_delta", "partial_json": "{\"city\": \"Os"}}),
        json!({"type": "content_block_delta", "index": 0, "delta": {"type": "input_json_delta", "partial_json": "lo\"}"}}),
        json!({"type": "message_delta", "delta": {"stop_reason": "tool_use"}}),
        json!({"type": "message_stop"}),
    ];
    let events: String = events.iter().map(|e| format!("data: {e}\n\n")).collect();
    for reply in [Reply::json(200, &whole), Reply::sse(events)] {
        let (response, sent) = exchange(anthropic(), reply, &question, &cx(true)).await;
        assert_eq!(
            (response.text.as_str(), response.calls.len()),
            (r#"{"city":"Oslo"}"#, 0)
        );
        assert_eq!(response.finish, Some(FinishReason::Stop));
        let sent = sent.json();
        assert_eq!(sent["tool_choice"], json!({"type": "tool", "name": "response"}));
        assert_eq!(sent["tools"][0]["input_schema"]["required"], json!(["city"]));
        assert!(sent.get("format").is_none() && sent.get("system").is_none());
    }
    // A tool of that name is a tool like any other.
    question.tools = vec![tool("response", json!({}))];
    let (response, sent) = exchange(anthropic(), Reply::json(200, &whole), &question, &cx(false)).await;
    assert_eq!(response.calls[0].name, "response");
    let sent = sent.json();
    assert!(sent["system"].as_str().unwrap().contains("\"required\":[\"city\"]"));
    assert!(sent.get("tool_choice").is_none() && sent["tools"].as_array().unwrap().len() == 1);
    // A forced call is refused while the model thinks.
    question.tools.clear();
    question
        .parameters
        .insert("thinking".into(), json!({"type": "enabled", "budget_tokens": 2000}));
    let sent = body(anthropic(), profile(&anthropic(), "http://127.0.0.1:9/v1"), &question);
    assert!(sent.get("tools").is_none() && sent["system"].as_str().unwrap().contains("JSON Schema"));
    assert_eq!(sent["max_tokens"], 6096);
}

/// The request of a recording, rebuilt from messages, is what the recorded client sent.
#[tokio::test]
async fn a_second_turn_is_what_servers_take() {
    let recorded = Exchange::load("xllamacpp/messages-tools-turn2");
    let body = recorded.request["body"].clone();
    let mut question = Question::new(history(&json!([
        {"role": "system", "content": body["system"]},
        {"role": "user", "content": body["messages"][0]["content"]},
        {"role": "assistant", "tool_calls": [{"id": "toolu_1", "function":
            {"name": "get_weather", "arguments": {"city": "Paris"}}}]},
        {"role": "tool", "tool_call_id": "toolu_1", "content": "{\"temp\": 21}"},
    ])));
    let mut weather = tool("get_weather", body["tools"][0]["input_schema"].clone());
    weather.description = body["tools"][0]["description"].as_str().unwrap().into();
    question.tools = vec![weather];
    question.tool_choice = Some("auto".into());
    question.parameters = json!({"temperature": 0, "max_tokens": 24}).as_object().unwrap().clone();
    let reply = recorded.reply().expecting(move |request: &Recorded| {
        let mut sent = request.json();
        // A text and a list of one text block are the same.
        let block = sent["messages"][0]["content"].take();
        assert_eq!(block.as_array().unwrap().len(), 1);
        sent["messages"][0]["content"] = block[0]["text"].clone();
        sent["model"] = body["model"].clone();
        if sent == body {
            Ok(())
        } else {
            Err(format!("sent {sent}\nexpected {body}"))
        }
    });
    let server = ScriptedServer::start([reply]);
    let mut profile = profile(&anthropic(), &server.url());
    profile.key = Some(decanus_base::Secret::new("k-1"));
    let (response, error) = ask(open(anthropic(), profile), &question, &cx(false)).await;
    assert!(error.is_none(), "{error:?}");
    assert!(response.text.starts_with("<tool_response>"));
    let request = server.requests().remove(0);
    assert_eq!(
        (request.path.as_str(), request.header("x-api-key")),
        ("/v1/messages", Some("k-1"))
    );
    assert_eq!(request.header("anthropic-version"), Some("2023-06-01"));
    assert!(request.header("authorization").is_none());
    server.verify();
}

#[test]
fn a_bare_host_of_the_environment_gets_its_version() {
    let mut profile = profile(&anthropic(), "http://127.0.0.1:9");
    assert_eq!(anthropic().path(&profile, false), "/v1/messages");
    profile.file = Some("e.yaml".into());
    assert_eq!(anthropic().path(&profile, false), "/messages");
    let shown: Value = body(anthropic(), profile, &Question::new([Message::user("x")]));
    assert_eq!(shown["max_tokens"], 4096);
}
