//! Models on this machine.
//!
//! [`models`] is the catalogue: which models there are, fetching them, and where they lie. With the feature `llama`,
//! `LocalBackend` runs them in process by llama.cpp, and lets models that are too small to call tools on their own
//! choose among them.

pub mod models;

#[cfg(feature = "llama")]
mod backend;
#[cfg(feature = "llama")]
pub mod choose;
#[cfg(feature = "llama")]
mod embedder;
#[cfg(feature = "llama")]
pub mod engine;
#[cfg(feature = "llama")]
pub mod messages;
#[cfg(feature = "llama")]
pub mod native;
#[cfg(feature = "llama")]
pub mod reasoning;
#[cfg(feature = "llama")]
mod settings;
#[cfg(feature = "llama")]
pub mod speed;
#[cfg(feature = "llama")]
mod state;
#[cfg(feature = "llama")]
pub mod template;
#[cfg(feature = "llama")]
mod work;

#[cfg(feature = "llama")]
pub use backend::LocalBackend;
