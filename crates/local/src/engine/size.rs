//! How much memory a model takes beside its weights.

use std::sync::Arc;

use decanus_backend::BackendError;

use super::session::{BRANCH_TOKENS, BRANCHES, MICRO_BATCH, Need, SLOTS, SMALLEST_CONTEXT, Session};

impl Session<'_> {
    /// What the contexts that there are may take.
    pub(super) fn caches(&self) -> u64 {
        if self.context.is_some() { self.reserved } else { 0 }
    }

    /// Makes ready for a request and says how many bytes the model needs for it in all. A context that there is no room
    /// for beside what the request needs is given up.
    pub(super) fn prepare(&mut self, need: &Need, weights: u64, bound: Option<u64>) -> Result<u64, BackendError> {
        match need {
            Need::Answer(options) => {
                self.configure(*options);
                // All that this conversation may come to need, so that it never has to wait in the middle of an answer. A
                // context that is larger already stays.
                let wanted = self.answer_bytes();
                self.reserved = self.caches().max(wanted);
                if bound.is_some_and(|bound| weights + self.reserved > bound) {
                    self.context = None;
                    self.reserved = wanted;
                }
                Ok(weights + self.reserved)
            }
            Need::Vectors(options, texts) => {
                self.configure(*options);
                let rows = self.prepare_texts(&Arc::clone(texts))?;
                let own = self.vector_bytes(rows);
                if bound.is_some_and(|bound| weights + self.caches() + own > bound) {
                    self.context = None;
                }
                Ok(weights + self.caches() + own)
            }
        }
    }

    /// The context in which answers are written, when it is as large as it may become.
    fn answer_bytes(&self) -> u64 {
        let branches = BRANCH_TOKENS as u64 + 8;
        let tokens = (u64::from(self.limit()) + branches).max(u64::from(SMALLEST_CONTEXT));
        let kept = (SLOTS + BRANCHES).max(BRANCH_TOKENS) as u64;
        self.cache_bytes(tokens) + self.working_bytes(u64::from(MICRO_BATCH), kept)
    }

    /// A context for vectors, with room for so many tokens at once. llama.cpp computes and keeps their logits too.
    fn vector_bytes(&self, rows: u64) -> u64 {
        self.cache_bytes(rows) + self.working_bytes(rows, rows)
    }

    /// Keys and values, 16 bits each. Models with a recurrent state have less.
    fn cache_bytes(&self, tokens: u64) -> u64 {
        let model = self.model;
        let architecture = model.meta_val_str("general.architecture").unwrap_or_default();
        let said = |key: &str| -> Option<u64> {
            let key = format!("{architecture}.attention.{key}");
            model.meta_val_str(&key).ok()?.parse().ok()
        };
        let width = u64::try_from(model.n_embd()).unwrap_or(0);
        let head = width / u64::from(model.n_head()).max(1);
        let (key, value) = (said("key_length").unwrap_or(head), said("value_length").unwrap_or(head));
        let heads = u64::from(model.n_layer()) * u64::from(model.n_head_kv());
        tokens * heads * (key + value) * 2
    }

    /// What computing takes: a row of logits for each token computed at once and each that is kept, and the layers'
    /// own numbers.
    fn working_bytes(&self, rows: u64, kept: u64) -> u64 {
        let vocabulary = u64::try_from(self.model.n_vocab()).unwrap_or(0);
        let width = u64::try_from(self.model.n_embd()).unwrap_or(0);
        ((rows + kept) * vocabulary + rows * width * 8) * 4
    }
}
