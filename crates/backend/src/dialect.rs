//! The wire form of an HTTP provider: pure, without I/O.
//!
//! A body is head + turns + tail. The head holds what stays the same through a conversation (the model, the tools), each
//! turn is appended to the turns before it, and the tail holds what may differ from request to request. So adding a
//! turn never changes the bytes before it, and prompt caches hit.

use std::fmt::Write as _;
use std::sync::Arc;

use decanus_base::Secret;
use decanus_chat::{ToolDefinition, Usage};
use futures::future::BoxFuture;
use serde_json::{Map, Value};

use crate::conversation::{Delta, View};
use crate::count::CountApi;
use crate::embed::EmbeddingApi;
use crate::error::BackendError;
use crate::frames::Framer;
use crate::image::ImageApi;
use crate::profile::Profile;
use crate::sse::Event;
use crate::tool_names::ToolNames;
use crate::turns::Turn;

/// What a request is made from.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    /// The endpoint.
    pub profile: &'a Profile,
    /// Messages, tools and parameters.
    pub view: &'a View<'a>,
    /// The tools' names on the wire.
    pub names: &'a ToolNames,
    /// Whether a stream is asked for.
    pub stream: bool,
    /// The id of the response that the turns follow; none when they are the whole conversation.
    pub previous: Option<&'a str>,
}

/// What steers decanus and is no provider's parameter, whatever it is called there.
const CONTROL: [&str; 3] = ["websearch", "previous_response", "previous_response_id"];

impl Request<'_> {
    /// The endpoint's parameters with those of the view over them, sorted by name, without those in `reserved` and
    /// those that steer decanus.
    pub fn parameters(&self, reserved: &[&str]) -> Map<String, Value> {
        let mut all = self.profile.parameters.clone();
        all.extend(self.view.parameters.iter().map(|(k, v)| (k.clone(), v.clone())));
        all.retain(|name, _| !reserved.contains(&name.as_str()) && !CONTROL.contains(&name.as_str()));
        all.sort_keys();
        all
    }

    /// One parameter: the view's, else the endpoint's.
    pub fn parameter(&self, name: &str) -> Option<&Value> {
        let of_view = self.view.parameters.get(name);
        of_view.or_else(|| self.profile.parameters.get(name))
    }
}

/// What is wrong with a request or an answer, seen without knowing where it was sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// The request can't be made.
    Config(String),
    /// The provider says no.
    Refused {
        /// The status that the provider's error names, where it stands inside a stream or body.
        status: Option<u16>,
        /// The provider's code or type.
        code: Option<String>,
        /// The provider's words.
        message: String,
    },
    /// The request does not fit into the model's context.
    TooLong(String),
    /// The answer is not what the protocol says.
    Malformed(String),
    /// The answer ended too early.
    Incomplete(String),
}

/// How the events of a stream are told apart.
#[derive(Debug, Clone, Copy)]
pub enum Framing {
    /// Server-sent events.
    Sse,
    /// One JSON value a line (NDJSON); the event has no name.
    Lines,
    /// A form that only one provider has.
    Own {
        /// What the request accepts as content type.
        accept: &'static str,
        /// Makes what takes the stream apart.
        framer: fn() -> Box<dyn Framer>,
    },
}

/// Signs requests, for a provider that a key in a header is not enough for.
pub trait Signer: Send + Sync {
    /// The request with its signature. Called for every try, since a signature is of its time.
    ///
    /// # Errors
    /// When there are no credentials.
    fn sign(&self, request: reqwest::Request) -> BoxFuture<'_, Result<reqwest::Request, BackendError>>;
}

/// Decodes a stream, event by event.
pub trait StreamDecoder: Send + Sync {
    /// Takes an event and appends what it says. Returns whether the stream is over.
    ///
    /// # Errors
    /// An error that the provider put into the stream; an event that can't be read.
    fn event(&mut self, event: &Event, out: &mut Vec<Delta>) -> Result<bool, Fault>;

    /// Whether the provider has said that the answer is over; token counts may still follow.
    fn is_complete(&self) -> bool;

    /// The connection is closed: gives what is still to be said, [`Delta::Finish`] last.
    ///
    /// # Errors
    /// [`Fault::Incomplete`] when the answer was not complete.
    fn end(&mut self, out: &mut Vec<Delta>) -> Result<(), Fault>;
}

/// The wire form of a provider.
pub trait Dialect: Send + Sync + 'static {
    /// The backend's name.
    fn name(&self) -> &'static str;

    /// The dialect as one request and its answer need it, where that depends on the endpoint's quirks or on what is
    /// asked for. None: it is the same for all.
    fn for_request(&self, _: &Request<'_>) -> Option<Self>
    where
        Self: Sized,
    {
        None
    }

    /// What is appended to the path of the endpoint's URL, with a leading slash; a query may follow behind `?`.
    fn path(&self, profile: &Profile, stream: bool) -> String;

    /// The part of the endpoint's URL path that [`Dialect::path`] is appended to.
    fn base_path<'a>(&self, path: &'a str) -> &'a str {
        path
    }

    /// The form in which this provider gives embeddings, if it does.
    fn embeddings(&self) -> Option<EmbeddingApi> {
        None
    }

    /// How this provider counts the tokens of a request, if it does, and under which path.
    fn counting(&self, _profile: &Profile) -> Option<(CountApi, String)> {
        None
    }

    /// The form in which this provider makes pictures, if it does.
    fn images(&self) -> Option<ImageApi> {
        None
    }

    /// What to warn of when so few prompt tokens were counted that the provider must have cut what it was sent; `sent`
    /// is the length of the messages' texts in bytes.
    fn prompt_was_cut(&self, _sent: usize, _usage: &Usage) -> Option<String> {
        None
    }

    /// Headers of every request beside the key's, with values that are no secrets.
    fn headers(&self) -> &'static [(&'static str, &'static str)] {
        &[]
    }

    /// How the events of a stream are told apart.
    fn framing(&self) -> Framing {
        Framing::Sse
    }

    /// The header that carries the key.
    fn key_header(&self, key: &Secret) -> (&'static str, Secret);

    /// What to say when no key is set and this URL does not work without one.
    fn missing_key(&self, url: &str) -> Option<String>;

    /// Whether thoughts may stand at the beginning of the text, between `<think>` and `</think>`: servers that have no
    /// field for them leave them there.
    fn thinks_in_text(&self) -> bool {
        false
    }

    /// What has to be said to the model in words, because this provider has no field for it: it is put behind the first
    /// instructions.
    fn instruction(&self, _: &Request<'_>) -> Option<String> {
        None
    }

    /// What signs the requests to an endpoint, where a header with a key is not enough.
    fn signer(&self, _: &Profile) -> Option<Arc<dyn Signer>> {
        None
    }

    /// The length of the longest tool name.
    fn max_tool_name(&self) -> usize {
        64
    }

    /// Writes everything before the first turn. It is kept as long as the tools on offer are the same.
    ///
    /// # Errors
    /// [`Fault::Config`].
    fn head(
        &self,
        profile: &Profile,
        tools: &[ToolDefinition],
        names: &ToolNames,
        out: &mut Vec<u8>,
    ) -> Result<(), Fault>;

    /// Writes one turn behind those before it, which `out` holds; `first` is whether there is none. A turn that this
    /// provider wants elsewhere (instructions at the top, say) is left out here and taken from the view in the tail.
    fn turn(&self, turn: &Turn, names: &ToolNames, first: bool, out: &mut Vec<u8>);

    /// Writes everything after the last turn.
    ///
    /// # Errors
    /// [`Fault::Config`].
    fn tail(&self, request: &Request<'_>, out: &mut Vec<u8>) -> Result<(), Fault>;

    /// Decodes a whole body.
    ///
    /// # Errors
    /// An error in a body of status 200; a body that is not an answer.
    fn decode(&self, body: &[u8]) -> Result<Vec<Delta>, Fault>;

    /// Reads the body of an answer that is an error by its status.
    fn refusal(&self, status: u16, body: &[u8]) -> Fault;

    /// A decoder for one stream.
    fn decoder(&self) -> Box<dyn StreamDecoder>;

    /// Like `decode`, for a dialect that must know which tools the answer may call.
    ///
    /// # Errors
    /// Those of `decode`.
    fn decode_for(&self, body: &[u8], _offered: &Arc<ToolNames>) -> Result<Vec<Delta>, Fault> {
        self.decode(body)
    }

    /// Like `decoder`, for a dialect that must know which tools the answer may call.
    fn decoder_for(&self, _offered: &Arc<ToolNames>) -> Box<dyn StreamDecoder> {
        self.decoder()
    }

    /// Whether a request may give the id of the last response in place of the conversation up to it.
    fn threads(&self, _profile: &Profile, _parameters: &Map<String, Value>) -> bool {
        false
    }
}

/// Appends a value as compact JSON.
pub fn write_json(out: &mut Vec<u8>, value: &impl serde::Serialize) {
    // Writing to memory can't fail, and neither can values whose keys are texts.
    let _ = serde_json::to_writer(out, value);
}

/// Appends `,"name":value` for each member, to an object that has members already.
pub fn write_members(out: &mut Vec<u8>, members: &Map<String, Value>) {
    for (name, value) in members {
        out.push(b',');
        write_json(out, name);
        out.push(b':');
        write_json(out, value);
    }
}

/// Appends an item to a list, with a comma before it unless it is the first.
pub fn write_item(out: &mut Vec<u8>, first: &mut bool, value: &Value) {
    if !std::mem::replace(first, false) {
        out.push(b',');
    }
    write_json(out, value);
}

/// A text as one part of a path: everything that has a meaning there is percent-encoded.
pub fn path_part(text: &str) -> String {
    let mut part = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            part.push(char::from(byte));
        } else {
            // Writing to memory can't fail.
            let _ = write!(part, "%{byte:02X}");
        }
    }
    part
}

/// Whether a URL is of this host.
pub(crate) fn is_at(url: &str, host: &str) -> bool {
    reqwest::Url::parse(url).is_ok_and(|url| url.host_str() == Some(host))
}

/// What to say when there is no key for a host that never answers without one.
pub(crate) fn missing_key(url: &str, host: &str, variable: &str) -> Option<String> {
    is_at(url, host).then(|| format!("no key: set {variable}, or `key_env` or `key` in the endpoint's file"))
}
