//! Tools: what they are ([`Tool`]), where they come from ([`ToolSource`]), how they are found ([`ToolRegistry`]) and
//! called ([`Dispatcher`]), within what bounds ([`Run`]).

pub mod approval;
pub mod background;
mod checker;
mod coerce;
pub mod dispatch;
pub mod event;
pub mod fn_tool;
pub mod hook;
pub mod offer;
pub mod registry;
pub mod run;
pub mod schema;
pub mod source;
pub mod state;
pub mod tool;

pub use approval::{Answer, ApprovalPolicy, Interaction, Nobody, Question};
pub use background::{Background, BackgroundTool, JobState, PendingJob};
pub use dispatch::{Dispatcher, Finished, Repetition};
pub use event::{Event, EventSink};
pub use fn_tool::FnTool;
pub use hook::{Decision, Fallback, ToolHook};
pub use offer::Offer;
pub use registry::{RegistryError, ToolRegistry};
pub use run::{Identity, LimitReached, Limits, Permissions, Run, RunBuilder};
pub use source::{SourceError, ToolSource};
pub use state::{MemoryState, State, StateStore};
pub use tool::{Args, JobRef, OutputPart, Tool, ToolContext, ToolError, ToolErrorClass, ToolOutput};
