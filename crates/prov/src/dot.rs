//! The graph as a drawing, in the language of Graphviz.

use std::fmt::Write;

use decanus_base::text::escape_controls;

use crate::graph::{Check, Graph, Kind, Node};

impl Graph {
    /// The text that `dot` draws: one shape for each kind of node, its tokens or status below its label, and the
    /// relation at each edge.
    pub fn to_dot(&self) -> String {
        let mut out =
            String::from("digraph provenance {\n  rankdir=LR;\n  node [fontsize=10];\n  edge [fontsize=9];\n");
        for (n, node) in self.nodes.iter().enumerate() {
            let label = quoted(&lines(node));
            let _ = writeln!(out, "  n{n} [shape={}, label={label}];", shape(node.kind));
        }
        for edge in &self.edges {
            let label = match &edge.input {
                Some(input) => format!("{} {input}", edge.relation.as_str()),
                None => edge.relation.as_str().to_owned(),
            };
            let label = quoted(&[label]);
            // A file that is not what it was stands out.
            let style = match edge.check {
                Some(Check::Changed | Check::Missing) => ", color=red",
                _ => "",
            };
            let _ = writeln!(out, "  n{} -> n{} [label={label}{style}];", edge.from, edge.to);
        }
        out.push_str("}\n");
        out
    }
}

fn shape(kind: Kind) -> &'static str {
    match kind {
        Kind::Chat => "note",
        Kind::Answer => "ellipse",
        Kind::Call => "cds",
        Kind::Job => "box",
        Kind::File => "folder",
    }
}

fn lines(node: &Node) -> Vec<String> {
    let mut lines = vec![node.label.clone()];
    lines.extend(node.status.clone());
    lines.extend(node.usage.tt.map(|tt| format!("{tt} tokens")));
    lines
}

/// A quoted string: quotes and backslashes escaped, since `\N`, `\l` and the like mean something, no line break but
/// those between the lines, and nothing that a viewer would act on.
fn quoted(lines: &[String]) -> String {
    let escaped = lines.iter().map(|line| {
        let plain = escape_controls(&line.replace('\n', " "));
        plain.replace('\\', "\\\\").replace('"', "\\\"")
    });
    format!("\"{}\"", escaped.collect::<Vec<_>>().join("\\n"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn labels_cannot_break_out_of_their_quotes() {
        let mut graph = Graph::default();
        let label = "a\"; b [label=\"\\N\\\"\n\u{1b}[2J\u{0}ñ<b>\\";
        graph.node(Node::new(Kind::Call, Path::new("/c"), Some(1), label));
        let dot = graph.to_dot();
        assert!(
            dot.contains(r#"label="a\"; b [label=\"\\N\\\" \\u{1b}[2J\\u{0}ñ<b>\\"];"#),
            "{dot}"
        );
        assert_eq!(dot.lines().count(), 6);
    }
}
