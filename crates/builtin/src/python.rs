//! A script in Python, in a process of its own.

use std::io::{Seek, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use decanus_base::process::{Rlimits, limit, user_threads};
use decanus_chat::Effect;
use decanus_tool::{FnTool, ToolContext, ToolError, ToolErrorClass};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::child;
use crate::place::Place;
use crate::work::{self, Stop};

const TIME: Duration = Duration::from_secs(30);
const MEMORY: u64 = 1 << 30;
const MAX_FILE: u64 = 64 << 20;
/// Processes and threads that a script may have beside those of its user.
const PROCESSES: u64 = 64;
const MAX_SCRIPT: usize = 1 << 20;

/// Arguments of `python`.
#[derive(Deserialize, JsonSchema)]
pub struct Script {
    /// The script. What it prints is the result; files that it makes in its folder are gone afterwards.
    script: String,
}

pub(crate) fn tool(place: Arc<Place>) -> FnTool<Script> {
    FnTool::new(
        "python",
        "Runs a Python script within limits; gives its exit code and what it printed.",
        move |args: Script, cx: ToolContext| {
            let place = place.clone();
            work::blocking(cx, move |cx, stop| run(&place, &args, cx, &stop))
        },
    )
    .effect(Effect::Unknown)
    .destructive()
    .example(
        "Compute the 20th Fibonacci number with Python.",
        json!({"script": "a, b = 0, 1\nfor _ in range(20):\n    a, b = b, a + b\nprint(a)\n"}),
    )
}

fn run(place: &Place, args: &Script, cx: &ToolContext, stop: &Stop) -> Result<Value, ToolError> {
    let settings = &place.tools.python;
    let refuse = |text: String| ToolError::respond(ToolErrorClass::Tool, text);
    if !settings.enabled {
        return Err(ToolError::argument(
            "scripts may not be run here. To allow them, decanus.toml needs: [tools.python] enabled = true",
        ));
    }
    if args.script.trim().is_empty() {
        return Err(ToolError::argument("the script is empty"));
    }
    if args.script.len() > MAX_SCRIPT {
        let most = decanus_base::units::show_size(MAX_SCRIPT as u64);
        return Err(ToolError::argument(format!("the script has more than {most}")));
    }
    let name = settings.program.as_deref().unwrap_or("python3");
    let program = child::program(name, &place.root)
        .ok_or_else(|| refuse(format!("there is no `{name}`; [tools.python] program names another")))?;
    let made = || -> std::io::Result<_> {
        let folder = tempfile::Builder::new().prefix("decanus-python-").tempdir()?;
        let mut script = tempfile::tempfile()?;
        script.write_all(args.script.as_bytes())?;
        script.rewind()?;
        Ok((folder, script))
    };
    let (folder, script) = made().map_err(|e| refuse(format!("no folder for the script: {e}")))?;
    let time = settings.timeout.unwrap_or(TIME).min(cx.run.limits().tool_time);
    let mut command = child::command(&program, &[]);
    // -I: neither the folder nor the user's own packages nor any PYTHON… variable has a say.
    command.args(["-I", "-B", "-X", "utf8", "-"]);
    at_home(&mut command, folder.path());
    limit(
        &mut command,
        Rlimits {
            // The clock is stopped by decanus; processor time of several threads can run ahead of it.
            cpu: time.as_secs().saturating_add(2),
            memory: settings.memory.unwrap_or(MEMORY),
            file_size: MAX_FILE,
            files: 256,
            processes: user_threads().saturating_add(PROCESSES),
        },
    );
    child::run(command, Some(script), time, "the script", stop)
}

/// The script's folder is all that it is told of.
fn at_home(command: &mut std::process::Command, folder: &Path) {
    command.current_dir(folder).env("HOME", folder).env("TMPDIR", folder);
}
