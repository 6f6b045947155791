//! The decanus binary: reads the command line, opens the project, runs one command, and turns what comes of it into
//! output and an exit code.

mod args;
mod commands;
mod complete;
mod interact;
mod log;
mod out;
mod paths;
mod progress;
mod signals;
mod values;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use clap::Parser;
use decanus::base::ErrorKind;
use decanus::{Decanus, Error};
use serde_json::{Map, Value};

use args::{Cli, Command};
use interact::Terminal;
use out::Out;
use signals::Signals;

/// What a command ends with: an exit code of its own, or an error that decides it.
type Ended = Result<u8, Failure>;

/// A command that failed, and what it has to show all the same.
pub struct Failure {
    error: Error,
    /// Members of the `--json` object beside `error`.
    partial: Box<Map<String, Value>>,
    /// Whether the error was shown already.
    shown: bool,
}

impl Failure {
    fn with(error: Error, partial: Map<String, Value>) -> Self {
        Self {
            error,
            partial: Box::new(partial),
            shown: false,
        }
    }
}

impl<E: Into<Error>> From<E> for Failure {
    fn from(error: E) -> Self {
        Self::with(error.into(), Map::new())
    }
}

/// What a command works with.
pub struct Context {
    out: Out,
    signals: Signals,
    dir: PathBuf,
}

impl Context {
    /// The project with the backends of this build.
    fn open(&self) -> Result<Decanus, Error> {
        let decanus = Decanus::open(&self.dir)?.with_interaction(Arc::new(Terminal::new(self.out)));
        let decanus = commands::model::with_local(decanus);
        commands::job::work_in_processes(&decanus)?;
        #[cfg(feature = "bedrock")]
        let decanus = decanus.with_backend(Arc::new(decanus_bedrock::BedrockBackend::new()));
        Ok(decanus)
    }
}

fn main() -> ExitCode {
    complete::answer();
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return usage(&error),
    };
    let out = Out::new(cli.json);
    if let Err(error) = log::begin() {
        out.fail(&error, Map::new());
        return ExitCode::from(error.kind.exit_code());
    }
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(e) => {
            out.fail(
                &Error::new(ErrorKind::Internal, format!("the runtime can't start: {e}")),
                Map::new(),
            );
            return ExitCode::from(1);
        }
    };
    let (ended, signals) = runtime.block_on(async {
        let signals = Signals::listen();
        let cx = Context {
            out,
            signals: signals.clone(),
            dir: cli.dir.unwrap_or_else(|| ".".into()),
        };
        (run(cli.command, &cx).await, signals)
    });
    // Work that blocks (a model being loaded, say) must not hold up the end of the process.
    runtime.shutdown_background();
    match ended {
        Ok(code) => ExitCode::from(code),
        Err(failure) => {
            if !failure.shown {
                out.fail(&failure.error, *failure.partial);
            }
            ExitCode::from(match failure.error.kind {
                ErrorKind::Interrupted => signals.exit_code().unwrap_or(ErrorKind::Interrupted.exit_code()),
                kind => kind.exit_code(),
            })
        }
    }
}

async fn run(command: Command, cx: &Context) -> Ended {
    if matches!(
        command,
        Command::Ask(_)
            | Command::Tool(_)
            | Command::Workflow(_)
            | Command::Endpoint(_)
            | Command::Model(_)
            | Command::Relay(_)
            | Command::Replay(_)
            | Command::Job(args::Job::Work { .. } | args::Job::Exec { .. })
    ) {
        cx.signals.end_in_order();
    }
    match command {
        Command::Ask(ask) => commands::ask::run(ask, cx).await,
        Command::Chat(chat) => commands::chat::run(chat, cx).await,
        Command::Tool(tool) => commands::tool::run(tool, cx).await,
        Command::Workflow(workflow) => commands::workflow::run(workflow, cx).await,
        Command::Job(job) => commands::job::run(&job, cx).await,
        Command::Prov(prov) => commands::prov::run(&prov, cx),
        Command::Replay(replay) => commands::replay::run(replay, cx).await,
        Command::Endpoint(endpoint) => commands::endpoint::run(endpoint, cx).await,
        Command::Cache(cache) => commands::cache::run(cache, cx).await,
        Command::Model(model) => commands::model::run(model, cx).await,
        Command::Mcp(args::Mcp::Allow(allow)) => commands::mcp::allow(&allow, cx),
        Command::Auth(auth) => commands::auth::run(auth, cx).await,
        Command::Relay(relay) => commands::relay::run(relay, cx).await,
        Command::Init { folder } => commands::init::run(&folder, cx),
        Command::Doctor => commands::doctor::run(cx).await,
        Command::Completions { shell } => commands::completions::run(&shell, cx),
    }
}

/// Help and version go to stdout; a wrong command line goes to stderr, and for machines to stdout too.
fn usage(error: &clap::Error) -> ExitCode {
    let _ = error.print();
    if !error.use_stderr() {
        return ExitCode::SUCCESS;
    }
    let asked_for = |flag: &str| std::env::args_os().any(|a| a == flag);
    if asked_for("--json") || asked_for("--events") {
        let text = error.to_string();
        let message = text
            .lines()
            .next()
            .unwrap_or_default()
            .trim_start_matches("error: ")
            .to_owned();
        let error = out::error_value(&Error::usage(message));
        Out::new(true).value(&if asked_for("--events") {
            serde_json::json!({"event": "end", "error": error})
        } else {
            serde_json::json!({"error": error})
        });
    }
    ExitCode::from(2)
}
