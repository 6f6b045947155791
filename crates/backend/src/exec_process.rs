//! The child process of a program that is a backend.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use decanus_base::process;
use decanus_base::text::{brief, escape_controls};
use futures::FutureExt;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::{ChildStderr, ChildStdin, ChildStdout};
use tokio::task::JoinHandle;

use crate::error::BackendError;
use crate::profile::Profile;

/// The longest line of standard error that is logged whole.
const MAX_LOG_LINE: usize = 4096;
/// How many of the last lines of standard error an error shows, and how much of each.
const LAST_LINES: usize = 4;
const LAST_LINE: usize = 300;
/// How long a program that has closed its output is waited for, to say how it ended.
const END: Duration = Duration::from_millis(200);

/// The program of an endpoint: a path is looked up beside the endpoint's file, and so is a bare name, before `PATH` is
/// searched.
pub(crate) fn program(profile: &Profile) -> Option<PathBuf> {
    profile.command.first().map(|program| beside(profile, program))
}

/// The same for any program that an endpoint's file names.
pub(crate) fn beside(profile: &Profile, name: &str) -> PathBuf {
    let program = Path::new(name);
    let folder = profile.file.as_deref().and_then(Path::parent);
    let beside = folder.map(|folder| folder.join(program));
    let is_path = program.components().count() > 1 || name.starts_with("./");
    match beside {
        Some(beside) if is_path || beside.is_file() => beside,
        _ => program.to_owned(),
    }
}

/// What to start.
#[derive(Debug, Clone)]
pub(crate) struct Launch {
    /// The program.
    pub program: PathBuf,
    /// Its arguments.
    pub args: Vec<String>,
    /// The folder that it runs in; none for our own.
    pub dir: Option<PathBuf>,
}

/// A running program. Dropping it ends it, with everything that it started.
pub(crate) struct Running {
    child: Option<Child>,
    stdin: Option<ChildStdin>,
    stdout: ChildStdout,
    /// What reads its standard error, and the last lines of that.
    log: JoinHandle<()>,
    last: Arc<Mutex<VecDeque<String>>>,
}

impl Running {
    /// Starts a program for an endpoint.
    pub fn start(launch: &Launch, endpoint: &str) -> Result<Self, BackendError> {
        let failed = |what: String| {
            let shown = launch.program.display();
            BackendError::Config(format!("endpoint `{endpoint}`: {shown} can't be started: {what}"))
        };
        let mut command = Command::new(&launch.program);
        command
            .args(&launch.args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        if let Some(folder) = &launch.dir {
            command.current_dir(folder);
        }
        let mut child = process::spawn(command).map_err(|e| failed(e.to_string()))?;
        let pipes = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        // From here on the child ends with this value.
        let ended = Ending::new(child);
        let (Some(stdin), Some(stdout), Some(stderr)) = pipes else {
            return Err(failed("it has no pipes".into()));
        };
        let failed = |e: std::io::Error| failed(e.to_string());
        let stderr = ChildStderr::from_std(stderr).map_err(failed)?;
        let (stdin, stdout) = (
            ChildStdin::from_std(stdin).map_err(failed)?,
            ChildStdout::from_std(stdout).map_err(failed)?,
        );
        let last = Arc::default();
        Ok(Self {
            child: ended.keep(),
            stdin: Some(stdin),
            stdout,
            log: tokio::spawn(log(stderr, endpoint.to_owned(), Arc::clone(&last))),
            last,
        })
    }

    /// Whether it runs and has said nothing since its last answer: it waits for a request.
    pub fn waits(&mut self) -> bool {
        let runs = self
            .child
            .as_mut()
            .is_some_and(|child| matches!(child.try_wait(), Ok(None)));
        let mut byte = [0];
        runs && self.stdout.read(&mut byte).now_or_never().is_none()
    }

    pub async fn write(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        let stdin = self.stdin.as_mut().ok_or(std::io::ErrorKind::BrokenPipe)?;
        stdin.write_all(bytes).await?;
        stdin.flush().await
    }

    /// The next bytes that it says; nothing when it has ended.
    pub async fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        self.stdout.read(buffer).await
    }

    /// How it ended, in words, once its output is closed, and what it said last on standard error.
    pub async fn how_it_ended(&mut self) -> String {
        let start = tokio::time::Instant::now();
        let mut how = "it closed its output".to_owned();
        while start.elapsed() < END {
            match self.child.as_mut().map(Child::try_wait) {
                Some(Ok(Some(status))) => {
                    how = format!("it ended ({status})");
                    // What it said may still be on its way, but something else may hold the pipe open.
                    let _ = tokio::time::timeout(END, &mut self.log).await;
                    break;
                }
                Some(Ok(None)) => tokio::time::sleep(Duration::from_millis(5)).await,
                _ => break,
            }
        }
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let said: Vec<&str> = last.iter().map(String::as_str).collect();
        if said.is_empty() {
            how
        } else {
            format!("{how}, and said last: {}", said.join(" / "))
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // The end of its input is the polite way to say that nothing more comes.
        self.stdin = None;
        drop(Ending(self.child.take()));
    }
}

/// Ends a child when it is dropped. That may take some seconds, so it is done on a thread of its own.
pub(crate) struct Ending(Option<Child>);

impl Ending {
    /// Ends this child when it is dropped.
    pub fn new(child: Child) -> Self {
        Self(Some(child))
    }

    /// How the child ended, if it has.
    pub fn try_wait(&mut self) -> std::io::Result<Option<ExitStatus>> {
        self.0.as_mut().map_or(Ok(None), Child::try_wait)
    }

    /// The child has ended by itself: there is nothing left to end.
    pub fn is_over(&mut self) {
        self.0 = None;
    }

    fn keep(mut self) -> Option<Child> {
        self.0.take()
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        let Some(mut child) = self.0.take() else { return };
        let stop = move || {
            if let Err(error) = process::stop(&mut child) {
                tracing::warn!(%error, "a program could not be ended");
            }
        };
        if let Err(error) = std::thread::Builder::new().name("ending".into()).spawn(stop) {
            // It gets SIGKILL when we die.
            tracing::warn!(%error, "a program could not be ended");
        }
    }
}

/// Writes what a program says on standard error to the log, line by line, and keeps the last lines.
async fn log(mut stderr: ChildStderr, endpoint: String, last: Arc<Mutex<VecDeque<String>>>) {
    let mut line: Vec<u8> = Vec::new();
    let mut buffer = [0; 4096];
    let say = |line: &mut Vec<u8>| {
        let text = String::from_utf8_lossy(line);
        if !text.trim().is_empty() {
            tracing::info!(endpoint, "{}", escape_controls(&brief(text.trim_end(), MAX_LOG_LINE)));
            let mut last = last.lock().unwrap_or_else(PoisonError::into_inner);
            if last.len() == LAST_LINES {
                last.pop_front();
            }
            last.push_back(escape_controls(&brief(text.trim(), LAST_LINE)));
        }
        line.clear();
    };
    while let Ok(n @ 1..) = stderr.read(&mut buffer).await {
        for piece in buffer[..n].split_inclusive(|b| *b == b'\n') {
            let room = MAX_LOG_LINE.saturating_sub(line.len());
            line.extend_from_slice(&piece[..piece.len().min(room)]);
            if piece.ends_with(b"\n") {
                say(&mut line);
            }
        }
    }
    say(&mut line);
}
