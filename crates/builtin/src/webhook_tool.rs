//! Tells another service of something, signed where a secret is shared.

use decanus_chat::Effect;
use decanus_net::{Body, Error, Refusal, Request};
use decanus_tool::{FnTool, ToolError};
use hmac::{Hmac, KeyInit, Mac};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use sha2::Sha256;

use crate::network::{Network, class, failure, pairs};

const SIGNATURE: &str = "X-Hub-Signature-256";

/// Arguments of `webhook_tool`.
#[derive(Deserialize, JsonSchema)]
pub struct Webhook {
    /// The URL, http or https.
    url: String,
    /// What to send: a text is sent as it is, an object or a list as JSON.
    #[schemars(extend("type" = ["object", "array", "string"]))]
    payload: Value,
    /// A secret shared with the receiver; the request is then signed with it.
    secret: Option<String>,
    /// Headers by name.
    headers: Option<Map<String, Value>>,
}

pub(crate) fn tool(network: Network) -> FnTool<Webhook> {
    FnTool::new(
        "webhook_tool",
        "Posts a payload to a webhook at a public URL, signed by HMAC-SHA256 when a secret is given.",
        move |args: Webhook, _| {
            let network = network.clone();
            async move { post(&network, args).await }
        },
    )
    .effect(Effect::Unknown)
    .open_world()
    .destructive()
    .example(
        "Tell the webhook https://example.com/hook that the build is done",
        json!({"url": "https://example.com/hook", "payload": {"event": "build", "status": "done"}}),
    )
}

async fn post(network: &Network, args: Webhook) -> Result<Value, ToolError> {
    let mut headers = pairs(&args.headers.unwrap_or_default(), "headers", false)?;
    // What is signed is what is sent, byte for byte.
    let (body, is_json) = match args.payload {
        Value::String(text) => (text.into_bytes(), false),
        value @ (Value::Object(_) | Value::Array(_)) => (value.to_string().into_bytes(), true),
        _ => return Err(ToolError::argument("payload is an object, a list or a text")),
    };
    if is_json
        && !headers
            .iter()
            .any(|(name, _)| name.eq_ignore_ascii_case("content-type"))
    {
        headers.push(("Content-Type".to_owned(), "application/json; charset=utf-8".to_owned()));
    }
    if let Some(secret) = args.secret {
        if secret.is_empty() {
            return Err(ToolError::argument("secret is empty: give one, or leave it out"));
        }
        headers.retain(|(name, _)| !name.eq_ignore_ascii_case(SIGNATURE));
        headers.push((
            SIGNATURE.to_owned(),
            format!("sha256={}", sign(secret.as_bytes(), &body)?),
        ));
    }
    let request = Request {
        headers,
        max_body: Some(1_000_000),
        ..Request::post(args.url).body(Body::Bytes(body))
    };
    let reply = network.client()?.fetch(request).await.map_err(|e| match &e {
        Error::Refused(Refusal::Restricted { .. }) => {
            ToolError::respond(class(&e), format!("Security Error: Blocked access: {e}"))
        }
        _ => failure(&e),
    })?;
    let mut result = json!({"response_status": reply.status, "response_body": ""});
    if reply.is_text() {
        result["response_body"] = reply.text().into();
    } else {
        result["binary"] = json!({"content_type": reply.media_type(), "bytes": reply.body.len()});
    }
    if reply.truncated {
        result["truncated"] = true.into();
    }
    Ok(result)
}

/// HMAC-SHA256 (RFC 2104), in lower-case hexadecimal.
fn sign(secret: &[u8], body: &[u8]) -> Result<String, ToolError> {
    let mac = Hmac::<Sha256>::new_from_slice(secret);
    let mut mac = mac.map_err(|e| ToolError::argument(format!("secret can't be used: {e}")))?;
    mac.update(body);
    Ok(mac.finalize().into_bytes().iter().map(|b| format!("{b:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signatures() {
        let signed = |body: &str| sign(b"topsecret", body.as_bytes()).unwrap();
        assert_eq!(
            signed(r#"{"event":"ping","n":1}"#),
            "e7d48084a66912fe749791c191bade5c6a70a8d800169cc263aa50c03f41b7d8"
        );
        assert_eq!(
            signed("hello"),
            "ed76fd36523b8becda5a3b36d0e3737e8ae5111f55e26c7c3a455a3ce29636d2"
        );
    }
}
