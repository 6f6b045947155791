//! What the Responses dialect sends.

use decanus_backend::Profile;
use decanus_backend::profile::Api;
use decanus_backend::responses::Responses;
use decanus_chat::{Message, ProviderParts, Role};
use decanus_testkit::fixtures::{Exchange, case_json};
use serde_json::{Value, json};

use crate::support::{Question, call, open, output, profile_of, tool};
use crate::vendor::whole;

fn body_of(profile: Profile, question: &Question, stream: bool) -> Value {
    let body = open(profile).dry_run(&question.view(), stream).unwrap().body;
    serde_json::from_str(&body).unwrap()
}

fn local() -> Profile {
    profile_of("responses", "http://127.0.0.1:9/v1")
}

fn sent(question: &Question) -> Value {
    body_of(local(), question, false)
}

fn with(parameters: Value) -> Question {
    let mut question = Question::default();
    question.parameters = parameters.as_object().unwrap().clone();
    question
}

fn parts(backend: &str, parts: Vec<Value>) -> Message {
    let record = ProviderParts {
        backend: backend.into(),
        model: "m".into(),
        parts,
    };
    record.to_message()
}

#[test]
fn a_request_with_a_tool() {
    let city = json!({"type": "object", "properties": {"city": {"type": "string", "description": "City"}}, "required": ["city"]});
    let mut question = Question::new([
        Message::system("Be brief."),
        Message::system("Be kind."),
        Message::user("Is it cold in Oslo?"),
        call("call_7", "temperature", json!({"city": "Oslo"})),
        Message::assistant("Let me see."),
        output("call_7", "-3"),
        Message::assistant("Yes."),
        Message::system("Now in Latin."),
        Message::user("Again?"),
    ]);
    question.tools = vec![tool("zeta", json!({})), tool("temperature", city.clone())];
    question.parameters.insert("temperature".into(), json!(0));
    question.tool_choice = Some("temperature".into());
    let expected = json!({
        "model": "scripted",
        "input": [
            {"role": "user", "content": "Is it cold in Oslo?"},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Let me see."}]},
            {"type": "function_call", "call_id": "call_7", "name": "temperature", "arguments": "{\"city\":\"Oslo\"}"},
            {"type": "function_call_output", "call_id": "call_7", "output": "-3"},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Yes."}]},
            {"role": "system", "content": "Now in Latin."},
            {"role": "user", "content": "Again?"},
        ],
        "instructions": "Be brief.\n\nBe kind.",
        "stream": true,
        "temperature": 0,
        "tool_choice": {"type": "function", "name": "temperature"},
        "tools": [
            {"type": "function", "name": "temperature", "description": "Does temperature", "parameters": city},
            {"type": "function", "name": "zeta", "description": "Does zeta", "parameters": {"type": "object", "properties": {}}},
        ],
    });
    let dry = open(local()).dry_run(&question.view(), true).unwrap();
    assert_eq!(dry.target, "POST http://127.0.0.1:9/v1/responses");
    assert_eq!(serde_json::from_str::<Value>(&dry.body).unwrap(), expected);
    assert_eq!(
        sent(&Question::default()),
        json!({"model": "scripted", "input": [{"role": "user", "content": "hi"}]})
    );
}

#[test]
fn the_second_turn_of_a_recording() {
    let body = Exchange::load("xllamacpp/responses-tools-turn2").request["body"].clone();
    let items = body["input"].as_array().unwrap();
    let mut question = Question::new([
        Message::system(body["instructions"].as_str().unwrap()),
        Message::user(items[0]["content"].as_str().unwrap()),
        call("call_1", "get_weather", items[1]["arguments"].clone()),
        output("call_1", items[2]["output"].as_str().unwrap()),
    ]);
    let weather = &body["tools"][0];
    question.tools = vec![tool("get_weather", weather["parameters"].clone())];
    question.tools[0].description = weather["description"].as_str().unwrap().into();
    question.tool_choice = Some("auto".into());
    for name in ["temperature", "max_output_tokens"] {
        question.parameters.insert(name.into(), body[name].clone());
    }
    let mut expected = body.clone();
    expected["model"] = "scripted".into();
    expected["input"][1]["arguments"] = r#"{"city":"Paris"}"#.into();
    assert_eq!(sent(&question), expected);
}

#[test]
fn adding_a_turn_never_changes_the_bytes_before_it() {
    let reasoning = json!({"id": "rs_1", "type": "reasoning", "summary": [], "encrypted_content": "gA"});
    let story = [
        Message::system("s"),
        Message::user("one"),
        parts("responses", vec![reasoning]),
        call("a", "f", json!({"x": 1})),
        call("", "g", json!({})),
        Message::assistant("Let me look."),
        output("", "2"),
        output("a", "1"),
        call("a", "f", json!({"x": 2})),
        output("a", "3"),
        Message::assistant("It is 3."),
        Message::system("later"),
        Message::user("two"),
        Message::new(Role::Image, "data:image/png;base64,eA=="),
        Message::assistant("four"),
        Message::user("three"),
    ];
    let mut kept = open(local());
    let mut before = String::new();
    for n in [2, 8, 10, 14, 16] {
        let mut question = Question::new(&story[..n]);
        question.tools = vec![tool("f", json!({})), tool("g", json!({}))];
        question.tool_choice = (n == 2).then(|| "required".to_owned());
        question.parameters.insert("temperature".into(), json!(n));
        question.parameters.insert("websearch".into(), json!(n == 10));
        let body = kept.dry_run(&question.view(), n % 2 == 0).unwrap().body;
        let fresh = open(local()).dry_run(&question.view(), n % 2 == 0).unwrap().body;
        assert_eq!(body, fresh);
        assert!(body.starts_with(&before), "after {n} messages:\n{before}\n{body}");
        before = body[..body.rfind("],\"instructions\"").unwrap()].to_owned();
    }
}

#[test]
fn pictures_and_documents() {
    let question = Question::new([
        Message::new(Role::Image, "data:image/png;base64,eA=="),
        Message::new(Role::Image, "http://h/x.gif"),
        Message::new(Role::Pdf, "data:application/pdf;base64,eA=="),
        Message::new(Role::Pdf, "https://h/x.pdf"),
    ]);
    let items = [
        json!({"type": "input_image", "image_url": "data:image/png;base64,eA=="}),
        json!({"type": "input_image", "image_url": "http://h/x.gif"}),
        json!({"type": "input_file", "filename": "document.pdf", "file_data": "data:application/pdf;base64,eA=="}),
        json!({"type": "input_file", "file_url": "https://h/x.pdf"}),
    ];
    let expected: Vec<Value> = items.iter().map(|i| json!({"role": "user", "content": [i]})).collect();
    assert_eq!(sent(&question)["input"], json!(expected));
}

#[test]
fn formats_reasoning_and_text() {
    let of = |parameters: Value| {
        let mut body = sent(&with(parameters));
        let body = body.as_object_mut().unwrap();
        body.shift_remove("model");
        body.shift_remove("input");
        Value::Object(body.clone())
    };
    let object = json!({"text": {"format": {"type": "json_object"}}});
    assert_eq!(of(json!({"format": "json"})), object);
    assert_eq!(of(json!({"format": "json_object"})), object);
    assert_eq!(
        of(json!({"format": "text"})),
        json!({"text": {"format": {"type": "text"}}})
    );
    let schema = json!({"type": "object", "additionalProperties": false, "required": ["answer"], "properties": {
        "answer": {"type": "string"}, "score": {"type": "number", "description": "0-1", "default": 1}}});
    assert_eq!(
        of(json!({"format": {"answer": "string", "score": ["number", "0-1", 1]}})),
        json!({"text": {"format": {"name": "response", "type": "json_schema", "schema": schema}}})
    );
    let empty = json!({"type": "object", "properties": {}, "additionalProperties": {"type": "string"}, "required": []});
    assert_eq!(
        of(json!({"format": {"name": "d", "type": "object", "properties": {}}})),
        json!({"text": {"format": {"name": "d", "type": "json_schema", "schema": empty}}})
    );
    let own = json!({"type": "json_schema", "name": "n", "schema": {"type": "object"}, "strict": true});
    assert_eq!(of(json!({"format": own})), json!({"text": {"format": own}}));
    let chat =
        json!({"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}, "strict": true}});
    assert_eq!(of(json!({"format": chat})), json!({"text": {"format": own}}));
    let whole = json!({"format": {"type": "text"}, "verbosity": "low"});
    assert_eq!(of(json!({"format": whole})), json!({"text": whole}));
    assert_eq!(
        of(json!({"reasoning_effort": "low", "text_verbosity": "low", "context_window": 8, "my_reasoning_x": 1})),
        json!({"reasoning": {"effort": "low"}, "text": {"verbosity": "low"}, "context_window": 8, "my_reasoning_x": 1})
    );
    assert_eq!(
        of(
            json!({"reasoning": {"summary": "auto"}, "reasoning_options": {"effort": "low"}, "text_verbosity": "low", "format": "json"})
        ),
        json!({"reasoning": {"summary": "auto", "effort": "low"}, "text": {"verbosity": "low", "format": {"type": "json_object"}}})
    );
    let error = open(local())
        .dry_run(&with(json!({"format": 3})).view(), false)
        .unwrap_err();
    assert!(error.to_string().contains("neither a word nor a schema"), "{error}");
}

#[test]
fn c19_a_search_is_a_tool_and_no_tools_are_none() {
    for value in [json!(false), json!(null), json!("no")] {
        let mut question = with(json!({"websearch": value, "parallel_tool_calls": true, "tool_choice": "auto"}));
        question.tool_choice = Some("auto".into());
        assert_eq!(
            sent(&question),
            json!({"model": "scripted", "input": [{"role": "user", "content": "hi"}]})
        );
    }
    let mut question = with(json!({"websearch": true, "previous_response": false, "previous_response_id": "r"}));
    let search = json!({"type": "web_search_preview"});
    let mut expected = json!({"model": "scripted", "input": [{"role": "user", "content": "hi"}], "tools": [search]});
    assert_eq!(sent(&question), expected);
    question.tools = vec![tool("f", json!({}))];
    let f = json!({"type": "function", "name": "f", "description": "Does f", "parameters": {"type": "object", "properties": {}}});
    expected["tools"] = json!([f, search]);
    assert_eq!(sent(&question), expected);
    // Servers of Chat Completions have no such tool and are told nothing of it.
    for (backend, api) in [("openai", None), ("openwebui", None), ("vllm", Some(Api::Chat))] {
        let mut profile = profile_of(backend, "http://127.0.0.1:9/v1");
        profile.api = api;
        let body = body_of(
            profile,
            &with(json!({"websearch": true, "previous_response": true})),
            false,
        );
        assert_eq!(
            body,
            json!({"model": "scripted", "messages": [{"role": "user", "content": "hi"}]})
        );
    }
}

#[test]
fn what_openai_is_told_to_keep() {
    let mut question = Question::default();
    question.tools = vec![tool("f", json!({}))];
    let of = |url: &str, store: Option<bool>, previous: bool| {
        let mut profile = profile_of("responses", url);
        profile.store = store;
        profile.previous_response = previous;
        let body = body_of(profile, &question, false);
        (
            body["store"].clone(),
            body["include"].clone(),
            body["tools"][0]["strict"].clone(),
        )
    };
    let (openai, other) = ("https://api.openai.com/v1", "http://127.0.0.1:9/v1");
    let encrypted = json!(["reasoning.encrypted_content"]);
    let null = Value::Null;
    assert_eq!(of(openai, None, false), (json!(false), encrypted.clone(), json!(false)));
    assert_eq!(of(openai, Some(true), false), (json!(true), null.clone(), json!(false)));
    // What is gone on from must have been kept.
    assert_eq!(of(openai, None, true), (null.clone(), null.clone(), json!(false)));
    assert_eq!(of(other, None, false), (null.clone(), null.clone(), null.clone()));
    assert_eq!(of(other, Some(false), false), (json!(false), encrypted, null));
    let include = json!(["message.output_text.logprobs"]);
    let mut question = with(json!({"include": include, "store": false}));
    let both = json!(["message.output_text.logprobs", "reasoning.encrypted_content"]);
    assert_eq!(body_of(local(), &question, false)["include"], both);
    question.parameters.insert("store".into(), json!(true));
    assert_eq!(
        body_of(profile_of("responses", openai), &question, false)["store"],
        json!(true)
    );
}

#[test]
fn c28_reasoning_and_its_calls_go_together() {
    let expected = case_json("C28.expect-input-tail.json");
    let made = case_json("C28.response.json");
    let marks = vec![
        made["output"][0].clone(),
        json!({"type": "function_call", "id": "fc_1", "call_id": "call_1"}),
    ];
    let tail = |provider: Vec<Message>| {
        let mut messages = vec![Message::user("q")];
        messages.extend(provider);
        messages.push(call("call_1", "lookup", json!({"id": "X1"})));
        messages.push(output("call_1", "..."));
        let mut input = sent(&Question::new(messages))["input"].take();
        json!(input.as_array_mut().unwrap().split_off(1))
    };
    assert_eq!(tail(vec![parts("responses", marks.clone())]), expected);
    // Without the reasoning, or with that of another backend, the call has no id either.
    let mut bare = json!([expected[1], expected[2]]);
    bare[0].as_object_mut().unwrap().shift_remove("id");
    assert_eq!(tail(vec![]), bare);
    assert_eq!(tail(vec![parts("vllm", marks.clone())]), bare);
    // A call has been left out of the chat, so its reasoning is, too.
    let mut lost = marks.clone();
    lost.push(json!({"type": "function_call", "id": "fc_2", "call_id": "call_2"}));
    assert_eq!(tail(vec![parts("responses", lost)]), bare);
    // Reasoning alone stands before what it led to.
    let mut unmarked = bare.clone();
    unmarked.as_array_mut().unwrap().insert(0, marks[0].clone());
    assert_eq!(tail(vec![parts("responses", marks[..1].to_vec())]), unmarked);
}

#[test]
fn items_go_back_in_the_order_in_which_they_came() {
    let rs = |n: u64| json!({"type": "reasoning", "id": format!("rs_{n}"), "summary": [], "encrypted_content": "g"});
    let mark = |kind: &str, id: &str| json!({"type": kind, "id": id});
    let question = Question::new([
        Message::user("q"),
        parts(
            "responses",
            vec![
                rs(1),
                mark("function_call", "fc_1"),
                rs(2),
                mark("message", "msg_1"),
                mark("function_call", "fc_2"),
            ],
        ),
        call("a", "f", json!({})),
        call("b", "f", json!({})),
        Message::assistant("So."),
        output("a", "1"),
        output("b", "2"),
    ]);
    let call = |id: &str, item: &str| json!({"type": "function_call", "id": item, "call_id": id, "name": "f", "arguments": "{}"});
    let said = json!({"type": "message", "id": "msg_1", "role": "assistant", "status": "completed",
        "content": [{"type": "output_text", "text": "So.", "annotations": []}]});
    let expected = json!([
        {"role": "user", "content": "q"}, rs(1), call("a", "fc_1"), rs(2), said, call("b", "fc_2"),
        {"type": "function_call_output", "call_id": "a", "output": "1"},
        {"type": "function_call_output", "call_id": "b", "output": "2"},
    ]);
    assert_eq!(sent(&question)["input"], expected);
}

#[test]
fn long_ids_are_cut_alike_and_stay_apart() {
    let long = |end: &str| "x".repeat(300) + end;
    let question = Question::new([
        Message::user("q"),
        call(&long("1"), "f", json!({})),
        call(&long("2"), "f", json!({})),
        output(&long("2"), "two"),
        output(&long("1"), "one"),
    ]);
    let input = sent(&question)["input"].take();
    let id = |i: usize| input[i]["call_id"].as_str().unwrap().to_owned();
    assert_eq!((id(1), id(2)), (id(3), id(4)));
    assert_eq!(
        (&input[3]["output"], &input[4]["output"]),
        (&json!("one"), &json!("two"))
    );
    assert_ne!(id(1), id(2));
    assert_eq!(id(1).len(), 64);
}

/// Several messages in one answer, as it came in a body, go back under their own ids and in their places.
#[test]
fn c28_an_answer_of_several_messages_goes_back_as_it_came() {
    let rs = |n: u64| json!({"type": "reasoning", "id": format!("rs{n}"), "summary": [], "encrypted_content": format!("E{n}")});
    let said = |n: u64| {
        json!({"type": "message", "id": format!("msg{n}"), "role": "assistant", "status": "completed",
        "content": [{"type": "output_text", "text": format!("T{n}"), "annotations": []}]})
    };
    let asked = |n: u64| json!({"type": "function_call", "call_id": format!("c{n}"), "name": "f", "arguments": "{}", "id": format!("fc{n}")});
    let result = |n: u64| json!({"type": "function_call_output", "call_id": format!("c{n}"), "output": "r"});
    let again = |output: &[Value], change: &str| {
        let body = json!({"id": "r", "status": "completed", "output": output}).to_string();
        let response = whole(&Responses::default(), body.as_bytes()).unwrap();
        let mut messages = vec![Message::user("q"), parts("responses", response.parts)];
        messages.extend(response.calls.iter().map(decanus_chat::FunctionCall::to_message));
        messages.push(Message::assistant(format!("{}{change}", response.text)));
        messages.extend(response.calls.iter().map(|c| self::output(&c.id, "r")));
        let mut input = sent(&Question::new(messages))["input"].take();
        input.as_array_mut().unwrap().split_off(1)
    };
    let output = [rs(1), said(1), asked(1), rs(2), said(2), asked(2)];
    let mut expected = output.to_vec();
    expected.extend([result(1), result(2)]);
    assert_eq!(again(&output, ""), expected);
    // Without reasoning the order is kept as well.
    let output = [asked(1), said(1), said(2)];
    let mut expected = output.to_vec();
    expected.push(result(1));
    assert_eq!(again(&output, ""), expected);
    // A text that somebody has changed goes as it is now.
    let changed = again(&output, "!");
    assert_eq!(changed[0]["content"][0]["text"], "T1\n\nT2!");
    assert!(changed.iter().all(|item| item.get("id").is_none()), "{changed:?}");
}
