//! Providers behind one trait.
//!
//! A [`Backend`] opens a [`Conversation`]; a conversation turns a [`View`] of the messages into a stream of
//! [`Delta`]s; a [`Collector`] turns deltas into a [`Response`], for streams and whole bodies alike. HTTP providers are
//! a [`dialect::Dialect`] each: pure encoding and decoding, no I/O. Endpoints are files ([`endpoints`]).

pub mod collect;
pub mod conversation;
pub mod error;
pub mod profile;

pub use collect::{Collector, Response};
pub use conversation::{Backend, CallCx, Conversation, Delta, DryRun, FinishReason, View};
pub use error::BackendError;
pub use profile::{Profile, Timeouts};
