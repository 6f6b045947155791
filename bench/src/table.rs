//! What was measured, as one table.

use std::time::Duration;

/// A number in its unit.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Measure {
    /// Time.
    Time(Duration),
    /// Mebibytes.
    Mebibytes(f64),
    /// Tokens a second.
    Speed(f64),
    /// Megabytes a second.
    Rate(f64),
}

impl Measure {
    fn number(self) -> f64 {
        match self {
            Self::Time(time) => time.as_secs_f64(),
            Self::Mebibytes(number) | Self::Speed(number) | Self::Rate(number) => number,
        }
    }

    fn show(self) -> String {
        match self {
            Self::Time(time) if time < Duration::from_millis(1) => format!("{:.1} µs", time.as_secs_f64() * 1e6),
            Self::Time(time) => format!("{:.2} ms", time.as_secs_f64() * 1e3),
            Self::Mebibytes(number) => format!("{number:.1} MiB"),
            Self::Speed(number) => format!("{number:.1} tok/s"),
            Self::Rate(number) => format!("{number:.0} MB/s"),
        }
    }
}

/// What a figure has to be.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Target {
    /// Ours, in parts of the reference, at most this.
    RatioAtMost(f64),
    /// Ours, in parts of the reference, at least this.
    RatioAtLeast(f64),
    /// Ours at most the reference.
    AtMost,
    /// Ours at least the reference.
    AtLeast,
    /// Nothing: the figure is shown for what it is.
    None,
}

/// A line of the table.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    name: String,
    target: Target,
    /// Ours and the reference, or why there are none.
    measured: Result<(Measure, Measure), String>,
}

impl Row {
    /// Something that was measured.
    pub fn new(name: impl Into<String>, target: Target, ours: Measure, reference: Measure) -> Self {
        Self {
            name: name.into(),
            target,
            measured: Ok((ours, reference)),
        }
    }

    /// Something that could not be measured here.
    pub fn not_measured(name: impl Into<String>, target: Target, reason: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            target,
            measured: Err(reason.into()),
        }
    }

    /// Whether a target was missed. What was not measured misses none.
    pub fn is_missed(&self) -> bool {
        let Ok((ours, reference)) = self.measured else {
            return false;
        };
        let ratio = ours.number() / reference.number();
        match self.target {
            Target::RatioAtMost(limit) => ratio > limit,
            Target::RatioAtLeast(limit) => ratio < limit,
            Target::AtMost => ratio > 1.0,
            Target::AtLeast => ratio < 1.0,
            Target::None => false,
        }
    }

    fn cells(&self) -> [String; 6] {
        let target = match self.target {
            Target::RatioAtMost(limit) => format!("≤ {limit}"),
            Target::RatioAtLeast(limit) => format!("≥ {limit}"),
            Target::AtMost => "≤ 1".into(),
            Target::AtLeast => "≥ 1".into(),
            Target::None => String::new(),
        };
        let (ours, reference, ratio, verdict) = match &self.measured {
            Ok((ours, reference)) => {
                let verdict = match self.target {
                    Target::None => "",
                    _ if self.is_missed() => "FAIL",
                    _ => "ok",
                };
                let ratio = format!("{:.2}", ours.number() / reference.number());
                (ours.show(), reference.show(), ratio, verdict.to_owned())
            }
            Err(reason) => (
                String::new(),
                String::new(),
                String::new(),
                format!("not measured: {reason}"),
            ),
        };
        [self.name.clone(), ours, reference, ratio, target, verdict]
    }
}

/// The table, as Markdown that also reads well as it is.
pub fn show(rows: &[Row]) -> String {
    let head = ["what", "ours", "reference", "ratio", "target", ""].map(str::to_owned);
    let cells: Vec<[String; 6]> = std::iter::once(head).chain(rows.iter().map(Row::cells)).collect();
    let mut widths = [0; 6];
    for row in &cells {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut out = String::new();
    for (n, row) in cells.iter().enumerate() {
        for (column, (cell, width)) in row.iter().zip(widths).enumerate() {
            // Numbers stand at the right.
            let cell = if (1..4).contains(&column) {
                format!("{cell:>width$}")
            } else {
                format!("{cell:<width$}")
            };
            out.push_str(&format!("| {cell} "));
        }
        out.push_str("|\n");
        if n == 0 {
            for (column, width) in widths.iter().enumerate() {
                let right = if (1..4).contains(&column) { ":" } else { "-" };
                out.push_str(&format!("|{}{right}", "-".repeat(width + 1)));
            }
            out.push_str("|\n");
        }
    }
    out
}

/// The middle one of some times.
pub fn median(times: &mut [Duration]) -> Duration {
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missed_target_is_seen() {
        let time = |us| Measure::Time(Duration::from_micros(us));
        assert!(Row::new("a", Target::RatioAtMost(1.5), time(16), time(10)).is_missed());
        assert!(!Row::new("a", Target::RatioAtMost(1.5), time(14), time(10)).is_missed());
        assert!(
            Row::new(
                "a",
                Target::RatioAtLeast(0.95),
                Measure::Speed(9.0),
                Measure::Speed(10.0)
            )
            .is_missed()
        );
        assert!(Row::new("a", Target::AtMost, Measure::Mebibytes(26.0), Measure::Mebibytes(25.0)).is_missed());
        assert!(Row::new("a", Target::AtLeast, Measure::Rate(199.0), Measure::Rate(200.0)).is_missed());
        let row = Row::not_measured("b", Target::AtMost, "no reason");
        assert!(!row.is_missed());
        assert!(show(&[row]).contains("not measured: no reason"));
    }
}
