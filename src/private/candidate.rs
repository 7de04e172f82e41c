//! The code that `#[leader]` expands to calls of, and the view of a body on its lock.

use dlock_core::{Campaign, Eligibility, Held, Result, Term};

use super::{Hidden, Section, SectionKeys, Step};

/// A candidate of an election, which finds its locks when it first stands.
#[derive(Debug)]
pub struct Candidate {
    hidden: Box<dyn Hidden>,
    priority: u8,
    eligibility: Eligibility,
    campaign: Option<Campaign>,
}

impl Candidate {
    pub(super) fn new(hidden: Box<dyn Hidden>) -> Self {
        Self { hidden, priority: 0, eligibility: Eligibility::new(), campaign: None }
    }

    /// Applies `priority = ...`.
    #[must_use]
    pub const fn with_priority(mut self, priority: u8) -> Self {
        self.priority = priority;
        self
    }

    /// Applies `eligibility = ...`.
    #[must_use]
    pub fn with_eligibility(mut self, eligibility: &Eligibility) -> Self {
        self.eligibility = eligibility.clone();
        self
    }

    /// Waits until this process leads.
    ///
    /// # Errors
    ///
    /// Those of the look-up, and the failure that ended the campaign.
    ///
    /// # Cancel safety
    ///
    /// As [`Campaign::next`].
    pub fn win(&mut self) -> Step<'_, Result<Term>> {
        Box::pin(async move {
            let campaign = match &mut self.campaign {
                Some(campaign) => campaign,
                none => {
                    let setup = self.hidden.setup();
                    let SectionKeys::One(key) = &setup.keys else {
                        unreachable!("the attribute gives one key")
                    };
                    let election = setup.locks()?.election(key).with_options(|lock| setup.with_options(lock));
                    let election = election.with_priority(self.priority).with_eligibility(&self.eligibility);
                    none.insert(election.campaign())
                }
            };
            if let Some(term) = campaign.next().await {
                return Ok(term);
            }
            let ended = self.campaign.take().and_then(Campaign::into_failure);
            Err(ended.unwrap_or_else(|| unreachable!("a campaign that has ended says why")))
        })
    }
}

/// Gives up the term of a body that has returned; a failure is in its span, and bounded by the lease.
///
/// # Cancel safety
///
/// Goes on in the background when dropped.
pub async fn resign(term: Term) {
    let _ = term.resign().await;
}

impl Section {
    /// Stands for an election instead of taking a lock.
    pub fn elect(self) -> Candidate {
        Candidate::new(self.0)
    }
}

/// Returns the view of the body that calls this, for `guard = name`.
///
/// # Panics
///
/// Outside of a body, which the attribute never does.
#[must_use]
pub fn held() -> Held {
    match dlock_core::current_hold() {
        Some(held) => held,
        None => unreachable!("only called by the body of a section"),
    }
}
