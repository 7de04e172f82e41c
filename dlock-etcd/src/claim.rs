//! One claim on one lock.
//!
//! | a claim is | `lease` | `place` | what an attempt does |
//! |---|---|---|---|
//! | new | none, or one of the pool | none | puts its key, if that is not there, and looks at those before it |
//! | waiting | its own | the create revision of its key | looks again; a key that is gone is put anew, and the answer says `requeued` |
//! | granted | its own | the same, which is the fence | adopts the lock |
//! | withdrawn, or left | its own, for the pool; none if it was revoked | none | |
//!
//! Each attempt that puts is in flight by a way of its own, since the servers carry requests out in any order. Claims
//! of this process put their keys for one directory one after the other, so that they stand there in their order.
//!
//! A place lives by attempts: `changed` ends when the lease is to be renewed. Where the lease is longer than [`PLACE`],
//! a claim that has to wait goes over to one of that length, so that a waiter that is gone keeps others no longer; its
//! grant is then for that length at first, and its first renewal goes over to a lease of the full one. Going over is a
//! put of the same key, which keeps its place.
//!
//! A claim that does not wait takes no place: its put is made only if the directory is empty. For readers and permits,
//! which need not find it empty, it puts, looks, and deletes its key again at once.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use dlock_core::backend::notify::Listener;
use dlock_core::backend::{
    Attempt, Busy, Claim, ClaimRequest, Grant, Mode, Renewed, RequestClock, Turn, Validity, Withdrawal,
    sleep_until,
};
use dlock_core::{ErrorKind, Failure};
use etcd_client::{Compare, CompareOp, GetOptions, PutOptions, SortOrder, SortTarget, Txn, TxnOp};

use crate::answer::{Answer, Entry, fence, left, unchanged, value};
use crate::error::LEASE_GONE;
use crate::lease::{Lease, seconds};
use crate::names::{claim_key, number_key};
use crate::proof::{Flight, prove};
use crate::rule::{self, Place};
use crate::semaphore;
use crate::shared::Shared;

/// The most steps of one attempt.
const STEPS: u32 = 4;
/// The length in seconds of the lease of a claim that waits.
const PLACE: i64 = 15;
/// What the value of each key of a claim is greater than, but for a key that was left.
const HELD: &str = "m";

/// A claim on a lock of [`Etcd`](crate::Etcd).
pub struct EtcdClaim {
    pub(crate) shared: Arc<Shared>,
    pub(crate) request: ClaimRequest,
    clock: RequestClock,
    /// The mode in which the key is put: a reader's from the call of a downgrade on.
    mode: Mode,
    /// The key of the number of permits, before which the directory's is the same with a slash.
    pub(crate) number_key: String,
    pub(crate) key: String,
    /// The line about the holder, from the first attempt on.
    line: String,
    lease: Option<Lease>,
    /// Is `true` if the lease was made by the attempt that is under way.
    is_fresh: bool,
    flight: Flight,
    place: Option<i64>,
    /// The revision of the last change of its key, while it has a place.
    changed: i64,
    wait: Option<(String, Listener)>,
    /// The claim had something on the servers, which a withdrawal has removed.
    removed: bool,
}

impl EtcdClaim {
    pub(crate) fn new(shared: Arc<Shared>, request: ClaimRequest, clock: RequestClock) -> Self {
        let number_key = number_key(&shared.servers.config.prefix, &request.key);
        Self {
            key: claim_key(&number_key, &request.token),
            line: request.describe(),
            mode: request.mode,
            number_key,
            shared,
            request,
            clock,
            lease: None,
            is_fresh: false,
            flight: Flight::default(),
            place: None,
            changed: 0,
            wait: None,
            removed: false,
        }
    }

    pub(crate) fn directory(&self) -> String {
        format!("{}/", self.number_key)
    }

    /// Takes a lease from the pool or has one made, if the claim has none.
    pub(crate) async fn ensure_lease(&mut self) -> Result<(), Failure> {
        self.is_fresh = false;
        if self.lease.is_none() {
            let made =
                self.shared.servers.lease(seconds(self.request.lease), self.request.request_timeout).await?;
            (self.lease, self.is_fresh) = (Some(made.0), made.1);
        }
        Ok(())
    }

    /// Returns the lease, if it has to be renewed, and the account of what may put the key.
    pub(crate) fn parts(&mut self) -> (Option<&mut Lease>, &mut Flight) {
        self.flight.way.1 = self.lease_id();
        (self.lease.as_mut().filter(|_| !self.is_fresh), &mut self.flight)
    }

    /// Notes that the lease has ended, and with it all that was or will be put under it. Returns whether the claim had
    /// a place.
    pub(crate) fn lost_lease(&mut self) -> bool {
        self.lease = None;
        self.flight.account.clear();
        self.place.take().is_some()
    }

    /// Takes another lease for the next attempt, since this one may have ended. What was or will be put under it is
    /// withdrawn if it has not.
    pub(crate) fn doubts_lease(&mut self) {
        self.flight.begin();
        self.lease = None;
    }

    async fn prove(&mut self, txn: Txn, puts: bool) -> Result<Answer, Failure> {
        let (shared, limit) = (Arc::clone(&self.shared), self.request.request_timeout);
        let (lease, flight) = self.parts();
        let flights = if puts { vec![flight] } else { Vec::new() };
        let answer = prove(&shared.servers, limit, txn, lease.into_iter().collect(), flights).await?;
        Ok(Answer::of(&answer, &self.number_key))
    }

    fn lease_id(&self) -> i64 {
        self.lease.as_ref().map_or(0, |lease| lease.id)
    }

    /// Returns the operation that puts the key of the claim.
    pub(crate) fn put(&self) -> TxnOp {
        self.put_as(value(self.mode, &self.line), self.lease_id())
    }

    fn put_as(&self, text: String, lease: i64) -> TxnOp {
        TxnOp::put(&*self.key, text, Some(PutOptions::new().with_lease(lease)))
    }

    /// Returns the operations that read what decides about the claim.
    pub(crate) fn reads(&self) -> Vec<TxnOp> {
        let directory = self.directory();
        let all = || GetOptions::new().with_prefix();
        let mut reads = vec![TxnOp::get(&*self.number_key, None)];
        if self.request.mode == Mode::Exclusive {
            // The first entry, the own one and that before it are enough. The own one is the last when it is put.
            let first = all().with_sort(SortTarget::Create, SortOrder::Ascend).with_limit(1);
            let mut last = all().with_sort(SortTarget::Create, SortOrder::Descend).with_limit(2);
            if let Some(place) = self.place {
                last = last.with_max_create_revision(place);
            }
            reads.push(TxnOp::get(&*self.key, None));
            reads.extend([first, last].map(|some| TxnOp::get(&*directory, Some(some))));
        } else {
            reads.push(TxnOp::get(directory, Some(all())));
        }
        reads
    }

    /// Returns the transaction of an attempt. Where a semaphore has no number yet, `first` is the revision at which
    /// that was seen, and the operation that stores one.
    fn step(&self, first: Option<(i64, TxnOp)>) -> Txn {
        let reads = self.reads();
        if self.place.is_some() {
            return Txn::new().and_then(reads);
        }
        let created = |key: &str| Compare::create_revision(key, CompareOp::Equal, 0);
        let mut when = vec![created(&self.key)];
        let mut then = vec![self.put()];
        match (self.request.mode, first) {
            (Mode::Permits { .. }, Some((revision, number))) => {
                when.push(created(&self.number_key));
                when.push(unchanged(&self.number_key, revision));
                then.push(number);
            }
            (Mode::Permits { of, .. }, None) => when.extend(semaphore::is(&self.number_key, of)),
            (mode, _) => {
                when.push(created(&self.number_key));
                if mode == Mode::Exclusive && !self.request.waits {
                    when.push(created(&self.directory()).with_prefix());
                }
            }
        }
        then.extend(reads.clone());
        Txn::new().when(when).and_then(then).or_else(reads)
    }

    /// Notes where the key of the claim was seen.
    pub(crate) const fn stands(&mut self, own: &Entry) {
        (self.place, self.changed) = (Some(own.revision), own.changed);
    }

    /// Takes over the lease that the key has, if that is another one than the claim knows: it was put by another object
    /// with the token of this claim, or the answer to its going over was lost.
    fn adopts(&mut self, own: &Entry) -> bool {
        let is_other = own.lease != self.lease_id();
        if is_other {
            let (id, ttl) = (own.lease, PLACE.min(seconds(self.request.lease)));
            self.lease = Some(Lease { id, ttl, renewed: tokio::time::Instant::now(), stream: None });
        }
        is_other
    }

    /// Goes over to a lease of this length, which runs in full from now on.
    async fn go_over(&mut self, ttl: i64) -> Result<Renewed, Failure> {
        let (limit, shared) = (self.request.request_timeout, Arc::clone(&self.shared));
        let (mut lease, is_fresh) = shared.servers.lease(ttl, limit).await?;
        let put = self.put_as(value(self.mode, &self.line), lease.id);
        let renewed = if is_fresh { Vec::new() } else { vec![&mut lease] };
        // Only from what it is known to be: an earlier request of this kind may arrive after a later one.
        let same = Compare::mod_revision(&*self.key, CompareOp::Equal, self.changed);
        let look = TxnOp::get(&*self.key, None);
        let txn = Txn::new().when([same]).and_then([put]).or_else([look]);
        let answer = prove(&shared.servers, limit, txn, renewed, Vec::new()).await;
        // What has ended is the other lease, of the pool: the next try takes another one.
        let answer = answer.map_err(|failure| match failure.kind() {
            LEASE_GONE => Failure::unavailable(failure.message().to_owned()),
            _ => failure,
        });
        let answer = Answer::of(&answer?, &self.number_key);
        let own = answer.entries.first();
        let own = own.filter(|own| Some(own.revision) == self.place && own.left_for().is_none());
        match own {
            _ if answer.succeeded => self.changed = answer.revision,
            // This request was sent twice.
            Some(own) if own.lease == lease.id => self.changed = own.changed,
            Some(own) => {
                self.changed = own.changed;
                let _ = self.adopts(own);
                shared.servers.pool.put(lease);
                return Err(Failure::unknown("the key of the claim was put by an earlier request"));
            }
            None => {
                shared.servers.pool.put(lease);
                return Ok(Renewed::Gone);
            }
        }
        let before = self.lease.replace(lease).filter(|_| !self.flight.account.may_arrive());
        before.into_iter().for_each(|before| shared.servers.pool.put(before));
        Ok(Renewed::Extended)
    }

    fn not_left(&self) -> Compare {
        Compare::value(&*self.key, CompareOp::Greater, HELD)
    }

    /// Judges an answer that has the key of the claim, at this index.
    pub(crate) fn judge(&mut self, answer: &Answer, at: usize) -> Result<Attempt, Failure> {
        let own = &answer.entries[at];
        self.stands(own);
        if self.adopts(own) {
            return Err(Failure::unknown(
                "the key of the claim has another lease, which is yet to be renewed",
            ));
        }
        let permits = answer.permits().unwrap_or(0);
        let behind = match rule::place(&answer.modes(), at, permits) {
            Place::Holds => {
                let grant = Grant::new(Validity::Lease(self.request.lease)).with_fence(fence(own.revision));
                return Ok(Attempt::Granted(match self.lease.as_ref().map(|lease| lease.ttl) {
                    Some(ttl) if ttl < seconds(self.request.lease) => {
                        grant.with_first_lease(Duration::from_secs(ttl.unsigned_abs()))
                    }
                    _ => grant,
                }));
            }
            Place::Conflict(_) => return self.missing(answer),
            Place::Behind(behind) => behind,
        };
        if self.request.waits {
            let behind =
                behind.map(|at| &answer.entries[at]).filter(|entry| *entry.name == *entry.key.as_bytes());
            let channel = behind.map_or_else(|| self.directory(), |entry| entry.key.clone());
            self.listen(channel)?;
        }
        Ok(self.busy(answer))
    }

    /// Judges an answer without the key of the claim: an entry of another kind is a conflict, and so is another number.
    pub(crate) fn missing(&self, answer: &Answer) -> Result<Attempt, Failure> {
        if answer.is_foreign {
            let what =
                format!("by another program, which has a value at {:?}; use another key", self.number_key);
            return Err(Failure::new(ErrorKind::Conflict, what));
        }
        let others = answer.entries.iter().map(|entry| entry.mode);
        let number = answer.permits().map(|of| Mode::Permits { of, take: 1 });
        let own = self.request.mode.permits().is_some();
        let other = number.into_iter().chain(others.filter(|mode| mode.permits().is_some() != own));
        match other.filter_map(|other| self.request.mode.conflict(&other)).next() {
            Some(conflict) => Err(conflict),
            None => Ok(self.busy(answer)),
        }
    }

    fn busy(&self, answer: &Answer) -> Attempt {
        let mut busy = Busy::default();
        let first = answer.entries.first().filter(|first| first.key != self.key);
        busy.holder = first.map(|first| Box::new(first.holder(answer.permits())));
        Attempt::Busy(busy)
    }

    pub(crate) fn listen(&mut self, channel: String) -> Result<(), Failure> {
        if self.wait.as_ref().is_none_or(|(other, _)| *other != channel) {
            let listener = self.shared.channels.listen(&channel)?;
            self.wait = Some((channel, listener));
        }
        Ok(())
    }

    /// Waits until those that came before have put their keys, and for none of them longer than a request may take.
    async fn turn<'a>(&self, shared: &'a Shared) -> Result<Option<Turn<'a>>, Failure> {
        self.clock.queued();
        let turn = shared.turns.take(&self.number_key, self.request.request_timeout).await;
        if self.clock.written() { Ok(turn) } else { Err(Failure::unavailable(RequestClock::UNSENT)) }
    }

    async fn try_once(&mut self) -> Result<Attempt, Failure> {
        let (mut requeued, mut first, mut made) = (false, None, None);
        for _ in 0..STEPS {
            let puts = self.place.is_none();
            let shared = Arc::clone(&self.shared);
            let turn = if puts && self.request.waits { self.turn(&shared).await? } else { None };
            self.ensure_lease().await?;
            let txn = self.step(first.take());
            let answer = match self.prove(txn, puts).await {
                Err(failure) if failure.kind() == LEASE_GONE => {
                    requeued |= self.lost_lease();
                    continue;
                }
                answer => answer?,
            };
            drop(turn);
            // Another claim stored the number first: the lease for it would stay for days. No failure of this is one of
            // the attempt, which may have been granted.
            let is_unused = |lease: &i64| answer.number.is_some_and(|number| number.lease != *lease);
            if let Some(lease) = made.take().filter(is_unused) {
                let _ = self.shared.end_later(lease, Duration::ZERO);
            }
            let mut attempt = match (answer.find(&self.key), answer.number) {
                (Some(at), _) if answer.entries[at].lease != self.lease_id() => {
                    self.stands(&answer.entries[at]);
                    let _ = self.adopts(&answer.entries[at]);
                    continue;
                }
                (Some(at), _) => self.judge(&answer, at)?,
                (None, _) if !puts => {
                    // The place was lost.
                    (self.place, requeued) = (None, true);
                    continue;
                }
                (None, None) if self.request.mode.permits().is_some() => {
                    // Nothing stands there but permits of the same number, if anything.
                    let _ = self.missing(&answer)?;
                    let (servers, limit) = (&self.shared.servers, self.request.request_timeout);
                    let of = self.request.mode.permits().unwrap_or(0);
                    let (put, lease) = servers.put_number(limit, &self.number_key, of).await?;
                    (first, made) = (Some((answer.revision, put)), Some(lease));
                    continue;
                }
                // The number was stored by another claim between two steps.
                (None, Some(_)) if self.missing(&answer).is_ok() => continue,
                (None, _) => self.missing(&answer)?,
            };
            if let Attempt::Busy(busy) = &mut attempt {
                busy.requeued = requeued;
                let is_long = self.lease.as_ref().is_some_and(|lease| lease.ttl > PLACE);
                if self.request.waits && self.place.is_some() && is_long && self.flight.account.is_empty() {
                    // If it fails, the place is kept for longer, or the next attempt finds that it is gone.
                    let _ = self.go_over(PLACE).await;
                }
            }
            if let (Attempt::Granted(_), Some(number)) =
                (&attempt, answer.number.filter(|number| number.is_old()))
            {
                self.shared.remember(&self.number_key, number);
            }
            return Ok(attempt);
        }
        Err(Failure::unknown("the key of the claim was deleted, or its directory changed, again and again"))
    }

    /// Deletes the key of the claim, and has nothing of it arrive later.
    async fn remove(&mut self) -> Result<(), Failure> {
        let (limit, servers) = (self.request.request_timeout, &self.shared.servers);
        let txn = Txn::new().when([self.not_left()]).and_then([TxnOp::delete(&*self.key, None)]);
        self.removed |= servers.txn(limit, txn).await?.succeeded();
        self.settle().await
    }

    /// Has nothing of the claim arrive later, whose key is gone or left.
    async fn settle(&mut self) -> Result<(), Failure> {
        let unsettled: BTreeSet<i64> = self.flight.account.ways().map(|(_, lease)| *lease).collect();
        for lease in &unsettled {
            self.shared.servers.revoke(*lease, self.request.request_timeout).await?;
        }
        if !unsettled.is_empty() {
            let _ = self.lost_lease();
        }
        self.flight.account.withdrawn();
        self.place = None;
        Ok(())
    }
}

impl Claim for EtcdClaim {
    async fn attempt(&mut self) -> Result<Attempt, Failure> {
        self.removed = false;
        // What was heard before the step is part of its answer.
        if let Some((_, listener)) = &mut self.wait {
            listener.forget();
        }
        let attempt = self.try_once().await;
        let is_over = match &attempt {
            Ok(Attempt::Busy(_)) => !self.request.waits,
            Err(failure) => failure.kind() == ErrorKind::Conflict,
            Ok(Attempt::Granted(_)) => false,
        };
        if is_over && self.place.is_some() {
            // If it fails, the engine withdraws the claim.
            let _ = self.remove().await;
        }
        attempt
    }

    async fn changed(&mut self) -> Result<(), Failure> {
        let (Some((_, listener)), Some(lease)) = (&mut self.wait, &self.lease) else {
            return std::future::pending().await;
        };
        let due = lease.renewed + Duration::from_secs(lease.ttl.unsigned_abs()) / 3;
        tokio::select! {
            news = listener.changed() => news,
            () = sleep_until(due) => Ok(()),
        }
    }

    async fn renew(&mut self) -> Result<Renewed, Failure> {
        let full = seconds(self.request.lease);
        if self.lease.as_ref().is_some_and(|lease| lease.ttl < full) {
            return self.go_over(full).await;
        }
        self.is_fresh = false;
        let answer = match self.prove(Txn::new().and_then([TxnOp::get(&*self.key, None)]), false).await {
            Err(failure) if failure.kind() == LEASE_GONE => return Ok(Renewed::Gone),
            answer => answer?,
        };
        match answer
            .entries
            .first()
            .filter(|own| Some(own.revision) == self.place && own.left_for().is_none())
        {
            Some(own) if self.adopts(own) => {
                self.changed = own.changed;
                Err(Failure::unknown("the lease of the key was not renewed yet"))
            }
            Some(_) => Ok(Renewed::Extended),
            None => Ok(Renewed::Gone),
        }
    }

    async fn downgrade(&mut self) -> Result<Renewed, Failure> {
        self.mode = Mode::Shared;
        // A put keeps the create revision, and with it the order and the fence.
        self.go_over(seconds(self.request.lease)).await
    }

    async fn withdraw(&mut self) -> Result<Withdrawal, Failure> {
        self.wait = None;
        if !self.is_clean() {
            self.remove().await?;
        }
        Ok(if self.removed { Withdrawal::REMOVED } else { Withdrawal::ABSENT })
    }

    async fn leave(&mut self, taken_for: Duration) -> Result<Withdrawal, Failure> {
        let (limit, shared) = (self.request.request_timeout, Arc::clone(&self.shared));
        let servers = &shared.servers;
        // Longer by a second, since it runs already when the key is put under it.
        let lease = servers.grant(seconds(taken_for) + 1, limit).await?;
        let txn = Txn::new()
            .when([self.not_left()])
            .and_then([self.put_as(left(&self.line, taken_for), lease.id)])
            .or_else([TxnOp::get(&*self.key, None)]);
        let answer = Answer::of(&servers.txn(limit, txn).await?, &self.number_key);
        // An earlier request may have left it.
        let before = answer.entries.first().filter(|own| own.left_for().is_some()).map(|own| own.lease);
        let left = if answer.succeeded { Some(lease.id) } else { before };
        if left != Some(lease.id) {
            // The one of this request, which would stay for as long as the key.
            let _ = shared.end_later(lease.id, Duration::ZERO);
        }
        if let Some(id) = left {
            self.removed = true;
            shared.end_later(id, taken_for)?;
        }
        self.settle().await?;
        Ok(if self.removed { Withdrawal::REMOVED } else { Withdrawal::ABSENT })
    }

    fn request_clock(&self) -> Option<RequestClock> {
        Some(self.clock.clone())
    }

    fn is_clean(&self) -> bool {
        self.place.is_none() && self.flight.account.is_empty()
    }
}

impl Drop for EtcdClaim {
    fn drop(&mut self) {
        if self.is_clean()
            && let Some(lease) = self.lease.take()
        {
            self.shared.servers.pool.put(lease);
        }
    }
}

impl fmt::Debug for EtcdClaim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EtcdClaim").field("key", &self.request.key).finish_non_exhaustive()
    }
}
