//! How far jobs are: a line on a terminal, which goes when they are done. Nothing of it elsewhere.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use decanus::base::text::{brief, escape_controls};
use decanus::tool::{Event, EventSink};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::out::Out;

/// How often the running job's last word is looked at.
const LOOKS: Duration = Duration::from_millis(200);
/// Characters of it that are shown.
const SHOWN: usize = 60;
/// How much of the end of a log holds its last line.
const TAIL: u64 = 1000;

/// What is drawn of jobs, until it is dropped.
pub struct JobProgress {
    shared: Arc<Shared>,
}

struct Shared {
    out: Out,
    bar: ProgressBar,
    /// What runs, `WORKFLOW/TASK` each, and the log of the job that was started last.
    running: Mutex<(String, Option<PathBuf>)>,
    is_over: AtomicBool,
}

impl JobProgress {
    /// Begins to draw, if standard error is a terminal.
    pub fn new(out: Out) -> Self {
        let target = match out.draws_progress() {
            true => ProgressDrawTarget::stderr(),
            false => ProgressDrawTarget::hidden(),
        };
        let bar = ProgressBar::with_draw_target(None, target);
        if let Ok(style) = ProgressStyle::with_template("{spinner} {msg}") {
            bar.set_style(style);
        }
        let shared = Arc::new(Shared {
            out,
            bar,
            running: Mutex::default(),
            is_over: AtomicBool::new(false),
        });
        if out.draws_progress() {
            let shared = shared.clone();
            // Without the thread only the job's own words are missing.
            let _ = std::thread::Builder::new().name("progress".into()).spawn(move || {
                while !shared.is_over.load(Ordering::Relaxed) {
                    shared.draw();
                    std::thread::sleep(LOOKS);
                }
            });
        }
        Self { shared }
    }

    /// What a run tells its events.
    pub fn sink(&self) -> EventSink {
        let shared = self.shared.clone();
        Arc::new(move |event: &Event| shared.take(event))
    }
}

impl Drop for JobProgress {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::Relaxed);
        self.shared.bar.finish_and_clear();
    }
}

impl Shared {
    fn take(&self, event: &Event) {
        match event {
            Event::Job { path, reused } => {
                let stored = if *reused { " (stored result)" } else { "" };
                self.bar.suspend(|| self.out.dim(&format!("job {path}{stored}")));
                if !reused {
                    let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
                    *running = (label(path), Some(PathBuf::from(format!("{path}.files/.job/stderr"))));
                }
            }
            Event::Jobs { done, total, running } => {
                self.bar.set_length(*total as u64);
                self.bar.set_position(*done as u64);
                if let Ok(style) = ProgressStyle::with_template("{bar:20} {pos}/{len} {msg}") {
                    self.bar.set_style(style);
                }
                // None runs at the moment when one has ended and the next has not begun.
                if !running.is_empty() {
                    self.running.lock().unwrap_or_else(PoisonError::into_inner).0 = running.join(", ");
                }
            }
            Event::Warning(text) => self.bar.suspend(|| self.out.warn(text)),
            _ => {}
        }
    }

    fn draw(&self) {
        let (running, log) = self.running.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let said = log.and_then(|log| last_line(&log)).unwrap_or_default();
        let between = if running.is_empty() || said.is_empty() {
            ""
        } else {
            ": "
        };
        let message = brief(&escape_controls(&format!("{running}{between}{said}")), SHOWN);
        if !message.is_empty() && !self.is_over.load(Ordering::Relaxed) {
            self.bar.set_message(message);
            self.bar.tick();
        }
    }
}

/// `WORKFLOW/TASK` of the path of a result.
fn label(path: &str) -> String {
    let mut parts = path.rsplit('/').skip(1);
    let task = parts.next().unwrap_or_default();
    format!("{}/{task}", parts.next().unwrap_or_default())
}

/// The last line of a file that is not empty.
fn last_line(path: &Path) -> Option<String> {
    let mut file = File::open(path).ok()?;
    let length = file.metadata().ok()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(TAIL))).ok()?;
    let mut bytes = Vec::new();
    file.take(TAIL).read_to_end(&mut bytes).ok()?;
    let text = String::from_utf8_lossy(&bytes);
    // What overwrites itself says its last word behind the last carriage return.
    let mut lines = text.rsplit(['\n', '\r']).map(str::trim);
    lines.find(|line| !line.is_empty()).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_word_of_a_log() {
        let dir = std::env::temp_dir().join(format!("decanus-progress-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let path = dir.join("stderr");
        for (text, last) in [
            ("", None),
            ("\n\n", None),
            ("one\ntwo\n\n", Some("two")),
            ("10%\r20%\r", Some("20%")),
        ] {
            std::fs::write(&path, text).unwrap();
            assert_eq!(last_line(&path).as_deref(), last, "{text:?}");
        }
        std::fs::write(&path, format!("{}\nend", "x".repeat(5000))).unwrap();
        assert_eq!(last_line(&path).as_deref(), Some("end"));
        assert_eq!(last_line(&dir.join("none")), None);
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
