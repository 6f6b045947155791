//! The ground floor of decanus: nothing here knows chats, tools, models or jobs.
//!
//! Files ([`files`]), child processes ([`process`]), digests ([`digest`]), names ([`names`]), YAML with line numbers
//! ([`yaml`]), a project and its settings ([`project`], [`settings`]), what the
//! user has agreed to in it ([`consent`]), secrets and what takes them out of texts ([`redact`]), durations and the error kinds that
//! every room maps its own errors to ([`error`]).

pub mod consent;
pub mod digest;
pub mod error;
pub mod files;
pub mod names;
pub mod process;
pub mod project;
pub mod redact;
pub mod secret;
pub mod settings;
pub mod text;
pub mod units;
pub mod yaml;

pub use consent::Consents;
pub use error::{Diagnostic, ErrorKind};
pub use project::Project;
pub use secret::Secret;
pub use settings::Settings;
