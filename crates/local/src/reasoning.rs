//! What a model thinks before it answers, told from the answer while both come in pieces.
//!
//! Models write their thoughts between tags, which their template shows: `<think>…</think>` and the like, or messages of
//! their own on a channel named `analysis`. A template may also open the tag itself, at the end of the prompt.

/// Tags around thoughts. Those of a template are the first of these that it holds one half of: many mention only the
/// closing one, to cut thoughts out of earlier answers.
const PAIRS: [(&str, &str); 7] = [
    ("<think>", "</think>"),
    ("[THINK]", "[/THINK]"),
    ("<thinking>", "</thinking>"),
    ("<seed:think>", "</seed:think>"),
    ("<reasoning>", "</reasoning>"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<|channel>thought", "<channel|>"),
];
const CHANNEL: &str = "<|channel|>";
const MESSAGE: &str = "<|message|>";
const START: &str = "<|start|>";
const END: &str = "<|end|>";
const MARKS: [&str; 4] = [CHANNEL, MESSAGE, START, END];

/// How a model marks its thoughts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Between two tags, at the beginning of the answer.
    Tags {
        /// The one before.
        open: &'static str,
        /// The one behind.
        close: &'static str,
        /// Whether the template shows them. Otherwise they are what most models use, should this one.
        declared: bool,
    },
    /// As messages on a channel: `<|channel|>analysis<|message|>…<|end|>`.
    Channels,
}

impl Form {
    /// The form of a template.
    pub fn of(template: &str) -> Self {
        if template.contains(CHANNEL) && template.contains(MESSAGE) {
            return Self::Channels;
        }
        let shown = PAIRS
            .iter()
            .find(|(open, close)| template.contains(open) || template.contains(close));
        let (open, close) = *shown.unwrap_or(&PAIRS[0]);
        Self::Tags {
            open,
            close,
            declared: shown.is_some(),
        }
    }

    /// Control tokens that have to be seen.
    pub fn control_tokens(self) -> Vec<String> {
        match self {
            Self::Tags { open, close, .. } => vec![open.into(), close.into()],
            Self::Channels => MARKS.map(str::to_owned).into(),
        }
    }

    /// Whether a prompt ends with the opening tag, so that what the model writes begins as a thought.
    pub fn is_opened_by(self, prompt: &str) -> bool {
        matches!(self, Self::Tags { open, .. } if prompt.trim_end().ends_with(open))
    }

    /// What is to be added to a prompt for an answer without thoughts: an end of those that it has opened; if `empty`, also
    /// empty thoughts where the model would otherwise begin with some.
    pub fn without(self, prompt: &str, empty: bool) -> String {
        match self {
            Self::Tags { close, .. } if self.is_opened_by(prompt) => format!("\n{close}\n\n"),
            Self::Tags {
                open,
                close,
                declared: true,
            } if empty => format!("{open}\n\n{close}\n\n"),
            _ => String::new(),
        }
    }
}

/// Thoughts and text, as far as they are known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Parts {
    /// More of the thoughts.
    pub reasoning: String,
    /// More of the answer.
    pub text: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Thoughts may begin; whether blanks are a part of the text.
    Start { blanks: bool },
    /// Thoughts; whether there was anything of them yet.
    Thought { begun: bool },
    /// Text to the end.
    Text,
    /// What a message of a channel is.
    Header,
    /// Between two messages of channels.
    Gap,
    /// A message of a channel; whether it is a thought.
    Body { thought: bool },
}

/// Tells thoughts from text.
#[derive(Clone, Debug)]
pub struct Splitter {
    form: Form,
    state: State,
    buffer: String,
}

impl Splitter {
    /// At the beginning of an answer; `inside` when the prompt already holds the opening tag.
    pub fn new(form: Form, inside: bool) -> Self {
        let state = if inside {
            State::Thought { begun: false }
        } else {
            State::Start { blanks: true }
        };
        Self {
            form,
            state,
            buffer: String::new(),
        }
    }

    /// Whether thoughts are going on.
    pub fn is_inside(&self) -> bool {
        matches!(self.state, State::Thought { .. } | State::Body { thought: true })
    }

    /// Takes a piece.
    pub fn push(&mut self, piece: &str) -> Parts {
        let mut parts = Parts::default();
        self.buffer.push_str(piece);
        match self.form {
            Form::Tags { open, close, .. } => while self.step(open, close, &mut parts) {},
            Form::Channels => while self.step_channels(&mut parts) {},
        }
        parts
    }

    /// The answer is over: what was held back.
    pub fn finish(&mut self) -> Parts {
        let rest = std::mem::take(&mut self.buffer);
        let mut parts = Parts::default();
        match self.state {
            State::Thought { .. } | State::Body { thought: true } => parts.reasoning = rest.trim_end().to_owned(),
            State::Start { blanks: false } | State::Gap if rest.trim().is_empty() => {}
            // What began like a tag and is none was text after all.
            _ => parts.text = rest,
        }
        parts
    }

    /// One step; false when more has to come first.
    fn step(&mut self, open: &str, close: &str, parts: &mut Parts) -> bool {
        match self.state {
            State::Start { blanks } => {
                let rest = self.buffer.trim_start();
                if let Some(inner) = rest.strip_prefix(open) {
                    self.buffer = inner.to_owned();
                    self.state = State::Thought { begun: false };
                    return true;
                }
                if open.starts_with(rest) {
                    return false;
                }
                if !blanks {
                    self.buffer = rest.to_owned();
                }
                self.state = State::Text;
                true
            }
            State::Thought { begun } => {
                if !begun {
                    self.buffer = self.buffer.trim_start().to_owned();
                }
                if let Some(at) = self.buffer.find(close) {
                    parts.reasoning.push_str(self.buffer[..at].trim_end());
                    self.buffer.drain(..at + close.len());
                    self.state = State::Start { blanks: false };
                    return true;
                }
                let known = self.buffer.len() - held(&self.buffer, &[close]);
                let known = self.buffer[..known].trim_end().len();
                parts.reasoning.extend(self.buffer.drain(..known));
                self.state = State::Thought {
                    begun: begun || known > 0,
                };
                false
            }
            _ => {
                parts.text.push_str(&std::mem::take(&mut self.buffer));
                false
            }
        }
    }

    fn step_channels(&mut self, parts: &mut Parts) -> bool {
        match self.state {
            State::Start { .. } | State::Gap => {
                let rest = self.buffer.trim_start();
                let header = [CHANNEL, START].iter().find_map(|mark| rest.strip_prefix(mark));
                if let Some(header) = header {
                    self.buffer = header.to_owned();
                    self.state = State::Header;
                    return true;
                }
                if CHANNEL.starts_with(rest) || START.starts_with(rest) {
                    return false;
                }
                self.state = State::Body { thought: false };
                true
            }
            State::Header => {
                let Some(at) = self.buffer.find(MESSAGE) else {
                    return false;
                };
                let thought = self.buffer[..at].contains("analysis");
                self.buffer.drain(..at + MESSAGE.len());
                self.state = State::Body { thought };
                true
            }
            State::Body { thought } | State::Thought { begun: thought } => {
                let end = [CHANNEL, START, END]
                    .iter()
                    .filter_map(|mark| Some((self.buffer.find(mark)?, *mark)))
                    .min();
                let known = end.map_or_else(|| self.buffer.len() - held(&self.buffer, &MARKS), |(at, _)| at);
                let into = if thought { &mut parts.reasoning } else { &mut parts.text };
                into.extend(self.buffer.drain(..known));
                let Some((_, mark)) = end else { return false };
                self.buffer.drain(..mark.len());
                self.state = if mark == END { State::Gap } else { State::Header };
                true
            }
            State::Text => false,
        }
    }
}

/// How many bytes at the end may be the beginning of one of these marks.
fn held(text: &str, marks: &[&str]) -> usize {
    let overlap = |mark: &&str| {
        (1..mark.len())
            .rev()
            .find(|n| text.as_bytes().ends_with(&mark.as_bytes()[..*n]))
    };
    marks.iter().filter_map(overlap).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const THINK: Form = Form::Tags {
        open: "<think>",
        close: "</think>",
        declared: true,
    };

    fn split(form: Form, inside: bool, pieces: &[&str]) -> (String, String) {
        let mut splitter = Splitter::new(form, inside);
        let mut all = Parts::default();
        let mut add = |parts: Parts| {
            all.reasoning.push_str(&parts.reasoning);
            all.text.push_str(&parts.text);
        };
        pieces.iter().for_each(|p| add(splitter.push(p)));
        add(splitter.finish());
        (all.reasoning, all.text)
    }

    /// However the text is cut, in two, in three or into single characters, the same comes out.
    fn every_cut(form: Form, inside: bool, text: &str, reasoning: &str, answer: &str) {
        let wanted = (reasoning.to_owned(), answer.to_owned());
        let cuts: Vec<usize> = (0..=text.len()).filter(|at| text.is_char_boundary(*at)).collect();
        for (i, a) in cuts.iter().enumerate() {
            for b in &cuts[i..] {
                let pieces = [&text[..*a], &text[*a..*b], &text[*b..]];
                assert_eq!(split(form, inside, &pieces), wanted, "{pieces:?}");
            }
        }
        let single: Vec<String> = text.chars().map(String::from).collect();
        let single: Vec<&str> = single.iter().map(String::as_str).collect();
        assert_eq!(split(form, inside, &single), wanted);
    }

    #[test]
    fn thoughts_are_told_from_text_at_every_cut() {
        every_cut(
            THINK,
            false,
            "<think>\nAh </thin é\n\nso\n</think>\n\nIt is < 4.\n",
            "Ah </thin é\n\nso",
            "It is < 4.\n",
        );
        every_cut(THINK, true, "\nAh.\n</think>\nYes", "Ah.", "Yes");
        every_cut(THINK, false, "\n<think></think>Yes", "", "Yes");
        every_cut(THINK, false, "<think>a</think> <think>b</think>c", "ab", "c");
    }

    #[test]
    fn an_answer_without_thoughts_is_kept_as_it_is() {
        every_cut(THINK, false, " \n<thin ice", "", " \n<thin ice");
        every_cut(THINK, false, "Write <think>x</think>.", "", "Write <think>x</think>.");
        every_cut(THINK, false, "<think", "", "<think");
        every_cut(THINK, false, "  ", "", "  ");
    }

    #[test]
    fn thoughts_without_an_end_are_thoughts() {
        every_cut(THINK, false, "<think>one </thi", "one </thi", "");
        every_cut(THINK, true, "one\n", "one", "");
        let mut splitter = Splitter::new(THINK, true);
        splitter.push("x");
        splitter.finish();
        assert!(splitter.is_inside());
    }

    #[test]
    fn channels() {
        let text =
            "<|channel|>analysis<|message|>Ah < so<|end|><|start|>assistant<|channel|>final<|message|>It is <|4.";
        every_cut(Form::Channels, false, text, "Ah < so", "It is <|4.");
        every_cut(Form::Channels, false, "Plain <b>.", "", "Plain <b>.");
        every_cut(Form::Channels, false, "<|channel|>analysis<|message|>Ah", "Ah", "");
    }

    #[test]
    fn the_template_says_the_form() {
        let tags = |template: &str| match Form::of(template) {
            Form::Tags { open, declared, .. } => (open, declared),
            Form::Channels => ("channels", true),
        };
        assert_eq!(tags("{{ content.split('</think>')[-1] }}"), ("<think>", true));
        assert_eq!(tags("[THINK]"), ("[THINK]", true));
        assert_eq!(tags("nothing"), ("<think>", false));
        assert_eq!(tags("'<|channel|>analysis<|message|>'"), ("channels", true));
    }

    #[test]
    fn thoughts_can_be_left_out() {
        assert!(THINK.is_opened_by("assistant\n<think>\n") && !THINK.is_opened_by("<think>\n</think>"));
        assert_eq!(THINK.without("assistant\n<think>\n", false), "\n</think>\n\n");
        assert_eq!(THINK.without("assistant\n", true), "<think>\n\n</think>\n\n");
        assert_eq!(THINK.without("assistant\n", false), "");
        assert_eq!(Form::of("").without("assistant\n", true), "");
    }
}
