//! One thread per model. It owns the model and its context; requests come to it as closures, one after another.

mod abort;
mod embedding;
pub mod generate;
pub mod memory;
pub mod scoring;
pub mod session;
mod size;
mod text;
mod threads;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;

use decanus_backend::BackendError;
use llama_cpp_2::llama_backend::LlamaBackend;
use llama_cpp_2::model::LlamaModel;
use llama_cpp_2::model::params::LlamaModelParams;
use tokio_util::sync::CancellationToken;

use abort::Abort;
use memory::{Extended, Memory, Seat};
use session::{ContextOptions, Need, Session};
use threads::Observation;

type Work = Box<dyn FnOnce(Result<&mut Session<'_>, BackendError>) + Send>;

struct Job {
    cancel: CancellationToken,
    need: Need,
    work: Work,
}

/// What the thread of a model is told.
enum Message {
    Job(Job),
    /// Load the model if that costs nobody anything.
    Warm,
    /// Unload the model, unless a request has come in between.
    Leave,
    End,
}

/// A handle on the thread of a model. The thread ends when the last handle is dropped; the model may come and go before,
/// as [`Memory`] has room.
#[derive(Debug)]
pub struct Engine {
    messages: Sender<Message>,
    stop: CancellationToken,
    thread: Option<JoinHandle<()>>,
}

impl std::fmt::Debug for Message {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Job(_) => "Job",
            Self::Warm => "Warm",
            Self::Leave => "Leave",
            Self::End => "End",
        })
    }
}

impl Engine {
    /// The engine of a model file in the memory that the process shares: [`Memory::engine`].
    ///
    /// # Errors
    /// When no thread can be started, or this processor can't run the code.
    pub fn open(file: &Path, name: &str) -> Result<Arc<Self>, BackendError> {
        Memory::shared().engine(file, name)
    }

    fn start(memory: Memory, file: &Path, name: &str) -> Result<Self, BackendError> {
        static SEATS: AtomicU64 = AtomicU64::new(0);
        check_processor()?;
        let (messages, receiver) = channel();
        let seat = Seat::new(memory, SEATS.fetch_add(1, Ordering::Relaxed), name, messages.clone());
        let (file, name) = (file.to_owned(), name.to_owned());
        let thread = std::thread::Builder::new()
            .name("local-model".into())
            .spawn(move || {
                let served = Served {
                    file,
                    name,
                    messages: receiver,
                    seat,
                };
                served.run();
            })
            .map_err(|e| BackendError::Internal(format!("no thread for the local model: {e}")))?;
        let _ = messages.send(Message::Warm);
        Ok(Self {
            messages,
            stop: CancellationToken::new(),
            thread: Some(thread),
        })
    }

    /// Queues work that asks for an answer with the default context: [`Engine::submit_with`].
    ///
    /// # Errors
    /// When the thread is gone.
    pub fn submit(
        &self,
        cancel: CancellationToken,
        work: impl FnOnce(Result<&mut Session<'_>, BackendError>) + Send + 'static,
    ) -> Result<(), BackendError> {
        self.submit_with(cancel, Need::Answer(ContextOptions::default()), work)
    }

    /// Queues work. It is not begun when `cancel` was triggered before its turn, and `cancel` aborts it in the middle
    /// of a computation; give a token of [`Engine::token`]. It begins when there is memory for what it needs.
    ///
    /// # Errors
    /// When the thread is gone.
    pub fn submit_with(
        &self,
        cancel: CancellationToken,
        need: Need,
        work: impl FnOnce(Result<&mut Session<'_>, BackendError>) + Send + 'static,
    ) -> Result<(), BackendError> {
        let work = Box::new(work);
        let job = Message::Job(Job { cancel, need, work });
        let gone = |_| BackendError::Internal("the local model's thread has ended".into());
        self.messages.send(job).map_err(gone)
    }

    /// A token that is also triggered when the engine is dropped.
    pub fn token(&self) -> CancellationToken {
        self.stop.child_token()
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.stop.cancel();
        let _ = self.messages.send(Message::End);
        // The process must not run its exit handlers while llama.cpp computes.
        if let Some(thread) = self.thread.take()
            && thread.thread().id() != std::thread::current().id()
        {
            let _ = thread.join();
        }
    }
}

/// The thread of a model.
struct Served {
    file: PathBuf,
    name: String,
    messages: Receiver<Message>,
    seat: Seat,
}

/// Why a loaded model is unloaded.
enum Unload {
    /// Somebody else needs its room, or it could not be loaded.
    Leave,
    /// Its next request needs more room than there is beside those who work: it begins again with so many bytes.
    Again(Job, u64),
    End,
}

impl Served {
    fn run(self) {
        let weights = std::fs::metadata(&self.file).map_or(0, |m| m.len());
        while let Ok(message) = self.messages.recv() {
            let (mut job, mut bytes) = match message {
                Message::Job(job) => (Some(job), weights),
                Message::Warm => (None, weights),
                Message::Leave => continue,
                Message::End => return,
            };
            loop {
                let taken = match &job {
                    Some(job) => self.seat.take(bytes, &job.cancel),
                    None if self.seat.take_free(bytes) => Ok(()),
                    None => break,
                };
                if let Err(error) = taken {
                    if let Some(job) = job {
                        (job.work)(Err(error));
                    }
                    break;
                }
                let unload = self.with_model(job.take(), weights);
                self.seat.leave();
                match unload {
                    Unload::Leave => break,
                    Unload::Again(again, more) => (job, bytes) = (Some(again), more),
                    Unload::End => return,
                }
            }
        }
    }

    /// Loads the model and does what it is told, for as long as the model may stay.
    fn with_model(&self, mut first: Option<Job>, weights: u64) -> Unload {
        let observation = Observation::begin();
        let loaded = backend().and_then(|backend| load(backend, &self.file).map(|model| (backend, model)));
        let (backend, model) = match loaded {
            Ok(loaded) => loaded,
            Err(error) => {
                if let Some(job) = first {
                    (job.work)(Err(error));
                }
                return Unload::Leave;
            }
        };
        let abort = Arc::new(Abort::default());
        let mut session = Session::new(backend, &model, self.name.clone(), abort.clone(), observation);
        loop {
            let job = match first.take() {
                Some(job) => job,
                None => {
                    if self.seat.rest(weights + session.caches()) {
                        return Unload::Leave;
                    }
                    match self.messages.recv() {
                        Ok(Message::Job(job)) => job,
                        Ok(Message::Warm) => continue,
                        Ok(Message::Leave) if self.seat.leaves() => return Unload::Leave,
                        Ok(Message::Leave) => continue,
                        Ok(Message::End) | Err(_) => return Unload::End,
                    }
                }
            };
            self.seat.begin();
            if job.cancel.is_cancelled() {
                (job.work)(Err(BackendError::Cancelled));
                continue;
            }
            abort.watch(Some(job.cancel.clone()));
            let needed = session.prepare(&job.need, weights, self.seat.bound());
            let extended = needed.and_then(|bytes| Ok((self.seat.extend(bytes, &job.cancel)?, bytes)));
            match extended {
                Ok((Extended::Given, _)) => (job.work)(Ok(&mut session)),
                Ok((Extended::Busy, bytes)) => return Unload::Again(job, bytes),
                Err(error) => (job.work)(Err(error)),
            }
            abort.watch(None);
        }
    }
}

fn load(backend: &LlamaBackend, file: &Path) -> Result<LlamaModel, BackendError> {
    let params = LlamaModelParams::default();
    LlamaModel::load_from_file(backend, file, &params)
        .map_err(|e| BackendError::Config(format!("{}: the model could not be loaded: {e}", file.display())))
}

fn backend() -> Result<&'static LlamaBackend, BackendError> {
    static BACKEND: OnceLock<Result<LlamaBackend, String>> = OnceLock::new();
    let made = BACKEND.get_or_init(|| {
        let mut backend = LlamaBackend::init().map_err(|e| e.to_string())?;
        if std::env::var_os("DECANUS_LOG").is_some_and(|v| !v.is_empty()) {
            llama_cpp_2::send_logs_to_tracing(llama_cpp_2::LogOptions::default());
        } else {
            backend.void_logs();
        }
        Ok(backend)
    });
    made.as_ref()
        .map_err(|e| BackendError::Internal(format!("llama.cpp could not be set up: {e}")))
}

/// llama.cpp is built for processors with these extensions and would die of an illegal instruction without them.
fn check_processor() -> Result<(), BackendError> {
    #[cfg(target_arch = "x86_64")]
    {
        let missing: Vec<&str> = [
            ("AVX2", std::is_x86_feature_detected!("avx2")),
            ("FMA", std::is_x86_feature_detected!("fma")),
            ("F16C", std::is_x86_feature_detected!("f16c")),
            ("BMI2", std::is_x86_feature_detected!("bmi2")),
        ]
        .into_iter()
        .filter_map(|(name, there)| (!there).then_some(name))
        .collect();
        if !missing.is_empty() {
            return Err(BackendError::Config(format!(
                "local models can't run on this processor: it lacks {}",
                missing.join(", ")
            )));
        }
    }
    Ok(())
}
