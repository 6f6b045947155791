//! Waiting for a provider: no longer than one limit, and not beyond the time for the whole request.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::{Poll, ready};
use std::time::Duration;

use decanus_base::units::show_duration;
use tokio::time::{Instant, Sleep, sleep_until};

use crate::error::BackendError;

/// The time for a whole request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Clock {
    /// When it ends.
    pub deadline: Instant,
    total: Duration,
}

impl Clock {
    /// Begins now.
    pub fn start(total: Duration) -> Self {
        let now = Instant::now();
        Self {
            // A limit too far away to be a time is none; a year is as good.
            deadline: now.checked_add(total).unwrap_or(now + Duration::from_secs(365 * 86400)),
            total,
        }
    }

    /// Waits for something of `target`, at most `limit` from `from` on; `what` tells what did not come.
    ///
    /// # Errors
    /// [`BackendError::TimedOut`], naming the limit that struck.
    pub async fn within<T>(
        &self,
        target: &str,
        from: Instant,
        limit: Duration,
        what: &str,
        work: impl Future<Output = T>,
    ) -> Result<T, BackendError> {
        self.within_by(&mut Alarm::default(), target, from, limit, what, work)
            .await
    }

    /// The same with an alarm that lasts for many waits.
    ///
    /// # Errors
    /// Those of [`Clock::within`].
    pub async fn within_by<T>(
        &self,
        alarm: &mut Alarm,
        target: &str,
        from: Instant,
        limit: Duration,
        what: &str,
        work: impl Future<Output = T>,
    ) -> Result<T, BackendError> {
        let end = from.checked_add(limit).unwrap_or(self.deadline).min(self.deadline);
        alarm.before(end, work).await.ok_or_else(|| {
            let what = if end == self.deadline {
                format!("the whole request may take {}", show_duration(self.total))
            } else {
                format!("{what} within {}", show_duration(limit))
            };
            BackendError::TimedOut {
                target: target.to_owned(),
                what,
            }
        })
    }
}

/// A timer that is set once for many waits, one after the other, of which each ends a little later than the last: the
/// pieces of a stream. Setting one for each piece costs more than reading the piece.
#[derive(Debug, Default)]
pub(crate) struct Alarm(Option<Pin<Box<Sleep>>>);

impl Alarm {
    /// What the work gives, or nothing when it is not done by then.
    async fn before<T>(&mut self, end: Instant, work: impl Future<Output = T>) -> Option<T> {
        let mut work = pin!(work);
        poll_fn(|cx| {
            if let Poll::Ready(done) = work.as_mut().poll(cx) {
                return Poll::Ready(Some(done));
            }
            let timer = self.0.get_or_insert_with(|| Box::pin(sleep_until(end)));
            if timer.deadline() > end {
                timer.as_mut().reset(end);
            }
            loop {
                ready!(timer.as_mut().poll(cx));
                if Instant::now() >= end {
                    return Poll::Ready(None);
                }
                // It was set for an earlier wait.
                timer.as_mut().reset(end);
            }
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_alarm_of_an_earlier_wait_ends_no_later_one() {
        let ms = Duration::from_millis;
        let mut alarm = Alarm::default();
        let pause = |time| tokio::time::sleep(ms(time));
        let now = Instant::now();
        assert_eq!(alarm.before(now + ms(30), pause(5)).await, Some(()));
        // The first alarm rings within this wait.
        assert_eq!(alarm.before(Instant::now() + ms(2000), pause(60)).await, Some(()));
        // It was moved beyond this one's end.
        assert_eq!(alarm.before(Instant::now() + ms(20), pause(2000)).await, None);
        assert!(now.elapsed() < ms(1500));
    }
}
