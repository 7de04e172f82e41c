//! The task that drives the connection.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::time::Duration;

use dlock_core::backend::{ClaimRequest, Signal, Withdrawn};
use dlock_core::{Clock, Failure, Fence, Holder, Key, Token};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep_until, timeout};

use super::{Name, SessionServer};
use crate::failure::unchanged;
use crate::rows::{Conn, verify};

type Told<T> = oneshot::Sender<Result<T, Failure>>;

/// How long a statement may take at the least before the connection is given up with all its locks.
const PATIENCE: Duration = Duration::from_secs(1);
/// How often a statement is tried that another transaction was in the way of.
const TRIES: u32 = 5;

/// What the desk is asked to do.
pub(super) enum Order {
    /// Open the connection.
    Open(Told<()>),
    /// Take a lock: the fence, or nothing when somebody else has it.
    Take { request: ClaimRequest, answer: Told<Option<Fence>> },
    /// Tell when this lock is lost.
    Watch { key: Key, token: Token, signal: Signal },
    /// Give back a lock.
    Leave { key: Key, token: Token, limit: Duration, answer: Told<Withdrawn> },
    /// Say who has a lock.
    Read { key: Key, answer: Told<Option<Holder>> },
    /// Close the connection.
    Close(Told<()>),
}

/// A lock that the session has.
struct Held {
    token: Token,
    fence: Fence,
    name: Name,
    signal: Option<Signal>,
}

struct Session<S: SessionServer> {
    connection: Conn<S>,
    id: i64,
    place: String,
}

/// The connection, and the locks on it.
pub(super) struct Desk<S: SessionServer> {
    server: Arc<S>,
    connect_timeout: Duration,
    session: Option<Session<S>>,
    held: HashMap<Key, Held>,
    /// The shortest lease of what is held, or was held with it.
    shortest: Duration,
    /// When the last statement was sent that this session has answered and all holds were told of.
    proven: Instant,
}

impl<S: SessionServer> Desk<S> {
    pub(super) fn new(server: Arc<S>, connect_timeout: Duration) -> Self {
        let (held, shortest) = (HashMap::new(), Duration::MAX);
        Self { server, connect_timeout, session: None, held, shortest, proven: Instant::now() }
    }

    /// Carries out orders until nobody can give one any more.
    pub(super) async fn run(mut self, mut inbox: mpsc::UnboundedReceiver<Order>) {
        loop {
            let watched = !self.held.is_empty();
            let due = self.proven + if watched { self.shortest / 3 } else { Duration::ZERO };
            tokio::select! {
                biased;
                () = sleep_until(due), if watched => self.keep_alive().await,
                order = inbox.recv() => match order {
                    Some(order) => self.carry_out(order).await,
                    None => return self.close().await,
                },
            }
        }
    }

    async fn carry_out(&mut self, order: Order) {
        match order {
            Order::Open(answer) => drop(answer.send(self.open().await)),
            // Who went away before anything was sent has nothing to withdraw.
            Order::Take { answer, .. } if answer.is_closed() => {}
            Order::Take { request, answer } => drop(answer.send(self.take(&request).await)),
            Order::Watch { key, token, signal } => match self.held.get_mut(&key) {
                Some(held) if held.token == token => held.signal = Some(signal),
                _ => signal.lost("the session of the lock ended"),
            },
            Order::Leave { key, token, limit, answer } => {
                drop(answer.send(Ok(self.leave(key, &token, limit).await)));
            }
            Order::Read { key, answer } => drop(answer.send(self.read(&key).await)),
            Order::Close(answer) => {
                self.close().await;
                drop(answer.send(Ok(())));
            }
        }
    }

    /// Opens the connection where there is none.
    async fn open(&mut self) -> Result<(), Failure> {
        if self.session.is_some() {
            return Ok(());
        }
        let server = Arc::clone(&self.server);
        let opening = async {
            let failed = |error| unchanged(server.classify(error).failure);
            let mut connection = server.connect().await.map_err(failed)?;
            verify(&*server, &mut connection).await?;
            let (id, place) = server.settle(&mut connection).await.map_err(failed)?;
            if server.ping(&mut connection).await.map_err(failed)? != id {
                return Err(another_session());
            }
            Ok(Session { connection, id, place })
        };
        let limit = self.connect_timeout;
        let opened = timeout(limit, opening).await;
        let late = |_| Failure::unavailable(format!("no connection within {limit:?}"));
        self.session = Some(opened.map_err(late)??);
        Ok(())
    }

    fn name(&self, key: &Key) -> Name {
        let place = self.session.as_ref().map_or("", |session| &session.place);
        Name::of(place, &self.server.table().to_string(), key)
    }

    async fn take(&mut self, request: &ClaimRequest) -> Result<Option<Fence>, Failure> {
        let ClaimRequest { key, token, .. } = request;
        let limit = request.request_timeout.max(PATIENCE);
        match self.held.get(key) {
            Some(held) if held.token != *token => return Ok(None),
            Some(held) => {
                let fence = held.fence;
                self.ping(limit).await?;
                return Ok(Some(fence));
            }
            None => {}
        }
        let mut tries = TRIES;
        loop {
            self.open().await.map_err(unchanged)?;
            let name = self.name(key);
            let asked = self.ask(request, &name, limit).await;
            match asked {
                Ok(fence) => {
                    if let (Some(fence), Entry::Vacant(place)) = (fence, self.held.entry(key.clone())) {
                        place.insert(Held { token: *token, fence, name, signal: None });
                        self.shortest = self.shortest.min(request.lease);
                    }
                    return Ok(fence);
                }
                // Another transaction was in the way; or an old connection is of no use any more, and its locks went with it.
                Err(failure) if failure.is_transient() && tries > 0 => tries -= TRIES.div_ceil(3).min(tries),
                Err(failure) => return Err(failure),
            }
        }
    }

    async fn ask(
        &mut self,
        request: &ClaimRequest,
        name: &Name,
        limit: Duration,
    ) -> Result<Option<Fence>, Failure> {
        let holder = request.describe();
        let server = Arc::clone(&self.server);
        let asked = self
            .proven_by(limit, async |on| {
                let asked = server.ask(on, name, &request.token, &holder).await;
                if let Err(error) = &asked {
                    // The server may have given the lock and failed with the fence.
                    if matches!(error, sqlx::Error::Database(_)) {
                        server.leave(on, name).await?;
                    }
                }
                asked.map(|asked| (asked.session, asked.fence))
            })
            .await?;
        Ok(asked)
    }

    async fn ping(&mut self, limit: Duration) -> Result<(), Failure> {
        let server = Arc::clone(&self.server);
        self.proven_by(limit, async |on| Ok((server.ping(on).await?, ()))).await
    }

    async fn keep_alive(&mut self) {
        // A failure has told all holds already.
        let _ = self.ping(self.shortest / 3).await;
    }

    async fn leave(&mut self, key: Key, token: &Token, limit: Duration) -> Withdrawn {
        let Entry::Occupied(held) = self.held.entry(key) else { return Withdrawn::Absent };
        if held.get().token != *token {
            return Withdrawn::Absent;
        }
        let held = held.remove();
        let server = Arc::clone(&self.server);
        // When it fails, the connection is closed, and the lock goes with it.
        let left = async |on: &mut Conn<S>| Ok((server.leave(on, &held.name).await?, ()));
        if self.proven_by(limit.max(PATIENCE), left).await.is_err() {
            self.give_up("it could not be given back");
        }
        if self.held.is_empty() {
            self.shortest = Duration::MAX;
        }
        Withdrawn::Removed
    }

    async fn read(&mut self, key: &Key) -> Result<Option<Holder>, Failure> {
        self.open().await?;
        let (name, server) = (self.name(key), Arc::clone(&self.server));
        self.proven_by(PATIENCE, async |on| Ok((server.ping(on).await?, server.holder(on, &name).await?))).await
    }

    /// Runs statements that tell which session they ran in: a sign of life for all holds. Any doubt closes the connection.
    async fn proven_by<T>(
        &mut self,
        limit: Duration,
        run: impl AsyncFnOnce(&mut Conn<S>) -> Result<(i64, T), sqlx::Error>,
    ) -> Result<T, Failure> {
        let Some(session) = &mut self.session else {
            return Err(Failure::unavailable("the connection was closed"));
        };
        let (id, sent, sent_at) = (session.id, Clock::system().now(), Instant::now());
        match timeout(limit, run(&mut session.connection)).await {
            Ok(Ok((session, _))) if session != id => {
                self.give_up("a proxy gives statements to different sessions");
                Err(another_session())
            }
            Ok(Ok((_, done))) => {
                // Not after each of many statements.
                if sent_at >= self.proven + self.shortest / 6 {
                    self.proven = sent_at;
                    for held in self.held.values() {
                        held.signal.iter().for_each(|signal| signal.trust(sent));
                    }
                } else if self.held.is_empty() {
                    self.proven = sent_at;
                }
                Ok(done)
            }
            Ok(Err(error)) => {
                let fault = self.server.classify(error);
                if fault.broken {
                    self.give_up("the connection broke");
                }
                Err(fault.failure)
            }
            Err(_) => {
                self.give_up("the server did not answer in time");
                Err(Failure::unknown(format!("no answer within {limit:?}")))
            }
        }
    }

    /// Closes the connection without a word, and tells all holds.
    fn give_up(&mut self, cause: &'static str) {
        self.session = None;
        self.shortest = Duration::MAX;
        for (_, held) in self.held.drain() {
            held.signal.iter().for_each(|signal| {
                signal.lost(format!("the session that kept it is over: {cause}"));
            });
        }
    }

    async fn close(&mut self) {
        let session = self.session.take();
        self.give_up("it was closed");
        if let Some(session) = session {
            let _ = timeout(PATIENCE, sqlx::Connection::close(session.connection)).await;
        }
    }
}

fn another_session() -> Failure {
    Failure::invalid_config(
        "a proxy gives the statements of one connection to different sessions, which cannot keep locks; connect to the \
         server itself or by a proxy that pools sessions, or use lease rows",
    )
}
