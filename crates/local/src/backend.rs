//! The backend named `local`.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use decanus_backend::{
    Backend, BackendError, CallCx, Conversation, Delta, DryRun, Embedder, FinishReason, Profile, View,
};
use decanus_base::Diagnostic;
use decanus_base::units::parse_size;
use decanus_chat::{Role, Usage};
use futures::StreamExt;
use futures::stream::{self, BoxStream};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::choose::Allowed;
use crate::embedder::LocalEmbedder;
use crate::engine::Engine;
use crate::engine::memory::{Memory, default_bound};
use crate::engine::session::Need;
use crate::models::{self, Entry};
use crate::settings::Settings;
use crate::state::Outstanding;
use crate::work::Request;

/// Models in this process. Conversations with the same model share it, and its requests are answered one after
/// another; different models answer side by side, as far as there is memory for them.
#[derive(Debug)]
pub struct LocalBackend {
    home: PathBuf,
    memory: Memory,
    /// What decanus.toml says of how much they may take.
    most: Option<u64>,
    /// Models stay loaded as long as the backend does and there is memory, so that the next conversation need not wait.
    engines: Mutex<Vec<Arc<Engine>>>,
}

impl LocalBackend {
    /// A backend that looks for models in `home`, the user's decanus folder.
    pub fn new(home: PathBuf) -> Self {
        Self {
            home,
            memory: Memory::shared(),
            most: None,
            engines: Mutex::default(),
        }
    }

    /// How many bytes of memory all models together may take; DECANUS_LOCAL_MEMORY replaces it. Three quarters of the
    /// machine's memory if neither says anything.
    #[must_use]
    pub fn with_most(mut self, most: Option<u64>) -> Self {
        self.most = most;
        self
    }

    /// A memory of its own in place of the one that the process shares. Its bound is what was set there.
    #[must_use]
    pub fn with_memory(mut self, memory: Memory) -> Self {
        self.memory = memory;
        self
    }

    fn engine(&self, profile: &Profile) -> Result<(Arc<Engine>, Entry), BackendError> {
        let entry = models::resolve(&self.home, &profile.model).map_err(|e| {
            let hints: String = e.hints().into_iter().take(1).map(|h| format!("; {h}")).collect();
            BackendError::Config(format!("{e}{hints}"))
        })?;
        if self.memory.is_shared() {
            self.memory.set_bound(bound(self.most)?);
        }
        let engine = self.memory.engine(&entry.file, &entry.name)?;
        if let Ok(mut engines) = self.engines.lock()
            && !engines.iter().any(|e| Arc::ptr_eq(e, &engine))
        {
            engines.push(engine.clone());
        }
        Ok((engine, entry))
    }
}

fn bound(most: Option<u64>) -> Result<Option<u64>, BackendError> {
    const VARIABLE: &str = "DECANUS_LOCAL_MEMORY";
    match std::env::var(VARIABLE).ok().filter(|v| !v.trim().is_empty()) {
        Some(text) => parse_size(&text)
            .map(Some)
            .map_err(|e| BackendError::Config(format!("environment {VARIABLE}: {e}"))),
        None => Ok(most.or_else(default_bound)),
    }
}

impl Backend for LocalBackend {
    fn name(&self) -> &str {
        "local"
    }

    fn open(&self, profile: Arc<Profile>) -> Result<Box<dyn Conversation>, BackendError> {
        let (engine, entry) = self.engine(&profile)?;
        Ok(Box::new(LocalConversation {
            engine,
            entry,
            profile,
            warned: Vec::new(),
        }))
    }

    fn embedder(&self, profile: Arc<Profile>) -> Result<Box<dyn Embedder>, BackendError> {
        let (engine, entry) = self.engine(&profile)?;
        Ok(Box::new(LocalEmbedder::new(engine, &entry, &profile)?))
    }
}

struct LocalConversation {
    engine: Arc<Engine>,
    entry: Entry,
    profile: Arc<Profile>,
    /// What was said already of parameters without effect.
    warned: Vec<String>,
}

impl LocalConversation {
    fn request(&self, view: &View<'_>, explain: bool) -> Result<Request, BackendError> {
        if view.messages.iter().any(|m| matches!(m.role, Role::Image | Role::Pdf)) {
            return Err(BackendError::Config(format!(
                "endpoint `{}`: {} reads text only; pictures and documents need another endpoint",
                self.profile.name, self.entry.name
            )));
        }
        let mut settings = Settings::read(&[&self.entry.parameters, &self.profile.parameters, view.parameters])?;
        settings.context.context = settings.context.context.or(self.entry.context);
        let mut tools = view.tools.to_vec();
        let allowed = match view.tool_choice {
            None | Some("auto") => Allowed::Any,
            Some("none") => {
                tools.clear();
                Allowed::Any
            }
            Some("required") => Allowed::SomeTool,
            Some(name) => match tools.iter().position(|t| t.name == name) {
                Some(index) => Allowed::Only(index),
                None => {
                    return Err(BackendError::Config(format!(
                        "tool_choice: there is no tool `{name}` on offer"
                    )));
                }
            },
        };
        Ok(Request {
            messages: view.messages.to_vec(),
            tools,
            allowed,
            settings,
            trusted: self.entry.trusted,
            explain,
        })
    }

    /// The answer by a template, where the model is not trusted with one.
    fn stated(&self, view: &View<'_>) -> Option<Vec<Delta>> {
        let outstanding = if self.entry.trusted {
            return None;
        } else {
            Outstanding::of(view.messages)
        };
        if outstanding.is_empty() {
            return None;
        }
        let nothing = Usage {
            pt: Some(0),
            ct: Some(0),
            tt: Some(0),
            ..Usage::default()
        };
        Some(vec![
            Delta::Model(self.entry.name.clone()),
            Delta::StatedByTemplate,
            Delta::Text(outstanding.state()),
            Delta::Usage(nothing),
            Delta::Finish(FinishReason::Stop),
        ])
    }

    fn start(&mut self, view: &View<'_>, cx: &CallCx) -> Result<Answer, BackendError> {
        let request = self.request(view, cx.explain)?;
        let token = self.engine.token();
        let (sender, receiver) = unbounded_channel();
        for warning in request.settings.warnings() {
            if !self.warned.contains(&warning) {
                let _ = sender.send(Ok(Delta::Warning(warning.clone())));
                self.warned.push(warning);
            }
        }
        let _ = sender.send(Ok(Delta::Model(self.entry.name.clone())));
        let need = Need::Answer(request.settings.context);
        self.engine.submit_with(token.clone(), need, move |session| {
            let answered =
                session.and_then(|session| request.answer(session, &mut |delta| sender.send(Ok(delta)).is_ok()));
            if let Err(error) = answered {
                let _ = sender.send(Err(error));
            }
        })?;
        Ok(Answer {
            receiver,
            deadline: Instant::now() + cx.timeout,
            cancel: cx.cancel.clone(),
            model: self.entry.name.clone(),
            limit: cx.timeout,
            over: false,
            _stop: token.drop_guard(),
        })
    }
}

impl Conversation for LocalConversation {
    fn backend(&self) -> &str {
        "local"
    }

    fn complete<'a>(&'a mut self, view: &'a View<'a>, cx: &'a CallCx) -> BoxStream<'a, Result<Delta, BackendError>> {
        if cx.cancel.is_cancelled() {
            return stream::iter([Err(BackendError::Cancelled)]).boxed();
        }
        if let Some(deltas) = self.stated(view) {
            return stream::iter(deltas.into_iter().map(Ok)).boxed();
        }
        match self.start(view, cx) {
            Ok(answer) => {
                stream::unfold(answer, |mut answer| async move { Some((answer.next().await?, answer)) }).boxed()
            }
            Err(error) => stream::iter([Err(error)]).boxed(),
        }
    }

    fn dry_run(&mut self, view: &View<'_>, _stream: bool) -> Result<DryRun, BackendError> {
        let target = format!("local model {}", self.entry.name);
        if let Some(deltas) = self.stated(view) {
            let text = deltas
                .into_iter()
                .filter_map(|d| if let Delta::Text(t) = d { Some(t) } else { None })
                .collect();
            return Ok(DryRun {
                target: format!("{target} (not asked: a template states the result)"),
                body: text,
            });
        }
        let request = self.request(view, false)?;
        let (sender, receiver) = std::sync::mpsc::channel();
        let need = Need::Answer(request.settings.context);
        self.engine.submit_with(self.engine.token(), need, move |session| {
            let _ = sender.send(session.and_then(|session| request.rendered(session)));
        })?;
        let body = receiver
            .recv()
            .map_err(|_| BackendError::Internal("the local model's thread has ended".into()))??;
        Ok(DryRun { target, body })
    }
}

/// An answer on its way. Dropping it stops the model.
struct Answer {
    receiver: UnboundedReceiver<Result<Delta, BackendError>>,
    deadline: Instant,
    cancel: CancellationToken,
    model: String,
    limit: std::time::Duration,
    over: bool,
    _stop: DropGuard,
}

impl Answer {
    async fn next(&mut self) -> Option<Result<Delta, BackendError>> {
        if self.over {
            return None;
        }
        let next = tokio::select! {
            biased;
            () = self.cancel.cancelled() => Some(Err(BackendError::Cancelled)),
            delta = self.receiver.recv() => delta,
            () = tokio::time::sleep_until(self.deadline) => Some(Err(BackendError::TimedOut {
                target: self.model.clone(),
                what: format!("no answer within {:?}", self.limit),
            })),
        };
        self.over = !matches!(next, Some(Ok(ref delta)) if !matches!(delta, Delta::Finish(_)));
        next
    }
}
