//! Measures a model: `speed MODEL.gguf PROMPT_FILE [THREADS [TOKENS [REPEATS]]]` prints one line of JSON.

use std::error::Error;
use std::io::Write;
use std::path::PathBuf;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let usage = "usage: speed MODEL.gguf PROMPT_FILE [THREADS [TOKENS [REPEATS]]]";
    let (Some(model), Some(prompt)) = (arguments.next(), arguments.next()) else {
        return Err(usage.into());
    };
    let mut number = |default: usize| arguments.next().map_or(Ok(default), |a| a.parse());
    let (threads, tokens, repeats) = (number(1)?, number(64)?, number(3)?);
    let prompt = std::fs::read_to_string(prompt)?;
    let threads = i32::try_from(threads)?;
    let speed = decanus_local::speed::measure(&PathBuf::from(model), &prompt, threads, tokens, repeats)?;
    writeln!(std::io::stdout(), "{}", serde_json::to_string(&speed)?)?;
    Ok(())
}
