//! Traffic recorded from real servers, and faults seen in the wild; see `fixtures/README.md`.

use std::path::PathBuf;

use serde_json::Value;

use crate::reply::{Framing, Reply};

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("fixtures")
}

/// The bytes of a file under `fixtures/cases`.
///
/// # Panics
/// When there is no such file.
pub fn case(name: &str) -> Vec<u8> {
    let path = folder().join("cases").join(name);
    std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// A file under `fixtures/cases` as JSON.
///
/// # Panics
/// When there is no such file, or it is no JSON.
pub fn case_json(name: &str) -> Value {
    serde_json::from_slice(&case(name)).expect("JSON")
}

/// A file of `{"chunks_hex": […]}` as byte chunks.
///
/// # Panics
/// When it is something else.
pub fn case_chunks(name: &str) -> Vec<Vec<u8>> {
    let value = case_json(name);
    let chunks = value["chunks_hex"].as_array().expect("chunks");
    chunks.iter().map(|c| unhex(c.as_str().expect("text"))).collect()
}

fn unhex(text: &str) -> Vec<u8> {
    let digit = |b: u8| (b as char).to_digit(16).expect("hexadecimal") as u8;
    text.as_bytes()
        .chunks(2)
        .map(|pair| digit(pair[0]) * 16 + digit(pair[1]))
        .collect()
}

/// One recorded exchange.
#[derive(Debug, Clone)]
pub struct Exchange {
    /// `SERVER/CASE`.
    pub name: String,
    /// The request: method, url, headers, body.
    pub request: Value,
    /// The status of the answer.
    pub status: u16,
    /// Its body or stream.
    pub body: Vec<u8>,
    /// Its content type.
    pub content_type: String,
    /// Whether it is a stream.
    pub is_stream: bool,
}

impl Exchange {
    /// The recorded exchange `SERVER/CASE`.
    ///
    /// # Panics
    /// When there is none.
    pub fn load(name: &str) -> Self {
        let path = folder().join("recorded").join(format!("{name}.json"));
        let text = std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let value: Value = serde_json::from_slice(&text).expect("JSON");
        let response = &value["response"];
        let headers = response["headers"].as_object().expect("headers");
        let kind = headers.iter().find(|(n, _)| n.eq_ignore_ascii_case("content-type"));
        let stream = response["stream_file"].as_str();
        let body = match stream {
            Some(file) => {
                let kind = file.rsplit('.').next().expect("a kind");
                std::fs::read(path.with_extension(kind)).expect("the stream beside it")
            }
            None if response["body"].is_null() => response["body_raw"].as_str().unwrap_or("").into(),
            None => response["body"].to_string().into_bytes(),
        };
        Self {
            name: name.into(),
            request: value["request"].clone(),
            status: response["status"].as_u64().expect("a status") as u16,
            body,
            content_type: kind.and_then(|(_, v)| v.as_str()).unwrap_or("").into(),
            is_stream: stream.is_some(),
        }
    }

    /// All recorded exchanges, sorted by name.
    pub fn all() -> Vec<Self> {
        let mut names = Vec::new();
        for server in std::fs::read_dir(folder().join("recorded"))
            .expect("fixtures")
            .flatten()
        {
            for file in std::fs::read_dir(server.path()).into_iter().flatten().flatten() {
                let file = file.file_name().to_string_lossy().into_owned();
                if let Some(case) = file.strip_suffix(".json") {
                    names.push(format!("{}/{case}", server.file_name().to_string_lossy()));
                }
            }
        }
        names.sort();
        names.iter().map(|n| Self::load(n)).collect()
    }

    /// The answer, to be served.
    pub fn reply(&self) -> Reply {
        let framing = if self.is_stream {
            Framing::Chunked
        } else {
            Framing::Length
        };
        Reply::new(self.status, &self.content_type, self.body.clone()).framed(framing)
    }
}
