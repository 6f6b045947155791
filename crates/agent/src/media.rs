//! Pictures and documents on their way to a model.

use std::borrow::Cow;
use std::ffi::OsStr;
use std::path::Path;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use decanus_backend::dialect::path_part;
use decanus_backend::image::file_type;
use decanus_chat::{FunctionCallOutput, Message, Role};

/// The most bytes of a picture or document that is sent.
pub const MAX_MEDIA: u64 = 20 << 20;

/// The backends whose models may be able to see.
const SEEING: [&str; 8] = [
    "anthropic",
    "bedrock",
    "gemini",
    "ollama",
    "openai",
    "openwebui",
    "responses",
    "vllm",
];

/// The media type of a file that providers take, by its first bytes.
pub fn media_type(bytes: &[u8]) -> Option<&'static str> {
    if bytes.starts_with(b"%PDF") {
        return Some("application/pdf");
    }
    file_type(bytes).map(|(media_type, _)| media_type)
}

/// A file's bytes as a `data:` URL.
pub fn data_url(media_type: &str, bytes: &[u8]) -> String {
    format!("data:{media_type};base64,{}", STANDARD.encode(bytes))
}

/// The same for the file at this path; a document keeps its name, as a parameter of the type (`;name=…`).
pub fn data_url_of(path: &str, media_type: &str, bytes: &[u8]) -> String {
    let name = Path::new(path).file_name().and_then(OsStr::to_str);
    match name.filter(|_| media_type == "application/pdf") {
        Some(name) => data_url(&format!("{media_type};name={}", path_part(name)), bytes),
        None => data_url(media_type, bytes),
    }
}

/// The messages, and behind each tool result the pictures and documents that came with it, if this backend can pass them
/// on. What is no longer there is left out: the result's text names the file.
pub(crate) fn with_media<'a>(messages: Cow<'a, [Message]>, backend: &str) -> Cow<'a, [Message]> {
    // Nearly no output has any, and reading one costs more than looking for the word.
    let may_have = |m: &Message| m.role == Role::FunctionCallOutput && m.content.contains("\"media\":[");
    if !SEEING.contains(&backend) || !messages.iter().any(may_have) {
        return messages;
    }
    let mut all = Vec::with_capacity(messages.len() + 1);
    for message in messages.iter() {
        all.push(message.clone());
        let output = may_have(message).then(|| FunctionCallOutput::from_message(message).ok());
        all.extend(
            output
                .flatten()
                .iter()
                .flat_map(|o| &o.media)
                .filter_map(|path| load(path)),
        );
    }
    Cow::Owned(all)
}

fn load(path: &str) -> Option<Message> {
    if std::fs::metadata(path).ok()?.len() > MAX_MEDIA {
        return None;
    }
    let bytes = std::fs::read(path).ok()?;
    let kind = media_type(&bytes)?;
    let role = if kind == "application/pdf" {
        Role::Pdf
    } else {
        Role::Image
    };
    Some(Message::new(role, data_url_of(path, kind, &bytes)))
}
