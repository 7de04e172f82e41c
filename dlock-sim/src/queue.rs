//! The backend of a simulated store with sessions: a process's session, and its places in the queues.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::Poll;
use std::time::Duration;

use dlock_core::backend::{
    Attempt, Backend, Busy, Capabilities, Claim, ClaimRequest, Grant, LockId, Renewed, Signal, Validity,
    Withdrawal,
};
use dlock_core::{Clock, ErrorKind, Failure, Fence, Holder, Key};

use crate::exec::{sleep, spawn};
use crate::lease::{Answer, Command, One};
use crate::net::{Request, Route};
use crate::session::From;
use crate::world::{Trouble, read, tell, world};

/// The session of one engine.
#[derive(Debug)]
struct Session {
    process: usize,
    engine: usize,
    drift: i64,
    timeout: u64,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    id: u64,
    /// Who holds a lock in this session, by claim.
    holders: Vec<(u64, Signal)>,
}

impl Session {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn clock(&self) -> Clock {
        let drift = self.drift;
        Clock::simulated(move || read(drift))
    }

    fn holders(&self) -> Vec<Signal> {
        self.state().holders.iter().map(|(_, signal)| signal.clone()).collect()
    }

    fn send(&self, command: Command) -> (u64, Route) {
        let session = self.state().id;
        let from = From { session, generation: 0, timeout: self.timeout * 1_000_000 };
        (session, world(|w| w.send(self.process, Some(from), command)))
    }

    async fn ask(&self, command: Command) -> (Route, Result<Answer, Failure>) {
        let (session, route) = self.send(command);
        let answer = match Request::new(route).await {
            Ok(Answer::Expired) => {
                self.ended(session);
                Err(Failure::unavailable("the session has ended"))
            }
            Ok(answer) => Ok(answer),
            Err(Trouble::Refused) => Err(Failure::unavailable("the connection was refused")),
            Err(Trouble::Reset | Trouble::Panic) => Err(Failure::unknown("the connection was reset")),
        };
        (route, answer)
    }

    /// The store has ended a session: what it kept is lost, and a new one begins.
    fn ended(&self, session: u64) {
        let mut state = self.state();
        if state.id != session {
            return;
        }
        state.id = world(|w| {
            w.claims += 1;
            tell!(w, Some(self.process), "session s{session} has ended, s{} begins", w.claims);
            w.claims
        });
        let lost = std::mem::take(&mut state.holders);
        drop(state);
        lost.into_iter().for_each(|(_, signal)| signal.lost("the session has ended"));
    }

    /// Proves that it lives, again and again, until its engine is gone.
    async fn live(session: Weak<Self>) {
        loop {
            let Some(this) = session.upgrade() else { return };
            let (timeout, sent) = (this.timeout, this.clock().now());
            let limit = Duration::from_millis(timeout / 3);
            match tokio::time::timeout(limit, this.ask(Command::Inspect(usize::MAX))).await {
                Ok((_, Ok(_))) => this.holders().into_iter().for_each(|signal| signal.trust(sent)),
                _ => this.holders().into_iter().for_each(|signal| signal.suspect()),
            }
            drop(this);
            sleep(timeout / 3).await;
        }
    }
}

/// One engine's way to the store.
#[derive(Debug)]
pub(crate) struct Queue(Arc<Session>);

impl Queue {
    pub(crate) fn new(process: usize, engine: usize) -> Self {
        let (drift, timeout, id) = world(|w| {
            w.claims += 1;
            (w.plan.drift[process + 1], w.plan.lease, w.claims)
        });
        let state = Mutex::new(State { id, holders: Vec::new() });
        let session = Arc::new(Session { process, engine, drift, timeout, state });
        spawn(process, Box::pin(Session::live(Arc::downgrade(&session))));
        Self(session)
    }
}

impl Backend for Queue {
    type Claim = Place;

    fn name(&self) -> &'static str {
        "simulated"
    }

    fn capabilities(&self) -> Capabilities {
        let net = Duration::from_millis(world(|w| w.plan.poll_to));
        Capabilities::basic().with_fencing().with_fairness().with_session().with_notifications(net)
    }

    fn clock(&self) -> Clock {
        self.0.clock()
    }

    fn lock_id(&self, key: &Key) -> LockId {
        LockId::new("simulated", key.as_str())
    }

    fn claim(&self, request: ClaimRequest) -> Place {
        let session = &self.0;
        let one = world(|w| {
            w.claims += 1;
            let (key, claim) = (w.key(request.key.as_str()), w.claims);
            w.claimed(claim, key);
            One {
                key,
                claim,
                process: session.process,
                engine: session.engine,
                token: request.token,
                lease: session.timeout * 1_000_000,
                fences: 1,
                waits: request.waits,
                mode: request.mode,
                fair: request.fair,
                takes_over: None,
                request: None,
            }
        });
        Place { session: Arc::clone(session), one, open: Vec::new(), present: false, seen: 0, signal: None }
    }

    async fn inspect(&self, key: &Key) -> Result<Option<Holder>, Failure> {
        let key = world(|w| w.key(key.as_str()));
        self.0.ask(Command::Inspect(key)).await.1.map(|_| None)
    }
}

/// A place in a queue.
pub(crate) struct Place {
    session: Arc<Session>,
    one: One,
    open: Vec<Route>,
    /// Whether something of this claim is on the server, as far as is known.
    present: bool,
    seen: u64,
    signal: Option<Signal>,
}

impl Place {
    /// An answer over a connection says that nothing sent before over it or an older one is still to come.
    fn settle(&mut self, route: Route, answer: &Result<Answer, Failure>) {
        match answer {
            Ok(answer) => {
                let newest = (route.generation, route.request);
                self.open.retain(|open| (open.generation, open.request) > newest);
                self.present = match answer {
                    Answer::Granted(_) => true,
                    Answer::Busy(..) => self.one.waits,
                    _ => false,
                };
            }
            Err(failure) if failure.kind() == ErrorKind::Unavailable => {
                self.open.retain(|open| open.request != route.request);
            }
            Err(_) => {}
        }
    }

    fn forget(&mut self) {
        if self.signal.take().is_some() {
            self.session.state().holders.retain(|(claim, _)| *claim != self.one.claim);
        }
    }
}

impl Claim for Place {
    async fn attempt(&mut self) -> Result<Attempt, Failure> {
        let told = world(|w| w.processes[self.one.process].told.get(&self.one.key).copied());
        self.seen = told.unwrap_or(0);
        let session = Arc::clone(&self.session);
        let before = session.state().id;
        let (_, route) = session.send(Command::Attempt(vec![self.one.clone()]));
        self.open.push(route);
        let answer = match Request::new(route).await {
            Ok(Answer::Expired) => {
                session.ended(before);
                Err(Failure::unavailable("the session has ended"))
            }
            Ok(answer) => Ok(answer),
            Err(Trouble::Refused) => Err(Failure::unavailable("the connection was refused")),
            Err(Trouble::Reset | Trouble::Panic) => Err(Failure::unknown("the connection was reset")),
        };
        self.settle(route, &answer);
        match answer? {
            Answer::Granted(_) if session.state().id != before => {
                Err(Failure::unavailable("the session has ended"))
            }
            Answer::Granted(fences) => {
                let term = Validity::Session(Some(Duration::from_millis(session.timeout)));
                Ok(Attempt::Granted(Grant::new(term).with_fence(Fence::new(fences[0].0))))
            }
            _ => {
                world(|w| w.found_busy(self.one.claim));
                Ok(Attempt::Busy(Busy::default()))
            }
        }
    }

    async fn changed(&mut self) -> Result<(), Failure> {
        let (process, key, seen) = (self.one.process, self.one.key, self.seen);
        std::future::poll_fn(|cx| {
            world(|w| {
                let process = &mut w.processes[process];
                if process.told.get(&key).is_some_and(|told| *told > seen) {
                    return Poll::Ready(Ok(()));
                }
                process.watchers.retain(|(of, waker)| *of != key || !waker.will_wake(cx.waker()));
                process.watchers.push((key, cx.waker().clone()));
                Poll::Pending
            })
        })
        .await
    }

    fn granted(&mut self, signal: Signal) {
        self.session.state().holders.push((self.one.claim, signal.clone()));
        self.signal = Some(signal);
    }

    async fn renew(&mut self) -> Result<Renewed, Failure> {
        Ok(Renewed::Extended)
    }

    async fn withdraw(&mut self) -> Result<Withdrawal, Failure> {
        self.forget();
        let session = Arc::clone(&self.session);
        let (route, answer) = session.ask(Command::Withdraw(self.one.clone())).await;
        self.settle(route, &answer);
        match answer? {
            Answer::Removed(removed) => {
                let withdrawal = if removed { Withdrawal::REMOVED } else { Withdrawal::ABSENT };
                Ok(if self.open.is_empty() { withdrawal } else { withdrawal.unsettled() })
            }
            other => Err(Failure::denied(format!("the store answered {other:?}"))),
        }
    }

    fn is_clean(&self) -> bool {
        self.open.is_empty() && !self.present
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.forget();
    }
}
