//! From a question to a session that can be run: flags over chat over endpoint over defaults.

use std::path::PathBuf;
use std::sync::Arc;

use decanus_agent::{Agent, Outcome, Request};
use decanus_backend::{DryRun, Profile};
use decanus_base::ErrorKind;
use decanus_base::settings::Source;
use decanus_chat::file::PATIENCE;
use decanus_chat::{ChatFile, MemoryTranscript, Problem, Transcript, plan};
use decanus_tool::Run;
use decanus_tool::run::Limits;
use tokio_util::sync::CancellationToken;

use crate::Decanus;
use crate::error::Error;
use crate::options::Options;

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
            read_only: false,
            cancel: CancellationToken::new(),
        }
    }
}

/// A question with everything decided and nothing done yet.
pub struct Session {
    agent: Agent,
    request: Option<Request>,
    store: Box<dyn Transcript>,
    /// The endpoint that will be asked.
    pub profile: Arc<Profile>,
    /// The bounds to run in: the project's, with those of the options over them.
    pub limits: Limits,
    /// What the user should know before it starts.
    pub warnings: Vec<String>,
}

impl Session {
    /// Asks, and calls tools until there is an answer.
    pub async fn run(&mut self, run: &Run) -> Outcome {
        match self.request.take() {
            Some(request) => self.agent.run(request, self.store.as_mut(), run).await,
            None => Outcome {
                idle: true,
                ..Outcome::default()
            },
        }
    }

    /// The first request, without sending it.
    ///
    /// # Errors
    /// Those of encoding.
    pub fn dry_run(&mut self) -> Result<DryRun, Error> {
        let request = self
            .request
            .as_ref()
            .ok_or_else(|| Error::usage("this session was run already"))?;
        Ok(self.agent.dry_run(request)?)
    }
}

impl Decanus {
    /// Decides everything about a question: reads the chat, finds endpoint, model and tools. Nothing is asked or run.
    ///
    /// # Errors
    /// Unknown endpoints, models and tools, bad files, a chat that somebody else holds.
    pub async fn prepare(&self, ask: Ask) -> Result<Session, Error> {
        let (store, parsed): (Box<dyn Transcript>, _) = match &ask.chat {
            None => (Box::new(MemoryTranscript::default()), decanus_chat::Parsed::default()),
            Some(path) if ask.read_only => {
                let loaded = if path.exists() {
                    ChatFile::read(path)?
                } else {
                    decanus_chat::Loaded::default()
                };
                (Box::new(MemoryTranscript::default()), loaded.parsed)
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
        let plan = plan(&parsed.messages);
        let mut warnings = problems(&ask, parsed.problems.iter().chain(&plan.problems));
        let mut options = Options::default();
        for (key, value) in &plan.options {
            options.set(key, value.as_str().unwrap_or_default())?;
        }
        // What the chat's roles say holds over its own options; flags hold over both.
        options.endpoint = plan.endpoint.clone().or(options.endpoint);
        options.model = plan.model.clone().or(options.model);
        for (key, value) in &ask.options {
            options.set(key, value)?;
        }
        warnings.append(&mut options.warnings);
        let (name, _) = self.endpoint_name(ask.endpoint.clone().or(options.endpoint.clone()))?;
        let mut profile = self.endpoints.load(&name)?;
        if let Some(model) = ask.model.clone().or(options.model.clone()) {
            profile.model = model;
        }
        let profile = Arc::new(profile);
        let specs: Vec<String> = plan
            .tools
            .iter()
            .map(|(spec, _)| spec.clone())
            .chain(ask.tools.clone())
            .collect();
        let registry = Arc::new(self.tools(&specs).await?);
        warnings.extend(registry.warnings().iter().cloned());
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
        let backend = self
            .backends
            .get(&profile.backend)
            .map_err(|e| match profile.backend.as_str() {
                "local" => Error::new(ErrorKind::Config, "this build has no local models")
                    .hint("build with `cargo build --release --features decanus-cli/local`, as ./demo does"),
                _ => Error::of(&e),
            })?;
        let conversation = backend.open(profile.clone())?;
        let request = Request {
            messages: plan.messages,
            question: ask.question,
            totals: decanus_chat::meta::totals(&parsed.messages),
            parameters: options.parameters,
            tool_choice: options.tool_choice,
            stream: ask.stream,
            explain: ask.explain,
        };
        let model = if profile.model.is_empty() {
            profile.name.clone()
        } else {
            profile.model.clone()
        };
        Ok(Session {
            agent: Agent::new(conversation, registry, model),
            request: Some(request),
            store,
            profile,
            limits,
            warnings,
        })
    }

    /// The endpoint to ask, and who says so: what was named, the environment, decanus.toml, or `local` when it has a
    /// model.
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
        if self.local_is_ready && self.backends.names().any(|n| n == "local") {
            return Ok(("local".into(), Source::Default));
        }
        Err(Error::new(ErrorKind::Config, "no endpoint to ask")
            .hint("a model on this machine: `decanus model pull smollm2-135m`, then ask again (needs a build with `local`)")
            .hint("a provider: set OPENAI_API_KEY and use `-e openai`, or write endpoints/NAME.yaml and use `-e NAME`"))
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

fn problems<'a>(ask: &Ask, problems: impl Iterator<Item = &'a Problem>) -> Vec<String> {
    let file = ask.chat.as_ref().map(|p| p.display().to_string()).unwrap_or_default();
    problems.map(|p| format!("{file}:{}: {}", p.line, p.message)).collect()
}
