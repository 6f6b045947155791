//! `decanus ask`.

use std::io::Read;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use decanus::agent::Outcome;
use decanus::base::text::brief;
use decanus::base::{Diagnostic, Project};
use decanus::chat::{FunctionCallOutput, Message, Usage};
use decanus::tool::{Event, EventSink};
use decanus::{Ask, Error};
use serde_json::{Map, Value, json};

use crate::args;
use crate::out::{Out, error_value};
use crate::{Context, Ended, Failure};

/// Characters of a call or its result on stderr.
const SHOWN: usize = 160;

pub async fn run(args: args::Ask, cx: &Context) -> Ended {
    let events = args.events;
    match ask(args, cx).await {
        Err(failure) if events && !failure.shown => {
            // Whoever reads events is told of the end in every case.
            cx.out.for_people().fail(&failure.error, Map::new());
            cx.out
                .line(&json!({"event": "end", "error": error_value(&failure.error)}).to_string());
            Err(Failure { shown: true, ..failure })
        }
        other => other,
    }
}

async fn ask(args: args::Ask, cx: &Context) -> Ended {
    let out = cx.out;
    let decanus = cx.open()?;
    let chat = args
        .chat
        .as_deref()
        .map(|c| chat_path(c, &decanus.project))
        .transpose()?;
    let question = question(&args.question)?;
    if question.is_none() && chat.is_none() {
        return Err(Error::usage("no question")
            .hint("write it behind the options, or continue a chat with -c")
            .into());
    }
    let ask = Ask {
        chat: chat.clone(),
        question,
        endpoint: args.endpoint,
        model: args.model,
        tools: args.tools,
        options: args.options,
        stream: !args.no_stream,
        explain: args.explain,
        read_only: args.dry_run,
        cancel: cx.signals.token.clone(),
    };
    let mut session = decanus.prepare(ask).await?;
    session.warnings.iter().for_each(|w| out.warn(w));
    if args.dry_run {
        let request = session.dry_run()?;
        if out.json {
            let body = serde_json::from_str(&request.body).unwrap_or(Value::String(request.body));
            out.value(&json!({"target": request.target, "body": body}));
        } else {
            out.dim(&request.target);
            out.line(&request.body);
        }
        return Ok(0);
    }
    let explained = Arc::new(Mutex::new(Vec::new()));
    let sink = if args.events {
        machine_events(out)
    } else {
        people_events(out, explained.clone())
    };
    let run = decanus
        .run()
        .limits(session.limits.clone())
        .cancel(cx.signals.token.clone())
        .events(sink)
        .build();
    let outcome = session.run(&run).await;
    let explained = explained.lock().map(|e| e.clone()).unwrap_or_default();
    finish(
        &outcome,
        chat.as_ref(),
        args.explain.then_some(explained),
        args.events,
        out,
    )
}

/// Prints what is left to print, and decides how the command ends.
fn finish(outcome: &Outcome, chat: Option<&PathBuf>, explained: Option<Vec<Value>>, events: bool, out: Out) -> Ended {
    let error = outcome.error.as_ref().map(|e| Error::of(e as &dyn Diagnostic));
    let mut object = summary(outcome, chat);
    if let Some(explained) = explained.filter(|_| !events) {
        object.insert("explain".into(), explained.into());
    }
    if !out.json && !events && !outcome.answer.is_empty() && !outcome.answer.ends_with('\n') {
        out.print("\n");
    }
    if outcome.idle && !events {
        out.note("nothing to do: no question, no pending call, and the last message asks for no answer");
    }
    if events {
        if let Some(error) = &error {
            out.for_people().fail(error, Map::new());
            object.insert("error".into(), error_value(error));
        }
        let mut end = Map::new();
        end.insert("event".into(), "end".into());
        end.extend(object);
        out.line(&Value::Object(end).to_string());
        return error.map_or(Ok(0), |error| {
            Err(Failure {
                error,
                partial: Map::new(),
                shown: true,
            })
        });
    }
    match error {
        Some(error) => Err(Failure::with(error, object)),
        None => {
            if out.json {
                out.value(&Value::Object(object));
            }
            Ok(0)
        }
    }
}

/// The `--json` object of a run.
fn summary(outcome: &Outcome, chat: Option<&PathBuf>) -> Map<String, Value> {
    let mut map = Map::new();
    map.insert("answer".into(), outcome.answer.clone().into());
    map.insert("messages".into(), outcome.messages.iter().map(message).collect());
    map.insert("usage".into(), usage(&outcome.usage));
    map.insert("rounds".into(), outcome.rounds.into());
    map.insert("chat".into(), chat.map_or(Value::Null, |c| c.to_string_lossy().into()));
    map.insert("jobs".into(), outcome.jobs.clone().into());
    map.insert(
        "limit".into(),
        outcome
            .error
            .as_ref()
            .and_then(|e| e.limit())
            .map_or(Value::Null, Value::from),
    );
    map
}

fn content(message: &Message) -> Value {
    let parsed = message
        .role
        .is_json()
        .then(|| serde_json::from_str(&message.content).ok())
        .flatten();
    parsed.unwrap_or_else(|| Value::String(message.content.clone()))
}

fn message(message: &Message) -> Value {
    json!({"role": message.role.as_str(), "content": content(message)})
}

fn usage(usage: &Usage) -> Value {
    usage
        .fields()
        .iter()
        .map(|(name, count)| ((*name).to_owned(), Value::from(count.unwrap_or(0))))
        .collect()
}

/// Text as it comes on stdout, what is done on stderr.
fn people_events(out: Out, explained: Arc<Mutex<Vec<Value>>>) -> EventSink {
    let in_line = Mutex::new(false);
    Arc::new(move |event| {
        let mut in_line = in_line.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        // A remark on stderr never continues a line of the answer.
        let mut break_line = || {
            if std::mem::replace(&mut *in_line, false) {
                out.print("\n");
            }
        };
        match event {
            Event::Text { text, .. } => {
                if !out.json {
                    out.print(text);
                    *in_line = !text.ends_with('\n');
                }
            }
            Event::Call(call) => {
                break_line();
                out.dim(&format!("→ {} {}", call.name, brief(&call.arguments.to_text(), SHOWN)));
            }
            Event::Output(output) => {
                break_line();
                out.dim(&format!("← {}", output_line(output)));
            }
            Event::Job { path, reused } => {
                break_line();
                out.dim(&format!(
                    "  job {path}{}",
                    if *reused { " (stored result)" } else { "" }
                ));
            }
            Event::Explain(value) => {
                break_line();
                out.dim(&format!("explain {value}"));
                if let Ok(mut all) = explained.lock() {
                    all.push(value.clone());
                }
            }
            Event::Warning(text) => {
                break_line();
                out.warn(text);
            }
            Event::Reasoning(_) | Event::Round(_) | Event::Usage(_) => {}
        }
    })
}

fn output_line(output: &FunctionCallOutput) -> String {
    match &output.error {
        Some(class) => format!("{class}: {}", brief(&output.content, SHOWN)),
        None => brief(&output.content, SHOWN),
    }
}

/// One JSON object a line.
fn machine_events(out: Out) -> EventSink {
    Arc::new(move |event| {
        let value = match event {
            Event::Text { text, template: false } => json!({"event": "text", "text": text}),
            Event::Text { text, template: true } => json!({"event": "text", "text": text, "stated_by": "template"}),
            Event::Reasoning(text) => json!({"event": "reasoning", "text": text}),
            Event::Round(round) => json!({"event": "round", "round": round}),
            Event::Call(call) => {
                json!({"event": "call", "id": call.id, "name": call.name, "arguments": call.arguments.to_value()})
            }
            Event::Output(output) => {
                let mut members = Map::new();
                members.insert("event".into(), "output".into());
                if let Value::Object(record) = content(&output.to_message()) {
                    members.extend(record);
                }
                Value::Object(members)
            }
            Event::Usage(counts) => json!({"event": "usage", "usage": usage(counts)}),
            Event::Job { path, reused } => json!({"event": "job", "path": path, "reused": reused}),
            Event::Explain(value) => json!({"event": "explain", "explain": value}),
            Event::Warning(text) => json!({"event": "warning", "message": text}),
        };
        out.line(&value.to_string());
    })
}

/// The chat that `-c` names.
fn chat_path(name: &str, project: &Project) -> Result<PathBuf, Error> {
    if name.contains('/') || name.ends_with(".chat") {
        return Ok(project.user_path(name));
    }
    if !decanus::base::names::is_valid(name) {
        return Err(Error::usage(format!("`{name}` can't be the name of a chat")));
    }
    Ok(project.root.join("chats").join(format!("{name}.chat")))
}

fn question(words: &[String]) -> Result<Option<String>, Error> {
    match words {
        [] => Ok(None),
        [dash] if dash == "-" => {
            let mut bytes = Vec::new();
            let read = std::io::stdin().read_to_end(&mut bytes);
            read.map_err(|e| Error::usage(format!("standard input can't be read: {e}")))?;
            let text = String::from_utf8(bytes).map_err(|_| Error::usage("standard input is not UTF-8 text"))?;
            let text = text.trim_end_matches(['\n', '\r']).to_owned();
            if text.trim().is_empty() {
                Err(Error::usage("standard input holds no question"))
            } else {
                Ok(Some(text))
            }
        }
        words => {
            let text = words.join(" ");
            if text.trim().is_empty() {
                Err(Error::usage("the question is empty"))
            } else {
                Ok(Some(text))
            }
        }
    }
}
