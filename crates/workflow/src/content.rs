//! The content of files and folders as part of a job's identity.

use std::fs;
use std::path::{Path, PathBuf};

use decanus_base::digest::ValueHasher;
use serde_json::Value;

use crate::input::InputType;

/// A folder with more files than this is too large to be an input.
const MOST_FILES: usize = 10_000;

/// Adds what a value of such a type ([`InputType::reads_content`]) names to an identity: not where it is, but what is in
/// it. `file` gives the digest of one file.
///
/// # Errors
/// Those of `file`; a folder that can't be read or is too large.
pub(crate) fn hash<E>(
    hasher: &mut ValueHasher,
    kind: InputType,
    value: &Value,
    file: &mut dyn FnMut(&Path) -> Result<String, E>,
    fail: impl FnOnce(String) -> E,
) -> Result<(), E> {
    match value {
        Value::String(path) if kind == InputType::Folder => {
            hasher.text("folder");
            let root = Path::new(path);
            for (name, place) in folder(root).map_err(fail)? {
                match place {
                    Place::File(path) => hasher.text("file").text(&name).text(&file(&path)?),
                    Place::Folder => hasher.text("folder").text(&name),
                    Place::Link(target) => hasher.text("link").text(&name).text(&target),
                };
            }
        }
        Value::String(path) => {
            hasher.text("content").text(&file(Path::new(path))?);
        }
        Value::Array(items) => {
            hasher.text("contents").text(&items.len().to_string());
            for item in items {
                hasher.text(&file(Path::new(item.as_str().unwrap_or_default()))?);
            }
        }
        other => {
            hasher.value(other);
        }
    }
    Ok(())
}

enum Place {
    File(PathBuf),
    Folder,
    /// A link to a folder, or to nothing: it is its target's text, so that no circle is walked.
    Link(String),
}

/// What is in a folder, by name.
fn folder(root: &Path) -> Result<Vec<(String, Place)>, String> {
    let mut found = Vec::new();
    let mut open = vec![root.to_owned()];
    while let Some(dir) = open.pop() {
        let fail = |e: std::io::Error| format!("{}: {e}", dir.display());
        for entry in fs::read_dir(&dir).map_err(fail)? {
            let entry = entry.map_err(fail)?;
            let path = entry.path();
            let name = path.strip_prefix(root).unwrap_or(&path).to_string_lossy().into_owned();
            let own = entry.file_type().map_err(fail)?;
            // A link to a file is that file.
            let target = fs::metadata(&path).ok().map(|m| m.file_type());
            if own.is_dir() {
                open.push(path);
                found.push((name, Place::Folder));
            } else if target.is_some_and(|t| t.is_file()) {
                found.push((name, Place::File(path)));
            } else if own.is_symlink() {
                let to = fs::read_link(&path).map_err(fail)?;
                found.push((name, Place::Link(to.to_string_lossy().into_owned())));
            }
            if found.len() > MOST_FILES {
                return Err(format!(
                    "{}: more than {MOST_FILES} files, too many for an input; name the files, or use the type `path`",
                    root.display()
                ));
            }
        }
    }
    found.sort_by(|a, b| a.0.cmp(&b.0));
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use decanus_base::digest::sha256_file;

    fn digest(path: &Path) -> String {
        let mut hasher = ValueHasher::new();
        let value = path.display().to_string().into();
        let mut file = |path: &Path| sha256_file(path).map_err(|e| e.to_string());
        hash(&mut hasher, InputType::Folder, &value, &mut file, |e| e).unwrap();
        hasher.hex()
    }

    #[test]
    fn a_folder_is_its_names_and_contents() {
        let dir = tempfile::tempdir().unwrap();
        let make = |name: &str| {
            let folder = dir.path().join(name);
            fs::create_dir_all(folder.join("sub")).unwrap();
            fs::write(folder.join("a"), "1").unwrap();
            fs::write(folder.join("sub/b"), "2").unwrap();
            // A circle.
            std::os::unix::fs::symlink("..", folder.join("sub/up")).unwrap();
            folder
        };
        let (one, two) = (make("one"), make("two"));
        let first = digest(&one);
        assert_eq!(first, digest(&two), "where it is does not matter");
        fs::write(two.join("sub/b"), "3").unwrap();
        assert_ne!(first, digest(&two));
        fs::write(two.join("sub/b"), "2").unwrap();
        assert_eq!(first, digest(&two));
        fs::rename(two.join("a"), two.join("c")).unwrap();
        assert_ne!(first, digest(&two));
        fs::rename(two.join("c"), two.join("a")).unwrap();
        fs::create_dir(two.join("empty")).unwrap();
        assert_ne!(first, digest(&two));
    }

    #[test]
    fn a_folder_with_too_many_files_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        for n in 0..=MOST_FILES {
            fs::write(dir.path().join(n.to_string()), "").unwrap();
        }
        let error = folder(dir.path()).err().unwrap();
        assert!(error.contains("more than 10000 files"), "{error}");
    }
}
