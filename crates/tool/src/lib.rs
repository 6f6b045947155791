//! Tools: what they are ([`Tool`]), where they come from ([`ToolSource`]), how they are found ([`ToolRegistry`]) and
//! called ([`Dispatcher`]), within what bounds ([`Run`]).

pub mod event;
pub mod run;
pub mod source;
pub mod tool;

pub use event::{Event, EventSink};
pub use run::{LimitReached, Limits, Run, RunBuilder};
pub use source::{SourceError, ToolSource};
pub use tool::{Args, JobRef, Tool, ToolContext, ToolError, ToolErrorClass, ToolOutput};
