//! Sharded channels: each is subscribed at the master of its slot.
//!
//! | a channel is | in `wanted` | in `leaving` | at `SUNSUBSCRIBE` from the server |
//! |---|---|---|---|
//! | not wanted | | | nothing |
//! | being subscribed | `None` | | a new connection is opened: the slot has moved |
//! | subscribed | the connection | | a new connection is opened: the slot has moved |
//! | being left | | listed | is not listed any more: that is the answer |

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

/// The shortest and the longest pause between two tries to subscribe.
const PAUSE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

/// The sharded channels of one client.
pub(super) struct Shards {
    reach: Reach,
    /// The channels that are wanted, each with the connection on which it is subscribed by now.
    wanted: HashMap<Arc<str>, Option<MultiplexedConnection>>,
    /// The channels that are being left, whose end the server has not confirmed yet.
    leaving: Vec<Arc<str>>,
    /// `true` if the servers have no sharded channels, or the user may not use them.
    absent: bool,
}

/// The connections to the masters, and the way to open more.
#[derive(Clone)]
struct Reach {
    servers: Arc<Servers>,
    push: mpsc::UnboundedSender<PushInfo>,
    lines: Arc<Mutex<HashMap<Endpoint, Arc<OnceCell<MultiplexedConnection>>>>>,
}

/// The outcome of a subscription.
pub(super) struct Sharded {
    channel: Arc<str>,
    pause: Duration,
    result: Result<MultiplexedConnection, NotSharded>,
}

enum NotSharded {
    /// There are no sharded channels, so that it was not tried.
    Absent,
    Refused(String),
    /// The master could not be reached, or did not answer.
    Unreached,
}

/// The consequence of an outcome.
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

    /// Subscribes to a channel.
    pub(super) fn subscribe(&mut self, channel: &Arc<str>) -> BoxFuture<'static, Sharded> {
        let channel = Arc::clone(channel);
        if self.absent {
            let result = Err(NotSharded::Absent);
            return std::future::ready(Sharded { channel, pause: PAUSE.0, result }).boxed();
        }
        // Listed before the command is sent: a `SUNSUBSCRIBE` by which the server reports a moved slot may come before
        // the outcome is read.
        self.wanted.insert(Arc::clone(&channel), None);
        self.reach.clone().subscribe(channel, Duration::ZERO).boxed()
    }

    /// Ends the subscriptions to these channels, as far as they are subscribed by now. A subscription that is under way
    /// is ended when its outcome arrives.
    pub(super) fn unsubscribe(
        &mut self,
        channels: &[Arc<str>],
    ) -> Vec<BoxFuture<'static, Result<(), Fault>>> {
        // An entry without a connection goes too: `settle` finds it missing when the outcome arrives, and leaves then.
        let wanted = channels.iter().filter_map(|channel| self.wanted.remove_entry(channel));
        let subscribed: Vec<_> = wanted.filter_map(|(channel, line)| Some((channel, line?))).collect();
        subscribed.into_iter().map(|(channel, line)| self.leave(channel, line)).collect()
    }

    fn leave(
        &mut self,
        channel: Arc<str>,
        line: MultiplexedConnection,
    ) -> BoxFuture<'static, Result<(), Fault>> {
        // Listed before the command is sent, whose answer looks like the message about a slot that has moved.
        self.leaving.push(Arc::clone(&channel));
        async move { asked(line, &command("SUNSUBSCRIBE", &channel)).await }.boxed()
    }

    /// Returns `true` if a channel that a server serves no more is still wanted. Notes the end of a channel that is
    /// being left.
    pub(super) fn lost(&mut self, channel: &str) -> bool {
        match self.leaving.iter().position(|leaving| **leaving == *channel) {
            Some(place) => {
                self.leaving.swap_remove(place);
                false
            }
            None => self.wanted.contains_key(channel),
        }
    }

    /// Returns the open connections.
    pub(super) fn lines(&self) -> Vec<MultiplexedConnection> {
        let lines = self.reach.lines.lock();
        lines.values().filter_map(|line| line.get().cloned()).collect()
    }

    /// Notes the outcome of a subscription, and decides what follows.
    pub(super) fn settle(&mut self, sharded: Sharded, said: &AtomicBool) -> Settled {
        let Sharded { channel, pause, result } = sharded;
        match (self.wanted.get_mut(&channel), result) {
            // The channel was left while it was being subscribed.
            (None, Ok(line)) => Settled::Left(self.leave(channel, line)),
            (Some(at), Ok(line)) => {
                *at = Some(line);
                Settled::Subscribed(channel)
            }
            (Some(_), Err(NotSharded::Refused(text))) if !passes(&text) => {
                self.absent = true;
                self.wanted.remove(&channel);
                // A cluster before Redis 7 has no sharded channels, and no client that publishes there: nothing is
                // missed.
                if !text.contains("nknown command") && !said.swap(true, Ordering::Relaxed) {
                    let reason = refusal(&text);
                    let what = "releases by Redisson are not notified, and waiters have to ask for them";
                    tell(|| tracing::warn!({ dlock.reason = %reason }, "{what}"));
                }
                Settled::Nothing
            }
            (Some(_), Err(NotSharded::Refused(_) | NotSharded::Unreached)) => {
                // The slot may have moved: the map is read again before the next try.
                self.reach.servers.distrust();
                Settled::Again(self.reach.clone().subscribe(channel, pause).boxed())
            }
            // A channel that was left, or that was never tried since there are no sharded channels.
            _ => Settled::Nothing,
        }
    }
}

impl Reach {
    /// Subscribes to a channel after a pause.
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

    /// Returns the connection to the master of the channel's slot. All channels of that master share it.
    async fn line(&self, channel: &str) -> Result<MultiplexedConnection, Failure> {
        // Looked up at each try, since the one before may have failed because the slot has moved.
        let node = self.servers.node(slot_of(channel), ANSWER).await?;
        let endpoint = node.endpoint().await?;
        let cell = {
            let mut lines = self.lines.lock();
            // The cell is shared before the connection is open: channels that are subscribed at one moment wait for one
            // opening. A cell is never emptied, since the end of its connection ends the whole listening.
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

/// Returns `true` if a refusal may pass: the slot is being moved, or the server is not ready.
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
