//! One answer of a program that is a backend: its request is written, its lines are read.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::{self, BoxStream};
use serde_json::Value;
use tokio::sync::{Mutex, OwnedMutexGuard};
use tokio::time::Instant;

use crate::conversation::{CallCx, Delta};
use crate::dialect::{Fault, Framing, StreamDecoder};
use crate::error::BackendError;
use crate::exchange::MAX_STREAM;
use crate::exec_process::{Launch, Running};
use crate::frames::Frames;
use crate::profile::Profile;
use crate::reader::error_of;
use crate::redact::Redactor;
use crate::refusal;
use crate::sse::SseError;
use crate::tool_names::ToolNames;
use crate::waiting::Clock;

/// How long a program that was told to stop its answer may go on with it before it is ended.
const STOP: Duration = Duration::from_secs(10);

/// A program, and what there is to know of it.
pub(crate) struct Host {
    /// The endpoint that it serves.
    pub profile: Arc<Profile>,
    /// The program as errors name it.
    pub target: String,
    pub redactor: Redactor,
    pub launch: Launch,
    /// What a new program reads before its first request: lines, which it answers by one line that holds `ready`, or
    /// `error`.
    pub hello: Option<Vec<u8>>,
    /// The line that makes it stop an answer and say that it is done. Without one, it is ended when nobody wants its
    /// answer any more.
    pub stop: Option<Vec<u8>>,
}

/// Where a program is while it waits for a request. Whoever has one under way holds the place.
pub(crate) type Place = Arc<Mutex<Option<Running>>>;

/// One answer on its way. The program is taken out of its place and put back when it has said that it is done.
pub(crate) struct Answer {
    host: Arc<Host>,
    place: Place,
    held: Option<OwnedMutexGuard<Option<Running>>>,
    request: Vec<u8>,
    names: ToolNames,
    cx: CallCx,
    clock: Clock,
    sent: Instant,
    bytes: usize,
    running: Option<Running>,
    /// Whether the program has its whole request and nothing but that.
    has_request: bool,
    /// Whether the program has answered before.
    is_kept: bool,
    frames: Frames,
    decoder: Box<dyn StreamDecoder>,
    ready: VecDeque<Delta>,
    over: bool,
    failed: Option<BackendError>,
}

impl Answer {
    /// The answer to a request, which is a line without its end.
    pub fn new(
        host: Arc<Host>,
        place: Place,
        mut request: Vec<u8>,
        names: ToolNames,
        decoder: Box<dyn StreamDecoder>,
        cx: CallCx,
    ) -> Self {
        request.push(b'\n');
        Self {
            clock: Clock::start(host.profile.timeouts.total.min(cx.timeout)),
            host,
            place,
            held: None,
            request,
            names,
            cx,
            sent: Instant::now(),
            bytes: 0,
            running: None,
            has_request: false,
            is_kept: false,
            frames: Frames::new(Framing::Lines),
            decoder,
            ready: VecDeque::new(),
            over: false,
            failed: None,
        }
    }

    /// The answer, piece by piece.
    pub fn stream(self) -> BoxStream<'static, Result<Delta, BackendError>> {
        stream::unfold(Box::new(self), |mut answer| async move {
            answer.next().await.map(|delta| (delta, answer))
        })
        .boxed()
    }

    async fn next(&mut self) -> Option<Result<Delta, BackendError>> {
        loop {
            if let Some(delta) = self.ready.pop_front() {
                return Some(Ok(delta));
            }
            if let Some(error) = self.failed.take() {
                return Some(Err(error));
            }
            if self.over {
                return None;
            }
            let cancel = self.cx.cancel.clone();
            let step = tokio::select! {
                biased;
                () = cancel.cancelled() => Err(BackendError::Cancelled),
                step = self.step() => step,
            };
            if let Err(error) = step {
                self.over = true;
                if matches!(error, BackendError::Cancelled) {
                    self.abandon();
                }
                // Unless it has been put back, the program is somewhere within an answer.
                self.running = None;
                self.held = None;
                self.failed = Some(error);
            }
        }
    }

    async fn step(&mut self) -> Result<(), BackendError> {
        let timeouts = self.host.profile.timeouts;
        let (from, limit, what) = match self.bytes {
            0 => (self.sent, timeouts.first_byte, "no answer"),
            _ => (Instant::now(), timeouts.idle, "nothing more"),
        };
        let mut buffer = vec![0; 1 << 16];
        // It stays where it is meanwhile: this may be left off at any time.
        let Some(running) = &mut self.running else {
            return self.send().await;
        };
        let read = running.read(&mut buffer);
        let read = self.clock.within(&self.host.target, from, limit, what, read).await?;
        let n = match read {
            Ok(n @ 1..) => n,
            // It died before it read the request, or before it said anything.
            _ if self.bytes == 0 && self.is_kept => return self.start().await,
            Ok(_) => {
                let how = match &mut self.running {
                    Some(running) => running.how_it_ended().await,
                    None => String::new(),
                };
                return self.end(how);
            }
            Err(error) => return self.end(error.to_string()),
        };
        self.take(&buffer[..n])
    }

    /// Sends the request, to a new program when there is none that waits for it.
    async fn send(&mut self) -> Result<(), BackendError> {
        // Somebody else's request may be under way; that takes as long as it takes.
        let total = self.host.profile.timeouts.total;
        let place = self.place.clone().lock_owned();
        let what = "the program is busy with another request";
        let mut held = self
            .clock
            .within(&self.host.target, Instant::now(), total, what, place)
            .await?;
        let kept = held.take();
        self.held = Some(held);
        if let Some(mut running) = kept {
            self.is_kept = true;
            if running.waits() {
                self.running = Some(running);
                if self.write().await?.is_ok() {
                    return Ok(());
                }
            }
        }
        self.start().await
    }

    async fn start(&mut self) -> Result<(), BackendError> {
        // The old one goes first: two of them may need more memory than there is.
        self.running = None;
        self.has_request = false;
        let host = self.host.clone();
        if std::mem::take(&mut self.is_kept) {
            tracing::warn!(endpoint = %host.profile.name, "{} is started again", host.target);
        }
        self.running = Some(Running::start(&host.launch, &host.profile.name)?);
        if let Some(hello) = &host.hello {
            self.greet(hello).await?;
        }
        if let Err(error) = self.write().await? {
            return Err(self.unread(&error).await);
        }
        Ok(())
    }

    /// Waits until a new program says that it is ready. That may take long (a model is loaded), so only the time for
    /// the whole request limits it.
    async fn greet(&mut self, hello: &[u8]) -> Result<(), BackendError> {
        let (begin, total) = (Instant::now(), self.host.profile.timeouts.total);
        let Some(running) = &mut self.running else {
            return Ok(());
        };
        let what = "it was not ready";
        // When it does not read that, what it says, or how it ended, tells more.
        let write = running.write(hello);
        let _ = self.clock.within(&self.host.target, begin, total, what, write).await?;
        let (mut frames, mut events) = (Frames::new(Framing::Lines), Vec::new());
        let mut buffer = vec![0; 1 << 12];
        while events.is_empty() {
            let Some(running) = &mut self.running else {
                return Ok(());
            };
            let read = running.read(&mut buffer);
            let read = self.clock.within(&self.host.target, begin, total, what, read).await?;
            let n = match read {
                Ok(n @ 1..) => n,
                _ => {
                    let how = running.how_it_ended().await;
                    return Err(self.error(Fault::Incomplete(format!("it was not ready yet: {how}"))));
                }
            };
            frames
                .push(&buffer[..n], &mut events)
                .map_err(|error| self.error(Fault::Malformed(error.to_string())))?;
        }
        let said = &events[0].data;
        let value: Value = serde_json::from_str(said).unwrap_or_default();
        if let Some(ready) = value.get("ready") {
            tracing::debug!(endpoint = %self.host.profile.name, %ready, "{} is ready", self.host.target);
            return Ok(());
        }
        Err(match refusal::from_value(&value) {
            // Whatever it is, it is about what the endpoint says or what this machine has.
            Some(Fault::Refused { message, .. }) => {
                let message = self.host.redactor.clean(&message);
                BackendError::Config(format!("endpoint `{}`: {message}", self.host.profile.name))
            }
            Some(fault) => self.error(fault),
            None => {
                let shown = decanus_base::text::brief(said, 200);
                self.error(Fault::Malformed(format!(
                    "instead of that it is ready, it said {shown}"
                )))
            }
        })
    }

    async fn write(&mut self) -> Result<std::io::Result<()>, BackendError> {
        self.sent = Instant::now();
        let limit = self.host.profile.timeouts.first_byte;
        let Some(running) = &mut self.running else {
            return Ok(Err(std::io::ErrorKind::BrokenPipe.into()));
        };
        let write = running.write(&self.request);
        let what = "it did not read its request";
        let written = self
            .clock
            .within(&self.host.target, self.sent, limit, what, write)
            .await?;
        self.has_request = written.is_ok();
        Ok(written)
    }

    /// The program does not take what is written to it.
    async fn unread(&mut self, error: &std::io::Error) -> BackendError {
        let how = match &mut self.running {
            Some(running) => running.how_it_ended().await,
            None => String::new(),
        };
        self.error(Fault::Incomplete(format!(
            "it does not read its request: {error}; {how}"
        )))
    }

    /// The program says nothing more: its last line may have lacked an end.
    fn end(&mut self, how: String) -> Result<(), BackendError> {
        let mut deltas = Vec::new();
        if let Ok(Some(event)) = self.frames.finish() {
            // A line that was cut is not JSON; that it was cut says more.
            let read = self.decoder.event(&event, &mut deltas);
            if let Err(fault @ (Fault::Refused { .. } | Fault::TooLong(_))) = read {
                return Err(self.error(fault));
            }
        }
        self.give(deltas);
        self.over = self.decoder.is_complete();
        if self.over {
            self.running = None;
            self.held = None;
            Ok(())
        } else {
            Err(self.error(Fault::Incomplete(how)))
        }
    }

    /// Takes what the program said.
    fn take(&mut self, bytes: &[u8]) -> Result<(), BackendError> {
        self.bytes += bytes.len();
        if self.bytes > MAX_STREAM {
            return Err(self.error(Fault::Malformed(format!("it is larger than {} MiB", MAX_STREAM >> 20))));
        }
        let mut events = Vec::new();
        let pushed = self.frames.push(bytes, &mut events);
        let ends_with_line = bytes.ends_with(b"\n");
        let mut deltas = Vec::new();
        let mut events = events.iter();
        while let Some(event) = events.next() {
            let done = self.decoder.event(event, &mut deltas);
            if matches!(done, Ok(false)) {
                continue;
            }
            self.give(std::mem::take(&mut deltas));
            self.over = true;
            let (running, held) = (self.running.take(), self.held.take());
            if events.next().is_none() && ends_with_line && !matches!(done, Err(Fault::Malformed(_))) {
                if let Some(mut held) = held {
                    *held = running;
                }
            } else {
                let target = &self.host.target;
                tracing::warn!(endpoint = %self.host.profile.name, "{target} went on after its answer; it is ended");
            }
            if let Err(fault) = done {
                self.failed = Some(self.error(fault));
            }
            return Ok(());
        }
        self.give(deltas);
        pushed.map_err(|error: SseError| self.error(Fault::Malformed(error.to_string())))
    }

    fn give(&mut self, deltas: Vec<Delta>) {
        for mut delta in deltas {
            if let Delta::Call { name: Some(name), .. } = &mut delta {
                *name = self.names.original(name).to_owned();
            }
            self.ready.push_back(delta);
        }
    }

    /// Nobody wants the rest of the answer. A program that can be told so is waited for, apart from us, and then takes
    /// its place again; its place is taken until then.
    fn abandon(&mut self) {
        let (Some(mut running), Some(mut held)) = (self.running.take(), self.held.take()) else {
            return;
        };
        let (Some(stop), true) = (self.host.stop.clone(), self.has_request) else {
            return;
        };
        let mut frames = std::mem::replace(&mut self.frames, Frames::new(Framing::Lines));
        let stopped = async move {
            running.write(&stop).await.ok()?;
            let (mut buffer, mut events) = (vec![0; 1 << 16], Vec::new());
            loop {
                let n = running.read(&mut buffer).await.ok().filter(|n| *n > 0)?;
                frames.push(&buffer[..n], &mut events).ok()?;
                let is_last = |event: &crate::sse::Event| {
                    let value: Value = serde_json::from_str(&event.data).unwrap_or_default();
                    let set = |name: &str| value.get(name).filter(|v| **v != Value::Bool(false));
                    set("done").is_some() || set("error").is_some_and(|error| !error.is_null())
                };
                if events.iter().any(is_last) {
                    return buffer[..n].ends_with(b"\n").then_some(running);
                }
                events.clear();
            }
        };
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move { *held = tokio::time::timeout(STOP, stopped).await.ok().flatten() });
        }
    }

    fn error(&self, fault: Fault) -> BackendError {
        let Host {
            profile,
            target,
            redactor,
            ..
        } = &*self.host;
        error_of(fault, target, &profile.model, redactor, 200, None)
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        self.abandon();
    }
}
