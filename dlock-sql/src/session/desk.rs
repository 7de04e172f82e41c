//! The task that drives one connection.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use dlock_core::backend::{ClaimRequest, Withdrawn};
use dlock_core::{Clock, ErrorKind, Failure, Fence, Holder, Key, Timestamp, Token};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep_until, timeout};

use super::line::Line;
use super::mode::{Mode, Trouble};
use super::{Name, SILENCE, SessionServer, Wanted};
use crate::failure::{copy, unchanged};
use crate::rows::{Conn, Fault, Server, Taken};

pub(super) type Told<T> = oneshot::Sender<Result<T, Failure>>;

/// The longest pause between two signs of life.
const BEAT: Duration = Duration::from_secs(5);
/// How long an answer may take before the connection is given up with all its locks: a third of the shortest lease within these
/// bounds. Holds know by themselves, and earlier, that they cannot be relied on.
const PATIENCE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(10));
/// A connection that has kept nothing for this long is closed.
const IDLE: Duration = Duration::from_secs(30);
/// For this long a failure to connect is the answer for all who need the connection.
const GLOOM: Duration = Duration::from_millis(100);
/// How often a statement is tried that another transaction was in the way of.
const TRIES: u32 = 3;

/// What the desk is asked to do.
pub(super) enum Order {
    /// Open the connection: its session.
    Open(Told<i64>),
    /// Take a lock.
    Take { request: ClaimRequest, line: Arc<Line>, answer: Told<Taken> },
    /// Give back a lock.
    Leave { key: Key, token: Token, answer: Option<Told<Withdrawn>> },
    /// Close the connection.
    Close(Told<()>),
}

/// What the server tells locks apart by.
type Id = [u8; 32];

/// A lock that the connection keeps.
struct Held {
    key: Key,
    token: Token,
    fence: Fence,
    /// Who holds it, in words.
    holder: String,
    lease: Duration,
    line: Arc<Line>,
    /// When the statement was sent that took it.
    taken: Instant,
    suspect: bool,
}

impl Held {
    fn holder(&self) -> Holder {
        let mut holder = Holder::parse(&self.holder);
        holder.fence = Some(self.fence);
        holder
    }
}

struct Session<S: Server> {
    connection: Conn<S>,
    id: i64,
    place: String,
}

/// What is done on the connection.
enum Act {
    Ping,
    Take(Wanted),
    Leave(Name),
}

/// What came of it.
enum Done {
    Alive,
    Taken(Taken),
    Left { was_held: bool },
}

/// One connection, and the locks on it.
pub(super) struct Desk<M: Mode> {
    mode: Arc<M>,
    connect_timeout: Duration,
    session: Option<Session<M::Server>>,
    held: HashMap<Id, Held>,
    /// The shortest lease of what is held, or was held with it.
    shortest: Duration,
    /// When the last statement was sent whose answer all holds were told of.
    proven: Instant,
    used: Instant,
    /// Some holds are suspect.
    doubted: bool,
    failed: Option<(Instant, Failure)>,
}

impl<M: Mode> Desk<M> {
    pub(super) fn new(mode: Arc<M>, connect_timeout: Duration) -> Self {
        let (session, held, now) = (None, HashMap::new(), Instant::now());
        let (shortest, doubted) = (Duration::MAX, false);
        Self { mode, connect_timeout, session, held, shortest, proven: now, used: now, doubted, failed: None }
    }

    /// Carries out orders until nobody can give one any more.
    pub(super) async fn run(mut self, mut inbox: mpsc::UnboundedReceiver<Order>) {
        loop {
            let due = if self.held.is_empty() { self.used + IDLE } else { self.proven + self.beat() };
            tokio::select! {
                biased;
                () = sleep_until(due), if self.session.is_some() => match self.held.is_empty() {
                    true => self.close().await,
                    // A failure has told all holds already.
                    false => drop(self.perform(&Act::Ping).await),
                },
                order = inbox.recv() => match order {
                    Some(order) => self.carry_out(order).await,
                    None => return self.close().await,
                },
            }
        }
    }

    fn beat(&self) -> Duration {
        (self.shortest / 6).min(BEAT)
    }

    async fn carry_out(&mut self, order: Order) {
        self.used = Instant::now();
        match order {
            Order::Open(answer) => drop(answer.send(self.open().await.map(|(session, _)| session))),
            // Who went away before anything was sent has nothing to withdraw.
            Order::Take { answer, .. } if answer.is_closed() => {}
            Order::Take { request, line, answer } => {
                drop(answer.send(self.take(&request, line).await));
            }
            Order::Leave { key, token, answer } => {
                let left = self.leave(&key, &token).await;
                if let Some(answer) = answer {
                    drop(answer.send(left));
                }
            }
            Order::Close(answer) => {
                self.close().await;
                drop(answer.send(Ok(())));
            }
        }
    }

    /// Opens the connection where there is none: the session, and whether it is new.
    async fn open(&mut self) -> Result<(i64, bool), Failure> {
        if let Some(session) = &self.session {
            return Ok((session.id, false));
        }
        if let Some((at, failure)) = &self.failed
            && at.elapsed() < GLOOM
        {
            return Err(copy(failure));
        }
        let (server, limit) = (&**self.mode.server(), self.connect_timeout);
        let opening = async {
            let mut connection = server.connect().await?;
            server.settle(&mut connection, SILENCE).await?;
            let (id, place) = server.place(&mut connection).await?;
            Ok(Session { connection, id, place })
        };
        let opened = match timeout(limit, opening).await {
            Ok(Ok(session)) => Ok(session),
            Ok(Err(error)) => Err(unchanged(server.classify(error).failure)),
            Err(_) => Err(Failure::unavailable(format!("no connection within {limit:?}"))),
        };
        let session = opened.inspect_err(|failure| self.failed = Some((Instant::now(), copy(failure))))?;
        let id = session.id;
        (self.session, self.failed, self.proven) = (Some(session), None, Instant::now());
        Ok((id, true))
    }

    fn name(&self, key: &Key) -> (Id, Name) {
        let place = self.session.as_ref().map_or("", |session| &session.place);
        let name = Name::of(place, key);
        let mut id = Id::default();
        let told = <M::Server as SessionServer>::DIGEST;
        id[..told].copy_from_slice(&name.digest[..told]);
        (id, name)
    }

    async fn take(&mut self, request: &ClaimRequest, line: Arc<Line>) -> Result<Taken, Failure> {
        let mut tries = TRIES;
        loop {
            let (_, is_new) = self.open().await?;
            let (id, name) = self.name(&request.key);
            match self.held.get(&id) {
                Some(held) if held.key != request.key => return Err(collision(&held.key)),
                Some(held) if held.token != request.token => {
                    return Ok(Taken::Busy(Some(Box::new(held.holder()))));
                }
                Some(_) => return self.adopt(&id).await,
                None => {}
            }
            let (holder, limit, sent) = (request.describe(), request.request_timeout, Instant::now());
            let wanted = Wanted { name, holder: holder.clone(), limit };
            match self.perform(&Act::Take(wanted)).await {
                Ok(Done::Taken(Taken::Granted(fence))) => {
                    line.open();
                    self.shortest = self.shortest.min(request.lease.min(SILENCE));
                    let held = Held {
                        key: request.key.clone(),
                        token: request.token,
                        fence,
                        holder,
                        lease: request.lease.min(SILENCE),
                        line,
                        taken: sent,
                        suspect: false,
                    };
                    self.held.insert(id, held);
                    return Ok(Taken::Granted(fence));
                }
                Ok(Done::Taken(busy)) => return Ok(busy),
                Ok(_) => return Ok(Taken::Busy(None)),
                // A connection that had been idle was of no use any more; it kept nothing of this claim.
                Err(fault) if fault.broken && !is_new && tries > 1 => tries = 1,
                Err(fault) if fault.again && tries > 1 => tries -= 1,
                // What a closed connection may have taken goes with it.
                Err(fault) => return Err(unchanged(fault.failure)),
            }
        }
    }

    /// The fence of a lock that an earlier attempt took, if the connection still keeps it.
    async fn adopt(&mut self, id: &Id) -> Result<Taken, Failure> {
        if let Err(fault) = self.perform(&Act::Ping).await {
            self.give_up("it could not be confirmed");
            return Err(unchanged(fault.failure));
        }
        Ok(self.held.get(id).map_or(Taken::Busy(None), |held| Taken::Granted(held.fence)))
    }

    async fn leave(&mut self, key: &Key, token: &Token) -> Result<Withdrawn, Failure> {
        let (id, name) = self.name(key);
        if self.held.get(&id).is_none_or(|held| held.token != *token) {
            return Ok(Withdrawn::Absent);
        }
        let left = self.perform(&Act::Leave(name)).await;
        self.held.remove(&id);
        if self.held.is_empty() {
            self.shortest = Duration::MAX;
        }
        match left {
            Ok(Done::Left { was_held: false }) => {
                self.give_up("the server had not kept a lock of this connection");
                Ok(Withdrawn::Absent)
            }
            Ok(_) => Ok(Withdrawn::Removed),
            Err(fault) => {
                self.give_up("a lock could not be given back");
                let unconfirmed = "the connection was closed; the lock is free as soon as the server notices";
                Err(Failure::unknown(unconfirmed).with_source(fault.failure))
            }
        }
    }

    /// How long the answer may take.
    fn patience(&self, act: &Act) -> Duration {
        if !self.held.is_empty() {
            return (self.shortest / 3).clamp(PATIENCE.0, PATIENCE.1);
        }
        match act {
            Act::Take(wanted) => wanted.limit.clamp(PATIENCE.0, PATIENCE.1),
            Act::Ping | Act::Leave(_) => PATIENCE.0,
        }
    }

    /// Does something whose answer tells which session it came from: a sign of life for all holds. Any doubt closes the
    /// connection.
    async fn perform(&mut self, act: &Act) -> Result<Done, Fault> {
        let patience = self.patience(act);
        let Self { mode, session, held, shortest, proven, doubted, .. } = self;
        let Some(session) = session else {
            let failure = Failure::unavailable("the connection was closed");
            return Err(Fault { failure, again: false, broken: true });
        };
        let (sent, sent_at) = (Clock::system().now(), Instant::now());
        let end = sent_at + patience;
        let answer = {
            let answering = answer(&**mode, &mut session.connection, act);
            tokio::pin!(answering);
            let mut next = if held.is_empty() { end } else { *proven + *shortest / 3 };
            loop {
                tokio::select! {
                    biased;
                    answer = &mut answering => break Some(answer),
                    () = sleep_until(next.min(end)) => {}
                }
                let now = Instant::now();
                if now >= end {
                    break None;
                }
                next = end;
                for held in held.values_mut().filter(|held| !held.suspect) {
                    let suspect_at = held.taken.max(*proven) + held.lease / 3;
                    if suspect_at <= now {
                        (held.suspect, *doubted) = (true, true);
                        held.line.suspect();
                    } else {
                        next = next.min(suspect_at);
                    }
                }
            }
        };
        let late = answer.is_none();
        let fault = match answer {
            Some(Ok((id, done))) if id == session.id => {
                self.prove(sent, sent_at);
                return Ok(done);
            }
            Some(Ok(_)) => {
                self.give_up("a proxy gives statements to different sessions");
                return Err(Fault { failure: another_session(), again: false, broken: false });
            }
            Some(Err(Trouble::Elsewhere(failure))) => Fault { failure, again: false, broken: false },
            Some(Err(Trouble::Here(error))) => self.mode.server().classify(error),
            Some(Err(Trouble::Doubt(error))) => Fault { broken: true, ..self.mode.server().classify(error) },
            None => {
                let failure = Failure::unknown(format!("no answer within {patience:?}"));
                Fault { failure, again: false, broken: true }
            }
        };
        if fault.broken {
            self.give_up(if late { "the server did not answer in time" } else { "the connection broke" });
        }
        Err(fault)
    }

    /// The session has answered something that was sent then.
    fn prove(&mut self, sent: Timestamp, sent_at: Instant) {
        if self.held.is_empty() {
            self.proven = sent_at;
        } else if self.doubted || sent_at >= self.proven + self.beat() / 2 {
            // Not after each of many statements.
            (self.proven, self.doubted) = (sent_at, false);
            for held in self.held.values_mut() {
                held.suspect = false;
                held.line.trust(sent);
            }
        }
    }

    /// Closes the connection without a word, and tells all holds.
    fn give_up(&mut self, cause: &'static str) {
        (self.session, self.shortest, self.doubted) = (None, Duration::MAX, false);
        for (_, held) in self.held.drain() {
            held.line.lost(&format!("the connection that kept it is closed: {cause}"));
        }
    }

    async fn close(&mut self) {
        let session = self.session.take();
        self.give_up("this backend was closed");
        if let Some(session) = session {
            let _ = timeout(PATIENCE.0, sqlx::Connection::close(session.connection)).await;
        }
    }
}

async fn answer<M: Mode>(mode: &M, on: &mut Conn<M::Server>, act: &Act) -> Result<(i64, Done), Trouble> {
    match act {
        Act::Ping => {
            let session = mode.server().ping(on).await.map_err(Trouble::Doubt)?;
            Ok((session, Done::Alive))
        }
        Act::Take(wanted) => {
            let asked = mode.take(on, wanted).await?;
            Ok((asked.session, Done::Taken(asked.taken)))
        }
        Act::Leave(name) => {
            let (session, was_held) = mode.leave(on, name).await.map_err(Trouble::Doubt)?;
            Ok((session, Done::Left { was_held }))
        }
    }
}

fn collision(other: &Key) -> Failure {
    Failure::new(
        ErrorKind::InvalidKey,
        format!("the server cannot tell it from {other}, which this process holds; rename one of them"),
    )
}

pub(super) fn another_session() -> Failure {
    Failure::invalid_config(
        "a proxy gives the statements of one connection to different sessions, which cannot keep locks; connect to the \
         server itself or by a proxy that pools sessions, or use lease rows",
    )
}
