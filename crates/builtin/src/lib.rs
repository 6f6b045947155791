//! The tools that every project has.
//!
//! Those of [`Builtins::list`] are listed as they are. Those of [`ON_REQUEST`] reach further (files, programs) or are
//! rarely wanted: they are there for whoever names them, and in no list.

mod calculator;
mod cat_facts;
mod child;
mod current_time;
mod echo;
mod http_request;
mod jobs;
mod list_files;
mod network;
mod open;
mod place;
mod python;
mod random_number;
mod read_file;
mod read_webpage;
mod run_command;
mod search_files;
mod sql_query;
mod walk;
mod webhook_tool;
mod work;
mod write_file;

use std::sync::{Arc, OnceLock};

use async_trait::async_trait;
use decanus_base::{Project, Settings};
use decanus_tool::{SourceError, Tool, ToolSource};

pub use jobs::JobTools;
pub use network::Network;
pub use place::Place;

/// The group under which built-in tools are listed.
pub const GROUP: &str = "builtin";

/// The tools that are in no list and have to be named.
pub const ON_REQUEST: [&str; 8] = [
    "list_files",
    "python",
    "random_number",
    "read_file",
    "run_command",
    "search_files",
    "sql_query",
    "write_file",
];

/// The built-in tools that are listed, without credentials.
pub fn tools() -> Vec<Arc<dyn Tool>> {
    tools_over(&Network::default())
}

/// All built-in tools: one line each.
pub fn tools_over(network: &Network) -> Vec<Arc<dyn Tool>> {
    let mut tools: Vec<Arc<dyn Tool>> = vec![
        Arc::new(calculator::tool()),
        Arc::new(current_time::tool()),
        Arc::new(echo::tool()),
    ];
    tools.extend(network_tools(network));
    tools
}

/// Those of the built-in tools that use the network.
pub fn network_tools(network: &Network) -> Vec<Arc<dyn Tool>> {
    vec![
        Arc::new(cat_facts::tool(network.clone())),
        Arc::new(http_request::tool(network.clone())),
        Arc::new(read_webpage::tool(network.clone())),
        Arc::new(webhook_tool::tool(network.clone())),
    ]
}

/// The built-in tools that have to be named ([`ON_REQUEST`]): one line each.
pub fn tools_on_request(place: &Arc<Place>) -> Vec<Arc<dyn Tool>> {
    vec![
        Arc::new(list_files::tool(place.clone())),
        Arc::new(python::tool(place.clone())),
        Arc::new(random_number::tool()),
        Arc::new(read_file::tool(place.clone())),
        Arc::new(run_command::tool(place.clone())),
        Arc::new(search_files::tool(place.clone())),
        Arc::new(sql_query::tool(place.clone())),
        Arc::new(write_file::tool(place.clone())),
    ]
}

/// The built-in tools as a source. By default they belong to no project, and those that use files reach none.
#[derive(Default, Clone)]
pub struct Builtins {
    network: Network,
    place: Arc<Place>,
    made: Arc<Made>,
}

/// The tools, made when they are first asked for: the schemas of all take a while beside a short command.
#[derive(Default)]
struct Made {
    listed: OnceLock<Vec<Arc<dyn Tool>>>,
    on_request: OnceLock<Vec<Arc<dyn Tool>>>,
}

impl Builtins {
    /// The built-in tools of a project.
    pub fn of(project: &Project, settings: &Settings) -> Self {
        Self {
            network: Network::default(),
            place: Arc::new(Place::of(project, settings)),
            made: Arc::default(),
        }
    }

    /// Those that use the network do so by this one.
    #[must_use]
    pub fn over(self, network: Network) -> Self {
        Self {
            network,
            made: Arc::default(),
            ..self
        }
    }

    fn listed(&self) -> &[Arc<dyn Tool>] {
        self.made.listed.get_or_init(|| tools_over(&self.network))
    }

    fn on_request(&self) -> &[Arc<dyn Tool>] {
        self.made.on_request.get_or_init(|| tools_on_request(&self.place))
    }
}

#[async_trait]
impl ToolSource for Builtins {
    fn scheme(&self) -> &str {
        GROUP
    }

    async fn list(&self) -> Result<Vec<(String, Arc<dyn Tool>)>, SourceError> {
        let listed = self.listed().iter().cloned();
        Ok(listed.map(|t| (GROUP.to_owned(), t)).collect())
    }

    async fn resolve(&self, spec: &str) -> Result<Option<Vec<(String, Arc<dyn Tool>)>>, SourceError> {
        let among = match ON_REQUEST.contains(&spec) {
            true => self.on_request(),
            false => self.listed(),
        };
        let found = among.iter().find(|t| t.definition().name == spec);
        Ok(found.map(|t| vec![(GROUP.to_owned(), t.clone())]))
    }

    async fn names(&self) -> Vec<String> {
        let listed = self.listed().iter().map(|t| t.definition().name.clone());
        listed.chain(ON_REQUEST.map(str::to_owned)).collect()
    }
}
