//! The download against a server on the loopback interface that misbehaves in one way after another.

use std::io::{BufRead, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use super::*;
use decanus_base::digest::sha256_hex;

/// How the server treats a request.
#[derive(Clone, Debug)]
struct Behaviour {
    /// Bytes after which the connection is cut.
    cut: Option<usize>,
    /// Whether ranges are known.
    ranges: bool,
    etag: String,
    /// Sent as X-Linked-Etag by a first answer that redirects.
    linked: Option<String>,
    status: u16,
}

impl Default for Behaviour {
    fn default() -> Self {
        Self {
            cut: None,
            ranges: true,
            etag: "\"v1\"".into(),
            linked: None,
            status: 200,
        }
    }
}

struct Server {
    url: String,
    requests: Arc<Mutex<Vec<String>>>,
}

fn serve(body: &[u8], mut plan: Vec<Behaviour>) -> Server {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/org/repo/resolve/main/m.gguf", listener.local_addr().unwrap());
    let requests = Arc::new(Mutex::new(Vec::new()));
    let (body, seen) = (body.to_vec(), requests.clone());
    plan.reverse();
    std::thread::spawn(move || {
        while let Some(behaviour) = plan.last().cloned() {
            let Ok((stream, _)) = listener.accept() else { return };
            let head = head(&stream);
            // A redirect belongs to the same try as what it leads to.
            if !(behaviour.linked.is_some() && head.starts_with("GET /org")) {
                plan.pop();
            }
            seen.lock().unwrap().push(head.clone());
            let _ = answer(stream, &head, &body, &behaviour);
        }
    });
    Server { url, requests }
}

fn head(stream: &TcpStream) -> String {
    let mut head = String::new();
    let mut reader = BufReader::new(stream);
    while !head.ends_with("\r\n\r\n") && reader.read_line(&mut head).unwrap_or(0) > 0 {}
    head.to_lowercase().replace("get /org", "GET /org")
}

fn answer(mut stream: TcpStream, head: &str, body: &[u8], behaviour: &Behaviour) -> std::io::Result<()> {
    if let Some(linked) = behaviour.linked.as_ref().filter(|_| head.starts_with("GET /org")) {
        let text = format!(
            "HTTP/1.1 302 Found\r\nLocation: /blob\r\nX-Linked-Etag: \"{linked}\"\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        );
        return stream.write_all(text.as_bytes());
    }
    if behaviour.status != 200 {
        return write!(
            stream,
            "HTTP/1.1 {} No\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
            behaviour.status
        );
    }
    let header = |name: &str| {
        head.lines()
            .find_map(|l| l.strip_prefix(&format!("{name}: ")).map(str::to_owned))
    };
    let same = header("if-range").is_some_and(|e| e == behaviour.etag.to_lowercase());
    let from = header("range").and_then(|r| r.strip_prefix("bytes=")?.strip_suffix('-')?.parse::<usize>().ok());
    let from = from.filter(|_| behaviour.ranges && same);
    let start = from.unwrap_or(0);
    let status = if from.is_some() {
        "206 Partial Content"
    } else {
        "200 OK"
    };
    let mut text = format!(
        "HTTP/1.1 {status}\r\nETag: {}\r\nContent-Length: {}\r\nConnection: close\r\n",
        behaviour.etag,
        body.len() - start
    );
    if from.is_some() {
        text.push_str(&format!(
            "Content-Range: bytes {start}-{}/{}\r\n",
            body.len() - 1,
            body.len()
        ));
    }
    stream.write_all(text.as_bytes())?;
    stream.write_all(b"\r\n")?;
    let end = behaviour.cut.map_or(body.len(), |cut| (start + cut).min(body.len()));
    stream.write_all(&body[start..end])?;
    stream.flush()
}

fn body() -> Vec<u8> {
    b"GGUF"
        .iter()
        .copied()
        .chain((0..300_000_u32).map(|i| (i % 251) as u8))
        .collect()
}

fn get(server: &Server, target: &Path) -> Result<String, ModelError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(fetch(&server.url, target, &|_| {}, &CancellationToken::new()))
}

fn folder() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("m.gguf");
    (folder, target)
}

#[test]
fn a_cut_download_goes_on_where_it_stopped() {
    let (folder, target) = folder();
    let body = body();
    let cut = Behaviour {
        cut: Some(100_000),
        ..Behaviour::default()
    };
    let server = serve(&body, vec![cut.clone(), cut, Behaviour::default()]);
    let error = get(&server, &target).unwrap_err();
    assert!(
        matches!(error, ModelError::Unreachable { .. }) && error.to_string().contains("100000"),
        "{error}"
    );
    assert!(!target.exists(), "a part is no model");
    get(&server, &target).unwrap_err();
    assert_eq!(get(&server, &target).unwrap(), sha256_hex(&body));
    assert_eq!(fs::read(&target).unwrap(), body);
    assert_eq!(
        fs::read_dir(folder.path()).unwrap().count(),
        1,
        "nothing is left beside it"
    );
    let requests = server.requests.lock().unwrap();
    assert!(
        requests[1].contains("range: bytes=100000-") && requests[1].contains("if-range: \"v1\""),
        "{}",
        requests[1]
    );
    assert!(requests[2].contains("range: bytes=200000-"), "{}", requests[2]);
}

#[test]
fn a_server_without_ranges_or_with_another_version_begins_again() {
    let body = body();
    for second in [
        Behaviour {
            ranges: false,
            ..Behaviour::default()
        },
        Behaviour {
            etag: "\"v2\"".into(),
            ..Behaviour::default()
        },
    ] {
        let (_folder, target) = folder();
        let server = serve(
            &body,
            vec![
                Behaviour {
                    cut: Some(5_000),
                    ..Behaviour::default()
                },
                second,
            ],
        );
        get(&server, &target).unwrap_err();
        get(&server, &target).unwrap();
        assert_eq!(fs::read(&target).unwrap(), body);
    }
}

#[test]
fn a_wrong_checksum_is_refused_and_thrown_away() {
    let (folder, target) = folder();
    let wrong = Behaviour {
        linked: Some("0".repeat(64)),
        ..Behaviour::default()
    };
    let right = Behaviour {
        linked: Some(sha256_hex(&body())),
        ..Behaviour::default()
    };
    let server = serve(&body(), vec![wrong, right]);
    let error = get(&server, &target).unwrap_err();
    assert!(matches!(error, ModelError::Damaged { .. }), "{error}");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    get(&server, &target).unwrap();
}

#[test]
fn refusals_and_pages_in_place_of_a_model_are_told() {
    let (_folder, target) = folder();
    let server = serve(
        b"<html>not found</html>",
        vec![
            Behaviour {
                status: 404,
                ..Behaviour::default()
            },
            Behaviour::default(),
        ],
    );
    assert!(matches!(
        get(&server, &target),
        Err(ModelError::Refused { status: 404, .. })
    ));
    let error = get(&server, &target).unwrap_err();
    assert!(error.to_string().contains("not a GGUF model file"), "{error}");
    assert!(!target.exists());
}

#[test]
fn cancelling_keeps_what_came() {
    let (folder, target) = folder();
    let server = serve(&body(), vec![Behaviour::default()]);
    let cancel = CancellationToken::new();
    let stop = cancel.clone();
    let progress = move |p: Progress| {
        if p.done > 0 {
            stop.cancel();
        }
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let ended = runtime.block_on(fetch(&server.url, &target, &progress, &cancel));
    // The last piece may have come before the cancellation was seen.
    assert!(matches!(ended, Err(ModelError::Cancelled)) == folder.path().join("m.gguf.part").exists());
}
