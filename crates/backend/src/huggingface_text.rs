//! The text that a model writes, sorted: its thoughts, its calls, and the rest.

use std::sync::Arc;

use serde_json::Value;

use crate::conversation::Delta;
use crate::huggingface_wire::Call;
use crate::tool_names::ToolNames;

const THINK: &str = "<think>";
const THINK_END: &str = "</think>";
const TAG: &str = "<tool_call>";
const TAG_END: &str = "</tool_call>";
const LIST: &str = "[TOOL_CALLS]";
const PYTHON: &str = "<|python_tag|>";
/// Where calls begin, in the words of the models that write them.
const MARKS: [&str; 3] = [TAG, LIST, PYTHON];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Nothing but blanks has come.
    Start,
    /// Within the thoughts; whether something of them was given out.
    Thoughts(bool),
    /// Thoughts are over, and nothing but blanks has come since.
    Gap,
    /// Text is given out.
    Text,
    /// What has come may be calls: it is kept until the end.
    Held,
}

/// Sorts what a model writes, piece by piece, however it is cut.
pub(crate) struct Sorter {
    offered: Arc<ToolNames>,
    state: State,
    /// What is not yet given out.
    pending: String,
    calls: Vec<Call>,
}

impl Sorter {
    /// For an answer that may call these tools.
    pub fn new(offered: Arc<ToolNames>) -> Self {
        Self {
            offered,
            state: State::Start,
            pending: String::new(),
            calls: Vec::new(),
        }
    }

    /// The model was set off within its thoughts.
    pub fn thinks(&mut self) {
        if self.state == State::Start {
            self.state = State::Thoughts(false);
        }
    }

    /// A call that somebody else has found.
    pub fn call(&mut self, call: Call) {
        self.calls.push(call);
    }

    /// Takes more of the text.
    pub fn push(&mut self, text: &str, out: &mut Vec<Delta>) {
        self.pending.push_str(text);
        while self.step(out) {}
    }

    /// Goes on as far as it is certain; whether there may be more to do.
    fn step(&mut self, out: &mut Vec<Delta>) -> bool {
        match self.state {
            State::Start | State::Gap => {
                let start = self.pending.trim_start();
                let was_start = self.state == State::Start;
                if start.is_empty() || (was_start && start.len() < THINK.len() && THINK.starts_with(start)) {
                    return false;
                }
                if let Some(rest) = start.strip_prefix(THINK).filter(|_| was_start) {
                    self.pending = rest.to_owned();
                    self.state = State::Thoughts(false);
                } else {
                    // A bare object may be a call, to models that mark them by nothing.
                    let may_be_call = !self.offered.is_empty() && start.starts_with(['{', '[']);
                    if !was_start {
                        self.pending = start.to_owned();
                    }
                    self.state = if may_be_call { State::Held } else { State::Text };
                }
                true
            }
            State::Thoughts(begun) => {
                let (end, is_over) = match self.pending.find(THINK_END) {
                    Some(at) => (at, true),
                    None => {
                        let end = self.pending.len() - cut_mark(&self.pending, &[THINK_END]);
                        // Blanks at the end may turn out to be the last ones.
                        (self.pending[..end].trim_end().len(), false)
                    }
                };
                let mut said = &self.pending[..end];
                if !begun {
                    said = said.trim_start();
                }
                if is_over {
                    said = said.trim_end();
                }
                let says = !said.is_empty();
                if says {
                    out.push(Delta::Reasoning(said.to_owned()));
                }
                if is_over {
                    self.pending.drain(..end + THINK_END.len());
                    self.state = State::Gap;
                } else {
                    self.pending.drain(..end);
                    self.state = State::Thoughts(begun || says);
                }
                is_over
            }
            State::Text => {
                let mark = if self.offered.is_empty() {
                    None
                } else {
                    MARKS.iter().filter_map(|mark| self.pending.find(mark)).min()
                };
                let end = match mark {
                    Some(at) => at,
                    None if self.offered.is_empty() => self.pending.len(),
                    None => self.pending.len() - cut_mark(&self.pending, &MARKS),
                };
                self.give(end, out);
                if mark.is_some() {
                    self.state = State::Held;
                }
                false
            }
            State::Held => false,
        }
    }

    fn give(&mut self, end: usize, out: &mut Vec<Delta>) {
        let text: String = self.pending.drain(..end).collect();
        if !text.is_empty() {
            out.push(Delta::Text(text));
        }
    }

    /// The answer is over: gives what is left, and the calls. Whether there are any.
    pub fn finish(&mut self, out: &mut Vec<Delta>) -> bool {
        match self.state {
            State::Held => match printed(&self.pending, &self.offered) {
                Some((text, calls)) => {
                    if !text.is_empty() {
                        out.push(Delta::Text(text));
                    }
                    self.calls.extend(calls);
                }
                // No call, or not certainly one.
                None => self.give(self.pending.len(), out),
            },
            State::Thoughts(_) => {
                if !self.pending.trim().is_empty() {
                    out.push(Delta::Reasoning(std::mem::take(&mut self.pending)));
                }
            }
            State::Gap => {}
            State::Start | State::Text => self.give(self.pending.len(), out),
        }
        for (index, call) in self.calls.iter().enumerate() {
            out.push(Delta::Call {
                index: Some(index as u64),
                id: call.id.clone(),
                name: Some(call.name.clone()),
                arguments: call.arguments.clone(),
            });
        }
        !self.calls.is_empty()
    }
}

/// How many bytes at the end of a text may be the beginning of one of these marks.
fn cut_mark(text: &str, marks: &[&str]) -> usize {
    let of = |mark: &&str| (1..mark.len()).rev().find(|n| text.ends_with(&mark[..*n])).unwrap_or(0);
    marks.iter().map(of).max().unwrap_or(0)
}

/// The calls of a text, and what stands between them; none unless there is a call and all of them can be read.
fn printed(text: &str, offered: &ToolNames) -> Option<(String, Vec<Call>)> {
    let start = text.trim_start();
    if let Some(list) = start.strip_prefix(LIST) {
        return Some((String::new(), read_all(list)?));
    }
    if let Some(list) = start.strip_prefix(PYTHON) {
        return Some((String::new(), read_all(list)?));
    }
    if !start.starts_with(TAG) {
        let calls = read_all(start)?;
        // Nothing says that these are calls but that there are such tools.
        let known = calls.iter().all(|call| offered.is_offered(&call.name));
        return known.then_some((String::new(), calls));
    }
    let (mut between, mut calls, mut rest) = (String::new(), Vec::new(), text);
    while let Some((before, inside)) = rest.split_once(TAG) {
        between.push_str(before);
        let (inside, after) = match inside.split_once(TAG_END) {
            Some(parts) => parts,
            // The end of the answer ends the last one, too.
            None => (inside, ""),
        };
        calls.extend(read_all(inside)?);
        rest = after;
    }
    between.push_str(rest);
    Some((between.trim().to_owned(), calls))
}

/// Calls, one after the other or in a list, with blanks or `;` between them.
fn read_all(text: &str) -> Option<Vec<Call>> {
    let (mut calls, mut rest) = (Vec::new(), text.trim());
    while !rest.is_empty() {
        let mut values = serde_json::Deserializer::from_str(rest).into_iter::<Value>();
        let value = values.next()?.ok()?;
        match &value {
            Value::Array(list) => calls.extend(list.iter().map(read_one).collect::<Option<Vec<_>>>()?),
            one => calls.push(read_one(one)?),
        }
        rest = rest[values.byte_offset()..].trim_start_matches(|c: char| c.is_whitespace() || c == ';');
    }
    (!calls.is_empty()).then_some(calls)
}

/// One call; none when the object holds what no call holds.
fn read_one(value: &Value) -> Option<Call> {
    let known = ["name", "arguments", "parameters", "function", "id", "type"];
    let is_call = value.as_object()?.keys().all(|key| known.contains(&key.as_str()));
    Call::read(value).filter(|_| is_call)
}

#[cfg(test)]
mod tests {
    use super::*;
    use decanus_chat::ToolDefinition;

    fn sort(pieces: &[&str], tools: &[&str], thinks: bool) -> (String, String, Vec<(String, String)>) {
        let tools: Vec<ToolDefinition> = tools
            .iter()
            .map(|name| ToolDefinition {
                name: (*name).to_owned(),
                ..Default::default()
            })
            .collect();
        let mut sorter = Sorter::new(Arc::new(ToolNames::new(&tools, 64)));
        if thinks {
            sorter.thinks();
        }
        let mut out = Vec::new();
        pieces.iter().for_each(|piece| sorter.push(piece, &mut out));
        sorter.finish(&mut out);
        let (mut text, mut thoughts, mut calls) = (String::new(), String::new(), Vec::new());
        for delta in out {
            match delta {
                Delta::Text(t) => text.push_str(&t),
                Delta::Reasoning(t) => thoughts.push_str(&t),
                Delta::Call { name, arguments, .. } => calls.push((name.unwrap(), arguments)),
                other => panic!("{other:?}"),
            }
        }
        (text, thoughts, calls)
    }

    /// Whole, by characters, and cut at every place.
    fn everywhere(text: &str, tools: &[&str], thinks: bool) -> (String, String, Vec<(String, String)>) {
        let whole = sort(&[text], tools, thinks);
        let characters: Vec<String> = text.chars().map(String::from).collect();
        let characters: Vec<&str> = characters.iter().map(String::as_str).collect();
        assert_eq!(sort(&characters, tools, thinks), whole, "{text}");
        for (at, _) in text.char_indices() {
            assert_eq!(
                sort(&[&text[..at], &text[at..]], tools, thinks),
                whole,
                "{text} cut at {at}"
            );
        }
        whole
    }

    #[test]
    fn thoughts_are_kept_apart() {
        let text = |text: &str, thinks| {
            let (text, thoughts, calls) = everywhere(text, &[], thinks);
            assert!(calls.is_empty());
            (text, thoughts)
        };
        let is = |text: &str, thoughts: &str| (text.to_owned(), thoughts.to_owned());
        assert_eq!(text("<think>\nhm ñ\n</think>\n\nYes.", false), is("Yes.", "hm ñ"));
        assert_eq!(text("\n<think></think>Yes.", false), is("Yes.", ""));
        assert_eq!(text("so</think> Yes <think>", true), is("Yes <think>", "so"));
        assert_eq!(text("<think>never ends </thin", false).0, "");
        assert_eq!(text(" Say <think> twice", false), is(" Say <think> twice", ""));
        assert_eq!(text("<thing", false), is("<thing", ""));
    }

    #[test]
    fn printed_calls_are_calls() {
        let call = |x: u64| ("f".to_owned(), format!("{{\"x\":{x}}}"));
        let tools = ["f", "g"];
        for (text, between, calls) in [
            (
                "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": 1}}\n</tool_call>",
                "",
                vec![call(1)],
            ),
            (
                "I look.\n<tool_call>{\"name\":\"f\",\"arguments\":{\"x\":1}}</tool_call>\n<tool_call>{\"name\":\"f\",\"parameters\":{\"x\":2}}",
                "I look.\n",
                vec![call(1), call(2)],
            ),
            (
                "[TOOL_CALLS] [{\"name\":\"f\",\"arguments\":{\"x\":1},\"id\":\"a\"}]",
                "",
                vec![call(1)],
            ),
            (
                "<|python_tag|>{\"name\":\"f\",\"parameters\":{\"x\":1}}; {\"name\":\"f\",\"parameters\":{\"x\":2}}",
                "",
                vec![call(1), call(2)],
            ),
            ("{\"name\": \"f\", \"parameters\": {\"x\": 1}}", "", vec![call(1)]),
            (
                "<think>so</think>\n{\"type\":\"function\",\"function\":\"f\",\"parameters\":{\"x\":1}}",
                "",
                vec![call(1)],
            ),
        ] {
            let (said, _, found) = everywhere(text, &tools, false);
            assert_eq!((said.as_str(), found), (between, calls), "{text}");
        }
        // A tool that is not on offer, but certainly a call: the loop tells the model so.
        assert_eq!(
            everywhere("<tool_call>{\"name\":\"zap\"}</tool_call>", &tools, false).2[0].0,
            "zap"
        );
    }

    #[test]
    fn what_only_resembles_a_call_is_text() {
        for text in [
            "{\"name\": \"Ada\", \"age\": 36}",
            "{\"name\": \"zap\", \"arguments\": {}}",
            "[1, 2]",
            "{\"a\": ",
            "<tool_call>not JSON</tool_call>",
            "a < b <tool_cal",
            "[TOOL_CALLS]",
        ] {
            assert_eq!(
                everywhere(text, &["f"], false),
                (text.to_owned(), String::new(), vec![]),
                "{text}"
            );
        }
        let text = "<tool_call>{\"name\":\"f\"}</tool_call>";
        assert_eq!(everywhere(text, &[], false).0, text, "no tools, no calls");
    }
}
