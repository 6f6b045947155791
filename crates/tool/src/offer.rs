//! A tool on its way into a registry, with what the model is told of it.

use std::sync::Arc;

use decanus_base::names::did_you_mean;
use decanus_chat::plan::Pair;
use decanus_chat::{Arguments, ToolDefinition};
use serde_json::{Map, Value};

use crate::schema::prepare;
use crate::tool::Tool;

/// A tool, its group, and its definition as it is offered.
#[derive(Clone)]
pub struct Offer {
    /// Where it comes from: `builtin`, or the workflow's name.
    pub group: String,
    /// The tool.
    pub tool: Arc<dyn Tool>,
    /// What the model is told; by default what the tool says of itself.
    pub definition: ToolDefinition,
}

impl From<(String, Arc<dyn Tool>)> for Offer {
    fn from((group, tool): (String, Arc<dyn Tool>)) -> Self {
        let definition = tool.definition().clone();
        Self {
            group,
            tool,
            definition,
        }
    }
}

impl Offer {
    /// The same tool with only the inputs in `shown`, and with those in `forced` hidden and set in every call, over
    /// whatever the model sends.
    ///
    /// # Errors
    /// A text: an input that the tool does not have, a value that does not fit, a required input that is neither shown
    /// nor set.
    pub fn narrow(mut self, shown: &[String], forced: &[Pair]) -> Result<Self, String> {
        let name = &self.definition.name;
        let full = self.definition.wire_parameters();
        let empty = Map::new();
        let properties = full.get("properties").and_then(Value::as_object).unwrap_or(&empty);
        for asked in shown.iter().chain(forced.iter().map(|p| &p.key)) {
            if !properties.contains_key(asked) {
                let guess = did_you_mean(asked, properties.keys().map(String::as_str));
                let known: Vec<&str> = properties.keys().map(String::as_str).collect();
                let known = if known.is_empty() {
                    "none".into()
                } else {
                    known.join(", ")
                };
                return Err(format!("{name} has no input `{asked}`{guess} (inputs: {known})"));
            }
        }
        let defaults = set_inputs(&self.definition, properties, forced)?;
        let is_set = |input: &str| defaults.contains_key(input) || self.definition.defaults.contains_key(input);
        let options = self.tool.options();
        let is_shown = |input: &str| (shown.iter().any(|s| s == input) || options.contains(&input)) && !is_set(input);
        for input in properties.keys().filter(|i| self.definition.is_required(i)) {
            if !is_shown(input) && !is_set(input) {
                return Err(format!(
                    "{name} requires the input `{input}`, which is neither shown nor set"
                ));
            }
        }
        let kept: Map<String, Value> = properties
            .iter()
            .filter(|(input, _)| is_shown(input))
            .map(|(input, schema)| (input.clone(), schema.clone()))
            .collect();
        let required: Vec<Value> = kept
            .keys()
            .filter(|i| self.definition.is_required(i))
            .map(|i| i.as_str().into())
            .collect();
        let mut parameters = full.as_object().cloned().unwrap_or_default();
        parameters.insert("properties".into(), Value::Object(kept));
        parameters.insert("required".into(), Value::Array(required));
        self.definition.parameters = Value::Object(parameters);
        self.definition.defaults.extend(defaults);
        // An example that uses what is hidden would teach the model to send it.
        let definition = &mut self.definition;
        let shown_only = |arguments: &Map<String, Value>| {
            arguments
                .keys()
                .all(|key| definition.parameters["properties"].get(key).is_some())
        };
        definition.examples.retain(|e| shown_only(&e.arguments));
        Ok(self)
    }
}

/// The values of the hidden inputs, checked against their schemas.
fn set_inputs(
    definition: &ToolDefinition,
    properties: &Map<String, Value>,
    forced: &[Pair],
) -> Result<Map<String, Value>, String> {
    let schema = |key: &str| properties.get(key).cloned().unwrap_or_default();
    let values: Map<String, Value> = forced
        .iter()
        .map(|p| (p.key.clone(), p.value(&schema(&p.key))))
        .collect();
    let only: Map<String, Value> = forced.iter().map(|p| (p.key.clone(), schema(&p.key))).collect();
    let alone = ToolDefinition {
        name: definition.name.clone(),
        parameters: serde_json::json!({"type": "object", "properties": only}),
        ..ToolDefinition::default()
    };
    prepare(&Arguments::Object(values), &alone)
        .map(|prepared| prepared.args.into_owned())
        .map_err(|e| e.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fn_tool::FnTool;
    use decanus_chat::plan::words;
    use schemars::JsonSchema;
    use serde::Deserialize;
    use serde_json::json;

    #[derive(Deserialize, JsonSchema)]
    struct Inputs {
        #[allow(dead_code)]
        place: String,
        #[allow(dead_code)]
        days: Option<u32>,
        #[allow(dead_code)]
        tags: Option<Vec<String>>,
    }

    fn offer() -> Offer {
        let tool: Arc<dyn Tool> = Arc::new(FnTool::new("weather", "", |_: Inputs, _| async { Ok(()) }));
        Offer::from(("g".to_owned(), tool))
    }

    fn narrow(shown: &[&str], forced: &str) -> Result<ToolDefinition, String> {
        let shown: Vec<String> = shown.iter().map(|s| (*s).to_owned()).collect();
        let forced: Vec<Pair> = words(forced).unwrap().iter().filter_map(|w| w.pair()).collect();
        offer().narrow(&shown, &forced).map(|o| o.definition)
    }

    #[test]
    fn only_what_is_shown_is_sent_and_what_is_set_holds() {
        let definition = narrow(&["place"], "days=3 tags=a,b").unwrap();
        let names: Vec<&String> = definition.properties().map(|(name, _)| name).collect();
        assert_eq!(names, ["place"]);
        assert_eq!(
            Value::Object(definition.defaults.clone()),
            json!({"days": 3, "tags": ["a", "b"]})
        );
        let sent = json!({"place": "x", "days": 9, "tags": ["no"]});
        let prepared = prepare(&Arguments::from_value(Some(&sent)), &definition).unwrap();
        assert_eq!(
            Value::Object(prepared.args.into_owned()),
            json!({"place": "x", "days": 3, "tags": ["a", "b"]})
        );
        assert_eq!(narrow(&[], "place=x").unwrap().properties().count(), 0);
    }

    #[test]
    fn what_does_not_fit_is_named() {
        assert!(
            narrow(&["place", "day"], "")
                .unwrap_err()
                .contains("did you mean days?")
        );
        assert!(narrow(&["place"], "days=many").unwrap_err().contains("'days'"));
        assert_eq!(
            narrow(&["days"], "").unwrap_err(),
            "weather requires the input `place`, which is neither shown nor set"
        );
    }
}
