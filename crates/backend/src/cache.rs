//! The answer cache: one answer for each request that was sent. It is on by default, so that a chat that is run again, or a
//! script that asks the same a second time, costs nothing.
//!
//! A request's key is the SHA-256 of the canonical JSON (members sorted) of what is sent, without keys, headers, time
//! limits and whether a stream was asked for. Calls of a stored answer are dispatched like those of a new one; failures,
//! empty answers and answers that broke off are not stored, nor is the answer of a `fallback` to a request that was made for
//! another endpoint.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use decanus_base::digest::sha256_hex;
use decanus_base::files::write_atomic;
use decanus_chat::{FunctionCall, Message, Usage};
use futures::StreamExt;
use futures::stream::{self, BoxStream};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::collect::{Collector, Response};
use crate::conversation::{CallCx, Conversation, Delta, DryRun, FinishReason, View};
use crate::error::BackendError;
use crate::profile::Profile;

/// A folder of stored answers.
#[derive(Clone, Debug)]
pub struct AnswerCache {
    dir: PathBuf,
}

/// What makes a request what it is, in parts, so that a miss can say which part is new.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KeyParts {
    /// The backend.
    pub backend: String,
    /// Where the request goes.
    pub target: String,
    /// A digest of what is not shown of the endpoint: its URL's query and its headers.
    #[serde(default)]
    pub route: String,
    /// The model.
    pub model: String,
    /// The first digits of each message's digest, in order.
    pub messages: Vec<String>,
    /// The first digits of each tool's digest, by name.
    pub tools: Map<String, Value>,
    /// Parameters over those of the endpoint, and the choice of tools.
    pub parameters: Map<String, Value>,
    /// The digest of the whole request body.
    pub body: String,
}

/// A stored answer.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Entry {
    /// The key: 64 hexadecimal digits.
    pub key: String,
    /// What the key was made of.
    pub parts: KeyParts,
    /// When it was stored: UTC, RFC 3339.
    pub created: String,
    /// The id of the request that it answers; a hit keeps it, so that its tokens are counted once.
    pub inference_id: String,
    answer: Answer,
}

/// A [`Response`] as it is stored.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Answer {
    text: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    reasoning: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    parts: Vec<Value>,
    /// The records of the calls.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    calls: Vec<String>,
    usage: Map<String, Value>,
    id: Option<String>,
    model: Option<String>,
    finish: String,
    #[serde(default)]
    stated_by_template: bool,
}

impl Entry {
    /// The beginning of the answer, for listings.
    pub fn summary(&self) -> String {
        match self.answer.text.as_str() {
            "" => format!("{} tool calls", self.answer.calls.len()),
            text => text.to_owned(),
        }
    }
}

impl AnswerCache {
    /// The cache in a folder, which is made when something is stored.
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Self { dir: dir.into() }
    }

    /// The folder.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Two letters of the key are a folder, so that none holds too many files.
    fn path(&self, key: &str) -> PathBuf {
        self.dir.join(&key[..2]).join(format!("{key}.json"))
    }

    /// The stored answer of a key. An entry that can't be read is none.
    pub fn get(&self, key: &str) -> Option<Entry> {
        read(&self.path(key)).filter(|e| e.key == key)
    }

    /// All entries, newest first.
    pub fn list(&self) -> Vec<Entry> {
        let folders = std::fs::read_dir(&self.dir).into_iter().flatten().flatten();
        let files = folders.flat_map(|f| std::fs::read_dir(f.path()).into_iter().flatten().flatten());
        let mut entries: Vec<Entry> = files.filter_map(|f| read(&f.path())).collect();
        entries.sort_by(|a, b| b.created.cmp(&a.created).then_with(|| a.key.cmp(&b.key)));
        entries
    }

    /// Removes entries: those whose key begins with `prefix`, all with an empty one. Gives their number.
    ///
    /// # Errors
    /// Those of the file system, with the path.
    pub fn clear(&self, prefix: &str) -> std::io::Result<usize> {
        let mut removed = 0;
        for entry in self.list().into_iter().filter(|e| e.key.starts_with(prefix)) {
            let path = self.path(&entry.key);
            std::fs::remove_file(&path).map_err(|e| decanus_base::files::named(e, &path))?;
            removed += 1;
        }
        Ok(removed)
    }

    /// The earlier request that has most in common with this one, and what differs.
    pub fn nearest(&self, parts: &KeyParts) -> Option<(Entry, Vec<String>)> {
        let scored = self.list().into_iter().map(|entry| {
            let differences = differences(&entry.parts, parts);
            (entry, differences)
        });
        // The newest of the nearest: `list` is sorted, and `min_by_key` takes the first.
        scored.min_by_key(|(_, differences)| differences.len())
    }

    fn put(&self, entry: &Entry) -> std::io::Result<()> {
        let mut bytes = serde_json::to_vec(entry)?;
        bytes.push(b'\n');
        write_atomic(&self.path(&entry.key), &bytes)
    }
}

fn read(path: &Path) -> Option<Entry> {
    serde_json::from_slice(&std::fs::read(path).ok()?).ok()
}

/// What differs between the request that was stored and another one.
fn differences(stored: &KeyParts, asked: &KeyParts) -> Vec<String> {
    let mut found = Vec::new();
    for (name, before, now) in [
        ("backend", &stored.backend, &asked.backend),
        ("endpoint", &stored.target, &asked.target),
        ("route", &stored.route, &asked.route),
        ("model", &stored.model, &asked.model),
    ] {
        if before != now {
            found.push(format!("{name}: {before} -> {now}"));
        }
    }
    let same = stored
        .messages
        .iter()
        .zip(&asked.messages)
        .take_while(|(a, b)| a == b)
        .count();
    if same < stored.messages.len() || same < asked.messages.len() {
        let (before, now) = (stored.messages.len(), asked.messages.len());
        found.push(format!(
            "messages: the first {same} are equal, then {before} and {now} in all"
        ));
    }
    for (what, before, now) in [
        ("tool", &stored.tools, &asked.tools),
        ("parameter", &stored.parameters, &asked.parameters),
    ] {
        for (name, value) in now {
            match before.get(name) {
                None => found.push(format!("{what} {name} is new")),
                Some(other) if other != value && what == "tool" => found.push(format!("tool {name} has changed")),
                Some(other) if other != value => found.push(format!("parameter {name}: {other} -> {value}")),
                Some(_) => {}
            }
        }
        let gone = before.keys().filter(|name| !now.contains_key(*name));
        found.extend(gone.map(|name| format!("{what} {name} is gone")));
    }
    if found.is_empty() && stored.body != asked.body {
        found.push("the endpoint's own settings".into());
    }
    found
}

/// Gateways choose the model by a query or a header. What may be a credential is in here as a digest only, and keys are not in
/// here at all: the same question under another key is the same question.
fn route(profile: &Profile) -> String {
    let query = profile.url.split_once('?').map_or("", |(_, query)| query);
    let headers: Vec<String> = profile
        .headers
        .iter()
        .filter(|(name, _)| !name.eq_ignore_ascii_case("authorization"))
        .map(|(name, value)| format!("{}: {}", name.to_lowercase(), value.expose()))
        .collect();
    match (query, headers.is_empty()) {
        ("", true) => String::new(),
        _ => sha256_hex(format!("{query}\n{}", headers.join("\n")).as_bytes())[..16].to_owned(),
    }
}

/// The key of a request and its parts.
///
/// # Errors
/// Those of encoding.
pub fn key(
    conversation: &mut dyn Conversation,
    profile: &Profile,
    view: &View<'_>,
) -> Result<(String, KeyParts), BackendError> {
    let request = conversation.dry_run(view, false)?;
    let mut body = match serde_json::from_str::<Value>(&request.body) {
        Ok(body) => body,
        // The prompt of a local model.
        Err(_) => Value::String(request.body),
    };
    body.sort_all_objects();
    let short = |text: &str| sha256_hex(text.as_bytes())[..16].to_owned();
    let message = |m: &Message| short(&format!("{}\n{}", m.role, m.content));
    let tools = view.tools.iter().map(|tool| {
        let text = format!("{}\n{}", tool.description, tool.wire_parameters());
        (tool.name.clone(), Value::String(short(&text)))
    });
    let mut parameters = view.parameters.clone();
    if let Some(choice) = view.tool_choice {
        parameters.insert("tool_choice".into(), choice.into());
    }
    parameters.sort_keys();
    let parts = KeyParts {
        backend: conversation.backend().to_owned(),
        target: request.target,
        route: route(profile),
        model: conversation.endpoint().unwrap_or(profile).model.clone(),
        messages: view.messages.iter().map(message).collect(),
        tools: tools.collect(),
        parameters,
        body: sha256_hex(body.to_string().as_bytes()),
    };
    let whole = json!([
        parts.backend,
        parts.target,
        parts.route,
        parts.model,
        parts.body,
        parts.tools,
        parts.parameters
    ]);
    Ok((sha256_hex(whole.to_string().as_bytes()), parts))
}

/// A conversation whose answers are stored, and taken from the store when they are there.
pub struct CachedConversation {
    inner: Box<dyn Conversation>,
    profile: Arc<Profile>,
    cache: AnswerCache,
    /// What this conversation has stored itself: asked again in the same run, it is asked anew.
    own: HashSet<String>,
    /// The key of the last answer.
    last: Option<String>,
}

impl CachedConversation {
    /// Puts a cache before a conversation.
    pub fn new(inner: Box<dyn Conversation>, profile: Arc<Profile>, cache: AnswerCache) -> Self {
        Self {
            inner,
            profile,
            cache,
            own: HashSet::new(),
            last: None,
        }
    }
}

impl Conversation for CachedConversation {
    fn backend(&self) -> &str {
        self.inner.backend()
    }

    fn endpoint(&self) -> Option<&Profile> {
        self.inner.endpoint()
    }

    fn complete<'a>(&'a mut self, view: &'a View<'a>, cx: &'a CallCx) -> BoxStream<'a, Result<Delta, BackendError>> {
        let (key, parts) = match key(&mut *self.inner, &self.profile, view) {
            Ok(found) => found,
            Err(error) => return stream::once(std::future::ready(Err(error))).boxed(),
        };
        self.last = Some(key.clone());
        if !self.own.contains(&key)
            && let Some(entry) = self.cache.get(&key)
        {
            return stream::iter(entry.deltas().into_iter().map(Ok)).boxed();
        }
        let inference_id = uuid::Uuid::new_v4().to_string();
        let first = Delta::Inference {
            id: inference_id.clone(),
            stored: false,
        };
        let (cache, own) = (&self.cache, &mut self.own);
        let mut collector = Some(Collector::new());
        let mut size = 0;
        let answer = self.inner.complete(view, cx).map(move |delta| {
            match (&delta, collector.as_mut()) {
                // It is not the answer of the endpoint that the key is made for.
                (Ok(Delta::Endpoint(_)) | Err(_), _) => collector = None,
                (Ok(delta), Some(collecting)) => {
                    collecting.push(delta);
                    size += match delta {
                        Delta::Text(text) | Delta::Reasoning(text) => text.len(),
                        Delta::Call { arguments, .. } => arguments.len(),
                        _ => 0,
                    };
                    if size > MAX_ANSWER {
                        collector = None;
                    } else if matches!(delta, Delta::Finish(_))
                        && let Some(collected) = collector.take()
                        && let Some(answer) = Answer::of(collected.finish())
                    {
                        let entry = Entry {
                            key: key.clone(),
                            parts: parts.clone(),
                            created: decanus_chat::timestamp(),
                            inference_id: inference_id.clone(),
                            answer,
                        };
                        match cache.put(&entry) {
                            Ok(()) => {
                                own.insert(key.clone());
                            }
                            Err(e) => tracing::warn!("the answer was not kept in the cache: {e}"),
                        }
                    }
                }
                (Ok(_), None) => {}
            }
            delta
        });
        stream::once(std::future::ready(Ok(first))).chain(answer).boxed()
    }

    fn reject(&mut self) {
        if let Some(key) = self.last.take() {
            let _ = std::fs::remove_file(self.cache.path(&key));
            self.own.insert(key);
        }
    }

    fn dry_run(&mut self, view: &View<'_>, stream: bool) -> Result<DryRun, BackendError> {
        self.inner.dry_run(view, stream)
    }
}

/// The most bytes of an answer that is kept: while it comes it is in memory once more.
const MAX_ANSWER: usize = 16 << 20;

impl Answer {
    /// An answer that is worth keeping: complete, and not empty.
    fn of(response: Response) -> Option<Self> {
        if response.text.trim().is_empty() && response.calls.is_empty() {
            return None;
        }
        let usage = response.usage.fields().into_iter();
        Some(Self {
            finish: match response.finish? {
                FinishReason::Stop => "stop".into(),
                FinishReason::ToolCalls => "tool_calls".into(),
                // Half an answer is not the answer.
                FinishReason::Length | FinishReason::ContentFilter | FinishReason::Paused | FinishReason::Other(_) => {
                    return None;
                }
            },
            calls: response.calls.iter().map(|c| c.to_message().content).collect(),
            text: response.text,
            reasoning: response.reasoning,
            parts: response.parts,
            usage: usage
                .filter_map(|(name, count)| Some((name.to_owned(), count?.into())))
                .collect(),
            id: response.id,
            model: response.model,
            stated_by_template: response.stated_by_template,
        })
    }
}

impl Entry {
    /// The answer, as it would come from the provider.
    fn deltas(self) -> Vec<Delta> {
        let answer = self.answer;
        let count = |name: &str| answer.usage.get(name).and_then(Value::as_u64);
        let usage = Usage {
            pt: count("pt"),
            ct: count("ct"),
            tt: count("tt"),
            cct: count("cct"),
            cwt: count("cwt"),
            rt: count("rt"),
        };
        let mut deltas = vec![Delta::Inference {
            id: self.inference_id,
            stored: true,
        }];
        deltas.extend(answer.id.map(Delta::ResponseId));
        deltas.extend(answer.model.map(Delta::Model));
        if !answer.reasoning.is_empty() {
            deltas.push(Delta::Reasoning(answer.reasoning));
        }
        deltas.extend(answer.parts.into_iter().map(Delta::Part));
        if answer.stated_by_template {
            deltas.push(Delta::StatedByTemplate);
        }
        if !answer.text.is_empty() {
            deltas.push(Delta::Text(answer.text));
        }
        for (index, record) in (0..).zip(&answer.calls) {
            let message = Message::new(decanus_chat::Role::FunctionCall, record.as_str());
            if let Ok(call) = FunctionCall::from_message(&message) {
                deltas.push(Delta::Call {
                    index: Some(index),
                    id: Some(call.id),
                    name: Some(call.name),
                    arguments: call.arguments.to_text(),
                });
            }
        }
        deltas.push(Delta::Usage(usage));
        deltas.push(Delta::Finish(match answer.finish.as_str() {
            "stop" => FinishReason::Stop,
            _ => FinishReason::ToolCalls,
        }));
        deltas
    }
}
