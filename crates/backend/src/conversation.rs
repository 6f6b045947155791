//! The traits that every provider implements, and what flows through them.

use std::sync::Arc;
use std::time::Duration;

use decanus_chat::{Message, ToolDefinition, Usage};
use futures::stream::BoxStream;
use serde_json::{Map, Value};
use tokio_util::sync::CancellationToken;

use crate::count::Counter;
use crate::embed::Embedder;
use crate::error::BackendError;
use crate::image::Painter;
use crate::limits::Pass;
use crate::profile::Profile;
use crate::raw::RawLog;

/// A provider. One per kind; endpoints differ in their [`Profile`].
pub trait Backend: Send + Sync {
    /// The name that endpoint files give as `backend:`.
    fn name(&self) -> &str;

    /// Begins a conversation with an endpoint. Nothing is sent yet.
    ///
    /// # Errors
    /// When the profile lacks what this provider needs, or its model can't be had.
    fn open(&self, profile: Arc<Profile>) -> Result<Box<dyn Conversation>, BackendError>;

    /// What makes embeddings at an endpoint. Nothing is sent yet.
    ///
    /// # Errors
    /// When this provider has none, or the profile lacks what it needs.
    fn embedder(&self, profile: Arc<Profile>) -> Result<Box<dyn Embedder>, BackendError> {
        Err(BackendError::Config(format!(
            "endpoint `{}`: the backend {} has no embeddings",
            profile.name,
            self.name()
        )))
    }

    /// What counts the tokens of requests to an endpoint as the provider does. None: this provider does not count.
    ///
    /// # Errors
    /// When the profile lacks what it needs.
    fn counter(&self, _profile: Arc<Profile>) -> Result<Option<Box<dyn Counter>>, BackendError> {
        Ok(None)
    }

    /// What makes pictures at an endpoint. Nothing is sent yet.
    ///
    /// # Errors
    /// When this provider makes none, or the profile lacks what it needs.
    fn painter(&self, profile: Arc<Profile>) -> Result<Box<dyn Painter>, BackendError> {
        Err(BackendError::Config(format!(
            "endpoint `{}`: the backend {} makes no pictures",
            profile.name,
            self.name()
        )))
    }
}

/// A conversation with one endpoint. It may keep what it has encoded or computed of the messages so far; it can always
/// be rebuilt from a [`View`].
pub trait Conversation: Send {
    /// The name of the backend; opaque parts are stored under it. Where there are several, of the one that was asked last.
    fn backend(&self) -> &str;

    /// The endpoint that was asked last, where there are several.
    fn endpoint(&self) -> Option<&Profile> {
        None
    }

    /// Asks for the next answer. The stream ends after [`Delta::Finish`], or with an error. Dropping it stops the
    /// request; so does `cx.cancel`, with [`BackendError::Cancelled`].
    fn complete<'a>(&'a mut self, view: &'a View<'a>, cx: &'a CallCx) -> BoxStream<'a, Result<Delta, BackendError>>;

    /// The last answer was of no use: whoever keeps answers forgets it.
    fn reject(&mut self) {}

    /// What `complete` would send, byte for byte, without sending anything.
    ///
    /// # Errors
    /// Those of encoding.
    fn dry_run(&mut self, view: &View<'_>, stream: bool) -> Result<DryRun, BackendError>;
}

/// A request that was not sent.
#[derive(Debug, Clone, PartialEq)]
pub struct DryRun {
    /// Where it would go: `POST http://…` or the name of a local model.
    pub target: String,
    /// The body: JSON for HTTP providers, the rendered prompt for a local model.
    pub body: String,
}

/// What the model is to see: the conversation's messages (system, user, assistant, calls and outputs; nothing else),
/// the tools, and what else goes into the request.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    /// The messages, in order.
    pub messages: &'a [Message],
    /// The tools on offer, in the order in which they are sent.
    pub tools: &'a [ToolDefinition],
    /// Request parameters (`temperature`, …) that override those of the endpoint.
    pub parameters: &'a Map<String, Value>,
    /// `auto`, `none`, `required` or the name of a tool.
    pub tool_choice: Option<&'a str>,
}

/// What one request needs to know of the run it belongs to.
#[derive(Clone, Debug)]
pub struct CallCx {
    /// Ends the request.
    pub cancel: CancellationToken,
    /// Time for the whole request, retries included; shorter than or equal to the endpoint's own.
    pub timeout: Duration,
    /// Whether to ask for a stream.
    pub stream: bool,
    /// Whether [`Delta::Explain`] is wanted.
    pub explain: bool,
    /// The request's place at its endpoint, where that has limits.
    pub pass: Option<Pass>,
    /// Where the bytes of the answer are kept, for who looks into a failure.
    pub raw: RawLog,
}

/// A piece of an answer.
#[derive(Clone, Debug, PartialEq)]
pub enum Delta {
    /// Text of the answer.
    Text(String),
    /// Text of the model's reasoning.
    Reasoning(String),
    /// A tool call, or more of one. `index` tells calls apart; `None` continues the last call, or begins a new one
    /// when `id` is new. Providers that give whole calls give one such delta each.
    Call {
        /// Position of the call, where the provider gives it.
        index: Option<u64>,
        /// The call's id, where the provider gives it.
        id: Option<String>,
        /// The tool's name, on the first delta of a call.
        name: Option<String>,
        /// More of the arguments' JSON text.
        arguments: String,
    },
    /// The id of the request that is answered, where somebody else than the loop decides it; first of all.
    Inference {
        /// A UUID.
        id: String,
        /// Whether the answer was stored, and nothing was sent.
        stored: bool,
    },
    /// A part of the answer that only this backend understands and wants to see again (signed thinking, a reasoning item).
    Part(Value),
    /// Token counts of the request; a later one replaces an earlier one.
    Usage(Usage),
    /// The provider's id of the response.
    ResponseId(String),
    /// The model that answered, as the provider names it.
    Model(String),
    /// How a choice was made, for `--explain`.
    Explain(Value),
    /// What the user should know of this request.
    Warning(String),
    /// Another endpoint answers than the one that the request was made for: its name. Before anything of the answer.
    Endpoint(String),
    /// The text was not written by the model but states a tool's result by a fixed template.
    StatedByTemplate,
    /// The answer is complete.
    Finish(FinishReason),
}

/// Why an answer ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// The model was done.
    Stop,
    /// The model waits for tool results.
    ToolCalls,
    /// The provider made a pause in a long turn of its own tools: it goes on when it is sent back what it said.
    Paused,
    /// The output limit cut it.
    Length,
    /// The provider's filter cut it.
    ContentFilter,
    /// A reason that we do not know, in the provider's word.
    Other(String),
}
