//! Models of another machine, reached by `ssh`: a request is a file there, and so is its reply.
//!
//! `decanus relay serve` on the far side asks the model; tools run here. Of `ssh`, `scp` and `sftp`, `ssh` with small
//! commands is the most robust: its exit code tells a connection that failed from a file that is not there yet, the
//! length of what arrived can be checked before the file gets its name, and nothing has to be put into a file here.

use std::sync::Arc;
use std::time::Duration;

use decanus_base::text::{brief, escape_controls};
use decanus_base::units::show_duration;
use futures::StreamExt;
use futures::stream::{self, BoxStream};
use tokio::time::Instant;

use crate::conversation::{Backend, CallCx, Conversation, Delta, DryRun, View};
use crate::dialect::Fault;
use crate::error::BackendError;
use crate::profile::{Profile, Relay};
use crate::reader::error_of;
use crate::redact::Redactor;
use crate::relay_ssh::{Done, run, run_unwatched};
use crate::relay_wire::{NAME, read_reply, request};

/// The pause before the first look for a reply, and the longest between two.
const PAUSES: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(5));
/// How long the far side may take to drop a request that nobody wants any more.
const FAREWELL: Duration = Duration::from_secs(3);

/// The remote script's codes: the reply is not there, and the request was taken, or lies there untouched.
const TAKEN: i32 = 75;
const UNTAKEN: i32 = 76;

/// The backend `relay`.
#[derive(Debug, Clone, Copy, Default)]
pub struct RelayBackend;

impl Backend for RelayBackend {
    fn name(&self) -> &str {
        NAME
    }

    fn open(&self, profile: Arc<Profile>) -> Result<Box<dyn Conversation>, BackendError> {
        let fail = |what: String| BackendError::Config(format!("endpoint `{}`: {what}", profile.name));
        let Some(relay) = profile.relay.clone() else {
            return Err(fail("give `server`, a host as ssh knows it".into()));
        };
        relay.check(profile.file_is_own).map_err(fail)?;
        if profile.key.is_some() || !profile.headers.is_empty() {
            return Err(fail(
                "a relay has no key of its own: keys stay in the endpoint's file on the other machine".into(),
            ));
        }
        Ok(Box::new(RelayConversation { profile, relay }))
    }
}

struct RelayConversation {
    profile: Arc<Profile>,
    relay: Relay,
}

impl Conversation for RelayConversation {
    fn backend(&self) -> &str {
        NAME
    }

    fn complete<'a>(&'a mut self, view: &'a View<'a>, cx: &'a CallCx) -> BoxStream<'a, Result<Delta, BackendError>> {
        let answer = async move {
            let asked = match request(&self.profile, &self.relay, view) {
                Ok(bytes) => Exchange::new(self, cx).ask(&bytes).await,
                Err(what) => Err(BackendError::Config(what)),
            };
            match asked {
                Ok(deltas) => deltas.into_iter().map(Ok).collect(),
                Err(error) => vec![Err(error)],
            }
        };
        stream::once(answer).flat_map(stream::iter).boxed()
    }

    fn dry_run(&mut self, view: &View<'_>, _: bool) -> Result<DryRun, BackendError> {
        let bytes = request(&self.profile, &self.relay, view).map_err(BackendError::Config)?;
        let body = String::from_utf8(bytes).map_err(|e| BackendError::Internal(e.to_string()))?;
        Ok(DryRun {
            target: format!("{}, folder {}", self.relay.target(), self.relay.dir),
            body,
        })
    }
}

/// One request on its way. Dropping it takes the request back, if nobody has begun with it.
struct Exchange<'a> {
    profile: &'a Profile,
    relay: &'a Relay,
    cx: &'a CallCx,
    /// Random: an equal question never meets the reply of an earlier one.
    id: String,
    begun: Instant,
    deadline: Instant,
    total: Duration,
    /// Whether the request may lie on the far side.
    sent: bool,
}

impl<'a> Exchange<'a> {
    fn new(conversation: &'a RelayConversation, cx: &'a CallCx) -> Self {
        let RelayConversation { profile, relay } = conversation;
        let total = profile.timeouts.total.min(cx.timeout);
        let begun = Instant::now();
        Self {
            profile,
            relay,
            cx,
            id: uuid::Uuid::new_v4().to_string(),
            begun,
            deadline: begun
                .checked_add(total)
                .unwrap_or(begun + Duration::from_secs(365 * 86400)),
            total,
            sent: false,
        }
    }

    async fn ask(mut self, request: &[u8]) -> Result<Vec<Delta>, BackendError> {
        let reply = self.exchange(request).await;
        // Whatever comes now, nothing is left to be taken back afterwards.
        if self.sent {
            let script = match &reply {
                Ok(_) => format!("rm -f {}", self.reply_path()),
                Err(_) => self.withdrawal(),
            };
            let farewell = run(self.profile, self.relay, &script, b"");
            if let Ok(Err(error)) = tokio::time::timeout(FAREWELL, farewell).await {
                tracing::debug!(endpoint = %self.profile.name, "the request's files were not removed: {error}");
            }
            self.sent = false;
        }
        let redactor = Redactor::new(self.profile);
        let target = self.relay.target();
        read_reply(&reply?).map_err(|fault| {
            // The far side says with which number its provider refused; its code is only a word of ours.
            let status = match &fault {
                Fault::Refused { status, .. } => status.unwrap_or(502),
                _ => 200,
            };
            error_of(fault, &target, &self.profile.model, &redactor, status, None)
        })
    }

    async fn exchange(&mut self, request: &[u8]) -> Result<Vec<u8>, BackendError> {
        let upload = self.upload(request.len());
        self.sent = true;
        match self.remote(&upload, request).await {
            Ok(done) if done.code == 0 => {}
            Ok(done) => return Err(self.bad_folder(&done)),
            Err(error) => {
                // Where ssh does not get through there is nothing to be taken back, and no way to do it.
                self.sent = !matches!(error, BackendError::Unreachable { .. } | BackendError::Config(_));
                return Err(error);
            }
        }
        let look = self.look();
        let mut pause = PAUSES.0;
        loop {
            self.within(tokio::time::sleep(pause)).await?;
            pause = (pause * 8 / 5).min(PAUSES.1);
            let done = self.remote(&look, b"").await?;
            match done.code {
                0 => return Ok(done.stdout),
                TAKEN => {}
                // An original server leaves the file where it is while it works.
                UNTAKEN if self.relay.plain || self.begun.elapsed() < self.profile.timeouts.first_byte => {}
                UNTAKEN => {
                    let limit = show_duration(self.profile.timeouts.first_byte);
                    return Err(self.timed_out(format!(
                        "nobody took the request within {limit}; does `decanus relay serve` run there?"
                    )));
                }
                _ => return Err(self.bad_folder(&done)),
            }
        }
    }

    /// A connection that breaks ends the input of `cat` like one that is done, so the length is checked before the file
    /// gets its name.
    fn upload(&self, length: usize) -> String {
        let (dir, id) = (&self.relay.dir, &self.id);
        let new = format!("{dir}/.{id}.tmp");
        format!(
            "umask 077; mkdir -p {dir}/reply && cat > {new} && test $(wc -c < {new}) -eq {length} && \
             mv {new} {dir}/{id}.json || {{ rm -f {new}; exit 1; }}"
        )
    }

    fn look(&self) -> String {
        let (dir, id, reply) = (&self.relay.dir, &self.id, self.reply_path());
        format!(
            "if test -f {reply}; then cat {reply}; elif test -f {dir}/{id}.json; then exit {UNTAKEN}; \
             else exit {TAKEN}; fi"
        )
    }

    fn withdrawal(&self) -> String {
        let (dir, id) = (&self.relay.dir, &self.id);
        format!("rm -f {dir}/{id}.json {dir}/.{id}.tmp {}", self.reply_path())
    }

    fn reply_path(&self) -> String {
        format!("{}/reply/{}.json", self.relay.dir, self.id)
    }

    async fn remote(&self, script: &str, input: &[u8]) -> Result<Done, BackendError> {
        self.within(run(self.profile, self.relay, script, input)).await?
    }

    /// Waits until the time for the whole request is up, or nobody wants it any more.
    async fn within<T>(&self, work: impl Future<Output = T>) -> Result<T, BackendError> {
        tokio::select! {
            biased;
            () = self.cx.cancel.cancelled() => Err(BackendError::Cancelled),
            done = tokio::time::timeout_at(self.deadline, work) => done.map_err(|_| {
                self.timed_out(format!("the whole request may take {}", show_duration(self.total)))
            }),
        }
    }

    fn timed_out(&self, what: String) -> BackendError {
        BackendError::TimedOut {
            target: self.relay.target(),
            what,
        }
    }

    fn bad_folder(&self, done: &Done) -> BackendError {
        let words = escape_controls(&brief(done.stderr.trim(), 500));
        BackendError::Unreachable {
            target: format!("{}, folder {}", self.relay.target(), self.relay.dir),
            reason: match words.is_empty() {
                true => format!("the command there ended with code {}", done.code),
                false => words,
            },
        }
    }
}

impl Drop for Exchange<'_> {
    fn drop(&mut self) {
        if self.sent {
            run_unwatched(self.profile, self.relay, &self.withdrawal());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::path::Path;
    use std::process::{Command, Stdio};

    fn sh(script: &str, input: &[u8]) -> Option<i32> {
        let mut child = Command::new("sh")
            .args(["-c", script])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(input).unwrap();
        child.wait().unwrap().code()
    }

    /// The scripts of an exchange, without the way between.
    fn with_scripts(check: impl FnOnce(&Exchange<'_>, &Path)) {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("ask");
        let relay = Relay {
            dir: folder.display().to_string(),
            ..Relay::to("host")
        };
        let conversation = RelayConversation {
            profile: Arc::new(Profile::new("r", NAME, "m")),
            relay,
        };
        let cx = CallCx {
            cancel: tokio_util::sync::CancellationToken::new(),
            timeout: Duration::from_secs(1),
            stream: false,
            explain: false,
            pass: None,
            raw: Default::default(),
        };
        check(&Exchange::new(&conversation, &cx), &folder);
    }

    #[test]
    fn what_arrives_in_part_never_gets_its_name() {
        with_scripts(|exchange, folder| {
            assert_eq!(sh(&exchange.upload(10), b"12345"), Some(1));
            let names: Vec<_> = std::fs::read_dir(folder)
                .unwrap()
                .flatten()
                .map(|e| e.file_name())
                .collect();
            assert_eq!(names, ["reply"]);
            assert_eq!(sh(&exchange.upload(5), b"12345"), Some(0));
            assert_eq!(
                std::fs::read(folder.join(format!("{}.json", exchange.id))).unwrap(),
                b"12345"
            );
        });
    }

    #[test]
    fn the_states_of_a_request_are_told_apart() {
        with_scripts(|exchange, folder| {
            sh(&exchange.upload(1), b"1");
            assert_eq!(sh(&exchange.look(), b""), Some(UNTAKEN));
            let file = folder.join(format!("{}.json", exchange.id));
            std::fs::rename(&file, folder.join("x.taken")).unwrap();
            assert_eq!(sh(&exchange.look(), b""), Some(TAKEN));
            std::fs::write(folder.join(format!("reply/{}.json", exchange.id)), "1").unwrap();
            assert_eq!(sh(&exchange.look(), b""), Some(0));
            assert_eq!(sh(&exchange.withdrawal(), b""), Some(0));
            assert_eq!(std::fs::read_dir(folder.join("reply")).unwrap().count(), 0);
        });
    }
}
