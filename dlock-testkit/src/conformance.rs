//! What every backend has to do, as test cases.
//!
//! A case opens one or more *processes*: independent [`Locks`] over one store, each behind a
//! [`Wire`](crate::wire::Wire) of its own. It uses the public API only, so that it tests the backend as users meet it:
//! under the engine.
//!
//! To run your backend through the suite, implement [`Harness`] and make a test target without the standard harness:
//!
//! ```no_run
//! // tests/conformance.rs, with `harness = false` in Cargo.toml
//! use dlock_core::{Memory, Result};
//! use dlock_testkit::conformance::{self, Harness};
//!
//! #[derive(Default)]
//! struct OverMemory(Memory);
//!
//! impl Harness for OverMemory {
//!     type Backend = Memory;
//!     async fn open(&self) -> Result<Memory> { Ok(self.0.clone()) }
//!     fn left_out(&self) -> &'static [&'static [&'static str]] {
//!         &[conformance::WAITERS]
//!     }
//! }
//!
//! fn main() {
//!     let arguments = conformance::Arguments::from_args();
//!     conformance::run(&arguments, conformance::tests("memory", OverMemory::default)).exit();
//! }
//! ```
//!
//! A case that needs an ability the backend does not claim is left out, and [`Harness::left_out`] has to name it: a
//! backend cannot get out of a case unnoticed.

mod cases;
mod expect;
mod stage;
mod subscriber;

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::{Arc, LazyLock, OnceLock, RwLock};
use std::time::Duration;

use dlock_core::{Backend, Capabilities, Clock, Locks};
pub use libtest_mimic::{Arguments, Conclusion, Trial};
use tokio::runtime::Handle;
use tokio::time::Instant;

pub use cases::administering::WAITERS;
pub use cases::carrying::CARRYING;
pub use cases::carrying_shares::CARRYING_SHARES;
pub use cases::downgrading::DOWNGRADING;
pub use cases::fairness::FAIRNESS;
pub use cases::leaving::LEAVING;
pub use cases::permits::PERMITS;
pub use cases::preferring::STORED_SHARES;
pub use cases::sessions::{SESSIONS, SESSIONS_BESIDE_SHARES};
pub use cases::sharing::SHARING;
pub use stage::{Process, Stage};

/// How the suite gets at a backend. One is made for each case.
pub trait Harness: Send + Sync + 'static {
    /// The backend.
    type Backend: Backend;

    /// Opens the store once more, as another process would: what one holds, another finds busy. The store is empty, or
    /// its keys are not those of another harness.
    ///
    /// # Errors
    ///
    /// Those of the backend; they fail the case.
    fn open(&self) -> impl Future<Output = dlock_core::Result<Self::Backend>> + Send;

    /// The lease of cases that let one run out. Long enough that a renewal on a busy test machine is never a third of
    /// it late; the suite's length grows with it. Default 600 ms.
    fn lease(&self) -> Duration {
        Duration::from_millis(600)
    }

    /// How long one case may take. The longest makes about fifty thousand requests, one after the other. Default 2
    /// minutes.
    fn limit(&self) -> Duration {
        Duration::from_secs(120)
    }

    /// Whether time passes at once where all wait for it, for a backend whose only time is that of [`clock`]. Cases
    /// that block threads or keep the processor busy run in real time all the same. Default no.
    fn virtual_time(&self) -> bool {
        false
    }

    /// How many locks one process can hold at once, as far as the cases want to know; 110 at the least. Default 300.
    fn at_once(&self) -> usize {
        300
    }

    /// Whether several that try at the same moment may all be refused, since each got a part of what makes the lock.
    /// Who waits gets it all the same. Default no.
    fn tries_can_split(&self) -> bool {
        false
    }

    /// The cases that the backend cannot run, by name, in groups that may overlap. Default none.
    fn left_out(&self) -> &'static [&'static [&'static str]] {
        &[]
    }
}

/// Returns a clock for a backend under a [`Harness`] in [virtual time](Harness::virtual_time). It shows the time of the
/// next case that runs on this thread, to whatever thread or runtime looks at it.
#[must_use]
pub fn clock() -> Clock {
    let runtime = Arc::new(OnceLock::new());
    CLOCKS.with_borrow_mut(|clocks| clocks.push(Arc::clone(&runtime)));
    let start = Instant::from_std(*BEGINNING);
    Clock::simulated(move || {
        let _entered = runtime.get().map(Handle::enter);
        let passed = Instant::now().saturating_duration_since(start);
        // Not at the beginning of time, since tests look at times before now.
        u64::try_from(passed.as_nanos()).unwrap_or(u64::MAX / 2) + 1_000_000_000_000
    })
}

/// Before any case begins: the virtual time of a case begins with the real time at that moment, and a clock that is
/// read before its own start stands still.
static BEGINNING: LazyLock<std::time::Instant> = LazyLock::new(std::time::Instant::now);

thread_local! {
    /// The runtimes of the clocks that were made on this thread, to be set by the next case.
    static CLOCKS: RefCell<Vec<Arc<OnceLock<Handle>>>> = const { RefCell::new(Vec::new()) };
}

/// The cases that need fences, for [`Harness::left_out`] of a backend that has none.
pub const WITH_FENCES: &[&str] = &[
    "every_grant_has_a_higher_fence_than_the_one_before",
    "a_fence_grows_after_a_drop",
    "a_fence_grows_after_the_lease_ran_out",
    "a_fence_grows_after_the_lock_was_deleted",
    "a_fence_stays_the_same_while_the_lock_is_renewed",
    "fences_follow_the_order_of_the_critical_sections",
    "a_grant_that_is_adopted_has_one_fence",
    "the_holder_that_others_see_has_the_fence_of_the_guard",
    "a_register_refuses_a_holder_that_was_overtaken",
    "sections_that_follow_each_other_have_higher_fences_each",
    "a_process_that_is_cut_off_in_a_line_of_sections_is_superseded",
    "a_release_by_force_is_noticed_by_the_holder_and_its_fence_is_superseded",
    "each_term_has_a_higher_number",
    "fences_of_readers_lie_between_those_of_the_writers_around_them",
];

/// The cases about what a lease does, for [`Harness::left_out`] of a backend whose locks a session keeps: its own tests
/// say what that does instead.
pub const LEASES: &[&str] = &[
    "each_release_by_force_of_who_was_seen_takes_the_lock_from_that_one_alone",
    "a_lock_of_a_batch_that_was_deleted_ends_it_and_the_others_are_given_back",
    "a_renewal_that_panics_is_made_again",
    "renewals_and_losses_take_their_course_under_a_subscriber_that_panics",
    "a_waiter_takes_over_when_the_holder_goes_silent",
    "a_reader_that_goes_silent_makes_room_for_a_writer",
    "readers_are_renewed_each_for_itself",
    "a_downgraded_lock_is_renewed_like_any_other",
    "a_downgraded_lock_that_goes_silent_makes_room_for_a_writer",
    "a_permit_is_back_after_its_holder_went_silent",
    "permits_are_renewed_each_for_itself",
    "the_shortest_and_the_longest_lease_work",
    "releasing_a_lock_that_was_deleted_is_not_held",
    "a_release_that_gets_no_answer_ends_and_is_made_up_for",
    "a_release_does_not_wait_for_a_renewal_that_hangs",
    "a_forgotten_guard_ends_by_max_hold",
    "a_lost_lock_is_not_entered_again",
    "a_deleted_lock_is_noticed_by_the_next_renewal",
    "a_loss_is_final_for_the_guard_and_its_views",
    "a_holder_that_cannot_renew_knows_before_anybody_else_gets_in",
    "a_late_renewal_is_announced_before_the_loss",
    "releasing_after_a_loss_is_not_held_and_leaves_the_successor_alone",
    "dropping_after_a_loss_leaves_the_successor_alone",
    "a_body_is_dropped_when_its_lock_is_lost",
    "a_body_that_asked_to_continue_runs_on_and_is_told",
    "after_a_loss_the_same_process_takes_the_key_again_and_renews_it",
    "max_hold_ends_a_lock_that_is_in_use",
    "losing_one_lock_leaves_the_others_of_the_process",
    "renewal_keeps_a_lock_for_many_leases",
    "many_locks_are_renewed_side_by_side",
    "a_blocked_runtime_does_not_lose_the_lock",
    "a_runtime_that_is_gone_does_not_lose_the_lock",
    "an_outage_shorter_than_the_lease_loses_nothing",
    "a_renewal_whose_reply_is_lost_is_made_again",
    "nothing_is_renewed_after_the_release",
    "what_remains_never_exceeds_the_lease",
    "a_nested_release_does_not_end_the_renewal",
    "a_long_hold_is_renewed_in_time_every_time",
    "a_fence_grows_after_the_lease_ran_out",
    "a_fence_grows_after_the_lock_was_deleted",
    "a_fence_stays_the_same_while_the_lock_is_renewed",
    "a_register_refuses_a_holder_that_was_overtaken",
    "a_process_that_is_cut_off_in_a_line_of_sections_is_superseded",
    "a_stalled_request_that_arrives_late_leaves_no_lock",
    "an_acquire_on_a_backend_that_hangs_comes_to_an_end",
    "a_grant_that_comes_after_a_pause_counts_from_its_first_request",
    "what_the_holder_has_left_is_not_more_than_the_lease",
    "an_expired_lock_has_no_place_in_the_list",
    "a_release_by_force_leaves_other_locks_of_its_holder_alone",
    "a_body_is_dropped_when_its_term_is_lost_and_the_campaign_goes_on",
    "a_leader_that_is_cut_off_stops_believing_before_another_leads",
    "a_leader_that_was_released_by_force_stops_and_another_leads",
    "a_waiter_in_line_that_is_cut_off_loses_its_place",
    "a_fair_holder_that_goes_silent_makes_room_for_the_first_in_line",
    "a_fair_lock_is_renewed_while_others_stand_in_line",
    "a_job_of_a_process_that_goes_silent_is_run_by_who_waits_for_it",
    "a_job_of_a_process_that_goes_silent_is_skipped_where_that_was_said",
];

/// What a case needs the backend to be able to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Need {
    /// Nothing but locks.
    Nothing,
    /// [`Capabilities::fencing`].
    Fences,
    /// A lease instead of a session.
    Lease,
    /// An [`Administration`](dlock_core::backend::Administration): [`Capabilities::administered`].
    Administration,
    /// An [`Administration`](dlock_core::backend::Administration) with waiters: [`Capabilities::shows_waiters`].
    Waiters,
    /// [`Capabilities::shared`].
    Shared,
    /// A lease or a place in a queue, which stands on the server under the token of the claim: where nothing but a
    /// session keeps the locks, an attempt leaves nothing, and there is nothing to delete.
    Stored,
    /// [`Capabilities::downgrades`].
    Downgrade,
    /// [`Capabilities::permits`].
    Permits,
    /// Waiters in line: [`Capabilities::fair`] or [`Capabilities::fair_on_request`].
    Fair,
    /// [`Capabilities::leaves`].
    Leaving,
    /// [`Capabilities::hands_over`].
    Carrying,
    /// [`Capabilities::session_records`].
    SessionRecords,
    /// [`Capabilities::hands_over_shares`], of readers, of writers that became readers, and of permits.
    CarryingShares,
}

impl Need {
    /// Returns why `capabilities` are not enough, if they are not.
    #[must_use]
    pub fn missing(self, capabilities: &Capabilities) -> Option<&'static str> {
        let c = capabilities;
        let (is_met, reason) = match self {
            Self::Nothing => return None,
            Self::Fences => (c.fencing, "the backend has no fences"),
            Self::Lease => (!c.session_kept, "a session keeps the locks, and no lease runs out"),
            Self::Administration => {
                (c.administered, "the backend cannot list its holders or release by force")
            }
            Self::Waiters => (c.shows_waiters, "the backend does not know who waits"),
            Self::Shared => (c.shared, "the backend has no readers"),
            Self::Stored => (!c.session_kept || c.fair, "nothing but a session keeps the locks"),
            Self::Downgrade => (c.downgrades, "the backend cannot turn a writer into a reader"),
            Self::Permits => (c.permits, "the backend has no semaphores"),
            Self::Fair => (c.fair || c.fair_on_request, "the backend keeps no waiters in their order"),
            Self::Leaving => (c.leaves, "the backend cannot leave a key taken after its release"),
            Self::Carrying => (c.hands_over, "the backend cannot hand a lock over"),
            Self::SessionRecords => (c.session_records, "the backend keeps no records of sessions"),
            Self::CarryingShares => (
                c.hands_over_shares && c.shared && c.downgrades && c.permits,
                "the backend hands over only what is held alone",
            ),
        };
        (!is_met).then_some(reason)
    }
}

/// How a case takes the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pace {
    /// Not sensitive to time.
    Easy,
    /// Lets a short lease run: not beside a busy one.
    Timed,
    /// Blocks threads, or has runtimes of its own: in real time, as [`Timed`](Self::Timed).
    Threads,
    /// Keeps the processor busy: in real time, beside no case that lets a lease run.
    Busy,
}

/// Not `Send`: a case runs on the thread that blocks on it.
type Run = fn(Stage) -> Pin<Box<dyn Future<Output = ()>>>;

/// One case of the suite.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    name: &'static str,
    needs: &'static [Need],
    pace: Pace,
    run: Run,
}

impl Case {
    /// Returns the name: a sentence that says what the backend does.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        self.name
    }

    /// Returns why `capabilities` are not enough for it, if they are not.
    #[must_use]
    pub fn missing(&self, capabilities: &Capabilities) -> Option<&'static str> {
        self.needs.iter().find_map(|need| need.missing(capabilities))
    }

    /// Runs the case on a runtime of its own. Where it fails, the reason.
    ///
    /// # Errors
    ///
    /// What the case found wrong; also when it was not done within `limit`.
    pub fn run<H: Harness>(&self, harness: H, limit: Duration) -> Result<(), String> {
        static BUSY: RwLock<()> = RwLock::new(());
        let is_virtual = harness.virtual_time() && matches!(self.pace, Pace::Easy | Pace::Timed);
        let (_shared, _alone);
        match self.pace {
            Pace::Easy => {}
            Pace::Timed if is_virtual => {}
            Pace::Timed | Pace::Threads => _shared = BUSY.read(),
            Pace::Busy => _alone = BUSY.write(),
        }
        let stage = Stage::new(Arc::new(harness), is_virtual);
        let case = (self.run)(stage);
        let runtime = if is_virtual {
            tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build()
        } else {
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()
        };
        let runtime = runtime.map_err(|error| format!("no runtime: {error}"))?;
        for clock in CLOCKS.take() {
            let _ = clock.set(runtime.handle().clone());
        }
        let body = AssertUnwindSafe(|| runtime.block_on(async { tokio::time::timeout(limit, case).await }));
        let result = std::panic::catch_unwind(body);
        runtime.shutdown_background();
        match result {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) => Err(format!("not done after {limit:?}")),
            Err(panic) => Err(reason(&*panic)),
        }
    }
}

fn reason(panic: &(dyn std::any::Any + Send)) -> String {
    panic
        .downcast_ref::<String>()
        .cloned()
        .or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()))
        .unwrap_or_else(|| "it panicked".to_owned())
}

/// The cases that a backend without an [`Administration`](dlock_core::backend::Administration) leaves out, for
/// [`Harness::left_out`].
pub const ADMINISTRATION: &[&str] = &[
    "the_list_of_holders_has_every_lock_that_is_held_and_no_other",
    "the_list_names_keys_of_any_text_as_they_are",
    "a_list_of_many_locks_is_complete",
    "an_expired_lock_has_no_place_in_the_list",
    "a_list_that_cannot_be_read_is_an_error_and_not_empty",
    "a_lock_released_by_force_is_free_for_others",
    "releasing_a_free_lock_by_force_changes_nothing",
    "a_release_by_force_wakes_who_waits",
    "a_release_by_force_is_noticed_by_the_holder_and_its_fence_is_superseded",
    "a_release_by_force_of_who_was_seen_frees_the_lock_once",
    "a_release_by_force_of_who_was_seen_leaves_the_next_holder_alone",
    "each_release_by_force_of_who_was_seen_takes_the_lock_from_that_one_alone",
    "a_release_by_force_leaves_the_locks_of_others_alone",
    "a_release_by_force_leaves_other_locks_of_its_holder_alone",
    "a_leader_that_was_released_by_force_stops_and_another_leads",
];

/// Returns all cases.
pub fn cases() -> impl Iterator<Item = &'static Case> {
    cases::ALL.iter().copied().flatten()
}

/// Returns the suite over one backend as tests for [`run`], named `backend::case`. Cases that need what the backend
/// does not claim are left out; a further test fails unless [`Harness::left_out`] names exactly those.
pub fn tests<H: Harness>(backend: &str, harness: impl Fn() -> H + Send + Sync + 'static) -> Vec<Trial> {
    let harness = Arc::new(harness);
    let capabilities = capabilities(harness());
    let missing = |case: &Case| capabilities.as_ref().ok().and_then(|all| case.missing(all));
    let mut trials = Vec::new();
    for case in cases().filter(|case| missing(case).is_none()) {
        let harness = Arc::clone(&harness);
        trials.push(Trial::test(format!("{backend}::{}", case.name), move || {
            let harness = harness();
            let limit = harness.limit();
            Ok(case.run(harness, limit)?)
        }));
    }
    trials.push(Trial::test(format!("{backend}::no_case_is_left_out_unnoticed"), move || {
        Ok(account_for(&capabilities?, harness().left_out())?)
    }));
    trials
}

/// Checks that the cases that are left out are those that were named.
#[doc(hidden)]
pub fn account_for(capabilities: &Capabilities, named: &[&[&str]]) -> Result<(), String> {
    let missing: Vec<_> = cases().filter_map(|case| Some((case.name, case.missing(capabilities)?))).collect();
    let found: BTreeSet<_> = missing.iter().map(|(name, _)| *name).collect();
    if named.iter().copied().flatten().copied().collect::<BTreeSet<_>>() == found {
        return Ok(());
    }
    Err(format!("left out are {missing:#?}, and the harness names {named:#?}"))
}

/// What the backend can do.
fn capabilities(harness: impl Harness) -> Result<Capabilities, String> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .map_err(|error| error.to_string())?;
    let locks = runtime.block_on(async {
        let backend = harness.open().await.map_err(|error| error.to_string())?;
        Locks::builder(backend).build().map_err(|error| error.to_string())
    })?;
    let capabilities = locks.capabilities();
    runtime.shutdown_background();
    Ok(capabilities)
}

/// Returns whether `arguments` leave a test of the suite that [`tests`] makes under this name, so that a test target
/// with several suites starts no server for nothing.
#[must_use]
pub fn is_wanted(arguments: &Arguments, backend: &str) -> bool {
    let mut names = cases().map(|case| format!("{backend}::{}", case.name));
    names.any(|name| {
        let is_meant = |by: &String| if arguments.exact { name == *by } else { name.contains(by) };
        arguments.filter.as_ref().is_none_or(is_meant) && !arguments.skip.iter().any(is_meant)
    })
}

/// Runs tests as `cargo test` does, many at a time: most of them wait for most of the time. Those that let a lease run
/// come first, so that they and those that keep the processor busy wait for each other only once.
pub fn run(arguments: &Arguments, mut tests: Vec<Trial>) -> Conclusion {
    let timed = |case: &&Case| matches!(case.pace, Pace::Timed | Pace::Threads);
    let timed: BTreeSet<_> = cases().filter(timed).map(|case| case.name).collect();
    tests.sort_by_key(|test| !test.name().rsplit("::").next().is_some_and(|name| timed.contains(name)));
    let mut arguments = arguments.clone();
    arguments.test_threads.get_or_insert(16);
    libtest_mimic::run(&arguments, tests)
}
