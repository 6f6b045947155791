//! The choice of a tool: a word, or the name of a tool on offer.

use crate::dialect::{Fault, Request};

/// What a request says of the tools it offers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Choice {
    /// `auto`, `none` or `required`.
    Word(String),
    /// A tool, by its name on the wire.
    Tool(String),
}

/// Reads a choice.
///
/// # Errors
/// A name that is not on offer.
pub fn choice(choice: &str, request: &Request<'_>) -> Result<Choice, Fault> {
    if matches!(choice, "auto" | "none" | "required") {
        return Ok(Choice::Word(choice.to_owned()));
    }
    if !request.view.tools.iter().any(|t| t.name == choice) {
        let known = request.view.tools.iter().map(|t| t.name.as_str());
        let guess = decanus_base::names::did_you_mean(choice, known);
        return Err(Fault::Config(format!(
            "tool_choice names `{choice}`, which is not on offer{guess}"
        )));
    }
    Ok(Choice::Tool(request.names.wire(choice)))
}
