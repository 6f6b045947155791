use decanus_chat::{Arguments, FunctionCall, Usage};

use super::*;
use crate::collect::Response;
use crate::conversation::{Delta, FinishReason};
use crate::dialect::Fault;

fn near(relay: &Relay, messages: &[Message], tools: &[ToolDefinition]) -> Result<Value, String> {
    let parameters = Map::new();
    let view = View {
        messages,
        tools,
        parameters: &parameters,
        tool_choice: None,
    };
    let mut profile = Profile::new("r", NAME, "m4");
    profile.parameters.insert("temperature".into(), 0.into());
    request(&profile, relay, &view).map(|bytes| serde_json::from_slice(&bytes).unwrap())
}

fn call() -> FunctionCall {
    FunctionCall {
        id: "a".into(),
        name: "f".into(),
        arguments: Arguments::from_text("{\"x\":1}"),
    }
}

#[test]
fn what_the_near_side_writes_the_far_side_reads() {
    let messages = [
        Message::system("Be brief."),
        Message::user("Say hi"),
        call().to_message(),
        Message::new(
            Role::FunctionCallOutput,
            "{\"name\":\"f\",\"content\":\"2\",\"id\":\"a\"}",
        ),
    ];
    let tools = [ToolDefinition {
        name: "f".into(),
        description: "d".into(),
        ..ToolDefinition::default()
    }];
    let relay = Relay {
        endpoint: Some("lab".into()),
        ..Relay::to("host")
    };
    let value = near(&relay, &messages, &tools).unwrap();
    assert_eq!(value["question"], "Say hi");
    assert_eq!(value["messages"][2]["content"]["name"], "f");
    let read = RelayRequest::read(value.to_string().as_bytes()).unwrap();
    assert_eq!(read.messages, messages);
    assert_eq!((read.tools.len(), read.tools[0].name.as_str()), (1, "f"));
    assert_eq!(Value::Object(read.parameters), json!({"temperature": 0}));
    assert_eq!(
        (read.endpoint.as_deref(), read.model.as_deref()),
        (Some("lab"), Some("m4"))
    );
    assert_eq!(read.form, Form::Own);
}

#[test]
fn a_longer_conversation_begins_like_a_shorter_one() {
    let parameters = Map::new();
    let bytes = |messages: &[Message]| {
        let view = View {
            messages,
            tools: &[],
            parameters: &parameters,
            tool_choice: None,
        };
        String::from_utf8(request(&Profile::new("r", NAME, "m"), &Relay::to("h"), &view).unwrap()).unwrap()
    };
    let short = bytes(&[Message::user("a")]);
    let long = bytes(&[Message::user("a"), Message::assistant("b"), Message::user("c")]);
    assert!(long.starts_with(short.split(']').next().unwrap()), "{short} {long}");
}

/// Example A of the originals' protocol.
#[test]
fn the_original_form() {
    let relay = Relay {
        plain: true,
        ..Relay::to("host")
    };
    let value = near(&relay, &[Message::user("Say hi")], &[]).unwrap();
    assert_eq!(value, json!({"model": "m4", "temperature": 0, "question": "Say hi"}));
    assert!(near(&relay, &[Message::system("x"), Message::user("y")], &[]).is_err());
    let read = RelayRequest::read(br#"{"model":"m4","persist":true,"question":"Say hi"}"#).unwrap();
    assert!(read.form == Form::Question && read.parameters.is_empty());
    assert_eq!(read.messages, [Message::user("Say hi")]);
    let response = Response {
        text: "Hi".into(),
        ..Response::default()
    };
    assert_eq!(reply(&response, "openai", Form::Question), "Hi");
    let deltas = read_reply(b"\"Hi\"").unwrap();
    assert_eq!(deltas, [Delta::Text("Hi".into()), Delta::Finish(FinishReason::Stop)]);
}

/// Example B of the originals' protocol.
#[test]
fn the_second_original_form() {
    let text = br#"[[{"role":"backend","content":"openai"},{"role":"user","content":"Say hi"}],{"model":"m4"}]"#;
    let read = RelayRequest::read(text).unwrap();
    assert_eq!((read.form, read.backend.as_deref()), (Form::Query, Some("openai")));
    assert_eq!(
        (read.messages, read.model.as_deref()),
        (vec![Message::user("Say hi")], Some("m4"))
    );
    let response = Response {
        calls: vec![call()],
        finish: Some(FinishReason::ToolCalls),
        ..Response::default()
    };
    let value = reply(&response, "openai", Form::Query);
    let function = &value["choices"][0]["message"]["tool_calls"][0]["function"];
    assert_eq!(*function, json!({"name": "f", "arguments": "{\"x\":1}"}));
    assert_eq!(value["choices"][0]["finish_reason"], "tool_calls");
    for (text, words) in [
        (
            r#"[[{"role":"backend","content":"gemini"}],{}]"#,
            "the backend `gemini`",
        ),
        (r#"[[],{"key":"k"}]"#, "`key` is refused"),
        (r#"[[],{}]"#, "neither a `question`"),
        ("[1]", "`[messages, options]`"),
    ] {
        let error = RelayRequest::read(text.as_bytes()).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
}

#[test]
fn a_reply_comes_back_as_it_was() {
    let response = Response {
        text: "look".into(),
        reasoning: "hm".into(),
        calls: vec![call()],
        parts: vec![json!({"signature": "s"})],
        usage: Usage {
            pt: Some(2),
            ct: Some(3),
            tt: Some(5),
            ..Usage::default()
        },
        model: Some("m4".into()),
        finish: Some(FinishReason::ToolCalls),
        ..Response::default()
    };
    let deltas = read_reply(reply(&response, "anthropic", Form::Own).to_string().as_bytes()).unwrap();
    let mut collector = crate::Collector::new();
    deltas.iter().for_each(|d| collector.push(d));
    let back = collector.finish();
    let record = back.parts[0].clone();
    assert_eq!(
        (record["backend"].as_str(), &record["parts"][0]["signature"]),
        (Some("anthropic"), &json!("s"))
    );
    let expected = Response {
        parts: vec![record.clone()],
        ..response
    };
    assert_eq!(back, expected);
    // The record goes back as that of the far side's own backend.
    let stored = ProviderParts {
        backend: NAME.into(),
        model: "m4".into(),
        parts: vec![record],
    };
    let sent = outgoing(&stored.to_message()).unwrap();
    assert_eq!(sent[0].1["backend"], "anthropic");
}

#[test]
fn credentials_neither_leave_nor_arrive() {
    let mut profile = Profile::new("r", NAME, "");
    profile.parameters.insert("api-key".into(), "sk-SENTINEL".into());
    let parameters = Map::new();
    let view = View {
        messages: &[Message::user("x")],
        tools: &[],
        parameters: &parameters,
        tool_choice: None,
    };
    let error = request(&profile, &Relay::to("h"), &view).unwrap_err();
    assert!(error.contains("`api-key`") && !error.contains("SENTINEL"), "{error}");
    for name in ["key", "key_env", "headers", "url", "API_KEY"] {
        let text = json!({name: "sk-SENTINEL", "question": "x"}).to_string();
        let error = RelayRequest::read(text.as_bytes()).unwrap_err();
        assert_eq!(error, RelayRequestError::Credential(name.into()));
        assert!(!error.to_string().contains("SENTINEL"));
    }
}

#[test]
fn bad_requests_say_what_is_wrong() {
    for (text, words) in [
        ("{\"question\": \"a", "not JSON"),
        ("1", "not a JSON object"),
        ("{}", "neither a `question` nor `messages`"),
        ("{\"question\": 1}", "`question` is not a text"),
        (
            "{\"messages\": [{\"role\": \"cmd\", \"content\": \"id\"}]}",
            "role `cmd`",
        ),
        (
            "{\"messages\": [{\"role\": \"image\", \"content\": \"/etc/passwd\"}]}",
            "neither data nor a URL",
        ),
        ("{\"question\": \"a\", \"tools\": [{}]}", "a tool has no name"),
    ] {
        let error = RelayRequest::read(text.as_bytes()).unwrap_err().to_string();
        assert!(error.contains(words), "{text}: {error}");
    }
}

#[test]
fn bad_replies_and_errors() {
    for text in [
        "",
        "1",
        "{}",
        "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}]}",
    ] {
        assert!(
            matches!(read_reply(text.as_bytes()), Err(Fault::Malformed(_))),
            "{text}"
        );
    }
    let error = read_reply(error_reply("config", "no such endpoint", 400).to_string().as_bytes());
    let expected = Fault::Refused {
        status: Some(400),
        code: Some("config".into()),
        message: "no such endpoint".into(),
    };
    assert_eq!(error, Err(expected));
}
