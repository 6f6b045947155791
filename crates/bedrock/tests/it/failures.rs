//! What goes wrong.

use decanus_backend::{BackendError, Delta};
use decanus_testkit::fixtures::Exchange;
use decanus_testkit::{Reply, ScriptedServer};
use serde_json::{Value, json};

use crate::support::*;

fn text(text: &str) -> (&'static str, Value) {
    (
        "contentBlockDelta",
        json!({"contentBlockIndex": 0, "delta": {"text": text}}),
    )
}

fn good() -> Vec<u8> {
    events(&[
        text("good"),
        ("messageStop", json!({"stopReason": "end_turn"})),
        ("metadata", json!({"usage": {}})),
    ])
}

async fn error_of(reply: Reply, is_stream: bool) -> BackendError {
    let server = ScriptedServer::start([reply]);
    let mut profile = profile(&server.url());
    profile.retries = 0;
    let error = ask_at(profile, &cx(is_stream)).await.1.unwrap();
    server.verify();
    error
}

#[tokio::test]
async fn refusals_in_the_words_of_aws() {
    let denied = json!({"Message": "User: arn:aws:iam::1:user/a is not authorized to perform: bedrock:InvokeModel"});
    let error = error_of(Reply::json(403, &denied), true).await.to_string();
    assert!(
        error.contains("refused the request (403): User: arn:aws:iam::1:user/a is not"),
        "{error}"
    );
    // A wrong signature is answered with the request, whose headers hold the session token.
    let wrong = json!({"message": "The request signature we calculated does not match.\n\nThe Canonical String for this request \
        should have been\n'POST\n/\n\nx-amz-security-token:TOKEN-SENTINEL\n'"});
    let error = error_of(Reply::json(403, &wrong), false).await;
    assert!(
        error
            .to_string()
            .ends_with("(403): The request signature we calculated does not match."),
        "{error}"
    );
    let kind = json!({"__type": "com.amazon.coral#ValidationException:http://x", "message": "bad"});
    match error_of(Reply::json(400, &kind), false).await {
        BackendError::Refused {
            status, code, message, ..
        } => {
            assert_eq!(
                (status, code.as_deref(), message.as_str()),
                (400, Some("ValidationException"), "bad")
            );
        }
        other => panic!("{other:?}"),
    }
    let long = json!({"message": "Input is too long for requested model."});
    let error = error_of(Reply::json(400, &long), false).await;
    assert!(matches!(error, BackendError::TooLong { .. }), "{error:?}");
    let page = Reply::new(502, "text/html", "<!doctype html><title>500</title>");
    let error = error_of(page, true).await.to_string();
    assert!(error.contains("(502): the answer is a web page"), "{error}");
    let katan = error_of(Exchange::load("llm-katan/bedrock-converse-noauth").reply(), false).await;
    assert!(
        katan.to_string().contains("(401): missing Authorization header"),
        "{katan}"
    );
}

#[tokio::test]
async fn what_waiting_cures_is_tried_again() {
    let throttled = json!({"message": "Too many requests, please wait before trying again."});
    let server = ScriptedServer::start([
        Reply::json(429, &throttled),
        Reply::json(503, &json!({"message": "busy"})),
        stream(frame("exception", "throttlingException", &throttled)),
        stream(good()),
    ]);
    assert_eq!(ask(&server, true).await.unwrap().text, "good");
    server.verify();
}

#[tokio::test]
async fn exceptions_within_a_stream() {
    for (kind, payload, status) in [
        ("throttlingException", json!({"message": "slow"}), 429),
        ("validationException", json!({"message": "slow"}), 400),
        ("internalServerException", json!({"message": "slow"}), 500),
        ("serviceUnavailableException", json!({"message": "slow"}), 503),
        ("modelStreamErrorException", json!({"message": "slow"}), 424),
        (
            "modelStreamErrorException",
            json!({"message": "slow", "originalStatusCode": 502}),
            502,
        ),
    ] {
        let mut bytes = events(&[text("partly")]);
        bytes.extend(frame("exception", kind, &payload));
        let server = ScriptedServer::start([stream(bytes)]);
        let mut profile = profile(&server.url());
        profile.retries = 0;
        let (deltas, error) = ask_at(profile, &cx(true)).await;
        assert_eq!(deltas, [Delta::Text("partly".into())], "what came before is given");
        match error.unwrap() {
            BackendError::Refused {
                status: is,
                code,
                message,
                ..
            } => {
                assert_eq!((is, code.as_deref(), message.as_str()), (status, Some(kind), "slow"));
            }
            other => panic!("{kind}: {other:?}"),
        }
        server.verify();
    }
}

#[tokio::test]
async fn a_stream_that_ends_early_is_incomplete_wherever_it_is_cut() {
    let bytes = events(&[text("partly"), ("messageStop", json!({"stopReason": "end_turn"}))]);
    let first = events(&[text("partly")]).len();
    for cut in [1, 3, 11, 15, first - 1, first, first + 1, bytes.len() - 1] {
        let error = error_of(stream(&bytes[..cut]), true).await;
        assert!(matches!(error, BackendError::Incomplete { .. }), "{cut}: {error:?}");
        let error = error_of(stream(bytes.clone()).cut_after(cut), true).await;
        assert!(matches!(error, BackendError::Incomplete { .. }), "{cut}: {error:?}");
    }
}

#[tokio::test]
async fn a_stream_that_is_none_says_so() {
    let mut damaged = good();
    let last = damaged.len() - 1;
    damaged[last] ^= 1;
    let error = error_of(stream(damaged), true).await.to_string();
    assert!(error.contains("a frame of the event stream is damaged"), "{error}");
    // A mock's stream is called one and is server-sent events.
    let error = error_of(Exchange::load("llm-katan/bedrock-converse-stream").reply(), true).await;
    assert!(
        error.to_string().ends_with("it is not an event stream of AWS"),
        "{error}"
    );
    let error = error_of(Reply::json(200, &json!({"Output": {"__type": "Unknown"}})), true)
        .await
        .to_string();
    assert!(error.contains("there is no `output.message.content` in"), "{error}");
}

#[tokio::test]
async fn a_cancelled_request_ends_at_once() {
    let server = ScriptedServer::start([Reply::never()]);
    let cx = cx(true);
    cx.cancel.cancel();
    let error = ask_at(profile(&server.url()), &cx).await.1.unwrap();
    assert!(matches!(error, BackendError::Cancelled), "{error:?}");
}
