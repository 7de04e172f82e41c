//! One server, with a connection for each runtime, which is opened when it is needed and replaced when it fails.
//!
//! | `State` of a runtime's connection | a request |
//! |---|---|
//! | `current` is open | goes over it |
//! | none is open, and one was `refused` less than a second ago | goes over an open connection of another runtime; if there is none, as below |
//! | none is open, `opening` | waits for the connection that is being opened, as long as its patience lasts |
//! | none is open, none is being opened | has one opened, and waits for it as long as its patience lasts |
//!
//! A request whose wait for a connection fails goes over an open connection of another runtime, or fails.
//!
//! A connection whose caller is dropped without an answer is probed (`doubt`). If the connection does not answer the
//! probe, another one is opened and takes its place; the old one is retired, and stays for the withdrawals that have to
//! follow on it.

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

/// The least and the most time for a probe, beyond the time that replicas are waited for.
const PROBE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

/// The time after a refused connection during which none is opened ahead of its use, or while another one is open.
const REST: Duration = Duration::from_secs(1);

/// A server, which may change its address under sentinels.
#[derive(Debug)]
pub(crate) struct Node {
    target: Arc<Target>,
    runtimes: Mutex<Vec<(Id, Arc<RuntimeConnection>)>>,
}

/// The address of a server and the way to open a connection to it.
#[derive(Debug)]
struct Target {
    address: Address,
    opener: Opener,
    options: WireOptions,
}

/// The address of a server.
#[derive(Debug)]
pub(crate) enum Address {
    Fixed(Endpoint),
    /// The master that the sentinels name at the time.
    Sentinels(Box<Sentinels>),
}

impl Node {
    pub(crate) fn new(address: Address, opener: Opener, options: WireOptions) -> Self {
        Self { target: Arc::new(Target { address, opener, options }), runtimes: Mutex::default() }
    }

    /// Returns the [`RuntimeConnection`] of a runtime, whose connection may not be open yet.
    fn of_runtime(&self, runtime: &Handle) -> Arc<RuntimeConnection> {
        let id = runtime.id();
        let mut runtimes = self.runtimes.lock();
        if let Some((_, found)) = runtimes.iter().find(|(other, _)| *other == id) {
            return Arc::clone(found);
        }
        // A runtime that has ended took its connection with it, and its entry is removed here.
        let ended: Vec<_> = runtimes.extract_if(.., |(_, other)| !other.is_used()).collect();
        let (target, runtime) = (Arc::clone(&self.target), runtime.clone());
        let new = Arc::new(RuntimeConnection { target, runtime, state: Mutex::default() });
        runtimes.push((id, Arc::clone(&new)));
        drop(runtimes);
        // Dropped with the list unlocked, as in `close`.
        drop(ended);
        new
    }

    /// Returns the route from the calling runtime, for which a caller waits as long as `patience`. If no connection can
    /// be opened, returns the route over one of another runtime: a server that has no room for one more connection, or
    /// does not accept the password any more, still answers on those that are open. Such a server is not asked for a
    /// connection by each request: many refused log-ins look like an attack.
    pub(crate) async fn route(&self, patience: Duration) -> Result<Route, Failure> {
        // A connection is driven by the runtime that asks, which saves a change of threads for each reply; a caller
        // without a runtime uses dlock's own.
        let runtime = self.of_runtime(&keeper::current()?);
        // An open connection of this runtime comes first, then one of another runtime if opening has just failed, then
        // a new one.
        if runtime.open_connection().is_none()
            && runtime.was_refused()
            && let Some(elsewhere) = self.open_elsewhere(None)
        {
            return Ok(elsewhere);
        }
        match runtime.connection(patience).await {
            Ok(connection) => Ok(Route { runtime, connection }),
            // The connection may still be opened in the background, and serves the next request.
            Err(failure) => self.open_elsewhere(None).ok_or(failure),
        }
    }

    /// Returns another route to the same server than this one, on which an answer is overdue. Returns this one if no
    /// other can be had in time.
    pub(crate) async fn replaced(&self, route: Route, patience: Duration) -> Route {
        if route.runtime.was_refused()
            && let Some(elsewhere) = self.open_elsewhere(Some(&route.connection))
        {
            return elsewhere;
        }
        // The overdue connection is returned as a last resort: an answer behind the overdue one is better than no
        // request.
        match route.runtime.replacement(&route.connection, patience).await {
            Some(connection) => Route { connection, ..route },
            None => self.open_elsewhere(Some(&route.connection)).unwrap_or(route),
        }
    }

    /// Returns the route over any open connection, of whatever runtime, but not over the connection `but`, and not to a
    /// server that the sentinels do not name any more.
    fn open_elsewhere(&self, but: Option<&Arc<Connection>>) -> Option<Route> {
        // A connection to a former master may still be open, and must not be used for a request of any runtime.
        let named = self.sentinels().and_then(Sentinels::named);
        self.runtimes.lock().iter().find_map(|(_, runtime)| {
            let (at, connection) = runtime.open_connection()?;
            let is_there = named.as_ref().is_none_or(|named| *named == at);
            let is_other = !but.is_some_and(|but| Arc::ptr_eq(but, &connection));
            // A silent connection is left to the withdrawals that have to follow on it.
            let is_of_use = is_there && is_other && !connection.is_silent();
            is_of_use.then(|| Route { runtime: Arc::clone(runtime), connection })
        })
    }

    /// Opens a connection on this runtime in the background, unless there is one.
    pub(crate) fn prepare(&self, runtime: &Handle) {
        self.of_runtime(runtime).prepare();
    }

    /// Drops all connections. The next request opens new ones.
    pub(crate) fn close(&self) {
        // Dropped with the list unlocked, since a connection wakes its tasks when it is dropped.
        let closed = std::mem::take(&mut *self.runtimes.lock());
        drop(closed);
    }

    /// Returns the sentinels, if the server is found by them.
    pub(crate) fn sentinels(&self) -> Option<&Sentinels> {
        match &self.target.address {
            Address::Sentinels(sentinels) => Some(sentinels),
            Address::Fixed(_) => None,
        }
    }

    /// Ends all connections but those to `master`: any other server is not the master any more.
    pub(crate) fn leave(&self, master: &Endpoint) {
        // Both locks are held, in the order of all other callers: first the list of runtimes, then one state.
        let left = |(_, runtime): &(Id, Arc<RuntimeConnection>)| {
            runtime.state.lock().current.take_if(|(at, _)| at != master)
        };
        // Collected first: the end of a connection calls into the engine, which must not happen while either is locked.
        let left: Vec<_> = self.runtimes.lock().iter().filter_map(left).collect();
        left.iter().for_each(|(_, connection)| connection.end());
    }

    /// Returns the current address of the server.
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
        // The account of tracked locks exists before the connection, which may report changes as soon as it is open.
        let reports = Arc::clone(&tracking);
        let opened = self.opener.open(&endpoint, move |said| reports.pushed(&said)).await?;
        let role = match &self.address {
            // A replica of a cluster redirects everything to its master, and a proxy stands for many servers: neither
            // is asked for its role.
            Address::Fixed(_) if !self.options.together => Role::Unknown,
            _ => role::of(&opened, &endpoint, self.opener.timeout()).await?,
        };
        // Sentinels may name a server whose role has not changed yet. A grant there would be lost when it does.
        if let Address::Sentinels(_) = &self.address {
            role.confirm_master(&endpoint)?;
        }
        let is_replica = role == Role::Replica;
        let connection = Connection::new(opened, self.options.clone(), tracking, is_replica);
        Ok((endpoint, Arc::new(connection)))
    }

    /// Returns the time for a probe: as long as the caller's patience within the bounds, and the time that a `WAIT`
    /// before it may take.
    fn probe_limit(&self, patience: Duration) -> Duration {
        patience.clamp(PROBE.0, PROBE.1)
            + self.options.replicas.map_or(Duration::ZERO, |replicas| replicas.timeout)
    }
}

/// A connection, and the [`RuntimeConnection`] that it belongs to.
#[derive(Clone, Debug)]
pub(crate) struct Route {
    pub(crate) runtime: Arc<RuntimeConnection>,
    pub(crate) connection: Arc<Connection>,
}

type Opening = watch::Receiver<Option<Result<Arc<Connection>, Arc<Failure>>>>;

/// The connection to one server from one runtime. See the [states](self).
pub(crate) struct RuntimeConnection {
    target: Arc<Target>,
    runtime: Handle,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    current: Option<(Endpoint, Arc<Connection>)>,
    /// The connection that is being opened, for all requests that wait for one.
    opening: Option<Opening>,
    /// The time at which the last try to open a connection failed.
    refused: Option<Instant>,
}

impl State {
    fn was_refused(&self) -> bool {
        self.refused.is_some_and(|refused| refused.elapsed() < REST)
    }
}

impl RuntimeConnection {
    /// Returns `true` if a connection is open or being opened. A watch whose sender is gone was opened by a runtime
    /// that ended.
    fn is_used(&self) -> bool {
        let state = self.state.lock();
        // Kept also while the connection is only being opened: its entry would be made anew, and a second one be
        // opened.
        let opening = state.opening.as_ref().is_some_and(|opening| opening.has_changed().is_ok());
        opening || state.current.as_ref().is_some_and(|(_, connection)| !connection.is_ended())
    }

    /// Returns the connection and its server, if it is open.
    fn open_connection(&self) -> Option<(Endpoint, Arc<Connection>)> {
        self.state.lock().current.as_ref().filter(|(_, open)| !open.is_ended()).cloned()
    }

    /// Returns `true` if no connection could be opened a moment ago.
    fn was_refused(&self) -> bool {
        self.state.lock().was_refused()
    }

    /// Opens a connection in the background, unless one is open, or could not be opened a moment ago.
    fn prepare(self: &Arc<Self>) {
        let mut state = self.state.lock();
        let is_open = state.current.as_ref().is_some_and(|(_, connection)| !connection.is_ended());
        // Ahead of its use, and so not worth a log-in that was refused a moment ago.
        if !is_open && !state.was_refused() {
            self.open(&mut state);
        }
    }

    /// Returns another connection than this one; `None` if no other can be opened in time.
    async fn replacement(
        self: &Arc<Self>,
        of: &Arc<Connection>,
        patience: Duration,
    ) -> Option<Arc<Connection>> {
        let mut opening = {
            let mut state = self.state.lock();
            match &state.current {
                // Another request has had it replaced already.
                Some((_, connection)) if !connection.is_ended() && !Arc::ptr_eq(connection, of) => {
                    return Some(Arc::clone(connection));
                }
                _ => self.open(&mut state),
            }
        };
        let opened = within(patience, opening.wait_for(Option::is_some)).await?.ok()?;
        opened.as_ref()?.as_ref().ok().cloned()
    }

    /// Returns the open connection, or waits for the next to be opened.
    async fn connection(self: &Arc<Self>, patience: Duration) -> Result<Arc<Connection>, Failure> {
        // Looked up and marked as opening under one lock, so that all requests of the runtime share one connection.
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
            // Each waiter gets a failure of its own, without the source, which cannot be shared.
            Ok(Some(Err(failure))) => Err(Failure::new(failure.kind(), failure.message().to_owned())),
            _ => Err(Failure::unavailable("the runtime that opened the connection is gone")),
        }
    }

    /// Opens a connection in the background, unless one is being opened already. The requests that wait for it may all
    /// be dropped: the next one finds it open.
    fn open(self: &Arc<Self>, state: &mut State) -> Opening {
        // A sender that is gone without a value belongs to a task whose runtime ended: opening starts again.
        if let Some(opening) = &state.opening
            && opening.has_changed().is_ok()
        {
            return opening.clone();
        }
        let (done, opening) = watch::channel(None);
        let this = Arc::clone(self);
        self.runtime.spawn(async move {
            let opened = guard_opening(this.target.open()).await.and_then(|opened| opened);
            // The new connection is in place before the old one is retired, so that the requests that return unsent
            // from there find this one.
            let (mut state, mut before) = (this.state.lock(), None);
            state.opening = None;
            // A success clears it: the server accepts connections again.
            state.refused = opened.is_err().then(Instant::now);
            let result = opened.map_err(Arc::new).map(|(endpoint, connection)| {
                before = state.current.replace((endpoint, Arc::clone(&connection)));
                connection
            });
            drop(state);
            // After the state is unlocked, since the waiters that are woken lock it. `send_replace` works without
            // waiters, too.
            done.send_replace(Some(result));
            if let Some((_, before)) = before {
                before.retire();
            }
        });
        state.opening = Some(opening.clone());
        opening
    }

    /// Probes a connection whose caller was dropped without an answer. A connection that does not answer the probe
    /// either is replaced as soon as another one can be opened. Until then, and for the withdrawals that have to follow
    /// on it, it stays in use.
    pub(crate) fn doubt(self: &Arc<Self>, connection: &Arc<Connection>, patience: Duration) {
        let (this, connection) = (Arc::clone(self), Arc::clone(connection));
        self.runtime.spawn(async move {
            // The connection may have been replaced meanwhile, by another probe or by its end. Then there is nothing to
            // do.
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

#[cfg(test)]
mod tests;
