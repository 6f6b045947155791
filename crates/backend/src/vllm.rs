//! vLLM: OpenAI's protocols, with what its parsers leave in the answers taken out.
//!
//! Two things go wrong when a model is served with the wrong parser, or with none: marks of the model's own format
//! stay in a tool's name, and calls come as text. The first is cut off. The second is taken for calls only when it can
//! be nothing else: the whole text is calls, complete, of tools on offer.

use std::sync::Arc;

use decanus_base::Secret;
use decanus_chat::ToolDefinition;
use serde_json::{Map, Value};

use crate::client::Clients;
use crate::conversation::{Backend, Conversation, Delta, FinishReason};
use crate::dialect::{Dialect, Fault, Request, StreamDecoder};
use crate::embed::{Embedder, EmbeddingApi};
use crate::error::BackendError;
use crate::http::HttpBackend;
use crate::openai::OpenAi;
use crate::profile::{Api, Profile};
use crate::responses::Responses;
use crate::retry::Backoff;
use crate::sse::Event;
use crate::tool_names::ToolNames;
use crate::turns::Turn;

/// The backend: an endpoint's `api` chooses between Responses and Chat Completions.
#[derive(Debug)]
pub struct VllmBackend {
    responses: HttpBackend<Vllm<Responses>>,
    chat: HttpBackend<Vllm<OpenAi>>,
}

impl VllmBackend {
    /// A backend whose connections are shared with all others that were given the same clients.
    pub fn new(clients: Clients) -> Self {
        Self {
            responses: HttpBackend::new(Vllm(Responses::of_vllm()), clients.clone()),
            chat: HttpBackend::new(Vllm(OpenAi::under("vllm", "")), clients),
        }
    }

    /// Waits differently between tries.
    #[must_use]
    pub fn with_backoff(self, backoff: Backoff) -> Self {
        Self {
            responses: self.responses.with_backoff(backoff),
            chat: self.chat.with_backoff(backoff),
        }
    }
}

impl Backend for VllmBackend {
    fn name(&self) -> &str {
        "vllm"
    }

    fn embedder(&self, profile: Arc<Profile>) -> Result<Box<dyn Embedder>, BackendError> {
        self.chat.embedder(profile)
    }

    fn open(&self, profile: Arc<Profile>) -> Result<Box<dyn Conversation>, BackendError> {
        match profile.api {
            Some(Api::Chat) => self.chat.open(profile),
            Some(Api::Responses) | None => self.responses.open(profile),
        }
    }
}

/// A dialect as vLLM speaks it.
#[derive(Debug, Clone, Copy)]
struct Vllm<D>(D);

impl<D: Dialect> Dialect for Vllm<D> {
    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn path(&self, profile: &Profile, stream: bool) -> String {
        self.0.path(profile, stream)
    }

    fn embeddings(&self) -> Option<EmbeddingApi> {
        self.0.embeddings()
    }

    fn key_header(&self, key: &Secret) -> (&'static str, Secret) {
        self.0.key_header(key)
    }

    fn missing_key(&self, url: &str) -> Option<String> {
        self.0.missing_key(url)
    }

    fn head(
        &self,
        profile: &Profile,
        tools: &[ToolDefinition],
        names: &ToolNames,
        out: &mut Vec<u8>,
    ) -> Result<(), Fault> {
        self.0.head(profile, tools, names, out)
    }

    fn turn(&self, turn: &Turn, names: &ToolNames, first: bool, out: &mut Vec<u8>) {
        self.0.turn(turn, names, first, out);
    }

    fn tail(&self, request: &Request<'_>, out: &mut Vec<u8>) -> Result<(), Fault> {
        self.0.tail(request, out)
    }

    fn threads(&self, profile: &Profile, parameters: &Map<String, Value>) -> bool {
        self.0.threads(profile, parameters)
    }

    fn decode(&self, body: &[u8]) -> Result<Vec<Delta>, Fault> {
        self.0.decode(body)
    }

    fn refusal(&self, status: u16, body: &[u8]) -> Fault {
        self.0.refusal(status, body)
    }

    fn decoder(&self) -> Box<dyn StreamDecoder> {
        self.0.decoder()
    }

    fn thinks_in_text(&self) -> bool {
        self.0.thinks_in_text()
    }

    fn instruction(&self, request: &Request<'_>) -> Option<String> {
        self.0.instruction(request)
    }

    fn decode_for(&self, body: &[u8], offered: &Arc<ToolNames>) -> Result<Vec<Delta>, Fault> {
        let mut out = Vec::new();
        let mut mender = Mender::new(offered.clone());
        for delta in self.0.decode_for(body, offered)? {
            mender.push(delta, &mut out);
        }
        Ok(out)
    }

    fn decoder_for(&self, offered: &Arc<ToolNames>) -> Box<dyn StreamDecoder> {
        Box::new(MendingDecoder {
            inner: self.0.decoder_for(offered),
            mender: Mender::new(offered.clone()),
        })
    }
}

struct MendingDecoder {
    inner: Box<dyn StreamDecoder>,
    mender: Mender,
}

impl MendingDecoder {
    fn mend<T>(&mut self, said: Vec<Delta>, result: Result<T, Fault>, out: &mut Vec<Delta>) -> Result<T, Fault> {
        for delta in said {
            self.mender.push(delta, out);
        }
        if result.is_err() {
            self.mender.release(out);
        }
        result
    }
}

impl StreamDecoder for MendingDecoder {
    fn event(&mut self, event: &Event, out: &mut Vec<Delta>) -> Result<bool, Fault> {
        let mut said = Vec::new();
        let result = self.inner.event(event, &mut said);
        self.mend(said, result, out)
    }

    fn is_complete(&self) -> bool {
        self.inner.is_complete()
    }

    fn end(&mut self, out: &mut Vec<Delta>) -> Result<(), Fault> {
        let mut said = Vec::new();
        let result = self.inner.end(&mut said);
        self.mend(said, result, out)
    }
}

/// Where printed calls begin.
const TAG: &str = "<tool_call>";
const TAG_END: &str = "</tool_call>";
const LIST: &str = "[TOOL_CALLS]";

/// Mends the deltas of one answer.
struct Mender {
    offered: Arc<ToolNames>,
    /// The text so far, while it may still be nothing but calls.
    held: Option<String>,
}

impl Mender {
    fn new(offered: Arc<ToolNames>) -> Self {
        let held = (!offered.is_empty()).then(String::new);
        Self { offered, held }
    }

    fn push(&mut self, delta: Delta, out: &mut Vec<Delta>) {
        match delta {
            Delta::Text(text) => match &mut self.held {
                Some(held) => {
                    held.push_str(&text);
                    let start = held.trim_start();
                    let may_be = |mark: &str| mark.starts_with(start) || start.starts_with(mark);
                    if !may_be(TAG) && !may_be(LIST) {
                        self.release(out);
                    }
                }
                None => out.push(Delta::Text(text)),
            },
            Delta::Call {
                index,
                id,
                name,
                arguments,
            } => {
                self.release(out);
                let name = name.map(|name| unmarked(&name, &self.offered).to_owned());
                out.push(Delta::Call {
                    index,
                    id,
                    name,
                    arguments,
                });
            }
            Delta::Finish(reason) => {
                let held = self.held.as_deref().filter(|_| reason == FinishReason::Stop);
                let reason = match held.and_then(|text| printed_calls(text, &self.offered)) {
                    Some(calls) => {
                        self.held = None;
                        out.extend(calls);
                        FinishReason::ToolCalls
                    }
                    None => reason,
                };
                self.release(out);
                out.push(Delta::Finish(reason));
            }
            other => out.push(other),
        }
    }

    /// Gives the text out: it is no call, or not certainly one.
    fn release(&mut self, out: &mut Vec<Delta>) {
        if let Some(text) = self.held.take().filter(|text| !text.is_empty()) {
            out.push(Delta::Text(text));
        }
    }
}

/// A tool's name without the mark of a channel behind it (`temperature<|channel|>commentary`). A name that is on offer
/// is left as it is, and so is one that is no better without.
fn unmarked<'a>(name: &'a str, offered: &ToolNames) -> &'a str {
    let Some(at) = name.find("channel").filter(|_| !offered.is_offered(name)) else {
        return name;
    };
    let is_mark = |c: char| !c.is_alphanumeric();
    let bare = name[..at].trim_end_matches(is_mark);
    let behind = name[at + "channel".len()..].trim_start_matches(is_mark);
    let is_marked = bare.len() < at && behind.len() < name.len() - at - "channel".len() && !behind.is_empty();
    if is_marked && (offered.is_offered(bare) || name.contains("<|channel|>")) {
        bare
    } else {
        name
    }
}

/// The calls that a text consists of; none unless it certainly is nothing else.
fn printed_calls(text: &str, offered: &ToolNames) -> Option<Vec<Delta>> {
    let mut values = Vec::new();
    let mut rest = text.trim();
    if let Some(list) = rest.strip_prefix(LIST) {
        values = serde_json::from_str(list).ok()?;
    } else {
        while !rest.is_empty() {
            rest = rest.strip_prefix(TAG)?;
            let mut json = serde_json::Deserializer::from_str(rest).into_iter::<Value>();
            values.push(json.next()?.ok()?);
            rest = rest[json.byte_offset()..]
                .trim_start()
                .strip_prefix(TAG_END)?
                .trim_start();
        }
    }
    if values.is_empty() {
        return None;
    }
    let calls = values.iter().enumerate().map(|(i, value)| {
        let value = value.as_object()?;
        if !value
            .keys()
            .all(|k| matches!(k.as_str(), "name" | "arguments" | "id" | "type"))
        {
            return None;
        }
        let name = unmarked(value.get("name")?.as_str()?, offered);
        let arguments = value.get("arguments").filter(|a| a.is_object())?;
        offered.is_offered(name).then(|| Delta::Call {
            index: Some(i as u64),
            id: None,
            name: Some(name.to_owned()),
            arguments: arguments.to_string(),
        })
    });
    calls.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offered(names: &[&str]) -> ToolNames {
        let tools: Vec<ToolDefinition> = names
            .iter()
            .map(|n| ToolDefinition {
                name: (*n).to_string(),
                ..Default::default()
            })
            .collect();
        ToolNames::new(&tools, 64)
    }

    #[test]
    fn marks_of_channels_are_cut_off() {
        let names = offered(&["temperature", "slack_channel_list", "slack"]);
        for (name, bare) in [
            ("temperature<|channel|>commentary", "temperature"),
            ("temperature__channel__json", "temperature"),
            ("unknown<|channel|>commentary", "unknown"),
            ("slack_channel_list", "slack_channel_list"),
            ("my_channel_list", "my_channel_list"),
            ("temperature_channel", "temperature_channel"),
            ("<|channel|>", "<|channel|>"),
            ("temperature", "temperature"),
        ] {
            assert_eq!(unmarked(name, &names), bare, "{name}");
        }
    }

    #[test]
    fn only_certain_calls_are_calls() {
        let names = offered(&["f", "g"]);
        let count = |text: &str| printed_calls(text, &names).map_or(0, |calls| calls.len());
        assert_eq!(
            count("<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": 1}}\n</tool_call>\n"),
            1
        );
        assert_eq!(
            count(
                r#"<tool_call>{"name":"f","arguments":{"t":"</tool_call>"}}</tool_call> <tool_call>{"name":"g","arguments":{}}</tool_call>"#
            ),
            2
        );
        assert_eq!(count(r#"[TOOL_CALLS][{"name":"f","arguments":{}}]"#), 1);
        for text in [
            "",
            "<tool_call></tool_call>",
            r#"<tool_call>{"name":"f","arguments":{}}"#,
            r#"<tool_call>{"name":"f","arguments":{}</tool_call>"#,
            r#"<tool_call>{"name":"h","arguments":{}}</tool_call>"#,
            r#"<tool_call>{"name":"f"}</tool_call>"#,
            r#"<tool_call>{"name":"f","arguments":"{}"}</tool_call>"#,
            r#"Use <tool_call>{"name":"f","arguments":{}}</tool_call>"#,
            r#"<tool_call>{"name":"f","arguments":{}}</tool_call> now"#,
            r#"{"name":"f","arguments":{}}"#,
            "[TOOL_CALLS]",
        ] {
            assert_eq!(count(text), 0, "{text}");
        }
    }
}
