//! The contract between the engine and a backend.
//!
//! A backend supplies primitives; waiting, deadlines, retries, renewal, loss, reentrancy and spans are written once, in
//! this crate. To add a backend, implement [`Backend`] and [`Claim`] with plain `async fn`s, and run the conformance
//! suite of `dlock-testkit` over it. [`Memory`](crate::Memory) is the reference implementation. A backend that can list
//! its locks, and take a lock away from its holder, implements [`Administration`] too.
//!
//! # The life of a claim
//!
//! ```text
//! claim() ── attempt() ─┬─ Granted ── granted(signal) ── renew()* ── withdraw()
//!              ▲        ├─ Busy ───── changed() ─┐
//!              └────────┼────────────────────────┘        withdraw() may follow anything, at any time
//!                       └─ Err ────── attempt() again, or withdraw()     and no attempt() follows it
//! ```
//!
//! # Rules
//!
//! 1. **One token.** A claim has one [`Token`] for its whole life and leaves it on the server. Every step is idempotent
//!    by it: an attempt that finds its own token adopts the lock; renewal and withdrawal touch nothing else. Another
//!    object may have put the token there: what a step has to know of the lock, it reads from the server.
//! 2. **Every await can be the last.** The engine drops the future of any step when the caller is dropped or a request
//!    takes too long, and afterwards calls `attempt` or `withdraw` on the same claim. A request that is already on its
//!    way may still be carried out; withdrawing must therefore follow it on the same connection where the backend has
//!    one, so that it arrives later. [`InFlight`] keeps account of requests that may still arrive: by which way a
//!    withdrawal has to follow, whether it [settles](Withdrawal::settled), and whether an attempt may find the claim's
//!    own token, so that its answer says less than that of a first attempt.
//! 3. **`Granted` counts from the attempt's own send.** The lease that is reported runs for at least its length from
//!    the moment the granting attempt was called: an attempt that adopts an earlier grant must extend it, report what
//!    is left, or say from when it counts ([`Grant::proven_at`]) and how long it is at first, where that is less
//!    ([`Grant::first_lease`]).
//! 4. **Unknown is not failed.** A timeout or a connection lost after the request was sent is
//!    [`Failure::unknown`]; a request that certainly did not take effect is [`Failure::unavailable`] or a final kind.
//! 5. **Renewal never re-creates.** A lock that is gone stays gone: [`Renewed::Gone`].
//! 6. **All or nothing.** [`Backend::attempt_all`] takes every lock or none, in one step that no failure can tear.
//! 7. **A withdrawn claim never asks again.** A withdrawal may arrive late, and would remove a fresh grant under the
//!    same token. The engine never attempts after it has withdrawn, and no attempt withdraws by itself: a grant that is
//!    worth nothing is [`Failure::of_worthless_grant`].
//! 8. **No mode without its capability.** [`ClaimRequest::mode`] is [`Mode::Exclusive`] unless the backend has the
//!    [capability](Capabilities). Where several hold a key at a time, each has a claim of its own, with token, lease
//!    and fence; all other rules are the same. A key that is used in another way is a
//!    [`Conflict`](crate::ErrorKind::Conflict) ([`Mode::conflict`]). Where a claim [has
//!    preference](ClaimRequest::has_preference), newcomers are kept out for [`PREFERENCE`], and let in for as long
//!    after that. A withdrawal ends the preference, and until then the claim is not [clean](Claim::is_clean): the
//!    engine withdraws a claim that comes to stand behind others of its process, which ask for the key in its place.
//! 9. **A key that is left has no owner.** [`Claim::leave`] is a release after which the key stays taken for a time.
//!    The key keeps its fence and the line of its last holder, and no request of the claim that left it touches it any
//!    more.
//! 10. **A hold becomes weaker in one step.** [`Claim::downgrade`] lets no writer in between, and is asked for again
//!     until its outcome is known; a renewal and a withdrawal find the lock in either form.
//! 11. **Any runtime.** `renew` and `withdraw` run on the engine's own thread, with a runtime of its own. A connection
//!     whose I/O is driven by the caller's runtime must not be needed there. All other steps are polled in a tokio
//!     runtime too, the caller's or the engine's, and not always in the same one. It may have neither timers nor I/O:
//!     [`sleep`], [`within`] and their like have timers of the engine's own, and
//!     [`keeper::runtime`](crate::keeper::runtime) has I/O.

mod administration;
mod announcements;
mod answers;
pub(crate) mod backoff;
mod boxed;
mod capabilities;
mod diagnosis;
pub(crate) mod dynamic;
mod entropy;
mod host;
pub mod in_flight;
mod lock_id;
mod names;
mod node;
pub mod notify;
mod occupancy;
pub(crate) mod request_clock;
pub(crate) mod requirement;
pub mod shares;
mod signal;
mod turns;
mod url;

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::runtime::Handle;

pub use self::administration::{Administration, Unadministered};
pub use self::announcements::Announcements;
pub use self::answers::{
    Attempt, BatchAttempt, Busy, Forced, Grant, OthersWaiting, Renewed, Validity, Withdrawal,
};
pub use self::backoff::Backoff;
pub(crate) use self::backoff::PauseLimit;
pub use self::boxed::{BoxedFuture, boxed};
pub use self::capabilities::Capabilities;
pub use self::diagnosis::{Finding, NodeState, Severity};
pub use self::dynamic::NodeClaim;
pub use self::entropy::Entropy;
pub(crate) use self::host::ClaimHost;
pub use self::host::Host;
pub use self::in_flight::InFlight;
pub use self::lock_id::LockId;
pub use self::names::{escape_key, unescape_key};
pub(crate) use self::node::LendsBackend;
pub use self::node::Node;
pub use self::occupancy::Occupancy;
pub use self::request_clock::{RequestClock, RequestStage};
pub use self::signal::{Signal, SignalSink};
pub use self::turns::{Turn, Turns};
pub use self::url::UrlParts;
use crate::clock::Clock;
use crate::error::Failure;
pub use crate::guarded::{guard_opening, tell};
use crate::holder::{Holder, Identity};
pub use crate::holder::{LEFT_BEHIND, holder_line};
use crate::key::Key;
pub use crate::mode::{MOST_PERMITS, Mode, PERMITS_REMEMBERED, PREFERENCE, PREFERENCE_ALIVE};
use crate::options::Options;
pub use crate::options::margin;
pub use crate::runtime::timer::{by_then, by_then_if, question_limit, sleep, sleep_until, within};
pub use crate::server_address::ServerAddress;
#[doc(hidden)]
pub use crate::sync::plain::{Mutex, MutexGuard};
use crate::telemetry::Trace;
use crate::token::Token;

/// A lock service: Redis, ZooKeeper, a database, this process's memory.
pub trait Backend: fmt::Debug + Send + Sync + 'static {
    /// One series of attempts under one token.
    type Claim: Claim;

    /// Returns a short lower-case name for errors, spans and metrics, such as `redis`.
    fn name(&self) -> &'static str;

    /// Returns the abilities of the backend.
    fn capabilities(&self) -> Capabilities;

    /// Returns the address of its one server, for spans and metrics; `None`, the default, when there is none, or
    /// several.
    fn server_address(&self) -> Option<ServerAddress> {
        None
    }

    /// Returns the clock of this process by which the leases of this backend are measured.
    fn clock(&self) -> Clock {
        Clock::system()
    }

    /// Returns the id of the lock that `key` names, which is the same in all processes that reach the same lock. No I/O
    /// happens here. Batches are taken in the order of the ids, and two keys with one id are one lock: keys in
    /// different servers, databases or tables, or under different prefixes, must have different ids.
    fn lock_id(&self, key: &Key) -> LockId;

    /// Prepares a claim. No I/O happens here.
    fn claim(&self, request: ClaimRequest) -> Self::Claim;

    /// Tries for several locks at once, all or nothing, and never waits for other holders. The default cannot.
    ///
    /// The keys of the claims are different, and the claims stay claims of their own: each is renewed and withdrawn by
    /// itself. None of them [takes over](ClaimRequest::takes_over). A claim that finds its own token adopts its lock,
    /// as in an attempt of its own.
    ///
    /// # Errors
    ///
    /// [`Failure::unknown`] when the request may have taken effect, on any of them; every other failure means that it
    /// did not.
    ///
    /// # Cancel safety
    ///
    /// May be dropped at any await; the outcome of all claims then counts as unknown.
    fn attempt_all(
        &self,
        claims: &mut [&mut Self::Claim],
    ) -> impl Future<Output = Result<BatchAttempt, Failure>> + Send {
        let _ = claims;
        std::future::ready(Ok(BatchAttempt::Separately))
    }

    /// Returns the holder of `key`; `None` when it is not held.
    ///
    /// # Errors
    ///
    /// A [`Failure`] when the backend cannot be asked.
    fn inspect(&self, key: &Key) -> impl Future<Output = Result<Option<Holder>, Failure>> + Send;

    /// Returns all holders of `key`, and the number of its permits if it is a semaphore. The default, for backends
    /// whose locks have one holder, asks [`inspect`](Self::inspect).
    ///
    /// # Errors
    ///
    /// A [`Failure`] when the backend cannot be asked.
    fn occupancy(&self, key: &Key) -> impl Future<Output = Result<Occupancy, Failure>> + Send {
        async { Ok(Occupancy::new(None, self.inspect(key).await?.into_iter().collect())) }
    }

    /// Announces to the observers of `key`, in all processes, that its leader has changed: their
    /// [`announcements`](Self::announcements) have an item. Nothing depends on an announcement, and none is repeated:
    /// where one is lost, the observers see the change when they next ask.
    ///
    /// The engine calls it where the backend has the [capability](Capabilities::announces), after a term of an election
    /// has begun or has ended by a release, and after a lock was taken away by force. It is called for no other lock.
    ///
    /// # Errors
    ///
    /// A [`Failure`] when nothing was announced. The default is unsupported.
    ///
    /// # Cancel safety
    ///
    /// May be dropped at any await.
    fn announce(&self, key: &Key) -> impl Future<Output = Result<(), Failure>> + Send {
        let _ = key;
        std::future::ready(Err(Failure::unsupported("announce who leads")))
    }

    /// Subscribes to the announcements of `key` from now on, without I/O. Where a server has to confirm the
    /// subscription, its confirmation is an item too, since an announcement may have been missed until then. The
    /// default has no items.
    fn announcements(&self, key: &Key) -> Announcements {
        let _ = key;
        Announcements::none()
    }

    /// Returns the part of the backend that operators use; `None`, the default, when the backend can neither list its
    /// locks nor take one away. The answer is the same for as long as the backend exists. A decorator that changes keys
    /// or answers returns an administration of its own, and not that of its backend.
    fn administration(&self) -> Option<&dyn Administration> {
        None
    }

    /// Asks the server a cheap question that it only answers if it could be asked for a lock. The default
    /// [inspects](Self::inspect) a key that is never held.
    ///
    /// # Errors
    ///
    /// A [`Failure`] when the backend cannot be asked.
    fn ping(&self) -> impl Future<Output = Result<(), Failure>> + Send {
        async {
            let key = Key::new("dlock-ping")?;
            self.inspect(&key).await.map(drop)
        }
    }

    /// Looks for settings of the server and rights of the user that endanger locks, and changes nothing. A setting that
    /// cannot be read is a finding too. The default finds nothing.
    ///
    /// # Errors
    ///
    /// A [`Failure`] when the backend cannot be asked.
    fn diagnose(&self) -> impl Future<Output = Result<Vec<Finding>, Failure>> + Send {
        std::future::ready(Ok(Vec::new()))
    }

    /// Returns the state of each node of a quorum, in their order; empty, the default, for all other backends. No I/O
    /// happens here.
    fn nodes(&self) -> Vec<NodeState> {
        Vec::new()
    }

    /// Closes connections, as the last step of a shutdown. Later calls may fail.
    fn close(&self) -> impl Future<Output = ()> + Send {
        async {}
    }
}

/// One series of attempts to take one lock under one token, and the hold that may come of it.
///
/// See the [module](self) for the rules.
pub trait Claim: Send + 'static {
    /// Has the attempts that follow reserve so many fences with the lock, at least one: the engine passes the lock on
    /// inside this process, and gives each section the next fence. The grant has the number of them
    /// ([`Grant::reserved`]), and the server has advanced its counter by that many in the step that granted. An attempt
    /// that adopts an earlier grant may have reserved another number then: it reports that number, or one fence.
    ///
    /// The default reserves one, so that nothing is passed on.
    fn reserve(&mut self, fences: u32) {
        let _ = fences;
    }

    /// Tries once and never waits for other holders.
    ///
    /// # Errors
    ///
    /// [`Failure::unknown`] when the request may have taken effect; every other failure means that it did not.
    ///
    /// # Cancel safety
    ///
    /// May be dropped at any await; the outcome then counts as unknown.
    fn attempt(&mut self) -> impl Future<Output = Result<Attempt, Failure>> + Send;

    /// Waits, after [`Attempt::Busy`], until another attempt is worth while. It may resolve for nothing, and it may
    /// miss a change: the engine tries again after a while by itself. Called once more without an attempt, it waits for
    /// another release. A place in a queue lives by attempts and not by this: the place of a claim that does not ask
    /// any more ends within 50 s, however long its lease is. The default never resolves.
    ///
    /// # Errors
    ///
    /// A transient failure or a refusal counts as a change that cannot be known, and the engine polls; any other ends
    /// the acquire.
    ///
    /// # Cancel safety
    ///
    /// Must be cancel-safe: dropping it loses nothing but the notification.
    fn changed(&mut self) -> impl Future<Output = Result<(), Failure>> + Send {
        std::future::pending()
    }

    /// Takes note that an attempt was granted. It is called right after the grant, and again with another signal each
    /// time that the lock was passed on inside this process; from then on the previous signal has no effect. A backend
    /// that learns of trouble by itself (a session that is suspended or expires) keeps the signal; the default drops
    /// it.
    fn granted(&mut self, signal: Signal) {
        drop(signal);
    }

    /// Extends the lease by its full length from now, if the lock still carries the claim's token; never re-creates it.
    /// Only called for [`Validity::Lease`].
    ///
    /// # Errors
    ///
    /// A [`Failure`] when the backend could not be asked; the engine tries again until the lease ends.
    ///
    /// # Cancel safety
    ///
    /// May be dropped at any await.
    fn renew(&mut self) -> impl Future<Output = Result<Renewed, Failure>> + Send;

    /// Turns a lock that this claim holds exclusively into a reader's, in one step of the server: no other claim has it
    /// exclusively in between, and no waiter is passed by. If the lock has a lease, that runs for its full length
    /// again, as by a renewal. Waiters are notified as after a release.
    ///
    /// The server has to see to this:
    ///
    /// * **The token** stays, and so does the fence: other readers get a higher one, which is also higher than those
    ///   that were reserved with the lock, and later writers a higher one than these. The line about the holder stays
    ///   as well.
    /// * **It is idempotent**: where the token is a reader's already, its lease is extended, with the same answer.
    /// * **It never re-creates**: where the token is not there, or its lease has ended, nothing is changed
    ///   ([`Renewed::Gone`]). What is left of earlier readers' shares, which counts for nothing while the lock is
    ///   exclusive, must not count again.
    /// * **A writer that waits** has no preference over the readers that wait before it has asked once more.
    ///
    /// From the call on, whatever comes of it, [`renew`](Self::renew) and [`withdraw`](Self::withdraw) find the lock in
    /// either form, also when the request arrives only then. The engine calls it for claims of [`Mode::Exclusive`],
    /// which are not [`fair`](ClaimRequest::fair) where that has to be asked for, only where the backend has the
    /// [capability](Capabilities::downgrades), never before a grant, and again after an unknown outcome. Like
    /// [`renew`](Self::renew) it may be called on the engine's own thread.
    ///
    /// # Errors
    ///
    /// [`Failure::unknown`] when the request may have taken effect; every other failure means that it did not. The
    /// default cannot.
    ///
    /// # Cancel safety
    ///
    /// May be dropped at any await; it is then called again, unless the lock is withdrawn.
    fn downgrade(&mut self) -> impl Future<Output = Result<Renewed, Failure>> + Send {
        std::future::ready(Err(Failure::unsupported("turn a lock that is held alone into a reader's")))
    }

    /// Withdraws everything that this claim has on the server: the lock, or a place in the queue. Idempotent, and
    /// allowed at any time, also when nothing was ever granted.
    ///
    /// # Errors
    ///
    /// A [`Failure`] when it could not be confirmed; the engine tries again until the lease ends.
    ///
    /// # Cancel safety
    ///
    /// May be dropped at any await; it is then called again.
    fn withdraw(&mut self) -> impl Future<Output = Result<Withdrawal, Failure>> + Send;

    /// Releases the lock, and leaves its key taken for so long from now by the server's clock: without an owner, under
    /// the token [`left_behind`](Token::left_behind), with the line of its holder behind [`LEFT_BEHIND`]. Waiters are
    /// notified as after a release. Nothing but time and [`force_release`](Administration::force_release) ends it:
    /// neither a renewal nor a withdrawal of this claim. Idempotent: a request that is made again leaves the key once.
    /// Where the backend [hands locks over](Capabilities::hands_over) and finds the key left by this claim before, the
    /// key's end becomes the earlier of its own and so long from now, and the answer is that it was
    /// [`removed`](Withdrawal::removed). So a request that arrives late lengthens nothing, and a request for a short
    /// time retracts an earlier one for a long time.
    ///
    /// The engine calls it in place of [`withdraw`](Self::withdraw), for exclusive locks, and only where the backend
    /// has the [capability](Capabilities::leaves).
    ///
    /// # Errors
    ///
    /// As [`withdraw`](Self::withdraw). The default cannot.
    ///
    /// # Cancel safety
    ///
    /// May be dropped at any await; it is then called again, or `withdraw` once the time is over.
    fn leave(&mut self, taken_for: Duration) -> impl Future<Output = Result<Withdrawal, Failure>> + Send {
        let _ = taken_for;
        std::future::ready(Err(Failure::unsupported("leave a key taken after a release")))
    }

    /// Returns the clock by which this claim's attempts report their way to the wire, where requests may wait for each
    /// other in this process. The default has none: a request counts from the call. The engine asks once, before the
    /// first attempt; of several claims that are tried for at once, the first one's clock counts.
    fn request_clock(&self) -> Option<RequestClock> {
        None
    }

    /// Returns whether the server certainly has nothing of this claim, so that withdrawing can be left out. `false` is
    /// always correct. The engine does not rely on it after an unknown outcome.
    fn is_clean(&self) -> bool {
        false
    }
}

/// The claim that the engine asks a backend to make.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ClaimRequest {
    /// The lock's name.
    pub key: Key,
    /// The mode in which the lock is to be held. Never a mode that the backend does not [claim](Capabilities) to have.
    pub mode: Mode,
    /// Is `true` if waiters are to be served in the order in which they came. Only where the backend is [fair on
    /// request](Capabilities::fair_on_request). A place in the queue is taken by the first attempt that finds the lock
    /// taken, kept by those that follow, and withdrawn as a lock is; a claim that does not wait takes none.
    pub fair: bool,
    /// The mark of this claim.
    pub token: Token,
    /// The time for which the backend keeps the lock when its holder does not renew it.
    pub lease: Duration,
    /// The lease by which all is measured that is not the lock's own: for how long a request may be on its way that got
    /// no answer, and for how long the locks of others may last. It is `lease`, and 30 s at most where a session of the
    /// process keeps the lock, whose lease may be hours.
    pub usual_lease: Duration,
    /// The time for which the engine waits for the answer to one request before it counts as lost.
    pub request_timeout: Duration,
    /// Is `true` if the engine will ask again after an unknown outcome. If not, the backend may leave out what only
    /// serves that.
    pub recheck: bool,
    /// Is `true` if the caller waits for a busy lock. If not, a backend with a queue leaves it by itself, at once.
    pub waits: bool,
    /// The identity of this process, to be stored with the lock.
    pub identity: Arc<Identity>,
    /// The source of all randomness in this claim's pauses and choices, so that a simulation repeats it.
    pub entropy: Entropy,
    /// Is `true` if the claim keeps newcomers out although it does not wait by itself: it is part of a claim that does.
    pub prefers: bool,
    /// The token under which a key was [left](Claim::leave), which the attempts take over, and nothing else; `None` for
    /// an ordinary claim. Only where the backend has the [capability](Capabilities::hands_over). In one step of the
    /// server an attempt finds the key left under the token in the claim's mode, whose time has not ended, and gives it
    /// to this claim, with a new fence. A number of permits that was changed since stays as it is. If the attempt finds
    /// this claim's own token it adopts the lock, as always. Whatever else it finds, a free key too, is
    /// [`Attempt::Busy`], and nothing is changed. Such a claim does not wait and has no place in a queue.
    pub takes_over: Option<Token>,
    pub(crate) trace: Trace,
    /// The locks that the claim is made for, for a backend whose claims go on in the background.
    pub host: Host,
}

impl ClaimRequest {
    pub(crate) fn new(
        key: Key,
        token: Token,
        options: &Options,
        identity: Arc<Identity>,
        entropy: Entropy,
        host: Host,
    ) -> Self {
        let (lease, request_timeout) = (options.lease, options.request_timeout());
        let waits = options.waits() && options.takes_over.is_none();
        let recheck = options.rechecks != Some(0);
        let trace = Trace::current();
        Self {
            key,
            mode: options.mode,
            fair: options.fair,
            token,
            lease,
            usual_lease: lease,
            request_timeout,
            recheck,
            waits,
            identity,
            entropy,
            prefers: waits,
            takes_over: options.takes_over.map(|(token, _)| token),
            trace,
            host,
        }
    }

    /// Creates a request of a backend itself, for a lock that it takes on one of its [nodes](Node): exclusive, without
    /// waiting, under the name `label`, and made for no [`Locks`](crate::Locks).
    ///
    /// # Errors
    ///
    /// [`Unavailable`](crate::ErrorKind::Unavailable) when the operating system gives no random numbers for the token.
    pub fn of_backend(
        key: Key,
        lease: Duration,
        request_timeout: Duration,
        label: &str,
    ) -> Result<Self, Failure> {
        Ok(Self {
            key,
            mode: Mode::Exclusive,
            fair: false,
            token: Token::random()?,
            lease,
            usual_lease: lease,
            request_timeout,
            recheck: false,
            waits: false,
            identity: Identity::of_this_process(Some(label.into())),
            entropy: Entropy::new(),
            prefers: false,
            takes_over: None,
            trace: Trace::default(),
            host: Host::default(),
        })
    }

    /// Returns whether this claim keeps newcomers out for a while if it finds the lock taken: see [`PREFERENCE`].
    #[must_use]
    pub const fn has_preference(&self) -> bool {
        self.prefers && self.mode.has_preference()
    }

    /// Returns the request of this claim to the [state of a key](shares::KeyState), with one fence, of any number.
    #[must_use]
    pub fn to_lock_request(&self) -> shares::LockRequest {
        let request = shares::LockRequest::new(self.token, self.mode, self.lease);
        request.with_preference(self.prefers).with_order(self.fair)
    }

    /// Returns the line to store with the lock, for [`Holder::parse`] to read: the identity of this process, the time,
    /// and the W3C trace context of the span that acquires, if there is one.
    #[must_use]
    pub fn describe(&self) -> String {
        self.describe_since(SystemTime::now())
    }

    /// Returns the line of [`describe`](Self::describe) for a lock that was taken at `since`.
    #[must_use]
    pub fn describe_since(&self, since: SystemTime) -> String {
        holder_line(&self.identity.describe(since), self.trace_context().as_deref(), usize::MAX).concat()
    }

    /// Returns the W3C trace context of the span that acquires, if there is one: the field `trace` of
    /// [`describe`](Self::describe).
    #[must_use]
    pub fn trace_context(&self) -> Option<String> {
        self.trace.to_text()
    }

    /// Returns the runtime on which the engine renews locks of this claim; `None` if a simulation runs its tasks. A
    /// backend whose connections belong to a runtime opens one there as soon as the lock is [granted](Claim::granted),
    /// so that a renewal does not depend on a new connection, which may not be had by then.
    #[must_use]
    pub fn renewal_runtime(&self) -> Option<Handle> {
        self.host.runtime()
    }
}
