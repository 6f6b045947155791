//! Vectors by InvokeModel.

use std::sync::Arc;

use decanus_backend::{Backend, BackendError, Embeddings, Profile};
use decanus_testkit::{Reply, ScriptedServer};
use serde_json::{Value, json};

use crate::support::{backend, profile};

async fn embed(profile: Profile, texts: &[&str]) -> Result<Embeddings, BackendError> {
    let texts: Vec<String> = texts.iter().map(|t| (*t).to_owned()).collect();
    backend().embedder(Arc::new(profile))?.embed(&texts).await
}

fn titan(vector: Value, tokens: u64) -> Reply {
    Reply::json(200, &json!({"embedding": vector, "inputTextTokenCount": tokens}))
}

#[tokio::test]
async fn titan_takes_one_text_a_request() {
    let server = ScriptedServer::start([
        titan(json!([1, 0.5]), 3).expecting_json(json!({"inputText": "a"})),
        titan(json!([2, 0]), 4).expecting_json(json!({"inputText": "b", "dimensions": 256})),
    ]);
    let mut profile = profile(&server.url());
    profile.model = String::new();
    profile.parameters = json!({"dimensions": 256, "temperature": 0})
        .as_object()
        .unwrap()
        .clone();
    let made = embed(profile, &["a", "b"]).await.unwrap();
    assert_eq!(made.vectors, [vec![1.0, 0.5], vec![2.0, 0.0]]);
    assert_eq!(made.usage.pt, Some(7));
    let requests = server.requests();
    // The default model.
    assert_eq!(requests[0].path, "/v1/model/amazon.titan-embed-text-v1/invoke");
    assert!(
        requests[0]
            .header("authorization")
            .unwrap()
            .starts_with("AWS4-HMAC-SHA256 ")
    );
    assert_eq!(requests[0].json().get("temperature"), None);
    server.verify();
}

#[tokio::test]
async fn cohere_takes_many() {
    let server = ScriptedServer::start([
        Reply::json(
            200,
            &json!({"id": "1", "embeddings": [[1], [2]], "response_type": "embeddings_floats"}),
        )
        .expecting_json(json!({"texts": ["a", "b"], "input_type": "search_document"})),
        Reply::json(
            200,
            &json!({"id": "1", "embeddings": {"float": [[3], [4]]}, "response_type": "embeddings_by_type"}),
        )
        .into(),
    ]);
    let mut profile = profile(&server.url());
    profile.model = "cohere.embed-multilingual-v3".into();
    assert_eq!(
        embed(profile.clone(), &["a", "b"]).await.unwrap().vectors,
        [[1.0], [2.0]]
    );
    assert_eq!(embed(profile, &["a", "b"]).await.unwrap().vectors, [[3.0], [4.0]]);
    server.verify();
}

#[tokio::test]
async fn what_is_no_vector_is_an_error() {
    for (reply, words) in [
        (
            Reply::json(200, &json!({"content": []})),
            "there is no list `embeddings`",
        ),
        (titan(json!([]), 0), "vector 0: it is empty"),
        (Reply::json(400, &json!({"message": "bad model"})), "(400): bad model"),
    ] {
        let server = ScriptedServer::start([reply]);
        let error = embed(profile(&server.url()), &["a"]).await.unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
        server.verify();
    }
}
