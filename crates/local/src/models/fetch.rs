//! A download that goes on where it stopped.
//!
//! What came lies in FILE.part; FILE.part.json says which version of the file it belongs to (its ETag). Going on asks
//! for the rest *if it is still that version* (`Range` with `If-Range`); a server that has another one, or knows no
//! ranges, sends the whole file, and it begins again.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use decanus_base::files::write_atomic;
use reqwest::header::{CONTENT_RANGE, ETAG, HeaderMap, IF_RANGE, RANGE};
use reqwest::{Client, Response, StatusCode};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tokio_util::sync::CancellationToken;

use super::Progress;
use super::error::ModelError;

/// No byte for so long is a broken connection.
const SILENCE: Duration = Duration::from_secs(60);
/// Redirects to where the file really is.
const REDIRECTS: usize = 5;

/// What is known of the file that a part belongs to.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Version {
    etag: Option<String>,
    sha256: Option<String>,
}

/// Fetches a file and gives its SHA-256.
pub(super) async fn fetch(
    url: &str,
    target: &Path,
    progress: &(dyn Fn(Progress) + Send + Sync),
    cancel: &CancellationToken,
) -> Result<String, ModelError> {
    let client = client(url)?;
    let part = beside(target, "part");
    let record = beside(target, "part.json");
    let known: Version = fs::read(&record)
        .ok()
        .and_then(|b| serde_json::from_slice(&b).ok())
        .unwrap_or_default();
    // Without the version the rest could be that of another file.
    let have = if known.etag.is_some() {
        fs::metadata(&part).map_or(0, |m| m.len())
    } else {
        0
    };
    let (response, version) = tokio::select! {
        () = cancel.cancelled() => return Err(ModelError::Cancelled),
        answer = request(&client, url, have, &known) => answer?,
    };
    if response.status() == StatusCode::RANGE_NOT_SATISFIABLE && total_of_416(&response) != Some(have) {
        // The file there is another one by now, and shorter than what came of the old one.
        let _ = fs::remove_file(&part);
        let _ = fs::remove_file(&record);
        return Box::pin(fetch(url, target, progress, cancel)).await;
    }
    let answer = Answer::read(url, response, have)?;
    let from = answer.from;
    let version = Version {
        etag: version.etag.or(known.etag),
        sha256: version.sha256.or(known.sha256),
    };
    let text = serde_json::to_vec(&version).unwrap_or_default();
    write_atomic(&record, &text).map_err(|e| ModelError::file(&record, e))?;
    let mut file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .read(true)
        .write(true)
        .open(&part)
        .map_err(|e| ModelError::file(&part, e))?;
    file.set_len(from).map_err(|e| ModelError::file(&part, e))?;
    let mut hasher = Sha256::new();
    hash_beginning(&mut file, from, &mut hasher, progress, cancel).map_err(|e| e.at(&part))?;
    let size = answer.total;
    let done = receive(url, answer, &mut file, &part, &mut hasher, progress, cancel).await?;
    if size.is_some_and(|s| s != done) {
        let reason = format!("{done} of {} bytes came", size.unwrap_or(0));
        return Err(ModelError::Unreachable {
            url: url.into(),
            reason,
        });
    }
    file.sync_all().map_err(|e| ModelError::file(&part, e))?;
    let digest = hex(&hasher.finalize());
    let discard = || {
        let _ = fs::remove_file(&part);
        let _ = fs::remove_file(&record);
    };
    if let Some(expected) = version.sha256.filter(|s| *s != digest) {
        discard();
        return Err(ModelError::Damaged {
            url: url.into(),
            reason: format!("its SHA-256 is {digest}, and the server announced {expected}"),
        });
    }
    if let Err(error) = super::entry::check_magic(&part) {
        discard();
        return Err(match error {
            ModelError::NotAModel(_) => ModelError::Damaged {
                url: url.into(),
                reason: "not a GGUF model file".into(),
            },
            other => other,
        });
    }
    fs::rename(&part, target).map_err(|e| ModelError::file(target, e))?;
    let _ = fs::remove_file(&record);
    Ok(digest)
}

fn client(url: &str) -> Result<Client, ModelError> {
    // Somebody else in the process may have installed one already; any will do.
    let _ = rustls::crypto::ring::default_provider().install_default();
    Client::builder()
        .connect_timeout(Duration::from_secs(20))
        .read_timeout(SILENCE)
        // Each redirect is looked at: the hub gives the checksum with the first answer, before it sends us elsewhere.
        .redirect(reqwest::redirect::Policy::none())
        .build()
        .map_err(|e| ModelError::Unreachable {
            url: url.into(),
            reason: reason(&e),
        })
}

/// Asks for the file, or the rest of it, and follows where the server sends us.
async fn request(client: &Client, url: &str, have: u64, known: &Version) -> Result<(Response, Version), ModelError> {
    let mut version = Version::default();
    let mut at = url.to_owned();
    for _ in 0..=REDIRECTS {
        let mut request = client.get(&at);
        if let Some(etag) = known.etag.as_ref().filter(|_| have > 0) {
            request = request.header(RANGE, format!("bytes={have}-")).header(IF_RANGE, etag);
        }
        let response = request.send().await.map_err(|e| ModelError::Unreachable {
            url: at.clone(),
            reason: reason(&e),
        })?;
        version = newer(version, response.headers());
        if !response.status().is_redirection() {
            return Ok((response, version));
        }
        let to = response
            .headers()
            .get(reqwest::header::LOCATION)
            .and_then(|l| l.to_str().ok());
        let next = to.and_then(|to| response.url().join(to).ok());
        let Some(next) = next.filter(|n| n.scheme() == "https" || n.scheme() == response.url().scheme()) else {
            return Err(ModelError::Refused {
                url: at,
                status: response.status().as_u16(),
            });
        };
        at = next.to_string();
    }
    Err(ModelError::Unreachable {
        url: url.into(),
        reason: "too many redirects".into(),
    })
}

/// What an answer says of the file's version. The checksum is that of the hub's `X-Linked-Etag`, or an ETag that is
/// one; the ETag that names the version for the next request is the last answer's.
fn newer(version: Version, headers: &HeaderMap) -> Version {
    let text = |name: &str| headers.get(name).and_then(|v| v.to_str().ok()).map(str::to_owned);
    let checksum = |tag: &String| {
        let bare = tag.trim_start_matches("W/").trim_matches('"').to_ascii_lowercase();
        (bare.len() == 64 && bare.bytes().all(|b| b.is_ascii_hexdigit())).then_some(bare)
    };
    let etag = text(ETAG.as_str());
    let sha256 = text("x-linked-etag")
        .as_ref()
        .and_then(checksum)
        .or_else(|| etag.as_ref().and_then(checksum));
    Version {
        // A weak ETag does not promise the same bytes.
        etag: etag.filter(|t| !t.starts_with("W/")),
        sha256: version.sha256.or(sha256),
    }
}

/// An answer that carries bytes of the file.
struct Answer {
    response: Response,
    from: u64,
    total: Option<u64>,
}

impl Answer {
    fn read(url: &str, response: Response, have: u64) -> Result<Self, ModelError> {
        let status = response.status();
        if status == StatusCode::PARTIAL_CONTENT {
            let range = response
                .headers()
                .get(CONTENT_RANGE)
                .and_then(|v| v.to_str().ok())
                .and_then(content_range);
            return match range {
                Some((from, total)) if from == have => Ok(Self { response, from, total }),
                _ => Err(ModelError::Damaged {
                    url: url.into(),
                    reason: "the server sent another part of it".into(),
                }),
            };
        }
        if status == StatusCode::RANGE_NOT_SATISFIABLE {
            // All of it is there, and only the end was not noticed.
            return Ok(Self {
                response,
                from: have,
                total: Some(have),
            });
        }
        if !status.is_success() {
            return Err(ModelError::Refused {
                url: url.into(),
                status: status.as_u16(),
            });
        }
        let total = response.content_length();
        Ok(Self {
            response,
            from: 0,
            total,
        })
    }
}

fn total_of_416(response: &Response) -> Option<u64> {
    let range = response.headers().get(CONTENT_RANGE)?.to_str().ok()?;
    range.strip_prefix("bytes */")?.parse().ok()
}

/// `bytes FROM-TO/TOTAL`.
fn content_range(text: &str) -> Option<(u64, Option<u64>)> {
    let (range, total) = text.strip_prefix("bytes ")?.split_once('/')?;
    Some((range.split_once('-')?.0.parse().ok()?, total.parse().ok()))
}

/// Computes the digest of what is there already, and leaves the file at its end.
fn hash_beginning(
    file: &mut File,
    length: u64,
    hasher: &mut Sha256,
    progress: &(dyn Fn(Progress) + Send + Sync),
    cancel: &CancellationToken,
) -> Result<(), Stopped> {
    file.seek(SeekFrom::Start(0))?;
    let mut buffer = vec![0; 1 << 18];
    let mut done = 0;
    while done < length {
        if cancel.is_cancelled() {
            return Err(Stopped::Cancelled);
        }
        let n = file.read(&mut buffer)?;
        if n == 0 {
            break;
        }
        hasher.update(&buffer[..n]);
        done += n as u64;
        progress(Progress {
            step: "verifying",
            done,
            total: Some(length),
        });
    }
    file.seek(SeekFrom::Start(length))?;
    Ok(())
}

enum Stopped {
    Cancelled,
    Io(std::io::Error),
}

impl From<std::io::Error> for Stopped {
    fn from(error: std::io::Error) -> Self {
        Self::Io(error)
    }
}

impl Stopped {
    fn at(self, path: &Path) -> ModelError {
        match self {
            Self::Cancelled => ModelError::Cancelled,
            Self::Io(error) => ModelError::file(path, error),
        }
    }
}

async fn receive(
    url: &str,
    mut answer: Answer,
    file: &mut File,
    part: &Path,
    hasher: &mut Sha256,
    progress: &(dyn Fn(Progress) + Send + Sync),
    cancel: &CancellationToken,
) -> Result<u64, ModelError> {
    let (mut done, total) = (answer.from, answer.total);
    if answer.response.status() == StatusCode::RANGE_NOT_SATISFIABLE {
        return Ok(done);
    }
    loop {
        let chunk = tokio::select! {
            () = cancel.cancelled() => return Err(ModelError::Cancelled),
            chunk = answer.response.chunk() => chunk,
        };
        let chunk = chunk.map_err(|e| ModelError::Unreachable {
            url: url.into(),
            reason: format!("the connection broke after {done} bytes: {}", reason(&e)),
        })?;
        let Some(chunk) = chunk else { return Ok(done) };
        file.write_all(&chunk).map_err(|e| match ModelError::file(part, e) {
            ModelError::NoSpace { path, .. } => ModelError::NoSpace { path, needed: total },
            other => other,
        })?;
        hasher.update(&chunk);
        done += chunk.len() as u64;
        progress(Progress {
            step: "downloading",
            done,
            total,
        });
    }
}

fn beside(target: &Path, ending: &str) -> PathBuf {
    let mut name = target.file_name().unwrap_or_default().to_owned();
    name.push(".");
    name.push(ending);
    target.with_file_name(name)
}

/// An error's causes, without the address, which is told anyway.
fn reason(error: &reqwest::Error) -> String {
    use std::error::Error;
    let mut cause = error.source();
    let mut last = None;
    while let Some(next) = cause {
        last = Some(next.to_string());
        cause = next.source();
    }
    last.unwrap_or_else(|| error.to_string())
}

/// Lower-case hexadecimal.
pub(super) fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut out, b| {
        let _ = write!(out, "{b:02x}");
        out
    })
}

#[cfg(test)]
#[path = "fetch_tests.rs"]
mod tests;
