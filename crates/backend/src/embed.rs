//! Embeddings: texts to vectors.
//!
//! Requests go the way of all others (time limits, retries, errors without credentials); the three forms that providers
//! have for them are here.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use decanus_base::text::brief;
use decanus_chat::Usage;
use futures::FutureExt;
use futures::future::BoxFuture;
use serde_json::{Map, Value, json};

use crate::body::malformed;
use crate::dialect::{Fault, path_part};
use crate::error::BackendError;
use crate::ollama::with_options;
use crate::profile::Profile;
use crate::refusal;
use crate::whole::Whole;

/// Vectors of texts.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Embeddings {
    /// One vector for each text, in the order of the texts, all of one length.
    pub vectors: Vec<Vec<f32>>,
    /// Token counts of all requests together.
    pub usage: Usage,
    /// The model, as the provider names it.
    pub model: Option<String>,
}

/// Makes vectors of texts at one endpoint.
pub trait Embedder: Send + Sync {
    /// The vectors of some texts. Many texts are sent in several requests, one after the other. Dropping the future
    /// stops them.
    ///
    /// # Errors
    /// Those of requests; an answer without exactly one vector for each text.
    fn embed<'a>(&'a self, texts: &'a [String]) -> BoxFuture<'a, Result<Embeddings, BackendError>>;
}

/// The forms in which providers give embeddings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EmbeddingApi {
    /// OpenAI's `{model, input}`, under this path.
    OpenAi(&'static str),
    /// Ollama's `/api/embed`.
    Ollama,
    /// Gemini's `:batchEmbedContents`.
    Gemini,
    /// Bedrock's `InvokeModel`, in the form of Titan or, for its models, of Cohere.
    Bedrock,
}

impl EmbeddingApi {
    /// What is appended to the path of the endpoint's URL.
    pub(crate) fn path(self, profile: &Profile) -> String {
        match self {
            Self::OpenAi(path) => path.into(),
            Self::Ollama => "/api/embed".into(),
            Self::Gemini => format!("/{}:batchEmbedContents", gemini_model(profile)),
            Self::Bedrock => format!("/model/{}/invoke", path_part(&profile.model)),
        }
    }

    /// The most texts of one request: what servers of this kind take by default, and no more than an answer that is
    /// large already.
    fn most_texts(self, profile: &Profile) -> usize {
        match self {
            Self::OpenAi(_) => 128,
            Self::Ollama => 64,
            Self::Gemini => 100,
            Self::Bedrock if is_cohere(profile) => 96,
            Self::Bedrock => 1,
        }
    }

    fn body(self, profile: &Profile, texts: &[String]) -> Result<Value, Fault> {
        // Parameters of chat requests are refused here, so these are the only ones.
        let only = |names: &[&str]| -> Map<String, Value> {
            let wanted = profile
                .parameters
                .iter()
                .filter(|(name, _)| names.contains(&name.as_str()));
            wanted.map(|(name, value)| (name.clone(), value.clone())).collect()
        };
        let mut body = Map::new();
        match self {
            Self::OpenAi(_) => {
                body.insert("model".into(), profile.model.as_str().into());
                body.insert("input".into(), json!(texts));
                body.extend(only(&[
                    "dimensions",
                    "encoding_format",
                    "input_type",
                    "truncate",
                    "user",
                ]));
            }
            Self::Ollama => {
                body.insert("model".into(), profile.model.as_str().into());
                body.insert("input".into(), json!(texts));
                body.extend(with_options(only(&[
                    "dimensions",
                    "keep_alive",
                    "truncate",
                    "options",
                    "num_ctx",
                ]))?);
            }
            Self::Gemini => {
                let model = gemini_model(profile);
                let dimensions = profile.parameters.get("dimensions");
                let requests = texts.iter().map(|text| {
                    let mut request = json!({"model": model, "content": {"parts": [{"text": text}]}});
                    if let Some(dimensions) = dimensions {
                        request["outputDimensionality"] = dimensions.clone();
                    }
                    request
                });
                body.insert("requests".into(), requests.collect());
            }
            Self::Bedrock if is_cohere(profile) => {
                body.insert("texts".into(), json!(texts));
                body.insert("input_type".into(), "search_document".into());
                body.extend(only(&["input_type", "truncate", "output_dimension"]));
            }
            Self::Bedrock => {
                body.insert("inputText".into(), texts.first().map_or("", String::as_str).into());
                body.extend(only(&["dimensions", "normalize"]));
            }
        }
        Ok(Value::Object(body))
    }

    pub(crate) fn decode(self, body: &[u8], texts: usize) -> Result<Embeddings, Fault> {
        let value: Value = serde_json::from_slice(body).map_err(|e| malformed(body, &e))?;
        if let Some(fault) = refusal::from_value(&value) {
            return Err(fault);
        }
        let value = if matches!(self, Self::Bedrock) {
            bedrock_answer(value)
        } else {
            value
        };
        let (list, member, usage) = match self {
            Self::OpenAi(_) => ("data", Some("embedding"), value.get("usage")),
            Self::Ollama => ("embeddings", None, Some(&value)),
            Self::Gemini => ("embeddings", Some("values"), value.get("usageMetadata")),
            Self::Bedrock => ("embeddings", None, value.get("usage")),
        };
        let items = value.get(list).and_then(Value::as_array).ok_or_else(|| {
            let said = brief(&value.to_string(), 200);
            Fault::Malformed(format!("there is no list `{list}` in {said}"))
        })?;
        if items.len() != texts {
            return Err(Fault::Malformed(format!(
                "{texts} texts were sent and {} vectors came",
                items.len()
            )));
        }
        let mut vectors: Vec<Option<Vec<f32>>> = vec![None; texts];
        for (position, item) in items.iter().enumerate() {
            let index = item.get("index").and_then(Value::as_u64);
            let index = index.map_or(Ok(position), usize::try_from).unwrap_or(usize::MAX);
            let place = vectors.get_mut(index).filter(|place| place.is_none());
            let place =
                place.ok_or_else(|| Fault::Malformed(format!("the index {index} has no text, or comes twice")))?;
            let numbers = member.map_or(Some(item), |member| item.get(member));
            *place = Some(vector(numbers).map_err(|what| Fault::Malformed(format!("vector {index}: {what}")))?);
        }
        // All places are taken: there are as many as items, and each item took another one.
        let vectors: Vec<Vec<f32>> = vectors.into_iter().flatten().collect();
        same_length(&vectors).map_err(Fault::Malformed)?;
        Ok(Embeddings {
            vectors,
            usage: usage.map(Usage::from_provider).unwrap_or_default(),
            model: value.get("model").and_then(Value::as_str).map(str::to_owned),
        })
    }
}

fn gemini_model(profile: &Profile) -> String {
    let model = profile.model.as_str();
    format!("models/{}", model.strip_prefix("models/").unwrap_or(model))
}

fn is_cohere(profile: &Profile) -> bool {
    profile.model.contains("cohere.")
}

/// Titan's one vector, and Cohere's by type, as the list that Cohere gives otherwise.
fn bedrock_answer(mut value: Value) -> Value {
    let tokens = value.get("inputTextTokenCount").cloned();
    let vectors = if let Some(vector) = value.get_mut("embedding") {
        json!([vector.take()])
    } else if let Some(vectors) = value.pointer_mut("/embeddings/float") {
        vectors.take()
    } else {
        return value;
    };
    json!({"embeddings": vectors, "usage": {"prompt_tokens": tokens}})
}

/// A vector: numbers, or little-endian 32-bit floats in base64.
fn vector(value: Option<&Value>) -> Result<Vec<f32>, String> {
    let numbers = match value {
        Some(Value::Array(numbers)) => {
            let number = |n: &Value| n.as_f64().map(|n| n as f32);
            let numbers: Option<Vec<f32>> = numbers.iter().map(number).collect();
            numbers.ok_or("it holds something that is no number")?
        }
        Some(Value::String(text)) => {
            let bytes = STANDARD.decode(text).map_err(|e| format!("not base64: {e}"))?;
            if bytes.len() % 4 != 0 {
                return Err(format!("{} bytes are no 32-bit numbers", bytes.len()));
            }
            let number = |b: &[u8]| f32::from_le_bytes([b[0], b[1], b[2], b[3]]);
            bytes.chunks_exact(4).map(number).collect()
        }
        _ => return Err("it is missing".into()),
    };
    match numbers {
        empty if empty.is_empty() => Err("it is empty".into()),
        numbers if numbers.iter().any(|n| !n.is_finite()) => Err("it holds a number that is not finite".into()),
        numbers => Ok(numbers),
    }
}

pub(crate) fn same_length(vectors: &[Vec<f32>]) -> Result<(), String> {
    let mut lengths = vectors.iter().map(Vec::len);
    let first = lengths.next();
    match lengths.find(|length| Some(*length) != first) {
        Some(other) => Err(format!("vectors of {} and of {other} numbers", first.unwrap_or(0))),
        None => Ok(()),
    }
}

/// Embeddings over HTTP.
pub(crate) struct HttpEmbedder {
    pub api: EmbeddingApi,
    pub requests: Whole,
}

impl Embedder for HttpEmbedder {
    fn embed<'a>(&'a self, texts: &'a [String]) -> BoxFuture<'a, Result<Embeddings, BackendError>> {
        async move {
            let mut all = Embeddings::default();
            for some in texts.chunks(self.api.most_texts(&self.requests.profile)) {
                let body = self.api.body(&self.requests.profile, some);
                let decode = |answer: &[u8]| self.api.decode(answer, some.len());
                let part = self.requests.call(body, decode).await?;
                all.vectors.extend(part.vectors);
                all.usage += part.usage;
                all.model = all.model.or(part.model);
            }
            // Another model may have answered in between.
            same_length(&all.vectors).map_err(|reason| BackendError::Malformed {
                target: self.requests.target.shown.clone(),
                reason,
            })?;
            Ok(all)
        }
        .boxed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPENAI: EmbeddingApi = EmbeddingApi::OpenAi("/embeddings");

    fn decode(api: EmbeddingApi, value: &Value, texts: usize) -> Result<Vec<Vec<f32>>, Fault> {
        api.decode(value.to_string().as_bytes(), texts).map(|e| e.vectors)
    }

    #[test]
    fn vectors_come_in_the_order_of_the_texts() {
        let body = json!({"data": [{"index": 1, "embedding": [2, 2.5]}, {"index": 0, "embedding": "AACAPwAAAEA="}]});
        assert_eq!(decode(OPENAI, &body, 2), Ok(vec![vec![1.0, 2.0], vec![2.0, 2.5]]));
        let body = json!({"embeddings": [{"values": [1]}, {"values": [2]}]});
        assert_eq!(decode(EmbeddingApi::Gemini, &body, 2), Ok(vec![vec![1.0], vec![2.0]]));
    }

    #[test]
    fn anything_but_one_vector_for_each_text_is_an_error() {
        for (data, words) in [
            (json!([{"embedding": [1]}]), "2 texts were sent and 1 vectors came"),
            (
                json!([{"index": 0, "embedding": [1]}, {"index": 0, "embedding": [1]}]),
                "comes twice",
            ),
            (
                json!([{"index": 0, "embedding": [1]}, {"index": 7, "embedding": [1]}]),
                "index 7",
            ),
            (
                json!([{"embedding": [1]}, {"embedding": [1, 2]}]),
                "vectors of 1 and of 2 numbers",
            ),
            (
                json!([{"embedding": [1]}, {"embedding": [null]}]),
                "vector 1: it holds something that is no number",
            ),
            (json!([{"embedding": [1]}, {"embedding": []}]), "vector 1: it is empty"),
            (json!([{"embedding": [1]}, {}]), "vector 1: it is missing"),
            (json!([{"embedding": [1]}, {"embedding": "AAA"}]), "not base64"),
            (
                json!([{"embedding": [1]}, {"embedding": "AAA="}]),
                "2 bytes are no 32-bit numbers",
            ),
        ] {
            let fault = decode(OPENAI, &json!({"data": data}), 2).unwrap_err();
            assert!(matches!(&fault, Fault::Malformed(m) if m.contains(words)), "{fault:?}");
        }
        assert!(matches!(decode(OPENAI, &json!({}), 1), Err(Fault::Malformed(_))));
        assert!(matches!(
            decode(OPENAI, &json!({"error": "no"}), 1),
            Err(Fault::Refused { .. })
        ));
    }

    #[test]
    fn only_parameters_of_embeddings_are_sent() {
        let mut profile = Profile::new("e", "openai", "m");
        profile.parameters = Map::from_iter([
            ("temperature".into(), json!(0)),
            ("dimensions".into(), json!(8)),
            ("num_ctx".into(), json!(4096)),
        ]);
        let texts = ["a".to_owned()];
        assert_eq!(
            OPENAI.body(&profile, &texts).unwrap(),
            json!({"model": "m", "input": ["a"], "dimensions": 8})
        );
        assert_eq!(
            EmbeddingApi::Ollama.body(&profile, &texts).unwrap(),
            json!({"model": "m", "input": ["a"], "dimensions": 8, "options": {"num_ctx": 4096}})
        );
        assert_eq!(
            EmbeddingApi::Gemini.body(&profile, &texts).unwrap(),
            json!({"requests": [{"model": "models/m", "content": {"parts": [{"text": "a"}]}, "outputDimensionality": 8}]})
        );
        assert_eq!(EmbeddingApi::Gemini.path(&profile), "/models/m:batchEmbedContents");
    }
}
