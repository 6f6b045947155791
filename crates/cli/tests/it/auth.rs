//! `decanus auth`: what it keeps, shows and sends.

use decanus_testkit::{Reply, Sandbox, ScriptedServer};
use serde_json::json;

const KEY: &str = "SENTINEL-0123456789-tail";

fn set(s: &Sandbox, args: &[&str], secret: &str) -> decanus_testkit::Outcome {
    s.run_with(
        crate::support::BIN,
        &[&["auth", "set"], args].concat(),
        secret.as_bytes(),
    )
}

#[test]
fn a_credential_is_kept_shown_masked_used_and_removed() {
    let server = ScriptedServer::with(|r| Reply::new(200, "text/plain", format!("{} {:?}", r.path, r.headers)));
    let s = Sandbox::new()
        .env("DECANUS_ALLOW_PRIVATE_URLS", "127.0.0.1")
        .env("DECANUS_LOG", "trace");
    let base = format!("http://{}", server.address());
    let api = format!("{base}/v1");
    let mut all = Vec::new();
    all.push(
        set(
            &s,
            &[
                "weather", "--scheme", "api_key", "--in", "query", "--name", "appid", "--url", &api,
            ],
            KEY,
        )
        .exits(0),
    );
    let listed = crate::support::run(&s, &["auth", "list"]).exits(0);
    assert!(
        listed.stdout.contains("weather  api_key") && listed.stdout.contains("••••••••tail"),
        "{listed}"
    );
    all.push(listed);
    let json = crate::support::run(&s, &["auth", "list", "--json"]).exits(0);
    assert_eq!(
        json.json()[0]["secret"],
        json!({"stored": true, "masked": "••••••••tail"})
    );
    all.push(json);
    let tested = crate::support::run(&s, &["auth", "test", "weather"]).exits(0);
    assert!(tested.stdout.contains("query appid: ••••••••tail"), "{tested}");
    all.push(tested);
    for path in ["/v1/now?q=x", "/v10"] {
        let url = format!("url={base}{path}");
        let called = crate::support::run(&s, &["tool", "call", "http_request", &url, "--json"]).exits(0);
        all.push(called);
    }
    let page = format!("url={base}/v1/page");
    all.push(crate::support::run(&s, &["tool", "call", "read_webpage", &page]).exits(0));
    let paths: Vec<String> = server.requests().into_iter().map(|r| r.path).collect();
    assert_eq!(
        paths,
        [
            format!("/v1/now?q=x&appid={KEY}"),
            "/v10".to_owned(),
            "/v1/page".to_owned()
        ]
    );
    // A new secret for the same credential.
    all.push(set(&s, &["weather"], "another-SENTINEL-9876\n").exits(0));
    assert!(
        crate::support::run(&s, &["auth", "list"])
            .stdout
            .contains("••••••••9876")
    );
    all.push(crate::support::run(&s, &["auth", "remove", "weather"]).exits(0));
    let gone = crate::support::run(&s, &["auth", "test", "weather"]).exits(2);
    assert!(gone.stderr.contains("there is no credential 'weather'"), "{gone}");
    for outcome in all {
        assert!(!format!("{outcome}").contains("SENTINEL"), "{outcome}");
    }
}

#[test]
fn a_request_whose_credential_is_missing_is_not_sent() {
    let server = ScriptedServer::always(Reply::new(200, "text/plain", "in"));
    let s = Sandbox::new().env("DECANUS_ALLOW_PRIVATE_URLS", "127.0.0.1");
    let base = format!("http://{}", server.address());
    set(
        &s,
        &["api", "--scheme", "bearer", "--url", &base, "--env", "LAB_TOKEN_UNSET"],
        "",
    )
    .exits(0);
    let url = format!("url={base}/x");
    let called = crate::support::run(&s, &["tool", "call", "http_request", &url, "--json"]).exits(4);
    let message = called.json()["error_message"].to_string();
    assert!(
        message.contains("was not sent") && message.contains("LAB_TOKEN_UNSET"),
        "{called}"
    );
    assert!(server.requests().is_empty());
    // A project's own files map nothing.
    s.write("auth/evil.yaml", format!("scheme: bearer\nurls: [{base}]\nenv: HOME\n"));
    s.write(
        ".decanus/auth/evil.yaml",
        format!("scheme: bearer\nurls: [{base}]\nenv: HOME\n"),
    );
    crate::support::run(&s, &["auth", "remove", "api"]).exits(0);
    crate::support::run(&s, &["tool", "call", "http_request", &url]).exits(0);
    assert!(server.requests()[0].header("authorization").is_none());
}

#[test]
fn bad_input_names_what_is_wrong() {
    let s = Sandbox::new();
    for (args, words) in [
        (
            &["a", "--scheme", "bearr", "--url", "https://h.test"][..],
            "scheme: 'bearr' is none of api_key, bearer",
        ),
        (&["a", "--scheme", "bearer", "--url", "h.test"], "'h.test' is no URL"),
        (&["a/b", "--scheme", "bearer", "--url", "https://h.test"], "NAME"),
        (&["a", "--scheme", "bearer"], "--url"),
        (
            &["a", "--scheme", "basic", "--url", "https://h.test"],
            "username: it is needed",
        ),
        (
            &["a", "--scheme", "bearer", "--url", "https://h.test", "--username", "u"],
            "username: the scheme bearer has no",
        ),
        (&["a"], "there is no credential 'a'"),
        (
            &[
                "a",
                "--scheme",
                "bearer",
                "--url",
                "https://h.test",
                "--file",
                "none.txt",
            ],
            "none.txt",
        ),
    ] {
        let outcome = set(&s, args, "x").exits(2);
        assert!(outcome.stderr.contains(words), "{outcome}");
    }
    let empty = set(&s, &["a", "--scheme", "bearer", "--url", "https://h.test"], "\n").exits(2);
    assert!(empty.stderr.contains("no token was given"), "{empty}");
    // Nothing was kept.
    assert_eq!(
        crate::support::run(&s, &["auth", "list", "--json"]).exits(0).json(),
        json!([])
    );
    let oauth = [
        "o",
        "--scheme",
        "oidc",
        "--url",
        "https://h.test",
        "--client-id",
        "c",
        "--client-auth",
        "none",
        "--issuer",
        "https://i.test",
    ];
    let kept = set(&s, &oauth, "").exits(0);
    assert!(kept.stderr.contains("next: decanus auth login o"), "{kept}");
    let login = crate::support::run(&s, &["auth", "login", "o"]).exits(2);
    assert!(login.stderr.contains("needs a terminal"), "{login}");
}
