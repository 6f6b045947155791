//! Consent to what runs code and was selected by a file of the project.

use decanus_base::{Consents, ErrorKind};
use decanus_chat::plan::Place;
use decanus_tool::{Answer, Offer, Question};

use crate::{Decanus, Error};

/// The built-in tools that run code of somebody else's choice.
pub const NEED_CONSENT: [&str; 2] = ["python", "run_command"];

impl Decanus {
    /// What the user has agreed to in this project.
    pub fn consents(&self) -> Consents {
        Consents::of(&self.project)
    }

    /// Makes sure that the user agrees to the tools which a file of the project selected at `place`. Who can be asked is
    /// asked, once.
    pub(crate) async fn consent(&self, offers: &[Offer], place: &Place) -> Result<(), Error> {
        let consents = self.consents();
        for offer in offers.iter().filter(|o| o.group == decanus_builtin::GROUP) {
            let name = offer.tool.definition().name.as_str();
            if !NEED_CONSENT.contains(&name) || consents.has(name)? {
                continue;
            }
            let question = format!(
                "{place} lets the model use `{name}`, which runs programs of its choice on this machine. Allow that for all \
                 files of the project {}?",
                self.project.root.display()
            );
            let why = match self.interaction.ask(&Question::Other(question)).await {
                Answer::Yes => {
                    consents.grant(name)?;
                    continue;
                }
                Answer::No(_) => "you refused it".to_owned(),
                Answer::Nobody(why) => why,
            };
            let text =
                format!("{place}: `{name}` runs programs, which needs your consent once in this project, and {why}");
            return Err(Error::new(ErrorKind::Config, text).hint(format!("`decanus mcp allow {name}` agrees to it")));
        }
        Ok(())
    }
}
