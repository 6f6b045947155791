//! Every sampling option changes what the real model writes.

use std::collections::HashSet;

use decanus_backend::{Delta, View};
use decanus_chat::Message;
use futures::StreamExt;
use serde_json::{Map, Value, json};

use crate::model::{ask, ask_with, cx, open, runtime, turn};

const WILD: f64 = 3.0;

fn write_to(question: &str, parameters: &Value) -> String {
    let mut all = json!({"max_tokens": 16});
    all.as_object_mut()
        .unwrap()
        .extend(parameters.as_object().cloned().unwrap());
    ask(&mut *open(&all), &[Message::user(question)], &[]).text
}

fn write(parameters: &Value) -> String {
    write_to("Tell me a story.", parameters)
}

#[test]
fn chance_is_steered() {
    let _turn = turn();
    let greedy = write(&json!({}));
    assert_eq!(write(&json!({"temperature": 0, "seed": 9})), greedy);
    let wild = |seed: u32| write(&json!({"temperature": WILD, "seed": seed}));
    let first = wild(1);
    assert!(first != greedy && first != wild(2));
    assert_eq!(first, wild(1));
    // Each of these alone leaves only the likeliest token.
    for only in [json!({"top_k": 1}), json!({"top_p": 1e-6}), json!({"min_p": 1.0})] {
        let mut parameters = json!({"temperature": WILD, "seed": 1});
        parameters
            .as_object_mut()
            .unwrap()
            .extend(only.as_object().cloned().unwrap());
        assert_eq!(write(&parameters), greedy, "{only}");
    }
    // And these, wide open, leave all.
    let open = json!({"temperature": WILD, "seed": 1, "top_k": 0, "top_p": 1.0, "min_p": 0.0});
    assert_eq!(write(&open), first);
}

#[test]
fn repetition_is_penalised() {
    let _turn = turn();
    let story = |parameters: &Value| {
        let mut all = json!({"max_tokens": 50});
        all.as_object_mut()
            .unwrap()
            .extend(parameters.as_object().cloned().unwrap());
        write(&all)
    };
    let plain = story(&json!({}));
    for penalty in [
        json!({"repeat_penalty": 5.0}),
        json!({"frequency_penalty": 2.0}),
        json!({"presence_penalty": 2.0}),
    ] {
        assert_ne!(story(&penalty), plain, "{penalty}");
        let mut none = penalty.as_object().cloned().unwrap();
        none.insert("repeat_last_n".into(), json!(0));
        assert_eq!(story(&Value::Object(none)), plain, "{penalty} over no tokens");
    }
    // Strong enough, no word of any length comes twice.
    let text = story(&json!({"repeat_penalty": 9.0}));
    let words: Vec<&str> = text.split_whitespace().filter(|w| w.len() > 4).collect();
    let different: HashSet<&&str> = words.iter().collect();
    assert_eq!(different.len(), words.len(), "{text}");
}

#[test]
fn a_stop_text_is_never_shown_in_part() {
    let _turn = turn();
    let question = "Name the planets of the solar system.";
    let whole = write_to(question, &json!({"max_tokens": 40}));
    // A text across several tokens, from the middle of what it writes by itself.
    let at = whole.char_indices().nth(whole.chars().count() / 2).unwrap().0;
    let stop: String = whole[at..].chars().take(12).collect();
    let before = &whole[..whole.find(&stop).unwrap()];
    let mut conversation = open(&json!({"max_tokens": 40, "stop": ["never said", stop]}));
    let messages = [Message::user(question)];
    let parameters = Map::new();
    let view = View {
        messages: &messages,
        tools: &[],
        parameters: &parameters,
        tool_choice: None,
    };
    let cx = cx();
    let shown = runtime().block_on(async {
        let mut shown = String::new();
        let mut stream = conversation.complete(&view, &cx);
        while let Some(delta) = stream.next().await {
            if let Delta::Text(text) = delta.unwrap() {
                shown.push_str(&text);
                assert!(before.starts_with(&shown), "{shown:?} goes beyond {before:?}");
            }
        }
        shown
    });
    assert_eq!(shown, before);
}

#[test]
fn wrong_values_and_unknown_names_are_told() {
    let _turn = turn();
    let question = [Message::user("hi")];
    for (parameters, words) in [
        (
            json!({"temperature": "hot"}),
            "parameter `temperature` must be a number, not \"hot\"",
        ),
        (
            json!({"top_p": 3}),
            "parameter `top_p` must be a number from 0 to 1, not 3",
        ),
    ] {
        let error = ask_with(&mut *open(&parameters), &question, &[], None, &cx()).unwrap_err();
        assert!(error.to_string().contains(words), "{error}");
    }
    let mut conversation = open(&json!({"max_tokens": 1, "temprature": 1}));
    let parameters = Map::new();
    let mut warnings = Vec::new();
    let view = View {
        messages: &question,
        tools: &[],
        parameters: &parameters,
        tool_choice: None,
    };
    for _ in 0..2 {
        let cx = cx();
        runtime().block_on(async {
            let mut stream = conversation.complete(&view, &cx);
            while let Some(delta) = stream.next().await {
                if let Delta::Warning(warning) = delta.unwrap() {
                    warnings.push(warning);
                }
            }
        });
    }
    assert_eq!(warnings.len(), 1, "once for a conversation: {warnings:?}");
    assert!(warnings[0].contains("`temprature`"));
}
