//! `decanus completions SHELL`.

use clap::CommandFactory;

use crate::args::Cli;
use crate::{Context, Ended};

pub fn run(shell: clap_complete::Shell, cx: &Context) -> Ended {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "decanus", &mut script);
    cx.out.print(&String::from_utf8_lossy(&script));
    Ok(0)
}
