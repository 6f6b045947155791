//! A checkpoint of transformers as a backend: a Python process loads it and answers in lines of JSON.
//!
//! The process is started with the first request. All conversations of our process that have the same settings share it,
//! one request after the other; it is started again when it has died, and ends with us. The text that it runs,
//! `huggingface_worker.py`, is part of the binary and reaches it through its standard input.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use futures::future::BoxFuture;
use futures::stream::{self, BoxStream};
use futures::{FutureExt, StreamExt};
use serde_json::{Map, Value, json};
use tokio_util::sync::CancellationToken;

use crate::conversation::{Backend, CallCx, Conversation, Delta, DryRun, View};
use crate::dialect::{Fault, Request};
use crate::embed::{Embedder, EmbeddingApi, Embeddings, same_length};
use crate::error::BackendError;
use crate::exec_answer::{Answer, Host, Place};
use crate::exec_process::{Launch, beside};
use crate::huggingface_settings::{Mode, SETTINGS, Settings};
use crate::huggingface_wire::{Decoder, request};
use crate::profile::Profile;
use crate::reader::error_of;
use crate::redact::Redactor;
use crate::tool_names::ToolNames;

/// The backend's name.
pub(crate) const NAME: &str = "huggingface";
/// The length of the longest tool name, as with other backends.
const MAX_TOOL_NAME: usize = 64;
/// The most texts of one request: one of them is computed after the other.
const MOST_TEXTS: usize = 32;
/// What the process runs.
const WORKER: &str = include_str!("huggingface_worker.py");
/// What Python is told to do: to leave its own folder alone, to keep its standard input for itself, and to run the text
/// in the first line that it reads.
const BOOT: &str = "import sys; sys.path[:] = [p for p in sys.path if p]; import json, os; \
    lines = os.fdopen(os.dup(0), 'rb'); os.dup2(os.open(os.devnull, os.O_RDONLY), 0); \
    exec(compile(json.loads(lines.readline())['script'], 'huggingface_worker.py', 'exec'))";

/// The model of an endpoint's file that names only a checkpoint or a folder.
pub(crate) fn model_of(backend: &str, parameters: &Map<String, Value>) -> Option<String> {
    let named = ["dir", "checkpoint"].iter().find_map(|name| parameters.get(*name));
    named
        .filter(|_| backend == NAME)
        .and_then(Value::as_str)
        .map(str::to_owned)
}

/// The processes of one program, by what they were started with.
#[derive(Default)]
struct Workers(Mutex<HashMap<(PathBuf, Vec<u8>), Place>>);

impl Workers {
    /// Those of this process: they end when the last backend that uses them is gone.
    fn shared() -> Arc<Self> {
        static SHARED: Mutex<Weak<Workers>> = Mutex::new(Weak::new());
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        shared.upgrade().unwrap_or_else(|| {
            let workers = Arc::default();
            *shared = Arc::downgrade(&workers);
            workers
        })
    }

    fn place(&self, program: &Path, hello: &[u8]) -> Place {
        let mut places = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        places
            .entry((program.to_owned(), hello.to_owned()))
            .or_default()
            .clone()
    }
}

/// The backend `huggingface`: a checkpoint of transformers.
#[derive(Clone)]
pub struct HuggingFaceBackend {
    allow: bool,
    workers: Arc<Workers>,
}

impl std::fmt::Debug for HuggingFaceBackend {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HuggingFaceBackend")
            .field("allow", &self.allow)
            .finish_non_exhaustive()
    }
}

impl HuggingFaceBackend {
    /// A backend that lets the user's own endpoint files name an interpreter and trust the code of checkpoints, and with
    /// `allow` any other: a project that somebody else wrote must not be able to run anything.
    pub fn new(allow: bool) -> Self {
        Self {
            allow,
            workers: Workers::shared(),
        }
    }

    fn endpoint(&self, profile: Arc<Profile>) -> Endpoint {
        Endpoint {
            allow: self.allow,
            workers: self.workers.clone(),
            profile,
        }
    }
}

impl Backend for HuggingFaceBackend {
    fn name(&self) -> &str {
        NAME
    }

    fn open(&self, profile: Arc<Profile>) -> Result<Box<dyn Conversation>, BackendError> {
        let endpoint = self.endpoint(profile);
        endpoint.host(Mode::Chat, &Map::new())?;
        Ok(Box::new(Chat(endpoint)))
    }

    fn embedder(&self, profile: Arc<Profile>) -> Result<Box<dyn Embedder>, BackendError> {
        let endpoint = self.endpoint(profile);
        let (host, place, settings) = endpoint.host(Mode::Embed, &Map::new())?;
        Ok(Box::new(HuggingFaceEmbedder { host, place, settings }))
    }
}

/// An endpoint, and where its processes are.
struct Endpoint {
    allow: bool,
    workers: Arc<Workers>,
    profile: Arc<Profile>,
}

impl Endpoint {
    /// The process for the settings of the endpoint and those that a request has over them.
    fn host(&self, mode: Mode, over: &Map<String, Value>) -> Result<(Arc<Host>, Place, Settings), BackendError> {
        let fail = |what: String| BackendError::Config(format!("endpoint `{}`: {what}", self.profile.name));
        let settings = Settings::read(&self.profile, over, self.allow).map_err(fail)?;
        let mut hello = json!({"script": WORKER}).to_string().into_bytes();
        hello.push(b'\n');
        hello.extend(json!({"load": settings.load(mode)}).to_string().bytes());
        hello.push(b'\n');
        // Without a setting nothing is looked for beside the file: it may be the file of a project.
        let python = settings.python.as_deref();
        let program = python.map_or_else(|| "python3".into(), |python| beside(&self.profile, python));
        let place = self.workers.place(&program, &hello);
        let host = Host {
            profile: self.profile.clone(),
            target: format!("transformers ({})", settings.checkpoint),
            redactor: Redactor::new(&self.profile),
            launch: Launch {
                program,
                args: vec!["-c".into(), BOOT.into()],
                // No folder of ours: a module must not be found in a project.
                dir: Some("/".into()),
            },
            hello: Some(hello),
            stop: Some(b"{\"cancel\":true}\n".to_vec()),
        };
        Ok((Arc::new(host), place, settings))
    }

    fn encode(&self, view: &View<'_>, stream: bool) -> Result<(Vec<u8>, ToolNames), BackendError> {
        let names = ToolNames::new(view.tools, self.profile.quirks.max_tool_name.unwrap_or(MAX_TOOL_NAME));
        let wanted = Request {
            profile: &self.profile,
            view,
            names: &names,
            stream,
            previous: None,
        };
        let line = request(&wanted, &SETTINGS)
            .map_err(|fault| error_of(fault, NAME, &self.profile.model, &Redactor::default(), 200, None))?;
        Ok((line, names))
    }
}

/// A conversation with a checkpoint.
struct Chat(Endpoint);

impl Conversation for Chat {
    fn backend(&self) -> &str {
        NAME
    }

    fn complete<'a>(&'a mut self, view: &'a View<'a>, cx: &'a CallCx) -> BoxStream<'a, Result<Delta, BackendError>> {
        let begun = self.0.encode(view, cx.stream).and_then(|(line, names)| {
            let (host, place, _) = self.0.host(Mode::Chat, view.parameters)?;
            let offered = match view.tool_choice {
                Some("none") => Arc::default(),
                _ => Arc::new(names.clone()),
            };
            let decoder = Box::new(Decoder::new(offered));
            Ok(Answer::new(host, place, line, names, decoder, cx.clone()))
        });
        match begun {
            Ok(answer) => answer.stream(),
            Err(error) => stream::once(std::future::ready(Err(error))).boxed(),
        }
    }

    fn dry_run(&mut self, view: &View<'_>, stream: bool) -> Result<DryRun, BackendError> {
        let (line, _) = self.0.encode(view, stream)?;
        let (host, ..) = self.0.host(Mode::Chat, view.parameters)?;
        let body = String::from_utf8(line).map_err(|e| BackendError::Internal(e.to_string()))?;
        Ok(DryRun {
            target: host.target.clone(),
            body,
        })
    }
}

/// Vectors of a checkpoint.
struct HuggingFaceEmbedder {
    host: Arc<Host>,
    place: Place,
    settings: Settings,
}

impl HuggingFaceEmbedder {
    async fn request(&self, texts: &[String]) -> Result<Embeddings, BackendError> {
        let mut body = self.settings.embedding();
        body.insert("texts".into(), json!(texts));
        let line = json!({"embed": body}).to_string().into_bytes();
        let cx = CallCx {
            cancel: CancellationToken::new(),
            timeout: self.host.profile.timeouts.total,
            stream: false,
            explain: false,
            pass: None,
            raw: Default::default(),
        };
        let decoder = Box::new(Decoder::new(Arc::default()));
        let answer = Answer::new(
            self.host.clone(),
            self.place.clone(),
            line,
            ToolNames::default(),
            decoder,
            cx,
        );
        let mut stream = answer.stream();
        let (mut vectors, mut usage) = (Value::Null, decanus_chat::Usage::default());
        while let Some(delta) = stream.next().await {
            match delta? {
                Delta::Part(part) => vectors = part,
                Delta::Usage(counted) => usage = counted,
                _ => {}
            }
        }
        // The checks are those of every provider's vectors.
        let body = json!({"embeddings": vectors}).to_string();
        let read = EmbeddingApi::Ollama.decode(body.as_bytes(), texts.len());
        let mut made = read.map_err(|fault| self.error(fault))?;
        made.usage = usage;
        made.model = Some(self.settings.checkpoint.clone());
        Ok(made)
    }

    fn error(&self, fault: Fault) -> BackendError {
        let Host { target, redactor, .. } = &*self.host;
        error_of(fault, target, &self.settings.checkpoint, redactor, 200, None)
    }
}

impl Embedder for HuggingFaceEmbedder {
    fn embed<'a>(&'a self, texts: &'a [String]) -> BoxFuture<'a, Result<Embeddings, BackendError>> {
        async move {
            let mut all = Embeddings::default();
            for some in texts.chunks(MOST_TEXTS) {
                let part = self.request(some).await?;
                all.vectors.extend(part.vectors);
                all.usage += part.usage;
                all.model = all.model.or(part.model);
            }
            same_length(&all.vectors).map_err(|reason| self.error(Fault::Malformed(reason)))?;
            Ok(all)
        }
        .boxed()
    }
}
