//! Behaviour of the crate, in one binary so that it is linked once.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout
)]

#[path = "suite/catalogue.rs"]
mod catalogue;

#[cfg(feature = "llama")]
#[path = "suite/choices.rs"]
mod choices;
#[cfg(feature = "llama")]
#[path = "suite/conversations.rs"]
mod conversations;
#[cfg(feature = "llama")]
#[path = "suite/memory.rs"]
mod memory;
#[cfg(feature = "llama")]
#[path = "suite/model.rs"]
mod model;
#[cfg(feature = "llama")]
#[path = "suite/sampling.rs"]
mod sampling;
#[cfg(feature = "llama")]
#[path = "suite/templates.rs"]
mod templates;
#[cfg(feature = "llama")]
#[path = "suite/thinking.rs"]
mod thinking;
#[cfg(feature = "llama")]
#[path = "suite/vectors.rs"]
mod vectors;
