//! Tool calls by models that know how: their template shows them the tools, and they write calls in a form of their
//! own. Once a call begins, a grammar made of the tools' schemas sees to it that it is one.

pub mod grammar;

use decanus_backend::BackendError;
use decanus_chat::ToolDefinition;
use serde_json::{Map, Value, json};

use grammar::{Grammar, Strings, literal};

/// How a model writes calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// `<tool_call>{"name": …, "arguments": …}</tool_call>`, any number of them (Hermes, Qwen).
    Tagged,
    /// `[TOOL_CALLS][{"name": …, "arguments": …}, …]` (Mistral).
    List,
    /// The whole answer is `{"name": …, "parameters": …}` (Llama 3.1), perhaps after `<|python_tag|>`.
    Bare,
}

impl Form {
    /// The form that a template teaches its model.
    pub fn of(template: &str) -> Self {
        if template.contains("[TOOL_CALLS]") {
            Self::List
        } else if template.contains("<tool_call>") {
            Self::Tagged
        } else if template.contains("<|python_tag|>") || template.contains("\"parameters\": dictionary") {
            Self::Bare
        } else {
            Self::Tagged
        }
    }

    /// What a call begins with. For [`Form::Bare`] that is the brace itself.
    pub fn opening(self) -> &'static str {
        match self {
            Self::Tagged => "<tool_call>",
            Self::List => "[TOOL_CALLS]",
            Self::Bare => "{",
        }
    }

    fn closing(self) -> Option<&'static str> {
        (self == Self::Tagged).then_some("</tool_call>")
    }

    fn arguments(self) -> &'static str {
        if self == Self::Bare { "parameters" } else { "arguments" }
    }

    /// Control tokens that have to be seen.
    pub fn control_tokens(self) -> Vec<String> {
        match self {
            Self::Tagged => vec!["<tool_call>".into(), "</tool_call>".into()],
            Self::List => vec!["[TOOL_CALLS]".into()],
            Self::Bare => vec!["<|python_tag|>".into()],
        }
    }

    /// The grammar of a call of one of `tools`, from behind what was already written of it (after the opening, but for
    /// [`Form::Bare`]). None when what was written can't become such a call.
    pub fn grammar(self, tools: &[ToolDefinition], written: &str) -> Option<String> {
        let start = if self == Self::Bare { "{\"name\": " } else { "" };
        let rest = match self {
            Self::Bare => start.strip_prefix(written)?,
            _ => written.trim(),
        };
        if self != Self::Bare && !rest.is_empty() {
            return None;
        }
        let schemas: Vec<Value> = tools.iter().map(ToolDefinition::wire_parameters).collect();
        let mut grammar = Grammar::new(&Value::Null, Strings::Free);
        let mut calls = Vec::new();
        for (tool, schema) in tools.iter().zip(&schemas) {
            let arguments = grammar.within(schema);
            let head = format!("{}, \"{}\": ", Value::String(tool.name.clone()), self.arguments());
            calls.push(grammar.rule(&format!("{} {arguments} \"}}\"", literal(&head))));
        }
        let blank = grammar.rule("[ \\n]{0,2}");
        let any = calls.join(" | ");
        let call = match self {
            Self::Bare => grammar.rule(&format!("{} ({any})", literal(rest))),
            _ => grammar.rule(&format!("{} ({any})", literal("{\"name\": "))),
        };
        Some(grammar.finish(&match self {
            Self::Tagged => format!("{blank} {call} {blank} {}", literal("</tool_call>")),
            Self::List => format!("{blank} \"[\" {call} (\", \" {call})* \"]\""),
            Self::Bare => call,
        }))
    }
}

/// A call that was written.
#[derive(Clone, Debug, PartialEq)]
pub struct Written {
    /// The tool.
    pub name: String,
    /// The arguments' JSON text.
    pub arguments: String,
}

/// Tells calls from text while both come in pieces.
#[derive(Debug)]
pub struct Scanner {
    form: Form,
    buffer: String,
    inside: bool,
    anything: bool,
    /// The calls so far.
    pub calls: Vec<Written>,
}

/// What a piece led to.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Step {
    /// Text that belongs to no call.
    pub text: String,
    /// A call has begun with this piece.
    pub opened: bool,
    /// A call has ended with this piece.
    pub closed: bool,
}

impl Scanner {
    /// At the beginning of an answer; `inside` when the prompt already holds the opening of a call.
    pub fn new(form: Form, inside: bool) -> Self {
        let buffer = if inside && form == Form::Bare {
            "{".into()
        } else {
            String::new()
        };
        Self {
            form,
            buffer,
            inside,
            anything: false,
            calls: Vec::new(),
        }
    }

    /// Takes a piece.
    pub fn push(&mut self, piece: &str) -> Step {
        let mut step = Step::default();
        self.buffer.push_str(piece);
        loop {
            if self.inside {
                let Some(closing) = self.form.closing() else { break };
                let Some(at) = self.buffer.find(closing) else { break };
                let body: String = self.buffer.drain(..at + closing.len()).collect();
                self.take(body.trim_end_matches(closing));
                self.inside = false;
                step.closed = true;
                continue;
            }
            if self.form == Form::Bare {
                self.bare(&mut step);
                break;
            }
            let opening = self.form.opening();
            if let Some(at) = self.buffer.find(opening) {
                let before: String = self.buffer.drain(..at + opening.len()).collect();
                step.text.push_str(&before[..at]);
                self.inside = true;
                step.opened = true;
                continue;
            }
            let held = (1..opening.len())
                .rev()
                .find(|n| self.buffer.ends_with(&opening[..*n]))
                .unwrap_or(0);
            step.text.extend(self.buffer.drain(..self.buffer.len() - held));
            break;
        }
        step
    }

    /// An answer that begins with a brace is a call; any other is text to its end.
    fn bare(&mut self, step: &mut Step) {
        if !self.anything {
            let start = self
                .buffer
                .trim_start()
                .trim_start_matches("<|python_tag|>")
                .trim_start();
            if start.starts_with('{') {
                self.buffer = start.to_owned();
                self.inside = true;
                step.opened = true;
                return;
            }
            if start.is_empty() || "<|python_tag|>".starts_with(start) {
                return;
            }
            self.anything = true;
        }
        step.text.push_str(&std::mem::take(&mut self.buffer));
    }

    /// The answer is over. Gives text that was held back.
    pub fn finish(&mut self) -> String {
        let rest = std::mem::take(&mut self.buffer);
        if !self.inside {
            return rest;
        }
        self.inside = false;
        let before = self.calls.len();
        self.take(&rest);
        // What began like a call and is none was text after all.
        if self.calls.len() == before {
            rest
        } else {
            String::new()
        }
    }

    /// What is written so far of the call that has begun.
    pub fn written(&self) -> &str {
        &self.buffer
    }

    fn take(&mut self, body: &str) {
        let value: Value = match serde_json::from_str(body.trim()) {
            Ok(value) => value,
            Err(_) => return,
        };
        let calls = match value {
            Value::Array(calls) => calls,
            one => vec![one],
        };
        for call in calls {
            let call = call.get("function").filter(|f| f.is_object()).cloned().unwrap_or(call);
            let arguments = call.get("arguments").or_else(|| call.get("parameters"));
            let arguments = match arguments {
                Some(Value::String(text)) => text.clone(),
                Some(value) => value.to_string(),
                None => "{}".into(),
            };
            if let Some(name) = call.get("name").and_then(Value::as_str) {
                self.calls.push(Written {
                    name: name.to_owned(),
                    arguments,
                });
            }
        }
    }
}

/// The tools in the form that templates expect.
pub fn tools_for_template(tools: &[ToolDefinition]) -> Vec<Value> {
    let function = |tool: &ToolDefinition| {
        let mut function = Map::new();
        function.insert("name".into(), tool.name.clone().into());
        function.insert("description".into(), tool.description.clone().into());
        function.insert("parameters".into(), tool.wire_parameters());
        json!({"type": "function", "function": function})
    };
    tools.iter().map(function).collect()
}

/// A grammar, compiled for a model.
///
/// # Errors
/// When llama.cpp refuses it.
pub fn compile(
    model: &llama_cpp_2::model::LlamaModel,
    grammar: &str,
) -> Result<llama_cpp_2::sampling::LlamaSampler, BackendError> {
    llama_cpp_2::sampling::LlamaSampler::grammar(model, grammar, "root")
        .map_err(|e| BackendError::Internal(format!("the grammar of the tools can't be used: {e}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scan(form: Form, pieces: &[&str]) -> (String, Vec<Written>) {
        let mut scanner = Scanner::new(form, false);
        let mut text: String = pieces.iter().map(|p| scanner.push(p).text).collect();
        text.push_str(&scanner.finish());
        (text, scanner.calls)
    }

    fn written(name: &str, arguments: &str) -> Written {
        Written {
            name: name.into(),
            arguments: arguments.into(),
        }
    }

    #[test]
    fn tagged_calls_among_text() {
        let pieces = [
            "Let me see. <tool",
            "_call>\n{\"name\": \"f\", \"arg",
            "uments\": {\"x\": 1}}\n</tool_call>",
            "\n<tool_call>{\"name\": \"g\"}</tool_call>",
        ];
        let (text, calls) = scan(Form::Tagged, &pieces);
        assert_eq!(text, "Let me see. \n");
        assert_eq!(calls, [written("f", "{\"x\":1}"), written("g", "{}")]);
    }

    #[test]
    fn a_list_of_calls() {
        let (text, calls) = scan(
            Form::List,
            &[
                "[TOOL_CALLS]",
                " [{\"name\": \"f\", \"arguments\": {}}, {\"name\": \"g\", \"arguments\": {\"a\": \"b\"}}]",
            ],
        );
        assert_eq!(
            (text.as_str(), calls),
            ("", vec![written("f", "{}"), written("g", "{\"a\":\"b\"}")])
        );
    }

    #[test]
    fn a_bare_call_is_the_whole_answer() {
        let (text, calls) = scan(
            Form::Bare,
            &[
                "<|python_tag|>",
                "{\"name\": \"f\", ",
                "\"parameters\": {\"n\": 7340017340017340017}}",
            ],
        );
        assert_eq!(
            (text.as_str(), calls),
            ("", vec![written("f", "{\"n\":7340017340017340017}")])
        );
        let (text, calls) = scan(Form::Bare, &["It is ", "{\"name\"} of course"]);
        assert_eq!((text.as_str(), calls.len()), ("It is {\"name\"} of course", 0));
    }

    #[test]
    fn what_only_looks_like_a_call_is_text() {
        assert_eq!(scan(Form::Tagged, &["a <tool", " b"]).0, "a <tool b");
        assert_eq!(scan(Form::Bare, &["{ not json"]).0, "{ not json");
    }
}
