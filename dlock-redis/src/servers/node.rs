//! One server: for each runtime a connection, opened when it is needed and replaced when it fails.
//!
//! | `State` of a runtime's connection | a request |
//! |---|---|
//! | `current` is open | goes over it |
//! | none is open, and `refused` less than a second ago | goes over an open connection of another runtime; if there is none, as below |
//! | none is open, `opening` | waits for the connection that is being opened, as long as its patience lasts |
//! | none is open, none is being opened | has one opened, and waits for it as long as its patience lasts |
//!
//! A request that waited in vain goes over an open connection of another runtime, or fails.
//!
//! A connection on which a maker got no answer is probed (`doubt`). If it does not answer, another one is opened and
//! takes its place; the old one is retired, and stays for what has to follow on it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use dlock_core::backend::{Mutex, guard_opening, within};
use dlock_core::{Failure, keeper};
use tokio::runtime::{Handle, Id};
use tokio::sync::watch;

use super::connection::Connection;
use super::open::Opener;
use super::role::{self, Role};
use super::sentinel::Sentinels;
use super::wire::WireOptions;
use crate::tracking::ConnectionTracking;
use crate::url::Endpoint;

/// What a probe may take at least and at most, beyond the time that replicas are waited for.
const PROBE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

/// How long none is opened ahead of its use, or while another one is open, after one was not to be had.
const REST: Duration = Duration::from_secs(1);

/// A server, by whatever address it has at the moment.
#[derive(Debug)]
pub(crate) struct Node {
    target: Arc<Target>,
    runtimes: Mutex<Vec<(Id, Arc<RuntimeConnection>)>>,
}

/// How to get a connection to a server.
#[derive(Debug)]
struct Target {
    address: Address,
    opener: Opener,
    options: WireOptions,
}

/// Where a server is.
#[derive(Debug)]
pub(crate) enum Address {
    Fixed(Endpoint),
    /// Wherever the sentinels say that the master is.
    Sentinels(Box<Sentinels>),
}

impl Node {
    pub(crate) fn new(address: Address, opener: Opener, options: WireOptions) -> Self {
        Self { target: Arc::new(Target { address, opener, options }), runtimes: Mutex::default() }
    }

    /// The connection of a runtime, which may not be open yet.
    fn of_runtime(&self, runtime: &Handle) -> Arc<RuntimeConnection> {
        let id = runtime.id();
        let mut runtimes = self.runtimes.lock();
        if let Some((_, found)) = runtimes.iter().find(|(other, _)| *other == id) {
            return Arc::clone(found);
        }
        // A runtime that has ended took its connection with it.
        runtimes.retain(|(_, other)| other.is_used());
        let (target, runtime) = (Arc::clone(&self.target), runtime.clone());
        let new = Arc::new(RuntimeConnection { target, runtime, state: Mutex::default() });
        runtimes.push((id, Arc::clone(&new)));
        new
    }

    /// The way from the calling runtime, for which a caller waits as long as `patience`. Where no connection is to be
    /// had, the way over that of another runtime: a server that has no room for one more, or does not take the password
    /// any more, still answers on those that are open. Such a server is not asked for one by each request: many refused
    /// log-ins look like an attack.
    pub(crate) async fn route(&self, patience: Duration) -> Result<Route, Failure> {
        let runtime = self.of_runtime(&keeper::current()?);
        if runtime.open_connection().is_none()
            && runtime.was_refused()
            && let Some(elsewhere) = self.open_elsewhere(None)
        {
            return Ok(elsewhere);
        }
        match runtime.connection(patience).await {
            Ok(connection) => Ok(Route { runtime, connection }),
            Err(failure) => self.open_elsewhere(None).ok_or(failure),
        }
    }

    /// Another way to the same server than this one, on which an answer is overdue; this one when no other is to be had
    /// in time.
    pub(crate) async fn replaced(&self, route: Route, patience: Duration) -> Route {
        if route.runtime.was_refused()
            && let Some(elsewhere) = self.open_elsewhere(Some(&route.connection))
        {
            return elsewhere;
        }
        match route.runtime.replacement(&route.connection, patience).await {
            Some(connection) => Route { connection, ..route },
            None => self.open_elsewhere(Some(&route.connection)).unwrap_or(route),
        }
    }

    /// The way over a connection that is open, to any runtime, but for this one, and for those to a server that the
    /// sentinels do not name any more.
    fn open_elsewhere(&self, but: Option<&Arc<Connection>>) -> Option<Route> {
        let named = self.sentinels().and_then(Sentinels::named);
        self.runtimes.lock().iter().find_map(|(_, runtime)| {
            let (at, connection) = runtime.open_connection()?;
            let is_there = named.as_ref().is_none_or(|named| *named == at);
            let is_other = !but.is_some_and(|but| Arc::ptr_eq(but, &connection));
            let is_of_use = is_there && is_other && !connection.is_silent();
            is_of_use.then(|| Route { runtime: Arc::clone(runtime), connection })
        })
    }

    /// Has a connection opened on this runtime, in the background, unless there is one.
    pub(crate) fn prepare(&self, runtime: &Handle) {
        self.of_runtime(runtime).prepare();
    }

    /// Closes all connections; the next request opens new ones.
    pub(crate) fn close(&self) {
        self.runtimes.lock().clear();
    }

    /// What the sentinels know, where there are any.
    pub(crate) fn sentinels(&self) -> Option<&Sentinels> {
        match &self.target.address {
            Address::Sentinels(sentinels) => Some(sentinels),
            Address::Fixed(_) => None,
        }
    }

    /// Ends the connections to a server that is the master no more.
    pub(crate) fn leave(&self, master: &Endpoint) {
        for (_, runtime) in self.runtimes.lock().iter() {
            let mut state = runtime.state.lock();
            if state.current.as_ref().is_some_and(|(at, _)| at != master)
                && let Some((_, connection)) = state.current.take()
            {
                connection.end();
            }
        }
    }

    /// Where the server is now.
    pub(crate) async fn endpoint(&self) -> Result<Endpoint, Failure> {
        self.target.endpoint().await
    }

    pub(crate) fn opener(&self) -> &Opener {
        &self.target.opener
    }
}

impl Target {
    async fn endpoint(&self) -> Result<Endpoint, Failure> {
        match &self.address {
            Address::Fixed(endpoint) => Ok(endpoint.clone()),
            Address::Sentinels(sentinels) => sentinels.master().await,
        }
    }

    async fn open(&self) -> Result<(Endpoint, Arc<Connection>), Failure> {
        let endpoint = self.endpoint().await?;
        let tracking = ConnectionTracking::new(&self.options.tracking);
        let told = Arc::clone(&tracking);
        let opened = self.opener.open(&endpoint, move |said| told.heard(&said)).await?;
        let role = match &self.address {
            // A replica that is part of a cluster sends everybody to its master, and a proxy speaks for many servers.
            Address::Fixed(_) if !self.options.together => Role::Unknown,
            _ => role::of(&opened, &endpoint, self.opener.timeout()).await?,
        };
        if let Address::Sentinels(_) = &self.address {
            role.confirm_master(&endpoint)?;
        }
        let is_replica = role == Role::Replica;
        let connection = Connection::new(opened, self.options.clone(), tracking, is_replica);
        Ok((endpoint, Arc::new(connection)))
    }

    fn probe_limit(&self, patience: Duration) -> Duration {
        patience.clamp(PROBE.0, PROBE.1)
            + self.options.replicas.map_or(Duration::ZERO, |replicas| replicas.timeout)
    }
}

/// A connection, and whose it is.
#[derive(Clone, Debug)]
pub(crate) struct Route {
    pub(crate) runtime: Arc<RuntimeConnection>,
    pub(crate) connection: Arc<Connection>,
}

type Opening = watch::Receiver<Option<Result<Arc<Connection>, Arc<Failure>>>>;

/// The connection to one server from one runtime.
pub(crate) struct RuntimeConnection {
    target: Arc<Target>,
    runtime: Handle,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    current: Option<(Endpoint, Arc<Connection>)>,
    /// One that is being opened, for all who want one.
    opening: Option<Opening>,
    /// When none was to be had.
    refused: Option<Instant>,
}

impl State {
    fn was_refused(&self) -> bool {
        self.refused.is_some_and(|refused| refused.elapsed() < REST)
    }
}

impl RuntimeConnection {
    fn is_used(&self) -> bool {
        let state = self.state.lock();
        let opening = state.opening.as_ref().is_some_and(|opening| opening.has_changed().is_ok());
        opening || state.current.as_ref().is_some_and(|(_, connection)| !connection.is_ended())
    }

    /// The connection, if it is open, and where to.
    fn open_connection(&self) -> Option<(Endpoint, Arc<Connection>)> {
        self.state.lock().current.as_ref().filter(|(_, open)| !open.is_ended()).cloned()
    }

    /// Whether none was to be had a moment ago.
    fn was_refused(&self) -> bool {
        self.state.lock().was_refused()
    }

    /// Has one opened, unless it is open, or was not to be had a moment ago.
    fn prepare(self: &Arc<Self>) {
        let mut state = self.state.lock();
        let is_open = state.current.as_ref().is_some_and(|(_, connection)| !connection.is_ended());
        if !is_open && !state.was_refused() {
            self.open(&mut state);
        }
    }

    /// Another connection than this one; `None` when none is to be had in time.
    async fn replacement(
        self: &Arc<Self>,
        of: &Arc<Connection>,
        patience: Duration,
    ) -> Option<Arc<Connection>> {
        let mut opening = {
            let mut state = self.state.lock();
            match &state.current {
                Some((_, connection)) if !connection.is_ended() && !Arc::ptr_eq(connection, of) => {
                    return Some(Arc::clone(connection));
                }
                _ => self.open(&mut state),
            }
        };
        let opened = within(patience, opening.wait_for(Option::is_some)).await?.ok()?;
        opened.as_ref()?.as_ref().ok().cloned()
    }

    async fn connection(self: &Arc<Self>, patience: Duration) -> Result<Arc<Connection>, Failure> {
        let mut opening = {
            let mut state = self.state.lock();
            match &state.current {
                Some((_, connection)) if !connection.is_ended() => return Ok(Arc::clone(connection)),
                _ => self.open(&mut state),
            }
        };
        let opened = Box::pin(within(patience, opening.wait_for(Option::is_some))).await;
        let Some(opened) = opened else {
            return Err(Failure::unavailable(format!(
                "no connection within {patience:?}; it is still being opened"
            )));
        };
        match opened.as_deref() {
            Ok(Some(Ok(connection))) => Ok(Arc::clone(connection)),
            Ok(Some(Err(failure))) => Err(Failure::new(failure.kind(), failure.message().to_owned())),
            _ => Err(Failure::unavailable("the runtime that opened the connection is gone")),
        }
    }

    /// Has a connection opened in the background, unless one is already being opened.
    fn open(self: &Arc<Self>, state: &mut State) -> Opening {
        if let Some(opening) = &state.opening
            && opening.has_changed().is_ok()
        {
            return opening.clone();
        }
        let (done, opening) = watch::channel(None);
        let this = Arc::clone(self);
        self.runtime.spawn(async move {
            let opened = guard_opening(this.target.open()).await.and_then(|opened| opened);
            let (mut state, mut before) = (this.state.lock(), None);
            state.opening = None;
            state.refused = opened.is_err().then(Instant::now);
            let result = opened.map_err(Arc::new).map(|(endpoint, connection)| {
                before = state.current.replace((endpoint, Arc::clone(&connection)));
                connection
            });
            drop(state);
            done.send_replace(Some(result));
            if let Some((_, before)) = before {
                before.retire();
            }
        });
        state.opening = Some(opening.clone());
        opening
    }

    /// Somebody waited for an answer on `connection` in vain. One that does not answer a probe either is replaced as
    /// soon as another can be opened; until then, and for what has to follow on the same connection, it stays in use.
    pub(crate) fn doubt(self: &Arc<Self>, connection: &Arc<Connection>, patience: Duration) {
        let (this, connection) = (Arc::clone(self), Arc::clone(connection));
        self.runtime.spawn(async move {
            if !connection.probe(this.target.probe_limit(patience)).await {
                let mut state = this.state.lock();
                let current =
                    state.current.as_ref().is_some_and(|(_, current)| Arc::ptr_eq(current, &connection));
                if current {
                    this.open(&mut state);
                }
            }
        });
    }
}

impl std::fmt::Debug for RuntimeConnection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RuntimeConnection")
            .field("current", &self.state.lock().current)
            .finish_non_exhaustive()
    }
}
