//! The owner of a lock: the async scope, never a thread or a task.
//!
//! A scope follows the code: all that a body calls and awaits is inside it, on whatever thread. Spawned tasks are not,
//! unless wrapped with [`in_current_scope`]; and two branches of one `join!` that each take a lock are two owners.
//!
//! Scopes form a chain, such as this one:
//!
//! ```text
//! Body (run, the attribute) ── parent ──▶ Owner (Locks::scope) ── parent ──▶ Task (in_current_scope) ──▶ ...
//!   its holds                               guards by hand                     guards by hand
//! ```
//!
//! A nested acquire goes along the parents, from the inside out, and enters the first hold of its key again.

use std::cell::LazyCell;
use std::collections::HashMap;
use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};

use foldhash::fast::RandomState;
use futures_util::future::Either;
use pin_project_lite::pin_project;
use smallvec::SmallVec;
use tokio::task::futures::TaskLocalFuture;

use crate::backend::{LockId, Mode};
use crate::engine::cleanup::give_up;
use crate::engine::held_locks::HeldLocks;
use crate::engine::hold::{Condition, Hold, ShareKind};
use crate::engine::registry::HoldRegistry;
use crate::engine::release::Share;
use crate::engine::{Engine, Spec};
use crate::error::{Error, ErrorKind, Failure, Operation};
use crate::guarded::guard;
use crate::key::Key;
use crate::options::Options;
use crate::sync::plain::Mutex;

tokio::task_local! {
    static SCOPE: Scope;
}

/// An owner, and those around it.
#[derive(Clone)]
pub(crate) struct Scope(Arc<ScopeNode>);

pub(crate) struct ScopeNode {
    parent: Option<Scope>,
    kind: ScopeKind,
    /// The guards that were taken by hand here, by the engine's address and the key.
    by_hand: Mutex<HashMap<(usize, Key), ByHand, RandomState>>,
    /// The number of guards of what a body holds that were taken by hand here, by the hold's address. Few at a time.
    further: Mutex<SmallVec<[(usize, u32); 1]>>,
}

enum ScopeKind {
    Body(Body),
    /// An owner of guards of these locks, opened by hand. Being weak, it keeps no more than the address.
    Owner(Weak<Engine>),
    /// A task that was taken along.
    Task,
}

/// A body that runs.
struct Body {
    /// A lock, or several; none where it runs unlocked on purpose.
    held: HeldLocks,
    /// The depth at which it is nested in bodies under these holds.
    depth: u32,
    /// Is `true` if the body was the first to enter its only hold, and has no owner around it: the hold itself counts
    /// the guards that are taken by hand in it, which costs nothing.
    counted_by_hold: bool,
}

impl Body {
    fn is_under(&self, hold: &Arc<Hold>) -> bool {
        self.held.holds().iter().any(|own| Arc::ptr_eq(own, hold))
    }
}

/// A hold that the calling code can enter again.
struct Entered {
    hold: Arc<Hold>,
    condition: Condition,
    /// The depth at which the calling code is nested in it.
    depth: u32,
    /// Is `true` if the hold itself counts the guards that are taken by hand here.
    counted_by_hold: bool,
}

/// The guards of one hold that were taken by hand in one node.
struct ByHand {
    hold: Weak<Hold>,
    guards: u32,
}

impl Scope {
    fn child(parent: Option<Self>, kind: ScopeKind) -> Self {
        Self(Arc::new(ScopeNode { parent, kind, by_hand: Mutex::default(), further: Mutex::default() }))
    }

    /// Makes the scope of a body under these holds. Nested bodies under one lock are distinguished by their depth.
    pub(crate) fn of_body(held: HeldLocks) -> Self {
        let around = current();
        // The deepest counts: a batch may enter holds that are nested to different depths, and the bound is for each.
        let depths =
            around.iter().flat_map(|around| held.holds().iter().filter_map(|hold| around.depth_of(hold)));
        let depth = depths.max().unwrap_or_default() + 1;
        let is_owner = |node: &Arc<ScopeNode>| matches!(node.kind, ScopeKind::Owner(_));
        let has_owner = around.iter().flat_map(Self::nodes).any(is_owner);
        // With an owner around it, guards are noted with that owner, which has to find them again.
        let counted_by_hold = !has_owner && matches!(held.holds(), [only] if only.has_one_share());
        Self::child(around, ScopeKind::Body(Body { held, depth, counted_by_hold }))
    }

    pub(crate) fn of_owner(engine: &Arc<Engine>) -> Self {
        Self::child(current(), ScopeKind::Owner(Arc::downgrade(engine)))
    }

    /// Makes the scope of a task that takes this one along. Tasks that follow each other make no chain.
    fn of_task(self) -> Self {
        let parent = match &self.0.kind {
            // A task without guards is left out: a chain of tasks that spawn each other would keep all of them in
            // memory.
            ScopeKind::Task if self.0.by_hand.lock().is_empty() => self.0.parent.clone(),
            _ => Some(self),
        };
        Self::child(parent, ScopeKind::Task)
    }

    /// Runs `body` as this owner.
    pub(crate) fn enter<F: Future>(self, body: F) -> TaskLocalFuture<Self, F> {
        SCOPE.scope(self, body)
    }

    /// Runs `code`, such as one poll of a body, as this owner.
    pub(crate) fn enter_now<T>(&self, code: impl FnOnce() -> T) -> T {
        SCOPE.sync_scope(self.clone(), code)
    }

    /// Iterates over this scope and those around it, from the inside out.
    fn nodes(&self) -> impl Iterator<Item = &Arc<ScopeNode>> {
        std::iter::successors(Some(&self.0), |node| node.parent.as_ref().map(|scope| &scope.0))
    }

    /// Calls `visit` for every hold from the inside out, until it returns something.
    fn find<T>(&self, mut visit: impl FnMut(&Arc<Hold>) -> Option<T>) -> Option<T> {
        self.nodes().find_map(|node| match &node.kind {
            ScopeKind::Body(body) => body.held.holds().iter().rev().find_map(&mut visit),
            ScopeKind::Owner(_) | ScopeKind::Task => {
                // Collected first: `visit` may run code of a backend or a waker, which may take or drop a guard here.
                let holds: Vec<_> =
                    node.by_hand.lock().values().filter_map(|by_hand| by_hand.hold.upgrade()).collect();
                holds.iter().find_map(&mut visit)
            }
        })
    }

    /// Finds the hold of `key` that can be entered again. A hold that was lost is released: a session, or the rest of a
    /// lease, may still keep it, and the caller would wait for itself.
    fn find_entered(&self, engine: &Arc<Engine>, key: &Key) -> Option<Entered> {
        let enterable = |hold: &Arc<Hold>, depth, counted_by_hold| match hold.condition() {
            // It is the parent's, in a child made by `fork`: the acquire is refused.
            Condition::Held | Condition::Suspect if hold.engine.is_in_child() => None,
            condition @ (Condition::Held | Condition::Suspect) => {
                Some(Entered { hold: Arc::clone(hold), condition, depth, counted_by_hold })
            }
            // Released here once: another look finds it unlisted.
            Condition::Lost if hold.listing.is_listed() && !hold.engine.is_in_child() => {
                give_up(hold);
                None
            }
            Condition::Lost | Condition::Released => None,
        };
        self.nodes().find_map(|node| match &node.kind {
            ScopeKind::Body(body) => {
                // The engine itself, and not its store: what other `Locks` hold cannot be entered by these, see
                // `refuse_own`.
                let same = |hold: &&Arc<Hold>| Arc::ptr_eq(&hold.engine, engine) && hold.key == *key;
                // Only for the innermost scope: a guard in a nested scope is noted there, and not in the hold.
                let counted_by_hold = body.counted_by_hold && Arc::ptr_eq(node, &self.0);
                let mut holds = body.held.holds().iter().filter(same);
                holds.find_map(|hold| enterable(hold, body.depth, counted_by_hold))
            }
            ScopeKind::Owner(_) | ScopeKind::Task => {
                // The map is unlocked before `enterable`, which may notice a loss and run wakers of others.
                let (hold, guards) = {
                    let by_hand = node.by_hand.lock();
                    let by_hand = by_hand.get(&(address(engine), key.clone()))?;
                    (by_hand.hold.upgrade()?, by_hand.guards)
                };
                enterable(&hold, guards, false)
            }
        })
    }

    /// Returns the depth at which the calling code is nested in bodies under this hold.
    fn depth_of(&self, hold: &Arc<Hold>) -> Option<u32> {
        self.nodes().find_map(|node| match &node.kind {
            ScopeKind::Body(body) if body.is_under(hold) => Some(body.depth),
            _ => None,
        })
    }

    /// Returns the node in which a guard that is taken by hand can be entered again: that of the task, or of the owner.
    fn owner_of(&self, engine: &Arc<Engine>) -> Option<&Arc<ScopeNode>> {
        let owns = |node: &&Arc<ScopeNode>| matches!(&node.kind, ScopeKind::Owner(own) if own.as_ptr() == Arc::as_ptr(engine));
        let owner = self.nodes().find(owns)?;
        // A task within the owner enters its own guards only: its siblings run beside it.
        let task = self.nodes().take_while(|node| !Arc::ptr_eq(node, owner));
        Some(task.into_iter().find(|node| matches!(node.kind, ScopeKind::Task)).unwrap_or(owner))
    }
}

impl ScopeNode {
    /// Counts one more guard of this hold that was taken by hand here. Returns the number of them.
    fn note(&self, hold: &Arc<Hold>) -> u32 {
        let mut by_hand = self.by_hand.lock();
        let entry = by_hand
            .entry((address(&hold.engine), hold.key.clone()))
            .or_insert_with(|| ByHand { hold: Arc::downgrade(hold), guards: 0 });
        if entry.hold.as_ptr() != Arc::as_ptr(hold) {
            // The hold that had the entry was lost.
            *entry = ByHand { hold: Arc::downgrade(hold), guards: 0 };
        }
        entry.guards += 1;
        entry.guards
    }

    /// Counts one more guard of this hold, which a body has, that was taken by hand here. Returns the number of them.
    fn count(&self, hold: usize) -> u32 {
        let mut further = self.further.lock();
        if let Some((_, guards)) = further.iter_mut().find(|(other, _)| *other == hold) {
            *guards += 1;
            return *guards;
        }
        further.push((hold, 1));
        1
    }

    /// Takes a guard that was counted off.
    fn uncount(&self, hold: usize) {
        let mut further = self.further.lock();
        if let Some(place) = further.iter().position(|(other, _)| *other == hold) {
            further[place].1 -= 1;
            if further[place].1 == 0 {
                further.swap_remove(place);
            }
        }
    }

    /// Takes a guard of this hold off.
    fn forget(&self, hold: &Arc<Hold>) {
        let mut by_hand = self.by_hand.lock();
        let key = (address(&hold.engine), hold.key.clone());
        if let Some(entry) = by_hand.get_mut(&key)
            && entry.hold.as_ptr() == Arc::as_ptr(hold)
        {
            entry.guards -= 1;
            if entry.guards == 0 {
                by_hand.remove(&key);
            }
        }
    }
}

/// A guard's entry among those that were taken by hand; dropping it takes it out.
pub(crate) enum Noted {
    /// An entry with an owner, which finds it.
    Found(Weak<ScopeNode>, Arc<Hold>),
    /// An entry among those of a hold, by its address, that a body has.
    Counted(Arc<ScopeNode>, usize),
}

impl Drop for Noted {
    fn drop(&mut self) {
        match self {
            Self::Found(node, hold) => {
                if let Some(node) = node.upgrade() {
                    node.forget(hold);
                }
            }
            Self::Counted(node, hold) => node.uncount(*hold),
        }
    }
}

impl fmt::Debug for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scope").finish_non_exhaustive()
    }
}

fn address(engine: &Arc<Engine>) -> usize {
    Arc::as_ptr(engine).addr()
}

fn current() -> Option<Scope> {
    SCOPE.try_with(Clone::clone).ok()
}

fn too_deep(hold: &Hold, depth: u32) -> Error {
    let why = format!(
        "the caller holds it {depth} times already, one inside the other, which is the limit (max_depth); is a recursion missing its end?"
    );
    hold.error(Operation::Acquire, Failure::new(ErrorKind::Deadlock, why))
}

/// Takes a further share of `key` when the calling scope holds it already. `by_hand` is `true` if the share is not for
/// a body, so that it counts among the guards that are nested in one.
pub(crate) fn reenter(
    engine: &Arc<Engine>,
    key: &Key,
    options: &Options,
    by_hand: bool,
) -> Result<Option<Share>, Error> {
    if let Mode::Permits { of, take } = options.mode {
        return refuse_own_permits(engine, key, (of, take)).map(|()| None);
    }
    let found = SCOPE.try_with(|scope| scope.find_entered(engine, key));
    let Ok(Some(Entered { hold, condition, depth, counted_by_hold })) = found else { return Ok(None) };
    match (hold.mode(), options.mode) {
        (Mode::Permits { .. }, _) => return Ok(None),
        (Mode::Shared, Mode::Exclusive) => return Err(only_reads(&hold)),
        _ => {}
    }
    if !options.reentrant {
        let why = "the caller holds it already and this acquire is not reentrant; it would wait for itself";
        return Err(hold.error(Operation::Acquire, Failure::new(ErrorKind::Deadlock, why)));
    }
    // As an error and not as a share: the nested body must not begin before the lock is certain.
    if condition == Condition::Suspect {
        hold.check()?;
    }
    if depth >= options.max_depth {
        return Err(too_deep(&hold, depth));
    }
    let kind = if by_hand && counted_by_hold { ShareKind::Nested } else { ShareKind::Plain };
    // `None` if the last share ended since, or the hold is being handed over: the acquire then goes to the backend.
    let Some((share, guards)) = Share::of(hold, kind) else { return Ok(None) };
    let hold = share.hold();
    // It may have been downgraded since `find_entered`. With this share there it cannot be any more.
    if options.mode.is_exclusive() && !hold.mode().is_exclusive() {
        return Err(only_reads(hold));
    }
    if share.is_nested() && guards > options.max_depth {
        return Err(too_deep(hold, guards - 1));
    }
    // Reported and not refused: the hold has one lease on the server, and a nested body cannot have another.
    if hold.keeps_other_options(options) {
        engine.telemetry.nested_options_ignored(hold.subject(), hold.lease(), options.lease);
    }
    Ok(Some(share))
}

/// Returns the error of an owner that reads and asks to write.
fn only_reads(hold: &Hold) -> Error {
    let why = "the caller holds it for reading, and would wait for itself to write; release the read lock first, or \
               take the write lock from the beginning, which may read too";
    hold.error(Operation::Acquire, Failure::new(ErrorKind::Deadlock, why))
}

/// Refuses an acquire that would wait for permits of the caller. Each acquire of permits has its own.
fn refuse_own_permits(engine: &Arc<Engine>, key: &Key, (of, take): (u32, u32)) -> Result<(), Error> {
    let sum = |scope: &Scope| {
        let mut own = 0_u32;
        scope.find::<()>(|hold| {
            let is_same = Arc::ptr_eq(&hold.engine, engine)
                && hold.key == *key
                && matches!(hold.condition(), Condition::Held | Condition::Suspect);
            if let (true, Mode::Permits { take, .. }) = (is_same, hold.mode()) {
                own = own.saturating_add(take);
            }
            None
        });
        own
    };
    match SCOPE.try_with(sum) {
        // Without own permits, a semaphore that is too small for `take` is refused when the options are checked.
        Ok(own) if own > 0 && own.saturating_add(take) > of => {
            let why = format!(
                "the caller holds {own} of the {of} permits already, and would wait for itself to have {take} more; \
                 take all of them at once"
            );
            let failure = Failure::new(ErrorKind::Deadlock, why);
            Err(engine.error(Operation::Acquire, failure).of(key))
        }
        _ => Ok(()),
    }
}

/// Returns what `test` returns for the first key that the calling scope holds on this engine and for which it returns
/// something.
pub(crate) fn find_key<T>(engine: &Arc<Engine>, test: impl Fn(&Key) -> Option<T>) -> Option<T> {
    let find = |hold: &Arc<Hold>| {
        let held = Arc::ptr_eq(&hold.engine, engine)
            && matches!(hold.condition(), Condition::Held | Condition::Suspect);
        if held { test(&hold.key) } else { None }
    };
    SCOPE.try_with(|scope| scope.find(find)).ok().flatten()
}

/// Returns the lock's id; `None` when the backend panics.
fn id_of(engine: &Engine, key: &Key) -> Option<LockId> {
    guard(|| engine.backend.lock_id(key)).ok()
}

/// Refuses to wait for a lock that the calling scope holds by other `Locks`, which cannot be entered again by these.
/// Called only once the lock is known to be taken: the cost grows with what the scope holds.
pub(super) fn refuse_own(wanted: &Spec) -> Result<(), Failure> {
    if wanted.options.mode.permits().is_some() {
        // The rest of the permits belongs to others.
        return Ok(());
    }
    // Asked for only where a hold of another engine is found: it is code of the backend.
    let wanted_id = LazyCell::new(|| id_of(&wanted.engine, &wanted.key));
    let is_same = |hold: &Arc<Hold>| {
        !Arc::ptr_eq(&hold.engine, &wanted.engine)
            && matches!(hold.condition(), Condition::Held | Condition::Suspect)
            && wanted_id.is_some()
            && id_of(&hold.engine, &hold.key) == *wanted_id
    };
    let found = SCOPE.try_with(|scope| scope.find(|hold| is_same(hold).then_some(())));
    if let Ok(Some(())) = found {
        let why = "the caller holds it already by other `Locks` of the same store, and would wait for itself; use \
                   clones of one `Locks`, by which it can be entered again";
        return Err(Failure::new(ErrorKind::Deadlock, why));
    }
    Ok(())
}

/// Is `true` if the calling code runs in a body, or holds a guard by hand in its scope, under a lock of `registry` or
/// of one that is drained together with it.
fn holds_any(registry: &HoldRegistry) -> bool {
    let counts = |hold: &Arc<Hold>| registry.serves(&hold.engine.registry).then_some(());
    SCOPE.try_with(|scope| scope.find(counts)).is_ok_and(|found| found.is_some())
}

/// Refuses an acquire when the locks were shut down, or are drained and the calling code runs under a lock neither of
/// them nor of any that is drained together with them.
pub(super) fn may_acquire(engine: &Engine) -> Result<(), Failure> {
    let registry = &engine.registry;
    // The flags first: they are two loads, and the walk along the scope is for a drain alone.
    match registry.refuses() && (registry.is_closed() || !holds_any(registry)) {
        true => Err(registry.closed()),
        false => Ok(()),
    }
}

/// Resolves, with the reason, when the calling code may not acquire any more.
pub(crate) async fn refused(engine: &Engine) -> Failure {
    loop {
        // Listens before it looks: a shutdown between the two is not missed.
        let shut = engine.registry.shut();
        if let Err(failure) = may_acquire(engine) {
            return failure;
        }
        shut.await;
    }
}

/// Notes that a guard with this share was taken by hand, so that its owner, if there is one, may enter the lock again,
/// and that it counts where a body is under the lock.
///
/// Fails when the owner has as many guards of this lock as may be nested.
pub(crate) fn note(share: &mut Share, max_depth: u32) -> Result<Option<Box<Noted>>, Error> {
    if share.hold().mode().permits().is_some() {
        // Not entered again.
        return Ok(None);
    }
    let noted = SCOPE.try_with(|scope| {
        let hold = share.hold();
        if let Some(owner) = scope.owner_of(&hold.engine) {
            let guards = owner.note(hold);
            return Some((Some(Noted::Found(Arc::downgrade(owner), Arc::clone(hold))), guards));
        }
        // A further guard of what a body holds: only its depth counts. Outside of any body under it, a guard by hand is
        // not counted: no acquire finds it there again.
        scope.depth_of(hold)?;
        // Counted in the number of shares, without a lock and an allocation, as nearly all nested guards are.
        if matches!(&scope.0.kind, ScopeKind::Body(body) if body.counted_by_hold && body.is_under(hold)) {
            return Some((None, share.nest()));
        }
        let address = Arc::as_ptr(hold).addr();
        let guards = scope.0.count(address);
        Some((Some(Noted::Counted(Arc::clone(&scope.0), address)), guards))
    });
    let Ok(Some((noted, guards))) = noted else { return Ok(None) };
    // Boxed, since few guards have one: it would double what each acquire moves.
    let noted = noted.map(Box::new);
    if guards > max_depth { Err(too_deep(share.hold(), guards - 1)) } else { Ok(noted) }
}

/// Returns what the innermost body here runs under; `None` outside any.
pub(crate) fn innermost() -> Option<HeldLocks> {
    let innermost = |scope: &Scope| {
        scope.nodes().find_map(|node| match &node.kind {
            ScopeKind::Body(body) => Some(body.held.clone()),
            _ => None,
        })
    };
    SCOPE.try_with(innermost).ok().flatten()
}

/// Takes the calling scope along into a task that is about to be spawned.
///
/// The task may then take the locks of the scope again without waiting, and those locks stay held until the task has
/// ended too, even when the body that took them is done earlier. What the task takes itself is its own: the code that
/// spawned it, and other tasks, do not enter it again. Without this, a spawned task is an owner of its own.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dlock_core::Error> {
/// use dlock_core::{Locks, Memory, in_current_scope};
///
/// let locks = Locks::new(Memory::new());
/// let room = locks.lock("room_7");
/// let task = room.run(async {
///     let room = room.clone();
///     tokio::spawn(in_current_scope(async move { room.run(async { 7 }).await }))
/// }).await?;
/// assert_eq!(task.await.unwrap()?, 7);
/// # Ok(()) }
/// ```
///
/// # Cancel safety
///
/// Dropping the returned future drops `future` and then its share of the locks.
pub fn in_current_scope<F: Future>(future: F) -> impl Future<Output = F::Output> {
    let Some(scope) = current() else {
        return Sharing { future: ScopedFuture::Outside { future }, shares: Vec::new() };
    };
    let mut shares = Vec::new();
    scope.find::<()>(|hold| {
        // A hold that was released or is handed over gives no share, and the task runs without it.
        shares.extend(Share::of(Arc::clone(hold), ShareKind::Plain).map(|(share, _)| share));
        None
    });
    Sharing { future: ScopedFuture::Along { future: scope.of_task().enter(future) }, shares }
}

/// Keeps `future` in the scope of the calling code, wherever it is run. It gets no share of what that holds: the code
/// that awaits it has those.
pub(super) fn carried<F: Future>(future: F) -> impl Future<Output = F::Output> {
    match current() {
        Some(scope) => Either::Left(scope.enter(future)),
        None => Either::Right(future),
    }
}

pin_project! {
    /// A future with a share of what its scope holds. The future is dropped first.
    struct Sharing<F> {
        #[pin]
        future: ScopedFuture<F>,
        shares: Vec<Share>,
    }
}

pin_project! {
    #[project = ScopedFutureProjection]
    enum ScopedFuture<F> {
        Along { #[pin] future: TaskLocalFuture<Scope, F> },
        Outside { #[pin] future: F },
    }
}

impl<F: Future> Future for Sharing<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.project();
        let polled = match this.future.project() {
            ScopedFutureProjection::Along { future } => future.poll(context),
            ScopedFutureProjection::Outside { future } => future.poll(context),
        };
        if polled.is_ready() {
            // With the end of the future, not of this: a caller may keep a finished future for long.
            this.shares.clear();
        }
        polled
    }
}
