//! The built-in tools: those that use the network against a scripted server, those that use files and programs in a
//! project of their own.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod commands;
mod database;
mod examples;
mod files;
mod network;
mod paths;
mod place;
mod writing;
