//! A conversation that ended in the middle goes on.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use decanus_agent::Request;
use decanus_chat::{Effect, Message, plan};
use decanus_testkit::{Reply, ScriptedServer};
use serde_json::json;

use crate::support::*;

const LOST: &str = "interrupted; whether it ran is unknown";

#[tokio::test]
async fn pending_calls_are_made_again_only_when_that_is_safe() {
    for (effect, runs) in [
        (Effect::ReadOnly, 1),
        (Effect::Idempotent, 1),
        (Effect::Job, 1),
        (Effect::Unknown, 0),
    ] {
        let server = ScriptedServer::start([Reply::chat_text("on we go")]);
        let counts: Arc<Counts> = Arc::default();
        let request = Request {
            messages: vec![Message::user("q"), call("c1", "echo", json!({"text": "again"}))],
            ..Request::default()
        };
        let bench = Bench::new();
        let (outcome, store) = bench
            .go(&mut agent(&server, [work("echo", effect, &counts)]), request)
            .await;
        assert_eq!(outcome.answer, "on we go");
        assert_eq!(counts.calls.load(Ordering::SeqCst), runs, "{effect:?}");
        let expected = if runs == 1 { "again" } else { LOST };
        assert_eq!(sent_outputs(&server, 0), [("c1".to_owned(), expected.to_owned())]);
        assert_eq!(roles(&store.messages), ["function_call_output", "assistant"]);
        if runs == 0 {
            assert_eq!(outputs(&store.messages)[0].error.as_deref(), Some("Interrupted"));
        }
        let told = bench
            .events
            .lock()
            .unwrap()
            .iter()
            .any(|e| matches!(e, decanus_tool::Event::Output(o) if o.content == expected));
        assert!(told, "{effect:?}: whoever watches is told");
    }
}

#[tokio::test]
async fn only_what_has_no_output_is_made_again_and_a_question_comes_after_it() {
    let server = ScriptedServer::start([Reply::chat_text("ok")]);
    let counts: Arc<Counts> = Arc::default();
    let done = decanus_chat::FunctionCallOutput {
        id: "b".into(),
        content: "kept".into(),
        ..Default::default()
    };
    let request = Request {
        messages: vec![
            Message::user("q"),
            call("a", "echo", json!({"text": "A"})),
            call("b", "echo", json!({"text": "B"})),
            done.to_message(),
        ],
        question: Some("and now?".into()),
        ..Request::default()
    };
    let tools = [work("echo", Effect::ReadOnly, &counts)];
    Bench::new().go(&mut agent(&server, tools), request).await;
    assert_eq!(counts.calls.load(Ordering::SeqCst), 1);
    let messages = sent(&server, 0);
    let roles: Vec<&str> = messages
        .as_array()
        .unwrap()
        .iter()
        .map(|m| m["role"].as_str().unwrap())
        .collect();
    assert_eq!(roles, ["user", "assistant", "tool", "tool", "user"]);
    assert_eq!(
        sent_outputs(&server, 0)
            .iter()
            .map(|o| o.1.as_str())
            .collect::<Vec<_>>(),
        ["A", "kept"]
    );
}

#[tokio::test]
async fn a_tool_that_is_gone_leaves_its_call_answered() {
    let server = ScriptedServer::start([Reply::chat_text("ok")]);
    let request = Request {
        messages: vec![Message::user("q"), call("c1", "gone", none())],
        ..Request::default()
    };
    let (outcome, _) = Bench::new().go(&mut agent(&server, []), request).await;
    assert_eq!(outcome.answer, "ok");
    assert_eq!(sent_outputs(&server, 0)[0].1, LOST);
}

/// C55: calls without output in the middle, an output that answers nothing.
#[tokio::test]
async fn a_conversation_broken_in_the_middle_can_be_asked() {
    let text = concat!(
        "user: q\n",
        "function_call: {\"name\":\"f\",\"arguments\":{},\"id\":\"a\"}\n",
        "function_call: {\"name\":\"g\",\"arguments\":{},\"id\":\"b\"}\n",
        "function_call_output: {\"id\":\"a\",\"content\":\"1\"}\n",
        "user: are you there?\n",
        "function_call_output: {\"id\":\"zzz\",\"content\":\"orphan result\"}\n",
    );
    let plan = plan(decanus_chat::parse(text), None, &decanus_chat::Lookup::default());
    let server = ScriptedServer::start([Reply::chat_text("yes")]);
    let request = Request {
        messages: plan.messages(),
        question: Some("well?".into()),
        ..Request::default()
    };
    let (outcome, _) = Bench::new().go(&mut agent(&server, []), request).await;
    assert_eq!(outcome.answer, "yes");
    let expected = [("a", "1"), ("b", LOST)].map(|(i, t)| (i.to_owned(), t.to_owned()));
    assert_eq!(sent_outputs(&server, 0), expected);
    let messages = sent(&server, 0);
    let users: Vec<_> = messages
        .as_array()
        .unwrap()
        .iter()
        .filter(|m| m["role"] == "user")
        .map(|m| m["content"].clone())
        .collect();
    assert_eq!(users, [json!("q"), json!("are you there?"), json!("well?")]);
    assert!(!messages.to_string().contains("orphan result"));
}
