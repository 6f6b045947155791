//! One request that is answered by one JSON body, for what is no conversation: embeddings, pictures.

use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use decanus_chat::Usage;
use reqwest::header::{ACCEPT, HeaderValue};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::client::Clients;
use crate::conversation::{CallCx, Delta};
use crate::dialect::{Fault, Framing, StreamDecoder};
use crate::error::BackendError;
use crate::exchange::{Exchange, Outgoing, Target};
use crate::profile::Profile;
use crate::reader::Reader;
use crate::refusal;
use crate::retry::Backoff;
use crate::tool_names::ToolNames;

/// Somewhere to send such requests.
pub(crate) struct Whole {
    pub clients: Clients,
    pub backoff: Backoff,
    pub profile: Arc<Profile>,
    pub target: Arc<Target>,
}

impl Whole {
    /// Sends a body and reads the answer's; with the tries, time limits and errors of all other requests.
    pub async fn call<T: Send>(
        &self,
        body: Result<Value, Fault>,
        decode: impl Fn(&[u8]) -> Result<T, Fault> + Send + Sync,
    ) -> Result<T, BackendError> {
        let body = body.map_err(|fault| match fault {
            Fault::Config(what) => BackendError::Config(what),
            other => BackendError::Internal(format!("encoding a request gave {other:?}")),
        })?;
        let client = self.clients.get(&self.target.url, self.profile.timeouts.connect)?;
        let mut headers = self.target.headers.clone();
        headers.insert(ACCEPT, HeaderValue::from_static("application/json"));
        let request = Outgoing {
            client,
            url: self.target.url.clone(),
            headers,
            body: Bytes::from(body.to_string()),
        };
        let cx = CallCx {
            cancel: CancellationToken::new(),
            timeout: self.profile.timeouts.total,
            stream: false,
            explain: false,
            pass: None,
            raw: Default::default(),
        };
        let reader = Once {
            decode,
            read: Mutex::new(None),
        };
        let names = Arc::new(ToolNames::default());
        let exchange = Exchange::new(reader, &self.profile, &self.target, request, names, &cx, self.backoff);
        let reader = exchange.run().await?;
        let read = reader.read.into_inner().unwrap_or_else(PoisonError::into_inner);
        read.ok_or_else(|| BackendError::Internal("an answer was not read".into()))
    }
}

/// Reads one answer; a body gives no deltas, what it says is kept here.
struct Once<T, F> {
    decode: F,
    read: Mutex<Option<T>>,
}

impl<T: Send, F: Fn(&[u8]) -> Result<T, Fault> + Send + Sync> Reader for Once<T, F> {
    fn stream(&self) -> Option<(Framing, Box<dyn StreamDecoder>)> {
        None
    }

    fn decode(&self, body: &[u8]) -> Result<Vec<Delta>, Fault> {
        let read = (self.decode)(body)?;
        *self.read.lock().unwrap_or_else(PoisonError::into_inner) = Some(read);
        Ok(Vec::new())
    }

    fn refusal(&self, status: u16, body: &[u8]) -> Fault {
        refusal::from_body(status, body)
    }

    fn prompt_was_cut(&self, _: &Usage) -> Option<String> {
        None
    }
}
