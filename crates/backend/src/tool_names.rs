//! Tool names in the form that a provider takes, and back.

use std::collections::HashMap;

use decanus_base::digest::sha256_hex;
use decanus_chat::ToolDefinition;

/// The names of the tools on offer. A name that the provider takes is sent as it is; any other is sent with the
/// characters in question replaced, cut, and followed by a part of its digest, so that two names never meet. The form
/// of a name depends on nothing but the name (and, should two forms meet after all, on the tools on offer), so it stays
/// the same from request to request.
#[derive(Debug, Clone, Default)]
pub struct ToolNames {
    max: usize,
    to_wire: HashMap<String, String>,
    from_wire: HashMap<String, String>,
}

impl ToolNames {
    /// The names of some tools, at most `max` characters each (64 for most providers).
    pub fn new(tools: &[ToolDefinition], max: usize) -> Self {
        let mut names = Self { max, ..Self::default() };
        let mut sorted: Vec<&str> = tools.iter().map(|t| t.name.as_str()).collect();
        // Names that need no change come first: they can't give way.
        sorted.sort_by_key(|n| (!fits(n, max), *n));
        for name in sorted {
            let wire = (8..=32).step_by(8).map(|digits| wire_form(name, max, digits));
            let wire = wire.into_iter().find(|w| !names.from_wire.contains_key(w));
            let wire = wire.unwrap_or_else(|| wire_form(name, max, 32));
            names.from_wire.insert(wire.clone(), name.to_owned());
            names.to_wire.insert(name.to_owned(), wire);
        }
        names
    }

    /// The form of a name that is sent, also for a tool that is no longer on offer.
    pub fn wire(&self, name: &str) -> String {
        self.to_wire
            .get(name)
            .cloned()
            .unwrap_or_else(|| wire_form(name, self.max, 8))
    }

    /// Whether a name, as it is sent, is that of a tool on offer.
    pub fn is_offered(&self, wire: &str) -> bool {
        self.from_wire.contains_key(wire)
    }

    /// Whether no tool is on offer.
    pub fn is_empty(&self) -> bool {
        self.from_wire.is_empty()
    }

    /// The tool that a model means. A name that was not offered stays as it is.
    pub fn original<'a>(&'a self, wire: &'a str) -> &'a str {
        self.from_wire.get(wire).map_or(wire, String::as_str)
    }
}

/// An id of at most `max` characters: gateways make ids of several hundred. A short one stays as it is.
pub(crate) fn short_id(id: &str, max: usize) -> String {
    if id.chars().count() <= max {
        return id.to_owned();
    }
    let kept: String = id.chars().take(max.saturating_sub(17)).collect();
    format!("{kept}_{}", &sha256_hex(id.as_bytes())[..16])
}

fn allowed(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_' || c == '-'
}

fn fits(name: &str, max: usize) -> bool {
    !name.is_empty() && name.len() <= max && name.chars().all(allowed)
}

/// A name, or an id, in the form that a provider takes; `digits` of its digest tell changed ones apart.
pub fn wire_form(name: &str, max: usize, digits: usize) -> String {
    if fits(name, max) {
        return name.to_owned();
    }
    let digest = sha256_hex(name.as_bytes());
    let clean = name.chars().map(|c| if allowed(c) { c } else { '_' });
    let kept: String = clean.take(max.saturating_sub(digits + 1)).collect();
    format!("{kept}_{}", &digest[..digits])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changed_names_stay_apart_and_come_back() {
        let tools: Vec<ToolDefinition> = [
            "kb.lookup",
            "kb_lookup",
            &"a.".repeat(60),
            &("a.".repeat(60) + "b"),
            "Create Share",
            "",
            "ok-1",
        ]
        .iter()
        .map(|n| ToolDefinition {
            name: (*n).to_string(),
            ..Default::default()
        })
        .collect();
        let names = ToolNames::new(&tools, 64);
        let mut seen = std::collections::HashSet::new();
        for tool in &tools {
            let wire = names.wire(&tool.name);
            assert!(fits(&wire, 64), "{wire}");
            assert_eq!(names.original(&wire), tool.name);
            assert!(seen.insert(wire));
        }
        assert_eq!(names.wire("kb_lookup"), "kb_lookup");
        assert_eq!(names.wire("kb.lookup"), ToolNames::new(&[], 64).wire("kb.lookup"));
        assert_eq!(names.original("nobody"), "nobody");
    }
}
