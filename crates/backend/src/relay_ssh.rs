//! The system's `ssh` as the way to another machine: one command, one connection, no terminal and no questions.

use std::io::{Error, ErrorKind};
use std::process::{Command, Stdio};
use std::time::Duration;

use decanus_base::process;
use decanus_base::text::{brief, escape_controls};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::process::{ChildStderr, ChildStdin, ChildStdout};

use crate::error::BackendError;
use crate::exec_process::Ending;
use crate::profile::{Profile, Relay};
use crate::relay_wire::MAX_FILE;

/// What `ssh` itself ends with when it could not do its work: everything else is the remote command's own code.
const SSH_FAILED: i32 = 255;

/// How a remote command ended.
#[derive(Debug)]
pub(crate) struct Done {
    pub code: i32,
    pub stdout: Vec<u8>,
    pub stderr: String,
}

/// The command that runs a script on the far side. `script` may hold nothing but our own words, the checked folder and
/// an id: it passes through the login shell there, whichever that is, within single quotes.
pub(crate) fn command(profile: &Profile, relay: &Relay, script: &str) -> Command {
    let mut command = Command::new("ssh");
    // The first value of an option counts. These are ours: no question can be answered here; nothing of this machine is
    // forwarded; and a master connection left in the background would hold our pipes open.
    command.args(["-a", "-x", "-T", "-o", "BatchMode=yes", "-o", "ControlMaster=no"]);
    command.args(["-o", "ClearAllForwardings=yes"]);
    command.args(&relay.ssh_options);
    let seconds = profile.timeouts.connect.as_secs_f64().ceil().max(1.0);
    command.args(["-o", &format!("ConnectTimeout={seconds}"), "-o", "LogLevel=ERROR"]);
    command.args(["-o", "ServerAliveInterval=15", "-o", "ServerAliveCountMax=3"]);
    command.arg("--").arg(&relay.server).arg(format!("sh -c '{script}'"));
    command
}

/// Runs a script on the far side. Dropping the future ends it here.
///
/// # Errors
/// `ssh` is missing, or could not reach the far side or was not let in: never to be taken for "not yet".
pub(crate) async fn run(profile: &Profile, relay: &Relay, script: &str, input: &[u8]) -> Result<Done, BackendError> {
    let done = start(command(profile, relay, script), input).await;
    let done = done.map_err(|e| match e.kind() {
        ErrorKind::NotFound => BackendError::Config(format!(
            "endpoint `{}`: the program `ssh` is not in PATH; install OpenSSH's client",
            profile.name
        )),
        _ => BackendError::Internal(format!("ssh could not be run: {e}")),
    })?;
    if done.code == SSH_FAILED {
        return Err(unreachable(relay, &done.stderr));
    }
    Ok(done)
}

/// The error of an `ssh` that failed, in its own words.
pub(crate) fn unreachable(relay: &Relay, stderr: &str) -> BackendError {
    let words = brief(stderr.trim(), 500);
    BackendError::Unreachable {
        target: relay.target(),
        reason: match words.is_empty() {
            true => "ssh failed and does not say why".to_owned(),
            false => escape_controls(&words),
        },
    }
}

/// Begins to run a script and leaves it to itself: for what may fail, when nobody can wait for it.
pub(crate) fn run_unwatched(profile: &Profile, relay: &Relay, script: &str) {
    let mut command = command(profile, relay, script);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    if let Ok(mut child) = process::spawn(command) {
        // So that it is no zombie afterwards.
        let wait = move || drop(child.wait());
        let _ = std::thread::Builder::new().name("relay".into()).spawn(wait);
    }
}

async fn start(mut command: Command, input: &[u8]) -> std::io::Result<Done> {
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = process::spawn(command)?;
    let pipes = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    // From here on the child ends with this value.
    let mut ending = Ending::new(child);
    let (Some(stdin), Some(stdout), Some(stderr)) = pipes else {
        return Err(Error::other("it has no pipes"));
    };
    let mut stdin = ChildStdin::from_std(stdin)?;
    let (stdout, stderr) = (ChildStdout::from_std(stdout)?, ChildStderr::from_std(stderr)?);
    let write = async {
        // One that ends early says why by its code.
        let _ = stdin.write_all(input).await;
        drop(stdin);
    };
    let ((), stdout, stderr) = tokio::join!(write, read(stdout), read(stderr));
    let (stdout, stderr) = (stdout?, stderr?);
    let mut pause = Duration::from_millis(1);
    loop {
        if let Some(status) = ending.try_wait()? {
            ending.is_over();
            return Ok(Done {
                code: status.code().unwrap_or(SSH_FAILED),
                stdout,
                stderr: String::from_utf8_lossy(&stderr).into_owned(),
            });
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(Duration::from_millis(50));
    }
}

async fn read(from: impl AsyncRead + Unpin) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    from.take(MAX_FILE + 1).read_to_end(&mut bytes).await?;
    if bytes.len() as u64 > MAX_FILE {
        return Err(Error::other(format!("it said more than {} MiB", MAX_FILE >> 20)));
    }
    Ok(bytes)
}
