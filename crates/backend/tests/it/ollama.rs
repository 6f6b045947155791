//! Ollama's own API: what is sent, and what servers and imitations answer.

use std::sync::Arc;
use std::time::Duration;

use decanus_backend::ollama::Ollama;
use decanus_backend::{Backend, BackendError, Conversation, Delta, FinishReason, Profile, Response};
use decanus_base::Secret;
use decanus_chat::{Message, Role};
use decanus_testkit::fixtures::{Exchange, case, case_json};
use decanus_testkit::reply::Framing;
use decanus_testkit::{Reply, ScriptedServer};
use serde_json::{Value, json};

use crate::support::{Question, backend_of, call, calls, collect, cx, go_on, output, tool};

fn profile(url: &str) -> Profile {
    let mut profile = Profile::new("test", "ollama", "m");
    profile.url = url.into();
    profile
}

fn open(profile: Profile) -> Box<dyn Conversation> {
    backend_of(Ollama).open(Arc::new(profile)).unwrap()
}

fn body_of(question: &Question, stream: bool) -> Result<String, String> {
    let dry = open(profile("http://127.0.0.1:9")).dry_run(&question.view(), stream);
    dry.map(|d| d.body).map_err(|e| e.to_string())
}

async fn ask(server: &ScriptedServer, stream: bool) -> Result<Response, BackendError> {
    let mut profile = profile(&server.url());
    profile.retries = 0;
    match go_on(&mut *open(profile), &Question::default(), &cx(stream)).await {
        (deltas, None) => Ok(collect(&deltas)),
        (_, Some(error)) => Err(error),
    }
}

fn ndjson(body: impl Into<Vec<u8>>) -> Reply {
    Reply::new(200, "application/x-ndjson", body).framed(Framing::Chunked)
}

fn is(id: &str, name: &str, arguments: &str) -> (String, String, String) {
    (id.into(), name.into(), arguments.into())
}

#[test]
fn the_whole_body() {
    let mut question = Question::new([
        Message::system("Be brief."),
        Message::new(Role::Image, "data:image/png;base64,eA=="),
        Message::user("Is it cold?"),
        call(
            "c1",
            "kb.temperature",
            json!({"city": "Oslo", "id": 7340017340017340017_u64}),
        ),
        call("c2", "look", json!("{oops")),
        output("c2", "no"),
        output("c1", "-3"),
        Message::assistant("Yes."),
        Message::user("And now?"),
    ]);
    question.tools = vec![tool("look", json!({})), tool("kb.temperature", json!({}))];
    question.parameters =
        json!({"temperature": 0, "num_ctx": 8192, "think": false, "keep_alive": "5m", "format": "json"})
            .as_object()
            .unwrap()
            .clone();
    let wire = "kb_temperature_89198926";
    let body = body_of(&question, true).unwrap();
    let schema = r#"{"type":"object","properties":{}}"#;
    let expected = format!(
        concat!(
            r#"{{"model":"m","messages":[{{"role":"system","content":"Be brief."}},"#,
            r#"{{"role":"user","content":"","images":["eA=="]}},"#,
            r#"{{"role":"user","content":"Is it cold?"}},"#,
            r#"{{"role":"assistant","content":"","tool_calls":[{{"function":{{"name":"{wire}","arguments":"#,
            r#"{{"city":"Oslo","id":7340017340017340017}}}}}},"#,
            r#"{{"function":{{"name":"look","arguments":{{"invalid_arguments":"{{oops"}}}}}}]}},"#,
            r#"{{"role":"tool","tool_name":"{wire}","name":"{wire}","content":"-3"}},"#,
            r#"{{"role":"tool","tool_name":"look","name":"look","content":"no"}},"#,
            r#"{{"role":"assistant","content":"Yes."}},{{"role":"user","content":"And now?"}}],"#,
            r#""tools":[{{"type":"function","function":{{"name":"{wire}","description":"Does kb.temperature","parameters":{schema}}}}},"#,
            r#"{{"type":"function","function":{{"name":"look","description":"Does look","parameters":{schema}}}}}],"#,
            r#""format":"json","keep_alive":"5m","options":{{"num_ctx":8192,"temperature":0}},"think":false,"stream":true}}"#,
        ),
        wire = wire,
        schema = schema
    );
    assert_eq!(body, expected);
}

#[test]
fn c38_arguments_go_as_an_object() {
    let question = Question::new([
        Message::user("q"),
        call("c1", "f", json!("{\"x\":1}")),
        output("c1", "1"),
    ]);
    let sent: Value = serde_json::from_str(&body_of(&question, false).unwrap()).unwrap();
    assert_eq!(sent["messages"][1], case_json("C38.expect-message.json"));
    assert_eq!(sent["stream"], false);
}

#[test]
fn adding_a_turn_never_changes_the_bytes_before_it() {
    let story = [
        Message::system("s"),
        Message::user("one"),
        call("a", "f", json!({"x": 1})),
        Message::assistant("Let me look."),
        output("a", "1"),
        Message::assistant("It is 1."),
        Message::user("two"),
    ];
    let mut kept = open(profile("http://127.0.0.1:9"));
    let mut before = String::new();
    for n in [2, 5, 7] {
        let mut question = Question::new(&story[..n]);
        question.tools = vec![tool("f", json!({}))];
        question.tool_choice = (n == 5).then(|| "none".to_owned());
        let body = kept.dry_run(&question.view(), false).unwrap().body;
        assert_eq!(body, body_of(&question, false).unwrap());
        assert_eq!(body.contains("\"tools\""), n != 5, "`none` leaves the tools out");
        assert!(body.starts_with(&before), "{before}\n{body}");
        let end = body.find("],\"tools\"").or(body.find("],\"stream\"")).unwrap();
        before = body[..end].to_owned();
    }
}

#[test]
fn what_the_api_can_not_say_is_refused() {
    let mut question = Question::default();
    question.tools = vec![tool("f", json!({}))];
    for choice in ["required", "f"] {
        question.tool_choice = Some(choice.into());
        assert!(
            body_of(&question, true).unwrap_err().contains("auto or none"),
            "{choice}"
        );
    }
    question.tool_choice = None;
    question.parameters.insert("tool_choice".into(), json!("none"));
    let body = body_of(&question, true).unwrap();
    assert!(!body.contains("tool"), "{body}");
    let question = Question::new([Message::new(Role::Image, "http://example.test/x.png")]);
    let error = body_of(&question, true).unwrap_err();
    assert!(error.contains("message 1: ollama takes files only"), "{error}");
    let question = Question::new([Message::new(Role::Pdf, "data:application/pdf;base64,eA==")]);
    assert!(body_of(&question, true).unwrap_err().contains("no documents"));
}

#[test]
fn formats() {
    let format = |value: Value| {
        let mut question = Question::default();
        question.parameters.insert("format".into(), value);
        body_of(&question, false).map(|body| serde_json::from_str::<Value>(&body).unwrap()["format"].take())
    };
    assert_eq!(format(json!("json_object")), Ok(json!("json")));
    assert_eq!(format(json!("text")), Ok(Value::Null));
    assert_eq!(
        format(json!({"a": "string"})).unwrap()["properties"],
        json!({"a": {"type": "string"}})
    );
    let schema = json!({"type": "object", "properties": {}});
    let wrapped = json!({"type": "json_schema", "json_schema": {"name": "n", "schema": schema}});
    assert_eq!(format(wrapped), Ok(schema));
    assert!(format(json!(3)).is_err());
}

#[test]
fn a_url_of_either_api_is_the_base() {
    for base in ["", "/", "/v1", "/v1/", "/api", "/api/chat"] {
        let mut conversation = open(profile(&format!("http://127.0.0.1:9{base}")));
        let target = conversation.dry_run(&Question::default().view(), true).unwrap().target;
        assert_eq!(target, "POST http://127.0.0.1:9/api/chat", "{base}");
    }
    let target = open(profile("http://h/ollama/v1"))
        .dry_run(&Question::default().view(), true)
        .unwrap()
        .target;
    assert_eq!(target, "POST http://h/ollama/api/chat");
}

#[tokio::test]
async fn the_key_is_a_bearer_token_and_optional() {
    for key in [None, Some("k-123")] {
        let server = ScriptedServer::start([Reply::json(200, &json!({"message": {"content": "hi"}, "done": true}))]);
        let mut profile = profile(&server.url());
        profile.key = key.map(Secret::new);
        go_on(&mut *open(profile), &Question::default(), &cx(false)).await;
        let sent = server.requests().remove(0);
        assert_eq!(
            sent.header("authorization"),
            key.map(|k| format!("Bearer {k}")).as_deref()
        );
        assert_eq!(sent.path, "/api/chat");
        server.verify();
    }
}

#[tokio::test]
async fn recorded_answers_are_the_same_however_they_are_cut() {
    let mut seen = Vec::new();
    for name in [
        "ollama-openai-proxy/api-chat-stream",
        "ollama-openai-proxy/api-chat-tools-stream",
        "ollama-openai-proxy/api-chat-tools",
        "ollama-proxy-plus/api-chat-stream",
        "ollama-proxy-plus/api-chat-tools-stream",
        "ollama-proxy-plus/api-chat-tools",
    ] {
        let exchange = Exchange::load(name);
        let mut first = None;
        for cut in [1, 7, 100, 1 << 20] {
            let server = ScriptedServer::start([exchange.reply().every(cut)]);
            let response = ask(&server, exchange.is_stream).await.unwrap();
            assert_eq!(
                *first.get_or_insert(response.clone()),
                response,
                "{name} in pieces of {cut}"
            );
            server.verify();
        }
        seen.push(first.unwrap());
    }
    let city = r#"{"city":"Paris"}"#;
    let both = |response: &Response| {
        let made = calls(response);
        assert!(
            made.iter()
                .all(|(id, name, arguments)| !id.is_empty() && name == "get_weather" && arguments == city)
        );
        made.len()
    };
    // Two lines are done, and the first one says why.
    assert_eq!(
        (seen[0].text.as_str(), &seen[0].finish),
        ("The phrase \"with his back", &Some(FinishReason::Length))
    );
    // Fragments on lines of the older API, and whole calls with arguments as text.
    assert_eq!((both(&seen[1]), &seen[1].finish), (2, &Some(FinishReason::ToolCalls)));
    assert_eq!((both(&seen[2]), seen[2].usage.tt), (2, Some(319)));
    assert_eq!(
        (seen[3].text.as_str(), seen[3].usage.ct),
        ("You can use a for loop", Some(6))
    );
    assert_eq!(seen[3].model.as_deref(), Some("llama/smollm2"));
    // This imitation lost the calls; what is left is an empty answer.
    for response in &seen[4..] {
        assert!(response.text.is_empty() && response.calls.is_empty());
        assert_eq!(
            (response.usage.pt, &response.finish),
            (Some(22), &Some(FinishReason::Stop))
        );
    }
}

#[tokio::test]
async fn every_cut_of_a_stream_gives_the_same_answer() {
    let body = case("C37.ndjson");
    let whole = {
        let server = ScriptedServer::start([ndjson(body.clone())]);
        ask(&server, true).await.unwrap()
    };
    for cut in 1..body.len() {
        let mut reply = ndjson("");
        reply.pieces = [&body[..cut], &body[cut..]]
            .map(|b| decanus_testkit::Piece::Bytes(b.to_vec()))
            .into();
        let server = ScriptedServer::start([reply]);
        assert_eq!(ask(&server, true).await.unwrap(), whole, "cut at {cut}");
    }
    // The same lines under another content type, and as a list.
    let lines: Vec<Value> = body
        .split(|b| *b == b'\n')
        .filter_map(|l| serde_json::from_slice(l).ok())
        .collect();
    for body in [body.clone(), Value::Array(lines).to_string().into_bytes()] {
        for stream in [true, false] {
            let server = ScriptedServer::start([Reply::new(200, "application/json", body.clone())]);
            assert_eq!(ask(&server, stream).await.unwrap(), whole);
        }
    }
}

#[tokio::test]
async fn c37_calls_of_all_lines() {
    let server = ScriptedServer::start([ndjson(case("C37.ndjson"))]);
    let response = ask(&server, true).await.unwrap();
    // The digests are those of `md5sum`.
    let expected = [
        is("f_ac3ef48caa08fa3ed5e025da69edc645", "f", r#"{"x":1}"#),
        is("g_99914b932bd37a50b983c5e7c90ae93b", "g", "{}"),
    ];
    assert_eq!(calls(&response), expected);
    assert_eq!(response.finish, Some(FinishReason::ToolCalls));
    assert_eq!(
        (response.usage.pt, response.usage.ct, response.usage.tt),
        (Some(20), Some(5), Some(25))
    );
}

#[tokio::test]
async fn equal_calls_have_ids_of_their_own_and_names_come_back() {
    let same = json!({"function": {"name": "f", "arguments": {}}});
    let body = json!({"message": {"content": "", "tool_calls": [same, same, {"id": "given", "function": {"name": "g"}}]},
        "done": true, "done_reason": "stop", "usage": {"prompt_tokens": 12, "completion_tokens": 7}});
    let server = ScriptedServer::start([Reply::json(200, &body)]);
    let response = ask(&server, false).await.unwrap();
    let id = "f_99914b932bd37a50b983c5e7c90ae93b";
    let ids: Vec<&str> = response.calls.iter().map(|c| c.id.as_str()).collect();
    assert_eq!(ids, [id, &format!("{id}_2"), "given"]);
    assert_eq!(response.usage.tt, Some(19));

    let mut question = Question::default();
    question.tools = vec![tool("kb.look", json!({}))];
    let sent: Value = serde_json::from_str(&body_of(&question, false).unwrap()).unwrap();
    let wire = &sent["tools"][0]["function"]["name"];
    let body = json!({"message": {"tool_calls": [{"function": {"name": wire, "arguments": {}}}]}, "done": true});
    let server = ScriptedServer::start([Reply::json(200, &body)]);
    let (deltas, _) = go_on(&mut *open(profile(&server.url())), &question, &cx(false)).await;
    assert_eq!(collect(&deltas).calls[0].name, "kb.look");
}

#[tokio::test]
async fn thinking_goes_back_with_the_calls_it_led_to() {
    let lines = [
        json!({"message": {"role": "assistant", "content": "", "thinking": "Need "}, "done": false}),
        json!({"message": {"role": "assistant", "content": "", "thinking": "a look."}, "done": false}),
        json!({"message": {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": {}}}]}, "done": false}),
        json!({"message": {"role": "assistant", "content": ""}, "done": true, "done_reason": "stop"}),
    ];
    let body: String = lines.iter().map(|l| format!("{l}\n")).collect();
    let server = ScriptedServer::start([ndjson(body)]);
    let response = ask(&server, true).await.unwrap();
    assert_eq!(response.reasoning, "Need a look.");
    assert_eq!(response.parts, [json!({"thinking": "Need a look."})]);
    let parts = |backend: &str| {
        let record = decanus_chat::ProviderParts {
            backend: backend.into(),
            model: "m".into(),
            parts: response.parts.clone(),
        };
        record.to_message()
    };
    for (backend, back) in [("ollama", json!("Need a look.")), ("openai", Value::Null)] {
        let question = Question::new([
            Message::user("q"),
            parts(backend),
            call("a", "f", json!({})),
            output("a", "1"),
        ]);
        let sent: Value = serde_json::from_str(&body_of(&question, false).unwrap()).unwrap();
        assert_eq!(sent["messages"][1]["thinking"], back, "{backend}");
    }
}

#[tokio::test]
async fn errors_in_all_places() {
    let recorded = [
        ("ollama-proxy-plus/api-chat-unknown", 500, "Internal Server Error"),
        ("xllamacpp/ollama-api-chat", 404, "File Not Found"),
    ];
    for (name, expected, words) in recorded {
        let server = ScriptedServer::start([Exchange::load(name).reply()]);
        let error = ask(&server, false).await.unwrap_err();
        assert!(
            matches!(&error, BackendError::Refused { status, message, .. } if *status == expected && message == words),
            "{error:?}"
        );
    }
    let line = r#"{"message":{"content":"Hel"},"done":false}"#;
    for (second, is_refused) in [
        (r#"{"error":"model runner has stopped"}"#, true),
        ("", false),
        ("{\"mess", false),
    ] {
        let server = ScriptedServer::start([ndjson(format!("{line}\n{second}"))]);
        let mut profile = profile(&server.url());
        profile.retries = 0;
        let (deltas, error) = go_on(&mut *open(profile), &Question::default(), &cx(true)).await;
        assert_eq!(collect(&deltas).text, "Hel");
        match error.unwrap() {
            BackendError::Refused { message, .. } => assert!(is_refused && message == "model runner has stopped"),
            BackendError::Incomplete { .. } => assert!(!is_refused),
            other => panic!("{other:?}"),
        }
    }
    for (kind, body) in [
        ("text/html", "<!DOCTYPE html><p>"),
        ("application/json", ""),
        ("application/x-ndjson", "<html>"),
        ("application/x-ndjson", "hello\nworld\n"),
        ("application/json", "{}"),
    ] {
        let server = ScriptedServer::start([Reply::new(200, kind, body)]);
        let error = ask(&server, true).await.unwrap_err();
        assert!(matches!(error, BackendError::Malformed { .. }), "{body}: {error:?}");
    }
}

#[tokio::test]
async fn after_a_line_that_is_done_nothing_is_waited_for() {
    let line = "{\"message\":{\"content\":\"hi\"},\"done\":true,\"prompt_eval_count\":3,\"eval_count\":1}\n";
    let server = ScriptedServer::start([ndjson(line).then(decanus_testkit::Piece::Hang)]);
    let begin = std::time::Instant::now();
    assert_eq!(ask(&server, true).await.unwrap().text, "hi");
    assert!(begin.elapsed() < Duration::from_secs(2));
}

#[tokio::test]
async fn c40_a_prompt_that_was_cut_is_warned_of() {
    let answer = case_json("C40.response.json");
    let sent = answer["_sent_tokens_estimate"].as_u64().unwrap() as usize;
    for (text, expected) in [("word ".repeat(sent), 1), ("word".to_owned(), 0)] {
        let server = ScriptedServer::start([Reply::json(200, &answer)]);
        let question = Question::new([Message::user(&text)]);
        let (deltas, error) = go_on(&mut *open(profile(&server.url())), &question, &cx(false)).await;
        assert!(error.is_none());
        let is_warning = |d: &&Delta| matches!(d, Delta::Warning(w) if w.contains("num_ctx"));
        let seen: Vec<&Delta> = deltas.iter().filter(is_warning).collect();
        assert_eq!(seen.len(), expected, "{seen:?}");
    }
}
