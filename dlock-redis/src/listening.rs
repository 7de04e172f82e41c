//! The connection on which a client is notified of releases.
//!
//! dlock publishes on channels that every server forwards. On a cluster from Redis 7 on, Redisson publishes on sharded
//! channels, which only the master of the slot serves, unless it is configured not to. A client that shares locks with
//! Redisson there is subscribed to both kinds.

mod shards;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use dlock_core::Failure;
use dlock_core::backend::notify::{Connection, Event, Source};
use dlock_core::backend::tell;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use redis::aio::PubSubStream;
use redis::{PushInfo, PushKind, Value};
use tokio::sync::mpsc;

use self::shards::{Sharded, Shards};
use crate::error::{Fault, refusal};
use crate::servers::{MessageConnection, Servers};

/// The longest message that is read as a text.
const LONGEST: usize = 64;

/// The source of connections that are listened to.
pub(crate) struct Listening {
    servers: Arc<Servers>,
    /// `true` if Redisson may publish on sharded channels.
    sharded: bool,
    /// `true` once a warning was logged that the user may not subscribe.
    said: Arc<AtomicBool>,
}

impl Listening {
    pub(crate) fn new(servers: &Arc<Servers>, sharded: bool) -> Self {
        Self { servers: Arc::clone(servers), sharded, said: Arc::default() }
    }
}

/// One connection, or on a cluster with sharded channels several, that messages are read from.
pub(crate) struct ListeningConnection {
    line: MessageConnection,
    pushes: mpsc::UnboundedReceiver<PushInfo>,
    /// The stream of messages, if the protocol is RESP2.
    messages: Option<PubSubStream>,
    shards: Option<Shards>,
    commands: FuturesUnordered<BoxFuture<'static, Done>>,
    said: Arc<AtomicBool>,
}

/// The outcome of a command.
enum Done {
    Subscribed(Vec<Arc<str>>, Result<(), Fault>, Option<Sharded>),
    Sharded(Sharded),
    Left(Result<(), Fault>),
}

impl Source for Listening {
    type Connection = ListeningConnection;

    async fn open(&self) -> Result<ListeningConnection, Failure> {
        let (push, pushes) = mpsc::unbounded_channel();
        // On a cluster, any of its servers: each forwards plain messages, and a random choice spreads the listeners.
        let endpoint = self.servers.any().await?;
        // One sender for all connections: the end of any of them then ends this listening as a whole, and the next one
        // begins with subscriptions that are known.
        let (line, messages) = self.servers.opener().listen(&endpoint, push.clone()).await?;
        // Sharded channels need RESP3: a connection in RESP2 that is subscribed can do nothing else.
        let shards = (self.sharded && messages.is_none()).then(|| Shards::new(&self.servers, push));
        let (commands, said) = (FuturesUnordered::new(), Arc::clone(&self.said));
        Ok(ListeningConnection { line, pushes, messages, shards, commands, said })
    }

    fn broken(&self) {
        self.servers.distrust();
    }
}

impl Connection for ListeningConnection {
    async fn subscribe(&mut self, channels: &[Arc<str>]) -> Result<(), Failure> {
        match &mut self.shards {
            Some(shards) => {
                for channel in channels {
                    let (line, names) = (self.line.clone(), vec![Arc::clone(channel)]);
                    let sharding = shards.subscribe(channel);
                    // Both at once. The plain one decides whether the channel is subscribed, and the sharded one is
                    // tried again.
                    let both = async move {
                        let (result, sharded) = tokio::join!(line.subscribe(&names), sharding);
                        Done::Subscribed(names, result, Some(sharded))
                    };
                    // Not awaited here: messages have to be read meanwhile, and the answer is an event of `next`.
                    self.commands.push(both.boxed());
                }
            }
            None => {
                let (line, names) = (self.line.clone(), channels.to_vec());
                let subscribing = async move {
                    let result = line.subscribe(&names).await;
                    Done::Subscribed(names, result, None)
                };
                self.commands.push(subscribing.boxed());
            }
        }
        Ok(())
    }

    async fn unsubscribe(&mut self, channels: &[Arc<str>]) -> Result<(), Failure> {
        let (line, names) = (self.line.clone(), channels.to_vec());
        // A message that comes before the answer finds no listener in `Channels`, and is dropped there.
        self.commands.push(async move { Done::Left(line.unsubscribe(&names).await) }.boxed());
        for leaving in self.shards.iter_mut().flat_map(|shards| shards.unsubscribe(channels)) {
            self.commands.push(leaving.map(Done::Left).boxed());
        }
        Ok(())
    }

    async fn next(&mut self) -> Result<Event, Failure> {
        loop {
            // Each branch is cancel-safe: both channels keep what was not received, and a command that was not finished
            // stays in the set.
            let event = tokio::select! {
                Some(push) = self.pushes.recv() => self.pushed(push)?,
                message = next_of(&mut self.messages) => {
                    let message = message.ok_or_else(broken)?;
                    Some(message_event(message.get_channel_name().to_owned(), message.get_payload_bytes()))
                }
                Some(done) = self.commands.next(), if !self.commands.is_empty() => self.done(done)?,
            };
            if let Some(event) = event {
                return Ok(event);
            }
        }
    }

    async fn ping(&mut self) -> Result<(), Failure> {
        let shards = self.shards.as_ref().map(Shards::lines).unwrap_or_default();
        let lines =
            std::iter::once(self.line.clone()).chain(shards.into_iter().map(MessageConnection::Resp3));
        let pings = lines.map(|line| async move { line.ping().await });
        futures_util::future::try_join_all(pings).await.map(drop).map_err(|_| broken())
    }
}

impl ListeningConnection {
    /// Reads one message of the server.
    fn pushed(&mut self, push: PushInfo) -> Result<Option<Event>, Failure> {
        // Also of a connection for sharded channels, which reports to this receiver, too.
        if push.kind == PushKind::Disconnection {
            return Err(broken());
        }
        let mut data = push.data.into_iter();
        // Names that are no text belong to no channel of ours, and a message of another form is not one of a release.
        let Some(Value::BulkString(channel)) = data.next() else { return Ok(None) };
        let Ok(channel) = String::from_utf8(channel) else { return Ok(None) };
        match push.kind {
            PushKind::Message | PushKind::SMessage => Ok(Some(match data.next() {
                Some(Value::BulkString(text)) => message_event(channel, &text),
                _ => Event::Message(channel),
            })),
            // The slot has moved to another server. A new connection finds it.
            PushKind::SUnsubscribe if self.shards.as_mut().is_some_and(|shards| shards.lost(&channel)) => {
                Err(broken())
            }
            _ => Ok(None),
        }
    }

    /// Reads the outcome of a command.
    fn done(&mut self, done: Done) -> Result<Option<Event>, Failure> {
        match done {
            Done::Subscribed(names, result, sharded) => {
                if let Some(sharded) = sharded {
                    self.sharded(sharded);
                }
                match result {
                    Ok(()) => Ok(Some(Event::Subscribed(names))),
                    // The connection itself is sound, and other channels may be allowed: only these names are denied.
                    Err(Fault::Refused(text)) if !refusal(&text).is_transient() => {
                        let reason = refusal(&text);
                        if !self.said.swap(true, Ordering::Relaxed) {
                            let what = "releases are not notified, and waiters have to ask for them";
                            tell(|| tracing::warn!({ dlock.reason = %reason }, "{what}"));
                        }
                        // A claim that cannot be notified asks again from time to time.
                        let failure = Failure::unavailable(reason.message().to_owned());
                        Ok(Some(Event::Denied(names, failure)))
                    }
                    Err(_) => Err(broken()),
                }
            }
            Done::Sharded(sharded) => Ok(self.sharded(sharded).map(|name| Event::Subscribed(vec![name]))),
            // A refused `UNSUBSCRIBE` leaves messages that nothing listens for, which costs their reading and no more.
            Done::Left(Ok(()) | Err(Fault::Refused(_))) => Ok(None),
            Done::Left(Err(_)) => Err(broken()),
        }
    }

    /// Notes the outcome of a subscription to a sharded channel, and tries again where that may help. Returns the
    /// channel if it is subscribed.
    fn sharded(&mut self, sharded: Sharded) -> Option<Arc<str>> {
        let shards = self.shards.as_mut()?;
        match shards.settle(sharded, &self.said) {
            shards::Settled::Subscribed(channel) => return Some(channel),
            shards::Settled::Again(again) => self.commands.push(again.map(Done::Sharded).boxed()),
            shards::Settled::Left(leaving) => self.commands.push(leaving.map(Done::Left).boxed()),
            shards::Settled::Nothing => {}
        }
        None
    }
}

/// Reads a message: a wake-up without a text, or a text for a waiter in the queue.
fn message_event(channel: String, text: &[u8]) -> Event {
    match std::str::from_utf8(text) {
        // Any client may publish on a channel: a longer text names no waiter, and only wakes.
        Ok(text) if !text.is_empty() && text.len() <= LONGEST => Event::Text(channel, text.to_owned()),
        _ => Event::Message(channel),
    }
}

/// Returns the next message of the stream, and waits for ever if there is none.
async fn next_of(messages: &mut Option<PubSubStream>) -> Option<redis::Msg> {
    match messages {
        Some(messages) => messages.next().await,
        None => std::future::pending().await,
    }
}

fn broken() -> Failure {
    Failure::unavailable("the connection that listens for releases was closed")
}
