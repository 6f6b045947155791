//! Where tools come from.

use std::sync::Arc;

use async_trait::async_trait;
use decanus_base::{Diagnostic, ErrorKind};

use crate::tool::Tool;

/// A place that tools come from: the built-ins, the project's workflows.
#[async_trait]
pub trait ToolSource: Send + Sync {
    /// The source's word in listings: `builtin`, `workflow`.
    fn scheme(&self) -> &str;

    /// All tools in reach, with the name of their group (the workflow, say).
    ///
    /// # Errors
    /// When the source can't be read.
    async fn list(&self) -> Result<Vec<(String, Arc<dyn Tool>)>, SourceError>;

    /// The tools that a spec (`calculator`, `Weather`, `Weather/compare`) stands for, each with its group; `None` when
    /// the spec is not of this source.
    ///
    /// # Errors
    /// When the spec is of this source but names something that does not exist or can't be read.
    async fn resolve(&self, spec: &str) -> Result<Option<Vec<(String, Arc<dyn Tool>)>>, SourceError>;

    /// The names that `resolve` knows, for suggestions.
    async fn names(&self) -> Vec<String>;
}

/// Why a source gave no tools.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SourceError {
    /// The spec names something that does not exist.
    #[error("{0}")]
    Unknown(String),
    /// A file of the project is wrong; the text names it.
    #[error("{0}")]
    Config(String),
}

impl Diagnostic for SourceError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Unknown(_) => ErrorKind::Usage,
            Self::Config(_) => ErrorKind::Config,
        }
    }
}
