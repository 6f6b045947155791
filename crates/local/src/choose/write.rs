//! Values that the model writes itself, under the grammar of their schema.

use decanus_backend::BackendError;
use llama_cpp_2::sampling::LlamaSampler;
use serde_json::Value;

use crate::engine::generate::{Picker, Sampling};
use crate::engine::session::{Session, Slot};
use crate::native::grammar::{Grammar, Strings};

/// More tokens than this are not spent on one value.
const LONGEST: usize = 96;

/// The value that the model writes after `prompt`, which ends with the colon before the value; none when it does not
/// come to an end.
///
/// # Errors
/// Those of computing.
pub fn write(session: &mut Session<'_>, prompt: &str, schema: &Value) -> Result<Option<Value>, BackendError> {
    let mut grammar = Grammar::new(schema, Strings::Tight);
    let value = grammar.schema(schema);
    // What follows a value is part of the grammar, because a number ends only there.
    let text = grammar.finish(&format!("\" \" {value} [,}}]"));
    let sampler = LlamaSampler::grammar(session.model(), &text, "root")
        .map_err(|e| BackendError::Internal(format!("the grammar of {schema} can't be used: {e}")))?;
    let mut picker = Picker::new(&Sampling::default(), session.model().n_vocab());
    picker.constrain(Some(sampler));
    let tokens = session.tokenize_prompt(prompt);
    session.prefill(Slot::Arguments, &tokens, LONGEST)?;
    let mut bytes: Vec<u8> = Vec::new();
    for _ in 0..LONGEST {
        session.check()?;
        let Some(token) = picker.pick(session.logits()) else {
            break;
        };
        if session.model().vocab().is_eog(token) {
            break;
        }
        bytes.extend(session.piece(token));
        if let Ok(text) = std::str::from_utf8(&bytes)
            && let Some(value) = text.strip_suffix([',', '}'])
            && let Ok(value) = serde_json::from_str(value.trim_start())
        {
            return Ok(Some(value));
        }
        session.advance(Slot::Arguments, token)?;
    }
    Ok(None)
}
