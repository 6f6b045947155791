//! Whether a call may run: by the user's word, by rule, or not at all.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use decanus_base::settings::{Approve, ApproveSettings};
use decanus_chat::FunctionCall;

use crate::tool::{ToolError, ToolErrorClass};

/// Which calls of which tools are asked for.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct ApprovalPolicy {
    /// Of tools that are not named.
    pub others: Approve,
    /// By the tool's name.
    pub tools: BTreeMap<String, Approve>,
}

impl ApprovalPolicy {
    /// The same for all tools.
    pub fn all(approve: Approve) -> Self {
        Self {
            others: approve,
            tools: BTreeMap::new(),
        }
    }

    /// As the settings say.
    pub fn of(settings: &ApproveSettings) -> Self {
        Self {
            others: settings.others,
            tools: settings.tools.clone(),
        }
    }

    /// Whether a call has to be asked for. The tool is known by several names (see [`crate::registry::Entry::names`]); of the rules
    /// for these the strictest holds.
    pub fn asks<'a>(&self, names: impl IntoIterator<Item = &'a str>, is_destructive: bool) -> bool {
        let strictness = |approve: &Approve| match approve {
            Approve::Always => 2,
            Approve::Destructive => 1,
            Approve::Never => 0,
        };
        let rules = names.into_iter().filter_map(|name| self.tools.get(name)).copied();
        match rules.max_by_key(strictness).unwrap_or(self.others) {
            Approve::Always => true,
            Approve::Destructive => is_destructive,
            Approve::Never => false,
        }
    }
}

/// Something that only a person can decide.
#[derive(Clone, Debug, PartialEq)]
pub enum Question {
    /// May this call run?
    Call(FunctionCall),
    /// Anything else that is answered by yes or no.
    Other(String),
}

/// What the person said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Yes, this once.
    Yes,
    /// No, with what the model is to be told.
    No(String),
    /// Nobody could be asked: why.
    Nobody(String),
}

/// Asks a person. Questions may come side by side; whoever asks puts them one after the other.
#[async_trait]
pub trait Interaction: Send + Sync {
    /// Waits for an answer.
    async fn ask(&self, question: &Question) -> Answer;
}

/// There is nobody to ask.
#[derive(Clone, Copy, Debug, Default)]
pub struct Nobody;

#[async_trait]
impl Interaction for Nobody {
    async fn ask(&self, _: &Question) -> Answer {
        Answer::Nobody("nobody can be asked here".into())
    }
}

/// Asks for a call.
pub(crate) async fn approve(interaction: &Arc<dyn Interaction>, call: &FunctionCall) -> Result<(), ToolError> {
    let refused = |why: String| Err(ToolError::respond(ToolErrorClass::Tool, why));
    match interaction.ask(&Question::Call(call.clone())).await {
        Answer::Yes => Ok(()),
        Answer::No(why) if why.is_empty() => refused("The user refused this call; it did not run.".into()),
        Answer::No(why) => refused(format!(
            "The user refused this call; it did not run. The user says: {why}"
        )),
        Answer::Nobody(why) => refused(format!(
            "This call needs the user's approval, and {why}; it did not run."
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tool_s_own_rule_goes_before_that_of_all() {
        let mut policy = ApprovalPolicy::default();
        assert!(policy.asks(["write_file"], true) && !policy.asks(["echo"], false));
        policy.tools.insert("write_file".into(), Approve::Never);
        policy.tools.insert("echo".into(), Approve::Always);
        assert!(!policy.asks(["write_file"], true) && policy.asks(["echo"], false));
        assert!(ApprovalPolicy::all(Approve::Always).asks(["x"], false));
        // By whatever name: the strictest rule.
        policy.tools.insert("builtin_echo".into(), Approve::Never);
        assert!(policy.asks(["builtin_echo", "echo", "builtin/echo"], false));
        assert!(policy.asks(["echo", "builtin_echo"], false));
        assert_eq!(
            "sometimes".parse::<Approve>().unwrap_err(),
            "`sometimes` is none of always, destructive, never"
        );
    }
}
