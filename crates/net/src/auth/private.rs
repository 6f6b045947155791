//! Files for the user's eyes only.

use std::fs::{DirBuilder, File};
use std::io::{self, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

use super::error::AuthError;

/// Makes a folder that only the user may enter, if it is not there.
pub(crate) fn folder(dir: &Path) -> Result<(), AuthError> {
    let made = DirBuilder::new().recursive(true).mode(0o700).create(dir);
    made.map_err(|e| AuthError::store(dir, e))
}

/// Replaces a file's content at once. The file has mode 0600, and it is on the disk when this returns: a refresh token that
/// was lost can't be had again.
pub(crate) fn write(path: &Path, bytes: &[u8]) -> Result<(), AuthError> {
    let dir = path
        .parent()
        .filter(|p| !p.as_os_str().is_empty())
        .unwrap_or(Path::new("."));
    folder(dir)?;
    let step = || -> io::Result<()> {
        let mut temporary = tempfile::Builder::new().prefix(".tmp-").tempfile_in(dir)?;
        temporary.write_all(bytes)?;
        temporary.as_file().sync_all()?;
        temporary.persist(path).map_err(|e| e.error)?;
        File::open(dir)?.sync_all()
    };
    step().map_err(|e| AuthError::store(path, e))
}
