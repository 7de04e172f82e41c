//! Sharded channels: each is listened to at the master of its slot.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use dlock_core::Failure;
use dlock_core::backend::{Mutex, sleep, tell};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use redis::aio::MultiplexedConnection;
use redis::{Cmd, PushInfo, Value};
use tokio::sync::{OnceCell, mpsc};

use crate::error::{Fault, refusal};
use crate::keys::slot_of;
use crate::servers::{ANSWER, Servers, in_time};
use crate::url::Endpoint;

/// The pauses between two tries to listen at a server.
const PAUSE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

/// The sharded channels of one client.
pub(super) struct Shards {
    reach: Reach,
    /// The channels that are wanted, and where they are listened to by now.
    wanted: HashMap<Arc<str>, Option<MultiplexedConnection>>,
    /// Those that are being left, whose last word is still to come.
    leaving: Vec<Arc<str>>,
    /// The servers have no sharded channels, or the user may not use them.
    absent: bool,
}

/// How to get to the masters.
#[derive(Clone)]
struct Reach {
    servers: Arc<Servers>,
    push: mpsc::UnboundedSender<PushInfo>,
    lines: Arc<Mutex<HashMap<Endpoint, Arc<OnceCell<MultiplexedConnection>>>>>,
}

/// What came of a subscription.
pub(super) struct Sharded {
    channel: Arc<str>,
    pause: Duration,
    result: Result<MultiplexedConnection, NotSharded>,
}

enum NotSharded {
    /// It was not tried.
    Absent,
    Refused(String),
    /// There is no connection at the moment.
    Unreached,
}

/// What follows from it.
pub(super) enum Settled {
    Subscribed(Arc<str>),
    Again(BoxFuture<'static, Sharded>),
    Left(BoxFuture<'static, Result<(), Fault>>),
    Nothing,
}

impl Shards {
    pub(super) fn new(servers: &Arc<Servers>, push: mpsc::UnboundedSender<PushInfo>) -> Self {
        let reach = Reach { servers: Arc::clone(servers), push, lines: Arc::default() };
        Self { reach, wanted: HashMap::new(), leaving: Vec::new(), absent: false }
    }

    /// Listens to a channel.
    pub(super) fn subscribe(&mut self, channel: &Arc<str>) -> BoxFuture<'static, Sharded> {
        let channel = Arc::clone(channel);
        if self.absent {
            let result = Err(NotSharded::Absent);
            return std::future::ready(Sharded { channel, pause: PAUSE.0, result }).boxed();
        }
        self.wanted.insert(Arc::clone(&channel), None);
        self.reach.clone().subscribe(channel, Duration::ZERO).boxed()
    }

    pub(super) fn unsubscribe(
        &mut self,
        channels: &[Arc<str>],
    ) -> Vec<BoxFuture<'static, Result<(), Fault>>> {
        let wanted = channels.iter().filter_map(|channel| self.wanted.remove_entry(channel));
        let subscribed: Vec<_> = wanted.filter_map(|(channel, line)| Some((channel, line?))).collect();
        subscribed.into_iter().map(|(channel, line)| self.leave(channel, line)).collect()
    }

    fn leave(
        &mut self,
        channel: Arc<str>,
        line: MultiplexedConnection,
    ) -> BoxFuture<'static, Result<(), Fault>> {
        self.leaving.push(Arc::clone(&channel));
        async move { asked(line, &command("SUNSUBSCRIBE", &channel)).await }.boxed()
    }

    /// Whether a channel that a server listens to no more is still wanted.
    pub(super) fn lost(&mut self, channel: &str) -> bool {
        match self.leaving.iter().position(|leaving| **leaving == *channel) {
            Some(place) => {
                self.leaving.swap_remove(place);
                false
            }
            None => self.wanted.contains_key(channel),
        }
    }

    /// The connections that there are.
    pub(super) fn lines(&self) -> Vec<MultiplexedConnection> {
        let lines = self.reach.lines.lock();
        lines.values().filter_map(|line| line.get().cloned()).collect()
    }

    pub(super) fn settle(&mut self, sharded: Sharded, said: &AtomicBool) -> Settled {
        let Sharded { channel, pause, result } = sharded;
        match (self.wanted.get_mut(&channel), result) {
            // Nobody waits for it any more.
            (None, Ok(line)) => Settled::Left(self.leave(channel, line)),
            (Some(at), Ok(line)) => {
                *at = Some(line);
                Settled::Subscribed(channel)
            }
            (Some(_), Err(NotSharded::Refused(text))) if !passes(&text) => {
                self.absent = true;
                self.wanted.remove(&channel);
                // A cluster before Redis 7 has none, and nobody who publishes there.
                if !text.contains("nknown command") && !said.swap(true, Ordering::Relaxed) {
                    let reason = refusal(&text);
                    let what = "releases by Redisson are not notified, and waiters have to ask for them";
                    tell(|| tracing::warn!({ dlock.reason = %reason }, "{what}"));
                }
                Settled::Nothing
            }
            (Some(_), Err(NotSharded::Refused(_) | NotSharded::Unreached)) => {
                self.reach.servers.distrust();
                Settled::Again(self.reach.clone().subscribe(channel, pause).boxed())
            }
            _ => Settled::Nothing,
        }
    }
}

impl Reach {
    async fn subscribe(self, channel: Arc<str>, pause: Duration) -> Sharded {
        sleep(pause).await;
        let result = match self.line(&channel).await {
            Ok(line) => match asked(line.clone(), &command("SSUBSCRIBE", &channel)).await {
                Ok(()) => Ok(line),
                Err(Fault::Refused(text)) => Err(NotSharded::Refused(text)),
                Err(_) => Err(NotSharded::Unreached),
            },
            Err(_) => Err(NotSharded::Unreached),
        };
        Sharded { channel, pause: (pause * 2).clamp(PAUSE.0, PAUSE.1), result }
    }

    /// The connection to the master of the channel's slot.
    async fn line(&self, channel: &str) -> Result<MultiplexedConnection, Failure> {
        let node = self.servers.node(slot_of(channel), ANSWER).await?;
        let endpoint = node.endpoint().await?;
        let cell = {
            let mut lines = self.lines.lock();
            Arc::clone(lines.entry(endpoint.clone()).or_default())
        };
        let push = self.push.clone();
        let open = async || {
            let opened = self.servers.opener().open(&endpoint, move |said| drop(push.send(said))).await?;
            Ok(opened.connection)
        };
        cell.get_or_try_init(open).await.cloned()
    }
}

/// Whether a refusal is one of this moment: of a slot that is being moved, or a server that is not ready.
fn passes(text: &str) -> bool {
    let fault = Fault::Refused(text.to_owned());
    fault.redirect().is_some() || refusal(text).is_transient()
}

fn command(name: &str, channel: &str) -> Cmd {
    let mut command = redis::cmd(name);
    command.arg(channel);
    command
}

async fn asked(mut line: MultiplexedConnection, command: &Cmd) -> Result<(), Fault> {
    in_time(async { line.send_packed_command(command).await.and_then(Value::extract_error).map(drop) }).await
}
