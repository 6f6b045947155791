//! Everything is bounded, and a bound that is reached keeps what there is.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use decanus_base::{Diagnostic, ErrorKind};
use decanus_chat::Effect;
use decanus_testkit::{Reply, ScriptedServer};
use decanus_tool::Event;
use serde_json::json;

use crate::support::*;

/// C46: the fourth identical call gets a notice, after the sixth the run ends.
#[tokio::test]
async fn identical_calls_are_noticed_and_then_ended() {
    let n = std::sync::atomic::AtomicUsize::new(0);
    let server = ScriptedServer::with(move |_| {
        let id = format!("c{}", n.fetch_add(1, Ordering::SeqCst));
        Reply::chat_calls(&[(&id, "list", json!({"text": "."}))])
    });
    let counts: Arc<Counts> = Arc::default();
    let bench = Bench::new();
    let mut agent = agent(&server, [work("list", Effect::ReadOnly, &counts)]);
    let (outcome, store) = bench.ask(&mut agent, "go").await;
    let error = outcome.error.unwrap();
    assert_eq!(
        (error.kind(), error.limit()),
        (ErrorKind::Limit, Some("identical_calls"))
    );
    assert!(error.to_string().contains("list"), "{error}");
    assert_eq!(outcome.rounds, 6);
    assert_eq!(counts.calls.load(Ordering::SeqCst), 3);
    let outputs = outputs(&store.messages);
    let classes: Vec<_> = outputs.iter().map(|o| o.error.as_deref()).collect();
    assert_eq!(
        classes,
        [
            None,
            None,
            None,
            Some("RepeatedCall"),
            Some("RepeatedCall"),
            Some("RepeatedCall")
        ]
    );
    assert!(outputs[3].content.contains("was not run"), "{}", outputs[3].content);
    assert_eq!(sent_outputs(&server, 4)[3].1, outputs[3].content, "the model reads it");
    assert_paired(&store.messages);
    let events = bench.events.lock().unwrap();
    let told = events.iter().filter(|e| matches!(e, Event::Output(_))).count();
    assert_eq!(told, 6, "whoever watches sees the notices too");
}

#[tokio::test]
async fn another_call_between_begins_the_count_again() {
    let n = std::sync::atomic::AtomicUsize::new(0);
    let server = ScriptedServer::with(move |_| {
        let n = n.fetch_add(1, Ordering::SeqCst);
        let text = if n % 3 == 2 { "other" } else { "same" };
        match n {
            12 => Reply::chat_text("end"),
            _ => Reply::chat_calls(&[(&format!("c{n}"), "list", json!({"text": text}))]),
        }
    });
    let counts: Arc<Counts> = Arc::default();
    let mut agent = agent(&server, [work("list", Effect::ReadOnly, &counts)]);
    let (outcome, _) = Bench::new().ask(&mut agent, "go").await;
    assert_eq!(outcome.answer, "end");
    assert_eq!(counts.calls.load(Ordering::SeqCst), 12);
}

#[tokio::test]
async fn the_rounds_limit_keeps_the_conversation() {
    let n = std::sync::atomic::AtomicUsize::new(0);
    let server = ScriptedServer::with(move |_| {
        let n = n.fetch_add(1, Ordering::SeqCst).to_string();
        Reply::chat_calls(&[(&format!("c{n}"), "echo", json!({"text": n}))])
    });
    let counts: Arc<Counts> = Arc::default();
    let mut bench = Bench::new();
    bench.limits.rounds = 3;
    let (outcome, store) = bench
        .ask(&mut agent(&server, [work("echo", Effect::Unknown, &counts)]), "go")
        .await;
    let error = outcome.error.unwrap();
    assert_eq!((error.kind(), error.limit()), (ErrorKind::Limit, Some("rounds")));
    assert_eq!(
        (
            outcome.rounds,
            server.requests().len(),
            counts.calls.load(Ordering::SeqCst)
        ),
        (3, 3, 3)
    );
    assert_eq!(store.messages, outcome.messages);
    assert_eq!(
        roles(&outcome.messages),
        [
            "user",
            "function_call",
            "function_call_output",
            "function_call",
            "function_call_output",
            "function_call",
            "function_call_output"
        ]
    );
    assert_eq!(outcome.usage.tt, Some(45));
}

#[tokio::test]
async fn a_result_over_the_limit_is_kept_in_a_file() {
    let server = ScriptedServer::start([Reply::chat_calls(&[("c", "big", none())]), Reply::chat_text("ok")]);
    let whole = format!("begin{}end", "ñ".repeat(20_000));
    let given = whole.clone();
    let big = simple("big", Effect::ReadOnly, move || Ok(json!(given)));
    let mut bench = Bench::new();
    bench.limits.result_chars = 10_000;
    let (_, store) = bench.ask(&mut agent(&server, [big]), "go").await;
    let output = &outputs(&store.messages)[0];
    assert!(output.truncated && output.error.is_none());
    assert!(output.content.starts_with("beginñ") && output.content.ends_with("ñend"));
    assert!(output.content.chars().count() < 9_000);
    assert!(output.content.contains("20008 characters"), "the size is told");
    let file = std::fs::read_dir(bench.folder.path().join("results"))
        .unwrap()
        .next()
        .unwrap()
        .unwrap()
        .path();
    assert!(output.content.contains(file.to_str().unwrap()), "and the file");
    assert_eq!(std::fs::read_to_string(file).unwrap(), whole);
    assert_eq!(sent_outputs(&server, 1)[0].1, output.content);
}

#[tokio::test]
async fn a_tool_that_takes_too_long_is_stopped() {
    let calls = [
        ("c", "echo", json!({"ms": 60_000})),
        ("d", "echo", json!({"text": "quick"})),
    ];
    let server = ScriptedServer::start([Reply::chat_calls(&calls), Reply::chat_text("ok")]);
    let counts = Arc::default();
    let mut bench = Bench::new();
    bench.limits.tool_time = Duration::from_millis(100);
    let start = Instant::now();
    let (outcome, store) = bench
        .ask(&mut agent(&server, [work("echo", Effect::Unknown, &counts)]), "go")
        .await;
    assert_eq!(outcome.answer, "ok");
    assert!(start.elapsed() < Duration::from_secs(30));
    let outputs = outputs(&store.messages);
    let late = outputs.iter().find(|o| o.id == "c").unwrap();
    assert_eq!(late.error.as_deref(), Some("ToolTimeoutError"));
    assert!(late.content.contains("longer than"), "{}", late.content);
    assert_eq!(outputs.iter().find(|o| o.id == "d").unwrap().content, "quick");
}

#[tokio::test]
async fn a_request_has_its_time_too() {
    let server = ScriptedServer::always(Reply::never());
    let mut bench = Bench::new();
    bench.limits.request_time = Duration::from_millis(300);
    let (outcome, store) = bench.ask(&mut agent(&server, []), "go").await;
    let error = outcome.error.unwrap();
    assert_eq!(error.kind(), ErrorKind::Provider);
    assert!(error.to_string().contains("took too long"), "{error}");
    assert_eq!(roles(&store.messages), ["user"]);
}
