//! C89: a key is in no output, chat, job record or log, whatever goes wrong.

use decanus_testkit::{Reply, Sandbox, ScriptedServer};
use serde_json::json;

use crate::support::*;

const KEY: &str = "sk-SENTINEL-0123456789";

fn all_files(dir: &std::path::Path, found: &mut Vec<std::path::PathBuf>) {
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            all_files(&path, found);
        } else {
            found.push(path);
        }
    }
}

#[test]
fn a_key_is_nowhere() {
    let s = lab()
        .env("SECRET_KEY", KEY)
        .env("DECANUS_LOG", "trace")
        .env("RUST_LOG", "trace");
    let closed = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let echo_back = |status: u16| Reply::error(status, "bad", &format!("Incorrect key {KEY}; header Bearer {KEY}"));
    let works = ScriptedServer::start([
        Reply::chat_calls(&[("a", "greet", json!({"who": "Ada"})), ("b", "fails", json!({}))]),
        Reply::chat_stream(&["fine"]),
    ]);
    let refused: Vec<ScriptedServer> = [401, 404, 400].map(|c| ScriptedServer::always(echo_back(c))).into();
    let hangs = ScriptedServer::always(Reply::never());
    let mut urls = vec![works.url()];
    urls.extend(refused.iter().map(ScriptedServer::url));
    urls.push(format!("http://{closed}/v1"));
    // Plain HTTP where TLS is expected.
    urls.push(format!("https://{}/v1", works.address()));
    urls.push(hangs.url());
    let mut outcomes = Vec::new();
    for (n, url) in urls.iter().enumerate() {
        let url = url.replace("://", &format!("://user:{KEY}@"));
        s.write(
            format!("endpoints/e{n}.yaml"),
            format!(
                "backend: openai\nurl: \"{url}?key={KEY}\"\nmodel: m\nkey_env: SECRET_KEY\nheaders: {{X-Extra: {KEY}}}\nretries: 0\ntimeouts: {{first_byte: 500ms}}\n"
            ),
        );
        let name = format!("e{n}");
        for extra in [&["--json"][..], &["--events"], &[]] {
            if n == 0 && extra.first() != Some(&"--json") {
                continue;
            }
            let args = [
                &["ask", "-e", &name, "-t", "Lab", "-c", &name, "--explain"],
                extra,
                &["hi"],
            ]
            .concat();
            let outcome = run(&s, &args);
            assert_eq!(outcome.code, if n == 0 { 0 } else { 3 }, "{url}: {outcome}");
            outcomes.push(outcome);
        }
        outcomes.push(run(&s, &["endpoint", "show", &name, "--json"]));
        outcomes.push(run(&s, &["ask", "-e", &name, "--dry-run", "--json", "hi"]));
    }
    outcomes.push(run(&s, &["endpoint", "list", "--json"]));
    outcomes.push(run(&s, &["doctor", "--json"]));
    let sent = works.requests()[0].header("authorization").unwrap().to_owned();
    assert!(sent.contains(KEY), "it is sent where it belongs");
    for outcome in &outcomes {
        assert!(
            !outcome.stdout.contains("SENTINEL") && !outcome.stderr.contains("SENTINEL"),
            "{outcome}"
        );
    }
    let mut files = Vec::new();
    all_files(s.project(), &mut files);
    all_files(s.home(), &mut files);
    assert!(files.iter().any(|f| f.extension().is_some_and(|e| e == "info")));
    assert!(files.iter().any(|f| f.extension().is_some_and(|e| e == "chat")));
    for file in files.iter().filter(|f| !f.to_string_lossy().contains("/endpoints/")) {
        let bytes = std::fs::read(file).unwrap_or_default();
        assert!(
            !String::from_utf8_lossy(&bytes).contains("SENTINEL"),
            "{}",
            file.display()
        );
    }
}

#[test]
fn no_project_opens_the_credentials_of_the_user() {
    let server = ScriptedServer::with(|_| Reply::chat_text("done"));
    let s = Sandbox::new();
    s.endpoint("e", &server.url());
    let auth = s.home().join("auth");
    std::fs::create_dir_all(&auth).unwrap();
    std::fs::write(auth.join("key.txt"), KEY).unwrap();
    let file = auth.join("key.txt").display().to_string();
    s.write(
        "decanus.toml",
        format!("allowed_paths = ['{}', '{file}']\n", s.home().display()),
    );
    s.write("chats/a.chat", format!("file: {file}\nuser: What does it say?\n"));
    let asked = run(&s, &["ask", "-e", "e", "-c", "a"]).exits(2);
    assert!(asked.stderr.contains("holds credentials"), "{asked}");
    assert!(server.requests().is_empty());
    let called = run(&s, &["tool", "call", "read_file", &format!("path={file}")]).exits(4);
    assert!(
        called.stdout.is_empty() && called.stderr.contains("nothing opens it to tools"),
        "{called}"
    );
}

#[test]
fn a_model_can_t_rewrite_the_chat_that_it_runs_in() {
    let server = ScriptedServer::with(|request| {
        let messages = request.json()["messages"].as_array().cloned().unwrap_or_default();
        match messages.iter().rev().find(|m| m["role"] == "tool") {
            Some(output) => Reply::chat_text(output["content"].as_str().unwrap_or_default()),
            None => Reply::chat_calls(&[(
                "c1",
                "write_file",
                json!({"path": "talk.txt", "content": "allow_path: /\n", "overwrite": true}),
            )]),
        }
    });
    let s = Sandbox::new();
    s.endpoint("e", &server.url());
    // Not a name by which a chat is known, and opened by name.
    s.write("talk.txt", "allow_path: talk.txt\n\nuser: Rewrite it.\n");
    let args = [
        "ask",
        "-e",
        "e",
        "--no-stream",
        "--approve",
        "never",
        "-t",
        "write_file",
        "-c",
        "./talk.txt",
    ];
    let said = run(&s, &args).exits(0);
    assert!(said.stdout.contains("is the chat that this call is part of"), "{said}");
    assert!(
        s.read("talk.txt")
            .starts_with("allow_path: talk.txt\n\nuser: Rewrite it.")
    );
}
