//! `-o KEY=VALUE` and `option:` lines: what steers the run, and what goes to the provider.

use decanus_base::names::suggest;
use decanus_chat::plan::{ChatOptions, Place};
use decanus_tool::run::Limits;
use serde_json::{Map, Value};

use crate::error::Error;

/// Fields of endpoint files that are no parameters of any provider.
const ENDPOINT_ONLY: [&str; 14] = [
    "api_key",
    "command",
    "fallback",
    "headers",
    "key",
    "key_env",
    "max_concurrency",
    "prices",
    "quirks",
    "requests_per_minute",
    "retries",
    "timeouts",
    "tokens_per_minute",
    "url",
];

/// Options that steer decanus in this build.
const CONTROL: [&str; 11] = [
    "endpoint",
    "model",
    "tool_choice",
    "prompt_strategies",
    "persist",
    "format",
    "previous_response",
    "websearch",
    "max_rounds",
    "limits",
    "timeout",
];
/// Options that will steer it.
const LATER: [&str; 1] = ["backend"];
/// What a request says itself.
const REQUEST: [&str; 4] = ["messages", "tools", "stream", "stream_options"];
/// Parameters of providers that resemble an option of ours and are none misspelt.
const PROVIDERS: [&str; 4] = [
    "max_tokens",
    "max_output_tokens",
    "max_completion_tokens",
    "max_tool_calls",
];

/// Options, sorted by whom they are for.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Options {
    /// The endpoint to ask.
    pub endpoint: Option<String>,
    /// The model to ask.
    pub model: Option<String>,
    /// `auto`, `none`, `required` or a tool's name.
    pub tool_choice: Option<String>,
    /// Whether answers are kept in the cache and taken from it.
    pub persist: Option<bool>,
    /// Prompt strategies, by name.
    pub prompt_strategies: Option<String>,
    /// Limits by name, in the order given.
    pub limits: Vec<(String, String)>,
    /// What the provider gets.
    pub parameters: Map<String, Value>,
    /// Parameters that were removed, those of the endpoint's file too.
    pub removed: Vec<String>,
    /// What looks misspelt.
    pub warnings: Vec<String>,
}

/// What is to be said of a chat's options, each with its line.
#[derive(Debug, Clone, Default)]
pub struct Taken {
    /// Options that can't be taken.
    pub faults: Vec<(Place, Error)>,
    /// What looks misspelt.
    pub warnings: Vec<(Place, String)>,
}

impl Options {
    /// Takes one option; a later one of the same name replaces an earlier one. Values for the provider that read as a
    /// number, a boolean or JSON are sent as that.
    ///
    /// # Errors
    /// A usage error for an option that this build does not have.
    pub fn set(&mut self, key: &str, value: &str) -> Result<(), Error> {
        match key {
            "endpoint" => self.endpoint = Some(value.to_owned()),
            "model" => self.model = Some(value.to_owned()),
            "tool_choice" => self.tool_choice = Some(value.to_owned()),
            "prompt_strategies" => self.prompt_strategies = Some(value.to_owned()),
            "persist" => {
                let parsed = value.trim().trim_matches('"').parse();
                let wrong = |_| Error::usage(format!("persist takes true or false, not `{value}`"));
                self.persist = Some(parsed.map_err(wrong)?);
            }
            "max_rounds" => self.limits.push(("rounds".into(), value.to_owned())),
            "timeout" => self.limits.push(("request_time".into(), value.to_owned())),
            _ if REQUEST.contains(&key) => {
                return Err(Error::usage(format!(
                    "`{key}` is set by each request and can't be an option{}",
                    if key == "stream" {
                        "; --no-stream asks for the whole answer at once"
                    } else {
                        ""
                    }
                )));
            }
            _ if LATER.contains(&key) => {
                return Err(Error::usage(format!("option `{key}` is not available in this build")));
            }
            _ => match key.strip_prefix("limits.") {
                Some(name) => self.limits.push((name.to_owned(), value.to_owned())),
                None => {
                    if ENDPOINT_ONLY.contains(&key) {
                        self.warnings.push(format!(
                            "option `{key}` is sent to the provider as a parameter; what it means in an endpoint's file can \
                             only be said there"
                        ));
                    }
                    let near = suggest(key, CONTROL.iter().chain(&LATER).copied());
                    if let Some(near) = near.first().filter(|_| !PROVIDERS.contains(&key)) {
                        self.warnings.push(format!(
                            "option `{key}` is sent to the provider; did you mean `{near}`?"
                        ));
                    }
                    self.parameters.insert(key.to_owned(), parse(value));
                }
            },
        }
        Ok(())
    }

    /// Removes an option, whoever set it.
    pub fn unset(&mut self, key: &str) {
        match key {
            "endpoint" => self.endpoint = None,
            "model" => self.model = None,
            "tool_choice" => self.tool_choice = None,
            "prompt_strategies" => self.prompt_strategies = None,
            "persist" => self.persist = None,
            "max_rounds" => self.limits.retain(|(name, _)| name != "rounds"),
            "timeout" => self.limits.retain(|(name, _)| name != "request_time"),
            _ => match key.strip_prefix("limits.") {
                Some(limit) => self.limits.retain(|(name, _)| name != limit),
                None => {
                    self.parameters.shift_remove(key);
                    self.removed.push(key.to_owned());
                }
            },
        }
    }

    /// Takes the options of a chat.
    pub fn take(&mut self, chat: &ChatOptions) -> Taken {
        let mut taken = Taken::default();
        for setting in chat.iter().filter(|s| s.key != "previous_response_id") {
            let limits = self.limits.len();
            let set = self.set(&setting.key, &setting.text).and_then(|()| {
                // A limit is wrong where it is written, not where it is applied.
                let mut new = self.limits[limits..].iter();
                new.try_for_each(|(name, value)| Limits::default().set(name, value))
                    .map_err(Error::usage)
            });
            if let Err(error) = set {
                self.limits.truncate(limits);
                taken.faults.push((setting.place.clone(), error));
            }
            let warnings = std::mem::take(&mut self.warnings);
            taken
                .warnings
                .extend(warnings.into_iter().map(|w| (setting.place.clone(), w)));
        }
        taken
    }

    /// Sets the limits that the options name.
    ///
    /// # Errors
    /// For a limit that does not exist or a value that does not fit.
    pub fn apply_limits(&self, limits: &mut Limits) -> Result<(), Error> {
        self.limits
            .iter()
            .try_for_each(|(name, value)| limits.set(name, value))
            .map_err(Error::usage)
    }
}

fn parse(value: &str) -> Value {
    match serde_json::from_str(value) {
        Ok(parsed @ (Value::Number(_) | Value::Bool(_) | Value::Null | Value::Array(_) | Value::Object(_))) => parsed,
        _ => Value::String(value.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn options_go_where_they_belong() {
        let mut options = Options::default();
        for (key, value) in [
            ("temperature", "0.7"),
            ("stop", "[\"a\"]"),
            ("user", "007x"),
            ("tool_choice", "none"),
            ("limits.tool_time", "5s"),
            ("max_rounds", "3"),
        ] {
            options.set(key, value).unwrap();
        }
        assert_eq!(
            Value::Object(options.parameters.clone()),
            json!({"temperature": 0.7, "stop": ["a"], "user": "007x"})
        );
        let mut limits = Limits::default();
        options.apply_limits(&mut limits).unwrap();
        assert_eq!((limits.rounds, limits.tool_time.as_secs()), (3, 5));
        options.set("max_tokens", "16").unwrap();
        assert!(options.warnings.is_empty(), "{:?}", options.warnings);
        options.set("max_round", "3").unwrap();
        assert!(options.warnings[0].contains("did you mean `max_rounds`?"));
        options.set("format", "{\"a\": \"string\"}").unwrap();
        assert_eq!(options.parameters["format"], json!({"a": "string"}));
        options.set("websearch", "true").unwrap();
        assert_eq!(options.parameters["websearch"], true);
        options.set("limits.round", "3").unwrap();
        assert!(options.apply_limits(&mut limits).is_err());
    }
}
