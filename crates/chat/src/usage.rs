//! Token counts.

use serde_json::Value;

/// Tokens of one request, or a sum. A count that the provider did not give is absent, not zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Prompt tokens.
    pub pt: Option<u64>,
    /// Completion tokens.
    pub ct: Option<u64>,
    /// Total tokens.
    pub tt: Option<u64>,
    /// Prompt tokens read from a cache.
    pub cct: Option<u64>,
    /// Prompt tokens written to a cache.
    pub cwt: Option<u64>,
    /// Tokens spent on reasoning.
    pub rt: Option<u64>,
}

impl Usage {
    /// The counts with their names, in their usual order.
    pub fn fields(&self) -> [(&'static str, Option<u64>); 6] {
        [
            ("pt", self.pt),
            ("ct", self.ct),
            ("tt", self.tt),
            ("cct", self.cct),
            ("cwt", self.cwt),
            ("rt", self.rt),
        ]
    }

    /// Reads the usage object of any known provider.
    ///
    /// The names are those of OpenAI's Chat Completions (`prompt_tokens`, `completion_tokens_details.…`) and Responses
    /// (`input_tokens`, …), of Anthropic's Messages (`cache_read_input_tokens`, …), of Ollama (`eval_count`, …) and of Gemini (`promptTokenCount`, …;
    /// its thoughts are not among its candidates' tokens and are added to them). The first present name wins; the
    /// total is added up only when prompt and completion are both known.
    pub fn from_provider(usage: &Value) -> Self {
        let first = |paths: &[&str]| paths.iter().find_map(|p| usage.pointer(p)).and_then(Value::as_u64);
        let sum = |a: Option<u64>, b: Option<u64>| match (a, b) {
            (None, None) => None,
            (a, b) => Some(a.unwrap_or(0).saturating_add(b.unwrap_or(0))),
        };
        let thoughts = first(&["/thoughtsTokenCount"]);
        let pt = first(&["/prompt_tokens", "/input_tokens", "/prompt_eval_count"])
            .or_else(|| sum(first(&["/promptTokenCount"]), first(&["/toolUsePromptTokenCount"])));
        let ct = first(&["/completion_tokens", "/output_tokens", "/eval_count"])
            .or_else(|| sum(first(&["/candidatesTokenCount"]), thoughts));
        Self {
            pt,
            ct,
            tt: first(&["/total_tokens", "/totalTokenCount"]).or_else(|| pt?.checked_add(ct?)),
            cct: first(&[
                "/prompt_tokens_details/cached_tokens",
                "/input_tokens_details/cached_tokens",
                "/cache_read_input_tokens",
                "/cachedContentTokenCount",
            ]),
            cwt: first(&[
                "/input_tokens_details/cache_write_tokens",
                "/cache_creation_input_tokens",
            ]),
            rt: first(&[
                "/completion_tokens_details/reasoning_tokens",
                "/output_tokens_details/reasoning_tokens",
                "/thoughtsTokenCount",
            ]),
        }
    }

    /// The total, else the sum of what is known.
    fn known_total(&self) -> Option<u64> {
        let known = self.pt.into_iter().chain(self.ct);
        self.tt.or_else(|| known.reduce(u64::saturating_add))
    }

    /// Whether nothing is known.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl std::ops::AddAssign for Usage {
    fn add_assign(&mut self, mut other: Self) {
        // Where only one request names its total, that of the other is what is known of it: a total is never less than
        // its parts.
        if let (Some(own), Some(more)) = (self.known_total(), other.known_total())
            && (self.tt.is_some() || other.tt.is_some())
        {
            (self.tt, other.tt) = (Some(own), Some(more));
        }
        let add = |a: &mut Option<u64>, b: Option<u64>| {
            if let Some(b) = b {
                // Counts come from files too, where they can be anything.
                *a = Some(a.unwrap_or(0).saturating_add(b));
            }
        };
        add(&mut self.pt, other.pt);
        add(&mut self.ct, other.ct);
        add(&mut self.tt, other.tt);
        add(&mut self.cct, other.cct);
        add(&mut self.cwt, other.cwt);
        add(&mut self.rt, other.rt);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn names_of_all_providers() {
        let openai =
            json!({"prompt_tokens": 20, "completion_tokens": 13, "prompt_tokens_details": {"cached_tokens": 6}});
        let usage = Usage::from_provider(&openai);
        assert_eq!(
            (usage.pt, usage.ct, usage.tt, usage.cct),
            (Some(20), Some(13), Some(33), Some(6))
        );
        let anthropic = json!({"input_tokens": 30, "output_tokens": 14, "cache_creation_input_tokens": 1});
        assert_eq!(Usage::from_provider(&anthropic).cwt, Some(1));
        let ollama = Usage::from_provider(&json!({"prompt_eval_count": 20, "eval_count": 5}));
        assert_eq!((ollama.pt, ollama.ct, ollama.tt), (Some(20), Some(5), Some(25)));
        let gemini = json!({"promptTokenCount": 9, "candidatesTokenCount": 5, "thoughtsTokenCount": 3,
            "cachedContentTokenCount": 4, "totalTokenCount": 17});
        let usage = Usage::from_provider(&gemini);
        assert_eq!((usage.pt, usage.ct, usage.tt), (Some(9), Some(8), Some(17)));
        assert_eq!((usage.cct, usage.rt), (Some(4), Some(3)));
        let half = Usage::from_provider(&json!({"input_tokens": 3}));
        assert_eq!((half.tt, half.ct), (None, None));
    }

    #[test]
    fn a_total_is_never_less_than_its_parts() {
        let half = Usage {
            ct: Some(5),
            ..Usage::default()
        };
        let whole = Usage {
            pt: Some(3),
            ct: Some(4),
            tt: Some(7),
            ..Usage::default()
        };
        for (mut sum, other) in [(half, whole), (whole, half)] {
            sum += other;
            assert_eq!((sum.pt, sum.ct, sum.tt), (Some(3), Some(9), Some(12)));
        }
        let mut sum = Usage::default();
        sum += whole;
        assert_eq!(sum, whole);
    }

    #[test]
    fn sums_keep_unknown_apart_from_zero() {
        let mut sum = Usage::default();
        sum += Usage {
            pt: Some(1),
            ..Usage::default()
        };
        sum += Usage {
            pt: Some(2),
            ct: Some(0),
            ..Usage::default()
        };
        assert_eq!(
            sum,
            Usage {
                pt: Some(3),
                ct: Some(0),
                ..Usage::default()
            }
        );
    }
}
