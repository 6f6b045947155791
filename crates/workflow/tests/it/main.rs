//! Workflows and jobs, seen from outside.

mod files;
mod identity;
mod lab;
mod process;
mod running;
mod sandbox;
mod tools;
