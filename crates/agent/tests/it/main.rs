//! The loop against a scripted server: what it asks, what it runs, what it stores, and in which order.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stderr)]

mod ends;
mod fallback;
mod limits;
mod resume;
mod rounds;
mod support;
