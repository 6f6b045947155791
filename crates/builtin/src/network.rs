//! What the tools that use the network have in common.

use std::sync::{Arc, OnceLock};

use decanus_net::{Authorizer, Client, Error, Reply};
use decanus_tool::{ToolError, ToolErrorClass};
use serde_json::{Map, Value};

/// Where network tools get their client from.
#[derive(Clone, Default)]
pub struct Network {
    client: Option<Client>,
    authorizer: Option<Arc<dyn Authorizer>>,
}

impl Network {
    /// The tools use this client, with its allowances and limits. Without one they use a client of their own that allows
    /// what the environment allows.
    pub fn over(client: Client) -> Self {
        Self {
            client: Some(client),
            authorizer: None,
        }
    }

    /// With credentials for `http_request`. The other tools never send any: pages are read as anybody would read them,
    /// and what is sent to a webhook shows by its signature who sent it.
    #[must_use]
    pub fn authorizer(mut self, authorizer: Arc<dyn Authorizer>) -> Self {
        self.authorizer = Some(authorizer);
        self
    }

    pub(crate) fn client(&self) -> Result<Client, ToolError> {
        static SHARED: OnceLock<Client> = OnceLock::new();
        if let Some(client) = self.client.as_ref().or_else(|| SHARED.get()) {
            return Ok(client.clone());
        }
        let client = Client::from_env().map_err(|e| failure(&e))?;
        Ok(SHARED.get_or_init(|| client).clone())
    }

    /// The client that adds credentials.
    pub(crate) fn authorized(&self) -> Result<Client, ToolError> {
        let client = self.client()?;
        Ok(match &self.authorizer {
            Some(authorizer) => client.with_authorizer(authorizer.clone()),
            None => client,
        })
    }
}

/// An error of the network as one of a tool.
pub(crate) fn failure(error: &Error) -> ToolError {
    ToolError::respond(class(error), error.to_string())
}

pub(crate) fn class(error: &Error) -> ToolErrorClass {
    match error.class() {
        "ToolArgumentError" => ToolErrorClass::Argument,
        "ToolNetworkError" => ToolErrorClass::Network,
        "ToolCertificateError" => ToolErrorClass::Certificate,
        "ToolTimeoutError" => ToolErrorClass::Timeout,
        "ToolHttpError" => ToolErrorClass::Http,
        _ => ToolErrorClass::Tool,
    }
}

/// Headers or members of a query: texts, numbers and booleans; where `lists`, also lists of these.
pub(crate) fn pairs(map: &Map<String, Value>, what: &str, lists: bool) -> Result<Vec<(String, String)>, ToolError> {
    let fail = |name: &str| {
        let name = decanus_base::text::brief(name, 60);
        ToolError::argument(format!("the value of '{name}' in {what} is no text, number or boolean"))
    };
    let mut out = Vec::new();
    for (name, value) in map {
        let items = match value {
            Value::Null => continue,
            Value::Array(items) if lists => items.as_slice(),
            one => std::slice::from_ref(one),
        };
        for item in items {
            let text = match item {
                Value::String(text) => text.clone(),
                Value::Number(number) => number.to_string(),
                Value::Bool(yes) => yes.to_string(),
                _ => return Err(fail(name)),
            };
            out.push((name.clone(), text));
        }
    }
    Ok(out)
}

/// A reply's headers: a name that stands there several times has its values with commas between, cookies a list.
pub(crate) fn headers(reply: &Reply) -> Map<String, Value> {
    let mut map = Map::new();
    for (name, value) in &reply.headers {
        match map.get_mut(name) {
            None if name == "set-cookie" => {
                map.insert(name.clone(), vec![value.clone()].into());
            }
            None => {
                map.insert(name.clone(), value.clone().into());
            }
            Some(Value::Array(values)) => values.push(value.clone().into()),
            Some(Value::String(values)) => {
                values.push_str(", ");
                values.push_str(value);
            }
            Some(_) => {}
        }
    }
    map
}
