//! Any HTTP provider, given its dialect.

use std::sync::{Arc, Mutex, PoisonError};

use decanus_chat::{Message, Role, ToolDefinition};
use futures::stream::{self, BoxStream};
use futures::{StreamExt, TryStreamExt};
use reqwest::Url;
use reqwest::header::{ACCEPT, ACCEPT_ENCODING, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};

use crate::client::Clients;
use crate::conversation::{Backend, CallCx, Conversation, Delta, DryRun, View};
use crate::count::{Counter, HttpCounter};
use crate::dialect::{Dialect, Fault, Framing, Request};
use crate::embed::{Embedder, HttpEmbedder};
use crate::encode::Encoder;
use crate::error::BackendError;
use crate::exchange::{Exchange, Outgoing, Target};
use crate::image::{HttpPainter, ImageApi, Painter};
use crate::profile::Profile;
use crate::reader::Chat;
use crate::redact::{Redactor, show_url, show_url_text};
use crate::retry::Backoff;
use crate::thread::{Recorder, Thread};
use crate::tool_names::ToolNames;
use crate::whole::Whole;

/// A backend that speaks a [`Dialect`] over HTTP.
#[derive(Debug)]
pub struct HttpBackend<D> {
    dialect: Arc<D>,
    clients: Clients,
    backoff: Backoff,
    /// Where the last conversation was opened: nearly always the next one is opened there too.
    last: Mutex<Option<(Arc<Profile>, Arc<Target>)>>,
}

impl<D: Dialect> HttpBackend<D> {
    /// A backend whose connections are shared with all others that were given the same clients.
    pub fn new(dialect: D, clients: Clients) -> Self {
        Self {
            dialect: Arc::new(dialect),
            clients,
            backoff: Backoff::default(),
            last: Mutex::default(),
        }
    }

    /// Waits differently between tries.
    #[must_use]
    pub fn with_backoff(mut self, backoff: Backoff) -> Self {
        self.backoff = backoff;
        self
    }
}

impl<D: Dialect> Backend for HttpBackend<D> {
    fn name(&self) -> &str {
        self.dialect.name()
    }

    fn open(&self, profile: Arc<Profile>) -> Result<Box<dyn Conversation>, BackendError> {
        let target = self.chat_target(&profile)?;
        Ok(Box::new(HttpConversation {
            missing_key: self.missing_key(&profile),
            offer: None,
            thread: Arc::default(),
            dialect: self.dialect.clone(),
            clients: self.clients.clone(),
            backoff: self.backoff,
            encoder: Encoder::default(),
            profile,
            target,
        }))
    }

    fn embedder(&self, profile: Arc<Profile>) -> Result<Box<dyn Embedder>, BackendError> {
        let Some(api) = self.dialect.embeddings() else {
            let (endpoint, backend) = (&profile.name, self.name());
            return Err(BackendError::Config(format!(
                "endpoint `{endpoint}`: the backend {backend} has no embeddings"
            )));
        };
        let path = api.path(&profile);
        let requests = self.whole(profile, &path)?;
        Ok(Box::new(HttpEmbedder { api, requests }))
    }

    fn counter(&self, profile: Arc<Profile>) -> Result<Option<Box<dyn Counter>>, BackendError> {
        let Some((api, path)) = self.dialect.counting(&profile) else {
            return Ok(None);
        };
        let requests = self.whole(profile, &path)?;
        Ok(Some(Box::new(HttpCounter { api, requests })))
    }

    fn painter(&self, profile: Arc<Profile>) -> Result<Box<dyn Painter>, BackendError> {
        let Some(api) = self.dialect.images() else {
            let (endpoint, backend) = (&profile.name, self.name());
            return Err(BackendError::Config(format!(
                "endpoint `{endpoint}`: the backend {backend} makes no pictures"
            )));
        };
        let path = match api {
            ImageApi::OpenAi(path) => path.to_owned(),
            ImageApi::Responses | ImageApi::Gemini => self.dialect.path(&profile, false),
        };
        let requests = self.whole(profile, &path)?;
        Ok(Box::new(HttpPainter { api, requests }))
    }
}

impl<D: Dialect> HttpBackend<D> {
    /// Where requests for answers go.
    fn chat_target(&self, profile: &Arc<Profile>) -> Result<Arc<Target>, BackendError> {
        let last = || self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, target)) = last().as_ref().filter(|(known, _)| Arc::ptr_eq(known, profile)) {
            return Ok(target.clone());
        }
        let path = |stream| self.dialect.path(profile, stream);
        let target = Arc::new(self.target(profile, [&path(false), &path(true)])?);
        *last() = Some((profile.clone(), target.clone()));
        Ok(target)
    }

    /// Where the requests of an endpoint go: with a path for bodies and one for streams.
    fn target(&self, profile: &Profile, paths: [&str; 2]) -> Result<Target, BackendError> {
        let fail = |what: String| BackendError::Config(format!("endpoint `{}`: {what}", profile.name));
        if profile.model.trim().is_empty() {
            return Err(fail("no model is named; give `model` in its file, or -m".into()));
        }
        let chat = self.dialect.path(profile, false);
        let url = |path| request_url(profile, &*self.dialect, &chat, path).map_err(fail);
        let (url, stream_url) = (url(paths[0])?, url(paths[1])?);
        Ok(Target {
            shown: show_url(&url),
            stream_shown: show_url(&stream_url),
            url,
            stream_url,
            headers: headers(profile, &*self.dialect).map_err(fail)?,
            redactor: Redactor::new(profile),
            signer: self.dialect.signer(profile),
        })
    }

    /// Requests to a path that are answered by whole bodies.
    fn whole(&self, profile: Arc<Profile>, path: &str) -> Result<Whole, BackendError> {
        let target = Arc::new(self.target(&profile, [path, path])?);
        if let Some(what) = self.missing_key(&profile) {
            return Err(BackendError::Config(format!("endpoint `{}`: {what}", profile.name)));
        }
        Ok(Whole {
            clients: self.clients.clone(),
            backoff: self.backoff,
            profile,
            target,
        })
    }

    fn missing_key(&self, profile: &Profile) -> Option<String> {
        let none = profile.key.is_none() && profile.headers.is_empty();
        none.then(|| self.dialect.missing_key(&profile.url)).flatten()
    }
}

/// The endpoint's URL with a path at its end; a URL that has it already is taken as it is. One that ends in the path of
/// chat requests gives the base for others.
fn request_url(profile: &Profile, dialect: &dyn Dialect, chat: &str, path: &str) -> Result<Url, String> {
    let bad = |why: &str| format!("`url` can't be used: {} {why}", show_url_text(&profile.url));
    if profile.url.is_empty() {
        return Err("it has no `url`".into());
    }
    let mut url = Url::parse(&profile.url).map_err(|e| bad(&format!("({e})")))?;
    if !matches!(url.scheme(), "http" | "https") || url.host_str().is_none() {
        return Err(bad("is not an http or https URL"));
    }
    url.set_fragment(None);
    let (path, query) = path
        .split_once('?')
        .map_or((path, None), |(path, query)| (path, Some(query)));
    let base = url.path().trim_end_matches('/');
    if !base.ends_with(path) {
        let base = match base.strip_suffix(chat) {
            Some(base) => base,
            None => dialect.base_path(base),
        };
        let full = format!("{base}{path}");
        url.set_path(&full);
    }
    if let Some(query) = query {
        let own = url.query().map(|own| format!("{own}&")).unwrap_or_default();
        url.set_query(Some(&format!("{own}{query}")));
    }
    Ok(url)
}

/// The headers of every request. Values that may be credentials are marked, so that nothing prints them.
fn headers(profile: &Profile, dialect: &dyn Dialect) -> Result<HeaderMap, String> {
    let mut headers = HeaderMap::new();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    for (name, value) in dialect.headers() {
        headers.insert(*name, HeaderValue::from_static(value));
    }
    let key = profile.key.as_ref().map(|key| dialect.key_header(key));
    let key = key.map(|(name, value)| (name.to_owned(), value, "key"));
    let own = profile
        .headers
        .iter()
        .map(|(name, value)| (name.clone(), value.clone(), "header"));
    for (name, value, what) in key.into_iter().chain(own) {
        let header = HeaderName::from_bytes(name.as_bytes()).map_err(|_| format!("`{name}` is not a header's name"))?;
        let mut value = HeaderValue::from_str(value.expose())
            .map_err(|_| format!("the {what} for `{name}` holds characters that a header can't"))?;
        value.set_sensitive(true);
        headers.insert(header, value);
    }
    Ok(headers)
}

struct HttpConversation<D> {
    dialect: Arc<D>,
    clients: Clients,
    backoff: Backoff,
    encoder: Encoder,
    profile: Arc<Profile>,
    target: Arc<Target>,
    /// What to say before a request is sent without a key.
    missing_key: Option<String>,
    /// What was made of the tools for the last request; nearly always they are the same for the next one.
    offer: Option<Offer>,
    /// The last complete response, where requests may go on from it.
    thread: Arc<Mutex<Option<Thread>>>,
}

/// A request's body.
struct Encoded {
    body: Vec<u8>,
    names: Arc<ToolNames>,
    /// The id that the body goes on from, and the body that holds the whole conversation.
    whole: Option<(String, Vec<u8>)>,
}

/// The messages with an instruction behind the first ones.
fn instructed(messages: &[Message], words: &str) -> Vec<Message> {
    let mut messages = messages.to_vec();
    match messages.first_mut().filter(|first| first.role == Role::System) {
        Some(first) => first.content = format!("{}\n\n{words}", first.content),
        None => messages.insert(0, Message::system(words)),
    }
    messages
}

/// Tools in the form in which they are sent.
struct Offer {
    tools: Vec<ToolDefinition>,
    names: Arc<ToolNames>,
    /// Everything before the first turn.
    head: Vec<u8>,
}

impl<D: Dialect> HttpConversation<D> {
    fn encode(&mut self, view: &View<'_>, stream: bool) -> Result<Encoded, BackendError> {
        let failed = |fault| match fault {
            Fault::Config(what) => BackendError::Config(what),
            other => BackendError::Internal(format!("encoding a request gave {other:?}")),
        };
        let offer = match self.offer.take() {
            Some(offer) if offer.tools == view.tools => offer,
            _ => {
                let names = ToolNames::new(
                    view.tools,
                    self.profile
                        .quirks
                        .max_tool_name
                        .unwrap_or(self.dialect.max_tool_name()),
                );
                let mut head = Vec::new();
                self.dialect
                    .head(&self.profile, view.tools, &names, &mut head)
                    .map_err(failed)?;
                Offer {
                    tools: view.tools.to_vec(),
                    names: Arc::new(names),
                    head,
                }
            }
        };
        let offer = self.offer.insert(offer);
        let mut request = Request {
            profile: &self.profile,
            view,
            names: &offer.names,
            stream,
            previous: None,
        };
        let instructed = self
            .dialect
            .instruction(&request)
            .map(|words| instructed(view.messages, &words));
        let instructed = instructed.as_deref().map(|messages| View { messages, ..*view });
        request.view = instructed.as_ref().unwrap_or(view);
        if let Some(dialect) = self.dialect.for_request(&request) {
            self.dialect = Arc::new(dialect);
        }
        let mut encoded = Encoded {
            body: self
                .encoder
                .body(&*self.dialect, &offer.head, &request)
                .map_err(failed)?,
            names: offer.names.clone(),
            whole: None,
        };
        if self.dialect.threads(&self.profile, view.parameters) {
            let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some((thread, turns)) = thread.as_ref().and_then(|t| Some((t, t.rest(view)?))) {
                let mut body = offer.head.clone();
                for (i, turn) in turns.iter().enumerate() {
                    self.dialect.turn(turn, &offer.names, i == 0, &mut body);
                }
                let request = Request {
                    previous: Some(&thread.id),
                    ..request
                };
                self.dialect.tail(&request, &mut body).map_err(failed)?;
                encoded.whole = Some((thread.id.clone(), std::mem::replace(&mut encoded.body, body)));
            }
        }
        Ok(encoded)
    }

    fn exchange<'a>(&'a mut self, view: &View<'_>, cx: &'a CallCx) -> Result<Exchange<'a, Chat<'a>>, BackendError> {
        let encoded = self.encode(view, cx.stream)?;
        if let Some(what) = &self.missing_key {
            return Err(BackendError::Config(format!(
                "endpoint `{}`: {what}",
                self.profile.name
            )));
        }
        let client = self.clients.get(&self.target.url, self.profile.timeouts.connect)?;
        let accept = if cx.stream {
            match self.dialect.framing() {
                Framing::Sse => "text/event-stream, application/json",
                Framing::Lines => "application/x-ndjson, application/json",
                Framing::Own { accept, .. } => accept,
            }
        } else {
            "application/json"
        };
        let mut headers = self.target.headers.clone();
        headers.insert(ACCEPT, HeaderValue::from_static(accept));
        if cx.stream {
            // A word that waits in a compressor is not shown; what is compressed all the same is read.
            headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        }
        let request = Outgoing {
            client,
            url: match cx.stream {
                true => self.target.stream_url.clone(),
                false => self.target.url.clone(),
            },
            headers,
            body: encoded.body.into(),
        };
        let texts = view
            .messages
            .iter()
            .filter(|m| !matches!(m.role, Role::Image | Role::Pdf));
        let reader = Chat {
            dialect: &*self.dialect,
            sent: texts.map(|m| m.content.len()).sum(),
            offered: match view.tool_choice {
                Some("none") => Arc::default(),
                _ => encoded.names.clone(),
            },
        };
        let mut exchange = Exchange::new(
            reader,
            &self.profile,
            &self.target,
            request,
            encoded.names,
            cx,
            self.backoff,
        );
        if let Some((id, body)) = encoded.whole {
            exchange = exchange.or_whole(id, body.into());
        }
        Ok(exchange)
    }
}

impl<D: Dialect> Conversation for HttpConversation<D> {
    fn backend(&self) -> &str {
        self.dialect.name()
    }

    fn complete<'a>(&'a mut self, view: &'a View<'a>, cx: &'a CallCx) -> BoxStream<'a, Result<Delta, BackendError>> {
        let threads = self.dialect.threads(&self.profile, view.parameters);
        let mut recorder = threads.then(|| Recorder::new(view));
        let thread = self.thread.clone();
        match self.exchange(view, cx) {
            Ok(exchange) => stream::unfold(Box::new(exchange), |mut exchange| async move {
                exchange.next().await.map(|delta| (delta, exchange))
            })
            .inspect_ok(move |delta| {
                if let Some(new) = recorder.as_mut().and_then(|r| r.push(delta)) {
                    *thread.lock().unwrap_or_else(PoisonError::into_inner) = Some(new);
                }
            })
            .boxed(),
            Err(error) => stream::once(std::future::ready(Err(error))).boxed(),
        }
    }

    fn dry_run(&mut self, view: &View<'_>, stream: bool) -> Result<DryRun, BackendError> {
        let body = self.encode(view, stream)?.body;
        let body = String::from_utf8(body).map_err(|e| BackendError::Internal(e.to_string()))?;
        Ok(DryRun {
            target: format!("POST {}", self.target.shown(stream)),
            body,
        })
    }
}
