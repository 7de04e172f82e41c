//! The state that the claims of one backend share.

use std::sync::Arc;
use std::time::Duration;

use dlock_core::backend::notify::Channels;
use dlock_core::backend::{Mode, Mutex, within};
use dlock_core::{ErrorKind, Failure, Token};
use redis::{Cmd, Value};
use tokio::sync::OnceCell;

use crate::command::{Question, Respondent};
use crate::config::{Config, Replicas};
use crate::error::is_unnamed;
use crate::format::Format;
use crate::format::rights::{self, USES};
use crate::keys::{Namer, Names};
use crate::listening::Listening;
use crate::request::{By, CallNumber};
use crate::servers::{Node, Servers};
use crate::tracking::Tracking;

/// The longest wait for the answer to a question that no claim asks.
const QUESTION: Duration = Duration::from_secs(5);
/// The longest wait for the answer to a question about missing rights.
const NAMING: Duration = Duration::from_millis(500);

/// The servers, the release channels, and the names and the format of locks.
pub(crate) struct Client {
    pub(crate) servers: Arc<Servers>,
    /// The servers and the database, written alike in all processes with the same configuration.
    pub(crate) place: String,
    pub(crate) channels: Channels,
    pub(crate) tracking: Arc<Tracking>,
    pub(crate) replicas: Option<Replicas>,
    pub(crate) connect_timeout: Duration,
    pub(crate) namer: Namer,
    pub(crate) format: Format,
    /// `true` if data of other programs may lie under the names of locks, since there is no prefix.
    pub(crate) among_data: bool,
    /// The uses of locks for which this user was seen to have the rights.
    tried: Mutex<[Arc<OnceCell<()>>; USES]>,
}

impl Client {
    /// Creates the client of a configuration. Connections are opened when they are needed.
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
        // Before the client exists, so that a client of sentinels that cannot follow them is never handed out.
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

    /// Asks the server for a sign of life, and for the rights of this user that locks need.
    pub(crate) async fn introduce(&self) -> Result<(), Failure> {
        let probe = self.namer.probe();
        // Without a prefix, the name of the probe could be that of another program's key, which must not be touched.
        let key = (!self.among_data).then_some(&probe);
        // By text first, which teaches the server the script; by hash then shows whether this user may run it so.
        for by in [By::Text, By::Hash] {
            self.look(probe.slot, |number| self.format.introduction(key, by, number)).await?;
        }
        let rights = |number| self.format.rights(&probe, self.among_data, number);
        has_all(self.look(probe.slot, rights).await?)
    }

    /// Asks one server for the rights of this user that locks need: each server of a cluster has users of its own.
    pub(crate) async fn rights_at(&self, node: &Node, patience: Duration) -> Result<(), Failure> {
        let probe = self.namer.probe();
        // Without the probe among the keys: its slot may belong to another server.
        let rights = [|number| self.format.rights(&probe, true, number)];
        // `patience` bounds both the wait for a connection, inside `ask_at`, and the answer.
        let asked = within(patience, self.servers.ask_at(node, patience, rights)).await;
        let missing =
            asked.unwrap_or_else(|| Err(Failure::unavailable("no answer"))).map(|mut all| all.pop());
        match missing? {
            Some(Ok(missing)) => has_all(missing),
            Some(Err(fault)) => Err(fault.into_failure()),
            // One call has one reply; without any, nothing is known to be missing.
            None => Ok(()),
        }
    }

    /// Returns `true` if this user is known to have the rights that locks of this mode need besides.
    pub(crate) fn is_tried(&self, mode: Mode, fair: bool) -> bool {
        self.tried(mode, fair).initialized()
    }

    /// Forgets that this user has the rights for locks of this mode, after one was taken away: they are checked again.
    pub(crate) fn try_anew(&self, mode: Mode, fair: bool) {
        let place = self.format.place(mode, fair);
        // A new cell, since a task may be asking by the old one: its answer is of before, and counts only for those
        // that wait for it.
        self.tried.lock()[place] = Arc::default();
    }

    fn tried(&self, mode: Mode, fair: bool) -> Arc<OnceCell<()>> {
        Arc::clone(&self.tried.lock()[self.format.place(mode, fair)])
    }

    /// Checks whether this user may use the commands that locks of this mode need besides. Asks the server once for all
    /// claims, and again only if a right was missing: a missing right would otherwise be noticed when the lock is
    /// renewed or released.
    pub(crate) async fn may_use(
        &self,
        names: &Names,
        (mode, fair): (Mode, bool),
        limit: Duration,
    ) -> Result<(), Failure> {
        let probe = self.namer.probe();
        let rights = |number| self.format.rights_of((mode, fair), &names.lock, &probe, number);
        let question = Question { slot: names.slot, respondent: Respondent::Any, call: &rights };
        let asking = async || {
            let asked = within(limit, self.servers.ask(&question, limit)).await;
            let missing =
                asked.unwrap_or_else(|| Err(Failure::unavailable(format!("no answer within {limit:?}"))));
            // The question changes nothing, so that a lost answer must not make the acquire's outcome unknown.
            has_all(missing.map_err(unchanged)?)
        };
        // The list is unlocked by then: only the cell is waited on, and a caller that is dropped leaves the question to
        // the next one.
        self.tried(mode, fair).get_or_try_init(asking).await.copied()
    }

    /// Returns the failure with the commands that the user may not use, if the server refused a script for one of them
    /// without a name (Redis before 7.2). Each of the two questions takes at most a quarter of `request_timeout`, which
    /// bounds the refused step: the refusal must not end as an unknown outcome.
    pub(crate) async fn named(
        &self,
        failure: Failure,
        names: &Names,
        (mode, fair): (Mode, bool),
        request_timeout: Duration,
    ) -> Failure {
        if !is_unnamed(&failure) {
            return failure;
        }
        let limit = NAMING.min(request_timeout / 4);
        let probe = self.namer.probe();
        let alone = |number| self.format.rights(&probe, true, number);
        let further = |number| match (mode, fair) {
            (Mode::Exclusive, false) => {
                let channel = self.format.channel(&probe, mode);
                rights::call(rights::FURTHER, &names.lock, (&probe.lock, &channel), number)
            }
            _ => self.format.rights_of((mode, fair), &names.lock, &probe, number),
        };
        let ask = async |call: &(dyn Fn(CallNumber) -> Cmd + Sync)| {
            let question = Question { slot: names.slot, respondent: Respondent::Any, call };
            let asked = within(limit, self.servers.ask(&question, limit)).await;
            asked.and_then(Result::ok).and_then(|missing| has_all(missing).err())
        };
        // Both questions only name what is missing. If neither finds anything, the right may have been granted since,
        // and the refusal itself is the best that is known.
        match ask(&alone).await {
            Some(named) => named,
            None => ask(&further).await.unwrap_or(failure),
        }
    }

    /// Sends a call that takes no lock to the master.
    pub(crate) async fn ask(
        &self,
        slot: u16,
        call: impl Fn(CallNumber) -> Cmd + Sync,
    ) -> Result<Value, Failure> {
        self.question(slot, Respondent::Master, call).await
    }

    /// Sends a call that changes nothing, which a replica may answer.
    pub(crate) async fn look(
        &self,
        slot: u16,
        call: impl Fn(CallNumber) -> Cmd + Sync,
    ) -> Result<Value, Failure> {
        self.question(slot, Respondent::Any, call).await
    }

    /// Sends a call that takes no lock, within a time limit.
    pub(crate) async fn question(
        &self,
        slot: u16,
        respondent: Respondent,
        call: impl Fn(CallNumber) -> Cmd + Sync,
    ) -> Result<Value, Failure> {
        let question = Question { slot, respondent, call: &call };
        let asked = within(QUESTION, self.servers.ask(&question, QUESTION)).await;
        asked.unwrap_or_else(|| Err(Failure::unknown(format!("no answer within {QUESTION:?}"))))
    }
}

/// Reads the list of missing commands, and returns a failure if there are any.
fn has_all(missing: Value) -> Result<(), Failure> {
    // A reply that is no list shows nothing that is missing; the step that needs the right would be refused.
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
    let (mut objects, mut grants) = (Vec::new(), Vec::new());
    for right in &missing {
        // A right to the probe's name stands for the names of all locks: the pattern of the prefix is to be granted.
        let (object, grant) = match right.split_once("%probe") {
            Some((before, _)) => (format!("{before}*"), format!("{before}*")),
            // A counter of fences has a name of its own.
            None if right.starts_with(['~', '&']) => (right.clone(), right.clone()),
            None => (right.clone(), format!("+{}", right.to_lowercase())),
        };
        // Lock, counter and channel of the probe may all lead to one pattern, which is named once.
        if !objects.contains(&object) {
            objects.push(object);
            grants.push(grant);
        }
    }
    let message = format!(
        "the user may not use {}; grant it by ACL SETUSER and the user's name, with {} behind; docs/backends/redis.md \
         lists all rights that are needed",
        objects.join(", "),
        grants.join(" ")
    );
    Err(Failure::new(ErrorKind::Denied, message))
}

/// Turns an unknown outcome into an unavailable server, for requests that change nothing.
pub(crate) fn unchanged(failure: Failure) -> Failure {
    match failure.kind() {
        ErrorKind::Unknown => Failure::unavailable(failure.message().to_owned()),
        _ => failure,
    }
}

/// Returns a random UUID as text, by which Redisson's clients name themselves.
fn client_id() -> Result<String, Failure> {
    let mut bytes = *Token::random()?.as_bytes();
    // The bits of version 4 and its variant, as in the ids of Redisson.
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
