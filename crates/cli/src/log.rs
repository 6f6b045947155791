//! `DECANUS_LOG=error|warn|info|debug|trace`: log lines on standard error.
//!
//! Only decanus's own lines: those of libraries may hold what was sent, keys included.

use decanus::Error;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// Begins to log, if that is asked for.
///
/// # Errors
/// When the variable holds no level.
pub fn begin() -> Result<(), Error> {
    let Some(wanted) = std::env::var("DECANUS_LOG").ok().filter(|v| !v.is_empty()) else {
        return Ok(());
    };
    let level: LevelFilter = wanted.parse().map_err(|_| {
        Error::usage(format!(
            "DECANUS_LOG: `{wanted}` is none of off, error, warn, info, debug, trace"
        ))
    })?;
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .with_ansi(false);
    let ours = Targets::new().with_target("decanus", level);
    // It fails only when a subscriber was set before, and nothing else in this process does.
    let _ = tracing_subscriber::registry().with(lines).with(ours).try_init();
    Ok(())
}
