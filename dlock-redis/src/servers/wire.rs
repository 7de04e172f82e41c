//! What goes over a connection, and what came back.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use dlock_core::backend::Entropy;
use futures_util::future::join_all;
use redis::aio::MultiplexedConnection;
use redis::{Cmd, Value};
use smallvec::{SmallVec, smallvec};

use crate::command::Command;
use crate::config::Replicas;
use crate::error::Fault;
use crate::format::Format;
use crate::request::{Answer, By, CallNumber, Request};
use crate::tracking::Tracking;

/// What came back for one request.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Reply {
    pub(crate) answer: Answer,
    /// How many replicas know what the request changed, where that was asked.
    pub(crate) acknowledged: u32,
}

/// What came back for each request of a call.
pub(super) type Replies = SmallVec<[Result<Reply, Fault>; 1]>;

/// How requests are put on the wire.
#[derive(Clone, Debug)]
pub(crate) struct WireOptions {
    pub(crate) format: Format,
    /// Whether requests for different locks may share a call: not on a cluster, where each lock has its slot.
    pub(crate) together: bool,
    pub(crate) replicas: Option<Replicas>,
    pub(crate) tracking: Arc<Tracking>,
}

/// The connection and how it is written to.
#[derive(Clone)]
pub(super) struct Wire {
    pub(super) connection: MultiplexedConnection,
    pub(super) options: WireOptions,
    calls: Arc<AtomicU32>,
}

impl Wire {
    pub(super) fn new(connection: MultiplexedConnection, options: WireOptions) -> Self {
        Self { connection, options, calls: Arc::new(AtomicU32::new(first_number())) }
    }

    fn number(&self) -> CallNumber {
        CallNumber(self.calls.fetch_add(1, Ordering::Relaxed))
    }

    /// Carries out a command, and again what the server refused of it: with the text of a script that it does not know.
    /// Not what `is_unwanted` by now.
    pub(super) async fn carry_out(
        &self,
        command: Command<'_>,
        asking: bool,
        is_unwanted: &(dyn Fn(usize) -> bool + Sync),
    ) -> Replies {
        // After a redirection by the text at once: the server has hardly seen it yet, and this is rare.
        let by = if asking { By::Text } else { By::Hash };
        let replies = self.send(command, by, asking).await;
        if asking || matches!(command, Command::Ask(_)) || replies.iter().all(Result::is_ok) {
            return replies;
        }
        Box::pin(self.repeat_refused(command, replies, is_unwanted)).await
    }

    async fn repeat_refused(
        &self,
        command: Command<'_>,
        mut replies: Replies,
        is_unwanted: &(dyn Fn(usize) -> bool + Sync),
    ) -> Replies {
        let mut unbatched = false;
        // The server refuses a whole call where this user has no right to one of its keys.
        for (code, by) in [("NOPERM", By::Hash), ("NOSCRIPT", By::Text)] {
            let refused: Vec<usize> = (0..replies.len())
                .filter(|index| matches!(&replies[*index], Err(fault) if fault.code() == Some(code)))
                // A request that was cancelled meanwhile may be about to withdraw, which must not be overtaken.
                .filter(|index| !is_unwanted(*index))
                .collect();
            match command {
                _ if refused.is_empty() => {}
                Command::Each(requests) if requests.len() > 1 => {
                    unbatched |= by == By::Hash;
                    let again: Vec<Request> = refused.iter().map(|index| requests[*index].clone()).collect();
                    let calls = again.chunks(if unbatched { 1 } else { again.len() });
                    let sent = join_all(calls.map(|calls| self.send(Command::Each(calls), by, false))).await;
                    for (index, reply) in refused.into_iter().zip(sent.into_iter().flatten()) {
                        replies[index] = reply;
                    }
                }
                _ if by == By::Text => replies = self.send(command, by, false).await,
                _ => {}
            }
        }
        replies
    }

    /// Sends a command once, and waits for what comes of it.
    async fn send(&self, command: Command<'_>, by: By, asking: bool) -> Replies {
        let replicas = self.options.replicas.filter(|_| command.grants());
        let together = self.options.together || command.answers() == 1;
        if !together || replicas.is_some() || asking {
            return Box::pin(self.send_several(command, by, (together, asking), replicas)).await;
        }
        let number = self.number();
        let call = command.call(&self.options.format, by, number);
        let reply = self.connection.clone().send_packed_command(&call).await.map_err(Fault::of);
        self.read(command, number, reply, 0)
    }

    /// Sends a command once, in several commands of the protocol, and waits for what comes of it.
    async fn send_several(
        &self,
        command: Command<'_>,
        by: By,
        (together, asking): (bool, bool),
        replicas: Option<Replicas>,
    ) -> Replies {
        let parts = match command {
            Command::Each(requests) if !together => requests.chunks(1).map(Command::Each).collect(),
            command => vec![command],
        };
        let parts: Vec<_> = parts.into_iter().map(|part| (self.number(), part)).collect();
        let calls = parts.iter().map(|(number, part)| part.call(&self.options.format, by, *number));
        match self.exchange(calls, asking, replicas).await {
            Ok((replies, acknowledged)) => {
                let read = |((number, part), reply)| self.read(part, number, Ok(reply), acknowledged);
                parts.into_iter().zip(replies).flat_map(read).collect()
            }
            Err(fault) => smallvec![Err(fault); command.answers()],
        }
    }

    fn read(
        &self,
        command: Command<'_>,
        number: CallNumber,
        reply: Result<Value, Fault>,
        acknowledged: u32,
    ) -> Replies {
        let result = reply.and_then(|reply| result_of(number, reply));
        let answers =
            result.and_then(|result| command.read(&self.options.format, result).ok_or_else(senseless));
        match answers {
            Ok(answers) => answers.into_iter().map(|answer| answered(answer, acknowledged)).collect(),
            Err(fault) => smallvec![Err(fault); command.answers()],
        }
    }

    /// Sends calls that take no lock, all at once.
    pub(super) async fn send_all(
        &self,
        calls: impl IntoIterator<Item = impl FnOnce(CallNumber) -> Cmd>,
    ) -> Result<Vec<Result<Value, Fault>>, Fault> {
        let numbered = calls.into_iter().map(|call| {
            let number = self.number();
            (number, call(number))
        });
        let (numbers, calls): (Vec<_>, Vec<_>) = numbered.unzip();
        let (replies, _) = self.exchange(calls, false, None).await?;
        let replies =
            numbers.into_iter().zip(replies).map(|(number, reply)| match result_of(number, reply) {
                Err(cut @ Fault::Cut(_)) => Err(cut),
                result => Ok(result),
            });
        replies.collect()
    }

    /// Puts calls on the wire, all at once. Returns the replies, and how many replicas know of the changes.
    async fn exchange(
        &self,
        calls: impl IntoIterator<Item = Cmd>,
        asking: bool,
        replicas: Option<Replicas>,
    ) -> Result<(Vec<Value>, u32), Fault> {
        let mut pipeline = redis::pipe();
        if asking {
            pipeline.cmd("ASKING");
        }
        for call in calls {
            pipeline.add_command(call);
        }
        if let Some(replicas) = replicas {
            // Behind the script and on the same connection: it tells of what was written on this connection only.
            let limit = u64::try_from(replicas.timeout.as_millis()).unwrap_or(u64::MAX);
            pipeline.cmd("WAIT").arg(replicas.count).arg(limit);
        }
        let count = pipeline.len();
        let mut connection = self.connection.clone();
        let mut replies = connection.send_packed_commands(&pipeline, 0, count).await.map_err(Fault::of)?;
        if replies.len() != count {
            return Err(senseless());
        }
        let acknowledged = match replicas.and_then(|_| replies.pop()) {
            Some(Value::Int(count)) => count.try_into().unwrap_or(0),
            _ => 0,
        };
        Ok((replies.split_off(usize::from(asking)), acknowledged))
    }
}

/// Connections begin anywhere, so that a reply of another one is hardly taken for one's own.
fn first_number() -> u32 {
    u32::try_from(Entropy::new().below(1 << 31)).unwrap_or(0)
}

fn answered(answer: Answer, acknowledged: u32) -> Result<Reply, Fault> {
    match answer {
        Answer::Refused(text) => Err(Fault::Refused(text)),
        answer => Ok(Reply { answer, acknowledged }),
    }
}

/// What came of the call with this number, or why there is nothing.
fn result_of(number: CallNumber, reply: Value) -> Result<Value, Fault> {
    match reply {
        Value::ServerError(error) => Err(Fault::of(error.into())),
        reply => number.result_in(reply).ok_or_else(senseless),
    }
}

pub(super) fn senseless() -> Fault {
    Fault::Cut("malformed reply".into())
}
