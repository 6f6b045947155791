//! Embeddings of all servers, by the way of all other requests.

use std::sync::Arc;
use std::time::Duration;

use decanus_backend::ollama::Ollama;
use decanus_backend::openai::OpenAi;
use decanus_backend::{Backend, BackendError, Embeddings, ExecBackend, Profile};
use decanus_base::Secret;
use decanus_testkit::fixtures::Exchange;
use decanus_testkit::{Reply, ScriptedServer};
use serde_json::{Value, json};

use crate::support::backend_of;

fn profile(url: &str) -> Profile {
    let mut profile = Profile::new("test", "openai", "m");
    profile.url = url.into();
    profile
}

async fn embed(backend: &dyn Backend, profile: Profile, texts: usize) -> Result<Embeddings, BackendError> {
    let texts: Vec<String> = (0..texts).map(|n| format!("text {n}")).collect();
    backend.embedder(Arc::new(profile))?.embed(&texts).await
}

async fn recorded(backend: &dyn Backend, name: &str, texts: usize) -> Result<Embeddings, BackendError> {
    let server = ScriptedServer::start([Exchange::load(name).reply().every(1000)]);
    let mut profile = profile(&server.url());
    profile.retries = 0;
    let result = embed(backend, profile, texts).await;
    server.verify();
    result
}

#[tokio::test]
async fn recorded_vectors() {
    let openai = backend_of(OpenAi::default());
    let array = recorded(&openai, "xllamacpp/embeddings-array", 2).await.unwrap();
    let base64 = recorded(&openai, "xllamacpp/embeddings-base64", 1).await.unwrap();
    assert_eq!((array.vectors.len(), array.vectors[0].len()), (2, 576));
    assert_eq!(
        (array.usage.pt, array.model.as_deref()),
        (Some(2), Some("smollm2-embed"))
    );
    // The same text in both encodings.
    assert_eq!(base64.vectors[0].len(), 576);
    for (a, b) in array.vectors[0].iter().zip(&base64.vectors[0]) {
        assert!((a - b).abs() < 1e-6, "{a} {b}");
    }
    assert_eq!(
        recorded(&openai, "litellm/embeddings", 1).await.unwrap().vectors[0].len(),
        576
    );
    let ollama = recorded(&backend_of(Ollama), "ollama-proxy-plus/api-embed", 2)
        .await
        .unwrap();
    assert_eq!((ollama.vectors.len(), ollama.usage.pt), (2, Some(2)));
}

#[tokio::test]
async fn recorded_refusals_and_a_wrong_count() {
    let openai = backend_of(OpenAi::default());
    for (name, expected, words) in [
        (
            "xllamacpp/embeddings-on-chat-server",
            501,
            "does not support embeddings",
        ),
        ("vllm/embeddings", 404, "Not Found"),
        ("openwebui/embeddings", 501, "does not support embeddings"),
    ] {
        let error = recorded(&openai, name, 1).await.unwrap_err();
        assert!(
            matches!(&error, BackendError::Refused { status, message, .. } if *status == expected && message.contains(words)),
            "{error:?}"
        );
    }
    let error = recorded(&openai, "xllamacpp/embeddings-array", 3).await.unwrap_err();
    assert!(
        matches!(&error, BackendError::Malformed { reason, .. } if reason == "3 texts were sent and 2 vectors came"),
        "{error:?}"
    );
}

#[tokio::test]
async fn what_is_sent_and_where() {
    let answer = Reply::json(200, &json!({"data": [{"embedding": [1]}]}));
    for end in ["", "/", "/embeddings", "/chat/completions"] {
        let server = ScriptedServer::start([answer.clone()]);
        let mut profile = profile(&format!("{}{end}", server.url()));
        profile.key = Some(Secret::new("k-123"));
        profile.parameters.insert("temperature".into(), json!(0));
        embed(&backend_of(OpenAi::default()), profile, 1).await.unwrap();
        let sent = server.requests().remove(0);
        assert_eq!(
            (sent.method.as_str(), sent.path.as_str()),
            ("POST", "/v1/embeddings"),
            "{end}"
        );
        assert_eq!(sent.header("authorization"), Some("Bearer k-123"));
        assert_eq!(sent.text(), r#"{"model":"m","input":["text 0"]}"#);
    }
    let server = ScriptedServer::start([Reply::json(200, &json!({"embeddings": [[1]]}))]);
    embed(&backend_of(Ollama), profile(&server.url()), 1).await.unwrap();
    assert_eq!(server.requests()[0].path, "/api/embed");
}

#[tokio::test]
async fn many_texts_go_in_several_requests_in_order() {
    let server = ScriptedServer::with(|request| {
        let texts = request.json()["input"].as_array().unwrap().clone();
        // Each vector holds the number of its text, and the list is the wrong way round.
        let number = |text: &Value| text.as_str().unwrap()[5..].parse::<u32>().unwrap();
        let data = texts.iter().enumerate().rev();
        let data: Vec<Value> = data
            .map(|(i, t)| json!({"index": i, "embedding": [number(t)]}))
            .collect();
        let usage = json!({"prompt_tokens": texts.len(), "total_tokens": texts.len()});
        Reply::json(200, &json!({"data": data, "usage": usage}))
    });
    let all = embed(&backend_of(OpenAi::default()), profile(&server.url()), 300)
        .await
        .unwrap();
    let expected: Vec<Vec<f32>> = (0..300).map(|n| vec![n as f32]).collect();
    assert_eq!(all.vectors, expected);
    assert_eq!((server.requests().len(), all.usage.pt), (3, Some(300)));
    assert_eq!(
        embed(&backend_of(OpenAi::default()), profile(&server.url()), 0)
            .await
            .unwrap(),
        Embeddings::default()
    );
    assert_eq!(server.requests().len(), 3, "nothing is sent for nothing");
}

#[tokio::test]
async fn requests_are_tried_again_within_limits_and_keys_are_not_shown() {
    let answer = Reply::json(200, &json!({"data": [{"embedding": [1]}]}));
    let server = ScriptedServer::start([Reply::error(503, "busy", "later"), answer]);
    assert!(
        embed(&backend_of(OpenAi::default()), profile(&server.url()), 1)
            .await
            .is_ok()
    );
    server.verify();

    let server = ScriptedServer::start([Reply::error(401, "bad", "the key k-SENTINEL is wrong")]);
    let mut secret = profile(&server.url());
    secret.key = Some(Secret::new("k-SENTINEL"));
    let error = embed(&backend_of(OpenAi::default()), secret, 1)
        .await
        .unwrap_err()
        .to_string();
    assert!(error.contains("the key … is wrong"), "{error}");

    let server = ScriptedServer::start([Reply::never()]);
    let mut quick = profile(&server.url());
    quick.retries = 0;
    quick.timeouts.first_byte = Duration::from_millis(100);
    let error = embed(&backend_of(OpenAi::default()), quick, 1).await.unwrap_err();
    assert!(matches!(error, BackendError::TimedOut { .. }), "{error:?}");
}

#[test]
fn a_backend_without_embeddings_says_so() {
    let error = ExecBackend::new(true)
        .embedder(Arc::new(profile("")))
        .err()
        .unwrap()
        .to_string();
    assert_eq!(error, "endpoint `test`: the backend exec has no embeddings");
    let mut nameless = profile("http://127.0.0.1:9");
    nameless.model.clear();
    assert!(backend_of(OpenAi::default()).embedder(Arc::new(nameless)).is_err());
}
