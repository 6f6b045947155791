//! decanus.toml and the environment.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;

use crate::units::{parse_duration, parse_size};

/// A fault in decanus.toml.
#[derive(Debug, thiserror::Error)]
#[error("{}: {message}", file.display())]
pub struct SettingsError {
    /// The file.
    pub file: PathBuf,
    /// What is wrong, with line and column.
    pub message: String,
}

/// Where an effective value came from; `decanus doctor` prints it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// A flag of the command line.
    Flag,
    /// This environment variable.
    Environment(&'static str),
    /// decanus.toml.
    File,
    /// Nobody said anything.
    Default,
}

impl std::fmt::Display for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Flag => f.write_str("flag"),
            Self::Environment(name) => write!(f, "environment {name}"),
            Self::File => f.write_str("decanus.toml"),
            Self::Default => f.write_str("default"),
        }
    }
}

/// The project's settings.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// Name of the endpoint to ask when nothing else names one.
    pub endpoint: Option<String>,
    /// What chats may do that is not allowed by itself: `cmd` (run commands).
    #[serde(default)]
    pub allow: Vec<Allowance>,
    /// Which tool calls of a model the user is asked for.
    #[serde(default)]
    pub approve: ApproveSettings,
    /// Files and folders outside the project that chats, tools and models may read; relative to the project's root, and
    /// `~/` is the user's home.
    #[serde(default)]
    pub allowed_paths: Vec<PathBuf>,
    /// Where jobs are kept; relative to the project's root. Default `.decanus/jobs`.
    pub jobs_dir: Option<PathBuf>,
    /// Bounds of a run.
    #[serde(default)]
    pub limits: LimitSettings,
    /// Models in this process.
    #[serde(default)]
    pub local: LocalSettings,
    /// What the built-in tools that run programs may do.
    #[serde(default)]
    pub tools: ToolSettings,
    /// What runs jobs when neither a flag, a task nor a workflow says it. Default `local`.
    pub executor: Option<String>,
    /// The executor `slurm`.
    #[serde(default)]
    pub slurm: SlurmSettings,
}

/// The `[slurm]` table.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SlurmSettings {
    /// The partition; Slurm's own default when not said.
    pub partition: Option<String>,
    /// The account that is charged.
    pub account: Option<String>,
    /// The quality of service.
    pub qos: Option<String>,
    /// Further arguments of sbatch, each an element: `["--gres=gpu:1"]`.
    #[serde(default)]
    pub args: Vec<String>,
    /// The folder of sbatch, squeue, scontrol and scancel; relative to the project's root. Default: looked up in `PATH`.
    pub bin: Option<PathBuf>,
    /// The decanus of the nodes. Default: the program that submits.
    pub program: Option<PathBuf>,
    /// Time between two questions to the scheduler. Default 5 s.
    #[serde(default, deserialize_with = "duration")]
    pub poll: Option<Duration>,
    /// How long a result may take to be seen here after the scheduler says that its job has ended. Default 15 s.
    #[serde(default, deserialize_with = "duration")]
    pub settle: Option<Duration>,
    /// How many jobs run one after another in an element of an array. Default: as many as fit in `batch_time`.
    pub batch_size: Option<u32>,
    /// How long an element should run, by what jobs of its task took before. Default 30 s.
    #[serde(default, deserialize_with = "duration")]
    pub batch_time: Option<Duration>,
    /// The most elements of an array. Default 1000, one less than Slurm's own default.
    pub max_array: Option<u32>,
    /// The most jobs that are with the scheduler at a time. Default 500.
    pub max_jobs: Option<u32>,
}

/// The `[tools]` table.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ToolSettings {
    /// The tool `run_command`.
    #[serde(default)]
    pub run_command: RunCommandSettings,
    /// The tool `python`.
    #[serde(default)]
    pub python: PythonSettings,
}

/// The `[tools.run_command]` table.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunCommandSettings {
    /// The programs that may be run, by name or path; `git log` allows only commands that begin with these words.
    #[serde(default)]
    pub allow: Vec<String>,
    /// Variables of the environment that are handed on beside `PATH`, `HOME` and the like.
    #[serde(default)]
    pub env: Vec<String>,
    /// Time for one command. Default 60 s.
    #[serde(default, deserialize_with = "duration")]
    pub timeout: Option<Duration>,
}

/// The `[tools.python]` table.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PythonSettings {
    /// Whether scripts may be run at all.
    #[serde(default)]
    pub enabled: bool,
    /// The interpreter, by name or path. Default `python3`.
    pub program: Option<String>,
    /// Memory that a script may take, in bytes; written `500M`. Default 1G.
    #[serde(default, deserialize_with = "size")]
    pub memory: Option<u64>,
    /// Time for one script, of the clock and of the processor. Default 30 s.
    #[serde(default, deserialize_with = "duration")]
    pub timeout: Option<Duration>,
}

/// Which calls are asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Approve {
    /// All.
    Always,
    /// Those that may destroy or send something.
    #[default]
    Destructive,
    /// None.
    Never,
}

impl std::str::FromStr for Approve {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "always" => Ok(Self::Always),
            "destructive" => Ok(Self::Destructive),
            "never" => Ok(Self::Never),
            other => Err(format!("`{other}` is none of always, destructive, never")),
        }
    }
}

/// `approve = "destructive"`, or a table with `default` and names of tools.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(from = "ApproveWritten")]
pub struct ApproveSettings {
    /// Of tools that are not named.
    pub others: Approve,
    /// By the tool's name.
    pub tools: BTreeMap<String, Approve>,
}

#[derive(Deserialize)]
#[serde(
    untagged,
    expecting = "approve is one of always, destructive, never, or a table of tools with one of these"
)]
enum ApproveWritten {
    All(Approve),
    Each(BTreeMap<String, Approve>),
}

impl From<ApproveWritten> for ApproveSettings {
    fn from(written: ApproveWritten) -> Self {
        match written {
            ApproveWritten::All(others) => Self {
                others,
                tools: BTreeMap::new(),
            },
            ApproveWritten::Each(mut tools) => Self {
                others: tools.remove("default").unwrap_or_default(),
                tools,
            },
        }
    }
}

/// The `[local]` table.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LocalSettings {
    /// The memory that all loaded models together may take, in bytes; written `6G`, `500M`.
    #[serde(default, deserialize_with = "size")]
    pub memory: Option<u64>,
}

fn size<'de, D: serde::Deserializer<'de>>(d: D) -> Result<Option<u64>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Written {
        Text(String),
        Bytes(u64),
    }
    match Written::deserialize(d)? {
        Written::Text(text) => parse_size(&text).map(Some).map_err(serde::de::Error::custom),
        Written::Bytes(bytes) => Ok(Some(bytes)),
    }
}

/// What a project can allow its chats.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Allowance {
    /// `cmd` messages run commands.
    Cmd,
}

/// The `[limits]` table: what a run may use up.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LimitSettings {
    /// Requests to the model per run.
    pub rounds: Option<u32>,
    /// Characters of one tool result before the rest goes to a file.
    pub result_chars: Option<usize>,
    /// Tool calls running at once.
    pub parallel_calls: Option<usize>,
    /// Tokens of all requests of a run.
    pub tokens: Option<u64>,
    /// What all requests of a run may cost, by the prices of the endpoint.
    pub cost: Option<f64>,
    /// Tokens of one request, as estimated: older tool traffic is compacted to stay within it.
    pub context_tokens: Option<u64>,
    /// Time for one tool call.
    #[serde(default, deserialize_with = "duration")]
    pub tool_time: Option<Duration>,
    /// Time for one request to the model.
    #[serde(default, deserialize_with = "duration")]
    pub request_time: Option<Duration>,
}

fn duration<'de, D: serde::Deserializer<'de>>(d: D) -> Result<Option<Duration>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Written {
        Text(String),
        Seconds(f64),
    }
    let text = match Written::deserialize(d)? {
        Written::Text(t) => t,
        Written::Seconds(s) => s.to_string(),
    };
    parse_duration(&text).map(Some).map_err(serde::de::Error::custom)
}

impl Settings {
    /// Reads decanus.toml of a project root; a missing file is all defaults.
    ///
    /// # Errors
    /// Syntax, unknown keys and values of the wrong kind, with line and column.
    pub fn load(root: &Path) -> Result<Self, SettingsError> {
        let file = root.join("decanus.toml");
        let fail = |message: String| SettingsError {
            file: file.clone(),
            message,
        };
        match std::fs::read_to_string(&file) {
            Ok(text) => toml::from_str(&text).map_err(|e| fail(e.to_string().trim_end().to_owned())),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(Self::default()),
            Err(e) => Err(fail(e.to_string())),
        }
    }

    /// The endpoint to use when neither a flag, a chat nor an agent names one, and where that is said.
    pub fn default_endpoint(&self) -> Option<(String, Source)> {
        match std::env::var("DECANUS_ENDPOINT").ok().filter(|v| !v.is_empty()) {
            Some(name) => Some((name, Source::Environment("DECANUS_ENDPOINT"))),
            None => self.endpoint.clone().map(|name| (name, Source::File)),
        }
    }

    /// The allowed paths of a project root, absolute.
    pub fn allowed_paths(&self, root: &Path) -> Vec<PathBuf> {
        let home = std::env::home_dir();
        let path = |p: &PathBuf| match (p.strip_prefix("~"), &home) {
            (Ok(rest), Some(home)) => home.join(rest),
            _ => root.join(p),
        };
        self.allowed_paths.iter().map(path).collect()
    }

    /// The folder of jobs of a project root.
    pub fn jobs_dir(&self, root: &Path) -> PathBuf {
        root.join(self.jobs_dir.as_deref().unwrap_or(Path::new(".decanus/jobs")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_a_size() {
        let dir = tempfile::tempdir().unwrap();
        let read = |text: &str| {
            std::fs::write(dir.path().join("decanus.toml"), text).unwrap();
            Settings::load(dir.path()).map(|s| s.local.memory)
        };
        assert_eq!(read("[local]\nmemory = '2G'\n").unwrap(), Some(2 << 30));
        assert_eq!(read("[local]\nmemory = 1000\n").unwrap(), Some(1000));
        let error = read("[local]\nmemory = 'much'\n").unwrap_err().to_string();
        assert!(
            error.contains("line 2") && error.contains("`much` is not a size"),
            "{error}"
        );
    }

    #[test]
    fn tools_that_run_programs_are_off_until_allowed() {
        let dir = tempfile::tempdir().unwrap();
        let tools = Settings::load(dir.path()).unwrap().tools;
        assert!(tools.run_command.allow.is_empty() && !tools.python.enabled);
        let text = "[tools.run_command]\nallow = ['git log', 'ls']\nenv = ['TZ']\ntimeout = '5s'\n\
                    [tools.python]\nenabled = true\nmemory = '200M'\n";
        std::fs::write(dir.path().join("decanus.toml"), text).unwrap();
        let tools = Settings::load(dir.path()).unwrap().tools;
        assert_eq!(tools.run_command.allow, ["git log", "ls"]);
        assert_eq!(tools.run_command.timeout, Some(Duration::from_secs(5)));
        assert_eq!((tools.python.enabled, tools.python.memory), (true, Some(200 << 20)));
        std::fs::write(dir.path().join("decanus.toml"), "[tools.run_command]\nalow = ['ls']\n").unwrap();
        let error = Settings::load(dir.path()).unwrap_err().to_string();
        assert!(error.contains("line 2") && error.contains("alow"), "{error}");
    }

    #[test]
    fn settings_are_strict() {
        let dir = tempfile::tempdir().unwrap();
        assert!(Settings::load(dir.path()).unwrap().endpoint.is_none());
        std::fs::write(
            dir.path().join("decanus.toml"),
            "endpoint = 'lab'\n[limits]\nrounds = 5\ntool_time = '2m'\n",
        )
        .unwrap();
        let settings = Settings::load(dir.path()).unwrap();
        assert_eq!(settings.endpoint.as_deref(), Some("lab"));
        assert_eq!(settings.limits.tool_time, Some(Duration::from_secs(120)));
        let text =
            "executor = 'slurm'\n[slurm]\npartition = 'main'\nargs = ['--gres=gpu:1']\npoll = '2s'\nmax_array = 64\n";
        std::fs::write(dir.path().join("decanus.toml"), text).unwrap();
        let settings = Settings::load(dir.path()).unwrap();
        assert_eq!(settings.executor.as_deref(), Some("slurm"));
        assert_eq!(settings.slurm.args, ["--gres=gpu:1"]);
        let slurm = &settings.slurm;
        assert_eq!((slurm.poll, slurm.max_array), (Some(Duration::from_secs(2)), Some(64)));
        std::fs::write(dir.path().join("decanus.toml"), "[slurm]\npartion = 'x'\n").unwrap();
        assert!(Settings::load(dir.path()).unwrap_err().to_string().contains("partion"));
        std::fs::write(dir.path().join("decanus.toml"), "endpont = 'lab'\n").unwrap();
        let error = Settings::load(dir.path()).unwrap_err().to_string();
        assert!(
            error.contains("decanus.toml") && error.contains("line 1") && error.contains("endpont"),
            "{error}"
        );
    }
}
