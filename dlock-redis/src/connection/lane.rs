//! The way to one server from one runtime: a link, opened when it is needed and replaced when it fails.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use dlock_core::Failure;
use tokio::runtime::{Handle, Id};
use tokio::sync::watch;

use super::link::{Link, Manner};
use super::open::Opener;
use super::sentinel::Sentinels;
use crate::url::Endpoint;

/// What a probe may take at least and at most, beyond the time that replicas are waited for.
const PROBE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

/// A server, by whatever address it has at the moment.
#[derive(Debug)]
pub(crate) struct Node {
    place: Arc<Place>,
    lanes: Mutex<HashMap<Id, Arc<Lane>>>,
}

/// How to get a connection to a server.
#[derive(Debug)]
struct Place {
    at: At,
    opener: Opener,
    manner: Manner,
}

/// Where a server is.
#[derive(Debug)]
pub(crate) enum At {
    Fixed(Endpoint),
    /// Wherever the sentinels say that the master is.
    Sentinels(Sentinels),
}

impl Node {
    pub(crate) fn new(at: At, opener: Opener, manner: Manner) -> Self {
        Self { place: Arc::new(Place { at, opener, manner }), lanes: Mutex::default() }
    }

    /// The way from the calling runtime.
    pub(crate) fn lane(&self) -> Result<Arc<Lane>, Failure> {
        let runtime = Handle::try_current()
            .map_err(|_| Failure::unavailable("there is no tokio runtime here to drive a connection"))?;
        let mut lanes = lock(&self.lanes);
        if let Some(lane) = lanes.get(&runtime.id()) {
            return Ok(Arc::clone(lane));
        }
        // A runtime that has ended took its link with it.
        lanes.retain(|_, lane| lane.is_used());
        let lane = Arc::new(Lane {
            place: Arc::clone(&self.place),
            runtime: runtime.clone(),
            state: Mutex::default(),
        });
        lanes.insert(runtime.id(), Arc::clone(&lane));
        Ok(lane)
    }

    /// The link from the calling runtime, for which a caller waits as long as `patience`.
    pub(crate) async fn link(&self, patience: Duration) -> Result<Path, Failure> {
        let lane = self.lane()?;
        let link = lane.link(patience).await?;
        Ok(Path { lane, link })
    }

    /// Closes all connections; the next request opens new ones.
    pub(crate) fn close(&self) {
        lock(&self.lanes).clear();
    }

    /// What the sentinels know, where there are any.
    pub(crate) fn sentinels(&self) -> Option<&Sentinels> {
        match &self.place.at {
            At::Sentinels(sentinels) => Some(sentinels),
            At::Fixed(_) => None,
        }
    }

    /// Ends the links to a server that is the master no more.
    pub(crate) fn leave(&self, master: &Endpoint) {
        for lane in lock(&self.lanes).values() {
            let mut state = lock(&lane.state);
            if state.link.as_ref().is_some_and(|(at, _)| at != master)
                && let Some((_, link)) = state.link.take()
            {
                link.end();
            }
        }
    }

    /// Where the server is now.
    pub(crate) async fn endpoint(&self) -> Result<Endpoint, Failure> {
        self.place.endpoint().await
    }

    pub(crate) fn opener(&self) -> &Opener {
        &self.place.opener
    }
}

impl Place {
    async fn endpoint(&self) -> Result<Endpoint, Failure> {
        match &self.at {
            At::Fixed(endpoint) => Ok(endpoint.clone()),
            At::Sentinels(sentinels) => sentinels.master().await,
        }
    }

    async fn open(&self) -> Result<(Endpoint, Arc<Link>), Failure> {
        let endpoint = self.endpoint().await?;
        let opened = self.opener.open(&endpoint, |_| {}).await?;
        if let At::Sentinels(_) = &self.at {
            super::sentinel::confirm_master(&opened.connection, &endpoint, self.opener.timeout()).await?;
        }
        Ok((endpoint, Arc::new(Link::new(opened, self.manner))))
    }

    fn probe_limit(&self, patience: Duration) -> Duration {
        patience.clamp(PROBE.0, PROBE.1)
            + self.manner.replicas.map_or(Duration::ZERO, |replicas| replicas.timeout)
    }
}

/// A link and the lane it belongs to.
#[derive(Clone, Debug)]
pub(crate) struct Path {
    pub(crate) lane: Arc<Lane>,
    pub(crate) link: Arc<Link>,
}

impl Path {
    /// Another link to the same server, or this one when no other is to be had in time.
    pub(crate) async fn replaced(self, patience: Duration) -> Self {
        let mut opening = {
            let mut state = lock(&self.lane.state);
            match &state.link {
                Some((_, link)) if !link.is_ended() && !Arc::ptr_eq(link, &self.link) => {
                    return Self { link: Arc::clone(link), ..self.clone() };
                }
                _ => self.lane.open(&mut state),
            }
        };
        match tokio::time::timeout(patience, opening.wait_for(Option::is_some))
            .await
            .as_ref()
            .map(Result::as_deref)
        {
            Ok(Ok(Some(Ok(link)))) => Self { link: Arc::clone(link), ..self.clone() },
            _ => self,
        }
    }
}

type Opening = watch::Receiver<Option<Result<Arc<Link>, Arc<Failure>>>>;

/// The way to one server from one runtime.
pub(crate) struct Lane {
    place: Arc<Place>,
    runtime: Handle,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    link: Option<(Endpoint, Arc<Link>)>,
    /// A link that is being opened, for all who want one.
    opening: Option<Opening>,
}

impl Lane {
    fn is_used(&self) -> bool {
        let state = lock(&self.state);
        let opening = state.opening.as_ref().is_some_and(|opening| opening.has_changed().is_ok());
        opening || state.link.as_ref().is_some_and(|(_, link)| !link.is_ended())
    }

    async fn link(self: &Arc<Self>, patience: Duration) -> Result<Arc<Link>, Failure> {
        let mut opening = {
            let mut state = lock(&self.state);
            match &state.link {
                Some((_, link)) if !link.is_ended() => return Ok(Arc::clone(link)),
                _ => self.open(&mut state),
            }
        };
        let opened = tokio::time::timeout(patience, opening.wait_for(Option::is_some)).await;
        let Ok(opened) = opened else {
            return Err(Failure::unavailable(format!(
                "no connection within {patience:?}; it is still being opened"
            )));
        };
        match opened.as_deref() {
            Ok(Some(Ok(link))) => Ok(Arc::clone(link)),
            Ok(Some(Err(failure))) => Err(Failure::new(failure.kind(), failure.message().to_owned())),
            _ => Err(Failure::unavailable("the runtime that opened the connection is gone")),
        }
    }

    /// Has a link opened in the background, unless one is already being opened.
    fn open(self: &Arc<Self>, state: &mut State) -> Opening {
        if let Some(opening) = &state.opening
            && opening.has_changed().is_ok()
        {
            return opening.clone();
        }
        let (done, opening) = watch::channel(None);
        let lane = Arc::clone(self);
        self.runtime.spawn(async move {
            let opened = lane.place.open().await;
            let mut state = lock(&lane.state);
            state.opening = None;
            let result = opened.map_err(Arc::new).map(|(endpoint, link)| {
                state.link = Some((endpoint, Arc::clone(&link)));
                link
            });
            drop(state);
            done.send_replace(Some(result));
        });
        state.opening = Some(opening.clone());
        opening
    }

    /// Somebody waited for an answer on `link` in vain. A link that does not answer a probe either is replaced as soon
    /// as another can be opened; until then, and for what has to follow on the same connection, it stays in use.
    pub(crate) fn doubt(self: &Arc<Self>, link: &Arc<Link>, patience: Duration) {
        let (lane, link) = (Arc::clone(self), Arc::clone(link));
        self.runtime.spawn(async move {
            if !link.probe(lane.place.probe_limit(patience)).await {
                let mut state = lock(&lane.state);
                let current = state.link.as_ref().is_some_and(|(_, current)| Arc::ptr_eq(current, &link));
                if current {
                    lane.open(&mut state);
                }
            }
        });
    }
}

impl std::fmt::Debug for Lane {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lane").field("link", &lock(&self.state).link).finish_non_exhaustive()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
