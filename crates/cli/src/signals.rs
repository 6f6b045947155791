//! The first INT, TERM or HUP ends a run in order; the second ends the process, as does the first where nothing runs.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::mpsc;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// What was received.
#[derive(Clone, Default)]
pub struct Signals {
    /// Cancelled by the first signal.
    pub token: CancellationToken,
    code: Arc<AtomicU8>,
    /// Whether something has to be ended in order; otherwise the first signal ends the process.
    in_order: Arc<AtomicBool>,
}

impl Signals {
    /// Begins to listen, on a thread of its own: a write to a pipe that nobody reads must not make the process deaf.
    pub fn listen() -> Self {
        let signals = Self::default();
        let (ready, wait) = mpsc::channel();
        let watcher = signals.clone();
        let started = std::thread::Builder::new()
            .name("signals".into())
            .spawn(move || watcher.watch(&ready));
        // Where there is no thread the default action stays, which also ends the process.
        if started.is_ok() {
            let _ = wait.recv();
        }
        signals
    }

    fn watch(&self, ready: &mpsc::Sender<()>) {
        let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_io().build() else {
            return;
        };
        runtime.block_on(async {
            let streams = [
                (SignalKind::interrupt(), 130),
                (SignalKind::terminate(), 143),
                (SignalKind::hangup(), 129),
            ]
            .map(|(kind, code)| (signal(kind).ok(), code));
            let _ = ready.send(());
            let [(mut interrupt, a), (mut terminate, b), (mut hangup, c)] = streams;
            loop {
                let code = tokio::select! {
                    () = received(&mut interrupt) => a,
                    () = received(&mut terminate) => b,
                    () = received(&mut hangup) => c,
                };
                let is_second = self.code.swap(code, Ordering::SeqCst) != 0;
                if is_second || !self.in_order.load(Ordering::SeqCst) {
                    std::process::exit(i32::from(code));
                }
                self.token.cancel();
            }
        });
    }

    /// From here on the first signal only cancels the token: there is something to be ended in order.
    pub fn end_in_order(&self) {
        self.in_order.store(true, Ordering::SeqCst);
    }

    /// The exit code of the signal that came, if one came.
    pub fn exit_code(&self) -> Option<u8> {
        Some(self.code.load(Ordering::SeqCst)).filter(|c| *c != 0)
    }
}

/// Waits for the next signal; for ever where the signal can't be had.
async fn received(stream: &mut Option<Signal>) {
    if let Some(stream) = stream
        && stream.recv().await.is_some()
    {
        return;
    }
    std::future::pending().await
}
