//! The calls on a connection, and their replies.

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

/// The reply to one request.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Reply {
    pub(crate) answer: Answer,
    /// The number of replicas that acknowledged the change, if the server was asked.
    pub(crate) acknowledged: u32,
}

/// The replies to each request of a call.
pub(super) type Replies = SmallVec<[Result<Reply, Fault>; 1]>;

/// The settings of all connections to the servers of one client.
#[derive(Clone, Debug)]
pub(crate) struct WireOptions {
    pub(crate) format: Format,
    /// `true` if requests for different locks may share a call. Not on a cluster, where each lock has its slot.
    pub(crate) together: bool,
    pub(crate) replicas: Option<Replicas>,
    pub(crate) tracking: Arc<Tracking>,
}

/// A connection, and the settings and numbers of the calls on it.
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

    /// Returns the number of the next call.
    fn number(&self) -> CallNumber {
        // Relaxed and wrapping: a number only has to differ from those of the calls that are under way.
        CallNumber(self.calls.fetch_add(1, Ordering::Relaxed))
    }

    /// Carries out a command, and repeats the requests that the server refused for the form of the call: with the
    /// script's text if the server does not know it, and one by one if the user has no right to one of the keys. Leaves
    /// out those that are `is_unwanted` by now.
    pub(super) async fn carry_out(
        &self,
        command: Command<'_>,
        asking: bool,
        is_unwanted: &(dyn Fn(usize) -> bool + Sync),
    ) -> Replies {
        // After `ASK` by the text at once: that server has hardly seen the script yet, and redirections are rare.
        let by = if asking { By::Text } else { By::Hash };
        let replies = self.send(command, by, asking).await;
        // After `ASK` the call went by its text already. A question names its script in the form that its caller chose.
        if asking || matches!(command, Command::Ask(_)) || replies.iter().all(Result::is_ok) {
            return replies;
        }
        Box::pin(self.repeat_refused(command, replies, is_unwanted)).await
    }

    /// Repeats the requests that were refused for the form of the call.
    async fn repeat_refused(
        &self,
        command: Command<'_>,
        mut replies: Replies,
        is_unwanted: &(dyn Fn(usize) -> bool + Sync),
    ) -> Replies {
        let mut unbatched = false;
        // In this order: a call refused for one key is split first, and each part may then turn out to lack the script.
        // The server refuses a whole call if the user has no right to one of its keys.
        for (code, by) in [("NOPERM", By::Hash), ("NOSCRIPT", By::Text)] {
            let refused: Vec<usize> = (0..replies.len())
                .filter(|index| matches!(&replies[*index], Err(fault) if fault.code() == Some(code)))
                // The caller of a cancelled request may be about to send its withdrawal, which this request must not
                // overtake.
                .filter(|index| !is_unwanted(*index))
                .collect();
            match command {
                _ if refused.is_empty() => {}
                Command::Each(requests) if requests.len() > 1 => {
                    unbatched |= by == By::Hash;
                    // Only those that were refused: the others were carried out, and have their answers.
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

    /// Sends a command once, as one call, and returns the replies.
    async fn send(&self, command: Command<'_>, by: By, asking: bool) -> Replies {
        // A withdrawal needs no acknowledgement: a replica that does not know of it keeps the lock until the lease
        // ends, and grants nothing.
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

    /// Sends a command once, as several commands of the protocol, and returns the replies.
    async fn send_several(
        &self,
        command: Command<'_>,
        by: By,
        (together, asking): (bool, bool),
        replicas: Option<Replicas>,
    ) -> Replies {
        // On a cluster each request is a call of its own, since the keys of one call have to lie in one slot. All calls
        // still go out together.
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
            // One fault for all: which of the calls were carried out before it is not known.
            Err(fault) => smallvec![Err(fault); command.answers()],
        }
    }

    /// Reads the reply to a call.
    fn read(
        &self,
        command: Command<'_>,
        number: CallNumber,
        reply: Result<Value, Fault>,
        acknowledged: u32,
    ) -> Replies {
        let result = reply.and_then(|reply| result_of(number, reply));
        let answers =
            result.and_then(|result| command.read(&self.options.format, result).ok_or_else(Fault::senseless));
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
                // One reply out of order makes all of them worthless. A refusal is an answer, and stays with its call.
                Err(cut @ Fault::Cut(_)) => Err(cut),
                result => Ok(result),
            });
        replies.collect()
    }

    /// Puts calls on the wire, all at once. Returns the replies, and the number of replicas that acknowledged the
    /// changes.
    async fn exchange(
        &self,
        calls: impl IntoIterator<Item = Cmd>,
        asking: bool,
        replicas: Option<Replicas>,
    ) -> Result<(Vec<Value>, u32), Fault> {
        let mut pipeline = redis::pipe();
        // `ASKING` holds for the next command only, so it is sent in the same pipeline.
        if asking {
            pipeline.cmd("ASKING");
        }
        for call in calls {
            pipeline.add_command(call);
        }
        if let Some(replicas) = replicas {
            // Behind the script and on the same connection: `WAIT` counts the replicas that know what was written on
            // its own connection only.
            let limit = u64::try_from(replicas.timeout.as_millis()).unwrap_or(u64::MAX);
            pipeline.cmd("WAIT").arg(replicas.count).arg(limit);
        }
        let count = pipeline.len();
        let mut connection = self.connection.clone();
        let mut replies = connection.send_packed_commands(&pipeline, 0, count).await.map_err(Fault::of)?;
        // Fewer or more replies cannot be assigned to their calls any more.
        if replies.len() != count {
            return Err(Fault::senseless());
        }
        // A refused `WAIT` counts no replica: the grant is then as good as unacknowledged.
        let acknowledged = match replicas.and_then(|_| replies.pop()) {
            Some(Value::Int(count)) => count.try_into().unwrap_or(0),
            _ => 0,
        };
        Ok((replies.split_off(usize::from(asking)), acknowledged))
    }
}

/// Returns the number of a connection's first call. It is random, so that a reply that belongs to another connection
/// hardly ever has the number of a call on this one.
fn first_number() -> u32 {
    u32::try_from(Entropy::new().below(1 << 31)).unwrap_or(0)
}

fn answered(answer: Answer, acknowledged: u32) -> Result<Reply, Fault> {
    match answer {
        Answer::Refused(text) => Err(Fault::Refused(text)),
        answer => Ok(Reply { answer, acknowledged }),
    }
}

/// Returns the result of the call with this number, or the fault: a server error, or a reply to another call.
fn result_of(number: CallNumber, reply: Value) -> Result<Value, Fault> {
    match reply {
        Value::ServerError(error) => Err(Fault::of(error.into())),
        reply => number.result_in(reply).ok_or_else(Fault::senseless),
    }
}
