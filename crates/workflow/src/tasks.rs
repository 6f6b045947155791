//! The tasks of a workflow, in their order, and found by name at once: a workflow may have thousands.

use std::collections::HashMap;
use std::ops::Deref;
use std::sync::Arc;

use crate::definition::Task;

/// Tasks in the order of their file. Names are there once; of two with the same name the first is found.
#[derive(Clone, Debug, Default)]
pub struct Tasks {
    list: Vec<Arc<Task>>,
    places: HashMap<String, usize>,
}

impl Tasks {
    /// Adds one at the end.
    pub fn push(&mut self, task: Arc<Task>) {
        self.places.entry(task.name.clone()).or_insert(self.list.len());
        self.list.push(task);
    }

    /// The one of this name.
    pub fn get(&self, name: &str) -> Option<&Arc<Task>> {
        self.places.get(name).map(|&at| &self.list[at])
    }

    /// The one of this name, to be changed; not its name.
    pub fn get_mut(&mut self, name: &str) -> Option<&mut Arc<Task>> {
        self.places.get(name).map(|&at| &mut self.list[at])
    }
}

impl PartialEq for Tasks {
    fn eq(&self, other: &Self) -> bool {
        self.list == other.list
    }
}

impl Deref for Tasks {
    type Target = [Arc<Task>];

    fn deref(&self) -> &Self::Target {
        &self.list
    }
}

impl FromIterator<Arc<Task>> for Tasks {
    fn from_iter<I: IntoIterator<Item = Arc<Task>>>(tasks: I) -> Self {
        let mut all = Self::default();
        tasks.into_iter().for_each(|task| all.push(task));
        all
    }
}

impl From<Vec<Arc<Task>>> for Tasks {
    fn from(tasks: Vec<Arc<Task>>) -> Self {
        tasks.into_iter().collect()
    }
}

impl<'a> IntoIterator for &'a Tasks {
    type Item = &'a Arc<Task>;
    type IntoIter = std::slice::Iter<'a, Arc<Task>>;

    fn into_iter(self) -> Self::IntoIter {
        self.list.iter()
    }
}
