//! `decanus model list|pull|path`, and what the other commands need to know of local models.

use std::sync::Mutex;

use decanus::Decanus;
use decanus::base::units::show_size;
use decanus_local::models::{self, DEFAULT, Listing, Progress};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::{Value, json};

use crate::args::Model;
use crate::out::{Out, table};
use crate::{Context, Ended};

/// Adds the local backend, in a build that has it.
#[cfg(feature = "local")]
pub fn with_local(decanus: Decanus) -> Decanus {
    let home = decanus.project.home.clone();
    let ready = models::any_pulled(&home);
    let local = decanus_local::LocalBackend::new(home).with_most(decanus.settings.local.memory);
    decanus.with_backend(std::sync::Arc::new(local)).with_local_ready(ready)
}

/// Adds the local backend, in a build that has it.
#[cfg(not(feature = "local"))]
pub fn with_local(decanus: Decanus) -> Decanus {
    decanus
}

/// What `doctor` says of local models: check, whether it is well, value, hint.
pub fn checks(decanus: &Decanus) -> Vec<(String, bool, String, Option<String>)> {
    let built = cfg!(feature = "local");
    let pulled: Vec<String> = match models::list(&decanus.project.home) {
        Ok(all) => all.into_iter().filter(|m| m.pulled).map(|m| m.name).collect(),
        Err(e) => {
            return vec![(
                "local models".into(),
                false,
                "can't be read".into(),
                Some(e.to_string()),
            )];
        }
    };
    let hint = (!built).then(|| "this build has no llama.cpp; build with `--features decanus-cli/local`".to_owned());
    let hint = hint.or_else(|| {
        pulled
            .is_empty()
            .then(|| format!("`decanus model pull {DEFAULT}` fetches one"))
    });
    let value = if pulled.is_empty() {
        "none".to_owned()
    } else {
        pulled.join(", ")
    };
    let backend = if built { "in this build" } else { "not in this build" };
    vec![
        ("local backend".into(), true, backend.into(), None),
        ("local models".into(), true, value, hint),
    ]
}

pub async fn run(command: Model, cx: &Context) -> Ended {
    let home = Decanus::open(&cx.dir)?.project.home;
    let out = cx.out;
    match command {
        Model::List => list(&models::list(&home)?, out),
        Model::Pull { name } => {
            let bar = Bar::new(out);
            let entry = models::pull(&home, &name, &|p| bar.show(p), &cx.signals.token).await?;
            bar.clear();
            if out.json {
                out.value(&json!({"name": entry.name, "file": entry.file.to_string_lossy(), "sha256": entry.sha256}));
            } else {
                out.line(&format!("{} is at {}", entry.name, entry.file.display()));
            }
            Ok(0)
        }
        Model::Path { name } => {
            let path = models::path(&home, &name)?;
            if out.json {
                out.value(&json!({"name": name, "file": path.to_string_lossy()}));
            } else {
                out.line(&path.to_string_lossy());
            }
            Ok(0)
        }
    }
}

fn list(all: &[Listing], out: Out) -> Ended {
    if out.json {
        let value = |m: &Listing| {
            json!({
                "name": m.name,
                "pulled": m.pulled,
                "description": m.description,
                "size": m.size,
                "file": m.file.as_ref().map(|f| f.to_string_lossy()),
                "default": m.default,
            })
        };
        out.value(&all.iter().map(value).collect::<Vec<Value>>().into());
        return Ok(0);
    }
    let row = |m: &Listing| {
        let state = if m.pulled { "here" } else { "not fetched" };
        let size = m.size.map(show_size).unwrap_or_default();
        vec![m.name.clone(), state.into(), size, m.description.clone()]
    };
    out.print(&table(&all.iter().map(row).collect::<Vec<_>>()));
    Ok(0)
}

/// Progress on standard error: a bar on a terminal, a line for each step otherwise.
struct Bar {
    out: Out,
    bar: ProgressBar,
    step: Mutex<&'static str>,
}

impl Bar {
    fn new(out: Out) -> Self {
        let target = if out.draws_progress() {
            ProgressDrawTarget::stderr()
        } else {
            ProgressDrawTarget::hidden()
        };
        let bar = ProgressBar::with_draw_target(None, target);
        if let Ok(style) = ProgressStyle::with_template("{msg:11} {bar:30} {bytes}/{total_bytes} {bytes_per_sec} {eta}")
        {
            bar.set_style(style);
        }
        Self {
            out,
            bar,
            step: Mutex::new(""),
        }
    }

    fn show(&self, progress: Progress) {
        let mut step = self.step.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if std::mem::replace(&mut *step, progress.step) != progress.step {
            self.bar.reset();
            self.bar.set_message(progress.step);
            if !self.out.draws_progress() {
                let size = progress.total.map(|t| format!(" {}", show_size(t))).unwrap_or_default();
                self.out.dim(&format!("{}{size}", progress.step));
            }
        }
        if let Some(total) = progress.total {
            self.bar.set_length(total);
        }
        self.bar.set_position(progress.done);
    }

    fn clear(&self) {
        self.bar.finish_and_clear();
    }
}
