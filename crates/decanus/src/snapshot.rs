//! What there was of a request that failed, kept for whoever looks into it.

use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use decanus_agent::AgentError;
use decanus_backend::redact::Redactor;
use decanus_backend::{DryRun, Profile, RawAnswer};
use decanus_base::text::brief;
use decanus_base::{Diagnostic, ErrorKind};
use decanus_chat::Message;
use serde_json::{Value, json};

/// Snapshots that are kept; the oldest go.
const KEPT: usize = 50;

/// Characters of one text that a snapshot keeps.
const MAX_TEXT: usize = 100_000;

/// Whether a failure is worth a snapshot: the provider's, or one that nobody expected.
pub(crate) fn is_worth_it(error: &AgentError) -> bool {
    matches!(
        error.kind(),
        ErrorKind::Provider | ErrorKind::Incomplete | ErrorKind::Internal | ErrorKind::Schema
    )
}

/// Writes one file that only its owner can read: the error, the request as it was sent, the answer's status and
/// bytes (of a long one both ends), and what had been read of it. The
/// credentials of the endpoint are masked, wherever they stand.
///
/// # Errors
/// Those of the file system.
pub(crate) fn write(
    dir: &Path,
    profile: &Profile,
    error: &AgentError,
    request: Option<&DryRun>,
    raw: Option<&RawAnswer>,
    partial: &str,
    messages: &[Message],
) -> std::io::Result<PathBuf> {
    let body = request.map(|r| serde_json::from_str(&r.body).unwrap_or_else(|_| Value::String(r.body.clone())));
    let body = body.map(without_secrets);
    let chat: Vec<Value> = messages
        .iter()
        .map(|m| json!({"role": m.role.as_str(), "content": brief(&m.content, MAX_TEXT)}))
        .collect();
    let time = decanus_chat::timestamp();
    let snapshot = json!({
        "time": time,
        "error": {"kind": error.kind().as_str(), "message": error.to_string()},
        "endpoint": profile.name,
        "backend": profile.backend,
        "model": profile.model,
        "target": request.map(|r| r.target.clone()),
        "request": body,
        "response": raw.map(|r| json!({
            "status": r.status, "content_type": r.content_type, "length": r.length, "body": r.text(),
        })),
        "partial": brief(partial, MAX_TEXT),
        "messages": chat,
    });
    let text = Redactor::new(profile).clean(&format!("{snapshot:#}\n"));
    std::fs::create_dir_all(dir)?;
    let name = format!("{}-{}.json", time.replace([':', '.'], "-"), std::process::id());
    let path = dir.join(name);
    let mut file = std::fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&path)?;
    file.write_all(text.as_bytes())?;
    prune(dir);
    Ok(path)
}

/// A request's body without the values of members that are called like credentials: an option may have been one.
fn without_secrets(mut body: Value) -> Value {
    let is_secret = |name: &str| {
        let name = name.to_lowercase().replace('-', "_");
        let last = name.rsplit('_').next().unwrap_or_default();
        ["key", "apikey", "token", "secret", "password", "authorization"].contains(&last)
    };
    match &mut body {
        Value::Object(map) => {
            for (name, value) in map.iter_mut() {
                *value = match value.take() {
                    Value::String(_) if is_secret(name) => "…".into(),
                    other => without_secrets(other),
                };
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| *item = without_secrets(item.take())),
        _ => {}
    }
    body
}

/// Removes the oldest; their names begin with the time.
fn prune(dir: &Path) {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let mut files: Vec<PathBuf> = entries.map(|e| e.path()).collect();
    files.sort();
    let extra = files.len().saturating_sub(KEPT);
    for old in &files[..extra] {
        let _ = std::fs::remove_file(old);
    }
}
