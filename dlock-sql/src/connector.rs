//! Opens connections: the one place that knows, and sees to, the state of a connection of dlock's own.
//!
//! | after | the next log-in |
//! |---|---|
//! | success | goes to the server |
//! | `Denied` | is answered by that for 100 ms, twice as long after each further one, 1 s at most |
//! | no room for a connection | goes to the server; requests take turns on what is open meanwhile |

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dlock_core::backend::{Mutex, MutexGuard, within};
use dlock_core::{ErrorKind, Failure, keeper};
use sqlx::pool::PoolOptions;
use sqlx::{ConnectOptions, Connection, Pool};

use crate::driver::{Conn, Driver, DriverOptions};
use crate::failure::{BROKEN, copy, unchanged};
use crate::table::TableName;

type Cause = Box<dyn std::error::Error + Send + Sync>;
type Asking = Pin<Box<dyn Future<Output = Result<String, Cause>> + Send>>;

/// Gives the password of the moment.
pub(crate) type Password = Arc<dyn Fn() -> Asking + Send + Sync>;

/// The source of connections.
pub struct Connector<S: Driver> {
    pub(crate) driver: DriverOptions<S>,
    /// The user's pool: its options of the moment count, and what it does to new connections.
    pub(crate) pool: Option<Pool<S::Database>>,
    pub(crate) password: Option<Password>,
    /// The table, for messages.
    pub(crate) table: TableName,
    pub(crate) limit: Duration,
    pub(crate) refused: Refused,
    pub(crate) room: Room,
}

/// The shortest and the longest rest after a log-in that was refused.
const REST: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(1));

/// A log-in that was refused: requests for a connection soon after it get that answer. A server may count those that
/// fail, and lock the user out for them.
#[derive(Default)]
pub(crate) struct Refused(Mutex<Option<(Instant, Duration, Failure)>>);

impl Refused {
    fn last(&self) -> MutexGuard<'_, Option<(Instant, Duration, Failure)>> {
        self.0.lock()
    }

    /// Returns the answer, while it counts.
    fn answer(&self) -> Option<Failure> {
        let last = self.last();
        let (at, rest, failure) = last.as_ref()?;
        // Kept when its time is over: the next refusal doubles its rest.
        (at.elapsed() < *rest).then(|| copy(failure))
    }

    /// Notes the outcome of a log-in.
    fn note(&self, failure: Option<&Failure>) {
        // Only a refusal counts: after any other failure the rest begins anew, since the server was not asked or not
        // reached.
        let mut last = self.last();
        *last = failure.filter(|failure| failure.kind() == ErrorKind::Denied).map(|failure| {
            let rest = last.as_ref().map_or(REST.0, |(_, rest, _)| (*rest * 2).min(REST.1));
            (Instant::now(), rest, copy(failure))
        });
    }
}

/// The room for one connection more on the server, as far as is known.
#[derive(Default)]
pub(crate) struct Room(Mutex<Lack>);

#[derive(Default)]
struct Lack {
    /// The moment at which it last opened none, since it had no room for it.
    since: Option<Instant>,
    /// Set once it has opened one since then.
    is_over: bool,
}

impl Room {
    fn last(&self) -> MutexGuard<'_, Lack> {
        self.0.lock()
    }

    fn note_lack(&self) {
        *self.last() = Lack { since: Some(Instant::now()), is_over: false };
    }

    /// Returns `true` if the server opened none a moment ago, no longer than this, and has opened none since.
    pub(crate) fn is_lacking(&self, moment: Duration) -> bool {
        let last = self.last();
        !last.is_over && last.since.is_some_and(|since| since.elapsed() < moment)
    }

    /// Returns `true` if the server opened none at some time after `begun`.
    pub(crate) fn was_lacking_after(&self, begun: Instant) -> bool {
        self.last().since.is_some_and(|since| since >= begun)
    }
}

impl<S: Driver> Connector<S> {
    /// Opens a connection of dlock's own within `limit`, on which a statement is a transaction by itself, and which can
    /// write. The calling runtime drives it, or dlock's own thread where that cannot.
    pub(crate) async fn open(self: &Arc<Self>) -> Result<Conn<S>, Failure> {
        self.may_log_in()?;
        let opening = || {
            let connector = Arc::clone(self);
            async move { connector.open_here().await }
        };
        self.logged_in(keeper::open(opening).await?)
    }

    /// Refuses to log in while the server has refused that a moment ago. Its outcome goes to
    /// [`logged_in`](Self::logged_in).
    pub(crate) fn may_log_in(&self) -> Result<(), Failure> {
        self.refused.answer().map_or(Ok(()), Err)
    }

    /// Notes the outcome of a log-in, and returns it.
    pub(crate) fn logged_in<T>(&self, opened: Result<T, Failure>) -> Result<T, Failure> {
        self.refused.note(opened.as_ref().err());
        // Only a success shows that there is room again. Any other failure says nothing of it.
        if opened.is_ok() {
            self.room.last().is_over = true;
        }
        opened
    }

    async fn open_here(&self) -> Result<Conn<S>, Failure> {
        let opening = async {
            let mut connection = match &self.pool {
                // This makes it ready as the user's own are.
                Some(_) => {
                    // Detached, since the pool would close it with itself, at the end of this statement.
                    self.pool_of_one().await?.acquire().await.map_err(|error| self.failure(error))?.detach()
                }
                None => self.options().await?.connect().await.map_err(|error| self.failure(error))?,
            };
            // Before the connection is lent for the first time: no statement runs on one of an unknown state.
            S::settle(&mut connection).await.map_err(|error| self.failure(error))?;
            Ok(connection)
        };
        within(self.limit, opening).await.unwrap_or_else(|| Err(self.late()))
    }

    /// Returns a pool whose one connection is made as dlock's own are, for the driver's things that want a pool.
    pub(crate) async fn pool_of_one(&self) -> Result<Pool<S::Database>, Failure> {
        let like = self.pool.as_ref().map_or_else(PoolOptions::new, |pool| pool.options().clone());
        // A listener keeps this pool, whose connection must not be closed for its age.
        let one = like.max_connections(1).min_connections(0).max_lifetime(None).idle_timeout(None);
        Ok(one.acquire_timeout(self.limit).connect_lazy_with(self.options().await?))
    }

    async fn options(&self) -> Result<DriverOptions<S>, Failure> {
        let options = match &self.pool {
            // Read at each opening: the program may give its pool other options, such as another password, at any time.
            Some(pool) => S::own(&pool.connect_options()),
            None => S::own(&self.driver),
        };
        let options = options.disable_statement_logging();
        // Asked for at each opening as well, for passwords that last for minutes.
        let Some(password) = &self.password else { return Ok(options) };
        let password = password().await.map_err(|cause| {
            Failure::unavailable("the function that was to give the password failed").with_source(cause)
        })?;
        Ok(S::with_password(options, &password))
    }

    pub(crate) fn failure(&self, error: sqlx::Error) -> Failure {
        // Noted before the error is judged: requests that wait for a connection look for one that is open instead.
        if S::has_no_room(&error) {
            self.room.note_lack();
        }
        match error {
            sqlx::Error::PoolTimedOut => self.late(),
            // For example a path that is too long for a socket.
            sqlx::Error::Io(ref cause) if cause.kind() == std::io::ErrorKind::InvalidInput => {
                Failure::invalid_config("no server can have the address or the socket of the URL")
                    .with_source(error)
            }
            error => match S::classify(error, &self.table).failure {
                // Nothing was sent on a connection that did not come about, so that its end leaves no outcome open.
                failure if failure.message() == BROKEN => unopened(&failure),
                failure => unchanged(failure),
            },
        }
    }

    fn late(&self) -> Failure {
        let why = if self.pool.is_some() {
            "; the pool's `after_connect` may have failed, see the log"
        } else {
            ""
        };
        Failure::unavailable(format!("no connection within {:?}{why}", self.limit))
    }
}

/// Makes the failure of a connection that did not come about, whose text was [`BROKEN`].
fn unopened(failure: &Failure) -> Failure {
    let what = "no connection came about; check the host, the port and what stands between";
    Failure::unavailable(copy(failure).message().replacen(BROKEN, what, 1))
}

/// Ends a connection in an orderly way, if the server goes along.
pub(crate) async fn end<C: Connection>(connection: C) {
    // An error changes nothing: dropping the connection closes its socket, and the server notices that a little later.
    let _ = within(Duration::from_secs(1), connection.close()).await;
}

impl<S: Driver> fmt::Debug for Connector<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The driver's options contain a password.
        f.debug_struct("Connector")
            .field("pool", &self.pool.is_some())
            .field("limit", &self.limit)
            .finish_non_exhaustive()
    }
}
