//! Ends before the answer: the caller stops it, a tool breaks down, the store fails.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use decanus_agent::{AgentError, Request};
use decanus_base::{Diagnostic, ErrorKind};
use decanus_chat::{ChatFile, Effect};
use decanus_testkit::reply::chat_events;
use decanus_testkit::{Piece, Reply, ScriptedServer};
use decanus_tool::{FnTool, ToolError};
use serde_json::json;

use crate::support::*;

fn is_interrupted(error: &Option<AgentError>) -> bool {
    matches!(error, Some(e @ AgentError::Interrupted) if e.kind() == ErrorKind::Interrupted)
}

#[tokio::test]
async fn cancelled_during_the_stream() {
    let body = chat_events(&[json!({"content": "Once upon"})], "stop");
    let half = body.find("Once upon").unwrap() + "Once upon\"},\"finish_reason\":null}]}\n\n".len();
    let server = ScriptedServer::start([Reply::sse(&body.as_bytes()[..half]).then(Piece::Hang)]);
    let bench = Bench::new();
    let cancel = bench.cancel.clone();
    let events = bench.events.clone();
    tokio::spawn(async move {
        while !events
            .lock()
            .unwrap()
            .iter()
            .any(|e| matches!(e, decanus_tool::Event::Text { .. }))
        {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        cancel.cancel();
    });
    let start = Instant::now();
    let (outcome, store) = bench.ask(&mut agent(&server, []), "go").await;
    assert!(is_interrupted(&outcome.error), "{:?}", outcome.error);
    assert!(start.elapsed() < Duration::from_secs(10));
    assert_eq!(outcome.answer, "Once upon", "as much as arrived");
    assert_eq!(roles(&store.messages), ["user", "assistant"], "and it is kept");
    assert!(
        store.messages[1].content.contains("finish=interrupted"),
        "{:?}",
        store.messages
    );
}

#[tokio::test]
async fn cancelled_while_tools_run() {
    let calls = [
        ("a", "echo", json!({"ms": 600_000})),
        ("b", "echo", json!({"text": "quick"})),
        ("c", "echo", json!({"ms": 600_000, "text": "c"})),
    ];
    let server = ScriptedServer::start([Reply::chat_calls(&calls)]);
    let bench = Bench::new();
    let cancel = bench.cancel.clone();
    let counts: Arc<Counts> = Arc::default();
    let seen = counts.clone();
    tokio::spawn(async move {
        while seen.calls.load(Ordering::SeqCst) < 3 || seen.now.load(Ordering::SeqCst) > 2 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        cancel.cancel();
    });
    let start = Instant::now();
    let (outcome, store) = bench
        .ask(&mut agent(&server, [work("echo", Effect::Unknown, &counts)]), "go")
        .await;
    assert!(is_interrupted(&outcome.error), "{:?}", outcome.error);
    assert!(start.elapsed() < Duration::from_secs(20));
    assert_paired(&store.messages);
    for output in outputs(&store.messages) {
        if output.id == "b" {
            assert_eq!((output.content.as_str(), output.error.as_deref()), ("quick", None));
        } else {
            assert_eq!(output.error.as_deref(), Some("Interrupted"));
            assert!(
                output.content.contains("stopped before it was done"),
                "{}",
                output.content
            );
        }
    }
    assert_eq!(server.requests().len(), 1);
}

#[tokio::test]
async fn cancelled_by_a_tool_that_is_done() {
    // Between the output and the next request.
    let server = ScriptedServer::start([Reply::chat_calls(&[("a", "last", none()), ("b", "last", none())])]);
    let bench = Bench::new();
    let cancel = bench.cancel.clone();
    let last = simple("last", Effect::ReadOnly, move || {
        cancel.cancel();
        Ok(json!("made"))
    });
    let (outcome, store) = bench.ask(&mut agent(&server, [last]), "go").await;
    assert!(is_interrupted(&outcome.error), "{:?}", outcome.error);
    assert_paired(&store.messages);
    assert_eq!(outputs(&store.messages)[0].content, "made");
    assert_eq!(server.requests().len(), 1);
}

#[tokio::test]
async fn what_waits_for_a_place_is_not_started_any_more() {
    let calls = [
        ("a", "stop", none()),
        ("b", "echo", json!({"text": "b"})),
        ("c", "nope", none()),
    ];
    let server = ScriptedServer::start([Reply::chat_calls(&calls)]);
    let mut bench = Bench::new();
    bench.limits.parallel_calls = 1;
    let cancel = bench.cancel.clone();
    let stop = simple("stop", Effect::Unknown, move || {
        cancel.cancel();
        Ok(json!("made"))
    });
    let counts: Arc<Counts> = Arc::default();
    let (_, store) = bench
        .ask(
            &mut agent(&server, [stop, work("echo", Effect::Unknown, &counts)]),
            "go",
        )
        .await;
    assert_eq!(counts.calls.load(Ordering::SeqCst), 0);
    assert_paired(&store.messages);
    let outputs = outputs(&store.messages);
    let waiting = outputs.iter().find(|o| o.id == "b").unwrap();
    assert!(waiting.content.contains("not started"), "{}", waiting.content);
}

#[tokio::test]
async fn a_tool_that_breaks_down_is_answered() {
    let server = ScriptedServer::start([
        Reply::chat_calls(&[("a", "breaks", none()), ("b", "fails", none())]),
        Reply::chat_text("I see"),
    ]);
    let breaks = simple("breaks", Effect::Unknown, || panic!("no such luck"));
    let fails = simple("fails", Effect::Unknown, || {
        Err(ToolError::respond(decanus_tool::ToolErrorClass::Network, "no route"))
    });
    let (outcome, store) = Bench::new().ask(&mut agent(&server, [breaks, fails]), "go").await;
    assert!(outcome.error.is_none());
    assert_eq!(outcome.answer, "I see");
    let outputs = outputs(&store.messages);
    let by = |id: &str| outputs.iter().find(|o| o.id == id).unwrap();
    assert!(by("a").content.contains("no such luck"), "{}", by("a").content);
    assert_eq!(by("a").error.as_deref(), Some("ToolError"));
    assert_eq!(by("b").content, "Tool 'fails' execution error: no route");
    assert_eq!(by("b").error.as_deref(), Some("ToolNetworkError"));
}

#[tokio::test]
async fn a_tool_can_end_the_run_and_all_calls_have_outputs() {
    let calls = [("a", "over", none()), ("b", "echo", json!({"text": "b"}))];
    let server = ScriptedServer::start([Reply::chat_calls(&calls)]);
    let over = simple("over", Effect::Unknown, || {
        Err(ToolError::Fatal("the licence is gone".into()))
    });
    let counts = Arc::default();
    let mut agent = agent(&server, [over, work("echo", Effect::Unknown, &counts)]);
    let (outcome, store) = Bench::new().ask(&mut agent, "go").await;
    let error = outcome.error.unwrap();
    assert_eq!(error.kind(), ErrorKind::Tool);
    assert!(
        error.to_string().contains("over") && error.to_string().contains("the licence is gone"),
        "{error}"
    );
    assert_paired(&store.messages);
}

#[tokio::test]
async fn a_store_that_fails_stops_the_run_before_anything_is_done() {
    // Append 1 is the question, 2 the calls, 3 and 4 their outputs, 5 the answer.
    for (at, requests, runs) in [(1, 0, 0), (2, 1, 0), (3, 1, 2), (5, 2, 2)] {
        let calls = [("a", "echo", json!({"text": "a"})), ("b", "echo", json!({"text": "b"}))];
        let server = ScriptedServer::start([Reply::chat_calls(&calls), Reply::chat_text("end")]);
        let counts: Arc<Counts> = Arc::default();
        let mut agent = agent(&server, [work("echo", Effect::Unknown, &counts)]);
        let request = Request {
            question: Some("go".into()),
            ..Request::default()
        };
        let mut store = Failing::at(at);
        let outcome = agent.run(request, &mut store, &Bench::new().run()).await;
        let error = outcome.error.unwrap();
        assert!(error.to_string().contains("No space left"), "{error}");
        assert_eq!(error.kind(), ErrorKind::Internal);
        assert_eq!(
            (server.requests().len(), counts.calls.load(Ordering::SeqCst)),
            (requests, runs),
            "append {at}"
        );
        if at == 5 {
            assert_eq!(outcome.answer, "end", "the answer is not lost");
        }
    }
}

/// A tool that reads the chat finds its own call there, and the question before it.
#[tokio::test]
async fn calls_are_on_disk_before_they_run() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.chat");
    let seen: Arc<AtomicUsize> = Arc::default();
    let (file, found) = (path.clone(), seen.clone());
    let peek = FnTool::new("peek", "", move |_: Args, cx| {
        let (file, found) = (file.clone(), found.clone());
        async move {
            let text = std::fs::read_to_string(&file).unwrap();
            let calls = calls(&decanus_chat::parse(&text).messages);
            assert!(text.contains("\nuser:") && text.contains("look"), "{text}");
            found.fetch_add(calls.iter().filter(|c| c.id == cx.call_id).count(), Ordering::SeqCst);
            Ok::<_, ToolError>(calls.len())
        }
    });
    let server = ScriptedServer::start([
        Reply::chat_calls(&[
            ("p1", "peek", json!({"text": "1"})),
            ("p2", "peek", json!({"text": "2"})),
        ]),
        Reply::chat_calls(&[("p3", "peek", none())]),
        Reply::chat_text("seen"),
    ]);
    let (mut store, _) = ChatFile::open(&path, Duration::ZERO, &|| false).unwrap();
    let request = Request {
        question: Some("look".into()),
        ..Request::default()
    };
    let outcome = agent(&server, [Arc::new(peek) as Arc<dyn decanus_tool::Tool>])
        .run(request, &mut store, &Bench::new().run())
        .await;
    assert_eq!(outcome.answer, "seen");
    assert_eq!(seen.load(Ordering::SeqCst), 3);
    let contents: Vec<String> = outputs(&outcome.messages).into_iter().map(|o| o.content).collect();
    assert_eq!(contents, ["2", "2", "3"], "all calls of an answer are stored at once");
    drop(store);
    let loaded = ChatFile::read(&path).unwrap();
    assert!(loaded.parsed.problems.is_empty(), "{:?}", loaded.parsed.problems);
    // On disk every step has a meta, for its length; in the outcome only those that say something.
    let said = |all: &[decanus_chat::Message]| -> Vec<decanus_chat::Message> {
        all.iter()
            .filter(|m| m.role != decanus_chat::Role::Meta)
            .cloned()
            .collect()
    };
    assert_eq!(said(&loaded.parsed.messages), said(&outcome.messages));
}
