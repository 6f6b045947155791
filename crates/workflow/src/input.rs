//! Inputs of tasks: their types, and how values that people and models write become values of a type.

use std::path::Path;

use decanus_base::names::did_you_mean;
use serde_json::{Map, Number, Value};

use crate::path_rules::PathRules;

/// What an input may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InputType {
    /// A text; blanks at both ends are dropped.
    String,
    /// A text, kept as it is.
    Text,
    /// A whole number of any size.
    Integer,
    /// A number.
    Float,
    /// True or false.
    Boolean,
    /// One of the options.
    Select,
    /// A path, absolute once it is read. Nothing need be there, and what is there is not looked at.
    Path,
    /// The path of a file that exists; its content, not its path, is part of a job's identity.
    File,
    /// The path of a folder that exists; names and contents of its files are part of a job's identity.
    Folder,
    /// The path of a file of bytes; as [`File`](Self::File).
    Binary,
    /// The path of a table; as [`File`](Self::File).
    Tsv,
    /// Any JSON value.
    Json,
    /// Any value, written as YAML.
    Yaml,
    /// A conversation in the form of a chat file; a text, kept as it is.
    Chat,
    /// A list of texts.
    Array,
    /// A list of whole numbers.
    IntegerArray,
    /// A list of numbers.
    FloatArray,
    /// A list of truths.
    BooleanArray,
    /// A list of paths; as [`Path`](Self::Path).
    PathArray,
    /// A list of files; as [`File`](Self::File).
    FileArray,
}

/// The words of the types, in the order they are listed in messages.
pub const TYPES: [(&str, InputType); 20] = [
    ("string", InputType::String),
    ("text", InputType::Text),
    ("integer", InputType::Integer),
    ("float", InputType::Float),
    ("boolean", InputType::Boolean),
    ("select", InputType::Select),
    ("path", InputType::Path),
    ("file", InputType::File),
    ("folder", InputType::Folder),
    ("binary", InputType::Binary),
    ("tsv", InputType::Tsv),
    ("json", InputType::Json),
    ("yaml", InputType::Yaml),
    ("chat", InputType::Chat),
    ("array", InputType::Array),
    ("integer_array", InputType::IntegerArray),
    ("float_array", InputType::FloatArray),
    ("boolean_array", InputType::BooleanArray),
    ("path_array", InputType::PathArray),
    ("file_array", InputType::FileArray),
];

impl InputType {
    /// The word for it in workflow.yaml.
    pub fn as_str(self) -> &'static str {
        TYPES
            .iter()
            .find(|(_, t)| *t == self)
            .map_or("string", |(word, _)| word)
    }

    /// Whether its values are single, so that a process finds them as variables of its environment.
    pub fn is_scalar(self) -> bool {
        !matches!(self, Self::Json | Self::Yaml) && !self.is_list()
    }

    /// Whether its values are lists.
    pub fn is_list(self) -> bool {
        matches!(
            self,
            Self::Array
                | Self::IntegerArray
                | Self::FloatArray
                | Self::BooleanArray
                | Self::PathArray
                | Self::FileArray
        )
    }

    /// Whether its values name files or a folder that must exist, and whose content is part of a job's identity.
    pub fn reads_content(self) -> bool {
        matches!(
            self,
            Self::File | Self::Folder | Self::Binary | Self::Tsv | Self::FileArray
        )
    }

    /// Whether its values are paths, of whatever kind.
    pub fn is_path(self) -> bool {
        self.reads_content() || matches!(self, Self::Path | Self::PathArray)
    }
}

/// An input of a task.
#[derive(Clone, Debug, PartialEq)]
pub struct Input {
    /// `[a-z][a-z0-9_]*`.
    pub name: String,
    /// What it may hold.
    pub kind: InputType,
    /// What it means, for people and models.
    pub description: String,
    /// Whether a value must be given.
    pub required: bool,
    /// The value when none is given; null is none. It fits the type; a file's is absolute.
    pub default: Value,
    /// What a `select` may be; empty for the other types.
    pub options: Vec<Value>,
    /// What the options are called, in their order; empty when they speak for themselves.
    pub labels: Vec<String>,
    /// The smallest number allowed.
    pub minimum: Option<Number>,
    /// The largest number allowed.
    pub maximum: Option<Number>,
    /// Whether its value names the job when no name is given, and takes the name when no value is given.
    pub is_jobname: bool,
    /// Whether its value is kept out of what is recorded and shown. The task's process gets it.
    pub is_secret: bool,
    /// A short key for it on the command line.
    pub shortcut: Option<String>,
}

/// What stands in records for the value of a secret input.
pub const MASK: &str = "********";

impl Input {
    /// An optional input without a default.
    pub fn new(name: impl Into<String>, kind: InputType) -> Self {
        Self {
            name: name.into(),
            kind,
            description: String::new(),
            required: false,
            default: Value::Null,
            options: Vec::new(),
            labels: Vec::new(),
            minimum: None,
            maximum: None,
            is_jobname: false,
            is_secret: false,
            shortcut: None,
        }
    }

    /// The value of this type that `value` stands for. Null stays null.
    ///
    /// # Errors
    /// What is wrong with the value, without the input's name.
    pub fn coerce(&self, value: &Value, paths: &PathRules) -> Result<Value, String> {
        if value.is_null() {
            return Ok(Value::Null);
        }
        match self.kind {
            InputType::String => Ok(text(value)?.trim().into()),
            InputType::Text | InputType::Chat => Ok(text(value)?.into()),
            InputType::Integer => self.bounded(integer(value)?),
            InputType::Float => self.bounded(float(value)?),
            InputType::Boolean => boolean(value),
            InputType::Select => self.select(value),
            InputType::Path => Ok(paths.place(&text(value)?)?.into()),
            InputType::File | InputType::Binary | InputType::Tsv => Ok(paths.resolve(&text(value)?, false)?.into()),
            InputType::Folder => Ok(paths.resolve(&text(value)?, true)?.into()),
            InputType::Json => match value {
                Value::String(s) => serde_json::from_str(s).map_err(|e| format!("not JSON: {e}")),
                other => Ok(other.clone()),
            },
            InputType::Yaml => match value {
                Value::String(s) => yaml_value(s),
                other => Ok(other.clone()),
            },
            InputType::Array => list(value, |v| Ok(text(v)?.into())),
            InputType::IntegerArray => list(value, integer),
            InputType::FloatArray => list(value, float),
            InputType::BooleanArray => list(value, boolean),
            InputType::PathArray => list(value, |v| Ok(paths.place(&text(v)?)?.into())),
            InputType::FileArray => list(value, |v| Ok(paths.resolve(&text(v)?, false)?.into())),
        }
    }

    /// The value of a default that the workflow's author wrote. A path is made absolute from `dir`; whether a file is
    /// there is seen when a job is made, since it may be fetched later.
    pub(crate) fn coerce_default(&self, value: &Value, dir: &Path) -> Result<Value, String> {
        let join = |v: &Value| Ok(dir.join(text(v)?).display().to_string().into());
        match (self.kind, value) {
            (_, Value::Null) => Ok(Value::Null),
            (InputType::FileArray, value) => list(value, join),
            (kind, value) if kind.reads_content() => join(value),
            (_, value) => self.coerce(value, &PathRules::trusted(dir)),
        }
    }

    fn select(&self, value: &Value) -> Result<Value, String> {
        let given = text(value)?;
        let given = given.trim();
        let words: Vec<String> = self.options.iter().map(show).collect();
        match words.iter().position(|w| w == given) {
            Some(at) => Ok(self.options[at].clone()),
            None => {
                let guess = did_you_mean(given, words.iter().map(String::as_str));
                Err(format!("`{given}` is not one of {}{guess}", words.join(", ")))
            }
        }
    }

    fn bounded(&self, value: Value) -> Result<Value, String> {
        let Some(number) = value.as_f64() else { return Ok(value) };
        let beyond = |limit: &Option<Number>, over: fn(f64, f64) -> bool| {
            limit
                .as_ref()
                .filter(|l| l.as_f64().is_some_and(|l| over(number, l)))
                .cloned()
        };
        if let Some(limit) = beyond(&self.minimum, |n, l| n < l) {
            return Err(format!("{value} is less than {limit}"));
        }
        if let Some(limit) = beyond(&self.maximum, |n, l| n > l) {
            return Err(format!("{value} is more than {limit}"));
        }
        Ok(value)
    }
}

/// A value as text: texts as they are, everything else as JSON; null is empty.
pub fn show(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(s) => s.clone(),
        other => other.to_string(),
    }
}

fn text(value: &Value) -> Result<String, String> {
    match value {
        Value::Array(_) => Err("expected a text, found a list".into()),
        Value::Object(_) => Err("expected a text, found an object".into()),
        other => Ok(show(other)),
    }
}

fn yaml_value(text: &str) -> Result<Value, String> {
    if text.trim().is_empty() {
        return Ok(Value::Null);
    }
    decanus_base::yaml::parse(text, Path::new(""))
        .map(|node| node.to_json())
        .map_err(|e| format!("not YAML: line {}: {}", e.line, e.message))
}

pub(crate) fn integer(value: &Value) -> Result<Value, String> {
    let written = match value {
        Value::Number(n) => n.to_string(),
        Value::String(s) => s.trim().to_owned(),
        other => return Err(format!("`{}` is not an integer", show(other))),
    };
    let fail = || format!("`{written}` is not an integer");
    let digits = written.strip_prefix(['-', '+']).unwrap_or(&written);
    if !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit()) {
        // The digits themselves, since no machine integer holds all of them.
        let digits = digits.trim_start_matches('0');
        let sign = if written.starts_with('-') && !digits.is_empty() {
            "-"
        } else {
            ""
        };
        let plain = if digits.is_empty() { "0" } else { digits };
        return serde_json::from_str(&format!("{sign}{plain}")).map_err(|_| fail());
    }
    // 5.0 and 1e3 are whole too, as far as a float can tell.
    let number: f64 = written.parse().map_err(|_| fail())?;
    if number.fract() == 0.0 && number.abs() < 9_007_199_254_740_992.0 {
        Ok((number as i64).into())
    } else {
        Err(fail())
    }
}

pub(crate) fn float(value: &Value) -> Result<Value, String> {
    let written = match value {
        Value::Number(n) => n.to_string(),
        Value::String(s) => s.trim().to_owned(),
        other => return Err(format!("`{}` is not a number", show(other))),
    };
    // One spelling for each number, so that 5, "5.0" and 5e0 are one job; -0 is 0.
    let number = written.parse::<f64>().ok().map(|n| if n == 0.0 { 0.0 } else { n });
    number
        .and_then(Number::from_f64)
        .map(Value::Number)
        .ok_or_else(|| format!("`{written}` is not a number"))
}

/// Reads the words for true and false.
///
/// # Errors
/// Lists the words.
pub fn boolean(value: &Value) -> Result<Value, String> {
    match show(value).trim().to_lowercase().as_str() {
        "true" | "t" | "yes" | "y" | "on" | "1" => Ok(true.into()),
        "false" | "f" | "no" | "n" | "off" | "0" => Ok(false.into()),
        other => Err(format!("`{other}` is neither true (yes, on, 1) nor false (no, off, 0)")),
    }
}

fn list(value: &Value, item: impl Fn(&Value) -> Result<Value, String>) -> Result<Value, String> {
    let items: Vec<Value> = match value {
        Value::Array(items) => items.clone(),
        Value::String(s) if s.trim_start().starts_with('[') => {
            serde_json::from_str(s).map_err(|e| format!("not a JSON list: {e}"))?
        }
        Value::String(s) => s.lines().map(Value::from).collect(),
        Value::Object(_) => return Err("expected a list, found an object".into()),
        single => vec![single.clone()],
    };
    let coerced = items
        .iter()
        .enumerate()
        .map(|(i, v)| item(v).map_err(|e| format!("item {}: {e}", i + 1)));
    coerced.collect::<Result<Vec<_>, _>>().map(Value::Array)
}

/// Whether a name can be an input's.
///
/// # Errors
/// Why not.
pub fn check_name(name: &str) -> Result<(), String> {
    let mut bytes = name.bytes();
    let first = bytes.next().is_some_and(|b| b.is_ascii_lowercase());
    if !first || !bytes.all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_') || name.len() > 64 {
        return Err(format!(
            "`{name}` can't be the name of an input: small letters, digits and `_`, a letter first"
        ));
    }
    // Inputs become variables of a process's environment; these ones change what programs do.
    const STEERING: [&str; 24] = [
        "path",
        "home",
        "shell",
        "ifs",
        "env",
        "bash_env",
        "http_proxy",
        "https_proxy",
        "ftp_proxy",
        "no_proxy",
        "all_proxy",
        "rsync_proxy",
        "tmpdir",
        "cdpath",
        "pwd",
        "oldpwd",
        "shellopts",
        "bashopts",
        "globignore",
        "ps4",
        "locpath",
        "hostaliases",
        "workflow_dir",
        "enable_user_site",
    ];
    const FAMILIES: [&str; 15] = [
        "ld_",
        "dyld_",
        "python",
        "perl5",
        "perllib",
        "ruby",
        "node_",
        "git_",
        "decanus_",
        "bash_func_",
        "gconv_",
        "glibc_",
        "malloc_",
        "openssl_",
        "java_tool",
    ];
    if STEERING.contains(&name) || FAMILIES.iter().any(|f| name.starts_with(f)) {
        return Err(format!(
            "`{name}` can't be the name of an input: a variable of that name steers programs"
        ));
    }
    Ok(())
}

/// The coerced values of examples and fixed inputs may not name files elsewhere: a map of names to values, each
/// checked by the first input of that name.
pub(crate) fn coerce_map(
    values: &Map<String, Value>,
    inputs: &[&Input],
    paths: &PathRules,
) -> Result<Map<String, Value>, (String, String)> {
    let mut out = Map::new();
    for (name, value) in values {
        let Some(input) = inputs.iter().find(|i| i.name == *name) else {
            let guess = did_you_mean(name, inputs.iter().map(|i| i.name.as_str()));
            return Err((name.clone(), format!("there is no input `{name}`{guess}")));
        };
        out.insert(name.clone(), input.coerce(value, paths).map_err(|e| (name.clone(), e))?);
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn input(kind: InputType) -> Input {
        Input {
            options: vec![json!("hg19"), json!("hg38"), json!(7)],
            ..Input::new("x", kind)
        }
    }

    fn coerce(kind: InputType, value: Value) -> Result<Value, String> {
        input(kind).coerce(&value, &PathRules::trusted("/"))
    }

    #[test]
    fn values_become_values_of_their_type() {
        use InputType::*;
        let big = "7340017340017340017734001734001734001";
        for (kind, given, expected) in [
            (String, json!(" a "), json!("a")),
            (String, json!(5), json!("5")),
            (Text, json!(" a\n"), json!(" a\n")),
            (Integer, json!("3"), json!(3)),
            (Integer, json!("-007"), json!(-7)),
            (Integer, json!(10.0), json!(10)),
            (Integer, json!(big), serde_json::from_str(big).unwrap()),
            (Float, json!("1e3"), json!(1000.0)),
            (Float, json!(5), json!(5.0)),
            (Float, json!(-0.0), json!(0.0)),
            (Boolean, json!("Yes"), json!(true)),
            (Boolean, json!("off"), json!(false)),
            (Boolean, json!(1), json!(true)),
            (Select, json!("hg19"), json!("hg19")),
            (Select, json!("7"), json!(7)),
            (Json, json!("{\"a\":[1]}"), json!({"a": [1]})),
            (Json, json!([1]), json!([1])),
            (Array, json!("a\nb"), json!(["a", "b"])),
            (Array, json!(["a", "b"]), json!(["a", "b"])),
            (Array, json!("[\"a\",\"b\"]"), json!(["a", "b"])),
            (Array, json!("a,b"), json!(["a,b"])),
            (Array, json!(""), json!([])),
            (IntegerArray, json!("3\n4"), json!([3, 4])),
            (IntegerArray, json!(["1", 2]), json!([1, 2])),
            (FloatArray, json!([1, "2.5"]), json!([1.0, 2.5])),
            (Integer, json!(null), json!(null)),
        ] {
            assert_eq!(coerce(kind, given.clone()), Ok(expected), "{kind:?} {given}");
        }
    }

    #[test]
    fn values_that_do_not_fit_are_refused() {
        use InputType::*;
        for (kind, given, says) in [
            (Integer, json!("abc"), "`abc` is not an integer"),
            (Integer, json!("2.7"), "`2.7` is not an integer"),
            (Integer, json!(true), "`true` is not an integer"),
            (Integer, json!(""), "`` is not an integer"),
            (Float, json!("nan"), "`nan` is not a number"),
            (Float, json!("1e999"), "is not a number"),
            (Boolean, json!("maybe"), "neither true"),
            (Select, json!("hg20"), "not one of hg19, hg38, 7"),
            (Json, json!("{"), "not JSON"),
            (IntegerArray, json!(["1", "b"]), "item 2: `b` is not an integer"),
            (String, json!(["a"]), "found a list"),
            (File, json!("nothing/here"), "nothing/here"),
            (File, json!("tmp"), "not a file"),
        ] {
            let error = coerce(kind, given.clone()).unwrap_err();
            assert!(error.contains(says), "{kind:?} {given}: {error}");
        }
    }

    #[test]
    fn bounds() {
        let month = Input {
            minimum: Some(1.into()),
            maximum: Some(12.into()),
            ..input(InputType::Integer)
        };
        let rules = PathRules::trusted("/");
        assert_eq!(month.coerce(&json!("12"), &rules), Ok(json!(12)));
        assert_eq!(month.coerce(&json!(13), &rules), Err("13 is more than 12".into()));
        assert_eq!(month.coerce(&json!(0), &rules), Err("0 is less than 1".into()));
    }

    #[test]
    fn a_text_that_names_a_file_stays_a_text() {
        assert_eq!(
            coerce(InputType::String, json!("/etc/passwd")),
            Ok(json!("/etc/passwd"))
        );
        assert_eq!(coerce(InputType::Text, json!("/etc/passwd")), Ok(json!("/etc/passwd")));
    }

    #[test]
    fn names_that_steer_programs_are_refused() {
        for bad in [
            "path",
            "ld_preload",
            "http_proxy",
            "pythonpath",
            "git_dir",
            "decanus_result",
            "A",
            "1a",
            "a-b",
            "",
        ] {
            assert!(check_name(bad).is_err(), "{bad}");
        }
        for good in ["month", "year_a", "n", "pathway", "term", "data"] {
            check_name(good).unwrap();
        }
    }
}
