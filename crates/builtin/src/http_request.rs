//! A request to any public URL.

use decanus_chat::Effect;
use decanus_net::{Body, Method, Request};
use decanus_tool::{FnTool, ToolError, ToolOutput};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::network::{Network, failure, headers, pairs};

/// Arguments of `http_request`.
#[derive(Deserialize, JsonSchema)]
pub struct HttpRequest {
    /// The URL, http or https.
    url: String,
    /// GET (the default), POST, PUT, PATCH, DELETE or HEAD.
    method: Option<String>,
    /// Headers by name.
    headers: Option<Map<String, Value>>,
    /// The body: a text is sent as it is, anything else as JSON.
    #[schemars(extend("type" = ["string", "object", "array", "number", "boolean"]))]
    body: Option<Value>,
    /// Members for the query of the URL, by name; a list gives a name several values.
    query: Option<Map<String, Value>>,
}

pub(crate) fn tool(network: Network) -> FnTool<HttpRequest> {
    FnTool::with_output(
        "http_request",
        "Sends an HTTP request to a public URL and gives status, headers and body. Redirects are not followed.",
        move |args: HttpRequest, _| {
            let network = network.clone();
            async move { send(&network, args).await }
        },
    )
    .effect(Effect::Unknown)
    .open_world()
    .destructive_if(|args| {
        let method = args.get("method").and_then(Value::as_str).unwrap_or("GET").trim();
        !["GET", "HEAD"].iter().any(|reads| method.eq_ignore_ascii_case(reads))
    })
    .example(
        "Get https://example.com/data.json",
        json!({"url": "https://example.com/data.json"}),
    )
    .example(
        "Post the text hello to https://example.com/notes",
        json!({"url": "https://example.com/notes", "method": "POST", "body": "hello"}),
    )
}

async fn send(network: &Network, args: HttpRequest) -> Result<ToolOutput, ToolError> {
    let method: Method = args
        .method
        .as_deref()
        .unwrap_or("GET")
        .trim()
        .parse()
        .map_err(|e| failure(&e))?;
    let mut given = pairs(&args.headers.unwrap_or_default(), "headers", false)?;
    // The host is that of the URL, whatever else was given.
    given.retain(|(name, _)| !name.eq_ignore_ascii_case("host"));
    let mut notes = Vec::new();
    let body = match args.body {
        None | Some(Value::Null) => Body::Empty,
        Some(Value::String(text)) => Body::Bytes(text.into_bytes()),
        Some(_) if method.is_safe() => {
            notes.push(format!("a {method} request has no body: the one given was left out"));
            Body::Empty
        }
        Some(value) => Body::Json(value),
    };
    let request = Request {
        method,
        url: args.url.clone(),
        headers: given,
        query: pairs(&args.query.unwrap_or_default(), "query", true)?,
        body,
        redirects: 0,
        max_body: Some(1_000_000),
    };
    let reply = network.authorized()?.send(request).await.map_err(|e| failure(&e))?;
    let mut result = json!({
        "url": args.url,
        "status_code": reply.status,
        "headers": headers(&reply),
        "body": "",
        "truncated": reply.truncated,
    });
    if reply.is_text() {
        result["body"] = reply.text().into();
    } else {
        result["binary"] = json!({"content_type": reply.media_type(), "bytes": reply.body.len()});
    }
    Ok(ToolOutput {
        notes,
        ..ToolOutput::new(result)
    })
}
