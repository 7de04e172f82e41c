//! The backend.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use dlock_core::backend::{Backend, BatchAttempt, Capabilities, ClaimRequest, LockId};
use dlock_core::{Error, Failure, Fence, Holder, Key, Operation, Result, Token};

use crate::administration;
use crate::claim::{self, RedisClaim};
use crate::config::{Config, RedisBuilder, Replicas};
use crate::connection::{Servers, Untracked};
use crate::error::Fault;
use crate::keys::{self, Namer, Names};
use crate::scripts::{self, Answer, Request, Step};
use crate::subscription::Hub;

/// How long a question outside of a lock may take.
const QUESTION: Duration = Duration::from_secs(5);
/// Waiters are told of releases; this often they ask in case a message was lost.
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
/// | `rediss://...` | the same over TLS, verified (feature `tls`) |
/// | `redis+unix:///path[?db=1&user=u&pass=p]`, `unix:///path` | one server on this host |
/// | `redis+sentinel://[user:password@]host[:port],host[:port]/service[/db]` | the master the sentinels name |
/// | `redis+cluster://[user:password@]host[:port],host[:port]` | a cluster |
/// | `rediss+sentinel://`, `rediss+cluster://` | the same over TLS |
///
/// Clones share connections. A connection belongs to the runtime that opened it; releases of dropped guards and
/// renewals have one of their own, on dlock's own thread.
#[derive(Clone)]
pub struct Redis(Arc<Shared>);

/// What the claims of a backend share.
pub(crate) struct Shared {
    pub(crate) servers: Arc<Servers>,
    /// The servers and the database, the same in all processes that are configured alike.
    place: String,
    pub(crate) hub: Hub,
    pub(crate) replicas: Option<Replicas>,
    pub(crate) connect_timeout: Duration,
    pub(crate) namer: Namer,
    /// Marks this client in the owner fields, as Redisson's do.
    client: String,
}

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

    /// For settings that are not the defaults.
    pub fn builder(url: &str) -> RedisBuilder {
        RedisBuilder::new(url)
    }

    pub(crate) fn new(config: Config) -> Result<Self, Failure> {
        let servers = Arc::new(Servers::new(&config));
        servers.watch()?;
        Ok(Self(Arc::new(Shared {
            hub: Hub::new(&servers),
            place: config.target.place(),
            servers,
            replicas: config.replicas,
            connect_timeout: config.connect_timeout,
            namer: Namer::new(&config.prefix, config.counters, config.cluster)?,
            client: client_id()?,
        })))
    }

    /// Asks the server for a sign of life, and whether this user may run scripts.
    pub(crate) async fn ping(&self) -> Result<()> {
        self.ask(0, &scripts::introduction()).await.map(drop).map_err(configure)
    }

    /// Writes `value` to `key` unless a higher fence has written to it before; whether it did.
    ///
    /// The highest fence that was accepted is kept in [`fence_key(key)`](crate::fence_key). Only writes that go through
    /// this, or through a [`fenced_script`](crate::fenced_script), are protected from stale holders.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), dlock_core::Error> {
    /// # let redis = dlock_redis::Redis::connect("redis://127.0.0.1/").await?;
    /// let locks = dlock_core::Locks::new(redis.clone());
    /// let guard = locks.lock("stock").acquire().await?;
    /// if let Some(fence) = guard.fence() {
    ///     let written = redis.fenced_set("stock:42", "17", fence).await?;
    ///     assert!(written, "somebody else has taken over");
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unknown`](dlock_core::ErrorKind::Unknown) when the answer did not come; writing the same again
    /// is safe. Other kinds as for a lock.
    ///
    /// # Cancel safety
    ///
    /// When dropped, the value may still be written.
    pub async fn fenced_set(&self, key: &str, value: impl AsRef<[u8]> + Send, fence: Fence) -> Result<bool> {
        let command = crate::fenced::set(key, value.as_ref(), fence);
        match self.ask(keys::slot_of(key), &command).await {
            Ok(reply) => Ok(reply == redis::Value::Int(1)),
            Err(failure) => Err(Error::new(Operation::Hold, failure).on("redis")),
        }
    }

    /// One command that is no lock's.
    async fn ask(&self, slot: u16, command: &redis::Cmd) -> Result<redis::Value, Failure> {
        let asked = tokio::time::timeout(QUESTION, self.0.servers.ask(slot, QUESTION, command)).await;
        asked.unwrap_or_else(|_| Err(Failure::unknown(format!("no answer within {QUESTION:?}"))))
    }
}

impl Shared {
    pub(crate) fn owner(&self, token: &Token) -> Arc<str> {
        [&self.client, ":", &token.to_hex()].concat().into()
    }

    pub(crate) fn names(&self, key: &Key) -> Arc<Names> {
        Arc::new(self.namer.names(key))
    }
}

impl Backend for Redis {
    type Claim = RedisClaim;

    fn name(&self) -> &'static str {
        "redis"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::basic().with_fencing().with_notifications(SAFETY_NET).with_administration()
    }

    fn lock_id(&self, key: &Key) -> LockId {
        LockId::new(&self.0.place, self.0.namer.names(key).lock)
    }

    fn claim(&self, request: ClaimRequest) -> RedisClaim {
        RedisClaim::new(Arc::clone(&self.0), request)
    }

    async fn attempt_all(&self, claims: &mut [&mut RedisClaim]) -> Result<BatchAttempt, Failure> {
        claim::attempt_all(&self.0, claims).await
    }

    async fn inspect(&self, key: &Key) -> Result<Option<Holder>, Failure> {
        let request = Request { names: self.0.names(key), owner: "".into(), step: Step::Inspect };
        let mut untracked = Untracked;
        let looking = self.0.servers.carry_out(&request, QUESTION, &mut untracked);
        let reply = tokio::time::timeout(QUESTION, looking)
            .await
            .unwrap_or_else(|_| Err(Failure::unavailable(format!("no answer within {QUESTION:?}"))))?;
        match reply.answer {
            Answer::Done(_) => Ok(None),
            Answer::Busy { left, who, fence } => Ok(Some(holder(who.as_deref(), fence, left))),
            _ => Err(Fault::Cut("the reply makes no sense".into()).into_failure()),
        }
    }

    async fn holders(&self) -> Result<Vec<(Key, Holder)>, Failure> {
        administration::holders(&self.0).await
    }

    async fn force_release(&self, key: &Key) -> Result<bool, Failure> {
        let (slot, command) = administration::force(&self.0.names(key));
        Ok(self.ask(slot, &command).await? == redis::Value::Int(1))
    }

    async fn close(&self) {
        self.0.hub.close();
        self.0.servers.close();
    }
}

impl fmt::Debug for Redis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Redis").field("servers", &self.0.servers).finish_non_exhaustive()
    }
}

/// The holder by what is stored with the lock: our own line, or another library's owner field.
pub(crate) fn holder(who: Option<&str>, fence: Option<u64>, left: Option<Duration>) -> Holder {
    let mut holder = who.map(Holder::parse).unwrap_or_default();
    if holder == Holder::default() {
        holder.label = who.map(str::to_owned);
    }
    holder.fence = fence.map(Fence::new);
    holder.expires_in = left;
    holder
}

pub(crate) fn configure(failure: Failure) -> Error {
    Error::new(Operation::Configure, failure).on("redis")
}

/// A random UUID in text.
fn client_id() -> Result<String, Failure> {
    let mut bytes = *Token::random()?.as_bytes();
    bytes[6] = (bytes[6] & 0x0f) | 0x40;
    bytes[8] = (bytes[8] & 0x3f) | 0x80;
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_id_is_a_version_4_uuid() {
        let id = client_id().unwrap();
        let lengths: Vec<usize> = id.split('-').map(str::len).collect();
        assert_eq!(lengths, [8, 4, 4, 4, 12]);
        assert_eq!(&id[14..15], "4");
        assert!("89ab".contains(&id[19..20]), "{id}");
        assert_ne!(id, client_id().unwrap());
    }

    #[test]
    fn holders_of_other_libraries_are_shown_by_their_owner() {
        let left = Some(Duration::from_secs(3));
        let ours = holder(Some("host=a pid=5 since=1"), Some(7), left);
        assert_eq!(
            (ours.host.as_deref(), ours.label.as_deref(), ours.fence),
            (Some("a"), None, Some(Fence::new(7)))
        );
        let java = holder(Some("0a1b:17"), None, left);
        assert_eq!((java.label.as_deref(), java.fence, java.expires_in), (Some("0a1b:17"), None, left));
        assert_eq!(holder(None, None, None), Holder::default());
    }
}
