//! `workflow run --no-wait`: the same command goes on in a process of its own.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use decanus::base::ErrorKind;
use decanus::base::process::{Ended, spawn_detached};
use decanus::workflow::{JobStore, StoredJob};
use decanus::{Decanus, Error};

/// The flag that is left out of the command of the process that goes on.
const FLAG: &str = "--no-wait";
/// How long the process may take to say that it has the job.
const PATIENCE: Duration = Duration::from_secs(60);

/// Starts this command once more, without the flag and apart from this process, and returns when there is a record of
/// the job that it was given.
///
/// # Errors
/// When it can't be started, or ends without a record; with its last words.
pub fn detach(decanus: &Decanus, path: &Path) -> Result<(), Error> {
    let is_at_work = |job: StoredJob| job.record.effective_status().is_active();
    if decanus.jobs.read(path.to_owned()).is_some_and(is_at_work) {
        return Ok(());
    }
    let failed = |what: String| Error::new(ErrorKind::Internal, what);
    let program = std::env::current_exe().map_err(|e| failed(format!("the path of this program is not known: {e}")))?;
    // What it says before it has a record, and after: nobody else hears it.
    let words = decanus
        .jobs
        .dir()
        .join(format!(".tmp-worker-{}.log", std::process::id()));
    let file = fs::create_dir_all(decanus.jobs.dir()).and_then(|()| File::create(&words));
    let file = file.map_err(|e| failed(format!("{}: {e}", words.display())))?;
    let before = changed(&decanus.jobs, path);
    let mut command = Command::new(program);
    command
        .args(std::env::args_os().skip(1).filter(|a| a != FLAG))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(file);
    let started = spawn_detached(command).map_err(|e| failed(format!("the worker can't be started: {e}")));
    let waited = started.and_then(|worker| {
        let begun = Instant::now();
        loop {
            let ended = worker.ended();
            if changed(&decanus.jobs, path) != before {
                return Ok(());
            }
            match ended {
                // It may have found the result, or somebody who is at work on it.
                Some(Ended::Exit(0)) => return Ok(()),
                Some(_) => {
                    let said = fs::read_to_string(&words).unwrap_or_default();
                    let said = said.trim().trim_start_matches("error: ").to_owned();
                    return Err(Error::new(
                        ErrorKind::Job,
                        format!("the worker ended before it began: {said}"),
                    ));
                }
                None if begun.elapsed() > PATIENCE => {
                    return Err(failed(format!("the worker did not begin within {PATIENCE:?}")));
                }
                None => std::thread::sleep(Duration::from_millis(5)),
            }
        }
    });
    // The worker keeps its open file.
    let _ = fs::remove_file(&words);
    waited
}

/// What changes in a record when a job is asked for again.
fn changed(jobs: &JobStore, path: &Path) -> Option<(String, u32)> {
    let job = jobs.read(path.to_owned())?;
    Some((job.record.created, job.record.pid))
}
