//! Signatures, calculated once more by hand.

use std::sync::Arc;

use decanus_backend::{Backend, BackendError};
use decanus_base::Secret;
use decanus_chat::Message;
use decanus_testkit::{Recorded, Reply, ScriptedServer};
use serde_json::json;
use sha2::{Digest, Sha256};

use crate::support::*;

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

fn sha256(bytes: &[u8]) -> Vec<u8> {
    Sha256::digest(bytes).to_vec()
}

/// HMAC-SHA256 as RFC 2104 defines it, for keys of at most one block.
fn hmac(key: &[u8], text: &[u8]) -> Vec<u8> {
    let mut block = [0_u8; 64];
    block[..key.len()].copy_from_slice(key);
    let pad = |with: u8, rest: &[u8]| sha256(&[&block.map(|b| b ^ with)[..], rest].concat());
    pad(0x5c, &pad(0x36, text))
}

/// The signature of a canonical request.
fn signature(secret: &str, date: &str, region: &str, service: &str, canonical: &str) -> String {
    let day = &date[..8];
    let scope = format!("{day}/{region}/{service}/aws4_request");
    let text = format!(
        "AWS4-HMAC-SHA256\n{date}\n{scope}\n{}",
        hex(&sha256(canonical.as_bytes()))
    );
    let key = [day, region, service, "aws4_request"]
        .iter()
        .fold(format!("AWS4{secret}").into_bytes(), |key, part| {
            hmac(&key, part.as_bytes())
        });
    hex(&hmac(&key, text.as_bytes()))
}

const SECRET: &str = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY";

/// The published vectors `get-vanilla` and `post-vanilla` of AWS's Signature Version 4 test suite.
#[test]
fn the_calculation_is_that_of_aws() {
    let canonical = |method: &str| {
        format!(
            "{method}\n/\n\nhost:example.amazonaws.com\nx-amz-date:20150830T123600Z\n\nhost;x-amz-date\n{}",
            hex(&sha256(b""))
        )
    };
    let sign = |method: &str| signature(SECRET, "20150830T123600Z", "us-east-1", "service", &canonical(method));
    assert_eq!(
        sign("GET"),
        "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31"
    );
    assert_eq!(
        sign("POST"),
        "5da7c1a2acd57cee7505fc6676e4e544621c30862966e37dddb68e92efbe5d6b"
    );
}

/// Checks the signature of a request as the service would.
fn check(request: &Recorded, region: &str) -> Result<(), String> {
    let header = |name: &str| request.header(name).ok_or(format!("no {name}"));
    let authorization = header("authorization")?;
    let part = |name: &str| {
        let (_, rest) = authorization.split_once(&format!("{name}="))?;
        rest.split([',', ' ']).next()
    };
    let date = header("x-amz-date")?;
    let credential = part("Credential").ok_or("no Credential")?;
    if credential != format!("AKIDEXAMPLE/{}/{region}/bedrock/aws4_request", &date[..8]) {
        return Err(format!("the scope is {credential}"));
    }
    let names = part("SignedHeaders").ok_or("no SignedHeaders")?;
    for wanted in ["content-type", "host", "x-amz-date"] {
        if !names.split(';').any(|n| n == wanted) {
            return Err(format!("{wanted} is not signed: {names}"));
        }
    }
    let mut headers = String::new();
    for name in names.split(';') {
        headers.push_str(&format!("{name}:{}\n", header(name)?.trim()));
    }
    // Every service but S3 encodes the path of the request once more.
    let path = request.path.replace('%', "%25");
    let canonical = format!("POST\n{path}\n\n{headers}\n{names}\n{}", hex(&sha256(&request.body)));
    let expected = signature(SECRET, date, region, "bedrock", &canonical);
    match part("Signature") {
        Some(is) if is == expected => Ok(()),
        is => Err(format!("{is:?} is not {expected}")),
    }
}

fn fine() -> Reply {
    Reply::json(200, &answer(json!([{"text": "a"}]), "end_turn"))
}

#[tokio::test]
async fn every_request_is_signed() {
    let checked = |reply: Reply| reply.expecting(|r| check(r, "eu-west-1"));
    // Each try has a signature of its own.
    let server = ScriptedServer::start([checked(Reply::json(500, &json!({}))), checked(fine())]);
    ask(&server, false).await.unwrap();
    server.verify();
    // Temporary credentials: their token is part of what is signed.
    let server = ScriptedServer::start([fine().expecting(|r| {
        let signed = r
            .header("authorization")
            .is_some_and(|a| a.contains("x-amz-security-token"));
        match r.header("x-amz-security-token") {
            Some("TOKEN") if signed => check(r, "ap-south-1"),
            other => Err(format!("the token is {other:?}")),
        }
    })]);
    let mut profile = profile(&server.url());
    let aws = profile.aws.as_mut().unwrap();
    aws.session_token = Some(Secret::new("TOKEN"));
    aws.region = Some("ap-south-1".into());
    assert!(ask_at(profile, &cx(false)).await.1.is_none());
    server.verify();
}

/// A Bedrock API key is a bearer token, and nothing is signed.
#[tokio::test]
async fn an_api_key_is_sent_as_it_is() {
    let server =
        ScriptedServer::start([
            fine().expecting(|r| match (r.header("authorization"), r.header("x-amz-date")) {
                (Some("Bearer ABSK-1"), None) => Ok(()),
                other => Err(format!("{other:?}")),
            }),
        ]);
    let mut profile = profile(&server.url());
    profile.aws = None;
    profile.key = Some(Secret::new("ABSK-1"));
    assert!(ask_at(profile, &cx(false)).await.1.is_none());
    server.verify();
}

/// What the machine has of AWS goes nowhere else because a file says so.
#[tokio::test]
async fn a_url_outside_aws_gets_only_the_keys_of_its_file() {
    let server = ScriptedServer::start(Vec::<Reply>::new());
    let mut profile = profile(&server.url());
    let aws = profile.aws.as_mut().unwrap();
    (aws.access_key, aws.secret_key) = (None, None);
    let error = ask_at(profile.clone(), &cx(true)).await.1.unwrap();
    assert!(matches!(error, BackendError::Config(_)), "{error:?}");
    assert!(
        error
            .to_string()
            .starts_with("endpoint `test`: no key: its `url` is not AWS"),
        "{error}"
    );
    // What would be sent can be seen all the same.
    let question = Question::new([Message::user("hi")]);
    assert!(open(profile).dry_run(&question.view(), true).is_ok());
    server.verify();
}

#[test]
fn a_model_is_needed() {
    let mut profile = profile("");
    profile.model = String::new();
    let error = backend().open(Arc::new(profile)).err().unwrap().to_string();
    assert!(error.contains("BEDROCK_MODEL_ID"), "{error}");
}
