//! Tool calls by models that were never taught any.
//!
//! A small model can't be asked for a call: what it writes is seldom one, and seldom the right one. It can be asked
//! what it finds likely. So a call is found in two steps. First every tool's name, and "no tool", is scored as the
//! continuation of a prompt made of the tools' examples; what the model thinks of the names when asked nothing is
//! subtracted. Then the arguments are put together from the values that the schema allows and the request suggests
//! ([`arguments`]).

pub mod analogy;
pub mod arguments;
pub mod evidence;
pub mod feasible;
pub mod lexicon;
pub mod names;
pub mod parameter;
pub mod prompt;
pub mod rank;
pub mod words;
pub mod write;

use decanus_backend::BackendError;
use decanus_base::digest::ValueHasher;
use decanus_chat::ToolDefinition;
use serde_json::{Map, Value, json};

use crate::engine::session::{Session, Slot};
use crate::template::ChatTemplate;
use arguments::Search;
use lexicon::Lexicon;
use prompt::{NEUTRAL, NONE};

/// Weight of what the words of the request say, against what the model says.
const WORDS: f64 = 0.7;
/// "No tool" is this much likelier than any other choice before anything is known, in nats.
const NO_TOOL: f64 = 0.5;
/// When some tool must be called, one that can't be with what the request says is this much less likely. Otherwise it is
/// not called at all: a value that nobody named would be made up.
const INFEASIBLE: f64 = 6.0;

/// What may be chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Allowed {
    /// A tool or none.
    Any,
    /// One of the tools.
    SomeTool,
    /// This tool.
    Only(usize),
}

/// A tool with its arguments, or none; and how it came to that.
#[derive(Clone, Debug, PartialEq)]
pub struct Choice {
    /// Index of the tool and its arguments.
    pub call: Option<(usize, Map<String, Value>)>,
    /// Scores, calibrations and candidates.
    pub explain: Value,
}

/// Chooses.
///
/// # Errors
/// Those of computing.
pub fn choose(
    session: &mut Session<'_>,
    template: &ChatTemplate,
    tools: &[ToolDefinition],
    request: &str,
    allowed: Allowed,
) -> Result<Choice, BackendError> {
    let (tool, mut explain) = match allowed {
        Allowed::Only(index) => (Some(index), Map::new()),
        _ => pick_tool(session, template, tools, request, allowed)?,
    };
    let Some((index, tool)) = tool.and_then(|i| Some((i, tools.get(i)?))) else {
        return Ok(Choice {
            call: None,
            explain: Value::Object(explain),
        });
    };
    let mut messages = prompt::arguments(tool);
    messages.push(json!({"role": "user", "content": session.protect(request)}));
    let start = format!("{{\"name\": {}, \"arguments\": {{", Value::String(tool.name.clone()));
    let prompt = template.render_without_thoughts(&messages, &[], &Map::new())? + &start;
    let mut notes = Vec::new();
    let arguments = Search {
        session,
        tool,
        prompt: &prompt,
        request,
    }
    .run(&mut notes)?;
    explain.insert("arguments".into(), Value::Array(notes));
    Ok(Choice {
        call: Some((index, arguments)),
        explain: Value::Object(explain),
    })
}

fn pick_tool(
    session: &mut Session<'_>,
    template: &ChatTemplate,
    tools: &[ToolDefinition],
    request: &str,
    allowed: Allowed,
) -> Result<(Option<usize>, Map<String, Value>), BackendError> {
    let names: Vec<&str> = tools.iter().map(|t| t.name.as_str()).chain([NONE]).collect();
    let continuations: Vec<String> = names.iter().map(|n| format!("{n}\", \"arguments\": {{")).collect();
    let shown = prompt::choice(tools);
    let render = |request: &str| -> Result<String, BackendError> {
        let mut messages = shown.clone();
        messages.push(json!({"role": "user", "content": request}));
        Ok(template.render_without_thoughts(&messages, &[], &Map::new())? + "{\"name\": \"")
    };
    let mut hasher = ValueHasher::new();
    hasher.text(&render("")?);
    let key = hasher.hex();
    let neutral = match session.calibrations.get(&key) {
        Some(known) => known.clone(),
        None => {
            let mut mean = vec![0.0; names.len()];
            for nothing in NEUTRAL {
                let scores = rank::rank(session, Slot::Choice, &render(nothing)?, &continuations)?;
                #[allow(clippy::cast_precision_loss)]
                mean.iter_mut()
                    .zip(scores)
                    .for_each(|(m, s)| *m += s / NEUTRAL.len() as f64);
            }
            session.calibrations.insert(key, mean.clone());
            mean
        }
    };
    let scores = rank::rank(
        session,
        Slot::Choice,
        &render(&session.protect(request))?,
        &continuations,
    )?;
    let words = Lexicon::new(tools).fit(request);
    let mut notes = Vec::new();
    let mut best: Option<(usize, f64)> = None;
    for (index, name) in names.iter().enumerate() {
        let is_none = index == tools.len();
        let mut total = scores[index] - neutral[index] + WORDS * words[index];
        let feasible = tools.get(index).is_none_or(|t| feasible::is_feasible(t, request));
        if is_none {
            total += NO_TOOL;
        } else if !feasible {
            total -= INFEASIBLE;
        }
        notes.push(json!({
            "tool": if is_none { Value::Null } else { json!(name) },
            "likelihood": round(scores[index]),
            "neutral": round(neutral[index]),
            "words": round(words[index]),
            "feasible": feasible,
            "total": round(total),
        }));
        let eligible = if is_none {
            allowed != Allowed::SomeTool
        } else {
            feasible || allowed == Allowed::SomeTool
        };
        if eligible && best.is_none_or(|(_, t)| total > t) {
            best = Some((index, total));
        }
    }
    let chosen = best.map(|(i, _)| i).filter(|i| *i < tools.len());
    let mut explain = Map::new();
    explain.insert("chosen".into(), chosen.map_or(Value::Null, |i| json!(names[i])));
    explain.insert("tools".into(), Value::Array(notes));
    Ok((chosen, explain))
}

fn round(x: f64) -> Value {
    json!((x * 100.0).round() / 100.0)
}
