//! Entries: what is known of a model that lies on this machine.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use decanus_base::files::write_atomic;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::error::ModelError;
use super::name::{Known, Name};

/// Models whose file is smaller than this are not trusted with stating a tool's result: about half a billion
/// parameters at 4 bits.
const SMALL: u64 = 300_000_000;

/// What is known of a model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// Its name.
    pub name: String,
    /// Its file; written relative to the entry's folder.
    pub file: PathBuf,
    /// SHA-256 of the file, where it was computed.
    #[serde(default)]
    pub sha256: String,
    /// Where it came from.
    #[serde(default)]
    pub source: String,
    /// Whether the model is large enough to be trusted with stating a tool's result. When it is not, a template does.
    #[serde(default)]
    pub trusted: bool,
    /// The most tokens of a conversation; the model's own limit, or 8192, when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context: Option<u32>,
    /// Parameters that hold unless the endpoint or the request says otherwise.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub parameters: Map<String, Value>,
}

impl Entry {
    /// For a file that was just fetched.
    pub(super) fn pulled(name: &Name, file: &Path, sha256: String, source: &str) -> Result<Self, ModelError> {
        check_magic(file)?;
        let size = fs::metadata(file).map_err(|e| ModelError::file(file, e))?.len();
        Ok(Self {
            name: name.to_string(),
            file: file.to_owned(),
            sha256,
            source: source.to_owned(),
            trusted: size >= SMALL,
            context: None,
            parameters: Map::new(),
        })
    }

    /// For a file of the catalogue.
    pub(super) fn known(known: &'static Known, file: &Path) -> Result<Self, ModelError> {
        let source = format!("pip:{}", known.package);
        let mut entry = Self::pulled(&Name::Catalogue(known), file, known.sha256.into(), &source)?;
        entry.trusted = known.trusted;
        Ok(entry)
    }

    /// For a file of the user's, which stays where it is.
    pub(super) fn of_file(name: &Name, path: &Path) -> Result<Self, ModelError> {
        Self::pulled(name, path, String::new(), "the user's file")
    }
}

/// Refuses a file that is no model.
pub(super) fn check_magic(file: &Path) -> Result<(), ModelError> {
    let mut magic = [0; 4];
    let mut open = fs::File::open(file).map_err(|e| ModelError::file(file, e))?;
    match open.read_exact(&mut magic) {
        Ok(()) if &magic == b"GGUF" => Ok(()),
        Ok(()) => Err(ModelError::NotAModel(file.to_owned())),
        Err(e) if e.kind() == std::io::ErrorKind::UnexpectedEof => Err(ModelError::NotAModel(file.to_owned())),
        Err(e) => Err(ModelError::file(file, e)),
    }
}

fn place(folder: &Path, name: &Name) -> PathBuf {
    folder.join(format!("{}.json", name.file_name()))
}

/// Writes an entry.
pub(super) fn write(folder: &Path, name: &Name, entry: &Entry) -> Result<(), ModelError> {
    let path = place(folder, name);
    let mut entry = entry.clone();
    // The folder may be moved.
    if let Ok(relative) = entry.file.strip_prefix(folder) {
        entry.file = relative.to_owned();
    }
    let text = serde_json::to_string_pretty(&entry).map_err(|e| ModelError::File {
        path: path.clone(),
        reason: e.to_string(),
    })?;
    write_atomic(&path, format!("{text}\n").as_bytes()).map_err(|e| ModelError::file(&path, e))
}

/// Reads the entry of a model, if there is one.
pub(super) fn read(folder: &Path, name: &Name) -> Result<Option<Entry>, ModelError> {
    read_file(folder, &place(folder, name))
}

fn read_file(folder: &Path, path: &Path) -> Result<Option<Entry>, ModelError> {
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(ModelError::file(path, e)),
    };
    let mut entry: Entry = serde_json::from_str(&text).map_err(|e| ModelError::File {
        path: path.to_owned(),
        reason: format!("not an entry of a model: {e}"),
    })?;
    entry.file = folder.join(entry.file);
    Ok(Some(entry))
}

/// All entries.
pub(super) fn all(folder: &Path) -> Result<Vec<Entry>, ModelError> {
    let files = match fs::read_dir(folder) {
        Ok(files) => files,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(ModelError::file(folder, e)),
    };
    let mut entries = Vec::new();
    for file in files.flatten() {
        let path = file.path();
        if path.extension().is_some_and(|e| e == "json") {
            match read_file(folder, &path) {
                Ok(entry) => entries.extend(entry),
                Err(error) => tracing::warn!("{error}"),
            }
        }
    }
    entries.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(entries)
}
