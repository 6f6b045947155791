//! The loop: what the model sees, what it says, what its calls give, again, until an answer without calls or a limit.
//!
//! There is one loop for all backends. What happened is stored before the next thing starts: a question before it is
//! asked, calls before they run, each output when it is there.

mod answer;
mod error;
pub mod media;
mod turn;

pub use answer::{Format, json_of};
pub use error::AgentError;
pub use turn::{Agent, Outcome, Request, overhead};
