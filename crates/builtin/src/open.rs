//! Opening what was checked, and nothing else.

use std::fs::{File, Metadata};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{OFlag, open, openat};
use nix::sys::stat::{Mode, mkdirat};

/// Opens a regular file for reading by a path that has no links, and follows none that came into it since. Pipes are not
/// waited for, and the files of `/proc` and `/sys` are not opened.
///
/// # Errors
/// `InvalidInput` when it is something else than a regular file; those of the system.
pub(crate) fn regular(real: &Path) -> io::Result<(File, Metadata)> {
    let kind = |text: &str| io::Error::new(io::ErrorKind::InvalidInput, text.to_owned());
    // Looked at before it is opened, since opening a device can already do something.
    let before = real.symlink_metadata()?;
    if before.is_dir() {
        return Err(kind("is a folder, not a file"));
    }
    if !before.is_file() {
        return Err(kind("is not a regular file"));
    }
    let flags = OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
    let file = File::from(without_links(real, flags)?);
    let metadata = file.metadata()?;
    if !metadata.is_file() || is_of_the_kernel(&file) {
        return Err(kind("is not a regular file"));
    }
    Ok((file, metadata))
}

/// Opens a folder by a path that has no links, and makes what is missing of it, step by step from what is there.
///
/// # Errors
/// Those of the system.
pub(crate) fn folder_made(real: &Path) -> io::Result<OwnedFd> {
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY;
    let existing = real.ancestors().find(|a| a.symlink_metadata().is_ok());
    let existing = existing.ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
    let mut folder = without_links(existing, flags)?;
    let missing = real.strip_prefix(existing).map_err(io::Error::other)?;
    for name in missing {
        match mkdirat(&folder, name, Mode::from_bits_truncate(0o777)) {
            Ok(()) | Err(Errno::EEXIST) => {}
            Err(e) => return Err(e.into()),
        }
        folder = openat(
            &folder,
            name,
            flags | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC,
            Mode::empty(),
        )?;
    }
    Ok(folder)
}

/// A path to what is in an open folder, wherever that folder may be moved to.
pub(crate) fn inside(folder: &OwnedFd, path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default();
    match (cfg!(target_os = "linux"), path.parent()) {
        (false, Some(parent)) => parent.join(name),
        _ => Path::new("/proc/self/fd")
            .join(folder.as_raw_fd().to_string())
            .join(name),
    }
}

fn without_links(real: &Path, flags: OFlag) -> io::Result<OwnedFd> {
    let flags = flags | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    #[cfg(target_os = "linux")]
    {
        use nix::fcntl::{AT_FDCWD, OpenHow, ResolveFlag, openat2};
        let how = OpenHow::new()
            .flags(flags)
            .resolve(ResolveFlag::RESOLVE_NO_SYMLINKS | ResolveFlag::RESOLVE_NO_MAGICLINKS);
        match openat2(AT_FDCWD, real, how) {
            // Kernels before 5.6, and sandboxes that don't know the call.
            Err(Errno::ENOSYS | Errno::EPERM) => {}
            result => return result.map_err(refused),
        }
    }
    let file = open(real, flags, Mode::empty()).map_err(refused)?;
    #[cfg(target_os = "linux")]
    {
        let link = format!("/proc/self/fd/{}", file.as_raw_fd());
        if std::fs::read_link(link).is_ok_and(|at| at != real) {
            return Err(refused(Errno::ELOOP));
        }
    }
    Ok(file)
}

fn refused(error: Errno) -> io::Error {
    match error {
        Errno::ELOOP => io::Error::other("it changed while it was looked at"),
        other => other.into(),
    }
}

/// Whether a file has no content but what the kernel makes up, which may be secrets of processes.
fn is_of_the_kernel(file: &impl AsFd) -> bool {
    #[cfg(target_os = "linux")]
    {
        use nix::sys::statfs::{PROC_SUPER_MAGIC, SYSFS_MAGIC, fstatfs};
        let kind = fstatfs(file).map(|s| s.filesystem_type());
        matches!(kind, Ok(PROC_SUPER_MAGIC | SYSFS_MAGIC))
    }
    #[cfg(not(target_os = "linux"))]
    {
        let _ = file;
        false
    }
}
