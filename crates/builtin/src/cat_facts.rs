//! Something about cats: a tool of the network that needs no arguments.

use decanus_chat::Effect;
use decanus_net::Request;
use decanus_tool::{FnTool, ToolError, ToolErrorClass};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::network::{Network, failure};

const URL: &str = "https://catfact.ninja/fact";

/// Arguments of `cat_facts`: none.
#[derive(Deserialize, JsonSchema)]
pub struct CatFacts {}

pub(crate) fn tool(network: Network) -> FnTool<CatFacts> {
    FnTool::new("cat_facts", "Tells a random fact about cats.", move |_: CatFacts, _| {
        let network = network.clone();
        async move {
            let reply = network
                .client()?
                .fetch(Request::get(URL))
                .await
                .map_err(|e| failure(&e))?;
            fact(&reply.body)
        }
    })
    .effect(Effect::ReadOnly)
    .volatile()
    .open_world()
    .example("Tell me something about cats.", json!({}))
}

fn fact(body: &[u8]) -> Result<String, ToolError> {
    let fail = |why: &str| ToolError::respond(ToolErrorClass::Tool, format!("the answer of {URL} {why}"));
    let value: Value = serde_json::from_slice(body).map_err(|_| fail("is not JSON"))?;
    let fact = value["fact"].as_str().map(str::trim).filter(|f| !f.is_empty());
    fact.map(str::to_owned).ok_or_else(|| fail("has no fact in it"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts() {
        assert_eq!(fact(br#"{"fact":"Cats purr.","length":10}"#).unwrap(), "Cats purr.");
        for bad in [&b"{"[..], b"[]", b"{}", br#"{"fact":""}"#, br#"{"fact":1}"#] {
            assert!(fact(bad).is_err());
        }
    }
}
