//! What files there are.

use std::sync::Arc;
use std::time::Duration;

use decanus_chat::Effect;
use decanus_tool::{FnTool, ToolContext, ToolError, ToolOutput};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;

use crate::place::{Place, Reach};
use crate::walk::{Walk, glob};
use crate::work::{self, Stop};

const ENTRIES: usize = 500;
const MAX_ENTRIES: usize = 5_000;
const TIME: Duration = Duration::from_secs(20);

/// Arguments of `list_files`.
#[derive(Deserialize, JsonSchema)]
pub struct ListFiles {
    /// The folder, relative to the project's; the project's when left out.
    path: Option<String>,
    /// Only files whose name or path is of this form: `*.rs`, `src/**/*.{h,c}`.
    glob: Option<String>,
    /// How many levels of folders to go down; 1 is the folder itself. All when left out.
    #[schemars(range(min = 1))]
    depth: Option<u64>,
    /// Whether to list what begins with a dot and what .gitignore leaves out; false when left out.
    hidden: Option<bool>,
    /// How many entries to list; 500 when left out.
    #[schemars(range(min = 1, max = 5_000))]
    limit: Option<u64>,
}

pub(crate) fn tool(place: Arc<Place>) -> FnTool<ListFiles> {
    FnTool::with_output(
        "list_files",
        "Lists files and folders of the project, one a line; folders end with a slash.",
        move |args: ListFiles, cx: ToolContext| {
            let place = place.clone();
            work::blocking(cx, move |cx, stop| list(place.reach(cx), &args, &stop.after(TIME)))
        },
    )
    .effect(Effect::ReadOnly)
    .example("Which files are there?", json!({}))
    .example("List the Rust files under src.", json!({"path": "src", "glob": "*.rs"}))
}

fn list(reach: Reach, args: &ListFiles, stop: &Stop) -> Result<ToolOutput, ToolError> {
    let folder = reach.folder(args.path.as_deref().unwrap_or("."))?;
    let globs = args.glob.as_deref().map(glob).transpose()?;
    let limit = usize::try_from(args.limit.unwrap_or(ENTRIES as u64)).map_or(MAX_ENTRIES, |l| l.clamp(1, MAX_ENTRIES));
    let walk = Walk {
        reach: &reach,
        folder: &folder,
        depth: args.depth.map(|d| usize::try_from(d).unwrap_or(usize::MAX).max(1)),
        hidden: args.hidden == Some(true),
    };
    let mut lines = Vec::new();
    let mut notes = Vec::new();
    for entry in walk.entries() {
        stop.check()?;
        if stop.is_late() {
            notes.push(format!(
                "stopped after {}; there is more",
                decanus_base::units::show_duration(TIME)
            ));
            break;
        }
        let Ok(entry) = entry else {
            continue;
        };
        let kind = entry.file_type();
        let is_folder = kind.is_some_and(|k| k.is_dir());
        if globs
            .as_ref()
            .is_some_and(|g| is_folder || !g.fits(&folder, entry.path()))
        {
            continue;
        }
        if lines.len() == limit {
            notes.push(format!(
                "only the first {limit}; there is more: narrow it with path, glob or depth, or raise limit"
            ));
            break;
        }
        let mark = match kind {
            Some(k) if k.is_dir() => "/",
            Some(k) if k.is_symlink() => "@",
            _ => "",
        };
        lines.push(format!("{}{mark}", one_line(&reach.show(entry.path()))));
    }
    if lines.is_empty() {
        notes.push("nothing found".into());
    }
    Ok(ToolOutput {
        value: lines.join("\n").into(),
        notes,
        ..ToolOutput::default()
    })
}

/// A name that holds a line end must not look like two.
pub(crate) fn one_line(name: &str) -> String {
    name.replace('\n', "\\n").replace('\r', "\\r")
}
