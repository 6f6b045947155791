//! What names on the command line stand for.

use std::path::PathBuf;

use decanus::Error;
use decanus::base::Project;

/// The chat of a name: with a `/` or ending in `.chat` a path, else `chats/NAME.chat` of the project.
///
/// # Errors
/// When the name can't be that of a chat.
pub fn chat_path(name: &str, project: &Project) -> Result<PathBuf, Error> {
    if name.contains('/') || name.ends_with(".chat") {
        return Ok(project.user_path(name));
    }
    if !decanus::base::names::is_valid(name) {
        return Err(Error::usage(format!("`{name}` can't be the name of a chat")));
    }
    Ok(project.root.join("chats").join(format!("{name}.chat")))
}
