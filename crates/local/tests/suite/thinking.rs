//! Thoughts of the real model, which a template makes it have: it shows two answers with thoughts and opens the third.

use decanus_backend::{Delta, View};
use decanus_chat::Message;
use decanus_local::template::ChatTemplate;
use futures::StreamExt;
use serde_json::{Map, Value, json};

use crate::model::{ask, cx, open, runtime, turn};

const THINKS: &str = include_str!("../templates/thinks.jinja");

fn question() -> [Message; 1] {
    [Message::user("What is the capital of France?")]
}

/// A thought as the template shows them, and no more than that.
fn assert_thought(reasoning: &str) {
    assert!(reasoning.starts_with("A ") && reasoning.ends_with('.'), "{reasoning:?}");
    assert!(!reasoning.contains(['\n', '<']), "{reasoning:?}");
}

fn parameters(more: &Value) -> Value {
    let mut all = json!({"max_tokens": 40, "chat_template": THINKS});
    all.as_object_mut().unwrap().extend(more.as_object().cloned().unwrap());
    all
}

#[test]
fn thoughts_are_kept_apart_from_the_answer() {
    let _turn = turn();
    let mut conversation = open(&parameters(&json!({})));
    let answer = ask(&mut *conversation, &question(), &[]);
    assert_thought(&answer.reasoning);
    assert!(answer.text.starts_with("Paris"), "{:?}", answer.text);
    let (thoughts, written) = (answer.usage.rt.unwrap(), answer.usage.ct.unwrap());
    assert!((2..written).contains(&thoughts), "{thoughts} of {written}");
}

#[test]
fn no_piece_of_a_tag_is_streamed() {
    let _turn = turn();
    let mut conversation = open(&parameters(&json!({})));
    let messages = question();
    let parameters = Map::new();
    let view = View {
        messages: &messages,
        tools: &[],
        parameters: &parameters,
        tool_choice: None,
    };
    let cx = cx();
    let deltas: Vec<Delta> = runtime().block_on(async {
        let stream = conversation.complete(&view, &cx);
        stream.map(Result::unwrap).collect().await
    });
    let position = |wanted: fn(&Delta) -> bool| deltas.iter().position(wanted).unwrap();
    assert!(position(|d| matches!(d, Delta::Reasoning(_))) < position(|d| matches!(d, Delta::Text(_))));
    for delta in &deltas {
        if let Delta::Text(text) | Delta::Reasoning(text) = delta {
            assert!(!text.contains(['<', '>']) && !text.contains("think"), "{text:?}");
        }
    }
}

#[test]
fn thinking_can_be_switched_off() {
    let _turn = turn();
    // By the template's own switch.
    let mut conversation = open(&parameters(&json!({"reasoning": "off"})));
    let answer = ask(&mut *conversation, &question(), &[]);
    assert!(
        answer.reasoning.is_empty() && answer.text.trim_start().starts_with("Paris"),
        "{answer:?}"
    );
    // And where the template has none.
    let stubborn = THINKS.replace("enable_thinking", "no_such_switch");
    let mut conversation = open(&parameters(&json!({"reasoning": false, "chat_template": stubborn})));
    let answer = ask(&mut *conversation, &question(), &[]);
    assert!(
        answer.reasoning.is_empty() && answer.text.trim_start().starts_with("Paris"),
        "{answer:?}"
    );
}

#[test]
fn thoughts_that_do_not_end_are_no_answer() {
    let _turn = turn();
    let mut conversation = open(&parameters(&json!({"max_tokens": 2})));
    let messages = question();
    let parameters = Map::new();
    let view = View {
        messages: &messages,
        tools: &[],
        parameters: &parameters,
        tool_choice: None,
    };
    let cx = cx();
    let deltas: Vec<Delta> = runtime().block_on(async {
        let stream = conversation.complete(&view, &cx);
        stream.map(Result::unwrap).collect().await
    });
    assert!(!deltas.iter().any(|d| matches!(d, Delta::Text(_))), "{deltas:?}");
    assert!(
        deltas
            .iter()
            .any(|d| matches!(d, Delta::Warning(w) if w.contains("still thinking"))),
        "{deltas:?}"
    );
}

#[test]
fn a_schema_holds_behind_the_thoughts() {
    let _turn = turn();
    let schema = json!({"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]});
    let mut conversation = open(&parameters(&json!({"format": schema})));
    let answer = ask(&mut *conversation, &question(), &[]);
    assert_thought(&answer.reasoning);
    let value: Value = serde_json::from_str(&answer.text).unwrap();
    assert!(value["city"].is_string(), "{value}");
}

#[test]
fn a_template_gets_its_variables() {
    let template = ChatTemplate::new("{{ messages[0].content }}{{ reasoning_effort }}{{ mine }}", "", "").unwrap();
    let messages = [json!({"role": "user", "content": "x"})];
    let variables = json!({"reasoning_effort": "low", "mine": 3});
    let rendered = template
        .render_with(&messages, &[], variables.as_object().unwrap())
        .unwrap();
    assert_eq!(rendered, "xlow3");
    assert_eq!(template.render(&messages, &[]).unwrap(), "x");
}
