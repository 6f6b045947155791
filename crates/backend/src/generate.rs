//! Streams that are written as a future which sends their items.

use std::future::{Future, ready};

use futures::StreamExt;
use futures::stream::{self, BoxStream};
use tokio::sync::mpsc;

/// A stream of what a future sends. It ends with the future; dropping it drops the future.
pub(crate) fn generate<'a, T, F>(make: impl FnOnce(mpsc::Sender<T>) -> F) -> BoxStream<'a, T>
where
    T: Send + 'a,
    F: Future<Output = ()> + Send + 'a,
{
    let (sender, mut receiver) = mpsc::channel(1);
    let work = stream::once(make(sender)).filter_map(|()| ready(None));
    let items = stream::poll_fn(move |cx| receiver.poll_recv(cx));
    stream::select(work, items).boxed()
}
