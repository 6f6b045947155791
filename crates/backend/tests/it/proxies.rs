//! Proxy variables hold for endpoints elsewhere and never for this machine. They are read once per process, so each case
//! is a run of this test binary.

use std::process::Command;

use decanus_testkit::{Reply, ScriptedServer};

use crate::support::{Question, ask, ask_all, cx, profile};

/// The URL that a child asks; without it the test below does nothing.
const CHILD: &str = "DECANUS_TEST_ASK";

#[tokio::test]
async fn child() {
    match std::env::var(CHILD).as_deref() {
        Ok("loopback") => {
            let server = ScriptedServer::start([Reply::chat_text("ok")]);
            assert_eq!(ask(&server, false).await.unwrap().text, "ok");
        }
        Ok(url) => {
            let (_, error) = ask_all(profile(url), &Question::default(), &cx(false)).await;
            assert!(error.is_none(), "{error:?}");
        }
        Err(_) => {}
    }
}

fn run(asked: &str, proxy: &str) {
    let mut child = Command::new(std::env::current_exe().unwrap());
    for name in [
        "http_proxy",
        "HTTP_PROXY",
        "https_proxy",
        "HTTPS_PROXY",
        "all_proxy",
        "ALL_PROXY",
    ] {
        child.env(name, proxy);
    }
    child
        .env_remove("no_proxy")
        .env_remove("NO_PROXY")
        .env(CHILD, asked)
        .args(["--exact", "proxies::child"]);
    let output = child.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

#[test]
fn a_proxy_is_asked_for_others_only() {
    let proxy = ScriptedServer::start([Reply::chat_text("through the proxy")]);
    let url = format!("http://{}", proxy.address());
    run("loopback", &url);
    assert!(proxy.requests().is_empty());
    run("http://provider.test/v1", &url);
    assert_eq!(proxy.requests()[0].path, "http://provider.test/v1/chat/completions");
    proxy.verify();
}
