//! All backends of a program from its environment, and their shutdown.

use std::fmt;
use std::pin::Pin;
use std::time::Duration;

use dlock_core::{Error, Failure, Locks, LocksBuilder, Memory, Operation, Result};
use futures_util::future::join_all;
use tokio::time::Instant;

use crate::connect::{from_url, known_schemes};
use crate::registry::{self, Call};
use crate::variables::{Source, Variables, invalid, none_of, prefix_of, shown};

/// Connects to every backend that the environment names, and registers them all: the line with which a program starts.
///
/// | variable | what |
/// |---|---|
/// | `DLOCK_URL` | the URL of the default backend, for attributes that name none; its own name is `default` |
/// | `DLOCK_<NAME>_URL` | the URL of the backend for `backend = "name"`: `DLOCK_ZK_URL` for `"zk"`, `DLOCK_ORDERS_URL` for `"orders"` |
/// | `DLOCK_LEASE`, `DLOCK_WAIT`, ... | the options of all of them, see [`LocksBuilder::from_env`](crate::LocksBuilder::from_env) |
/// | `DLOCK_<NAME>_LEASE`, ... | the same for one of them, in place of that |
///
/// URLs are those of [`connect`](crate::connect). A variable that is empty counts as not set.
///
/// ```
/// use std::time::Duration;
/// use dlock::{Error, distributed_lock};
///
/// #[distributed_lock(key = "room_<id>", backend = "bookings")]
/// async fn book(id: u64) -> Result<u64, Error> {
///     Ok(id)
/// }
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Error> {
/// # const SET: [(&str, &str); 1] = [("DLOCK_BOOKINGS_URL", "memory:")];
/// // In the environment: DLOCK_BOOKINGS_URL=memory:
/// let backends = dlock::init()
/// #   .with_variables(SET)
///     .await?;
///
/// assert_eq!(book(7).await?, 7);
///
/// if let Err(late) = backends.shutdown(Duration::from_secs(10)).await {
///     eprintln!("{late}"); // an outage: what is left ends with its lease
/// }
/// # Ok(()) }
/// ```
///
/// # Names
///
/// The variable of a name has its ASCII letters in upper case, its digits, and `_` for each `-`, `_`, `.` and space.
/// Names with other characters have none. Whatever is registered here is found by every name with its variable:
/// `DLOCK_SHOP_ORDERS_URL` is that of `shop_orders`, as it is listed, and of `shop-orders`. A variable in another
/// spelling, such as `DLOCK_zk_URL` or `DLOCK_DEFAULT_URL`, is refused.
///
/// Without `DLOCK_URL` the default is the only backend, where there is one, or that of
/// [`set_default`](crate::set_default). Each variable makes [`Locks`] of its own, also where two URLs are equal: these
/// exclude each other, and a body under one waits for itself when it wants the same key of the other.
///
/// # All or nothing
///
/// The backends are connected to at the same time. When one of them fails, nothing is registered, the connections of
/// the others are closed, and the call may be repeated. With `connect=lazy` in its URL a backend that is away is no
/// failure. Once it has succeeded, a further call fails, since its names are taken.
///
/// # Tests
///
/// [`with_backend`](crate::with_backend) needs no call of this, and comes first where there was one. A test of the call
/// itself gives it [variables](Init::with_variables).
///
/// # Errors
///
/// Awaiting the returned value fails with an error that names every variable that is wrong, and no password:
///
/// * [`ErrorKind::InvalidConfig`](crate::ErrorKind::InvalidConfig) when no variable has a URL, when a variable, its
///   URL or an option is wrong, when the feature of a backend is not compiled in, or when a name or the default is
///   taken. What is wrong with names and options is found out before anything is connected to.
/// * [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable),
///   [`ErrorKind::QuorumNotReached`](crate::ErrorKind::QuorumNotReached),
///   [`ErrorKind::Denied`](crate::ErrorKind::Denied) and other kinds of [`connect`](crate::connect). Of several
///   failures that of the first which does not [pass by itself](crate::Error::is_retryable) counts.
///
/// # Cancel safety
///
/// Cancel-safe: when dropped, nothing is registered, and what was connected to is closed.
pub fn init() -> Init {
    Init { variables: None, only: None }
}

/// The backends that [`init`] is to connect to, and the variables to read: nothing happens until it is awaited.
#[must_use = "await it"]
pub struct Init {
    variables: Option<Vec<(String, String)>>,
    only: Option<Vec<String>>,
}

/// Shows names only: the values of variables may hold passwords.
impl fmt::Debug for Init {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = |variables: &Vec<(String, String)>| -> Vec<String> {
            variables.iter().map(|(name, _)| name.clone()).collect()
        };
        let only = |names: &Vec<String>| names.iter().map(|name| shown(name)).collect::<Vec<_>>().join(", ");
        f.debug_struct("Init")
            .field("variables", &self.variables.as_ref().map(names))
            .field("only", &format_args!("[{}]", self.only.as_ref().map_or_else(String::new, only)))
            .finish()
    }
}

impl Init {
    /// Takes these variables in place of those of the environment: from a file, or in a test. Variables that do not
    /// begin with `DLOCK_` are skipped. A variable that is given twice is an error, since only one of the two could
    /// count.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dlock::Error> {
    /// let file = "DLOCK_URL=memory:\nDLOCK_LEASE=10s";
    /// let variables = file.lines().filter_map(|line| line.split_once('='));
    /// let backends = dlock::init().with_variables(variables).await?;
    /// assert_eq!(backends.iter().count(), 1);
    /// # Ok(()) }
    /// ```
    pub fn with_variables<N: Into<String>, V: Into<String>>(
        mut self,
        variables: impl IntoIterator<Item = (N, V)>,
    ) -> Self {
        self.variables =
            Some(variables.into_iter().map(|(name, value)| (name.into(), value.into())).collect());
        self
    }

    /// Takes these backends alone, each of which has to have its variable, and leaves out others that are set:
    /// `default` is that of `DLOCK_URL`. So a program in an environment that many programs share connects only to what
    /// it uses, and does not start without it. The backends are listed by these names.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dlock::Error> {
    /// let set = [("DLOCK_SHOP_ORDERS_URL", "memory:"), ("DLOCK_AUDIT_URL", "redis://nowhere")];
    /// let backends = dlock::init().with_variables(set).only(["shop-orders"]).await?;
    /// assert!(dlock::registered("shop-orders").is_ok() && dlock::registered("audit").is_err());
    /// # drop(backends); Ok(()) }
    /// ```
    pub fn only<N: Into<String>>(mut self, names: impl IntoIterator<Item = N>) -> Self {
        self.only = Some(names.into_iter().map(Into::into).collect());
        self
    }

    async fn run(self) -> Result<Backends> {
        let calling = Call { takes_some: self.only.is_some(), is_given: self.variables.is_some() };
        // Noted before anything can fail, so that errors of later calls can say that `init` was called and has not
        // succeeded.
        registry::begin_initial();
        let variables = match &self.variables {
            Some(given) => Variables::given(given)?,
            None => Variables::of_process(),
        };
        let sources = match &self.only {
            Some(names) => variables.only(names)?,
            None => variables.all()?,
        };
        if sources.is_empty() {
            return Err(nothing_set());
        }
        // Names and options are checked before anything is connected to: these mistakes need no server to show.
        registry::check_initial(sources.iter().map(|source| &*source.name))?;
        check_options(&sources, &variables)?;
        let connected = join_all(sources.iter().map(|source| from_url(&source.url))).await;
        let (mut builders, mut failures) = (Vec::new(), Vec::new());
        for (source, result) in sources.iter().zip(connected) {
            match result {
                Ok(builder) => builders.push((source, builder)),
                Err(error) => failures.push((source.variable.clone(), error)),
            }
        }
        // Nothing is registered until all of them are connected and built. Connections are closed when they are
        // dropped.
        all_of(Operation::Configure, &failures)?;
        let mut backends = Vec::new();
        for (Source { name, variable, .. }, builder) in builders {
            let own = prefix_of(name).unwrap_or_default();
            let builder = builder.with_variables(&own, |variable| variables.get(variable));
            match builder.and_then(LocksBuilder::build) {
                Ok(locks) => backends.push((name.clone(), locks)),
                Err(error) => failures.push((variable.clone(), error)),
            }
        }
        all_of(Operation::Configure, &failures)?;
        registry::register_initial(&backends, calling)?;
        Ok(Backends(backends))
    }
}

impl IntoFuture for Init {
    type Output = Result<Backends>;
    type IntoFuture = Pin<Box<dyn Future<Output = Result<Backends>> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.run())
    }
}

/// The backends that [`init`] registered, for the end of the program.
///
/// Dropping this value changes nothing: the backends stay registered and go on as they are. A process that ends without
/// [`shutdown`](Self::shutdown) leaves what it holds to the leases, and others wait that long.
#[must_use = "shutdown() at the end of the program releases everything, so that nobody waits for its leases"]
#[derive(Debug)]
pub struct Backends(Vec<(String, Locks)>);

impl Backends {
    /// Returns each backend with its name, as for a probe that [pings](Locks::ping) them.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Locks)> {
        self.0.iter().map(|(name, locks)| (&**name, locks))
    }

    /// Drains all of them at the same time and shuts them down, in no longer than `timeout`.
    ///
    /// New acquires are refused. Bodies that run have half of the time to come to their end ([`Locks::drain`]), and may
    /// acquire for that what they need, of each of these backends. Whatever is left then is stopped and released in the
    /// rest of the time ([`Locks::shutdown`]). The names stay taken, and calls under them fail with
    /// [`ErrorKind::Closed`](crate::ErrorKind::Closed). Backends that were registered by hand are not touched.
    ///
    /// # Errors
    ///
    /// The error is one to log, as that of [`Locks::shutdown`]. It names every backend that failed, with the kind of
    /// the first:
    ///
    /// * [`ErrorKind::TimedOut`](crate::ErrorKind::TimedOut) when something was still under way after `timeout`; it
    ///   ends with its lease at the latest. That bodies were stopped is no error.
    /// * [`ErrorKind::Closed`](crate::ErrorKind::Closed) in a child made by `fork`, whose parent has the locks.
    ///
    /// # Cancel safety
    ///
    /// May be dropped and called again; acquires stay refused.
    pub async fn shutdown(&self, timeout: Duration) -> Result<()> {
        let started = Instant::now();
        // A body under one backend may need a lock of another, held or still to be taken: none is shut down before all
        // are drained. The result is ignored, since it would only say that bodies were late; those are stopped below.
        let _ = Locks::drain_all(self.0.iter().map(|(_, locks)| locks), timeout / 2).await;
        // The rest of the time is shared: all shut down at the same time.
        let left = timeout.saturating_sub(started.elapsed());
        let ends = join_all(self.0.iter().map(|(_, locks)| locks.shutdown(left))).await;
        let failed = self.0.iter().zip(ends).filter_map(|((name, _), end)| Some((name.clone(), end.err()?)));
        all_of(Operation::Shutdown, &failed.collect::<Vec<_>>())
    }
}

/// Checks the options of all backends, before any of them is connected to. A mistake that several of them have is
/// reported once.
fn check_options(sources: &[Source], variables: &Variables) -> Result<()> {
    let mut wrong: Vec<String> = Vec::new();
    for source in sources {
        let own = prefix_of(&source.name).unwrap_or_default();
        let of_one = Locks::builder(Memory::new()).take_variables(&own, |variable| variables.get(variable));
        for what in of_one {
            if !wrong.contains(&what) {
                wrong.push(what);
            }
        }
    }
    none_of(&wrong)
}

/// Returns the error of an environment that names no backend.
fn nothing_set() -> Error {
    invalid(format!(
        "neither DLOCK_URL nor any DLOCK_<NAME>_URL is set; set DLOCK_URL to where the locks are: \
         sqlite:///var/lib/app/locks.db for the processes of one host, the URL of a server for many hosts, memory: for a \
         try in one process; this build knows {}",
        known_schemes()
    ))
}

/// Returns one error for all failures, if there are any.
fn all_of(operation: Operation, failures: &[(String, Error)]) -> Result<()> {
    if failures.is_empty() { Ok(()) } else { Err(failed(operation, failures)) }
}

/// Returns one error for failures, each with the variable or the name that it belongs to. If one of them does not pass
/// by itself, its kind is chosen: a caller that retries while an error may pass must not retry then.
fn failed(operation: Operation, failures: &[(String, Error)]) -> Error {
    let lasting = failures.iter().find(|(_, error)| !error.is_retryable()).or(failures.first());
    let kind = lasting.map_or(dlock_core::ErrorKind::Unavailable, |(_, error)| error.kind());
    let texts: Vec<String> = failures.iter().map(|(of, error)| format!("{of}: {error}")).collect();
    Error::new(operation, Failure::new(kind, texts.join("; ")))
}

#[cfg(test)]
mod tests;
