//! What is sent.

use decanus_backend::{Conversation, View};
use decanus_chat::{FunctionCallOutput, Message};
use decanus_testkit::fixtures::case_json;
use decanus_testkit::{Reply, ScriptedServer};
use serde_json::{Value, json};

use crate::support::{Question, ask_all, call, cx, open, output, profile, tool};

fn body_of(conversation: &mut dyn Conversation, view: &View<'_>, stream: bool) -> String {
    conversation.dry_run(view, stream).unwrap().body
}

fn messages(question: &Question) -> Value {
    let mut conversation = open(profile("http://127.0.0.1:9/v1"));
    let body = body_of(&mut *conversation, &question.view(), false);
    serde_json::from_str::<Value>(&body).unwrap()["messages"].take()
}

#[tokio::test]
async fn a_dry_run_is_what_is_sent() {
    let mut question = Question::new([
        Message::system("Be brief.\n\"quoted\" \u{1}"),
        Message::user("Is it cold in Oslo? 号🙂"),
        call("call_7", "kb.temperature", json!({"city": "Oslo"})),
        output("call_7", "-3"),
    ]);
    question.tools = vec![
        tool("zeta", json!({})),
        tool("kb.temperature", json!({"type": "object"})),
    ];
    question.parameters.insert("temperature".into(), json!(0));
    question.tool_choice = Some("kb.temperature".into());
    for stream in [true, false] {
        let server = ScriptedServer::start([Reply::chat_text("ok")]);
        let mut profile = profile(&server.url());
        profile.parameters.insert("temperature".into(), json!(1));
        profile.parameters.insert("seed".into(), json!(1));
        let dry = open(profile.clone()).dry_run(&question.view(), stream).unwrap();
        assert_eq!(dry.target, format!("POST {}/chat/completions", server.url()));
        ask_all(profile, &question, &cx(stream)).await;
        let sent = server.requests().remove(0);
        assert_eq!(
            (sent.method.as_str(), sent.path.as_str()),
            ("POST", "/v1/chat/completions")
        );
        assert_eq!(sent.text(), dry.body);
        let json = sent.json();
        assert_eq!((&json["temperature"], &json["seed"]), (&json!(0), &json!(1)));
        assert_eq!(json["stream"] == true, stream);
        assert_eq!(json.get("stream_options").is_some(), stream);
        assert_eq!(json["tools"][1]["function"]["name"], "zeta", "tools are sorted");
        assert_eq!(
            json["tool_choice"]["function"]["name"],
            json["tools"][0]["function"]["name"]
        );
        server.verify();
    }
}

#[test]
fn adding_a_turn_never_changes_the_bytes_before_it() {
    let story = [
        Message::system("s"),
        Message::user("one"),
        call("a", "f", json!({"x": 1})),
        call("", "g", json!({})),
        Message::assistant("Let me look."),
        output("", "2"),
        output("a", "1"),
        call("a", "f", json!({"x": 2})),
        output("a", "3"),
        Message::assistant("It is 3."),
        Message::user("two"),
        Message::assistant("four"),
        Message::user("three"),
    ];
    // Where a request is made: after a person's message and when all outputs are there.
    let requests = [2, 7, 9, 11, 13];
    let question = |n: usize| {
        let mut question = Question::new(&story[..n]);
        question.tools = vec![tool("f", json!({})), tool("g", json!({}))];
        question
    };
    let mut kept = open(profile("http://127.0.0.1:9/v1"));
    let mut before = String::new();
    for n in requests {
        let mut question = question(n);
        // What may differ from round to round stands after the messages.
        question.tool_choice = (n == 2).then(|| "required".to_owned());
        question.parameters.insert("temperature".into(), json!(n));
        let body = body_of(&mut *kept, &question.view(), n % 2 == 0);
        let fresh = body_of(
            &mut *open(profile("http://127.0.0.1:9/v1")),
            &question.view(),
            n % 2 == 0,
        );
        assert_eq!(body, fresh, "a kept conversation and a rebuilt one send the same");
        let end = body.rfind("],\"").unwrap();
        assert!(body.starts_with(&before), "after {n} messages:\n{before}\n{body}");
        before = body[..end].to_owned();
        assert!(before.contains(r#""messages":[{"role":"system""#));
    }
    // Another history in the same conversation is encoded from the start.
    let other = Question::new([Message::user("other")]);
    let body: Value = serde_json::from_str(&body_of(&mut *kept, &other.view(), false)).unwrap();
    assert_eq!(
        body,
        json!({"model": "scripted", "messages": [{"role": "user", "content": "other"}]})
    );
}

#[test]
fn an_answer_with_calls_is_one_message() {
    let question = Question::new([
        Message::user("Is it cold?"),
        call("call_7", "temperature", json!({"city": "Oslo"})),
        call("call_8", "temperature", json!({"city": "Rome"})),
        output("call_8", "20"),
        FunctionCallOutput {
            id: "call_7".into(),
            content: "-3".into(),
            job: Some("/j".into()),
            error: Some("X".into()),
            timestamp: Some("t".into()),
            ..Default::default()
        }
        .to_message(),
        Message::assistant("Yes."),
    ]);
    let function = |city: &str| json!({"name": "temperature", "arguments": format!("{{\"city\":\"{city}\"}}")});
    let expected = json!([
        {"role": "user", "content": "Is it cold?"},
        {"role": "assistant", "content": null, "tool_calls": [
            {"id": "call_7", "type": "function", "function": function("Oslo")},
            {"id": "call_8", "type": "function", "function": function("Rome")}]},
        {"role": "tool", "tool_call_id": "call_7", "content": "-3"},
        {"role": "tool", "tool_call_id": "call_8", "content": "20"},
        {"role": "assistant", "content": "Yes."},
    ]);
    assert_eq!(messages(&question), expected);
}

#[test]
fn c19_without_tools_nothing_of_tools_is_sent() {
    let mut question = Question::default();
    question.tool_choice = Some("auto".into());
    question.parameters = json!({"parallel_tool_calls": true, "tool_choice": "auto"})
        .as_object()
        .unwrap()
        .clone();
    let mut conversation = open(profile("http://127.0.0.1:9/v1"));
    assert_eq!(
        body_of(&mut *conversation, &question.view(), false),
        r#"{"model":"scripted","messages":[{"role":"user","content":"hi"}]}"#
    );
}

#[test]
fn c23_ids_in_a_history_are_unique_on_the_wire() {
    let mut question = Question::new([]);
    for message in case_json("C23.history.json").as_array().unwrap() {
        let text = message["content"].as_str().unwrap_or_default();
        let id = |v: &Value| v.as_str().unwrap().to_owned();
        match message["role"].as_str().unwrap() {
            "user" => question.messages.push(Message::user(text)),
            "tool" => question.messages.push(output(&id(&message["tool_call_id"]), text)),
            _ => question
                .messages
                .push(call(&id(&message["tool_calls"][0]["id"]), "list", json!({}))),
        }
    }
    let sent = messages(&question);
    let ids: Vec<&Value> = [1, 4].iter().map(|i| &sent[*i]["tool_calls"][0]["id"]).collect();
    assert_eq!(ids, ["list:0", "list:0_2"]);
    assert_eq!([&sent[2]["tool_call_id"], &sent[5]["tool_call_id"]], [ids[0], ids[1]]);
    assert_eq!(sent[5]["content"], "r2");
}

#[tokio::test]
async fn c25_names_are_mapped_there_and_back() {
    let mut question = Question::default();
    let names: Vec<String> = case_json("C25.tools.json")
        .as_array()
        .unwrap()
        .iter()
        .map(|t| t["name"].as_str().unwrap().into())
        .collect();
    question.tools = names.iter().map(|n| tool(n, json!({}))).collect();
    let mut conversation = open(profile("http://127.0.0.1:9/v1"));
    let body: Value = serde_json::from_str(&body_of(&mut *conversation, &question.view(), false)).unwrap();
    let wire: Vec<String> = body["tools"]
        .as_array()
        .unwrap()
        .iter()
        .map(|t| t["function"]["name"].as_str().unwrap().into())
        .collect();
    for name in &wire {
        assert!(
            name.len() <= 64 && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-'),
            "{name}"
        );
    }
    // A call by the wire's name comes back by the tool's, in streams and bodies.
    for reply in [Reply::chat_calls, Reply::chat_call_stream] {
        let made: Vec<_> = wire.iter().map(|n| ("", n.as_str(), json!({}))).collect();
        let server = ScriptedServer::start([reply(&made)]);
        let (deltas, error) = ask_all(profile(&server.url()), &question, &cx(true)).await;
        assert!(error.is_none());
        let mut back: Vec<String> = crate::support::collect(&deltas)
            .calls
            .into_iter()
            .map(|c| c.name)
            .collect();
        let mut expected = names.clone();
        expected.sort();
        back.sort();
        assert_eq!(back, expected);
    }
}

#[test]
fn c26_schemas_have_a_root() {
    for schema in case_json("C26.schemas.json").as_array().unwrap() {
        let mut question = Question::default();
        let mut tool = tool("t", schema.clone());
        tool.defaults.insert("secret_default".into(), json!(1));
        question.tools = vec![tool];
        let mut conversation = open(profile("http://127.0.0.1:9/v1"));
        let text = body_of(&mut *conversation, &question.view(), false);
        assert!(!text.contains("secret_default"));
        let sent: Value = serde_json::from_str(&text).unwrap();
        let parameters = &sent["tools"][0]["function"]["parameters"];
        assert_eq!(parameters["type"], "object", "{schema}");
        assert!(parameters["properties"].is_object(), "{schema}");
    }
}

#[test]
fn formats_and_choices() {
    let mut question = Question::default();
    let mut conversation = open(profile("http://127.0.0.1:9/v1"));
    let mut format = |value: Value| {
        question.parameters.insert("format".into(), value);
        let body: Value = serde_json::from_str(&body_of(&mut *conversation, &question.view(), false)).unwrap();
        assert!(body.get("format").is_none());
        body["response_format"].clone()
    };
    assert_eq!(format(json!("json")), json!({"type": "json_object"}));
    let sent = format(json!({"answer": "string"}));
    assert_eq!(
        (&sent["type"], &sent["json_schema"]["name"]),
        (&json!("json_schema"), &json!("response"))
    );
    assert_eq!(sent["json_schema"]["schema"]["required"], json!(["answer"]));
    let mut question = Question::default();
    question.tools = vec![tool("calculator", json!({}))];
    question.tool_choice = Some("calculatr".into());
    let error = conversation.dry_run(&question.view(), false).unwrap_err().to_string();
    assert!(error.contains("did you mean calculator?"), "{error}");
}

#[test]
fn a_damaged_record_is_named_and_nothing_is_sent() {
    let question = Question::new([
        Message::user("q"),
        Message::new(decanus_chat::Role::FunctionCall, "{oops"),
    ]);
    let error = open(profile("http://127.0.0.1:9/v1"))
        .dry_run(&question.view(), false)
        .unwrap_err();
    assert!(
        error
            .to_string()
            .contains("message 2: function_call is not a JSON object"),
        "{error}"
    );
}
