//! What the paths in inputs are relative to, and where they may lead.

use std::path::{Path, PathBuf};

/// What the path in a `file` value is relative to, and where it may lead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathRules {
    base: PathBuf,
    within: Option<Vec<PathBuf>>,
    /// Where they may not lead, although it is inside.
    closed: Vec<PathBuf>,
}

impl PathRules {
    /// The same, but no path may lead to these files or into these folders. It does not change rules that lead anywhere.
    #[must_use]
    pub fn without(self, closed: Vec<PathBuf>) -> Self {
        Self { closed, ..self }
    }

    /// For values that a user typed or a workflow's author wrote: relative to `base`, leading anywhere.
    pub fn trusted(base: impl Into<PathBuf>) -> Self {
        Self {
            base: base.into(),
            within: None,
            closed: Vec::new(),
        }
    }

    /// For a model's values: relative to the project's root, leading only into it or into the `allowed` paths, symbolic
    /// links followed.
    pub fn confined(root: impl Into<PathBuf>, allowed: &[PathBuf]) -> Self {
        let root = root.into();
        let mut within = vec![root.clone()];
        within.extend(allowed.iter().map(|p| root.join(p)));
        Self {
            base: root,
            within: Some(within),
            closed: Vec::new(),
        }
    }

    /// For values in a chat: relative to the chat's folder, leading only into these folders and files.
    pub fn within(base: impl Into<PathBuf>, roots: Vec<PathBuf>) -> Self {
        Self {
            base: base.into(),
            within: Some(roots),
            closed: Vec::new(),
        }
    }

    /// Whether a path without links is inside and not closed. A folder that holds what is closed would open it.
    fn allows(&self, within: &[PathBuf], real: &Path) -> bool {
        let inside = |dir: &PathBuf| dir.canonicalize().is_ok_and(|dir| real.starts_with(dir));
        let opens = |closed: &PathBuf| closed.canonicalize().is_ok_and(|closed| closed.starts_with(real));
        within.iter().any(inside) && !self.closed.iter().any(|closed| inside(closed) || opens(closed))
    }

    /// Absolute, without a look at what is there. A model's path must lead inside all the same, links followed.
    pub(crate) fn place(&self, text: &str) -> Result<String, String> {
        if text.contains('\0') {
            return Err("a path can't hold a NUL character".into());
        }
        if text.is_empty() {
            return Err("the path is empty".into());
        }
        let path = match &self.within {
            None => absolute(&self.base.join(text)),
            Some(within) => {
                let outside = || format!("`{text}` is not inside the project or the allowed paths");
                let path = self.base.join(text);
                // What exists of the way is looked at as it is; what does not may not go up again.
                let exists = |p: &&Path| p.symlink_metadata().is_ok();
                let there = path.ancestors().find(exists).ok_or_else(outside)?;
                let rest = path.strip_prefix(there).map_err(|_| outside())?;
                let plain = |c: std::path::Component<'_>| matches!(c, std::path::Component::Normal(_));
                let mut real = there.canonicalize().map_err(|_| outside())?;
                if !rest.components().all(plain) {
                    return Err(outside());
                }
                if rest.components().next().is_some() {
                    real.push(rest);
                }
                if !self.allows(within, &real) {
                    return Err(outside());
                }
                real
            }
        };
        path.into_os_string()
            .into_string()
            .map_err(|p| format!("{}: the path is not UTF-8 text", p.to_string_lossy()))
    }

    pub(crate) fn resolve(&self, text: &str, wants_folder: bool) -> Result<String, String> {
        let what = if wants_folder { "folder" } else { "file" };
        if text.contains('\0') {
            return Err("a path can't hold a NUL character".into());
        }
        if text.is_empty() {
            return Err("the path is empty".into());
        }
        let path = self.base.join(text);
        // Said of both what is not there and what may not be looked at: a model must not learn which it is.
        let outside = || format!("`{text}` is not a {what} inside the project or the allowed paths");
        let real = path.canonicalize().map_err(|e| match self.within {
            Some(_) => outside(),
            None => format!("{}: {e}", path.display()),
        })?;
        if let Some(within) = &self.within
            && !self.allows(within, &real)
        {
            return Err(outside());
        }
        let fits = if wants_folder { real.is_dir() } else { real.is_file() };
        if !fits {
            return Err(format!("{} is not a {what}", path.display()));
        }
        // What was checked is what is used: for a model, the path without links.
        let result = if self.within.is_some() { real } else { absolute(&path) };
        result
            .into_os_string()
            .into_string()
            .map_err(|p| format!("{}: the path is not UTF-8 text", p.to_string_lossy()))
    }
}

/// Absolute, and without `.` and `..` where that can be done by spelling alone.
fn absolute(path: &Path) -> PathBuf {
    let plain = !path.components().any(|c| c == std::path::Component::ParentDir);
    let made = if plain {
        std::path::absolute(path)
    } else {
        path.canonicalize()
    };
    made.unwrap_or_else(|_| path.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::input::{Input, InputType};
    use serde_json::json;

    #[test]
    fn a_models_files_stay_in_the_project() {
        let dir = tempfile::tempdir().unwrap();
        let base = dir.path().canonicalize().unwrap();
        let root = base.join("project");
        std::fs::create_dir_all(root.join("data")).unwrap();
        std::fs::create_dir_all(base.join("extra")).unwrap();
        for file in ["secret", "extra/e", "project/data/a", "project2"] {
            std::fs::write(base.join(file), "x").unwrap();
        }
        std::os::unix::fs::symlink(base.join("secret"), root.join("link")).unwrap();
        std::os::unix::fs::symlink(&base, root.join("up")).unwrap();
        let rules = PathRules::confined(&root, &[base.join("extra")]);
        let file = Input::new("f", InputType::File);
        let inside = root.join("data/a").display().to_string();
        assert_eq!(file.coerce(&json!("data/a"), &rules), Ok(json!(inside)));
        assert_eq!(file.coerce(&json!(inside), &rules), Ok(json!(inside)));
        assert!(
            file.coerce(&json!(base.join("extra/e").display().to_string()), &rules)
                .is_ok()
        );
        for bad in [
            "../secret",
            "link",
            "up/secret",
            "/etc/passwd",
            "missing",
            "../project2",
            "data",
            "",
            "a\0b",
        ] {
            assert!(file.coerce(&json!(bad), &rules).is_err(), "{bad}");
        }
        // What is closed stays so, whatever else is allowed and by whichever way.
        let rules = PathRules::confined(&root, std::slice::from_ref(&base)).without(vec![base.join("secret")]);
        for bad in ["../secret", "link", "up/secret"] {
            assert!(file.coerce(&json!(bad), &rules).is_err(), "{bad}");
        }
        assert!(file.coerce(&json!("../extra/e"), &rules).is_ok());
        let path = Input::new("p", InputType::Path);
        let folder = Input::new("d", InputType::Folder);
        for bad in ["../secret", "link", "up/secret", ".."] {
            assert!(path.coerce(&json!(bad), &rules).is_err(), "{bad}");
        }
        // A folder would open all that is in it.
        assert!(folder.coerce(&json!(".."), &rules).is_err() && folder.coerce(&json!("up"), &rules).is_err());
        assert!(folder.coerce(&json!("../extra"), &rules).is_ok() && path.coerce(&json!("new/x"), &rules).is_ok());
    }
}
