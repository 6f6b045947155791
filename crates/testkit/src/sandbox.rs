//! A project in a folder of its own, and a binary run in it.

use std::io::{Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use crate::normalise::normalise;

/// Variables that would let the tester's own settings into a test.
const FOREIGN: [&str; 5] = ["DECANUS_", "OPENAI_", "ANTHROPIC_", "GEMINI_", "AWS_"];
const PROXIES: [&str; 4] = ["http_proxy", "https_proxy", "all_proxy", "no_proxy"];

/// How a run ended.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// The exit code; 128 + the signal when one ended it.
    pub code: i32,
    /// What it wrote to stdout.
    pub stdout: String,
    /// What it wrote to stderr.
    pub stderr: String,
    /// Whether it was ended for taking too long.
    pub timed_out: bool,
    /// How long it took.
    pub time: Duration,
}

impl Outcome {
    /// Stdout as JSON.
    ///
    /// # Panics
    /// When it is something else.
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|e| panic!("stdout is no JSON ({e}): {self}"))
    }

    /// Checks the exit code.
    ///
    /// # Panics
    /// When it is another one.
    pub fn exits(self, code: i32) -> Self {
        assert!(self.code == code, "expected exit code {code}: {self}");
        self
    }
}

impl std::fmt::Display for Outcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let ended = if self.timed_out { " (timed out)" } else { "" };
        write!(
            f,
            "exit {}{ended}\n--- stdout\n{}\n--- stderr\n{}",
            self.code, self.stdout, self.stderr
        )
    }
}

/// A project folder and a home of its own; both are gone with it.
pub struct Sandbox {
    _folder: tempfile::TempDir,
    project: PathBuf,
    home: PathBuf,
    env: Vec<(String, String)>,
    timeout: Duration,
}

impl Default for Sandbox {
    fn default() -> Self {
        Self::new()
    }
}

impl Sandbox {
    /// An empty project.
    ///
    /// # Panics
    /// When no folder can be made.
    pub fn new() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let base = folder.path().canonicalize().expect("its path");
        let (project, home) = (base.join("project"), base.join("home"));
        std::fs::create_dir_all(&project).expect("a project folder");
        std::fs::create_dir_all(&home).expect("a home");
        Self {
            _folder: folder,
            project,
            home,
            env: Vec::new(),
            timeout: Duration::from_secs(60),
        }
    }

    /// The project's folder.
    pub fn project(&self) -> &Path {
        &self.project
    }

    /// `DECANUS_HOME`, and `HOME`.
    pub fn home(&self) -> &Path {
        &self.home
    }

    /// A path in the project.
    pub fn path(&self, path: impl AsRef<Path>) -> PathBuf {
        self.project.join(path)
    }

    /// Writes a file of the project, with its folders.
    ///
    /// # Panics
    /// When it can't be written.
    pub fn write(&self, path: impl AsRef<Path>, content: impl AsRef<[u8]>) -> &Self {
        let path = self.path(path);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("its folder");
        std::fs::write(&path, content).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        self
    }

    /// Reads a file of the project.
    ///
    /// # Panics
    /// When it can't be read.
    pub fn read(&self, path: impl AsRef<Path>) -> String {
        let path = self.path(path);
        std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
    }

    /// Writes an endpoint for an OpenAI server at a URL.
    pub fn endpoint(&self, name: &str, url: &str) -> &Self {
        self.write(
            format!("endpoints/{name}.yaml"),
            format!("backend: openai\nurl: {url}\nmodel: scripted\n"),
        )
    }

    /// Sets a variable for all runs.
    #[must_use]
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.env.push((name.into(), value.into()));
        self
    }

    /// Ends runs after this time.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// A command that would run a binary in the project: for tests that need the process itself.
    pub fn command(&self, binary: impl AsRef<Path>, args: &[&str]) -> Command {
        let mut command = Command::new(binary.as_ref());
        for (name, _) in std::env::vars_os() {
            let text = name.to_string_lossy();
            if FOREIGN.iter().any(|f| text.starts_with(f)) || PROXIES.contains(&text.to_lowercase().as_str()) {
                command.env_remove(&name);
            }
        }
        command
            .args(args)
            .current_dir(&self.project)
            .env("DECANUS_HOME", &self.home)
            .env("HOME", &self.home)
            .envs(self.env.iter().map(|(n, v)| (n, v)))
            .process_group(0);
        command
    }

    /// Runs a binary in the project, with nothing on stdin.
    pub fn run(&self, binary: impl AsRef<Path>, args: &[&str]) -> Outcome {
        self.run_with(binary, args, b"")
    }

    /// Runs a binary in the project.
    ///
    /// # Panics
    /// When it can't be started.
    pub fn run_with(&self, binary: impl AsRef<Path>, args: &[&str], stdin: &[u8]) -> Outcome {
        let begin = Instant::now();
        let mut command = self.command(&binary, args);
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap_or_else(|e| panic!("{}: {e}", binary.as_ref().display()));
        let mut input = child.stdin.take().expect("stdin");
        let stdin = stdin.to_vec();
        // A program that does not read its stdin is fine.
        std::thread::spawn(move || drop(input.write_all(&stdin)));
        let stdout = collect(child.stdout.take().expect("stdout"));
        let stderr = collect(child.stderr.take().expect("stderr"));
        let mut timed_out = false;
        let status = loop {
            if let Some(status) = child.try_wait().expect("the child's state") {
                break status;
            }
            if begin.elapsed() > self.timeout && !timed_out {
                timed_out = true;
                // The whole group, so that nothing keeps the pipes open.
                let _ = killpg(Pid::from_raw(child.id() as i32), Signal::SIGKILL);
            }
            std::thread::sleep(Duration::from_millis(2));
        };
        let time = begin.elapsed();
        // What it left behind would keep the pipes open for ever.
        let _ = killpg(Pid::from_raw(child.id() as i32), Signal::SIGKILL);
        let text = |thread: std::thread::JoinHandle<Vec<u8>>| {
            String::from_utf8_lossy(&thread.join().expect("a reader")).into_owned()
        };
        let code = status.code().or_else(|| status.signal().map(|s| 128 + s)).unwrap_or(-1);
        Outcome {
            code,
            stdout: text(stdout),
            stderr: text(stderr),
            timed_out,
            time,
        }
    }

    /// A text with everything replaced that differs from run to run: the folders, and what [`normalise`] replaces.
    pub fn normalise(&self, text: &str) -> String {
        let text = text.replace(&*self.project.to_string_lossy(), "[PROJECT]");
        normalise(&text.replace(&*self.home.to_string_lossy(), "[HOME]"))
    }
}

fn collect(mut from: impl Read + Send + 'static) -> std::thread::JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = from.read_to_end(&mut bytes);
        bytes
    })
}
