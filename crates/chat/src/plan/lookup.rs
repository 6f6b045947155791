//! Where the paths in a chat lead, and where they may not.

use std::fmt;
use std::io::Read;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

/// Bytes of a text file that a chat shows the model.
pub const MAX_FILE: u64 = 10 << 20;
/// Bytes of a chat that another one imports.
pub const MAX_CHAT: u64 = 64 << 20;

/// Where files are looked up, and which may be read.
#[derive(Clone, Debug, Default)]
pub struct Lookup {
    /// What a path is relative to when it is not found beside the chat. Names in messages are relative to it.
    pub working_dir: PathBuf,
    /// The folders and files that may be read: the project's root, and the allowed paths.
    pub readable: Vec<PathBuf>,
    /// The folders and files that are never read, whatever else is said: the user's credentials.
    pub kept: Vec<PathBuf>,
    /// The folders of chats on the search path, in which a path is looked up last.
    pub chats: Vec<PathBuf>,
    /// The folder of the chat that the user named: what is below it may be read, but for hidden files and folders.
    pub beside: Option<PathBuf>,
    /// Whether the chat was named by the user, and may therefore run commands and grant paths.
    pub named_by_user: bool,
    /// Whether commands (`cmd`) were allowed.
    pub allow_cmd: bool,
}

/// A chat that messages come from.
#[derive(Debug)]
pub struct Source {
    /// The file; none for messages that come from no file.
    pub path: Option<PathBuf>,
    /// What its paths are relative to.
    pub dir: PathBuf,
    /// The file as it is named in messages.
    pub shown: String,
    /// The chat that imported it, and the line.
    pub parent: Option<(Arc<Source>, usize)>,
}

/// A line of a chat.
#[derive(Clone, Debug)]
pub struct Place {
    /// The chat.
    pub source: Arc<Source>,
    /// The line, from 1; 0 where it is not known.
    pub line: usize,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.source.shown, self.line)
    }
}

impl Place {
    /// The imports that lead to this line, from the outermost: `a.chat:1 -> b.chat:2`; empty for the chat itself.
    pub fn chain(&self) -> String {
        let mut steps = Vec::new();
        let mut parent = self.source.parent.as_ref();
        while let Some((source, line)) = parent {
            steps.push(format!("{}:{line}", source.shown));
            parent = source.parent.as_ref();
        }
        steps.reverse();
        shorten(&steps, 8).join(" -> ")
    }
}

/// The first and last steps of a long chain.
pub(super) fn shorten(steps: &[String], most: usize) -> Vec<String> {
    if steps.len() <= most {
        return steps.to_vec();
    }
    let half = most / 2;
    let mut short = steps[..half].to_vec();
    short.push(format!("({} more)", steps.len() - most));
    short.extend_from_slice(&steps[steps.len() - (most - half)..]);
    short
}

/// A file or folder that was found and may be read.
#[derive(Debug, Clone)]
pub struct Found {
    /// The path to it, by the names that were written.
    pub path: PathBuf,
    /// The same, absolute and without links.
    pub real: PathBuf,
}

impl Lookup {
    /// The source of a chat that the user named.
    pub fn source(&self, path: &Path) -> Arc<Source> {
        self.imported(path, None)
    }

    pub(super) fn imported(&self, path: &Path, parent: Option<(Arc<Source>, usize)>) -> Arc<Source> {
        Arc::new(Source {
            shown: self.shown(path),
            dir: path.parent().map(Path::to_owned).unwrap_or_default(),
            path: Some(path.to_owned()),
            parent,
        })
    }

    /// A path as messages name it: relative to the working directory if it is inside.
    pub fn shown(&self, path: &Path) -> String {
        path.strip_prefix(&self.working_dir)
            .unwrap_or(path)
            .display()
            .to_string()
    }

    /// The first that exists of: beside the chat, in the working directory, among the chats of the search path.
    ///
    /// # Errors
    /// `None` when there is none; a text when what was found may not be read.
    pub fn find(&self, written: &str, dir: &Path) -> Result<Found, Option<String>> {
        if written.is_empty() || written.contains('\0') {
            return Err(None);
        }
        let places = std::iter::once(dir).chain([self.working_dir.as_path()]);
        let places = places.chain(self.chats.iter().map(PathBuf::as_path));
        for place in places {
            let path = plain(&place.join(written));
            let Ok(real) = path.canonicalize() else { continue };
            return match self.may_read(&real) {
                true => Ok(Found { path, real }),
                false if self.is_kept(&real) => Err(Some(format!(
                    "`{written}` holds credentials, which nothing opens to chats"
                ))),
                false => Err(Some(format!(
                    "`{written}` is outside the project and the allowed paths"
                ))),
            };
        }
        Err(None)
    }

    /// Whether a path (absolute, without links) is among what is never read.
    fn is_kept(&self, real: &Path) -> bool {
        self.kept
            .iter()
            .map(|kept| real_of(kept))
            .any(|kept| real.starts_with(kept))
    }

    /// Whether a path (absolute, without links) is inside what may be read.
    pub fn may_read(&self, real: &Path) -> bool {
        if self.is_kept(real) {
            return false;
        }
        let readable = self.readable.iter().chain(&self.chats);
        if readable.map(|dir| real_of(dir)).any(|dir| real.starts_with(dir)) {
            return true;
        }
        let Some(inside) = self
            .beside
            .as_deref()
            .and_then(|dir| real.strip_prefix(real_of(dir)).ok().map(Path::to_owned))
        else {
            return false;
        };
        inside
            .components()
            .all(|c| !c.as_os_str().as_encoded_bytes().starts_with(b"."))
    }
}

/// A path with its links followed, as far as it exists.
pub fn real_of(path: &Path) -> PathBuf {
    let mut missing = Vec::new();
    for ancestor in path.ancestors() {
        if let Ok(real) = ancestor.canonicalize() {
            return missing.iter().rev().fold(real, |dir, name| dir.join(name));
        }
        missing.extend(ancestor.file_name());
    }
    path.to_owned()
}

/// A path without `.`, and without `..` where nothing but a name stands before it and no link can be in the way.
fn plain(path: &Path) -> PathBuf {
    let mut out = PathBuf::new();
    for component in path.components() {
        match component {
            Component::CurDir => {}
            Component::ParentDir if out.file_name().is_some() && !out.is_symlink() => {
                out.pop();
            }
            other => out.push(other),
        }
    }
    out
}

/// The text of a file, or why it can't be shown.
///
/// # Errors
/// A text: a folder, a device, too large, binary.
pub fn read_text(found: &Found, most: u64) -> Result<String, String> {
    let meta = std::fs::metadata(&found.real).map_err(|e| e.to_string())?;
    if meta.is_dir() {
        return Err("is a folder".into());
    }
    if !meta.is_file() {
        return Err("is not a file".into());
    }
    let limit = decanus_base::units::show_size(most);
    let too_large = |size: u64| {
        let size = decanus_base::units::show_size(size);
        format!("is too large: {size}, and the limit is {limit}")
    };
    if meta.len() > most {
        return Err(too_large(meta.len()));
    }
    let file = std::fs::File::open(&found.real).map_err(|e| format!("can't be read: {e}"))?;
    let mut bytes = Vec::with_capacity(usize::try_from(meta.len()).unwrap_or(0));
    file.take(most + 1)
        .read_to_end(&mut bytes)
        .map_err(|e| format!("can't be read: {e}"))?;
    if bytes.len() as u64 > most {
        return Err(too_large(bytes.len() as u64));
    }
    match String::from_utf8(bytes) {
        Ok(text) if text.contains('\0') => Err("is binary (it holds a NUL)".into()),
        Ok(text) => Ok(match text.strip_prefix('\u{feff}') {
            Some(rest) => rest.to_owned(),
            None => text,
        }),
        Err(e) => {
            let at = e.utf8_error().valid_up_to();
            Err(format!("is binary (byte {at} is not UTF-8 text)"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_place_counts_and_links_do_not_lead_out() {
        let dir = tempfile::tempdir().unwrap();
        let base = dir.path().canonicalize().unwrap();
        for folder in ["p/sub", "p/chats", "out"] {
            std::fs::create_dir_all(base.join(folder)).unwrap();
        }
        for file in ["p/sub/a", "p/a", "p/b", "p/chats/c", "out/secret"] {
            std::fs::write(base.join(file), file).unwrap();
        }
        std::os::unix::fs::symlink(base.join("out"), base.join("p/sub/link")).unwrap();
        let lookup = Lookup {
            working_dir: base.join("p"),
            readable: vec![base.join("p")],
            chats: vec![base.join("p/chats")],
            ..Lookup::default()
        };
        let find = |written: &str| lookup.find(written, &base.join("p/sub")).map(|f| f.path);
        assert_eq!(find("a"), Ok(base.join("p/sub/a")));
        assert_eq!(find("./../sub/a"), Ok(base.join("p/sub/a")));
        assert_eq!(find("b"), Ok(base.join("p/b")));
        assert_eq!(find("c"), Ok(base.join("p/chats/c")));
        assert_eq!(find("d"), Err(None));
        for outside in ["link/secret", "../../out/secret", "/etc/hostname"] {
            assert!(
                find(outside).unwrap_err().unwrap().contains("outside the project"),
                "{outside}"
            );
        }
        assert_eq!(lookup.shown(&base.join("p/sub/a")), "sub/a");
        let allowed = Lookup {
            readable: vec![base.join("p"), base.join("out/secret")],
            ..lookup
        };
        assert!(allowed.find("link/secret", &base.join("p/sub")).is_ok());
        let kept = Lookup {
            kept: vec![base.join("out")],
            ..allowed
        };
        let why = kept.find("link/secret", &base.join("p/sub")).unwrap_err();
        assert!(why.unwrap().contains("holds credentials"));
    }

    #[test]
    fn what_is_no_text_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let read = |name: &str, bytes: &[u8]| {
            let path = dir.path().join(name);
            std::fs::write(&path, bytes).unwrap();
            read_text(
                &Found {
                    real: path.clone(),
                    path,
                },
                8,
            )
        };
        assert_eq!(read("a", b"text"), Ok("text".into()));
        assert!(read("b", b"a\0b").unwrap_err().contains("binary"));
        assert!(read("c", b"ab\xff").unwrap_err().contains("byte 2"));
        assert!(read("d", b"123456789").unwrap_err().contains("too large"));
        let folder = Found {
            path: dir.path().into(),
            real: dir.path().into(),
        };
        assert_eq!(read_text(&folder, 8), Err("is a folder".into()));
    }
}
