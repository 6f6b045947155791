//! `decanus ask`.

use std::io::{IsTerminal, Read};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use decanus::agent::Outcome;
use decanus::base::files::read_text;
use decanus::base::text::brief;
use decanus::base::{Diagnostic, ErrorKind};
use decanus::chat::{FunctionCallOutput, Message, Role, Usage};
use decanus::tool::{ApprovalPolicy, Event, EventSink};
use decanus::{Ask, Decanus, Error, Session};
use serde_json::{Map, Value, json};

use crate::args;
use crate::interact::Terminal;
use crate::out::{Out, error_value};
use crate::paths::chat_path;
use crate::{Context, Ended, Failure};

/// Characters of a call or its result on stderr.
const SHOWN: usize = 160;
/// Bytes that are read of a question on standard input.
const MAX_QUESTION: u64 = 16 << 20;

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

/// Everything decided about the question of a command line, and the chat that it continues.
pub async fn prepare(
    decanus: &Decanus,
    args: &args::How,
    question: Option<String>,
    read_only: bool,
    cx: &Context,
) -> Result<(Session, Option<PathBuf>), Failure> {
    let chat = args
        .chat
        .as_deref()
        .map(|c| chat_path(c, &decanus.project))
        .transpose()?;
    if question.is_none() && chat.is_none() {
        return Err(Error::usage("no question")
            .hint("write it behind the options, or continue a chat with -c")
            .into());
    }
    let mut options = args.options.clone();
    if let Some(file) = &args.schema {
        let fail = |text: String| Error::usage(format!("--schema: {text}"));
        let text = read_text(&decanus.project.user_path(file)).map_err(|e| fail(e.to_string()))?;
        let schema: Map<String, Value> =
            serde_json::from_str(&text).map_err(|e| fail(format!("{} is not a JSON schema: {e}", file.display())))?;
        decanus::tool::schema::fault(&Value::Object(schema.clone()), &Value::Null).map_err(fail)?;
        let whole = json!({"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}});
        options.push(("format".into(), whole.to_string()));
    }
    let ask = Ask {
        chat: chat.clone(),
        question,
        endpoint: args.endpoint.clone(),
        model: args.model.clone(),
        tools: args.tools.clone(),
        options,
        stream: !args.no_stream,
        explain: args.explain,
        allow_cmd: args.allow_cmd,
        no_cache: args.no_cache,
        read_only,
        cancel: cx.signals.token.clone(),
    };
    let session = decanus.prepare(ask).await?;
    session.warnings.iter().for_each(|w| cx.out.warn(w));
    Ok((session, chat))
}

async fn ask(args: args::Ask, cx: &Context) -> Ended {
    let out = cx.out;
    let decanus = cx.open()?;
    let question = question(&args.question, cx).await?;
    if !args.dry_run && !args.count_tokens {
        return answer(&decanus, &args.how, question, args.events, cx).await;
    }
    let (mut session, _) = prepare(&decanus, &args.how, question, true, cx).await?;
    let run = decanus
        .run()
        .limits(session.limits.clone())
        .events(Arc::new(move |event| {
            if let Event::Warning(text) = event {
                out.warn(text);
            }
        }))
        .build();
    if args.count_tokens {
        let count = decanus.count_tokens(&mut session, &run).await?;
        if out.json {
            out.value(&json!({"tokens": count.tokens, "estimate": count.is_estimate}));
        } else {
            let about = if count.is_estimate { "about " } else { "" };
            out.line(&format!("{about}{} tokens", count.tokens));
        }
        return Ok(0);
    }
    let request = session.dry_run(&run)?;
    if out.json {
        let body = serde_json::from_str(&request.body).unwrap_or(Value::String(request.body));
        out.value(&json!({"target": request.target, "body": body}));
    } else {
        out.dim(&request.target);
        out.line(&request.body);
    }
    Ok(0)
}

/// Asks, and shows what happens.
pub async fn answer(
    decanus: &Decanus,
    args: &args::How,
    question: Option<String>,
    events: bool,
    cx: &Context,
) -> Ended {
    let out = cx.out;
    let (mut session, chat) = prepare(decanus, args, question, false, cx).await?;
    let explained = Arc::new(Mutex::new(Vec::new()));
    let in_line = Arc::new(AtomicBool::new(false));
    let sink = if events {
        machine_events(out)
    } else {
        people_events(out, session.structured, explained.clone(), in_line.clone())
    };
    let run = decanus
        .run()
        .limits(session.limits.clone())
        .permissions(session.permissions.clone())
        .chat(chat.clone())
        .approval(approval(decanus, args))
        .interaction(Arc::new(Terminal::new(out)))
        .cancel(cx.signals.token.clone())
        .events(sink)
        .build();
    let outcome = session.run(&run).await;
    if in_line.load(Ordering::SeqCst) {
        out.print("\n");
    }
    if session.structured && outcome.error.is_none() && !outcome.idle && !out.json && !events {
        out.line(&outcome.answer);
    }
    if args.usage && !events {
        out.note(&usage_line(&outcome.usage, run.cost()));
    }
    let explained = explained.lock().map(|e| e.clone()).unwrap_or_default();
    finish(
        outcome,
        run.cost(),
        chat.as_ref(),
        args.explain.then_some(explained),
        events,
        out,
    )
}

/// Which calls are asked for: the flag goes before the settings, and holds for all tools.
fn approval(decanus: &Decanus, args: &args::How) -> ApprovalPolicy {
    match args.approve {
        Some(approve) => ApprovalPolicy::all(approve),
        None => ApprovalPolicy::of(&decanus.settings.approve),
    }
}

/// Prints what is left to print, and decides how the command ends.
fn finish(
    mut outcome: Outcome,
    cost: f64,
    chat: Option<&PathBuf>,
    explained: Option<Vec<Value>>,
    events: bool,
    out: Out,
) -> Ended {
    let error = outcome.error.as_ref().map(|e| Error {
        snapshot: outcome.snapshot.clone(),
        ..Error::of(e as &dyn Diagnostic)
    });
    // Nobody else reads it, and it holds the answer twice.
    let for_machines = events || out.json;
    let mut object = if for_machines {
        summary(&mut outcome, cost, chat)
    } else {
        Map::new()
    };
    if let Some(explained) = explained.filter(|_| !events) {
        object.insert("explain".into(), explained.into());
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
                partial: Box::default(),
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
fn summary(outcome: &mut Outcome, cost: f64, chat: Option<&PathBuf>) -> Map<String, Value> {
    let mut map = Map::new();
    // An answer may be long: it is moved, not copied.
    map.insert("answer".into(), std::mem::take(&mut outcome.answer).into());
    map.insert(
        "messages".into(),
        std::mem::take(&mut outcome.messages)
            .into_iter()
            .filter(|m| m.role != Role::Provider)
            .map(message_value)
            .collect(),
    );
    let mut used = usage(&outcome.usage);
    if cost > 0.0 {
        used["cost"] = cost.into();
    }
    map.insert("usage".into(), used);
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

/// The content of a message for machines: an object for the roles that hold one.
pub fn content(message: &Message) -> Value {
    let parsed = message
        .role
        .is_json()
        .then(|| serde_json::from_str(&message.content).ok())
        .flatten();
    parsed.unwrap_or_else(|| Value::String(message.content.clone()))
}

/// [`message`], without a copy of what it says.
fn message_value(message: Message) -> Value {
    if message.role.is_json() {
        return self::message(&message);
    }
    json!({"role": message.role.as_str(), "content": Value::String(message.content)})
}

/// A message for machines.
pub fn message(message: &Message) -> Value {
    json!({"role": message.role.as_str(), "content": content(message)})
}

/// Token counts for people.
fn usage_line(usage: &Usage, cost: f64) -> String {
    let names = [
        (usage.pt, "prompt"),
        (usage.ct, "completion"),
        (usage.tt, "total"),
        (usage.cct, "read from a cache"),
        (usage.cwt, "written to a cache"),
        (usage.rt, "reasoning"),
    ];
    let counts = names
        .into_iter()
        .filter_map(|(count, name)| Some(format!("{} {name}", count?)));
    let counts = counts.collect::<Vec<_>>();
    let mut line = match counts.is_empty() {
        true => "tokens: nothing was counted".to_owned(),
        false => format!("tokens: {}", counts.join(", ")),
    };
    if cost > 0.0 {
        line.push_str(&format!("; cost {cost:.6}"));
    }
    line
}

pub fn usage(usage: &Usage) -> Value {
    usage
        .fields()
        .iter()
        .map(|(name, count)| ((*name).to_owned(), Value::from(count.unwrap_or(0))))
        .collect()
}

/// Text as it comes on stdout, what is done on stderr. `in_line` says whether the last line of the text is still open.
fn people_events(out: Out, structured: bool, explained: Arc<Mutex<Vec<Value>>>, in_line: Arc<AtomicBool>) -> EventSink {
    Arc::new(move |event| {
        // A remark on stderr never continues a line of the answer.
        let break_line = || {
            if in_line.swap(false, Ordering::SeqCst) {
                out.print("\n");
            }
        };
        match event {
            Event::Text { text, .. } => {
                if !out.json && !structured && !text.is_empty() {
                    out.print(text);
                    in_line.store(!text.ends_with('\n'), Ordering::SeqCst);
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
            Event::Cached => {
                break_line();
                out.dim("  (answer from the cache; --no-cache asks anew)");
            }
            Event::Warning(text) => {
                break_line();
                out.warn(text);
            }
            Event::Progress { text, part, .. } => {
                break_line();
                let part = part.map(|p| format!(" ({:.0} %)", p * 100.0)).unwrap_or_default();
                out.dim(&format!("  {}{part}", brief(text, SHOWN)));
            }
            // Of each job that is started a line was written already.
            Event::Reasoning(_) | Event::Round(_) | Event::Usage(_) | Event::Jobs { .. } => {}
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
            Event::Progress { id, text, part } => {
                json!({"event": "progress", "id": id, "text": text, "part": part})
            }
            Event::Jobs { done, total, running } => {
                json!({"event": "jobs", "done": done, "total": total, "running": running})
            }
            Event::Explain(value) => json!({"event": "explain", "explain": value}),
            Event::Cached => json!({"event": "cached"}),
            Event::Warning(text) => json!({"event": "warning", "message": text}),
        };
        out.line(&value.to_string());
    })
}

pub async fn question(words: &[String], cx: &Context) -> Result<Option<String>, Error> {
    match words {
        [] => Ok(None),
        [dash] if dash == "-" => {
            if std::io::stdin().is_terminal() {
                cx.out
                    .note("reading the question from the terminal; end it with Ctrl-D");
            }
            // Reading may wait for ever, so it is left to a thread that the end of the process does not wait for.
            let reading = tokio::task::spawn_blocking(read_question);
            tokio::select! {
                read = reading => read
                    .map_err(|e| Error::new(ErrorKind::Internal, format!("standard input can't be read: {e}")))?
                    .map(Some),
                () = cx.signals.token.cancelled() => Err(Error::new(ErrorKind::Interrupted, "interrupted")),
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

fn read_question() -> Result<String, Error> {
    let mut bytes = Vec::new();
    std::io::stdin()
        .take(MAX_QUESTION + 1)
        .read_to_end(&mut bytes)
        .map_err(|e| Error::usage(format!("standard input can't be read: {e}")))?;
    if bytes.len() as u64 > MAX_QUESTION {
        return Err(Error::usage(
            "standard input holds more than 16 MB; that is no question",
        ));
    }
    let text = String::from_utf8(bytes).map_err(|_| Error::usage("standard input is not UTF-8 text"))?;
    let text = text.trim_end_matches(['\n', '\r']).to_owned();
    if text.trim().is_empty() {
        Err(Error::usage("standard input holds no question"))
    } else {
        Ok(text)
    }
}
