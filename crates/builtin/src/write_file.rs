//! A file, written whole.

use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

use decanus_chat::Effect;
use decanus_tool::{FnTool, ToolContext, ToolError};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::open::inside;
use crate::place::{Place, Reach, failed, shown};
use crate::work;

/// The largest file that is written.
const MAX: usize = 10 << 20;

/// Arguments of `write_file`.
#[derive(Deserialize, JsonSchema)]
pub struct WriteFile {
    /// The file, relative to the project's folder; missing folders are made.
    path: String,
    /// The whole content.
    content: String,
    /// Whether a file that exists may be replaced; false when left out.
    overwrite: Option<bool>,
}

pub(crate) fn tool(place: Arc<Place>) -> FnTool<WriteFile> {
    FnTool::new(
        "write_file",
        "Writes a text file of the project. A file that exists is replaced only with overwrite.",
        move |args: WriteFile, cx: ToolContext| {
            let place = place.clone();
            work::blocking(cx, move |cx, stop| {
                stop.check()?;
                write(&place.reach(cx), &args)
            })
        },
    )
    .effect(Effect::Unknown)
    .destructive()
    .example(
        "Write hello to notes/a.txt.",
        json!({"path": "notes/a.txt", "content": "hello\n"}),
    )
}

fn write(reach: &Reach, args: &WriteFile) -> Result<Value, ToolError> {
    let name = shown(&args.path);
    if args.content.len() > MAX {
        let most = decanus_base::units::show_size(MAX as u64);
        return Err(ToolError::argument(format!(
            "the content for `{name}` has more than {most}"
        )));
    }
    let (folder, real) = reach.target(&args.path)?;
    let target = inside(&folder, &real);
    let fail = |e: std::io::Error| failed(&args.path, &plain(e));
    let exists = || {
        ToolError::argument(format!(
            "`{name}` exists already; it is replaced only with overwrite: true"
        ))
    };
    let before = match target.symlink_metadata() {
        Ok(m) if !m.is_file() => return Err(ToolError::argument(format!("`{name}` is not a regular file"))),
        Ok(_) if args.overwrite != Some(true) => return Err(exists()),
        Ok(m) => Some(m.permissions()),
        Err(_) => None,
    };
    let parent = target.parent().unwrap_or(Path::new("/nonexistent"));
    let mut file = tempfile::Builder::new()
        .prefix(".tmp-")
        .permissions(before.clone().unwrap_or_else(|| PermissionsExt::from_mode(0o666)))
        .tempfile_in(parent)
        .map_err(fail)?;
    file.write_all(args.content.as_bytes()).map_err(fail)?;
    let replaced = before.is_some();
    match before {
        Some(mode) => {
            file.as_file().set_permissions(mode).map_err(fail)?;
            file.persist(&target).map_err(|e| fail(e.error))?;
        }
        None => {
            // Somebody else may have made the file in between.
            file.persist_noclobber(&target).map_err(|e| match e.error.kind() {
                std::io::ErrorKind::AlreadyExists => exists(),
                _ => fail(e.error),
            })?;
        }
    }
    Ok(json!({"path": reach.show(&real), "bytes": args.content.len(), "replaced": replaced}))
}

/// The error without the path in it, which is that of an open folder and tells nobody anything.
fn plain(error: std::io::Error) -> std::io::Error {
    match error.raw_os_error() {
        Some(_) => error,
        None => error.kind().into(),
    }
}
