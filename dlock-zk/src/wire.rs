//! Requests to the servers, and their answers.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use dlock_core::Failure;
use dlock_core::backend::by_then;
use tokio::time::Instant;
use zookeeper::{Acl, Acls, Client, CreateMode, Error, EventType, OneshotWatcher};

use crate::error::of_read;

/// The time that a request may take that belongs to no claim.
const QUESTION: Duration = Duration::from_secs(5);

/// The answer to a request, kept beyond the step that sent it.
pub(crate) type Answer<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// Returns the time by which such a request is to be answered.
pub(crate) fn in_time() -> Instant {
    Instant::now() + QUESTION
}

/// Waits until `until` for the answer to a request that changes nothing. Returns `None` if there is no such node.
pub(crate) async fn read<T>(
    path: &str,
    until: Instant,
    request: impl Future<Output = Result<T, Error>>,
) -> Result<Option<T>, Failure> {
    match by_then(until, request).await {
        Some(Ok(answer)) => Ok(Some(answer)),
        Some(Err(Error::NoNode)) => Ok(None),
        Some(Err(error)) => Err(of_read(error, path)),
        None => Err(Failure::unavailable(format!("no answer in time about {path:?}"))),
    }
}

/// Waits for the event of a watcher. A watcher panics if the client library did: the session is over then.
pub(crate) fn event(watcher: OneshotWatcher) -> Answer<EventType> {
    let mut changed = Box::pin(watcher.changed());
    Box::pin(std::future::poll_fn(move |context| {
        let polled = catch_unwind(AssertUnwindSafe(|| changed.as_mut().poll(context)));
        polled.map_or(Poll::Ready(EventType::Session), |polled| polled.map(|event| event.event_type))
    }))
}

/// Makes a directory and those above it, where they are missing: as containers, which servers delete when they are
/// empty, or as persistent nodes if the server has no containers.
pub(crate) async fn make_directory(client: &Client, directory: &str, acl: &[Acl]) -> Result<(), Error> {
    let make = async |mode: CreateMode| client.mkdir(directory, &mode.with_acls(Acls::new(acl))).await;
    match make(CreateMode::Container).await {
        Err(Error::Unimplemented) => make(CreateMode::Persistent).await,
        made => made,
    }
}
