//! Tokens: how they are got, renewed and lost, against scripted token servers.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use base64::Engine;
use decanus_net::auth::{Auth, AuthError, Definition, Fields, Prompt, Revocation};
use decanus_net::{Client, Request};
use decanus_testkit::{Recorded, Reply, ScriptedServer};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::auth::{Place, at, base, fields, open, place};
use crate::support::{client, here};

fn form(request: &Recorded) -> HashMap<String, String> {
    url::form_urlencoded::parse(&request.body).into_owned().collect()
}

fn token_reply(access: &str, more: Value) -> Reply {
    let mut body = json!({"access_token": access, "token_type": "Bearer", "expires_in": 3600});
    for (name, value) in more.as_object().unwrap() {
        body[name] = value.clone();
    }
    Reply::json(200, &body)
}

#[tokio::test]
async fn client_credentials_are_fetched_once_for_many() {
    let count = Arc::new(AtomicUsize::new(0));
    let counted = count.clone();
    let tokens = ScriptedServer::with(move |_| {
        let n = counted.fetch_add(1, Ordering::SeqCst);
        let mut reply = token_reply(&format!("SENTINEL-token-{n}"), json!({}));
        reply.delay = Some(decanus_testkit::Piece::Wait(Duration::from_millis(100)));
        reply
    });
    let api = ScriptedServer::always(Reply::new(200, "text/plain", "in"));
    let p = place();
    let oauth = fields(
        "oauth2",
        &at(&api, "/"),
        &[
            ("grant", "client_credentials"),
            ("client_id", "a b"),
            ("token_url", &format!("{}/token", base(&tokens))),
            ("scopes", "read write"),
        ],
    );
    p.set("api", &oauth, "s&cret-SENTINEL");
    // Several tasks of several clients, as several processes would be.
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..3 {
        let auth = open(p.home.path());
        let client = client(here(&["h.test"]), "h.test").with_authorizer(Arc::new(auth));
        for _ in 0..4 {
            let (client, url) = (client.clone(), at(&api, "/x"));
            tasks.spawn(async move { client.send(Request::get(url)).await.unwrap().status });
        }
    }
    assert_eq!(tasks.join_all().await, [200; 12]);
    assert_eq!(count.load(Ordering::SeqCst), 1);
    assert!(
        api.requests()
            .iter()
            .all(|r| r.header("authorization") == Some("Bearer SENTINEL-token-0"))
    );
    let asked = &tokens.requests()[0];
    // Both are form-encoded before they become Basic (RFC 6749, 2.3.1).
    assert_eq!(
        asked.header("authorization"),
        Some("Basic YStiOnMlMjZjcmV0LVNFTlRJTkVM")
    );
    let asked = form(asked);
    assert_eq!(
        (asked["grant_type"].as_str(), asked["scope"].as_str()),
        ("client_credentials", "read write")
    );
    let stored = std::fs::read(p.home.path().join("auth/store.age")).unwrap();
    assert!(!String::from_utf8_lossy(&stored).contains("SENTINEL"));
    assert!(!format!("{:?} {:?}", p.auth, p.auth.list().unwrap()).contains("SENTINEL-token"));
    // Another scope is another token.
    let other = Fields {
        scopes: vec!["admin".into()],
        ..oauth
    };
    p.auth.set(&Definition::new("api", &other).unwrap(), None).unwrap();
    p.client().send(Request::get(at(&api, "/x"))).await.unwrap();
    assert_eq!(count.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn a_token_that_is_turned_away_is_replaced_once() {
    let count = Arc::new(AtomicUsize::new(0));
    let counted = count.clone();
    let tokens = ScriptedServer::with(move |_| {
        token_reply(&format!("token-{}", counted.fetch_add(1, Ordering::SeqCst)), json!({}))
    });
    let api = ScriptedServer::with(|r| {
        let let_in = r.header("authorization") == Some("Bearer token-1") && r.path != "/never";
        Reply::new(if let_in { 200 } else { 401 }, "text/plain", "")
    });
    let p = place();
    let token_url = format!("{}/token", base(&tokens));
    let more = [
        ("grant", "client_credentials"),
        ("client_id", "c"),
        ("client_auth", "post"),
        ("token_url", token_url.as_str()),
    ];
    p.set("api", &fields("oauth2", &at(&api, "/"), &more), "hush");
    let client = p.client();
    // What changes something is not sent twice.
    assert_eq!(client.send(Request::post(at(&api, "/x"))).await.unwrap().status, 401);
    assert_eq!((count.load(Ordering::SeqCst), api.requests().len()), (1, 1));
    assert_eq!(client.send(Request::get(at(&api, "/x"))).await.unwrap().status, 200);
    assert_eq!((count.load(Ordering::SeqCst), api.requests().len()), (2, 3));
    assert_eq!(client.send(Request::get(at(&api, "/never"))).await.unwrap().status, 401);
    assert_eq!((count.load(Ordering::SeqCst), api.requests().len()), (3, 5));
    let asked = form(&tokens.requests()[0]);
    assert_eq!(
        (asked["client_id"].as_str(), asked["client_secret"].as_str()),
        ("c", "hush")
    );
    assert!(tokens.requests()[0].header("authorization").is_none());
}

#[tokio::test]
async fn errors_of_token_servers_are_clear_and_hold_no_secret() {
    let reply: Arc<Mutex<Reply>> = Arc::new(Mutex::new(Reply::new(200, "", "")));
    let next = reply.clone();
    let tokens = ScriptedServer::with(move |_| next.lock().unwrap().clone());
    let p = place();
    let token_url = format!("{}/token", base(&tokens));
    let more = [
        ("grant", "client_credentials"),
        ("client_id", "c"),
        ("token_url", token_url.as_str()),
    ];
    p.set("api", &fields("oauth2", "https://h.test", &more), "SENTINEL-secret");
    for (given, words) in [
        (
            Reply::json(
                401,
                &json!({"error": "invalid_client", "error_description": "bad SENTINEL-secret\u{1b}[2J"}),
            ),
            "the client id or its secret is wrong",
        ),
        (Reply::json(200, &json!({"error": "invalid_scope"})), "invalid_scope"),
        (
            Reply::new(502, "text/html", "<h1>SENTINEL-secret"),
            "502 with something that is no JSON",
        ),
        (Reply::json(500, &json!({})), "answered 500"),
        (Reply::json(200, &json!({"token_type": "bearer"})), "no access_token"),
        (
            token_reply("SENTINEL", json!({"token_type": "mac"})),
            "'mac', not bearer",
        ),
    ] {
        *reply.lock().unwrap() = given;
        let error = p.auth.try_out("api").await.unwrap_err();
        let shown = format!("{error} {error:?}");
        assert!(
            shown.contains(words) && !shown.contains("SENTINEL") && !shown.contains('\u{1b}'),
            "{shown}"
        );
    }
    // The token server is not on the public network, and nothing allows it.
    let strict = Auth::with_client(p.home.path(), Client::default());
    let error = strict.try_out("api").await.unwrap_err().to_string();
    assert!(error.contains("restricted network address"), "{error}");
}

/// A browser that follows the URL it is shown, and what the server said of it.
async fn visit(url: &str, change: impl Fn(&mut HashMap<String, String>)) -> (HashMap<String, String>, String) {
    let asked: HashMap<String, String> = url::Url::parse(url).unwrap().query_pairs().into_owned().collect();
    let mut answer = HashMap::from([
        ("state".to_owned(), asked["state"].clone()),
        ("code".to_owned(), "CODE".to_owned()),
    ]);
    change(&mut answer);
    let mut back = url::Url::parse(&asked["redirect_uri"]).unwrap();
    back.query_pairs_mut().extend_pairs(answer);
    let address = format!("127.0.0.1:{}", back.port().unwrap());
    // Browsers connect in advance and ask for an icon.
    let _idle = tokio::net::TcpStream::connect(&address).await.unwrap();
    let mut said = String::new();
    for target in ["/favicon.ico", &back[url::Position::BeforePath..]] {
        let mut stream = tokio::net::TcpStream::connect(&address).await.unwrap();
        let request = format!("GET {target} HTTP/1.1\r\nhost: {address}\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        said.clear();
        stream.read_to_string(&mut said).await.unwrap();
    }
    (asked, said)
}

/// Logs in, where a browser does as told.
async fn log_in(
    auth: &Auth,
    change: impl Fn(&mut HashMap<String, String>) + Send + Sync + 'static,
) -> (
    Result<decanus_net::auth::TokenState, AuthError>,
    HashMap<String, String>,
    String,
) {
    let (sender, receiver) = tokio::sync::oneshot::channel();
    let sender = Mutex::new(Some(sender));
    let show = move |prompt: Prompt| {
        let Prompt::Browser { url } = prompt else { panic!() };
        let _ = sender.lock().unwrap().take().unwrap().send(url);
    };
    let browser = async move { visit(&receiver.await.unwrap(), change).await };
    let (outcome, (asked, said)) = tokio::join!(auth.login("api", Duration::from_secs(30), &show), browser);
    (outcome, asked, said)
}

#[tokio::test]
async fn a_user_logs_in_and_the_token_is_renewed() {
    let tokens = ScriptedServer::with(|r| {
        let asked = form(r);
        match (
            asked.get("grant_type").map_or("", String::as_str),
            asked.get("refresh_token").map(String::as_str),
        ) {
            // It is used up at once, so that it is renewed for the next request.
            ("authorization_code", _) => token_reply("first", json!({"refresh_token": "R1", "expires_in": 1})),
            ("refresh_token", Some("R1")) => token_reply("second", json!({"refresh_token": "R2", "expires_in": 1})),
            ("refresh_token", Some("R2")) => token_reply("third", json!({"expires_in": 1})),
            _ => Reply::json(400, &json!({"error": "invalid_grant"})),
        }
    });
    let api = ScriptedServer::always(Reply::new(200, "text/plain", "in"));
    let p = place();
    let (token_url, authorization_url) = (format!("{}/token", base(&tokens)), "https://a.test/auth?x=1");
    let more = [
        ("client_id", "c"),
        ("client_auth", "none"),
        ("token_url", token_url.as_str()),
        ("authorization_url", authorization_url),
        ("revocation_url", token_url.as_str()),
    ];
    p.set("api", &fields("oauth2", &at(&api, "/"), &more), "");
    let error = p
        .client()
        .send(Request::get(at(&api, "/")))
        .await
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("nobody is logged in: log in again (`decanus auth login api`)"),
        "{error}"
    );
    let (outcome, asked, said) = log_in(&p.auth, |_| {}).await;
    assert!(outcome.unwrap().refreshable);
    assert!(said.starts_with("HTTP/1.1 200"), "{said}");
    let sent = form(&tokens.requests()[0]);
    assert_eq!(
        (sent["code"].as_str(), &sent["redirect_uri"], sent["client_id"].as_str()),
        ("CODE", &asked["redirect_uri"], "c")
    );
    let digest = ring::digest::digest(&ring::digest::SHA256, sent["code_verifier"].as_bytes());
    assert_eq!(
        asked["code_challenge"],
        base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(digest)
    );
    // Rotation: each refresh token is kept when it comes, and the old one when none comes.
    for expected in ["second", "third"] {
        tokio::time::sleep(Duration::from_millis(1100)).await;
        p.client().send(Request::get(at(&api, "/"))).await.unwrap();
        let header = format!("Bearer {expected}");
        assert_eq!(
            api.requests().last().unwrap().header("authorization"),
            Some(header.as_str())
        );
    }
    let used: Vec<String> = tokens
        .requests()
        .iter()
        .filter_map(|r| form(r).get("refresh_token").cloned())
        .collect();
    assert_eq!(used, ["R1", "R2"]);
    assert!(matches!(p.auth.remove("api").await.unwrap(), Revocation::Failed(_)));
    assert_eq!(form(tokens.requests().last().unwrap())["token"], "R2");
    assert!(p.auth.names().unwrap().is_empty());
}

#[tokio::test]
async fn a_refresh_token_that_is_dead_means_log_in_again() {
    let tokens = ScriptedServer::with(|r| match form(r)["grant_type"].as_str() {
        "authorization_code" => token_reply("first", json!({"refresh_token": "SENTINEL-R", "expires_in": 1})),
        _ => Reply::json(
            400,
            &json!({"error": "invalid_grant", "error_description": "SENTINEL-R was revoked"}),
        ),
    });
    let p = place();
    let token_url = format!("{}/token", base(&tokens));
    let more = [
        ("client_id", "c"),
        ("client_auth", "none"),
        ("token_url", token_url.as_str()),
        ("authorization_url", "https://a.test/"),
    ];
    p.set("api", &fields("oauth2", "https://h.test", &more), "");
    log_in(&p.auth, |_| {}).await.0.unwrap();
    tokio::time::sleep(Duration::from_millis(1100)).await;
    for words in [
        "invalid_grant ([REDACTED] was revoked): log in again",
        "nobody is logged in: log in again",
    ] {
        let error = p.auth.try_out("api").await.unwrap_err().to_string();
        assert!(error.contains(words) && !error.contains("SENTINEL"), "{error}");
    }
    // The server was not asked a second time.
    assert_eq!(tokens.requests().len(), 2);
}

#[tokio::test]
async fn a_login_that_is_not_this_one_fails() {
    let tokens = ScriptedServer::always(token_reply("t", json!({})));
    let p = place();
    let token_url = format!("{}/token", base(&tokens));
    let more = [
        ("client_id", "c"),
        ("client_auth", "none"),
        ("token_url", token_url.as_str()),
        ("authorization_url", "https://a.test/"),
    ];
    p.set("api", &fields("oauth2", "https://h.test", &more), "");
    type Change = fn(&mut HashMap<String, String>);
    let changes: [(Change, &str); 3] = [
        (
            |a| {
                a.insert("state".into(), "bad".into());
            },
            "another login",
        ),
        (
            |a| {
                a.remove("code");
            },
            "no code",
        ),
        (
            |a| {
                a.insert("error".into(), "access_denied".into());
            },
            "access_denied",
        ),
    ];
    for (change, words) in changes {
        let (outcome, _, said) = log_in(&p.auth, change).await;
        let error = outcome.unwrap_err().to_string();
        assert!(
            error.contains(words) && said.starts_with("HTTP/1.1 400"),
            "{error} {said}"
        );
    }
    let nobody = p
        .auth
        .login("api", Duration::from_millis(50), &|_| {})
        .await
        .unwrap_err()
        .to_string();
    assert!(nobody.contains("nobody finished it"), "{nobody}");
    assert!(tokens.requests().is_empty());
    p.set("key", &fields("bearer", "https://k.test", &[]), "hush");
    assert!(
        p.auth
            .login("key", Duration::from_secs(1), &|_| {})
            .await
            .unwrap_err()
            .to_string()
            .contains("nothing to log in")
    );
}

#[tokio::test]
async fn a_device_waits_for_its_user() {
    let polls = Arc::new(AtomicUsize::new(0));
    let outcome = Arc::new(Mutex::new("ok"));
    let (counted, wanted) = (polls.clone(), outcome.clone());
    let server = ScriptedServer::with(move |r| {
        if r.path == "/device" {
            return Reply::json(
                200,
                &json!({"device_code": "SENTINEL-D", "user_code": "AB-CD", "verification_uri": "https://v.test/", "interval": 1, "expires_in": 60}),
            );
        }
        match (counted.fetch_add(1, Ordering::SeqCst), *wanted.lock().unwrap()) {
            (0, _) => Reply::json(400, &json!({"error": "authorization_pending"})),
            (_, "ok") => token_reply("t", json!({})),
            (_, error) => Reply::json(400, &json!({"error": error})),
        }
    });
    let p = place();
    let (token_url, device_url) = (format!("{}/token", base(&server)), format!("{}/device", base(&server)));
    let more = [
        ("client_id", "c"),
        ("client_auth", "none"),
        ("grant", "device_code"),
        ("token_url", token_url.as_str()),
        ("device_url", device_url.as_str()),
    ];
    p.set("api", &fields("oauth2", "https://h.test", &more), "");
    let shown = Mutex::new(Vec::new());
    let show = |prompt: Prompt| shown.lock().unwrap().push(prompt);
    p.auth.login("api", Duration::from_secs(30), &show).await.unwrap();
    let device = Prompt::Device {
        url: "https://v.test/".to_owned(),
        complete: None,
        code: "AB-CD".to_owned(),
    };
    assert_eq!(*shown.lock().unwrap(), [device]);
    assert_eq!(form(&server.requests()[1])["device_code"], "SENTINEL-D");
    let (sent, _) = p.auth.try_out("api").await.unwrap();
    assert_eq!(sent[0].masked, "Bearer ••••••••");
    for (error, words) in [
        ("access_denied", "it was refused"),
        ("expired_token", "the code has expired"),
        ("odd", "odd"),
    ] {
        *outcome.lock().unwrap() = error;
        polls.store(1, Ordering::SeqCst);
        let error = p.auth.login("api", Duration::from_secs(30), &|_| {}).await.unwrap_err();
        assert!(
            error.to_string().contains(words) && !format!("{error:?}").contains("SENTINEL"),
            "{error}"
        );
    }
}

#[tokio::test]
async fn a_service_account_signs_for_its_tokens() {
    let server = ScriptedServer::always(token_reply("SENTINEL-token-google", json!({})));
    let p = place();
    let mut google = fields("google_service_account", "https://storage.test", &[]);
    google.scopes = vec!["https://g.test/auth/devstorage".to_owned()];
    let key = json!({
        "type": "service_account",
        "client_email": "a@p.test",
        "private_key_id": "k1",
        "private_key": String::from_utf8(crate::support::fixture("auth/rsa.pem")).unwrap(),
        "token_uri": format!("{}/token", base(&server)),
    });
    p.set("api", &google, &key.to_string());
    let (sent, token) = p.auth.try_out("api").await.unwrap();
    assert_eq!(
        (sent[0].masked.as_str(), token.unwrap().refreshable),
        ("Bearer ••••••••ogle", false)
    );
    let asked = form(&server.requests()[0]);
    assert_eq!(asked["grant_type"], "urn:ietf:params:oauth:grant-type:jwt-bearer");
    let part = |n: usize| -> Value {
        let part = asked["assertion"].split('.').nth(n).unwrap();
        serde_json::from_slice(&base64::engine::general_purpose::URL_SAFE_NO_PAD.decode(part).unwrap()).unwrap()
    };
    assert_eq!(
        (part(0)["alg"].as_str(), part(0)["kid"].as_str()),
        (Some("RS256"), Some("k1"))
    );
    assert_eq!(part(1)["aud"], key["token_uri"]);
    assert_eq!(part(1)["scope"], "https://g.test/auth/devstorage");
}

#[tokio::test]
async fn an_issuer_is_who_it_says() {
    let stated: Arc<Mutex<Value>> = Arc::default();
    let document = stated.clone();
    let server = ScriptedServer::with(move |r| match r.path.as_str() {
        "/.well-known/openid-configuration" => Reply::json(200, &document.lock().unwrap()),
        "/jwks" => Reply::json(200, &json!({"keys": []})),
        _ => token_reply("t", json!({"id_token": "eyJhbGciOiJub25lIn0.eyJzdWIiOiJldmUifQ."})),
    });
    let issuer = base(&server);
    let p = place();
    p.set(
        "api",
        &fields(
            "oidc",
            "https://h.test",
            &[("client_id", "c"), ("client_auth", "none"), ("issuer", &issuer)],
        ),
        "",
    );
    let failing = async || {
        p.auth
            .login("api", Duration::from_secs(5), &|_| {})
            .await
            .unwrap_err()
            .to_string()
    };
    *stated.lock().unwrap() = json!({"issuer": "https://evil.test"});
    assert!(failing().await.contains("is of the issuer 'https://evil.test'"));
    *stated.lock().unwrap() = json!({"issuer": issuer, "token_endpoint": "http://evil.test/token"});
    assert!(failing().await.contains("token_endpoint that can't be used"));
    *stated.lock().unwrap() = json!({"issuer": issuer});
    assert!(failing().await.contains("has no authorization_endpoint"));
    // The document is believed for a while, so this is another user's process.
    let p = Place {
        auth: open(p.home.path()),
        home: p.home,
    };
    *stated.lock().unwrap() = json!({
        "issuer": issuer,
        "token_endpoint": format!("{issuer}/token"),
        "authorization_endpoint": "https://a.test/",
        "jwks_uri": format!("{issuer}/jwks"),
    });
    let (outcome, asked, _) = log_in(&p.auth, |_| {}).await;
    assert!(asked["nonce"].len() > 20 && asked["scope"] == "openid");
    let error = outcome.unwrap_err().to_string();
    assert!(error.contains("the ID token is not accepted"), "{error}");
    assert!(p.auth.list().unwrap()[0].token.is_none());
}
