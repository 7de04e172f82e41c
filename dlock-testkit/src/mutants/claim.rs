//! A claim on a broken backend.

use std::fmt;
use std::time::Duration;

use dlock_core::backend::{
    Attempt, BatchAttempt, Busy, ClaimRequest, Grant, Mode, Renewed, RequestClock, Signal, Validity,
    Withdrawal,
};
use dlock_core::{Backend, Claim, Failure, Fence, Token};
use tokio::runtime::Handle;

use super::{Mutant, Mutation};

/// A claim of a [`Mutant`].
pub struct MutantClaim<B: Backend> {
    mutant: Mutant<B>,
    request: ClaimRequest,
    /// Taken while a renewal runs elsewhere.
    claim: Option<B::Claim>,
    /// Where the claim was made.
    caller: Option<Handle>,
    unsettled: bool,
    /// Stands still once a request is queued.
    clock: RequestClock,
}

impl<B: Backend + Clone> MutantClaim<B> {
    pub(super) fn new(mutant: Mutant<B>, request: ClaimRequest) -> Self {
        let claim = Some(mutant.backend.claim(request.clone()));
        let clock = RequestClock::new(mutant.backend.clock());
        Self { mutant, request, claim, caller: Handle::try_current().ok(), unsettled: false, clock }
    }

    fn is(&self, mutation: Mutation) -> bool {
        self.mutant.mutation == mutation
    }

    fn claim(&mut self) -> Result<&mut B::Claim, Failure> {
        self.claim.as_mut().ok_or_else(|| Failure::unavailable("the claim is away"))
    }

    fn break_grant(&self, grant: Grant, adopted: bool) -> Grant {
        let fence = grant.fence.map_or(0, Fence::get);
        match (self.mutant.mutation, grant.validity) {
            (Mutation::OverstatesTheLease, Validity::Lease(lease)) => {
                Grant::new(Validity::Lease(lease * 2)).with_fence(Fence::new(fence))
            }
            (Mutation::FenceStandsStill, term) => Grant::new(term).with_fence(Fence::new(1)),
            (Mutation::FenceFalls, term) => {
                Grant::new(term).with_fence(Fence::new(u64::MAX / 2 - self.mutant.store.next()))
            }
            (Mutation::TakesOverUnderTheOldFence, term) if self.request.takes_over.is_some() => {
                Grant::new(term).with_fence(Fence::new(fence.saturating_sub(1)))
            }
            (Mutation::ReservesNothing, _) => grant.with_reserved(1_000),
            (Mutation::AdoptionMovesTheFence, term) if adopted => {
                Grant::new(term).with_fence(Fence::new(fence + 1))
            }
            _ => grant,
        }
    }

    /// Takes a lock by a baton that does not hold it.
    async fn take_over(&mut self) -> Result<Attempt, Failure> {
        let is_free = self.mutant.backend.inspect(&self.request.key).await?.is_none();
        if self.is(Mutation::TakesOverWhatIsFree) && !is_free {
            return Ok(Attempt::Busy(Busy::default()));
        }
        let _ = self.mutant.sound().force_release(self.request.key.clone(), None).await?;
        self.request.takes_over = None;
        self.claim = Some(self.mutant.backend.claim(self.request.clone()));
        self.claim()?.attempt().await
    }

    /// Removes whatever lock there is.
    async fn remove_any(&mut self) -> Result<(), Failure> {
        let holder = self.mutant.store.granted.lock().remove(&self.request.key);
        if let Some(request) = holder {
            let mut twin = self.mutant.backend.claim(request);
            let _ = twin.attempt().await?;
            let _ = twin.withdraw().await?;
        }
        Ok(())
    }
}

#[deny(clippy::missing_trait_methods)]
impl<B: Backend + Clone> Claim for MutantClaim<B> {
    fn reserve(&mut self, fences: u32) {
        if let Some(claim) = &mut self.claim
            && self.mutant.mutation != Mutation::ReservesNothing
        {
            claim.reserve(fences);
        }
    }

    async fn attempt(&mut self) -> Result<Attempt, Failure> {
        let again = std::mem::replace(&mut self.unsettled, true);
        self.clock.queued();
        if again && self.is(Mutation::RetriesWithAnotherToken) {
            self.request.token = Token::random()?;
            self.claim = Some(self.mutant.backend.claim(self.request.clone()));
        }
        let mut answer = self.claim()?.attempt().await?;
        while self.is(Mutation::WaitsInAnAttempt) && matches!(answer, Attempt::Busy(_)) {
            tokio::time::sleep(Duration::from_millis(5)).await;
            answer = self.claim()?.attempt().await?;
        }
        let takes_over = self.is(Mutation::TakesOverFromAnybody) || self.is(Mutation::TakesOverWhatIsFree);
        if takes_over && self.request.takes_over.is_some() && matches!(answer, Attempt::Busy(_)) {
            answer = self.take_over().await?;
        }
        let answer = match answer {
            Attempt::Granted(grant) => {
                self.mutant.store.granted.lock().insert(self.request.key.clone(), self.request.clone());
                Attempt::Granted(self.break_grant(grant, again))
            }
            Attempt::Busy(_) if self.is(Mutation::GrantsToEverybody) => Attempt::Granted(
                Grant::new(Validity::Lease(self.request.lease))
                    .with_fence(Fence::new(1_000_000 + self.mutant.store.next())),
            ),
            busy => busy,
        };
        // Only the caller who sees this answer knows the outcome; a lost reply leaves it open.
        self.unsettled = matches!(answer, Attempt::Granted(_));
        Ok(answer)
    }

    async fn changed(&mut self) -> Result<(), Failure> {
        self.claim()?.changed().await
    }

    fn granted(&mut self, signal: Signal) {
        self.unsettled = false;
        if let Some(claim) = &mut self.claim {
            claim.granted(signal);
        }
    }

    async fn renew(&mut self) -> Result<Renewed, Failure> {
        match self.mutant.mutation {
            Mutation::RenewalDoesNothing | Mutation::GrantsToEverybody => return Ok(Renewed::Extended),
            Mutation::RenewsOnTheCallersRuntime => {
                let (Some(caller), Some(mut claim)) = (&self.caller, self.claim.take()) else {
                    return Err(Failure::unavailable("the caller's runtime is needed"));
                };
                let renewal = caller.spawn(async move {
                    let answer = claim.renew().await;
                    (claim, answer)
                });
                let (claim, answer) =
                    renewal.await.map_err(|_| Failure::unavailable("the caller's runtime is gone"))?;
                self.claim = Some(claim);
                return answer;
            }
            _ => {}
        }
        match self.claim()?.renew().await? {
            Renewed::Gone if self.is(Mutation::RenewalBelievesItself) => Ok(Renewed::Extended),
            Renewed::Gone if self.is(Mutation::RenewalRecreates) => match self.claim()?.attempt().await? {
                Attempt::Granted(_) => Ok(Renewed::Extended),
                Attempt::Busy(_) => Ok(Renewed::Gone),
            },
            answer => Ok(answer),
        }
    }

    async fn downgrade(&mut self) -> Result<Renewed, Failure> {
        match self.mutant.mutation {
            Mutation::ForgetsToDowngrade => self.claim()?.renew().await,
            Mutation::DowngradesByReleasing => {
                let _ = self.claim()?.withdraw().await?;
                self.request.mode = Mode::Shared;
                self.claim = Some(self.mutant.backend.claim(self.request.clone()));
                match self.claim()?.attempt().await? {
                    Attempt::Granted(_) => Ok(Renewed::Extended),
                    Attempt::Busy(_) => Ok(Renewed::Gone),
                }
            }
            _ => self.claim()?.downgrade().await,
        }
    }

    async fn withdraw(&mut self) -> Result<Withdrawal, Failure> {
        match self.mutant.mutation {
            Mutation::ForgetsToRelease => return Ok(Withdrawal::REMOVED),
            Mutation::LeavesUnknownsBehind if self.unsettled => return Ok(Withdrawal::ABSENT),
            Mutation::ReleasesForeignLocks => {
                self.remove_any().await?;
                return Ok(Withdrawal::REMOVED);
            }
            _ => {}
        }
        match self.claim()?.withdraw().await? {
            Withdrawal::ABSENT if self.is(Mutation::ReleasesNothingHappily) => Ok(Withdrawal::REMOVED),
            answer => Ok(answer),
        }
    }

    async fn leave(&mut self, taken_for: Duration) -> Result<Withdrawal, Failure> {
        match self.mutant.mutation {
            Mutation::ForgetsToLeave => self.claim()?.withdraw().await,
            Mutation::LengthensWhatIsLeft => {
                let (backend, key) = (&self.mutant.backend, &self.request.key);
                if backend.inspect(key).await?.is_some_and(|holder| holder.left_behind) {
                    let _ = self.mutant.sound().force_release(key.clone(), None).await?;
                    self.claim = Some(backend.claim(self.request.clone()));
                    let _ = self.claim()?.attempt().await?;
                }
                self.claim()?.leave(taken_for).await
            }
            Mutation::ForgetsToRelease => Ok(Withdrawal::REMOVED),
            _ => self.claim()?.leave(taken_for).await,
        }
    }

    fn request_clock(&self) -> Option<RequestClock> {
        if self.is(Mutation::NeverSaysSent) {
            return Some(self.clock.clone());
        }
        self.claim.as_ref().and_then(Claim::request_clock)
    }

    fn is_clean(&self) -> bool {
        self.claim.as_ref().is_some_and(Claim::is_clean)
    }
}

/// Tries for all of these at once, as the broken store does it.
pub(super) async fn attempt_all<B: Backend + Clone>(
    mutant: &Mutant<B>,
    claims: &mut [&mut MutantClaim<B>],
) -> Result<BatchAttempt, Failure> {
    match mutant.mutation {
        Mutation::TearsBatches | Mutation::TakesTheFirstOfABatch => {}
        // Each attempt breaks the rule by itself.
        Mutation::GrantsToEverybody | Mutation::WaitsInAnAttempt | Mutation::RetriesWithAnotherToken => {
            return Ok(BatchAttempt::Separately);
        }
        _ => return attempt_together(mutant, claims).await,
    }
    let mut grants = Vec::with_capacity(claims.len());
    for (place, claim) in claims.iter_mut().enumerate() {
        match claim.attempt().await? {
            Attempt::Granted(grant) => grants.push(grant),
            Attempt::Busy(busy) => return Ok(BatchAttempt::Busy { place, busy }),
        }
        if mutant.mutation == Mutation::TakesTheFirstOfABatch {
            break;
        }
    }
    let (Some(first), count) = (grants.first().copied(), claims.len()) else {
        return Ok(BatchAttempt::Granted(grants));
    };
    grants.resize(count, first);
    Ok(BatchAttempt::Granted(grants))
}

async fn attempt_together<B: Backend + Clone>(
    mutant: &Mutant<B>,
    claims: &mut [&mut MutantClaim<B>],
) -> Result<BatchAttempt, Failure> {
    let again: Vec<_> =
        claims.iter_mut().map(|claim| std::mem::replace(&mut claim.unsettled, true)).collect();
    let mut inner = Vec::with_capacity(claims.len());
    for claim in claims.iter_mut() {
        inner.push(claim.claim()?);
    }
    let answer = mutant.backend.attempt_all(&mut inner).await?;
    let BatchAttempt::Granted(grants) = answer else {
        claims.iter_mut().zip(again).for_each(|(claim, again)| claim.unsettled = again);
        return Ok(answer);
    };
    let broken = claims.iter().zip(grants).zip(again).map(|((claim, grant), again)| {
        mutant.store.granted.lock().insert(claim.request.key.clone(), claim.request.clone());
        claim.break_grant(grant, again)
    });
    Ok(BatchAttempt::Granted(broken.collect()))
}

impl<B: Backend> fmt::Debug for MutantClaim<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MutantClaim").field("mutation", &self.mutant.mutation).finish_non_exhaustive()
    }
}
