//! Where the tools that use files may go.
//!
//! A path is followed through all symbolic links first; what it then is must lie in the project or in a path that
//! somebody allowed, and must not be one of the places that are kept from tools. It is opened without following a link
//! again, so that what was checked is what is used.

use std::ffi::OsStr;
use std::fs::{File, Metadata};
use std::os::fd::OwnedFd;
use std::path::{Component, Path, PathBuf};

use decanus_base::project::CREDENTIALS;
use decanus_base::settings::ToolSettings;
use decanus_base::{Project, Settings};
use decanus_tool::{ToolContext, ToolError, ToolErrorClass};

use crate::open;

/// The project that tools work in, and what its settings allow.
#[derive(Clone, Debug, Default)]
pub struct Place {
    /// The project's root: what a model's paths are relative to.
    pub root: PathBuf,
    /// What the paths that a user typed are relative to.
    pub working_dir: PathBuf,
    /// The user's own decanus folder, which holds credentials.
    pub home: PathBuf,
    /// Where jobs are kept; their results may be read.
    pub jobs: PathBuf,
    /// Paths outside the project that may be read.
    pub allowed: Vec<PathBuf>,
    /// What programs may be run.
    pub tools: ToolSettings,
}

impl Place {
    /// The place that a project and its settings make.
    pub fn of(project: &Project, settings: &Settings) -> Self {
        Self {
            root: project.root.clone(),
            working_dir: project.working_dir.clone(),
            home: project.home.clone(),
            jobs: settings.jobs_dir(&project.root),
            allowed: settings.allowed_paths(&project.root),
            tools: settings.tools.clone(),
        }
    }

    /// What one call may reach.
    pub(crate) fn reach(&self, cx: &ToolContext) -> Reach {
        let permissions = cx.run.permissions();
        let real = |paths: Vec<&PathBuf>| -> Vec<PathBuf> {
            let absolute = paths.into_iter().map(|p| self.root.join(p));
            absolute.filter_map(|p| p.canonicalize().ok()).collect()
        };
        let root = self.root.canonicalize().ok();
        let results = cx.run.spill_dir().to_owned();
        let mut read: Vec<&PathBuf> = vec![&self.root, &self.jobs, &results];
        read.extend(&self.allowed);
        read.extend(permissions.readable());
        let mut write: Vec<&PathBuf> = vec![&self.root];
        write.extend(&permissions.write);
        Reach {
            base: match cx.from_model {
                true => self.root.clone(),
                false => self.working_dir.clone(),
            },
            read: if root.is_some() { real(read) } else { Vec::new() },
            write: if root.is_some() { real(write) } else { Vec::new() },
            home: self.home.canonicalize().ok(),
            chat: cx.run.chat().map(canonical_or_made),
            root: root.unwrap_or_default(),
        }
    }
}

/// What is to be done with a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    Read,
    Write,
}

/// The paths that one call may use. All are canonical.
#[derive(Debug, Clone)]
pub(crate) struct Reach {
    base: PathBuf,
    /// The project's root.
    pub root: PathBuf,
    read: Vec<PathBuf>,
    write: Vec<PathBuf>,
    home: Option<PathBuf>,
    /// The chat that the call belongs to.
    chat: Option<PathBuf>,
}

impl Reach {
    /// A path that exists, without links, after all checks.
    pub fn existing(&self, text: &str, access: Access) -> Result<PathBuf, ToolError> {
        let path = self.written(text)?;
        let real = path.canonicalize().map_err(|e| self.absent(text, &path, &e))?;
        self.check(text, &real, access)?;
        Ok(real)
    }

    /// A regular file that exists, open for reading.
    pub fn file(&self, text: &str) -> Result<(PathBuf, File, Metadata), ToolError> {
        let real = self.existing(text, Access::Read)?;
        let (file, metadata) = open::regular(&real).map_err(|e| failed(text, &e))?;
        Ok((real, file, metadata))
    }

    /// A folder that exists.
    pub fn folder(&self, text: &str) -> Result<PathBuf, ToolError> {
        let real = self.existing(text, Access::Read)?;
        match real.is_dir() {
            true => Ok(real),
            false => Err(ToolError::argument(format!("`{}` is not a folder", shown(text)))),
        }
    }

    /// Where a file may be written, whose folders need not exist yet: the folder, opened (missing ones are made), its
    /// path without links, and the file's name in it.
    pub fn target(&self, text: &str) -> Result<(OwnedFd, PathBuf), ToolError> {
        let path = self.written(text)?;
        let real = match path.canonicalize() {
            Ok(real) => real,
            Err(_) if path.symlink_metadata().is_ok_and(|m| m.is_symlink()) => {
                let text = format!("`{}` is a symbolic link that leads nowhere", shown(text));
                return Err(ToolError::argument(text));
            }
            Err(_) => self.future(text, &path)?,
        };
        self.check(text, &real, Access::Write)?;
        let Some(folder) = real.parent() else {
            return Err(ToolError::argument(format!("`{}` is not a file", shown(text))));
        };
        let folder = open::folder_made(folder).map_err(|e| failed(text, &e))?;
        Ok((folder, real))
    }

    /// The path that a file would have which does not exist yet.
    fn future(&self, text: &str, path: &Path) -> Result<PathBuf, ToolError> {
        let existing = path.ancestors().find(|a| a.symlink_metadata().is_ok());
        let Some((existing, real)) = existing.and_then(|e| Some((e, e.canonicalize().ok()?))) else {
            return Err(outside(text));
        };
        let rest = path.strip_prefix(existing).map_err(|_| outside(text))?;
        let plain = rest.components().all(|c| matches!(c, Component::Normal(_)));
        // `a/../b` where `a` does not exist means nothing to the system either.
        let ends_in_name = !text.ends_with('/') && path.file_name().is_some();
        if !plain || !ends_in_name {
            self.check(text, &real, Access::Write)?;
            let text = format!("`{}` is no path of a file", shown(text));
            return Err(ToolError::argument(text));
        }
        if !real.is_dir() {
            self.check(text, &real, Access::Write)?;
            let text = format!("`{}` leads through something that is not a folder", shown(text));
            return Err(ToolError::argument(text));
        }
        Ok(real.join(rest))
    }

    fn written(&self, text: &str) -> Result<PathBuf, ToolError> {
        if text.is_empty() {
            return Err(ToolError::argument("the path is empty"));
        }
        if text.contains('\0') {
            return Err(ToolError::argument("a path can't hold a NUL character"));
        }
        Ok(self.base.join(text))
    }

    /// Whether a path without links may be used.
    pub fn allows(&self, real: &Path, access: Access) -> bool {
        self.check("", real, access).is_ok()
    }

    fn check(&self, text: &str, real: &Path, access: Access) -> Result<(), ToolError> {
        let grants = match access {
            Access::Read => &self.read,
            Access::Write => &self.write,
        };
        let (verb, how) = match access {
            Access::Read => (
                "read",
                "`allowed_paths` in decanus.toml or `allow_read_path:` in the chat",
            ),
            Access::Write => ("written", "`allow_path:` in the chat"),
        };
        let mut barrier = None;
        let mut is_inside = false;
        for grant in grants.iter().filter(|g| real.starts_with(g)) {
            is_inside = true;
            match self.barrier(grant, real, access) {
                None => {
                    barrier = None;
                    break;
                }
                found => barrier = found,
            }
        }
        if !is_inside {
            return Err(outside(text));
        }
        // What nobody can open for tools goes before what a grant opens.
        if let Some((kept, why)) = self.always_kept(real, access) {
            return Err(ToolError::argument(format!(
                "`{}` may not be {verb}: {} {why}; nothing opens it to tools",
                shown(text),
                self.show(&kept)
            )));
        }
        match barrier {
            None => Ok(()),
            Some((kept, why)) => Err(ToolError::argument(format!(
                "`{}` may not be {verb}: {} {why}; to allow it, name it in {how}",
                shown(text),
                self.show(&kept)
            ))),
        }
    }

    /// What no grant opens: the user's own credentials and consents, whatever a project allows; and, to write, the chat
    /// that the call is part of.
    fn always_kept(&self, real: &Path, access: Access) -> Option<(PathBuf, &'static str)> {
        if let Some(home) = &self.home
            && let Ok(inside) = real.strip_prefix(home)
            && let Some(first) = inside.components().next()
            && CREDENTIALS.contains(&folded(first.as_os_str()).as_str())
        {
            return Some((home.join(first), "holds your credentials or consents"));
        }
        let chat = self
            .chat
            .as_ref()
            .filter(|c| access == Access::Write && same_path(c, real))?;
        Some((chat.clone(), "is the chat that this call is part of"))
    }

    /// The first folder or file on the way from a grant to a path that the grant does not open, and why. What a grant
    /// names itself, it opens.
    fn barrier(&self, grant: &Path, real: &Path, access: Access) -> Option<(PathBuf, &'static str)> {
        let mut at = grant.to_owned();
        for component in real.strip_prefix(grant).ok()?.components() {
            let folder = at.clone();
            at.push(component);
            if is_secret(component.as_os_str()) {
                return Some((at, "may hold secrets"));
            }
            let name = folded(component.as_os_str());
            let is_of_root = folder == self.root;
            if self.home.as_deref() == Some(&at) || is_of_root && name == "endpoints" {
                return Some((at, "may hold credentials"));
            }
            if name == ".decanus" && (is_of_root || access == Access::Write) {
                return Some((at, "is decanus's own"));
            }
            if access == Access::Write && self.steers(&folder, &name) {
                return Some((at, "decides what models may do"));
            }
        }
        None
    }

    /// Whether decanus reads a file or folder of this name as configuration or as a chat, by which a model could allow
    /// itself more, or have something run. `name` is in lower case.
    fn steers(&self, folder: &Path, name: &str) -> bool {
        // These in any folder: each is, or becomes, part of a project as soon as somebody works there.
        const FILES: [&str; 4] = ["decanus.toml", "mcp.json", "workflow.yaml", "agent.yaml"];
        // These where a project is: its folder holds them, whether they exist already or not.
        const OF_PROJECTS: [&str; 6] = ["agents", "chats", "workflows", "endpoints", "kbs", "prices.tsv"];
        let is_project =
            || folder == self.root || folder.join("decanus.toml").exists() || folder.join(".decanus").exists();
        FILES.contains(&name) || name.ends_with(".chat") || OF_PROJECTS.contains(&name) && is_project()
    }

    /// Says of a path that can't be followed whether it is missing; of one outside, only that it is outside.
    fn absent(&self, text: &str, path: &Path, error: &std::io::Error) -> ToolError {
        let existing = path.ancestors().skip(1).find_map(|a| a.canonicalize().ok());
        let link = path.symlink_metadata().is_ok_and(|m| m.is_symlink());
        match existing.map(|e| self.check(text, &e, Access::Read)) {
            Some(Ok(())) if !link && !path.components().any(|c| c == Component::ParentDir) => failed(text, error),
            Some(Err(e)) => e,
            _ => outside(text),
        }
    }

    /// A path as results show it: relative to the project where it is inside.
    pub fn show(&self, real: &Path) -> String {
        match real.strip_prefix(&self.root) {
            Ok(inside) if inside.as_os_str().is_empty() => ".".into(),
            Ok(inside) => inside.to_string_lossy().into_owned(),
            Err(_) => real.to_string_lossy().into_owned(),
        }
    }
}

/// A name as file systems compare it that know no case.
fn folded(name: &OsStr) -> String {
    name.to_string_lossy().to_lowercase()
}

/// Whether two paths without links are the same, also on a file system that knows no case.
fn same_path(one: &Path, other: &Path) -> bool {
    one == other || folded(one.as_os_str()) == folded(other.as_os_str())
}

/// A path without links; of a file that is not there yet, that of its folder.
fn canonical_or_made(path: &Path) -> PathBuf {
    let in_folder = || Some(path.parent()?.canonicalize().ok()?.join(path.file_name()?));
    path.canonicalize()
        .ok()
        .or_else(in_folder)
        .unwrap_or_else(|| path.to_owned())
}

fn outside(text: &str) -> ToolError {
    ToolError::argument(format!(
        "`{}` is not inside the project or the allowed paths",
        shown(text)
    ))
}

/// What the system said of a path.
pub(crate) fn failed(text: &str, error: &std::io::Error) -> ToolError {
    match error.kind() {
        std::io::ErrorKind::NotFound => ToolError::argument(format!("`{}` does not exist", shown(text))),
        std::io::ErrorKind::InvalidInput => ToolError::argument(format!("`{}` {error}", shown(text))),
        _ => ToolError::respond(ToolErrorClass::Tool, format!("`{}`: {error}", shown(text))),
    }
}

pub(crate) fn shown(text: &str) -> String {
    decanus_base::text::brief(text, 200)
}

/// Names under which keys and passwords are kept, and Git's own folder, whose hooks are programs.
fn is_secret(name: &OsStr) -> bool {
    const NAMES: [&str; 24] = [
        ".env",
        ".envrc",
        ".ssh",
        ".gnupg",
        ".aws",
        ".azure",
        ".kube",
        ".docker",
        ".gcloud",
        ".netrc",
        "_netrc",
        ".npmrc",
        ".pypirc",
        ".pgpass",
        ".my.cnf",
        ".htpasswd",
        ".vault-token",
        ".git-credentials",
        ".git",
        ".password-store",
        "id_rsa",
        "id_dsa",
        "id_ecdsa",
        "id_ed25519",
    ];
    const ENDINGS: [&str; 7] = [".pem", ".key", ".p12", ".pfx", ".kdbx", ".jks", ".keystore"];
    const TEMPLATES: [&str; 4] = [".example", ".sample", ".template", ".dist"];
    let name = folded(name);
    let is_dot_env = name.starts_with(".env.") && !TEMPLATES.iter().any(|t| name.ends_with(t));
    NAMES.contains(&name.as_str()) || is_dot_env || ENDINGS.iter().any(|e| name.ends_with(e) && name.len() > e.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_secrets() {
        for name in [
            ".env",
            ".ENV",
            ".env.local",
            "id_rsa",
            "server.key",
            ".ssh",
            ".git",
            "Cert.PEM",
        ] {
            assert!(is_secret(OsStr::new(name)), "{name}");
        }
        for name in [
            ".env.example",
            ".gitignore",
            "key",
            ".key",
            "env",
            "monkey",
            ".github",
            "id_rsa.pub",
        ] {
            assert!(!is_secret(OsStr::new(name)), "{name}");
        }
    }
}
