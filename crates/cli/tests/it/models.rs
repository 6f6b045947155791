//! `decanus model`: the catalogue, a hub, files; nothing is fetched unasked.

use decanus_testkit::{Reply, Sandbox, ScriptedServer};

use crate::support::*;

const NAME: &str = "hf:lab/tiny/tiny-q4.gguf";

fn weights() -> Vec<u8> {
    let mut bytes = b"GGUF\x03\x00\x00\x00".to_vec();
    bytes.extend((0..200_000u32).map(|i| (i % 251) as u8));
    bytes
}

fn hub(replies: Vec<Reply>) -> (ScriptedServer, Sandbox) {
    let server = ScriptedServer::start(replies);
    let origin = server.url().trim_end_matches("/v1").to_owned();
    (server, Sandbox::new().env("HF_ENDPOINT", &origin))
}

#[test]
fn the_catalogue_is_listed_and_nothing_is_fetched() {
    let s = Sandbox::new();
    let all = run(&s, &["model", "list", "--json"]).exits(0).json();
    let small = &all.as_array().unwrap()[0];
    assert_eq!(
        (&small["name"], &small["pulled"]),
        (&"smollm2-135m".into(), &false.into())
    );
    let missing = run(&s, &["model", "path", "smollm2-135m"]).exits(2);
    assert!(missing.stderr.contains("decanus model pull smollm2-135m"), "{missing}");
    for name in ["nosuch", "hf:../x/y.gguf", "hf:a/b", "hf:a/b/c.bin"] {
        let unknown = run(&s, &["model", "pull", name]).exits(2);
        assert!(unknown.stderr.contains("error:"), "{unknown}");
    }
}

#[test]
fn a_file_of_a_hub_is_fetched_once() {
    let reply = Reply::new(200, "application/octet-stream", weights()).header("etag", "\"v1\"");
    let (server, s) = hub(vec![reply]);
    let pulled = run(&s, &["model", "pull", NAME, "--json"]).exits(0).json();
    let file = pulled["file"].as_str().unwrap().to_owned();
    assert!(std::fs::read(&file).unwrap() == weights());
    assert_eq!(server.requests()[0].path, "/lab/tiny/resolve/main/tiny-q4.gguf");
    // The server has no second answer: asking again would fail.
    run(&s, &["model", "pull", NAME]).exits(0);
    assert_eq!(run(&s, &["model", "path", NAME]).exits(0).stdout.trim(), file);
}

#[test]
fn a_download_that_was_cut_goes_on_where_it_stopped() {
    let whole = weights();
    let cut = Reply::new(200, "application/octet-stream", whole.clone())
        .header("etag", "\"v1\"")
        .cut_after(120_000)
        .header("content-length", &whole.len().to_string());
    let rest = Reply::new(206, "application/octet-stream", whole[120_000..].to_vec())
        .header("etag", "\"v1\"")
        .header(
            "content-range",
            &format!("bytes 120000-{}/{}", whole.len() - 1, whole.len()),
        );
    let (server, s) = hub(vec![cut, rest]);
    let first = run(&s, &["model", "pull", NAME]);
    let file = match first.code {
        // It may go on by itself, or leave that to the next pull.
        0 => first.stdout.clone(),
        _ => run(&s, &["model", "pull", NAME]).exits(0).stdout,
    };
    let path = file.trim().rsplit(' ').next().unwrap().to_owned();
    let ranges: Vec<_> = server
        .requests()
        .iter()
        .map(|r| r.header("range").map(str::to_owned))
        .collect();
    assert_eq!(ranges, [None, Some("bytes=120000-".to_owned())]);
    // Not assert_eq: nobody wants to see two hundred thousand numbers.
    let fetched = std::fs::read(path).unwrap();
    assert!(fetched == whole, "{} bytes instead of {}", fetched.len(), whole.len());
}

#[test]
fn a_wrong_checksum_and_a_file_that_is_no_model_are_refused() {
    let wrong = Reply::new(200, "application/octet-stream", weights())
        .header("x-linked-etag", &format!("\"{}\"", "0".repeat(64)));
    let page = Reply::new(200, "text/html", "<html>sign in</html>");
    let missing = Reply::error(404, "not_found", "no such file");
    let (_server, s) = hub(vec![wrong, page, missing]);
    for _ in 0..3 {
        let refused = run(&s, &["model", "pull", NAME]);
        assert!(matches!(refused.code, 2 | 3), "{refused}");
        run(&s, &["model", "path", NAME]).exits(2);
    }
    s.write("notes.gguf", "not a model");
    let refused = run(&s, &["model", "pull", "path:notes.gguf"]).exits(2);
    assert!(
        refused.stderr.contains("notes.gguf: not a GGUF model file"),
        "{refused}"
    );
}
