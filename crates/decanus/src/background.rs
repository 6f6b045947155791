//! Tool calls that go on in the background: offering the tool that asks for them, and doing their work.

use decanus_tool::background::CHECK_TOOL;
use decanus_tool::{Offer, ToolRegistry};
use decanus_workflow::Status;
use tokio_util::sync::CancellationToken;

use crate::Decanus;
use crate::error::Error;

impl Decanus {
    /// Adds `check_job_status` where a tool is offered that may answer with a pending job. Other requests stay as they are.
    pub(crate) async fn offer_check(&self, offers: &mut Vec<Offer>) -> Result<(), Error> {
        let may_wait = offers.iter().any(|o| o.tool.work().is_some());
        if may_wait && !offers.iter().any(|o| o.definition.name == CHECK_TOOL) {
            offers.extend(ToolRegistry::find(&self.sources, CHECK_TOOL).await?);
        }
        Ok(())
    }

    /// Takes over a pending tool call and does its work, as a process that is there for nothing else: `decanus job work`.
    /// How it ended is in the store, and the result.
    ///
    /// # Errors
    /// When there is no such job, or somebody else has it.
    pub async fn work(&self, id: &str, cancel: CancellationToken) -> Result<Status, Error> {
        let claim = self.tool_jobs.claim(id, true)?;
        let name = claim.tool().to_owned();
        let work = match ToolRegistry::find(&self.sources, &name).await {
            Ok(offers) => offers.into_iter().find_map(|o| o.tool.work()),
            Err(e) => return Ok(claim.fail(e.to_string())),
        };
        let Some(work) = work else {
            return Ok(claim.fail(format!("the tool `{name}` has no work that goes on in the background")));
        };
        let run = self.run().permissions(claim.permissions()).cancel(cancel).build();
        Ok(claim.run(work, &run).await)
    }
}
