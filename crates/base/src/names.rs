//! Names of agents, workflows, tasks, endpoints, and what somebody may have meant by a name that does not exist.

/// The most bytes that a name can have.
pub const MAX_LENGTH: usize = 150;

/// Whether a name can stand for a file or folder of a project: not empty, no separator, no `..`, no leading dot, no
/// control character, at most 150 bytes.
pub fn is_valid(name: &str) -> bool {
    !name.is_empty()
        && name.len() <= MAX_LENGTH
        && !name.starts_with('.')
        && !name.contains("..")
        && !name.chars().any(|c| c == '/' || c == '\\' || c.is_control())
}

/// The names of `known` that `typed` may have been meant for, best first, at most three.
///
/// Candidates have a Jaro-Winkler similarity of at least 0.834 (0.77 when `typed` has at most three letters); of
/// these, those within a Levenshtein distance of a quarter of the typed length are kept, or else the single best one
/// whose distance is smaller than the shorter of the two names.
pub fn suggest<'a>(typed: &str, known: impl IntoIterator<Item = &'a str>) -> Vec<String> {
    let low = typed.to_lowercase();
    let length = low.chars().count();
    let threshold = if length > 3 { 0.834 } else { 0.77 };
    let mut close: Vec<(f64, usize, &str)> = known
        .into_iter()
        .filter(|k| *k != typed)
        .map(|k| {
            (
                strsim::jaro_winkler(&low, &k.to_lowercase()),
                strsim::levenshtein(&low, &k.to_lowercase()),
                k,
            )
        })
        .filter(|(similarity, _, _)| *similarity >= threshold)
        .collect();
    close.sort_by(|a, b| b.0.total_cmp(&a.0));
    let near: Vec<String> = close
        .iter()
        .filter(|(_, distance, _)| *distance <= length.div_ceil(4))
        .map(|c| c.2.to_owned())
        .collect();
    if !near.is_empty() {
        return near.into_iter().take(3).collect();
    }
    close
        .iter()
        .find(|(_, distance, k)| *distance < length.min(k.chars().count()))
        .map(|c| vec![c.2.to_owned()])
        .unwrap_or_default()
}

/// `suggest` as the end of a sentence: `; did you mean a or b?`, or nothing.
pub fn did_you_mean<'a>(typed: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    match suggest(typed, known).as_slice() {
        [] => String::new(),
        names => format!("; did you mean {}?", names.join(" or ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BUILT_INS: [&str; 10] = [
        "echo",
        "calculator",
        "cat_facts",
        "delegate_task",
        "check_job_status",
        "start_sleepy_job",
        "webhook_tool",
        "http_request",
        "current_time",
        "read_webpage",
    ];

    #[test]
    fn suggestions_match_the_reference_table() {
        for (typed, expected) in [
            ("calcualtor", "calculator"),
            ("ecko", "echo"),
            ("http_reqest", "http_request"),
            ("webhook", "webhook_tool"),
            ("webhook_tol", "webhook_tool"),
            ("read_web_page", "read_webpage"),
            ("catfacts", "cat_facts"),
            ("delegate", "delegate_task"),
        ] {
            assert_eq!(suggest(typed, BUILT_INS), [expected], "{typed}");
        }
        assert!(suggest("calc", BUILT_INS).is_empty());
        assert!(suggest("zzz", BUILT_INS).is_empty());
    }

    #[test]
    fn names_never_leave_their_folder() {
        for bad in ["", "a/b", "..", "a..b", ".hidden", "a\\b", "a\nb"] {
            assert!(!is_valid(bad), "{bad:?}");
        }
        assert!(is_valid("lab") && is_valid("my-endpoint_2.large"));
    }
}
