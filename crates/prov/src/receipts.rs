//! Receipts: what an output says of the agent that was asked for it.
//!
//! An agent that asks another one keeps the metas of its answer in the output, as `agent_meta`. They are evidence of
//! requests that were made elsewhere, never messages of the chat that holds them.

use decanus_chat::Meta;
use serde_json::Value;

use crate::segment::without_reasoning;

/// One meta of an answer that another agent gave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Receipt {
    /// Its pairs, without the model's reasoning.
    pub meta: Meta,
    /// Its place among the receipts of its output, counted from 0.
    pub index: usize,
}

impl Receipt {
    /// The job in which the agent's requests are kept.
    pub fn job(&self) -> Option<&str> {
        self.meta.get("job").filter(|job| !job.is_empty())
    }

    /// The chat in which they are kept.
    pub fn chat(&self) -> Option<&str> {
        self.meta.get("chat").filter(|chat| !chat.is_empty())
    }
}

/// The receipts of an output's record, and what is wrong with those that can't be read. Nothing is searched for in the
/// text of the output.
pub(crate) fn receipts(record: &Value) -> (Vec<Receipt>, Vec<String>) {
    let Some(all) = record.get("agent_meta") else {
        return (Vec::new(), Vec::new());
    };
    let Value::Array(all) = all else {
        return (Vec::new(), vec!["agent_meta is not a list (not_an_array)".into()]);
    };
    let mut found = Vec::new();
    let mut problems = Vec::new();
    for (index, entry) in all.iter().enumerate() {
        match receipt(entry) {
            Ok(meta) => found.push(Receipt { meta, index }),
            Err(why) => problems.push(format!("agent_meta[{index}] {why}")),
        }
    }
    (found, problems)
}

fn receipt(entry: &Value) -> Result<Meta, &'static str> {
    let Value::Object(entry) = entry else {
        return Err("is not an object (not_a_hash)");
    };
    if entry.get("role").and_then(Value::as_str) != Some("meta") {
        return Err("has another role than meta (invalid_role)");
    }
    let content = entry.get("content").and_then(Value::as_str);
    let content = content.ok_or("has a content that is no text (invalid_content)")?;
    let meta = Meta::read(content);
    if meta.pairs().next().is_none() {
        return Err("holds no key=value pair (unparseable_meta)");
    }
    Ok(without_reasoning(&meta))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn each_bad_entry_is_named_and_the_others_are_read() {
        let (found, problems) = receipts(&json!({"agent_meta": [
            {"role": "meta", "content": "pt=1 job=W/ask/x reas=thoughts"},
            7, {"role": "user", "content": "pt=1"}, {"role": "meta", "content": 1}, {"role": "meta", "content": "no pair"},
        ]}));
        assert_eq!((found.len(), found[0].job(), found[0].index), (1, Some("W/ask/x"), 0));
        assert_eq!(found[0].meta.get("reas"), None);
        let words = ["not_a_hash", "invalid_role", "invalid_content", "unparseable_meta"];
        assert_eq!(problems.len(), words.len());
        for (n, (problem, word)) in problems.iter().zip(words).enumerate() {
            assert!(
                problem.contains(word) && problem.starts_with(&format!("agent_meta[{}]", n + 1)),
                "{problem}"
            );
        }
        for bad in [json!("oops"), json!(false), json!(null)] {
            let (found, problems) = receipts(&json!({"agent_meta": bad}));
            assert!(found.is_empty() && problems[0].contains("not_an_array"), "{problems:?}");
        }
        assert_eq!(receipts(&json!({"content": "agent_meta"})), (vec![], vec![]));
    }
}
