//! What the claims of one backend share.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use dlock_core::backend::notify::Channels;
use dlock_core::backend::{Mode, within};
use dlock_core::{ErrorKind, Failure, Key, Token};
use redis::{Cmd, Value};
use tokio::sync::OnceCell;

use crate::config::{Config, Replicas};
use crate::format::Format;
use crate::format::rights::USES;
use crate::keys::{Namer, Names};
use crate::listening::Listening;
use crate::request::{By, CallNumber};
use crate::servers::Servers;
use crate::tracking::Tracking;

/// How long a question outside of a lock may take.
const QUESTION: Duration = Duration::from_secs(5);

/// The servers, the channels that are listened to, and how locks are named and stored.
pub(crate) struct Client {
    pub(crate) servers: Arc<Servers>,
    /// The servers and the database, the same in all processes that are configured alike.
    pub(crate) place: String,
    pub(crate) channels: Channels,
    pub(crate) tracking: Arc<Tracking>,
    pub(crate) replicas: Option<Replicas>,
    pub(crate) connect_timeout: Duration,
    pub(crate) namer: Namer,
    pub(crate) format: Format,
    /// Whether data of others may lie under the names of locks: there is no prefix.
    pub(crate) among_data: bool,
    /// The uses of locks that this user was seen to have the rights for.
    tried: Mutex<[Arc<OnceCell<()>>; USES]>,
}

impl Client {
    pub(crate) fn new(config: Config) -> Result<Self, Failure> {
        let format = match config.redisson {
            true => Format::Redisson {
                client: client_id()?.into(),
                cluster: config.cluster,
                recipe: config.recipe,
            },
            false => Format::Plain { cluster: config.cluster },
        };
        let tracking = Tracking::new(config.tracked);
        let servers = Arc::new(Servers::new(&config, format.clone(), &tracking));
        servers.watch()?;
        Ok(Self {
            channels: Channels::new(Listening::new(&servers, config.cluster && config.redisson)),
            tracking,
            place: config.target.place(),
            servers,
            replicas: config.replicas,
            connect_timeout: config.connect_timeout,
            namer: Namer::new(&config.prefix, config.counters, config.cluster, config.redisson)?,
            format,
            among_data: config.prefix.is_empty(),
            tried: Default::default(),
        })
    }

    pub(crate) fn names(&self, key: &Key) -> Names {
        self.namer.names(key)
    }

    /// Asks the server whether it is there, and whether this user has the rights that are needed.
    pub(crate) async fn introduce(&self) -> Result<(), Failure> {
        let probe = self.namer.probe();
        let key = (!self.among_data).then_some(&probe);
        for by in [By::Text, By::Hash] {
            self.look(probe.slot, |number| self.format.introduction(key, by, number)).await?;
        }
        let rights = |number| self.format.rights(&probe, self.among_data, number);
        has_all(self.look(probe.slot, rights).await?)
    }

    /// Whether this user is known to have the rights that locks of this mode need besides.
    pub(crate) fn is_tried(&self, mode: Mode, fair: bool) -> bool {
        self.tried(mode, fair).initialized()
    }

    /// Has the rights for locks of this mode tried again before the next one: one of them was taken away.
    pub(crate) fn try_anew(&self, mode: Mode, fair: bool) {
        let place = self.format.place(mode, fair);
        self.tried.lock().unwrap_or_else(PoisonError::into_inner)[place] = Arc::default();
    }

    fn tried(&self, mode: Mode, fair: bool) -> Arc<OnceCell<()>> {
        Arc::clone(&self.tried.lock().unwrap_or_else(PoisonError::into_inner)[self.format.place(mode, fair)])
    }

    /// Asks the server, once for all until one is missing, whether this user may use the commands that locks of this
    /// mode need besides: one that is missing would be met only when the lock is renewed or released.
    pub(crate) async fn may_use(
        &self,
        names: &Names,
        (mode, fair): (Mode, bool),
        limit: Duration,
    ) -> Result<(), Failure> {
        let probe = self.namer.probe();
        let rights = |number| self.format.rights_of((mode, fair), &names.lock, &probe.lock, number);
        let asking = async || {
            let asked = within(limit, self.servers.ask(names.slot, (true, limit), rights)).await;
            let missing =
                asked.unwrap_or_else(|| Err(Failure::unavailable(format!("no answer within {limit:?}"))));
            has_all(missing.map_err(unchanged)?)
        };
        self.tried(mode, fair).get_or_try_init(asking).await.copied()
    }

    /// Sends a call that takes no lock.
    pub(crate) async fn ask(
        &self,
        slot: u16,
        call: impl Fn(CallNumber) -> Cmd + Sync,
    ) -> Result<Value, Failure> {
        self.question(slot, false, call).await
    }

    /// Sends a call that changes nothing, which a replica answers, too.
    pub(crate) async fn look(
        &self,
        slot: u16,
        call: impl Fn(CallNumber) -> Cmd + Sync,
    ) -> Result<Value, Failure> {
        self.question(slot, true, call).await
    }

    /// Sends a call that takes no lock, and which a replica answers, too, where it only `looks`.
    pub(crate) async fn question(
        &self,
        slot: u16,
        looks: bool,
        call: impl Fn(CallNumber) -> Cmd + Sync,
    ) -> Result<Value, Failure> {
        let asked = within(QUESTION, self.servers.ask(slot, (looks, QUESTION), call)).await;
        asked.unwrap_or_else(|| Err(Failure::unknown(format!("no answer within {QUESTION:?}"))))
    }
}

/// Reads which commands are missing.
fn has_all(missing: Value) -> Result<(), Failure> {
    let missing: Vec<String> = redis::from_redis_value(missing).unwrap_or_default();
    if missing.is_empty() {
        return Ok(());
    }
    let lacking: Vec<&str> = missing.iter().filter_map(|command| command.strip_prefix('!')).collect();
    if !lacking.is_empty() {
        let lacking = lacking.join(", ");
        let message = format!("the server has no {lacking}: it is too old, or they were renamed");
        return Err(Failure::new(ErrorKind::Unsupported, message));
    }
    let missing = missing.join(", ");
    let message =
        format!("the user may not use {missing}; docs/backends/redis.md lists the rights that are needed");
    Err(Failure::new(ErrorKind::Denied, message))
}

/// Nothing was to be changed, so that it does not matter whether it was carried out.
pub(crate) fn unchanged(failure: Failure) -> Failure {
    match failure.kind() {
        ErrorKind::Unknown => Failure::unavailable(failure.message().to_owned()),
        _ => failure,
    }
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
}
