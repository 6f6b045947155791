//! The kit itself: what it says when something is wrong, and what it keeps away.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use decanus_testkit::{Reply, Sandbox, ScriptedServer};
use serde_json::json;

fn post(server: &ScriptedServer, body: &str) -> String {
    let mut stream = TcpStream::connect(server.address()).unwrap();
    let head = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nConnection: close\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all((head + body).as_bytes()).unwrap();
    stream.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8(answer).unwrap()
}

#[test]
fn requests_are_checked_and_remembered() {
    let mut server = ScriptedServer::start([
        Reply::chat_text("one").expecting_json(json!({"model": "m"})),
        Reply::chat_text("two").expecting_json(json!({"messages": [{"role": "user"}]})),
    ]);
    assert!(post(&server, r#"{"model":"m","messages":[]}"#).contains("one"));
    assert!(server.faults().is_empty());
    assert!(post(&server, r#"{"model":"m","messages":[{"role":"system"}]}"#).contains("two"));
    assert_eq!(
        server.faults(),
        [r#"request 2: body.messages[0].role is "system", expected "user""#]
    );
    assert!(post(&server, "{}").starts_with("HTTP/1.1 500"));
    assert!(server.faults()[1].contains("the script is over"));
    let requests = server.requests();
    assert_eq!(requests.len(), 3);
    assert_eq!(
        (requests[0].path.as_str(), requests[0].header("host")),
        ("/v1/chat/completions", Some("x"))
    );
}

#[test]
#[should_panic(expected = "1 answers of the script were not asked for")]
fn a_script_is_to_be_used_up() {
    ScriptedServer::start([Reply::chat_text("one")]).verify();
}

#[test]
fn a_sandbox_is_apart() {
    let sandbox = Sandbox::new().env("MINE", "1").timeout(Duration::from_millis(300));
    sandbox
        .write("a/b.txt", "text")
        .endpoint("lab", "http://127.0.0.1:1/v1");
    let shell = |script: &str| sandbox.run("/bin/sh", &["-c", script]);
    let outcome = shell("cat a/b.txt; pwd; echo $DECANUS_HOME $MINE >&2; exit 7");
    assert_eq!((outcome.code, outcome.timed_out), (7, false));
    assert_eq!(sandbox.normalise(&outcome.stdout), "text[PROJECT]\n");
    assert_eq!(sandbox.normalise(&outcome.stderr), "[HOME] 1\n");
    assert_eq!(sandbox.run_with("/bin/cat", &[], b"in").stdout, "in");
    // A grandchild that holds the pipes does not hold the test.
    let outcome = shell("sleep 60 & sleep 60");
    assert!(
        outcome.timed_out && outcome.code == 137 && outcome.time < Duration::from_secs(5),
        "{outcome}"
    );
    let outcome = shell("sleep 60 & echo done");
    assert!(outcome.code == 0 && outcome.stdout == "done\n", "{outcome}");
    assert!(sandbox.read("endpoints/lab.yaml").contains("127.0.0.1:1"));
}
