//! What holds for every conversation, whatever stands in it.

use proptest::prelude::*;

use super::testing::{call, output};
use super::{Settings, Strategies, fit};
use crate::call::{FunctionCall, FunctionCallOutput};
use crate::message::{Message, Role};
use crate::plan::pending;
use crate::print;

fn message() -> impl Strategy<Value = Message> {
    let id = || prop::sample::select(vec!["a", "b", "c", "d", "e", "f", "g", "h"]);
    let text = || prop_oneof![3 => "[a-z]{0,5}", 1 => "[a-zé🙂]{195,230}", 1 => "[a-z号]{390,900}"];
    prop_oneof![
        6 => (id(), text()).prop_map(|(id, text)| call(id, "t", &text)),
        6 => (id(), text()).prop_map(|(id, text)| output(id, &text)),
        1 => text().prop_map(Message::assistant),
        1 => text().prop_map(Message::user),
        1 => text().prop_map(Message::system),
        1 => (prop::sample::select(vec![Role::FunctionCall, Role::FunctionCallOutput]), "[\\[{\"a:}]{0,5}")
            .prop_map(|(role, text)| Message::new(role, text)),
        1 => prop::sample::select(Role::ALL).prop_map(|role| Message::new(role, "x")),
        1 => id().prop_map(|id| Message::new(Role::FunctionCallOutput, format!(r#"{{"call_id":"{id}","content":[null]}}"#))),
        1 => id().prop_map(|id| Message::new(Role::FunctionCall, format!(r#"{{"id":"{id}","name":"n","arguments":null}}"#))),
    ]
}

fn conversation() -> impl Strategy<Value = Vec<Message>> {
    let small = prop::collection::vec(message(), 0..60);
    // Rounds of one answer with several calls, as a real conversation has them.
    let round = (1..4_usize, any::<bool>(), "[a-z]{0,700}").prop_map(|(calls, said, text)| {
        let ids: Vec<String> = (0..calls).map(|n| format!("c{n}")).collect();
        let mut messages: Vec<Message> = ids.iter().map(|id| call(id, "t", &text)).collect();
        messages.extend(said.then(|| Message::assistant(&text)));
        messages.extend(ids.iter().rev().map(|id| output(id, &text)));
        messages
    });
    let real = prop::collection::vec(round, 0..30).prop_map(|rounds| rounds.concat());
    prop_oneof![small, real]
}

fn settings() -> impl Strategy<Value = Settings> {
    prop::collection::vec(0..12_u64, Settings::KNOWN.len()).prop_map(|values| {
        let mut settings = Settings::default();
        for (name, value) in Settings::KNOWN.iter().zip(values) {
            let value = if *name == "max_tool_chars" { value * 300 } else { value };
            settings.set(name, &value.to_string()).unwrap();
        }
        settings
    })
}

/// What tells one message from another even when it was shortened.
fn identity(message: &Message) -> (Role, String) {
    let id = match message.role {
        Role::FunctionCall => FunctionCall::from_message(message).map(|call| call.id),
        Role::FunctionCallOutput => FunctionCallOutput::from_message(message).map(|output| output.id),
        _ => return (message.role, message.content.clone()),
    };
    (message.role, id.unwrap_or_else(|_| message.content.clone()))
}

fn is_notice(message: &Message) -> bool {
    message.role == Role::User && message.content.starts_with("# Context management")
}

/// Outputs that answer no call, in order.
fn orphans(messages: &[Message]) -> Vec<Message> {
    let answered: Vec<usize> = super::pairs::pairs(messages).iter().map(|pair| pair.output).collect();
    let outputs = messages.iter().enumerate();
    let orphans = outputs.filter(|(at, m)| m.role == Role::FunctionCallOutput && !answered.contains(at));
    orphans.map(|(_, message)| message.clone()).collect()
}

fn check(messages: &[Message], view: &[Message]) -> Result<(), TestCaseError> {
    let seen: Vec<Message> = view.iter().filter(|m| !is_notice(m)).cloned().collect();
    prop_assert!(view.len() <= seen.len() + 1, "one notice at most");
    // Order: what is seen is a subsequence of what is stored.
    let mut stored = messages.iter();
    for message in &seen {
        prop_assert!(
            stored.any(|m| identity(m) == identity(message)),
            "{message:?} is out of order"
        );
    }
    // Everything but calls and outputs is untouched.
    let is_tool = |m: &&Message| matches!(m.role, Role::FunctionCall | Role::FunctionCallOutput);
    let texts = |messages: &[Message]| messages.iter().filter(|m| !is_tool(m)).cloned().collect::<Vec<_>>();
    prop_assert_eq!(texts(messages), texts(&seen));
    // Nothing is in half that was whole before, and what was half before is as it was.
    prop_assert_eq!(pending(messages), pending(&seen));
    prop_assert_eq!(orphans(messages), orphans(&seen));
    let unread = |messages: &[Message]| -> Vec<Message> {
        let bad = |m: &&Message| m.role == Role::FunctionCall && FunctionCall::from_message(m).is_err();
        messages.iter().filter(bad).cloned().collect()
    };
    prop_assert_eq!(unread(messages), unread(&seen));
    // The notice stands before all calls and outputs that are left, and not within an answer.
    if let Some(at) = view.iter().position(is_notice) {
        prop_assert!(!view[..at].iter().any(|m| is_tool(&m)));
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn no_half_pairs_nothing_out_of_order_no_text_touched(
        messages in conversation(),
        settings in settings(),
        budget in 0..4000_u64,
    ) {
        let strategies = Strategies::default();
        for names in ["shorten_tools", "shorten_tools_epoch", "none"] {
            let chain = strategies.resolve(names).unwrap();
            let view = chain.apply(&messages, &settings);
            check(&messages, &view)?;
        }
        if let Ok(fit) = fit(&messages, budget, 100) {
            check(&messages, &fit.messages)?;
            prop_assert!(fit.tokens <= budget);
        }
    }

    #[test]
    fn a_view_begins_the_next_unless_something_was_compacted(messages in conversation(), budget in 200..4000_u64) {
        let mut before: Option<(String, (usize, usize))> = None;
        for end in 0..=messages.len() {
            let Ok(fit) = fit(&messages[..end], budget, 100) else {
                before = None;
                continue;
            };
            let bytes = print(&fit.messages);
            let counts = (fit.shortened, fit.removed);
            if let Some((bytes_before, counts_before)) = before.filter(|(_, counts_before)| *counts_before == counts) {
                prop_assert!(bytes.starts_with(&bytes_before), "{counts_before:?}");
            }
            before = Some((bytes, counts));
        }
    }
}
