//! The servers, and requests to them.
//!
//! Each server has a connection of its own, which dlock's own thread drives. One server is asked at a time:
//!
//! | the server | the request |
//! |---|---|
//! | answers | is over; the next one goes there too |
//! | cannot be reached | goes to the next server, as often as there are servers |
//! | is silent for half of the time that is left | goes to the next server too, and its outcome is unknown unless that answers |
//!
//! So a request may be carried out twice, and late. All requests of this crate are idempotent by what they compare, and
//! a claim keeps account of those that are not over.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use dlock_core::backend::{Mutex, by_then, question_limit};
use dlock_core::{ErrorKind, Failure, keeper};
use etcd_client::{Client, Error, KvClient, Txn, TxnResponse};
use tokio::sync::Semaphore;

use crate::config::Config;
use crate::error::{failure, is_of_old_rights};
use crate::lease::Pool;

/// The time for which an answer to an operator, or in the background, is waited for.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);

/// The most streams of keep-alives that are kept. A lease without one costs a flight more each time.
const STREAMS: usize = 256;
/// The longest answer in bytes: a directory with all its claims.
const LONGEST: usize = 256 << 20;

/// Returns the part of a client that reads and writes keys.
pub(crate) fn kv(client: &Client) -> KvClient {
    client.kv_client().max_decoding_message_size(LONGEST)
}

/// The servers of a backend.
pub(crate) struct Servers {
    pub(crate) config: Config,
    members: Vec<Arc<Member>>,
    /// The index of the server that is asked.
    current: AtomicUsize,
    pub(crate) pool: Pool,
    /// A permit for each stream of keep-alives that is kept.
    pub(crate) streams: Arc<Semaphore>,
}

/// The connection to a server.
#[derive(Default)]
struct Member {
    client: Mutex<Option<Arc<Client>>>,
    /// For the one task that makes it: to check a password costs the servers a lot.
    making: tokio::sync::Mutex<()>,
}

impl Servers {
    pub(crate) fn new(config: Config) -> Self {
        let members = config.hosts.iter().map(|_| Arc::default()).collect();
        Self {
            config,
            members,
            current: AtomicUsize::new(0),
            pool: Pool::default(),
            streams: Arc::new(Semaphore::new(STREAMS)),
        }
    }

    /// Makes a request within `limit`.
    ///
    /// # Cancel safety
    ///
    /// May be dropped at any await; the request may still be carried out.
    pub(crate) async fn ask<T, F>(
        &self,
        limit: Duration,
        mut call: impl FnMut(Arc<Client>) -> F + Send,
    ) -> Result<T, Failure>
    where
        F: Future<Output = Result<T, Error>> + Send,
    {
        let end = tokio::time::Instant::now() + limit;
        let mut last: Option<Failure> = None;
        // As many rounds as there are servers, each with half of the time that is left: a silent server leaves time for
        // the others, and the last round has the rest.
        for left in (0..self.members.len()).rev() {
            // Read anew in each round: another request may have gone on to a server that answers.
            let at = self.current.load(Ordering::Relaxed) % self.members.len();
            let now = tokio::time::Instant::now();
            let until = if left == 0 { end } else { now + end.saturating_duration_since(now) / 2 };
            let asked = async {
                // Within the bound as well: a server that cannot be reached must not use up the time of those after it.
                let client = self.client(at).await?;
                match call(Arc::clone(&client)).await {
                    // The library notices only tokens that have expired.
                    Err(error) if is_of_old_rights(&error) => {
                        client.refresh_token().await?;
                        // Once: with a new token, a refusal is one of the rights that the user has now.
                        call(client).await
                    }
                    answer => answer,
                }
            };
            let failed = match by_then(until, asked).await {
                Some(Ok(answer)) => return Ok(answer),
                Some(Err(error)) => failure(error),
                // Also where the connection was not made in time, and nothing was sent: `asked` is dropped, and does
                // not say.
                None => Failure::unknown("no answer in time"),
            };
            // All servers serve one store, and would answer alike.
            if !failed.is_transient() {
                return Err(failed);
            }
            // By comparison: of several requests that failed, one goes on to the next server.
            let next = (at + 1) % self.members.len();
            let _ = self.current.compare_exchange(at, next, Ordering::Relaxed, Ordering::Relaxed);
            // An outcome that is unknown stays so, whatever the others say.
            if last.as_ref().is_none_or(|last| last.kind() != ErrorKind::Unknown) {
                last = Some(failed);
            }
        }
        Err(last.unwrap_or_else(|| Failure::unavailable("there is no server")))
    }

    /// Makes a request that changes nothing.
    pub(crate) async fn look<T, F>(&self, call: impl FnMut(Arc<Client>) -> F + Send) -> Result<T, Failure>
    where
        F: Future<Output = Result<T, Error>> + Send,
    {
        let answer = self.ask(question_limit().unwrap_or(PATIENCE), call).await;
        answer.map_err(|failure| match failure.kind() {
            ErrorKind::Unknown => Failure::unavailable(failure.message().to_owned()),
            _ => failure,
        })
    }

    pub(crate) async fn txn(&self, limit: Duration, txn: Txn) -> Result<TxnResponse, Failure> {
        self.ask(limit, |client| {
            let txn = txn.clone();
            async move { kv(&client).txn(txn).await }
        })
        .await
    }

    /// Returns the connection to a server, which is made by its first request.
    async fn client(&self, at: usize) -> Result<Arc<Client>, Error> {
        let member = Arc::clone(&self.members[at]);
        // A client stays until `close`: its channel connects again by itself when the connection breaks.
        if let Some(client) = &*member.client.lock() {
            return Ok(Arc::clone(client));
        }
        let (host, options) = (self.config.hosts[at].clone(), self.config.options.clone());
        let internal = |text: String| Error::Internal(text);
        // On dlock's own thread, since what drives the connection belongs to the runtime that made it.
        let runtime = keeper::runtime().map_err(|failure| internal(failure.to_string()))?;
        let made = runtime.spawn(async move {
            let _one = member.making.lock().await;
            // Looked at again behind `making`: the task before this one may have made it.
            let there = member.client.lock().clone();
            if let Some(client) = there {
                return Ok(client);
            }
            let client = Arc::new(Client::connect([host], Some(options)).await?);
            // The task goes on if its caller is dropped, so that the next request finds the connection there.
            Ok(Arc::clone(member.client.lock().get_or_insert(client)))
        });
        made.await.map_err(|error| internal(error.to_string()))?
    }

    /// Returns the connection to each server, and its address.
    pub(crate) async fn each(&self) -> Vec<(&str, Result<Arc<Client>, Error>)> {
        let mut all = Vec::new();
        for (at, host) in self.config.hosts.iter().enumerate() {
            // One after the other: an operator asks seldom, and an authentication costs the servers a lot.
            all.push((&**host, self.client(at).await));
        }
        all
    }

    /// Closes all connections.
    pub(crate) fn close(&self) {
        // Their leases end by themselves, since nothing keeps a lease of the pool alive.
        self.pool.clear();
        self.members.iter().for_each(|member| drop(member.client.lock().take()));
    }
}
