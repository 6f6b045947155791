//! Digests of files, remembered across processes: a large input is read once, not each time somebody asks for a job.
//!
//! The store is a text file to which lines are appended, each with one write: digest, stamp, path. A stamp is all that
//! the file system says of a file's state. A line that is torn or foreign fits no file and is passed over; a lost one
//! costs a reading.

use std::collections::HashMap;
use std::fs::{self, Metadata, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use decanus_base::digest::sha256_file;
use decanus_base::files::{named, write_atomic};

/// Smaller files are read each time: that costs no more than looking them up.
const SMALL: u64 = 32 << 10;
/// A file that was changed a moment ago may change again without its times telling.
const SETTLED: Duration = Duration::from_secs(2);
/// Lines of the store beyond twice what they tell, at which it is written anew.
const SPARE: usize = 1000;
/// Files that are remembered; the oldest are dropped.
const MOST: usize = 100_000;

/// The SHA-256 of files. Clones share what they know.
#[derive(Clone, Debug, Default)]
pub struct Digests(Option<Arc<Known>>);

#[derive(Debug)]
struct Known {
    store: PathBuf,
    /// Stamp and digest by path; none before the store was read.
    files: Mutex<Option<HashMap<PathBuf, (String, String)>>>,
}

impl Digests {
    /// Digests that are kept in this file.
    pub fn at(store: impl Into<PathBuf>) -> Self {
        Self(Some(Arc::new(Known {
            store: store.into(),
            files: Mutex::new(None),
        })))
    }

    /// The SHA-256 of a file's content, in lower-case hexadecimal.
    ///
    /// # Errors
    /// Those of reading the file, with its path.
    pub fn of(&self, path: &Path) -> io::Result<String> {
        let about = || fs::metadata(path).map_err(|e| named(e, path));
        let read = || sha256_file(path).map_err(|e| named(e, path));
        let Some(known) = &self.0 else { return read() };
        let before = about()?;
        if before.len() < SMALL || !before.is_file() {
            return read();
        }
        let now = stamp(&before);
        if let Some(digest) = known.get(path, &now) {
            return Ok(digest);
        }
        let digest = read()?;
        if is_settled(&before) && stamp(&about()?) == now {
            known.remember(path, now, &digest);
        }
        Ok(digest)
    }
}

impl Known {
    fn get(&self, path: &Path, stamp: &str) -> Option<String> {
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        let files = files.get_or_insert_with(|| self.load());
        files
            .get(path)
            .filter(|(then, _)| then == stamp)
            .map(|(_, d)| d.clone())
    }

    fn remember(&self, path: &Path, stamp: String, digest: &str) {
        let Some(line) = line(path, &stamp, digest) else { return };
        // That it can't be kept only costs time.
        if let Err(e) = self.append(&line) {
            tracing::debug!(store = %self.store.display(), "digests are not kept: {e}");
        }
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        let files = files.get_or_insert_with(HashMap::new);
        files.insert(path.to_owned(), (stamp, digest.to_owned()));
    }

    fn append(&self, line: &str) -> io::Result<()> {
        if let Some(dir) = self.store.parent() {
            fs::create_dir_all(dir)?;
        }
        let mut file = OpenOptions::new().append(true).create(true).open(&self.store)?;
        file.write_all(line.as_bytes())
    }

    fn load(&self) -> HashMap<PathBuf, (String, String)> {
        let bytes = fs::read(&self.store).unwrap_or_default();
        let text = String::from_utf8_lossy(&bytes);
        let mut files = HashMap::new();
        let mut order = Vec::new();
        for (path, stamp, digest) in text.lines().filter_map(parse) {
            if files.insert(path.clone(), (stamp, digest)).is_none() {
                order.push(path);
            }
        }
        let lines = text.lines().count();
        if lines > 2 * files.len() + SPARE || files.len() > MOST {
            for path in order.iter().take(files.len().saturating_sub(MOST / 2).min(order.len())) {
                if files.len() > MOST / 2 {
                    files.remove(path);
                }
            }
            let kept = order.iter().filter_map(|path| {
                let (stamp, digest) = files.get(path)?;
                line(path, stamp, digest)
            });
            let all: String = kept.collect();
            if let Err(e) = write_atomic(&self.store, all.as_bytes()) {
                tracing::debug!("{e}");
            }
        }
        files
    }
}

fn stamp(about: &Metadata) -> String {
    format!(
        "{}:{}.{}:{}.{}:{}:{}",
        about.len(),
        about.mtime(),
        about.mtime_nsec(),
        about.ctime(),
        about.ctime_nsec(),
        about.dev(),
        about.ino()
    )
}

/// Whether both times of a file are past by enough. One in the future tells nothing.
fn is_settled(about: &Metadata) -> bool {
    let changed = UNIX_EPOCH.checked_add(Duration::new(
        u64::try_from(about.ctime()).unwrap_or(0),
        u32::try_from(about.ctime_nsec()).unwrap_or(0),
    ));
    let old = |time: SystemTime| time.elapsed().is_ok_and(|age| age >= SETTLED);
    changed.is_some_and(old) && about.modified().is_ok_and(old)
}

/// The path is written as JSON, so that it can hold no line end of its own.
fn line(path: &Path, stamp: &str, digest: &str) -> Option<String> {
    let path = serde_json::to_string(path.to_str()?).ok()?;
    Some(format!("{digest} {stamp} {path}\n"))
}

fn parse(line: &str) -> Option<(PathBuf, String, String)> {
    let mut parts = line.splitn(3, ' ');
    let (digest, stamp, path) = (parts.next()?, parts.next()?, parts.next()?);
    let is_digest = digest.len() == 64 && digest.bytes().all(|b| b.is_ascii_hexdigit());
    let path: String = serde_json::from_str(path).ok().filter(|_| is_digest)?;
    Some((path.into(), stamp.to_owned(), digest.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn aged(path: &Path, bytes: &[u8]) {
        fs::write(path, bytes).unwrap();
        // The time of the last change of the inode can't be set: it has to pass.
        let since = SystemTime::now();
        while since.elapsed().unwrap() < SETTLED + Duration::from_millis(50) {
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    #[test]
    fn a_file_that_rests_is_read_once_and_a_changed_one_again() {
        let dir = tempfile::tempdir().unwrap();
        let (file, store) = (dir.path().join("big \n data"), dir.path().join("cache/digests"));
        let content = vec![7u8; SMALL as usize];
        aged(&file, &content);
        let expected = sha256_file(&file).unwrap();
        assert_eq!(Digests::at(&store).of(&file).unwrap(), expected);
        // What the store says is believed: it is not read again.
        let text = fs::read_to_string(&store).unwrap();
        assert_eq!(text.lines().count(), 1);
        let other = "0".repeat(64);
        fs::write(&store, text.replace(&expected, &other)).unwrap();
        assert_eq!(Digests::at(&store).of(&file).unwrap(), other);
        // The same length and the same time of change, but another inode change time: it is read.
        let times = fs::metadata(&file).unwrap().modified().unwrap();
        fs::write(&file, vec![8u8; SMALL as usize]).unwrap();
        fs::File::open(&file).unwrap().set_modified(times).unwrap();
        let changed = sha256_file(&file).unwrap();
        assert_eq!(Digests::at(&store).of(&file).unwrap(), changed);
        // It was changed just now: nothing is kept of it.
        assert_eq!(fs::read_to_string(&store).unwrap().lines().count(), 1);
        assert!(Digests::at(&store).of(&dir.path().join("none")).is_err());
    }

    #[test]
    fn damage_in_the_store_is_passed_over() {
        let dir = tempfile::tempdir().unwrap();
        let store = dir.path().join("digests");
        let good = line(Path::new("/b"), "1:2", &"a".repeat(64)).unwrap();
        let torn = &line(Path::new("/a"), "1:2", &"b".repeat(64)).unwrap()[..70];
        fs::write(&store, format!("\u{0}junk\n{good}zz {good}{torn}{good}{good}")).unwrap();
        let known = Digests::at(&store).0.unwrap().load();
        assert_eq!(known.len(), 1);
        assert_eq!(known[Path::new("/b")], ("1:2".into(), "a".repeat(64)));
        // A store that is mostly repetitions is written anew.
        fs::write(&store, good.repeat(SPARE + 10)).unwrap();
        assert_eq!(Digests::at(&store).0.unwrap().load().len(), 1);
        assert_eq!(fs::read_to_string(&store).unwrap(), good);
    }
}
