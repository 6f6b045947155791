//! Vectors of texts, in a context of their own that is there only meanwhile.

use std::num::NonZeroU32;

use decanus_backend::BackendError;
use llama_cpp_2::context::params::{LlamaContextParams, LlamaPoolingType};
use llama_cpp_2::llama_batch::LlamaBatch;

use super::abort::install;
use super::session::{Session, add, failed, number};

/// Most texts that are computed at once, each a sequence of its own.
const TEXTS: usize = 32;
/// Fewer tokens than this at once are not worth it.
const LEAST: usize = 256;

impl Session<'_> {
    /// Reads the texts, and gives how many tokens have to be computed at once: a text's vector is made of all its tokens,
    /// so none is divided.
    pub(super) fn prepare_texts(&mut self, texts: &[String]) -> Result<u64, BackendError> {
        let limit = self.limit() as usize;
        self.texts.clear();
        let count = texts.len();
        for (position, text) in (1..).zip(texts) {
            if text.trim().is_empty() {
                return Err(BackendError::Config(format!(
                    "text {position} of {count} is empty: it has no vector"
                )));
            }
            self.check()?;
            // The model's own first and last token; names of control tokens are letters here.
            let tokens = self.model.vocab().tokenize(text.as_bytes(), true, false);
            if tokens.is_empty() || tokens.len() > limit {
                return Err(BackendError::TooLong {
                    model: self.name.clone(),
                    message: format!(
                        "text {position} of {count} has {} tokens, and the context has {limit} (parameter `context`)",
                        tokens.len()
                    ),
                });
            }
            self.texts.push(tokens);
        }
        Ok(self.rows() as u64)
    }

    /// The vectors of the texts that were prepared, of length 1, and the number of tokens of all of them.
    ///
    /// # Errors
    /// [`BackendError::Cancelled`], a model that has no vectors, or a failure of llama.cpp.
    pub fn vectors(&mut self) -> Result<(Vec<Vec<f32>>, u64), BackendError> {
        let rows = self.rows();
        let texts = std::mem::take(&mut self.texts);
        let threads = self.decide_threads();
        let size = u32::try_from(rows).map_err(failed)?;
        let mut params = LlamaContextParams::default()
            .with_n_ctx(NonZeroU32::new(size))
            .with_n_batch(size)
            .with_n_ubatch(size)
            .with_n_seq_max(u32::try_from(TEXTS).map_err(failed)?)
            .with_kv_unified(true)
            .with_n_threads(threads)
            .with_n_threads_batch(threads)
            .with_embeddings(true)
            .with_pooling_type(self.pooling()?)
            .with_no_perf(true);
        install(&mut params, &self.abort);
        let mut context = self.model.new_context(self.backend, params).map_err(|e| {
            BackendError::Internal(format!("{}: no context of {size} tokens could be made: {e}", self.name))
        })?;
        let mut vectors = Vec::with_capacity(texts.len());
        let mut rest = texts.as_slice();
        let mut batch = LlamaBatch::new(rows, 1);
        while !rest.is_empty() {
            self.check()?;
            let mut room = rows;
            let fit = |text: &&Vec<_>| {
                let fits = text.len() <= room;
                room = room.saturating_sub(text.len());
                fits
            };
            let (group, later) = rest.split_at(rest.iter().take(TEXTS).take_while(fit).count().max(1));
            batch.clear();
            for (sequence, text) in (0..).zip(group) {
                for (position, token) in text.iter().enumerate() {
                    add(&mut batch, *token, position, sequence, true)?;
                }
            }
            if let Err(error) = context.decode(&mut batch) {
                self.check()?;
                return Err(BackendError::Internal(format!(
                    "{}: llama.cpp could not compute: {error}",
                    self.name
                )));
            }
            for sequence in 0..group.len() {
                let vector = context.embeddings_seq_ith(number(sequence)?).map_err(failed)?;
                vectors.push(self.of_length_one(vector)?);
            }
            context.clear_kv_cache();
            rest = later;
        }
        Ok((vectors, texts.iter().map(|t| t.len() as u64).sum()))
    }

    /// How many tokens are computed at once: the memory grows with them, so no more than the longest text needs.
    fn rows(&self) -> usize {
        let longest = self.texts.iter().map(Vec::len).max().unwrap_or(0);
        longest.max(LEAST).next_multiple_of(LEAST)
    }

    /// How the model makes one vector of those of its tokens; by their mean where its file says nothing.
    fn pooling(&self) -> Result<LlamaPoolingType, BackendError> {
        let architecture = self.model.meta_val_str("general.architecture").unwrap_or_default();
        let said = self.model.meta_val_str(&format!("{architecture}.pooling_type"));
        match said.ok().and_then(|said| said.parse::<i32>().ok()) {
            Some(2) => Ok(LlamaPoolingType::Cls),
            Some(3) => Ok(LlamaPoolingType::Last),
            Some(4) => Err(BackendError::Config(format!(
                "{} ranks texts and has no embeddings",
                self.name
            ))),
            _ => Ok(LlamaPoolingType::Mean),
        }
    }

    fn of_length_one(&self, vector: &[f32]) -> Result<Vec<f32>, BackendError> {
        let length = vector.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt();
        if !length.is_finite() || length == 0.0 {
            return Err(BackendError::Internal(format!(
                "{}: a vector came out that is zero or not finite",
                self.name
            )));
        }
        #[allow(clippy::cast_possible_truncation)]
        let scaled = vector.iter().map(|x| (f64::from(*x) / length) as f32).collect();
        Ok(scaled)
    }
}
