//! Endpoint files and the names without one.

use std::sync::Arc;
use std::time::Duration;

use decanus_backend::{EndpointError, EndpointInfo, Endpoints};
use decanus_base::{Diagnostic, ErrorKind, Secret};
use serde_json::json;

struct World {
    dir: tempfile::TempDir,
    variables: Vec<(&'static str, &'static str)>,
}

impl World {
    fn new(variables: &[(&'static str, &'static str)]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        for folder in ["p/endpoints", "h/endpoints", ".scout/etc/AI"] {
            std::fs::create_dir_all(dir.path().join(folder)).unwrap();
        }
        Self {
            dir,
            variables: variables.to_vec(),
        }
    }

    fn write(&self, path: &str, text: &str) -> &Self {
        std::fs::write(self.dir.path().join(path), text).unwrap();
        self
    }

    fn endpoints(&self) -> Endpoints {
        let folders = ["p/endpoints", "h/endpoints", ".scout/etc/AI"]
            .map(|f| self.dir.path().join(f))
            .to_vec();
        let variables = self.variables.clone();
        let find = move |name: &str| variables.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_owned());
        Endpoints::with(folders, Arc::new(find))
    }

    fn error(&self, name: &str) -> String {
        self.endpoints().load(name).unwrap_err().to_string()
    }
}

#[test]
fn a_whole_file() {
    let world = World::new(&[("LAB_KEY", "sk-lab\n"), ("OPENAI_MODEL", "other")]);
    world.write(
        "p/endpoints/lab.yaml",
        "backend: openai\nurl: http://gpu1:8000/v1\nmodel: local-7b\nkey_env: LAB_KEY\nheaders: {x-team: bio}\n\
         timeouts: {connect: 500ms, first_byte: 1m, idle: 5}\nrequest_timeout: 1h\nretries: 0\nstream_usage: false\n\
         temperature: 0.70\nreasoning_effort: low\nextra: {a: [1, x]}\n",
    );
    let profile = world.endpoints().load("lab").unwrap();
    assert_eq!(
        (profile.backend.as_str(), profile.model.as_str()),
        ("openai", "local-7b")
    );
    assert_eq!(profile.key.unwrap().expose(), "sk-lab");
    assert_eq!(profile.headers[0].1.expose(), "bio");
    let t = profile.timeouts;
    assert_eq!(
        (t.connect, t.idle),
        (Duration::from_millis(500), Duration::from_secs(5))
    );
    assert_eq!(
        (t.first_byte, t.total),
        (Duration::from_secs(60), Duration::from_secs(3600))
    );
    assert_eq!((profile.retries, profile.stream_usage), (0, false));
    let expected: serde_json::Value =
        serde_json::from_str(r#"{"temperature":0.70,"reasoning_effort":"low","extra":{"a":[1,"x"]}}"#).unwrap();
    assert_eq!(json!(profile.parameters), expected);
    assert!(profile.file.unwrap().ends_with("p/endpoints/lab.yaml"));
}

#[test]
fn faults_name_file_line_and_key() {
    let world = World::new(&[]);
    for (text, words) in [
        ("backend: openai\nurl: nowhere\n", "e.yaml:2: url: not a URL"),
        (
            "backend: openai\nurl: file:///x\n",
            "e.yaml:2: url: expected a URL that begins with http",
        ),
        (
            "backend: openai\ntimeouts:\n  idel: 5s\n",
            "e.yaml:3: timeouts.idel: unknown key `idel`; did you mean idle?",
        ),
        (
            "backend: openai\ntimeouts: {idle: soon}\n",
            "e.yaml:2: timeouts.idle: `soon` is not a duration",
        ),
        (
            "backend: openai\nretries: many\n",
            "e.yaml:2: retries: expected a number from 0 to 100",
        ),
        (
            "backend: openai\napi_version: 2\n",
            "e.yaml:2: api_version: `api_version` is not available in this build",
        ),
        (
            "backend: openai\nmax_concurrency: 0\n",
            "e.yaml:2: max_concurrency: expected a whole number, 1 or more",
        ),
        (
            "backend: openai\nmax_concurrency: 1.5\n",
            "e.yaml:2: max_concurrency: expected a whole number, 1 or more",
        ),
        (
            "backend: openai\nrequests_per_minute: 0\n",
            "e.yaml:2: requests_per_minute: expected a number above 0",
        ),
        (
            "backend: openai\ntokens_per_minute: lots\n",
            "e.yaml:2: tokens_per_minute: expected a number above 0",
        ),
        (
            "backend: openai\nfallback:\n  - other\n  - {name: x}\n",
            "e.yaml:4: fallback.[1]: expected a text",
        ),
        (
            "backend: openai\nprices: {input: -1}\n",
            "e.yaml:2: prices.input: expected an amount for a million tokens",
        ),
        (
            "backend: openai\nmessages: []\n",
            "e.yaml:2: messages: `messages` is set by each request",
        ),
        (
            "backend: openai\nstream_usage: perhaps\n",
            "e.yaml:2: stream_usage: expected true or false",
        ),
        (
            "backend: openai\nkey_env: NOT_SET\n",
            "e.yaml:2: key_env: the environment variable NOT_SET is not set",
        ),
        (
            "backend: openai\nkey: a\nkey_env: B\n",
            "e.yaml:3: key_env: give `key` or `key_env`, not both",
        ),
        ("model: m\n", "e.yaml:1: `backend` is missing"),
        ("backend: [openai\n", "e.yaml:"),
        ("- a\n", "e.yaml:1: expected a map"),
    ] {
        world.write("p/endpoints/e.yaml", text);
        let error = world.error("e");
        assert!(error.contains(words), "{text:?}: {error}");
        assert_eq!(world.endpoints().load("e").unwrap_err().kind(), ErrorKind::Config);
    }
    // A secret is never quoted.
    world.write("p/endpoints/e.yaml", "backend: openai\nkey: [sk-SENTINEL]\n");
    assert!(!world.error("e").contains("SENTINEL"));
    world.write("p/endpoints/e.yaml", "backend: openai\nurl: http//me:SENTINEL@h\n");
    assert!(!world.error("e").contains("SENTINEL"));
}

#[test]
fn keys_go_where_they_belong() {
    let own_url = "backend: openai\nurl: http://127.0.0.1:1/v1\nmodel: m\n";
    let key = |variables: &[(&'static str, &'static str)], text: &str| {
        let world = World::new(variables);
        world.write("p/endpoints/e.yaml", text);
        let profile = world.endpoints().load("e").unwrap();
        (profile.url, profile.key.map(|k| k.expose().to_owned()))
    };
    let default = "https://api.openai.com/v1".to_owned();
    let some = |k: &str| Some(k.to_owned());
    // A URL of the file's own never gets the environment's key.
    assert_eq!(
        key(&[("OPENAI_API_KEY", "env")], own_url),
        ("http://127.0.0.1:1/v1".into(), None)
    );
    assert_eq!(
        key(&[("OPENAI_API_KEY", "env")], &format!("{own_url}key: own\n")).1,
        some("own")
    );
    assert_eq!(
        key(&[("OPENAI_API_KEY", "env")], "backend: openai\n"),
        (default.clone(), some("env"))
    );
    assert_eq!(
        key(&[("OPENAI_API_KEY", "env")], "backend: openai\nkey: own\n"),
        (default, some("own"))
    );
    let both = [("OPENAI_API_KEY", "env"), ("OPENAI_BASE_URL", "http://proxy.test/v1")];
    assert_eq!(
        key(&both, "backend: openai\n"),
        ("http://proxy.test/v1".into(), some("env"))
    );
    // The first name wins.
    let two = [
        ("OPENAI_API_KEY", "b"),
        ("OPENAI_KEY", "a"),
        ("OPENAI_BASE_URL", "http://b/"),
        ("OPENAI_URL", "http://a/"),
    ];
    assert_eq!(key(&two, "backend: openai\n"), ("http://a/".into(), some("a")));
}

#[test]
fn names_without_a_file() {
    let world = World::new(&[("OPENAI_MODEL", "gpt-x"), ("OPENAI_API_KEY", " ")]);
    let openai = world.endpoints().load("openai").unwrap();
    assert_eq!(
        (openai.url.as_str(), openai.model.as_str()),
        ("https://api.openai.com/v1", "gpt-x")
    );
    assert!(openai.key.is_none(), "a blank variable is not set");
    assert_eq!(World::new(&[]).endpoints().load("openai").unwrap().model, "gpt-5-nano");
    let local = world.endpoints().load("local").unwrap();
    assert_eq!((local.backend.as_str(), local.url.as_str()), ("local", ""));
    // A file of that name needs no `backend`, and is in place of it.
    world.write("h/endpoints/openai.yaml", "url: http://127.0.0.1:1/v1\n");
    let openai = world.endpoints().load("openai").unwrap();
    assert_eq!((openai.backend.as_str(), openai.model.as_str()), ("openai", ""));
}

#[test]
fn the_nearest_file_counts_and_scouts_are_read() {
    let world = World::new(&[]);
    world.write("p/endpoints/a.yaml", "backend: openai\nmodel: near\n");
    world.write("h/endpoints/a.yaml", "backend: openai\nmodel: far\n");
    world.write(".scout/etc/AI/old.yaml", "backend: openai\nmodel: scout\n");
    world.write(".scout/etc/AI/bare", "backend: openai\nmodel: bare\n");
    world.write("p/endpoints/README.md", "not an endpoint");
    let endpoints = world.endpoints();
    assert_eq!(endpoints.load("a").unwrap().model, "near");
    assert_eq!(endpoints.load("old").unwrap().model, "scout");
    assert_eq!(endpoints.load("bare").unwrap().model, "bare");
    let all = endpoints.list();
    assert!(all.is_sorted_by_key(|e| e.name.clone()));
    let (built_in, files): (Vec<_>, Vec<_>) = all.into_iter().partition(|e| e.source == "built in");
    let names = |all: Vec<EndpointInfo>| all.into_iter().map(|e| e.name).collect::<Vec<_>>();
    assert_eq!(names(files), ["a", "bare", "old"]);
    let built_in = names(built_in);
    for name in [
        "anthropic",
        "gemini",
        "local",
        "ollama",
        "openai",
        "openwebui",
        "responses",
        "vllm",
    ] {
        assert!(built_in.iter().any(|n| n == name), "{name}");
    }
}

#[test]
fn ollama_is_found_where_its_own_variables_say() {
    let ollama = World::new(&[]).endpoints().load("ollama").unwrap();
    assert_eq!(
        (ollama.url.as_str(), ollama.model.as_str()),
        ("http://127.0.0.1:11434", "llama3.1")
    );
    let world = World::new(&[
        ("OLLAMA_HOST", "gpu1"),
        ("OLLAMA_API_KEY", "k-1"),
        ("OLLAMA_MODEL", "qwen3"),
    ]);
    let ollama = world.endpoints().load("ollama").unwrap();
    assert_eq!(
        (ollama.url.as_str(), ollama.model.as_str()),
        ("http://gpu1:11434", "qwen3")
    );
    assert_eq!(ollama.key.as_ref().map(Secret::expose), Some("k-1"));
    world.write("p/endpoints/ollama.yaml", "url: http://elsewhere:1\n");
    assert!(
        world.endpoints().load("ollama").unwrap().key.is_none(),
        "not to another server"
    );
}

#[test]
fn an_unknown_name() {
    let world = World::new(&[]);
    world.write("p/endpoints/cluster.yaml", "backend: openai\n");
    for name in ["clustr", "", "../cluster", "a/b"] {
        let error = world.endpoints().load(name).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Usage);
        assert!(matches!(error, EndpointError::Unknown { .. }));
    }
    let error = world.endpoints().load("clustr").unwrap_err();
    assert_eq!(error.to_string(), "unknown endpoint `clustr`; did you mean cluster?");
    let hints = error.hints().join("\n");
    assert!(
        hints.contains(" cluster, ") && hints.contains(", local, ") && hints.contains("p/endpoints"),
        "{hints}"
    );
}

#[test]
fn a_list_shows_no_key_and_survives_bad_files() {
    let world = World::new(&[("OPENAI_API_KEY", "sk-SENTINEL")]);
    world.write("p/endpoints/bad.yaml", "backend: openai\nretries: x\n");
    world.write(
        "p/endpoints/k.yaml",
        "backend: openai\nurl: http://u:SENTINEL@h/v1?k=SENTINEL\nmodle: m\nkey: sk-SENTINEL\n",
    );
    let list = world.endpoints().list();
    assert!(!format!("{list:?}").contains("SENTINEL"), "{list:?}");
    let get = |name: &str| list.iter().find(|e| e.name == name).unwrap();
    assert!(get("bad").error.as_ref().unwrap().contains("bad.yaml:2: retries"));
    assert!(get("k").key_set && get("k").url == "http://h/v1");
    assert!(
        get("k").warnings[0].contains("did you mean model?"),
        "{:?}",
        get("k").warnings
    );
    assert!(get("openai").key_set && get("openai").source == "environment");
    assert!(!get("local").key_set && get("local").source == "built in");
    assert_eq!(world.endpoints().show("k").unwrap(), *get("k"));
    assert!(world.endpoints().show("nope").is_err());
}

#[test]
fn the_backends_that_speak_openais_protocols_have_variables_of_their_own() {
    let world = World::new(&[
        ("OPENAI_API_KEY", "sk-openai"),
        ("OPENAI_MODEL", "gpt-x"),
        ("VLLM_API_KEY", "vk"),
        ("OPENWEBUI_URL", "http://ui:3000"),
        ("OPENWEBUI_KEY", "wk"),
    ]);
    world.write(
        "p/endpoints/mine.yaml",
        "backend: responses\nurl: http://gpu1/v1\nmodel: m\n",
    );
    let show = |name: &str| {
        let profile = world.endpoints().load(name).unwrap();
        let key = profile.key.map(|k| k.expose().to_owned()).unwrap_or_default();
        format!("{} {} {key}", profile.url, profile.model)
    };
    assert_eq!(show("responses"), "https://api.openai.com/v1 gpt-x sk-openai");
    assert_eq!(show("vllm"), "http://127.0.0.1:8000/v1 vllm vk");
    assert_eq!(show("openwebui"), "http://ui:3000 llama3.1 wk");
    assert_eq!(
        show("mine"),
        "http://gpu1/v1 m ",
        "a key of the environment goes to no URL of a file"
    );
}

#[test]
fn variables_of_each_provider() {
    let url = |name: &str| World::new(&[]).endpoints().load(name).unwrap().url;
    assert_eq!(url("anthropic"), "https://api.anthropic.com/v1");
    assert_eq!(url("gemini"), "https://generativelanguage.googleapis.com/v1beta");
    for (name, variables) in [
        ("anthropic", ["ANTHROPIC_URL", "ANTHROPIC_KEY", "ANTHROPIC_MODEL"]),
        (
            "anthropic",
            ["ANTHROPIC_BASE_URL", "ANTHROPIC_API_KEY", "ANTHROPIC_MODEL"],
        ),
        ("gemini", ["GEMINI_URL", "GEMINI_API_KEY", "GEMINI_MODEL"]),
        ("gemini", ["GEMINI_URL", "GOOGLE_API_KEY", "GEMINI_MODEL"]),
    ] {
        let [url, key, model] = variables;
        let world = World::new(&[(url, "http://a/v1"), (key, "k"), (model, "m")]);
        let profile = world.endpoints().load(name).unwrap();
        assert_eq!(
            (profile.url.as_str(), profile.model.as_str()),
            ("http://a/v1", "m"),
            "{name}"
        );
        assert_eq!(profile.key.unwrap().expose(), "k", "{name}");
        // A file's own URL gets no key of the environment.
        world.write(&format!("p/endpoints/{name}.yaml"), "url: http://b/v1\n");
        assert!(world.endpoints().load(name).unwrap().key.is_none(), "{name}");
    }
}
