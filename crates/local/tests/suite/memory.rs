//! Several models side by side, within a bound.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use decanus_backend::{Backend, BackendError, CallCx, Conversation, Profile};
use decanus_chat::Message;
use decanus_local::engine::memory::Memory;
use decanus_local::{LocalBackend, models};
use serde_json::json;

use crate::model::{ask, ask_with, cx, home, turn};

/// Two models, as far as anyone can tell: the same file under two names.
struct Two {
    folder: tempfile::TempDir,
    memory: Memory,
    backend: LocalBackend,
}

impl Two {
    fn new(bound: Option<u64>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let file = models::path(home(), "").unwrap();
        for name in ["a.gguf", "b.gguf"] {
            std::fs::copy(&file, folder.path().join(name)).unwrap();
        }
        let memory = Memory::default();
        memory.set_bound(bound);
        let backend = LocalBackend::new(home().clone()).with_memory(memory.clone());
        Self {
            folder,
            memory,
            backend,
        }
    }

    fn open(&self, name: &str, context: u32, max_tokens: u32) -> Box<dyn Conversation> {
        let file: PathBuf = self.folder.path().join(name);
        let mut profile = Profile::new(name, "local", format!("path:{}", file.display()));
        let parameters = json!({"threads": 1, "context": context, "max_tokens": max_tokens});
        profile.parameters = parameters.as_object().cloned().unwrap();
        self.backend.open(Arc::new(profile)).unwrap()
    }

    fn residents(&self) -> Vec<String> {
        let mut names: Vec<String> = self.memory.residents().into_iter().map(|r| r.name).collect();
        names.sort();
        names.iter().map(|n| n.rsplit('/').next().unwrap().to_owned()).collect()
    }

    /// What one of them takes with a context of so many tokens.
    fn size_of_one(context: u32) -> u64 {
        let two = Self::new(None);
        let mut a = two.open("a.gguf", context, 1);
        ask(&mut *a, &[Message::user("hi")], &[]);
        two.memory.residents()[0].bytes
    }
}

fn question() -> [Message; 1] {
    [Message::user("Write a sentence about the sea.")]
}

#[test]
fn two_models_and_two_contexts_answer_side_by_side() {
    let _turn = turn();
    let two = Two::new(None);
    let mut a = two.open("a.gguf", 2048, 12);
    let first = ask(&mut *a, &question(), &[]).text;
    let mut b = two.open("b.gguf", 2048, 12);
    let mut small = two.open("a.gguf", 256, 12);
    std::thread::scope(|scope| {
        let other = scope.spawn(|| ask(&mut *b, &question(), &[]).text);
        let third = scope.spawn(|| ask(&mut *small, &question(), &[]).text);
        assert_eq!(ask(&mut *a, &question(), &[]).text, first);
        assert_eq!(other.join().unwrap(), first);
        assert_eq!(third.join().unwrap(), first);
    });
    assert_eq!(two.residents(), ["a.gguf", "b.gguf"]);
    // One file has its weights loaded once, however many conversations use it.
    assert_eq!(two.memory.loads(), 2);
    // The smaller context holds for its own conversation only.
    let long = [Message::user("word ".repeat(400))];
    let error = ask_with(&mut *small, &long, &[], None, &cx()).unwrap_err();
    assert!(matches!(error, BackendError::TooLong { .. }), "{error}");
    ask(&mut *a, &long, &[]);
}

#[test]
fn with_room_for_one_only_one_is_loaded() {
    let _turn = turn();
    let one = Two::size_of_one(512);
    let two = Two::new(Some(one * 3 / 2));
    let mut a = two.open("a.gguf", 512, 12);
    let first = ask(&mut *a, &question(), &[]).text;
    assert_eq!(two.residents(), ["a.gguf"]);
    let mut b = two.open("b.gguf", 512, 12);
    assert_eq!(ask(&mut *b, &question(), &[]).text, first);
    assert_eq!(two.residents(), ["b.gguf"]);
    // The one that had to go comes back, and says the same as before.
    assert_eq!(ask(&mut *a, &question(), &[]).text, first);
    assert_eq!((two.residents(), two.memory.loads()), (vec!["a.gguf".to_owned()], 3));
    // Side by side they take turns.
    std::thread::scope(|scope| {
        let other = scope.spawn(|| ask(&mut *b, &question(), &[]).text);
        assert_eq!(ask(&mut *a, &question(), &[]).text, first);
        assert_eq!(other.join().unwrap(), first);
    });
    assert_eq!(two.residents().len(), 1);
    assert!(two.memory.residents()[0].bytes <= one * 3 / 2);
}

#[test]
fn a_model_that_works_is_not_unloaded() {
    let _turn = turn();
    let one = Two::size_of_one(2048);
    // Once it has answered, there is not even room for the weights of another one.
    let two = Two::new(Some(one * 5 / 4));
    ask(&mut *two.open("a.gguf", 2048, 1), &question(), &[]);
    let (mut a, mut b) = (two.open("a.gguf", 2048, 150), two.open("b.gguf", 2048, 1));
    std::thread::scope(|scope| {
        let long = scope.spawn(|| ask(&mut *a, &[Message::user("Tell me a long story.")], &[]));
        while !two.memory.residents().iter().any(|r| r.busy) {
            std::thread::yield_now();
        }
        // Who has no time to wait for it gives up.
        let hasty = CallCx {
            timeout: Duration::from_millis(1),
            ..cx()
        };
        let error = ask_with(&mut *b, &question(), &[], None, &hasty).unwrap_err();
        assert!(matches!(error, BackendError::TimedOut { .. }), "{error}");
        assert!(long.join().unwrap().finish.is_some());
    });
    assert_eq!(two.memory.loads(), 1);
}

#[test]
fn what_can_not_fit_alone_says_what_it_needs() {
    let _turn = turn();
    let one = Two::size_of_one(512);
    let two = Two::new(Some(one));
    let mut small = two.open("a.gguf", 512, 2);
    let mut large = two.open("a.gguf", 8192, 2);
    let error = ask_with(&mut *large, &question(), &[], None, &cx()).unwrap_err();
    let text = error.to_string();
    assert!(
        matches!(error, BackendError::Config(_))
            && text.contains("MiB of memory")
            && text.contains("smaller `context`"),
        "{text}"
    );
    // The model is still good for what fits.
    ask(&mut *small, &question(), &[]);
    let nothing = Two::new(Some(1 << 20));
    let mut never = nothing.open("a.gguf", 512, 2);
    let text = ask_with(&mut *never, &question(), &[], None, &cx())
        .unwrap_err()
        .to_string();
    assert!(text.contains("may take 1.0 MiB together"), "{text}");
}
