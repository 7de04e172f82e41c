//! The address of the master, as the sentinels report it.

use std::time::Duration;

use dlock_core::Failure;
use dlock_core::backend::{Mutex, within};
use redis::aio::MultiplexedConnection;
use redis::{PushInfo, RedisResult, Value};
use tokio::sync::mpsc;

use super::open::Opener;
use crate::error::Fault;
use crate::url::Endpoint;

/// The sentinels of one service.
#[derive(Debug)]
pub(crate) struct Sentinels {
    addresses: Vec<Endpoint>,
    service: String,
    opener: Opener,
    /// The position of the sentinel that answered last, which is asked first the next time.
    preferred: Mutex<usize>,
    /// The master that was named last.
    named: Mutex<Option<Endpoint>>,
}

impl Sentinels {
    /// Creates the sentinels of a service. None is asked.
    pub(crate) fn new(addresses: Vec<Endpoint>, service: String, opener: Opener) -> Self {
        Self { addresses, service, opener, preferred: Mutex::new(0), named: Mutex::new(None) }
    }

    /// Returns the address of the master by the last answer.
    pub(crate) fn named(&self) -> Option<Endpoint> {
        self.named.lock().clone()
    }

    /// Returns the address of the master by the first sentinel that knows it.
    pub(crate) async fn master(&self) -> Result<Endpoint, Failure> {
        // Unlocked for the questions: several tasks may ask at once, and the last answer counts.
        let first = *self.preferred.lock();
        let count = self.addresses.len();
        let mut last = None;
        for position in (0..count).map(|offset| (first + offset) % count) {
            match self.ask(&self.addresses[position]).await {
                Ok(master) => {
                    *self.preferred.lock() = position;
                    *self.named.lock() = Some(master.clone());
                    return Ok(master);
                }
                Err(failure) => last = Some(failure),
            }
        }
        Err(last.unwrap_or_else(|| Failure::invalid_config("the URL names no sentinel")))
    }

    /// Opens a connection to a sentinel, which sends a message at each change of a master.
    pub(crate) async fn listen(
        &self,
        said: mpsc::UnboundedSender<PushInfo>,
    ) -> Result<MultiplexedConnection, Failure> {
        // The question finds a sentinel that can be reached.
        self.master().await?;
        // Another task may have changed it since; any sentinel that has answered will do.
        let position = *self.preferred.lock();
        let sentinel = &self.addresses[position];
        let mut connection = self.opener.open(sentinel, move |push| drop(said.send(push))).await?.connection;
        let subscribed = within(self.opener.timeout(), connection.subscribe("+switch-master")).await;
        match subscribed {
            Some(Ok(())) => Ok(connection),
            _ => Err(Failure::unavailable(format!("the sentinel {sentinel} sends no notifications"))),
        }
    }

    /// Asks one sentinel, over a connection of its own.
    async fn ask(&self, sentinel: &Endpoint) -> Result<Endpoint, Failure> {
        // Not kept open: the master is asked for when a connection is opened, which is seldom.
        let opened = self.opener.open(sentinel, |_| {}).await?;
        let mut ask = redis::cmd("SENTINEL");
        ask.arg("GET-MASTER-ADDR-BY-NAME").arg(&self.service);
        let reply = answer(&opened.connection, &ask, self.opener.timeout(), sentinel).await?;
        // Sentinels name no protocol: the servers are reached as the sentinels are.
        let tls = matches!(sentinel, Endpoint::Tcp { tls: true, .. });
        match reply {
            Value::Nil => Err(Failure::invalid_config(format!(
                "the sentinel {sentinel} knows no service {:?}; the URL's path names it",
                self.service
            ))),
            reply => {
                let (host, port): (String, u16) = redis::from_redis_value(reply)
                    .map_err(|_| Failure::unavailable(format!("the sentinel {sentinel} gave no address")))?;
                Ok(Endpoint::Tcp { host, port, tls })
            }
        }
    }
}

/// Returns the answer to a question that changes nothing.
pub(crate) async fn answer(
    connection: &MultiplexedConnection,
    question: &redis::Cmd,
    limit: Duration,
    endpoint: &Endpoint,
) -> Result<Value, Failure> {
    let mut connection = connection.clone();
    let reply = within(limit, connection.send_packed_command(question)).await;
    match reply.map(|reply: RedisResult<Value>| reply.and_then(Value::extract_error)) {
        Some(Ok(value)) => Ok(value),
        Some(Err(error)) => {
            let failure = Fault::of(error).into_failure();
            let message = format!("{endpoint}: {}", failure.message());
            // A question whose answer was lost changed nothing either: the outcome is never unknown.
            Err(if failure.is_transient() {
                Failure::unavailable(message)
            } else {
                Failure::new(failure.kind(), message)
            })
        }
        None => Err(Failure::unavailable(format!("{endpoint}: no answer within {limit:?}"))),
    }
}
