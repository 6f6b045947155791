//! One question, answered.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use decanus_backend::profile::Prices;
use decanus_backend::{
    CallCx, Collector, Conversation, Delta, FinishReason, Profile, RawAnswer, RawLog, Response, View,
};
use decanus_chat::strategy::{Window, estimate_tokens};
use decanus_chat::{
    Effect, FunctionCall, FunctionCallOutput, Message, Meta, ProviderParts, Role, StoreError, ToolDefinition,
    Transcript, Usage, Version,
};
use decanus_tool::{Dispatcher, Event, Finished, Repetition, Run, ToolErrorClass, ToolRegistry};
use futures::StreamExt;
use serde_json::{Map, Value};

use crate::answer::{Format, json_of};
use crate::error::AgentError;
use crate::media::with_media;

/// What is asked, of whom, with what.
#[derive(Clone)]
pub struct Request {
    /// The conversation so far: system, user, assistant, calls and outputs.
    pub messages: Vec<Message>,
    /// The question, stored as a user message; none to go on with what is there.
    pub question: Option<String>,
    /// The tokens that the chat has come to before this run (see [`decanus_chat::meta::totals`]).
    pub totals: Usage,
    /// Request parameters over those of the endpoint.
    pub parameters: Map<String, Value>,
    /// `auto`, `none`, `required` or a tool's name; for the first request only.
    pub tool_choice: Option<String>,
    /// What tokens cost.
    pub prices: Option<Prices>,
    /// Whether the provider counts cached tokens beside those of the prompt.
    pub excludes_cached: bool,
    /// What the answer must be.
    pub format: Option<Format>,
    /// What the model sees of the conversation.
    pub window: Window,
    /// Whether to ask for streams.
    pub stream: bool,
    /// Whether to tell how choices are made.
    pub explain: bool,
}

impl Default for Request {
    fn default() -> Self {
        Self {
            messages: Vec::new(),
            question: None,
            totals: Usage::default(),
            parameters: Map::new(),
            tool_choice: None,
            prices: None,
            excludes_cached: false,
            format: None,
            window: Window::default(),
            stream: true,
            explain: false,
        }
    }
}

/// What a run came to, also when it failed.
#[derive(Debug, Default)]
pub struct Outcome {
    /// The final text, or as much of it as arrived.
    pub answer: String,
    /// The messages that the run added, metas included, in the order in which they were stored.
    pub messages: Vec<Message>,
    /// Tokens of all requests of the run.
    pub usage: Usage,
    /// Requests made.
    pub rounds: u32,
    /// Jobs behind tool results, in order of their first use.
    pub jobs: Vec<String>,
    /// Whether a template stated the answer.
    pub stated_by_template: bool,
    /// What cut the last answer, if anything did: `length` or `content_filter`.
    pub cut: Option<&'static str>,
    /// There was nothing to do: no question, no pending call, no message that asks for an answer.
    pub idle: bool,
    /// Why the run failed, if it did.
    pub error: Option<AgentError>,
    /// The bytes of the last answer, when the run failed.
    pub raw: Option<RawAnswer>,
    /// Where what there was of a failed request is kept, if it is.
    pub snapshot: Option<std::path::PathBuf>,
}

/// A model with its tools.
pub struct Agent {
    conversation: Box<dyn Conversation>,
    registry: Arc<ToolRegistry>,
    definitions: Vec<ToolDefinition>,
    /// Tokens of the definitions, as estimated.
    overhead: u64,
    dispatcher: Dispatcher,
    /// The model's name, for messages.
    model: String,
}

/// What one call of `Agent::run` carries along.
struct Turn<'a> {
    run: &'a Run,
    store: &'a mut dyn Transcript,
    version: Version,
    /// The conversation so far, but for what is not yet taken up of what was added.
    messages: Vec<Message>,
    /// How many of the run's messages are taken up.
    taken: usize,
    ids: HashSet<String>,
    /// The backend that answers.
    backend: String,
    /// Tokens of the whole chat.
    totals: Usage,
    raw: RawLog,
    outcome: Outcome,
}

impl Agent {
    /// An agent that asks this conversation and calls these tools.
    pub fn new(conversation: Box<dyn Conversation>, registry: Arc<ToolRegistry>, model: impl Into<String>) -> Self {
        let definitions = registry.definitions();
        Self {
            conversation,
            overhead: overhead(&definitions),
            definitions,
            dispatcher: Dispatcher::new(registry.clone()),
            registry,
            model: model.into(),
        }
    }

    /// The endpoint that was asked last, where there are several.
    pub fn endpoint(&self) -> Option<&Profile> {
        self.conversation.endpoint()
    }

    /// What the first request would be, within this many tokens, without sending it. The question is not stored.
    ///
    /// # Errors
    /// Those of encoding; a budget that can't be kept.
    pub fn dry_run(&mut self, request: &Request, budget: Option<u64>) -> Result<decanus_backend::DryRun, AgentError> {
        let stream = request.stream;
        Ok(self.with_view(request, budget, |conversation, view| conversation.dry_run(view, stream))??)
    }

    /// Gives what the first request would be made from to somebody who looks at it.
    ///
    /// # Errors
    /// A budget that can't be kept.
    pub fn with_view<T>(
        &mut self,
        request: &Request,
        budget: Option<u64>,
        look: impl FnOnce(&mut dyn Conversation, &View<'_>) -> T,
    ) -> Result<T, AgentError> {
        let mut messages = request.messages.clone();
        order_outputs(&mut messages);
        messages.extend(request.question.clone().map(Message::user));
        let messages = request.window.view(&messages, budget, self.overhead)?;
        let messages = with_media(messages, self.conversation.backend());
        let view = View {
            messages: &messages,
            tools: &self.definitions,
            parameters: &request.parameters,
            tool_choice: request.tool_choice.as_deref(),
        };
        Ok(look(&mut *self.conversation, &view))
    }

    /// Answers. Everything that happens is appended to `store`, which holds `request.messages` already. Calls that
    /// were left without an output come first: they are made again when that is safe, and answered with the truth
    /// otherwise.
    pub async fn run(&mut self, request: Request, store: &mut dyn Transcript, run: &Run) -> Outcome {
        let ids = request
            .messages
            .iter()
            .filter_map(|m| FunctionCall::from_message(m).ok())
            .map(|c| c.id)
            .collect();
        let mut turn = Turn {
            run,
            version: store.version(),
            store,
            messages: request.messages.clone(),
            taken: 0,
            ids,
            backend: self.conversation.backend().to_owned(),
            totals: request.totals,
            raw: RawLog::default(),
            outcome: Outcome::default(),
        };
        let result = self.steps(&request, &mut turn).await;
        let mut outcome = turn.outcome;
        outcome.rounds = run.rounds();
        outcome.error = result.err();
        outcome.raw = turn.raw.take().filter(|_| outcome.error.is_some());
        outcome
    }

    async fn steps(&mut self, request: &Request, turn: &mut Turn<'_>) -> Result<(), AgentError> {
        order_outputs(&mut turn.messages);
        let pending = decanus_chat::plan::pending(&turn.messages);
        self.resume(&pending, turn).await?;
        turn.take_up();
        if let Some(question) = &request.question {
            turn.store(&Meta::new(), vec![Message::user(question.clone())])?;
        } else if !turn.asks_for_an_answer() {
            turn.outcome.idle = true;
            return Ok(());
        }
        let mut repetition = Repetition::default();
        // The text of a turn in which the provider made a pause.
        let mut begun = String::new();
        let mut empty_before = false;
        let mut repaired = false;
        let mut tool_choice = request.tool_choice.as_deref();
        loop {
            let round = turn.run.charge_round()?;
            turn.run.emit(Event::Round(round));
            let (response, failed) = self.complete(request, tool_choice, turn).await;
            // It may be another one than before.
            self.conversation.backend().clone_into(&mut turn.backend);
            turn.outcome.answer = format!("{begun}{}", response.text);
            turn.outcome.usage += response.usage;
            let (prices, excluded) = match self.conversation.endpoint() {
                Some(profile) => (profile.prices, profile.excludes_cached()),
                None => (request.prices, request.excludes_cached),
            };
            let cost = match (prices, response.stored) {
                (Some(prices), false) => prices.cost(&response.usage, excluded),
                _ => 0.0,
            };
            turn.run.charge_usage(response.usage.tt.unwrap_or(0), cost);
            if let Some(error) = failed {
                if matches!(error, AgentError::Interrupted) {
                    turn.store_interrupted(response)?;
                }
                return Err(error);
            }
            if turn.run.limits().tokens.is_some() && response.usage.tt.is_none() {
                let text = format!(
                    "{} does not say how many tokens it used, so limits.tokens can't hold",
                    self.model
                );
                turn.run.emit(Event::Warning(text));
            }
            tool_choice = None;
            if response.finish == Some(FinishReason::Paused) && response.calls.is_empty() {
                begun.clone_from(&turn.outcome.answer);
                turn.store_response(response)?;
                continue;
            }
            if response.calls.is_empty() && response.text.trim().is_empty() {
                // It was a request all the same, and its tokens count.
                turn.store_response(response)?;
                if std::mem::replace(&mut empty_before, true) {
                    return Err(AgentError::Empty(self.model.clone()));
                }
                turn.run.emit(Event::Warning(format!(
                    "{} gave an empty answer; asking once more",
                    self.model
                )));
                continue;
            }
            empty_before = false;
            let calls = turn.store_response(response)?;
            begun.clear();
            if calls.is_empty() {
                match self.check(request, turn) {
                    Ok(()) => return Ok(()),
                    Err(why) if !std::mem::replace(&mut repaired, true) => {
                        self.conversation.reject();
                        turn.run.emit(Event::Warning(format!(
                            "the answer does not fit the format ({why}); asking once more"
                        )));
                        turn.store(&Meta::new(), vec![Message::user(repair(&why, request.format.as_ref()))])?;
                        continue;
                    }
                    Err(why) => {
                        self.conversation.reject();
                        return Err(AgentError::Schema(why));
                    }
                }
            }
            if let Some(reason) = turn.outcome.cut {
                // What looks whole may be half of what was meant.
                for call in &calls {
                    turn.answer_unrun(call, unrun(call, reason))?;
                }
                continue;
            }
            let limits = turn.run.limits().clone();
            let count = repetition.count(&calls);
            if count > limits.identical_calls {
                for call in &calls {
                    turn.answer_unrun(call, Repetition::notice(call, count))?;
                }
                if count >= limits.identical_end {
                    let name = calls[0].name.clone();
                    return Err(decanus_tool::LimitReached::IdenticalCalls { name, count }.into());
                }
            } else {
                self.dispatch(&calls, turn).await?;
            }
            if turn.run.cancel().is_cancelled() {
                return Err(AgentError::Interrupted);
            }
        }
    }

    /// Whether the answer has the form that was asked for; if so, nothing but its JSON is the answer.
    fn check(&self, request: &Request, turn: &mut Turn<'_>) -> Result<(), String> {
        let Some(format) = &request.format else {
            return Ok(());
        };
        format.read(&turn.outcome.answer)?;
        turn.outcome.answer = json_of(&turn.outcome.answer).to_owned();
        Ok(())
    }

    /// One request: the response, as far as it came, and why it came no further.
    async fn complete(
        &mut self,
        request: &Request,
        tool_choice: Option<&str>,
        turn: &mut Turn<'_>,
    ) -> (Response, Option<AgentError>) {
        // What an earlier request brought is not the answer to this one.
        turn.raw.take();
        turn.take_up();
        let budget = turn.run.limits().context_tokens;
        let messages = match request.window.view(&turn.messages, budget, self.overhead) {
            Ok(messages) => with_media(messages, self.conversation.backend()),
            Err(error) => return (Response::default(), Some(error.into())),
        };
        let view = View {
            messages: &messages,
            tools: &self.definitions,
            parameters: &request.parameters,
            tool_choice,
        };
        let cx = CallCx {
            cancel: turn.run.cancel().clone(),
            timeout: turn.run.limits().request_time,
            stream: request.stream,
            explain: request.explain,
            pass: None,
            raw: turn.raw.clone(),
        };
        let mut collector = Collector::new();
        let mut template = false;
        let mut stream = self.conversation.complete(&view, &cx);
        while let Some(delta) = stream.next().await {
            match delta {
                Ok(delta) => {
                    match &delta {
                        Delta::Inference { stored: true, .. } => turn.run.emit(Event::Cached),
                        Delta::StatedByTemplate => template = true,
                        Delta::Text(text) => turn.run.emit(Event::Text {
                            text: text.clone(),
                            template,
                        }),
                        Delta::Reasoning(text) => turn.run.emit(Event::Reasoning(text.clone())),
                        Delta::Warning(text) => turn.run.emit(Event::Warning(text.clone())),
                        Delta::Explain(value) => turn.run.emit(Event::Explain(value.clone())),
                        _ => {}
                    }
                    collector.push(&delta);
                }
                Err(error) => return (collector.finish(), Some(error.into())),
            }
        }
        let response = collector.finish();
        if !response.usage.is_empty() {
            turn.run.emit(Event::Usage(response.usage));
        }
        (response, None)
    }

    async fn dispatch(&self, calls: &[FunctionCall], turn: &mut Turn<'_>) -> Result<(), AgentError> {
        let mut failed = None;
        let run = turn.run;
        let mut sink = |finished: Finished| {
            if let Some(message) = &finished.fatal {
                let name = finished.output.name.clone();
                failed.get_or_insert(AgentError::Tool {
                    name,
                    message: message.clone(),
                });
            }
            // A store that fails must not keep the other calls from being told; the first error is the one reported.
            if let Err(error) = turn.store_output(finished.output) {
                failed.get_or_insert(error.into());
            }
        };
        self.dispatcher.dispatch(calls, run, &mut sink).await;
        let messages = turn.take_up();
        let answer = messages.iter().rposition(|m| m.role == Role::User).unwrap_or(0);
        order_outputs(&mut messages[answer..]);
        failed.map_or(Ok(()), Err)
    }

    /// Calls that were under way when an earlier run ended.
    async fn resume(&self, pending: &[FunctionCall], turn: &mut Turn<'_>) -> Result<(), AgentError> {
        let effect = |c: &FunctionCall| {
            self.registry
                .get(&c.name)
                .map_or(Effect::Unknown, |e| e.definition.effect)
        };
        let (again, lost): (Vec<_>, Vec<_>) = pending.iter().cloned().partition(|c| effect(c).is_repeatable());
        for call in lost {
            let output = FunctionCallOutput {
                id: call.id.clone(),
                name: call.name.clone(),
                content: "interrupted; whether it ran is unknown".into(),
                error: Some(ToolErrorClass::Interrupted.as_str().into()),
                timestamp: Some(decanus_chat::timestamp()),
                ..FunctionCallOutput::default()
            };
            turn.answer_unrun(&call, output)?;
        }
        if again.is_empty() {
            Ok(())
        } else {
            self.dispatch(&again, turn).await
        }
    }
}

impl Turn<'_> {
    /// Takes up what the run has added: the messages so far. Only when another request needs them, so that a long answer
    /// is not there twice.
    fn take_up(&mut self) -> &mut Vec<Message> {
        let added = &self.outcome.messages[self.taken..];
        self.messages
            .extend(added.iter().filter(|m| m.role != Role::Meta).cloned());
        self.taken = self.outcome.messages.len();
        &mut self.messages
    }

    fn asks_for_an_answer(&self) -> bool {
        self.messages
            .last()
            .is_some_and(|m| matches!(m.role, Role::User | Role::FunctionCallOutput))
    }

    fn store(&mut self, meta: &Meta, messages: Vec<Message>) -> Result<(), StoreError> {
        self.version = self.store.append(meta, &messages, self.version)?;
        if meta.pairs().next().is_some() {
            self.outcome.messages.push(meta.to_message());
        }
        self.outcome.messages.extend(messages);
        Ok(())
    }

    /// Stores an answer: its meta, the calls, then the text. Gives the calls with the ids under which they are stored,
    /// which no earlier call of the conversation has.
    fn store_response(&mut self, response: Response) -> Result<Vec<FunctionCall>, StoreError> {
        let mut meta = Meta::new();
        meta.set_usage(&response.usage);
        self.totals = meta.set_checkpoint(&self.totals, &response.usage);
        meta.set("timestamp", decanus_chat::timestamp());
        let new_id = || uuid::Uuid::new_v4().to_string();
        meta.set("inference_id", response.inference_id.unwrap_or_else(new_id));
        for (key, value) in [("model", &response.model), ("provider_response_id", &response.id)] {
            if let Some(value) = value {
                meta.set(key, value);
            }
        }
        if !response.reasoning.is_empty() {
            meta.set("reas", response.reasoning.replace('\n', " "));
        }
        if response.stated_by_template {
            meta.set("stated_by", "template");
        }
        let cut = match response.finish {
            Some(FinishReason::Length) => Some("length"),
            Some(FinishReason::ContentFilter) => Some("content_filter"),
            _ => None,
        };
        if let Some(cut) = cut {
            meta.set("finish", cut);
        }
        if response.finish == Some(FinishReason::Other("interrupted".into())) {
            meta.set("finish", "interrupted");
        }
        let mut calls = response.calls;
        for call in &mut calls {
            let base = call.id.clone();
            let mut n = 1;
            while !self.ids.insert(call.id.clone()) {
                n += 1;
                call.id = format!("{base}_{n}");
            }
        }
        let parts = ProviderParts {
            backend: self.backend.clone(),
            model: response.model.clone().unwrap_or_default(),
            parts: response.parts,
        };
        let mut messages: Vec<Message> = Vec::new();
        if !parts.parts.is_empty() {
            messages.push(parts.to_message());
        }
        messages.extend(calls.iter().map(FunctionCall::to_message));
        if !response.text.is_empty() {
            messages.push(Message::assistant(response.text));
        }
        self.store(&meta, messages)?;
        self.outcome.stated_by_template = response.stated_by_template;
        self.outcome.cut = cut;
        if let Some(cut) = cut.filter(|_| calls.is_empty()) {
            let by = if cut == "length" {
                "the model's output limit"
            } else {
                "the provider's content filter"
            };
            self.run.emit(Event::Warning(format!("the answer was cut by {by}")));
        }
        Ok(calls)
    }

    /// Stores what had come of an answer when the run was interrupted: its text. Calls that were not whole are not stored, and
    /// none was run.
    fn store_interrupted(&mut self, mut response: Response) -> Result<(), StoreError> {
        if response.text.trim().is_empty() {
            return Ok(());
        }
        response.calls.clear();
        response.parts.clear();
        response.finish = Some(FinishReason::Other("interrupted".into()));
        self.store_response(response).map(|_| ())
    }

    /// Answers a call that no tool is run for.
    fn answer_unrun(&mut self, call: &FunctionCall, output: FunctionCallOutput) -> Result<(), StoreError> {
        self.run.emit(Event::Call(call.clone()));
        self.run.emit(Event::Output(output.clone()));
        self.store_output(output)
    }

    fn store_output(&mut self, output: FunctionCallOutput) -> Result<(), StoreError> {
        if let Some(job) = output.job.clone().filter(|j| !self.outcome.jobs.contains(j)) {
            self.outcome.jobs.push(job);
        }
        self.store(&Meta::new(), vec![output.to_message()])?;
        Ok(())
    }
}

/// What the model is told of an answer that has not the right form.
fn repair(why: &str, format: Option<&Format>) -> String {
    // Some servers pass the schema over, so that the model has never seen it.
    let schema = match format {
        Some(Format::Schema(schema)) => format!(" by this JSON schema: {schema}"),
        _ => String::new(),
    };
    format!("Your answer does not have the required form: {why}. Answer again, with the JSON alone{schema}")
}

/// Tokens that tool definitions take in a request, as estimated.
pub fn overhead(definitions: &[ToolDefinition]) -> u64 {
    let tokens = |d: &ToolDefinition| {
        [&d.name, &d.description, &d.wire_parameters().to_string()]
            .into_iter()
            .map(|text| estimate_tokens(text))
            .sum::<u64>()
    };
    definitions.iter().map(tokens).sum()
}

/// The output of a call in an answer that was cut.
fn unrun(call: &FunctionCall, reason: &str) -> FunctionCallOutput {
    FunctionCallOutput {
        id: call.id.clone(),
        name: call.name.clone(),
        content: format!("This call was not run: the answer that holds it was cut ({reason})."),
        error: Some(ToolErrorClass::Tool.as_str().into()),
        timestamp: Some(decanus_chat::timestamp()),
        ..FunctionCallOutput::default()
    }
}

/// Puts outputs into the order of their calls: they are stored as they come, and a request must not depend on which
/// tool was faster. Outputs follow the calls (and the text) of one answer; each such block is sorted by itself.
fn order_outputs(messages: &mut [Message]) {
    let mut calls: HashMap<String, usize> = HashMap::new();
    let mut at = 0;
    while at < messages.len() {
        if messages[at].role != Role::FunctionCallOutput {
            if let Ok(call) = FunctionCall::from_message(&messages[at]) {
                calls.insert(call.id, at);
            }
            at += 1;
            continue;
        }
        let outputs = messages[at..]
            .iter()
            .take_while(|m| m.role == Role::FunctionCallOutput)
            .count();
        messages[at..at + outputs].sort_by_cached_key(|m| {
            let id = FunctionCallOutput::from_message(m).map(|o| o.id).unwrap_or_default();
            calls.get(&id).copied().unwrap_or(usize::MAX)
        });
        at += outputs;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outputs_are_put_in_the_order_of_their_calls() {
        let call = |id: &str| Message::new(Role::FunctionCall, format!("{{\"name\":\"f\",\"id\":\"{id}\"}}"));
        let output = |id: &str| {
            Message::new(
                Role::FunctionCallOutput,
                format!("{{\"content\":\"\",\"id\":\"{id}\"}}"),
            )
        };
        let mut messages = vec![
            call("a"),
            call("b"),
            Message::assistant("x"),
            output("b"),
            output("a"),
            call("c"),
            output("c"),
        ];
        order_outputs(&mut messages);
        let expected = [
            call("a"),
            call("b"),
            Message::assistant("x"),
            output("a"),
            output("b"),
            call("c"),
            output("c"),
        ];
        assert_eq!(messages, expected);
    }
}
