//! A run that another endpoint takes over.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use decanus_agent::Agent;
use decanus_backend::anthropic::Anthropic;
use decanus_backend::client::Clients;
use decanus_backend::openai::OpenAi;
use decanus_backend::{Backend, Conversation, FallbackConversation, HttpBackend, Profile};
use decanus_chat::{Effect, ProviderParts};
use decanus_testkit::{Reply, ScriptedServer};
use decanus_tool::Event;
use serde_json::{Value, json};

use crate::support::*;

fn message(content: &[Value], reason: &str) -> Reply {
    let usage = json!({"input_tokens": 3, "output_tokens": 2});
    Reply::json(
        200,
        &json!({"type": "message", "id": "msg_1", "role": "assistant", "model": "taker", "content": content,
            "stop_reason": reason, "usage": usage}),
    )
}

fn of(name: &str, backend: &dyn Backend, server: &ScriptedServer) -> (Arc<Profile>, Box<dyn Conversation>) {
    let mut profile = Profile::new(name, backend.name(), "scripted");
    profile.url = server.url();
    profile.retries = 0;
    let profile = Arc::new(profile);
    (profile.clone(), backend.open(profile).unwrap())
}

#[tokio::test]
async fn parts_are_stored_under_the_backend_that_gave_them() {
    let a = ScriptedServer::start([Reply::error(503, "busy", "later")]);
    let thinking = json!({"type": "thinking", "thinking": "Hm.", "signature": "SIGNED"});
    let call = json!({"type": "tool_use", "id": "c1", "name": "echo", "input": {"text": "x"}});
    let b = ScriptedServer::start([
        message(&[thinking, call], "tool_use"),
        message(&[json!({"type": "text", "text": "Done."})], "end_turn"),
    ]);
    let openai = HttpBackend::new(OpenAi::default(), Clients::default());
    let anthropic = HttpBackend::new(Anthropic::default(), Clients::default());
    let several = FallbackConversation::new(vec![of("a", &openai, &a), of("b", &anthropic, &b)]).unwrap();
    let counts: Arc<Counts> = Arc::default();
    let tools = registry([work("echo", Effect::Unknown, &counts)]);
    let mut agent = Agent::new(Box::new(several), tools, "scripted");
    let bench = Bench::new();
    let (outcome, store) = bench.ask(&mut agent, "go").await;
    assert!(outcome.error.is_none(), "{:?}", outcome.error);
    assert_eq!(outcome.answer, "Done.");
    assert_eq!(counts.calls.load(Ordering::SeqCst), 1);
    let parts: Vec<ProviderParts> = store
        .messages
        .iter()
        .filter_map(|m| ProviderParts::from_message(m).ok())
        .collect();
    assert_eq!(parts.len(), 1);
    assert_eq!(
        (parts[0].backend.as_str(), parts[0].model.as_str()),
        ("anthropic", "taker")
    );
    assert!(
        b.requests()[1].text().contains("SIGNED"),
        "its own parts come back to it"
    );
    let told = bench.events.lock().unwrap().clone();
    let told = told
        .iter()
        .filter(|e| matches!(e, Event::Warning(w) if w.ends_with("; asking b")));
    assert_eq!(told.count(), 1);
    assert_eq!(agent.endpoint().map(|p| p.name.as_str()), Some("b"));
    a.verify();
    b.verify();
}
