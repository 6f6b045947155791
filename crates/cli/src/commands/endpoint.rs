//! `decanus endpoint`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use decanus::backend::EndpointInfo;
use decanus::base::units::show_duration;
use decanus::base::{Diagnostic, ErrorKind};
use decanus::chat::Role;
use decanus::{Ask, Decanus, Error};
use serde_json::{Value, json};

use crate::args::Endpoint;
use crate::out::{Out, table};
use crate::{Context, Ended};

pub async fn run(command: Endpoint, cx: &Context) -> Ended {
    let decanus = cx.open()?;
    let out = cx.out;
    match command {
        Endpoint::List => {
            let infos = decanus.endpoints.list();
            for info in &infos {
                warn(info, out);
            }
            if out.json {
                out.value(&infos.iter().map(value).collect());
            } else {
                let row = |i: &EndpointInfo| {
                    let key = if i.key_set { "key set" } else { "no key" };
                    vec![
                        i.name.clone(),
                        i.backend.clone(),
                        i.model.clone(),
                        i.url.clone(),
                        key.into(),
                        i.source.clone(),
                    ]
                };
                out.print(&table(&infos.iter().map(row).collect::<Vec<_>>()));
            }
            Ok(0)
        }
        Endpoint::Show { name } => {
            let info = decanus.endpoints.show(&name)?;
            warn(&info, out);
            if out.json {
                out.value(&value(&info));
            } else {
                let key = if info.key_set { "set" } else { "not set" };
                let pairs = [
                    ("name", info.name.as_str()),
                    ("backend", &info.backend),
                    ("model", &info.model),
                    ("url", &info.url),
                    ("key", key),
                    ("source", &info.source),
                ];
                out.print(&table(&pairs.map(|(k, v)| vec![k.to_owned(), v.to_owned()])));
            }
            Ok(0)
        }
        Endpoint::Test { name } => test(&decanus, &name, cx).await,
        Endpoint::Embed { name, texts } => embed(&decanus, &name, &texts, cx).await,
    }
}

/// What is asked of an endpoint, and what shows that it works.
struct Probe {
    name: &'static str,
    question: &'static str,
    tool: bool,
    stream: bool,
}

const PROBES: [Probe; 3] = [
    Probe {
        name: "answer",
        question: "Say hello.",
        tool: false,
        stream: false,
    },
    Probe {
        name: "tool",
        question: "Use the echo tool to repeat the message: hello",
        tool: true,
        stream: false,
    },
    Probe {
        name: "stream",
        question: "Say hello.",
        tool: false,
        stream: true,
    },
];

/// Three small requests. One that gets no answer at all is a failure; a model that does not call the tool is only told of.
async fn test(decanus: &Decanus, name: &str, cx: &Context) -> Ended {
    let out = cx.out;
    let mut checks = Vec::new();
    let mut first = (String::new(), String::new());
    for probe in &PROBES {
        let ask = Ask {
            endpoint: Some(name.to_owned()),
            options: vec![("max_tokens".into(), "64".into()), ("max_rounds".into(), "2".into())],
            tools: probe.tool.then(|| "echo".to_owned()).into_iter().collect(),
            stream: probe.stream,
            no_cache: true,
            cancel: cx.signals.token.clone(),
            ..Ask::question(probe.question)
        };
        let mut session = decanus.prepare(ask).await?;
        let run = decanus
            .run()
            .limits(session.limits.clone())
            .cancel(cx.signals.token.clone())
            .build();
        let start = Instant::now();
        let outcome = session.run(&run).await;
        let time = start.elapsed();
        let called = outcome.messages.iter().any(|m| m.role == Role::FunctionCall);
        let error = match &outcome.error {
            // The tool was called; what the model made of its result is not the question.
            Some(e) if !(called && e.limit().is_some()) => Some(Error::of(e as &dyn Diagnostic)),
            _ => None,
        };
        if let (Some(error), "answer") = (&error, probe.name) {
            return Err(error.clone().into());
        }
        if probe.name == "answer" {
            first = (session.profile.model.clone(), outcome.answer.trim().to_owned());
        }
        let said = match (&error, probe.tool && !called) {
            (Some(error), _) => error.message.clone(),
            (None, true) => "the model did not call it".to_owned(),
            (None, false) => "works".to_owned(),
        };
        checks.push((probe.name, error.is_none() && (called || !probe.tool), said, time));
    }
    let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    if out.json {
        let list: Vec<Value> = checks
            .iter()
            .map(|(name, ok, said, time)| json!({"check": name, "ok": ok, "message": said, "milliseconds": ms(*time)}))
            .collect();
        let (model, answer) = first;
        out.value(&json!({"name": name, "ok": true, "model": model, "answer": answer,
            "milliseconds": checks.first().map(|(.., time)| ms(*time)), "checks": list}));
        return Ok(0);
    }
    out.line(&format!(
        "{name} answers in {}: {}",
        show_duration(checks[0].3),
        first.1
    ));
    let rows = checks.iter().map(|(name, ok, said, time)| {
        let mark = if *ok { "ok" } else { "no" };
        vec![(*name).to_owned(), mark.to_owned(), show_duration(*time), said.clone()]
    });
    out.print(&table(&rows.collect::<Vec<_>>()));
    Ok(0)
}

async fn embed(decanus: &Decanus, name: &str, texts: &[String], cx: &Context) -> Ended {
    let profile = Arc::new(decanus.endpoints.load(name)?);
    let embedder = decanus.backends.get(&profile.backend)?.embedder(profile)?;
    let work = embedder.embed(texts);
    let made = tokio::select! {
        made = work => made?,
        () = cx.signals.token.cancelled() => return Err(Error::new(ErrorKind::Interrupted, "interrupted").into()),
    };
    if cx.out.json {
        cx.out.value(&json!({"model": made.model, "vectors": made.vectors}));
    } else {
        for vector in &made.vectors {
            cx.out.line(&json!(vector).to_string());
        }
    }
    Ok(0)
}

fn warn(info: &EndpointInfo, out: Out) {
    for warning in info.warnings.iter().chain(&info.error) {
        out.warn(&format!("{}: {warning}", info.name));
    }
}

fn value(info: &EndpointInfo) -> Value {
    let mut value = json!({
        "name": info.name,
        "backend": info.backend,
        "model": info.model,
        "url": info.url,
        "key_set": info.key_set,
        "source": info.source,
    });
    if let Some(error) = &info.error {
        value["error"] = error.as_str().into();
    }
    value
}
