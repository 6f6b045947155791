//! One request and its answer: tries, time limits, cancellation, and the answer's bytes on their way to the decoder.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use decanus_base::units::show_duration;
use reqwest::header::{CONTENT_ENCODING, CONTENT_TYPE, HeaderMap, LOCATION};
use reqwest::{Client, Method, Request, Response, StatusCode, Url};
use tokio::time::Instant;
use tokio_util::sync::WaitForCancellationFutureOwned;

use crate::client::causes;
use crate::conversation::{CallCx, Delta};
use crate::dialect::{Fault, Framing, Signer, StreamDecoder};
use crate::error::BackendError;
use crate::frames::Frames;
use crate::halves::Halves;
use crate::huggingface_text::Sorter;
use crate::profile::Profile;
use crate::reader::{Reader, error_of};
use crate::redact::{Redactor, show_url};
use crate::retry::{Backoff, reset_after, retry_after};
use crate::sse::{Event, SseError};
use crate::tool_names::ToolNames;
use crate::waiting::{Alarm, Clock};

/// The most that a whole body may hold, counted while it is read.
const MAX_BODY: usize = 64 << 20;
/// The most that is read of an error's body.
const MAX_ERROR_BODY: usize = 64 << 10;
/// The most that a stream may bring in all.
pub(crate) const MAX_STREAM: usize = 256 << 20;
/// How long token counts are waited for when the answer itself is complete.
const AFTER_FINISH: Duration = Duration::from_secs(5);

/// A request that can be sent again and again.
#[derive(Clone)]
pub(crate) struct Outgoing {
    pub client: Client,
    pub url: Url,
    pub headers: HeaderMap,
    pub body: Bytes,
}

impl Outgoing {
    /// Sends it, with its signature if it needs one. What the signer says and what the network says are apart, since
    /// only the latter is worth another try.
    async fn send(&self, signer: Option<&dyn Signer>) -> Result<reqwest::Result<Response>, BackendError> {
        let mut request = Request::new(Method::POST, self.url.clone());
        *request.headers_mut() = self.headers.clone();
        *request.body_mut() = Some(self.body.clone().into());
        if let Some(signer) = signer {
            request = signer.sign(request).await?;
        }
        Ok(self.client.execute(request).await)
    }
}

/// Where requests go.
pub(crate) struct Target {
    pub url: Url,
    /// The same for a request that asks for a stream; most providers have one URL for both.
    pub stream_url: Url,
    /// Both as they may be shown.
    pub shown: String,
    pub stream_shown: String,
    pub headers: HeaderMap,
    pub redactor: Redactor,
    /// What signs the requests, where a header with a key is not enough.
    pub signer: Option<Arc<dyn Signer>>,
}

impl Target {
    /// Where a request goes, as it may be shown.
    pub fn shown(&self, stream: bool) -> &str {
        if stream { &self.stream_shown } else { &self.shown }
    }
}

impl std::fmt::Debug for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Target").field(&self.shown).finish()
    }
}

enum Phase {
    Send,
    Stream(Response, Frames, Box<dyn StreamDecoder>),
    Body(Response, Vec<u8>),
    Done,
}

/// A request on its way. [`Exchange::next`] gives the deltas of its answer.
pub(crate) struct Exchange<'a, R> {
    reader: R,
    profile: &'a Profile,
    target: &'a Target,
    request: Outgoing,
    names: Arc<ToolNames>,
    /// The id of the last response when the request goes on from it, and the body that does not.
    whole: Option<(String, Bytes)>,
    cx: &'a CallCx,
    backoff: Backoff,
    clock: Clock,
    alarm: Alarm,
    /// Is done when the caller cancels the request; made once, not for each piece of the answer.
    cancelled: Option<Pin<Box<WaitForCancellationFutureOwned>>>,
    sent: Instant,
    bytes: usize,
    retries: u32,
    phase: Phase,
    /// Ids and counts that came before anything of the answer: a new try would bring others.
    held: Vec<Delta>,
    ready: VecDeque<Delta>,
    /// Halves of characters in a stream.
    halves: Halves,
    /// A beginning of blanks, which is of use only before a text.
    blank: String,
    /// What sorts the text, where there may be thoughts in it.
    sorter: Option<Sorter>,
    has_text: bool,
    has_calls: bool,
    given: bool,
    failed: Option<BackendError>,
}

impl<'a, R: Reader> Exchange<'a, R> {
    pub fn new(
        reader: R,
        profile: &'a Profile,
        target: &'a Target,
        request: Outgoing,
        names: Arc<ToolNames>,
        cx: &'a CallCx,
        backoff: Backoff,
    ) -> Self {
        let total = profile.timeouts.total.min(cx.timeout);
        let now = Instant::now();
        Self {
            reader,
            profile,
            target,
            request,
            names,
            whole: None,
            cx,
            backoff,
            clock: Clock::start(total),
            alarm: Alarm::default(),
            cancelled: None,
            sent: now,
            bytes: 0,
            retries: 0,
            phase: Phase::Send,
            held: Vec::new(),
            ready: VecDeque::new(),
            halves: Halves::default(),
            blank: String::new(),
            sorter: None,
            has_text: false,
            has_calls: false,
            given: false,
            failed: None,
        }
    }

    /// Sends another body when the provider does not know the response of this id.
    pub fn or_whole(mut self, id: String, body: Bytes) -> Self {
        self.whole = Some((id, body));
        self
    }

    /// The next delta, an error as the last item, then nothing.
    pub async fn next(&mut self) -> Option<Result<Delta, BackendError>> {
        // Taken out for as long as both are waited for.
        let cancelled = self.cancelled.take();
        let mut cancelled = cancelled.unwrap_or_else(|| Box::pin(self.cx.cancel.clone().cancelled_owned()));
        let is_over = self.is_over();
        let next = tokio::select! {
            biased;
            () = &mut cancelled, if !is_over => Some(Err(BackendError::Cancelled)),
            next = self.advance() => next,
        };
        self.cancelled = Some(cancelled);
        if matches!(next, Some(Err(_))) {
            // Dropping the response closes the connection.
            self.phase = Phase::Done;
            self.ready.clear();
            self.failed = None;
        }
        next
    }

    /// The whole exchange, for a reader that keeps what it read.
    ///
    /// # Errors
    /// Those of [`Exchange::next`].
    pub async fn run(mut self) -> Result<R, BackendError> {
        while let Some(delta) = self.next().await {
            delta?;
        }
        Ok(self.reader)
    }

    fn is_over(&self) -> bool {
        matches!(self.phase, Phase::Done) && self.ready.is_empty() && self.failed.is_none()
    }

    async fn advance(&mut self) -> Option<Result<Delta, BackendError>> {
        loop {
            if let Some(delta) = self.ready.pop_front() {
                self.given = true;
                return Some(Ok(delta));
            }
            if let Some(error) = self.failed.take() {
                return Some(Err(error));
            }
            let error = match self.step().await {
                Ok(true) => continue,
                Ok(false) => return None,
                Err(error) => error,
            };
            self.phase = Phase::Done;
            if let Some((_, body)) = self.whole.take_if(|(id, _)| !self.given && is_unknown(id, &error)) {
                tracing::warn!(endpoint = %self.profile.name, "{error}; sending the whole conversation");
                self.request.body = body;
                self.ready.clear();
                self.held.clear();
                self.phase = Phase::Send;
                continue;
            }
            match self.wait_before_retry(error) {
                Ok((wait, error)) => {
                    self.retries += 1;
                    self.ready.clear();
                    self.held.clear();
                    match self.wait(wait).await {
                        Ok(()) => self.phase = Phase::Send,
                        Err(no_time) => {
                            tracing::warn!(endpoint = %self.profile.name, "no further try: {no_time}");
                            self.failed = Some(error);
                        }
                    }
                }
                Err(error) => self.failed = Some(error),
            }
        }
    }

    /// Waits before another try; where the endpoint has limits, others may be asked meanwhile.
    async fn wait(&self, wait: Duration) -> Result<(), BackendError> {
        let Some(pass) = &self.cx.pass else {
            tokio::time::sleep(wait).await;
            return Ok(());
        };
        pass.leave();
        tokio::time::sleep(wait).await;
        pass.enter(&self.cx.cancel).await
    }

    /// How long to wait before the next try after an error, or the error when there is none.
    fn wait_before_retry(&self, mut error: BackendError) -> Result<(Duration, BackendError), BackendError> {
        let left = self.clock.deadline.saturating_duration_since(Instant::now());
        if self.given || !error.is_transient() || self.retries >= self.profile.retries || left.is_zero() {
            return Err(error);
        }
        let asked = match &error {
            BackendError::Refused { retry_after, .. } => *retry_after,
            _ => None,
        };
        let wait = self.backoff.wait(self.retries + 1, asked);
        match wait {
            Some(wait) if wait < left => {
                tracing::warn!(endpoint = %self.profile.name, retry = self.retries + 1, ?wait, "{error}; trying again");
                Ok((wait, error))
            }
            _ => {
                if let (BackendError::Refused { message, .. }, Some(asked)) = (&mut error, asked) {
                    let (asked, limit) = (show_duration(asked), self.backoff.max_asked.min(left));
                    message.push_str(&format!(
                        "; it asks to wait {asked}, only {} are allowed",
                        show_duration(limit)
                    ));
                }
                Err(error)
            }
        }
    }

    /// Does the next thing; false when there is nothing left to do.
    async fn step(&mut self) -> Result<bool, BackendError> {
        match std::mem::replace(&mut self.phase, Phase::Done) {
            Phase::Send => self.send().await?,
            Phase::Stream(response, sse, decoder) => self.read_stream(response, sse, decoder).await?,
            Phase::Body(response, body) => self.read_body(response, body).await?,
            Phase::Done => return Ok(false),
        }
        Ok(true)
    }

    async fn send(&mut self) -> Result<(), BackendError> {
        self.sent = Instant::now();
        self.bytes = 0;
        self.halves = Halves::default();
        self.blank.clear();
        self.sorter = self.reader.thinks_in_text().then(|| Sorter::new(Arc::default()));
        (self.has_text, self.has_calls) = (false, false);
        let first_byte = self.profile.timeouts.first_byte;
        let sending = self.request.send(self.target.signer.as_deref());
        let response = self
            .clock
            .within(self.shown(), self.sent, first_byte, "no answer", sending)
            .await??;
        let response = response.map_err(|error| self.not_sent(error))?;
        let status = response.status();
        let kind = response.headers().get(CONTENT_TYPE).and_then(|v| v.to_str().ok());
        self.cx.raw.begin(status.as_u16(), kind.unwrap_or_default());
        if status.is_success() {
            return self.begin(response);
        }
        Err(self.refused(status, response).await)
    }

    fn not_sent(&self, error: reqwest::Error) -> BackendError {
        let reason = if error.is_connect() && error.is_timeout() {
            format!("no connection within {}", show_duration(self.profile.timeouts.connect))
        } else {
            self.words(error)
        };
        BackendError::Unreachable {
            target: self.shown().to_owned(),
            reason,
        }
    }

    fn shown(&self) -> &str {
        self.target.shown(self.cx.stream)
    }

    fn words(&self, error: reqwest::Error) -> String {
        self.target.redactor.clean(&causes(&error.without_url()))
    }

    async fn refused(&mut self, status: StatusCode, mut response: Response) -> BackendError {
        let now = SystemTime::now();
        let limited = status == StatusCode::TOO_MANY_REQUESTS;
        let reset = || limited.then(|| reset_after(response.headers(), now)).flatten();
        let wait = retry_after(response.headers(), now).or_else(reset);
        if status.is_redirection() {
            let to = response.headers().get(LOCATION).and_then(|v| v.to_str().ok());
            let to = to.and_then(|l| self.target.url.join(l).ok()).map(|u| show_url(&u));
            let message = match to {
                Some(to) => format!("it redirects to {to}, which is not followed; give that as `url` if you trust it"),
                None => "it redirects to nowhere".into(),
            };
            return self.error(
                status.as_u16(),
                Fault::Refused {
                    status: None,
                    code: None,
                    message,
                },
                None,
            );
        }
        let mut body = Vec::new();
        let idle = self.profile.timeouts.idle;
        // What has come of the explanation is enough.
        while body.len() < MAX_ERROR_BODY {
            match self
                .clock
                .within(
                    self.target.shown(self.cx.stream),
                    Instant::now(),
                    idle,
                    "no more",
                    response.chunk(),
                )
                .await
            {
                Ok(Ok(Some(chunk))) => body.extend_from_slice(&chunk),
                _ => break,
            }
        }
        body.truncate(MAX_ERROR_BODY);
        self.cx.raw.push(&body);
        self.error(status.as_u16(), self.reader.refusal(status.as_u16(), &body), wait)
    }

    fn begin(&mut self, response: Response) -> Result<(), BackendError> {
        let header = |name| {
            response
                .headers()
                .get(name)
                .and_then(|v| v.to_str().ok())
                .unwrap_or("")
                .to_lowercase()
        };
        let encoding = header(CONTENT_ENCODING);
        if !matches!(encoding.as_str(), "" | "identity") {
            return Err(self.malformed(format!("it is encoded as {encoding}, which can't be read")));
        }
        let kind = header(CONTENT_TYPE);
        let stream = kind.contains("event-stream")
            || kind.contains("ndjson")
            || (self.cx.stream && !kind.contains("json") && !kind.contains("html"));
        self.phase = match self.reader.stream().filter(|_| stream) {
            Some((framing, decoder)) => Phase::Stream(response, Frames::new(framing), decoder),
            None => Phase::Body(response, Vec::new()),
        };
        Ok(())
    }

    async fn read_body(&mut self, mut response: Response, mut body: Vec<u8>) -> Result<(), BackendError> {
        match self.chunk(&mut response, false).await? {
            Some(chunk) => {
                let is_new = body.len() < SSE_START;
                body.extend_from_slice(&chunk);
                // Some servers call every answer JSON.
                if is_new
                    && is_sse(&body)
                    && let Some((framing @ Framing::Sse, decoder)) = self.reader.stream()
                {
                    return self.feed(response, Frames::new(framing), decoder, &body);
                }
                if body.len() > MAX_BODY {
                    return Err(self.malformed(format!("it is larger than {} MiB", MAX_BODY >> 20)));
                }
                self.phase = Phase::Body(response, body);
            }
            None => {
                let deltas = self
                    .reader
                    .decode(&body)
                    .map_err(|fault| self.error(200, fault, None))?;
                self.emit(deltas);
            }
        }
        Ok(())
    }

    async fn read_stream(
        &mut self,
        mut response: Response,
        mut sse: Frames,
        mut decoder: Box<dyn StreamDecoder>,
    ) -> Result<(), BackendError> {
        let mut events = Vec::new();
        let mut deltas = Vec::new();
        let chunk = match self.chunk(&mut response, decoder.is_complete()).await {
            // The answer itself is whole: what breaks after it does not matter.
            Err(_) if decoder.is_complete() => None,
            other => other?,
        };
        if let Some(chunk) = chunk {
            // No line of a stream begins like JSON or a web page does, whatever the content type says.
            let first = chunk.iter().find(|b| !b.is_ascii_whitespace());
            let is_body = match sse {
                Frames::Sse(_) | Frames::Own(_) => matches!(first, Some(b'{' | b'[' | b'<')),
                Frames::Lines(_) => matches!(first, Some(b'[' | b'<')),
            };
            if self.bytes == chunk.len() && is_body {
                self.phase = Phase::Body(response, chunk.to_vec());
                return Ok(());
            }
            return self.feed(response, sse, decoder, &chunk);
        }
        match sse.finish() {
            Ok(event) => events.extend(event),
            Err(error) if !decoder.is_complete() => return Err(self.undecodable(&error)),
            Err(_) => {}
        }
        self.halves.push(&mut events);
        events.extend(self.halves.finish());
        let done = match self.decode_events(&mut *decoder, &events, &mut deltas) {
            // The last event was cut.
            Err(BackendError::Malformed { reason, .. }) if !decoder.is_complete() => {
                return Err(self.error(200, Fault::Incomplete(reason), None));
            }
            Err(BackendError::Malformed { .. }) => false,
            other => other?,
        };
        if !done {
            let ended = decoder.end(&mut deltas);
            self.emit(deltas);
            ended.map_err(|fault| self.error(200, fault, None))?;
        }
        Ok(())
    }

    /// Reads the next bytes of a stream.
    fn feed(
        &mut self,
        response: Response,
        mut sse: Frames,
        mut decoder: Box<dyn StreamDecoder>,
        bytes: &[u8],
    ) -> Result<(), BackendError> {
        let mut events = Vec::new();
        let pushed = sse.push(bytes, &mut events);
        self.halves.push(&mut events);
        let done = self.decode_events(&mut *decoder, &events, &mut Vec::new())?;
        pushed.map_err(|error| self.undecodable(&error))?;
        if !done {
            self.phase = Phase::Stream(response, sse, decoder);
        }
        Ok(())
    }

    /// Decodes events and gives out what they say, also when one of them is an error.
    fn decode_events(
        &mut self,
        decoder: &mut dyn StreamDecoder,
        events: &[Event],
        deltas: &mut Vec<Delta>,
    ) -> Result<bool, BackendError> {
        let mut done = Ok(false);
        for event in events {
            done = decoder.event(event, deltas);
            if !matches!(done, Ok(false)) {
                break;
            }
        }
        self.emit(std::mem::take(deltas));
        done.map_err(|fault| self.error(200, fault, None))
    }

    fn undecodable(&self, error: &SseError) -> BackendError {
        match error {
            SseError::CutCharacter | SseError::CutFrame => self.error(200, Fault::Incomplete(error.to_string()), None),
            _ => self.malformed(error.to_string()),
        }
    }

    /// The next bytes of the answer.
    async fn chunk(&mut self, response: &mut Response, complete: bool) -> Result<Option<Bytes>, BackendError> {
        let timeouts = &self.profile.timeouts;
        let (from, limit, what) = match self.bytes {
            0 => (self.sent, timeouts.first_byte, "no answer"),
            _ if complete => (Instant::now(), timeouts.idle.min(AFTER_FINISH), "nothing more"),
            _ => (Instant::now(), timeouts.idle, "nothing more"),
        };
        let chunk = self
            .clock
            .within_by(
                &mut self.alarm,
                self.target.shown(self.cx.stream),
                from,
                limit,
                what,
                response.chunk(),
            )
            .await?;
        let chunk = chunk.map_err(|error| self.error(200, Fault::Incomplete(self.words(error)), None))?;
        self.bytes += chunk.as_ref().map_or(0, Bytes::len);
        if let Some(chunk) = &chunk {
            self.cx.raw.push(chunk);
        }
        if self.bytes > MAX_STREAM {
            return Err(self.malformed(format!("it is larger than {} MiB", MAX_STREAM >> 20)));
        }
        Ok(chunk)
    }

    fn emit(&mut self, deltas: Vec<Delta>) {
        let mut sorted = Vec::with_capacity(deltas.len());
        for delta in deltas {
            self.sort(delta, &mut sorted);
        }
        for mut delta in sorted {
            if let Delta::Call { name: Some(name), .. } = &mut delta {
                *name = self.names.original(name).to_owned();
            }
            let cut = match &delta {
                Delta::Usage(usage) => self.reader.prompt_was_cut(usage),
                _ => None,
            };
            let warning = cut.map(|words| Delta::Warning(format!("endpoint {}: {words}", self.profile.name)));
            for delta in [Some(delta), warning].into_iter().flatten() {
                let Some(delta) = self.without_blank_start(delta) else {
                    continue;
                };
                match delta {
                    Delta::Usage(_) | Delta::ResponseId(_) | Delta::Model(_) | Delta::Warning(_)
                        if !self.given && self.ready.is_empty() =>
                    {
                        self.held.push(delta);
                    }
                    delta => {
                        self.ready.extend(self.held.drain(..));
                        self.ready.push_back(delta);
                    }
                }
            }
        }
    }

    /// Sets thoughts that stand at the beginning of the text apart from it.
    fn sort(&mut self, delta: Delta, out: &mut Vec<Delta>) {
        let Some(sorter) = &mut self.sorter else {
            out.push(delta);
            return;
        };
        match delta {
            Delta::Text(text) => sorter.push(&text, out),
            Delta::Reasoning(_) | Delta::Finish(_) => {
                // A server that has a field for thoughts leaves none in the text.
                sorter.finish(out);
                self.sorter = None;
                out.push(delta);
            }
            other => out.push(other),
        }
    }

    /// The delta with the blanks before it; those wait for a text, and beside calls alone they are dropped.
    fn without_blank_start(&mut self, delta: Delta) -> Option<Delta> {
        match delta {
            Delta::Text(text) if !self.has_text => {
                self.blank.push_str(&text);
                self.has_text = !text.trim().is_empty();
                self.has_text.then(|| Delta::Text(std::mem::take(&mut self.blank)))
            }
            Delta::Call { .. } => {
                self.has_calls = true;
                Some(delta)
            }
            Delta::Finish(_) if !self.has_calls && !self.blank.is_empty() => {
                self.ready.extend(self.held.drain(..));
                self.ready.push_back(Delta::Text(std::mem::take(&mut self.blank)));
                Some(delta)
            }
            other => Some(other),
        }
    }

    fn malformed(&self, reason: String) -> BackendError {
        self.error(200, Fault::Malformed(reason), None)
    }

    fn error(&self, status: u16, fault: Fault, retry_after: Option<Duration>) -> BackendError {
        let model = &self.profile.model;
        error_of(fault, self.shown(), model, &self.target.redactor, status, retry_after)
    }
}

/// How many bytes tell server-sent events from a body.
const SSE_START: usize = 16;

/// Whether a body begins like server-sent events do.
fn is_sse(body: &[u8]) -> bool {
    let body = body
        .strip_prefix("\u{feff}".as_bytes())
        .unwrap_or(body)
        .trim_ascii_start();
    [b":".as_slice(), b"data:", b"event:"]
        .iter()
        .any(|start| body.starts_with(start))
}

/// Whether a provider says that it has no response of this id, or no use for one.
fn is_unknown(id: &str, error: &BackendError) -> bool {
    let BackendError::Refused {
        status, code, message, ..
    } = error
    else {
        return false;
    };
    let names = |text: &str| text.contains("previous_response") || text.contains(id);
    matches!(status, 400 | 404 | 422) && (names(message) || code.as_deref().is_some_and(names))
}
