//! Credentials on their way, against scripted servers: where they go and where not.

use std::sync::Arc;

use decanus_base::Secret;
use decanus_net::auth::{Auth, Definition, Fields};
use decanus_net::{AllowList, Client, Request};
use decanus_testkit::{Reply, ScriptedServer};

use crate::support::{client, here, limits};

pub struct Place {
    pub home: tempfile::TempDir,
    pub auth: Auth,
}

/// The credentials of a fresh home; token servers may be on this machine.
pub fn place() -> Place {
    let home = tempfile::tempdir().unwrap();
    let auth = open(home.path());
    Place { home, auth }
}

pub fn open(home: &std::path::Path) -> Auth {
    let client = Client::builder()
        .allow(AllowList::parse("127.0.0.1").unwrap())
        .limits(limits())
        .build();
    Auth::with_client(home, client)
}

pub fn fields(scheme: &str, url: &str, more: &[(&str, &str)]) -> Fields {
    let mut fields = Fields {
        scheme: scheme.to_owned(),
        urls: vec![url.to_owned()],
        ..Fields::default()
    };
    for (name, value) in more {
        let value = (*value).to_owned();
        match *name {
            "in" => fields.place = Some(value),
            "name" => fields.name = Some(value),
            "prefix" => fields.prefix = Some(value),
            "username" => fields.username = Some(value),
            "grant" => fields.grant = Some(value),
            "client_id" => fields.client_id = Some(value),
            "client_auth" => fields.client_auth = Some(value),
            "scopes" => fields.scopes = vec![value],
            "env" => fields.env = Some(value),
            "issuer" => fields.issuer = Some(value),
            "token_url" => fields.token_url = Some(value),
            "authorization_url" => fields.authorization_url = Some(value),
            "device_url" => fields.device_url = Some(value),
            "revocation_url" => fields.revocation_url = Some(value),
            other => panic!("{other}"),
        }
    }
    fields
}

impl Place {
    pub fn set(&self, name: &str, fields: &Fields, secret: &str) {
        let definition = Definition::new(name, fields).unwrap();
        let secret = (!secret.is_empty()).then(|| Secret::new(secret));
        self.auth.set(&definition, secret).unwrap();
    }

    /// A client with these credentials, for which `h.test` is this machine.
    pub fn client(&self) -> Client {
        client(here(&["h.test", "evil.test"]), "h.test,evil.test").with_authorizer(Arc::new(self.auth.clone()))
    }
}

pub fn base(server: &ScriptedServer) -> String {
    format!("http://127.0.0.1:{}", server.address().port())
}

pub fn at(server: &ScriptedServer, path: &str) -> String {
    format!("http://h.test:{}{path}", server.address().port())
}

#[tokio::test]
async fn each_scheme_goes_to_its_place_and_comes_back_masked() {
    let server = ScriptedServer::with(|r| Reply::new(200, "text/plain", format!("{} {:?}", r.path, r.headers)));
    let p = place();
    let url = |path: &str| at(&server, path);
    p.set(
        "header",
        &fields("api_key", &url("/h"), &[("prefix", "Token ")]),
        "SENTINEL1",
    );
    p.set(
        "query",
        &fields("api_key", &url("/q"), &[("in", "query"), ("name", "k")]),
        "SENTINEL2 &é",
    );
    p.set(
        "cookie",
        &fields("api_key", &url("/c"), &[("in", "cookie"), ("name", "sid")]),
        "SENTINEL3",
    );
    p.set("bearer", &fields("bearer", &url("/b"), &[]), "SENTINEL4");
    p.set(
        "basic",
        &fields("basic", &url("/u"), &[("username", "ada")]),
        "SENTINEL5:x",
    );
    let client = p.client();
    let mut bodies = String::new();
    for path in ["/h/x", "/q?a=1&k=mine", "/c", "/b", "/u", "/none", "/bb"] {
        let request = Request::get(url(path))
            .header("cookie", "s=1; sid=mine")
            .header("authorization", "mine");
        bodies.push_str(&client.send(request).await.unwrap().text());
    }
    let seen = server.requests();
    assert_eq!(seen[0].header("x-api-key"), Some("Token SENTINEL1"));
    assert_eq!(seen[1].path, "/q?a=1&k=SENTINEL2+%26%C3%A9");
    assert_eq!(seen[2].header("cookie"), Some("s=1; sid=SENTINEL3"));
    assert_eq!(seen[3].header("authorization"), Some("Bearer SENTINEL4"));
    assert_eq!(seen[4].header("authorization"), Some("Basic YWRhOlNFTlRJTkVMNTp4"));
    for plain in &seen[5..] {
        assert_eq!(
            (plain.header("authorization"), plain.header("cookie")),
            (Some("mine"), Some("s=1; sid=mine"))
        );
    }
    assert!(
        bodies.contains("[REDACTED]") && !bodies.contains("SENTINEL") && !bodies.contains("YWRhOl"),
        "{bodies}"
    );
}

#[tokio::test]
async fn a_credential_stays_at_its_origin() {
    let evil = ScriptedServer::always(Reply::new(200, "text/plain", "evil"));
    let target = format!("http://evil.test:{}/v1", evil.address().port());
    let home = ScriptedServer::with(move |_| {
        let mut reply = Reply::new(302, "", "");
        reply.headers.push(("location".into(), target.clone()));
        reply
    });
    let p = place();
    p.set("api", &fields("bearer", &at(&home, "/v1"), &[]), "SENTINEL-1");
    p.set(
        "evil",
        &fields("bearer", &format!("http://evil.test:{}/", evil.address().port()), &[]),
        "SENTINEL-2",
    );
    let reply = p
        .client()
        .send(Request::get(at(&home, "/v1/a")).redirects(3))
        .await
        .unwrap();
    assert_eq!(reply.text(), "evil");
    assert_eq!(home.requests()[0].header("authorization"), Some("Bearer SENTINEL-1"));
    // Nor is another credential sent to where a redirect leads: a server could spend it.
    assert!(!format!("{:?}", evil.requests()).contains("SENTINEL"));
}

#[tokio::test]
async fn a_credential_that_cannot_be_applied_is_an_error() {
    let server = ScriptedServer::always(Reply::new(200, "text/plain", "in"));
    let p = place();
    p.set(
        "variable",
        &fields("bearer", &at(&server, "/v"), &[("env", "DECANUS_TEST_NO_SUCH")]),
        "",
    );
    p.set("empty", &fields("bearer", &at(&server, "/e"), &[]), "");
    p.set("one", &fields("bearer", &at(&server, "/two"), &[]), "SENTINEL");
    p.set("other", &fields("bearer", &at(&server, "/two/"), &[]), "SENTINEL");
    let get = async |path: &str| p.client().send(Request::get(at(&server, path))).await;
    for (path, words) in [
        (
            "/v",
            "the environment variable DECANUS_TEST_NO_SUCH is not set or empty",
        ),
        (
            "/e",
            "credential 'empty' has no secret stored (`decanus auth set empty` asks for it)",
        ),
        ("/two/x", "the credentials 'one' and 'other' belong to"),
    ] {
        let error = get(path).await.unwrap_err();
        assert!(
            error.to_string().contains("was not sent") && error.to_string().contains(words),
            "{error}"
        );
        assert_eq!(error.class(), "ToolError");
    }
    assert_eq!(get("/x").await.unwrap().text(), "in");
    // A file that can't be read may belong to any URL.
    std::fs::write(p.home.path().join("auth/bad.yaml"), "scheme: bearr\n").unwrap();
    let error = get("/x").await.unwrap_err().to_string();
    assert!(
        error.contains("bad.yaml:1: scheme") && error.contains("did you mean bearer"),
        "{error}"
    );
    assert_eq!(server.requests().len(), 1);
}

#[test]
fn secrets_that_cannot_be_sent_are_refused_and_not_shown() {
    let p = place();
    for (scheme, more, secret) in [
        ("bearer", &[][..], "SENTINEL\r\nX: y"),
        ("api_key", &[], "SENTINEL\0"),
        ("api_key", &[("in", "cookie")], "SENTINEL; x=y"),
        ("basic", &[("username", "u")], "SENTINEL\n"),
    ] {
        let definition = Definition::new("a", &fields(scheme, "https://h.test", more)).unwrap();
        let error = p
            .auth
            .set(&definition, Some(Secret::new(secret)))
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("contains invalid characters") && !error.contains("SENTINEL"),
            "{error}"
        );
    }
    assert!(p.auth.names().unwrap().is_empty());
    let google = Definition::new("g", &fields("google_service_account", "https://h.test", &[])).unwrap();
    let error = p
        .auth
        .set(&google, Some(Secret::new("{\"type\": \"SENTINEL\"}")))
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("its type is not service_account") && !error.contains("SENTINEL"),
        "{error}"
    );
}

#[tokio::test]
async fn lists_show_where_secrets_are() {
    let p = place();
    p.set("stored", &fields("bearer", "https://a.test", &[]), "abcdefghijkl");
    p.set(
        "variable",
        &fields("bearer", "https://b.test", &[("env", "DECANUS_TEST_NO_SUCH")]),
        "",
    );
    std::fs::write(p.home.path().join("auth/wrong.yaml"), "urls: []\n").unwrap();
    let all = p.auth.list().unwrap();
    let shown = format!("{all:?}");
    assert!(shown.contains("••••••••ijkl") && !shown.contains("abcdefgh"), "{shown}");
    assert_eq!(
        all.iter().map(|l| l.name.as_str()).collect::<Vec<_>>(),
        ["stored", "variable", "wrong"]
    );
    assert!(all[2].definition.is_err());
    let unknown = p.auth.get("stord").unwrap_err().to_string();
    assert!(unknown.contains("did you mean stored"), "{unknown}");
    assert!(p.auth.get("../stored").is_err());
    p.auth.remove("wrong").await.unwrap();
    p.auth.remove("stored").await.unwrap();
    assert!(p.auth.remove("stored").await.is_err());
    // A credential of the same name begins without a secret.
    p.auth
        .set(
            &Definition::new("stored", &fields("bearer", "https://a.test", &[])).unwrap(),
            None,
        )
        .unwrap();
    assert!(
        p.auth
            .try_out("stored")
            .await
            .unwrap_err()
            .to_string()
            .contains("no secret stored")
    );
}
