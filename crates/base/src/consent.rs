//! What the user has agreed to, per project: things that run code and that a file of a project asks for.
//!
//! A project can come from anywhere. What is typed on the command line is consent; what a project's file selects needs
//! it once. It is kept in `consent.json` of the user's own folder, never in the project: an object of project folders,
//! each with a list of what is agreed to.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::error::{Diagnostic, ErrorKind};
use crate::files::{OwnerLock, read_text, write_atomic};
use crate::project::Project;

/// Why what was agreed to can't be read or kept.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}: {message}", file.display())]
pub struct ConsentError {
    /// The file.
    pub file: PathBuf,
    /// What is wrong.
    pub message: String,
}

impl Diagnostic for ConsentError {
    fn kind(&self) -> ErrorKind {
        ErrorKind::Config
    }

    fn hints(&self) -> Vec<String> {
        vec!["without that file nothing is agreed to; `decanus mcp allow` makes it anew".into()]
    }
}

/// What is agreed to, by project.
type Kept = BTreeMap<String, BTreeSet<String>>;

/// What the user has agreed to in one project.
#[derive(Clone, Debug)]
pub struct Consents {
    file: PathBuf,
    project: String,
}

impl Consents {
    /// Those of a project.
    pub fn of(project: &Project) -> Self {
        Self::within(&project.home, &project.root)
    }

    /// Those of the project in `root`, kept in the folder `home`.
    pub fn within(home: &Path, root: &Path) -> Self {
        Self {
            file: home.join("consent.json"),
            project: root.to_string_lossy().into_owned(),
        }
    }

    /// What is agreed to, in order.
    ///
    /// # Errors
    /// When the file can't be read or understood.
    pub fn list(&self) -> Result<Vec<String>, ConsentError> {
        let mut all = self.read()?;
        Ok(all.remove(&self.project).unwrap_or_default().into_iter().collect())
    }

    /// Whether something is agreed to: a tool's name or a command.
    ///
    /// # Errors
    /// When the file can't be read or understood.
    pub fn has(&self, what: &str) -> Result<bool, ConsentError> {
        Ok(self.read()?.get(&self.project).is_some_and(|all| all.contains(what)))
    }

    /// Agrees to something; false when it was agreed to already.
    ///
    /// # Errors
    /// When the file can't be read, understood or written.
    pub fn grant(&self, what: &str) -> Result<bool, ConsentError> {
        self.change(|all| all.insert(what.to_owned()))
    }

    /// Agrees no longer; false when it was not agreed to.
    ///
    /// # Errors
    /// When the file can't be read, understood or written.
    pub fn revoke(&self, what: &str) -> Result<bool, ConsentError> {
        self.change(|all| all.remove(what))
    }

    fn error(&self, message: impl ToString) -> ConsentError {
        ConsentError {
            file: self.file.clone(),
            message: message.to_string(),
        }
    }

    fn read(&self) -> Result<Kept, ConsentError> {
        if !self.file.exists() {
            return Ok(Kept::new());
        }
        let text = read_text(&self.file).map_err(|e| self.error(e))?;
        serde_json::from_str(&text).map_err(|e| self.error(e))
    }

    fn change(&self, change: impl FnOnce(&mut BTreeSet<String>) -> bool) -> Result<bool, ConsentError> {
        if let Some(home) = self.file.parent() {
            std::fs::create_dir_all(home).map_err(|e| self.error(e))?;
        }
        let lock = self.file.with_extension("lock");
        let _lock = OwnerLock::acquire(&lock, Duration::from_secs(10), &|| false).map_err(|e| self.error(e))?;
        let mut kept = self.read()?;
        let all = kept.entry(self.project.clone()).or_default();
        let changed = change(all);
        if all.is_empty() {
            kept.remove(&self.project);
        }
        if changed {
            let mut text = serde_json::to_vec_pretty(&kept).map_err(|e| self.error(e))?;
            text.push(b'\n');
            write_atomic(&self.file, &text).map_err(|e| self.error(e))?;
        }
        Ok(changed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn consent_is_given_once_and_for_one_project() {
        let home = tempfile::tempdir().unwrap();
        let (a, b) = (
            Consents::within(home.path(), Path::new("/a")),
            Consents::within(home.path(), Path::new("/b")),
        );
        assert!(!a.has("python").unwrap() && !home.path().join("consent.json").exists());
        assert!(a.grant("python").unwrap() && !a.grant("python").unwrap());
        assert!(a.has("python").unwrap() && !b.has("python").unwrap());
        b.grant("stdio uvx x").unwrap();
        assert_eq!(b.list().unwrap(), ["stdio uvx x"]);
        assert!(a.revoke("python").unwrap() && !a.revoke("python").unwrap());
        assert!(!a.has("python").unwrap() && b.has("stdio uvx x").unwrap());
    }

    #[test]
    fn a_damaged_file_is_named_and_kept() {
        let home = tempfile::tempdir().unwrap();
        let file = home.path().join("consent.json");
        std::fs::write(&file, "[1]").unwrap();
        let consents = Consents::within(home.path(), Path::new("/a"));
        for result in [consents.has("x").map(drop), consents.grant("x").map(drop)] {
            assert!(result.unwrap_err().to_string().contains("consent.json"));
        }
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "[1]");
    }
}
