//! Text from a prompt, token by token.

use decanus_backend::{BackendError, FinishReason};
use llama_cpp_2::sampling::LlamaSampler;
use llama_cpp_2::token::LlamaToken;
use llama_cpp_2::token::data::LlamaTokenData;
use llama_cpp_2::token::data_array::LlamaTokenDataArray;

use super::session::{Session, Slot};

/// How tokens are picked and when to end.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampling {
    /// 0 always takes the likeliest token.
    pub temperature: f32,
    /// Keep the likeliest tokens up to this probability.
    pub top_p: Option<f32>,
    /// Keep so many of the likeliest tokens.
    pub top_k: Option<i32>,
    /// Drop tokens less likely than this share of the likeliest.
    pub min_p: Option<f32>,
    /// Divides (or, below 1, multiplies) the odds of tokens that were written lately.
    pub repeat_penalty: f32,
    /// Lowers a token for each time it was written lately.
    pub frequency_penalty: f32,
    /// Lowers a token that was written lately.
    pub presence_penalty: f32,
    /// How many of the last tokens written count as lately.
    pub repeat_last_n: i32,
    /// Seed of the random numbers.
    pub seed: u32,
    /// The most tokens to write.
    pub max_tokens: usize,
    /// Texts that end the answer and are not part of it.
    pub stop: Vec<String>,
    /// Control tokens that are shown as text, because they open a tool call or a thought.
    pub show: Vec<String>,
}

impl Default for Sampling {
    fn default() -> Self {
        Self {
            temperature: 0.0,
            top_p: None,
            top_k: None,
            min_p: None,
            repeat_penalty: 1.0,
            frequency_penalty: 0.0,
            presence_penalty: 0.0,
            repeat_last_n: 64,
            seed: 0,
            max_tokens: 512,
            stop: Vec::new(),
            show: Vec::new(),
        }
    }
}

impl Sampling {
    /// The samplers of llama.cpp for these settings; none when the likeliest token is always taken.
    fn sampler(&self, vocabulary: i32) -> Option<LlamaSampler> {
        #[allow(clippy::float_cmp)]
        let penalised = self.repeat_penalty != 1.0 || self.frequency_penalty != 0.0 || self.presence_penalty != 0.0;
        let penalties = penalised.then(|| {
            LlamaSampler::penalties(
                vocabulary,
                self.repeat_last_n,
                self.repeat_penalty,
                self.frequency_penalty,
                self.presence_penalty,
            )
        });
        if self.temperature <= 0.0 {
            let greedy = |penalties| LlamaSampler::chain_simple([penalties, LlamaSampler::greedy()]);
            return penalties.map(greedy);
        }
        let chain = [
            penalties,
            self.top_k.map(LlamaSampler::top_k),
            self.top_p.map(|p| LlamaSampler::top_p(p, 1)),
            self.min_p.map(|p| LlamaSampler::min_p(p, 1)),
            Some(LlamaSampler::temp(self.temperature)),
            Some(LlamaSampler::dist(self.seed)),
        ];
        Some(LlamaSampler::chain_simple(chain.into_iter().flatten()))
    }
}

/// Picks tokens, within a grammar when there is one.
pub struct Picker {
    sampler: Option<LlamaSampler>,
    grammar: Option<LlamaSampler>,
}

impl Picker {
    /// For these settings, and a model with so many tokens.
    pub fn new(sampling: &Sampling, vocabulary: i32) -> Self {
        Self {
            sampler: sampling.sampler(vocabulary),
            grammar: None,
        }
    }

    /// From here on only tokens that this grammar allows; `None` lifts the constraint.
    pub fn constrain(&mut self, grammar: Option<LlamaSampler>) {
        self.grammar = grammar;
    }

    /// The next token after what was evaluated last; none when the grammar allows no further one.
    pub fn pick(&mut self, logits: &[f32]) -> Option<LlamaToken> {
        let best = argmax(logits);
        let whole = || {
            let all = (0_i32..)
                .zip(logits)
                .map(|(i, l)| LlamaTokenData::new(LlamaToken(i), *l, 0.0));
            LlamaTokenDataArray::from_iter(all, false)
        };
        let token = match (&mut self.sampler, &mut self.grammar) {
            (None, None) => return Some(best),
            // Asking the grammar about one token is far cheaper than about the whole vocabulary.
            (None, Some(grammar)) => {
                if allows(grammar, best) {
                    grammar.accept(best);
                    return Some(best);
                }
                let mut all = whole();
                all.apply_sampler(grammar);
                let best = all.data.iter().max_by(|a, b| a.logit().total_cmp(&b.logit()))?;
                best.logit().is_finite().then(|| best.id())?
            }
            (Some(sampler), grammar) => {
                let mut all = whole();
                if let Some(grammar) = grammar {
                    all.apply_sampler(grammar);
                    if !all.data.iter().any(|d| d.logit().is_finite()) {
                        return None;
                    }
                }
                all.apply_sampler(sampler);
                all.selected_token()?
            }
        };
        if let Some(grammar) = &mut self.grammar {
            grammar.accept(token);
        }
        if let Some(sampler) = &mut self.sampler {
            sampler.accept(token);
        }
        Some(token)
    }
}

fn allows(grammar: &mut LlamaSampler, token: LlamaToken) -> bool {
    let mut one = LlamaTokenDataArray::new(vec![LlamaTokenData::new(token, 1.0, 0.0)], false);
    one.apply_sampler(grammar);
    one.data.first().is_some_and(|d| d.logit().is_finite())
}

/// The likeliest token.
pub fn argmax(logits: &[f32]) -> LlamaToken {
    let mut best = (0_i32, f32::NEG_INFINITY);
    for (i, l) in (0_i32..).zip(logits) {
        if *l > best.1 {
            best = (i, *l);
        }
    }
    LlamaToken(best.0)
}

/// What came of a generation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Generated {
    /// Tokens written.
    pub tokens: u64,
    /// Why it ended.
    pub finish: FinishReason,
}

/// Writes on after what was evaluated last in `slot`. `emit` gets pieces of whole characters; when it says `false`,
/// the writing ends.
///
/// # Errors
/// Those of computing.
pub fn generate(
    session: &mut Session<'_>,
    slot: Slot,
    sampling: &Sampling,
    picker: &mut Picker,
    mut emit: impl FnMut(&Session<'_>, &str, &mut Picker) -> Result<bool, BackendError>,
) -> Result<Generated, BackendError> {
    let mut text = TextBuffer::new(&sampling.stop);
    let mut tokens = 0;
    let finish = loop {
        if tokens >= sampling.max_tokens as u64 || !session.has_room(slot) {
            break FinishReason::Length;
        }
        session.check()?;
        let Some(token) = picker.pick(session.logits()) else {
            break FinishReason::Stop;
        };
        tokens += 1;
        let shown = sampling.show.iter().find(|s| session.is_named(token, s));
        if shown.is_none() && session.model().vocab().is_eog(token) {
            break FinishReason::Stop;
        }
        let stopped = match shown {
            Some(name) => text.push(name.as_bytes()),
            None => text.push(&session.piece(token)),
        };
        let ready = text.take(stopped);
        if (!ready.is_empty() && !emit(session, &ready, picker)?) || stopped {
            return Ok(Generated {
                tokens,
                finish: FinishReason::Stop,
            });
        }
        if tokens < sampling.max_tokens as u64 {
            session.advance(slot, token)?;
        }
    };
    let rest = text.take(true);
    if !rest.is_empty() {
        emit(session, &rest, picker)?;
    }
    Ok(Generated { tokens, finish })
}

/// Bytes of tokens on their way to becoming text: holds back half characters and what may be the beginning of a stop
/// text.
struct TextBuffer<'s> {
    bytes: Vec<u8>,
    stop: &'s [String],
}

impl<'s> TextBuffer<'s> {
    fn new(stop: &'s [String]) -> Self {
        Self {
            bytes: Vec::new(),
            stop,
        }
    }

    /// Adds bytes; true when a stop text is complete, which is then cut off.
    fn push(&mut self, piece: &[u8]) -> bool {
        self.bytes.extend_from_slice(piece);
        let found = self
            .stop
            .iter()
            .filter(|s| !s.is_empty())
            .filter_map(|s| find(&self.bytes, s.as_bytes()))
            .min();
        if let Some(at) = found {
            self.bytes.truncate(at);
        }
        found.is_some()
    }

    /// What can be shown; at the end everything.
    fn take(&mut self, end: bool) -> String {
        let mut ready = self.bytes.len();
        if !end {
            ready -= half_character(&self.bytes);
            let held = self
                .stop
                .iter()
                .map(|s| overlap(&self.bytes[..ready], s.as_bytes()))
                .max()
                .unwrap_or(0);
            ready -= held;
        }
        let rest = self.bytes.split_off(ready);
        let text = String::from_utf8_lossy(&self.bytes).into_owned();
        self.bytes = rest;
        text
    }
}

fn find(haystack: &[u8], needle: &[u8]) -> Option<usize> {
    haystack.windows(needle.len()).position(|w| w == needle)
}

/// How many bytes at the end are the beginning of `stop`.
fn overlap(bytes: &[u8], stop: &[u8]) -> usize {
    (1..stop.len())
        .rev()
        .find(|n| bytes.ends_with(&stop[..*n]))
        .unwrap_or(0)
}

/// How many bytes at the end are an incomplete character.
fn half_character(bytes: &[u8]) -> usize {
    let error = match std::str::from_utf8(bytes) {
        Ok(_) => return 0,
        Err(error) => error,
    };
    let mut from = error.valid_up_to();
    let mut last = error;
    // Bytes that can never be a character don't hold back what follows them.
    while let Some(length) = last.error_len() {
        from += length;
        match std::str::from_utf8(&bytes[from..]) {
            Ok(_) => return 0,
            Err(next) => {
                from += next.valid_up_to();
                last = next;
            }
        }
    }
    bytes.len() - from
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_characters_are_held_back() {
        let stop = [];
        let mut buffer = TextBuffer::new(&stop);
        buffer.push(&[b'a', 0xf0, 0x9f]);
        assert_eq!(buffer.take(false), "a");
        buffer.push(&[0x99, 0x82, b'b']);
        assert_eq!(buffer.take(false), "🙂b");
        buffer.push(&[0xff, b'c', 0xc3]);
        assert_eq!(buffer.take(false), "\u{fffd}c");
        assert_eq!(buffer.take(true), "\u{fffd}");
    }

    #[test]
    fn stop_texts_are_found_across_pieces_and_left_out() {
        let stop = ["\nEND".to_owned()];
        let mut buffer = TextBuffer::new(&stop);
        assert!(!buffer.push(b"one\nE"));
        assert_eq!(buffer.take(false), "one");
        assert!(!buffer.push(b"x"));
        assert_eq!(buffer.take(false), "\nEx");
        assert!(buffer.push(b"y\nEND z"));
        assert_eq!(buffer.take(true), "y");
    }
}
