//! What an endpoint's file says.

use std::time::Duration;

use decanus_base::Secret;
use decanus_base::names::did_you_mean;
use decanus_base::units::parse_duration;
use decanus_base::yaml::{Data, Node, YamlError};
use reqwest::Url;
use serde_json::{Map, Value};

use crate::profile::{Api, Fallback, Limits, Prices, Quirks, Relay, Timeouts};

/// The fields that are settings; anything else is a request parameter.
const FIELDS: [&str; 20] = [
    "backend",
    "url",
    "model",
    "key",
    "key_env",
    "headers",
    "timeouts",
    "request_timeout",
    "retries",
    "stream_usage",
    "api",
    "store",
    "previous_response",
    "quirks",
    "prices",
    "command",
    "max_concurrency",
    "requests_per_minute",
    "tokens_per_minute",
    "fallback",
];

/// Settings of a relay; with other backends they are parameters like any other.
const OF_RELAYS: [&str; 5] = ["server", "dir", "endpoint", "ssh_options", "plain"];

/// Settings of Bedrock; with other backends they are parameters like any other.
const OF_AWS: [&str; 8] = [
    "region",
    "profile",
    "access_key",
    "access_key_env",
    "secret_key",
    "secret_key_env",
    "session_token",
    "session_token_env",
];

/// Settings that this build does not have. As request parameters they would do harm, or silently nothing.
const NOT_YET: [&str; 1] = ["api_version"];

/// What a request says itself.
const NOT_PARAMETERS: [&str; 4] = ["messages", "tools", "stream", "stream_options"];

/// The file of an endpoint, read but not yet decided: what it leaves open is `None`.
#[derive(Debug, Clone, Default)]
pub(crate) struct EndpointFile {
    pub backend: Option<String>,
    pub url: Option<String>,
    pub model: Option<String>,
    pub key: Option<Secret>,
    /// The variable, and the error to give when it is not set.
    pub key_env: Option<(String, YamlError)>,
    pub headers: Vec<(String, Secret)>,
    pub timeouts: Timeouts,
    pub retries: Option<u32>,
    pub stream_usage: Option<bool>,
    pub api: Option<Api>,
    pub store: Option<bool>,
    pub previous_response: Option<bool>,
    pub quirks: Quirks,
    pub prices: Option<Prices>,
    pub command: Vec<String>,
    pub limits: Limits,
    pub fallback: Vec<Fallback>,
    pub relay: Option<Relay>,
    pub aws: Option<AwsSettings>,
    pub parameters: Map<String, Value>,
    pub warnings: Vec<String>,
}

/// What a file says of AWS.
#[derive(Debug, Clone, Default)]
pub(crate) struct AwsSettings {
    pub region: Option<String>,
    pub profile: Option<String>,
    pub access_key: Option<Credential>,
    pub secret_key: Option<Credential>,
    pub session_token: Option<Credential>,
}

/// A credential, or the variable that holds it and the error to give when that is not set.
#[derive(Debug, Clone)]
pub(crate) enum Credential {
    Given(Secret),
    Variable(String, YamlError),
}

/// Reads the file of the endpoint `name`.
pub(crate) fn read(node: &Node, name: &str) -> Result<EndpointFile, YamlError> {
    let mut file = EndpointFile::default();
    let named = node.get("backend").map_or(Some(name.to_owned()), |b| b.text().ok());
    let named = named.as_deref().map(str::trim);
    if named == Some("bedrock") {
        file.aws = Some(aws(node)?);
    }
    if node.get("backend").is_some() && named == Some("relay") {
        file.relay = Some(relay(node)?);
    }
    for (name, line, value) in node.mapping()? {
        let at = |message: String| {
            let mut error = value.error(message);
            error.line = *line;
            error
        };
        let set = !matches!(value.data, Data::Scalar(Value::Null));
        match name.as_str() {
            _ if NOT_YET.contains(&name.as_str()) => {
                return Err(at(format!("`{name}` is not available in this build")));
            }
            _ if NOT_PARAMETERS.contains(&name.as_str()) => {
                return Err(at(format!("`{name}` is set by each request and can't be a parameter")));
            }
            _ if !set && FIELDS.contains(&name.as_str()) => {}
            _ if file.relay.is_some() && OF_RELAYS.contains(&name.as_str()) => {}
            _ if file.aws.is_some() && OF_AWS.contains(&name.as_str()) => {}
            "url" | "key" | "key_env" | "headers" if file.relay.is_some() => {
                return Err(at(format!(
                    "a relay has no `{name}`: it belongs into the endpoint's file on the other machine"
                )));
            }
            "backend" => file.backend = Some(word(value)?),
            "url" => file.url = Some(url(value)?),
            "model" => file.model = Some(word(value)?),
            "key" => file.key = Some(Secret::new(secret(value)?)),
            "key_env" => {
                let variable = word(value)?;
                let missing = value.error(format!("the environment variable {variable} is not set"));
                file.key_env = Some((variable, missing));
            }
            "headers" => {
                for (header, _, value) in value.mapping()? {
                    file.headers.push((header.clone(), Secret::new(secret(value)?)));
                }
            }
            "timeouts" => timeouts(value, &mut file.timeouts)?,
            "request_timeout" => file.timeouts.total = duration(value)?,
            "retries" => file.retries = Some(retries(value)?),
            "api" => {
                file.api = Some(match word(value)?.as_str() {
                    "responses" => Api::Responses,
                    "chat" => Api::Chat,
                    other => return Err(value.error(format!("expected responses or chat, found `{other}`"))),
                });
            }
            "store" => file.store = Some(value.boolean()?),
            "previous_response" => file.previous_response = Some(value.boolean()?),
            "prices" => file.prices = Some(prices(value)?),
            "max_concurrency" => {
                let number = value.text()?.parse::<u32>().ok().filter(|n| *n >= 1);
                file.limits.max_concurrency =
                    Some(number.ok_or_else(|| value.error("expected a whole number, 1 or more"))?);
            }
            "requests_per_minute" => file.limits.requests_per_minute = Some(rate(value)?),
            "tokens_per_minute" => file.limits.tokens_per_minute = Some(rate(value)?),
            "fallback" => {
                for one in value.sequence()? {
                    file.fallback.push(Fallback {
                        name: word(one)?,
                        line: one.line,
                    });
                }
            }
            "quirks" => quirks(value, &mut file.quirks)?,
            "command" => {
                file.command = value
                    .sequence()?
                    .into_iter()
                    .map(Node::text)
                    .collect::<Result<_, _>>()?;
                // A text is no list of one: it looks like a line for a shell, and there is none.
                let is_list = matches!(value.data, Data::Sequence(_));
                if !is_list || file.command.first().is_none_or(|program| program.trim().is_empty()) {
                    return Err(value.error("expected a list: a program and its arguments"));
                }
            }
            "stream_usage" => file.stream_usage = Some(value.boolean()?),
            _ if QUIRKS.contains(&name.as_str()) => {
                return Err(at(format!("`{name}` belongs under `quirks:`")));
            }
            _ if KEYS.contains(&name.to_lowercase().replace('-', "_").as_str()) => {
                return Err(at(format!(
                    "`{name}` would be sent to the provider; the key is `key`, or `key_env` for a variable that holds it"
                )));
            }
            _ => {
                let guess = did_you_mean(name, FIELDS);
                if !guess.is_empty() {
                    file.warnings
                        .push(at(format!("`{name}` is sent as a request parameter{guess}")).to_string());
                }
                file.parameters.insert(name.clone(), value.to_json());
            }
        }
    }
    if file.key.is_some() && file.key_env.is_some() {
        let place = node.get("key_env").unwrap_or(node);
        return Err(place.error("give `key` or `key_env`, not both"));
    }
    if file.backend.as_deref() == Some("local") && file.url.is_some() {
        return Err(node.get("url").unwrap_or(node).error("a local model has no URL"));
    }
    let has_no_server = file.backend.as_deref() == Some("huggingface");
    for name in ["url", "key", "key_env", "headers", "api"]
        .into_iter()
        .filter(|_| has_no_server)
    {
        if let Some(place) = node.get(name) {
            return Err(place.error(format!("a checkpoint of transformers has no `{name}`")));
        }
    }
    let is_program = file.backend.as_deref() == Some("exec");
    if let Some(place) = node.get("command").filter(|_| !file.command.is_empty() && !is_program) {
        return Err(place.error("only `backend: exec` starts a program"));
    }
    if is_program && file.url.is_some() {
        return Err(node.get("url").unwrap_or(node).error("a program has no URL"));
    }
    Ok(file)
}

fn aws(node: &Node) -> Result<AwsSettings, YamlError> {
    let given = |name: &str| node.get(name).filter(|v| !matches!(v.data, Data::Scalar(Value::Null)));
    let credential = |name: &str| {
        let variable = format!("{name}_env");
        match (given(name), given(&variable)) {
            (Some(_), Some(both)) => Err(both.error(format!("give `{name}` or `{variable}`, not both"))),
            (Some(value), None) => Ok(Some(Credential::Given(Secret::new(secret(value)?)))),
            (None, Some(value)) => {
                let variable = word(value)?;
                let missing = value.error(format!("the environment variable {variable} is not set"));
                Ok(Some(Credential::Variable(variable, missing)))
            }
            (None, None) => Ok(None),
        }
    };
    let settings = AwsSettings {
        region: given("region").map(word).transpose()?,
        profile: given("profile").map(word).transpose()?,
        access_key: credential("access_key")?,
        secret_key: credential("secret_key")?,
        session_token: credential("session_token")?,
    };
    // The region becomes a part of a host's name.
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '-';
    if let (Some(region), Some(place)) = (&settings.region, node.get("region"))
        && !region.chars().all(plain)
    {
        return Err(place.error("expected the name of a region, such as eu-west-1"));
    }
    let at = |name: &str| given(name).or_else(|| given(&format!("{name}_env"))).unwrap_or(node);
    match (&settings.access_key, &settings.secret_key) {
        (Some(_), None) => return Err(at("access_key").error("`access_key` needs `secret_key` or `secret_key_env`")),
        (None, Some(_)) => return Err(at("secret_key").error("`secret_key` needs `access_key` or `access_key_env`")),
        (None, None) if settings.session_token.is_some() => {
            return Err(at("session_token").error("`session_token` needs `access_key` and `secret_key`"));
        }
        (Some(_), Some(_)) if settings.profile.is_some() => {
            return Err(at("profile").error("give `profile` or `access_key` and `secret_key`, not both"));
        }
        _ => {}
    }
    if let Some(key) = given("key").or_else(|| given("key_env"))
        && (settings.access_key.is_some() || settings.profile.is_some())
    {
        return Err(key.error("a Bedrock API key stands alone: leave out `profile` and `access_key`"));
    }
    Ok(settings)
}

fn relay(node: &Node) -> Result<Relay, YamlError> {
    let server = node
        .get("server")
        .ok_or_else(|| node.error("a relay needs `server`, a host as ssh knows it"))?;
    let mut relay = Relay::to(word(server)?);
    if let Some(value) = node.get("dir") {
        relay.dir = word(value)?.trim_end_matches('/').to_owned();
    }
    relay.endpoint = node.get("endpoint").map(word).transpose()?;
    if let Some(value) = node.get("plain") {
        relay.plain = value.boolean()?;
    }
    if let Some(value) = node.get("ssh_options") {
        // A text would look like a line for a shell, and there is none.
        if !matches!(value.data, Data::Sequence(_)) {
            return Err(value.error("expected a list, such as [\"-p\", \"2222\"]"));
        }
        relay.ssh_options = value
            .sequence()?
            .into_iter()
            .map(Node::text)
            .collect::<Result<_, _>>()?;
    }
    // What the file's place forbids is said when it is used.
    relay.check(true).map_err(|what| node.error(what))?;
    Ok(relay)
}

fn word(value: &Node) -> Result<String, YamlError> {
    let text = value.text()?;
    let text = text.trim();
    if text.is_empty() {
        Err(value.error("it is empty"))
    } else {
        Ok(text.to_owned())
    }
}

/// Like `text`, but an error never shows the value.
fn secret(value: &Node) -> Result<String, YamlError> {
    let text = value.text().map_err(|_| value.error("expected a text"))?;
    let text = text.trim();
    if text.is_empty() || text.chars().any(char::is_control) {
        return Err(value.error("it is empty or holds characters that a header can't"));
    }
    Ok(text.to_owned())
}

fn url(value: &Node) -> Result<String, YamlError> {
    let text = word(value)?;
    // The text is not shown: it may hold credentials.
    let url = Url::parse(&text).map_err(|e| value.error(format!("not a URL: {e}")))?;
    if !matches!(url.scheme(), "http" | "https") || url.host_str().is_none() {
        return Err(value.error("expected a URL that begins with http:// or https://"));
    }
    Ok(text)
}

fn duration(value: &Node) -> Result<Duration, YamlError> {
    let duration = parse_duration(&value.text()?).map_err(|e| value.error(e))?;
    if duration.is_zero() {
        Err(value.error("a time limit can't be 0"))
    } else {
        Ok(duration)
    }
}

fn timeouts(value: &Node, timeouts: &mut Timeouts) -> Result<(), YamlError> {
    value.only(&["connect", "first_byte", "idle", "total"])?;
    for (name, _, value) in value.mapping()? {
        match name.as_str() {
            "connect" => timeouts.connect = duration(value)?,
            "first_byte" => timeouts.first_byte = duration(value)?,
            "idle" => timeouts.idle = duration(value)?,
            _ => timeouts.total = duration(value)?,
        }
    }
    Ok(())
}

fn rate(value: &Node) -> Result<f64, YamlError> {
    let number = value.text()?.parse::<f64>().ok().filter(|n| n.is_finite() && *n > 0.0);
    number.ok_or_else(|| value.error("expected a number above 0"))
}

fn prices(value: &Node) -> Result<Prices, YamlError> {
    value.only(&["input", "output", "cache_read", "cache_write"])?;
    let mut prices = Prices::default();
    for (name, _, value) in value.mapping()? {
        let amount = value.text()?.parse::<f64>().ok().filter(|n| n.is_finite() && *n >= 0.0);
        let amount = amount.ok_or_else(|| value.error("expected an amount for a million tokens"))?;
        match name.as_str() {
            "input" => prices.input = amount,
            "output" => prices.output = amount,
            "cache_read" => prices.cache_read = Some(amount),
            _ => prices.cache_write = Some(amount),
        }
    }
    Ok(prices)
}

/// What servers do otherwise than others of their protocol.
const QUIRKS: [&str; 4] = [
    "max_tool_name",
    "strict_schema",
    "unsigned_thinking",
    "merge_tool_results",
];

/// What others call the key. No provider has a parameter of such a name.
const KEYS: [&str; 6] = [
    "api_key",
    "apikey",
    "access_token",
    "api_token",
    "auth_token",
    "authorization",
];

fn quirks(value: &Node, quirks: &mut Quirks) -> Result<(), YamlError> {
    value.only(&QUIRKS)?;
    for (name, _, value) in value.mapping()? {
        match name.as_str() {
            "max_tool_name" => {
                let number = value.text()?.parse::<usize>().ok().filter(|n| (8..=1024).contains(n));
                quirks.max_tool_name = Some(number.ok_or_else(|| value.error("expected a number from 8 to 1024"))?);
            }
            "strict_schema" => quirks.strict_schema = Some(value.boolean()?),
            "unsigned_thinking" => quirks.unsigned_thinking = value.boolean()?,
            _ => quirks.merge_tool_results = value.boolean()?,
        }
    }
    Ok(())
}

fn retries(value: &Node) -> Result<u32, YamlError> {
    let number = value.text()?.parse::<u32>().ok().filter(|n| *n <= 100);
    number.ok_or_else(|| value.error("expected a number from 0 to 100"))
}
