//! What servers of the Responses API answer.

use decanus_backend::sse::SseDecoder;
use decanus_backend::{BackendError, FinishReason, Response};
use decanus_chat::Usage;
use decanus_testkit::fixtures::{Exchange, case, case_json};
use decanus_testkit::{Reply, ScriptedServer};
use serde_json::{Value, json};

use crate::support::{Question, ask_all, calls, collect, cx, profile_of, tool};

async fn ask_as(backend: &str, reply: Reply, stream: bool) -> Result<Response, BackendError> {
    let server = ScriptedServer::start([reply]);
    let mut profile = profile_of(backend, &server.url());
    profile.retries = 0;
    let mut question = Question::default();
    question.tools = vec![tool("get_weather", json!({}))];
    match ask_all(profile, &question, &cx(stream)).await {
        (deltas, None) => Ok(collect(&deltas)),
        (_, Some(error)) => Err(error),
    }
}

async fn ask(reply: Reply, stream: bool) -> Result<Response, BackendError> {
    ask_as("responses", reply, stream).await
}

async fn recorded(backend: &str, name: &str) -> Response {
    let exchange = Exchange::load(name);
    let whole = ask_as(backend, exchange.reply(), exchange.is_stream).await.unwrap();
    for cut in [1, 7, 100] {
        let cut = ask_as(backend, exchange.reply().every(cut), exchange.is_stream).await;
        assert_eq!(cut.unwrap(), whole, "{name}");
    }
    whole
}

const WEATHER: &str = r#"{"city": "Paris"}"#;

fn usage(pt: u64, ct: u64, cct: Option<u64>) -> Usage {
    Usage {
        pt: Some(pt),
        ct: Some(ct),
        tt: Some(pt + ct),
        cct,
        ..Usage::default()
    }
}

#[tokio::test]
async fn calls_of_each_server() {
    let cached = usage(256, 63, Some(255));
    let vllm = Usage {
        cwt: Some(128),
        rt: Some(0),
        ..usage(256, 31, Some(128))
    };
    for (name, ids, expected) in [
        (
            "xllamacpp/responses-tools",
            ["call_KeHY", "call_Hx7I"].as_slice(),
            cached,
        ),
        ("xllamacpp/responses-tools-stream", &["call_JRv2", "call_wv7j"], cached),
        ("litellm/responses-tools", &["call_Z7RZ", "call_ICND"], cached),
        ("litellm/responses-tools-stream", &["call_qb8W", "call_rsnH"], cached),
        ("openwebui/openai-responses", &["call_7m4B", "call_9Bco"], cached),
        ("vllm/responses-tools", &["chatcmpl-tool-b944"], vllm),
        ("vllm/responses-tools-stream", &["chatcmpl-tool-89c4"], vllm),
    ] {
        let backend = if name.starts_with("vllm") { "vllm" } else { "responses" };
        let response = recorded(backend, name).await;
        let calls = calls(&response);
        assert_eq!(calls.len(), ids.len(), "{name}: {calls:?}");
        for ((id, tool, arguments), start) in calls.iter().zip(ids) {
            assert!(id.starts_with(start), "{name}: {id}");
            assert_eq!(
                (tool.as_str(), arguments.replace(':', ": ").as_str()),
                ("get_weather", WEATHER)
            );
        }
        let Usage { rt, .. } = response.usage;
        assert_eq!(Usage { rt, ..expected }, response.usage, "{name}");
        assert_eq!(response.finish, Some(FinishReason::ToolCalls), "{name}");
        assert!(response.id.is_some_and(|id| id.starts_with("resp_")), "{name}");
        assert_eq!(response.model.as_deref(), Some("smollm2"), "{name}");
        assert!(response.text.is_empty() && response.parts.is_empty(), "{name}");
    }
}

#[tokio::test]
async fn texts_of_each_server() {
    let length = Some(FinishReason::Length);
    for (name, text, finish) in [
        (
            "xllamacpp/responses-tools-turn2",
            "<tool_response>\n{\"temp\": 21}\n</tool_response>",
            Some(FinishReason::Stop),
        ),
        (
            "litellm/mock-responses",
            "This is a mock response.",
            Some(FinishReason::Stop),
        ),
        (
            "vllm/responses-plain",
            "Hello there, welcome to my little corner",
            length.clone(),
        ),
        (
            "vllm/responses-previous_response_id",
            "Yes, everything, that is to say",
            length,
        ),
    ] {
        let response = recorded("responses", name).await;
        assert_eq!((response.text.as_str(), response.finish), (text, finish), "{name}");
        let usage = response.usage;
        assert_eq!(usage.pt.unwrap() + usage.ct.unwrap(), usage.tt.unwrap(), "{name}");
    }
}

#[tokio::test]
async fn errors_of_each_server() {
    for (name, status, code, words) in [
        (
            "xllamacpp/responses-previous_response_id",
            400,
            Some("invalid_request_error"),
            "does not support 'previous_response_id'",
        ),
        ("openwebui/responses", 405, None, "Method Not Allowed"),
        ("llm-katan/openai-responses", 404, None, "Not Found"),
    ] {
        let error = ask(Exchange::load(name).reply(), false).await.unwrap_err();
        let BackendError::Refused {
            status: found,
            code: its,
            message,
            ..
        } = error
        else {
            panic!("{name}: {error:?}")
        };
        assert_eq!((found, its.as_deref()), (status, code), "{name}");
        assert!(message.contains(words), "{name}: {message}");
    }
}

/// The events of a stream are the same wherever it is cut, so what they decode to is, too.
#[test]
fn recorded_streams_cut_at_every_byte() {
    for name in [
        "xllamacpp/responses-tools-stream",
        "litellm/responses-tools-stream",
        "vllm/responses-tools-stream",
    ] {
        let bytes = Exchange::load(name).body;
        let events = |cut: usize| {
            let (mut decoder, mut events) = (SseDecoder::new(), Vec::new());
            decoder.push(&bytes[..cut], &mut events).unwrap();
            decoder.push(&bytes[cut..], &mut events).unwrap();
            events.extend(decoder.finish().unwrap());
            events
        };
        let whole = events(0);
        assert!(whole.len() > 5, "{name}");
        for cut in 1..=bytes.len() {
            assert!(events(cut) == whole, "{name} cut at {cut}");
        }
    }
}

/// An answer with everything in it that OpenAI sends.
fn output() -> Value {
    json!([
        {"id": "rs_1", "type": "reasoning", "encrypted_content": "gAAA", "summary": [
            {"type": "summary_text", "text": "First."}, {"type": "summary_text", "text": "Then."}]},
        {"id": "ws_1", "type": "web_search_call", "status": "completed"},
        {"id": "msg_1", "type": "message", "role": "assistant", "status": "completed", "content": [
            {"type": "output_text", "text": "Let me ", "annotations": []},
            {"type": "output_text", "text": "see: ñ", "annotations": []}]},
        {"id": "msg_2", "type": "message", "role": "assistant", "status": "completed", "phase": "commentary",
            "content": [{"type": "refusal", "refusal": "I can't."}]},
        {"id": "fc_1", "type": "function_call", "status": "completed", "call_id": "call_1", "name": "get_weather",
            "arguments": "{\"n\":7340017340017340017}"},
        {"id": "ig_1", "type": "image_generation_call", "result": "iVBO"},
        {"id": "new_1", "type": "something_new"},
        {"id": "fc_2", "type": "function_call", "status": "completed", "call_id": "call_2", "name": "get_weather",
            "arguments": ""},
    ])
}

fn response(status: &str) -> Value {
    json!({"id": "resp_1", "object": "response", "status": status, "model": "gpt-5-nano-2025", "error": null,
        "output": output(), "usage": {"input_tokens": 24, "input_tokens_details": {"cached_tokens": 6},
        "output_tokens": 16, "output_tokens_details": {"reasoning_tokens": 2}, "total_tokens": 40}})
}

/// OpenAI's events of `response`: `pieces` of every item, `items` when they are done, and what the last event holds.
fn events(pieces: bool, items: bool, listed: bool) -> String {
    let mut events = vec![
        json!({"type": "response.created", "response": {"id": "resp_1", "status": "in_progress",
        "model": "gpt-5-nano-2025", "output": []}}),
    ];
    for (at, item) in output().as_array().unwrap().iter().enumerate() {
        let id = &item["id"];
        let mut begun = item.clone();
        for (name, empty) in [("content", json!([])), ("summary", json!([])), ("arguments", json!(""))] {
            if begun.get(name).is_some() {
                begun[name] = empty;
            }
        }
        if pieces {
            events.push(json!({"type": "response.output_item.added", "output_index": at, "item": begun}));
            let mut piece = |kind: &str, name: &str, i: usize, text: &str| {
                for c in text.chars() {
                    events.push(
                        json!({"type": format!("response.{kind}.delta"), "item_id": id, "output_index": at,
                        name: i, "delta": c.to_string()}),
                    );
                }
            };
            for (i, part) in item["summary"].as_array().into_iter().flatten().enumerate() {
                piece(
                    "reasoning_summary_text",
                    "summary_index",
                    i,
                    part["text"].as_str().unwrap(),
                );
            }
            for (i, part) in item["content"].as_array().into_iter().flatten().enumerate() {
                match part["text"].as_str() {
                    Some(text) => piece("output_text", "content_index", i, text),
                    None => piece("refusal", "content_index", i, part["refusal"].as_str().unwrap()),
                }
            }
            if let Some(arguments) = item["arguments"].as_str() {
                piece("function_call_arguments", "x", 0, arguments);
                events.push(json!({"type": "response.function_call_arguments.done", "item_id": id,
                    "output_index": at, "arguments": arguments}));
            }
        }
        if items {
            events.push(json!({"type": "response.output_item.done", "output_index": at, "item": item}));
        }
    }
    let mut last = response("completed");
    if !listed {
        last["output"] = json!([]);
    }
    events.push(json!({"type": "response.completed", "response": last}));
    let line = |event: &Value| format!("event: {}\ndata: {event}\n\n", event["type"].as_str().unwrap());
    events.iter().map(line).collect()
}

#[tokio::test]
async fn a_stream_is_what_its_body_would_have_been() {
    let whole = ask(Reply::json(200, &response("completed")), false).await.unwrap();
    assert_eq!(whole.text, "Let me see: ñ\n\nI can't.");
    assert_eq!(whole.reasoning, "First.\n\nThen.");
    let is = |id: &str, arguments: &str| (id.to_owned(), "get_weather".to_owned(), arguments.to_owned());
    assert_eq!(
        calls(&whole),
        [is("call_1", r#"{"n":7340017340017340017}"#), is("call_2", "{}")]
    );
    let marks = [
        output()[0].clone(),
        json!({"type": "message", "id": "msg_1", "text": "Let me see: ñ"}),
        json!({"type": "message", "id": "msg_2", "phase": "commentary", "text": "I can't."}),
        json!({"type": "function_call", "id": "fc_1", "call_id": "call_1"}),
        json!({"type": "function_call", "id": "fc_2", "call_id": "call_2"}),
    ];
    assert_eq!(whole.parts, marks);
    assert_eq!(whole.finish, Some(FinishReason::ToolCalls));
    let counts = Usage {
        rt: Some(2),
        ..usage(24, 16, Some(6))
    };
    assert_eq!(whole.usage, counts);
    for (pieces, items, listed) in [
        (true, true, true),
        (true, true, false),
        (true, false, true),
        (false, true, true),
        (false, true, false),
        (false, false, true),
    ] {
        let stream = Reply::sse(events(pieces, items, listed)).every(11);
        let stream = ask(stream, true).await.unwrap();
        assert_eq!(stream, whole, "pieces {pieces}, items {items}, listed {listed}");
    }
    // Neither ids nor positions, as some servers send them.
    let bare: String = events(true, true, true)
        .lines()
        .filter(|l| l.starts_with("data: "))
        .map(|l| {
            let mut event: Value = serde_json::from_str(&l[6..]).unwrap();
            event.as_object_mut().unwrap().shift_remove("output_index");
            event.as_object_mut().unwrap().shift_remove("item_id");
            format!("data: {event}\n\n")
        })
        .collect();
    assert_eq!(ask(Reply::sse(bare), true).await.unwrap(), whole);
}

#[tokio::test]
async fn c28_reasoning_is_kept_whole() {
    let body = case_json("C28.response.json");
    let response = ask(Reply::json(200, &body), false).await.unwrap();
    assert_eq!(response.parts[0], body["output"][0]);
    assert_eq!(calls(&response)[0].0, "call_1");
}

#[tokio::test]
async fn c29_an_end_that_is_none() {
    let response = ask(Reply::sse(case("C29.incomplete.sse")).every(9), true)
        .await
        .unwrap();
    assert_eq!(
        (response.text.as_str(), response.finish),
        ("The first", Some(FinishReason::Length))
    );
    for (name, status, code, message) in [
        ("C29.failed.sse", 500, "server_error", "overloaded"),
        ("C29.error.sse", 429, "rate_limit_exceeded", "slow down"),
    ] {
        let error = ask(Reply::sse(case(name)), true).await.unwrap_err();
        assert!(error.is_transient(), "{name}");
        let BackendError::Refused {
            status: found,
            code: its,
            message: said,
            ..
        } = error
        else {
            panic!("{name}: {error:?}")
        };
        assert_eq!(
            (found, its.as_deref(), said.as_str()),
            (status, Some(code), message),
            "{name}"
        );
    }
    // Nothing had been given out, so it is asked again.
    let server = ScriptedServer::start([
        Reply::sse(case("C29.failed.sse")),
        Reply::json(200, &response_of("Here.")),
    ]);
    let (deltas, error) = ask_all(profile_of("responses", &server.url()), &Question::default(), &cx(true)).await;
    assert!(error.is_none(), "{error:?}");
    assert_eq!(collect(&deltas).text, "Here.");
    // Nobody waits for more after the last event.
    let reply = Reply::sse(case("C29.incomplete.sse")).then(decanus_testkit::Piece::Hang);
    let waited = tokio::time::timeout(std::time::Duration::from_secs(2), ask(reply, true)).await;
    assert!(waited.is_ok());
}

fn response_of(text: &str) -> Value {
    json!({"id": "resp_1", "status": "completed", "output": [
        {"type": "message", "content": [{"type": "output_text", "text": text}]}]})
}

#[tokio::test]
async fn bodies_that_end_in_their_own_ways() {
    let with = |status: &str, details: Value| {
        let mut body = response_of("Half");
        body["status"] = status.into();
        body["incomplete_details"] = json!({"reason": details});
        body
    };
    for (reason, finish) in [
        (json!("max_output_tokens"), FinishReason::Length),
        (json!("content_filter"), FinishReason::ContentFilter),
        (json!("else"), FinishReason::Other("else".into())),
        (Value::Null, FinishReason::Other("incomplete".into())),
    ] {
        let response = ask(Reply::json(200, &with("incomplete", reason)), false).await.unwrap();
        assert_eq!((response.text.as_str(), response.finish), ("Half", Some(finish)));
    }
    let mut failed = with("failed", Value::Null);
    failed["error"] = json!({"code": "invalid_prompt", "message": "no"});
    let error = ask(Reply::json(200, &failed), false).await.unwrap_err();
    assert!(
        matches!(&error, BackendError::Refused { code: Some(code), message, .. } if code == "invalid_prompt" && message == "no"),
        "{error:?}"
    );
    let error = ask(Reply::json(200, &with("queued", Value::Null)), false)
        .await
        .unwrap_err();
    assert!(matches!(error, BackendError::Incomplete { .. }), "{error:?}");
}

#[tokio::test]
async fn bodies_and_streams_that_are_no_answer() {
    for body in ["", "{}", "null", "[]", "plain words", "{\"choices\":[]}"] {
        for stream in [true, false] {
            let error = ask(Reply::new(200, "application/json", body), stream)
                .await
                .unwrap_err();
            assert!(matches!(error, BackendError::Malformed { .. }), "{body}: {error:?}");
        }
    }
    for kind in ["text/html", "application/json", "text/event-stream"] {
        let error = ask(Reply::new(200, kind, "<!DOCTYPE html><p>"), true)
            .await
            .unwrap_err();
        assert!(
            matches!(&error, BackendError::Malformed { reason, .. } if reason.contains("`url`")),
            "{kind}: {error:?}"
        );
    }
    // The wrong content type does not matter, nor does a body where a stream was asked for.
    let response = ask(Reply::new(200, "text/plain", events(true, true, true)), true)
        .await
        .unwrap();
    assert_eq!(response.calls.len(), 2);
    let response = ask(Reply::new(200, "text/event-stream", response_of("x").to_string()), true)
        .await
        .unwrap();
    assert_eq!(response.text, "x");
    // Cut anywhere, it is incomplete, never short.
    let whole = events(true, true, true);
    let end = whole.find("event: response.completed").unwrap();
    for cut in (0..end).step_by(97).chain([end, whole.len() - 20]) {
        let error = ask(Reply::sse(&whole.as_bytes()[..cut]), true).await.unwrap_err();
        assert!(matches!(error, BackendError::Incomplete { .. }), "{cut}: {error:?}");
    }
    let done = format!("{}data: [DONE]\n\n", &whole[..end]);
    assert!(matches!(
        ask(Reply::sse(done), true).await,
        Err(BackendError::Incomplete { .. })
    ));
}
