//! The backend and its public interface.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use dlock_core::backend::{
    Administration, Announcements, Backend, BatchAttempt, Capabilities, ClaimRequest, Finding, LockId,
    Occupancy, RequestClock, ServerAddress, boxed,
};
use dlock_core::{DataVersion, Error, Failure, Fence, Holder, Key, Operation, Result, VersionCheck, keeper};
use futures_util::FutureExt;

use crate::administration;
use crate::claim::{self, RedisClaim};
use crate::client::Client;
use crate::config::{Config, RedisBuilder};
use crate::diagnosis;
use crate::existing;
use crate::keys;
use crate::newer;

/// The interval at which waiters ask again, in case a notification was lost.
const SAFETY_NET: Duration = Duration::from_secs(1);

/// Locks on Redis: a single server, a master with replicas under Sentinel, or a Cluster.
///
/// ```no_run
/// # async fn example() -> Result<(), dlock_core::Error> {
/// use dlock_core::Locks;
/// use dlock_redis::Redis;
///
/// let locks = Locks::new(Redis::connect("redis://127.0.0.1/").await?);
/// let guard = locks.lock("room_7").acquire().await?;
/// guard.release().await?;
/// # Ok(()) }
/// ```
///
/// | URL | servers |
/// |---|---|
/// | `redis://[user:password@]host[:port][/db]` | one server |
/// | `rediss://...` | one server over TLS, verified (feature `tls`) |
/// | `redis+unix:///path[?db=1&user=u&pass=p]`, `unix:///path` | one server on this host |
/// | `redis+sentinel://[user:password@]host[:port],host[:port]/service[/db]` | the master that the sentinels name |
/// | `redis+cluster://[user:password@]host[:port],host[:port]` | a cluster |
/// | `rediss+sentinel://`, `rediss+cluster://` | sentinels and a cluster over TLS |
///
/// Clones share connections. A connection belongs to the runtime that opened it. Releases of dropped guards and
/// renewals have a connection of their own on dlock's own thread, which is opened as soon as a lock is granted. If a
/// runtime gets no connection, its requests go over one of another runtime.
#[derive(Clone)]
pub struct Redis(Arc<Client>);

impl Redis {
    /// Connects with the default settings.
    ///
    /// # Errors
    ///
    /// As [`RedisBuilder::connect`].
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe.
    pub async fn connect(url: &str) -> Result<Self> {
        Self::builder(url).connect().await
    }

    /// Returns a builder, for settings that are not the defaults.
    pub fn builder(url: &str) -> RedisBuilder {
        RedisBuilder::new(url)
    }

    /// Connects to the server of a client of the `redis` crate, as that client does.
    ///
    /// Takes its address, database, user and password, TLS settings and TCP settings, but not its connections: dlock
    /// opens its own, with its own timeouts, without Nagle's algorithm, and in RESP3 if the server speaks it.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use dlock_redis::Redis;
    ///
    /// let client = redis::Client::open("rediss://shop@cache.example/2")?;
    /// let redis = Redis::from_client(&client).with_prefix("shop:").connect().await?;
    /// # Ok(()) }
    /// ```
    pub fn from_client(client: &redis::Client) -> RedisBuilder {
        RedisBuilder::existing(existing::one(client))
    }

    /// Connects to a cluster by clients for some of its servers. The `redis` crate's `ClusterClient` shows none of its
    /// settings, so that the nodes that it was made of are needed.
    ///
    /// Takes the addresses of all, and for all servers of the cluster the settings of the first, as
    /// [`from_client`](Self::from_client) does.
    pub fn from_cluster_nodes(nodes: &[redis::Client]) -> RedisBuilder {
        RedisBuilder::existing(existing::cluster(nodes))
    }

    /// Connects to the master of `service` that these sentinels name.
    ///
    /// Takes the addresses of the sentinels' clients, and from the first of them how to connect to the sentinels.
    /// `server` says how to connect to the master, such as the client that `SentinelClient::get_client` returns; its
    /// address is not used.
    pub fn from_sentinels(
        sentinels: &[redis::Client],
        service: &str,
        server: &redis::Client,
    ) -> RedisBuilder {
        RedisBuilder::existing(existing::sentinels(sentinels, service, server))
    }

    fn new(config: Config) -> Result<Self, Failure> {
        Client::new(config).map(|client| Self(Arc::new(client)))
    }

    /// Asks the server for a sign of life, and for the rights that this user needs.
    async fn ping(&self) -> Result<()> {
        let client = Arc::clone(&self.0);
        let introduced = keeper::anywhere(async move { client.introduce().await });
        // Boxed: the futures of a program, which contain this one, would be too deep for the compiler.
        introduced.boxed().await.and_then(|introduced| introduced).map_err(configure)
    }

    /// Writes `value` to `key` unless a higher fence has written to it before. Returns `true` if it was written.
    ///
    /// The highest accepted fence is kept in [`fence_key(key)`](crate::fence_key). Only writes that go through this, or
    /// through a [`fenced_script`](crate::fenced_script), are protected from stale holders. A fence orders writers by
    /// their grants; where the data itself has a time or a number, and older data must not follow newer, see
    /// [`write_if_newer`](Self::write_if_newer).
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), dlock_core::Error> {
    /// # let redis = dlock_redis::Redis::connect("redis://127.0.0.1/").await?;
    /// let locks = dlock_core::Locks::new(redis.clone());
    /// let guard = locks.lock("stock").acquire().await?;
    /// if let Some(fence) = guard.fence() {
    ///     let written = redis.fenced_set("stock:42", "17", fence).await?;
    ///     assert!(written, "another holder has taken over");
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unknown`](dlock_core::ErrorKind::Unknown) when the answer did not come; writing the same again
    /// is safe. [`ErrorKind::Conflict`](dlock_core::ErrorKind::Conflict) when the key is written with versions. Other
    /// kinds as for a lock.
    ///
    /// # Cancel safety
    ///
    /// When dropped, the value may still be written.
    pub async fn fenced_set(&self, key: &str, value: impl AsRef<[u8]> + Send, fence: Fence) -> Result<bool> {
        let value = value.as_ref();
        let call = |number| crate::fenced::set(key, value, fence, number);
        match self.0.ask(keys::slot_of(key), call).await {
            Ok(redis::Value::Int(-1)) => Err(Error::new(Operation::Hold, newer::mixed(key)).on("redis")),
            Ok(reply) => Ok(reply == redis::Value::Int(1)),
            Err(failure) => Err(Error::new(Operation::Hold, failure).on("redis")),
        }
    }

    /// Writes `value` to `key` if its `version` is newer than all that were accepted before, in one atomic step: the
    /// order is that of the data, and not that of the grants.
    ///
    /// With a `fence`, both are checked in that step: the fence must not be lower than an earlier one, and the version
    /// must be higher. Pass `None` without a lock: the step itself keeps two writers apart. A refused write changes
    /// nothing, not even the fence that is kept.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), dlock_core::Error> {
    /// # let redis = dlock_redis::Redis::connect("redis://127.0.0.1/").await?;
    /// # let read_at = std::time::SystemTime::now();
    /// use dlock_core::{DataVersion, VersionCheck};
    ///
    /// match redis.write_if_newer("price:42", "17", DataVersion::at(read_at)?, None).await? {
    ///     VersionCheck::Accepted => {}
    ///     VersionCheck::AlreadyThere => {} // a repetition, or another writer came to the same version first
    ///     VersionCheck::Older { stored } => println!("{stored} is there already"),
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// The version, and the fence if there is one, are kept in [`fence_key(key)`](crate::fence_key), a hash, until it
    /// is deleted. A key is written with fences alone ([`fenced_set`](Self::fenced_set)), with versions alone, or with
    /// both; the first write decides. Programs with earlier versions of dlock are refused at a key with versions by the
    /// server's `WRONGTYPE`. There is no protection from writes in other ways (`SET`, `DEL`), from an eviction policy
    /// such as `allkeys-lru`, and from a failover that loses writes.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Lost`](dlock_core::ErrorKind::Lost) when the fence is stale, whatever the version.
    /// [`ErrorKind::Conflict`](dlock_core::ErrorKind::Conflict) when the key is written in another of the three ways.
    /// [`ErrorKind::Unknown`](dlock_core::ErrorKind::Unknown) when the answer did not come: write the same again, and
    /// [`VersionCheck::AlreadyThere`] says that it was written. Other kinds as for a lock.
    ///
    /// # Cancel safety
    ///
    /// When dropped, the value may still be written.
    pub async fn write_if_newer(
        &self,
        key: &str,
        value: impl AsRef<[u8]> + Send,
        version: DataVersion,
        fence: Option<Fence>,
    ) -> Result<VersionCheck> {
        let value = value.as_ref();
        let call = |number| newer::set(key, value, (version, fence), number);
        let reply = self.0.ask(keys::slot_of(key), call).await;
        reply
            .and_then(|reply| newer::answer(key, fence, &reply))
            .map_err(|failure| Error::new(Operation::Hold, failure).on("redis"))
    }
}

impl RedisBuilder {
    /// Connects, and asks the server for a sign of life.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`](dlock_core::ErrorKind::InvalidConfig) when a setting or the URL cannot work,
    /// [`ErrorKind::Denied`](dlock_core::ErrorKind::Denied) for a wrong password or missing rights, and
    /// [`ErrorKind::Unavailable`](dlock_core::ErrorKind::Unavailable) when no server answers. No error contains a
    /// password.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe.
    pub async fn connect(self) -> Result<Redis> {
        let redis = self.build()?;
        boxed(redis.ping()).await?;
        Ok(redis)
    }

    /// Creates the backend without a connection: it connects when it is first used.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`](dlock_core::ErrorKind::InvalidConfig) when a setting or the URL cannot work.
    pub fn build(self) -> Result<Redis> {
        self.check().and_then(Redis::new).map_err(configure)
    }
}

impl Backend for Redis {
    type Claim = RedisClaim;

    fn name(&self) -> &'static str {
        "redis"
    }

    fn capabilities(&self) -> Capabilities {
        let capabilities = Capabilities::basic()
            .with_fencing()
            .with_notifications(SAFETY_NET)
            .with_pipelining()
            .with_announcements();
        let (format, capabilities) = (&self.0.format, capabilities.with_permits());
        let capabilities = match format.has_readers() {
            true => capabilities.with_sharing().with_downgrading(),
            false => capabilities,
        };
        let capabilities =
            if format.has_line() { capabilities.with_fairness_on_request() } else { capabilities };
        match format.leaves() {
            true => capabilities
                .with_leaving()
                .with_handing_over()
                .with_handing_over_of_shares()
                .with_session_records(),
            false => capabilities,
        }
    }

    fn server_address(&self) -> Option<ServerAddress> {
        // The locks are not on the sentinels, nor on any one of a cluster's seeds.
        self.0.place.starts_with("redis://").then(|| ServerAddress::in_url(&self.0.place)).flatten()
    }

    fn lock_id(&self, key: &Key) -> LockId {
        LockId::new(&self.0.place, self.0.namer.names(key).lock)
    }

    fn claim(&self, request: ClaimRequest) -> RedisClaim {
        RedisClaim::new(Arc::clone(&self.0), request, RequestClock::new(self.clock()))
    }

    async fn attempt_all(&self, claims: &mut [&mut RedisClaim]) -> Result<BatchAttempt, Failure> {
        claim::attempt_all(&self.0, claims).await
    }

    async fn inspect(&self, key: &Key) -> Result<Option<Holder>, Failure> {
        administration::inspect(&self.0, key).await
    }

    async fn occupancy(&self, key: &Key) -> Result<Occupancy, Failure> {
        administration::occupancy(&self.0, key).await
    }

    async fn announce(&self, key: &Key) -> Result<(), Failure> {
        let names = self.0.namer.names(key);
        let announced = |number| self.0.format.announce(&names, number);
        self.0.ask(names.slot, announced).await.map(drop)
    }

    fn announcements(&self, key: &Key) -> Announcements {
        let channel = self.0.format.announced_channel(&self.0.namer.names(key));
        self.0.channels.listen(&channel).map_or_else(|_| Announcements::none(), Announcements::from)
    }

    fn administration(&self) -> Option<&dyn Administration> {
        Some(&*self.0)
    }

    async fn diagnose(&self) -> Result<Vec<Finding>, Failure> {
        diagnosis::diagnose(&self.0).await
    }

    async fn close(&self) {
        self.0.channels.close();
        self.0.servers.close();
    }
}

impl fmt::Debug for Redis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Redis").field("servers", &self.0.servers).finish_non_exhaustive()
    }
}

fn configure(failure: Failure) -> Error {
    Error::new(Operation::Configure, failure).on("redis")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(url: &str, key: &str) -> LockId {
        Redis::builder(url).build().unwrap().lock_id(&Key::new(key).unwrap())
    }

    /// Otherwise batches would take them in other orders, and the same lock twice.
    #[test]
    fn a_lock_has_one_id_however_its_servers_are_written() {
        for same in [
            &[
                "redis://a:6379/0",
                "redis://a",
                "redis://A/",
                "redis://u:p@a:6379?db=0",
                "redis://a?tracking=7",
            ][..],
            &["redis://a/1?prefix=shop:", "redis://a?prefix=shop:&db=1"],
            &["redis+sentinel://a,b:7/main/2", "redis+sentinel://B:7,a:26379/main/2"],
            &["redis+cluster://a,b:7", "redis+cluster://u:p@b:7,A:6379"],
        ] {
            for url in same {
                assert_eq!(id(url, "room"), id(same[0], "room"), "{url}");
            }
        }
    }

    #[test]
    fn locks_that_differ_have_ids_that_differ() {
        let urls = [
            "redis://a",
            "redis://b",
            "redis://a:7",
            "redis://a/1",
            "redis://a?prefix=shop:",
            "redis+unix:///a",
            "redis+unix:///A",
            "redis+sentinel://a/main",
            "redis+sentinel://a/other",
            "redis+sentinel://a/main/1",
            "redis+cluster://a",
            "redis+cluster://a,b",
        ];
        let ids = urls.iter().flat_map(|url| ["room", "Room"].map(|key| id(url, key)));
        let different: std::collections::HashSet<_> = ids.collect();
        assert_eq!(different.len(), urls.len() * 2, "{different:#?}");
    }
}
