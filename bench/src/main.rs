//! Measures decanus against what it is built on, prints one table, and fails when a target is missed.
//!
//! Times on a shared machine are not stable, so figures are ratios of two medians that were measured in turns, in one run,
//! wherever there is something to compare with. See docs/benchmarks.md.
#![allow(clippy::print_stdout, clippy::print_stderr)]

mod chat;
mod extract;
mod jobs;
mod local;
mod peers;
mod round;
mod start;
mod table;
mod tools;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Whatever went wrong.
type Failed = Box<dyn std::error::Error>;

const HELP: &str = "\
decanus-bench [start] [chat] [rounds] [peers] [tools] [pages] [jobs] [local]: all when none is named

  DECANUS_BENCH_BINARY   the decanus binary to start (default: beside this program)
  DECANUS_BENCH_STARTS   starts of each program (default: 300)
  DECANUS_BENCH_ROUNDS   rounds of each case (default: 2000; with a chat file a quarter)
  DECANUS_BENCH_PAGES    pages of `pages` (default: 10000)
  DECANUS_BENCH_ONLY     only the cases whose names contain this text
  DECANUS_BENCH_MODEL    the model's GGUF file, for `local`
  DECANUS_BENCH_PEERS    the program of bench/peers, for `peers` and `tools`
  PEERS_PYTHON           a Python that has the packages that bench/run installs, for `peers`, `tools`, `pages` and `jobs`
  XLLAMACPP_PYTHON       a Python that has the package xllamacpp, for `local`";

/// What is measured, and how often.
pub struct Options {
    decanus: PathBuf,
    hello: PathBuf,
    /// Works on a long chat in a process of its own.
    chat: PathBuf,
    /// The local model's own measuring program.
    speed: PathBuf,
    /// What makes the calls of `peers` and `tools` by other libraries.
    peers: PathBuf,
    peers_python: PathBuf,
    project: PathBuf,
    scratch: PathBuf,
    starts: usize,
    rounds: usize,
    pages: usize,
    only: String,
}

impl Options {
    fn new() -> Result<Self, Failed> {
        let exe = std::env::current_exe()?;
        let folder = exe.parent().unwrap_or(Path::new("."));
        Ok(Self {
            decanus: std::env::var_os("DECANUS_BENCH_BINARY").map_or_else(|| folder.join("decanus"), PathBuf::from),
            hello: folder.join("decanus-bench-hello"),
            chat: folder.join("decanus-bench-chat"),
            speed: folder.join("examples/speed"),
            peers: std::env::var_os("DECANUS_BENCH_PEERS")
                .map_or_else(|| folder.join("decanus-bench-peers"), PathBuf::from),
            peers_python: std::env::var_os("PEERS_PYTHON")
                .map_or_else(|| folder.join("peers-python/bin/python"), PathBuf::from),
            project: Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/lab"),
            scratch: folder.to_owned(),
            starts: number("DECANUS_BENCH_STARTS", 300)?,
            rounds: number("DECANUS_BENCH_ROUNDS", 2000)?,
            pages: number("DECANUS_BENCH_PAGES", 10_000)?,
            only: std::env::var("DECANUS_BENCH_ONLY").unwrap_or_default(),
        })
    }
}

fn number(variable: &str, default: usize) -> Result<usize, Failed> {
    match std::env::var(variable) {
        Ok(text) => Ok(text.parse().map_err(|e| format!("{variable}: {e}"))?),
        Err(_) => Ok(default),
    }
}

fn main() -> ExitCode {
    let chosen: Vec<String> = std::env::args().skip(1).collect();
    if let Some(other) = chosen
        .iter()
        .find(|c| !["start", "chat", "rounds", "peers", "tools", "pages", "jobs", "local"].contains(&c.as_str()))
    {
        let asked = other == "--help" || other == "-h";
        eprintln!("{HELP}");
        return ExitCode::from(if asked { 0 } else { 2 });
    }
    match measure(&chosen) {
        Ok(rows) => {
            print!("{}", table::show(&rows));
            let missed = rows.iter().filter(|r| r.is_missed()).count();
            println!("\n{} figures, {missed} missed their target", rows.len());
            ExitCode::from(u8::from(missed > 0))
        }
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(2)
        }
    }
}

fn measure(chosen: &[String]) -> Result<Vec<table::Row>, Failed> {
    let options = Options::new()?;
    let wants = |part: &str| chosen.is_empty() || chosen.iter().any(|c| c == part);
    let mut rows = Vec::new();
    // The order matters: see `start::measure`.
    if wants("start") {
        rows.extend(start::measure(&options)?);
    }
    if wants("chat") {
        rows.extend(chat::measure(&options)?);
    }
    if wants("rounds") {
        rows.extend(round::measure(&options)?);
    }
    if wants("peers") {
        rows.extend(peers::measure(&options)?);
    }
    if wants("tools") {
        rows.extend(tools::measure(&options)?);
    }
    if wants("pages") {
        rows.extend(extract::measure(&options)?);
    }
    if wants("jobs") {
        rows.extend(jobs::measure(&options)?);
    }
    if wants("local") {
        rows.extend(local::measure(&options)?);
    }
    Ok(rows)
}
