//! The task that drives one connection.
//!
//! ```text
//!                  a command                      nothing held for 30 s, or `close`
//!     no session ------------> session -------------------------------------------> no session
//!                               |   ^ \
//!                               |   |  +--- broken, no answer in time, an answer of another session:
//!                               +---+       `give_up`, every hold is lost ---------> no session
//!                       an answer: `prove`, every hold is trusted
//!                       as of the moment at which the statement was sent
//!
//!     hold:   trusted --- a third of its lease without an answer ---> suspect --- an answer ---> trusted
//! ```
//!
//! Any doubt about the session closes the connection: what the server may still keep by it ends with it, so that no
//! answer is ever guessed.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use dlock_core::backend::{Renewed, Withdrawal, within};
use dlock_core::{Clock, Failure, Fence, Holder, Key, Timestamp, Token, keeper};
use tokio::time::Instant;

use super::command::{Command, Downgrade, Release, Take};
use super::held::{Held, HeldLocks, Id};
use super::name::{Name, line_of_reader};
use super::protocol::{SESSION_IDLE_TIMEOUT, TakeError, Wanted, another_session, collision};
use super::session_server::SessionServer;
use super::statement::{Outcome, Session, Statement};
use super::strategy::{Others, Strategy, alive};

use crate::driver::Driver;
use crate::failure::{Fault, copy, unchanged};
use crate::gateway::sleep_on_own_thread;
use crate::keeper_task::gone;
use crate::protocol::Taken;
use crate::server::Server;

/// The longest pause between two signs of life.
const HEARTBEAT: Duration = Duration::from_secs(5);
/// The bounds of the time for an answer, which is a third of the shortest lease. After it the connection is given up
/// with all its locks; holds know by themselves, and earlier, that they cannot be relied on.
const RESPONSE_TIMEOUT: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(10));
/// The time after which a connection that keeps nothing is closed.
const IDLE: Duration = Duration::from_secs(30);
/// The time for which a failure to connect is the answer to all commands that need the connection.
const CONNECT_ERROR_TTL: Duration = Duration::from_millis(100);
/// The number of times that a statement is tried that another transaction was in the way of.
const TRIES: u32 = 3;

/// The number of commands that are carried out together.
pub(super) const AT_ONCE: usize = 64;
/// The longest sleep of the task that drives a connection.
pub(super) const PAUSE: Duration = HEARTBEAT;

/// The names that were found busy just now, for reading or for holding alone, with their holders.
type Busy = HashMap<(Id, bool), Option<Box<Holder>>>;

/// One connection, and the locks on it.
pub(super) struct ConnectionActor<M: Strategy> {
    others: Others<M::Server>,
    place: String,
    session: Option<Session<M::Server>>,
    held: HeldLocks,
    /// The shortest lease of what is held, or was held with it.
    shortest: Duration,
    /// The moment at which the last statement was sent whose answer was reported to all holds.
    proven: Instant,
    used: Instant,
    /// Set while some hold is suspect.
    doubted: bool,
    failed: Option<(Instant, Failure)>,
}

impl<M: Strategy> ConnectionActor<M> {
    pub(super) fn new(others: Others<M::Server>) -> Self {
        let (session, held, now) = (None, HeldLocks::default(), Instant::now());
        let (shortest, doubted) = (Duration::MAX, false);
        let place = others.server().place();
        Self { others, place, session, held, shortest, proven: now, used: now, doubted, failed: None }
    }

    pub(super) const fn is_open(&self) -> bool {
        self.session.is_some()
    }

    /// Returns the moment at which the connection needs a sign of life, or has been idle for too long.
    pub(super) fn due(&self) -> Instant {
        if self.held.is_empty() { self.used + IDLE } else { self.proven + self.heartbeat() }
    }

    /// Sends a sign of life, or closes the connection, if that is due.
    pub(super) async fn look_after(&mut self) {
        if !self.is_open() || self.due() > Instant::now() {
            return;
        }
        match self.held.is_empty() {
            true => self.close().await,
            // A failure has notified all holds already.
            false => drop(self.perform(&Statement::Ping).await),
        }
    }

    fn heartbeat(&self) -> Duration {
        (self.shortest / 6).min(HEARTBEAT)
    }

    /// Carries out commands that came together.
    pub(super) async fn carry_out(&mut self, commands: &mut Vec<Command>) {
        self.used = Instant::now();
        let (mut takes, mut leaves, mut others) = (Vec::new(), Vec::new(), Vec::new());
        // A claim sends its next command when it has, or no longer waits for, the answer to the one before. So releases
        // can go first, and free what a take of the same batch wants.
        for command in commands.drain(..) {
            match command {
                Command::Take(take) => takes.push(take),
                Command::Release(leave) => leaves.push(leave),
                other => others.push(other),
            }
        }
        if !leaves.is_empty() {
            self.leave(leaves).await;
        }
        // A caller that waits no more may have sent its release already, which was among those above: taken now, the
        // lock would stay. Nothing of the take is on the server, so that it can be dropped.
        takes.retain(|take| !take.answer.is_closed());
        let mut busy = HashMap::new();
        let (readers, takes) = takes.into_iter().partition(Take::reads);
        let mut rest = self.take_together(takes, &mut busy).await;
        rest.append(&mut self.take_together(readers, &mut busy).await);
        // A single take has no busy name to be compared with, which saves making its name twice.
        let is_last = rest.len() == 1 && busy.is_empty();
        for take in rest {
            if is_last {
                let taken = self.take(&take).await;
                drop(take.answer.send(taken));
                continue;
            }
            let id = (self.name(&take.request.key).0, take.reads());
            // The name was found busy after this command had come: the answer holds for it too.
            let taken = match busy.get(&id).cloned() {
                Some(holder) => Ok(Taken::Busy(holder)),
                None => self.take(&take).await,
            };
            if let Ok(Taken::Busy(holder)) = &taken {
                busy.insert(id, holder.clone());
            }
            drop(take.answer.send(taken));
        }
        // Last, so that a close also ends what the batch has taken.
        for other in others {
            match other {
                Command::Open(answer) => drop(answer.send(self.open().await.map(|(session, _)| session))),
                Command::Close(answer) => {
                    self.close().await;
                    drop(answer.send(Ok(())));
                }
                Command::Downgrade(Downgrade { key, token, limit, answer }) => {
                    drop(answer.send(self.downgrade(key, token, limit).await));
                }
                Command::Take(_) | Command::Release(_) => {}
            }
        }
    }

    /// Opens the connection where there is none. Returns the session, and whether it is new.
    async fn open(&mut self) -> Result<(i64, bool), Failure> {
        if let Some(session) = &self.session {
            return Ok((session.id, false));
        }
        // All commands of a batch that need the connection would otherwise wait for the same failure, one after the
        // other.
        if let Some((at, failure)) = &self.failed
            && at.elapsed() < CONNECT_ERROR_TTL
        {
            return Err(copy(failure));
        }
        let (server, connector) = (Arc::clone(self.others.server()), Arc::clone(self.others.connector()));
        let limit = connector.limit;
        let opening = async move {
            let mut connection = connector.open().await?;
            let settled = async {
                M::Server::keep_alive(&mut connection, SESSION_IDLE_TIMEOUT, !M::SHARED).await?;
                alive(&*server, &mut connection).await
            };
            let id = settled.await.map_err(|error| unchanged(server.fault(error).failure))?;
            Ok(Session { connection, id, is_new: true })
        };
        // On dlock's own thread, whichever task drives this: the connection's I/O must not depend on the runtime of a
        // caller.
        let opening = keeper::runtime()?.spawn(async move { within(limit * 2, opening).await });
        let opened = match opening.await {
            Ok(Some(opened)) => opened,
            Ok(None) => Err(Failure::unavailable(format!("no connection within {limit:?}"))),
            Err(_) => Err(unchanged(gone())),
        };
        let session = opened.inspect_err(|failure| self.failed = Some((Instant::now(), copy(failure))))?;
        let id = session.id;
        // `proven` begins anew with the session, by which nothing is held yet.
        (self.session, self.failed, self.proven) = (Some(session), None, Instant::now());
        Ok((id, true))
    }

    fn name(&self, key: &Key) -> (Id, Name) {
        let name = Name::of(&self.place, key);
        let mut id = Id::default();
        let length = M::Server::DIGEST;
        id[..length].copy_from_slice(&name.digest[..length]);
        (id, name)
    }

    /// Returns how a claim on this name is described to the server.
    fn wanted(&self, take: &Take, (id, name): (Id, Name)) -> Wanted {
        let Take { request, has_turn, .. } = take;
        let (holder, limit) = (request.describe(), request.request_timeout);
        let (name, holder) = if take.reads() {
            let beside = self.held.of(id).next().is_some();
            (name.read_by(&request.token, beside), line_of_reader(&request.key, &holder))
        } else {
            (name, holder)
        };
        Wanted { name, holder, limit, has_turn: *has_turn }
    }

    /// Takes what can be taken in one round trip: all to be read, or none of it. Returns what has to be taken by
    /// itself.
    async fn take_together(&mut self, takes: Vec<Take>, busy: &mut Busy) -> Vec<Take> {
        if takes.len() < 2 || self.open().await.is_err() {
            return takes;
        }
        let (mut some, mut ids, mut wanted, mut rest) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for take in takes {
            let (id, name) = self.name(&take.request.key);
            let is_ours = |held: &Held| held.key == take.request.key && held.reads && take.reads();
            // A name of which this connection has something needs a look at who holds it, and an earlier attempt of the
            // claim is adopted: both are for `take`. Twice in one statement a name would be given to both.
            if !self.held.of(id).all(is_ours)
                || self.held.get(id, &take.request.token).is_some()
                || ids.contains(&id)
            {
                rest.push(take);
                continue;
            }
            if !take.clock.written() {
                // Its caller has given it up: dropping it is the answer.
                continue;
            }
            wanted.push(self.wanted(&take, (id, name)));
            ids.push(id);
            some.push(take);
        }
        if some.len() < 2 {
            some.append(&mut rest);
            return some;
        }
        let sent = Instant::now();
        let statement = Statement::Take(wanted);
        let done = self.perform(&statement).await;
        let (Ok(Outcome::Taken(answers)), Statement::Take(wanted)) = (done, statement) else {
            // Each take finds out by itself.
            some.append(&mut rest);
            return some;
        };
        let mut all: Vec<_> = some.into_iter().zip(ids).zip(wanted).zip(answers).collect();
        // Grants first: a count that fails may close the connection, and what is entered after that would be held
        // without a session. Each count is also a sign of life for what was entered.
        all.sort_by_key(|(_, taken)| matches!(taken, Taken::Uncounted));
        for (((take, id), wanted), mut taken) in all {
            let holder = wanted.holder.clone();
            if matches!(taken, Taken::Uncounted) {
                let Ok(Outcome::Taken(mut counted)) = self.perform(&Statement::Count(vec![wanted])).await
                else {
                    // The session has it no more.
                    rest.push(take);
                    continue;
                };
                taken = counted.pop().unwrap_or(taken);
            }
            match &taken {
                Taken::Granted(fence) => self.hold(id, &take, holder, *fence, sent),
                Taken::Busy(holder) => drop(busy.insert((id, take.reads()), holder.clone())),
                Taken::Elsewhere(_) | Taken::Uncounted => {}
            }
            drop(take.answer.send(Ok(taken)));
        }
        rest
    }

    fn hold(&mut self, id: Id, take: &Take, holder: String, fence: Option<Fence>, taken: Instant) {
        let Take { request, signal, .. } = take;
        signal.open();
        let lease = request.lease.min(SESSION_IDLE_TIMEOUT);
        self.shortest = self.shortest.min(lease);
        let (key, reads, signal) = (request.key.clone(), take.reads(), Arc::clone(signal));
        let held = Held { key, reads, fence, holder, lease, signal, taken, suspect: false, leaves: false };
        self.held.insert(id, request.token, held);
    }

    async fn take(&mut self, take: &Take) -> Result<Taken, Failure> {
        // Each round begins anew, since opening and asking both may have ended what was there: first the connection,
        // then what this process knows, and only then a statement.
        let (Take { request, clock, .. }, mut tries) = (take, TRIES);
        loop {
            let (_, is_new) = self.open().await?;
            // From here on the request counts as sent: a caller that gave it up before has nothing on the server.
            if !clock.written() {
                return Err(Failure::unavailable("nobody wants it any more"));
            }
            let (id, name) = self.name(&request.key);
            if let Some(other) = self.held.of(id).find(|held| held.key != request.key) {
                return Err(collision(&other.key));
            }
            // An earlier attempt of this claim, whose answer was not seen, has taken it.
            if self.held.get(id, &request.token).is_some() {
                return self.adopt(id, &request.token).await;
            }
            // The server would give the name to its session once more, so that it is refused here.
            if let Some(held) = self.held.in_the_way(id, take.reads()) {
                return Ok(Taken::Busy(Some(Box::new(held.holder()))));
            }
            // The moment before the statement: what the hold is proven by is never later than that.
            let (wanted, sent) = (self.wanted(take, (id, name)), Instant::now());
            let holder = wanted.holder.clone();
            match self.perform(&Statement::Take(vec![wanted])).await {
                Ok(Outcome::Taken(mut answers)) => {
                    let taken = answers.pop().unwrap_or(Taken::Busy(None));
                    if let Taken::Granted(fence) = taken {
                        self.hold(id, take, holder, fence, sent);
                    }
                    return Ok(taken);
                }
                Ok(_) => return Ok(Taken::Busy(None)),
                // A connection that had been idle was of no use any more, and kept nothing of this claim: once more on
                // a new one.
                Err(fault) if fault.broken && !is_new && tries > 1 => tries = 1,
                Err(fault) if fault.again && tries > 1 => tries -= 1,
                // If the connection was closed, what it may have taken goes with it; otherwise the server has refused.
                Err(fault) => return Err(unchanged(fault.failure)),
            }
        }
    }

    /// Returns the fence of a lock that an earlier attempt took, if the connection still keeps it.
    async fn adopt(&mut self, id: Id, token: &Token) -> Result<Taken, Failure> {
        // Only an answer of this very session says that the lock is still there.
        if let Err(fault) = self.perform(&Statement::Ping).await {
            self.give_up("it could not be confirmed");
            return Err(unchanged(fault.failure));
        }
        Ok(self.held.get(id, token).map_or(Taken::Busy(None), |held| Taken::Granted(held.fence)))
    }

    /// Lets others read what was held alone, from now on.
    async fn downgrade(&mut self, key: Key, token: Token, limit: Duration) -> Result<Renewed, Failure> {
        let (id, name) = self.name(&key);
        let Some(held) = self.held.get(id, &token) else { return Ok(Renewed::Gone) };
        if held.reads {
            return Ok(Renewed::Extended);
        }
        let holder = line_of_reader(&key, &held.holder);
        let wanted =
            Wanted { name: name.read_by(&token, false), holder: holder.clone(), limit, has_turn: true };
        let statement = Statement::Downgrade(wanted, held.fence);
        self.perform(&statement).await.map_err(|fault| unchanged(fault.failure))?;
        let Some(held) = self.held.get_mut(id, &token) else { return Ok(Renewed::Gone) };
        (held.reads, held.holder) = (true, holder);
        Ok(Renewed::Extended)
    }

    async fn leave(&mut self, leaves: Vec<Release>) {
        let (mut ours, mut ids, mut names) = (Vec::new(), Vec::new(), Vec::new());
        for leave in leaves {
            let (id, name) = self.name(&leave.key);
            if let Some(held) = self.held.get_mut(id, &leave.token).filter(|held| !held.leaves) {
                // Marked before the next name is looked at: of two readers that leave in one batch the second is the
                // last.
                held.leaves = true;
                let reads = held.reads;
                ours.push(leave.answer);
                ids.push((id, leave.token));
                // The last reader frees the name.
                let beside = self.held.of(id).any(|held| !held.leaves);
                names.push(if reads { name.read_by(&leave.token, beside) } else { name });
            } else if let Some(answer) = leave.answer {
                drop(answer.send(Ok(Withdrawal::ABSENT)));
            }
        }
        if names.is_empty() {
            return;
        }
        let left = self.perform(&Statement::Release(names)).await;
        // Before `give_up` below, which would report the loss of what is being released.
        for (id, token) in &ids {
            self.held.remove(*id, token);
        }
        if self.held.is_empty() {
            self.shortest = Duration::MAX;
        }
        let left = match left {
            Ok(Outcome::Left(freed)) if freed.iter().all(|freed| freed.held) => Ok(freed),
            Ok(_) => {
                self.give_up("the server had not kept a lock of this connection");
                Err("the server had not kept it".to_owned())
            }
            Err(fault) => {
                self.give_up("a lock could not be released");
                Err(fault.failure.to_string())
            }
        };
        for (place, answer) in ours.into_iter().enumerate() {
            let Some(answer) = answer else { continue };
            drop(answer.send(match &left {
                Ok(freed) => {
                    let awaited = freed.get(place).is_some_and(|freed| freed.awaited);
                    Ok(Withdrawal::REMOVED.with_others_waiting(awaited.into()))
                }
                Err(fault) => Err(Failure::unknown(format!(
                    "the connection was closed; the lock is free as soon as the server notices ({fault})"
                ))),
            }));
        }
    }

    /// Returns how long the answer may take.
    fn patience(&self, statement: &Statement) -> Duration {
        if !self.held.is_empty() {
            return (self.shortest / 3).clamp(RESPONSE_TIMEOUT.0, RESPONSE_TIMEOUT.1);
        }
        match statement {
            Statement::Take(wanted) | Statement::Count(wanted) => {
                let limit = wanted.iter().map(|wanted| wanted.limit).max().unwrap_or_default();
                limit.clamp(RESPONSE_TIMEOUT.0, RESPONSE_TIMEOUT.1)
            }
            Statement::Ping | Statement::Downgrade(..) | Statement::Release(_) => RESPONSE_TIMEOUT.0,
        }
    }

    /// Carries out a statement whose answer names the session it came from, which is a sign of life for all holds. Any
    /// doubt closes the connection.
    async fn perform(&mut self, statement: &Statement) -> Result<Outcome, Fault> {
        let patience = self.patience(statement);
        let Self { others, session, held, shortest, proven, doubted, .. } = self;
        let Some(session) = session else {
            let failure = Failure::unavailable("the connection was closed");
            return Err(Fault { failure, again: false, broken: true });
        };
        // Taken before the statement is made: a proof must not be later than its request.
        let (sent, sent_at) = (Clock::system().now(), Instant::now());
        let end = sent_at + patience;
        let answer = {
            let answering = statement.answer::<M>(others, session);
            tokio::pin!(answering);
            let mut next = if held.is_empty() { end } else { *proven + *shortest / 3 };
            loop {
                tokio::select! {
                    // The answer comes first, so that it is never late once it is there.
                    biased;
                    answer = &mut answering => break Some(answer),
                    // Only the task looks at the time: it takes over before that from a caller that drives this.
                    () = sleep_on_own_thread(next.min(end)) => {}
                }
                let now = Instant::now();
                if now >= end {
                    break None;
                }
                next = end;
                // Each hold has its own lease, and those of short ones become suspect while long ones are still
                // trusted.
                for held in held.all().filter(|held| !held.suspect) {
                    let suspect_at = held.taken.max(*proven) + held.lease / 3;
                    if suspect_at <= now {
                        (held.suspect, *doubted) = (true, true);
                        held.signal.suspect();
                    } else {
                        next = next.min(suspect_at);
                    }
                }
            }
        };
        let fault = match answer {
            Some(Ok((id, done))) if id == session.id => {
                self.prove(sent, sent_at);
                return Ok(done);
            }
            Some(Ok(_)) => {
                self.give_up("a proxy gives statements to different sessions");
                return Err(Fault { failure: another_session(), again: false, broken: false });
            }
            Some(Err(TakeError::Elsewhere(failure))) => Fault { failure, again: false, broken: false },
            Some(Err(TakeError::Refused(error))) => {
                // Another connection may know of more rights; this one keeps nothing that would be lost with it.
                let is_of_no_use = held.is_empty() && M::Server::is_of_old_rights(&error);
                let fault = self.others.server().fault(error);
                Fault { broken: fault.broken || is_of_no_use, ..fault }
            }
            Some(Err(TakeError::Again(error))) => Fault { again: true, ..self.others.server().fault(error) },
            Some(Err(TakeError::Unknown(error))) => {
                Fault { broken: true, ..self.others.server().fault(error) }
            }
            None => {
                let failure = Failure::unknown(format!("no answer within {patience:?}"));
                Fault { failure, again: false, broken: true }
            }
        };
        if fault.broken {
            self.give_up(&format!("the connection broke ({})", copy(&fault.failure).message()));
        }
        Err(fault)
    }

    /// Reports to all holds that the session has answered what was sent then.
    fn prove(&mut self, sent: Timestamp, sent_at: Instant) {
        if self.held.is_empty() {
            self.proven = sent_at;
        } else if self.doubted || sent_at >= self.proven + self.heartbeat() / 2 {
            // Not after each of many statements: a proof that is half a heartbeat newer is worth the walk over all
            // holds.
            (self.proven, self.doubted) = (sent_at, false);
            for held in self.held.all() {
                held.suspect = false;
                held.signal.trust(sent);
            }
        }
    }

    /// Drops the connection without closing it in order, and reports the loss to all holds.
    fn give_up(&mut self, cause: &str) {
        // Dropping it closes the socket, and the server ends the session: nothing more is asked on a connection whose
        // state is not known.
        (self.session, self.shortest, self.doubted) = (None, Duration::MAX, false);
        for held in std::mem::take(&mut self.held).all() {
            held.signal.lost(&format!("the connection that kept it is closed: {cause}"));
        }
    }

    pub(super) async fn close(&mut self) {
        // Taken out before `give_up`, which would drop it: the server is to see the end at once.
        let session = self.session.take();
        self.give_up("this backend was closed");
        if let Some(session) = session {
            crate::connector::end(session.connection).await;
        }
    }
}
