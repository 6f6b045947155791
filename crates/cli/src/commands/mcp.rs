//! `decanus mcp allow`.

use crate::args::McpAllow;
use crate::{Context, Ended};

/// Agrees, or agrees no longer, to what files of the project select; shows what is agreed to.
pub fn allow(args: &McpAllow, cx: &Context) -> Ended {
    let consents = cx.open()?.consents();
    for name in &args.names {
        let changed = match args.remove {
            true => consents.revoke(name)?,
            false => consents.grant(name)?,
        };
        let text = match (args.remove, changed) {
            (false, true) => format!("files of this project may now select {name}"),
            (false, false) => format!("files of this project could select {name} already"),
            (true, true) => format!("files of this project may no longer select {name}"),
            (true, false) => format!("files of this project could not select {name}"),
        };
        cx.out.note(&text);
    }
    let allowed = consents.list()?;
    if cx.out.json {
        let allowed: Vec<_> = allowed.iter().map(|name| serde_json::json!({"name": name})).collect();
        cx.out.value(&allowed.into());
    } else if args.names.is_empty() {
        for name in allowed {
            cx.out.line(&name);
        }
    }
    Ok(0)
}
