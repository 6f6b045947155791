//! One request, on the model's thread: what is asked of the model and what its answer becomes.

use std::sync::Arc;

use decanus_backend::{BackendError, Delta, FinishReason};
use decanus_chat::{Message, Role, ToolDefinition, Usage};
use serde_json::{Map, Value, json};

use crate::choose::{Allowed, choose};
use crate::engine::generate::{Picker, generate};
use crate::engine::session::{Session, Slot};
use crate::messages::{Calls, THOUGHTS, convert};
use crate::native::grammar::{Grammar, Strings};
use crate::native::{Form, Scanner, compile, tools_for_template};
use crate::reasoning::{self, Parts, Splitter};
use crate::settings::{Reasoning, Settings};
use crate::state::Outstanding;
use crate::template::{ChatTemplate, one_line, thinking};

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
        session.start_count();
        let template = self.template(session)?;
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
        self.write(session, &prompt, &template, emit)
    }

    /// What would be given to the model.
    ///
    /// # Errors
    /// Those of rendering.
    pub fn rendered(&self, session: &mut Session<'_>) -> Result<String, BackendError> {
        let template = self.template(session)?;
        if template.has_tools() || self.tools.is_empty() || !Outstanding::of(&self.messages).is_empty() {
            return self.prompt(session, &template);
        }
        let mut messages = crate::choose::prompt::choice(&self.tools);
        messages.push(json!({"role": "user", "content": self.last_question().unwrap_or_default()}));
        Ok(template.render_without_thoughts(&messages, &[], &Map::new())? + "{\"name\": \"")
    }

    fn template(&self, session: &mut Session<'_>) -> Result<Arc<ChatTemplate>, BackendError> {
        session.template(self.settings.chat_template.as_deref())
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
        let calls = match template.has_tools() {
            true => Calls::Native,
            false if self.trusted => Calls::InWords,
            false => Calls::LeftOut,
        };
        let messages = convert(&self.messages, calls, protect);
        let tools = match template.has_tools() {
            true => tools_for_template(&self.tools),
            false => Vec::new(),
        };
        let mut variables = match &self.settings.reasoning {
            None | Some(Reasoning::Off) => Map::new(),
            Some(Reasoning::On) => thinking(true),
            Some(Reasoning::Effort(effort)) => {
                let mut variables = thinking(true);
                variables.insert("reasoning_effort".into(), effort.as_str().into());
                variables
            }
        };
        variables.extend(self.settings.variables.clone());
        match &self.settings.reasoning {
            Some(Reasoning::Off) => template.render_without_thoughts(&messages, &tools, &variables),
            _ => template.render_with(&messages, &tools, &variables),
        }
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
        template: &ChatTemplate,
        emit: &mut Emit<'_>,
    ) -> Result<(), BackendError> {
        let mut out = Out::new(template.reasoning(), prompt, emit);
        let mut sampling = self.settings.sampling.clone();
        sampling.show = template.reasoning().control_tokens();
        let tokens = session.tokenize_prompt(prompt);
        let reused = session.prefill(Slot::Chat, &tokens, sampling.max_tokens)?;
        let mut picker = Picker::new(&sampling, session.model().n_vocab());
        let grammar = self.settings.format.as_ref().map(|schema| {
            let mut grammar = Grammar::new(schema, Strings::Free);
            let root = grammar.schema(schema);
            grammar.finish(&root)
        });
        // Thoughts that the prompt has opened are free; what is behind them is not.
        let mut due = grammar.as_deref();
        if let Some(grammar) = due.filter(|_| !out.is_inside()) {
            picker.constrain(Some(compile(session.model(), grammar)?));
            due = None;
        }
        let done = generate(session, Slot::Chat, &sampling, &mut picker, |session, piece, picker| {
            let text = out.split(piece);
            if let Some(grammar) = due.filter(|_| !out.is_inside()) {
                picker.constrain(Some(compile(session.model(), grammar)?));
                due = None;
            }
            Ok(out.text(text))
        })?;
        let rest = out.finish(&done.finish);
        out.text(rest);
        out.end(session, tokens.len() as u64, done.tokens, reused as u64, done.finish);
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
        sampling.show.extend(template.reasoning().control_tokens());
        let mut picker = Picker::new(&sampling, session.model().n_vocab());
        if forced {
            prompt.push_str(&template.reasoning().without(&prompt, false));
            prompt.push_str(form.opening());
            if let Some(grammar) = form.grammar(tools, scanner.written()) {
                picker.constrain(Some(compile(session.model(), &grammar)?));
            }
        }
        let mut out = Out::new(template.reasoning(), &prompt, emit);
        let tokens = session.tokenize_prompt(&prompt);
        let reused = session.prefill(Slot::Chat, &tokens, sampling.max_tokens)?;
        let done = generate(session, Slot::Chat, &sampling, &mut picker, |session, piece, picker| {
            let text = if forced { piece.to_owned() } else { out.split(piece) };
            if text.is_empty() {
                return Ok(out.text(text));
            }
            let step = scanner.push(&text);
            if step.closed {
                picker.constrain(None);
            }
            if step.opened
                && let Some(grammar) = form.grammar(tools, scanner.written())
            {
                picker.constrain(Some(compile(session.model(), &grammar)?));
            }
            Ok(out.text(step.text))
        })?;
        let rest = out.finish(&done.finish);
        let rest = scanner.push(&rest).text + &scanner.finish();
        out.text(rest);
        let calls = std::mem::take(&mut scanner.calls);
        let finish = if calls.is_empty() {
            done.finish
        } else {
            FinishReason::ToolCalls
        };
        let source = template.source();
        if !calls.is_empty() && (source.contains(THOUGHTS) || source.contains(".thinking")) {
            out.keep_thoughts();
        }
        for (index, call) in (0..).zip(calls) {
            (out.emit)(Delta::Call {
                index: Some(index),
                id: None,
                name: Some(call.name),
                arguments: call.arguments,
            });
        }
        out.end(session, tokens.len() as u64, done.tokens, reused as u64, finish);
        Ok(())
    }
}

/// Where an answer goes: its thoughts at once, its text after whoever looks for calls in it.
struct Out<'o, 'e> {
    splitter: Splitter,
    thoughts: String,
    heard: bool,
    emit: &'o mut Emit<'e>,
}

impl<'o, 'e> Out<'o, 'e> {
    fn new(form: reasoning::Form, prompt: &str, emit: &'o mut Emit<'e>) -> Self {
        Self {
            splitter: Splitter::new(form, form.is_opened_by(prompt)),
            thoughts: String::new(),
            heard: true,
            emit,
        }
    }

    fn is_inside(&self) -> bool {
        self.splitter.is_inside()
    }

    /// Takes a piece and gives what of it is text.
    fn split(&mut self, piece: &str) -> String {
        let parts = self.splitter.push(piece);
        self.think(parts)
    }

    /// The answer is over: text that was held back.
    fn finish(&mut self, finish: &FinishReason) -> String {
        let parts = self.splitter.finish();
        let text = self.think(parts);
        if self.is_inside() && *finish == FinishReason::Length {
            let words = "the answer ended while the model was still thinking; a larger `max_tokens` lets it go on, and \
                         `reasoning: off` lets it answer at once";
            self.send(Delta::Warning(words.into()));
        }
        text
    }

    fn think(&mut self, parts: Parts) -> String {
        if !parts.reasoning.is_empty() {
            self.thoughts.push_str(&parts.reasoning);
            self.send(Delta::Reasoning(parts.reasoning));
        }
        parts.text
    }

    /// Gives text on. False when nobody listens any more.
    fn text(&mut self, text: String) -> bool {
        if !text.is_empty() {
            self.send(Delta::Text(text));
        }
        self.heard
    }

    fn send(&mut self, delta: Delta) {
        self.heard = (self.emit)(delta) && self.heard;
    }

    /// Thoughts that led to calls are shown to the model again, with the calls.
    fn keep_thoughts(&mut self) {
        if !self.thoughts.is_empty() {
            let part = json!({THOUGHTS: self.thoughts});
            self.send(Delta::Part(part));
        }
    }

    fn end(mut self, session: &Session<'_>, prompt: u64, written: u64, reused: u64, finish: FinishReason) {
        let mut usage = usage(prompt, written, reused);
        if !self.thoughts.is_empty() {
            let thoughts = session.tokenize(&session.protect(&self.thoughts)).len() as u64;
            usage.rt = Some(thoughts.min(written));
        }
        self.send(Delta::Usage(usage));
        self.send(Delta::Finish(finish));
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
