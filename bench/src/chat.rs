//! Long chats: how fast they are read and printed, what it takes to append to one, and how much memory to open one. One
//! thread does all of it.

use std::hint::black_box;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use decanus::chat::{ChatFile, FunctionCall, FunctionCallOutput, Message, Meta, Role, Transcript, parse, print};
use decanus_bench::hostile;
use serde_json::Value;

use crate::table::{Measure, Row, Target, median};
use crate::{Failed, Options};

/// Bytes of the chat, of which a megabyte has a million.
const SIZE: usize = 50_000_000;
/// Megabytes a second that reading and printing have to reach.
const RATE: f64 = 200.0;
/// Times that the whole chat is read, printed and given to the floor, in turns.
const TURNS: usize = 9;
/// Appended messages, to each chat.
const APPENDS: usize = 500;
/// Bytes of a hostile text; it is compared with one 8 times as long.
const HOSTILE: usize = 100_000;
/// Times that each of them is read and printed.
const REPEATS: usize = 9;

/// All rows.
pub fn measure(options: &Options) -> Result<Vec<Row>, Failed> {
    // Not in memory, where fdatasync does nothing.
    let folder = tempfile::tempdir_in(&options.scratch)?;
    let path = folder.path().join("long.chat");
    if !options.chat.is_file() {
        return Err(format!("{} is not there; bench/run builds it", options.chat.display()).into());
    }
    run(Command::new(&options.chat)
        .arg("write")
        .arg(&path)
        .arg(SIZE.to_string()))?;
    // Before this process has the chat in memory itself: see `start::measure`.
    let memory = memory(&options.chat, &path)?;
    let text = std::fs::read_to_string(&path)?;
    let mut rows = speed(&text, &path)?;
    rows.push(append(&path, folder.path())?);
    rows.push(memory);
    rows.extend(growth());
    Ok(rows)
}

fn memory(program: &Path, path: &Path) -> Result<Row, Failed> {
    let mut most = 0.0_f64;
    for way in ["open", "read"] {
        let kibibytes: f64 = run(Command::new(program).arg(way).arg(path))?.trim().parse()?;
        most = most.max(kibibytes / 1024.0);
    }
    let size = std::fs::metadata(path)?.len() as f64 / f64::from(1 << 20);
    Ok(Row::new(
        "resident memory of a process that opens a long chat : the file",
        Target::RatioAtMost(3.0),
        Measure::Mebibytes(most),
        Measure::Mebibytes(size),
    ))
}

fn speed(text: &str, path: &Path) -> Result<Vec<Row>, Failed> {
    let (mut reading, mut printing, mut both, mut floor) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let mut missing = None;
    for _ in 0..TURNS {
        let start = Instant::now();
        let mut parsed = parse(text);
        reading.push(start.elapsed());
        let calls = Instant::now();
        decode_and_encode(&mut parsed.messages)?;
        let calls = calls.elapsed();
        let start = Instant::now();
        let printed = print(&parsed.messages);
        printing.push(start.elapsed());
        both.push(reading[reading.len() - 1] + calls + printing[printing.len() - 1]);
        // Steps end with one line feed more than messages.
        if parse(&printed).messages != parsed.messages || printed.len() < text.len() * 9 / 10 {
            return Err("the chat that was printed is another one".into());
        }
        drop((parsed, printed));
        match python(path) {
            Ok(time) => floor.push(time),
            Err(reason) => missing = Some(reason),
        }
    }
    let rate = |times: &mut Vec<Duration>| Measure::Rate(text.len() as f64 / 1e6 / median(times).as_secs_f64());
    let name = "read and print a long chat, decode its calls : Python's re, json";
    Ok(vec![
        Row::new(
            "read a long chat : 200 MB/s",
            Target::AtLeast,
            rate(&mut reading),
            Measure::Rate(RATE),
        ),
        Row::new(
            "print a long chat : 200 MB/s",
            Target::AtLeast,
            rate(&mut printing),
            Measure::Rate(RATE),
        ),
        match missing {
            Some(reason) => Row::not_measured(name, Target::AtMost, reason),
            None => Row::new(
                name,
                Target::AtMost,
                Measure::Time(median(&mut both)),
                Measure::Time(median(&mut floor)),
            ),
        },
    ])
}

/// What the floor does with calls and outputs: their JSON becomes values, and JSON again.
fn decode_and_encode(messages: &mut [Message]) -> Result<(), Failed> {
    for message in messages {
        match message.role {
            Role::FunctionCall => *message = FunctionCall::from_message(message)?.to_message(),
            Role::FunctionCallOutput => *message = FunctionCallOutput::from_message(message)?.to_message(),
            _ => {}
        }
    }
    Ok(())
}

/// How long the floor took by its own clock, without its start and without reading the file.
fn python(path: &Path) -> Result<Duration, String> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("chat-floor.py");
    let told = run(Command::new("python3").arg(script).arg(path)).map_err(|e| e.to_string())?;
    let value: Value = serde_json::from_str(&told).map_err(|e| format!("{e}: {told}"))?;
    let seconds = value["seconds"].as_f64().ok_or(told)?;
    Ok(Duration::from_secs_f64(seconds))
}

/// The same message, appended to the long chat and to one that began empty, in turns.
fn append(long: &Path, folder: &Path) -> Result<Row, Failed> {
    let open = |path: &Path| ChatFile::open(path, Duration::ZERO, &|| false).map(|(chat, _)| chat);
    let (mut long, mut short) = (open(long)?, open(&folder.join("short.chat"))?);
    let step = [Message::assistant(
        "It is what it was: as long as this line, and then one more.\n\nDone.",
    )];
    let mut meta = Meta::new();
    meta.set("pt", 1200).set("ct", 20).set("tt", 1220);
    let once = |chat: &mut ChatFile| -> Result<Duration, Failed> {
        let start = Instant::now();
        chat.append(&meta, &step, chat.version())?;
        Ok(start.elapsed())
    };
    let (mut ours, mut reference) = (Vec::new(), Vec::new());
    for n in 0..APPENDS {
        // Who is second may find the disk busy with the first.
        if n % 2 == 0 {
            ours.push(once(&mut long)?);
            reference.push(once(&mut short)?);
        } else {
            reference.push(once(&mut short)?);
            ours.push(once(&mut long)?);
        }
    }
    Ok(Row::new(
        "append to a long chat : to an empty one",
        Target::RatioAtMost(1.2),
        Measure::Time(median(&mut ours)),
        Measure::Time(median(&mut reference)),
    ))
}

/// Of all hostile texts, the one that takes longest when it is doubled three times, in parts of what it takes as it is.
/// What is linear takes 8 times as long, what is quadratic 64 times.
fn growth() -> Vec<Row> {
    let read: fn(&str) -> Duration = |text| time(|| parse(text));
    let print: fn(&str) -> Duration = |text| {
        // With blanks at its ends it would be printed in the exact form at once.
        let message = [Message::user(text.trim())];
        time(|| print(&message))
    };
    let worst = |what: &str, time: fn(&str) -> Duration| {
        let times = hostile::ALL.iter().map(|(name, make)| {
            let (long, short) = (make(HOSTILE * 8), make(HOSTILE));
            // The fastest of some is the one that was disturbed least.
            let fastest = |text: &str| (0..REPEATS).map(|_| time(text)).min().unwrap_or_default();
            // What fits into a cache or takes no time at all says nothing about growth.
            (*name, fastest(&long), fastest(&short).max(Duration::from_micros(50)))
        });
        let ratio = |(_, long, short): &(&str, Duration, Duration)| long.as_secs_f64() / short.as_secs_f64();
        let worst = times.max_by(|a, b| ratio(a).total_cmp(&ratio(b)));
        worst.map(|(name, long, short)| {
            Row::new(
                format!("{what} a hostile text 8 times as long ({name}) : once"),
                Target::RatioAtMost(16.0),
                Measure::Time(long),
                Measure::Time(short),
            )
        })
    };
    [worst("read", read), worst("print", print)]
        .into_iter()
        .flatten()
        .collect()
}

fn time<T>(work: impl FnOnce() -> T) -> Duration {
    let start = Instant::now();
    black_box(work());
    start.elapsed()
}

/// Runs a program to its end, and gives what it wrote.
fn run(command: &mut Command) -> Result<String, Failed> {
    let output = command.stdin(Stdio::null()).stderr(Stdio::piped()).output()?;
    if !output.status.success() {
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        return Err(format!("{:?} ended with {}: {errors}", command.get_program(), output.status).into());
    }
    Ok(String::from_utf8(output.stdout)?)
}
