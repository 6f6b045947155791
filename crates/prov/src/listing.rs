//! The jobs of a graph as a listing: what a job used stands above it.

use std::collections::HashSet;
use std::path::Path;
use std::time::Duration;

use crate::graph::{Edge, Graph, Kind, Node, Relation};
use crate::tree::{file_state, safe, versions};

/// A result that is newer than what was made of it by more than this was made again since. File systems and clocks of
/// several machines do not agree to the second.
const TOLERANCE: Duration = Duration::from_secs(2);

/// What stands at the end of a listing's lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ListingOptions {
    /// Also when each job began, how long it ran, and what ran it.
    pub long: bool,
}

impl Graph {
    /// The root, a job, with all jobs and files it came from, in post-order: first what was used, each one blank further in
    /// than what used it, then the job itself. A line is `STATUS WORKFLOW TASK PATH`; behind `->` stand the tasks and inputs
    /// that the job's result is the value of; a file is `file -  PATH`. What was listed before is listed again without
    /// what it came from. A result that is newer than what was made of it is marked. Every line is safe to print; empty when
    /// the root is no job.
    pub fn to_listing(&self, options: ListingOptions) -> String {
        if self.nodes.first().is_none_or(|root| root.kind != Kind::Job) {
            return String::new();
        }
        let mut below: Vec<Vec<&Edge>> = vec![Vec::new(); self.nodes.len()];
        let mut values: Vec<Vec<String>> = vec![Vec::new(); self.nodes.len()];
        for edge in &self.edges {
            let is_job = self.nodes[edge.to].kind == Kind::Job;
            match edge.relation {
                Relation::Dependency | Relation::Script => below[edge.from].push(edge),
                Relation::Input if self.nodes[edge.from].kind == Kind::Job => {
                    below[edge.from].push(edge);
                    if let (true, Some(input)) = (is_job, &edge.input) {
                        values[edge.to].push(format!("{}:{input}", task(&self.nodes[edge.from]).1));
                    }
                }
                _ => {}
            }
        }
        // A job that is a dependency and the value of an input is listed once below one job.
        for edges in &mut below {
            let mut seen = HashSet::new();
            edges.retain(|edge| seen.insert(edge.to));
        }
        let mut out = String::new();
        let mut listed = vec![false; self.nodes.len()];
        // A stack of its own: jobs may depend on each other deeper than the process's stack is. Each is met twice: before
        // what is below it, and after.
        let mut open: Vec<(usize, usize, Option<&Edge>, bool)> = vec![(0, 0, None, false)];
        while let Some((at, depth, edge, is_closing)) = open.pop() {
            let again = listed[at];
            // That it is an input's value is said where it was listed.
            let is_value = edge.is_some_and(|e| e.relation == Relation::Input && self.nodes[at].kind == Kind::Job);
            if again && is_value && !is_closing {
                continue;
            }
            if is_closing || again || below[at].is_empty() {
                listed[at] = true;
                let line = self.listing_line(at, edge, &values[at], options);
                out.push_str(&" ".repeat(depth));
                out.push_str(&safe(&line));
                out.push('\n');
                continue;
            }
            // From here on it was met: a ring ends at its second sight.
            listed[at] = true;
            open.push((at, depth, edge, true));
            open.extend(below[at].iter().rev().map(|e| (e.to, depth + 1, Some(*e), false)));
        }
        out
    }

    fn listing_line(&self, at: usize, edge: Option<&Edge>, values: &[String], options: ListingOptions) -> String {
        let node = &self.nodes[at];
        let path = node.path.display();
        let mut line = match node.kind {
            Kind::Job => {
                let (workflow, task) = task(node);
                let status = node.status.as_deref().unwrap_or("noinfo");
                format!("{status} {workflow} {task} {path}")
            }
            _ => format!("file -  {path}"),
        };
        if !values.is_empty() {
            line.push_str(" -> ");
            line.push_str(&values.join(" "));
        }
        if let Some(edge) = edge {
            if node.kind == Kind::Job && is_newer(node, &self.nodes[edge.from]) {
                line.push_str(" (Mtime out of sync)");
            }
            if let Some(state) = file_state(edge) {
                line.push_str("  ");
                line.push_str(&state);
            } else if node.status.as_deref() == Some("missing") && node.kind == Kind::File {
                line.push_str("  (missing)");
            }
        }
        if options.long {
            let time = node.time.clone();
            let seconds = node
                .seconds
                .map(|s| decanus_base::units::show_duration(Duration::from_secs_f64(s)));
            for part in [time, seconds, versions(node)].into_iter().flatten() {
                line.push_str("  ");
                line.push_str(&part);
            }
        }
        line
    }
}

/// Workflow and task of a job, as its path says.
fn task(job: &Node) -> (String, String) {
    let part = |path: Option<&Path>| {
        let name = path.and_then(Path::file_name);
        name.map_or_else(|| "-".to_owned(), |n| n.to_string_lossy().into_owned())
    };
    let folder = job.path.parent();
    (part(folder.and_then(Path::parent)), part(folder))
}

fn is_newer(dependency: &Node, job: &Node) -> bool {
    match (dependency.modified, job.modified) {
        (Some(dependency), Some(job)) => dependency.duration_since(job).is_ok_and(|age| age > TOLERANCE),
        _ => false,
    }
}
