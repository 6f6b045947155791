//! Tokens, each request counted once however many chats hold a copy of it.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use decanus_chat::Usage;

use crate::receipts::Receipt;
use crate::segment::Segment;

/// One place that speaks of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Evidence {
    /// The chat.
    pub file: PathBuf,
    /// The line of the meta.
    pub line: usize,
    /// What it says.
    pub usage: Usage,
    /// The provider's id of the response, where it is given.
    pub provider_response_id: Option<String>,
    /// Whether it is a receipt: said by an output, of a request that somebody else made.
    pub receipt: bool,
}

/// A request that was made, with everything that speaks of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inference {
    /// Its `inference_id`, else the provider's id of its response, else the lineage of its meta.
    pub id: String,
    /// Whether its meta names it; otherwise it is known by its place in the conversation only.
    pub has_id: bool,
    /// Its tokens, as the first evidence has them.
    pub usage: Usage,
    /// The model that answered.
    pub model: Option<String>,
    /// When the answer was there, UTC.
    pub time: Option<String>,
    /// Where it was found, in order.
    pub evidence: Vec<Evidence>,
    /// What its evidence disagrees about: `pt`, `ct`, `tt`, `provider_response_id`.
    pub conflicts: Vec<&'static str>,
}

/// What became of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The place of the request among the inferences.
    pub at: usize,
    /// Whether it was entered for the first time; a copy counts nothing.
    pub is_new: bool,
    /// What a copy says otherwise.
    pub differs: Vec<&'static str>,
}

/// All requests that were found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ledger {
    inferences: Vec<Inference>,
    by_id: HashMap<String, usize>,
}

impl Ledger {
    /// Enters what a segment of a chat says of a request; nothing for a segment without tokens of its own.
    pub fn add(&mut self, file: &Path, line: usize, segment: &Segment) -> Option<Entry> {
        self.enter(file, line, segment, false)
    }

    /// Enters what an output says of a request that another agent made. Chats are to be entered before: what they say
    /// counts. A receipt without an id is known by its place alone.
    pub fn add_receipt(&mut self, file: &Path, line: usize, receipt: &Receipt) -> Option<Entry> {
        let segment = Segment {
            meta: receipt.meta.clone(),
            index: 0,
            covered: 0..0,
            lineage: format!("{}:{line}[{}]", file.display(), receipt.index),
        };
        self.enter(file, line, &segment, true)
    }

    fn enter(&mut self, file: &Path, line: usize, segment: &Segment, receipt: bool) -> Option<Entry> {
        let usage = segment.direct_usage()?;
        let text = |key: &str| segment.meta.get(key).filter(|v| !v.is_empty()).map(str::to_owned);
        let provider_response_id = text("provider_response_id");
        // Ids of different kinds never meet.
        let (key, id) = match (text("inference_id"), &provider_response_id) {
            (Some(id), _) => (format!("inference {id}"), Some(id)),
            (None, Some(id)) => (format!("response {id}"), Some(id.clone())),
            (None, None) => (format!("lineage {}", segment.lineage), None),
        };
        let evidence = Evidence {
            file: file.to_owned(),
            line,
            usage,
            provider_response_id,
            receipt,
        };
        if let Some(&at) = self.by_id.get(&key) {
            return Some(Entry {
                at,
                is_new: false,
                differs: self.inferences[at].confirm(evidence),
            });
        }
        let at = self.inferences.len();
        self.by_id.insert(key, at);
        self.inferences.push(Inference {
            has_id: id.is_some(),
            id: id.unwrap_or_else(|| segment.lineage.clone()),
            usage,
            model: text("model"),
            time: text("timestamp"),
            evidence: vec![evidence],
            conflicts: Vec::new(),
        });
        Some(Entry {
            at,
            is_new: true,
            differs: Vec::new(),
        })
    }

    /// The requests, in the order in which they were found.
    pub fn inferences(&self) -> &[Inference] {
        &self.inferences
    }

    /// The tokens of all requests.
    pub fn total(&self) -> Usage {
        self.inferences.iter().fold(Usage::default(), |mut sum, i| {
            sum += i.usage;
            sum
        })
    }

    /// The tokens of those requests that chats speak of, that receipts speak of, and that nothing but receipts speaks
    /// of. The first two overlap.
    pub fn scopes(&self) -> [Usage; 3] {
        let sum = |counts: &dyn Fn(&Inference) -> bool| {
            let counted = self.inferences.iter().filter(|i| counts(i));
            counted.fold(Usage::default(), |mut sum, i| {
                sum += i.usage;
                sum
            })
        };
        let in_chat = |i: &Inference| i.evidence.iter().any(|e| !e.receipt);
        let in_receipt = |i: &Inference| i.evidence.iter().any(|e| e.receipt);
        [sum(&in_chat), sum(&in_receipt), sum(&|i| !in_chat(i))]
    }

    /// Whether any evidence disagrees, so that the total is only what was found first.
    pub fn has_conflicts(&self) -> bool {
        self.inferences.iter().any(|i| !i.conflicts.is_empty())
    }
}

impl Inference {
    /// Takes further evidence, which counts no more tokens. Gives what it disagrees about with what was found first; a
    /// count or an id that one side lacks is no disagreement.
    fn confirm(&mut self, evidence: Evidence) -> Vec<&'static str> {
        let counts = self.usage.fields().into_iter().zip(evidence.usage.fields());
        let mut differs: Vec<&str> = counts
            .take(3)
            .filter(|((_, a), (_, b))| a.is_some() && b.is_some() && a != b)
            .map(|((name, _), _)| name)
            .collect();
        let known = self.evidence.iter().find_map(|e| e.provider_response_id.as_ref());
        if let (Some(a), Some(b)) = (known, &evidence.provider_response_id)
            && a != b
        {
            differs.push("provider_response_id");
        }
        for name in &differs {
            if !self.conflicts.contains(name) {
                self.conflicts.push(name);
            }
        }
        self.evidence.push(evidence);
        differs
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::segment::segments;
    use decanus_chat::parse;

    fn ledger(chats: &[&str]) -> Ledger {
        let mut ledger = Ledger::default();
        for (n, text) in chats.iter().enumerate() {
            let messages = parse(text).messages;
            for segment in segments(&messages) {
                let line = messages[segment.index].line.unwrap();
                ledger.add(Path::new(&format!("{n}.chat")), line, &segment);
            }
        }
        ledger
    }

    /// Worked example 38.
    #[test]
    fn a_jobs_meta_adds_nothing() {
        let ledger = ledger(&["user: q\nmeta: tt=2\nmeta: job=J\nassistant: a\n"]);
        assert_eq!(
            ledger.total(),
            Usage {
                tt: Some(2),
                ..Usage::default()
            }
        );
    }

    #[test]
    fn copies_of_a_request_count_once() {
        let chat = "user: q\nmeta: pt=10 ct=2 tt=12 pt_c=90 inference_id=i1\nassistant: a\n";
        let more = format!("{chat}user: r\nmeta: pt=20 ct=3 tt=23 pt_c=110 inference_id=i2\nassistant: b\n");
        let ledger = ledger(&[chat, &more]);
        assert_eq!(
            ledger.total().fields().map(|(_, n)| n.unwrap_or(0)),
            [30, 5, 35, 0, 0, 0]
        );
        assert_eq!(ledger.inferences().len(), 2);
        assert_eq!(ledger.inferences()[0].evidence.len(), 2);
        assert!(!ledger.has_conflicts());
    }

    #[test]
    fn copies_that_disagree_are_flagged_and_the_first_counts() {
        let chat = |tt: u32, id: &str| {
            format!("user: q\nmeta: pt=1 tt={tt} inference_id=i provider_response_id={id}\nassistant: a\n")
        };
        let two = ledger(&[&chat(99, "r1"), &chat(15, "r2")]);
        assert_eq!(two.total().tt, Some(99));
        assert_eq!(two.inferences()[0].conflicts, ["tt", "provider_response_id"]);
        // A copy that knows less does not disagree.
        let less = ledger(&[&chat(99, "r1"), "user: q\nmeta: pt=1 inference_id=i\nassistant: a\n"]);
        assert!(!less.has_conflicts());
    }

    #[test]
    fn requests_without_ids_are_known_by_their_place_in_the_conversation() {
        let chat = "user: q\nmeta: tt=5\nassistant: a\nuser: q\nmeta: tt=5\nassistant: a\n";
        let other = "user: other\nmeta: tt=5\nassistant: a\n";
        let places = ledger(&[chat, chat, other]);
        assert_eq!(places.total().tt, Some(15));
        assert!(places.inferences().iter().all(|i| !i.has_id));
        // The provider's id of the response is better than the place.
        let named = ledger(&[
            "meta: tt=5 provider_response_id=r\n",
            "user: x\nmeta: tt=5 provider_response_id=r\n",
        ]);
        assert_eq!((named.inferences().len(), named.total().tt), (1, Some(5)));
    }

    #[test]
    fn sums_do_not_overflow() {
        let huge = format!("meta: tt={0} inference_id=a\nmeta: tt={0} inference_id=b\n", u64::MAX);
        assert_eq!(ledger(&[&huge]).total().tt, Some(u64::MAX));
    }
}
