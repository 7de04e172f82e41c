//! One claim on one lock.

mod batch;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use dlock_core::backend::{Attempt, Busy, Claim, ClaimRequest, Grant, Renewed, Signal, Term, Withdrawal};
use dlock_core::{Failure, Fence, keeper};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::backend::{Shared, holder};
use crate::connection::{Link, Path, Reply, Servers, Track, Untracked};
use crate::error::Fault;
use crate::keys::Names;
use crate::scripts::{Answer, Request, Step};
use crate::subscription::Listener;

pub(crate) use batch::attempt_all;

/// How long a withdrawal on the connection of an unanswered attempt may take before another connection is tried too.
const SAME_CONNECTION: Duration = Duration::from_millis(200);

/// A claim on a lock of [`Redis`](crate::Redis).
pub struct RedisClaim {
    shared: Arc<Shared>,
    request: ClaimRequest,
    names: Arc<Names>,
    owner: Arc<str>,
    /// The lock was granted, and not withdrawn since.
    held: bool,
    unanswered: Unanswered,
    /// Where the answer to a renewal or a withdrawal did not come.
    overdue: Overdue,
    listener: Option<Listener>,
}

impl RedisClaim {
    pub(crate) fn new(shared: Arc<Shared>, request: ClaimRequest) -> Self {
        let names = shared.names(&request.key);
        let owner = shared.owner(&request.token);
        Self {
            shared,
            request,
            names,
            owner,
            held: false,
            unanswered: Unanswered::default(),
            overdue: Overdue::default(),
            listener: None,
        }
    }

    fn step(&self, step: Step) -> Request {
        Request { names: Arc::clone(&self.names), owner: Arc::clone(&self.owner), step }
    }

    /// The lease in whole milliseconds, as the server keeps it.
    fn lease(&self) -> u64 {
        u64::try_from(self.request.lease.as_millis()).unwrap_or(u64::MAX)
    }

    /// How long to wait for a connection: less than the engine waits for an answer, so that a server that is away is
    /// seen to be away, and not taken for one that may have got a request.
    fn patience(&self) -> Duration {
        (self.request.lease / 8).min(self.shared.connect_timeout * 2)
    }

    fn too_few(&self, acknowledged: u32) -> Option<Failure> {
        let replicas = self.shared.replicas.filter(|replicas| acknowledged < replicas.count)?;
        Some(Failure::unavailable(format!(
            "{acknowledged} of {} replicas acknowledged within {:?}",
            replicas.count, replicas.timeout
        )))
    }

    async fn granted(&mut self, reply: &Reply, fence: u64) -> Result<Attempt, Failure> {
        self.held = true;
        let Some(failure) = self.too_few(reply.acknowledged) else {
            self.listener = None;
            let lease = Duration::from_millis(self.lease());
            return Ok(Attempt::Granted(Grant::new(Term::Lease(lease)).with_fence(Fence::new(fence))));
        };
        let withdrawal = self.step(Step::Withdraw);
        match self.shared.servers.carry_out(&withdrawal, self.patience(), &mut Untracked).await {
            Ok(_) => {
                self.held = false;
                Err(failure)
            }
            Err(other) => {
                Err(Failure::unknown(format!("{}, and it could not be withdrawn", failure.message()))
                    .with_source(other))
            }
        }
    }
}

impl Claim for RedisClaim {
    async fn attempt(&mut self) -> Result<Attempt, Failure> {
        let request = self.asking();
        let shared = Arc::clone(&self.shared);
        let reply = shared.servers.carry_out(&request, self.patience(), &mut self.unanswered).await?;
        match &reply.answer {
            Answer::Granted(fence) => self.granted(&reply, *fence).await,
            Answer::Adopted(Some(fence)) => self.granted(&reply, *fence).await,
            Answer::Adopted(None) => {
                self.held = true;
                Err(Failure::invalid_config("somebody removed the fence from the lock; do not edit locks"))
            }
            Answer::Busy { left, who, fence } => {
                let mut busy = Busy::default();
                busy.retry_after = *left;
                busy.holder = Some(Box::new(holder(who.as_deref(), *fence, *left)));
                Ok(Attempt::Busy(busy))
            }
            _ => Err(senseless()),
        }
    }

    async fn changed(&mut self) -> Result<(), Failure> {
        let listener = match &mut self.listener {
            Some(listener) => listener,
            none => none.insert(self.shared.hub.listen(&self.names.channel)?),
        };
        listener.changed().await
    }

    fn granted(&mut self, _signal: Signal) {
        self.listener = None;
    }

    async fn renew(&mut self) -> Result<Renewed, Failure> {
        let request = self.step(Step::Renew { lease: self.lease() });
        let reply = self.shared.servers.carry_out(&request, self.patience(), &mut self.overdue).await?;
        match reply.answer {
            Answer::Done(true) => self.too_few(reply.acknowledged).map_or(Ok(Renewed::Extended), Err),
            Answer::Done(false) => Ok(Renewed::Gone),
            _ => Err(senseless()),
        }
    }

    async fn withdraw(&mut self) -> Result<Withdrawal, Failure> {
        self.listener = None;
        let request = self.step(Step::Withdraw);
        if !self.held && !self.unanswered.is_empty() {
            let limit = (self.request.lease, self.patience());
            return self.unanswered.withdraw(&self.shared.servers, &request, limit).await;
        }
        let reply = self.shared.servers.carry_out(&request, self.patience(), &mut self.overdue).await?;
        self.held = false;
        if !self.unanswered.is_empty() {
            // An earlier attempt may still arrive, and would take the lock again.
            self.linger(request)?;
        }
        withdrawn(&reply.answer)
    }

    fn is_clean(&self) -> bool {
        !self.held && self.unanswered.is_empty()
    }
}

impl RedisClaim {
    /// Withdraws in the background what attempts may still take that were never answered.
    fn linger(&mut self, request: Request) -> Result<(), Failure> {
        let mut unanswered = std::mem::take(&mut self.unanswered);
        let limit = (self.request.lease, self.patience());
        let servers = Arc::clone(&self.shared.servers);
        keeper::runtime()?.spawn(async move {
            let mut pause = Duration::from_millis(20);
            while unanswered.withdraw(&servers, &request, limit).await.is_err() {
                tokio::time::sleep(pause.mul_f64(0.5 + fastrand::f64() / 2.0)).await;
                pause = (pause * 2).min(Duration::from_secs(1));
            }
        });
        Ok(())
    }
}

impl fmt::Debug for RedisClaim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisClaim")
            .field("key", &self.request.key)
            .field("held", &self.held)
            .finish_non_exhaustive()
    }
}

fn withdrawn(answer: &Answer) -> Result<Withdrawal, Failure> {
    match answer {
        Answer::Done(true) => Ok(Withdrawal::REMOVED),
        Answer::Done(false) => Ok(Withdrawal::ABSENT),
        _ => Err(senseless()),
    }
}

fn senseless() -> Failure {
    Fault::Cut("the reply makes no sense".into()).into_failure()
}

/// The link on which the last request was not answered. It can be made again on any other one.
#[derive(Default)]
struct Overdue(Option<Arc<Link>>);

impl Track for Overdue {
    fn awaits(&self, link: &Arc<Link>) -> bool {
        self.0.as_ref().is_some_and(|overdue| Arc::ptr_eq(overdue, link))
    }

    fn before(&mut self, path: &Path) {
        self.0 = Some(Arc::clone(&path.link));
    }

    fn unsent(&mut self, _: &Path) {
        self.0 = None;
    }

    fn after(&mut self, _: &Path) {
        self.0 = None;
    }
}

/// The connections on which attempts went out that were never answered. Such an attempt may be carried out at any time,
/// and what it takes has to be withdrawn after it: on the same connection, or for as long as its lease could run.
#[derive(Default)]
struct Unanswered(Vec<Trace>);

struct Trace {
    path: Path,
    attempts: usize,
    last_sent: Instant,
    /// The withdrawal that follows the attempts on the same connection, and what came of it.
    withdrawal: Option<watch::Receiver<Option<Result<Reply, Fault>>>>,
}

impl Track for Unanswered {
    fn awaits(&self, link: &Arc<Link>) -> bool {
        self.0.iter().any(|trace| Arc::ptr_eq(&trace.path.link, link))
    }

    fn before(&mut self, path: &Path) {
        let now = Instant::now();
        match self.trace(&path.link) {
            Some(trace) => {
                trace.attempts += 1;
                trace.last_sent = now;
                trace.withdrawal = None;
            }
            None => {
                self.0.push(Trace { path: path.clone(), attempts: 1, last_sent: now, withdrawal: None });
            }
        }
    }

    fn unsent(&mut self, path: &Path) {
        if let Some(trace) = self.trace(&path.link) {
            trace.attempts -= 1;
        }
        self.0.retain(|trace| trace.attempts > 0);
    }

    fn after(&mut self, path: &Path) {
        // Answers come in order, so all earlier attempts on this connection are settled too.
        self.0.retain(|trace| !Arc::ptr_eq(&trace.path.link, &path.link));
    }
}

impl Unanswered {
    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn trace(&mut self, link: &Arc<Link>) -> Option<&mut Trace> {
        self.0.iter_mut().find(|trace| Arc::ptr_eq(&trace.path.link, link))
    }

    /// Withdraws what the attempts may have taken. An error says that it has to be done again.
    ///
    /// # Cancel safety
    ///
    /// When dropped, withdrawals that are under way stay so.
    async fn withdraw(
        &mut self,
        servers: &Arc<Servers>,
        request: &Request,
        (lease, patience): (Duration, Duration),
    ) -> Result<Withdrawal, Failure> {
        let (mut removed, mut elsewhere) = (false, false);
        let mut position = 0;
        while let Some(trace) = self.0.get_mut(position) {
            match trace.withdraw(servers, request, patience).await {
                Followed::Answered(answer) => removed |= answer == Withdrawal::REMOVED,
                Followed::Redirected => elsewhere = true,
                // Whatever it took has ended by itself, or has the withdrawal right behind it.
                Followed::Open if trace.last_sent.elapsed() >= lease && trace.is_followed() => {}
                Followed::Open => {
                    position += 1;
                    continue;
                }
            }
            self.0.remove(position);
        }
        if !self.0.is_empty() || elsewhere {
            // What was carried out already is removed at once, wherever it is now.
            let reply = servers.carry_out(request, patience, &mut Untracked).await?;
            removed |= withdrawn(&reply.answer)? == Withdrawal::REMOVED;
        }
        if self.0.is_empty() {
            return Ok(if removed { Withdrawal::REMOVED } else { Withdrawal::ABSENT });
        }
        Err(Failure::unknown(
            "an attempt was not answered and its connection is gone or silent; withdrawn again until its lease has passed",
        ))
    }
}

/// What became of a withdrawal that follows attempts on their own connection.
enum Followed {
    Answered(Withdrawal),
    /// The attempts have been carried out or refused, and the lock is another server's business now.
    Redirected,
    /// No answer yet, or none any more.
    Open,
}

impl Trace {
    async fn withdraw(&mut self, servers: &Arc<Servers>, request: &Request, patience: Duration) -> Followed {
        let mut outcome = match &self.withdrawal {
            Some(outcome) => outcome.clone(),
            None if self.path.link.is_ended() => return Followed::Open,
            None => self.withdrawal.insert(self.send(servers, request, patience)).clone(),
        };
        let answered = tokio::time::timeout(SAME_CONNECTION, outcome.wait_for(Option::is_some)).await;
        let Ok(Ok(answer)) = answered else { return Followed::Open };
        match answer.as_ref() {
            Some(Ok(reply)) => withdrawn(&reply.answer).map_or(Followed::Open, Followed::Answered),
            Some(Err(fault)) if fault.redirect().is_some() => Followed::Redirected,
            Some(Err(Fault::Refused(_))) => {
                // Such as a server that is busy: asked again the next time.
                self.withdrawal = None;
                Followed::Open
            }
            _ => Followed::Open,
        }
    }

    /// Whether nothing more can be done on the connection.
    fn is_followed(&self) -> bool {
        self.withdrawal.is_some() || self.path.link.is_ended()
    }

    /// Sends the withdrawal in a task of its own, so that it is carried out even if nobody waits for it any more.
    fn send(
        &self,
        servers: &Arc<Servers>,
        request: &Request,
        patience: Duration,
    ) -> watch::Receiver<Option<Result<Reply, Fault>>> {
        let (done, outcome) = watch::channel(None);
        let (path, servers, request) = (self.path.clone(), Arc::clone(servers), request.clone());
        self.path.link.runtime().spawn(async move {
            let result = servers.exchange(&path, &request, (false, patience), &mut Untracked).await;
            done.send_replace(Some(result));
        });
        outcome
    }
}
