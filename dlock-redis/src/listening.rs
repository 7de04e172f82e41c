//! The connection on which a client is notified of releases.
//!
//! Messages of dlock come over any server. On a cluster from Redis 7 on, Redisson's come on sharded channels, over the
//! master of the slot, unless it is configured not to shard: where locks are shared with it, both kinds are listened
//! to.

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

/// What is read of a message at the most.
const LONGEST: usize = 64;

/// Opens such connections.
pub(crate) struct Listening {
    servers: Arc<Servers>,
    /// Whether others may publish on sharded channels.
    sharded: bool,
    /// Whether it was said that the user may not listen.
    said: Arc<AtomicBool>,
}

impl Listening {
    pub(crate) fn new(servers: &Arc<Servers>, sharded: bool) -> Self {
        Self { servers: Arc::clone(servers), sharded, said: Arc::default() }
    }
}

pub(crate) struct ListeningConnection {
    line: MessageConnection,
    pushes: mpsc::UnboundedReceiver<PushInfo>,
    /// Where messages come by RESP2.
    messages: Option<PubSubStream>,
    shards: Option<Shards>,
    commands: FuturesUnordered<BoxFuture<'static, Done>>,
    said: Arc<AtomicBool>,
}

/// What came of a command.
enum Done {
    Subscribed(Vec<Arc<str>>, Result<(), Fault>, Option<Sharded>),
    Sharded(Sharded),
    Left(Result<(), Fault>),
}

impl Source for Listening {
    type Connection = ListeningConnection;

    async fn open(&self) -> Result<ListeningConnection, Failure> {
        let (push, pushes) = mpsc::unbounded_channel();
        let endpoint = self.servers.any().await?;
        let (line, messages) = self.servers.opener().listen(&endpoint, push.clone()).await?;
        // Sharded channels need a protocol in which a connection can do more than listen.
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
                    let both = async move {
                        let (result, sharded) = tokio::join!(line.subscribe(&names), sharding);
                        Done::Subscribed(names, result, Some(sharded))
                    };
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
        self.commands.push(async move { Done::Left(line.unsubscribe(&names).await) }.boxed());
        for leaving in self.shards.iter_mut().flat_map(|shards| shards.unsubscribe(channels)) {
            self.commands.push(leaving.map(Done::Left).boxed());
        }
        Ok(())
    }

    async fn next(&mut self) -> Result<Event, Failure> {
        loop {
            let event = tokio::select! {
                Some(push) = self.pushes.recv() => self.pushed(push)?,
                message = next_of(&mut self.messages) => {
                    let message = message.ok_or_else(broken)?;
                    Some(heard(message.get_channel_name().to_owned(), message.get_payload_bytes()))
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
    fn pushed(&mut self, push: PushInfo) -> Result<Option<Event>, Failure> {
        if push.kind == PushKind::Disconnection {
            return Err(broken());
        }
        let mut data = push.data.into_iter();
        let Some(Value::BulkString(channel)) = data.next() else { return Ok(None) };
        let Ok(channel) = String::from_utf8(channel) else { return Ok(None) };
        match push.kind {
            PushKind::Message | PushKind::SMessage => Ok(Some(match data.next() {
                Some(Value::BulkString(text)) => heard(channel, &text),
                _ => Event::Message(channel),
            })),
            // The slot belongs to another server now.
            PushKind::SUnsubscribe if self.shards.as_mut().is_some_and(|shards| shards.lost(&channel)) => {
                Err(broken())
            }
            _ => Ok(None),
        }
    }

    fn done(&mut self, done: Done) -> Result<Option<Event>, Failure> {
        match done {
            Done::Subscribed(names, result, sharded) => {
                if let Some(sharded) = sharded {
                    self.sharded(sharded);
                }
                match result {
                    Ok(()) => Ok(Some(Event::Subscribed(names))),
                    Err(Fault::Refused(text)) if !refusal(&text).is_transient() => {
                        let reason = refusal(&text);
                        if !self.said.swap(true, Ordering::Relaxed) {
                            let what = "releases are not notified, and waiters have to ask for them";
                            tell(|| tracing::warn!({ dlock.reason = %reason }, "{what}"));
                        }
                        // Whoever may not listen asks from time to time.
                        let failure = Failure::unavailable(reason.message().to_owned());
                        Ok(Some(Event::Denied(names, failure)))
                    }
                    Err(_) => Err(broken()),
                }
            }
            Done::Sharded(sharded) => Ok(self.sharded(sharded).map(|name| Event::Subscribed(vec![name]))),
            Done::Left(Ok(()) | Err(Fault::Refused(_))) => Ok(None),
            Done::Left(Err(_)) => Err(broken()),
        }
    }

    /// Takes note of what came of a subscription to a sharded channel, which is tried again where that may help; the
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

/// Reads a message: a bare wake-up, or a text for a waiter in line.
fn heard(channel: String, text: &[u8]) -> Event {
    match std::str::from_utf8(text) {
        Ok(text) if !text.is_empty() && text.len() <= LONGEST => Event::Text(channel, text.to_owned()),
        _ => Event::Message(channel),
    }
}

async fn next_of(messages: &mut Option<PubSubStream>) -> Option<redis::Msg> {
    match messages {
        Some(messages) => messages.next().await,
        None => std::future::pending().await,
    }
}

fn broken() -> Failure {
    Failure::unavailable("the connection that listens for releases was closed")
}
