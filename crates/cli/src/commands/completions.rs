//! `decanus completions SHELL`.

use decanus::Error;
use decanus::base::ErrorKind;

use crate::complete::{VARIABLE, shells};
use crate::{Context, Ended};

pub fn run(shell: &str, cx: &Context) -> Ended {
    let failed = |what: String| Error::new(ErrorKind::Internal, format!("the script can't be made: {what}"));
    let shells = shells();
    let completer = shells
        .completer(shell)
        .ok_or_else(|| Error::usage(format!("there is no completion for `{shell}`")))?;
    let mut script = Vec::new();
    // The shell asks the binary of that name, so that the script outlives a new version of it.
    completer
        .write_registration(VARIABLE, "decanus", "decanus", "decanus", &mut script)
        .map_err(|e| failed(e.to_string()))?;
    cx.out.print(&String::from_utf8_lossy(&script));
    Ok(0)
}
