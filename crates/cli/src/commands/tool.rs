//! `decanus tool list|info|call`.

use std::sync::Arc;

use decanus::base::ErrorKind;
use decanus::base::names::did_you_mean;
use decanus::base::text::brief;
use decanus::builtin::ON_REQUEST;
use decanus::chat::{Arguments, FunctionCall};
use decanus::tool::registry::Entry;
use decanus::tool::schema::prepare;
use decanus::tool::{Dispatcher, Event, ToolErrorClass, ToolRegistry};
use decanus::{Decanus, Error};
use serde_json::{Map, Value, json};

use crate::args::Tool;
use crate::out::{Out, table};
use crate::values;
use crate::{Context, Ended, Failure};

pub async fn run(tool: Tool, cx: &Context) -> Ended {
    let decanus = cx.open()?;
    match tool {
        Tool::List => list(&decanus, cx.out).await,
        Tool::Info { name } => info(&find(&decanus, &name, cx.out).await?.0, cx.out),
        Tool::Call { name, values, args } => call(&decanus, &name, &values, args.as_deref(), cx).await,
    }
}

/// All tools in reach. A source that can't be read is warned of and does not hide the others.
async fn all(decanus: &Decanus, out: Out) -> ToolRegistry {
    let mut tools = Vec::new();
    for source in decanus.sources() {
        match source.list().await {
            Ok(found) => tools.extend(found),
            Err(e) => out.warn(&e.to_string()),
        }
    }
    ToolRegistry::new(tools)
}

async fn list(decanus: &Decanus, out: Out) -> Ended {
    for listed in decanus.workflows.list() {
        if let Err(e) = listed.workflow {
            out.warn(&e.to_string());
        }
    }
    let registry = all(decanus, out).await;
    registry.warnings().iter().for_each(|w| out.warn(w));
    if out.json {
        out.value(&registry.entries().map(describe).collect());
    } else {
        let row = |e: &Entry| {
            vec![
                e.definition.name.clone(),
                e.group.clone(),
                brief(&e.definition.description, 90),
            ]
        };
        out.print(&table(&registry.entries().map(row).collect::<Vec<_>>()));
        // For people only: a program that reads the list gets nothing on stderr.
        if out.draws_progress() {
            out.dim(&format!("only when named: {}", ON_REQUEST.join(", ")));
        }
    }
    Ok(0)
}

fn describe(entry: &Entry) -> Value {
    let d = &entry.definition;
    json!({"name": d.name, "description": d.description, "source": entry.group, "parameters": d.wire_parameters()})
}

/// The one tool that a name stands for, in a registry that holds it under the name that comes with it.
async fn find(decanus: &Decanus, name: &str, out: Out) -> Result<(Entry, Arc<ToolRegistry>), Error> {
    for source in decanus.sources() {
        if let Some(found) = source.resolve(name).await? {
            let registry = Arc::new(ToolRegistry::new(found));
            let entries: Vec<Entry> = registry.entries().cloned().collect();
            return match entries.as_slice() {
                [entry] => Ok((entry.clone(), registry)),
                entries => {
                    let tasks = entries
                        .iter()
                        .map(|e| format!("{name}/{}", e.definition.name))
                        .collect::<Vec<_>>();
                    Err(Error::usage(format!("{name} has several tools: {}", tasks.join(", "))))
                }
            };
        }
    }
    let registry = all(decanus, out).await;
    match registry.get(name) {
        Some(entry) => Ok((entry.clone(), Arc::new(registry.clone()))),
        None => {
            let known = registry.names().chain(ON_REQUEST);
            Err(
                Error::usage(format!("there is no tool `{name}`{}", did_you_mean(name, known)))
                    .hint("`decanus tool list` shows all"),
            )
        }
    }
}

fn info(entry: &Entry, out: Out) -> Ended {
    if out.json {
        out.value(&describe(entry));
        return Ok(0);
    }
    let d = &entry.definition;
    out.line(&format!(
        "{} ({})\n  {}",
        d.name,
        entry.group,
        d.description.trim().replace('\n', "\n  ")
    ));
    let mut rows = Vec::new();
    for (name, schema) in d.properties() {
        let kind = schema
            .get("type")
            .map(|t| t.as_str().map_or_else(|| t.to_string(), str::to_owned));
        let need = if d.is_required(name) {
            "required".to_owned()
        } else {
            default(schema)
        };
        let text = schema.get("description").and_then(Value::as_str).unwrap_or_default();
        let allowed = schema.get("enum").map(|e| format!(" one of {e}")).unwrap_or_default();
        rows.push(vec![
            format!("  {name}"),
            kind.unwrap_or_default(),
            need,
            format!("{text}{allowed}"),
        ]);
    }
    out.print(&table(&rows));
    for example in &d.examples {
        out.line(&format!(
            "  e.g. {} → {}",
            example.request,
            Value::Object(example.arguments.clone())
        ));
    }
    Ok(0)
}

fn default(schema: &Value) -> String {
    schema
        .get("default")
        .map_or_else(|| "optional".to_owned(), |d| format!("default {d}"))
}

async fn call(decanus: &Decanus, name: &str, pairs: &[(String, String)], args: Option<&str>, cx: &Context) -> Ended {
    let (entry, registry) = find(decanus, name, cx.out).await?;
    let definition = &entry.definition;
    let arguments = match args {
        Some(json) => values::parse(json, definition)?,
        None => values::collect(pairs, definition, &decanus.project)?,
    };
    let arguments = Arguments::Object(arguments);
    // What the schema refuses is a wrong command line; what the tool itself says is the tool's failure.
    if let Err(e) = prepare(&arguments, definition) {
        return Err(Error::usage(e.to_string()).into());
    }
    let out = cx.out;
    let events = Arc::new(move |event: &Event| match event {
        Event::Job { path, reused } => out.dim(&format!("job {path}{}", if *reused { " (stored result)" } else { "" })),
        Event::Warning(text) => out.warn(text),
        _ => {}
    });
    let run = decanus.run().cancel(cx.signals.token.clone()).events(events).build();
    let call = FunctionCall {
        id: "call_1".into(),
        name: definition.name.clone(),
        arguments,
    };
    let finished = Dispatcher::for_user(registry).call(&call, &run).await;
    let Some(class) = finished.output.error else {
        if let Some(job) = finished.pending.filter(|_| out.json) {
            out.value(&Value::Object(job.members()));
        } else if out.json {
            let result = finished.value.unwrap_or(Value::Null);
            let result = if finished.output.truncated {
                Value::String(finished.output.content)
            } else {
                result
            };
            let mut shown = Map::new();
            shown.insert("status".into(), "success".into());
            // What is beside the result never hides it.
            shown.extend(finished.beside);
            shown.insert("result".into(), result);
            out.value(&Value::Object(shown));
        } else {
            out.line(&finished.output.content);
        }
        return Ok(0);
    };
    let kind = if class == ToolErrorClass::Interrupted.as_str() {
        ErrorKind::Interrupted
    } else {
        ErrorKind::Tool
    };
    let message = finished.output.content;
    let mut partial = Map::new();
    partial.insert("status".into(), "error".into());
    partial.insert("error_message".into(), message.clone().into());
    partial.insert("error_class".into(), class.into());
    Err(Failure::with(Error::new(kind, message), partial))
}
