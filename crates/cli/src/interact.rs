//! Questions to the person at the terminal.

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, IsTerminal, Write};
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use decanus::base::text::brief;
use decanus::tool::{Answer, Interaction, Question};

use crate::out::{Hold, Out};

/// Characters of a call's arguments that are shown.
const SHOWN: usize = 2000;

/// Asks on the terminal that the process belongs to, whatever stdin and stdout are.
pub struct Terminal {
    out: Out,
    /// Tools whose calls need not be asked for any more. The lock also puts one question after the other.
    allowed: Arc<Mutex<BTreeSet<String>>>,
}

impl Terminal {
    /// Nothing is asked yet.
    pub fn new(out: Out) -> Self {
        Self {
            out,
            allowed: Arc::default(),
        }
    }
}

#[async_trait]
impl Interaction for Terminal {
    async fn ask(&self, question: &Question) -> Answer {
        let (question, out, allowed) = (question.clone(), self.out, self.allowed.clone());
        // When nobody waits for the answer any more, what is held back is let go: this guard is dropped then, while the
        // thread still reads.
        let open = Open::default();
        let begun = open.clone();
        let _end = EndOnDrop(open);
        // A person takes the time that a person takes.
        let asked = tokio::task::spawn_blocking(move || {
            let mut allowed = allowed.lock().unwrap_or_else(PoisonError::into_inner);
            put(&question, out, &mut allowed, &begun)
        });
        asked.await.unwrap_or_else(|e| Answer::Nobody(e.to_string()))
    }
}

/// A question that is on the terminal, with the hold on everything else that is written there.
#[derive(Clone, Default)]
struct Open(Arc<Mutex<State>>);

#[derive(Default)]
enum State {
    #[default]
    Before,
    Asked(Hold),
    Over,
}

impl Open {
    /// Whether somebody still waits for the answer; the terminal then belongs to the question.
    fn begin(&self, out: Out) -> bool {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_wanted = matches!(*state, State::Before);
        if is_wanted {
            *state = State::Asked(out.hold());
        }
        is_wanted
    }

    /// The question is over; whether it still stood open.
    fn end(&self) -> Option<Hold> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match std::mem::replace(&mut *state, State::Over) {
            State::Asked(hold) => Some(hold),
            State::Before | State::Over => None,
        }
    }
}

struct EndOnDrop(Open);

impl Drop for EndOnDrop {
    fn drop(&mut self) {
        if let Some(hold) = self.0.end() {
            // The question was left without an answer, in the middle of its line.
            if let Some(mut terminal) = terminal() {
                let _ = terminal.write_all(b"\n");
            }
            drop(hold);
        }
    }
}

fn put(question: &Question, out: Out, allowed: &mut BTreeSet<String>, open: &Open) -> Answer {
    let text = match question {
        Question::Call(call) if allowed.contains(&call.name) => return Answer::Yes,
        Question::Call(call) => {
            let arguments = out.safe(&brief(&call.arguments.to_text(), SHOWN));
            format!(
                "The model wants to call {} {arguments}\n[y]es, [n]o, [a]ll calls of {0}, or why not: ",
                call.name
            )
        }
        Question::Other(text) => format!("{}\n[y]es or [n]o: ", out.safe(text)),
    };
    let Some(mut terminal) = terminal() else {
        let otherwise = match question {
            Question::Call(_) => " (`--approve never` lets all calls run)",
            Question::Other(_) => "",
        };
        return Answer::Nobody(format!("there is no terminal to ask on{otherwise}"));
    };
    if !open.begin(out) {
        return Answer::Nobody("the run was stopped".into());
    }
    let mut line = String::new();
    let read = terminal
        .write_all(text.as_bytes())
        .and_then(|()| terminal.flush())
        .and_then(|()| BufReader::new(terminal).read_line(&mut line));
    drop(open.end());
    if !read.is_ok_and(|bytes| bytes > 0) {
        return Answer::Nobody("the terminal was closed".into());
    }
    match (line.trim().to_lowercase().as_str(), question) {
        ("y" | "yes", _) => Answer::Yes,
        ("a" | "all", Question::Call(call)) => {
            allowed.insert(call.name.clone());
            Answer::Yes
        }
        ("" | "n" | "no", _) => Answer::No(String::new()),
        _ => Answer::No(line.trim().to_owned()),
    }
}

/// The terminal of this process, if a person can see what is written to it.
fn terminal() -> Option<File> {
    if !std::io::stderr().is_terminal() {
        return None;
    }
    OpenOptions::new().read(true).write(true).open("/dev/tty").ok()
}
