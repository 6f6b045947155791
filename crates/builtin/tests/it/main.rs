//! The built-in tools that use the network, tried against a scripted server.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod network;
