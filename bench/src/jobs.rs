//! What a job costs beyond its body: graphs of jobs that do nothing (`true`), by decanus, GNU make and Snakemake, in one run
//! side by side. The graph is a diamond: one job, many that depend on it, one that depends on them all.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::table::{Measure, Row, Target};
use crate::{Failed, Options};

/// Jobs of the graphs.
const SIZES: [usize; 3] = [1, 100, 10_000];
/// Snakemake takes some 30 ms a job; more than this many are left out.
const MOST_FOR_SNAKEMAKE: usize = 100;

/// Somebody who runs such a graph.
#[derive(Clone, Copy, PartialEq)]
enum Runner {
    Decanus,
    Make,
    Snakemake,
}

/// All runners with all sizes.
pub fn measure(options: &Options) -> Result<Vec<Row>, Failed> {
    let mut rows = Vec::new();
    for size in SIZES {
        let what = if size == 1 {
            "one job".to_owned()
        } else {
            format!("{size} jobs in a diamond")
        };
        let (ours, again) = times(Runner::Decanus, size, options)?;
        let (make, make_again) = times(Runner::Make, size, options)?;
        let time = Measure::Time;
        rows.push(Row::new(
            format!("{what} : make"),
            Target::RatioAtMost(3.0),
            time(ours),
            time(make),
        ));
        let target = if size == 1 {
            Target::None
        } else {
            Target::RatioAtMost(2.0)
        };
        rows.push(Row::new(
            format!("{what}, all done : make"),
            target,
            time(again),
            time(make_again),
        ));
        let name = format!("{what} : Snakemake");
        if size > MOST_FOR_SNAKEMAKE {
            rows.push(Row::not_measured(
                name,
                Target::RatioAtMost(0.1),
                "it would take many minutes",
            ));
        } else if options.peers_python.is_file() {
            let (theirs, _) = times(Runner::Snakemake, size, options)?;
            rows.push(Row::new(name, Target::RatioAtMost(0.1), time(ours), time(theirs)));
        } else {
            rows.push(Row::not_measured(
                name,
                Target::RatioAtMost(0.1),
                "there is no Python with it",
            ));
        }
    }
    rows.push(listing(options)?);
    Ok(rows)
}

/// The shortest of three runs of a new graph, and of three where all is done already; with the largest graph of one.
fn times(runner: Runner, size: usize, options: &Options) -> Result<(Duration, Duration), Failed> {
    let turns = if size > 1000 { 1 } else { 3 };
    let mut best = (Duration::MAX, Duration::MAX);
    for _ in 0..turns {
        let folder = tempfile::tempdir()?;
        write_graph(runner, size, folder.path())?;
        let first = run(command(runner, folder.path(), options))?;
        let mut again = Duration::MAX;
        for _ in 0..3 {
            again = again.min(run(command(runner, folder.path(), options))?);
        }
        best = (best.0.min(first), best.1.min(again));
    }
    Ok(best)
}

fn write_graph(runner: Runner, size: usize, folder: &Path) -> Result<(), Failed> {
    let middle: Vec<String> = (0..size.saturating_sub(2)).map(|i| format!("m{i}")).collect();
    let last = if size == 1 { "first" } else { "last" };
    let mut text = String::new();
    let file = match runner {
        Runner::Decanus => {
            text.push_str("tasks:\n  first: {run: [\"true\"]}\n");
            for name in &middle {
                writeln!(text, "  {name}: {{run: [\"true\"], depends: [first]}}")?;
            }
            if size > 1 {
                writeln!(text, "  last: {{run: [\"true\"], depends: [{}]}}", middle.join(", "))?;
            }
            fs::create_dir_all(folder.join("workflows/Graph"))?;
            fs::write(folder.join("decanus.toml"), "")?;
            "workflows/Graph/workflow.yaml"
        }
        Runner::Make => {
            writeln!(text, "{last}: {}\n\t@true && touch $@", middle.join(" "))?;
            if size > 1 {
                text.push_str("first:\n\t@true && touch $@\n");
            }
            for name in &middle {
                writeln!(text, "{name}: first\n\t@true && touch $@")?;
            }
            "Makefile"
        }
        Runner::Snakemake => {
            let quoted: Vec<String> = middle.iter().map(|name| format!("'{name}'")).collect();
            writeln!(
                text,
                "rule {last}_:\n  input: [{}]\n  output: '{last}'\n  shell: 'true && touch {{output}}'",
                quoted.join(", ")
            )?;
            if size > 1 {
                text.push_str("rule first_:\n  output: 'first'\n  shell: 'true && touch {output}'\n");
                text.push_str("rule middle:\n  input: 'first'\n  output: 'm{n}'\n  shell: 'true && touch {output}'\n");
            }
            "Snakefile"
        }
    };
    fs::write(folder.join(file), text)?;
    Ok(())
}

fn command(runner: Runner, folder: &Path, options: &Options) -> Command {
    let width = std::thread::available_parallelism().map_or(1, usize::from).to_string();
    let mut command = match runner {
        Runner::Decanus => {
            let mut command = Command::new(&options.decanus);
            let last = if folder.join("workflows/Graph/workflow.yaml").is_file() && has_last(folder) {
                "last"
            } else {
                "first"
            };
            command.args(["workflow", "run", "Graph", last]);
            command.env("DECANUS_HOME", folder.join("home"));
            command
        }
        Runner::Make => {
            let mut command = Command::new("make");
            command.args(["-s", "-j", &width]);
            command
        }
        Runner::Snakemake => {
            let program: PathBuf = options.peers_python.with_file_name("snakemake");
            let mut command = Command::new(program);
            command.args(["--cores", &width, "--quiet", "all"]);
            command
        }
    };
    command.current_dir(folder);
    command
}

fn has_last(folder: &Path) -> bool {
    fs::read_to_string(folder.join("workflows/Graph/workflow.yaml")).is_ok_and(|t| t.contains("\n  last:"))
}

fn run(mut command: Command) -> Result<Duration, Failed> {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let start = Instant::now();
    let status = command.status()?;
    let time = start.elapsed();
    match status.success() {
        true => Ok(time),
        false => Err(format!("{command:?} ended with {status}").into()),
    }
}

/// `job list` of ten thousand stored jobs, and `find` over their folder.
fn listing(options: &Options) -> Result<Row, Failed> {
    let folder = tempfile::tempdir()?;
    write_graph(Runner::Decanus, 10_000, folder.path())?;
    run(command(Runner::Decanus, folder.path(), options))?;
    let (mut ours, mut find) = (Duration::MAX, Duration::MAX);
    for _ in 0..3 {
        let mut list = Command::new(&options.decanus);
        list.args(["job", "list"]).current_dir(folder.path());
        list.env("DECANUS_HOME", folder.path().join("home"));
        ours = ours.min(run(list)?);
        let mut command = Command::new("find");
        command.arg(folder.path().join(".decanus/jobs"));
        find = find.min(run(command)?);
    }
    Ok(Row::new(
        "`job list` of 10,000 jobs : find",
        Target::RatioAtMost(3.0),
        Measure::Time(ours),
        Measure::Time(find),
    ))
}
