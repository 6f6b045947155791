//! Writing files so that nobody ever sees half of one, and locks that name their holder.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Replaces a file's content at once: a temporary file beside it, then a rename. Missing folders are made.
///
/// # Errors
/// Those of the file system, with the path in the message; the old content is then untouched.
pub fn write_atomic(path: &Path, bytes: &[u8]) -> io::Result<()> {
    replace(path, bytes, false)
}

/// [`write_atomic`] for a file that only the user may read.
///
/// # Errors
/// Those of [`write_atomic`].
pub fn write_private(path: &Path, bytes: &[u8]) -> io::Result<()> {
    replace(path, bytes, true)
}

fn replace(path: &Path, bytes: &[u8], is_private: bool) -> io::Result<()> {
    let dir = path
        .parent()
        .filter(|p| !p.as_os_str().is_empty())
        .unwrap_or(Path::new("."));
    let step = || -> io::Result<()> {
        fs::create_dir_all(dir)?;
        let mut temporary = tempfile::Builder::new().prefix(".tmp-").tempfile_in(dir)?;
        temporary.write_all(bytes)?;
        if !is_private {
            set_default_mode(temporary.as_file())?;
        }
        temporary.persist(path).map_err(|e| e.error)?;
        Ok(())
    };
    step().map_err(|e| named(e, path))
}

/// Temporary files are made with mode 0600; a result of a project is an ordinary file under the user's umask.
fn set_default_mode(file: &File) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    file.set_permissions(fs::Permissions::from_mode(0o666 & !umask()))
}

fn umask() -> u32 {
    use std::sync::OnceLock;
    static UMASK: OnceLock<u32> = OnceLock::new();
    *UMASK.get_or_init(|| {
        let read = || {
            let status = fs::read_to_string("/proc/self/status").ok()?;
            let line = status.lines().find(|l| l.starts_with("Umask:"))?;
            u32::from_str_radix(line.split_whitespace().nth(1)?, 8).ok()
        };
        read().unwrap_or(0o022)
    })
}

/// The same error with the path it happened on.
pub fn named(error: io::Error, path: &Path) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

/// An exclusive lock on a file, held until dropped, and given up by the system when its holder dies. While it is held
/// the lock file says who holds it; afterwards the file is gone.
#[derive(Debug)]
pub struct OwnerLock {
    file: File,
    path: PathBuf,
}

/// Why a lock was not had.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Somebody else holds it; the text says who, as far as the lock file tells.
    #[error("{path} is in use by {holder}", path = path.display())]
    Held {
        /// What is locked.
        path: PathBuf,
        /// `process 123 on host`, or `another process`.
        holder: String,
    },
    /// The lock file could not be made or read.
    #[error("{0}")]
    Io(#[from] io::Error),
}

impl OwnerLock {
    /// Takes the lock, waiting up to `patience`. `stop` is asked between tries and ends the wait early.
    ///
    /// # Errors
    /// [`LockError::Held`] when the wait ended without the lock.
    pub fn acquire(path: &Path, patience: Duration, stop: &dyn Fn() -> bool) -> Result<Self, LockError> {
        if let Some(dir) = path.parent() {
            fs::create_dir_all(dir).map_err(|e| named(e, dir))?;
        }
        let start = Instant::now();
        let mut pause = Duration::from_millis(1);
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        let mut file = options.open(path).map_err(|e| named(e, path))?;
        loop {
            match file.try_lock() {
                // The holder before us may have removed the file that we had opened already.
                Ok(()) if is_at(&file, path) => break,
                Ok(()) => {
                    file = options.open(path).map_err(|e| named(e, path))?;
                    continue;
                }
                Err(TryLockError::Error(e)) => return Err(named(e, path).into()),
                Err(TryLockError::WouldBlock) => {}
            }
            if start.elapsed() >= patience || stop() {
                return Err(LockError::Held {
                    path: path.to_owned(),
                    holder: holder(&mut file),
                });
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(50));
        }
        file.set_len(0)?;
        file.rewind()?;
        write!(file, "process {} on {}", std::process::id(), crate::process::host())?;
        Ok(Self {
            file,
            path: path.to_owned(),
        })
    }
}

/// Whether the path still leads to this open file.
fn is_at(file: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    match (file.metadata(), fs::metadata(path)) {
        (Ok(open), Ok(named)) => open.ino() == named.ino() && open.dev() == named.dev(),
        _ => false,
    }
}

impl Drop for OwnerLock {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
        let _ = self.file.unlock();
    }
}

fn holder(file: &mut File) -> String {
    let mut text = String::new();
    let _ = file.rewind();
    match file.read_to_string(&mut text) {
        Ok(_) if !text.trim().is_empty() => text.trim().to_owned(),
        _ => "another process".to_owned(),
    }
}

/// Whether the file system that holds a path has no room left. False when that can't be told.
pub fn disk_is_full(path: &Path) -> bool {
    let existing = path.ancestors().find(|a| a.exists());
    existing
        .and_then(|at| nix::sys::statvfs::statvfs(at).ok())
        .is_some_and(|s| s.blocks() > 0 && s.blocks_available() == 0)
}

/// Reads an ordinary text file that must be UTF-8, with the path in every error. A byte order mark is dropped.
///
/// # Errors
/// Those of reading; `InvalidData` when it is not UTF-8.
pub fn read_text(path: &Path) -> io::Result<String> {
    // A pipe would be waited for, and a device may have no end.
    if fs::metadata(path).is_ok_and(|m| !m.is_file()) {
        return Err(named(io::Error::new(io::ErrorKind::InvalidInput, "not a file"), path));
    }
    let bytes = fs::read(path).map_err(|e| named(e, path))?;
    let mut text = String::from_utf8(bytes).map_err(|e| {
        let at = e.utf8_error().valid_up_to();
        io::Error::new(
            io::ErrorKind::InvalidData,
            format!("{}: not UTF-8 text (byte {at})", path.display()),
        )
    })?;
    if text.starts_with('\u{feff}') {
        text.drain(..'\u{feff}'.len_utf8());
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_replaces_the_whole_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("sub/a.txt");
        write_atomic(&path, b"one").unwrap();
        write_atomic(&path, b"two").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"two");
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
    }

    #[test]
    fn the_second_taker_is_told_who_holds_a_lock() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.lock");
        let first = OwnerLock::acquire(&path, Duration::ZERO, &|| false).unwrap();
        let error = OwnerLock::acquire(&path, Duration::from_millis(30), &|| false).unwrap_err();
        assert!(
            error.to_string().contains(&format!("process {}", std::process::id())),
            "{error}"
        );
        drop(first);
        OwnerLock::acquire(&path, Duration::ZERO, &|| false).unwrap();
        assert!(!path.exists());
    }

    #[test]
    fn only_one_of_many_holds_a_lock_at_a_time() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.lock");
        let inside = std::sync::atomic::AtomicU32::new(0);
        std::thread::scope(|s| {
            for _ in 0..4 {
                s.spawn(|| {
                    for _ in 0..25 {
                        let _lock = OwnerLock::acquire(&path, Duration::from_secs(20), &|| false).unwrap();
                        assert_eq!(inside.fetch_add(1, std::sync::atomic::Ordering::SeqCst), 0);
                        std::thread::sleep(Duration::from_micros(200));
                        inside.fetch_sub(1, std::sync::atomic::Ordering::SeqCst);
                    }
                });
            }
        });
    }

    #[test]
    fn text_files_name_the_bad_byte() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("t");
        fs::write(&path, b"ab\xffcd").unwrap();
        assert!(read_text(&path).unwrap_err().to_string().contains("byte 2"));
        fs::write(&path, "\u{feff}x").unwrap();
        assert_eq!(read_text(&path).unwrap(), "x");
    }
}
