//! Every provider from the command line: a question with a tool, a stream, a chat that is continued.

use decanus_testkit::{Reply, Sandbox, ScriptedServer};
use serde_json::{Value, json};

use crate::support::*;

/// A provider: how its endpoint is written, and what its server answers: a call of `echo`, then a text.
struct Provider {
    name: &'static str,
    path: &'static str,
    call: Reply,
    text: Reply,
}

fn sse(events: &[(&str, Value)]) -> Reply {
    let lines: String = events
        .iter()
        .map(|(name, data)| match *name {
            "" => format!("data: {data}\n\n"),
            name => format!("event: {name}\ndata: {data}\n\n"),
        })
        .collect();
    Reply::sse(lines)
}

fn providers() -> Vec<Provider> {
    let arguments = "{\"message\":\"hi\"}";
    let responses = |item: Value| {
        let response = json!({"id": "r1", "status": "completed", "output": [item],
            "usage": {"input_tokens": 7, "output_tokens": 2, "total_tokens": 9}});
        sse(&[(
            "response.completed",
            json!({"type": "response.completed", "response": response}),
        )])
    };
    let messages = |block: Value, delta: Value, reason: &str| {
        sse(&[
            (
                "message_start",
                json!({"type": "message_start", "message": {"id": "m", "usage": {"input_tokens": 7, "output_tokens": 0}}}),
            ),
            (
                "content_block_start",
                json!({"type": "content_block_start", "index": 0, "content_block": block}),
            ),
            (
                "content_block_delta",
                json!({"type": "content_block_delta", "index": 0, "delta": delta}),
            ),
            ("content_block_stop", json!({"type": "content_block_stop", "index": 0})),
            (
                "message_delta",
                json!({"type": "message_delta", "delta": {"stop_reason": reason}, "usage": {"output_tokens": 2}}),
            ),
            ("message_stop", json!({"type": "message_stop"})),
        ])
    };
    let ollama = |message: Value| {
        let line =
            json!({"message": message, "done": true, "done_reason": "stop", "prompt_eval_count": 7, "eval_count": 2});
        Reply::new(200, "application/x-ndjson", format!("{line}\n"))
    };
    let gemini = |part: Value| {
        sse(&[(
            "",
            json!({"candidates": [{"content": {"role": "model", "parts": [part]}, "finishReason": "STOP"}],
            "usageMetadata": {"promptTokenCount": 7, "candidatesTokenCount": 2, "totalTokenCount": 9}}),
        )])
    };
    let chat_call = || Reply::chat_call_stream(&[("c1", "echo", json!({"message": "hi"}))]);
    let item_call =
        json!({"type": "function_call", "id": "fc", "call_id": "c1", "name": "echo", "arguments": arguments});
    let item_text =
        json!({"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "It said hi."}]});
    vec![
        Provider {
            name: "openai",
            path: "/chat/completions",
            call: chat_call(),
            text: Reply::chat_stream(&["It said hi."]),
        },
        Provider {
            name: "openwebui",
            path: "/api/chat/completions",
            call: chat_call(),
            text: Reply::chat_stream(&["It said hi."]),
        },
        Provider {
            name: "responses",
            path: "/responses",
            call: responses(item_call.clone()),
            text: responses(item_text.clone()),
        },
        Provider {
            name: "vllm",
            path: "/responses",
            call: responses(item_call),
            text: responses(item_text),
        },
        Provider {
            name: "anthropic",
            path: "/messages",
            call: messages(
                json!({"type": "tool_use", "id": "c1", "name": "echo", "input": {}}),
                json!({"type": "input_json_delta", "partial_json": arguments}),
                "tool_use",
            ),
            text: messages(
                json!({"type": "text", "text": ""}),
                json!({"type": "text_delta", "text": "It said hi."}),
                "end_turn",
            ),
        },
        Provider {
            name: "ollama",
            path: "/api/chat",
            call: ollama(
                json!({"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "echo", "arguments": {"message": "hi"}}}]}),
            ),
            text: ollama(json!({"role": "assistant", "content": "It said hi."})),
        },
        Provider {
            name: "gemini",
            path: "/models/m:streamGenerateContent",
            call: gemini(json!({"functionCall": {"name": "echo", "args": {"message": "hi"}}})),
            text: gemini(json!({"text": "It said hi."})),
        },
    ]
}

fn endpoint(s: &Sandbox, backend: &str, server: &ScriptedServer) {
    // Open WebUI and Ollama have no /v1 in their URLs.
    let url = server.url().trim_end_matches("/v1").to_owned();
    s.write(
        "endpoints/p.yaml",
        format!("backend: {backend}\nurl: {url}\nmodel: m\nkey: sk-12345\n"),
    );
}

#[test]
fn the_same_conversation_with_every_provider() {
    for provider in providers() {
        let s = Sandbox::new();
        let name = provider.name;
        let server = ScriptedServer::start([provider.call, provider.text]);
        endpoint(&s, name, &server);
        let asked = run(&s, &["ask", "-e", "p", "-c", "a", "-t", "echo", "--json", "Echo hi"]).exits(0);
        let object = asked.json();
        assert_eq!(object["answer"], "It said hi.", "{name}: {asked}");
        assert_eq!(
            object["usage"]["pt"].as_u64(),
            Some(if matches!(name, "openai" | "openwebui") { 20 } else { 14 }),
            "{name}"
        );
        assert!(
            server.requests()[0].path.contains(provider.path),
            "{name}: {}",
            server.requests()[0].path
        );
        let key = |r: &decanus_testkit::Recorded| {
            ["authorization", "x-api-key", "x-goog-api-key"]
                .iter()
                .any(|h| r.header(h).is_some_and(|v| v.contains("sk-12345")))
        };
        assert!(server.requests().iter().all(key), "{name}");
        assert!(server.requests()[1].text().contains("hi"), "{name}");
        let roles: Vec<String> = chat(&s, "chats/a.chat").into_iter().map(|(role, _)| role).collect();
        let expected = ["user", "function_call", "function_call_output", "assistant"];
        let seen: Vec<&String> = roles.iter().filter(|r| *r != "provider").collect();
        assert_eq!(seen, expected, "{name}");
    }
}

/// Parts that only one provider understands stay in the chat, and go back to that provider alone.
#[test]
fn opaque_parts_go_back_to_their_provider_alone() {
    let s = Sandbox::new();
    let thinking = json!({"type": "thinking", "thinking": "hm", "signature": "SIGNED"});
    let answer = json!({"id": "m", "content": [thinking, {"type": "tool_use", "id": "c1", "name": "echo", "input": {"message": "x"}}],
        "stop_reason": "tool_use", "usage": {"input_tokens": 1, "output_tokens": 1}});
    let last = json!({"id": "m", "content": [{"type": "text", "text": "done"}], "stop_reason": "end_turn",
        "usage": {"input_tokens": 1, "output_tokens": 1}});
    let server = ScriptedServer::start([
        Reply::json(200, &answer),
        Reply::json(200, &last),
        Reply::json(200, &last),
    ]);
    endpoint(&s, "anthropic", &server);
    run(&s, &["ask", "-e", "p", "-c", "a", "-t", "echo", "--no-stream", "q"]).exits(0);
    assert!(server.requests()[1].text().contains("\"signature\":\"SIGNED\""));
    let stored = chat(&s, "chats/a.chat");
    assert_eq!(stored[1].0, "provider");
    assert!(stored[1].1.contains("SIGNED"));
    run(&s, &["ask", "-e", "p", "-c", "a", "-t", "echo", "--no-stream", "again"]).exits(0);
    assert!(server.requests()[2].text().contains("SIGNED"));
    let other = ScriptedServer::start([Reply::chat_text("ok")]);
    let asked = ask(&s, &other, &["-c", "a", "-t", "echo", "and you?"]).exits(0);
    assert!(!other.requests()[0].text().contains("SIGNED"), "{asked}");
    for args in [
        &["chat", "check", "chats/a.chat"][..],
        &["chat", "check", "chats/a.chat", "--json"],
    ] {
        assert!(!run(&s, args).exits(0).stdout.contains("SIGNED"), "{args:?}");
    }
    let shown = run(&s, &["prov", "a"]).exits(0);
    assert!(!shown.stdout.contains("SIGNED"));
    assert!(run(&s, &["prov", "a", "--evidence"]).exits(0).stdout.contains("SIGNED"));
}

#[test]
fn pictures_and_documents_are_sent() {
    let s = Sandbox::new();
    s.write("pic.png", [b"\x89PNG".as_slice(), b"rest"].concat());
    s.write("doc.pdf", b"%PDF-1.4");
    s.write(
        "chats/a.chat",
        "image: ../pic.png\npdf: ../doc.pdf\nuser: What is this?\n",
    );
    let server = ScriptedServer::start([Reply::chat_text("ok")]);
    ask(&s, &server, &["-c", "a"]).exits(0);
    let body = server.requests()[0].text();
    assert!(body.contains("data:image/png;base64,iVBOR3Jlc3Q="), "{body}");
    assert!(body.contains("data:application/pdf;base64,JVBERi0xLjQ="), "{body}");
    assert!(body.contains(r#""filename":"doc.pdf""#), "{body}");
    let checked = run(&s, &["chat", "check", "chats/a.chat"]).exits(0);
    assert!(
        checked.stdout.contains("data:image/png;base64,… (12 characters)"),
        "{checked}"
    );
    for (line, text) in [
        ("image: ../none.png", "File not found"),
        ("image: ../doc.pdf", "application/pdf"),
        ("pdf: a.chat", "no PNG"),
    ] {
        s.write("chats/b.chat", format!("{line}\nuser: x\n"));
        let failed = ask(&s, &server, &["-c", "b"]).exits(2);
        assert!(
            failed.stderr.contains("chats/b.chat:1: ") && failed.stderr.contains(text),
            "{line}: {failed}"
        );
    }
}

#[test]
fn the_key_of_responses_makes_it_the_default() {
    let server = ScriptedServer::start([Reply::json(
        200,
        &json!({"id": "r", "status": "completed", "output": [{"type": "message", "content": [{"type": "output_text", "text": "hello"}]}]}),
    )]);
    let s = Sandbox::new()
        .env("OPENAI_API_KEY", "sk-1")
        .env("OPENAI_URL", &server.url());
    assert_eq!(run(&s, &["ask", "--no-stream", "hi"]).exits(0).stdout, "hello\n");
    assert!(server.requests()[0].path.ends_with("/responses"));
    assert_eq!(server.requests()[0].header("authorization"), Some("Bearer sk-1"));
}

#[test]
fn embeddings_come_in_order() {
    let server = ScriptedServer::start([Reply::json(
        200,
        &json!({"model": "m", "data": [{"index": 1, "embedding": [0.5]}, {"index": 0, "embedding": [0.25]}]}),
    )]);
    let s = Sandbox::new();
    s.endpoint("e", &server.url());
    assert_eq!(
        run(&s, &["endpoint", "embed", "e", "a", "b"]).exits(0).stdout,
        "[0.25]\n[0.5]\n"
    );
    assert_eq!(server.requests()[0].json()["input"], json!(["a", "b"]));
    s.write("endpoints/p.yaml", "backend: anthropic\nmodel: m\nkey: k\n");
    let none = run(&s, &["endpoint", "embed", "p", "a"]).exits(2);
    assert!(none.stderr.contains("has no embeddings"), "{none}");
}

#[test]
fn pictures_are_written_to_files_and_never_over_others() {
    let picture = || {
        Reply::json(
            200,
            &json!({"data": [{"b64_json": "iVBORw0KGgo="}, {"b64_json": "R0lGODlh"}]}),
        )
    };
    let server = ScriptedServer::start([picture(), picture()]);
    let s = Sandbox::new();
    s.endpoint("e", &server.url());
    let first = run(&s, &["endpoint", "image", "e", "a cat", "-o", "size=1024x1024"]).exits(0);
    let names: Vec<&str> = first.stdout.lines().filter_map(|l| l.rsplit('/').next()).collect();
    assert_eq!(names, ["image.png", "image.gif"]);
    assert_eq!(std::fs::read(s.path("image.png")).unwrap(), b"\x89PNG\r\n\x1a\n");
    let request = &server.requests()[0];
    assert!(request.path.ends_with("/images/generations"), "{}", request.path);
    assert_eq!(
        (&request.json()["prompt"], &request.json()["size"]),
        (&json!("a cat"), &json!("1024x1024"))
    );
    run(&s, &["endpoint", "image", "e", "a cat"]).exits(0);
    assert!(s.path("image-2.png").exists() && s.path("image-2.gif").exists());

    s.write("endpoints/p.yaml", "backend: anthropic\nmodel: m\nkey: k\n");
    let none = run(&s, &["endpoint", "image", "p", "a cat"]).exits(2);
    assert!(none.stderr.contains("makes no pictures"), "{none}");
    let server = ScriptedServer::start([Reply::json(200, &json!({"data": []}))]);
    s.endpoint("e", &server.url());
    let nothing = run(&s, &["endpoint", "image", "e", "a cat", "-f", "x.png"]).exits(3);
    assert!(nothing.stderr.contains("there is no picture in it"), "{nothing}");
    assert!(!s.path("x.png").exists());
}

#[test]
fn a_turn_in_which_the_provider_pauses_goes_on() {
    let message = |text: &str, reason: &str| {
        let search =
            json!({"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "x"}});
        let mut content = vec![json!({"type": "text", "text": text})];
        if reason == "pause_turn" {
            content.push(search);
        }
        Reply::json(
            200,
            &json!({"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": content,
                "stop_reason": reason, "usage": {"input_tokens": 3, "output_tokens": 2}}),
        )
    };
    let server = ScriptedServer::start([message("Let me look. ", "pause_turn"), message("It is 42.", "end_turn")]);
    let s = Sandbox::new()
        .env("ANTHROPIC_API_KEY", "k")
        .env("ANTHROPIC_URL", &server.url());
    let asked = run(
        &s,
        &[
            "ask",
            "-e",
            "anthropic",
            "--no-stream",
            "--json",
            "-c",
            "a",
            "What is it?",
        ],
    )
    .exits(0);
    assert_eq!(asked.json()["answer"], "Let me look. It is 42.");
    assert_eq!(asked.json()["rounds"], 2);
    let sent = server.requests()[1].json();
    let last = sent["messages"].as_array().unwrap().last().unwrap();
    assert_eq!(last["role"], "assistant");
    assert_eq!(last["content"][1]["type"], "server_tool_use", "{sent}");
}

#[test]
fn tokens_are_counted_by_the_provider_or_estimated() {
    let server = ScriptedServer::start([Reply::json(200, &json!({"input_tokens": 14}))]);
    let s = Sandbox::new()
        .env("ANTHROPIC_API_KEY", "k")
        .env("ANTHROPIC_URL", &server.url());
    let count = run(&s, &["ask", "-e", "anthropic", "--count-tokens", "How long is this?"]).exits(0);
    assert_eq!(count.stdout, "14 tokens\n");
    let sent = &server.requests()[0];
    assert!(sent.path.ends_with("/messages/count_tokens"), "{}", sent.path);
    assert!(sent.json().get("max_tokens").is_none());
    // A server that imitates the provider and does not count.
    let other = ScriptedServer::start([Reply::error(404, "not_found", "no such path")]);
    let s = s.env("ANTHROPIC_URL", &other.url());
    let count = run(&s, &["ask", "-e", "anthropic", "--count-tokens", "How long is this?"]).exits(0);
    assert!(count.stdout.starts_with("about "), "{}", count.stdout);
    assert!(count.stderr.contains("does not count tokens"), "{}", count.stderr);
    s.endpoint("e", &server.url());
    let count = run(&s, &["ask", "-e", "e", "--count-tokens", "--json", "How long is this?"]).exits(0);
    assert_eq!(count.json()["estimate"], true);
    assert!(count.json()["tokens"].as_u64().unwrap() > 4);
}

#[test]
fn what_a_model_costs_is_known_or_said_in_a_table() {
    let answer = json!({"choices": [{"message": {"content": "hello"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 1000, "completion_tokens": 100, "total_tokens": 1100}});
    let server = ScriptedServer::always(Reply::json(200, &answer));
    let s = Sandbox::new();
    s.endpoint("e", &server.url());
    let ask = ["ask", "-e", "e", "--no-stream", "--no-cache", "--json", "hi"];
    assert_eq!(run(&s, &ask).exits(0).json()["usage"]["cost"], json!(null));
    let table = |input: &str| {
        let columns = "provider\tmodel\tabove\tinput\toutput\tcache_read\tcache_write";
        s.write(
            "prices.tsv",
            format!("{columns}\n{}\tscripted\t0\t{input}\t20\t\t\n", server.address()),
        );
    };
    table("3");
    let cost = run(&s, &ask).exits(0).json()["usage"]["cost"].as_f64().unwrap();
    assert!((cost - 0.005).abs() < 1e-9, "{cost}");
    table("three");
    let wrong = run(&s, &ask).exits(2);
    let message = wrong.json()["error"]["message"].as_str().unwrap().to_owned();
    assert!(message.contains("prices.tsv:2: input is `three`"), "{message}");
}

#[test]
fn what_steers_decanus_is_sent_to_nobody() {
    for (backend, most) in [
        ("openai", "\"max_tokens\":7"),
        ("responses", "\"max_output_tokens\":7"),
        ("anthropic", "\"max_tokens\":7"),
        ("gemini", "\"maxOutputTokens\":7"),
        ("ollama", "\"num_predict\":7"),
    ] {
        let s = Sandbox::new();
        s.write("endpoints/p.yaml", format!("backend: {backend}\nmodel: m\nkey: k\n"));
        let args = [
            "ask",
            "-e",
            "p",
            "--dry-run",
            "-o",
            "websearch=true",
            "-o",
            "previous_response=true",
            "-o",
            "max_tokens=7",
            "q",
        ];
        let dry = run(&s, &args).exits(0);
        let body = dry.stdout.to_lowercase();
        assert!(
            !body.contains("websearch") && !body.contains("previous"),
            "{backend}: {dry}"
        );
        let most = if backend == "openai" {
            "\"max_completion_tokens\":7"
        } else {
            most
        };
        assert!(dry.stdout.contains(most), "{backend}: {dry}");
        assert_eq!(
            dry.stderr.contains("no web search"),
            backend != "responses",
            "{backend}: {dry}"
        );
    }
}
