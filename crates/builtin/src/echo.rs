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
    .example("Echo hello world", json!({"message": "hello world"}))
    .example(
        "Repeat after me: the cat sat on the mat",
        json!({"message": "the cat sat on the mat"}),
    )
    .example("Say \"good morning\" back to me.", json!({"message": "good morning"}))
    .example("Please echo the words blue sky", json!({"message": "blue sky"}))
    .example("Echo this: Nothing is free.", json!({"message": "Nothing is free."}))
    .example("Can you repeat the word lemon?", json!({"message": "lemon"}))
}
