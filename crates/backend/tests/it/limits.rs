//! How many requests an endpoint gets.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use decanus_backend::profile::Limits;
use decanus_backend::{BackendError, CallCx, Conversation, Delta, Governor, Profile};
use decanus_testkit::{Piece, Reply, ScriptedServer};
use futures::StreamExt;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use crate::support::{Question, collect, cx, go_on, open, profile};

fn limited(url: &str, limits: Limits) -> Profile {
    let mut profile = profile(url);
    profile.limits = limits;
    profile
}

fn behind(governor: &Governor, profile: Profile) -> Box<dyn Conversation> {
    governor.limit(open(profile.clone()), &Arc::new(profile))
}

fn at_once(n: u32) -> Limits {
    Limits {
        max_concurrency: Some(n),
        ..Limits::default()
    }
}

fn requests(n: f64) -> Limits {
    Limits {
        requests_per_minute: Some(n),
        ..Limits::default()
    }
}

async fn text(conversation: &mut dyn Conversation, cx: &CallCx) -> Result<String, BackendError> {
    match go_on(conversation, &Question::default(), cx).await {
        (deltas, None) => Ok(collect(&deltas).text),
        (_, Some(error)) => Err(error),
    }
}

/// Answers each request after a while, on a connection of its own, and counts how many are open at once.
async fn slow(open: Arc<AtomicUsize>, most: Arc<AtomicUsize>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/v1", listener.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let (open, most) = (open.clone(), most.clone());
            tokio::spawn(async move {
                let mut seen = Vec::new();
                while !seen.ends_with(b"}") {
                    if stream.read_buf(&mut seen).await.unwrap() == 0 {
                        return;
                    }
                }
                let now = open.fetch_add(1, Ordering::SeqCst) + 1;
                most.fetch_max(now, Ordering::SeqCst);
                tokio::time::sleep(Duration::from_millis(40)).await;
                let body = r#"{"choices":[{"message":{"content":"ok"},"finish_reason":"stop"}]}"#;
                let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\n";
                let answer = format!("{head}content-length: {}\r\n\r\n{body}", body.len());
                open.fetch_sub(1, Ordering::SeqCst);
                stream.write_all(answer.as_bytes()).await.unwrap();
            });
        }
    });
    url
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn twenty_requests_go_through_three_places() {
    let most: Arc<AtomicUsize> = Arc::default();
    let url = slow(Arc::default(), most.clone()).await;
    let governor = Governor::new();
    let asked: Vec<_> = (0..20)
        .map(|_| {
            let mut conversation = behind(&governor, limited(&url, at_once(3)));
            tokio::spawn(async move { text(&mut *conversation, &cx(false)).await })
        })
        .collect();
    for answer in asked {
        assert_eq!(answer.await.unwrap().unwrap(), "ok");
    }
    assert_eq!(most.load(Ordering::SeqCst), 3, "as many as may, and no more");
}

#[tokio::test]
async fn endpoints_without_limits_and_other_endpoints_do_not_wait() {
    let hanging = ScriptedServer::always(Reply::never());
    let server = ScriptedServer::always(Reply::chat_text("ok"));
    let governor = Governor::new();
    let mut first = behind(&governor, limited(&hanging.url(), at_once(1)));
    let (question, cx) = (Question::default(), cx(false));
    let view = question.view();
    let mut held = first.complete(&view, &cx);
    assert!(
        tokio::time::timeout(Duration::from_millis(100), held.next())
            .await
            .is_err()
    );
    // The same name at another URL, another name, and no limits.
    let mut other = limited(&hanging.url(), at_once(1));
    (other.name, other.url) = ("other".into(), server.url());
    for profile in [limited(&server.url(), at_once(1)), other, profile(&server.url())] {
        assert_eq!(text(&mut *behind(&governor, profile), &cx).await.unwrap(), "ok");
    }
    assert_eq!(hanging.requests().len(), 1);
}

#[tokio::test]
async fn a_place_is_free_again_when_an_answer_is_dropped() {
    let server = ScriptedServer::start([Reply::sse("").then(Piece::Hang), Reply::chat_text("ok")]);
    let governor = Governor::new();
    let mut first = behind(&governor, limited(&server.url(), at_once(1)));
    let mut second = behind(&governor, limited(&server.url(), at_once(1)));
    let (question, cx) = (Question::default(), cx(true));
    let view = question.view();
    {
        let mut answer = first.complete(&view, &cx);
        assert!(
            tokio::time::timeout(Duration::from_millis(200), answer.next())
                .await
                .is_err()
        );
        let mut waiting = second.complete(&view, &cx);
        assert!(
            tokio::time::timeout(Duration::from_millis(200), waiting.next())
                .await
                .is_err()
        );
        assert_eq!(server.requests().len(), 1);
    }
    assert_eq!(text(&mut *second, &cx).await.unwrap(), "ok");
    server.verify();
}

#[tokio::test]
async fn waiting_can_be_cancelled_and_takes_of_the_time() {
    let server = ScriptedServer::always(Reply::never());
    let governor = Governor::new();
    let mut first = behind(&governor, limited(&server.url(), at_once(1)));
    let (question, cx0) = (Question::default(), cx(false));
    let view = question.view();
    let mut held = first.complete(&view, &cx0);
    assert!(
        tokio::time::timeout(Duration::from_millis(100), held.next())
            .await
            .is_err()
    );
    let mut second = behind(&governor, limited(&server.url(), at_once(1)));
    let cx1 = cx(false);
    let cancel = cx1.cancel.clone();
    tokio::spawn(async move {
        tokio::time::sleep(Duration::from_millis(50)).await;
        cancel.cancel();
    });
    let start = Instant::now();
    let error = text(&mut *second, &cx1).await.unwrap_err();
    assert!(
        matches!(error, BackendError::Cancelled) && start.elapsed() < Duration::from_secs(10),
        "{error}"
    );
    let short = CallCx {
        timeout: Duration::from_millis(100),
        ..cx(false)
    };
    // The second waits for the place, the third behind it.
    let mut third = behind(&governor, limited(&server.url(), at_once(1)));
    let (a, b) = tokio::join!(text(&mut *second, &short), text(&mut *third, &short));
    for error in [a.unwrap_err(), b.unwrap_err()] {
        assert!(matches!(error, BackendError::TimedOut { .. }), "{error}");
        assert_eq!(
            error.to_string(),
            "endpoint `test` took too long: it waited for `max_concurrency: 1`; the whole request may take 0.1s"
        );
    }
    assert_eq!(server.requests().len(), 1, "nothing was sent");
}

#[tokio::test]
async fn requests_are_spread_over_the_minute() {
    let server = ScriptedServer::always(Reply::chat_text("ok"));
    let governor = Governor::with_minute(Duration::from_millis(400));
    let start = Instant::now();
    // Two at once, then one every 200 ms.
    let asked: Vec<_> = (0..4)
        .map(|_| {
            let mut conversation = behind(&governor, limited(&server.url(), requests(2.0)));
            tokio::spawn(async move { text(&mut *conversation, &cx(false)).await })
        })
        .collect();
    for answer in asked {
        answer.await.unwrap().unwrap();
    }
    assert!(start.elapsed() >= Duration::from_millis(400), "{:?}", start.elapsed());
}

#[tokio::test]
async fn a_minute_that_is_too_far_away_is_not_waited_for() {
    let server = ScriptedServer::always(Reply::chat_text("ok"));
    let governor = Governor::new();
    let mut conversation = behind(&governor, limited(&server.url(), requests(1.0)));
    let cx = CallCx {
        timeout: Duration::from_secs(20),
        ..cx(false)
    };
    text(&mut *conversation, &cx).await.unwrap();
    let start = Instant::now();
    let error = text(&mut *conversation, &cx).await.unwrap_err();
    assert!(start.elapsed() < Duration::from_secs(10));
    let words = error.to_string();
    assert!(
        matches!(error, BackendError::TimedOut { .. }) && words.contains("`requests_per_minute: 1` allows the next"),
        "{words}"
    );
}

#[tokio::test]
async fn further_tries_count_and_hold_no_place_meanwhile() {
    let busy = || Reply::error(503, "busy", "later").header("retry-after", "1");
    let server = ScriptedServer::start([busy(), Reply::chat_text("between"), Reply::chat_text("after")]);
    let governor = Governor::new();
    let limits = Limits {
        requests_per_minute: Some(1000.0),
        ..at_once(1)
    };
    let mut first = behind(&governor, limited(&server.url(), limits));
    let mut second = behind(&governor, limited(&server.url(), limits));
    let (one, two) = (cx(false), cx(false));
    let (a, b) = tokio::join!(text(&mut *first, &one), async {
        tokio::time::sleep(Duration::from_millis(200)).await;
        text(&mut *second, &two).await
    });
    assert_eq!((a.unwrap(), b.unwrap()), ("after".into(), "between".into()));
    server.verify();
    // A try for which the minute has no room is not made; the error is that of the first.
    let server = ScriptedServer::start([Reply::error(503, "busy", "later")]);
    let mut conversation = behind(&Governor::new(), limited(&server.url(), requests(1.0)));
    let error = text(&mut *conversation, &cx(false)).await.unwrap_err();
    assert!(matches!(error, BackendError::Refused { status: 503, .. }), "{error}");
    server.verify();
}

#[tokio::test]
async fn tokens_are_charged_when_they_are_known() {
    let server = ScriptedServer::always(Reply::chat_text("ok"));
    let governor = Governor::with_minute(Duration::from_millis(300));
    let limits = Limits {
        tokens_per_minute: Some(10.0),
        ..Limits::default()
    };
    let mut conversation = behind(&governor, limited(&server.url(), limits));
    let start = Instant::now();
    text(&mut *conversation, &cx(false)).await.unwrap();
    // 15 tokens of 10: what is overdrawn takes 180 ms to come back.
    let (deltas, error) = go_on(&mut *conversation, &Question::default(), &cx(true)).await;
    assert!(error.is_none() && deltas.iter().any(|d| matches!(d, Delta::Usage(u) if u.tt == Some(15))));
    assert!(start.elapsed() >= Duration::from_millis(150), "{:?}", start.elapsed());
}
