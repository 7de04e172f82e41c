//! The connections that keep locks, and the claims that use them.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use dlock_core::backend::{Mutex, by_then, within};
use dlock_core::{Failure, Holder, Key, keeper};
use tokio::sync::{OnceCell, OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio::time::Instant;

use super::actor::ConnectionActor;
use super::command::{Command, Reply};
use super::driving::Driver;
use super::name::Name;
use super::protocol::another_session;
use super::session_server::SessionServer;
use super::strategy::{Others, Strategy};
use crate::failure::{closed, not_reached, unchanged};
use crate::gateway::steps::Ping;
use crate::limits::QUESTION;
use crate::questions::{Asking, Questions, Turn};

/// A connection, and the inbox for commands that the task carries out.
struct Shared<M: Strategy> {
    driver: Arc<Driver<M>>,
    commands: mpsc::UnboundedSender<Command>,
}

impl<M: Strategy> Clone for Shared<M> {
    fn clone(&self) -> Self {
        Self { driver: Arc::clone(&self.driver), commands: self.commands.clone() }
    }
}

/// The use of a connection: of one for all, or of one for a single lock.
pub(super) struct ConnectionHandle<M: Strategy> {
    shared: Shared<M>,
    permit: Option<OwnedSemaphorePermit>,
}

impl<M: Strategy> ConnectionHandle<M> {
    /// Has a command carried out, whatever becomes of the caller.
    pub(super) async fn call<T>(&self, command: impl FnOnce(Reply<T>) -> Command) -> Result<T, Failure> {
        let (answer, mut receiver) = oneshot::channel();
        // By this task if the connection is free, which saves two changes of thread; otherwise in the order of the
        // inbox.
        let mut driven = match self.shared.driver.begin(command(answer)) {
            Ok(driven) => Some(driven),
            Err(command) => {
                self.shared.commands.send(*command).map_err(|_| closed())?;
                None
            }
        };
        // The answer comes by the channel in both cases: the command may be taken over at any poll.
        poll_fn(|context| {
            if let Some(driven) = &mut driven {
                driven.poll(context);
            }
            Pin::new(&mut receiver).poll(context)
        })
        .await
        .unwrap_or_else(|_| Err(closed()))
    }

    /// Sends a command without waiting for its answer.
    pub(super) fn send(&self, command: Command) {
        // A command that is not sent found no actor: what was on its connection is gone with it.
        let _ = self.shared.commands.send(command);
    }
}

/// All connections that keep locks.
pub(super) struct ConnectionHandles<M: Strategy> {
    others: Others<M::Server>,
    /// The connections that keep nothing now; a shared connection stays in it.
    free: Mutex<Vec<Shared<M>>>,
    permits: Arc<Semaphore>,
    questions: Questions,
    /// Set once the table, and what is between here and the server, were looked at.
    introduced: OnceCell<()>,
    closed: AtomicBool,
}

impl<M: Strategy> ConnectionHandles<M> {
    pub(super) fn new(others: Others<M::Server>) -> Self {
        Self {
            permits: Arc::new(Semaphore::new(others.limit())),
            others,
            free: Mutex::default(),
            questions: Questions::default(),
            introduced: OnceCell::new(),
            closed: AtomicBool::new(false),
        }
    }

    /// Returns the name of a key's lock on the server.
    pub(super) fn name(&self, key: &Key) -> Name {
        self.others.server().name(key)
    }

    pub(super) fn check(&self) -> Result<(), Failure> {
        if self.closed.load(Ordering::Acquire) { Err(closed()) } else { Ok(()) }
    }

    /// Looks at the table, and at what is between here and the server, unless that was done.
    pub(super) async fn ready(&self, limit: Duration) -> Result<(), Failure> {
        self.check()?;
        if self.introduced.initialized() {
            return Ok(());
        }
        let introducing = Box::pin(self.introduced.get_or_try_init(|| self.introduce()));
        match by_then(Instant::now() + limit, introducing).await {
            Some(introduced) => introduced.map(drop).map_err(unchanged),
            None => Err(not_reached(limit)),
        }
    }

    async fn introduce(&self) -> Result<(), Failure> {
        let others = &self.others;
        // Two connections that are open at a time have two sessions; a proxy that shares sessions shows itself by one
        // session in both. Nothing is prepared until that is known.
        others.ask(Ping(), QUESTION).await?;
        let handle = self.handle(others.connector().limit).await?;
        // Stays open, so that the answer below is of another session if there is no proxy.
        let kept = handle.call(Command::Open).await?;
        self.put_back(handle);
        if kept == others.ask(Ping(), QUESTION).await? {
            return Err(another_session());
        }
        others.verify().await
    }

    /// Waits until the claim is to ask for the key, unless it `reads`, or all locks are on one connection, which
    /// carries out together what comes together. Returns `Err` with the holder where another claim has found it taken.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe.
    pub(super) async fn turn<'a>(
        &'a self,
        key: &'a Key,
        reads: bool,
        end: Instant,
    ) -> Result<Result<Option<Asking<'a>>, Option<Box<Holder>>>, Failure> {
        if M::SHARED || reads {
            return Ok(Ok(None));
        }
        Ok(match self.questions.turn(key, end).await? {
            Turn::Ask(asking) => Ok(Some(asking)),
            Turn::Taken(holder) => Err(holder),
        })
    }

    /// Returns the shared connection, or a free one.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe.
    pub(super) async fn handle(&self, patience: Duration) -> Result<ConnectionHandle<M>, Failure> {
        // The permit first: its owner finds a connection that was put back, or may open one more.
        let permit = if M::SHARED { None } else { Some(self.permit(patience).await?) };
        let mut free = self.free.lock();
        // Behind the mutex: a connection that is added after `close` would stay open.
        self.check()?;
        // An actor that panicked took its inbox along, and a command to it would find a backend that looks closed.
        free.retain(|shared| !shared.commands.is_closed());
        let shared = match if M::SHARED { free.last().cloned() } else { free.pop() } {
            Some(shared) => shared,
            None => {
                let (commands, inbox) = mpsc::unbounded_channel();
                let driver = Driver::new(ConnectionActor::new(Arc::clone(&self.others)));
                keeper::runtime()?.spawn(Arc::clone(&driver).run(inbox));
                let shared = Shared { driver, commands };
                if M::SHARED {
                    free.push(shared.clone());
                }
                shared
            }
        };
        Ok(ConnectionHandle { shared, permit })
    }

    async fn permit(&self, patience: Duration) -> Result<OwnedSemaphorePermit, Failure> {
        match within(patience, Arc::clone(&self.permits).acquire_owned()).await {
            Some(Ok(permit)) => Ok(permit),
            Some(Err(_)) => Err(closed()),
            None => Err(Failure::unavailable(format!(
                "each of the {} connections that this process may use for locks keeps one; allow more of them",
                self.others.limit()
            ))),
        }
    }

    /// Puts back a connection on which the claim has nothing any more, and no command under way.
    pub(super) fn put_back(&self, handle: ConnectionHandle<M>) {
        // Before the permit goes: its next owner finds this connection instead of opening another.
        if !M::SHARED {
            let mut free = self.free.lock();
            if self.check().is_ok() {
                free.push(handle.shared);
            }
        }
        drop(handle.permit);
    }

    /// Closes the connections that keep nothing, or the shared one.
    pub(super) async fn close(&self) {
        // First the flag, so that what is put back from now on is dropped; then the permits, whose waiters would find
        // an empty list and open connections.
        self.closed.store(true, Ordering::Release);
        self.permits.close();
        let free = std::mem::take(&mut *self.free.lock());
        for shared in free {
            let (answer, receiver) = oneshot::channel();
            if shared.commands.send(Command::Close(answer)).is_ok() {
                let _ = receiver.await;
            }
        }
    }
}
