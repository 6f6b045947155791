//! A loaded model with its context: tokens in, logits out, and what is in the KV cache.

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::sync::Arc;

use decanus_backend::BackendError;
use llama_cpp_2::context::LlamaContext;
use llama_cpp_2::context::params::LlamaContextParams;
use llama_cpp_2::llama_backend::LlamaBackend;
use llama_cpp_2::llama_batch::LlamaBatch;
use llama_cpp_2::model::LlamaModel;
use llama_cpp_2::token::LlamaToken;

use super::abort::{Abort, install};
use super::scoring::{LogSoftmax, Tree};
use super::threads::Observation;
use crate::template::ChatTemplate;

/// A prefix that is kept in the KV cache between requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slot {
    /// The conversation itself.
    Chat = 0,
    /// The prompt by which a small model chooses a tool.
    Choice = 1,
    /// The prompt by which it finds the arguments.
    Arguments = 2,
}

pub(super) const SLOTS: usize = 3;
/// Continuations that are scored side by side, each a sequence of its own.
pub(super) const BRANCHES: usize = 29;
/// Tokens of continuations per decode: each has its row of logits.
pub(super) const BRANCH_TOKENS: usize = 192;
pub(super) const BATCH: usize = 2048;
pub(super) const MICRO_BATCH: u32 = 512;
pub(super) const SMALLEST_CONTEXT: u32 = 2048;

/// How the context is to be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct ContextOptions {
    /// Threads; `None` decides by what the machine is doing.
    pub threads: Option<i32>,
    /// The most tokens that a conversation may have; `None` is the model's own, but not more than 8192.
    pub context: Option<u32>,
}

/// What a request needs of a model.
#[derive(Clone, Debug, PartialEq)]
pub enum Need {
    /// To write an answer.
    Answer(ContextOptions),
    /// To make vectors of texts.
    Vectors(ContextOptions, Arc<Vec<String>>),
}

/// Tokens that went through the model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// Computed.
    pub computed: u64,
    /// Found in the cache by the first evaluation.
    pub reused: u64,
    evaluations: u64,
}

/// The model, its context and the state of its cache.
pub struct Session<'m> {
    pub(super) backend: &'m LlamaBackend,
    pub(super) model: &'m LlamaModel,
    pub(super) name: String,
    // Declared before `abort`, because the context's callback points to it and fields are dropped in order.
    pub(super) context: Option<LlamaContext<'m>>,
    pub(super) abort: Arc<Abort>,
    pub(super) options: ContextOptions,
    threads: i32,
    observation: Observation,
    size: u32,
    /// What the context may take, if there is one or will be.
    pub(super) reserved: u64,
    /// Texts that were prepared to be made vectors.
    pub(super) texts: Vec<Vec<LlamaToken>>,
    cached: [Vec<LlamaToken>; SLOTS],
    base: Vec<f32>,
    base_slot: Slot,
    pub(super) templates: HashMap<String, Arc<ChatTemplate>>,
    pub(super) controls: Vec<String>,
    count: Count,
    /// Calibrations of tool lists, by the digest of their prompt.
    pub calibrations: HashMap<String, Vec<f64>>,
}

impl<'m> Session<'m> {
    pub(super) fn new(
        backend: &'m LlamaBackend,
        model: &'m LlamaModel,
        name: String,
        abort: Arc<Abort>,
        observation: Observation,
    ) -> Self {
        Self {
            backend,
            model,
            name,
            context: None,
            abort,
            options: ContextOptions::default(),
            threads: 0,
            observation,
            size: 0,
            reserved: 0,
            texts: Vec::new(),
            cached: Default::default(),
            base: Vec::new(),
            base_slot: Slot::Chat,
            templates: HashMap::new(),
            controls: Vec::new(),
            count: Count::default(),
            calibrations: HashMap::new(),
        }
    }

    /// The model.
    pub fn model(&self) -> &'m LlamaModel {
        self.model
    }

    /// The threads that the last computation used.
    pub fn threads(&self) -> i32 {
        self.threads
    }

    /// The most tokens that a conversation may have.
    pub fn limit(&self) -> u32 {
        let trained = self.model.n_ctx_train().max(1);
        self.options.context.unwrap_or(8192).min(trained)
    }

    /// Sets how the context is to be made; a context that computes otherwise is given up.
    pub fn configure(&mut self, options: ContextOptions) {
        if self.options.threads != options.threads {
            self.context = None;
            self.threads = 0;
        }
        self.options = options;
    }

    /// Forgets what the cache holds.
    pub fn forget(&mut self) {
        self.cached = Default::default();
        if let Some(context) = &mut self.context {
            context.clear_kv_cache();
        }
    }

    /// Begins to count anew.
    pub fn start_count(&mut self) {
        self.count = Count::default();
    }

    /// What went through the model since [`Session::start_count`].
    pub fn count(&self) -> Count {
        self.count
    }

    /// An error when the request was cancelled.
    ///
    /// # Errors
    /// [`BackendError::Cancelled`].
    pub fn check(&self) -> Result<(), BackendError> {
        if self.abort.is_cancelled() {
            Err(BackendError::Cancelled)
        } else {
            Ok(())
        }
    }

    /// Evaluates a prompt; what the cache already holds of its beginning is not computed again. Gives the number of
    /// tokens that were reused. The logits of the last token are [`Session::logits`] afterwards. `room` is how many
    /// tokens may follow.
    ///
    /// # Errors
    /// [`BackendError::TooLong`], [`BackendError::Cancelled`], or a failure of llama.cpp.
    pub fn prefill(&mut self, slot: Slot, tokens: &[LlamaToken], room: usize) -> Result<usize, BackendError> {
        self.check()?;
        let limit = self.limit() as usize;
        if tokens.is_empty() || tokens.len() >= limit {
            return Err(self.too_long(tokens.len()));
        }
        self.make_room(slot, (tokens.len() + room).min(limit))?;
        let index = slot as usize;
        let cached = &self.cached[index];
        let common = cached.iter().zip(tokens).take_while(|(a, b)| a == b).count();
        // The last token is always computed, for its logits.
        let mut keep = common.min(tokens.len() - 1);
        let whole = keep == cached.len();
        if !whole && !self.truncate(slot, keep)? {
            // Models with a recurrent state can't take tokens back.
            self.truncate(slot, 0)?;
            keep = 0;
        }
        self.base_slot = slot;
        if self.count.evaluations == 0 {
            self.count.reused = keep as u64;
        }
        self.count.evaluations += 1;
        self.count.computed += (tokens.len() - keep) as u64;
        self.advance_from(slot, keep, tokens)?;
        Ok(keep)
    }

    fn advance_from(&mut self, slot: Slot, from: usize, tokens: &[LlamaToken]) -> Result<(), BackendError> {
        let mut batch = LlamaBatch::new(BATCH.min(tokens.len() - from).max(1), 1);
        let mut at = from;
        while at < tokens.len() {
            let end = (at + BATCH).min(tokens.len());
            batch.clear();
            for (position, token) in tokens.iter().enumerate().take(end).skip(at) {
                add(&mut batch, *token, position, slot as i32, position + 1 == tokens.len())?;
            }
            self.decode(&mut batch)?;
            self.cached[slot as usize].extend_from_slice(&tokens[at..end]);
            at = end;
        }
        self.take_base(batch.n_tokens() - 1)
    }

    /// Adds one token to the end of a slot and computes the logits after it.
    ///
    /// # Errors
    /// As for [`Session::prefill`].
    pub fn advance(&mut self, slot: Slot, token: LlamaToken) -> Result<(), BackendError> {
        let at = self.cached[slot as usize].len();
        if at + 1 >= self.size as usize {
            return Err(self.too_long(at + 1));
        }
        let mut batch = LlamaBatch::new(1, 1);
        add(&mut batch, token, at, slot as i32, true)?;
        self.decode(&mut batch)?;
        self.cached[slot as usize].push(token);
        self.base_slot = slot;
        self.take_base(0)
    }

    /// Whether another token fits.
    pub fn has_room(&self, slot: Slot) -> bool {
        self.cached[slot as usize].len() + 1 < self.size.min(self.limit()) as usize
    }

    /// The logits after the last token that was evaluated.
    pub fn logits(&self) -> &[f32] {
        &self.base
    }

    /// The log-probabilities of some continuations of what was evaluated last, token by token. Beginnings that
    /// continuations share are computed once.
    ///
    /// # Errors
    /// As for [`Session::prefill`].
    pub fn score(&mut self, continuations: &[Vec<LlamaToken>]) -> Result<Vec<Vec<f64>>, BackendError> {
        let mut scores = vec![Vec::new(); continuations.len()];
        let mut order: Vec<usize> = (0..continuations.len())
            .filter(|i| !continuations[*i].is_empty())
            .collect();
        // Neighbours in this order share beginnings.
        order.sort_by(|a, b| continuations[*a].cmp(&continuations[*b]));
        let mut rest = order.as_slice();
        while !rest.is_empty() {
            let mut tree = Tree::default();
            let mut taken = 0;
            for &which in rest {
                let before = tree.clone();
                tree.insert(&continuations[which]);
                if taken > 0 && (tree.leaves() > BRANCHES || tree.nodes.len() > BRANCH_TOKENS) {
                    tree = before;
                    break;
                }
                taken += 1;
            }
            let (group, later) = rest.split_at(taken);
            let distributions = self.score_tree(&tree, group, continuations)?;
            for (which, score) in group.iter().zip(distributions) {
                scores[*which] = score;
            }
            rest = later;
        }
        Ok(scores)
    }

    fn score_tree(
        &mut self,
        tree: &Tree,
        group: &[usize],
        continuations: &[Vec<LlamaToken>],
    ) -> Result<Vec<Vec<f64>>, BackendError> {
        let base = LogSoftmax::new(&self.base);
        let mut scores: Vec<Vec<f64>> = group
            .iter()
            .map(|which| vec![base.of(continuations[*which][0])])
            .collect();
        if tree.nodes.is_empty() {
            return Ok(scores);
        }
        let slot = self.base_slot;
        let start = self.cached[slot as usize].len();
        if start + tree.nodes.len() >= self.size as usize {
            return Err(self.too_long(start + tree.nodes.len()));
        }
        let leaves = tree.leaves();
        let context = self.context.as_mut().ok_or_else(gone)?;
        for leaf in 0..leaves {
            context
                .copy_kv_cache_seq(slot as i32, number(SLOTS + leaf)?, None, None)
                .map_err(failed)?;
        }
        let mut batch = LlamaBatch::new(tree.nodes.len(), number(leaves)?);
        for node in &tree.nodes {
            let sequences: Vec<i32> = node
                .leaves
                .iter()
                .map(|l| number(SLOTS + l))
                .collect::<Result<_, _>>()?;
            batch
                .add(node.token, number(start + node.depth)?, &sequences, true)
                .map_err(failed)?;
        }
        self.count.computed += tree.nodes.len() as u64;
        self.decode(&mut batch)?;
        let context = self.context.as_mut().ok_or_else(gone)?;
        let mut rows: HashMap<usize, LogSoftmax<'_>> = HashMap::new();
        for (score, which) in scores.iter_mut().zip(group) {
            let continuation = &continuations[*which];
            for (node, next) in tree.path(continuation).into_iter().zip(&continuation[1..]) {
                let logits = context.get_logits_ith(number(node)?);
                score.push(rows.entry(node).or_insert_with(|| LogSoftmax::new(logits)).of(*next));
            }
        }
        drop(rows);
        for leaf in 0..leaves {
            let sequence = u32::try_from(SLOTS + leaf).map_err(failed)?;
            context.clear_kv_cache_seq(Some(sequence), None, None).map_err(failed)?;
        }
        Ok(scores)
    }

    fn decode(&mut self, batch: &mut LlamaBatch<'_>) -> Result<(), BackendError> {
        let context = self.context.as_mut().ok_or_else(gone)?;
        let result = context.decode(batch);
        let Err(error) = result else { return Ok(()) };
        // What was computed of the batch is in the cache, but not in our record of it.
        self.forget();
        self.check()?;
        Err(BackendError::Internal(format!(
            "{}: llama.cpp could not compute: {error}",
            self.name
        )))
    }

    fn take_base(&mut self, row: i32) -> Result<(), BackendError> {
        let context = self.context.as_ref().ok_or_else(gone)?;
        let logits = context.get_logits_ith(row);
        self.base.clear();
        self.base.extend_from_slice(logits);
        Ok(())
    }

    fn truncate(&mut self, slot: Slot, keep: usize) -> Result<bool, BackendError> {
        let context = self.context.as_mut().ok_or_else(gone)?;
        let from = u32::try_from(keep).map_err(failed)?;
        let done = context
            .clear_kv_cache_seq(Some(slot as u32), Some(from), None)
            .map_err(failed)?;
        if done {
            self.cached[slot as usize].truncate(keep);
        }
        Ok(done)
    }

    /// Sees to it that a context exists in which the slot can hold so many tokens. The cache is made as large as it
    /// needs to be and no larger, because all of it is resident.
    fn make_room(&mut self, slot: Slot, needed: usize) -> Result<(), BackendError> {
        let branches = BRANCH_TOKENS + 8;
        let needed = needed + branches;
        let others = |s: &Self| -> usize {
            (0..SLOTS)
                .filter(|i| *i != slot as usize)
                .map(|i| s.cached[i].len())
                .sum()
        };
        if self.context.is_some() && needed + others(self) <= self.size as usize {
            return Ok(());
        }
        let most = self.limit() as usize + branches;
        let wanted = (needed + others(self)).next_power_of_two();
        let size = wanted.max(SMALLEST_CONTEXT as usize).min(most.max(needed));
        if self.context.is_some() && size <= self.size as usize {
            // It can't grow any more; the slots have to share it by turns.
            self.forget();
            return Ok(());
        }
        self.context = None;
        self.cached = Default::default();
        self.size = u32::try_from(size).map_err(failed)?;
        self.decide_threads();
        let mut params = LlamaContextParams::default()
            .with_n_ctx(NonZeroU32::new(self.size))
            .with_n_batch(u32::try_from(BATCH).map_err(failed)?)
            .with_n_ubatch(MICRO_BATCH)
            .with_n_seq_max(u32::try_from(SLOTS + BRANCHES).map_err(failed)?)
            .with_kv_unified(true)
            .with_n_threads(self.threads)
            .with_n_threads_batch(self.threads)
            .with_no_perf(true);
        install(&mut params, &self.abort);
        let context = self.model.new_context(self.backend, params).map_err(|e| {
            BackendError::Internal(format!("{}: no context of {size} tokens could be made: {e}", self.name))
        })?;
        self.context = Some(context);
        Ok(())
    }

    /// Decides how many threads compute, once.
    pub(super) fn decide_threads(&mut self) -> i32 {
        if self.threads == 0 {
            let threads = self.options.threads.unwrap_or_else(|| self.observation.threads());
            self.threads = threads.max(1);
        }
        self.threads
    }

    fn too_long(&self, tokens: usize) -> BackendError {
        let limit = self.limit();
        let message = format!("{tokens} tokens, and the context has {limit} (parameter `context`)");
        BackendError::TooLong {
            model: self.name.clone(),
            message,
        }
    }
}

pub(super) fn add(
    batch: &mut LlamaBatch<'_>,
    token: LlamaToken,
    position: usize,
    sequence: i32,
    logits: bool,
) -> Result<(), BackendError> {
    batch.add(token, number(position)?, &[sequence], logits).map_err(failed)
}

pub(super) fn number(n: usize) -> Result<i32, BackendError> {
    i32::try_from(n).map_err(failed)
}

pub(super) fn failed(error: impl std::fmt::Display) -> BackendError {
    BackendError::Internal(format!("local model: {error}"))
}

pub(super) fn gone() -> BackendError {
    BackendError::Internal("local model: there is no context".into())
}
