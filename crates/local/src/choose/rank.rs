//! How likely a model finds texts that could come next.

use decanus_backend::BackendError;
use llama_cpp_2::token::LlamaToken;

use crate::engine::session::{Session, Slot};

/// Log-probabilities of texts that could follow `prompt`. Prompt and text are tokenised together, so that the tokens
/// are those that the model itself would write.
///
/// # Errors
/// Those of computing.
pub fn rank(session: &mut Session<'_>, slot: Slot, prompt: &str, texts: &[String]) -> Result<Vec<f64>, BackendError> {
    let whole: Vec<Vec<LlamaToken>> = texts
        .iter()
        .map(|t| session.tokenize_prompt(&format!("{prompt}{t}")))
        .collect();
    let alone = session.tokenize_prompt(prompt);
    let shared = whole
        .iter()
        .map(|tokens| tokens.iter().zip(&alone).take_while(|(a, b)| a == b).count())
        .min()
        .unwrap_or(alone.len());
    session.prefill(slot, &alone[..shared], 0)?;
    let continuations: Vec<Vec<LlamaToken>> = whole.iter().map(|tokens| tokens[shared..].to_vec()).collect();
    Ok(session
        .score(&continuations)?
        .into_iter()
        .map(|s| s.iter().sum())
        .collect())
}
