//! Deliberately broken backends.
//!
//! A suite that passes says little before it is known what it would not let pass. [`Mutant`] wraps a sound backend and
//! breaks one rule of the [contract](dlock_core::backend); a test then asserts that the suite notices.

mod claim;

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use dlock_core::backend::{
    Administration, Announcements, BatchAttempt, BoxedFuture, ClaimRequest, Finding, Forced, LockId,
    MOST_PERMITS, Mode, Mutex, NodeState, Occupancy, ServerAddress, Unadministered, boxed,
};
use dlock_core::{Backend, Capabilities, Clock, Failure, Fence, Holder, Key};

pub use claim::MutantClaim;

/// A rule that is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Mutation {
    /// None, to show that the wrapper itself is sound.
    Sound,
    /// Everybody is granted every lock.
    GrantsToEverybody,
    /// A release removes whatever lock is there, without comparing tokens.
    ReleasesForeignLocks,
    /// A release is confirmed and not made.
    ForgetsToRelease,
    /// A release that is to leave the key taken frees it.
    ForgetsToLeave,
    /// A key that is left already is left anew, for longer.
    LengthensWhatIsLeft,
    /// A release says that there was a lock, also when there was none.
    ReleasesNothingHappily,
    /// A renewal of a lock that is gone makes a new one.
    RenewalRecreates,
    /// A renewal of a lock that is gone is confirmed.
    RenewalBelievesItself,
    /// A renewal is confirmed and not made.
    RenewalDoesNothing,
    /// Renewals run on the caller's runtime.
    RenewsOnTheCallersRuntime,
    /// The holder believes in twice the lease that the store keeps, as if it were counted from a late reply.
    OverstatesTheLease,
    /// Every attempt after an unknown outcome has a token of its own.
    RetriesWithAnotherToken,
    /// What an attempt with an unknown outcome left is not withdrawn.
    LeavesUnknownsBehind,
    /// The clock of requests says of one that was sent that it waits in a queue of the process.
    NeverSaysSent,
    /// An attempt waits for the other holder.
    WaitsInAnAttempt,
    /// The fence is always the same.
    FenceStandsStill,
    /// The fence falls from grant to grant.
    FenceFalls,
    /// A grant that is adopted gets another fence than the store has.
    AdoptionMovesTheFence,
    /// A grant says that fences are reserved with it, and none are.
    ReservesNothing,
    /// Keys are folded to lower case.
    FoldsCase,
    /// White space around keys is cut off.
    TrimsKeys,
    /// Keys are cut after 64 bytes.
    CutsLongKeys,
    /// The store does not say who holds a lock.
    HidesTheHolder,
    /// The list of holders has at most one of them.
    ListsOneHolder,
    /// A release by force is confirmed and not made.
    ForcesNothing,
    /// A release by force of those who were seen takes the lock from whoever has it.
    ForcesWhoever,
    /// A release by force of those who were seen looks who holds the lock, and then takes it from whoever has it.
    LooksAndForces,
    /// A batch that meets a busy lock keeps those that it took before.
    TearsBatches,
    /// A batch takes its first lock only, and says that it has all.
    TakesTheFirstOfABatch,
    /// Readers exclude each other.
    ReadersExclude,
    /// A lock that is to become a reader's stays as it is, and that is confirmed.
    ForgetsToDowngrade,
    /// A lock that is to become a reader's is released, and taken anew.
    DowngradesByReleasing,
    /// Nobody who waits keeps newcomers out.
    PrefersNobody,
    /// Whoever takes several permits is counted for one.
    CountsOnePermit,
    /// Every semaphore has as many permits as can be.
    HasPermitsForAll,
    /// Whoever brings a baton has the lock, whoever holds it.
    TakesOverFromAnybody,
    /// Whoever brings a baton has the lock if it is free.
    TakesOverWhatIsFree,
    /// What is taken over has the fence of whoever handed it over.
    TakesOverUnderTheOldFence,
    /// An announcement is confirmed and not made.
    AnnouncesNothing,
}

impl Mutation {
    /// All of them, but for the sound one.
    pub const ALL: [Self; 39] = [
        Self::GrantsToEverybody,
        Self::ReleasesForeignLocks,
        Self::ForgetsToRelease,
        Self::ForgetsToLeave,
        Self::LengthensWhatIsLeft,
        Self::ReleasesNothingHappily,
        Self::RenewalRecreates,
        Self::RenewalBelievesItself,
        Self::RenewalDoesNothing,
        Self::RenewsOnTheCallersRuntime,
        Self::OverstatesTheLease,
        Self::RetriesWithAnotherToken,
        Self::LeavesUnknownsBehind,
        Self::NeverSaysSent,
        Self::WaitsInAnAttempt,
        Self::FenceStandsStill,
        Self::FenceFalls,
        Self::AdoptionMovesTheFence,
        Self::ReservesNothing,
        Self::FoldsCase,
        Self::TrimsKeys,
        Self::CutsLongKeys,
        Self::HidesTheHolder,
        Self::ListsOneHolder,
        Self::ForcesNothing,
        Self::ForcesWhoever,
        Self::LooksAndForces,
        Self::TearsBatches,
        Self::TakesTheFirstOfABatch,
        Self::ReadersExclude,
        Self::ForgetsToDowngrade,
        Self::DowngradesByReleasing,
        Self::PrefersNobody,
        Self::CountsOnePermit,
        Self::HasPermitsForAll,
        Self::TakesOverFromAnybody,
        Self::TakesOverWhatIsFree,
        Self::TakesOverUnderTheOldFence,
        Self::AnnouncesNothing,
    ];
}

/// A backend with one rule broken. Clones of a mutant are processes of the same broken store.
pub struct Mutant<B: Backend> {
    backend: B,
    mutation: Mutation,
    store: Arc<MutantStore>,
}

/// What the broken store knows of all processes.
#[derive(Debug, Default)]
struct MutantStore {
    granted: Mutex<HashMap<Key, ClaimRequest>>,
    grants: AtomicU64,
}

impl MutantStore {
    fn next(&self) -> u64 {
        self.grants.fetch_add(1, Ordering::SeqCst)
    }
}

impl<B: Backend> Mutant<B> {
    /// Creates a backend that behaves as `backend` but for `mutation`.
    #[must_use]
    pub fn new(backend: B, mutation: Mutation) -> Self {
        Self { backend, mutation, store: Arc::default() }
    }

    /// Releases what was seen in two steps, between which it changes hands where somebody is about to do that.
    async fn look_and_force(&self, key: &Key, seen: &[Holder]) -> Result<Forced, Failure> {
        const LOOKS: usize = 1_000;
        let looked = self.backend.occupancy(key).await?.holders;
        if let Some(answer) = Forced::without_release(&looked, seen) {
            return Ok(answer);
        }
        for _ in 0..LOOKS {
            tokio::task::yield_now().await;
            let now = self.backend.occupancy(key).await?.holders;
            if Forced::without_release(&now, seen) == Some(Forced::HeldByOthers) {
                break;
            }
        }
        self.sound().force_release(key.clone(), None).await
    }

    fn sound(&self) -> &dyn Administration {
        self.backend.administration().unwrap_or(&Unadministered)
    }

    fn key(&self, key: &Key) -> Key {
        let text = key.as_str();
        let text = match self.mutation {
            Mutation::FoldsCase => text.to_lowercase(),
            Mutation::TrimsKeys => text.trim().to_owned(),
            Mutation::CutsLongKeys => text.chars().take(64).collect(),
            _ => return key.clone(),
        };
        Key::new(text).unwrap_or_else(|_| key.clone())
    }
}

impl<B: Backend + Clone> Clone for Mutant<B> {
    fn clone(&self) -> Self {
        Self { backend: self.backend.clone(), mutation: self.mutation, store: Arc::clone(&self.store) }
    }
}

impl<B: Backend> fmt::Debug for Mutant<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mutant").field("mutation", &self.mutation).finish_non_exhaustive()
    }
}

#[deny(clippy::missing_trait_methods)]
impl<B: Backend + Clone> Backend for Mutant<B> {
    type Claim = MutantClaim<B>;

    fn name(&self) -> &'static str {
        self.backend.name()
    }

    fn capabilities(&self) -> Capabilities {
        self.backend.capabilities()
    }

    fn server_address(&self) -> Option<ServerAddress> {
        self.backend.server_address()
    }

    fn clock(&self) -> Clock {
        self.backend.clock()
    }

    fn lock_id(&self, key: &Key) -> LockId {
        self.backend.lock_id(&self.key(key))
    }

    fn claim(&self, mut request: ClaimRequest) -> MutantClaim<B> {
        request.key = self.key(&request.key);
        match (self.mutation, &mut request.mode) {
            (Mutation::ReadersExclude, mode @ Mode::Shared) => *mode = Mode::Exclusive,
            (Mutation::PrefersNobody, _) => request.prefers = false,
            (Mutation::CountsOnePermit, Mode::Permits { take, .. }) => *take = 1,
            (Mutation::HasPermitsForAll, Mode::Permits { of, .. }) => *of = MOST_PERMITS,
            _ => {}
        }
        MutantClaim::new(self.clone(), request)
    }

    async fn attempt_all(&self, claims: &mut [&mut MutantClaim<B>]) -> Result<BatchAttempt, Failure> {
        claim::attempt_all(self, claims).await
    }

    async fn inspect(&self, key: &Key) -> Result<Option<Holder>, Failure> {
        let mut holder = self.backend.inspect(&self.key(key)).await?;
        if let Some(holder) = &mut holder
            && self.mutation == Mutation::FenceStandsStill
        {
            holder.fence = Some(Fence::new(1));
        }
        Ok(holder.filter(|_| self.mutation != Mutation::HidesTheHolder))
    }

    async fn occupancy(&self, key: &Key) -> Result<Occupancy, Failure> {
        self.backend.occupancy(&self.key(key)).await
    }

    async fn announce(&self, key: &Key) -> Result<(), Failure> {
        match self.mutation {
            Mutation::AnnouncesNothing => Ok(()),
            _ => self.backend.announce(&self.key(key)).await,
        }
    }

    fn announcements(&self, key: &Key) -> Announcements {
        self.backend.announcements(&self.key(key))
    }

    fn administration(&self) -> Option<&dyn Administration> {
        self.backend.administration().map(|_| self as &dyn Administration)
    }

    async fn ping(&self) -> Result<(), Failure> {
        self.backend.ping().await
    }

    async fn diagnose(&self) -> Result<Vec<Finding>, Failure> {
        self.backend.diagnose().await
    }

    fn nodes(&self) -> Vec<NodeState> {
        self.backend.nodes()
    }

    async fn close(&self) {
        self.backend.close().await;
    }
}

#[deny(clippy::missing_trait_methods)]
impl<B: Backend + Clone> Administration for Mutant<B> {
    fn holders(&self) -> BoxedFuture<'_, Result<Vec<(Key, Holder)>, Failure>> {
        boxed(async move {
            let mut held = self.sound().holders().await?;
            if self.mutation == Mutation::ListsOneHolder {
                held.truncate(1);
            }
            Ok(held)
        })
    }

    fn force_release(&self, key: Key, seen: Option<Vec<Holder>>) -> BoxedFuture<'_, Result<Forced, Failure>> {
        match (self.mutation, seen) {
            (Mutation::ForcesNothing, None) => boxed(async move {
                let held = self.backend.inspect(&key).await?.is_some();
                Ok(if held { Forced::Released } else { Forced::Free })
            }),
            (Mutation::ForcesWhoever, Some(_)) => self.sound().force_release(key, None),
            (Mutation::LooksAndForces, Some(seen)) => {
                boxed(async move { self.look_and_force(&key, &seen).await })
            }
            (_, seen) => self.sound().force_release(self.key(&key), seen),
        }
    }

    fn waiters(&self, key: Key) -> Option<BoxedFuture<'_, Result<Vec<Holder>, Failure>>> {
        self.sound().waiters(self.key(&key))
    }

    fn resize(&self, key: Key, permits: u32) -> BoxedFuture<'_, Result<Option<u32>, Failure>> {
        self.sound().resize(self.key(&key), permits)
    }
}
