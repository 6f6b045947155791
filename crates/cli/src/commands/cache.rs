//! `decanus cache`.

use decanus::backend::cache::Entry;
use decanus::base::ErrorKind;
use decanus::base::text::brief;
use decanus::{Decanus, Error};
use serde_json::json;

use crate::args::{self, Cache};
use crate::commands::ask;
use crate::out::{Out, table};
use crate::{Context, Ended};

/// Digits of a key in listings.
const SHOWN: usize = 12;

pub async fn run(cache: Cache, cx: &Context) -> Ended {
    let decanus = cx.open()?;
    match cache {
        Cache::List => list(&decanus, cx.out),
        Cache::Clear { prefix } => clear(&decanus, prefix.as_deref().unwrap_or_default(), cx.out),
        Cache::Why(args) => why(&decanus, &args, cx).await,
    }
}

fn list(decanus: &Decanus, out: Out) -> Ended {
    let entries = decanus.answers.list();
    if out.json {
        let value = |e: &Entry| {
            json!({
                "name": e.key,
                "created": e.created,
                "backend": e.parts.backend,
                "model": e.parts.model,
                "target": e.parts.target,
                "inference_id": e.inference_id,
            })
        };
        out.value(&entries.iter().map(value).collect());
    } else {
        let rows = entries.iter().map(|e| {
            let model = e.parts.model.clone();
            vec![
                e.key[..SHOWN].to_owned(),
                e.created.clone(),
                model,
                brief(&e.summary(), 60),
            ]
        });
        out.print(&table(&rows.collect::<Vec<_>>()));
    }
    Ok(0)
}

fn clear(decanus: &Decanus, prefix: &str, out: Out) -> Ended {
    if !prefix.bytes().all(|b| b.is_ascii_hexdigit()) {
        return Err(Error::usage(format!("`{prefix}` is not the beginning of a key")).into());
    }
    let removed = decanus
        .answers
        .clear(&prefix.to_lowercase())
        .map_err(|e| Error::new(ErrorKind::Internal, e.to_string()))?;
    if out.json {
        out.value(&json!({"removed": removed}));
    } else {
        out.line(&format!("{removed} stored answers removed"));
    }
    Ok(0)
}

/// Whether a question would be answered from the cache.
async fn why(decanus: &Decanus, args: &args::Ask, cx: &Context) -> Ended {
    let out = cx.out;
    let question = ask::question(&args.question, cx).await?;
    let (mut session, _) = ask::prepare(decanus, &args.how, question, true, cx).await?;
    let run = decanus.run().limits(session.limits.clone()).build();
    let (key, parts) = session.cache_key(&run)?;
    let hit = decanus.answers.get(&key);
    let nearest = match hit {
        Some(_) => None,
        None => decanus.answers.nearest(&parts),
    };
    if out.json {
        out.value(&json!({
            "key": key,
            "hit": hit.is_some(),
            "nearest": nearest.as_ref().map(|(entry, _)| &entry.key),
            "differences": nearest.as_ref().map_or(&Vec::new(), |(_, differences)| differences),
        }));
        return Ok(0);
    }
    match (hit, nearest) {
        (Some(entry), _) => out.line(&format!("hit: {}, stored {}", &key[..SHOWN], entry.created)),
        (None, None) => out.line("miss: the cache is empty"),
        (None, Some((entry, differences))) => {
            let nearest = &entry.key[..SHOWN];
            out.line(&format!("miss: what differs from the nearest request, {nearest}, is"));
            differences.iter().for_each(|d| out.line(&format!("  {d}")));
        }
    }
    Ok(0)
}
