//! Connections for messages about releases.

use std::sync::Arc;
use std::time::Duration;

use redis::aio::{MultiplexedConnection, PubSubSink};
use redis::{RedisResult, Value};

use crate::error::Fault;
use dlock_core::backend::within;

/// The longest wait for the answer to a command.
pub(crate) const ANSWER: Duration = Duration::from_secs(5);

/// A connection that is listened to, by its protocol.
#[derive(Clone)]
pub(crate) enum MessageConnection {
    Resp3(MultiplexedConnection),
    /// A connection that is used for messages only.
    Resp2(PubSubSink),
}

impl MessageConnection {
    /// Subscribes to these channels.
    pub(crate) async fn subscribe(&self, names: &[Arc<str>]) -> Result<(), Fault> {
        // The clone below shares the connection: commands of several callers may be under way on it at once.
        let names = texts(names);
        match self.clone() {
            Self::Resp3(mut line) => in_time(line.subscribe(names)).await,
            Self::Resp2(mut line) => in_time(line.subscribe(names)).await,
        }
    }

    /// Ends the subscriptions to these channels.
    pub(crate) async fn unsubscribe(&self, names: &[Arc<str>]) -> Result<(), Fault> {
        let names = texts(names);
        match self.clone() {
            Self::Resp3(mut line) => in_time(line.unsubscribe(names)).await,
            Self::Resp2(mut line) => in_time(line.unsubscribe(names)).await,
        }
    }

    /// Sends a ping. An answer of any kind, also a refusal, proves that the server is there.
    pub(crate) async fn ping(&self) -> Result<(), Fault> {
        let result = match self.clone() {
            Self::Resp3(mut line) => {
                in_time(async { line.send_packed_command(&redis::cmd("PING")).await.map(drop) }).await
            }
            // A connection in RESP2 that is subscribed accepts `PING` besides subscriptions, and answers it as a
            // message.
            Self::Resp2(mut line) => in_time(async { line.ping::<Value>().await.map(drop) }).await,
        };
        match result {
            Err(Fault::Refused(_)) => Ok(()),
            result => result,
        }
    }
}

/// Returns the answer to a command, or a fault if there is none in time.
pub(crate) async fn in_time(command: impl Future<Output = RedisResult<()>>) -> Result<(), Fault> {
    match within(ANSWER, command).await {
        Some(result) => result.map_err(Fault::of),
        // Not `Unsent`: the server may carry the command out yet.
        None => Err(Fault::Cut("no answer".into())),
    }
}

fn texts(names: &[Arc<str>]) -> Vec<&str> {
    names.iter().map(|name| &**name).collect()
}
