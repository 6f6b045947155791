//! Which tool a recorded call is of.

use std::sync::Arc;

use decanus_chat::{Effect, FunctionCallOutput};
use decanus_prov::ToolPair;
use decanus_prov::replay::{Difference, DifferenceKind};
use decanus_tool::{Offer, SourceError, ToolErrorClass, ToolRegistry};

use super::{Replayer, last_three};

impl Replayer<'_> {
    /// A registry that has the tool of a call under the name it was called by: the chat's own, or one with the tool that
    /// is found by its recorded job or its name. `None` for a call that names no tool, then as now.
    pub(super) async fn registry_with(
        &self,
        pair: &ToolPair,
        recorded: &FunctionCallOutput,
    ) -> Result<Option<Arc<ToolRegistry>>, Difference> {
        let name = &pair.call.name;
        if self.registry.get(name).is_some() {
            return Ok(Some(self.registry.clone()));
        }
        let was_unknown = recorded.error.as_deref() == Some(ToolErrorClass::Argument.as_str())
            && recorded.content.starts_with("Unknown tool '");
        if was_unknown {
            return Ok(None);
        }
        let missing = |text: String| Difference::new(DifferenceKind::MissingTool, text);
        let mut offer = self.find(name, recorded.job.as_deref()).await.map_err(missing)?;
        offer.definition.name.clone_from(name);
        Ok(Some(Arc::new(ToolRegistry::new([offer]))))
    }

    /// A tool that the chat does not declare: it was offered by the command line. When a task's job made the output, only
    /// that workflow's task is it: one of the same name elsewhere is another tool.
    async fn find(&self, name: &str, job: Option<&str>) -> Result<Offer, String> {
        let of_job = job
            .and_then(last_three)
            .and_then(|j| Some(j.parent()?.to_string_lossy().into_owned()));
        let workflow = of_job.as_ref().and_then(|spec| spec.split('/').next());
        let fits = |offer: &Offer| {
            let is_other = offer.definition.effect == Effect::Job && workflow.is_some_and(|w| w != offer.group);
            is_called(offer, name) && !is_other
        };
        let mut wrong = None;
        for spec in of_job.iter().map(String::as_str).chain([name]) {
            match ToolRegistry::find(&self.sources, spec).await {
                Ok(found) => {
                    if let Some(offer) = found.into_iter().find(&fits) {
                        return Ok(offer);
                    }
                }
                Err(SourceError::Config(text)) => wrong = Some(text),
                Err(SourceError::Unknown(_)) => {}
            }
        }
        // What the chat itself meant is not made up for by another tool of the name.
        let meant = |(task, _): &&(Option<String>, String)| task.as_ref().is_none_or(|task| task == name);
        wrong = self.undeclared.iter().find(meant).map(|(_, why)| why.clone()).or(wrong);
        let mut named = Vec::new();
        for source in self.sources.iter().filter(|_| wrong.is_none()) {
            let listed = source.list().await.unwrap_or_default();
            named.extend(listed.into_iter().map(Offer::from).filter(&fits));
        }
        match named.len() {
            1 => named.pop().ok_or_else(String::new),
            0 => {
                let of = of_job
                    .as_ref()
                    .map(|spec| format!(", which was {spec}"))
                    .unwrap_or_default();
                let why = wrong.map(|why| format!(" ({why})")).unwrap_or_default();
                Err(format!("there is no tool `{name}`{of}{why}"))
            }
            _ => {
                let all: Vec<String> = named
                    .iter()
                    .map(|o| format!("{}/{}", o.group, o.definition.name))
                    .collect();
                Err(format!(
                    "several tools are called `{name}`: {}; -t names the one that was meant",
                    all.join(", ")
                ))
            }
        }
    }
}

/// Whether a tool is called by this name: its own, or that with its group before it, which it gets where names collide.
fn is_called(offer: &Offer, name: &str) -> bool {
    offer.definition.name == name || format!("{}_{}", offer.group, offer.definition.name) == name
}
