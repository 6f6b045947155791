//! What is printed, and where: results on stdout, everything else on stderr.

use std::io::{self, IsTerminal, Write};

use decanus::Error;
use decanus::base::text::escape_controls;
use serde_json::{Map, Value, json};

/// The two streams of the process and how they are written.
#[derive(Clone, Copy)]
pub struct Out {
    /// Whether machines read stdout.
    pub json: bool,
    stdout_is_terminal: bool,
    stderr_is_terminal: bool,
    colour: bool,
}

impl Out {
    /// As the process was started.
    pub fn new(json: bool) -> Self {
        let stderr_is_terminal = io::stderr().is_terminal();
        Self {
            json,
            stdout_is_terminal: io::stdout().is_terminal(),
            stderr_is_terminal,
            colour: stderr_is_terminal && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty()),
        }
    }

    /// Prints to stdout: as it is to a pipe, with control characters escaped to a terminal.
    pub fn print(&self, text: &str) {
        let mut stdout = io::stdout().lock();
        let written = if self.stdout_is_terminal {
            stdout.write_all(escape_controls(text).as_bytes())
        } else {
            stdout.write_all(text.as_bytes())
        };
        if let Err(e) = written.and_then(|()| stdout.flush()) {
            stop_on(&e);
        }
    }

    /// Whether stdout is a terminal.
    pub fn to_terminal(self) -> bool {
        self.stdout_is_terminal
    }

    /// Copies bytes to stdout, as they are.
    pub fn copy(&self, from: &mut dyn io::Read) {
        let mut stdout = io::stdout().lock();
        if let Err(e) = io::copy(from, &mut stdout).and_then(|_| stdout.flush()) {
            stop_on(&e);
        }
    }

    /// Prints a line to stdout.
    pub fn line(&self, text: &str) {
        self.print(&format!("{text}\n"));
    }

    /// Prints JSON: indented on a terminal, one line otherwise.
    pub fn value(&self, value: &Value) {
        if self.stdout_is_terminal {
            self.line(&format!("{value:#}"));
            return;
        }
        // Straight to the pipe: the text of a long answer is as long again.
        let mut out = io::BufWriter::new(io::stdout().lock());
        let written = serde_json::to_writer(&mut out, value)
            .map_err(io::Error::from)
            .and_then(|()| out.write_all(b"\n"))
            .and_then(|()| out.flush());
        // A full disk or a closed pipe is told of as for all other output.
        if let Err(e) = written {
            stop_on(&e);
        }
    }

    /// Tells people something on stderr.
    pub fn note(&self, text: &str) {
        self.stderr(&format!("{}\n", self.safe(text)));
    }

    /// Asks for a line, on stderr.
    pub fn prompt(&self, text: &str) {
        self.stderr(text);
    }

    /// A note in the colour of side remarks.
    pub fn dim(&self, text: &str) {
        self.stderr(&format!("{}\n", self.paint("2", &self.safe(text))));
    }

    /// Warns people on stderr.
    pub fn warn(&self, text: &str) {
        self.stderr(&format!("{} {}\n", self.paint("33", "warning:"), self.safe(text)));
    }

    /// Names a fault that is one of several.
    pub fn fault(&self, text: &str) {
        self.stderr(&format!("{} {}\n", self.paint("1;31", "error:"), self.safe(text)));
    }

    /// Shows why a command failed: on stderr for people, with `--json` also on stdout, beside what there is already.
    pub fn fail(&self, error: &Error, partial: Map<String, Value>) {
        self.stderr(&format!(
            "{} {}\n",
            self.paint("1;31", "error:"),
            self.safe(&error.message)
        ));
        for hint in &error.hints {
            self.stderr(&format!("  {} {}\n", self.paint("36", "hint:"), self.safe(hint)));
        }
        if let Some(path) = &error.snapshot {
            self.stderr(&format!(
                "  what there was of the request: {}\n",
                self.safe(&path.display().to_string())
            ));
        }
        if self.json {
            let mut object = partial;
            object.entry("error").or_insert_with(|| error_value(error));
            self.value(&Value::Object(object));
        }
    }

    /// Whether progress can be drawn.
    pub fn draws_progress(&self) -> bool {
        self.stderr_is_terminal
    }

    /// The same streams, with nothing for machines.
    pub fn for_people(self) -> Self {
        Self { json: false, ..self }
    }

    fn stderr(&self, text: &str) {
        // A closed stderr is no reason to fail.
        let _ = io::stderr().lock().write_all(text.as_bytes());
    }

    pub fn safe(&self, text: &str) -> String {
        if self.stderr_is_terminal {
            escape_controls(text)
        } else {
            text.to_owned()
        }
    }

    fn paint(&self, code: &str, text: &str) -> String {
        if self.colour {
            format!("\u{1b}[{code}m{text}\u{1b}[0m")
        } else {
            text.to_owned()
        }
    }
}

/// The `error` member of machine-readable output.
pub fn error_value(error: &Error) -> Value {
    let mut value = json!({"kind": error.kind.as_str(), "message": error.message});
    if let Some(hint) = error.hints.first() {
        value["hint"] = hint.as_str().into();
    }
    if let Some(path) = &error.snapshot {
        value["snapshot"] = path.display().to_string().into();
    }
    value
}

/// A reader that went away is not an error; nothing is left to be done for it.
fn stop_on(error: &io::Error) {
    if error.kind() == io::ErrorKind::BrokenPipe {
        std::process::exit(0);
    }
    let _ = writeln!(io::stderr(), "error: standard output can't be written: {error}");
    std::process::exit(1);
}

/// Lines of columns, each as wide as its widest cell.
pub fn table(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |c: usize| {
        rows.iter()
            .filter_map(|r| r.get(c))
            .map(|t| t.chars().count())
            .max()
            .unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut out = String::new();
    for row in rows {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            line.push_str(cell);
            line.extend(std::iter::repeat_n(' ', width + 2 - cell.chars().count()));
        }
        out.push_str(line.trim_end());
        out.push('\n');
    }
    out
}
