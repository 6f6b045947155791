//! A program that the project's settings allow.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use decanus_base::settings::RunCommandSettings;
use decanus_chat::Effect;
use decanus_tool::{FnTool, ToolContext, ToolError, ToolErrorClass};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::child;
use crate::place::{Place, Reach, shown};
use crate::work::{self, Stop};

const TIME: Duration = Duration::from_secs(60);

/// Arguments of `run_command`.
#[derive(Deserialize, JsonSchema)]
pub struct RunCommand {
    /// The program and its arguments, each an element; no shell reads them.
    argv: Vec<String>,
    /// The folder to run it in, relative to the project's folder; the project's when left out.
    dir: Option<String>,
}

pub(crate) fn tool(place: Arc<Place>) -> FnTool<RunCommand> {
    FnTool::new(
        "run_command",
        "Runs a program that the project allows, without a shell; gives its exit code and what it wrote.",
        move |args: RunCommand, cx: ToolContext| {
            let place = place.clone();
            work::blocking(cx, move |cx, stop| run(&place, &place.reach(cx), &args, cx, &stop))
        },
    )
    .effect(Effect::Unknown)
    .destructive()
    .example("What does git status say?", json!({"argv": ["git", "status"]}))
}

fn run(place: &Place, reach: &Reach, args: &RunCommand, cx: &ToolContext, stop: &Stop) -> Result<Value, ToolError> {
    let settings = &place.tools.run_command;
    let program = allowed(settings, &args.argv, &reach.root)?;
    if args.argv.iter().any(|a| a.contains('\0')) {
        return Err(ToolError::argument("an argument can't hold a NUL character"));
    }
    let dir = reach.folder(args.dir.as_deref().unwrap_or("."))?;
    let mut command = child::command(&program, &settings.env);
    command.args(&args.argv[1..]).current_dir(dir);
    let time = settings.timeout.unwrap_or(TIME).min(cx.run.limits().tool_time);
    child::run(command, None, time, &format!("`{}`", shown(&args.argv[0])), stop)
}

/// The program of a command, if the settings allow the command.
fn allowed(settings: &RunCommandSettings, argv: &[String], root: &Path) -> Result<PathBuf, ToolError> {
    let Some(name) = argv.first().filter(|name| !name.is_empty()) else {
        return Err(ToolError::argument("argv is empty: it begins with the program"));
    };
    let entries = settings.allow.iter().map(|e| e.split_whitespace().collect::<Vec<_>>());
    let fits = |words: &Vec<&str>| {
        !words.is_empty()
            && words
                .iter()
                .enumerate()
                .all(|(i, w)| argv.get(i).is_some_and(|a| a == w))
    };
    if !entries.clone().any(|words| fits(&words)) {
        let name = shown(name);
        let of_program: Vec<String> = entries
            .filter(|words| words.first() == Some(&name.as_str()))
            .map(|words| words.join(" "))
            .collect();
        let known = match (of_program.as_slice(), settings.allow.as_slice()) {
            ([], []) => "no programs are allowed here".to_owned(),
            ([], all) => format!("allowed are: {}", all.join(", ")),
            (some, _) => format!("of it only these are allowed: {}", some.join(", ")),
        };
        return Err(ToolError::argument(format!(
            "`{name}` may not be run; {known}. To allow it, decanus.toml needs: [tools.run_command] allow = [\"{name}\"]"
        )));
    }
    child::program(name, root).ok_or_else(|| {
        let text = format!("`{}` is allowed, but there is no such program", shown(name));
        ToolError::respond(ToolErrorClass::Tool, text)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_allowed_runs() {
        let settings = RunCommandSettings {
            allow: vec!["ls".into(), "git log".into(), "nonesuch".into(), " ".into()],
            ..RunCommandSettings::default()
        };
        let try_it = |argv: &[&str]| {
            let argv: Vec<String> = argv.iter().map(|&a| a.to_owned()).collect();
            allowed(&settings, &argv, Path::new("/")).map_err(|e| e.to_string())
        };
        assert!(try_it(&["ls", "-l"]).unwrap().ends_with("ls"));
        for (argv, says) in [
            (&["sh", "-c", "ls"][..], "allowed are: ls, git log"),
            (&["git", "push"], "only these are allowed: git log"),
            (&["git"], "only these are allowed: git log"),
            (&["/bin/ls"], "`/bin/ls` may not be run"),
            (&["./ls"], "may not be run"),
            (&["LS"], "may not be run"),
            (&["nonesuch"], "no such program"),
            (&[""], "argv is empty"),
            (&[], "argv is empty"),
        ] {
            let error = try_it(argv).unwrap_err();
            assert!(error.contains(says), "{argv:?}: {error}");
        }
        let none = allowed(&RunCommandSettings::default(), &["ls".to_owned()], Path::new("/"));
        let error = none.unwrap_err().to_string();
        assert!(error.contains("[tools.run_command] allow = [\"ls\"]"), "{error}");
    }
}
