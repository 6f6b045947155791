//! Texts made comparable from run to run.

use std::sync::LazyLock;

use regex::Regex;

static RULES: LazyLock<Vec<(Regex, &'static str)>> = LazyLock::new(|| {
    [
        (
            r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b",
            "[UUID]",
        ),
        (
            r"\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:?\d\d)?",
            "[TIME]",
        ),
        // Job names end in `_DIGEST`, so an underscore may stand before.
        (
            r"(^|[^0-9a-zA-Z])(?:[0-9a-f]{64}|[0-9a-f]{40}|[0-9a-f]{32})\b",
            "$1[DIGEST]",
        ),
        (r"\b(127\.0\.0\.1|localhost|\[::1\]):\d+", "$1:[PORT]"),
        (r"\b(?:\d+h\d\dm|\d+m\d\ds|\d+(?:\.\d+)?(?:ms|s))\b", "[DURATION]"),
    ]
    .into_iter()
    .map(|(pattern, with)| (Regex::new(pattern).expect("a pattern"), with))
    .collect()
});

/// Replaces UUIDs, times, digests (32, 40 or 64 hexadecimal digits), ports of this machine and durations.
pub fn normalise(text: &str) -> String {
    RULES.iter().fold(text.to_owned(), |text, (rule, with)| {
        rule.replace_all(&text, *with).into_owned()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_differs_is_replaced_and_nothing_else() {
        let text = "a_0123456789abcdef0123456789abcdef.json 2026-11-29T18:43:51.123Z 12.5s 2m05s 500ms 1h02m \
                    http://127.0.0.1:45123/v1 550e8400-e29b-41d4-a716-446655440000 42 items deadbeef v1.2s3";
        assert_eq!(
            normalise(text),
            "a_[DIGEST].json [TIME] [DURATION] [DURATION] [DURATION] [DURATION] \
             http://127.0.0.1:[PORT]/v1 [UUID] 42 items deadbeef v1.2s3"
        );
    }
}
