//! Providers behind one trait.
//!
//! A [`Backend`] opens a [`Conversation`]; a conversation turns a [`View`] of the messages into a stream of
//! [`Delta`]s; a [`Collector`] turns deltas into a [`Response`], for streams and whole bodies alike. HTTP providers are
//! a [`dialect::Dialect`] each: pure encoding and decoding, no I/O. Endpoints are files ([`endpoints`]).

pub mod anthropic;
mod anthropic_decode;
pub mod body;
pub mod client;
pub mod collect;
pub mod conversation;
pub mod dialect;
pub mod encode;
mod endpoint_file;
pub mod endpoints;
pub mod error;
mod exchange;
pub mod format;
mod frames;
pub mod gemini;
mod gemini_decode;
pub mod http;
pub mod open_message;
pub mod openai;
mod openai_decode;
pub mod profile;
pub mod redact;
pub mod refusal;
pub mod registry;
pub mod retry;
pub mod sse;
pub mod structured;
pub mod tool_choice;
pub mod tool_names;
pub mod turns;
pub mod wire_schema;

pub use collect::{Collector, Response};
pub use conversation::{Backend, CallCx, Conversation, Delta, DryRun, FinishReason, View};
pub use endpoints::{EndpointError, EndpointInfo, Endpoints};
pub use error::BackendError;
pub use http::HttpBackend;
pub use profile::{Profile, Timeouts};
pub use registry::BackendRegistry;
