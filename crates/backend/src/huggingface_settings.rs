//! The settings of a transformers checkpoint: which one, and how it is loaded.

use std::path::Path;

use serde_json::{Map, Value, json};

use crate::profile::Profile;

/// What belongs to the loading of a model, or to its vectors; anything else is a parameter of an answer.
pub(crate) const SETTINGS: [&str; 14] = [
    "checkpoint",
    "dir",
    "task",
    "torch_dtype",
    "dtype",
    "device_map",
    "device",
    "revision",
    "download",
    "trust_remote_code",
    "python",
    "pooling",
    "normalize",
    "truncate",
];

/// Settings by which a program of somebody else could be run.
const OWN: [&str; 2] = ["python", "trust_remote_code"];

/// What a process is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Answers.
    Chat,
    /// Vectors.
    Embed,
}

/// The settings of one process, decided.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Settings {
    /// The interpreter; none is the `python3` of `PATH`.
    pub python: Option<String>,
    /// The checkpoint: the id of a hub's repository, or a folder.
    pub checkpoint: String,
    is_path: bool,
    task: String,
    torch_dtype: Option<String>,
    device_map: Option<Value>,
    device: Option<String>,
    revision: Option<String>,
    download: bool,
    trust_remote_code: bool,
    pooling: Option<String>,
    normalize: Option<bool>,
    truncate: Option<bool>,
}

impl Settings {
    /// Reads the settings of an endpoint, and those that a request has over them. `allow` lets the files of projects say
    /// what only the user's own may.
    ///
    /// # Errors
    /// A text that names the setting.
    pub fn read(profile: &Profile, over: &Map<String, Value>, allow: bool) -> Result<Self, String> {
        for name in OWN {
            let file = profile.file.as_deref().map_or("it".into(), |f| f.display().to_string());
            // False asks for nothing.
            let says =
                |map: &Map<String, Value>| map.get(name).is_some_and(|v| !v.is_null() && v != &Value::Bool(false));
            if !allow && !profile.file_is_own && says(&profile.parameters) {
                return Err(format!(
                    "{file} sets `{name}`, by which programs of others can be run: only an endpoint file of your own may \
                     do that; if you trust it, copy it to the folder `endpoints` of ~/.decanus"
                ));
            }
            if says(over) {
                return Err(format!("`{name}` can only be set in an endpoint file of your own"));
            }
        }
        let get = |name: &str| {
            let value = over.get(name).or_else(|| profile.parameters.get(name));
            value.filter(|value| !value.is_null())
        };
        let text = |name: &str| match get(name) {
            None => Ok(None),
            Some(Value::String(text)) if !text.trim().is_empty() => Ok(Some(text.trim().to_owned())),
            Some(other) => Err(format!("`{name}` is no text: {other}")),
        };
        let flag = |name: &str| match get(name) {
            None => Ok(None),
            Some(Value::Bool(flag)) => Ok(Some(*flag)),
            Some(other) => Err(format!("`{name}` must be true or false: {other}")),
        };
        let model = Some(profile.model.trim()).filter(|m| !m.is_empty()).map(str::to_owned);
        let named = text("checkpoint")?.or(model);
        let dir = text("dir")?;
        let is_path = dir.is_some() || named.as_deref().is_some_and(is_path);
        let Some(named) = dir.or(named) else {
            return Err(
                "no model is named; give `model` (the id of a repository whose files are in the cache of Hugging \
                        Face), or `dir` (a folder)"
                    .into(),
            );
        };
        let task = text("task")?.unwrap_or_else(|| "CausalLM".into());
        let task = task.strip_prefix("AutoModelFor").unwrap_or(&task).to_owned();
        if !task.chars().all(|c| c.is_ascii_alphanumeric()) {
            return Err(format!("`task` is `{task}`, and no name such as CausalLM"));
        }
        let device_map = get("device_map").cloned();
        if let Some(other) = device_map.as_ref().filter(|v| !v.is_string() && !v.is_object()) {
            return Err(format!("`device_map` is neither a text nor a map: {other}"));
        }
        let device = text("device")?;
        if device_map.is_some() && device.is_some() {
            return Err("give `device_map` or `device`, not both".into());
        }
        let pooling = text("pooling")?;
        if let Some(other) = pooling
            .as_deref()
            .filter(|p| !["mean", "cls", "last", "model"].contains(p))
        {
            return Err(format!("`pooling` is `{other}`; expected mean, cls, last or model"));
        }
        Ok(Self {
            python: text("python")?,
            checkpoint: if is_path { absolute(&named, profile)? } else { named },
            is_path,
            task,
            torch_dtype: text("torch_dtype")?.or(text("dtype")?),
            device_map,
            device,
            revision: text("revision")?,
            download: flag("download")?.unwrap_or(false),
            trust_remote_code: flag("trust_remote_code")?.unwrap_or(false),
            pooling,
            normalize: flag("normalize")?,
            truncate: flag("truncate")?,
        })
    }

    /// What a new process is told to load.
    pub fn load(&self, mode: Mode) -> Value {
        json!({
            "mode": if mode == Mode::Embed { "embed" } else { "chat" },
            "model": self.checkpoint,
            "is_path": self.is_path,
            "task": self.task,
            "dtype": self.torch_dtype,
            "device_map": self.device_map,
            "device": self.device,
            "revision": self.revision,
            "download": self.download,
            "trust_remote_code": self.trust_remote_code,
        })
    }

    /// What belongs into each request for vectors.
    pub fn embedding(&self) -> Map<String, Value> {
        let all = [
            ("pooling", self.pooling.clone().map(Value::from)),
            ("normalize", self.normalize.map(Value::from)),
            ("truncate", self.truncate.map(Value::from)),
        ];
        let set = all
            .into_iter()
            .filter_map(|(name, value)| Some((name.to_owned(), value?)));
        set.collect()
    }
}

/// Whether a checkpoint's name is that of a folder; `org/name` is the id of a repository.
fn is_path(name: &str) -> bool {
    ["/", "./", "../", "~/"].iter().any(|start| name.starts_with(start)) || name == "." || name == ".."
}

/// A folder, beside the endpoint's file if that names it.
fn absolute(name: &str, profile: &Profile) -> Result<String, String> {
    let path = match name.strip_prefix("~/") {
        Some(rest) => std::env::home_dir().ok_or("there is no home folder")?.join(rest),
        None => match profile.file.as_deref().and_then(Path::parent) {
            Some(folder) => folder.join(name),
            None => name.into(),
        },
    };
    let path = std::path::absolute(&path).map_err(|e| format!("{}: {e}", path.display()))?;
    // The parts `.` and `..` of a path that is there are of no interest to anybody.
    let path = path.canonicalize().unwrap_or(path);
    let text = path.to_str().ok_or_else(|| format!("{} is no text", path.display()))?;
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(parameters: Value, over: Value, own: bool) -> Result<Settings, String> {
        let mut profile = Profile::new("e", "huggingface", "org/name");
        profile.parameters = parameters.as_object().unwrap().clone();
        profile.file = Some("/p/endpoints/e.yaml".into());
        profile.file_is_own = own;
        Settings::read(&profile, over.as_object().unwrap(), false)
    }

    #[test]
    fn checkpoints_are_ids_or_folders() {
        let of = |parameters: Value| {
            let settings = read(parameters, json!({}), false).unwrap();
            (settings.checkpoint, settings.is_path)
        };
        assert_eq!(of(json!({})), ("org/name".into(), false));
        assert_eq!(of(json!({"checkpoint": "other/one"})), ("other/one".into(), false));
        assert_eq!(of(json!({"checkpoint": "./tiny"})), ("/p/endpoints/tiny".into(), true));
        assert_eq!(of(json!({"dir": "tiny"})), ("/p/endpoints/tiny".into(), true));
    }

    #[test]
    fn what_runs_programs_is_said_by_own_files_only() {
        for setting in [json!({"python": "./evil"}), json!({"trust_remote_code": true})] {
            let error = read(setting.clone(), json!({}), false).unwrap_err();
            assert!(error.contains("/p/endpoints/e.yaml sets `"), "{error}");
            assert!(read(setting.clone(), json!({}), true).is_ok());
            let error = read(json!({}), setting, true).unwrap_err();
            assert!(
                error.contains("can only be set in an endpoint file of your own"),
                "{error}"
            );
        }
        let off = read(json!({"trust_remote_code": false}), json!({}), false).unwrap();
        assert!(!off.trust_remote_code);
    }

    #[test]
    fn bad_settings_are_named() {
        for (bad, words) in [
            (json!({"task": "Causal LM"}), "`task` is `Causal LM`"),
            (json!({"device_map": 3}), "`device_map` is neither"),
            (json!({"device_map": "auto", "device": "cpu"}), "not both"),
            (json!({"download": "yes"}), "`download` must be true or false"),
            (json!({"pooling": "max"}), "`pooling` is `max`"),
            (json!({"dir": 1}), "`dir` is no text"),
        ] {
            let error = read(json!({}), bad, false).unwrap_err();
            assert!(error.contains(words), "{error}");
        }
    }
}
