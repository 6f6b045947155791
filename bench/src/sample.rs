//! A long chat as decanus writes it, made up anew each time: the same text for the same size, and no file to keep.

use decanus::chat::{Arguments, FunctionCall, FunctionCallOutput, Message, Meta, print};
use serde_json::{Value, json};

/// What decanus stores at once: bookkeeping, and the messages that belong to it.
pub struct Step {
    /// Without `bytes=`, which is known when the messages are printed.
    pub meta: Meta,
    /// What was said, called or returned.
    pub messages: Vec<Message>,
}

/// Steps that make a chat of about this many bytes.
pub fn steps(bytes: usize) -> Vec<Step> {
    let mut writer = Writer::new(0x5eed);
    let mut steps = vec![Step {
        meta: Meta::new(),
        messages: vec![Message::system(writer.paragraphs(4))],
    }];
    let mut length = 0;
    while length < bytes {
        let turn = writer.turn();
        length += turn.iter().map(size).sum::<usize>();
        steps.extend(turn);
    }
    steps
}

/// About what a step takes in the file.
fn size(step: &Step) -> usize {
    let messages: usize = step.messages.iter().map(|m| m.content.len() + 16).sum();
    step.meta.write().len() + 20 + messages
}

/// The bytes of the file that `ChatFile` makes of these steps.
pub fn text(steps: &[Step]) -> String {
    let mut text = String::new();
    for step in steps {
        let body = print(&step.messages) + "\n";
        let mut meta = step.meta.clone();
        meta.set("bytes", body.len());
        text.push_str(&print(&[meta.to_message()]));
        text.push('\n');
        text.push_str(&body);
    }
    text
}

const WORDS: &[&str] = &[
    "the",
    "of",
    "and",
    "a",
    "to",
    "in",
    "is",
    "that",
    "it",
    "was",
    "for",
    "on",
    "are",
    "with",
    "as",
    "at",
    "be",
    "this",
    "from",
    "have",
    "or",
    "by",
    "one",
    "not",
    "but",
    "what",
    "all",
    "were",
    "when",
    "there",
    "can",
    "each",
    "which",
    "their",
    "if",
    "do",
    "will",
    "how",
    "other",
    "about",
    "many",
    "then",
    "them",
    "these",
    "so",
    "some",
    "would",
    "into",
    "has",
    "more",
    "two",
    "like",
    "him",
    "see",
    "time",
    "could",
    "no",
    "make",
    "than",
    "first",
    "been",
    "its",
    "who",
    "now",
    "people",
    "protein",
    "sequence",
    "measurement",
    "temperature",
    "café",
    "naïve",
    "résumé",
    "function",
    "parameter",
    "workflow",
    "simulation",
    "interval",
    "distribution",
    "naming",
    "molecule",
    "structure",
    "buffer",
];

const CODE: &[&str] = &[
    "import numpy as np",
    "def mean(values: list[float]) -> float:",
    "    return sum(values) / len(values)",
    "for (let i = 0; i < rows.length; i++) {",
    "    console.log(`${rows[i].name}: ${rows[i].value}`);",
    "}",
    "if [[ -f \"$file\" ]]; then",
    "    grep -c '<item>' \"$file\"",
    "fi",
    "name: build",
    "model: gpt",
    "    steps: [checkout, test]",
    "",
    "SELECT sample, AVG(mass) FROM runs GROUP BY sample;",
    "# user: not a header in here",
];

/// Writes what people, models and tools might have said.
pub(crate) struct Writer {
    state: u64,
    calls: usize,
}

impl Writer {
    /// The same seed gives the same texts.
    pub(crate) fn new(state: u64) -> Self {
        Self { state, calls: 0 }
    }

    /// One of the words.
    pub(crate) fn word(&mut self) -> &'static str {
        self.pick(WORDS)
    }

    /// A number below `limit` (splitmix64: a few lines, and the same everywhere).
    pub(crate) fn below(&mut self, limit: usize) -> usize {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((z ^ (z >> 31)) >> 33).unwrap_or_default() % limit
    }

    fn pick(&mut self, from: &[&'static str]) -> &'static str {
        from[self.below(from.len())]
    }

    fn sentence(&mut self) -> String {
        let mut text = String::new();
        for word in 0..6 + self.below(14) {
            let next = self.pick(WORDS);
            if word == 0 {
                let mut letters = next.chars();
                text.extend(letters.next().map(|c| c.to_ascii_uppercase()));
                text.push_str(letters.as_str());
            } else {
                text.push(' ');
                text.push_str(next);
            }
        }
        text.push_str(self.pick(&[".", ".", ".", "!", "?", ":", "; see `chat.rs`.", " (about 3 < 4)."]));
        text
    }

    fn paragraph(&mut self) -> String {
        let sentences: Vec<String> = (0..2 + self.below(5)).map(|_| self.sentence()).collect();
        // Some write a line per sentence, most a line per paragraph.
        sentences.join(if self.below(4) == 0 { "\n" } else { " " })
    }

    fn paragraphs(&mut self, count: usize) -> String {
        let texts: Vec<String> = (0..count).map(|_| self.paragraph()).collect();
        texts.join("\n\n")
    }

    fn list(&mut self) -> String {
        let numbered = self.below(2) == 0;
        let items: Vec<String> = (1..4 + self.below(6))
            .map(|n| {
                let text = self.sentence();
                if numbered {
                    format!("{n}. **{}**: {text}", self.pick(WORDS))
                } else {
                    format!("- {text}")
                }
            })
            .collect();
        items.join("\n")
    }

    fn code(&mut self) -> String {
        let language = self.pick(&["python", "sh", "yaml", "", "sql"]);
        let lines: Vec<&str> = (0..4 + self.below(24)).map(|_| self.pick(CODE)).collect();
        format!("```{language}\n{}\n```", lines.join("\n"))
    }

    /// What a model answers: Markdown, now and then with a line that has to be escaped, or with an element.
    fn markdown(&mut self) -> String {
        let mut parts = Vec::new();
        for _ in 0..1 + self.below(5) {
            let part = match self.below(40) {
                0..18 => self.paragraph(),
                18..26 => self.list(),
                26..35 => self.code(),
                35..37 => format!("## {}", self.sentence()),
                37 => format!("summary: {}", self.sentence()),
                38 => format!("user: {}\nassistant: {}", self.sentence(), self.sentence()),
                _ => format!("<details>\n{}\n</details>", self.paragraph()),
            };
            parts.push(part);
        }
        parts.join("\n\n")
    }

    fn meta(&mut self) -> Meta {
        let mut meta = Meta::new();
        let (prompt, completion) = (200 + self.below(30_000), 10 + self.below(2_000));
        meta.set("pt", prompt)
            .set("ct", completion)
            .set("tt", prompt + completion);
        meta.set(
            "timestamp",
            format!("2026-01-02T{:02}:{:02}:07.250Z", self.below(24), self.below(60)),
        );
        let id = (self.below(usize::MAX), self.below(usize::MAX));
        meta.set("inference_id", format!("{:08x}-7f0c-4c1b-9a51-{:012x}", id.0, id.1));
        if self.below(3) == 0 {
            meta.set("reas", self.paragraph().replace('\n', " "));
        }
        meta
    }

    /// A question, perhaps calls with their outputs, an answer.
    fn turn(&mut self) -> Vec<Step> {
        let question = Message::user(if self.below(3) == 0 {
            self.markdown()
        } else {
            self.paragraph()
        });
        let mut steps = vec![Step {
            meta: Meta::new(),
            messages: vec![question],
        }];
        for _ in 0..self.below(3) {
            let (call, output) = self.call();
            for (meta, message) in [(self.meta(), call), (Meta::new(), output)] {
                steps.push(Step {
                    meta,
                    messages: vec![message],
                });
            }
        }
        steps.push(Step {
            meta: self.meta(),
            messages: vec![Message::assistant(self.markdown())],
        });
        steps
    }

    fn call(&mut self) -> (Message, Message) {
        self.calls += 1;
        let id = format!("call_{:06}", self.calls);
        let arguments = json!({"path": format!("data/{}.csv", self.pick(WORDS)), "limit": self.below(100), "query": self.sentence()});
        let Value::Object(arguments) = arguments else {
            unreachable!("an object was written");
        };
        let content = match self.below(12) {
            0..6 => self.below(100_000).to_string(),
            6..9 => self.paragraphs(2),
            9..11 => self.table(40),
            // A file that was read.
            _ => self.table(500),
        };
        let call = FunctionCall {
            id: id.clone(),
            name: "read_file".into(),
            arguments: Arguments::Object(arguments),
        };
        let output = FunctionCallOutput {
            id,
            name: "read_file".into(),
            content,
            timestamp: Some("2026-01-02T03:04:05.678Z".into()),
            ..FunctionCallOutput::default()
        };
        (call.to_message(), output.to_message())
    }

    fn table(&mut self, rows: usize) -> String {
        (0..rows)
            .map(|row| {
                format!(
                    "{row}\t\"{}\"\t{}.{}\n",
                    self.pick(WORDS),
                    self.below(1000),
                    self.below(10)
                )
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use decanus::chat::{ChatFile, Role, Transcript};

    use super::*;

    #[test]
    fn the_text_is_what_a_chat_file_would_be() {
        let steps = steps(20_000);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.chat");
        let (mut chat, _) = ChatFile::open(&path, Duration::ZERO, &|| false).unwrap();
        for step in &steps {
            let version = chat.version();
            chat.append(&step.meta, &step.messages, version).unwrap();
        }
        assert_eq!(std::fs::read_to_string(&path).unwrap(), text(&steps));
    }

    #[test]
    fn it_holds_all_that_matters_and_reads_back() {
        let steps = steps(400_000);
        let text = text(&steps);
        for part in [
            "\n```python\n",
            "\n\\user: ",
            "\n\\summary: ",
            "<details>\n",
            " reas=",
            "\nfunction_call_output: {",
        ] {
            assert!(text.contains(part), "{part}");
        }
        let read: Vec<_> = decanus::chat::parse(&text).messages;
        let read: Vec<_> = read.iter().filter(|m| m.role != Role::Meta).collect();
        let written: Vec<_> = steps.iter().flat_map(|s| &s.messages).collect();
        assert_eq!(read, written);
    }
}
