//! The calls of `bench/run peers`, made by rig-core and genai: `decanus-bench-peers LIBRARY RUNTIME URL WHOLE STREAMS MANY`
//! prints the times in nanoseconds of one call, of one stream and of a batch of calls side by side, as JSON lists.
//! `decanus-bench-peers tools LIBRARY CALLS TIMES` makes calls of a tool that does nothing, for `bench/run tools`.
#![allow(clippy::print_stdout, clippy::print_stderr)]

mod tools;

use std::time::Instant;

use futures::StreamExt;
use futures::future::{BoxFuture, join_all};
use genai::adapter::AdapterKind;
use genai::chat::{ChatMessage, ChatRequest, ChatStreamEvent};
use genai::resolver::{AuthData, Endpoint, ServiceTargetResolver};
use genai::{ModelIden, ServiceTarget};
use rig_core::completion::CompletionRequest;
use rig_core::providers::openai::{OpenAI, OpenAIConfig};
use rig_core::streaming::{Item, StreamEvent};

type Failed = Box<dyn std::error::Error + Send + Sync>;

const QUESTION: &str = "What is 21 times 2?";

/// One call by a library: how many characters of text came.
trait Peer: Sync {
    fn whole(&self) -> BoxFuture<'_, Result<usize, Failed>>;
    fn stream(&self) -> BoxFuture<'_, Result<usize, Failed>>;
}

struct Genai(genai::Client);

impl Genai {
    fn new(url: &str) -> Result<Self, Failed> {
        let url = format!("{url}/");
        let resolver = ServiceTargetResolver::from_resolver_fn(
            move |target: ServiceTarget| -> Result<ServiceTarget, genai::resolver::Error> {
                Ok(ServiceTarget {
                    endpoint: Endpoint::from_owned(url.clone()),
                    auth: AuthData::from_single("none"),
                    model: ModelIden::new(AdapterKind::OpenAI, target.model.model_name),
                })
            },
        );
        Ok(Self(
            genai::Client::builder()
                .with_service_target_resolver(resolver)
                .build()?,
        ))
    }
}

impl Peer for Genai {
    fn whole(&self) -> BoxFuture<'_, Result<usize, Failed>> {
        Box::pin(async {
            let request = ChatRequest::default().append_message(ChatMessage::user(QUESTION));
            let answer = self.0.exec_chat("scripted", request, None).await?;
            Ok(answer.first_text().map_or(0, str::len))
        })
    }

    fn stream(&self) -> BoxFuture<'_, Result<usize, Failed>> {
        Box::pin(async {
            let request = ChatRequest::default().append_message(ChatMessage::user(QUESTION));
            let mut events = self.0.exec_chat_stream("scripted", request, None).await?.stream;
            let mut length = 0;
            while let Some(event) = events.next().await {
                if let ChatStreamEvent::Chunk(chunk) = event? {
                    length += chunk.content.len();
                }
            }
            Ok(length)
        })
    }
}

struct Rig(OpenAI);

impl Rig {
    fn new(url: &str) -> Result<Self, Failed> {
        let config = OpenAIConfig::new("none").with_base_url(url);
        Ok(Self(config.client()))
    }
}

impl Peer for Rig {
    fn whole(&self) -> BoxFuture<'_, Result<usize, Failed>> {
        Box::pin(async {
            let answer = self.0.chat("scripted").call(CompletionRequest::new(QUESTION)).await?;
            Ok(answer.text().len())
        })
    }

    fn stream(&self) -> BoxFuture<'_, Result<usize, Failed>> {
        Box::pin(async {
            let mut events = self.0.chat("scripted").stream(CompletionRequest::new(QUESTION))?;
            let mut length = 0;
            while let Some(event) = events.next().await {
                if let Item::Event(StreamEvent::Text { text, .. }) = event? {
                    length += text.len();
                }
            }
            Ok(length)
        })
    }
}

async fn measure(peer: &dyn Peer, whole: usize, streams: usize, many: usize) -> Result<(), Failed> {
    let mut times = [Vec::new(), Vec::new(), Vec::new()];
    let some = |length: usize| {
        if length == 0 {
            Err(Failed::from("there is no text"))
        } else {
            Ok(())
        }
    };
    for n in 0..whole + whole / 10 {
        let start = Instant::now();
        some(peer.whole().await?)?;
        if n >= whole / 10 {
            times[0].push(start.elapsed().as_nanos());
        }
    }
    for n in 0..=streams {
        let start = Instant::now();
        some(peer.stream().await?)?;
        if n > 0 {
            times[1].push(start.elapsed().as_nanos());
        }
    }
    for n in 0..=many {
        let start = Instant::now();
        for length in join_all((0..200).map(|_| peer.whole())).await {
            some(length?)?;
        }
        if n > 0 {
            times[2].push(start.elapsed().as_nanos());
        }
    }
    println!("{}", serde_json::json!(times));
    Ok(())
}

fn main() -> Result<(), Failed> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [part, library, calls, times] = &arguments[..]
        && part == "tools"
    {
        return tools::measure(library, calls.parse()?, times.parse()?);
    }
    let [library, runtime, url, whole, streams, many] = &arguments[..] else {
        return Err("decanus-bench-peers LIBRARY RUNTIME URL WHOLE STREAMS MANY".into());
    };
    let peer: Box<dyn Peer> = match library.as_str() {
        "genai" => Box::new(Genai::new(url)?),
        "rig" => Box::new(Rig::new(url)?),
        other => return Err(format!("no library is called {other}").into()),
    };
    let runtime = match runtime.as_str() {
        "current" => tokio::runtime::Builder::new_current_thread().enable_all().build()?,
        _ => tokio::runtime::Builder::new_multi_thread().enable_all().build()?,
    };
    runtime.block_on(measure(&*peer, whole.parse()?, streams.parse()?, many.parse()?))
}
