//! Any HTTP provider, given its dialect.

use std::sync::Arc;

use bytes::Bytes;
use decanus_chat::ToolDefinition;
use futures::StreamExt;
use futures::stream::{self, BoxStream};
use reqwest::Url;
use reqwest::header::{ACCEPT, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};

use crate::client::Clients;
use crate::conversation::{Backend, CallCx, Conversation, Delta, DryRun, View};
use crate::dialect::{Dialect, Fault, Framing, Request};
use crate::encode::Encoder;
use crate::error::BackendError;
use crate::exchange::{Exchange, Target};
use crate::profile::Profile;
use crate::redact::{Redactor, show_url, show_url_text};
use crate::retry::Backoff;
use crate::tool_names::ToolNames;

/// A backend that speaks a [`Dialect`] over HTTP.
#[derive(Debug)]
pub struct HttpBackend<D> {
    dialect: Arc<D>,
    clients: Clients,
    backoff: Backoff,
}

impl<D: Dialect> HttpBackend<D> {
    /// A backend whose connections are shared with all others that were given the same clients.
    pub fn new(dialect: D, clients: Clients) -> Self {
        Self {
            dialect: Arc::new(dialect),
            clients,
            backoff: Backoff::default(),
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
        let fail = |what: String| BackendError::Config(format!("endpoint `{}`: {what}", profile.name));
        if profile.model.trim().is_empty() {
            return Err(fail("no model is named; give `model` in its file, or -m".into()));
        }
        let url = |stream| request_url(&profile, &self.dialect.path(&profile, stream));
        let (url, stream_url) = (url(false).map_err(fail)?, url(true).map_err(fail)?);
        let headers = headers(&profile, &*self.dialect).map_err(fail)?;
        let target = Target {
            shown: show_url(&url),
            url,
            stream_url,
            headers,
            redactor: Redactor::new(&profile),
        };
        let missing_key = if profile.key.is_none() && profile.headers.is_empty() {
            self.dialect.missing_key(&profile.url)
        } else {
            None
        };
        Ok(Box::new(HttpConversation {
            missing_key,
            offer: None,
            dialect: self.dialect.clone(),
            clients: self.clients.clone(),
            backoff: self.backoff,
            encoder: Encoder::default(),
            profile,
            target,
        }))
    }
}

/// The endpoint's URL with the dialect's path at its end; a URL that has it already is taken as it is.
fn request_url(profile: &Profile, path: &str) -> Result<Url, String> {
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
    target: Target,
    /// What to say before a request is sent without a key.
    missing_key: Option<String>,
    /// What was made of the tools for the last request; nearly always they are the same for the next one.
    offer: Option<Offer>,
}

/// Tools in the form in which they are sent.
struct Offer {
    tools: Vec<ToolDefinition>,
    names: Arc<ToolNames>,
    /// Everything before the first turn.
    head: Vec<u8>,
}

impl<D: Dialect> HttpConversation<D> {
    fn encode(&mut self, view: &View<'_>, stream: bool) -> Result<(Vec<u8>, Arc<ToolNames>), BackendError> {
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
        let request = Request {
            profile: &self.profile,
            view,
            names: &offer.names,
            stream,
        };
        if let Some(dialect) = self.dialect.for_request(&request) {
            self.dialect = Arc::new(dialect);
        }
        let body = self
            .encoder
            .body(&*self.dialect, &offer.head, &request)
            .map_err(failed)?;
        Ok((body, offer.names.clone()))
    }

    fn exchange<'a>(&'a mut self, view: &View<'_>, cx: &'a CallCx) -> Result<Exchange<'a>, BackendError> {
        let (body, names) = self.encode(view, cx.stream)?;
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
            }
        } else {
            "application/json"
        };
        let request = client
            .post(if cx.stream {
                self.target.stream_url.clone()
            } else {
                self.target.url.clone()
            })
            .headers(self.target.headers.clone())
            .header(ACCEPT, accept)
            .body(Bytes::from(body));
        Ok(Exchange::new(
            &*self.dialect,
            &self.profile,
            &self.target,
            request,
            names,
            cx,
            self.backoff,
        ))
    }
}

impl<D: Dialect> Conversation for HttpConversation<D> {
    fn backend(&self) -> &str {
        self.dialect.name()
    }

    fn complete<'a>(&'a mut self, view: &'a View<'a>, cx: &'a CallCx) -> BoxStream<'a, Result<Delta, BackendError>> {
        match self.exchange(view, cx) {
            Ok(exchange) => stream::unfold(Box::new(exchange), |mut exchange| async move {
                exchange.next().await.map(|delta| (delta, exchange))
            })
            .boxed(),
            Err(error) => stream::once(std::future::ready(Err(error))).boxed(),
        }
    }

    fn dry_run(&mut self, view: &View<'_>, stream: bool) -> Result<DryRun, BackendError> {
        let (body, _) = self.encode(view, stream)?;
        let body = String::from_utf8(body).map_err(|e| BackendError::Internal(e.to_string()))?;
        Ok(DryRun {
            target: format!("POST {}", self.target.shown),
            body,
        })
    }
}
