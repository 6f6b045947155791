//! What a job's record says of the files it read, and whether they still are that.

use std::collections::HashMap;
use std::path::Path;

use decanus_base::digest::sha256_file;
use serde_json::{Map, Value};

use crate::graph::{Check, Graph, Kind, Relation};
use crate::trace::beside;

/// The part of a record that names digests: `identity` has one for each input and script.
#[derive(Debug, Default)]
pub(crate) struct Recorded {
    identity: Map<String, Value>,
    files: Map<String, Value>,
}

impl Recorded {
    /// That of a job. Records of earlier versions have none.
    pub(crate) fn of(job: &Path) -> Self {
        let read = std::fs::read(beside(job, ".info")).unwrap_or_default();
        let record: Value = serde_json::from_slice(&read).unwrap_or_default();
        let map = |name: &str| record.get(name).and_then(Value::as_object).cloned().unwrap_or_default();
        Self {
            identity: map("identity"),
            files: map("files"),
        }
    }

    /// The SHA-256 that a file had as an input: by its path, else by the name of the input.
    pub(crate) fn file(&self, input: &str, path: &Path) -> Option<String> {
        let by_path = self.files.get(&*path.to_string_lossy());
        let by_name = ["input ", "file "]
            .iter()
            .find_map(|word| self.identity.get(&format!("{word}{input}")));
        by_path.and_then(|v| digest(v, path)).or_else(|| digest(by_name?, path))
    }

    /// The scripts, by their paths within the workflow's folder, each with its SHA-256.
    pub(crate) fn scripts(&self) -> Vec<(&str, String)> {
        let named = self.identity.iter();
        let scripts = named.filter_map(|(name, value)| Some((name.strip_prefix("script ")?, value)));
        scripts
            .filter_map(|(name, value)| Some((name, digest(value, Path::new(name))?)))
            .collect()
    }
}

/// A digest as records write it: as text, with `sha256:` before it or not; as `sha256` of an object; or, for an input with
/// several files, by their paths.
fn digest(value: &Value, path: &Path) -> Option<String> {
    let text = match value {
        Value::Object(map) => match map.get(&*path.to_string_lossy()) {
            Some(value) => return digest(value, path),
            None => map.get("sha256")?.as_str()?,
        },
        value => value.as_str()?,
    };
    let text = text.strip_prefix("sha256:").unwrap_or(text);
    let is_digest = text.len() == 64 && text.bytes().all(|b| b.is_ascii_hexdigit());
    is_digest.then(|| text.to_lowercase())
}

/// Reads every file that a job read, once, and says at each edge whether it still has the recorded content.
pub(crate) fn check(graph: &mut Graph) {
    let mut now: HashMap<usize, Option<String>> = HashMap::new();
    let mut changed = Vec::new();
    for edge in &mut graph.edges {
        let is_read = matches!(edge.relation, Relation::Input | Relation::Script);
        let file = &graph.nodes[edge.to];
        if !is_read || file.kind != Kind::File {
            continue;
        }
        edge.check = Some(match &edge.sha256 {
            _ if !file.path.exists() => Check::Missing,
            // Folders have digests of their own kind; a pipe would be waited for.
            Some(_) if !file.path.is_file() => Check::Unrecorded,
            None => Check::Unrecorded,
            Some(recorded) => {
                let found = now.entry(edge.to).or_insert_with(|| sha256_file(&file.path).ok());
                match found {
                    Some(found) if found == recorded => Check::Same,
                    Some(_) => Check::Changed,
                    None => Check::Missing,
                }
            }
        });
        if edge.check == Some(Check::Changed) {
            let (job, file) = (&graph.nodes[edge.from], &file.label);
            let text = format!("{file} is not what it was when {} read it", job.label);
            changed.push((job.path.clone(), text));
        }
    }
    for (job, text) in changed {
        graph.problem(&job, None, text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn digests_are_read_in_all_their_forms_and_nothing_else_is_one() {
        let hex = "ab".repeat(32);
        let path = Path::new("/a");
        for good in [
            json!(hex),
            json!(hex.to_uppercase()),
            json!(format!("sha256:{hex}")),
            json!({"sha256": hex}),
            json!({"/a": hex, "/b": "x"}),
        ] {
            assert_eq!(digest(&good, path), Some(hex.clone()), "{good}");
        }
        for bad in [
            json!("ab"),
            json!(1),
            json!(null),
            json!({"/b": hex}),
            json!("z".repeat(64)),
        ] {
            assert_eq!(digest(&bad, path), None, "{bad}");
        }
    }
}
