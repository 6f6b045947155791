//! Anthropic's Messages: what is sent.

use decanus_backend::Profile;
use decanus_backend::anthropic::Anthropic;
use decanus_chat::{FunctionCallOutput, Message, ProviderParts, Role};
use decanus_testkit::fixtures::case_json;
use serde_json::{Value, json};

use crate::support::{Question, call, output, tool};
use crate::vendor::{body, history, open, profile, whole};

fn endpoint() -> Profile {
    profile(&Anthropic::default(), "http://127.0.0.1:9/v1")
}

fn sent(question: &Question) -> Value {
    body(Anthropic::default(), endpoint(), question)
}

fn with(parameters: Value) -> Question {
    let mut question = Question::default();
    question.parameters = parameters.as_object().unwrap().clone();
    question
}

#[test]
fn a_whole_request() {
    let mut question = Question::new([
        Message::system("Be brief."),
        Message::user("Is it cold in Oslo?"),
        call("tu_1", "temperature", json!({"city": "Oslo"})),
        Message::system("Use degrees."),
        output("tu_1", "-3"),
    ]);
    question.tools = vec![
        tool("temperature", json!({"properties": {"city": {"type": "string"}}})),
        tool("kb.lookup", json!({})),
    ];
    question.tool_choice = Some("kb.lookup".into());
    question.parameters =
        json!({"temperature": 0, "stop": "END", "parallel_tool_calls": false, "metadata": {"user_id": "u"},
        "cache": false, "stream_options": {}})
        .as_object()
        .unwrap()
        .clone();
    let dry = open(Anthropic::default(), endpoint())
        .dry_run(&question.view(), true)
        .unwrap();
    let sent: Value = serde_json::from_str(&dry.body).unwrap();
    let lookup = sent["tools"][0]["name"].clone();
    assert!(lookup.as_str().unwrap().starts_with("kb_lookup_"));
    let expected = json!({
        "model": "scripted",
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "Is it cold in Oslo?"}]},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "tu_1", "name": "temperature", "input": {"city": "Oslo"}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "tu_1", "content": "-3"}]},
        ],
        "system": "Be brief.\n\nUse degrees.",
        "tools": [
            {"name": lookup, "description": "Does kb.lookup", "input_schema": {"type": "object", "properties": {}}},
            {"name": "temperature", "description": "Does temperature",
             "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}}},
        ],
        "tool_choice": {"type": "tool", "name": lookup, "disable_parallel_tool_use": true},
        "max_tokens": 4096, "metadata": {"user_id": "u"}, "stop_sequences": ["END"], "temperature": 0, "stream": true,
    });
    assert_eq!(sent, expected);
    assert_eq!(dry.target, "POST http://127.0.0.1:9/v1/messages");
}

#[test]
fn c31_results_stand_first_and_together() {
    let sent = sent(&Question::new(history(&case_json("C31.history.json"))));
    let messages = sent["messages"].as_array().unwrap();
    assert_eq!(messages.len(), 3);
    assert_eq!(messages[2], case_json("C31.expect-last.json"));
    assert_eq!(
        messages[1]["content"][0],
        json!({"type": "text", "text": "Two look-ups."})
    );
    assert_eq!(messages[1]["content"].as_array().unwrap().len(), 3);
}

#[test]
fn c32_c41_no_blank_text_is_sent() {
    let mut question = Question::new(history(&case_json("C41.history.json")));
    question.messages.insert(4, Message::assistant("\n\n"));
    let sent = sent(&question);
    assert!(sent.get("system").is_none());
    let expected = json!([
        {"role": "user", "content": [{"type": "text", "text": "(no text)"}]},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "f", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1"}]},
        {"role": "assistant", "content": [{"type": "text", "text": "(no text)"}]},
        {"role": "user", "content": [{"type": "text", "text": "go on"}]},
    ]);
    assert_eq!(sent["messages"], expected);
}

#[test]
fn a_conversation_begins_with_the_person() {
    let placeholder = json!({"role": "user", "content": [{"type": "text", "text": "(no text)"}]});
    let answer = Question::new([Message::system("s"), Message::assistant("Hello.")]);
    let messages = &sent(&answer)["messages"];
    assert_eq!(messages[0], placeholder);
    assert_eq!(messages[1]["content"][0]["text"], "Hello.");
    assert_eq!(
        sent(&Question::new([Message::system("s")]))["messages"],
        json!([placeholder])
    );
}

#[test]
fn failed_calls_odd_ids_and_arguments_that_are_none() {
    let failed = FunctionCallOutput {
        id: "list:0".into(),
        content: "no such city".into(),
        error: Some("ToolArgumentError".into()),
        ..Default::default()
    };
    let question = Question::new([
        Message::user("q"),
        call("list:0", "f", json!("{\"id\": 42")),
        failed.to_message(),
        call("list:0", "f", json!({})),
    ]);
    let messages = sent(&question)["messages"].clone();
    let id = messages[1]["content"][0]["id"].as_str().unwrap();
    assert!(
        id.starts_with("list_0_") && id.chars().all(|c| c.is_ascii_alphanumeric() || c == '_'),
        "{id}"
    );
    assert_eq!(
        messages[1]["content"][0]["input"],
        json!({"invalid_arguments": "{\"id\": 42"})
    );
    let result = json!({"type": "tool_result", "tool_use_id": id, "content": "no such city", "is_error": true});
    assert_eq!(messages[2]["content"][0], result);
    let again = &messages[3]["content"][0]["id"];
    assert_ne!(again, id);
    assert_eq!(&messages[4]["content"][0]["tool_use_id"], again);
    assert_eq!(messages[4]["content"][0]["is_error"], true, "it was interrupted");
}

#[test]
fn opaque_parts_go_back_first_and_to_this_backend_only() {
    let content = case_json("anthropic-thinking.json")["content"].clone();
    let parts = |backend: &str, parts: Vec<Value>| {
        let record = ProviderParts {
            backend: backend.into(),
            model: "m".into(),
            parts,
        };
        record.to_message()
    };
    let question = |opaque: Message| {
        Question::new([
            Message::user("q"),
            opaque,
            call("toolu_1", "temperature", content[3]["input"].clone()),
            call("toolu_2", "today", json!({})),
            Message::assistant("One moment."),
        ])
    };
    let own = content.as_array().unwrap()[..2].to_vec();
    assert_eq!(
        sent(&question(parts("anthropic", own.clone())))["messages"][1]["content"],
        content
    );
    let foreign = sent(&question(parts("openai", own)));
    assert_eq!(foreign["messages"][1]["content"].as_array().unwrap().len(), 3);
    // Without a signature they go to servers that want them.
    let unsigned = vec![json!({"type": "thinking", "thinking": "hm"})];
    let question = question(parts("anthropic", unsigned.clone()));
    assert_eq!(sent(&question)["messages"][1]["content"][0]["type"], "text");
    let mut quirky = endpoint();
    quirky.quirks.unsigned_thinking = true;
    assert_eq!(
        body(Anthropic::default(), quirky, &question)["messages"][1]["content"][0],
        unsigned[0]
    );
}

#[test]
fn pictures_and_documents() {
    let question = Question::new([
        Message::user("look"),
        Message::new(Role::Image, "data:image/png;base64,eA=="),
        Message::new(Role::Image, "http://h/x.gif"),
        Message::new(Role::Pdf, "data:application/pdf;base64,eA=="),
    ]);
    let expected = json!([{"role": "user", "content": [
        {"type": "text", "text": "look"},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "eA=="}},
        {"type": "image", "source": {"type": "url", "url": "http://h/x.gif"}},
        {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "eA=="}},
    ]}]);
    assert_eq!(sent(&question)["messages"], expected);
}

#[test]
fn adding_a_turn_never_changes_the_bytes_before_it() {
    let story = [
        Message::system("s"),
        Message::user("one"),
        Message::new(Role::Image, "http://h/x.gif"),
        call("a", "f", json!({"x": [1]})),
        call("", "g", json!({})),
        Message::assistant("Let me look."),
        output("", "2"),
        output("a", "1"),
        Message::user("hurry"),
        Message::assistant("It is 3."),
        Message::user("two"),
        Message::user("more"),
    ];
    let mut kept = open(Anthropic::default(), endpoint());
    let mut before = String::new();
    for n in [2, 3, 8, 9, 11, 12] {
        let mut question = Question::new(&story[..n]);
        question.tools = vec![tool("f", json!({})), tool("g", json!({}))];
        question.tool_choice = (n == 3).then(|| "required".to_owned());
        question.parameters.insert("temperature".into(), json!(n));
        question.parameters.insert("cache".into(), json!(n == 9));
        let body = kept.dry_run(&question.view(), n % 2 == 0).unwrap().body;
        let fresh = open(Anthropic::default(), endpoint());
        let fresh = { fresh }.dry_run(&question.view(), n % 2 == 0).unwrap().body;
        assert_eq!(body, fresh, "a kept conversation and a rebuilt one send the same");
        assert!(body.starts_with(&before), "after {n} messages:\n{before}\n{body}");
        let end = body.rfind("],\"system\":").unwrap();
        let open = body[..end].strip_suffix("]}").unwrap();
        before = open.replace(",\"cache_control\":{\"type\":\"ephemeral\"}", "");
        assert!(serde_json::from_str::<Value>(&body).is_ok(), "{body}");
    }
}

#[test]
fn what_ends_a_cached_prefix_is_marked_on_request() {
    let mut question = Question::new([
        Message::system("s"),
        Message::user("one"),
        Message::assistant("two"),
        Message::user("three"),
    ]);
    question.tools = vec![tool("f", json!({})), tool("g", json!({}))];
    assert!(!sent(&question).to_string().contains("cache"));
    question.parameters.insert("cache".into(), json!(true));
    let sent = sent(&question);
    let mark = json!({"type": "ephemeral"});
    assert_eq!(
        sent["system"],
        json!([{"type": "text", "text": "s", "cache_control": mark}])
    );
    assert_eq!(
        (
            &sent["tools"][1]["cache_control"],
            sent["tools"][0].get("cache_control")
        ),
        (&mark, None)
    );
    assert_eq!(sent["messages"][2]["content"][0]["cache_control"], mark);
    assert_eq!(sent.to_string().matches("cache_control").count(), 3);
    assert!(sent.get("cache").is_none());
}

#[test]
fn choices_formats_and_limits() {
    let choice = |word: &str| {
        let mut question = Question::default();
        question.tools = vec![tool("f", json!({}))];
        question.tool_choice = Some(word.into());
        sent(&question)["tool_choice"].clone()
    };
    assert_eq!(choice("auto"), json!({"type": "auto"}));
    assert_eq!(choice("none"), json!({"type": "none"}));
    assert_eq!(choice("required"), json!({"type": "any"}));
    assert_eq!(choice("f"), json!({"type": "tool", "name": "f"}));
    let mut question = Question::default();
    question.tool_choice = Some("auto".into());
    let plain = sent(&question);
    assert!(plain.get("tools").is_none() && plain.get("tool_choice").is_none());
    assert_eq!(sent(&with(json!({"max_tokens": 7})))["max_tokens"], 7);
    let json = sent(&with(json!({"format": "json"})));
    assert!(json["system"].as_str().unwrap().contains("one JSON object") && json.get("tools").is_none());
    // The input of a tool is an object; a list is asked for in words.
    let list = sent(&with(json!({"format": {"type": "array", "items": {"type": "string"}}})));
    assert!(list["system"].as_str().unwrap().contains("\"items\"") && list.get("tools").is_none());
    let error = open(Anthropic::default(), endpoint()).dry_run(&with(json!({"format": "xml"})).view(), false);
    assert!(error.unwrap_err().to_string().contains("`xml`"));
}

#[test]
fn c26_schemas_have_a_plain_root() {
    for schema in case_json("C26.schemas.json").as_array().unwrap() {
        let mut question = Question::default();
        question.tools = vec![tool("t", schema.clone())];
        let schema = &sent(&question)["tools"][0]["input_schema"];
        assert!(
            schema["type"] == "object" && schema["properties"].is_object(),
            "{schema}"
        );
    }
    let mut question = Question::default();
    question.tools = vec![tool("t", json!({"anyOf": [{"properties": {"a": {"type": "string"}}}]}))];
    let schema = json!({"type": "object", "properties": {"a": {"type": "string"}}});
    assert_eq!(sent(&question)["tools"][0]["input_schema"], schema);
}

/// What does not come as thinking, a text, then calls goes back where it stood.
#[test]
fn an_answer_of_several_steps_goes_back_in_order() {
    let thinking = |n: u64| json!({"type": "thinking", "thinking": format!("H{n}"), "signature": format!("S{n}")});
    let text = |n: u64| json!({"type": "text", "text": format!("T{n}")});
    let uses = |n: u64| json!({"type": "tool_use", "id": format!("t{n}"), "name": "f", "input": {}});
    let redacted = json!({"type": "redacted_thinking", "data": "x"});
    let response = |content: &Value| {
        let body = json!({"type": "message", "content": content, "stop_reason": "tool_use"}).to_string();
        whole(&Anthropic::default(), body.as_bytes()).unwrap()
    };
    let again = |content: &Value, change: &str| {
        let response = response(content);
        let parts = ProviderParts {
            backend: "anthropic".into(),
            model: "m".into(),
            parts: response.parts,
        };
        let mut messages = vec![Message::user("q"), parts.to_message()];
        messages.extend(response.calls.iter().map(decanus_chat::FunctionCall::to_message));
        if !response.text.is_empty() {
            messages.push(Message::assistant(format!("{}{change}", response.text)));
        }
        sent(&Question::new(messages))["messages"][1]["content"].clone()
    };
    for content in [
        json!([thinking(1), text(1), uses(1), thinking(2), text(2), uses(2)]),
        json!([thinking(1), uses(1), redacted, uses(2)]),
        json!([text(1), uses(1), text(2)]),
        json!([text(1), thinking(1), text(2), uses(1)]),
    ] {
        assert_eq!(again(&content, ""), content);
    }
    let steps = json!([thinking(1), text(1), uses(1), thinking(2), text(2), uses(2)]);
    assert_eq!(response(&steps).text, "T1\n\nT2");
    let joined = json!([thinking(1), thinking(2), {"type": "text", "text": "T1\n\nT2!"}, uses(1), uses(2)]);
    assert_eq!(again(&steps, "!"), joined);
    // What comes in the usual order needs no marks; texts that follow each other are one.
    let usual = response(&json!([thinking(1), text(1), text(2), uses(1)]));
    assert_eq!((usual.text.as_str(), &usual.parts), ("T1T2", &vec![thinking(1)]));
}
