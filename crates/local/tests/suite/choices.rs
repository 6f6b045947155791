//! Whether a model of 135 million parameters calls the right tool with the right arguments.

use decanus_chat::{Message, ToolDefinition};
use serde_json::{Value, json};

use crate::model::{ask, ask_with, builtins, cx, lab, open, turn, weather};

fn same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(x), Value::Number(y)) => x.as_f64() == y.as_f64(),
        (Value::Object(x), Value::Object(y)) => {
            x.len() == y.len()
                && x.iter()
                    .all(|(name, value)| y.get(name).is_some_and(|other| same(value, other)))
        }
        _ => a == b,
    }
}

/// How many requests lead to the right tool, and how many to the right call.
fn score(tools: &[ToolDefinition], requests: &str) -> (usize, usize, usize) {
    let requests: Vec<Value> = serde_json::from_str(requests).unwrap();
    for tool in tools {
        for example in &tool.examples {
            assert!(
                requests.iter().all(|r| r["request"] != example.request.as_str()),
                "{}",
                example.request
            );
        }
    }
    let mut conversation = open(&json!({}));
    let (mut right_tools, mut right_calls) = (0, 0);
    for case in &requests {
        let question = case["request"].as_str().unwrap();
        let response = ask(&mut *conversation, &[Message::user(question)], tools);
        let call = response.calls.first();
        let arguments = call.map_or(Value::Null, |c| c.arguments.to_value());
        let right_tool = call.is_some_and(|c| c.name == case["tool"]);
        let right_call = right_tool && same(&arguments, &case["arguments"]);
        right_tools += usize::from(right_tool);
        right_calls += usize::from(right_call);
        if !right_call {
            println!("{question}: {:?} {arguments}", call.map(|c| &c.name));
        }
    }
    println!(
        "right tools {right_tools}, right calls {right_calls} of {}",
        requests.len()
    );
    (right_tools, right_calls, requests.len())
}

#[test]
fn twenty_requests_over_the_built_in_tools() {
    let _turn = turn();
    let (tools, calls, of) = score(&builtins(), include_str!("../data/requests.json"));
    assert_eq!(of, 20);
    assert!(tools >= 17 && calls >= 15, "right tools {tools}, right calls {calls}");
}

#[test]
fn every_month_column_and_year_of_a_workflow() {
    let _turn = turn();
    let (tools, calls, of) = score(&weather(), include_str!("../data/weather_requests.json"));
    assert_eq!((tools, calls), (of, of));
}

#[test]
fn the_example_project_is_asked_in_many_ways() {
    let _turn = turn();
    let (tools, calls, of) = score(&lab(), include_str!("../data/lab_requests.json"));
    assert!(
        of >= 15 && tools * 20 >= of * 17 && calls * 20 >= of * 17,
        "tools {tools}, calls {calls} of {of}"
    );
}

#[test]
fn talk_calls_no_tool() {
    let _turn = turn();
    let tools = builtins();
    let mut conversation = open(&json!({"max_tokens": 4}));
    let talk: Vec<String> = serde_json::from_str(include_str!("../data/talk.json")).unwrap();
    let called = talk.iter().filter(|t| {
        let response = ask(&mut *conversation, &[Message::user(t.as_str())], &tools);
        response
            .calls
            .first()
            .inspect(|c| println!("{t}: {} {}", c.name, c.arguments.to_text()))
            .is_some()
    });
    assert!(called.count() <= 1);
}

#[test]
fn the_choice_can_be_explained_forced_and_forbidden() {
    let _turn = turn();
    let tools = builtins();
    let mut conversation = open(&json!({"max_tokens": 4}));
    let question = [Message::user("What is 8 times 7?")];
    let response = ask(&mut *conversation, &question, &tools);
    let explain = &response.explain[0];
    assert_eq!(explain["chosen"], "calculator");
    // Each of them, and none.
    assert_eq!(explain["tools"].as_array().unwrap().len(), tools.len() + 1);
    assert!(explain["tools"][0]["neutral"].is_number() && explain["arguments"][0]["candidates"].is_array());

    let forbidden = ask_with(&mut *conversation, &question, &tools, Some("none"), &cx()).unwrap();
    assert!(forbidden.calls.is_empty() && !forbidden.text.is_empty());
    let named = ask_with(&mut *conversation, &question, &tools, Some("echo"), &cx()).unwrap();
    assert_eq!(named.calls[0].name, "echo");
    let some = ask_with(
        &mut *conversation,
        &[Message::user("Hello!")],
        &tools,
        Some("required"),
        &cx(),
    )
    .unwrap();
    assert_eq!(some.calls.len(), 1);
    assert!(ask_with(&mut *conversation, &question, &tools, Some("nonsense"), &cx()).is_err());
}

#[test]
fn tools_without_examples_get_valid_arguments() {
    let _turn = turn();
    let tool = ToolDefinition {
        name: "book_table".into(),
        description: "Books a table in a restaurant.".into(),
        parameters: json!({"type": "object", "properties": {
            "guests": {"type": "integer", "minimum": 1, "maximum": 1000},
            "outside": {"type": "boolean"},
            "name": {"type": "string", "minLength": 1, "maxLength": 30},
            "wishes": {"type": "array", "items": {"type": "string"}, "maxItems": 2},
            "place": {"type": "object", "properties": {"floor": {"type": "integer"}}, "required": ["floor"]}
        }, "required": ["guests", "outside", "name", "place"]}),
        ..ToolDefinition::default()
    };
    let mut conversation = open(&json!({}));
    let question = [Message::user(
        "Book a table for six people, please. The name is Miller.",
    )];
    let response = ask_with(&mut *conversation, &question, &[tool], Some("book_table"), &cx()).unwrap();
    let arguments = response.calls[0].arguments.to_value();
    assert_eq!(arguments["guests"], 6, "{arguments}");
    assert!(
        arguments["outside"].is_boolean() && arguments["place"]["floor"].is_number(),
        "{arguments}"
    );
    assert!(
        (1..=30).contains(&arguments["name"].as_str().unwrap().chars().count()),
        "{arguments}"
    );
}
