//! `decanus endpoint list|show|test`.

use std::time::Instant;

use decanus::backend::EndpointInfo;
use decanus::base::Diagnostic;
use decanus::base::units::show_duration;
use decanus::{Ask, Error};
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
        Endpoint::Test { name } => {
            let ask = Ask {
                endpoint: Some(name.clone()),
                options: vec![("max_tokens".into(), "16".into())],
                no_cache: true,
                cancel: cx.signals.token.clone(),
                ..Ask::question("Say hello.")
            };
            let mut session = decanus.prepare(ask).await?;
            let model = session.profile.model.clone();
            let run = decanus.run().cancel(cx.signals.token.clone()).build();
            let start = Instant::now();
            let outcome = session.run(&run).await;
            if let Some(error) = &outcome.error {
                return Err(Error::of(error as &dyn Diagnostic).into());
            }
            let time = start.elapsed();
            if out.json {
                let ms = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
                out.value(
                    &json!({"name": name, "ok": true, "model": model, "answer": outcome.answer, "milliseconds": ms}),
                );
            } else {
                out.line(&format!(
                    "{name} answers in {}: {}",
                    show_duration(time),
                    outcome.answer.trim()
                ));
            }
            Ok(0)
        }
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
