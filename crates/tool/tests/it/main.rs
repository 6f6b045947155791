//! Tests of what decides about calls.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod decisions;
