//! A program as a backend: it reads a request per line and answers in lines of JSON.
//!
//! The program is started with the first request and kept for the conversation. It is started again when it is not
//! there any more, or not at its place: an answer that was not read to its end ends the program with it.

use std::collections::VecDeque;
use std::sync::Arc;

use futures::StreamExt;
use futures::stream::{self, BoxStream};
use tokio::time::Instant;

use crate::conversation::{Backend, CallCx, Conversation, Delta, DryRun, View};
use crate::dialect::{Fault, Framing, StreamDecoder};
use crate::error::BackendError;
use crate::exchange::MAX_STREAM;
use crate::exec_process::{Running, program};
use crate::exec_wire::{AnswerDecoder, NAME, request};
use crate::frames::Frames;
use crate::profile::Profile;
use crate::reader::error_of;
use crate::redact::Redactor;
use crate::sse::SseError;
use crate::tool_names::ToolNames;
use crate::waiting::Clock;

/// The length of the longest tool name, as with other backends.
const MAX_TOOL_NAME: usize = 64;

/// The backend `exec`: an endpoint's file names a program.
#[derive(Debug, Clone, Copy)]
pub struct ExecBackend {
    allow: bool,
}

impl ExecBackend {
    /// A backend that starts the programs of the user's own endpoint files, and with `allow` those of any other: a
    /// project that somebody else wrote must not be able to start one.
    pub fn new(allow: bool) -> Self {
        Self { allow }
    }
}

impl Backend for ExecBackend {
    fn name(&self) -> &str {
        NAME
    }

    fn open(&self, profile: Arc<Profile>) -> Result<Box<dyn Conversation>, BackendError> {
        let fail = |what: String| BackendError::Config(format!("endpoint `{}`: {what}", profile.name));
        let Some(program) = program(&profile) else {
            return Err(fail("give `command`, a list of a program and its arguments".into()));
        };
        if !self.allow && !profile.file_is_own {
            let file = profile.file.as_deref().map_or("it".into(), |f| f.display().to_string());
            return Err(fail(format!(
                "{file} would start the program {}, which only an endpoint file of your own may do; if you trust it, \
                 copy it to the folder `endpoints` of ~/.decanus",
                program.display()
            )));
        }
        Ok(Box::new(ExecConversation {
            target: format!("the program {}", program.display()),
            redactor: Redactor::new(&profile),
            profile,
            running: None,
        }))
    }
}

struct ExecConversation {
    profile: Arc<Profile>,
    /// The program as errors name it.
    target: String,
    redactor: Redactor,
    /// The program while it waits for a request.
    running: Option<Running>,
}

impl ExecConversation {
    fn encode(&self, view: &View<'_>, stream: bool) -> Result<(Vec<u8>, ToolNames), BackendError> {
        let names = ToolNames::new(view.tools, self.profile.quirks.max_tool_name.unwrap_or(MAX_TOOL_NAME));
        let line = request(&self.profile, view, &names, stream).map_err(BackendError::Config)?;
        Ok((line, names))
    }
}

impl Conversation for ExecConversation {
    fn backend(&self) -> &str {
        NAME
    }

    fn complete<'a>(&'a mut self, view: &'a View<'a>, cx: &'a CallCx) -> BoxStream<'a, Result<Delta, BackendError>> {
        match self.encode(view, cx.stream) {
            Ok((mut line, names)) => {
                line.push(b'\n');
                let answer = Answer::new(self, line, names, cx);
                stream::unfold(Box::new(answer), |mut answer| async move {
                    answer.next().await.map(|delta| (delta, answer))
                })
                .boxed()
            }
            Err(error) => stream::once(std::future::ready(Err(error))).boxed(),
        }
    }

    fn dry_run(&mut self, view: &View<'_>, stream: bool) -> Result<DryRun, BackendError> {
        let (line, _) = self.encode(view, stream)?;
        let body = String::from_utf8(line).map_err(|e| BackendError::Internal(e.to_string()))?;
        Ok(DryRun {
            target: self.target.clone(),
            body,
        })
    }
}

/// One answer on its way. The program is taken out of the conversation and put back when it has said that it is done.
struct Answer<'a> {
    conversation: &'a mut ExecConversation,
    request: Vec<u8>,
    names: ToolNames,
    cx: &'a CallCx,
    clock: Clock,
    sent: Instant,
    bytes: usize,
    running: Option<Running>,
    /// Whether the program has answered before.
    is_kept: bool,
    frames: Frames,
    decoder: AnswerDecoder,
    ready: VecDeque<Delta>,
    over: bool,
    failed: Option<BackendError>,
}

impl<'a> Answer<'a> {
    fn new(conversation: &'a mut ExecConversation, request: Vec<u8>, names: ToolNames, cx: &'a CallCx) -> Self {
        let total = conversation.profile.timeouts.total.min(cx.timeout);
        let now = Instant::now();
        Self {
            conversation,
            request,
            names,
            cx,
            clock: Clock::start(total),
            sent: now,
            bytes: 0,
            running: None,
            is_kept: false,
            frames: Frames::new(Framing::Lines),
            decoder: AnswerDecoder::default(),
            ready: VecDeque::new(),
            over: false,
            failed: None,
        }
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
                // Unless it has been put back, the program is somewhere within an answer.
                self.running = None;
                self.failed = Some(error);
            }
        }
    }

    async fn step(&mut self) -> Result<(), BackendError> {
        let Some(mut running) = self.running.take() else {
            return self.send().await;
        };
        let mut buffer = vec![0; 1 << 16];
        let timeouts = self.conversation.profile.timeouts;
        let (from, limit, what) = match self.bytes {
            0 => (self.sent, timeouts.first_byte, "no answer"),
            _ => (Instant::now(), timeouts.idle, "nothing more"),
        };
        let read = self
            .clock
            .within(&self.conversation.target, from, limit, what, running.read(&mut buffer))
            .await?;
        match read {
            Ok(n @ 1..) => {
                self.running = Some(running);
                self.take(&buffer[..n])
            }
            // It died before it read the request, or before it said anything.
            _ if self.bytes == 0 && self.is_kept => self.start().await,
            Ok(_) => {
                let how = running.how_it_ended().await;
                self.end(how)
            }
            Err(error) => self.end(error.to_string()),
        }
    }

    /// Sends the request, to a new program when there is none that waits for it.
    async fn send(&mut self) -> Result<(), BackendError> {
        if let Some(mut running) = self.conversation.running.take() {
            self.is_kept = true;
            if running.waits() && self.write(&mut running).await?.is_ok() {
                self.running = Some(running);
                return Ok(());
            }
        }
        self.start().await
    }

    async fn start(&mut self) -> Result<(), BackendError> {
        let conversation = &*self.conversation;
        if std::mem::take(&mut self.is_kept) {
            tracing::warn!(endpoint = %conversation.profile.name, "{} is started again", conversation.target);
        }
        let mut running = Running::start(&conversation.profile)?;
        if let Err(error) = self.write(&mut running).await? {
            let how = running.how_it_ended().await;
            return Err(self.error(Fault::Incomplete(format!(
                "it does not read its request: {error}; {how}"
            ))));
        }
        self.running = Some(running);
        Ok(())
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
            Ok(())
        } else {
            Err(self.error(Fault::Incomplete(how)))
        }
    }

    async fn write(&mut self, running: &mut Running) -> Result<std::io::Result<()>, BackendError> {
        self.sent = Instant::now();
        let limit = self.conversation.profile.timeouts.first_byte;
        self.clock
            .within(
                &self.conversation.target,
                self.sent,
                limit,
                "it did not read its request",
                running.write(&self.request),
            )
            .await
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
            let running = self.running.take();
            if events.next().is_none() && ends_with_line && !matches!(done, Err(Fault::Malformed(_))) {
                self.conversation.running = running;
            } else {
                let target = &self.conversation.target;
                tracing::warn!(endpoint = %self.conversation.profile.name, "{target} went on after its answer; it is ended");
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

    fn error(&self, fault: Fault) -> BackendError {
        let ExecConversation {
            profile,
            target,
            redactor,
            ..
        } = &*self.conversation;
        error_of(fault, target, &profile.model, redactor, 200, None)
    }
}
