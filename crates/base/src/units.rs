//! Durations and sizes as people write them: `500ms`, `10s`, `2m`, `1h`, or seconds; `10M`, `2G`, or bytes.

use std::time::Duration;

/// Reads a duration: a number followed by `ms`, `s`, `m` or `h`; without a unit it is seconds.
///
/// # Errors
/// A text naming the value and the accepted forms.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let trimmed = text.trim();
    let split = trimmed.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(trimmed.len());
    let (number, unit) = trimmed.split_at(split);
    let scale = match unit {
        "ms" => 0.001,
        "" | "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        _ => {
            return Err(format!(
                "`{text}` is not a duration; write 500ms, 10s, 2m, 1h or a number of seconds"
            ));
        }
    };
    number
        .trim()
        .parse::<f64>()
        .ok()
        .and_then(|n| Duration::try_from_secs_f64(n * scale).ok())
        .ok_or_else(|| format!("`{text}` is not a duration; write 500ms, 10s, 2m, 1h or a number of seconds"))
}

/// Reads a size in bytes: a number followed by `K`, `M`, `G` or `T` (powers of 1024), or none of these.
///
/// # Errors
/// A text naming the value and the accepted forms.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let trimmed = text.trim().trim_end_matches(['B', 'b']).trim_end_matches('i');
    let (number, shift) = match trimmed.char_indices().last() {
        Some((at, 'K' | 'k')) => (&trimmed[..at], 10),
        Some((at, 'M' | 'm')) => (&trimmed[..at], 20),
        Some((at, 'G' | 'g')) => (&trimmed[..at], 30),
        Some((at, 'T' | 't')) => (&trimmed[..at], 40),
        _ => (trimmed, 0),
    };
    let bad = || format!("`{text}` is not a size; write 10M, 2G or a number of bytes");
    let value: f64 = number.trim().parse().map_err(|_| bad())?;
    if !(0.0..=1e6).contains(&value) && shift > 0 || value < 0.0 || !value.is_finite() {
        return Err(bad());
    }
    Ok((value * (1u64 << shift) as f64) as u64)
}

/// A duration for people: `0.4s`, `12.3s`, `2m05s`, `1h02m`.
pub fn show_duration(d: Duration) -> String {
    let s = d.as_secs_f64();
    match d.as_secs() {
        0..60 => format!("{s:.1}s"),
        60..3600 => format!("{}m{:02}s", d.as_secs() / 60, d.as_secs() % 60),
        _ => format!("{}h{:02}m", d.as_secs() / 3600, d.as_secs() % 3600 / 60),
    }
}

/// A number of bytes for people: `812 B`, `14.2 MiB`.
pub fn show_size(bytes: u64) -> String {
    const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64 / 1024.0;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations() {
        assert_eq!(parse_duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(parse_duration("10s"), Ok(Duration::from_secs(10)));
        assert_eq!(parse_duration("2m"), Ok(Duration::from_secs(120)));
        assert_eq!(parse_duration("1h"), Ok(Duration::from_secs(3600)));
        assert_eq!(parse_duration("1.5"), Ok(Duration::from_millis(1500)));
        for bad in ["", "ten", "10d", "-1s", "1e400", "NaN"] {
            assert!(parse_duration(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn sizes() {
        assert_eq!(parse_size("10M"), Ok(10 << 20));
        assert_eq!(parse_size("2G"), Ok(2 << 30));
        assert_eq!(parse_size("1.5K"), Ok(1536));
        assert_eq!(parse_size("77"), Ok(77));
        for bad in ["", "M", "-1M", "ten", "1X"] {
            assert!(parse_size(bad).is_err(), "{bad}");
        }
        assert_eq!(show_size(14_889_779), "14.2 MiB");
    }
}
