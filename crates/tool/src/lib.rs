//! Tools: what they are ([`Tool`]), where they come from ([`ToolSource`]), how they are found ([`ToolRegistry`]) and
//! called ([`Dispatcher`]), within what bounds ([`Run`]).

mod checker;
mod coerce;
pub mod dispatch;
pub mod event;
pub mod fn_tool;
pub mod offer;
pub mod registry;
pub mod run;
pub mod schema;
pub mod source;
pub mod tool;

pub use dispatch::{Dispatcher, Finished, Repetition};
pub use event::{Event, EventSink};
pub use fn_tool::FnTool;
pub use offer::Offer;
pub use registry::{RegistryError, ToolRegistry};
pub use run::{LimitReached, Limits, Permissions, Run, RunBuilder};
pub use source::{SourceError, ToolSource};
pub use tool::{Args, JobRef, Tool, ToolContext, ToolError, ToolErrorClass, ToolOutput};
