//! The walk over chats and jobs.

use std::collections::{HashMap, VecDeque};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use decanus_workflow::{JobStore, Workflow, Workflows};

use crate::error::ProvError;
use crate::graph::{Graph, Kind, Node, Relation};
use crate::receipts::Receipt;
use crate::verify;

/// Finds out where things came from.
#[derive(Clone, Debug)]
pub struct Tracer {
    pub(crate) jobs: JobStore,
    root: PathBuf,
    workflows: Option<Workflows>,
    verify: bool,
}

impl Tracer {
    /// A tracer for a project: its jobs, and the folder that labels are relative to.
    pub fn new(jobs: JobStore, root: impl Into<PathBuf>) -> Self {
        Self {
            jobs,
            root: root.into(),
            workflows: None,
            verify: false,
        }
    }

    /// Lets it look into workflows, which say which inputs of a job are files. Without, those are taken for files that
    /// are the absolute path of one.
    pub fn with_workflows(mut self, workflows: Workflows) -> Self {
        self.workflows = Some(workflows);
        self
    }

    /// Lets it read the files that jobs have read, to see whether they still are what they were ([`crate::Check`]).
    pub fn verifying(mut self, verify: bool) -> Self {
        self.verify = verify;
        self
    }

    /// The graph of a file: of a job if the file is a job's result, else of a chat.
    ///
    /// # Errors
    /// When there is no such file, or it can't be read.
    pub fn file(&self, path: &Path) -> Result<Graph, ProvError> {
        if beside(path, ".info").is_file() || beside(path, ".files").is_dir() {
            self.job(path)
        } else {
            self.chat(path)
        }
    }

    /// The graph of a chat.
    ///
    /// # Errors
    /// When there is no such file, or it can't be read as text.
    pub fn chat(&self, path: &Path) -> Result<Graph, ProvError> {
        if !path.exists() {
            return Err(ProvError::NoChat(path.to_owned()));
        }
        let mut walk = Walk::new(self);
        walk.visit_chat(path);
        if let Some(root) = walk.queue.pop_front() {
            walk.expand_chat(root).map_err(ProvError::Unreadable)?;
        }
        Ok(walk.finish())
    }

    /// The graph of a job.
    ///
    /// # Errors
    /// When there is no record of it.
    pub fn job(&self, path: &Path) -> Result<Graph, ProvError> {
        if self.jobs.read(path.to_owned()).is_none() {
            return Err(ProvError::NoJob(path.to_owned()));
        }
        let mut walk = Walk::new(self);
        walk.visit_job(path);
        Ok(walk.finish())
    }
}

/// A walk under way: what was found, and what is still to be looked into.
pub(crate) struct Walk<'a> {
    pub(crate) tracer: &'a Tracer,
    pub(crate) graph: Graph,
    queue: VecDeque<usize>,
    workflows: HashMap<String, Option<Arc<Workflow>>>,
    /// Receipts with the file and line of their calls: they are counted when all chats are.
    pub(crate) receipts: Vec<(PathBuf, usize, Receipt)>,
}

impl<'a> Walk<'a> {
    fn new(tracer: &'a Tracer) -> Self {
        Self {
            tracer,
            graph: Graph::default(),
            queue: VecDeque::new(),
            workflows: HashMap::new(),
            receipts: Vec::new(),
        }
    }

    fn finish(mut self) -> Graph {
        while let Some(at) = self.queue.pop_front() {
            match self.graph.nodes[at].kind {
                Kind::Chat => {
                    if let Err(message) = self.expand_chat(at) {
                        let node = &mut self.graph.nodes[at];
                        node.status = Some(if node.path.exists() { "unreadable" } else { "missing" }.into());
                        let path = node.path.clone();
                        self.graph.problem(&path, None, message);
                    }
                }
                Kind::Job => self.expand_job(at),
                Kind::Answer | Kind::Call | Kind::File => {}
            }
        }
        self.count_receipts();
        if self.tracer.verify {
            verify::check(&mut self.graph);
        }
        self.graph
    }

    fn count_receipts(&mut self) {
        for (file, line, receipt) in std::mem::take(&mut self.receipts) {
            let Some(entry) = self.graph.ledger.add_receipt(&file, line, &receipt) else {
                continue;
            };
            if !entry.differs.is_empty() {
                let id = &self.graph.ledger.inferences()[entry.at].id;
                let text = format!(
                    "the receipt of inference {id} has another {} than was found before; that one counts",
                    entry.differs.join(", ")
                );
                self.graph.problem(&file, Some(line), text);
            }
        }
    }

    /// The node of a chat, to be looked into when it is new.
    pub(crate) fn visit_chat(&mut self, path: &Path) -> usize {
        let path = real(path);
        let label = self.shown(&path);
        self.visit(Node::new(Kind::Chat, &path, None, label))
    }

    /// The node of a job, to be looked into when it is new.
    pub(crate) fn visit_job(&mut self, path: &Path) -> usize {
        let path = real(path);
        let label = last_three(&path).unwrap_or_else(|| path.clone());
        let mut node = Node::new(Kind::Job, &path, None, label.display().to_string());
        node.modified = modified(&path);
        self.visit(node)
    }

    /// The node of a file.
    pub(crate) fn visit_file(&mut self, path: &Path) -> usize {
        let path = real(path);
        let mut node = Node::new(Kind::File, &path, None, self.shown(&path));
        node.modified = modified(&path);
        if !path.exists() {
            node.status = Some("missing".into());
        }
        self.graph.node(node).0
    }

    fn visit(&mut self, node: Node) -> usize {
        let (at, is_new) = self.graph.node(node);
        if is_new {
            self.queue.push_back(at);
        }
        at
    }

    /// The job that a chat or a record names, with an edge to it. One that is not found is a problem of the file that
    /// names it.
    pub(crate) fn refer_to_job(&mut self, from: usize, reference: &str, relation: Relation, line: Option<usize>) {
        let to = match self.find_job(reference) {
            Some(path) => self.visit_job(&path),
            None => {
                // `WORKFLOW/TASK/FILE` is where it would be among the jobs.
                let short = last_three(Path::new(reference)).is_some_and(|parts| parts == Path::new(reference));
                let folder = if short {
                    self.tracer.jobs.dir()
                } else {
                    &self.tracer.root
                };
                let path = real(&folder.join(reference));
                let label = last_three(&path).unwrap_or_else(|| path.clone());
                let mut node = Node::new(Kind::Job, &path, None, label.display().to_string());
                node.status = Some("missing".into());
                let file = self.graph.nodes[from].path.clone();
                let text = format!("job `{reference}` is not there");
                self.graph.problem(&file, line, text);
                self.graph.node(node).0
            }
        };
        self.graph.edge(from, to, relation);
    }

    /// The path of the job whose result a value is: only one that has a record.
    pub(crate) fn job_of_value(&self, value: &str) -> Option<PathBuf> {
        if !value.contains('/') || value.contains('\n') {
            return None;
        }
        let has_record = |path: &PathBuf| beside(path, ".info").is_file();
        let own = self.tracer.jobs.dir().join(value);
        Some(own).filter(has_record)
    }

    /// A path that leads to a job; or, since projects are moved, the last three parts of it in this project's jobs folder.
    pub(crate) fn find_job(&self, reference: &str) -> Option<PathBuf> {
        let there = |path: &PathBuf| path.is_file() || beside(path, ".info").is_file();
        let direct = self.tracer.root.join(reference);
        let here = last_three(Path::new(reference)).map(|parts| self.tracer.jobs.dir().join(parts));
        Some(direct).filter(there).or_else(|| here.filter(there))
    }

    /// A path of the project.
    pub(crate) fn in_project(&self, path: &str) -> PathBuf {
        self.tracer.root.join(path)
    }

    /// A path for people: relative to the project where it is inside.
    fn shown(&self, path: &Path) -> String {
        let root = real(&self.tracer.root);
        path.strip_prefix(&root).unwrap_or(path).display().to_string()
    }

    pub(crate) fn workflow(&mut self, name: &str) -> Option<Arc<Workflow>> {
        let workflows = self.tracer.workflows.as_ref()?;
        let load = || workflows.load(name).ok();
        self.workflows.entry(name.to_owned()).or_insert_with(load).clone()
    }
}

fn modified(path: &Path) -> Option<SystemTime> {
    std::fs::metadata(path).and_then(|m| m.modified()).ok()
}

/// What identifies a file. Of one that is not there (the result of a job that failed) the folder's real path does.
fn real(path: &Path) -> PathBuf {
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    if let Ok(real) = absolute.canonicalize() {
        return real;
    }
    match (absolute.parent().map(Path::canonicalize), absolute.file_name()) {
        (Some(Ok(folder)), Some(name)) => folder.join(name),
        _ => absolute,
    }
}

/// `WORKFLOW/TASK/FILE` at the end of a path.
fn last_three(path: &Path) -> Option<PathBuf> {
    let parts: Vec<Component<'_>> = path.components().collect();
    let last = parts.get(parts.len().checked_sub(3)?..)?;
    let plain = last.iter().all(|c| matches!(c, Component::Normal(_)));
    plain.then(|| last.iter().collect())
}

/// What stands beside a job's result under its name and this ending.
pub(crate) fn beside(path: &Path, end: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(end);
    name.into()
}
