//! An LLM server that answers at once, for benchmarks: prints its URL and ends when stdin is closed.
//!
//! `scripted-llm [TEXT] [--call NAME JSON]`: without a call every answer is the text; with one, a request whose last message
//! is no tool result is answered by the call. A stream is sent when one is asked for.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout)]

use std::io::Read;

use decanus_testkit::{Reply, ScriptedServer};
use serde_json::Value;

fn main() {
    let mut args: Vec<String> = std::env::args().skip(1).collect();
    let call = args.iter().position(|a| a == "--call").map(|at| {
        let parts: Vec<String> = args.drain(at..).collect();
        let name = parts.get(1).expect("--call NAME JSON").clone();
        let arguments: Value = serde_json::from_str(parts.get(2).expect("--call NAME JSON")).expect("JSON");
        (name, arguments)
    });
    let text = args.first().cloned().unwrap_or_else(|| "ok".into());
    let server = ScriptedServer::with(move |request| {
        let body = request.json();
        let stream = body["stream"] == true;
        let last = body["messages"]
            .as_array()
            .and_then(|m| m.last())
            .map(|m| m["role"].clone());
        match &call {
            Some((name, arguments)) if last.as_ref().is_none_or(|r| r != "tool") => {
                let calls = [("call_1", name.as_str(), arguments.clone())];
                if stream {
                    Reply::chat_call_stream(&calls)
                } else {
                    Reply::chat_calls(&calls)
                }
            }
            _ if stream => Reply::chat_stream(&[&text]),
            _ => Reply::chat_text(&text),
        }
    });
    println!("{}", server.url());
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
}
