//! Endpoints: `endpoints/NAME.yaml` of the project and of the user, the endpoint files of Scout, and the names that
//! exist without a file.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use decanus_base::names::{did_you_mean, is_valid};
use decanus_base::yaml::{self, YamlError};
use decanus_base::{Diagnostic, ErrorKind, Project, Secret};

use crate::endpoint_file::{AwsSettings, Credential, EndpointFile, read};
use crate::prices;
use crate::profile::{Aws, Profile};
use crate::redact::show_url_text;

/// Why an endpoint can't be used.
#[derive(Debug, Clone, thiserror::Error)]
pub enum EndpointError {
    /// There is no endpoint of that name.
    #[error("unknown endpoint `{name}`{guess}")]
    Unknown {
        /// The name.
        name: String,
        /// What may have been meant, as the end of a sentence.
        guess: String,
        /// The names that exist.
        known: Vec<String>,
        /// The folders that were looked in.
        looked_in: Vec<PathBuf>,
    },
    /// Its file is wrong.
    #[error("{0}")]
    File(#[from] YamlError),
    /// Its file can't be read.
    #[error("{0}")]
    Io(String),
    /// Its settings can't work together, or need something from the environment that is not there.
    #[error("{0}")]
    Config(String),
}

impl Diagnostic for EndpointError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Unknown { .. } => ErrorKind::Usage,
            _ => ErrorKind::Config,
        }
    }

    fn hints(&self) -> Vec<String> {
        match self {
            Self::Unknown { known, looked_in, .. } => {
                let folders: Vec<_> = looked_in.iter().map(|d| d.display().to_string()).collect();
                vec![
                    format!("known: {}", known.join(", ")),
                    format!("looked in {}", folders.join(", ")),
                ]
            }
            _ => Vec::new(),
        }
    }
}

/// What `endpoint list` shows of an endpoint: never its key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndpointInfo {
    /// Its name.
    pub name: String,
    /// The backend that speaks to it.
    pub backend: String,
    /// The model; empty when none is set.
    pub model: String,
    /// The URL without credentials; empty for local models.
    pub url: String,
    /// Whether a key is set.
    pub key_set: bool,
    /// The file, or what made it exist.
    pub source: String,
    /// Fields that look misspelt.
    pub warnings: Vec<String>,
    /// Why it can't be used, if it can't.
    pub error: Option<String>,
}

/// What a backend's own name stands for, and which variables configure it. In each list the first set variable wins.
struct BuiltIn {
    backend: &'static str,
    url: &'static str,
    model: &'static str,
    url_variables: &'static [&'static str],
    key_variables: &'static [&'static str],
    model_variables: &'static [&'static str],
}

const BUILT_IN: &[BuiltIn] = &[
    BuiltIn {
        backend: "anthropic",
        url: "https://api.anthropic.com/v1",
        model: "claude-sonnet-4-5",
        url_variables: &["ANTHROPIC_URL", "ANTHROPIC_BASE_URL"],
        key_variables: &["ANTHROPIC_KEY", "ANTHROPIC_API_KEY"],
        model_variables: &["ANTHROPIC_MODEL"],
    },
    BuiltIn {
        backend: "bedrock",
        // It depends on the region, which the backend decides.
        url: "",
        model: "",
        url_variables: &["AWS_ENDPOINT_URL_BEDROCK_RUNTIME", "AWS_ENDPOINT_URL"],
        key_variables: &["AWS_BEARER_TOKEN_BEDROCK"],
        model_variables: &["BEDROCK_MODEL_ID"],
    },
    BuiltIn {
        backend: "gemini",
        url: "https://generativelanguage.googleapis.com/v1beta",
        model: "gemini-2.5-flash",
        url_variables: &["GEMINI_URL"],
        key_variables: &["GEMINI_API_KEY", "GOOGLE_API_KEY"],
        model_variables: &["GEMINI_MODEL"],
    },
    BuiltIn {
        backend: "huggingface",
        url: "",
        model: "",
        url_variables: &[],
        key_variables: &[],
        model_variables: &["HUGGINGFACE_MODEL", "HF_MODEL"],
    },
    BuiltIn {
        backend: "local",
        url: "",
        model: "",
        url_variables: &[],
        key_variables: &[],
        model_variables: &[],
    },
    BuiltIn {
        backend: "ollama",
        url: "http://127.0.0.1:11434",
        model: "llama3.1",
        url_variables: &["OLLAMA_URL", "OLLAMA_HOST"],
        key_variables: &["OLLAMA_KEY", "OLLAMA_API_KEY"],
        model_variables: &["OLLAMA_MODEL"],
    },
    BuiltIn {
        backend: "openai",
        url: "https://api.openai.com/v1",
        model: "gpt-5-nano",
        url_variables: &["OPENAI_URL", "OPENAI_BASE_URL"],
        key_variables: &["OPENAI_KEY", "OPENAI_API_KEY"],
        model_variables: &["OPENAI_MODEL"],
    },
    BuiltIn {
        backend: "openwebui",
        url: "",
        model: "llama3.1",
        url_variables: &["OPENWEBUI_URL"],
        key_variables: &["OPENWEBUI_KEY", "OPENWEBUI_API_KEY"],
        model_variables: &["OPENWEBUI_MODEL"],
    },
    BuiltIn {
        backend: "responses",
        url: "https://api.openai.com/v1",
        model: "gpt-5-nano",
        url_variables: &["RESPONSES_URL", "OPENAI_URL", "OPENAI_BASE_URL"],
        key_variables: &["RESPONSES_KEY", "OPENAI_KEY", "OPENAI_API_KEY"],
        model_variables: &["RESPONSES_MODEL", "OPENAI_MODEL"],
    },
    BuiltIn {
        backend: "vllm",
        url: "http://127.0.0.1:8000/v1",
        model: "vllm",
        url_variables: &["VLLM_URL"],
        key_variables: &["VLLM_KEY", "VLLM_API_KEY"],
        model_variables: &["VLLM_MODEL"],
    },
];

fn built_in(backend: &str) -> Option<&'static BuiltIn> {
    BUILT_IN.iter().find(|b| b.backend == backend)
}

/// Reads a variable of the environment; tests give their own.
pub type Variables = Arc<dyn Fn(&str) -> Option<String> + Send + Sync>;

/// The endpoints in reach of a project.
#[derive(Clone)]
pub struct Endpoints {
    folders: Vec<PathBuf>,
    /// Those of the folders that are the user's own.
    own: Vec<PathBuf>,
    /// The project's and the user's tables of prices, nearest first; they need not exist.
    prices: Vec<PathBuf>,
    variables: Variables,
}

impl std::fmt::Debug for Endpoints {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Endpoints")
            .field("folders", &self.folders)
            .finish_non_exhaustive()
    }
}

impl Endpoints {
    /// The endpoints of a project, of the user, and of Scout, with the process's environment.
    pub fn new(project: &Project) -> Self {
        let mut folders = project.search("endpoints");
        folders.extend(std::env::home_dir().map(|home| home.join(".scout/etc/AI")));
        let own = vec![project.home.join("endpoints")];
        let mut endpoints = Self::with(folders, Arc::new(|name| std::env::var(name).ok())).with_own(own);
        endpoints.prices = project.search("prices.tsv");
        endpoints
    }

    /// Fills in what the tokens of an endpoint's model cost, unless its file says so: by `prices.tsv` of the project, of
    /// the user, and of decanus itself.
    ///
    /// # Errors
    /// A table that can't be read.
    pub fn price(&self, profile: &mut Profile) -> Result<(), EndpointError> {
        if profile.prices.is_none() {
            profile.prices = prices::find(profile, &self.prices).map_err(|e| EndpointError::Config(e.to_string()))?;
        }
        Ok(())
    }

    /// Says which of the folders are the user's own: files there may start programs.
    #[must_use]
    pub fn with_own(mut self, folders: Vec<PathBuf>) -> Self {
        self.own = folders;
        self
    }

    /// Endpoints in these folders, nearest first, with these variables.
    pub fn with(folders: Vec<PathBuf>, variables: Variables) -> Self {
        Self {
            folders,
            own: Vec::new(),
            prices: Vec::new(),
            variables,
        }
    }

    /// A variable that is set to something; blanks around it (the end of a line, above all) are no part of a key.
    fn first_set(&self, names: &[&str]) -> Option<String> {
        names.iter().find_map(|n| {
            (self.variables)(n)
                .map(|v| v.trim().to_owned())
                .filter(|v| !v.is_empty())
        })
    }

    /// All endpoints, by name. A file that can't be used is listed with its error.
    pub fn list(&self) -> Vec<EndpointInfo> {
        let mut all: BTreeMap<String, EndpointInfo> = BTreeMap::new();
        for (name, file) in self.files() {
            all.entry(name.clone()).or_insert_with(|| self.info(&name, Some(&file)));
        }
        for known in BUILT_IN {
            all.entry(known.backend.into())
                .or_insert_with(|| self.info(known.backend, None));
        }
        all.into_values().collect()
    }

    /// What is known of one endpoint without needing its key.
    ///
    /// # Errors
    /// When there is none of that name.
    pub fn show(&self, name: &str) -> Result<EndpointInfo, EndpointError> {
        let file = self.find(name);
        if file.is_none() && built_in(name).is_none() {
            return Err(self.unknown(name));
        }
        Ok(self.info(name, file.as_deref()))
    }

    /// An endpoint with all its settings decided.
    ///
    /// # Errors
    /// No such endpoint; a fault in its file, with line and key; a variable that its `key_env` names and that is not
    /// set.
    pub fn load(&self, name: &str) -> Result<Profile, EndpointError> {
        let Some(path) = self.find(name) else {
            let known = built_in(name).ok_or_else(|| self.unknown(name))?;
            return self.decide(name, known.backend, EndpointFile::default(), None);
        };
        let file = parse(&path)?;
        let backend = match &file.backend {
            Some(backend) => backend.clone(),
            None if built_in(name).is_some() => name.to_owned(),
            None => {
                let message = "`backend` is missing; add for instance `backend: openai`";
                return Err(YamlError {
                    file: path,
                    line: 1,
                    key: String::new(),
                    message: message.into(),
                }
                .into());
            }
        };
        self.decide(name, &backend, file, Some(path))
    }

    /// An endpoint, and those to ask when it fails: its `fallback`, each followed by its own. An endpoint that is named
    /// twice comes once.
    ///
    /// # Errors
    /// Those of [`load`](Self::load) for each of them; names that there are not, and lists that lead back to themselves,
    /// with file and line.
    pub fn load_chain(&self, name: &str) -> Result<Vec<Profile>, EndpointError> {
        let mut chain = Vec::new();
        self.follow(self.load(name)?, &mut Vec::new(), &mut chain)?;
        Ok(chain)
    }

    /// Adds an endpoint and what follows it. `way` is how it was come to.
    fn follow(&self, profile: Profile, way: &mut Vec<String>, chain: &mut Vec<Profile>) -> Result<(), EndpointError> {
        let (fallback, file) = (profile.fallback.clone(), profile.file.clone().unwrap_or_default());
        way.push(profile.name.clone());
        chain.push(profile);
        for next in fallback {
            let fail = |message: String| {
                EndpointError::File(YamlError {
                    file: file.clone(),
                    line: next.line,
                    key: "fallback".into(),
                    message,
                })
            };
            if way.contains(&next.name) {
                let way = way.join(" -> ");
                return Err(fail(format!("it leads back to itself: {way} -> {}", next.name)));
            }
            if chain.iter().any(|known| known.name == next.name) {
                continue;
            }
            let profile = match self.load(&next.name) {
                Err(unknown @ EndpointError::Unknown { .. }) => return Err(fail(unknown.to_string())),
                other => other?,
            };
            self.follow(profile, way, chain)?;
        }
        way.pop();
        Ok(())
    }

    fn decide(
        &self,
        name: &str,
        backend: &str,
        file: EndpointFile,
        path: Option<PathBuf>,
    ) -> Result<Profile, EndpointError> {
        let known = built_in(backend);
        let mut profile = Profile::new(name, backend, "");
        let own_url = file.url.is_some();
        let from_file = match (&file.key, &file.key_env) {
            (Some(key), _) => Some(key.clone()),
            (None, Some((variable, error))) => {
                let value = self.first_set(&[variable]).map(Secret::new);
                Some(value.ok_or_else(|| EndpointError::File(error.clone()))?)
            }
            (None, None) => None,
        };
        // The key of the environment goes to the URL of the environment or to the provider's own, never to a URL that
        // a file names: a project's file must not be able to send it anywhere. The model is of no use there either.
        let environment = |variables: &[&str]| if own_url { None } else { self.first_set(variables) };
        profile.aws = file.aws.map(|aws| self.aws(aws, own_url)).transpose()?;
        // Who names credentials of AWS means these.
        let own_aws = profile
            .aws
            .as_ref()
            .is_some_and(|a| a.access_key.is_some() || a.profile.is_some());
        let key_variables = known.map_or(&[][..], |k| if own_aws { &[] } else { k.key_variables });
        profile.key = from_file.or_else(|| environment(key_variables).map(Secret::new));
        profile.url = file
            .url
            .or_else(|| environment(known?.url_variables).map(|url| from_variable(backend, url)))
            .or_else(|| known.map(|k| k.url.to_owned()))
            .unwrap_or_default();
        let default_model = |k: &BuiltIn| if own_url { String::new() } else { k.model.to_owned() };
        profile.model = file
            .model
            .or_else(|| crate::huggingface::model_of(backend, &file.parameters))
            .or_else(|| environment(known?.model_variables))
            .or_else(|| known.map(default_model))
            .unwrap_or_default();
        profile.headers = file.headers;
        profile.timeouts = file.timeouts;
        profile.retries = file.retries.unwrap_or(profile.retries);
        profile.stream_usage = file.stream_usage.unwrap_or(profile.stream_usage);
        profile.api = file.api;
        profile.store = file.store;
        profile.previous_response = file.previous_response.unwrap_or(profile.previous_response);
        profile.quirks = file.quirks;
        profile.prices = file.prices;
        profile.command = file.command;
        profile.limits = file.limits;
        profile.fallback = file.fallback;
        profile.relay = file.relay;
        profile.file_is_own = path
            .as_ref()
            .is_some_and(|p| self.own.iter().any(|own| p.parent() == Some(own)));
        profile.parameters = file.parameters;
        profile.warnings = file.warnings;
        profile.file = path;
        Ok(profile)
    }

    fn aws(&self, file: AwsSettings, url_of_file: bool) -> Result<Aws, EndpointError> {
        let credential = |given: Option<Credential>| match given {
            None => Ok(None),
            Some(Credential::Given(secret)) => Ok(Some(secret)),
            Some(Credential::Variable(variable, error)) => match self.first_set(&[&variable]) {
                Some(value) => Ok(Some(Secret::new(value))),
                None => Err(EndpointError::File(error)),
            },
        };
        Ok(Aws {
            region: file.region,
            profile: file.profile,
            access_key: credential(file.access_key)?,
            secret_key: credential(file.secret_key)?,
            session_token: credential(file.session_token)?,
            url_of_file,
        })
    }

    fn info(&self, name: &str, path: Option<&Path>) -> EndpointInfo {
        let source = match path {
            Some(path) => path.display().to_string(),
            None => match built_in(name) {
                Some(b) if self.first_set(b.url_variables).is_some() || self.first_set(b.key_variables).is_some() => {
                    "environment".into()
                }
                _ => "built in".into(),
            },
        };
        let mut info = EndpointInfo {
            name: name.into(),
            backend: String::new(),
            model: String::new(),
            url: String::new(),
            key_set: false,
            source,
            warnings: Vec::new(),
            error: None,
        };
        if let Some(Ok(file)) = path.map(parse) {
            info.backend = file.backend.unwrap_or_default();
            info.model = file.model.unwrap_or_default();
            info.url = file.url.as_deref().map(show_url_text).unwrap_or_default();
            info.warnings = file.warnings;
        }
        if let Err(error) = self.load_chain(name) {
            info.error = Some(error.to_string());
        }
        if let Ok(profile) = self.load(name) {
            info.backend = profile.backend;
            info.model = profile.model;
            info.url = if profile.url.is_empty() {
                String::new()
            } else {
                show_url_text(&profile.url)
            };
            info.key_set = profile.key.is_some() || profile.aws.as_ref().is_some_and(|a| a.access_key.is_some());
            if let Some(relay) = &profile.relay {
                info.url = relay.target();
            }
        }
        info
    }

    fn unknown(&self, name: &str) -> EndpointError {
        let mut known: Vec<String> = self.files().into_iter().map(|(name, _)| name).collect();
        known.extend(BUILT_IN.iter().map(|b| b.backend.to_owned()));
        known.sort();
        known.dedup();
        let guess = did_you_mean(name, known.iter().map(String::as_str));
        EndpointError::Unknown {
            name: name.into(),
            guess,
            known,
            looked_in: self.folders.clone(),
        }
    }

    /// `NAME.yaml`, or `NAME` as Scout allows, in the nearest folder that has one.
    fn find(&self, name: &str) -> Option<PathBuf> {
        if !is_valid(name) {
            return None;
        }
        let candidates = |folder: &PathBuf| {
            let scout = folder.ends_with(".scout/etc/AI").then(|| folder.join(name));
            [folder.join(format!("{name}.yaml")), folder.join(format!("{name}.yml"))]
                .into_iter()
                .chain(scout)
        };
        self.folders.iter().flat_map(candidates).find(|path| path.is_file())
    }

    fn files(&self) -> Vec<(String, PathBuf)> {
        let entries = self
            .folders
            .iter()
            .filter_map(|folder| std::fs::read_dir(folder).ok())
            .flatten()
            .flatten();
        let mut names: Vec<String> = entries
            .filter_map(|entry| entry.file_name().into_string().ok())
            .map(|file| {
                file.strip_suffix(".yaml")
                    .or(file.strip_suffix(".yml"))
                    .unwrap_or(&file)
                    .to_owned()
            })
            .filter(|name| is_valid(name))
            .collect();
        names.sort();
        names.dedup();
        // Looked up again, so that the nearest file counts and foreign files do not.
        names
            .into_iter()
            .filter_map(|name| self.find(&name).map(|path| (name, path)))
            .collect()
    }
}

/// A URL as a variable gives it.
fn from_variable(backend: &str, url: String) -> String {
    match backend {
        "ollama" => crate::ollama::url_of_host(&url),
        _ => url,
    }
}

fn parse(path: &Path) -> Result<EndpointFile, EndpointError> {
    let text = decanus_base::files::read_text(path)
        .map_err(|e| EndpointError::Io(decanus_base::files::named(e, path).to_string()))?;
    let name = path.file_stem().and_then(|n| n.to_str()).unwrap_or_default();
    Ok(read(&yaml::parse(&text, path)?, name)?)
}
