//! Going through folders.

use std::path::{Path, PathBuf};

use decanus_tool::ToolError;
use ignore::overrides::{Override, OverrideBuilder};
use ignore::{DirEntry, WalkBuilder};

use crate::place::{Access, Reach, shown};

/// A way through a folder. No link is followed, and what may not be read is not seen.
pub(crate) struct Walk<'a> {
    pub reach: &'a Reach,
    /// Where to begin: canonical, and allowed.
    pub folder: &'a Path,
    /// Levels to go down.
    pub depth: Option<usize>,
    /// Whether to see what begins with a dot and what .gitignore leaves out.
    pub hidden: bool,
}

impl Walk<'_> {
    /// What is in the folder, by name; the folder itself is not.
    pub fn entries(self) -> impl Iterator<Item = Result<DirEntry, ignore::Error>> {
        // The rules of the folders above hold too, but only those inside the project: so the walk begins at its root,
        // and goes only where the folder is.
        let inside = self.folder.strip_prefix(&self.reach.root).ok();
        let levels = inside.map_or(0, |rest| rest.components().count());
        let mut start = match inside {
            Some(_) => self.reach.root.clone(),
            None => self.folder.to_owned(),
        };
        let (reach, folder) = (self.reach.clone(), self.folder.to_owned());
        let mut below = levels;
        // A folder that the rules leave out, but that was named, is gone through by its own rules.
        if !self.hidden && levels > 0 && !is_seen(&reach.root, &folder) {
            start.clone_from(&folder);
            below = 0;
        }
        let mut walk = builder(&start, self.hidden);
        walk.max_depth(self.depth.map(|d| d.saturating_add(below)));
        let wanted: PathBuf = folder.clone();
        walk.filter_entry(move |entry| {
            let path = entry.path();
            let on_the_way = wanted.starts_with(path);
            on_the_way || (path.starts_with(&wanted) && reach.allows(path, Access::Read))
        });
        walk.build().filter(move |e| {
            e.as_ref()
                .map_or(true, |e| e.path() != folder && e.path().starts_with(&folder))
        })
    }
}

fn builder(start: &Path, hidden: bool) -> WalkBuilder {
    let mut walk = WalkBuilder::new(start);
    walk.follow_links(false)
        .standard_filters(!hidden)
        .parents(false)
        .git_global(false)
        .require_git(false)
        .sort_by_file_path(Path::cmp);
    walk
}

/// Whether the rules of the project let a folder be seen.
fn is_seen(root: &Path, folder: &Path) -> bool {
    let wanted = folder.to_owned();
    let mut walk = builder(root, false);
    walk.filter_entry(move |entry| wanted.starts_with(entry.path()));
    walk.build().flatten().any(|e| e.path() == folder)
}

/// A form of names.
pub(crate) struct Glob(Override);

/// Reads a form of names: without a slash it is of names, with one of paths below the folder that is gone through.
pub(crate) fn glob(text: &str) -> Result<Glob, ToolError> {
    let wrong = |e: &dyn std::fmt::Display| ToolError::argument(format!("the glob `{}` is wrong: {e}", shown(text)));
    if text.is_empty() || text.len() > 1_000 {
        return Err(wrong(&"it has to have 1 to 1000 characters"));
    }
    // What begins with `!` would leave out instead.
    let text = match text.strip_prefix('!') {
        Some(rest) => format!("\\!{rest}"),
        None => text.to_owned(),
    };
    let mut builder = OverrideBuilder::new("");
    builder.add(&text).map_err(|e| wrong(&e))?;
    builder.build().map(Glob).map_err(|e| wrong(&e))
}

impl Glob {
    /// Whether a file below a folder is of this form.
    pub fn fits(&self, folder: &Path, file: &Path) -> bool {
        let below = file.strip_prefix(folder).unwrap_or(file);
        self.0.matched(below, false).is_whitelist()
    }
}
