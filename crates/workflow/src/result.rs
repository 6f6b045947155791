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
#[serde(rename_all = "lowercase")]
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
    /// The path of a file, relative to the job's folder or absolute.
    File,
}

/// The words of the types, in the order they are listed in messages.
pub const RESULT_TYPES: [(&str, ResultType); 10] = [
    ("string", ResultType::String),
    ("text", ResultType::Text),
    ("integer", ResultType::Integer),
    ("float", ResultType::Float),
    ("boolean", ResultType::Boolean),
    ("json", ResultType::Json),
    ("yaml", ResultType::Yaml),
    ("tsv", ResultType::Tsv),
    ("array", ResultType::Array),
    ("file", ResultType::File),
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
            Self::Text | Self::Tsv => is_utf8(path).map_err(io)?.then_some(()).ok_or_else(not_text),
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
            Self::Yaml | Self::Array | Self::File => self.load(path, files).map(drop),
        }
    }

    /// Reads a stored result.
    pub(crate) fn load(self, path: &Path, files: &Path) -> Result<Value, String> {
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
            Self::String | Self::Text | Self::Tsv => Ok(text.into()),
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
            Self::Array => match serde_json::from_str(&text) {
                Ok(list @ Value::Array(_)) => Ok(list),
                _ => Ok(text.lines().map(Value::from).collect()),
            },
            Self::File => {
                let named = files.join(text.strip_suffix('\n').unwrap_or(&text));
                if text.trim().is_empty() || !named.is_file() {
                    return Err(wrong("the path of a file"));
                }
                Ok(named.display().to_string().into())
            }
        }
    }
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
        ] {
            assert_eq!(made(kind, bytes.as_bytes()), Ok(expected), "{kind:?} {bytes:?}");
        }
        assert!(
            made(File, b"artefact\n")
                .unwrap()
                .as_str()
                .unwrap()
                .ends_with("/artefact")
        );
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
        ] {
            assert!(made(kind, bytes).is_err(), "{kind:?} {bytes:?}");
        }
        let long = "é€🙂".repeat(40_000);
        assert_eq!(made(Text, long.as_bytes()), Ok(json!(long)));
    }
}
