//! The workflows in reach of a project.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use decanus_base::Project;
use decanus_base::names::did_you_mean;

use crate::definition::Workflow;
use crate::error::WorkflowError;
use crate::parse;

/// The folders in which workflows are looked up.
#[derive(Clone, Debug)]
pub struct Workflows {
    search: Vec<PathBuf>,
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
            search: project.search("workflows"),
        }
    }

    /// Those in these folders; where a name is in several, the first counts.
    pub fn within(search: Vec<PathBuf>) -> Self {
        Self { search }
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
            workflow: parse::load(&dir).map(Arc::new),
            name,
            dir,
        };
        self.folders().into_iter().map(load).collect()
    }

    /// Whether there is a workflow of that name, right or wrong.
    pub fn has(&self, name: &str) -> bool {
        self.folder(name).is_some()
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
        match self.folder(name) {
            Some(dir) => parse::load(&dir).map(Arc::new),
            None => {
                let known = self.folders();
                let guess = did_you_mean(name, known.iter().map(|(n, _)| n.as_str()));
                Err(WorkflowError::Unknown {
                    name: name.to_owned(),
                    guess,
                    searched: self.search.clone(),
                })
            }
        }
    }
}

fn is_workflow(dir: &Path) -> bool {
    dir.join("workflow.yaml").is_file()
}
