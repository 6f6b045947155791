//! Providers behind one trait.
//!
//! A [`Backend`] opens a [`Conversation`]; a conversation turns a [`View`] of the messages into a stream of
//! [`Delta`]s; a [`Collector`] turns deltas into a [`Response`], for streams and whole bodies alike. HTTP providers are
//! a [`dialect::Dialect`] each: pure encoding and decoding, no I/O. Endpoints are files ([`endpoints`]).

pub mod anthropic;
mod anthropic_decode;
pub mod body;
pub mod cache;
pub mod client;
pub mod collect;
pub mod conversation;
pub mod dialect;
pub mod embed;
pub mod encode;
mod endpoint_file;
pub mod endpoints;
pub mod error;
mod exchange;
pub mod exec;
mod exec_process;
mod exec_wire;
pub mod fallback;
pub mod format;
pub mod frames;
pub mod gemini;
mod gemini_decode;
mod generate;
pub mod http;
mod inline_refs;
pub mod limits;
pub mod ollama;
mod ollama_decode;
pub mod open_message;
pub mod openai;
mod openai_decode;
pub mod openwebui;
pub mod profile;
mod reader;
pub mod redact;
pub mod refusal;
pub mod registry;
pub mod relay;
mod relay_ssh;
pub mod relay_wire;
pub mod responses;
mod responses_decode;
pub mod retry;
pub mod sse;
pub mod structured;
mod thread;
pub mod tool_choice;
pub mod tool_names;
pub mod turns;
pub mod vllm;
mod waiting;
pub mod wire_schema;

pub use collect::{Collector, Response};
pub use conversation::{Backend, CallCx, Conversation, Delta, DryRun, FinishReason, View};
pub use embed::{Embedder, Embeddings};
pub use endpoints::{EndpointError, EndpointInfo, Endpoints};
pub use error::BackendError;
pub use exec::ExecBackend;
pub use fallback::FallbackConversation;
pub use http::HttpBackend;
pub use limits::Governor;
pub use profile::{Aws, Profile, Relay, Timeouts};
pub use registry::BackendRegistry;
pub use relay::RelayBackend;
pub use relay_wire::{RelayRequest, RelayRequestError};
