//! What comes back.

use decanus_backend::{FinishReason, Response};
use decanus_testkit::fixtures::{Exchange, case_json};
use decanus_testkit::{Reply, ScriptedServer};
use serde_json::{Value, json};

use crate::support::*;

/// A body and a stream that say the same.
fn both() -> (Value, Vec<u8>) {
    let body = answer(
        json!([
            {"reasoningContent": {"reasoningText": {"text": "Hm, a.", "signature": "c2lnbmVk"}}},
            {"reasoningContent": {"redactedContent": "AAECAw=="}},
            {"text": "Señor, I look."},
            {"toolUse": {"toolUseId": "t1", "name": "f", "input": {"x": 1, "id": 7340017340017340017_u64}}},
            {"toolUse": {"toolUseId": "t2", "name": "g", "input": {}}},
        ]),
        "tool_use",
    );
    let delta = |index: u64, delta: Value| {
        (
            "contentBlockDelta",
            json!({"contentBlockIndex": index, "delta": delta, "p": "abc"}),
        )
    };
    let start = |index: u64, id: &str, name: &str| {
        (
            "contentBlockStart",
            json!({"contentBlockIndex": index, "start": {"toolUse": {"toolUseId": id, "name": name}}}),
        )
    };
    let stop = |index: u64| ("contentBlockStop", json!({"contentBlockIndex": index}));
    let stream = events(&[
        ("messageStart", json!({"role": "assistant"})),
        delta(0, json!({"reasoningContent": {"text": "Hm, "}})),
        delta(0, json!({"reasoningContent": {"text": "a."}})),
        delta(0, json!({"reasoningContent": {"signature": "c2lnbmVk"}})),
        stop(0),
        // Two pieces of bytes, each with a base64 of its own.
        delta(1, json!({"reasoningContent": {"redactedContent": "AAE="}})),
        delta(1, json!({"reasoningContent": {"redactedContent": "AgM="}})),
        stop(1),
        delta(2, json!({"text": "Señor, "})),
        delta(2, json!({"text": "I look."})),
        stop(2),
        start(3, "t1", "f"),
        start(4, "t2", "g"),
        delta(3, json!({"toolUse": {"input": ""}})),
        delta(3, json!({"toolUse": {"input": "{\"x\":1,\"id\":73400173"}})),
        delta(3, json!({"toolUse": {"input": "40017340017}"}})),
        stop(3),
        delta(4, json!({"toolUse": {"input": "{}"}})),
        stop(4),
        ("somethingNew", json!({"a": 1})),
        ("messageStop", json!({"stopReason": "tool_use"})),
        ("metadata", json!({"usage": body["usage"], "metrics": {"latencyMs": 3}})),
    ]);
    (body, stream)
}

async fn whole(reply: Reply, is_stream: bool) -> Response {
    let server = ScriptedServer::start([reply]);
    let response = ask(&server, is_stream).await.unwrap();
    server.verify();
    response
}

#[tokio::test]
async fn bodies_and_streams_say_the_same_however_they_are_cut() {
    let (body, bytes) = both();
    let expected = whole(Reply::json(200, &body), false).await;
    assert_eq!(expected.text, "Señor, I look.");
    assert_eq!(expected.reasoning, "Hm, a.");
    assert_eq!(
        expected.parts,
        [
            json!({"reasoningContent": {"reasoningText": {"text": "Hm, a.", "signature": "c2lnbmVk"}}}),
            json!({"reasoningContent": {"redactedContent": "AAECAw=="}}),
        ]
    );
    let calls: Vec<_> = expected
        .calls
        .iter()
        .map(|c| (c.id.as_str(), c.name.as_str(), c.arguments.to_text()))
        .collect();
    assert_eq!(
        calls,
        [
            ("t1", "f", "{\"x\":1,\"id\":7340017340017340017}".to_owned()),
            ("t2", "g", "{}".to_owned())
        ]
    );
    let usage = &expected.usage;
    assert_eq!(
        (usage.pt, usage.ct, usage.tt, usage.cct, usage.cwt),
        (Some(30), Some(14), Some(47), Some(2), Some(1))
    );
    assert_eq!(expected.finish, Some(FinishReason::ToolCalls));
    for size in [1, 2, 3, 7, 13, 100, 1 << 20] {
        assert_eq!(
            whole(stream(bytes.clone()).every(size), true).await,
            expected,
            "in pieces of {size}"
        );
    }
    // A server that answers with a body all the same.
    assert_eq!(whole(Reply::json(200, &body), true).await, expected);
}

#[tokio::test]
async fn an_answer_of_calls_only_is_one() {
    let response = whole(Reply::json(200, &case_json("C44.response.json")), false).await;
    assert_eq!((response.text.as_str(), response.calls.len()), ("", 1));
    assert_eq!(response.finish, Some(FinishReason::ToolCalls));
}

#[tokio::test]
async fn reasons_to_end() {
    for (word, reason) in [
        ("end_turn", FinishReason::Stop),
        ("stop_sequence", FinishReason::Stop),
        ("max_tokens", FinishReason::Length),
        ("guardrail_intervened", FinishReason::ContentFilter),
        ("content_filtered", FinishReason::ContentFilter),
        ("malformed_tool_use", FinishReason::Other("malformed_tool_use".into())),
    ] {
        let body = answer(json!([{"text": "a"}]), word);
        assert_eq!(
            whole(Reply::json(200, &body), false).await.finish,
            Some(reason),
            "{word}"
        );
    }
}

/// Reasoning that nobody signed is shown and not kept: the model would refuse it.
#[tokio::test]
async fn unsigned_reasoning_is_not_kept() {
    let body = answer(
        json!([{"reasoningContent": {"reasoningText": {"text": "Hm."}}}, {"text": "a"}]),
        "end_turn",
    );
    let response = whole(Reply::json(200, &body), false).await;
    assert_eq!((response.reasoning.as_str(), response.parts.len()), ("Hm.", 0));
    let cited = answer(
        json!([{"citationsContent": {"content": [{"text": "It "}, {"text": "is."}], "citations": []}}]),
        "end_turn",
    );
    assert_eq!(whole(Reply::json(200, &cited), false).await.text, "It is.");
}

/// Token counts are the last frame; without them the answer is still whole.
#[tokio::test]
async fn a_stream_without_counts() {
    let bytes = events(&[
        (
            "contentBlockDelta",
            json!({"contentBlockIndex": 0, "delta": {"text": "a"}}),
        ),
        ("messageStop", json!({"stopReason": "end_turn"})),
    ]);
    let response = whole(stream(bytes), true).await;
    assert_eq!(
        (response.text.as_str(), response.finish),
        ("a", Some(FinishReason::Stop))
    );
}

#[tokio::test]
async fn recorded_answers() {
    let text = whole(Exchange::load("llm-katan/bedrock-converse").reply(), false).await;
    assert!(text.text.starts_with("[echo]") && text.usage.tt == Some(10), "{text:?}");
    let tools = whole(Exchange::load("llm-katan/bedrock-converse-tools").reply(), false).await;
    assert_eq!(tools.calls[0].name, "get_weather");
    assert_eq!(tools.calls[0].arguments.to_text(), "{\"city\":\"test_city\"}");
}
