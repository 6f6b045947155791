//! The `bedrock` backend against a scripted server.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod answers;
mod embeddings;
mod failures;
mod requests;
mod signatures;
mod support;
