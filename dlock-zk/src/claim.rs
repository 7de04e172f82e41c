//! One claim on one lock.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use dlock_core::backend::{Attempt, Busy, Claim, ClaimRequest, Grant, Renewed, Signal, Term, Withdrawal};
use dlock_core::{Clock, ErrorKind, Failure, Fence, Timestamp, keeper};
use tokio::time::Instant;
use zookeeper::{Error, WatchedEvent};

use crate::backend::holder;
use crate::names::{self, Standing};
use crate::place::Place;
use crate::session::{Entry, read};
use crate::sessions::Sessions;

/// How long to pause between two tries to take away what a dropped claim left.
const AGAIN: Duration = Duration::from_millis(500);

/// A claim on a lock of [`ZooKeeper`](crate::ZooKeeper).
pub struct ZooKeeperClaim {
    sessions: Arc<Sessions>,
    request: ClaimRequest,
    place: Option<Place>,
    watch: Option<Watch>,
    entry: Option<Entry>,
    /// When the first request was sent whose effect may still be standing.
    sent: Option<Timestamp>,
}

/// A watch on the node before ours.
struct Watch {
    name: String,
    event: Pin<Box<dyn Future<Output = WatchedEvent> + Send>>,
}

impl ZooKeeperClaim {
    pub(crate) fn new(sessions: Arc<Sessions>, request: ClaimRequest) -> Self {
        Self { sessions, request, place: None, watch: None, entry: None, sent: None }
    }

    /// How long to wait for what is no part of the outcome: less than the engine waits for an answer, so that servers
    /// that are away are seen to be away, and not taken for some that may have got a request.
    fn patience(&self) -> Instant {
        Instant::now() + self.request.request_timeout * 3 / 4
    }

    /// The place, on a session that has a connection.
    async fn place(&mut self, until: Instant) -> Result<&mut Place, Failure> {
        if let Some(place) = &mut self.place
            && let Some(cause) = place.session.ended()
        {
            if place.node().is_some() {
                return Err(Failure::new(ErrorKind::Lost, format!("the place in line is lost: {cause}")));
            }
            place.move_to(self.sessions.get(until).await?);
        }
        let place = match &mut self.place {
            Some(place) => place,
            none => {
                let session = self.sessions.get(until).await?;
                let directory = self.sessions.config().base.directory(&self.request.key);
                none.insert(Place::new(session, directory, names::prefix(&self.request.token)))
            }
        };
        place.session.connected(until).await?;
        Ok(place)
    }

    async fn try_once(&mut self) -> Result<Attempt, Failure> {
        let until = self.patience();
        loop {
            let (request, sessions) = (self.request.clone(), Arc::clone(&self.sessions));
            let place = self.place(until).await?;
            match place.stand(sessions.config(), || request.describe(), until).await? {
                Standing::First => {
                    let Some(node) = place.node() else { continue };
                    let term = Term::Session(Some(place.session.trusted_for()));
                    let fence = Fence::new(node.czxid.cast_unsigned());
                    self.watch = None;
                    return Ok(Attempt::Granted(Grant::new(term).with_fence(fence)));
                }
                Standing::Behind { first, previous } => {
                    if let Some(busy) = self.look_ahead(&first, &previous, until).await? {
                        return Ok(Attempt::Busy(busy));
                    }
                }
                Standing::Missing => {
                    return Err(Failure::new(ErrorKind::Lost, "somebody deleted its place in line"));
                }
            }
        }
    }

    /// Watches `previous`, and finds out who is `first`. `None` when `previous` is gone.
    async fn look_ahead(
        &mut self,
        first: &str,
        previous: &str,
        until: Instant,
    ) -> Result<Option<Busy>, Failure> {
        let Some(place) = &mut self.place else { return Ok(None) };
        let mut busy = Busy::default();
        if !self.request.waits {
            // Ahead of whatever comes next, so that one who only asked is never in anybody's way.
            place.send_deletion();
        } else if self.watch.as_ref().is_some_and(|watch| watch.name == previous) {
            return Ok(Some(busy));
        }
        let (client, first_path) = (&place.session.client, place.path_of(first));
        // Both are sent before an answer is waited for.
        let holder_asked = client.get_data(&first_path);
        if self.request.waits {
            let path = place.path_of(previous);
            let watched = read(&path, until, async {
                match client.get_and_watch_data(&path).await {
                    Ok((.., watcher)) => Ok(Some(watcher)),
                    // Whose data may not be read can still be watched.
                    Err(Error::NoAuth) => {
                        client.check_and_watch_stat(&path).await.map(|(stat, watcher)| stat.map(|_| watcher))
                    }
                    Err(error) => Err(error),
                }
            });
            let Some(watcher) = watched.await?.flatten() else { return Ok(None) };
            self.watch = Some(Watch { name: previous.to_owned(), event: Box::pin(watcher.changed()) });
        }
        // Who it is is good to know, and no reason to fail.
        if let Ok(Some((data, stat))) = read(&first_path, until, holder_asked).await {
            busy.holder = Some(Box::new(holder(&data, &stat)));
        }
        Ok(Some(busy))
    }
}

impl Claim for ZooKeeperClaim {
    async fn attempt(&mut self) -> Result<Attempt, Failure> {
        self.sent.get_or_insert(Clock::system().now());
        let answer = self.try_once().await;
        match &answer {
            Ok(Attempt::Granted(_)) => {}
            Err(failure) if failure.kind() == ErrorKind::Unknown => {}
            _ => self.sent = None,
        }
        answer
    }

    async fn changed(&mut self) -> Result<(), Failure> {
        match &mut self.watch {
            // The end of the session is an event too; the next attempt tells which.
            Some(watch) => {
                watch.event.as_mut().await;
            }
            None => std::future::pending().await,
        }
        self.watch = None;
        Ok(())
    }

    fn granted(&mut self, signal: Signal) {
        let (Some(place), Some(sent)) = (&self.place, self.sent) else {
            return signal.lost("it was withdrawn");
        };
        match place.node() {
            Some(node) => {
                self.entry = Some(place.session.enter(signal, Arc::clone(&node.path), node.czxid, sent));
            }
            None => signal.lost("somebody deleted its node"),
        }
    }

    /// Never called: the session keeps the lock.
    async fn renew(&mut self) -> Result<Renewed, Failure> {
        Ok(Renewed::Extended)
    }

    async fn withdraw(&mut self) -> Result<Withdrawal, Failure> {
        (self.watch, self.entry) = (None, None);
        match &mut self.place {
            Some(place) => place.leave().await,
            None => Ok(Withdrawal::ABSENT),
        }
    }

    fn is_clean(&self) -> bool {
        self.place.as_ref().is_none_or(Place::is_empty)
    }
}

impl Drop for ZooKeeperClaim {
    /// The session goes on for the other locks, so that no lease would ever end what is left here.
    fn drop(&mut self) {
        let Some(mut place) = self.place.take() else { return };
        if place.is_empty() {
            return;
        }
        if let Ok(runtime) = keeper::runtime() {
            runtime.spawn(async move {
                while place.leave().await.is_err_and(|failure| failure.is_transient()) {
                    tokio::time::sleep(AGAIN).await;
                }
            });
        }
    }
}

impl fmt::Debug for ZooKeeperClaim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ZooKeeperClaim").field("key", &self.request.key).finish_non_exhaustive()
    }
}
