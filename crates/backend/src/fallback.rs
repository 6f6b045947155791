//! Another endpoint where one fails: `fallback` of an endpoint's file.
//!
//! The next endpoint is asked with the same messages, tools and options when the one before could not answer: no
//! connection, a time limit, an answer that broke off, status 408, 409, 429 or 5xx after its own tries, or an error of
//! that kind inside a stream; see [`BackendError::another_may_answer`]. A request that is wrong, too long or not allowed,
//! and a missing or refused key, are errors wherever they come: they are for somebody to look at.
//!
//! Nothing is asked twice once anything of an answer was given out. Tools run only after an answer is complete, so none
//! has ever run for an answer that another endpoint is asked for. Parts that only one backend understands are left out
//! by the encoding of the others.

use std::sync::Arc;

use futures::StreamExt;
use futures::stream::BoxStream;
use tokio::time::Instant;

use crate::conversation::{CallCx, Conversation, Delta, DryRun, View};
use crate::error::BackendError;
use crate::generate::generate;
use crate::limits::deadline;
use crate::profile::Profile;

/// A conversation with the first of some endpoints that answers. Later requests stay with it.
pub struct FallbackConversation {
    endpoints: Vec<(Arc<Profile>, Box<dyn Conversation>)>,
    /// The one that was asked last.
    current: usize,
}

impl FallbackConversation {
    /// Asks these endpoints, in this order.
    ///
    /// # Errors
    /// When there is none.
    pub fn new(endpoints: Vec<(Arc<Profile>, Box<dyn Conversation>)>) -> Result<Self, BackendError> {
        if endpoints.is_empty() {
            return Err(BackendError::Config("there is no endpoint to ask".into()));
        }
        Ok(Self { endpoints, current: 0 })
    }
}

impl Conversation for FallbackConversation {
    fn backend(&self) -> &str {
        self.endpoints[self.current].1.backend()
    }

    fn endpoint(&self) -> Option<&Profile> {
        Some(&self.endpoints[self.current].0)
    }

    fn complete<'a>(&'a mut self, view: &'a View<'a>, cx: &'a CallCx) -> BoxStream<'a, Result<Delta, BackendError>> {
        let deadline = deadline(cx.timeout);
        generate(move |out| async move {
            let first = self.current;
            loop {
                let at = self.current;
                let (profile, conversation) = &mut self.endpoints[at];
                let name = profile.name.clone();
                let cx = CallCx {
                    timeout: deadline.saturating_duration_since(Instant::now()),
                    ..cx.clone()
                };
                let mut answer = conversation.complete(view, &cx);
                // Ids and counts that came before anything of the answer.
                let mut held = Vec::new();
                let mut given = false;
                let mut failed = None;
                while let Some(delta) = answer.next().await {
                    let ready = match delta {
                        Err(error) => {
                            failed = Some(error);
                            break;
                        }
                        Ok(delta) if !given && is_about(&delta) => {
                            held.push(delta);
                            continue;
                        }
                        Ok(warning @ Delta::Warning(_)) => vec![warning],
                        Ok(delta) => {
                            let endpoint = (!given && at != first).then(|| Delta::Endpoint(name.clone()));
                            given = true;
                            endpoint.into_iter().chain(held.drain(..)).chain([delta]).collect()
                        }
                    };
                    for delta in ready {
                        if out.send(Ok(delta)).await.is_err() {
                            return;
                        }
                    }
                }
                drop(answer);
                let Some(error) = failed else {
                    for delta in held {
                        let _ = out.send(Ok(delta)).await;
                    }
                    return;
                };
                let next = self.endpoints.get(at + 1).map(|(profile, _)| &profile.name);
                let in_time = Instant::now() < deadline && !cx.cancel.is_cancelled();
                let last = match next {
                    Some(next) if !given && in_time && error.another_may_answer() => Ok(Delta::Warning(format!(
                        "endpoint {name} failed: {error}; asking {next}"
                    ))),
                    _ => Err(error),
                };
                let over = last.is_err();
                // What is known of a request that failed counts; the one that is given up for another does not.
                for delta in held.into_iter().filter(|_| over).map(Ok).chain([last]) {
                    if out.send(delta).await.is_err() {
                        return;
                    }
                }
                if over {
                    return;
                }
                self.current += 1;
            }
        })
    }

    fn dry_run(&mut self, view: &View<'_>, stream: bool) -> Result<DryRun, BackendError> {
        self.endpoints[self.current].1.dry_run(view, stream)
    }
}

/// Whether a delta says something about an answer but is nothing of it.
fn is_about(delta: &Delta) -> bool {
    matches!(
        delta,
        Delta::Model(_) | Delta::ResponseId(_) | Delta::Usage(_) | Delta::Inference { .. }
    )
}
