//! What a chat means, found out without running anything.

use std::collections::HashMap;
use std::path::Path;

use decanus_chat::plan::{Finding, Place, Severity, pending, plan, sort};
use decanus_chat::{ChatFile, FunctionCall, Message, Role};
use decanus_tool::{Limits, ToolRegistry};
use serde_json::{Map, Value};

use crate::Decanus;
use crate::ask::permissions;
use crate::error::Error;
use crate::options::Options;

/// A chat, compiled.
#[derive(Debug, Clone, Default)]
pub struct Checked {
    /// What the model would see. A task or command that was not run yet stands there as it is written.
    pub messages: Vec<Message>,
    /// The options in force at the end of the chat.
    pub options: Map<String, Value>,
    /// The names of the tools on offer.
    pub tools: Vec<String>,
    /// What is wrong.
    pub findings: Vec<Finding>,
}

impl Checked {
    /// What keeps the chat, or a message of it, from being used.
    pub fn errors(&self) -> impl Iterator<Item = &Finding> {
        self.findings.iter().filter(|f| f.severity != Severity::Warning)
    }

    /// What may not be meant.
    pub fn warnings(&self) -> impl Iterator<Item = &Finding> {
        self.findings.iter().filter(|f| f.severity == Severity::Warning)
    }
}

/// A picture or document by its kind and size, not its bytes.
fn without_data(mut message: Message) -> Message {
    if matches!(message.role, Role::Image | Role::Pdf)
        && let Some((kind, data)) = message.content.split_once(";base64,")
    {
        message.content = format!("{kind};base64,… ({} characters)", data.len());
    }
    message
}

impl Decanus {
    /// Compiles a chat: reads it and the files it names, looks up its tools and endpoint. No task, command, server or
    /// model is run or asked; stored results of tasks are taken.
    ///
    /// # Errors
    /// When the file can't be read at all. What is wrong in it is among the findings.
    pub async fn check(&self, path: &Path, allow_cmd: bool) -> Result<Checked, Error> {
        let loaded = ChatFile::read(path)?;
        let lookup = self.lookup(Some(path), allow_cmd);
        let plan = plan(loaded.parsed, Some(path), &lookup);
        let mut findings = plan.findings.clone();
        let mut report = |place: &Place, severity, message: String| {
            findings.push(Finding {
                file: place.source.path.clone(),
                shown: place.source.shown.clone(),
                line: place.line,
                severity,
                message,
            });
        };
        let mut options = Options::default();
        let taken = options.take(&plan.options);
        for (place, error) in taken.faults {
            report(&place, Severity::Error, error.message);
        }
        for (place, warning) in taken.warnings {
            report(&place, Severity::Warning, warning);
        }
        if let Some(setting) = plan.options.get("endpoint")
            && let Err(error) = self.endpoints.load_chain(&setting.text)
        {
            report(&setting.place, Severity::Warning, error.to_string());
        }
        let mut offers = Vec::new();
        for (place, found) in self.declared_tools(&plan).await {
            match found {
                Ok(found) => offers.extend(found),
                Err((severity, error)) => report(&place, severity, error.message),
            }
        }
        self.offer_check(&mut offers).await?;
        let registry = ToolRegistry::new(offers);
        let run = self.run().build();
        let carried = self.actions(&permissions(&plan)).look_up(plan.items.clone(), &run);
        for (place, error) in &carried.failed {
            report(place, Severity::Error, error.message.clone());
        }
        let whole = Place {
            source: lookup.source(path),
            line: 0,
        };
        let calls = carried.messages.iter().filter(|m| m.role == Role::FunctionCall);
        let lines: HashMap<String, Option<usize>> = calls
            .filter_map(|m| Some((FunctionCall::from_message(m).ok()?.id, m.line)))
            .collect();
        for call in pending(&carried.messages) {
            let line = lines.get(&call.id).copied().flatten();
            let place = Place {
                line: line.unwrap_or(0),
                ..whole.clone()
            };
            let text = format!(
                "the call `{}` of {} has no output; `ask -c` gives it one",
                call.id, call.name
            );
            report(&place, Severity::Warning, text);
        }
        for warning in registry.warnings() {
            report(&whole, Severity::Warning, warning.clone());
        }
        let mut limits = Limits::from_settings(&self.settings.limits);
        let limits_set = options.apply_limits(&mut limits).map_err(|e| (None, e));
        let messages = match limits_set.and_then(|()| self.window(&plan, options.prompt_strategies.as_deref())) {
            Ok(window) => {
                let overhead = decanus_agent::overhead(&registry.definitions());
                match window.view(&carried.messages, limits.context_tokens, overhead) {
                    Ok(view) => view.into_owned(),
                    Err(error) => {
                        let setting = plan.options.get("limits.context_tokens");
                        let place = setting.map_or(&whole, |s| &s.place);
                        report(place, Severity::Error, error.to_string());
                        carried.messages
                    }
                }
            }
            Err((place, error)) => {
                report(place.as_ref().unwrap_or(&whole), Severity::Error, error.message);
                carried.messages
            }
        };
        // Opaque parts are for their provider, not for people.
        let shown = messages.into_iter().filter(|m| m.role != Role::Provider);
        let messages = shown.map(without_data).collect();
        sort(&mut findings, &lookup.shown(path));
        Ok(Checked {
            messages,
            options: plan.options.to_map(),
            tools: registry.names().map(str::to_owned).collect(),
            findings,
        })
    }
}
