//! One file per command.

pub mod ask;
pub mod auth;
pub mod cache;
pub mod chat;
pub mod completions;
pub mod detach;
pub mod doctor;
pub mod endpoint;
pub mod init;
pub mod job;
pub mod jobs;
pub mod mcp;
pub mod model;
pub mod prov;
pub mod relay;
pub mod replay;
pub mod tool;
pub mod workflow;
