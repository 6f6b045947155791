//! Faults that other harnesses had in public.

use decanus_backend::sse::{Event, SseDecoder, SseError};
use decanus_backend::{BackendError, FinishReason};
use decanus_chat::{Arguments, Message};
use decanus_testkit::fixtures::{case, case_chunks, case_json};
use decanus_testkit::{Piece, Reply, ScriptedServer};
use serde_json::{Value, json};

use crate::support::{Question, ask, calls, open, profile};

async fn body(value: &Value) -> decanus_backend::Response {
    let server = ScriptedServer::start([Reply::json(200, value)]);
    ask(&server, false).await.unwrap()
}

async fn stream(name: &str) -> decanus_backend::Response {
    let server = ScriptedServer::start([Reply::sse(case(name)).every(13)]);
    ask(&server, true).await.unwrap()
}

fn is(id: &str, name: &str, arguments: &str) -> (String, String, String) {
    (id.into(), name.into(), arguments.into())
}

#[tokio::test]
async fn c01_empty_arguments_are_none() {
    assert_eq!(
        calls(&body(&case_json("C01.json")).await),
        [is("call_a", "list_jobs", "{}")]
    );
    assert_eq!(calls(&stream("C01.sse").await), [is("call_a", "list_jobs", "{}")]);
}

#[tokio::test]
async fn c02_arguments_in_four_forms() {
    let mut all = Vec::new();
    for value in case_json("C02.json").as_array().unwrap() {
        all.push(calls(&body(value).await)[0].2.clone());
    }
    assert_eq!(all, ["{}", "{}", r#"{"city":"Oslo"}"#, r#"{"city":"Oslo"}"#]);
}

#[tokio::test]
async fn c05_digits_are_kept() {
    let expected = r#"{"id":7340017340017340017,"as_text":"7340017340017340017","n":5.0}"#;
    assert_eq!(
        calls(&body(&case_json("C05.json")).await),
        [is("c1", "get_row", expected)]
    );
}

#[tokio::test]
async fn c07_c08_fragments_find_their_call() {
    let both = [is("a", "f", r#"{"x":1}"#), is("b", "g", r#"{"y":2}"#)];
    assert_eq!(calls(&stream("C07.sse").await), both);
    assert_eq!(calls(&stream("C08.sse").await), both);
}

#[tokio::test]
async fn c10_counts_without_choices() {
    let response = stream("C10.sse").await;
    assert_eq!((response.text.as_str(), response.usage.tt), ("Hi", Some(5)));
    assert_eq!(response.finish, Some(FinishReason::Stop));
}

fn events(chunks: &[&[u8]]) -> Result<Vec<Event>, SseError> {
    let mut decoder = SseDecoder::new();
    let mut out = Vec::new();
    for chunk in chunks {
        decoder.push(chunk, &mut out)?;
    }
    out.extend(decoder.finish()?);
    Ok(out)
}

/// Every cut in two, and byte by byte.
fn in_every_way(bytes: &[u8]) -> Vec<Event> {
    let expected = events(&[bytes]).unwrap();
    for cut in 0..=bytes.len() {
        assert_eq!(
            events(&[&bytes[..cut], &bytes[cut..]]).unwrap(),
            expected,
            "cut at {cut}"
        );
    }
    assert_eq!(events(&bytes.chunks(1).collect::<Vec<_>>()).unwrap(), expected);
    expected
}

#[tokio::test]
async fn c11_comments_are_no_events() {
    let data = in_every_way(&case("C11.sse"));
    assert_eq!(data.len(), 3);
    assert_eq!(data[2].data, "[DONE]");
    assert_eq!(stream("C11.sse").await.text, "Hello");
}

#[tokio::test]
async fn c13_characters_cut_between_reads() {
    let chunks = case_chunks("C13.chunks.json");
    in_every_way(&chunks.concat());
    let mut reply = Reply::sse("");
    reply.pieces.clear();
    for chunk in chunks {
        reply
            .pieces
            .extend([Piece::Bytes(chunk), Piece::Wait(std::time::Duration::from_millis(2))]);
    }
    let server = ScriptedServer::start([reply]);
    assert_eq!(ask(&server, true).await.unwrap().text, "号🙂é");
    // Cut within a character at the end.
    let cut = [
        b"data: {\"choices\":[{\"delta\":{\"content\":\"".as_slice(),
        &[0xe5, 0x8f],
    ]
    .concat();
    let server = ScriptedServer::always(Reply::sse(cut));
    let error = ask(&server, true).await.unwrap_err();
    assert!(
        matches!(&error, BackendError::Incomplete { reason, .. } if reason.contains("within a character")),
        "{error:?}"
    );
}

#[test]
fn c14_all_line_ends() {
    let joined: Vec<u8> = case_chunks("C14.chunks.json").concat();
    for bytes in [joined, case("C14.sse")] {
        let data: Vec<String> = in_every_way(&bytes)
            .into_iter()
            .map(|e| e.data.replace('\n', ""))
            .collect();
        let objects: Vec<Value> = data.iter().map(|d| serde_json::from_str(d).unwrap()).collect();
        assert_eq!(
            objects,
            [
                json!({"a":"A","b":"B"}),
                json!({"a":"C","b":"D"}),
                json!({"a":"E","b":"F"})
            ]
        );
    }
}

#[tokio::test]
async fn c16_calls_count_whatever_the_reason() {
    let response = body(&case_json("C16.json")).await;
    assert_eq!(response.text, "Let me look.");
    assert_eq!(
        calls(&response),
        [
            is("c1", "lookup", r#"{"id":"X1"}"#),
            is("c2", "lookup", r#"{"id":"X2"}"#)
        ]
    );
}

#[tokio::test]
async fn c17_an_empty_turn_is_an_empty_response() {
    let response = body(&case_json("C17.json")).await;
    assert!(response.text.is_empty() && response.calls.is_empty());
    assert_eq!(response.finish, Some(FinishReason::ToolCalls));
}

#[tokio::test]
async fn c20_broken_arguments_stay_broken() {
    let response = stream("C20.sse").await;
    assert_eq!(response.calls[0].arguments, Arguments::Invalid("{\"id\": 42".into()));
}

#[tokio::test]
async fn c22_reasoning_is_kept_apart() {
    let response = body(&case_json("C22.response.json")).await;
    assert_eq!(response.reasoning, "Need the list first.");
    assert_eq!(response.text, "");
    assert_eq!(calls(&response), [is("c1", "list", "{}")]);
    let parts = decanus_chat::ProviderParts {
        backend: "openai".into(),
        model: "m".into(),
        parts: response.parts,
    };
    let question = Question::new([Message::user("q"), parts.to_message(), response.calls[0].to_message()]);
    let dry = open(profile("http://127.0.0.1:9/v1"))
        .dry_run(&question.view(), false)
        .unwrap();
    let sent: Value = serde_json::from_str(&dry.body).unwrap();
    assert_eq!(sent["messages"][1], case_json("C22.expect-message.json"));
}

#[tokio::test]
async fn c23_ids_that_are_not_unique() {
    let response = body(&case_json("C23.json")).await;
    let expected = [
        is("x", "read", r#"{"p":"a"}"#),
        is("x_2", "read", r#"{"p":"b"}"#),
        is("call_3", "read", r#"{"p":"c"}"#),
    ];
    assert_eq!(calls(&response), expected);
}
