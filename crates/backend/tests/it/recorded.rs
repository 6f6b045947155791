//! What real servers sent decodes to what they meant.

use decanus_backend::{BackendError, FinishReason};
use decanus_testkit::fixtures::Exchange;
use decanus_testkit::{Recorded, ScriptedServer};

use crate::support::{ask, calls};

/// The exchanges that this dialect is for; those of the others have tests of their own.
fn exchanges() -> impl Iterator<Item = Exchange> {
    let ours = |e: &Exchange| e.request["url"].as_str().unwrap().ends_with("/chat/completions");
    Exchange::all().into_iter().filter(ours)
}

/// Decodes an exchange in several chunkings; all must agree.
async fn decode(exchange: &Exchange) -> Result<decanus_backend::Response, BackendError> {
    let cuts = if exchange.body.len() > 12_000 {
        vec![7, 1 << 20]
    } else {
        vec![1, 7, 100, 1 << 20]
    };
    let asked = exchange.request["body"]["stream"] == true || exchange.is_stream;
    let mut first: Option<Result<_, BackendError>> = None;
    for cut in cuts {
        let server = ScriptedServer::start([exchange.reply().every(cut)]);
        let result = ask(&server, asked).await;
        match (&first, &result) {
            (None, _) => first = Some(result),
            (Some(Ok(a)), Ok(b)) => assert_eq!(a, b, "{} in pieces of {cut}", exchange.name),
            (Some(Err(a)), Err(b)) => assert_eq!(
                a.to_string().split("127.0.0.1:").next(),
                b.to_string().split("127.0.0.1:").next(),
                "{}",
                exchange.name
            ),
            other => panic!("{}: {other:?}", exchange.name),
        }
        server.verify();
    }
    first.unwrap()
}

#[tokio::test]
async fn all_answers_decode() {
    let mut seen = 0;
    for exchange in exchanges().filter(|e| e.status == 200) {
        let response = decode(&exchange)
            .await
            .unwrap_or_else(|e| panic!("{}: {e}", exchange.name));
        let name = &exchange.name;
        assert!(response.finish.is_some(), "{name}");
        assert!(response.id.is_some() && response.model.is_some(), "{name}");
        assert!(
            !response.text.is_empty() || !response.calls.is_empty(),
            "{name}: {response:?}"
        );
        for call in &response.calls {
            assert_eq!(call.name, "get_weather", "{name}");
            assert!(
                matches!(call.arguments, decanus_chat::Arguments::Object(_)),
                "{name}: {:?}",
                call.arguments
            );
        }
        // vLLM and llm-katan do not always count; when they do, it adds up.
        if let Some(total) = response.usage.tt {
            assert_eq!(response.usage.pt.unwrap() + response.usage.ct.unwrap(), total, "{name}");
        }
        seen += 1;
    }
    assert!(seen >= 22, "{seen}");
}

#[tokio::test]
async fn tool_calls_of_each_server() {
    for (name, expected) in [
        ("xllamacpp/chat-tools-required-prompted-stream", 2),
        ("xllamacpp/chat-tools-required-prompted", 2),
        ("litellm/chat-tools-stream", 2),
        ("litellm/chat-tools", 2),
        ("openwebui/chat-tools-stream", 2),
        ("openwebui/chat-tools", 2),
        ("vllm/chat-tools-required-stream", 1),
        ("vllm/chat-tools-required", 1),
    ] {
        let response = decode(&Exchange::load(name)).await.unwrap();
        let calls = calls(&response);
        assert_eq!(calls.len(), expected, "{name}: {calls:?}");
        for (id, tool, arguments) in calls {
            assert!(!id.is_empty() && tool == "get_weather", "{name}");
            assert_eq!(arguments.replace(' ', ""), r#"{"city":"Paris"}"#, "{name}");
        }
        assert_eq!(response.finish, Some(FinishReason::ToolCalls), "{name}");
    }
    // A stream was asked for and a whole body came.
    let response = decode(&Exchange::load("llm-katan/openai-chat-tools-stream"))
        .await
        .unwrap();
    assert_eq!(calls(&response)[0].2, r#"{"city":"test_city","unit":"c"}"#);
    assert_eq!(response.usage.tt, Some(39));
}

#[tokio::test]
async fn usage_of_streams() {
    let response = decode(&Exchange::load("xllamacpp/chat-tools-required-prompted-stream"))
        .await
        .unwrap();
    let usage = response.usage;
    assert_eq!(
        (usage.pt, usage.ct, usage.tt, usage.cct),
        (Some(256), Some(63), Some(319), Some(255))
    );
}

#[tokio::test]
async fn errors_of_each_server() {
    for exchange in exchanges().filter(|e| e.status != 200) {
        let error = decode(&exchange).await.unwrap_err();
        let name = exchange.name.as_str();
        if name.contains("context-overflow") {
            assert!(matches!(error, BackendError::TooLong { .. }), "{name}: {error:?}");
            continue;
        }
        let BackendError::Refused {
            status, code, message, ..
        } = error
        else {
            panic!("{name}: {error:?}")
        };
        assert_eq!(status, exchange.status, "{name}");
        let (expected_code, words) = match name {
            "xllamacpp/error-bad-json" => (Some("invalid_request_error"), "parse error at line 1"),
            "litellm/error-401" => (Some("no_db_connection"), "No connected db."),
            "litellm/error-unknown-model" => (Some("invalid_request_error"), "Invalid model name passed in model=nope"),
            "openwebui/error-badkey" => (None, "Your session has expired or the token is invalid"),
            "openwebui/error-model" => (None, "Model not found"),
            "openwebui/error-unauth" => (None, "Not authenticated"),
            "llm-katan/openai-noauth" => (Some("invalid_api_key"), "missing Authorization header"),
            other => panic!("no expectation for {other}"),
        };
        assert_eq!(code.as_deref(), expected_code, "{name}");
        assert!(message.contains(words), "{name}: {message}");
    }
}

#[tokio::test]
async fn a_web_page_is_no_answer() {
    for stream in [true, false] {
        let server = ScriptedServer::start([Exchange::load("openwebui/v1-models-path").reply()]);
        let error = ask(&server, stream).await.unwrap_err();
        assert!(
            matches!(&error, BackendError::Malformed { reason, .. } if reason.contains("`url`")),
            "{error:?}"
        );
    }
}

/// The request of a recording, rebuilt from messages, is what the recorded client sent (up to the order of members).
#[tokio::test]
async fn a_second_turn_is_what_servers_take() {
    use crate::support::{Question, ask_all, call, cx, output, profile, tool};
    use decanus_chat::Message;

    let recorded = Exchange::load("xllamacpp/chat-tools-turn2");
    let body = recorded.request["body"].clone();
    let server = ScriptedServer::start([recorded.reply().expecting(move |request: &Recorded| {
        let mut sent = request.json();
        let mut expected = body.clone();
        for value in [&mut sent, &mut expected] {
            // An absent text and null are the same, and so are two spellings of the same arguments.
            for message in value["messages"].as_array_mut().unwrap() {
                let map = message.as_object_mut().unwrap();
                map.retain(|_, v| !v.is_null());
                for call in map
                    .get_mut("tool_calls")
                    .and_then(|c| c.as_array_mut())
                    .into_iter()
                    .flatten()
                {
                    let text = call["function"]["arguments"].as_str().unwrap().replace(' ', "");
                    call["function"]["arguments"] = text.into();
                }
            }
        }
        sent["model"] = expected["model"].clone();
        if sent == expected {
            Ok(())
        } else {
            Err(format!("sent {sent}\nexpected {expected}"))
        }
    })]);
    let body = &recorded.request["body"];
    let mut question = Question::new([]);
    for message in body["messages"].as_array().unwrap() {
        let text = message["content"].as_str().unwrap_or_default();
        match message["role"].as_str().unwrap() {
            "system" => question.messages.push(Message::system(text)),
            "user" => question.messages.push(Message::user(text)),
            "tool" => question
                .messages
                .push(output(message["tool_call_id"].as_str().unwrap(), text)),
            _ => {
                for c in message["tool_calls"].as_array().unwrap() {
                    let f = &c["function"];
                    question.messages.push(call(
                        c["id"].as_str().unwrap(),
                        f["name"].as_str().unwrap(),
                        f["arguments"].clone(),
                    ));
                }
            }
        }
    }
    for t in body["tools"].as_array().into_iter().flatten() {
        let f = &t["function"];
        let mut tool = tool(f["name"].as_str().unwrap(), f["parameters"].clone());
        tool.description = f["description"].as_str().unwrap().into();
        question.tools.push(tool);
    }
    for (name, value) in body.as_object().unwrap() {
        if !["model", "messages", "tools"].contains(&name.as_str()) {
            question.parameters.insert(name.clone(), value.clone());
        }
    }
    let (_, error) = ask_all(profile(&server.url()), &question, &cx(false)).await;
    assert!(error.is_none(), "{error:?}");
    server.verify();
}
