//! How fast a model runs: for benchmarks.

use std::path::Path;
use std::time::Instant;

use decanus_backend::BackendError;
use serde::Serialize;

use crate::engine::Engine;
use crate::engine::generate::{Picker, Sampling};
use crate::engine::session::{ContextOptions, Session, Slot};

/// What was measured.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Speed {
    /// Threads.
    pub threads: i32,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Prompt tokens per second.
    pub prompt_per_second: f64,
    /// Tokens written.
    pub generated_tokens: usize,
    /// Written tokens per second.
    pub generated_per_second: f64,
}

/// Evaluates a prompt from scratch and writes `tokens` tokens, likeliest first, whatever they are; `repeats` times, of
/// which the fastest counts.
///
/// # Errors
/// Those of loading and computing.
pub fn measure(file: &Path, prompt: &str, threads: i32, tokens: usize, repeats: usize) -> Result<Speed, BackendError> {
    let engine = Engine::open(file, "speed")?;
    let (sender, receiver) = std::sync::mpsc::channel();
    let prompt = prompt.to_owned();
    engine.submit(engine.token(), move |session| {
        let measured = session.and_then(|session| {
            session.configure(ContextOptions {
                threads: Some(threads),
                context: None,
            });
            measure_in(session, &prompt, tokens, repeats)
        });
        let _ = sender.send(measured);
    })?;
    receiver
        .recv()
        .map_err(|_| BackendError::Internal("the local model's thread has ended".into()))?
}

#[allow(clippy::cast_precision_loss)]
fn measure_in(session: &mut Session<'_>, prompt: &str, tokens: usize, repeats: usize) -> Result<Speed, BackendError> {
    let prompt = session.tokenize_prompt(prompt);
    // The first computation also makes the context and pages the weights in.
    session.prefill(Slot::Chat, &prompt, tokens)?;
    let mut best = Speed {
        threads: session.threads(),
        prompt_tokens: prompt.len(),
        prompt_per_second: 0.0,
        generated_tokens: tokens,
        generated_per_second: 0.0,
    };
    for _ in 0..repeats.max(1) {
        session.forget();
        let start = Instant::now();
        session.prefill(Slot::Chat, &prompt, tokens)?;
        let evaluated = start.elapsed().as_secs_f64();
        let mut picker = Picker::new(&Sampling::default(), session.model().n_vocab());
        let start = Instant::now();
        for _ in 0..tokens {
            let Some(token) = picker.pick(session.logits()) else {
                break;
            };
            session.advance(Slot::Chat, token)?;
        }
        let generated = start.elapsed().as_secs_f64();
        best.prompt_per_second = best.prompt_per_second.max(prompt.len() as f64 / evaluated);
        best.generated_per_second = best.generated_per_second.max(tokens as f64 / generated);
    }
    Ok(best)
}
