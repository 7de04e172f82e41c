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
//! A place lives by attempts: `changed` ends when the lease is to be renewed. A claim that may stand in the queue has a
//! lease of [`PLACE`] at most, so that a waiter that is gone keeps others no longer; its grant is then for that length
//! at first, and its first renewal goes over to a lease of the full one. Going over is a put of the same key, which
//! keeps its place.
//!
//! An attempt that finds the directory empty puts its key and is granted; nothing is read. Where it is not empty, the
//! same transaction puts the key behind the others and reads those that decide. A claim that does not wait takes no
//! place, and only reads; for readers and permits, which need not find the directory empty, it puts, looks, and deletes
//! its key again at once.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use dlock_core::backend::notify::Listener;
use dlock_core::backend::{
    Attempt, Busy, Claim, ClaimRequest, Grant, Mode, Renewed, RequestClock, Turn, Validity, Withdrawal, sleep,
};
use dlock_core::{ErrorKind, Failure};
use etcd_client::{Compare, CompareOp, GetOptions, PutOptions, SortOrder, SortTarget, Txn, TxnOp};

use crate::answer::{Answer, Entry, fence, left, unchanged, value};
use crate::ends::Room;
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
pub(crate) const PLACE: i64 = 15;
/// What the value of each key of a claim is greater than, but for a key that was left.
const HELD: &str = "m";

/// A claim on a lock of [`Etcd`](crate::Etcd).
pub struct EtcdClaim {
    pub(crate) shared: Arc<Shared>,
    pub(crate) request: ClaimRequest,
    clock: RequestClock,
    /// The mode in which the key is put: a reader's from the call of a downgrade on.
    pub(crate) mode: Mode,
    /// The key of the number of permits, before which the directory's is the same with a slash.
    pub(crate) number_key: String,
    pub(crate) key: String,
    /// The line about the holder, from the first attempt on.
    pub(crate) line: String,
    pub(crate) lease: Option<Lease>,
    /// The lease of a renewal that was cut off or failed, for the next one: the key may have been put under it.
    pub(crate) next: Option<Lease>,
    /// The lease of a number of permits that may not be stored under it.
    of_number: Option<i64>,
    pub(crate) flight: Flight,
    pub(crate) place: Option<i64>,
    /// The revision of the last change of its key, while it has a place.
    pub(crate) changed: i64,
    /// The channel, and of permits what is known of them.
    wait: Option<(String, Listener, Option<Room>)>,
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
            next: None,
            of_number: None,
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

    /// Is `true` if the key of the claim may stand behind others.
    fn queues(&self) -> bool {
        self.request.waits || self.request.mode != Mode::Exclusive
    }

    /// Takes a lease from the pool or has one made, if the claim has none.
    pub(crate) async fn ensure_lease(&mut self) -> Result<(), Failure> {
        if self.lease.is_none() {
            let full = seconds(self.request.lease);
            let ttl = if self.queues() { full.min(PLACE) } else { full };
            let made = self.shared.servers.lease(ttl, self.request.request_timeout).await?;
            self.lease = Some(made.0);
        }
        Ok(())
    }

    /// Returns the lease, if its proof is too old for a grant, and the account of what may put the key.
    pub(crate) fn parts(&mut self) -> (Option<&mut Lease>, &mut Flight) {
        self.flight.way.1 = self.lease_id();
        let length = self.request.lease;
        let is_old = |lease: &&mut Lease| {
            let ttl = Duration::from_secs(lease.ttl.unsigned_abs());
            ttl.saturating_sub(lease.left()) > ttl.min(length) / 8
        };
        (self.lease.as_mut().filter(is_old), &mut self.flight)
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

    pub(crate) fn lease_id(&self) -> i64 {
        self.lease.as_ref().map_or(0, |lease| lease.id)
    }

    /// Returns the operation that puts the key of the claim.
    pub(crate) fn put(&self) -> TxnOp {
        self.put_as(value(self.mode, &self.line), self.lease_id())
    }

    pub(crate) fn put_as(&self, text: String, lease: i64) -> TxnOp {
        TxnOp::put(&*self.key, text, Some(PutOptions::new().with_lease(lease)))
    }

    /// Returns the operations that read what decides about the claim.
    pub(crate) fn reads(&self) -> Vec<TxnOp> {
        let directory = self.directory();
        let all = || GetOptions::new().with_prefix();
        let to_own = |some: GetOptions| match self.place {
            Some(place) => some.with_max_create_revision(place),
            None => some,
        };
        let mut reads = vec![TxnOp::get(&*self.number_key, None)];
        if self.request.mode == Mode::Exclusive {
            // The first entry, the own one and the one before it are enough. The own one is the last when it is put.
            let first = all().with_sort(SortTarget::Create, SortOrder::Ascend).with_limit(1);
            let last = to_own(all().with_sort(SortTarget::Create, SortOrder::Descend).with_limit(2));
            reads.push(TxnOp::get(&*self.key, None));
            reads.extend([first, last].map(|some| TxnOp::get(&*directory, Some(some))));
        } else {
            reads.push(TxnOp::get(directory, Some(to_own(all()))));
        }
        reads
    }

    /// Returns the transaction of an attempt. Where a semaphore has no number yet, `first` is the revision at which
    /// that was seen, and the operation that stores one.
    fn step(&self, first: Option<(i64, TxnOp)>) -> Txn {
        let mut reads = self.reads();
        if self.place.is_some() {
            return Txn::new().and_then(reads);
        }
        let created = |key: &str| Compare::create_revision(key, CompareOp::Equal, 0);
        let mut when = vec![created(&self.key)];
        if let Some((revision, number)) = first {
            when.push(created(&self.number_key));
            when.push(unchanged(&self.number_key, revision));
            let then = [self.put(), number].into_iter().chain(reads.clone());
            return Txn::new().when(when).and_then(then.collect::<Vec<_>>()).or_else(reads);
        }
        let mut alone = vec![created(&self.directory()).with_prefix()];
        let mut then = vec![self.put()];
        match self.request.mode {
            Mode::Permits { of, .. } => {
                alone.extend(semaphore::is(&self.number_key, of));
                when.extend(semaphore::is(&self.number_key, of));
                then.push(TxnOp::get(&*self.number_key, None));
            }
            _ => {
                alone.push(created(&self.number_key));
                when.push(created(&self.number_key));
            }
        }
        if self.queues() {
            reads.insert(0, TxnOp::txn(Txn::new().when(when).and_then([self.put()])));
        }
        Txn::new().when(alone).and_then(then).or_else(reads)
    }

    /// Notes where the key of the claim was seen.
    pub(crate) const fn stands(&mut self, own: &Entry) {
        (self.place, self.changed) = (Some(own.revision), own.changed);
    }

    /// Notes that the key of the claim was put at this revision, in an empty directory.
    pub(crate) fn alone(&mut self, revision: i64) -> Grant {
        (self.place, self.changed) = (Some(revision), revision);
        self.grant(revision)
    }

    /// Returns the grant of the key that was put at this revision, and waits for nothing any more.
    fn grant(&mut self, revision: i64) -> Grant {
        self.wait = None;
        let mut grant = Grant::new(Validity::Lease(self.request.lease)).with_fence(fence(revision));
        let (ttl, proven_at) = self.lease.as_ref().map_or((0, None), |lease| (lease.ttl, lease.proven_at));
        grant.proven_at = proven_at;
        if ttl < seconds(self.request.lease) {
            grant = grant.with_first_lease(Duration::from_secs(ttl.unsigned_abs()));
        }
        grant
    }

    /// Returns the key of the claim, if it is the one that has its place.
    pub(crate) fn own<'a>(&self, answer: &'a Answer) -> Option<&'a Entry> {
        answer.entries.first().filter(|own| Some(own.revision) == self.place && own.left_for().is_none())
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
        let (behind, lacks) = match rule::place(&answer.modes(), at, permits) {
            Place::Holds => return Ok(Attempt::Granted(self.grant(own.revision))),
            Place::Conflict(_) => return self.missing(answer).map(Attempt::Busy),
            Place::Behind(at) => (Some(&answer.entries[at]), None),
            // Without a number, how many permits there are may change with each end.
            Place::Lacks(lacks) => (None, answer.number.map(|_| lacks.into())),
        };
        if self.request.waits {
            let behind = behind.filter(|entry| *entry.name == *entry.key.as_bytes());
            let channel = behind.map_or_else(|| self.directory(), |entry| entry.key.clone());
            let (place, seen) = (own.revision, answer.revision);
            self.listen(channel, lacks.map(|lacks| Room { place, seen, lacks }))?;
        }
        Ok(Attempt::Busy(self.busy(answer)))
    }

    /// Judges an answer without the key of the claim: an entry of another kind is a conflict, and so is another number.
    pub(crate) fn missing(&self, answer: &Answer) -> Result<Busy, Failure> {
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

    fn busy(&self, answer: &Answer) -> Busy {
        let mut busy = Busy::default();
        let first = answer.entries.first().filter(|first| first.key != self.key);
        busy.holder = first.map(|first| Box::new(first.holder(answer.permits())));
        busy
    }

    pub(crate) fn listen(&mut self, channel: String, room: Option<Room>) -> Result<(), Failure> {
        let listener = match self.wait.take() {
            Some((other, listener, _)) if other == channel => listener,
            _ => self.shared.channels.listen(&channel)?,
        };
        self.wait = Some((channel, listener, room));
        Ok(())
    }

    /// Waits until those that came before have put their keys, and for none of them longer than a request may take.
    async fn turn<'a>(&self, shared: &'a Shared) -> Result<Option<Turn<'a>>, Failure> {
        self.clock.queued();
        let turn = shared.turns.take(&self.number_key, self.request.request_timeout).await;
        if self.clock.written() { Ok(turn) } else { Err(Failure::unavailable(RequestClock::UNSENT)) }
    }

    async fn try_once(&mut self) -> Result<Attempt, Failure> {
        let (mut requeued, mut lost_one, mut first) = (false, false, None);
        for _ in 0..STEPS {
            let puts = self.place.is_none();
            let shared = Arc::clone(&self.shared);
            let turn = if puts && self.request.waits { self.turn(&shared).await? } else { None };
            self.ensure_lease().await?;
            let txn = self.step(first.take());
            let answer = match self.prove(txn, puts).await {
                Err(failure) if failure.kind() == LEASE_GONE => {
                    requeued |= self.lost_lease();
                    // Two leases of the pool have ended before their time. The rest may have too: the servers lost
                    // them, or this machine's clock stood still.
                    if std::mem::replace(&mut lost_one, true) {
                        self.shared.servers.pool.clear();
                    }
                    continue;
                }
                answer => answer?,
            };
            drop(turn);
            if let (Some(number), Some(lease)) = (&answer.number, self.of_number)
                && number.lease != lease
            {
                // Another claim stored the number first. A failure of this is none of the attempt, which may have been
                // granted.
                let _ = self.shared.end_later(lease, Duration::ZERO);
            }
            if answer.number.is_some() {
                self.of_number = None;
            }
            let mut attempt = match (answer.find(&self.key), answer.number) {
                (Some(at), _) if answer.entries[at].lease != self.lease_id() => {
                    self.stands(&answer.entries[at]);
                    let _ = self.adopts(&answer.entries[at]);
                    continue;
                }
                (Some(at), _) => self.judge(&answer, at)?,
                (None, _) if puts && answer.succeeded => Attempt::Granted(self.alone(answer.revision)),
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
                    let lease = match self.of_number {
                        Some(lease) => lease,
                        None => *self.of_number.insert(servers.grant(semaphore::REMEMBERED, limit).await?.id),
                    };
                    let options = PutOptions::new().with_lease(lease);
                    let put = TxnOp::put(&*self.number_key, semaphore::text(of), Some(options));
                    first = Some((answer.revision, put));
                    continue;
                }
                // The number was stored by another claim between two steps.
                (None, Some(_)) if self.missing(&answer).is_ok() => continue,
                (None, _) => Attempt::Busy(self.missing(&answer)?),
            };
            if let Attempt::Busy(busy) = &mut attempt {
                busy.requeued = requeued;
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
    pub(crate) async fn remove(&mut self) -> Result<(), Failure> {
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
        if let Some((_, listener, _)) = &mut self.wait {
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
        let (Some((_, listener, room)), Some(lease)) = (&mut self.wait, &self.lease) else {
            return std::future::pending().await;
        };
        let news = async {
            loop {
                listener.changed().await?;
                if room.as_mut().is_none_or(|room| room.opens(listener.text().as_deref())) {
                    return Ok(());
                }
            }
        };
        tokio::select! {
            news = news => news,
            () = sleep(lease.left_of_third()) => Ok(()),
        }
    }

    async fn renew(&mut self) -> Result<Renewed, Failure> {
        if self.lease.as_ref().is_some_and(|lease| lease.ttl < seconds(self.request.lease)) {
            return self.go_over().await;
        }
        // The engine counts from this renewal, whatever was proven before.
        if let Some(lease) = &mut self.lease {
            lease.proven_at = None;
        }
        let answer = match self.prove(Txn::new().and_then([TxnOp::get(&*self.key, None)]), false).await {
            Err(failure) if failure.kind() == LEASE_GONE => return Ok(Renewed::Gone),
            answer => answer?,
        };
        match self.own(&answer) {
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
        self.go_over().await
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
        if let Some(lease) = self.of_number {
            self.shared.end_unless_stored(&self.number_key, lease);
        }
        // Nothing is put under the next one either, since the key is not the same any more.
        if self.is_clean() {
            let leases = self.lease.take().into_iter().chain(self.next.take());
            leases.for_each(|lease| self.shared.servers.pool.put(lease));
        }
    }
}

impl fmt::Debug for EtcdClaim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EtcdClaim").field("key", &self.request.key).finish_non_exhaustive()
    }
}
