//! workflow.md: longer texts for a workflow and its tasks.
//!
//! A first line followed by an empty one is the title; then the description up to a line `# Tasks`; then, after an
//! introduction, a section `## NAME` for each task.

use std::sync::Arc;

use crate::definition::Workflow;

#[derive(Debug, Default, PartialEq)]
pub(crate) struct Docs {
    pub(crate) title: String,
    pub(crate) description: String,
    /// What stands between `# Tasks` and the first task.
    pub(crate) introduction: String,
    pub(crate) tasks: Vec<(String, String)>,
    /// The line of each task's heading, counted from 1.
    pub(crate) lines: Vec<(String, usize)>,
}

impl Docs {
    /// Puts the documentation in the place of what workflow.yaml says.
    pub(crate) fn apply(self, workflow: &mut Workflow) {
        for (text, place) in [
            (self.title, &mut workflow.title),
            (self.description, &mut workflow.description),
            (self.introduction, &mut workflow.introduction),
        ] {
            if !text.is_empty() {
                *place = text;
            }
        }
        for (name, text) in self.tasks {
            if let Some(task) = workflow.tasks.get_mut(&name) {
                Arc::make_mut(task).description = text;
            }
        }
    }
}

pub(crate) fn read(text: &str) -> Docs {
    let mut docs = Docs::default();
    let mut lines = text.lines().peekable();
    let first = lines.peek().copied().unwrap_or_default();
    if !first.trim().is_empty() && text.lines().nth(1).is_some_and(|second| second.trim().is_empty()) {
        docs.title = first.to_owned();
        lines.next();
    }
    let mut in_tasks = false;
    let mut current: Option<(String, String)> = None;
    let title_lines = usize::from(!docs.title.is_empty());
    for (at, line) in lines.enumerate() {
        if !in_tasks && line.trim().eq_ignore_ascii_case("# tasks") {
            in_tasks = true;
        } else if !in_tasks {
            docs.description.push_str(line);
            docs.description.push('\n');
        } else if let Some(name) = line.strip_prefix("## ") {
            docs.tasks.extend(current.take());
            let name = name.trim().to_owned();
            docs.lines.push((name.clone(), at + title_lines + 1));
            current = Some((name, String::new()));
        } else if let Some((_, text)) = &mut current {
            text.push_str(line);
            text.push('\n');
        } else {
            docs.introduction.push_str(line);
            docs.introduction.push('\n');
        }
    }
    docs.tasks.extend(current);
    docs.introduction = docs.introduction.trim().to_owned();
    docs.description = docs.description.trim().to_owned();
    docs.tasks = docs
        .tasks
        .into_iter()
        .map(|(n, t)| (n, t.trim().to_owned()))
        .filter(|(_, t)| !t.is_empty())
        .collect();
    docs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn title_description_and_tasks() {
        let docs = read(
            "Title line\n\nDesc para one.\n\nDesc two.\n\n# Tasks\n\nTask intro\n\n## t1\n\nFirst.\n\nMore.\n\n## t2\nSecond",
        );
        assert_eq!(docs.title, "Title line");
        assert_eq!(docs.description, "Desc para one.\n\nDesc two.");
        assert_eq!(docs.introduction, "Task intro");
        assert_eq!(docs.lines, [("t1".into(), 11), ("t2".into(), 17)]);
        assert_eq!(
            docs.tasks,
            [("t1".into(), "First.\n\nMore.".into()), ("t2".into(), "Second".into())]
        );
        let only = read("Only title\n");
        assert_eq!((only.title.as_str(), only.description.as_str()), ("", "Only title"));
        assert_eq!(read(""), Docs::default());
    }
}
