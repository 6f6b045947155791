//! Tasks that are Python functions: what a function takes and gives is read from its hints and its docstring, without
//! running its file, and kept by the file's content, so that Python is started for this only when a file has changed.

use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};

use decanus_base::digest::{ValueHasher, sha256_hex};
use decanus_base::files::write_atomic;
use decanus_base::names::did_you_mean;
use decanus_base::process;
use decanus_base::yaml::YamlError;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::input::{self, Input, InputType};
use crate::result::ResultType;

/// Reads hints; run with the paths of files.
const READER: &str = include_str!("python/reader.py");
/// Calls a function; run with what [`PythonBody::argv`] says.
const RUNNER: &str = include_str!("python/runner.py");
/// Files for one start of the reader: their paths must fit on one command line.
const MOST_PATHS: usize = 200;

/// The function of a `python:` task.
#[derive(Clone, Debug, PartialEq)]
pub struct PythonBody {
    /// The file, absolute.
    pub file: PathBuf,
    /// The function's name.
    pub function: String,
    /// How its parameters get their values.
    pub parameters: Vec<Parameter>,
    /// The file, and the modules beside it or in `python/` that it imports, at whatever remove. Their contents are part
    /// of what the task does.
    pub sources: Vec<PathBuf>,
    /// The workflow's folder.
    dir: PathBuf,
}

/// A parameter of a function, or an input that goes to its `**` parameter.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Parameter {
    /// Its name, and that of the input, if it is one.
    pub name: String,
    /// The task whose result it gets; otherwise it is an input.
    #[serde(rename = "from")]
    pub dependency: Option<String>,
    /// What the function wants of the value.
    #[serde(rename = "as")]
    pub form: Form,
    /// Whether it can only be given by its place.
    pub positional: bool,
    /// Whether nothing is better than null: it has a default that only Python can tell, or None.
    #[serde(rename = "default")]
    pub omit_null: bool,
}

/// The form in which a function gets a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Form {
    /// As JSON has it.
    Value,
    /// As a `pathlib.Path`.
    Path,
    /// As a list of these.
    Paths,
    /// The content of the file, as bytes.
    Bytes,
}

impl PythonBody {
    /// What of the body is part of a job's identity, besides the contents of its sources.
    pub(crate) fn hash(&self, hasher: &mut ValueHasher) {
        let file = self.file.strip_prefix(&self.dir).unwrap_or(&self.file);
        hasher
            .text("python")
            .text(&file.to_string_lossy())
            .text(&self.function)
            .value(&json!(self.parameters));
    }

    /// Inputs that are no parameters go to the `**` parameter.
    pub(crate) fn take(&mut self, inputs: &[Input]) {
        for input in inputs {
            if !self.parameters.iter().any(|p| p.name == input.name) {
                self.parameters.push(Parameter {
                    name: input.name.clone(),
                    dependency: None,
                    form: Form::Value,
                    positional: false,
                    omit_null: true,
                });
            }
        }
    }

    /// What to start: the interpreter with the runner.
    pub(crate) fn argv(&self, dir: &Path, result: ResultType) -> Vec<OsString> {
        let call = json!({
            "file": self.file.display().to_string(),
            "function": self.function,
            "result": result.as_str(),
            "parameters": self.parameters,
        });
        let mut argv = vec![interpreter(dir)];
        // -B: a stale .pyc would be taken for the source that is in the identity.
        argv.extend(["-B", "-X", "utf8", "-c", RUNNER].map(OsString::from));
        argv.push(call.to_string().into());
        argv
    }
}

/// What reads hints: `DECANUS_PYTHON`, else `python3`. That of a project is no choice here: to look at a workflow must not
/// start what somebody else put beside it.
fn reading_interpreter() -> OsString {
    std::env::var_os("DECANUS_PYTHON")
        .filter(|p| !p.is_empty())
        .unwrap_or_else(|| "python3".into())
}

/// The interpreter that runs the functions of a workflow's folder: `DECANUS_PYTHON`, else that of `.venv` in the folder or beside the folder
/// `workflows`, else `python3`.
pub fn interpreter(dir: &Path) -> OsString {
    if let Some(named) = std::env::var_os("DECANUS_PYTHON").filter(|p| !p.is_empty()) {
        return named;
    }
    let root = dir.parent().and_then(Path::parent);
    [Some(dir), root]
        .into_iter()
        .flatten()
        .map(|place| place.join(".venv/bin/python"))
        .find(|python| python.is_file())
        .map_or_else(|| "python3".into(), PathBuf::into_os_string)
}

/// What a file's text says: its functions and what it imports.
#[derive(Debug, Deserialize)]
struct Module {
    functions: Vec<Function>,
    /// How many dots, and the dotted name.
    imports: Vec<(usize, String)>,
}

#[derive(Debug, Deserialize)]
struct Function {
    name: String,
    line: usize,
    description: String,
    parameters: Vec<Declared>,
    /// Whether it has a `**` parameter.
    keywords: bool,
    returns: Option<Hint>,
}

#[derive(Debug, Deserialize)]
struct Declared {
    name: String,
    line: usize,
    kind: String,
    hint: Hint,
    #[serde(default)]
    description: String,
    default: Option<Default_>,
}

#[derive(Debug, Deserialize)]
struct Default_ {
    value: Value,
    #[serde(default)]
    computed: bool,
}

#[derive(Clone, Debug, Default, Deserialize)]
struct Hint {
    #[serde(rename = "type", default)]
    kind: String,
    #[serde(default)]
    unknown: Option<String>,
    #[serde(default)]
    optional: bool,
    #[serde(default)]
    path: bool,
    #[serde(default)]
    options: Vec<Value>,
    #[serde(default)]
    line: usize,
}

/// What a file can be: read, or wrong at a line.
type Read = Result<Arc<Module>, (usize, String)>;

/// Reads Python files. What was read is kept in memory, and in a folder if one is given.
#[derive(Clone, Debug, Default)]
pub struct PythonReader {
    cache: Option<PathBuf>,
    known: Arc<Mutex<HashMap<String, Arc<Module>>>>,
}

impl PythonReader {
    /// A reader that keeps what it has read in this folder, which is made when it is needed.
    pub fn cached_in(folder: impl Into<PathBuf>) -> Self {
        Self {
            cache: Some(folder.into()),
            known: Arc::default(),
        }
    }

    /// Reads these files and all modules of the workflow that they import. One that does not exist is not in what is
    /// found.
    pub(crate) fn read(&self, dir: &Path, files: &[PathBuf]) -> Modules {
        let mut modules = Modules::default();
        let mut open: Vec<PathBuf> = files.iter().filter(|f| f.is_file()).cloned().collect();
        while !open.is_empty() {
            open.sort_unstable();
            open.dedup();
            open.retain(|f| !modules.found.contains_key(f));
            let read = self.batch(&open);
            let mut next = Vec::new();
            for (file, module) in open.into_iter().zip(read) {
                let imports = match &module {
                    Ok(module) => imported(dir, &file, module),
                    Err(_) => Vec::new(),
                };
                next.extend(imports.iter().cloned());
                modules.found.insert(file, (module, imports));
            }
            open = next;
        }
        modules
    }

    fn batch(&self, files: &[PathBuf]) -> Vec<Read> {
        let mut read: Vec<Option<Read>> = Vec::new();
        let mut keys = Vec::new();
        for file in files {
            let (key, known) = match fs::read(file) {
                Ok(bytes) => {
                    let key = sha256_hex(&[sha256_hex(READER.as_bytes()).as_bytes(), &bytes].concat());
                    let known = self.known(&key).map(Ok);
                    (key, known)
                }
                Err(e) => (String::new(), Some(Err((1, e.to_string())))),
            };
            keys.push(key);
            read.push(known);
        }
        let missing: Vec<usize> = (0..files.len()).filter(|at| read[*at].is_none()).collect();
        for some in missing.chunks(MOST_PATHS) {
            let paths: Vec<&Path> = some.iter().map(|at| files[*at].as_path()).collect();
            match start(&paths) {
                Ok(found) => {
                    for (at, said) in some.iter().zip(found) {
                        read[*at] = Some(self.keep(&keys[*at], said));
                    }
                }
                Err(message) => {
                    for at in some {
                        read[*at] = Some(Err((1, message.clone())));
                    }
                }
            }
        }
        let unread = || Err((1, "the Python interpreter said nothing of it".to_owned()));
        read.into_iter().map(|r| r.unwrap_or_else(unread)).collect()
    }

    fn known(&self, key: &str) -> Option<Arc<Module>> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(module) = known.get(key) {
            return Some(module.clone());
        }
        let bytes = fs::read(self.place(key)?).ok()?;
        let module: Arc<Module> = Arc::new(serde_json::from_slice(&bytes).ok()?);
        known.insert(key.to_owned(), module.clone());
        Some(module)
    }

    fn place(&self, key: &str) -> Option<PathBuf> {
        Some(self.cache.as_ref()?.join(format!("{key}.json")))
    }

    fn keep(&self, key: &str, said: Value) -> Read {
        if let Some(error) = said.get("error").and_then(Value::as_str) {
            let line = said.get("line").and_then(Value::as_u64).unwrap_or(1);
            return Err((usize::try_from(line).unwrap_or(1), error.to_owned()));
        }
        // A folder that can't be written costs time and nothing else.
        if let Some(place) = self.place(key)
            && let Err(e) = write_atomic(&place, said.to_string().as_bytes())
        {
            tracing::debug!("{e}");
        }
        let module: Module = serde_json::from_value(said).map_err(|e| (1, format!("it was read wrongly: {e}")))?;
        let module = Arc::new(module);
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.insert(key.to_owned(), module.clone());
        Ok(module)
    }
}

/// Has Python read some files: a JSON object for each.
fn start(files: &[&Path]) -> Result<Vec<Value>, String> {
    let python = reading_interpreter();
    let name = python.to_string_lossy().into_owned();
    let mut command = Command::new(&python);
    command
        .args(["-I", "-S", "-X", "utf8", "-c", READER])
        .args(files)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let output = process::spawn(command).and_then(std::process::Child::wait_with_output);
    let output = output.map_err(|e| {
        format!(
            "its hints can't be read: the interpreter `{name}` can't be started: {e} (DECANUS_PYTHON names another)"
        )
    })?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr);
        let last = text.trim_end().lines().last().unwrap_or_default();
        return Err(format!("its hints can't be read: `{name}` failed: {last}"));
    }
    serde_json::from_slice(&output.stdout).map_err(|e| format!("its hints can't be read: `{name}` gave no JSON: {e}"))
}

/// The files of the workflow that a module's imports may mean.
fn imported(dir: &Path, file: &Path, module: &Module) -> Vec<PathBuf> {
    let own = file.parent().unwrap_or(dir);
    let mut found = Vec::new();
    for (level, name) in &module.imports {
        let parts: Vec<&str> = name.split('.').filter(|p| !p.is_empty()).collect();
        // One dot is the file's own folder, each further one a folder above it.
        let bases: Vec<PathBuf> = match level.checked_sub(1) {
            Some(up) => own.ancestors().nth(up).map(Path::to_owned).into_iter().collect(),
            None => vec![own.to_owned(), dir.to_owned(), dir.join("python")],
        };
        for base in bases.iter().filter(|b| b.starts_with(dir)) {
            let mut place = base.clone();
            for part in &parts {
                place.push(part);
                // Packages on the way are run too.
                found.extend([place.with_extension("py"), place.join("__init__.py")]);
            }
        }
    }
    found.retain(|f| f.is_file());
    found.sort_unstable();
    found.dedup();
    found
}

/// What was read of a workflow's Python files.
#[derive(Debug, Default)]
pub(crate) struct Modules {
    found: HashMap<PathBuf, (Read, Vec<PathBuf>)>,
}

/// A function as the beginnings of a task.
pub(crate) struct Signature {
    pub(crate) description: String,
    /// Its parameters, without those that get the result of a dependency.
    pub(crate) inputs: Vec<Taken>,
    /// What its return hint says.
    pub(crate) result: Option<Result<ResultType, YamlError>>,
    pub(crate) body: PythonBody,
    /// Whether it takes inputs that it does not name.
    pub(crate) takes_more: bool,
}

/// A parameter as an input.
pub(crate) struct Taken {
    /// Its type is right only when nothing is wrong with the hint.
    pub(crate) input: Input,
    /// The default as it is written, not yet a value of the type.
    pub(crate) default: Value,
    /// What is wrong with its hint; `type:` in workflow.yaml makes up for it.
    pub(crate) unknown: Option<YamlError>,
    /// Errors about it are at this place.
    pub(crate) place: YamlError,
}

impl Modules {
    /// The function, as far as its own text tells. `dependencies` are the tasks whose results it may take, `declared` the
    /// inputs that workflow.yaml names.
    ///
    /// # Errors
    /// A file with a fault, no function of that name, a parameter that can't be an input.
    pub(crate) fn function(
        &self,
        dir: &Path,
        file: &Path,
        name: &str,
        dependencies: &[&str],
        declared: &[&str],
    ) -> Result<Signature, YamlError> {
        let fault = |line: usize, key: &str, message: String| YamlError {
            file: file.to_owned(),
            line,
            key: key.to_owned(),
            message,
        };
        let module = match self.found.get(file) {
            Some((Ok(module), _)) => module,
            Some((Err((line, message)), _)) => return Err(fault(*line, "", message.clone())),
            None => return Err(fault(1, "", "there is no such file".into())),
        };
        let Some(function) = module.functions.iter().find(|f| f.name == name) else {
            let known: Vec<&str> = module.functions.iter().map(|f| f.name.as_str()).collect();
            let guess = did_you_mean(name, known.iter().copied());
            let known = if known.is_empty() { "none" } else { &known.join(", ") };
            return Err(fault(
                1,
                "",
                format!("there is no function `{name}`{guess} (functions: {known})"),
            ));
        };
        let mut inputs = Vec::new();
        let mut parameters = Vec::new();
        for declared_here in &function.parameters {
            let key = format!("{name}.{}", declared_here.name);
            let place = |message: String| fault(declared_here.line, &key, message);
            let is_same = |task: &&&str| task.replace('-', "_") == declared_here.name;
            let dependency = dependencies.iter().find(is_same).map(|task| (*task).to_owned());
            if dependency.is_some() && declared.contains(&declared_here.name.as_str()) {
                return Err(place(format!(
                    "`{}` is an input and a dependency; the parameter can get only one of them",
                    declared_here.name
                )));
            }
            let computed = declared_here.default.as_ref().is_some_and(|d| d.computed);
            let default = declared_here.default.as_ref().map_or(Value::Null, |d| d.value.clone());
            parameters.push(Parameter {
                name: declared_here.name.clone(),
                form: form(&declared_here.hint),
                positional: declared_here.kind == "positional",
                omit_null: declared_here.default.is_some() && (computed || default.is_null()),
                dependency: dependency.clone(),
            });
            if dependency.is_some() {
                continue;
            }
            input::check_name(&declared_here.name).map_err(&place)?;
            inputs.push(taken(declared_here, default, place(String::new())));
        }
        let returns = function.returns.as_ref();
        Ok(Signature {
            description: function.description.clone(),
            inputs,
            result: returns.map(|hint| result(hint, &fault(function.line.max(hint.line), name, String::new()))),
            takes_more: function.keywords,
            body: PythonBody {
                file: file.to_owned(),
                function: name.to_owned(),
                parameters,
                sources: self.sources(file),
                dir: dir.to_owned(),
            },
        })
    }

    /// The file and all that it imports, at whatever remove.
    fn sources(&self, file: &Path) -> Vec<PathBuf> {
        let mut seen = HashSet::from([file]);
        let mut open = vec![file];
        while let Some(next) = open.pop() {
            let imports = self.found.get(next).map(|(_, imports)| imports.as_slice());
            for import in imports.unwrap_or_default() {
                if seen.insert(import) {
                    open.push(import);
                }
            }
        }
        let mut sources: Vec<PathBuf> = seen.into_iter().map(Path::to_owned).collect();
        sources.sort_unstable();
        sources
    }
}

fn form(hint: &Hint) -> Form {
    match hint.kind.as_str() {
        "file" if hint.path => Form::Path,
        "file_array" if hint.path => Form::Paths,
        "binary" => Form::Bytes,
        _ => Form::Value,
    }
}

fn taken(declared: &Declared, default: Value, place: YamlError) -> Taken {
    let hint = &declared.hint;
    let known = input::TYPES.iter().find(|(word, _)| *word == hint.kind);
    let unknown = match known {
        Some(_) => None,
        None => {
            let text = hint.unknown.as_deref().unwrap_or(&hint.kind);
            Some(YamlError {
                message: format!(
                    "the hint `{text}` stands for no type; `type:` under `inputs:` in workflow.yaml gives one"
                ),
                ..place.clone()
            })
        }
    };
    let mut input = Input::new(&declared.name, known.map_or(InputType::String, |(_, kind)| *kind));
    input.description.clone_from(&declared.description);
    input.required = declared.default.is_none() && !hint.optional;
    input.options.clone_from(&hint.options);
    Taken {
        input,
        default,
        unknown,
        place,
    }
}

/// The result type that a return hint stands for.
fn result(hint: &Hint, place: &YamlError) -> Result<ResultType, YamlError> {
    let kind = match hint.kind.as_str() {
        "none" => ResultType::Text,
        // None and a value: only JSON tells them apart.
        _ if hint.optional && hint.unknown.is_none() => ResultType::Json,
        "string" => ResultType::Text,
        "integer" => ResultType::Integer,
        "float" => ResultType::Float,
        "boolean" => ResultType::Boolean,
        "array" => ResultType::Array,
        "integer_array" => ResultType::IntegerArray,
        "float_array" => ResultType::FloatArray,
        "boolean_array" => ResultType::BooleanArray,
        "file" => ResultType::File,
        "binary" => ResultType::Binary,
        "json" | "select" | "file_array" => ResultType::Json,
        _ => {
            let text = hint.unknown.as_deref().unwrap_or(&hint.kind);
            return Err(YamlError {
                message: format!("the return hint `{text}` stands for no type; `result:` in workflow.yaml gives one"),
                ..place.clone()
            });
        }
    };
    Ok(kind)
}
