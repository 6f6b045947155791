//! What servers do against their own protocol, and what is made of it.

use decanus_backend::anthropic::Anthropic;
use decanus_backend::gemini::Gemini;
use decanus_backend::ollama::Ollama;
use decanus_backend::responses::Responses;
use decanus_backend::{Delta, FinishReason};
use decanus_base::Secret;
use decanus_testkit::fixtures::case;
use decanus_testkit::{Reply, ScriptedServer};
use serde_json::{Value, json};

use crate::support::{Question, ask as ask_chat, ask_all, cx, open, profile_of};
use crate::vendor::{self, profile};

fn chunk(delta: Value) -> String {
    format!("data: {}\n\n", json!({"choices": [{"index": 0, "delta": delta}]}))
}

fn chunks(deltas: &[&str]) -> String {
    let chunks = deltas
        .iter()
        .map(|delta| format!("data: {{\"choices\":[{{\"index\":0,\"delta\":{delta}}}]}}\n\n"));
    chunks.collect::<String>()
        + "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n"
}

async fn text_of(reply: Reply, stream: bool) -> String {
    let server = ScriptedServer::start([reply]);
    ask_chat(&server, stream).await.unwrap().text
}

#[tokio::test]
async fn halves_of_a_character_are_put_together() {
    for (deltas, text) in [
        (vec![r#"{"content":"x\ud83d"}"#, r#"{"content":"\ude00y"}"#], "x😀y"),
        (vec![r#"{"content":"x\ud83d"}"#, r#"{"content":"y"}"#], "x\u{fffd}y"),
        (
            vec![r#"{"content":"\ude00y"}"#, r#"{"content":"x\ud83d"}"#],
            "\u{fffd}yx\u{fffd}",
        ),
    ] {
        assert_eq!(text_of(Reply::sse(chunks(&deltas)), true).await, text);
        assert_eq!(text_of(Reply::sse(chunks(&deltas)).every(7), true).await, text);
    }
    let body = r#"{"choices":[{"message":{"content":"x\ud83d"},"finish_reason":"stop"}]}"#;
    assert_eq!(
        text_of(Reply::new(200, "application/json", body), false).await,
        "x\u{fffd}"
    );
    // One value a line.
    let lines = "{\"message\":{\"content\":\"x\\ud83d\"},\"done\":false}\n{\"message\":{\"content\":\"\\ude00y\"},\"done\":false}\n\
        {\"message\":{\"content\":\"\"},\"done\":true,\"done_reason\":\"stop\"}\n";
    let reply = Reply::new(200, "application/x-ndjson", lines);
    let (response, _) = vendor::exchange(Ollama, reply, &Question::default(), &cx(true)).await;
    assert_eq!(response.text, "x😀y");
}

#[tokio::test]
async fn events_that_are_called_json_are_read_as_events() {
    let events = chunks(&[r#"{"content":"He"}"#, r#"{"content":"llo"}"#]);
    for beginning in ["", ": ping\n\n", "event: message\n", "\n\n"] {
        for stream in [true, false] {
            for every in [1, 5, 1000] {
                let reply = Reply::new(200, "application/json", format!("{beginning}{events}"));
                assert_eq!(
                    text_of(reply.every(every), stream).await,
                    "Hello",
                    "{beginning}{stream}{every}"
                );
            }
        }
    }
}

#[tokio::test]
async fn blanks_beside_calls_are_no_text() {
    let call = json!({"index": 0, "id": "c", "function": {"name": "f", "arguments": "{}"}});
    let events = |text: &str| {
        let events =
            chunk(json!({"content": "\n"})) + &chunk(json!({"content": text})) + &chunk(json!({"tool_calls": [call]}));
        Reply::sse(events + "data: [DONE]\n\n")
    };
    assert_eq!(text_of(events("\n "), true).await, "");
    assert_eq!(text_of(events("so"), true).await, "\nso");
    assert_eq!(text_of(Reply::sse(chunks(&[r#"{"content":"\n"}"#])), true).await, "\n");
    let reply = Reply::new(200, "application/json", case("C32.response.json"));
    let (response, _) = vendor::exchange(Anthropic::default(), reply, &Question::default(), &cx(false)).await;
    assert_eq!((response.text.as_str(), response.calls.len()), ("", 1));
}

#[tokio::test]
async fn thoughts_at_the_beginning_of_a_text_are_set_apart() {
    let said = |pieces: &[&str]| {
        let deltas: Vec<String> = pieces.iter().map(|p| json!({"content": p}).to_string()).collect();
        Reply::sse(chunks(&deltas.iter().map(String::as_str).collect::<Vec<_>>()))
    };
    for (pieces, reasoning, text) in [
        (&["<thi", "nk>\nso", "</think>", "\n\nYes"][..], "so", "Yes"),
        (&["I <think>", "so</think>"][..], "", "I <think>so</think>"),
        (&["<b>", "x"][..], "", "<b>x"),
    ] {
        let server = ScriptedServer::start([said(pieces)]);
        let response = ask_chat(&server, true).await.unwrap();
        assert_eq!((response.reasoning.as_str(), response.text.as_str()), (reasoning, text));
        let body = json!({"choices": [{"message": {"content": pieces.concat()}, "finish_reason": "stop"}]});
        let server = ScriptedServer::start([Reply::json(200, &body)]);
        let response = ask_chat(&server, false).await.unwrap();
        assert_eq!((response.reasoning.as_str(), response.text.as_str()), (reasoning, text));
    }
    // A server that has a field for them leaves the text alone.
    let own = chunks(&[r#"{"reasoning_content":"r"}"#, r#"{"content":"<think>a</think>b"}"#]);
    let server = ScriptedServer::start([Reply::sse(own)]);
    assert_eq!(ask_chat(&server, true).await.unwrap().text, "<think>a</think>b");
}

#[tokio::test]
async fn errors_inside_answers_are_named_by_their_code() {
    let said = async |reply: Reply| {
        let server = ScriptedServer::always(reply);
        let mut profile = profile_of("responses", &server.url());
        profile.retries = 0;
        ask_all(profile, &Question::default(), &cx(true))
            .await
            .1
            .unwrap()
            .to_string()
    };
    let error = said(Reply::sse(case("C29.failed.sse"))).await;
    assert!(
        error.ends_with("/responses refused the request (server_error): overloaded"),
        "{error}"
    );
    let error = said(Reply::sse("data: {\"error\":{\"message\":\"no\"}}\n\n")).await;
    assert!(error.ends_with("/responses refused the request: no"), "{error}");
    let error = said(Reply::error(503, "server_error", "overloaded")).await;
    assert!(error.contains("refused the request (503)"), "{error}");
    let blocked = json!({"promptFeedback": {"blockReason": "SAFETY"}});
    let server = ScriptedServer::start([Reply::json(200, &blocked)]);
    let mut endpoint = profile(&Gemini, &server.url());
    endpoint.key = Some(Secret::new("k"));
    let (_, error) = vendor::ask(vendor::open(Gemini, endpoint), &Question::default(), &cx(true)).await;
    let error = error.unwrap().to_string();
    assert!(
        error.contains(":streamGenerateContent refused the request (SAFETY)"),
        "{error}"
    );
}

#[test]
fn a_dry_run_names_the_url_of_its_request() {
    let target = |stream| {
        let endpoint = profile(&Gemini, "http://127.0.0.1:9/v1beta");
        let dry = vendor::open(Gemini, endpoint).dry_run(&Question::default().view(), stream);
        dry.unwrap().target
    };
    let of = |action: &str| format!("POST http://127.0.0.1:9/v1beta/models/scripted:{action}");
    assert_eq!(target(false), of("generateContent"));
    assert_eq!(target(true), of("streamGenerateContent"));
}

#[tokio::test]
async fn unknown_items_of_a_response_are_said_once() {
    let item = json!({"type": "hologram", "id": "h1"});
    let said = json!({"type": "message", "id": "m1", "content": [{"type": "output_text", "text": "a"}]});
    let search = json!({"type": "web_search_call", "id": "w1"});
    let response = json!({"id": "r", "status": "completed", "output": [search, item, said]});
    let events = [
        json!({"type": "response.output_item.done", "output_index": 1, "item": item}),
        json!({"type": "response.completed", "response": response}),
    ];
    let events: String = events.iter().map(|event| format!("data: {event}\n\n")).collect();
    for (reply, stream) in [(Reply::json(200, &response), false), (Reply::sse(events), true)] {
        let server = ScriptedServer::start([reply]);
        let (deltas, error) = ask_all(
            profile_of("responses", &server.url()),
            &Question::default(),
            &cx(stream),
        )
        .await;
        assert!(error.is_none(), "{error:?}");
        let warnings: Vec<_> = deltas.iter().filter(|d| matches!(d, Delta::Warning(_))).collect();
        assert!(
            matches!(&warnings[..], [Delta::Warning(text)] if text.contains("`hologram`")),
            "{warnings:?}"
        );
        assert_eq!(deltas.last(), Some(&Delta::Finish(FinishReason::Stop)));
    }
}

/// OpenAI takes only objects as the root of an answer's schema.
#[test]
fn a_schema_of_a_list_is_said_in_words() {
    let list = json!({"type": "array", "items": {"type": "string"}});
    let sent = |backend: &str, system: bool| {
        let mut question = Question::default();
        if system {
            question.messages.insert(0, decanus_chat::Message::system("Be brief."));
        }
        question.parameters.insert(
            "format".into(),
            json!({"type": "json_schema", "schema": list, "name": "n"}),
        );
        let dry = open(profile_of(backend, "http://127.0.0.1:9/v1"))
            .dry_run(&question.view(), false)
            .unwrap();
        serde_json::from_str::<Value>(&dry.body).unwrap()
    };
    let has_schema = |value: &Value| {
        value
            .as_str()
            .unwrap()
            .contains(r#"{"type":"array","items":{"type":"string"}}"#)
    };
    for backend in ["openai", "openwebui"] {
        let body = sent(backend, false);
        assert!(body.get("response_format").is_none(), "{body}");
        assert_eq!(body["messages"][0]["role"], "system");
        assert!(has_schema(&body["messages"][0]["content"]), "{body}");
        let body = sent(backend, true);
        assert!(
            body["messages"][0]["content"]
                .as_str()
                .unwrap()
                .starts_with("Be brief.\n\n"),
            "{body}"
        );
        assert_eq!(body["messages"].as_array().unwrap().len(), 2);
    }
    let body = sent("responses", true);
    assert!(
        body.get("text").is_none() && has_schema(&body["instructions"]),
        "{body}"
    );
}

/// `reasoning_effort` is OpenAI's word; others have their own.
#[test]
fn efforts_in_the_words_of_each_provider() {
    let sent = |claude: bool, model: &str, effort: &str| {
        let mut question = Question::default();
        question.parameters.insert("reasoning_effort".into(), effort.into());
        let url = "http://127.0.0.1:9/v1";
        let dry = if claude {
            let mut endpoint = profile(&Anthropic::default(), url);
            endpoint.model = model.into();
            vendor::open(Anthropic::default(), endpoint).dry_run(&question.view(), false)
        } else {
            let mut endpoint = profile(&Gemini, url);
            endpoint.model = model.into();
            vendor::open(Gemini, endpoint).dry_run(&question.view(), false)
        };
        dry.map(|dry| serde_json::from_str::<Value>(&dry.body).unwrap())
            .map_err(|e| e.to_string())
    };
    let claude = |model: &str, effort: &str| {
        let body = sent(true, model, effort)?;
        assert!(body.get("reasoning_effort").is_none(), "{body}");
        Ok::<_, String>((
            body["output_config"].clone(),
            body["thinking"].clone(),
            body["max_tokens"].clone(),
        ))
    };
    let (effort, thinking) = (
        |word: &str| json!({"effort": word}),
        |n: u64| json!({"type": "enabled", "budget_tokens": n}),
    );
    for model in ["claude-opus-4-5-20251101", "claude-sonnet-4-6", "claude-opus-5"] {
        assert_eq!(
            claude(model, "medium").unwrap(),
            (effort("medium"), Value::Null, json!(4096)),
            "{model}"
        );
    }
    for model in [
        "claude-3-7-sonnet-latest",
        "claude-sonnet-4-5",
        "claude-opus-4-20250514",
        "mine",
    ] {
        assert_eq!(
            claude(model, "low").unwrap(),
            (Value::Null, thinking(1024), json!(5120)),
            "{model}"
        );
    }
    assert_eq!(claude("mine", "none").unwrap().1, Value::Null);
    assert!(
        claude("claude-3-5-haiku-latest", "low")
            .unwrap_err()
            .contains("can't think")
    );
    assert!(claude("mine", "big").unwrap_err().contains("`reasoning_effort`"));
    let gemini = |model: &str, effort: &str| Ok::<_, String>(sent(false, model, effort)?["generationConfig"].clone());
    let config = |name: &str, value: Value| json!({"thinkingConfig": {name: value}});
    assert_eq!(
        gemini("gemini-2.5-flash", "high"),
        Ok(config("thinkingBudget", json!(24_576)))
    );
    assert_eq!(
        gemini("gemini-2.5-flash", "none"),
        Ok(config("thinkingBudget", json!(0)))
    );
    assert_eq!(
        gemini("gemini-3-pro-preview", "low"),
        Ok(config("thinkingLevel", json!("low")))
    );
    assert!(gemini("gemini-2.0-flash", "low").unwrap_err().contains("can't think"));
    assert!(
        gemini("gemini-3-pro", "big")
            .unwrap_err()
            .contains("`reasoning_effort`")
    );
}

#[tokio::test]
async fn c28_a_response_holds_its_order_in_a_stream_too() {
    let said = |n: u64| json!({"type": "message", "id": format!("m{n}"), "content": [{"type": "output_text", "text": format!("T{n}")}]});
    let call = json!({"type": "function_call", "id": "fc", "call_id": "c", "name": "f", "arguments": "{}"});
    let response = json!({"id": "r", "status": "completed", "output": [said(1), call, said(2)]});
    let whole = vendor::whole(&Responses::default(), response.to_string().as_bytes()).unwrap();
    let event = format!(
        "data: {}\n\n",
        json!({"type": "response.completed", "response": response})
    );
    assert_eq!(vendor::stream(&Responses::default(), event.as_bytes()).unwrap(), whole);
    assert_eq!(whole.parts.len(), 3);
}
