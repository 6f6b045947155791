//! An LLM server that answers what it is told to, piece by piece, and remembers what it was asked.
//!
//! It runs on a thread of its own, so tests need no runtime. HTTP/1.1 is written by hand: a library would mend the
//! broken answers that tests need.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use crate::reply::{Framing, Piece, Reply};

/// A request that came in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recorded {
    /// `POST`, …
    pub method: String,
    /// Path and query.
    pub path: String,
    /// Headers, their names in lower case.
    pub headers: Vec<(String, String)>,
    /// The body.
    pub body: Vec<u8>,
}

impl Recorded {
    /// A header's value.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(n, _)| n == name).map(|(_, v)| v.as_str())
    }

    /// The body as JSON; null when it is none.
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or(Value::Null)
    }

    /// The body as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

type Answer = Box<dyn Fn(&Recorded) -> Reply + Send>;
type Check = Box<dyn Fn(&Recorded) -> Result<(), String> + Send>;

/// An answer, and what the request for it must be.
pub struct Step {
    reply: Reply,
    checks: Vec<Check>,
}

impl From<Reply> for Step {
    fn from(reply: Reply) -> Self {
        Self {
            reply,
            checks: Vec::new(),
        }
    }
}

impl Reply {
    /// This answer for a request that a closure accepts.
    pub fn expecting(self, check: impl Fn(&Recorded) -> Result<(), String> + Send + 'static) -> Step {
        Step::from(self).expecting(check)
    }

    /// This answer for a request whose body contains this JSON (see [`contains`]).
    pub fn expecting_json(self, part: Value) -> Step {
        self.expecting(move |request| contains(&request.json(), &part, "body"))
    }
}

impl Step {
    /// Adds a check.
    #[must_use]
    pub fn expecting(mut self, check: impl Fn(&Recorded) -> Result<(), String> + Send + 'static) -> Self {
        self.checks.push(Box::new(check));
        self
    }
}

/// Whether a value has all members of another one; lists must be of equal length.
///
/// # Errors
/// The first difference, with the way to it.
pub fn contains(value: &Value, part: &Value, at: &str) -> Result<(), String> {
    match (value, part) {
        (Value::Object(value), Value::Object(part)) => part.iter().try_for_each(|(name, part)| {
            let at = format!("{at}.{name}");
            value
                .get(name)
                .ok_or_else(|| format!("{at} is missing"))
                .and_then(|v| contains(v, part, &at))
        }),
        (Value::Array(value), Value::Array(part)) if value.len() == part.len() => value
            .iter()
            .zip(part)
            .enumerate()
            .try_for_each(|(i, (v, p))| contains(v, p, &format!("{at}[{i}]"))),
        _ if value == part => Ok(()),
        _ => Err(format!("{at} is {value}, expected {part}")),
    }
}

#[derive(Default)]
struct State {
    script: VecDeque<Step>,
    answer: Option<Answer>,
    requests: Vec<Recorded>,
    faults: Vec<String>,
}

/// The server. It listens on the loopback address only and ends when it is dropped, which panics when a request was not
/// what it should be (unless [`ScriptedServer::verify`] or [`ScriptedServer::faults`] has been asked).
pub struct ScriptedServer {
    address: SocketAddr,
    state: Arc<Mutex<State>>,
    stop: watch::Sender<bool>,
    thread: Option<std::thread::JoinHandle<()>>,
    asked: bool,
}

impl ScriptedServer {
    /// Serves these answers in order; after them every request is a fault and gets status 500.
    pub fn start<S: Into<Step>>(script: impl IntoIterator<Item = S>) -> Self {
        Self::run(State {
            script: script.into_iter().map(Into::into).collect(),
            ..State::default()
        })
    }

    /// Serves the same answer for ever.
    pub fn always(reply: Reply) -> Self {
        Self::with(move |_| reply.clone())
    }

    /// Serves what a closure says. The first thousand requests are remembered.
    pub fn with(answer: impl Fn(&Recorded) -> Reply + Send + 'static) -> Self {
        Self::run(State {
            answer: Some(Box::new(answer)),
            ..State::default()
        })
    }

    fn run(state: State) -> Self {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a loopback port");
        listener.set_nonblocking(true).expect("a non-blocking listener");
        let address = listener.local_addr().expect("an address");
        let state = Arc::new(Mutex::new(state));
        let (stop, stopped) = watch::channel(false);
        let shared = state.clone();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .expect("a runtime");
            // Connections end with the runtime.
            runtime.block_on(accept(listener, shared, stopped));
        });
        Self {
            address,
            state,
            stop,
            thread: Some(thread),
            asked: false,
        }
    }

    /// The base of an OpenAI endpoint: `http://127.0.0.1:PORT/v1`.
    pub fn url(&self) -> String {
        format!("http://{}/v1", self.address)
    }

    /// The address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The requests so far.
    pub fn requests(&self) -> Vec<Recorded> {
        lock(&self.state).requests.clone()
    }

    /// What was wrong with the requests so far.
    pub fn faults(&mut self) -> Vec<String> {
        self.asked = true;
        lock(&self.state).faults.clone()
    }

    /// Checks that every request was what it should be and that the script was used up.
    ///
    /// # Panics
    /// When it was not.
    pub fn verify(mut self) {
        let mut faults = self.faults();
        let left = lock(&self.state).script.len();
        if left > 0 {
            faults.push(format!("{left} answers of the script were not asked for"));
        }
        assert!(
            faults.is_empty(),
            "the scripted server was not asked what it should be:\n{}",
            faults.join("\n")
        );
    }
}

impl Drop for ScriptedServer {
    fn drop(&mut self) {
        let _ = self.stop.send(true);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        let faults = std::mem::take(&mut lock(&self.state).faults);
        if !self.asked && !faults.is_empty() && !std::thread::panicking() {
            panic!(
                "the scripted server was not asked what it should be:\n{}",
                faults.join("\n")
            );
        }
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn accept(listener: std::net::TcpListener, state: Arc<Mutex<State>>, mut stopped: watch::Receiver<bool>) {
    let listener = TcpListener::from_std(listener).expect("a listener");
    loop {
        tokio::select! {
            _ = stopped.changed() => return,
            Ok((stream, _)) = listener.accept() => {
                let state = state.clone();
                // A client that goes away in the middle is part of many tests.
                tokio::spawn(async move { drop(serve(stream, &state).await) });
            }
        }
    }
}

async fn serve(mut stream: TcpStream, state: &Mutex<State>) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let mut buffer = Vec::new();
    while let Some(request) = read_request(&mut stream, &mut buffer).await? {
        let reply = answer(state, request);
        if !write_reply(&mut stream, &reply).await? {
            return Ok(());
        }
    }
    Ok(())
}

fn answer(state: &Mutex<State>, request: Recorded) -> Reply {
    let mut state = lock(state);
    if let Some(answer) = &state.answer {
        let reply = answer(&request);
        // It may run for ever: the first requests are enough.
        if state.requests.len() < 1000 {
            state.requests.push(request);
        }
        return reply;
    }
    let number = state.requests.len() + 1;
    let reply = match state.script.pop_front() {
        Some(step) => {
            let faults = step.checks.iter().filter_map(|check| check(&request).err());
            let faults: Vec<_> = faults.map(|fault| format!("request {number}: {fault}")).collect();
            state.faults.extend(faults);
            step.reply
        }
        None => {
            state.faults.push(format!(
                "request {number}: {} {}: the script is over",
                request.method, request.path
            ));
            Reply::json(
                500,
                &json!({"error": {"message": "the script is over", "type": "script"}}),
            )
        }
    };
    state.requests.push(request);
    reply
}

async fn read_request(stream: &mut TcpStream, buffer: &mut Vec<u8>) -> std::io::Result<Option<Recorded>> {
    loop {
        let mut headers = [httparse::EMPTY_HEADER; 64];
        let mut parsed = httparse::Request::new(&mut headers);
        let bad = |e: httparse::Error| std::io::Error::new(std::io::ErrorKind::InvalidData, e);
        if let httparse::Status::Complete(head) = parsed.parse(buffer).map_err(bad)? {
            let text = |value: &[u8]| String::from_utf8_lossy(value).into_owned();
            let headers: Vec<_> = parsed
                .headers
                .iter()
                .map(|h| (h.name.to_lowercase(), text(h.value)))
                .collect();
            let (method, path) = (
                parsed.method.unwrap_or("").to_owned(),
                parsed.path.unwrap_or("").to_owned(),
            );
            let length = headers
                .iter()
                .find(|(n, _)| n == "content-length")
                .and_then(|(_, v)| v.parse().ok());
            let end = head + length.unwrap_or(0);
            while buffer.len() < end {
                if stream.read_buf(buffer).await? == 0 {
                    return Ok(None);
                }
            }
            let body = buffer[head..end].to_vec();
            buffer.drain(..end);
            return Ok(Some(Recorded {
                method,
                path,
                headers,
                body,
            }));
        }
        if stream.read_buf(buffer).await? == 0 {
            return Ok(None);
        }
    }
}

/// Writes an answer; false when the connection is to be closed.
async fn write_reply(stream: &mut TcpStream, reply: &Reply) -> std::io::Result<bool> {
    match &reply.delay {
        Some(Piece::Wait(time)) => tokio::time::sleep(*time).await,
        Some(Piece::Hang) => std::future::pending().await,
        Some(Piece::Close) => return Ok(false),
        _ => {}
    }
    let mut head = format!("HTTP/1.1 {} Scripted\r\n", reply.status);
    for (name, value) in &reply.headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    match reply.framing {
        Framing::Length => {
            let bytes = reply
                .pieces
                .iter()
                .map(|p| if let Piece::Bytes(b) = p { b.len() } else { 0 });
            head.push_str(&format!("content-length: {}\r\n", bytes.sum::<usize>()));
        }
        Framing::Chunked => head.push_str("transfer-encoding: chunked\r\n"),
        Framing::UntilClose => head.push_str("connection: close\r\n"),
    }
    head.push_str("\r\n");
    // Head and first piece go out together: a fast server does the same.
    let mut out = head.into_bytes();
    for piece in &reply.pieces {
        match piece {
            Piece::Bytes(bytes) if bytes.is_empty() => {}
            Piece::Bytes(bytes) => {
                if reply.framing == Framing::Chunked {
                    out.extend_from_slice(format!("{:x}\r\n", bytes.len()).as_bytes());
                    out.extend_from_slice(bytes);
                    out.extend_from_slice(b"\r\n");
                } else {
                    out.extend_from_slice(bytes);
                }
                stream.write_all(&std::mem::take(&mut out)).await?;
            }
            Piece::Wait(time) => {
                stream.write_all(&std::mem::take(&mut out)).await?;
                tokio::time::sleep(*time).await;
            }
            Piece::Close => {
                stream.write_all(&out).await?;
                return Ok(false);
            }
            Piece::Hang => {
                stream.write_all(&out).await?;
                std::future::pending::<()>().await;
            }
        }
    }
    if reply.framing == Framing::Chunked {
        out.extend_from_slice(b"0\r\n\r\n");
    }
    stream.write_all(&out).await?;
    Ok(reply.framing != Framing::UntilClose)
}
