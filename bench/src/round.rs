//! What the loop costs over the same exchange by plain reqwest: the same bodies, sent to the same server, in the same
//! process. The floor does what nobody can do without: it writes the request as JSON, sends it and reads the JSON of the
//! answer; of a stream, that of every event.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use decanus::agent::{Agent, Request};
use decanus::backend::{BackendRegistry, Profile};
use decanus::builtin::Builtins;
use decanus::chat::{ChatFile, MemoryTranscript, Message, Meta, StoreError, Transcript, Version};
use decanus::tool::{Run, ToolRegistry, ToolSource};
use decanus_testkit::{Reply, ScriptedServer};
use reqwest::{Client, Response};
use serde_json::{Value, json};

use crate::table::{Measure, Row, Target, median};
use crate::{Failed, Options};

/// What one row of the table is about.
#[derive(Clone, Copy)]
struct Case {
    stream: bool,
    /// The model calls a tool first, so that there are two requests.
    call: bool,
    /// Everything is written to a chat file.
    chat: bool,
}

impl Case {
    fn name(self) -> String {
        let what = if self.call {
            "question, call, result, answer"
        } else {
            "question, answer"
        };
        let stream = if self.stream { "stream" } else { "whole body" };
        let (chat, floor) = if self.chat {
            (", chat file", "reqwest + fdatasync")
        } else {
            ("", "reqwest")
        };
        format!("{what} ({stream}{chat}) : {floor}")
    }

    /// The target is for one round. With a call there is a tool to run, which the floor does not do.
    fn target(self) -> Target {
        if self.call {
            Target::None
        } else {
            Target::RatioAtMost(1.5)
        }
    }
}

/// All cases, each against its floor, in turns.
pub fn measure(options: &Options) -> Result<Vec<Row>, Failed> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    // Not in memory, where fdatasync does nothing.
    let folder = tempfile::tempdir_in(&options.scratch)?;
    let mut rows = Vec::new();
    for chat in [false, true] {
        for call in [false, true] {
            for stream in [false, true] {
                let case = Case { stream, call, chat };
                if !case.name().contains(&options.only) {
                    continue;
                }
                let rounds = if chat { options.rounds / 4 } else { options.rounds };
                let (ours, reference) = runtime.block_on(one(case, rounds, folder.path()))?;
                rows.push(Row::new(
                    case.name(),
                    case.target(),
                    Measure::Time(ours),
                    Measure::Time(reference),
                ));
            }
        }
    }
    Ok(rows)
}

async fn one(case: Case, rounds: usize, folder: &Path) -> Result<(Duration, Duration), Failed> {
    let server = server(case);
    let sources: [Arc<dyn ToolSource>; 1] = [Arc::new(Builtins::default())];
    let registry = ToolRegistry::resolve(&sources, ["calculator", "current_time", "echo"]).await?;
    let profile = Profile {
        url: server.url(),
        ..Profile::new("bench", "openai", "scripted")
    };
    let url = format!("{}/chat/completions", server.url());
    let conversation = BackendRegistry::with_http().get("openai")?.open(Arc::new(profile))?;
    let mut agent = Agent::new(conversation, Arc::new(registry), "scripted");
    let path = folder.join(format!("{}{}.chat", case.stream, case.call));
    let mut store = Store {
        sizes: Vec::new(),
        inner: if case.chat {
            Box::new(ChatFile::open(&path, Duration::ZERO, &|| false)?.0)
        } else {
            Box::new(MemoryTranscript::default())
        },
    };

    // The first round tells what the floor has to send and to write.
    ask(&mut agent, case, &mut store, folder).await?;
    let bodies: Vec<Value> = server.requests().iter().map(|r| r.json()).collect();
    let sizes = if case.chat { store.sizes.clone() } else { Vec::new() };
    let client = Client::builder()
        .no_proxy()
        .tcp_nodelay(true)
        .tls_certs_only([])
        .build()?;
    let mut floor = Floor {
        stream: case.stream,
        client,
        url,
        bodies,
        writes: sizes.iter().map(|size| vec![b'x'; *size]).collect(),
        file: OpenOptions::new()
            .create(true)
            .append(true)
            .open(path.with_extension("floor"))?,
    };

    let (mut ours, mut reference) = (Vec::new(), Vec::new());
    let warm = rounds / 10;
    for round in 0..rounds + warm {
        let start = Instant::now();
        ask(&mut agent, case, &mut store, folder).await?;
        let middle = Instant::now();
        floor.run().await?;
        if round >= warm {
            ours.push(middle - start);
            reference.push(middle.elapsed());
        }
    }
    Ok((median(&mut ours), median(&mut reference)))
}

/// A server that answers at once, one event a word in a stream.
fn server(case: Case) -> ScriptedServer {
    let calls = [(
        "call_1",
        "calculator",
        json!({"operand1": 21, "operation": "multiply", "operand2": 2}),
    )];
    let (call, answer) = if case.stream {
        let words = ["21", " times", " 2", " is", " 42", "."];
        (Reply::chat_call_stream(&calls), Reply::chat_stream(&words))
    } else {
        (Reply::chat_calls(&calls), Reply::chat_text("21 times 2 is 42."))
    };
    ScriptedServer::with(move |request| {
        // Cheaper than reading the JSON, and the same for both sides.
        let has_result = request.body.windows(11).any(|w| w == b"\"role\":\"too");
        if case.call && !has_result {
            call.clone()
        } else {
            answer.clone()
        }
    })
}

async fn ask(agent: &mut Agent, case: Case, store: &mut Store, folder: &Path) -> Result<(), Failed> {
    let request = Request {
        messages: vec![
            Message::system("You answer in one sentence and use the tools that you have."),
            Message::user("Good morning."),
            Message::assistant("Good morning. What can I do?"),
        ],
        question: Some("What is 21 times 2?".into()),
        stream: case.stream,
        ..Request::default()
    };
    let run = Run::builder(folder).build();
    let outcome = agent.run(request, store, &run).await;
    match outcome.error {
        None if outcome.answer == "21 times 2 is 42." => Ok(()),
        None => Err(format!("the answer was `{}`", outcome.answer).into()),
        Some(error) => Err(error.into()),
    }
}

/// A transcript that knows how many bytes each step took.
struct Store {
    inner: Box<dyn Transcript>,
    sizes: Vec<usize>,
}

impl Transcript for Store {
    fn append(&mut self, meta: &Meta, step: &[Message], expect: Version) -> Result<Version, StoreError> {
        let version = self.inner.append(meta, step, expect)?;
        // Only the first round is of interest.
        if self.sizes.len() < 8 {
            self.sizes.push(usize::try_from(version.0 - expect.0).unwrap_or(0));
        }
        Ok(version)
    }

    fn version(&self) -> Version {
        self.inner.version()
    }
}

/// The least that has to be done: the bodies are sent, the answers read, the bytes written and synced.
struct Floor {
    stream: bool,
    client: Client,
    url: String,
    bodies: Vec<Value>,
    writes: Vec<Vec<u8>>,
    file: File,
}

impl Floor {
    async fn run(&mut self) -> Result<(), Failed> {
        let mut writes = self.writes.iter();
        for (n, body) in self.bodies.iter().enumerate() {
            // The question before the first request; calls and their results before the next one.
            for bytes in writes.by_ref().take(if n == 0 { 1 } else { 2 }) {
                write(&mut self.file, bytes)?;
            }
            let response = self
                .client
                .post(&self.url)
                .json(body)
                .send()
                .await?
                .error_for_status()?;
            if self.stream {
                events(response, |_| {}).await?;
            } else {
                response.json::<Value>().await?;
            }
        }
        for bytes in writes {
            write(&mut self.file, bytes)?;
        }
        Ok(())
    }
}

/// Reads a stream of server-sent events, as simply as can be.
pub async fn events(mut response: Response, mut each: impl FnMut(Value)) -> Result<(), Failed> {
    let mut buffer = Vec::new();
    while let Some(chunk) = response.chunk().await? {
        buffer.extend_from_slice(&chunk);
        while let Some(end) = buffer.windows(2).position(|w| w == b"\n\n") {
            let data = buffer[..end].strip_prefix(b"data: ").unwrap_or_default();
            if data != b"[DONE]" {
                each(serde_json::from_slice(data)?);
            }
            buffer.drain(..end + 2);
        }
    }
    Ok(())
}

fn write(file: &mut File, bytes: &[u8]) -> std::io::Result<()> {
    file.write_all(bytes)?;
    file.sync_data()
}
