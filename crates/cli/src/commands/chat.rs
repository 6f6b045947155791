//! `decanus chat`.

use std::io::IsTerminal;
use std::path::Path;

use decanus::base::ErrorKind;
use decanus::chat::plan::Finding;
use decanus::{Checked, Decanus, Error};
use serde_json::{Map, Value, json};

use crate::args::{Chat, ChatCommand, How};
use crate::commands::ask;
use crate::out::{Out, error_value};
use crate::{Context, Ended, Failure};

pub async fn run(chat: Chat, cx: &Context) -> Ended {
    match chat.command {
        None => talk(chat.how, cx).await,
        Some(ChatCommand::Check { files, allow_cmd }) => {
            let decanus = cx.open()?;
            let mut checked = Vec::new();
            for file in &files {
                checked.push(check(&decanus, file, allow_cmd).await);
            }
            show(&files, &checked, cx.out)
        }
    }
}

/// A question a line, until the input ends or a line says `/quit`. Without `-c` the chat is a new one among the project's
/// sessions. A question that fails does not end the talk.
async fn talk(mut how: How, cx: &Context) -> Ended {
    cx.signals.end_in_order();
    let decanus = cx.open()?;
    let terminal = std::io::stdin().is_terminal();
    if how.chat.is_none() {
        let id = decanus::chat::timestamp().replace([':', '.'], "-");
        let path = decanus.project.data().join("sessions").join(format!("{id}.chat"));
        how.chat = Some(path.display().to_string());
    }
    let chat = how.chat.clone().unwrap_or_default();
    if terminal {
        cx.out.note(&format!("{chat}: a question a line; /quit or Ctrl-D ends"));
    }
    let mut last: Ended = Ok(0);
    loop {
        if terminal {
            cx.out.prompt("> ");
        }
        let reading = tokio::task::spawn_blocking(|| {
            let mut line = String::new();
            std::io::stdin()
                .read_line(&mut line)
                .map(|length| (length > 0).then_some(line))
        });
        let line = tokio::select! {
            read = reading => read,
            () = cx.signals.token.cancelled() => return Err(Error::new(ErrorKind::Interrupted, "interrupted").into()),
        };
        let line = match line {
            Ok(Ok(Some(line))) => line,
            Ok(Ok(None)) => break,
            Ok(Err(e)) => return Err(Error::usage(format!("standard input can't be read: {e}")).into()),
            Err(e) => return Err(Error::new(ErrorKind::Internal, e.to_string()).into()),
        };
        match line.trim() {
            "" => continue,
            "/quit" => break,
            _ => {}
        }
        let question = line.trim_end_matches(['\n', '\r']).to_owned();
        last = ask::answer(&decanus, &how, Some(question), false, cx).await;
        match &mut last {
            Err(failure) if failure.error.kind == ErrorKind::Interrupted => break,
            Err(failure) if !failure.shown => {
                cx.out.fail(&failure.error, std::mem::take(&mut failure.partial));
                failure.shown = true;
            }
            _ => {}
        }
    }
    if terminal {
        cx.out.note(&format!("kept in {chat}"));
        return Ok(0);
    }
    last
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
