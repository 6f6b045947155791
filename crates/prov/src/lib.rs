//! Where an answer came from: a graph of chats, answers, calls, jobs and files, made from the files alone.
//!
//! [`Tracer`] reads chat files and job records, breadth first from a chat or a job, and gives a [`Graph`]. [`replay`] holds
//! what making the calls of a chat again comes to: which of them can be, and how outputs are compared. Nothing is run,
//! locked or changed, and roles that would bring in other chats or run tasks (`import`, `continue`, `task`, `job`) are not
//! followed: what they did is in the messages and metas that were stored. What can't be read is among the graph's
//! problems; only a root that can't be read is an error.

mod calls;
mod dot;
mod error;
mod graph;
mod json;
mod listing;
mod receipts;
pub mod replay;
mod segment;
mod tokens;
mod trace;
mod trace_chat;
mod trace_job;
mod tree;
mod verify;

pub use calls::{CallStatus, ToolPair, tool_pairs};
pub use error::ProvError;
pub use graph::{Check, Edge, Graph, Kind, Node, Problem, ProviderParts, Relation};
pub use listing::ListingOptions;
pub use receipts::Receipt;
pub use segment::{Segment, lineage, segments};
pub use tokens::{Entry, Evidence, Inference, Ledger};
pub use trace::Tracer;
