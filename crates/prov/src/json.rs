//! The graph for machines.

use std::time::SystemTime;

use decanus_chat::Usage;
use serde_json::{Map, Value, json};

use crate::graph::{Check, Edge, Graph, Node};
use crate::tokens::Inference;

impl Graph {
    /// `{"nodes", "edges", "tokens", "inferences", "problems"}`; with `evidence` also `"provider"`, the opaque parts
    /// of answers. Members that have nothing to say are left out of nodes; `tokens` has all six counts.
    pub fn to_json(&self, evidence: bool) -> Value {
        let edge = |edge: &Edge| {
            let mut map = Map::new();
            map.insert("from".into(), self.nodes[edge.from].id.clone().into());
            map.insert("to".into(), self.nodes[edge.to].id.clone().into());
            map.insert("relation".into(), edge.relation.as_str().into());
            for (name, value) in [
                ("input", edge.input.as_deref()),
                ("sha256", edge.sha256.as_deref()),
                ("check", edge.check.map(Check::as_str)),
            ] {
                if let Some(value) = value {
                    map.insert(name.into(), value.into());
                }
            }
            Value::Object(map)
        };
        let mut object = Map::new();
        object.insert("nodes".into(), self.nodes.iter().map(node).collect());
        object.insert("edges".into(), self.edges.iter().map(edge).collect());
        object.insert("tokens".into(), all_counts(&self.ledger.total()));
        if self.has_receipts() {
            let [chats, receipts, only] = self.ledger.scopes();
            let scopes = [("chats", chats), ("receipts", receipts), ("receipts_only", only)];
            let scopes = scopes.map(|(name, usage)| (name.to_owned(), all_counts(&usage)));
            object.insert("token_scopes".into(), scopes.into_iter().collect());
        }
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

    fn has_receipts(&self) -> bool {
        let mut evidence = self.ledger.inferences().iter().flat_map(|i| &i.evidence);
        evidence.any(|e| e.receipt)
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
    set("digest", node.digest.clone().map(Value::from));
    let versions = node.versions.clone();
    set("versions", (!versions.is_empty()).then_some(Value::Object(versions)));
    set("modified", node.modified.and_then(time).map(Value::from));
    set("tokens", known_counts(&node.usage));
    set("model", node.model.clone().map(Value::from));
    set("time", node.time.clone().map(Value::from));
    set("seconds", node.seconds.map(Value::from));
    set("note", node.note.clone().map(Value::from));
    Value::Object(map)
}

/// A time of the file system as records write times.
fn time(time: SystemTime) -> Option<String> {
    let time = jiff::Timestamp::try_from(time).ok()?;
    Some(format!("{time:.3}"))
}

fn inference(inference: &Inference) -> Value {
    let evidence = inference.evidence.iter().map(|e| {
        let mut shown = json!({"file": e.file.to_string_lossy(), "line": e.line, "tokens": known_counts(&e.usage)});
        if e.receipt {
            shown["receipt"] = true.into();
        }
        shown
    });
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
