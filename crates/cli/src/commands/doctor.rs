//! `decanus doctor`: what is set, where that is said, and what does not work.

use decanus::Decanus;
use decanus::base::Settings;
use decanus::tool::run::Limits;
use serde_json::{Value, json};

use crate::out::table;
use crate::{Context, Ended};

struct Check {
    check: String,
    ok: bool,
    value: String,
    source: String,
    hint: Option<String>,
}

impl Check {
    fn new(check: &str, ok: bool, value: impl Into<String>, source: impl Into<String>) -> Self {
        Self {
            check: check.into(),
            ok,
            value: value.into(),
            source: source.into(),
            hint: None,
        }
    }

    fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

pub async fn run(cx: &Context) -> Ended {
    let decanus = cx.open()?;
    let mut checks = project(&decanus);
    checks.extend(limits(&decanus.settings));
    checks.extend(endpoints(&decanus));
    checks.extend(
        super::model::checks(&decanus)
            .into_iter()
            .map(|(check, ok, value, hint)| Check {
                hint,
                ..Check::new(&check, ok, value, "machine")
            }),
    );
    checks.extend(workflows(&decanus));
    if cx.out.json {
        let value = |c: &Check| {
            let mut v = json!({"check": c.check, "ok": c.ok, "value": c.value, "source": c.source});
            if let Some(hint) = &c.hint {
                v["hint"] = hint.as_str().into();
            }
            v
        };
        cx.out.value(&checks.iter().map(value).collect::<Vec<Value>>().into());
    } else {
        let row = |c: &Check| {
            vec![
                if c.ok { "ok" } else { "FAILED" }.into(),
                c.check.clone(),
                c.value.clone(),
                format!("({})", c.source),
            ]
        };
        cx.out.print(&table(&checks.iter().map(row).collect::<Vec<_>>()));
        for (check, hint) in checks.iter().filter_map(|c| c.hint.as_ref().map(|h| (&c.check, h))) {
            cx.out.note(&format!("{check}: {hint}"));
        }
    }
    Ok(u8::from(checks.iter().any(|c| !c.ok)))
}

fn project(decanus: &Decanus) -> Vec<Check> {
    let p = &decanus.project;
    let marked = p.root.join("decanus.toml").is_file();
    let home_source = if std::env::var_os("DECANUS_HOME").is_some() {
        "environment DECANUS_HOME"
    } else {
        "default"
    };
    let jobs_source = if decanus.settings.jobs_dir.is_some() {
        "decanus.toml"
    } else {
        "default"
    };
    let jobs = decanus.jobs.dir().to_owned();
    let writable = writable(&jobs);
    let mut jobs_check = Check::new("jobs folder", writable.is_ok(), jobs.to_string_lossy(), jobs_source);
    if let Err(e) = writable {
        jobs_check = jobs_check.hint(format!("can't be written: {e}"));
    }
    vec![
        Check::new("version", true, env!("CARGO_PKG_VERSION"), "binary"),
        Check::new(
            "project root",
            true,
            p.root.to_string_lossy(),
            if marked { "decanus.toml" } else { "working directory" },
        ),
        Check::new("home", true, p.home.to_string_lossy(), home_source),
        jobs_check,
    ]
}

/// Whether files can be made at a path, or at the nearest folder above it that exists.
fn writable(path: &std::path::Path) -> std::io::Result<()> {
    let existing = path.ancestors().find(|a| a.exists()).unwrap_or(path);
    let probe = existing.join(format!(".decanus-doctor-{}", std::process::id()));
    std::fs::write(&probe, b"")?;
    std::fs::remove_file(&probe)
}

fn limits(settings: &Settings) -> Vec<Check> {
    let limits = Limits::from_settings(&settings.limits);
    let show = decanus::base::units::show_duration;
    let source = |set: bool| if set { "decanus.toml" } else { "default" };
    let s = &settings.limits;
    vec![
        Check::new(
            "limits.rounds",
            true,
            limits.rounds.to_string(),
            source(s.rounds.is_some()),
        ),
        Check::new(
            "limits.result_chars",
            true,
            limits.result_chars.to_string(),
            source(s.result_chars.is_some()),
        ),
        Check::new(
            "limits.parallel_calls",
            true,
            limits.parallel_calls.to_string(),
            source(s.parallel_calls.is_some()),
        ),
        Check::new(
            "limits.tool_time",
            true,
            show(limits.tool_time),
            source(s.tool_time.is_some()),
        ),
        Check::new(
            "limits.request_time",
            true,
            show(limits.request_time),
            source(s.request_time.is_some()),
        ),
    ]
}

fn endpoints(decanus: &Decanus) -> Vec<Check> {
    let mut checks = Vec::new();
    match decanus.endpoint_name(None) {
        Ok((name, source)) => match decanus.endpoints.load(&name) {
            Ok(profile) => {
                let value = if profile.url.is_empty() {
                    name
                } else {
                    format!("{name} at {}", profile.url)
                };
                let known = decanus.backends.get(&profile.backend);
                let check = Check::new("endpoint", known.is_ok(), value, source.to_string());
                checks.push(match known {
                    Ok(_) => check,
                    Err(e) => check.hint(e.to_string()),
                });
            }
            Err(e) => checks.push(Check::new("endpoint", false, name, source.to_string()).hint(e.to_string())),
        },
        // Without a model only asking is impossible; tools and workflows are of use all the same.
        Err(e) => checks.push(Check::new("endpoint", true, "none", "default").hint(e.hints.join("; "))),
    }
    for info in decanus.endpoints.list() {
        if let Some(error) = info.error {
            checks.push(Check::new(&format!("endpoint {}", info.name), false, info.url, info.source).hint(error));
        }
    }
    checks
}

fn workflows(decanus: &Decanus) -> Vec<Check> {
    let check = |listed: decanus::workflow::Listed| {
        let source = listed.dir.to_string_lossy().into_owned();
        let name = format!("workflow {}", listed.name);
        match listed.workflow {
            Ok(w) => {
                let plural = if w.tasks.len() == 1 { "" } else { "s" };
                Check::new(&name, true, format!("{} task{plural}", w.tasks.len()), source)
            }
            Err(e) => Check::new(&name, false, "can't be loaded", source).hint(e.to_string()),
        }
    };
    decanus.workflows.list().into_iter().map(check).collect()
}
