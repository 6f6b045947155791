//! The processors and the memory that jobs share: what runs at the same time in a process never asks for more.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// What a job needs while it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Need {
    /// Processors, at least one.
    pub cpus: usize,
    /// Memory in bytes; 0 is "not said", which is not counted.
    pub memory: u64,
}

impl Need {
    /// Why it can never be had of a capacity, if that is smaller.
    pub(crate) fn beyond(self, capacity: Capacity) -> Option<String> {
        let fits = self.cpus <= capacity.cpus && self.memory <= capacity.memory;
        (!fits).then(|| {
            format!(
                "it needs {} processors and {} bytes of memory, of {} and {}",
                self.cpus, self.memory, capacity.cpus, capacity.memory
            )
        })
    }
}

/// What a task says of what its jobs need.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Resources {
    /// Processors; one when not said.
    pub cpus: Option<usize>,
    /// Memory in bytes.
    pub memory: Option<u64>,
    /// How long it may take, for schedulers that want to know; here it is a limit like `timeout`.
    pub time: Option<Duration>,
}

impl Resources {
    /// What it takes while it runs.
    pub fn need(self) -> Need {
        Need {
            cpus: self.cpus.unwrap_or(1),
            memory: self.memory.unwrap_or(0),
        }
    }
}

/// What there is to share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// Processors.
    pub cpus: usize,
    /// Memory in bytes.
    pub memory: u64,
}

impl Capacity {
    /// What this machine has.
    pub fn of_machine() -> Self {
        Self {
            cpus: std::thread::available_parallelism().map_or(1, usize::from),
            memory: memory_of_machine().unwrap_or(u64::MAX),
        }
    }
}

/// `MemTotal` of /proc/meminfo, in bytes.
fn memory_of_machine() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find(|l| l.starts_with("MemTotal:"))?;
    let kib: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kib * 1024)
}

/// A capacity and how much of it is in use. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct Slots {
    capacity: Capacity,
    used: Arc<Mutex<Need>>,
}

impl Slots {
    pub fn new(capacity: Capacity) -> Self {
        Self {
            capacity,
            used: Arc::new(Mutex::new(Need { cpus: 0, memory: 0 })),
        }
    }

    pub fn capacity(&self) -> Capacity {
        self.capacity
    }

    /// Takes what a job needs, if it is free now.
    pub fn try_take(&self, need: Need) -> Option<Slot> {
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        let cpus = used.cpus + need.cpus;
        let memory = used.memory.saturating_add(need.memory);
        if cpus > self.capacity.cpus || memory > self.capacity.memory {
            return None;
        }
        *used = Need { cpus, memory };
        Some(Slot {
            need,
            used: self.used.clone(),
        })
    }
}

/// What a job has taken; given back when dropped.
#[derive(Debug)]
pub(crate) struct Slot {
    need: Need,
    used: Arc<Mutex<Need>>,
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        used.cpus -= self.need.cpus;
        used.memory -= self.need.memory;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_taken_is_free_again_after_use() {
        let slots = Slots::new(Capacity { cpus: 2, memory: 100 });
        let need = |cpus, memory| Need { cpus, memory };
        let first = slots.try_take(need(1, 80)).unwrap();
        assert!(slots.try_take(need(1, 30)).is_none());
        let second = slots.clone().try_take(need(1, 20)).unwrap();
        assert!(slots.try_take(need(1, 0)).is_none());
        drop((first, second));
        assert!(slots.try_take(need(2, 100)).is_some());
    }
}
