//! Pictures that a provider makes from words. The three forms that providers have for it are here.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use decanus_base::text::brief;
use decanus_chat::Usage;
use futures::FutureExt;
use futures::future::BoxFuture;
use serde_json::{Map, Value, json};

use crate::body::malformed;
use crate::dialect::Fault;
use crate::error::BackendError;
use crate::profile::Profile;
use crate::refusal;
use crate::whole::Whole;

/// A picture.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Picture {
    /// Its file.
    Bytes(Vec<u8>),
    /// Where the provider keeps it. Nothing is fetched from there.
    Link(String),
}

/// The pictures of one request.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Pictures {
    /// In the provider's order; at least one.
    pub pictures: Vec<Picture>,
    /// What the model said beside them.
    pub text: String,
    /// Why others that came are none.
    pub faults: Vec<String>,
    /// Token counts, where there are any.
    pub usage: Usage,
}

/// The format of a picture's file, by its first bytes: its media type and the usual ending of its name.
pub fn file_type(bytes: &[u8]) -> Option<(&'static str, &'static str)> {
    match bytes {
        [0x89, b'P', b'N', b'G', ..] => Some(("image/png", "png")),
        [0xff, 0xd8, 0xff, ..] => Some(("image/jpeg", "jpg")),
        [b'G', b'I', b'F', b'8', ..] => Some(("image/gif", "gif")),
        [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => Some(("image/webp", "webp")),
        _ => None,
    }
}

/// Makes pictures at one endpoint.
pub trait Painter: Send + Sync {
    /// Pictures of what a text says. The endpoint's parameters (`size`, `quality`, `n`, …) are sent as the provider has
    /// them. Dropping the future stops the request.
    ///
    /// # Errors
    /// Those of requests; an answer without a picture.
    fn paint<'a>(&'a self, prompt: &'a str) -> BoxFuture<'a, Result<Pictures, BackendError>>;
}

/// The forms in which providers make pictures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ImageApi {
    /// OpenAI's `{model, prompt}`, under this path.
    OpenAi(&'static str),
    /// The tool `image_generation` of the Responses API.
    Responses,
    /// Gemini's `generateContent` with pictures among its modalities.
    Gemini,
}

/// Parameters of the Images API and of the Responses API's tool. Those of chat requests are refused there.
const PARAMETERS: [&str; 10] = [
    "background",
    "moderation",
    "n",
    "output_compression",
    "output_format",
    "quality",
    "response_format",
    "seed",
    "size",
    "style",
];

impl ImageApi {
    fn body(self, profile: &Profile, prompt: &str) -> Value {
        let wanted = profile.parameters.iter();
        let wanted = wanted.filter(|(name, _)| PARAMETERS.contains(&name.as_str()));
        let parameters: Map<String, Value> = wanted.map(|(name, value)| (name.clone(), value.clone())).collect();
        match self {
            Self::OpenAi(_) => {
                let mut body = json!({"model": profile.model, "prompt": prompt});
                // These answer with a link otherwise; the later models know no such parameter.
                if profile.model.starts_with("dall-e") {
                    body["response_format"] = "b64_json".into();
                }
                if let Value::Object(map) = &mut body {
                    map.extend(parameters);
                }
                body
            }
            Self::Responses => {
                let mut tool = json!({"type": "image_generation"});
                if let Value::Object(map) = &mut tool {
                    map.extend(parameters);
                }
                json!({
                    "model": profile.model,
                    "input": [{"role": "user", "content": prompt}],
                    "tools": [tool],
                    "tool_choice": {"type": "image_generation"},
                    "store": false,
                })
            }
            Self::Gemini => json!({
                "contents": [{"role": "user", "parts": [{"text": prompt}]}],
                "generationConfig": {"responseModalities": ["TEXT", "IMAGE"]},
            }),
        }
    }

    fn decode(self, body: &[u8]) -> Result<Pictures, Fault> {
        let value: Value = serde_json::from_slice(body).map_err(|e| malformed(body, &e))?;
        if let Some(fault) = refusal::from_value(&value) {
            return Err(fault);
        }
        let list = |at: &str| value.pointer(at).and_then(Value::as_array).cloned().unwrap_or_default();
        let mut made = Pictures::default();
        match self {
            Self::OpenAi(_) => {
                for item in list("/data") {
                    match (item["b64_json"].as_str(), item["url"].as_str()) {
                        (Some(data), _) => made.take(data),
                        (None, Some(url)) => made.pictures.push(Picture::Link(url.to_owned())),
                        (None, None) => {}
                    }
                }
            }
            Self::Responses => {
                for item in list("/output") {
                    if item["type"] == "image_generation_call"
                        && let Some(data) = item["result"].as_str()
                    {
                        made.take(data);
                    }
                    let parts = item["content"].as_array().into_iter().flatten();
                    made.text
                        .extend(parts.filter_map(|p| p["text"].as_str().or(p["refusal"].as_str())));
                }
            }
            Self::Gemini => {
                for part in list("/candidates/0/content/parts") {
                    if let Some(data) = part.pointer("/inlineData/data").and_then(Value::as_str) {
                        made.take(data);
                    }
                    made.text.extend(part["text"].as_str());
                }
            }
        }
        if made.pictures.is_empty() {
            if let Some(fault) = made.faults.into_iter().next() {
                return Err(Fault::Malformed(fault));
            }
            let said = match made.text.is_empty() {
                true => brief(&value.to_string(), 200),
                false => brief(&made.text, 400),
            };
            return Err(Fault::Malformed(format!("there is no picture in it; it says: {said}")));
        }
        let usage = value.get("usage").or(value.get("usageMetadata"));
        made.usage = usage.map(Usage::from_provider).unwrap_or_default();
        Ok(made)
    }
}

impl Pictures {
    /// One picture, in base64. A bad one is no reason to lose the others.
    fn take(&mut self, data: &str) {
        match STANDARD.decode(data.trim()) {
            Ok(bytes) if file_type(&bytes).is_some() => self.pictures.push(Picture::Bytes(bytes)),
            Ok(_) => self.faults.push("a picture is no PNG, JPEG, GIF or WebP file".into()),
            Err(e) => self.faults.push(format!("a picture is not base64: {e}")),
        }
    }
}

/// Pictures over HTTP.
pub(crate) struct HttpPainter {
    pub api: ImageApi,
    pub requests: Whole,
}

impl Painter for HttpPainter {
    fn paint<'a>(&'a self, prompt: &'a str) -> BoxFuture<'a, Result<Pictures, BackendError>> {
        async move {
            let body = self.api.body(&self.requests.profile, prompt);
            self.requests.call(Ok(body), |answer| self.api.decode(answer)).await
        }
        .boxed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PNG: &str = "iVBORw0KGgo=";

    #[test]
    fn pictures_are_found_in_each_form() {
        let openai = json!({"data": [{"b64_json": PNG}, {"url": "https://pictures.test/1.png"}], "usage": {"input_tokens": 7, "output_tokens": 9}});
        let responses = json!({"status": "completed", "output": [
            {"type": "image_generation_call", "id": "ig_1", "status": "completed", "result": PNG},
            {"type": "message", "content": [{"type": "output_text", "text": "A cat."}]},
        ]});
        let gemini = json!({"candidates": [{"content": {"parts": [{"text": "A cat."}, {"inlineData": {"mimeType": "image/png", "data": PNG}}]}}]});
        let png = Picture::Bytes(STANDARD.decode(PNG).unwrap());
        let read = |api: ImageApi, value: &Value| api.decode(value.to_string().as_bytes()).unwrap();
        let made = read(ImageApi::OpenAi(""), &openai);
        let link = Picture::Link("https://pictures.test/1.png".into());
        assert_eq!(made.pictures, [png.clone(), link]);
        assert_eq!((made.usage.pt, made.usage.ct), (Some(7), Some(9)));
        for (api, value) in [(ImageApi::Responses, &responses), (ImageApi::Gemini, &gemini)] {
            let made = read(api, value);
            assert_eq!((&made.pictures[..], made.text.as_str()), (&[png.clone()][..], "A cat."));
        }
    }

    #[test]
    fn what_is_no_picture_is_an_error_that_says_what_came_instead() {
        for (api, value, words) in [
            (ImageApi::OpenAi(""), json!({"data": []}), "no picture"),
            (
                ImageApi::OpenAi(""),
                json!({"data": [{"b64_json": "%%"}]}),
                "not base64",
            ),
            (
                ImageApi::OpenAi(""),
                json!({"data": [{"b64_json": "PGh0bWw+"}]}),
                "is no PNG",
            ),
            (
                ImageApi::Responses,
                json!({"output": [{"type": "message", "content": [{"type": "refusal", "refusal": "Not a cat."}]}]}),
                "it says: Not a cat.",
            ),
        ] {
            let fault = api.decode(value.to_string().as_bytes()).unwrap_err();
            assert!(
                matches!(&fault, Fault::Malformed(text) if text.contains(words)),
                "{fault:?}"
            );
        }
    }

    #[test]
    fn a_bad_picture_does_not_take_the_good_ones_with_it() {
        let body = json!({"data": [{"b64_json": PNG}, {"b64_json": "%%"}]}).to_string();
        let made = ImageApi::OpenAi("").decode(body.as_bytes()).unwrap();
        assert_eq!((made.pictures.len(), made.faults.len()), (1, 1));
    }

    #[test]
    fn only_what_belongs_to_pictures_is_sent() {
        let mut profile = Profile::new("e", "openai", "gpt-image-1");
        profile.parameters.insert("temperature".into(), 0.into());
        profile.parameters.insert("size".into(), "1024x1024".into());
        let body = ImageApi::OpenAi("").body(&profile, "A cat.");
        assert_eq!(
            body,
            json!({"model": "gpt-image-1", "prompt": "A cat.", "size": "1024x1024"})
        );
        profile.model = "dall-e-3".into();
        assert_eq!(
            ImageApi::OpenAi("").body(&profile, "A cat.")["response_format"],
            "b64_json"
        );
        let body = ImageApi::Responses.body(&profile, "A cat.");
        assert_eq!(
            body["tools"],
            json!([{"type": "image_generation", "size": "1024x1024"}])
        );
    }
}
