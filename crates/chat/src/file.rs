//! Where a conversation is kept: a chat file, or memory. A file is only ever appended to, whole steps at a time.
//!
//! A step on disk is a `meta` line that carries `bytes=` of what follows in the step, then the messages, and ends with a
//! line feed; it is written at once and synced. A step that is shorter than it says was torn by a crash: it is not
//! read, and before the next append it is moved to `FILE.torn`.

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use decanus_base::files::{LockError, OwnerLock, named};
use decanus_base::{Diagnostic, ErrorKind};

use crate::message::{Message, Role};
use crate::meta::Meta;
use crate::parse::{Parsed, Problem, parse};
use crate::print::print_beside;

/// How long a second writer waits for the first.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// What a store's content was when it was last seen. An append that expects another one is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Version(pub u64);

/// Why a step was not stored.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Somebody else writes to the chat.
    #[error("{0}")]
    Held(LockError),
    /// Somebody wrote to the chat since it was read.
    #[error("{}: the file was changed by somebody else during the run", .0.display())]
    Stale(PathBuf),
    /// What is in the file would swallow what is appended.
    #[error("{}:{line}: the fence, `[[` or element opened here is never closed, so nothing can be appended", file.display())]
    OpenRegion {
        /// The chat file.
        file: PathBuf,
        /// Where the region begins.
        line: usize,
    },
    /// It is no file, or may not be read.
    #[error("{0}")]
    Unreadable(String),
    /// The file system refused.
    #[error("the chat could not be written: {0}")]
    Io(#[from] io::Error),
}

impl Diagnostic for StoreError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Held(_) => ErrorKind::Usage,
            Self::Stale(_) | Self::OpenRegion { .. } | Self::Unreadable(_) => ErrorKind::Config,
            Self::Io(_) => ErrorKind::Internal,
        }
    }

    fn hints(&self) -> Vec<String> {
        match self {
            Self::Held(_) => vec!["wait until the other run has ended, or use another chat".into()],
            Self::Stale(_) => vec!["run the command again; it goes on from what is in the file now".into()],
            _ => Vec::new(),
        }
    }
}

/// A conversation's store.
pub trait Transcript: Send {
    /// Stores one step: all of it or nothing. `meta` is its bookkeeping.
    ///
    /// # Errors
    /// [`StoreError::Stale`] when the store is not at `expect`; otherwise those of writing.
    fn append(&mut self, meta: &Meta, step: &[Message], expect: Version) -> Result<Version, StoreError>;

    /// What the store is at.
    fn version(&self) -> Version;
}

/// A store that forgets: for questions without a chat.
#[derive(Debug, Default)]
pub struct NoTranscript(u64);

impl Transcript for NoTranscript {
    fn append(&mut self, _: &Meta, _: &[Message], _: Version) -> Result<Version, StoreError> {
        self.0 += 1;
        Ok(self.version())
    }

    fn version(&self) -> Version {
        Version(self.0)
    }
}

/// A store in memory.
#[derive(Debug, Default)]
pub struct MemoryTranscript {
    /// Everything appended, metas included.
    pub messages: Vec<Message>,
}

impl Transcript for MemoryTranscript {
    fn append(&mut self, meta: &Meta, step: &[Message], _expect: Version) -> Result<Version, StoreError> {
        if meta.pairs().next().is_some() {
            self.messages.push(meta.to_message());
        }
        self.messages.extend_from_slice(step);
        Ok(self.version())
    }

    fn version(&self) -> Version {
        Version(self.messages.len() as u64)
    }
}

/// A chat file that is being continued. While it is open nobody else can append to it.
#[derive(Debug)]
pub struct ChatFile {
    path: PathBuf,
    file: File,
    length: u64,
    unclosed_tags: BTreeSet<String>,
    open_region: Option<usize>,
    /// Whether the file was made by opening it.
    is_new: bool,
    _lock: OwnerLock,
}

/// What a chat file holds.
#[derive(Debug, Default)]
pub struct Loaded {
    /// The whole steps and all that was written by hand.
    pub parsed: Parsed,
    /// Where a torn step begins, in bytes; everything before it is whole.
    pub torn_at: Option<usize>,
}

/// Reads chat text; a torn last step is left out and reported as a problem.
pub fn load(text: &str) -> Loaded {
    let parsed = parse(text);
    let torn = torn_at(text, &parsed);
    let Some(at) = torn else {
        return Loaded { parsed, torn_at: None };
    };
    let line = text[..at].matches('\n').count() + 1;
    // Not beside the second one: a long chat is in memory often enough.
    drop(parsed);
    let mut parsed = parse(&text[..at]);
    parsed.problems.push(Problem::warning(
        line,
        "the last step was cut off while it was written; it is set aside",
    ));
    Loaded {
        parsed,
        torn_at: Some(at),
    }
}

/// Where a step begins that is shorter than its `bytes=` says, or of which not even the meta line is whole.
fn torn_at(text: &str, parsed: &Parsed) -> Option<usize> {
    // The beginning of the first step of a chat that decanus made.
    if text.len() > 1 && "\nmeta: ".starts_with(text) {
        return Some(0);
    }
    let mut step = None;
    // From the end on: a later step shows that an earlier one was whole when that was written; since then somebody edited
    // the file.
    for (message, header) in parsed.messages.iter().zip(&parsed.headers).rev() {
        if message.role != Role::Meta {
            continue;
        }
        let begin = text[..header.start].strip_suffix('\n').map_or(header.start, str::len);
        if !text[header.clone()].ends_with('\n') {
            return Some(begin);
        }
        if let Some(bytes) = Meta::read(&message.content).count("bytes") {
            let bytes = usize::try_from(bytes).ok();
            let end = bytes.and_then(|b| header.end.checked_add(b)).unwrap_or(usize::MAX);
            step = Some((begin, end));
            break;
        }
    }
    let (begin, end) = step?;
    if end > text.len() {
        return Some(begin);
    }
    // The first bytes of the next step's meta line.
    let rest = text.get(end..)?;
    (rest.len() > 1 && "\nmeta: ".starts_with(rest)).then_some(end)
}

impl ChatFile {
    /// Opens a chat for appending, making it and its folder when absent. A torn last step is moved to `FILE.torn`.
    ///
    /// # Errors
    /// When somebody else holds it for longer than `patience`, or it can't be read.
    pub fn open(path: &Path, patience: Duration, stop: &dyn Fn() -> bool) -> Result<(Self, Loaded), StoreError> {
        if path.is_dir() {
            return Err(StoreError::Unreadable(format!("{}: not a file", path.display())));
        }
        if let Some(dir) = path.parent() {
            std::fs::create_dir_all(dir).map_err(|e| StoreError::Unreadable(named(e, dir).to_string()))?;
        }
        let lock = OwnerLock::acquire(&lock_path(path), patience, stop).map_err(|e| match e {
            LockError::Held { holder, .. } => StoreError::Held(LockError::Held {
                path: path.to_owned(),
                holder,
            }),
            LockError::Io(e) => StoreError::Io(e),
        })?;
        let found = std::fs::metadata(path);
        if found.as_ref().is_ok_and(|m| !m.is_file()) {
            return Err(StoreError::Unreadable(format!("{}: not a file", path.display())));
        }
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        let unreadable = |e| StoreError::Unreadable(named(e, path).to_string());
        let mut file = options.open(path).map_err(unreadable)?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).map_err(|e| named(e, path))?;
        let size = bytes.len();
        let loaded = read_bytes(bytes);
        if let Some(at) = loaded.torn_at {
            let mut torn = Vec::new();
            file.seek(SeekFrom::Start(at as u64))?;
            file.read_to_end(&mut torn).map_err(|e| named(e, path))?;
            set_aside(path, &torn)?;
            file.set_len(at as u64)?;
        }
        let chat = Self {
            path: path.to_owned(),
            length: loaded.torn_at.unwrap_or(size) as u64,
            file,
            unclosed_tags: loaded.parsed.unclosed_tags.clone(),
            open_region: loaded.parsed.open_region,
            is_new: found.is_err(),
            _lock: lock,
        };
        Ok((chat, loaded))
    }

    /// Reads a chat without locking or changing it.
    ///
    /// # Errors
    /// When it can't be read or is not text.
    pub fn read(path: &Path) -> Result<Loaded, StoreError> {
        // A pipe would be waited for, and a device may have no end.
        if std::fs::metadata(path).is_ok_and(|m| !m.is_file()) {
            return Err(StoreError::Unreadable(format!("{}: not a file", path.display())));
        }
        let bytes = std::fs::read(path).map_err(|e| StoreError::Unreadable(named(e, path).to_string()))?;
        Ok(read_bytes(bytes))
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// Reads the bytes of a chat. What is no UTF-8 damages the messages it stands in, and no others.
fn read_bytes(bytes: Vec<u8>) -> Loaded {
    let bytes = match String::from_utf8(bytes) {
        Ok(text) => return load(&text),
        Err(e) => e.into_bytes(),
    };
    // As many characters as there were bytes, so that every place in the file stays where it was.
    let mut text = String::with_capacity(bytes.len());
    let mut wrong = Vec::new();
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        if !chunk.invalid().is_empty() {
            wrong.push(text.len());
            text.extend(std::iter::repeat_n('?', chunk.invalid().len()));
        }
    }
    let mut loaded = load(&text);
    let whole = loaded.torn_at.unwrap_or(text.len());
    let parsed = &mut loaded.parsed;
    // A place belongs to the last message that begins before it.
    let mut damaged: Vec<usize> = wrong
        .into_iter()
        .filter(|at| *at < whole)
        .filter_map(|at| parsed.headers.partition_point(|h| h.start <= at).checked_sub(1))
        .collect();
    damaged.dedup();
    for index in &damaged {
        let message = &parsed.messages[*index];
        let text = format!("the {} message is not UTF-8 text; it is left out", message.role);
        parsed.problems.push(Problem::error(message.line.unwrap_or(0), text));
    }
    let mut kept = (0..).map(|index| damaged.binary_search(&index).is_err());
    let mut also = kept.clone();
    parsed.messages.retain(|_| kept.next().unwrap_or(true));
    parsed.headers.retain(|_| also.next().unwrap_or(true));
    loaded
}

/// Hidden beside the chat, so that it is on the same file system and disappears with the folder.
fn lock_path(path: &Path) -> PathBuf {
    let name = path
        .file_name()
        .map(|n| n.to_string_lossy().into_owned())
        .unwrap_or_default();
    path.with_file_name(format!(".{name}.lock"))
}

fn set_aside(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut aside = path.as_os_str().to_owned();
    aside.push(".torn");
    let aside = PathBuf::from(aside);
    let mut file = OpenOptions::new()
        .create(true)
        .append(true)
        .open(&aside)
        .map_err(|e| named(e, &aside))?;
    file.write_all(bytes)?;
    file.write_all(b"\n")?;
    file.sync_data()
}

impl Transcript for ChatFile {
    fn append(&mut self, meta: &Meta, step: &[Message], expect: Version) -> Result<Version, StoreError> {
        if let Some(line) = self.open_region {
            return Err(StoreError::OpenRegion {
                file: self.path.clone(),
                line,
            });
        }
        let on_disk = self.file.metadata()?.len();
        if Version(on_disk) != expect || on_disk != self.length {
            return Err(StoreError::Stale(self.path.clone()));
        }
        let mut body = print_beside(step, &self.unclosed_tags);
        if !body.is_empty() {
            body.push('\n');
        }
        let mut meta = meta.clone();
        meta.set("bytes", body.len());
        let mut record = String::new();
        self.file.seek(SeekFrom::End(0))?;
        if self.length > 0 && !self.ends_with_line_feed()? {
            record.push('\n');
        }
        record.push_str(&print_beside(&[meta.to_message()], &self.unclosed_tags));
        record.push('\n');
        record.push_str(&body);
        let written = self
            .file
            .write_all(record.as_bytes())
            .and_then(|()| self.file.sync_data());
        if let Err(e) = written {
            // Half a step must not stay behind when the disk is full: what was there before is whole.
            let _ = self.file.set_len(self.length);
            return Err(named(e, &self.path).into());
        }
        self.length += record.len() as u64;
        Ok(Version(self.length))
    }

    fn version(&self) -> Version {
        Version(self.length)
    }
}

impl ChatFile {
    fn ends_with_line_feed(&mut self) -> io::Result<bool> {
        let mut last = [0u8];
        self.file.seek(SeekFrom::End(-1))?;
        self.file.read_exact(&mut last)?;
        Ok(last[0] == b'\n')
    }
}

impl Drop for ChatFile {
    fn drop(&mut self) {
        // A chat that was opened and never written to does not come to be.
        if self.is_new && self.length == 0 {
            let empty = self.file.metadata().is_ok_and(|m| m.len() == 0);
            if empty {
                let _ = std::fs::remove_file(&self.path);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(path: &Path) -> (ChatFile, Loaded) {
        ChatFile::open(path, Duration::ZERO, &|| false).unwrap()
    }

    fn step(chat: &mut ChatFile, messages: &[Message]) {
        let version = chat.version();
        chat.append(Meta::new().set("pt", 1), messages, version).unwrap();
    }

    #[test]
    fn steps_are_appended_and_read_back() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("chats/a.chat");
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, "system: Be brief.\n\nuser: by hand").unwrap();
        let (mut chat, loaded) = open(&path);
        assert_eq!(loaded.parsed.messages.len(), 2);
        step(&mut chat, &[Message::assistant("One\n\nuser: not a header")]);
        step(&mut chat, &[Message::user("Two")]);
        drop(chat);
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(
            text.starts_with("system: Be brief.\n\nuser: by hand\n\nmeta: pt=1 bytes="),
            "{text}"
        );
        let (_, again) = open(&path);
        let roles: Vec<_> = again.parsed.messages.iter().map(|m| m.role.as_str()).collect();
        assert_eq!(roles, ["system", "user", "meta", "assistant", "meta", "user"]);
        assert_eq!(again.parsed.messages[3].content, "One\n\nuser: not a header");
        assert!(again.parsed.problems.is_empty());
    }

    #[test]
    fn a_cut_at_any_byte_loses_only_the_last_step() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.chat");
        let (mut chat, _) = open(&path);
        step(&mut chat, &[Message::user("Q: ñandú?")]);
        let whole = chat.version().0 as usize;
        step(&mut chat, &[Message::assistant("first line\nsecond 号\n\nlast")]);
        drop(chat);
        let bytes = std::fs::read(&path).unwrap();
        for cut in whole..bytes.len() {
            let path = dir.path().join(format!("{cut}.chat"));
            std::fs::write(&path, &bytes[..cut]).unwrap();
            let (mut chat, loaded) = open(&path);
            let contents: Vec<_> = loaded.parsed.messages.iter().filter(|m| m.role != Role::Meta).collect();
            assert_eq!(contents, [&Message::user("Q: ñandú?")], "cut at {cut}");
            assert_eq!(loaded.torn_at.is_some(), cut > whole + 1, "cut at {cut}");
            step(&mut chat, &[Message::assistant("again")]);
            drop(chat);
            let (_, healed) = open(&path);
            assert!(healed.parsed.problems.is_empty(), "{:?}", healed.parsed.problems);
            assert_eq!(healed.parsed.messages.last(), Some(&Message::assistant("again")));
        }
    }

    #[test]
    fn an_empty_chat_stays_and_a_new_one_without_a_step_does_not_come_to_be() {
        let dir = tempfile::tempdir().unwrap();
        let (old, new) = (dir.path().join("old.chat"), dir.path().join("new.chat"));
        std::fs::write(&old, "").unwrap();
        drop(open(&old));
        drop(open(&new));
        assert!(old.exists() && !new.exists());
        assert!(
            ChatFile::open(dir.path(), Duration::ZERO, &|| false)
                .unwrap_err()
                .to_string()
                .ends_with("not a file")
        );
    }

    #[test]
    fn bytes_that_are_no_text_damage_their_own_message_alone() {
        let dir = tempfile::tempdir().unwrap();
        for (name, bytes) in [
            ("a", &b"user: a\nuser: caf\xe9\nuser: b\n"[..]),
            ("b", &b"user: a\n\nuser: b\nuser: \xc3"[..]),
        ] {
            let path = dir.path().join(name);
            std::fs::write(&path, bytes).unwrap();
            let (mut chat, loaded) = open(&path);
            assert_eq!(loaded.parsed.messages, [Message::user("a"), Message::user("b")]);
            let problem = &loaded.parsed.problems[0];
            assert!(problem.error && problem.message.contains("UTF-8"), "{problem:?}");
            assert_eq!(problem.line, if name == "a" { 2 } else { 4 });
            // Nothing of it is lost or changed, and what is appended is whole.
            step(&mut chat, &[Message::assistant("c")]);
            drop(chat);
            assert!(std::fs::read(&path).unwrap().starts_with(bytes));
            assert_eq!(open(&path).1.parsed.messages.last(), Some(&Message::assistant("c")));
        }
    }

    #[test]
    fn the_first_step_of_a_new_chat_may_be_torn_anywhere() {
        for cut in 2.."\nmeta: bytes".len() {
            let loaded = load(&"\nmeta: bytes=20 timestamp=2026"[..cut]);
            assert_eq!((loaded.torn_at, loaded.parsed.messages.len()), (Some(0), 0), "{cut}");
        }
    }

    #[test]
    fn hand_written_text_without_a_last_line_feed_is_whole() {
        assert!(load("user: hi").torn_at.is_none());
        assert!(load("user: hi\nm").torn_at.is_none());
    }

    #[test]
    fn a_second_writer_is_told_who_is_first() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.chat");
        let (_first, _) = open(&path);
        let error = ChatFile::open(&path, Duration::from_millis(20), &|| false).unwrap_err();
        assert!(matches!(error, StoreError::Held(_)));
        assert!(error.to_string().contains("a.chat is in use by process"), "{error}");
    }

    #[test]
    fn a_change_by_somebody_else_is_noticed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.chat");
        let (mut chat, _) = open(&path);
        step(&mut chat, &[Message::user("a")]);
        std::fs::write(&path, "user: edited by hand\n").unwrap();
        let version = chat.version();
        assert!(matches!(
            chat.append(&Meta::new(), &[], version),
            Err(StoreError::Stale(_))
        ));
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "user: edited by hand\n");
    }

    #[test]
    fn nothing_is_appended_into_an_open_fence() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.chat");
        std::fs::write(&path, "user: x\n\n```\ncode\n").unwrap();
        let (mut chat, _) = open(&path);
        let version = chat.version();
        let error = chat.append(&Meta::new(), &[Message::user("y")], version).unwrap_err();
        assert!(error.to_string().contains("a.chat:3:"), "{error}");
    }
}
