//! From text to tokens and back.

use std::sync::Arc;

use decanus_backend::BackendError;
use llama_cpp_2::token::LlamaToken;

use super::session::Session;
use crate::template::{CHATML, ChatTemplate};

/// Breaks up what only looks like a control token. It is of a private area and stands in no text.
const BREAK: char = '\u{e000}';

impl Session<'_> {
    /// The model's chat template, ChatML for a model without one; or another one that is given.
    ///
    /// # Errors
    /// When it can't be read.
    pub fn template(&mut self, given: Option<&str>) -> Result<Arc<ChatTemplate>, BackendError> {
        let key = given.unwrap_or_default();
        if let Some(template) = self.templates.get(key) {
            return Ok(template.clone());
        }
        let vocab = self.model.vocab();
        let text = |token: LlamaToken| {
            if token.0 < 0 {
                String::new()
            } else {
                vocab
                    .text(token)
                    .map(|t| t.to_string_lossy().into())
                    .unwrap_or_default()
            }
        };
        let own = self.model.meta_val_str("tokenizer.chat_template");
        let source = given.or(own.as_deref().ok()).filter(|s| !s.trim().is_empty());
        let source = source.unwrap_or(CHATML);
        let template = Arc::new(ChatTemplate::new(source, &text(vocab.bos()), &text(vocab.eos()))?);
        if self.controls.is_empty() {
            self.controls = (0..vocab.n_tokens())
                .map(LlamaToken)
                .filter(|t| vocab.is_control(*t))
                .map(text)
                .filter(|t| t.chars().count() > 1)
                .collect();
        }
        self.templates.insert(key.to_owned(), template.clone());
        Ok(template)
    }

    /// The text with the names of control tokens broken up, so that a template that contains it renders to tokens in
    /// which they are what they are in the text: letters.
    pub fn protect(&self, text: &str) -> String {
        let mut text = text.replace(BREAK, "");
        for control in &self.controls {
            if text.contains(control.as_str()) {
                let mut broken = control.clone();
                broken.insert(control.chars().next().map_or(0, char::len_utf8), BREAK);
                text = text.replace(control.as_str(), &broken);
            }
        }
        text
    }

    /// The tokens of a rendered template. The names of control tokens are read as such, unless they are
    /// [protected](Session::protect).
    pub fn tokenize(&self, text: &str) -> Vec<LlamaToken> {
        let vocab = self.model.vocab();
        text.split(BREAK)
            .flat_map(|part| vocab.tokenize(part.as_bytes(), false, true))
            .collect()
    }

    /// The tokens of a whole prompt: a first token that the model wants and its template does not write is added.
    pub fn tokenize_prompt(&self, text: &str) -> Vec<LlamaToken> {
        let mut tokens = self.tokenize(text);
        let vocab = self.model.vocab();
        if vocab.should_add_bos() && tokens.first() != Some(&vocab.bos()) {
            tokens.insert(0, vocab.bos());
        }
        tokens
    }

    /// The bytes of a token; control tokens have none.
    pub fn piece(&self, token: LlamaToken) -> Vec<u8> {
        self.model.vocab().token_to_piece(token, false, None)
    }

    /// Whether a token is the control token of this name.
    pub fn is_named(&self, token: LlamaToken, name: &str) -> bool {
        self.model
            .vocab()
            .text(token)
            .is_some_and(|t| t.to_bytes() == name.as_bytes())
    }
}
