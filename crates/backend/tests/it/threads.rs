//! Going on from the last response.

use decanus_backend::{Conversation, Profile, Response};
use decanus_chat::{FunctionCall, Message};
use decanus_testkit::fixtures::Exchange;
use decanus_testkit::{Reply, ScriptedServer};
use serde_json::{Value, json};

use crate::support::{Question, collect, cx, go_on, open, output, profile_of, tool};

fn said(id: &str, text: &str) -> Reply {
    let item = json!({"type": "message", "id": "m", "content": [{"type": "output_text", "text": text}]});
    Reply::json(200, &json!({"id": id, "status": "completed", "output": [item]}))
}

fn called(id: &str, calls: &[&str]) -> Reply {
    let item = |c: &&str| json!({"type": "function_call", "id": "fc", "call_id": c, "name": "f", "arguments": "{}"});
    let items: Vec<Value> = calls.iter().map(item).collect();
    Reply::json(200, &json!({"id": id, "status": "completed", "output": items}))
}

fn profile(server: &ScriptedServer) -> Profile {
    let mut profile = profile_of("responses", &server.url());
    profile.previous_response = true;
    profile
}

/// Asks, and appends the answer as the loop would.
async fn ask(conversation: &mut dyn Conversation, question: &mut Question) -> Response {
    let (deltas, error) = go_on(conversation, question, &cx(true)).await;
    assert!(error.is_none(), "{error:?}");
    let response = collect(&deltas);
    question
        .messages
        .extend(response.calls.iter().map(FunctionCall::to_message));
    if !response.text.is_empty() {
        question.messages.push(Message::assistant(response.text.clone()));
    }
    response
}

fn bodies(server: &ScriptedServer) -> Vec<Value> {
    server.requests().iter().map(|r| r.json()).collect()
}

fn beginning() -> Question {
    let mut question = Question::new([Message::system("s"), Message::user("one")]);
    question.tools = vec![tool("f", json!({}))];
    question
}

#[tokio::test]
async fn only_what_is_new_is_sent() {
    let server = ScriptedServer::start([called("r1", &["a", "b"]), said("r2", "Two."), said("r3", "Three.")]);
    let mut conversation = open(profile(&server));
    let mut question = beginning();
    ask(&mut *conversation, &mut question).await;
    question.messages.extend([output("b", "2"), output("a", "1")]);
    ask(&mut *conversation, &mut question).await;
    question.messages.push(Message::user("next"));
    let dry: Value = serde_json::from_str(&conversation.dry_run(&question.view(), true).unwrap().body).unwrap();
    ask(&mut *conversation, &mut question).await;
    let sent = bodies(&server);
    assert!(sent[0].get("previous_response_id").is_none());
    assert_eq!(sent[1]["previous_response_id"], "r1");
    assert_eq!(
        sent[1]["input"],
        json!([
            {"type": "function_call_output", "call_id": "a", "output": "1"},
            {"type": "function_call_output", "call_id": "b", "output": "2"},
        ])
    );
    // The provider keeps neither instructions nor tools.
    assert_eq!(
        (&sent[1]["instructions"], &sent[1]["tools"]),
        (&sent[0]["instructions"], &sent[0]["tools"])
    );
    assert_eq!(sent[2]["previous_response_id"], "r2");
    assert_eq!(sent[2]["input"], json!([{"role": "user", "content": "next"}]));
    assert_eq!(sent[2], dry);
    server.verify();
}

#[tokio::test]
async fn another_history_is_sent_whole() {
    type Change = fn(&mut Question);
    let changes: [(&str, Change); 6] = [
        ("an earlier message", |q| q.messages[1] = Message::user("other")),
        ("the answer", |q| q.messages[2] = Message::assistant("edited")),
        ("no answer", |q| {
            q.messages.remove(2);
        }),
        ("tools", |q| q.tools.push(tool("g", json!({})))),
        ("system text", |q| q.messages.push(Message::system("now this"))),
        ("the option", |q| {
            q.parameters.insert("previous_response".into(), json!(false));
        }),
    ];
    for (what, change) in changes {
        let server = ScriptedServer::start([said("r1", "One."), said("r2", "Two.")]);
        let mut conversation = open(profile(&server));
        let mut question = beginning();
        ask(&mut *conversation, &mut question).await;
        question.messages.push(Message::user("next"));
        change(&mut question);
        ask(&mut *conversation, &mut question).await;
        let sent = bodies(&server).remove(1);
        assert!(sent.get("previous_response_id").is_none(), "{what}");
        assert_eq!(
            sent["input"].as_array().unwrap().last().unwrap()["content"],
            if what == "system text" { "now this" } else { "next" }
        );
        assert!(sent["input"].as_array().unwrap().len() >= 2, "{what}");
    }
}

#[tokio::test]
async fn ids_of_our_own_and_cut_answers_are_not_gone_on_from() {
    let mut cut = json!({"id": "r1", "status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}});
    cut["output"] = json!([{"type": "message", "content": [{"type": "output_text", "text": "Ha"}]}]);
    for reply in [
        called("r1", &["a", "a"]),
        called("r1", &[&"x".repeat(80)]),
        Reply::json(200, &cut),
    ] {
        let server = ScriptedServer::start([reply, said("r2", "Two.")]);
        let mut conversation = open(profile(&server));
        let mut question = beginning();
        let response = ask(&mut *conversation, &mut question).await;
        question
            .messages
            .extend(response.calls.iter().map(|c| output(&c.id, "o")));
        question.messages.push(Message::user("next"));
        ask(&mut *conversation, &mut question).await;
        assert!(bodies(&server)[1].get("previous_response_id").is_none());
    }
}

#[tokio::test]
async fn a_provider_that_does_not_know_the_response_gets_everything() {
    let lost = Reply::error(
        400,
        "previous_response_not_found",
        "Previous response with id 'r1' not found.",
    );
    let unknown = Reply::json(
        404,
        &json!({"error": {"message": "Response with id 'r1' not found.", "code": 404}}),
    );
    for refusal in [
        lost,
        unknown,
        Exchange::load("xllamacpp/responses-previous_response_id").reply(),
    ] {
        let server = ScriptedServer::start([said("r1", "One."), refusal, said("r2", "Two.")]);
        let mut conversation = open(profile(&server));
        let mut question = beginning();
        ask(&mut *conversation, &mut question).await;
        question.messages.push(Message::user("next"));
        assert_eq!(ask(&mut *conversation, &mut question).await.text, "Two.");
        let sent = bodies(&server);
        assert_eq!(sent[1]["previous_response_id"], "r1");
        assert!(sent[2].get("previous_response_id").is_none());
        assert_eq!(sent[2]["input"].as_array().unwrap().len(), 3);
        server.verify();
    }
    // Any other refusal is one.
    let server = ScriptedServer::start([said("r1", "One."), Reply::error(400, "bad", "no such parameter")]);
    let mut conversation = open(profile(&server));
    let mut question = beginning();
    ask(&mut *conversation, &mut question).await;
    question.messages.push(Message::user("next"));
    let (_, error) = go_on(&mut *conversation, &question, &cx(true)).await;
    assert!(error.is_some());
    server.verify();
}
