//! `decanus chat`.

use std::path::Path;

use decanus::chat::plan::Finding;
use decanus::{Checked, Decanus, Error};
use serde_json::{Map, Value, json};

use crate::args::Chat;
use crate::commands::ask;
use crate::out::{Out, error_value};
use crate::{Context, Ended, Failure};

pub async fn run(chat: Chat, cx: &Context) -> Ended {
    match chat {
        Chat::Check { files, allow_cmd } => {
            let decanus = cx.open()?;
            let mut checked = Vec::new();
            for file in &files {
                checked.push(check(&decanus, file, allow_cmd).await);
            }
            show(&files, &checked, cx.out)
        }
    }
}

/// A file that can't be read has its reason among the errors, so that the others are checked all the same.
async fn check(decanus: &Decanus, file: &Path, allow_cmd: bool) -> Checked {
    let path = decanus.project.user_path(file);
    match decanus.check(&path, allow_cmd).await {
        Ok(checked) => checked,
        Err(error) => Checked {
            findings: vec![Finding {
                file: Some(path),
                shown: file.display().to_string(),
                line: 0,
                severity: decanus::chat::plan::Severity::Error,
                message: error.message,
            }],
            ..Checked::default()
        },
    }
}

fn show(files: &[std::path::PathBuf], checked: &[Checked], out: Out) -> Ended {
    for (file, chat) in files.iter().zip(checked) {
        if !out.json {
            if files.len() > 1 {
                out.line(&format!("== {}", file.display()));
            }
            print(chat, out);
        }
        chat.warnings().for_each(|f| out.warn(&line(f)));
        for finding in chat.errors() {
            out.fault(&line(finding));
        }
    }
    if out.json {
        match checked {
            [one] => out.value(&value(one)),
            several => out.value(&several.iter().map(value).collect()),
        }
    }
    let faults: usize = checked.iter().map(|c| c.errors().count()).sum();
    if faults == 0 {
        return Ok(0);
    }
    let plural = if faults == 1 { "" } else { "s" };
    Err(Failure {
        error: Error::usage(format!("{faults} error{plural}")),
        partial: Box::default(),
        shown: true,
    })
}

fn line(finding: &Finding) -> String {
    match finding.line {
        0 => format!("{}: {}", finding.shown, finding.message),
        _ => finding.to_string(),
    }
}

/// The compiled chat as people read it: each message under its role, then options and tools.
fn print(chat: &Checked, out: Out) {
    for message in &chat.messages {
        out.line(&format!("[{}]", message.role));
        out.line(message.content.trim_end_matches('\n'));
        out.line("");
    }
    let options: Vec<String> = chat
        .options
        .iter()
        .map(|(key, value)| format!("{key} = {value}"))
        .collect();
    let list = |items: &[String]| {
        if items.is_empty() {
            "none".to_owned()
        } else {
            items.join(", ")
        }
    };
    out.line(&format!("options: {}", list(&options)));
    out.line(&format!("tools: {}", list(&chat.tools)));
}

fn value(chat: &Checked) -> Value {
    let finding = |f: &Finding| {
        json!({
            "file": f.file.as_ref().map(|p| p.display().to_string()),
            "line": f.line,
            "message": f.message,
        })
    };
    let mut map = Map::new();
    map.insert("messages".into(), chat.messages.iter().map(ask::message).collect());
    map.insert("options".into(), Value::Object(chat.options.clone()));
    map.insert("tools".into(), chat.tools.clone().into());
    map.insert("warnings".into(), chat.warnings().map(finding).collect());
    let errors: Vec<Value> = chat.errors().map(finding).collect();
    map.insert("errors".into(), errors.into());
    if let Some(first) = chat.errors().next() {
        map.insert("error".into(), error_value(&Error::usage(line(first))));
    }
    Value::Object(map)
}
