//! Models of AWS: the `bedrock` backend.
//!
//! Converse and ConverseStream are a dialect like any other HTTP provider's (`converse`, `decode`), so that retries,
//! time limits, cancellation and `--dry-run` are those of all backends. What is special about AWS comes from its SDK:
//! where credentials are found (`credentials`), signatures (`sign`) and the frames of its event streams (`frames`).
//! Why not the SDK's client: docs/adr/0008-bedrock.md.

mod converse;
mod credentials;
mod decode;
mod frames;
mod place;
mod sign;

use std::sync::Arc;

use decanus_backend::client::Clients;
use decanus_backend::retry::Backoff;
use decanus_backend::{Backend, BackendError, Conversation, Embedder, HttpBackend, Profile};

pub use converse::{Converse, NAME};

/// The model of embeddings where none is named.
const EMBEDDING_MODEL: &str = "amazon.titan-embed-text-v1";

/// The backend `bedrock`.
#[derive(Debug)]
pub struct BedrockBackend(HttpBackend<Converse>);

impl BedrockBackend {
    /// A backend with connections of its own.
    pub fn new() -> Self {
        Self(HttpBackend::new(Converse::default(), Clients::default()))
    }

    /// Waits differently between tries.
    #[must_use]
    pub fn with_backoff(self, backoff: Backoff) -> Self {
        Self(self.0.with_backoff(backoff))
    }
}

impl Default for BedrockBackend {
    fn default() -> Self {
        Self::new()
    }
}

impl Backend for BedrockBackend {
    fn name(&self) -> &str {
        NAME
    }

    fn open(&self, profile: Arc<Profile>) -> Result<Box<dyn Conversation>, BackendError> {
        if profile.model.trim().is_empty() {
            return Err(BackendError::Config(format!(
                "endpoint `{}`: no model is named; give `model` in its file, -m, or BEDROCK_MODEL_ID",
                profile.name
            )));
        }
        self.0.open(Arc::new(place::decide(&profile)?))
    }

    fn embedder(&self, profile: Arc<Profile>) -> Result<Box<dyn Embedder>, BackendError> {
        let mut profile = place::decide(&profile)?;
        if profile.model.trim().is_empty() {
            EMBEDDING_MODEL.clone_into(&mut profile.model);
        }
        self.0.embedder(Arc::new(profile))
    }
}
