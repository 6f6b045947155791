//! What a chat asks for, found out without doing any of it.
//!
//! The files that a chat imports or shows are read; tasks, jobs and commands stay as [`Action`]s for somebody else to
//! carry out. The order is that of the format: imports, clearing, files (each for every file by itself, so that a `clear`
//! in an imported chat acts on that chat alone), then, over the whole list, settings, tools, calls and actions.

mod compile;
pub mod element;
mod lookup;
mod options;
mod planner;
mod types;
mod words;

use std::collections::{HashMap, VecDeque};
use std::path::Path;
use std::sync::Arc;

use crate::call::{FunctionCall, FunctionCallOutput};
use crate::message::{Message, Role};
use crate::parse::Parsed;

pub use compile::MAX_DEPTH;
pub use lookup::{Lookup, MAX_CHAT, MAX_FILE, Place, Source, real_of};
pub use options::{ChatOptions, Setting};
pub use types::{Action, ActionKind, Config, Finding, Grant, Insert, Item, Plan, Severity, ToolUse};
pub use words::{Pair, Word, words};

use compile::Compiler;
use planner::Planner;

/// The calls among some messages that have no output, in order.
pub fn pending(messages: &[Message]) -> Vec<FunctionCall> {
    let mut calls: Vec<Option<FunctionCall>> = Vec::new();
    let mut open: HashMap<String, VecDeque<usize>> = HashMap::new();
    for message in messages {
        match message.role {
            Role::FunctionCall => {
                if let Ok(call) = FunctionCall::from_message(message) {
                    open.entry(call.id.clone()).or_default().push_back(calls.len());
                    calls.push(Some(call));
                }
            }
            Role::FunctionCallOutput => {
                if let Ok(output) = FunctionCallOutput::from_message(message)
                    && let Some(at) = open.get_mut(&output.id).and_then(VecDeque::pop_front)
                {
                    calls[at] = None;
                }
            }
            _ => {}
        }
    }
    calls.into_iter().flatten().collect()
}

/// Plans a chat that was read from a file (or, with no path, from nowhere: its paths are then relative to the working
/// directory).
pub fn plan(parsed: Parsed, path: Option<&Path>, lookup: &Lookup) -> Plan {
    let source = match path {
        Some(path) => lookup.source(path),
        None => Arc::new(Source {
            path: None,
            dir: lookup.working_dir.clone(),
            shown: "(text)".into(),
            parent: None,
        }),
    };
    let mut compiler = Compiler::new(lookup);
    for problem in parsed.problems {
        let place = Place {
            source: source.clone(),
            line: problem.line,
        };
        let severity = if problem.error {
            Severity::Damage
        } else {
            Severity::Warning
        };
        compiler.report(&place, severity, problem.message);
    }
    let imports = |m: &Message| matches!(m.role, Role::Import | Role::Continue | Role::Last);
    let mut messages = parsed.messages;
    let has_imports = messages.iter().any(imports);
    let mut compile = || compiler.compile(std::mem::take(&mut messages), &source);
    let placed = match has_imports {
        true => on_a_large_stack(compile),
        false => compile(),
    };
    let mut planner = Planner::new(lookup, compiler, source.shown.clone());
    for placed in placed {
        planner.take(placed);
    }
    planner.finish()
}

/// Puts the findings of one file into the order of its lines; those of others follow as they are.
pub fn sort(findings: &mut [Finding], own: &str) {
    findings.sort_by_key(|f| if f.shown == own { (false, f.line) } else { (true, 0) });
}

/// Imports are followed by recursion, up to [`MAX_DEPTH`] deep, which a thread's usual stack may not hold.
fn on_a_large_stack<T: Send>(mut work: impl FnMut() -> T + Send) -> T {
    const STACK: usize = 64 << 20;
    let done = std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().stack_size(STACK);
        let thread = thread.spawn_scoped(scope, &mut work).ok()?;
        Some(thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    });
    // Where no thread can be had, the stack that is there has to do.
    done.unwrap_or_else(work)
}

#[cfg(test)]
mod tests;
