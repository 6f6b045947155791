//! Answers that do not come, break off, are too large, or tell too much.

use std::io::Write;
use std::time::{Duration, Instant};

use decanus_backend::{Backend, BackendError, Delta, FinishReason};
use decanus_base::{Diagnostic, ErrorKind, Secret};
use decanus_testkit::fixtures::case;
use decanus_testkit::reply::{Framing, chat_events};
use decanus_testkit::{Piece, Reply, ScriptedServer};
use flate2::write::GzEncoder;
use futures::StreamExt;
use serde_json::json;

use crate::support::{Question, ask, ask_all, backend, collect, cx, open, profile};

fn pings(pause: u64, times: usize) -> Vec<Piece> {
    let ping = [
        Piece::Bytes(b": ping\n\n".to_vec()),
        Piece::Wait(Duration::from_millis(pause)),
    ];
    vec![ping; times].into_iter().flatten().collect()
}

fn quick(url: &str) -> decanus_backend::Profile {
    let mut profile = profile(url);
    profile.retries = 0;
    profile.timeouts.first_byte = Duration::from_millis(150);
    profile.timeouts.idle = Duration::from_millis(150);
    profile
}

#[tokio::test]
async fn nothing_for_too_long() {
    let head_only = Reply::sse(": ping\n\n").then(Piece::Hang);
    for (reply, words) in [
        (Reply::never(), "no answer within 0.1s"),
        (head_only, "nothing more within 0.1s"),
    ] {
        let server = ScriptedServer::start([reply]);
        let (deltas, error) = ask_all(quick(&server.url()), &Question::default(), &cx(true)).await;
        assert!(deltas.is_empty());
        let error = error.unwrap();
        assert!(
            matches!(&error, BackendError::TimedOut { what, .. } if what == words),
            "{error}"
        );
        assert_eq!(error.kind(), ErrorKind::Provider);
    }
}

#[tokio::test]
async fn keep_alives_hold_a_slow_answer_open_but_not_for_ever() {
    let mut slow = Reply::sse("");
    slow.pieces = pings(50, 5);
    slow.pieces
        .push(Piece::Bytes(chat_events(&[json!({"content": "ok"})], "stop").into()));
    let server = ScriptedServer::start([slow]);
    let (deltas, error) = ask_all(quick(&server.url()), &Question::default(), &cx(true)).await;
    assert!(error.is_none() && collect(&deltas).text == "ok");

    let mut endless = Reply::sse("");
    endless.pieces = pings(20, 200);
    let server = ScriptedServer::start([endless]);
    let mut cx = cx(true);
    cx.timeout = Duration::from_millis(400);
    let begin = Instant::now();
    let error = ask_all(quick(&server.url()), &Question::default(), &cx)
        .await
        .1
        .unwrap();
    assert!(
        matches!(&error, BackendError::TimedOut { what, .. } if what.contains("whole request")),
        "{error}"
    );
    assert!(begin.elapsed() < Duration::from_secs(2));
}

#[tokio::test]
async fn what_arrived_before_a_break_is_kept() {
    let text = chat_events(&[json!({"content": "Hel"}), json!({"content": "lo"})], "stop");
    let cut = text.find("lo").unwrap();
    for framing in [Framing::Chunked, Framing::UntilClose] {
        // Read event by event, so that something has been given out before the break.
        let reply = Reply::sse(&text[..])
            .framed(framing)
            .cut_after(cut)
            .paced(Duration::from_millis(5))
            .then(Piece::Close);
        let server = ScriptedServer::start([reply]);
        let (deltas, error) = ask_all(quick(&server.url()), &Question::default(), &cx(true)).await;
        assert_eq!(collect(&deltas).text, "Hel");
        assert_eq!(collect(&deltas).finish, None);
        assert!(matches!(error, Some(BackendError::Incomplete { .. })), "{error:?}");
        server.verify();
    }
}

#[tokio::test]
async fn ends_of_streams() {
    let whole = chat_events(&[json!({"content": "Hi"})], "stop");
    let done = whole.find("data: [DONE]").unwrap();
    let finish = whole.find("data: {\"id\":\"chatcmpl-1\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"scripted\",\"choices\":[{\"index\":0,\"delta\":{},").unwrap();
    // [DONE] left out, with and without a proper end of the body; a last event that is cut after the reason was given.
    let no_done = &whole[..done];
    for reply in [
        Reply::sse(no_done),
        Reply::sse(no_done).then(Piece::Close),
        Reply::sse(&whole[..done - 20]),
        Reply::sse(no_done.trim_end()),
    ] {
        let server = ScriptedServer::start([reply]);
        let response = ask(&server, true).await.unwrap();
        assert_eq!(
            (response.text.as_str(), response.finish),
            ("Hi", Some(FinishReason::Stop))
        );
    }
    // No reason, but [DONE].
    let server = ScriptedServer::start([Reply::sse(format!("{}data: [DONE]\n\n", &whole[..finish]))]);
    assert_eq!(ask(&server, true).await.unwrap().finish, Some(FinishReason::Stop));
    // Neither.
    let server = ScriptedServer::start([Reply::sse(&whole[..finish])]);
    let (deltas, error) = ask_all(quick(&server.url()), &Question::default(), &cx(true)).await;
    assert_eq!(collect(&deltas).text, "Hi");
    assert!(matches!(error, Some(BackendError::Incomplete { .. })), "{error:?}");
    // A server that says it is done and then does not close.
    let server = ScriptedServer::start([Reply::sse(no_done).then(Piece::Hang)]);
    let (deltas, error) = ask_all(quick(&server.url()), &Question::default(), &cx(true)).await;
    assert!(error.is_none() && collect(&deltas).usage.tt == Some(15));
}

#[tokio::test]
async fn errors_inside_streams_and_bodies() {
    let event = |data: &str| Reply::sse(format!("data: {data}\n\ndata: [DONE]\n\n"));
    let error = r#"{"error":{"message":"it broke","type":"server_error","code":"500"}}"#;
    for reply in [
        event(error),
        Reply::new(200, "application/json", error),
        Reply::sse(format!("event: error\n{}", "data: {\"message\":\"it broke\"}\n\n")),
    ] {
        let server = ScriptedServer::start([reply]);
        let error = ask_all(quick(&server.url()), &Question::default(), &cx(true))
            .await
            .1
            .unwrap();
        assert!(
            matches!(&error, BackendError::Refused { message, .. } if message == "it broke"),
            "{error:?}"
        );
    }
    let long = r#"{"error":{"message":"too long","code":"context_length_exceeded"}}"#;
    let server = ScriptedServer::start([event(long)]);
    let error = ask(&server, true).await.unwrap_err();
    assert!(matches!(&error, BackendError::TooLong { model, .. } if model == "scripted"));
    for bad in ["data: {oops\n\n", "data: 7\n\n", "data: \"x\"\n\n"] {
        let server = ScriptedServer::start([Reply::sse(format!("{bad}data: [DONE]\n\n"))]);
        let error = ask(&server, true).await.unwrap_err();
        assert!(matches!(error, BackendError::Malformed { .. }), "{bad}: {error:?}");
    }
}

#[tokio::test]
async fn what_came_counts_not_what_the_header_says() {
    let body = r#"{"choices":[{"message":{"content":"ok"}}]}"#;
    for reply in [
        Reply::new(200, "text/plain", body),
        Reply::new(200, "", body),
        Reply::sse(body),
        Reply::new(200, "application/json", format!("\u{feff}{body}")),
    ] {
        let server = ScriptedServer::start([reply]);
        assert_eq!(ask(&server, true).await.unwrap().text, "ok");
    }
    let stream = chat_events(&[json!({"content": "ok"})], "stop");
    for (reply, asked) in [
        (Reply::new(200, "text/plain", stream.clone()), true),
        (Reply::sse(stream), false),
    ] {
        let server = ScriptedServer::start([reply]);
        assert_eq!(ask(&server, asked).await.unwrap().text, "ok");
    }
}

#[tokio::test]
async fn cancelling_at_any_moment() {
    let text = chat_events(&[json!({"content": "Hel"})], "stop");
    let replies = [
        Reply::never(),
        Reply::sse("").then(Piece::Hang),
        Reply::sse(&text[..text.len() / 2]).then(Piece::Hang),
        Reply::json(503, &json!({"error": "later"})).header("retry-after", "20"),
    ];
    for reply in replies {
        let server = ScriptedServer::start([reply]);
        let cx = cx(true);
        let cancel = cx.cancel.clone();
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_millis(100)).await;
            cancel.cancel();
        });
        let begin = Instant::now();
        let (_, error) = ask_all(profile(&server.url()), &Question::default(), &cx).await;
        assert!(matches!(error, Some(BackendError::Cancelled)), "{error:?}");
        assert!(begin.elapsed() < Duration::from_secs(2));
        assert_eq!(error.unwrap().kind(), ErrorKind::Interrupted);
    }
    // Before anything is sent.
    let server = ScriptedServer::always(Reply::chat_text("x"));
    let cx = cx(true);
    cx.cancel.cancel();
    assert!(matches!(
        ask_all(profile(&server.url()), &Question::default(), &cx).await.1,
        Some(BackendError::Cancelled)
    ));
    assert!(server.requests().is_empty());
}

#[tokio::test]
async fn dropping_the_stream_closes_the_connection() {
    let server = ScriptedServer::start([
        Reply::chat_stream(&["a", "b"]).paced(Duration::from_millis(30)),
        Reply::chat_text("next"),
    ]);
    let mut conversation = open(profile(&server.url()));
    let question = Question::default();
    let (view, cx) = (question.view(), cx(true));
    let mut stream = conversation.complete(&view, &cx);
    while !matches!(stream.next().await.unwrap().unwrap(), Delta::Text(_)) {}
    drop(stream);
    // The conversation goes on.
    let all: Vec<_> = conversation.complete(&view, &cx).collect().await;
    assert!(
        all.iter().any(|d| matches!(d, Ok(Delta::Text(t)) if t == "next")),
        "{all:?}"
    );
    server.verify();
}

fn zipped(bytes: &[u8]) -> Vec<u8> {
    let mut writer = GzEncoder::new(Vec::new(), flate2::Compression::fast());
    writer.write_all(bytes).unwrap();
    writer.finish().unwrap()
}

#[tokio::test]
async fn compressed_answers_are_read_and_a_cut_one_is_incomplete() {
    let zip = |kind: &str, body: Vec<u8>| Reply::new(200, kind, body).header("content-encoding", "gzip");
    let body = json!({"choices": [{"message": {"content": "ok"}, "finish_reason": "stop"}]}).to_string();
    let server = ScriptedServer::start([zip("application/json", zipped(body.as_bytes()))]);
    assert_eq!(ask(&server, false).await.unwrap().text, "ok");

    assert_eq!(server.requests()[0].header("accept-encoding"), Some("gzip"));

    // A stream is not asked for in this form, since words would wait in it; it is read all the same.
    let events = chat_events(&[json!({"content": "a"}), json!({"content": "b"})], "stop");
    let stream = zip("text/event-stream", zipped(events.as_bytes())).every(7);
    let server = ScriptedServer::start([stream]);
    assert_eq!(ask(&server, true).await.unwrap().text, "ab");
    assert_eq!(server.requests()[0].header("accept-encoding"), Some("identity"));

    let whole = zipped(body.as_bytes());
    for cut in [1, 12, whole.len() / 2, whole.len() - 1] {
        let mut profile = quick("");
        let server = ScriptedServer::always(zip("application/json", whole[..cut].to_vec()));
        profile.url = server.url();
        let (_, error) = ask_all(profile, &Question::default(), &cx(false)).await;
        assert!(
            matches!(&error, Some(BackendError::Incomplete { .. })),
            "{cut}: {error:?}"
        );
    }
}

#[tokio::test]
async fn c86_bodies_are_bounded() {
    // The bytes count that come out, not those that come in: this one is not larger than the bound, nor is it JSON.
    let bomb = Reply::new(200, "application/json", case("C86.zeros-64MiB.gz")).header("content-encoding", "gzip");
    let server = ScriptedServer::start([bomb]);
    let error = ask(&server, false).await.unwrap_err();
    assert!(
        matches!(&error, BackendError::Malformed { reason, .. } if reason.contains("JSON")),
        "{error}"
    );
    assert_eq!(server.requests()[0].header("accept-encoding"), Some("gzip"));
    let mut bomb =
        Reply::new(200, "application/json", zipped(&vec![b' '; 70 << 20])).header("content-encoding", "gzip");
    let server = ScriptedServer::start([bomb.clone()]);
    let error = ask(&server, false).await.unwrap_err();
    assert!(
        matches!(&error, BackendError::Malformed { reason, .. } if reason.contains("64 MiB")),
        "{error}"
    );
    // That of an error too.
    bomb.status = 400;
    let server = ScriptedServer::start([bomb]);
    let error = ask(&server, false).await.unwrap_err();
    assert!(matches!(&error, BackendError::Refused { status: 400, .. }), "{error}");
    // 70 MiB without a length.
    let mut huge = Reply::new(200, "application/json", "").framed(Framing::Chunked);
    huge.pieces = vec![Piece::Bytes(vec![b' '; 1 << 20]); 70];
    let server = ScriptedServer::start([huge.clone()]);
    let error = ask(&server, false).await.unwrap_err();
    assert!(
        matches!(&error, BackendError::Malformed { reason, .. } if reason.contains("64 MiB")),
        "{error}"
    );
    // An error's body is read only so far.
    huge.status = 400;
    huge.pieces.push(Piece::Hang);
    let server = ScriptedServer::start([huge]);
    let error = ask(&server, false).await.unwrap_err();
    assert!(matches!(error, BackendError::Refused { status: 400, .. }), "{error}");
    // One endless event.
    let mut line = Reply::sse("data: ");
    line.pieces.extend(vec![Piece::Bytes(vec![b'x'; 1 << 20]); 17]);
    let server = ScriptedServer::start([line]);
    let error = ask(&server, true).await.unwrap_err();
    assert!(
        matches!(&error, BackendError::Malformed { reason, .. } if reason.contains("larger")),
        "{error}"
    );
}

#[tokio::test]
async fn c89_no_key_in_any_error() {
    const KEY: &str = "sk-SENTINEL-0123456789";
    let keyed = |url: &str| {
        let mut profile = quick(url);
        profile.key = Some(Secret::new(KEY));
        profile
            .headers
            .push(("x-extra".into(), Secret::new("Token SENTINEL-header")));
        profile
    };
    let echo = format!("bad key {KEY}, header Token SENTINEL-header");
    let replies = [
        Reply::error(404, "not_found", &echo),
        Reply::error(401, KEY, &echo),
        Reply::new(500, "text/html", format!("<html>{echo}</html>")),
        Reply::new(200, "application/json", format!("not json {echo}")),
        Reply::sse(format!("data: {{oops {echo}\n\n")),
        Reply::json(200, &json!({"error": {"message": echo}})),
        Reply::new(302, "", "").header("location", "https://user:SENTINEL@elsewhere.test/v1?key=SENTINEL"),
        Reply::never(),
    ];
    let mut errors = Vec::new();
    for reply in replies {
        let server = ScriptedServer::start([reply]);
        let url = server.url().replace("http://", "http://me:SENTINEL-pw@") + "?key=SENTINEL-query";
        let profile = keyed(&url);
        assert!(!format!("{profile:?}").contains("SENTINEL"));
        let dry = open(profile.clone())
            .dry_run(&Question::default().view(), true)
            .unwrap();
        assert!(
            !dry.target.contains("SENTINEL") && !dry.body.contains("SENTINEL"),
            "{dry:?}"
        );
        errors.push(ask_all(profile, &Question::default(), &cx(true)).await.1.unwrap());
        let request = server.requests().remove(0);
        assert_eq!(request.header("authorization"), Some(&*format!("Bearer {KEY}")));
        assert_eq!(request.path, "/v1/chat/completions?key=SENTINEL-query");
    }
    // Refused connections.
    let nobody = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let url = format!("http://me:SENTINEL@{nobody}/v1?key=SENTINEL");
    errors.push(ask_all(keyed(&url), &Question::default(), &cx(true)).await.1.unwrap());
    // A server that does not speak TLS.
    let server = ScriptedServer::start(Vec::<Reply>::new());
    let url = server.url().replace("http://", "https://me:SENTINEL@");
    errors.push(ask_all(keyed(&url), &Question::default(), &cx(true)).await.1.unwrap());
    // Settings that can't work.
    for url in ["SENTINEL", "ftp://SENTINEL@h/", "http://[SENTINEL"] {
        errors.push(backend().open(std::sync::Arc::new(keyed(url))).err().unwrap());
    }
    let mut broken = keyed("http://127.0.0.1:9");
    broken.key = Some(Secret::new("SENTINEL\n"));
    errors.push(backend().open(std::sync::Arc::new(broken)).err().unwrap());
    for error in &errors {
        let shown = format!("{error} {error:?} {:?}", error.hints());
        assert!(!shown.contains("SENTINEL"), "{shown}");
    }
    assert!(matches!(errors[9], BackendError::Unreachable { .. }), "{:?}", errors[9]);
    assert!(
        matches!(&errors[6], BackendError::Refused { status: 302, message, .. } if message.contains("https://elsewhere.test/v1"))
    );
    assert!(matches!(errors[8], BackendError::Unreachable { .. }), "{:?}", errors[8]);
}

#[tokio::test]
async fn a_key_that_is_needed_is_asked_for_before_anything_is_sent() {
    let openai = profile("https://api.openai.com/v1");
    assert!(open(openai.clone()).dry_run(&Question::default().view(), true).is_ok());
    let error = ask_all(openai, &Question::default(), &cx(true)).await.1.unwrap();
    assert!(
        error.to_string().contains("OPENAI_API_KEY") && error.kind() == ErrorKind::Config,
        "{error}"
    );
}
