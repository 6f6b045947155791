//! Bedrock from the command line, in a build that has it.

use decanus_testkit::{Reply, Sandbox, ScriptedServer};
use serde_json::{Value, json};

use crate::support::*;

fn answer(content: Value, reason: &str) -> Reply {
    let usage = json!({"inputTokens": 7, "outputTokens": 2, "totalTokens": 9});
    Reply::json(
        200,
        &json!({"output": {"message": {"role": "assistant", "content": content}}, "stopReason": reason, "usage": usage}),
    )
}

/// A machine with the variables that people of AWS have.
fn machine(url: &str) -> Sandbox {
    Sandbox::new()
        .env("AWS_REGION", "eu-west-1")
        .env("AWS_ENDPOINT_URL_BEDROCK_RUNTIME", url.trim_end_matches('/'))
        .env("BEDROCK_MODEL_ID", "eu.anthropic.claude-haiku-4-5-20251001-v1:0")
}

#[test]
fn a_question_with_a_tool_by_the_environment_alone() {
    let call = json!([{"toolUse": {"toolUseId": "t1", "name": "echo", "input": {"message": "hi"}}}]);
    let server = ScriptedServer::start([
        answer(call, "tool_use").expecting(|r| {
            let authorization = r.header("authorization").unwrap_or_default();
            let scope = authorization.contains("Credential=AKIDEXAMPLE/") && authorization.contains("/eu-west-1/bedrock/");
            let token = r.header("x-amz-security-token");
            if scope && token == Some("TOKEN-SENTINEL") && r.path.ends_with("%3A0/converse") {
                Ok(())
            } else {
                Err(format!("{} {authorization} {token:?}", r.path))
            }
        }),
        answer(json!([{"text": "It said hi."}]), "end_turn").expecting_json(json!({"messages": [
            {"role": "user"},
            {"role": "assistant", "content": [{"toolUse": {"toolUseId": "t1", "name": "echo", "input": {"message": "hi"}}}]},
            {"role": "user", "content": [{"toolResult": {"toolUseId": "t1", "content": [{"text": "hi"}]}}]},
        ]})),
    ]);
    let s = machine(&server.url())
        .env("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
        .env("AWS_SECRET_ACCESS_KEY", "secret-SENTINEL")
        .env("AWS_SESSION_TOKEN", "TOKEN-SENTINEL")
        .env("DECANUS_LOG", "trace");
    let outcome = run(
        &s,
        &["ask", "-e", "bedrock", "-t", "echo", "--no-stream", "--json", "say hi"],
    )
    .exits(0);
    let result = outcome.json();
    assert_eq!(result["answer"], "It said hi.");
    assert_eq!(result["usage"]["tt"], 18);
    assert!(!outcome.stderr.contains("SENTINEL") && !outcome.stdout.contains("SENTINEL"));
    server.verify();
    // The same question is not asked again, whoever signs it.
    let s = s.env("AWS_SECRET_ACCESS_KEY", "another");
    run(
        &s,
        &["ask", "-e", "bedrock", "-t", "echo", "--no-stream", "--json", "say hi"],
    )
    .exits(0);
}

#[test]
fn a_profile_of_the_users_own_files() {
    let server = ScriptedServer::start([answer(json!([{"text": "Hello."}]), "end_turn").expecting(|r| {
        match r.header("authorization") {
            Some(a) if a.contains("Credential=AKIDLAB/") && a.contains("/ap-south-1/bedrock/") => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })]);
    let s = Sandbox::new()
        .env("AWS_ENDPOINT_URL", server.url().trim_end_matches('/'))
        .env("AWS_ACCESS_KEY_ID", "AKIDOTHER")
        .env("AWS_SECRET_ACCESS_KEY", "other");
    let aws = s.home().join(".aws");
    std::fs::create_dir_all(&aws).unwrap();
    std::fs::write(aws.join("config"), "[profile lab]\nregion = ap-south-1\n").unwrap();
    std::fs::write(
        aws.join("credentials"),
        "[lab]\naws_access_key_id = AKIDLAB\naws_secret_access_key = s\n",
    )
    .unwrap();
    s.write(
        "endpoints/lab.yaml",
        "backend: bedrock\nmodel: amazon.nova-lite-v1:0\nprofile: lab\n",
    );
    let outcome = run(&s, &["ask", "-e", "lab", "--no-stream", "hi"]).exits(0);
    assert_eq!(outcome.stdout.trim(), "Hello.");
    server.verify();
    // A profile that does not exist is named.
    s.write(
        "endpoints/none.yaml",
        "backend: bedrock\nmodel: m\nprofile: nobody\nregion: eu-west-1\n",
    );
    let error = run(&s, &["ask", "-e", "none", "--json", "hi"]).exits(2).json();
    let message = error["error"]["message"].as_str().unwrap();
    assert!(
        message.starts_with("endpoint `none`: no key: the AWS profile `nobody`"),
        "{message}"
    );
}

#[test]
fn without_keys_or_a_region_it_says_what_to_set() {
    let s = machine("http://127.0.0.1:9").env("AWS_EC2_METADATA_DISABLED", "true");
    let error = run(&s, &["ask", "-e", "bedrock", "--json", "hi"]).exits(2).json();
    assert_eq!(error["error"]["kind"], "config");
    let message = error["error"]["message"].as_str().unwrap();
    assert!(
        message.starts_with("endpoint `bedrock`: no key: set AWS_ACCESS_KEY_ID and"),
        "{message}"
    );
    // What would be sent is shown without any.
    let dry = run(&s, &["ask", "-e", "bedrock", "--dry-run", "hi"]).exits(0);
    assert!(
        dry.stdout
            .contains(r#"{"messages":[{"role":"user","content":[{"text":"hi"}]}]"#),
        "{dry}"
    );
    let nowhere = Sandbox::new().env("BEDROCK_MODEL_ID", "m");
    let error = run(&nowhere, &["ask", "-e", "bedrock", "--json", "hi"]).exits(2).json();
    let message = error["error"]["message"].as_str().unwrap();
    assert!(message.contains("no region: set AWS_REGION"), "{message}");
}
