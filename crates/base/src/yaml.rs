//! YAML in which every value knows its line, so that an error can name file, line and key.
//!
//! Plain scalars follow the YAML 1.2 core schema; numbers keep all their digits.

use std::fmt;
use std::path::{Path, PathBuf};

use saphyr::{MarkedYaml, ScalarStyle, YamlData, YamlLoader};
use serde_json::{Map, Value};

/// A fault in a YAML file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct YamlError {
    /// The file.
    pub file: PathBuf,
    /// Line, counted from 1.
    pub line: usize,
    /// The way to the value, such as `tasks.normalize.inputs`; empty for the whole file.
    pub key: String,
    /// What is wrong.
    pub message: String,
}

impl fmt::Display for YamlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: ", self.file.display(), self.line)?;
        if !self.key.is_empty() {
            write!(f, "{}: ", self.key)?;
        }
        f.write_str(&self.message)
    }
}

/// A value with its place in the file.
#[derive(Debug, Clone)]
pub struct Node {
    /// Line, counted from 1.
    pub line: usize,
    /// The way to this value from the top of the file.
    pub key: String,
    /// What it is.
    pub data: Data,
    file: std::sync::Arc<Path>,
}

/// What a YAML value can be.
#[derive(Debug, Clone)]
pub enum Data {
    /// Null, boolean, number or text.
    Scalar(Value),
    /// A list.
    Sequence(Vec<Node>),
    /// A map in the order of the file: name, line of the name, value.
    Mapping(Vec<(String, usize, Node)>),
}

/// Reads one YAML document. An empty file is an empty map.
///
/// # Errors
/// A syntax error, several documents, duplicate keys, tags or keys that are not scalars, each with its line.
pub fn parse(text: &str, file: &Path) -> Result<Node, YamlError> {
    let fail = |line: usize, message: String| YamlError {
        file: file.to_owned(),
        line,
        key: String::new(),
        message,
    };
    let mut loader = YamlLoader::<MarkedYaml>::default();
    loader.early_parse(false);
    let mut parser = saphyr_parser::Parser::new_from_str(text);
    let scan = |e: saphyr::ScanError| fail(e.marker().line().max(1), e.info().to_owned());
    parser.load(&mut loader, true).map_err(scan)?;
    if let Some(e) = loader.error() {
        return Err(scan(e.clone()));
    }
    let mut documents = loader.into_documents();
    let file: std::sync::Arc<Path> = file.into();
    match documents.len() {
        0 => Ok(Node {
            line: 1,
            key: String::new(),
            data: Data::Mapping(Vec::new()),
            file,
        }),
        1 => convert(documents.remove(0), String::new(), &file),
        n => Err(fail(
            documents[1].span.start.line().max(1),
            format!("{n} documents in one file; one is expected"),
        )),
    }
}

fn convert(node: MarkedYaml<'_>, key: String, file: &std::sync::Arc<Path>) -> Result<Node, YamlError> {
    let line = node.span.start.line().max(1);
    let fail = |message: &str| YamlError {
        file: file.to_path_buf(),
        line,
        key: key.clone(),
        message: message.into(),
    };
    let below = |name: &str| {
        if key.is_empty() {
            name.to_owned()
        } else {
            format!("{key}.{name}")
        }
    };
    let data = match node.data {
        YamlData::Representation(text, style, None) => Data::Scalar(scalar(&text, style)),
        YamlData::Sequence(items) => Data::Sequence(
            items
                .into_iter()
                .enumerate()
                .map(|(i, n)| convert(n, below(&format!("[{i}]")), file))
                .collect::<Result<_, _>>()?,
        ),
        YamlData::Mapping(map) => {
            let mut entries = Vec::with_capacity(map.len());
            for (k, v) in map {
                let key_line = k.span.start.line().max(1);
                let YamlData::Representation(name, _, None) = k.data else {
                    return Err(fail("a key must be a plain word or text"));
                };
                let value = convert(v, below(&name), file)?;
                entries.push((name.into_owned(), key_line, value));
            }
            Data::Mapping(entries)
        }
        _ => return Err(fail("tags, and values of this kind, are not supported here")),
    };
    Ok(Node {
        line,
        key,
        data,
        file: file.clone(),
    })
}

fn scalar(text: &str, style: ScalarStyle) -> Value {
    if style != ScalarStyle::Plain {
        return Value::String(text.to_owned());
    }
    match text {
        "" | "~" | "null" | "Null" | "NULL" => Value::Null,
        "true" | "True" | "TRUE" => Value::Bool(true),
        "false" | "False" | "FALSE" => Value::Bool(false),
        _ => number(text).unwrap_or_else(|| Value::String(text.to_owned())),
    }
}

/// A decimal number of the core schema; hexadecimal, octal, `.inf` and `.nan` stay texts.
fn number(text: &str) -> Option<Value> {
    let unsigned = text.strip_prefix(['-', '+']).unwrap_or(text);
    if !unsigned.starts_with(|c: char| c.is_ascii_digit()) {
        return None;
    }
    // JSON refuses a leading plus and leading zeros: 007 is more likely a code than a number.
    serde_json::from_str::<serde_json::Number>(text).ok().map(Value::Number)
}

impl Node {
    /// An error about this value.
    pub fn error(&self, message: impl Into<String>) -> YamlError {
        YamlError {
            file: self.file.to_path_buf(),
            line: self.line,
            key: self.key.clone(),
            message: message.into(),
        }
    }

    /// The members of a map.
    ///
    /// # Errors
    /// When it is something else.
    pub fn mapping(&self) -> Result<&[(String, usize, Node)], YamlError> {
        match &self.data {
            Data::Mapping(entries) => Ok(entries),
            Data::Scalar(Value::Null) => Ok(&[]),
            _ => Err(self.error(format!("expected a map of names to values, found {}", self.what()))),
        }
    }

    /// The items of a list; a single scalar counts as a list of one.
    ///
    /// # Errors
    /// When it is a map.
    pub fn sequence(&self) -> Result<Vec<&Node>, YamlError> {
        match &self.data {
            Data::Sequence(items) => Ok(items.iter().collect()),
            Data::Scalar(Value::Null) => Ok(Vec::new()),
            Data::Scalar(_) => Ok(vec![self]),
            Data::Mapping(_) => Err(self.error("expected a list, found a map")),
        }
    }

    /// A text. Numbers and booleans are taken as they are written.
    ///
    /// # Errors
    /// When it is a list, a map or null.
    pub fn text(&self) -> Result<String, YamlError> {
        match &self.data {
            Data::Scalar(Value::String(s)) => Ok(s.clone()),
            Data::Scalar(v @ (Value::Number(_) | Value::Bool(_))) => Ok(v.to_string()),
            _ => Err(self.error(format!("expected a text, found {}", self.what()))),
        }
    }

    /// A boolean.
    ///
    /// # Errors
    /// When it is anything but `true` or `false`.
    pub fn boolean(&self) -> Result<bool, YamlError> {
        match &self.data {
            Data::Scalar(Value::Bool(b)) => Ok(*b),
            _ => Err(self.error(format!("expected true or false, found {}", self.what()))),
        }
    }

    /// The member of that name of a map.
    pub fn get(&self, name: &str) -> Option<&Node> {
        match &self.data {
            Data::Mapping(entries) => entries.iter().find(|(n, ..)| n == name).map(|(.., v)| v),
            _ => None,
        }
    }

    /// Refuses members of a map that are not among `known`, naming line and key and what was perhaps meant.
    ///
    /// # Errors
    /// For the first unknown member.
    pub fn only(&self, known: &[&str]) -> Result<(), YamlError> {
        for (name, line, value) in self.mapping()? {
            if !known.contains(&name.as_str()) {
                let guess = crate::names::did_you_mean(name, known.iter().copied());
                let mut error = value.error(format!("unknown key `{name}`{guess}"));
                error.line = *line;
                return Err(error);
            }
        }
        Ok(())
    }

    /// The whole value as JSON.
    pub fn to_json(&self) -> Value {
        match &self.data {
            Data::Scalar(v) => v.clone(),
            Data::Sequence(items) => Value::Array(items.iter().map(Node::to_json).collect()),
            Data::Mapping(entries) => Value::Object(
                entries
                    .iter()
                    .map(|(n, _, v)| (n.clone(), v.to_json()))
                    .collect::<Map<_, _>>(),
            ),
        }
    }

    fn what(&self) -> String {
        match &self.data {
            Data::Scalar(Value::Null) => "nothing".into(),
            Data::Scalar(v) => format!("`{}`", v.as_str().map_or_else(|| v.to_string(), str::to_owned)),
            Data::Sequence(_) => "a list".into(),
            Data::Mapping(_) => "a map".into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(text: &str) -> Result<Node, YamlError> {
        parse(text, Path::new("w.yaml"))
    }

    #[test]
    fn scalars_follow_the_core_schema_and_keep_their_digits() {
        let node = read("a: 7340017340017340017\nb: '1'\nc: no\nd: 007\ne: -2.50\nf: ~\ng: true\nh: [x, 1]").unwrap();
        let expected: Value = serde_json::from_str(
            r#"{"a":7340017340017340017,"b":"1","c":"no","d":"007","e":-2.50,"f":null,"g":true,"h":["x",1]}"#,
        )
        .unwrap();
        assert_eq!(node.to_json(), expected);
    }

    #[test]
    fn errors_name_file_line_and_key() {
        let node = read("tasks:\n  a:\n    inputs:\n      x: {typ: integer}\n").unwrap();
        let input = node
            .get("tasks")
            .and_then(|n| n.get("a"))
            .and_then(|n| n.get("inputs"))
            .and_then(|n| n.get("x"));
        let error = input.unwrap().only(&["type", "default"]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "w.yaml:4: tasks.a.inputs.x.typ: unknown key `typ`; did you mean type?"
        );
        let error = read("a: 1\nb: [1, 2\nc: 3\n").unwrap_err();
        assert!(error.line >= 2 && error.to_string().starts_with("w.yaml:"), "{error}");
        assert_eq!(read("a: 1\na: 2\n").unwrap_err().line, 2);
        assert!(read("a: !!binary x").is_err());
    }

    #[test]
    fn an_empty_file_is_an_empty_map() {
        assert_eq!(read("# nothing\n").unwrap().to_json(), json!({}));
    }

    #[test]
    fn a_bomb_of_aliases_is_refused() {
        let mut text = String::from("a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n");
        for i in 1..12 {
            let refs = vec![format!("*a{}", i - 1); 10].join(",");
            text.push_str(&format!("a{i}: &a{i} [{refs}]\n"));
        }
        assert!(read(&text).is_err());
    }
}
