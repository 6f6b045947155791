//! The tools that every project has.

mod calculator;
mod current_time;
mod echo;

use std::sync::Arc;

use async_trait::async_trait;
use decanus_tool::{SourceError, Tool, ToolSource};

/// The group under which built-in tools are listed.
pub const GROUP: &str = "builtin";

/// All built-in tools: one line each.
pub fn tools() -> Vec<Arc<dyn Tool>> {
    vec![
        Arc::new(calculator::tool()),
        Arc::new(current_time::tool()),
        Arc::new(echo::tool()),
    ]
}

/// The built-in tools as a source.
#[derive(Debug, Default, Clone, Copy)]
pub struct Builtins;

#[async_trait]
impl ToolSource for Builtins {
    fn scheme(&self) -> &str {
        GROUP
    }

    async fn list(&self) -> Result<Vec<(String, Arc<dyn Tool>)>, SourceError> {
        Ok(tools().into_iter().map(|t| (GROUP.to_owned(), t)).collect())
    }

    async fn resolve(&self, spec: &str) -> Result<Option<Vec<(String, Arc<dyn Tool>)>>, SourceError> {
        let found = tools().into_iter().find(|t| t.definition().name == spec);
        Ok(found.map(|t| vec![(GROUP.to_owned(), t)]))
    }

    async fn names(&self) -> Vec<String> {
        tools().iter().map(|t| t.definition().name.clone()).collect()
    }
}
