//! Redirects: each hop is checked, nothing secret goes along.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use decanus_base::Secret;
use decanus_net::{AllowList, AuthorizeError, Authorizer, Body, Client, Error, Grant, Hop, Method, Request};
use decanus_testkit::{Reply, ScriptedServer};
use serde_json::Value;

use crate::support::{client, fixture, here, limits};

fn to(status: u16, location: &str) -> Reply {
    Reply::new(status, "", "").header("location", location)
}

#[tokio::test]
async fn the_table_of_redirects() {
    let steps: Vec<Value> = serde_json::from_slice(&fixture("redirects.json")).unwrap();
    for step in steps {
        let private = ScriptedServer::always(Reply::new(200, "text/plain", "secret"));
        let private_port = private.address().port();
        let script = step.clone();
        let server = ScriptedServer::with(move |request| {
            let step = if request.path == "/next" {
                &script["then"]
            } else {
                &script
            };
            let location = step["location"]
                .as_str()
                .unwrap()
                .replace(":8080", &format!(":{private_port}"));
            let port = request.header("host").unwrap().rsplit(':').next().unwrap().to_owned();
            let location = location.replace("public.test", &format!("public.test:{port}"));
            to(step["status"].as_u64().unwrap() as u16, &location)
        });
        let port = server.address().port();
        let client = client(here(&["public.test"]), &format!("public.test:{port}"));
        let request = Request::get(format!("http://public.test:{port}/")).redirects(5);
        let error = client.send(request).await.unwrap_err();
        if step["repeat"].is_u64() {
            assert_eq!(error.class(), "ToolHttpError", "{error}");
            assert!(error.to_string().contains("more than 5 redirects"), "{error}");
            assert_eq!(server.requests().len(), 6);
        } else {
            assert_eq!(error.class(), "ToolArgumentError", "{step}: {error}");
            assert!(matches!(error, Error::Refused(_)), "{step}: {error}");
        }
        assert!(private.requests().is_empty(), "{step}");
    }
}

#[tokio::test]
async fn redirects_are_followed_only_where_asked_for() {
    let server = ScriptedServer::with(|request| match request.path.as_str() {
        "/there" => Reply::new(200, "text/plain", request.method.clone()),
        _ => to(302, "there"),
    });
    let port = server.address().port();
    let client = client(here(&["h.test"]), "h.test");
    let url = format!("http://h.test:{port}/from?q=1");
    let reply = client.send(Request::get(&url)).await.unwrap();
    assert_eq!((reply.status, reply.header("location")), (302, Some("there")));
    assert_eq!(server.requests().len(), 1);
    let reply = client.send(Request::get(&url).redirects(1)).await.unwrap();
    assert_eq!((reply.status, reply.url.path()), (200, "/there"));
    // What changes something is not sent a second time.
    let post = Request::post(&url).body(Body::Bytes(b"x".to_vec())).redirects(5);
    assert_eq!(client.send(post).await.unwrap().status, 302);
    let head = client
        .send(Request::new(Method::Head, &url).redirects(5))
        .await
        .unwrap();
    assert_eq!((head.status, head.body.len()), (200, 0));
    let error = client.fetch(Request::get(&url)).await.unwrap_err();
    assert!(error.to_string().contains("HTTP Error: Received status 302"), "{error}");
    assert!(!error.to_string().contains("q=1"), "{error}");
}

#[tokio::test]
async fn credentials_stay_at_their_origin() {
    let other = ScriptedServer::always(Reply::new(200, "text/plain", "other"));
    let other_port = other.address().port();
    let home = ScriptedServer::with(move |request| match request.path.split('?').next().unwrap() {
        "/a" => to(307, "/b"),
        "/b" => to(307, &format!("http://h.test:{other_port}/c")),
        _ => Reply::new(200, "text/plain", "home"),
    });
    let port = home.address().port();
    let client = client(here(&["h.test"]), "h.test");
    let request = Request::get(format!("http://h.test:{port}/a"))
        .header("Authorization", "Bearer SENTINEL")
        .header("Cookie", "SENTINEL")
        .header("X-Api-Key", "SENTINEL")
        .header("Accept", "text/html")
        .query("key", "SENTINEL")
        .redirects(5);
    assert_eq!(client.send(request).await.unwrap().body, b"other");
    for request in home.requests() {
        assert_eq!(request.header("authorization"), Some("Bearer SENTINEL"));
        assert_eq!(request.header("x-api-key"), Some("SENTINEL"));
    }
    let seen = other.requests();
    assert_eq!(seen[0].header("accept"), Some("text/html"));
    assert!(!format!("{seen:?}").contains("SENTINEL"), "{seen:?}");
    assert!(seen[0].header("referer").is_none());
}

struct Keys(AtomicUsize);

#[async_trait]
impl Authorizer for Keys {
    async fn grant(&self, hop: Hop<'_>) -> Result<Grant, AuthorizeError> {
        self.0.fetch_add(1, Ordering::SeqCst);
        if hop.url.path() == "/locked" {
            return Err(AuthorizeError("the token has expired".to_owned()));
        }
        Ok(Grant {
            headers: vec![("authorization".to_owned(), Secret::new("Bearer SENTINEL"))],
            query: vec![("key".to_owned(), Secret::new("SENTINEL &"))],
            secrets: vec![Secret::new("SENTINEL")],
        })
    }
}

#[tokio::test]
async fn what_an_authorizer_grants_stays_too() {
    let other = ScriptedServer::with(|request| match request.path.as_str() {
        "/c" => to(302, request.header("x-back").unwrap_or("/end")),
        _ => Reply::new(200, "text/plain", "end"),
    });
    let other_port = other.address().port();
    let home = ScriptedServer::with(move |request| match request.path.split('?').next().unwrap() {
        "/a" => to(302, "/b?key=mine&x=1"),
        _ => to(302, &format!("http://h.test:{other_port}/c")),
    });
    let port = home.address().port();
    let keys = Arc::new(Keys(AtomicUsize::new(0)));
    let client = Client::builder()
        .resolver(here(&["h.test"]))
        .allow(AllowList::parse("h.test").unwrap())
        .limits(limits())
        .authorizer(keys.clone())
        .build();
    let own = Request::get(format!("http://h.test:{port}/a"))
        .header("Authorization", "mine")
        .redirects(5);
    let reply = client.send(own).await.unwrap();
    assert_eq!(reply.body, b"end");
    let seen = home.requests();
    assert_eq!(seen[0].path, "/a?key=SENTINEL+%26");
    assert_eq!(seen[1].path, "/b?x=1&key=SENTINEL+%26");
    assert_eq!(seen[1].header("authorization"), Some("Bearer SENTINEL"));
    assert!(!format!("{:?} {reply:?}", other.requests()).contains("SENTINEL"));
    assert_eq!(keys.0.load(Ordering::SeqCst), 2);

    // A credential that belongs here and can't be had: nothing is sent.
    let before = home.requests().len();
    let error = client
        .send(Request::get(format!("http://h.test:{port}/locked")))
        .await
        .unwrap_err();
    assert!(
        error.to_string().contains("was not sent: the token has expired"),
        "{error}"
    );
    assert_eq!((error.class(), home.requests().len()), ("ToolError", before));
}
