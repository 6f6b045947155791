//! `decanus replay`.

use std::sync::Arc;

use decanus::base::ErrorKind;
use decanus::prov::replay::Report;
use decanus::tool::{ApprovalPolicy, Event};
use decanus::{Error, ReplayOptions};

use crate::args::Replay;
use crate::interact::Terminal;
use crate::out::Out;
use crate::paths::chat_path;
use crate::{Context, Ended, Failure};

pub async fn run(args: Replay, cx: &Context) -> Ended {
    let decanus = cx.open()?;
    let out = cx.out;
    let chat = chat_path(&args.chat, &decanus.project)?;
    let options = ReplayOptions {
        check: args.check,
        fresh: args.fresh,
        all: args.all,
        tools: args.tools,
        job_time: args.timeout,
        approval: args.approve.map(ApprovalPolicy::all),
        interaction: Some(Arc::new(Terminal::new(out))),
        events: Some(Arc::new(move |event: &Event| match event {
            Event::Job { path, reused: false } => out.dim(&format!("job {path}")),
            Event::Warning(text) => out.warn(text),
            _ => {}
        })),
        cancel: cx.signals.token.clone(),
    };
    let report = decanus.replay(&chat, &options).await?;
    for problem in &report.problems {
        let line = problem.line.map(|l| format!(":{l}")).unwrap_or_default();
        out.warn(&format!("{}{line}: {}", problem.file.display(), problem.message));
    }
    if !out.json {
        out.print(&report.to_text(&decanus.project.root));
    }
    end(&report, out)
}

/// The first difference is what the command failed with.
fn end(report: &Report, out: Out) -> Ended {
    let Some((call, difference)) = report.differences().next() else {
        if out.json {
            out.value(&serde_json::Value::Object(report.to_json()));
        }
        return Ok(0);
    };
    let text = format!(
        "{}: the first that differs is {} ({}) at {}:{}: {}",
        report.summary(),
        call.tool,
        call.id,
        call.file.display(),
        call.line,
        difference.message
    );
    Err(Failure::with(Error::new(ErrorKind::Tool, text), report.to_json()))
}
