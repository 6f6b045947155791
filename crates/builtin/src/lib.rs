//! The tools that every project has.

mod calculator;
mod cat_facts;
mod current_time;
mod echo;
mod http_request;
mod network;
mod read_webpage;
mod webhook_tool;

use std::sync::Arc;

use async_trait::async_trait;
use decanus_tool::{SourceError, Tool, ToolSource};

pub use network::Network;

/// The group under which built-in tools are listed.
pub const GROUP: &str = "builtin";

/// All built-in tools, without credentials.
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

/// The built-in tools as a source.
#[derive(Default, Clone)]
pub struct Builtins(Network);

impl Builtins {
    /// Those that use the network do so by this one.
    pub fn over(network: Network) -> Self {
        Self(network)
    }
}

#[async_trait]
impl ToolSource for Builtins {
    fn scheme(&self) -> &str {
        GROUP
    }

    async fn list(&self) -> Result<Vec<(String, Arc<dyn Tool>)>, SourceError> {
        Ok(tools_over(&self.0).into_iter().map(|t| (GROUP.to_owned(), t)).collect())
    }

    async fn resolve(&self, spec: &str) -> Result<Option<Vec<(String, Arc<dyn Tool>)>>, SourceError> {
        let found = tools_over(&self.0).into_iter().find(|t| t.definition().name == spec);
        Ok(found.map(|t| vec![(GROUP.to_owned(), t)]))
    }

    async fn names(&self) -> Vec<String> {
        tools().iter().map(|t| t.definition().name.clone()).collect()
    }
}
