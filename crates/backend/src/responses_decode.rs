//! OpenAI's Responses: decoding of bodies and streams.
//!
//! One reading for both: an item that is there whole is given out as far as its pieces have not been. A stream of
//! pieces, one of whole items, and one that holds nothing but its last event therefore decode to the same answer. Servers
//! differ in what they leave out: llama.cpp numbers neither events nor items, LiteLLM names no events.

use std::collections::HashMap;

use decanus_base::text::brief;
use decanus_chat::Usage;
use serde_json::{Map, Value, json};

use crate::body::parse as parse_body;
use crate::conversation::{Delta, FinishReason};
use crate::dialect::{Fault, StreamDecoder};
use crate::openai_decode::arguments;
use crate::refusal;
use crate::sse::Event;

/// Decodes a whole body.
///
/// # Errors
/// An error in a body of status 200; a body that is not an answer.
pub fn decode(body: &[u8]) -> Result<Vec<Delta>, Fault> {
    let value = parse_body(body)?;
    if let Some(error) = value.get("error").filter(|e| e.is_object()) {
        return Err(fault(error));
    }
    if let Some(fault) = refusal::from_value(&value) {
        return Err(fault);
    }
    if !value.get("output").is_some_and(Value::is_array) {
        return Err(Fault::Malformed(format!(
            "there is no `output` in {}",
            brief(&value.to_string(), 200)
        )));
    }
    let mut out = Vec::new();
    let mut decoder = ResponsesDecoder::default();
    let status = text(&value, "status").unwrap_or("completed");
    decoder.over(status, &value, &mut out)?;
    Ok(out)
}

fn text<'a>(value: &'a Value, name: &str) -> Option<&'a str> {
    value.get(name).and_then(Value::as_str).filter(|s| !s.is_empty())
}

/// An error, with the status that its code would have had as an answer of its own.
fn fault(error: &Value) -> Fault {
    let mut fault = refusal::from_error(error, &Map::new());
    if let Fault::Refused { status, code, .. } = &mut fault {
        *status = status.or(match code.as_deref() {
            Some("rate_limit_exceeded" | "rate_limit_error") => Some(429),
            Some("server_error" | "internal_error") => Some(500),
            Some("server_is_overloaded" | "slow_down") => Some(503),
            _ => None,
        });
    }
    fault
}

/// Which piece of an item: its list (summary of the reasoning, or content) and the position in it.
type Piece = (&'static str, u64);

/// An item of the output.
#[derive(Debug, Default)]
struct Item {
    kind: String,
    id: String,
    call_id: String,
    index: Option<u64>,
    /// What has been given out of its texts.
    given: HashMap<Piece, String>,
    /// The position of a call among the calls, once it has been given out.
    call: Option<u64>,
    arguments: String,
    /// The item when it was whole.
    whole: Value,
    /// Whether it has been said that the item is skipped.
    skipped: bool,
    /// Whether the item has been found in the whole response.
    listed: bool,
}

impl Item {
    /// What a message says.
    fn text(&self) -> String {
        let mut pieces: Vec<_> = self.given.iter().collect();
        pieces.sort();
        pieces.into_iter().map(|(_, text)| text.as_str()).collect()
    }
}

/// Decodes a stream of `response.…` events.
#[derive(Debug, Default)]
pub struct ResponsesDecoder {
    items: Vec<Item>,
    calls: u64,
    id: bool,
    model: bool,
    is_over: bool,
    text: Option<usize>,
    reasoning: Option<(usize, Piece)>,
}

impl StreamDecoder for ResponsesDecoder {
    fn event(&mut self, event: &Event, out: &mut Vec<Delta>) -> Result<bool, Fault> {
        let data = event.data.trim();
        if data.is_empty() {
            return Ok(false);
        }
        if data == "[DONE]" {
            return self.end(out).map(|()| true);
        }
        let value: Value = serde_json::from_str(data)
            .map_err(|e| Fault::Malformed(format!("an event is not JSON ({e}): {}", brief(data, 200))))?;
        if !value.is_object() {
            return Err(Fault::Malformed(format!(
                "an event is not an object: {}",
                brief(data, 200)
            )));
        }
        let kind = text(&value, "type").unwrap_or(&event.name);
        let Some(kind) = kind.strip_prefix("response.") else {
            if kind == "error" || event.name == "error" || value.get("error").is_some_and(|e| !e.is_null()) {
                return Err(fault(value.get("error").filter(|e| !e.is_null()).unwrap_or(&value)));
            }
            if let Some(fault) = refusal::from_value(&value) {
                return Err(fault);
            }
            tracing::debug!(kind, "an unknown event is skipped");
            return Ok(false);
        };
        let delta = text(&value, "delta").unwrap_or_default();
        match kind {
            "created" | "in_progress" | "queued" => self.response(&value["response"], out),
            "completed" | "incomplete" | "failed" | "cancelled" => {
                self.over(kind, &value["response"], out)?;
                return Ok(true);
            }
            "output_item.added" | "output_item.done" => {
                let at = self.find(&value["item"], value.get("output_index").and_then(Value::as_u64));
                if kind == "output_item.done" {
                    self.settle(at, &value["item"], out);
                } else {
                    self.open(at, &value["item"], out);
                }
            }
            "output_text.delta" | "refusal.delta" => {
                let at = self.place(&value, "message");
                self.say(at, ("content", position(&value, "content_index")), delta, out);
            }
            "reasoning_summary_text.delta" => {
                let at = self.place(&value, "reasoning");
                self.think(at, ("summary", position(&value, "summary_index")), delta, out);
            }
            "reasoning_text.delta" => {
                let at = self.place(&value, "reasoning");
                self.think(at, ("content", position(&value, "content_index")), delta, out);
            }
            "function_call_arguments.delta" => {
                let at = self.place(&value, "function_call");
                self.argue(at, delta, out);
            }
            "function_call_arguments.done" => {
                let at = self.place(&value, "function_call");
                self.argue_rest(at, value.get("arguments"), out);
            }
            // What they say is said again by their item, or of no use here.
            _ => tracing::trace!(kind, "an event is skipped"),
        }
        Ok(false)
    }

    fn is_complete(&self) -> bool {
        self.is_over
    }

    fn end(&mut self, _: &mut Vec<Delta>) -> Result<(), Fault> {
        if self.is_over {
            return Ok(());
        }
        Err(Fault::Incomplete("the stream ended before the response did".into()))
    }
}

fn position(event: &Value, name: &str) -> u64 {
    event.get(name).and_then(Value::as_u64).unwrap_or(0)
}

impl ResponsesDecoder {
    /// Id and model.
    fn response(&mut self, response: &Value, out: &mut Vec<Delta>) {
        if let Some(id) = text(response, "id").filter(|_| !self.id) {
            self.id = true;
            out.push(Delta::ResponseId(id.to_owned()));
        }
        if let Some(model) = text(response, "model").filter(|_| !self.model) {
            self.model = true;
            out.push(Delta::Model(model.to_owned()));
        }
    }

    /// The response is over, in one way or another.
    fn over(&mut self, how: &str, response: &Value, out: &mut Vec<Delta>) -> Result<(), Fault> {
        self.response(response, out);
        let output = response.get("output").and_then(Value::as_array);
        let mut order = Vec::new();
        for (i, item) in output.into_iter().flatten().enumerate() {
            let at = self.find_listed(item, i as u64);
            self.settle(at, item, out);
            order.push(at);
        }
        if let Some(usage) = response.get("usage").filter(|u| u.is_object()) {
            let usage = Usage::from_provider(usage);
            if !usage.is_empty() {
                out.push(Delta::Usage(usage));
            }
        }
        let reason = match how {
            "completed" if self.calls > 0 => FinishReason::ToolCalls,
            "completed" => FinishReason::Stop,
            "incomplete" => match response.pointer("/incomplete_details/reason").and_then(Value::as_str) {
                Some("max_output_tokens" | "max_tokens" | "length") => FinishReason::Length,
                Some("content_filter") => FinishReason::ContentFilter,
                Some(other) => FinishReason::Other(other.to_owned()),
                None => FinishReason::Other("incomplete".into()),
            },
            "failed" | "cancelled" => {
                return Err(match response.get("error").filter(|e| !e.is_null()) {
                    Some(error) => fault(error),
                    None => Fault::Refused {
                        status: None,
                        code: None,
                        message: format!("the response is `{how}`"),
                    },
                });
            }
            other => return Err(Fault::Incomplete(format!("the response is still `{other}`"))),
        };
        self.parts(&order, out);
        self.is_over = true;
        out.push(Delta::Finish(reason));
        Ok(())
    }

    /// Reasoning items, and where among them the texts and the calls stand: what has been sent together must come back
    /// together. Without reasoning only an order that is not "a text, then calls" has to be kept.
    fn parts(&self, order: &[usize], out: &mut Vec<Delta>) {
        let missing = (0..self.items.len()).filter(|at| !order.contains(at));
        let order: Vec<&Item> = order.iter().copied().chain(missing).map(|at| &self.items[at]).collect();
        let is_reasoning = |item: &Item| item.kind == "reasoning" && item.whole.is_object();
        let is_text = |item: &Item| item.kind == "message" && !item.text().trim().is_empty();
        let is_call = |item: &Item| item.kind == "function_call" && item.call.is_some();
        let texts = order.iter().filter(|item| is_text(item)).count();
        let first_call = order.iter().position(|item| is_call(item));
        let is_behind = first_call.is_some_and(|at| order[at..].iter().any(|item| is_text(item)));
        if texts < 2 && !is_behind && !order.iter().any(|item| is_reasoning(item)) {
            return;
        }
        for item in order {
            let names: &[&str] = match item.kind.as_str() {
                "reasoning" if is_reasoning(item) => {
                    out.push(Delta::Part(item.whole.clone()));
                    continue;
                }
                "message" if is_text(item) => &["id", "phase"],
                "function_call" if is_call(item) => &["id", "call_id"],
                _ => continue,
            };
            let mut mark = json!({"type": item.kind});
            for name in names {
                if let Some(value) = text(&item.whole, name) {
                    mark[*name] = value.into();
                }
            }
            // The stored text is that of all messages.
            if texts > 1 && item.kind == "message" {
                mark["text"] = item.text().into();
            }
            out.push(Delta::Part(mark));
        }
    }

    /// The item that an event speaks of, by its id, else by its position; else it is the last one of its kind.
    fn place(&mut self, event: &Value, kind: &str) -> usize {
        let id = text(event, "item_id").unwrap_or_default();
        let index = event.get("output_index").and_then(Value::as_u64);
        let of_kind = |item: &Item| item.kind == kind;
        let by_id = self.items.iter().position(|i| !id.is_empty() && i.id == id);
        let by_index = || {
            self.items
                .iter()
                .position(|i| index.is_some() && i.index == index && of_kind(i))
        };
        let last = || {
            let at = self.items.iter().rposition(of_kind)?;
            let item = &self.items[at];
            let is_new = item.given.is_empty() && item.arguments.is_empty();
            ((id.is_empty() && index.is_none()) || is_new).then_some(at)
        };
        by_id.or_else(by_index).or_else(last).unwrap_or_else(|| {
            self.items.push(Item {
                kind: kind.to_owned(),
                id: id.to_owned(),
                index,
                ..Item::default()
            });
            self.items.len() - 1
        })
    }

    /// The place of an item that is added or done.
    fn find(&mut self, item: &Value, index: Option<u64>) -> usize {
        let (id, kind) = (text(item, "id"), text(item, "type").unwrap_or_default());
        let found = self.items.iter().position(|i| id.is_some_and(|id| i.id == id));
        let found = found.or_else(|| {
            let same = |i: &Item| index.is_some() && i.index == index && i.kind == kind;
            self.items.iter().position(same)
        });
        found.unwrap_or_else(|| self.add(item, index))
    }

    /// The place of an item of the whole response. Gateways give items other ids there; they keep their order.
    fn find_listed(&mut self, item: &Value, index: u64) -> usize {
        let kind = text(item, "type").unwrap_or_default();
        let position =
            |is: &dyn Fn(&Item) -> bool| self.items.iter().position(|i| !i.listed && i.kind == kind && is(i));
        let same = |name: &str, of: &str| text(item, name).is_some_and(|value| value == of);
        let found = position(&|i| same("id", &i.id))
            .or_else(|| position(&|i| same("call_id", &i.call_id)))
            .or_else(|| position(&|i| i.index == Some(index)))
            .or_else(|| position(&|_| true));
        let at = found.unwrap_or_else(|| self.add(item, Some(index)));
        self.items[at].listed = true;
        at
    }

    fn add(&mut self, item: &Value, index: Option<u64>) -> usize {
        let own = |name| text(item, name).unwrap_or_default().to_owned();
        self.items.push(Item {
            kind: own("type"),
            id: own("id"),
            call_id: own("call_id"),
            index,
            ..Item::default()
        });
        self.items.len() - 1
    }

    /// An item has begun. Arguments that it already has may be repeated by pieces, so they wait.
    fn open(&mut self, at: usize, item: &Value, out: &mut Vec<Delta>) {
        if text(item, "type") != Some("function_call") || self.items[at].call.is_some() {
            return;
        }
        self.items[at].call = Some(self.calls);
        self.items[at].call_id = text(item, "call_id").unwrap_or_default().to_owned();
        out.push(Delta::Call {
            index: Some(self.calls),
            id: text(item, "call_id").or_else(|| text(item, "id")).map(str::to_owned),
            name: text(item, "name").map(str::to_owned),
            arguments: String::new(),
        });
        self.calls += 1;
    }

    /// An item is whole: what has not been given out of it is given out.
    fn settle(&mut self, at: usize, item: &Value, out: &mut Vec<Delta>) {
        self.items[at].whole = item.clone();
        let list = |name: &str| {
            item.get(name)
                .and_then(Value::as_array)
                .into_iter()
                .flatten()
                .enumerate()
        };
        match text(item, "type").unwrap_or_default() {
            "message" => {
                if let Some(whole) = text(item, "content") {
                    self.say_rest(at, ("content", 0), whole, out);
                }
                for (i, part) in list("content") {
                    let whole = text(part, "text").or_else(|| text(part, "refusal"));
                    self.say_rest(at, ("content", i as u64), whole.unwrap_or_default(), out);
                }
            }
            "reasoning" => {
                for name in ["summary", "content"] {
                    for (i, part) in list(name) {
                        let given = self.items[at].given.get(&(name, i as u64));
                        let whole = text(part, "text").unwrap_or_default();
                        let rest = rest(given.map_or("", String::as_str), whole).to_owned();
                        self.think(at, (name, i as u64), &rest, out);
                    }
                }
            }
            "function_call" => {
                self.open(at, item, out);
                self.argue_rest(at, item.get("arguments"), out);
            }
            // What the provider's own search has done is in the text.
            "web_search_call" => {}
            kind if !std::mem::replace(&mut self.items[at].skipped, true) => {
                out.push(Delta::Warning(format!("an item `{kind}` of the answer is skipped")));
            }
            _ => {}
        }
    }

    fn say(&mut self, at: usize, piece: Piece, more: &str, out: &mut Vec<Delta>) {
        if more.is_empty() {
            return;
        }
        let apart = self.text.replace(at).is_some_and(|last| last != at);
        self.items[at].given.entry(piece).or_default().push_str(more);
        out.push(Delta::Text(if apart { format!("\n\n{more}") } else { more.to_owned() }));
    }

    fn say_rest(&mut self, at: usize, piece: Piece, whole: &str, out: &mut Vec<Delta>) {
        let given = self.items[at].given.get(&piece).map_or("", String::as_str);
        let more = rest(given, whole).to_owned();
        self.say(at, piece, &more, out);
    }

    fn think(&mut self, at: usize, piece: Piece, more: &str, out: &mut Vec<Delta>) {
        if more.is_empty() {
            return;
        }
        let apart = self
            .reasoning
            .replace((at, piece))
            .is_some_and(|last| last != (at, piece));
        self.items[at].given.entry(piece).or_default().push_str(more);
        out.push(Delta::Reasoning(if apart {
            format!("\n\n{more}")
        } else {
            more.to_owned()
        }));
    }

    fn argue(&mut self, at: usize, more: &str, out: &mut Vec<Delta>) {
        let index = *self.items[at].call.get_or_insert_with(|| {
            self.calls += 1;
            self.calls - 1
        });
        if more.is_empty() {
            return;
        }
        self.items[at].arguments.push_str(more);
        out.push(Delta::Call {
            index: Some(index),
            id: None,
            name: None,
            arguments: more.to_owned(),
        });
    }

    fn argue_rest(&mut self, at: usize, whole: Option<&Value>, out: &mut Vec<Delta>) {
        let whole = arguments(whole);
        let more = rest(&self.items[at].arguments, &whole).to_owned();
        self.argue(at, &more, out);
    }
}

/// What a whole text has beyond its beginning; nothing where the two do not agree, since the beginning has been given out.
fn rest<'a>(given: &str, whole: &'a str) -> &'a str {
    whole.strip_prefix(given).unwrap_or_default()
}
