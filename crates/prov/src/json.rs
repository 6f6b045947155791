//! The graph for machines.

use decanus_chat::Usage;
use serde_json::{Map, Value, json};

use crate::graph::{Graph, Node};
use crate::tokens::Inference;

impl Graph {
    /// `{"nodes", "edges", "tokens", "inferences", "problems"}`; with `evidence` also `"provider"`, the opaque parts
    /// of answers. Members that have nothing to say are left out of nodes; `tokens` has all six counts.
    pub fn to_json(&self, evidence: bool) -> Value {
        let edge = |from: usize, to: usize, relation: &str| json!({"from": self.nodes[from].id, "to": self.nodes[to].id, "relation": relation});
        let mut object = Map::new();
        object.insert("nodes".into(), self.nodes.iter().map(node).collect());
        object.insert(
            "edges".into(),
            self.edges
                .iter()
                .map(|e| edge(e.from, e.to, e.relation.as_str()))
                .collect(),
        );
        object.insert("tokens".into(), all_counts(&self.ledger.total()));
        object.insert(
            "inferences".into(),
            self.ledger.inferences().iter().map(inference).collect(),
        );
        let problem = |p: &crate::Problem| {
            let mut map = Map::new();
            map.insert("file".into(), p.file.to_string_lossy().into());
            if let Some(line) = p.line {
                map.insert("line".into(), line.into());
            }
            map.insert("message".into(), p.message.clone().into());
            Value::Object(map)
        };
        object.insert("problems".into(), self.problems.iter().map(problem).collect());
        if evidence {
            let parts = self.provider_parts.iter().map(|p| {
                let content: Value = serde_json::from_str(&p.content).unwrap_or_else(|_| p.content.clone().into());
                json!({"file": p.file.to_string_lossy(), "line": p.line, "content": content})
            });
            object.insert("provider".into(), parts.collect());
        }
        Value::Object(object)
    }
}

fn node(node: &Node) -> Value {
    let mut map = Map::new();
    let mut set = |name: &str, value: Option<Value>| {
        if let Some(value) = value {
            map.insert(name.into(), value);
        }
    };
    set("id", Some(node.id.clone().into()));
    set("kind", Some(node.kind.as_str().into()));
    set("label", Some(node.label.clone().into()));
    set("path", Some(node.path.to_string_lossy().into()));
    set("line", node.line.map(Value::from));
    set("status", node.status.clone().map(Value::from));
    set("tokens", known_counts(&node.usage));
    set("model", node.model.clone().map(Value::from));
    set("time", node.time.clone().map(Value::from));
    set("seconds", node.seconds.map(Value::from));
    set("note", node.note.clone().map(Value::from));
    Value::Object(map)
}

fn inference(inference: &Inference) -> Value {
    let evidence = inference
        .evidence
        .iter()
        .map(|e| json!({"file": e.file.to_string_lossy(), "line": e.line, "tokens": known_counts(&e.usage)}));
    json!({
        "id": inference.id,
        "has_id": inference.has_id,
        "model": inference.model,
        "time": inference.time,
        "tokens": known_counts(&inference.usage),
        "evidence": evidence.collect::<Value>(),
        "conflicts": inference.conflicts,
    })
}

fn known_counts(usage: &Usage) -> Option<Value> {
    let known = usage.fields().into_iter();
    let known = known.filter_map(|(name, count)| Some((name.to_owned(), Value::from(count?))));
    (!usage.is_empty()).then(|| known.collect())
}

fn all_counts(usage: &Usage) -> Value {
    let fields = usage.fields().into_iter();
    fields
        .map(|(name, count)| (name.to_owned(), Value::from(count.unwrap_or(0))))
        .collect()
}
