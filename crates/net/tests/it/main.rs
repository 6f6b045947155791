//! The network room, tried against a scripted server and with scripted names.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod auth;
mod exchange;
mod guard;
mod oauth;
mod pages;
mod properties;
mod redirects;
mod support;
mod tls;
