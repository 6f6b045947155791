//! Gives back what it is given: to see that calling works.

use decanus_chat::Effect;
use decanus_tool::{FnTool, ToolError};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;

/// Arguments of `echo`.
#[derive(Deserialize, JsonSchema)]
pub struct Echo {
    /// The text to give back.
    message: String,
}

pub(crate) fn tool() -> FnTool<Echo> {
    FnTool::new("echo", "Repeats a message word for word.", |args: Echo, _| async move {
        Ok::<_, ToolError>(args.message)
    })
    .effect(Effect::ReadOnly)
    .example("Echo the words good morning", json!({"message": "good morning"}))
    .example("Repeat after me: the cat sat", json!({"message": "the cat sat"}))
}
