//! Prompt tokens as the provider counts them, without an answer.

use futures::FutureExt;
use futures::future::BoxFuture;
use serde_json::{Map, Value, json};

use crate::body::malformed;
use crate::dialect::Fault;
use crate::error::BackendError;
use crate::refusal;
use crate::whole::Whole;

/// Counts the tokens of requests to one endpoint.
pub trait Counter: Send + Sync {
    /// The tokens of a request's body, as [`Conversation::dry_run`](crate::Conversation::dry_run) gives it.
    ///
    /// # Errors
    /// Those of requests.
    fn count<'a>(&'a self, body: &'a str) -> BoxFuture<'a, Result<u64, BackendError>>;
}

/// The ways in which providers count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CountApi {
    /// Anthropic's `/messages/count_tokens`: the request without what is about the answer.
    Anthropic,
    /// Gemini's `:countTokens`: the request in another.
    Gemini,
}

impl CountApi {
    fn body(self, body: &str, model: &str) -> Result<Value, Fault> {
        let broken = |e| Fault::Config(format!("a request that is no JSON can't be counted: {e}"));
        let mut body: Map<String, Value> = serde_json::from_str(body).map_err(broken)?;
        match self {
            Self::Anthropic => {
                let known = ["model", "system", "messages", "tools", "tool_choice", "thinking"];
                body.retain(|name, _| known.contains(&name.as_str()));
                Ok(Value::Object(body))
            }
            Self::Gemini => {
                let folder = if model.contains('/') { "" } else { "models/" };
                body.insert("model".into(), format!("{folder}{model}").into());
                Ok(json!({"generateContentRequest": body}))
            }
        }
    }

    fn decode(self, body: &[u8]) -> Result<u64, Fault> {
        let value: Value = serde_json::from_slice(body).map_err(|e| malformed(body, &e))?;
        let name = match self {
            Self::Anthropic => "input_tokens",
            Self::Gemini => "totalTokens",
        };
        match value.get(name).and_then(Value::as_u64) {
            Some(tokens) => Ok(tokens),
            None => Err(refusal::from_value(&value)
                .unwrap_or_else(|| Fault::Malformed(format!("there is no number `{name}` in it")))),
        }
    }
}

/// Counting over HTTP.
pub(crate) struct HttpCounter {
    pub api: CountApi,
    pub requests: Whole,
}

impl Counter for HttpCounter {
    fn count<'a>(&'a self, body: &'a str) -> BoxFuture<'a, Result<u64, BackendError>> {
        async move {
            let body = self.api.body(body, &self.requests.profile.model);
            self.requests.call(body, |answer| self.api.decode(answer)).await
        }
        .boxed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_about_the_answer_is_left_out() {
        let body =
            r#"{"model":"m","max_tokens":9,"stream":true,"temperature":0,"messages":[{"role":"user","content":"q"}]}"#;
        let sent = CountApi::Anthropic.body(body, "m").unwrap();
        assert_eq!(
            sent,
            json!({"model": "m", "messages": [{"role": "user", "content": "q"}]})
        );
        let sent = CountApi::Gemini.body(r#"{"contents":[]}"#, "gemini-2.5-flash").unwrap();
        let whole = json!({"generateContentRequest": {"contents": [], "model": "models/gemini-2.5-flash"}});
        assert_eq!(sent, whole);
    }

    #[test]
    fn answers_without_a_number_are_errors() {
        assert_eq!(CountApi::Anthropic.decode(br#"{"input_tokens": 14}"#), Ok(14));
        assert_eq!(CountApi::Gemini.decode(br#"{"totalTokens": 3}"#), Ok(3));
        let refused = CountApi::Anthropic.decode(br#"{"type":"error","error":{"type":"x","message":"no"}}"#);
        assert!(matches!(refused, Err(Fault::Refused { message, .. }) if message == "no"));
        assert!(matches!(CountApi::Gemini.decode(b"{}"), Err(Fault::Malformed(_))));
    }
}
