//! One thread per loaded model. It owns the model and its context; requests come to it as closures, one after another.

mod abort;
pub mod generate;
pub mod scoring;
pub mod session;
mod threads;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::thread::JoinHandle;

use decanus_backend::BackendError;
use llama_cpp_2::llama_backend::LlamaBackend;
use llama_cpp_2::model::LlamaModel;
use llama_cpp_2::model::params::LlamaModelParams;
use tokio_util::sync::CancellationToken;

use abort::Abort;
use session::Session;
use threads::Observation;

type Work = Box<dyn FnOnce(Result<&mut Session<'_>, BackendError>) + Send>;

struct Job {
    cancel: CancellationToken,
    work: Work,
}

/// A handle on the thread of a model. The model is unloaded when the last handle is dropped.
#[derive(Debug)]
pub struct Engine {
    jobs: Option<Sender<Job>>,
    stop: CancellationToken,
    thread: Option<JoinHandle<()>>,
}

impl std::fmt::Debug for Job {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Job")
    }
}

impl Engine {
    /// The engine of a model file, shared by all who ask for the same file. Loading begins at once and in the
    /// background; its failure is what the first request gets.
    ///
    /// # Errors
    /// When no thread can be started, or this processor can't run the code.
    pub fn open(file: &Path, name: &str) -> Result<Arc<Self>, BackendError> {
        static ENGINES: OnceLock<Mutex<HashMap<PathBuf, Weak<Engine>>>> = OnceLock::new();
        check_processor()?;
        let path = file.canonicalize().unwrap_or_else(|_| file.to_owned());
        let mut engines = ENGINES
            .get_or_init(Mutex::default)
            .lock()
            .map_err(|_| BackendError::Internal("a thread failed while it opened a model".into()))?;
        if let Some(engine) = engines.get(&path).and_then(Weak::upgrade) {
            return Ok(engine);
        }
        let (jobs, receiver) = channel();
        let stop = CancellationToken::new();
        let (file, name) = (path.clone(), name.to_owned());
        let thread = std::thread::Builder::new()
            .name("local-model".into())
            .spawn(move || run(&file, &name, &receiver))
            .map_err(|e| BackendError::Internal(format!("no thread for the local model: {e}")))?;
        let engine = Arc::new(Self {
            jobs: Some(jobs),
            stop,
            thread: Some(thread),
        });
        engines.insert(path, Arc::downgrade(&engine));
        Ok(engine)
    }

    /// Queues work. It is not begun when `cancel` was triggered before its turn, and `cancel` aborts it in the middle
    /// of a computation; give a token of [`Engine::token`].
    ///
    /// # Errors
    /// When the thread is gone.
    pub fn submit(
        &self,
        cancel: CancellationToken,
        work: impl FnOnce(Result<&mut Session<'_>, BackendError>) + Send + 'static,
    ) -> Result<(), BackendError> {
        let gone = || BackendError::Internal("the local model's thread has ended".into());
        let jobs = self.jobs.as_ref().ok_or_else(gone)?;
        jobs.send(Job {
            cancel,
            work: Box::new(work),
        })
        .map_err(|_| gone())
    }

    /// A token that is also triggered when the engine is dropped.
    pub fn token(&self) -> CancellationToken {
        self.stop.child_token()
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.stop.cancel();
        self.jobs = None;
        // The process must not run its exit handlers while llama.cpp computes.
        if let Some(thread) = self.thread.take()
            && thread.thread().id() != std::thread::current().id()
        {
            let _ = thread.join();
        }
    }
}

fn run(file: &Path, name: &str, jobs: &Receiver<Job>) {
    let observation = Observation::begin();
    let loaded = backend().and_then(|backend| load(backend, file).map(|model| (backend, model)));
    let (backend, model) = match loaded {
        Ok(loaded) => loaded,
        Err(error) => {
            while let Ok(job) = jobs.recv() {
                (job.work)(Err(error.clone()));
            }
            return;
        }
    };
    let abort = Arc::new(Abort::default());
    let mut session = Session::new(backend, &model, name.to_owned(), abort.clone(), observation);
    while let Ok(job) = jobs.recv() {
        if job.cancel.is_cancelled() {
            (job.work)(Err(BackendError::Cancelled));
            continue;
        }
        abort.watch(Some(job.cancel));
        (job.work)(Ok(&mut session));
        abort.watch(None);
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
