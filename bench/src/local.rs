//! The local model against llama.cpp's own server: the same file, prompt and number of threads.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::table::{Measure, Row, Target};
use crate::{Failed, Options};

const AT_LEAST: Target = Target::RatioAtLeast(0.95);
const PROMPT: &str = "local model, prompt : llama.cpp";
const WRITING: &str = "local model, writing : llama.cpp";
/// Times that each side is started, in turns.
const TURNS: usize = 3;
/// Measurements of each start, of which the fastest counts: on a busy machine it is the one that was disturbed least.
const REPEATS: &str = "3";
/// Two threads that share a core with somebody else wait for each other, so one is what can be compared.
const THREADS: &str = "1";
const TOKENS: &str = "64";

/// Tokens a second of one measurement.
struct Speed {
    prompt: f64,
    writing: f64,
}

/// The two rows, measured where everything that it takes is there.
pub fn measure(options: &Options) -> Result<Vec<Row>, Failed> {
    let (model, python) = match needs(options) {
        Ok(needs) => needs,
        Err(reason) => {
            return Ok(vec![
                Row::not_measured(PROMPT, AT_LEAST, reason.clone()),
                Row::not_measured(WRITING, AT_LEAST, reason),
            ]);
        }
    };
    let folder = tempfile::tempdir()?;
    let prompt = folder.path().join("prompt.txt");
    std::fs::write(&prompt, text())?;
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("llama-speed.py");
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..TURNS {
        let mut command = Command::new(&options.speed);
        ours.push(run(command.arg(&model).arg(&prompt))?);
        let mut command = Command::new(&python);
        theirs.push(run(command.arg(&script).arg(&model).arg(&prompt))?);
    }
    let best = |speeds: &[Speed], of: fn(&Speed) -> f64| Measure::Speed(speeds.iter().map(of).fold(0.0, f64::max));
    let row = |name, of| Row::new(name, AT_LEAST, best(&ours, of), best(&theirs, of));
    Ok(vec![row(PROMPT, |s| s.prompt), row(WRITING, |s| s.writing)])
}

/// The model's file and the Python that has xllamacpp, or what is missing.
fn needs(options: &Options) -> Result<(PathBuf, PathBuf), String> {
    if !options.speed.is_file() {
        return Err("this build is without `local`".into());
    }
    let python = std::env::var_os("XLLAMACPP_PYTHON").map_or_else(|| PathBuf::from("python3"), PathBuf::from);
    let mut import = Command::new(&python);
    import.args(["-c", "import xllamacpp"]).stderr(Stdio::null());
    if !import.status().is_ok_and(|s| s.success()) {
        return Err("no xllamacpp (XLLAMACPP_PYTHON names a Python that has it)".into());
    }
    if let Some(model) = std::env::var_os("DECANUS_BENCH_MODEL") {
        return Ok((model.into(), python));
    }
    let mut path = Command::new(&options.decanus);
    path.args(["model", "path", "smollm2-135m"]).stderr(Stdio::null());
    let output = path.output().map_err(|e| e.to_string())?;
    let model = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim());
    if output.status.success() && model.is_file() {
        Ok((model, python))
    } else {
        Err("no model (`decanus model pull smollm2-135m`, or DECANUS_BENCH_MODEL)".into())
    }
}

fn run(command: &mut Command) -> Result<Speed, Failed> {
    let output = command
        .args([THREADS, TOKENS, REPEATS])
        .stderr(Stdio::piped())
        .output()?;
    let told = String::from_utf8_lossy(&output.stdout).into_owned();
    let line = told.lines().last().unwrap_or_default();
    let value: Value = serde_json::from_str(line).map_err(|e| {
        let errors = String::from_utf8_lossy(&output.stderr);
        format!(
            "{:?} ended with {}: {e}\n{errors}",
            command.get_program(),
            output.status
        )
    })?;
    let number = |name: &str| {
        let number = value.get(name).and_then(Value::as_f64);
        number.ok_or_else(|| format!("{:?} does not tell {name}: {line}", command.get_program()))
    };
    Ok(Speed {
        prompt: number("prompt_per_second")?,
        writing: number("generated_per_second")?,
    })
}

/// Some hundred tokens of English, none of which repeats what is before it word for word.
fn text() -> String {
    let places = [
        "harbour", "hill", "market", "river", "station", "garden", "library", "bridge",
    ];
    let people = ["captain", "teacher", "baker", "doctor", "painter"];
    let mut text = String::from("A diary of the town.\n");
    for day in 1..=20 {
        let (place, other) = (places[day % places.len()], places[(day * 3 + 1) % places.len()]);
        let person = people[day % people.len()];
        text.push_str(&format!(
            "On day {day} the {person} walked from the {place} to the {other} and counted {} birds.\n",
            day * 7 % 31
        ));
    }
    text
}
