//! The workflows in reach of a project.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use decanus_base::Project;
use decanus_base::names::did_you_mean;

use crate::definition::Workflow;
use crate::digests::Digests;
use crate::error::WorkflowError;
use crate::graph;
use crate::parse::{self, Checked, PAGES};
use crate::python::PythonReader;

/// The folders in which workflows are looked up.
#[derive(Clone, Debug)]
pub struct Workflows {
    search: Vec<PathBuf>,
    /// What was read before, and of which state of its files. Clones share it.
    known: Arc<Mutex<HashMap<PathBuf, Known>>>,
    /// Those that depend on tasks of others, with these.
    linked: Arc<Mutex<HashMap<PathBuf, Linked>>>,
    /// Digests of files, for the jobs of the workflows.
    digests: Digests,
    python: PythonReader,
    /// Those that were declared in Rust; they come before those of folders. Clones share them.
    own: Arc<Mutex<Vec<Arc<Workflow>>>>,
}

/// What a workflow was linked from: itself and the others, and the result.
type Linked = (Vec<Arc<Workflow>>, Arc<Workflow>);

/// The state of a workflow's files: time of the last change and size of each.
type Stamp = Vec<(SystemTime, u64)>;

/// A workflow that was read, and the state of its files then.
type Known = (Stamp, Arc<Workflow>);

/// A file that was changed a moment ago may change again without its time telling.
const SETTLED: Duration = Duration::from_millis(100);

/// The state of a workflow's files as it was at a time; none while they may still have been changing then.
fn stamp(dir: &Path, sources: &[PathBuf], at: SystemTime) -> Option<Stamp> {
    let own = ["workflow.yaml"].iter().chain(&PAGES).map(|name| dir.join(name));
    // One that is missing counts as well: it may come.
    let state = |file: PathBuf| match std::fs::metadata(file) {
        Ok(meta) => Some((meta.modified().ok()?, meta.len())),
        Err(_) => Some((SystemTime::UNIX_EPOCH, 0)),
    };
    let files: Stamp = own.chain(sources.iter().cloned()).filter_map(state).collect();
    let is_old = |changed: &SystemTime| at.duration_since(*changed).is_ok_and(|age| age > SETTLED);
    files.iter().all(|(changed, _)| is_old(changed)).then_some(files)
}

/// A workflow of a listing.
#[derive(Debug)]
pub struct Listed {
    /// The folder's name.
    pub name: String,
    /// The folder.
    pub dir: PathBuf,
    /// The workflow, or what is wrong with it.
    pub workflow: Result<Arc<Workflow>, WorkflowError>,
}

impl Workflows {
    /// Those of a project: its `workflows/`, then the user's.
    pub fn discover(project: &Project) -> Self {
        Self {
            digests: Digests::at(project.data().join("cache/digests")),
            python: PythonReader::cached_in(project.data().join("cache/python")),
            ..Self::within(project.search("workflows"))
        }
    }

    /// Those in these folders; where a name is in several, the first counts.
    pub fn within(search: Vec<PathBuf>) -> Self {
        Self {
            search,
            known: Arc::default(),
            linked: Arc::default(),
            digests: Digests::default(),
            python: PythonReader::default(),
            own: Arc::default(),
        }
    }

    /// Adds a workflow that was declared in Rust ([`Workflow::builder`]), to all clones of this. It takes the place of one
    /// that was added before, and hides a folder of the same name.
    pub fn add(&self, workflow: Workflow) {
        let mut own = self.own.lock().unwrap_or_else(PoisonError::into_inner);
        own.retain(|w| w.name != workflow.name);
        own.push(Arc::new(workflow));
    }

    /// The workflows that were declared in Rust.
    fn declared(&self) -> Vec<Arc<Workflow>> {
        self.own.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// All that is wrong with a workflow, and what is suspicious.
    ///
    /// # Errors
    /// [`WorkflowError::Unknown`]; files that can't be read.
    pub fn check(&self, name: &str) -> Result<Checked, WorkflowError> {
        let declared = self.declared().iter().any(|w| w.name == name);
        match self.folder(name).filter(|_| !declared) {
            Some(dir) => parse::check(&dir, &self.python),
            // One in Rust was checked when it was built.
            None => self.load(name).map(|workflow| Checked {
                workflow: Some(Workflow::clone(&workflow)),
                ..Checked::default()
            }),
        }
    }

    /// Name and folder of each, by name.
    pub fn folders(&self) -> Vec<(String, PathBuf)> {
        let mut found: Vec<(String, PathBuf)> = Vec::new();
        for place in &self.search {
            let Ok(entries) = std::fs::read_dir(place) else {
                continue;
            };
            for dir in entries.flatten().map(|e| e.path()) {
                let name = dir
                    .file_name()
                    .map(|n| n.to_string_lossy().into_owned())
                    .unwrap_or_default();
                if dir.join("workflow.yaml").is_file() && !found.iter().any(|(n, _)| *n == name) {
                    found.push((name, dir));
                }
            }
        }
        found.sort();
        found
    }

    /// All of them. One with a fault does not hide the others.
    pub fn list(&self) -> Vec<Listed> {
        let load = |(name, dir): (String, PathBuf)| Listed {
            workflow: self.linked(&dir),
            name,
            dir,
        };
        let declared = self.declared();
        let is_hidden = |name: &String| declared.iter().any(|w| w.name == *name);
        let folders = self.folders().into_iter().filter(|(name, _)| !is_hidden(name));
        let own = declared.iter().map(|w| Listed {
            name: w.name.clone(),
            dir: w.dir.clone(),
            workflow: Ok(w.clone()),
        });
        let mut listed: Vec<Listed> = folders.map(load).chain(own).collect();
        listed.sort_by(|a, b| a.name.cmp(&b.name));
        listed
    }

    /// The digests of files that the jobs of these workflows are known by.
    pub fn digests(&self) -> &Digests {
        &self.digests
    }

    /// The workflow of a folder with the others that its tasks depend on.
    fn linked(&self, dir: &Path) -> Result<Arc<Workflow>, WorkflowError> {
        let own = self.read(dir)?;
        let mut used = vec![own.clone()];
        let linked = graph::link(Workflow::clone(&own), self.digests.clone(), &mut |name| {
            let other = self.read(&self.folder(name).ok_or_else(|| self.unknown(name))?)?;
            used.push(other.clone());
            Ok(other)
        })?;
        let mut known = self.linked.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((then, linked)) = known.get(dir)
            && then.len() == used.len()
            && then.iter().zip(&used).all(|(a, b)| Arc::ptr_eq(a, b))
        {
            return Ok(linked.clone());
        }
        let linked = Arc::new(linked);
        known.insert(dir.to_owned(), (used, linked.clone()));
        Ok(linked)
    }

    /// The workflow of a folder, read anew only when its files have changed.
    fn read(&self, dir: &Path) -> Result<Arc<Workflow>, WorkflowError> {
        let begin = SystemTime::now();
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((then, workflow)) = known.get(dir)
            && stamp(dir, &workflow.sources(), begin).as_ref() == Some(then)
        {
            return Ok(workflow.clone());
        }
        let workflow = Arc::new(parse::load_with(dir, &self.python)?);
        // What changed since the beginning is as if it were changing still.
        if let Some(state) = stamp(dir, &workflow.sources(), begin) {
            known.insert(dir.to_owned(), (state, workflow.clone()));
        }
        Ok(workflow)
    }

    /// Whether there is a workflow of that name, right or wrong.
    pub fn has(&self, name: &str) -> bool {
        self.declared().iter().any(|w| w.name == name) || self.folder(name).is_some()
    }

    fn folder(&self, name: &str) -> Option<PathBuf> {
        if !decanus_base::names::is_valid(name) {
            return None;
        }
        self.search
            .iter()
            .map(|place| place.join(name))
            .find(|dir| is_workflow(dir))
    }

    /// The workflow of that name.
    ///
    /// # Errors
    /// [`WorkflowError::Unknown`] with what may have been meant; what is wrong with its file.
    pub fn load(&self, name: &str) -> Result<Arc<Workflow>, WorkflowError> {
        let declared = self.declared();
        if let Some(own) = declared.iter().find(|w| w.name == name) {
            return Ok(own.clone());
        }
        match self.folder(name) {
            Some(dir) => self.linked(&dir),
            None => Err(self.unknown(name)),
        }
    }

    fn unknown(&self, name: &str) -> WorkflowError {
        let known = self.folders();
        let declared = self.declared();
        let own = declared.iter().map(|w| w.name.as_str());
        let guess = did_you_mean(name, known.iter().map(|(n, _)| n.as_str()).chain(own));
        WorkflowError::Unknown {
            name: name.to_owned(),
            guess,
            searched: self.search.clone(),
        }
    }
}

fn is_workflow(dir: &Path) -> bool {
    dir.join("workflow.yaml").is_file()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_workflow_is_read_anew_when_its_file_has_changed() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("W");
        std::fs::create_dir(&folder).unwrap();
        let file = folder.join("workflow.yaml");
        let write = |title: &str, age: u64| {
            std::fs::write(&file, format!("title: {title}\ntasks: {{t: {{sh: 'true'}}}}\n")).unwrap();
            let time = SystemTime::now() - Duration::from_secs(age);
            std::fs::File::open(&file).unwrap().set_modified(time).unwrap();
        };
        let workflows = Workflows::within(vec![dir.path().to_owned()]);
        write("One", 20);
        let first = workflows.load("W").unwrap();
        assert!(Arc::ptr_eq(&first, &workflows.load("W").unwrap()));
        write("Two", 10);
        assert_eq!(workflows.load("W").unwrap().title, "Two");
        // Nothing is remembered of a file that was written just now.
        write("Six", 0);
        write("Ten", 0);
        assert_eq!(workflows.load("W").unwrap().title, "Ten");
    }
}
