//! What the jobs take on disk.

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use decanus_base::files::named;

use crate::store::{JobStore, entries, folders};

/// What the jobs of a task take.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// The workflow.
    pub workflow: String,
    /// The task.
    pub task: String,
    /// How many jobs there are.
    pub jobs: usize,
    /// Files and folders, records and locks included.
    pub files: usize,
    /// Bytes on disk, in whole blocks. A file with several names is counted once, where it is met first.
    pub bytes: u64,
}

impl JobStore {
    /// What the jobs take, by workflow and task; of one workflow if it is given.
    ///
    /// # Errors
    /// When the folder can't be read; one that does not exist takes nothing.
    pub fn usage(&self, workflow: Option<&str>) -> io::Result<Vec<Usage>> {
        let mut all: BTreeMap<(String, String), Usage> = BTreeMap::new();
        let mut seen = HashSet::new();
        let name = |path: &Path| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        for workflow in folders(self.dir(), workflow)? {
            for task in folders(&workflow, None)? {
                let key = (name(&workflow), name(&task));
                let usage = all.entry(key.clone()).or_insert_with(|| Usage {
                    workflow: key.0,
                    task: key.1,
                    ..Usage::default()
                });
                let is_record = |path: &PathBuf| {
                    let name = name(path);
                    name.ends_with(".info") && !name.starts_with('.')
                };
                let within = entries(&task)?;
                usage.jobs += within.iter().filter(|p| is_record(p)).count();
                for path in within {
                    add(usage, &path, &mut seen)?;
                }
            }
        }
        // Of jobs that were removed the folder stays.
        Ok(all.into_values().filter(|usage| usage.files > 0).collect())
    }
}

/// Adds a path with all that is below it.
fn add(usage: &mut Usage, path: &Path, seen: &mut HashSet<(u64, u64)>) -> io::Result<()> {
    let mut open = vec![path.to_owned()];
    while let Some(path) = open.pop() {
        let about = match fs::symlink_metadata(&path) {
            Ok(about) => about,
            // Gone meanwhile.
            Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
            Err(e) => return Err(named(e, &path)),
        };
        usage.files += 1;
        if about.is_dir() {
            open.extend(entries(&path)?);
        }
        let is_new = about.nlink() < 2 || about.is_dir() || seen.insert((about.dev(), about.ino()));
        usage.bytes += if is_new { about.blocks() * 512 } else { 0 };
    }
    Ok(())
}

/// Bytes on disk of a path with all that is below it; nothing for what can't be read.
pub(crate) fn size_on_disk(path: &Path) -> u64 {
    let mut usage = Usage::default();
    let _ = add(&mut usage, path, &mut HashSet::new());
    usage.bytes
}
