//! Workflows and jobs, seen from outside.

// Helpers of tests are not seen as tests by clippy.toml's exception.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod background;
mod declaring;
mod depends;
mod elsewhere;
mod executors;
mod files;
mod guard;
mod identity;
mod lab;
mod managing;
mod native;
mod process;
mod python;
mod running;
mod sandbox;
mod scheduling;
mod tools;
mod why;
