//! The backend, and the handle of its users.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use dlock_core::backend::notify::Channels;
use dlock_core::backend::{
    Administration, Attempt, Backend, BatchAttempt, BoxedFuture, Capabilities, ClaimRequest, Finding, Forced,
    LockId, Mode, Occupancy, RequestClock, ServerAddress, Turns, boxed,
};
use dlock_core::{Error, Failure, Holder, Key, Operation, keeper};
use etcd_client::{Compare, CompareOp, ResponseHeader, Txn};
use futures_util::future::try_join_all;

use crate::administration::{self, Which};
use crate::answer::Answer;
use crate::claim::EtcdClaim;
use crate::config::EtcdBuilder;
use crate::diagnosis;
use crate::error::{LEASE_GONE, configure};
use crate::names::number_key;
use crate::proof::prove;
use crate::servers::{PATIENCE, Servers};
use crate::shared::Shared;
use crate::watch::Watching;

/// The time after which a waiter asks by itself, although the servers notify it of changes.
const SAFETY_NET: Duration = Duration::from_secs(5);
/// The most locks of one transaction, which may have 128 operations.
const MOST: usize = 25;

/// Fair locks on etcd, each on a lease of its own.
///
/// ```no_run
/// # async fn example() -> Result<(), dlock_core::Error> {
/// use dlock_core::Locks;
/// use dlock_etcd::Etcd;
///
/// let locks = Locks::new(Etcd::connect("etcd://127.0.0.1/").await?);
/// let guard = locks.lock("room_7").acquire().await?;
/// guard.release().await?;
/// # Ok(()) }
/// ```
///
/// | URL | servers |
/// |---|---|
/// | `etcd://[user:password@]host[:port],host[:port][/prefix]` | a server or a cluster; the port is 2379 if none is given |
/// | `etcd+tls://...` | a server or a cluster over TLS, verified (feature `tls`) |
///
/// Clones share their connections, which dlock's own thread drives.
#[derive(Clone)]
pub struct Etcd(Arc<Shared>);

impl Etcd {
    /// Connects with the default settings.
    ///
    /// # Errors
    ///
    /// As [`EtcdBuilder::connect`].
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe.
    pub async fn connect(url: &str) -> Result<Self, Error> {
        Self::builder(url).connect().await
    }

    /// Returns a builder, for settings that are not the defaults.
    pub fn builder(url: &str) -> EtcdBuilder {
        EtcdBuilder::new(url)
    }

    /// Lists the queue of `key`: its holders first, then its waiters, also those of other clients.
    ///
    /// ```no_run
    /// # async fn example(etcd: dlock_etcd::Etcd) -> Result<(), dlock_core::Error> {
    /// for (place, who) in etcd.queue("room_7").await?.iter().enumerate() {
    ///     println!("{place}: {who}");
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidKey`](dlock_core::ErrorKind::InvalidKey),
    /// [`ErrorKind::Unavailable`](dlock_core::ErrorKind::Unavailable), and
    /// [`ErrorKind::Denied`](dlock_core::ErrorKind::Denied) when the user may not read the keys.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe.
    pub async fn queue(&self, key: &str) -> Result<Vec<Holder>, Error> {
        let look = async { administration::places(&self.0.servers, &Key::new(key)?, Which::All).await };
        look.await
            .map(|places| places.holders)
            .map_err(|failure| Error::new(Operation::Inspect, failure).on("etcd"))
    }
}

impl EtcdBuilder {
    /// Connects.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`](dlock_core::ErrorKind::InvalidConfig) when a setting or the URL cannot work,
    /// [`ErrorKind::Denied`](dlock_core::ErrorKind::Denied) when the servers refuse the credentials, and
    /// [`ErrorKind::Unavailable`](dlock_core::ErrorKind::Unavailable) when none answers. No error contains a password.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe.
    pub async fn connect(self) -> Result<Etcd, Error> {
        let etcd = self.build()?;
        let asked = etcd.clone();
        let answer = keeper::anywhere(async move { asked.ping().await }).await;
        answer.and_then(|answer| answer).map_err(configure)?;
        Ok(etcd)
    }

    /// Creates the backend without a connection: its first request makes one.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`](dlock_core::ErrorKind::InvalidConfig) when a setting or the URL cannot work.
    pub fn build(self) -> Result<Etcd, Error> {
        let servers = Arc::new(Servers::new(self.check().map_err(configure)?));
        let channels = Channels::new(Watching(Arc::downgrade(&servers)));
        Ok(Etcd(Arc::new(Shared { servers, channels, turns: Turns::default() })))
    }
}

impl Backend for Etcd {
    type Claim = EtcdClaim;

    fn name(&self) -> &'static str {
        "etcd"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::basic()
            .with_fencing()
            .with_fairness()
            .with_notifications(SAFETY_NET)
            .with_durability()
            .with_sharing()
            .with_downgrading()
            .with_permits()
            .with_leaving()
    }

    fn server_address(&self) -> Option<ServerAddress> {
        ServerAddress::in_url(&self.0.servers.config.place())
    }

    fn lock_id(&self, key: &Key) -> LockId {
        let config = &self.0.servers.config;
        LockId::new(config.place(), number_key(&config.prefix, key))
    }

    fn claim(&self, request: ClaimRequest) -> EtcdClaim {
        EtcdClaim::new(Arc::clone(&self.0), request, RequestClock::new(self.clock()))
    }

    async fn attempt_all(&self, claims: &mut [&mut EtcdClaim]) -> Result<BatchAttempt, Failure> {
        if claims.len() > MOST || claims.iter().any(|claim| claim.request.mode != Mode::Exclusive) {
            return Ok(BatchAttempt::Separately);
        }
        try_join_all(claims.iter_mut().map(|claim| claim.ensure_lease())).await?;
        let created = |key: &str| Compare::create_revision(key, CompareOp::Equal, 0);
        let (mut when, mut then, mut reads) = (Vec::new(), Vec::new(), Vec::new());
        for claim in claims.iter() {
            // A batch holds nothing while it waits, so that it stands in no queue.
            when.push(created(&claim.directory()).with_prefix());
            when.push(created(&claim.number_key));
            then.push(claim.put());
            reads.extend(claim.reads());
        }
        let txn = Txn::new().when(when).and_then(then).or_else(reads);
        let limit = claims.iter().map(|claim| claim.request.request_timeout).min().unwrap_or(PATIENCE);
        let (leases, flights): (Vec<_>, Vec<_>) = claims.iter_mut().map(|claim| claim.parts()).unzip();
        let leases = leases.into_iter().flatten().collect();
        let answer = match prove(&self.0.servers, limit, txn, leases, flights).await {
            Err(failure) if failure.kind() == LEASE_GONE => {
                claims.iter_mut().for_each(|claim| claim.doubts_lease());
                return Err(Failure::unknown("the lease of a claim has ended meanwhile"));
            }
            answer => answer?,
        };
        if answer.succeeded() {
            let revision = answer.header().map_or(0, ResponseHeader::revision);
            return Ok(BatchAttempt::Granted(claims.iter_mut().map(|claim| claim.alone(revision)).collect()));
        }
        let answers: Vec<_> = claims.iter().map(|claim| Answer::of(&answer, &claim.number_key)).collect();
        // Of all of them before any is judged: a key that nobody knows of would not be withdrawn.
        for (claim, of_claim) in claims.iter_mut().zip(&answers) {
            if let Some(at) = of_claim.find(&claim.key) {
                claim.stands(&of_claim.entries[at]);
            }
        }
        let stands = |(claim, answer): (&&mut EtcdClaim, &Answer)| answer.find(&claim.key).is_some();
        let is_part = !claims.iter().zip(&answers).all(stands);
        let mut grants = Vec::with_capacity(claims.len());
        let mut taken = None;
        for (place, (claim, of_claim)) in claims.iter_mut().zip(&answers).enumerate() {
            match of_claim.find(&claim.key) {
                // An earlier attempt was carried out, and a key of it is gone: the others would be in the way of this
                // batch itself.
                Some(_) if is_part => claim.remove().await?,
                Some(at) => match claim.judge(of_claim, at)? {
                    Attempt::Granted(grant) => grants.push(grant),
                    Attempt::Busy(busy) => return Ok(BatchAttempt::Busy { place, busy }),
                },
                // It is free: another one is in the way.
                None if of_claim.is_empty() => {}
                None => taken = taken.or(Some(place)),
            }
        }
        if let Some(place) = taken {
            let claim = &mut claims[place];
            if claim.request.waits {
                claim.listen(claim.directory(), None)?;
            }
            return Ok(BatchAttempt::Busy { place, busy: claim.missing(&answers[place])? });
        }
        if grants.len() < claims.len() {
            return Err(Failure::unknown("some of the keys of the batch were deleted"));
        }
        Ok(BatchAttempt::Granted(grants))
    }

    async fn inspect(&self, key: &Key) -> Result<Option<Holder>, Failure> {
        Ok(administration::places(&self.0.servers, key, Which::Holding).await?.holders.into_iter().next())
    }

    async fn occupancy(&self, key: &Key) -> Result<Occupancy, Failure> {
        administration::places(&self.0.servers, key, Which::Holding).await
    }

    fn administration(&self) -> Option<&dyn Administration> {
        Some(self)
    }

    async fn diagnose(&self) -> Result<Vec<Finding>, Failure> {
        diagnosis::diagnose(&self.0.servers).await
    }

    async fn close(&self) {
        self.0.channels.close();
        self.0.servers.close();
    }
}

impl Administration for Etcd {
    fn holders(&self) -> BoxedFuture<'_, Result<Vec<(Key, Holder)>, Failure>> {
        boxed(administration::holders(&self.0.servers))
    }

    fn force_release(&self, key: Key, seen: Option<Vec<Holder>>) -> BoxedFuture<'_, Result<Forced, Failure>> {
        boxed(async move { administration::force(&self.0.servers, &key, seen.as_deref()).await })
    }

    fn waiters(&self, key: Key) -> Option<BoxedFuture<'_, Result<Vec<Holder>, Failure>>> {
        Some(boxed(async move {
            Ok(administration::places(&self.0.servers, &key, Which::Waiting).await?.holders)
        }))
    }

    fn resize(&self, key: Key, permits: u32) -> BoxedFuture<'_, Result<Option<u32>, Failure>> {
        boxed(async move { administration::resize(&self.0.servers, &key, permits).await })
    }
}

impl fmt::Debug for Etcd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Etcd").field("servers", &self.0.servers.config.place()).finish_non_exhaustive()
    }
}
