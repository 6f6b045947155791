//! Requests and replies: bodies, sizes, times, faults.

use std::io::Write;
use std::time::Duration;

use decanus_net::{AllowList, Body, Client, Limits, Method, Request};
use decanus_testkit::reply::Framing;
use decanus_testkit::{Piece, Reply, ScriptedServer};
use serde_json::json;

use crate::support::{client, fixture, here, limits};

fn local() -> Client {
    client(here(&[]), "127.0.0.1")
}

fn url(server: &ScriptedServer) -> String {
    format!("http://{}/", server.address())
}

fn impatient(limits: Limits) -> Client {
    Client::builder()
        .allow(AllowList::parse("127.0.0.1").unwrap())
        .limits(limits)
        .build()
}

#[tokio::test]
async fn what_is_sent() {
    let server = ScriptedServer::always(
        Reply::new(200, "text/plain", "ok")
            .header("X-Two", "1")
            .header("X-Two", "2"),
    );
    let client = local();
    let request = Request::post(format!("{}p?a=1&a=2", url(&server)))
        .query("b", "x y")
        .header("X-Mine", "m")
        .body(Body::Json(json!({"z": 1, "a": "ü"})));
    let reply = client.send(request).await.unwrap();
    assert_eq!((reply.status, reply.text().as_str()), (200, "ok"));
    let twice: Vec<_> = reply
        .headers
        .iter()
        .filter(|(n, _)| n == "x-two")
        .map(|(_, v)| v.as_str())
        .collect();
    assert_eq!(twice, ["1", "2"]);
    let seen = &server.requests()[0];
    assert_eq!((seen.method.as_str(), seen.path.as_str()), ("POST", "/p?a=1&a=2&b=x+y"));
    assert_eq!(seen.text(), "{\"z\":1,\"a\":\"ü\"}");
    assert_eq!(seen.header("content-type"), Some("application/json; charset=utf-8"));
    assert_eq!(
        seen.header("user-agent"),
        Some(concat!("decanus/", env!("CARGO_PKG_VERSION")))
    );
    assert_eq!(seen.header("accept-encoding"), Some("gzip, deflate, br, zstd"));
    assert_eq!(seen.header("host"), Some(server.address().to_string().as_str()));
    assert_eq!(seen.header("x-mine"), Some("m"));
    for method in ["GET", "HEAD", "PUT", "PATCH", "DELETE"] {
        let method: Method = method.to_lowercase().parse().unwrap();
        client
            .send(Request::new(method, url(&server)).body(Body::Json(json!([1]))))
            .await
            .unwrap();
        let seen = server.requests().pop().unwrap();
        assert_eq!(seen.method, method.as_str());
        assert_eq!(seen.text(), if method.is_safe() { "" } else { "[1]" });
    }
    let injected = Request::get(url(&server)).header("X-A", "1\r\nX-B: 2");
    assert_eq!(client.send(injected).await.unwrap_err().class(), "ToolArgumentError");
    assert_eq!(server.requests().len(), 6);
}

#[tokio::test]
async fn any_status_is_a_reply() {
    let server = ScriptedServer::always(Reply::new(404, "text/plain", "gone"));
    let client = local();
    let reply = client.send(Request::get(url(&server))).await.unwrap();
    assert_eq!((reply.status, reply.text().as_str()), (404, "gone"));
    let error = client
        .fetch(Request::post(format!("{}x?key=SENTINEL", url(&server))))
        .await
        .unwrap_err();
    assert_eq!(error.class(), "ToolHttpError");
    assert!(
        error
            .to_string()
            .contains("HTTP Error: Received status 404 for POST http://127.0.0.1"),
        "{error}"
    );
    assert!(!error.to_string().contains("SENTINEL"), "{error}");
    let decanus_net::Error::Http { reply, .. } = error else {
        panic!()
    };
    assert_eq!(reply.text(), "gone");
}

#[tokio::test]
async fn bodies_end_at_the_limit() {
    for (length, truncated) in [
        (999_999, false),
        (1_000_000, false),
        (1_000_001, true),
        (3_000_000, true),
    ] {
        let server = ScriptedServer::always(Reply::new(200, "text/plain", "a".repeat(length)));
        let reply = local().send(Request::get(url(&server))).await.unwrap();
        assert_eq!((reply.body.len(), reply.truncated), (length.min(1_000_000), truncated));
    }
    let server = ScriptedServer::always(Reply::new(200, "text/plain", "aé"));
    let reply = local().send(Request::get(url(&server)).max_body(2)).await.unwrap();
    assert_eq!((reply.text().as_str(), reply.truncated), ("a", true));
    let reply = local().send(Request::get(url(&server)).max_body(0)).await.unwrap();
    assert_eq!((reply.body.len(), reply.truncated), (0, true));
    // A length that is not true: too short ends the body, too long is a broken answer.
    let short = Reply::new(200, "text/plain", "abcdef")
        .header("content-length", "3")
        .framed(Framing::UntilClose);
    let server = ScriptedServer::always(short);
    assert_eq!(local().send(Request::get(url(&server))).await.unwrap().text(), "abc");
    let long = Reply::new(200, "text/plain", "abc")
        .header("content-length", "30")
        .framed(Framing::UntilClose);
    let server = ScriptedServer::always(long);
    let error = local().send(Request::get(url(&server))).await.unwrap_err();
    assert_eq!(error.class(), "ToolNetworkError");
}

fn compressed(encoding: &str, text: &[u8]) -> Vec<u8> {
    use async_compression::futures::write::{BrotliEncoder, DeflateEncoder, GzipEncoder, ZlibEncoder, ZstdEncoder};
    use futures::io::AsyncWriteExt;
    macro_rules! with {
        ($encoder:ident) => {{
            let mut encoder = $encoder::new(Vec::new());
            futures::executor::block_on(async {
                encoder.write_all(text).await.unwrap();
                encoder.close().await.unwrap();
            });
            encoder.into_inner()
        }};
    }
    match encoding {
        "gzip" | "x-gzip" => with!(GzipEncoder),
        "deflate" => with!(ZlibEncoder),
        "bare deflate" => with!(DeflateEncoder),
        "br" => with!(BrotliEncoder),
        "zstd" => with!(ZstdEncoder),
        _ => text.to_vec(),
    }
}

#[tokio::test]
async fn bodies_are_decompressed() {
    let text = "Some text. ".repeat(500);
    for encoding in [
        "gzip",
        "x-gzip",
        "deflate",
        "bare deflate",
        "br",
        "zstd",
        "identity",
        "GZIP",
    ] {
        let body = compressed(&encoding.to_lowercase(), text.as_bytes());
        let stated = encoding.strip_prefix("bare ").unwrap_or(encoding);
        let reply = Reply::new(200, "text/plain", body.clone()).header("content-encoding", stated);
        for reply in [reply.clone(), reply.clone().framed(Framing::Chunked).every(7)] {
            let server = ScriptedServer::always(reply);
            let reply = local().send(Request::get(url(&server))).await.unwrap();
            assert_eq!(reply.text(), text, "{encoding}");
            assert!(
                local().send(Request::new(Method::Head, url(&server))).await.is_ok(),
                "{encoding}"
            );
        }
        if stated != "identity" {
            let server = ScriptedServer::always(
                Reply::new(200, "text/plain", body[..body.len() / 2].to_vec()).header("content-encoding", stated),
            );
            let error = local().send(Request::get(url(&server))).await.unwrap_err();
            assert_eq!(error.class(), "ToolNetworkError", "{encoding}: {error}");
            assert!(error.to_string().contains("can't be read to its end"), "{error}");
        }
    }
    // Two members, one after the other, and one around the other.
    let mut two = compressed("gzip", b"one ");
    two.write_all(&compressed("gzip", b"two")).unwrap();
    let around = compressed("br", &compressed("gzip", b"one two"));
    for (body, stated) in [(two, "gzip"), (around, "gzip, br")] {
        let server = ScriptedServer::always(Reply::new(200, "text/plain", body).header("content-encoding", stated));
        assert_eq!(
            local().send(Request::get(url(&server))).await.unwrap().text(),
            "one two"
        );
    }
    for unknown in ["compress", "gzip, gzip, gzip", "x\u{1b}"] {
        let server = ScriptedServer::always(Reply::new(200, "text/plain", "x").header("content-encoding", unknown));
        let error = local().send(Request::get(url(&server))).await.unwrap_err().to_string();
        assert!(!error.contains('\u{1b}'), "{error}");
    }
    let server = ScriptedServer::always(Reply::new(200, "text/plain", "no gzip").header("content-encoding", "gzip"));
    assert_eq!(
        local().send(Request::get(url(&server))).await.unwrap_err().class(),
        "ToolNetworkError"
    );
}

#[tokio::test]
async fn bombs_stop_at_the_limit() {
    let zeros = vec![0; 32 * 1024 * 1024];
    let mut bombs = vec![("gzip", fixture("zeros-64MiB.gz"))];
    bombs.extend(["deflate", "br", "zstd"].map(|e| (e, compressed(e, &zeros))));
    for (encoding, body) in bombs {
        for framing in [Framing::Length, Framing::Chunked] {
            let bomb = Reply::new(200, "text/html", body.clone())
                .header("content-encoding", encoding)
                .framed(framing);
            let server = ScriptedServer::always(bomb);
            let reply = local().send(Request::get(url(&server))).await.unwrap();
            assert_eq!((reply.body.len(), reply.truncated), (1_000_000, true), "{encoding}");
            assert!(reply.body.capacity() < 8_000_000);
        }
    }
}

#[tokio::test]
async fn time_has_limits() {
    let hang = |reply: Reply| ScriptedServer::always(reply.then(Piece::Hang));
    let read = Limits {
        read: Duration::from_millis(300),
        ..limits()
    };
    let silent = ScriptedServer::always(Reply {
        delay: Some(Piece::Hang),
        ..Reply::new(200, "text/plain", "")
    });
    let half = hang(Reply::new(200, "text/plain", "half").framed(Framing::Chunked));
    for server in [&silent, &half] {
        let request = Request::get(format!("{}?key=SENTINEL", url(server)));
        let error = impatient(read).send(request).await.unwrap_err();
        assert_eq!(error.class(), "ToolTimeoutError");
        assert!(
            error
                .to_string()
                .contains("Timeout during GET request to http://127.0.0.1"),
            "{error}"
        );
        assert!(error.to_string().contains("nothing came for 0.3 s"), "{error}");
        assert!(!error.to_string().contains("SENTINEL"), "{error}");
    }
    // One byte at a time without end: each of them is in time, all of them are not.
    let mut slow = Reply::new(200, "text/plain", "").framed(Framing::Chunked);
    for _ in 0..1000 {
        slow = slow
            .then(Piece::Wait(Duration::from_millis(20)))
            .then(Piece::Bytes(b"x".to_vec()));
    }
    let server = ScriptedServer::always(slow);
    let total = Limits {
        total: Duration::from_millis(500),
        ..limits()
    };
    let error = impatient(total).send(Request::post(url(&server))).await.unwrap_err();
    assert!(error.to_string().contains("Timeout during POST request"), "{error}");
    assert!(error.to_string().contains("longer than 0.5 s"), "{error}");
}

#[tokio::test]
async fn connections_that_fail() {
    // A port that was free a moment ago.
    let port = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let error = local()
        .send(Request::get(format!("http://127.0.0.1:{port}/a?key=SENTINEL")))
        .await
        .unwrap_err();
    assert_eq!(error.class(), "ToolNetworkError");
    let message = error.to_string();
    assert!(
        message.contains("Network error (socket) during GET request to http://127.0.0.1"),
        "{message}"
    );
    assert!(message.contains("/a: ") && !message.contains("SENTINEL"), "{message}");
    let server = ScriptedServer::always(Reply {
        delay: Some(Piece::Close),
        ..Reply::new(200, "text/plain", "")
    });
    assert_eq!(
        local().send(Request::get(url(&server))).await.unwrap_err().class(),
        "ToolNetworkError"
    );
    let server = ScriptedServer::always(
        Reply::new(200, "text/plain", "0123456789")
            .framed(Framing::Chunked)
            .cut_after(5),
    );
    assert_eq!(
        local().send(Request::get(url(&server))).await.unwrap_err().class(),
        "ToolNetworkError"
    );
}
