//! The one connection that listens for releases.
//!
//! It lives on dlock's own thread, is opened when somebody waits for the first time, and again when it breaks.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use dlock_core::backend::Backoff;
use dlock_core::{Failure, keeper};
use sqlx::postgres::PgListener;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::server::PostgresServer;
use crate::connector::Connector;
use crate::rows::{Channels, Listener, Order};

/// A channel is left this long after its last waiter went: on a lock that is wanted all the time the next comes soon.
const LINGER: Duration = Duration::from_millis(200);
/// The pauses between two tries to connect.
const PAUSE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));
/// How often the connection is tested, and how long any answer on it may take.
const TEST: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(5));

/// What waiters turn to.
#[derive(Debug)]
pub(super) struct Hub {
    channels: Arc<Channels>,
    start: Mutex<Option<Session>>,
}

/// What keeps the connection.
#[derive(Debug)]
struct Session {
    connector: Arc<Connector<PostgresServer>>,
    channels: Arc<Channels>,
    orders: mpsc::UnboundedReceiver<Order>,
}

impl Hub {
    /// A hub that is not connected yet.
    pub(super) fn new(connector: &Arc<Connector<PostgresServer>>) -> Self {
        let (channels, orders) = Channels::new();
        let session = Session { connector: Arc::clone(connector), channels: Arc::clone(&channels), orders };
        Self { channels, start: Mutex::new(Some(session)) }
    }

    fn start(&self) -> MutexGuard<'_, Option<Session>> {
        self.start.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn channels(&self) -> &Channels {
        &self.channels
    }

    /// Listens to a channel.
    pub(super) fn listen(&self, channel: &str) -> Result<Listener, Failure> {
        // First: the session finds the order when it begins.
        let listener = self.channels.listen(channel);
        if let Some(session) = self.start().take() {
            keeper::runtime()?.spawn(session.run());
        }
        Ok(listener)
    }

    /// Closes the connection, for good.
    pub(super) fn close(&self) {
        self.start().take();
        self.channels.close();
    }
}

impl Drop for Hub {
    fn drop(&mut self) {
        self.close();
    }
}

impl Session {
    async fn run(mut self) {
        let mut backoff = Backoff::new(PAUSE.0, PAUSE.1);
        loop {
            while self.channels.wanted().is_empty() {
                match self.orders.recv().await {
                    None | Some(Order::Close) => return,
                    Some(_) => {}
                }
            }
            if let Ok(Ok(listener)) = tokio::time::timeout(self.connector.limit, self.open()).await {
                backoff = Backoff::new(PAUSE.0, PAUSE.1);
                if self.serve(listener).await.is_none() {
                    return;
                }
            }
            self.channels.deaf();
            tokio::time::sleep(backoff.next_pause()).await;
        }
    }

    async fn open(&self) -> Result<PgListener, Failure> {
        let failed =
            |error: sqlx::Error| Failure::unavailable("nothing listens for releases").with_source(error);
        let one = self.connector.pool_of_one().await?;
        let mut listener = PgListener::connect_with(&one).await.map_err(failed)?;
        listener.eager_reconnect(false);
        Ok(listener)
    }

    /// Serves one connection until it breaks; `None` when the hub is gone.
    async fn serve(&mut self, mut listener: PgListener) -> Option<()> {
        let mut listened: HashSet<Arc<str>> = HashSet::new();
        let mut leaving: Vec<(Instant, Arc<str>)> = Vec::new();
        let mut wanted = self.channels.wanted();
        let mut test = tokio::time::interval_at(Instant::now() + TEST.0, TEST.0);
        loop {
            wanted.retain(|name| !listened.contains(name));
            if !wanted.is_empty() {
                let listening = listener.listen_all(wanted.iter().map(|name| &**name));
                if !matches!(tokio::time::timeout(TEST.1, listening).await, Ok(Ok(()))) {
                    return Some(());
                }
                listened.extend(wanted.iter().cloned());
                self.channels.heard(&wanted);
                wanted.clear();
            }
            while let Some(said) = listener.next_buffered() {
                self.channels.tell(said.channel());
            }
            let next_leave = leaving.first().map(|(at, _)| *at);
            tokio::select! {
                said = listener.try_recv() => match said {
                    Ok(Some(said)) => self.channels.tell(said.channel()),
                    _ => return Some(()),
                },
                order = self.orders.recv() => {
                    let mut order = order;
                    loop {
                        match order {
                            None | Some(Order::Close) => return None,
                            Some(Order::Listen(name)) => wanted.push(name),
                            Some(Order::Left(name)) => leaving.push((Instant::now() + LINGER, name)),
                        }
                        match self.orders.try_recv() {
                            Ok(next) => order = Some(next),
                            Err(_) => break,
                        }
                    }
                }
                () = until(next_leave) => {
                    let now = Instant::now();
                    while leaving.first().is_some_and(|(at, _)| *at <= now) {
                        let (_, name) = leaving.remove(0);
                        if self.channels.drop_unheard(&name) && listened.remove(&name) {
                            let left = tokio::time::timeout(TEST.1, listener.unlisten(&name)).await;
                            if !matches!(left, Ok(Ok(()))) {
                                return Some(());
                            }
                        }
                    }
                }
                _ = test.tick() => {
                    if listened.is_empty() {
                        return Some(());
                    }
                    // A server that can only be read is not where releases happen.
                    let test = "SELECT current_setting('transaction_read_only') = 'off'";
                    let fit = sqlx::query_scalar::<_, bool>(test).fetch_one(&mut listener);
                    if !matches!(tokio::time::timeout(TEST.1, fit).await, Ok(Ok(true))) {
                        return Some(());
                    }
                }
            }
        }
    }
}

async fn until(time: Option<Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(time).await,
        None => std::future::pending().await,
    }
}
