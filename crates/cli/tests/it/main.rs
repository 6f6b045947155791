//! The binary, run as people and machines run it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stderr)]

mod actions;
mod answers;
mod approval;
mod ask;
mod auth;
mod backends;
#[cfg(feature = "bedrock")]
mod bedrock;
mod chats;
mod check;
mod declaring;
mod dependencies;
mod endpoints;
mod executors;
mod failures;
mod fallback;
mod https;
mod huggingface;
mod jobs;
mod managing;
mod models;
mod prov;
mod relay;
mod replay;
mod secrets;
mod setup;
mod signals;
mod support;
mod tool_jobs;
mod tools;
mod workflows;
