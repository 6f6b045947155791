//! The first INT, TERM or HUP ends the run in order; the second ends the process.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// What was received.
#[derive(Clone, Default)]
pub struct Signals {
    /// Cancelled by the first signal.
    pub token: CancellationToken,
    code: Arc<AtomicU8>,
}

impl Signals {
    /// Begins to listen. Must be called inside the runtime.
    pub fn listen() -> Self {
        let signals = Self::default();
        for (kind, code) in [
            (SignalKind::interrupt(), 130),
            (SignalKind::terminate(), 143),
            (SignalKind::hangup(), 129),
        ] {
            // Where a signal can't be had its default action stays, which also ends the process.
            let Ok(mut stream) = signal(kind) else { continue };
            let signals = signals.clone();
            tokio::spawn(async move {
                while stream.recv().await.is_some() {
                    if signals.code.swap(code, Ordering::SeqCst) != 0 {
                        std::process::exit(i32::from(code));
                    }
                    signals.token.cancel();
                }
            });
        }
        signals
    }

    /// The exit code of the signal that came, if one came.
    pub fn exit_code(&self) -> Option<u8> {
        Some(self.code.load(Ordering::SeqCst)).filter(|c| *c != 0)
    }
}
