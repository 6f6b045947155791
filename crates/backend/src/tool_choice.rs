//! Which tools a model may or must call, in our words.

use crate::dialect::{Fault, Request};

/// What `tool_choice` says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ToolChoice {
    /// The model decides.
    Auto,
    /// It calls none.
    None,
    /// It calls at least one.
    Required,
    /// It calls this one, by its name on the wire.
    Tool(String),
}

impl ToolChoice {
    /// Reads `auto`, `none`, `required` or the name of a tool on offer.
    ///
    /// # Errors
    /// [`Fault::Config`]: no such tool is on offer.
    pub fn read(choice: &str, request: &Request<'_>) -> Result<Self, Fault> {
        match choice {
            "auto" => Ok(Self::Auto),
            "none" => Ok(Self::None),
            "required" => Ok(Self::Required),
            name if request.view.tools.iter().any(|t| t.name == name) => Ok(Self::Tool(request.names.wire(name))),
            name => {
                let known = request.view.tools.iter().map(|t| t.name.as_str());
                let guess = decanus_base::names::did_you_mean(name, known);
                Err(Fault::Config(format!(
                    "tool_choice names `{name}`, which is not on offer{guess}"
                )))
            }
        }
    }
}
