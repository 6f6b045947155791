//! `decanus endpoint`.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use decanus::backend::image::file_type;
use decanus::backend::{EndpointInfo, Picture, Profile};
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
        Endpoint::Image {
            name,
            prompt,
            file,
            model,
            options,
        } => {
            let mut profile = decanus.endpoints.load(&name)?;
            profile.model = model.unwrap_or(profile.model);
            for option in options {
                let Some((key, value)) = option.split_once('=') else {
                    return Err(Error::usage(format!("`{option}` is not KEY=VALUE")).into());
                };
                let value = serde_json::from_str(value).unwrap_or_else(|_| value.into());
                profile.parameters.insert(key.to_owned(), value);
            }
            image(&decanus, profile, &prompt, file, cx).await
        }
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
    // A model that calls no tool is as it is; a provider that refuses is a failure.
    let mut failed: Option<Error> = None;
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
        failed = failed.or(error);
    }
    let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    let code = failed.as_ref().map_or(0, |error| error.kind.exit_code());
    if out.json {
        let list: Vec<Value> = checks
            .iter()
            .map(|(name, ok, said, time)| json!({"check": name, "ok": ok, "message": said, "milliseconds": ms(*time)}))
            .collect();
        let (model, answer) = first;
        out.value(
            &json!({"name": name, "ok": failed.is_none(), "model": model, "answer": answer,
            "milliseconds": checks.first().map(|(.., time)| ms(*time)), "checks": list}),
        );
        return Ok(code);
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
    Ok(code)
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

async fn image(decanus: &Decanus, profile: Profile, prompt: &str, file: Option<PathBuf>, cx: &Context) -> Ended {
    let model = profile.model.clone();
    let painter = decanus.backends.get(&profile.backend)?.painter(Arc::new(profile))?;
    let made = tokio::select! {
        made = painter.paint(prompt) => made?,
        () = cx.signals.token.cancelled() => return Err(Error::new(ErrorKind::Interrupted, "interrupted").into()),
    };
    let (mut files, mut links) = (Vec::new(), Vec::new());
    for fault in &made.faults {
        cx.out.warn(fault);
    }
    for (n, picture) in made.pictures.iter().enumerate() {
        let bytes = match picture {
            Picture::Bytes(bytes) => bytes,
            Picture::Link(url) => {
                links.push(url.clone());
                continue;
            }
        };
        let ending = file_type(bytes).map_or("png", |(_, ending)| ending);
        let path = match &file {
            // A file that was named is written, also over another.
            Some(file) if n == 0 => file.clone(),
            Some(file) => numbered(file, n + 1),
            None => free(&format!("image.{ending}")),
        };
        let path = decanus.project.user_path(path);
        decanus::base::files::write_atomic(&path, bytes)
            .map_err(|e| Error::new(ErrorKind::Internal, format!("{}: {e}", path.display())))?;
        files.push(path.display().to_string());
    }
    if !links.is_empty() {
        cx.out.warn(
            "the provider gave a link and no picture; nothing is fetched from there, so no file was written for it",
        );
    }
    if cx.out.json {
        let usage = super::ask::usage(&made.usage);
        cx.out
            .value(&json!({"model": model, "files": files, "links": links, "text": made.text, "usage": usage}));
    } else {
        files.iter().chain(&links).for_each(|file| cx.out.line(file));
    }
    Ok(0)
}

/// `a-2.png` for `a.png`.
fn numbered(path: &Path, n: usize) -> PathBuf {
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    let ending = path.extension().map(|e| format!(".{}", e.to_string_lossy()));
    path.with_file_name(format!("{stem}-{n}{}", ending.unwrap_or_default()))
}

/// The name, or the first numbered one that no file has.
fn free(name: &str) -> PathBuf {
    let path = PathBuf::from(name);
    match path.exists() {
        false => path,
        true => (2..).map(|n| numbered(&path, n)).find(|p| !p.exists()).unwrap_or(path),
    }
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
