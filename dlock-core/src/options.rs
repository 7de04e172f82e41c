//! Options of a lock, their defaults and bounds.

use std::time::Duration;

use crate::error::Failure;
use crate::mode::Mode;
use crate::token::Token;

/// The label in place of the mode of a lock whose holder leads.
pub(crate) const LEADER: &str = "leader";

/// The time to wait for a lock that is busy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Wait {
    /// Ask once; a held lock is [`ErrorKind::Busy`](crate::ErrorKind::Busy) at once.
    No,
    /// Wait up to this long, then fail with [`ErrorKind::TimedOut`](crate::ErrorKind::TimedOut). Zero is [`Wait::No`].
    For(Duration),
    /// Wait without end.
    Forever,
}

impl Wait {
    /// Returns the length of the wait.
    pub(crate) const fn limit(&self) -> Duration {
        match self {
            Self::No => Duration::ZERO,
            Self::For(limit) => *limit,
            Self::Forever => Duration::MAX,
        }
    }
}

impl From<Duration> for Wait {
    fn from(limit: Duration) -> Self {
        Self::For(limit)
    }
}

/// The treatment of a body whose lock is lost while it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum OnLost {
    /// The body is dropped at its current await, and the caller gets
    /// [`ErrorKind::Lost`](crate::ErrorKind::Lost). The default: carrying on silently would break exclusion.
    #[default]
    Abort,
    /// The body runs on, and can learn of the loss by [`Held::check`](crate::Held::check) and
    /// [`Held::lost`](crate::Held::lost). When it acquires the key again, the rest of the lost lock is released first,
    /// so that it does not wait for itself.
    Continue,
}

/// Options of a lock: defaults of a [`Locks`](crate::Locks), each to be overridden by a [`Lock`](crate::Lock).
///
/// | option | default | bounds |
/// |---|---|---|
/// | `lease`: how long the backend keeps the lock if its holder does not renew it | 30 s | 50 ms to 24 h |
/// | `wait`: how long an acquire may take, waiting and requests together | 30 s | up to 24 h, or `Wait::No`, `Wait::Forever` |
/// | `request_timeout`: how long one request may take before its outcome counts as unknown | lease / 6, at most 5 s | 1 ms to half the lease |
/// | `rechecks`: how often the owner is asked again after an unknown outcome | as long as the caller waits | 0 (off) to 10 |
/// | `max_hold`: after which renewal stops and the lock is lost | no limit | at least the lease, up to 30 days |
/// | `max_depth`: how deep one owner may nest the same key | 64 | 1 to 10 000 |
/// | `reentrant`: whether a nested acquire of a key that the caller holds succeeds | yes | |
/// | `handoff`: whether the lock goes from section to section inside this process without a request | yes | |
/// | `fair`: whether waiters of all processes are served in the order in which they came | as the backend does | |
/// | `session`: whether the session of the `Locks` keeps the lock, where they have one | yes | |
/// | `on_lost`: what happens to a body when its lock is lost | abort | |
///
/// The lease is renewed at a third of its length, so that two renewals may fail before it runs out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Options {
    pub(crate) lease: Duration,
    pub(crate) wait: Wait,
    pub(crate) request_timeout: Option<Duration>,
    pub(crate) rechecks: Option<u32>,
    /// The part of the wait after which an acquire with other locks to try stops waiting for this one.
    pub(crate) patience: Option<Duration>,
    pub(crate) max_hold: Option<Duration>,
    /// Set by the handle, and no option of a `Locks`.
    pub(crate) hold_at_least: Option<Duration>,
    pub(crate) max_depth: u32,
    pub(crate) reentrant: bool,
    pub(crate) handoff: bool,
    pub(crate) fair: bool,
    /// Is `true` if the session of the `Locks` keeps it, where they have one.
    pub(crate) session: bool,
    pub(crate) on_lost: OnLost,
    /// Set by the handle, and no option of a `Locks`.
    pub(crate) mode: Mode,
    /// Is `true` if another number of permits that is stored counts in place of this one. Set by the handle.
    pub(crate) resizable: bool,
    /// The role of the holder, if it does more than to hold a lock. Set by the handle.
    pub(crate) role: Option<Role>,
    /// The token and mode under which a key was left. The acquire takes that over, and nothing else. Set by the handle.
    pub(crate) takes_over: Option<(Token, Mode)>,
}

/// The role of the holder of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// The holder leads, in a term of an election.
    Leader,
    /// The holder runs a job that is to run once.
    Job,
}

impl Role {
    /// Returns the label in place of the mode in spans and metrics.
    pub(crate) const fn label(self) -> &'static str {
        match self {
            Self::Leader => LEADER,
            Self::Job => "once",
        }
    }
}

/// The shortest lease.
pub const MIN_LEASE: Duration = Duration::from_millis(50);
/// The longest lease.
pub const MAX_LEASE: Duration = Duration::from_secs(24 * 3_600);
/// The longest bounded wait.
pub const MAX_WAIT: Duration = Duration::from_secs(24 * 3_600);
/// The longest `max_hold`, and the longest time for which a key is kept taken.
pub const MAX_HOLD: Duration = Duration::from_secs(30 * 24 * 3_600);
/// The shortest time for which a key is kept taken.
pub const MIN_HOLD_AT_LEAST: Duration = Duration::from_millis(1);
const MAX_REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

impl Default for Options {
    fn default() -> Self {
        Self {
            lease: Duration::from_secs(30),
            wait: Wait::For(Duration::from_secs(30)),
            request_timeout: None,
            rechecks: None,
            patience: None,
            max_hold: None,
            hold_at_least: None,
            max_depth: 64,
            reentrant: true,
            handoff: true,
            fair: false,
            session: true,
            on_lost: OnLost::Abort,
            mode: Mode::Exclusive,
            resizable: false,
            role: None,
            takes_over: None,
        }
    }
}

impl Options {
    /// Returns the time that one request may take.
    pub(crate) fn request_timeout(&self) -> Duration {
        self.request_timeout.unwrap_or_else(|| (self.lease / 6).min(MAX_REQUEST_TIMEOUT))
    }

    /// Is `true` if a session may keep the lock. A share of a key cannot be freed without the others, a place in a
    /// queue has a life of its own, and a key that is to stay taken outlives its process, as that of a job does.
    pub(crate) fn may_be_kept_by_session(&self) -> bool {
        let alone = self.mode.is_exclusive() && !self.fair;
        let ends = self.hold_at_least.is_none() && self.role != Some(Role::Job);
        self.session && alone && ends && self.takes_over.is_none()
    }

    /// Is `true` if a busy lock is waited for.
    pub(crate) fn waits(&self) -> bool {
        !self.wait.limit().is_zero()
    }

    pub(crate) fn check(&self) -> Result<(), Failure> {
        let refuse = |what: String| Err(Failure::invalid_config(what));
        if !(MIN_LEASE..=MAX_LEASE).contains(&self.lease) {
            return refuse(format!("lease is {:?}; use 50 ms to 24 h", self.lease));
        }
        match self.wait {
            Wait::For(limit) if limit > MAX_WAIT => {
                return refuse(format!("wait is {limit:?}; use up to 24 h, or forever on purpose"));
            }
            _ => {}
        }
        if let Some(limit) = self.request_timeout
            && !(Duration::from_millis(1)..=self.lease / 2).contains(&limit)
        {
            return refuse(format!(
                "request timeout is {limit:?}; use 1 ms to half the lease ({:?})",
                self.lease / 2
            ));
        }
        if let Some(times @ 11..) = self.rechecks {
            return refuse(format!(
                "rechecks is {times}; use up to 10, or ask for as long as the caller waits, which is the default"
            ));
        }
        if let Some(limit) = self.max_hold
            && !(self.lease..=MAX_HOLD).contains(&limit)
        {
            return refuse(format!("max_hold is {limit:?}; use the lease ({:?}) to 30 days", self.lease));
        }
        if let Some(least) = self.hold_at_least
            && !(MIN_HOLD_AT_LEAST..=MAX_HOLD).contains(&least)
        {
            return refuse(format!("hold_at_least is {least:?}; use 1 ms to 30 days"));
        }
        if !(1..=10_000).contains(&self.max_depth) {
            return refuse(format!("max_depth is {}; use 1 to 10000", self.max_depth));
        }
        self.mode.check()
    }
}

/// Defines the setters of [`Options`] for a `Locks`, for a single `Lock`, and for [`Overrides`], whose options are
/// `Some` once they are set. Bounds are checked when a `Locks` is built and when a `Lock` is acquired.
macro_rules! option_setters {
    ($value:path) => {
        /// Sets how long an acquire may take: waiting for a busy lock and all requests together. Default 30 s; up to 24
        /// h, `Wait::No`, or `Wait::Forever`.
        ///
        /// `Wait::No`, and a wait of zero, ask once and take no longer than one [request
        /// timeout](Self::with_request_timeout). When the time is up while a request is under way, the error is
        /// [`ErrorKind::Unknown`]($crate::ErrorKind::Unknown) and has the time for which the lock may be blocked; the
        /// request is withdrawn in the background. A wait shorter than the way to the server and back therefore ends so
        /// each time.
        pub fn with_wait(mut self, wait: impl Into<$crate::options::Wait>) -> Self {
            self.options.wait = $value(wait.into());
            self
        }

        /// Sets how long the backend keeps the lock when its holder does not renew it. The lease is renewed at a third
        /// of its length. Default 30 s; 50 ms to 24 h.
        pub const fn with_lease(mut self, lease: std::time::Duration) -> Self {
            self.options.lease = $value(lease);
            self
        }

        /// Sets how long one request may take before its outcome counts as unknown. Default a sixth of the lease, at
        /// most 5 s; 1 ms to half the lease.
        pub const fn with_request_timeout(mut self, limit: std::time::Duration) -> Self {
            self.options.request_timeout = $value(Some(limit));
            self
        }

        /// Sets how often the owner is asked again, under the same token, after an unknown outcome: up to 10 times in a
        /// row. 0 switches this off, and an unknown outcome is an error at once. The default asks for as long as the
        /// caller [waits](Self::with_wait), with pauses that grow to 2 s.
        pub const fn with_rechecks(mut self, times: u32) -> Self {
            self.options.rechecks = $value(Some(times));
            self
        }

        /// Asks again after an unknown outcome for as long as the caller waits, which is the default, also where
        /// [`with_rechecks`](Self::with_rechecks) gave a bound before.
        pub const fn with_unbounded_rechecks(mut self) -> Self {
            self.options.rechecks = $value(None);
            self
        }

        /// Sets the time after which a hold is renewed no more and counts as lost. Default no limit; at least the
        /// lease, up to 30 days. It bounds what a forgotten guard can block: others wait no longer than this and one
        /// lease.
        pub const fn with_max_hold(mut self, limit: std::time::Duration) -> Self {
            self.options.max_hold = $value(Some(limit));
            self
        }

        /// Sets how deep one owner may nest the same key. Default 64; 1 to 10 000.
        pub const fn with_max_depth(mut self, limit: u32) -> Self {
            self.options.max_depth = $value(limit);
            self
        }

        /// Sets whether a nested acquire of a key that the caller holds succeeds. Default yes; otherwise it is
        /// `ErrorKind::Deadlock`.
        pub const fn with_reentrancy(mut self, on: bool) -> Self {
            self.options.reentrant = $value(on);
            self
        }

        /// Sets whether the lock is passed on inside this process, without a request: from a section that ends to the
        /// first waiter here with the same lease. Default yes, where the backend has leases and reserves fences.
        ///
        /// Each section has a fence of its own, in their order. Others see one holder for longer, up to the handoff
        /// limits of the `Locks`. Without it, each section acquires the lock and releases it.
        pub const fn with_handoff(mut self, on: bool) -> Self {
            self.options.handoff = $value(on);
            self
        }

        /// Sets whether waiters are served in the order in which they came, those of all processes. Default no, where
        /// the backend leaves the choice; a backend that always serves them in order does so in any case.
        ///
        /// All programs that want the lock should ask for it: a program that does not takes it whenever the queue is
        /// empty. Such a lock is not passed on inside a process, and each waiter asks by itself. A backend that cannot
        /// do this refuses the acquire with [`ErrorKind::Unsupported`]($crate::ErrorKind::Unsupported), and so it does
        /// for readers and permits.
        pub const fn with_fairness(mut self, on: bool) -> Self {
            self.options.fair = $value(on);
            self
        }

        /// Sets whether the session keeps the lock beside its lease, where the `Locks` were built
        /// [with one](crate::LocksBuilder::with_session). Default yes.
        ///
        /// Without it others wait for the [lease](Self::with_lease) after a crash, as they do for readers, permits,
        /// fair locks and locks that are kept taken in any case. Such a lock can be
        /// [downgraded](crate::Guard::downgrade).
        pub const fn with_session_kept(mut self, on: bool) -> Self {
            self.options.session = $value(on);
            self
        }

        /// Sets what happens to a body when its lock is lost. Default [`OnLost::Abort`](crate::OnLost::Abort).
        pub const fn with_on_lost(mut self, on_lost: $crate::options::OnLost) -> Self {
            self.options.on_lost = $value(on_lost);
            self
        }
    };
}
pub(crate) use option_setters;

/// Defines the options of which [`Overrides`] are made.
macro_rules! overridden {
    ($($option:ident: $type:ty),+) => {
        #[derive(Clone, Copy, Debug, Default)]
        pub(crate) struct Overridden {
            $($option: Option<$type>),+
        }

        impl Overridden {
            pub(crate) fn set(&self, options: &mut Options) {
                $(options.$option = self.$option.unwrap_or(options.$option);)+
            }
        }
    };
}

overridden! {
    lease: Duration,
    wait: Wait,
    request_timeout: Option<Duration>,
    rechecks: Option<u32>,
    max_hold: Option<Duration>,
    hold_at_least: Option<Duration>,
    max_depth: u32,
    reentrant: bool,
    handoff: bool,
    fair: bool,
    session: bool,
    on_lost: OnLost,
    mode: Mode
}

/// The options that an attribute gives, before there is a lock to set them on: see
/// [`Lock::with_overrides`](crate::Lock::with_overrides).
#[derive(Clone, Copy, Debug, Default)]
#[must_use]
pub struct Overrides {
    pub(crate) options: Overridden,
}

impl Overrides {
    /// Creates overrides of nothing.
    pub fn new() -> Self {
        Self::default()
    }

    option_setters!(Some);

    /// Keeps the key taken for at least this long, as [`Lock::with_hold_at_least`](crate::Lock::with_hold_at_least)
    /// does.
    pub const fn with_hold_at_least(mut self, least: Duration) -> Self {
        self.options.hold_at_least = Some(Some(least));
        self
    }

    /// Takes a reader's share, as [`Lock::read`](crate::Lock::read) does.
    pub const fn read(mut self) -> Self {
        self.options.mode = Some(Mode::Shared);
        self
    }

    /// Returns the wait, if it is overridden.
    #[must_use]
    pub const fn wait(&self) -> Option<Wait> {
        self.options.wait
    }
}

/// Returns the part of a lease that is given up for safety: 1 % of it, at least 2 ms and at most 1 % of the longest
/// lease. It covers the error of two clocks that run at slightly different rates.
#[must_use]
pub fn margin(lease: Duration) -> Duration {
    (lease / 100).clamp(Duration::from_millis(2), MAX_LEASE / 100)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_inside_their_bounds() {
        Options::default().check().unwrap();
    }

    #[test]
    fn overrides_set_what_they_were_given_also_where_that_is_the_default_and_nothing_else() {
        let (lease, rechecks, max_depth) = (MAX_LEASE, Some(3), 3);
        let program = Options { lease, rechecks, fair: true, max_depth, ..Options::default() };
        let mut options = program;
        Overrides::new().options.set(&mut options);
        assert_eq!(options, program);
        let overrides = Overrides::new().with_lease(Options::default().lease).with_unbounded_rechecks();
        let overrides = overrides.with_fairness(false).read().with_hold_at_least(MIN_LEASE);
        overrides.options.set(&mut options);
        let (mode, hold_at_least) = (Mode::Shared, Some(MIN_LEASE));
        assert_eq!(options, Options { max_depth, mode, hold_at_least, ..Options::default() });
    }

    #[test]
    fn zero_and_absurd_values_are_refused_with_the_bounds() {
        let ok = Options::default();
        let day = Duration::from_secs(24 * 3_600);
        let wrong = [
            (Options { lease: Duration::ZERO, ..ok }, "50 ms to 24 h"),
            (Options { lease: Duration::from_millis(49), ..ok }, "50 ms to 24 h"),
            (Options { lease: Duration::MAX, ..ok }, "50 ms to 24 h"),
            (Options { wait: Wait::For(day + Duration::from_secs(1)), ..ok }, "forever on purpose"),
            (Options { wait: Wait::For(Duration::MAX), ..ok }, "forever on purpose"),
            (Options { request_timeout: Some(Duration::ZERO), ..ok }, "half the lease"),
            (Options { request_timeout: Some(ok.lease), ..ok }, "half the lease"),
            (Options { rechecks: Some(11), ..ok }, "up to 10"),
            (Options { max_hold: Some(Duration::from_secs(1)), ..ok }, "30 days"),
            (Options { max_hold: Some(Duration::MAX), ..ok }, "30 days"),
            (Options { hold_at_least: Some(Duration::ZERO), ..ok }, "1 ms to 30 days"),
            (Options { hold_at_least: Some(Duration::MAX), ..ok }, "1 ms to 30 days"),
            (Options { max_depth: 0, ..ok }, "1 to 10000"),
        ];
        for (options, text) in wrong {
            let failure = options.check().unwrap_err();
            assert!(failure.message().contains(text), "{options:?}: {failure}");
        }
        Options { lease: MIN_LEASE, ..ok }.check().unwrap();
        Options { lease: MAX_LEASE, wait: Wait::For(MAX_WAIT), ..ok }.check().unwrap();
    }
}
