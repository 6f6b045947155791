//! Another endpoint where one fails.

use std::sync::Arc;
use std::time::Duration;

use decanus_backend::anthropic::Anthropic;
use decanus_backend::cache::{AnswerCache, CachedConversation};
use decanus_backend::profile::Limits;
use decanus_backend::{
    Backend, BackendError, CallCx, Conversation, Delta, EndpointError, Endpoints, FallbackConversation, Governor,
    Profile,
};
use decanus_chat::{Message, ProviderParts};
use decanus_testkit::reply::chat_events;
use decanus_testkit::{Piece, Reply, ScriptedServer};
use serde_json::json;

use crate::support::{Question, backend_of, collect, cx, go_on, open, profile};

fn named(name: &str, url: &str) -> Profile {
    let mut profile = profile(url);
    profile.name = name.into();
    profile.retries = 0;
    profile
}

fn several(profiles: impl IntoIterator<Item = Profile>) -> FallbackConversation {
    let opened = profiles.into_iter().map(|p| (Arc::new(p.clone()), open(p)));
    FallbackConversation::new(opened.collect()).unwrap()
}

fn warnings(deltas: &[Delta]) -> Vec<&str> {
    let texts = deltas.iter().filter_map(|d| match d {
        Delta::Warning(text) => Some(text.as_str()),
        _ => None,
    });
    texts.collect()
}

fn in_stream(before: &str) -> Reply {
    Reply::sse(format!(
        "{before}data: {}\n\n",
        json!({"error": {"message": "Overloaded", "type": "overloaded_error", "code": "overloaded"}})
    ))
}

/// A URL at which nobody listens.
fn nobody() -> String {
    let port = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    format!("http://127.0.0.1:{port}/v1")
}

#[tokio::test]
async fn the_next_one_is_asked_when_one_fails() {
    let head = chat_events(&[], "stop");
    let head = &head[..head.find("\n\n").unwrap() + 2];
    for reply in [
        Some(Reply::error(503, "busy", "later")),
        Some(Reply::error(429, "insufficient_quota", "pay")),
        Some(Reply::error(408, "slow", "later")),
        Some(in_stream("")),
        Some(in_stream(head)),
        Some(Reply::sse(head)),
        None,
    ] {
        let first = reply.clone().map(|reply| ScriptedServer::start([reply]));
        let second = ScriptedServer::start([Reply::chat_stream(&["from ", "b"]), Reply::chat_stream(&["again"])]);
        let url = first.as_ref().map_or_else(nobody, ScriptedServer::url);
        let mut conversation = several([named("a", &url), named("b", &second.url())]);
        let question = Question::default();
        let (deltas, error) = go_on(&mut conversation, &question, &cx(true)).await;
        assert!(error.is_none(), "{error:?}");
        let response = collect(&deltas);
        assert_eq!((response.text.as_str(), response.usage.tt), ("from b", Some(15)));
        assert_eq!(response.model.as_deref(), Some("scripted"));
        let told = warnings(&deltas);
        assert!(
            told.len() == 1 && told[0].starts_with("endpoint a failed: ") && told[0].ends_with("; asking b"),
            "{told:?}"
        );
        assert!(deltas.contains(&Delta::Endpoint("b".into())));
        assert_eq!(conversation.endpoint().map(|p| p.name.as_str()), Some("b"));
        // Later requests stay with it.
        let (deltas, error) = go_on(&mut conversation, &question, &cx(true)).await;
        assert!(error.is_none() && warnings(&deltas).is_empty());
        assert!(!deltas.iter().any(|d| matches!(d, Delta::Endpoint(_))));
        second.verify();
        if let Some(first) = first {
            first.verify();
        }
    }
}

#[tokio::test]
async fn an_endpoint_makes_its_own_tries_first() {
    let first = ScriptedServer::start(vec![Reply::error(500, "oops", "later"); 3]);
    let second = ScriptedServer::start([Reply::chat_text("b")]);
    let mut a = named("a", &first.url());
    a.retries = 2;
    let (deltas, _) = go_on(
        &mut several([a, named("b", &second.url())]),
        &Question::default(),
        &cx(false),
    )
    .await;
    assert_eq!(collect(&deltas).text, "b");
    first.verify();
    second.verify();
}

#[tokio::test]
async fn not_once_something_was_given_out() {
    let body = chat_events(&[json!({"content": "Once upon"})], "stop");
    let half = &body[..body.find("Once upon").unwrap() + "Once upon\"},\"finish_reason\":null}]}\n\n".len()];
    for reply in [in_stream(half), Reply::sse(half).then(Piece::Close)] {
        let first = ScriptedServer::start([reply]);
        let second = ScriptedServer::start(Vec::<Reply>::new());
        let mut conversation = several([named("a", &first.url()), named("b", &second.url())]);
        let (deltas, error) = go_on(&mut conversation, &Question::default(), &cx(true)).await;
        assert!(error.is_some());
        assert_eq!(collect(&deltas).text, "Once upon");
        assert!(second.requests().is_empty() && warnings(&deltas).is_empty());
    }
}

#[tokio::test]
async fn what_is_wrong_with_the_request_is_no_reason() {
    let too_long = "This model's maximum context length is 10 tokens.";
    for reply in [
        Reply::error(400, "invalid_request_error", "no"),
        Reply::error(400, "context_length_exceeded", too_long),
        Reply::error(401, "invalid_api_key", "no"),
        Reply::error(404, "not_found", "no"),
        Reply::new(200, "application/json", "oops"),
    ] {
        let first = ScriptedServer::start([reply]);
        let second = ScriptedServer::start(Vec::<Reply>::new());
        let mut conversation = several([named("a", &first.url()), named("b", &second.url())]);
        let (_, error) = go_on(&mut conversation, &Question::default(), &cx(false)).await;
        assert!(error.is_some() && second.requests().is_empty());
    }
}

#[tokio::test]
async fn when_all_fail_the_last_error_is_given() {
    let servers = [1, 2, 3].map(|n| ScriptedServer::start([Reply::error(500 + n, "busy", "later")]));
    let names = ["a", "b", "c"];
    let profiles = names
        .iter()
        .zip(&servers)
        .map(|(name, server)| named(name, &server.url()));
    let mut conversation = several(profiles.collect::<Vec<_>>());
    let (deltas, error) = go_on(&mut conversation, &Question::default(), &cx(false)).await;
    assert!(
        matches!(error, Some(BackendError::Refused { status: 503, .. })),
        "{error:?}"
    );
    assert_eq!(warnings(&deltas).len(), 2);
}

#[tokio::test]
async fn all_share_the_time_of_the_request() {
    let hanging = ScriptedServer::always(Reply::never());
    let second = ScriptedServer::start([Reply::chat_text("b")]);
    // Its own limit leaves time for the next one; that of the request does not.
    let mut a = named("a", &hanging.url());
    a.timeouts.first_byte = Duration::from_millis(100);
    let (deltas, _) = go_on(
        &mut several([a, named("b", &second.url())]),
        &Question::default(),
        &cx(false),
    )
    .await;
    assert_eq!(collect(&deltas).text, "b");
    let short = CallCx {
        timeout: Duration::from_millis(100),
        ..cx(false)
    };
    let mut conversation = several([named("a", &hanging.url()), named("b", &second.url())]);
    let (_, error) = go_on(&mut conversation, &Question::default(), &short).await;
    assert!(matches!(error, Some(BackendError::TimedOut { .. })), "{error:?}");
    second.verify();
}

#[tokio::test]
async fn a_limit_that_lets_nothing_pass_in_time_is_a_reason() {
    let first = ScriptedServer::always(Reply::chat_text("a"));
    let second = ScriptedServer::always(Reply::chat_text("b"));
    let governor = Governor::new();
    let mut a = named("a", &first.url());
    a.limits = Limits {
        requests_per_minute: Some(1.0),
        ..Limits::default()
    };
    let opened = [a, named("b", &second.url())].map(|p| {
        let p = Arc::new(p);
        (p.clone(), governor.limit(open((*p).clone()), &p))
    });
    let mut conversation = FallbackConversation::new(opened.into()).unwrap();
    for expected in ["a", "b"] {
        let (deltas, error) = go_on(&mut conversation, &Question::default(), &cx(false)).await;
        assert!(error.is_none(), "{error:?}");
        assert_eq!(collect(&deltas).text, expected);
    }
}

#[tokio::test]
async fn parts_of_one_backend_are_not_sent_to_another() {
    let first = ScriptedServer::start([Reply::error(529, "overloaded_error", "Overloaded")]);
    let second = ScriptedServer::start([Reply::chat_text("b")]);
    let mut a = named("a", &first.url());
    a.backend = "anthropic".into();
    let a = Arc::new(a);
    let b = named("b", &second.url());
    let anthropic = backend_of(Anthropic::default()).open(a.clone()).unwrap();
    let mut conversation = FallbackConversation::new(vec![(a, anthropic), (Arc::new(b.clone()), open(b))]).unwrap();
    assert_eq!(conversation.backend(), "anthropic");
    let parts = ProviderParts {
        backend: "anthropic".into(),
        model: "scripted".into(),
        parts: vec![json!({"type": "thinking", "thinking": "Hm.", "signature": "SIGNED"})],
    };
    let question = Question::new([
        Message::user("one"),
        parts.to_message(),
        Message::assistant("first"),
        Message::user("two"),
    ]);
    let (deltas, error) = go_on(&mut conversation, &question, &cx(false)).await;
    assert!(error.is_none() && collect(&deltas).text == "b", "{error:?}");
    assert!(first.requests()[0].text().contains("SIGNED"));
    assert!(!second.requests()[0].text().contains("SIGNED"));
    assert_eq!(conversation.backend(), "openai", "its parts are stored under its name");
}

#[tokio::test]
async fn an_answer_is_kept_only_for_the_endpoint_that_gave_it() {
    let folder = tempfile::tempdir().unwrap();
    let first = ScriptedServer::start([Reply::error(503, "busy", "later"), Reply::chat_text("a")]);
    let second = ScriptedServer::start([Reply::chat_text("b"), Reply::chat_text("b2")]);
    let ask = async |n: usize| {
        let (a, b) = (named("a", &first.url()), named("b", &second.url()));
        let cache = AnswerCache::new(folder.path());
        let inner = Box::new(several([a.clone(), b]));
        let mut conversation = CachedConversation::new(inner, Arc::new(a), cache);
        let mut texts = Vec::new();
        for _ in 0..n {
            let (deltas, error) = go_on(&mut conversation, &Question::default(), &cx(false)).await;
            assert!(error.is_none(), "{error:?}");
            texts.push(collect(&deltas).text);
        }
        texts
    };
    // The second request is made for `b`, and its answer is kept.
    assert_eq!(ask(2).await, ["b", "b2"]);
    // So the next one asks `a` again, which is there now.
    assert_eq!(ask(1).await, ["a"]);
    assert_eq!(ask(1).await, ["a"]);
    first.verify();
    second.verify();
}

fn chain(files: &[(&str, &str)]) -> Result<Vec<String>, EndpointError> {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in files {
        std::fs::write(folder.path().join(name), format!("backend: openai\nmodel: m\n{text}")).unwrap();
    }
    let endpoints = Endpoints::with(vec![folder.path().to_owned()], Arc::new(|_| None));
    let chain = endpoints.load_chain("a")?;
    Ok(chain.into_iter().map(|p| p.name).collect())
}

#[test]
fn lists_are_followed() {
    assert_eq!(chain(&[("a.yaml", "")]).unwrap(), ["a"]);
    assert_eq!(
        chain(&[("a.yaml", "fallback: b\n"), ("b.yaml", "")]).unwrap(),
        ["a", "b"]
    );
    let files = [
        ("a.yaml", "fallback: [b, c, openai]\n"),
        ("b.yaml", "fallback: [d]\n"),
        ("c.yaml", "fallback: [d]\n"),
        ("d.yaml", ""),
    ];
    assert_eq!(chain(&files).unwrap(), ["a", "b", "d", "c", "openai"]);
}

#[test]
fn lists_that_lead_nowhere_are_errors() {
    let message = |files: &[(&str, &str)]| chain(files).unwrap_err().to_string();
    let cycle = message(&[
        ("a.yaml", "fallback: b\n"),
        ("b.yaml", "fallback:\n  - c\n"),
        ("c.yaml", "fallback: [a]\n"),
    ]);
    assert!(
        cycle.ends_with("c.yaml:3: fallback: it leads back to itself: a -> b -> c -> a"),
        "{cycle}"
    );
    let itself = message(&[("a.yaml", "fallback: [a]\n")]);
    assert!(
        itself.ends_with("a.yaml:3: fallback: it leads back to itself: a -> a"),
        "{itself}"
    );
    let unknown = message(&[("a.yaml", "fallback:\n  - cluster\n  - clstr\n"), ("cluster.yaml", "")]);
    assert!(
        unknown.ends_with("a.yaml:5: fallback: unknown endpoint `clstr`; did you mean cluster?"),
        "{unknown}"
    );
    let broken = message(&[("a.yaml", "fallback: b\n"), ("b.yaml", "retries: x\n")]);
    assert!(broken.contains("b.yaml:3: retries"), "{broken}");
}
