//! Locks that are rows with a lease.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use dlock_core::backend::{
    Administration, Announcements, BoxedFuture, ClaimRequest, Finding, Forced, LockId, Occupancy,
    ServerAddress, boxed,
};
use dlock_core::{Backend, Capabilities, Error, Failure, Holder, Key, Operation, Result, keeper};
use sqlx::Pool;

use crate::diagnosis;
use crate::limits::QUESTION;
use crate::options::ServerOptions;
use crate::question::asked;
use crate::rows::{LeaseTable, RowClaim, Rows};

/// The pause between the attempts of a waiter that is notified of releases, in case a notification is lost.
const SAFETY_NET: Duration = Duration::from_secs(1);

/// Locks in a table of a database server: see [`Postgres`](crate::Postgres) and [`Mysql`](crate::Mysql).
///
/// Clones share everything, so that a clone can be kept for [`prune`](Self::prune).
pub struct LeaseRows<S: LeaseTable>(pub(crate) Arc<Rows<S>>);

impl<S: LeaseTable> LeaseRows<S> {
    /// Connects to the server that `url` names, where the table was [made](ServerOptions::migrate). The URL is
    /// `postgres://user:password@host:port/database` or `mysql://user:password@host:port/database`, with the parameters
    /// of [`ServerOptions::from_url`].
    ///
    /// # Errors
    ///
    /// As [`ServerOptions::from_url`] and [`ServerOptions::connect`].
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe.
    pub async fn connect(url: &str) -> Result<Self> {
        ServerOptions::from_url(url)?.connect().await
    }

    /// Creates locks in the table `dlock` of the database that `pool` leads to.
    ///
    /// Attempts go over connections of the pool. Renewals and releases never wait for one: they have up to two
    /// connections of their own, and waiting on PostgreSQL has a third. These are opened as the pool opens its own:
    /// with its options of that moment, and with its `after_connect`. Nothing is set on the pool's connections; one on
    /// which a statement is not a transaction by itself is refused.
    ///
    /// # Errors
    ///
    /// As [`ServerOptions::connect`].
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe.
    pub async fn from_pool(pool: &Pool<S::Database>) -> Result<Self> {
        ServerOptions::from_pool(pool).connect().await
    }

    /// Deletes the rows of keys that are free and whose last lease ended, or would have ended, more than `older_than`
    /// (at least a minute) ago, and returns how many. Fences go on growing: the table keeps the highest one. Needs the
    /// right to `DELETE`.
    ///
    /// # Errors
    ///
    /// As [`ServerOptions::connect`]. Some rows may have been deleted.
    ///
    /// # Cancel safety
    ///
    /// If dropped midway, some rows may have been deleted.
    pub async fn prune(&self, older_than: Duration) -> Result<u64> {
        let rows = Arc::clone(&self.0);
        let pruned = asked(async move { rows.prune(older_than).await });
        pruned.await.map_err(|failure| Error::new(Operation::Configure, failure).on(S::NAME))
    }
}

impl<S: LeaseTable> ServerOptions<S> {
    /// Connects, and checks the table and the rights. Makes nothing, unless the URL has `migrate=true`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`](dlock_core::ErrorKind::InvalidConfig) when a setting is out of its bounds, the
    /// database or the table is missing, the table is no lock table of this version, or TLS is not possible as wanted;
    /// [`ErrorKind::Denied`](dlock_core::ErrorKind::Denied) for a wrong password or missing rights;
    /// [`ErrorKind::Unavailable`](dlock_core::ErrorKind::Unavailable) when no server answers, or it can only be read.
    /// No error contains a password.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe.
    pub async fn connect(self) -> Result<LeaseRows<S>> {
        let connecting = async move {
            self.check_for_rows()?;
            let rows = Rows::start(self.open(true).await?)?;
            rows.ready(QUESTION).await?;
            Ok(LeaseRows(rows))
        };
        keeper::anywhere(connecting).await.and_then(|connected| connected).map_err(Self::refused)
    }

    /// Creates the backend without a connection: it connects, and checks the table and the rights, when it is first
    /// used, so that a program can start while the server is away. The table has to be named with its schema, on
    /// MariaDB and MySQL with its database: [`with_table`](Self::with_table).
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`](dlock_core::ErrorKind::InvalidConfig) when a setting is out of its bounds, or the
    /// table has no schema. What [`connect`](Self::connect) would have found is the error of what is done first.
    pub fn build(self) -> Result<LeaseRows<S>> {
        let building = || {
            self.check_for_rows()?;
            Rows::start(self.open_later(true)?).map(LeaseRows)
        };
        building().map_err(Self::refused)
    }

    fn check_for_rows(&self) -> Result<(), Failure> {
        match self.settings.fences {
            true => Ok(()),
            false => Err(Failure::invalid_config(
                "lease rows have fences; fences=false is for locks by sessions and locked rows",
            )),
        }
    }
}

impl<S: LeaseTable> Backend for LeaseRows<S> {
    type Claim = RowClaim<S>;

    fn name(&self) -> &'static str {
        S::NAME
    }

    fn capabilities(&self) -> Capabilities {
        let (shortest, longest) = S::POLLING;
        let basic = Capabilities::basic()
            .with_fencing()
            .with_leaving()
            .with_handing_over()
            .with_handing_over_of_shares()
            .with_fairness_on_request()
            .with_sharing()
            .with_downgrading()
            .with_permits()
            .with_session_records()
            .with_polling(shortest, longest);
        let is_told = self.0.connections.server().releases().is_some();
        if is_told { basic.with_notifications(SAFETY_NET).with_announcements() } else { basic }
    }

    fn server_address(&self) -> Option<ServerAddress> {
        ServerAddress::in_url(&self.0.connections.address())
    }

    fn lock_id(&self, key: &Key) -> LockId {
        self.0.lock_id(key)
    }

    fn claim(&self, request: ClaimRequest) -> RowClaim<S> {
        RowClaim::new(Arc::clone(&self.0), request)
    }

    async fn inspect(&self, key: &Key) -> Result<Option<Holder>, Failure> {
        let (rows, key) = (Arc::clone(&self.0), key.clone());
        asked(async move { rows.inspect(&key).await }).await
    }

    async fn occupancy(&self, key: &Key) -> Result<Occupancy, Failure> {
        let (rows, key) = (Arc::clone(&self.0), key.clone());
        asked(async move { rows.occupancy(&key).await }).await
    }

    async fn announce(&self, key: &Key) -> Result<(), Failure> {
        self.0.connections.announce(key).await
    }

    fn announcements(&self, key: &Key) -> Announcements {
        self.0.connections.announcements(key)
    }

    fn administration(&self) -> Option<&dyn Administration> {
        Some(self)
    }

    async fn diagnose(&self) -> Result<Vec<Finding>, Failure> {
        let rows = Arc::clone(&self.0);
        asked(async move { diagnosis::diagnose(&rows.connections).await }).await
    }

    async fn close(&self) {
        self.0.close().await;
    }
}

impl<S: LeaseTable> Administration for LeaseRows<S> {
    fn holders(&self) -> BoxedFuture<'_, Result<Vec<(Key, Holder)>, Failure>> {
        let rows = Arc::clone(&self.0);
        boxed(asked(async move { rows.holders().await }))
    }

    fn force_release(&self, key: Key, seen: Option<Vec<Holder>>) -> BoxedFuture<'_, Result<Forced, Failure>> {
        let rows = Arc::clone(&self.0);
        boxed(asked(async move { rows.force(&key, seen.as_deref()).await }))
    }

    fn resize(&self, key: Key, permits: u32) -> BoxedFuture<'_, Result<Option<u32>, Failure>> {
        let rows = Arc::clone(&self.0);
        boxed(asked(async move { rows.resize(&key, permits).await }))
    }
}

impl<S: LeaseTable> Clone for LeaseRows<S> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<S: LeaseTable> fmt::Debug for LeaseRows<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeaseRows").field("connections", &self.0.connections).finish()
    }
}
