//! One call, a stream of 2,000 pieces, and 200 calls side by side: ours, plain reqwest, and what else people use for the
//! same. All ask the same server on the loopback address, which answers at once, and all are measured in one run, in turns.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use decanus::backend::{Backend, BackendRegistry, CallCx, Collector, Profile, View};
use decanus::chat::Message;
use futures::StreamExt;
use futures::future::join_all;
use nix::sys::resource::{UsageWho, getrusage};
use reqwest::Client;
use serde_json::{Map, Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Runtime};
use tokio_util::sync::CancellationToken;

use crate::table::{Measure, Row, Target, median};
use crate::{Failed, Options};

/// The pieces of the stream.
const PIECES: usize = 2000;
/// The calls side by side.
const MANY: usize = 200;
/// The text of the large stream.
const LARGE: usize = 50 << 20;
const QUESTION: &str = "What is 21 times 2?";

/// What is measured of each.
const CASES: [&str; 3] = ["one call", "a stream of 2000 pieces", "200 calls side by side"];

/// The times of one contender, by case.
type Times = [Vec<Duration>; 3];

/// All contenders in turns, three times.
pub fn measure(options: &Options) -> Result<Vec<Row>, Failed> {
    let url = serve()?;
    // Sets up TLS for the process, which any client wants, also for plain connections.
    decanus::backend::client::Clients::default().get(&url.parse()?, Duration::from_secs(1))?;
    // First: the kernel keeps one maximum for all children, and those in Python are large.
    let memory = memory(options, &url)?;
    let mut contenders: Vec<Contender> = vec![
        Contender::here("reqwest", "current", &url),
        Contender::here("reqwest", "multi", &url),
        Contender::here("decanus", "current", &url),
        Contender::here("decanus", "multi", &url),
    ];
    for library in ["genai", "rig"] {
        for runtime in ["current", "multi"] {
            contenders.push(Contender::program(library, runtime, &options.peers, &url));
        }
    }
    for library in ["openai", "litellm"] {
        contenders.push(Contender::python(library, &options.peers_python, &url));
    }
    for _ in 0..3 {
        for contender in &mut contenders {
            contender.turn()?;
        }
    }

    let mut rows = Vec::new();
    for (case, what) in CASES.iter().enumerate() {
        let best = |library: &str| -> Option<Duration> {
            let of = contenders.iter().filter(|c| c.library == library);
            of.filter_map(|c| c.median(case)).min()
        };
        // Ours by the runtime that the program uses.
        let ours = contenders[2].median(case).ok_or("decanus was not measured")?;
        let floor = best("reqwest").ok_or("reqwest was not measured")?;
        let limit = if case == 0 {
            Target::None
        } else {
            Target::RatioAtMost(1.1)
        };
        rows.push(Row::new(
            format!("{what} : reqwest"),
            limit,
            Measure::Time(ours),
            Measure::Time(floor),
        ));
        for contender in &contenders {
            let name = format!("{what} : {} ({})", contender.library, contender.runtime);
            match contender.median(case) {
                _ if contender.library == "decanus" && contender.runtime == "current" => {}
                Some(time) => {
                    let peer = !["reqwest", "decanus"].contains(&contender.library);
                    let target = if peer { Target::AtMost } else { Target::None };
                    rows.push(Row::new(name, target, Measure::Time(ours), Measure::Time(time)));
                }
                None => rows.push(Row::not_measured(name, Target::AtMost, contender.missing.clone())),
            }
        }
    }
    rows.push(memory);
    Ok(rows)
}

/// Somebody who makes the calls.
struct Contender {
    library: &'static str,
    runtime: &'static str,
    /// A program that makes them and prints the times; in this process when there is none.
    command: Option<Vec<String>>,
    url: String,
    times: Times,
    missing: String,
}

impl Contender {
    fn here(library: &'static str, runtime: &'static str, url: &str) -> Self {
        Self {
            library,
            runtime,
            command: None,
            url: url.into(),
            times: Times::default(),
            missing: String::new(),
        }
    }

    fn program(library: &'static str, runtime: &'static str, program: &Path, url: &str) -> Self {
        let mut contender = Self::here(library, runtime, url);
        if !program.is_file() {
            contender.missing = "bench/peers is not built".into();
        }
        contender.command = Some(vec![program.display().to_string(), library.into(), runtime.into()]);
        contender
    }

    fn python(library: &'static str, python: &Path, url: &str) -> Self {
        let mut contender = Self::here(library, "Python", url);
        if !python.is_file() {
            contender.missing = "there is no Python with it".into();
        }
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("peers/peers.py");
        contender.command = Some(vec![
            python.display().to_string(),
            script.display().to_string(),
            library.into(),
        ]);
        contender
    }

    fn median(&self, case: usize) -> Option<Duration> {
        let mut times = self.times[case].clone();
        (!times.is_empty()).then(|| median(&mut times))
    }

    /// Measures all cases once more.
    fn turn(&mut self) -> Result<(), Failed> {
        if !self.missing.is_empty() {
            return Ok(());
        }
        let python = self.runtime == "Python";
        // Each takes about a second.
        let (whole, streams, many) = if python { (200, 3, 2) } else { (1000, 15, 15) };
        let times = match &self.command {
            None => {
                let mut builder = match self.runtime {
                    "current" => Builder::new_current_thread(),
                    _ => Builder::new_multi_thread(),
                };
                let runtime = builder.enable_all().build()?;
                match self.library {
                    "reqwest" => floor(&runtime, &self.url, whole, streams, many)?,
                    _ => ours(&runtime, &self.url, whole, streams, many)?,
                }
            }
            Some(command) => {
                let mut program = Command::new(&command[0]);
                program.args(&command[1..]).arg(&self.url);
                program.args([whole, streams, many].map(|n| n.to_string()));
                let output = program.stdin(Stdio::null()).stderr(Stdio::inherit()).output()?;
                if !output.status.success() {
                    return Err(format!("{} ended with {}", self.library, output.status).into());
                }
                let times: [Vec<u64>; 3] = serde_json::from_slice(&output.stdout)?;
                times.map(|list| list.into_iter().map(Duration::from_nanos).collect())
            }
        };
        for (all, new) in self.times.iter_mut().zip(times) {
            all.extend(new);
        }
        Ok(())
    }
}

/// Runs one after the other: each case so many times and a little before that.
async fn cases<W: AsyncFn() -> Result<usize, Failed>, S: AsyncFn() -> Result<usize, Failed>>(
    whole: W,
    stream: S,
    counts: [usize; 3],
) -> Result<Times, Failed> {
    let mut times = Times::default();
    let some = |length: usize| match length {
        0 => Err(Failed::from("there is no text")),
        _ => Ok(()),
    };
    for (case, count) in counts.into_iter().enumerate() {
        let warm = count.div_ceil(10);
        for n in 0..count + warm {
            let start = Instant::now();
            match case {
                0 => some(whole().await?)?,
                1 => some(stream().await?)?,
                _ => {
                    for length in join_all((0..MANY).map(|_| whole())).await {
                        some(length?)?;
                    }
                }
            }
            if n >= warm {
                times[case].push(start.elapsed());
            }
        }
    }
    Ok(times)
}

fn floor(runtime: &Runtime, url: &str, whole: usize, streams: usize, many: usize) -> Result<Times, Failed> {
    let client = Client::builder()
        .no_proxy()
        .tcp_nodelay(true)
        .tls_certs_only([])
        .build()?;
    let url = format!("{url}/chat/completions");
    let body = |stream: bool| json!({"model": "scripted", "messages": [{"role": "user", "content": QUESTION}], "stream": stream});
    let one = async || {
        let response = client.post(&url).json(&body(false)).send().await?;
        let body: Value = response.error_for_status()?.json().await?;
        Ok(body
            .pointer("/choices/0/message/content")
            .and_then(Value::as_str)
            .map_or(0, str::len))
    };
    let stream = async || {
        let response = client.post(&url).json(&body(true)).send().await?.error_for_status()?;
        let mut text = String::new();
        crate::round::events(response, |event| {
            let piece = event.pointer("/choices/0/delta/content").and_then(Value::as_str);
            text.push_str(piece.unwrap_or_default());
        })
        .await?;
        Ok(text.len())
    };
    runtime.block_on(cases(one, stream, [whole, streams, many]))
}

fn ours(runtime: &Runtime, url: &str, whole: usize, streams: usize, many: usize) -> Result<Times, Failed> {
    let profile = Arc::new(Profile {
        url: url.into(),
        ..Profile::new("bench", "openai", "scripted")
    });
    let registry = BackendRegistry::with_http();
    let backend = registry.get("openai")?;
    let one = async || complete(&*backend, &profile, false).await;
    let stream = async || complete(&*backend, &profile, true).await;
    runtime.block_on(cases(one, stream, [whole, streams, many]))
}

/// A conversation of one question, as the library's user makes it.
async fn complete(backend: &dyn Backend, profile: &Arc<Profile>, stream: bool) -> Result<usize, Failed> {
    let mut conversation = backend.open(profile.clone())?;
    let messages = [Message::user(QUESTION)];
    let view = View {
        messages: &messages,
        tools: &[],
        parameters: &Map::new(),
        tool_choice: None,
    };
    let cx = CallCx {
        cancel: CancellationToken::new(),
        timeout: Duration::from_secs(60),
        stream,
        explain: false,
        pass: None,
        raw: Default::default(),
    };
    let mut collector = Collector::new();
    let mut deltas = conversation.complete(&view, &cx);
    while let Some(delta) = deltas.next().await {
        collector.push(&delta?);
    }
    Ok(collector.finish().text.len())
}

/// The memory of `decanus ask` that is answered by a stream of 50 MB.
fn memory(options: &Options, url: &str) -> Result<Row, Failed> {
    let home = tempfile::tempdir()?;
    let mut command = Command::new(&options.decanus);
    command.args(["ask", "-e", "openai", "-m", "large", QUESTION]);
    command.current_dir(home.path()).env("DECANUS_HOME", home.path());
    command.env("OPENAI_URL", url).env("OPENAI_API_KEY", "none");
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit());
    // The memory of this process, which is small, counts as that of a child which is about to start.
    let mut child = command.spawn()?;
    let mut out = child.stdout.take().ok_or("no output")?;
    let written = std::io::copy(&mut out, &mut std::io::sink())?;
    let status = child.wait()?;
    if !status.success() || written < LARGE as u64 {
        return Err(format!("the large stream gave {written} bytes, and {status}").into());
    }
    let most = getrusage(UsageWho::RUSAGE_CHILDREN)?.max_rss() as f64 / 1024.0;
    Ok(Row::new(
        "resident memory of `decanus ask` for a stream of 50 MiB : the text",
        Target::RatioAtMost(3.0),
        Measure::Mebibytes(most),
        Measure::Mebibytes(LARGE as f64 / f64::from(1 << 20)),
    ))
}

/// What the server says, made once.
struct Script {
    whole: Vec<u8>,
    pieces: Vec<Vec<u8>>,
}

impl Script {
    fn new() -> Self {
        let body = json!({
            "id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "scripted",
            "choices": [{"index": 0, "message": {"role": "assistant", "content": "21 times 2 is 42."}, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 12, "completion_tokens": 9, "total_tokens": 21},
        })
        .to_string();
        let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n";
        let mut pieces: Vec<Vec<u8>> = (0..PIECES)
            .map(|n| chunk(&event(&json!({"content": format!(" word{n}")}), Value::Null)))
            .collect();
        pieces.push(chunk(&event(&json!({}), json!("stop"))));
        pieces.push(chunk("data: [DONE]\n\n"));
        Self {
            whole: format!("{head}content-length: {}\r\n\r\n{body}", body.len()).into_bytes(),
            pieces,
        }
    }
}

fn event(delta: &Value, reason: Value) -> String {
    let event = json!({
        "id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "scripted",
        "choices": [{"index": 0, "delta": delta, "finish_reason": reason}],
    });
    format!("data: {event}\n\n")
}

fn chunk(text: &str) -> Vec<u8> {
    let mut out = format!("{:x}\r\n", text.len()).into_bytes();
    let _ = write!(out, "{text}\r\n");
    out
}

/// Serves for as long as the process lives. The base URL.
fn serve() -> Result<String, Failed> {
    let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
    listener.set_nonblocking(true)?;
    let url = format!("http://{}/v1", listener.local_addr()?);
    let runtime = Builder::new_current_thread().enable_all().build()?;
    std::thread::spawn(move || {
        runtime.block_on(async {
            let script = Arc::new(Script::new());
            let Ok(listener) = TcpListener::from_std(listener) else {
                return;
            };
            while let Ok((connection, _)) = listener.accept().await {
                let script = script.clone();
                tokio::spawn(async move {
                    // Who hangs up has what it wanted.
                    let _ = answer(connection, &script).await;
                });
            }
        });
    });
    Ok(url)
}

async fn answer(mut connection: TcpStream, script: &Script) -> std::io::Result<()> {
    connection.set_nodelay(true)?;
    let mut buffer = Vec::new();
    loop {
        let Some(end) = request(&buffer) else {
            if connection.read_buf(&mut buffer).await? == 0 {
                return Ok(());
            }
            continue;
        };
        let body: Vec<u8> = buffer.drain(..end).collect();
        let has = |part: &[u8]| body.windows(part.len()).any(|w| w == part);
        if !has(b"\"stream\":true") && !has(b"\"stream\": true") {
            connection.write_all(&script.whole).await?;
            continue;
        }
        let head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
        connection.write_all(head).await?;
        let mut pieces = &script.pieces[..];
        if has(b"\"large\"") {
            let piece = chunk(&event(&json!({"content": "0123456789abcde ".repeat(64)}), Value::Null));
            for _ in 0..LARGE / 1024 {
                connection.write_all(&piece).await?;
            }
            pieces = &pieces[PIECES..];
        }
        // One write each, as a model's words come.
        for piece in pieces {
            connection.write_all(piece).await?;
        }
        connection.write_all(b"0\r\n\r\n").await?;
    }
}

/// Where the first request of a buffer ends, if it is whole.
fn request(buffer: &[u8]) -> Option<usize> {
    let head = buffer.windows(4).position(|w| w == b"\r\n\r\n")? + 4;
    let text = std::str::from_utf8(&buffer[..head]).ok()?;
    let length = text.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length")
            .then(|| value.trim().parse::<usize>().ok())?
    });
    let end = head + length.unwrap_or(0);
    (buffer.len() >= end).then_some(end)
}
