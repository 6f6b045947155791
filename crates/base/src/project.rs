//! Where a project is and where its things are looked up.

use std::path::{Path, PathBuf};

use crate::error::{Diagnostic, ErrorKind};

/// Why a project can't be used.
#[derive(Debug, thiserror::Error)]
pub enum ProjectError {
    /// The folder given with `-C` does not exist or is a file.
    #[error("{}: not a folder", .0.display())]
    NotAFolder(PathBuf),
    /// The working directory is gone or may not be read.
    #[error("the working directory can't be used: {0}")]
    NoWorkingDirectory(#[source] std::io::Error),
    /// decanus.toml can't be read or understood.
    #[error("{0}")]
    Settings(#[from] crate::settings::SettingsError),
}

impl Diagnostic for ProjectError {
    fn kind(&self) -> ErrorKind {
        ErrorKind::Config
    }
}

/// What is in the user's own decanus folder and no tool may read or write, whatever a project allows: credentials, and what
/// the user has agreed to.
pub const CREDENTIALS: [&str; 3] = ["auth", "consent.json", "endpoints"];

/// A project: its root, the folder relative paths of the user start from, and the user's own decanus folder.
#[derive(Clone, Debug)]
pub struct Project {
    /// The folder with decanus.toml, or else the working directory.
    pub root: PathBuf,
    /// What relative paths on the command line are relative to.
    pub working_dir: PathBuf,
    /// `DECANUS_HOME`, or `~/.decanus`.
    pub home: PathBuf,
}

impl Project {
    /// Finds the project of a folder: the nearest folder at or above `dir` with a decanus.toml, else `dir` itself.
    ///
    /// # Errors
    /// When `dir` is not a folder.
    pub fn find(dir: &Path) -> Result<Self, ProjectError> {
        let working_dir = std::path::absolute(dir).map_err(ProjectError::NoWorkingDirectory)?;
        let working_dir = working_dir
            .canonicalize()
            .map_err(|_| ProjectError::NotAFolder(working_dir.clone()))?;
        if !working_dir.is_dir() {
            return Err(ProjectError::NotAFolder(working_dir));
        }
        let root = working_dir
            .ancestors()
            .find(|a| a.join("decanus.toml").is_file())
            .unwrap_or(&working_dir)
            .to_owned();
        Ok(Self {
            root,
            working_dir,
            home: home(),
        })
    }

    /// The project of the working directory.
    ///
    /// # Errors
    /// When there is no working directory.
    pub fn current() -> Result<Self, ProjectError> {
        Self::find(&std::env::current_dir().map_err(ProjectError::NoWorkingDirectory)?)
    }

    /// `.decanus` of the project.
    pub fn data(&self) -> PathBuf {
        self.root.join(".decanus")
    }

    /// The places of [`CREDENTIALS`].
    pub fn credentials(&self) -> Vec<PathBuf> {
        CREDENTIALS.map(|name| self.home.join(name)).into()
    }

    /// The folders in which a kind of thing (`workflows`, `endpoints`, …) is looked up, nearest first.
    pub fn search(&self, kind: &str) -> Vec<PathBuf> {
        vec![self.root.join(kind), self.home.join(kind)]
    }

    /// A path of the user's: absolute as it is, relative to the working directory otherwise.
    pub fn user_path(&self, path: impl AsRef<Path>) -> PathBuf {
        self.working_dir.join(path)
    }
}

fn home() -> PathBuf {
    match std::env::var_os("DECANUS_HOME").filter(|h| !h.is_empty()) {
        Some(home) => std::path::absolute(&home).unwrap_or_else(|_| home.into()),
        None => std::env::home_dir()
            .unwrap_or_else(|| PathBuf::from("/"))
            .join(".decanus"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_decanus_toml_marks_the_root() {
        let dir = tempfile::tempdir().unwrap();
        let base = dir.path().canonicalize().unwrap();
        std::fs::create_dir_all(base.join("p/sub/deep")).unwrap();
        assert_eq!(Project::find(&base.join("p/sub")).unwrap().root, base.join("p/sub"));
        std::fs::write(base.join("p/decanus.toml"), "").unwrap();
        let project = Project::find(&base.join("p/sub/deep")).unwrap();
        assert_eq!(project.root, base.join("p"));
        assert_eq!(project.user_path("x"), base.join("p/sub/deep/x"));
        assert!(Project::find(&base.join("none")).is_err());
    }
}
