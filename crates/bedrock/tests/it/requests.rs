//! What is sent.

use decanus_chat::{FunctionCallOutput, Message, ProviderParts, Role, ToolDefinition};
use decanus_testkit::{Reply, ScriptedServer};
use serde_json::{Value, json};

use crate::support::*;

fn messages(question: &Question) -> Value {
    question.body()["messages"].clone()
}

#[test]
fn everything_has_its_place() {
    let mut question = Question::with(json!({
        "max_tokens": 100, "temperature": 0.5, "top_p": 0.9, "stop": "END", "top_k": 5, "thinking": null,
        "performanceConfig": {"latency": "optimized"}, "additionalModelRequestFields": {"b": 1},
        "cache": false, "tool_choice": "auto",
    }));
    question.messages.insert(0, Message::new(Role::System, "Be brief."));
    question.messages.insert(1, Message::new(Role::System, "Be kind."));
    question.tools = vec![tool("kb.lookup"), tool("add")];
    question.tools[1].description = " ".into();
    question.tool_choice = Some("kb.lookup");
    let schema = json!({"json": {"type": "object", "properties": {"x": {"type": "integer"}}}});
    let mut body = question.body();
    let name = body["toolConfig"]["toolChoice"]["tool"]["name"].take();
    assert!(name.as_str().unwrap().starts_with("kb_lookup_"), "{name}");
    let expected = json!({
        "messages": [{"role": "user", "content": [{"text": "hi"}]}],
        "system": [{"text": "Be brief."}, {"text": "Be kind."}],
        "toolConfig": {
            "tools": [
                {"toolSpec": {"name": "add", "inputSchema": schema}},
                {"toolSpec": {"name": name, "description": "Does kb.lookup", "inputSchema": schema}},
            ],
            "toolChoice": {"tool": {"name": null}},
        },
        "additionalModelRequestFields": {"b": 1, "top_k": 5},
        "inferenceConfig": {"maxTokens": 100, "stopSequences": ["END"], "temperature": 0.5, "topP": 0.9},
        "performanceConfig": {"latency": "optimized"},
    });
    assert_eq!(body, expected);
}

#[test]
fn the_dry_run_is_byte_for_byte_and_says_where() {
    let question = Question::with(json!({"max_tokens": 7}));
    let mut conversation = open(profile("http://127.0.0.1:9/base"));
    let dry = conversation.dry_run(&question.view(), false).unwrap();
    assert_eq!(
        dry.target,
        "POST http://127.0.0.1:9/base/model/eu.anthropic.claude-sonnet-4-5-20250929-v1%3A0/converse"
    );
    assert_eq!(
        dry.body,
        r#"{"messages":[{"role":"user","content":[{"text":"hi"}]}],"inferenceConfig":{"maxTokens":7}}"#
    );
}

#[test]
fn a_model_may_be_an_arn() {
    let mut profile = profile("");
    profile.model = "arn:aws:bedrock:eu-west-1:1:application-inference-profile/ab".into();
    let question = Question::with(json!({}));
    let target = open(profile).dry_run(&question.view(), false).unwrap().target;
    assert_eq!(
        target,
        "POST https://bedrock-runtime.eu-west-1.amazonaws.com/model/\
         arn%3Aaws%3Abedrock%3Aeu-west-1%3A1%3Aapplication-inference-profile%2Fab/converse"
    );
}

/// Blank texts are refused in any place.
#[test]
fn no_blank_text_is_sent() {
    let question = Question::new([
        Message::new(Role::System, " "),
        Message::user("  "),
        Message::assistant(""),
        call("t1", "f", "{}"),
        output("t1", ""),
        Message::user("go on"),
    ]);
    let body = question.body();
    assert_eq!(body.get("system"), None);
    assert_eq!(
        body["messages"],
        json!([
            {"role": "user", "content": [{"text": "(no text)"}]},
            {"role": "assistant", "content": [{"toolUse": {"toolUseId": "t1", "name": "f", "input": {}}}]},
            {"role": "user", "content": [{"toolResult": {"toolUseId": "t1", "content": [{"text": "(no text)"}]}}, {"text": "go on"}]},
        ])
    );
    // Calls without tools would be refused.
    let former = &body["toolConfig"]["tools"][0]["toolSpec"];
    assert_eq!(
        (former["name"].as_str(), former["inputSchema"]["json"]["type"].as_str()),
        (Some("f"), Some("object"))
    );
}

#[test]
fn roles_alternate() {
    let question = Question::new([
        Message::assistant("one"),
        Message::assistant("two"),
        Message::user("a"),
        Message::user("b"),
    ]);
    assert_eq!(
        messages(&question),
        json!([
            {"role": "user", "content": [{"text": "(no text)"}]},
            {"role": "assistant", "content": [{"text": "one"}, {"text": "two"}]},
            {"role": "user", "content": [{"text": "a"}, {"text": "b"}]},
        ])
    );
    assert_eq!(
        messages(&Question::new([])),
        json!([{"role": "user", "content": [{"text": "(no text)"}]}])
    );
}

/// All results of one answer are in one message; arguments are an object, whatever they were.
#[test]
fn calls_and_their_results() {
    let mut failed = FunctionCallOutput {
        id: "t2".into(),
        content: "no".into(),
        ..Default::default()
    };
    failed.error = Some("boom".into());
    let question = Question::new([
        Message::user("q"),
        call("t1", "f", ""),
        call("t2", "f", "{\"x\":"),
        call("t3!", "f", "[1]"),
        output("t3!", "3"),
        failed.to_message(),
        output("t1", "1"),
    ]);
    let said = messages(&question);
    let calls = said[1]["content"].as_array().unwrap();
    let inputs: Vec<&Value> = calls.iter().map(|c| &c["toolUse"]["input"]).collect();
    assert_eq!(
        inputs,
        [
            &json!({}),
            &json!({"invalid_arguments": "{\"x\":"}),
            &json!({"invalid_arguments": "[1]"})
        ]
    );
    let id = calls[2]["toolUse"]["toolUseId"].clone();
    assert!(id.as_str().unwrap().starts_with("t3__"), "{id}");
    assert_eq!(
        said[2],
        json!({"role": "user", "content": [
            {"toolResult": {"toolUseId": "t1", "content": [{"text": "1"}]}},
            {"toolResult": {"toolUseId": "t2", "status": "error", "content": [{"text": "no"}]}},
            {"toolResult": {"toolUseId": id, "content": [{"text": "3"}]}},
        ]})
    );
}

/// Other models than Claude refuse texts beside results, most of them also beside calls.
#[test]
fn texts_stand_apart_from_tools_where_they_must() {
    let history = || {
        Question::new([
            Message::user("q"),
            call("t1", "f", "{}"),
            Message::assistant("I look."),
            output("t1", "1"),
            Message::user("be brief"),
        ])
    };
    let used = json!({"toolUse": {"toolUseId": "t1", "name": "f", "input": {}}});
    let within = json!({"role": "user", "content": [
        {"toolResult": {"toolUseId": "t1", "content": [{"text": "1"}, {"text": "be brief"}]}},
    ]});
    let claude = messages(&history());
    assert_eq!(claude[1]["content"], json!([{"text": "I look."}, used]));
    assert_eq!(claude[2]["content"][1], json!({"text": "be brief"}));
    let nova = messages(&history().of("eu.amazon.nova-pro-v1:0"));
    assert_eq!((&nova[1], &nova[2]), (&claude[1], &within));
    assert_eq!(
        messages(&history().of(LLAMA)),
        json!([
            {"role": "user", "content": [{"text": "q"}]},
            {"role": "assistant", "content": [{"text": "I look."}]},
            {"role": "user", "content": [{"text": "(go on)"}]},
            {"role": "assistant", "content": [used]},
            within,
        ])
    );
}

/// A longer conversation begins with the bytes of the shorter one, up to the brackets that close it.
#[test]
fn a_conversation_only_grows() {
    let all = [
        Message::user("q"),
        call("t1", "f", "{}"),
        output("t1", "1"),
        Message::assistant("It is 1."),
        Message::user("Thanks."),
    ];
    for model in [CLAUDE, LLAMA] {
        let mut profile = profile("http://127.0.0.1:9");
        profile.model = model.into();
        let mut conversation = open(profile);
        let mut before = String::new();
        for n in [1, 3, 5] {
            let mut question = Question::new(&all[..n]);
            question.tools = vec![tool("f")];
            let body = conversation.dry_run(&question.view(), false).unwrap().body;
            let said = body
                .split("}],\"toolConfig\"")
                .next()
                .unwrap()
                .trim_end_matches([']', '}'])
                .to_owned();
            assert!(said.starts_with(&before), "{said}");
            before = said;
        }
    }
}

#[test]
fn tool_choices() {
    let ask = |choice| {
        let mut question = Question::new([Message::user("q")]);
        question.tools = vec![tool("f")];
        question.tool_choice = choice;
        question
    };
    let choice = |c| ask(Some(c)).body()["toolConfig"]["toolChoice"].clone();
    assert_eq!(choice("auto"), json!({"auto": {}}));
    assert_eq!(choice("required"), json!({"any": {}}));
    assert_eq!(choice("f"), json!({"tool": {"name": "f"}}));
    assert_eq!(ask(None).body()["toolConfig"].get("toolChoice"), None);
    // There is no word for none: the tools are left out.
    assert_eq!(ask(Some("none")).body().get("toolConfig"), None);
    let error = ask(Some("g")).dry().unwrap_err().to_string();
    assert!(error.contains("tool_choice names `g`"), "{error}");
}

#[test]
fn pictures_and_documents() {
    let pdf = || Message::new(Role::Pdf, "data:application/pdf;base64,JVBERi0=");
    let question = Question::new([
        Message::new(Role::Image, "data:image/jpg;base64,AAAA"),
        pdf(),
        pdf(),
        Message::new(Role::Image, "s3://bucket/a.JPG"),
        Message::user("What is it?"),
    ]);
    let content = &messages(&question)[0]["content"];
    assert_eq!(
        content[0],
        json!({"image": {"format": "jpeg", "source": {"bytes": "AAAA"}}})
    );
    let name = content[1]["document"]["name"].as_str().unwrap();
    assert!(name.starts_with("document-"), "{name}");
    // Names must differ.
    assert_eq!(content[2]["document"]["name"], format!("{name}-2"));
    assert_eq!(content[1]["document"]["source"], json!({"bytes": "JVBERi0="}));
    assert_eq!(
        content[3],
        json!({"image": {"format": "jpeg", "source": {"s3Location": {"uri": "s3://bucket/a.JPG"}}}})
    );
    for (url, words) in [
        (
            "https://example.test/a.png",
            "message 2: Bedrock fetches no URLs but s3://",
        ),
        (
            "data:image/tiff;base64,AAAA",
            "message 2: Bedrock takes pictures as png",
        ),
        ("data:image/png;base64,!", "message 2: the data is not base64"),
    ] {
        let error = Question::new([Message::user("a"), Message::new(Role::Image, url)])
            .dry()
            .unwrap_err();
        assert!(error.to_string().starts_with(words), "{error}");
    }
}

#[test]
fn marks_for_the_cache() {
    let ask = |model| {
        let mut question = Question::with(json!({"cache": true})).of(model);
        question.messages.insert(0, Message::new(Role::System, "Be brief."));
        question.tools = vec![tool("f")];
        question.body()
    };
    let mark = json!({"cachePoint": {"type": "default"}});
    let body = ask(CLAUDE);
    assert_eq!(body["system"][1], mark);
    assert_eq!(body["messages"][0]["content"][1], mark);
    assert_eq!(body["toolConfig"]["tools"][1], mark);
    // Nova has none behind tools.
    assert_eq!(
        ask("amazon.nova-pro-v1:0")["toolConfig"]["tools"]
            .as_array()
            .unwrap()
            .len(),
        1
    );
}

#[test]
fn thinking_gets_room_and_goes_back_signed() {
    let thinking = json!({"type": "enabled", "budget_tokens": 2000});
    let body = Question::with(json!({"thinking": thinking})).body();
    assert_eq!(body["additionalModelRequestFields"], json!({"thinking": thinking}));
    assert_eq!(body["inferenceConfig"], json!({"maxTokens": 6096}));
    let part =
        |signature: &str| json!({"reasoningContent": {"reasoningText": {"text": "Hm.", "signature": signature}}});
    let redacted = json!({"reasoningContent": {"redactedContent": "AAEC"}});
    let history = |backend: &str| {
        let parts = ProviderParts {
            backend: backend.into(),
            model: String::new(),
            parts: vec![part("c2ln"), part(""), redacted.clone()],
        };
        Question::new([
            Message::user("q"),
            parts.to_message(),
            Message::assistant("a"),
            Message::user("b"),
        ])
    };
    let content = |backend: &str| messages(&history(backend))[1]["content"].clone();
    assert_eq!(content("bedrock"), json!([part("c2ln"), redacted, {"text": "a"}]));
    assert_eq!(content("anthropic"), json!([{"text": "a"}]));
}

#[test]
fn a_format_is_said_in_words() {
    let schema = json!({"type": "object", "properties": {"a": {"type": "integer"}}});
    let body = Question::with(json!({"format": schema})).body();
    assert!(body["system"][0]["text"].as_str().unwrap().contains("\"a\""), "{body}");
    assert_eq!(body.get("additionalModelRequestFields"), None);
}

#[test]
fn what_cannot_be_sent_is_named() {
    for (parameters, words) in [
        (json!({"inferenceConfig": 1}), "inferenceConfig must be an object"),
        (
            json!({"parallel_tool_calls": false}),
            "parallel_tool_calls: Bedrock can't",
        ),
    ] {
        let error = Question::with(parameters).dry().unwrap_err().to_string();
        assert!(error.starts_with(words), "{error}");
    }
}

#[test]
fn long_and_odd_tool_names_fit() {
    let mut question = Question::new([Message::user("q")]);
    let long = ToolDefinition {
        name: "a.".repeat(60),
        ..tool("x")
    };
    question.tools = vec![long];
    let body = question.body();
    let name = body["toolConfig"]["tools"][0]["toolSpec"]["name"]
        .as_str()
        .unwrap()
        .to_owned();
    assert!(
        name.len() <= 64 && name.chars().all(|c| c.is_ascii_alphanumeric() || "_-".contains(c)),
        "{name}"
    );
}

/// What does not come as reasoning, a text, then calls goes back where it stood, to a model that takes it so.
#[tokio::test]
async fn an_answer_of_several_steps_goes_back_in_order() {
    let reasoning = |n: u64| json!({"reasoningContent": {"reasoningText": {"text": format!("H{n}"), "signature": format!("S{n}")}}});
    let uses = |n: u64| json!({"toolUse": {"toolUseId": format!("t{n}"), "name": "f", "input": {}}});
    let content = json!([reasoning(1), {"text": "T1"}, uses(1), reasoning(2), {"text": "T2"}, uses(2)]);
    let server = ScriptedServer::start([Reply::json(200, &answer(content.clone(), "tool_use"))]);
    let response = ask(&server, false).await.unwrap();
    assert_eq!(response.text, "T1\n\nT2");
    let history = || {
        let parts = ProviderParts {
            backend: "bedrock".into(),
            model: String::new(),
            parts: response.parts.clone(),
        };
        let mut said = vec![Message::user("q"), parts.to_message()];
        said.extend(response.calls.iter().map(decanus_chat::FunctionCall::to_message));
        said.push(Message::assistant(response.text.clone()));
        Question::new(said)
    };
    assert_eq!(messages(&history())[1]["content"], content);
    // Others get the text and the calls apart, and no marks of places.
    let mut other = history();
    other.model = LLAMA;
    let sent = messages(&other);
    assert_eq!(
        sent[1]["content"],
        json!([reasoning(1), reasoning(2), {"text": "T1\n\nT2"}])
    );
    assert_eq!(sent[3]["content"], json!([uses(1), uses(2)]));
}
