//! What one run inherits and every room needs: its identity, its bounds, its way to be stopped and to be watched.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use decanus_base::settings::LimitSettings;
use decanus_base::{Diagnostic, ErrorKind};
use tokio_util::sync::CancellationToken;

use crate::approval::{ApprovalPolicy, Interaction, Nobody};
use crate::event::{Event, EventSink};
use crate::hook::{Fallback, ToolHook};
use crate::state::{MemoryState, StateStore};

/// The bounds of a run.
#[derive(Debug, Clone, PartialEq)]
pub struct Limits {
    /// Requests to the model. Default 50.
    pub rounds: u32,
    /// Characters of one tool result; a longer one goes to a file. Default 100 000.
    pub result_chars: usize,
    /// Tool calls running side by side. Default 8.
    pub parallel_calls: usize,
    /// Tokens of all requests of the run, stored answers too (`tt`). No bound by default.
    pub tokens: Option<u64>,
    /// What all requests of the run may cost, in the currency of the endpoint's prices. No bound by default.
    pub cost: Option<f64>,
    /// Tokens of one request, as [`decanus_chat`] estimates them: older tool traffic is compacted to stay within it. No
    /// bound by default.
    pub context_tokens: Option<u64>,
    /// Time for one tool call. Default 120 s.
    pub tool_time: Duration,
    /// Time for one request to the model. Default 20 minutes.
    pub request_time: Duration,
    /// Calls with the same name and arguments in a row: this many are run, the rest get a notice. Default 3.
    pub identical_calls: u32,
    /// After this many identical calls in a row the run ends. Default 6.
    pub identical_end: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            rounds: 50,
            result_chars: 100_000,
            parallel_calls: 8,
            tokens: None,
            cost: None,
            context_tokens: None,
            tool_time: Duration::from_secs(120),
            request_time: Duration::from_secs(20 * 60),
            identical_calls: 3,
            identical_end: 6,
        }
    }
}

impl Limits {
    /// The defaults with a project's settings over them.
    pub fn from_settings(settings: &LimitSettings) -> Self {
        let d = Self::default();
        Self {
            rounds: settings.rounds.unwrap_or(d.rounds),
            result_chars: settings.result_chars.unwrap_or(d.result_chars),
            parallel_calls: settings.parallel_calls.unwrap_or(d.parallel_calls).max(1),
            tokens: settings.tokens,
            cost: settings.cost,
            context_tokens: settings.context_tokens,
            tool_time: settings.tool_time.unwrap_or(d.tool_time),
            request_time: settings.request_time.unwrap_or(d.request_time),
            ..d
        }
    }

    /// Sets a limit by the name that `-o limits.NAME=VALUE` uses.
    ///
    /// # Errors
    /// A text naming the limit and what it takes.
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        let count = || {
            value
                .parse::<u32>()
                .map_err(|_| format!("limits.{name} takes a number, not `{value}`"))
        };
        let time = || decanus_base::units::parse_duration(value).map_err(|e| format!("limits.{name}: {e}"));
        match name {
            "rounds" => self.rounds = count()?,
            "result_chars" => self.result_chars = count()? as usize,
            "parallel_calls" => self.parallel_calls = count()?.max(1) as usize,
            "tokens" => self.tokens = Some(count()?.into()),
            "cost" => {
                let parsed = value.parse::<f64>().ok().filter(|c| c.is_finite() && *c >= 0.0);
                self.cost = Some(parsed.ok_or_else(|| format!("limits.cost takes an amount, not `{value}`"))?);
            }
            "context_tokens" => self.context_tokens = Some(count()?.into()),
            "tool_time" => self.tool_time = time()?,
            "request_time" => self.request_time = time()?,
            _ => {
                let known = [
                    "rounds",
                    "result_chars",
                    "parallel_calls",
                    "tokens",
                    "cost",
                    "context_tokens",
                    "tool_time",
                    "request_time",
                ];
                let guess = decanus_base::names::did_you_mean(name, known);
                return Err(format!(
                    "there is no limit `{name}`{guess} (limits: {})",
                    known.join(", ")
                ));
            }
        }
        Ok(())
    }
}

/// A limit was reached.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LimitReached {
    /// Too many requests to the model.
    #[error("the limit of {0} rounds was reached without a final answer")]
    Rounds(u32),
    /// The requests so far have used up the tokens.
    #[error("the run has used {used} tokens, and limits.tokens is {limit}")]
    Tokens {
        /// Tokens used.
        used: u64,
        /// The limit.
        limit: u64,
    },
    /// The requests so far have used up the money.
    #[error("the run has cost {used}, and limits.cost is {limit}")]
    Cost {
        /// What it has cost, as text.
        used: String,
        /// The limit, as text.
        limit: String,
    },
    /// The conversation is too long, and compacting its tool traffic does not help.
    #[error(
        "the conversation needs about {needed} tokens, more than limits.context_tokens = {budget}, even with its older \
         tool calls left out"
    )]
    Context {
        /// Tokens, as estimated.
        needed: u64,
        /// The limit.
        budget: u64,
    },
    /// The model made the same call again and again.
    #[error("the model called {name} with the same arguments {count} times in a row")]
    IdenticalCalls {
        /// The tool.
        name: String,
        /// How often.
        count: u32,
    },
}

impl LimitReached {
    /// The limit's name in machine-readable output.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Rounds(_) => "rounds",
            Self::Tokens { .. } => "tokens",
            Self::Cost { .. } => "cost",
            Self::Context { .. } => "context",
            Self::IdenticalCalls { .. } => "identical_calls",
        }
    }
}

impl Diagnostic for LimitReached {
    fn kind(&self) -> ErrorKind {
        ErrorKind::Limit
    }

    fn hints(&self) -> Vec<String> {
        match self {
            Self::Rounds(_) => vec!["raise it with `-o limits.rounds=N`, or [limits] in decanus.toml".into()],
            Self::Tokens { .. } => vec!["raise it with `-o limits.tokens=N`".into()],
            Self::Cost { .. } => vec!["raise it with `-o limits.cost=AMOUNT`".into()],
            Self::Context { .. } => {
                vec!["raise limits.context_tokens, drop what is not needed with `clear:`, or begin another chat".into()]
            }
            Self::IdenticalCalls { .. } => vec!["a larger model, or a clearer question, may get further".into()],
        }
    }
}

/// The paths that a run may use beside the project's own.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Permissions {
    /// May be read: absolute.
    pub read: Vec<PathBuf>,
    /// May be read and written: absolute.
    pub write: Vec<PathBuf>,
}

impl Permissions {
    /// All paths that may be read.
    pub fn readable(&self) -> impl Iterator<Item = &PathBuf> {
        self.read.iter().chain(&self.write)
    }
}

/// Who asks, and in what: facts that a tool may need of the session it is called in.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Identity {
    /// The session, where there is one.
    pub session: Option<String>,
    /// The user.
    pub user: Option<String>,
    /// The application: the agent or program that asks.
    pub app: Option<String>,
}

/// What decides about tool calls, and what they share.
#[derive(Clone)]
struct Calls {
    identity: Identity,
    chat: Option<PathBuf>,
    approval: ApprovalPolicy,
    interaction: Arc<dyn Interaction>,
    hooks: Vec<Arc<dyn ToolHook>>,
    fallback: Option<Arc<dyn Fallback>>,
    state: Arc<dyn StateStore>,
}

impl Default for Calls {
    fn default() -> Self {
        Self {
            chat: None,
            identity: Identity::default(),
            approval: ApprovalPolicy::default(),
            interaction: Arc::new(Nobody),
            hooks: Vec::new(),
            fallback: None,
            state: Arc::new(MemoryState::default()),
        }
    }
}

struct Inner {
    id: String,
    calls: Calls,
    limits: Limits,
    permissions: Permissions,
    cancel: CancellationToken,
    events: Option<EventSink>,
    /// Where results that are too long, and other by-products, are kept.
    spill_dir: PathBuf,
    rounds: AtomicU32,
    tokens: AtomicU64,
    /// Billionths, so that many small amounts add up.
    cost: AtomicU64,
    started: Instant,
}

/// One run: a question with everything that answering it sets off. Cloning gives the same run.
#[derive(Clone)]
pub struct Run(Arc<Inner>);

/// Makes a [`Run`].
pub struct RunBuilder {
    calls: Calls,
    limits: Limits,
    permissions: Permissions,
    cancel: CancellationToken,
    events: Option<EventSink>,
    spill_dir: PathBuf,
}

impl RunBuilder {
    /// Bounds other than the defaults.
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// Paths that the run may use beside the project's own.
    pub fn permissions(mut self, permissions: Permissions) -> Self {
        self.permissions = permissions;
        self
    }

    /// Who asks. The id of the invocation is that of the run.
    pub fn identity(mut self, identity: Identity) -> Self {
        self.calls.identity = identity;
        self
    }

    /// The chat file that the run continues: no tool may write it.
    pub fn chat(mut self, file: Option<PathBuf>) -> Self {
        self.calls.chat = file;
        self
    }

    /// Which calls of a model the user is asked for. By default those that may destroy or send something.
    pub fn approval(mut self, policy: ApprovalPolicy) -> Self {
        self.calls.approval = policy;
        self
    }

    /// Who asks the user. Without it nobody is asked, and what needs approval does not run.
    pub fn interaction(mut self, interaction: Arc<dyn Interaction>) -> Self {
        self.calls.interaction = interaction;
        self
    }

    /// Something that looks at every call, after those that were added before.
    pub fn hook(mut self, hook: Arc<dyn ToolHook>) -> Self {
        self.calls.hooks.push(hook);
        self
    }

    /// What answers calls of tools that are not on offer.
    pub fn fallback(mut self, fallback: Arc<dyn Fallback>) -> Self {
        self.calls.fallback = Some(fallback);
        self
    }

    /// What holds the session's state. By default it is in memory and ends with the run.
    pub fn state(mut self, state: Arc<dyn StateStore>) -> Self {
        self.calls.state = state;
        self
    }

    /// Somebody who watches.
    pub fn events(mut self, sink: EventSink) -> Self {
        self.events = Some(sink);
        self
    }

    /// A token whose cancellation ends the run.
    pub fn cancel(mut self, token: CancellationToken) -> Self {
        self.cancel = token;
        self
    }

    /// The run.
    pub fn build(self) -> Run {
        Run(Arc::new(Inner {
            id: uuid::Uuid::new_v4().to_string(),
            calls: self.calls,
            limits: self.limits,
            permissions: self.permissions,
            cancel: self.cancel,
            events: self.events,
            spill_dir: self.spill_dir,
            rounds: AtomicU32::new(0),
            tokens: AtomicU64::new(0),
            cost: AtomicU64::new(0),
            started: Instant::now(),
        }))
    }
}

impl Run {
    /// A run that keeps long results in `spill_dir` (made when needed).
    pub fn builder(spill_dir: impl Into<PathBuf>) -> RunBuilder {
        RunBuilder {
            calls: Calls::default(),
            limits: Limits::default(),
            permissions: Permissions::default(),
            cancel: CancellationToken::new(),
            events: None,
            spill_dir: spill_dir.into(),
        }
    }

    /// A random UUID.
    pub fn id(&self) -> &str {
        &self.0.id
    }

    /// Who asks.
    pub fn identity(&self) -> &Identity {
        &self.0.calls.identity
    }

    /// The chat file that the run continues.
    pub fn chat(&self) -> Option<&Path> {
        self.0.calls.chat.as_deref()
    }

    /// Which calls the user is asked for.
    pub fn approval(&self) -> &ApprovalPolicy {
        &self.0.calls.approval
    }

    /// Who asks the user.
    pub fn interaction(&self) -> &Arc<dyn Interaction> {
        &self.0.calls.interaction
    }

    /// What looks at every call.
    pub fn hooks(&self) -> &[Arc<dyn ToolHook>] {
        &self.0.calls.hooks
    }

    /// What answers calls of tools that are not on offer.
    pub fn fallback(&self) -> Option<&Arc<dyn Fallback>> {
        self.0.calls.fallback.as_ref()
    }

    /// What holds the session's state.
    pub fn state(&self) -> &Arc<dyn StateStore> {
        &self.0.calls.state
    }

    /// The bounds.
    pub fn limits(&self) -> &Limits {
        &self.0.limits
    }

    /// The paths that the run may use beside the project's own.
    pub fn permissions(&self) -> &Permissions {
        &self.0.permissions
    }

    /// Cancelled when the run is to end.
    pub fn cancel(&self) -> &CancellationToken {
        &self.0.cancel
    }

    /// Where results that are too long are kept.
    pub fn spill_dir(&self) -> &Path {
        &self.0.spill_dir
    }

    /// Tells whoever watches.
    pub fn emit(&self, event: Event) {
        if let Some(sink) = &self.0.events {
            sink(&event);
        }
    }

    /// Tells whoever watches, and makes the event only when somebody does.
    pub fn emit_with(&self, event: impl FnOnce() -> Event) {
        if let Some(sink) = &self.0.events {
            sink(&event());
        }
    }

    /// Counts one more request to the model and gives its number, from 1.
    ///
    /// # Errors
    /// When the limit is reached; the request must then not be made.
    pub fn charge_round(&self) -> Result<u32, LimitReached> {
        let used = self.0.tokens.load(Ordering::SeqCst);
        if let Some(limit) = self.0.limits.tokens.filter(|limit| used >= *limit) {
            return Err(LimitReached::Tokens { used, limit });
        }
        if let Some(limit) = self.0.limits.cost.filter(|limit| self.cost() >= *limit) {
            return Err(LimitReached::Cost {
                used: format!("{:.6}", self.cost()),
                limit: limit.to_string(),
            });
        }
        let limit = self.0.limits.rounds;
        let before = self
            .0
            .rounds
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| (n < limit).then_some(n + 1));
        before.map(|n| n + 1).map_err(|_| LimitReached::Rounds(limit))
    }

    /// Counts what a request has used: tokens, and money where prices are known.
    pub fn charge_usage(&self, tokens: u64, cost: f64) {
        self.0.tokens.fetch_add(tokens, Ordering::SeqCst);
        self.0.cost.fetch_add((cost.max(0.0) * 1e9) as u64, Ordering::SeqCst);
    }

    /// What the requests so far have cost, as far as prices are known.
    pub fn cost(&self) -> f64 {
        self.0.cost.load(Ordering::SeqCst) as f64 / 1e9
    }

    /// Requests made so far.
    pub fn rounds(&self) -> u32 {
        self.0.rounds.load(Ordering::SeqCst)
    }

    /// Time since the run began.
    pub fn elapsed(&self) -> Duration {
        self.0.started.elapsed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_are_counted_and_bounded() {
        let run = Run::builder("/nowhere")
            .limits(Limits {
                rounds: 2,
                ..Limits::default()
            })
            .build();
        assert_eq!(run.charge_round(), Ok(1));
        assert_eq!(run.clone().charge_round(), Ok(2));
        assert_eq!(run.charge_round(), Err(LimitReached::Rounds(2)));
        assert_eq!(run.rounds(), 2);
    }

    #[test]
    fn limits_by_name() {
        let mut limits = Limits::default();
        limits.set("rounds", "7").unwrap();
        limits.set("tool_time", "2m").unwrap();
        assert_eq!((limits.rounds, limits.tool_time), (7, Duration::from_secs(120)));
        assert!(limits.set("round", "7").unwrap_err().contains("did you mean rounds?"));
        assert!(limits.set("rounds", "many").is_err());
    }
}
