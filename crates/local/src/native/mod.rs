//! Tool calls by models that know how.
pub mod grammar;
