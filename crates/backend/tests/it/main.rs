//! The backend room, tried against a scripted server and against recorded traffic.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::field_reassign_with_default
)]

mod anthropic;
mod anthropic_encoding;
mod bedrock;
mod cases;
mod embeddings;
mod encoding;
mod endpoints;
mod exec;
mod failures;
mod fallback;
mod gemini;
mod huggingface;
mod limits;
mod ollama;
mod openwebui;
mod proxies;
mod recorded;
mod responses;
mod responses_requests;
mod retries;
mod sloppy;
mod support;
mod threads;
mod vendor;
mod vllm;
