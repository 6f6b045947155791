//! The backends of this build.

use std::collections::BTreeMap;
use std::sync::Arc;

use decanus_base::names::did_you_mean;

use crate::anthropic::Anthropic;
use crate::client::Clients;
use crate::conversation::Backend;
use crate::error::BackendError;
use crate::exec::ExecBackend;
use crate::gemini::Gemini;
use crate::http::HttpBackend;
use crate::huggingface::HuggingFaceBackend;
use crate::ollama::Ollama;
use crate::openai::OpenAi;
use crate::openwebui;
use crate::relay::RelayBackend;
use crate::responses::Responses;
use crate::vllm::VllmBackend;

/// Backends by name. Those that are crates of their own are registered by whoever builds with them.
#[derive(Clone, Default)]
pub struct BackendRegistry(BTreeMap<String, Arc<dyn Backend>>);

impl BackendRegistry {
    /// No backends.
    pub fn new() -> Self {
        Self::default()
    }

    /// All HTTP providers, one line each, programs that endpoint files of the user's own name,
    /// checkpoints of transformers, and other machines.
    pub fn with_http() -> Self {
        let clients = Clients::default();
        let mut registry = Self::new();
        registry.register(Arc::new(HttpBackend::new(Anthropic::default(), clients.clone())));
        registry.register(Arc::new(HttpBackend::new(Gemini, clients.clone())));
        registry.register(Arc::new(HttpBackend::new(OpenAi::default(), clients.clone())));
        registry.register(Arc::new(HttpBackend::new(openwebui::dialect(), clients.clone())));
        registry.register(Arc::new(HttpBackend::new(Responses::default(), clients.clone())));
        registry.register(Arc::new(HttpBackend::new(Ollama, clients.clone())));
        registry.register(Arc::new(VllmBackend::new(clients)));
        registry.register(Arc::new(ExecBackend::new(false)));
        registry.register(Arc::new(HuggingFaceBackend::new(false)));
        registry.register(Arc::new(RelayBackend));
        registry
    }

    /// Adds a backend, in place of one of the same name.
    pub fn register(&mut self, backend: Arc<dyn Backend>) {
        self.0.insert(backend.name().to_owned(), backend);
    }

    /// The names, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    /// The backend of a name.
    ///
    /// # Errors
    /// When there is none, naming those that exist.
    pub fn get(&self, name: &str) -> Result<Arc<dyn Backend>, BackendError> {
        self.0.get(name).cloned().ok_or_else(|| {
            let guess = did_you_mean(name, self.names());
            let known: Vec<_> = self.names().collect();
            BackendError::Config(format!(
                "unknown backend `{name}`{guess} (this build has: {})",
                known.join(", ")
            ))
        })
    }
}

impl std::fmt::Debug for BackendRegistry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.names()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_backend_lists_the_known_ones() {
        let registry = BackendRegistry::with_http();
        assert_eq!(registry.get("openai").unwrap().name(), "openai");
        let error = registry.get("opnai").err().unwrap().to_string();
        assert!(
            error.contains("`opnai`; did you mean openai?") && error.contains("(this build has: "),
            "{error}"
        );
    }
}
