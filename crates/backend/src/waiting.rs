//! Waiting for a provider: no longer than one limit, and not beyond the time for the whole request.

use std::future::Future;
use std::time::Duration;

use decanus_base::units::show_duration;
use tokio::time::Instant;

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
        let end = from.checked_add(limit).unwrap_or(self.deadline).min(self.deadline);
        tokio::time::timeout_at(end, work).await.map_err(|_| {
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
