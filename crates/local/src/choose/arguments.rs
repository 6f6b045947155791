//! The arguments of a call: every parameter gets the likeliest of the values that its schema allows and the request
//! suggests. What comes out is valid by construction.

use decanus_backend::BackendError;
use decanus_chat::ToolDefinition;
use serde_json::{Map, Value, json};

use super::analogy::analogies;
use super::evidence::{Evidence, MENTIONED, evidence};
use super::lexicon::presence;
use super::parameter::{Kind, Parameter, Source, parameters};
use super::rank::rank;
use super::words::{numbers, spans};
use super::write::write;
use crate::engine::session::{Session, Slot};

/// Partial calls that are kept side by side.
const BEAM: usize = 6;
/// Stretches of the request that are tried for a text.
const SPANS: usize = 320;
/// A number that is the next in the request's order is this much likelier than any other, in nats.
const IN_ORDER: f64 = 0.1;
/// The same for values that the request calls by name.
const NAMED_IN_ORDER: f64 = 6.0;
/// What stands in quotes is this much likelier to be meant.
const QUOTED: f64 = 3.0;
/// What goes on to the end of the request is this much likelier to be meant.
const TO_THE_END: f64 = 1.5;

/// A call in the making.
#[derive(Clone, Debug)]
struct Partial {
    /// What is written after `"arguments": {`.
    text: String,
    values: Map<String, Value>,
    /// Where the words and numbers stand in the request that have spoken for a value.
    used: Vec<usize>,
    /// What speaks for the values beside the model.
    bonus: f64,
    /// How likely the model finds the text.
    likelihood: f64,
}

impl Partial {
    fn score(&self) -> f64 {
        self.bonus + self.likelihood
    }

    /// What is written before the next value.
    fn key(&self, name: &str) -> String {
        let comma = if self.text.is_empty() { "" } else { ", " };
        format!("{comma}{}: ", Value::String(name.to_owned()))
    }
}

/// One way to go on.
struct Candidate {
    value: Value,
    word: Option<usize>,
    bonus: f64,
}

/// A tool and a request, while its arguments are found.
pub struct Search<'a, 's, 'm> {
    /// Computes.
    pub session: &'a mut Session<'m>,
    /// The tool.
    pub tool: &'s ToolDefinition,
    /// Ends after `"arguments": {`.
    pub prompt: &'s str,
    /// What the person asked.
    pub request: &'s str,
}

impl Search<'_, '_, '_> {
    /// Finds the arguments. What was weighed is added to `explain`.
    ///
    /// # Errors
    /// Those of computing.
    pub fn run(&mut self, explain: &mut Vec<Value>) -> Result<Map<String, Value>, BackendError> {
        let all = parameters(self.tool);
        let mut beam = vec![Partial {
            text: String::new(),
            values: Map::new(),
            used: Vec::new(),
            bonus: 0.0,
            likelihood: 0.0,
        }];
        for (position, parameter) in all.iter().enumerate() {
            self.session.check()?;
            let mut note = Map::new();
            note.insert("parameter".into(), parameter.name.clone().into());
            beam = self.extend(parameter, &all[position + 1..], &beam, &mut note)?;
            explain.push(Value::Object(note));
        }
        Ok(beam.into_iter().next().map(|p| p.values).unwrap_or_default())
    }

    fn extend(
        &mut self,
        parameter: &Parameter,
        rest: &[Parameter],
        beam: &[Partial],
        note: &mut Map<String, Value>,
    ) -> Result<Vec<Partial>, BackendError> {
        let Some(best) = beam.first() else {
            return Ok(Vec::new());
        };
        if !parameter.required && !self.is_wanted(parameter, rest, best, note)? {
            return Ok(beam.to_vec());
        }
        // A number is only over when something follows it.
        let end = match rest {
            [] => "}",
            _ if rest.iter().any(|p| p.required) => ",",
            _ => "",
        };
        let mut next: Vec<Partial> = Vec::new();
        for partial in beam {
            for candidate in self.candidates(parameter, partial)? {
                let mut more = partial.clone();
                more.text
                    .push_str(&format!("{}{}", partial.key(&parameter.name), candidate.value));
                more.bonus += candidate.bonus;
                more.used.extend(candidate.word);
                more.values.insert(parameter.name.clone(), candidate.value);
                next.push(more);
            }
        }
        if next.is_empty() {
            note.insert("candidates".into(), json!([]));
            return Ok(if parameter.required { Vec::new() } else { beam.to_vec() });
        }
        if next.len() > 1 {
            let texts: Vec<String> = next.iter().map(|p| format!("{}{end}", p.text)).collect();
            for (partial, likelihood) in next
                .iter_mut()
                .zip(rank(self.session, Slot::Arguments, self.prompt, &texts)?)
            {
                partial.likelihood = likelihood;
            }
            next.sort_by(|a, b| b.score().total_cmp(&a.score()));
        }
        let weighed = next.iter().take(5).map(|p| {
            json!({
                "value": p.values.get(&parameter.name),
                "likelihood": round(p.likelihood),
                "bonus": round(p.bonus),
            })
        });
        note.insert("candidates".into(), weighed.collect());
        next.truncate(BEAM);
        Ok(next)
    }

    /// Whether an optional parameter is given: what the model would rather write, its name or what comes without it.
    fn is_wanted(
        &mut self,
        parameter: &Parameter,
        rest: &[Parameter],
        partial: &Partial,
        note: &mut Map<String, Value>,
    ) -> Result<bool, BackendError> {
        if parameter.is_copied_number() {
            // A number that is there and has no other use is meant for something.
            let given = !self.numbers(parameter, partial).is_empty();
            note.insert("given".into(), given.into());
            return Ok(given);
        }
        let odds = match presence(self.tool, &parameter.name, self.request) {
            Some(odds) => odds,
            None => {
                let text = &partial.text;
                let given = format!("{text}{}", partial.key(&parameter.name));
                let without = match rest.iter().find(|p| p.required) {
                    Some(other) => format!("{text}{}", partial.key(&other.name)),
                    None => format!("{text}}}"),
                };
                let scores = rank(self.session, Slot::Arguments, self.prompt, &[given, without])?;
                let habit = (parameter.frequency / (1.0 - parameter.frequency)).ln();
                scores.first().zip(scores.get(1)).map_or(0.0, |(a, b)| a - b) + habit.min(0.0)
            }
        };
        note.insert("odds".into(), round(odds));
        note.insert("given".into(), (odds > 0.0).into());
        Ok(odds > 0.0)
    }

    fn candidates(&mut self, parameter: &Parameter, partial: &Partial) -> Result<Vec<Candidate>, BackendError> {
        let plain = |value: Value, bonus: f64| Candidate {
            value,
            word: None,
            bonus,
        };
        let mut found: Vec<Candidate> = match &parameter.kind {
            _ if parameter.is_copied_number() => self.numbers(parameter, partial),
            Kind::Finite(values) => self.weighed(parameter, values, partial),
            Kind::Number { .. } => {
                let mut values = self.shown(parameter);
                for number in self.numbers(parameter, partial) {
                    if !values.contains(&number.value) {
                        values.push(number.value);
                    }
                }
                self.weighed(parameter, &values, partial)
            }
            Kind::Text { least, most } if parameter.source != Source::Made => {
                let fits = |s: &String| (*least..=*most).contains(&s.chars().count());
                let spans = spans(self.request, SPANS).into_iter().filter(fits);
                spans.map(|s| plain(json!(s), self.prominence(&s))).collect()
            }
            _ => Vec::new(),
        };
        let written_too = match parameter.kind {
            Kind::Text { .. } => parameter.source != Source::Copied,
            Kind::Number { .. } => parameter.source == Source::Made,
            _ => false,
        };
        if found.is_empty()
            && let Kind::Finite(values) = &parameter.kind
        {
            found = self.weighed(parameter, values, partial);
        }
        if found.is_empty() || written_too {
            found.extend(
                analogies(self.tool, &parameter.name, self.request)
                    .into_iter()
                    .map(|v| plain(v.into(), 0.0)),
            );
            let start = format!("{}{}{}", self.prompt, partial.text, partial.key(&parameter.name));
            let written = write(self.session, start.trim_end(), &parameter.schema)?;
            if let Some(value) = written
                && !found.iter().any(|c| c.value == value)
            {
                found.push(plain(value, 0.0));
            }
        }
        Ok(found)
    }

    /// Values with what speaks for each. The earliest word that speaks for one counts for a little more.
    fn weighed(&self, parameter: &Parameter, values: &[Value], partial: &Partial) -> Vec<Candidate> {
        let evidence = evidence(self.tool, &parameter.name, values, self.request, &partial.used);
        let best = evidence.iter().map(|e| e.score).fold(f64::NEG_INFINITY, f64::max);
        let strong = |e: &&Evidence| e.score > best - 1.0;
        let earliest = evidence.iter().filter(strong).filter_map(|e| e.word).min();
        let first = if best >= MENTIONED { NAMED_IN_ORDER } else { IN_ORDER };
        let candidate = |(value, e): (&Value, &Evidence)| Candidate {
            value: value.clone(),
            word: e.word,
            bonus: e.score
                + if e.word.is_some() && e.word == earliest {
                    first
                } else {
                    0.0
                },
        };
        values.iter().zip(&evidence).map(candidate).collect()
    }

    /// The values of the examples.
    fn shown(&self, parameter: &Parameter) -> Vec<Value> {
        let mut shown: Vec<Value> = Vec::new();
        for value in self
            .tool
            .examples
            .iter()
            .filter_map(|e| e.arguments.get(&parameter.name))
        {
            if !shown.contains(value) && parameter.allows_number(&value.to_string()) {
                shown.push(value.clone());
            }
        }
        shown
    }

    /// The numbers of the request that are not used yet and that the schema allows.
    fn numbers(&self, parameter: &Parameter, partial: &Partial) -> Vec<Candidate> {
        let mut first = true;
        let mut found = Vec::new();
        for mention in numbers(self.request) {
            if partial.used.contains(&mention.start) || !parameter.allows_number(&mention.json) {
                continue;
            }
            if let Ok(value) = serde_json::from_str(&mention.json) {
                let bonus = if std::mem::take(&mut first) { IN_ORDER } else { 0.0 };
                found.push(Candidate {
                    value,
                    word: Some(mention.start),
                    bonus,
                });
            }
        }
        found
    }

    /// How much a stretch of the request stands out from it.
    fn prominence(&self, span: &str) -> f64 {
        let request = self.request.trim_end();
        let Some(at) = request.find(span) else { return 0.0 };
        let (before, after) = (request[..at].trim_end(), &request[at + span.len()..]);
        let opened = before.len() == at && before.ends_with(['"', '“', '‘', '\'', '`', '«']);
        let quoted = opened && after.starts_with(['"', '”', '’', '\'', '`', '»']);
        let ends = after.chars().all(|c| c.is_ascii_punctuation());
        let mut bonus = if quoted { QUOTED } else { 0.0 };
        if ends && !quoted {
            bonus += TO_THE_END;
            if before.ends_with(':') {
                bonus += QUOTED;
            }
        }
        bonus
    }
}

fn round(x: f64) -> Value {
    json!((x * 100.0).round() / 100.0)
}
