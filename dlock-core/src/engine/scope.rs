//! Who owns a lock: the async scope, never a thread or a task.
//!
//! A scope follows the code: what a body calls and awaits is inside of it, on whatever thread. Spawned tasks are not,
//! unless wrapped with [`in_current_scope`]; and two branches of one `join!` that each take a lock are two owners.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use crate::engine::Engine;
use crate::engine::hold::{Condition, Hold};
use crate::error::{Error, ErrorKind, Failure, Operation};
use crate::handles::guard::Guard;
use crate::handles::held::Held;
use crate::handles::options::Options;
use crate::key::Key;

tokio::task_local! {
    static SCOPE: Scope;
}

/// One owner, and those around it.
#[derive(Clone)]
pub(crate) struct Scope(Arc<Node>);

struct Node {
    parent: Option<Scope>,
    kind: Kind,
}

enum Kind {
    /// A body under a lock, or several; under none where it runs unlocked on purpose.
    Body(Held),
    /// An owner opened by hand, with the guards taken in it.
    Owner(Mutex<Vec<Weak<Hold>>>),
}

impl Scope {
    fn child(kind: Kind) -> Self {
        Self(Arc::new(Node { parent: current(), kind }))
    }

    pub(crate) fn of_body(held: Held) -> Self {
        Self::child(Kind::Body(held))
    }

    pub(crate) fn of_owner() -> Self {
        Self::child(Kind::Owner(Mutex::default()))
    }

    /// Runs `body` as this owner.
    pub(crate) async fn enter<F: Future>(self, body: F) -> F::Output {
        SCOPE.scope(self, body).await
    }

    /// Calls `visit` for every hold from the inside out, until it returns something.
    fn find<T>(&self, mut visit: impl FnMut(&Arc<Hold>) -> Option<T>) -> Option<T> {
        let mut scope = Some(self);
        while let Some(Self(node)) = scope {
            let found = match &node.kind {
                Kind::Body(held) => held.holds().iter().rev().find_map(&mut visit),
                Kind::Owner(holds) => {
                    let holds = holds.lock().unwrap_or_else(PoisonError::into_inner);
                    holds.iter().rev().filter_map(Weak::upgrade).find_map(|hold| visit(&hold))
                }
            };
            if found.is_some() {
                return found;
            }
            scope = node.parent.as_ref();
        }
        None
    }
}

impl fmt::Debug for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scope").finish_non_exhaustive()
    }
}

fn current() -> Option<Scope> {
    SCOPE.try_with(Clone::clone).ok()
}

/// A further guard of `key` when the calling scope holds it already.
pub(crate) fn reenter(engine: &Arc<Engine>, key: &Key, options: &Options) -> Result<Option<Guard>, Error> {
    let found = SCOPE.try_with(|scope| {
        scope.find(|hold| {
            if !Arc::ptr_eq(&hold.engine, engine) || hold.key != *key {
                return None;
            }
            match hold.condition() {
                condition @ (Condition::Held | Condition::Suspect) => Some((Arc::clone(hold), condition)),
                Condition::Lost | Condition::Released => None,
            }
        })
    });
    let Ok(Some((hold, condition))) = found else { return Ok(None) };
    let deadlock = |why: String| Err(hold.error(Operation::Acquire, Failure::new(ErrorKind::Deadlock, why)));
    if !options.reentrant {
        return deadlock(
            "the caller holds it already and this acquire is not reentrant; it would wait for itself".into(),
        );
    }
    if condition == Condition::Suspect {
        hold.check()?;
    }
    match hold.share(options.max_depth) {
        Some(_) => Ok(Some(Guard::new(hold))),
        None if hold.shares() == 0 => Ok(None),
        None => deadlock(format!(
            "the caller holds it {} times already, which is the limit (max_depth); is a recursion missing its end?",
            hold.shares()
        )),
    }
}

/// Whether the calling code runs directly in a body under these, so that a scope of its own would change nothing.
pub(crate) fn is_innermost(held: &Held) -> bool {
    let same = |scope: &Scope| matches!(&scope.0.kind, Kind::Body(own) if own.is_same(held));
    SCOPE.try_with(same).unwrap_or(false)
}

/// The first key that the calling scope holds on this engine and that `test` says something about.
pub(crate) fn find_key<T>(engine: &Arc<Engine>, test: impl Fn(&Key) -> Option<T>) -> Option<T> {
    let find = |hold: &Arc<Hold>| {
        let held = Arc::ptr_eq(&hold.engine, engine)
            && matches!(hold.condition(), Condition::Held | Condition::Suspect);
        if held { test(&hold.key) } else { None }
    };
    SCOPE.try_with(|scope| scope.find(find)).ok().flatten()
}

/// Notes a guard that was taken by hand with the nearest owner that was opened by hand, if there is one.
pub(crate) fn note(hold: &Arc<Hold>) {
    let _ = SCOPE.try_with(|scope| {
        let mut scope = Some(scope);
        while let Some(Scope(node)) = scope {
            if let Kind::Owner(holds) = &node.kind {
                let mut holds = holds.lock().unwrap_or_else(PoisonError::into_inner);
                holds.retain(|hold| hold.strong_count() > 0);
                holds.push(Arc::downgrade(hold));
                return;
            }
            scope = node.parent.as_ref();
        }
    });
}

/// The view of the innermost body that runs under a lock here; `None` outside of any.
#[must_use]
pub fn current_hold() -> Option<Held> {
    SCOPE
        .try_with(|scope| {
            let mut scope = Some(scope);
            while let Some(Scope(node)) = scope {
                if let Kind::Body(held) = &node.kind {
                    return Some(held.clone());
                }
                scope = node.parent.as_ref();
            }
            None
        })
        .ok()
        .flatten()
}

/// Takes the calling scope along into a task that is about to be spawned.
///
/// The task may then take the locks of the scope again without waiting, and those locks stay held until the task has
/// ended too, even when the body that took them is done earlier. Without this, a spawned task is an owner of its own.
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
    let scope = current();
    let mut shares = Vec::new();
    if let Some(scope) = &scope {
        scope.find::<()>(|hold| {
            if hold.share(u32::MAX).is_some() {
                shares.push(Guard::new(Arc::clone(hold)));
            }
            None
        });
    }
    // A struct, so that the future is dropped before the shares even when it was never polled.
    let sharing = Sharing { future: scoped(scope, future), shares };
    async move {
        let Sharing { future, shares } = sharing;
        let _shares = shares;
        future.await
    }
}

async fn scoped<F: Future>(scope: Option<Scope>, future: F) -> F::Output {
    match scope {
        Some(scope) => scope.enter(future).await,
        None => future.await,
    }
}

struct Sharing<F> {
    future: F,
    shares: Vec<Guard>,
}
