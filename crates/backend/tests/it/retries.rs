//! When a request is made again.

use std::time::{Duration, Instant};

use decanus_backend::BackendError;
use decanus_testkit::reply::chat_events;
use decanus_testkit::{Piece, Reply, ScriptedServer};
use serde_json::json;

use crate::support::{Question, ask, ask_all, collect, cx, profile};

#[tokio::test]
async fn what_passes_is_tried_again() {
    let busy = |status| Reply::error(status, "busy", "later");
    for first in [
        busy(429),
        busy(503),
        busy(408),
        busy(409),
        busy(500),
        Reply::chat_text("x").cut_after(5),
        Reply::new(200, "", "").then(Piece::Close).after(Duration::ZERO),
    ] {
        let mut first = first;
        if first.pieces.len() == 2 && first.status == 200 && first.headers.is_empty() {
            // Closed before an answer began.
            first.delay = Some(Piece::Close);
        }
        let server = ScriptedServer::start([first, busy(502), Reply::chat_text("done")]);
        assert_eq!(ask(&server, false).await.unwrap().text, "done");
        let bodies: Vec<_> = server.requests().into_iter().map(|r| r.body).collect();
        assert!(
            bodies.len() == 3 && bodies.iter().all(|b| *b == bodies[0]),
            "the same bytes each time"
        );
        server.verify();
    }
}

#[tokio::test]
async fn three_retries_and_no_more() {
    let mut server = ScriptedServer::start(vec![Reply::error(503, "busy", "later"); 4]);
    let error = ask(&server, true).await.unwrap_err();
    assert!(matches!(error, BackendError::Refused { status: 503, .. }));
    assert_eq!(server.requests().len(), 4);
    assert!(server.faults().is_empty());
}

#[tokio::test]
async fn what_waiting_does_not_cure_fails_at_once() {
    for reply in [
        Reply::error(400, "invalid_request_error", "no"),
        Reply::error(401, "invalid_api_key", "no"),
        Reply::error(404, "not_found", "no"),
        Reply::error(429, "insufficient_quota", "pay"),
        Reply::error(429, "billing_hard_limit_reached", "pay"),
        Reply::new(200, "application/json", "oops"),
    ] {
        let server = ScriptedServer::start([reply.clone()]);
        ask(&server, true).await.unwrap_err();
        server.verify();
    }
}

#[tokio::test]
async fn c47_retry_after() {
    let limited = |value: &str| Reply::error(429, "rate_limit_error", "slow down").header("retry-after", value);
    // The least wait.
    let server = ScriptedServer::start([limited("1"), Reply::chat_text("done")]);
    let begin = Instant::now();
    assert_eq!(ask(&server, true).await.unwrap().text, "done");
    assert!(begin.elapsed() >= Duration::from_secs(1));
    // Nothing, garbage and dates in the past leave it to us.
    for value in ["0", "soon", "Wed, 21 Oct 2015 07:28:00 GMT"] {
        let server = ScriptedServer::start([limited(value), Reply::chat_text("done")]);
        let begin = Instant::now();
        ask(&server, true).await.unwrap();
        assert!(begin.elapsed() < Duration::from_millis(900), "{value}");
    }
    // Too long: at once, saying how long.
    for (value, words) in [
        ("86400", "24h00m"),
        ("Wed, 21 Oct 2037 07:28:00 GMT", "it asks to wait"),
    ] {
        let server = ScriptedServer::start([limited(value)]);
        let begin = Instant::now();
        let error = ask(&server, true).await.unwrap_err();
        assert!(begin.elapsed() < Duration::from_secs(1));
        assert!(error.to_string().contains(words), "{error}");
        server.verify();
    }
    // Longer than the time that is left.
    let server = ScriptedServer::start([limited("20")]);
    let mut cx = cx(true);
    cx.timeout = Duration::from_secs(5);
    let error = ask_all(profile(&server.url()), &Question::default(), &cx)
        .await
        .1
        .unwrap();
    assert!(error.to_string().contains("20.0s"), "{error}");
    let server = ScriptedServer::start([
        Reply::error(503, "x", "x").header("retry-after-ms", "400"),
        Reply::chat_text("done"),
    ]);
    let begin = Instant::now();
    ask(&server, true).await.unwrap();
    assert!(begin.elapsed() >= Duration::from_millis(400));
}

#[tokio::test]
async fn reset_headers_are_obeyed_where_retry_after_is_absent() {
    let limited = |pairs: &[(&str, &str)]| {
        let reply = |status| Reply::error(status, "rate_limit_error", "slow down");
        let with = |reply: Reply| {
            pairs
                .iter()
                .fold(reply, |reply, (name, value)| reply.header(name, value))
        };
        (with(reply(429)), with(reply(503)))
    };
    let requests = ("x-ratelimit-reset-requests", "300ms");
    let used_up = ("x-ratelimit-remaining-requests", "0");
    let late = ("x-ratelimit-reset-tokens", "6m0s");
    let some_left = ("x-ratelimit-remaining-tokens", "100");
    let (reply, _) = limited(&[requests, used_up, late, some_left]);
    let server = ScriptedServer::start([reply, Reply::chat_text("done")]);
    let begin = Instant::now();
    ask(&server, true).await.unwrap();
    assert!(begin.elapsed() >= Duration::from_millis(300));
    server.verify();
    // Too long: at once.
    let (reply, other) = limited(&[requests, late]);
    let server = ScriptedServer::start([reply]);
    let error = ask(&server, true).await.unwrap_err();
    assert!(error.to_string().contains("it asks to wait 6m00s"), "{error}");
    server.verify();
    // They stand beside other errors, too, and mean nothing there; `Retry-After` goes before them.
    let (reply, _) = limited(&[("retry-after", "0"), late]);
    for reply in [other, reply] {
        let server = ScriptedServer::start([reply, Reply::chat_text("done")]);
        ask(&server, true).await.unwrap();
        server.verify();
    }
}

#[tokio::test]
async fn an_incomplete_stream_is_tried_again_only_if_nothing_was_given_out() {
    let text = chat_events(&[json!({"content": "Hello"})], "stop");
    let before = text.find("Hello").unwrap() - 80;
    let server = ScriptedServer::start([
        Reply::sse(&text[..before])
            .paced(Duration::from_millis(5))
            .then(Piece::Close),
        Reply::sse(text.clone()),
    ]);
    let (deltas, error) = ask_all(profile(&server.url()), &Question::default(), &cx(true)).await;
    assert!(error.is_none());
    assert_eq!(collect(&deltas).text, "Hello");
    server.verify();

    let after = text.find("\"finish_reason\":\"stop\"").unwrap();
    let server = ScriptedServer::start([Reply::sse(&text[..after])
        .paced(Duration::from_millis(5))
        .then(Piece::Close)]);
    let (deltas, error) = ask_all(profile(&server.url()), &Question::default(), &cx(true)).await;
    assert_eq!(collect(&deltas).text, "Hello");
    assert!(matches!(error, Some(BackendError::Incomplete { .. })), "{error:?}");
    server.verify();
}

#[tokio::test]
async fn nobody_there() {
    let nobody = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let (_, error) = ask_all(profile(&format!("http://{nobody}/v1")), &Question::default(), &cx(true)).await;
    let error = error.unwrap().to_string();
    assert!(
        error.contains("can't be reached") && error.contains("refused"),
        "{error}"
    );
}
