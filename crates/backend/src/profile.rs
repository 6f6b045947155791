//! Everything a request needs to know of its endpoint.

use std::path::PathBuf;
use std::time::Duration;

use decanus_base::Secret;
use decanus_chat::Usage;
use serde_json::{Map, Value};

/// An endpoint with all its settings decided.
#[derive(Clone)]
pub struct Profile {
    /// The endpoint's name.
    pub name: String,
    /// The backend that speaks to it.
    pub backend: String,
    /// The base that the dialect appends its path to; empty for local models.
    pub url: String,
    /// The model.
    pub model: String,
    /// The credential, if any.
    pub key: Option<Secret>,
    /// Headers added to every request; their values may be credentials.
    pub headers: Vec<(String, Secret)>,
    /// Time limits.
    pub timeouts: Timeouts,
    /// Tries after the first one.
    pub retries: u32,
    /// Whether to ask a stream for token counts (`stream_options.include_usage`).
    pub stream_usage: bool,
    /// Which of two protocols a server that has both is spoken to in.
    pub api: Option<Api>,
    /// Whether a provider may keep the answer: `store` of the Responses API. None leaves it to the dialect.
    pub store: Option<bool>,
    /// Whether the Responses API goes on from the id of the last response instead of being sent the conversation.
    pub previous_response: bool,
    /// What this server does otherwise than others that speak its protocol.
    pub quirks: Quirks,
    /// What tokens cost.
    pub prices: Option<Prices>,
    /// How many requests it gets.
    pub limits: Limits,
    /// The endpoints to ask when this one fails.
    pub fallback: Vec<Fallback>,
    /// Request parameters of the endpoint file.
    pub parameters: Map<String, Value>,
    /// What looks wrong in that file.
    pub warnings: Vec<String>,
    /// The file it was read from.
    pub file: Option<PathBuf>,
    /// Whether that file is the user's own, so that it may start programs.
    pub file_is_own: bool,
    /// Program and arguments, for the backend that starts one.
    pub command: Vec<String>,
    /// The other machine, for the backend that asks one.
    pub relay: Option<Relay>,
    /// Region and credentials, for the backend that speaks to AWS.
    pub aws: Option<Aws>,
}

/// What an endpoint's file says of AWS. What it leaves open is decided as the tools of AWS decide it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Aws {
    /// The region.
    pub region: Option<String>,
    /// The profile of the user's own AWS configuration.
    pub profile: Option<String>,
    /// The id of an access key; not a secret by itself.
    pub access_key: Option<Secret>,
    /// What belongs to the id.
    pub secret_key: Option<Secret>,
    /// The token of temporary credentials.
    pub session_token: Option<Secret>,
    /// Whether the endpoint's URL was chosen by its file: then what the machine has of AWS must not go there unless it
    /// is AWS.
    pub url_of_file: bool,
}

/// Another machine that asks models for us: `server` and what belongs to it in an endpoint's file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Relay {
    /// `HOST` or `USER@HOST`, as ssh knows it.
    pub server: String,
    /// The folder of the requests there, relative to the home folder.
    pub dir: String,
    /// The endpoint to ask there; none for its default.
    pub endpoint: Option<String>,
    /// Arguments for ssh, one each.
    pub ssh_options: Vec<String>,
    /// Whether the far side is an original server, which takes single questions.
    pub plain: bool,
}

impl Relay {
    /// The folder where nothing else is said.
    pub const DIR: &str = ".scout/var/ask";

    /// The default folder of a machine.
    pub fn to(server: impl Into<String>) -> Self {
        Self {
            server: server.into(),
            dir: Self::DIR.into(),
            endpoint: None,
            ssh_options: Vec::new(),
            plain: false,
        }
    }

    /// The machine as errors name it.
    pub fn target(&self) -> String {
        format!("ssh {}", self.server)
    }

    /// Checks what becomes a part of command lines, here and on the other machine. `own` is whether the endpoint's file
    /// is the user's own.
    ///
    /// # Errors
    /// A text: which setting can't be used, and why.
    pub fn check(&self, own: bool) -> Result<(), String> {
        let plain = |text: &str, more: &str| text.chars().all(|c| c.is_ascii_alphanumeric() || more.contains(c));
        if self.server.is_empty() || self.server.starts_with(['-', '@']) || !plain(&self.server, "@.-_:[]%") {
            return Err("`server` must be HOST or USER@HOST, as ssh knows it; a port goes into `ssh_options`".into());
        }
        // The folder is a word of a remote shell's line: nothing in it may mean anything to a shell.
        let steps_up = self.dir.split('/').any(|part| part == "..");
        if self.dir.is_empty() || self.dir.starts_with('-') || steps_up || !plain(&self.dir, "/.-_") {
            return Err("`dir` may hold letters, digits and . - _ / only, and no `..`".into());
        }
        if own || self.ssh_options.is_empty() {
            return Ok(());
        }
        // ssh can be told to run programs here (ProxyCommand), so the file of a project may choose little.
        let mut options = self.ssh_options.iter();
        while let Some(option) = options.next() {
            let harmless = match option.as_str() {
                "-4" | "-6" | "-C" => true,
                "-p" => options.next().is_some_and(|port| port.parse::<u16>().is_ok()),
                _ => false,
            };
            if !harmless {
                return Err(format!(
                    "`ssh_options` {option} may make ssh run programs, which only an endpoint file of your own may do; if \
                     you trust it, copy it to the folder `endpoints` of ~/.decanus"
                ));
            }
        }
        Ok(())
    }
}

/// How many requests an endpoint gets; none is as many as there are.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Limits {
    /// At the same time.
    pub max_concurrency: Option<u32>,
    /// In a minute.
    pub requests_per_minute: Option<f64>,
    /// Tokens in a minute, of prompts and answers together.
    pub tokens_per_minute: Option<f64>,
}

/// An endpoint to ask when another one fails.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fallback {
    /// Its name.
    pub name: String,
    /// The line that names it.
    pub line: usize,
}

/// One of the protocols of OpenAI.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Api {
    /// Responses.
    Responses,
    /// Chat Completions.
    Chat,
}

/// What a server does otherwise than others that speak its protocol: the `quirks` of an endpoint's file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Quirks {
    /// The length of the longest tool name.
    pub max_tool_name: Option<usize>,
    /// Whether schemas are sent as strict ones. None leaves it to the dialect.
    pub strict_schema: Option<bool>,
    /// Whether thinking without a signature is sent back.
    pub unsigned_thinking: bool,
    /// Whether outputs and the user's text behind them become one message.
    pub merge_tool_results: bool,
}

/// Prices for a million tokens, in any one currency: the `prices` of an endpoint's file.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Prices {
    /// Of the prompt.
    pub input: f64,
    /// Of the answer, its reasoning included.
    pub output: f64,
    /// Of what was read from a cache; none is like `input`.
    pub cache_read: Option<f64>,
    /// Of what was written to a cache; none is like `input`.
    pub cache_write: Option<f64>,
    /// What long prompts cost instead, where that is more.
    pub long: Option<LongPrices>,
}

/// Prices for a million tokens of requests whose prompt is long.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LongPrices {
    /// The tokens of the longest prompt that is not long.
    pub above: u64,
    /// Of the prompt.
    pub input: f64,
    /// Of the answer, its reasoning included.
    pub output: f64,
    /// Of what was read from a cache; none is like `input`.
    pub cache_read: Option<f64>,
    /// Of what was written to a cache; none is like `input`.
    pub cache_write: Option<f64>,
}

impl Prices {
    /// What a request cost. `excluded` is whether the provider counts cached tokens beside the prompt (Anthropic, Bedrock)
    /// instead of as a part of it.
    pub fn cost(&self, usage: &Usage, excluded: bool) -> f64 {
        let count = |n: Option<u64>| n.unwrap_or(0) as f64;
        let (read, written) = (count(usage.cct), count(usage.cwt));
        let prompt = match excluded {
            true => count(usage.pt),
            false => (count(usage.pt) - read - written).max(0.0),
        };
        let all = prompt + read + written;
        let (input, output, cache_read, cache_write) = match self.long {
            Some(long) if all > long.above as f64 => (long.input, long.output, long.cache_read, long.cache_write),
            _ => (self.input, self.output, self.cache_read, self.cache_write),
        };
        let cached = read * cache_read.unwrap_or(input) + written * cache_write.unwrap_or(input);
        (prompt * input + cached + count(usage.ct) * output) / 1e6
    }
}

/// Time limits of requests to an endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timeouts {
    /// To make a connection.
    pub connect: Duration,
    /// From sending to the first byte of the answer.
    pub first_byte: Duration,
    /// Between two pieces of the answer.
    pub idle: Duration,
    /// For the whole request, retries included.
    pub total: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(10),
            first_byte: Duration::from_secs(120),
            idle: Duration::from_secs(60),
            total: Duration::from_secs(20 * 60),
        }
    }
}

impl std::fmt::Debug for Profile {
    // The URL may hold credentials.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Profile")
            .field("name", &self.name)
            .field("backend", &self.backend)
            .field("url", &crate::redact::show_url_text(&self.url))
            .field("model", &self.model)
            .field("key", &self.key)
            .field("headers", &self.headers)
            .field("timeouts", &self.timeouts)
            .field("retries", &self.retries)
            .field("stream_usage", &self.stream_usage)
            .field("api", &self.api)
            .field("store", &self.store)
            .field("previous_response", &self.previous_response)
            .field("quirks", &self.quirks)
            .field("limits", &self.limits)
            .field("fallback", &self.fallback)
            .field("parameters", &self.parameters)
            .field("file", &self.file)
            .field("file_is_own", &self.file_is_own)
            .field("command", &self.command)
            .field("relay", &self.relay)
            .field("aws", &self.aws)
            .finish()
    }
}

impl Profile {
    /// Whether the provider counts cached tokens beside those of the prompt.
    pub fn excludes_cached(&self) -> bool {
        ["anthropic", "bedrock"].contains(&self.backend.as_str())
    }

    /// An endpoint with default settings.
    pub fn new(name: impl Into<String>, backend: impl Into<String>, model: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            backend: backend.into(),
            url: String::new(),
            model: model.into(),
            key: None,
            headers: Vec::new(),
            timeouts: Timeouts::default(),
            retries: 3,
            stream_usage: true,
            api: None,
            store: None,
            previous_response: false,
            quirks: Quirks::default(),
            prices: None,
            warnings: Vec::new(),
            limits: Limits::default(),
            fallback: Vec::new(),
            parameters: Map::new(),
            file: None,
            file_is_own: false,
            command: Vec::new(),
            relay: None,
            aws: None,
        }
    }
}
