//! `decanus init`.

use std::path::{Path, PathBuf};

use decanus::Error;
use decanus::base::ErrorKind;
use serde_json::json;

use crate::{Context, Ended};

const SETTINGS: &str = "\
# The project's settings; this file marks its root. Everything is optional.

# endpoint = \"local\"           # whom to ask when nothing else says so

# [limits]
# rounds = 50                  # requests to the model per question
# tool_time = \"2m\"             # for one tool call
";

const WORKFLOW: &str = "\
title: First steps
description: A task to begin with; replace it by your own.
tasks:
  count_words:
    description: Counts the words of a text.
    inputs:
      text: {type: text, required: true, description: The text}
    result: integer
    sh: 'printf \"%s\" \"$text\" | wc -w | tr -d \" \"'
    examples:
      - request: How many words are in the sentence good morning to you?
        arguments: {text: good morning to you}
";

pub fn run(folder: &Path, cx: &Context) -> Ended {
    let root = cx.dir.join(folder);
    let files = [
        ("decanus.toml", SETTINGS),
        ("workflows/First/workflow.yaml", WORKFLOW),
        (".gitignore", ".decanus/\n"),
    ];
    let mut made = Vec::new();
    for (name, text) in files {
        let path = root.join(name);
        if path.exists() {
            continue;
        }
        decanus::base::files::write_atomic(&path, text.as_bytes())
            .map_err(|e| Error::new(ErrorKind::Config, e.to_string()))?;
        made.push(std::path::absolute(&path).unwrap_or(path));
    }
    if cx.out.json {
        let made: Vec<_> = made.iter().map(|p: &PathBuf| p.to_string_lossy()).collect();
        cx.out
            .value(&json!({"root": std::path::absolute(&root).unwrap_or(root).to_string_lossy(), "made": made}));
        return Ok(0);
    }
    if made.is_empty() {
        cx.out.line("nothing to make: the project is there already");
    }
    for path in &made {
        cx.out.line(&format!("made {}", path.display()));
    }
    cx.out
        .note("next: `decanus tool list`, `decanus workflow run First count_words text=\"one two\"`, `decanus doctor`");
    Ok(0)
}
