//! How long a process takes from start to end, and how much memory it holds.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::resource::{UsageWho, getrusage};

use crate::table::{Measure, Row, Target, median};
use crate::{Failed, Options};

/// Most that `decanus tool list` may hold in memory.
const MEMORY: f64 = 25.0;

/// `decanus tool list` in a project, and a hello-world program, in turns.
///
/// Must be the first thing that the process measures: the kernel counts the memory of a process that is about to become
/// its child as the child's, and keeps one maximum for all children.
pub fn measure(options: &Options) -> Result<Vec<Row>, Failed> {
    let home = tempfile::tempdir()?;
    let decanus = || {
        let mut command = Command::new(&options.decanus);
        command.args(["tool", "list"]).current_dir(&options.project);
        command.env("DECANUS_HOME", home.path());
        command
    };
    let hello = || Command::new(&options.hello);
    for path in [&options.decanus, &options.hello] {
        if !path.is_file() {
            return Err(format!("{} is not there; bench/run builds it", path.display()).into());
        }
    }
    // Once each, so that both are in the page cache.
    run(hello(), &options.hello)?;
    run(decanus(), &options.decanus)?;
    let memory = getrusage(UsageWho::RUSAGE_CHILDREN)?.max_rss() as f64 / 1024.0;
    let (mut ours, mut reference) = (Vec::new(), Vec::new());
    for _ in 0..options.starts {
        ours.push(run(decanus(), &options.decanus)?);
        reference.push(run(hello(), &options.hello)?);
    }
    Ok(vec![
        Row::new(
            "start and end of `decanus tool list` : hello world",
            Target::RatioAtMost(3.0),
            Measure::Time(median(&mut ours)),
            Measure::Time(median(&mut reference)),
        ),
        Row::new(
            "resident memory of `decanus tool list` : 25 MiB",
            Target::AtMost,
            Measure::Mebibytes(memory),
            Measure::Mebibytes(MEMORY),
        ),
    ])
}

fn run(mut command: Command, path: &Path) -> Result<Duration, Failed> {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let start = Instant::now();
    let status = command.status()?;
    let time = start.elapsed();
    if !status.success() {
        return Err(format!("{} ended with {status}", path.display()).into());
    }
    Ok(time)
}
