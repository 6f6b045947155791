//! decanus as a library: a project's tools, endpoints and jobs, and questions to a model that uses them.
//!
//! ```no_run
//! # async fn example() -> Result<(), decanus::Error> {
//! use decanus::{Ask, Decanus};
//!
//! let decanus = Decanus::open(".")?;
//! let ask = Ask { tools: vec!["calculator".into()], ..Ask::question("What is 21 times 2?") };
//! let mut session = decanus.prepare(ask).await?;
//! let run = decanus.run().build();
//! let outcome = session.run(&run).await;
//! println!("{}", outcome.answer);
//! # Ok(())
//! # }
//! ```
//!
//! The rooms below are re-exported under their names: [`base`], [`chat`], [`tool`], [`builtin`], [`backend`],
//! [`workflow`], [`agent`], [`prov`], [`net`].

mod actions;
mod ask;
mod background;
mod check;
mod consent;
mod error;
mod options;
mod relay;
mod replay;
mod snapshot;

use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use ask::{Ask, Session, TokenCount};
pub use check::Checked;
pub use consent::NEED_CONSENT;
pub use decanus_agent as agent;
pub use decanus_backend as backend;
pub use decanus_base as base;
pub use decanus_builtin as builtin;
pub use decanus_chat as chat;
pub use decanus_net as net;
pub use decanus_prov as prov;
pub use decanus_tool as tool;
pub use decanus_workflow as workflow;
pub use error::Error;
pub use options::Options;
pub use relay::{RelayCounts, RelayEvent, RelayServer};
pub use replay::ReplayOptions;

use backend::cache::AnswerCache;
use backend::{Backend, BackendRegistry, Endpoints, Governor};
use base::settings::Allowance;
use base::{Project, Settings};
use chat::Lookup;
use chat::strategy::{Strategies, Strategy};
use tool::run::Limits;
use tool::{ApprovalPolicy, Interaction, Nobody, Run, RunBuilder, ToolRegistry, ToolSource};
use workflow::{Executors, JobStore, PathPolicy, ToolJobs, WorkflowSource, Workflows};

/// A project with everything in reach.
pub struct Decanus {
    /// Where it is.
    pub project: Project,
    /// Its decanus.toml.
    pub settings: Settings,
    /// The endpoints of the project and of the user.
    pub endpoints: Endpoints,
    /// The backends of this build.
    pub backends: BackendRegistry,
    /// The prompt strategies that can be chosen.
    pub strategies: Strategies,
    /// The workflows of the project and of the user.
    pub workflows: Workflows,
    /// The answers that are kept.
    pub answers: AnswerCache,
    /// The jobs of the project.
    pub jobs: JobStore,
    /// The tool calls that go on in the background; they are jobs of the same store.
    pub tool_jobs: ToolJobs,
    /// The user's credentials for URLs. A project has none of its own.
    pub auth: net::Auth,
    /// The limits of the endpoints, for all questions of this process.
    governor: Governor,
    sources: Vec<Arc<dyn ToolSource>>,
    /// Who is asked for consent.
    interaction: Arc<dyn Interaction>,
    local_is_ready: bool,
}

impl Decanus {
    /// The project of a folder (see [`Project::find`]).
    ///
    /// # Errors
    /// When the folder does not exist or decanus.toml is wrong.
    pub fn open(dir: impl AsRef<Path>) -> Result<Self, Error> {
        let project = Project::find(dir.as_ref())?;
        let settings = Settings::load(&project.root).map_err(base::project::ProjectError::from)?;
        let workflows = Workflows::discover(&project);
        // Of a program of one's own the nodes need decanus itself, which `program` of `[slurm]` names.
        let program = std::env::current_exe().unwrap_or_else(|_| "decanus".into());
        let executors = Executors::of(&settings, &project.root, program)
            .map_err(|e| Error::of(&e).in_file(&project.root.join("decanus.toml")))?;
        let jobs = JobStore::new(settings.jobs_dir(&project.root)).with_executors(executors);
        let paths = PathPolicy::of(&project, settings.allowed_paths(&project.root));
        let tool_jobs = ToolJobs::new(jobs.clone());
        let from_jobs = builtin::JobTools::new(Arc::new(tool_jobs.clone()));
        let auth = net::Auth::new(&project.home);
        let network = builtin::Network::default().authorizer(Arc::new(auth.clone()));
        let from_workflows = WorkflowSource::new(workflows.clone(), jobs.clone(), paths);
        Ok(Self {
            endpoints: Endpoints::new(&project),
            answers: AnswerCache::new(project.data().join("cache/answers")),
            backends: BackendRegistry::with_http(),
            sources: vec![
                Arc::new(builtin::Builtins::of(&project, &settings).over(network)),
                Arc::new(from_jobs),
                Arc::new(from_workflows),
            ],
            governor: Governor::new(),
            strategies: Strategies::default(),
            interaction: Arc::new(Nobody),
            local_is_ready: false,
            project,
            settings,
            workflows,
            jobs,
            tool_jobs,
            auth,
        })
    }

    /// Adds a backend that is not part of every build.
    pub fn with_backend(mut self, backend: Arc<dyn Backend>) -> Self {
        self.backends.register(backend);
        self
    }

    /// Adds a prompt strategy, to be chosen by its name.
    pub fn with_strategy(mut self, strategy: Arc<dyn Strategy>) -> Self {
        self.strategies.register(strategy);
        self
    }

    /// Says that the `local` backend has a model, which makes it the default endpoint.
    pub fn with_local_ready(mut self, ready: bool) -> Self {
        self.local_is_ready = ready;
        self
    }

    /// Asks this person for consent where a file of the project wants to run code. Without, it is refused.
    pub fn with_interaction(mut self, interaction: Arc<dyn Interaction>) -> Self {
        self.interaction = interaction;
        self
    }

    /// Adds a source of tools.
    pub fn with_source(mut self, source: Arc<dyn ToolSource>) -> Self {
        self.sources.push(source);
        self
    }

    /// The sources of tools.
    pub fn sources(&self) -> &[Arc<dyn ToolSource>] {
        &self.sources
    }

    /// The tools that some specs stand for.
    ///
    /// # Errors
    /// When a spec names nothing.
    pub async fn tools(&self, specs: &[String]) -> Result<ToolRegistry, Error> {
        Ok(ToolRegistry::resolve(&self.sources, specs.iter().map(String::as_str)).await?)
    }

    /// The names in `[approve]` of decanus.toml that are of no tool in reach: such a rule asks for nothing.
    pub(crate) async fn unknown_rules(&self, registry: &ToolRegistry) -> Vec<String> {
        let rules = &self.settings.approve.tools;
        if rules.is_empty() {
            return Vec::new();
        }
        let mut known: Vec<String> = registry.entries().flat_map(|e| e.names()).collect();
        for source in &self.sources {
            known.extend(source.names().await);
            // A source that can't be read says so where its tools are wanted.
            for (group, found) in source.list().await.unwrap_or_default() {
                let name = &found.definition().name;
                known.extend([format!("{group}/{name}"), format!("{group}_{name}"), name.clone()]);
            }
        }
        let unknown = rules.keys().filter(|rule| !known.contains(rule));
        let warning = |rule: &String| {
            let guess = base::names::did_you_mean(rule, known.iter().map(String::as_str));
            format!("decanus.toml: [approve] names `{rule}`, which is no tool here{guess}")
        };
        unknown.map(warning).collect()
    }

    /// What a chat that the user named may read and do: files of the project, of the allowed paths, and beside the chat;
    /// commands if `allow_cmd` or decanus.toml say so.
    pub fn lookup(&self, chat: Option<&Path>, allow_cmd: bool) -> Lookup {
        Lookup {
            working_dir: self.project.working_dir.clone(),
            readable: self.readable(),
            kept: self.project.credentials(),
            beside: chat.and_then(Path::parent).map(Path::to_owned),
            chats: self.project.search("chats"),
            named_by_user: true,
            allow_cmd: allow_cmd || self.settings.allow.contains(&Allowance::Cmd),
        }
    }

    /// The project's root and the allowed paths.
    fn readable(&self) -> Vec<PathBuf> {
        let mut readable = vec![self.project.root.clone()];
        readable.extend(self.settings.allowed_paths(&self.project.root));
        readable
    }

    /// A run with the project's limits.
    pub fn run(&self) -> RunBuilder {
        Run::builder(self.project.data().join("results"))
            .limits(Limits::from_settings(&self.settings.limits))
            .approval(ApprovalPolicy::of(&self.settings.approve))
    }
}
