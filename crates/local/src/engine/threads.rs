//! How many threads to compute with.
//!
//! llama.cpp's OpenMP threads wait for each other by spinning. Two of them on one free core are slower than one, so
//! the default looks at what the machine is doing.

use std::time::{Duration, Instant};

const TICK: Duration = Duration::from_millis(10);
/// Shorter than this, ten-millisecond ticks say too little.
const LEAST: Duration = Duration::from_millis(60);

/// A look at the machine that becomes a measurement when a second one is taken.
#[derive(Debug)]
pub struct Observation {
    at: Instant,
    all: Option<u64>,
    own: Option<u64>,
}

impl Observation {
    /// Begins to observe.
    pub fn begin() -> Self {
        Self {
            at: Instant::now(),
            all: busy_ticks(),
            own: own_ticks(),
        }
    }

    /// The number of threads that find a core of their own: all cores but those that others kept busy since the
    /// beginning. Waits until enough time has passed to tell.
    pub fn threads(&self) -> i32 {
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        if cores == 1 {
            return 1;
        }
        std::thread::sleep(LEAST.saturating_sub(self.at.elapsed()));
        let others = self.busy_others().unwrap_or(0.0);
        #[allow(clippy::cast_precision_loss)]
        let free = cores as f64 - others;
        #[allow(clippy::cast_possible_truncation)]
        let threads = free.round().clamp(1.0, 64.0) as i32;
        tracing::debug!(cores, others, threads, "threads for the local model");
        threads
    }

    /// Cores kept busy by other processes.
    fn busy_others(&self) -> Option<f64> {
        let all = busy_ticks()?.saturating_sub(self.all?);
        let own = own_ticks()?.saturating_sub(self.own?);
        #[allow(clippy::cast_precision_loss)]
        let others = all.saturating_sub(own) as f64;
        Some(others * TICK.as_secs_f64() / self.at.elapsed().as_secs_f64())
    }
}

/// User, nice, system and interrupt time of all cores, from the first line of /proc/stat.
fn busy_ticks() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/stat").ok()?;
    let fields: Vec<u64> = text
        .lines()
        .next()?
        .split_whitespace()
        .skip(1)
        .filter_map(|f| f.parse().ok())
        .collect();
    // user nice system idle iowait irq softirq
    Some([0, 1, 2, 5, 6].iter().filter_map(|i| fields.get(*i)).sum())
}

/// User and system time of this process.
fn own_ticks() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/stat").ok()?;
    // The name in parentheses may contain blanks.
    let mut fields = text.rsplit_once(')')?.1.split_whitespace().skip(11);
    Some(fields.next()?.parse::<u64>().ok()? + fields.next()?.parse::<u64>().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_measurement_gives_at_least_one_thread() {
        let threads = Observation::begin().threads();
        assert!((1..=64).contains(&threads));
        assert!(own_ticks().is_some() && busy_ticks().is_some());
    }
}
