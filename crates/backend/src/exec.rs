//! A program as a backend: it reads a request per line and answers in lines of JSON.
//!
//! The program is started with the first request and kept for the conversation. It is started again when it is not
//! there any more, or not at its place: an answer that was not read to its end ends the program with it.

use std::sync::Arc;

use futures::StreamExt;
use futures::stream::{self, BoxStream};

use crate::conversation::{Backend, CallCx, Conversation, Delta, DryRun, View};
use crate::error::BackendError;
use crate::exec_answer::{Answer, Host, Place};
use crate::exec_process::{Launch, program};
use crate::exec_wire::{AnswerDecoder, NAME, request};
use crate::profile::Profile;
use crate::redact::Redactor;
use crate::tool_names::ToolNames;

/// The length of the longest tool name, as with other backends.
const MAX_TOOL_NAME: usize = 64;

/// The backend `exec`: an endpoint's file names a program.
#[derive(Debug, Clone, Copy)]
pub struct ExecBackend {
    allow: bool,
}

impl ExecBackend {
    /// A backend that starts the programs of the user's own endpoint files, and with `allow` those of any other: a
    /// project that somebody else wrote must not be able to start one.
    pub fn new(allow: bool) -> Self {
        Self { allow }
    }
}

impl Backend for ExecBackend {
    fn name(&self) -> &str {
        NAME
    }

    fn open(&self, profile: Arc<Profile>) -> Result<Box<dyn Conversation>, BackendError> {
        let fail = |what: String| BackendError::Config(format!("endpoint `{}`: {what}", profile.name));
        let Some(program) = program(&profile) else {
            return Err(fail("give `command`, a list of a program and its arguments".into()));
        };
        if !self.allow && !profile.file_is_own {
            let file = profile.file.as_deref().map_or("it".into(), |f| f.display().to_string());
            return Err(fail(format!(
                "{file} would start the program {}, which only an endpoint file of your own may do; if you trust it, \
                 copy it to the folder `endpoints` of ~/.decanus",
                program.display()
            )));
        }
        let folder = profile.file.as_deref().and_then(std::path::Path::parent);
        let host = Host {
            target: format!("the program {}", program.display()),
            redactor: Redactor::new(&profile),
            launch: Launch {
                dir: folder.filter(|f| f.is_dir()).map(Into::into),
                args: profile.command[1..].to_vec(),
                program,
            },
            hello: None,
            stop: None,
            profile,
        };
        Ok(Box::new(ExecConversation {
            host: Arc::new(host),
            place: Place::default(),
        }))
    }
}

struct ExecConversation {
    host: Arc<Host>,
    /// Where the program waits for a request.
    place: Place,
}

impl ExecConversation {
    fn encode(&self, view: &View<'_>, stream: bool) -> Result<(Vec<u8>, ToolNames), BackendError> {
        let profile = &self.host.profile;
        let names = ToolNames::new(view.tools, profile.quirks.max_tool_name.unwrap_or(MAX_TOOL_NAME));
        let line = request(profile, view, &names, stream).map_err(BackendError::Config)?;
        Ok((line, names))
    }
}

impl Conversation for ExecConversation {
    fn backend(&self) -> &str {
        NAME
    }

    fn complete<'a>(&'a mut self, view: &'a View<'a>, cx: &'a CallCx) -> BoxStream<'a, Result<Delta, BackendError>> {
        match self.encode(view, cx.stream) {
            Ok((line, names)) => {
                let decoder = Box::new(AnswerDecoder::default());
                Answer::new(self.host.clone(), self.place.clone(), line, names, decoder, cx.clone()).stream()
            }
            Err(error) => stream::once(std::future::ready(Err(error))).boxed(),
        }
    }

    fn dry_run(&mut self, view: &View<'_>, stream: bool) -> Result<DryRun, BackendError> {
        let (line, _) = self.encode(view, stream)?;
        let body = String::from_utf8(line).map_err(|e| BackendError::Internal(e.to_string()))?;
        Ok(DryRun {
            target: self.host.target.clone(),
            body,
        })
    }
}
