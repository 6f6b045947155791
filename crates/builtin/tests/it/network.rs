//! `http_request`, `read_webpage`, `webhook_tool`.

use std::net::IpAddr;
use std::sync::Arc;

use async_trait::async_trait;
use decanus_builtin::{Network, network_tools};
use decanus_net::{AllowList, Client, Resolver};
use decanus_testkit::{Reply, ScriptedServer};
use decanus_tool::{Run, Tool, ToolContext, ToolError, ToolOutput};
use serde_json::{Value, json};

/// Names of tests.
struct Names;

#[async_trait]
impl Resolver for Names {
    async fn lookup(&self, host: &str) -> std::io::Result<Vec<IpAddr>> {
        let address = |text: &str| text.parse().unwrap();
        match host {
            "h.test" | "rebind.test" => Ok(vec![address("127.0.0.1")]),
            "two.test" => Ok(vec![address("93.184.216.34"), address("10.1.2.3")]),
            _ => Err(std::io::Error::other("no such name")),
        }
    }
}

/// Calls a tool over a client for which `h.test` alone may lead to this machine.
async fn call(name: &str, args: Value) -> Result<Value, (&'static str, String)> {
    output(name, args).await.map(|o| o.value)
}

async fn output(name: &str, args: Value) -> Result<ToolOutput, (&'static str, String)> {
    let client = Client::builder()
        .resolver(Arc::new(Names))
        .allow(AllowList::parse("h.test").unwrap())
        .build();
    let tools = network_tools(&Network::over(client));
    let tool: &Arc<dyn Tool> = tools.iter().find(|t| t.definition().name == name).unwrap();
    let Value::Object(args) = args else { panic!() };
    let run = Run::builder(std::env::temp_dir()).build();
    let cx = ToolContext {
        from_model: true,
        ..ToolContext::new("c", &run)
    };
    match tool.call(args, &cx).await {
        Ok(output) => Ok(output),
        Err(ToolError::Respond { class, message, .. }) => Err((class.as_str(), message)),
        Err(ToolError::Fatal(message)) => panic!("{message}"),
    }
}

fn at(server: &ScriptedServer, path: &str) -> String {
    format!("http://h.test:{}{path}", server.address().port())
}

#[tokio::test]
async fn refused_urls() {
    for (url, words) in [
        ("http://127.0.0.1/x", "restricted network address"),
        ("http://rebind.test/", "rebind.test -> 127.0.0.1"),
        ("http://two.test/", "two.test -> 10.1.2.3"),
        ("http://2130706433/", "restricted network address"),
        ("http://0177.0.0.1/", "restricted network address"),
        ("http://0x7f.1/", "restricted network address"),
        ("http://[::ffff:7f00:1]/", "restricted network address"),
        ("ftp://h/x", "must use http or https"),
        ("file:///etc/passwd", "must use http or https"),
        ("invalid url", "Invalid URL provided: invalid url"),
    ] {
        for tool in ["http_request", "read_webpage", "webhook_tool"] {
            let args = if tool == "webhook_tool" {
                json!({"url": url, "payload": {}})
            } else {
                json!({"url": url})
            };
            let (class, message) = call(tool, args).await.unwrap_err();
            assert!(message.contains(words), "{tool} {url}: {message}");
            assert_eq!(class, "ToolArgumentError", "{tool} {url}");
            assert_eq!(
                message.contains("Security Error: Blocked access"),
                tool == "webhook_tool" && message.contains("restricted"),
                "{message}"
            );
        }
    }
    let (class, message) = call("http_request", json!({"url": "http://nope.invalid/"}))
        .await
        .unwrap_err();
    assert!(message.contains("Could not resolve host"), "{message}");
    assert_eq!(class, "ToolNetworkError");
    let (_, message) = call("http_request", json!({"url": "http://127.0.0.1/", "method": "CONNECT"}))
        .await
        .unwrap_err();
    assert!(message.starts_with("Unsupported HTTP method: CONNECT"), "{message}");
}

#[tokio::test]
async fn requests() {
    let server = ScriptedServer::with(|request| match request.path.as_str() {
        "/gone" => Reply::new(404, "text/plain", "gone")
            .header("X-A", "1")
            .header("x-a", "2")
            .header("set-cookie", "c=1"),
        "/away" => Reply::new(302, "", "").header("location", "http://169.254.169.254/"),
        "/million" => Reply::new(200, "text/plain", "a".repeat(1_000_000)),
        "/more" => Reply::new(200, "text/plain", "a".repeat(1_000_001)),
        "/picture" => Reply::new(200, "image/png", vec![0x89, 0, 0xff]),
        _ => Reply::new(200, "application/json", "{}"),
    });
    let get = async |path: &str| call("http_request", json!({"url": at(&server, path)})).await;
    let gone = get("/gone").await.unwrap();
    assert_eq!(
        (&gone["status_code"], &gone["body"], &gone["truncated"]),
        (&json!(404), &json!("gone"), &json!(false))
    );
    assert_eq!(gone["url"], at(&server, "/gone"));
    assert_eq!(
        (&gone["headers"]["x-a"], &gone["headers"]["set-cookie"]),
        (&json!("1, 2"), &json!(["c=1"]))
    );
    let away = get("/away").await.unwrap();
    assert_eq!(
        (&away["status_code"], &away["headers"]["location"]),
        (&json!(302), &json!("http://169.254.169.254/"))
    );
    assert_eq!(get("/million").await.unwrap()["truncated"], false);
    let more = get("/more").await.unwrap();
    assert_eq!(
        (more["body"].as_str().unwrap().len(), &more["truncated"]),
        (1_000_000, &json!(true))
    );
    let picture = get("/picture").await.unwrap();
    assert_eq!(
        (&picture["body"], &picture["binary"]),
        (&json!(""), &json!({"content_type": "image/png", "bytes": 3}))
    );
    let args = json!({
        "url": at(&server, "/p?a=1&a=2"), "method": "post", "body": {"a": 1}, "query": {"b": [1, "x y"], "c": true, "d": null},
        "headers": {"X-B": 7, "Host": "evil.test"},
    });
    call("http_request", args).await.unwrap();
    let seen = server.requests().pop().unwrap();
    assert_eq!(
        (seen.method.as_str(), seen.path.as_str()),
        ("POST", "/p?a=1&a=2&b=1&b=x+y&c=true")
    );
    assert_eq!(
        (seen.text().as_str(), seen.header("content-type")),
        ("{\"a\":1}", Some("application/json; charset=utf-8"))
    );
    assert_eq!(
        (seen.header("x-b"), seen.header("host")),
        (Some("7"), Some(format!("h.test:{}", server.address().port()).as_str()))
    );
    for bad in [
        json!({"headers": {"a": {}}}),
        json!({"query": {"a": {}}}),
        json!({"headers": {"Connection": "x"}}),
        json!({"headers": {"a": "\r\n"}}),
    ] {
        let mut args = json!({"url": at(&server, "/")});
        args.as_object_mut().unwrap().extend(bad.as_object().unwrap().clone());
        assert_eq!(
            call("http_request", args).await.unwrap_err().0,
            "ToolArgumentError",
            "{bad}"
        );
    }
}

#[tokio::test]
async fn pages() {
    let server = ScriptedServer::with(|request| match request.path.as_str() {
        "/gone" => Reply::new(404, "text/plain", "gone"),
        "/away" => Reply::new(302, "", "").header("location", "http://169.254.169.254/"),
        "/moved" => Reply::new(301, "", "").header("location", "/long"),
        "/long" => Reply::new(200, "text/html", "x".repeat(100)),
        "/bytes" => Reply::new(200, "application/octet-stream", "x"),
        _ => Reply::new(
            200,
            "text/html",
            "<title>Tea &amp; Cake</title><h1>Menu</h1><p>One <a href=/two>two</a>",
        ),
    });
    let url = at(&server, "/");
    let menu = call("read_webpage", json!({"url": url})).await.unwrap();
    assert_eq!(
        menu,
        json!({"url": url, "title": "Tea & Cake", "text": "Menu\n\nOne two", "truncated": false})
    );
    assert!(
        server.requests()[0]
            .header("accept")
            .unwrap()
            .starts_with("text/html,application/xhtml+xml")
    );
    let links = call("read_webpage", json!({"url": url, "links": true})).await.unwrap();
    assert_eq!(links["links"], json!([{"text": "two", "url": at(&server, "/two")}]));
    for (max, length) in [(10, 10), (0, 1), (-5, 1), (1_000_000, 100)] {
        let page = call("read_webpage", json!({"url": at(&server, "/moved"), "max_chars": max}))
            .await
            .unwrap();
        assert_eq!(
            (page["text"].as_str().unwrap().len(), &page["truncated"]),
            (length, &json!(length < 100)),
            "{max}"
        );
        assert_eq!(page["final_url"], at(&server, "/long"));
    }
    let failed = async |args: Value| call("read_webpage", args).await.unwrap_err();
    let (class, message) = failed(json!({"url": at(&server, "/gone")})).await;
    assert_eq!(class, "ToolHttpError");
    assert!(message.contains("HTTP Error: Received status 404"), "{message}");
    assert_eq!(
        failed(json!({"url": at(&server, "/away")})).await.0,
        "ToolArgumentError"
    );
    assert!(
        failed(json!({"url": at(&server, "/bytes")}))
            .await
            .1
            .contains("is no text")
    );
    assert_eq!(failed(json!({"url": url, "pages": "x"})).await.0, "ToolArgumentError");
    assert_eq!(failed(json!({"url": url, "content": "x"})).await.0, "ToolArgumentError");
}

#[tokio::test]
async fn webhooks() {
    let server = ScriptedServer::with(|request| match request.path.as_str() {
        "/gone" => Reply::new(404, "text/plain", "gone"),
        _ => Reply::new(202, "text/plain", "accepted"),
    });
    let post = async |args: Value| {
        let mut args = args;
        if args["url"].is_null() {
            args["url"] = at(&server, "/hook").into();
        }
        call("webhook_tool", args).await
    };
    let last = || server.requests().pop().unwrap();
    let result = post(json!({"payload": {"event": "ping", "n": 1}, "secret": "topsecret", "headers": {"x-hub-signature-256": "mine"}})).await;
    assert_eq!(
        result.unwrap(),
        json!({"response_status": 202, "response_body": "accepted"})
    );
    assert_eq!(last().text(), r#"{"event":"ping","n":1}"#);
    assert_eq!(
        last().header("x-hub-signature-256"),
        Some("sha256=e7d48084a66912fe749791c191bade5c6a70a8d800169cc263aa50c03f41b7d8")
    );
    assert_eq!(last().header("content-type"), Some("application/json; charset=utf-8"));
    post(json!({"payload": "hello", "secret": "topsecret"})).await.unwrap();
    assert_eq!(
        last().header("x-hub-signature-256"),
        Some("sha256=ed76fd36523b8becda5a3b36d0e3737e8ae5111f55e26c7c3a455a3ce29636d2")
    );
    assert_eq!(last().header("content-type"), None);
    post(json!({"payload": [1], "headers": {"content-type": "application/x+json"}}))
        .await
        .unwrap();
    assert_eq!(
        (last().text().as_str(), last().header("content-type")),
        ("[1]", Some("application/x+json"))
    );
    assert_eq!(last().header("x-hub-signature-256"), None);
    for bad in [
        json!({"payload": 1}),
        json!({"payload": true}),
        json!({"payload": {}, "secret": ""}),
        json!({"payload": {}, "headers": {"Host": "x"}}),
    ] {
        assert_eq!(post(bad.clone()).await.unwrap_err().0, "ToolArgumentError", "{bad}");
    }
    assert_eq!(
        post(json!({"url": at(&server, "/gone"), "payload": {}}))
            .await
            .unwrap_err()
            .0,
        "ToolHttpError"
    );
}

#[tokio::test]
async fn what_a_webhook_answers_is_told_as_of_any_request() {
    let server = ScriptedServer::with(|request| match request.path.as_str() {
        "/picture" => Reply::new(200, "image/png", vec![0x89, 0, 0xff]),
        "/wrong" => Reply::new(200, "text/html", b"%PDF-1.7\nrest".to_vec()),
        _ => Reply::new(200, "text/plain", "a".repeat(1_000_001)),
    });
    let post = async |path: &str| {
        let args = json!({"url": at(&server, path), "payload": "x"});
        call("webhook_tool", args).await.unwrap()
    };
    assert_eq!(
        post("/picture").await,
        json!({"response_status": 200, "response_body": "", "binary": {"content_type": "image/png", "bytes": 3}})
    );
    assert_eq!(post("/wrong").await["binary"]["content_type"], "text/html");
    let cut = post("/long").await;
    assert_eq!(
        (cut["response_body"].as_str().unwrap().len(), &cut["truncated"]),
        (1_000_000, &json!(true))
    );
}

#[tokio::test]
async fn a_body_that_is_left_out_is_told_of() {
    let server = ScriptedServer::always(Reply::new(200, "text/plain", "ok"));
    for (method, body, is_told) in [
        ("GET", json!({"a": 1}), true),
        ("HEAD", json!([1]), true),
        ("POST", json!({"a": 1}), false),
        ("GET", json!(null), false),
    ] {
        let args = json!({"url": at(&server, "/"), "method": method, "body": body});
        let notes = output("http_request", args).await.unwrap().notes;
        let says = format!("a {method} request has no body: the one given was left out");
        assert_eq!(notes.contains(&says), is_told, "{method} {body}: {notes:?}");
    }
}

#[tokio::test]
async fn pages_are_known_by_their_bytes() {
    let server = ScriptedServer::with(|request| {
        let body: &[u8] = match request.path.as_str() {
            "/pdf" => b"%PDF-1.7\nrest",
            "/png" => b"\x89PNG\r\n\x1a\n\0\0",
            _ => b"RIFF\0\0\0\0WEBPVP8 ",
        };
        Reply::new(200, "text/html", body.to_vec())
    });
    for (path, says) in [
        ("/pdf", "is a PDF: say which pages to read"),
        ("/png", "is no text: it is a PNG picture"),
        ("/webp", "is no text: it is a WebP picture"),
    ] {
        let (_, message) = call("read_webpage", json!({"url": at(&server, path)}))
            .await
            .unwrap_err();
        assert!(message.contains(says), "{path}: {message}");
    }
}
