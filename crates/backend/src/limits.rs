//! How many requests an endpoint gets: so many at once (`max_concurrency`), so many in a minute (`requests_per_minute`),
//! so many tokens in a minute (`tokens_per_minute`).
//!
//! A [`Governor`] holds one gate for each endpoint, and all conversations with the endpoint go through it, in the order
//! in which they come. A place is held only while a request is under way: not while it waits for a minute to pass, and
//! not while it waits before another try. The time spent waiting is part of the time that the request has.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use decanus_base::units::show_duration;
use futures::StreamExt;
use futures::stream::BoxStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;

use crate::conversation::{CallCx, Conversation, Delta, DryRun, View};
use crate::error::BackendError;
use crate::generate::generate;
use crate::profile::{Limits, Profile};

/// A wait that is longer is told of.
const TOLD: Duration = Duration::from_secs(1);

/// An endpoint's name and URL.
type Key = (String, String);

/// The gates of all endpoints of a process. Clones share them.
#[derive(Clone, Debug)]
pub struct Governor {
    gates: Arc<Mutex<HashMap<Key, Arc<Gate>>>>,
    minute: Duration,
}

impl Default for Governor {
    fn default() -> Self {
        Self::new()
    }
}

impl Governor {
    /// No gates yet.
    pub fn new() -> Self {
        Self::with_minute(Duration::from_secs(60))
    }

    /// With minutes of another length, for tests that can't wait.
    pub fn with_minute(minute: Duration) -> Self {
        Self {
            gates: Arc::default(),
            minute,
        }
    }

    /// Puts the gate of an endpoint before a conversation with it. Without limits it stays as it is.
    pub fn limit(&self, conversation: Box<dyn Conversation>, profile: &Arc<Profile>) -> Box<dyn Conversation> {
        if profile.limits == Limits::default() {
            return conversation;
        }
        Box::new(LimitedConversation {
            inner: conversation,
            gate: self.gate(profile),
            profile: profile.clone(),
        })
    }

    /// The gate of an endpoint; a new one when its limits have changed.
    fn gate(&self, profile: &Profile) -> Arc<Gate> {
        let mut gates = lock(&self.gates);
        let key = (profile.name.clone(), profile.url.clone());
        match gates.get(&key) {
            Some(gate) if gate.limits == profile.limits => gate.clone(),
            _ => {
                let gate = Arc::new(Gate::new(profile.limits, self.minute));
                gates.insert(key, gate.clone());
                gate
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Where the requests to one endpoint pass, one behind the other.
#[derive(Debug)]
struct Gate {
    limits: Limits,
    places: Option<Arc<Semaphore>>,
    requests: Option<Mutex<Bucket>>,
    tokens: Option<Mutex<Bucket>>,
    /// Held by the request that is next. Waiters get it in the order in which they came.
    front: tokio::sync::Mutex<()>,
    /// What the request at the front waits for.
    waits_for: Mutex<String>,
}

/// A token bucket: it fills evenly up to a minute's worth, and may be overdrawn.
#[derive(Debug)]
struct Bucket {
    level: f64,
    capacity: f64,
    per_second: f64,
    filled: Instant,
}

impl Bucket {
    fn new(per_minute: f64, minute: Duration) -> Self {
        // Less than one request in a minute is one in some minutes.
        let capacity = per_minute.max(1.0);
        Self {
            level: capacity,
            capacity,
            per_second: per_minute / minute.as_secs_f64(),
            filled: Instant::now(),
        }
    }

    /// How long it takes until there is one in it.
    fn wait(&mut self, now: Instant) -> Duration {
        let passed = now.saturating_duration_since(self.filled).as_secs_f64();
        self.level = (self.level + passed * self.per_second).min(self.capacity);
        self.filled = now;
        if self.level >= 1.0 {
            return Duration::ZERO;
        }
        let wait = Duration::try_from_secs_f64((1.0 - self.level) / self.per_second).unwrap_or(Duration::MAX);
        // Rounded up, so that there is one when it is over.
        wait.saturating_add(Duration::from_millis(1))
    }
}

impl Gate {
    fn new(limits: Limits, minute: Duration) -> Self {
        let bucket = |n: Option<f64>| n.map(|n| Mutex::new(Bucket::new(n, minute)));
        let places = |n: u32| Arc::new(Semaphore::new(usize::try_from(n).unwrap_or(usize::MAX)));
        Self {
            limits,
            places: limits.max_concurrency.map(places),
            requests: bucket(limits.requests_per_minute),
            tokens: bucket(limits.tokens_per_minute),
            front: tokio::sync::Mutex::default(),
            waits_for: Mutex::default(),
        }
    }

    /// How long the buckets make the next request wait, and which one does.
    fn must_wait(&self, now: Instant) -> Option<(String, Duration)> {
        let of = |bucket: &Option<Mutex<Bucket>>| bucket.as_ref().map_or(Duration::ZERO, |b| lock(b).wait(now));
        let limits = &self.limits;
        [
            ("requests_per_minute", limits.requests_per_minute, of(&self.requests)),
            ("tokens_per_minute", limits.tokens_per_minute, of(&self.tokens)),
        ]
        .into_iter()
        .filter(|(.., wait)| !wait.is_zero())
        .max_by_key(|(.., wait)| *wait)
        .map(|(name, limit, wait)| (format!("`{name}: {}`", limit.unwrap_or_default()), wait))
    }

    /// Waits for its turn, for the minute, and for a place.
    async fn enter(&self, deadline: Instant) -> Result<Option<OwnedSemaphorePermit>, String> {
        let _front = self.front.lock().await;
        loop {
            let now = Instant::now();
            if let Some((limit, wait)) = self.must_wait(now) {
                let Some(until) = now.checked_add(wait).filter(|until| *until <= deadline) else {
                    return Err(format!("{limit} allows the next one in {}", show_duration(wait)));
                };
                *lock(&self.waits_for) = limit;
                sleep_until(until).await;
                continue;
            }
            let place = match &self.places {
                None => None,
                Some(places) => {
                    *lock(&self.waits_for) =
                        format!("`max_concurrency: {}`", self.limits.max_concurrency.unwrap_or_default());
                    // It is never closed.
                    places.clone().acquire_owned().await.ok()
                }
            };
            // Whoever was under way meanwhile may have used up the tokens; the place is given back then.
            if self.must_wait(Instant::now()).is_none() {
                if let Some(requests) = &self.requests {
                    lock(requests).level -= 1.0;
                }
                return Ok(place);
            }
        }
    }

    fn charge(&self, tokens: u64) {
        if let Some(bucket) = &self.tokens {
            lock(bucket).level -= tokens as f64;
        }
    }
}

/// The place of one request at the gate of its endpoint. Backends that make several tries give it back between them.
#[derive(Clone, Debug)]
pub struct Pass(Arc<Visit>);

#[derive(Debug)]
struct Visit {
    gate: Arc<Gate>,
    endpoint: String,
    total: Duration,
    deadline: Instant,
    place: Mutex<Option<OwnedSemaphorePermit>>,
}

impl Pass {
    fn new(gate: Arc<Gate>, endpoint: &str, total: Duration) -> Self {
        Self(Arc::new(Visit {
            gate,
            endpoint: endpoint.to_owned(),
            total,
            deadline: deadline(total),
            place: Mutex::default(),
        }))
    }

    /// Gives the place back: nothing is under way for a while.
    pub(crate) fn leave(&self) {
        lock(&self.0.place).take();
    }

    /// Waits until the next try may be made.
    pub(crate) async fn enter(&self, cancel: &CancellationToken) -> Result<(), BackendError> {
        let visit = &*self.0;
        let enter = visit.gate.enter(visit.deadline);
        let tell = sleep(TOLD);
        tokio::pin!(enter, tell);
        let mut told = false;
        let entered = loop {
            tokio::select! {
                biased;
                () = cancel.cancelled() => return Err(BackendError::Cancelled),
                entered = &mut enter => break entered,
                () = &mut tell, if !told => {
                    told = true;
                    let limit = lock(&visit.gate.waits_for).clone();
                    tracing::info!(endpoint = %visit.endpoint, "waiting: {limit}");
                }
                () = sleep_until(visit.deadline) => {
                    break Err(format!("it waited for {}", lock(&visit.gate.waits_for)));
                }
            }
        };
        match entered {
            Ok(place) => {
                *lock(&visit.place) = place;
                Ok(())
            }
            Err(why) => Err(BackendError::TimedOut {
                target: format!("endpoint `{}`", visit.endpoint),
                what: format!("{why}; the whole request may take {}", show_duration(visit.total)),
            }),
        }
    }
}

/// When a time is over; one too long to be added is as good as a year.
pub(crate) fn deadline(total: Duration) -> Instant {
    let now = Instant::now();
    now.checked_add(total).unwrap_or(now + Duration::from_secs(365 * 86400))
}

/// Charges what a request took, also when it is dropped half way.
struct Bill {
    gate: Arc<Gate>,
    tokens: u64,
}

impl Drop for Bill {
    fn drop(&mut self) {
        self.gate.charge(self.tokens);
    }
}

/// A conversation whose requests go through the gate of its endpoint.
struct LimitedConversation {
    inner: Box<dyn Conversation>,
    gate: Arc<Gate>,
    profile: Arc<Profile>,
}

impl Conversation for LimitedConversation {
    fn backend(&self) -> &str {
        self.inner.backend()
    }

    fn endpoint(&self) -> Option<&Profile> {
        self.inner.endpoint()
    }

    fn complete<'a>(&'a mut self, view: &'a View<'a>, cx: &'a CallCx) -> BoxStream<'a, Result<Delta, BackendError>> {
        let total = self.profile.timeouts.total.min(cx.timeout);
        let pass = Pass::new(self.gate.clone(), &self.profile.name, total);
        generate(move |out| async move {
            if let Err(error) = pass.enter(&cx.cancel).await {
                let _ = out.send(Err(error)).await;
                return;
            }
            let cx = CallCx {
                timeout: pass.0.deadline.saturating_duration_since(Instant::now()),
                pass: Some(pass.clone()),
                ..cx.clone()
            };
            let mut bill = Bill {
                gate: self.gate.clone(),
                tokens: 0,
            };
            let mut answer = self.inner.complete(view, &cx);
            while let Some(delta) = answer.next().await {
                if let Ok(Delta::Usage(usage)) = &delta {
                    let sum = || Some(usage.pt? + usage.ct?);
                    bill.tokens = usage.tt.or_else(sum).unwrap_or(0);
                }
                if out.send(delta).await.is_err() {
                    return;
                }
            }
        })
    }

    fn dry_run(&mut self, view: &View<'_>, stream: bool) -> Result<DryRun, BackendError> {
        self.inner.dry_run(view, stream)
    }
}
