//! Whether a tool can be called with what a request says.

use decanus_chat::ToolDefinition;
use serde_json::Value;

use super::evidence::{MENTIONED, evidence};
use super::parameter::{Kind, Parameter, parameters};
use super::words::numbers;

/// Whether the request has a number for every number that must be given and that the examples always copy, and a name
/// for every value that must be given and that the examples always name. A tool that compares two months can't be
/// meant where one month is spoken of.
pub fn is_feasible(tool: &ToolDefinition, request: &str) -> bool {
    let mut used = Vec::new();
    for parameter in parameters(tool).iter().filter(|p| p.required) {
        if parameter.is_copied_number() {
            let mut mentions = numbers(request).into_iter();
            match mentions.find(|m| !used.contains(&m.start) && parameter.allows_number(&m.json)) {
                Some(mention) => used.push(mention.start),
                None => return false,
            }
        } else if let Some(values) = always_named(tool, parameter) {
            match named(tool, parameter, values, request, &used) {
                Some(word) => used.push(word),
                None => return false,
            }
        }
    }
    true
}

/// The values of a parameter, if there are only so many and every example calls its value by name.
fn always_named<'p>(tool: &ToolDefinition, parameter: &'p Parameter) -> Option<&'p [Value]> {
    let Kind::Finite(values) = &parameter.kind else {
        return None;
    };
    let mut shown = tool
        .examples
        .iter()
        .filter_map(|e| Some((e.request.as_str(), e.arguments.get(&parameter.name)?)));
    let any = shown.clone().next().is_some();
    let all = shown.all(|(request, value)| {
        let found = evidence(tool, &parameter.name, std::slice::from_ref(value), request, &[]);
        found.first().is_some_and(|e| e.score >= MENTIONED && e.word.is_some())
    });
    (any && all).then_some(values)
}

/// The first word of the request that calls a value of the parameter by name.
fn named(
    tool: &ToolDefinition,
    parameter: &Parameter,
    values: &[Value],
    request: &str,
    used: &[usize],
) -> Option<usize> {
    let found = evidence(tool, &parameter.name, values, request, used);
    found
        .iter()
        .filter(|e| e.score >= MENTIONED)
        .filter_map(|e| e.word)
        .min()
}
