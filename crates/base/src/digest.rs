//! SHA-256 digests, and an encoding of values in which no two different values look alike.

use serde_json::Value;
use sha2::{Digest, Sha256};
use std::io::{self, Read};
use std::path::Path;

/// Lower-case hexadecimal SHA-256 of some bytes.
pub fn sha256_hex(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

/// Lower-case hexadecimal SHA-256 of a file's content, read in pieces.
///
/// # Errors
/// Those of opening and reading the file.
pub fn sha256_file(path: &Path) -> io::Result<String> {
    let mut file = std::fs::File::open(path)?;
    let mut hasher = Sha256::new();
    let mut buffer = vec![0u8; 1 << 16];
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(hex(&hasher.finalize())),
            n => hasher.update(&buffer[..n]),
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut out, b| {
        let _ = write!(out, "{b:02x}");
        out
    })
}

/// A digest over a sequence of typed values. Every value is written with a type tag and its length, so that `["a, b"]`
/// and `["a", "b"]`, or the text `3` and the number 3, never meet.
#[derive(Default)]
pub struct ValueHasher(Sha256);

impl ValueHasher {
    /// An empty digest.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a text.
    pub fn text(&mut self, text: &str) -> &mut Self {
        self.tagged(b's', text.as_bytes())
    }

    /// Adds raw bytes.
    pub fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.tagged(b'b', bytes)
    }

    /// Adds a JSON value; the members of objects are taken in the order of their names.
    pub fn value(&mut self, value: &Value) -> &mut Self {
        match value {
            Value::Null => self.tagged(b'n', b""),
            Value::Bool(b) => self.tagged(b't', if *b { b"1" } else { b"0" }),
            Value::Number(n) => self.tagged(b'd', n.to_string().as_bytes()),
            Value::String(s) => self.tagged(b's', s.as_bytes()),
            Value::Array(items) => {
                self.tagged(b'a', items.len().to_string().as_bytes());
                for item in items {
                    self.value(item);
                }
                self
            }
            Value::Object(map) => {
                self.tagged(b'o', map.len().to_string().as_bytes());
                let mut names: Vec<&String> = map.keys().collect();
                names.sort_unstable();
                for name in names {
                    self.text(name).value(&map[name]);
                }
                self
            }
        }
    }

    /// The digest in lower-case hexadecimal.
    pub fn hex(self) -> String {
        hex(&self.0.finalize())
    }

    fn tagged(&mut self, tag: u8, bytes: &[u8]) -> &mut Self {
        self.0.update([tag]);
        self.0.update((bytes.len() as u64).to_le_bytes());
        self.0.update(bytes);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn digest(v: Value) -> String {
        let mut h = ValueHasher::new();
        h.value(&v);
        h.hex()
    }

    #[test]
    fn different_values_have_different_digests() {
        let values = [
            json!(["a, b"]),
            json!(["a", "b"]),
            json!("3"),
            json!(3),
            json!(3.0),
            json!(true),
            json!("true"),
            json!(null),
            json!([]),
            json!({}),
            json!([["a"], "b"]),
            json!([["a", "b"]]),
        ];
        for (i, a) in values.iter().enumerate() {
            for b in &values[i + 1..] {
                assert_ne!(digest(a.clone()), digest(b.clone()), "{a} {b}");
            }
        }
        assert_eq!(digest(json!({"a": 1, "b": 2})), digest(json!({"b": 2, "a": 1})));
    }

    #[test]
    fn sha256_is_the_published_one() {
        assert_eq!(
            sha256_hex(b"abc"),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
    }
}
