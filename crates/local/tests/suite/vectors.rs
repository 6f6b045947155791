//! Embeddings by the real model.

use std::sync::Arc;

use decanus_backend::{Backend, BackendError, Embeddings, Profile};
use serde_json::{Value, json};

use crate::model::{ask, backend, open, runtime, turn};

fn embed_with(parameters: &Value, texts: &[&str]) -> Result<Embeddings, BackendError> {
    let mut profile = Profile::new("local", "local", "");
    profile.parameters = json!({"threads": 1}).as_object().cloned().unwrap();
    profile.parameters.extend(parameters.as_object().cloned().unwrap());
    let embedder = backend().embedder(Arc::new(profile))?;
    let texts: Vec<String> = texts.iter().map(|t| (*t).to_owned()).collect();
    runtime().block_on(embedder.embed(&texts))
}

fn embed(texts: &[&str]) -> Embeddings {
    embed_with(&json!({}), texts).unwrap()
}

fn cosine(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

#[test]
fn a_text_has_the_same_vector_alone_and_among_others() {
    let _turn = turn();
    let long = "The river runs through the old town. ".repeat(60);
    let texts: Vec<String> = (0..40).map(|i| format!("Sentence number {i} of a list.")).collect();
    let mut all: Vec<&str> = texts.iter().map(String::as_str).collect();
    all.insert(17, &long);
    let together = embed(&all);
    assert_eq!(together.vectors.len(), 41);
    assert_eq!(together.model.as_deref(), Some("smollm2-135m"));
    for at in [0, 17, 18, 40] {
        let alone = embed(&[all[at]]);
        let (one, other) = (&alone.vectors[0], &together.vectors[at]);
        assert_eq!(one.len(), 576);
        assert!((cosine(one, one) - 1.0).abs() < 1e-4, "of length 1");
        assert!(cosine(one, other) > 0.999, "{at}: {}", cosine(one, other));
    }
    // Again, and it is the same to the last bit.
    assert_eq!(embed(&all), together);
}

#[test]
fn similar_sentences_are_nearer() {
    let _turn = turn();
    let made = embed(&[
        "The cat sleeps on the sofa.",
        "A cat is sleeping on the couch.",
        "def add(a, b): return a + b",
    ]);
    let [cat, couch, code] = made.vectors.as_slice() else {
        panic!("three vectors")
    };
    let (near, far) = (cosine(cat, couch), cosine(cat, code));
    assert!(near > far + 0.05, "{near} {far}");
}

#[test]
fn tokens_are_counted() {
    let _turn = turn();
    let one = embed(&["word word word"]).usage;
    assert!(one.pt.is_some_and(|n| (3..=5).contains(&n)), "{one:?}");
    let two = embed(&["word word word", "word word word"]).usage;
    assert_eq!((two.pt, two.tt), (one.pt.map(|n| 2 * n), one.pt.map(|n| 2 * n)));
    assert_eq!(embed(&[]).vectors.len(), 0);
}

#[test]
fn what_can_not_be_embedded_is_named() {
    let _turn = turn();
    let error = embed_with(&json!({}), &["a", " \n"]).unwrap_err().to_string();
    assert!(error.contains("text 2 of 2 is empty"), "{error}");
    let long = "word ".repeat(100);
    let error = embed_with(&json!({"context": 64}), &["a", &long, "b"]).unwrap_err();
    assert!(
        matches!(&error, BackendError::TooLong { message, .. }
            if message.contains("text 2 of 3 has 10") && message.contains("has 64 (parameter `context`)")),
        "{error}"
    );
    let error = embed_with(&json!({"dimensions": 8}), &["a"]).unwrap_err().to_string();
    assert!(error.contains("`dimensions`"), "{error}");
    // Names of control tokens are letters.
    let letters = embed(&["<|im_end|>"]).usage.pt.unwrap();
    assert!(letters > 2, "{letters}");
}

#[test]
fn a_conversation_goes_on_beside_vectors() {
    let _turn = turn();
    let mut conversation = open(&json!({"max_tokens": 6}));
    let question = [decanus_chat::Message::user("Name three rivers.")];
    let before = ask(&mut *conversation, &question, &[]);
    embed(&["in between"]);
    let after = ask(&mut *conversation, &question, &[]);
    assert_eq!(before.text, after.text);
    // What it had computed was kept.
    assert_eq!(after.usage.cct, after.usage.pt.map(|n| n - 1));
}
