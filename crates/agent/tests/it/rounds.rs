//! Rounds: what is asked, what is run, what comes back.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use decanus_agent::Request;
use decanus_chat::{Effect, Message, Meta, Role, Usage};
use decanus_testkit::reply::chat_events;
use decanus_testkit::{Reply, ScriptedServer, fixtures};
use decanus_tool::Event;
use serde_json::{Value, json};

use crate::support::*;

#[tokio::test]
async fn a_text_is_the_answer() {
    let server = ScriptedServer::start([Reply::chat_stream(&["Hel", "lo", "."])]);
    let bench = Bench::new();
    let (outcome, store) = bench.ask(&mut agent(&server, []), "Hi").await;
    assert!(outcome.error.is_none(), "{:?}", outcome.error);
    assert_eq!((outcome.answer.as_str(), outcome.rounds), ("Hello.", 1));
    assert_eq!(
        (outcome.usage.pt, outcome.usage.ct, outcome.usage.tt),
        (Some(10), Some(5), Some(15))
    );
    assert_eq!(store.messages, outcome.messages);
    assert_eq!(roles(&store.messages), ["user", "assistant"]);
    let texts: String = bench
        .events
        .lock()
        .unwrap()
        .iter()
        .fold(String::new(), |all, e| match e {
            Event::Text { text, .. } => all + text,
            _ => all,
        });
    assert_eq!(texts, "Hello.");
    assert_eq!(sent(&server, 0), json!([{"role": "user", "content": "Hi"}]));
    server.verify();
}

#[tokio::test]
async fn a_call_is_run_and_its_output_is_sent_after_the_same_bytes() {
    let server = ScriptedServer::start([
        Reply::chat_call_stream(&[("c1", "echo", json!({"text": "ñ \"q\""}))]),
        Reply::chat_stream(&["It said ñ."]),
    ]);
    let counts = Arc::default();
    let mut agent = agent(&server, [work("echo", Effect::Unknown, &counts)]);
    let (outcome, store) = Bench::new().ask(&mut agent, "Echo!").await;
    assert_eq!((outcome.answer.as_str(), outcome.rounds), ("It said ñ.", 2));
    assert_eq!(outcome.usage.tt, Some(30));
    assert_eq!(
        roles(&store.messages),
        ["user", "function_call", "function_call_output", "assistant"]
    );
    assert_eq!(counts.calls.load(Ordering::SeqCst), 1);
    assert_eq!(
        sent(&server, 1),
        json!([
            {"role": "user", "content": "Echo!"},
            {"role": "assistant", "content": null, "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "echo", "arguments": "{\"text\":\"ñ \\\"q\\\"\"}"}}]},
            {"role": "tool", "tool_call_id": "c1", "content": "ñ \"q\""},
        ])
    );
    // Up to the end of the first request's messages the second one has the same bytes.
    let requests = server.requests();
    let (first, second) = (requests[0].text(), requests[1].text());
    let shared = first.find("Echo!").unwrap() + "Echo!\"}".len();
    assert_eq!(first[..shared], second[..shared]);
    assert!(first[shared..].starts_with(']') && second[shared..].starts_with(','));
    server.verify();
}

#[tokio::test]
async fn calls_of_one_answer_run_side_by_side_and_are_sent_in_call_order() {
    let server = ScriptedServer::start([
        Reply::chat_call_stream(&[
            ("slow", "echo", json!({"text": "1", "ms": 600})),
            ("quick", "echo", json!({"text": "2", "ms": 20})),
            ("third", "echo", json!({"text": "3", "ms": 300})),
        ]),
        Reply::chat_text("ok"),
    ]);
    let counts = Arc::default();
    let mut agent = agent(&server, [work("echo", Effect::Unknown, &counts)]);
    let (_, store) = Bench::new().ask(&mut agent, "go").await;
    assert_eq!(counts.most.load(Ordering::SeqCst), 3, "all three at the same time");
    let stored: Vec<String> = outputs(&store.messages).into_iter().map(|o| o.id).collect();
    assert_eq!(stored, ["quick", "third", "slow"], "stored as they come");
    assert_paired(&store.messages);
    let expected = [("slow", "1"), ("quick", "2"), ("third", "3")].map(|(i, t)| (i.to_owned(), t.to_owned()));
    assert_eq!(sent_outputs(&server, 1), expected);
}

#[tokio::test]
async fn the_parallel_limit_holds() {
    let calls: Vec<_> = (0..6)
        .map(|n| (format!("c{n}"), json!({"text": n.to_string(), "ms": 50})))
        .collect();
    let calls: Vec<_> = calls.iter().map(|(id, a)| (id.as_str(), "echo", a.clone())).collect();
    let server = ScriptedServer::start([Reply::chat_calls(&calls), Reply::chat_text("ok")]);
    let counts = Arc::default();
    let mut bench = Bench::new();
    bench.limits.parallel_calls = 2;
    let (_, store) = bench
        .ask(&mut agent(&server, [work("echo", Effect::Unknown, &counts)]), "go")
        .await;
    assert_eq!(counts.most.load(Ordering::SeqCst), 2);
    assert_eq!(outputs(&store.messages).len(), 6);
}

#[tokio::test]
async fn equal_calls_of_a_safe_tool_run_once_and_all_get_the_output() {
    for (effect, runs) in [(Effect::ReadOnly, 1), (Effect::Unknown, 2)] {
        let twice = [("a", "echo", json!({"text": "x"})), ("b", "echo", json!({"text": "x"}))];
        let server = ScriptedServer::start([Reply::chat_calls(&twice), Reply::chat_text("ok")]);
        let counts = Arc::default();
        let bench = Bench::new();
        let (_, store) = bench
            .ask(&mut agent(&server, [work("echo", effect, &counts)]), "go")
            .await;
        assert_eq!(counts.calls.load(Ordering::SeqCst), runs, "{effect:?}");
        assert_paired(&store.messages);
        let told: Vec<String> = bench
            .events
            .lock()
            .unwrap()
            .iter()
            .filter_map(|e| match e {
                Event::Output(o) => Some(o.id.clone()),
                _ => None,
            })
            .collect();
        assert_eq!(told, ["a", "b"], "whoever watches is told of every output");
    }
}

/// C16: the calls count, whatever the reason says.
#[tokio::test]
async fn calls_are_run_although_the_answer_says_stop() {
    let reply = || Reply::new(200, "application/json", fixtures::case("C16.json"));
    let server = ScriptedServer::start([reply(), Reply::chat_text("done")]);
    let lookup = simple("lookup", Effect::ReadOnly, || Ok(json!("found")));
    let (outcome, store) = Bench::new().ask(&mut agent(&server, [lookup]), "go").await;
    assert_eq!(outcome.answer, "done");
    assert_eq!(
        roles(&store.messages),
        [
            "user",
            "function_call",
            "function_call",
            "assistant",
            "function_call_output",
            "function_call_output",
            "assistant"
        ]
    );
    assert_eq!(sent(&server, 1)[1]["content"], "Let me look.");
    server.verify();
}

/// C17: nothing at all is asked for once more, then it is an error.
#[tokio::test]
async fn an_empty_turn_is_retried_once() {
    let empty = || Reply::new(200, "application/json", fixtures::case("C17.json"));
    let server = ScriptedServer::start([empty(), Reply::chat_text("here")]);
    let bench = Bench::new();
    let (outcome, store) = bench.ask(&mut agent(&server, []), "go").await;
    assert_eq!((outcome.answer.as_str(), outcome.rounds), ("here", 2));
    assert_eq!(roles(&store.messages), ["user", "assistant"]);
    assert!(
        bench
            .events
            .lock()
            .unwrap()
            .iter()
            .any(|e| matches!(e, Event::Warning(w) if w.contains("empty answer")))
    );
    server.verify();

    let server = ScriptedServer::start([empty(), empty()]);
    let (outcome, store) = Bench::new().ask(&mut agent(&server, []), "go").await;
    let error = outcome.error.unwrap();
    assert_eq!(error.to_string(), "scripted gave an empty answer, twice");
    assert_eq!(
        decanus_base::Diagnostic::kind(&error),
        decanus_base::ErrorKind::Provider
    );
    assert_eq!(outcome.usage.tt, Some(24), "both requests are counted");
    assert_eq!(roles(&store.messages), ["user"]);
    server.verify();
}

#[tokio::test]
async fn an_unknown_tool_is_answered_and_the_loop_goes_on() {
    let server = ScriptedServer::start([Reply::chat_calls(&[("c", "ecko", none())]), Reply::chat_text("sorry")]);
    let counts = Arc::default();
    let mut agent = agent(&server, [work("echo", Effect::Unknown, &counts)]);
    let (outcome, store) = Bench::new().ask(&mut agent, "go").await;
    assert!(outcome.error.is_none());
    assert_eq!(outcome.answer, "sorry");
    let output = &outputs(&store.messages)[0];
    assert_eq!(output.error.as_deref(), Some("ToolArgumentError"));
    assert!(
        output.content.contains("Unknown tool 'ecko'") && output.content.contains("did you mean echo?"),
        "{}",
        output.content
    );
    assert_eq!(sent_outputs(&server, 1)[0].1, output.content);
}

/// C20: arguments that lost their last brace are shown back, never taken for none.
#[tokio::test]
async fn broken_arguments_are_shown_back() {
    let server = ScriptedServer::start([Reply::sse(fixtures::case("C20.sse")), Reply::chat_text("ok")]);
    let counts: Arc<Counts> = Arc::default();
    let mut agent = agent(&server, [work("get", Effect::Unknown, &counts)]);
    let (outcome, store) = Bench::new().ask(&mut agent, "go").await;
    assert_eq!(outcome.answer, "ok");
    assert_eq!(counts.calls.load(Ordering::SeqCst), 0);
    let output = &outputs(&store.messages)[0];
    assert!(
        output.content.contains("not valid JSON") && output.content.contains("{\"id\": 42"),
        "{}",
        output.content
    );
    assert!(sent(&server, 1)[1]["tool_calls"][0]["function"]["arguments"].is_string());
}

/// C23: the same id in one answer, an empty one, and one of an earlier round.
#[tokio::test]
async fn ids_are_unique_in_the_conversation() {
    let reply = || Reply::new(200, "application/json", fixtures::case("C23.json"));
    let server = ScriptedServer::start([reply(), reply(), Reply::chat_text("ok")]);
    let read = FnRead::tool();
    let (outcome, store) = Bench::new().ask(&mut agent(&server, [read]), "go").await;
    assert_eq!(outcome.answer, "ok");
    let ids: Vec<String> = calls(&store.messages).into_iter().map(|c| c.id).collect();
    let unique: std::collections::HashSet<&String> = ids.iter().collect();
    assert_eq!((ids.len(), unique.len()), (6, 6), "{ids:?}");
    assert_eq!(ids[0], "x", "the first keeps its own");
    assert_paired(&store.messages);
    // Each output is that of its own call, and what was sent once does not change.
    let by_call: Vec<String> = sent_outputs(&server, 2).into_iter().map(|(_, c)| c).collect();
    assert_eq!(by_call, ["a", "b", "c", "a", "b", "c"]);
    let (second, third) = (sent(&server, 1), sent(&server, 2));
    let count = second.as_array().unwrap().len();
    assert_eq!(second.as_array().unwrap()[..], third.as_array().unwrap()[..count]);
}

/// A tool that gives its argument `p` back.
struct FnRead;

impl FnRead {
    fn tool() -> Arc<dyn decanus_tool::Tool> {
        #[derive(serde::Deserialize, schemars::JsonSchema)]
        struct P {
            p: String,
        }
        Arc::new(decanus_tool::FnTool::new("read", "", |args: P, _| async move {
            Ok::<_, decanus_tool::ToolError>(args.p)
        }))
    }
}

#[tokio::test]
async fn the_choice_of_a_tool_holds_for_the_first_request() {
    let server = ScriptedServer::start([Reply::chat_calls(&[("c", "echo", none())]), Reply::chat_text("ok")]);
    let counts = Arc::default();
    let mut agent = agent(&server, [work("echo", Effect::Unknown, &counts)]);
    let request = Request {
        question: Some("go".into()),
        tool_choice: Some("required".into()),
        ..Request::default()
    };
    let (outcome, _) = Bench::new().go(&mut agent, request).await;
    assert_eq!(outcome.answer, "ok");
    let choice = |n: usize| server.requests()[n].json()["tool_choice"].clone();
    assert_eq!(choice(0), "required");
    assert_ne!(choice(1), "required", "it would have to call for ever");
}

#[tokio::test]
async fn nothing_to_do_asks_nobody() {
    let server = ScriptedServer::start(Vec::<Reply>::new());
    let request = Request {
        messages: vec![Message::user("q"), Message::assistant("a")],
        ..Request::default()
    };
    let (outcome, store) = Bench::new().go(&mut agent(&server, []), request).await;
    assert!(outcome.idle && outcome.error.is_none());
    assert!(store.messages.is_empty());
    server.verify();
}

#[tokio::test]
async fn an_answer_that_the_output_limit_cut_is_said() {
    let body = chat_events(&[json!({"content": "And then"})], "length");
    let server = ScriptedServer::start([Reply::sse(body)]);
    let bench = Bench::new();
    let (outcome, store) = bench.ask(&mut agent(&server, []), "go").await;
    assert!(outcome.error.is_none() && outcome.cut == Some("length"));
    assert_eq!(outcome.answer, "And then");
    assert!(
        bench
            .events
            .lock()
            .unwrap()
            .iter()
            .any(|e| matches!(e, Event::Warning(w) if w.contains("output limit")))
    );
    assert!(
        store
            .messages
            .iter()
            .any(|m| m.role == Role::Meta && m.content.contains("finish=length"))
    );
}

#[tokio::test]
async fn a_dry_run_is_what_is_sent() {
    for stream in [true, false] {
        let server = ScriptedServer::start([Reply::chat_text("ok")]);
        let counts = Arc::default();
        let mut agent = agent(&server, [work("echo", Effect::Unknown, &counts)]);
        let request = || Request {
            messages: vec![Message::new(Role::System, "Be brief.")],
            question: Some("go".into()),
            parameters: json!({"temperature": 0.5}).as_object().unwrap().clone(),
            stream,
            ..Request::default()
        };
        let dry = agent.dry_run(&request(), None).unwrap();
        Bench::new().go(&mut agent, request()).await;
        assert_eq!(dry.body, server.requests()[0].text());
        assert_eq!(server.requests()[0].json()["temperature"], json!(0.5));
        let asked_for = server.requests()[0].json()["stream"] == Value::Bool(true);
        assert_eq!(asked_for, stream);
    }
}

#[tokio::test]
async fn calls_of_an_answer_that_was_cut_are_not_run() {
    for reason in ["length", "content_filter"] {
        let call = json!({"tool_calls": [{"index": 0, "id": "c1", "type": "function",
            "function": {"name": "echo", "arguments": "{\"text\": \"half\"}"}}]});
        let server = ScriptedServer::start([Reply::sse(chat_events(&[call], reason)), Reply::chat_text("As I said.")]);
        let (outcome, _) = Bench::new().ask(&mut agent(&server, []), "go").await;
        assert_eq!(outcome.answer, "As I said.");
        let all = outputs(&outcome.messages);
        assert_eq!(all.len(), 1);
        assert!(
            all[0].content.contains("not run") && all[0].content.contains(reason),
            "{}",
            all[0].content
        );
        assert!(all[0].error.is_some());
    }
}

#[tokio::test]
async fn an_answer_that_a_filter_cut_is_said() {
    let server = ScriptedServer::start([Reply::sse(chat_events(
        &[json!({"content": "cut he"})],
        "content_filter",
    ))]);
    let (outcome, store) = Bench::new().ask(&mut agent(&server, []), "go").await;
    assert_eq!(
        (outcome.answer.as_str(), outcome.cut),
        ("cut he", Some("content_filter"))
    );
    assert!(
        store
            .messages
            .iter()
            .any(|m| m.content.contains("finish=content_filter"))
    );
}

#[tokio::test]
async fn each_answer_carries_what_the_chat_has_come_to() {
    let server = ScriptedServer::start([
        Reply::chat_call_stream(&[("c1", "echo", json!({"text": "x"}))]),
        Reply::chat_stream(&["Done."]),
    ]);
    let counts = Arc::default();
    let mut agent = agent(&server, [work("echo", Effect::Unknown, &counts)]);
    let request = Request {
        question: Some("Echo!".into()),
        totals: Usage {
            pt: Some(100),
            ..Usage::default()
        },
        ..Request::default()
    };
    let (_, store) = Bench::new().go(&mut agent, request).await;
    let metas: Vec<Meta> = store
        .messages
        .iter()
        .filter(|m| m.role == Role::Meta)
        .map(|m| Meta::read(&m.content))
        .collect();
    let running = |key: &str| metas.iter().map(|m| m.count(key).unwrap()).collect::<Vec<_>>();
    assert_eq!(running("pt"), [10, 10]);
    assert_eq!(running("pt_c"), [110, 120]);
    // A total is never below its parts, whatever an earlier meta left out.
    assert_eq!(running("tt_c"), [115, 130]);
    assert_eq!(running("rt_c"), [0, 0]);
}
