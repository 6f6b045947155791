//! What tests need: a scripted LLM server ([`server`]), answers for it ([`reply`]), sandboxed projects ([`sandbox`]), texts made
//! comparable ([`normalise()`]), and traffic that was recorded from real servers ([`fixtures`]).
//!
//! Nothing here is used outside tests, so a fault is a panic.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

pub mod fixtures;
pub mod normalise;
pub mod reply;
pub mod sandbox;
pub mod server;

pub use normalise::normalise;
pub use reply::{Piece, Reply};
pub use sandbox::{Outcome, Sandbox};
pub use server::{Recorded, ScriptedServer, Step};
