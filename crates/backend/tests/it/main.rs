//! The backend room, tried against a scripted server and against recorded traffic.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::field_reassign_with_default
)]

mod anthropic;
mod anthropic_encoding;
mod cases;
mod encoding;
mod endpoints;
mod failures;
mod gemini;
mod proxies;
mod recorded;
mod retries;
mod support;
mod vendor;
