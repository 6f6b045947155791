//! `decanus relay`.

use decanus::base::units::show_duration;
use decanus::{RelayEvent, RelayServer};
use serde_json::json;

use crate::args::Relay;
use crate::{Context, Ended};

pub async fn run(command: Relay, cx: &Context) -> Ended {
    let Relay::Serve { folder, endpoint, once } = command;
    let decanus = cx.open()?;
    if let Some(name) = &endpoint {
        // A wrong name is told now, not to the first one who asks.
        decanus.endpoints.load(name)?;
    }
    let server = RelayServer::new(&decanus, folder.as_deref(), endpoint)?;
    let out = cx.out;
    out.note(&format!("requests are taken from {}", server.dir().display()));
    let tell = move |event: &RelayEvent| match event {
        RelayEvent::Answered { id, endpoint, time } => {
            out.note(&format!("{id}: answered by {endpoint} in {}", show_duration(*time)));
        }
        RelayEvent::Failed { id, reason } => out.warn(&format!("{id}: {reason}")),
        RelayEvent::Bad { id, reason } => out.warn(&format!("{id}: not a request ({reason}); it lies in failed/")),
        RelayEvent::Trouble(what) => out.warn(what),
    };
    let counts = server.serve(once, &cx.signals.token, &tell).await;
    if out.json {
        out.value(&json!({"answered": counts.answered, "failed": counts.failed}));
    }
    Ok(cx.signals.exit_code().unwrap_or(0))
}
