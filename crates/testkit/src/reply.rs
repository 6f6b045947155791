//! What the scripted server answers.

use std::time::Duration;

use serde_json::{Value, json};

/// One thing that happens while a body is sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Piece {
    /// These bytes are written and flushed.
    Bytes(Vec<u8>),
    /// Nothing happens for a while.
    Wait(Duration),
    /// The connection is closed, whatever was promised.
    Close,
    /// Nothing happens any more; the connection stays open until the client or the server ends.
    Hang,
}

/// How the end of a body is made known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Framing {
    /// By `Content-Length`.
    Length,
    /// By chunks, one for each piece.
    Chunked,
    /// By closing the connection.
    UntilClose,
}

/// An answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reply {
    /// The status.
    pub status: u16,
    /// Headers, besides those of the framing.
    pub headers: Vec<(String, String)>,
    /// The body and what happens while it is sent.
    pub pieces: Vec<Piece>,
    /// How its end is made known.
    pub framing: Framing,
    /// Happens before the status line.
    pub delay: Option<Piece>,
}

impl Reply {
    /// A body of a content type.
    pub fn new(status: u16, content_type: &str, body: impl Into<Vec<u8>>) -> Self {
        let headers = if content_type.is_empty() {
            vec![]
        } else {
            vec![("content-type".into(), content_type.into())]
        };
        Self {
            status,
            headers,
            pieces: vec![Piece::Bytes(body.into())],
            framing: Framing::Length,
            delay: None,
        }
    }

    /// JSON.
    pub fn json(status: u16, body: &Value) -> Self {
        Self::new(status, "application/json", body.to_string())
    }

    /// A stream of server-sent events, as raw bytes.
    pub fn sse(body: impl Into<Vec<u8>>) -> Self {
        Self {
            framing: Framing::Chunked,
            ..Self::new(200, "text/event-stream", body)
        }
    }

    /// An OpenAI chat answer: a text.
    pub fn chat_text(text: &str) -> Self {
        Self::json(200, &chat_body(json!({"role": "assistant", "content": text}), "stop"))
    }

    /// An OpenAI chat answer: tool calls, each an id, a name and arguments.
    pub fn chat_calls(calls: &[(&str, &str, Value)]) -> Self {
        let calls: Vec<Value> = calls.iter().map(chat_call).collect();
        Self::json(
            200,
            &chat_body(
                json!({"role": "assistant", "content": null, "tool_calls": calls}),
                "tool_calls",
            ),
        )
    }

    /// An OpenAI chat stream: these texts, one event each.
    pub fn chat_stream(texts: &[&str]) -> Self {
        let deltas: Vec<Value> = texts.iter().map(|t| json!({"content": t})).collect();
        Self::sse(chat_events(&deltas, "stop"))
    }

    /// An OpenAI chat stream: tool calls, each with its arguments in two fragments.
    pub fn chat_call_stream(calls: &[(&str, &str, Value)]) -> Self {
        let mut deltas = Vec::new();
        for (index, call) in calls.iter().enumerate() {
            let text = call.2.to_string();
            let cut = text
                .char_indices()
                .nth(text.chars().count() / 2)
                .map_or(0, |(at, _)| at);
            let mut first = chat_call(call);
            first["index"] = index.into();
            first["function"]["arguments"] = text[..cut].into();
            deltas.push(json!({"tool_calls": [first]}));
            deltas.push(json!({"tool_calls": [{"index": index, "function": {"arguments": text[cut..]}}]}));
        }
        Self::sse(chat_events(&deltas, "tool_calls"))
    }

    /// An error in OpenAI's form.
    pub fn error(status: u16, code: &str, message: &str) -> Self {
        Self::json(
            status,
            &json!({"error": {"message": message, "type": code, "code": code}}),
        )
    }

    /// An answer that never comes.
    pub fn never() -> Self {
        Self {
            delay: Some(Piece::Hang),
            ..Self::new(200, "application/json", "")
        }
    }

    /// With a header.
    #[must_use]
    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }

    /// After a delay.
    #[must_use]
    pub fn after(mut self, delay: Duration) -> Self {
        self.delay = Some(Piece::Wait(delay));
        self
    }

    /// With the end of the body made known in this way.
    #[must_use]
    pub fn framed(mut self, framing: Framing) -> Self {
        self.framing = framing;
        self
    }

    /// With one more thing happening at the end.
    #[must_use]
    pub fn then(mut self, piece: Piece) -> Self {
        self.pieces.push(piece);
        self
    }

    /// Sent in pieces of `n` bytes.
    #[must_use]
    pub fn every(self, n: usize) -> Self {
        self.cut(|bytes| bytes.chunks(n.max(1)).map(<[u8]>::to_vec).collect())
    }

    /// A stream sent event by event, with a pause before each.
    #[must_use]
    pub fn paced(self, pause: Duration) -> Self {
        let mut paced = self.cut(|bytes| {
            let text = String::from_utf8_lossy(bytes);
            text.split_inclusive("\n\n").map(|e| e.as_bytes().to_vec()).collect()
        });
        let pieces = std::mem::take(&mut paced.pieces);
        paced.pieces = pieces.into_iter().flat_map(|p| [Piece::Wait(pause), p]).collect();
        paced
    }

    /// Ends by breaking the connection after `n` bytes of the body.
    #[must_use]
    pub fn cut_after(mut self, n: usize) -> Self {
        let mut left = n;
        for piece in &mut self.pieces {
            if let Piece::Bytes(bytes) = piece {
                bytes.truncate(left);
                left -= bytes.len();
            }
        }
        self.framing = if self.framing == Framing::Length {
            Framing::UntilClose
        } else {
            self.framing
        };
        self.then(Piece::Close)
    }

    fn cut(mut self, cut: impl Fn(&[u8]) -> Vec<Vec<u8>>) -> Self {
        let pieces = std::mem::take(&mut self.pieces);
        for piece in pieces {
            match piece {
                Piece::Bytes(bytes) => self.pieces.extend(cut(&bytes).into_iter().map(Piece::Bytes)),
                other => self.pieces.push(other),
            }
        }
        self
    }
}

fn chat_call(call: &(&str, &str, Value)) -> Value {
    let (id, name, arguments) = call;
    json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments.to_string()}})
}

fn chat_body(message: Value, reason: &str) -> Value {
    json!({
        "id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "scripted",
        "choices": [{"index": 0, "message": message, "finish_reason": reason}],
        "usage": {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15},
    })
}

/// The events of a chat stream: these deltas, a reason, token counts, `[DONE]`.
pub fn chat_events(deltas: &[Value], reason: &str) -> String {
    let chunk = |delta: &Value, reason: Value| {
        let choice = json!({"index": 0, "delta": delta, "finish_reason": reason});
        let chunk = json!({"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "scripted", "choices": [choice]});
        format!("data: {chunk}\n\n")
    };
    let mut out = chunk(&json!({"role": "assistant", "content": null}), Value::Null);
    out.extend(deltas.iter().map(|d| chunk(d, Value::Null)));
    out.push_str(&chunk(&json!({}), reason.into()));
    let usage = json!({"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15});
    let last = json!({"id": "chatcmpl-1", "object": "chat.completion.chunk", "model": "scripted", "choices": [], "usage": usage});
    out + &format!("data: {last}\n\ndata: [DONE]\n\n")
}
