//! What goes over a connection, and what came back.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use dlock_core::backend::Entropy;
use futures_util::future::join_all;
use redis::aio::MultiplexedConnection;
use redis::{Cmd, Value};

use crate::config::Replicas;
use crate::error::Fault;
use crate::format::Format;
use crate::request::{Answer, By, CallNumber, Request};
use crate::tracking::Tracking;

/// What came back for one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reply<A = Answer> {
    pub(crate) answer: A,
    /// How many replicas know what the request changed, where that was asked.
    pub(crate) acknowledged: u32,
}

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

    pub(super) async fn exchange(&self, request: &Request) -> Result<Reply, Fault> {
        let mut by = By::Hash;
        loop {
            let fault = match self.send(std::slice::from_ref(request), by, false).await {
                Ok(mut replies) => match replies.pop() {
                    Some(Ok(reply)) => return Ok(reply),
                    Some(Err(fault)) => fault,
                    None => return Err(senseless()),
                },
                Err(fault) => fault,
            };
            if by == By::Text || fault.code() != Some("NOSCRIPT") {
                return Err(fault);
            }
            by = By::Text;
        }
    }

    pub(super) async fn asking(&self, request: &Request) -> Result<Reply, Fault> {
        // By its text at once: the server has hardly seen it yet, and this is rare.
        let mut replies = self.send(std::slice::from_ref(request), By::Text, true).await?;
        replies.pop().unwrap_or_else(|| Err(senseless()))
    }

    /// Sends requests and waits for the replies to all of them.
    pub(super) async fn send(
        &self,
        requests: &[Request],
        by: By,
        asking: bool,
    ) -> Result<Vec<Result<Reply, Fault>>, Fault> {
        let replicas = self.options.replicas.filter(|_| requests.iter().any(|request| request.step.grants()));
        let together = self.options.together || requests.len() == 1;
        if !together || replicas.is_some() || asking {
            return Box::pin(self.send_several(requests, by, (together, asking), replicas)).await;
        }
        let number = self.number();
        let call = self.options.format.call(requests, by, number);
        let reply = self.connection.clone().send_packed_command(&call).await.map_err(Fault::of)?;
        self.split(reply, number, requests, 0)
    }

    /// The same in several commands.
    async fn send_several(
        &self,
        requests: &[Request],
        by: By,
        (together, asking): (bool, bool),
        replicas: Option<Replicas>,
    ) -> Result<Vec<Result<Reply, Fault>>, Fault> {
        let mut pipeline = redis::pipe();
        if asking {
            pipeline.cmd("ASKING");
        }
        let size = if together { requests.len() } else { 1 };
        let calls: Vec<_> = requests.chunks(size).map(|requests| (self.number(), requests)).collect();
        for (number, requests) in &calls {
            pipeline.add_command(self.options.format.call(requests, by, *number));
        }
        if let Some(replicas) = replicas {
            add_wait(&mut pipeline, replicas);
        }
        let count = pipeline.len();
        let mut connection = self.connection.clone();
        let mut replies = connection.send_packed_commands(&pipeline, 0, count).await.map_err(Fault::of)?;
        if replies.len() != count {
            return Err(senseless());
        }
        let acknowledged = acknowledged(replicas.and_then(|_| replies.pop()));
        let replies = replies.into_iter().skip(usize::from(asking));
        let answers = replies.zip(calls).map(|(reply, (number, requests))| {
            let failed = |fault| vec![Err(fault); requests.len()];
            self.split(reply, number, requests, acknowledged).unwrap_or_else(failed)
        });
        Ok(answers.flatten().collect())
    }

    /// Sends requests that were refused, together or each by itself, and waits for the replies to all of them.
    pub(super) async fn send_again(
        &self,
        requests: &[Request],
        by: By,
        apart: bool,
    ) -> Vec<Result<Reply, Fault>> {
        let calls = requests.chunks(if apart { 1 } else { requests.len() });
        let calls = calls.map(async |requests| {
            let failed = |fault| vec![Err(fault); requests.len()];
            self.send(requests, by, false).await.unwrap_or_else(failed)
        });
        join_all(calls).await.into_iter().flatten().collect()
    }

    fn split(
        &self,
        reply: Value,
        number: CallNumber,
        requests: &[Request],
        acknowledged: u32,
    ) -> Result<Vec<Result<Reply, Fault>>, Fault> {
        let result = result_of(number, reply)?;
        let answers = self.options.format.read(result, requests).ok_or_else(senseless)?;
        Ok(answers.into_iter().map(|answer| answered(answer, acknowledged)).collect())
    }

    pub(super) async fn send_apart(
        &self,
        call: impl FnOnce(CallNumber) -> Cmd,
        asking: bool,
        replicas: Option<Replicas>,
    ) -> Result<Reply<Value>, Fault> {
        let number = self.number();
        let mut pipeline = redis::pipe();
        if asking {
            pipeline.cmd("ASKING");
        }
        pipeline.add_command(call(number));
        if let Some(replicas) = replicas {
            add_wait(&mut pipeline, replicas);
        }
        let count = pipeline.len();
        let mut connection = self.connection.clone();
        let replies = connection.send_packed_commands(&pipeline, 0, count).await.map_err(Fault::of)?;
        let mut replies = replies.into_iter().skip(usize::from(asking));
        let answer = result_of(number, replies.next().ok_or_else(senseless)?)?;
        Ok(Reply { answer, acknowledged: acknowledged(replies.next()) })
    }

    pub(super) async fn send_all(
        &self,
        calls: impl IntoIterator<Item = impl FnOnce(CallNumber) -> Cmd>,
    ) -> Result<Vec<Result<Value, Fault>>, Fault> {
        let (mut pipeline, mut numbers) = (redis::pipe(), Vec::new());
        for call in calls {
            let number = self.number();
            pipeline.add_command(call(number));
            numbers.push(number);
        }
        let mut connection = self.connection.clone();
        let replies =
            connection.send_packed_commands(&pipeline, 0, numbers.len()).await.map_err(Fault::of)?;
        let replies =
            numbers.into_iter().zip(replies).map(|(number, reply)| match result_of(number, reply) {
                Err(cut @ Fault::Cut(_)) => Err(cut),
                result => Ok(result),
            });
        replies.collect()
    }
}

impl Reply<Value> {
    pub(super) fn read<A>(self, read: impl FnOnce(Value) -> Option<A>) -> Result<Reply<A>, Fault> {
        let answer = read(self.answer).ok_or_else(senseless)?;
        Ok(Reply { answer, acknowledged: self.acknowledged })
    }
}

/// Connections begin anywhere, so that a reply of another one is hardly taken for one's own.
fn first_number() -> u32 {
    u32::try_from(Entropy::new().below(1 << 31)).unwrap_or(0)
}

/// Behind the script and on the same connection: it tells of what was written on this connection only.
fn add_wait(pipeline: &mut redis::Pipeline, replicas: Replicas) {
    let limit = u64::try_from(replicas.timeout.as_millis()).unwrap_or(u64::MAX);
    pipeline.cmd("WAIT").arg(replicas.count).arg(limit);
}

fn acknowledged(reply: Option<Value>) -> u32 {
    match reply {
        Some(Value::Int(count)) => count.try_into().unwrap_or(0),
        _ => 0,
    }
}

pub(super) fn answered(answer: Answer, acknowledged: u32) -> Result<Reply, Fault> {
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

fn senseless() -> Fault {
    Fault::Cut("malformed reply".into())
}
