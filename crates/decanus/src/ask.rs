//! From a question to a session that can be run: flags over chat over endpoint over defaults.

use std::path::PathBuf;
use std::sync::Arc;

use decanus_agent::{Agent, Format, Outcome, Request};
use decanus_backend::cache::{self, CachedConversation, KeyParts};
use decanus_backend::{BackendError, Conversation, DryRun, FallbackConversation, Profile};
use decanus_base::ErrorKind;
use decanus_base::settings::Source;
use decanus_chat::file::PATIENCE;
use decanus_chat::plan::{Config, Grant, Item, Place, Plan, Severity, ToolUse};
use decanus_chat::strategy::{self, Strategies, Window};
use decanus_chat::{ChatFile, NoTranscript, Role, Transcript, plan};
use decanus_tool::run::Limits;
use decanus_tool::{Event, Offer, Permissions, Run, SourceError, ToolRegistry};
use tokio_util::sync::CancellationToken;

use crate::Decanus;
use crate::actions::{Actions, at};
use crate::error::Error;
use crate::options::Options;
use crate::snapshot::{self, is_worth_it};

/// The tools of a declaration, or how bad it is that there are none, and why.
pub(crate) type Declared = Result<Vec<Offer>, (Severity, Error)>;

/// A question and how to ask it.
#[derive(Debug, Clone)]
pub struct Ask {
    /// The chat file to continue; none for a question that leaves no chat behind.
    pub chat: Option<PathBuf>,
    /// The question; none to go on with the chat. It is text: nothing in it is read as chat syntax.
    pub question: Option<String>,
    /// The endpoint, over everything else that names one.
    pub endpoint: Option<String>,
    /// The model, over everything else that names one.
    pub model: Option<String>,
    /// Tools, besides those that the chat declares.
    pub tools: Vec<String>,
    /// Options, over those of the chat.
    pub options: Vec<(String, String)>,
    /// Whether to ask for streams.
    pub stream: bool,
    /// Whether to tell how choices are made.
    pub explain: bool,
    /// Whether `cmd` messages of the chat may run commands.
    pub allow_cmd: bool,
    /// Whether answers are neither taken from the cache nor kept in it.
    pub no_cache: bool,
    /// Do not lock or change the chat: for a dry run.
    pub read_only: bool,
    /// Ends the wait for a chat that somebody else holds.
    pub cancel: CancellationToken,
}

impl Ask {
    /// A question without a chat, with everything else left to the defaults.
    pub fn question(text: impl Into<String>) -> Self {
        Self {
            question: Some(text.into()),
            ..Self::empty()
        }
    }

    /// Nothing yet.
    pub fn empty() -> Self {
        Self {
            chat: None,
            question: None,
            endpoint: None,
            model: None,
            tools: Vec::new(),
            options: Vec::new(),
            stream: true,
            explain: false,
            allow_cmd: false,
            no_cache: false,
            read_only: false,
            cancel: CancellationToken::new(),
        }
    }
}

/// A question with everything decided and nothing done yet.
pub struct Session {
    agent: Agent,
    request: Option<Request>,
    items: Vec<Item>,
    actions: Actions,
    store: Box<dyn Transcript>,
    /// Where snapshots of failed requests go.
    failures: PathBuf,
    /// The endpoint that will be asked.
    pub profile: Arc<Profile>,
    /// The bounds to run in: the project's, with those of the options over them.
    pub limits: Limits,
    /// The paths that the chat grants.
    pub permissions: Permissions,
    /// Whether the answer has a form: then only the whole of it is of use.
    pub structured: bool,
    /// What the user should know before it starts.
    pub warnings: Vec<String>,
}

impl Session {
    /// Carries out what the chat asks for first, asks, and calls tools until there is an answer.
    pub async fn run(&mut self, run: &Run) -> Outcome {
        let Some(mut request) = self.request.take() else {
            return Outcome {
                idle: true,
                ..Outcome::default()
            };
        };
        match self.actions.carry_out(std::mem::take(&mut self.items), run).await {
            Ok(messages) => request.messages = messages,
            Err(error) => {
                return Outcome {
                    error: Some(error),
                    ..Outcome::default()
                };
            }
        }
        let mut outcome = self.agent.run(request.clone(), self.store.as_mut(), run).await;
        if let Some(error) = outcome.error.as_ref().filter(|e| is_worth_it(e)) {
            // The request that failed: what was there before, and what the run has added.
            let added = outcome.messages.iter().filter(|m| m.role != Role::Meta).cloned();
            request.messages.extend(added);
            request.question = None;
            let sent = self.agent.dry_run(&request, run.limits().context_tokens).ok();
            let written = snapshot::write(
                &self.failures,
                self.agent.endpoint().unwrap_or(&self.profile),
                error,
                sent.as_ref(),
                outcome.raw.as_ref(),
                &outcome.answer,
                &request.messages,
            );
            match written {
                Ok(path) => outcome.snapshot = Some(path),
                Err(e) => tracing::warn!("what there was of the failed request was not kept: {e}"),
            }
        }
        outcome
    }

    /// The first request, without sending it. No task or command is run: stored results are taken, and what is missing
    /// is warned of.
    ///
    /// # Errors
    /// Those of encoding, and actions of the chat that can never be carried out.
    pub fn dry_run(&mut self, run: &Run) -> Result<DryRun, Error> {
        self.compile_dry(run)?;
        let request = self.request.as_ref().ok_or_else(already_run)?;
        Ok(self.agent.dry_run(request, run.limits().context_tokens)?)
    }

    /// Puts the messages into the request as far as they are known without running anything.
    fn compile_dry(&mut self, run: &Run) -> Result<(), Error> {
        let request = self.request.as_mut().ok_or_else(already_run)?;
        let carried = self.actions.look_up(self.items.clone(), run);
        if let Some((place, error)) = carried.failed.into_iter().next() {
            return Err(at(&place, error).into());
        }
        for action in carried.undone {
            let text = format!(
                "{}: {} was not run; its result is not in this request",
                action.place, action.message.role
            );
            run.emit(Event::Warning(text));
        }
        request.messages = carried.messages;
        Ok(())
    }
}

impl Session {
    /// The key under which the answer to the first request would be stored, with its parts. Nothing is sent or run.
    ///
    /// # Errors
    /// Those of [`dry_run`](Self::dry_run).
    pub fn cache_key(&mut self, run: &Run) -> Result<(String, KeyParts), Error> {
        self.compile_dry(run)?;
        let request = self.request.as_ref().ok_or_else(already_run)?;
        let profile = self.profile.clone();
        Ok(self
            .agent
            .with_view(request, run.limits().context_tokens, |conversation, view| {
                cache::key(conversation, &profile, view)
            })??)
    }
}

/// How long a prompt is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TokenCount {
    /// Tokens.
    pub tokens: u64,
    /// The provider does not count: the number is estimated from the request's length.
    pub is_estimate: bool,
}

impl Decanus {
    /// The prompt tokens of a session's first request, as the provider counts them if it does. Nothing is run.
    ///
    /// # Errors
    /// Those of [`Session::dry_run`], and of asking the provider.
    pub async fn count_tokens(&self, session: &mut Session, run: &Run) -> Result<TokenCount, Error> {
        let body = session.dry_run(run)?.body;
        let backend = self.backends.get(&session.profile.backend)?;
        let counted = match backend.counter(session.profile.clone())? {
            Some(counter) => match counter.count(&body).await {
                Ok(tokens) => Some(tokens),
                // A server that imitates the provider need not count.
                Err(BackendError::Refused {
                    status: 404 | 405 | 501,
                    ..
                }) => {
                    let endpoint = &session.profile.name;
                    run.emit(Event::Warning(format!(
                        "endpoint {endpoint} does not count tokens; their number is estimated"
                    )));
                    None
                }
                Err(error) => return Err(error.into()),
            },
            None => None,
        };
        Ok(TokenCount {
            tokens: counted.unwrap_or_else(|| strategy::estimate_tokens(&body)),
            is_estimate: counted.is_none(),
        })
    }

    /// Decides everything about a question: reads the chat, finds endpoint, model and tools. Nothing is asked or run.
    ///
    /// # Errors
    /// Unknown endpoints, models and tools, bad files, a chat that somebody else holds or that asks for what can't be
    /// done.
    pub async fn prepare(&self, ask: Ask) -> Result<Session, Error> {
        let (store, parsed): (Box<dyn Transcript>, _) = match &ask.chat {
            None => (Box::new(NoTranscript::default()), decanus_chat::Parsed::default()),
            Some(path) if ask.read_only => {
                let loaded = if path.exists() {
                    ChatFile::read(path)?
                } else {
                    decanus_chat::Loaded::default()
                };
                (Box::new(NoTranscript::default()), loaded.parsed)
            }
            Some(path) => {
                let (chat, loaded) = open_chat(path.clone(), ask.cancel.clone()).await?;
                if let Some(line) = loaded.parsed.open_region {
                    let path = path.to_owned();
                    return Err(decanus_chat::StoreError::OpenRegion { file: path, line }.into());
                }
                (Box::new(chat), loaded.parsed)
            }
        };
        let lookup = self.lookup(ask.chat.as_deref(), ask.allow_cmd);
        let totals = decanus_chat::meta::totals(&parsed.messages);
        let plan = plan(parsed, ask.chat.as_deref(), &lookup);
        refuse(&plan)?;
        let mut warnings: Vec<String> = plan.findings.iter().map(ToString::to_string).collect();
        let mut options = Options::default();
        let taken = options.take(&plan.options);
        if let Some((place, error)) = taken.faults.into_iter().next() {
            return Err(at(&place, error).into());
        }
        warnings.extend(taken.warnings.iter().map(|(place, text)| format!("{place}: {text}")));
        for (key, value) in &ask.options {
            match value.as_str() {
                "nil" => options.unset(key),
                _ => options.set(key, value)?,
            }
        }
        warnings.append(&mut options.warnings);
        let (name, _) = self.endpoint_name(ask.endpoint.clone().or(options.endpoint.clone()))?;
        let mut profiles = self.endpoints.load_chain(&name)?;
        if let Some((model, first)) = ask.model.clone().or(options.model.clone()).zip(profiles.first_mut()) {
            first.model = model;
        }
        for profile in &mut profiles {
            self.endpoints.price(profile)?;
            warnings.append(&mut profile.warnings);
            for key in &options.removed {
                profile.parameters.shift_remove(key);
            }
        }
        let mut offers = Vec::new();
        for (place, found) in self.declared_tools(&plan).await {
            let found = found.map_err(|(_, e)| at(&place, e))?;
            if !ask.read_only {
                self.consent(&found, &place).await?;
            }
            offers.extend(found);
        }
        for spec in &ask.tools {
            offers.extend(ToolRegistry::find(&self.sources, spec).await?);
        }
        self.offer_check(&mut offers).await?;
        let registry = Arc::new(ToolRegistry::new(offers));
        warnings.extend(registry.warnings().iter().cloned());
        warnings.extend(self.unknown_rules(&registry).await);
        if let Some(choice) = &options.tool_choice {
            let known = ["auto", "none", "required"].contains(&choice.as_str()) || registry.get(choice).is_some();
            if !known {
                let guess = decanus_base::names::did_you_mean(choice, registry.names());
                return Err(Error::usage(format!(
                    "tool_choice `{choice}` is no tool of this question{guess}"
                )));
            }
        }
        let mut limits = Limits::from_settings(&self.settings.limits);
        options.apply_limits(&mut limits)?;
        let (profile, mut conversation) = self.open_all(profiles)?;
        if !ask.no_cache && options.persist.unwrap_or(true) {
            conversation = Box::new(CachedConversation::new(
                conversation,
                profile.clone(),
                self.answers.clone(),
            ));
        }
        let format = options.parameters.get("format").or(profile.parameters.get("format"));
        let format = format
            .map_or(Ok(None), Format::of)
            .map_err(|text| match plan.options.get("format") {
                Some(setting) => at(&setting.place, Error::usage(text)).into(),
                None => Error::usage(text),
            })?;
        if limits.cost.is_some() && profile.prices.is_none() {
            warnings.push(format!(
                "what {} costs at the endpoint {} is not known, so limits.cost can't hold; give `prices` in its file",
                profile.model, profile.name
            ));
        }
        let searches = options
            .parameters
            .get("websearch")
            .or(profile.parameters.get("websearch"));
        if searches == Some(&serde_json::Value::Bool(true))
            && !["responses", "vllm"].contains(&profile.backend.as_str())
        {
            warnings.push(format!("the backend {} has no web search here", profile.backend));
        }
        let structured = format.is_some();
        let request = Request {
            messages: Vec::new(),
            question: ask.question,
            totals,
            parameters: options.parameters,
            tool_choice: options.tool_choice,
            prices: profile.prices,
            excludes_cached: profile.excludes_cached(),
            format,
            window: self
                .window(&plan, options.prompt_strategies.as_deref())
                .map_err(|(place, error)| match place {
                    Some(place) => at(&place, error).into(),
                    None => error,
                })?,
            stream: ask.stream,
            explain: ask.explain,
        };
        let model = if profile.model.is_empty() {
            profile.name.clone()
        } else {
            profile.model.clone()
        };
        let permissions = permissions(&plan);
        Ok(Session {
            agent: Agent::new(conversation, registry, model),
            request: Some(request),
            actions: self.actions(&permissions),
            items: plan.items,
            store,
            failures: self.project.data().join("logs/failed"),
            profile,
            limits,
            permissions,
            structured,
            warnings,
        })
    }

    /// Opens an endpoint and those to ask when it fails, each behind its limits.
    pub(crate) fn open_all(&self, profiles: Vec<Profile>) -> Result<(Arc<Profile>, Box<dyn Conversation>), Error> {
        let mut opened = Vec::new();
        for profile in profiles {
            let profile = Arc::new(profile);
            let backend = self
                .backends
                .get(&profile.backend)
                .map_err(|e| match profile.backend.as_str() {
                    "local" => Error::new(ErrorKind::Config, "this build has no local models")
                        .hint("build with `cargo build --release --features decanus-cli/local`, as ./demo does"),
                    "bedrock" => Error::new(ErrorKind::Config, "this build has no Bedrock")
                        .hint("build with `cargo build --release --features decanus-cli/bedrock`"),
                    _ => Error::of(&e),
                })?;
            let conversation = backend.open(profile.clone())?;
            opened.push((profile.clone(), self.governor.limit(conversation, &profile)));
        }
        match opened.as_slice() {
            [] => Err(Error::usage("there is no endpoint to ask")),
            [_] => Ok(opened.remove(0)),
            [(first, _), ..] => {
                let first = first.clone();
                Ok((first, Box::new(FallbackConversation::new(opened)?)))
            }
        }
    }

    /// The tools that a chat declares, each declaration by itself.
    pub(crate) async fn declared_tools(&self, plan: &Plan) -> Vec<(Place, Declared)> {
        let mut all = Vec::new();
        for tool in &plan.tools {
            all.push((tool.place.clone(), self.declared(tool).await));
        }
        all
    }

    async fn declared(&self, tool: &ToolUse) -> Declared {
        let error = match ToolRegistry::find(&self.sources, &tool.spec()).await {
            Ok(found) => return narrow(found, tool),
            Err(error) => error,
        };
        // `calculator operation=add` has inputs and no task.
        if let Some(other) = tool.without_task()
            && let Ok(found) = ToolRegistry::find(&self.sources, &tool.name).await
            && let [one] = found.as_slice()
            && one.definition.name == tool.name
        {
            return narrow(found, &other);
        }
        let severity = match error {
            SourceError::Unknown(_) => Severity::Warning,
            SourceError::Config(_) => Severity::Error,
        };
        Err((severity, error.into()))
    }

    /// How the model sees a chat: by the strategies that are named, else the default; their settings from the
    /// environment, with those of the chat over them.
    pub(crate) fn window(&self, plan: &Plan, names: Option<&str>) -> Result<Window, (Option<Place>, Error)> {
        let chain = self
            .strategies
            .resolve(names.unwrap_or(Strategies::DEFAULT))
            .map_err(|e| {
                let setting = plan.options.get("prompt_strategies");
                let said_so = setting.filter(|s| names == Some(s.text.as_str()));
                (said_so.map(|s| s.place.clone()), Error::from(e))
            })?;
        let config = |text| Error::new(ErrorKind::Config, text);
        let mut settings =
            strategy::Settings::from_env(|name| std::env::var(name).ok()).map_err(|text| (None, config(text)))?;
        let known = |c: &&Config| strategy::Settings::KNOWN.contains(&c.key.as_str());
        for line in plan.config.iter().filter(known) {
            settings
                .set(&line.key, &line.value)
                .map_err(|text| (Some(line.place.clone()), config(text)))?;
        }
        Ok(Window { chain, settings })
    }

    pub(crate) fn actions(&self, permissions: &Permissions) -> Actions {
        let mut readable = self.readable();
        readable.extend(permissions.readable().cloned());
        Actions {
            workflows: self.workflows.clone(),
            jobs: self.jobs.clone(),
            readable,
        }
    }

    /// The endpoint to ask, and who says so: what was named, the environment, decanus.toml, `responses` when its key is
    /// set, or `local` when it has a model.
    ///
    /// # Errors
    /// When nobody names one and there is no local model: the error shows both ways.
    pub fn endpoint_name(&self, named: Option<String>) -> Result<(String, Source), Error> {
        if let Some(name) = named {
            return Ok((name, Source::Flag));
        }
        if let Some(found) = self.settings.default_endpoint() {
            return Ok(found);
        }
        // A provider is asked by itself only when its key says that this is meant.
        if self.endpoints.load("responses").is_ok_and(|p| p.key.is_some()) {
            return Ok(("responses".into(), Source::Default));
        }
        if self.local_is_ready && self.backends.names().any(|n| n == "local") {
            return Ok(("local".into(), Source::Default));
        }
        Err(Error::new(ErrorKind::Config, "no endpoint to ask")
            .hint("a model on this machine: `decanus model pull smollm2-135m`, then ask again (needs a build with `local`)")
            .hint("a provider: set OPENAI_API_KEY (or use `-e anthropic`, `-e gemini` with their keys), or write endpoints/NAME.yaml and use `-e NAME`"))
    }
}

/// Opens a chat on a thread for blocking work: somebody else may hold it for a while.
async fn open_chat(path: PathBuf, cancel: CancellationToken) -> Result<(ChatFile, decanus_chat::Loaded), Error> {
    let stop = cancel.clone();
    let opened = tokio::task::spawn_blocking(move || ChatFile::open(&path, PATIENCE, &|| stop.is_cancelled())).await;
    match opened {
        Ok(Err(decanus_chat::StoreError::Held(_))) if cancel.is_cancelled() => {
            Err(Error::new(ErrorKind::Interrupted, "interrupted"))
        }
        Ok(result) => Ok(result?),
        Err(e) => Err(Error::new(
            ErrorKind::Internal,
            format!("the chat could not be opened: {e}"),
        )),
    }
}

fn already_run() -> Error {
    Error::usage("this session was run already")
}

/// The paths that a chat grants.
pub(crate) fn permissions(plan: &Plan) -> Permissions {
    let (write, read) = plan.grants.iter().cloned().partition::<Vec<_>, _>(|g| g.write);
    let paths = |grants: Vec<Grant>| grants.into_iter().map(|g| g.path).collect();
    Permissions {
        read: paths(read),
        write: paths(write),
    }
}

/// The tools of a declaration, with the inputs that it chooses.
fn narrow(found: Vec<Offer>, tool: &ToolUse) -> Declared {
    let Some(shown) = &tool.shown else {
        return Ok(found);
    };
    let [_] = found.as_slice() else {
        let text = format!(
            "inputs can be chosen for one task only: `tool: {} TASK input…`",
            tool.name
        );
        return Err((Severity::Error, Error::usage(text)));
    };
    let narrowed = found.into_iter().map(|offer| offer.narrow(shown, &tool.forced));
    narrowed
        .collect::<Result<_, _>>()
        .map_err(|text| (Severity::Error, Error::usage(text)))
}

/// A chat that asks for what can't be done is not asked.
fn refuse(plan: &Plan) -> Result<(), Error> {
    let mut errors = plan.errors();
    let Some(first) = errors.next() else {
        return Ok(());
    };
    let error = Error::new(ErrorKind::Config, first.to_string());
    Err(match errors.count() {
        0 => error,
        more => error.hint(format!(
            "and {more} more: `decanus chat check {}` lists all",
            first.shown
        )),
    })
}
