//! Embeddings by a local model.

use std::sync::Arc;
use std::time::Duration;

use decanus_backend::{BackendError, Embedder, Embeddings, Profile};
use decanus_chat::Usage;
use futures::FutureExt;
use futures::future::BoxFuture;
use tokio::sync::oneshot;

use crate::engine::Engine;
use crate::engine::session::{ContextOptions, Need};
use crate::models::Entry;
use crate::settings::Settings;

/// Makes vectors in this process.
pub struct LocalEmbedder {
    engine: Arc<Engine>,
    model: String,
    options: ContextOptions,
    limit: Duration,
}

impl LocalEmbedder {
    /// With the settings of an endpoint; those for answers have no meaning here.
    ///
    /// # Errors
    /// When a parameter's value is wrong, or asks for shorter vectors.
    pub fn new(engine: Arc<Engine>, entry: &Entry, profile: &Profile) -> Result<Self, BackendError> {
        if profile.parameters.get("dimensions").is_some_and(|d| !d.is_null()) {
            return Err(BackendError::Config(
                "parameter `dimensions`: local models give vectors of one length, that of the model".into(),
            ));
        }
        let settings = Settings::read(&[&entry.parameters, &profile.parameters])?;
        let mut options = settings.context;
        options.context = options.context.or(entry.context);
        Ok(Self {
            engine,
            model: entry.name.clone(),
            options,
            limit: profile.timeouts.total,
        })
    }

    async fn vectors(&self, texts: &[String]) -> Result<Embeddings, BackendError> {
        if texts.is_empty() {
            return Ok(Embeddings::default());
        }
        let token = self.engine.token();
        let _stop = token.clone().drop_guard();
        let (sender, receiver) = oneshot::channel();
        let need = Need::Vectors(self.options, Arc::new(texts.to_vec()));
        self.engine.submit_with(token, need, move |session| {
            let _ = sender.send(session.and_then(|session| session.vectors()));
        })?;
        let (vectors, tokens) = match tokio::time::timeout(self.limit, receiver).await {
            Ok(Ok(made)) => made?,
            Ok(Err(_)) => return Err(BackendError::Internal("the local model's thread has ended".into())),
            Err(_) => {
                return Err(BackendError::TimedOut {
                    target: self.model.clone(),
                    what: format!("no vectors within {:?}", self.limit),
                });
            }
        };
        let usage = Usage {
            pt: Some(tokens),
            tt: Some(tokens),
            ..Usage::default()
        };
        Ok(Embeddings {
            vectors,
            usage,
            model: Some(self.model.clone()),
        })
    }
}

impl Embedder for LocalEmbedder {
    fn embed<'a>(&'a self, texts: &'a [String]) -> BoxFuture<'a, Result<Embeddings, BackendError>> {
        self.vectors(texts).boxed()
    }
}
