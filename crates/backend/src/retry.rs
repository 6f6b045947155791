//! When to try again, and how long to wait before.

use std::time::{Duration, SystemTime};

use jiff::Timestamp;
use reqwest::header::HeaderMap;

/// How long to wait between tries.
#[derive(Debug, Clone, Copy)]
pub struct Backoff {
    /// Before the second try; doubled before each further one.
    pub first: Duration,
    /// The longest wait of our own choice.
    pub max: Duration,
    /// The longest wait that a provider may ask for; beyond it the request fails at once.
    pub max_asked: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Self {
            first: Duration::from_millis(500),
            max: Duration::from_secs(30),
            max_asked: Duration::from_secs(60),
        }
    }
}

impl Backoff {
    /// The wait before try number `retry` (1 is the second try): doubling, at most `max`, of which a random part up to
    /// a half is taken off, so that clients that failed together do not come back together; and never less than what
    /// the provider asked for. `None` when it asked for too much.
    pub fn wait(&self, retry: u32, asked: Option<Duration>) -> Option<Duration> {
        let doubled = self
            .first
            .saturating_mul(1 << retry.saturating_sub(1).min(16))
            .min(self.max);
        let own = doubled.mul_f64(1.0 - 0.5 * random());
        match asked {
            Some(asked) if asked > self.max_asked => None,
            Some(asked) => Some(own.max(asked)),
            None => Some(own),
        }
    }
}

/// A number from 0 up to 1. Version 4 UUIDs are random; this needs no generator of its own.
fn random() -> f64 {
    let bits = uuid::Uuid::new_v4().as_u128() as u32;
    f64::from(bits) / (f64::from(u32::MAX) + 1.0)
}

/// How long a provider asks to wait: `retry-after-ms`, or `Retry-After` as seconds or as a date. Anything else is
/// ignored.
pub fn retry_after(headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
    let text = |name: &str| headers.get(name).and_then(|v| v.to_str().ok()).map(str::trim);
    let seconds = |text: &str| {
        text.parse::<f64>()
            .ok()
            .and_then(|s| Duration::try_from_secs_f64(s).ok())
    };
    if let Some(wait) = text("retry-after-ms").and_then(seconds) {
        return Some(wait / 1000);
    }
    let value = text("retry-after")?;
    if let Some(wait) = seconds(value) {
        return Some(wait);
    }
    let date = SystemTime::try_from(jiff::fmt::rfc2822::parse(value).ok()?.timestamp()).ok()?;
    // A date that is past asks for nothing.
    Some(date.duration_since(now).unwrap_or_default())
}

/// When a provider's limits are reset, as headers tell that stand beside every answer, and the header that says how much
/// is left.
const RESETS: [(&str, &str); 6] = [
    ("x-ratelimit-reset-requests", "x-ratelimit-remaining-requests"),
    ("x-ratelimit-reset-tokens", "x-ratelimit-remaining-tokens"),
    (
        "anthropic-ratelimit-requests-reset",
        "anthropic-ratelimit-requests-remaining",
    ),
    (
        "anthropic-ratelimit-tokens-reset",
        "anthropic-ratelimit-tokens-remaining",
    ),
    (
        "anthropic-ratelimit-input-tokens-reset",
        "anthropic-ratelimit-input-tokens-remaining",
    ),
    (
        "anthropic-ratelimit-output-tokens-reset",
        "anthropic-ratelimit-output-tokens-remaining",
    ),
];

/// How long it takes until all limits that are used up are reset: durations (`1s`, `6m0s`, `120ms`), seconds or RFC 3339
/// times. A limit of which something is left is not the one that was met. For refusals without `Retry-After`.
pub fn reset_after(headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
    let text = |name: &str| headers.get(name).and_then(|v| v.to_str().ok()).map(str::trim);
    let used_up = |name: &str| text(name).is_none_or(|left| left.parse::<f64>().is_ok_and(|n| n <= 0.0));
    let waits = RESETS
        .iter()
        .filter(|(_, left)| used_up(left))
        .filter_map(|(reset, _)| {
            let value = text(reset)?;
            go_duration(value).or_else(|| {
                let date = SystemTime::try_from(value.parse::<Timestamp>().ok()?).ok()?;
                Some(date.duration_since(now).unwrap_or_default())
            })
        });
    waits.max()
}

/// A duration as Go prints it (`1h2m3.5s`, `120ms`), or a number of seconds.
fn go_duration(text: &str) -> Option<Duration> {
    let is_number = |c: char| c.is_ascii_digit() || c == '.';
    let mut rest = text;
    let mut seconds = 0.0;
    while !rest.is_empty() {
        let (number, tail) = rest.split_at(rest.find(|c| !is_number(c)).unwrap_or(rest.len()));
        let (unit, tail) = tail.split_at(tail.find(is_number).unwrap_or(tail.len()));
        let scale = match unit {
            "h" => 3600.0,
            "m" => 60.0,
            "s" => 1.0,
            "" if number.len() == text.len() => 1.0,
            "ms" => 1e-3,
            "us" | "µs" => 1e-6,
            "ns" => 1e-9,
            _ => return None,
        };
        seconds += number.parse::<f64>().ok()? * scale;
        rest = tail;
    }
    (!text.is_empty())
        .then(|| Duration::try_from_secs_f64(seconds).ok())
        .flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(name: &'static str, value: &'static str) -> Option<Duration> {
        let mut headers = HeaderMap::new();
        headers.insert(name, value.parse().unwrap());
        // 2037-10-21T07:27:30Z
        retry_after(&headers, SystemTime::UNIX_EPOCH + Duration::from_secs(2_139_722_850))
    }

    #[test]
    fn all_forms_of_retry_after() {
        assert_eq!(asked("retry-after", "2"), Some(Duration::from_secs(2)));
        assert_eq!(asked("retry-after", "0"), Some(Duration::ZERO));
        assert_eq!(asked("retry-after", "86400"), Some(Duration::from_secs(86400)));
        assert_eq!(
            asked("retry-after", "Wed, 21 Oct 2037 07:28:00 GMT"),
            Some(Duration::from_secs(30))
        );
        assert_eq!(
            asked("retry-after", "Wed, 21 Oct 2020 07:28:00 GMT"),
            Some(Duration::ZERO)
        );
        assert_eq!(asked("retry-after-ms", "1500"), Some(Duration::from_millis(1500)));
        for garbage in ["soon", "-5", "NaN", "1e400", ""] {
            assert_eq!(asked("retry-after", garbage), None, "{garbage}");
        }
    }

    #[test]
    fn limits_that_are_used_up_say_when_they_are_reset() {
        let at = |pairs: &[(&'static str, &'static str)]| {
            let mut headers = HeaderMap::new();
            for (name, value) in pairs {
                headers.insert(*name, value.parse().unwrap());
            }
            // 2037-10-21T07:27:30Z
            reset_after(&headers, SystemTime::UNIX_EPOCH + Duration::from_secs(2_139_722_850))
        };
        let ms = |n| Some(Duration::from_millis(n));
        for (value, expected) in [
            ("1s", ms(1000)),
            ("6m0s", ms(360_000)),
            ("120ms", ms(120)),
            ("1h2m3.5s", ms(3_723_500)),
            ("2", ms(2000)),
            ("soon", None),
            ("", None),
            ("1", ms(1000)),
            ("1s2", None),
            ("s", None),
            ("1.2.3s", None),
            ("-1s", None),
        ] {
            assert_eq!(at(&[("x-ratelimit-reset-requests", value)]), expected, "{value}");
        }
        let anthropic = "anthropic-ratelimit-input-tokens-reset";
        assert_eq!(at(&[(anthropic, "2037-10-21T07:28:00Z")]), ms(30_000));
        assert_eq!(at(&[(anthropic, "2020-10-21T07:28:00Z")]), ms(0));
        // Of two that are used up the later one counts; one of which something is left does not.
        let mut both = vec![("x-ratelimit-reset-requests", "2s"), ("x-ratelimit-reset-tokens", "5s")];
        assert_eq!(at(&both), ms(5000));
        both.push(("x-ratelimit-remaining-tokens", "100"));
        assert_eq!(at(&both), ms(2000));
        both.push(("x-ratelimit-remaining-requests", "0"));
        assert_eq!(at(&both), ms(2000));
        assert_eq!(at(&[]), None);
    }

    #[test]
    fn waits_double_with_jitter_and_have_limits() {
        let backoff = Backoff::default();
        for (retry, most) in [(1, 500), (2, 1000), (3, 2000), (40, 30_000)] {
            let wait = backoff.wait(retry, None).unwrap();
            assert!(
                wait <= Duration::from_millis(most) && wait >= Duration::from_millis(most / 2),
                "{retry} {wait:?}"
            );
        }
        assert!(backoff.wait(1, Some(Duration::from_secs(2))).unwrap() >= Duration::from_secs(2));
        assert_eq!(backoff.wait(1, Some(Duration::from_secs(61))), None);
    }
}
