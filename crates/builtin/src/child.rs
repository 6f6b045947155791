//! Programs that tools run: found, started with a clean environment, watched, and what they wrote.

use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use decanus_base::process::{self, Ended};
use decanus_base::units::{show_duration, show_size};
use decanus_tool::dispatch::interrupted;
use decanus_tool::{ToolError, ToolErrorClass};
use serde_json::{Value, json};

use crate::work::Stop;

/// Bytes that a program may write to its output and errors together.
const MAX_OUTPUT: u64 = 10 << 20;
/// Characters of one stream that stay at its beginning and at its end.
const HEAD: usize = 24_000;
const TAIL: usize = 8_000;
/// Variables that say nothing secret and that programs need.
const HARMLESS: [&str; 9] = [
    "PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR",
];

/// A command whose environment has only what is harmless, and the variables `more`, as far as they are set.
pub(crate) fn command(program: &Path, more: &[String]) -> Command {
    let mut command = Command::new(program);
    command.env_clear();
    for name in HARMLESS.into_iter().chain(more.iter().map(String::as_str)) {
        if let Some(value) = std::env::var_os(name) {
            command.env(name, value);
        }
    }
    command
}

/// The file of a program: a name is looked up in `PATH`, of which only absolute folders count, so that none is picked up
/// from where the command runs; a path is relative to `base`.
pub(crate) fn program(name: &str, base: &Path) -> Option<PathBuf> {
    let is_program = |path: &PathBuf| {
        path.metadata()
            .is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
    };
    if name.contains('/') {
        return Some(base.join(name)).filter(is_program);
    }
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .filter(|dir| dir.is_absolute())
        .map(|dir| dir.join(name))
        .find(is_program)
}

/// Runs a command to its end within this time; `called` names it in errors.
///
/// The result tells how it ended and what it wrote. That it fails is a result too.
pub(crate) fn run(
    mut command: Command,
    stdin: Option<File>,
    time: Duration,
    called: &str,
    stop: &Stop,
) -> Result<Value, ToolError> {
    stop.check()?;
    let fail = |what: &str, e: &io::Error| ToolError::respond(ToolErrorClass::Tool, format!("{called} {what}: {e}"));
    let streams = || -> io::Result<(File, File, File, File)> {
        let (out, err) = (tempfile::tempfile()?, tempfile::tempfile()?);
        Ok((out.try_clone()?, err.try_clone()?, out, err))
    };
    let (to_out, to_err, mut out, mut err) = streams().map_err(|e| fail("can't be given its output", &e))?;
    command
        .stdin(stdin.map_or_else(Stdio::null, Stdio::from))
        .stdout(to_out)
        .stderr(to_err);
    let size = |file: &File| file.metadata().map_or(0, |m| m.len());
    let too_much = || size(&out) + size(&err) > MAX_OUTPUT;
    let ended = process::run_command(command, Some(time), &|| stop.is_set() || too_much(), &mut |_| {})
        .map_err(|e| fail("can't be started", &e))?;
    let flooded = too_much();
    let written = |file: &mut File| text_of(file).map_err(|e| fail("wrote what can't be read", &e));
    let (stdout, out_cut) = written(&mut out)?;
    let (stderr, err_cut) = written(&mut err)?;
    let said = || match (stdout.trim(), stderr.trim()) {
        ("", "") => String::new(),
        (out, err) => format!("; it wrote: {}", [out, err].join("\n").trim()),
    };
    let mut result = match ended {
        _ if stop.is_cancelled() => return Err(interrupted("it was stopped before it was done")),
        _ if flooded => {
            let text = format!("{called} wrote more than {} and was stopped", show_size(MAX_OUTPUT));
            return Err(ToolError::respond(ToolErrorClass::Tool, text));
        }
        Ended::TimedOut | Ended::Cancelled => {
            let text = format!(
                "{called} took longer than {} and was stopped{}",
                show_duration(time),
                said()
            );
            return Err(ToolError::respond(ToolErrorClass::Timeout, text));
        }
        Ended::Exit(code) => json!({"exit_code": code}),
        Ended::Signal(signal) => json!({"exit_code": null, "signal": signal}),
    };
    result["stdout"] = stdout.into();
    result["stderr"] = stderr.into();
    if out_cut || err_cut {
        result["truncated"] = true.into();
    }
    Ok(result)
}

/// What a stream holds, as text; the middle of a long one is left out.
fn text_of(file: &mut File) -> io::Result<(String, bool)> {
    file.rewind()?;
    let mut bytes = Vec::new();
    Read::take(&mut *file, MAX_OUTPUT).read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes);
    let count = text.chars().count();
    if count <= HEAD + TAIL {
        return Ok((text.into_owned(), false));
    }
    let at = |n: usize| text.char_indices().nth(n).map_or(text.len(), |(at, _)| at);
    let left_out = count - HEAD - TAIL;
    let cut = format!(
        "{}\n[… {left_out} characters left out …]\n{}",
        &text[..at(HEAD)],
        &text[at(count - TAIL)..]
    );
    Ok((cut, true))
}
