//! The claim behind a hold: with the hold, lent to a renewal, or taken for good.

use super::Hold;
use crate::backend::dynamic::DynClaim;
use crate::guarded::wake_all;

impl Hold {
    /// Lends the claim to a renewal. An end of the hold makes the renewal give it back.
    pub(crate) async fn claim(&self) -> Option<LentClaim<'_>> {
        let here = self.settled_claim(|place| match std::mem::replace(place, ClaimPlace::Lent) {
            ClaimPlace::Here(claim) => Some(claim),
            // Only `Gone` reaches this, since a lent claim is waited for.
            ClaimPlace::Lent | ClaimPlace::Gone => {
                *place = ClaimPlace::Gone;
                None
            }
        });
        here.await.map(|claim| LentClaim { hold: self, claim: Some(claim) })
    }

    /// Takes the claim for good, if no renewal has it.
    pub(crate) fn try_take_claim(&self) -> Option<Option<Box<dyn DynClaim>>> {
        // `None` is a claim that a renewal has, `Some(None)` a claim that is gone.
        let mut place = self.claim.lock();
        (!matches!(*place, ClaimPlace::Lent)).then(|| place.take())
    }

    /// Takes the claim for good. Only the code that closed the hold calls this.
    pub(crate) async fn take_claim(&self) -> Option<Box<dyn DynClaim>> {
        self.settled_claim(ClaimPlace::take).await
    }

    /// Applies `take` when no renewal has the claim.
    async fn settled_claim<T>(&self, take: impl Fn(&mut ClaimPlace) -> T) -> T {
        loop {
            // Listens before it looks: a claim that comes back between the two is not missed.
            let changed = self.changed.notified();
            {
                let mut place = self.claim.lock();
                if !matches!(*place, ClaimPlace::Lent) {
                    return take(&mut place);
                }
            }
            changed.await;
        }
    }
}

/// The place of a hold's claim.
///
/// ```text
///   Here ── claim ──▶ Lent ── LentClaim dropped ──▶ Here
///     └──── take_claim, by the code that closed the hold ──▶ Gone
/// ```
pub(super) enum ClaimPlace {
    Here(Box<dyn DynClaim>),
    /// A renewal has it.
    Lent,
    Gone,
}

impl ClaimPlace {
    /// Takes it for good, if it is here.
    fn take(&mut self) -> Option<Box<dyn DynClaim>> {
        match std::mem::replace(self, Self::Gone) {
            Self::Here(claim) => Some(claim),
            Self::Lent | Self::Gone => None,
        }
    }
}

/// The claim while a renewal has it; back in its place when this is dropped.
pub(crate) struct LentClaim<'a> {
    hold: &'a Hold,
    claim: Option<Box<dyn DynClaim>>,
}

impl LentClaim<'_> {
    /// Returns the claim, which is there until the drop.
    pub(crate) fn claim(&mut self) -> Option<&mut Box<dyn DynClaim>> {
        self.claim.as_mut()
    }
}

impl Drop for LentClaim<'_> {
    fn drop(&mut self) {
        if let Some(claim) = self.claim.take() {
            // Put back before the notification, after which a release takes it.
            *self.hold.claim.lock() = ClaimPlace::Here(claim);
        }
        wake_all(&self.hold.changed);
    }
}
