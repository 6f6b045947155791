//! Which models are loaded, and how much memory they may take together.
//!
//! Every engine has a seat. It takes room before it loads its model and gives it back when the model is unloaded.
//! When there is no room, the model that was used longest ago and has nothing to do is unloaded; one that works never
//! is, so whoever needs its room waits until it is done. Who waits holds nothing, so nobody waits for ever.

use std::collections::{HashMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use decanus_backend::BackendError;
use decanus_base::units::show_size;
use tokio_util::sync::CancellationToken;

use super::{Engine, Message};

/// How often one who waits looks whether the request was cancelled.
const LOOK: Duration = Duration::from_millis(50);

/// The memory of models that share one bound.
#[derive(Clone, Debug, Default)]
pub struct Memory(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    bound: Option<u64>,
    engines: HashMap<PathBuf, Weak<Engine>>,
    places: Vec<Place>,
    /// Those who wait for room, in the order in which they came.
    queue: VecDeque<u64>,
    clock: u64,
    loads: u64,
}

/// A model that is loaded.
#[derive(Debug)]
struct Place {
    seat: u64,
    name: String,
    bytes: u64,
    busy: bool,
    leaving: bool,
    used: u64,
    messages: Sender<Message>,
}

/// A loaded model, as others see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resident {
    /// Its name.
    pub name: String,
    /// The memory that it may take: its weights, its caches and its working memory.
    pub bytes: u64,
    /// Whether it works on a request.
    pub busy: bool,
}

impl Memory {
    /// The memory that all backends of the process share.
    pub fn shared() -> Self {
        static SHARED: OnceLock<Memory> = OnceLock::new();
        SHARED.get_or_init(Memory::default).clone()
    }

    /// Whether it is the one that the process shares.
    pub fn is_shared(&self) -> bool {
        Arc::ptr_eq(&self.0, &Self::shared().0)
    }

    /// Sets how many bytes all models together may take; none is no bound.
    pub fn set_bound(&self, bound: Option<u64>) {
        self.lock().bound = bound;
        self.0.changed.notify_all();
    }

    /// The models that are loaded.
    pub fn residents(&self) -> Vec<Resident> {
        let resident = |place: &Place| Resident {
            name: place.name.clone(),
            bytes: place.bytes,
            busy: place.busy,
        };
        self.lock().places.iter().map(resident).collect()
    }

    /// How many times a model was loaded.
    pub fn loads(&self) -> u64 {
        self.lock().loads
    }

    /// The engine of a model file, shared by all who ask for the same file. Loading begins at once and in the background
    /// if there is room for it, else with the first request, which also gets its failure.
    ///
    /// # Errors
    /// When no thread can be started, or this processor can't run the code.
    pub fn engine(&self, file: &Path, name: &str) -> Result<Arc<Engine>, BackendError> {
        let path = file.canonicalize().unwrap_or_else(|_| file.to_owned());
        let mut state = self.lock();
        if let Some(engine) = state.engines.get(&path).and_then(Weak::upgrade) {
            return Ok(engine);
        }
        let engine = Arc::new(Engine::start(self.clone(), &path, name)?);
        state.engines.insert(path, Arc::downgrade(&engine));
        Ok(engine)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'s>(&self, state: MutexGuard<'s, State>) -> MutexGuard<'s, State> {
        let waited = self.0.changed.wait_timeout(state, LOOK);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }
}

impl State {
    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    /// Whether so many bytes fit beside what all but this seat have.
    fn fits(&self, seat: u64, bytes: u64) -> bool {
        let others: u64 = self.places.iter().filter(|p| p.seat != seat).map(|p| p.bytes).sum();
        self.bound.is_none_or(|bound| others.saturating_add(bytes) <= bound)
    }

    /// Asks models that have nothing to do to leave, until so many bytes would fit; those used longest ago first. False
    /// when they would not fit even then, before others are done.
    fn ask_to_leave(&mut self, seat: u64, bytes: u64) -> bool {
        loop {
            let stay = |p: &&Place| p.seat != seat && !p.leaving;
            let staying: u64 = self.places.iter().filter(stay).map(|p| p.bytes).sum();
            if self.bound.is_none_or(|bound| staying.saturating_add(bytes) <= bound) {
                return true;
            }
            let idle = self
                .places
                .iter_mut()
                .filter(|p| p.seat != seat && !p.leaving && !p.busy);
            let Some(oldest) = idle.min_by_key(|p| p.used) else {
                return false;
            };
            oldest.leaving = true;
            // An engine whose thread has ended has left by itself.
            let _ = oldest.messages.send(Message::Leave);
        }
    }
}

/// What became of a wish for more room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Extended {
    /// It is there.
    Given,
    /// Others who work have it.
    Busy,
}

/// The place of one engine; it belongs to the engine's thread.
pub(super) struct Seat {
    memory: Memory,
    id: u64,
    name: String,
    messages: Sender<Message>,
}

impl Seat {
    pub(super) fn new(memory: Memory, id: u64, name: &str, messages: Sender<Message>) -> Self {
        Self {
            memory,
            id,
            name: name.to_owned(),
            messages,
        }
    }

    /// How many bytes all models together may take.
    pub(super) fn bound(&self) -> Option<u64> {
        self.memory.lock().bound
    }

    /// Takes room to load the model, for a request that will use it; waits until there is enough.
    pub(super) fn take(&self, bytes: u64, cancel: &CancellationToken) -> Result<(), BackendError> {
        let mut state = self.memory.lock();
        let ticket = state.tick();
        state.queue.push_back(ticket);
        let taken = loop {
            if cancel.is_cancelled() {
                break Err(BackendError::Cancelled);
            }
            if let Some(bound) = state.bound.filter(|bound| bytes > *bound) {
                break Err(self.too_large(bytes, bound));
            }
            if state.queue.front() == Some(&ticket) {
                if state.fits(self.id, bytes) {
                    self.sit(&mut state, bytes, true);
                    break Ok(());
                }
                state.ask_to_leave(self.id, bytes);
            }
            state = self.memory.wait(state);
        };
        state.queue.retain(|t| *t != ticket);
        drop(state);
        self.memory.0.changed.notify_all();
        taken
    }

    /// Takes room to load the model if there is enough and nobody else has to go or wait for it.
    pub(super) fn take_free(&self, bytes: u64) -> bool {
        let mut state = self.memory.lock();
        let free = state.queue.is_empty() && state.fits(self.id, bytes);
        if free {
            self.sit(&mut state, bytes, false);
        }
        free
    }

    fn sit(&self, state: &mut State, bytes: u64, busy: bool) {
        state.loads += 1;
        let used = state.tick();
        state.places.push(Place {
            seat: self.id,
            name: self.name.clone(),
            bytes,
            busy,
            leaving: false,
            used,
            messages: self.messages.clone(),
        });
    }

    /// Sets how much the loaded model may take from now on. Models that have nothing to do are waited for.
    pub(super) fn extend(&self, bytes: u64, cancel: &CancellationToken) -> Result<Extended, BackendError> {
        let mut state = self.memory.lock();
        loop {
            if cancel.is_cancelled() {
                return Err(BackendError::Cancelled);
            }
            if let Some(bound) = state.bound.filter(|bound| bytes > *bound) {
                return Err(self.too_large(bytes, bound));
            }
            if state.fits(self.id, bytes) {
                self.place(&mut state, |place| place.bytes = bytes);
                return Ok(Extended::Given);
            }
            if !state.ask_to_leave(self.id, bytes) {
                return Ok(Extended::Busy);
            }
            state = self.memory.wait(state);
        }
    }

    fn place<T>(&self, state: &mut State, change: impl FnOnce(&mut Place) -> T) -> Option<T> {
        let place = state.places.iter_mut().find(|p| p.seat == self.id);
        place.map(change)
    }

    /// A request begins: the model stays.
    pub(super) fn begin(&self) {
        self.place(&mut self.memory.lock(), |place| {
            place.busy = true;
            place.leaving = false;
        });
    }

    /// A request is done, and the model takes so much. True when the model has to leave, because somebody waits for room.
    pub(super) fn rest(&self, bytes: u64) -> bool {
        let mut state = self.memory.lock();
        let used = state.tick();
        self.place(&mut state, |place| {
            place.busy = false;
            place.used = used;
            place.bytes = bytes;
        });
        let wanted = !state.queue.is_empty();
        drop(state);
        self.memory.0.changed.notify_all();
        wanted
    }

    /// Whether the model still has to leave: a request may have come first.
    pub(super) fn leaves(&self) -> bool {
        self.place(&mut self.memory.lock(), |place| place.leaving) == Some(true)
    }

    /// The model is unloaded.
    pub(super) fn leave(&self) {
        self.memory.lock().places.retain(|p| p.seat != self.id);
        self.memory.0.changed.notify_all();
    }

    fn too_large(&self, bytes: u64, bound: u64) -> BackendError {
        BackendError::Config(format!(
            "{} needs {} of memory, and local models may take {} together; a smaller `context` needs less, and \
             DECANUS_LOCAL_MEMORY, or `memory` in the table [local] of decanus.toml, allows more",
            self.name,
            show_size(bytes),
            show_size(bound)
        ))
    }
}

/// Three quarters of the memory that this process may use, as far as that can be found out.
pub fn default_bound() -> Option<u64> {
    let number = |file: &str| std::fs::read_to_string(file).ok()?.trim().parse::<u64>().ok();
    let machine = std::fs::read_to_string("/proc/meminfo").ok().and_then(|text| {
        let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
        let kilobytes = line.trim().trim_end_matches("kB").trim().parse::<u64>().ok()?;
        Some(kilobytes * 1024)
    });
    // Containers have bounds of their own; without one there is the word `max`, or a number beyond all memory.
    let container =
        number("/sys/fs/cgroup/memory.max").or_else(|| number("/sys/fs/cgroup/memory/memory.limit_in_bytes"));
    let least = [machine, container].into_iter().flatten().min()?;
    Some(least / 4 * 3)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{Receiver, channel};

    fn seat(memory: &Memory, id: u64) -> (Seat, Receiver<Message>) {
        let (sender, receiver) = channel();
        (Seat::new(memory.clone(), id, &format!("m{id}"), sender), receiver)
    }

    fn bounded(bound: u64) -> Memory {
        let memory = Memory::default();
        memory.set_bound(Some(bound));
        memory
    }

    fn names(memory: &Memory) -> Vec<String> {
        memory.residents().into_iter().map(|r| r.name).collect()
    }

    #[test]
    fn the_one_used_longest_ago_leaves() {
        let memory = bounded(100);
        let never = CancellationToken::new();
        let ((a, at_a), (b, at_b), (c, _at_c)) = (seat(&memory, 1), seat(&memory, 2), seat(&memory, 3));
        a.take(40, &never).unwrap();
        b.take(40, &never).unwrap();
        b.rest(40);
        a.rest(40);
        let waiting = std::thread::spawn(move || {
            c.take(50, &CancellationToken::new()).unwrap();
            c
        });
        assert!(matches!(at_b.recv(), Ok(Message::Leave)));
        assert!(b.leaves() && !a.leaves() && at_a.try_recv().is_err());
        b.leave();
        let c = waiting.join().unwrap();
        assert_eq!((names(&memory), memory.loads()), (vec!["m1".into(), "m3".into()], 3));
        assert!(!c.rest(50), "nobody waits");
    }

    #[test]
    fn one_that_works_stays_and_is_waited_for() {
        let memory = bounded(100);
        let ((a, at_a), (b, _at_b)) = (seat(&memory, 1), seat(&memory, 2));
        a.take(80, &CancellationToken::new()).unwrap();
        let cancel = CancellationToken::new();
        let given_up = cancel.clone();
        let waiting = std::thread::spawn(move || (b.take(80, &given_up), b));
        while memory.lock().queue.is_empty() {
            std::thread::yield_now();
        }
        assert!(at_a.try_recv().is_err());
        cancel.cancel();
        let (taken, b) = waiting.join().unwrap();
        assert!(matches!(taken, Err(BackendError::Cancelled)));
        let waiting = std::thread::spawn(move || b.take(80, &CancellationToken::new()));
        while memory.lock().queue.is_empty() {
            std::thread::yield_now();
        }
        // Its next request has to queue behind the one who waits.
        assert!(a.rest(80));
        a.leave();
        waiting.join().unwrap().unwrap();
        assert_eq!(names(&memory), ["m2"]);
    }

    #[test]
    fn a_request_that_comes_first_keeps_the_model() {
        let memory = bounded(100);
        let ((a, at_a), (b, _at_b)) = (seat(&memory, 1), seat(&memory, 2));
        a.take(80, &CancellationToken::new()).unwrap();
        a.rest(80);
        assert!(memory.lock().ask_to_leave(b.id, 80));
        assert!(matches!(at_a.try_recv(), Ok(Message::Leave)));
        a.begin();
        assert!(!a.leaves());
        assert!(!b.take_free(80));
    }

    #[test]
    fn what_can_never_fit_is_refused_with_both_sizes() {
        let memory = bounded(3 << 20);
        let ((a, _at_a), (b, _at_b)) = (seat(&memory, 1), seat(&memory, 2));
        let never = CancellationToken::new();
        let error = a.take(4 << 20, &never).unwrap_err().to_string();
        assert!(
            error.contains("m1 needs 4.0 MiB")
                && error.contains("may take 3.0 MiB")
                && error.contains("DECANUS_LOCAL_MEMORY"),
            "{error}"
        );
        a.take(1 << 20, &never).unwrap();
        assert!(a.extend(4 << 20, &never).is_err());
        b.take(1 << 20, &never).unwrap();
        assert_eq!(a.extend(3 << 20, &never).unwrap(), Extended::Busy);
        assert_eq!(a.extend(2 << 20, &never).unwrap(), Extended::Given);
    }

    #[test]
    fn this_machine_has_memory() {
        assert!(default_bound().is_none_or(|bound| bound > 1 << 20));
    }
}
