//! One request, on the model's thread: what is asked of the model and what its answer becomes.

use std::sync::Arc;

use decanus_backend::{BackendError, Delta, FinishReason};
use decanus_chat::{Message, Role, ToolDefinition, Usage};
use serde_json::{Value, json};

use crate::choose::{Allowed, choose};
use crate::engine::generate::{Picker, Sampling, generate};
use crate::engine::session::{Session, Slot};
use crate::messages::{Calls, convert};
use crate::native::grammar::{Grammar, Strings};
use crate::native::{Form, Scanner, compile, tools_for_template};
use crate::settings::Settings;
use crate::state::Outstanding;
use crate::template::{ChatTemplate, one_line};

/// What the model's thread needs to know of a request.
#[derive(Clone, Debug)]
pub struct Request {
    /// The conversation.
    pub messages: Vec<Message>,
    /// The tools that may be called; empty when none may.
    pub tools: Vec<ToolDefinition>,
    /// Which of them.
    pub allowed: Allowed,
    /// Parameters.
    pub settings: Settings,
    /// Whether the model may be trusted with telling what came of a call.
    pub trusted: bool,
    /// Whether to tell how choices were made.
    pub explain: bool,
}

/// Where deltas go; false when nobody listens any more.
pub type Emit<'e> = dyn FnMut(Delta) -> bool + 'e;

impl Request {
    /// Answers.
    ///
    /// # Errors
    /// Those of rendering and computing.
    pub fn answer(&self, session: &mut Session<'_>, emit: &mut Emit<'_>) -> Result<(), BackendError> {
        session.configure(self.settings.context);
        session.start_count();
        let template = session.template()?;
        if template.has_tools() && !self.tools.is_empty() {
            return self.answer_natively(session, &template, emit);
        }
        // A model that is told what a call gave answers; asked again, a small one would call again.
        if !self.tools.is_empty()
            && Outstanding::of(&self.messages).is_empty()
            && let Some(request) = self.last_question()
            && self.call_by_choice(session, &template, request, emit)?
        {
            return Ok(());
        }
        let prompt = self.prompt(session, &template)?;
        self.write(session, &prompt, &self.settings.sampling, emit)
    }

    /// What would be given to the model.
    ///
    /// # Errors
    /// Those of rendering.
    pub fn rendered(&self, session: &mut Session<'_>) -> Result<String, BackendError> {
        let template = session.template()?;
        if template.has_tools() || self.tools.is_empty() || !Outstanding::of(&self.messages).is_empty() {
            return self.prompt(session, &template);
        }
        let mut messages = crate::choose::prompt::choice(&self.tools);
        messages.push(json!({"role": "user", "content": self.last_question().unwrap_or_default()}));
        Ok(template.render(&messages, &[])? + "{\"name\": \"")
    }

    fn last_question(&self) -> Option<&str> {
        self.messages
            .iter()
            .rev()
            .find(|m| m.role == Role::User)
            .map(|m| m.content.as_str())
    }

    fn prompt(&self, session: &Session<'_>, template: &ChatTemplate) -> Result<String, BackendError> {
        let protect = |text: &str| session.protect(text);
        if template.has_tools() {
            let messages = convert(&self.messages, Calls::Native, protect);
            return template.render(&messages, &tools_for_template(&self.tools));
        }
        let calls = if self.trusted { Calls::InWords } else { Calls::LeftOut };
        template.render(&convert(&self.messages, calls, protect), &[])
    }

    /// Lets the model choose a tool. False when it chose none, and an answer in words is due.
    fn call_by_choice(
        &self,
        session: &mut Session<'_>,
        template: &Arc<ChatTemplate>,
        request: &str,
        emit: &mut Emit<'_>,
    ) -> Result<bool, BackendError> {
        let choice = choose(session, template, &self.tools, request, self.allowed)?;
        if self.explain {
            emit(Delta::Explain(choice.explain));
        }
        let Some((index, arguments)) = choice.call else {
            return Ok(false);
        };
        let Some(tool) = self.tools.get(index) else {
            return Ok(false);
        };
        let arguments = one_line(&Value::Object(arguments));
        let count = session.count();
        let written = session.tokenize(&arguments).len() as u64;
        emit(Delta::Call {
            index: Some(0),
            id: None,
            name: Some(tool.name.clone()),
            arguments,
        });
        emit(Delta::Usage(usage(
            count.computed + count.reused,
            written,
            count.reused,
        )));
        emit(Delta::Finish(FinishReason::ToolCalls));
        Ok(true)
    }

    /// Plain text.
    fn write(
        &self,
        session: &mut Session<'_>,
        prompt: &str,
        sampling: &Sampling,
        emit: &mut Emit<'_>,
    ) -> Result<(), BackendError> {
        let tokens = session.tokenize_prompt(prompt);
        let reused = session.prefill(Slot::Chat, &tokens, sampling.max_tokens)?;
        let mut picker = Picker::new(sampling);
        if let Some(schema) = &self.settings.format {
            let mut grammar = Grammar::new(schema, Strings::Free);
            let root = grammar.schema(schema);
            picker.constrain(Some(compile(session.model(), &grammar.finish(&root))?));
        }
        let done = generate(session, Slot::Chat, sampling, &mut picker, |_, piece, _| {
            Ok(emit(Delta::Text(piece.to_owned())))
        })?;
        emit(Delta::Usage(usage(tokens.len() as u64, done.tokens, reused as u64)));
        emit(Delta::Finish(done.finish));
        Ok(())
    }

    /// A model whose template knows tools.
    fn answer_natively(
        &self,
        session: &mut Session<'_>,
        template: &ChatTemplate,
        emit: &mut Emit<'_>,
    ) -> Result<(), BackendError> {
        let form = Form::of(template.source());
        let mut prompt = self.prompt(session, template)?;
        let tools = match self.allowed {
            Allowed::Only(index) => self.tools.get(index..=index).unwrap_or_default(),
            _ => &self.tools,
        };
        let forced = self.allowed != Allowed::Any && Outstanding::of(&self.messages).is_empty();
        let mut scanner = Scanner::new(form, forced);
        let mut sampling = self.settings.sampling.clone();
        sampling.show = form.control_tokens();
        let mut picker = Picker::new(&sampling);
        if forced {
            prompt.push_str(form.opening());
            if let Some(grammar) = form.grammar(tools, scanner.written()) {
                picker.constrain(Some(compile(session.model(), &grammar)?));
            }
        }
        let tokens = session.tokenize_prompt(&prompt);
        let reused = session.prefill(Slot::Chat, &tokens, sampling.max_tokens)?;
        let done = generate(session, Slot::Chat, &sampling, &mut picker, |session, piece, picker| {
            let step = scanner.push(piece);
            if step.closed {
                picker.constrain(None);
            }
            if step.opened
                && let Some(grammar) = form.grammar(tools, scanner.written())
            {
                picker.constrain(Some(compile(session.model(), &grammar)?));
            }
            Ok(step.text.is_empty() || emit(Delta::Text(step.text)))
        })?;
        let rest = scanner.finish();
        if !rest.is_empty() {
            emit(Delta::Text(rest));
        }
        let calls = std::mem::take(&mut scanner.calls);
        let finish = if calls.is_empty() {
            done.finish
        } else {
            FinishReason::ToolCalls
        };
        for (index, call) in (0..).zip(calls) {
            emit(Delta::Call {
                index: Some(index),
                id: None,
                name: Some(call.name),
                arguments: call.arguments,
            });
        }
        emit(Delta::Usage(usage(tokens.len() as u64, done.tokens, reused as u64)));
        emit(Delta::Finish(finish));
        Ok(())
    }
}

fn usage(prompt: u64, completion: u64, cached: u64) -> Usage {
    Usage {
        pt: Some(prompt),
        ct: Some(completion),
        tt: Some(prompt + completion),
        cct: Some(cached),
        ..Usage::default()
    }
}
