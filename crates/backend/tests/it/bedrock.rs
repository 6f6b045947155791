//! What an endpoint's file says of Bedrock; the backend itself is a crate of its own.

use std::sync::Arc;

use decanus_backend::{EndpointError, Endpoints, Profile};

fn load(name: &str, text: Option<&str>, variables: &[(&str, &str)]) -> Result<Profile, EndpointError> {
    let dir = tempfile::tempdir().unwrap();
    if let Some(text) = text {
        std::fs::write(dir.path().join(format!("{name}.yaml")), text).unwrap();
    }
    let variables: Vec<(String, String)> = variables.iter().map(|(n, v)| ((*n).into(), (*v).into())).collect();
    let find = move |name: &str| variables.iter().find(|(n, _)| n == name).map(|(_, v)| v.clone());
    Endpoints::with(vec![dir.path().to_owned()], Arc::new(find)).load(name)
}

fn aws(text: &str, variables: &[(&str, &str)]) -> Result<decanus_backend::Aws, String> {
    let profile = load("e", Some(&format!("backend: bedrock\n{text}")), variables);
    profile.map(|p| p.aws.unwrap()).map_err(|e| e.to_string())
}

const BEARER: (&str, &str) = ("AWS_BEARER_TOKEN_BEDROCK", "ABSK-1");

#[test]
fn region_profile_and_keys() {
    let found = aws(
        "region: eu-west-1\naccess_key: AKID\nsecret_key_env: LAB_SECRET\nsession_token: T\nmodel: m\ntop_k: 5\n",
        &[("LAB_SECRET", "s3cr3t"), BEARER],
    )
    .unwrap();
    assert_eq!(found.region.as_deref(), Some("eu-west-1"));
    let secrets = [&found.access_key, &found.secret_key, &found.session_token];
    assert_eq!(
        secrets.map(|s| s.as_ref().unwrap().expose().to_owned()),
        ["AKID", "s3cr3t", "T"]
    );
    assert!(!found.url_of_file && !format!("{found:?}").contains("s3cr3t"));
    assert_eq!(aws("profile: lab\n", &[]).unwrap().profile.as_deref(), Some("lab"));
    assert!(aws("url: http://127.0.0.1:9\n", &[]).unwrap().url_of_file);
    let profile = load("e", Some("backend: bedrock\nregion: r\ntop_k: 5\n"), &[]).unwrap();
    assert_eq!(
        profile.parameters.keys().collect::<Vec<_>>(),
        ["top_k"],
        "the settings are no parameters"
    );
    // With other backends they are.
    let other = load("e", Some("backend: openai\nregion: r\n"), &[]).unwrap();
    assert!(other.aws.is_none() && other.parameters.contains_key("region"));
    // The name alone says what it is.
    assert_eq!(
        load("bedrock", Some("region: r\n"), &[])
            .unwrap()
            .aws
            .unwrap()
            .region
            .as_deref(),
        Some("r")
    );
}

#[test]
fn the_environment() {
    let variables = [
        BEARER,
        ("BEDROCK_MODEL_ID", "m"),
        ("AWS_ENDPOINT_URL_BEDROCK_RUNTIME", "http://127.0.0.1:9"),
    ];
    let profile = load("bedrock", None, &variables).unwrap();
    assert_eq!(
        (profile.model.as_str(), profile.url.as_str()),
        ("m", "http://127.0.0.1:9")
    );
    assert_eq!(profile.key.unwrap().expose(), "ABSK-1");
    // Who names other credentials means them, and a URL of a file gets nothing of the environment.
    for text in [
        "profile: lab\n",
        "access_key: a\nsecret_key: b\n",
        "url: http://127.0.0.1:8\n",
    ] {
        assert!(load("bedrock", Some(text), &variables).unwrap().key.is_none(), "{text}");
    }
}

#[test]
fn mistakes_are_named_with_their_lines() {
    for (text, words) in [
        (
            "access_key: SENTINEL\n",
            "e.yaml:2: access_key: `access_key` needs `secret_key`",
        ),
        (
            "secret_key: SENTINEL\n",
            "e.yaml:2: secret_key: `secret_key` needs `access_key`",
        ),
        (
            "session_token: SENTINEL\n",
            "e.yaml:2: session_token: `session_token` needs",
        ),
        (
            "secret_key: SENTINEL\nsecret_key_env: X\n",
            "e.yaml:3: secret_key_env: give `secret_key` or",
        ),
        (
            "access_key_env: NOPE\nsecret_key: SENTINEL\n",
            "e.yaml:2: access_key_env: the environment variable NOPE is not set",
        ),
        (
            "access_key: a\nsecret_key: SENTINEL\nprofile: p\n",
            "e.yaml:4: profile: give `profile` or `access_key`",
        ),
        (
            "key: SENTINEL\nprofile: p\n",
            "e.yaml:2: key: a Bedrock API key stands alone",
        ),
        ("region: eu/../x\n", "e.yaml:2: region: expected the name of a region"),
    ] {
        let error = aws(text, &[]).unwrap_err();
        assert!(error.contains(words) && !error.contains("SENTINEL"), "{error}");
    }
}
