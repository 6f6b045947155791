//! The command line of workflows and jobs.

use std::time::Duration;

use clap::{Args, Subcommand};
use clap_complete::engine::ArgValueCompleter;
use decanus::workflow::{Status, Timestamp};

use super::{duration, pair};
use crate::complete;

#[derive(Subcommand, Debug)]
pub enum Workflow {
    /// All workflows
    List,
    /// One workflow with its tasks and their inputs
    Show {
        /// The workflow
        #[arg(add = ArgValueCompleter::new(complete::workflows))]
        workflow: String,
    },
    /// All faults of workflows, with file, line and key; and programs, scripts and files that are missing
    Check {
        /// The workflows; all of them when none is named
        #[arg(add = ArgValueCompleter::new(complete::workflows))]
        workflows: Vec<String>,
    },
    /// Run a task as a job, or find the job that was run before
    Run(Run),
    /// Remove the jobs of a workflow, or of one of its tasks
    Clean(CleanTasks),
}

#[derive(Args, Debug)]
pub struct Run {
    /// The workflow
    #[arg(add = ArgValueCompleter::new(complete::workflows))]
    pub workflow: String,
    /// The task
    #[arg(add = ArgValueCompleter::new(complete::tasks))]
    pub task: String,
    /// Inputs, by their names or shortcuts; a repeated key makes a list, KEY=@FILE takes the value from a file.
    /// WORKFLOW#TASK=JOB or =FILE puts that result in the place of a task that it depends on, at any depth
    #[arg(value_name = "KEY=VALUE", value_parser = pair, add = ArgValueCompleter::new(complete::inputs))]
    pub values: Vec<(String, String)>,
    /// The part of the job's name that you choose
    #[arg(long)]
    pub name: Option<String>,
    /// Run nothing: say whether it would run, and why
    #[arg(long, conflicts_with_all = ["force", "timeout"])]
    pub why: bool,
    /// Run it although its result is there
    #[arg(long)]
    pub force: bool,
    /// End it after this time (500ms, 10s, 2m, 1h)
    #[arg(long, value_parser = duration)]
    pub timeout: Option<Duration>,
    /// What runs its jobs: local (this machine) or slurm; without it what task, workflow or decanus.toml say
    #[arg(short = 'x', long, value_name = "EXECUTOR", add = ArgValueCompleter::new(complete::executors))]
    pub executor: Option<String>,
    /// Processors that jobs share while they run; by default those of the machine
    #[arg(short, long, value_name = "N", value_parser = processors)]
    pub jobs: Option<usize>,
    /// Memory that they share (512M, 4G), by what their tasks say they need; by default that of the machine
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub memory: Option<u64>,
    /// Run it and print its result, but keep nothing of it; what it depends on is stored as always
    #[arg(long, conflicts_with_all = ["no_wait", "force"])]
    pub exec: bool,
    /// Print the job's path and let it go on in a process of its own
    #[arg(long)]
    pub no_wait: bool,
    /// Run a job once more within itself; nothing of that run is kept
    #[arg(long, hide = true)]
    pub allow_recursive: bool,
}

#[derive(Args, Debug)]
pub struct CleanTasks {
    /// The workflow
    #[arg(add = ArgValueCompleter::new(complete::workflows))]
    pub workflow: String,
    /// The task; all of them when none is named
    #[arg(add = ArgValueCompleter::new(complete::tasks))]
    pub task: Option<String>,
    /// Also the jobs that they depend on
    #[arg(short, long)]
    pub recursive: bool,
    /// Only say what would go
    #[arg(long)]
    pub dry_run: bool,
}

#[derive(Subcommand, Debug)]
pub enum Job {
    /// All jobs, the newest last
    List(ListJobs),
    /// One job: inputs, dependencies, times, files
    Show {
        /// A path, WORKFLOW/TASK/NAME, or a digest's first 6 characters or more
        job: String,
    },
    /// Print a job's result
    Result {
        /// A path, WORKFLOW/TASK/NAME, or a digest's first 6 characters or more
        job: String,
    },
    /// The jobs, scripts and files that a job came from, each above what used it
    ///
    /// A line is STATUS WORKFLOW TASK PATH, for a file `file -  PATH`. Behind `->` stand the tasks and inputs that a result is
    /// the value of; a result that is newer than what was made of it is marked.
    Prov(JobProv),
    /// Why a job would run, or would not: what is wrong with the stored one, what has changed since, or how it differs from
    /// the nearest earlier one
    Why {
        /// A job: a path, WORKFLOW/TASK/NAME, or a digest's first 6 characters or more. Or WORKFLOW/TASK, with inputs
        job: String,
        /// Inputs of WORKFLOW/TASK, as for `workflow run`
        #[arg(value_name = "KEY=VALUE", value_parser = pair)]
        values: Vec<(String, String)>,
    },
    /// End a job that is at work, with all its processes
    Cancel {
        /// A path, WORKFLOW/TASK/NAME, the id of a pending call, or a digest's first 6 characters or more
        job: String,
    },
    /// What a job has said: its standard error, then its standard output where that is no result
    Log {
        /// A path, WORKFLOW/TASK/NAME, the id of a pending call, or a digest's first 6 characters or more
        job: String,
        /// Go on as long as it is at work
        #[arg(short, long)]
        follow: bool,
    },
    /// Run jobs that were written down for another machine; executors start this
    #[command(hide = true)]
    Exec {
        /// The scheduler's id of this run
        #[arg(long)]
        id: String,
        /// Paths of results; @FILE holds one a line
        #[arg(required = true)]
        paths: Vec<String>,
    },
    /// Remove jobs: record, result and folder. One that is at work is refused
    Clean(CleanJobs),
    /// What the jobs take on disk, by workflow and task
    #[command(visible_alias = "du")]
    Usage {
        /// Only those of this workflow
        #[arg(add = ArgValueCompleter::new(complete::workflows))]
        workflow: Option<String>,
    },
    /// Remove what nothing refers to: what processes left that died
    Gc(Collect),
    /// Run a pending tool call; decanus starts this itself
    #[command(hide = true)]
    Work {
        /// The id
        id: String,
    },
}

#[derive(Args, Debug)]
pub struct ListJobs {
    /// Only those of this workflow
    #[arg(add = ArgValueCompleter::new(complete::workflows))]
    pub workflow: Option<String>,
    /// Only those of this task
    #[arg(add = ArgValueCompleter::new(complete::tasks))]
    pub task: Option<String>,
    /// Only those in this state: waiting, running, done, error, aborted; may be repeated
    #[arg(long, value_parser = status)]
    pub status: Vec<Status>,
    /// Only those whose name is like this: `*` is any text, `?` any character
    #[arg(long, value_name = "PATTERN")]
    pub name: Option<String>,
    /// Only those that ended, or were asked for, then or later: 2h, 3d, 2026-01-31, 2026-01-31T12:00
    #[arg(long, value_name = "WHEN", value_parser = when)]
    pub since: Option<Timestamp>,
    /// Only those that did so earlier
    #[arg(long, value_name = "WHEN", value_parser = when)]
    pub before: Option<Timestamp>,
    /// Only those whose result no longer holds, and why
    #[arg(long)]
    pub stale: bool,
    /// Only the newest
    #[arg(long, value_name = "N")]
    pub limit: Option<usize>,
    /// Also how long they ran and how large their results are
    #[arg(short, long)]
    pub long: bool,
}

#[derive(Args, Debug)]
pub struct CleanJobs {
    /// Paths, WORKFLOW/TASK/NAME, ids of pending calls, or first 6 characters or more of digests
    #[arg(conflicts_with_all = ["status", "task", "older"], required_unless_present_any = ["status", "task", "older"])]
    pub jobs: Vec<String>,
    /// All jobs in this state: done, error, aborted; may be repeated
    #[arg(long, value_parser = status)]
    pub status: Vec<Status>,
    /// All jobs of a workflow or a task
    #[arg(long, value_name = "WORKFLOW[/TASK]")]
    pub task: Option<String>,
    /// All jobs that ended before then: 2h, 3d, 2026-01-31
    #[arg(long, value_name = "WHEN", value_parser = when)]
    pub older: Option<Timestamp>,
    /// Also the jobs that they depend on
    #[arg(short, long)]
    pub recursive: bool,
    /// Only say what would go
    #[arg(long)]
    pub dry_run: bool,
}

#[derive(Args, Debug)]
pub struct Collect {
    /// Also jobs whose workflow or task is no longer there, unless a chat or another job refers to them
    #[arg(long)]
    pub orphans: bool,
    /// Also results without a record; with --orphans also what is referred to
    #[arg(long)]
    pub all: bool,
    /// Only say what would go
    #[arg(long)]
    pub dry_run: bool,
}

#[derive(Args, Debug)]
pub struct JobProv {
    /// A path, WORKFLOW/TASK/NAME, or a digest's first 6 characters or more
    pub job: String,
    /// Draw it: write a Graphviz file; `-` is standard output
    #[arg(long, value_name = "FILE")]
    pub dot: Option<String>,
    /// Read the files that jobs have read, and say which are no longer what they were
    #[arg(long)]
    pub verify: bool,
    /// Also when each job began, how long it ran, and what ran it
    #[arg(short, long)]
    pub long: bool,
}

fn size(text: &str) -> Result<u64, String> {
    decanus::base::units::parse_size(text)
}

fn processors(text: &str) -> Result<usize, String> {
    let number = text.parse().ok().filter(|n| *n > 0);
    number.ok_or_else(|| format!("`{text}` is not a number of processors"))
}

fn when(text: &str) -> Result<Timestamp, String> {
    decanus::workflow::listing::parse_when(text, Timestamp::now())
}

fn status(text: &str) -> Result<Status, String> {
    Status::parse(text).ok_or_else(|| "states are waiting, running, done, error and aborted".to_owned())
}
