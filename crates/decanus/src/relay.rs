//! The far side of the relay: requests that lie in a folder are asked here, and their replies are put beside them.
//!
//! A request is inference and nothing else: no tool of this machine runs, no file of it is read, no text of a request is
//! parsed as chat syntax, and the answer cache is neither read nor written.

use std::collections::HashSet;
use std::fs::{self, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use decanus_backend::relay_wire::{Form, MAX_FILE, RelayRequest, RelayRequestError, error_reply, reply, status_of};
use decanus_backend::{BackendError, CallCx, Collector, Response, View};
use decanus_base::files::named;
use decanus_base::{ErrorKind, Project};
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::Decanus;
use crate::error::Error;

/// Requests that are asked at the same time.
const AT_ONCE: usize = 8;
/// The pause between two looks at the folder.
const PAUSE: Duration = Duration::from_millis(200);
/// A file that is no whole JSON is left alone for so long after its last change: an original client writes in place.
const SETTLED: Duration = Duration::from_secs(5);

/// The far side of the relay.
pub struct RelayServer<'a> {
    decanus: &'a Decanus,
    dir: PathBuf,
    endpoint: Option<String>,
}

/// What the server has done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RelayEvent {
    /// A request was answered.
    Answered {
        /// The request.
        id: String,
        /// The endpoint that was asked.
        endpoint: String,
        /// How long it took.
        time: Duration,
    },
    /// A request got an error for a reply.
    Failed {
        /// The request.
        id: String,
        /// Why.
        reason: String,
    },
    /// A file is no request, and lies in `failed/` now.
    Bad {
        /// The file.
        id: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The folder could not be read or written; the server goes on.
    Trouble(String),
}

/// How many requests a server has dealt with.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RelayCounts {
    /// Those answered.
    pub answered: usize,
    /// Those that got an error, and bad files.
    pub failed: usize,
}

impl RelayCounts {
    fn count(&mut self, event: &RelayEvent) {
        match event {
            RelayEvent::Answered { .. } => self.answered += 1,
            RelayEvent::Failed { .. } | RelayEvent::Bad { .. } => self.failed += 1,
            RelayEvent::Trouble(_) => {}
        }
    }
}

/// A file that may be a request.
enum Look {
    /// It is.
    Whole(Box<RelayRequest>),
    /// It may still be being written, or is gone.
    Later,
    /// It never will be.
    Bad { reason: String, keep: bool },
}

impl<'a> RelayServer<'a> {
    /// A server for a folder; without one for `.scout/var/ask` of the home folder. `endpoint` is asked when a request names
    /// none.
    ///
    /// # Errors
    /// No home folder; a folder that can't be made.
    pub fn new(decanus: &'a Decanus, dir: Option<&Path>, endpoint: Option<String>) -> Result<Self, Error> {
        let dir = match dir {
            Some(dir) => decanus.project.user_path(dir),
            None => default_dir(&decanus.project)?,
        };
        for folder in [dir.clone(), dir.join("reply"), dir.join("failed")] {
            // What is asked and answered here is its owner's alone.
            make_private(&folder).map_err(|e| Error::new(ErrorKind::Config, named(e, &folder).to_string()))?;
        }
        Ok(Self { decanus, dir, endpoint })
    }

    /// The folder.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Deals with requests until `stop`; with `once` only with those that are there already. Those under way when it stops
    /// get an error for a reply.
    pub async fn serve(&self, once: bool, stop: &CancellationToken, tell: &dyn Fn(&RelayEvent)) -> RelayCounts {
        let mut counts = RelayCounts::default();
        let mut say = |event: RelayEvent| {
            counts.count(&event);
            tell(&event);
        };
        let mut only: Option<HashSet<PathBuf>> = None;
        let mut trouble = String::new();
        let mut active = FuturesUnordered::new();
        loop {
            let mut waiting = 0;
            match self.files() {
                Ok(files) => {
                    trouble.clear();
                    let of_now = once.then(|| only.get_or_insert_with(|| files.iter().cloned().collect()).clone());
                    for file in files {
                        if of_now.as_ref().is_some_and(|now| !now.contains(&file)) {
                            continue;
                        }
                        waiting += 1;
                        if active.len() >= AT_ONCE || stop.is_cancelled() {
                            break;
                        }
                        match self.begin(&file) {
                            Ok(Some((request, taken))) => {
                                active.push(self.answer(request, taken, stop));
                                waiting -= 1;
                            }
                            Ok(None) => {}
                            Err(event) => {
                                waiting -= 1;
                                say(event);
                            }
                        }
                    }
                }
                // Said once, not five times a second.
                Err(error) if error.to_string() != trouble => {
                    trouble = error.to_string();
                    say(RelayEvent::Trouble(trouble.clone()));
                }
                Err(_) => {}
            }
            if stop.is_cancelled() || (once && waiting == 0) {
                break;
            }
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                Some(event) = active.next() => say(event),
                () = tokio::time::sleep(PAUSE) => {}
            }
        }
        // They know of `stop` themselves, and write their replies.
        while let Some(event) = active.next().await {
            say(event);
        }
        counts
    }

    /// The requests in the folder, the oldest first.
    fn files(&self) -> io::Result<Vec<PathBuf>> {
        let mut found = Vec::new();
        for entry in fs::read_dir(&self.dir).map_err(|e| named(e, &self.dir))? {
            let entry = entry.map_err(|e| named(e, &self.dir))?;
            let name = entry.file_name();
            let is_request = |name: &str| name.ends_with(".json") && !name.starts_with('.');
            if !name.to_str().is_some_and(is_request) || !entry.file_type().is_ok_and(|t| t.is_file()) {
                continue;
            }
            // One that is gone meanwhile was taken by somebody else.
            if let Ok(modified) = entry.metadata().and_then(|m| m.modified()) {
                found.push((modified, entry.path()));
            }
        }
        found.sort();
        Ok(found.into_iter().map(|(_, path)| path).collect())
    }

    /// Takes a request: none when it is not whole yet, or somebody else was faster.
    fn begin(&self, file: &Path) -> Result<Option<(RelayRequest, PathBuf)>, RelayEvent> {
        let id = id_of(file);
        match look(file) {
            Look::Later => Ok(None),
            Look::Bad { reason, keep } => {
                let moved = self.set_aside(file, &id, &reason, keep);
                moved.map_err(|e| RelayEvent::Trouble(e.to_string()))?;
                // Whoever waits for a reply is told.
                let told = self.write_reply(&id, Form::Own, &error_reply("usage", &reason, 400));
                told.map_err(|e| RelayEvent::Trouble(e.to_string()))?;
                Err(RelayEvent::Bad { id, reason })
            }
            Look::Whole(request) => {
                let taken = self.dir.join(format!("{id}.taken"));
                // Of two servers one succeeds.
                match fs::rename(file, &taken) {
                    Ok(()) => Ok(Some((*request, taken))),
                    Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
                    Err(e) => Err(RelayEvent::Trouble(named(e, file).to_string())),
                }
            }
        }
    }

    /// Moves a bad file out of the way, with the reason beside it. One that holds a credential is not kept.
    fn set_aside(&self, file: &Path, id: &str, reason: &str, keep: bool) -> io::Result<()> {
        let failed = self.dir.join("failed");
        make_private(&failed)?;
        write_private(&failed, &format!("{id}.reason.txt"), format!("{reason}\n").as_bytes())?;
        match keep {
            true => fs::rename(file, failed.join(format!("{id}.json"))),
            false => fs::remove_file(file),
        }
        .map_err(|e| named(e, file))
    }

    fn write_reply(&self, id: &str, form: Form, reply: &Value) -> io::Result<()> {
        let dir = self.dir.join(form.folder());
        make_private(&dir)?;
        write_private(&dir, &format!("{id}.json"), reply.to_string().as_bytes())
    }

    async fn answer(&self, request: RelayRequest, taken: PathBuf, stop: &CancellationToken) -> RelayEvent {
        let id = id_of(&taken);
        let start = Instant::now();
        let asked = self.ask(&request, stop).await;
        let (reply, event) = match asked {
            Ok((response, backend, endpoint)) => {
                let time = start.elapsed();
                let reply = reply(&response, &backend, request.form);
                let id = id.clone();
                (reply, RelayEvent::Answered { id, endpoint, time })
            }
            Err((error, status)) => {
                let message = match (error.kind, stop.is_cancelled()) {
                    (ErrorKind::Interrupted, true) => "the relay's server was stopped".to_owned(),
                    _ => error.message,
                };
                let reply = error_reply(error.kind.as_str(), &message, status);
                let id = id.clone();
                (reply, RelayEvent::Failed { id, reason: message })
            }
        };
        let written = self.write_reply(&id, request.form, &reply);
        if let Err(error) = written.and_then(|()| fs::remove_file(&taken).map_err(|e| named(e, &taken))) {
            return RelayEvent::Trouble(error.to_string());
        }
        event
    }

    /// Asks the model, once. The error comes with its number in the reply.
    async fn ask(
        &self,
        request: &RelayRequest,
        stop: &CancellationToken,
    ) -> Result<(Response, String, String), (Error, u16)> {
        let config = |error: Error| (error, 400);
        let provider = |error: BackendError| {
            let status = status_of(&error);
            (Error::of(&error), status)
        };
        let wanted = request.endpoint.clone().or_else(|| self.endpoint.clone());
        let wanted = wanted.or_else(|| request.backend.clone());
        let (name, _) = self.decanus.endpoint_name(wanted).map_err(config)?;
        let profiles = self.decanus.endpoints.load_chain(&name);
        let mut profiles = profiles.map_err(|e| config(Error::of(&e)))?;
        if let Some((model, first)) = request.model.as_ref().zip(profiles.first_mut()) {
            first.model.clone_from(model);
        }
        // Within the limits of the endpoint, but not from the cache: a stored answer was not asked for now.
        let (profile, mut conversation) = self.decanus.open_all(profiles).map_err(config)?;
        let view = View {
            messages: &request.messages,
            tools: &request.tools,
            parameters: &request.parameters,
            tool_choice: request.tool_choice.as_deref(),
        };
        let cx = CallCx {
            cancel: stop.clone(),
            timeout: profile.timeouts.total,
            stream: true,
            explain: false,
            pass: None,
            raw: Default::default(),
        };
        let mut collector = Collector::new();
        {
            let mut stream = conversation.complete(&view, &cx);
            while let Some(delta) = stream.next().await {
                collector.push(&delta.map_err(provider)?);
            }
        }
        let backend = conversation.backend().to_owned();
        Ok((collector.finish(), backend, name))
    }
}

/// Where the requests of a machine lie: beside the files of the originals.
fn default_dir(project: &Project) -> Result<PathBuf, Error> {
    let home = std::env::home_dir().filter(|home| !home.as_os_str().is_empty());
    let home = home.ok_or_else(|| Error::usage("there is no home folder; name the folder of the requests"))?;
    Ok(project.user_path(home.join(decanus_backend::Relay::DIR)))
}

fn id_of(file: &Path) -> String {
    file.file_stem()
        .map(|stem| stem.to_string_lossy().into_owned())
        .unwrap_or_default()
}

fn look(file: &Path) -> Look {
    let bad = |reason: String| Look::Bad { reason, keep: true };
    let bytes = match read(file) {
        Ok(bytes) => bytes,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Look::Later,
        Err(e) => return bad(e.to_string()),
    };
    match RelayRequest::read(&bytes) {
        Ok(request) => Look::Whole(Box::new(request)),
        Err(error @ RelayRequestError::Credential(_)) => Look::Bad {
            reason: error.to_string(),
            keep: false,
        },
        Err(error) => {
            let is_json = serde_json::from_slice::<Value>(&bytes).is_ok();
            let changed = fs::metadata(file).and_then(|m| m.modified()).ok();
            let age = changed.and_then(|at| at.elapsed().ok()).unwrap_or_default();
            match is_json || age >= SETTLED {
                true => bad(error.to_string()),
                false => Look::Later,
            }
        }
    }
}

fn read(file: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    fs::File::open(file)?.take(MAX_FILE + 1).read_to_end(&mut bytes)?;
    match bytes.len() as u64 > MAX_FILE {
        true => Err(io::Error::other(format!("it is larger than {} MiB", MAX_FILE >> 20))),
        false => Ok(bytes),
    }
}

/// Makes a folder that only its owner can enter; one that is there stays as it is.
fn make_private(dir: &Path) -> io::Result<()> {
    if dir.is_dir() {
        return Ok(());
    }
    fs::create_dir_all(dir).map_err(|e| named(e, dir))?;
    fs::set_permissions(dir, Permissions::from_mode(0o700)).map_err(|e| named(e, dir))
}

/// Writes a file that only its owner can read: a temporary file, then a rename.
fn write_private(dir: &Path, name: &str, bytes: &[u8]) -> io::Result<()> {
    let write = || -> io::Result<()> {
        // Temporary files have mode 0600.
        let mut file = tempfile::Builder::new().prefix(".tmp-").tempfile_in(dir)?;
        file.write_all(bytes)?;
        file.persist(dir.join(name)).map_err(|e| e.error)?;
        Ok(())
    };
    write().map_err(|e| named(e, &dir.join(name)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_a_file_is_left_alone_until_it_has_settled() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("a.json");
        fs::write(&file, "{\"question\": \"a").unwrap();
        assert!(matches!(look(&file), Look::Later));
        let old = std::time::SystemTime::now() - 2 * SETTLED;
        fs::File::options()
            .write(true)
            .open(&file)
            .unwrap()
            .set_modified(old)
            .unwrap();
        assert!(matches!(look(&file), Look::Bad { keep: true, .. }));
        fs::write(&file, "{\"question\": \"a\"}").unwrap();
        assert!(matches!(look(&file), Look::Whole(_)));
        fs::write(&file, "{\"key\": \"k\"}").unwrap();
        assert!(matches!(look(&file), Look::Bad { keep: false, .. }));
        fs::write(&file, "[1]").unwrap();
        assert!(matches!(look(&file), Look::Bad { keep: true, .. }));
        assert!(matches!(look(&dir.path().join("b.json")), Look::Later));
    }

    #[test]
    fn replies_are_their_owners_alone() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("a/reply");
        make_private(&folder).unwrap();
        write_private(&folder, "x.json", b"1").unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&folder), mode(&folder.join("x.json"))), (0o700, 0o600));
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1);
    }
}
