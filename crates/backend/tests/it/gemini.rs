//! Google's Gemini API. Nothing of it has been recorded: the answers are written after its public reference.

use decanus_backend::dialect::Fault;
use decanus_backend::gemini::Gemini;
use decanus_backend::{BackendError, FinishReason, Profile};
use decanus_base::Secret;
use decanus_chat::{FunctionCallOutput, Message, ProviderParts, Role};
use decanus_testkit::fixtures::{case, case_json};
use decanus_testkit::{Reply, ScriptedServer};
use serde_json::{Value, json};

use crate::support::{Question, call, calls, cx, output, tool};
use crate::vendor::{ask, body, history, open, pieces, profile, stream, whole};

fn endpoint() -> Profile {
    profile(&Gemini, "http://127.0.0.1:9/v1beta")
}

fn sent(question: &Question) -> Value {
    body(Gemini, endpoint(), question)
}

fn with(parameters: Value) -> Question {
    let mut question = Question::default();
    question.parameters = parameters.as_object().unwrap().clone();
    question
}

#[test]
fn a_text_with_thoughts() {
    let response = whole(&Gemini, &case("gemini-text.json")).unwrap();
    assert_eq!(stream(&Gemini, &case("gemini-text.sse")).unwrap(), response);
    assert_eq!(
        (response.text.as_str(), response.reasoning.as_str()),
        ("It is -3 °C.", "Looking at the table.")
    );
    assert_eq!(response.parts, [json!({"text": [6, 13], "thoughtSignature": "c2ln"})]);
    let usage = response.usage;
    assert_eq!(
        (usage.pt, usage.ct, usage.tt, usage.cct, usage.rt),
        (Some(9), Some(8), Some(17), Some(4), Some(3))
    );
    assert_eq!(response.finish, Some(FinishReason::Stop));
    assert_eq!(
        (response.id.as_deref(), response.model.as_deref()),
        (Some("r1"), Some("gemini-2.5-flash"))
    );
    // A stream that was asked for without `alt=sse`.
    let list = format!("[{}]", case_json("gemini-text.json"));
    assert_eq!(whole(&Gemini, list.as_bytes()).unwrap(), response);
}

#[test]
fn calls_get_ids_and_keep_their_digits() {
    let response = whole(&Gemini, &case("gemini-calls.json")).unwrap();
    assert_eq!(stream(&Gemini, &case("gemini-calls.sse")).unwrap(), response);
    let is = |id: &str, name: &str, arguments: &str| (id.to_owned(), name.to_owned(), arguments.to_owned());
    let expected = [
        is("call_1", "temperature", r#"{"city":"Oslo","id":7340017340017340017}"#),
        is("call_2", "temperature", r#"{"city":"Rome"}"#),
        is("call_3", "today", "{}"),
    ];
    assert_eq!(calls(&response), expected);
    assert_eq!(response.parts, [json!({"functionCall": 0, "thoughtSignature": "c2ln"})]);
    assert_eq!(response.finish, Some(FinishReason::ToolCalls));
    let own = br#"{"candidates":[{"content":{"parts":[{"functionCall":{"id":"x9","name":"f","args":{}}}]},"finishReason":"STOP"}]}"#;
    assert_eq!(whole(&Gemini, own).unwrap().calls[0].id, "x9");
}

/// What was answered goes back as it came, with the signatures on the parts that they came with.
#[test]
fn an_answer_returns_as_it_was() {
    for name in ["gemini-calls.json", "gemini-text.json"] {
        let response = whole(&Gemini, &case(name)).unwrap();
        let parts = |backend: &str| ProviderParts {
            backend: backend.into(),
            model: "m".into(),
            parts: response.parts.clone(),
        };
        let messages = |backend: &str| {
            let mut messages = vec![Message::user("q"), parts(backend).to_message()];
            messages.extend(response.calls.iter().map(decanus_chat::FunctionCall::to_message));
            messages.push(Message::assistant(response.text.clone()));
            messages.extend(response.calls.iter().map(|c| output(&c.id, "1")));
            sent(&Question::new(messages))["contents"].clone()
        };
        let mut expected = case_json(name)["candidates"][0]["content"].clone();
        let parts = expected["parts"].as_array_mut().unwrap();
        parts.retain(|p| p["thought"] != true);
        for part in parts.iter_mut().filter_map(|p| p.get_mut("functionCall")) {
            part.as_object_mut().unwrap().entry("args").or_insert(json!({}));
        }
        assert_eq!(messages("gemini")[1], expected);
        assert!(!messages("anthropic").to_string().contains("thoughtSignature"));
    }
}

/// Texts that stand behind calls go back behind them.
#[test]
fn texts_among_calls_keep_their_places() {
    let call = |name: &str| json!({"functionCall": {"id": name, "name": name, "args": {}}});
    let signed = |text: &str| json!({"text": text, "thoughtSignature": "s"});
    for content in [
        json!([{"text": "T1"}, call("f"), {"text": "T2"}, call("g")]),
        json!([call("f"), signed("T1"), call("g"), {"text": "T2"}]),
        json!([signed("T1"), call("f"), call("g"), signed("T2"), {"text": "é"}]),
    ] {
        let body = json!({"candidates": [{"content": {"parts": content}, "finishReason": "STOP"}]});
        let response = whole(&Gemini, body.to_string().as_bytes()).unwrap();
        let again = |text: &str| {
            let parts = ProviderParts {
                backend: "gemini".into(),
                model: "m".into(),
                parts: response.parts.clone(),
            };
            let mut messages = vec![Message::user("q"), parts.to_message()];
            messages.extend(response.calls.iter().map(decanus_chat::FunctionCall::to_message));
            messages.push(Message::assistant(text));
            sent(&Question::new(messages))["contents"][1]["parts"].clone()
        };
        assert_eq!(again(&response.text), content);
        // Another text has no places.
        assert_eq!(again("x")[0], json!({"text": "x"}));
    }
}

#[test]
fn a_whole_request() {
    let failed = FunctionCallOutput {
        id: "fc-2".into(),
        content: "no such city".into(),
        error: Some("ToolArgumentError".into()),
        ..Default::default()
    };
    let mut question = Question::new([
        Message::system("Be brief."),
        Message::user("Compare."),
        Message::new(Role::Image, "data:image/png;base64,eA=="),
        Message::new(Role::Pdf, "https://h/x.pdf"),
        call("call_1", "temperature", json!({"city": "Oslo"})),
        call("fc-2", "temperature", json!({"city": "Nowhere"})),
        failed.to_message(),
        output("call_1", "-3"),
        Message::user("Hurry."),
    ]);
    question.tools = vec![
        tool("today", json!({"type": "object", "properties": {}})),
        tool(
            "temperature",
            json!({"type": "object", "additionalProperties": false, "required": ["city"],
                "properties": {"city": {"type": ["string", "null"]}}}),
        ),
    ];
    question.tool_choice = Some("temperature".into());
    question.parameters = json!({"temperature": 0, "top_p": 0.5, "maxOutputTokens": 9, "stop": "END",
        "thinking_config": {"thinkingBudget": 0}, "safety_settings": [], "format": {"answer": "string"}})
    .as_object()
    .unwrap()
    .clone();
    let mut sent = sent(&question);
    let text = sent["systemInstruction"]["parts"][0]["text"].take();
    assert!(
        text.as_str()
            .unwrap()
            .starts_with("Be brief.\n\nGive the final answer as one JSON value")
    );
    let expected = json!({
        "tools": [{"functionDeclarations": [
            {"name": "temperature", "description": "Does temperature", "parameters": {"type": "object", "required": ["city"],
                "properties": {"city": {"type": "string", "nullable": true}}}},
            {"name": "today", "description": "Does today"},
        ]}],
        "contents": [
            {"role": "user", "parts": [{"text": "Compare."}, {"inlineData": {"mimeType": "image/png", "data": "eA=="}},
                {"fileData": {"mimeType": "application/pdf", "fileUri": "https://h/x.pdf"}}]},
            {"role": "model", "parts": [
                {"functionCall": {"name": "temperature", "args": {"city": "Oslo"}}},
                {"functionCall": {"id": "fc-2", "name": "temperature", "args": {"city": "Nowhere"}}}]},
            {"role": "user", "parts": [
                {"functionResponse": {"name": "temperature", "response": {"output": "-3"}}},
                {"functionResponse": {"id": "fc-2", "name": "temperature", "response": {"error": "no such city"}}}]},
            {"role": "user", "parts": [{"text": "Hurry."}]},
        ],
        "generationConfig": {"maxOutputTokens": 9, "stopSequences": ["END"], "temperature": 0,
            "thinkingConfig": {"thinkingBudget": 0}, "topP": 0.5},
        "safetySettings": [],
        "systemInstruction": {"parts": [{"text": null}]},
        "toolConfig": {"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["temperature"]}},
    });
    assert_eq!(sent, expected);
}

#[test]
fn choices_and_formats() {
    let choice = |word: &str| {
        let mut question = Question::default();
        question.tools = vec![tool("f", json!({}))];
        question.tool_choice = Some(word.into());
        sent(&question)["toolConfig"]["functionCallingConfig"].clone()
    };
    for (word, mode) in [("auto", "AUTO"), ("none", "NONE"), ("required", "ANY")] {
        assert_eq!(choice(word), json!({"mode": mode}));
    }
    let config = |format: Value| sent(&with(json!({"format": format})))["generationConfig"].clone();
    assert_eq!(config(json!("json")), json!({"responseMimeType": "application/json"}));
    let schema = json!({"type": "object", "required": ["a"], "properties": {"a": {"type": "string"}}});
    let expected = json!({"responseMimeType": "application/json", "responseSchema": schema});
    assert_eq!(config(json!({"a": "string"})), expected);
    let mut plain = with(json!({"tool_choice": "auto", "cache": true, "generation_config": {"top_k": 3}}));
    plain.messages = history(&json!([{"role": "system", "content": " "}, {"role": "assistant", "content": "Hello."}]));
    let expected = json!({"contents": [{"role": "user", "parts": [{"text": "(no text)"}]},
        {"role": "model", "parts": [{"text": "Hello."}]}], "generationConfig": {"topK": 3}});
    assert_eq!(sent(&plain), expected);
}

#[test]
fn adding_a_turn_never_changes_the_bytes_before_it() {
    let story = [
        Message::system("s"),
        Message::user("one"),
        Message::new(Role::Image, "https://h/x.png"),
        call("a", "f", json!({"x": [1]})),
        call("", "g", json!({})),
        output("", "2"),
        output("a", "1"),
        Message::assistant("It is 3."),
        Message::user("two"),
        Message::user("more"),
    ];
    let mut kept = open(Gemini, endpoint());
    let mut before = String::new();
    for n in [2, 3, 7, 9, 10] {
        let mut question = Question::new(&story[..n]);
        question.tools = vec![tool("f", json!({})), tool("g", json!({}))];
        question.parameters.insert("temperature".into(), json!(n));
        let body = kept.dry_run(&question.view(), false).unwrap().body;
        let fresh = open(Gemini, endpoint()).dry_run(&question.view(), false).unwrap().body;
        assert_eq!(body, fresh, "a kept conversation and a rebuilt one send the same");
        assert!(body.starts_with(&before), "after {n} messages:\n{before}\n{body}");
        let end = body.rfind("],\"generationConfig\":").unwrap();
        before = body[..end].strip_suffix("]}").unwrap().to_owned();
        assert!(serde_json::from_str::<Value>(&body).is_ok(), "{body}");
    }
}

#[tokio::test]
async fn urls_and_keys() {
    for (streamed, path) in [
        (false, "/v1/models/scripted:generateContent"),
        (true, "/v1/models/scripted:streamGenerateContent?alt=sse"),
    ] {
        let reply = match streamed {
            true => Reply::sse(case("gemini-text.sse")),
            false => Reply::new(200, "application/json; charset=UTF-8", case("gemini-text.json")),
        };
        let server = ScriptedServer::start([reply]);
        let mut profile = profile(&Gemini, &server.url());
        profile.key = Some(Secret::new("k-1"));
        let (response, error) = ask(open(Gemini, profile), &Question::default(), &cx(streamed)).await;
        assert!(error.is_none() && response.text == "It is -3 °C.", "{error:?}");
        let request = server.requests().remove(0);
        assert_eq!(
            (request.path.as_str(), request.header("x-goog-api-key")),
            (path, Some("k-1"))
        );
        assert!(request.header("authorization").is_none());
    }
    let mut elsewhere = endpoint();
    elsewhere.model = "../../x".into();
    let error = open(Gemini, elsewhere)
        .dry_run(&Question::default().view(), false)
        .unwrap_err();
    assert!(error.to_string().contains("not the name of a Gemini model"), "{error}");
}

#[tokio::test]
async fn errors_in_all_their_places() {
    let error = case_json("gemini-error.json");
    for (status, value) in [(429, error.clone()), (429, json!([error])), (200, json!([error]))] {
        let mut profile = endpoint();
        profile.retries = 0;
        let server = ScriptedServer::start([Reply::json(status, &value)]);
        profile.url = server.url();
        let (_, error) = ask(open(Gemini, profile), &Question::default(), &cx(true)).await;
        let Some(BackendError::Refused {
            status, code, message, ..
        }) = error
        else {
            panic!("{error:?}")
        };
        let seen = (status, code.as_deref(), message.as_str());
        assert_eq!(
            seen,
            (429, Some("RESOURCE_EXHAUSTED"), "You exceeded your current quota.")
        );
    }
    for data in [error.to_string(), json!([error]).to_string()] {
        let decoded = stream(&Gemini, format!("data: {data}\n\n").as_bytes());
        assert!(
            matches!(decoded, Err(Fault::Refused { status: Some(429), .. })),
            "{decoded:?}"
        );
    }
    let blocked = whole(&Gemini, &case("gemini-blocked.json"));
    assert!(
        matches!(&blocked, Err(Fault::Refused { code: Some(c), .. }) if c == "SAFETY"),
        "{blocked:?}"
    );
    let too_long = br#"{"error":{"code":400,"status":"INVALID_ARGUMENT","message":"The input token count (9) exceeds the maximum number of tokens allowed (8)."}}"#;
    assert!(matches!(whole(&Gemini, too_long), Err(Fault::TooLong(_))));
}

#[test]
fn answers_that_are_none_and_streams_that_end_early() {
    for body in [
        "",
        "{}",
        "null",
        "[]",
        "<html>",
        r#"{"usageMetadata":{"promptTokenCount":1}}"#,
        r#"{"candidates":[]}"#,
    ] {
        assert!(
            matches!(whole(&Gemini, body.as_bytes()), Err(Fault::Malformed(_))),
            "{body}"
        );
    }
    assert!(matches!(whole(&Gemini, b"{\"candidates\":"), Err(Fault::Incomplete(_))));
    let response = whole(&Gemini, &case("gemini-malformed-call.json")).unwrap();
    assert_eq!(
        response.finish,
        Some(FinishReason::Other("MALFORMED_FUNCTION_CALL".into()))
    );
    assert_eq!(response.text, "Malformed function call: print(today()");
    for (word, reason) in [
        ("MAX_TOKENS", FinishReason::Length),
        ("SAFETY", FinishReason::ContentFilter),
        ("RECITATION", FinishReason::ContentFilter),
        ("NEW", FinishReason::Other("NEW".into())),
    ] {
        let body = json!({"candidates": [{"finishReason": word}]}).to_string();
        assert_eq!(whole(&Gemini, body.as_bytes()).unwrap().finish, Some(reason));
    }
    let text = String::from_utf8(case("gemini-text.sse")).unwrap();
    let last = text.rfind("data: ").unwrap();
    for cut in [0, text.find("\n\n").unwrap() + 2, last] {
        let decoded = pieces(&Gemini, &[&text.as_bytes()[..cut]]);
        assert!(matches!(decoded, Err(Fault::Incomplete(_))), "{cut}: {decoded:?}");
    }
    // Counts alone, parts that nobody knows, and a chunk without content.
    let odd = format!(
        "{}data: {}\n\ndata: {}\n\n",
        text,
        json!({"candidates": [{"content": {"parts": [{"executableCode": {"code": "1"}}, 3]}}]}),
        json!({"usageMetadata": {"promptTokenCount": 9, "candidatesTokenCount": 6, "totalTokenCount": 18}}),
    );
    let response = stream(&Gemini, odd.as_bytes()).unwrap();
    assert_eq!((response.text.as_str(), response.usage.tt), ("It is -3 °C.", Some(18)));
}
