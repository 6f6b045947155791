//! Results: their types, what makes one of a type, and reading a stored one.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::path::Path;

use decanus_base::files::named;
use decanus_base::yaml;
use serde::{Deserialize, Serialize};
use serde_json::{Number, Value};

use crate::input;

/// Results larger than this are not read into memory as a value; their file is the way to them.
pub const MAX_LOADED: u64 = 256 << 20;

/// What a task's result is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ResultType {
    /// A text; one final newline is dropped.
    String,
    /// A text, kept as it is; the default.
    Text,
    /// A whole number.
    Integer,
    /// A number.
    Float,
    /// True or false.
    Boolean,
    /// Any JSON value.
    Json,
    /// Any YAML value.
    Yaml,
    /// A table: lines of cells with tabs between them. Its value is the text.
    Tsv,
    /// A list: JSON, or one item a line.
    Array,
    /// A list of whole numbers.
    IntegerArray,
    /// A list of numbers.
    FloatArray,
    /// A list of truths.
    BooleanArray,
    /// The path of a file, relative to the job's folder or absolute.
    File,
    /// A path at which nothing need be, relative to the job's folder or absolute.
    Path,
    /// The path of a folder, relative to the job's folder or absolute.
    Folder,
    /// Bytes, kept as they are. Its value is the path of the stored result.
    Binary,
    /// A conversation in the form of a chat file; a text, kept as it is.
    Chat,
}

/// The words of the types, in the order they are listed in messages.
pub const RESULT_TYPES: [(&str, ResultType); 17] = [
    ("string", ResultType::String),
    ("text", ResultType::Text),
    ("integer", ResultType::Integer),
    ("float", ResultType::Float),
    ("boolean", ResultType::Boolean),
    ("json", ResultType::Json),
    ("yaml", ResultType::Yaml),
    ("tsv", ResultType::Tsv),
    ("array", ResultType::Array),
    ("integer_array", ResultType::IntegerArray),
    ("float_array", ResultType::FloatArray),
    ("boolean_array", ResultType::BooleanArray),
    ("file", ResultType::File),
    ("path", ResultType::Path),
    ("folder", ResultType::Folder),
    ("binary", ResultType::Binary),
    ("chat", ResultType::Chat),
];

impl ResultType {
    /// The word for it in workflow.yaml.
    pub fn as_str(self) -> &'static str {
        RESULT_TYPES
            .iter()
            .find(|(_, t)| *t == self)
            .map_or("text", |(word, _)| word)
    }

    /// The end of a result file's name, without the dot.
    pub fn extension(self) -> &'static str {
        match self {
            Self::Json => "json",
            Self::Yaml => "yaml",
            Self::Tsv => "tsv",
            Self::Binary => "bin",
            Self::Chat => "chat",
            _ => "txt",
        }
    }

    /// Makes what a process wrote into a result, in place, or says why it is none.
    pub(crate) fn accept(self, path: &Path, files: &Path) -> Result<(), String> {
        let io = |e: io::Error| format!("its result can't be read: {}", named(e, path));
        let about = fs::symlink_metadata(path).map_err(io)?;
        if !about.is_file() {
            return Err("its result is not a plain file".into());
        }
        match self {
            Self::Binary => Ok(()),
            Self::Text | Self::Tsv | Self::Chat => is_utf8(path).map_err(io)?.then_some(()).ok_or_else(not_text),
            Self::String => {
                drop_newline(path).map_err(io)?;
                is_utf8(path).map_err(io)?.then_some(()).ok_or_else(not_text)
            }
            Self::Integer | Self::Float | Self::Boolean => {
                drop_newline(path).map_err(io)?;
                self.load(path, files).map(drop)
            }
            // Looked at as it streams by: a result may be larger than memory.
            Self::Json => {
                let file = File::open(path).map_err(io)?;
                serde_json::from_reader::<_, serde::de::IgnoredAny>(BufReader::new(file))
                    .map(drop)
                    .map_err(|e| format!("its result is not JSON: {e}"))
            }
            _ => self.load(path, files).map(drop),
        }
    }

    /// What is stored for a value of this type.
    ///
    /// # Errors
    /// Why the value is none of this type. Null is an empty text, or JSON's own; no other type has it.
    pub(crate) fn write(self, value: &Value) -> Result<Vec<u8>, String> {
        let wrong = || {
            let shown = decanus_base::text::brief(&value.to_string(), 80);
            format!("it returned {shown}, but the task's result is {}", self.as_str())
        };
        let items = |item: &dyn Fn(&Value) -> Result<Value, String>| -> Result<String, String> {
            let items = value.as_array().ok_or_else(wrong)?;
            let items = items.iter().map(item).collect::<Result<Vec<_>, _>>()?;
            let texts: Vec<String> = items.iter().map(input::show).collect();
            let lines = texts.join("\n");
            // A list that would be read back as another one is written as JSON.
            let same = lines.lines().eq(texts.iter().map(String::as_str));
            match same && !lines.trim_start().starts_with('[') {
                true => Ok(lines),
                false => Ok(Value::Array(items).to_string()),
            }
        };
        let text = match self {
            Self::Json | Self::Yaml => value.to_string(),
            Self::Text | Self::String | Self::Chat if value.is_null() => String::new(),
            Self::Text | Self::String | Self::Chat | Self::Tsv | Self::File | Self::Path | Self::Folder => {
                match value {
                    Value::String(text) => text.clone(),
                    Value::Number(_) | Value::Bool(_) if matches!(self, Self::Text | Self::String) => value.to_string(),
                    _ => return Err(wrong()),
                }
            }
            Self::Integer if value.is_number() => input::show(&input::integer(value)?),
            Self::Float if value.is_number() => value.to_string(),
            Self::Boolean if value.is_boolean() => value.to_string(),
            Self::Array => items(&|v| {
                if v.is_string() {
                    Ok(v.clone())
                } else {
                    Ok(v.to_string().into())
                }
            })?,
            Self::IntegerArray => items(&input::integer)?,
            Self::FloatArray => items(&input::float)?,
            Self::BooleanArray => items(&input::boolean)?,
            Self::Integer | Self::Float | Self::Boolean => return Err(wrong()),
            Self::Binary => return Err("bytes are written to the result file, not returned".into()),
        };
        Ok(text.into_bytes())
    }

    /// Reads a stored result.
    pub(crate) fn load(self, path: &Path, files: &Path) -> Result<Value, String> {
        if self == Self::Binary {
            return Ok(path.display().to_string().into());
        }
        let size = fs::metadata(path)
            .map_err(|e| format!("the result can't be read: {e}"))?
            .len();
        if size > MAX_LOADED {
            return Err(format!("the result has {size} bytes, too many to be read as a value"));
        }
        let bytes = fs::read(path).map_err(|e| format!("the result can't be read: {e}"))?;
        let text = String::from_utf8(bytes).map_err(|_| not_text())?;
        let wrong = |what: &str| format!("its result is not {what}: `{}`", decanus_base::text::brief(&text, 80));
        match self {
            Self::String | Self::Text | Self::Tsv | Self::Chat => Ok(text.into()),
            Self::Integer => {
                let digits = text.trim().strip_prefix(['-', '+']).unwrap_or(text.trim());
                if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
                    return Err(wrong("an integer"));
                }
                number(text.trim()).ok_or_else(|| wrong("an integer"))
            }
            Self::Float => number(text.trim()).ok_or_else(|| wrong("a number")),
            Self::Boolean => input::boolean(&text.as_str().into()).map_err(|_| wrong("true or false")),
            Self::Json => serde_json::from_str(&text).map_err(|e| format!("its result is not JSON: {e}")),
            Self::Yaml => match yaml::parse(&text, path) {
                Ok(node) => Ok(node.to_json()),
                Err(e) => Err(format!("its result is not YAML: line {}: {}", e.line, e.message)),
            },
            Self::Array => items(&text, &|item| Ok(item)),
            Self::IntegerArray => items(&text, &|item| input::integer(&item)),
            Self::FloatArray => items(&text, &|item| input::float(&item)),
            Self::BooleanArray => items(&text, &|item| input::boolean(&item)),
            Self::File | Self::Path | Self::Folder => {
                let named = files.join(text.strip_suffix('\n').unwrap_or(&text));
                let (what, is_there) = match self {
                    Self::File => ("the path of a file", named.is_file()),
                    Self::Folder => ("the path of a folder", named.is_dir()),
                    _ => ("a path", !text.contains('\0')),
                };
                if text.trim().is_empty() || !is_there {
                    return Err(wrong(what));
                }
                Ok(named.display().to_string().into())
            }
            // Dealt with above: it is never read as a text.
            Self::Binary => Ok(Value::Null),
        }
    }
}

/// The items of a list: those of a JSON list, else the lines.
fn items(text: &str, item: &dyn Fn(Value) -> Result<Value, String>) -> Result<Value, String> {
    let items = match serde_json::from_str(text) {
        Ok(Value::Array(items)) => items,
        _ => text.lines().map(Value::from).collect(),
    };
    let numbered = items.into_iter().enumerate();
    numbered
        .map(|(at, value)| item(value).map_err(|e| format!("item {} of its result: {e}", at + 1)))
        .collect()
}

fn not_text() -> String {
    "its result is not UTF-8 text".into()
}

/// A number with the digits that were written, where JSON can hold them.
fn number(text: &str) -> Option<Value> {
    if let Ok(number) = serde_json::from_str::<Number>(text) {
        return Some(Value::Number(number));
    }
    if !text.contains(|c: char| c.is_ascii_digit()) {
        return None;
    }
    let plain = text.strip_prefix('+').unwrap_or(text);
    let digits_only = plain
        .strip_prefix('-')
        .unwrap_or(plain)
        .bytes()
        .all(|b| b.is_ascii_digit());
    if digits_only {
        return input::integer(&plain.into()).ok();
    }
    text.parse::<f64>().ok().and_then(Number::from_f64).map(Value::Number)
}

fn drop_newline(path: &Path) -> io::Result<()> {
    let mut file = OpenOptions::new().read(true).write(true).open(path)?;
    let length = file.metadata()?.len();
    if length > 0 {
        file.seek(SeekFrom::End(-1))?;
        let mut last = [0];
        file.read_exact(&mut last)?;
        if last == *b"\n" {
            file.set_len(length - 1)?;
        }
    }
    Ok(())
}

/// Whether a file is UTF-8 text, read in pieces.
fn is_utf8(path: &Path) -> io::Result<bool> {
    let mut file = File::open(path)?;
    let mut buffer = vec![0u8; 1 << 16];
    let mut kept = 0;
    loop {
        let read = file.read(&mut buffer[kept..])?;
        if read == 0 {
            return Ok(kept == 0);
        }
        let filled = kept + read;
        match std::str::from_utf8(&buffer[..filled]) {
            Ok(_) => kept = 0,
            // The beginning of a character at the end of the piece.
            Err(e) if e.error_len().is_none() => {
                buffer.copy_within(e.valid_up_to()..filled, 0);
                kept = filled - e.valid_up_to();
            }
            Err(_) => return Ok(false),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn made(kind: ResultType, bytes: &[u8]) -> Result<Value, String> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("r");
        fs::write(dir.path().join("artefact"), "x").unwrap();
        fs::write(&path, bytes).unwrap();
        kind.accept(&path, dir.path())?;
        kind.load(&path, dir.path())
    }

    #[test]
    fn what_processes_write_becomes_values() {
        use ResultType::*;
        for (kind, bytes, expected) in [
            (String, "hi\n\n", json!("hi\n")),
            (Text, "hi\n", json!("hi\n")),
            (Text, "", json!("")),
            (Integer, "20\n", json!(20)),
            (Integer, "-007", json!(-7)),
            (Float, "25.998\n", json!(25.998)),
            (Float, ".5", json!(0.5)),
            (Boolean, "True\n", json!(true)),
            (Json, "{\"a\":[1,null,\"x\"]}\n", json!({"a": [1, null, "x"]})),
            (Yaml, "a: [1, x]\n", json!({"a": [1, "x"]})),
            (Tsv, "k\tx\na\tb\n", json!("k\tx\na\tb\n")),
            (Array, "a\nb\n", json!(["a", "b"])),
            (Array, "[1, \"a\\nb\"]", json!([1, "a\nb"])),
            (Array, "", json!([])),
            (IntegerArray, "3\n4\n", json!([3, 4])),
            (IntegerArray, "[\"3\", 4]", json!([3, 4])),
            (FloatArray, "1\n2.5", json!([1.0, 2.5])),
            (BooleanArray, "yes\nfalse\n", json!([true, false])),
            (Chat, "user: hi\n", json!("user: hi\n")),
        ] {
            assert_eq!(made(kind, bytes.as_bytes()), Ok(expected), "{kind:?} {bytes:?}");
        }
        for (kind, text, end) in [
            (File, "artefact\n", "/artefact"),
            (Path, "./not/there", "/not/there"),
            (Folder, ".\n", "/"),
            // The value of bytes is where they are.
            (Binary, "\0\n", "/r"),
        ] {
            let value = made(kind, text.as_bytes()).unwrap();
            let value = value.as_str().unwrap().trim_end_matches("/.").to_owned();
            assert!(
                format!("{value}/").ends_with(&format!("{}/", end.trim_end_matches('/'))),
                "{kind:?} {value}"
            );
        }
    }

    #[test]
    fn what_is_not_of_the_type_is_no_result() {
        use ResultType::*;
        for (kind, bytes) in [
            (Integer, &b"2.5"[..]),
            (Integer, b""),
            (Integer, b"12 apples"),
            (Float, b"nan"),
            (Float, b"inf"),
            (Boolean, b"perhaps"),
            (Json, b"{\"a\":"),
            (Json, b"{} {}"),
            (Json, b""),
            (Yaml, b"a: [1"),
            (Text, b"a\xff"),
            (Text, b"a\xe2\x82"),
            (File, b"missing"),
            (File, b""),
            (Folder, b"artefact"),
            (Path, b""),
            (IntegerArray, b"3\nfour"),
            (IntegerArray, b"3\n\n4"),
            (BooleanArray, b"perhaps"),
            (Chat, b"\xff"),
        ] {
            assert!(made(kind, bytes).is_err(), "{kind:?} {bytes:?}");
        }
        // Bytes are kept as they are.
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("r"), b"\xff\n").unwrap();
        Binary.accept(&dir.path().join("r"), dir.path()).unwrap();
        assert_eq!(fs::read(dir.path().join("r")).unwrap(), b"\xff\n");
        let long = "é€🙂".repeat(40_000);
        assert_eq!(made(Text, long.as_bytes()), Ok(json!(long)));
    }
}
