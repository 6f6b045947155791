//! Workflows: files that describe tasks ([`parse`], [`definition`]), jobs that are tasks with their inputs ([`job`]),
//! the store of their results ([`store`]) and the one runner ([`runner`]).
//!
//! A job is known by its identity: what its task does, its inputs (files by content) and the identities of the jobs it
//! depends on. Its result is at `WORKFLOW/TASK/NAME_DIGEST.EXT` of the jobs folder, its record beside it with `.info`,
//! and the folder its process ran in with `.files`. A result that exists is used again.

mod aside;
pub mod background;
mod body;
pub mod build;
pub mod builder;
mod check;
pub mod collect;
mod content;
pub mod definition;
mod demand;
mod depends;
pub mod digests;
mod docs;
pub mod error;
pub mod exec;
pub mod executor;
mod fleet;
mod graph;
pub mod guard;
pub mod identity;
pub mod input;
pub mod job;
pub mod listing;
mod manage;
pub mod native;
pub mod parse;
mod parse_input;
mod path_rules;
pub mod python;
mod recall;
pub mod record;
pub mod result;
pub mod runner;
mod scheduler;
pub mod schema;
pub mod slots;
mod slurm;
mod slurm_wire;
mod spawner;
mod spec;
pub mod store;
mod tasks;
pub mod template;
pub mod tool;
pub mod usage;
mod warnings;
pub mod why;
mod workers;
pub mod workflows;

pub use aside::Executed;
pub use background::{Claim, InProcess, Order, ProcessSpawner, Spawner, ToolJobs};
pub use builder::{BuildError, TaskBuilder, WorkflowBuilder};
pub use collect::{Collect, Garbage, Leftover};
pub use definition::{Body, Dependency, DependsFn, DynamicDepends, Each, JobName, Reach, Setting, Task, Workflow};
pub use digests::Digests;
pub use error::{FindError, InputError, JobError, WorkflowError};
pub use executor::{Executor, ExecutorError, Executors};
pub use guard::JobStack;
pub use input::{Input, InputType};
pub use jiff::Timestamp;
pub use job::{GivenResult, Job, JobOptions, Link, Override, Overrides};
pub use listing::{JobFilter, JobSummary};
pub use manage::ManageError;
pub use native::{NativeBody, TaskContext, TaskError};
pub use parse::Checked;
pub use path_rules::PathRules;
pub use python::PythonBody;
pub use record::{JobRecord, RecordLink, Status};
pub use result::ResultType;
pub use runner::{Done, RunOptions};
pub use slots::{Capacity, Need, Resources};
pub use store::{JobStore, StoredJob};
pub use tasks::Tasks;
pub use tool::{PathPolicy, TaskTool, WorkflowSource};
pub use usage::Usage;
pub use why::{Reason, ReasonKind, Why};
pub use workflows::{Listed, Workflows};
